"""The search for near-duplicates of a test set in the training data measured: pairs a second and peak memory.

    python benchmarks/near_duplicates.py                            100,000 training pairs, 10,000 test pairs
    python benchmarks/near_duplicates.py --pairs 1000000 words      one kind of data
    python benchmarks/near_duplicates.py --data TRAIN --test TEST   files of your own

Each row is one process that reads a TSV file and checks it as `regard data check` does, with the search and without.
The kinds of data, from the usual case to the worst one:

    words        random sentences of 3 to 20 words, whose frequencies follow Zipf's law
    phrasebook   sentences of a small grammar, all alike
    changed      every training pair is a test pair with one word changed on each side
    sources      the same with unrelated targets, so that no test pair can be taken out of the index
"""

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from regard.data import phrasebook
from regard.data.doctor import check_corpus
from regard.data.sources.formats import read_pairs

KINDS = ("words", "phrasebook", "changed", "sources")
WORDS, SYLLABLES = 20_000, tuple("".join(both) for both in itertools.product("bcdfglmnprstv", "aeiou"))
Pair = tuple[str, str]


class RandomSentences:
    """Pairs of random sentences of 3 to 20 words, whose frequencies follow Zipf's law."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        spelling = random.Random(0)  # the same words for every seed
        self.words = ["".join(spelling.choices(SYLLABLES, k=spelling.randint(1, 4))) for _ in range(WORDS)]
        self.weights = [*itertools.accumulate(1 / rank for rank in range(1, WORDS + 1))]

    def sentence(self) -> str:
        """A new sentence."""
        return " ".join(self.random.choices(self.words, cum_weights=self.weights, k=self.random.randint(3, 20)))

    def changed(self, text: str) -> str:
        """A text with another word in place of one."""
        words = text.split()
        words[self.random.randrange(len(words))] = self.random.choice(self.words)
        return " ".join(words)


def training_pairs(kind: str, count: int, test: list[Pair]) -> Iterator[Pair]:
    """The training pairs of one kind of data."""
    if kind == "phrasebook":
        yield from ((pair.source, pair.target) for pair in phrasebook.pairs(count))
        return
    sentences = RandomSentences(1)
    for _ in range(count):
        source, target = sentences.random.choice(test)
        yield (sentences.sentence() if kind == "words" else sentences.changed(source),
               sentences.changed(target) if kind == "changed" else sentences.sentence())


def test_pairs(kind: str, count: int) -> list[Pair]:
    """The test pairs of one kind of data."""
    if kind == "phrasebook":
        return [(pair.source, pair.target) for pair in phrasebook.pairs(count, split="test")]
    sentences = RandomSentences(2)
    return [(sentences.sentence(), sentences.sentence()) for _ in range(count)]


def write_tsv(path: Path, pairs: Iterator[Pair] | list[Pair]) -> None:
    """Write pairs to a TSV file."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{source}\t{target}\n" for source, target in pairs)


def check(training: str, test: str, *, near: bool) -> None:
    """Check the files in this process, and print wall and CPU seconds, the peak memory in MB, and what was found."""
    start, busy = time.perf_counter(), time.process_time()
    report = check_corpus(read_pairs([training]), test=read_pairs([test]), near_duplicates=near)
    taken, busy = time.perf_counter() - start, time.process_time() - busy
    # Not getrusage: its peak is inherited from the process that started this one.
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    found = report.near_duplicates.get("test")
    print(report.read, taken, busy, peak, *(() if found is None else (found.pairs, found.either)))


def rows(name: str, training: Path, test: Path) -> Iterator[list[str]]:
    """The measurements of one training file: without the search, and with it."""
    for option in ("without", "with"):
        command = [sys.executable, __file__, "--check", option, "--data", str(training), "--test", str(test)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        read, taken, busy, peak, *found = map(float, result.stdout.split())
        share = f"{100 * found[1] / found[0]:.1f}%" if found else ""
        yield [name, option, f"{read:,.0f}", f"{taken:,.1f}", f"{busy:,.1f}", f"{read / taken:,.0f}", f"{peak:,.0f}",
               share]


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"of {', '.join(KINDS)}; all where none is named")
    parser.add_argument("--pairs", type=int, default=100_000, help="training pairs")
    parser.add_argument("--held-out", type=int, default=10_000, help="test pairs")
    parser.add_argument("--data", help="a training file of your own")
    parser.add_argument("--test", help="its test file")
    parser.add_argument("--check", choices=("with", "without"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if (asked.data is None) != (asked.test is None):
        parser.error("give both --data and --test, or neither")
    if unknown := [kind for kind in asked.kinds if kind not in KINDS]:
        parser.error(f"unknown kind {unknown[0]!r}: choose from {', '.join(KINDS)}")
    if asked.check:
        check(asked.data, asked.test, near=asked.check == "with")
        return
    from timing import hardware, table  # imports torch, whose memory a check does not need

    print(f"{hardware('cpu')}\n`{' '.join(['python', f'benchmarks/{Path(__file__).name}', *sys.argv[1:]])}`\n")
    measured: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        training, test = Path(folder) / "training.tsv", Path(folder) / "test.tsv"
        if asked.data:
            measured += rows(Path(asked.data).name, Path(asked.data), Path(asked.test))
        for kind in () if asked.data else asked.kinds or KINDS:
            pairs = test_pairs(kind, asked.held_out)
            write_tsv(test, pairs)
            write_tsv(training, training_pairs(kind, asked.pairs, pairs))
            measured += rows(kind, training, test)
    print(table(["data", "search", "training pairs", "s", "CPU s", "pairs/s", "peak MB", "near-duplicates"], measured))


if __name__ == "__main__":
    main()
