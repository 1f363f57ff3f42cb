"""Which values each type takes, what is kept of them, and how the others are refused."""

import datetime
import enum
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional

import pytest

from regard.config import RULE_KEY, FieldRule, config_kind, key_specs, read_keys, type_spec

EVEN = FieldRule(int, "an even number", lambda value: value % 2 == 0)


@dataclass(frozen=True)
class Bare:
    width: int
    name: str = "x"


@dataclass(frozen=True)
class Red:
    kind: ClassVar[str] = "red"
    depth: int = 1


@dataclass(frozen=True)
class Blue:
    kind: ClassVar[str] = "blue"
    inner: Bare | None = None


@dataclass(frozen=True)
class Named:
    kind: str = "a field"


class Level(enum.IntEnum):
    TWO = 2


class Word(str, enum.Enum):  # noqa: UP042 (the older form, whose str() is not its text)
    A = "a"


def read(annotation, value, rule=None):
    """The value that is kept, and the problems, each without its key."""
    found = []
    kept = type_spec(annotation, "test", rule).read(value, ("key",), found)
    assert kept is None or not found or isinstance(kept, tuple)
    return kept, [str(problem).removeprefix('"key"') for problem in found]


@pytest.mark.parametrize(("annotation", "value", "kept"), [
    (int, 3, 3), (int, -(2**63), -(2**63)), (int, Level.TWO, 2), (float, 1, 1.0), (float, 0.5, 0.5),
    (bool, True, True), (bool, False, False), (str, "", ""), (str, "é\n🙂", "é\n🙂"), (str, Word.A, "a"),
    (tuple[int, ...], [], ()), (tuple[float, ...], [1, 2.5], (1.0, 2.5)), (tuple[str, ...], ("a",), ("a",)),
    (tuple[tuple[int, ...], ...], [[1], []], ((1,), ())), (int | None, 1, 1), (Optional[int], 2, 2),  # noqa: UP045
    (Bare, {"width": 1}, Bare(1)), (Bare, Bare(2), Bare(2)), (Bare | None, {"width": 1, "name": "y"}, Bare(1, "y")),
    (Red, {}, Red()), (Red, {"kind": "red", "depth": 2}, Red(2)), (Red | Blue, {"kind": "blue"}, Blue()),
    (Red | Blue | None, {"kind": "red"}, Red()), (Red | Blue, Blue(), Blue()), (Named, {"kind": "free"}, Named("free")),
    (tuple[Red | Blue, ...], [{"kind": "blue"}, {"kind": "red"}], (Blue(), Red())),
    (Blue, {"inner": {"width": 1}}, Blue(Bare(1))),
])
def test_values_that_are_taken(annotation, value, kept):
    assert read(annotation, value) == (kept, [])
    assert type(read(annotation, value)[0]) is type(kept)


def test_none_is_taken_where_it_may_be():
    assert read(int | None, None) == (None, [])
    assert read(Red | Blue | None, None) == (None, [])
    assert read(int, None) == (None, [": expected a whole number, but got nothing"])


WHOLE, KINDS = "a whole number", 'one of "red", "blue"'


@pytest.mark.parametrize(("annotation", "value", "expected", "got"), [
    (int, True, WHOLE, "true"), (int, 1.0, WHOLE, "1.0"), (int, "six", WHOLE, '"six"'), (int, [1], WHOLE, "an array"),
    (int, 2**63, WHOLE, "a number beyond 64 bits"), (int, -(2**63) - 1, WHOLE, "a number beyond 64 bits"),
    (int, {"a": 1}, WHOLE, "a table"), (int, datetime.date(2024, 1, 1), WHOLE, "a date"),
    (float, float("nan"), "a finite number", "nan"), (float, float("-inf"), "a finite number", "-inf"),
    (float, 10**400, "a finite number", "a number beyond 64 bits"), (float, "1", "a finite number", '"1"'),
    (float, False, "a finite number", "false"), (bool, 1, "true or false", "1"),
    (bool, "true", "true or false", '"true"'),
    (str, 1, "text", "1"), (str, "a\ud800", "text", '"a\\ud800"'), (str, [], "text", "an array"),
    (tuple[int, ...], 1, "an array, each element a whole number", "1"),
    (tuple[int, ...], "12", "an array, each element a whole number", '"12"'),
    (Bare, 5, "a table", "5"), (Bare, [], "a table", "an array"), (Bare, Red(), "a table", "a Red"),
    (Red, Bare, "a table", "the class Bare"), (Red | Blue, "red", f"a table whose kind is {KINDS}", '"red"'),
])
def test_values_that_are_refused(annotation, value, expected, got):
    assert read(annotation, value) == (None, [f": expected {expected}, but got {got}"])


