"""The data doctor: which pairs training would skip and why, what is odd about the rest, and corpus statistics.

`check_corpus` reads the pairs once and gives a `DoctorReport`; `DoctorReport.tables` has all of it as plain values:

    pairs         read, kept, dropped
    left_out      {reason: {count, first}}: entries that the reader of a file skipped, such as fuzzy entries of PO
    dropped       {rule: {count, first}} for every rule that drops; `first` are locations, "corpus.tsv:7"
    noticed       {rule: {count, first}} for every other rule and for "script", among the pairs that are kept
    source,       of the pairs that are kept: characters, words, distinct_words, distinct_words_exact (true or false),
    target        scripts {name: texts}, composed and decomposed (texts with accents in one character, in two),
                  characters_per_text and words_per_text {"5", "50", "95", "99", "max"}
    ratio         {"5", "50", "95", "99", "max"}: target characters per source character, to 0.01, rounded down
    agreement     correlation of the lengths of the two sides; null where there is none
    overlap       null without validation data; else validation (its pairs that are kept), exact, folded, sources
                  (how many of these are in the training data) and first [{validation, training}]
    test_overlap  the same of the test data, with `test` in place of `validation`
    near_duplicates
                  null where they were not looked for; else a table for "validation" and one for "test", where given:
                  pairs (that are kept), source, target, either, both (how many of these have a near-duplicate in the
                  training data: see `regard.data.near_duplicates`) and first [{validation or test, training, side,
                  similarity, text, training_text}], texts shortened
    warnings      sentences
    look_at       [{where, rule, what, source, target}], texts shortened
    filters       the limits

Pairs are counted in blocks, several times as fast as one by one, and memory does not grow with the corpus, except for
the validation and test pairs: 64-bit hashes, about 90 bytes a pair, and about 4 KB a pair to find near-duplicates.
Words are separated by white space. All numbers are exact except the number of distinct words above
`MAX_DISTINCT_WORDS`, which is an estimate. Nothing is printed here.
"""

import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import mul
from typing import Any, NamedTuple
from zlib import crc32

from regard import config
from regard.checks import plural
from regard.data.filters import (
    BLOCK_PAIRS,
    EXAMPLES_KEPT,
    RULE_NAMES,
    RULES,
    FilterConfig,
    Finding,
    RuleMatch,
    RuleTally,
    count_matches,
    excerpt,
    filter_pairs,
    find_decomposed,
    fold_text,
    has_composed,
    hash_texts,
    no_decomposed,
    split_blocks,
    start_rules,
)
from regard.data.near_duplicates import NearDuplicates
from regard.data.sources.text import Location, SentencePair

FINDINGS_SHOWN = 10
FINDINGS_PER_RULE = 3
SCRIPT_RULE = "script"
MAX_DISTINCT_WORDS = 2**17
"""How many distinct words are kept; with more of them, their number is an estimate, to about half a percent."""
PAIRS_PER_SCRIPT = 3
"""How many pairs of each script are kept as examples."""
CJK_SCRIPTS = {"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH", "CJK"}  # scripts that one language mixes
PERCENTILES = (5, 50, 95, 99)
_LETTER = re.compile(r"[^\W\d_]")
# The ranges with letters of other scripts; between them are more of Latin, and punctuation that all scripts share.
_BEYOND_LATIN = re.compile(r"[\u0370-\u1dff\u1f00-\u1fff\u2c00-\U0010ffff]")


