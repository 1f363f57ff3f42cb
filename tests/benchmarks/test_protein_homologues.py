"""Training data from aligned protein sequences, and the hairpins in which attention is measured."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load():
    """Imports a module of benchmarks/ by its bare name."""
    before, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path[:] = before
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(FOLDER)):
            del sys.modules[name]


SEQUENCES = ["MKVLA", "GKILLA", "WWW"]
LINES = ["0\t1\t1\t1\t2M1D2M"]
"""KV of the first is aligned to KI of the second, LA to LA; the second has one more L."""


def test_pairs_in_both_directions(load, tmp_path):
    homologues = load("protein_homologues")
    families = homologues.read_families(LINES)
    assert homologues.write_pairs(SEQUENCES, families, tmp_path / "pairs.tsv") == 2
    assert (tmp_path / "pairs.tsv").read_text() == "MKVLA\t-KILA\nGKILLA\t-KV-LA\n"
    own, other = homologues.aligned_residues(0, 0, "1M2I1M")
    assert (own.tolist(), other.tolist()) == ([0, 3], [0, 1])


def test_labels_of_a_family_are_those_of_the_mean(load, tmp_path):
    import torch

    homologues = load("protein_homologues")

    class Teacher:
        """Probabilities of two labels that depend on the sequence alone."""

        def label_names(self):
            return ["C", "H"]

        def label_probabilities(self, sequences, batch_tokens):
            return [torch.tensor([[0.6, 0.4] if sequence[0] == "M" else [0.1, 0.9]] * len(sequence))
                    for sequence in sequences]

    count = homologues.write_labels([Teacher(), Teacher()], SEQUENCES, homologues.read_families(LINES),
                                    tmp_path / "labels.tsv", 3)
    assert count == 3
    assert (tmp_path / "labels.tsv").read_text() == "MKVLA\tCHHHH\nGKILLA\tHHHHHH\nWWW\tHHH\n"
    families = homologues.read_families(LINES)
    assert homologues.write_labels([Teacher()], SEQUENCES, families, tmp_path / "few.tsv", 1) == 2


def test_partners_of_hairpins_and_their_weights(load):
    attention = load("protein_attention")
    structure = "LLEEEETTEEEELLHHHHEELEEEHHH" + 20 * "E"
    hairpins = attention.find_hairpins(structure)
    assert hairpins == [(2, 5, 8, 11)]
    pairs = sorted(hairpins[0].partners())
    assert pairs == [(2, 11), (3, 10), (4, 9), (5, 8), (8, 5), (9, 4), (10, 3), (11, 2)]
    length = len(structure)
    weights = np.full((2, length, length), 1 / length)
    for own, partner in pairs:
        weights[1, own, partner] = 0.5
    sums = attention.Sums(2)
    sums.add(weights, structure)
    there, background, mirrored = sums.profile()
    assert there[0] == pytest.approx(1 / length)
    assert there[1, attention.PROFILE] == 0.5
    assert background[:, attention.PROFILE] == pytest.approx(1 / length)
    assert mirrored[1, attention.PROFILE] == pytest.approx(1 / length)
    for ratios in attention.partner_ratios(sums):
        assert ratios[0] == pytest.approx(1)
        assert ratios[1] > 2
    assert sums.distances("helix")[0] == pytest.approx(1 / length)
