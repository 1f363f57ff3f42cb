"""Tab-separated pairs and labelled texts."""

import pytest

from regard.data.sources import formats, tsv
from regard.data.sources.text import DataError, InputFile, Location, ReadLog, SentencePair, TargetSlot
from regard.data.sources.tsv import read_labelled_texts


def pairs(path, source=None, target=None):
    return list(tsv.read_pairs(InputFile(path), source, target, ReadLog()))


def logged(path, source=None, target=None):
    """The two texts of each pair, and what was noted on the way."""
    log = ReadLog()
    found = [(pair.source, pair.target) for pair in tsv.read_pairs(InputFile(path), source, target, log)]
    assert list(tsv.read_pairs(InputFile(path), source, target, log)), "a second reading notes nothing new"
    return found, log


def test_two_columns(file):
    path = file("a.tsv", 'one\tun\r\n"two"\t "deux\n\t\nthree\u2028\ttrois')
    assert pairs(path) == [SentencePair("one", "un", Location(path, 1)),
                           SentencePair('"two"', ' "deux', Location(path, 2)),
                           SentencePair("", "", Location(path, 3)),
                           SentencePair("three\u2028", "trois", Location(path, 4))]


def test_languages_choose_no_columns(file):
    path = file("a.tsv", "one\tun\n")
    assert pairs(path, "en", "fr") == pairs(path)


def test_names_without_a_header_choose_no_columns_and_that_is_reported(file):
    path = file("a.tsv", "one\tun\n")
    found, log = logged(path, "question", "answer")
    assert found == [("one", "un")]
    assert [('"question"' in note, '"answer"' in note) for note in log.notes] == [(True, True)]
    assert logged(path, "en", "fr")[1].notes == []


@pytest.mark.parametrize(("line", "got"), [
    ("a", "1 column"), ("a\tb\tc", "3 columns"), ("", "1 column"), ("a\t\tb", "3 columns")])
def test_a_tab_too_many_or_too_few(file, refused, line, got):
    path = file("a.tsv", f"x\ty\n{line}\n")
    for names in ((), ("en", "fr")):
        assert refused(lambda names=names: pairs(path, *names)).startswith(f"a.tsv:2: {got} instead of 2: ")


def test_chosen_columns(file, refused):
    path = file("a.tsv", "a\tb\tc\td\n")
    assert [pair[:2] for pair in pairs(path, "4", "2")] == [("d", "b")]
    assert [pair[:2] for pair in pairs(path, "1", "2")] == [("a", "b")]
    assert refused(lambda: pairs(path, "1", "5")).startswith("a.tsv:1: 4 columns, but column 5 was chosen.")


@pytest.mark.parametrize("names", [("1", "1"), ("0", "1"), ("1", "fr"), ("01", "1"), ("00", "1")])
def test_columns_that_cannot_be_chosen(names):
    with pytest.raises(ValueError, match="`source, target` must be two different columns, counted from 1"):
        tsv.parse_columns(*names)


def read(path, *names):
    return [(piece.source, piece.target, piece.raw) if isinstance(piece, TargetSlot) else piece
            for piece in tsv.parse_document(InputFile(path), *(names or (None, None)), ReadLog()) if piece != b""]


def test_pieces(file):
    path = file("a.tsv", "one\tun\r\ntwo\n")
    assert read(path) == [b"one\t", ("one", "un", b"un"), b"\r\n", b"two\t", ("two", "", b""), b"\n"]
    path = file("b.tsv", "a\tb\tc\n")
    assert read(path, "3", "1") == [("c", "a", b"a"), b"\tb\tc", b"\n"]
    assert read(path, "1", "4") == [b"a\tb\tc\t", ("a", "", b""), b"\n"]


@pytest.mark.parametrize(("line", "names"), [
    ("a", ("1", "3")), ("a", ("2", "1")), ("a", ("3", "2"))])
def test_pieces_of_a_line_with_other_columns(file, refused, line, names):
    path = file("a.tsv", f"{line}\n")
    assert refused(lambda: tsv.parse_document(InputFile(path), *names, ReadLog())).startswith("a.tsv:1: ")


TATOEBA = "CC-BY 2.0 (France) Attribution: tatoeba.org #{} (ana) & #{} (ben)"


