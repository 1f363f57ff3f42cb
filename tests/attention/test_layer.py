"""The attention layers: equal to the oracle and to torch's multi-head attention, with gradients, masks and positions.

Every layer is given random weights (biases too) before it is asked. What a layer does step by step is in `test_cache`.
"""

import copy
import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from problems import ORACLE_NORMALIZERS, Waves, assert_close, held, normal, parameters, scorer, table_of

import regard
from regard.attention.layer import AttentionConfig
from regard.position.encoding import AddPositions, SinusoidalEncoding
from regard.reference import attention as oracle
from regard.reference import position as oracle_position

KINDS = ("attention", "basic", "plain")
SCORES = ("dot", "scaled_dot", "scaled_dot_d", "additive", "bilinear", "module")
NORMALIZERS = ("softmax", "relu", "relu_sum", "sigmoid")
WIDTH, CONTEXT = 6, {"attention": 5, "basic": 5, "plain": 6}
X = normal(1, 2, 6)


def make(kind, score="scaled_dot", **options):
    """A layer of width 6 with random weights, in float64; the score's parameters are the layer's where it has any."""
    if score == "module":
        score = Waves(normal({"attention": options.get("head_width", 3), "basic": 6, "plain": 6}[kind], seed=3))
    elif kind == "plain" and score in ("additive", "bilinear"):
        score = scorer(score, None, WIDTH)[0]
    if kind == "attention":
        options.setdefault("heads", 2)
    made = {"attention": regard.Attention, "basic": regard.BasicAttention, "plain": regard.PlainAttention}[kind]
    layer = made(WIDTH, score=score, **options).double()
    for i, parameter in enumerate(layer.parameters()):
        parameter.data = normal(*parameter.shape, seed=100 + i) / 2
    return layer


def array(tensor):
    return tensor.detach().double().numpy()


def scores_of(layer):
    """The layer's score in the words of the oracle, one for each head."""
    score, heads = layer.score, getattr(layer, "heads", 1)
    if isinstance(score, str):
        return [getattr(oracle, score)] * heads
    weight = array(score.weight)
    if isinstance(score, Waves):
        return [lambda q, k: float((weight * np.cos(q - k)).sum())] * heads
    if isinstance(score, regard.Bilinear):
        return [functools.partial(oracle.bilinear, weight=own) for own in weight.reshape(heads, *weight.shape[-2:])]
    biases = [None] * heads if score.bias is None else array(score.bias)
    return [functools.partial(oracle.additive, weight=w, bias=b)
            for w, b in zip(weight.reshape(heads, -1), biases, strict=True)]


