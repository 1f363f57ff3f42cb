"""Which recipe `regard train --task language` should use: the validation loss of recipes after the same training.

    python benchmarks/language.py TEXT                                    gpt and llama, three seeds each
    python benchmarks/language.py TEXT --recipes gpt llama --seeds 1 2 3 --jobs 3
    python benchmarks/language.py TEXT --set training.schedule.max_steps=300 --set training.validation.every=100

Every training has the defaults of `regard train TEXT --task language --recipe NAME --set training.seed=N`, and runs in
a process of its own, `--jobs` at a time; a line is printed as soon as one has ended. The loss is the best one on the
validation split, in nats a token. The further columns are the loss of the validation text read in windows that are
longer than those of the training, by the position in the window: how far a model can be used beyond the length that it
was trained with. Recipes take turns, so that the lines of an interrupted run still compare the same seeds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from timing import hardware, table
from torch.nn import functional as F

import regard
from regard.checks import plural
from regard.tasks.completer import Completer
from regard.tasks.task import max_positions
from regard.tokens import Tokens
from regard.training.logging import TrainingEvent, Validated
from regard.training.tasks.common import open_inputs
from regard.training.tasks.interface import TrainingRequest
from regard.training.tasks.language import FILE_END, TEXT_VALIDATION_FRACTION, read_pieces
from regard.training.train import train

BOUNDARIES = (0, 256, 512, 1024, 2048)
"""Positions in a long window between which losses are averaged."""
MAX_LONG_TOKENS = 65_536
"""Tokens of the validation text that are read in long windows."""


class BestLoss:
    """A logger that keeps the best validation loss, its step, and the last step."""

    name = "best loss"

    def __init__(self) -> None:
        self.loss, self.step, self.last = float("inf"), 0, 0

    def __call__(self, event: TrainingEvent, /) -> None:
        if isinstance(event, Validated):
            self.last = event.step
            if event.scores["loss"] < self.loss:
                self.loss, self.step = event.scores["loss"], event.step

    def close(self) -> None:
        """There is nothing to close."""


def run_one(text: str, recipe: str, seed: int, changes: dict[str, Any], device: str) -> dict[str, Any]:
    """Train one model, and measure it."""
    best, started = BestLoss(), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        train(TrainingRequest(task="language", data=(text,), output=Path(place) / "model", recipe=recipe, device=device,
                              changes={"training.seed": seed, **changes}), [best])
        seconds = time.monotonic() - started
        task = regard.load(Path(place) / "model", device=device)
        assert isinstance(task, Completer)
        count = sum(parameter.numel() for parameter in task.model.parameters())
        return {"recipe": recipe, "seed": seed, "parameters": count, "loss": best.loss, "step": best.step,
                "last": best.last, "seconds": seconds, "long": long_losses(task, text)}


@torch.inference_mode()
def long_losses(task: Completer, file: str) -> list[float | None]:
    """The mean loss at the positions between the boundaries, in windows of the validation text; None beyond a limit."""
    text = "".join(piece for piece in read_pieces(open_inputs([file])) if piece is not FILE_END)
    ids = task.text_tokenizer().encode(text[-int(len(text) * TEXT_VALIDATION_FRACTION):])
    limit = max_positions(task.model.decoder) or BOUNDARIES[-1]
    length = max(boundary for boundary in BOUNDARIES if boundary <= limit)
    ids = ids[:MAX_LONG_TOKENS]
    windows = torch.tensor([ids[at:at + length + 1] for at in range(0, len(ids) - length, length)], device=task.device)
    losses = []
    for rows in windows.split(4):
        logits = task.model(Tokens(rows[:, :-1])).float()
        losses.append(F.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none"))
    by_position = torch.cat(losses).double().mean(0)
    return [by_position[low:high].mean().item() if high <= length else None for low, high in pairwise(BOUNDARIES)]


def run_all(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The results of all trainings, `jobs` at a time, each printed when it has ended."""
    waiting = [(recipe, seed) for seed in arguments.seeds for recipe in arguments.recipes]
    running: list[subprocess.Popen[str]] = []
    results = []
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            recipe, seed = waiting.pop(0)
            changes = [part for change in arguments.set for part in ("--set", change)]
            running.append(subprocess.Popen(
                [sys.executable, __file__, arguments.text, "--one", recipe, str(seed), "--device", arguments.device,
                 *changes], stdout=subprocess.PIPE, text=True))
        time.sleep(0.2)
        for process in [each for each in running if each.poll() is not None]:
            running.remove(process)
            output, _ = process.communicate()
            if process.returncode:
                print(f"A training ended with exit code {process.returncode}.", file=sys.stderr)
                continue
            results.append(json.loads(output.splitlines()[-1]))
            print("| " + " | ".join(row(results[-1])) + " |", flush=True)
    return results


def row(result: dict[str, Any]) -> list[str]:
    """A result as the cells of a table."""
    return [result["recipe"], str(result["seed"]), f"{result['parameters']:,}", f"{result['loss']:.4f}",
            f"{result['step']:,} of {result['last']:,}", f"{result['seconds']:.0f}",
            *("-" if loss is None else f"{loss:.3f}" for loss in result["long"])]


def main() -> None:
    """Run the trainings that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--recipes", nargs="+", default=["gpt", "llama"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--one", nargs=2, metavar=("RECIPE", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        recipe, seed = arguments.one
        changes = {key: json.loads(value) for key, value in (change.split("=", 1) for change in arguments.set)}
        print(json.dumps(run_one(arguments.text, recipe, int(seed), changes, arguments.device)))
        return
    print(hardware(arguments.device), flush=True)
    print("python benchmarks/language.py", " ".join(sys.argv[1:]), flush=True)
    header = ["recipe", "seed", "parameters", "loss", "best step", "seconds",
              *(f"at {low:,} to {high:,}" for low, high in pairwise(BOUNDARIES))]
    results = sorted(run_all(arguments), key=lambda result: (result["recipe"], result["seed"]))
    print("\n" + table(header, [row(result) for result in results]))
    for recipe in arguments.recipes:
        losses = [result["loss"] for result in results if result["recipe"] == recipe]
        if losses:
            print(f"{recipe}: mean loss {statistics.mean(losses):.4f} of {plural(len(losses), 'seed')}")


if __name__ == "__main__":
    main()
