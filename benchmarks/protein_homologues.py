"""Training data from unlabelled protein sequences and their alignments: homologous residues, and labels of teachers.

    write_pairs(sequences, families, "homologues.tsv")                 a residue of a relative for every residue
    write_labels(teachers, sequences, families, "pseudo.tsv", ...)     the labels that trained taggers agree on

A family is a sequence with relatives that are aligned to it. Families are read from a file with a line for each
relative, five columns separated by tabs: the number of the sequence and of the relative in the file of sequences, from
0, the first aligned residue of each, from 0, and the alignment in the form of CIGAR (M: both have a residue, I: only
the sequence has, D: only the relative has). `mmseqs align -a` and `mmseqs convertalis` write such alignments.

A tagger that predicts the residue of a relative at every place learns which residues may stand there, without a label.
Trained taggers label all members of a family; homologous residues have the same structure, so the mean of their
probabilities is more often right than those of one sequence.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from regard.tasks.labeller import Labeller

GAP = "-"
"""The label of a residue without a homologous one."""
BATCH_TOKENS = 32_768

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Relative(NamedTuple):
    """A relative, and the aligned residues of the sequence and of the relative, (n,) each."""

    number: int
    own: Ints
    other: Ints


def aligned_residues(start: int, other_start: int, cigar: str) -> tuple[Ints, Ints]:
    """The aligned residues of two sequences, by the starts of their alignment and its CIGAR."""
    own, other = list[int](), list[int]()
    for length, operation in re.findall(r"(\d+)([MID])", cigar):
        count = int(length)
        if operation == "M":
            own += range(start, start + count)
            other += range(other_start, other_start + count)
        start += count * (operation != "D")
        other_start += count * (operation != "I")
    return np.array(own, np.int64), np.array(other, np.int64)


def read_families(lines: Sequence[str]) -> dict[int, list[Relative]]:
    """The relatives of each sequence that has any, by its number."""
    families = dict[int, list[Relative]]()
    for line in lines:
        number, relative, start, other_start, cigar = line.split("\t")
        families.setdefault(int(number), []).append(
            Relative(int(relative), *aligned_residues(int(start), int(other_start), cigar)))
    return families


def write_pairs(sequences: Sequence[str], families: dict[int, list[Relative]], output: Path) -> int:
    """Write each sequence with the residues of a relative as labels, in both directions; returns the lines' number."""
    count = 0
    with output.open("w", encoding="utf-8") as file:
        for number, relatives in families.items():
            for relative in relatives:
                sides = (number, relative.own), (relative.number, relative.other)
                for (own, places), (other, others) in (sides, sides[::-1]):
                    labels = np.full(len(sequences[own]), GAP)
                    labels[places] = np.array([*sequences[other]])[others]
                    file.write(f"{sequences[own]}\t{''.join(labels)}\n")
                    count += 1
    return count


def family_means(probabilities: Sequence[Floats], relatives: Sequence[Relative]) -> Iterator[Floats]:
    """The probabilities (residues, labels) of the members of a family, each the mean over all residues aligned to it.

    Args:
        probabilities: those of the sequence itself, then those of its relatives.
    """
    total, count = probabilities[0].copy(), np.ones((len(probabilities[0]), 1), np.float32)
    for relative, own in zip(relatives, probabilities[1:], strict=True):
        total[relative.own] += own[relative.other]
        count[relative.own] += 1
    mean = total / count
    yield mean
    for relative, own in zip(relatives, probabilities[1:], strict=True):
        joined = own.copy()
        joined[relative.other] = mean[relative.own]
        yield joined


def write_labels(teachers: "Sequence[Labeller]", sequences: Sequence[str], families: dict[int, list[Relative]],
                 output: Path, most: int) -> int:
    """Write sequences with the labels of the teachers, at least the given number; returns the number of lines.

    Families come first, then the sequences without one.
    """
    members = {relative.number for relatives in families.values() for relative in relatives}
    alone: dict[int, list[Relative]] = {number: [] for number in range(len(sequences))
                                        if number not in members and number not in families}
    chosen, count = list[tuple[int, list[Relative]]](), 0
    for number, relatives in {**families, **alone}.items():
        if count >= most:
            break
        chosen.append((number, relatives))
        count += 1 + len(relatives)
    names = teachers[0].label_names()
    numbers = [one for number, relatives in chosen for one in (number, *(relative.number for relative in relatives))]
    rows = [sequences[number] for number in numbers]
    sums: list[Floats] = []
    for teacher in teachers:
        assert teacher.label_names() == names
        found = [one.float().numpy() for one in teacher.label_probabilities(rows, batch_tokens=BATCH_TOKENS)]
        sums = [one + other for one, other in zip(sums, found, strict=True)] if sums else found
    labels, at = np.array(names), 0
    with output.open("w", encoding="utf-8") as file:
        for _, relatives in chosen:
            size = 1 + len(relatives)
            for row, mean in zip(rows[at:at + size], family_means(sums[at:at + size], relatives), strict=True):
                file.write(f"{row}\t{''.join(labels[mean.argmax(1)])}\n")
            at += size
    return count