def check_corpus(pairs: Iterable[SentencePair], filters: FilterConfig | None = None, *,
                 validation: Iterable[SentencePair] | None = None,
                 test: Iterable[SentencePair] | None = None, near_duplicates: bool = False,
                 skipped: "SkippedEntries | None" = None) -> "DoctorReport":
    """Read a corpus once and report on it.

    Args:
        validation, test: the validation and test pairs; they pass the same filters, and are read first.
        near_duplicates: also look for near-duplicates of these pairs in the corpus, which takes several times as long.
        skipped: the callback of the reader of `pairs`, which has counted what the reader skipped.
    """
    filters = filters or FilterConfig()
    others = [name for name in RULE_NAMES if name not in filters.drop]
    dropped, noticed, statistics = RuleTally(filters.drop), RuleTally([*others, SCRIPT_RULE]), CorpusStatistics()
    overlaps, near = dict[str, HeldOutOverlap](), dict[str, NearDuplicates]()
    for name, held_out in (("validation", validation), ("test", test)):
        if held_out is not None:
            kept = filter_pairs(held_out, filters)
            if near_duplicates:
                kept = iter(own := list(kept))
                near[name] = NearDuplicates(own)
            overlaps[name] = HeldOutOverlap(kept)
    rules = start_rules(filters, others)
    for block in split_blocks(filter_pairs(pairs, filters, dropped)):
        count_matches(rules, block, noticed)
        statistics.add(block)
        for overlap in overlaps.values():
            overlap.compare(block)
        for index in near.values():
            index.compare(block)
    for name, side in (("source", statistics.source), ("target", statistics.target)):
        _count_foreign_scripts(name, side, noticed)
    return DoctorReport(filters, dropped, noticed, statistics, overlaps.get("validation"),
                        skipped or SkippedEntries(), overlaps.get("test"), near)


class SkippedEntries:
    """Counts the entries that readers of files skip, by reason; readers call it for each."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.first: dict[str, list[Location]] = {}

    def __call__(self, location: Location, reason: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        first = self.first.setdefault(reason, [])
        if len(first) < EXAMPLES_KEPT:
            first.append(location)

    def describe(self) -> str:
        """The counts in words: "2 fuzzy, 1 obsolete"."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.counts.items())


@dataclass(frozen=True)
class DoctorReport:
    """Everything that was found in a corpus."""

    filters: FilterConfig
    dropped: RuleTally
    noticed: RuleTally
    statistics: "CorpusStatistics"
    overlap: "HeldOutOverlap | None"
    """Of the validation data."""
    skipped: SkippedEntries
    test_overlap: "HeldOutOverlap | None" = None
    near_duplicates: Mapping[str, NearDuplicates] = field(default_factory=dict)
    """Of "validation" and of "test", where they were looked for."""

    @property
    def kept(self) -> int:
        """The number of pairs that pass the filters."""
        return self.statistics.pairs

    @property
    def read(self) -> int:
        """The number of pairs that were read."""
        return self.kept + self.dropped.total

    def look_at(self) -> list[Finding]:
        """The most suspicious pairs: the worst of each rule, then the second of each, by the rank of the rules."""
        ranked = sorted((rule for rule in RULES if rule.rank), key=lambda rule: rule.rank)
        lists = [(self.dropped if rule.name in self.dropped.counts else self.noticed).worst(rule.name)
                 for rule in ranked]  # fmt: skip
        lists.insert(3, self.noticed.worst(SCRIPT_RULE))
        chosen: dict[Location, Finding] = {}
        for turn in range(FINDINGS_PER_RULE):
            for finding in (findings[turn] for findings in lists if turn < len(findings)):
                chosen.setdefault(finding.location, finding)  # each pair once, for its first reason
        return [*chosen.values()][:FINDINGS_SHOWN]

    def warnings(self) -> list[str]:
        """What is wrong with the corpus as a whole, in sentences."""
        return [*_warnings(self)]

    def tables(self) -> dict[str, Any]:
        """Everything as plain values; the module docstring lists the keys."""
        statistics, correlation = self.statistics, self.statistics.correlation.value
        hundredths = compute_percentiles(statistics.hundredths)
        return {
            "pairs": {"read": self.read, "kept": self.kept, "dropped": self.dropped.total},
            "left_out": _tally_table(self.skipped),
            "dropped": _tally_table(self.dropped),
            "noticed": _tally_table(self.noticed),
            "source": _side_table(statistics.source),
            "target": _side_table(statistics.target),
            "ratio": {name: hundredth / 100 for name, hundredth in hundredths.items()},
            "agreement": None if correlation is None else round(correlation, 4),
            "overlap": _overlap_table("validation", self.overlap),
            "test_overlap": _overlap_table("test", self.test_overlap),
            "near_duplicates": {name: _near_table(name, near) for name, near in self.near_duplicates.items()} or None,
            "warnings": self.warnings(),
            "look_at": [{"where": str(location), "rule": rule, "what": what, "source": source, "target": target}
                        for location, rule, what, source, target in self.look_at()],
            "filters": config.to_tables(self.filters),
        }  # fmt: skip


