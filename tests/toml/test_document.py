"""Documents: read from files of all sorts, changed, and problems worded with their place."""

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import toml
from regard.toml import (
    ConfigError,
    ConfigProblem,
    TomlDocument,
    override,
    parse_document,
    parse_override,
    read_document,
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
    (b"a = 1\nb =\nc = 1", "2: not TOML: invalid value (column 4)"),
    (b"a = 1\na = 2\nb = 1", "2: not TOML: a key or table of this name is there already (column 6)"),
    (b"[a.b]\nc = 1\n[a.b]\n", "3: not TOML: cannot declare [a.b] twice (column 5)"),
    (b"a = 1\nb = [1,\n2\n\n", "3: not TOML: unclosed array (at the end)"),
    (b"a = 1\n\x00", "2: not TOML: invalid statement (column 1)"),
    (b"a = 1\rb = 2", "1: not TOML: expected newline or end of document after a statement (column 6)"),
    (b"a = " + b"9" * 5000, " a number has too many digits to be read"),
    (b"a = " + b"[" * 5000, " tables or arrays are nested too deeply to be read"),
])
def test_bad_files_are_refused_with_the_line(tmp_path, data, said):
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    assert problems(lambda: read_document(path)) == [f"{path}:{said}"]


def test_files_that_cannot_be_read(tmp_path):
    assert problems(lambda: read_document(tmp_path / "no.toml")) == [f"{tmp_path}/no.toml: there is no such file"]
    assert problems(lambda: read_document(tmp_path)) == [f"{tmp_path}: expected a TOML file, but it is a directory"]
    assert problems(lambda: read_document("a\0\x1b\udc80")) == [r"a\u0000\u001b\udc80: cannot be read: embedded null byte"]
    long = tmp_path / ("x" * 300)
    assert problems(lambda: read_document(long)) == [f"{long}: cannot be read: File name too long"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path):
    path = tmp_path / "locked.toml"
    path.write_text("")
    path.chmod(0)
    assert problems(lambda: read_document(path)) == [f"{path}: there is no permission to read it"]


def test_no_permission_in_words(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(toml.Path, "read_bytes", refuse)
    assert problems(lambda: read_document("locked.toml")) == ["locked.toml: there is no permission to read it"]


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
        'train.toml, as changed: "heads" in [model.layers[1]]: x',
        'train.toml, as changed: "width" in [model]: x',
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
    assert problem.endswith(": expected a key and its value, such as model.width=512")
    assert problem.isprintable()


def test_given_tables_are_a_mapping():
    assert toml.document_of({"a": 1}, "here").error([ConfigProblem(("a",), "", ": x")]).problems == ('here: "a": x',)
    with pytest.raises(ValueError, match="`tables` must be a mapping of names to tables, but is a list instead"):
        toml.document_of([1])
