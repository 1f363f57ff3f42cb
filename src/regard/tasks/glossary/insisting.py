"""Translations in which terms must appear, in the places where they belong.

    1. The model translates as it likes; often the terms are there.
    2. A term that is missing goes to where the model looked at its source most: what was written up to there stays,
       the term comes in the place of the word, and the model goes on behind it. So with one term after another.
    3. What is still missing is left to a search that ends with all terms only (`regard.decoding.terms`): there they
       come where they cost least. Log-probabilities are added up then, whatever the length penalty: a term that the
       model does not expect costs so much that a mean would favour any text that is long.

Of several choices for a term the most probable text decides. A model that does not look at its source has no second
way. It knows ids, words and alignments; what writes and what looks are functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from regard import checks
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.terms import Alternatives, Automaton
from regard.tasks.alignment.words import Alignment
from regard.tasks.glossary.spelling import Spelling, goes_on
from regard.tasks.glossary.terms import Required, cased
from regard.tasks.searches import Beam


class Row(NamedTuple):
    """What is to be translated, in ids."""

    source: Sequence[int]
    beginning: Sequence[int] = ()
    """Of the translation."""
    terms: Sequence[Alternatives] = ()
    """What must appear behind it."""
    words: Sequence[Sequence[int]] = ()
    """Sequences of ids that nothing may make another word of."""


class Asked(NamedTuple):
    """A text with the ids that are read of it, how its translation begins, and what must appear."""

    text: str
    source: Sequence[int]
    beginning: Sequence[int]
    required: Sequence[Required]


Write = Callable[[Sequence[Row], Beam], list[list[Hypothesis]]]
"""What a search finds for rows, the best first; ids have the beginning with them."""
Look = Callable[[Sequence[tuple[str, Sequence[int]]]], Sequence[Alignment]]
"""The alignments of texts and the ids of their translations."""
Room = Callable[[Row], int]
"""How many tokens may be written behind the beginning of a row; below 0 where the beginning itself is too long."""


class Insisting(NamedTuple):
    """What is needed to insist on terms."""

    write: Write
    look: Look | None
    """None for a model that does not look at its source."""
    spelling: Spelling
    room: Room

    def found(self, asked: Sequence[Asked], search: Beam) -> list[list[Hypothesis]]:
        """The translations of texts with all that must appear in them, the best first."""
        found = self.write([Row(one.source, one.beginning) for one in asked], search)
        starts = [len(one.beginning) for one in asked]
        for turn in range(max((len(one.required) for one in asked), default=0) if self.look else 0):
            tries = self._tries(asked, found, starts, turn)
            answers = self.write([row for _, row in tries], search) if tries else []
            for number in {number for number, _ in tries}:
                mine = [(row, some) for (other, row), some in zip(tries, answers, strict=True) if other == number]
                row, found[number] = max(mine, key=lambda one: _rank(one[1][0]))
                starts[number] = len(row.beginning)
        late = [number for number, one in enumerate(asked) if self._open(one, found[number][0].ids)]
        forced = self.write([self._forced(asked[number]) for number in late],
                            replace(search, length_penalty="none")) if late else []
        for number, some in zip(late, forced, strict=True):
            found[number] = some
        return [[some[0], *(other for other in some[1:] if not self._open(one, other.ids))]
                for one, some in zip(asked, found, strict=True)]

    def _open(self, one: Asked, ids: Sequence[int]) -> list[Required]:
        """What does not appear in a translation."""
        text = self.spelling.tokenizer.decode(ids) if one.required else ""
        return [term for term in one.required if not term.met(text)]

    def _tries(self, asked: Sequence[Asked], found: list[list[Hypothesis]], starts: Sequence[int],
               turn: int) -> list[tuple[int, Row]]:
        """Translations that begin with one term more, by the numbers of their texts: those that have a turn left."""
        assert self.look is not None
        late = [number for number, one in enumerate(asked)
                if turn < len(one.required) and self._open(one, found[number][0].ids)]
        looks = self.look([(asked[number].text, found[number][0].ids) for number in late]) if late else []
        return [(number, row) for number, alignment in zip(late, looks, strict=True)
                for row in self._placed(asked[number], found[number][0].ids, starts[number], alignment)]

    def _placed(self, one: Asked, ids: Sequence[int], start: int, alignment: Alignment) -> list[Row]:
        """What was written up to the place of the first missing term behind `start`, and each choice for it."""
        words, text = self.spelling.tokenizer.decoded_words(ids), self.spelling.tokenizer.decode(ids)
        places = sorted((place, term) for term in self._open(one, ids)
                        if (place := _place(term, alignment)) is not None and words[place].first_token >= start)
        rows = []
        for target in places[0][1].targets if places else ():
            word = words[places[0][0]]
            first = cased(target)[-1] if word.start == 0 and text[:1].isupper() else target
            way = self.spelling.at(first, glued=word.start > 0 and not text[word.start - 1].isspace())
            row = Row(one.source, [*ids[:word.first_token], *way], words=[way] if goes_on(target) else ())
            if way and self.room(row) >= 0:
                rows.append(row)
        return rows

    def _forced(self, one: Asked) -> Row:
        terms = self._open(one, one.beginning)
        ways = [[way for target in term.targets for way in self.spelling.ways(target)] for term in terms]
        words = [way for term in terms for target in term.targets if goes_on(target)
                 for way in self.spelling.ways(target)]
        row = Row(one.source, one.beginning, ways, words)
        needed, room = Automaton(ways).needed(0), self.room(row)
        if needed > room:
            named = ", ".join(f"{one.text[term.start:term.end]!r:.80}" for term in terms)
            expected = f"terms that fit into a translation, here into {room} token{'s' * (room != 1)}"
            raise checks.wrong("glossary", expected, f"{needed} tokens for {named} of {one.text!r:.80}",
                               "Raise the limit, or take the terms out of the glossary.")
        return row


def _place(term: Required, alignment: Alignment) -> int | None:
    """Which word of a translation looks at a term most."""
    columns = [number for number, span in enumerate(alignment.source_spans)
               if span.start < term.end and span.end > term.start]
    weights = alignment.weights[:, columns]
    return int(weights.sum(dim=-1).argmax()) if weights.numel() else None


def _rank(one: Hypothesis) -> tuple[bool, float]:
    """What has come to an end goes before what was cut."""
    return not one.cut, sum(one.log_probabilities)
