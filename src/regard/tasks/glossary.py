"""Glossaries: terms of the source that must become given terms in the translation.

    dog      chien            a source term, a tab, the target term
    big      grand            a source term on several lines may become any of their target terms
    big      gros

    glossary = Glossary.read("terms.tsv")         or Glossary({"dog": "chien", "big": ["grand", "gros"]})
    glossary.found("The big dog.")                [RequiredTerm(4, 7, ("grand", "gros")), RequiredTerm(8, 11, ("chien",))]

A term matches whole words only: "dog" is not found in "dogs". From left to right the longest term wins. A term in lower
case matches any case, a term with capitals matches exactly. White space of any length equals one space. The target term
appears as it is written; its first letter may be a capital where the term is in lower case.

`TermSpelling` lists the token sequences that spell a term. `GlossarySearch` translates with all terms:

    1. Translate freely; often the terms are already there.
    2. A missing term replaces the word that attends to its source most: the text before it is kept, and the model
       continues after it.
    3. Terms that are still missing go to a constrained beam search (`regard.decoding`). It adds up log-probabilities
       without a length penalty: an unexpected term is so improbable that a mean would favour any long text.
"""

import os
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from regard import checks
from regard.data.filters import is_blank
from regard.data.sources.text import DataError, InputFile, Location, printable, read_lines
from regard.data.tokenizer.interface import APOSTROPHES, HYPHENS, Tokenizer, find_units
from regard.decoding.constraints import TermAlternatives, TermAutomaton
from regard.decoding.request import Hypothesis
from regard.tasks.alignment import Alignment
from regard.tasks.search import Beam


class RequiredTerm(NamedTuple):
    """A term in the characters text[start:end] of a source, and what one of must appear in its translation."""

    start: int
    end: int
    targets: tuple[str, ...]

    def met(self, text: str) -> bool:
        """Whether it appears in a text."""
        every = _split_words(text)
        return any(_matches_term(every[at:at + len(units)], units) for units in map(_split_words, self.targets)
                   for at in range(len(every) - len(units) + 1))


class GlossaryWord(NamedTuple):
    """A word, or a sign; whether white space is in front of it; and where it ends."""

    text: str
    apart: bool
    start: int
    end: int


class WordKey(NamedTuple):
    """What tells a word of a term from others."""

    text: str
    apart: bool


GlossaryWords = tuple[GlossaryWord, ...]
TermKey = tuple[WordKey, ...]


class Glossary:
    """Terms of sources, each with one choice or several of what it becomes."""

    def __init__(self, entries: Mapping[str, str | Sequence[str]]) -> None:
        if not isinstance(entries, Mapping):
            raise checks.wrong("entries", 'terms with what they become, such as {"dog": "chien"}',
                               *checks.kind(entries))
        for source, target in entries.items():
            if not isinstance(target, Sequence):
                raise checks.wrong("entries", "terms that become a text, or one of several in a list",
                                   f"{checks.kind(target)[0]} for {source!r:.80}")
        self.entries = {source: (target,) if isinstance(target, str) else tuple(target)
                        for source, target in entries.items()}
        self._exact, self._folded = dict[TermKey, tuple[str, ...]](), dict[TermKey, tuple[str, ...]]()
        for source, targets in self.entries.items():
            for text in (source, *targets):
                if not isinstance(text, str) or is_blank(text):
                    raise checks.wrong("entries", "terms that are not empty", f"{text!r:.80}")
            if not targets:
                raise checks.wrong("entries", "at least one text that a term becomes", f"none for {source!r:.80}")
            term = _term_key(_split_words(source))
            table = self._folded if source == source.lower() else self._exact
            table[term] = (*table.get(term, ()), *targets)
        self._longest = max(map(len, (*self._exact, *self._folded)), default=0)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Glossary":
        """The glossary in a file; a DataError names file and line. Empty lines are passed over."""
        entries = dict[str, list[str]]()
        input = InputFile(os.fspath(path))
        for where, source, target in _glossary_lines(input):
            for text, what in ((source, "term"), (target, "text that it becomes")):
                if is_blank(text):
                    raise DataError(f"{where}: The {what} is missing. A line is a term, a tab, and what it becomes.")
            targets = entries.setdefault(source.strip(), [])
            if target.strip() not in targets:
                targets.append(target.strip())
        if not entries:
            raise DataError(f"{printable(input.name)}: There are no terms in it. A line is a term, a tab, and what it "
                            "becomes.")
        return cls(entries)

    def found(self, text: str) -> list[RequiredTerm]:
        """What must appear in the translation of a text, in the order of the text."""
        every, place, found = _split_words(text), 0, list[RequiredTerm]()
        folded = tuple(unit._replace(text=unit.text.lower()) for unit in every)
        while place < len(every):
            for count in range(min(self._longest, len(every) - place), 0, -1):
                targets = (self._exact.get(_term_key(every[place:place + count]))
                           or self._folded.get(_term_key(folded[place:place + count])))
                if targets:
                    found.append(RequiredTerm(every[place].start, every[place + count - 1].end, targets))
                    place += count - 1
                    break
            place += 1
        return found


