"""The tasks: what is asked follows from what was read, and from nothing less; chance is what it is said to be."""

import math

import pytest
import torch

from regard.comparison.memory_tasks import BLANK, MARKER, MEMORY_TASKS, AddingTask, CopyTask, RecallTask, make_task


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_copy_asks_for_ten_symbols_after_the_marker_and_blanks_before():
    batch = CopyTask(5).batch(50, generator())
    assert batch.inputs.shape == (50, 25)
    symbols = batch.inputs[:, :10]
    assert set(symbols.unique().tolist()) == set(range(1, 9))
    assert (batch.inputs[:, 10:14] == BLANK).all()
    assert (batch.inputs[:, 14] == MARKER).all()
    assert (batch.inputs[:, 15:] == BLANK).all()
    assert (batch.targets[:, :15] == BLANK).all()
    assert (batch.targets[:, 15:] == symbols).all()
    assert batch.loss_mask.all()
    assert batch.remembered.sum(1).tolist() == [10] * 50
    assert batch.remembered[:, 15:].all()


def test_copy_repeats_a_symbol_as_many_tokens_later_as_the_task_says():
    batch = CopyTask(7).batch(3, generator())
    for place in range(10):
        assert (batch.targets[:, place + 10 + 7] == batch.inputs[:, place]).all()


@pytest.mark.parametrize("length", [16, 40, 64, 200])
def test_recall_asks_every_key_once_and_the_answer_is_the_token_behind_it(length):
    made = RecallTask(length)
    batch = made.batch(20, generator())
    for ids, answers, asked in zip(batch.inputs, batch.targets, batch.loss_mask, strict=True):
        pairs = ids[:2 * made.pairs].reshape(-1, 2)
        known = dict(pairs.tolist())
        assert len(known) == made.pairs, "a key stands twice"
        places = asked.nonzero().squeeze(1).tolist()
        assert all(place >= 2 * made.pairs for place in places)
        assert sorted(ids[places].tolist()) == sorted(known)
        assert [int(answers[place]) + 1 + made.keys for place in places] == [known[int(ids[place])] for place in places]
        rest = ids[2 * made.pairs:][~asked[2 * made.pairs:]]
        assert (rest == BLANK).all()
        assert max(known) <= made.keys < min(known.values()) <= max(known.values()) < made.symbols


def test_recall_begins_with_few_pairs_of_the_same_ids_and_ends_as_it_is():
    made = RecallTask(1024)
    steps = [made.after(share) for share in (0.0, 0.099, 0.1, 0.2, 0.39, 0.4, 0.7, 1.0)]
    assert [one.length for one in steps] == [64, 64, 128, 256, 512, 1024, 1024, 1024]
    assert [one.pairs for one in steps] == [4, 4, 8, 16, 32, 64, 64, 64]
    assert {(one.symbols, one.outputs, one.chance) for one in steps} == {(made.symbols, made.outputs, made.chance)}
    batch = steps[0].batch(500, generator())
    assert batch.inputs.shape == (500, 64)
    assert batch.inputs[:, 0].max() == made.keys, "keys are chosen from all that the long task has"
    assert steps[-1] == made == made.after(0.5)


@pytest.mark.parametrize("made", [RecallTask(16), RecallTask(64), CopyTask(1000), AddingTask(1000)])
def test_other_tasks_are_learned_as_they_are(made):
    assert made.after(0.0) is made


def test_adding_asks_for_the_sum_of_one_marked_number_in_each_half():
    batch = AddingTask(9).batch(200, generator())
    numbers, marks = batch.inputs.unbind(-1)
    assert (marks[:, :4].sum(1) == 1).all()
    assert (marks[:, 4:].sum(1) == 1).all()
    assert (marks[:, 4:].sum(0) > 0).all(), "some places are never marked"
    torch.testing.assert_close(batch.targets[:, -1], (numbers * marks).sum(1))
    assert batch.loss_mask.sum(1).tolist() == [1] * 200
    assert batch.loss_mask[:, -1].all()


def test_chance_of_copy_is_that_of_someone_who_knows_the_rules_and_has_no_memory():
    made, many = CopyTask(12), 2000
    batch = made.batch(many, generator())
    outputs = torch.full((many, made.tokens, made.outputs), -math.inf)
    outputs[:, :22, BLANK] = 0
    outputs[:, 22:, 1:9] = 0
    score = made.score(outputs, batch)
    assert float(score.loss) == pytest.approx(made.chance, rel=1e-5)
    assert float(score.accuracy) == pytest.approx(made.chance_accuracy, abs=0.01)
    assert CopyTask(1000).chance == pytest.approx(0.0204, abs=5e-5)


def test_chance_of_recall_and_adding():
    made, many = RecallTask(32), 3000
    batch = made.batch(many, generator())
    score = made.score(torch.zeros(many, made.tokens, made.outputs), batch)
    assert float(score.loss) == pytest.approx(made.chance, rel=1e-5)
    assert float(score.accuracy) == pytest.approx(made.chance_accuracy, rel=0.15)
    adding = AddingTask(20)
    sums = adding.batch(50_000, generator())
    score = adding.score(torch.ones(50_000, 20, 1), sums)
    assert float(score.loss) == pytest.approx(adding.chance, rel=0.02)
    assert score.accuracy is None


@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_who_knows_the_answers_has_no_loss(name):
    made = make_task(name, 20)
    batch = made.batch(4, generator())
    if made.symbols is None:
        outputs = batch.targets.unsqueeze(-1).clone()
    else:
        outputs = 100.0 * torch.nn.functional.one_hot(batch.targets, made.outputs)
    score = made.score(outputs, batch)
    assert float(score.loss) == pytest.approx(0, abs=1e-6)
    assert score.accuracy is None or float(score.accuracy) == 1


@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_sequences_follow_from_the_seed(name):
    made = make_task(name, 20)
    first, second, other = (made.batch(4, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, second.inputs)
    assert not torch.equal(first.inputs, other.inputs)


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="Did you mean \"recall\""):
        make_task("recal", 20)
    with pytest.raises(ValueError, match="`length` must be a whole number, at least 8 for recall"):
        make_task("recall", 4)
