"""`scale` and `softcap`: the oracle's numbers and gradients on every backend, in the layers and in the config."""

import math

import numpy as np
import pytest
import torch
from problems import assert_close, held, normal, scorer

import regard
from regard.attention import attend as attending
from regard.attention import fused
from regard.attention.fused import FLEX
from regard.attention.layer import AttentionConfig, PlainAttention, SelfAttentionConfig
from regard.attention.look import Look
from regard.attention.problem import build_problem
from regard.attention.score import adjust_score
from regard.config import ConfigError, read_config
from regard.reference import attention as oracle
from regard.toml import document_of

SHAPE = (2, 3, 7, 4)
MASKS = {"none": None, "causal": regard.Causal(), "padding": regard.Padding([5, 0]),
         "window": regard.Causal() & regard.Window(2, 2), "packed": regard.Packed([3, 4]) & regard.Causal()}
"""Of the second sequence under `padding`, no query may attend to anything."""
BACKENDS = ("exact", "tiled", "segments")


def three(seed=0, times=3.0):
    """Queries, keys and values whose scores are large enough for a cap of 2 to matter."""
    return [(normal(*SHAPE, seed=seed + i) * times).requires_grad_() for i in range(3)]


def mask_matrix(name):
    mask = MASKS[name]
    if mask is None:
        return None
    if name == "padding":
        return oracle.padding([5, 0], 7, 7, "right")[:, None]
    return {"causal": oracle.causal(7, 7), "window": oracle.causal(7, 7) & oracle.window(7, 7, 2, 2),
            "packed": oracle.packed_causal([3, 4])}[name]


def gradients(output, tensors):
    return torch.autograd.grad(output.square().sum(), tensors)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "scaled_dot_d"])
@pytest.mark.parametrize("backend", ["sdpa", *BACKENDS, None])
def test_a_scale_replaces_the_one_of_the_score(backend, score, mask):
    if backend == "segments" and mask != "packed":
        pytest.skip("it is for packed sequences")
    tensors = three()
    want = oracle.attend_many(*(t.detach().numpy() for t in tensors), score=oracle.with_scale(0.3),
                              mask=mask_matrix(mask))
    options = {"score": score, "scale": 0.3, "mask": MASKS[mask]}
    with held(50):
        got = regard.attend(*tensors, **options, backend=backend)
    assert_close(got, want)
    scaled = [tensors[0] * 0.3, *tensors[1:]]
    for mine, theirs in zip(gradients(got, tensors),
                            gradients(regard.attend(*scaled, score="dot", mask=MASKS[mask], backend="exact"), tensors),
                            strict=True):
        assert_close(mine, theirs, floor=0.1)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", ["scaled_dot", "bilinear heads", "additive heads bias", "function"])
@pytest.mark.parametrize("backend", [*BACKENDS, None])
def test_a_softcap_is_the_oracle_with_its_gradients(backend, score, mask):
    if backend == "segments" and mask != "packed":
        pytest.skip("it is for packed sequences")
    tensors, (given, known) = three(), scorer(score, 3, 4)
    capped = ([oracle.softcapped(one, 2.0) for one in known] if isinstance(known, list)
              else oracle.softcapped(known, 2.0))
    numbers = [t.detach().numpy() for t in tensors]
    options = {"score": given, "softcap": 2.0, "mask": MASKS[mask]}
    with held(50):
        got = regard.attend(*tensors, **options, backend=backend)
    assert_close(got, oracle.attend_many(*numbers, score=capped, mask=mask_matrix(mask)))
    assert_close(regard.attention_weights(*tensors[:2], **options),
                 oracle.weights_many(*numbers[:2], score=capped, mask=mask_matrix(mask)))
    literal = literal_softcap(tensors, given, MASKS[mask])
    for mine, theirs in zip(gradients(got, tensors), gradients(literal, tensors), strict=True):
        assert_close(mine, theirs, floor=0.1)


