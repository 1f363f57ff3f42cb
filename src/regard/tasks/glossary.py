"""Glossaries: terms of the source that must become given terms in the translation.

    dog      chien            a source term, a tab, the target term
    big      grand            a source term on several lines may become any of their target terms
    big      gros

    glossary = Glossary.read("terms.tsv")         or Glossary({"dog": "chien", "big": ["grand", "gros"]})
    glossary.found("The big dog.")                [RequiredTerm(4, 7, ("grand", "gros")),
                                                   RequiredTerm(8, 11, ("chien",))]

A term matches whole words only: "dog" is not found in "dogs". From left to right the longest term wins. A term in lower
case matches any case, a term with capitals matches exactly. White space of any length equals one space. The target term
appears as it is written; its first letter may be a capital if its first word is in lower case. A term that stands in
the source twice appears in the translation at least once.

`TermSpelling` lists the token sequences that spell a term. `GlossarySearch` translates with all terms:

    1. Translate freely; often the terms are already there.
    2. A missing term replaces the word that attends to its source most: the text before it is kept, and the model
       continues after it. Then the next missing term follows.
    3. Terms that are still missing go to a constrained beam search (`regard.decoding.constraints`). It adds up
       log-probabilities without a length penalty: an unexpected term is so improbable that a mean would favour any
       long text.

Of several target terms the most probable translation decides. A model without cross-attention skips step 2.
"""

import os
import unicodedata
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from regard import checks
from regard.data.filters import is_blank
from regard.data.sources.text import DataError, InputFile, Location, printable, read_lines
from regard.data.tokenizer.interface import APOSTROPHES, HYPHENS, Tokenizer, find_units
from regard.decoding.constraints import TermAlternatives, TermAutomaton
from regard.decoding.request import Hypothesis
from regard.tasks.alignment import Alignment
from regard.tasks.search import Beam

PRECEDING_SIGNS = ("'", "\u2019", '"', "\u201c", "(", "[", "\u00ab", "\u00ab\u00a0", "-", "/", "\u00a0", "\u202f")
"""Signs that a word may follow without a space."""
MAX_ELISION = 7
"""The longest elided word with its apostrophe: quelqu'."""


class RequiredTerm(NamedTuple):
    """A term in the characters text[start:end] of a source; one of the targets must appear in the translation."""

    start: int
    end: int
    targets: tuple[str, ...]

    def appears_in(self, text: str) -> bool:
        """Whether one of the targets appears in a text."""
        words = _split_words(text)
        return any(_matches_term(words[at:at + len(target)], target) for target in map(_split_words, self.targets)
                   for at in range(len(words) - len(target) + 1))


class GlossaryWord(NamedTuple):
    """A word or a sign of a text, and whether white space precedes it."""

    text: str
    spaced: bool
    start: int
    end: int


class WordKey(NamedTuple):
    """What two equal words of terms have in common."""

    text: str
    spaced: bool


GlossaryWords = tuple[GlossaryWord, ...]
TermKey = tuple[WordKey, ...]


class Glossary:
    """Source terms, each with one or several target terms."""

    def __init__(self, entries: Mapping[str, str | Sequence[str]]) -> None:
        if not isinstance(entries, Mapping):
            raise checks.wrong("entries", 'terms with their translations, such as {"dog": "chien"}',
                               *checks.kind(entries))
        for source, target in entries.items():
            if not isinstance(target, Sequence):
                raise checks.wrong("entries", "terms with a text, or a list of texts, as their translation",
                                   f"{checks.kind(target)[0]} for {source!r:.80}")
        self.entries = {source: (target,) if isinstance(target, str) else tuple(target)
                        for source, target in entries.items()}
        self._exact, self._folded = dict[TermKey, tuple[str, ...]](), dict[TermKey, tuple[str, ...]]()
        for source, targets in self.entries.items():
            for text in (source, *targets):
                if not isinstance(text, str) or is_blank(text):
                    raise checks.wrong("entries", "terms that are not empty", f"{text!r:.80}")
            if not targets:
                raise checks.wrong("entries", "at least one target term for each term", f"none for {source!r:.80}")
            key = _term_key(_split_words(source))
            table = self._folded if source == source.lower() else self._exact
            table[key] = (*table.get(key, ()), *targets)
        self._longest = max(map(len, (*self._exact, *self._folded)), default=0)

    def __repr__(self) -> str:
        first = [f"{source!r:.40} → {' | '.join(targets)!r:.40}" for source, targets in [*self.entries.items()][:2]]
        more = ["…"] if len(self.entries) > len(first) else []
        return f"Glossary({', '.join([checks.plural(len(self.entries), 'term'), *first, *more])})"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Glossary":
        """The glossary in a file; a DataError names file and line. Empty lines are skipped."""
        entries = dict[str, list[str]]()
        file = InputFile(os.fspath(path))
        for location, source, target in _glossary_lines(file):
            for text, name in ((source, "source"), (target, "target")):
                if is_blank(text):
                    raise DataError(f"{location}: The {name} term is missing. A line is a source term, a tab, and a "
                                    "target term.")
            targets = entries.setdefault(source.strip(), [])
            if target.strip() not in targets:
                targets.append(target.strip())
        if not entries:
            raise DataError(f"{printable(file.name)}: There are no terms in it. A line is a source term, a tab, and a "
                            "target term.")
        return cls(entries)

    def found(self, text: str) -> list[RequiredTerm]:
        """The terms of a text, in its order, with their targets."""
        words, place, terms = _split_words(text), 0, list[RequiredTerm]()
        folded = tuple(word._replace(text=word.text.lower()) for word in words)
        while place < len(words):
            for count in range(min(self._longest, len(words) - place), 0, -1):
                targets = (self._exact.get(_term_key(words[place:place + count]))
                           or self._folded.get(_term_key(folded[place:place + count])))
                if targets:
                    terms.append(RequiredTerm(words[place].start, words[place + count - 1].end, targets))
                    place += count - 1
                    break
            place += 1
        return terms


