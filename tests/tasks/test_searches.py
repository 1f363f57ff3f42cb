"""Searches as values: what is wrong is refused when they are made, and chance follows from the ids of a text."""

import subprocess
import sys

import pytest
from refusals import assert_named

from regard.decoding.scoring import CoveragePenalty
from regard.tasks.search import GREEDY, Beam, Sampling

WRONG = [
    (Beam, {"beams": 0}, ["`beams`", "at least 1"]),
    (Beam, {"beams": 2, "nbest": 3}, ["`nbest`", "at most the 2 beams", "3"]),
    (Beam, {"beams": 4, "groups": 3}, ["`groups`", "divides the 4 beams"]),
    (Beam, {"diversity": -1.0}, ["`diversity`", "-1.0"]),
    (Beam, {"diversity": float("nan")}, ["`diversity`", "nan"]),
    (Beam, {"length_penalty": "long"}, ["`length_penalty`", '"none", "mean"', '"long"']),
    (Beam, {"coverage": "all"}, ["`coverage_penalty`", "a number β"]),
    (Beam, {"limit": -1}, ["`limit`", "at least 0"]),
    (Beam, {"limit": 4, "least": 5}, ["`least`", "at most the limit, 4"]),
    (Beam, {"no_repeat": 0}, ["`no_repeat`", "at least 1"]),
    (Sampling, {"tries": 0}, ["`tries`", "at least 1"]),
    (Sampling, {"seed": -1}, ["`seed`", "at least 0"]),
    (Sampling, {"temperature": 0}, ["`temperature`", "above 0", "greedy search"]),
    (Sampling, {"top_k": 0}, ["`top_k`", "at least 1"]),
    (Sampling, {"top_p": 1.5}, ["`top_p`", "a probability"]),
    (Sampling, {"min_p": 0}, ["`min_p`", "a probability"]),
]


@pytest.mark.parametrize(("kind", "options", "parts"), WRONG)
def test_a_wrong_value_is_refused_when_it_is_made(kind, options, parts):
    assert_named(lambda: kind(**options), parts)


def test_it_is_refused_without_assertions_too():
    code = "from regard.tasks.search import Sampling; Sampling(top_p=2)"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert "ValueError: `top_p` must be a probability" in done.stderr


def test_seeds_follow_from_the_seed_and_the_ids():
    rows = [[1, 2], [12], [1, 2], []]
    first, second, third, fourth = Sampling(seed=3).seeds(rows)
    assert first == third
    assert len({first, second, fourth}) == 3
    assert Sampling(seed=3).seeds(rows[1:2]) == [second]
    assert Sampling(seed=4).seeds(rows[:1]) != [first]


def test_a_table_has_all_that_is_asked():
    assert GREEDY.table() == {
        "search": "beam", "limit": None, "least": 0, "no_repeat": None, "beams": 1, "nbest": 1,
        "length_penalty": "none", "coverage": None, "groups": 1, "diversity": 0.5}
    assert Sampling(seed=3, top_p=0.5).table() == {
        "search": "sampling", "limit": None, "least": 0, "no_repeat": None, "tries": 1, "temperature": 1.0,
        "top_k": None, "top_p": 0.5, "min_p": None, "seed": 3}
    assert Beam(coverage=CoveragePenalty(0.2, 1)).table()["coverage"] == "CoveragePenalty(weight=0.2, layer=1)"
