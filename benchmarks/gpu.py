"""What is claimed of speed and memory on a GPU, each claim beside its peer, with its share of the physical limit.

    python benchmarks/gpu.py                       every part
    python benchmarks/gpu.py additive scans        some parts
    python benchmarks/gpu.py training --data FOLDER --languages en-de
    python benchmarks/gpu.py --tiny                sizes for a CPU, to see that everything runs

    additive       additive attention, forward and backward; its memory over long sequences
    scans          every recurrent cell against cuDNN and a loop
    maps           statistics of 131,072 tokens against one attention forward
    dot            dot attention over long sequences: the kernel that is chosen, against each by name
    normalisers    ReLU and sigmoid weights
    packed         short sequences in one row
    training       Transformers on sentences of mixed lengths
    decoding       beam search

Each part is a process of its own, so that one that fails or hangs takes nothing from the others. Times are medians of
repeated runs between device events, contestants in turns; those of training are medians of windows of many steps by the
clock, as batches are made meanwhile on the host. Tables are printed as they are done; each row is told on the error
stream as soon as it is known. The limits are those of one H200: see `on_gpu/rows.py`.
"""

import argparse
import json
import os
import subprocess
import sys
from importlib import import_module

import torch
from on_gpu.rows import Setting, say
from timing import hardware

PARTS = ("additive", "scans", "maps", "dot", "normalisers", "packed", "training", "decoding")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all where none is named")
    parser.add_argument("--tiny", action="store_true", help="sizes so small that a CPU computes them")
    parser.add_argument("--data", metavar="FOLDER", help="for training, with train.LANGUAGE.gz of two languages")
    parser.add_argument("--languages", default="en-de")
    parser.add_argument("--windows", type=int, default=7, help="that each loop of training is timed over")
    parser.add_argument("--compiled", action="store_true", help="torch.compile as a peer of additive attention")
    parser.add_argument("--limit", type=float, default=260.0, metavar="SECONDS", help="that a part may take")
    parser.add_argument("--json", action="store_true", help="an object a line in place of tables")
    parser.add_argument("--inside", choices=PARTS, help=argparse.SUPPRESS)  # one part, in a process of its own
    asked = parser.parse_args(given)
    unknown = [part for part in asked.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    return asked


def main() -> int:
    """Run what is asked for; 1 where a part failed."""
    asked = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not asked.tiny:
        print("gpu.py is for a GPU, and there is none; --tiny runs everything at sizes for a CPU, to see that it runs")
        return 0
    if asked.inside:
        setting = Setting(device, asked.tiny, asked.data, asked.languages, asked.compiled, asked.windows)
        show(asked.inside, setting, asked.json)
        return 0
    machine, command = hardware(device.type), " ".join(["python", "benchmarks/gpu.py", *sys.argv[1:]])
    head = json.dumps({"hardware": machine, "command": command}) if asked.json else f"{machine}\n`{command}`"
    print(head, flush=True)
    lost = [part for part in asked.parts or PARTS if not apart(part, asked, device)]
    return 1 if lost else 0


def show(part: str, setting: Setting, as_json: bool) -> None:
    """Print the tables of a part as they are made."""
    torch.manual_seed(0)
    for table in import_module(f"on_gpu.{part}").tables(setting):
        print(table.json(part) if as_json else f"\n{table}", flush=True)


def apart(part: str, asked: argparse.Namespace, device: torch.device) -> bool:
    """Whether a part, in a process of its own, came to its end; where it did not, that is printed."""
    options = [word for word, wanted in (("--tiny", asked.tiny), ("--compiled", asked.compiled), ("--json", asked.json))
               if wanted]
    data = [] if asked.data is None else ["--data", asked.data]
    command = [sys.executable, __file__, "--inside", part, "--languages", asked.languages, "--windows",
               str(asked.windows), *options, *data]
    say(part)
    interpreted = {"TRITON_INTERPRET": "1"} if device.type == "cpu" else {}  # read when triton is imported
    try:
        ended = subprocess.run(command, env={**os.environ, **interpreted}, timeout=asked.limit, check=False).returncode
        reason = f"it ended with code {ended}; the error stream says why"
    except subprocess.TimeoutExpired:
        ended, reason = 1, f"it took more than {asked.limit:g} s"
    if ended:
        print(json.dumps({"part": part, "failed": reason}) if asked.json else f"\n{part} failed: {reason}", flush=True)
    return not ended


if __name__ == "__main__":
    sys.exit(main())
