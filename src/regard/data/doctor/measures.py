"""How long the texts are, how many words they have, in which scripts they are written, and whether the sides agree.

Pairs come in blocks and are counted a block at a time, which is several times as fast as one by one; memory does not
grow with the corpus. Words are what white space parts. All numbers are exact but one: the number of different
words, from `LARGEST` on. This file knows no rules: it measures what it is given.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import mul
from zlib import crc32

from regard.data.doctor import characters
from regard.data.doctor.filters import shortened
from regard.data.pair import Pair

LARGEST = 2**17
"""How many different words are kept; where there are more, their number is an estimate, to about half a percent."""
SHOWN = 3
"""How many pairs of each script are kept to be shown."""
TOGETHER = {"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HALFWIDTH", "CJK"}  # scripts that one language mixes
_LETTER = re.compile(r"[^\W\d_]")
# Where letters of other scripts are; between these ranges, more of Latin, and punctuation that all scripts share.
_BEYOND_LATIN = re.compile(r"[\u0370-\u1dff\u1f00-\u1fff\u2c00-\U0010ffff]")
PERCENTS = (5, 50, 95, 99)


def percentiles(counts: Mapping[int, int]) -> dict[str, int]:
    """From how often each value occurs: the smallest value that so many percent do not exceed, and the largest."""
    total, ordered = sum(counts.values()), sorted(counts)
    if not total:
        return {}
    result, below, place = {}, 0, -1
    for percent in PERCENTS:
        while 100 * below < percent * total:
            place += 1
            below += counts[ordered[place]]
        result[str(percent)] = ordered[place]
    return {**result, "max": ordered[-1]}


class Words:
    """How many different words there are.

    All words are kept until there are too many; then only those whose checksum ends in a zero bit, in two, and so on
    (adaptive sampling, Wegman 1984), and their number stands for all.
    """

    def __init__(self, largest: int = LARGEST) -> None:
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


class Scripts(dict[str, str]):
    """The script of every character that was asked for; "" for what is no letter."""

    def __missing__(self, character: str) -> str:
        script = ""
        if unicodedata.category(character)[0] == "L":
            script = unicodedata.name(character, "OTHER").split()[0]
            script = "CJK" if script in TOGETHER else script
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


class Side:
    """What is measured of the sources, or of the targets."""

    def __init__(self, scripts: Scripts) -> None:
        self.characters: Counter[int] = Counter()
        self.words: Counter[int] = Counter()
        self.distinct = Words()
        self.scripts: Counter[str] = Counter()
        self.composed = self.decomposed = 0
        self.shown: dict[str, list[Pair]] = {}
        self._scripts = scripts

    def add(self, texts: list[str], block: Sequence[Pair]) -> list[int]:
        """Measure the texts of a block; their lengths."""
        lengths, words = [*map(len, texts)], [text.split() for text in texts]
        self.characters.update(lengths)
        self.words.update(map(len, words))
        self.distinct.add(chain.from_iterable(words))
        scripts = self._scripts.of_all(texts)
        self.scripts.update(scripts)
        for script in set(scripts):
            shown = self.shown.setdefault(script, [])
            if len(shown) < SHOWN:
                places = [at for at, its in enumerate(scripts) if its == script][: SHOWN - len(shown)]
                shown += [_short(block[at]) for at in places]
        other = [text for text in texts if not text.isascii()]
        self.composed += sum(map(characters.has_composed, other))
        if not characters.no_decomposed(other):
            self.decomposed += sum(characters.decomposed_at(text) >= 0 for text in other)
        return lengths

    def main_script(self) -> str:
        """The script of nearly all texts; "" where there is none, or where there are too few texts to tell."""
        written = {script: count for script, count in self.scripts.items() if script}
        script = max(written, key=lambda name: written[name], default="")
        total = sum(written.values())
        return script if total >= 20 and 10 * written[script] >= 9 * total else ""


class Agreement:
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


class Measures:
    """What is measured of a corpus, block by block."""

    def __init__(self) -> None:
        scripts = Scripts()
        self.pairs = 0
        self.source, self.target = Side(scripts), Side(scripts)
        self.hundredths: Counter[int] = Counter()  # characters of the target for 100 of the source
        self.agreement = Agreement()
        self.judged = self.apart = 0  # blocks whose lengths can tell whether the sides agree, and that do not
        self.first_apart: Pair | None = None

    def add(self, block: Sequence[Pair]) -> None:
        """Measure these pairs."""
        self.pairs += len(block)
        sources = self.source.add([pair.source for pair in block], block)
        targets = self.target.add([pair.target for pair in block], block)
        self.hundredths.update([100 * b // a for a, b in zip(sources, targets, strict=True) if a])
        self.agreement.add(sources, targets)
        here = Agreement()
        here.add(sources, targets)
        self.judged += here.missing is not None
        if here.missing:
            self.apart += 1
            self.first_apart = self.first_apart or _short(block[0])


def _dot(left: list[int], right: list[int]) -> int:
    return sum(map(mul, left, right))


def _short(pair: Pair) -> Pair:
    return pair._replace(source=shortened(pair.source), target=shortened(pair.target))
