"""Directions: which files and which of their pairs belong to which direction."""

import json

import pytest

from regard.data import directions
from regard.data.directions import DirectionData, FileSides, parse_direction, read_direction
from regard.data.languages import LanguagePair, find_language, language_control, target_controls
from regard.data.sources.text import DataError

EN_FR, EN_DE, FR_EN = LanguagePair("en", "fr"), LanguagePair("en", "de"), LanguagePair("fr", "en")
TMX = """<?xml version="1.0"?><tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="fr"><seg>un</seg></tuv>
<tuv xml:lang="de"><seg>eins</seg></tuv></tu>
</body></tmx>"""


@pytest.fixture
def file(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write


def texts(one, files):
    return [(pair.source, pair.target) for pair in read_direction(one, files)]


def test_a_direction_as_it_is_typed(tmp_path, monkeypatch):
    assert parse_direction("en-fr:a.en,a.fr") == DirectionData(EN_FR, ("a.en", "a.fr"))
    assert parse_direction("pt-BR-en:a.tsv") == DirectionData(LanguagePair("pt-BR", "en"), ("a.tsv",))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one,two.tsv").touch()
    assert parse_direction("en-fr:one,two.tsv").data == ("one,two.tsv",)


@pytest.mark.parametrize("text", ["en-fr", "en-fr:", "en:a.tsv", ":a.tsv", "en-fr:a.en,", "english-fr:a.tsv"])
def test_what_is_no_direction(text):
    with pytest.raises(ValueError, match="--direction"):
        parse_direction(text)


@pytest.mark.parametrize(("given", "said"), [
    ([DirectionData(LanguagePair("en", "en"), ("a.tsv",))], "en-en"),
    ([DirectionData(EN_FR, ("a.tsv",)), DirectionData(EN_FR, ("b.tsv",))], "en-fr: .*twice"),
    ([DirectionData(EN_FR, ())], "en-fr: .*no files"),
    ([DirectionData(EN_FR, ("a.tsv", "./a.tsv"))], r"en-fr: a\.tsv .*twice"),
    ([DirectionData(EN_FR, ("a.en", "a.fr")), DirectionData(FR_EN, ("a.en", "a.fr"))], r"a\.en is en .*fr for fr-en"),
    (directions.with_reverses([DirectionData(EN_FR, ("a.tsv",)), DirectionData(FR_EN, ("b.tsv",))]), "--both-ways"),
])
def test_directions_that_contradict_each_other(given, said):
    with pytest.raises(DataError, match=said):
        directions.check_directions(given)


def test_plain_files_may_be_shared():
    given = [DirectionData(EN_FR, ("a.en", "a.fr")), DirectionData(EN_DE, ("a.en", "a.de")),
             DirectionData(LanguagePair("de", "fr"), ("a.de", "a.fr"))]
    directions.check_directions(directions.with_reverses(given))


def test_a_file_of_pairs_cannot_be_in_two_languages(file):
    path = file("a.tsv", "one\tun\ntwo\tdeux\n")
    with pytest.raises(DataError, match=r"a\.tsv is en-fr .*en-de"):
        directions.check_directions([DirectionData(EN_FR, (path,)), DirectionData(EN_DE, (path,))])


@pytest.mark.parametrize(("name", "text"), [
    ("a.tmx", TMX),
    ("a.tsv", "de\ten\tfr\neins ist es\tone\tun\n"),
    ("a.jsonl", '{"en": "one", "de": "eins ist es", "fr": "un"}\n'),
    ("rows.tsv", "source\ttarget\tsource_lang\ttarget_lang\none\tun\ten\tfr\none\teins ist es\ten\tde\n"
                 "un\tone\tfr\ten\n"),
    ("rows.jsonl", "".join(json.dumps({"source": source, "target": target, "source_lang": one, "target_lang": other})
                           + "\n" for source, target, one, other in
                           (("one", "un", "en", "fr"), ("one", "eins ist es", "EN", "de"), ("un", "one", "fr", "en")))),
])
def test_a_file_of_several_languages(file, name, text):
    german = "eins" if name == "a.tmx" else "eins ist es"
    path = file(name, text)
    given = [DirectionData(EN_FR, (path,)), DirectionData(EN_DE, (path,)), DirectionData(FR_EN, (path,))]
    directions.check_directions(given)
    assert [texts(one, one.data) for one in given] == [[("one", "un")], [("one", german)], [("un", "one")]]


def test_the_opposite_direction_has_the_same_files():
    one = DirectionData(EN_FR, ("a.tsv",), ("b.tsv",))
    _, other = directions.with_reverses([one])
    assert (other.name, other.data, other.validation, other.reverse) == ("fr-en", ("a.tsv",), ("b.tsv",), True)
    assert (one.controls, other.controls) == (("<2fr>",), ("<2en>",))
    assert other.file_languages == EN_FR


def test_directions_that_lines_name(file):
    rows = file("rows.tsv", "source\ttarget\tsrc_lang\ttgt_lang\na\tb\ten\tfr\nc\td\ten\tde\ne\tf\ten\tfr\n")
    plain = file("plain.tsv", "a\tb\n")
    found = directions.named_directions([rows])
    assert [(one.name, one.data) for one in found] == [("en-fr", (rows,)), ("en-de", (rows,))]
    assert texts(found[0], found[0].data) == [("a", "b"), ("e", "f")]
    assert directions.named_directions([plain]) == []
    with pytest.raises(DataError, match=r"plain\.tsv"):
        directions.named_directions([rows, plain])


def test_lines_of_other_directions_are_reported(file):
    rows = file("rows.tsv", "source\ttarget\tsrc_lang\ttgt_lang\na\tb\ten\tfr\nc\td\ten\tde\ne\tf\tfr\ten\n")
    skipped = []
    one = DirectionData(EN_FR, (rows,))
    found = read_direction(one, one.data, skipped=lambda location, why: skipped.append((location.line, why)),
                           used=[EN_FR, FR_EN])
    assert [pair.source for pair in found] == ["a"]
    assert skipped == [(3, "for en-de")]
    other = DirectionData(LanguagePair("de", "fr"), (rows,))
    with pytest.raises(DataError, match=r"rows\.tsv: .*en-fr, en-de, fr-en, .*de-fr"):
        texts(other, other.data)


@pytest.mark.parametrize(("line", "said"), [("a\tb\ten\ten", ":2: .*en"), ("a\tb\tx!\tfr", ":2: .*x!"),
                                            ("a\tb\ten", ":2: 3 columns")])
def test_lines_that_name_no_direction(file, line, said):
    path = file("rows.tsv", f"source\ttarget\tsource_lang\ttarget_lang\n{line}\n")
    with pytest.raises(DataError, match=said):
        directions.named_directions([path])


def test_sides_that_a_file_does_not_tell(file):
    assert directions.choose_sides(file("a.tsv", "one\tun\n"), EN_FR) == FileSides()
    assert directions.choose_sides(file("b.tsv", "en\tit\nHello\tciao\n"), EN_FR) == FileSides()  # no sentence follows
    assert directions.choose_sides(file("c.tsv", "source\ttarget\nHello there\tciao\n"), EN_FR) == FileSides()
    assert directions.choose_sides(file("d.jsonl", '{"source": "a", "target": "b", "id": "c", "it": 1}\n'),
                                   EN_FR) == FileSides()


@pytest.mark.parametrize(("name", "text", "languages"), [
    ("b.tsv", "en\tit\nHello there\tciao\n", "en, it"), ("b.tsv", "de\tfr\tid\nDas ist es\tciao\t7\n", "de, fr"),
    ("b.tsv", "English\tGerman\nHello there\tHallo\n", "English, German"),
    ("b.jsonl", '{"it": "ciao", "en": "hello", "id": 3}\n', "en, it"),
])
def test_files_that_name_other_languages(file, name, text, languages):
    path = file(name, text)
    with pytest.raises(DataError, match=rf"{name}: .* {languages}, .*en-fr"):
        directions.choose_sides(path, EN_FR)
    with pytest.raises(DataError, match=rf"{name}: .* {languages}, .*en-fr"):
        read_direction(DirectionData(EN_FR, (path,)), [path])


@pytest.mark.parametrize(("header", "sides"), [
    ("fr\ten\tde", ("en", "fr")), ("French\tEnglish", ("English", "French")), ("fra\t eng ", ("eng", "fra")),
    ("fr-CA\ten-GB", ("en-GB", "fr-CA")),
])
def test_columns_of_the_wanted_languages_are_taken(file, header, sides):
    columns = [cell.strip() for cell in header.split("\t")]
    cells = {sides[0]: "one is", sides[1]: "un est"}
    path = file("a.tsv", f"{header}\n" + "\t".join(cells.get(cell, "?") for cell in columns) + "\n")
    assert directions.choose_sides(path, EN_FR)[:2] == sides
    assert texts(DirectionData(EN_FR, (path,)), (path,)) == [("one is", "un est")]


def test_a_region_that_a_header_does_not_name(file):
    path = file("a.tsv", "fr\ten\nun est\tone is\n")
    assert directions.choose_sides(path, LanguagePair("en-GB", "fr-CA"))[:2] == ("en", "fr")


def test_files_whose_names_tell_the_opposite_direction(file):
    first, second = str(file("train.fr", "un\n")), str(file("train.en", "one\n"))
    with pytest.raises(DataError, match=r"^en-fr: .*train\.fr.*train\.en are fr-en\. .*en-fr:.*train\.en,.*train\.fr"):
        directions.check_directions([DirectionData(EN_FR, (first, second))])
    directions.check_directions([DirectionData(EN_FR, (second, first))])
    directions.check_directions([DirectionData(EN_FR.reverse, (second, first), reverse=True)])
    directions.check_directions([DirectionData(EN_DE, (first, second))])  # a name that is no language here


def test_validation_of_a_direction_that_is_not_there():
    with pytest.raises(DataError, match=r"en-de.*en-fr"):
        directions.with_validation([DirectionData(EN_FR, ("a",))], [DirectionData(EN_DE, ("b",))])
    with pytest.raises(DataError, match="en-fr, en-fr"):
        directions.with_validation([DirectionData(EN_FR, ("a",))], [DirectionData(EN_FR, ("b",))] * 2)


@pytest.mark.parametrize(("wanted", "available", "found"), [
    ("fr", ["fr", "de"], "fr"), ("FR", ["fr"], "fr"), ("fr", ["fra", "deu"], "fra"), ("fre", ["fra"], "fra"),
    ("fra", ["fr"], "fr"), ("French", ["fra"], "fra"), ("pt-BR", ["pt", "pt-BR"], "pt-BR"),
    ("pt_br", ["pt-BR"], "pt-BR"),
    ("pt-BR", ["pt"], None), ("pt", ["pt-BR"], "pt-BR"), ("zh", ["cmn-Hans"], "cmn-Hans"),
    ("zh", ["cmn-Hans", "cmn-Hant"], None), ("xx", ["fr"], None), ("not a code", ["fr"], None), ("", ["fr"], None),
])
def test_a_language_under_other_codes(wanted, available, found):
    assert find_language(wanted, available) == found


def test_languages_of_control_tokens():
    names = ["<2fr>", "<bt>", ">>deu<<", "<2>", "<x>", language_control("pt-BR")]
    assert target_controls(names) == {"fr": "<2fr>", "deu": ">>deu<<", "pt-BR": "<2pt-BR>"}
