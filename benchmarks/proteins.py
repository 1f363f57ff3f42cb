"""Secondary structure of proteins measured: a label for every residue, from the chain alone.

    python benchmarks/proteins.py DATA --device cuda --jobs 6 --seeds 1,2,3
    python benchmarks/proteins.py DATA --variants default,transformer --options "--set training.rdrop=1"
    python benchmarks/proteins.py DATA --unlabelled sequences.txt.gz --variants pretrained
    python benchmarks/proteins.py DATA --unlabelled sequences.txt.gz --families families.tsv.gz --variants homologues
    python benchmarks/proteins.py DATA --filter annotations.json --json sequences.txt.gz
    python benchmarks/proteins.py DATA --speed                          tokens per second beside plain PyTorch, on a CPU
    python benchmarks/proteins.py DATA --quick                          a tiny form, which shows only that it runs

DATA has train.tsv.gz and cb513.tsv.gz: a chain, a tab and its secondary structure in 8 states. `regard train --task
label` skips duplicates and holds out its own validation chains; every choice is made by their accuracy. Test chains
that are in the training data would be reported. `regard evaluate` gives Q8, the accuracy over 8 states, and Q3, that of
H (H, G, I), E (E, B) and C (all others).

With unlabelled sequences there are these stages before a tagger is trained on DATA; each starts from the one before
(`--from`), and STARTS has the stages of each variant:

- masked: a masked language model of the sequences (`--task masked`)
- homologues: a tagger whose labels are the residues of aligned relatives, which --families names
- teachers: a tagger of sequences that the taggers of --teachers have labelled together (self-training)

`--filter` makes the file of sequences from the annotation JSON of the package sidechainnet (its sequences only) or from
a text file: it leaves out sequences that are equal, or at least 30 % identical, to a test chain. Two chains that share
enough 3-mers within 16 diagonals (at least three, and one for every 50 residues) are aligned near these diagonals
(Smith-Waterman, BLOSUM62, gaps 11 + 1); identity is that of the aligned columns, which must cover half of the shorter
chain with an E-value of at most 10.
"""

import argparse
import gzip
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from timing import hardware, table

