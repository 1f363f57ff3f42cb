"""The scene of a forecast from above: past, futures by probability, truth, and who looks at whom.

    view = forecaster.view("tracks.csv")       what is shown
    scene_html(view)                           one HTML file with a slider for time, which works offline
    scene_picture(view)                        a matplotlib figure of the last observed step
    looks_table(view)                          the largest weights as rows of text

The weights are those that the model used: of every attention layer's last call, the mean over heads of the last layer.
The page's content security policy allows nothing but its own script and style; names of agents are text, never markup.

Legend: A agents, T observed steps, P predicted steps, K futures.
"""

import base64
import hashlib
import html
import json
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.inspection.pictures import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
DIGITS = 4
PICTURE_WIDTH = 6.0
"""Inches."""
SHOWN_WEIGHT, MAX_ARROWS = 0.02, 3
"""Smaller weights get no arrow, and neither does any but the three largest of an agent."""
SHOWN_PROBABILITY = 0.9
"""The picture has room for the most probable futures of each agent that have this probability together."""


@dataclass(frozen=True)
class SceneView:
    """The agents of a scene around the last observed step."""

    title: str
    agents: tuple[str, ...]
    past: Floats
    """(A, T, 2), NaN where an agent was not seen."""
    futures: Floats
    """(A, K, P, 2), the most probable first."""
    probabilities: Floats
    """(A, K)"""
    looks: Floats
    """(A, T, A): the weight that each agent gives to each agent at each observed step; its own weight included."""
    truth: Floats | None = None
    """(A, P, 2), NaN where an agent was not there; None if nothing is known."""
    frame: float = 0.0
    """The last observed frame."""
    step: float = 1.0
    """The difference between two frames."""


def scene_html(view: SceneView) -> str:
    """The page."""
    files = resources.files(__package__)
    script, style = (files.joinpath(name).read_text(encoding="utf-8") for name in ("scene.js", "scene.css"))
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'"
    document = json.dumps(_document(view), ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    title = html.escape(view.title)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
<h1>{title}</h1>
<p>Thick lines: observed. Thin lines: futures, stronger where more probable. Dotted: what happened. Arrows: whom an
agent attends to most at the chosen step, thicker for larger weights. Click an agent to see it alone.</p>
<div class="controls">
<label>Time <input id="time" type="range" min="0" step="1"></label><output id="now"></output>
<label>Futures <input id="futures" type="number" min="1" step="1"></label>
<label>Agent <select id="agent"><option value="">all</option></select></label>
</div>
<div class="views">
<svg id="picture" viewBox="0 0 640 640" role="img" aria-label="the scene from above"></svg>
<table><caption>Largest weights at this step</caption><thead><tr><th>agent<th>attends to<th>weight</thead>
<tbody id="weights"></tbody></table>
</div>
<script type="application/json" id="scene">{document}</script>
<script>{script}</script>
</html>
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _document(view: SceneView) -> dict[str, Any]:
    """The view as plain values; null for a point that is not there."""
    return {"agents": list(view.agents), "past": _points(view.past), "futures": _points(view.futures),
            "probabilities": np.round(view.probabilities, DIGITS).tolist(),
            "looks": np.round(view.looks, DIGITS).tolist(),
            "truth": None if view.truth is None else _points(view.truth),
            "frame": view.frame, "step": view.step, "bounds": scene_bounds(view).round(DIGITS).tolist()}


def scene_bounds(view: SceneView) -> Floats:
    """The lowest and the highest x and y, (2, 2), of what was observed, what happened, and the most probable futures.

    A model has a few improbable futures that lead far away; with room for all of them, the others would be small.
    """
    before = np.cumsum(view.probabilities, axis=-1) - view.probabilities
    parts = [view.past.reshape(-1, 2), view.futures[before < SHOWN_PROBABILITY].reshape(-1, 2)]
    parts += [] if view.truth is None else [view.truth.reshape(-1, 2)]
    points = np.concatenate(parts)
    return np.stack([np.nanmin(points, axis=0), np.nanmax(points, axis=0)])


def _points(array: Floats) -> Any:
    if array.ndim == 1:
        return None if np.isnan(array).any() else [round(float(value), DIGITS) for value in array]
    return [_points(part) for part in array]


def scene_picture(view: SceneView) -> "Figure":
    """A picture of the last observed step."""
    from matplotlib.patheffects import withStroke

    with canvas.new_figure() as figure:
        low, high = scene_bounds(view)
        margin = 0.04 * float((high - low).max())
        across, down = high - low + 2 * margin
        axes = canvas.add_panel(figure, 0, 0, PICTURE_WIDTH, float(PICTURE_WIDTH * np.clip(down / across, 0.4, 1.2)))
        drawn = Counter[int]()
        for agent, other, weight in _arrows(view):
            drawn[agent] += 1
            if drawn[agent] > MAX_ARROWS:
                continue
            axes.annotate("", view.past[other, -1], view.past[agent, -1], arrowprops={
                "arrowstyle": "->", "linewidth": 0.5 + 5 * weight, "alpha": float(np.clip(0.2 + 2 * weight, 0, 1)),
                "color": canvas.INK, "shrinkA": 4, "shrinkB": 4})
        for agent, name in enumerate(view.agents):
            colour = canvas.LINE_COLOURS[agent % len(canvas.LINE_COLOURS)]
            here = view.past[agent, -1]
            for future, probability in zip(view.futures[agent], view.probabilities[agent], strict=True):
                path = np.concatenate([here[None], future])
                axes.plot(*path.T, color=colour, linewidth=0.9, alpha=float(np.clip(3 * probability, 0.08, 1.0)))
            axes.plot(*view.past[agent].T, color=colour, linewidth=2.0, solid_capstyle="round")
            if view.truth is not None:
                axes.plot(*np.concatenate([here[None], view.truth[agent]]).T, color=canvas.INK, linewidth=1.0,
                          linestyle=":")
            axes.plot(*here, marker="o", color=colour, markersize=5)
            axes.annotate(name, here, xytext=(4, 4), textcoords="offset points", fontsize=canvas.LABEL_SIZE,
                          path_effects=[withStroke(linewidth=2.0, foreground=canvas.PAPER)],
                          **canvas.text_style([name]))
        axes.set(xlim=(low[0] - margin, high[0] + margin), ylim=(low[1] - margin, high[1] + margin))
        axes.set_aspect("equal", adjustable="datalim")
        notes = ["lines: observed; thin: futures by probability; dotted: truth; arrows: the largest attention weights "
                 "at the last step"]
        return canvas.finish_figure(figure, view.title, notes)


def _arrows(view: SceneView) -> list[tuple[int, int, float]]:
    """Agent, other agent and weight at the last observed step, the largest first."""
    last = view.looks[:, -1]
    found = [(agent, other, float(last[agent, other])) for agent in range(len(last)) for other in range(len(last))
             if agent != other and last[agent, other] >= SHOWN_WEIGHT]
    return sorted(found, key=lambda one: -one[2])


def looks_table(view: SceneView, count: int = 20) -> list[tuple[str, str, str]]:
    """The largest weights at the last observed step: agent, whom it attends to, weight."""
    return [(view.agents[agent], view.agents[other], f"{weight:.3f}") for agent, other, weight in _arrows(view)[:count]]
