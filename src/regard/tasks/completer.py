"""`Completer`: a language model with its tokenizer, ready to continue a text; and `Completion`, its result.

    complete    beam search or greedy search
    sample      random continuations
    stream      one continuation, in pieces of text as the model writes them

A token may end in the middle of a character, and its leading space may depend on its neighbours. `stream_text` therefore
yields a piece of text only when later tokens cannot change it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from regard import checks
from regard.data.tokenizer.interface import Tokenizer
from regard.decoding.constraints import Constraint, ForbiddenTokens
from regard.decoding.request import Hypothesis
from regard.decoding.sampling import TokenSampler, most_probable, seed_tensor, stream
from regard.decoding.scoring import LengthPenalty
from regard.tasks.replay import replay_completion
from regard.tasks.search import GREEDY, Beam, DecodingStrategy, GeneratedText, Sampling, SearchInputs, with_alternatives
from regard.tasks.task import (
    Ids,
    TextTask,
    as_texts,
    check_lengths,
    ids_without_token,
    map_batches,
    max_positions,
    one_or_many,
    text_suffix,
)

# ---- results: What a model wrote: a text with its score, its tokens, its words, and where the model looked.
#
#     translation.text, .score, .words, .alignment, .alternatives
#
# Words and alignment are found when they are asked for: words from the tokens, an alignment by the model, which reads
# what it wrote once more. Nothing here knows how a text was found.


@dataclass(frozen=True)
class Completion(GeneratedText):
    """What follows a prompt: `prompt + text` is the whole."""

    prompt: str = ""
    """As the tokenizer sees it."""
    prompt_ids: tuple[int, ...] = field(default=(), repr=False)

    @property
    def before(self) -> tuple[int, ...]:
        """The ids of the prompt."""
        return self.prompt_ids


MAX_PARTIAL_BYTES = 3
"""Of a character that is not whole there are at most so many bytes, each of which is shown by a sign of its own."""
REPLACEMENT_CHARACTER = "\ufffd"


def stream_text(tokenizer: Tokenizer, prompt: Sequence[int], ids: Iterable[int]) -> Iterator[str]:
    """What ids add to the text of a prompt, piece by piece; together that is `added` of all of them."""
    written, given = list[int](), 0
    for id_ in ids:
        written.append(id_)
        text = settled_text(tokenizer, prompt, written)
        if len(text) > given:
            yield text[given:]
            given = len(text)
    text = added_text(tokenizer, prompt, written)
    if len(text) > given:
        yield text[given:]


def added_text(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """What ids add to the text of a prompt: decoded together, because the first may begin with a space."""
    before, together = tokenizer.decode(prompt), tokenizer.decode([*prompt, *ids])
    return together[len(before):] if together.startswith(before) else tokenizer.decode(ids)


def settled_text(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """How the text begins that ids, and others behind them, add to that of a prompt."""
    if tokenizer.lossless:
        text = added_text(tokenizer, prompt, ids)
        return text[:len(text) - next((n for n in range(MAX_PARTIAL_BYTES) if not text[:len(text) - n].endswith(REPLACEMENT_CHARACTER)), MAX_PARTIAL_BYTES)]
    named = tokenizer.pieces(ids)
    whole = next((count for count in range(len(ids), 0, -1) if not named[count - 1].startswith("<0x")), 0)
    text = added_text(tokenizer, prompt, ids[:whole])
    return text[:next((at for at in range(len(text) - 1, -1, -1) if text[at].isspace()), 0)]


# ---- completing: `Completer`: a language model and its tokenizer, ready to go on with a text: at once, by chance, or piece by piece.
#
# Prompts are gone on with in batches of like lengths; what comes of one does not depend on the others. How is searched is
# a value, `regard.tasks.search` has them.

DEFAULT_MAX_LENGTH = 100
"""Tokens that are written at most, where nothing else is said."""


class Completer(TextTask):
    """A language model that completes a text."""

    @one_or_many
    def complete(self, prompts: Sequence[str], *, limit: int = DEFAULT_MAX_LENGTH, beams: int = 1, nbest: int = 1,
                 length_penalty: str | float | LengthPenalty = "none", groups: int = 1, diversity: float = 0.5,
                 least: int = 0, no_repeat: int | None = None) -> list[Completion]:
        """What follows a prompt, or each of several in their order.

        Args:
            limit: how many tokens are written at most; fewer where the model has fewer positions.
            least: how many tokens are written at least.
            no_repeat: no sequence of so many tokens is written twice; what stands in the prompt does not count.
            beams, nbest, length_penalty, groups, diversity: as for `Translator.translate`.
        """
        return self.searched(prompts, Beam(beams=beams, nbest=nbest, length_penalty=length_penalty, groups=groups,
                                           diversity=diversity, limit=limit, least=least, no_repeat=no_repeat))

    @one_or_many
    def sample(self, prompts: Sequence[str], *, tries: int = 1, temperature: float = 1.0, top_k: int | None = None,
               top_p: float | None = None, min_p: float | None = None, seed: int = 0, limit: int = DEFAULT_MAX_LENGTH,
               least: int = 0, no_repeat: int | None = None) -> list[Completion]:
        """What follows each prompt, drawn by chance; the first of several has the others as alternatives.

        Args:
            tries, temperature, top_k, top_p, min_p, seed: as for `Translator.sample`.
            limit, least, no_repeat: as for `complete`.
        """
        return self.searched(prompts, Sampling(tries=tries, temperature=temperature, top_k=top_k, top_p=top_p,
                                               min_p=min_p, seed=seed, limit=limit, least=least, no_repeat=no_repeat))

    def stream(self, prompt: str, search: DecodingStrategy | None = None) -> Iterator[str]:
        """What follows a prompt, in pieces of text, each as soon as nothing can change it; together all of it.

        Args:
            search: a `Sampling` of one try, or a `Beam` of one beam without a length penalty, which is greedy search.
        """
        asked = GREEDY if search is None else search
        self.check_stream(asked)
        if not isinstance(prompt, str):
            raise checks.wrong("prompt", "a text", *checks.kind(prompt))
        (row,), tokenizer = self._rows([prompt]), self.text_tokenizer()
        (limit,) = self._limits([row], asked)
        self.check_mode()
        choose = (TokenSampler(asked.filters, seed_tensor(asked.seeds([row]), self.device)) if isinstance(asked, Sampling)
                  else most_probable)
        ids = stream(self.model, row, choose, end=self.special.end, max_length=limit,  # type: ignore[arg-type]
                     min_length=min(asked.least, limit), constraints=[*self._rules(), *asked.rules()])
        return stream_text(tokenizer, row, ids)

    def check_stream(self, search: DecodingStrategy) -> None:
        """Refuse a search that changes its mind until the end."""
        if isinstance(search, Beam) and search.is_greedy:
            return
        if not isinstance(search, Sampling) or search.tries > 1:
            raise checks.wrong("search", "one text, drawn or by greedy search, for a stream", search)

    def searched(self, prompts: Sequence[str], search: DecodingStrategy) -> list[Completion]:
        """What a search, a `Beam` or a `Sampling`, finds for each prompt, in their order."""
        if not isinstance(search, DecodingStrategy):
            raise checks.wrong("search", "a Beam, or a Sampling", *checks.kind(search))
        tokenizer, rows = self.text_tokenizer(), self._rows(as_texts("prompts", prompts))
        most, results = self._limits(rows, search), dict[int, Completion]()
        # Prompts that leave room for all of the limit go together; of the others only those of one length can.
        for count in {*most}:
            numbers = [number for number, one in enumerate(most) if one == count]
            some = [rows[number] for number in numbers]
            found = map_batches(some, [(len(row) + count) * search.rows for row in some],
                               lambda rows, count=count: self._hypotheses(rows, search, count))  # type: ignore[misc]
            for number, hypotheses in zip(numbers, found, strict=True):
                results[number] = with_alternatives([_make_completion(tokenizer, rows[number], one) for one in hypotheses])
        ordered = [results[number] for number in range(len(rows))]
        self.tell(lambda: map(partial(replay_completion, self), rows, ordered))
        return ordered

    def complete_ids(self, prompts: Ids, *, limit: int, beams: int = 1, nbest: int = 1,
                     length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each prompt its `nbest` continuations, the best first; at most `limit` tokens each."""
        found = self._hypotheses(prompts, Beam(beams=beams, nbest=nbest, length_penalty=length_penalty), limit)
        self.tell(lambda: map(partial(replay_completion, self), prompts, [some[0] for some in found]))
        return found

    @torch.inference_mode()
    def _hypotheses(self, prompts: Ids, search: DecodingStrategy, limit: int) -> list[list[Hypothesis]]:
        fitting = replace(search, limit=limit, least=min(search.least, limit))
        return fitting.run(SearchInputs(self.model, None, prompts, prompts, self.special.end, [limit] * len(prompts),
                                   self._rules()))

    def _rows(self, prompts: Sequence[str]) -> list[list[int]]:
        """What the model reads of each prompt."""
        first = [] if self.special.cls is None else [self.special.cls]
        rows = [[*first, *ids] for ids in self.text_tokenizer().encode_batch(prompts)]
        for number, row in enumerate(rows):
            if not row:
                raise checks.wrong("prompts", "texts that are not empty",
                                   f"{prompts[number]!r:.80}{text_suffix(number, prompts)}",
                                   "A model goes on from something: give at least one word.")
        check_lengths("prompts", rows, max_positions(self.model.decoder))
        return rows

    def _limits(self, rows: Ids, search: DecodingStrategy) -> list[int]:
        """How many tokens may follow each prompt."""
        limit, positions = DEFAULT_MAX_LENGTH if search.limit is None else search.limit, max_positions(self.model.decoder)
        return [limit if positions is None else min(limit, positions - len(row)) for row in rows]

    def _rules(self) -> list[Constraint]:
        never = [] if self.tokenizer is None else ids_without_token(self.text_tokenizer(), self.vocabularies[-1])
        return [ForbiddenTokens(never)] if never else []


def _make_completion(tokenizer: Tokenizer, prompt: Sequence[int], found: Hypothesis) -> Completion:
    return Completion(added_text(tokenizer, prompt, found.ids), found.score, tuple(found.ids), found.cut,
                      log_probabilities=tuple(found.log_probabilities), tokenizer=tokenizer,
                      prompt=tokenizer.decode(prompt), prompt_ids=tuple(prompt))