def as_glossary(given: "Glossary | Mapping[str, str | Sequence[str]]") -> Glossary:
    """A glossary, or one that is made of a table."""
    return given if isinstance(given, Glossary) else Glossary(given)


def _glossary_lines(input: InputFile) -> Iterator[tuple[Location, str, str]]:
    for number, line in enumerate(read_lines(input), 1):
        cells, where = line.split("\t"), Location(input.name, number)
        if is_blank(line):
            continue
        if len(cells) != 2:
            raise DataError(f"{where}: {len(cells)} column{'s' * (len(cells) != 1)} instead of 2: a term, a tab, and "
                            "what it becomes.")
        yield where, cells[0], cells[1]


def _split_words(text: str) -> GlossaryWords:
    found, end = list[GlossaryWord](), 0
    for span in find_units(text):
        found.append(GlossaryWord(unicodedata.normalize("NFC", text[span.start:span.end]), span.start > end, *span))
        end = span.end
    return tuple(found)


def _term_key(some: GlossaryWords) -> TermKey:
    """Units by themselves: what is in front of the first does not count."""
    return tuple(WordKey(unit.text, unit.apart and at > 0) for at, unit in enumerate(some))


def _matches_term(some: GlossaryWords, wanted: GlossaryWords) -> bool:
    """Whether these are the units of a term, perhaps with a capital letter in front."""
    own, term = _term_key(some), _term_key(wanted)
    return own[1:] == term[1:] and own[0].text in with_capital(term[0].text)


def with_capital(target: str) -> list[str]:
    """A text, and the same with a capital letter, where its first word has none."""
    first = target.split()[0]
    return [target, target[0].upper() + target[1:]] if first == first.lower() else [target]


# ---- spelling: The ways to write a word in tokens: subwords depend on what stands in front of a word, and letters on a sentence.
#
#     Spelling(tokenizer).ways("homme")      ▁homme    ' homme    ▁l' homme    - homme    ▁Homme    ...
#
# It also tells which tokens, directly behind a word, would make another word of it. It knows tokenizers and words; it
# does not know what is translated.

PRECEDING_SIGNS = ("'", "\u2019", '"', "\u201c", "(", "[", "\u00ab", "\u00ab\u00a0", "-", "/", "\u00a0", "\u202f")
"""What a word may follow on without a space."""
MAX_ELISION = 7
"""Letters in front of an apostrophe, with it, at most: quelqu'."""


