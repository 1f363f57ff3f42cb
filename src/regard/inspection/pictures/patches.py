"""Attention over an image: a weight for every patch, beside the image itself.

    patch_picture(weights, (14, 14), lead=1, image=pixels)        weights (heads, 197), pixels (224, 224, 3)

The map is not laid over the image, because colours mixed with those of an image are on no scale. The weight of tokens
that are not patches is written above. This file knows weights and pixels, not models or traces.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.inspection.pictures import canvas
from regard.inspection.pictures.canvas import ColourScale, Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAPS_PER_ROW = 6
"""The number of maps side by side."""
LARGE, SMALL = 2.6, 1.5
"""Inches of the longer side of a map: a single one, and one of several."""
GAP = 0.22


def patch_picture(weights: Any, grid: tuple[int, int], *, lead: int = 0, image: Any = None, title: str = "",
                  notes: Sequence[str] = ()) -> "Figure":
    """A map of the patches for each head, all on one scale.

    Args:
        weights: (tokens,) or (heads, tokens), of one query or the mean over queries.
        grid: rows and columns of the patches.
        lead: the number of tokens before the patches.
        image: its pixels, (H, W), (H, W, 3), (1, H, W) or (3, H, W): from 0 to 1, or bytes from 0 to 255.
        title: shown above.
        notes: shown below the title.
    """
    given = np.atleast_2d(canvas.as_floats("weights", weights, 1 if np.ndim(weights) == 1 else 2, "(heads, tokens)"))
    down, across = grid
    if min(grid) < 1 or lead < 0 or given.shape[1] != lead + down * across or not len(given):
        raise checks.wrong("weights", f"of {lead} + {down} × {across} tokens", f"of shape {checks.shape(given)}")
    maps = given[:, lead:].reshape(-1, down, across)
    pixels = None if image is None else _pixels(image)
    longest = LARGE if len(maps) == 1 else SMALL
    width, height = longest * across / max(grid), longest * down / max(grid)
    scale = ColourScale.of(maps)
    with canvas.new_figure() as figure:
        left = 0.0
        if pixels is not None:
            # As high as two maps if there are many, with the aspect ratio of the image.
            tall = height if len(maps) <= MAPS_PER_ROW else 2 * height + GAP
            breadth = tall * pixels.shape[1] / pixels.shape[0]
            axes = canvas.add_panel(figure, 0, 0, breadth, tall)
            axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, aspect="auto", interpolation="nearest",
                        extent=(-0.5, across - 0.5, down - 0.5, -0.5))
            _add_title(axes, "image")
            left = breadth + GAP
        drawn = None
        for head, values in enumerate(maps):
            place = (left + head % MAPS_PER_ROW * (width + GAP), head // MAPS_PER_ROW * (height + GAP))
            axes = canvas.add_panel(figure, *place, width, height)
            drawn = canvas.draw_cells(axes, values, scale)
            _add_title(axes, f"head {head}" if len(maps) > 1 else "weights")
        assert drawn is not None
        rows = math.ceil(len(maps) / MAPS_PER_ROW)
        edge = left + min(len(maps), MAPS_PER_ROW) * (width + GAP) - GAP
        canvas.add_colour_bar(figure, drawn, edge + 0.12, 0, min(max(rows * height, 1.0), 3.0), "weight")
        figure.set_dpi(max(canvas.DPI, min(400, math.ceil(1.02 * max(grid) / longest))))
        return canvas.finish_figure(figure, title, [*notes, *_notes(given, lead)])


def _notes(given: Floats, lead: int) -> list[str]:
    """Notes on what the maps do not show."""
    notes = []
    if lead:
        sums = given[:, :lead].sum(1)
        low, high = canvas.format_number(sums.min()), canvas.format_number(sums.max())
        what = "token before the patches" if lead == 1 else f"{lead} tokens before the patches"
        notes.append(f"{low if low == high else f'{low} … {high}'} of the weights is on the {what}")
    return notes + canvas.describe_cells([canvas.cells_from_weights(given[:, None], given.shape[1])])


def _add_title(axes: Any, name: str) -> None:
    """Remove the ticks, because patches have no names, and write a title."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(name, fontsize=canvas.LABEL_SIZE, pad=3)


def _pixels(image: Any) -> Floats:
    """The pixels (H, W) or (H, W, 3) of an image, from 0 to 1."""
    shape = "(H, W), (H, W, 3), (1, H, W) or (3, H, W)"
    pixels = canvas.as_floats("image", image, 2 if np.ndim(image) == 2 else 3, shape)
    if "int" in str(getattr(image, "dtype", "")):
        pixels = pixels / 255
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3):
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if not pixels.size or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise checks.wrong("image", f"of shape {shape}", f"of shape {checks.shape(pixels)}")
    if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
        raise checks.wrong("image", "from 0 to 1, or bytes", f"from {pixels.min():.3g} to {pixels.max():.3g}",
                           "Undo the normalisation that the model needs: (pixels * deviation + mean).")
    return pixels