def literal_softcap(tensors, score, mask):
    """The definition in operations of torch: the cap, then the mask, then softmax; zeros for an empty row."""
    query, key, value = tensors
    scores = adjust_score(score)
    scores = (query @ key.mT / math.sqrt(query.shape[-1])) if scores == "scaled_dot" else scores(query, key)
    scores = 2.0 * torch.tanh(scores / 2.0)
    if mask is not None:
        allowed = mask.matrix(7, 7, leading=2).expand_as(scores)
        empty = ~allowed.any(-1, keepdim=True)
        scores = scores.masked_fill(~allowed & ~empty, -torch.inf)
        return scores.softmax(-1).masked_fill(empty, 0.0) @ value
    return scores.softmax(-1) @ value


def test_the_gradient_of_a_softcap_is_that_of_finite_differences():
    tensors = [(normal(1, 2, 3, 2, seed=i) * 2).requires_grad_() for i in range(3)]
    for backend in ("exact", "tiled"):
        assert torch.autograd.gradcheck(
            lambda q, k, v, backend=backend: regard.attend(q, k, v, scale=0.7, softcap=1.5, mask=regard.Causal(),
                                                           backend=backend), tensors)


def test_the_cap_comes_after_the_scale_and_before_bias_and_mask():
    query, key = torch.tensor([[2.0]]).double(), torch.tensor([[3.0], [-1.0], [9.0]]).double()
    bias = torch.tensor([[0.0, 4.0, 0.0]]).double()
    got = regard.attention_weights(query, key, score="dot", scale=0.5, softcap=2.0, bias=bias,
                                   mask=torch.tensor([[True, True, False]]))
    scores = np.array([2 * math.tanh(3 / 2), 2 * math.tanh(-1 / 2) + 4])
    weights = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(got[0].numpy(), [*weights, 0.0], rtol=1e-12)


def test_hidden_keys_that_are_not_finite_change_nothing():
    query, key, value = (t.detach() for t in three())
    clean = regard.attend(query, key, value, scale=0.2, softcap=3.0, mask=regard.Padding([5, 5]))
    key[..., 5:, :], value[..., 5:, :] = torch.nan, torch.inf
    for backend in (None, "exact", "tiled"):
        assert_close(regard.attend(query, key, value, scale=0.2, softcap=3.0, mask=regard.Padding([5, 5]),
                                   backend=backend), clean)


def test_half_precision_scores_beyond_its_range_are_capped():
    query = torch.full((1, 1, 2, 64), 200.0, dtype=torch.float16)
    key = torch.stack((query[..., 0, :], -query[..., 0, :]), -2)
    value = torch.tensor([[[[1.0], [0.0]]]], dtype=torch.float16)
    got = regard.attend(query, key, value, score="dot", softcap=1.0)  # scores of ±2,560,000, which float16 has not
    np.testing.assert_allclose(got.float().numpy(), np.full((1, 1, 2, 1), 1 / (1 + math.exp(-2))), rtol=2e-3)


@pytest.mark.parametrize(("options", "named"), [
    ({"scale": "0.5"}, "`scale`"), ({"scale": math.nan}, "`scale`"), ({"scale": True}, "`scale`"),
    ({"scale": torch.tensor(0.5)}, "`scale`"), ({"softcap": 0.0}, "`softcap`"), ({"softcap": -1}, "`softcap`"),
    ({"softcap": math.inf}, "`softcap`"),
    ({"scale": 0.5, "score": lambda q, k: q @ k.mT}, "`scale`"),
    ({"scale": 0.5, "score": regard.Bilinear(torch.eye(4))}, "`scale`"),
    ({"scale": 0.5, "score": regard.Additive(torch.ones(4))}, "`scale`"),
])
def test_what_is_no_scale_and_no_cap_is_refused(options, named):
    tensors = [torch.randn(1, 2, 3, 4)] * 3
    for function, count in ((regard.attend, 3), (regard.explain, 3), (regard.attention_weights, 2)):
        with pytest.raises(ValueError, match=named):
            function(*tensors[:count], **options)


