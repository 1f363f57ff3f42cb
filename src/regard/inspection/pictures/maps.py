"""Matrices as pictures: one attention map, all heads, their entropies, position encodings, and the views of a trace.

    alignment_picture(weights, ["le", "chat", "noir"], ["the", "black", "cat"])
    heads_picture({"decoder.0.cross": weights, "decoder.1.cross": weights})         weights (heads, rows, columns)
    entropy_picture({"decoder.0.cross": [0.4, 1.9]}, {"decoder.0.cross": 2.3})      nats, and the largest possible
    position_picture({"sinusoidal": vectors, "learned": table})                     vectors (positions, features)
    trace_picture(trace, "entropy")
    attention_picture(trace, "decoder.2.cross", head=3)
    trace_html(trace)                                                               the page in a frame, for a notebook

The paper is 0, dark ink is more, masked cells are hatched, and a colour bar shows the scale. Of many words some are
labelled, and the picture says how many; a map of more than 2,000 rows or columns shows means of blocks, and says so. A
picture computes only what it needs of a trace: of a long one means of blocks, never a whole matrix. The first alignment
map of this kind is figure 3 of Bahdanau, Cho and Bengio (2015). This file does not know models.
"""

import base64
import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.inspection import labels
from regard.inspection.pictures import canvas, svg
from regard.inspection.pictures.canvas import (
    SEQUENTIAL,
    Cells,
    ColourScale,
    Floats,
    as_floats,
    cells_from_record,
    cells_from_weights,
    describe_cells,
)
from regard.inspection.pictures.patches import patch_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from regard.inspection.trace import MapSelection, Trace
    from regard.inspection.trace_format import TracedAttention

MAX_CELLS = 2000
"""The number of rows and columns up to which each has its own cell."""
MAX_LABELS = 60
"""The number of rows and columns up to which each has a label."""
CELL_INCHES, MAP_INCHES = 0.32, 8.4
"""The largest size of a cell, and of the whole map."""
LETTER_INCHES = 0.075
MAX_HEAD_CELLS = 96
"""The number of rows and columns up to which a small map draws each."""
HEADS_PER_ROW, MAX_SHEET_ROWS = 16, 60
"""Heads side by side, unless that takes more rows than this."""
HEAD_GAP, LAYER_GAP = 0.12, 0.35
"""The gap between two heads, and between two layers of several rows, in squares."""
HEAD_CENTRE = (1 - HEAD_GAP) / 2
WHITE_TEXT_SHARE = 0.53
"""The share of the largest value above which white text is more legible than black text."""
CONFUSION_INCHES = 0.36
"""The side of a cell with a number in it."""
MAX_PRINTED = 24
"""The number of heads side by side up to which entropies are printed into their squares."""
POSITION_INCHES, POSITION_GAP, POSITION_BELOW = 3.0, 0.95, 0.75
MAX_POSITIONS = 1000
"""The number of positions and features up to which each has its own cell."""
WEIGHTS_AT_ONCE = 4_000_000
"""The number of weights computed at once."""
NOTEBOOK_LIMIT = 1 << 22
"""The number of weights up to which a notebook shows small maps of an attention."""
NOTEBOOK_BYTES, FRAME_HEIGHT = 4 << 20, 640
"""Bytes of the numbers of a page in a notebook, and the height of its frame in pixels."""


def alignment_picture(weights: Any, rows: Sequence[str], columns: Sequence[str], *, title: str = "",
                      sides: tuple[str, str] = ("", ""), largest: float | None = None) -> "Figure":
    """An attention map, in the style of the papers: output words as rows, input words as columns.

    Args:
        weights: (rows, columns), as a tensor, an array or lists.
        rows: the words of the queries.
        columns: the words of the keys.
        title: shown above.
        sides: the names of rows and columns, such as ("French", "English").
        largest: the weight of the darkest colour, to compare pictures; by default the largest weight.
    """
    given = as_floats("weights", weights, 2, "(rows, columns)")
    if given.shape != (len(rows), len(columns)):
        raise checks.wrong("weights", f"of shape ({len(rows)}, {len(columns)}), one row and one column for each word",
                           f"of shape {checks.shape(given)}")
    return map_picture(cells_from_weights(given, MAX_CELLS), rows, columns, title=title, sides=sides, largest=largest)


