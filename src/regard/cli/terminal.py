"""What a stream can show: how wide it is, whether it can print shaded blocks, whether it takes bold text.

It only asks the stream and the environment, and knows nothing of what is printed. It prints no markup: text goes out
as it came in, wrapped.
"""

import os
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

BLOCKS = " ░▒▓█"
ASCII = " .:+#"
# How mathematics is written where only ASCII can be printed; any other character becomes a question mark.
SPELT = str.maketrans({"×": "x", "·": "*", "²": "^2", "√": "sqrt ", "≤": "<=", "≥": ">=", "→": "->", "Σ": "sum "})


@dataclass(frozen=True)
class Terminal:
    """A stream and what it can show."""

    out: TextIO
    width: int = 80
    shades: str = BLOCKS
    bold: bool = False

    @classmethod
    def of(cls, out: TextIO) -> "Terminal":
        """Ask the stream and the environment."""
        # At most 100 columns: longer lines are hard to read. COLUMNS, where set, wins over the terminal's answer.
        width = max(10, min(100, shutil.get_terminal_size().columns))
        bold = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(out, width, BLOCKS if _can_print(BLOCKS, out) else ASCII, bold)

    def heading(self, text: str) -> None:
        """A line that stands out, after an empty one."""
        lines = "\n".join(textwrap.wrap(self._printable(text), self.width))
        self.out.write(f"\n\x1b[1m{lines}\x1b[0m\n" if self.bold else f"\n{lines}\n")

    def text(self, text: str, indent: str = "") -> None:
        """Text, each of its lines wrapped on its own."""
        for line in self._printable(text).splitlines():
            margin = indent + line[: len(line) - len(line.lstrip())]
            wrapped = textwrap.wrap(line.strip(), self.width, initial_indent=margin, subsequent_indent=margin)
            self.out.write("\n".join(wrapped) + "\n")

    def beside(self, blocks: Sequence[Sequence[str]], gap: int = 3) -> None:
        """Blocks of lines beside each other, as many as the width allows, the rest below."""
        row: list[Sequence[str]] = []
        for block in blocks:
            if row and _widths([*row, block], gap) > self.width:
                self._row(row, gap)
                row = []
            row.append(block)
        self._row(row, gap)

    def shade(self, weight: float, cells: int = 1) -> str:
        """A weight between 0 and 1 as shaded cells."""
        level = int(weight * (len(self.shades) - 1) + 0.5)
        return self.shades[min(max(level, 0), len(self.shades) - 1)] * cells

    def _row(self, blocks: Sequence[Sequence[str]], gap: int) -> None:
        widths = [max(map(len, block)) for block in blocks]
        for index in range(max(map(len, blocks))):
            cells = [block[index] if index < len(block) else "" for block in blocks]
            line = (" " * gap).join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            self.out.write(self._printable(line.rstrip()) + "\n")

    def _printable(self, text: str) -> str:
        return text if self.shades == BLOCKS else text.translate(SPELT).encode("ascii", "replace").decode("ascii")


def _widths(blocks: Sequence[Sequence[str]], gap: int) -> int:
    return sum(max(map(len, block)) for block in blocks) + gap * (len(blocks) - 1)


def _can_print(text: str, out: TextIO) -> bool:
    """Whether the stream takes `text`, and the person has not asked for the C locale.

    In the C locale Python itself switches its streams to UTF-8, so the encoding alone does not tell.
    """
    if (os.environ.get("LC_ALL") or os.environ.get("LANG")) in ("C", "POSIX"):
        return False
    try:
        text.encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
