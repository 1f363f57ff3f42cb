"""Desks: a state goes in and comes out the same; steps are those of the model; what cannot be done is said."""

import pytest
import torch
from problems import assert_close
from tiny import LANGUAGE, TRANSLATING, built

from regard.decoding.static_state import StaticBuffers, why_no_static_step
from regard.mixer import RowGroups
from regard.tokens import Tokens


def started(width=2):
    """A Transformer, and the state of two families after a token."""
    model = built(TRANSLATING["attention"])
    memory = model.encode(Tokens.of([[5, 6, 7], [8]]))
    state = model.start(memory, rows=2, capacity=9)
    each = torch.arange(2).repeat_interleave(width)
    logits, state, _ = model.step(state, torch.tensor([[1], [1]]))
    return model, state.pick(RowGroups(each, width, 1, each[::width])), logits[each, -1]


@torch.no_grad()
def test_a_step_is_that_of_the_model_and_rows_beyond_change_nothing():
    model, state, logits = started()
    desk = StaticBuffers(model, state, families=4, width=2, capacity=12, sources=5)
    assert desk.load(state) == 1
    desk.put_logits(logits)
    assert_close(desk.logits[:4], logits)
    parents, tokens = torch.tensor([1, 0, 3, 3, 4, 4, 6, 6]), torch.tensor([4, 5, 6, 7, 0, 0, 0, 0])
    for places in (8, 12):
        desk.step(parents, tokens, places)
        logits, state, _ = model.step(state.pick(RowGroups(parents[:4], 2, 2)), tokens[:4].unsqueeze(-1))
        assert_close(desk.logits[:4], logits[:, -1])
    kept = desk.state(torch.tensor([1, 0]), 3, 9)
    assert kept.positions.tolist() == [3] * 4
    logits, _, _ = model.step(kept, tokens[:4].unsqueeze(-1))
    expected, _, _ = model.step(state, tokens[[2, 3, 0, 1]].unsqueeze(-1))
    assert_close(logits, expected[[2, 3, 0, 1]])


@torch.no_grad()
def test_rows_that_are_full_stay_within_the_storage():
    model, state, _ = started(1)
    desk = StaticBuffers(model, state, families=2, width=1, capacity=3, sources=3)
    desk.load(state)
    for _ in range(6):
        desk.step(None, torch.tensor([4, 5]), 3)
    assert desk.positions.tolist() == [3, 3]
    assert desk.logits.isfinite().all()


def test_what_is_in_the_way_is_said():
    model, state, _ = started()
    assert why_no_static_step(model, state) is None
    with model.decoder.stack.blocks[0].cross.tap.listen(print):
        assert "listens" in why_no_static_step(model, state)
    handle = model.output.register_forward_hook(lambda *given: None)
    assert "hooks" in why_no_static_step(model, state)
    handle.remove()
    assert why_no_static_step(model, state) is None
    memory = model.encode(Tokens.of([[5, 6, 7], [8]]))
    assert "looked at" in why_no_static_step(model, model.start(memory, capacity=3, cross=True))


@pytest.mark.parametrize(("name", "reason"), [
    ("alibi", "bias of position"), ("window", "all tokens before"), ("recurrence", "do more"), ("lstmn", "do more")])
def test_other_blocks_are_in_the_way(name, reason):
    model = built(LANGUAGE[name])
    assert reason in why_no_static_step(model, model.start(rows=1, capacity=3))


def test_models_of_another_kind_are_in_the_way():
    model = built(TRANSLATING["seq2seq"])
    state = model.start(model.encode(Tokens.of([[5, 6]])), capacity=3)
    assert "stack of blocks" in why_no_static_step(model, state)
