"""Pictures of a trace: the map that shows most, all heads, their entropies, the patches of an image, or one attention.

    trace = Trace.load("dogs.safetensors")
    save(trace_picture(trace), "dogs.png")
    save(trace_picture(trace, "entropy"), "entropy.pdf")
    save(attention_picture(trace, "decoder.2.cross", head=3), "head.svg")
    trace_svg(trace)                                                            a small map for a notebook

It asks a trace for what a picture needs, and for no more: a long one is asked for means of blocks, never for a whole
matrix. It does not know models, nor how anything is drawn.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard import checks
from regard.inspection.pictures import cells, heads, maps, patches, svg
from regard.inspection.pictures.cells import Cells, Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.inspection.trace.trace import Attention, Trace

AT_ONCE = 4_000_000
"""Weights that are asked for at once."""


def trace_picture(trace: "Trace", view: str | None = None, *, image: Any = None) -> "Figure":
    """A view of the trace.

    Args:
        trace: with at least one attention.
        view: "map", the words of one attention against each other, where they are aligned best; "patches"; "heads";
            or "entropy". Without one it is the first of `views(trace)`.
        image: the pixels that the patches are of, for that view: (H, W), (H, W, 3), (1, H, W) or (3, H, W).
    """
    _check(trace)
    found = views(trace)
    chosen = found[0] if view is None else view
    draw = checks.pick("view", chosen, VIEWS)
    if chosen not in found:
        raise checks.wrong("view", "one that this trace has: " + ", ".join(f'"{name}"' for name in found),
                           f'"{chosen}"', "None of its sides is an image.")
    if image is None:
        return draw(trace)
    if chosen != "patches":
        raise checks.wrong("image", 'given for the view "patches" alone', f'given for "{chosen}"')
    return _patches(trace, image)


def views(trace: "Trace") -> tuple[str, ...]:
    """The views that a trace has, the one that tells most first."""
    patches = ["patches"] if any(trace.sides[one.keys].grid is not None for one in trace.attentions) else []
    pairs = trace.alignment is not None or any(one.queries != one.keys for one in trace.attentions)
    if pairs or sum(one.heads for one in trace.attentions) == 1:
        return ("map", *patches, "heads", "entropy")
    return (*patches, "heads", "entropy", "map")


def attention_picture(trace: "Trace", name: str, head: int | None = None) -> "Figure":
    """One attention, token by token: of one head, from 0, or the mean of all."""
    _check(trace)
    one = checks.pick("name", name, {each.name: each for each in trace.attentions})
    _check_head(one, head)
    return maps.map_picture(_cells(one, head, maps.MOST), trace.sides[one.queries].tokens,
                            trace.sides[one.keys].tokens, title=trace.title, sides=(one.queries, one.keys),
                            notes=_about(trace, one, head))


def trace_svg(trace: "Trace") -> str:
    """The view "map" as an SVG element for a notebook, which needs no matplotlib."""
    _check(trace)
    found = _mapped(trace, svg.MOST)
    return svg.map_svg(found.drawn, found.rows, found.columns, title=trace.title, notes=found.notes)


class _Mapped(NamedTuple):
    """The one map of a trace."""

    drawn: Cells
    rows: Sequence[str]
    columns: Sequence[str]
    sides: tuple[str, str]
    notes: list[str]


def _map(trace: "Trace") -> "Figure":
    found = _mapped(trace, maps.MOST)
    return maps.map_picture(found.drawn, found.rows, found.columns, title=trace.title, sides=found.sides,
                            notes=found.notes)


def _mapped(trace: "Trace", most: int) -> _Mapped:
    """Words against words, or tokens where the words are not known or the tokens too many."""
    from regard.inspection.chosen import chosen

    found = chosen(trace)
    one, notes = found.attention, _about(trace, found.attention, found.head)
    if found.words is None or max(one.rows, one.columns) > maps.MOST:
        if trace.alignment is not None and trace.alignment.offset:
            notes.append(f"the row that belongs to a token is {trace.alignment.offset} further down")
        return _Mapped(_cells(one, found.head, most), trace.sides[one.queries].tokens, trace.sides[one.keys].tokens,
                       (one.queries, one.keys), notes)
    if hidden := one.columns - sum(word.last_token + 1 - word.first_token for word in found.words[1]):
        notes.append(f"not shown: {hidden} token{'s' * (hidden > 1)} of {one.keys} in no word")
    weights = cells.floats("weights", found.weights(), 2, "(rows, columns)")
    return _Mapped(cells.of_weights(weights, most), found.rows, found.columns, (one.queries, one.keys), notes)


def _heads(trace: "Trace") -> "Figure":
    return heads.sheet({one.name: cells.of_look(one.look, heads.MOST) for one in trace.attentions}, title=trace.title,
                       notes=_model(trace))


def _entropy(trace: "Trace") -> "Figure":
    entropies, most, notes = {}, {}, _model(trace)
    for one in trace.attentions:
        entropies[one.name] = cells.floats("entropy", one.look.entropy(), 2, "(heads, rows)").mean(axis=1)
        bound = _largest_entropy(one)
        if bound is not None:
            most[one.name] = bound
    if len(most) < len(entropies):
        notes.append("weights that need not sum to 1 have no largest entropy")
    return heads.entropy_picture(entropies, most, title=trace.title, notes=notes)


def _patches(trace: "Trace", image: Any = None) -> "Figure":
    """Of the last attention to an image: what its first token looks at, or what all look at on average."""
    one = [each for each in trace.attentions if trace.sides[each.keys].grid is not None][-1]
    side = trace.sides[one.keys]
    assert side.grid is not None
    if one.queries == one.keys and side.lead:
        weights, who = one.look.rows(0), f"what the token {side.tokens[0]} looks at"
    else:
        weights, who = one.look.column_sums() / one.rows, f"what {one.rows} tokens look at, on average"
    return patches.patch_picture(weights, side.grid, lead=side.lead, image=image, title=trace.title,
                                 notes=[*_model(trace), one.name, who])


VIEWS: dict[str, "Callable[[Trace], Figure]"] = {"map": _map, "patches": _patches, "heads": _heads, "entropy": _entropy}


def _cells(one: "Attention", head: int | None, most: int) -> Cells:
    """(r, c), at most `most` each, of one head or of the mean of all."""
    if max(one.rows, one.columns) > most:
        drawn = cells.of_look(one.look, most)
        return drawn.one(_one(drawn.values, head), _one(drawn.sums, head))
    chunk = max(1, AT_ONCE // max(1, one.heads * one.columns))
    if chunk >= one.rows:
        weights = [_one(_numbers(one.look.weights()), head)]
    else:  # all heads at once might not fit into memory
        weights = [_one(_numbers(one.look.rows(list(range(start, min(start + chunk, one.rows))))), head)
                   for start in range(0, one.rows, chunk)]
    return cells.of_weights(np.concatenate(weights), most)


def _one(values: Floats, head: int | None) -> Floats:
    return np.asarray(values.mean(axis=0) if head is None else values[head])


def _numbers(weights: Any) -> Floats:
    return cells.floats("weights", weights, 3, "(heads, rows, columns)")


def _largest_entropy(one: "Attention") -> float | None:
    """On average over the queries: the logarithm of how many keys each may look at. None where there is no bound."""
    from regard.attention.look import Look
    from regard.attention.normalize import Softmax

    if not isinstance(one.look, Look):
        weights = one.look.given
        shares = bool((weights >= 0).all()) and float(weights.double().sum(dim=-1).max()) <= 1 + cells.CLOSE
        return math.log(one.columns) if shares else None
    if not isinstance(one.look.problem.normalize, Softmax):
        return None
    query, key = (tensor.new_zeros(*tensor.shape[:-1], 1) for tensor in (one.look.query, one.look.key))
    return float(Look(query, key, score="dot", mask=one.look.mask).entropy().double().mean())


def _about(trace: "Trace", one: "Attention", head: int | None) -> list[str]:
    """Which weights these are."""
    which = f"head {head}" if head is not None else f"mean of {one.heads} heads" if one.heads > 1 else ""
    return [*_model(trace), ", ".join(filter(None, (one.name, which)))]


def _model(trace: "Trace") -> list[str]:
    return [trace.model] if trace.model else []


def _check(trace: "Trace") -> None:
    if not trace.attentions:
        raise checks.wrong("trace", "one with at least one attention", "one without any")


def _check_head(one: "Attention", head: int | None) -> None:
    if head is not None and (isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < one.heads):
        raise checks.wrong("head", f"one of the {one.heads} heads of {one.name}, from 0", repr(head))