def known(layer, x, context=None, mask=None, bias=None):
    """The oracle's answer to one sequence x (N, width)."""
    x, context = array(x), array(x if context is None else context)
    scores, options = scores_of(layer), {"normalize": ORACLE_NORMALIZERS[repr(layer.normalize)], "mask": mask}
    if isinstance(layer, regard.PlainAttention):
        return oracle.plain_attention(context, x, score=scores[0], **options)
    if isinstance(layer, regard.BasicAttention):
        W_Q, W_K = array(layer.query.weight), array(layer.key.weight)
        if layer.query.bias is None:
            return oracle.basic_attention(context, x, W_Q, W_K, score=scores[0], **options)
        parts = W_Q, W_K, np.eye(context.shape[1]), array(layer.query.bias), array(layer.key.bias)
        return oracle.attention_layer(x, context, *parts, score=scores[0], **options)

    def parts(linear, count):
        biases = [None] * count if linear.bias is None else array(linear.bias).reshape(count, -1)
        return list(zip(array(linear.weight).reshape(count, -1, linear.in_features), biases, strict=True))

    keys, values = parts(layer.key, layer.key_heads), parts(layer.value, layer.key_heads)
    group, heads = layer.heads // layer.key_heads, []
    for h, (W_Q, b_Q) in enumerate(parts(layer.query, layer.heads)):
        (W_K, b_K), (W_V, b_V) = keys[h // group], values[h // group]
        heads.append(oracle.Head(W_Q, W_K, W_V, b_Q, b_K, b_V))
    b_O = None if layer.output.bias is None else array(layer.output.bias)
    return oracle.multi_head(x, context, heads, array(layer.output.weight), b_O, score=scores, bias=bias, **options)


def batch(function, *tensors):
    """The answers for every sequence of a batch."""
    return np.stack([function(*(None if t is None else t[b] for t in tensors)) for b in range(len(tensors[0]))])


@pytest.mark.parametrize("crossed", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_computes_what_the_oracle_computes(kind, score, normalize, crossed):
    options = {"context_width": CONTEXT[kind]} if crossed and kind != "plain" else {}
    layer = make(kind, score, normalize=normalize, **options)
    x, context = normal(2, 4, WIDTH), normal(2, 5, CONTEXT[kind], seed=1) if crossed else None
    assert_close(layer(x, context), batch(functools.partial(known, layer), x, context))
    n_keys = 5 if crossed else 4
    matrix = oracle.causal(4, n_keys) & oracle.padding([n_keys, 2], 4, n_keys, "right")
    mask = regard.Causal() & regard.Padding(torch.tensor([n_keys, 2]))
    assert_close(layer(x, context, mask=mask), batch(functools.partial(known, layer), x, context, matrix))


@pytest.mark.parametrize("options", [
    {"heads": 6, "key_heads": 2}, {"heads": 4, "key_heads": 1, "head_width": 5}, {"heads": 1},
    {"heads": 3, "value_width": 7}, {"heads": 2, "head_width": 1, "value_width": 3}, {"heads": 2, "bias": False},
    {"heads": 4, "key_heads": 2, "head_width": 3, "context_width": 5, "score": "additive"},
    {"heads": 4, "key_heads": 2, "head_width": 3, "context_width": 5, "score": "bilinear", "bias": False},
], ids=str)
def test_heads_may_be_grouped_and_of_any_width_and_biases_left_out(options):
    layer = make("attention", **options)
    x, context = normal(2, 4, WIDTH), normal(2, 3, options.get("context_width", WIDTH), seed=1)
    assert_close(layer(x, context), batch(functools.partial(known, layer), x, context))
    basic = make("basic", "dot", bias=False, head_width=3, context_width=5)
    assert_close(basic(x, x[..., :5]), batch(functools.partial(known, basic), x, x[..., :5]))


def test_one_head_whose_output_is_left_as_it_is_is_the_attention_layer():
    layer, x, context = make("attention", heads=1, bias=False), normal(4, WIDTH), normal(3, WIDTH, seed=1)
    layer.output.weight.data = torch.eye(WIDTH, dtype=torch.float64)
    matrices = [array(part.weight) for part in (layer.query, layer.key, layer.value)]
    assert_close(layer(x), oracle.self_attention(array(x), *matrices))
    assert_close(layer(x, context), oracle.attention_layer(array(x), array(context), *matrices))


def torch_layer(layer):
    """torch's multi-head attention with the weights of the layer."""
    width = layer.context_width
    peer = torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True, kdim=width, vdim=width).double()
    weights = [part.weight.data for part in (layer.query, layer.key, layer.value)]
    if peer.in_proj_weight is not None:
        peer.in_proj_weight.data = torch.cat(weights)
    else:
        peer.q_proj_weight.data, peer.k_proj_weight.data, peer.v_proj_weight.data = weights
    peer.in_proj_bias.data = torch.cat([part.bias.data for part in (layer.query, layer.key, layer.value)])
    peer.out_proj.load_state_dict(layer.output.state_dict())
    return peer


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
@pytest.mark.parametrize("context_width", [None, 6, 5], ids=["self", "cross", "other width"])
def test_attention_is_torchs_multi_head_attention(context_width, masked):
    layer = make("attention", context_width=context_width)
    peer = torch_layer(layer)
    x = normal(2, 4, WIDTH).requires_grad_()
    context = x if context_width is None else normal(2, 4, context_width, seed=1).requires_grad_()
    mask, theirs = None, {}
    if masked:  # theirs say who may not attend
        mask = regard.Causal() & regard.Padding(torch.tensor([4, 2]))
        hidden = torch.arange(4) >= torch.tensor([[4], [2]])
        theirs = {"attn_mask": ~torch.ones(4, 4, dtype=torch.bool).tril(), "key_padding_mask": hidden}
    ours = layer(x, None if context_width is None else context, mask=mask)
    expected = peer(x, context, context, need_weights=False, **theirs)[0]
    assert_close(ours, expected)
    weight = normal(*ours.shape, seed=9)
    gradients = [torch.autograd.grad((y * weight).sum(), (x, context)) for y in (ours, expected)]
    for mine, other in zip(*gradients, strict=True):
        assert_close(mine, other)


@pytest.mark.thorough
@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "additive", "bilinear", "module"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_differences(kind, score, normalize):
    layer = make(kind, score, normalize=normalize)
    names = [name for name, _ in layer.named_parameters()]
    x, context = normal(2, 3, WIDTH).requires_grad_(), normal(2, 4, WIDTH, seed=1).requires_grad_()
    own = [] if kind != "plain" or score == "module" else parameters(layer.score)
    for mask in (None, regard.Causal() & regard.Padding(torch.tensor([4, 0]))):  # the second sequence sees nothing
        def run(x, context, *weights, mask=mask):
            named = dict(zip(names, weights, strict=False))
            return torch.func.functional_call(layer, named, (x, context), {"mask": mask})

        assert torch.autograd.gradcheck(run, (x, context, *layer.parameters(), *own), fast_mode=True)


@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", ["attention", "basic"])
def test_every_parameter_gets_a_gradient(kind, score, normalize):
    layer = make(kind, score, normalize=normalize)
    (layer(normal(2, 4, WIDTH)) * normal(2, 4, WIDTH, seed=2)).sum().backward()
    unfelt = normalize == "softmax" and score not in ("additive", "module")  # q · b is the same for all keys
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        largest = parameter.grad.abs().max().item()
        assert (largest < 1e-13) if name == "key.bias" and unfelt else (largest > 1e-6), name


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_under_a_causal_mask_nothing_comes_from_later_tokens(kind, backend):
    layer, x = make(kind, backend=backend), normal(2, 5, WIDTH).requires_grad_()
    for t in range(1, 5):
        with held(24):
            y = layer(x, mask=regard.Causal())[:, :t]
        (gradient,) = torch.autograd.grad((y * normal(*y.shape, seed=3)).sum(), x)
        assert (gradient[:, t:] == 0).all()
        assert (gradient[:, :t] != 0).any(-1).all()


def bias_of(bias, distances):
    """The oracle's bias (heads, queries, keys)."""
    if isinstance(bias, regard.ALiBi):
        return oracle_position.alibi(2, distances)
    if isinstance(bias, regard.RelativeBias):
        return table_of(bias, distances)
    rows = np.vectorize(lambda d: oracle_position.relative_bucket(int(d), 4, 4, True))(distances)
    return np.moveaxis(array(bias.table)[rows], -1, 0)


@pytest.mark.parametrize("bias", [regard.ALiBi.for_heads(2), regard.RelativeBias(2, max_distance=2),
                                  regard.BucketedBias(2, num_buckets=4, max_distance=4)], ids=str)
@pytest.mark.parametrize("n_keys", [5, 7])
def test_a_position_bias_is_added_to_the_scores(bias, n_keys):
    layer = make("attention", position_bias=bias)
    x, context = normal(2, 5, WIDTH), normal(2, n_keys, WIDTH, seed=1)
    added = bias_of(layer.position_bias, oracle.distances(5, n_keys))
    assert_close(layer(x, context), batch(lambda a, c: known(layer, a, c, bias=added), x, context))
    masked = batch(lambda a, c: known(layer, a, c, oracle.causal(5, n_keys), added), x, context)
    assert_close(layer(x, context, mask=regard.Causal()), masked)


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
@pytest.mark.parametrize("positions", [None, torch.tensor([3, 0, 9, 4]), torch.tensor([[0, 1, 2, 3], [7, 5, 1, 0]])])
def test_rotary_positions_turn_queries_and_keys(positions, pairing):
    layer = make("attention", head_width=4, key_heads=1, rotary=regard.Rotary(4, base=100.0, pairing=pairing))
    x = normal(2, 4, WIDTH)
    turn = {"halves": oracle_position.rotary_halves, "interleaved": oracle_position.rotary_interleaved}[pairing]
    where = np.broadcast_to(np.arange(4) if positions is None else positions.numpy(), (2, 4))

    def turned(linear, heads):
        split = array(F.linear(x, linear.weight, linear.bias)).reshape(2, 4, heads, 4)
        rows = [turn(split[b, n, h], where[b, n], 100.0) for b in range(2) for h in range(heads) for n in range(4)]
        return np.reshape(rows, (2, heads, 4, 4))

    value = array(layer.value(x))[:, None]
    attended = oracle.attend_many(turned(layer.query, 2), turned(layer.key, 1), value, mask=oracle.causal(4, 4))
    merged = torch.from_numpy(attended.transpose(0, 2, 1, 3).reshape(2, 4, -1))
    want = F.linear(merged, layer.output.weight, layer.output.bias)
    assert_close(layer(x, mask=regard.Causal(), positions=positions), want)


ORDER = [2, 0, 3, 1, 4]
PLACED = [{}, {"rotary": regard.Rotary(2)}, {"position_bias": regard.ALiBi.for_heads(2)}]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", KINDS)
def test_without_positions_a_layer_does_not_know_the_order_of_tokens(kind, score):
    layer, x = make(kind, score), normal(2, 5, WIDTH)
    assert_close(layer(x[:, ORDER]), layer(x)[:, ORDER])
    encoded = AddPositions(SinusoidalEncoding(WIDTH))
    for knowing in [lambda x: layer(encoded(x)), *(make("attention", **options) for options in PLACED[1:])]:
        assert (knowing(x[:, ORDER]) - knowing(x)[:, ORDER]).abs().max() > 1e-2


@given(st.data())
def test_padding_and_neighbours_change_nothing(data):
    kind = data.draw(st.sampled_from(KINDS))
    options = data.draw(st.sampled_from(PLACED)) if kind == "attention" else {}
    normalize, causal = data.draw(st.sampled_from(NORMALIZERS)), data.draw(st.booleans())
    layer = make(kind, data.draw(st.sampled_from(SCORES)), normalize=normalize, **options).float()
    if isinstance(layer.score, regard.Score):
        for tensor in parameters(layer.score):
            tensor.data = tensor.data.float()
    length, left, right = (data.draw(st.integers(low, 5)) for low in (1, 0, 0))
    filler = data.draw(st.sampled_from((0.0, 1e30, math.nan, math.inf)))
    x = normal(1, length, WIDTH, seed=data.draw(st.integers(0, 99))).float()
    alone = layer(x, mask=regard.Causal() if causal else None)
    total = left + length + right
    padded = normal(3, total, WIDTH, seed=5).float()
    padded[1] = F.pad(x[0], (0, 0, left, right), value=filler)
    if left == 0 or right == 0:
        mask = regard.Padding(torch.tensor([total, length, 0]), side="left" if left else "right")
    else:
        mask = torch.ones(3, 1, total, dtype=torch.bool)
        mask[1, :, :left] = mask[1, :, left + length:] = False
    mask = regard.Causal() & mask if causal else mask
    output = layer(padded, mask=mask, positions=torch.arange(total) - left)[1, left:left + length]
    assert (output - alone[0]).abs().max() <= 1e-5 * max(1.0, alone.abs().max().item())


@pytest.mark.parametrize("filler", [math.nan, math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_garbage_behind_a_context_changes_nothing(kind, filler):
    layer, x, context = make(kind), normal(2, 3, WIDTH).requires_grad_(), normal(2, 3, WIDTH, seed=1)
    padded = F.pad(context, (0, 0, 0, 2), value=filler)
    output, expected = layer(x, padded, mask=regard.Padding(torch.tensor([3, 3]))), layer(x, context)
    assert_close(output, expected)
    weight = normal(*output.shape, seed=2)
    assert_close(*(torch.autograd.grad((y * weight).sum(), x)[0] for y in (output, expected)))


@pytest.mark.parametrize("kind", ["attention", "basic"])
def test_garbage_behind_a_context_leaves_the_gradients_of_parameters_finite(kind):
    layer, x = make(kind), normal(1, 3, WIDTH)
    layer(x, F.pad(x, (0, 0, 0, 2), value=math.nan), mask=regard.Padding(torch.tensor([3]))).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4), (2, 1, 4), (2, 2, 4, 4), (1, 2, 4, 4)], ids=str)
