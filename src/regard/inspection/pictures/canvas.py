"""The foundation of all pictures: matrices as cells, a matplotlib figure that grows around its content, fonts, files.

    cells = cells_from_weights(weights, limit)               the weights, or means of blocks if there are more than limit
    with new_figure() as figure:
        axes = add_panel(figure, left=0, top=0, width=3, height=2)      inches, from the top left corner
        image = draw_cells(axes, cells.values, ColourScale.of(cells.values))
        add_colour_bar(figure, image, left=3.2, top=0, height=2, label="weight")
        return finish_figure(figure, title="...", notes=describe_cells([cells]))

Nothing is normalised or clipped: a picture shows the numbers it is given, or says what it shows instead. Only figures
need matplotlib (the extra `plot`). No window, pyplot or global backend is touched, and matplotlib's settings are
restored afterwards, so a picture is the same on every machine, and the same figure gives the same bytes. Characters
that DejaVu Sans lacks are drawn with fonts of the machine, and those that no font has as boxes, with a note.

Legend: ... leading dimensions, heads last; n, N rows and columns of the weights; r, c of the cells that are drawn.
"""

import functools
import io
import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard.inspection import labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


Floats = NDArray[np.float64]
SUM_TOLERANCE = 0.01
"""How far from 1 the sum of a row may be: sums of numbers in bfloat16 are no closer."""
GREYS, DIVERGING = "Greys", "PuOr"
"""White is 0 in both. Both can be told apart by people who see no red, no green or no blue, and in black and white."""


class Cells(NamedTuple):
    """What is drawn of weights (..., n, N)."""

    values: Floats
    """(..., r, c): the weights, or the means of blocks of `size` × `size` of them."""
    sums: Floats
    """(..., r): what the rows sum to; of a block of rows, on average."""
    rows: int
    columns: int
    size: int = 1

    def one(self, values: Floats, sums: Floats) -> "Cells":
        """The same cells of one head, or of a mean over heads."""
        return self._replace(values=values, sums=sums)


class ColourScale(NamedTuple):
    """Which colours stand for which numbers."""

    low: float
    high: float
    colours: str

    @classmethod
    def of(cls, values: Floats, largest: float | None = None) -> "ColourScale":
        """From 0 to the largest number, or `largest`; where some are negative, from minus to plus as much."""
        finite = values[np.isfinite(values)]
        high = float(np.abs(finite).max(initial=0.0)) if largest is None else largest
        if not (math.isfinite(high) and high >= 0.0):
            raise checks.wrong("largest", "a positive number", largest)
        return cls(-high if (finite < 0).any() else 0.0, high, DIVERGING if (finite < 0).any() else GREYS)