def _warnings(report: DoctorReport) -> Iterator[str]:
    if not report.kept:
        yield f"All {plural(report.read, 'pair')} are skipped." if report.read > 1 else \
            "The only pair is skipped." if report.read else "There are no pairs."
        return
    if 2 * report.dropped.total > report.read:
        rule = max(report.dropped.counts, key=lambda name: report.dropped.counts[name])
        yield f"More than half of the pairs are skipped, most of them by the rule {rule}."
    statistics = report.statistics
    if statistics.first_unaligned is not None:
        yield (f"{statistics.first_unaligned.location}: From about here on, the lengths of sources and targets are "
               f"unrelated, in {statistics.unaligned:,} of {statistics.testable:,} blocks of {BLOCK_PAIRS} pairs. Are "
               "the two sides still aligned?")
    for name, side in (("sources", statistics.source), ("targets", statistics.target)):
        if side.composed and side.decomposed:
            yield (f"The {name} mix Unicode normal forms: {plural(side.composed, 'text')} with accented letters as one "
                   f"character (NFC), {side.decomposed:,} as two (NFD). They are different letters to a tokenizer that "
                   "does not normalize.")
    for name, overlap in (("validation", report.overlap), ("test", report.test_overlap)):
        if overlap is not None:
            yield from _overlap_warnings(name, overlap, report.kept)
            if name in report.near_duplicates and overlap.exact < overlap.pairs:
                yield from _near_warnings(name, report.near_duplicates[name])


def _overlap_warnings(name: str, overlap: "HeldOutOverlap", training: int) -> Iterator[str]:
    if not overlap.pairs:
        yield f"All {name} pairs are skipped."
    elif overlap.exact == overlap.pairs == training:
        yield f"The {name} data is the training data: its scores say nothing about other texts."
    elif overlap.exact == overlap.pairs:
        yield f"Every {name} pair is in the training data."
    elif overlap.folded:
        share = 100 * overlap.folded / overlap.pairs
        yield (f"{overlap.folded:,} of {overlap.pairs:,} {name} pairs ({share:.1f}%) are in the training data, "
               f"{overlap.exact:,} of them exactly.")


def _near_warnings(name: str, near: NearDuplicates) -> Iterator[str]:
    if near.either:
        share = 100 * near.either / near.pairs
        yield (f"{near.either:,} of {near.pairs:,} {name} pairs ({share:.1f}%) have a near-duplicate of their source "
               "or target in the training data: scores on them measure memory too.")


def _overlap_table(name: str, overlap: "HeldOutOverlap | None") -> dict[str, Any] | None:
    if overlap is None:
        return None
    return {name: overlap.pairs, "exact": overlap.exact, "folded": overlap.folded, "sources": overlap.sources,
            "first": [{name: str(both.held_out), "training": str(both.training)} for both in overlap.first]}


def _near_table(name: str, near: NearDuplicates) -> dict[str, Any]:
    return {"pairs": near.pairs, "source": near.source, "target": near.target, "either": near.either, "both": near.both,
            "first": [{name: str(each.held_out), "training": str(each.training), "side": each.side,
                       "similarity": round(each.similarity, 4), "text": each.held_out_text,
                       "training_text": each.training_text} for each in near.first]}


