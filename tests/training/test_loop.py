"""The loop: when it tells, judges, stores and ends; and that none of these changes what is learned."""

import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from learning import Line, Made, Squares, model, numbers, settings

from regard.data.batches.feed import WindowConfig
from regard.training.checkpoints import CheckpointManager
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine
from regard.training.loop import (
    ALL_STEPS_DONE,
    COUNTS_ALL,
    COUNTS_LATER,
    INTERRUPTED,
    PATIENCE_ENDED,
    PATIENCE_STARTS,
    TrainingError,
    TrainingState,
    report_end,
    stop_reason,
    stored_training_state,
)
from regard.training.snapshot import restore_snapshot
from regard.training.tasks.interface import ValidationResult


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def learned(config, steps=None):
    """The numbers after all steps, learned with nothing in between."""
    engine = TrainingEngine(Squares(model(0.2)), config, DistributedContext.alone())
    feed = Line().feed(0, 1)
    many = config.gradient_accumulation
    for step in range(1, (steps or config.steps) + 1):
        engine.step(step, [feed.at((step - 1) * many + part) for part in range(many)], config.schedule.rate(step))
    return numbers(engine)


@pytest.mark.parametrize("many", [1, 3])
def test_what_is_learned_is_step_after_step_and_nothing_else(tmp_path, many):
    """Told, judged and stored at every turn: the numbers are those of the bare steps, bit for bit."""
    config = settings(every=2, store=3, ema_decay=0.9, gradient_accumulation=many)
    made = Made(tmp_path / "checkpoints", config=config)
    standing = made.training.run(TrainingState())
    assert torch.equal(numbers(made.training.engine), learned(config))
    assert (standing.step, standing.tokens) == (8, 8 * 3 * many)


def test_the_order_of_events(tmp_path):
    made = Made(tmp_path / "checkpoints", Line(scores=[5.0, 4.0, 4.5]),
                settings(steps=7, every=3, store=2, log_every=5))
    made.training.run(TrainingState())
    assert made.order == [
        ("TrainingProgress", 2), ("CheckpointSaved", 2),
        ("TrainingProgress", 3), ("Validated", 3), ("CheckpointSaved", 3),
        ("TrainingProgress", 4), ("CheckpointSaved", 4),
        ("TrainingProgress", 5),
        ("TrainingProgress", 6), ("Validated", 6), ("CheckpointSaved", 6),
        ("TrainingProgress", 7), ("Validated", 7), ("CheckpointSaved", 7),
        ("TrainingEnded", 7)]
    assert [event.better for event in made.events("Validated")] == [True, True, False]
    assert [event.best["loss"] for event in made.events("Validated")] == [5.0, 4.0, 4.0]
    assert [step for step, _ in made.kept] == [3, 6]
    ended = made.events("TrainingEnded")[0]
    assert (ended.reason, ended.best_step, ended.best["loss"]) == (ALL_STEPS_DONE, 6, 4.0)
    assert made.events("Validated")[0].examples[0].output == "made"


def test_progress_counts_everything_once(tmp_path):
    made = Made(tmp_path / "checkpoints", Line(empty=(2, 3)), settings(steps=6, every=6, store=6, log_every=2))
    made.training.run(TrainingState())
    told = made.events("TrainingProgress")
    assert [(event.step, event.tokens, event.epoch) for event in told] == [(2, 6, 0.5), (6, 12, 1.5)]  # 3, 4: nothing
    assert all(event.rate == 0.05 and event.loss > 0 and event.gradient_norm > 0 for event in told)


def test_what_is_kept_is_the_mean_of_the_weights(tmp_path):
    made = Made(tmp_path / "checkpoints", config=settings(steps=4, ema_decay=0.5))
    made.training.run(TrainingState())
    engine = made.training.engine
    for name, mean in engine.ema.mean.items():
        assert torch.equal(made.kept[-1][1][name], mean)
        assert not torch.equal(made.kept[-1][1][name], engine.named_parameters[name])


def test_a_judgement_leaves_the_random_state_and_the_mode(tmp_path, monkeypatch):
    made = Made(tmp_path / "checkpoints", config=settings(steps=4, every=1))
    states = []
    judge = made.training._validate

    def watched(standing):
        engine = made.training.engine
        before = torch.get_rng_state(), [module.training for module in engine.module.modules()]
        found = judge(standing)
        states.append((before[0], torch.get_rng_state(), before[1], [one.training for one in engine.module.modules()]))
        return found

    monkeypatch.setattr(made.training, "_validate", watched)
    made.training.run(TrainingState())
    assert made.training.training_task.modes == [False] * 4  # judged in evaluation mode
    assert len(states) == 4
    for random_before, random_after, modes_before, modes_after in states:
        assert torch.equal(random_before, random_after)
        assert modes_before == modes_after
        assert all(modes_before)


