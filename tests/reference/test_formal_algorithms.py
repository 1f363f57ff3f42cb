"""Formal Algorithms for Transformers: parts, models, losses and inference."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from regard.reference import formal_algorithms as formal
from regard.reference.position import sinusoidal_formal

# ruff: noqa: N806


L_X, L_Z, D_X, D_Z, D_ATTN, D_OUT = 3, 4, 5, 6, 2, 3


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def parameters(rng, d_x=D_X, d_z=D_Z):
    shapes = {
        "W_q": (D_ATTN, d_x),
        "b_q": D_ATTN,
        "W_k": (D_ATTN, d_z),
        "b_k": D_ATTN,
        "W_v": (D_OUT, d_z),
        "b_v": D_OUT,
    }
    return formal.AttentionParameters(**{name: rng.normal(size=shape) for name, shape in shapes.items()})


def by_columns(X, Z, p, mask):
    """Algorithm 4 in torch with tokens as columns: S = K^T Q, softmax over the context, V softmax(S)."""
    X, Z = torch.tensor(X).T, torch.tensor(Z).T
    Q = torch.tensor(p.W_q) @ X + torch.tensor(p.b_q)[:, None]
    K = torch.tensor(p.W_k) @ Z + torch.tensor(p.b_k)[:, None]
    V = torch.tensor(p.W_v) @ Z + torch.tensor(p.b_v)[:, None]
    S = (K.T @ Q).masked_fill(~torch.tensor(mask).T, -torch.inf)
    return (V @ torch.softmax(S / D_ATTN**0.5, dim=0)).T.numpy()


def test_embeddings_are_rows_and_positions_count_from_one(rng):
    W_e, W_p = rng.normal(size=(7, 4)), rng.normal(size=(5, 4))
    assert formal.token_embedding(6, W_e).tolist() == W_e[6].tolist()
    assert formal.positional_embedding(1, W_p).tolist() == W_p[0].tolist()
    assert formal.positional_embedding(5, W_p).tolist() == W_p[4].tolist()
    expected = functional.embedding(torch.tensor([3, 0, 3]), torch.tensor(W_e)).numpy() + W_p[:3]
    assert formal.embed([3, 0, 3], W_e, W_p).tolist() == expected.tolist()


@pytest.mark.parametrize("v", [-1, 7])
def test_a_token_outside_the_vocabulary_is_refused(v):
    with pytest.raises(ValueError, match="`v` must be a token from 0 to 6"):
        formal.token_embedding(v, np.zeros((7, 2)))


@pytest.mark.parametrize("t", [0, 6])
def test_a_position_beyond_l_max_is_refused(t):
    with pytest.raises(ValueError, match="l_max = 5"):
        formal.positional_embedding(t, np.zeros((5, 2)))


def test_attention_is_the_papers_by_columns(rng):
    X, Z, p = rng.normal(size=(L_X, D_X)), rng.normal(size=(L_Z, D_Z)), parameters(rng)
    mask = np.array([[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 0]], dtype=bool)
    np.testing.assert_allclose(formal.attention(X, Z, p, mask), by_columns(X, Z, p, mask), rtol=1e-12)


def test_single_query_attention_is_one_row_of_attention(rng):
    X, Z, p = rng.normal(size=(L_X, D_X)), rng.normal(size=(L_Z, D_Z)), parameters(rng)
    rows = formal.attention(X, Z, p, formal.mask_all(L_X, L_Z))
    for t in range(L_X):
        np.testing.assert_allclose(formal.single_query_attention(X[t], Z, p), rows[t], rtol=1e-12)


def test_a_token_that_sees_nothing_gets_zeros(rng):
    X, Z = rng.normal(size=(1, D_X)), rng.normal(size=(2, D_Z))
    assert formal.attention(X, Z, parameters(rng), [[False, False]]).tolist() == [[0.0] * D_OUT]


def test_mh_attention_stacks_heads_and_projects(rng):
    X, Z, heads = rng.normal(size=(L_X, D_X)), rng.normal(size=(L_Z, D_Z)), [parameters(rng) for _ in range(3)]
    W_o, b_o, mask = rng.normal(size=(4, 3 * D_OUT)), rng.normal(size=4), formal.mask_all(L_X, L_Z)
    stacked = np.hstack([by_columns(X, Z, p, mask) for p in heads])
    ours = formal.mh_attention(X, Z, formal.MultiHeadParameters(heads, W_o, b_o), mask)
    np.testing.assert_allclose(ours, stacked @ W_o.T + b_o, rtol=1e-12, atol=1e-13)


def test_layer_norm_rows_is_torchs_without_eps(rng):
    X, gamma, beta = rng.normal(size=(3, 5)), rng.normal(size=5), rng.normal(size=5)
    theirs = functional.layer_norm(torch.tensor(X), (5,), torch.tensor(gamma), torch.tensor(beta), eps=0.0)
    np.testing.assert_allclose(formal.layer_norm_rows(X, gamma, beta), theirs.numpy(), rtol=1e-12,
                               atol=1e-14)


def test_unembedding_is_a_distribution(rng):
    e, W_u = rng.normal(size=3), rng.normal(size=(6, 3))
    p = formal.unembedding(e, W_u)
    np.testing.assert_allclose(p, torch.softmax(torch.tensor(W_u @ e), 0).numpy(), rtol=1e-13)
    assert p.sum() == pytest.approx(1.0, rel=1e-15)


def test_mask_unidirectional():
    assert formal.mask_unidirectional(3).astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


# ruff: noqa: N806


N_V, L_MAX, D_E, HEADS, D_MLP, D_F = 7, 8, 4, 2, 5, 6
Z, X = [1, 4, 4, 2], [0, 3, 5]


def multi_head(rng):
    shapes = {"W_q": (2, D_E), "b_q": 2, "W_k": (2, D_E), "b_k": 2, "W_v": (2, D_E), "b_v": 2}
    heads = [
        formal.AttentionParameters(**{name: rng.normal(size=shape) for name, shape in shapes.items()})
        for _ in range(HEADS)
    ]
    return formal.MultiHeadParameters(heads, rng.normal(size=(D_E, 2 * HEADS)),
                                      rng.normal(size=D_E))


def drawn(rng, kind, **given):
    """A dataclass with every parameter drawn that is not given, by the shapes of the paper."""
    shapes = {"mlp1": (D_MLP, D_E), "mlp2": (D_E, D_MLP), "mlp3": (D_MLP, D_E), "mlp4": (D_E, D_MLP)}
    values = dict(given)
    for name in kind.__dataclass_fields__:
        if name in values:
            continue
        part = name.partition("_")[2]
        if name in ("attention", "cross"):
            values[name] = multi_head(rng)
        elif part in shapes:
            values[name] = rng.normal(size=shapes[part] if name[0] == "W" else shapes[part][0])
        else:
            values[name] = rng.normal(size=D_E)
    return kind(**values)


@pytest.fixture
def common(rng):
    W_p = [sinusoidal_formal(t, D_E, L_MAX) for t in range(1, L_MAX + 1)]
    return {"W_e": rng.normal(size=(N_V, D_E)), "W_p": np.array(W_p),
            "W_u": rng.normal(size=(N_V, D_E))}


@pytest.fixture
def ed(rng, common):
    encoder = [drawn(rng, formal.LayerParameters) for _ in range(2)]
    return formal.EDParameters(**common, encoder=encoder,
                               decoder=[drawn(rng, formal.DecoderLayerParameters) for _ in range(2)])


@pytest.fixture
def e(rng, common):
    last = {"W_f": rng.normal(size=(D_F, D_E)), "b_f": rng.normal(size=D_F),
            "W_u": rng.normal(size=(N_V, D_F))}
    last |= {"gamma": rng.normal(size=D_F), "beta": rng.normal(size=D_F)}
    return formal.EParameters(**(common | last), layers=[drawn(rng, formal.LayerParameters) for _ in range(2)])


@pytest.fixture
def d(rng, common):
    last = {"gamma": rng.normal(size=D_E), "beta": rng.normal(size=D_E)}
    return formal.DParameters(**common, **last, layers=[drawn(rng, formal.LayerParameters) for _ in range(2)])


# ---- the same in torch's layers ----


def load_attention(module, p):
    for start, weight, bias in ((0, "W_q", "b_q"), (D_E, "W_k", "b_k"), (2 * D_E, "W_v", "b_v")):
        rows = slice(start, start + D_E)
        module.in_proj_weight.data[rows] = torch.tensor(np.vstack([getattr(head, weight) for head in p.heads]))
        module.in_proj_bias.data[rows] = torch.tensor(np.concatenate([getattr(head, bias) for head in p.heads]))
    load(module.out_proj, p.W_o, p.b_o)


def load(module, weight, bias):
    module.weight.data, module.bias.data = torch.tensor(weight), torch.tensor(bias)


def options(activation, norm_first=False):
    return {
        "dropout": 0.0, "activation": activation, "layer_norm_eps": 0.0, "batch_first": True, "norm_first": norm_first,
        "dtype": torch.float64,
    }  # fmt: skip


def encoder_layer(p, activation, norm_first=False):
    layer = torch.nn.TransformerEncoderLayer(D_E, HEADS, D_MLP, **options(activation, norm_first))
    load_attention(layer.self_attn, p.attention)
    load(layer.norm1, p.gamma_1, p.beta_1)
    load(layer.linear1, p.W_mlp1, p.b_mlp1)
    load(layer.linear2, p.W_mlp2, p.b_mlp2)
    load(layer.norm2, p.gamma_2, p.beta_2)
    return layer


def decoder_layer(p):
    layer = torch.nn.TransformerDecoderLayer(D_E, HEADS, D_MLP, **options(functional.relu))
    load_attention(layer.self_attn, p.attention)
    load_attention(layer.multihead_attn, p.cross)
    load(layer.norm1, p.gamma_3, p.beta_3)
    load(layer.norm2, p.gamma_4, p.beta_4)
    load(layer.linear1, p.W_mlp3, p.b_mlp3)
    load(layer.linear2, p.W_mlp4, p.b_mlp4)
    load(layer.norm3, p.gamma_5, p.beta_5)
    return layer


def embedded(x, theta):
    return (torch.tensor(theta.W_e)[torch.tensor(x)] + torch.tensor(theta.W_p)[: len(x)])[None]


def future(length):
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def distributions(states, theta):
    return torch.softmax(states[0] @ torch.tensor(theta.W_u).T, -1).detach().numpy()


def norm(states, theta):
    return functional.layer_norm(states, states.shape[-1:], torch.tensor(theta.gamma), torch.tensor(theta.beta), 0.0)


def assert_close(ours, theirs):
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-13)


def test_ed_transformer_is_torchs_layers(ed):
    source, target = embedded(Z, ed), embedded(X, ed)
    for p in ed.encoder:
        source = encoder_layer(p, functional.relu)(source)
    for p in ed.decoder:
        target = decoder_layer(p)(target, source, tgt_mask=future(len(X)))
    assert_close(formal.ed_transformer(Z, X, ed), distributions(target, ed))


def test_e_transformer_is_torchs_layers(e):
    states = embedded(Z, e)
    for p in e.layers:
        states = encoder_layer(p, functional.gelu)(states)
    states = norm(functional.gelu(functional.linear(states, torch.tensor(e.W_f), torch.tensor(e.b_f))), e)
    assert_close(formal.e_transformer(Z, e), distributions(states, e))


def test_d_transformer_is_torchs_layers(d):
    states = embedded(Z, d)
    for p in d.layers:
        states = encoder_layer(p, functional.gelu, norm_first=True)(states, src_mask=future(len(Z)))
    assert_close(formal.d_transformer(Z, d), distributions(norm(states, d), d))


# ---- what the paper promises ----


def test_every_row_is_a_distribution(ed, e, d):
    for P in (formal.ed_transformer(Z, X, ed), formal.e_transformer(X, e), formal.d_transformer(X, d)):
        assert P.shape == (len(X), N_V)
        np.testing.assert_allclose(P.sum(1), 1.0, rtol=1e-14)
        assert (P > 0).all()


def test_decoders_are_causal_and_the_encoder_is_not(ed, e, d):
    changed = [*Z[:2], 6, 6]
    np.testing.assert_allclose(formal.d_transformer(Z, d)[:2], formal.d_transformer(changed, d)[:2], rtol=1e-13)
    np.testing.assert_allclose(formal.ed_transformer(X, Z, ed)[:2], formal.ed_transformer(X, changed, ed)[:2],
                               rtol=1e-13)
    assert not np.allclose(formal.d_transformer(Z, d)[2:], formal.d_transformer(changed, d)[2:])
    assert not np.allclose(formal.e_transformer(Z, e)[:2], formal.e_transformer(changed, e)[:2])


def test_the_decoder_sees_all_of_the_source(ed):
    assert not np.allclose(formal.ed_transformer([*Z[:3], 6], X, ed)[0], formal.ed_transformer(Z, X, ed)[0])


def test_without_positions_the_encoder_is_permutation_equivariant(e):
    bare = formal.EParameters(**(vars(e) | {"W_p": np.zeros((L_MAX, D_E))}))
    tokens, order = [1, 4, 0, 2], [2, 0, 3, 1]
    permuted = [tokens[i] for i in order]
    np.testing.assert_allclose(formal.e_transformer(permuted, bare), formal.e_transformer(tokens, bare)[order],
                               rtol=1e-11)
    assert not np.allclose(formal.e_transformer(permuted, e), formal.e_transformer(tokens, e)[order])


def test_one_w_e_serves_both_sequences(ed):
    W_e = np.array(ed.W_e)
    W_e[1] += 1.0  # token 1 is in the source alone
    changed = formal.EDParameters(**(vars(ed) | {"W_e": W_e}))
    assert not np.allclose(formal.ed_transformer(Z, X, changed), formal.ed_transformer(Z, X, ed))


# ---- losses ----


def test_next_token_losses_are_torchs_cross_entropy(ed, d):
    for P, loss in ((formal.ed_transformer(Z, X, ed), formal.ed_loss(Z, X, ed)),
                    (formal.d_transformer(X, d), formal.d_loss(X, d))):
        theirs = functional.cross_entropy(torch.tensor(P).log()[:-1], torch.tensor(X[1:]), reduction="sum")
        assert loss == pytest.approx(float(theirs), rel=1e-12)


def test_the_losses_of_one_token_are_zero(d):
    assert formal.d_loss([3], d) == 0.0


def test_e_loss_is_on_the_masked_tokens_only(e):
    chosen = [False, True, False, True]
    P = torch.tensor(formal.e_transformer([1, 6, 4, 6], e)).log()
    assert formal.e_loss(Z, chosen, 6, e) == pytest.approx(-float(P[1, 4] + P[3, 2]), rel=1e-12)
    assert formal.e_loss(Z, [False] * 4, 6, e) == 0.0


def test_choose_masked_follows_its_probability(rng):
    assert formal.choose_masked(5, 0.0, rng) == [False] * 5
    assert formal.choose_masked(5, 1.0, rng) == [True] * 5
    assert np.mean(formal.choose_masked(4000, 0.15, rng)) == pytest.approx(0.15, abs=0.03)


# ---- inference ----


def test_temper_by_hand():
    p = [0.5, 0.25, 0.25]
    np.testing.assert_allclose(formal.apply_temperature(p, 1.0), p, rtol=1e-15)
    np.testing.assert_allclose(formal.apply_temperature(p, 0.5), [4 / 6, 1 / 6, 1 / 6], rtol=1e-15)
    assert formal.apply_temperature([0.25, 0.5, 0.25], 0.0).tolist() == [0.0, 1.0, 0.0]
    assert formal.apply_temperature([0.4, 0.2, 0.4], 0.0).tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(formal.apply_temperature(p, 1e6), [1 / 3] * 3, rtol=1e-5)
    assert formal.apply_temperature([1e-200, 2e-200], 0.01)[1] == pytest.approx(1.0)
    with pytest.raises(ValueError, match="negative"):
        formal.apply_temperature(p, -1.0)


# A model that counts: without layers, the state is the embedding of the last token v, and v + 1 is the likeliest.
COUNTING = {"W_e": np.eye(N_V), "W_p": np.zeros((L_MAX, N_V)), "W_u": np.roll(np.eye(N_V), 1, axis=0)}


def test_d_inference_at_zero_temperature_takes_the_likeliest_each_time(rng):
    counting = formal.DParameters(**COUNTING, layers=[], gamma=np.ones(N_V), beta=np.zeros(N_V))
    assert formal.d_inference([3, 5], 4, 0.0, counting, rng) == [6, 0, 1, 2]
    assert formal.d_inference([3, 5], 0, 0.0, counting, rng) == []


def test_d_inference_samples_what_the_model_says(rng, d):
    tau = 1.5
    draws = [formal.d_inference([1], 1, tau, d, rng)[-1] for _ in range(1500)]
    counted = np.bincount(draws, minlength=N_V) / len(draws)
    np.testing.assert_allclose(counted, formal.apply_temperature(formal.d_transformer([1], d)[-1], tau), atol=0.05)


def test_inference_is_the_same_for_the_same_generator(d):
    runs = [formal.d_inference([1], 5, 1.0, d, np.random.default_rng(4)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_ed_inference_writes_from_bos_until_eos_or_the_limit(rng):
    counting = formal.EDParameters(**COUNTING, encoder=[], decoder=[])
    assert formal.ed_inference(Z, 0.0, counting, rng, bos=1, eos=4, limit=6) == [1, 2, 3, 4]
    assert formal.ed_inference(Z, 0.0, counting, rng, bos=1, eos=4, limit=3) == [1, 2, 3, 4]
    assert formal.ed_inference(Z, 0.0, counting, rng, bos=1, eos=4, limit=2) == [1, 2, 3]
    assert formal.ed_inference(Z, 0.0, counting, rng, bos=1, eos=4, limit=0) == [1]


@pytest.mark.thorough
def test_ed_inference_reads_its_source(rng, ed):
    draws = [formal.ed_inference(Z, 1.0, ed, rng, bos=0, eos=2, limit=1)[1] for _ in range(800)]
    np.testing.assert_allclose(np.bincount(draws, minlength=N_V) / 800, formal.ed_transformer(Z, [0], ed)[0], atol=0.07)


def test_probabilities_of_all_continuations_sum_to_one(d):
    total = 0.0
    for a, b in itertools.product(range(N_V), repeat=2):
        P = formal.d_transformer([1, a, b], d)
        total += P[0, a] * P[1, b]
    assert total == pytest.approx(1.0, rel=1e-12)