def as_floats(argument: str, values: Any, dimensions: int, shape: str) -> Floats:
    """A tensor, an array or lists as an array of so many dimensions."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()  # NumPy has no bfloat16
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise checks.wrong(argument, f"numbers of shape {shape}", f"something else ({error})") from error
    if array.ndim != dimensions:
        raise checks.wrong(argument, f"numbers of shape {shape}", f"of shape {checks.shape(array)}")
    return array


def cells_from_weights(weights: Floats, most: int) -> Cells:
    """Weights (..., n, N) as at most `most` × `most` cells."""
    n, N = weights.shape[-2:]
    size = block_size(n, N, most)
    if size == 1:
        return Cells(weights, _row_sums(weights), n, N)
    means = weights
    for axis, count in ((-1, N), (-2, n)):
        starts = np.arange(0, count, size)
        heights = np.minimum(size, count - starts)
        with np.errstate(invalid="ignore", over="ignore"):  # what is no finite number makes a mean that is none
            means = np.add.reduceat(means, starts, axis=axis) / (heights if axis == -1 else heights[:, None])
    return _cells_from_means(means, n, N, size)


def cells_from_record(look: Any, most: int) -> Cells:
    """What a `Look` or a `Matrix` answers, (heads, n, N), as at most `most` × `most` cells."""
    n, N = record_size(look)
    size = block_size(n, N, most)
    if size == 1:
        return cells_from_weights(as_floats("weights", look.weights(), 3, "(heads, rows, columns)"), most)
    return _cells_from_means(as_floats("weights", look.block_map(size), 3, "(heads, rows, columns)"), n, N, size)


def record_size(look: Any) -> tuple[int, int]:
    """Rows and columns of the weights of a look, which are not computed for it."""
    from regard.inspection.records import record_shape

    return record_shape(look)[-2], record_shape(look)[-1]


def block_size(rows: int, columns: int, most: int) -> int:
    """The side of the blocks of which there are at most `most` in each direction."""
    return max(1, math.ceil(max(rows, columns) / most))


def describe_cells(drawn: Iterable[Cells]) -> list[str]:
    """What somebody who looks at these cells must know."""
    drawn = list(drawn)
    sizes = {cells.size for cells in drawn} or {1}
    span = f"{'up to ' * (len(sizes) > 1)}{max(sizes)} × {max(sizes)}"
    said = [f"each cell is the mean of {span} weights"] if max(sizes) > 1 else []
    sums = np.concatenate([cells.sums.ravel() for cells in drawn] or [np.zeros(0)])
    values = np.concatenate([cells.values.ravel() for cells in drawn] or [np.zeros(0)])
    known = sums[np.isfinite(sums)]
    looking = known[np.abs(known) > 0]
    if len(looking) and np.abs(looking - 1).max() > SUM_TOLERANCE:
        said.append(_describe_sums(looking.min(), looking.max()))
    if len(values) and len(known) and not len(looking) and not (values[np.isfinite(values)] != 0).any():
        said.append("all weights are 0")
    elif empty := sum(int((cells.sums == 0).sum()) for cells in drawn if cells.size == 1):
        said.append(f"{empty} of {len(sums)} rows sum to 0")
    if negative := int((values < 0).sum()):
        said.append(f"{negative} of {len(values)} cells are negative")
    if unknown := len(values) - int(np.isfinite(values).sum()):
        said.append(f"{unknown} of {len(values)} cells are no finite numbers: pink")
    return said


def format_number(value: float) -> str:
    """A number in three digits."""
    return f"{value:.3g}"


def _describe_sums(low: float, high: float) -> str:
    if low > 0 and high <= 1 + SUM_TOLERANCE:
        return f"rows sum to less than 1, down to {format_number(low)}"
    if low >= 1 - SUM_TOLERANCE:
        return f"rows sum to more than 1, up to {format_number(high)}"
    span = format_number(low) if format_number(low) == format_number(high) else f"{format_number(low)} … {format_number(high)}"
    return f"rows sum to {span}, not to 1"


def _cells_from_means(means: Floats, rows: int, columns: int, size: int) -> Cells:
    starts = np.arange(0, columns, size)
    return Cells(means, _row_sums(means, np.minimum(size, columns - starts)), rows, columns, size)


def _row_sums(values: Floats, widths: Any = 1) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((values * widths).sum(axis=-1))


# ---- fonts: Which fonts of this machine have the characters that a picture shows.
#
# DejaVu Sans comes with matplotlib and has the alphabets of most languages. For what it lacks, fonts of the machine are
# looked through; for what none has, there is a font of boxes, each with a sign of its script, and the picture says so. So
# no word is left out in silence, and matplotlib has nothing to warn of. It does not know what the characters mean.

DEFAULT_FONT = "DejaVu Sans"
FALLBACK_FONT = "Last Resort High-Efficiency"
"""It comes with matplotlib too: a box for every character that there is."""
BITMAP_FONTS = ("Color Emoji", "ColorEmoji")
"""Fonts of coloured pictures, which matplotlib cannot draw."""


class FontChoice(NamedTuple):
    """Font families, in the order in which a character is looked for, and the characters that are in none."""

    families: tuple[str, ...]
    missing: tuple[str, ...]


def choose_fonts(texts: Iterable[str]) -> FontChoice:
    """Families that have every character of these texts, as far as the fonts of this machine do."""
    needed = frozenset(map(ord, "".join(texts)))
    return _choose_families(frozenset(code for code in needed if code > 0x7e))


@functools.lru_cache(maxsize=256)
def _choose_families(needed: frozenset[int]) -> FontChoice:
    families, missing = [DEFAULT_FONT], set(needed) - _font_characters(_default_font_file())
    while missing:
        # The one that has most of them: letters of one word should not come from many fonts.
        name, path = max(_font_files().items(), key=lambda font: len(missing & _font_characters(font[1])))
        if not missing & _font_characters(path):
            families.append(FALLBACK_FONT)
            break
        families.append(name)
        missing -= _font_characters(path)
    return FontChoice(tuple(families), tuple(chr(code) for code in sorted(missing)))


def _default_font_file() -> str:
    """The file that matplotlib takes for the first font: its own, or one of the machine."""
    from matplotlib.font_manager import fontManager

    return str(fontManager.findfont(DEFAULT_FONT))


@functools.cache
def _font_files() -> dict[str, str]:
    """Names and files of upright fonts of a usual weight: ours first, then sans-serif ones, in one order always."""
    from matplotlib.font_manager import fontManager

    found = {font.name: font.fname for font in sorted(fontManager.ttflist, key=lambda font: font.fname, reverse=True)
             if font.style == "normal" and font.weight in (400, "normal", "regular", "book")
             and font.name != FALLBACK_FONT and not any(part in font.name for part in BITMAP_FONTS)}
    return dict(sorted(found.items(), key=lambda font: (font[0] != DEFAULT_FONT, "Sans" not in font[0], font)))


@functools.cache
def _font_characters(path: str) -> frozenset[int]:
    """The code points that a font file has; none where it cannot be read or drawn."""
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
    except (OSError, RuntimeError):  # a file that has gone, or that FreeType does not understand
        return frozenset()
    return frozenset(font.get_charmap()) if font.scalable else frozenset()


# ---- canvas: The paper that pictures are drawn on: a matplotlib figure that grows around what is put on it.
#
#     with drawing() as figure:
#         axes = panel(figure, left=0, top=0, width=3, height=2)      inches, from the top left corner
#         image = draw(axes, values, scale)
#         bar(figure, image, left=3.2, top=0, height=2, label="weight")
#         return finished(figure, title="...", notes=["..."])
#
# Needs the extra `plot`. No window, no pyplot and no backend is touched: a figure has the canvas of pixels, which every
# machine has. While one is drawn matplotlib has its own settings, not those of a style file, so that a picture is the
# same everywhere; afterwards it has those again that it had. It does not know what the numbers are.

INK, FAINT, PINK = "#1a1a1a", "#555555", "#ff7ac6"
LINE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""The colours of Okabe and Ito, which colour-blind people can tell apart."""
LINE_STYLES = ("-", "--", "-.", ":")
DPI = 150
PADDING, MIN_WIDTH = 0.12, 3.4
"""Inches around everything, and of the narrowest figure."""
TITLE_SIZE, NOTE_SIZE, LABEL_SIZE = 11.0, 8.0, 8.0
"""Points of text."""
BAR_WIDTH = 0.14
FIGURE_SETTINGS = {"font.family": [DEFAULT_FONT], "font.size": LABEL_SIZE, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
            "ytick.major.width": 0.6, "axes.edgecolor": FAINT, "text.color": INK, "axes.labelcolor": INK,
            "xtick.labelcolor": INK, "ytick.labelcolor": INK, "xtick.color": FAINT, "ytick.color": FAINT}
