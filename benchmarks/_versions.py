"""Two checkouts of regard against each other: two processes take turns, and ratios of medians are compared.

    python benchmarks/_versions.py OLD NEW                 both are folders with src/regard
    python benchmarks/_versions.py OLD NEW --device cuda --only beam

Only public names are used, so that any two versions can be compared. `make bench` leaves it out: it needs a second
checkout.
"""

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Work = Callable[[], object]


def works(device: str) -> dict[str, Work]:
    """Everything that is timed, by name."""
    import torch

    import regard

    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32

    def random(*shape: int, grad: bool = False) -> Any:
        return torch.randn(*shape, device=device, dtype=dtype, requires_grad=grad)

    tiny, some = [random(1, 4, 16, 16) for _ in range(3)], [random(8, 8, 64, 64) for _ in range(3)]
    long, hidden = [random(4, 8, 512, 64, grad=True) for _ in range(3)], [random(2, 4, 128, 64, grad=True)] * 3
    padding = regard.Padding(torch.tensor([64, 60, 50, 40, 30, 20, 10, 5], device=device))
    additive, layer = regard.Additive(random(64)), regard.Attention(256, heads=4).to(device, dtype)
    tokens, causal = random(8, 64, 256), regard.Causal()
    found: dict[str, Work] = {
        "attend, 16 tokens, 100 calls": lambda: [regard.attend(*tiny) for _ in range(100)],
        "attend, causal, 16 tokens, 100 calls": lambda: [regard.attend(*tiny, mask=causal) for _ in range(100)],
        "attend, padded, 20 calls": lambda: [regard.attend(*some, mask=padding) for _ in range(20)],
        "attend, sigmoid, 20 calls": lambda: [regard.attend(*some, normalize="sigmoid") for _ in range(20)],
        "attend, causal, 512 tokens, with backward": lambda: regard.attend(*long, mask=causal).sum().backward(),
        "additive, with backward": lambda: regard.attend(*hidden, score=additive).sum().backward(),
        "attention layer, 10 calls": lambda: [layer(tokens) for _ in range(10)],
    }
    x = random(16, 128, 128, grad=True)
    for cell in ("rnn", "lstm", "gru", "mut1", "mut2", "mut3"):
        network = regard.Recurrence(128, cell=cell).to(device, dtype)
        found[f"{cell}, 128 steps, with backward"] = lambda network=network: network(x).sum().backward()
    return found | searches(device, dtype) | models(device)


def models(device: str) -> dict[str, Work]:
    """A forward and a backward pass of a whole model."""
    import torch

    import regard

    model = regard.build("transformer-tiny", source_vocabulary=1000, target_vocabulary=1000).to(device).train()
    ids = regard.Tokens.of(torch.randint(5, 1000, (16, 24)).tolist()).to(device)
    return {"transformer-tiny, with backward": lambda: model.decode(ids, model.encode(ids)).sum().backward()}


def searches(device: str, dtype: Any) -> dict[str, Work]:
    """Greedy search, beam search and sampling, 24 tokens, of models with random weights."""
    import torch

    import regard

    limit = "max_length" if "max_length" in inspect.signature(regard.beam).parameters else "limit"
    found: dict[str, Work] = {}
    for recipe, translates in (("transformer-small", True), ("gpt-small", False), ("seq2seq-attention-tiny", True)):
        sizes = {"source_vocabulary": 4000, "target_vocabulary": 4000} if translates else {"vocabulary": 4000}
        model = regard.build(recipe, **sizes).eval().to(device, dtype)  # these names are read by every version
        for batch in (1, 32):
            draw = torch.Generator().manual_seed(1)
            rows = [torch.randint(5, 4000, (20,), generator=draw).tolist() for _ in range(batch)]
            options = {"prompts": [[2]] * batch if translates else rows, "end": 3, limit: 24}
            source = regard.Tokens.of(rows).to(device) if translates else None

            def run(search: Any, model: Any = model, source: Any = source, options: Any = options,
                    **more: Any) -> object:
                with torch.inference_mode():
                    memory = () if source is None else (model.encode(source),)
                return search(model, *memory, **options, **more)

            found[f"greedy, {recipe}, batch {batch}"] = lambda run=run: run(regard.greedy)
            found[f"beam 5, {recipe}, batch {batch}"] = lambda run=run: run(regard.beam, beams=5)
        if not translates:
            found[f"sampling, {recipe}, batch 32"] = lambda run=run: run(regard.sample, seed=1)
    return found


def serve(device: str, only: str) -> None:
    """Time a work for each name that is read, in seconds."""
    import torch

    warnings.simplefilter("ignore")
    known = {name: work for name, work in works(device).items() if only in name}
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for work in known.values():
        work()
        work()
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        wait()
        began = time.perf_counter()
        known[line.strip()]()
        wait()
        print(time.perf_counter() - began, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="a part of the names of the works to be timed")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(given.device, given.only)
    call = [sys.executable, __file__, given.old, given.new, "--serve", "--device", given.device, "--only", given.only]
    sides = [subprocess.Popen(call, env={**os.environ, "PYTHONPATH": str(Path(tree) / "src")}, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) for tree in (given.old, given.new)]
    names = [json.loads(side.stdout.readline()) for side in sides]  # type: ignore[union-attr]
    print("| work | old, ms | new, ms | new / old | quartiles of the rounds |\n|---|---|---|---|---|")
    for name in names[0]:
        taken: list[list[float]] = [[], []]
        for turn in range(given.rounds):
            for side in (0, 1) if turn % 2 else (1, 0):
                print(name, file=sides[side].stdin, flush=True)
                taken[side].append(float(sides[side].stdout.readline()))  # type: ignore[union-attr]
        old, new = (statistics.median(times) * 1000 for times in taken)
        low, _, high = statistics.quantiles([b / a for a, b in zip(*taken, strict=True)], n=4)
        print(f"| {name} | {old:.2f} | {new:.2f} | {new / old:.2f} | {low:.2f} to {high:.2f} |", flush=True)
    for side in sides:
        side.stdin.close()  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
