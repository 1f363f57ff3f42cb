"""Encoder-decoder against the same equations put together from torch's cells."""

# ruff: noqa: N806

from functools import partial

import numpy as np
import pytest
import torch

from regard.reference import attention, recurrence, seq2seq

D, E, H, V = 3, 2, 4, 5  # source width, target width, state, vocabulary
START, TARGETS = 4, [2, 0, 3]


@pytest.fixture
def rng():
    return np.random.default_rng(9)


def lstm_parameters(cell):
    values = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    return dict(zip(("W_ih", "W_hh", "b_ih", "b_hh"), (v.detach().numpy() for v in values), strict=True))


@pytest.fixture
def model(rng):
    """torch's cells, and the same model for the oracle. The source is padded with NaN after three words."""
    torch.set_default_dtype(torch.float64)
    encoder, decoder = torch.nn.LSTMCell(D, H), torch.nn.LSTMCell(E + H, H)
    table, W_s, b_s = rng.normal(size=(V, E)), rng.normal(size=(H, H)), rng.normal(size=H)
    W_o = rng.normal(size=(V, 2 * H))
    xs = np.vstack([rng.normal(size=(3, D)), np.full((2, D), np.nan)])
    parts = {
        "embed": lambda word: table[word],
        "encoder": partial(recurrence.lstm_step_torch, **lstm_parameters(encoder)),
        "h_0": (np.zeros(H), np.zeros(H)),
        "initial": lambda h: (seq2seq.initial_from_last(h, W_s, b_s), np.zeros(H)),
        "decoder": seq2seq.concatenating_cell(partial(recurrence.lstm_step_torch, **lstm_parameters(decoder))),
        "readout": lambda s, c: W_o @ np.concatenate([s, c]),
    }
    return xs, parts, (encoder, decoder, *map(torch.tensor, (table, W_s, b_s, W_o)))


def torch_model(xs, parts, score=None):
    """The two models in one loop: the context stands still without a score."""
    encoder, decoder, table, W_s, b_s, W_o = parts
    h = c = torch.zeros(H)
    states = []
    for x in torch.tensor(xs[:3]):
        h, c = encoder(x, (h, c))
        states.append(h)
    states = torch.stack(states)
    s, c, context, logits, rows = torch.tanh(W_s @ h + b_s), torch.zeros(H), h, [], []
    for word in [START, 2, 0]:
        if score is not None:
            rows.append(torch.softmax(score(s, states), 0))
            context = rows[-1] @ states
        s, c = decoder(torch.cat([table[word], context]), (s, c))
        logits.append(W_o @ torch.cat([s, context]))
    return torch.stack(logits).detach().numpy(), rows


def test_shift_right_gives_every_step_the_word_before():
    assert seq2seq.shift_right([7, 8, 9], 1) == [1, 7, 8]
    assert seq2seq.shift_right([7], 1) == [1]
    assert seq2seq.shift_right([], 1) == []


def test_initial_states(rng):
    hs, W, b = rng.normal(size=(3, H)), rng.normal(size=(2, H)), rng.normal(size=2)
    np.testing.assert_allclose(seq2seq.initial_from_last(hs[-1], W, b), np.tanh(W @ hs[2] + b), rtol=1e-13)
    np.testing.assert_allclose(seq2seq.initial_from_mean(hs, W, b), np.tanh(W @ hs.mean(0) + b), rtol=1e-13)
    np.testing.assert_allclose(seq2seq.initial_from_mean(hs, W, activation=lambda x: x), W @ hs.mean(0), rtol=1e-13)


def test_without_attention(model):
    xs, parts, theirs = model
    logits = seq2seq.encoder_decoder(xs, 3, TARGETS, START, **parts)
    np.testing.assert_allclose(logits, torch_model(xs, theirs)[0], rtol=1e-12, atol=1e-13)


def test_with_attention(rng, model):
    xs, parts, theirs = model
    W1, W2, w = rng.normal(size=(6, H)), rng.normal(size=(6, H)), rng.normal(size=6)

    def score(s, k):
        return attention.mlp_score(s, k, W1, W2, w)

    def torch_score(s, states):
        return torch.tanh(torch.tensor(W1) @ s + states @ torch.tensor(W2).T) @ torch.tensor(w)

    logits, rows = seq2seq.encoder_decoder_attending(xs, 3, TARGETS, START, **parts, score=score)
    expected, expected_rows = torch_model(xs, theirs, torch_score)
    np.testing.assert_allclose(logits, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(rows, torch.stack(expected_rows).detach().numpy(), rtol=1e-12)


def test_attention_reads_the_state_before_the_step():
    # The state counts steps: the first row must be scored with s_0 = 0, so that it looks everywhere alike.
    logits, states, rows = seq2seq.decode_attending(
        lambda y, s, c: s + 1.0, np.zeros((2, 1)), np.zeros(1), [[1.0], [2.0]], attention.dot, lambda s, c: c
    )
    assert rows[0].tolist() == [0.5, 0.5]
    assert rows[1].tolist() == attention.softmax([1.0, 2.0], [True, True]).tolist()
    assert logits[0].tolist() == [1.5]
    assert states[1].tolist() == [2.0]


def test_a_later_target_does_not_change_earlier_logits(model):
    xs, parts, _ = model
    before = seq2seq.encoder_decoder(xs, 3, TARGETS, START, **parts)
    after = seq2seq.encoder_decoder(xs, 3, [2, 1, 1], START, **parts)
    assert before[:2].tolist() == after[:2].tolist()
    assert before[2].tolist() != after[2].tolist()
