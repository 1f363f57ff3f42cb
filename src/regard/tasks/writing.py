"""Tasks of models that write: `Translator` and `Completer`.

They put a model, its tokenizer, its special ids and a search together. Which search is chosen by the call: one beam
without a length penalty is greedy search. Texts are written in batches of like lengths; what comes of one does not
depend on the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Self, TypeVar, overload

import torch
from torch import nn

from regard import checks
from regard.data.doctor.characters import is_blank
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.pair import PairTokenizer
from regard.decoding.beam import beam
from regard.decoding.cross import with_cross
from regard.decoding.greedy import greedy
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.request import Prompts
from regard.decoding.rules import Forbidden, Rule, whole
from regard.models.contract import Memory
from regard.tasks.alignment import Alignment, aligned_words
from regard.tasks.task import Ids, OneSided, Task, check_lengths, room
from regard.tasks.texts import as_texts, in_batches, which
from regard.tasks.word_scores import ScoredWord, scored_words

LONGER, FACTOR = 50, 2
"""A translation may have so many tokens more than this many times its source, where no limit is given; fewer where the
model has fewer positions."""
Found = TypeVar("Found", bound="Result")


@dataclass(frozen=True)
class Result:
    """A text that a model wrote."""

    text: str
    score: float
    """By which the search ranked it."""
    ids: tuple[int, ...]
    cut: bool
    """The model had not come to an end when the limit was reached."""
    alternatives: tuple[Self, ...] = ()
    """What the search found besides, the best first, where `nbest` asked for more than one."""


@dataclass(frozen=True)
class Translation(Result):
    """The translation of a text; of a blank one it is empty, and no model was asked."""

    log_probabilities: tuple[float, ...] = ()
    """Of each id given all before it, and of the end last, where it came."""
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)
    """What the ids are of."""

    @cached_property
    def words(self) -> tuple[ScoredWord, ...]:
        """The words, where each stands in the text, and its log-probability."""
        if not self.ids:
            return ()
        if self.tokenizer is None or len(self.log_probabilities) < len(self.ids):
            raise checks.wrong("log_probabilities", "those of all ids, for words with scores", "missing",
                               "Not everything that translates tells them: `Translator` does.")
        return scored_words(self.tokenizer, self.ids, self.log_probabilities)


@dataclass(frozen=True)
class Completion(Result):
    """What follows a prompt: `prompt + text` is the whole."""

    prompt: str = ""
    """As the tokenizer sees it."""


def search(model: nn.Module, memory: Memory | None, prompts: Prompts, end: Sequence[int], limit: int | Sequence[int],
           beams: int, nbest: int, length_penalty: "str | float", rules: Sequence[Rule] = ()) -> list[list[Hypothesis]]:
    """The best hypotheses of each prompt, by greedy search where that is the same: with one beam, and no penalty."""
    if (beams, nbest, length_penalty) == (1, 1, "none"):
        found = greedy(model, memory, prompts=prompts, end=end, limit=limit, rules=rules)  # type: ignore[arg-type]
        return [[one] for one in found]
    return beam(model, memory, prompts=prompts, end=end, limit=limit, beams=beams, rules=rules,  # type: ignore[arg-type]
                length_penalty=length_penalty, nbest=nbest)


class Translator(Task):
    """An encoder-decoder that translates."""

    reads = PairTokenizer

    @overload
    def translate(self, texts: str, *, beams: int = 5, nbest: int = 1,  # type: ignore[overload-overlap]
                  limit: int | None = None, length_penalty: "str | float" = "mean") -> Translation: ...
    @overload
    def translate(self, texts: Sequence[str], *, beams: int = 5, nbest: int = 1, limit: int | None = None,
                  length_penalty: "str | float" = "mean") -> list[Translation]: ...
    def translate(self, texts: str | Sequence[str], *, beams: int = 5, nbest: int = 1, limit: int | None = None,
                  length_penalty: "str | float" = "mean") -> Translation | list[Translation]:
        """The translation of a text, or of each of several in their order.

        Args:
            beams: how many beginnings of a translation are followed side by side. One, without a length penalty, is
                greedy search, the fastest.
            nbest: how many translations of a text are given, at most `beams`; the best has the others as alternatives.
            limit: how many tokens a translation may have; without it that follows from its source.
            length_penalty: "none", "mean", or the α of Wu et al. 2016; see `regard.decoding.ranking`.
        """
        given, tokenizer = as_texts("texts", texts), self.pair_tokenizer()
        sources = tokenizer.source_ids(given)
        check_lengths("texts", sources, room(self.model.encoder))
        full = [number for number, text in enumerate(given) if not is_blank(text)]
        rows = [sources[number] for number in full]
        found = in_batches(rows, [*map(len, rows)], lambda some: self.translate_ids(
            some, beams=beams, nbest=nbest, limit=limit, length_penalty=length_penalty))
        results = [Translation("", 0.0, (), False)] * len(given)
        for number, hypotheses in zip(full, found, strict=True):
            results[number] = _best([_translation(tokenizer.target, one) for one in hypotheses])
        return results[0] if isinstance(texts, str) else results

    @torch.inference_mode()
    def translate_ids(self, sources: Ids, *, beams: int = 1, nbest: int = 1, limit: int | None = None,
                      length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each source its `nbest` translations, the best first; at most `limit` tokens each.

        Without a limit it follows from the length of the source, and from the positions that the model knows. A source
        is as the model was trained with: of text, what `PairTokenizer.source_ids` gives.
        """
        memory = self.model.encode(self.tokens(sources))  # type: ignore[operator]
        positions = room(self.model.decoder)
        longest = [FACTOR * len(source) + LONGER for source in sources]
        if positions is not None:
            longest = [min(count, positions - 1) for count in longest]  # the start has a position too
        limits = longest if limit is None else [limit] * len(sources)
        prompts = [[self.start()]] * len(sources)
        return search(self.model, memory, prompts, self.end(), limits, beams, nbest, length_penalty, self._rules())

    def aligned(self, text: str, translation: str | None = None, *, layer: int | None = None) -> Alignment:
        """Which words of a text the model looks at for each word of its translation, read once more.

        Args:
            translation: another one than that which the model finds itself.
            layer: of the decoder, from 0; `regard.tasks.alignment` says which one it is otherwise.
        """
        if not isinstance(text, str):
            raise checks.wrong("text", "a text", *checks.kind(text))
        ids = self.translate(text).ids if translation is None else self.pair_tokenizer().target_ids([translation])[0]
        return self._alignments([(text, ids)], layer)[0]

    def align(self, texts: Sequence[str], translations: Sequence[Translation], *,
              layer: int | None = None) -> list[Alignment]:
        """As `aligned`, for several texts and what `translate` gave for each: the very tokens that were written."""
        given = as_texts("texts", texts)
        if isinstance(translations, Translation) or len(translations) != len(given):
            raise checks.wrong("translations", f"one for each text, {len(given):,}",
                               "one" if isinstance(translations, Translation) else f"{len(translations):,}")
        pairs = [(text, one.ids) for text, one in zip(given, translations, strict=True)]
        lengths = [len(source) + len(ids) for source, (_, ids) in
                   zip(self.pair_tokenizer().source_ids(given), pairs, strict=True)]
        return in_batches(pairs, lengths, lambda some: self._alignments(some, layer))

    @torch.inference_mode()
    def _alignments(self, pairs: Sequence[tuple[str, Sequence[int]]], layer: int | None) -> list[Alignment]:
        """Of texts and the ids of their translations."""
        both = self.pair_tokenizer()
        memory = self.model.encode(self.tokens(both.source_ids([text for text, _ in pairs])))  # type: ignore[operator]
        written = [Hypothesis(list(ids), [0.0] * len(ids), 0.0, None) for _, ids in pairs]
        read = with_cross(self.model, memory, written, prompts=[[self.start()]] * len(pairs))  # type: ignore[arg-type]
        found = []
        for (text, _), one in zip(pairs, read, strict=True):
            assert one.cross is not None
            source, target = both.source.words(text), both.target.decoded_words(one.ids)
            weights = aligned_words(one.cross.float().cpu(), source, target, layer)
            found.append(Alignment.of(text, source, both.target.decode(one.ids), target, weights))
        return found

    def pair_tokenizer(self) -> PairTokenizer:
        """The tokenizers of source and target; a ValueError where there are none."""
        tokenizer = self.needed()
        assert isinstance(tokenizer, PairTokenizer)
        return tokenizer

    def start(self) -> int:
        """The id that a translation begins with."""
        if self.special.start is None:
            raise checks.wrong("special.start", "an id, for a model that translates", None)
        return self.special.start

    def _rules(self) -> list[Rule]:
        """Padding is never written: no target has it, so that nothing was learned of when it would be right."""
        padding, vocabulary = self.special.padding, self.vocabularies[-1]
        never = [] if self.tokenizer is None else _no_tokens(self.pair_tokenizer().target, vocabulary)
        if padding is not None and padding not in self.special.end and padding < vocabulary:  # else of the source alone
            never.append(padding)
        return [Forbidden(never)] if never else []