def test_kernels_without_a_softcap_refuse_it():
    tensors = [torch.randn(1, 2, 3, 4)] * 3
    for backend in ("sdpa", "band", "flex", "pointwise"):
        with pytest.raises(ValueError, match=backend):
            regard.attend(*tensors, softcap=5.0, backend=backend)
    assert regard.explain(*tensors, softcap=5.0).backend == "exact"
    assert "softcap 5" in str(regard.explain(*tensors, softcap=5.0))
    assert regard.explain(*tensors, scale=0.5).backend == "sdpa"


def test_a_scaled_call_goes_straight_to_the_kernel_the_second_time(monkeypatch):
    monkeypatch.setattr(attending, "DISPATCH_CACHE", {})
    tensors = [torch.randn(2, 3, 5, 4) for _ in range(3)]
    first = regard.attend(*tensors, scale=0.25, mask=regard.Causal())
    regard.attend(*tensors, scale=0.5, mask=regard.Causal())
    assert len(attending.DISPATCH_CACHE) == 2
    monkeypatch.setattr(attending, "build_problem", lambda *given, **named: pytest.fail("it was chosen again"))
    assert torch.equal(regard.attend(*tensors, scale=0.25, mask=regard.Causal()), first)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("options", [{"scale": 0.3}, {"softcap": 2.0}, {"scale": 0.3, "softcap": 2.0}], ids=str)
def test_one_compiled_graph(options):
    torch._dynamo.reset()
    tensors = three()

    def function(query, key, value):
        return regard.attend(query, key, value, mask=regard.Causal(), **options)

    assert_close(torch.compile(function, fullgraph=True, backend="eager")(*tensors), function(*tensors))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("mask", ["none", "causal", "window"])
@pytest.mark.parametrize("score", ["scaled_dot", "bilinear"])
def test_flex_computes_the_cap_in_its_kernel(score, mask, monkeypatch):
    """The function of one score that the kernel is compiled with, here in flex_attention's plain form."""
    from torch.nn.attention import flex_attention

    monkeypatch.setattr(fused, "_compiled", lambda name: getattr(flex_attention, name))
    tensors, (given, known) = [t.detach() for t in three()], scorer(score, None, 4)
    problem = build_problem(*tensors, score=adjust_score(given, None, 2.0), normalize="softmax", mask=MASKS[mask],
                            bias=None, dropout=0.0)
    want = oracle.attend_many(*(t.numpy() for t in tensors), score=oracle.softcapped(known, 2.0),
                              mask=mask_matrix(mask))
    with torch.no_grad():
        assert_close(FLEX.run(problem), want)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("mask", [None, regard.Causal()], ids=repr)
def test_flex_on_a_gpu_is_the_definition(mask):
    tensors = [torch.randn(1, 2, 2048, 64, device="cuda", dtype=torch.bfloat16).mul(3).requires_grad_()
               for _ in range(3)]
    assert regard.explain(*tensors, softcap=5.0, mask=mask).backend == "flex"
    wide = [t.detach().double().requires_grad_() for t in tensors]
    want = regard.attend(*wide, softcap=5.0, mask=mask, backend="exact")
    both = [(regard.attend(*tensors, softcap=5.0, mask=mask, backend=name)) for name in ("flex", "exact")]
    expected = (want, *gradients(want, wide))
    errors = [[(one.double() - other).norm() for one, other in zip(
        (output, *gradients(output, tensors)), expected, strict=True)] for output in both]
    assert all(mine <= 2 * plain for mine, plain in zip(*errors, strict=True))


