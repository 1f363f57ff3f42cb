"""Tasks of models that write: `Translator` and `Completer`.

They put a model, its special ids and a search together. Which search is chosen by the call: one beam without a length
penalty is greedy search.
"""

from collections.abc import Sequence

import torch
from torch import nn

from regard import checks
from regard.decoding.beam import beam
from regard.decoding.greedy import greedy
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.request import Prompts
from regard.decoding.rules import Forbidden, Rule
from regard.models.contract import Memory
from regard.models.encoder_decoder import EncoderDecoder
from regard.tasks.task import Ids, Task

LONGER, FACTOR = 50, 2
"""A translation may have so many tokens more than this many times its source, where no limit is given; fewer where the
model has fewer positions."""


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

    @torch.inference_mode()
    def translate_ids(self, sources: Ids, *, beams: int = 1, nbest: int = 1, limit: int | None = None,
                      length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each source its `nbest` translations, the best first; at most `limit` tokens each.

        Without a limit it follows from the length of the source, and from the positions that the model knows.
        """
        if self.special.start is None:
            raise checks.wrong("special.start", "an id, for a model that translates", None)
        memory = self.model.encode(self.tokens(sources))  # type: ignore[operator]
        room = self.model.decoder.embedding.limit if isinstance(self.model, EncoderDecoder) else None
        longest = [FACTOR * len(source) + LONGER for source in sources]
        if room is not None:
            longest = [min(count, room - 1) for count in longest]  # the start has a position too
        limits = longest if limit is None else [limit] * len(sources)
        prompts = [[self.special.start]] * len(sources)
        return search(self.model, memory, prompts, self.end(), limits, beams, nbest, length_penalty, self._rules())

    def _rules(self) -> list[Rule]:
        """Padding is never written: no target has it, so that nothing was learned of when it would be right."""
        padding, vocabulary = self.special.padding, self.config.target_vocabulary  # type: ignore[union-attr]
        if padding is None or padding in self.special.end or padding >= vocabulary:  # then of the source alone
            return []
        return [Forbidden([padding])]


class Completer(Task):
    """A language model that completes a text."""

    @torch.inference_mode()
    def complete_ids(self, prompts: Ids, *, limit: int, beams: int = 1, nbest: int = 1,
                     length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each prompt its `nbest` continuations, the best first; at most `limit` tokens each."""
        return search(self.model, None, prompts, self.special.end, limit, beams, nbest, length_penalty)