def as_glossary(given: "Glossary | Mapping[str, str | Sequence[str]]") -> Glossary:
    """A glossary, or one made of a table."""
    return given if isinstance(given, Glossary) else Glossary(given)


def _glossary_lines(file: InputFile) -> Iterator[tuple[Location, str, str]]:
    for number, line in enumerate(read_lines(file), 1):
        cells, location = line.split("\t"), Location(file.name, number)
        if is_blank(line):
            continue
        if len(cells) != 2:
            raise DataError(f"{location}: {len(cells)} column{'s' * (len(cells) != 1)} instead of 2: a source term, a "
                            "tab, and a target term.")
        yield location, cells[0], cells[1]


def _split_words(text: str) -> GlossaryWords:
    words, end = list[GlossaryWord](), 0
    for span in find_units(text):
        words.append(GlossaryWord(unicodedata.normalize("NFC", text[span.start:span.end]), span.start > end, *span))
        end = span.end
    return tuple(words)


def _term_key(words: GlossaryWords) -> TermKey:
    """The key of words; white space before the first does not count."""
    return tuple(WordKey(word.text, word.spaced and at > 0) for at, word in enumerate(words))


def _matches_term(words: GlossaryWords, target: GlossaryWords) -> bool:
    """Whether words equal those of a target term, possibly with a capital first letter."""
    own, term = _term_key(words), _term_key(target)
    return own[1:] == term[1:] and own[0].text in with_capital(term[0].text)


def with_capital(target: str) -> list[str]:
    """A text, and if its first word is in lower case, the same with a capital first letter."""
    first = target.split()[0]
    return [target, target[0].upper() + target[1:]] if first == first.lower() else [target]