def _tally_table(tally: RuleTally | SkippedEntries) -> dict[str, Any]:
    return {name: {"count": count, "first": [str(location) for location in tally.first[name]]}
            for name, count in tally.counts.items()}  # fmt: skip


def _side_table(side: "SideStatistics") -> dict[str, Any]:
    return {
        "characters": _weighted_sum(side.characters),
        "words": _weighted_sum(side.words),
        "distinct_words": side.distinct.count,
        "distinct_words_exact": side.distinct.exact,
        "scripts": {script: count for script, count in side.scripts.most_common() if script},
        "composed": side.composed,
        "decomposed": side.decomposed,
        "characters_per_text": compute_percentiles(side.characters),
        "words_per_text": compute_percentiles(side.words),
    }


def _weighted_sum(counts: dict[int, int]) -> int:
    return sum(value * count for value, count in counts.items())


def compute_percentiles(counts: Mapping[int, int]) -> dict[str, int]:
    """The percentiles and the maximum of values, given how often each occurs."""
    total, ordered = sum(counts.values()), sorted(counts)
    if not total:
        return {}
    result, below, index = {}, 0, -1
    for percent in PERCENTILES:
        while 100 * below < percent * total:
            index += 1
            below += counts[ordered[index]]
        result[str(percent)] = ordered[index]
    return {**result, "max": ordered[-1]}