def map_picture(cells: Cells, rows: Sequence[str], columns: Sequence[str], *, title: str = "",
                sides: tuple[str, str] = ("", ""), largest: float | None = None,
                notes: Sequence[str] = ()) -> "Figure":
    """A map of cells (r, c), with the words of all rows and columns."""
    scale = ColourScale.of(cells.values, largest)
    cell = min(CELL_INCHES, MAP_INCHES / max(1, cells.rows, cells.columns))
    width, height = (max(count * cell, min(count, MAX_LABELS) * MAP_INCHES / MAX_LABELS)
                     for count in (cells.columns, cells.rows))
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 0, 0, width, height)
        image = canvas.draw_cells(axes, cells.values, scale)
        canvas.hatch_masked(axes, cells.masked)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        label_columns(axes, columns, cells.size, width / max(1, cells.columns))
        label_rows(axes, rows, cells.size)
        left, above = (labels.text_label(side, 40) for side in sides)
        axes.set_ylabel(left, **canvas.text_style([left]))
        axes.set_xlabel(above, **canvas.text_style([above]))
        canvas.add_colour_bar(figure, image, width + 0.15, 0, min(max(height, 1.0), 3.0), "weight")
        # Every cell gets at least one pixel; without one it would be invisible.
        figure.set_dpi(max(canvas.DPI, math.ceil(1.02 * max(cells.values.shape[1] / width,
                                                            cells.values.shape[0] / height))))
        step_notes = labels.describe_label_step(len(rows), len(columns), cells.size, MAX_LABELS)
        return canvas.finish_figure(figure, title, [*notes, *describe_cells([cells]), *step_notes])


def label_rows(axes: "Axes", words: Sequence[str], size: int = 1) -> None:
    """Write the words of the rows at the left."""
    positions, texts = labels.axis_labels(words, size, MAX_LABELS)
    axes.set_yticks(positions, texts, **canvas.text_style(texts))
    axes.tick_params(axis="y", length=2 if labels.label_step(len(words), MAX_LABELS, size) > 1 else 0)


def label_columns(axes: "Axes", words: Sequence[str], size: int = 1, cell: float = CELL_INCHES) -> None:
    """Write the words of the columns on top, rotated where they are wider than their cells."""
    positions, texts = labels.axis_labels(words, size, MAX_LABELS)
    width = cell * labels.label_step(len(words), MAX_LABELS, size) - LETTER_INCHES
    rotated = any(labels.display_width(text) * LETTER_INCHES > width for text in texts)
    axes.set_xticks(positions, texts, rotation=90 if rotated else 0, **canvas.text_style(texts))
    axes.tick_params(axis="x", length=2 if labels.label_step(len(words), MAX_LABELS, size) > 1 else 0)


def confusion_picture(counts: Any, names: Sequence[str], *, title: str = "") -> "Figure":
    """A confusion matrix: a row for each expected label, a column for each predicted one.

    The colours are shares of the rows, so that rare labels can be seen too. Where labels are few, each cell has its
    share in percent.

    Args:
        counts: (labels, labels), how often each label was predicted for each expected one.
        names: the labels.
        title: shown above.
    """
    given = as_floats("counts", counts, 2, "(labels, labels)")
    if given.shape != (len(names), len(names)):
        raise checks.wrong("counts", f"of shape ({len(names)}, {len(names)}), a row and a column for each label",
                           f"of shape {checks.shape(given)}")
    totals = given.sum(-1, keepdims=True)
    shares = np.divide(given, totals, out=np.zeros_like(given), where=totals > 0)
    cell = CONFUSION_INCHES if len(names) <= MAX_PRINTED else min(CELL_INCHES, MAP_INCHES / len(names))
    side = len(names) * cell
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 0, 0, side, side)
        image = canvas.draw_cells(axes, shares, ColourScale.of(shares, 1.0))
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        label_columns(axes, names, 1, cell)
        label_rows(axes, names)
        axes.set_ylabel("expected")
        axes.set_xlabel("predicted")
        for row, column in np.ndindex(shares.shape) if len(names) <= MAX_PRINTED else ():
            share = float(shares[row, column])
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=canvas.LABEL_SIZE - 1,
                      color="white" if share > WHITE_TEXT_SHARE else "black")
        canvas.add_colour_bar(figure, image, side + 0.15, 0, min(max(side, 1.0), 3.0), "share of the expected label")
        return canvas.finish_figure(figure, title, [f"{int(given.sum()):,} tokens; percent of each row"])


