"""HTML pages of comparisons: the road, and two models side by side.

A page is one HTML file without network access, scripts or other files, in light or dark colours. Text is escaped
exactly where it becomes HTML: `html_text` for any text, `Html` for what is HTML already. The pages draw tables of
results; they compute nothing.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NewType

from regard.checks import plural
from regard.comparison.measures import FLOW_PARTS
from regard.inspection import labels
from regard.inspection.pictures.svg import LINE_COLOURS, ChartLine, lines_svg, svg_element

Html = NewType("Html", str)
MAX_TEXT = 2000
"""A longer text is truncated to this many characters."""
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root{color-scheme:light dark;--ink:#1f1d1a;--paper:#fbfaf7;--faint:#5f5a52;--line:#e2ded5;--link:#0b625d}
@media (prefers-color-scheme:dark){:root{--ink:#e9e6df;--paper:#15171b;--faint:#a9a59b;--line:#333740;--link:#76cfc4}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:80rem;background:var(--paper);color:var(--ink);
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
dd{margin:0}dt,dd{overflow-wrap:anywhere}a{color:var(--link)}
@media (max-width:600px){body{padding:1rem .8rem 3rem}h1{font-size:1.35rem}
table,tbody,caption{display:block}thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
tbody tr{display:block;padding:.5rem 0 .8rem;border-bottom:1px solid var(--line)}
tbody th,tbody td,th.n,td.n{display:block;border:0;padding:.1rem 0;text-align:left;white-space:normal}
th[data-label]::before{content:attr(data-label) " ";color:var(--faint);font-weight:400}
td[data-label]{display:flex;justify-content:space-between;gap:1rem}
td[data-label]::before{content:attr(data-label);color:var(--faint);flex:none}
td.said{display:block;min-width:0}td.said[data-label]::before{display:block;font-size:.875rem}
td:empty{display:none}figure svg{font-size:15px}dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}}
"""
SWATCHES = "".join(f".c{number}{{background:{colour}}}" for number, colour in enumerate(LINE_COLOURS))


def html_page(title: str, sections: Iterable[Html]) -> str:
    """The whole page."""
    style = STYLE.strip().replace("\n", "")
    return ('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html_text(title)}</title>\n<style>{style}{SWATCHES}</style>\n</head>\n<body>\n<main>\n"
            f"<h1>{html_text(title)}</h1>\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n")


def html_text(given: str, longest: int = MAX_TEXT) -> Html:
    """Escape a text for HTML; invisible characters are shown by name."""
    return Html(html.escape(labels.text_label(given, longest), quote=True))


def html_section(title: str, *parts: Html) -> Html:
    """A section with a heading."""
    return Html(f"<section>\n<h2>{html_text(title)}</h2>\n" + "\n".join(parts) + "\n</section>")


def html_paragraph(given: str, kind: str = "") -> Html:
    """A paragraph of text."""
    return Html(f"<p{_class(kind)}>{html_text(given)}</p>")


def html_table(head: Sequence[str], rows: Iterable[Sequence[Html]], *, caption: str = "", numbers: Sequence[int] = (),
               said: Sequence[int] = ()) -> Html:
    """A table whose first column names the row.

    Args:
        numbers: which columns hold numbers; `said`: which hold sentences.
    """
    def kind(column: int) -> str:
        return _class("n" if column in numbers else "said" if column in said else "")

    heads = "".join(f'<th scope="col"{kind(column)}>{html_text(name)}</th>' for column, name in enumerate(head))
    body = []
    for first, *others in rows:
        cells = "".join(f"<td{kind(column)}{_data_label(head[column])}>{cell}</td>"
                        for column, cell in enumerate(others, 1))
        named = _data_label(head[0]) if 0 in numbers else ""  # a number does not say what it is
        body.append(f'<tr><th scope="row"{kind(0)}{named}>{first}</th>{cells}</tr>')
    above = f"<caption>{html_text(caption)}</caption>" if caption else ""
    label = html_text(caption or head[0] or "table")
    return Html(f'<div class="wide" tabindex="0" role="region" aria-label="{label}"><table>{above}'
                f"<thead><tr>{heads}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>")


def html_figure(picture: str, caption: str, kind: str = "") -> Html:
    """An SVG figure with a caption."""
    return Html(f"<figure{_class(kind)}>{picture}<figcaption>{html_text(caption)}</figcaption></figure>")


def html_scrollable(picture: str, label: str) -> Html:
    """A picture that scrolls horizontally if it is too wide."""
    return Html(f'<div class="wide map" tabindex="0" role="region" aria-label="{html_text(label)}">{picture}</div>')