class CorpusStatistics:
    """Statistics of a corpus, collected block by block."""

    def __init__(self) -> None:
        scripts = ScriptTable()
        self.pairs = 0
        self.source, self.target = SideStatistics(scripts), SideStatistics(scripts)
        self.hundredths: Counter[int] = Counter()  # target characters per 100 source characters
        self.correlation = LengthCorrelation()
        self.testable = self.unaligned = 0  # blocks whose lengths allow a decision, and those that look unaligned
        self.first_unaligned: SentencePair | None = None

    def add(self, block: Sequence[SentencePair]) -> None:
        """Add a block of pairs."""
        self.pairs += len(block)
        sources = self.source.add([pair.source for pair in block], block)
        targets = self.target.add([pair.target for pair in block], block)
        self.hundredths.update([100 * b // a for a, b in zip(sources, targets, strict=True) if a])
        self.correlation.add(sources, targets)
        here = LengthCorrelation()
        here.add(sources, targets)
        self.testable += here.missing is not None
        if here.missing:
            self.unaligned += 1
            self.first_unaligned = self.first_unaligned or _shorten_pair(block[0])


class SideStatistics:
    """Statistics of the sources, or of the targets."""

    def __init__(self, scripts: "ScriptTable") -> None:
        self.characters: Counter[int] = Counter()
        self.words: Counter[int] = Counter()
        self.distinct = DistinctWords()
        self.scripts: Counter[str] = Counter()
        self.composed = self.decomposed = 0
        self.examples: dict[str, list[SentencePair]] = {}
        self._scripts = scripts

    def add(self, texts: list[str], block: Sequence[SentencePair]) -> list[int]:
        """Add the texts of a block; returns their lengths."""
        lengths, words = [*map(len, texts)], [text.split() for text in texts]
        self.characters.update(lengths)
        self.words.update(map(len, words))
        self.distinct.add(chain.from_iterable(words))
        scripts = self._scripts.of_texts(texts)
        self.scripts.update(scripts)
        for script in set(scripts):
            examples = self.examples.setdefault(script, [])
            if len(examples) < PAIRS_PER_SCRIPT:
                found = [at for at, its in enumerate(scripts) if its == script][:PAIRS_PER_SCRIPT - len(examples)]
                examples += [_shorten_pair(block[at]) for at in found]
        other = [text for text in texts if not text.isascii()]
        self.composed += sum(map(has_composed, other))
        if not no_decomposed(other):
            self.decomposed += sum(find_decomposed(text) >= 0 for text in other)
        return lengths

    def main_script(self) -> str:
        """The script of nearly all texts; "" if there is none, or too few texts to tell."""
        written = {script: count for script, count in self.scripts.items() if script}
        script = max(written, key=lambda name: written[name], default="")
        total = sum(written.values())
        return script if total >= 20 and 10 * written[script] >= 9 * total else ""


def _count_foreign_scripts(name: str, side: SideStatistics, noticed: RuleTally) -> None:
    """Count the texts in another script than nearly all of their side, which is known only after the last pair."""
    main = side.main_script()
    for script, count in side.scripts.items():
        if not main or script in ("", main):
            continue
        for pair in side.examples[script]:
            noticed.add(SCRIPT_RULE, RuleMatch(f"{name}, {script} where the others are {main}"), pair)
        noticed.counts[SCRIPT_RULE] += count - len(side.examples[script])


class ScriptTable(dict[str, str]):
    """A cache of the script of each character; "" if it is not a letter."""

    def __missing__(self, character: str) -> str:
        script = ""
        if unicodedata.category(character)[0] == "L":
            script = unicodedata.name(character, "OTHER").split()[0]
            script = "CJK" if script in CJK_SCRIPTS else script
        self[character] = script
        return script

    def of_texts(self, texts: list[str]) -> list[str]:
        """The script of each text."""
        if all(map(str.isascii, texts)) or not _BEYOND_LATIN.search(" ".join(texts)):  # without a loop in Python
            return ["LATIN" if letter else "" for letter in map(_LETTER.search, texts)]
        return [*map(self.of_text, texts)]

    def of_text(self, text: str) -> str:
        """The script with the most distinct letters in a text; "" if it has no letters."""
        if text.isascii():
            return "LATIN" if _LETTER.search(text) else ""
        found = Counter(map(self.__getitem__, set(text)))
        found[""] = 0
        return max(found, key=lambda script: (found[script], script))


class DistinctWords:
    """The number of distinct words.

    All words are kept until there are too many; then only those whose checksum ends in a zero bit, in two, and so on
    (adaptive sampling, Wegman 1984), and the number is extrapolated.
    """

    def __init__(self, limit: int = MAX_DISTINCT_WORDS) -> None:
        self.limit, self._mask, self._kept = limit, 0, set[str]()

    def add(self, words: Iterable[str]) -> None:
        new = set(words)
        new -= self._kept
        self._kept |= self._sampled(new)
        while len(self._kept) > self.limit:
            self._mask = 2 * self._mask + 1
            self._kept = self._sampled(self._kept)

    @property
    def exact(self) -> bool:
        return not self._mask

    @property
    def count(self) -> int:
        return len(self._kept) * (self._mask + 1)

    def _sampled(self, words: set[str]) -> set[str]:
        mask = self._mask
        return {word for word in words if not crc32(word.encode("utf-8", "surrogatepass")) & mask} if mask else words


class LengthCorrelation:
    """The correlation of the lengths of sources and targets, computed from sums."""

    def __init__(self) -> None:
        self._sums = [0] * 6

    def add(self, sources: list[int], targets: list[int]) -> None:
        block = (len(sources), sum(sources), sum(targets), _dot(sources, sources), _dot(targets, targets),
                 _dot(sources, targets))  # fmt: skip
        self._sums = [old + new for old, new in zip(self._sums, block, strict=True)]

    @property
    def value(self) -> float | None:
        """From -1 to 1; None if all texts of a side have the same length."""
        n, x, y, xx, yy, xy = self._sums
        spread = (n * xx - x * x) * (n * yy - y * y)
        return (n * xy - x * y) / math.sqrt(spread) if spread else None

    @property
    def missing(self) -> bool | None:
        """Whether the lengths are unrelated; None if that cannot be decided.

        It cannot with few pairs, or with nearly equal lengths, as in data that is sorted by length. For 150 pairs that
        do not belong together, chance exceeds 0.3 once in ten thousand times; pairs that do have 0.5 and more.
        """
        n, x, y, xx, yy, _ = self._sums
        varied = all(25 * (n * squares - total * total) >= total * total > 0 for total, squares in ((x, xx), (y, yy)))
        value = self.value
        return value < 0.3 if value is not None and n >= 150 and varied else None


def _dot(left: list[int], right: list[int]) -> int:
    return sum(map(mul, left, right))


def _shorten_pair(pair: SentencePair) -> SentencePair:
    return pair._replace(source=excerpt(pair.source), target=excerpt(pair.target))


class OverlappingPair(NamedTuple):
    """The locations of a validation or test pair and of an equal training pair."""

    held_out: Location
    training: Location


class HeldOutOverlap:
    """Which validation or test pairs are in the training data too: a score on them measures memory, not translation.

    Args:
        held_out: the validation or test pairs, read once.
    """

    def __init__(self, held_out: Iterable[SentencePair]) -> None:
        exact, folded, sources = array("Q"), array("Q"), array("Q")
        self._files: list[str] = []
        self._locations = array("Q")  # the number of the file and the line of each pair
        for source, target, location in held_out:
            exact.append(hash_texts(source, target))
            source, target = fold_text(source), fold_text(target)
            folded.append(hash_texts(source, target))
            sources.append(hash_texts(source))
            if not self._files or self._files[-1] != location.file:
                self._files.append(location.file)
            self._locations.extend((len(self._files) - 1, location.line))
        self.pairs = len(exact)
        self._exact, self._folded, self._sources = _HashMatches(exact), _HashMatches(folded), _HashMatches(sources)
        self.first: list[OverlappingPair] = []

    def compare(self, block: Sequence[SentencePair]) -> None:
        """Find which of the pairs are among these training pairs."""
        if not block or not self.pairs:
            return
        texts = [(fold_text(pair.source), fold_text(pair.target)) for pair in block]
        self._sources.match([hash_texts(source) for source, _ in texts])
        for at, new, own in self._folded.match([hash_texts(*pair) for pair in texts]):
            self._exact.match([hash_texts(block[at].source, block[at].target)])  # an exact match is a folded one too
            if new and len(self.first) < EXAMPLES_KEPT:
                file, line = self._locations[2 * own:2 * own + 2]
                self.first.append(OverlappingPair(Location(self._files[file], line), block[at].location))

    @property
    def exact(self) -> int:
        """How many pairs are in the training data exactly."""
        return self._exact.count

    @property
    def folded(self) -> int:
        """How many are in it ignoring case, white space and normal form, the exact ones included."""
        return self._folded.count

    @property
    def sources(self) -> int:
        """How many have a source that is in the training data, with any target; folded."""
        return self._sources.count


class _HashMatches:
    """The hashes of validation or test pairs, and which of them occurred. NumPy is imported only when it is needed."""

    def __init__(self, hashes: "array[int]") -> None:
        import numpy as np

        unsorted = np.array(hashes, dtype=np.uint64)
        self._hashes, self._own, self._times = np.unique(unsorted, return_index=True, return_counts=True)
        self._matched = np.zeros(len(self._hashes), dtype=bool)

    def match(self, hashes: list[int]) -> list[tuple[int, bool, int]]:
        """The matches: index in `hashes`, whether it is the first match of its pair, and the number of that pair."""
        import numpy as np

        wanted = np.array(hashes, dtype=np.uint64)
        slot = np.minimum(np.searchsorted(self._hashes, wanted), len(self._hashes) - 1)
        matches = []
        for at in np.flatnonzero(self._hashes[slot] == wanted).tolist():
            matches.append((at, not self._matched[slot[at]], int(self._own[slot[at]])))
            self._matched[slot[at]] = True
        return matches

    @property
    def count(self) -> int:
        """How many pairs matched, repeated ones counted each time."""
        return int(self._times[self._matched].sum())