FILE_SETTINGS = {"svg.hashsalt": "regard", "svg.fonttype": "path", "pdf.fonttype": 42}
"""Names inside an SVG that are the same every time, letters as curves; in a PDF letters as letters."""


def load_matplotlib() -> Any:
    """The package matplotlib; a ValueError where it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise checks.wrong("pictures", "drawn with the package matplotlib", "not: it is not installed",
                           "Install it: pip install 'regard[plot]'.") from error
    return matplotlib


@contextmanager
def figure_settings() -> Iterator[None]:
    """Our settings for a while, whatever was set before."""
    matplotlib = load_matplotlib()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(FIGURE_SETTINGS | FILE_SETTINGS)
        yield


@contextmanager
def new_figure() -> Iterator["Figure"]:
    """An empty figure."""
    with figure_settings():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4, 4), dpi=DPI)
        FigureCanvasAgg(figure)
        yield figure


def add_panel(figure: "Figure", left: float, top: float, width: float, height: float) -> "Axes":
    """Axes at this place, in inches from the top left corner."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))


def text_style(texts: Iterable[str]) -> dict[str, Any]:
    """How to write what a user wrote: no formulas in it, in fonts that have its characters."""
    return {"parse_math": False, "fontfamily": list(choose_fonts(texts).families)}


def draw_cells(axes: "Axes", values: Floats, scale: ColourScale,
         extent: tuple[float, float, float, float] | None = None) -> "AxesImage":
    """Cells in colours, the first row on top, each as large as the others and none blended with another."""
    if not values.size:
        raise checks.wrong("weights", "at least one row and one column", f"of shape {checks.shape(values)}")
    colours = load_matplotlib().colormaps[scale.colours].with_extremes(bad=PINK)
    return axes.imshow(values, cmap=colours, vmin=scale.low, vmax=scale.high or 1.0, aspect="auto",
                       interpolation="nearest", extent=extent)