def tatoeba(count=3):
    """Lines with the layout of Tatoeba's downloads: English, French, attribution."""
    return [f"Ship {n} sails.\tLe bateau {n} part.\t{TATOEBA.format(n, n + 1)}" for n in range(count)]


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_three_columns_are_a_pair_and_something_else(file, name):
    path = file(name, "\n".join(tatoeba()) + "\n")
    found, log = logged(path)
    assert found == [(f"Ship {n} sails.", f"Le bateau {n} part.") for n in range(3)]
    assert len(log.notes) == 1
    assert "3 columns" in log.notes[0]
    assert "--source" in log.notes[0]


@pytest.mark.parametrize(("first", "second", "got", "expected"), [
    (tatoeba()[0], "one\tun", "2 columns", "3"), ("one\tun", tatoeba()[0], "3 columns", "2"),
    (tatoeba()[0], "one", "1 column", "3"), ("a\tb\tc\td", tatoeba()[0], "3 columns", "4")])
def test_the_first_line_sets_the_number_of_columns(file, refused, first, second, got, expected):
    path = file("a.tsv", f"{first}\n{second}\n")
    message = refused(lambda: pairs(path))
    assert message.startswith(f"a.tsv:2: {got}")
    assert expected in message
    assert refused(lambda: tsv.parse_document(InputFile(path), None, None, ReadLog())).startswith("a.tsv:2: ") \
        or second == "one"


@pytest.mark.parametrize(("header", "languages"), [
    ("source\ttarget", None), ("src\ttgt", None), ("Source\tTarget", None), ("en\tfr", ("en", "fr")),
    ("EN\tpt_BR", ("en", "pt-BR")), ("English\tFrench", ("en", "fr")), ("eng\tfra", ("eng", "fra")),
    ("original\ttranslation", None)])
def test_a_header_line_is_no_example(file, header, languages):
    path = file("a.tsv", f"{header}\nA red house.\tUne maison rouge.\nNo.\tNon.\n")
    found, log = logged(path)
    assert found == [("A red house.", "Une maison rouge."), ("No.", "Non.")]
    assert pairs(path)[0].location.line == 2
    assert len(log.notes) == 1
    assert header.split("\t")[0] in log.notes[0]
    assert [*log.languages.values()] == ([] if languages is None else [languages])
    labels = [("1", "2"), ("2", "1")]
    assert logged(path, *labels[1])[0] == [(target, source) for source, target in found], "columns may be chosen too"


@pytest.mark.parametrize(("first", "following"), [
    ("it\tes", "that\tdas\nhouse\tHaus"),      # a word list: codes are words too
    ("my\tmi", "your\ttu\n"),
    ("no\tno", "A red house.\tUna casa roja."),  # twice the same
    ("no\tJa.", "A red house.\tEin rotes Haus."),
    ("Source code.\tCode source.", "A red house.\tUne maison."),
    ("source\tla source", "A red house.\tUne maison."),
    ("Is\tist", "A red house.\tEin rotes Haus."),
    ("source\tsource", "A red house.\tUne maison rouge."),
    ("id\tnote", "A red house.\tUne maison."),
    ("en", "A red house.\tUne maison."),
    ("I\tje", "A red house.\tUne maison."),
    ("target\tbut", "A red house.\tUne maison."),
])
def test_an_example_is_no_header(file, first, following):
    path = file("a.tsv", f"{first}\n{following}\n")
    log, read = ReadLog(), []
    for line in tsv.parse_document(InputFile(path), None, None, log):
        read += [line.source] if isinstance(line, TargetSlot) else []
    assert read[0] == first.split("\t")[0]
    assert not log.notes
    assert not log.languages


def test_a_header_names_columns(file, refused):
    path = file("a.tsv", "id\tde\ten\n1\tEin Haus.\tA house.\n2\tJa.\tYes.\n")
    found, log = logged(path)
    assert found == [("Ein Haus.", "A house."), ("Ja.", "Yes.")]
    assert [*log.languages.values()] == [("de", "en")]
    found, log = logged(path, "en", "de")
    assert found == [("A house.", "Ein Haus."), ("Yes.", "Ja.")]
    assert [*log.languages.values()] == [("en", "de")]
    message = refused(lambda: pairs(path, "en", "fr"))
    assert message.startswith("a.tsv:1: ")
    assert '"fr"' in message
    assert '"de"' in message
    swapped = file("b.tsv", "target\tsource\tscore\nun\tone\t0.5\n")
    assert logged(swapped)[0] == [("one", "un")]
    own = file("c.tsv", "Deutsch alt\tDeutsch neu\tx\nwar\tist\t1\n")
    assert logged(own, "Deutsch alt", "deutsch neu")[0] == [("war", "ist")], "names of the user's own"


