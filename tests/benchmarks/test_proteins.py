"""The alignments by which the protein benchmark leaves out sequences that resemble test chains."""

import importlib
import random
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def proteins():
    """The module benchmarks/proteins.py, which imports its neighbours by their bare names."""
    before, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("proteins")
    sys.path[:] = before
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(FOLDER)):
            del sys.modules[name]


def literal(one, other, scores, opening, extending):
    """Identity and columns of the best local alignment, cell by cell; of equal scores the one with most identities."""
    rows, columns, low = len(one) + 1, len(other) + 1, (-10**9, 0, 0)

    def plus(cell, score, equal=0):
        return cell[0] + score, cell[1] + equal, cell[2] + 1

    best, across, down = ([[start] * columns for _ in range(rows)] for start in ((0, 0, 0), low, low))
    for i in range(1, rows):
        for j in range(1, columns):
            across[i][j] = max(plus(best[i][j - 1], -opening), plus(across[i][j - 1], -extending))
            down[i][j] = max(plus(best[i - 1][j], -opening), plus(down[i - 1][j], -extending))
            a, b = one[i - 1], other[j - 1]
            best[i][j] = max((0, 0, 0), plus(best[i - 1][j - 1], int(scores[a][b]), int(a == b)), across[i][j],
                             down[i][j])
    _, equal, count = max(cell for row in best for cell in row)
    return equal / max(1, count), count


def test_banded_alignments_are_those_of_a_literal_loop(proteins):
    chance, cells = random.Random(0), proteins.substitution_scores()
    scores = [[round(int(cell) / int(proteins.UNIT)) for cell in row] for row in cells[:20]]
    pairs = []
    for _ in range(25):
        one = [chance.randrange(20) for _ in range(chance.randrange(5, 30))]
        other = [residue if chance.random() < 0.6 else chance.randrange(20) for residue in one]
        del other[chance.randrange(len(other))]
        other[2:2] = [chance.randrange(20) for _ in range(chance.randrange(3))]
        pairs.append((one, other))
    for one, other in pairs:
        (found,) = proteins.identities(np.array(one), [np.array(other)], np.array([0]), cells)
        assert found[:2] == pytest.approx(literal(one, other, scores, proteins.GAP_OPEN, proteins.GAP_EXTEND))


def test_sequences_that_resemble_a_chain_are_found(proteins):
    chance = random.Random(1)

    def drawn(length):
        return "".join(chance.choice(proteins.ALPHABET[:20]) for _ in range(length))

    chain = drawn(120)
    related = "".join(letter if chance.random() < 0.6 else drawn(1) for letter in chain)
    others = [drawn(150) for _ in range(30)]
    sequences = [*others[:10], chain, *others[10:20], drawn(30) + related, *others[20:]]
    found = [*proteins.resembling([chain], sequences)]
    assert {10, 21} <= set(found)
    assert len(found) <= 4
    assert [*proteins.resembling([chain[:60]], ["".join(reversed(one)) for one in sequences])] == []
