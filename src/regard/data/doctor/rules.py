"""The reasons for which a pair is left out, or is worth a look: each a name, a sentence, and a test.

A rule is started with the limits of a `FilterConfig` and gives a function of the two texts. Most rules keep nothing
between pairs; `duplicate` and `repeated_source` remember which texts they saw, so each reading of the data starts anew.
Which rules drop a pair is in the config too. This file reads no data and counts nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from regard.config import Config, choice, number, whole
from regard.data.doctor import characters, seen


class Found(NamedTuple):
    """What is wrong with a pair, how bad it is beside others of its rule, and which characters to show of each text."""

    what: str
    badness: float = 1.0
    source_at: int = 0
    target_at: int = 0


Find = Callable[[str, str], Found | None]

NAMES = (
    "empty", "too_long", "ratio", "copy", "duplicate",
    "replacement", "mojibake", "control", "line_breaks", "decomposed", "outer_spaces", "repeated_source",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FilterConfig(Config):
    """Which pairs are left out.

    Args:
        longest_words: the most words, parted by white space, that a text may have.
        longest_characters: the most characters, for languages without spaces and for what is no language.
        ratio: how many times longer one text may be than the other, in characters.
        ratio_from: below so many characters in the longer text the ratio says nothing, and is not asked.
        drop: the rules that leave a pair out; the others are only told of.
    """

    longest_words: int = whole(256, least=1)
    longest_characters: int = whole(2000, least=1)
    ratio: float = number(6.0, least=1)
    ratio_from: int = whole(40, least=0)
    drop: tuple[str, ...] = choice(NAMES, ("empty", "too_long", "ratio", "copy", "duplicate"))


@dataclass(frozen=True)
class Rule:
    """A reason to leave a pair out or to look at it.

    Args:
        sentence: what is the matter with such a pair.
        start: makes the test, for the limits of a config.
        rank: its place among the lines to look at first, the smallest before; 0 where there is nothing to look at.
        fine: a quick test of many texts; where it holds for all sources and all targets, the rule finds nothing there.
    """

    name: str
    sentence: str
    start: Callable[[FilterConfig], Find]
    rank: int = 0
    fine: Callable[[list[str]], bool] = lambda texts: False


def started(config: FilterConfig, names: Iterable[str]) -> list[tuple[Rule, Find]]:
    """The tests of these rules, ready to read the data once, in the order of `RULES`."""
    asked = set(names)
    return [(rule, rule.start(config)) for rule in RULES if rule.name in asked]


def _empty(config: FilterConfig) -> Find:
    visible = characters.visible

    def find(source: str, target: str) -> Found | None:
        if visible(source):
            return None if visible(target) else Found("the target is empty")
        # Two empty texts are a gap between paragraphs; one alone may be a lost line.
        return Found("the source is empty") if visible(target) else Found("both are empty", 0.5)

    return find


def _too_long(config: FilterConfig) -> Find:
    most, words = config.longest_characters, config.longest_words
    surely_short = min(most, 2 * words)  # as so many characters have at most half as many words

    def find(source: str, target: str) -> Found | None:
        if len(source) <= surely_short and len(target) <= surely_short:
            return None
        side, text = ("source", source) if len(source) >= len(target) else ("target", target)
        if len(text) > most:
            return Found(f"{side}, {len(text)} characters", len(text))
        for side, text in ("source", source), ("target", target):
            count = len(text.split())
            if count > words:
                return Found(f"{side}, {count} words", len(text))
        return None

    return find


def _ratio(config: FilterConfig) -> Find:
    limit, least = config.ratio, config.ratio_from

    def find(source: str, target: str) -> Found | None:
        a, b = len(source.strip()), len(target.strip())
        if (a < least and b < least) or (a <= limit * b and b <= limit * a):
            return None
        times = max(a, b) / max(1, min(a, b))
        return Found(f"{a} characters against {b}", times)

    return find


def _copy(config: FilterConfig) -> Find:
    def find(source: str, target: str) -> Found | None:
        # Numbers and signs are the same in most languages, and rightly so.
        if source.strip() == target.strip() and any(map(str.isalpha, source)):
            return Found("the target is the source", len(source))
        return None

    return find


def _duplicate(config: FilterConfig) -> Find:
    add, number_of = seen.Seen().add, seen.number

    def find(source: str, target: str) -> Found | None:
        return None if add(number_of(source, target)) else Found("the same pair was there before")

    return find


def _repeated_source(config: FilterConfig) -> Find:
    # Python's own hash is ten times as fast. It is another in every run, so nothing is dropped by it.
    add, number_of = seen.Seen().add, seen.number if "repeated_source" in config.drop else _hashed

    def find(source: str, target: str) -> Found | None:
        return None if add(number_of(source)) else Found("the same source was there before")

    return find


def _hashed(text: str) -> int:
    return hash(text) & seen.LAST or 1


def _at(locate: Callable[[str], int]) -> Callable[[FilterConfig], Find]:
    """The rule of something that has a place in a text."""

    def find(source: str, target: str) -> Found | None:
        at = locate(source)
        if at >= 0:
            return Found(_place("source", source, at), source_at=at)
        at = locate(target)
        return None if at < 0 else Found(_place("target", target, at), target_at=at)

    return lambda config: find


def _place(side: str, text: str, at: int) -> str:
    return f"{side}, character {at + 1}" + (f": U+{ord(text[at]):04X}" if at < len(text) else "")


# A pair is dropped for the first rule that finds something, so a duplicate is one of a pair that was kept.
RULES = (
    Rule("empty", "a side with nothing to read", _empty, 4),
    Rule("too_long", "more words or characters than allowed", _too_long, 8),
    Rule("ratio", "one side is many times longer than the other", _ratio, 6),
    Rule("copy", "the target is the source, and has letters", _copy, 7),
    Rule("replacement", "U+FFFD: a letter was lost in an earlier conversion",
         _at(characters.replacement_at), 1, characters.no_replacement),
    Rule("mojibake", "UTF-8 that was read as Latin-1 or Windows-1252",
         _at(characters.mojibake_at), 2, characters.no_mojibake),
    Rule("control", "a control character",
         _at(characters.control_at), 3, characters.no_control),
    Rule("line_breaks", "a character at which other programs end a line",
         _at(characters.break_at), 9, characters.no_break),
    Rule("decomposed", "not in normal form C: accents apart from their letters",
         _at(characters.decomposed_at), 10, characters.no_decomposed),
    Rule("outer_spaces", "white space at the beginning or the end",
         _at(characters.outer_space_at), 11, characters.no_outer_space),
    Rule("duplicate", "the same pair was there before", _duplicate),
    Rule("repeated_source", "the same source as a pair before, with another target", _repeated_source),
)  # fmt: skip
