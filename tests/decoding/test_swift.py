"""Searches by kernels of our own, in Triton's interpreter: what they give is what plain searches give."""

from dataclasses import replace

import pytest
import torch
from tape import Tape, like_a_gpu
from tiny import TRANSLATING, built

from regard.decoding import queue, steady, swift
from regard.decoding.ranking import as_ranking
from regard.decoding.request import Request
from regard.decoding.rules import Forbidden
from regard.decoding.search import BeamSearch
from regard.decoding.steady import Places, run_in
from regard.decoding.writing import Writing, highest
from regard.models.contract import Tokens

SOURCES, LIMITS = [[5, 6, 7], [8], [9, 10]], [5, 2, 4]
NEVER = Forbidden([4, 7])


@pytest.fixture
def places(monkeypatch):
    """Recordings that are replayed on a CPU, with little storage: to interpret takes its time."""
    like_a_gpu(monkeypatch)
    for module in (steady, swift):
        monkeypatch.setattr(module, "TOKENS", 4)
        monkeypatch.setattr(module, "SOURCES", 2)
    return Places(Tape, 1 << 30)


def asked(model, memory, prompts, limits, rules=(), end=(2, 3), least=0, room=None):
    return Request.of(model, memory, prompts, end, limits, least, rules, room)


def translating(name):
    config = TRANSLATING[name]
    model = built(replace(config, decoder=replace(config.decoder, layers=1))).eval().double()
    return model, model.encode(Tokens.of(SOURCES)), [[1]] * len(SOURCES)


def assert_same(mine, plain):
    assert [one.ids for one in mine] == [one.ids for one in plain]
    assert [one.end for one in mine] == [one.end for one in plain]
    for one, other in zip(mine, plain, strict=True):
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-9)
        assert one.score == pytest.approx(other.score, abs=1e-9)


def compared(places, model, memory, request, search):
    mine, plain = run_in(places, model, memory, request, search), queue.run(model, memory, request, search)
    assert all(type(place.desk) is swift.SwiftDesk for place in places.kept.values())
    assert places.kept
    for found, other in zip(mine, plain, strict=True):
        assert_same(*((found, other) if isinstance(found, list) else ([found], [other])))


@pytest.mark.parametrize(("name", "rules", "room"), [
    ("attention", (), None), ("rotary", (NEVER,), 14), ("post-norm", (), None)])
@torch.no_grad()
def test_greedy_search_gives_the_same(places, name, rules, room):
    model, memory, prompts = translating(name)
    request = asked(model, memory, prompts, LIMITS, rules, least=2 if rules else 0, room=room)
    compared(places, model, memory, request, Writing(request, highest))


@pytest.mark.parametrize(("name", "rules", "room", "penalty", "nbest"), [
    ("attention", (), None, "mean", 2), ("rotary", (NEVER,), 24, 0.6, 1), ("untied", (), None, "none", 2)])
@torch.no_grad()
def test_beam_search_gives_the_same(places, name, rules, room, penalty, nbest):
    model, memory, prompts = translating(name)
    request = asked(model, memory, prompts, LIMITS, rules, least=2 if rules else 0, room=room)
    compared(places, model, memory, request, BeamSearch(request, 2, as_ranking(penalty), nbest))
