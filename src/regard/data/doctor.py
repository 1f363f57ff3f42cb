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
    warnings      sentences
    look_at       [{where, rule, what, source, target}], texts shortened
    filters       the limits

Pairs are counted in blocks, several times as fast as one by one, and memory does not grow with the corpus, except for
the validation pairs: 64-bit hashes, about 90 bytes a pair. Words are separated by white space. All numbers are exact
except the number of distinct words above `MAX_DISTINCT_WORDS`, which is an estimate. Nothing is printed here.
"""

import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import mul
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from regard import config
from regard.data import filters
from regard.data import filters as rules
from regard.data.filters import (
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
    fold_text,
    split_blocks,
)
from regard.data.sources.text import Location, SentencePair

FINDINGS_SHOWN = 10
"""How many lines to look at first."""
FINDINGS_PER_RULE = 3
"""How many of them may have one reason."""
SCRIPT_RULE = "script"


class SkippedEntries:
    """What the readers of files did not give, by reason; it is called for each."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.first: dict[str, list[Location]] = {}

    def __call__(self, where: Location, reason: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        places = self.first.setdefault(reason, [])
        if len(places) < EXAMPLES_KEPT:
            places.append(where)


# ---- measures: How long the texts are, how many words they have, in which scripts they are written, and whether the sides agree.
#
# Pairs come in blocks and are counted a block at a time, which is several times as fast as one by one; memory does not
# grow with the corpus. Words are what white space parts. All numbers are exact but one: the number of different
# words, from `LARGEST` on. This file knows no rules: it measures what it is given.


class CorpusStatistics:
    """What is measured of a corpus, block by block."""

    def __init__(self) -> None:
        scripts = ScriptTable()
        self.pairs = 0
        self.source, self.target = SideStatistics(scripts), SideStatistics(scripts)
        self.hundredths: Counter[int] = Counter()  # characters of the target for 100 of the source
        self.agreement = LengthCorrelation()
        self.judged = self.apart = 0  # blocks whose lengths can tell whether the sides agree, and that do not
        self.first_apart: SentencePair | None = None

    def add(self, block: Sequence[SentencePair]) -> None:
        """Measure these pairs."""
        self.pairs += len(block)
        sources = self.source.add([pair.source for pair in block], block)
        targets = self.target.add([pair.target for pair in block], block)
        self.hundredths.update([100 * b // a for a, b in zip(sources, targets, strict=True) if a])
        self.agreement.add(sources, targets)
        here = LengthCorrelation()
        here.add(sources, targets)
        self.judged += here.missing is not None
        if here.missing:
            self.apart += 1
            self.first_apart = self.first_apart or _shorten_pair(block[0])


@dataclass(frozen=True)
class DoctorReport:
    """All that was found in a corpus."""

    filters: FilterConfig
    dropped: RuleTally
    noticed: RuleTally
    measures: CorpusStatistics
    overlap: "ValidationOverlap | None"
    left_out: SkippedEntries

    @property
    def kept(self) -> int:
        return self.measures.pairs

    @property
    def read(self) -> int:
        return self.kept + self.dropped.total

    def look_at(self) -> list[Finding]:
        """The most suspicious pairs: the worst of each rule, then the second of each, by the rank of the rules."""
        ranked = sorted((rule for rule in RULES if rule.rank), key=lambda rule: rule.rank)
        lists = [(self.dropped if rule.name in self.dropped.counts else self.noticed).worst(rule.name)
                 for rule in ranked]  # fmt: skip
        lists.insert(3, self.noticed.worst(SCRIPT_RULE))
        chosen: dict[Location, Finding] = {}
        for finding in (findings[turn] for turn in range(FINDINGS_PER_RULE) for findings in lists if turn < len(findings)):
            chosen.setdefault(finding.where, finding)  # a pair once, for its first reason
        return [*chosen.values()][:FINDINGS_SHOWN]

    def warnings(self) -> list[str]:
        """What is wrong with the corpus as a whole, in sentences."""
        return [*_warnings(self)]

    def tables(self) -> dict[str, Any]:
        """Everything as plain values; see the top of this file."""
        measures, overlap, value = self.measures, self.overlap, self.measures.agreement.value
        hundredths = compute_percentiles(measures.hundredths)
        return {
            "pairs": {"read": self.read, "kept": self.kept, "dropped": self.dropped.total},
            "left_out": _tally_table(self.left_out),
            "dropped": _tally_table(self.dropped),
            "noticed": _tally_table(self.noticed),
            "source": _side_table(measures.source),
            "target": _side_table(measures.target),
            "ratio": {name: hundredth / 100 for name, hundredth in hundredths.items()},
            "agreement": None if value is None else round(value, 4),
            "overlap": None if overlap is None else {
                "validation": overlap.pairs,
                "exact": overlap.exact,
                "folded": overlap.folded,
                "sources": overlap.sources,
                "first": [{"validation": str(both.validation), "training": str(both.training)}
                          for both in overlap.first],
            },
            "warnings": self.warnings(),
            "look_at": [{**finding._asdict(), "where": str(finding.where)} for finding in self.look_at()],
            "filters": config.to_tables(self.filters),
        }  # fmt: skip


def check_corpus(pairs: Iterable[SentencePair], filters: FilterConfig | None = None, *, validation: Iterable[SentencePair] | None = None,
          left_out: SkippedEntries | None = None) -> DoctorReport:
    """Read a corpus once and tell what is in it.

    Args:
        validation: the pairs that training will be judged by; they go through the same filters, and are read first.
        left_out: what the reader of `pairs` is given to tell what it leaves out.
    """
    filters = filters or FilterConfig()
    others = [name for name in RULE_NAMES if name not in filters.drop]
    dropped, noticed, measures = RuleTally(filters.drop), RuleTally([*others, SCRIPT_RULE]), CorpusStatistics()
    overlap = None if validation is None else _make_overlap(filter_pairs(validation, filters))
    tests = rules.start_rules(filters, others)
    for block in split_blocks(filter_pairs(pairs, filters, dropped)):
        count_matches(tests, block, noticed)
        measures.add(block)
        if overlap is not None:
            overlap.compare(block)
    for name, side in (("source", measures.source), ("target", measures.target)):
        _count_foreign_scripts(name, side, noticed)
    return DoctorReport(filters, dropped, noticed, measures, overlap, left_out or SkippedEntries())


def _make_overlap(validation: Iterable[SentencePair]) -> "ValidationOverlap":

    return ValidationOverlap(validation)


class ScriptTable(dict[str, str]):
    """The script of every character that was asked for; "" for what is no letter."""

    def __missing__(self, character: str) -> str:
        script = ""
        if unicodedata.category(character)[0] == "L":
            script = unicodedata.name(character, "OTHER").split()[0]
            script = "CJK" if script in CJK_SCRIPTS else script
        self[character] = script
        return script

    def of_all(self, texts: list[str]) -> list[str]:
        """The script of each text."""
        if all(map(str.isascii, texts)) or not _BEYOND_LATIN.search(" ".join(texts)):  # told without a loop in Python
            return ["LATIN" if letter else "" for letter in map(_LETTER.search, texts)]
        return [*map(self.of, texts)]

    def of(self, text: str) -> str:
        """The script that has the most different letters of a text; "" where it has no letters."""
        if text.isascii():
            return "LATIN" if _LETTER.search(text) else ""
        found = Counter(map(self.__getitem__, set(text)))
        found[""] = 0
        return max(found, key=lambda script: (found[script], script))


class SideStatistics:
    """What is measured of the sources, or of the targets."""

    def __init__(self, scripts: ScriptTable) -> None:
        self.characters: Counter[int] = Counter()
        self.words: Counter[int] = Counter()
        self.distinct = DistinctWords()
        self.scripts: Counter[str] = Counter()
        self.composed = self.decomposed = 0
        self.shown: dict[str, list[SentencePair]] = {}
        self._scripts = scripts

    def add(self, texts: list[str], block: Sequence[SentencePair]) -> list[int]:
        """Measure the texts of a block; their lengths."""
        lengths, words = [*map(len, texts)], [text.split() for text in texts]
        self.characters.update(lengths)
        self.words.update(map(len, words))
        self.distinct.add(chain.from_iterable(words))
        scripts = self._scripts.of_all(texts)
        self.scripts.update(scripts)
        for script in set(scripts):
            shown = self.shown.setdefault(script, [])
            if len(shown) < PAIRS_PER_SCRIPT:
                places = [at for at, its in enumerate(scripts) if its == script][: PAIRS_PER_SCRIPT - len(shown)]
                shown += [_shorten_pair(block[at]) for at in places]
        other = [text for text in texts if not text.isascii()]
        self.composed += sum(map(filters.has_composed, other))
        if not filters.no_decomposed(other):
            self.decomposed += sum(filters.find_decomposed(text) >= 0 for text in other)
        return lengths

    def main_script(self) -> str:
        """The script of nearly all texts; "" where there is none, or where there are too few texts to tell."""
        written = {script: count for script, count in self.scripts.items() if script}
        script = max(written, key=lambda name: written[name], default="")
        total = sum(written.values())
        return script if total >= 20 and 10 * written[script] >= 9 * total else ""


def _count_foreign_scripts(name: str, side: SideStatistics, noticed: RuleTally) -> None:
    """Texts in another script than nearly all of their side: known only now, from what was kept to be shown."""
    main = side.main_script()
    for script, count in side.scripts.items():
        if not main or script in ("", main):
            continue
        for pair in side.shown[script]:
            noticed.add(SCRIPT_RULE, RuleMatch(f"{name}, {script} where the others are {main}"), pair)
        noticed.counts[SCRIPT_RULE] += count - len(side.shown[script])


def _warnings(report: DoctorReport) -> Iterator[str]:
    if not report.kept:
        yield "No pair is kept." if report.read else "There is no pair."
        return
    if 2 * report.dropped.total > report.read:
        rule = max(report.dropped.counts, key=lambda name: report.dropped.counts[name])
        yield f"More than half of the pairs are dropped, most of them by the rule {rule}."
    measures = report.measures
    if measures.first_apart is not None:
        yield (f"{measures.first_apart.where}: from about here on, long sources do not have long targets, in "
               f"{measures.apart} of {measures.judged} stretches of the data. Are the two sides still aligned?")
    for name, side in (("sources", measures.source), ("targets", measures.target)):
        if side.composed and side.decomposed:
            yield (f"The {name} mix normal forms: {side.composed} texts have accented letters in one character, "
                   f"{side.decomposed} in two. A model sees different letters there, unless one form is chosen.")
    if report.overlap is not None:
        yield from _overlap_warnings(report.overlap, report.kept)


def _overlap_warnings(overlap: "ValidationOverlap", training: int) -> Iterator[str]:
    if not overlap.pairs:
        yield "No pair of the validation data is kept."
    elif overlap.exact == overlap.pairs == training:
        yield "The validation data is the training data: scores will only tell what the model remembers."
    elif overlap.exact == overlap.pairs:
        yield "Every pair of the validation data is in the training data."
    elif overlap.folded:
        share = 100 * overlap.folded / overlap.pairs
        yield (f"{overlap.folded} of the {overlap.pairs} validation pairs ({share:.1f}%) are in the training data, "
               f"{overlap.exact} of them exactly.")


def _tally_table(tally: RuleTally | SkippedEntries) -> dict[str, Any]:
    return {name: {"count": count, "first": [str(where) for where in tally.first[name]]}
            for name, count in tally.counts.items()}  # fmt: skip


def _side_table(side: SideStatistics) -> dict[str, Any]:
    scripts = {script: count for script, count in side.scripts.most_common() if script}
    return {
        "characters": _weighted_sum(side.characters),
        "words": _weighted_sum(side.words),
        "distinct_words": side.distinct.count,
        "distinct_words_exact": side.distinct.exact,
        "scripts": scripts,
        "composed": side.composed,
        "decomposed": side.decomposed,
        "characters_per_text": compute_percentiles(side.characters),
        "words_per_text": compute_percentiles(side.words),
    }


def _weighted_sum(counts: dict[int, int]) -> int:
    return sum(value * count for value, count in counts.items())


MAX_DISTINCT_WORDS = 2**17
"""How many different words are kept; where there are more, their number is an estimate, to about half a percent."""
PAIRS_PER_SCRIPT = 3
"""How many pairs of each script are kept to be shown."""
CJK_SCRIPTS = {"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH", "CJK"}  # scripts that one language mixes
_LETTER = re.compile(r"[^\W\d_]")
# Where letters of other scripts are; between these ranges, more of Latin, and punctuation that all scripts share.
_BEYOND_LATIN = re.compile(r"[\u0370-\u1dff\u1f00-\u1fff\u2c00-\U0010ffff]")
PERCENTILES = (5, 50, 95, 99)


def compute_percentiles(counts: Mapping[int, int]) -> dict[str, int]:
    """From how often each value occurs: the smallest value that so many percent do not exceed, and the largest."""
    total, ordered = sum(counts.values()), sorted(counts)
    if not total:
        return {}
    result, below, place = {}, 0, -1
    for percent in PERCENTILES:
        while 100 * below < percent * total:
            place += 1
            below += counts[ordered[place]]
        result[str(percent)] = ordered[place]
    return {**result, "max": ordered[-1]}


class DistinctWords:
    """How many different words there are.

    All words are kept until there are too many; then only those whose checksum ends in a zero bit, in two, and so on
    (adaptive sampling, Wegman 1984), and their number stands for all.
    """

    def __init__(self, largest: int = MAX_DISTINCT_WORDS) -> None:
        self.largest, self._mask, self._kept = largest, 0, set[str]()

    def add(self, words: Iterable[str]) -> None:
        new = set(words)
        new -= self._kept
        self._kept |= self._sampled(new)
        while len(self._kept) > self.largest:
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
    """Whether long sources have long targets: the correlation of the lengths, from sums alone."""

    def __init__(self) -> None:
        self._sums = [0] * 6

    def add(self, sources: list[int], targets: list[int]) -> None:
        block = (len(sources), sum(sources), sum(targets), _dot(sources, sources), _dot(targets, targets),
                 _dot(sources, targets))  # fmt: skip
        self._sums = [old + new for old, new in zip(self._sums, block, strict=True)]

    @property
    def value(self) -> float | None:
        """From -1 to 1; None where all texts of a side are equally long."""
        n, x, y, xx, yy, xy = self._sums
        spread = (n * xx - x * x) * (n * yy - y * y)
        return (n * xy - x * y) / math.sqrt(spread) if spread else None

    @property
    def missing(self) -> bool | None:
        """Whether the lengths have nothing to do with each other; None where they cannot tell.

        They cannot where pairs are few, or nearly equally long, as in data that is sorted by length. Chance alone goes
        beyond 0.3 once in ten thousand times for 150 pairs that do not belong together; pairs that do have 0.5 and up.
        """
        n, x, y, xx, yy, _ = self._sums
        varied = all(25 * (n * squares - total * total) >= total * total > 0 for total, squares in ((x, xx), (y, yy)))
        value = self.value
        return value < 0.3 if value is not None and n >= 150 and varied else None


def _dot(left: list[int], right: list[int]) -> int:
    return sum(map(mul, left, right))


def _shorten_pair(pair: SentencePair) -> SentencePair:
    return pair._replace(source=excerpt(pair.source), target=excerpt(pair.target))


# ---- overlap: Which validation pairs are in the training data too, exactly or but for case, spaces and normal form.
#
# A score on such pairs says how well a model remembers, not how well it translates. The validation pairs are kept as
# 64-bit numbers (see `seen`), about 90 bytes a pair; of the training data nothing is kept. It reads no files.


class OverlappingPair(NamedTuple):
    """A validation pair, and the training pair that is the same."""

    validation: Location
    training: Location


class ValidationOverlap:
    """The validation pairs, and which of them were met again.

    Args:
        validation: its pairs, read once.
    """

    def __init__(self, validation: Iterable[SentencePair]) -> None:
        exact, whole, sources = array("Q"), array("Q"), array("Q")
        self._files: list[str] = []
        self._places = array("Q")  # of each pair its file and its line
        for source, target, where in validation:
            exact.append(filters.hash_texts(source, target))
            source, target = fold_text(source), fold_text(target)
            whole.append(filters.hash_texts(source, target))
            sources.append(filters.hash_texts(source))
            if not self._files or self._files[-1] != where.file:
                self._files.append(where.file)
            self._places.extend((len(self._files) - 1, where.line))
        self.pairs = len(exact)
        self._exact, self._folded, self._sources = _HashMatches(exact), _HashMatches(whole), _HashMatches(sources)
        self.first: list[OverlappingPair] = []

    def compare(self, block: Sequence[SentencePair]) -> None:
        """See which of these training pairs are validation pairs."""
        if not block or not self.pairs:
            return
        texts = [(fold_text(pair.source), fold_text(pair.target)) for pair in block]
        self._sources.meet([filters.hash_texts(source) for source, _ in texts])
        for at, new, own in self._folded.meet([filters.hash_texts(*pair) for pair in texts]):
            self._exact.meet([filters.hash_texts(block[at].source, block[at].target)])  # what is exact is folded too
            if new and len(self.first) < EXAMPLES_KEPT:
                file, line = self._places[2 * own : 2 * own + 2]
                self.first.append(OverlappingPair(Location(self._files[file], line), block[at].where))

    @property
    def exact(self) -> int:
        """How many validation pairs are in the training data as they are."""
        return self._exact.count

    @property
    def folded(self) -> int:
        """How many are, but for case, spaces and normal form; the exact ones too."""
        return self._folded.count

    @property
    def sources(self) -> int:
        """How many have a source that is in the training data, whatever its target; folded."""
        return self._sources.count


class _HashMatches:
    """Numbers of the validation pairs, and which of them were met."""

    def __init__(self, numbers: "array[int]") -> None:
        unsorted = np.array(numbers, dtype=np.uint64)
        self._numbers, self._own, self._times = np.unique(unsorted, return_index=True, return_counts=True)
        self._met = np.zeros(len(self._numbers), dtype=bool)

    def meet(self, numbers: list[int]) -> list[tuple[int, bool, int]]:
        """Those that are here: their place among `numbers`, whether they are met for the first time, and whose."""
        asked = np.array(numbers, dtype=np.uint64)
        place = np.minimum(np.searchsorted(self._numbers, asked), len(self._numbers) - 1)
        hits = []
        for at in np.flatnonzero(self._numbers[place] == asked).tolist():
            hits.append((at, not self._met[place[at]], int(self._own[place[at]])))
            self._met[place[at]] = True
        return hits

    @property
    def count(self) -> int:
        """How many validation pairs were met, each as often as it is there."""
        return int(self._times[self._met].sum())