MERGE = "H=HGI,E=EB,C=*"
GOALS = {"default": (69.0, 55.0), "pretrained": (72.0, 58.0), "self-trained": (72.0, 58.0)}
"""Q3 and Q8 that must be reached."""
VARIANTS: dict[str, str] = {
    "default": "",
    "transformer": "--recipe tagger --set model.front.layers=2",
    "lstm": "--recipe tagger-lstm",
    "convolution": "--recipe tagger-conv",
    "convolution r-drop": "--recipe tagger-conv --set training.rdrop=1",
    "convolution wide": "--recipe tagger-conv --width 512",
    "convolution deep": "--recipe tagger-conv --layers 12 --set model.stack.mixer.dilation_growth=1",
    "transformer front": "--recipe tagger",
    "transformer front r-drop": "--recipe tagger --set training.rdrop=1",
    "lstm wide": "--recipe tagger-lstm --width 1024",
    "lstm r-drop": "--recipe tagger-lstm --set training.rdrop=1",
    "lstm token dropout": "--recipe tagger-lstm --set training.token_dropout=0.15",
    "transformer relative": "--recipe tagger --set model.stack.mixer.position.kind=relative"
                            " --set model.stack.mixer.position.max_distance=32",
    "transformer deep": "--recipe tagger --layers 8 --dropout 0.3",
    "transformer alone": "--recipe {place}/transformer-alone.toml",
    "pretrained": "",
    "pretrained wide": "",
    "pretrained lstm": "",
    "homologues": "",
    "masked homologues": "",
    "self-trained": "",
    "self-trained homologues": "",
}
"""The options of each variant. {place} is the folder of the models."""
STARTS: dict[str, tuple[str, ...]] = {
    "pretrained": ("masked",),
    "pretrained wide": ("masked wide",),
    "pretrained lstm": ("masked lstm",),
    "homologues": ("homologues",),
    "masked homologues": ("masked wide", "homologues"),
    "self-trained": ("masked wide", "teachers"),
    "self-trained homologues": ("homologues", "teachers"),
}
"""The stages before the training on labelled chains, of the variants that have any."""
WIDE = "--width 384 --layers 6 --set model.stack.feed_forward.ffn_width=1536"
MASKED = "--set tokenizer.kind=characters --set data.filters.max_characters=1000"
STAGES: dict[str, tuple[str, str, str]] = {
    "masked": ("masked", "unlabelled.txt", f"{MASKED} --recipe roformer"),
    "masked wide": ("masked", "unlabelled.txt", f"{MASKED} --recipe roformer-small {WIDE}"),
    "masked lstm": ("masked", "unlabelled.txt", f"{MASKED} --recipe {{place}}/masked-lstm.toml"),
    "homologues": ("label", "homologues.tsv", f"--recipe tagger-small {WIDE}"),
    "teachers": ("label", "pseudo.tsv", f"--recipe tagger-small {WIDE}"),
}
"""The task, the data and the options of each stage; of a stage that starts from another, options of the architecture
are left out."""
TRANSFORMER_ALONE = """
[model]
kind = "tagger"
width = 256
[model.stack]
layers = 4
mixer = { kind = "attention", heads = 4, position = { kind = "rotary", pairing = "halves" } }
feed_forward = { ffn_width = 1024, activation = "gelu" }
"""
"""The recipe tagger-small without the convolutions before it, so that only attention can look at neighbours."""
MASKED_LSTM = """
[model]
kind = "masked"
width = 512
[model.embedding]
dropout = 0.1
[model.front]
layers = 2
dropout = 0.1
mixer = { kind = "convolution", kernel_size = 7, gate = "glu" }
[model.stack]
layers = 3
dropout = 0.2
mixer = { kind = "recurrence", cell = "lstm", direction = "both" }
"""
"""A masked language model with the architecture of tagger-lstm-small."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """A model with its scores, from 0 to 100."""

    variant: str
    seed: int
    q3: float
    q8: float
    validation: float
    """The accuracy over 8 states on the validation chains."""
    step: int
    parameters: int
    seconds: float


def read_lines(path: Path) -> list[str]:
    """The lines of a plain or gzipped file."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


# Trainings

def run_regard(words: Sequence[str], log: Path) -> float:
    """Run a command of regard; returns the seconds that it took."""
    start = time.monotonic()
    with log.open("w") as out:
        code = subprocess.run([sys.executable, "-m", "regard", *words], stdout=out, stderr=out).returncode
    if code:
        raise SystemExit(f"{log.name} failed ({code}): {log.read_text()[-2000:]}")
    return time.monotonic() - start


def train(task: str, data: Path, output: Path, options: Sequence[str], device: str) -> float:
    """Train a model, unless the folder has it already; returns the seconds that it took."""
    if (output / "model.safetensors").exists() and not (output / "data").exists():
        return 0.0
    words = ["train", str(data), "--task", task, "-o", str(output), "--device", device, *options,
             *(["--resume"] if output.exists() else [])]
    return run_regard(words, output.with_suffix(".log"))


def measure(variant: str, seed: int, options: Sequence[str], data: Path, test: Path, device: str, place: Path) -> Row:
    """Train a tagger and score it on the test chains."""
    from regard.tasks.info import read_info

    output = place / f"{variant.replace(' ', '-')}-{seed}"
    seconds = train("label", data, output, [*options, "--seed", str(seed)], device)
    done = subprocess.run([sys.executable, "-m", "regard", "evaluate", str(output), str(test), "--merge", MERGE,
                           "--json", "--device", device], stdout=subprocess.PIPE, text=True, check=True)
    found, info = json.loads(done.stdout), read_info(output)
    scores = info.record.get("scores", {})
    row = Row(variant, seed, 100 * found["merged"]["accuracy"], 100 * found["accuracy"],
              100 * scores.get("accuracy", 0.0), int(scores.get("step", 0)), info.parameters or 0, seconds)
    output.with_suffix(".json").write_text(json.dumps({**asdict(row), "options": shlex.join(options)}, indent=1) + "\n")
    print(f"{variant}, seed {seed}: Q3 {row.q3:.2f}, Q8 {row.q8:.2f}, validation {row.validation:.2f}, "
          f"{seconds:.0f} s", file=sys.stderr, flush=True)
    return row


