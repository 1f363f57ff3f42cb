"""Documents: read from files of all sorts, changed, and problems worded with their place."""

import datetime
import itertools
import os
import pickle
import re
import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard import toml
from regard.toml import (
    KEY_PATTERN,
    ConfigError,
    ConfigProblem,
    TomlDocument,
    dotted_key,
    dumps,
    escape,
    format_value,
    is_encodable,
    key_lines,
    override,
    parse_document,
    parse_override,
    quote,
    read_document,
    split_key,
)

TEXT = 'seed = 1\n[model]\nwidth = 512\n\n[[model.layers]]\nheads = 8\n[[model.layers]]\nheads = 4\n'


@pytest.fixture
def document():
    return parse_document(TEXT, "train.toml")


def problems(call):
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


def test_a_file_has_tables_a_name_and_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.toml").write_text(TEXT)
    for path in ("train.toml", tmp_path / "train.toml"):
        document = read_document(path)
        assert document.name == str(path)
        assert document.tables == {"seed": 1, "model": {"width": 512, "layers": [{"heads": 8}, {"heads": 4}]}}
        assert [document.line(path) for path in (("seed",), ("model",), ("model", "width"))] == [1, 2, 3]
        assert document.line(("model", "layers", 1, "heads")) == 8


def test_what_is_not_there_has_the_line_of_the_table_around_it(document):
    assert document.line(("model", "depth")) == 2
    assert document.line(("model", "layers", 1, "a", "b")) == 7
    assert document.line(("other", "depth")) is None
    assert document.line(()) is None
    assert toml.document_of({"a": {}}).line(("a",)) is None


def test_problems_are_worded_with_their_place_in_the_order_of_lines(document):
    error = document.error([
        ConfigProblem(("model", "layers", 1, "heads"), "", ": is odd"),
        ConfigProblem(("model", "sizes", 3), "", ": is odd"),
        ConfigProblem(("seed",), "unknown key ", ""),
        ConfigProblem(("other",), "missing table ", ""),
        ConfigProblem(("model", "two words", "x\x1b"), "unknown key ", "; sorry"),
    ])
    assert error.problems == (
        'train.toml: missing table "other"',
        'train.toml:1: unknown key "seed"',
        'train.toml:2: "sizes"[3] in [model]: is odd',
        'train.toml:2: unknown key "x\\u001b" in [model."two words"]; sorry',
        'train.toml:8: "heads" in [model.layers[1]]: is odd',
    )
    assert isinstance(error, ValueError)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.problems, copy.found, str(copy)) == (error.problems, error.found, str(error))


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_ends_of_lines_and_a_byte_order_mark_change_nothing(tmp_path, document, mark, end):
    (tmp_path / "a.toml").write_bytes((mark + TEXT.replace("\n", end)).encode())
    other = read_document(tmp_path / "a.toml")
    assert (other.tables, other.lines) == (document.tables, document.lines)


@pytest.mark.parametrize(("data", "said"), [
    (b"a = 1\nb = '\xff'\n", "2: byte 6: 0xFF is not UTF-8; save the file as UTF-8"),
    (b"\n\xff", "2: byte 1: 0xFF is not UTF-8; save the file as UTF-8"),
    (b"\xff\xfea\x00", "1: byte 1: 0xFF is not UTF-8; save the file as UTF-8"),
    (b"\xef\xbb\xbfa = '\xe9'", "1: byte 9: 0xE9 is not UTF-8; save the file as UTF-8"),
    (b"a = 1\nb =\nc = 1", "2: invalid TOML: invalid value (column 4)"),
    (b"a = 1\na = 2\nb = 1", "2: invalid TOML: a key or table of this name exists already (column 6)"),
    (b"[a.b]\nc = 1\n[a.b]\n", "3: invalid TOML: cannot declare [a.b] twice (column 5)"),
    (b"a = 1\nb = [1,\n2\n\n", "3: invalid TOML: unclosed array (at the end)"),
    (b"a = 1\n\x00", "2: invalid TOML: invalid statement (column 1)"),
    (b"a = 1\rb = 2", "1: invalid TOML: expected newline or end of document after a statement (column 6)"),
    (b"a = " + b"9" * 5000, " a number has too many digits to be read"),
    (b"a = " + b"[" * 5000, " tables or arrays are nested too deeply to be read"),
])
def test_bad_files_are_refused_with_the_line(tmp_path, data, said):
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    assert problems(lambda: read_document(path)) == [f"{path}:{said}"]


