"""Which sentence pairs training skips, and what is suspicious about the others.

    for pair in filter_pairs(pairs, FilterConfig(), skipped=tally): ...

A rule has a name, a sentence and a test of the two texts. `FilterConfig.drop` names the rules that skip a pair; the
others are only counted, by the data doctor (`regard.data.doctor`), which uses the same rules, so what it reports is
what training does. Most rules keep no state; `duplicate` and `repeated_source` remember hashes of the texts, so each
pass over the data starts its rules anew. Pairs are processed one at a time.

Each `find_...` function gives the index of the first offending character of a text, or -1. Each `no_...` function tells
of many texts at once that none has such a character, without a loop in Python; it may be False where all are clean.
"""

import heapq
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from regard.config import Config, choice, integer, number
from regard.data.sources.text import Location, SentencePair

EXAMPLES_KEPT = 10
"""How many places, and how many of the worst pairs, a tally keeps of each rule."""
BLOCK_PAIRS = 512
LONG_TEXT = 100_000
"""Characters of a text that does not wait for others."""
EXCERPT_CHARACTERS = 72
"""How many characters of a text are kept to be shown."""


# ---- rules: The reasons for which a pair is left out, or is worth a look: each a name, a sentence, and a test.
#
# A rule is started with the limits of a `FilterConfig` and gives a function of the two texts. Most rules keep nothing
# between pairs; `duplicate` and `repeated_source` remember which texts they saw, so each reading of the data starts anew.
# Which rules drop a pair is in the config too. This file reads no data and counts nothing.


class RuleMatch(NamedTuple):
    """What is wrong with a pair, how bad it is beside others of its rule, and which characters to show of each text."""

    what: str
    badness: float = 1.0
    source_at: int = 0
    target_at: int = 0


RuleTest = Callable[[str, str], RuleMatch | None]