class TermSpelling:
    """The token sequences that spell a term: they depend on the text before it and on capital letters.

        TermSpelling(tokenizer).ways("homme")      ▁homme    ' homme    ▁l' homme    - homme    ▁Homme    ...
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ways = lru_cache(maxsize=None)(self._ways)
        """All token sequences that spell a text as whole words, anywhere in a sentence."""

    def __reduce__(self) -> tuple[type["TermSpelling"], tuple[Tokenizer]]:
        """A copy, or one in another process, fills a cache of its own."""
        return TermSpelling, (self.tokenizer,)

    def at(self, text: str, glued: bool) -> tuple[int, ...]:
        """The tokens of a text after a space, or if `glued` directly after a sign; empty if there are none."""
        normal = self.tokenizer.normalize(text)
        return self._tokens_after("l'", 2, normal) if glued else self._tokens_after("a ", 1, normal)

    @cached_property
    def joining(self) -> list[int]:
        """The tokens that, directly after a word, would be part of it."""
        return [id_ for id_, text in self._added if _extends_word(text)]

    @cached_property
    def eliding(self) -> list[int]:
        """The tokens after which a word begins without a space: l', qu'."""
        return [id_ for id_, text in self._added if text[-1:] in APOSTROPHES and text[:-1].strip().isalpha()
                and len(text.strip()) <= MAX_ELISION]

    @cached_property
    def _added(self) -> list[tuple[int, str]]:
        """The text that each token adds to a word."""
        anchor, special = self.tokenizer.encode("a"), self.tokenizer.special.ids()
        before = len(self.tokenizer.decode(anchor))
        ids = (id_ for id_ in range(self.tokenizer.size) if id_ not in special)
        return [(id_, text) for id_ in ids if (text := self.tokenizer.decode([*anchor, id_])[before:])]

    def _ways(self, target: str) -> tuple[tuple[int, ...], ...]:
        """With and without a capital letter, after a space, a sign or an apostrophe.

        Every sequence includes the space or sign before the term: without it, the term could stand inside a word. Only
        a capital letter needs neither.
        """
        ways = dict[tuple[int, ...], None]()
        for text in with_capital(self.tokenizer.normalize(target)):
            ways |= dict.fromkeys([self._tokens_after("a ", 1, text)])
            if text[0].isupper():
                ways |= dict.fromkeys([tuple(self.tokenizer.encode(text))])
            inner = self._tokens_after("l'", 2, text)
            signed = (self._tokens_after(f"a{sign}", 1, text) for sign in PRECEDING_SIGNS)
            ways |= dict.fromkeys(way for way in signed if not inner or len(way) <= len(inner) + 1)
            ways |= dict.fromkeys((id_, *inner) for id_ in self.eliding if inner)
            if len(find_units("a" + text[0])) == 2:  # in scripts without spaces every letter may begin a word
                ways |= dict.fromkeys([self._tokens_after("a", 1, text)])
        ways.pop((), None)
        if not ways:
            raise checks.wrong("glossary", "made of characters that the model has tokens for", f"{target!r:.80}",
                               "Remove the term from the glossary.")
        return tuple(ways)

    def _tokens_after(self, left: str, start: int, text: str) -> tuple[int, ...]:
        """The tokens of `left[start:] + text` within `left + text`; empty if one of them is shared with the rest."""
        ids, spans = self.tokenizer.encode(left + text), self.tokenizer.spans(left + text)
        own = tuple(id_ for id_, span in zip(ids, spans, strict=True) if span.end > max(start, span.start))
        if not own or self.tokenizer.special.unknown in own:
            return ()
        return own if self.tokenizer.decode(own).strip() == (left[start:] + text).strip() else ()


def _extends_word(added: str) -> bool:
    """Whether a text directly after a word makes it another word.

    Half a character may, and so may a hyphen or an apostrophe, depending on what follows.
    """
    whole = f"{added}a" if not added.strip(HYPHENS + APOSTROPHES) else added
    return added[0] == "\ufffd" or any(find_units(word + whole)[0].end > len(word) for word in ("a", "aaaa"))


def can_continue(target: str) -> bool:
    """Whether a letter directly after the target would make its last word another one."""
    return len(find_units(target[-1] + "a")) == 1


class TranslationRow(NamedTuple):
    """The ids of a source, and constraints on its translation."""

    source: Sequence[int]
    prefix: Sequence[int] = ()
    terms: Sequence[TermAlternatives] = ()
    """The terms that must appear after the prefix."""
    whole_words: Sequence[Sequence[int]] = ()
    """Sequences of ids that no following token may extend to another word."""


class TranslationInput(NamedTuple):
    """A text with its ids, the prefix of its translation, and its required terms."""

    text: str
    source: Sequence[int]
    prefix: Sequence[int]
    required_terms: Sequence[RequiredTerm]


WriteFunction = Callable[[Sequence[TranslationRow], Any], list[list[Hypothesis]]]
"""Rows and a strategy -> the hypotheses for each row."""
SearchSteps = Generator[tuple[list[TranslationRow], Any], list[list[Hypothesis]], list[list[Hypothesis]]]
"""Searches that depend on each other: each yields rows and a strategy, and receives the hypotheses for each row, the
best first, whose ids include the prefix."""


def finish_search(steps: SearchSteps, write: WriteFunction) -> list[list[Hypothesis]]:
    """Run searches one after another, and return what they return."""
    try:
        rows, strategy = next(steps)
        while True:
            rows, strategy = steps.send(write(rows, strategy))
    except StopIteration as stopped:
        found: list[list[Hypothesis]] = stopped.value
        return found


class GlossarySearch(NamedTuple):
    """Translates with required terms, by functions of a translator."""

    align: Callable[[Sequence[tuple[str, Sequence[int]]]], Sequence[Alignment]] | None
    """The alignments of texts and the ids of their translations; None for a model without cross-attention."""
    spelling: TermSpelling
    room: Callable[[TranslationRow], int]
    """How many tokens may follow the prefix of a row; negative if the prefix itself is too long."""

    def steps(self, inputs: Sequence[TranslationInput], strategy: Beam) -> SearchSteps:
        """The searches for texts, which return their translations with all required terms, the best first."""
        found = yield [TranslationRow(one.source, one.prefix) for one in inputs], strategy
        starts = [len(one.prefix) for one in inputs]
        for turn in range(max((len(one.required_terms) for one in inputs), default=0) if self.align else 0):
            trials = self._trials(inputs, found, starts, turn)
            answers = (yield [row for _, row in trials], strategy) if trials else []
            for number in {number for number, _ in trials}:
                own = [(row, some) for (other, row), some in zip(trials, answers, strict=True) if other == number]
                row, found[number] = max(own, key=lambda one: _hypothesis_rank(one[1][0]))
                starts[number] = len(row.prefix)
        open_ = [number for number, one in enumerate(inputs) if self._missing(one, found[number][0].ids)]
        forced = (yield [self._constrained_row(inputs[number]) for number in open_],
                  replace(strategy, length_penalty="none")) if open_ else []
        for number, some in zip(open_, forced, strict=True):
            found[number] = some
        return [[some[0], *(other for other in some[1:] if not self._missing(one, other.ids))]
                for one, some in zip(inputs, found, strict=True)]

    def _missing(self, one: TranslationInput, ids: Sequence[int]) -> list[RequiredTerm]:
        """The required terms that do not appear in a translation."""
        text = self.spelling.tokenizer.decode(ids) if one.required_terms else ""
        return [term for term in one.required_terms if not term.appears_in(text)]

    def _trials(self, inputs: Sequence[TranslationInput], found: list[list[Hypothesis]], starts: Sequence[int],
                turn: int) -> list[tuple[int, TranslationRow]]:
        """Rows whose prefix has one more term, with the numbers of their texts."""
        assert self.align is not None
        open_ = [number for number, one in enumerate(inputs)
                 if turn < len(one.required_terms) and self._missing(one, found[number][0].ids)]
        alignments = self.align([(inputs[number].text, found[number][0].ids) for number in open_]) if open_ else []
        return [(number, row) for number, alignment in zip(open_, alignments, strict=True)
                for row in self._insert_term(inputs[number], found[number][0].ids, starts[number], alignment)]

    def _insert_term(self, one: TranslationInput, ids: Sequence[int], start: int,
                     alignment: Alignment) -> list[TranslationRow]:
        """For each target of the first missing term after `start`: the text before its place, and the target."""
        words, text = self.spelling.tokenizer.decoded_words(ids), self.spelling.tokenizer.decode(ids)
        places = sorted((place, term) for term in self._missing(one, ids)
                        if (place := _aligned_word(term, alignment)) is not None and words[place].first_token >= start)
        rows = []
        for target in places[0][1].targets if places else ():
            word = words[places[0][0]]
            spelled = with_capital(target)[-1] if word.start == 0 and text[:1].isupper() else target
            tokens = self.spelling.at(spelled, glued=word.start > 0 and not text[word.start - 1].isspace())
            row = TranslationRow(one.source, [*ids[:word.first_token], *tokens],
                                 whole_words=[tokens] if can_continue(target) else ())
            if tokens and self.room(row) >= 0:
                rows.append(row)
        return rows

    def _constrained_row(self, one: TranslationInput) -> TranslationRow:
        """A row for the constrained beam search."""
        terms = self._missing(one, one.prefix)
        ways = [[way for target in term.targets for way in self.spelling.ways(target)] for term in terms]
        whole_words = [way for term in terms for target in term.targets if can_continue(target)
                       for way in self.spelling.ways(target)]
        row = TranslationRow(one.source, one.prefix, ways, whole_words)
        needed, room = TermAutomaton(ways).needed(0), self.room(row)
        if needed > room:
            named = ", ".join(f"{one.text[term.start:term.end]!r:.80}" for term in terms)
            expected = f"terms that fit into a translation, here into {room} token{'s' * (room != 1)}"
            raise checks.wrong("glossary", expected, f"{needed} tokens for {named} of {one.text!r:.80}",
                               "Raise max_length, or remove the terms from the glossary.")
        return row


def _aligned_word(term: RequiredTerm, alignment: Alignment) -> int | None:
    """The word of a translation that attends to a term most."""
    columns = [number for number, span in enumerate(alignment.source_spans)
               if span.start < term.end and span.end > term.start]
    weights = alignment.weights[:, columns]
    return int(weights.sum(dim=-1).argmax()) if weights.numel() else None


def _hypothesis_rank(one: Hypothesis) -> tuple[bool, float]:
    """Finished hypotheses rank before truncated ones, then by log-probability."""
    return not one.cut, sum(one.log_probabilities)
