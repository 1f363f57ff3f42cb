"""The foundation of all pictures: matrices as cells, a matplotlib figure that grows around its content, fonts, files.

    cells = cells_from_weights(weights, limit)                          the weights, or means of blocks of them
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
from regard.storage.filesystem import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Floats = NDArray[np.float64]
SUM_TOLERANCE = 0.01
"""How far the sum of a row may be from 1: sums in bfloat16 are no closer."""
PAPER, INK, FAINT, LINE, ACCENT, WARNING, PINK = (
    "#fbfaf7", "#1f1d1a", "#5f5a52", "#c9c3b6", "#0b625d", "#a1260d", "#ff7ac6")
"""The colours of the page in its light form; pink is what is not finite."""
SEQUENTIAL, DIVERGING = "sequential", "diverging"
COLOUR_MAPS = {
    SEQUENTIAL: ((0.0, PAPER), (0.7, ACCENT), (1.0, INK)),
    DIVERGING: ((0.0, "#43110a"), (0.15, WARNING), (0.5, PAPER), (0.85, ACCENT), (1.0, INK)),
}
"""In both, 0 is the paper and dark ink is more: lightness falls evenly, so that they are safe in black and white."""
HATCH, MAX_HATCHED = "////", 400
"""How masked cells are drawn, in maps of at most this many rows and columns."""
LINE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""The palette of Okabe and Ito, which is safe for colour-blind readers."""
LINE_STYLES = ("-", "--", "-.", ":")
DEFAULT_FONT = "DejaVu Sans"
FALLBACK_FONT = "Last Resort High-Efficiency"
"""A font that comes with matplotlib and has a box for every character."""
BITMAP_FONTS = ("Color Emoji", "ColorEmoji")
"""Colour bitmap fonts, which matplotlib cannot draw."""
DPI = 150
PADDING, MIN_WIDTH = 0.12, 3.4
"""Inches around everything, and of the narrowest figure."""
TITLE_SIZE, NOTE_SIZE, LABEL_SIZE = 11.0, 8.0, 8.0
"""Font sizes in points."""
BAR_WIDTH = 0.14
FIGURE_SETTINGS = {"font.family": [DEFAULT_FONT], "font.size": LABEL_SIZE, "axes.linewidth": 0.6,
                   "xtick.major.width": 0.6, "ytick.major.width": 0.6, "axes.edgecolor": FAINT, "text.color": INK,
                   "figure.facecolor": PAPER, "axes.facecolor": PAPER, "hatch.linewidth": 0.5, "hatch.color": LINE,
                   "axes.labelcolor": INK, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "xtick.color": FAINT,
                   "ytick.color": FAINT}
FILE_SETTINGS = {"svg.hashsalt": "regard", "svg.fonttype": "none", "pdf.fonttype": 42}
"""SVG: reproducible ids. SVG and PDF: text as text, which can be searched and copied."""
FILE_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Type": None, "Format": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""The metadata of matplotlib that files leave out, so that the same figure gives the same bytes."""


class Cells(NamedTuple):
    """The cells that are drawn for weights (..., n, N)."""

    values: Floats
    """The weights, or the means of blocks of `size` × `size` weights, (..., r, c)."""
    sums: Floats
    """The sums of the rows, (..., r); for a block of rows, their mean."""
    rows: int
    columns: int
    size: int = 1
    masked: "NDArray[np.bool_] | None" = None
    """(r, c), the cells that are masked in every head; None if none is, or if it is not known."""


class ColourScale(NamedTuple):
    """The range of numbers, and their colour map."""

    low: float
    high: float
    colours: str

    @classmethod
    def of(cls, values: Floats, largest: float | None = None) -> "ColourScale":
        """From 0 to the largest number, or to `largest`; symmetric around 0 if some numbers are negative."""
        finite = values[np.isfinite(values)]
        high = float(np.abs(finite).max(initial=0.0)) if largest is None else largest
        if not (math.isfinite(high) and high >= 0.0):
            raise checks.wrong("largest", "a positive number", largest)
        return cls(-high if (finite < 0).any() else 0.0, high, DIVERGING if (finite < 0).any() else SEQUENTIAL)