@pytest.mark.parametrize(("score", "scores", "kept", "ends"), [
    ("loss", [3.0, 2.0, 2.0, 2.5, 1.0], [1, 2], 4),
    ("accuracy", [0.1, 0.3, 0.3, 0.2, 0.9], [1, 2], 4),
    ("loss", [3.0, 3.5, 2.0, 2.5, 1.0], [1, 3, 5], 6),
    ("loss", [math.nan, math.inf, 2.0, math.nan, 1.0], [], 2),
])
@pytest.mark.parametrize("first", [0, PATIENCE_STARTS])
def test_patience_and_the_best(tmp_path, score, scores, kept, ends, first):
    """Two judgements without a better score end the training; what is no number is never the best.

    The first five do not count, except in a training that was begun when they did.
    """
    worse = 9.0 if score == "loss" else 0.0
    made = Made(tmp_path / "checkpoints", Line(scores=[*[math.nan] * first, *scores, worse], score=score),
                settings(steps=first + 6, every=1, store=1, patience=2, score=score))
    standing = made.training.run(TrainingState(early_stopping=COUNTS_LATER if first else COUNTS_ALL))
    assert [step - first for step, _ in made.kept] == kept
    assert standing.step - first == ends
    assert made.events("TrainingEnded")[0].reason == (PATIENCE_ENDED if ends < 6 else ALL_STEPS_DONE)
    assert standing.best is None or math.isfinite(standing.best)


@pytest.mark.parametrize(("warmup", "every", "ends"), [
    (0, 1, 8),    # the first five validations do not count, and then three in a row are worse
    (5, 1, 8),    # the warm-up ends with the fifth
    (9, 1, 12),   # validations during the warm-up do not count: step 10 is the first that does
    (20, 1, 20),  # there is nothing but warm-up
    (9, 2, 16),   # steps 12, 14 and 16: the warm-up ends before the fifth validation
    (9, 4, 20),   # the last step
])
def test_patience_begins_after_the_warmup_and_five_validations(tmp_path, warmup, every, ends):
    config = settings(steps=20, every=every, patience=3)
    config = replace(config, schedule=replace(config.schedule, warmup_steps=warmup))
    made = Made(tmp_path / "checkpoints", Line(scores=[1.0, *[2.0] * 20]), config)
    state = made.training.run(TrainingState())
    assert (state.step, state.best_step) == (ends, every)
    assert made.events("TrainingEnded")[0].reason == (PATIENCE_ENDED if ends < 20 else ALL_STEPS_DONE)


def test_a_checkpoint_without_a_version_of_early_stopping_is_resumed_with_the_first(tmp_path):
    """It ends where it would have ended, and one that has ended stays so."""
    config = settings(steps=12, every=1, store=1, patience=3)
    made = Made(tmp_path / "checkpoints", Line(scores=[1.0, 2.0, 2.0]), replace(config, schedule=replace(
        config.schedule, max_steps=3)))
    made.training.run(TrainingState(early_stopping=COUNTS_ALL))
    loaded = CheckpointManager(tmp_path / "checkpoints", keep=2).load().snapshot
    assert stored_training_state(loaded).early_stopping == COUNTS_ALL
    assert stored_training_state(replace(loaded, values={**loaded.values, "early_stopping": 2})).early_stopping == 2
    old = {key: value for key, value in loaded.values.items() if key != "early_stopping"}
    stored = stored_training_state(replace(loaded, values=old))
    assert (stored.waited, stored.early_stopping) == (2, COUNTS_ALL)
    second = Made(tmp_path / "checkpoints", Line(scores=[2.0] * 9), config)
    second.training.resume(loaded)
    assert second.training.run(stored).step == 4


def test_over():
    config = settings(steps=5, patience=2)
    assert stop_reason(TrainingState(step=4, waited=1), config) is None
    assert stop_reason(TrainingState(step=5), config) == ALL_STEPS_DONE
    assert stop_reason(TrainingState(step=4, waited=2), config) == PATIENCE_ENDED
    assert stop_reason(TrainingState(step=4, waited=9), settings(steps=5)) is None