RULE_NAMES = (
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

    longest_words: int = integer(256, least=1)
    longest_characters: int = integer(2000, least=1)
    ratio: float = number(6.0, least=1)
    ratio_from: int = integer(40, least=0)
    drop: tuple[str, ...] = choice(RULE_NAMES, ("empty", "too_long", "ratio", "copy", "duplicate"))


@dataclass(frozen=True)
class FilterRule:
    """A reason to leave a pair out or to look at it.

    Args:
        sentence: what is the matter with such a pair.
        start: makes the test, for the limits of a config.
        rank: its place among the lines to look at first, the smallest before; 0 where there is nothing to look at.
        fine: a quick test of many texts; where it holds for all sources and all targets, the rule finds nothing there.
    """

    name: str
    sentence: str
    start: Callable[[FilterConfig], RuleTest]
    rank: int = 0
    fine: Callable[[list[str]], bool] = lambda texts: False


StartedRules = Sequence[tuple[FilterRule, RuleTest]]


class Finding(NamedTuple):
    """A pair that a rule found: where, what, and its texts, shortened."""

    where: Location
    rule: str
    what: str
    source: str
    target: str


class RuleTally:
    """How often each rule found something, the first places, and the worst pairs.

    Args:
        names: the rules that are counted; those that find nothing have a count of 0.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.counts = {name: 0 for name in names}
        self.first: dict[str, list[Location]] = {name: [] for name in self.counts}
        self._worst: dict[str, list[tuple[float, int, Finding]]] = {name: [] for name in self.counts}

    def add(self, name: str, found: RuleMatch, pair: SentencePair) -> None:
        """Count what a rule found in a pair."""
        count = self.counts[name] = self.counts[name] + 1
        if count <= EXAMPLES_KEPT:
            self.first[name].append(pair.where)
        worst = self._worst[name]
        if len(worst) < EXAMPLES_KEPT or found.badness > worst[0][0]:  # of equally bad ones, those that came first
            heapq.heappush(worst, (found.badness, -count, _make_finding(name, found, pair)))
            if len(worst) > EXAMPLES_KEPT:
                heapq.heappop(worst)

    def worst(self, name: str) -> list[Finding]:
        """The worst pairs of a rule, the worst first."""
        return [finding for _, _, finding in sorted(self._worst[name], reverse=True)]

    @property
    def total(self) -> int:
        """All that was counted."""
        return sum(self.counts.values())


def filter_pairs(pairs: Iterable[SentencePair], config: FilterConfig, dropped: RuleTally | None = None) -> Iterator[SentencePair]:
    """The pairs that no rule of `config.drop` leaves out, in their order, as they are.

    Args:
        dropped: where to count the others, each under the first rule that left it out.
    """
    tests = start_rules(config, config.drop)
    for pair in pairs:
        source, target, _ = pair
        for rule, find in tests:
            found = find(source, target)
            if found is not None:
                if dropped is not None:
                    dropped.add(rule.name, found, pair)
                break
        else:
            yield pair


def count_matches(tests: StartedRules, block: Sequence[SentencePair], noticed: RuleTally) -> None:
    """Count everything that the tests find in these pairs."""
    sources, targets = [pair.source for pair in block], [pair.target for pair in block]
    for rule, find in tests:
        if rule.fine(sources) and rule.fine(targets):
            continue
        for pair, found in zip(block, map(find, sources, targets), strict=True):
            if found is not None:
                noticed.add(rule.name, found, pair)


def split_blocks(pairs: Iterable[SentencePair]) -> Iterator[list[SentencePair]]:
    """The pairs in lists of `BLOCK`, or of fewer where they are very long."""
    block: list[SentencePair] = []
    for pair in pairs:
        source, target, _ = pair
        block.append(pair)
        if len(block) == BLOCK_PAIRS or len(source) > LONG_TEXT or len(target) > LONG_TEXT:
            yield block
            block = []
    if block:
        yield block


def excerpt(text: str, at: int = 0) -> str:
    """The part of a text around a character, with dots where something is left out."""
    if len(text) <= EXCERPT_CHARACTERS:
        return text
    start = max(0, min(at - EXCERPT_CHARACTERS // 2, len(text) - EXCERPT_CHARACTERS))
    return ("…" if start else "") + text[start : start + EXCERPT_CHARACTERS] + ("…" if start + EXCERPT_CHARACTERS < len(text) else "")


def _make_finding(name: str, found: RuleMatch, pair: SentencePair) -> Finding:
    source, target = excerpt(pair.source, found.source_at), excerpt(pair.target, found.target_at)
    return Finding(pair.where, name, found.what, source, target)


def start_rules(config: FilterConfig, names: Iterable[str]) -> list[tuple[FilterRule, RuleTest]]:
    """The tests of these rules, ready to read the data once, in the order of `RULES`."""
    asked = set(names)
    return [(rule, rule.start(config)) for rule in RULES if rule.name in asked]


def _empty(config: FilterConfig) -> RuleTest:
    visible = find_visible

    def find(source: str, target: str) -> RuleMatch | None:
        if visible(source):
            return None if visible(target) else RuleMatch("the target is empty")
        # Two empty texts are a gap between paragraphs; one alone may be a lost line.
        return RuleMatch("the source is empty") if visible(target) else RuleMatch("both are empty", 0.5)

    return find


def _too_long(config: FilterConfig) -> RuleTest:
    most, words = config.longest_characters, config.longest_words
    surely_short = min(most, 2 * words)  # as so many characters have at most half as many words

    def find(source: str, target: str) -> RuleMatch | None:
        if len(source) <= surely_short and len(target) <= surely_short:
            return None
        side, text = ("source", source) if len(source) >= len(target) else ("target", target)
        if len(text) > most:
            return RuleMatch(f"{side}, {len(text)} characters", len(text))
        for side, text in ("source", source), ("target", target):
            count = len(text.split())
            if count > words:
                return RuleMatch(f"{side}, {count} words", len(text))
        return None

    return find


def _ratio(config: FilterConfig) -> RuleTest:
    limit, least = config.ratio, config.ratio_from

    def find(source: str, target: str) -> RuleMatch | None:
        a, b = len(source.strip()), len(target.strip())
        if (a < least and b < least) or (a <= limit * b and b <= limit * a):
            return None
        times = max(a, b) / max(1, min(a, b))
        return RuleMatch(f"{a} characters against {b}", times)

    return find


def _copy(config: FilterConfig) -> RuleTest:
    def find(source: str, target: str) -> RuleMatch | None:
        # Numbers and signs are the same in most languages, and rightly so.
        if source.strip() == target.strip() and any(map(str.isalpha, source)):
            return RuleMatch("the target is the source", len(source))
        return None

    return find


def _duplicate(config: FilterConfig) -> RuleTest:
    add, number_of = HashSet().add, hash_texts

    def find(source: str, target: str) -> RuleMatch | None:
        return None if add(number_of(source, target)) else RuleMatch("the same pair was there before")

    return find


def _repeated_source(config: FilterConfig) -> RuleTest:
    # Python's own hash is ten times as fast. It is another in every run, so nothing is dropped by it.
    add, number_of = HashSet().add, hash_texts if "repeated_source" in config.drop else _python_hash

    def find(source: str, target: str) -> RuleMatch | None:
        return None if add(number_of(source)) else RuleMatch("the same source was there before")

    return find


def _python_hash(text: str) -> int:
    return hash(text) & MAX_HASH or 1


def _character_rule(locate: Callable[[str], int]) -> Callable[[FilterConfig], RuleTest]:
    """The rule of something that has a place in a text."""

    def find(source: str, target: str) -> RuleMatch | None:
        at = locate(source)
        if at >= 0:
            return RuleMatch(_describe_character("source", source, at), source_at=at)
        at = locate(target)
        return None if at < 0 else RuleMatch(_describe_character("target", target, at), target_at=at)

    return lambda config: find


def _describe_character(side: str, text: str, at: int) -> str:
    return f"{side}, character {at + 1}" + (f": U+{ord(text[at]):04X}" if at < len(text) else "")


# ---- characters: What stands in one text: whether there is anything to read, and where the first odd character is.
#
# Each `..._at` gives the place of the first such character, from 0, or -1. Each `no_...` tells of many texts at once that
# none has any, which is the rule, without a loop in Python; it may be False where there is nothing after all. This file
# knows no pairs and no limits, and not what is done about a find.


def find_line_break(text: str) -> int:
    """Where a character stands at which other programs end a line."""
    return -1 if text.isprintable() else _first_match(_LINE_BREAK, text)


def no_line_break(texts: list[str]) -> bool:
    """See `break_at`."""
    return all(map(str.isprintable, texts)) or not _LINE_BREAK.search("".join(texts))


def find_control(text: str) -> int:
    """Where a control character stands, or another that no text should have."""
    return -1 if text.isprintable() else _first_match(_CONTROL, text)


def no_control(texts: list[str]) -> bool:
    """See `control_at`."""
    return all(map(str.isprintable, texts)) or not _CONTROL.search("".join(texts))


def find_replacement(text: str) -> int:
    """Where U+FFFD stands: a letter was lost there, and cannot be had back."""
    return text.find("\ufffd")


def no_replacement(texts: list[str]) -> bool:
    """See `replacement_at`."""
    return "\ufffd" not in "".join(texts)


def find_mojibake(text: str) -> int:
    """Where UTF-8 was read as Latin-1 or Windows-1252, as in "cafÃ©" for "café".

    A text is told by a sequence that nobody writes, or by being UTF-8 through and through when it is turned back; then
    by two sequences at least, or one of the letters that stand for most of Latin-1: "CAFÉ" and a no-break space could
    be turned back too.
    """
    if text.isascii() or _START.search(text) is None:
        return -1
    first = _SEQUENCE.search(text)
    if first is None:
        return -1
    certain = _CERTAIN.search(text)
    if certain:
        return certain.start()
    likely = first[0][0] in "\xc2\xc3" or _SEQUENCE.search(text, first.end()) is not None
    return first.start() if likely and _decodes_as_utf8(text) else -1


def no_mojibake(texts: list[str]) -> bool:
    """See `mojibake_at`."""
    return all(map(str.isascii, texts)) or not _START.search(" ".join(texts))


def find_decomposed(text: str) -> int:
    """Where a text leaves normal form C: a letter and its accent as two characters, most often."""
    if unicodedata.is_normalized("NFC", text):
        return -1
    composed = unicodedata.normalize("NFC", text)
    pairs = enumerate(zip(text, composed, strict=False))
    return next((at for at, (have, want) in pairs if have != want), min(len(text), len(composed)))


def no_decomposed(texts: list[str]) -> bool:
    """See `decomposed_at`."""
    return unicodedata.is_normalized("NFC", " ".join(texts))


def find_outer_space(text: str) -> int:
    """Where white space stands at the beginning, or else where it begins at the end."""
    if text == text.strip():
        return -1
    return 0 if text[0].isspace() else len(text.rstrip())


def no_outer_space(texts: list[str]) -> bool:
    """See `outer_space_at`."""
    return [*map(str.strip, texts)] == texts


# A pair is dropped for the first rule that finds something, so a duplicate is one of a pair that was kept.
RULES = (
    FilterRule("empty", "a side with nothing to read", _empty, 4),
    FilterRule("too_long", "more words or characters than allowed", _too_long, 8),
    FilterRule("ratio", "one side is many times longer than the other", _ratio, 6),
    FilterRule("copy", "the target is the source, and has letters", _copy, 7),
    FilterRule("replacement", "U+FFFD: a letter was lost in an earlier conversion",
         _character_rule(find_replacement), 1, no_replacement),
    FilterRule("mojibake", "UTF-8 that was read as Latin-1 or Windows-1252",
         _character_rule(find_mojibake), 2, no_mojibake),
    FilterRule("control", "a control character",
         _character_rule(find_control), 3, no_control),
    FilterRule("line_breaks", "a character at which other programs end a line",
         _character_rule(find_line_break), 9, no_line_break),
    FilterRule("decomposed", "not in normal form C: accents apart from their letters",
         _character_rule(find_decomposed), 10, no_decomposed),
    FilterRule("outer_spaces", "white space at the beginning or the end",
         _character_rule(find_outer_space), 11, no_outer_space),
    FilterRule("duplicate", "the same pair was there before", _duplicate),
    FilterRule("repeated_source", "the same source as a pair before, with another target", _repeated_source),
)  # fmt: skip


# ---- seen: Which values were there before, in little memory: a table of 64-bit numbers, without the values themselves.
#
# A table takes 12 to 24 bytes a value (a Python set of the same numbers about 70), and half as much again while it grows;
# it grows with the number of values. Two different values are taken for one if their numbers agree: the odds that this
# happens anywhere among n values are about n² / 2^65, one in 37 million for a million, one in 15,000 for fifty million.

MAX_HASH = 2**64 - 1
_UNPACK = Struct("<Q").unpack
_INITIAL_SLOTS = 1024  # places, a power of two


def hash_texts(source: str, target: str = "") -> int:
    """64 bits that stand for two texts, or one; the same in every process and on every machine, and never 0."""
    # The length of the first tells ("a", "b") from ("ab", ""), whatever the texts hold.
    data = f"{len(source)} {source}{target}".encode("utf-8", "surrogatepass")
    return _UNPACK(blake2b(data, digest_size=8).digest())[0] or 1


class HashSet:
    """A set of numbers from 1 to 2^64 - 1 that can only grow."""

    def __init__(self) -> None:
        self._places = array("Q", bytes(8 * _INITIAL_SLOTS))  # 0 is a free place
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, value: int) -> bool:
        """Add a number; whether it is new."""
        places = self._places
        last = len(places) - 1
        place = value & last
        while there := places[place]:  # the first free place from its own on
            if there == value:
                return False
            place = (place + 1) & last
        places[place] = value
        self._count += 1
        if 3 * self._count > 2 * last:
            self._grow()
        return True

    def _grow(self) -> None:
        larger = array("Q", bytes(16 * len(self._places)))
        last = len(larger) - 1
        for value in self._places:
            if value:
                place = value & last
                while larger[place]:
                    place = (place + 1) & last
                larger[place] = value
        self._places = larger


# Nothing to see: white space and control characters, and what has no width or only blank (soft hyphen, joiners,
# zero-width space, marks of direction, the fillers of Hangul, the empty Braille cell, variation selectors, the BOM).
find_visible = re.compile(
    r"[^\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]"
).search
# Where Python and other programs would end a line, though only LF and CRLF end one here.
_LINE_BREAK = re.compile(r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Other control characters but the tab; a BOM inside the text, halves of surrogate pairs, what is no character at all.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")

# UTF-8 that was read as Latin-1 or as Windows-1252. There, the bytes 80 to 9F are these characters:
_WINDOWS_1252 = {ord(letter): byte for byte in range(0x80, 0xA0) for letter in bytes([byte]).decode("cp1252", "ignore")}
_FOLLOWS = "\x80-\xbf" + "".join(map(chr, _WINDOWS_1252))
_START = re.compile(f"[\xc2-\xf4][{_FOLLOWS}]")  # how every sequence begins; found much faster than a sequence
_SEQUENCE = re.compile(f"[\xc2-\xdf][{_FOLLOWS}]|[\xe0-\xef][{_FOLLOWS}]{{2}}|[\xf0-\xf4][{_FOLLOWS}]{{3}}")
# Sequences that no text has: the start of quotes and dashes, and A with circumflex or tilde before a sign. Spaces,
# quotes and dashes may well follow a capital letter, so they are not among these signs.
_SIGNS = "\x80-\x9f\xa1-\xaa\xac-\xb6\xb8-\xba\xbc-\xbf€ƒ†‡ˆ‰ŠŒŽ˜šœžŸ"
_CERTAIN = re.compile(f"\xe2[\x80€][{_FOLLOWS}]|[\xc2\xc3][{_SIGNS}]")


def is_blank(text: str) -> bool:
    """Whether a text has nothing to read: empty, blank, or only characters that are not seen."""
    return find_visible(text) is None


def has_composed(text: str) -> bool:
    """Whether a text has a letter with its accent in one character, which normal form D would take apart."""
    return not unicodedata.is_normalized("NFD", text)


def fold_text(text: str) -> str:
    """A text without what rarely matters: case, the kind and number of spaces, the normal form."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _decodes_as_utf8(text: str) -> bool:
    try:
        text.translate(_WINDOWS_1252).encode("latin-1").decode("utf-8")
    except UnicodeError:
        return False
    return True


def _first_match(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return match.start() if match else -1
