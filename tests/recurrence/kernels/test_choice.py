"""Which backend runs: the first that can and should; and `explain` says why not those before it."""

import pytest
import torch
from recurrent import KINDS, NATIVE, options

import regard
from regard.recurrence.kernels import choice
from regard.recurrence.scan import Recurrence

LONG, SHORT = torch.zeros(2, 20, 4), torch.zeros(2, 3, 4)


def network(kind, **more):
    return Recurrence(4, **options(kind), **more)


@pytest.mark.parametrize("kind", KINDS)
def test_the_backend_that_is_chosen(kind):
    made = network(kind)
    assert made.explain(LONG).backend == ("native" if kind == "lstm" else "bptt")
    assert made.explain(SHORT).backend == "bptt"
    assert made.explain(LONG, regard.Padding([20, 7])).backend == "bptt"
    assert made.explain(LONG, regard.Padding([0, 0])).backend == "loop"
    with torch.no_grad():
        assert made.explain(LONG).backend == ("native" if kind in NATIVE else "loop")
        assert made.explain(LONG.repeat(1, 2, 1)).backend == ("native" if kind in NATIVE else "bptt")
        assert made.explain(SHORT).backend == "loop"
    assert made.double().explain(LONG.double()).backend == "bptt"


def test_the_words():
    first, *others = str(network("gru").explain(LONG)).splitlines()
    assert first == "bptt runs: 20 steps of GRU, their backward written out."
    assert others == ["fused does not run: without a GPU its kernels are interpreted, which is slow.",
                      'native does not run: torch computes another GRU, the one with reset="after".']
    reasons = network("mut2", backend="loop").explain(LONG).reasons
    assert reasons.pop("fused").startswith("without a GPU")
    assert reasons == {"native": "torch has no MUT2", "bptt": '"loop" was asked for'}


@pytest.mark.parametrize("backend", ["fused", "native", "bptt", "loop"])
def test_the_backend_that_is_named_is_the_one_that_runs(backend, monkeypatch):
    """Each other one would raise."""
    def refuse(problem):
        raise AssertionError("another backend ran")

    for name, module in choice.BACKENDS.items():
        if name != backend:
            monkeypatch.setattr(module, "run", refuse)
    assert network("lstm", layers=2, direction="both", backend=backend)(SHORT).shape == SHORT.shape


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in NATIVE])
def test_a_backend_that_cannot_is_an_error_and_never_another_backend(kind, monkeypatch):
    for module in choice.BACKENDS.values():
        monkeypatch.setattr(module, "run", lambda problem: pytest.fail("something ran"))
    made = network(kind, backend="native")
    for ask in (made, made.explain):
        with pytest.raises(ValueError, match=r'one that can do this work \("fused", "bptt", "loop"\).*torch'):
            ask(LONG)


def test_the_last_backend_takes_everything():
    *_, last = choice.BACKENDS
    assert last == "loop"
