"""`regard translate`: as many lines out as in, each what the library gives."""

import pytest
import texting
from calling import call, lines, tables

import regard

TEXTS = ["the big dog sleeps.", "", "Emma sees a cat.", "[red]no[/red] </s>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("translate") / "model"
    texting.translator().save(place)
    return place


@pytest.mark.parametrize(("options", "asked"), [
    ([], {"beams": 5, "length_penalty": "mean"}), (["--beam", "1"], {"beams": 1, "length_penalty": "none"}),
    (["--beam", "2"], {"beams": 2, "length_penalty": "mean"}),
])
def test_lines_are_those_of_the_library(folder, options, asked):
    want = [one.text.replace("\n", " ").replace("\r", " ") for one in regard.load(folder).translate(TEXTS, **asked)]
    assert lines("translate", folder, *TEXTS, *options) == want
    assert lines("translate", folder, *options, stdin="\n".join(TEXTS)) == want
    assert want[1] == ""


def test_json(folder):
    found = tables("translate", folder, *TEXTS[:2])
    (want,) = regard.load(folder).translate(TEXTS[:1])
    assert found[0] == {"source": TEXTS[0], "text": want.text, "score": pytest.approx(want.score), "cut": want.cut}
    assert found[1] == {"source": "", "text": "", "score": 0.0, "cut": False}


def test_a_wrong_call(folder):
    for arguments in (["translate"], ["translate", folder, "x", "--beam", "0"], ["translate", folder, "--beem", "1"]):
        code, out, said = call(*arguments)
        assert (code, out) == (2, "")
        assert said