def test_names_without_a_header(file, refused):
    path = file("a.tsv", "\n".join(tatoeba()))
    message = refused(lambda: pairs(path, "en", "fr"))
    assert message.startswith("a.tsv:1: ")
    assert '"en"' in message
    assert "--source 1" in message


def test_a_translated_file_keeps_header_and_columns(file, tmp_path):
    content = "id\tsource\ttarget\tscore\r\n7\tone\told\t0.5\r\n8\ttwo\t\t0.25\n"
    path, output = file("a.tsv", content), str(tmp_path / "b.tsv")
    assert [line.text for line in formats.read_sources(path)] == ["one", "two"]
    assert formats.write_translations(path, ["un", "deux"], output) == 2
    with open(output, newline="") as written:
        assert written.read() == content.replace("old", "un").replace("two\t", "two\tdeux")


def test_only_a_header(file, refused):
    assert refused(lambda: formats.read_pairs([file("a.tsv", "source\ttarget\n")])).startswith("a.tsv: No pairs")


def test_a_bad_byte_after_a_possible_header_is_named(file, refused):
    path = file("a.tsv", b"it\tes\n\xff\tb\n")
    assert refused(lambda: pairs(path)).startswith("a.tsv:2: byte 1")


def read_of_labelled(path, data):
    path.write_bytes(data)
    return list(read_labelled_texts(InputFile(path)))


def test_lines(tmp_path):
    path = tmp_path / "a.tsv"
    found = read_of_labelled(path, '"Quoted",\tgood \r\n\tempty\n two  spaces \t\u00e9\n'.encode())
    assert [(one.text, one.label, one.location.line) for one in found] == [
        ('"Quoted",', "good", 1), ("", "empty", 2), (" two  spaces ", "\u00e9", 3)]
    assert str(found[2].location) == f"{path}:3"


@pytest.mark.parametrize(("data", "message"), [
    (b"a\tb\nno tab\n", r"a.tsv:2: 1 column instead of 2: a text, a tab, a label"),
    (b"a\tb\tc\n", "a.tsv:1: 3 columns instead of 2"),
    (b"a\tb\n\n", "a.tsv:2: 1 column instead of 2"),
    (b"a\t \n", "a.tsv:1: There is no label after the tab"),
    (b"a\tb\n\xff\tc\n", "a.tsv:2: byte 1: 0xFF is not UTF-8"),
])
def test_a_bad_line_is_named(tmp_path, data, message):
    with pytest.raises(DataError, match=message):
        read_of_labelled(tmp_path / "a.tsv", data)


@pytest.mark.parametrize("header", ["text\tlabel", "Sentence\tSentiment", "review\tclass"])
def test_a_header_of_labelled_texts(tmp_path, header):
    path, log = tmp_path / "a.tsv", ReadLog()
    path.write_text(f"{header}\ngood\tplus\n")
    assert [(one.text, one.label, one.location.line) for one in read_labelled_texts(InputFile(path), log)] == [
        ("good", "plus", 2)]
    assert len(log.notes) == 1
    assert header.split("\t")[1] in log.notes[0]


@pytest.mark.parametrize("line", ["text\tplus", "good\tlabel", "label\ttext"])
def test_a_labelled_text_is_no_header(tmp_path, line):
    assert len(read_of_labelled(tmp_path / "a.tsv", f"{line}\ngood\tplus\n".encode())) == 2


def test_word_alignments_in_the_third_column(file):
    path = file("a.tsv", "a b\tx y\t0-1 1-0\nc\tz\t\nd\te\tno links\nf\tg\t0-0 \nh\ti\t0-99999999\nj\tk\t12-3\tmore\n")
    assert [*tsv.read_alignments(InputFile(path))] == [((0, 1), (1, 0)), (), (), (), (), ((12, 3),)]
    assert [*tsv.read_alignments(InputFile(file("b.tsv", "a\tb\n")))] == [()]
