"""All ways at all lengths: each once, in order, and wrong calls are refused before any work."""

import pytest

from regard.comparison import memory
from regard.comparison import memory as published
from regard.comparison.memory import MEMORY_MIXERS, SCALES, build_model
from regard.comparison.memory_tasks import MEMORY_TASKS, make_task

TINY = memory.MemoryBudget(steps=2, rows=2, parameters=6_000, judged=4, every=1)


def test_every_way_at_every_length_with_every_seed():
    told, done = [], []
    results = memory.run("copy", ("rnn", "attention"), (3, 2), TINY, seeds=2,
                         told=lambda *what: told.append(what[:4]), done=done.append)
    assert [(one.length, one.way, one.seed) for one in results] == [
        (length, way, seed) for length in (3, 2) for way in ("rnn", "attention") for seed in (0, 1)]
    assert done == results
    assert told == [(one.way, one.length, one.seed, step) for one in results for step in (1, 2)]


def test_all_ways_get_the_same_sequences_with_a_seed(monkeypatch):
    seen = []
    batch = MEMORY_TASKS["copy"].batch
    monkeypatch.setattr(MEMORY_TASKS["copy"], "batch", lambda self, rows, generator: seen.append(
        batch(self, rows, generator)) or seen[-1])
    memory.run("copy", ("rnn", "convolution"), (3,), TINY)
    first, second = seen[:len(seen) // 2], seen[len(seen) // 2:]
    assert len(first) == 3  # two to learn from, one to judge by
    assert all(bool((one.inputs == other.inputs).all()) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_every_way_fits_into_the_parameters_of_a_scale(scale, name):
    for length in SCALES[scale].lengths[name]:
        for way in MEMORY_MIXERS:
            model = build_model(make_task(name, length), way, SCALES[scale].budget.parameters)
            assert model.output.in_features >= 16


def test_every_task_has_published_figures():
    assert {figure.task for figure in published.PUBLISHED} == set(MEMORY_TASKS)
    assert all(figure.source for figure in published.PUBLISHED)


@pytest.mark.parametrize(("call", "said"), [
    ({"task": "copies"}, 'Did you mean "copy"'),
    ({"ways": ("lstn",)}, 'Did you mean "lstm"'),
    ({"ways": ()}, "`ways` must be at least one"),
    ({"lengths": ()}, "`lengths` must be at least one"),
    ({"lengths": (0,)}, "`length` must be a whole number, at least 1"),
    ({"seeds": 0}, "`seeds` must be a whole number, at least 1"),
    ({"scale": "quik"}, 'Did you mean "quick"'),
])
def test_a_wrong_call_is_refused_before_any_work(call, said, monkeypatch):
    monkeypatch.setattr("regard.comparison.memory.learn", lambda *_: pytest.fail("it went to work"))
    with pytest.raises(ValueError, match=said):
        memory.run(**{"task": "copy", "budget": TINY, **call})
