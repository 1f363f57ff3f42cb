"""What a stream can show: its width, its characters, bold text.

    terminal = Terminal.of(sys.stderr)
    terminal.text("A long line, wrapped")       also headings, tables, and blocks side by side

Control characters in texts of users are written out (`escape_unprintable`); texts are never read as markup.
"""

import os
import shutil
import textwrap
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

BLOCK_SHADES = " ░▒▓█"
ASCII_SHADES = " .:+#"
SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
"""All that Unicode has besides the space of ASCII."""
# For terminals that print ASCII only; any other character becomes a question mark.
ASCII_SPELLING = str.maketrans(
    {"×": "x", "·": "*", "²": "^2", "√": "sqrt ", "≤": "<=", "≥": ">=", "→": "->", "Σ": "sum "}
    | dict.fromkeys(SPACES, " "))


def path_argument(path: str) -> str:
    """A path as an argument of a command: a leading dash would make it an option."""
    return f"./{path}" if path.startswith("-") else path


def escape_unprintable(text: str) -> str:
    """A text on one line, with every unprintable character written out.

    No-break spaces (French) and wide ones (Japanese) are shown as they are, unless there is nothing else to see.
    """
    if text.isprintable():
        return text
    kept = "" if text.isspace() else SPACES
    return "".join(char if char.isprintable() or char in kept else char.encode("unicode_escape").decode("ascii")
                   for char in text)


@dataclass(frozen=True)
class Terminal:
    """A stream and what it can show."""

    out: TextIO
    width: int = 80
    shades: str = BLOCK_SHADES
    bold: bool = False

    @classmethod
    def of(cls, out: TextIO) -> "Terminal":
        """Ask the stream and the environment."""
        # At most 100 columns: longer lines are hard to read. COLUMNS, if set, wins over the terminal's answer.
        width = max(10, min(100, shutil.get_terminal_size().columns))
        bold = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(out, width, BLOCK_SHADES if _can_print(BLOCK_SHADES, out) else ASCII_SHADES, bold)

    def heading(self, text: str) -> None:
        """Print a bold line after an empty one."""
        lines = "\n".join(textwrap.wrap(self._printable(text), self.width))
        self.out.write(f"\n\x1b[1m{lines}\x1b[0m\n" if self.bold else f"\n{lines}\n")

    def text(self, text: str, indent: str = "") -> None:
        """Print a text, each of its lines wrapped on its own."""
        for line in self._printable(text).splitlines():
            margin = indent + line[: len(line) - len(line.lstrip())]
            wrapped = textwrap.wrap(line.strip(), self.width, initial_indent=margin, subsequent_indent=margin)
            self.out.write("\n".join(wrapped) + "\n")

    def table(self, rows: Mapping[str, str]) -> None:
        """Print names and their values in two columns; further lines of a value begin below its first."""
        width = max(map(len, rows))
        for name, value in rows.items():
            head = f"{name.ljust(width)}  "
            indent = " " * len(head) if len(head) <= self.width // 2 else ""
            lines = textwrap.wrap(self._printable(head + value), self.width, subsequent_indent=indent)
            self.out.write("\n".join(lines) + "\n")

    def beside(self, blocks: Sequence[Sequence[str]], gap: int = 3) -> None:
        """Print blocks of lines side by side, as many as the width allows, the rest below."""
        row: list[Sequence[str]] = []
        for block in blocks:
            if row and _total_width([*row, block], gap) > self.width:
                self._row(row, gap)
                row = []
            row.append(block)
        self._row(row, gap)

    def columns(self, rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> None:
        """Print rows of cells in columns; see `align_columns`."""
        self.beside([align_columns(rows, left)])

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
        if self.shades == BLOCK_SHADES:
            return text
        return text.translate(ASCII_SPELLING).encode("ascii", "replace").decode("ascii")


def align_columns(rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> list[str]:
    """Lines of rows of cells, each column as wide as its widest cell.

    Args:
        left: the numbers of the columns that are aligned to the left, from 0; the others are aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) if number in left else cell.rjust(width)
                      for number, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]


def _total_width(blocks: Sequence[Sequence[str]], gap: int) -> int:
    return sum(max(map(len, block)) for block in blocks) + gap * (len(blocks) - 1)


def _can_print(text: str, out: TextIO) -> bool:
    """Whether the stream takes `text`, and the locale is not C.

    In the C locale Python itself switches its streams to UTF-8, so the encoding alone does not tell.
    """
    if (os.environ.get("LC_ALL") or os.environ.get("LANG")) in ("C", "POSIX"):
        return False
    try:
        text.encode(out.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
