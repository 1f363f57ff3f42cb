"""`Filler`: a masked language model that fills in blanks, "The ___ sleeps."

A blank is three underscores or more, and stands for one token. The text is normalised as a whole and then split at its
blanks, so that the parts get the ids that they have in a whole text.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, overload

import torch

from regard import checks
from regard.checks import whole_number
from regard.data.tokenizer.interface import Tokenizer
from regard.data.tokenizer.subwords import LosslessTokenizer
from regard.tasks.replay import replay_sequence
from regard.tasks.task import EncoderTask, Ids, as_texts, check_lengths, map_batches, max_positions, text_suffix

BLANK_PATTERN = re.compile("_{3,}")
BLANK_TEXT = "___"


def encode_with_blanks(tokenizer: Tokenizer, text: str, mask: int) -> list[int]:
    """The ids of a text, with `mask` in the place of each blank."""
    if not isinstance(tokenizer, LosslessTokenizer):  # of others only whole texts are known to be cut as they should
        return _join_with_mask(tokenizer.encode_batch([part.rstrip(" ") for part in BLANK_PATTERN.split(text)]), mask)
    first, *others = BLANK_PATTERN.split(tokenizer.normalise(text))
    parts = [tokenizer.prefix + first if first else "", *others]
    if tokenizer.prefix:
        parts = [*(part.removesuffix(tokenizer.prefix) for part in parts[:-1]), parts[-1]]
    cut = iter(tokenizer.tokenize([part for part in parts if part]))
    return _join_with_mask([next(cut) if part else [] for part in parts], mask)


def _join_with_mask(parts: Sequence[Sequence[int]], mask: int) -> list[int]:
    first, *others = parts
    return [*first, *(id_ for part in others for id_ in (mask, *part))]


# ---- reading: Tasks of models that read: `Filler` names hidden tokens, `Classifier` labels, `Embedder` gives a vector for a text.
#
# They take text, ids or images, and give plain values. In front of a text stands the special id `first`, behind it
# `separator`, for models that have them. Texts are read in batches of like lengths; what comes of one does not depend on
# the others.


class TokenGuess(NamedTuple):
    """What may stand at a place, and how probable that is."""

    id: int
    probability: float


class BlankSuggestion(NamedTuple):
    """The same with its text."""

    text: str
    probability: float
    id: int


class FilledText(NamedTuple):
    """A text with its blanks filled in."""

    text: str
    """With the most probable token in each blank."""
    blanks: tuple[tuple[BlankSuggestion, ...], ...]
    """For each blank what may stand there, the most probable first."""


class Filler(EncoderTask):
    """A masked model: it says what stands where tokens are hidden."""

    @overload
    def fill(self, texts: str, *, count: int = 5) -> FilledText: ...  # type: ignore[overload-overlap]
    @overload
    def fill(self, texts: Sequence[str], *, count: int = 5) -> list[FilledText]: ...
    def fill(self, texts: str | Sequence[str], *, count: int = 5) -> FilledText | list[FilledText]:
        """A text with its blanks filled in, "The ___ sleeps.", or each of several; `count` suggestions a blank.

        A blank, three underscores, stands for one token of the tokenizer, which may be a word or a part of one.
        """
        given, tokenizer, mask = as_texts("texts", texts), self.text_tokenizer(), self.mask()
        rows = self.framed([encode_with_blanks(tokenizer, text, mask) for text in given])
        check_lengths("texts", rows, max_positions(self._encoder()))  # to cut one might take its blanks away
        for number, row in enumerate(rows):
            if mask not in row:
                raise checks.wrong("texts", f"texts with a blank, {BLANK_TEXT}", f"one without{text_suffix(number, rows)}")
        never = {*self.special.ids(), *range(tokenizer.size, self.vocabularies[0])}
        more = whole_number("count", count, 1) + len(never)  # so many are left when none of these is among them
        found = map_batches(rows, [*map(len, rows)], lambda some: self._guesses(some, more))
        self.tell(lambda: map(partial(replay_sequence, self), rows, given))
        results = []
        for row, blanks in zip(rows, found, strict=True):
            kept = [[guess for guess in guesses if guess.id not in never][:count] for guesses in blanks]
            best = iter([guesses[0].id for guesses in kept])
            text = tokenizer.decode([next(best) if id_ == mask else id_ for id_ in row])
            results.append(FilledText(text, tuple(tuple(_make_suggestion(tokenizer, guess) for guess in guesses)
                                               for guesses in kept)))
        return results[0] if isinstance(texts, str) else results

    def fill_ids(self, rows: Ids, *, count: int = 5) -> list[list[list[TokenGuess]]]:
        """For each row, for each mask in it, the `count` most probable ids (or all there are), the best first."""
        found = self._guesses(rows, count)
        self.tell(lambda: map(partial(replay_sequence, self), rows))
        return found

    @torch.inference_mode()
    def _guesses(self, rows: Ids, count: int) -> list[list[list[TokenGuess]]]:
        mask, tokens = self.mask(), self.tokens(rows)
        probabilities = torch.softmax(self.model(tokens).float(), -1)
        best = probabilities.topk(min(whole_number("count", count, 1), probabilities.shape[-1]))
        return [[[TokenGuess(*guess) for guess in zip(best.indices[b, n].tolist(), best.values[b, n].tolist(), strict=True)]
                 for n, id_ in enumerate(row) if id_ == mask] for b, row in enumerate(rows)]

    def mask(self) -> int:
        """The id that hides a token."""
        if self.special.mask is None:
            raise checks.wrong("special.mask", "an id, for a model that fills in", None)
        return self.special.mask


def _make_suggestion(tokenizer: Tokenizer, guess: TokenGuess) -> BlankSuggestion:
    """With the text of the token; with its name where it is no text by itself, such as a byte or a space."""
    text = tokenizer.decode([guess.id])
    shown = text if text.strip() and "\ufffd" not in text else tokenizer.pieces([guess.id])[0]
    return BlankSuggestion(shown, guess.probability, guess.id)
