"""Tables as TOML: readable, and read back as they were."""

import datetime
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.toml import dotted_key, dumps, escape, format_value, is_encodable, quote

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), TEXTS,
                    st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
                      max_leaves=15)
TABLES = st.dictionaries(TEXTS, VALUES, max_size=5)


def same(one, other):
    """Equal, and of equal types: 1 is not 1.0 and not True, and -0.0 is not 0.0."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def test_values_come_first_and_tables_have_their_full_names():
    tables = {
        "model": {"encoder": {"width": 512, "mixer": {"kind": "attention"}, "rate": 1e-5}, "none": None, "name": "x"},
        "seed": 1, "ok": True, "layers": [{"a": 1, "inner": {"b": 2}}, {}], "one": [{}], "sizes": [1, 2], "empty": {},
        "two words": {}, "outer": {"inner": {"x": 1.0}},
    }
    assert dumps(tables) == """\
seed = 1
ok = true
sizes = [1, 2]

[model]
name = "x"

[model.encoder]
width = 512
rate = 1e-05

[model.encoder.mixer]
kind = "attention"

[[layers]]
a = 1

[layers.inner]
b = 2

[[layers]]

[[one]]

[empty]

["two words"]

[outer.inner]
x = 1.0
"""
    assert dumps({}) == ""


def test_a_long_array_has_a_line_for_each_element():
    names = [f"name {number}" for number in range(20)]
    text = dumps({"names": names, "short": names[:2]})
    assert '\n    "name 7",\n' in text
    assert text.splitlines()[-1] == 'short = ["name 0", "name 1"]'
    assert tomllib.loads(text) == {"names": names, "short": names[:2]}


def test_tables_among_other_elements_are_inline():
    tables = {"mixed": [1, {"a": {"b": 2}, "gone": None}], "nested": [[{"x": 1}]]}
    assert dumps(tables) == 'mixed = [1, { a = { b = 2 } }]\nnested = [[{ x = 1 }]]\n'


@given(TABLES)
def test_what_is_written_is_read_back(tables):
    text = dumps(tables)
    assert same(tomllib.loads(text), tables)
    assert dumps(tomllib.loads(text)) == text
    assert text.encode().decode() == text


@given(TEXTS)
def test_a_quoted_text_is_one_safe_line(text):
    line = quote(text)
    assert tomllib.loads(f"key = {line}") == {"key": text}
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


@pytest.mark.parametrize(("value", "got"), [
    (float("nan"), "nan"), (float("inf"), "inf"), (2**63, "a number beyond 64 bits"), (-(2**63) - 1, "beyond 64 bits"),
    ([1, None], "nothing"), ("\ud800", r'"\ud800"'), (datetime.date(2024, 1, 2), "a date"),
    (object, "the class object"),
])
@pytest.mark.parametrize("tables", [
    lambda value: {"a": {"b": value}}, lambda value: {"a": [{"b": value}]}, lambda value: {"a": [1, {"b": value}]},
])
def test_what_toml_cannot_say(value, got, tables):
    with pytest.raises(ValueError, match=r"`a.*b.*` must be text, a finite number, .* but is ") as error:
        dumps(tables(value))
    assert got in str(error.value)


@pytest.mark.parametrize("key", ["\udfff", 1, None])
def test_keys_are_text(key):
    for tables in ({key: 1}, {"a": {key: 1}}, {"a": [1, {key: 1}]}, {"a": [{key: {}}]}):
        with pytest.raises(ValueError, match="`key` must be text"):
            dumps(tables)


@pytest.mark.parametrize(("value", "words"), [
    (True, "true"), (False, "false"), (12, "12"), (1 << 99, "a number beyond 64 bits"), (-0.5, "-0.5"),
    ("six", '"six"'), ("\x1b[0m\u2028", '"\\u001b[0m\\u2028"'),
    ("x" * 60, f'"{"x" * 60}"'), ("x" * 61, f'"{"x" * 60}..."'), ({}, "a table"),
    ([], "an array"), ((), "an array"), (None, "nothing"), (datetime.time(), "a time"), (int, "the class int"),
])
def test_values_as_messages_show_them(value, words):
    assert format_value(value) == words


def test_a_number_that_python_does_not_print_is_shown():
    assert format_value(10**5000) == "a number beyond 64 bits"


def test_names_of_paths():
    assert dotted_key(("model", "layers", 0, "two words", "x")) == 'model.layers[0]."two words".x'
    assert dotted_key(()) == ""
    assert escape('a\tb"') == 'a\\tb\\"'
    assert is_encodable("é🙂")
    assert not is_encodable("a\udc80")
