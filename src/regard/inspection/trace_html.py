"""How traces show themselves in a notebook: as small maps, in HTML that needs no other package.

    of_attention(attention)    a small map for each head
    of_trace(trace)            which word is which, or where that is not known the last attention, with its tokens

What is too long for a small map is told in words. It knows traces; how maps are drawn is known to `pictures.svg`.
"""

import html
from typing import TYPE_CHECKING

from regard.inspection.pictures import svg
from regard.inspection.trace_parts import Attention

if TYPE_CHECKING:  # a trace asks for its own picture
    from regard.inspection.trace import Trace

MOST = 1 << 22
"""Weights that are computed for a notebook."""


def of_attention(attention: Attention) -> str:
    """The maps of all heads."""
    if attention.heads * attention.rows * attention.columns > MOST:
        return _too_long(attention)
    return svg.heads_svg(attention.look.weights(), title=attention.name)


def of_trace(trace: "Trace") -> str:
    """Its title and one map."""
    title = html.escape(trace.title or "trace")
    if not trace.attentions:
        return f"<p>{title}: no attention</p>"
    pointer = trace.alignment
    one = trace.attentions[-1 if pointer is None else pointer.attention]
    if one.heads * one.rows * one.columns > MOST:
        return f"<p>{title}</p>{_too_long(one)}"
    weights = one.look.weights()
    head = None if pointer is None else pointer.head
    which = "the mean of all heads" if head is None else f"head {head}"
    picture = svg.heat_svg(weights.mean(dim=0) if head is None else weights[head], trace.sides[one.queries].tokens,
                           trace.sides[one.keys].tokens, title=f"{one.name}, {which}")
    return f"<p>{title}</p><p><small>{html.escape(one.name)}, {which}</small></p>{picture}"


def _too_long(one: Attention) -> str:
    sizes = f"{one.heads} heads of {one.rows:,} × {one.columns:,} weights"
    return (f"<p>{html.escape(one.name)}: {sizes}, too many for a small map. <code>look.block_map(64)</code> gives "
            "means of blocks, and <code>regard look</code> shows all.</p>")
