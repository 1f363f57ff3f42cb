"""The tour: short, plain where it must be, and it fails when a result differs from the oracle."""

import io
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from regard.cli import tour

LIMIT = 30
"""Seconds of processor time for the whole command: several times what it takes, as the machine may be slow."""


def call(**environment):
    before = os.times()
    result = subprocess.run(
        [sys.executable, "-m", "regard", "demo", "--tour"],
        capture_output=True,
        timeout=120,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "LC_ALL": "C.UTF-8", **environment},
    )
    after = os.times()
    return result, after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.thorough
def test_the_tour_is_short_and_agrees_with_the_oracle():
    result, seconds = call()
    text = result.stdout.decode()
    assert (result.returncode, result.stderr) == (0, b"")
    assert seconds < LIMIT
    assert len(text.splitlines()) < 80
    assert text.count(" ok\n") == 3
    assert "█" in text
    assert "\x1b" not in text  # not a terminal


def test_the_masks_are_drawn():
    out = io.StringIO()
    tour.tour(out)
    text = out.getvalue()
    assert "1 0 0 0 0 0" in text
    assert re.search(r"1 1 1 1 1 1 +0 0 0 1 1 1\s*\n", text)  # the last query: all keys, or a window of three
    assert re.search(r"1 1 1 1 0 0\s*\n", text)  # three new queries: the first of them sees the four keys up to its own


def test_the_words_of_one_meaning_find_each_other():
    import torch

    import regard

    key, query = tour._sentences(torch.Generator().manual_seed(0))
    weights = regard.attention_weights(query, key)
    assert weights.argmax(-1).tolist() == list(tour.MEANING)


@pytest.mark.thorough
def test_twenty_columns():
    result, _ = call(COLUMNS="20")
    assert result.returncode == 0
    assert max(map(len, result.stdout.decode().splitlines())) <= 20


@pytest.mark.thorough
@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_ascii_where_blocks_cannot_be_printed(environment):
    result, _ = call(**environment)
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.isascii()
    assert b"#" in result.stdout


@pytest.mark.parametrize("weight", [1.0, float("nan")])
def test_a_result_that_differs_from_the_oracle_is_a_failure(monkeypatch, weight):
    monkeypatch.setattr(tour.oracle, "softmax", lambda scores, allowed: np.full(len(scores), weight))
    out = io.StringIO()
    assert tour.tour(out) == 1
    assert "DIFFERS" in out.getvalue()
