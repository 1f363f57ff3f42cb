"""Blocks of bytes from files, pipes and standard input: gzip of every kind, and what cannot be read."""

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import threading
import tracemalloc
from types import SimpleNamespace

import pytest

from regard.data.sources import text
from regard.data.sources.text import DataError, InputFile, printable, read_head

TEXT = b"".join(b"line %d\n" % number for number in range(1000))
PACKED = gzip.compress(TEXT)


def content(path):
    return b"".join(InputFile(path).blocks())


@pytest.mark.parametrize("name", ["a", "a.gz", "a b", "[a]{b}*?.txt", "-rf", "--", "ä€😀", "a\nb", "a\x1b[31m", "%s"])
def test_names_are_just_names(file, name):
    assert content(file(name, TEXT)) == TEXT


def test_gzip_is_recognised_by_content(file):
    assert content(file("a.txt", PACKED)) == TEXT


def test_gzip_in_members_with_zeros_behind_them(file):
    members = gzip.compress(b"a\n") + gzip.compress(b"") + PACKED + b"\0" * 512
    assert content(file("a", members)) == b"a\n" + TEXT
    assert content(file("a", gzip.compress(b"a\n") + b"\0" * 7 + PACKED)) == b"a\n" + TEXT


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_gzip_cut_into_blocks_anywhere(file, monkeypatch, size):
    monkeypatch.setattr(text, "BLOCK_BYTES", size)
    assert content(file("a.gz", TEXT)) == TEXT
    assert content(file("b", gzip.compress(b"a") + b"\0\0" + gzip.compress(b"b") + b"\0")) == b"ab"
    assert content(file("c", TEXT)) == TEXT


def test_every_truncation_of_gzip_is_seen(file):
    packed = gzip.compress(b"some lines\nof text\n")
    for size in range(2, len(packed)):
        with pytest.raises(DataError, match="ends too early"):
            content(file("a", packed[:size]))


def test_every_flipped_bit_behind_the_header_is_seen_or_harmless(file):
    packed = gzip.compress(b"some lines\nof text\n")
    for place in range(10, len(packed)):
        damaged = bytearray(packed)
        damaged[place] ^= 16
        try:
            found = content(file("a", bytes(damaged)))
        except DataError:
            continue
        assert found == b"some lines\nof text\n"


@pytest.mark.parametrize(("name", "data", "parts"), [
    ("a.gz", PACKED + b"garbage", ["a.gz: ", "not gzip"]),
    ("a.gz", PACKED + b"\0\0\x1f", ["a.gz: ", "ends too early"]),
    ("b.GZ", b"plain\n", ["The name says gzip, but the content is not"]),
    ("c.gz", b"", ["The name says gzip, but the content is not"]),
    ("a", bz2.compress(b"x"), ["bzip2", "gzip"]),
    ("a", lzma.compress(b"x"), ["xz"]),
    ("a", b"PK\x03\x04rest", ["zip"]),
    ("a", b"\x28\xb5\x2f\xfdrest", ["zstd"]),
])
def test_what_is_packed_wrongly(tmp_path, refused, name, data, parts):
    (tmp_path / name).write_bytes(data)
    message = refused(InputFile(tmp_path / name).blocks)
    assert all(part in message for part in parts), message


def test_a_text_may_begin_like_a_packer(file):
    assert content(file("a", b"BZhello PK")) == b"BZhello PK"


def test_what_is_no_file(tmp_path, file, refused):
    (tmp_path / "folder").mkdir()
    assert refused(lambda: InputFile(tmp_path / "folder")) == "folder: This is a directory. Name the files in it."
    assert refused(lambda: InputFile(tmp_path / "none")) == "none: There is no such file. Check the name."
    inside = os.path.join(file("a", b""), "b")
    assert refused(lambda: InputFile(inside)) == "a/b: There is no such file. Check the name."
    assert refused(lambda: InputFile(f"{tmp_path}/a\0b")).startswith(r"a\x00b: No file can have this name")
    assert "cannot be read" in refused(lambda: InputFile(f"{tmp_path}/{'a' * 5000}"))


def test_no_permission(file, refused, monkeypatch):
    path = file("a", b"text")
    os.chmod(path, 0)
    if os.geteuid() == 0:  # who may read everything
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert refused(lambda: InputFile(path)) == "a: No permission to read it. Ask its owner, or `chmod +r`."


def test_a_file_that_goes_away_or_fails_later(file, refused, monkeypatch):
    input = InputFile(file("a", b"text"))
    os.unlink(input.path)
    assert refused(input.blocks) == "a: There is no such file. Check the name."


def test_standard_input_is_read_once(monkeypatch, refused):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(PACKED)))
    input = InputFile("-")
    assert b"".join(input.blocks()) == TEXT
    assert refused(input.blocks).startswith("standard input: It was read already, and can be read only once.")


def test_closed_standard_input(monkeypatch, refused):
    monkeypatch.setattr(sys, "stdin", None)
    assert refused(InputFile("-").blocks).startswith("standard input: It is closed.")


def test_a_pipe_is_read_once(tmp_path, refused):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(TEXT,))
    writer.start()
    input = InputFile(pipe)
    assert b"".join(input.blocks()) == TEXT
    writer.join()
    assert "only once" in refused(input.blocks)


def test_a_file_is_read_again_and_again(file):
    input = InputFile(file("a.gz", TEXT))
    assert [b"".join(input.blocks()) for _ in range(3)] == [TEXT] * 3


def test_standard_input_gives_what_is_there_without_waiting_for_more():
    code = ("import sys; from regard.data.sources.text import InputFile\n"
            "for block in InputFile('-').blocks(): sys.stdout.buffer.write(block); sys.stdout.flush()")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for line in (b"hi\n", b"there\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line  # it came though the input is still open
        process.stdin.close()
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("name", ["straße €", "a\udcffb", "tab\there"])
def test_names_in_the_c_locale(tmp_path, name):
    path = os.path.join(os.fsencode(tmp_path), os.fsencode(name))
    with open(path, "wb") as file:
        file.write(b"text\n")
    code = ("import sys; from regard.data.sources.text import InputFile\n"
            "input = InputFile(sys.argv[1]); sys.stdout.buffer.write(b''.join(input.blocks()))\n"
            "print(input.name, file=sys.stderr)")
    environment = {**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code, path], env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"text\n")
    assert done.stderr.decode("ascii").strip().endswith({
        "straße €": r"stra\xc3\x9fe \xe2\x82\xac", "a\udcffb": r"a\xffb", "tab\there": r"tab\there"}[name])


def test_memory_does_not_grow_with_what_gzip_unpacks(file):
    path = file("bomb.gz", b"\0" * (64 << 20))
    tracemalloc.start()
    assert sum(map(len, InputFile(path).blocks())) == 64 << 20
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_shown_obeys_nothing():
    assert printable("a b[c]äל😀") == "a b[c]äל😀"
    assert printable("\x1b[2J\r\n\t\x00\u202e\u200b\udc9b") == r"\x1b[2J\r\n\t\x00\u202e\u200b\x9b"


def test_the_head_is_no_longer_than_it_must_be():
    blocks = iter([b"a", b"b", b"c", b"d"])
    head, rest = read_head(blocks, [b"abX"])
    assert (head, list(rest)) == (b"abc", [b"d"])
    head, rest = read_head(iter([b"x", b"y"]), [b"abX"])
    assert (head, list(rest)) == (b"x", [b"y"])
    assert read_head(iter([]), [b"a"])[0] == b""
