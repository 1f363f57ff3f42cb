"""Matrices as pictures: one attention map, all heads, their entropies, position encodings, and the views of a trace.

    alignment_picture(weights, ["le", "chat", "noir"], ["the", "black", "cat"])
    heads_picture({"decoder.0.cross": weights, "decoder.1.cross": weights})         weights (heads, rows, columns)
    entropy_picture({"decoder.0.cross": [0.4, 1.9]}, {"decoder.0.cross": 2.3})      nats, and the largest possible
    position_picture({"sinusoidal": vectors, "learned": table})                     vectors (positions, features)
    trace_picture(trace, "entropy")
    attention_picture(trace, "decoder.2.cross", head=3)

White is 0, and a colour bar shows the scale. Of many words some are labelled, and the picture says how many; a map of
more than 2,000 rows or columns shows means of blocks, and says so. A trace is asked only for what a picture needs: a
long one for means of blocks, never for a whole matrix. The first alignment map of this kind is figure 3 of Bahdanau, Cho
and Bengio (2015). This file does not know models.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard import checks
from regard.inspection import labels
from regard.inspection import labels as signs
from regard.inspection.pictures import canvas, patches, svg
from regard.inspection.pictures import canvas as cells
from regard.inspection.pictures.canvas import GREYS, Cells, ColourScale, Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from regard.inspection.trace import Trace
    from regard.inspection.trace_format import TracedAttention


MAX_CELLS = 2000
"""Rows and columns that are drawn one by one."""
MAX_LABELS = 60
"""Rows and columns that have a word each."""
CELL_INCHES, MAP_INCHES = 0.32, 8.4
"""Inches of a cell at most, and of the whole map."""
LETTER_INCHES = 0.075
"""Inches that a letter takes."""


def alignment_picture(weights: Any, rows: Sequence[str], columns: Sequence[str], *, title: str = "",
                      sides: tuple[str, str] = ("", ""), largest: float | None = None) -> "Figure":
    """The weights (rows, columns) of words that were made on words that were read.

    Args:
        weights: a tensor, an array or lists.
        rows: the words that look.
        columns: the words that are looked at.
        title: shown above.
        sides: what the rows and what the columns are, such as ("French", "English").
        largest: what the darkest colour stands for, to compare pictures; without it the largest weight.
    """
    given = cells.as_floats("weights", weights, 2, "(rows, columns)")
    if given.shape != (len(rows), len(columns)):
        raise checks.wrong("weights", f"of shape ({len(rows)}, {len(columns)}), one row and one column for each word",
                           f"of shape {checks.shape(given)}")
    return map_picture(cells.cells_from_weights(given, MAX_CELLS), rows, columns, title=title, sides=sides, largest=largest)


def map_picture(drawn: Cells, rows: Sequence[str], columns: Sequence[str], *, title: str = "",
                sides: tuple[str, str] = ("", ""), largest: float | None = None,
                notes: Sequence[str] = ()) -> "Figure":
    """Cells (r, c) with the words of all rows and columns, not only of those that are drawn."""
    scale = ColourScale.of(drawn.values, largest)
    cell = min(CELL_INCHES, MAP_INCHES / max(1, drawn.rows, drawn.columns))
    width, height = (max(count * cell, min(count, MAX_LABELS) * MAP_INCHES / MAX_LABELS) for count in (drawn.columns, drawn.rows))
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 0, 0, width, height)
        image = canvas.draw_cells(axes, drawn.values, scale)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        label_columns(axes, columns, drawn.size, width / max(1, drawn.columns))
        label_rows(axes, rows, drawn.size)
        left, above = (signs.text_label(side, 40) for side in sides)
        axes.set_ylabel(left, **canvas.text_style([left]))
        axes.set_xlabel(above, **canvas.text_style([above]))
        canvas.add_colour_bar(figure, image, width + 0.15, 0, min(max(height, 1.0), 3.0), "weight")
        # Every cell has a pixel of its own: one that had none would not be seen.
        figure.set_dpi(max(canvas.DPI, math.ceil(1.02 * max(drawn.values.shape[1] / width,
                                                            drawn.values.shape[0] / height))))
        thinned = signs.describe_label_step(len(rows), len(columns), drawn.size, MAX_LABELS)
        return canvas.finish_figure(figure, title, [*notes, *cells.describe_cells([drawn]), *thinned])


def label_rows(axes: "Axes", words: Sequence[str], size: int = 1) -> None:
    """The words at the left."""
    places, labels = signs.axis_labels(words, size, MAX_LABELS)
    axes.set_yticks(places, labels, **canvas.text_style(labels))
    axes.tick_params(axis="y", length=2 if signs.label_step(len(words), MAX_LABELS, size) > 1 else 0)


def label_columns(axes: "Axes", words: Sequence[str], size: int = 1, cell: float = CELL_INCHES) -> None:
    """The words on top: upright where cells of this breadth have room for them, or else turned."""
    places, labels = signs.axis_labels(words, size, MAX_LABELS)
    room = cell * signs.label_step(len(words), MAX_LABELS, size) - LETTER_INCHES
    turned = any(signs.display_width(label) * LETTER_INCHES > room for label in labels)
    axes.set_xticks(places, labels, rotation=90 if turned else 0, **canvas.text_style(labels))
    axes.tick_params(axis="x", length=2 if signs.label_step(len(words), MAX_LABELS, size) > 1 else 0)


# ---- heads: All heads of all layers on one sheet, and how sharply each of them looks.
#
#     heads_picture({"decoder.0.cross": weights, "decoder.1.cross": weights})         weights (heads, rows, columns)
#     entropy_picture({"decoder.0.cross": [0.4, 1.9]}, {"decoder.0.cross": 2.3})      nats, and the most there could be
#
# A row is a layer, a square is a head; all squares have one scale, so they can be compared. Many heads go on in a second
# row. It knows names and numbers; it does not know models or traces.

MAX_HEAD_CELLS = 96
"""Rows and columns of a small map that are drawn one by one."""
HEADS_PER_ROW, MAX_SHEET_ROWS = 16, 60
"""Heads beside each other, where that makes no more rows than the second."""
HEAD_GAP, LAYER_GAP = 0.12, 0.35
"""Between two squares, and between two layers of several rows, in squares."""
HEAD_CENTRE = (1 - HEAD_GAP) / 2
WHITE_TEXT_SHARE = 0.59
"""Share of the largest above which white can be read better than black."""
MAX_PRINTED = 24
"""Heads beside each other whose entropies are written into their squares."""


def heads_picture(layers: Mapping[str, Any], *, title: str = "") -> "Figure":
    """A small map for each head, from weights (heads, rows, columns) by the names of the layers."""
    return head_sheet({name: cells.cells_from_weights(cells.as_floats(f'layers["{name}"]', weights, 3, "(heads, rows, columns)"), MAX_HEAD_CELLS)
                  for name, weights in layers.items()}, title=title)


def head_sheet(layers: Mapping[str, Cells], *, title: str = "", notes: Sequence[str] = ()) -> "Figure":
    """The same from cells (heads, r, c)."""
    places, across, down = _head_positions({name: len(drawn.values) for name, drawn in layers.items()})
    scale = ColourScale.of(np.concatenate([drawn.values.ravel() for drawn in layers.values()]))
    square = min(0.85, max(0.3, 9.0 / across))
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 0, 0, across * square, down * square)
        image = None
        for name, drawn in layers.items():
            for (left, top), values in zip(places[name], drawn.values, strict=True):
                image = canvas.draw_cells(axes, values, scale, (left, left + 1 - HEAD_GAP, top + 1 - HEAD_GAP, top))
                axes.add_patch(_frame(left, top))
        _label_heads(axes, places, across, down)
        assert image is not None
        canvas.add_colour_bar(figure, image, across * square + 0.1, 0, min(max(down * square, 1.0), 3.0), "weight")
        most = max(max(drawn.values.shape[1:]) for drawn in layers.values())
        figure.set_dpi(max(canvas.DPI, min(400, math.ceil(1.02 * most / (square * (1 - HEAD_GAP))))))
        return canvas.finish_figure(figure, title, [*notes, *cells.describe_cells(layers.values())])


def entropy_picture(entropies: Mapping[str, Sequence[float] | Any], most: Mapping[str, float] | None = None, *,
                    title: str = "", notes: Sequence[str] = ()) -> "Figure":
    """A square for each head: dark where it looks at many tokens alike, light where it looks at one.

    Args:
        entropies: of every head in nats, the mean over the queries, by the names of the layers.
        most: the largest that the entropies of a layer can be, such as log n for n tokens; the scale ends at the
            largest of them, and each is written beside its layer.
        title: shown above.
        notes: shown below the title.
    """
    given = {name: cells.as_floats(f'entropies["{name}"]', values, 1, "(heads,)") for name, values in entropies.items()}
    bounds = most or {}
    if unknown := sorted(set(bounds) - set(given)):
        raise checks.wrong("most", "of the layers that have entropies", f'of "{unknown[0]}"')
    places, across, down = _head_positions({name: len(values) for name, values in given.items()})
    largest = max([0.0, *bounds.values(), *(float(values[np.isfinite(values)].max(initial=0.0))
                                            for values in given.values())])
    scale = ColourScale(0.0, largest, GREYS)
    square = min(0.5, max(0.3, 9.0 / across))
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 0, 0, across * square, down * square)
        image = None
        for name, values in given.items():
            for (left, top), value in zip(places[name], values, strict=True):
                image = canvas.draw_cells(axes, np.array([[value]]), scale, (left, left + 1 - HEAD_GAP, top + 1 - HEAD_GAP, top))
                axes.add_patch(_frame(left, top))
                if across <= MAX_PRINTED:
                    axes.text(left + HEAD_CENTRE, top + HEAD_CENTRE, f"{value:.2f}" if np.isfinite(value) else "–", ha="center",
                              va="center", fontsize=6.5, color="white" if value > WHITE_TEXT_SHARE * largest else canvas.INK)
        _label_heads(axes, places, across, down, {name: f" (at most {bound:.2f})" for name, bound in bounds.items()})
        assert image is not None
        canvas.add_colour_bar(figure, image, across * square + 0.1, 0, min(max(down * square, 1.0), 3.0), "entropy in nats")
        finite = all(np.isfinite(values).all() for values in given.values())
        return canvas.finish_figure(figure, title, notes if finite else [*notes, "pink: weights that have no entropy"])


def _head_positions(heads: Mapping[str, int]) -> tuple[dict[str, list[tuple[float, float]]], int, float]:
    """The left and the top of each square, in squares, and how many are beside each other and below each other."""
    if not heads or not all(heads.values()):
        raise checks.wrong("layers", "at least one, with at least one head", f"{dict(heads)}")
    widest = max(heads.values())
    rows = sum(math.ceil(count / HEADS_PER_ROW) for count in heads.values())
    across = widest if widest <= HEADS_PER_ROW or rows > MAX_SHEET_ROWS else HEADS_PER_ROW
    places, top = {}, 0.0
    for name, count in heads.items():
        places[name] = [(float(head % across), top + head // across) for head in range(count)]
        top += math.ceil(count / across) + (LAYER_GAP if widest > across else 0.0)
    return places, across, top


def _label_heads(axes: Any, places: Mapping[str, list[tuple[float, float]]], across: int, down: float,
          more: Mapping[str, str] | None = None) -> None:
    """Layers at the left, heads on top, and no frame around all."""
    labels = [signs.word_label(name, 32) + (more or {}).get(name, "") for name in places]
    axes.set_yticks([squares[0][1] + HEAD_CENTRE for squares in places.values()], labels, **canvas.text_style(labels))
    step = max(1, math.ceil(across / 32))
    heads = range(0, across, step)
    axes.set_xticks([head + HEAD_CENTRE for head in heads], list(map(str, heads)))
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    widest = max(map(len, places.values()))
    axes.set_xlabel("head" if widest <= across else f"head, and {across} more in each row below")
    axes.tick_params(length=0)
    axes.set_xlim(-HEAD_GAP, across)
    axes.set_ylim(down, -HEAD_GAP)
    axes.set_frame_on(False)


def _frame(left: float, top: float) -> Any:
    """A thin line around a square: 0 is as white as the paper."""
    from matplotlib.patches import Rectangle

    return Rectangle((left, top), 1 - HEAD_GAP, 1 - HEAD_GAP, fill=False, linewidth=0.5, edgecolor=canvas.FAINT)


# ---- positions: Position encodings as maps: a row for each position, a column for each feature.
#
#     vectors = Sinusoidal(64)(torch.arange(100))
#     position_picture({"sinusoidal": vectors, "learned": table})
#
# Beside each map is how alike the vectors of two positions are (the cosine of their angle): for sines and cosines that
# depends on the distance alone. It knows vectors; it does not know encodings.

POSITION_INCHES, POSITION_GAP, POSITION_BELOW = 3.0, 0.95, 0.75
MAX_POSITIONS = 1000
"""Positions and features that are drawn one by one."""


def position_picture(encodings: Mapping[str, Any], *, title: str = "") -> "Figure":
    """The vectors (positions, features) by the names of their encodings."""
    given = {name: cells.as_floats(f'encodings["{name}"]', vectors, 2, "(positions, features)")
             for name, vectors in encodings.items()}
    if not given:
        raise checks.wrong("encodings", "at least one, by name", "empty")
    notes = []
    with canvas.new_figure() as figure:
        for number, (name, vectors) in enumerate(given.items()):
            top = number * (POSITION_INCHES + POSITION_BELOW)
            shown = labels.text_label(name, 40)
            drawn = cells.cells_from_weights(vectors, MAX_POSITIONS)
            _position_panel(figure, 0.0, top, drawn.values, drawn.size, ColourScale.of(drawn.values), ("feature", "value"), shown)
            like, size = _cosine_similarities(vectors)
            _position_panel(figure, POSITION_INCHES + POSITION_GAP + 0.4, top, like, size, ColourScale.of(like, 1.0), ("position", "cosine"),
                   f"{shown}: how alike")
            if np.isnan(like).any():
                notes.append(f"{shown}: a vector of zeros is like none: pink")
            if drawn.size > 1:
                notes.append(f"{shown}: each cell is the mean of {drawn.size} × {drawn.size} numbers")
            if size > 1:
                notes.append(f"{shown}: one position in {size} is compared")
        most = max(max(image.get_size()) for axes in figure.axes for image in axes.images)
        figure.set_dpi(max(canvas.DPI, math.ceil(1.02 * most / POSITION_INCHES)))
        return canvas.finish_figure(figure, title, notes)


def _position_panel(figure: "Figure", left: float, top: float, values: Floats, size: int, scale: ColourScale,
           names: tuple[str, str], title: str) -> None:
    """One map; its axes count positions and features, whatever a cell stands for."""
    axes = canvas.add_panel(figure, left, top, POSITION_INCHES, POSITION_INCHES)
    down, across = values.shape
    image = canvas.draw_cells(axes, values, scale, (-0.5, across * size - 0.5, down * size - 0.5, -0.5))
    axes.set_xlabel(names[0])
    axes.set_ylabel("position")
    axes.set_title(title, fontsize=canvas.LABEL_SIZE + 1, **canvas.text_style([title]))
    canvas.add_colour_bar(figure, image, left + POSITION_INCHES + 0.1, top, POSITION_INCHES, names[1])


def _cosine_similarities(vectors: Floats) -> tuple[Floats, int]:
    """The cosines of the angles between vectors, of all positions or of every so many."""
    step = max(1, math.ceil(len(vectors) / MAX_POSITIONS))
    chosen = vectors[::step]
    lengths = np.linalg.norm(chosen, axis=1, keepdims=True)
    directions = np.divide(chosen, lengths, out=np.full_like(chosen, np.nan), where=lengths > 0)
    return np.clip(directions @ directions.T, -1.0, 1.0), step


# ---- traces: Pictures of a trace: the map that shows most, all heads, their entropies, the patches of an image, or one attention.
#
#     trace = Trace.load("dogs.safetensors")
#     save(trace_picture(trace), "dogs.png")
#     save(trace_picture(trace, "entropy"), "entropy.pdf")
#     save(attention_picture(trace, "decoder.2.cross", head=3), "head.svg")
#     trace_svg(trace)                                                            a small map for a notebook
#
# It asks a trace for what a picture needs, and for no more: a long one is asked for means of blocks, never for a whole
# matrix. It does not know models, nor how anything is drawn.

WEIGHTS_AT_ONCE = 4_000_000
"""Weights that are asked for at once."""


def trace_picture(trace: "Trace", view: str | None = None, *, image: Any = None) -> "Figure":
    """A view of the trace.

    Args:
        trace: with at least one attention.
        view: "map", the words of one attention against each other, where they are aligned best; "patches"; "heads";
            or "entropy". Without one it is the first of `views(trace)`.
        image: the pixels that the patches are of, for that view: (H, W), (H, W, 3), (1, H, W) or (3, H, W).
    """
    _check_trace(trace)
    found = trace_views(trace)
    chosen = found[0] if view is None else view
    draw = checks.pick("view", chosen, VIEWS)
    if chosen not in found:
        raise checks.wrong("view", "one that this trace has: " + ", ".join(f'"{name}"' for name in found),
                           f'"{chosen}"', "None of its sides is an image.")
    if image is None:
        return draw(trace)
    if chosen != "patches":
        raise checks.wrong("image", 'given for the view "patches" alone', f'given for "{chosen}"')
    return _patches_view(trace, image)


def trace_views(trace: "Trace") -> tuple[str, ...]:
    """The views that a trace has, the one that tells most first."""
    patches = ["patches"] if any(trace.sides[one.keys].grid is not None for one in trace.attentions) else []
    pairs = trace.alignment is not None or any(one.queries != one.keys for one in trace.attentions)
    if pairs or sum(one.heads for one in trace.attentions) == 1:
        return ("map", *patches, "heads", "entropy")
    return (*patches, "heads", "entropy", "map")


def attention_picture(trace: "Trace", name: str, head: int | None = None) -> "Figure":
    """One attention, token by token: of one head, from 0, or the mean of all."""
    _check_trace(trace)
    one = checks.pick("name", name, {each.name: each for each in trace.attentions})
    _check_head(one, head)
    return map_picture(_attention_cells(one, head, MAX_CELLS), trace.sides[one.queries].tokens,
                            trace.sides[one.keys].tokens, title=trace.title, sides=(one.queries, one.keys),
                            notes=_map_notes(trace, one, head))


def trace_svg(trace: "Trace") -> str:
    """The view "map" as an SVG element for a notebook, which needs no matplotlib."""
    _check_trace(trace)
    found = _trace_map(trace, svg.MAX_CELLS)
    return svg.map_svg(found.drawn, found.rows, found.columns, title=trace.title, notes=found.notes)


class _TraceMap(NamedTuple):
    """The one map of a trace."""

    drawn: Cells
    rows: Sequence[str]
    columns: Sequence[str]
    sides: tuple[str, str]
    notes: list[str]


def _map_view(trace: "Trace") -> "Figure":
    found = _trace_map(trace, MAX_CELLS)
    return map_picture(found.drawn, found.rows, found.columns, title=trace.title, sides=found.sides,
                            notes=found.notes)


def _trace_map(trace: "Trace", most: int) -> _TraceMap:
    """Words against words, or tokens where the words are not known or the tokens too many."""
    from regard.inspection.trace import select_map

    found = select_map(trace)
    one, notes = found.attention, _map_notes(trace, found.attention, found.head)
    if found.words is None or max(one.rows, one.columns) > MAX_CELLS:
        if trace.alignment is not None and trace.alignment.offset:
            notes.append(f"the row that belongs to a token is {trace.alignment.offset} further down")
        return _TraceMap(_attention_cells(one, found.head, most), trace.sides[one.queries].tokens, trace.sides[one.keys].tokens,
                       (one.queries, one.keys), notes)
    if hidden := one.columns - sum(word.last_token + 1 - word.first_token for word in found.words[1]):
        notes.append(f"not shown: {hidden} token{'s' * (hidden > 1)} of {one.keys} in no word")
    weights = canvas.as_floats("weights", found.weights(), 2, "(rows, columns)")
    return _TraceMap(canvas.cells_from_weights(weights, most), found.rows, found.columns, (one.queries, one.keys), notes)


def _heads_view(trace: "Trace") -> "Figure":
    return head_sheet({one.name: canvas.cells_from_record(one.look, MAX_HEAD_CELLS) for one in trace.attentions}, title=trace.title,
                       notes=_model_notes(trace))


def _entropy_view(trace: "Trace") -> "Figure":
    entropies, most, notes = {}, {}, _model_notes(trace)
    for one in trace.attentions:
        entropies[one.name] = canvas.as_floats("entropy", one.look.entropy(), 2, "(heads, rows)").mean(axis=1)
        bound = _largest_entropy(one)
        if bound is not None:
            most[one.name] = bound
    if len(most) < len(entropies):
        notes.append("weights that need not sum to 1 have no largest entropy")
    return entropy_picture(entropies, most, title=trace.title, notes=notes)


def _patches_view(trace: "Trace", image: Any = None) -> "Figure":
    """Of the last attention to an image: what its first token looks at, or what all look at on average."""
    one = [each for each in trace.attentions if trace.sides[each.keys].grid is not None][-1]
    side = trace.sides[one.keys]
    assert side.grid is not None
    if one.queries == one.keys and side.lead:
        weights, who = one.look.rows(0), f"what the token {side.tokens[0]} looks at"
    else:
        weights, who = one.look.column_sums() / one.rows, f"what {one.rows} tokens look at, on average"
    return patches.patch_picture(weights, side.grid, lead=side.lead, image=image, title=trace.title,
                                 notes=[*_model_notes(trace), one.name, who])


VIEWS: dict[str, "Callable[[Trace], Figure]"] = {"map": _map_view, "patches": _patches_view, "heads": _heads_view, "entropy": _entropy_view}


def _attention_cells(one: "TracedAttention", head: int | None, most: int) -> Cells:
    """(r, c), at most `most` each, of one head or of the mean of all."""
    if max(one.rows, one.columns) > most:
        drawn = canvas.cells_from_record(one.look, most)
        return drawn.one(_select_head(drawn.values, head), _select_head(drawn.sums, head))
    chunk = max(1, WEIGHTS_AT_ONCE // max(1, one.heads * one.columns))
    if chunk >= one.rows:
        weights = [_select_head(_head_floats(one.look.weights()), head)]
    else:  # all heads at once might not fit into memory
        weights = [_select_head(_head_floats(one.look.rows(list(range(start, min(start + chunk, one.rows))))), head)
                   for start in range(0, one.rows, chunk)]
    return canvas.cells_from_weights(np.concatenate(weights), most)


def _select_head(values: Floats, head: int | None) -> Floats:
    return np.asarray(values.mean(axis=0) if head is None else values[head])


def _head_floats(weights: Any) -> Floats:
    return canvas.as_floats("weights", weights, 3, "(heads, rows, columns)")


def _largest_entropy(one: "TracedAttention") -> float | None:
    """On average over the queries: the logarithm of how many keys each may look at. None where there is no bound."""
    from regard.attention.look import Look
    from regard.attention.normalize import Softmax

    if not isinstance(one.look, Look):
        weights = one.look.given
        shares = bool((weights >= 0).all()) and float(weights.double().sum(dim=-1).max()) <= 1 + canvas.SUM_TOLERANCE
        return math.log(one.columns) if shares else None
    if not isinstance(one.look.problem.normalize, Softmax):
        return None
    query, key = (tensor.new_zeros(*tensor.shape[:-1], 1) for tensor in (one.look.query, one.look.key))
    return float(Look(query, key, score="dot", mask=one.look.mask).entropy().double().mean())


def _map_notes(trace: "Trace", one: "TracedAttention", head: int | None) -> list[str]:
    """Which weights these are."""
    which = f"head {head}" if head is not None else f"mean of {one.heads} heads" if one.heads > 1 else ""
    return [*_model_notes(trace), ", ".join(filter(None, (one.name, which)))]


def _model_notes(trace: "Trace") -> list[str]:
    return [trace.model] if trace.model else []


def _check_trace(trace: "Trace") -> None:
    if not trace.attentions:
        raise checks.wrong("trace", "one with at least one attention", "one without any")


def _check_head(one: "TracedAttention", head: int | None) -> None:
    if head is not None and (isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < one.heads):
        raise checks.wrong("head", f"one of the {one.heads} heads of {one.name}, from 0", repr(head))
