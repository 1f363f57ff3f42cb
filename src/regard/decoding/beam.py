"""Beam search: follow the most probable prefixes of each prompt side by side.

Each step ranks all continuations of a row's live hypotheses by one token, by their log-probability. Those among the
best K that end enter the row's pool, which ranks them by their final score; the best K of the others live on. A row
finishes when no live hypothesis can still enter its pool, so the result is that of a search that never stops before the
maximum length. At the maximum length the live hypotheses are truncated, and take places of the pool that are still
free.

With one beam and no length penalty this is greedy search. With a length penalty it continues after a first end token
as long as something longer could score higher; maximum lengths that fit the prompts keep that short. With as many beams
as there are continuations it is exhaustive.

Diverse beam search (Vijayakumar et al. 2016): the beams are divided into groups that search one after another at every
step. For each group, a token loses `diversity_penalty` for every hypothesis of the groups before it that has just taken
this token. That decides which hypotheses are followed and nothing else: scores are those of the model. Groups end
together, since each depends on those before it.

Required terms: hypotheses are ranked among those that need equally many tokens until all terms are there (see
`regard.decoding.constraints`). With more beams than all terms of a prompt have tokens, every bank has a beam; with
fewer, the hypotheses closest to completing their terms are followed, and terms come early in the text. Terms appear in
any order in every finished hypothesis; a term that is given twice need appear once. They appear in a truncated
hypothesis too, unless the constraints or the model left no way to write them.

Legend: B rows (each a group of a sequence), K live hypotheses of a row, C candidates of a row, J some of them, t tokens
generated so far, N states of the source, V vocabulary.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.checks import renamed_arguments, whole_number
from regard.decoding.beam_state import (
    BeamBatch,
    Candidates,
    HypothesisPool,
    LiveHypotheses,
    TopKFunction,
    exact_topk,
    quick_topk,
)
from regard.decoding.constraints import (
    Constraint,
    TermAlternatives,
    TermAutomaton,
    allocate_beams,
    build_automata,
    check_term_vocabulary,
    check_vocabulary,
)
from regard.decoding.request import (
    FINISHED,
    INVALID,
    RUNNING,
    TRUNCATED,
    Hypothesis,
    LengthLimit,
    Prompts,
    SearchRequest,
    SourceInput,
)
from regard.decoding.scheduler import SearchStep, run_search
from regard.decoding.scoring import (
    MAX_PENALTY,
    CoveragePenalty,
    LengthPenalty,
    as_coverage_penalty,
    as_length_penalty,
    check_weight,
    initial_coverage,
)
from regard.kernels.launch import is_readable
from regard.models.contract import GenerativeModel


@renamed_arguments(limit="max_length", least="min_length", rules="constraints", coverage="coverage_penalty",
                   groups="num_beam_groups", diversity="diversity_penalty", room="token_budget")
@torch.no_grad()
def beam(model: GenerativeModel, memory: SourceInput = None, *, prompts: Prompts, end: int | Iterable[int],
         max_length: LengthLimit, beams: int, min_length: int = 0, constraints: Sequence[Constraint] = (),
         length_penalty: "str | float | LengthPenalty" = "none",
         coverage_penalty: "float | CoveragePenalty | None" = None, num_beam_groups: int = 1,
         diversity_penalty: float = 0.5, terms: Sequence[Sequence[TermAlternatives]] | None = None, nbest: int = 1,
         token_budget: int | None = None) -> list[list[Hypothesis]]:
    """Generate by beam search: keep the `beams` best hypotheses at every step, and return the `nbest` for each prompt.

    The best comes first, and there may be fewer. Truncated hypotheses come after finished ones, and hypotheses of
    probability 0 are left out. With several groups the best of each group comes first, then the second best of each,
    and so on, without duplicates. The result for a prompt does not depend on the other prompts.

    Args:
        model: a model that generates, in evaluation mode.
        memory: the encoded sources, a row for each prompt; or `Sources`, which are encoded when a slot is free; None
            for a language model.
        prompts: the ids that each row begins with: [START] for a translation, then its forced prefix; the text so
            far for a completion. Rows may differ in length.
        end: the end token, or several. With none, (), every hypothesis is truncated at its maximum length.
        max_length: the maximum number of generated tokens, not counting the end token: one number, or one for each
            prompt. The model must have room for the longest prompt and the largest maximum length together.
        beams: the beam size.
        min_length: the minimum number of tokens before an end token.
        constraints: further constraints on the tokens.
        length_penalty: "none", "mean", or the α of Wu et al. 2016; see `regard.decoding.scoring`.
        coverage_penalty: the β of Wu et al. 2016, for models with cross-attention; see `regard.decoding.scoring`.
        num_beam_groups: the number of groups of diverse beam search.
        diversity_penalty: the log-probability that a token loses for each use by an earlier group.
        terms: for each prompt the terms that must appear, each a list of alternatives, each a list of ids.
        nbest: the number of hypotheses to return, at most `beams`.
        token_budget: the maximum number of tokens, prompts and maximum lengths together, that all hypotheses of a batch
            may have; other prompts wait. By default all prompts run at once.
    """
    search = beam_search(model, memory, prompts=prompts, end=end, max_length=max_length, beams=beams,
                         min_length=min_length, constraints=constraints, length_penalty=length_penalty,
                         coverage_penalty=coverage_penalty, num_beam_groups=num_beam_groups,
                         diversity_penalty=diversity_penalty, terms=terms, nbest=nbest, token_budget=token_budget)
    return run_search(model, memory, search.request, search)


def beam_search(model: GenerativeModel, memory: SourceInput = None, *, prompts: Prompts, end: int | Iterable[int],
                max_length: LengthLimit, beams: int, min_length: int = 0, constraints: Sequence[Constraint] = (),
                length_penalty: "str | float | LengthPenalty" = "none",
                coverage_penalty: "float | CoveragePenalty | None" = None, num_beam_groups: int = 1,
                diversity_penalty: float = 0.5, terms: Sequence[Sequence[TermAlternatives]] | None = None,
                nbest: int = 1, token_budget: int | None = None) -> "BeamSearch":
    """The search that `beam` runs, after its arguments have been checked."""
    request = SearchRequest.of(model, memory, prompts, end, max_length, min_length, constraints, token_budget)
    if whole_number("nbest", nbest, 1) > whole_number("beams", beams, 1):
        raise checks.wrong("nbest", f"at most the number of beams, {beams}", nbest)
    if beams % whole_number("num_beam_groups", num_beam_groups, 1):
        raise checks.wrong("num_beam_groups", f"a number that divides the number of beams, {beams}", num_beam_groups)
    diversity = min(float(check_weight("diversity_penalty", diversity_penalty)), MAX_PENALTY)
    coverage = as_coverage_penalty(coverage_penalty)
    if coverage is not None and memory is None:
        raise checks.wrong("coverage_penalty", "None for a model without a source", repr(coverage_penalty))
    required = None if terms is None else build_automata(terms, request.ends, request.max_lengths)
    return BeamSearch(request, beams, as_length_penalty(length_penalty), nbest, num_beam_groups, diversity,
                      coverage, required)


class RowLengths(NamedTuple):
    """Lengths of the rows, which are known without waiting for the device, as tensors on the device."""

    lengths: Tensor
    """(B,): tokens generated so far."""
    max_lengths: Tensor
    """(B,)"""
    width: int
    """The length of the longest row after the step."""


class BeamUpdate(NamedTuple):
    """The result of one step for some rows."""

    live: LiveHypotheses
    pool: HypothesisPool
    parents: Tensor
    """(B, K): the hypothesis before the step that each live one continues."""
    ended: Tensor
    """(B, K): which hypotheses before the step entered the pool with an end token."""
    status: Tensor
    """(B,)"""
    ambiguous: Tensor
    """A bool: whether the order of equal candidates is unknown."""


@dataclass(frozen=True)
class BeamSearch:
    """A beam search: a `regard.decoding.scheduler.SearchStrategy`."""

    request: SearchRequest
    beams: int
    length_penalty: LengthPenalty
    nbest: int
    groups: int = 1
    diversity_penalty: float = 0.0
    coverage: CoveragePenalty | None = None
    terms: Sequence[TermAutomaton] | None = None
    """One for each prompt."""

    @property
    def width(self) -> int:
        """The number of hypotheses of each sequence."""
        return self.beams

    @property
    def needs_cross(self) -> bool:
        """Whether the search reads the cross-attention weights."""
        return self.coverage is not None

    def start(self, sequences: Sequence[int], present: Tensor | None) -> BeamBatch:
        """The batch before the first step: one hypothesis without tokens in each row."""
        rows, each, device = len(sequences) * self.groups, self.beams // self.groups, self.request.device
        totals = torch.full((rows, each), -torch.inf, dtype=total_dtype(device), device=device)
        totals[:, 0] = 0.0
        coverage = totals.new_zeros(rows, each, 0)
        if self.needs_cross and present is not None:
            coverage = initial_coverage(present.repeat_interleave(self.groups, 0), each, totals)
        pool = HypothesisPool.empty(rows, -(-self.nbest // self.groups), totals)
        return BeamBatch([*sequences], [0] * len(sequences), LiveHypotheses.empty(totals, coverage), pool)

    def advance(self, batch: BeamBatch, logits: Tensor, cross: Tensor | None) -> SearchStep[BeamBatch]:
        """Add one token to every live hypothesis. It waits for the device once, and again if candidates are equal."""
        B, K, t = batch.live.ids.shape
        prefixes = self.request.prefixes(batch.live.ids.view(B * K, t), batch.sequences, batch.lengths, self.beams)
        logs_BKV = self.request.log_probabilities(logits, prefixes).view(B, K, -1)
        before = batch.live
        if self.coverage is not None and cross is not None:
            attended_BKN = self.coverage.attended(cross).view(B, K, -1)
            batch = replace(batch, live=replace(before, coverage=before.coverage + attended_BKN))
        rows_B, lengths_B = prefixes.rows.view(B, K)[:, 0], prefixes.lengths.view(B, K)[:, 0]
        rows = RowLengths(lengths_B, self.request.max_lengths_on_device[rows_B], max(batch.lengths) + 1)
        update = self._update_groups(batch, rows, logs_BKV, quick_topk)
        *statuses, ambiguous = torch.cat([update.status, update.ambiguous.long().unsqueeze(0)]).tolist()
        if INVALID in statuses:
            slot = statuses.index(INVALID) // self.groups
            raise self.request.invalid_logits(batch.sequences[slot], batch.lengths[slot])
        if ambiguous:
            update = self._update_groups(batch, rows, logs_BKV, exact_topk)
            statuses = update.status.tolist()
        pool = self.add_truncated(before, rows, update) if TRUNCATED in statuses else update.pool
        if self.groups > 1:  # the groups of a sequence end together
            statuses = [RUNNING if RUNNING in statuses[first:first + self.groups] else FINISHED
                        for first in range(0, len(statuses), self.groups)]
        finished = [slot for slot, status in enumerate(statuses) if status != RUNNING]
        parents_BK = update.parents + K * torch.arange(B, device=logits.device).unsqueeze(-1)
        lengths = [length + 1 for length in batch.lengths]
        return SearchStep(BeamBatch(batch.sequences, lengths, update.live, pool), parents_BK.view(-1, self.beams),
                          finished)

    def results(self, batch: BeamBatch) -> list[tuple[int, list[Hypothesis]]]:
        """The best hypotheses of each sequence: of every group the best, then of every group the second, and so on."""
        pools = batch.pool.hypotheses()
        found = []
        for slot, sequence in enumerate(batch.sequences):
            groups = pools[slot * self.groups:(slot + 1) * self.groups]
            found.append((sequence, _interleave_groups(groups)[:self.nbest] if self.groups > 1 else groups[0]))
        return found

    def update(self, live: LiveHypotheses, pool: HypothesisPool, rows: RowLengths, logs: Tensor,
               topk: TopKFunction) -> BeamUpdate:
        """One step of a search without groups and terms, from log-probabilities (B, K, V), without a wait."""
        assert (self.groups, self.terms) == (1, None)
        return self._update(live, pool, (), rows, logs, None, topk)

    def add_truncated(self, live: LiveHypotheses, rows: RowLengths, update: BeamUpdate) -> HypothesisPool:
        """The pool after a step, with the hypotheses before it added in rows that cannot continue."""
        scores_BK = self._scores(live, rows.lengths.unsqueeze(-1).to(live.totals.dtype))
        dropped_BK = (update.status != TRUNCATED).unsqueeze(-1) | update.ended
        return update.pool.add_truncated(live.ids, live.logs, rows.lengths,
                                         scores_BK.masked_fill(dropped_BK, -torch.inf))

    def _update_groups(self, batch: BeamBatch, rows: RowLengths, logs: Tensor, topk: TopKFunction) -> BeamUpdate:
        """One step of all groups, one after another; each is penalised for the tokens that those before it took."""
        if self.groups == 1:
            return self._update(batch.live, batch.pool, batch.sequences, rows, logs, None, topk)
        taken_BV = logs.new_zeros(len(batch.sequences), logs.shape[-1])
        several = list[BeamUpdate]()
        for group in range(self.groups):
            mine = slice(group, None, self.groups)
            one = self._update(batch.live.select(mine, rows.width), batch.pool.select(mine), batch.sequences,
                               RowLengths(rows.lengths[mine], rows.max_lengths[mine], rows.width), logs[mine],
                               self.diversity_penalty * taken_BV, topk)
            several.append(one)
            there = (one.live.totals > -torch.inf).to(taken_BV.dtype)
            taken_BV = taken_BV.scatter_add(-1, one.live.tokens, there)
        same = zip(*((one.parents, one.ended, one.status) for one in several), strict=True)
        parents, ended, status = (torch.stack(parts, 1).flatten(0, 1) for parts in same)
        ambiguous = torch.stack([one.ambiguous for one in several]).any()
        return BeamUpdate(LiveHypotheses.interleave([one.live for one in several]),
                          HypothesisPool.interleave([one.pool for one in several]), parents, ended, status, ambiguous)

    def _update(self, live: LiveHypotheses, pool: HypothesisPool, sequences: Sequence[int], rows: RowLengths,
                logs: Tensor, penalty: Tensor | None, topk: TopKFunction) -> BeamUpdate:
        """One step of one group of each sequence. Without terms it does not wait for the device."""
        selection = self._select(live, sequences, rows, logs, penalty, topk)
        length_B1 = (rows.lengths + 1).unsqueeze(-1).to(live.totals.dtype)
        offered_BJ = selection.ended.totals > -torch.inf
        if is_readable(offered_BJ) and not offered_BJ.any():  # usual in the first and last steps of a batch
            ended_BK = torch.zeros_like(live.totals, dtype=torch.bool)
        else:
            complete = live.extend(selection.ended, rows.lengths, rows.width)
            scores_BJ = self._scores(complete, length_B1)
            pool = pool.add_finished(complete.ids, complete.logs, rows.lengths + 1, scores_BJ)
            hypotheses_K = torch.arange(live.totals.shape[1], device=logs.device)
            ended_BK = ((selection.ended.parents.unsqueeze(-1) == hypotheses_K) & offered_BJ.unsqueeze(-1)).any(dim=1)

        continued = selection.continued
        longest_B1 = (rows.max_lengths + 1).unsqueeze(-1).to(length_B1.dtype)  # with an end token
        # The coverage penalty adds at most 0.
        attainable_B = self.length_penalty.attainable(continued.totals, length_B1, longest_B1).amax(dim=-1)
        status_B = torch.where(pool.threshold >= attainable_B, FINISHED, RUNNING)
        stuck_B = continued.totals.amax(dim=-1) == -torch.inf
        status_B = torch.where((rows.max_lengths == rows.lengths) | stuck_B, TRUNCATED, status_B)
        status_B = torch.where(selection.invalid, INVALID, status_B)
        after = live.extend(continued, rows.lengths, rows.width, selection.term_states)
        return BeamUpdate(after, pool, continued.parents, ended_BK, status_B, selection.ambiguous)

    def _select(self, live: LiveHypotheses, sequences: Sequence[int], rows: RowLengths, logs: Tensor,
                penalty: Tensor | None, topk: TopKFunction) -> "BeamSelection":
        width, ends = live.totals.shape[1], self.request.ends
        # Of one hypothesis, at most all end tokens and as many others as there are beams can matter.
        considered = width + len(ends)
        if self.terms is None:
            found = select_of_rows(live.totals, logs, width, ends) if topk is quick_topk and penalty is None else None
            if found is not None:
                return found
            candidates, ambiguous = Candidates.of(live.totals, logs, considered, topk, penalty)
            return select_candidates(candidates, self.request.is_end(candidates.tokens, logs.shape[-1]), width,
                                     ambiguous)
        terms = [self.terms[self.request.prompt_of(sequence)] for sequence in sequences]
        left = (rows.max_lengths - rows.lengths - 1).tolist()
        return select_with_terms(live, logs, considered, topk, penalty, terms, left, self.request)

    def _scores(self, live: LiveHypotheses, length: Tensor) -> Tensor:
        scores = self.length_penalty.score(live.totals, length)
        return scores if self.coverage is None else scores + self.coverage.score(live.coverage)


def total_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which log-probabilities are added up: float64 on every device that has it."""
    return torch.float32 if device.type == "mps" else torch.float64


