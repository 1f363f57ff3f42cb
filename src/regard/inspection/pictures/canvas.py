"""The paper that pictures are drawn on: a matplotlib figure that grows around what is put on it.

    with drawing() as figure:
        axes = panel(figure, left=0, top=0, width=3, height=2)      inches, from the top left corner
        image = draw(axes, values, scale)
        bar(figure, image, left=3.2, top=0, height=2, label="weight")
        return finished(figure, title="...", notes=["..."])

Needs the extra `plot`. No window, no pyplot and no backend is touched: a figure has the canvas of pixels, which every
machine has. While one is drawn matplotlib has its own settings, not those of a style file, so that a picture is the
same everywhere; afterwards it has those again that it had. It does not know what the numbers are.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.inspection.pictures import fonts, signs
from regard.inspection.pictures.cells import Floats, Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

INK, FAINT, PINK = "#1a1a1a", "#555555", "#ff7ac6"
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""The colours of Okabe and Ito, which colour-blind people can tell apart."""
DASHES = ("-", "--", "-.", ":")
DPI = 150
PAD, NARROWEST = 0.12, 3.4
"""Inches around everything, and of the narrowest figure."""
TITLE, NOTE, LABEL = 11.0, 8.0, 8.0
"""Points of text."""
BAR = 0.14
SETTINGS = {"font.family": [fonts.FIRST], "font.size": LABEL, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
            "ytick.major.width": 0.6, "axes.edgecolor": FAINT, "text.color": INK, "axes.labelcolor": INK,
            "xtick.labelcolor": INK, "ytick.labelcolor": INK, "xtick.color": FAINT, "ytick.color": FAINT}
FILES = {"svg.hashsalt": "regard", "svg.fonttype": "path", "pdf.fonttype": 42}
"""Names inside an SVG that are the same every time, letters as curves; in a PDF letters as letters."""


def library() -> Any:
    """The package matplotlib; a ValueError where it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise checks.wrong("pictures", "drawn with the package matplotlib", "not: it is not installed",
                           "Install it: pip install 'regard[plot]'.") from error
    return matplotlib


@contextmanager
def settings() -> Iterator[None]:
    """Our settings for a while, whatever was set before."""
    matplotlib = library()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS | FILES)
        yield


@contextmanager
def drawing() -> Iterator["Figure"]:
    """An empty figure."""
    with settings():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4, 4), dpi=DPI)
        FigureCanvasAgg(figure)
        yield figure


def panel(figure: "Figure", left: float, top: float, width: float, height: float) -> "Axes":
    """Axes at this place, in inches from the top left corner."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))


def plain(texts: Iterable[str]) -> dict[str, Any]:
    """How to write what a user wrote: no formulas in it, in fonts that have its characters."""
    return {"parse_math": False, "fontfamily": list(fonts.choose(texts).families)}


def draw(axes: "Axes", values: Floats, scale: Scale,
         extent: tuple[float, float, float, float] | None = None) -> "AxesImage":
    """Cells in colours, the first row on top, each as large as the others and none blended with another."""
    if not values.size:
        raise checks.wrong("weights", "at least one row and one column", f"of shape {checks.shape(values)}")
    colours = library().colormaps[scale.colours].with_extremes(bad=PINK)
    return axes.imshow(values, cmap=colours, vmin=scale.low, vmax=scale.high or 1.0, aspect="auto",
                       interpolation="nearest", extent=extent)


def bar(figure: "Figure", image: "AxesImage", left: float, top: float, height: float, label: str) -> None:
    """What the colours stand for, at the right of a map."""
    axes = panel(figure, left, top, BAR, height)
    low, high = image.get_clim()
    values: Floats = np.ma.compressed(np.ma.asarray(image.get_array()))
    above, below = (values > high).any(), (values < low).any()
    shown = figure.colorbar(image, cax=axes, extend="both" if above and below else "max" if above else
                            "min" if below else "neither")
    shown.set_label(label, fontsize=LABEL, parse_math=False)
    shown.outline.set_linewidth(0.6)
    axes.tick_params(labelsize=LABEL - 1)


def finished(figure: "Figure", title: str = "", notes: Sequence[str] = ()) -> "Figure":
    """The figure cut to what is on it, with a title and notes above."""
    from matplotlib.transforms import Bbox

    title, notes = signs.sentence(title, 200), [signs.sentence(note, 120) for note in notes]
    texts = [text.get_text() for text in figure.findobj(library().text.Text)]
    missing = fonts.choose([*texts, title, *notes]).missing
    if missing:
        codes = [f"U+{ord(char):04X}" for char in missing[:4]] + ["…"] * (len(missing) > 4)
        notes = [*notes, f"no font here has {', '.join(codes)}: shown as boxes"]
    inner = figure.get_tightbbox(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    width = max(inner.width + 2 * PAD, NARROWEST)
    lines = _lines(title, notes, width - 2 * PAD)
    head = sum(size * 1.35 / 72 for _, size, _ in lines) + (0.08 if lines else 0.0)
    height = inner.height + 2 * PAD + head
    across, down = figure.get_size_inches()
    for axes in figure.axes:
        box = axes.get_position(original=True)
        moved = Bbox.from_extents((box.x0 * across - inner.x0 + PAD) / width, (box.y0 * down - inner.y0 + PAD) / height,
                                  (box.x1 * across - inner.x0 + PAD) / width, (box.y1 * down - inner.y0 + PAD) / height)
        axes.set_position(moved)
    figure.set_size_inches(width, height)
    top = height - PAD
    for line, size, colour in lines:
        top -= size * 1.35 / 72
        figure.text(PAD / width, (top + size * 0.3 / 72) / height, line, fontsize=size, color=colour, **plain([line]))
    return figure


def _lines(title: str, notes: Sequence[str], width: float) -> list[tuple[str, float, str]]:
    """The lines of the head, with the size and the colour of each."""
    lines = [(line, TITLE, INK) for line in _wrapped(title, width, TITLE)]
    return lines + [(line, NOTE, FAINT) for line in _wrapped("; ".join(notes), width, NOTE)]


def _wrapped(text: str, width: float, size: float) -> list[str]:
    """Lines that fit: a letter of DejaVu Sans is about 0.6 of its size wide."""
    wide = max(1.0, signs.width(text) / max(1, len(text)))
    return textwrap.wrap(text, max(10, int(width * 72 / (0.6 * size * wide))))
