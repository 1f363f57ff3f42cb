"""Tables for rows that come and go, and that look at a source: `Table` with `put`, and with cross-attention weights."""

import math
import random

import torch
from writers import Table, TableState

from regard.mixer import row_indices
from regard.models.contract import Memory, Step

LAYERS = 2


class MovingState(TableState):
    """The texts so far, whose rows can be replaced by others."""

    def __init__(self, keys, texts, capacity, sources, states, watched):
        super().__init__(keys, texts, capacity)
        self.sources, self.states, self.watched = sources, states, watched

    def pick(self, rows):
        picked = super().pick(rows)
        sources = [self.sources[row] for row in row_indices(rows, torch.empty(len(self.texts))).tolist()]
        return MovingState(picked.keys, picked.texts, self.capacity, sources, self.states, self.watched)

    def put(self, rows, other):
        assert not self.consumed, "a consumed state is used again"
        assert not other.consumed, "a consumed state is used again"
        keys, texts, sources = [*self.keys], [*self.texts], [*self.sources]
        places = row_indices(rows, torch.empty(len(keys))).tolist()
        for row, key, text, source in zip(places, other.keys, other.texts, other.sources, strict=True):
            assert len(text) <= self.capacity
            keys[row], texts[row], sources[row] = key, text, source
        return MovingState(keys, texts, self.capacity, sources, max(self.states, other.states), self.watched)


class Moving(Table):
    """A table that gives weights over the states of its source: they follow from the key and the text."""

    def start(self, memory=None, *, rows=None, capacity, cross=False):
        state = super().start(memory, rows=rows, capacity=capacity)
        count = 0 if memory is None else memory.states.shape[1]
        sources = [count] * rows if memory is None or memory.lengths is None else memory.lengths.tolist()
        return MovingState(state.keys, state.texts, capacity, sources, count, cross)

    def step(self, state, ids, lengths=None):
        before = state.texts
        logits, after, _ = super().step(state, ids, lengths)
        moved = MovingState(after.keys, after.texts, after.capacity, state.sources, state.states, state.watched)
        if not state.watched:
            return Step(logits, moved)
        cross = torch.zeros(len(before), LAYERS, 1, ids.shape[1], state.states)
        for row, (key, text, source) in enumerate(zip(state.keys, before, state.sources, strict=True)):
            for place in range(ids.shape[1]):
                for layer in range(LAYERS):
                    read = (*text, *ids[row, :place + 1].tolist())
                    cross[row, layer, 0, place, :source] = torch.tensor(weights_of(key, read, source, layer))
        return Step(logits, moved, cross.double())


def weights_of(key, text, source, layer):
    """Where the token after the text looks: a softmax of numbers that follow from all of these."""
    draw = random.Random(f"{key} {text} {layer}")
    values = [math.exp(draw.gauss(0, 2)) for _ in range(source)]
    return [value / sum(values) for value in values]


def kept(keys, lengths):
    """A memory that holds a key for each row, and as many states as the lengths say."""
    states = torch.zeros(len(keys), max(lengths), 1, dtype=torch.float64)
    states[:, 0, 0] = torch.tensor(keys, dtype=torch.float64)
    return Memory(states, torch.tensor(lengths))