def heads_picture(layers: Mapping[str, Any], *, title: str = "") -> "Figure":
    """A small map for each head, from weights (heads, rows, columns) by the names of the layers."""
    given = {name: as_floats(f'layers["{name}"]', weights, 3, "(heads, rows, columns)")
             for name, weights in layers.items()}
    return head_sheet({name: cells_from_weights(weights, MAX_HEAD_CELLS) for name, weights in given.items()},
                      title=title)


def head_sheet(layers: Mapping[str, Cells], *, title: str = "", notes: Sequence[str] = ()) -> "Figure":
    """A small map for each head, from cells (heads, r, c); a row is a layer, and all maps have one scale."""
    positions, across, down = _head_positions({name: len(cells.values) for name, cells in layers.items()})
    scale = ColourScale.of(np.concatenate([cells.values.ravel() for cells in layers.values()]))
    square = min(0.85, max(0.3, 9.0 / across))
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 0, 0, across * square, down * square)
        image = None
        for name, cells in layers.items():
            for (left, top), values in zip(positions[name], cells.values, strict=True):
                extent = (left, left + 1 - HEAD_GAP, top + 1 - HEAD_GAP, top)
                image = canvas.draw_cells(axes, values, scale, extent)
                canvas.hatch_masked(axes, cells.masked, extent)
                axes.add_patch(_frame(left, top))
        _label_heads(axes, positions, across, down)
        assert image is not None
        canvas.add_colour_bar(figure, image, across * square + 0.1, 0, min(max(down * square, 1.0), 3.0), "weight")
        longest = max(max(cells.values.shape[1:]) for cells in layers.values())
        figure.set_dpi(max(canvas.DPI, min(400, math.ceil(1.02 * longest / (square * (1 - HEAD_GAP))))))
        return canvas.finish_figure(figure, title, [*notes, *describe_cells(layers.values())])


@checks.renamed_arguments(most="bounds")
def entropy_picture(entropies: Mapping[str, Sequence[float] | Any], bounds: Mapping[str, float] | None = None, *,
                    title: str = "", notes: Sequence[str] = ()) -> "Figure":
    """A square for each head: dark where it attends to many tokens evenly, light where it attends to one.

    Args:
        entropies: the entropy of every head in nats, the mean over the queries, by the names of the layers.
        bounds: the largest possible entropy of a layer, such as log n for n tokens; the scale ends at the largest
            bound, and each is written beside its layer.
        title: shown above.
        notes: shown below the title.
    """
    given = {name: as_floats(f'entropies["{name}"]', values, 1, "(heads,)") for name, values in entropies.items()}
    bounds = bounds or {}
    if unknown := sorted(set(bounds) - set(given)):
        raise checks.wrong("bounds", "bounds of layers that have entropies", f'one of "{unknown[0]}"')
    positions, across, down = _head_positions({name: len(values) for name, values in given.items()})
    largest = max([0.0, *bounds.values(), *(float(values[np.isfinite(values)].max(initial=0.0))
                                            for values in given.values())])
    scale = ColourScale(0.0, largest, SEQUENTIAL)
    square = min(0.5, max(0.3, 9.0 / across))
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 0, 0, across * square, down * square)
        image = None
        for name, values in given.items():
            for (left, top), value in zip(positions[name], values, strict=True):
                extent = (left, left + 1 - HEAD_GAP, top + 1 - HEAD_GAP, top)
                image = canvas.draw_cells(axes, np.array([[value]]), scale, extent)
                axes.add_patch(_frame(left, top))
                if across <= MAX_PRINTED:
                    axes.text(left + HEAD_CENTRE, top + HEAD_CENTRE, f"{value:.2f}" if np.isfinite(value) else "–",
                              ha="center", va="center", fontsize=6.5,
                              color="white" if value > WHITE_TEXT_SHARE * largest else canvas.INK)
        _label_heads(axes, positions, across, down, {name: f" (at most {bound:.2f})" for name, bound in bounds.items()})
        assert image is not None
        height = min(max(down * square, 1.0), 3.0)
        canvas.add_colour_bar(figure, image, across * square + 0.1, 0, height, "entropy in nats")
        finite = all(np.isfinite(values).all() for values in given.values())
        return canvas.finish_figure(figure, title, notes if finite else [*notes, "pink: entropy not defined"])


