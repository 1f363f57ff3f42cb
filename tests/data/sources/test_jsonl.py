"""JSON Lines: the keys that are wanted, what is not an object with them, and the place of a value in its line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.sources import jsonl
from regard.data.sources.text import InputFile, Location, SentencePair, TargetSlot

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=6)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def pairs(path, source=None, target=None):
    return list(jsonl.read_pairs(InputFile(path), source, target))


def test_keys(file):
    path = file("a.jsonl", '{"source": "one\\n\\u2028", "target": "un", "id": 7}\r\n'
                           ' {"target":"","source":"\u2028"} \n')
    assert pairs(path) == [SentencePair("one\n\u2028", "un", Location(path, 1)),
                           SentencePair("\u2028", "", Location(path, 2))]
    path = file("b.jsonl", '{"source": "x", "target": "y", "en": "one", "fr": "un"}')
    assert pairs(path, "en", "fr") == [SentencePair("one", "un", Location(path, 1))]


@pytest.mark.parametrize(("line", "message"), [
    ('{"source": "a"}', 'The key "target" is missing; the line has: "source".'),
    ("{}", 'The key "source" is missing; the line has: none.'),
    ('{"source": "a", "target": null}', '"target" is null instead of a string.'),
    ('{"source": ["a"], "target": "b"}', '"source" is an array instead of a string.'),
    ('{"source": 1, "target": "b"}', '"source" is a number instead of a string.'),
    ('{"source": true, "target": "b"}', '"source" is true or false instead of a string.'),
    ('["a", "b"]', "This is an array instead of an object"),
    ('"a"', "This is a string instead of an object"),
    ("null", "This is null instead of an object"),
    ("", "character 1: This is not JSON"),
    ('{"source": "a", "target": "b"', "character 30: This is not JSON"),
    ('{"source": "a", "target": "b"}{}', "character 31: This is not JSON"),
    ('{"source": "a", "target": "b", "source": "c"}', 'This cannot be read: the key "source" occurs twice.'),
    ('{"source": "a", "target": "\\ud800"}', '"target" has half a surrogate pair'),
    ('{"source": "\\u0000", "target": "b"}', '"source" has a NUL'),
    ("[" * 100_000, "Arrays or objects are nested too deeply."),
    ('{"source": "a", "target": "b", "n": ' + "1" * 5000 + "}", "This cannot be read: Exceeds the limit"),
])
def test_what_is_no_pair(file, refused, line, message):
    path = file("a.jsonl", f'{{"source": "x", "target": "y"}}\n{line}\n')
    for read in (pairs, lambda path: list(jsonl.parse_document(InputFile(path), None, None))):
        if "target" in message and "missing" in message and read is not pairs:
            continue  # a target that is missing can be added
        assert refused(lambda read=read: read(path)).startswith(f"a.jsonl:2: {message}")


@pytest.mark.thorough
@given(st.lists(st.tuples(st.text(max_size=3) | st.just("target"), VALUES), max_size=4, unique_by=lambda item: item[0]),
       TEXTS, TEXTS | st.none(), TEXTS, st.booleans(), st.sampled_from(["", " ", "\t ", " \r "]))
def test_only_the_target_changes(others, source, target, new, ascii_only, blank):
    items = [(key, value) for key, value in others if key not in ("source", "target")]
    items.insert(len(items) // 2, ("source", source))
    if target is not None:
        items.insert(len(others) // 2, ("target", target))
    say = json.JSONEncoder(ensure_ascii=ascii_only).encode
    line = "{" + ",".join(f"{blank}{say(key)}{blank}:{blank}{say(value)}{blank}" for key, value in items) + "}" + blank
    pieces = list(jsonl.parse_document(Fed(f"{line}\n".encode()), None, None))
    slot = next(piece for piece in pieces if isinstance(piece, TargetSlot))
    assert (slot.source, slot.target) == (source, target or "")
    assert b"".join(piece.raw if piece is slot else piece for piece in pieces) == f"{line}\n".encode()
    written = b"".join(slot.write(new) if piece is slot else piece for piece in pieces).decode()
    expected = [(key, new if key == "target" else value) for key, value in items]
    if target is None:
        expected.append(("target", new))
    found = json.loads(written, object_pairs_hook=list)  # as lists, so that the order of the keys counts
    assert say(found) == say(json.loads(say(dict(expected)), object_pairs_hook=list))
    for piece in pieces:
        if piece is not slot:
            assert piece.decode() in written


class Fed:
    """An input whose bytes are given."""

    name = "a.jsonl"

    def __init__(self, data):
        self.data = data

    def blocks(self):
        return iter([self.data])
