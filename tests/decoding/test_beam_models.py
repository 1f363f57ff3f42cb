"""Beam search with models of every kind: their states, their batches, and scores that decoding confirms."""

import pytest
import torch
from tiny import LANGUAGE, LONGEST, TRANSLATING, built
from writers import every, plain_beam, translator

from regard.decoding.beam import beam
from regard.decoding.sampling import greedy
from regard.tokens import Tokens

SOURCES = [[1, 2, 3, 4], [5], [6, 1], [2, 2, 2], [3, 5, 1, 6]]
PROMPTS = [[1], [1, 3, 4], [2], [1], [4, 4]]
KINDS = ["attention", "one context"]
WRITING = {**{f"translating {name}": config for name, config in TRANSLATING.items()},
           **{f"language {name}": config for name, config in LANGUAGE.items()}}


def memory_of(model, order):
    """A memory of some of the sources; None for a language model."""
    return model.encode(Tokens.of([SOURCES[row] for row in order])) if hasattr(model, "encode") else None


def searched(model, order, *, max_length=6, beams=3, nbest=3, **options):
    memory = memory_of(model, order)
    prompts = [PROMPTS[row] for row in order]
    return beam(model, memory, prompts=prompts, end=0, max_length=max_length, beams=beams, nbest=nbest, **options)


def rereading(model):
    """The logits as a function of source and text: everything is read again for every token."""
    known = {}

    @torch.no_grad()
    def function(row, text):
        if (row, text) not in known:
            known[row, text] = model.decode(Tokens(torch.tensor([text])), memory_of(model, [row]))[0, -1].tolist()
        return known[row, text]

    return function


def assert_same(got, want):
    assert [(one.ids, one.end) for one in got] == [(ids, end) for _, ids, end in want]
    assert [one.score for one in got] == pytest.approx([score for score, _, _ in want], rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", ["none", "mean", 0.6])
def test_with_a_state_equals_without_one(kind, penalty):
    model = translator(kind)
    for row, got in enumerate(searched(model, range(5), length_penalty=penalty, min_length=1)):
        assert_same(got, plain_beam(rereading(model), row, PROMPTS[row], [0], 6, 3, 1, penalty)[:3])


@pytest.mark.parametrize("config", WRITING.values(), ids=WRITING)
def test_every_model_that_writes_with_a_state_and_without_one(config):
    model, limits = built(config), [LONGEST - 3, 2]  # the longest prompt has three tokens, and there is no more room
    got = beam(model, memory_of(model, [0, 1]), prompts=PROMPTS[:2], end=0, max_length=limits, beams=2, nbest=2)
    for row in range(2):
        assert_same(got[row], plain_beam(rereading(model), row, PROMPTS[row], [0], limits[row], 2, 0, "none")[:2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("penalty", ["none", "mean", 0.6])
def test_over_everything_it_is_brute_force(kind, penalty):
    model = translator(kind, vocabulary=4)
    memory = model.encode(Tokens.of(SOURCES[:3]))
    got = beam(model, memory, prompts=[[1]] * 3, end=0, max_length=3, beams=4 * 3 ** 3, nbest=12,
               length_penalty=penalty)
    for row in range(3):
        assert_same(got[row], every(rereading(model), row, (1,), [0], 3, 0, penalty)[:12])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_does_not_depend_on_its_batch(kind):
    model = translator(kind)
    alone = [searched(model, [row], min_length=1)[0] for row in range(5)]
    assert len({tuple(one.ids) for row in alone for one in row}) > 5
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [1, 1, 3]):
        for row, got in zip(order, searched(model, order, min_length=1), strict=True):
            assert_same(got, [(one.score, one.ids, one.end) for one in alone[row]])


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_are_those_of_decoding_all_at_once(kind):
    model = translator(kind)
    with torch.no_grad():
        for row, hypotheses in enumerate(searched(model, range(5), length_penalty="mean")):
            memory = model.encode(Tokens.of([SOURCES[row]]))
            for one in hypotheses:
                target = [*one.ids, *([] if one.cut else [one.end])]
                logits = model.decode(Tokens(torch.tensor([[*PROMPTS[row], *target]])), memory)[0]
                logs = logits.log_softmax(-1)[len(PROMPTS[row]) - 1:]
                want = [logs[place, token].item() for place, token in enumerate(target)]
                assert one.log_probabilities == pytest.approx(want, rel=1e-9)
                assert one.score == pytest.approx(sum(want) / len(want), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_one_beam_is_greedy(kind):
    model = translator(kind)
    memory = model.encode(Tokens.of(SOURCES))
    want = greedy(model, memory, prompts=PROMPTS, end=0, max_length=6)
    got = [row[0] for row in searched(model, range(5), beams=1, nbest=1)]
    assert [(one.ids, one.end) for one in got] == [(one.ids, one.end) for one in want]
    assert [one.score for one in got] == pytest.approx([one.score for one in want], rel=1e-9)