def html_row(*parts: Html) -> Html:
    """Parts side by side if there is room."""
    return Html('<div class="row">' + "".join(parts) + "</div>")


def html_details(title: str, *parts: Html) -> Html:
    """Parts that the reader can unfold."""
    return Html(f"<details><summary>{html_text(title)}</summary>" + "".join(parts) + "</details>")


def html_facts(rows: Iterable[tuple[str, str]]) -> Html:
    """A list of names and values."""
    return Html("<dl>" + "".join(f"<dt>{html_text(name)}</dt><dd>{html_text(value)}</dd>"
                                 for name, value in rows) + "</dl>")


def html_swatch(number: int) -> Html:
    """The colour of a line in the charts."""
    return Html(f'<span class="swatch c{number % len(LINE_COLOURS)}" aria-hidden="true"></span>')


def _data_label(name: str) -> str:
    """The name of a cell's column, which narrow screens show beside the cell."""
    return f' data-label="{html_text(name)}"' if name else ""


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


ResultTable = dict[str, Any]
"""The results of a comparison as a JSON object."""
BAR_WIDTH = 80.0
"""The width in pixels of a score of 100."""


def road_page(found: ResultTable, maps: Mapping[str, str | None]) -> str:
    """The whole page.

    Args:
        maps: the attention map of each model as SVG, by its name; None for a model without attention.
    """
    models = found["models"]
    return html_page("Comparison of architectures", [
        _road_head(found), _road_scores(models), _road_maps(found, maps), _road_lengths(models), _road_curves(models),
        _road_flows(models), _road_methods(found)])


def format_spread(given: Mapping[str, Any], digits: int = 1) -> str:
    """A measurement over several seeds as text."""
    mean = f"{given['mean']:,.{digits}f}"
    return mean if given["deviation"] is None else f"{mean} ± {given['deviation']:,.{digits}f}"


def format_signed(value: float, digits: int) -> str:
    """A difference as text, with its sign."""
    return f"{value:+,.{digits}f}".replace("-", "−")


def format_bytes(count: int | None) -> str:
    """A number of bytes as text."""
    return "" if count is None else f"{count / 2**20:,.0f} MiB" if count >= 2**20 else f"{count / 2**10:,.0f} KiB"


def _road_head(found: ResultTable) -> Html:
    data, times = found["data"], found["seeds"]
    return Html("".join([
        html_paragraph(f"{plural(len(found['models']), 'model')} trained on the same {data['train']:,} pairs "
                       f"({data['name']}) with the same tokenizer. Budget of each: {found['budget']['said']}. All were "
                       f"tested on the same {plural(data['test'], 'pair')}, which are not in the training data."),
        html_paragraph(f"Each was trained with {times} seeds: ± is the standard deviation."
                       if times > 1 else "Each was trained once, with one seed: small differences may be chance.",
                       "faint")]))


def _road_scores(models: Sequence[ResultTable]) -> Html:
    ratios = [long_sentence_ratio(model) for model in models]
    # Each further column has its sentence below the table; one that no model has is left out with its sentence.
    columns: list[tuple[str, list[str], str]] = [
        ("BLEU", [format_spread(model["bleu"]) for model in models], ""),
        ("chrF", [format_spread(model["chrf"]) for model in models], "BLEU and chrF go up to 100."),
        ("loss", [format_spread(model["loss"], 3) for model in models],
         "Loss: the cross-entropy of the references in nats per token."),
        ("long/short BLEU", ["" if ratio is None else f"{ratio:.0%}" for ratio in ratios],
         "Long/short BLEU: the BLEU of the longest sentences divided by that of the shortest."),
        ("parameters", [f"{model['parameters']:,}" for model in models], ""),
        ("tokens/s", [format_spread(model["tokens_per_second"], 0) for model in models],
         "Tokens/s: target tokens per second in training, on the machine below."),
        ("step memory", [format_bytes(model["memory"]) for model in models],
         "Step memory: parameters, gradients, Adam's moments, and the activations that autograd saves for 16 long "
         "sentences."),
        ("peak GPU memory", [format_bytes(model["peak"]) for model in models],
         "Peak GPU memory: the most that PyTorch had allocated during training.")]
    columns = [column for column in columns if any(column[1])]
    rows = [[Html(html_swatch(number) + html_text(model["name"])), html_text(model["about"]), _score_bar(model["bleu"]),
             *(html_text(cells[number]) for _, cells, _ in columns)] for number, model in enumerate(models)]
    head = ["model", "description", "", *(name for name, _, _ in columns)]
    return html_section("Results", html_table(head, rows, numbers=range(3, len(head)), said=(1,)),
                        html_paragraph(" ".join(filter(None, (note for *_, note in columns))), "small faint"))


