"""The terminal: widths, shades, escapes, and the progress meter."""

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.cli.output import ProgressMeter
from regard.terminal import ASCII_SHADES, BLOCK_SHADES, SPACES, Terminal, escape_unprintable

MEANT_FOR_PEOPLE = ("LC_ALL", "LANG", "NO_COLOR", "TERM", "COLUMNS")


class Stream(io.StringIO):
    """A stream with an encoding, that is or is not a terminal."""

    def __init__(self, encoding="utf-8", tty=True):
        super().__init__()
        self.names, self.tty = encoding, tty

    @property
    def encoding(self):
        return self.names

    def isatty(self):
        return self.tty


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in MEANT_FOR_PEOPLE:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("encoding", "environment", "shades"),
    [
        ("utf-8", {}, BLOCK_SHADES),
        ("utf-8", {"LANG": "de_DE.UTF-8"}, BLOCK_SHADES),
        ("utf-8", {"LANG": "C.UTF-8"}, BLOCK_SHADES),
        ("utf-8", {"LANG": "C"}, ASCII_SHADES),
        ("utf-8", {"LANG": "de_DE.UTF-8", "LC_ALL": "POSIX"}, ASCII_SHADES),
        ("utf-8", {"LANG": "C", "LC_ALL": "de_DE.UTF-8"}, BLOCK_SHADES),
        ("cp437", {}, BLOCK_SHADES),
        ("latin-1", {}, ASCII_SHADES),
        ("ascii", {}, ASCII_SHADES),
        (None, {}, ASCII_SHADES),
    ],
)
def test_blocks_where_they_can_be_printed(monkeypatch, encoding, environment, shades):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Terminal.of(Stream(encoding)).shades == shades


@pytest.mark.parametrize(
    ("tty", "environment", "bold"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),  # an empty value does not count: no-color.org
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_bold_only_where_it_is_wanted(monkeypatch, tty, environment, bold):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Stream(tty=tty)
    Terminal.of(stream).heading("Masks")
    assert ("\x1b" in stream.getvalue()) == bold


def test_width_follows_the_terminal_within_reason(monkeypatch):
    for columns, width in (("20", 20), ("1", 10), ("1000", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        assert Terminal.of(Stream()).width == width


def test_text_wraps_each_line_and_keeps_its_margin():
    stream = Stream()
    Terminal(stream, width=10).text("one two three\n  four five six")
    assert stream.getvalue() == "one two\nthree\n  four\n  five six\n"


def test_text_is_not_markup():
    stream = Stream()
    Terminal(stream, bold=True).text("[bold]x[/bold] :smile: {0} %s")
    assert stream.getvalue() == "[bold]x[/bold] :smile: {0} %s\n"


@pytest.mark.parametrize("write", ["heading", "text", "beside"])
def test_only_ascii_where_nothing_else_can_be_printed(write):
    stream = Stream("ascii", tty=False)
    terminal = Terminal.of(stream)
    getattr(terminal, write)([["8 × 8, ≤ 1e-12, ü"]] if write == "beside" else "8 × 8, ≤ 1e-12, ü")
    assert stream.getvalue().strip() == "8 x 8, <= 1e-12, ?"


def test_blocks_stand_beside_each_other_while_they_fit():
    blocks = [["ab", "c"], ["d"], ["efg"]]
    wide, narrow = Stream(), Stream()
    Terminal(wide, width=20).beside(blocks)
    Terminal(narrow, width=6).beside(blocks)
    assert wide.getvalue() == "ab   d   efg\nc\n"
    assert narrow.getvalue() == "ab   d\nc\nefg\n"


@given(st.floats(0, 1))
def test_shade_grows_with_the_weight(weight):
    terminal = Terminal(Stream())
    level = BLOCK_SHADES.index(terminal.shade(weight))
    assert abs(level / 4 - weight) <= 1 / 8
    assert len(terminal.shade(weight, 3)) == 3


@pytest.mark.parametrize(("weight", "shade"), [(-1.0, " "), (0.0, " "), (1.0, "█"), (7.0, "█")])
def test_shade_of_the_ends_and_beyond(weight, shade):
    assert Terminal(Stream()).shade(weight) == shade


class Screen(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def _able(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


def shown(terminal, results=None):
    """What a meter shows of ten entries, one each second, from the second of twenty on."""
    clock, stream = Clock(), Screen(terminal)
    meter = ProgressMeter(stream, results, clock)
    meter.begin(2, 20)
    for done in range(3, 13):
        clock.now += 10.0
        meter.show(done)
        meter.show(done)
    meter.clear()
    return stream.getvalue()


def test_a_terminal_has_one_line_that_is_drawn_anew():
    found = shown(True).split("\r\x1b[K")
    assert found[0] == found[-1] == ""
    assert len(found) == 12
    assert found[1] == "3 of 20, 0.1/s, 2 min 50 s left"
    assert shown(True, Screen(False)) == shown(True)


def test_elsewhere_there_is_a_line_now_and_then():
    assert shown(False).split("\n") == ["5 of 20, 0.1/s, 2 min 30 s left",
                                        "8 of 20, 0.1/s, 2 min 0 s left",
                                        "11 of 20, 0.1/s, 1 min 30 s left", ""]


def test_results_that_are_seen_come_need_no_meter(monkeypatch):
    assert shown(True, Screen(True)) == shown(False, Screen(False)) == shown(False, Screen(True)) == ""
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(True)


def test_a_quiet_meter_shows_nothing():
    for terminal in (True, False):
        clock, stream = Clock(), Screen(terminal)
        meter = ProgressMeter(stream, clock=clock, quiet=True)
        clock.now = 100.0
        meter.show(50)
        meter.clear()
        assert stream.getvalue() == ""


def test_a_long_value_of_a_table_continues_below_itself():
    stream = io.StringIO()
    Terminal(stream, width=30).table({"Files": "a, b", "Signature": "one two three four five six"})
    assert stream.getvalue() == "Files      a, b\nSignature  one two three four\n           five six\n"


def test_a_total_that_is_not_known_and_long_works():
    clock, stream = Clock(), Screen(False)
    meter = ProgressMeter(stream, clock=clock)
    clock.now = 100.0
    meter.show(50)
    assert stream.getvalue() == "50 done, 0.5/s\n"
    meter.begin(0, 10_000)
    clock.now = 200.0
    meter.show(100)
    assert stream.getvalue().endswith("100 of 10,000, 1.0/s, 2 h 45 min left\n")


@pytest.mark.parametrize(("text", "shown"), [
    ("Oui\xa0!", "Oui\xa0!"), ("20\u202f%", "20\u202f%"), ("猫\u3000犬", "猫\u3000犬"), ("\xa0 ", "\\xa0 "),
    ("\u3000", "\\u3000"), ("a\x1b[2Jb", "a\\x1b[2Jb"), ("a\tb\nc", "a\\tb\\nc"),
    ("a\u2028b\u200bc", "a\\u2028b\\u200bc"), ("", ""), (" ", " ")])
def test_spaces_of_other_scripts_are_shown_and_controls_are_written_out(text, shown):
    assert escape_unprintable(text) == shown


def test_wide_and_no_break_spaces_are_spaces_in_ascii():
    out = Stream(encoding="ascii")
    Terminal.of(out).text("Oui\xa0! 20\u202f% a\u3000b c\u2009d")
    assert out.getvalue() == "Oui ! 20 % a b c d\n"
    assert [*SPACES] == [char for char in map(chr, range(0x80, 0x110000)) if unicodedata.category(char) == "Zs"]
