"""Curves of gradients and training runs, and values by sequence length."""

import json
import math

import numpy as np
import pytest
import torch
from refusals import assert_named

from regard.inspection.pictures import flow_picture, save, training_picture
from regard.inspection.pictures.curves import TrainingCurves, length_picture
from regard.recurrence.cells import LSTMCell, RNNCell
from regard.recurrence.gradient_flow import gradient_flow
from regard.training.logging import MetricsLogger, TrainingEnded, TrainingProgress, TrainingStarted, Validated

LINE = '{{"event": "progress", "step": {}, "loss": {}, "rate": 0.1}}\n'
VALIDATION = '{{"event": "validation", "step": {}, "scores": {{"loss": 1.5, "bleu": {}}}}}\n'


def head(figure):
    return " ".join(text.get_text() for text in figure.texts)


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def training(folder, *numbers):
    folder.mkdir(parents=True)
    lines = [LINE.format(step, number) for step, number in enumerate(numbers, 1)]
    (folder / "metrics.jsonl").write_text("".join(lines) + VALIDATION.format(len(numbers), 30.5))
    return folder


def test_flows_of_cells_are_lines_through_their_medians():
    x = torch.randn(5, 6, 4)
    flows = {"RNN": gradient_flow(RNNCell(4, 4), x), "LSTM": gradient_flow(LSTMCell(4, 4), x)}
    figure = flow_picture(flows, title="Flow")
    axes = figure.axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    for name, flow in flows.items():
        np.testing.assert_array_equal(lines[name].get_xdata(), np.arange(7))
        np.testing.assert_allclose(lines[name].get_ydata(), np.median(flow.detach().double().numpy(), axis=1))
    assert len({(line.get_color(), line.get_linestyle()) for line in lines.values()}) == len(lines)
    assert len({line.get_linestyle() for line in (lines["RNN"], lines["LSTM"])}) == 2
    assert axes.get_yscale() == "log"
    assert legend(axes) == ["RNN", "LSTM"]
    assert head(figure) == "Flow lines: medians; bands: from the smallest to the largest"


def test_a_gradient_that_is_gone_is_told_of():
    figure = flow_picture({"dead": [1.0, 1e-30, 0.0, 0.0]})
    line = next(line for line in figure.axes[0].lines if line.get_label() == "dead")
    np.testing.assert_array_equal(line.get_ydata(), [1.0, 1e-30])
    assert head(figure) == "dead: exactly 0 at 2 of 4 steps, first at 2"


def test_names_are_text(tmp_path):
    figure = flow_picture({"$\\frac": [1.0, 2.0], "\n": [1.0, 3.0]}, label="$")
    assert legend(figure.axes[0]) == ["$\\frac", "‹U+000A›"]
    save(figure, tmp_path / "a.png")


def test_one_training_has_its_loss_its_scores_and_its_rate(tmp_path):
    figure = training_picture(training(tmp_path / "model", 4.0, 3.0, 2.0), title="Training")
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "bleu", "learning rate"]
    loss, validation = figure.axes[0].lines
    np.testing.assert_array_equal(loss.get_xydata(), [[1, 4], [2, 3], [3, 2]])
    np.testing.assert_array_equal(validation.get_xydata(), [[3, 1.5]])
    np.testing.assert_array_equal(figure.axes[1].lines[0].get_xydata(), [[3, 30.5]])
    np.testing.assert_allclose(figure.axes[2].lines[0].get_ydata(), [0.1] * 3)
    assert legend(figure.axes[0]) == ["training", "validation"]
    save(figure, tmp_path / "a.png")


def test_several_trainings_are_told_apart_by_their_folders(tmp_path):
    folders = [training(tmp_path / name / "model", 4.0, 3.0) for name in ("rnn", "transformer")]
    figure = training_picture([folders[0], str(folders[1] / "metrics.jsonl")])
    assert legend(figure.axes[0]) == ["rnn/model, training", "rnn/model, validation", "transformer/model, training",
                                      "transformer/model, validation"]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 2


def test_a_loss_that_was_no_number_is_a_gap(tmp_path):
    figure = training_picture(training(tmp_path / "model", 4.0, "null", 2.0))
    assert np.isnan(figure.axes[0].lines[0].get_ydata()).tolist() == [False, True, False]
    assert head(figure) == "the loss was NaN or infinite at 1 of 3 logged steps"


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: flow_picture({}), ["`flows`"]),
    (lambda: flow_picture({"a": [1.0, -1.0]}), ['flows["a"]', "negative"]),
    (lambda: flow_picture({"a": [1.0, np.inf]}), ['flows["a"]', "finite"]),
    (lambda: flow_picture({"a": []}), ['flows["a"]']),
    (lambda: flow_picture({"a": np.ones((1, 2, 3))}), ['flows["a"]', "(steps, rows)"]),
    (lambda: training_picture([]), ["`folders`"]),
    (lambda: training_picture("nowhere"), ["nowhere", "metrics.jsonl"]),
])
def test_wrong_arguments_are_refused(call, parts):
    assert_named(call, parts)


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
    assert run.notes == ("the loss was NaN or infinite at 1 of 3 logged steps",)
    file = TrainingCurves.read(tmp_path / "metrics.jsonl")
    np.testing.assert_array_equal(file.loss, run.loss)


