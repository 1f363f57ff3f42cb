"""Models to search with, whose every probability can be looked up, and searches that leave nothing out.

`Table` answers to the contract of the models. Its logits are a function of the whole text so far, so a search that
mixes up rows, hypotheses or tokens reads other numbers. It refuses a state that was consumed, and more tokens than it
has room for. `every` and `plain_beam` are written with lists and loops, and know nothing of `regard.decoding`.
"""

import math
import random

import torch

from regard.mixer import row_indices
from regard.models.contract import Memory, Step
from regard.models.seq2seq import AttendingDecoder, OneContextDecoder, RecurrentEncoder, Seq2Seq

INF = math.inf


class TableState:
    """The texts so far, as lists."""

    def __init__(self, keys, texts, capacity):
        self.keys, self.texts, self.capacity, self.consumed = keys, texts, capacity, False

    @property
    def positions(self):
        return torch.tensor([len(text) for text in self.texts])

    def pick(self, rows):
        assert not self.consumed, "a consumed state is used again"
        rows = row_indices(rows, torch.empty(len(self.texts))).tolist()
        return TableState([self.keys[row] for row in rows], [self.texts[row] for row in rows], self.capacity)


class Table:
    """logits = function(key of the row, text so far); the key is what stands in the memory, 0 without one."""

    training = False

    def __init__(self, function, dtype=torch.float64):
        self.function, self.dtype = function, dtype
        self.batches, self.lengths = [], []  # of each step: (rows, tokens), and the lengths that it was given

    def start(self, memory=None, *, rows=None, capacity, cross=False):
        keys = [0] * rows if memory is None else memory.states[:, 0, 0].long().tolist()
        assert len(keys) == rows
        return TableState(keys, [()] * rows, capacity)

    def step(self, state, ids, lengths=None):
        assert not state.consumed, "a consumed state is used again"
        state.consumed = True
        self.batches.append(tuple(ids.shape))
        self.lengths.append(None if lengths is None else lengths.tolist())
        count = ids.shape[1]
        here = [count] * len(ids) if lengths is None else lengths.tolist()
        texts, rows = [], []
        for key, text, new, given in zip(state.keys, state.texts, ids.tolist(), here, strict=True):
            assert len(text) + given <= state.capacity, "more tokens than there is room for"
            # What is not there has logits that would be noticed.
            rows.append([self.function(key, (*text, *new[:n + 1])) if n < given else
                         [999.0] * len(self.function(key, text)) for n in range(count)])
            texts.append((*text, *new[:given]))
        return Step(torch.tensor(rows, dtype=self.dtype), TableState(state.keys, texts, state.capacity))


def drawn(vocabulary, seed=0, forbidden=0.0, spread=1.0):
    """A function for `Table`: normal logits that follow from the key and the text, some of them −∞."""
    known = {}

    def function(key, text):
        if (key, text) not in known:
            draw = random.Random(f"{seed} {key} {text}")
            logits = [-INF if draw.random() < forbidden else draw.gauss(0, spread) for _ in range(vocabulary)]
            if max(logits) == -INF:
                logits[draw.randrange(vocabulary)] = 0.0
            known[key, text] = logits
        return known[key, text]

    return function


def keyed(keys):
    """A memory that holds a key for each row."""
    return Memory(torch.tensor(keys, dtype=torch.float64).view(-1, 1, 1), None)


def logs_of(function, key, text):
    """The log-probabilities of the next token."""
    logits = function(key, tuple(text))
    top = max(logits)
    rest = top + math.log(sum(math.exp(x - top) for x in logits))
    return [x - rest for x in logits]


def score_of(total, length, penalty):
    """The three length penalties, once more."""
    if penalty == "none":
        return total
    if penalty == "mean":
        return total / max(1, length)
    return total / ((5 + length) / 6) ** penalty


def every(function, key, prompt, ends, limit, least, penalty):
    """All that can be written, (score, ids, end), the best first: what has ended, then what cannot end at the limit."""
    ended, cut = [], []

    def follow(ids, total):
        logs = logs_of(function, key, (*prompt, *ids))
        possible = [token for token in ends if len(ids) >= least and logs[token] > -INF]
        ended.extend((score_of(total + logs[token], len(ids) + 1, penalty), ids, token) for token in possible)
        if len(ids) == limit:
            cut.extend([] if possible else [(score_of(total, limit, penalty), ids, None)])
            return
        for token, log in enumerate(logs):
            if token not in ends and log > -INF:
                follow([*ids, token], total + log)

    follow([], 0.0)
    return [*sorted(ended, key=lambda one: -one[0]), *sorted(cut, key=lambda one: -one[0])]


def plain_beam(function, key, prompt, ends, limit, beams, least, penalty):
    """A beam search that never stops before it must: (score, ids, end), the best first."""
    live, ended, cut = [(0.0, [])], [], []
    for t in range(limit + 1):
        candidates = []
        for parent, (total, ids) in enumerate(live):
            for token, log in enumerate(logs_of(function, key, (*prompt, *ids))):
                if log > -INF and not (token in ends and t < least):
                    candidates.append((-(total + log), parent, token))
        candidates.sort()
        closed = set()
        for negative, parent, token in candidates[:beams]:
            if token in ends:
                closed.add(parent)
                ended.append((score_of(-negative, t + 1, penalty), live[parent][1], token))
        following = [one for one in candidates if one[2] not in ends][:beams]
        if t == limit or not following:
            cut = [(score_of(total, t, penalty), ids, None)
                   for parent, (total, ids) in enumerate(live) if parent not in closed]
            break
        live = [(-negative, [*live[parent][1], token]) for negative, parent, token in following]
    return [*sorted(ended, key=lambda one: -one[0]), *sorted(cut, key=lambda one: -one[0])]


def translator(kind, vocabulary=6, width=5, seed=22):
    """A recurrent encoder-decoder in float64 that has learned nothing, with logits far enough apart to tell."""
    torch.manual_seed(seed)
    encoder = RecurrentEncoder(7, width, cell="lstm" if kind == "one context" else "gru")
    if kind == "one context":
        decoder = OneContextDecoder(vocabulary, width, context_width=width, cell="lstm")
    else:
        decoder = AttendingDecoder(vocabulary, width, context_width=width, cell="gru")
    model = Seq2Seq(encoder, decoder).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model
