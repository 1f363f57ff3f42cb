"""A picture as a file: PNG, SVG or PDF, by the ending of its name.

The same figure gives the same bytes every time: no date, no random names and no version is written into a file. A file
is written when its bytes are there, so a figure that cannot be drawn leaves none. It does not know what is drawn.
"""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard import checks
from regard.inspection.pictures import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Type": None, "Format": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""What matplotlib would say of itself in a file of each format."""


def save(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write the figure to a file that ends in .png, .svg or .pdf."""
    Path(path).write_bytes(rendered(figure, format_of(path)))


def format_of(path: str | os.PathLike[str]) -> str:
    """The format that the ending of a name says; ask before work that would be lost."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in METADATA:
        endings = ", ".join(f".{name}" for name in METADATA)
        raise checks.wrong("path", f"the name of a file that ends in one of {endings}", repr(os.fspath(path)),
                           "Pictures are written as PNG, SVG or PDF.")
    return ending


def rendered(figure: "Figure", format: str) -> bytes:
    """The bytes of such a file: "png", "svg" or "pdf"."""
    with canvas.settings(), io.BytesIO() as file:
        figure.savefig(file, format=format, dpi=figure.dpi, metadata=checks.pick("format", format, METADATA))
        return file.getvalue()
