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
"""How many locations, and how many of the worst pairs, a tally keeps for each rule."""
BLOCK_PAIRS = 512
LONG_TEXT = 100_000
"""A text of more characters ends its block at once."""
EXCERPT_CHARACTERS = 72
MAX_HASH = 2**64 - 1
_UNPACK = Struct("<Q").unpack
_INITIAL_SLOTS = 1024  # a power of two
RULE_NAMES = (
    "empty", "too_long", "ratio", "copy", "duplicate",
    "replacement", "mojibake", "control", "line_breaks", "decomposed", "outer_spaces", "repeated_source",
)  # fmt: skip

# Invisible are white space, control characters, and what has no width or is blank (soft hyphen, joiners, zero-width
# space, direction marks, Hangul fillers, the empty Braille cell, variation selectors, the BOM).
find_visible = re.compile(
    r"[^\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]"
).search
# Where Python and other programs end a line, though only LF and CRLF do here.
_LINE_BREAK = re.compile(r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Other control characters except the tab; a BOM inside the text, halves of surrogate pairs, noncharacters.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")

# UTF-8 that was decoded as Latin-1 or as Windows-1252, in which the bytes 80 to 9F are these characters:
_WINDOWS_1252 = {ord(letter): byte for byte in range(0x80, 0xA0) for letter in bytes([byte]).decode("cp1252", "ignore")}
_FOLLOWS = "\x80-\xbf" + "".join(map(chr, _WINDOWS_1252))
_START = re.compile(f"[\xc2-\xf4][{_FOLLOWS}]")  # the start of every sequence; much faster to find than a sequence
_SEQUENCE = re.compile(f"[\xc2-\xdf][{_FOLLOWS}]|[\xe0-\xef][{_FOLLOWS}]{{2}}|[\xf0-\xf4][{_FOLLOWS}]{{3}}")
# Sequences that no real text has: the start of quotes and dashes, and A with circumflex or tilde before a sign. Spaces,
# quotes and dashes may well follow a capital letter, so they are not among these signs.
_SIGNS = "\x80-\x9f\xa1-\xaa\xac-\xb6\xb8-\xba\xbc-\xbf€ƒ†‡ˆ‰ŠŒŽ˜šœžŸ"
_CERTAIN = re.compile(f"\xe2[\x80€][{_FOLLOWS}]|[\xc2\xc3][{_SIGNS}]")


class RuleMatch(NamedTuple):
    """What a rule found in a pair, how bad it is compared with other matches, and which characters to show."""

    what: str
    badness: float = 1.0
    source_at: int = 0
    target_at: int = 0


RuleTest = Callable[[str, str], RuleMatch | None]
"""(source, target) -> what is wrong with them, or None"""


@dataclass(frozen=True, kw_only=True)
class FilterConfig(Config):
    """Which pairs are skipped."""

    max_words: int = integer(256, minimum=1, old="longest_words")
    """Maximum number of words of a text, separated by white space."""
    max_characters: int = integer(2000, minimum=1, old="longest_characters")
    """Maximum number of characters of a text, for languages without spaces."""
    max_length_ratio: float = number(6.0, minimum=1, old="ratio")
    """Maximum ratio of the lengths of source and target, in characters."""
    min_ratio_characters: int = integer(40, minimum=0, old="ratio_from")
    """The ratio is tested only if the longer text has at least this many characters."""
    drop: tuple[str, ...] = choice(RULE_NAMES, ("empty", "too_long", "ratio", "copy", "duplicate"))
    """The rules that skip a pair; `regard data check` reports the others."""


@dataclass(frozen=True)
class FilterRule:
    """A reason to skip a pair or to report it.

    Args:
        sentence: what is wrong with such a pair.
        counted: how a number of such pairs is described, a format string.
        start: makes the test for a config.
        rank: its order among the findings shown first, the smallest first; 0 if it is never shown there.
        all_clean: a quick test of many texts: if it holds for all sources and all targets, the rule matches none.
    """

    name: str
    sentence: str
    counted: str
    start: Callable[[FilterConfig], RuleTest]
    rank: int = 0
    all_clean: Callable[[list[str]], bool] = lambda texts: False


StartedRules = Sequence[tuple[FilterRule, RuleTest]]


class Finding(NamedTuple):
    """A pair that a rule matched: its location, what was found, and excerpts of its texts."""

    location: Location
    rule: str
    what: str
    source: str
    target: str


class RuleTally:
    """How often each rule matched, the first locations, and the worst pairs.

    Args:
        names: the rules that are counted; those that match nothing have a count of 0.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.counts = {name: 0 for name in names}
        self.first: dict[str, list[Location]] = {name: [] for name in self.counts}
        self._worst: dict[str, list[tuple[float, int, Finding]]] = {name: [] for name in self.counts}

    def add(self, name: str, match: RuleMatch, pair: SentencePair) -> None:
        """Count a match of a rule."""
        count = self.counts[name] = self.counts[name] + 1
        if count <= EXAMPLES_KEPT:
            self.first[name].append(pair.location)
        worst = self._worst[name]
        if len(worst) < EXAMPLES_KEPT or match.badness > worst[0][0]:  # of equally bad ones, the first are kept
            finding = Finding(pair.location, name, match.what, excerpt(pair.source, match.source_at),
                              excerpt(pair.target, match.target_at))
            heapq.heappush(worst, (match.badness, -count, finding))
            if len(worst) > EXAMPLES_KEPT:
                heapq.heappop(worst)

    def worst(self, name: str) -> list[Finding]:
        """The worst pairs of a rule, the worst first."""
        return [finding for _, _, finding in sorted(self._worst[name], reverse=True)]

    @property
    def total(self) -> int:
        """The sum of all counts."""
        return sum(self.counts.values())

    def describe(self, config: FilterConfig) -> str:
        """The counts in words: "2 with a length ratio over 6, 3 duplicates"."""
        return ", ".join(rule.counted.format(count=f"{count:,}", s="s" * (count != 1), ratio=config.max_length_ratio)
                         for rule in RULES if (count := self.counts.get(rule.name, 0)))


def filter_pairs(pairs: Iterable[SentencePair], config: FilterConfig,
                 skipped: RuleTally | None = None) -> Iterator[SentencePair]:
    """The pairs that no rule of `config.drop` matches, in order and unchanged.

    Args:
        skipped: counts the other pairs, each under the first rule that matched it.
    """
    rules = start_rules(config, config.drop)
    for pair in pairs:
        source, target, _ = pair
        for rule, test in rules:
            match = test(source, target)
            if match is not None:
                if skipped is not None:
                    skipped.add(rule.name, match, pair)
                break
        else:
            yield pair


def count_matches(rules: StartedRules, block: Sequence[SentencePair], tally: RuleTally) -> None:
    """Count every match of these rules in a block of pairs."""
    sources, targets = [pair.source for pair in block], [pair.target for pair in block]
    for rule, test in rules:
        if rule.all_clean(sources) and rule.all_clean(targets):
            continue
        for pair, match in zip(block, map(test, sources, targets), strict=True):
            if match is not None:
                tally.add(rule.name, match, pair)


def split_blocks(pairs: Iterable[SentencePair]) -> Iterator[list[SentencePair]]:
    """The pairs in lists of `BLOCK_PAIRS`, or of fewer if some are very long."""
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
    """The part of a text around a character, with an ellipsis on each shortened side."""
    if len(text) <= EXCERPT_CHARACTERS:
        return text
    start = max(0, min(at - EXCERPT_CHARACTERS // 2, len(text) - EXCERPT_CHARACTERS))
    end = start + EXCERPT_CHARACTERS
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def start_rules(config: FilterConfig, names: Iterable[str]) -> list[tuple[FilterRule, RuleTest]]:
    """The tests of these rules for one pass over the data, in the order of `RULES`."""
    wanted = set(names)
    return [(rule, rule.start(config)) for rule in RULES if rule.name in wanted]


def _empty(config: FilterConfig) -> RuleTest:
    visible = find_visible

    def test(source: str, target: str) -> RuleMatch | None:
        if visible(source):
            return None if visible(target) else RuleMatch("the target is empty")
        # Two empty texts are a gap between paragraphs; one alone may be a lost line.
        return RuleMatch("the source is empty") if visible(target) else RuleMatch("both are empty", 0.5)

    return test


def _too_long(config: FilterConfig) -> RuleTest:
    max_characters, max_words = config.max_characters, config.max_words
    surely_short = min(max_characters, 2 * max_words)  # n characters have at most n / 2 words

    def test(source: str, target: str) -> RuleMatch | None:
        if len(source) <= surely_short and len(target) <= surely_short:
            return None
        side, text = ("source", source) if len(source) >= len(target) else ("target", target)
        if len(text) > max_characters:
            return RuleMatch(f"{side}, {len(text)} characters", len(text))
        for side, text in ("source", source), ("target", target):
            count = len(text.split())
            if count > max_words:
                return RuleMatch(f"{side}, {count} words", len(text))
        return None

    return test


def _ratio(config: FilterConfig) -> RuleTest:
    limit, shortest = config.max_length_ratio, config.min_ratio_characters

    def test(source: str, target: str) -> RuleMatch | None:
        a, b = len(source.strip()), len(target.strip())
        if (a < shortest and b < shortest) or (a <= limit * b and b <= limit * a):
            return None
        return RuleMatch(f"{a} characters against {b}", max(a, b) / max(1, min(a, b)))

    return test


def _copy(config: FilterConfig) -> RuleTest:
    def test(source: str, target: str) -> RuleMatch | None:
        # Numbers and signs are the same in most languages, and rightly so.
        if source.strip() == target.strip() and any(map(str.isalpha, source)):
            return RuleMatch("the target is the source", len(source))
        return None

    return test


def _duplicate(config: FilterConfig) -> RuleTest:
    add = HashSet().add

    def test(source: str, target: str) -> RuleMatch | None:
        return None if add(hash_texts(source, target)) else RuleMatch("the same pair occurred before")

    return test


def _repeated_source(config: FilterConfig) -> RuleTest:
    # Python's own hash is ten times as fast. It differs between runs, so nothing is dropped by it.
    add, hash_source = HashSet().add, hash_texts if "repeated_source" in config.drop else _python_hash

    def test(source: str, target: str) -> RuleMatch | None:
        return None if add(hash_source(source)) else RuleMatch("the same source occurred before")

    return test


def _python_hash(text: str) -> int:
    return hash(text) & MAX_HASH or 1


def _character_rule(find: Callable[[str], int]) -> Callable[[FilterConfig], RuleTest]:
    """A rule about a character: `find` gives its index in a text, or -1."""

    def test(source: str, target: str) -> RuleMatch | None:
        at = find(source)
        if at >= 0:
            return RuleMatch(_describe_character("source", source, at), source_at=at)
        at = find(target)
        return None if at < 0 else RuleMatch(_describe_character("target", target, at), target_at=at)

    return lambda config: test


def _describe_character(side: str, text: str, at: int) -> str:
    return f"{side}, character {at + 1}" + (f": U+{ord(text[at]):04X}" if at < len(text) else "")


def hash_texts(source: str, target: str = "") -> int:
    """A 64-bit hash of two texts, or of one; never 0, and the same in every process and on every machine."""
    # The length of the first distinguishes ("a", "b") from ("ab", "").
    data = f"{len(source)} {source}{target}".encode("utf-8", "surrogatepass")
    return _UNPACK(blake2b(data, digest_size=8).digest())[0] or 1


class HashSet:
    """A set of hashes, from 1 to 2^64 - 1, that can only grow: an open-addressing table of 64-bit numbers.

    It takes 12 to 24 bytes per value (a Python set about 70), and half as much again while it grows. The probability of
    any collision among n values is about n² / 2^65: one in 37 million for a million, one in 15,000 for fifty million.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * _INITIAL_SLOTS))  # 0 is a free slot
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, value: int) -> bool:
        """Add a hash; returns whether it is new."""
        slots = self._slots
        last = len(slots) - 1
        slot = value & last
        while present := slots[slot]:  # linear probing
            if present == value:
                return False
            slot = (slot + 1) & last
        slots[slot] = value
        self._count += 1
        if 3 * self._count > 2 * last:
            self._grow()
        return True

    def _grow(self) -> None:
        larger = array("Q", bytes(16 * len(self._slots)))
        last = len(larger) - 1
        for value in self._slots:
            if value:
                slot = value & last
                while larger[slot]:
                    slot = (slot + 1) & last
                larger[slot] = value
        self._slots = larger