def as_floats(argument: str, values: Any, dimensions: int, shape: str) -> Floats:
    """A tensor, an array or lists as an array with this number of dimensions."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()  # NumPy has no bfloat16
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise checks.wrong(argument, f"numbers of shape {shape}", f"something else ({error})") from error
    if array.ndim != dimensions:
        raise checks.wrong(argument, f"numbers of shape {shape}", f"of shape {checks.shape(array)}")
    return array


def cells_from_weights(weights: Floats, limit: int) -> Cells:
    """Weights (..., n, N) as at most `limit` × `limit` cells."""
    n, N = weights.shape[-2:]
    size = _block_size(n, N, limit)
    if size == 1:
        return Cells(weights, _row_sums(weights), n, N)
    means = weights
    for axis, count in ((-1, N), (-2, n)):
        starts = np.arange(0, count, size)
        heights = np.minimum(size, count - starts)
        with np.errstate(invalid="ignore", over="ignore"):  # a mean with a number that is not finite is not finite
            means = np.add.reduceat(means, starts, axis=axis) / (heights if axis == -1 else heights[:, None])
    return _cells_from_means(means, n, N, size)


def cells_from_record(record: Any, limit: int) -> Cells:
    """An attention record (heads, n, N) as at most `limit` × `limit` cells; of a long one only means are computed."""
    from regard.inspection.records import record_shape

    n, N = record_shape(record)[-2:]
    size = _block_size(n, N, limit)
    if size == 1:
        cells = cells_from_weights(as_floats("weights", record.weights(), 3, "(heads, rows, columns)"), limit)
        return cells._replace(masked=masked_cells(record))
    return _cells_from_means(as_floats("weights", record.block_map(size), 3, "(heads, rows, columns)"), n, N, size)


def masked_cells(record: Any) -> "NDArray[np.bool_] | None":
    """The cells of an attention record (heads, n, N) that no head may attend to; None if there are none."""
    from regard.attention.mask import as_mask
    from regard.inspection.records import record_shape

    mask, (n, N) = getattr(record, "mask", None), record_shape(record)[-2:]
    if mask is None or max(n, N) > MAX_HATCHED:
        return None
    allowed = as_mask(mask).matrix(n, N, leading=1).reshape(-1, n, N).any(dim=0)
    masked = ~allowed.cpu().numpy()
    return masked if masked.any() else None


def _block_size(rows: int, columns: int, limit: int) -> int:
    """The edge of square blocks of which there are at most `limit` in each direction."""
    return max(1, math.ceil(max(rows, columns) / limit))


def describe_cells(drawn: Iterable[Cells]) -> list[str]:
    """Notes on what is averaged, does not sum to 1, is 0, negative or not finite."""
    drawn = list(drawn)
    sizes = {cells.size for cells in drawn} or {1}
    span = f"{'up to ' * (len(sizes) > 1)}{max(sizes)} × {max(sizes)}"
    notes = [f"each cell is the mean of {span} weights"] if max(sizes) > 1 else []
    sums = np.concatenate([cells.sums.ravel() for cells in drawn] or [np.zeros(0)])
    values = np.concatenate([cells.values.ravel() for cells in drawn] or [np.zeros(0)])
    finite_sums = sums[np.isfinite(sums)]
    nonzero_sums = finite_sums[np.abs(finite_sums) > 0]
    if len(nonzero_sums) and np.abs(nonzero_sums - 1).max() > SUM_TOLERANCE:
        notes.append(_describe_sums(nonzero_sums.min(), nonzero_sums.max()))
    if len(values) and len(finite_sums) and not len(nonzero_sums) and not (values[np.isfinite(values)] != 0).any():
        notes.append("all weights are 0")
    elif empty := sum(int((cells.sums == 0).sum()) for cells in drawn if cells.size == 1):
        notes.append(f"{empty} of {len(sums)} rows sum to 0")
    if negative := int((values < 0).sum()):
        notes.append(f"{negative} of {len(values)} cells are negative: these are not probabilities")
    if unknown := len(values) - int(np.isfinite(values).sum()):
        notes.append(f"{unknown} of {len(values)} cells are not finite: pink")
    return notes + (["hatched: masked"] if any(cells.masked is not None for cells in drawn) else [])


def format_number(value: float) -> str:
    """A number in three significant digits."""
    return f"{value:.3g}"


def _describe_sums(low: float, high: float) -> str:
    lowest, highest = format_number(low), format_number(high)
    if low > 0 and high <= 1 + SUM_TOLERANCE:
        return f"rows sum to less than 1, down to {lowest}"
    if low >= 1 - SUM_TOLERANCE:
        return f"rows sum to more than 1, up to {highest}"
    return f"rows sum to {lowest if lowest == highest else f'{lowest} … {highest}'}, not to 1"


def _cells_from_means(means: Floats, rows: int, columns: int, size: int) -> Cells:
    starts = np.arange(0, columns, size)
    return Cells(means, _row_sums(means, np.minimum(size, columns - starts)), rows, columns, size)


def _row_sums(values: Floats, widths: Any = 1) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((values * widths).sum(axis=-1))


def load_matplotlib() -> Any:
    """The package matplotlib; a ValueError if it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("Pictures need matplotlib: pip install 'regard[plot]'.") from error
    return matplotlib


