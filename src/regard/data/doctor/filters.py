"""The pairs that are kept, and a tally of those that are not.

`kept` is what training reads its data through, so that what the doctor says is what happens. Pairs come and go one at a
time. It does not know where they come from, nor what is done with them.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from regard.data.doctor import rules
from regard.data.doctor.rules import FilterConfig, Find, Found, Rule
from regard.data.pair import Pair, Where

FIRST = 10
"""How many places, and how many of the worst pairs, a tally keeps of each rule."""
BLOCK = 512
LONG = 100_000
"""Characters of a text that does not wait for others."""
WIDEST = 72
"""How many characters of a text are kept to be shown."""

Tests = Sequence[tuple[Rule, Find]]


class Finding(NamedTuple):
    """A pair that a rule found: where, what, and its texts, shortened."""

    where: Where
    rule: str
    what: str
    source: str
    target: str


class Tally:
    """How often each rule found something, the first places, and the worst pairs.

    Args:
        names: the rules that are counted; those that find nothing have a count of 0.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.counts = {name: 0 for name in names}
        self.first: dict[str, list[Where]] = {name: [] for name in self.counts}
        self._worst: dict[str, list[tuple[float, int, Finding]]] = {name: [] for name in self.counts}

    def add(self, name: str, found: Found, pair: Pair) -> None:
        """Count what a rule found in a pair."""
        count = self.counts[name] = self.counts[name] + 1
        if count <= FIRST:
            self.first[name].append(pair.where)
        worst = self._worst[name]
        if len(worst) < FIRST or found.badness > worst[0][0]:  # of equally bad ones, those that came first
            heapq.heappush(worst, (found.badness, -count, _finding(name, found, pair)))
            if len(worst) > FIRST:
                heapq.heappop(worst)

    def worst(self, name: str) -> list[Finding]:
        """The worst pairs of a rule, the worst first."""
        return [finding for _, _, finding in sorted(self._worst[name], reverse=True)]

    @property
    def total(self) -> int:
        """All that was counted."""
        return sum(self.counts.values())


def kept(pairs: Iterable[Pair], config: FilterConfig, dropped: Tally | None = None) -> Iterator[Pair]:
    """The pairs that no rule of `config.drop` leaves out, in their order, as they are.

    Args:
        dropped: where to count the others, each under the first rule that left it out.
    """
    tests = rules.started(config, config.drop)
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


def notice(tests: Tests, block: Sequence[Pair], noticed: Tally) -> None:
    """Count everything that the tests find in these pairs."""
    sources, targets = [pair.source for pair in block], [pair.target for pair in block]
    for rule, find in tests:
        if rule.fine(sources) and rule.fine(targets):
            continue
        for pair, found in zip(block, map(find, sources, targets), strict=True):
            if found is not None:
                noticed.add(rule.name, found, pair)


def blocks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """The pairs in lists of `BLOCK`, or of fewer where they are very long."""
    block: list[Pair] = []
    for pair in pairs:
        source, target, _ = pair
        block.append(pair)
        if len(block) == BLOCK or len(source) > LONG or len(target) > LONG:
            yield block
            block = []
    if block:
        yield block


def shortened(text: str, at: int = 0) -> str:
    """The part of a text around a character, with dots where something is left out."""
    if len(text) <= WIDEST:
        return text
    start = max(0, min(at - WIDEST // 2, len(text) - WIDEST))
    return ("…" if start else "") + text[start : start + WIDEST] + ("…" if start + WIDEST < len(text) else "")


def _finding(name: str, found: Found, pair: Pair) -> Finding:
    source, target = shortened(pair.source, found.source_at), shortened(pair.target, found.target_at)
    return Finding(pair.where, name, found.what, source, target)
