"""The texts of a PDF that Chromium printed, without a library: fonts have tables from glyphs to characters."""

import re
import zlib


def texts(pdf):
    """Every run of text, in the order in which it is painted."""
    bodies = {int(found[1]): pdf[found.end():] for found in re.finditer(rb"(?:^|\n)(\d+) 0 obj\b", pdf)}
    tables = {}
    for number, body in bodies.items():
        told = re.search(rb"/ToUnicode (\d+) 0 R", body[:body.index(b"endobj")])
        if told:
            tables[number] = _characters(_stream(bodies[int(told[1])]).decode("latin-1"))
    found = []
    for body in bodies.values():
        for block in re.findall(rb"BT\n(.*?)ET", _stream(body), re.DOTALL):
            run, table = "", {}
            for font, glyphs in re.findall(rb"/F(\d+) [\d.]+ Tf|<([0-9A-Fa-f]+)> Tj", block):
                table = tables.get(int(font), {}) if font else table
                run += "".join(table.get(int(glyphs[at:at + 4], 16), "?") for at in range(0, len(glyphs), 4))
            found.append(run)
    return found


def _stream(body):
    """The bytes of an object's stream, unpacked; none if it has no stream of text."""
    start = re.match(rb"[^>]*?<<.*?>>\s*stream\r?\n", body[:2000], re.DOTALL)
    if start is None or b"FlateDecode" not in start[0] or b"/Image" in start[0]:
        return b""
    return zlib.decompressobj().decompress(body[start.end():])


def _characters(text):
    """From glyphs to characters."""
    table = {}
    for block in re.findall(r"beginbfchar(.*?)endbfchar", text, re.DOTALL):
        for glyph, code in re.findall(r"<(\w+)> <(\w+)>", block):
            table[int(glyph, 16)] = bytes.fromhex(code).decode("utf-16-be")
    for block in re.findall(r"beginbfrange(.*?)endbfrange", text, re.DOTALL):
        for low, high, code in re.findall(r"<(\w+)> <(\w+)> <(\w+)>", block):
            for step in range(int(high, 16) - int(low, 16) + 1):
                table[int(low, 16) + step] = chr(int(code, 16) + step)
    return table
