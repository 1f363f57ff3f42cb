"""`Completer`: a language model and its tokenizer, ready to go on with a text: at once, by chance, or piece by piece.

Prompts are gone on with in batches of like lengths; what comes of one does not depend on the others. How is searched is
a value, `regard.tasks.searches` has them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from regard import checks
from regard.data.tokenizer.contract import Tokenizer
from regard.decoding.chance import as_words
from regard.decoding.greedy import highest
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.ranking import Ranking
from regard.decoding.rules import Forbidden, Rule
from regard.decoding.sampling import Draw
from regard.decoding.streaming import stream
from regard.tasks.pieces import added, pieces
from regard.tasks.readings import completion
from regard.tasks.results import Completion, best
from regard.tasks.searches import GREEDY, Beam, Problem, Sampling, Search
from regard.tasks.task import Ids, OneSided, check_lengths, room
from regard.tasks.texts import as_texts, in_batches, one_or_several, which
from regard.tasks.translating import no_tokens

LIMIT = 100
"""Tokens that are written at most, where nothing else is said."""


class Completer(OneSided):
    """A language model that completes a text."""

    @one_or_several
    def complete(self, prompts: Sequence[str], *, limit: int = LIMIT, beams: int = 1, nbest: int = 1,
                 length_penalty: str | float | Ranking = "none", groups: int = 1, diversity: float = 0.5,
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

    @one_or_several
    def sample(self, prompts: Sequence[str], *, tries: int = 1, temperature: float = 1.0, top_k: int | None = None,
               top_p: float | None = None, min_p: float | None = None, seed: int = 0, limit: int = LIMIT,
               least: int = 0, no_repeat: int | None = None) -> list[Completion]:
        """What follows each prompt, drawn by chance; the first of several has the others as alternatives.

        Args:
            tries, temperature, top_k, top_p, min_p, seed: as for `Translator.sample`.
            limit, least, no_repeat: as for `complete`.
        """
        return self.searched(prompts, Sampling(tries=tries, temperature=temperature, top_k=top_k, top_p=top_p,
                                               min_p=min_p, seed=seed, limit=limit, least=least, no_repeat=no_repeat))

    def stream(self, prompt: str, search: Search | None = None) -> Iterator[str]:
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
        choose = (Draw(asked.filters, as_words(asked.seeds([row]), self.device)) if isinstance(asked, Sampling)
                  else highest)
        ids = stream(self.model, row, choose, end=self.special.end, limit=limit,  # type: ignore[arg-type]
                     least=min(asked.least, limit), rules=[*self._rules(), *asked.rules()])
        return pieces(tokenizer, row, ids)

    def check_stream(self, search: Search) -> None:
        """Refuse a search that changes its mind until the end."""
        if isinstance(search, Beam) and search.is_greedy:
            return
        if not isinstance(search, Sampling) or search.tries > 1:
            raise checks.wrong("search", "one text, drawn or by greedy search, for a stream", search)

    def searched(self, prompts: Sequence[str], search: Search) -> list[Completion]:
        """What a search, a `Beam` or a `Sampling`, finds for each prompt, in their order."""
        if not isinstance(search, Search):
            raise checks.wrong("search", "a Beam, or a Sampling", *checks.kind(search))
        tokenizer, rows = self.text_tokenizer(), self._rows(as_texts("prompts", prompts))
        most, results = self._limits(rows, search), dict[int, Completion]()
        # Prompts that leave room for all of the limit go together; of the others only those of one length can.
        for count in {*most}:
            numbers = [number for number, one in enumerate(most) if one == count]
            some = [rows[number] for number in numbers]
            found = in_batches(some, [(len(row) + count) * search.rows for row in some],
                               lambda rows, count=count: self._hypotheses(rows, search, count))  # type: ignore[misc]
            for number, hypotheses in zip(numbers, found, strict=True):
                results[number] = best([_completion(tokenizer, rows[number], one) for one in hypotheses])
        ordered = [results[number] for number in range(len(rows))]
        self.tell(lambda: map(partial(completion, self), rows, ordered))
        return ordered

    def complete_ids(self, prompts: Ids, *, limit: int, beams: int = 1, nbest: int = 1,
                     length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each prompt its `nbest` continuations, the best first; at most `limit` tokens each."""
        found = self._hypotheses(prompts, Beam(beams=beams, nbest=nbest, length_penalty=length_penalty), limit)
        self.tell(lambda: map(partial(completion, self), prompts, [some[0] for some in found]))
        return found

    @torch.inference_mode()
    def _hypotheses(self, prompts: Ids, search: Search, limit: int) -> list[list[Hypothesis]]:
        fitting = replace(search, limit=limit, least=min(search.least, limit))
        return fitting.run(Problem(self.model, None, prompts, prompts, self.special.end, [limit] * len(prompts),
                                   self._rules()))

    def _rows(self, prompts: Sequence[str]) -> list[list[int]]:
        """What the model reads of each prompt."""
        first = [] if self.special.first is None else [self.special.first]
        rows = [[*first, *ids] for ids in self.text_tokenizer().encode_many(prompts)]
        for number, row in enumerate(rows):
            if not row:
                raise checks.wrong("prompts", "texts that are not empty",
                                   f"{prompts[number]!r:.80}{which(number, prompts)}",
                                   "A model goes on from something: give at least one word.")
        check_lengths("prompts", rows, room(self.model.decoder))
        return rows

    def _limits(self, rows: Ids, search: Search) -> list[int]:
        """How many tokens may follow each prompt."""
        limit, positions = LIMIT if search.limit is None else search.limit, room(self.model.decoder)
        return [limit if positions is None else min(limit, positions - len(row)) for row in rows]

    def _rules(self) -> list[Rule]:
        never = [] if self.tokenizer is None else no_tokens(self.text_tokenizer(), self.vocabularies[-1])
        return [Forbidden(never)] if never else []


def _completion(tokenizer: Tokenizer, prompt: Sequence[int], found: Hypothesis) -> Completion:
    return Completion(added(tokenizer, prompt, found.ids), found.score, tuple(found.ids), found.cut,
                      log_probabilities=tuple(found.log_probabilities), tokenizer=tokenizer,
                      prompt=tokenizer.decode(prompt), prompt_ids=tuple(prompt))
