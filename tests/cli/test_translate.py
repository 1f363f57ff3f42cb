"""`regard translate`: as many lines out as in, each what the library gives."""

import json

import pytest
import texting
from calling import call, lines, tables

import regard
from regard.tasks.placeholders import find_placeholders

TEXTS = ["the big dog sleeps.", "", "Emma sees a cat.", "[red]no[/red] ▁"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("translate") / "model"
    texting.translator().save(place)
    return place


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "asked"), [
    ([], {"beams": 5, "length_penalty": "mean"}), (["--beam", "1"], {"beams": 1, "length_penalty": "none"}),
    (["--beam", "2"], {"beams": 2, "length_penalty": "mean"}),
])
def test_lines_are_those_of_the_library(folder, options, asked):
    want = [one.text.replace("\n", " ").replace("\r", " ") for one in regard.load(folder).translate(TEXTS, **asked)]
    assert lines("translate", folder, *TEXTS, *options) == want
    assert lines("translate", folder, *options, stdin="\n".join(TEXTS)) == want
    assert want[1] == ""


@pytest.mark.thorough
def test_json(folder):
    found = tables("translate", folder, *TEXTS[:2])
    (want,) = regard.load(folder).translate(TEXTS[:1])
    assert found[0] == {"source": TEXTS[0], "text": want.text, "score": pytest.approx(want.score), "cut": want.cut}
    assert found[1] == {"source": "", "text": "", "score": 0.0, "cut": False}


@pytest.mark.thorough
def test_nbest_scores_and_alignment_in_columns(folder):
    task, given = regard.load(folder), TEXTS[:3]
    found = task.translate(given, beams=3, nbest=2)
    got = [line.split("\t") for line in lines("translate", folder, *given, "--beam", "3", "--nbest", "2", "--scores",
                                              "--align")]
    want = [(number, one) for number, best in enumerate(found, 1) for one in (best, *best.alternatives)]
    assert [row[0] for row in got] == [str(number) for number, _ in want] == ["1", "1", "2", "3", "3"]
    for row, (number, one) in zip(got, want, strict=True):
        (alignment,) = task.align([given[number - 1]], [one])
        assert row[1:] == [one.text.replace("\n", " ").replace("\r", " ").replace("\t", " "), f"{one.score:.4f}",
                           " ".join(f"{word.score:.4f}" for word in one.words), alignment.pharaoh()]
    assert lines("translate", folder, "the dog", "--align")[0].split("\t")[1:] == [
        task.align(["the dog"], [task.translate("the dog")])[0].pharaoh()]


@pytest.mark.thorough
def test_everything_as_json(folder):
    task = regard.load(folder)
    best = task.translate(TEXTS[0], beams=3, nbest=2)
    (found,) = tables("translate", folder, TEXTS[0], "--beam", "3", "--nbest", "2", "--scores", "--align")
    (other,) = found.pop("alternatives")
    assert found.pop("source") == TEXTS[0]
    for table, one in ((found, best), (other, best.alternatives[0])):
        assert {*table} == {"text", "score", "cut", "words", "alignment"}
        assert (table["text"], table["cut"]) == (one.text, one.cut)
        assert [word["text"] for word in table["words"]] == [word.text for word in one.words]
        assert [word["score"] for word in table["words"]] == pytest.approx([word.score for word in one.words], abs=1e-4)
        for word in table["alignment"]["source"]:
            assert TEXTS[0][word["start"]:word["end"]] == word["text"]
        assert [word["text"] for word in table["alignment"]["source"]] == ["the", "big", "dog", "sleeps", "."]
        assert {link["target"] for link in table["alignment"]["links"]} <= {*range(len(one.words))}
        assert table["alignment"]["links"]


@pytest.mark.thorough
def test_placeholders_are_kept(folder):
    texts = ["open %s and <b>{name}</b>.", "see https://a.org/x, </s>", "%s: %d"]
    for line, text in zip(lines("translate", folder, *texts, "--beam", "1"), texts, strict=True):
        assert find_placeholders(line) == find_placeholders(text)
    assert line == "%s: %d"


def test_a_text_that_is_too_long_stays_empty(tmp_path):
    texting.translator("learned", tie_word_embeddings=False).save(tmp_path / "model")  # 12 positions
    long = "the big dog sees the big cat. " * 3
    code, out, said = call("translate", tmp_path / "model", "no", long, "yes", "--beam", "1")
    assert (code, out.count("\n"), out.split("\n")[1]) == (1, 3, "")
    assert said.startswith("Error: text 2: `texts` must be at most 12 tokens long")
    assert said.count("\n") == 1
    code, out, _ = call("translate", tmp_path / "model", long, "--json", "--scores")
    assert (code, json.loads(out)) == (1, {"source": long, "text": None})


def test_a_wrong_call(folder):
    for arguments in (["translate"], ["translate", folder, "x", "--beam", "0"], ["translate", folder, "--beem", "1"],
                      ["translate", folder, "x", "--beam", "2", "--nbest", "3"],
                      ["translate", folder, "x", "--format", "pot"], ["translate", folder, "x", "--entries", "some"],
                      ["translate", folder, "x", "--source", "en"], ["translate", folder, "x", "y", "-o", "z"],
                      ["translate", folder, "-", "--format", "po"], ["translate", folder, "no such.po", "-o", "z"],
                      ["translate", folder, "missing.po"], ["translate", folder, "missing.txt"],
                      ["translate", folder, "x", "--sample", "--top-p", "2"],
                      ["translate", folder, "x", "--num-beam-groups", "3"], ["translate", folder, "x", "--max-length",
                                                                             "-1"],
                      ["translate", folder, "x", "--length-penalty", "long"],
                      ["translate", folder, "x", "--min-length", "9", "--max-length", "3"]):
        code, out, said = call(*arguments)
        assert (code, out) == (2, "")
        assert said