def add_colour_bar(figure: "Figure", image: "AxesImage", left: float, top: float, height: float, label: str) -> None:
    """What the colours stand for, at the right of a map."""
    axes = add_panel(figure, left, top, BAR_WIDTH, height)
    low, high = image.get_clim()
    values: Floats = np.ma.compressed(np.ma.asarray(image.get_array()))
    above, below = (values > high).any(), (values < low).any()
    shown = figure.colorbar(image, cax=axes, extend="both" if above and below else "max" if above else
                            "min" if below else "neither")
    shown.set_label(label, fontsize=LABEL_SIZE, parse_math=False)
    shown.outline.set_linewidth(0.6)
    axes.tick_params(labelsize=LABEL_SIZE - 1)


def finish_figure(figure: "Figure", title: str = "", notes: Sequence[str] = ()) -> "Figure":
    """The figure cut to what is on it, with a title and notes above."""
    from matplotlib.transforms import Bbox

    title, notes = labels.text_label(title, 200), [labels.text_label(note, 120) for note in notes]
    texts = [text.get_text() for text in figure.findobj(load_matplotlib().text.Text)]
    missing = choose_fonts([*texts, title, *notes]).missing
    if missing:
        codes = [f"U+{ord(char):04X}" for char in missing[:4]] + ["…"] * (len(missing) > 4)
        notes = [*notes, f"no font here has {', '.join(codes)}: shown as boxes"]
    inner = figure.get_tightbbox(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    width = max(inner.width + 2 * PADDING, MIN_WIDTH)
    lines = _heading_lines(title, notes, width - 2 * PADDING)
    head = sum(size * 1.35 / 72 for _, size, _ in lines) + (0.08 if lines else 0.0)
    height = inner.height + 2 * PADDING + head
    across, down = figure.get_size_inches()
    for axes in figure.axes:
        box = axes.get_position(original=True)
        moved = Bbox.from_extents((box.x0 * across - inner.x0 + PADDING) / width, (box.y0 * down - inner.y0 + PADDING) / height,
                                  (box.x1 * across - inner.x0 + PADDING) / width, (box.y1 * down - inner.y0 + PADDING) / height)
        axes.set_position(moved)
    figure.set_size_inches(width, height)
    top = height - PADDING
    for line, size, colour in lines:
        top -= size * 1.35 / 72
        figure.text(PADDING / width, (top + size * 0.3 / 72) / height, line, fontsize=size, color=colour, **text_style([line]))
    return figure


def _heading_lines(title: str, notes: Sequence[str], width: float) -> list[tuple[str, float, str]]:
    """The lines of the head, with the size and the colour of each."""
    lines = [(line, TITLE_SIZE, INK) for line in _wrap(title, width, TITLE_SIZE)]
    return lines + [(line, NOTE_SIZE, FAINT) for line in _wrap("; ".join(notes), width, NOTE_SIZE)]


def _wrap(text: str, width: float, size: float) -> list[str]:
    """Lines that fit: a letter of DejaVu Sans is about 0.6 of its size wide."""
    wide = max(1.0, labels.display_width(text) / max(1, len(text)))
    return textwrap.wrap(text, max(10, int(width * 72 / (0.6 * size * wide))))


# ---- saving: A picture as a file: PNG, SVG or PDF, by the ending of its name.
#
# The same figure gives the same bytes every time: no date, no random names and no version is written into a file. A file
# is written when its bytes are there, so a figure that cannot be drawn leaves none. It does not know what is drawn.

FILE_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Type": None, "Format": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""What matplotlib would say of itself in a file of each format."""


def save(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write the figure to a file that ends in .png, .svg or .pdf."""
    Path(path).write_bytes(render_figure(figure, picture_format(path)))


def picture_format(path: str | os.PathLike[str]) -> str:
    """The format that the ending of a name says; ask before work that would be lost."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in FILE_METADATA:
        endings = ", ".join(f".{name}" for name in FILE_METADATA)
        raise checks.wrong("path", f"the name of a file that ends in one of {endings}", repr(os.fspath(path)),
                           "Pictures are written as PNG, SVG or PDF.")
    return ending


def render_figure(figure: "Figure", format: str) -> bytes:
    """The bytes of such a file: "png", "svg" or "pdf"."""
    with figure_settings(), io.BytesIO() as file:
        figure.savefig(file, format=format, dpi=figure.dpi, metadata=checks.pick("format", format, FILE_METADATA))
        return file.getvalue()
