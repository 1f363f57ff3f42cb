"""Corners that were wrong once: scores undefined at 0, blind queries, float16, torch.func, second derivatives."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard import Additive, Bilinear, Causal, Packed, Padding, attend, attention_weights


def cosine(query, key):
    """Undefined at 0, as users write it."""
    return (query / query.norm(dim=-1, keepdim=True)) @ (key / key.norm(dim=-1, keepdim=True)).mT


def plain(query, key, value, score, allowed):
    """The literal computation: hidden keys get no weight."""
    scores = score(query, key).masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ value


def inputs(*shape, grad=True, dtype=torch.float64, keys=None):
    made = [torch.randn(*shape, dtype=dtype) for _ in range(3)]
    if keys is not None:
        made[1:] = [torch.randn(*shape[:-2], keys, shape[-1], dtype=dtype) for _ in range(2)]
    return [one.requires_grad_(grad) for one in made]


@pytest.mark.parametrize("backend", ["exact", "tiled"])
@pytest.mark.parametrize("padding", ["random", "zeros", "nan"])
def test_a_score_undefined_at_zero_has_finite_gradients_under_padding(backend, padding):
    query, key, value = inputs(2, 3, 5, 4)
    lengths = torch.tensor([3, 5])
    allowed = Padding(lengths).matrix(5, 5)[:, None]
    if padding != "random":
        with torch.no_grad():
            key[0, :, 3:] = 0.0 if padding == "zeros" else torch.nan
    output = attend(query, key, value, score=cosine, mask=Padding(lengths), backend=backend)
    output.square().sum().backward()
    assert all(torch.isfinite(one.grad).all() for one in (query, key, value))
    visible = key.detach().clone()
    visible[0, :, 3:] = 1.0
    expected = [one.detach().clone().requires_grad_() for one in (query, visible, value)]
    other = plain(*expected, cosine, allowed)
    other.square().sum().backward()
    torch.testing.assert_close(output, other)
    for one, same in zip((query, key, value), expected, strict=True):
        torch.testing.assert_close(one.grad, same.grad)


@pytest.mark.parametrize("backend", ["exact", "tiled"])
def test_a_score_undefined_at_zero_with_queries_and_rows_that_see_nothing(backend):
    query, key, value = inputs(2, 4, 3)
    allowed = torch.tensor([[True, False, True, False], [False] * 4, [False, False, True, False], [False] * 4])
    mask = torch.stack([allowed, torch.zeros(4, 4, dtype=torch.bool)])
    with torch.no_grad():
        query[:, 1], key[:, 1], query[1], key[1] = torch.nan, torch.inf, torch.nan, 0.0
    output = attend(query, key, value, score=cosine, mask=mask, backend=backend)
    output.sum().backward()
    assert torch.equal(output[1], torch.zeros_like(output[1]))
    assert all(torch.isfinite(one.grad).all() for one in (query, key, value))
    torch.testing.assert_close(output[0, 0], plain(query[0, :1], key[0, [0, 2]], value[0, [0, 2]], cosine,
                                                   torch.ones(1, 2, dtype=torch.bool))[0])


@pytest.mark.parametrize("segments", [2, 4, 9])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("score", ["scaled_dot", "bilinear"])
def test_blind_queries_that_are_not_finite_harm_nobody(segments, bad, score):
    """With two queries and one key in a segment, the first query stands before the first key."""
    query, key, value = (one.detach() for one in inputs(1, 2, 2 * segments, 4, keys=segments))
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    scorer = Bilinear(weight) if score == "bilinear" else score
    mask = Causal() & Packed([2] * segments, [1] * segments)
    clean = attend(query, key, value, score=scorer, mask=mask)
    query[:, :, 0] = bad
    query.requires_grad_()
    output = attend(query, key, value, score=scorer, mask=mask)
    torch.testing.assert_close(output, clean)
    assert not output[:, :, 0].any()
    output.sum().backward()
    assert torch.isfinite(query.grad).all()
    assert score != "bilinear" or torch.isfinite(weight.grad).all()


@pytest.mark.parametrize("backend", [None, "exact", "tiled", "sdpa"])
@pytest.mark.parametrize("heads", [False, True])
def test_the_weight_of_bilinear_gets_finite_gradients_from_blind_queries(backend, heads):
    query, key, value = inputs(2, 3, 4, 5, grad=False)
    query[1] = torch.nan
    weight = torch.randn(*([3] if heads else []), 5, 5, dtype=torch.float64, requires_grad=True)
    output = attend(query, key, value, score=Bilinear(weight), mask=Padding([4, 0]), backend=backend)
    output.square().sum().backward()
    alone = weight.detach().clone().requires_grad_()
    attend(query[:1], key[:1], value[:1], score=Bilinear(alone)).square().sum().backward()
    torch.testing.assert_close(weight.grad, alone.grad)


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "bilinear"])
def test_float16_scores_beyond_its_range(backend, score):
    query, key, value = inputs(1, 2, 4, 8, grad=False, dtype=torch.float16)
    query, key = 150 * query, 150 * key
    scorer = Bilinear(torch.eye(8, dtype=torch.float16)) if score == "bilinear" else score
    wide = Bilinear(torch.eye(8)) if score == "bilinear" else score
    assert (query.float() @ key.float().mT).abs().max() > 65_504
    output = attend(query, key, value, score=scorer, backend=backend)
    assert output.dtype == torch.float16
    torch.testing.assert_close(output.float(), attend(query.float(), key.float(), value.float(), score=wide),
                               atol=2e-3, rtol=2e-3)


def test_float16_weights_and_looks_beyond_its_range():
    query, key, value = inputs(1, 2, 4, 8, grad=False, dtype=torch.float16)
    query, key = 150 * query, 150 * key
    weights = attention_weights(query, key)
    assert weights.dtype == torch.float16
    torch.testing.assert_close(weights.float(), attention_weights(query.float(), key.float()), atol=2e-3, rtol=2e-3)
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float16)
    with regard.watch(model) as seen, torch.no_grad():
        model(200 * value[:, 0], 200 * value[:, 0], value[:, 0])
    (name,) = seen.names()
    assert torch.isfinite(seen[name].weights()).all()


SCORES = {"scaled_dot": "scaled_dot", "cosine": cosine, "additive": Additive(torch.randn(4, dtype=torch.float64)),
          "bilinear": Bilinear(torch.randn(4, 4, dtype=torch.float64))}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # where sdpa is named
@pytest.mark.parametrize("backend", [None, "exact", "tiled", "sdpa"])
@pytest.mark.parametrize("score", SCORES)
def test_per_sample_gradients_of_padded_attention(score, backend):
    if backend == "sdpa" and score in ("cosine", "additive"):
        pytest.skip("its kernels compute dot products")
    query, key, value = inputs(3, 2, 5, 4, grad=False)
    lengths = torch.tensor([3, 5, 1])

    def loss(query, key, value, length):
        output = attend(query[None], key[None], value[None], score=SCORES[score], mask=Padding(length.expand(1)),
                        backend=backend)
        return output.square().sum()

    found = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(query, key, value, lengths)
    for row in range(3):
        alone = [one[row].clone().requires_grad_() for one in (query, key, value)]
        loss(*alone, lengths[row]).backward()
        for one, same in zip(alone, found, strict=True):
            torch.testing.assert_close(same[row], one.grad)


@pytest.mark.parametrize("score", SCORES)
def test_vmap_over_masks_and_biases(score):
    query, key, value = inputs(2, 5, 4, grad=False)
    masks = torch.rand(3, 5, 5) > 0.5
    masks[0, 1], masks[1, :, 2] = False, False
    biases = torch.randn(3, 5, 5, dtype=torch.float64)
    run = lambda mask, bias: attend(query, key, value, score=SCORES[score], mask=mask, bias=bias)  # noqa: E731
    found = torch.func.vmap(run)(masks, biases)
    for number in range(3):
        torch.testing.assert_close(found[number], run(masks[number], biases[number]))


def test_vmap_over_packed_and_causal_masks():
    query, key, value = inputs(3, 2, 6, 4, grad=False)
    mask = Causal() & Packed([2, 3, 1])
    found = torch.func.vmap(lambda *given: attend(*given, mask=mask))(query, key, value)
    torch.testing.assert_close(found, attend(query, key, value, mask=mask))
    weights = torch.func.vmap(lambda q, k: attention_weights(q, k, mask=mask))(query, key)
    torch.testing.assert_close(weights, attention_weights(query, key, mask=mask))


@pytest.mark.parametrize("make", [lambda: regard.Attention(8, heads=2), lambda: regard.BasicAttention(8),
                                  lambda: regard.SelfAttention(regard.Attention(8, heads=2), Causal())],
                         ids=["Attention", "BasicAttention", "SelfAttention"])
def test_per_sample_gradients_of_layers(make):
    layer = make().double()
    parameters = dict(layer.named_parameters())
    x, lengths = torch.randn(3, 5, 8, dtype=torch.float64), torch.tensor([2, 5, 4])
    mixer = isinstance(layer, regard.SelfAttention)

    def loss(parameters, x, length):
        padding = Padding(length.expand(1))
        given = (x[None], padding) if mixer else (x[None],)
        more = {} if mixer else {"mask": padding}
        output = torch.func.functional_call(layer, parameters, given, more)
        return (output[0] * (torch.arange(5) < length).unsqueeze(-1)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, lengths)
    for row in range(3):
        layer.zero_grad()
        loss(parameters, x[row], lengths[row]).backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(found[name][row], parameter.grad)


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("backend", ["exact", "tiled"])
def test_second_derivatives_of_additive_attention(backend, heads):
    query, key, value = inputs(1, 2, 3, 4)
    weight = torch.randn(*([2] if heads else []), 4, dtype=torch.float64, requires_grad=True)
    run = lambda *given: attend(*given[:3], score=Additive(given[3]), backend=backend, mask=Padding([2]))  # noqa: E731
    assert gradcheck(run, (query, key, value, weight))
    assert gradgradcheck(run, (query, key, value, weight))


@pytest.mark.parametrize("backend", [None, "exact", "tiled"])
def test_a_weight_for_each_head_where_only_the_values_have_heads(backend):
    query, key = (torch.randn(3, 4, dtype=torch.float64) for _ in range(2))
    value = torch.randn(2, 3, 5, dtype=torch.float64)
    additive, bilinear = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, 4, 4, dtype=torch.float64)
    for score, one in ((Additive(additive), lambda head: Additive(additive[head])),
                       (Bilinear(bilinear), lambda head: Bilinear(bilinear[head]))):
        output = attend(query, key, value, score=score, backend=backend)
        for head in range(2):
            torch.testing.assert_close(output[head], attend(query, key, value[head], score=one(head)))
    assert attention_weights(query, key, score=Additive(torch.randn(4, dtype=torch.float64))).shape == (3, 3)


def test_a_weight_for_each_head_of_another_number_is_refused():
    query, key, value = (torch.randn(size, 3, 4) for size in (1, 1, 2))
    with pytest.raises(ValueError, match=r"score.*2 heads.*3 heads"):
        attend(query, key, value, score=Additive(torch.randn(3, 4)))


def test_training_compiles_into_one_graph():
    layer = regard.SelfAttention(regard.Attention(8, heads=2), Causal())
    x = torch.randn(2, 5, 8)
    compiled = torch.compile(lambda x: layer(x, Padding(torch.tensor([3, 5]))).square().sum(), fullgraph=True,
                             backend="aot_eager")
    compiled(x).backward()
    found = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    layer(x, Padding(torch.tensor([3, 5]))).square().sum().backward()
    for one, parameter in zip(found, layer.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("queries", "keys"), [(0, 0), (0, 3), (3, 0)])
def test_a_score_of_a_user_under_a_mask_without_queries_or_keys(queries, keys):
    query, key = torch.randn(1, 2, queries, 4), torch.randn(1, 2, keys, 4)
    output = regard.attend(query, key, key, score=lambda q, k: q @ k.mT, mask=regard.Padding([0]))
    assert torch.equal(output, torch.zeros(1, 2, queries, 4))
