"""When `segments` runs, what it refuses, and that it does no more work than there is inside the segments."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from problems import assert_close, nearness, normal
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard import Causal, Packed, Padding, Placed, Window
from regard.attention import backends
from regard.attention.backends import SEGMENTS, TILED
from regard.attention.fused import SDPA
from regard.attention.mask import PackedSegments
from regard.attention.problem import build_problem


def tensors(queries, keys, leading=(2, 4), key_heads=2, width=3):
    shapes = ((*leading, queries), (*leading[:-1], key_heads, keys), (*leading[:-1], key_heads, keys))
    return [normal(*shape, width, seed=i).requires_grad_() for i, shape in enumerate(shapes)]


# ---- the work --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "keys", "pairs"), [
    ([3, 5, 2], [3, 5, 2], 9 + 25 + 4), ([4, 4, 4], None, 3 * 16), ([1, 9, 0], [9, 1, 2], 18), ([2, 3], [0, 4], 12),
])
def test_only_pairs_inside_segments_are_scored(queries, keys, pairs):
    scored = []

    def score(query, key):
        scored.append(query[..., :1].expand(*query.shape[:-1], key.shape[-2]).numel())
        return query @ key.mT

    given_tensors = [t.detach() for t in tensors(14, 13, leading=(1,), key_heads=1)]
    regard.attend(*given_tensors, score=score, mask=Packed(queries, keys), backend="segments")
    assert sum(scored) == pairs


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any tensor had, whatever operator made it."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.parametrize(("normalize", "most"), [("softmax", 2 * 5 * 30 * 32), ("relu", 2 * 30 * 30)])
def test_no_matrix_of_all_pairs_is_ever_held(normalize, most):
    """Under softmax all segments are as long as the longest; otherwise each is held by itself."""
    lengths = [17, 20, 20, 13, 30]
    given_tensors = tensors(100, 100, leading=(2,), width=4)
    with Largest() as largest:
        output = regard.attend(*given_tensors, normalize=normalize, mask=Packed(lengths) & Causal())
        output.sum().backward()
    assert largest.numbers <= most < 2 * 100 * 100
    with Largest() as largest:
        regard.attend(*given_tensors, normalize=normalize, mask=Packed(lengths) & Causal(), backend="exact")
    assert largest.numbers >= 100 * 100  # that the measurement can see it


@pytest.mark.parametrize(("lengths", "calls"), [
    ([3, 3, 3, 3], 1), ([3, 3, 5], 2), ([3, 5, 3], 3), ([0, 4, 4, 0, 0], 1),
])
def test_equal_neighbours_are_one_batch(lengths, calls):
    given_tensors = tensors(14, 14)
    with mock.patch.object(SDPA, "run", wraps=SDPA.run) as run:
        got = regard.attend(*given_tensors, mask=Packed(lengths))
    assert run.call_count == calls
    assert_close(got, regard.attend(*given_tensors, mask=Packed(lengths), backend="exact"))
    words = regard.explain(*given_tensors, mask=Packed(lengths)).detail
    assert words.endswith(f"segments: {len(lengths)}, calls: {calls}")


def test_what_all_pieces_hold_together_is_bounded():
    """Each piece alone would be small enough for `exact`, or for the matrices of `sdpa`."""
    given_tensors = tensors(12, 12)  # 8 heads in all, segments of 9 to 16 pairs

    def tiled_pieces(**options):
        with mock.patch.object(TILED, "run", wraps=TILED.run) as run:
            got = regard.attend(*given_tensors, **options)
        assert_close(got, regard.attend(*given_tensors, **options, backend="tiled"))
        return run.call_count

    plain, masked = {"mask": Packed([3, 4, 3])}, {"mask": Packed([3, 4, 3]) & Window(1, 1)}
    with mock.patch.object(backends, "EXACT_MAX_NUMBERS", 200):
        assert tiled_pieces(**plain, normalize="relu") == 3
        assert tiled_pieces(**plain) == 0
    with mock.patch.object(backends, "EXACT_MAX_NUMBERS", 300):
        assert tiled_pieces(**plain, normalize="relu") == 0
    with mock.patch.object(backends, "EXACT_MAX_NUMBERS", 0), mock.patch.object(backends, "MAX_MATRIX_ENTRIES", 20):
        assert tiled_pieces(**masked) == 3
        assert tiled_pieces(**plain) == 0  # without a window no matrix is needed
    with mock.patch.object(backends, "EXACT_MAX_NUMBERS", 0), mock.patch.object(backends, "MAX_MATRIX_ENTRIES", 40):
        assert tiled_pieces(**masked) == 0


# ---- the choice ------------------------------------------------------------------------------------------------------

REFUSED = {
    "no mask": (None, "masks of one Packed"), "causal": (Causal(), "masks of one Packed"),
    "two": (Packed([2, 3]) & Packed([3, 2]), "masks of one Packed"), "or": (Packed([2]) | Causal(), "one Packed"),
    "not": (~Packed([2]), "masks of one Packed"), "padding": (Packed([2]) & Padding([2, 3]), "of type Padding"),
    "placed": (Packed([2]) & Placed(1), "of type Placed"), "or inside": (Packed([2]) & (Causal() | Window(1, 1)),
                                                                            "of type OrMask"),
    "not inside": (Packed([2]) & ~Causal(), "of type NotMask"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_it_cannot_cut_it_refuses(kind):
    mask, reason = REFUSED[kind]
    given_tensors = tensors(5, 5)
    with pytest.raises(ValueError, match=r'`backend` must be one that can do this work .* but is "segments"') as error:
        regard.attend(*given_tensors, mask=mask, backend="segments")
    assert reason in str(error.value)
    explanation = regard.explain(*given_tensors, mask=mask)
    assert explanation.backend == "sdpa"
    if kind in ("no mask", "causal"):
        assert "segments" not in explanation.reasons  # nobody expects it there
    else:
        assert reason in explanation.reasons["segments"]


@pytest.mark.parametrize("options", [{}, {"normalize": "relu"}, {"score": nearness}, {"dropout": 0.1},
                                     {"bias": torch.zeros(5, 5)}], ids=lambda options: "".join(options))
@pytest.mark.parametrize("mask", [Packed([2, 3]), Packed([2, 3]) & Causal(), Window(1, 1) & Packed([5]), Packed([])],
                         ids=repr)
def test_on_a_cpu_it_is_preferred_to_all_others(mask, options):
    explanation = regard.explain(*tensors(5, 5), mask=mask, **options)
    assert explanation.backend == "segments"
    assert explanation.reasons == {}
    other = regard.explain(*tensors(5, 5), mask=mask, **options, backend="tiled")
    assert other.reasons["segments"] == '"tiled" was asked for'


def test_the_pieces_go_to_the_other_backends_in_their_order():
    assert list(backends.SEGMENT_BACKENDS) == [name for name in backends.BACKENDS if name not in ("segments", "band")]
    assert all(backends.BACKENDS[name] is module for name, module in backends.SEGMENT_BACKENDS.items())


def test_away_from_the_host_it_is_not_chosen():
    """Tensors on another device, or lengths alone."""
    elsewhere = [t.detach().to("meta") for t in tensors(5, 5)]
    assert "on meta it was not measured" in regard.explain(*elsewhere, mask=Packed([2, 3])).reasons["segments"]
    problem = build_problem(*tensors(5, 5), mask=Packed([2, 3]), score="dot", normalize="softmax", bias=None, dropout=0.0)
    assert SEGMENTS.drawback(problem) is None
    far = Packed(torch.tensor([2, 3], device="meta"))
    ready = problem.mask
    moved = replace(problem, mask=PackedSegments(far, ready.of_query, ready.of_key, ready.position))
    assert "not on the host" in SEGMENTS.drawback(moved)
    assert SEGMENTS.refusal(moved) is None


def test_lengths_are_checked_once_more_where_they_are_read():
    assert Packed([2, 1], [1, 3]).on_host(4, 4) == ([2, 1], [1, 3])
    with pytest.raises(ValueError, match="`key_lengths` must be lengths that add up to at most 3"):
        Packed([2, 1], [1, 3]).on_host(4, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("mask", [Packed, lambda n: Packed(n) & Causal(), lambda n: Packed(n) & Padding(5)])
def test_a_compiled_graph_is_whole_and_takes_another_backend(mask, monkeypatch):
    def attend(query, key, value, lengths):
        return regard.attend(query, key, value, mask=mask(lengths))

    given_tensors, lengths = tensors(5, 5), torch.tensor([2, 3])
    want = attend(*given_tensors, lengths)
    monkeypatch.setattr(SEGMENTS, "run", lambda problem: pytest.fail("it ran"))
    torch._dynamo.reset()
    assert_close(torch.compile(attend, fullgraph=True, backend="eager")(*given_tensors, lengths), want)
    torch._dynamo.reset()
