"""Text files: pipes, gzip, encodings, line ends, and two aligned files."""

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.sources import text
from regard.data.sources import text as plain
from regard.data.sources.text import (
    DataError,
    InputFile,
    Location,
    SentencePair,
    TargetSlot,
    TextLine,
    has_bom,
    printable,
    read_head,
    read_lines,
    read_lines_with_ends,
)

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
    assert refused(lambda: InputFile(tmp_path / "folder")) == "folder: This is a folder. Name the files in it."
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
    assert refused(input.blocks).startswith("standard input: A pipe can be read only once.")


def test_closed_standard_input(monkeypatch, refused):
    monkeypatch.setattr(sys, "stdin", None)
    assert refused(InputFile("-").blocks).startswith("standard input: The stream is closed.")


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


MARKS = [b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"]  # the first begins UTF-32 too
# What breaks lines elsewhere, what breaks decoders, and letters of every length.
TEXT_LINES = [b"\n", b"\r", b"\r\n", b"\xe2\x80\xa8", b"\xc2\x85", b"\v", b"\f", b"\x1c", b"\xef\xbb\xbf", b"a",
              b"\xc3\xa9",
        b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"\t"]
BAD = [b"\0", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xc0\xaf", b"\xf5"]
ANY = st.lists(st.sampled_from(TEXT_LINES + BAD) | st.binary(max_size=3), max_size=12).map(b"".join)
GOOD = st.lists(st.sampled_from(TEXT_LINES), max_size=12).map(b"".join)


class Fed:
    """An input whose blocks are given."""

    name = "corpus.de"

    def __init__(self, *blocks):
        self.parts = blocks

    def blocks(self):
        return iter(block for block in self.parts if block)


def cut(data, places):
    places = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(places)]


def literal(data):
    """The lines with their ends, byte by byte; and the line and byte of what is wrong, or None."""
    before = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    found, line, number = [], b"", 1
    for byte in [*data[before:], None]:
        if byte is None and not line:
            break
        line += b"" if byte is None else bytes([byte])
        if byte is None or byte == 10:
            skipped = before if number == 1 else 0
            for place in range(len(line)):
                if line[place] == 0 or not decodes(line, place):
                    return found, (number, place + 1 + skipped, line[place])
            end = b"" if byte is None else b"\r\n" if line.endswith(b"\r\n") else b"\n"
            found.append((line[:len(line) - len(end)].decode(), end.decode()))
            line, number = b"", number + 1
    if b"\r" in data and b"\n" not in data:
        return [], "lone CR"
    return found, None


def decodes(line, place):
    """Whether the byte at a place is part of a character that is whole."""
    for begin in range(max(0, place - 3), place + 1):
        for end in range(place + 1, begin + 5):
            try:
                if len(line[begin:end].decode()) == 1:
                    return True
            except UnicodeDecodeError:
                continue
    return False


def read(reader, input):
    found = []
    try:
        for line in reader(input):
            found.append(line)
    except DataError as error:
        return found, str(error)
    return found, None


@pytest.mark.parametrize("strategy", [ANY, GOOD], ids=["any", "good"])
def test_any_bytes_are_their_lines_or_an_error_with_its_place(strategy):
    @given(strategy, st.lists(st.integers(0, 100), max_size=5))
    def check(data, places):
        if any(data.startswith(mark) for mark in MARKS):
            return
        expected, wrong = literal(data)
        found, message = read(read_lines_with_ends, Fed(*cut(data, places)))
        assert found == expected
        if wrong is None:
            assert message is None
        elif wrong == "lone CR":
            assert message.startswith("corpus.de: Its lines end with a lone CR")
        else:
            assert message.startswith("corpus.de:{}: byte {}: 0x{:02X} ".format(*wrong))
        plain = read(read_lines, Fed(*cut(data, places)))
        assert plain == ([text for text, _ in expected], message)

    check()


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]))),
       st.sampled_from(["\n", "\r\n"]))