def _score_bar(score: Mapping[str, Any]) -> Html:
    """A score as a bar, with a line from its minimum to its maximum."""
    mean, low, high = (BAR_WIDTH * min(100.0, max(0.0, score[key])) / 100 for key in ("mean", "low", "high"))
    parts = [f'<path d="M0 0H{BAR_WIDTH:.0f}V14H0Z" fill="currentColor" opacity="0.1"/>',
             f'<path d="M0 2H{mean:.1f}V12H0Z" fill="currentColor" opacity="0.55"/>',
             f'<path d="M{low:.1f} 7H{high:.1f}" stroke="currentColor" stroke-width="3"/>' if high > low else ""]
    return Html(svg_element(BAR_WIDTH + 2, 16, f"BLEU {score['mean']:.1f}", parts))


def _road_lengths(models: Sequence[ResultTable]) -> Html:
    names = [bucket_name(bucket) for bucket in models[0]["by_length"]]
    drawn = [bucket_name(bucket) for bucket in large_buckets(models[0]["by_length"])]
    lines = [ChartLine(model["name"], range(len(drawn)),
                       *([bucket["bleu"][key] for bucket in large_buckets(model["by_length"])]
                         for key in ("mean", "low", "high"))) for model in models]
    picture = lines_svg(lines, x_label="words of the source", y_label="BLEU", x_names=drawn, y_min=0.0,
                        title="BLEU by the length of the source")
    pairs = ", ".join(f"{bucket['pairs']:,} of {name} words" for bucket, name in
                      zip(models[0]["by_length"], names, strict=True))
    rows = [[Html(html_swatch(number) + html_text(model["name"])), *(html_text(format_spread(bucket["bleu"]))
                                                                     for bucket in model["by_length"])]
            for number, model in enumerate(models)]
    return html_section(
        "BLEU by sentence length",
        html_paragraph("A single context vector has a fixed size, however long the sentence is. Attention reads the "
                       "encoder states again for every output token, so it has no such bottleneck."),
        html_figure(picture, f"Test pairs: {pairs}." + (" Lengths with very few pairs are not drawn." if drawn != names
                                                        else "") + (" Bands: from the worst to the best seed." if
                                                                    models[0]["bleu"]["deviation"] is not None
                                                                    else "")),
        html_details("As a table", html_table(["model", *names], rows, numbers=range(1, len(names) + 1),
                                               caption="BLEU by the number of source words")))


def _road_curves(models: Sequence[ResultTable]) -> Html:
    learned = [ChartLine(model["name"], model["curve"]["tokens"], model["curve"]["nll"]) for model in models]
    validated = [ChartLine(model["name"], model["curve"]["validation_step"], model["curve"]["validation_nll"])
                 for model in models]
    return html_section(
        "Training curves",
        html_row(html_figure(lines_svg(learned, x_label="target tokens", y_label="loss (nats per token)",
                                       title="Training loss"), "Training loss."),
                 html_figure(lines_svg(validated, x_label="step", y_label="loss (nats per token)",
                                       title="Validation loss"), "Validation loss.")),
        html_paragraph("Curves of the first seed.", "small faint"))


def _road_flows(models: Sequence[ResultTable]) -> Html:
    places = [(part + 0.5) / FLOW_PARTS for part in range(FLOW_PARTS)]

    def picture(which: str, title: str) -> str:
        return lines_svg([ChartLine(model["name"], places, model["flow"][which]) for model in models], log=True,
                         x_label="position in the source (0: first token, 1: last)",
                         y_label="share of the gradient", title=title)

    flow = models[0]["flow"]
    return html_section(
        "Gradient flow to the source",
        html_paragraph("How much the output depends on each source position: the norm of the gradient, relative to the "
                       "mean over all positions (1: all positions count alike). With a single context vector, the "
                       "gradient of an early token passes through every later step; with attention it takes one step."),
        html_row(html_figure(picture("all", "Gradient of all outputs by source position"), "All outputs."),
                 html_figure(picture("last", "Gradient of the last output by source position"), "Last output only.")),
        html_paragraph(f"Mean over the {plural(flow['sentences'], 'longest test sentence')}, "
                       f"{flow['tokens']:.0f} tokens on average.", "small faint"))


