"""`Completer`: a language model with its tokenizer, ready to continue a text; and `Completion`, its result.

    complete    beam search or greedy search
    sample      random continuations
    stream      one continuation, in pieces of text as the model generates them
    influence   which words of a text, or of a prompt, the words after them depend on

A token may end in the middle of a character, and its leading space may depend on its neighbours. `stream_text`
therefore yields a piece of text only when later tokens cannot change it:

    exact tokenizers     everything but the first bytes of an incomplete character
    other tokenizers     whole words, up to the last white space, and no run of single bytes
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from regard import checks
from regard.data.tokenizer.interface import Tokenizer
from regard.decoding.constraints import Constraint, ForbiddenTokens
from regard.decoding.request import Hypothesis
from regard.decoding.sampling import TokenSampler, most_probable, seed_tensor, stream
from regard.decoding.scoring import LengthPenalty
from regard.tasks.search import (
    GREEDY,
    RENAMED,
    Beam,
    DecodingStrategy,
    GeneratedText,
    Sampling,
    SearchInputs,
    with_alternatives,
)
from regard.tasks.task import (
    Ids,
    TextTask,
    as_texts,
    check_lengths,
    element_name,
    ids_without_token,
    map_batches,
    max_positions,
    one_or_many,
)

if TYPE_CHECKING:
    from regard.inspection.watch import Replay
    from regard.tasks.influence import Influence

DEFAULT_MAX_LENGTH = 100
"""Tokens that are generated at most."""
MAX_PARTIAL_BYTES = 3
"""Bytes of an incomplete character; each is decoded as one replacement character."""
REPLACEMENT_CHARACTER = "\ufffd"


@dataclass(frozen=True, repr=False)
class Completion(GeneratedText):
    """The continuation of a prompt: `prompt + text` is the whole text."""

    prompt: str = ""
    """The prompt as the tokenizer decodes it."""
    prompt_ids: tuple[int, ...] = field(default=(), repr=False)

    @property
    def context_ids(self) -> tuple[int, ...]:
        """The ids of the prompt."""
        return self.prompt_ids


class Completer(TextTask):
    """A language model that completes a text.

    Prompts are completed in batches of similar length; the result for one prompt does not depend on the others.
    """

    @one_or_many
    @checks.renamed_arguments(**RENAMED)
    def complete(self, prompts: Sequence[str], *, max_length: int = DEFAULT_MAX_LENGTH, beams: int = 1,
                 nbest: int = 1, length_penalty: str | float | LengthPenalty = "none", num_beam_groups: int = 1,
                 diversity_penalty: float = 0.5, min_length: int = 0,
                 no_repeat_ngram_size: int | None = None, batch_tokens: int | None = None) -> list[Completion]:
        """Complete a prompt, or each of several in their order, by beam search; one beam is greedy search.

        `completer(prompts)` is the same. One prompt gives one `Completion`, whose `str` is the generated text; a list
        gives a list.

        Args:
            max_length: the maximum number of generated tokens; fewer if the model has fewer positions.
            min_length: the minimum number of generated tokens.
            no_repeat_ngram_size: no n-gram of this size is generated twice; the prompt does not count.
            beams, nbest, length_penalty, num_beam_groups, diversity_penalty: as for `Translator.translate`.
            batch_tokens: the number of tokens of a batch, prompts and generated text together.
        """
        return self.search(prompts, Beam(
            beams=beams, nbest=nbest, length_penalty=length_penalty, num_beam_groups=num_beam_groups,
            diversity_penalty=diversity_penalty, max_length=max_length, min_length=min_length,
            no_repeat_ngram_size=no_repeat_ngram_size), batch_tokens=batch_tokens)

    __call__ = complete

    @one_or_many
    @checks.renamed_arguments(**RENAMED)
    def sample(self, prompts: Sequence[str], *, num_samples: int = 1, temperature: float = 1.0,
               top_k: int | None = None, top_p: float | None = None, min_p: float | None = None, seed: int = 0,
               max_length: int = DEFAULT_MAX_LENGTH, min_length: int = 0,
               no_repeat_ngram_size: int | None = None, batch_tokens: int | None = None) -> list[Completion]:
        """Random completions of each prompt; the first sample has the others as alternatives.

        Args:
            num_samples, temperature, top_k, top_p, min_p, seed: as for `Translator.sample`.
            max_length, min_length, no_repeat_ngram_size, batch_tokens: as for `complete`.
        """
        return self.search(prompts, Sampling(
            num_samples=num_samples, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
            max_length=max_length, min_length=min_length, no_repeat_ngram_size=no_repeat_ngram_size),
            batch_tokens=batch_tokens)

    def stream(self, prompt: str, strategy: DecodingStrategy | None = None) -> Iterator[str]:
        """Complete a prompt, and yield the text in pieces, each as soon as later tokens cannot change it.

        Args:
            strategy: a `Sampling` of one sample, or a greedy `Beam`, the default.
        """
        row, ids = self.stream_ids(prompt, strategy)
        return stream_text(self.text_tokenizer(), row, ids)

    def stream_ids(self, prompt: str, strategy: DecodingStrategy | None = None) -> tuple[list[int], Iterator[int]]:
        """The ids of a prompt, and those of its completion as they are generated; the arguments are those of `stream`.
        """
        strategy = GREEDY if strategy is None else strategy
        self.check_stream(strategy)
        if not isinstance(prompt, str):
            raise checks.wrong("prompt", "a text", *checks.kind(prompt))
        (row,) = self.encode_prompts([prompt])
        (max_length,) = self.max_lengths([row], strategy)
        self.check_eval_mode()
        choose = (TokenSampler(strategy.filters, seed_tensor(strategy.seeds([row]), self.device))
                  if isinstance(strategy, Sampling) else most_probable)
        return row, stream(self.model, row, choose, end=self.special.end,  # type: ignore[arg-type]
                           max_length=max_length, min_length=min(strategy.min_length, max_length),
                           constraints=[*self._constraints(), *strategy.constraints()])

    def check_stream(self, strategy: DecodingStrategy) -> None:
        """Refuse a strategy that revises tokens until the end."""
        if isinstance(strategy, Beam) and strategy.is_greedy:
            return
        if not isinstance(strategy, Sampling) or strategy.num_samples > 1:
            raise checks.wrong("strategy", "a Sampling of one sample or a greedy Beam, for a stream", strategy)

    def search(self, prompts: Sequence[str], strategy: DecodingStrategy, *,
               batch_tokens: int | None = None) -> list[Completion]:
        """Complete each prompt by a `Beam` or a `Sampling`, in their order."""
        if not isinstance(strategy, DecodingStrategy):
            raise checks.wrong("strategy", "a Beam, or a Sampling", *checks.kind(strategy))
        tokenizer, rows = self.text_tokenizer(), self.encode_prompts(as_texts("prompts", prompts))
        max_lengths, results = self.max_lengths(rows, strategy), dict[int, Completion]()
        # Prompts that leave room for the whole maximum length share batches; the others only with their equals.
        for length in {*max_lengths}:
            numbers = [number for number, one in enumerate(max_lengths) if one == length]
            some = [rows[number] for number in numbers]
            hypotheses = map_batches(
                some, [(len(row) + length) * strategy.rows_per_text for row in some],
                lambda rows, length=length: self._hypotheses(rows, strategy, length),  # type: ignore[misc]
                batch_tokens)
            for number, nbest in zip(numbers, hypotheses, strict=True):
                results[number] = with_alternatives([make_completion(tokenizer, rows[number], one) for one in nbest])
        ordered = [results[number] for number in range(len(rows))]
        self._notify_completions(rows, ordered)
        return ordered

    def influence(self, given: str | Completion, *, words: Iterable[int | Sequence[int]] | None = None) -> "Influence":
        """How much each word of a context matters for the words after it.

        The model reads the words once with the whole context and once without each word of it; the difference of the
        log-probabilities is the influence of the word, in nats.

        Args:
            given: a text, whose words have an influence on its later words; or a result of `complete`, whose
                prompt has one on the generated text.
            words: the numbers of the words that are left out, from 0, each alone; numbers in a tuple are left out
                together. By default all are left out; in a context of more than 64 words, groups of neighbours.
        """
        from regard.tasks.influence import language_influence

        return language_influence(self, given, words)

    @checks.renamed_arguments(**RENAMED)
    def complete_ids(self, prompts: Ids, *, max_length: int, beams: int = 1, nbest: int = 1,
                     length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each prompt its `nbest` continuations, the best first, of at most `max_length` tokens."""
        strategy = Beam(beams=beams, nbest=nbest, length_penalty=length_penalty)
        hypotheses = self._hypotheses(prompts, strategy, max_length)
        self._notify_completions(prompts, [nbest[0] for nbest in hypotheses])
        return hypotheses

    def _notify_completions(self, prompts: Ids, results: "Sequence[Completion | Hypothesis]") -> None:
        def replays() -> "Iterator[Replay]":
            from regard.tasks.traces import replay_completion

            for prompt, result in zip(prompts, results, strict=True):
                yield replay_completion(self, prompt, result)

        self.notify(replays)

    @torch.inference_mode()
    def _hypotheses(self, prompts: Ids, strategy: DecodingStrategy, max_length: int) -> list[list[Hypothesis]]:
        fitting = replace(strategy, max_length=max_length, min_length=min(strategy.min_length, max_length))
        return fitting.run(self.search_inputs(prompts, [max_length] * len(prompts)))

    def search_inputs(self, prompts: Ids, max_lengths: Sequence[int]) -> SearchInputs:
        """What a search for these prompts needs, each with its maximum length."""
        return SearchInputs(self.model, None, prompts, prompts, self.special.end, max_lengths, self._constraints())

    def encode_prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """The ids of prompts; a ValueError for one that is empty or too long."""
        first = [] if self.special.cls is None else [self.special.cls]
        rows = [[*first, *ids] for ids in self.text_tokenizer().encode_batch(prompts)]
        for number, row in enumerate(rows):
            if not row:
                raise checks.wrong(element_name("prompts", number, prompts), "a text that is not empty",
                                   f"{prompts[number]!r:.80}", "Give at least one word.")
        check_lengths("prompts", rows, max_positions(self.model.decoder))
        return rows

    def max_context(self) -> int | None:
        """The number of positions of the model, for prompt and completion together; None if it is unlimited."""
        return max_positions(self.model.decoder)

    def max_lengths(self, rows: Ids, strategy: DecodingStrategy) -> list[int]:
        """How many tokens may follow each prompt."""
        length = DEFAULT_MAX_LENGTH if strategy.max_length is None else strategy.max_length
        positions = max_positions(self.model.decoder)
        return [length if positions is None else min(length, positions - len(row)) for row in rows]

    def _constraints(self) -> list[Constraint]:
        never = [] if self.tokenizer is None else ids_without_token(self.text_tokenizer(), self.vocabularies[-1])
        return [ForbiddenTokens(never)] if never else []


