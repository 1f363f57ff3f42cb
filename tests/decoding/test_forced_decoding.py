"""Forced decoding: log-probabilities and cross-attention weights of given texts."""

import pytest
import torch
from refusals import assert_named
from tiny import LONGEST, TRANSLATING, built
from writers import Table, drawn, keyed, logs_of, translator

from regard.decoding import scheduler
from regard.decoding.beam import beam
from regard.decoding.forced import forced, with_cross
from regard.decoding.sampling import greedy
from regard.tokens import Tokens

TEXTS = [[4, 5, 6, 2], [], [3], [1, 1, 1]]


def test_probabilities_are_those_of_the_table(monkeypatch):
    function = drawn(7, seed=3)
    prompts = [[1], [1, 2, 3], [5], [6, 6]]
    want = [[logs_of(function, key, [*prompt, *text[:at]])[id_] for at, id_ in enumerate(text)]
            for key, (prompt, text) in enumerate(zip(prompts, TEXTS, strict=True))]
    for chunk in (64, 2, 1):
        monkeypatch.setattr("regard.decoding.forced.PREFILL_CHUNK", chunk)
        found = forced(Table(function), keyed([0, 1, 2, 3]), prompts, TEXTS)
        assert [len(row) for row in found] == [4, 0, 1, 3]
        assert [*map(pytest.approx, want)] == found
    assert scheduler.PREFILL_CHUNK == 64


@pytest.mark.parametrize("name", ["attention", "seq2seq-attention"])
def test_step_by_step_is_all_at_once(name):
    model = built(TRANSLATING[name])
    sources = [[4, 5], [6, 7, 8], [3], [9]]
    memory = model.encode(Tokens.of(sources))
    found = forced(model, memory, [[1]] * 4, TEXTS)
    for source, text, logs in zip(sources, TEXTS, found, strict=True):
        with torch.no_grad():
            own = model.encode(Tokens.of([source]))
            every = model.decode(Tokens.of([[1, *text]]), own)[0].log_softmax(-1)
        assert logs == pytest.approx([float(every[at, id_]) for at, id_ in enumerate(text)])


def test_the_last_token_needs_no_position():
    """A text may be one token longer than the rest: nothing is predicted from its last token."""
    model = built(TRANSLATING["untied"])
    memory, text = model.encode(Tokens.of([[4, 5]])), [3, 4, 5, 6] * (LONGEST // 4)
    [found] = forced(model, memory, [[1]], [text])
    with torch.no_grad():
        every = model.decode(Tokens.of([[1, *text[:-1]]]), memory)[0].log_softmax(-1)
    assert found == pytest.approx([float(every[at, id_]) for at, id_ in enumerate(text)])
    assert forced(model, memory, [[1]], [[]]) == [[]]


SOURCES, PROMPTS = [[1, 2, 3, 4], [5], [6, 1]], [[1], [1, 3, 4], [2]]


def stepped(model, source, prompt, one):
    """The weights of each prediction, token by token."""
    state = model.start(model.encode(Tokens.of([source])), rows=1, capacity=50, cross=True)
    weights = []
    for token in [*prompt, *one.ids]:
        _, state, seen = model.step(state, torch.tensor([[token]]))
        weights.append(seen[0])
    return torch.cat(weights, dim=-2)[..., len(prompt) - 1:, :][..., :len(one.log_probabilities), :]


@torch.no_grad()
@pytest.mark.parametrize("chunk", [2, 64])
def test_the_weights_of_every_generated_token(monkeypatch, chunk):
    monkeypatch.setattr("regard.decoding.forced.PREFILL_CHUNK", chunk)
    model = translator("attention")
    memory = model.encode(Tokens.of(SOURCES))
    hypotheses = greedy(model, memory, prompts=PROMPTS, end=0, max_length=5)
    assert {one.cut for one in hypotheses} == {True, False}
    seen = with_cross(model, memory, hypotheses, prompts=PROMPTS)
    assert seen == hypotheses
    for row, one in enumerate(seen):
        assert one.cross.shape[-2:] == (len(one.log_probabilities), len(SOURCES[row]))
        torch.testing.assert_close(one.cross.sum(-1), torch.ones_like(one.cross[..., 0]))
        torch.testing.assert_close(one.cross, stepped(model, SOURCES[row], PROMPTS[row], one), rtol=1e-10, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["attention", "recurrence", "seq2seq-attention"])
def test_all_layers_and_heads_of_any_model(kind):
    model = built(TRANSLATING[kind])
    memory = model.encode(Tokens.of(SOURCES))
    hypotheses = greedy(model, memory, prompts=PROMPTS, end=0, max_length=5)
    for row, one in enumerate(with_cross(model, memory, hypotheses, prompts=PROMPTS)):
        assert one.cross.dim() == 4
        torch.testing.assert_close(one.cross, stepped(model, SOURCES[row], PROMPTS[row], one), rtol=1e-9, atol=1e-11)


@torch.no_grad()
def test_several_hypotheses_of_one_source():
    model = translator("attention")
    memory = model.encode(Tokens.of(SOURCES))
    found = beam(model, memory, prompts=PROMPTS, end=0, max_length=5, beams=3, nbest=2)
    rows = [row for row, hypotheses in enumerate(found) for _ in hypotheses]
    flat = [one for hypotheses in found for one in hypotheses]
    seen = with_cross(model, memory.pick(rows), flat, prompts=[PROMPTS[row] for row in rows])
    for row, one in zip(rows, seen, strict=True):
        torch.testing.assert_close(one.cross, stepped(model, SOURCES[row], PROMPTS[row], one), rtol=1e-10, atol=1e-12)


def test_what_is_refused():
    model = translator("attention")
    memory = model.encode(Tokens.of(SOURCES))
    hypotheses = greedy(model, memory, prompts=PROMPTS, end=0, max_length=5)
    assert_named(lambda: with_cross(model, memory, hypotheses[:2], prompts=PROMPTS),
                 ["`hypotheses`", "rows, 3", "is 2"])
    assert_named(lambda: with_cross(model, memory, hypotheses, prompts=[[1]]), ["`prompts`", "rows, 3", "is 1"])
    blind = translator("one context")
    assert_named(lambda: with_cross(blind, blind.encode(Tokens.of(SOURCES)), hypotheses, prompts=PROMPTS),
                 ["`model`", "cross-attention", "Seq2Seq"])
