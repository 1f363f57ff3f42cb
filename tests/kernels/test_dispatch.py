"""Choosing among backends: the first that can and should, a named one or an error, and the reasons in words."""

from types import SimpleNamespace

import pytest

from regard.kernels import dispatch

pytestmark = pytest.mark.thorough


def backend(refusal=None, drawback=None):
    return SimpleNamespace(refusal=lambda problem: refusal, drawback=lambda problem: drawback,
                           detail=lambda problem: f"does {problem}", run=lambda problem: problem)


TABLE = {"unable": backend(refusal="it has no hands"), "slow": backend(drawback="it would take years"),
         "good": backend(), "last": backend()}


def test_the_first_that_can_and_should_is_taken():
    assert dispatch.choose_backend(TABLE, "work", None) is TABLE["good"]


def test_a_backend_asked_for_by_name_runs_even_where_another_is_better():
    for name in ("slow", "last"):
        assert dispatch.choose_backend(TABLE, "work", name) is TABLE[name]


def test_a_backend_that_cannot_is_an_error_and_never_replaced():
    with pytest.raises(ValueError, match=r'`backend` must be one that supports this call \("slow", "good", "last"\), '
                       r'but is "unable" instead. Reason: it has no hands.'):
        dispatch.choose_backend(TABLE, "work", "unable")
    with pytest.raises(ValueError, match=r'is "god" instead. Did you mean "good"'):
        dispatch.choose_backend(TABLE, "work", "god")


def test_the_explanation_has_a_reason_for_each_that_is_preferred():
    assert str(dispatch.explain_choice(TABLE, "work", None)) == (
        "good runs: does work.\nunable does not run: it has no hands.\nslow does not run: it would take years.")
    assert dispatch.explain_choice(TABLE, "work", "last").reasons["good"] == '"last" was requested'


def test_a_table_without_a_last_resort_is_a_programmers_mistake():
    with pytest.raises(AssertionError):
        dispatch.choose_backend({"unable": TABLE["unable"]}, "work", None)
