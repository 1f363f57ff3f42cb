"""The folder of a comparison: ours or not, the same or another, finished or not."""

import json

import pytest
import texting

from regard.comparison.runs import PLAN_FILE, claim_folder, plan_steps
from regard.comparison.settings import ComparisonBudget, ComparisonSettings, road_steps
from regard.comparison.splits import split_data
from regard.storage.filesystem import FolderError

ASKED = {"data": {"pairs.tsv": "1f"}, "budget": {"tokens": 100}}


def test_the_same_comparison_is_found_again(tmp_path):
    first = claim_folder(tmp_path / "c", ASKED)
    first.finish("seq2seq", 1, {"bleu": 3.0, "text": "\udc80 é"})
    again = claim_folder(tmp_path / "c", {**ASKED})
    assert again.finished("seq2seq", 1)["bleu"] == 3.0
    assert again.finished("seq2seq", 2) is None
    assert not [path.name for path in (tmp_path / "c" / "runs").iterdir() if path.name.endswith(".part")]


def test_another_comparison_is_refused_with_what_differs(tmp_path):
    claim_folder(tmp_path / "c", ASKED)
    with pytest.raises(FolderError, match=r'budget: {"tokens": 100} is stored, {"tokens": 200} is requested'):
        claim_folder(tmp_path / "c", {**ASKED, "budget": {"tokens": 200}})


def test_nothing_is_done_in_folders_of_others(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "letter.txt").write_text("dear")
    with pytest.raises(FolderError, match="no comparison"):
        claim_folder(tmp_path / "theirs", ASKED)
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["letter.txt"]
    with pytest.raises(FolderError, match="This is a file"):
        claim_folder(tmp_path / "theirs" / "letter.txt", ASKED)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / PLAN_FILE).write_text(json.dumps({"format": "a garden"}))
    with pytest.raises(FolderError, match=r"plan\.json"):
        claim_folder(tmp_path / "other", ASKED)
    (tmp_path / "other" / PLAN_FILE).write_text("{")
    with pytest.raises(FolderError, match="is damaged"):
        claim_folder(tmp_path / "other", ASKED)


TINY = {"model.width": 16, "tokenizer.vocab_size": 400, "training.batches.max_tokens": 300}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    place = tmp_path_factory.mktemp("trial")
    (place / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in texting.pairs()))
    return split_data([str(place / "a.tsv")], place / "data")


def test_more_tokens_are_more_steps_the_same_for_all_models(files, tmp_path):
    def found(tokens):
        setting = ComparisonSettings.quick(road_steps(["seq2seq", "transformer"]),
                                           budget=ComparisonBudget(tokens=tokens), changes=TINY)
        return plan_steps(setting, files, tmp_path / "trial")

    few, many = found(1000), found(4000)
    assert few["seq2seq"] == few["transformer"]
    assert 3.5 * few["seq2seq"].steps <= many["seq2seq"].steps <= 4.5 * few["seq2seq"].steps
    assert not (tmp_path / "trial").exists()


def test_parameters_are_matched(files, tmp_path):
    setting = ComparisonSettings.quick(road_steps(["seq2seq-attention"]),
                                       budget=ComparisonBudget(tokens=1000, parameters=400_000),
                                       changes=TINY)
    allowed = plan_steps(setting, files, tmp_path / "trial")["seq2seq-attention"]
    assert allowed.changes["model.width"] > 64


def test_minutes_become_steps(files, tmp_path):
    setting = ComparisonSettings.quick(road_steps(["attention"]), budget=ComparisonBudget(minutes=0.5), changes=TINY)
    assert plan_steps(setting, files, tmp_path / "trial")["attention"].steps > 1
