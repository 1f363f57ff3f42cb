"""Scripts and styles without what only readers need: comments, indentation, and spaces beside signs.

    script("const a = [1, 2]; // two\\n")     'const a=[1,2];\\n'

Strings, templates and regular expressions stay as they are. So do ends of lines that can end a statement. A slash with
a space behind it divides; one without begins a regular expression: the modules are written so.

It does not read the languages: names stay, and nothing is computed.
"""

import re

STRING = r'"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])*'"
# A template may hold others in its ${…}, and those none.
TEMPLATE = r"`(?:\\[\s\S]|\$\{(?:[^`{}]|`(?:\\[\s\S]|[^`\\])*`|\{[^{}]*\})*\}|[^`\\$]|\$(?!\{))*`"
PATTERN = r"/(?![/* =])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/"
COMMENT = r"//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/"
GAP = rf"(?:\s|{COMMENT})*"
# Behind what closes, a line may end a statement; behind what opens or joins, it does not, nor behind a brace: where one
# ends a statement that is no block, the modules write a semicolon.
# Not around + and - beside their like: `a + +b` is not `a++b`.
SIGN = rf"\s*[)\]]+[ \t]*|\s*\}}{GAP}|\s*[=<>*?:&|%]+{GAP}|\s*(?<![+-])\s[+-](?>\s{GAP})(?![+-])|[ \t]*[{{(\[;,!]+{GAP}"
MARGIN = rf"[ \t]*\n{GAP}"
SCRIPT = re.compile(
    f"(?P<kept>{STRING}|{TEMPLATE}|{PATTERN})|(?P<comment>[ \\t]*(?:{COMMENT})[ \\t]*)|"
    f"(?P<sign>{SIGN})|(?P<margin>{MARGIN})")
STYLE = re.compile(f"(?P<kept>{STRING})|(?P<comment>/\\*(?:[^*]|\\*(?!/))*\\*/)|(?P<sign>\\s*[{{}};,>]\\s*|:\\s+)")


def script(text: str) -> str:
    """A script that does the same."""
    return SCRIPT.sub(_short, text).lstrip()


def style(text: str) -> str:
    """A style sheet that says the same."""
    return STYLE.sub(_short, text).strip()


def _short(found: re.Match[str]) -> str:
    if found["kept"] is not None:
        return found["kept"]
    if found["sign"] is not None:
        return re.sub(COMMENT, "", found["sign"]).strip()
    return "" if found["comment"] is not None else "\n"
