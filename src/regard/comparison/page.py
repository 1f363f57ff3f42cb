"""The page of a comparison of trained steps: scores, lengths, curves, gradient flow and what each model looks at.

It draws the table that `summary` makes, and the maps of attention that were made with it. It computes nothing, and does
not know how anything was measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from regard.comparison import markup
from regard.comparison.flow import PARTS
from regard.comparison.markup import Html, text
from regard.comparison.summary import bucket_name, kept_on_long, telling
from regard.inspection.pictures.lines import Line, lines_svg
from regard.inspection.pictures.svg import whole_svg

Table = dict[str, Any]
BAR = 80.0
"""Pixels of a score of 100."""


def road_page(found: Table, maps: Mapping[str, str | None]) -> str:
    """The whole page.

    Args:
        maps: the SVG of what each model looks at, by its name; None for one without attention.
    """
    models = found["models"]
    return markup.document("The same work, done in several ways", [
        _head(found), _scores(models, found["seeds"]), _lengths(models), _curves(models), _flows(models),
        _maps(found, maps), _how(found)])


def spread(given: Mapping[str, Any], digits: int = 1) -> str:
    """A number over several seeds, in words."""
    mean = f"{given['mean']:,.{digits}f}"
    return mean if given["deviation"] is None else f"{mean} ± {given['deviation']:,.{digits}f}"


def size(count: int | None) -> str:
    """Bytes, for people."""
    return "" if count is None else f"{count / 2**20:,.0f} MiB" if count >= 2**20 else f"{count / 2**10:,.0f} KiB"


def _head(found: Table) -> Html:
    data, times = found["data"], found["seeds"]
    return Html("".join([
        markup.paragraph(f"{len(found['models'])} models learned from the same {data['train']:,} pairs "
                         f"({data['name']}), cut by the same tokenizer. Each had the same budget: "
                         f"{found['budget']['said']}. All were tested on the same {data['test']:,} pairs, which "
                         "none of them learned from."),
        markup.paragraph(f"Each was trained {times} times, from different random numbers: ± is the standard deviation."
                         if times > 1 else "Each was trained once: differences of a point or two may be chance.",
                         "faint")]))


def _scores(models: Sequence[Table], seeds: int) -> Html:
    rows = []
    peaks = any(model["peak"] is not None for model in models)
    for number, model in enumerate(models):
        kept = kept_on_long(model)
        rows.append([Html(markup.swatch(number) + text(model["name"])), text(model["about"]), _bar(model["bleu"]),
                     text(spread(model["bleu"])), text(spread(model["chrf"])), text(spread(model["loss"], 3)),
                     text("" if kept is None else f"{kept:.0%}"), text(f"{model['parameters']:,}"),
                     text(spread(model["tokens_per_second"], 0)), text(size(model["memory"])),
                     *([text(size(model["peak"]))] if peaks else [])])
    head = ["model", "what it is", "", "BLEU", "chrF", "loss", "kept on long ones", "parameters", "tokens/s",
            "step memory", *(["peak on the GPU"] if peaks else [])]
    note = ("BLEU and chrF go up to 100. The loss is the mean of -log p of the words of the references. Kept on long "
            "ones: the BLEU of the longest sentences as a share of that of the shortest. Tokens a second are target "
            "tokens while learning, on the machine below. Step memory is counted: parameters, gradients, moments, "
            "and what the backward pass keeps for 16 long sentences.")
    return markup.section("What came of it", markup.table(head, rows, numbers=range(3, len(head)), said=(1,)),
                          markup.paragraph(note, "small faint"))


def _bar(score: Mapping[str, Any]) -> Html:
    """A score as a bar, with a line from the lowest to the highest."""
    mean, low, high = (BAR * min(100.0, max(0.0, score[key])) / 100 for key in ("mean", "low", "high"))
    parts = [f'<path d="M0 0H{BAR:.0f}V14H0Z" fill="currentColor" opacity="0.1"/>',
             f'<path d="M0 2H{mean:.1f}V12H0Z" fill="currentColor" opacity="0.55"/>',
             f'<path d="M{low:.1f} 7H{high:.1f}" stroke="currentColor" stroke-width="3"/>' if high > low else ""]
    return Html(whole_svg(BAR + 2, 16, f"BLEU {score['mean']:.1f}", parts))


def _lengths(models: Sequence[Table]) -> Html:
    names = [bucket_name(bucket) for bucket in models[0]["by_length"]]
    drawn = [bucket_name(bucket) for bucket in telling(models[0]["by_length"])]
    lines = [Line(model["name"], range(len(drawn)), *([bucket["bleu"][key] for bucket in telling(model["by_length"])]
                                                     for key in ("mean", "low", "high"))) for model in models]
    picture = lines_svg(lines, across="words of the source", down="BLEU", names=drawn, least=0.0,
                        title="BLEU by the length of the source")
    pairs = ", ".join(f"{bucket['pairs']:,} of {name} words" for bucket, name in
                      zip(models[0]["by_length"], names, strict=True))
    rows = [[Html(markup.swatch(number) + text(model["name"])), *(text(spread(bucket["bleu"]))
                                                                  for bucket in model["by_length"])]
            for number, model in enumerate(models)]
    return markup.section(
        "Short sentences and long ones",
        markup.paragraph("One context vector has the same room for a long sentence as for a short one. Attention looks "
                         "at the source again for every word, so it has no such limit."),
        markup.figure(picture, f"Test pairs: {pairs}." + (" Lengths of very few pairs are not drawn." if drawn != names
                                                          else "") + (" Bands go from the worst seed to the best." if
                                                          models[0]["bleu"]["deviation"] is not None else "")),
        markup.folded("The numbers", markup.table(["model", *names], rows, numbers=range(1, len(names) + 1),
                                                  caption="BLEU by the words of the source")))


def _curves(models: Sequence[Table]) -> Html:
    learned = [Line(model["name"], model["curve"]["tokens"], model["curve"]["nll"]) for model in models]
    judged = [Line(model["name"], model["curve"]["judged"], model["curve"]["judged_nll"]) for model in models]
    return markup.section(
        "How they learned",
        markup.row(markup.figure(lines_svg(learned, across="target tokens learned from", down="loss of a token",
                                           title="Loss while learning"), "While learning: what was just read."),
                   markup.figure(lines_svg(judged, across="step", down="loss of a token",
                                           title="Loss on validation pairs"), "On the validation pairs.")),
        markup.paragraph("Curves are those of the first seed.", "small faint"))


def _flows(models: Sequence[Table]) -> Html:
    places = [(part + 0.5) / PARTS for part in range(PARTS)]

    def picture(which: str, title: str) -> str:
        return lines_svg([Line(model["name"], places, model["flow"][which]) for model in models], powers=True,
                         across="place in the source: 0 is its first word, 1 its last",
                         down="share of the gradient", title=title)

    flow = models[0]["flow"]
    return markup.section(
        "How far gradients flow",
        markup.paragraph("How much of what a model writes depends on each word that it reads. 1 is the share that each "
                         "would have if all counted alike. Where one vector must carry all, what was read first has "
                         "to pass through every later step; attention is one step away from every word."),
        markup.row(markup.figure(picture("all", "Gradient of all outputs by place in the source"),
                                 "Of everything that is written."),
                   markup.figure(picture("last", "Gradient of the last output by place in the source"),
                                 "Of the last output alone.")),
        markup.paragraph(f"On average over the {flow['sentences']} longest test sentences, of {flow['tokens']:.0f} "
                         f"tokens.", "small faint"))


def _maps(found: Table, maps: Mapping[str, str | None]) -> Html:
    sentence, parts = found["sentence"], list[Html]()
    for number, model in enumerate(found["models"]):
        picture = maps.get(model["name"])
        shown = (markup.wide(picture, f"attention of {model['name']}") if picture is not None else
                 markup.paragraph("It has no attention: there is nothing to see.", "faint"))
        parts.append(Html(f"<div><h3>{markup.swatch(number)}{text(model['name'])}</h3>{shown}"
                          f'<p class="small">It writes: <q>{text(model["translation"])}</q></p></div>'))
    return markup.section(
        "Where they look",
        markup.facts([("source", sentence["source"]), ("reference", sentence["reference"])]),
        markup.paragraph("Rows are the words of the reference, columns those of the source: where each model looks "
                         "when it is about to write the word. Of several layers and heads the one is shown that "
                         "matches words best.",
                         "small faint"),
        markup.row(*parts))


def _how(found: Table) -> Html:
    data, machine = found["data"], found["machine"]
    first = found["models"][0]
    rows = [("budget", found["budget"]["said"]), ("seeds", str(found["seeds"])),
            ("search", "greedy" if found["beams"] == 1 else f"beam of {found['beams']}"),
            ("pairs", f"{data['train']:,} to learn from, {data['validation']:,} to judge by, {data['test']:,} to test"),
            ("tokenizer", f"sha256 {data['tokenizer']}"), ("data", data["name"]),
            ("machine", f"{machine['device']}, {machine['threads']} threads"), ("regard", found["regard"]),
            ("BLEU", first["signatures"]["bleu"]), ("chrF", first["signatures"]["chrf"])]
    rows += [(model["name"], f"{model['recipe']}: {model['steps']:,} steps, {model['tokens']:,} target tokens, "
                             f"{model['seconds']['mean']:,.0f} s") for model in found["models"]]
    return markup.section("How it was done", markup.facts(rows))
