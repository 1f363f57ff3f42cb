"""One training: it learns what can be learned, repeats itself, stops when it is done, and leaves torch as it was."""

import json
import sys

import pytest
import torch

from regard.comparison.memory import MemoryBudget, _validate, build_model, learn
from regard.comparison.memory_tasks import AddingTask, CopyTask, RecallTask

TINY = MemoryBudget(steps=6, rows=4, parameters=6_000, judged=10, every=3)


def test_attention_learns_to_add_two_numbers():
    result = learn(AddingTask(12), "attention", MemoryBudget(steps=200, rows=32, parameters=27_000, judged=200, every=50), 0)
    assert result.loss < 0.25 * result.chance
    assert result.steps in (50, 100, 150, 200)
    assert [step for step, _ in result.curve] == list(range(50, result.steps + 1, 50))
    assert result.curve[-1][1] == result.loss


def test_the_same_seed_gives_the_same_and_another_does_not():
    first = learn(CopyTask(3), "gru", TINY, 1)
    torch.rand(1)  # the state of torch's own generator does not matter
    second, other = (learn(CopyTask(3), "gru", TINY, seed) for seed in (1, 2))
    assert first.loss == second.loss
    assert first.loss != other.loss


def test_what_is_solved_ends_early(monkeypatch):
    monkeypatch.setattr("regard.comparison.memory.SOLVED_FRACTION", 100.0)
    seen = []
    result = learn(CopyTask(3), "rnn", TINY, 0, told=lambda step, loss: seen.append((step, loss)))
    assert result.steps == 3
    assert result.solved
    assert seen == [*result.curve]


def test_a_loss_that_is_no_number_ends_the_training_and_becomes_null(monkeypatch):
    monkeypatch.setattr(CopyTask, "score", lambda self, outputs, batch: AddingTask.score(self, outputs.sum(-1, keepdim=True)
                                                                                * float("nan"), batch))
    result = learn(CopyTask(3), "rnn", TINY, 0)
    assert result.steps == 3
    assert not result.solved
    assert result.table()["loss"] is None
    json.dumps(result.table(), allow_nan=False)


def test_the_held_out_loss_is_the_mean_over_all_sequences_however_they_are_cut():
    made = CopyTask(3)
    model, held = build_model(made, "rnn", 6_000), made.batch(10, torch.Generator().manual_seed(0))
    whole, parts = _validate(model, made, held, 10), _validate(model, made, held, 3)
    assert parts == pytest.approx(whole)


def test_sequences_grow_while_recall_is_learned_and_those_to_judge_by_are_long(monkeypatch):
    lengths = []
    plain = RecallTask.batch
    monkeypatch.setattr(RecallTask, "batch", lambda self, rows, generator: lengths.append((self.length, rows)) or plain(
        self, rows, generator))
    learn(RecallTask(200), "rnn", MemoryBudget(steps=10, rows=2, parameters=20_000, judged=3, every=5), 0)
    assert lengths == [(200, 3), (64, 2), (128, 2), *[(200, 2)] * 8]


def test_a_smaller_rate_learns_less_in_a_step():
    slow, fast = (learn(CopyTask(3), "gru", MemoryBudget(steps=6, rows=4, parameters=6_000, judged=10, rate=rate), 0).loss
                  for rate in (0.01, 1.0))
    untaught = learn(CopyTask(3), "gru", MemoryBudget(steps=1, rows=4, parameters=6_000, judged=10, rate=1e-9), 0).loss
    assert fast < slow < untaught


def test_torch_is_left_as_it_was():
    state = torch.get_rng_state()
    learn(CopyTask(3), "rnn", TINY, 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert sys.float_info.min / 2 > 0


@pytest.mark.gpu
def test_a_gpu_learns_too():
    result = learn(AddingTask(12), "attention", MemoryBudget(steps=200, rows=32, parameters=27_000, judged=200), 0, "cuda")
    assert result.loss < 0.25 * result.chance


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="`steps` must be a whole number, at least 1"):
        MemoryBudget(steps=0)
    with pytest.raises(ValueError, match="`rate` must be a number above 0"):
        MemoryBudget(rate=0.0)