class BeamSelection(NamedTuple):
    """Which candidates of each row end and which continue."""

    ended: Candidates
    """(B, K): those that end and enter the pool; totals of −∞ elsewhere."""
    continued: Candidates
    """(B, K): those that continue, the most probable first; totals of −∞ where there are fewer."""
    term_states: Tensor | None
    """(B, K): the states of the term automaton for those that continue."""
    invalid: Tensor
    """(B,): whether the model gave NaN."""
    ambiguous: Tensor
    """A bool: whether the order of equal candidates is unknown."""


def select_candidates(candidates: Candidates, is_end: Tensor, count: int, ambiguous: Tensor) -> BeamSelection:
    """Those among the best `count` that end, and the best `count` of the others; `is_end` is (B, C)."""
    best = candidates.first(count)
    ended = replace(best, totals=best.totals.masked_fill(~is_end[:, :count], -torch.inf))
    return BeamSelection(ended, candidates.without(is_end, count), None, _has_nan(candidates), ambiguous)


def select_of_rows(totals: Tensor, logs: Tensor, count: int, ends: Sequence[int]) -> BeamSelection | None:
    """Select among the continuations of all hypotheses of a row together; None where that is not faster.

    It is faster on a CPU. End tokens are compared apart from the others, so that fewer others need to be found.

    Args:
        totals: (B, K).
        logs: the log-probabilities (B, K, V).
        ends: the end tokens.
    """
    if logs.device.type != "cpu":
        return None
    check_vocabulary("end", ends, logs.shape[-1])
    ends_E = torch.tensor([*ends], dtype=torch.long)
    end_logs_BKE = logs.index_select(-1, ends_E)
    logs.index_fill_(-1, ends_E, -torch.inf)
    found = Candidates.of_rows(totals, logs, count)
    logs.index_copy_(-1, ends_E, end_logs_BKE)
    if found is None:
        return None
    continued, ambiguous = found
    totals_BC, order_BC = (part[:, :count] for part in (totals.unsqueeze(-1) + end_logs_BKE).flatten(1).sort(
        -1, descending=True))
    differences_BCK = continued.totals.unsqueeze(1) - totals_BC.unsqueeze(-1)
    neighbours = (totals_BC[:, 1:] == totals_BC[:, :-1]) & (totals_BC[:, 1:] > -torch.inf)
    ambiguous = ambiguous | (differences_BCK == 0).any() | neighbours.any()
    ranks_BC = (differences_BCK > 0).sum(-1) + torch.arange(totals_BC.shape[1])
    ended = Candidates(totals_BC.masked_fill(ranks_BC >= count, -torch.inf),
                       order_BC.div(max(1, len(ends)), rounding_mode="floor"),
                       ends_E[order_BC.remainder(max(1, len(ends)))], end_logs_BKE.flatten(1).gather(1, order_BC))
    return BeamSelection(ended, continued, None, _has_nan(continued), ambiguous)


