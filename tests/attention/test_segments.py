"""The `segments` backend: packed sequences equal the definition; when it runs; short segments in one batch."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from problems import (
    NORMALIZERS,
    ORACLE_NORMALIZERS,
    SCORES,
    Case,
    assert_close,
    biases,
    nearness,
    normal,
    normalizer,
    scorer,
)
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard import ALiBi, BucketedBias, Causal, Packed, Padding, Placed, RelativeBias, Window
from regard.attention import backends
from regard.attention.backends import SEGMENTS, TILED
from regard.attention.fused import SDPA
from regard.attention.mask import PackedSegments
from regard.attention.problem import build_problem
from regard.checks import plural
from regard.reference import attention as oracle

# Equal neighbours, a segment without keys, one without queries, an empty one, and room behind the last: (n, m) of each.
LENGTHS = [(2, 2), (2, 2), (1, 3), (2, 0), (0, 2), (0, 0), (3, 1)]
QUERIES, KEYS = [n for n, _ in LENGTHS], [m for _, m in LENGTHS]
N, M = sum(QUERIES) + 2, sum(KEYS) + 1
INNER = {"none": None, "causal": Causal(), "window": Window(1, 2), "both": Causal() & Window(1, None)}


def tensors(queries=N, keys=M, leading=(2, 4), key_heads=2, width=3):
    shapes = ((*leading, queries), (*leading[:-1], key_heads, keys), (*leading[:-1], key_heads, keys))
    return [normal(*shape, width, seed=i).requires_grad_() for i, shape in enumerate(shapes)]


def mask_of(inner, queries=QUERIES, keys=KEYS):
    return Packed(queries, keys) if inner is None else inner & Packed(queries, keys)


def matrix_of(name, queries=QUERIES, keys=KEYS, size=(N, M)):
    """The oracle's matrix for the mask of this name."""
    return {"none": oracle.packed(queries, keys, *size), "causal": oracle.packed_causal(queries, keys, *size),
            "window": oracle.packed_window(queries, keys, 1, 2, *size),
            "both": oracle.packed_window(queries, keys, 1, None, *size) & oracle.packed_causal(queries, keys, *size)
            }[name]


def assert_like_exact(case):
    """Output and gradients of `segments` are those of the oracle and of `exact`."""
    assert_close(regard.attend(*case.tensors, **case.options, backend="segments"), case.output())
    for got, want in zip(case.gradients("segments"), case.gradients("exact"), strict=True):
        assert_close(got, want, floor=1.0)


# ---- equal to the definition -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("name", SCORES)
def test_every_score_normalizer_and_mask(name, normalize, inner):
    score, known = scorer(name, 4, 3)
    options = {"score": score, "normalize": normalizer(normalize), "mask": mask_of(INNER[inner])}
    facts = {"score": known, "normalize": ORACLE_NORMALIZERS[normalize], "mask": matrix_of(inner)}
    case = Case(*tensors(leading=(4,)), options, facts)
    if (name, normalize) in (("scaled_dot", "softmax"), ("additive heads bias", "sparsemax"), ("module", "relu")):
        assert_like_exact(case)
    assert_close(regard.attend(*case.tensors, **options, backend="segments"), case.output())


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("normalize", ["softmax", "sigmoid"])  # what a whole row has in common is nothing to softmax
@pytest.mark.parametrize("kind", ["alibi", "relative", "bucketed", "matrix", "heads", "row", "column", "one"])
def test_every_bias(kind, normalize, inner):
    """Distances in a piece are those in the whole; a tensor is cut into the blocks of the segments."""
    objects = {"alibi": ALiBi(nn.Parameter(normal(4, seed=8).exp())),
               "relative": RelativeBias(4, max_distance=1).double(),
               "bucketed": BucketedBias(4, num_buckets=6, max_distance=3).double()}
    shapes = {"matrix": (N, M), "heads": (2, 4, N, M), "row": (M,), "column": (4, N, 1), "one": (1, 1)}
    bias = objects[kind] if kind in objects else normal(*shapes[kind], seed=8).requires_grad_()
    for parameter in bias.parameters() if kind in objects else ():
        parameter.data = normal(*parameter.shape, seed=9)
    options = {"score": "scaled_dot", "normalize": normalize, "mask": mask_of(INNER[inner]), "bias": bias}
    case = Case(*tensors(), options)
    assert_close(regard.attend(*case.tensors, **options, backend="segments"),
                 regard.attend(*case.tensors, **options, backend="exact"))
    got, want = (case.gradients(backend) for backend in ("segments", "exact"))
    assert len(got) == 4
    for one, other in zip(got, want, strict=True):
        assert_close(one, other, floor=1.0)


