"""`Filler`: a masked language model that fills in blanks, "The ___ sleeps."

A blank is three underscores or more, and stands for one token:

    [the ids of "The"] [MASK] [the ids of " sleeps."]

The text is normalised as a whole and then split at its blanks, so that the parts get the ids that they have in a whole
text. If the tokenizer puts a space before the first word, tokens begin with their space, and so does the masked one:
the space before a blank belongs to it.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import torch

from regard import checks
from regard.checks import whole_number
from regard.data.tokenizer.interface import Span, Tokenizer, Word, check_text, group_tokens
from regard.data.tokenizer.subwords import LosslessTokenizer, TracedText, trace_normalization
from regard.tasks.task import EncoderTask, Ids, as_texts, check_lengths, element_name, ids_without_token, map_batches

if TYPE_CHECKING:
    from regard.tasks.influence import Influence

BLANK_PATTERN = re.compile("_{3,}")
BLANK_TEXT = "___"


class TokenGuess(NamedTuple):
    """A token id and its probability."""

    id: int
    probability: float


class BlankSuggestion(NamedTuple):
    """The text of a token, its probability and its id."""

    text: str
    probability: float
    id: int


class FilledText(NamedTuple):
    """A text with its blanks filled in."""

    text: str
    """The text with the most probable token in each blank."""
    blanks: tuple[tuple[BlankSuggestion, ...], ...]
    """For each blank its suggestions, the most probable first."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"FilledText({self.text!r}, {checks.plural(len(self.blanks), 'blank')})"


class Filler(EncoderTask):
    """A masked language model: it predicts masked tokens."""

    @overload
    def fill(self, texts: str, *, top_k: int = 5,  # type: ignore[overload-overlap]
             batch_tokens: int | None = None) -> FilledText: ...
    @overload
    def fill(self, texts: Sequence[str], *, top_k: int = 5, batch_tokens: int | None = None) -> list[FilledText]: ...
    @checks.renamed_arguments(count="top_k")
    def fill(self, texts: str | Sequence[str], *, top_k: int = 5,
             batch_tokens: int | None = None) -> FilledText | list[FilledText]:
        """Fill in the blanks of a text, "The ___ sleeps.", or of each of several.

        `filler(texts)` is the same. A blank, three underscores, stands for one token, which may be a word or a part of
        one.

        Args:
            top_k: the number of suggestions for a blank.
            batch_tokens: the number of tokens of a batch, padding included.
        """
        given, tokenizer, mask = as_texts("texts", texts), self.text_tokenizer(), self.mask_id()
        rows = [self.encode_blanks(text) for text in given]
        check_lengths("texts", rows, self.max_positions())  # truncating a text might remove its blanks
        for number, row in enumerate(rows):
            if mask not in row:
                raise checks.wrong(element_name("texts", number, rows), f'a text with a blank, such as "The '
                                   f'{BLANK_TEXT} sleeps."', f"{given[number]!r:.80}")
        excluded = self.unfit_ids()
        more = whole_number("top_k", top_k, 1) + len(excluded)  # enough, even if all excluded ids are among them
        found = map_batches(rows, [*map(len, rows)], lambda some: self._guesses(some, more), batch_tokens)
        self._notify_sequences(rows, given)
        results = []
        for row, blanks in zip(rows, found, strict=True):
            kept = [[guess for guess in guesses if guess.id not in excluded][:top_k] for guesses in blanks]
            best = iter([guesses[0].id for guesses in kept])
            text = tokenizer.decode([next(best) if id_ == mask else id_ for id_ in row])
            results.append(FilledText(text, tuple(tuple(_make_suggestion(tokenizer, guess) for guess in guesses)
                                                  for guesses in kept)))
        return results[0] if isinstance(texts, str) else results

    __call__ = fill

    @checks.renamed_arguments(count="top_k")
    def fill_ids(self, rows: Ids, *, top_k: int = 5) -> list[list[list[TokenGuess]]]:
        """For each row, for each mask in it, the `top_k` most probable ids (or all there are), the best first."""
        found = self._guesses(rows, top_k)
        self._notify_sequences(rows)
        return found

    @torch.inference_mode()
    def _guesses(self, rows: Ids, top_k: int) -> list[list[list[TokenGuess]]]:
        mask, tokens = self.mask_id(), self.tokens(rows)
        probabilities = torch.softmax(self.model(tokens).float(), -1)
        best = probabilities.topk(min(whole_number("top_k", top_k, 1), probabilities.shape[-1]))
        return [[[TokenGuess(*guess) for guess in zip(best.indices[b, n].tolist(), best.values[b, n].tolist(),
                                                      strict=True)]
                 for n, id_ in enumerate(row) if id_ == mask] for b, row in enumerate(rows)]

    def encode_blanks(self, text: str) -> list[int]:
        """The ids of a text with special ids, and the mask in place of each blank."""
        return self.add_special_ids([encode_with_blanks(self.text_tokenizer(), text, self.mask_id())])[0]

    def influence(self, text: str, *, words: Iterable[int | Sequence[int]] | None = None) -> "Influence":
        """How much each word of a text matters for what fills its blanks.

        The model reads the text without each word; the difference of the log-probabilities of the most probable token
        of a blank is the influence of the word on it, in nats. The other blanks are words too.

        Args:
            text: a text with a blank, "The ___ sleeps."
            words: the numbers of the words that are left out, from 0, each alone; numbers in a tuple are left out
                together. By default all are left out; of more than 64, groups of neighbours.
        """
        from regard.tasks.influence import filling_influence

        return filling_influence(self, check_text(text), words)

    def blank_words(self, text: str, ids: Sequence[int]) -> list[Word]:
        """The words of a text with blanks, which are words too, each with its ids among those of `encode_blanks`."""
        first, last = map(len, self.special_ids())
        spans = spans_with_blanks(self.text_tokenizer(), text, ids[first:len(ids) - last], self.mask_id())
        return [word._replace(first_token=word.first_token + first, last_token=word.last_token + first)
                for word in group_tokens(text, spans)]

    def unfit_ids(self) -> set[int]:
        """The ids that fill no blank: special ids, and those that stand for no token."""
        return {*self.special.ids(), *ids_without_token(self.text_tokenizer(), self.vocabularies[0])}

    def mask_id(self) -> int:
        """The id of the mask token."""
        if self.special.mask is None:
            raise ValueError("This model has no mask token, so it cannot fill in blanks. Give its id as "
                             "`special.mask`.")
        return self.special.mask


