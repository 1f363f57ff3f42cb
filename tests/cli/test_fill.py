"""`regard fill`: texts with their blanks filled in, and what else may stand there."""

import json

import pytest
import texting
from calling import call, lines, tables

import regard


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("fill") / "model"
    texting.filler().save(place)
    return place


def test_a_line_for_the_text_and_one_for_each_blank(folder):
    text = "the ___ sees ___."
    want = regard.load(folder).fill(text, top_k=2)
    found = lines("fill", folder, text, "--top-k", "2")
    assert found[0] == want.text
    assert found[1:] == ["  " + ", ".join(f"{each.text} {100 * each.probability:.1f}%" for each in blank)
                         for blank in want.blanks]
    (table,) = tables("fill", folder, "--top-k", "2", stdin=text + "\n")
    assert table["text"] == want.text
    assert [[each["id"] for each in blank] for blank in table["blanks"]] == [
        [each.id for each in blank] for blank in want.blanks]


def test_a_text_without_a_blank(folder):
    code, out, said = call("fill", folder, "the dog", "a ___", "--top-k", "1")
    assert code == 1
    assert out.startswith("\n")
    assert out.count("\n") == 3
    assert "text 1: `texts`" in said
    code, out, _ = call("fill", folder, "the dog", "a ___", "--top-k", "1", "--json")
    assert code == 1
    first, second = map(json.loads, out.splitlines())
    assert first == {"source": "the dog", "text": None, "blanks": []}
    assert second["text"] is not None