@contextmanager
def figure_settings() -> Iterator[None]:
    """Use the settings of this file inside the `with` block, instead of those of a user's style file."""
    matplotlib = load_matplotlib()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(FIGURE_SETTINGS | FILE_SETTINGS)
        yield


@contextmanager
def new_figure() -> Iterator["Figure"]:
    """An empty figure with an Agg canvas, which needs no display."""
    with figure_settings():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4, 4), dpi=DPI)
        FigureCanvasAgg(figure)
        yield figure


def add_panel(figure: "Figure", left: float, top: float, width: float, height: float) -> "Axes":
    """Add axes at this position, in inches from the top left corner."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))


def text_style(texts: Iterable[str]) -> dict[str, Any]:
    """Text properties for words of a user: not parsed as math, in fonts that have the characters."""
    return {"parse_math": False, "fontfamily": list(choose_fonts(texts).families)}


def draw_cells(axes: "Axes", values: Floats, scale: ColourScale,
               extent: tuple[float, float, float, float] | None = None) -> "AxesImage":
    """Draw cells of equal size, the first row on top, without interpolation."""
    if not values.size:
        raise checks.wrong("weights", "at least one row and one column", f"of shape {checks.shape(values)}")
    return axes.imshow(values, cmap=colour_map(scale.colours), vmin=scale.low, vmax=scale.high or 1.0, aspect="auto",
                       interpolation="nearest", extent=extent)


@functools.cache
def colour_map(name: str) -> Any:
    """The colour map of this name, SEQUENTIAL or DIVERGING, for matplotlib."""
    load_matplotlib()
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(f"regard {name}", [*COLOUR_MAPS[name]]).with_extremes(bad=PINK)


def hatch_masked(axes: "Axes", masked: "NDArray[np.bool_] | None",
                 extent: tuple[float, float, float, float] | None = None) -> None:
    """Hatch the masked cells of a map that `draw_cells` drew with this extent."""
    if masked is None:
        return
    from matplotlib.collections import PolyCollection

    down, across = masked.shape
    left, right, bottom, top = (-0.5, across - 0.5, down - 0.5, -0.5) if extent is None else extent
    width, height = (right - left) / across, (bottom - top) / down
    boxes = []
    for row in range(down):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], masked[row], [False]]).astype(np.int8)))
        for first, last in edges.reshape(-1, 2):
            x, y = (left + first * width, left + last * width), (top + row * height, top + (row + 1) * height)
            boxes.append([(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1])])
    axes.add_collection(PolyCollection(boxes, facecolors="none", edgecolors=LINE, linewidths=0.0, hatch=HATCH),
                        autolim=False)


def add_colour_bar(figure: "Figure", image: "AxesImage", left: float, top: float, height: float, label: str) -> None:
    """Add the colour bar at the right of a map."""
    axes = add_panel(figure, left, top, BAR_WIDTH, height)
    low, high = image.get_clim()
    values: Floats = np.ma.compressed(np.ma.asarray(image.get_array()))
    above, below = (values > high).any(), (values < low).any()
    extend = "both" if above and below else "max" if above else "min" if below else "neither"
    bar = figure.colorbar(image, cax=axes, extend=extend)
    bar.set_label(label, fontsize=LABEL_SIZE, parse_math=False)
    bar.outline.set_linewidth(0.6)
    axes.tick_params(labelsize=LABEL_SIZE - 1)


def finish_figure(figure: "Figure", title: str = "", notes: Sequence[str] = ()) -> "Figure":
    """Fit the figure to its content, and write a title and notes above."""
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
        left, right = ((x * across - inner.x0 + PADDING) / width for x in (box.x0, box.x1))
        bottom, upper = ((y * down - inner.y0 + PADDING) / height for y in (box.y0, box.y1))
        axes.set_position(Bbox.from_extents(left, bottom, right, upper))
    figure.set_size_inches(width, height)
    top = height - PADDING
    for line, size, colour in lines:
        top -= size * 1.35 / 72
        figure.text(PADDING / width, (top + size * 0.3 / 72) / height, line, fontsize=size, color=colour,
                    **text_style([line]))
    return figure


def _heading_lines(title: str, notes: Sequence[str], width: float) -> list[tuple[str, float, str]]:
    """The lines of title and notes, with the font size and colour of each."""
    lines = [(line, TITLE_SIZE, INK) for line in _wrap(title, width, TITLE_SIZE)]
    return lines + [(line, NOTE_SIZE, FAINT) for line in _wrap("; ".join(notes), width, NOTE_SIZE)]


def _wrap(text: str, width: float, size: float) -> list[str]:
    """Lines that fit into a width: a letter of DejaVu Sans is about 0.6 of its size wide."""
    wide = max(1.0, labels.display_width(text) / max(1, len(text)))
    return textwrap.wrap(text, max(10, int(width * 72 / (0.6 * size * wide))))


def save(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write a figure to a .png, .svg or .pdf file; a figure that cannot be drawn leaves the file unchanged."""
    write_file(Path(path), render_figure(figure, picture_format(path)))


