"""A Markdown extension that typesets equations as MathML when the site is built.

    PYTHONPATH=docs zensical build      (mkdocs.yml names the extension `mathml` and the fence `math`)

The pages have LaTeX as code hosts render it: `$...$` in a sentence, and a block of the language `math`. Browsers draw
MathML themselves, so the site needs no script, no font and no network. Converting LaTeX is the work of latex2mathml;
this file finds the equations, corrects what browsers would space or align wrongly, and refuses a command that
latex2mathml does not know, which it would otherwise print as text.
"""

import html
import re
from typing import Any
from xml.etree import ElementTree

from latex2mathml import exceptions
from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

INLINE = r"(?<![\\$\w])\$(?![\s$])([^$]+?)(?<![\s\\])\$(?![\w$])"
"""A dollar sign, an equation that neither begins nor ends with a space, a dollar sign."""
BETWEEN_CODE_AND_ESCAPES = 185
"""The priority of the pattern: after code in backticks (190), before backslash escapes (180) and emphasis."""
CORRECTIONS = [
    (r' xmlns="[^"]*"', ""),                                    # HTML needs none
    (r"<mo>([A-Za-z]{2,})</mo>", r"<mi>\1</mi>"),               # softmax(x), not softmax (x)
    (r"(<mi>(?:log|sin|cos)</mi>)(?=<m(?:i|n|sub|sup)\b)", r'\1<mspace width="0.17em" />'),
    (r"(</m(?:i|n|sub|sup)>)(<mi>[A-Za-z]{2,}</mi>)", r'\1<mspace width="0.17em" />\2'),
    (r"(<mo[^>]*>(?:&#x0003D;|&#x00028;)</mo>)<mo>&#x02212;</mo>", r'\1<mo form="prefix">&#x02212;</mo>'),  # a sign
    (r"<mi>;</mi>", '<mo separator="true">;</mo>'),
    (r"<mi>&#x02032;</mi>", '<mo lspace="0" rspace="0">&#x02032;</mo>'),
    (r"<mo>(&#x0002F;|&#x0007C;)</mo>", r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>'),
    (r'<mtable displaystyle="true"[^>]*>', '<mtable displaystyle="true" class="aligned">'),
    (r'columnalign="(left|right)"', r'columnalign="\1" style="text-align: -webkit-\1"'),  # the second for Chromium
]

ERRORS = tuple(one for one in vars(exceptions).values() if isinstance(one, type))
"""What latex2mathml raises; its exceptions have no base of their own."""
PARTS = {"mfrac": 2, "msub": 2, "msup": 2, "msubsup": 3, "munder": 2, "mover": 2, "munderover": 3}
"""The number of parts that an element must have."""


class MathExtension(Extension):
    """Typesets `$...$` in sentences."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (the name is Python-Markdown's)
        """Add the pattern to the parser."""
        md.inlinePatterns.register(InlineMath(INLINE, md), "math", BETWEEN_CODE_AND_ESCAPES)


class InlineMath(InlineProcessor):
    """Replaces one equation in a sentence."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override]  # noqa: N802
        """MathML, stored so that no other pattern reads it."""
        return self.md.htmlStash.store(typeset(m[1], "inline")), m.start(0), m.end(0)


def fence(source: str, language: str, css_class: str, options: Any, md: Markdown, **others: Any) -> str:
    """Typeset a block of the language `math`; what `pymdownx.superfences` calls."""
    return f'<div class="{css_class}" role="group" aria-label="Equation" tabindex="0">{typeset(source, "block")}</div>'


def typeset(latex: str, display: str) -> str:
    """MathML of an equation in LaTeX; `display` is "inline" or "block".

    Raises:
        ValueError: where a command is unknown or the LaTeX is incomplete.
    """
    latex = " ".join(latex.split())
    try:
        # `aligned` is what people write; latex2mathml knows the same table under the name of amsmath's `split`.
        made = convert(re.sub(r"\{aligned\}", "{split}", latex), display=display)
        tree = ElementTree.fromstring(made)
    except (ElementTree.ParseError, *ERRORS) as error:
        raise ValueError(f"cannot typeset {latex!r}: {type(error).__name__} {error}") from error
    unknown = re.search(r"\\[A-Za-z]*|[&{}]", "".join(tree.itertext()))
    if unknown and unknown[0] != "{":  # the brace of `cases`
        raise ValueError(f"cannot typeset {latex!r}: {unknown[0]} is unknown to latex2mathml")
    for element in tree.iter():
        name = element.tag.rpartition("}")[2]
        if len(element) != PARTS.get(name, len(element)):
            raise ValueError(f"cannot typeset {latex!r}: {name} has {len(element)} of {PARTS[name]} parts")
    for wrong, right in CORRECTIONS:
        made = re.sub(wrong, right, made)
    return made.replace("<math ", f'<math alttext="{html.escape(latex)}" ', 1)


def makeExtension(**options: Any) -> MathExtension:  # noqa: N802 (the name is Python-Markdown's)
    """What Python-Markdown calls for an extension that is given by the name of its module."""
    return MathExtension(**options)