def test_bool_tensors_are_masks_of_tokens_of_sequences_or_of_heads(shape):
    layer, x = make("attention"), normal(2, 4, WIDTH)  # as many sequences as heads
    tensor = normal(*shape, seed=4) > -0.5
    matrix = tensor.numpy()
    matrix = matrix[:, None] if len(shape) == 3 else matrix
    causal, near = oracle.causal(4, 4), oracle.window(4, 4, 1, 0)
    pairs = [(tensor, matrix), (regard.Causal() & tensor, causal & matrix),
             (tensor | regard.Window(1, 0), matrix | near),
             (~(regard.Causal() & tensor) & ~regard.Window(1, 0), ~(causal & matrix) & ~near)]
    for mask, allowed in pairs:
        full = np.broadcast_to(allowed, (2, 2, 4, 4))
        assert_close(layer(x, mask=mask), batch(functools.partial(known, layer), x, None, full))


def test_dropout_drops_weights_and_only_in_training():
    layer, x = regard.PlainAttention(8, dropout=0.25), torch.eye(8)[None]  # of one-hot values come the weights
    sure = regard.PlainAttention(8)(x)
    torch.testing.assert_close(layer.eval()(x), sure, rtol=0, atol=0)
    dropped = torch.stack([layer.train()(x) for _ in range(50)])
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], (sure / 0.75).expand_as(dropped)[kept])
    assert abs(kept.double().mean() - 0.75) < 5 * math.sqrt(0.25 * 0.75 / kept.numel())


