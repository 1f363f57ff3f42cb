"""`regard evaluate`: what is told of each kind of model, on each kind of data."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import texting
from calling import call, idx, lines, tables

import regard
from regard.cli import options as models
from regard.tasks import evaluation
from regard.tasks.evaluation import corpus_scores, evaluate_translator
from regard.tasks.translator import Translator

PAIRS = texting.pairs()[:6]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model of each kind."""
    place = tmp_path_factory.mktemp("evaluate")
    for name in ("translator", "completer", "filler", "classifier", "seer"):
        getattr(texting, name)().save(place / name)
    (place / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    (place / "plain.en").write_text("".join(f"{source}\n" for source, _ in PAIRS))
    (place / "plain.fr").write_text("".join(f"{target}\n" for _, target in PAIRS))
    return place


@pytest.mark.thorough
def test_a_translator(place, tmp_path):
    task = regard.load(place / "translator")
    want = evaluate_translator(task, PAIRS, beams=2)
    (found,) = tables("evaluate", place / "translator", place / "pairs.tsv", "--beam", "2", "-o", tmp_path / "out")
    assert (found["pairs"], found["beam"], found["tokens"], found["cut"]) == (6, 2, want.loss.tokens, want.cut)
    assert found["bleu"] == pytest.approx(want.scores.bleu)
    assert (found["bleu_signature"], found["chrf_signature"]) == want.scores[2:4]
    assert [found["bleu_interval"], found["chrf_interval"]] == [pytest.approx([*one]) for one in want.scores[4:]]
    assert found["degenerate"] == [one._asdict() for one in want.degenerate]
    assert found["loss"] == pytest.approx(want.loss.mean)
    assert found["perplexity"] == pytest.approx(math.exp(want.loss.mean))
    assert found["by_length"] == [pytest.approx(bucket._asdict()) for bucket in want.by_length]
    written = (tmp_path / "out").read_bytes().decode().split("\n")
    assert written == [*(text.replace("\n", " ").replace("\r", " ") for text in want.hypotheses), ""]
    both = tables("evaluate", place / "translator", place / "plain.en", place / "plain.fr", "--beam", "2")
    assert both == [found]


def test_a_table(place):
    options = ["--beam", "1", "--lowercase", "--tokenize", "char"]
    out = lines("evaluate", place / "translator", place / "pairs.tsv", *options)
    text = "\n".join(out)
    for part in ("6 pairs", "BLEU", "case:lc", "tok:char", "chrF signature", "perplexity", "beam size 1"):
        assert part in text
    assert out[-1].split()[:2] == ["0-10", "6"] or "11-20" in text


def test_intervals_and_degenerate_translations_are_told(place, tmp_path, monkeypatch):
    """A model that copies: the share is told, and the score with its interval in brackets."""
    monkeypatch.setattr(Translator, "translate", lambda self, texts, **options: [
        SimpleNamespace(text=text, cut=False) for text in texts])
    text = " ".join(lines("evaluate", place / "translator", place / "pairs.tsv"))
    found = corpus_scores(*zip(*PAIRS, strict=True), draws=1000)
    assert f"{found.chrf:.2f} [{found.chrf_interval.low:.2f}, {found.chrf_interval.high:.2f}]" in text
    assert f"{found.bleu:.2f} [{found.bleu_interval.low:.2f}, {found.bleu_interval.high:.2f}]" in text
    for part in ("95%", "1,000", "Warning: 100% of the translations"):
        assert part in " ".join(text.split())
    (table,) = tables("evaluate", place / "translator", place / "pairs.tsv")
    (one,) = table["degenerate"]
    assert (one["kind"], one["share"], one["reference_share"]) == ("copies", 1.0, 0.0)
    (tmp_path / "one.tsv").write_text("\t".join(PAIRS[0]) + "\n")
    (table,) = tables("evaluate", place / "translator", tmp_path / "one.tsv")
    assert (table["bleu_interval"], table["chrf_interval"], table["degenerate"]) == (None, None, [])
    assert "[" not in " ".join(lines("evaluate", place / "translator", tmp_path / "one.tsv"))


def test_each_direction_has_intervals_and_warnings(place, tmp_path, monkeypatch):
    monkeypatch.setattr(Translator, "translate", lambda self, texts, **options: [
        SimpleNamespace(text=text, cut=False) for text in texts])
    monkeypatch.setattr(Translator, "into", lambda self, language: self)
    (tmp_path / "other.tsv").write_text("".join(f"{source}\t{target}\n" for target, source in PAIRS))
    text = " ".join(" ".join(lines("evaluate", place / "translator", "--direction", f"en-fr:{place / 'pairs.tsv'}",
                                   "--direction", f"fr-en:{tmp_path / 'other.tsv'}")).split())
    for sources, targets in (zip(*PAIRS, strict=True), [*zip(*PAIRS, strict=True)][::-1]):
        found = corpus_scores(sources, targets, draws=1000)
        assert f"{found.chrf:.2f} [{found.chrf_interval.low:.2f}, {found.chrf_interval.high:.2f}]" in text
    for part in ("95%", "1,000", "Warning: en-fr: 100% of the translations", "Warning: fr-en: 100%"):
        assert part in text


def test_what_is_there_is_not_written_over(place, tmp_path):
    (tmp_path / "out").write_text("years of work")
    code, out, said = call("evaluate", place / "translator", place / "pairs.tsv", "-o", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "exists already" in said
    assert (tmp_path / "out").read_text() == "years of work"
    code, _, said = call("evaluate", place / "filler", place / "plain.en", "-o", tmp_path / "new")
    assert code == 2
    assert "-o" in said
    assert "a masked language model" in said
    code, _, said = call("evaluate", place / "translator", place / "pairs.tsv", "-o", tmp_path / "no" / "such")
    assert code == 2
    assert str(tmp_path / "no") in said


def test_a_place_for_translations_is_looked_for_first(place, tmp_path, monkeypatch):
    """A score that took an hour is not lost because the translations have no place."""
    monkeypatch.setattr(models, "open_task", lambda *arguments: pytest.fail("a model was read"))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for output, expected in ((tmp_path / "no" / "such", "does not exist"), (tmp_path / "link", "exists already")):
        code, out, said = call("evaluate", place / "translator", place / "pairs.tsv", "-o", output)
        assert (code, out) == (2, "")
        assert expected in said


@pytest.mark.parametrize(("model", "text", "expected"), [
    ("completer", "", "2 tokens"), ("classifier", "", "empty"), ("filler", "\n\n", "empty"),
])
def test_data_in_which_nothing_is(place, tmp_path, model, text, expected):
    """It has no score, and a loss of 0 would be the best there is."""
    (tmp_path / "data").write_text(text)
    code, out, said = call("evaluate", place / model, tmp_path / "data")
    assert (code, out) == (2, "")
    assert said.startswith(f"Error: {tmp_path / 'data'}: ")
    assert expected in said


@pytest.mark.parametrize(("data", "said"), [("none.tsv", "no such file"), ("plain.en", "two files")])
def test_data_that_cannot_be_read(place, data, said):
    code, out, err = call("evaluate", place / "translator", place / data)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_language_model(place):
    text = (place / "plain.en").read_text()
    want = evaluation.text_loss(regard.load(place / "completer"), text, window=20)
    (found,) = tables("evaluate", place / "completer", place / "plain.en", "--window", "20")
    assert (found["characters"], found["tokens"]) == (len(text), want.tokens)
    assert found["loss"] == pytest.approx(want.mean)
    assert found["bits_per_character"] == pytest.approx(want.nll / math.log(2) / len(text))
    (both,) = tables("evaluate", place / "completer", place / "plain.en", place / "plain.en", "--window", "20")
    assert both["tokens"] == 2 * want.tokens + 2  # the end of the first file, and the first character of the second


def test_the_window_of_the_training_is_taken(place, tmp_path):
    made = texting.completer()
    made.record = {"training": {"windows": {"length": 20}}}
    made.save(tmp_path / "model")
    made.record = {}
    asked = tables("evaluate", place / "completer", place / "plain.en", "--window", "20")
    assert tables("evaluate", tmp_path / "model", place / "plain.en") == asked
    assert tables("evaluate", tmp_path / "model", place / "plain.en", "--window", "9") != asked


def test_a_masked_model(place):
    (found,) = tables("evaluate", place / "filler", place / "plain.en")
    want = evaluation.masked_loss(regard.load(place / "filler"), [source for source, _ in PAIRS])
    assert (found["texts"], found["tokens"], found["loss"]) == (6, want.tokens, pytest.approx(want.mean))


def test_a_classifier_of_texts(place, tmp_path):
    task = regard.load(place / "classifier")
    labels = [found[0].name for found in task.classify([source for source, _ in PAIRS])]
    wrong = next(name for name in task.labels if name != labels[0])
    rows = [f"{source}\t{label}\n" for (source, _), label in zip(PAIRS, [wrong, *labels[1:]], strict=True)]
    (tmp_path / "data.tsv").write_text("".join(rows))
    (found,) = tables("evaluate", place / "classifier", tmp_path / "data.tsv")
    assert (found["examples"], found["correct"], found["accuracy"]) == (6, 5, pytest.approx(5 / 6))
    (tmp_path / "data.tsv").write_text("a\ttepid\n")
    code, _, said = call("evaluate", place / "classifier", tmp_path / "data.tsv")
    assert code == 2
    assert "'tepid'" in said


def test_a_classifier_of_images(place, tmp_path):
    task = texting.seer()
    numbered = type(task)(task.model, task.config)
    numbered.save(tmp_path / "model")
    images = np.random.default_rng(1).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    (tmp_path / "images").write_bytes(idx(images))
    (tmp_path / "labels").write_bytes(idx(np.array([0, 1, 2, 3, 4], np.uint8)))
    (found,) = tables("evaluate", tmp_path / "model", tmp_path / "images", tmp_path / "labels")
    assert found["examples"] == 5
    module = pytest.importorskip("PIL.Image")
    for number, image in enumerate(images):
        (tmp_path / "folder" / str(number)).mkdir(parents=True)
        module.fromarray(image).save(tmp_path / "folder" / str(number) / "x.png")
    assert tables("evaluate", tmp_path / "model", tmp_path / "folder") == [found]


@pytest.mark.parametrize(("option", "noun"), [
    (["--merge", "A=a"], "a labeller"), (["--columns", "frame,agent,x,y"], "a forecaster of tracks"),
    (["--frame-step", "2"], "a forecaster of tracks"), (["--window", "20"], "a language model"),
    (["--collision-distance", "0"], "a forecaster of tracks"),
])
def test_options_of_other_models_are_refused(tmp_path, option, noun):
    texting.translator().save(tmp_path / "model")
    code, out, said = call("evaluate", tmp_path / "model", tmp_path / "test.tsv", *option)
    assert (code, out) == (2, "")
    assert option[0] in said
    assert noun in said


@pytest.mark.parametrize("option", [["--beam", "5"], ["--lowercase"], ["--tokenize", "13a"], ["--source", "1"],
                                    ["--batch-tokens", "64"], ["--window", "1"]])
def test_options_without_effect_on_a_masked_model_are_refused(place, option):
    code, out, said = call("evaluate", place / "filler", place / "plain.en", *option)
    assert (code, out) == (2, "")
    assert option[0] in said
    assert "a masked language model" in said