def select_with_terms(live: LiveHypotheses, logs: Tensor, considered: int, topk: TopKFunction, penalty: Tensor | None,
                      terms: Sequence[TermAutomaton], left: Sequence[int], request: SearchRequest) -> BeamSelection:
    """The same for rows with terms, `left` tokens before the maximum length after this one. It waits for the device.

    Every token that advances a term is a candidate. A token that would leave too little room for the missing terms is
    not, and an end token only if no term is missing. Those that continue are divided among the banks; those that end
    are those among the best K candidates that miss no term.
    """
    check_term_vocabulary(terms, logs.shape[-1])
    count, states = live.totals.shape[1], live.term_states.tolist()
    candidates, ambiguous = Candidates.of(live.totals, logs, considered, topk, penalty,
                                          _wanted_tokens(terms, states).to(logs.device))
    is_end = request.is_end(candidates.tokens, logs.shape[-1]).tolist()
    parts = (part.tolist() for part in (candidates.totals, candidates.parents, candidates.tokens))
    ended, continued, reached = list[list[int]](), list[list[int]](), list[list[int]]()
    for row, (totals, parents, tokens) in enumerate(zip(*parts, strict=True)):
        automaton, complete = terms[row], list[int]()
        possible = list[tuple[int, int]]()  # index of a candidate, state
        for place, (total, parent, token) in enumerate(zip(totals, parents, tokens, strict=True)):
            state = states[row][parent]
            if not total > -math.inf:
                continue
            if not is_end[row][place]:
                state = automaton.next_state(state, token)
                if automaton.needed(state) <= left[row]:
                    possible.append((place, state))
            if automaton.needed(state) == 0:
                complete.append(place)
        kept = [possible[way] for way in allocate_beams([automaton.needed(state) for _, state in possible], count)]
        ended.append([place for place in complete[:count] if is_end[row][place]])
        continued.append([place for place, _ in kept])
        reached.append([state for _, state in kept])
    device = logs.device
    return BeamSelection(candidates.select(*_padded_index(ended, count, device)),
                         candidates.select(*_padded_index(continued, count, device)),
                         _padded_index(reached, count, device)[0], _has_nan(candidates), ambiguous)


