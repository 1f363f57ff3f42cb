"""The model card: what README.md in a model folder tells a stranger."""

import re

import pytest
import texting
from texting import LABELS, RECORD
from tiny import ALL

import regard
from regard.tasks.card import TASK_USAGE, describe_languages, directions, model_card
from regard.tasks.load import TASK_CLASSES, make_task

SHA = "a" * 64
TRAINED = {
    "recipe": "transformer-tiny",
    "data": {"source_lang": "en", "target_lang": "pt-BR", "pairs": 4995, "validation_examples": 500,
             "validation_fraction": 0.1, "files": [f"pairs.tsv {SHA}"]},
    "training": {"seed": 1, "rdrop": 0.0, "label_smoothing": 0.1, "schedule": {"max_steps": 7000}},
    "scores": {"step": 6000, "bleu": 41.2512345, "loss": 2.5},
}


def card(kind="encoder-decoder", record=None, **options):
    return model_card(kind, 12_345, **{"reads_text": True, "record": record, **options})


def test_what_it_says(tmp_path):
    made = texting.translator()
    record = {**RECORD, "data": {"files": [f"/home/me/secret/train.tsv {SHA}", "val.tsv " + "b" * 64]},
              "scores": {"bleu": 41.2512345, "signature": "case:lc|tok:13a"}}
    make_task(made.model, made.config, tokenizer=made.tokenizer, record=record).save(tmp_path / "model")
    text = (tmp_path / "model" / "README.md").read_text()
    for part in ("`encoder-decoder`", "`transformer-tiny`", f"{made.config.parameters():,} parameters",
                 regard.__version__, "| BLEU | `41.25` |", r"`case:lc\|tok:13a`", f"| `train.tsv` | `{SHA}`",
                 "| `val.tsv` |", "regard translate", '.translate("...")', "pipeline_tag: translation"):
        assert part in text, part
    for part in ("secret", "/home", str(tmp_path)):
        assert part not in text


def test_languages():
    text = card(record=TRAINED)
    head, body = text.removeprefix("---\n").split("---\n", 1)
    assert 'language:\n- "en"\n- "pt-BR"\n' in head
    assert "English (en) to Portuguese (pt-BR)" in body.split("\n")[1]
    assert "language:" not in card().split("---\n")[1]
    assert "--set-languages" in card()
    assert "--set-languages" not in card("language")
    assert describe_languages("en", None) == "English (en) to an unknown language"
    assert describe_languages(None, None) == ""


@pytest.mark.parametrize(("data", "part"), [
    ({}, "500 pairs held out from the training data"),
    ({"validation_files": ["dev.tsv"], "validation_fraction": 0.0}, "the validation data (500 pairs): `dev.tsv`"),
    ({"validation_fraction": 0.0}, "500 pairs of the training data itself"),
    ({"validation_examples": 1}, "1 pair held out"),
    ({"training_examples": 4495, "mixed_pairs": 7}, "4,495 training pairs, 7 pairs of general data, 500 validation "),
    ({"training_examples": 4995, "validation_fraction": 0.0}, "4,995 training pairs. The files")])
def test_scores_say_what_they_were_measured_on(data, part):
    text = card(record={**TRAINED, "data": {**TRAINED["data"], **data}})
    assert part in text
    assert "step 6,000" in text


def test_accuracy_and_f1_are_shown_from_0_to_100():
    text = card(record={**TRAINED, "scores": {"accuracy": 0.93152, "f1": 0.5, "loss": 2.5}})
    assert "| accuracy | `93.15%` |" in text
    assert "| F1 | `50.00` |" in text
    assert "| loss (nats per token) | `2.500` |" in text


def test_scores_with_intervals():
    scores = {**TRAINED["scores"], "chrf": 60.0, "bleu_interval": [40.123, 42.456], "degenerate": ["92% `are` <b>."]}
    text = card(record={**TRAINED, "scores": scores})
    assert "| BLEU | `41.25` [40.12, 42.46] |\n" in text
    assert "| chrF | `60.00` |\n" in text
    assert "95 % confidence intervals" in text
    assert "**Warning:** 92% 'are'" in text
    assert "interval |" not in text
    plain = card(record=TRAINED)
    assert "95 %" not in plain
    assert "**Warning" not in plain
    for odd in (None, 3, [1], ["a", "b"], {"low": 1}):  # what somebody wrote into a config.toml
        assert "| BLEU | `41.25` |" in card(record={**TRAINED, "scores": {**scores, "bleu_interval": odd}})


def test_settings_and_counts():
    text = card(record=TRAINED)
    assert "4,995 pairs" in text
    assert "| steps | `7000` |" in text
    assert "| label smoothing | `0.1` |" in text
    assert "R-Drop" not in text  # it is off


def test_files_may_be_a_table():
    assert f"| `a.txt` | `{SHA}` |" in card("masked", {"data": {"files": {"folder/a.txt": SHA}}})


def test_without_a_tokenizer_it_shows_the_way_with_ids():
    text = card(reads_text=False)
    assert ".translate_ids(" in text
    assert "regard translate" not in text
    assert "## Scores" not in text
    assert "## Training data" not in text


def test_of_a_tagger_it_shows_what_a_tagger_does():
    text = card("tagger", labels=LABELS)
    assert "labeller.label(" in text
    assert "regard label " in text
    assert ".classify(" not in text  # which gives a label to a whole text, and a tagger refuses


def test_labels_are_named_and_nothing_is_markup():
    text = card("classifier", labels=("a`b", "<script>", "x\ny"))
    assert "`a'b`, `<script>`, `x\\ny`" in text
    assert all(name in card("vision", labels=LABELS, reads_text=False) for name in (*LABELS, "image.png"))


@pytest.mark.parametrize("config", ALL.values(), ids=ALL)
def test_every_kind_of_model_has_its_usage(config):
    usage, task = TASK_USAGE[config.kind], TASK_CLASSES[type(config)]
    for call in filter(None, (usage.call, usage.with_ids)):
        assert hasattr(task, re.match(r"\.(\w+)\(", call)[1])


def test_each_direction_has_its_interval():
    scores = {"bleu": 30.0, "chrf": 50.0, "bleu/en-fr": 40.0, "bleu/en-fr_interval": [39.0, 41.5], "chrf/en-fr": 60.0,
              "bleu/fr-en": 20.0, "chrf/fr-en": 40.0, "chrf/fr-en_interval": [38.25, 42.0]}
    text = card(record={"data": {"directions": ["en-fr", "fr-en"]}, "scores": scores})
    assert "| en-fr | `40.00 [39.00, 41.50]` / `60.00` |" in text
    assert "| fr-en | `20.00` / `40.00 [38.25, 42.00]` |" in text
    assert text.count("95 %") == 1


def test_directions_that_are_none_are_left_out():
    record = {"data": {"directions": ["en-fr", "nonsense", 7, "fr-en"]}}
    assert [*map(str, directions(record))] == ["en-fr", "fr-en"]
    assert directions({"data": {"directions": "en-fr"}}) == ()
    assert "--to fr" in model_card("encoder-decoder", 10, reads_text=True, record=record)
