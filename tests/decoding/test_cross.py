"""Where a model looked: one row of weights for each token, those that the steps of the search gave."""

import pytest
import torch
from refusals import assert_named
from tiny import TRANSLATING, built
from writers import translator

from regard.decoding import forced
from regard.decoding.beam import beam
from regard.decoding.forced import with_cross
from regard.decoding.sampling import greedy
from regard.tokens import Tokens

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
def test_the_weights_of_every_written_token(monkeypatch, chunk):
    monkeypatch.setattr(forced, "PREFILL_CHUNK", chunk)
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
                 ["`hypotheses`", "3, as many", "is 2"])
    assert_named(lambda: with_cross(model, memory, hypotheses, prompts=[[1]]), ["`prompts`", "3 rows", "is 1"])
    blind = translator("one context")
    assert_named(lambda: with_cross(blind, blind.encode(Tokens.of(SOURCES)), hypotheses, prompts=PROMPTS),
                 ["`model`", "attends", "Seq2Seq that does not"])