@pytest.mark.parametrize("options", [{"scale": 0.3}, {"softcap": 2.0}, {"scale": 0.3, "softcap": 2.0}], ids=str)
def test_a_layer_computes_with_them_at_once_and_step_by_step(options):
    layer = regard.Attention(8, heads=2, key_heads=1, **options).double()
    for part in (layer.query, layer.key):
        part.weight.data *= 4
    x = normal(2, 5, 8)
    query, key, value = layer.projected(x, None)
    weights = regard.attention_weights(query, key, mask=regard.Causal(), **options)
    want = layer.merge(weights @ value)
    assert_close(layer(x, mask=regard.Causal()), want)
    cache, pieces = layer.start(2, 5), []
    for token in x.split(1, dim=1):
        y, cache = layer.step(token, cache)
        pieces.append(y)
    assert_close(torch.cat(pieces, 1), want)
    looks = []
    with layer.tap.listen(looks.append):
        layer(x, mask=regard.Causal())
    assert_close(looks[0].weights(), weights)


def test_the_layers_without_projections_take_them_too():
    x = normal(2, 5, 8)
    assert_close(PlainAttention(8, scale=0.1, softcap=0.5)(x), regard.attend(
        x[:, None], x[:, None], x[:, None], scale=0.1, softcap=0.5)[:, 0])
    basic = regard.BasicAttention(8, scale=0.1).double()
    assert_close(basic(x), regard.attend(basic.query(x), basic.key(x), x, scale=0.1))


@pytest.mark.parametrize("score", ["additive", "bilinear"])
def test_a_layer_refuses_a_scale_for_a_score_without_one_when_it_is_made(score):
    with pytest.raises(ValueError, match="`scale`"):
        regard.Attention(8, heads=2, score=score, scale=0.5)
    capped = regard.Attention(8, heads=2, score=score, softcap=0.5).double()
    query, key, value = capped.projected(normal(2, 5, 8), None)
    weights = regard.attention_weights(query, key, score=adjust_score(capped.scorer._own_score(), None, 0.5))
    assert_close(capped(normal(2, 5, 8)), capped.merge(weights @ value))


def test_statistics_of_a_look_are_those_of_its_weights():
    query, key, _ = (t.detach() for t in three())
    look = Look(query, key, score=adjust_score("scaled_dot", 0.3, 2.0), mask=regard.Causal())
    weights = look.weights()
    assert_close(look.column_sums(), weights.sum(-2))
    assert_close(look.row_max().values, weights.amax(-1))
    assert_close(look.rows([1, 4]), weights[..., [1, 4], :])


@pytest.mark.parametrize(("table", "key"), [
    ({"scale": 0.5, "score": "additive"}, "scale"), ({"softcap": 0.0}, "softcap"), ({"softcap": -2.0}, "softcap"),
    ({"softcap": 5.0, "backend": "sdpa"}, "backend"), ({"scale": "large"}, "scale")], ids=str)
def test_a_config_that_contradicts_itself_names_the_key(table, key):
    with pytest.raises(ConfigError, match=key):
        read_config(SelfAttentionConfig, document_of(table))


def test_a_config_builds_a_layer_with_them():
    layer = read_config(AttentionConfig, document_of({"heads": 2, "scale": 0.25, "softcap": 30.0})).build(8).double()
    x = normal(2, 5, 8)
    query, key, value = layer.projected(x, None)
    assert_close(layer(x), layer.merge(regard.attend(query, key, value, scale=0.25, softcap=30.0)))


@pytest.mark.parametrize(("queries", "keys"), [(3, 5), (5, 3), (4, 4), (1, 6), (6, 1)])
def test_placed_at_0_is_the_causal_mask_of_torch_for_any_shape(queries, keys):
    """`Causal()` is aligned to the bottom right, and torch's `is_causal` to the top left."""
    query, key, value = normal(2, 3, queries, 4), normal(2, 3, keys, 4, seed=1), normal(2, 3, keys, 4, seed=2)
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert_close(regard.attend(query, key, value, mask=regard.Causal() & regard.Placed(0)), want)
    if queries != keys and 1 not in (queries, keys):
        assert not torch.allclose(regard.attend(query, key, value, mask=regard.Causal()), want)
