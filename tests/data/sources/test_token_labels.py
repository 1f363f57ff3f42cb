"""Labelled sequences in TSV, CoNLL and JSONL, which are recognised by their content."""

import gzip

import pytest

from regard.data.sources.text import DataError, InputFile, ReadLog
from regard.data.sources.token_labels import LabelledFile, join_tokens, split_tokens

PROTEIN = "MKVLA\tCHHHC\nAAX\tEEC\n"
WORDS = "The cat sleeps .\tDET NOUN VERB PUNCT\nYes\tINTJ\nDogs bark\tNOUN VERB\n"
CONLL = "The DET\ncat NOUN\n\nDogs NOUN\nbark VERB\n"


def opened(tmp_path, content, name="data.tsv", **options):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return LabelledFile(InputFile(path), **options)


def read(tmp_path, content, name="data.tsv", **options):
    return [("".join(one.tokens) if all(len(token) == 1 for token in one.tokens) else " ".join(one.tokens),
             " ".join(one.labels)) for one in opened(tmp_path, content, name, **options)]


@pytest.mark.parametrize(("content", "format", "unit"), [
    (PROTEIN, "tsv", "character"), (WORDS, "tsv", "word"), (CONLL, "conll", "word"),
    (CONLL.replace(" ", "\t"), "conll", "word"),
    ("EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n", "conll", "word"),
    ("M C\nK H\n\nV H\n", "conll", "character"),
    ("M\tC\nK\tH\n\nV\tH\n", "conll", "character"),
    ("I am\tA_BB\nyes\tBBB\n", "tsv", "character"),
    ('{"tokens": ["The", "cat"], "labels": ["DET", "NOUN"]}\n', "jsonl", "word"),
    ('{"text": "MKV", "labels": "CHH"}\n', "jsonl", "character"),
    ('{"tokens": ["M", "K"], "tags": ["C", "H"]}\n', "jsonl", "character"),
    ('{"text": "The cat", "labels": "DET NOUN"}\n', "jsonl", "word"),
    ('{"tokens": ["a", "cat"], "ner_tags": [0, 3]}\n', "jsonl", "word")])
def test_format_and_unit_are_recognised(tmp_path, content, format, unit):
    layout = opened(tmp_path, content).layout
    assert (layout.format, layout.unit) == (format, unit)


def test_the_three_formats_hold_the_same(tmp_path):
    tsv = read(tmp_path, "The cat\tDET NOUN\nDogs bark\tNOUN VERB\n")
    lines = ['{"tokens": ["The", "cat"], "labels": ["DET", "NOUN"]}',
             '{"tokens": ["Dogs", "bark"], "labels": ["NOUN", "VERB"]}']
    assert tsv == read(tmp_path, CONLL) == read(tmp_path, "\n".join(lines)) == [
        ("The cat", "DET NOUN"), ("Dogs bark", "NOUN VERB")]


@pytest.mark.parametrize("change", [lambda data: data, lambda data: b"\xef\xbb\xbf" + data, gzip.compress,
                                    lambda data: data.replace(b"\n", b"\r\n"), lambda data: data.rstrip(b"\n")])
def test_marks_ends_and_compression_change_nothing(tmp_path, change):
    for content in (PROTEIN, CONLL):
        assert read(tmp_path, change(content.encode())) == read(tmp_path, content)