def _head_positions(heads: Mapping[str, int]) -> tuple[dict[str, list[tuple[float, float]]], int, float]:
    """Left and top of each head's square, in squares, and the width and height of the sheet."""
    if not heads or not all(heads.values()):
        raise checks.wrong("layers", "at least one, with at least one head", f"{dict(heads)}")
    widest = max(heads.values())
    rows = sum(math.ceil(count / HEADS_PER_ROW) for count in heads.values())
    across = widest if widest <= HEADS_PER_ROW or rows > MAX_SHEET_ROWS else HEADS_PER_ROW
    positions, top = {}, 0.0
    for name, count in heads.items():
        positions[name] = [(float(head % across), top + head // across) for head in range(count)]
        top += math.ceil(count / across) + (LAYER_GAP if widest > across else 0.0)
    return positions, across, top


def _label_heads(axes: Any, positions: Mapping[str, list[tuple[float, float]]], across: int, down: float,
                 suffixes: Mapping[str, str] | None = None) -> None:
    """Write layers at the left and heads on top."""
    texts = [labels.word_label(name, 32) + (suffixes or {}).get(name, "") for name in positions]
    axes.set_yticks([squares[0][1] + HEAD_CENTRE for squares in positions.values()], texts, **canvas.text_style(texts))
    heads = range(0, across, max(1, math.ceil(across / 32)))
    axes.set_xticks([head + HEAD_CENTRE for head in heads], list(map(str, heads)))
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    widest = max(map(len, positions.values()))
    axes.set_xlabel("head" if widest <= across else f"head, and {across} more in each row below")
    axes.tick_params(length=0)
    axes.set_xlim(-HEAD_GAP, across)
    axes.set_ylim(down, -HEAD_GAP)
    axes.set_frame_on(False)


def _frame(left: float, top: float) -> Any:
    """A thin line around a square, because 0 is the colour of the paper."""
    from matplotlib.patches import Rectangle

    return Rectangle((left, top), 1 - HEAD_GAP, 1 - HEAD_GAP, fill=False, linewidth=0.5, edgecolor=canvas.FAINT)


def position_picture(encodings: Mapping[str, Any], *, title: str = "") -> "Figure":
    """Position encodings as maps: vectors (positions, features) by name, and the cosine similarity of positions.

    The similarity of sinusoidal encodings depends on the distance alone.
    """
    given = {name: as_floats(f'encodings["{name}"]', vectors, 2, "(positions, features)")
             for name, vectors in encodings.items()}
    if not given:
        raise checks.wrong("encodings", "at least one, by name", "empty")
    notes = []
    with canvas.new_figure() as figure:
        for number, (name, vectors) in enumerate(given.items()):
            top = number * (POSITION_INCHES + POSITION_BELOW)
            shown = labels.text_label(name, 40)
            cells = cells_from_weights(vectors, MAX_POSITIONS)
            _position_panel(figure, 0.0, top, cells.values, cells.size, ColourScale.of(cells.values),
                            ("feature", "value"), shown)
            cosines, step = _cosine_similarities(vectors)
            _position_panel(figure, POSITION_INCHES + POSITION_GAP + 0.4, top, cosines, step,
                            ColourScale.of(cosines, 1.0), ("position", "cosine"), f"{shown}: cosine similarity")
            if np.isnan(cosines).any():
                notes.append(f"{shown}: a vector of zeros has no cosine: pink")
            if cells.size > 1:
                notes.append(f"{shown}: each cell is the mean of {cells.size} × {cells.size} numbers")
            if step > 1:
                notes.append(f"{shown}: one position in {step} is compared")
        longest = max(max(image.get_size()) for axes in figure.axes for image in axes.images)
        figure.set_dpi(max(canvas.DPI, math.ceil(1.02 * longest / POSITION_INCHES)))
        return canvas.finish_figure(figure, title, notes)


def _position_panel(figure: "Figure", left: float, top: float, values: Floats, size: int, scale: ColourScale,
                    names: tuple[str, str], title: str) -> None:
    """One map; its axes count positions and features, not cells."""
    axes = canvas.add_panel(figure, left, top, POSITION_INCHES, POSITION_INCHES)
    down, across = values.shape
    image = canvas.draw_cells(axes, values, scale, (-0.5, across * size - 0.5, down * size - 0.5, -0.5))
    axes.set_xlabel(names[0])
    axes.set_ylabel("position")
    axes.set_title(title, fontsize=canvas.LABEL_SIZE + 1, **canvas.text_style([title]))
    canvas.add_colour_bar(figure, image, left + POSITION_INCHES + 0.1, top, POSITION_INCHES, names[1])


def _cosine_similarities(vectors: Floats) -> tuple[Floats, int]:
    """The cosine similarities of every `step`-th position, and the step."""
    step = max(1, math.ceil(len(vectors) / MAX_POSITIONS))
    sampled = vectors[::step]
    lengths = np.linalg.norm(sampled, axis=1, keepdims=True)
    directions = np.divide(sampled, lengths, out=np.full_like(sampled, np.nan), where=lengths > 0)
    return np.clip(directions @ directions.T, -1.0, 1.0), step


def trace_picture(trace: "Trace", view: str | None = None, *, image: Any = None) -> "Figure":
    """A view of a trace.

    Args:
        trace: with at least one attention.
        view: "map", the words of the best alignment; "patches"; "heads"; or "entropy". By default it is the first of
            `trace_views(trace)`.
        image: the pixels of the image, for the view "patches": (H, W), (H, W, 3), (1, H, W) or (3, H, W).
    """
    _check_trace(trace)
    available = trace_views(trace)
    name = available[0] if view is None else view
    draw = checks.pick("view", name, VIEWS)
    if name not in available:
        raise checks.wrong("view", "one that this trace has: " + ", ".join(f'"{one}"' for one in available),
                           f'"{name}"', "None of its sides is an image.")
    if image is None:
        return draw(trace)
    if name != "patches":
        raise checks.wrong("image", 'given for the view "patches" alone', f'given for "{name}"')
    return _patches_view(trace, image)


def trace_views(trace: "Trace") -> tuple[str, ...]:
    """The views that a trace has, the most informative one first."""
    patches = ["patches"] if any(trace.sides[one.keys].grid is not None for one in trace.attentions) else []
    pairs = trace.alignment is not None or any(one.queries != one.keys for one in trace.attentions)
    if pairs or sum(one.heads for one in trace.attentions) == 1:
        return ("map", *patches, "heads", "entropy")
    return (*patches, "heads", "entropy", "map")


def attention_picture(trace: "Trace", name: str, head: int | None = None) -> "Figure":
    """One attention of a trace, token by token: one head, from 0, or the mean of all heads."""
    _check_trace(trace)
    attention = checks.pick("name", name, {one.name: one for one in trace.attentions})
    if head is not None and (isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < attention.heads):
        raise checks.wrong("head", f"from 0 to {attention.heads - 1}, one of the heads of {attention.name}", repr(head))
    return map_picture(_attention_cells(attention, head, MAX_CELLS), trace.sides[attention.queries].tokens,
                       trace.sides[attention.keys].tokens, title=trace.title,
                       sides=(attention.queries, attention.keys), notes=_map_notes(trace, attention, head))


def trace_svg(trace: "Trace") -> str:
    """The view "map" as an SVG element, which needs no matplotlib."""
    from regard.inspection.trace import select_map

    _check_trace(trace)
    cells, rows, columns, notes = _trace_map(trace, select_map(trace), svg.MAX_CELLS)
    return svg.map_svg(cells, rows, columns, title=trace.title, notes=notes)


def trace_html(*traces: "Trace", height: int = FRAME_HEIGHT) -> str:
    """The page of one trace, or of two to compare, for a notebook: in a frame that may run its script and save files.

    Args:
        height: of the frame, in pixels; the reader can drag its lower edge.
    """
    from regard.inspection.page.document import page_html

    if not all(trace.attentions for trace in traces):
        return f"<p>{html.escape(labels.text_label(traces[0].title, 200) or 'trace')}</p><p>no attention</p>"
    page = base64.b64encode(page_html(traces, size_limit=NOTEBOOK_BYTES).encode()).decode()
    title = html.escape(labels.text_label(traces[0].title, 200) or "attention")
    # An address of its own, and not `srcdoc`: the page keeps its state after the # of its address.
    return (f'<iframe sandbox="allow-scripts allow-downloads" title="{title}" width="100%" height="{height}" '
            f'loading="lazy" style="border:1px solid #8884;border-radius:6px;resize:vertical;overflow:auto" '
            f'src="data:text/html;charset=utf-8;base64,{page}"></iframe>')


def attention_html(attention: "TracedAttention") -> str:
    """A small map of each head, for a notebook."""
    if attention.weight_count > NOTEBOOK_LIMIT:
        return _too_long_html(attention)
    return svg.heads_svg(attention.look.weights(), title=attention.name)


def _too_long_html(attention: "TracedAttention") -> str:
    sizes = f"{checks.plural(attention.heads, 'head')} of {attention.rows:,} × {attention.columns:,} weights"
    return (f"<p>{html.escape(attention.name)}: {sizes}, too many for a small map. <code>look.block_map(64)</code> "
            "gives means of blocks, and <code>regard look</code> shows all.</p>")


def _trace_map(trace: "Trace", selection: "MapSelection",
               max_cells: int) -> tuple[Cells, Sequence[str], Sequence[str], list[str]]:
    """Cells, rows, columns and notes of a map: by words, or by tokens if words are not known or tokens are many."""
    attention, notes = selection.attention, _map_notes(trace, selection.attention, selection.head)
    if selection.words is None or max(attention.rows, attention.columns) > MAX_CELLS:
        if trace.alignment is not None and trace.alignment.offset:
            notes.append(f"the row of a token is {trace.alignment.offset} further down")
        rows, columns = (trace.sides[side].tokens for side in (attention.queries, attention.keys))
        return _attention_cells(attention, selection.head, max_cells), rows, columns, notes
    if hidden := attention.columns - sum(word.last_token + 1 - word.first_token for word in selection.words[1]):
        notes.append(f"not shown: {checks.plural(hidden, 'token')} of {attention.keys} outside of words")
    weights = as_floats("weights", selection.weights(), 2, "(rows, columns)")
    return cells_from_weights(weights, max_cells), selection.rows, selection.columns, notes


def _map_view(trace: "Trace") -> "Figure":
    from regard.inspection.trace import select_map

    selection = select_map(trace)
    attention = selection.attention
    cells, rows, columns, notes = _trace_map(trace, selection, MAX_CELLS)
    return map_picture(cells, rows, columns, title=trace.title, sides=(attention.queries, attention.keys), notes=notes)


def _heads_view(trace: "Trace") -> "Figure":
    layers = {one.name: cells_from_record(one.look, MAX_HEAD_CELLS) for one in trace.attentions}
    return head_sheet(layers, title=trace.title, notes=_model_notes(trace))


def _entropy_view(trace: "Trace") -> "Figure":
    entropies, bounds, notes = {}, {}, _model_notes(trace)
    for attention in trace.attentions:
        heads = as_floats("entropy", attention.look.entropy(), 2, "(heads, rows)")
        entropies[attention.name] = heads.mean(axis=1)
        bound = _largest_entropy(attention)
        if bound is not None:
            bounds[attention.name] = bound
    if len(bounds) < len(entropies):
        notes.append("no maximum entropy: the weights need not sum to 1")
    return entropy_picture(entropies, bounds, title=trace.title, notes=notes)


def _patches_view(trace: "Trace", image: Any = None) -> "Figure":
    """The weights of the last attention over an image: those of its first token, or the mean over all tokens."""
    attention = [one for one in trace.attentions if trace.sides[one.keys].grid is not None][-1]
    side = trace.sides[attention.keys]
    assert side.grid is not None
    if image is None and side.image is not None:
        kept = side.image
        image = np.frombuffer(kept.pixels, np.uint8).reshape(kept.height, kept.width, kept.channels)
    if attention.queries == attention.keys and side.lead:
        weights, note = attention.look.rows(0), f"attention of the token {side.tokens[0]}"
    else:
        weights = attention.look.column_sums() / attention.rows
        note = f"attention averaged over {checks.plural(attention.rows, 'token')}"
    return patch_picture(weights, side.grid, lead=side.lead, image=image, title=trace.title,
                         notes=[*_model_notes(trace), attention.name, note])


VIEWS: dict[str, "Callable[[Trace], Figure]"] = {"map": _map_view, "patches": _patches_view, "heads": _heads_view,
                                                 "entropy": _entropy_view}


def _attention_cells(attention: "TracedAttention", head: int | None, max_cells: int) -> Cells:
    """Cells (r, c), at most `max_cells` each, of one head or of the mean of all."""
    if max(attention.rows, attention.columns) > max_cells:
        cells = cells_from_record(attention.look, max_cells)
        return cells._replace(values=_select_head(cells.values, head), sums=_select_head(cells.sums, head))
    chunk = max(1, WEIGHTS_AT_ONCE // max(1, attention.heads * attention.columns))
    if chunk >= attention.rows:
        parts: Iterable[Any] = [attention.look.weights()]
    else:  # all heads at once might not fit into memory
        parts = (attention.look.rows(list(range(start, min(start + chunk, attention.rows))))
                 for start in range(0, attention.rows, chunk))
    weights = [_select_head(as_floats("weights", part, 3, "(heads, rows, columns)"), head) for part in parts]
    cells = cells_from_weights(np.concatenate(weights), max_cells)
    return cells._replace(masked=canvas.masked_cells(attention.look))


def _select_head(values: Floats, head: int | None) -> Floats:
    return np.asarray(values.mean(axis=0) if head is None else values[head])


def _largest_entropy(attention: "TracedAttention") -> float | None:
    """The mean over the queries of log(number of visible keys); None if the entropy has no bound."""
    from regard.attention.look import Look
    from regard.attention.normalize import Softmax

    look = attention.look
    if not isinstance(look, Look):
        weights = look.given
        sums_to_one = float(weights.double().sum(dim=-1).max()) <= 1 + canvas.SUM_TOLERANCE
        return math.log(attention.columns) if bool((weights >= 0).all()) and sums_to_one else None
    if not isinstance(look.problem.normalize, Softmax):
        return None
    query, key = (tensor.new_zeros(*tensor.shape[:-1], 1) for tensor in (look.query, look.key))
    return float(Look(query, key, score="dot", mask=look.mask).entropy().double().mean())


def _map_notes(trace: "Trace", attention: "TracedAttention", head: int | None) -> list[str]:
    """The model, the attention and the head."""
    which = f"head {head}" if head is not None else f"mean of {attention.heads} heads" if attention.heads > 1 else ""
    return [*_model_notes(trace), ", ".join(filter(None, (attention.name, which)))]


def _model_notes(trace: "Trace") -> list[str]:
    return [trace.model] if trace.model else []


def _check_trace(trace: "Trace") -> None:
    if not trace.attentions:
        raise checks.wrong("trace", "a trace with at least one attention", "one without any")
