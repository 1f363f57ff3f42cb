"""The page of two trained models side by side: scores, what chance explains, and sentences with the largest difference.

It draws the table that `pairwise` makes. It computes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from regard.comparison import markup
from regard.comparison.markup import Html, text
from regard.comparison.summary import bucket_name, telling
from regard.inspection.pictures.lines import Line, lines_svg

Table = dict[str, Any]
SHOWN = 100
"""Sentences of each end of the list; those between differ less."""
SURE = 0.05
"""Below this a difference is hardly chance."""


def pair_page(found: Table) -> str:
    """The whole page."""
    first, second = (model["name"] for model in found["models"])
    return markup.document(f"{first} and {second}", [_head(found), _scores(found), _lengths(found["models"]),
                                                     _sentences(found), _how(found)])


def verdict(found: Table, score: str) -> str:
    """What the difference of a score means, in a sentence."""
    one, (first, second) = found["difference"][score], (model["name"] for model in found["models"])
    name = {"bleu": "BLEU", "chrf": "chrF"}[score]
    if one["difference"] == 0:
        return f"{name} is the same."
    better, worse = (second, first) if one["difference"] > 0 else (first, second)
    if one["p"] < SURE:
        return f"{better} is better than {worse} by {abs(one['difference']):.2f} {name} (p = {one['p']:.3f})."
    return (f"{better} has {abs(one['difference']):.2f} more {name} than {worse}, which may well be chance "
            f"(p = {one['p']:.3f}).")


def _head(found: Table) -> Html:
    return Html("".join(markup.paragraph(verdict(found, score)) for score in ("bleu", "chrf")))


def _scores(found: Table) -> Html:
    rows = [[Html(markup.swatch(number) + text(model["name"])), text(f"{model['bleu']:.2f}"),
             text(f"{model['chrf']:.2f}"), text(f"{model['loss']:.3f}"), text(f"{model['parameters']:,}"),
             text(f"{model['cut']:,}")] for number, model in enumerate(found["models"])]
    apart = [[text(name), text(f"{one['difference']:+.2f}"), text(f"{one['low']:+.2f} to {one['high']:+.2f}"),
              text(f"{one['p']:.3f}")] for name, one in
             (("BLEU", found["difference"]["bleu"]), ("chrF", found["difference"]["chrf"]))]
    note = (f"The test of {found['pairs']:,} pairs was drawn again {found['draws']:,} times, the same sentences for "
            "both models (paired bootstrap). 95 of 100 differences lie in the range. p is how often so large a "
            "difference would be drawn if there were none.")
    return markup.section(
        "Scores", markup.table(["model", "BLEU", "chrF", "loss", "parameters", "without an end"], rows,
                               numbers=range(1, 6)),
        markup.table(["score", "second less first", "range", "p"], apart, numbers=range(1, 4),
                     caption="The difference"), markup.paragraph(note, "small faint"))


def _lengths(models: Sequence[Table]) -> Html:
    shown = telling(models[0]["by_length"])
    names = [bucket_name(bucket) for bucket in shown]
    lines = [Line(model["name"], range(len(names)), [bucket["bleu"] for bucket in telling(model["by_length"])])
             for model in models]
    pairs = ", ".join(f"{bucket['pairs']:,} of {name} words" for bucket, name in zip(shown, names, strict=True))
    return markup.section("By length", markup.figure(
        lines_svg(lines, across="words of the source", down="BLEU", names=names, least=0.0,
                  title="BLEU by the length of the source"), f"Pairs: {pairs}."))


def _sentences(found: Table) -> Html:
    sentences, parts = found["sentences"], list[Html]()
    first, second = (model["name"] for model in found["models"])
    better = [one for one in sentences if one["difference"] > 0]
    worse = [one for one in reversed(sentences) if one["difference"] < 0]
    for name, some in ((second, better), (first, worse)):
        shown = some[:SHOWN]
        count = f"{len(shown):,} of {len(some):,}" if len(shown) < len(some) else f"{len(some):,}"
        parts.append(Html(f"<h3>{text(name)} is better: {count} sentences</h3>"))
        if shown:
            parts.append(markup.table(["chrF", "source", "reference", first, second], [_row(one) for one in shown],
                                      numbers=(0,), said=range(1, 5), caption=f"where {name} is better, most first"))
    same = f"{found['same']:,} of {found['pairs']:,} translations are the same in both, letter by letter."
    return markup.section("Sentence by sentence", markup.paragraph(
        f"Sorted by how much the chrF of a sentence differs. {same}"), *parts)


def _row(one: Mapping[str, Any]) -> list[Html]:
    scores = Html(f"{one['difference']:+.1f}<br><span class=\"small faint\">{one['first_chrf']:.0f} → "
                  f"{one['second_chrf']:.0f}</span>")
    return [scores, *(text(one[key], 500) for key in ("source", "reference", "first", "second"))]


def _how(found: Table) -> Html:
    signatures = found["models"][0]["signatures"]
    return markup.section("How it was done", markup.facts([
        ("search", "greedy" if found["beams"] == 1 else f"beam of {found['beams']}"), ("regard", found["regard"]),
        ("BLEU", signatures["bleu"]), ("chrF", signatures["chrf"])]))