def encode_with_blanks(tokenizer: Tokenizer, text: str, mask: int) -> list[int]:
    """The ids of a text, with `mask` in place of each blank."""
    if not isinstance(tokenizer, LosslessTokenizer):  # other tokenizers are exact for whole texts only
        return _join_with_mask(tokenizer.encode_batch([part.rstrip(" ") for part in BLANK_PATTERN.split(text)]), mask)
    first, *others = BLANK_PATTERN.split(tokenizer.normalize(text))
    parts = [tokenizer.prefix + first if first else "", *others]
    if tokenizer.prefix:
        parts = [*(part.removesuffix(tokenizer.prefix) for part in parts[:-1]), parts[-1]]
    encoded = iter(tokenizer.tokenize([part for part in parts if part]))
    return _join_with_mask([next(encoded) if part else [] for part in parts], mask)


def spans_with_blanks(tokenizer: Tokenizer, text: str, ids: Sequence[int], mask: int) -> list[Span]:
    """For each id of `encode_with_blanks`, the characters of the text that it covers."""
    lossless = tokenizer if isinstance(tokenizer, LosslessTokenizer) else None
    traced = trace_normalization("exact" if lossless is None else lossless.normalization, text)
    blanks = [found.span() for found in BLANK_PATTERN.finditer(traced.text)]
    masked = iter([Span(traced.spans[start].start, traced.spans[end - 1].end) for start, end in blanks])
    parts = [range(first, end) for first, end in zip((0, *(end for _, end in blanks)),
                                                     (*(start for start, _ in blanks), len(traced.text)), strict=True)]
    if lossless is None:
        found = [Span(span.start + part.start, span.end + part.start) for part in parts
                 for span in tokenizer.spans(text[part.start:part.stop].rstrip(" "))]
    else:
        space = len(lossless.prefix)  # that before a blank belongs to it
        kept = [at for part in parts for at in (part[:len(part) - space] if part.stop < len(traced.text) and
                                                traced.text.endswith(lossless.prefix, part.start, part.stop) else part)]
        rest = TracedText("".join(traced.text[at] for at in kept), [traced.spans[at] for at in kept])
        found = lossless.locate([id_ for id_ in ids if id_ != mask], rest, space if parts[0] else 0)
    others = iter(found)
    return [next(masked) if id_ == mask else next(others) for id_ in ids]


def _join_with_mask(parts: Sequence[Sequence[int]], mask: int) -> list[int]:
    first, *others = parts
    return [*first, *(id_ for part in others for id_ in (mask, *part))]


def _make_suggestion(tokenizer: Tokenizer, guess: TokenGuess) -> BlankSuggestion:
    """With the text of the token, or its piece if it is no text by itself, such as a byte or a space."""
    text = tokenizer.decode([guess.id])
    shown = text if text.strip() and "\ufffd" not in text else tokenizer.pieces([guess.id])[0]
    return BlankSuggestion(shown, guess.probability, guess.id)