@pytest.mark.thorough
@pytest.mark.parametrize("stop", range(2, 9))
def test_resumed_after_any_step_is_never_stopped(tmp_path, stop):
    """From the stored state alone: numbers, patience, best score and what is told."""
    config = settings(steps=8, every=3, store=1, patience=2, ema_decay=0.9, log_every=1, gradient_accumulation=2)
    scores = [3.0, 2.0, 4.0]
    whole = Made(tmp_path / "whole", Line(scores=scores), config)
    end = whole.training.run(TrainingState())
    first = Made(tmp_path / "parts", Line(scores=scores), config)
    first.training.report = _stopping(stop)
    with pytest.raises(ConnectionError):
        first.training.run(TrainingState())
    second = Made(tmp_path / "parts", Line(scores=scores[(stop - 1) // 3:]), config)
    loaded = CheckpointManager(tmp_path / "parts", keep=2).load()
    standing = stored_training_state(loaded.snapshot)
    assert standing.step == stop - 1
    second.training.resume(loaded.snapshot)
    resumed = second.training.run(standing)
    assert torch.equal(numbers(second.training.engine), numbers(whole.training.engine))
    assert _untimed(resumed) == _untimed(end)
    assert [_untimed(event) for event in second.told] == [
        _untimed(event) for event in whole.told if getattr(event, "step", 0) >= stop]


def _stopping(stop):
    """A reporter that ends the training when the first event of a step is told."""
    def report(event):
        if getattr(event, "step", None) == stop:
            raise ConnectionError
    return report


def _untimed(value):
    timed = ("seconds", "tokens_per_second", "memory", "seconds_left")
    return type(value), {key: each for key, each in vars(value).items() if key not in timed}


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_once_asked_to_end_it_stores_and_ends(tmp_path, which):
    made = Made(tmp_path / "checkpoints", config=settings(steps=8, every=8, store=8, log_every=1))

    def report(event):
        made.told.append(event)
        if type(event).__name__ == "TrainingProgress" and event.step == 2:
            os.kill(os.getpid(), which)

    made.training.report = report
    standing = made.training.run(TrainingState())
    assert standing.step == 3
    assert made.order[-3:] == [("TrainingProgress", 3), ("CheckpointSaved", 3), ("TrainingEnded", 3)]
    assert made.events("TrainingEnded")[0].reason == INTERRUPTED
    assert "Ctrl-C again to stop at once" in made.events("Note")[0].text
    assert CheckpointManager(tmp_path / "checkpoints", keep=1).load().step == 3


def test_asked_twice_it_ends_at_once(tmp_path):
    made = Made(tmp_path / "checkpoints", config=settings(steps=8, every=8, store=2, log_every=1))

    def report(event):
        made.told.append(event)
        if type(event).__name__ == "TrainingProgress" and event.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    made.training.report = report
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        made.training.run(TrainingState())
    assert signal.getsignal(signal.SIGINT) is before
    assert CheckpointManager(tmp_path / "checkpoints", keep=1).load().step == 2


def poisoned(bad):
    """An objective that gives no number in one of its steps."""
    class Poisoned(Squares):
        step = 0

        def forward(self, batch):
            if self.training:
                self.step += 1
            loss = super().forward(batch)
            return loss._replace(total=loss.total * (math.nan if self.step == bad else 1.0))

    return Poisoned


def test_what_is_not_finite_is_found_at_once(tmp_path):
    """On a CPU, where to look costs nothing: also between two lines of metrics."""
    made = Made(tmp_path / "checkpoints", config=settings(every=8, store=8, log_every=8), objective=poisoned(3))
    with pytest.raises(TrainingError, match=r"^step 3: .* No checkpoint was saved yet\."):
        made.training.run(TrainingState())
    assert made.training.engine.objective.step == 3
    assert made.told == []


@pytest.mark.parametrize("bad", [2, 5])
def test_what_is_not_finite_ends_it_and_is_never_stored(tmp_path, bad):
    """The batch is named; the last checkpoint is that of a step before; the best is not one of these numbers."""
    config = settings(every=1, store=1, ema_decay=0.5, log_every=3)
    made = Made(tmp_path / "checkpoints", config=config, objective=poisoned(bad))
    first = 3 * (bad - 1) % 12
    with pytest.raises(TrainingError) as error:
        made.training.run(TrainingState())
    assert f"step {bad}: the loss is not a finite number" in str(error.value)
    assert f"the examples {first}, {first + 1}, {first + 2} (numbered from 0" in str(error.value)
    assert "--set training.schedule.learning_rate=0.025" in str(error.value)
    assert "The last checkpoint is from before that step." in str(error.value)
    loaded = CheckpointManager(tmp_path / "checkpoints", keep=2).load()
    assert loaded.step == bad - 1
    assert all(tensor.isfinite().all() for tensor in loaded.snapshot.under("model").values())
    assert [step for step, _ in made.kept] == list(range(1, bad))
    fresh = TrainingEngine(Squares(model(0.2)), made.training.settings, DistributedContext.alone())
    restore_snapshot(fresh, loaded.snapshot)
    assert torch.equal(numbers(fresh), learned(made.training.settings, bad - 1))


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA"), RuntimeError("not enough memory")])
def test_the_largest_batch_is_tried_first(tmp_path, error, monkeypatch):
    made = Made(tmp_path / "checkpoints")
    before = numbers(made.training.engine)
    made.training.try_largest()
    assert torch.equal(numbers(made.training.engine), before)

    def failing(batch):
        raise error

    monkeypatch.setattr(made.training.engine, "try_batch", failing)
    with pytest.raises(TrainingError, match=r"3 tokens does not fit into the memory of cpu.*batches.max_tokens=2048 "
                                            r"--set training.gradient_accumulation=2"):
        made.training.try_largest()
    made.training.settings = replace(made.training.settings, windows=WindowConfig(length=9, batch_size=7))
    with pytest.raises(TrainingError,
                       match=r"Try --set training.windows.batch_size=3 --set training.gradient_accumulation=2"):
        made.training.try_largest()


def test_other_errors_of_the_largest_batch_are_not_about_memory(tmp_path, monkeypatch):
    made = Made(tmp_path / "checkpoints")

    def failing(batch):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(made.training.engine, "try_batch", failing)
    with pytest.raises(RuntimeError, match="shapes differ"):
        made.training.try_largest()


def test_batches_are_made_once_each_and_in_order(tmp_path):
    feed = Line().feed(0, 1)
    work = Line()
    work.feed = lambda rank, processes: feed
    Made(tmp_path / "checkpoints", work, settings(steps=5, gradient_accumulation=2)).training.run(TrainingState())
    assert feed.asked == list(range(10))


@pytest.mark.parametrize(("limit", "version", "best", "waited"), [
    (1000.0, COUNTS_LATER, 2, 0), (None, COUNTS_LATER, 2, 0), (1000.0, COUNTS_ALL, 2, 2), (None, COUNTS_ALL, 1, 3)])
def test_of_equal_scores_the_lower_loss_is_the_best(tmp_path, limit, version, best, waited):
    """At the start of a training BLEU may be 0 for long, while the model does learn."""
    made = Made(tmp_path / "checkpoints", Line(), settings(steps=4, every=1, patience=3, score="bleu", max_time=limit))
    found = iter([(0.0, 9.0), (0.0, 8.0), (0.0, 8.5), (0.0, 8.0)])
    made.training.training_task.validate = lambda task: ValidationResult(dict(zip(("bleu", "loss"), next(found),
                                                                                  strict=True)))
    state = made.training.run(TrainingState(early_stopping=version))
    assert (state.best, state.best_step, state.waited) == (0.0, best, waited)


def test_details_are_computed_for_the_best_model_and_resumed_with_it(tmp_path):
    """Only then, and told at the end: also by a training that was resumed after its best step, or had ended."""
    asked = []

    def validate(task):
        step = len(asked) + 1
        loss = next(found)
        return ValidationResult({"loss": loss, "bleu": 10.0}, details=lambda: asked.append(step) or {
            "bleu_interval": [9.0, 11.0 + loss], "degenerate": [f"{step}% of them."]})

    made = Made(tmp_path / "checkpoints", Line(), settings(steps=4, every=1, store=1))
    found, made.training.training_task.validate = iter([9.0, 8.0, 8.5, 9.0]), validate
    state = made.training.run(TrainingState())
    assert (asked, state.best_step) == ([1, 2], 2)
    assert state.best_details == {"bleu_interval": [9.0, 19.0], "degenerate": ["2% of them."]}
    note, ended = made.told[-2:]
    assert (note.warning, "2% of them." in note.text, "step 2" in note.text) == (True, True, True)
    assert ended.intervals == {"bleu": [9.0, 19.0]}
    stored = made.training.checkpoints.load()
    assert "best_details" not in stored.snapshot.values["standing"]  # which earlier versions read
    assert stored_training_state(stored.snapshot).best_details == state.best_details
    told = []
    report_end(ALL_STEPS_DONE, stored_training_state(stored.snapshot), settings(steps=4), told.append)
    assert told[0] == note
    assert told[1].intervals == ended.intervals
    without = replace(stored.snapshot, values={name: value for name, value in stored.snapshot.values.items()
                                               if name != "best_details"})
    assert stored_training_state(without).best_details is None
