"""`regard label`, and what other commands do with sequences that have a label for every token."""

import json

import pytest
from calling import call, lines, tables
from tiny import built, reading

import regard
from regard.data.tokenizer.subwords import CharacterTokenizer
from regard.models.classification import TaggerConfig
from regard.tasks.load import make_task

CHAINS = "".join(f"{'ACDE' * (1 + n % 5)}{'KL'[n % 2]}{chr(70 + n % 7)}\t{'HHEE' * (1 + n % 5)}{'CT'[n % 2]}C\n"
                 for n in range(60))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A labeller of characters with 8 positions."""
    tokenizer = CharacterTokenizer("ACDEFGHIKLMNPQRSTVWYX")
    config = reading(TaggerConfig, embedding="learned", num_labels=4)
    from dataclasses import replace

    config = replace(config, vocab_size=tokenizer.size)
    place = tmp_path_factory.mktemp("label") / "model"
    make_task(built(config).float(), config, tokenizer=tokenizer, labels=tuple("CEHT"),
              record={"data": {"label_unit": "character"}}).save(place)
    return place


def test_texts_files_and_pipes(model, tmp_path):
    texts = ["MKVL", "", "ACDX"]
    want = [f"{text}\t{labels}" for text, labels in zip(texts, regard.load(model).label(texts), strict=True)]
    assert lines("label", model, *texts) == want
    assert lines("label", model, stdin="\n".join(texts)) == want
    (tmp_path / "in.txt").write_text("\n".join(texts))
    assert lines("label", model, tmp_path / "in.txt") == want
    scored = [line.split("\t") for line in lines("label", model, "--scores", "MKVL")]
    assert len(scored[0][2].split()) == 4
    assert all(0 <= float(value) <= 1 for value in scored[0][2].split())


def test_an_ensemble_of_models(model, tmp_path):
    first = regard.load(model)
    other = make_task(built(first.config).float(), first.config, tokenizer=first.tokenizer, labels=tuple("HTCE"),
                      record={"data": {"label_unit": "character"}})
    other.save(tmp_path / "other")
    want = first.label("MKVLACD", ensemble=[other])
    assert lines("label", model, "--ensemble", tmp_path / "other", "MKVLACD") == [f"MKVLACD\t{want}"]
    make_task(other.model, other.config, tokenizer=other.tokenizer, labels=tuple("HTCX"),
              record={"data": {"label_unit": "character"}}).save(tmp_path / "unlike")
    code, _, said = call("label", model, "--ensemble", tmp_path / "unlike", "MKVL")
    assert code != 0
    assert "--ensemble" in said
    assert "unlike" in said


def test_json_has_tokens_and_spans(model):
    (table,) = tables("label", model, "MKVL")
    found = regard.load(model).label("MKVL")
    assert table["text"] == "MKVL"
    assert [token["label"] for token in table["tokens"]] == found.labels
    assert [(span["label"], span["start"], span["end"]) for span in table["spans"]] == [
        (span.label, span.start, span.end) for span in found.spans]


def test_unknown_characters_and_windows_are_said(model):
    limit = regard.load(model).max_positions()
    code, out, said = call("label", model, "m" + "A" * limit)
    assert code == 0
    assert len(out.rstrip("\n").split("\t")[1]) == limit + 1
    assert f"{limit + 1} characters" in said
    assert "windows" in said
    assert "1 character" in said
    assert "unknown: m" in said


def test_what_it_labels_it_can_be_evaluated_on(model, tmp_path):
    code, out, _ = call("label", model, "MKVL", "ACDDE")
    (tmp_path / "own.tsv").write_text(out)
    (found,) = tables("evaluate", model, tmp_path / "own.tsv")
    assert (found["accuracy"], found["tokens"], found["sequences"]) == (1.0, 9, 2)
    assert code == 0


def test_groups_of_labels(model):
    want = str(regard.load(model).label("MKVLAC", merge="H=HT,C=*"))
    assert {*want} <= {"H", "C"}
    assert lines("label", model, "MKVLAC", "--merge", "H=HT,C=*") == [f"MKVLAC\t{want}"]
    code, out, said = call("label", model, "MKVLAC", "--merge", "H=HTQ,C=*")
    assert (code, out) == (0, f"MKVLAC\t{want}\n")
    assert "Q" in said
    code, out, said = call("label", model, "MKVLAC", "--merge", "H")
    assert (code, out) == (2, "")
    assert "--merge" in said


def test_evaluation_with_merged_labels_and_a_picture(model, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "test.tsv").write_text("MKVL\tHGEC\nACD\tHHZ\n")
    options = ("--merge", "H=HG,C=*", "--confusion", tmp_path / "c.svg")
    code, out, _ = call("evaluate", model, tmp_path / "test.tsv", *options, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["unknown_labels"] == {"G": 1, "Z": 1}
    assert [sum(row) for row in found["confusion"]] == [one["expected"] for one in found["labels"]]
    predicted = "".join(str(one) for one in regard.load(model).label(["MKVL", "ACD"], merge=options[1]))
    want = sum(one == other for one, other in zip("HHCCHHC", predicted, strict=True)) / 7
    assert found["merged"]["accuracy"] == pytest.approx(want)
    assert (tmp_path / "c.svg").read_bytes().startswith(b"<?xml")
    code, out, _ = call("evaluate", model, tmp_path / "test.tsv")
    assert code == 0
    assert "Z (1)" in out
    assert call("evaluate", model, tmp_path / "test.tsv", "--confusion", tmp_path / "c.svg")[0] == 2
    assert call("evaluate", model, tmp_path / "test.tsv", "--merge", "H")[0] == 2


def test_data_of_other_labels_and_missing_files_are_refused(model, tmp_path):
    """No score of 0 for labels that the model cannot predict, no labels for the name of a missing file."""
    (tmp_path / "other.tsv").write_text("MKVL\tXYXY\n")
    code, _, said = call("evaluate", model, tmp_path / "other.tsv")
    assert code == 2
    assert "other.tsv" in said
    assert "X, Y" in said
    code, out, said = call("label", model, "missing.txt")
    assert (code, out) == (2, "")
    assert "missing.txt" in said


def test_errors_name_the_file_and_the_line(model, tmp_path):
    (tmp_path / "bad.tsv").write_text("MKVL\tCCCC\nMKV\tCC\n")
    for arguments in (("evaluate", model, tmp_path / "bad.tsv"),
                      ("data", "check", tmp_path / "bad.tsv", "--task", "label"),
                      ("train", tmp_path / "bad.tsv", "--task", "label", "-o", tmp_path / "new")):
        code, _, said = call(*arguments)
        assert code == 2
        assert "bad.tsv:2: " in said
        assert "3 characters" in said
    assert not (tmp_path / "new").exists()
    assert call("label", model, "--tokenized", "MKV")[0] == 2
    assert call("classify", model, "MKV")[0] == 2


def test_the_report_on_data(tmp_path):
    (tmp_path / "a.tsv").write_text("MKV\tCHH\nMKV\tCHH\nMKV\tCCC\nAA\tEE\n\n")
    (tmp_path / "t.tsv").write_text("AA\tEE\nWWW\tZZC\n")
    code, out, _ = call("data", "check", tmp_path / "a.tsv", "--task", "label", "--test", tmp_path / "t.tsv", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["sequences"], found["tokens"], found["empty"]["count"]) == (4, 11, 1)
    assert (found["duplicates"]["count"], found["conflicts"]["count"]) == (1, 1)
    assert found["labels"]["C"]["tokens"] == 5
    test = found["overlap"]["test"]
    assert (test["in_training"], test["unknown_labels"], test["unknown_tokens"]) == (1, {"Z": 2}, 3)
    code, out, _ = call("data", "check", tmp_path / "a.tsv", "--task", "label", "--test", tmp_path / "t.tsv")
    assert code == 0
    assert "duplicates" in out
    assert call("data", "check", tmp_path / "a.tsv", "--task", "label", "--max-words", "3")[0] == 2
    assert call("data", "check", tmp_path / "a.tsv", "--task", "labels")[0] == 2


@pytest.mark.thorough
def test_three_taggers_are_compared(tmp_path):
    (tmp_path / "a.tsv").write_text(CHAINS + "".join(f"{'WY' * n}K\t{'TE' * n}C\n" for n in range(1, 60)))
    arguments = ("compare", tmp_path / "a.tsv", "--task", "label", "--quick", "--budget", "tokens:2000,parameters:20k",
                 "-o", tmp_path / "comparison", "-q")
    (found,) = [json.loads(line) for line in lines(*arguments, "--json")]
    assert [model["name"] for model in found["models"]] == ["tagger-lstm", "tagger-conv", "tagger"]
    assert found["data"]["train"] + found["data"]["validation"] + found["data"]["test"] == 119
    for model in found["models"]:
        assert 0 <= model["accuracy"]["mean"] <= 1
        assert {one["label"] for one in model["labels"]} == set("CEHT")
    (again,) = [json.loads(line) for line in lines(*arguments, "--json")]
    assert again == found
    assert "<table>" in (tmp_path / "comparison" / "page.html").read_text()
    assert call("compare", "--task", "label")[0] == 2
    assert call("compare", tmp_path / "a.tsv", "--task", "label", "--beam", "3")[0] == 2
    assert call("compare", tmp_path / "a.tsv", "--task", "label", "--models", "transformer")[0] == 2


def test_info_and_look(model, tmp_path):
    (table,) = tables("info", model)
    assert table["task"] == "token classification"
    assert table["command"].startswith("regard label ")
    assert table["labels"] == list("CEHT")
    code, out, said = call("look", model, "MKVLAC", "--terminal")
    labels = regard.load(model).label("MKVLAC").labels
    assert (code, said) == (0, "")
    for token, label in zip("MKVLAC", labels, strict=True):
        assert f"{token}/{label}" in out
    long = "A" * (regard.load(model).max_positions() + 1)
    code, _, said = call("look", model, long, "--terminal")
    assert code == 2
    assert str(len(long)) in said


def test_an_error_says_that_the_data_has_another_unit_than_the_model(model, tmp_path):
    (tmp_path / "words.tsv").write_text("the cat\tDET NOUN\nthe dogs bark\tDET NOUN VERB\n")
    code, _, said = call("evaluate", model, tmp_path / "words.tsv")
    assert code == 2
    assert "words.tsv:1" in said
    assert "label for every word" in said
    (tmp_path / "bad.tsv").write_text("MKV\tHHH\nMKVL\tHHH\n")
    code, _, said = call("evaluate", model, tmp_path / "bad.tsv")
    assert code == 2
    assert "bad.tsv:2" in said
    assert "seems" not in said


def test_long_unknown_labels_are_truncated_in_errors(tmp_path):
    (tmp_path / "a.tsv").write_text("the cat\tX Y\na dog\tX Y\n")
    call("train", tmp_path / "a.tsv", "--task", "label", "--recipe", "tagger-tiny", "--steps", "1", "-o",
         tmp_path / "words", "-q")
    (tmp_path / "chains.tsv").write_text(f"{'MK' * 200}\t{'HC' * 200}\n")
    code, _, said = call("evaluate", tmp_path / "words", tmp_path / "chains.tsv")
    assert code == 2
    assert "label for every character" in said
    assert "HC" * 20 not in said


def test_errors_name_the_options_of_pictures_and_groups(model, tmp_path):
    (tmp_path / "test.tsv").write_text("MKVL\tHHEC\n")
    code, _, said = call("evaluate", model, tmp_path / "test.tsv", "--confusion", tmp_path / "c.txt")
    assert code == 2
    assert "--confusion" in said
    for command in (("label", model, "MKVL"), ("evaluate", model, tmp_path / "test.tsv")):
        code, _, said = call(*command, "--merge", "A=HE,B=EC")
        assert code == 2
        assert "--merge" in said
        assert all(part in said for part in ("'E'", "'A'", "'B'"))


def test_tabs_and_labels_with_spaces_are_reported(model):
    code, out, said = call("label", model, "MKV\tHHC", "MK")
    assert code == 0
    assert len(out.splitlines()) == 2
    assert "1 text has a tab" in said
    assert "cut -f 1" in said
    assert "tab" not in call("label", model, "MKV")[2]
    code, _, said = call("label", model, "MKV", "--merge", "alpha helix=H,C=*")
    assert code == 0
    assert '"alpha helix"' in said
    assert "--json" in said
    assert "--json" not in call("label", model, "MKV", "--merge", "alpha helix=H,C=*", "--json")[2]


def test_one_irregular_span_is_counted_in_the_singular(tmp_path):
    (tmp_path / "a.conll").write_text("Ada B-PER\nS I-PER\nis O\n\nBob B-PER\nis O\n")
    call("train", tmp_path / "a.conll", "--task", "label", "--recipe", "tagger-tiny", "--steps", "1", "-o",
         tmp_path / "names", "-q")
    (tmp_path / "b.conll").write_text("Ada I-PER\nis O\n")
    code, out, _ = call("evaluate", tmp_path / "names", tmp_path / "b.conll")
    assert code == 0
    assert "1 span begins with I-" in out


def test_a_comparison_of_too_few_sequences_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.tsv").write_text("MKVLA\tHHHHC\n")
    for kind in (("--task", "label"), ("--road",)):
        code, _, said = call("compare", tmp_path / "a.tsv", *kind, "--quick", "-o", tmp_path / "comparison",
                             "-q")
        assert code == 2
        assert "1 sequence" in said or "1 pair" in said
        assert not (tmp_path / "comparison").exists()
