"""LibreTranslate's routes: every way to send fields, lists, alternatives, HTML, detection, files, errors."""

import gzip

import pytest
import texting
from served import ask, form, upload

from regard.tasks.markup import HtmlText
from regard.tasks.placeholder_translation import translate_with_placeholders
from regard.tasks.search import Beam
from regard.tasks.translator import Translator

TEXT = "the dog sleeps."
FIELDS = {"q": TEXT, "source": "en", "target": "fr"}


def plain(texts, nbest=1):
    """What `regard translate` gives, computed without a server."""
    task = texting.translator()
    assert isinstance(task, Translator)
    strategy = Beam(beams=5, nbest=nbest)
    return translate_with_placeholders(texts, lambda some: task.search(some, strategy), task.align)


@pytest.fixture(scope="module")
def want():
    return plain([TEXT])[0].text


def test_fields_come_as_json_a_form_or_a_query_string(address, want):
    json = ask(address, "/translate", FIELDS)
    posted = ask(address, "/translate", **form(**FIELDS))
    query = ask(address, "/translate?q=the+dog+sleeps.&source=en&target=fr&format=text&api_key=x", b"", method="POST")
    several = ask(address, "/translate", **upload("x.txt", b"x", **FIELDS))
    assert {one.status for one in (json, posted, query, several)} == {200}
    assert json.json == posted.json == query.json == several.json == {"translatedText": want}


def test_a_list_gives_lists_in_order(address):
    texts = ["a cat.", "", "  two lines\nof %s text  ", "the dog sleeps."]
    found = ask(address, "/translate", {**FIELDS, "q": texts}).json
    assert found == {"translatedText": [one.text for one in plain(texts)]}
    assert ask(address, "/translate", {**FIELDS, "q": []}).json == {"translatedText": []}


def test_alternatives_are_other_hypotheses(address):
    found = ask(address, "/translate", {**FIELDS, "alternatives": 3}).json
    best = texting.translator().search([TEXT], Beam(beams=5, nbest=4))[0]
    others = [one.text.strip() for one in best.alternatives if one.text.strip() != found["translatedText"]]
    assert found["translatedText"] == best.text.strip()
    assert found["alternatives"] == [*dict.fromkeys(" ".join(one.split()) if "\n" in one else one for one in others)]
    lists = ask(address, "/translate", {**FIELDS, "q": [TEXT, "a cat."], "alternatives": 1}).json["alternatives"]
    assert len(lists) == 2
    assert lists[0] == found["alternatives"][:1]


def test_html_keeps_its_tags(address):
    page = '<p class="a">the <b id=1>dog</b> sleeps.</p><script>f("<p>")</script>\n<ul><li>a cat.</li></ul>'
    found = ask(address, "/translate", {**FIELDS, "q": page, "format": "html"}).json["translatedText"]
    parts = HtmlText.of(page)
    assert parts.texts == ["the <b>dog</b> sleeps.", "a cat."]
    assert found == parts.join([one.text for one in plain(parts.texts)])
    for kept in ('<p class="a">', "<b id=1>", "</b>", '</p><script>f("<p>")</script>\n<ul><li>', "</li></ul>"):
        assert kept in found


def test_auto_identifies_among_the_languages_that_are_served(address):
    found = ask(address, "/translate", {**FIELDS, "q": "the dog sees the house", "source": "auto"}).json
    assert found["detectedLanguage"]["language"] == "en"
    assert 50 < found["detectedLanguage"]["confidence"] <= 100
    assert isinstance(found["detectedLanguage"]["confidence"], int)
    mixed = ask(address, "/translate", {"q": ["le chien voit la maison", "je ne sais pas"], "source": "auto",
                                        "target": "en"}).json
    assert [one["language"] for one in mixed["detectedLanguage"]] == ["fr", "fr"]
    ranked = ask(address, "/detect", **form(q="le chien voit la maison et les oiseaux")).json
    assert [one["language"] for one in ranked] == ["fr", "en"]
    assert sum(one["confidence"] for one in ranked) in (99, 100, 101)


def test_languages_and_settings(address):
    languages = [{"code": "en", "name": "English", "targets": ["fr"]},
                 {"code": "fr", "name": "French", "targets": ["en"]}]
    assert ask(address, "/languages").json == languages
    assert ask(address, "/languages", **form(api_key="x"), method="GET").json == languages
    settings = ask(address, "/frontend/settings").json
    assert (settings["charLimit"], settings["keyRequired"]) == (2000, False)
    assert ".po" in settings["supportedFilesFormat"]
    assert ask(address, "/health").json == {"status": "ok"}
    assert "/translate" in ask(address, "/spec").json["paths"]


