"""Data in memory: which rows are read, what is written, and which row and column is refused."""

import json
import tracemalloc
from typing import NamedTuple

import pytest

from regard.data.sources.formats import read_pairs
from regard.data.sources.in_memory import write_labelled_texts, write_pairs, write_texts
from regard.data.sources.jsonl import read_labelled_texts
from regard.data.sources.text import DataError, InputFile

PAIRS = [("Good day.", "Guten Tag."), ("Yes.", "Ja.")]
LABELLED = [("A fine film.", "good"), ("Too long.", "bad")]


class Frame:
    """A table as pandas and polars have them: columns, and a column by its name."""

    def __init__(self, **columns):
        self.data, self.columns = columns, list(columns)

    def __getitem__(self, name):
        return self.data[name]


class Dataset:
    """A split of a Hugging Face dataset: column names, features, and an iterator of dicts."""

    def __init__(self, rows, features=None):
        self.rows = rows
        self.column_names = list(rows[0]) if rows else []
        self.features = features or dict.fromkeys(self.column_names)

    def __iter__(self):
        return iter(self.rows)


class Splits(dict):
    """A Hugging Face DatasetDict."""

    @property
    def column_names(self):
        return {name: split.column_names for name, split in self.items()}


class ClassLabel:
    names = ("bad", "good")


class Sentences(NamedTuple):
    target: str
    source: str
    place: int


def pairs_of(path, **sides):
    return [(pair.source, pair.target) for pair in read_pairs([path], **sides)]


@pytest.mark.parametrize("data", [
    PAIRS, [list(pair) for pair in PAIRS], iter(PAIRS), (pair for pair in PAIRS), dict(PAIRS).items(),
    [{"source": source, "target": target, "id": 7} for source, target in PAIRS],
    [Sentences(target, source, 3) for source, target in PAIRS],
    Frame(id=[1, 2], target=[target for _, target in PAIRS], source=[source for source, _ in PAIRS]),
    Frame(en=[source for source, _ in PAIRS], de=[target for _, target in PAIRS]),
    {"source": [source for source, _ in PAIRS], "target": [target for _, target in PAIRS]},
    Dataset([{"id": 1, "source": source, "target": target} for source, target in PAIRS]),
    Dataset([{"id": "1", "translation": {"en": source, "de": target}} for source, target in PAIRS]),
    [{"translation": {"en": source, "de": target}} for source, target in PAIRS],
])
def test_pairs_of_every_kind(data, tmp_path):
    path = tmp_path / "new" / "pairs.jsonl"
    assert write_pairs(data, path) == 2
    assert pairs_of(path) == PAIRS


def test_columns_are_chosen_by_name_and_keep_it(tmp_path):
    frame = Frame(en=["Yes."], de=["Ja."], fr=["Oui."])
    write_pairs(frame, tmp_path / "a.jsonl", source="fr", target="en")
    assert json.loads((tmp_path / "a.jsonl").read_text()) == {"fr": "Oui.", "en": "Yes."}
    assert pairs_of(tmp_path / "a.jsonl", source="fr", target="en") == [("Oui.", "Yes.")]
    nested = Dataset([{"translation": {"en": "Yes.", "de": "Ja.", "fr": "Oui."}}])
    write_pairs(nested, tmp_path / "b.jsonl", source="de", target="fr")
    assert pairs_of(tmp_path / "b.jsonl", source="de", target="fr") == [("Ja.", "Oui.")]


@pytest.mark.parametrize("text", ["a\tb", "a\nb\r\nc\r", 'a "b" \\', "\u2028x\u0085", "𝒳 ü\ufeff", "", " "])
def test_every_text_survives(text, tmp_path):
    write_pairs([(text, "x"), ("y", text)], tmp_path / "pairs.jsonl")
    assert pairs_of(tmp_path / "pairs.jsonl") == [(text, "x"), ("y", text)]
    write_labelled_texts([(text, "x")], tmp_path / "labels.jsonl")
    assert [one.text for one in read_labelled_texts(InputFile(tmp_path / "labels.jsonl"))] == [text]


class NAType:
    """pandas.NA is of a class of this name."""


