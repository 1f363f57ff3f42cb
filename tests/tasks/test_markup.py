"""HTML as text to translate: what is a sentence, what stays, and that text never becomes markup."""

import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.markup import HtmlText
from regard.tasks.placeholder_translation import translate_with_placeholders
from regard.tasks.search import GeneratedText


@pytest.mark.parametrize(("page", "texts"), [
    ("<p>One.</p><p>Two.</p>", ["One.", "Two."]), ("One<br>two", ["One", "two"]), ("a <b>c</b> d", ["a <b>c</b> d"]),
    ("<script>x</script>y<style>z</style>", ["y"]), ("<!-- no --> yes", ["yes"]), ("<pre>no", []), ("", []),
    ("caf&eacute; &amp; bar", ["café &amp; bar"]), ("a\n  b", ["a b"]),
    ("<a href='x>y' title=\"<\">l</a>", ["<a>l</a>"]),
    ("1 < 2 & 3", ["1 &lt; 2 &amp; 3"]), ("<b></b><i> </i>", []), ("<CODE>x</code> Y", ["Y"]),
    ("<img src=a/> z", ["<img/> z"]),
    ("<!DOCTYPE html><p>x", ["x"]), ("&nbsp;", []), ("&#60;b&#62;", ["&#60;b&#62;"]),
])
def test_sentences(page, texts):
    assert HtmlText.of(page).texts == texts


@pytest.mark.parametrize(("page", "translations", "want"), [
    ('<p class="a">x <b id=1>y</b></p>', ["X <b>Y</b>"], '<p class="a">X <b id=1>Y</b></p>'),
    ("<a href=1>x</a> <a href=2>y</a>", ["<a>Y</a> <a>X</a>"], "<a href=1>Y</a> <a href=2>X</a>"),
    (" <p> x </p> ", ["X"], " <p> X </p> "), ("x", ["a < b & c > d"], "a &lt; b &amp; c &gt; d"),
    ("x", ["a <b>c</b>"], "x"), ("x &amp; y", ["X &amp; Y"], "X &amp; Y"),
])
def test_translations_get_their_tags_back(page, translations, want):
    assert HtmlText.of(page).join(translations) == want


class Tags(HTMLParser):
    """All tags of a page, as Python's parser finds them."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple(attrs)))

    def handle_endtag(self, tag):
        self.found.append(tag)


PIECES = st.sampled_from(["<p>", "</p>", "<b>", "</b>", '<a href="x">', "</a>", "<br/>", "word ", "two words.", " ",
                          "\n", "&amp;", "&lt;", "&eacute;", "5 & 6", "<!-- c -->", "<script>s</script>", "%s"])


@given(pieces=st.lists(PIECES, max_size=12))
def test_any_page_keeps_its_tags_and_an_unchanged_translation_is_the_same_page(pieces):
    page = "".join(pieces)
    parts = HtmlText.of(page)
    same = parts.join(parts.texts)
    assert Tags(same).found == Tags(page).found
    assert " ".join(html.unescape(same).split()) == " ".join(html.unescape(page).split())

    def shout(texts):
        return [GeneratedText(re.sub(r"[a-z]+(?![^<]*>)(?![a-z]*;)", lambda one: one[0].upper(), text), 0.0, (), False)
                for text in texts]

    found = translate_with_placeholders(parts.texts, shout)
    assert Tags(parts.join([one.text for one in found])).found == Tags(page).found


@given(text=st.text(alphabet="<>&/ab\"'= -!;#", max_size=60),
       answer=st.text(alphabet="<>&/ab\"'=;script ", max_size=30))
def test_whatever_a_model_writes_adds_no_tag(text, answer):
    parts = HtmlText.of(text)
    before = Tags(parts.join(parts.texts)).found
    assert Tags(parts.join([answer] * len(parts.texts))).found == before


def test_a_text_of_open_tags_takes_little_time():
    for text in ("<a '" * 2500, "<" * 10_000, "<a" * 5000, '<a b="' * 2000, "&" * 10_000, "<!--" * 2500):
        parts = HtmlText.of(text)
        assert isinstance(parts.join(parts.texts), str)
