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
    (Beam, {"beams": 4, "num_beam_groups": 3}, ["`num_beam_groups`", "divides the 4 beams"]),
    (Beam, {"diversity_penalty": -1.0}, ["`diversity_penalty`", "-1.0"]),
    (Beam, {"diversity_penalty": float("nan")}, ["`diversity_penalty`", "nan"]),
    (Beam, {"length_penalty": "long"}, ["`length_penalty`", '"none", "mean"', '"long"']),
    (Beam, {"coverage_penalty": "all"}, ["`coverage_penalty`", "a number β"]),
    (Beam, {"max_length": -1}, ["`max_length`", "at least 0"]),
    (Beam, {"max_length": 4, "min_length": 5}, ["`min_length`", "at most max_length, 4"]),
    (Beam, {"no_repeat_ngram_size": 0}, ["`no_repeat_ngram_size`", "at least 1"]),
    (Sampling, {"num_samples": 0}, ["`num_samples`", "at least 1"]),
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
        "search": "beam", "max_length": None, "min_length": 0, "no_repeat_ngram_size": None, "beams": 1, "nbest": 1,
        "length_penalty": "none", "coverage_penalty": None, "num_beam_groups": 1, "diversity_penalty": 0.5}
    assert Sampling(seed=3, top_p=0.5).table() == {
        "search": "sampling", "max_length": None, "min_length": 0, "no_repeat_ngram_size": None, "num_samples": 1, "temperature": 1.0,
        "top_k": None, "top_p": 0.5, "min_p": None, "seed": 3}
    assert Beam(coverage_penalty=CoveragePenalty(0.2, 1)).table()["coverage_penalty"] == "CoveragePenalty(weight=0.2, layer=1)"
