"""Batches of few shapes: what is filled up changes no loss and no gradient of any model."""

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches.batch import Batch, FittedCollator, fit_batch, pack_sequences, pad_sequences
from regard.data.batches.plan import BatchShape
from regard.data.store import Ragged
from regard.tokens import IGNORED_LABEL, Tokens
from regard.training.loss import token_loss

SIZES = [(3, 2), (1, 1), (5, 4)]


def drawn(sizes=SIZES, vocabulary=tiny.SOURCE, layout=pad_sequences):
    """A batch of pairs of these lengths; their ids and labels are drawn."""
    chance = np.random.default_rng(0)
    parts = []
    for lengths in np.array(sizes, np.int64).reshape(-1, 2)[:, [0, 1, 1]].T:
        parts.append(Ragged(chance.integers(3, vocabulary, lengths.sum()), lengths))
    source, inputs, labels = (layout(part, fill) for part, fill in zip(parts, (0, 0, IGNORED_LABEL), strict=True))
    return Batch(source, inputs, labels.ids, np.arange(len(sizes)), int(parts[2].lengths.sum()))


def of_one_side(batch):
    return Batch(None, batch.inputs, batch.labels, batch.numbers, batch.tokens)


def shape(batch):
    sides = [batch.inputs] if batch.source is None else [batch.source, batch.inputs]
    assert {side.rows for side in sides} == {batch.rows}
    return BatchShape(batch.rows, tuple(side.ids.shape[1] for side in sides))


def rows(tokens):
    return [row[:length].tolist() for row, length in zip(tokens.ids, tokens.lengths.tolist(), strict=True)]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), max_size=6),
       st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8)), max_size=5))
def test_a_batch_gets_the_smallest_shape_that_contains_it(sizes, shapes):
    batch, shapes = drawn(sizes), [BatchShape(count, (source, target)) for count, source, target in shapes]
    own, found = shape(batch), fit_batch(batch, shapes, padding=9)
    containing = [one for one in shapes if one.rows >= own.rows and one.lengths[0] >= own.lengths[0]
                  and one.lengths[1] >= own.lengths[1]]
    if containing:
        assert shape(found) in containing
        assert shape(found).tokens == min(one.rows * sum(one.lengths) for one in containing)
    else:
        whole = [shape(found).rows, *shape(found).lengths]
        assert all(number % 8 == 0 for number in whole)
        assert all(number - 8 < least <= number
                   for number, least in zip(whole, [own.rows, *own.lengths], strict=True))
    more = [[]] * (found.rows - batch.rows)
    assert rows(found.source) == rows(batch.source) + more
    assert rows(found.inputs) == rows(batch.inputs) + more
    there = torch.arange(found.inputs.ids.shape[1]) < found.inputs.lengths.unsqueeze(-1)
    assert torch.equal(found.labels != IGNORED_LABEL, there)
    assert found.labels[there].tolist() == batch.labels[batch.labels != IGNORED_LABEL].tolist()
    assert (found.tokens, found.numbers.tolist()) == (batch.tokens, batch.numbers.tolist())


def test_what_is_added_is_padding():
    found = fit_batch(drawn(), [BatchShape(4, (6, 5))], padding=9)
    assert found.source.ids[:3, 5:].tolist() == [[9]] * 3
    assert found.inputs.ids[:3, 4:].tolist() == [[9]] * 3
    assert found.source.ids[3].tolist() == [9] * 6
    assert found.source.lengths.tolist() == [3, 1, 5, 0]
    assert found.labels[3].tolist() == [IGNORED_LABEL] * 5


def test_rows_that_are_all_full_get_lengths():
    ids = torch.tensor([[1, 2], [3, 4]])
    batch = Batch(None, Tokens(ids, segments=ids), ids, np.arange(2), 4)
    found = fit_batch(batch, [BatchShape(3, (3,))])
    assert found.inputs.lengths.tolist() == [2, 2, 0]
    assert found.inputs.segments.tolist() == [[1, 2, 0], [3, 4, 0], [0, 0, 0]]


def losses(model, batch, weight):
    """The loss of a batch, and the gradients of all parameters."""
    model.zero_grad()
    if batch.source is None:
        states = model.features(batch.inputs)
    else:
        states = model.features(batch.source, batch.inputs)
    loss = token_loss(states, model.output, batch.labels, 0.1)
    (loss.total * weight).backward()
    return [loss.total.detach(), loss.nll, loss.tokens, *(parameter.grad for parameter in model.parameters())]


def assert_the_same(model, batch, shape):
    plain, filled = (losses(model, one, 0.3) for one in (batch, fit_batch(batch, [shape])))
    for name, one, other in zip(["total", "nll", "tokens", *dict(model.named_parameters())], plain, filled,
                                strict=True):
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", tiny.TRANSLATING)
def test_it_changes_no_loss_and_no_gradient_of_pairs(name):
    assert_the_same(tiny.built(tiny.TRANSLATING[name]).train(), drawn(), BatchShape(7, (8, 6)))


@pytest.mark.parametrize("name", tiny.LANGUAGE)
def test_it_changes_no_loss_and_no_gradient_of_texts(name):
    assert_the_same(tiny.built(tiny.LANGUAGE[name]).train(), of_one_side(drawn()), BatchShape(7, (6,)))


@pytest.mark.parametrize("name", ["masked", "masked wide"])
def test_it_changes_no_loss_and_no_gradient_of_masked_texts(name):
    assert_the_same(tiny.built(tiny.READING[name]).train(), of_one_side(drawn()), BatchShape(7, (6,)))


