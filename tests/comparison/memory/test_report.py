"""The report: the numbers of the results, the published ones beside them, and a picture of the same."""

import json
from dataclasses import replace

import pytest

from regard.comparison.memory import MemoryResult, result_lines, results_figure, results_table, save_figures

COPY = MemoryResult(task="copy", way="lstm", length=80, seed=0, tokens=100, loss=0.2, accuracy=0.2, chance=0.20794,
              chance_accuracy=0.125, parameters=1000, width=8, layers=2, seen=None, steps=40, seconds=1.5,
              curve=((20, 0.3), (40, 0.2)))
RESULTS = [COPY, replace(COPY, seed=1, loss=0.16), replace(COPY, seed=2, loss=0.18),
           replace(COPY, way="convolution", loss=1e-5, seen=106, layers=4, steps=20)]
RECALL = replace(COPY, task="recall", length=64, accuracy=0.5, chance=3.4657, chance_accuracy=1 / 32)


def test_lines_have_medians_ranges_and_a_star_for_what_is_solved():
    rows = {line.split("  ")[0]: line for line in result_lines(RESULTS)[:5]}
    assert "0.180 [0.160, 0.200]" in rows["lstm"]
    assert "*" not in rows["lstm"]
    assert "all" in rows["lstm"]
    assert "1.0e-05*" in rows["convolution"]
    assert "106" in rows["convolution"]
    assert "0.208" in rows["without memory"]
    published = next(line for line in result_lines(RESULTS) if "3.5e-5" in line)
    assert " ".join(published.split()) == "convolution (TCN) 1,000 loss 3.5e-5 Bai, Kolter, Koltun 2018"


def test_a_star_needs_every_seed():
    row = next(line for line in result_lines([COPY, replace(COPY, seed=1, loss=1e-5)]) if line.startswith("lstm"))
    assert "*" not in row


def test_recall_is_shown_by_its_accuracy():
    shown = "\n".join(result_lines([RECALL]))
    assert "accuracy on new sequences" in shown
    assert "0.500" in shown
    assert "0.0312" in shown


def test_a_length_that_a_way_was_not_asked_for_is_a_dash():
    row = next(line for line in result_lines([*RESULTS, replace(COPY, length=5)]) if line.startswith("convolution"))
    assert row.split()[1] == "-"


def test_the_table_is_json_with_everything_that_is_known():
    made = json.loads(json.dumps(results_table(RESULTS), allow_nan=False))
    assert made["lengths"] == [80]
    assert made["ways"] == ["lstm", "convolution"]
    assert made["results"][3]["solved"]
    assert not made["results"][0]["solved"]
    assert made["results"][0]["curve"] == [[20, 0.3], [40, 0.2]]
    assert {figure["source"] for figure in made["published"]} >= {"Bai, Kolter, Koltun 2018"}


def test_the_picture_has_the_published_figures_that_are_not_longer():
    long = [replace(one, length=1024) for one in RESULTS]
    assert _crosses([*RESULTS, *long]) == [([1000], [0.0204]), ([1000], [3.5e-5])]
    attention = [replace(RECALL, way="attention"), replace(RECALL, way="attention", length=256)]
    assert _crosses(attention) == [([64, 256], [1.0, 1.0])]


def _crosses(results):
    """Where they stand; the one of the legend stands nowhere."""
    found = [line for line in results_figure(results).axes[0].get_lines() if line.get_marker() == "x"]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in found if len(line.get_xdata())]


@pytest.mark.parametrize("results", [RESULTS, [RECALL]])
def test_the_picture_has_a_line_for_every_way_and_one_for_chance(results):
    (axes,) = results_figure(results).axes
    names = [line.get_label() for line in axes.get_lines()]
    assert names == [*dict.fromkeys(one.way for one in results), "without memory"]
    assert list(axes.get_lines()[0].get_ydata()) == ([0.18] if results is RESULTS else [0.5])


def test_pictures_are_saved_under_the_name_of_the_task(tmp_path):
    assert sorted(path.name for path in tmp_path.iterdir()) == []
    save_figures(RESULTS, tmp_path)
    assert (tmp_path / "copy.svg").read_bytes()[:5] == b"<?xml"
    assert (tmp_path / "copy.png").read_bytes()[1:4] == b"PNG"


def test_results_of_two_tasks_are_refused():
    with pytest.raises(ValueError, match="`results` must be those of one task, but is copy, recall"):
        result_lines([COPY, RECALL])
    with pytest.raises(ValueError, match="empty"):
        result_lines([])