def _road_maps(found: ResultTable, maps: Mapping[str, str | None]) -> Html:
    sentence, parts = found["sentence"], list[Html]()
    for number, model in enumerate(found["models"]):
        picture = maps.get(model["name"])
        shown = (html_scrollable(picture, f"attention of {model['name']}") if picture is not None else
                 html_paragraph("This model has no attention.", "faint"))
        parts.append(Html(f"<div><h3>{html_swatch(number)}{html_text(model['name'])}</h3>{shown}"
                          f'<p class="small">Translation: <q>{html_text(model["translation"])}</q></p></div>'))
    return html_section(
        "Where each looked",
        html_facts([("source", sentence["source"]), ("reference", sentence["reference"])]),
        html_paragraph("Attention (rows: words of the reference, columns: words of the source). Of all layers and "
                       "heads, the one that aligns words best is shown.", "small faint"),
        html_row(*parts))


def _road_methods(found: ResultTable) -> Html:
    data, machine = found["data"], found["machine"]
    first = found["models"][0]
    rows = [("budget", found["budget"]["said"]), ("seeds", str(found["seeds"])),
            ("search", "greedy" if found["beams"] == 1 else f"beam search, {found['beams']} beams"),
            ("pairs", f"{data['train']:,} for training, {data['validation']:,} for validation, "
                      f"{data['test']:,} for testing"),
            ("tokenizer", f"sha256 {data['tokenizer']}"), ("data", data["name"]),
            ("machine", f"{machine['device']}, {plural(machine['threads'], 'thread')}"), ("regard", found["regard"]),
            ("BLEU", first["signatures"]["bleu"]), ("chrF", first["signatures"]["chrf"])]
    rows += [(model["name"], f"{model['recipe']}: {model['steps']:,} steps, {model['tokens']:,} target tokens, "
              f"{model['seconds']['mean']:,.0f} s") for model in found["models"]]
    return html_section("Setup", html_facts(rows))


SHOWN_SENTENCES = 100
"""The page shows this many sentences from each end of the list."""
LINKED_SENTENCES = 10
"""The first ones of each list link to a page with the attention of both models."""
SIGNIFICANCE = 0.05
"""A p-value below this counts as significant."""


def pair_page(found: ResultTable, pages: Mapping[int, str] | None = None) -> str:
    """The whole page.

    Args:
        pages: the address of the page that shows the attention of both models, by the number of a sentence.
    """
    first, second = (model["name"] for model in found["models"])
    return html_page(f"{first} and {second}", [_pair_head(found), _pair_scores(found), _pair_lengths(found["models"]),
                                               _pair_sentences(found, pages or {}), _pair_methods(found)])


def linked_sentences(found: ResultTable, count: int = LINKED_SENTENCES) -> list[ResultTable]:
    """The sentences that have pages of their own: the first ones of both tables of sentences."""
    return [one for some in _better_sentences(found) for one in some[:count]]


def describe_difference(found: ResultTable, score: str) -> str:
    """The difference of a score and its significance, as a sentence."""
    one, (first, second) = found["difference"][score], (model["name"] for model in found["models"])
    name = {"bleu": "BLEU", "chrf": "chrF"}[score]
    if one["difference"] == 0:
        return f"Both models have the same {name}."
    better, worse = (second, first) if one["difference"] > 0 else (first, second)
    if one["p"] < SIGNIFICANCE:
        return f"{better} is better than {worse} by {abs(one['difference']):.2f} {name} (p = {one['p']:.3f})."
    return (f"{better} has {abs(one['difference']):.2f} more {name} than {worse}, which is not significant "
            f"(p = {one['p']:.3f}).")


def _pair_head(found: ResultTable) -> Html:
    return Html("".join(html_paragraph(describe_difference(found, score)) for score in ("bleu", "chrf")))


def _pair_scores(found: ResultTable) -> Html:
    rows = [[Html(html_swatch(number) + html_text(model["name"])), html_text(f"{model['bleu']:.2f}"),
             html_text(f"{model['chrf']:.2f}"), html_text(f"{model['loss']:.3f}"),
             html_text(f"{model['parameters']:,}"),
             html_text(f"{model['cut']:,}")] for number, model in enumerate(found["models"])]
    apart = [[html_text(name), html_text(format_signed(one["difference"], 2)),
              html_text(f"{format_signed(one['low'], 2)} to {format_signed(one['high'], 2)}"),
              html_text(f"{one['p']:.3f}")] for name, one in
             (("BLEU", found["difference"]["bleu"]), ("chrF", found["difference"]["chrf"]))]
    note = (f"Paired bootstrap: the {plural(found['pairs'], 'test pair')} resampled {found['draws']:,} times, the same "
            "pairs for both models. p: the probability of a difference at least as large if both models were equally "
            "good.")
    units = ("Loss: the cross-entropy of the references in nats per token. Truncated: translations that ended at the "
             "maximum length.")
    return html_section(
        "Scores", html_table(["model", "BLEU", "chrF", "loss", "parameters", "truncated"], rows,
                             numbers=range(1, 6)), html_paragraph(units, "small faint"),
        html_table(["score", "second − first", "95% interval", "p"], apart, numbers=range(1, 4),
                   caption="Difference"), html_paragraph(note, "small faint"))


