"""Adaptation measured: a general translator that is fine-tuned on user-interface strings, and what it forgets.

    python benchmarks/adaptation.py DATA --device cuda --jobs 8
    python benchmarks/adaptation.py DATA --quick                        a tiny form, which shows only that it runs

DATA has the folders `tatoeba` and `libreoffice-ui`, each with train.tsv.gz, val.tsv.gz and test.tsv.gz: English and
French in the first two columns. The plain command trains a model on the first (everyday sentences). It is then
fine-tuned on 100, 600, 5,000 and all pairs of the second, by the plain command too (`--from`), with general data
(`--mix`), with blending (`--blend`), and with both; and a model is trained on the same pairs from scratch. Nothing but
the pairs is given: each training holds out its own validation data. To choose the share of blending, general validation
data is given. All models translate both tests with beam 5; BLEU and chrF are sacrebleu's. Trainings that do not depend
on each other run as parallel processes (`--jobs`), all on one device.

The goals: with all pairs, fine-tuning is better than training from scratch by at least 5 BLEU on the new domain, and
with `--mix` at least 98 % of the general chrF stays.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from timing import hardware, table

GENERAL, NEW = "tatoeba", "libreoffice-ui"
SIZES = (100, 600, 5000, None)
"""New pairs; None for all of them."""
FILES = {"--mix": "general.tsv", "--general-validation": "general-val.tsv"}
"""The files of options."""
VARIANTS = {"scratch": None, "fine-tuned": (), "mix": ("--mix",), "blend": ("--blend", "--general-validation"),
            "mix, blend": ("--mix", "--blend", "--general-validation")}
"""The options of each way of training; None for a new model."""
GAIN, KEPT = 5.0, 0.98
"""Goals: BLEU over a model from scratch with all pairs, and the fraction of the general chrF that stays with --mix."""


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF on both tests."""

    new_bleu: float
    new_chrf: float
    general_bleu: float
    general_chrf: float


@dataclass(frozen=True)
class Row:
    """A model with its scores."""

    pairs: int
    variant: str
    scores: Scores
    seconds: float
    step: int | None
    """The step of the best checkpoint; 0 is the start model."""
    share: float | None
    """The share of the new weights of a blended model."""


def read_pairs(path: Path, limit: int | None = None) -> list[tuple[str, str]]:
    """Source and target of each line of a gzipped TSV file."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        pairs = [tuple(line.rstrip("\n").split("\t")[:2]) for line in file]
    return pairs[:limit]  # type: ignore[return-value]


def write_pairs(path: Path, pairs: Sequence[tuple[str, str]]) -> Path:
    """Write pairs as TSV."""
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return path


def spread(pairs: Sequence[tuple[str, str]], count: int | None) -> list[tuple[str, str]]:
    """As many pairs at equal distances."""
    if count is None or count >= len(pairs):
        return [*pairs]
    return [pairs[number * len(pairs) // count] for number in range(count)]


def train(data: Path, output: Path, options: Sequence[str], device: str) -> float:
    """Run `regard train`, unless the folder has its model already; returns the seconds that it took."""
    if (output / "model.safetensors").exists() and not (output / "data").exists():
        return 0.0
    start = time.monotonic()
    log = output.with_suffix(".log")
    with log.open("w") as out:
        words = ["train", str(data), "-o", str(output), "--device", device, "--languages", "en-fr", *options]
        code = subprocess.run([sys.executable, "-m", "regard", *words, *(["--resume"] if output.exists() else [])],
                              stdout=out, stderr=out).returncode
    if code:
        raise SystemExit(f"{output.name} failed ({code}): {log.read_text()[-2000:]}")
    return time.monotonic() - start


def score(folder: Path, place: Path, device: str) -> Scores:
    """Translate both tests in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--score", str(folder), str(place), "--device", device],
                          stdout=subprocess.PIPE, text=True, check=True)
    return Scores(**json.loads(done.stdout.splitlines()[-1]))


def print_scores(folder: Path, place: Path, device: str) -> None:
    """Translate both tests in this process, and print the scores as JSON."""
    import regard
    from regard.tasks.evaluation import corpus_scores

    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    translator = regard.Translator.load(folder, device=device)
    found = {}
    for name, file in (("new", "new-test.tsv"), ("general", "general-test.tsv")):
        pairs = [line.split("\t") for line in (place / file).read_text(encoding="utf-8").splitlines()]
        outputs = [one.text for one in translator.translate([source for source, _ in pairs], batch_tokens=16_000)]
        scores = corpus_scores(outputs, [target for _, target in pairs])
        found |= {f"{name}_bleu": scores.bleu, f"{name}_chrf": scores.chrf}
    print(json.dumps(found))