LINEAR = [f"{part}.{name}" for part in ("query", "key", "value", "output") for name in ("weight", "bias")]


@pytest.mark.parametrize(("options", "keys"), [
    ({"kind": "attention", "rotary": regard.Rotary(2)}, LINEAR), ({"kind": "plain"}, []),
    ({"kind": "attention", "bias": False, "position_bias": regard.ALiBi.for_heads(2)}, LINEAR[::2]),
    ({"kind": "attention", "score": "additive"}, [*LINEAR, "scorer.weight", "scorer.bias"]),
    ({"kind": "attention", "score": "module"}, [*LINEAR, "scorer.kind.weight"]),
    ({"kind": "attention", "position_bias": regard.RelativeBias(2, max_distance=1)}, [*LINEAR, "position_bias.table"]),
    ({"kind": "basic", "score": "bilinear"}, [*LINEAR[:4], "scorer.weight"]),
], ids=str)
def test_what_is_stored_is_known_and_makes_the_same_layer(options, keys):
    layer, x = make(**options), normal(2, 4, WIDTH)
    stored = layer.state_dict()
    assert set(stored) == set(keys)
    other = copy.deepcopy(layer)
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)
    for parameter in other.parameters():
        parameter.data.zero_()
    assert not keys or not torch.equal(other(x), layer(x))
    other.load_state_dict(stored)
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)


