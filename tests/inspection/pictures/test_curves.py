"""Lines over time: through the points given, with a name each, zeros and gaps told of."""

import numpy as np
import pytest
import torch
from refusals import assert_named

from regard.inspection.pictures import flow_picture, save, training_picture
from regard.recurrence.cells import LSTMCell, RNNCell
from regard.recurrence.gradient_flow import gradient_flow

LINE = '{{"event": "progress", "step": {}, "loss": {}, "rate": 0.1}}\n'
JUDGED = '{{"event": "judged", "step": {}, "scores": {{"loss": 1.5, "bleu": {}}}}}\n'


def head(figure):
    return " ".join(text.get_text() for text in figure.texts)


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def training(folder, *numbers):
    folder.mkdir(parents=True)
    lines = [LINE.format(step, number) for step, number in enumerate(numbers, 1)]
    (folder / "metrics.jsonl").write_text("".join(lines) + JUDGED.format(len(numbers), 30.5))
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
    assert head(figure) == "the loss was no finite number at 1 of 3 times"


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: flow_picture({}), ["`flows`"]),
    (lambda: flow_picture({"a": [1.0, -1.0]}), ['flows["a"]', "negative"]),
    (lambda: flow_picture({"a": [1.0, np.inf]}), ['flows["a"]', "finite"]),
    (lambda: flow_picture({"a": []}), ['flows["a"]']),
    (lambda: flow_picture({"a": np.ones((1, 2, 3))}), ['flows["a"]', "(steps, rows)"]),
    (lambda: training_picture([]), ["`folders`"]),
    (lambda: training_picture("nowhere"), ["`folders`", "nowhere"]),
])
def test_what_does_not_fit_is_refused(call, parts):
    assert_named(call, parts)
