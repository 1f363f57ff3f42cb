"""Equations of the pages become MathML, and a mistake in one stops the build."""

import re

import pytest
from paged import blocks, pages, prose
from scripted import script

pytest.importorskip("latex2mathml", reason="latex2mathml, of the extra `docs`, is not installed")
markdown = pytest.importorskip("markdown", reason="Markdown, of the extra `docs`, is not installed")
mathml = script("mathml")


def html(text):
    return markdown.markdown(text, extensions=[mathml.MathExtension()])


def test_an_equation_in_a_sentence_is_mathml():
    made = html("The state $h_{t-1}$ and *more*.")
    assert "<msub><mi>h</mi>" in made
    assert 'alttext="h_{t-1}"' in made
    assert "<em>more</em>" in made


@pytest.mark.parametrize("text", ["`$x$`", "costs 5$ or $5", "a \\$x\\$ b", "$ x $"])
def test_dollar_signs_that_are_no_equation_stay(text):
    assert "<math" not in html(text)


def test_an_equation_is_not_read_as_markdown():
    made = html("$a_i * b_i * c_i$ and $x_1$")
    assert "<em>" not in made
    assert made.count("<math") == 2


def test_a_block_keeps_its_columns():
    made = mathml.fence("\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}", "math", "math", {}, None)
    assert made.count("<mtr>") == 2
    assert made.count("<mtd") == 4
    assert made.startswith('<div class="math"')


@pytest.mark.parametrize("wrong", [r"\foo{x}", r"\frac{a}", r"a & b", r"\left( a", "x_", "a}"])
def test_what_cannot_be_typeset_is_an_error_that_shows_it(wrong):
    with pytest.raises(ValueError, match=re.escape(repr(wrong))):
        mathml.typeset(wrong, "block")


def test_every_equation_of_the_pages_is_typeset():
    count = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for block in blocks(text):
            if block.language == "math":
                assert "<math" in mathml.typeset(block.code, "block"), f"{page}:{block.line}"
                count += 1
        for equation in re.findall(mathml.INLINE, re.sub(r"`[^`\n]*`", "", prose(text))):
            assert "<math" in mathml.typeset(equation, "inline"), f"{page}: {equation}"
            count += 1
    assert count > 300
