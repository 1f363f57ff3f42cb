"""Which backend runs: the first that can and should; and `explain` says why not those before it."""

import pytest
import torch
from problems import normal

import regard
from regard.attention import backends

ADDITIVE = regard.Additive(torch.zeros(64))


def tensors(length, width=64, leading=(), device=None):
    """Tensors of any size that take no memory."""
    return [torch.empty(1, 1, device=device).expand(*leading, length, width) for _ in range(3)]


@pytest.mark.parametrize(("length", "options", "backend"), [
    (16, {}, "sdpa"), (16, {"mask": regard.Causal()}, "sdpa"), (16, {"score": "dot"}, "sdpa"),
    (16, {"score": regard.Bilinear(torch.zeros(64, 64))}, "sdpa"), (16, {"bias": torch.zeros(16)}, "sdpa"),
    (16, {"dropout": 0.1}, "sdpa"), (100_000, {}, "sdpa"), (100_000, {"mask": regard.Causal()}, "sdpa"),
    (16, {"score": ADDITIVE}, "exact"), (16, {"normalize": "relu"}, "exact"),
    (16, {"normalize": torch.sigmoid}, "exact"),
    (2_000, {"score": ADDITIVE}, "tiled"), (20_000, {"normalize": "sigmoid"}, "tiled"),
    (20_000, {"mask": regard.Window(5, 5)}, "tiled"),  # on a CPU; the matrix would be too large for sdpa
])
def test_the_backend_that_is_chosen(length, options, backend):
    explanation = regard.explain(*tensors(length), **options)
    assert explanation.backend == backend
    before = list(backends.BACKENDS)[: list(backends.BACKENDS).index(backend)]
    assert list(explanation.reasons) == before
    assert all(explanation.reasons.values())


def test_the_reasons_are_the_right_ones():
    reasons = regard.explain(*tensors(2_000), score=ADDITIVE).reasons
    assert "dot products" in reasons["sdpa"]
    assert "Additive" in reasons["sdpa"]
    assert f"{2_000 * 2_000 * 64:,} numbers" in reasons["exact"]
    reasons = regard.explain(*tensors(20_000), mask=regard.Window(5, 5)).reasons
    assert f"{20_000**2:,} entries" in reasons["sdpa"]
    assert "CUDA" in reasons["flex"]
    assert "softmax, not by relu" in regard.explain(*tensors(16), normalize="relu").reasons["sdpa"]


def test_the_words():
    text = str(regard.explain(*tensors(16), normalize="relu"))
    first, *others = text.splitlines()
    assert first == "exact runs: the whole 16 × 16 matrix of weights at once."
    assert [line.split(" does not run: ")[0] for line in others] == ["sdpa", "flex", "pointwise"]
    assert all(line.endswith(".") for line in text.splitlines())


def test_a_backend_that_is_asked_for_runs_and_the_others_say_so():
    explanation = regard.explain(*tensors(16), backend="tiled")
    assert explanation.backend == "tiled"
    assert explanation.reasons["sdpa"] == '"tiled" was asked for'
    assert explanation.reasons["exact"] == '"tiled" was asked for'
    assert "CUDA" in explanation.reasons["flex"]
    assert regard.explain(*tensors(16), backend="sdpa").reasons == {}


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
def test_the_backend_that_is_named_is_the_one_that_runs(backend, monkeypatch):
    """Each other one would raise."""
    def refuse(problem):
        raise AssertionError("another backend ran")

    for name, module in backends.BACKENDS.items():
        if name != backend:
            monkeypatch.setattr(module, "run", refuse)
    given = [normal(4, 3, seed=i) for i in range(3)]
    assert regard.attend(*given, backend=backend).shape == (4, 3)
    assert regard.explain(*given, backend=backend).backend == backend


@pytest.mark.parametrize(("options", "backend"), [
    ({"score": ADDITIVE}, "sdpa"), ({"normalize": "relu"}, "sdpa"), ({}, "flex"), ({"score": ADDITIVE}, "flex"),
])
def test_a_backend_that_cannot_is_an_error_and_never_another_backend(options, backend, monkeypatch):
    for module in backends.BACKENDS.values():
        monkeypatch.setattr(module, "run", lambda problem: pytest.fail("something ran"))
    words = f'`backend` must be one that can do this work .*"{backend}" instead. .*(dot|softmax|CUDA)'
    for ask in (regard.attend, regard.explain):
        with pytest.raises(ValueError, match=words):
            ask(*tensors(16), backend=backend, **options)


def test_the_last_backend_takes_everything():
    *_, last = backends.BACKENDS
    assert last == "tiled"
    for options in ({}, {"score": ADDITIVE, "normalize": torch.relu, "dropout": 0.5}):
        assert regard.explain(*tensors(100_000), **options, backend="tiled").backend == "tiled"
