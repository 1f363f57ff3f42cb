"""Steps that go on from each other are the rows of one map, equal to that of all tokens at once."""

import pytest
import tiny
import torch

import regard
from regard.tokens import Tokens

SOURCE, IDS = Tokens.of([[1, 2, 3, 4, 5], [6, 7, 3]]), torch.tensor([[1, 2, 3, 4, 5, 6], [4, 5, 6, 7, 8, 2]])
STEPPED = ["attention", "rotary", "alibi", "relative", "bucketed", "window", "additive", "bilinear", "lstmn"]


def stepped(model, sizes, memory=None):
    """Read the ids in chunks of these sizes."""
    state = model.start(memory, rows=2, capacity=8)
    for chunk in IDS[:, :sum(sizes)].split(sizes, dim=1):
        _, state, _ = model.step(state, chunk)


def assert_alike(one, other):
    assert one.names() == other.names()
    for name in one.names():
        torch.testing.assert_close(one[name].weights(), other[name].weights(), rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(one[name].entropy(), other[name].entropy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mixer", STEPPED)
@pytest.mark.parametrize("sizes", [[1] * 6, [3, 1, 1, 1]], ids=["tokens", "a prompt and tokens"])
def test_a_language_model_step_by_step(mixer, sizes):
    model = tiny.built(tiny.language(mixer))
    with regard.watch(model) as steps:
        stepped(model, sizes)
    with regard.watch(model) as whole:
        model(Tokens(IDS))
    assert len(steps.calls) == 1
    assert_alike(steps, whole)


@pytest.mark.parametrize("name", ["attention", "lstmn", "recurrence", "seq2seq-attention", "seq2seq-projected"])
def test_a_translator_step_by_step(name):
    model = tiny.built(tiny.TRANSLATING[name])
    with regard.watch(model) as steps:
        stepped(model, [1] * 6, model.encode(SOURCE))
    with regard.watch(model) as whole:
        model(SOURCE, Tokens(IDS))
    assert len(steps.calls) == 1
    assert_alike(steps, whole)


def test_another_start_is_another_call():
    model = tiny.built(tiny.TRANSLATING["seq2seq-attention"])
    memory = model.encode(SOURCE)
    with regard.watch(model) as seen:
        for count in (2, 3):
            stepped(model, [1] * count, memory)
    assert [call["decoder.cross"].weights().shape[-2] for call in seen.calls] == [2, 3]


@pytest.mark.parametrize("mixer", ["attention", "lstmn"])
def test_rows_that_were_replaced_do_not_go_on(mixer):
    model = tiny.built(tiny.language(mixer))
    state, other = (model.start(rows=2, capacity=8) for _ in range(2))
    _, other, _ = model.step(other, IDS[:, 4:])
    with regard.watch(model) as seen:
        _, state, _ = model.step(state, IDS[:, :1])
        _, state, _ = model.step(state, IDS[:, 1:2])
        state = state.put([1], other.pick([0]))
        _, state, _ = model.step(state, IDS[:, 2:3])
    shapes = [tuple(call["decoder.0.self"].weights().shape[-2:]) for call in seen.calls]
    assert shapes[0] == (2, 2)
    assert len(shapes) == 2


def test_rows_that_changed_places_do_not_go_on():
    """Both end with the same token, so in the lowest layer their last keys are equal."""
    model = tiny.built(tiny.language(embedding="sinusoidal"))
    _, state, _ = model.step(model.start(rows=2, capacity=8), torch.tensor([[1, 5], [2, 5]]))
    with regard.watch(model) as seen:
        _, state, _ = model.step(state, torch.tensor([[5], [5]]))
        for cache in (block.mixer for block in state.stack.blocks):
            cache.key.copy_(cache.key.flip(0))
        model.step(state, torch.tensor([[6], [7]]))
    assert len(seen.calls) == 2


def test_what_a_cache_holds_later_does_not_change_what_was_seen():
    model = tiny.built(tiny.language())
    state = model.start(rows=2, capacity=6)
    with regard.watch(model) as seen:
        _, state, _ = model.step(state, IDS)
    before = seen["decoder.0.self"].weights()
    state.put([0, 1], model.step(model.start(rows=2, capacity=6), IDS.flip(1))[1])
    assert torch.equal(seen["decoder.0.self"].weights(), before)


def test_a_chunk_after_others_is_a_call_of_its_own():
    model = tiny.built(tiny.language())
    with regard.watch(model) as seen:
        stepped(model, [2, 3])
    assert [tuple(call["decoder.0.self"].weights().shape[-2:]) for call in seen.calls] == [(2, 2), (3, 5)]


def test_the_same_input_twice_is_two_calls():
    layer, x = regard.PlainAttention(4), torch.randn(1, 1, 4)
    with regard.watch(layer) as seen:
        layer(x)
        layer(x)
    assert len(seen.calls) == 2


def test_a_search_over_a_bare_model_is_seen_and_not_changed():
    model = tiny.built(tiny.translating())
    memory = model.encode(SOURCE)
    plain = regard.beam(model, memory, prompts=[[1]] * 2, end=[2], limit=4, beams=3)
    with regard.watch(model) as seen:
        watched = regard.beam(model, memory, prompts=[[1]] * 2, end=[2], limit=4, beams=3)
    assert [[one.ids for one in row] for row in watched] == [[one.ids for one in row] for row in plain]
    assert "decoder.1.cross" in seen
