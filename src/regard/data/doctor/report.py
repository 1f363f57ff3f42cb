"""What the doctor found: counts, places, lengths, warnings, and the lines to look at first.

`check` reads the pairs once and gives a `Report`; `Report.tables` has all of it as plain values, with keys that stay:

    pairs         read, kept, dropped
    left_out      {reason: {count, first}}: what the reader of a file did not give, as fuzzy entries of PO
    dropped       {rule: {count, first}} for every rule that drops; `first` are places, "corpus.tsv:7"
    noticed       {rule: {count, first}} for every other rule and for "script", among the pairs that are kept
    source,       of the pairs that are kept: characters, words, distinct_words, distinct_words_exact (true or false),
    target        scripts {name: texts}, composed and decomposed (texts with accents in one character, in two),
                  characters_per_text and words_per_text {"5", "50", "95", "99", "max"}
    ratio         {"5", "50", "95", "99", "max"}: characters of the target for one of the source, to 0.01, rounded down
    agreement     correlation of the lengths of the two sides; null where there is none
    overlap       null without validation data; else validation (its pairs that are kept), exact, folded, sources
                  (how many of these are in the training data) and first [{validation, training}]
    warnings      sentences
    look_at       [{where, rule, what, source, target}], texts shortened
    filters       the limits

It words what is found, but prints nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard import config
from regard.data.doctor import rules
from regard.data.doctor.filters import FIRST, Finding, Tally, blocks, kept, notice
from regard.data.doctor.measures import Measures, Side, percentiles
from regard.data.doctor.rules import NAMES, RULES, FilterConfig, Found
from regard.data.pair import Pair, Where

if TYPE_CHECKING:
    from regard.data.doctor.overlap import Overlap

LOOK = 10
"""How many lines to look at first."""
EACH = 3
"""How many of them may have one reason."""
SCRIPT = "script"


class LeftOut:
    """What the readers of files did not give, by reason; it is called for each."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.first: dict[str, list[Where]] = {}

    def __call__(self, where: Where, reason: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        places = self.first.setdefault(reason, [])
        if len(places) < FIRST:
            places.append(where)


@dataclass(frozen=True)
class Report:
    """All that was found in a corpus."""

    filters: FilterConfig
    dropped: Tally
    noticed: Tally
    measures: Measures
    overlap: "Overlap | None"
    left_out: LeftOut

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
        lists.insert(3, self.noticed.worst(SCRIPT))
        chosen: dict[Where, Finding] = {}
        for finding in (findings[turn] for turn in range(EACH) for findings in lists if turn < len(findings)):
            chosen.setdefault(finding.where, finding)  # a pair once, for its first reason
        return [*chosen.values()][:LOOK]

    def warnings(self) -> list[str]:
        """What is wrong with the corpus as a whole, in sentences."""
        return [*_warnings(self)]

    def tables(self) -> dict[str, Any]:
        """Everything as plain values; see the top of this file."""
        measures, overlap, value = self.measures, self.overlap, self.measures.agreement.value
        hundredths = percentiles(measures.hundredths)
        return {
            "pairs": {"read": self.read, "kept": self.kept, "dropped": self.dropped.total},
            "left_out": _counted(self.left_out),
            "dropped": _counted(self.dropped),
            "noticed": _counted(self.noticed),
            "source": _side(measures.source),
            "target": _side(measures.target),
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
            "filters": config.plain(self.filters),
        }  # fmt: skip


def check(pairs: Iterable[Pair], filters: FilterConfig | None = None, *, validation: Iterable[Pair] | None = None,
          left_out: LeftOut | None = None) -> Report:
    """Read a corpus once and tell what is in it.

    Args:
        validation: the pairs that training will be judged by; they go through the same filters, and are read first.
        left_out: what the reader of `pairs` is given to tell what it leaves out.
    """
    filters = filters or FilterConfig()
    others = [name for name in NAMES if name not in filters.drop]
    dropped, noticed, measures = Tally(filters.drop), Tally([*others, SCRIPT]), Measures()
    overlap = None if validation is None else _overlap(kept(validation, filters))
    tests = rules.started(filters, others)
    for block in blocks(kept(pairs, filters, dropped)):
        notice(tests, block, noticed)
        measures.add(block)
        if overlap is not None:
            overlap.compare(block)
    for name, side in (("source", measures.source), ("target", measures.target)):
        _notice_scripts(name, side, noticed)
    return Report(filters, dropped, noticed, measures, overlap, left_out or LeftOut())


def _overlap(validation: Iterable[Pair]) -> "Overlap":
    from regard.data.doctor.overlap import Overlap  # with NumPy, which takes longer to import than most files to read

    return Overlap(validation)


def _notice_scripts(name: str, side: Side, noticed: Tally) -> None:
    """Texts in another script than nearly all of their side: known only now, from what was kept to be shown."""
    main = side.main_script()
    for script, count in side.scripts.items():
        if not main or script in ("", main):
            continue
        for pair in side.shown[script]:
            noticed.add(SCRIPT, Found(f"{name}, {script} where the others are {main}"), pair)
        noticed.counts[SCRIPT] += count - len(side.shown[script])


def _warnings(report: Report) -> Iterator[str]:
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


def _overlap_warnings(overlap: "Overlap", training: int) -> Iterator[str]:
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


def _counted(tally: Tally | LeftOut) -> dict[str, Any]:
    return {name: {"count": count, "first": [str(where) for where in tally.first[name]]}
            for name, count in tally.counts.items()}  # fmt: skip


def _side(side: Side) -> dict[str, Any]:
    scripts = {script: count for script, count in side.scripts.most_common() if script}
    return {
        "characters": _sum(side.characters),
        "words": _sum(side.words),
        "distinct_words": side.distinct.count,
        "distinct_words_exact": side.distinct.exact,
        "scripts": scripts,
        "composed": side.composed,
        "decomposed": side.decomposed,
        "characters_per_text": percentiles(side.characters),
        "words_per_text": percentiles(side.words),
    }


def _sum(counts: dict[int, int]) -> int:
    return sum(value * count for value, count in counts.items())