def make_completion(tokenizer: Tokenizer, prompt: Sequence[int], found: Hypothesis) -> Completion:
    """The completion of a prompt, both given by their ids."""
    return Completion(added_text(tokenizer, prompt, found.ids), found.score, tuple(found.ids), found.cut,
                      log_probabilities=tuple(found.log_probabilities), tokenizer=tokenizer,
                      prompt=tokenizer.decode(prompt), prompt_ids=tuple(prompt))


def stream_text(tokenizer: Tokenizer, prompt: Sequence[int], ids: Iterable[int]) -> Iterator[str]:
    """The text that ids add to a prompt, piece by piece; joined, the pieces equal `added_text` of all ids."""
    written, length = list[int](), 0
    for id_ in ids:
        written.append(id_)
        text = settled_text(tokenizer, prompt, written)
        if len(text) > length:
            yield text[length:]
            length = len(text)
    text = added_text(tokenizer, prompt, written)
    if len(text) > length:
        yield text[length:]


def added_text(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """The text that ids add to a prompt. Both are decoded together, because the first id may begin with a space."""
    before, together = tokenizer.decode(prompt), tokenizer.decode([*prompt, *ids])
    return together[len(before):] if together.startswith(before) else tokenizer.decode(ids)


def settled_text(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """The beginning of the added text that no later id can change."""
    if tokenizer.lossless:
        text = added_text(tokenizer, prompt, ids)
        for partial in range(MAX_PARTIAL_BYTES):
            if not text[:len(text) - partial].endswith(REPLACEMENT_CHARACTER):
                return text[:len(text) - partial]
        return text[:len(text) - MAX_PARTIAL_BYTES]
    pieces = tokenizer.pieces(ids)
    whole = next((count for count in range(len(ids), 0, -1) if not pieces[count - 1].startswith("<0x")), 0)
    text = added_text(tokenizer, prompt, ids[:whole])
    return text[:next((at for at in range(len(text) - 1, -1, -1) if text[at].isspace()), 0)]