def test_a_file_of_an_earlier_version_can_be_read(tmp_path):
    """Validations were called "judged"; a training that was resumed may have written both."""
    lines = [LINE.format(1, 4.0), VALIDATION.format(1, 10.0).replace("validation", "judged"),
             VALIDATION.format(2, 20.0)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    np.testing.assert_array_equal(TrainingCurves.read(tmp_path).scores["bleu"], [[1, 2], [10, 20]])


@pytest.mark.parametrize("char", ["\u2028", "\x85", "\x0c", "\r"])
def test_only_a_line_feed_ends_a_line(tmp_path, char):
    """Lines have sentences of people in them."""
    entry = {"event": "validation", "step": 3, "scores": {"bleu": 1.5}, "text": f"a{char}b"}
    line = json.dumps(entry, ensure_ascii=False)
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
    ("nonsense", "metrics.jsonl:2: invalid JSON"),
    ("[1]", 'metrics.jsonl:2: expected a JSON object with an "event"'),
    ('{"event": "progress", "loss": 1.0, "rate": 1.0}', 'metrics.jsonl:2: .*"step"'),
    ('{"event": "progress", "step": true, "loss": 1.0, "rate": 1.0}', 'metrics.jsonl:2: .*"step"'),
    ('{"event": "progress", "step": 1, "loss": "low", "rate": 1.0}', 'metrics.jsonl:2: .*"loss"'),
    ('{"event": "validation", "step": 1, "scores": {"bleu": "good"}}', 'metrics.jsonl:2: .*"scores"'),
    ('{"event": "judged", "step": 1, "scores": {"bleu": "good"}}', 'metrics.jsonl:2: .*"scores"'),
])
def test_another_line_that_is_wrong_is_named(tmp_path, line, said):
    good = json.dumps({"event": "progress", "step": 1, "loss": 1.0, "rate": 1.0})
    (tmp_path / "metrics.jsonl").write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(ValueError, match=said):
        TrainingCurves.read(tmp_path)


@pytest.mark.parametrize(("data", "said"), [
    (b"", "no training progress"),
    (b'{"event": "ended"}\n', "no training progress"),
    (b"\xff\n", "byte 0 is not UTF-8"),
])
def test_a_file_without_a_training_is_named(tmp_path, data, said):
    (tmp_path / "metrics.jsonl").write_bytes(data)
    with pytest.raises(ValueError, match=said):
        TrainingCurves.read(tmp_path)


def test_a_folder_without_one_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        TrainingCurves.read(tmp_path)


def test_the_line_is_the_median_and_the_band_goes_from_the_smallest_to_the_largest():
    figure = length_picture({"a": {4: [9.0, 1.0, 2.0], 2: [5.0]}}, "loss")
    (axes,) = figure.axes
    line = axes.get_lines()[0]
    assert list(line.get_xdata()) == [2, 4]
    assert list(line.get_ydata()) == [5.0, 2.0]
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[:, 1].min() == 1.0
    assert corners[:, 1].max() == 9.0
    assert any("medians" in text.get_text() for text in figure.texts)


def test_what_cannot_be_drawn_is_left_out_and_said():
    figure = length_picture({"a": {2: [1.0], 4: [math.nan], 8: [0.0]}}, "loss", scale="log", baseline={2: 0.5, 8: 0.1})
    (axes,) = figure.axes
    assert list(axes.get_lines()[0].get_xdata()) == [2]
    assert list(axes.get_lines()[1].get_ydata()) == [0.5, 0.1]
    said = " ".join(text.get_text() for text in figure.texts)
    assert "at 4" in said
    assert "at 8" in said


def test_every_length_is_written_at_the_axis_as_far_as_there_is_room():
    (few,) = length_picture({"a": {2: [1.0], 1024: [2.0]}}, "loss").axes
    assert list(few.get_xticks()) == [2, 1024]
    (many,) = length_picture({"a": {length: [1.0] for length in range(1, 101)}}, "loss").axes
    assert len(many.get_xticks()) <= 12


def test_published_values_are_crosses_in_the_colour_of_the_line():
    values = {"a": {2: [1.0], 4: [2.0]}, "b": {2: [3.0]}}
    (axes,) = length_picture(values, "loss", marks={"b": {3: 0.5}}, marks_name="published").axes
    a, b, cross, shown = axes.get_lines()
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([3], [0.5])
    assert cross.get_color() == b.get_color() != a.get_color()
    assert cross.get_marker() == shown.get_marker() == "x"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "published"]
    with pytest.raises(ValueError, match="`marks` must be one of"):
        length_picture(values, "loss", marks={"c": {3: 0.5}})


def test_nothing_to_draw_is_refused():
    for nothing in ({}, {"a": {}}, {"a": {2: []}}):
        with pytest.raises(ValueError, match="`values` must be at least one number"):
            length_picture(nothing, "loss")
    with pytest.raises(ValueError, match="`scale` must be one of"):
        length_picture({"a": {2: [1.0]}}, "loss", scale="logarithmic")
