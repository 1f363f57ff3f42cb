"""The numbers of a training: all points of the file, gaps where there was no number, and lines named that are wrong."""

import json
import math

import numpy as np
import pytest

from regard.inspection.pictures.curves import TrainingCurves
from regard.training.logging import MetricsLogger, TrainingEnded, TrainingProgress, TrainingStarted, Validated


def progress(step, loss=2.0, rate=0.1):
    return TrainingProgress(step=step, steps=9, epoch=0.1, loss=loss, nll=loss, rate=rate, gradient_norm=1.0, tokens=5,
                    seconds=1.0, tokens_per_second=5.0, memory=None)


def judged(step, **scores):
    return Validated(step=step, scores=scores, better=True, best=scores, examples=(), seconds=0.1)


def written(folder, *events):
    metrics = MetricsLogger(folder / "metrics.jsonl")
    for event in events:
        metrics(event)


def test_what_a_training_writes_can_be_read(tmp_path):
    written(tmp_path, TrainingStarted("translation", 5, 9, 1, None, "cpu"), progress(1, 4.0, 0.1),
            judged(1, loss=5.0, bleu=1.0), progress(2, math.nan, 0.2), progress(3, 2.0, 0.3),
            judged(3, loss=3.0, chrf=9.0), TrainingEnded("done", 3, 3, {}, 1.0))
    run = TrainingCurves.read(tmp_path)
    np.testing.assert_array_equal(run.loss.steps, [1, 2, 3])
    np.testing.assert_array_equal(run.loss.numbers, [4, np.nan, 2])
    np.testing.assert_array_equal(run.rate.numbers, [0.1, 0.2, 0.3])
    assert sorted(run.scores) == ["bleu", "chrf", "loss"]
    np.testing.assert_array_equal(run.scores["bleu"].numbers, [1.0, np.nan])
    assert run.last == 3
    assert run.notes == ("the loss was no finite number at 1 of 3 times",)
    file = TrainingCurves.read(tmp_path / "metrics.jsonl")
    np.testing.assert_array_equal(file.loss, run.loss)


@pytest.mark.parametrize("char", ["\u2028", "\x85", "\x0c", "\r"])
def test_only_a_line_feed_ends_a_line(tmp_path, char):
    """Lines have sentences of people in them."""
    line = json.dumps({"event": "judged", "step": 3, "scores": {"bleu": 1.5}, "text": f"a{char}b"}, ensure_ascii=False)
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n{line}", encoding="utf-8", newline="")
    assert list(TrainingCurves.read(tmp_path).scores["bleu"].numbers) == [1.5, 1.5]


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    written(tmp_path, progress(1), progress(2))
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert TrainingCurves.read(tmp_path).last == 1


def test_a_last_line_without_an_end_counts(tmp_path):
    written(tmp_path, progress(1), progress(2))
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    assert TrainingCurves.read(tmp_path).last == 2


@pytest.mark.parametrize(("line", "said"), [
    ("nonsense", "metrics.jsonl:2: expected a JSON object"),
    ("[1]", 'metrics.jsonl:2: expected a JSON object with an "event"'),
    ('{"event": "progress", "loss": 1.0, "rate": 1.0}', 'metrics.jsonl:2: expected "step"'),
    ('{"event": "progress", "step": true, "loss": 1.0, "rate": 1.0}', 'metrics.jsonl:2: expected "step"'),
    ('{"event": "progress", "step": 1, "loss": "low", "rate": 1.0}', 'metrics.jsonl:2: expected "loss"'),
    ('{"event": "judged", "step": 1, "scores": {"bleu": "good"}}', 'metrics.jsonl:2: expected "scores"'),
])
def test_another_line_that_is_wrong_is_named(tmp_path, line, said):
    good = json.dumps({"event": "progress", "step": 1, "loss": 1.0, "rate": 1.0})
    (tmp_path / "metrics.jsonl").write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(ValueError, match="metrics") as error:
        TrainingCurves.read(tmp_path)
    assert said in str(error.value)


@pytest.mark.parametrize(("data", "said"), [
    (b"", "nothing was measured yet"),
    (b'{"event": "ended"}\n', "nothing was measured yet"),
    (b"\xff\n", "byte 0 is not UTF-8"),
])
def test_a_file_without_a_training_is_named(tmp_path, data, said):
    (tmp_path / "metrics.jsonl").write_bytes(data)
    with pytest.raises(ValueError, match=said):
        TrainingCurves.read(tmp_path)


def test_a_folder_without_one_is_named(tmp_path):
    with pytest.raises(ValueError, match="in which there is none"):
        TrainingCurves.read(tmp_path)
