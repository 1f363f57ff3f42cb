"""Lines of text: compared with a slow, literal reading of the rules, for any bytes, cut into blocks anywhere."""

import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.sources.text import DataError, InputFile, has_bom, read_lines, read_lines_with_ends

MARKS = [b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff"]  # the first begins UTF-32 too
# What breaks lines elsewhere, what breaks decoders, and letters of every length.
TEXT = [b"\n", b"\r", b"\r\n", b"\xe2\x80\xa8", b"\xc2\x85", b"\v", b"\f", b"\x1c", b"\xef\xbb\xbf", b"a", b"\xc3\xa9",
        b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"\t"]
BAD = [b"\0", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xc0\xaf", b"\xf5"]
ANY = st.lists(st.sampled_from(TEXT + BAD) | st.binary(max_size=3), max_size=12).map(b"".join)
GOOD = st.lists(st.sampled_from(TEXT), max_size=12).map(b"".join)


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
    ("Hallo Welt\n".encode("utf-16"), "corpus.de: It is UTF-16LE, not UTF-8. Convert it: iconv -f UTF-16LE -t UTF-8."),
    (b"\xfe\xff" + "Hallo\n".encode("utf-16-be"), "corpus.de: It is UTF-16BE, not UTF-8."),
    ("Hallo\n".encode("utf-32"), "corpus.de: It is UTF-32LE, not UTF-8."),
    (b"\0\0\xfe\xff" + "Hallo\n".encode("utf-32-be"), "corpus.de: It is UTF-32BE, not UTF-8."),
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


def test_memory_does_not_grow_with_the_file(file):
    path = file("a", b"a short line of text\n" * (2 << 20))  # 42 MiB
    tracemalloc.start()
    assert sum(1 for _ in read_lines(InputFile(path))) == 2 << 20
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


def test_it_is_as_fast_as_a_person_may_expect(file):
    """Half a million lines a second is far below what it does; a reader that goes letter by letter does not."""
    path = file("a", "Ein kurzer Satz über dies und das.\n" * 500_000)
    begin = time.perf_counter()
    assert sum(1 for _ in read_lines(InputFile(path))) == 500_000
    assert time.perf_counter() - begin < 1.0