@pytest.mark.parametrize(("content", "line", "numbers"), [
    ("MKV\tCHH\nMKVL\tCHH\n", 2, ("4 characters", "3 labels")),
    ("MKV\tCHH\nMKV\tCHHH\n", 2, ("3 characters", "4 labels")),
    ("MKV\tCHH\n\tCH\nAA\tCC\n", 2, ("0 characters", "2 labels")),
    ("MKV\tCHH\nMK\t\nAA\tCC\n", 2, ("2 characters", "0 labels")),
    ("a b\tX Y\na b c\tX Y\nd e\tY Y\n", 2, ("3 words", "2 labels")),
    ("ABC\tHH\n", 1, ("3 characters", "2 labels")),
    ("MKV\tCHH\nMKV\nMKV\tCCC\n", 2, ("1 column",)),
    ("MKV\tCHH\t\nAA\tCC\t\nMKV\tCCC\t\n", 1, ("tab",)),
    ("The DET\ncat\n", 2, ("1 column", "2")),
    ("The DET\nbig cat NOUN\n", 2, ("3 columns", "2")),
    ("The\tDET\ncat\t\ndog\tNOUN\n", 2, ("label is empty",)),
    ("A fine film\tgood\nA bad film\tbad\n", 1, ("3 words", "1 label", "--task classify")),
    ('{"tokens": ["a", "b"], "labels": ["X"]}\n', 1, ("2", "1 label")),
    ('{"tokens": ["ab", ""], "labels": ["X", "Y"]}\n', 1, ("tokens",)),
    ('{"tokens": ["ab", 1.5], "labels": ["X", "Y"]}\n', 1, ("1.5",)),
    ('{"tokens": ["ab"], "labels": [null]}\n', 1, ("labels", "None")),
    ('{"tokens": ["ab"]}\n', 1, ("labels",)),
    ('{"tokens": ["ab"], "labels": ["X"]}\nnonsense\n', 2, ("JSON",)),
    ('{"tokens": ["ab"], "labels": ["X"]}\n\n\n{"tokens": ["ab"]}\n', 4, ("labels",)),
    ('-DOCSTART- O\n\nThe DET\ncat\n', 4, ("1 column", "2")),
])
def test_errors_name_file_line_and_numbers(tmp_path, content, line, numbers):
    with pytest.raises(DataError) as error:
        list(opened(tmp_path, content, "bad.tsv"))
    assert f"bad.tsv:{line}: " in str(error.value)
    for number in numbers:
        assert number in str(error.value)


@pytest.mark.parametrize("content", ["", "\n\n", "# only a comment\n", "-DOCSTART- O\n\n"])
def test_a_file_without_sequences_is_refused(tmp_path, content):
    with pytest.raises(DataError, match=r"data\.tsv"):
        opened(tmp_path, content)


def test_empty_sequences_are_skipped_and_their_places_kept(tmp_path):
    empty = []
    found = list(opened(tmp_path, "MKV\tCHH\n\n\t\nAA\tCC\n").read(empty))
    assert [one.location.line for one in found] == [1, 4]
    assert [place.line for place in empty] == [2, 3]
    empty = []
    lines = '{"tokens": [], "labels": []}\n{"tokens": ["ab", "c"], "labels": ["X", "Y"]}\n'
    assert len(list(opened(tmp_path, lines).read(empty))) == 1
    assert [place.line for place in empty] == [1]


def test_documents_comments_and_a_token_that_is_a_hash(tmp_path):
    content = ("-DOCSTART- -X- O\n\n# id = 3\n# text = Number # 1\nNumber N O\n# S O\n1 C O\n\n\n\nEnd N O\n")
    found = list(opened(tmp_path, content))
    assert [one.tokens for one in found] == [("Number", "#", "1"), ("End",)]
    assert [one.location.line for one in found] == [5, 11]


def test_conll_u_has_its_words_in_the_second_column(tmp_path):
    rows = ["# sent_id = 1", "1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_", "1\tde\tde\tADP\t_\t_\t3\tcase\t_\t_",
            "2\tle\tle\tDET\t_\t_\t3\tdet\t_\t_", "2.1\tx\t_\tX\t_\t_\t_\t_\t_\t_",
            "3\tpain\tpain\tNOUN\t_\t_\t0\troot\t_\t_"]
    log = ReadLog()
    assert read(tmp_path, "\n".join(rows), log=log) == [("de le pain", "ADP DET NOUN")]
    assert any("CoNLL-U" in note for note in log.notes)