@st.composite
def questions(draw):
    """Runs of equal segments, empty ones and room behind them, under anything that can be cut."""
    lengths = [pair for pair in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4))
               for _ in range(draw(st.integers(1, 2)))]
    queries, keys = [n for n, _ in lengths], [m for _, m in lengths]
    size = sum(queries) + draw(st.integers(0, 2)), sum(keys) + draw(st.integers(0, 2))
    batch = tuple(draw(st.lists(st.integers(1, 2), max_size=2)))
    key_heads, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    plain = draw(st.booleans()) and not batch
    leading = () if plain else (*batch, key_heads * groups)
    left, right = (draw(st.none() | st.integers(0, 3)) for _ in range(2))
    tensor = normal(*draw(st.sampled_from([(), (size[1],), (size[0], 1), size, (*leading, *size)])), seed=3) < 0.7
    choices = {"causal": (Causal(), oracle.packed_causal(queries, keys, *size)),
               "window": (Window(left, right), oracle.packed_window(queries, keys, left, right, *size)),
               "tensor": (tensor, tensor.numpy())}
    mask, matrix = Packed(queries, keys), oracle.packed(queries, keys, *size)
    for name in draw(st.lists(st.sampled_from(sorted(choices)), unique=True, max_size=2)):
        part, own = choices[name]
        mask, matrix = draw(st.sampled_from((mask & part, part & mask))), matrix & own
    distances = np.zeros(size, dtype=int)
    starts = zip(np.cumsum([0, *queries]), np.cumsum([0, *keys]), strict=True)
    for (i, j), (n, m) in zip(starts, lengths, strict=False):
        distances[i:i + n, j:j + m] = oracle.distances(n, m)
    bias, known_bias = draw(biases(leading, *size, distances))
    assume(not isinstance(bias, nn.Module) or mask.leading < len(leading))  # no bias goes with a mask of every head
    name, kind = draw(st.sampled_from(SCORES)), draw(st.sampled_from(("softmax", *NORMALIZERS)))
    score, known_score = scorer(name.replace(" heads", "") if plain else name, leading[-1] if leading else None, 2)
    shapes = [leading, *((*batch[draw(st.integers(0, len(batch))):], key_heads) for _ in range(2))]
    given_tensors = [normal(*(() if plain else shape), length, 2, seed=i).requires_grad_()
                     for i, (shape, length) in enumerate(zip(shapes, (size[0], size[1], size[1]), strict=True))]
    options = {"score": score, "normalize": normalizer(kind), "mask": mask, "bias": bias}
    known = {"score": known_score, "normalize": ORACLE_NORMALIZERS[kind], "mask": matrix, "bias": known_bias}
    return Case(*given_tensors, options, known)


@given(questions())
@settings(suppress_health_check=list(HealthCheck))
def test_any_packed_question(case):
    assert regard.explain(*case.tensors, **case.options).backend == "segments"
    assert_like_exact(case)