@pytest.mark.parametrize("way", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("kind", KINDS)
def test_low_precision_errs_at_most_twice_as_much_as_the_plain_computation(kind, way):
    low = torch.float32 if way == "float32" else torch.bfloat16
    held_in = torch.float32 if way == "autocast" else low
    layer, x = make(kind).to(held_in), normal(2, 12, WIDTH).to(held_in)
    truth = batch(functools.partial(known, layer), x, None, np.broadcast_to(oracle.causal(12, 12), (2, 12, 12)))
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        query, (key, value) = layer.queries(x), layer.keys_and_values(x)
        scores = query @ key.mT / math.sqrt(query.shape[-1]) + torch.full((12, 12), -torch.inf, dtype=x.dtype).triu(1)
        plain, output = layer.merge(scores.softmax(-1) @ value), layer(x, mask=regard.Causal())
    assert output.dtype == low
    error, allowed = (np.abs(array(y) - truth).max() for y in (output, plain))
    assert error <= 2 * allowed + 4 * torch.finfo(low).eps * np.abs(truth).max()


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda: regard.Attention(6, heads=4), r"`heads` must be .* divides the width, 6, but is 4 .*head_width"),
    (lambda: regard.Attention(6, heads=0), r"^`heads` must be .*, but is 0"),
    (lambda: regard.Attention(6, heads=3, key_heads=2), r"`key_heads` must be .* divides heads, 3, but is 2"),
    (lambda: regard.Attention(6, heads=2, key_heads=-1), r"`key_heads` must be .*, but is -1"),
    (lambda: regard.Attention(6, heads=2, score="aditive"), r'`score` .*"dot".* "aditive".*Did you mean "additive"'),
    (lambda: regard.PlainAttention(6, score="additive")(X), r'`score` .* "additive".*parameters'),
    (lambda: regard.PlainAttention(6, normalize="sofmax")(X), r'`normalize` .*Did you mean "softmax"'),
    (lambda: regard.PlainAttention(6, dropout=1.0), r"`dropout` must be .*below 1, but is 1.0"),
    (lambda: regard.BasicAttention(6, dropout=-0.1), r"`dropout` must be .*at least 0.*, but is -0.1"),
    (lambda: make("attention", rotary=regard.Rotary(2))(X, X), r"`context` .*rotary.*given"),
    (lambda: make("attention", rotary=regard.Rotary(2)).remember(X), r"`context` .*rotary"),
    (lambda: make("basic", "bilinear", normalize="relu", backend="sdpa")(X), r'`backend` .*"sdpa".*relu'),
])
def test_errors_name_the_argument_what_was_expected_and_what_came(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize(("bias", "qkv_bias"), [(True, None), (False, None), (False, True), (True, False)])
def test_a_bias_of_queries_keys_and_values_alone(bias, qkv_bias):
    config = AttentionConfig(heads=4, key_heads=2, bias=bias, qkv_bias=qkv_bias)
    layer, wanted = config.build(8), bias if qkv_bias is None else qkv_bias
    found = [getattr(layer, part).bias is not None for part in ("query", "key", "value", "output")]
    assert found == [wanted, wanted, wanted, bias]
    assert sum(parameter.numel() for parameter in layer.parameters()) == config.parameters(8)