def _wanted_tokens(terms: Sequence[TermAutomaton], states: Sequence[Sequence[int]]) -> Tensor:
    """(B, K, W): the tokens that advance a term of each hypothesis, padded with −1."""
    wanted = [[automaton.wanted(state) for state in row] for automaton, row in zip(terms, states, strict=True)]
    most = max((len(tokens) for row in wanted for tokens in row), default=0)
    return torch.tensor([[tokens + [-1] * (most - len(tokens)) for tokens in row] for row in wanted], dtype=torch.long)


def _padded_index(places: Sequence[Sequence[int]], count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The places of each row as (B, count), and which entries are padding."""
    padded = torch.tensor([[*row, *[-1] * (count - len(row))] for row in places], dtype=torch.long).to(device)
    return padded.clamp(min=0), padded < 0


def _has_nan(candidates: Candidates) -> Tensor:
    """(B,): NaN is sorted to the front."""
    return candidates.totals[:, 0].isnan()


def _interleave_groups(groups: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
    """The best of every group by score, then the second of every group; truncated ones last, without duplicates."""
    ranks = (sorted((one for one in rank if one is not None), key=lambda one: -one.score)
             for rank in zip_longest(*groups))
    unique = dict[tuple[tuple[int, ...], int | None], Hypothesis]()
    for one in chain.from_iterable(ranks):
        unique.setdefault((tuple(one.ids), one.end), one)
    return sorted(unique.values(), key=lambda one: one.truncated)