@pytest.mark.thorough
@pytest.mark.parametrize("inner", ["none", "both"])
def test_derivatives_are_those_of_finite_differences(inner):
    mask = mask_of(INNER[inner], [2, 2, 1, 1], [2, 2, 2, 0])
    given_tensors = tensors(7, 7, leading=(2,), width=2)
    assert torch.autograd.gradcheck(lambda *t: regard.attend(*t, mask=mask, backend="segments"), given_tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("inner", INNER)
def test_low_precision_errs_at_most_twice_as_much_as_the_plain_computation(inner, dtype):
    queries, keys, width = [9, 4, 4, 6], [9, 5, 5, 3], 16
    query, key, value = (normal(2, n, width, seed=i).to(dtype) for i, n in enumerate((25, 23, 23)))
    matrix = matrix_of(inner, queries, keys, (25, 23))
    truth = oracle.attend_many(*(t.double().numpy() for t in (query, key, value)), mask=matrix)
    scores = (query @ key.mT * width**-0.5).masked_fill(~torch.tensor(matrix), -torch.inf)
    plain = scores.softmax(-1).nan_to_num() @ value
    output = regard.attend(query, key, value, mask=mask_of(INNER[inner], queries, keys), backend="segments")
    assert output.dtype == dtype
    errors = [np.abs(t.double().numpy() - truth).max() for t in (output, plain)]
    assert errors[0] <= 2 * errors[1] + 4 * torch.finfo(dtype).eps * np.abs(truth).max()


def test_dropout_takes_weights_away_and_lifts_the_others():
    query, key, _ = (t.detach() for t in tensors(20, 20, leading=(2,)))
    mask = Packed([5, 5, 7])
    weights = regard.attention_weights(query, key, mask=mask)
    dropped = regard.attend(query, key, torch.eye(20).double(), mask=mask, dropout=0.5, backend="segments")
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * weights[kept], rtol=1e-12, atol=0)
    assert 0.25 < kept[weights > 0].double().mean() < 0.75
    assert not kept[weights == 0].any()


@pytest.mark.parametrize("lengths", [[3, 3], [3, 2], [2], []], ids=str)
def test_autocast_lowers_every_piece(lengths):
    given_tensors = [t.detach().float().requires_grad_() for t in tensors(6, 6)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = regard.attend(*given_tensors, mask=Packed(lengths), backend="segments")
    assert got.dtype == torch.bfloat16
    want = regard.attend(*given_tensors, mask=Packed(lengths), backend="exact")
    torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.05)


# ---- what does not count ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e300])
@pytest.mark.parametrize("score", ["scaled_dot", nearness])
def test_what_stands_behind_the_segments_changes_nothing(score, bad):
    clean = tensors(10, 11)
    spoilt = [t.detach().clone() for t in clean]
    mask = Packed([3, 3, 2, 0], [3, 3, 0, 2]) & Causal()
    unseen = (slice(6, 10), slice(6, 11), slice(6, 11))  # queries without keys, keys without queries, and the rest
    for tensor, rows in zip(spoilt, unseen, strict=True):
        tensor[..., rows, :] = bad
    spoilt = [tensor.requires_grad_() for tensor in spoilt]
    got, want = (regard.attend(*given_tensors, score=score, mask=mask, backend="segments")
                 for given_tensors in (spoilt, clean))
    assert torch.equal(got, want)
    assert (got[..., 6:, :] == 0).all()
    gradients = (torch.autograd.grad(output.square().sum(), given_tensors)
                 for output, given_tensors in ((got, spoilt), (want, clean)))
    for one, other, rows in zip(*gradients, unseen, strict=True):
        assert torch.equal(one, other)
        assert (one[..., rows, :] == 0).all()


@pytest.mark.parametrize("lengths", [([], []), ([0], [0]), ([4], [0]), ([0, 0], [2, 2]), ([2, 2], [0, 0])], ids=str)
@pytest.mark.parametrize("leading", [(), (4,), (2, 4)], ids=str)
def test_where_nobody_sees_anything_there_are_zeros_and_zero_gradients(leading, lengths):
    shapes = (leading, (*leading[:-1], 2), (*leading[:-1], 1)) if leading else ((), (), ())
    given_tensors = [normal(*shape, n, 3).requires_grad_() for shape, n in zip(shapes, (4, 5, 5), strict=True)]
    output = regard.attend(*given_tensors, mask=Packed(*lengths), backend="segments")
    assert output.shape == (*leading, 4, 3)
    assert (output == 0).all()
    for gradient in torch.autograd.grad(output.sum(), given_tensors):
        assert (gradient == 0).all()
    output.detach().add_(1.0)  # every number has a place of its own