@pytest.mark.parametrize("name", ["attention", "seq2seq-attention"])
def test_single_precision(name):
    model = tiny.built(tiny.TRANSLATING[name]).float().train()
    batch = drawn()
    plain, filled = (losses(model, one, 1.0) for one in (batch, fit_batch(batch, [BatchShape(7, (8, 6))])))
    for one, other in zip(plain, filled, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["attention", "rotary", "lstmn", "convolution", "seq2seq", "seq2seq-attention"])
def test_nothing_but_rows_without_tokens_is_zero_with_zero_gradients(name):
    model = tiny.built(tiny.TRANSLATING[name]).train()
    batch = fit_batch(drawn([]), [BatchShape(2, (3, 4)), BatchShape(1, (9, 9))])
    assert shape(batch) == BatchShape(2, (3, 4))
    loss, nll, tokens, *gradients = losses(model, batch, 1.0)
    assert (loss.item(), nll.item(), tokens.item(), batch.tokens) == (0.0, 0.0, 0, 0)
    assert all((gradient == 0).all() for gradient in gradients if gradient is not None)


def test_a_maker_of_fitted_batches():
    batch = drawn()
    asked = []
    maker = FittedCollator(lambda *given: asked.append(given) or batch, (BatchShape(4, (6, 5)),), 7)
    found = maker(np.arange(3), 5)
    assert shape(found) == BatchShape(4, (6, 5))
    assert found.inputs.ids[3].tolist() == [7] * 5
    assert [epoch for _, epoch in asked] == [5]


def test_what_has_no_rows_to_fill_up():
    tokens = Tokens(torch.zeros(1, 2).long(), torch.tensor([1]), "left")
    batch = Batch(None, tokens, torch.zeros(1, 2), np.arange(1), 1)
    with pytest.raises(ValueError, match="`batch` must be padded on the right, or packed, but is"):
        fit_batch(batch, [BatchShape(8, (8, 8))])


def sequences(tokens):
    return [piece.tolist() for piece in tokens.ids[0].split(tokens.lengths.tolist())]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), max_size=6), st.integers(0, 20), st.integers(0, 40),
       st.integers(0, 40))
def test_packed_sequences_are_followed_by_some_that_fill_up(sizes, count, source, target):
    """None of those is longer than the longest, so that they need no position that is not there."""
    batch = drawn(sizes, layout=pack_sequences)
    found = fit_batch(batch, [BatchShape(count, (source, target)), BatchShape(5000, (1000, 1000))], padding=9)
    assert shape(found) in (BatchShape(count, (source, target)), BatchShape(5000, (1000, 1000)))
    for mine, theirs in ((found.source, batch.source), (found.inputs, batch.inputs)):
        assert sequences(mine)[:batch.rows] == sequences(theirs)
        assert {id_ for sequence in sequences(mine)[batch.rows:] for id_ in sequence} <= {9}
        even = -(-mine.ids.shape[1] // max(1, mine.rows))  # where nothing tells how long a sequence may be
        longest = max(theirs.lengths.tolist(), default=even)
        assert all(length <= max(1, longest) for length in mine.lengths[batch.rows:].tolist())
    assert found.labels[0, :batch.labels.shape[1]].tolist() == batch.labels[0].tolist()
    assert set(found.labels[0, batch.labels.shape[1]:].tolist()) <= {IGNORED_LABEL}
    assert found.tokens == batch.tokens


def test_packed_sequences_that_were_not_foreseen():
    found = fit_batch(drawn(layout=pack_sequences), [BatchShape(20, (1, 100))])
    assert shape(found) == BatchShape(512, (256, 256))


@pytest.mark.parametrize("name", ["attention", "rotary", "post-norm"])
def test_what_fills_packed_rows_up_changes_neither_loss_nor_gradient(name):
    batch = drawn(layout=pack_sequences)
    whole = fit_batch(batch, [BatchShape(12, (16, 24))])
    results = []
    for given_batch in (batch, whole):
        model = tiny.built(tiny.TRANSLATING[name])
        loss = token_loss(model.features(given_batch.source, given_batch.inputs), model.output, given_batch.labels, 0.1)
        loss.total.backward()
        results.append((loss.total.detach(), {key: one.grad for key, one in model.named_parameters()}))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-12, atol=1e-12)
    for key, gradient in results[0][1].items():
        torch.testing.assert_close(gradient, results[1][1][key], rtol=1e-9, atol=1e-10, msg=key)


@pytest.mark.parametrize("name", ["attention", "rotary", "post-norm"])
def test_a_packed_batch_without_sequences_has_the_planned_shape_and_teaches_nothing(name):
    """What a process gets where an epoch ends unevenly: the shape of all others, so that nothing is recorded anew."""
    batch = fit_batch(drawn([], layout=pack_sequences), [BatchShape(70, (128, 192))])
    assert shape(batch) == BatchShape(70, (128, 192))
    assert [side.lengths.max().item() for side in (batch.source, batch.inputs)] == [2, 3]
    loss, nll, tokens, *gradients = losses(tiny.built(tiny.TRANSLATING[name]).train(), batch, 1.0)
    assert (loss.item(), nll.item(), tokens.item(), batch.tokens) == (0.0, 0.0, 0, 0)
    assert all((gradient == 0).all() for gradient in gradients if gradient is not None)