def pretrain(stages: Sequence[str], options: Sequence[str], device: str, place: Path) -> Path:
    """Train the stages before a tagger, each from the one before, and return the folder of the last one."""
    output = None
    for number, name in enumerate(stages, 1):
        task, data, own = STAGES[name]
        given = shlex.split(own.replace("{place}", str(place))) if output is None else ["--from", str(output)]
        output = place / f"start-{'-'.join(stages[:number]).replace(' ', '-')}"
        train(task, place / data, output, [*given, *options], device)
    assert output is not None
    return output


def write_new(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file that is not there yet, so that no other process reads half of it."""
    if not path.exists():
        part = path.with_name(f"{path.name}.{os.getpid()}")
        write(part)
        part.replace(path)


def write_lines(lines: Sequence[str]) -> Callable[[Path], object]:
    """A function that writes these lines into a file."""
    return lambda path: path.write_text("".join(f"{line}\n" for line in lines))


def write_stage_data(arguments: argparse.Namespace, stages: Iterable[str], chains: Sequence[str], place: Path) -> None:
    """Write the data of these stages into the folder of the models, unless it is there already.

    Args:
        chains: the labelled chains, on which a masked model is trained without other sequences.
    """
    from protein_homologues import read_families, write_labels, write_pairs

    import regard

    write_new(place / "masked-lstm.toml", lambda path: path.write_text(MASKED_LSTM))
    missing = {name for stage in stages if not (place / (name := STAGES[stage][1])).exists()}
    if not missing:
        return
    sequences = [*chains] if arguments.unlabelled is None else read_lines(arguments.unlabelled)
    families = read_families([] if arguments.families is None else read_lines(arguments.families))
    if arguments.quick:
        families = dict([*families.items()][:20])
    if "unlabelled.txt" in missing:
        write_new(place / "unlabelled.txt", write_lines(sequences[:200 if arguments.quick else None]))
    if "homologues.tsv" in missing:
        write_new(place / "homologues.tsv", lambda path: write_pairs(sequences, families, path))
    if "pseudo.tsv" in missing:
        device = "cpu" if arguments.device == "auto" else arguments.device
        teachers = [regard.Labeller.load(folder, device=device) for folder in arguments.teachers]
        most = 60 if arguments.quick else arguments.pseudo
        write_new(place / "pseudo.tsv", lambda path: write_labels(teachers, sequences, families, path, most))


def report(rows: Sequence[Row]) -> tuple[str, dict[str, bool]]:
    """The table with the mean over the seeds, and whether the goals are reached."""
    lines, goals = [], dict[str, bool]()
    for variant in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == variant]
        q3, q8, validation = ([getattr(row, name) for row in own] for name in ("q3", "q8", "validation"))
        lines.append([variant, str(len(own)), *(f"{statistics.mean(values):.2f}" for values in (validation, q8, q3)),
                      f"{min(q8):.2f}", f"{min(q3):.2f}", f"{own[0].parameters:,}",
                      f"{statistics.mean(row.seconds for row in own):.0f}"])
        if variant in GOALS:
            goals[f"{variant}: Q3 {GOALS[variant][0]:g}, Q8 {GOALS[variant][1]:g}"] = (
                statistics.mean(q3) >= GOALS[variant][0] and statistics.mean(q8) >= GOALS[variant][1])
    head = ["variant", "seeds", "validation Q8", "Q8", "Q3", "lowest Q8", "lowest Q3", "parameters", "s"]
    return table(head, lines), goals


# Sequences that resemble test chains

ALPHABET = "ARNDCQEGHILKMFPSTWYVX"
BLOSUM62 = """
 4 -1 -2 -2  0 -1 -1  0 -2 -1 -1 -1 -1 -2 -1  1  0 -3 -2  0
-1  5  0 -2 -3  1  0 -2  0 -3 -2  2 -1 -3 -2 -1 -1 -3 -2 -3
-2  0  6  1 -3  0  0  0  1 -3 -3  0 -2 -3 -2  1  0 -4 -2 -3
-2 -2  1  6 -3  0  2 -1 -1 -3 -4 -1 -3 -3 -1  0 -1 -4 -3 -3
 0 -3 -3 -3  9 -3 -4 -3 -3 -1 -1 -3 -1 -2 -3 -1 -1 -2 -2 -1
-1  1  0  0 -3  5  2 -2  0 -3 -2  1  0 -3 -1  0 -1 -2 -1 -2
-1  0  0  2 -4  2  5 -2  0 -3 -3  1 -2 -3 -1  0 -1 -3 -2 -2
 0 -2  0 -1 -3 -2 -2  6 -2 -4 -4 -2 -3 -3 -2  0 -2 -2 -3 -3
-2  0  1 -1 -3  0  0 -2  8 -3 -3 -1 -2 -1 -2 -1 -2 -2  2 -3
-1 -3 -3 -3 -1 -3 -3 -4 -3  4  2 -3  1  0 -3 -2 -1 -3 -1  3
-1 -2 -3 -4 -1 -2 -3 -4 -3  2  4 -2  2  0 -3 -2 -1 -2 -1  1
-1  2  0 -1 -3  1  1 -2 -1 -3 -2  5 -1 -3 -1  0 -1 -3 -2 -2
-1 -1 -2 -3 -1  0 -2 -3 -2  1  2 -1  5  0 -2 -1 -1 -1 -1  1
-2 -3 -3 -3 -2 -3 -3 -3 -1  0  0 -3  0  6 -4 -2 -2  1  3 -1
-1 -2 -2 -1 -3 -1 -1 -2 -2 -3 -3 -1 -2 -4  7 -1 -1 -4 -3 -2
 1 -1  1  0 -1  0  0  0 -1 -2 -2  0 -1 -2 -1  4  1 -3 -2 -2
 0 -1  0 -1 -1 -1 -1 -2 -2 -1 -1 -1 -1 -2 -1  1  5 -2 -2  0
-3 -3 -4 -4 -2 -2 -3 -2 -2 -3 -2 -3 -1  1 -4 -3 -2 11  2 -3
-2 -2 -2 -3 -2 -1 -2 -3  2 -1 -1 -2 -1  3 -3 -2 -2  2  7 -1
 0 -3 -3 -3 -1 -2 -2 -3 -3  3  1 -2  1 -1 -2 -2  0 -3 -1  4
"""
GAP_OPEN, GAP_EXTEND = 11, 1
KMER, BAND, MIN_HITS, HITS_PER_RESIDUE = 3, 16, 3, 0.02
"""Chains are aligned that have this many common k-mers within a band of diagonals, also for each residue of the test
chain: of two chains that are 30 % identical at random places, 0.027 k-mers per residue are expected to be equal."""
WIDTH = 40
"""Alignments stay within so many diagonals of that band."""
MAX_IDENTITY, MIN_COVERAGE = 0.30, 0.5
MAX_EVALUE, KARLIN_LAMBDA, KARLIN_K = 10.0, 0.267, 0.041
"""Alignments as good as this are expected among so many by chance (Karlin and Altschul 1990; BLAST's constants for
these gaps). Without the limit a third of all sequences would be left out, read forwards or backwards: short alignments
are often 30 % identical by chance."""
MIN_LENGTH, MAX_LENGTH = 30, 1000
"""Residues of unlabelled sequences."""
UNIT, COLUMN_BITS = np.int64(1) << 40, 20
"""A cell of the alignment is score · 2^40 + identities · 2^20 + columns: the largest has the best score, and carries
the identities and columns of its alignment with it, without tracing back."""


def substitution_scores() -> Ints:
    """BLOSUM62 over ALPHABET, X being -1 with all, in units of cells: with one column, and one identity if equal."""
    scores = np.full((len(ALPHABET), len(ALPHABET) + 1), -1, np.int64)  # the last column is for places outside
    rows = [list(map(int, line.split())) for line in BLOSUM62.strip().splitlines()]
    scores[:20, :20] = rows
    equal = np.eye(*scores.shape, dtype=np.int64)
    equal[-1] = 0
    return scores * UNIT + (equal << COLUMN_BITS) + 1


def encode(sequence: str) -> Ints:
    """Residues as numbers; unknown ones are X."""
    known = {letter: number for number, letter in enumerate(ALPHABET)}
    return np.array([known.get(letter, len(ALPHABET) - 1) for letter in sequence], np.int64)


class Alignment(NamedTuple):
    """The best local alignment of two chains."""

    identity: float
    columns: int
    score: int


def identities(chain: Ints, others: Sequence[Ints], diagonals: Ints, scores: Ints) -> list[Alignment]:
    """The best local alignment of a chain with each of the others.

    Alignments stay within WIDTH diagonals of the given ones (place in the other minus place in the chain). In these
    coordinates a gap in the chain is a step to the right, and one in the other a step to the left of the row before.
    """
    rows, width = len(others), 2 * WIDTH + 1
    longest = max(map(len, others))
    padded = np.full((rows, longest + 2 * (len(chain) + width)), -1, np.int64)
    margin = len(chain) + width
    for row, other in enumerate(others):
        padded[row, margin:margin + len(other)] = other
    start = np.clip(diagonals - WIDTH + margin, 0, padded.shape[1] - len(chain) - width)
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, 1)
    open_, extend = -GAP_OPEN * UNIT + 1, -GAP_EXTEND * UNIT + 1
    ramp = np.arange(width, dtype=np.int64) * extend
    best, gap_down = np.zeros((rows, width), np.int64), np.full((rows, width), -(np.int64(1) << 58))
    found, every = np.zeros(rows, np.int64), np.arange(rows)
    for at, residue in enumerate(chain):
        block = windows[every, start + at]
        gap_down[:, :-1] = np.maximum(best[:, 1:] + open_, gap_down[:, 1:] + extend)
        gap_down[:, -1] = -(np.int64(1) << 58)
        cell = np.maximum(np.maximum(best + scores[residue][block], gap_down), 0)
        gap_right = np.maximum.accumulate(cell - ramp, 1)[:, :-1] + ramp[:-1] + open_
        np.maximum(cell[:, 1:], gap_right, out=cell[:, 1:])
        cell[block < 0] = 0
        best = cell
        np.maximum(found, cell.max(1), out=found)
    columns = found & ((1 << COLUMN_BITS) - 1)
    equal = (found >> COLUMN_BITS) & ((1 << COLUMN_BITS) - 1)
    return [Alignment(int(one) / max(1, int(count)), int(count), int(cell) >> (2 * COLUMN_BITS))
            for one, count, cell in zip(equal, columns, found, strict=True)]


class KmerIndex:
    """The places of all k-mers of many sequences."""

    def __init__(self, sequences: Sequence[Ints]) -> None:
        base = len(ALPHABET)
        codes, owners, places = [], [], []
        for number, sequence in enumerate(sequences):
            if len(sequence) >= KMER:
                code = sum(sequence[at:len(sequence) - KMER + 1 + at] * base ** (KMER - 1 - at) for at in range(KMER))
                codes.append(code)
                owners.append(np.full(len(code), number, np.int64))
                places.append(np.arange(len(code), dtype=np.int64))
        code = np.concatenate(codes)
        order = np.argsort(code, kind="stable")
        self.owners, self.places = np.concatenate(owners)[order], np.concatenate(places)[order]
        self.starts = np.searchsorted(code[order], np.arange(base ** KMER + 1))

    def candidates(self, chain: Ints) -> tuple[Ints, Ints]:
        """The numbers of the sequences with enough common k-mers within a band of diagonals, and that diagonal."""
        base, unknown, found = len(ALPHABET), len(ALPHABET) - 1, []
        for at in range(len(chain) - KMER + 1):
            word = chain[at:at + KMER]
            if unknown in word:
                continue
            code = int(sum(int(word[i]) * base ** (KMER - 1 - i) for i in range(KMER)))
            inside = slice(self.starts[code], self.starts[code + 1])
            diagonal = self.places[inside] - at + len(chain)
            for shift in (0, BAND // 2):  # bands overlap by half
                found.append(self.owners[inside] * 4096 + (diagonal + shift) // BAND * 2 + (shift > 0))
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        keys, counts = np.unique(np.concatenate(found), return_counts=True)
        enough = counts >= max(MIN_HITS, round(HITS_PER_RESIDUE * len(chain)))
        keys, counts = keys[enough], counts[enough]
        order = np.lexsort((-counts, keys // 4096))
        owners, first = np.unique(keys[order] // 4096, return_index=True)  # of each sequence its best band
        band = keys[order][first] % 4096
        return owners, band // 2 * BAND + BAND // 2 - band % 2 * (BAND // 2) - len(chain)


def unlabelled_sequences(path: Path) -> list[str]:
    """The distinct sequences of an annotation JSON of sidechainnet, or of a text file, one a line."""
    if path.suffix == ".json":
        with path.open(encoding="utf-8") as file:
            given: Iterable[str] = (entry["Sequence"] for entry in json.load(file).values())
    else:
        given = read_lines(path)
    return [one for one in dict.fromkeys(given) if MIN_LENGTH <= len(one) <= MAX_LENGTH]


def resembling(chains: Sequence[str], sequences: Sequence[str], at_once: int = 400,
               residues: int | None = None) -> Iterator[int]:
    """The numbers of the sequences that are equal, or at least MAX_IDENTITY identical, to one of the chains.

    Args:
        residues: of all sequences, by which E-values are computed, if these are a part of them.
    """
    numbers, scores = [encode(one) for one in sequences], substitution_scores()
    index, dropped = KmerIndex(numbers), set[int]()
    residues = residues or sum(map(len, sequences))
    begin = time.monotonic()
    for number, chain in enumerate(chains):
        own = encode(chain)
        waiting = sorted(((int(one), int(place)) for one, place in zip(*index.candidates(own), strict=True)
                          if int(one) not in dropped), key=lambda one: len(numbers[one[0]]))
        for first in range(0, len(waiting), at_once):
            some = waiting[first:first + at_once]
            aligned = identities(own, [numbers[one] for one, _ in some], np.array([place for _, place in some]), scores)
            for (other, _), found in zip(some, aligned, strict=True):
                covered = found.columns >= MIN_COVERAGE * min(len(own), len(numbers[other]))
                expected = KARLIN_K * len(own) * residues * math.exp(-KARLIN_LAMBDA * found.score)
                if found.identity >= MAX_IDENTITY and covered and expected <= MAX_EVALUE:
                    dropped.add(other)
        if number % 20 == 0:
            print(f"{number} of {len(chains)} test chains, {len(dropped):,} sequences dropped, "
                  f"{time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    yield from sorted(dropped)


def filter_sequences(arguments: argparse.Namespace) -> None:
    """Write the sequences that resemble no test chain."""
    chains = [line.split("\t")[0] for line in read_lines(arguments.data / "cb513.tsv.gz")]
    sequences = unlabelled_sequences(arguments.filter)
    if arguments.quick:
        chains, sequences = chains[:3], sequences[:500] + chains[:3]
    dropped = {*resembling(chains, sequences)}
    kept = [one for number, one in enumerate(sequences) if number not in dropped]
    equal = len({*chains} & {*sequences})
    print(f"{len(sequences):,} distinct sequences of {MIN_LENGTH} to {MAX_LENGTH} residues; dropped {len(dropped):,} "
          f"that resemble a test chain, {equal:,} of them equal to one; kept {len(kept):,} with "
          f"{sum(map(len, kept)):,} residues.")
    if arguments.json is not None:
        with gzip.open(arguments.json, "wt", encoding="utf-8") as file:
            file.write("".join(f"{one}\n" for one in kept))


# Speed

def measure_speed(quick: bool) -> str:
    """Tokens per second of training on a CPU, beside the same models in plain PyTorch."""
    import torch
    from timing import medians
    from torch import nn
    from torch.nn import functional as F

    import regard
    from regard.models.classification import Tagger
    from regard.tokens import IGNORED_LABEL, Tokens
    from regard.training.loss import token_loss

    torch.manual_seed(0)
    rows, length, width, labels = (4, 60, 32, 8) if quick else (16, 200, 256, 8)
    ids = torch.randint(5, 25, (rows, length))
    lengths = torch.linspace(length // 2, length, rows).long()
    targets = torch.randint(0, labels, (rows, length))
    targets[torch.arange(length) >= lengths[:, None]] = IGNORED_LABEL
    tokens = int(lengths.sum())

    class PlainLstm(nn.Module):
        """Embedding, an LSTM in both directions of two layers, output layer."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.output = nn.Embedding(25, width), nn.Linear(width, labels)
            self.lstm = nn.LSTM(width, width // 2, 2, batch_first=True, bidirectional=True)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
            states, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=length)
            return self.output(states)

    class PlainTransformer(nn.Module):
        """Embedding, torch's pre-norm Transformer encoder of two layers, output layer."""

        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            self.table, self.output = nn.Embedding(25, width), nn.Linear(width, labels)
            self.stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.output(self.stack(self.table(ids), src_key_padding_mask=torch.arange(length)
                                          >= lengths[:, None]))

    def plain_step(model: nn.Module) -> None:
        F.cross_entropy(model(ids).reshape(-1, labels), targets.reshape(-1), ignore_index=IGNORED_LABEL).backward()
        model.zero_grad()

    def own_step(model: Tagger) -> None:
        loss = token_loss(model.features(Tokens(ids, lengths)), model.output, targets)
        (loss.total / loss.tokens).backward()
        model.zero_grad()

    shared = {"kind": "tagger", "vocab_size": 25, "width": width, "num_labels": labels}
    lstm = regard.build({**shared, "stack": {"layers": 1, "norm_position": "none", "mixer": {
        "kind": "recurrence", "cell": "lstm", "layers": 2, "direction": "both"}}})
    transformer = regard.build({**shared, "stack": {"layers": 2, "mixer": {"kind": "attention", "heads": 4},
                                                    "feed_forward": {"ffn_width": 2 * width, "activation": "gelu"}}})
    assert isinstance(lstm, Tagger)
    assert isinstance(transformer, Tagger)
    plain_lstm, plain_transformer = PlainLstm(), PlainTransformer()
    works = {"LSTM, regard": lambda: own_step(lstm), "LSTM, plain PyTorch": lambda: plain_step(plain_lstm),
             "Transformer, regard": lambda: own_step(transformer),
             "Transformer, plain PyTorch": lambda: plain_step(plain_transformer)}
    found = medians(works, device="cpu", repeats=3 if quick else 15)
    lines = [[name, f"{time_:.1f}", f"{tokens / time_ * 1000:,.0f}"] for name, time_ in found.items()]
    return table([f"width {width}, {rows} chains of {length // 2} to {length}", "ms a step", "tokens/s"], lines)


def run(arguments: argparse.Namespace, place: Path) -> None:
    """Train and test all variants, and print a table."""
    train_lines = read_lines(arguments.data / "train.tsv.gz")
    test_lines = read_lines(arguments.data / "cb513.tsv.gz")
    tested = {line.split("\t")[0] for line in test_lines}
    both = sum(line.split("\t")[0] in tested for line in train_lines)
    if both:
        print(f"{both:,} training chains are test chains too, and are left out.", file=sys.stderr)
        train_lines = [line for line in train_lines if line.split("\t")[0] not in tested]
    limit = arguments.chains or (60 if arguments.quick else None)
    data, test = place / "train.tsv", place / "cb513.tsv"
    write_new(data, write_lines(train_lines[:limit]))
    write_new(test, write_lines(test_lines[:20 if arguments.quick else None]))
    write_new(place / "transformer-alone.toml", lambda path: path.write_text(TRANSFORMER_ALONE))
    names = arguments.variants.split(",") if arguments.variants else [*VARIANTS][:4]
    few = ["--steps", "4"] if arguments.quick else []
    jobs = list[tuple[str, int, list[str]]]()
    for name in names:
        options = [*shlex.split(VARIANTS[name].replace("{place}", str(place))), *shlex.split(arguments.options), *few]
        if stages := STARTS.get(name):
            write_stage_data(arguments, stages, [line.split("\t")[0] for line in train_lines[:limit]], place)
            pretraining = few or shlex.split(arguments.pretraining_options)
            options += ["--from", str(pretrain(stages, pretraining, arguments.device, place))]
        jobs += [(f"{name}{arguments.suffix}", int(seed), options) for seed in arguments.seeds.split(",") if seed]
    if not jobs:
        return
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = [*pool.map(lambda job: measure(*job, data, test, arguments.device, place), jobs)]
    device = "cuda" if arguments.device.startswith("cuda") else "cpu"
    text_table, goals = report(rows)
    print(f"{hardware(device)}\n\n{text_table}\n")
    for goal, reached in goals.items():
        print(f"{goal}: {'reached' if reached else 'missed'}")
    if arguments.json is not None:
        found = {"machine": hardware(device), "rows": [asdict(row) for row in rows], "goals": goals}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--seeds", default="1", help="seeds of each variant, separated by commas; empty: train "
                        "only the models that they start from")
    parser.add_argument("--variants", help=f"names, separated by commas: {', '.join(VARIANTS)}")
    parser.add_argument("--options", default="", help="more options of `regard train` for every tagger")
    parser.add_argument("--pretraining-options", default="", help="more options of the trainings before a tagger")
    parser.add_argument("--suffix", default="", help="add this to the names of the variants")
    parser.add_argument("--chains", type=int, help="train on so many chains only")
    parser.add_argument("--unlabelled", type=Path, help="sequences to pretrain on, one a line; default: the training "
                        "chains")
    parser.add_argument("--families", type=Path, help="relatives of these sequences, see protein_homologues.py")
    parser.add_argument("--teachers", type=Path, nargs="*", default=[], help="taggers that label these sequences")
    parser.add_argument("--pseudo", type=int, default=60_000, help="sequences that teachers label")
    parser.add_argument("--filter", type=Path, help="write the sequences of this file that resemble no test chain "
                        "into --json, gzipped")
    parser.add_argument("--speed", action="store_true", help="measure the speed of training on a CPU")
    parser.add_argument("--work", type=Path, help="the folder of the models; a second call continues there")
    parser.add_argument("--json", type=Path, help="also write the numbers into this file")
    parser.add_argument("--quick", action="store_true", help="few chains and steps: it shows only that all of it runs")
    arguments = parser.parse_args()
    if arguments.speed:
        print(f"{hardware('cpu')}\n\n{measure_speed(arguments.quick)}")
    elif arguments.filter is not None:
        filter_sequences(arguments)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            place = arguments.work or Path(scratch)
            os.makedirs(place, exist_ok=True)
            run(arguments, place)


if __name__ == "__main__":
    main()