def test_what_is_joined_is_what_is_read(texts, end):
    data = "".join(f"{text}{end}" for text in texts).encode()
    if not data.startswith(b"\xef\xbb\xbf"):
        assert list(read_lines(Fed(data))) == texts


@pytest.mark.parametrize(("data", "message"), [
    (b"a\n" * 6 + b"elf Bytes..\xff\n", "corpus.de:7: byte 12: 0xFF is not UTF-8."),
    (b"\xef\xbb\xbfab\xe9", "corpus.de:1: byte 6: 0xE9 is not UTF-8. If the file is in Latin-1: iconv -f latin1 "),
    (b"\xef\xbb\xbfab\n\xe9", "corpus.de:2: byte 1: 0xE9 is not UTF-8."),
    (b"a\nb\0c\n", "corpus.de:2: byte 2: 0x00 (NUL) is not text."),
    (b"a\n\xed\xa0\xbd\xed\xb8\x80\n", "corpus.de:2: byte 1: 0xED is not UTF-8."),
    ("Hallo Welt\n".encode("utf-16"), "corpus.de: The file is UTF-16LE, not UTF-8."),
    (b"\xfe\xff" + "Hallo\n".encode("utf-16-be"), "corpus.de: The file is UTF-16BE, not UTF-8."),
    ("Hallo\n".encode("utf-32"), "corpus.de: The file is UTF-32LE, not UTF-8."),
    (b"\0\0\xfe\xff" + "Hallo\n".encode("utf-32-be"), "corpus.de: The file is UTF-32BE, not UTF-8."),
    ("Hallo Welt\n".encode("utf-16-le"), "corpus.de:1: byte 2: 0x00 (NUL) is not text. The file looks like UTF-16LE."),
    ("Hallo Welt\n".encode("utf-16-be"), "corpus.de:1: byte 1: 0x00 (NUL) is not text. The file looks like UTF-16BE."),
    ("àéù Hallo Welt\n".encode("utf-16-le"), "corpus.de:1: byte 1: 0xE0 is not UTF-8. The file looks like UTF-16LE."),
    (b"one\rtwo\rthree\r", "corpus.de: Its lines end with a lone CR, as on very old systems; only LF and CRLF end "
                           "a line. Convert it: tr '\\r' '\\n'."),
])
def test_what_is_refused(data, message):
    assert read(read_lines, Fed(data))[1].startswith(message)
    assert read(read_lines, Fed(*(bytes([byte]) for byte in data)))[1].startswith(message[:40])


def test_only_lf_and_crlf_end_a_line():
    inside = "a\u2028b\u2029c\x85d\ve\ff\x1cg\x1dh\x1ei\rj"
    text = f"{inside}\r\n{inside}\r\r\n\n\r\n{inside}"
    assert list(read_lines(Fed(text.encode()))) == [inside, f"{inside}\r", "", "", inside]


def test_a_mark_is_removed_at_the_start_alone():
    assert list(read_lines(Fed(b"\xef", b"\xbb", b"\xbfa\n\xef\xbb\xbfb"))) == ["a", "\ufeffb"]
    assert has_bom(Fed(b"\xef\xbb", b"\xbfa"))
    assert not has_bom(Fed(b"a\xef\xbb\xbf"))
    assert list(read_lines(Fed(b"\xef\xbb\xbf"))) == []


def test_nothing_has_no_lines_and_an_empty_line_is_one():
    assert list(read_lines(Fed())) == []
    assert list(read_lines(Fed(b"\n"))) == [""]
    assert list(read_lines(Fed(b"a\n\n"))) == ["a", ""]