def test_no_queries_at_all():
    query, key, value = tensors(0, 5)
    assert regard.attend(query, key, value, mask=Packed([0, 0], [2, 3]), backend="segments").shape == (2, 4, 0, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_on_a_gpu_wherever_the_lengths_are(where):
    given_tensors = [t.detach().float().cuda() for t in tensors()]
    mask = Causal() & Packed(torch.tensor(QUERIES, device=where), torch.tensor(KEYS, device=where))
    got, want = (regard.attend(*given_tensors, mask=mask, backend=backend) for backend in ("segments", "exact"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def three_tensors(queries, keys, leading=(2, 4), key_heads=2, width=3):
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

    given_tensors = [t.detach() for t in three_tensors(14, 13, leading=(1,), key_heads=1)]
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
    given_tensors = three_tensors(100, 100, leading=(2,), width=4)
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
    given_tensors = three_tensors(14, 14)
    with mock.patch.object(SDPA, "run", wraps=SDPA.run) as run:
        got = regard.attend(*given_tensors, mask=Packed(lengths))
    assert run.call_count == calls
    assert_close(got, regard.attend(*given_tensors, mask=Packed(lengths), backend="exact"))
    words = regard.explain(*given_tensors, mask=Packed(lengths)).detail
    assert words.startswith(f"{plural(len(lengths), 'segment')} in {plural(calls, 'call')}")


def test_what_all_pieces_hold_together_is_bounded():
    """Each piece alone would be small enough for `exact`, or for the matrices of `sdpa`."""
    given_tensors = three_tensors(12, 12)  # 8 heads in all, segments of 9 to 16 pairs

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
    "no mask": (None, "one Packed"), "causal": (Causal(), "one Packed"),
    "two": (Packed([2, 3]) & Packed([3, 2]), "one Packed"), "or": (Packed([2]) | Causal(), "one Packed"),
    "not": (~Packed([2]), "one Packed"), "padding": (Packed([2]) & Padding([2, 3]), "of type Padding"),
    "placed": (Packed([2]) & Placed(1), "of type Placed"), "or inside": (Packed([2]) & (Causal() | Window(1, 1)),
                                                                         "of type OrMask"),
    "not inside": (Packed([2]) & ~Causal(), "of type NotMask"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_it_cannot_cut_it_refuses(kind):
    mask, reason = REFUSED[kind]
    given_tensors = three_tensors(5, 5)
    with pytest.raises(ValueError, match=r'`backend` must be .* but is "segments"') as error:
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
    explanation = regard.explain(*three_tensors(5, 5), mask=mask, **options)
    assert explanation.backend == "segments"
    assert explanation.reasons == {}
    other = regard.explain(*three_tensors(5, 5), mask=mask, **options, backend="tiled")
    assert other.reasons["segments"] == '"tiled" was requested'


def test_the_pieces_go_to_the_other_backends_in_their_order():
    assert list(backends.SEGMENT_BACKENDS) == [name for name in backends.BACKENDS if name not in ("segments", "band")]
    assert all(backends.BACKENDS[name] is module for name, module in backends.SEGMENT_BACKENDS.items())


def test_away_from_the_host_it_is_not_chosen():
    """Tensors on another device, or lengths alone."""
    elsewhere = [t.detach().to("meta") for t in three_tensors(5, 5)]
    assert "on meta" in regard.explain(*elsewhere, mask=Packed([2, 3])).reasons["segments"]
    problem = build_problem(*three_tensors(5, 5), mask=Packed([2, 3]), score="dot", normalize="softmax", bias=None,
                            dropout=0.0)
    assert SEGMENTS.drawback(problem) is None
    far = Packed(torch.tensor([2, 3], device="meta"))
    ready = problem.mask
    moved = replace(problem, mask=PackedSegments(far, ready.of_query, ready.of_key, ready.position))
    assert "lengths" in SEGMENTS.drawback(moved)
    assert SEGMENTS.refusal(moved) is None


def test_lengths_are_checked_once_more_where_they_are_read():
    assert Packed([2, 1], [1, 3]).on_host(4, 4) == ([2, 1], [1, 3])
    with pytest.raises(ValueError, match="`key_lengths` must be lengths that add up to at most 3"):
        Packed([2, 1], [1, 3]).on_host(4, 3)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("mask", [Packed, lambda n: Packed(n) & Causal(), lambda n: Packed(n) & Padding(5)])
def test_a_compiled_graph_is_whole_and_takes_another_backend(mask, monkeypatch):
    def attend(query, key, value, lengths):
        return regard.attend(query, key, value, mask=mask(lengths))

    given_tensors, lengths = three_tensors(5, 5), torch.tensor([2, 3])
    want = attend(*given_tensors, lengths)
    monkeypatch.setattr(SEGMENTS, "run", lambda problem: pytest.fail("it ran"))
    torch._dynamo.reset()
    assert_close(torch.compile(attend, fullgraph=True, backend="eager")(*given_tensors, lengths), want)
    torch._dynamo.reset()


EQUAL, UNEQUAL, FEWER_KEYS, LONG = [3] * 5, [4, 3, 4, 2, 4], [3, 2, 4, 2, 3], [21, 19, 20, 21, 17]


def wide_tensors(queries, keys, heads=2, width=3, value_width=3, dtype=torch.double):
    shapes = ((queries, width), (keys, width), (keys, value_width))
    return [normal(1, length, heads * each, seed=i).to(dtype).requires_grad_() for i, (length, each) in
            enumerate(shapes)]


def split(wide_tensors, heads=2):
    return [tensor.unflatten(-1, (heads, -1)).transpose(-3, -2) for tensor in wide_tensors]


def computed(given, backend, mask, **options):
    """Output and gradients."""
    output = regard.attend(*split(given), mask=mask, backend=backend, **options)
    return [output, *torch.autograd.grad((output * normal(*output.shape, seed=9).to(output)).sum(), given)]


def used(given, mask, **options):
    """Whether the segments are computed in one batch."""
    options = {"score": "scaled_dot", "normalize": "softmax", "bias": None, "dropout": 0.0} | options
    return "at once" in backends.SEGMENTS.detail(build_problem(*split(given), mask=mask, **options))


@pytest.mark.parametrize("inner", [None, Causal()])
@pytest.mark.parametrize(("queries", "keys"), [(EQUAL, EQUAL), (UNEQUAL, UNEQUAL), (UNEQUAL, FEWER_KEYS),
                                               (FEWER_KEYS, UNEQUAL), (LONG, LONG), (EQUAL, LONG)])
def test_output_and_gradients_are_those_of_the_definition(queries, keys, inner):
    """Fewer keys than queries, under a causal mask: the first queries see nothing, and get zeros."""
    given = wide_tensors(sum(queries), sum(keys), value_width=5)
    mask = Packed(queries, keys) if inner is None else inner & Packed(queries, keys)
    assert used(given, mask)
    for got, want in zip(computed(given, "segments", mask), computed(given, "exact", mask), strict=True):
        assert_close(got, want, floor=1.0)


def test_a_backward_pass_under_autocast_has_the_precision_of_its_forward_pass():
    both = [[part.detach().float().requires_grad_() for part in split(wide_tensors(17, 17))] for _ in range(2)]
    plain, lowered = (regard.attend(*given, mask=Packed(UNEQUAL), backend="segments").sum() for given in both)
    plain.backward()
    with torch.autocast("cpu", dtype=torch.float16):
        lowered.backward()
    for one, other in zip(*both, strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("score", ["dot", "scaled_dot_d", regard.Bilinear(normal(2, 3, 3, seed=5))])
def test_every_dot_product(score):
    given = wide_tensors(17, 17)
    assert used(given, Packed(UNEQUAL), score=score)
    pairs = zip(computed(given, "segments", Packed(UNEQUAL), score=score),
                computed(given, "exact", Packed(UNEQUAL), score=score), strict=True)
    for got, want in pairs:
        assert_close(got, want, floor=1.0)


def test_what_is_not_a_number_stays_in_its_segment():
    given = wide_tensors(17, 17)
    want = computed(given, "segments", Packed(UNEQUAL))
    with torch.no_grad():
        given[1][0, 8], given[2][0, 9] = torch.nan, torch.inf  # of the third segment, tokens 7 to 10
    others = [*range(7), *range(11, 17)]
    got = computed(given, "segments", Packed(UNEQUAL))
    assert got[0][..., 7:11, :].isnan().any()
    torch.testing.assert_close(got[0][..., others, :], want[0][..., others, :])
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        torch.testing.assert_close(mine[:, others], theirs[:, others])


def test_dropout_keeps_the_mean_and_has_its_gradient():
    """With values of 1 an output is the sum of the weights that were kept, scaled up."""
    given = wide_tensors(3 * 400, 3 * 400, dtype=torch.float32)
    mask = Packed([3] * 400)
    assert used(given, mask, dropout=0.25)
    torch.manual_seed(3)
    output = regard.attend(*split([*given[:2], torch.ones_like(given[2])]), mask=mask, dropout=0.25)
    assert len(output.unique()) > 2
    assert abs(output.mean() - 1.0) < 0.02
    value = given[2]

    def of_values(value):
        torch.manual_seed(3)
        return regard.attend(*split([*given[:2], value]), mask=mask, dropout=0.25)

    # It is linear in the values: the output is its own derivative in their direction, with the same weights kept.
    upstream = normal(1, 2, 1200, 3, seed=4).float()
    (gradient,) = torch.autograd.grad(of_values(value), value, upstream)
    torch.testing.assert_close((gradient * value).sum(), (of_values(value) * upstream).sum(), rtol=1e-4, atol=1e-3)


@pytest.mark.thorough
def test_dropout_of_the_weights_has_the_gradient_of_differences():
    given = [tensor.detach() for tensor in wide_tensors(17, 17)]

    def output(*changed):
        torch.manual_seed(1)
        return regard.attend(*split(changed), mask=Causal() & Packed(UNEQUAL), dropout=0.3)

    torch.autograd.gradcheck(output, [tensor.requires_grad_() for tensor in given])


def test_a_gradient_of_the_gradient_is_refused():
    given = wide_tensors(17, 17)
    output = regard.attend(*split(given), mask=Packed(UNEQUAL))
    with pytest.raises(ValueError, match="`create_graph` must be False"):
        torch.autograd.grad(output.sum(), given, create_graph=True)


@pytest.mark.parametrize(("lengths", "options"), [
    ([3] * 3, {}),                                     # few
    ([65] * 5, {}),                                    # long
    ([12, 3, 3, 3, 3], {}),                            # mostly room
    ([3, 3, 0, 3, 3], {}),                             # one without tokens
    ([3] * 5, {"normalize": "sigmoid"}),
    ([3] * 5, {"score": "additive"}),
    ([3] * 5, {"bias": ALiBi.for_heads(2)}),
])
def test_all_else_is_cut(lengths, options):
    if options.get("score") == "additive":
        options = {"score": regard.Additive(normal(3))}
    given = wide_tensors(sum(lengths), sum(lengths))
    assert not used(given, Packed(lengths), **options)


def test_windows_are_cut():
    given = wide_tensors(15, 15)
    assert used(given, Causal() & Packed(EQUAL))
    assert not used(given, Window(1, 1) & Packed(EQUAL))


def test_room_behind_the_last_segment_is_cut():
    given = wide_tensors(18, 17)
    assert not used(given, Packed(UNEQUAL))
    assert not used(wide_tensors(17, 18), Packed(UNEQUAL))


def test_heads_that_share_keys_are_cut():
    query, key, value = split(wide_tensors(17, 17))
    problem = build_problem(query, key[:, :1], value[:, :1], score="scaled_dot", normalize="softmax",
                            mask=Packed(UNEQUAL),
                            bias=None, dropout=0.0)
    assert not backends._batches_segments(problem, UNEQUAL, UNEQUAL)