def test_columns_and_keys_can_be_chosen(tmp_path):
    rows = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n"
    assert read(tmp_path, rows) == [("EU rejects", "B-ORG O")]
    assert read(tmp_path, rows, source="1", target="2") == [("EU rejects", "NNP VBZ")]
    assert read(tmp_path, "7\tMKV\tCHH\n8\tAA\tCC\n", source="2", target="3") == [("MKV", "C H H"), ("AA", "C C")]
    assert read(tmp_path, '{"a": ["xy", "z"], "b": ["1", "2"]}', source="a", target="b") == [("xy z", "1 2")]
    for source, target in (("0", "1"), ("1", "1"), ("one", "two")):
        with pytest.raises(ValueError, match="source, target"):
            opened(tmp_path, rows, source=source, target=target)


@pytest.mark.parametrize(("content", "target"), [(PROTEIN, "9"), (CONLL, "4"), ("7\tMKV\tCHH\n8\tAA\tCC\n", "9")])
def test_a_chosen_column_that_is_missing_is_named(tmp_path, content, target):
    with pytest.raises(DataError, match=rf"data\.tsv:1: There is no column {target}: .*has [23] columns"):
        list(opened(tmp_path, content, source="1", target=target))
    with pytest.raises(DataError, match=r"data\.tsv:2: There is no column 3: .*has 2 columns"):
        list(opened(tmp_path, "7\tMKV\tCHH\n8\tAA\n9\tAA\tCC\n", source="2", target="3"))


def test_conll_without_blank_lines_is_one_sentence_and_says_so(tmp_path):
    """A file with one word and its class on each line fits labels of words, too."""
    log = ReadLog()
    assert read(tmp_path, "good\tpos\nbad\tneg\nnice\tpos\n", log=log) == [("good bad nice", "pos neg pos")]
    assert any("data.tsv" in note and "--task classify" in note for note in log.notes)
    log = ReadLog()
    assert len(read(tmp_path, CONLL, log=log)) == 2
    assert not log.notes


def test_a_file_without_labels_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"data\.tsv: There are no labels.*one column"):
        opened(tmp_path, "one\ntwo\n")


@pytest.mark.parametrize("header", ["text\tlabels", "tokens\tlabels", "Sequence\tLabel"])
def test_a_header_is_skipped_and_reported(tmp_path, header):
    log = ReadLog()
    assert read(tmp_path, f"{header}\n{PROTEIN}", log=log) == read(tmp_path, PROTEIN)
    assert any("header" in note for note in log.notes)


def test_unit_and_format_can_be_set(tmp_path):
    assert opened(tmp_path, "ab cd\tXY ZW\n").layout.unit == "word"
    assert read(tmp_path, "ab cd\tXY ZW\n", unit="character") == [("ab cd", "X Y   Z W")]
    assert opened(tmp_path, "ab\tXY\ncd\tZW\n", format="conll").layout.format == "conll"
    with pytest.raises(ValueError, match="`unit`"):
        opened(tmp_path, PROTEIN, unit="byte")
    with pytest.raises(ValueError, match="`format`"):
        opened(tmp_path, PROTEIN, format="xml")


def test_odd_characters_are_tokens_like_others(tmp_path):
    odd = "a\u2028\u00a0\u200b😀\u0301"
    assert next(iter(opened(tmp_path, f"{odd}\tXYZWVU\nbc\tXX\n"))).tokens == tuple(odd)
    assert split_tokens("  a\u00a0b  c ", "word") == ("a\u00a0b", "c")
    assert join_tokens(("a", "b"), "word") == "a b"
    with pytest.raises(DataError, match=r"data\.tsv:1: byte 2"):
        opened(tmp_path, b"M\xff\tCH\n")


def test_a_file_can_be_read_again(tmp_path):
    file = opened(tmp_path, PROTEIN)
    assert [*file] == [*file]