@pytest.mark.parametrize(("fields", "said"), [
    ({"source": "en", "target": "fr"}, "missing q parameter"), ({"q": "a", "target": "fr"}, "missing source"),
    ({"q": "a", "source": "en"}, "missing target"), ({**FIELDS, "source": "xx"}, "en-fr"),
    ({**FIELDS, "target": "de"}, "en-fr"), ({**FIELDS, "format": "pdf"}, "format"),
    ({**FIELDS, "alternatives": -1}, "alternatives"), ({**FIELDS, "q": 5}, "q"), ({**FIELDS, "q": ["a", 5]}, "q"),
    ({**FIELDS, "q": "x" * 2001}, "2,001"), ({**FIELDS, "q": ["x"] * 17}, "17"), ({**FIELDS, "q": "a\ud800"}, "q"),
    ([1], "object"), ("text", "object"),
])
def test_a_wrong_request_says_what_is_wrong(address, fields, said):
    found = ask(address, "/translate", fields)
    assert found.status == 400
    assert set(found.json) == {"error"}
    assert said in found.json["error"]


def test_a_wrong_field_is_called_as_the_client_calls_it(address):
    """Neither the name of a type nor the words of a library."""
    wrong = ask(address, "/translate", {**FIELDS, "q": 5})
    other = ask(address, "/api/v1/translate", {"text": TEXT, "target": "fr", "lenght": 3})
    nested = ask(address, "/api/v1/translate", {"text": TEXT, "target": "fr", "sampling": {"top_k": "many"}})
    assert {one.status for one in (wrong, other, nested)} == {400}
    assert wrong.json["error"].split(": ")[1] == "q"
    assert other.json["error"].split(": ")[1] == "lenght"
    assert "Extra" not in other.json["error"]
    assert nested.json["error"].split(": ")[1] == "sampling.top_k"


def test_a_code_with_a_region_finds_its_language(address, want):
    assert ask(address, "/translate", {**FIELDS, "source": "en-GB", "target": "FR"}).json == {"translatedText": want}


PO = b'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "the dog"\nmsgstr ""\n'


@pytest.mark.parametrize(("name", "content"), [
    ("a.txt", b"the dog sleeps.\n\na cat.\n"), ("app.po", PO), ("b.tsv", b"the dog\told\n"),
    ("c.jsonl", b'{"source": "the dog", "target": ""}\n'), ("d.txt.gz", gzip.compress(b"the dog\n", mtime=0)),
    ("../../etc/passwd.txt", b"the dog\n"), ("e\u00e9 \u4e2d.txt", b"the dog\n"),
])
def test_a_file_keeps_its_format_and_is_downloaded_once(address, server, name, content):
    found = ask(address, "/translate_file", **upload(name, content, source="en", target="fr"))
    assert found.status == 200, found.body
    url = found.json["translatedFileUrl"]
    assert url.startswith(f"{address}/download_file/")
    assert ".." not in url
    path = url.removeprefix(address)
    assert ask(address, path, method="HEAD").status == 200
    result = ask(address, path)
    assert result.status == 200
    assert "attachment" in result.headers["content-disposition"]
    assert ask(address, path).status == 404
    text = (gzip.decompress(result.body) if name.endswith(".gz") else result.body).decode()
    want = plain(["the dog"])[0].text
    if name == "a.txt":
        assert text.split("\n") == [one.text for one in plain(["the dog sleeps.", "", "a cat.", ""])]
    elif name == "app.po":
        assert text.startswith(PO.decode()[:60])
        assert 'msgid "the dog"' in text
    else:
        assert want in text
    assert not [path for path in server.context.downloads.folder.iterdir() if path.suffix != ".html"]


@pytest.mark.parametrize(("name", "content", "status"), [
    ("a.pdf", b"x", 400), ("a.txt", b"\xff\xfe\x00", 400), ("a.txt.gz", b"not gzip", 400), ("noname", b"x", 400),
    ("a.txt", b"x" * 200_000, 413), ("a.tmx", b"<!DOCTYPE x [<!ENTITY a 'b'>]><tmx>&a;</tmx>", 400),
    ("bomb.txt.gz", gzip.compress(b"x\n" * 3_000_000), 413),
])
def test_a_bad_file_is_refused_and_leaves_nothing(address, server, name, content, status):
    found = ask(address, "/translate_file", **upload(name, content, source="en", target="fr"))
    assert found.status == status, found.body
    assert set(found.json) == {"error"}
    assert str(server.context.downloads.folder) not in found.json["error"]
    assert not [path for path in server.context.downloads.folder.iterdir() if path.suffix != ".html"]


def test_a_missing_file_or_language_is_named(address):
    assert "file" in ask(address, "/translate_file", **form(source="en", target="fr")).json["error"]
    assert "source" in ask(address, "/translate_file", **upload("a.txt", b"x", target="fr")).json["error"]
