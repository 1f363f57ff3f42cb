"""Lines, entries and values that no memory holds: refused while they are read, with their file and line."""

import gzip
import subprocess
import sys
import zlib

import pytest

from regard.data.sources import formats, text, tmx
from regard.data.sources.text import MAX_LINE_BYTES, MAX_RUNNING_TEXT_BYTES, DataError, InputFile, decode_chunks
from regard.training.tasks.language import read_pieces

MEGABYTE = 1 << 20
TMX_START = b'<tmx version="1.4"><header srclang="en"/><body>\n'
BOMBS = {
    "bomb.tsv": (b"a\tb\nc\td\n", b"a"),
    "bomb.jsonl": (b'{"source": "a", "target": "b"}\n{"source": "c", "target": "d"}\n', b"["),
    "bomb.po": (b'msgid "a"\nmsgstr "b"\n\nmsgid "', b"c"),
    "bomb.tmx": (TMX_START + b'<tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="fr"><seg>', b"b"),
}


def write_bomb(path, start, unit, megabytes):
    """A gzip file of about a thousandth of its content."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = unit * (MEGABYTE // len(unit))
    with open(path, "wb") as file:
        file.write(packer.compress(start))
        for _ in range(megabytes):
            file.write(packer.compress(block))
        file.write(packer.flush())
    return str(path)


@pytest.mark.parametrize("name", BOMBS)
def test_a_line_of_gigabytes_is_refused_with_its_number(tmp_path, name):
    start, unit = BOMBS[name]
    path = write_bomb(tmp_path / f"{name}.gz", start, unit, 40)
    line = start.count(b"\n") + 1
    with pytest.raises(DataError, match=rf"{name}\.gz:{line}: .* 16 MiB"):
        list(formats.read_pairs([path]))
    with pytest.raises(DataError, match=rf"{name}\.gz:{line}: .* 16 MiB"):
        list(formats.read_sources(path))


def test_a_line_of_plain_text(tmp_path):
    path = write_bomb(tmp_path / "bomb.en", b"one\ntwo\n", b"a", 40)
    (tmp_path / "other.fr").write_text("un\ndeux\ntrois\n")
    with pytest.raises(DataError, match=r"bomb\.en:3: .* 16 MiB"):
        list(formats.read_pairs([path, str(tmp_path / "other.fr")]))


@pytest.mark.parametrize("unit", [b'"' + b'a' * 500 + b'"\n', b"# " + b"c" * 500 + b"\n"])
def test_an_entry_of_many_lines_is_refused(tmp_path, unit):
    path = write_bomb(tmp_path / "bomb.po", b'msgid "a"\nmsgstr ""\n', unit, 40)
    with pytest.raises(DataError, match=r"bomb\.po:\d+: .* 16 MiB"):
        list(formats.read_sources(path))


@pytest.mark.parametrize(("start", "unit"), [
    (TMX_START + b'<tu a="', b"x"), (TMX_START, b"<!-- -->"), (TMX_START + b"<tu><note>", b"y\n"),
    (TMX_START + b'<tu><tuv xml:lang="en"><seg>', b"<hi>a</hi>"), (TMX_START + b"<", b"t"),
])
def test_a_unit_of_gigabytes_is_refused(tmp_path, start, unit):
    path = write_bomb(tmp_path / "bomb.tmx", start, unit, 40)
    with pytest.raises(DataError, match=r"bomb\.tmx:\d+: .* 16 MiB"):
        list(formats.read_pairs([path]))


def test_elements_inside_each_other(tmp_path):
    path = write_bomb(tmp_path / "bomb.tmx", TMX_START, b"<a>", 2)
    with pytest.raises(DataError, match=rf"bomb\.tmx:2: .*{tmx.MAX_DEPTH:,}"):
        list(formats.read_pairs([path]))


def test_a_deep_json_value(tmp_path):
    path = tmp_path / "deep.jsonl"
    path.write_text('{"source": "a", "target": "b"}\n{"source": ' + "[" * 10**6 + "]" * 10**6 + "}\n")
    with pytest.raises(DataError, match=r"deep\.jsonl:2: "):
        list(formats.read_pairs([str(path)]))


def test_a_line_of_ten_megabytes_is_read(tmp_path):
    path = tmp_path / "long.tsv"
    path.write_bytes(b"a\tb\n" + b"c" * 10_000_000 + b"\td\n")
    assert [len(pair.source) for pair in formats.read_pairs([str(path)])] == [1, 10_000_000]


@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext\n"])
def test_the_limit_itself(monkeypatch, tmp_path, end):
    monkeypatch.setattr(text, "BLOCK_BYTES", 7)
    path = tmp_path / "a.txt"
    for size, allowed in ((50, True), (107, False)):
        path.write_bytes(b"x\n" + b"a" * size + end)
        if allowed:
            assert "".join(decode_chunks(InputFile(path), 100)) == path.read_text()
        else:
            with pytest.raises(DataError, match=r"a\.txt:2: "):
                list(decode_chunks(InputFile(path), 100))


def test_many_lines_are_no_long_line(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a line\n" * (MAX_LINE_BYTES // 4), 1))
    assert sum(len(chunk) for chunk in decode_chunks(InputFile(path))) == 7 * (MAX_LINE_BYTES // 4)


def test_running_text_may_be_one_long_line(tmp_path):
    assert MAX_RUNNING_TEXT_BYTES > 100_000_000  # text8
    path = tmp_path / "text.txt"
    path.write_bytes(b"a" * (MAX_LINE_BYTES + 2 * MEGABYTE))
    assert [len(piece) for piece in read_pieces([InputFile(path)])] == [MAX_LINE_BYTES + 2 * MEGABYTE]
    path = write_bomb(tmp_path / "bomb.txt", b"x\n", b"a", (MAX_RUNNING_TEXT_BYTES >> 20) + 2)
    with pytest.raises(DataError, match=r"bomb\.txt:2: .* 128 MiB"):
        list(read_pieces([InputFile(path)]))


@pytest.mark.thorough
@pytest.mark.parametrize("name", BOMBS)
def test_300_megabytes_are_refused_in_a_fraction_of_the_memory(tmp_path, name):
    start, unit = BOMBS[name]
    path = write_bomb(tmp_path / f"{name}.gz", start, unit, 300)
    program = ("import pathlib\nfrom regard.data.sources import formats\n"
               f"try: list(formats.read_pairs([{path!r}]))\n"
               "except ValueError as error: print(error)\n"
               "print(pathlib.Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])")
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    message, kilobytes = shown.splitlines()
    assert "16 MiB" in message
    assert int(kilobytes) < 200_000