class Completer(OneSided):
    """A language model that completes a text."""

    @overload
    def complete(self, prompts: str, *, limit: int = 100, beams: int = 1,  # type: ignore[overload-overlap]
                 nbest: int = 1, length_penalty: "str | float" = "none") -> Completion: ...
    @overload
    def complete(self, prompts: Sequence[str], *, limit: int = 100, beams: int = 1, nbest: int = 1,
                 length_penalty: "str | float" = "none") -> list[Completion]: ...
    def complete(self, prompts: str | Sequence[str], *, limit: int = 100, beams: int = 1, nbest: int = 1,
                 length_penalty: "str | float" = "none") -> Completion | list[Completion]:
        """What follows a prompt, or each of several in their order.

        Args:
            limit: how many tokens are written at most; fewer where the model has fewer positions.
            beams, nbest, length_penalty: as for `Translator.translate`.
        """
        given, tokenizer, positions = as_texts("prompts", prompts), self.text_tokenizer(), room(self.model.decoder)
        rows = [([] if self.special.first is None else [self.special.first]) + ids
                for ids in tokenizer.encode_many(given)]
        for number, row in enumerate(rows):
            if not row:
                raise checks.wrong("prompts", "texts that are not empty",
                                   f"{given[number]!r:.80}{which(number, given)}",
                                   "A model goes on from something: give at least one word.")
        check_lengths("prompts", rows, positions)
        most = [whole("limit", limit) if positions is None else min(limit, positions - len(row)) for row in rows]
        results = dict[int, Completion]()
        # Prompts that leave room for all of the limit go together; of the others only those of one length can.
        for count in {*most}:
            numbers = [number for number, one in enumerate(most) if one == count]
            some = [rows[number] for number in numbers]
            ask = partial(self.complete_ids, limit=count, beams=beams, nbest=nbest, length_penalty=length_penalty)
            found = in_batches(some, [len(row) + count for row in some], ask)
            for number, hypotheses in zip(numbers, found, strict=True):
                results[number] = _best([_completion(tokenizer, rows[number], one) for one in hypotheses])
        ordered = [results[number] for number in range(len(given))]
        return ordered[0] if isinstance(prompts, str) else ordered

    @torch.inference_mode()
    def complete_ids(self, prompts: Ids, *, limit: int, beams: int = 1, nbest: int = 1,
                     length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each prompt its `nbest` continuations, the best first; at most `limit` tokens each."""
        never = [] if self.tokenizer is None else _no_tokens(self.text_tokenizer(), self.vocabularies[-1])
        rules = [Forbidden(never)] if never else []
        return search(self.model, None, prompts, self.special.end, limit, beams, nbest, length_penalty, rules)


def _no_tokens(tokenizer: Tokenizer, vocabulary: int) -> list[int]:
    """The ids of the model that are no token: some models have more than their tokenizer, for speed."""
    return list(range(tokenizer.size, vocabulary))


def _translation(tokenizer: Tokenizer, found: Hypothesis) -> Translation:
    return Translation(tokenizer.decode(found.ids), found.score, tuple(found.ids), found.cut,
                       log_probabilities=tuple(found.log_probabilities), tokenizer=tokenizer)


def _completion(tokenizer: Tokenizer, prompt: Sequence[int], found: Hypothesis) -> Completion:
    """The text of the ids behind those of the prompt: decoded together, because the first may begin with a space."""
    before, together = tokenizer.decode(prompt), tokenizer.decode([*prompt, *found.ids])
    text = together[len(before):] if together.startswith(before) else tokenizer.decode(found.ids)
    return Completion(text, found.score, tuple(found.ids), found.cut, prompt=before)


def _best(found: list[Found]) -> Found:
    """The first, with the others beside it."""
    best, *others = found
    return replace(best, alternatives=tuple(others))
