"""Masks written out, scores, normalisers, weights and the forms of layers."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from regard.reference import attention


def assert_same(mask, rows):
    """The mask is exactly this picture."""
    assert mask.dtype == np.bool_
    assert ["".join("01"[int(cell)] for cell in row) for row in mask] == rows


def test_distances_are_key_minus_query_aligned_to_the_bottom_right():
    assert attention.distances(2, 4).tolist() == [[-2, -1, 0, 1], [-3, -2, -1, 0]]
    assert attention.distances(3, 2).tolist() == [[1, 2], [0, 1], [-1, 0]]


def test_distances_from_a_start():
    assert attention.distances(2, 4, start=0).tolist() == [[0, 1, 2, 3], [-1, 0, 1, 2]]
    assert attention.distances(2, 4, start=1).tolist() == [[-1, 0, 1, 2], [-2, -1, 0, 1]]


def test_causal():
    assert_same(attention.causal(4, 4), ["1000", "1100", "1110", "1111"])
    assert_same(attention.causal(2, 4), ["1110", "1111"])
    assert_same(attention.causal(4, 2), ["00", "00", "10", "11"])
    assert_same(attention.causal(1, 3), ["111"])


def test_causal_differs_from_torch_with_fewer_queries_than_keys():
    top_left = torch.ones(2, 4, dtype=torch.bool).tril().numpy()
    assert not np.array_equal(attention.causal(2, 4), top_left)
    assert np.array_equal(attention.causal(4, 4), torch.ones(4, 4, dtype=torch.bool).tril().numpy())


def test_padding_on_either_side():
    right = attention.padding([2, 0, 3], 2, 3, "right")
    assert_same(right[0], ["110", "110"])
    assert_same(right[1], ["000", "000"])
    assert_same(right[2], ["111", "111"])
    assert_same(attention.padding([2], 1, 3, "left")[0], ["011"])
    with pytest.raises(ValueError, match="`side` must be 'left' or 'right', but is 'up'"):
        attention.padding([1], 1, 1, "up")


def test_window():
    assert_same(attention.window(4, 4, 1, 0), ["1000", "1100", "0110", "0011"])
    assert_same(attention.window(4, 4, 1, 1), ["1100", "1110", "0111", "0011"])
    assert_same(attention.window(2, 4, 1, 0), ["0110", "0011"])
    assert_same(attention.window(3, 3, None, 0), ["100", "110", "111"])
    assert_same(attention.window(3, 3, 0, None), ["111", "011", "001"])
    assert_same(attention.window(2, 2, None, None), ["11", "11"])


def test_packed():
    assert_same(attention.packed([2, 1]), ["110", "110", "001"])
    assert_same(attention.packed([1, 2], [2, 1]), ["110", "001", "001"])
    assert_same(attention.packed([1, 0, 1], [1, 1, 1]), ["100", "001"])


def test_packed_leaves_out_what_lies_beyond_the_segments():
    assert_same(attention.packed([1, 1], [1, 1], 3, 4), ["1000", "0100", "0000"])
    with pytest.raises(ValueError, match="positions"):
        attention.packed([2, 2], n_queries=3)
    with pytest.raises(ValueError, match="as many segments"):
        attention.packed([2, 2], [4])


def test_packed_causal_is_aligned_in_every_segment():
    assert_same(attention.packed_causal([2, 2]), ["1000", "1100", "0010", "0011"])
    assert_same(attention.packed_causal([1, 2], [3, 2]), ["11100", "00010", "00011"])
    assert_same(attention.packed_causal([2, 1], [1, 2]), ["000", "100", "011"])


def test_packed_window():
    assert_same(attention.packed_window([3, 2], None, 1, 0), ["10000", "11000", "01100", "00010", "00011"])
    assert_same(attention.packed_window([1, 1], [3, 2], 1, 0, 3, 6), ["011000", "000110", "000000"])


def test_placed():
    assert_same(attention.placed(1, 2, 5), ["11100", "11100"])
    assert_same(attention.placed_causal(1, 2, 5), ["11000", "11100"])
    assert_same(attention.placed_window(2, 2, 5, 1, None), ["01110", "00110"])


def test_placed_at_the_end_is_the_bottom_right():
    assert np.array_equal(attention.placed_causal(3, 2, 5), attention.causal(2, 5))
    assert np.array_equal(attention.placed_window(3, 2, 5, 2, 1), attention.window(2, 5, 2, 1))


NORMALIZERS = [attention.softmax, attention.relu_keys, attention.relu_sum, attention.sigmoid]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def assert_close(ours, theirs, tolerance=1e-12):
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else np.asarray(theirs)
    assert np.shape(ours) == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def tensor(x):
    return torch.from_numpy(np.array(x))


# ---- scores ----


def test_scores_by_hand():
    q, k = [1.0, 2.0, -1.0, 0.5], [2.0, 0.5, 1.0, 4.0]
    assert attention.dot(q, k) == 4.0
    assert attention.scaled_dot(q, k) == 2.0
    assert attention.scaled_dot_d(q, k) == 1.0
    assert attention.bilinear([1.0, 2.0], [3.0, 4.0, 5.0], [[1, 0, 2], [0, 1, 0]]) == 1 * 3 + 2 * 5 + 2 * 4
    assert attention.additive([0.5], [0.25], [2.0]) == pytest.approx(2 * math.tanh(0.75), rel=1e-15)
    assert attention.additive([0.5], [0.25], [2.0], [0.25]) == pytest.approx(2 * math.tanh(1.0), rel=1e-15)


def test_scaled_dot_divides_by_the_width_of_the_query_in_every_dtype():
    q, k = np.ones(9, dtype=np.float32), np.full(9, 0.1, dtype=np.float32)
    assert attention.scaled_dot(q, k) == pytest.approx(9 * float(np.float32(0.1)) / 3, rel=1e-15)


def test_mlp_score_is_the_additive_score_of_the_projections(rng):
    q, k, w, b = rng.normal(size=3), rng.normal(size=5), rng.normal(size=4), rng.normal(size=4)
    W1, W2 = rng.normal(size=(4, 3)), rng.normal(size=(4, 5))
    both = torch.tanh(functional.linear(tensor(q), tensor(W1)) + functional.linear(tensor(k), tensor(W2), tensor(b)))
    assert attention.mlp_score(q, k, W1, W2, w, b) == pytest.approx(float(both @ tensor(w)), rel=1e-12)
    assert attention.mlp_score(q, k, W1, W2, w, b) == attention.additive(W1 @ q, W2 @ k, w, b)


def test_a_vector_of_width_one_is_not_stretched():
    with pytest.raises(ValueError, match="one shape"):
        attention.additive([1.0], [1.0, 2.0], [1.0, 1.0])


# ---- normalisers ----


def test_softmax_is_torchs_and_sums_to_one(rng):
    scores = rng.normal(size=6) * 10
    row = attention.softmax(scores, [True] * 6)
    assert_close(row, torch.softmax(tensor(scores), 0))
    assert row.sum() == pytest.approx(1.0, rel=1e-15)


def test_softmax_does_not_feel_a_shift_and_does_not_overflow(rng):
    scores = rng.integers(-8, 8, size=5).astype(float)
    assert_close(attention.softmax(scores + 1024.0, [True] * 5), attention.softmax(scores, [True] * 5))
    assert_close(attention.softmax([1e308, 0.0], [True, True]), [1.0, 0.0])


def test_relu_by_hand():
    scores, allowed = [3.0, -2.0, 1.0, 5.0], [True, True, True, False]
    assert_close(attention.relu_keys(scores, allowed), [1.0, 0.0, 1 / 3, 0.0])
    assert_close(attention.relu_sum(scores, allowed), [0.75, 0.0, 0.25, 0.0])
    assert_close(attention.relu_sum([-1.0, -2.0], [True, True]), [0.0, 0.0])


def test_sigmoid_is_torchs(rng):
    scores = np.array([-800.0, -3.0, 0.0, 2.0, 800.0])
    assert_close(attention.sigmoid(scores, [True] * 5), torch.sigmoid(tensor(scores)))


@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e300])
def test_keys_that_are_not_allowed_change_nothing(normalize, poison):
    clean = normalize([0.5, 1.5], [True, True])
    row = normalize([0.5, poison, 1.5], [True, False, True])
    assert row[1] == 0.0
    assert row[[0, 2]].tolist() == clean.tolist()


@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_a_score_of_minus_infinity_counts_as_not_allowed(normalize):
    expected = normalize([0.5, 7.0, 1.5], [True, False, True])
    assert normalize([0.5, -math.inf, 1.5], [True, True, True]).tolist() == expected.tolist()


@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_a_row_that_is_allowed_nothing_is_zeros(normalize):
    assert normalize([1.0, math.nan], [False, False]).tolist() == [0.0, 0.0]
    assert normalize([-math.inf, -math.inf], [True, True]).tolist() == [0.0, 0.0]
    assert normalize([], []).tolist() == []


@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_a_nan_that_is_allowed_is_not_hidden(normalize):
    assert np.isnan(normalize([1.0, math.nan], [True, True])[1])


# ---- attend ----


def test_attend_by_hand():
    Y = attention.attend([[1.0, 0.0]], [[math.log(3.0), 5.0], [0.0, 5.0]], [[4.0], [8.0]], score=attention.dot,
                         normalize=attention.softmax)
    assert_close(Y, [[0.75 * 4.0 + 0.25 * 8.0]])


@pytest.mark.parametrize("queries", [1, 3, 5])
def test_attend_is_torchs_attention(rng, queries):
    q, k, v = rng.normal(size=(queries, 4)), rng.normal(size=(5, 4)), rng.normal(size=(5, 3))
    mask = attention.causal(queries, 5)
    bias = rng.normal(size=(queries, 5))
    both = tensor(np.where(mask, bias, -np.inf))
    ours = attention.attend(q, k, v, score=attention.scaled_dot, normalize=attention.softmax, mask=mask, bias=bias)
    assert_close(ours, functional.scaled_dot_product_attention(tensor(q), tensor(k), tensor(v), attn_mask=both))


@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_attend_is_weights_times_values(rng, normalize):
    q, k, v = rng.normal(size=(4, 3)), rng.normal(size=(6, 3)), rng.normal(size=(6, 2))
    options = {"score": attention.dot, "normalize": normalize, "mask": rng.random((4, 6)) < 0.6}
    assert_close(attention.attend(q, k, v, **options), attention.weights(q, k, **options) @ v)


@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_poison_in_padding_is_never_read(rng, normalize):
    q, k, v = rng.normal(size=(2, 3)), rng.normal(size=(4, 3)), rng.normal(size=(4, 2))
    clean = attention.attend(q, k[:3], v[:3], normalize=normalize)
    k[3], v[3] = math.nan, math.inf
    mask = attention.padding([3], 2, 4, "right")[0]
    bias = np.zeros((2, 4))
    bias[:, 3] = math.nan
    assert attention.attend(q, k, v, normalize=normalize, mask=mask, bias=bias).tolist() == clean.tolist()


def test_a_pair_that_is_not_allowed_is_not_computed(rng):
    seen = []

    def score(q, k):
        seen.append((int(q[0]), int(k[0])))
        return 0.0

    attention.attend([[0.0], [1.0]], [[0.0], [1.0]], [[1.0], [1.0]], score=score, mask=attention.causal(2, 2))
    assert seen == [(0, 0), (1, 0), (1, 1)]


def test_a_bias_of_minus_infinity_masks_the_value_too():
    bias = [[0.0, -math.inf]]
    assert attention.attend([[1.0]], [[1.0], [1.0]], [[2.0], [math.nan]], bias=bias).tolist() == [[2.0]]


def test_a_query_that_sees_nothing_gets_zeros():
    assert attention.attend([[1.0]], [[1.0]], [[5.0]], mask=[[False]]).tolist() == [[0.0]]
    assert attention.attend([[1.0]], np.zeros((0, 1)), np.zeros((0, 2))).tolist() == [[0.0, 0.0]]


def test_wrong_calls_are_refused():
    with pytest.raises(ValueError, match="must be of bools"):
        attention.weights([[1.0]], [[1.0]], mask=[[0.0]])
    with pytest.raises(ValueError, match="one row a key"):
        attention.attend([[1.0]], [[1.0]], [[1.0], [2.0]])


# ---- batches and heads ----


def test_attend_many_is_torchs_grouped_attention(rng):
    q, k, v = rng.normal(size=(2, 6, 3, 4)), rng.normal(size=(2, 2, 5, 4)), rng.normal(size=(2, 2, 5, 3))
    lengths = attention.padding([5, 3], 3, 5, "right")[:, None]
    bias = rng.normal(size=(6, 3, 5))
    both = tensor(np.where(lengths, bias, -np.inf))
    theirs = functional.scaled_dot_product_attention(tensor(q), tensor(k), tensor(v), attn_mask=both, enable_gqa=True)
    assert_close(attention.attend_many(q, k, v, mask=lengths, bias=bias), theirs)


def test_weights_many_and_attend_many_agree(rng):
    q, k, v = rng.normal(size=(2, 4, 3, 4)), rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 1, 5, 2))
    rows = attention.weights_many(q, k, normalize=attention.sigmoid)
    assert rows.shape == (2, 4, 3, 5)
    assert_close(attention.attend_many(q, k, v, normalize=attention.sigmoid), rows @ v)


def test_leading_dimensions_broadcast(rng):
    q, k, v = rng.normal(size=(3, 1, 3, 2, 4)), rng.normal(size=(5, 3, 3, 4)), rng.normal(size=(3, 4))
    Y = attention.attend_many(q, k, v)
    assert Y.shape == (3, 5, 3, 2, 4)
    assert_close(Y[2, 4, 1], attention.attend(q[2, 0, 1], k[4, 1], v))


def test_without_leading_dimensions_it_is_attend(rng):
    q, k, v = rng.normal(size=(2, 4)), rng.normal(size=(3, 4)), rng.normal(size=(3, 2))
    dot = attention.dot
    assert attention.attend_many(q, k, v, score=[dot]).tolist() == attention.attend(q, k, v, score=dot).tolist()
    assert attention.weights_many(q, k, score=[dot]).tolist() == attention.weights(q, k, score=dot).tolist()


def test_one_score_a_head(rng):
    q, k, v = rng.normal(size=(2, 2, 4)), rng.normal(size=(1, 3, 4)), rng.normal(size=(1, 3, 2))
    Y = attention.attend_many(q, k, v, score=[attention.dot, attention.scaled_dot_d])
    assert_close(Y[0], attention.attend(q[0], k[0], v[0], score=attention.dot))
    assert_close(Y[1], attention.attend(q[1], k[0], v[0], score=attention.scaled_dot_d))
    assert_close(attention.weights_many(q, k, score=[attention.dot, attention.scaled_dot_d])[1],
                 attention.weights(q[1], k[0], score=attention.scaled_dot_d))
    with pytest.raises(ValueError, match="one function a head"):
        attention.attend_many(q, k, v, score=[attention.dot])


def test_heads_that_do_not_divide_are_refused(rng):
    with pytest.raises(ValueError, match="divide"):
        attention.attend_many(np.ones((3, 1, 1)), np.ones((2, 1, 1)), np.ones((2, 1, 1)))
    with pytest.raises(ValueError, match="divide"):
        attention.weights_many(np.ones((2, 1, 1)), np.ones((4, 1, 1)))


# ---- layers ----


def test_plain_attention_is_a_times_x(rng):
    X, queries = rng.normal(size=(5, 3)), rng.normal(size=(2, 3))
    assert_close(attention.plain_attention(X, queries),
                 torch.softmax(tensor(queries @ X.T / math.sqrt(3)), 1) @ tensor(X))


def test_basic_attention_keeps_the_states_as_values(rng):
    Z, X = rng.normal(size=(5, 3)), rng.normal(size=(2, 4))
    W_Q, W_K = rng.normal(size=(6, 4)), rng.normal(size=(6, 3))
    rows = torch.softmax(tensor((X @ W_Q.T) @ (Z @ W_K.T).T / 6), 1)
    assert_close(attention.basic_attention(Z, X, W_Q, W_K, score=attention.scaled_dot_d), rows @ tensor(Z))


def test_attention_layer_takes_queries_from_x_and_the_rest_from_the_context(rng):
    X, C = rng.normal(size=(2, 4)), rng.normal(size=(5, 3))
    W_Q, W_K, W_V = rng.normal(size=(6, 4)), rng.normal(size=(6, 3)), rng.normal(size=(2, 3))
    b_Q, b_K, b_V = rng.normal(size=6), rng.normal(size=6), rng.normal(size=2)
    q, k, v = (functional.linear(*map(tensor, triple)) for triple in ((X, W_Q, b_Q), (C, W_K, b_K), (C, W_V, b_V)))
    theirs = functional.scaled_dot_product_attention(q, k, v)
    assert_close(attention.attention_layer(X, C, W_Q, W_K, W_V, b_Q, b_K, b_V), theirs)


@pytest.mark.parametrize("context_width", [6, 5])
def test_multi_head_is_torchs(rng, context_width):
    torch.set_default_dtype(torch.float64)
    theirs = torch.nn.MultiheadAttention(6, 2, kdim=context_width, vdim=context_width, batch_first=True)
    torch.nn.init.normal_(theirs.in_proj_bias)
    torch.nn.init.normal_(theirs.out_proj.bias)
    if context_width == 6:
        W_Q, W_K, W_V = theirs.in_proj_weight.detach().numpy().reshape(3, 2, 3, 6)
    else:
        parts = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
        W_Q, W_K, W_V = (part.detach().numpy().reshape(2, 3, -1) for part in parts)
    b_Q, b_K, b_V = theirs.in_proj_bias.detach().numpy().reshape(3, 2, 3)
    heads = [attention.Head(W_Q[h], W_K[h], W_V[h], b_Q[h], b_K[h], b_V[h]) for h in range(2)]
    X, C = rng.normal(size=(3, 6)), rng.normal(size=(4, context_width))
    mask = attention.causal(3, 4)
    W_O, b_O = theirs.out_proj.weight.detach().numpy(), theirs.out_proj.bias.detach().numpy()
    ours = attention.multi_head(X, C, heads, W_O, b_O, mask=mask)
    assert_close(ours, theirs(tensor(X), tensor(C), tensor(C), attn_mask=tensor(~mask), need_weights=False)[0])


def test_multi_head_with_a_mask_bias_and_score_for_each_head(rng):
    X, W = rng.normal(size=(3, 4)), rng.normal(size=(2, 3, 4, 4))
    heads = [attention.Head(*W[h]) for h in range(2)]
    mask, bias = rng.random((2, 3, 3)) < 0.7, rng.normal(size=(2, 3, 3))
    Y = attention.multi_head(X, X, heads, np.eye(8), score=[attention.dot, attention.scaled_dot], mask=mask, bias=bias)
    for h, score in enumerate([attention.dot, attention.scaled_dot]):
        assert_close(Y[:, 4 * h : 4 * h + 4],
                     attention.self_attention(X, *W[h], score=score, mask=mask[h], bias=bias[h]))


def test_self_attention_is_permutation_equivariant_and_causal_is_not(rng):
    X, order = rng.normal(size=(5, 4)), [3, 0, 4, 1, 2]
    W = rng.normal(size=(3, 4, 4))
    assert_close(attention.self_attention(X[order], *W), attention.self_attention(X, *W)[order])
    causal = {"mask": attention.causal(5, 5)}
    assert not np.allclose(attention.self_attention(X[order], *W, **causal),
                           attention.self_attention(X, *W, **causal)[order])


# ---- the recurrent decoder ----


def test_decoder_context_by_torch(rng):
    s, H = rng.normal(size=3), rng.normal(size=(4, 5))
    W1, W2, w = rng.normal(size=(6, 3)), rng.normal(size=(6, 5)), rng.normal(size=6)
    context, row = attention.decoder_context(s, H, lambda q, k: attention.mlp_score(q, k, W1, W2, w))
    theirs = torch.softmax(torch.tanh(tensor(W1 @ s)[None] + tensor(H @ W2.T)) @ tensor(w), 0)
    assert_close(row, theirs)
    assert_close(context, theirs @ tensor(H))


def test_decoder_context_looks_at_real_states_only(rng):
    s, H = rng.normal(size=3), rng.normal(size=(4, 3))
    short = attention.decoder_context(s, H[:2], attention.dot)
    H[2:] = math.nan
    context, row = attention.decoder_context(s, H, attention.dot, allowed=[True, True, False, False])
    assert_close(context, short[0])
    assert_close(row, [*short[1], 0.0, 0.0])


def test_decoder_context_with_keys_queries_and_values_is_not_scaled(rng):
    s, H = rng.normal(size=3), rng.normal(size=(4, 5))
    W_Q, W_K, W_V = rng.normal(size=(6, 3)), rng.normal(size=(6, 5)), rng.normal(size=(2, 5))
    q, k, v = tensor(W_Q @ s)[None], tensor(H @ W_K.T), tensor(H @ W_V.T)
    want = functional.scaled_dot_product_attention(q, k, v, scale=1.0)[0]
    assert_close(attention.decoder_context_qkv(s, H, W_Q, W_K, W_V), want)
