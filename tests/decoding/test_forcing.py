"""Forced decoding: the probabilities of texts are those of a table, and of all positions of a model at once."""

import pytest
import torch
from tiny import TRANSLATING, built
from writers import Table, drawn, keyed, logs_of

from regard.decoding import scheduler
from regard.decoding.forced import forced
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