def measure(job: tuple[int, str, Path, list[str]], place: Path, device: str) -> Row:
    """Train a model, and score it."""
    from regard.tasks.info import read_info

    pairs, variant, data, options = job
    output = place / f"{variant.replace(', ', '-')}-{pairs}"
    seconds = train(data, output, options, device)
    record = read_info(output).record
    row = Row(pairs, variant, score(output, place, device), seconds, record.get("scores", {}).get("step"),
              record.get("start", {}).get("blend"))
    print(f"{variant}, {pairs:,} pairs: {row.scores}", file=sys.stderr, flush=True)
    return row


def jobs_of(arguments: argparse.Namespace, place: Path, base: Path) -> list[tuple[int, str, Path, list[str]]]:
    """All trainings after that of the general model."""
    pairs = read_pairs(arguments.data / NEW / "train.tsv.gz", 100 if arguments.quick else None)
    found = []
    for size in (100,) if arguments.quick else reversed(SIZES):  # the longest trainings first
        some = spread(pairs, size)
        data = write_pairs(place / f"new-{len(some)}.tsv", some)
        for variant, extra in VARIANTS.items():
            options = [] if extra is None else ["--from", str(base)]
            for option in extra or ():
                options += [option, *([str(place / FILES[option])] if option in FILES else [])]
            options += ["--time", arguments.time] if arguments.time else []
            options += ["--steps", "4"] if arguments.quick else []
            found.append((len(some), variant, data, options))
    return found


def report(before: Scores, rows: Sequence[Row]) -> tuple[str, dict[str, bool]]:
    """The table, and whether the goals are reached."""
    def cells(scores: Scores) -> list[str]:
        return [f"{scores.new_bleu:.2f}", f"{scores.new_chrf:.2f}", f"{scores.general_bleu:.2f}",
                f"{scores.general_chrf:.2f}", f"{scores.general_chrf / max(1e-9, before.general_chrf):.1%}"]

    lines = [["", "start model", *cells(before), "", "", ""]]
    lines += [[f"{row.pairs:,}", row.variant, *cells(row.scores), "" if row.share is None else f"{row.share:.1f}",
               "" if row.step is None else f"{row.step:,}", f"{row.seconds:.0f}"] for row in rows]
    head = ["pairs", "training", "new BLEU", "new chrF", "general BLEU", "general chrF", "kept", "share", "best step",
            "s"]
    most = max(row.pairs for row in rows)
    last = {row.variant: row.scores for row in rows if row.pairs == most}
    goals = {f"all pairs: {GAIN:g} BLEU over a model from scratch": last["fine-tuned"].new_bleu
             >= last["scratch"].new_bleu + GAIN,
             f"all pairs, --mix: {KEPT:.0%} of the general chrF": last["mix"].general_chrf
             >= KEPT * before.general_chrf}
    return table(head, lines), goals


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--score", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--base", type=Path, help="a general model that exists already")
    parser.add_argument("--base-time", help="time limit of the general model, such as 4m")
    parser.add_argument("--time", help="time limit of each other training")
    parser.add_argument("--work", type=Path, help="the folder of the models; a second call continues there")
    parser.add_argument("--json", type=Path, help="also write the numbers into this file")
    parser.add_argument("--quick", action="store_true", help="few pairs and steps: it shows only that all of it runs")
    arguments = parser.parse_args()
    if arguments.score:
        print_scores(*arguments.score, arguments.device)
        return
    if arguments.data is None:
        parser.error("DATA is missing")
    with tempfile.TemporaryDirectory() as scratch:
        place = arguments.work or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        quick = 30 if arguments.quick else None
        write_pairs(place / "general.tsv", read_pairs(arguments.data / GENERAL / "train.tsv.gz", quick and 20 * quick))
        for file, name, folder in (("general-test", "test", GENERAL), ("new-test", "test", NEW),
                                   ("general-val", "val", GENERAL)):
            write_pairs(place / f"{file}.tsv", read_pairs(arguments.data / folder / f"{name}.tsv.gz", quick))
        base = (arguments.base or place / "start").resolve()
        options = ["--time", arguments.base_time] if arguments.base_time else []
        seconds = train(place / "general.tsv", base, [*options, *(["--steps", "20"] if quick else [])],
                        arguments.device)
        before = score(base, place, arguments.device)
        print(f"start model ({seconds:.0f} s): {before}", file=sys.stderr, flush=True)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            rows = [*pool.map(lambda job: measure(job, place, arguments.device), jobs_of(arguments, place, base))]
        rows.sort(key=lambda row: row.pairs)
        shown, goals = report(before, rows)
        print(hardware(arguments.device if arguments.device != "auto" else "cpu"))
        print(shown)
        for goal, reached in goals.items():
            print(f"{'reached' if reached else 'NOT reached'}: {goal}")
        if arguments.json:
            numbers = {"start": asdict(before), "rows": [asdict(row) for row in rows], "goals": goals}
            arguments.json.write_text(json.dumps(numbers, indent=1) + os.linesep)


if __name__ == "__main__":
    main()
