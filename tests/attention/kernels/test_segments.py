"""`segments`: every packed sequence by itself, equal to the definition, whatever the score, the mask and the bias."""

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

import regard
from regard import ALiBi, BucketedBias, Causal, Packed, RelativeBias, Window
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
    objects = {"alibi": ALiBi(nn.Parameter(normal(4, seed=8).exp())), "relative": RelativeBias(4, max_distance=1).double(),
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
