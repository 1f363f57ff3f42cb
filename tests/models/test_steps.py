"""Step by step gives what all at once gives, for every model; states can be picked, put and carried on."""

import pytest
import torch
from tiny import LANGUAGE, LONGEST, SOURCE, TARGET, TRANSLATING, built

from regard.tokens import Tokens

WRITING = {**{f"translating {name}": config for name, config in TRANSLATING.items()},
           **{f"language {name}": config for name, config in LANGUAGE.items()}}
every = pytest.mark.parametrize("config", WRITING.values(), ids=WRITING)


def ids(count, rows=3, top=SOURCE):
    return torch.randint(min(top, TARGET), (rows, count))


def memory_of(model, rows=3):
    """A memory of sources of different lengths; None for a language model."""
    if not hasattr(model, "encode"):
        return None
    return model.encode(Tokens(ids(5, rows), torch.tensor([5, 2, 4])[:rows]))


def assert_close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)


@every
@pytest.mark.parametrize("chunks", [(1,) * 7, (3, 4), (1, 5, 1), (7,)], ids=str)
def test_step_by_step_equals_all_at_once(config, chunks):
    model = built(config)
    memory, target = memory_of(model), ids(7)
    want = model.decode(Tokens(target), memory)
    state, logits = model.start(memory, rows=3, capacity=LONGEST), []
    for chunk in target.split(chunks, dim=1):
        step = model.step(state, chunk)
        logits.append(step.logits)
        state = step.state
    assert_close(torch.cat(logits, dim=1), want)
    assert state.positions.tolist() == [7, 7, 7]


@every
def test_rows_have_their_own_positions(config):
    model = built(config)
    memory, target, first, second = memory_of(model), ids(9), torch.tensor([2, 4, 0]), torch.tensor([3, 1, 5])
    want = model.decode(Tokens(target), memory)
    state = model.step(model.start(memory, rows=3, capacity=LONGEST), target[:, :4], first).state
    following = torch.stack([row[start:start + 5] for row, start in zip(target, first, strict=True)])
    step = model.step(state, following, second)
    assert step.state.positions.tolist() == [5, 5, 5]
    for b in range(3):
        assert_close(step.logits[b, :second[b]], want[b, first[b]:first[b] + second[b]])
    assert_close(model.step(step.state, target[:, 5:6]).logits, want[:, 5:6])


@every
def test_states_can_be_picked_replaced_and_copied(config):
    model = built(config)
    memory, target = memory_of(model), ids(6)
    want = model.decode(Tokens(target), memory)

    def begun(count, rows=(0, 1, 2)):
        own = None if memory is None else memory.pick(list(rows))
        return model.step(model.start(own, rows=len(rows), capacity=LONGEST), target[list(rows), :count]).state

    assert_close(model.step(begun(4).pick([2, 0, 2, 1]), target[[2, 0, 2, 1], 4:5]).logits, want[[2, 0, 2, 1], 4:5])
    state = begun(3)
    kept = state.copy()
    model.step(state, target[:, 3:])
    assert_close(model.step(kept, target[:, 3:5]).logits, want[:, 3:5])
    # A finished row is replaced by another sentence, which stands at another place.
    state = begun(5).put([1], begun(2, (0,)))
    assert state.positions.tolist() == [5, 2, 5]
    following = torch.stack([target[0, 5], target[0, 2], target[2, 5]]).unsqueeze(1)
    assert_close(model.step(state, following).logits, torch.stack([want[0, 5], want[0, 2], want[2, 5]]).unsqueeze(1))


@pytest.mark.parametrize("name", [name for name in TRANSLATING if name != "seq2seq"])
def test_cross_attention_is_given_where_asked_for(name):
    model = built(TRANSLATING[name])
    memory, target = memory_of(model), ids(4)
    assert model.step(model.start(memory, capacity=4), target).cross is None
    step = model.step(model.start(memory, capacity=4, cross=True), target)
    layers, heads = (1, 1) if name.startswith("seq2seq") else (2, 2)
    assert step.cross.shape == (3, layers, heads, 4, 5)
    assert (step.cross[1, ..., 2:] == 0).all()
    assert_close(step.cross.sum(-1), torch.ones(3, layers, heads, 4).double())
    assert_close(step.logits, model.decode(Tokens(target), memory))


@every
def test_a_prompt_of_no_tokens_changes_nothing(config):
    model = built(config)
    memory, target = memory_of(model), ids(2)
    step = model.step(model.start(memory, rows=3, capacity=4), target[:, :0])
    assert step.logits.shape == (3, 0, model.decode(Tokens(target), memory).shape[-1])
    assert_close(model.step(step.state, target).logits, model.decode(Tokens(target), memory))


def test_storage_is_allocated_once():
    model = built(LANGUAGE["attention"])
    state = model.start(rows=2, capacity=6)
    first = state.stack.blocks[0].mixer.key.data_ptr()
    for _ in range(6):
        state = model.step(state, ids(1, 2)).state
    assert state.stack.blocks[0].mixer.key.data_ptr() == first
    with pytest.raises(ValueError, match="`capacity` must be at least 7, for 1 tokens after 6, but is 6"):
        model.step(state, ids(1, 2))


def test_missing_arguments_are_named():
    translator, writer = built(TRANSLATING["attention"]), built(LANGUAGE["attention"])
    with pytest.raises(ValueError, match=r"`memory` .* encode"):
        translator.start(capacity=4)
    with pytest.raises(ValueError, match=r"`rows` .* memory, 3, but is 2"):
        translator.start(memory_of(translator), rows=2, capacity=4)
    with pytest.raises(ValueError, match="`rows` must be"):
        writer.start(capacity=4)
    with pytest.raises(ValueError, match="`memory` must be None"):
        writer.start(memory_of(translator), rows=3, capacity=4)
    with pytest.raises(ValueError, match="`capacity` must be at most 12"):
        writer.start(rows=1, capacity=13)
    with pytest.raises(ValueError, match=r"`memory` .*None"):
        translator.decode(Tokens(ids(2)), None)


CARRIED = ("recurrence", "convolution", "old", "old mut2", "rwkv4", "rwkv7")


@pytest.mark.parametrize("name", LANGUAGE)
def test_step_features_are_the_features_of_a_step(name):
    model, ids = built(LANGUAGE[name]), torch.randint(TARGET, (2, 5))
    state, other = model.start(rows=2, capacity=5), model.start(rows=2, capacity=5)
    for part in (ids[:, :3], ids[:, 3:]):
        features, state = model.step_features(state, part)
        logits, other, _ = model.step(other, part)
        torch.testing.assert_close(model.output(features), logits, rtol=0, atol=0)
    assert state.positions.tolist() == [5, 5]


@pytest.mark.parametrize("name", CARRIED)
def test_memories_can_be_carried_to_a_new_state(name):
    model, ids = built(LANGUAGE[name]), torch.randint(TARGET, (3, 9))
    model.decoder.embedding.positions = None  # a text without end has no absolute positions
    _, state = model.step_features(model.start(rows=3, capacity=9), ids[:, :4])
    again = model.start(rows=3, capacity=9).with_memories(state.memories())
    features, _ = model.step_features(again, ids[:, 4:])
    torch.testing.assert_close(features, model.features(Tokens(ids))[:, 4:], rtol=1e-12, atol=1e-12)
    assert all(memory.shape[0] == 3 for memory in state.memories())


def test_states_that_grow_have_no_memories():
    model = built(LANGUAGE["attention"])
    with pytest.raises(ValueError, match=r"`state` .*one with a Cache"):
        model.start(rows=1, capacity=3).memories()
