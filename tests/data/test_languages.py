"""Language codes: pairs that users type, and what file names and headers tell."""

import pytest

from regard.data import languages
from regard.data.sources.formats import read_pairs

TMX = ('<tmx version="1.4"><header srclang="EN-us"/><body><tu><tuv xml:lang="en-US"><seg>one</seg></tuv>'
       '<tuv xml:lang="pt-br"><seg>um</seg></tuv></tu></body></tmx>')
PO = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n{}\nmsgid "one"\nmsgstr "un"\n'


@pytest.mark.parametrize(("text", "pair"), [
    ("en-fr", ("en", "fr")), ("en:fr", ("en", "fr")), ("pt-BR-en", ("pt-BR", "en")), ("pt_BR-en", ("pt-BR", "en")),
    ("zh-Hans-en-GB", ("zh-Hans", "en-GB")), ("zh-Hant-TW:en", ("zh-Hant-TW", "en")), ("EN-FR", ("en", "fr")),
    ("es-419-en", ("es-419", "en")), ("gsw-de", ("gsw", "de")), ("de-1996-en", ("de-1996", "en")),
    ("en-en", ("en", "en")), ("qaa-en", ("qaa", "en"))])
def test_pairs(text, pair):
    assert languages.parse_pair(text) == pair


@pytest.mark.parametrize("text", ["", "en", "pt-BR", "pt-br-en", "en-", "-en", "en:fr:de", "english-french", "e-f",
                                  "en fr", "en-f\x1br"])
def test_what_is_no_pair_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"`--languages` must be .*en-fr"):
        languages.parse_pair(text)


@pytest.mark.parametrize(("text", "code"), [("EN", "en"), ("pt_br", "pt-BR"), ("ZH-hans-cn", "zh-Hans-CN"),
                                            ("english", None), ("e", None), ("en-", None), ("1en", None)])
def test_codes(text, code):
    assert languages.normalize_code(text) == code


def test_iso_639_1():
    two = [code for code in languages.LANGUAGES if len(code) == 2]
    assert len(two) == 184
    assert all(code.isalpha() and code.islower() for code in languages.LANGUAGES)
    assert languages.language_name("pt-BR") == "Portuguese (BR)"
    assert languages.language_name("qaa") == "qaa"
    assert languages.known_code("French") == "fr"
    assert languages.known_code("xx") is None


@pytest.mark.parametrize(("path", "code"), [
    ("train.en", "en"), ("a/train.pt_BR.txt.gz", "pt-BR"), ("x.y/en.txt", None), ("en", None), ("text.txt", None),
    ("notes.md", None), ("a.en-fr.tsv", None)])
def test_the_language_in_the_name_of_one_file(path, code):
    assert languages.language_in_name(path) == code


@pytest.mark.parametrize(("one", "other", "same"), [
    ("en-fr", "en-fr", True), ("en-GB:fr", "eng:fra-CA", True), ("en-fr", "fr-en", False), ("en-fr", "en-de", False),
    ("zh-Hans:en", "zh-Hant:en", True), ("qaa-en", "qaa-en", True), ("qaa-en", "qab-en", False)])
def test_pairs_of_the_same_languages(one, other, same):
    one, other = languages.parse_pair(one), languages.parse_pair(other)
    assert languages.same_languages(one, other) == languages.same_languages(other, one) == same
    assert one.reverse.reverse == one


@pytest.mark.parametrize(("names", "pair"), [
    (["train.en", "train.fr"], "en-fr"), (["train.en.gz", "train.fr.gz"], "en-fr"), (["en.txt", "fr.txt"], "en-fr"),
    (["a.src", "a.tgt"], None), (["a.en", "b.en"], None), (["x.pt-BR", "x.en"], "pt-BR-en"),
    (["pairs.en-fr.tsv"], "en-fr"), (["en-fr.jsonl"], "en-fr"), (["a.pt_BR-en.tsv.gz"], "pt-BR-en"),
    (["pairs.tsv"], None), (["to-do.tsv"], None), (["data.en-US.tsv"], None), (["my-data.tsv"], None)])
def test_file_names(tmp_path, names, pair):
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_text("")
    found = [*read_pairs(paths).log.languages.values()]
    assert [str(one) for one in found] == ([] if pair is None else [pair])


@pytest.mark.parametrize(("name", "content", "sides", "pair"), [
    ("a.tmx", TMX, (None, None), "en-US-pt-BR"), ("a.tmx", TMX, ("pt", "en"), "pt-en"),
    ("a.po", PO.format('"Language: pt_BR\\n"'), (None, None), "en-pt-BR"),
    ("a.po", PO.format('"Language: fr\\n"\n"X-Source-Language: de\\n"'), (None, None), "de-fr"),
    ("a.po", PO.format(""), (None, None), None), ("a.po", PO.format('"Language: \\n"'), (None, None), None),
    ("a.jsonl", '{"de": "eins", "en": "one"}\n', ("de", "en"), "de-en"),
    ("a.jsonl", '{"source": "eins", "target": "one"}\n', (None, None), None),
    ("a.de-en.tsv", "en\tfr\nA red house.\tUne maison.\n", (None, None), "en-fr"),  # the header knows better
])
def test_contents(tmp_path, name, content, sides, pair):
    path = tmp_path / name
    path.write_text(content)
    corpus = read_pairs([path], source=sides[0], target=sides[1])
    assert len(list(corpus)) == 1
    assert [str(one) for one in corpus.log.languages.values()] == ([] if pair is None else [pair])