@pytest.mark.parametrize("bad", [None, float("nan"), NAType(), 5, b"Ja.", ["Ja."], "a\0b", "\ud800"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_bad_cell_is_refused_with_its_row_and_column(bad, side, tmp_path):
    row = ["Yes.", "Ja."]
    row[side] = bad
    path = tmp_path / "pairs.jsonl"
    for data in ([*PAIRS, tuple(row)], Frame(source=["a", "b", row[0]], target=["c", "d", row[1]])):
        with pytest.raises(DataError, match=rf'`validation`, row 2, column "{("source", "target")[side]}"'):
            write_pairs(data, path, argument="validation")
        assert not path.exists()


@pytest.mark.parametrize(("row", "got"), [
    (("a", "b", "c"), "a tuple of 3"), (["a"], "a list of 1"), ("ab", "a str"), (7, "an? int"), (None, "a NoneType"),
])
def test_a_ragged_row_is_refused_with_its_number(row, got, tmp_path):
    with pytest.raises(DataError, match=f"`data`, row 1 .*{got}"):
        write_pairs([("a", "b"), row], tmp_path / "pairs.jsonl")


@pytest.mark.parametrize("data", [Frame(en=["a"], de=["b"], id=[1]), [{"en": "a", "de": "b", "id": "1"}],
                                  Dataset([{"en": "a", "de": "b", "id": "1"}])])
def test_wrong_columns_are_named(data, tmp_path):
    with pytest.raises(DataError, match=r'no column "source" and "target".*"en", "de", "id".*source=.* target='):
        write_pairs(data, tmp_path / "pairs.jsonl")
    with pytest.raises(DataError, match=r'no column "it";'):
        write_pairs(data, tmp_path / "pairs.jsonl", source="en", target="it")


def test_columns_of_different_lengths_are_refused(tmp_path):
    with pytest.raises(DataError, match=r'"source" has 2 and "target" has 1'):
        write_pairs({"source": ["a", "b"], "target": ["c"]}, tmp_path / "pairs.jsonl")


@pytest.mark.parametrize("data", [[], iter(()), Frame(source=[], target=[]), {"source": [], "target": []}])
def test_no_rows_are_refused(data, tmp_path):
    with pytest.raises(DataError, match="`data` is empty"):
        write_pairs(data, tmp_path / "pairs.jsonl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [7, b"bytes", None, "text"])
def test_what_is_no_data_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match="`data` must be"):
        write_pairs(data, tmp_path / "pairs.jsonl")


def test_a_dataset_with_splits_asks_for_one(tmp_path):
    splits = Splits(train=Dataset([{"source": "a", "target": "b"}]), test=Dataset([{"source": "a", "target": "b"}]))
    with pytest.raises(DataError, match='"train", "test"'):
        write_pairs(splits, tmp_path / "pairs.jsonl")
    assert write_pairs(splits["test"], tmp_path / "pairs.jsonl") == 1


@pytest.mark.parametrize(("data", "labels"), [
    (LABELLED, ["good", "bad"]), ([("a", 1), ("b", 0)], ["1", "0"]),
    ([("a", True), ("b", " x ")], ["1", "x"]), ([("a", 2.0), ("b", 3)], ["2", "3"]),
    (Frame(text=["a", "b"], label=[1, 0], id=[3, 4]), ["1", "0"]), (Frame(review=["a", "b"], stars=[5, 4]), ["5", "4"]),
    (Dataset([{"text": "a", "label": 1}, {"text": "b", "label": 0}], {"text": None, "label": ClassLabel()}),
     ["good", "bad"]),
])
def test_labelled_texts(data, labels, tmp_path):
    assert write_labelled_texts(data, tmp_path / "labels.jsonl") == 2
    assert [one.label for one in read_labelled_texts(InputFile(tmp_path / "labels.jsonl"))] == labels


@pytest.mark.parametrize("label", [None, float("nan"), 0.5, "", " ", b"good"])
def test_a_bad_label_is_refused(label, tmp_path):
    with pytest.raises(DataError, match='row 1, column "label"'):
        write_labelled_texts([("a", "x"), ("b", label)], tmp_path / "labels.jsonl")


@pytest.mark.parametrize(("data", "want"), [
    ("one\ntwo", "one\ntwo\n"), (["one", "two"], "one\ntwo\n"), ([("one",), {"text": "two"}], "one\ntwo\n"),
    (Frame(text=["one", "two"], id=[1, 2]), "one\ntwo\n"), (Frame(line=["one"]), "one\n"), (["a\nb"], "a\nb\n"),
    (Dataset([{"text": "one"}]), "one\n"),
])
def test_texts(data, want, tmp_path):
    write_texts(data, tmp_path / "texts.txt")
    assert (tmp_path / "texts.txt").read_text(encoding="utf-8") == want


@pytest.mark.parametrize("text", ["a\nb", "a\r", "a\r\n"])
def test_a_line_break_in_a_text_that_is_a_line_is_refused(text, tmp_path):
    with pytest.raises(DataError, match="`data`, row 2, column \"text\" has a line break"):
        write_texts(["x", "y", text], tmp_path / "texts.txt", one_line_each=True)
    write_texts(text, tmp_path / "texts.txt", one_line_each=True)  # one text alone has lines


def test_many_rows_need_little_memory(tmp_path):
    rows = ((f"source number {number}", f"target number {number}") for number in range(50_000))
    tracemalloc.start()
    assert write_pairs(rows, tmp_path / "pairs.jsonl") == 50_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "pairs.jsonl").stat().st_size > 3_000_000
    assert peak < 500_000


def test_a_real_data_frame(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(PAIRS, columns=["en", "de"], index=["x", "y"])
    write_pairs(frame, tmp_path / "pairs.jsonl")
    assert pairs_of(tmp_path / "pairs.jsonl") == PAIRS
    frame.loc["y", "de"] = None
    with pytest.raises(DataError, match='row 1, column "target"'):
        write_pairs(frame, tmp_path / "pairs.jsonl")
    labelled = pandas.DataFrame({"text": ["a", "b"], "label": [1, 0]})
    write_labelled_texts(labelled, tmp_path / "labels.jsonl")
    assert [one.label for one in read_labelled_texts(InputFile(tmp_path / "labels.jsonl"))] == ["1", "0"]


@pytest.mark.parametrize(("line", "message"), [
    ('{"text": "a", "label": ""}', '"label" is empty'), ('{"text": "a"}', 'key "label" is missing'),
    ('{"text": 5, "label": "x"}', '"text" is a number'), ("a\tb", "not JSON"),
])
def test_a_bad_line_of_labelled_texts_is_refused(line, message, tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n' + line)
    with pytest.raises(DataError, match=rf"labels\.jsonl:2: .*{message}"):
        list(read_labelled_texts(InputFile(path)))