def _pair_lengths(models: Sequence[ResultTable]) -> Html:
    shown = large_buckets(models[0]["by_length"])
    names = [bucket_name(bucket) for bucket in shown]
    lines = [ChartLine(model["name"], range(len(names)),
                       [bucket["bleu"] for bucket in large_buckets(model["by_length"])])
             for model in models]
    pairs = ", ".join(f"{bucket['pairs']:,} of {name} words" for bucket, name in zip(shown, names, strict=True))
    return html_section("By length", html_figure(
        lines_svg(lines, x_label="words of the source", y_label="BLEU", x_names=names, y_min=0.0,
                  title="BLEU by the length of the source"), f"Pairs: {pairs}."))


def _better_sentences(found: ResultTable) -> tuple[list[ResultTable], list[ResultTable]]:
    """The sentences in which the second model is better, and those in which the first is, the best first."""
    sentences = found["sentences"]
    return ([one for one in sentences if one["difference"] > 0],
            [one for one in reversed(sentences) if one["difference"] < 0])


def _pair_sentences(found: ResultTable, pages: Mapping[int, str]) -> Html:
    parts = list[Html]()
    first, second = (model["name"] for model in found["models"])
    for name, some in zip((second, first), _better_sentences(found), strict=True):
        shown = some[:SHOWN_SENTENCES]
        count = f"{len(shown):,} of {len(some):,}" if len(shown) < len(some) else f"{len(some):,}"
        noun = "sentence" if len(some) == 1 else "sentences"
        parts.append(Html(f"<h3>{html_text(name)} is better: {count} {noun}</h3>"))
        if shown:
            parts.append(html_table(["chrF", "source", "reference", first, second],
                                    [_sentence_row(one, pages.get(one["number"])) for one in shown],
                                    numbers=(0,), said=range(1, 5),
                                    caption=f"chrF: the difference, and {first} → {second}"))
    same = f"{found['same']:,} of {found['pairs']:,} translations are identical in both."
    return html_section("Sentence by sentence", html_paragraph(
        f"Sorted by the difference in sentence chrF. {same}"), *parts)


def _sentence_row(one: Mapping[str, Any], page: str | None = None) -> list[Html]:
    link = "" if page is None else f'<br><a class="small" href="{html_text(page)}">look at both</a>'
    scores = Html(f"{format_signed(one['difference'], 1)}<br><span class=\"small faint\">{one['first_chrf']:.0f} → "
                  f"{one['second_chrf']:.0f}</span>{link}")
    return [scores, *(html_text(one[key], 500) for key in ("source", "reference", "first", "second"))]


def _pair_methods(found: ResultTable) -> Html:
    signatures = found["models"][0]["signatures"]
    return html_section("Setup", html_facts([
        ("search", "greedy" if found["beams"] == 1 else f"beam search, {found['beams']} beams"),
        ("regard", found["regard"]), ("BLEU", signatures["bleu"]), ("chrF", signatures["chrf"])]))


MIN_BUCKET_PAIRS = 5
"""A length bucket with fewer pairs has no meaningful score."""


def bucket_name(bucket: ResultTable) -> str:
    """The lengths of a bucket as text."""
    if bucket["most"] is None:
        return f"{bucket['least']}+"
    return f"{max(1, bucket['least'])}-{bucket['most']}"


def large_buckets(buckets: Sequence[ResultTable]) -> list[ResultTable]:
    """The buckets with enough pairs; all of them if none has."""
    return [one for one in buckets if one["pairs"] >= MIN_BUCKET_PAIRS] or [*buckets]


def long_sentence_ratio(model: ResultTable) -> float | None:
    """The BLEU of the longest sentences as a share of that of the shortest; None where there are no two such buckets.

    Buckets of very few pairs do not count.
    """
    buckets = [one for one in model["by_length"] if one["pairs"] >= MIN_BUCKET_PAIRS]
    if len(buckets) < 2:
        return None
    short, long = buckets[0]["bleu"]["mean"], buckets[-1]["bleu"]["mean"]
    return long / short if short > 0 and math.isfinite(long) else None
