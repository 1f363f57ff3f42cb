"""Tasks of models that write: `Translator` and `Completer`.

They put a model, its special ids and a search together. Which search is chosen by the call: one beam is greedy search.
"""

from collections.abc import Sequence

import torch
from torch import nn

from regard import checks
from regard.decoding.beam import beam
from regard.decoding.greedy import greedy
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.request import Prompts
from regard.models.contract import Memory
from regard.tasks.task import Ids, Task

LONGER, FACTOR = 50, 2
"""A translation may have so many tokens more than this many times its source, where no limit is given."""


def search(model: nn.Module, memory: Memory | None, prompts: Prompts, end: Sequence[int], limit: int | Sequence[int],
           beams: int, nbest: int, length_penalty: "str | float") -> list[list[Hypothesis]]:
    """The best hypotheses of each prompt, by greedy search where there is one beam."""
    if beams == 1 and nbest == 1:
        return [[one] for one in greedy(model, memory, prompts=prompts, end=end, limit=limit)]  # type: ignore[arg-type]
    return beam(model, memory, prompts=prompts, end=end, limit=limit, beams=beams,  # type: ignore[arg-type]
                length_penalty=length_penalty, nbest=nbest)


class Translator(Task):
    """An encoder-decoder that translates."""

    @torch.inference_mode()
    def translate_ids(self, sources: Ids, *, beams: int = 1, nbest: int = 1, limit: int | None = None,
                      length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each source its `nbest` translations, the best first; at most `limit` tokens each."""
        if self.special.start is None:
            raise checks.wrong("special.start", "an id, for a model that translates", None)
        memory = self.model.encode(self.tokens(sources))  # type: ignore[operator]
        limits = [FACTOR * len(source) + LONGER if limit is None else limit for source in sources]
        prompts = [[self.special.start]] * len(sources)
        return search(self.model, memory, prompts, self.end(), limits, beams, nbest, length_penalty)


class Completer(Task):
    """A language model that completes a text."""

    @torch.inference_mode()
    def complete_ids(self, prompts: Ids, *, limit: int, beams: int = 1, nbest: int = 1,
                     length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each prompt its `nbest` continuations, the best first; at most `limit` tokens each."""
        return search(self.model, None, prompts, self.special.end, limit, beams, nbest, length_penalty)