def picture_format(path: str | os.PathLike[str], argument: str = "path") -> str:
    """The format of a file name: "png", "svg" or "pdf"; a ValueError that names the argument for any other suffix."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in FILE_METADATA:
        endings = ", ".join(f".{name}" for name in FILE_METADATA)
        raise checks.wrong(argument, f"the name of a file that ends in one of {endings}", repr(os.fspath(path)),
                           "Pictures are written as PNG, SVG or PDF.")
    return ending


def render_figure(figure: "Figure", format: str) -> bytes:
    """The bytes of a file in this format: "png", "svg" or "pdf"."""
    with figure_settings(), io.BytesIO() as file:
        figure.savefig(file, format=format, dpi=figure.dpi, metadata=checks.pick("format", format, FILE_METADATA))
        return file.getvalue()


class FontChoice(NamedTuple):
    """Font families in order of preference, and the characters that none of them has."""

    families: tuple[str, ...]
    missing: tuple[str, ...]


def choose_fonts(texts: Iterable[str]) -> FontChoice:
    """Font families of this machine that cover the characters of these texts as far as possible."""
    needed = frozenset(map(ord, "".join(texts)))
    return _choose_families(frozenset(code for code in needed if code > 0x7e))


@functools.lru_cache(maxsize=256)
def _choose_families(needed: frozenset[int]) -> FontChoice:
    families, missing = [DEFAULT_FONT], set(needed) - _font_characters(_default_font_file())
    while missing:
        # The font that has most of them, so that a word is drawn in few fonts.
        name, path = max(_font_files().items(), key=lambda font: len(missing & _font_characters(font[1])))
        if not missing & _font_characters(path):
            families.append(FALLBACK_FONT)
            break
        families.append(name)
        missing -= _font_characters(path)
    return FontChoice(tuple(families), tuple(chr(code) for code in sorted(missing)))


def _default_font_file() -> str:
    """The file of the default font."""
    from matplotlib.font_manager import fontManager

    return str(fontManager.findfont(DEFAULT_FONT))


@functools.cache
def _font_files() -> dict[str, str]:
    """Names and files of upright regular fonts: the default first, then sans-serif fonts, in a fixed order."""
    from matplotlib.font_manager import fontManager

    found = {font.name: font.fname for font in sorted(fontManager.ttflist, key=lambda font: font.fname, reverse=True)
             if font.style == "normal" and font.weight in (400, "normal", "regular", "book")
             and font.name != FALLBACK_FONT and not any(part in font.name for part in BITMAP_FONTS)}
    return dict(sorted(found.items(), key=lambda font: (font[0] != DEFAULT_FONT, "Sans" not in font[0], font)))


@functools.cache
def _font_characters(path: str) -> frozenset[int]:
    """The code points of a font file; none if it cannot be read or drawn."""
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
    except (OSError, RuntimeError):  # the file is gone, or FreeType cannot read it
        return frozenset()
    return frozenset(font.get_charmap()) if font.scalable else frozenset()
