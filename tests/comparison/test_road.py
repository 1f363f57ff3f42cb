"""A whole comparison on very little data: what is told, what is on the page, and what is not done again."""

import json
from pathlib import Path

import pytest
import texting

from regard.comparison import road as report
from regard.comparison import runs as comparison_runs
from regard.comparison import splits
from regard.comparison.pages import bucket_name, long_sentence_ratio
from regard.comparison.road import ComparisonData, SeedSpread, compare_road
from regard.comparison.runs import PAGE_FILE, RESULTS_FILE
from regard.comparison.settings import ROAD, ComparisonBudget, ComparisonSettings, road_steps
from regard.tasks.evaluation import evaluate_translator
from regard.tasks.load import load
from regard.training import train as runs

pytestmark = pytest.mark.thorough

NAMES = ("seq2seq", "transformer")
TINY = {"model.width": 16, "tokenizer.vocab_size": 400, "training.batches.max_tokens": 300}


def asked(names=NAMES, **options):
    return ComparisonSettings.quick(road_steps(names), budget=ComparisonBudget(tokens=500), changes=TINY, **options)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A finished comparison: its folder, its data, what it found, and what was said meanwhile."""
    folder = tmp_path_factory.mktemp("road")
    data = folder / "pairs.tsv"
    data.write_text("".join(f"{source}\t{target}\n" for source, target in texting.pairs()), encoding="utf-8")
    said = []
    found = compare_road(asked(seeds=2), ComparisonData((str(data),)), folder / "c",
                         comparison_runs.RunReporter(said.append, lambda: []))
    return folder / "c", data, found, said


def test_all_models_had_the_same_and_all_is_told(place):
    folder, _, found, said = place
    assert [line.split(":")[0] for line in said] == [f"{number} of 4" for number in range(1, 5)]
    assert json.loads((folder / RESULTS_FILE).read_text()) == json.loads(json.dumps(found))
    first, second = found["models"]
    assert (first["name"], first["attends"], second["attends"]) == ("seq2seq", False, True)
    assert first["tokens"] == second["tokens"]
    assert first["steps"] == second["steps"]
    assert 500 <= first["tokens"] < 1000
    for model in found["models"]:
        assert model["bleu"]["low"] <= model["bleu"]["mean"] <= model["bleu"]["high"]
        assert model["loss"]["deviation"] > 0  # two seeds are two models
        assert min(model["parameters"], model["memory"], model["tokens_per_second"]["mean"]) > 0
        assert len(model["flow"]["all"]) == len(model["flow"]["last"]) == 10
        assert len(model["curve"]["tokens"]) == len(model["curve"]["nll"]) > 1
        assert sum(bucket["pairs"] for bucket in model["by_length"]) == found["data"]["test"] == 10
    assert found["budget"]["tokens"] == 500
    assert found["data"]["train"] + found["data"]["validation"] + found["data"]["test"] == 200


def test_the_scores_are_those_of_the_models_in_the_folder(place):
    folder, _, found, _ = place
    tested = splits.read_pairs(folder / "data" / "test.jsonl")
    want = [evaluate_translator(load(folder / "runs" / f"transformer-{seed}"), tested, beams=1).scores.chrf
            for seed in (1, 2)]
    chrf = found["models"][1]["chrf"]
    assert (chrf["low"], chrf["high"]) == pytest.approx((min(want), max(want)))


def test_the_page_is_one_file_with_every_picture(place):
    folder, _, found, _ = place
    page = (folder / PAGE_FILE).read_text(encoding="utf-8")
    assert page.count("<svg") == len(found["models"]) + 1 + 2 + 2 + 1  # bars, lengths, curves, flows, one map
    assert "no attention" in page
    assert "same tokenizer" in page
    for no in ("<script", "http://", "https://", "<img", "<link", "@import", "url("):
        assert no not in page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "prefers-color-scheme:dark" in page
    assert len(page) < 300_000


def test_what_is_finished_is_not_done_again_and_more_may_be_asked_for(place, monkeypatch):
    folder, data, found, _ = place
    trained = []
    monkeypatch.setattr(comparison_runs, "train", lambda request, loggers: trained.append(request.output.name))
    said = []
    told = comparison_runs.RunReporter(said.append, lambda: [])
    again = compare_road(asked(seeds=2), ComparisonData((str(data),)), folder, told)
    assert (trained, again) == ([], found)
    assert all("finished before" in line for line in said)
    with pytest.raises(AttributeError):  # this training gives nothing back
        compare_road(asked(seeds=3), ComparisonData((str(data),)), folder, told)
    assert trained == ["seq2seq-3"]


def test_another_comparison_does_not_go_into_the_same_folder(place, tmp_path):
    folder, data, _, _ = place
    told = comparison_runs.RunReporter(print, lambda: [])
    with pytest.raises(ValueError, match="beams: 1 is stored, 2 is requested"):
        compare_road(asked(beams=2), ComparisonData((str(data),)), folder, told)
    other = tmp_path / data.name
    other.write_text(data.read_text(encoding="utf-8") + "a\tb\n", encoding="utf-8")
    with pytest.raises(ValueError, match="data: "):
        compare_road(asked(), ComparisonData((str(other),)), folder, told)


def test_a_training_that_was_interrupted_goes_on(place, tmp_path, monkeypatch):
    _, data, _, _ = place
    begun = []

    def interrupted(request, loggers):
        begun.append(request.resume)
        outcome = train(request, loggers)
        return outcome._replace(finished=False) if len(begun) == 1 else outcome

    train = runs.train
    monkeypatch.setattr(comparison_runs, "train", interrupted)
    told = comparison_runs.RunReporter(lambda text: None, lambda: [])
    with pytest.raises(comparison_runs.InterruptedTraining, match="The same command resumes it"):
        compare_road(asked(("attention",)), ComparisonData((str(data),)), tmp_path / "c", told)
    assert not (tmp_path / "c" / RESULTS_FILE).exists()
    compare_road(asked(("attention",)), ComparisonData((str(data),)), tmp_path / "c", told)
    assert begun == [False, True]


@pytest.mark.slow
def test_a_very_short_road_on_the_phrasebook(tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "PHRASEBOOK_DRAWS", {"train": (400, 1), "validation": (10, 2), "test": (20, 3)})
    setting = ComparisonSettings.quick(road_steps(ROAD), budget=ComparisonBudget(tokens=3000),
                                       changes={"model.width": 32})
    found = compare_road(setting, ComparisonData(), tmp_path / "c",
                         comparison_runs.RunReporter(lambda text: None, lambda: []))
    assert [model["name"] for model in found["models"]] == list(ROAD)
    assert found["data"]["name"] == report.PHRASEBOOK
    one_vector, transformer = found["models"][0]["flow"]["all"], found["models"][-1]["flow"]["all"]
    assert one_vector[0] < 0.5 * transformer[0]  # what was read first fades in one vector, learned or not
    assert (Path(tmp_path) / "c" / PAGE_FILE).read_text(encoding="utf-8").count("<h3>") == 5


def test_a_spread_is_of_all_seeds():
    assert SeedSpread.of([1.0, 2.0, 6.0]) == (3.0, 1.0, 6.0, pytest.approx(7**0.5))
    assert SeedSpread.of([4.0]) == (4.0, 4.0, 4.0, None)


def test_lengths_are_named():
    assert [bucket_name({"least": least, "most": most}) for least, most in ((0, 10), (11, 20), (51, None))] == \
        ["1-10", "11-20", "51+"]


def test_what_is_kept_on_long_sentences_is_told_of_buckets_that_say_something():
    def model(*buckets):
        return {"by_length": [{"pairs": pairs, "bleu": {"mean": mean}} for pairs, mean in buckets]}

    assert long_sentence_ratio(model((50, 40.0), (50, 20.0), (50, 10.0), (1, 0.0))) == 0.25
    assert long_sentence_ratio(model((50, 40.0), (1, 0.0))) is None
    assert long_sentence_ratio(model((50, 0.0), (50, 0.0))) is None
