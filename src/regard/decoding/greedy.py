"""Greedy search: of every next token the most probable one. Fast, and blind to what a better beginning would allow."""

from collections.abc import Iterable, Sequence

import torch

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.request import Limit, Prompts, Request
from regard.decoding.rules import Rule
from regard.decoding.sources import Given
from regard.decoding.steady import run
from regard.decoding.writing import Writing, highest
from regard.models.contract import Writer

__all__ = ["greedy", "highest"]


@torch.no_grad()
def greedy(model: Writer, memory: Given = None, *, prompts: Prompts, end: int | Iterable[int], limit: Limit,
           least: int = 0, rules: Sequence[Rule] = (), room: int | None = None) -> list[Hypothesis]:
    """One hypothesis for each prompt, in their order; a row's result does not depend on the others.

    Args:
        model: in evaluation mode.
        memory: what the model has read of the sources, a row for each prompt; or `Sources`, which it reads when their
            turn comes; None for a language model.
        prompts: what each row reads first: [START] for a translation, the text so far for a completion. Rows of ids,
            of different lengths if need be.
        end: the token, or the tokens, at which a row ends. With none at all, (), every row is cut at its limit.
        limit: how many tokens a row may write, the end not counted: one number, or one for each row. The model must
            have room for the longest prompt and the highest limit together.
        least: how many tokens come before an end may.
        rules: further rules of what may be written.
        room: how many tokens, of prompts and limits, the rows may have together that are written at once; others wait.
            Without it all are.
    """
    request = Request.of(model, memory, prompts, end, limit, least, rules, room)
    return run(model, memory, request, Writing(request, highest))
