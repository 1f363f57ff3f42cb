"""Beam search: of every prompt the most probable beginnings are followed side by side.

Each step ranks all continuations of a row's live hypotheses by one token, by their log-probability. Those among the
best K that end leave for the row's pool, where their final score ranks them; the best K of the others live on. A row
stops when no live hypothesis can still come into its pool, whatever it would go on with: what is given is what the same
search would give if it never stopped before the limit. At the limit the live ones are cut, and fill places that are
still free in the pool.

With one beam and no length penalty it is greedy search. With a length penalty it goes on behind a first end as long as
something longer could score higher; limits that fit the rows keep that short. With as many beams as there are
continuations it is exhaustive. How a turn is made is in `regard.decoding.beam_search`.

Diverse beams (Vijayakumar et al. 2016): the beams are parted into groups that search one after another at every step.
For each group a token counts less by `diversity` for every hypothesis of the groups before it that has just gone on
with this token. That decides who is followed, and nothing else: scores are those of the model. Groups end together,
since each depends on those before it.

Terms: what must appear in the text. Hypotheses are ranked among those that need equally many tokens until all terms
are there, and such banks share the beams. With more beams than all terms of a row have tokens, every bank has one; with
fewer, those that are nearest to the end of their terms are followed, and terms come early in the text. They appear
in every hypothesis that ends, in any order; a term that is given twice need appear once. In one that was cut they
appear too, unless the rules or the model left no way to write them.
"""

import math
from collections.abc import Iterable, Sequence

import torch

from regard import checks
from regard.checks import whole_number
from regard.decoding.beam_search import BeamSearch
from regard.decoding.constraints import Constraint, TermAlternatives, build_automata
from regard.decoding.graph_search import run_graph_search
from regard.decoding.request import Hypothesis, LengthLimit, Prompts, SearchRequest, SourceInput
from regard.decoding.scoring import CoveragePenalty, LengthPenalty, as_coverage_penalty, as_length_penalty
from regard.models.contract import GenerativeModel


@torch.no_grad()
def beam(model: GenerativeModel, memory: SourceInput = None, *, prompts: Prompts, end: int | Iterable[int], limit: LengthLimit,
         beams: int, least: int = 0, rules: Sequence[Constraint] = (), length_penalty: "str | float | LengthPenalty" = "none",
         coverage: "float | CoveragePenalty | None" = None, groups: int = 1, diversity: float = 0.5,
         terms: Sequence[Sequence[TermAlternatives]] | None = None, nbest: int = 1,
         room: int | None = None) -> list[list[Hypothesis]]:
    """For each prompt its `nbest` hypotheses, the best first; a row's result does not depend on the others.

    Fewer come where there are fewer. One that was cut comes after all that have ended, and one of probability 0 never.
    With several groups the best of each comes first, then the second of each, and so on, and none twice.

    Args:
        model: in evaluation mode.
        memory: what the model has read of the sources, a row for each prompt; or `Sources`, which it reads when their
            turn comes; None for a language model.
        prompts: what each row reads first: [START] for a translation, and behind it how it must begin; the text so far
            for a completion. Rows of ids, of different lengths if need be.
        end: the token, or the tokens, at which a hypothesis ends. With none at all, (), all are cut at the limit.
        limit: how many tokens a hypothesis may have, the end not counted: one number, or one for each row. The model
            must have room for the longest prompt and the highest limit together.
        beams: how many hypotheses of a row are followed.
        least: how many tokens come before an end may.
        rules: further rules of what may be written.
        length_penalty: "none", "mean", or the α of Wu et al. 2016; see `regard.decoding.scoring`.
        coverage: the β of Wu et al. 2016, for models that attend to their source; see `regard.decoding.scoring`.
        groups: into how many groups the beams are parted.
        diversity: what a token costs that a group before has taken, in log-probability.
        terms: for each row what must appear: terms, each a list of alternatives, each a list of ids.
        nbest: how many are given, at most `beams`.
        room: how many tokens, of prompts and limits, the hypotheses may have together that are followed at once;
            other prompts wait. Without it all are.
    """
    request = SearchRequest.of(model, memory, prompts, end, limit, least, rules, room)
    if whole_number("nbest", nbest, 1) > whole_number("beams", beams, 1):
        raise checks.wrong("nbest", f"at most the {beams} beams", nbest)
    if beams % whole_number("groups", groups, 1):
        raise checks.wrong("groups", f"a number that divides the {beams} beams", groups)
    if isinstance(diversity, bool) or not isinstance(diversity, int | float) or not 0 <= diversity < math.inf:
        raise checks.wrong("diversity", "a number, at least 0", repr(diversity))
    covered = as_coverage_penalty(coverage)
    if covered is not None and memory is None:
        raise checks.wrong("coverage", "None for a model without a source", repr(coverage))
    required = None if terms is None else build_automata(terms, request.ends, request.limits)
    search = BeamSearch(request, beams, as_length_penalty(length_penalty), nbest, groups, float(diversity), covered, required)
    return run_graph_search(model, memory, request, search)