def test_a_line_of_ten_megabytes(file):
    long = "é" * (5 << 20)
    path = file("a", f"a\n{long}\nb\n")
    assert list(read_lines(InputFile(path))) == ["a", long, "b"]
    bad = file("b", f"a\n{long}".encode() + b"\xff\n")
    with pytest.raises(DataError, match=f"b:2: byte {(10 << 20) + 1}: 0xFF"):
        list(read_lines(InputFile(bad)))


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_file(file):
    path = file("a", b"a short line of text\n" * (2 << 20))  # 42 MiB
    tracemalloc.start()
    assert sum(1 for _ in read_lines(InputFile(path))) == 2 << 20
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_it_is_as_fast_as_a_person_may_expect(file):
    """It takes twice the processor time of Python's own reader; one that goes letter by letter takes 17 times."""
    count = 200_000
    path = file("a", "Ein kurzer Satz über dies und das.\n" * count)

    def own_reader():
        with open(path, encoding="utf-8") as lines:
            yield from lines

    def seconds(read):
        begin = time.process_time()
        assert sum(1 for _ in read()) == count
        return time.process_time() - begin

    plain, ours = (min(seconds(read) for _ in range(3)) for read in (own_reader, lambda: read_lines(InputFile(path))))
    assert ours < 8 * plain


def pairs(first, second):
    return plain.read_aligned_lines(InputFile(first), InputFile(second))


def test_lines_side_by_side(file):
    source, target = file("a.en", "one\n\n three\u2028\n"), file("a.fr.gz", "un\r\n\u00a0\r\ntrois\r\n")
    found = list(pairs(source, target))
    assert found == [SentencePair("one", "un", Location(source, 1)), SentencePair("", "\u00a0", Location(source, 2)),
                     SentencePair(" three\u2028", "trois", Location(source, 3))]


@pytest.mark.parametrize(("first", "second", "message"), [
    ("a\n" * 1200, "b\n" * 1198, "a.en has 1,200 lines, but a.fr has 1,198 lines."),
    ("a\n", "b\nb\nb", "a.fr has 3 lines, but a.en has 1 line."),
    ("", "b\n", "a.fr has 1 line, but a.en has 0 lines."),
    ("a\u2028a\n", "b\nb\n", "a.fr has 2 lines, but a.en has 1 line."),
])
def test_different_counts_are_named_at_the_end(file, refused, first, second, message):
    one, other = file("a.en", first), file("a.fr", second)
    assert refused(lambda: pairs(one, other)).startswith(message)


def test_what_has_a_partner_is_given_before_the_counts_differ(file):
    begun = pairs(file("a.en", "1\n2\n3\n"), file("a.fr", "1\n2\n"))
    assert [next(begun).source, next(begun).source] == ["1", "2"]
    with pytest.raises(DataError):
        next(begun)


def test_a_bad_byte_on_either_side_is_named(file, refused):
    good, bad = file("a.en", b"a\nb\n"), file("a.fr", b"a\n\xff\n")
    assert refused(lambda: pairs(good, bad)).startswith("a.fr:2: byte 1: 0xFF")
    assert refused(lambda: pairs(bad, good)).startswith("a.fr:2: byte 1: 0xFF")


def test_texts(file):
    path = file("a", "one\n\ntwo")
    assert list(plain.read_text_lines(InputFile(path))) == \
        [TextLine("one", Location(path, 1)), TextLine("", Location(path, 2)), TextLine("two", Location(path, 3))]


def test_pieces_keep_the_ends(file):
    pieces = list(plain.parse_document(InputFile(file("a", "one\r\n\ntwo"))))
    assert [piece.source if isinstance(piece, TargetSlot) else piece for piece in pieces] == \
        ["one", b"\r\n", "", b"\n", "two", b""]


@pytest.mark.parametrize(("text", "reason"), [
    ("a\nb", "line break"), ("a\r", "line break"), ("\0", "NUL"), ("\ud800", "surrogate")])
def test_a_target_must_be_one_line_of_text(text, reason):
    with pytest.raises(DataError, match=f"^f:3: .*{reason}"):
        plain.encode_line(Location("f", 3), text)


def test_a_target_may_have_what_breaks_lines_elsewhere():
    assert plain.encode_line(Location("f", 1), "a\u2028\rb\x85") == "a\u2028\rb\x85".encode()