def is_blank(text: str) -> bool:
    """Whether a text is empty, or has only white space and invisible characters."""
    return find_visible(text) is None


def find_line_break(text: str) -> int:
    """The index of a character at which other programs end a line, or -1."""
    return -1 if text.isprintable() else _first_match(_LINE_BREAK, text)


def no_line_break(texts: list[str]) -> bool:
    """Whether `find_line_break` finds nothing in these texts."""
    return all(map(str.isprintable, texts)) or not _LINE_BREAK.search("".join(texts))


def find_control(text: str) -> int:
    """The index of a control character, or of another that no text should have, or -1."""
    return -1 if text.isprintable() else _first_match(_CONTROL, text)


def no_control(texts: list[str]) -> bool:
    """Whether `find_control` finds nothing in these texts."""
    return all(map(str.isprintable, texts)) or not _CONTROL.search("".join(texts))


def find_replacement(text: str) -> int:
    """The index of U+FFFD, where a letter was lost for good, or -1."""
    return text.find("\ufffd")


def no_replacement(texts: list[str]) -> bool:
    """Whether `find_replacement` finds nothing in these texts."""
    return "\ufffd" not in "".join(texts)


def find_mojibake(text: str) -> int:
    """The index where UTF-8 was decoded as Latin-1 or Windows-1252, as in "cafÃ©" for "café", or -1.

    The evidence is a sequence that no real text has; or that the whole text is valid UTF-8 when encoded back, with at
    least two sequences, or one that begins like most of Latin-1: "CAFÉ" and a no-break space would be valid UTF-8 too.
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
    """Whether `find_mojibake` finds nothing in these texts."""
    return all(map(str.isascii, texts)) or not _START.search(" ".join(texts))


def find_decomposed(text: str) -> int:
    """The index where a text departs from NFC, usually a letter and its accent as two characters, or -1."""
    if unicodedata.is_normalized("NFC", text):
        return -1
    composed = unicodedata.normalize("NFC", text)
    pairs = enumerate(zip(text, composed, strict=False))
    return next((at for at, (have, want) in pairs if have != want), min(len(text), len(composed)))


def no_decomposed(texts: list[str]) -> bool:
    """Whether `find_decomposed` finds nothing in these texts."""
    return unicodedata.is_normalized("NFC", " ".join(texts))


def has_composed(text: str) -> bool:
    """Whether a text has a letter with its accent in one character, which NFD would decompose."""
    return not unicodedata.is_normalized("NFD", text)


def find_outer_space(text: str) -> int:
    """The index of white space at the beginning, or else of that at the end, or -1."""
    if text == text.strip():
        return -1
    return 0 if text[0].isspace() else len(text.rstrip())


def no_outer_space(texts: list[str]) -> bool:
    """Whether `find_outer_space` finds nothing in these texts."""
    return [*map(str.strip, texts)] == texts


def fold_text(text: str) -> str:
    """A text with case, white space and normal form unified."""
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


# A pair is skipped by the first rule that matches, so a duplicate always repeats a pair that was kept.
RULES = (
    FilterRule("empty", "source or target is empty", "{count} with an empty side", _empty, 4),
    FilterRule("too_long", "more words or characters than allowed", "{count} too long", _too_long, 8),
    FilterRule("ratio", "one side is much longer than the other",
               "{count} with a length ratio over {ratio:g}", _ratio, 6),
    FilterRule("copy", "the target is a copy of the source", "{count} with the source as target", _copy, 7),
    FilterRule("replacement", "U+FFFD: a character was lost in an earlier conversion", "{count} with U+FFFD",
               _character_rule(find_replacement), 1, no_replacement),
    FilterRule("mojibake", "UTF-8 that was read as Latin-1 or Windows-1252", "{count} with mojibake",
               _character_rule(find_mojibake), 2, no_mojibake),
    FilterRule("control", "a control character", "{count} with control characters",
               _character_rule(find_control), 3, no_control),
    FilterRule("line_breaks", "a line-break character inside a text", "{count} with line breaks",
               _character_rule(find_line_break), 9, no_line_break),
    FilterRule("decomposed", "not in Unicode normal form C (NFC)", "{count} not in NFC",
               _character_rule(find_decomposed), 10, no_decomposed),
    FilterRule("outer_spaces", "white space at the beginning or the end", "{count} with outer white space",
               _character_rule(find_outer_space), 11, no_outer_space),
    FilterRule("duplicate", "the same pair occurred before", "{count} duplicate{s}", _duplicate),
    FilterRule("repeated_source", "the same source as an earlier pair, with another target",
               "{count} with a repeated source", _repeated_source),
)  # fmt: skip
