"""The README of a model's folder: what it says, and that nothing in it is a sentence, a path or markup."""

import re

import pytest
import texting
from texting import LABELS, RECORD
from tiny import ALL, VISION

import regard
from regard.tasks.load import TASK_CLASSES, make_task
from regard.tasks.task import TASK_USAGE, model_card


def test_what_it_says(tmp_path):
    made = texting.translator()
    record = {**RECORD, "data": {"files": ["/home/me/secret/train.tsv " + "a" * 64, "val.tsv " + "b" * 64]},
              "scores": {"bleu": 41.2512345, "signature": "case:lc|tok:13a"}}
    make_task(made.model, made.config, tokenizer=made.tokenizer, record=record).save(tmp_path / "model")
    text = (tmp_path / "model" / "README.md").read_text()
    for part in ("`encoder-decoder`", "`transformer-tiny`", f"{made.config.parameters():,} parameters",
                 regard.__version__, "| `bleu` | `41.25` |", r"`case:lc\|tok:13a`", "| `train.tsv` | `" + "a" * 64,
                 "| `val.tsv` |", "regard translate", '.translate("...")'):
        assert part in text, part
    for part in ("secret", "/home", str(tmp_path)):
        assert part not in text


def test_files_may_be_a_table():
    text = model_card("Filler", texting.filler().config, reads_text=True, labels=None,
                record={"data": {"files": {"folder/a.txt": "c" * 64}}})
    assert "| `a.txt` | `" + "c" * 64 + "` |" in text


def test_without_a_tokenizer_it_shows_the_way_with_ids():
    text = model_card("Translator", texting.translator().config, reads_text=False, labels=None, record={})
    assert ".translate_ids(" in text
    assert "regard translate" not in text
    assert "## Scores" not in text
    assert "## Data" not in text


def test_of_a_tagger_it_shows_what_a_tagger_does():
    text = model_card("Classifier", texting.tagger().config, reads_text=True, labels=LABELS, record={})
    assert "task.label_ids(" in text
    assert "classify" not in text  # which gives a label to a whole text, and a tagger refuses


def test_labels_are_named_and_nothing_is_markup():
    text = model_card("Classifier", texting.classifier().config, reads_text=True, record={},
                labels=("a`b", "<script>", "x\ny"))
    (line,) = [line for line in text.splitlines() if line.startswith("- labels")]
    assert line == "- labels: `a'b`, `<script>`, `x\\ny`"
    assert all(name in model_card("Classifier", VISION["class"], reads_text=False, labels=LABELS, record={})
               for name in (*LABELS, "image.png"))


@pytest.mark.parametrize("task", sorted({task.__name__ for task in TASK_CLASSES.values()}))
def test_every_task_has_its_use(task):
    use, made = TASK_USAGE[task], next(config for config in ALL.values() if TASK_CLASSES[type(config)].__name__ == task)
    for call in (use.call, use.with_ids):
        name = re.match(r"\.(\w+)\(", call)[1]
        assert hasattr(TASK_CLASSES[type(made)], name)
