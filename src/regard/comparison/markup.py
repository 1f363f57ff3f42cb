"""The parts of a page: one HTML file without a network, a script or anything beside it, light or dark as asked.

    document("Title", [section("Scores", table(head, rows)), ...])

Texts are escaped where they become HTML, and only there: `text` for what anybody wrote, `Html` for what is HTML. It
does not know what is told.
"""

import html
from collections.abc import Iterable, Sequence
from typing import NewType

from regard.inspection.pictures import signs
from regard.inspection.pictures.lines import COLOURS

Html = NewType("Html", str)
LONGEST = 2000
"""Characters of a text that are shown."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root{color-scheme:light dark;--ink:#1a1a1a;--paper:#fff;--faint:#595959;--line:#d5d5d5;--tint:#f4f4f2;--link:#0b5394}
@media (prefers-color-scheme:dark){:root{--ink:#e8e8e6;--paper:#16181b;--faint:#a9adb3;--line:#3a3e44;--tint:#1f2226;
--link:#8ab8ff}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:68rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;line-height:1.25;margin:.2rem 0 .6rem}h2{font-size:1.2rem;margin:2.2rem 0 .5rem}
h3{font-size:1rem;margin:1rem 0 .3rem}h1,h2,h3,p,figcaption{overflow-wrap:anywhere}
p{max-width:46rem;margin:.4rem 0}.faint,figcaption,caption{color:var(--faint)}
figcaption,caption,.small{font-size:.875rem}caption{text-align:left;padding:.2rem 0}
.wide{overflow-x:auto;margin:.6rem 0}.wide:focus-visible{outline:2px solid var(--link)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem .3rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{font-weight:600;vertical-align:bottom}tbody th{vertical-align:top}th[scope=row]{white-space:nowrap}
td svg{max-width:none;display:block}td.n,th.n{text-align:right}td.n{white-space:nowrap}td.said{min-width:13rem}
.row{display:flex;flex-wrap:wrap;gap:1rem 2rem;align-items:flex-start}figure{margin:.6rem 0}
.row>*,figure{max-width:100%;min-width:0}
svg{max-width:100%;height:auto}.map svg{max-width:none}
summary{cursor:pointer;padding:.2rem 0;color:var(--link)}code{font-size:.875rem;overflow-wrap:anywhere}
.swatch{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
dl{display:grid;grid-template-columns:fit-content(40%) 1fr;gap:.1rem 1rem;margin:.4rem 0}dt{color:var(--faint)}
dd{margin:0}dt,dd{overflow-wrap:anywhere}
"""
SWATCHES = "".join(f".c{number}{{background:{colour}}}" for number, colour in enumerate(COLOURS))


def document(title: str, sections: Iterable[Html]) -> str:
    """The whole page."""
    style = STYLE.strip().replace("\n", "")
    return ('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{text(title)}</title>\n<style>{style}{SWATCHES}</style>\n</head>\n<body>\n<main>\n"
            f"<h1>{text(title)}</h1>\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n")


def text(given: str, longest: int = LONGEST) -> Html:
    """What anybody wrote: nothing in it is a tag, and what is not seen is named."""
    return Html(html.escape(signs.sentence(given, longest), quote=True))


def section(title: str, *parts: Html) -> Html:
    """A part of the page with a heading."""
    return Html(f"<section>\n<h2>{text(title)}</h2>\n" + "\n".join(parts) + "\n</section>")


def paragraph(given: str, kind: str = "") -> Html:
    """A text by itself."""
    return Html(f"<p{_class(kind)}>{text(given)}</p>")


def table(head: Sequence[str], rows: Iterable[Sequence[Html]], *, caption: str = "", numbers: Sequence[int] = (),
          said: Sequence[int] = ()) -> Html:
    """A table whose first column names the row.

    Args:
        numbers: which columns hold numbers; `said`: which hold sentences.
    """
    def kind(column: int) -> str:
        return _class("n" if column in numbers else "said" if column in said else "")

    heads = "".join(f'<th scope="col"{kind(column)}>{text(name)}</th>' for column, name in enumerate(head))
    body = []
    for first, *others in rows:
        cells = "".join(f"<td{kind(column)}>{cell}</td>" for column, cell in enumerate(others, 1))
        body.append(f'<tr><th scope="row"{kind(0)}>{first}</th>{cells}</tr>')
    above = f"<caption>{text(caption)}</caption>" if caption else ""
    label = text(caption or head[0] or "table")
    return Html(f'<div class="wide" tabindex="0" role="region" aria-label="{label}"><table>{above}'
                f"<thead><tr>{heads}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>")


def figure(picture: str, caption: str, kind: str = "") -> Html:
    """A picture, which is an SVG, with what is seen on it."""
    return Html(f"<figure{_class(kind)}>{picture}<figcaption>{text(caption)}</figcaption></figure>")


def wide(picture: str, label: str) -> Html:
    """A picture that is moved from side to side where there is no room for it."""
    return Html(f'<div class="wide map" tabindex="0" role="region" aria-label="{text(label)}">{picture}</div>')


def row(*parts: Html) -> Html:
    """Parts beside each other, where there is room."""
    return Html('<div class="row">' + "".join(parts) + "</div>")


def folded(title: str, *parts: Html) -> Html:
    """Parts that are shown when they are asked for."""
    return Html(f"<details><summary>{text(title)}</summary>" + "".join(parts) + "</details>")


def facts(rows: Iterable[tuple[str, str]]) -> Html:
    """Names with what they stand for."""
    return Html("<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in rows) + "</dl>")


def swatch(number: int) -> Html:
    """The colour of a line of a picture."""
    return Html(f'<span class="swatch c{number % len(COLOURS)}" aria-hidden="true"></span>')


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