@pytest.mark.parametrize(("annotation", "value", "problems"), [
    (tuple[int, ...], [1, "a", 2, None],
     ['[1]: expected a whole number, but got "a"', "[3]: expected a whole number, but got nothing"]),
    (Bare, {}, ['missing key "width" in [key]: expected a whole number']),
    (Bare, {"width": "a", "nme": "b"}, ['unknown key "nme" in [key]; did you mean "name"?',
                                        '"width" in [key]: expected a whole number, but got "a"']),
    (Bare, {"width": 1, "zzzzz": {}}, ['unknown table "zzzzz" in [key]; expected one of "width", "name"']),
    (Bare, {"width": 1, 7: 1}, ['unknown key "7" in [key]; expected one of "width", "name"']),
    (Bare, {"width": 1, "kind": "bare"}, ['unknown key "kind" in [key]; expected one of "width", "name"']),
    (Red, {"kind": "blue"}, ['"kind" in [key]: expected "red", but got "blue"']),
    (Red | Blue, {}, [f'missing key "kind" in [key]: expected {KINDS}']),
    (Red | Blue, {"kind": "bleu", "a": 1},
     [f'"kind" in [key]: expected {KINDS}, but got "bleu"; did you mean "blue"?']),
    (Red | Blue, {"kind": ["red"]}, [f'"kind" in [key]: expected {KINDS}, but got an array']),
    (Red | Blue, {"kind": "blue", "depth": 1}, ['unknown key "depth" in [key]; expected "inner"']),
    (Blue, {"inner": {"with": 1}}, ['unknown key "with" in [key.inner]; did you mean "width"?',
                                    'missing key "width" in [key.inner]: expected a whole number']),
    (tuple[Bare, ...], [{"width": 1}, {"width": ""}, 3],
     ['"width" in [key[1]]: expected a whole number, but got ""', "[2]: expected a table, but got 3"]),
])
def test_problems_inside(annotation, value, problems):
    assert read(annotation, value)[1] == problems


def test_a_rule_holds_for_the_value_and_for_every_element():
    assert read(int, 4, EVEN) == (4, [])
    assert read(int, 3, EVEN) == (None, [": expected an even number, but got 3"])
    assert read(int, "4", EVEN) == (None, [': expected an even number, but got "4"'])
    assert read(int | None, None, EVEN) == (None, [])
    assert read(tuple[int, ...], [2, 3], EVEN)[1] == ["[1]: expected an even number, but got 3"]
    assert read(tuple[int, ...], 2, EVEN)[1] == [": expected an array, each element an even number, but got 2"]
    names = FieldRule(str, "a fruit", ("apple", "pear").__contains__, ("apple", "pear"))
    assert read(str, "aple", names)[1] == [': expected a fruit, but got "aple"; did you mean "apple"?']


def test_keys_that_are_missing():
    found = []
    known = {"a": type_spec(int, "a"), "b": type_spec(Bare, "b"), "c": type_spec(Red | Blue, "c"),
             "d": type_spec(Red | None, "d")}
    assert read_keys(known, {}, (), found) == {"d": None}
    assert list(map(str, found)) == [
        'missing key "a": expected a whole number', 'missing table "b"',
        f'missing table "c": expected a table whose kind is {KINDS}',
    ]
    found.clear()
    assert read_keys({}, {"a": 1}, (), found) == {}
    assert list(map(str, found)) == ['unknown key "a"; there are no keys here']


def test_defaults_are_left_to_the_dataclass():
    assert read_keys(key_specs(Bare), {"width": 2}, (), []) == {"width": 2}


def test_kinds():
    assert [config_kind(cls) for cls in (Bare, Red, Named)] == [None, "red", None]


@pytest.mark.parametrize(("annotation", "rule"), [
    (list[int], None), (dict[str, int], None), (tuple[int, int], None), (tuple[int | None, ...], None), (Any, None),
    (int | str, None), (Red | int, None), (Red | Bare, None), (Red | Named, None), (float, EVEN), (Red, EVEN),
    (object, None), (tuple[Red, ...], EVEN),
])
def test_types_that_no_key_can_have(annotation, rule):
    with pytest.raises(TypeError, match=r"^here: a config field cannot have the type "):
        type_spec(annotation, "here", rule)


def test_two_of_one_kind_cannot_be_told_apart():
    @dataclass(frozen=True)
    class Other:
        kind: ClassVar[str] = "red"

    with pytest.raises(TypeError, match=r"^here: a config field cannot have the type .*Red.* \| .*Other"):
        type_spec(Red | Other, "here")


def test_what_may_be_none_has_no_other_default():
    @dataclass(frozen=True)
    class Wrong:
        window: int | None = 3

    @dataclass(frozen=True)
    class Made:
        inner: Bare | None = field(default_factory=lambda: Bare(1))

    for cls in (Wrong, Made):
        with pytest.raises(TypeError, match=rf"^{cls.__name__}.* its default must be None"):
            key_specs(cls)


def test_the_rule_of_a_field_is_in_its_metadata():
    @dataclass(frozen=True)
    class Ruled:
        width: int = field(metadata={RULE_KEY: EVEN})

    found = []
    key_specs(Ruled)["width"].read(3, ("width",), found)
    assert list(map(str, found)) == ['"width": expected an even number, but got 3']
