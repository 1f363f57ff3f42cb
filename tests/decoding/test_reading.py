"""Reading prompts: in chunks, of different lengths, and always the logits after the last token of each row."""

import pytest
import torch
from writers import Table, drawn, keyed, translator

from regard.decoding import scheduler
from regard.decoding.scheduler import prefill
from regard.tokens import Tokens

CPU = torch.device("cpu")


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
@pytest.mark.parametrize("lengths", [[1], [5], [1, 5, 3], [4, 4], [2, 7, 6, 1]], ids=str)
def test_the_logits_after_the_last_token_of_each_row(monkeypatch, chunk, lengths):
    monkeypatch.setattr(scheduler, "PREFILL_CHUNK", chunk)
    function, keys = drawn(6), list(range(len(lengths)))
    prompts = [[(row + place) % 6 for place in range(length)] for row, length in enumerate(lengths)]
    model, memory = Table(function), keyed(keys)
    logits, state, cross = prefill(model, memory, prompts, 9, CPU)
    assert cross is None
    want = [function(key, tuple(prompt)) for key, prompt in zip(keys, prompts, strict=True)]
    assert logits.tolist() == want
    assert state.texts == [tuple(prompt) for prompt in prompts]
    assert max(tokens for _, tokens in model.batches) == min(chunk, max(lengths))


def test_lengths_are_given_only_where_rows_differ(monkeypatch):
    monkeypatch.setattr(scheduler, "PREFILL_CHUNK", 2)
    model = Table(drawn(4))
    prefill(model, None, [[1, 2, 3, 1, 2, 3], [1, 2, 3]], 6, CPU)
    assert model.lengths == [None, [2, 1], [2, 0]]
    assert model.batches == [(2, 2)] * 3


@pytest.mark.parametrize("kind", ["attention", "one context"])
def test_a_recurrent_model_reads_as_all_at_once(monkeypatch, kind):
    monkeypatch.setattr(scheduler, "PREFILL_CHUNK", 2)
    model = translator(kind)
    memory = model.encode(Tokens(torch.tensor([[1, 2, 3], [4, 5, 0], [6, 1, 2]]), torch.tensor([3, 2, 3])))
    prompts = [[1, 2, 3], [4], [5, 4, 3, 2, 1]]
    logits, state, cross = prefill(model, memory, prompts, 9, CPU)
    assert cross is None
    assert state.positions.tolist() == [3, 1, 5]
    for row, prompt in enumerate(prompts):
        want = model.decode(Tokens(torch.tensor([prompt])), memory.pick([row]))[0, -1]
        torch.testing.assert_close(logits[row], want, rtol=1e-12, atol=1e-12)
