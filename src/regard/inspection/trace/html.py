"""How traces show themselves in a notebook: as small maps, in HTML that needs no other package.

    of_attention(attention)    a small map for each head
    of_trace(trace)            the one map that shows most, with its words or tokens

What is too long for a small map is told in words. It knows traces; how maps are drawn is known to `pictures`.
"""

import html
from typing import TYPE_CHECKING

from regard.inspection.chosen import chosen
from regard.inspection.pictures import signs, svg, traces
from regard.inspection.trace.parts import Attention

if TYPE_CHECKING:  # a trace asks for its own picture
    from regard.inspection.trace.trace import Trace

MOST = 1 << 22
"""Weights that are computed for a notebook."""


def of_attention(attention: Attention) -> str:
    """The maps of all heads."""
    if attention.heads * attention.rows * attention.columns > MOST:
        return _too_long(attention)
    return svg.heads_svg(attention.look.weights(), title=attention.name)


def of_trace(trace: "Trace") -> str:
    """Its title and one map."""
    title = f"<p>{html.escape(signs.sentence(trace.title, 200) or 'trace')}</p>"
    if not trace.attentions:
        return f"{title}<p>no attention</p>"
    one = chosen(trace).attention
    if one.heads * one.rows * one.columns > MOST:
        return title + _too_long(one)
    return title + traces.trace_svg(trace)


def _too_long(one: Attention) -> str:
    sizes = f"{one.heads} heads of {one.rows:,} × {one.columns:,} weights"
    return (f"<p>{html.escape(one.name)}: {sizes}, too many for a small map. <code>look.block_map(64)</code> gives "
            "means of blocks, and <code>regard look</code> shows all.</p>")