def test_files_that_cannot_be_read(tmp_path):
    assert problems(lambda: read_document(tmp_path / "no.toml")) == [f"{tmp_path}/no.toml: there is no such file"]
    assert problems(lambda: read_document(tmp_path)) == [f"{tmp_path}: this is a folder, not a TOML file"]
    assert problems(lambda: read_document("a\0\x1b\udc80")) == [
        r"a\u0000\u001b\udc80: cannot be read: embedded null byte"]
    long = tmp_path / ("x" * 300)
    assert problems(lambda: read_document(long)) == [f"{long}: cannot be read: File name too long"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path):
    path = tmp_path / "locked.toml"
    path.write_text("")
    path.chmod(0)
    assert problems(lambda: read_document(path)) == [f"{path}: permission denied"]


def test_no_permission_in_words(tmp_path, monkeypatch):
    def refuse(path, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(toml, "open", refuse, raising=False)
    assert problems(lambda: read_document("locked.toml")) == ["locked.toml: permission denied"]


@pytest.mark.parametrize("text", [".".join("a" * 100_000) + " = 1", "[" + ".".join("a" * 100_000) + "]"])
def test_a_key_of_very_many_parts_is_refused_at_once(text):
    assert problems(lambda: parse_document(f"b = 1\n{text}\n", "a.toml")) == ["a.toml:2: a key has more than 100 parts"]


def test_a_file_that_never_ends_is_refused():
    assert problems(lambda: read_document("/dev/zero")) == ["/dev/zero: larger than 16 MiB, which no config is"]


@given(st.text(st.sampled_from("ab =[]{}\"'\\\n#.,1-:_\t\r\x00\x1bé\ufeff\ud800")))
def test_any_text_is_read_or_refused_in_one_printable_line(text):
    try:
        assert isinstance(parse_document(text, "x"), TomlDocument)
    except ConfigError as error:
        (problem,) = error.problems
        assert problem.startswith("x:")
        assert problem.isprintable()


def test_changes(document):
    other = override(document, {"model.width": 256, "model.layers.1.heads": "x", "new.a.'b.c'": [1], "seed": None})
    assert other.tables == {"seed": None, "model": {"width": 256, "layers": [{"heads": 8}, {"heads": "x"}]},
                            "new": {"a": {"b.c": [1]}}}
    assert document.tables["model"]["width"] == 512
    assert document.tables["model"]["layers"][1] == {"heads": 4}
    assert override(document, {"model.layers.0": 1}).tables["model"]["layers"] == [1, {"heads": 4}]
    assert override(document, {}) == document
    twice = override(override(document, {"model": {"a": 1}}), {"model.b": 2})
    assert twice.tables["model"] == {"a": 1, "b": 2}


def test_a_changed_key_has_no_line_and_says_so(document):
    other = override(document, {"model.layers.1": {"heads": 1}, "model.width": 0, "seed": "x"})
    assert other.line(("seed",)) is None
    names = [("model", "layers", 1, "heads"), ("model", "width"), ("model", "layers", 0, "heads"), ("model",)]
    assert [other.line(path) for path in names] == [None, None, 6, 2]
    assert other.error([ConfigProblem(path, "", ": x") for path in names]).problems == (
        'train.toml (overridden): "heads" in [model.layers[1]]: x',
        'train.toml (overridden): "width" in [model]: x',
        'train.toml:2: "model": x',
        'train.toml:6: "heads" in [model.layers[0]]: x',
    )


@pytest.mark.parametrize(("key", "said"), [
    ("model.width.x", 'train.toml:3: cannot change "width" in [model]: expected a table with "x", but got 512'),
    ("model.layers.2.heads", 'train.toml:5: cannot change "layers" in [model]: expected an index below 2, but got "2"'),
    ("model.layers.one", 'train.toml:5: cannot change "layers" in [model]: expected an index below 2, but got "one"'),
    ("model..width", '"model..width": expected a key, such as model.width'),
    ("", '"": expected a key, such as model.width'),
])
def test_changes_that_cannot_be_made(document, key, said):
    assert problems(lambda: override(document, {key: 1})) == [said]


@pytest.mark.parametrize(("text", "key", "value"), [
    ("model.width=512", "model.width", 512), ("a = 1e-4", "a", 1e-4), ("a=true", "a", True), ("a=[1, 2]", "a", [1, 2]),
    ("a={ b = 1 }", "a", {"b": 1}), ('a="1"', "a", "1"), ("a=gelu", "a", "gelu"), ("a=", "a", ""),
    ("a=x=y", "a", "x=y"), ("'a=b'.c=1", "'a=b'.c", 1), ("a=no # comment", "a", "no # comment"),
    ("a=[1", "a", "[1"), ("a=1\nb=2", "a", "1\nb=2"), ("a=007", "a", "007"), ("a=True", "a", "True"),
])
def test_assignments(text, key, value):
    assert parse_override(text) == (key, value)
    assert type(parse_override(text)[1]) is type(value)
    override(toml.document_of({}), dict([parse_override(text)]))


@pytest.mark.parametrize("text", ["", "=1", "model.width", "a b=1", "a.=1", "--a", "\x1b=1"])
def test_what_is_no_assignment(text):
    (problem,) = problems(lambda: parse_override(text))
    assert problem.startswith("--set ")
    assert problem.endswith(": expected KEY=VALUE, such as model.width=512")
    assert problem.isprintable()


def test_given_tables_are_a_mapping():
    assert toml.document_of({"a": 1}, "here").error([ConfigProblem(("a",), "", ": x")]).problems == ('here: "a": x',)
    with pytest.raises(ValueError, match="`tables` must be a mapping of names to tables, but is a list instead"):
        toml.document_of([1])


KEYS = ["a", "b", "c-d", "1", "two words", "dot.ted", 'quo"te', "ap'os", "#no", "[no]", "a = 1", "é", "", "\\", "\n"]


def paths(value, above=()):
    """Every path into the tables and arrays that the standard library read."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*above, key)
        yield from paths(part, (*above, key))


def at(tables, path):
    for key in path:
        tables = tables[key]
    return tables


EVERYTHING = '''\
# [comment]
top = 1  # [a] = 2
"quoted.key" = 'a = 1'
dotted . "a b".c = 1979-05-27 07:32:00   # the line of three keys
text = """
[not.a.table]
not_a_key = 1 \\
"" quotes "" inside \\"""
still = 2"""
raw = \'\'\'
[nor] = "this"
\'\'\'\'\'
array = [  # [
  1, "two, ]",
  [3,
   4],   { x = 5, y.z = [6,
   7] },
]
inline = { p = { q = 1 }, r = "}" }

[late.table]   # comes before its outer table
x = 1
[ late ]
y = 2
[[many]]
x = 1
[many.inner]
x = 2
[[many.deep]]
x = 3
[[many.deep]]
[[many]]
[[many.deep]]
x = 4
'''


def test_every_form_by_hand():
    found = key_lines(EVERYTHING)
    assert set(found) == set(paths(tomllib.loads(EVERYTHING)))
    expected = {
        "top": 2, "quoted.key": 3, "dotted": 4, "dotted/a b": 4, "dotted/a b/c": 4, "text": 5, "raw": 10, "array": 13,
        "array/0": 14, "array/1": 14, "array/2": 15, "array/2/0": 15, "array/2/1": 16, "array/3": 16, "array/3/x": 16,
        "array/3/y": 16, "array/3/y/z": 16, "array/3/y/z/0": 16, "array/3/y/z/1": 17, "inline": 19, "inline/p": 19,
        "inline/p/q": 19, "inline/r": 19, "late": 23, "late/table": 21, "late/table/x": 22, "late/y": 24, "many": 25,
        "many/0": 25, "many/0/x": 26, "many/0/inner": 27, "many/0/inner/x": 28, "many/0/deep": 29, "many/0/deep/0": 29,
        "many/0/deep/0/x": 30, "many/0/deep/1": 31, "many/1": 32, "many/1/deep": 33, "many/1/deep/0": 33,
        "many/1/deep/0/x": 34,
    }
    assert {"/".join(map(str, path)): line for path, line in found.items()} == expected


@pytest.mark.parametrize("text", ["", "\n", "# only = 1", "   ", "a=1", "a=1\n"])
def test_small_texts(text):
    assert key_lines(text) == ({("a",): 1} if "a" in text else {})


@pytest.mark.parametrize(("text", "parts"), [
    ("a", ("a",)), (" a . b ", ("a", "b")), ('"a.b".c', ("a.b", "c")), ("'x\\n'", ("x\\n",)),
    ('"x\\n\\u00e9"', ("x\né",)), ("1.5", ("1", "5")), ('""', ("",)),
])
def test_parts_of_a_key(text, parts):
    assert KEY_PATTERN.fullmatch(text)
    assert split_key(text) == parts


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a b", "a..b", '"a', "a=b", "é", '"""a"""', "a\nb"])
def test_what_is_no_key(text):
    assert not KEY_PATTERN.fullmatch(text)


class Text:
    """A TOML text in the making: every leaf is v0, v1, ..., so that its true line can be found by looking for it."""

    def __init__(self, draw):
        self.draw, self.count = draw, 0

    def any(self, *options):
        return self.draw(st.sampled_from(options))

    def blank(self):
        return self.any("", " ", "\t ")

    def noise(self):
        """What may stand between lines, and mean nothing."""
        return self.any("", "", "\n", "# [no.table]\n", "  # no_key = 1\n\n", '# """\n')

    def key(self, name):
        bare = bool(re.fullmatch("[A-Za-z0-9_-]+", name))
        basic = '"' + "".join(f"\\u{ord(c):04x}" if c in '\n"\\' else c for c in name) + '"'
        literal = [f"'{name}'"] if "'" not in name and "\n" not in name else []
        return self.any(basic, *literal, *[name] * 3 * bare)

    def dotted(self, path):
        return f"{self.blank()}.{self.blank()}".join(map(self.key, path))

    def leaf(self):
        self.count += 1
        mark = f"v{self.count - 1}"
        fake = self.any("\n[no]\n", "\nno = 1\n", " ]}, # ", "\n\n")
        return self.any(f'"{mark}"', f"'{mark} # = ['", f'"{mark} \\" ]"', f'"""{mark}{fake}"" \\""""""',
                        f"'''{mark}{fake}'' '''''", f'"""{mark}"""')

    def array(self, value):
        def between():
            return self.any("", " ", "\n", " # no = [\n", "\n\n")

        parts = [between() + self.value(part) + between() for part in value]
        return "[" + ",".join(parts) + (self.any("", ",") if parts else "") + between() + "]"

    def value(self, value):
        if isinstance(value, dict):
            return "{" + ",".join(f" {self.pair((key,), part)} " for key, part in value.items()) + "}"
        return self.array(value) if isinstance(value, list) else self.leaf()

    def pair(self, path, value):
        return f"{self.dotted(path)}{self.blank()}={self.blank()}{self.value(value)}"

    def pairs(self, path, value):
        """A value, or a table as dotted keys."""
        if isinstance(value, dict) and value and self.any(True, False):
            return "".join(self.pairs((*path, key), part) for key, part in value.items())
        return f"{self.noise()}{self.blank()}{self.pair(path, value)} {self.any('', '# [no] = 1')}\n"

    def table(self, path, table):
        """The body of a table, then the tables below it that get a header."""
        later = {key: value for key, value in table.items()
                 if (isinstance(value, dict) or tables(value)) and self.any(True, True, False)}
        text = "".join(self.pairs((key,), value) for key, value in table.items() if key not in later)
        for key, value in later.items():
            below = (*path, key)
            for element in value if isinstance(value, list) else [value]:
                opening, closing = ("[[", "]]") if isinstance(value, list) else ("[", "]")
                header = f"{self.blank()}{opening}{self.blank()}{self.dotted(below)}{self.blank()}{closing}"
                text += f"{self.noise()}{header} {self.any('', '# a = 1')}\n{self.table(below, element)}"
        return text


def tables(value):
    return isinstance(value, list) and len(value) > 0 and all(isinstance(part, dict) for part in value)


TREES = st.dictionaries(st.sampled_from(KEYS), st.recursive(
    st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=12), max_size=5)


@given(TREES, st.data())
def test_every_leaf_of_any_document_has_its_true_line(tree, data):
    text = Text(data.draw).table((), tree)
    read, found = tomllib.loads(text), key_lines(text)
    assert set(found) == set(paths(read))
    leaves = [path for path in paths(read) if isinstance(at(read, path), str)]
    for path in leaves:
        mark = re.match(r"v\d+", at(read, path))[0]
        position = re.search(rf"\b{mark}\b", text).start()
        assert found[path] == text.count("\n", 0, position) + 1


def numbered(tree, numbers):
    """The tree with a number of its own in the place of each leaf."""
    if isinstance(tree, dict):
        return {key: numbered(part, numbers) for key, part in tree.items()}
    return [numbered(part, numbers) for part in tree] if isinstance(tree, list) else next(numbers)


@given(TREES, st.data())
def test_every_leaf_of_a_written_document_has_its_true_line_among_comments(tree, data):
    tree = numbered(tree, itertools.count(10**17))  # so long that many arrays have several lines
    noise = st.lists(st.sampled_from(["", "# [a]", "  # b = 1"]), max_size=2)
    rows = [row for line in dumps(tree).split("\n") for row in (*data.draw(noise), line)]
    read, found = tomllib.loads("\n".join(rows)), key_lines("\n".join(rows))
    assert read == tree
    for path in paths(read):
        if isinstance(at(read, path), int):
            assert str(at(read, path)) in rows[found[path] - 1]


@given(st.text(st.sampled_from("abv =[]{}\"'\\\n#.,1-:_\t\n\n"), max_size=40))
@example('a = """"""')
@example('a = """"b"""""')
@example("a = ''''''''\nb = 1")
def test_whatever_the_standard_library_reads_has_lines(text):
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(key_lines(text)) == set(paths(read))


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


COMMENTS = {"seed": "set by you", "a.rate": "largest stable rate", "a.long": "word " * 60, "a.list": "after the array",
            "a.b.text": 'with a "quote", a # and a \\ in it', "nowhere.key": "ignored", "a.c.x": "dotted table"}
COMMENTED = {"seed": 1, "plain": 2, "a": {"rate": 0.5, "long": 3, "list": ["element " * 5] * 4, "b": {"text": "x # y"},
                                          "c": {"x": 1}}}


def test_comments_are_written_after_values_and_read_again():
    text = toml.dumps(COMMENTED, COMMENTS)
    assert "seed = 1  # set by you\nplain = 2\n" in text
    assert tomllib.loads(text) == COMMENTED
    assert max(map(len, text.split("\n"))) <= 110
    known = {key: " ".join(comment.split()) for key, comment in COMMENTS.items() if key != "nowhere.key"}
    assert toml.read_comments(text) == known
    assert toml.dumps(COMMENTED, toml.read_comments(text)) == text


def test_lines_of_keys_with_comments():
    document = toml.parse_document(toml.dumps(COMMENTED, COMMENTS), "x.toml")
    lines = toml.dumps(COMMENTED, COMMENTS).split("\n")
    for path in (("seed",), ("a", "rate"), ("a", "long"), ("a", "b", "text")):
        assert lines[document.line(path) - 1].startswith(f"{path[-1]} = ")


@pytest.mark.parametrize("comment", ["two\nlines", "a\x00b", "\x1b[31mred", "\u202eturned", "", "   "])
def test_hostile_comments(comment):
    text = toml.dumps({"key": 1}, {"key": comment})
    assert tomllib.loads(text) == {"key": 1}
    assert len(text.split("\n")) == 2
    assert text.replace("\n", "").isprintable()


def test_comments_of_a_user():
    text = "# above\n[a]\nx = 1 # mine\n# not indented\ny = [ # inside\n  1, # one\n] # after\n   # more\nz = 'a # b'\n"
    assert toml.read_comments(text) == {"a.x": "mine", "a.y": "after more"}


def test_errors_name_where_a_value_comes_from():
    document = toml.override(toml.parse_document("[a]\nx = 1\n", "f.toml"), {"a.y": 2}, "--set")
    document = toml.override(document, {"a.z": 3, "b": 4})
    problems = [toml.ConfigProblem(path, "", ": wrong") for path in (("a", "x"), ("a", "y"), ("a", "z"), ("b",))]
    assert set(document.error(problems).problems) == {
        'f.toml:2: "x" in [a]: wrong', '--set: "y" in [a]: wrong', 'f.toml (overridden): "z" in [a]: wrong',
        'f.toml (overridden): "b": wrong'}