class TermSpelling:
    """How words are written in the tokens of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ways = lru_cache(maxsize=None)(self._ways)
        """All ways to write a text as whole words, wherever it stands."""

    def at(self, text: str, glued: bool) -> tuple[int, ...]:
        """The way to write a text behind a space, or else directly behind a sign; none where there is no such way."""
        normal = self.tokenizer.normalise(text)
        return self._behind("l'", 2, normal) if glued else self._behind("a ", 1, normal)

    @cached_property
    def joining(self) -> list[int]:
        """The tokens that, directly behind a word, would be part of it."""
        return [id_ for id_, text in self._added if _extends_word(text)]

    @cached_property
    def eliding(self) -> list[int]:
        """The tokens behind which a word begins without a space: l', qu'."""
        return [id_ for id_, text in self._added if text[-1:] in APOSTROPHES and text[:-1].strip().isalpha()
                and len(text.strip()) <= MAX_ELISION]

    @cached_property
    def _added(self) -> list[tuple[int, str]]:
        """What each token adds to the text of a word."""
        anchor, special = self.tokenizer.encode("a"), self.tokenizer.special.ids()
        before = len(self.tokenizer.decode(anchor))
        every = (id_ for id_ in range(self.tokenizer.size) if id_ not in special)
        return [(id_, text) for id_ in every if (text := self.tokenizer.decode([*anchor, id_])[before:])]

    def _ways(self, target: str) -> tuple[tuple[int, ...], ...]:
        """With and without a capital letter, behind a space, a sign or an apostrophe.

        Every way begins at the beginning of a word: it has in it what is in front of the term, a space or a sign.
        Without either it could stand inside a word; only a capital letter speaks against it.
        """
        ways = dict[tuple[int, ...], None]()
        for text in with_capital(self.tokenizer.normalise(target)):
            ways |= dict.fromkeys([self._behind("a ", 1, text)])
            if text[0].isupper():
                ways |= dict.fromkeys([tuple(self.tokenizer.encode(text))])
            inner = self._behind("l'", 2, text)
            signed = (self._behind(f"a{sign}", 1, text) for sign in PRECEDING_SIGNS)
            ways |= dict.fromkeys(way for way in signed if not inner or len(way) <= len(inner) + 1)
            ways |= dict.fromkeys((id_, *inner) for id_ in self.eliding if inner)
            if len(find_units("a" + text[0])) == 2:  # of what is written without spaces: every letter may begin a word
                ways |= dict.fromkeys([self._behind("a", 1, text)])
        ways.pop((), None)
        if not ways:
            raise checks.wrong("glossary", "made of what the model has tokens for", f"{target!r:.80}",
                               "Take the term out of the glossary.")
        return tuple(ways)

    def _behind(self, left: str, sign: int, text: str) -> tuple[int, ...]:
        """The tokens of a text behind another, from this place of the other on; none where one of them is shared."""
        ids, spans = self.tokenizer.encode(left + text), self.tokenizer.spans(left + text)
        own = tuple(id_ for id_, span in zip(ids, spans, strict=True) if span.end > max(sign, span.start))
        if not own or self.tokenizer.special.unknown in own:
            return ()
        return own if self.tokenizer.decode(own).strip() == (left[sign:] + text).strip() else ()


def _extends_word(added: str) -> bool:
    """Whether this, directly behind a word, makes another one of it: half a character may, and so may a hyphen or an
    apostrophe, by what follows on it."""
    whole = f"{added}a" if not added.strip(HYPHENS + APOSTROPHES) else added
    return added[0] == "\ufffd" or any(find_units(word + whole)[0].end > len(word) for word in ("a", "aaaa"))


def can_continue(target: str) -> bool:
    """Whether a letter behind it would make another word of its last one."""
    return len(find_units(target[-1] + "a")) == 1


# ---- insisting: Translations in which terms must appear, in the places where they belong.
#
#     1. The model translates as it likes; often the terms are there.
#     2. A term that is missing goes to where the model looked at its source most: what was written up to there stays,
#        the term comes in the place of the word, and the model goes on behind it. So with one term after another.
#     3. What is still missing is left to a search that ends with all terms only (`regard.decoding.constraints`): there they
#        come where they cost least. Log-probabilities are added up then, whatever the length penalty: a term that the
#        model does not expect costs so much that a mean would favour any text that is long.
#
# Of several choices for a term the most probable text decides. A model that does not look at its source has no second
# way. It knows ids, words and alignments; what writes and what looks are functions.


class TranslationRow(NamedTuple):
    """What is to be translated, in ids."""

    source: Sequence[int]
    beginning: Sequence[int] = ()
    """Of the translation."""
    terms: Sequence[TermAlternatives] = ()
    """What must appear behind it."""
    words: Sequence[Sequence[int]] = ()
    """Sequences of ids that nothing may make another word of."""


class TranslationInput(NamedTuple):
    """A text with the ids that are read of it, how its translation begins, and what must appear."""

    text: str
    source: Sequence[int]
    beginning: Sequence[int]
    required: Sequence[RequiredTerm]


WriteFunction = Callable[[Sequence[TranslationRow], Beam], list[list[Hypothesis]]]
"""What a search finds for rows, the best first; ids have the beginning with them."""
AlignFunction = Callable[[Sequence[tuple[str, Sequence[int]]]], Sequence[Alignment]]
"""The alignments of texts and the ids of their translations."""
RoomFunction = Callable[[TranslationRow], int]
"""How many tokens may be written behind the beginning of a row; below 0 where the beginning itself is too long."""


class GlossarySearch(NamedTuple):
    """What is needed to insist on terms."""

    write: WriteFunction
    look: AlignFunction | None
    """None for a model that does not look at its source."""
    spelling: TermSpelling
    room: RoomFunction

    def found(self, asked: Sequence[TranslationInput], search: Beam) -> list[list[Hypothesis]]:
        """The translations of texts with all that must appear in them, the best first."""
        found = self.write([TranslationRow(one.source, one.beginning) for one in asked], search)
        starts = [len(one.beginning) for one in asked]
        for turn in range(max((len(one.required) for one in asked), default=0) if self.look else 0):
            tries = self._tries(asked, found, starts, turn)
            answers = self.write([row for _, row in tries], search) if tries else []
            for number in {number for number, _ in tries}:
                mine = [(row, some) for (other, row), some in zip(tries, answers, strict=True) if other == number]
                row, found[number] = max(mine, key=lambda one: _hypothesis_rank(one[1][0]))
                starts[number] = len(row.beginning)
        late = [number for number, one in enumerate(asked) if self._open(one, found[number][0].ids)]
        forced = self.write([self._forced(asked[number]) for number in late],
                            replace(search, length_penalty="none")) if late else []
        for number, some in zip(late, forced, strict=True):
            found[number] = some
        return [[some[0], *(other for other in some[1:] if not self._open(one, other.ids))]
                for one, some in zip(asked, found, strict=True)]

    def _open(self, one: TranslationInput, ids: Sequence[int]) -> list[RequiredTerm]:
        """What does not appear in a translation."""
        text = self.spelling.tokenizer.decode(ids) if one.required else ""
        return [term for term in one.required if not term.met(text)]

    def _tries(self, asked: Sequence[TranslationInput], found: list[list[Hypothesis]], starts: Sequence[int],
               turn: int) -> list[tuple[int, TranslationRow]]:
        """Translations that begin with one term more, by the numbers of their texts: those that have a turn left."""
        assert self.look is not None
        late = [number for number, one in enumerate(asked)
                if turn < len(one.required) and self._open(one, found[number][0].ids)]
        looks = self.look([(asked[number].text, found[number][0].ids) for number in late]) if late else []
        return [(number, row) for number, alignment in zip(late, looks, strict=True)
                for row in self._placed(asked[number], found[number][0].ids, starts[number], alignment)]

    def _placed(self, one: TranslationInput, ids: Sequence[int], start: int, alignment: Alignment) -> list[TranslationRow]:
        """What was written up to the place of the first missing term behind `start`, and each choice for it."""
        words, text = self.spelling.tokenizer.decoded_words(ids), self.spelling.tokenizer.decode(ids)
        places = sorted((place, term) for term in self._open(one, ids)
                        if (place := _aligned_word(term, alignment)) is not None and words[place].first_token >= start)
        rows = []
        for target in places[0][1].targets if places else ():
            word = words[places[0][0]]
            first = with_capital(target)[-1] if word.start == 0 and text[:1].isupper() else target
            way = self.spelling.at(first, glued=word.start > 0 and not text[word.start - 1].isspace())
            row = TranslationRow(one.source, [*ids[:word.first_token], *way], words=[way] if can_continue(target) else ())
            if way and self.room(row) >= 0:
                rows.append(row)
        return rows

    def _forced(self, one: TranslationInput) -> TranslationRow:
        terms = self._open(one, one.beginning)
        ways = [[way for target in term.targets for way in self.spelling.ways(target)] for term in terms]
        words = [way for term in terms for target in term.targets if can_continue(target)
                 for way in self.spelling.ways(target)]
        row = TranslationRow(one.source, one.beginning, ways, words)
        needed, room = TermAutomaton(ways).needed(0), self.room(row)
        if needed > room:
            named = ", ".join(f"{one.text[term.start:term.end]!r:.80}" for term in terms)
            expected = f"terms that fit into a translation, here into {room} token{'s' * (room != 1)}"
            raise checks.wrong("glossary", expected, f"{needed} tokens for {named} of {one.text!r:.80}",
                               "Raise the limit, or take the terms out of the glossary.")
        return row


def _aligned_word(term: RequiredTerm, alignment: Alignment) -> int | None:
    """Which word of a translation looks at a term most."""
    columns = [number for number, span in enumerate(alignment.source_spans)
               if span.start < term.end and span.end > term.start]
    weights = alignment.weights[:, columns]
    return int(weights.sum(dim=-1).argmax()) if weights.numel() else None


def _hypothesis_rank(one: Hypothesis) -> tuple[bool, float]:
    """What has come to an end goes before what was cut."""
    return not one.cut, sum(one.log_probabilities)
