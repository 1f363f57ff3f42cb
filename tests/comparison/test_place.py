"""The folder of a comparison: ours or not, the same or another, finished or not."""

import json

import pytest

from regard.comparison.runs import PLAN_FILE, claim_folder
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
    with pytest.raises(FolderError, match="Not the plan"):
        claim_folder(tmp_path / "other", ASKED)
    (tmp_path / "other" / PLAN_FILE).write_text("{")
    with pytest.raises(FolderError, match="is damaged"):
        claim_folder(tmp_path / "other", ASKED)
