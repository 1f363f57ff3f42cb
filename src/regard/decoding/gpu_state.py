"""The state of a search on a GPU, in tensors that stay in place, so that a step can be a CUDA graph.

    state = search_state(search, rows, capacity, logits)   storage for searches of this kind
    state.begin(sequences, prompts, search)                start with sequences that have no tokens,
    state.clear()                                          the part of it that is captured
    state.load(batch, search)                              start with an ordinary batch
    state.take(other, slots)                               start with sequences of another state of this kind
    state.step(logits)                                     captured: one step of the search
    state.poll()                                           which sequences were running one step ago; `poll_now` waits
    state.results(slots, search)                           the results of finished sequences
    state.batch(slots)                                     an ordinary batch

A step never reads a number from the device, and a finished row stays as it is. So the next step is launched before the
result of the last one is known: the device never waits for Python, at the price of one step too many. Generated tokens
are kept as back pointers (see `regard.kernels.decoding`): kernels follow them for batches that continue, NumPy follows
them for results while the device works on. The kernels are written in Triton; `TorchKernels` do the same where Triton
is missing or a search has too many beams for them. `why_no_gpu_state` says which searches have no such state. This
module knows neither models nor when sequences enter and leave.

Legend: B rows (one for each sequence), K hypotheses of each, R = B·K, M tokens of each, P places of a pool, T token
positions, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.decoding.beam import BeamSearch, select_candidates
from regard.decoding.beam_state import (
    BeamBatch,
    Candidates,
    HypothesisPool,
    LiveHypotheses,
    exact_topk,
    make_hypothesis,
)
from regard.decoding.constraints import (
    Constraint,
    ForbiddenTokens,
    MinLength,
    NoRepeatNgram,
    Prefixes,
    check_vocabulary,
)
from regard.decoding.cuda_graph import AsyncReadback, HostMirror
from regard.decoding.request import FINISHED, INVALID, RUNNING, TRUNCATED, Hypothesis
from regard.decoding.sampling import TokenBatch, TokenSearch, most_probable, token_status
from regard.decoding.scoring import MeanLengthPenalty, NoLengthPenalty, PowerLengthPenalty
from regard.kernels import launch
from regard.kernels.decoding_buffers import (
    MAX_BEAMS,
    MAX_CANDIDATES,
    STATUSES,
    BackPointers,
    PoolBuffers,
    RowStatus,
    TopTokens,
)

NEVER_ALLOWED = 2**31 - 1
"""The minimum length before a token that is forbidden."""

assert [*STATUSES] == [RUNNING, FINISHED, TRUNCATED, INVALID], "the kernels use the same numbers"


def why_no_gpu_state(search: object) -> str | None:
    """Why a search has no state on a GPU; None if it has."""
    if isinstance(search, TokenSearch):
        if search.choose is not most_probable:
            return "the search samples tokens"
    elif type(search) is not BeamSearch:
        return "the search is neither greedy nor a beam search"
    elif (search.groups, search.coverage, search.terms) != (1, None, None):
        return "the search has beam groups, a coverage penalty or required terms"
    elif type(search.length_penalty) not in (NoLengthPenalty, MeanLengthPenalty, PowerLengthPenalty):
        return "the search has a custom length penalty"
    if not all(type(one) in (ForbiddenTokens, MinLength, NoRepeatNgram) for one in search.request.constraints):
        return "the search has constraints other than forbidden tokens, a minimum length and no-repeat n-grams"
    return None


def search_kind(search: Any) -> tuple[Any, ...]:
    """A hashable key: searches with equal keys can share CUDA graphs."""
    common = (kernels_for(search).__name__, *search.request.ends, *map(_constraint_kind, search.request.constraints))
    if isinstance(search, TokenSearch):
        return ("greedy", *common)
    penalty = search.length_penalty
    return ("beam", search.beams, search.nbest, type(penalty), getattr(penalty, "alpha", None), *common)


def _constraint_kind(constraint: Constraint) -> tuple[Any, ...]:
    if isinstance(constraint, ForbiddenTokens):
        return (ForbiddenTokens, *constraint.ids)
    if isinstance(constraint, MinLength):
        return (MinLength, constraint.min_length, *constraint.forbidden.ids)
    assert isinstance(constraint, NoRepeatNgram)
    return NoRepeatNgram, constraint.size


def kernels_for(search: Any) -> Any:
    """The Triton kernels, or `TorchKernels` where these cannot run the search."""
    candidates = search.width * (search.width + len(search.request.ends))
    too_wide = isinstance(search, BeamSearch) and (search.width > MAX_BEAMS or candidates > MAX_CANDIDATES)
    if too_wide or launch.why_not(search.request.device) is not None:
        return TorchKernels
    from regard.kernels import decoding  # imports Triton

    return decoding


def search_state(search: Any, rows: int, capacity: int, logits: Tensor) -> "SearchState":
    """Storage for a search of a model whose logits are these, (R, V)."""
    kind = BeamState if isinstance(search, BeamSearch) else GreedyState
    return kind(search, rows, capacity, logits)


class SearchState(ABC):
    """What greedy search and beam search share.

    Args:
        rows: the number of sequences at a time, B.
        capacity: the largest number of tokens of a hypothesis, T.
        top: how many of the most probable tokens of a hypothesis a step considers, M.
    """

    dtype: torch.dtype
    """The dtype of log-probabilities."""
    mirror: HostMirror

    def __init__(self, search: Any, rows: int, capacity: int, top: int, logits: Tensor) -> None:
        request, width = search.request, search.width
        self.request, self.sequences, self.width, self.steps = request, list[int](), width, 0
        self.kernels = kernels_for(search)
        vocabulary, device = logits.shape[1], logits.device
        check_vocabulary("end", request.ends, vocabulary)
        with torch.inference_mode(False):
            number = torch.zeros(rows, dtype=torch.int32, device=device)
            self.status = RowStatus(number.clone(), number.clone(), number.clone())
            self.ends = torch.tensor(request.ends, dtype=torch.int32, device=device)
            self.best = TopTokens.allocate(logits, min(top, vocabulary))
            self.parents = torch.arange(rows * width, dtype=torch.int32, device=device)
            self.tokens = torch.zeros(rows * width, dtype=torch.long, device=device)
            tokens = torch.zeros(rows, width, capacity, dtype=torch.int32, device=device)
            self.pointers = BackPointers(tokens, torch.zeros_like(tokens, dtype=self.dtype), tokens.clone())
            self.ngrams = [one for one in request.constraints
                           if isinstance(one, NoRepeatNgram) and one.size <= capacity]
            self.common_min_lengths = _min_lengths(request.constraints, vocabulary, device)
            self.min_lengths = self.common_min_lengths
            if self.ngrams:
                self.min_lengths = torch.zeros(rows * width, vocabulary, dtype=torch.int32, device=device)
            # What `begin` passes to `clear`: maximum lengths, statuses and first tokens, on the device and on the host.
            self.given = torch.zeros(3, rows, dtype=torch.int32, device=device)
            self.staged = torch.zeros(3, rows, dtype=torch.int32, pin_memory=device.type == "cuda")
            self.readback = AsyncReadback(self.status.status)
            self.copies_back = 0  # how many copies to the host before the last one the results are as of

    @property
    def bytes(self) -> int:
        """The memory of the largest tensors."""
        return self.min_lengths.nbytes if self.ngrams and self.min_lengths is not None else 0

    def begin(self, sequences: Sequence[int], prompts: Sequence[int], search: Any) -> None:
        """Start with sequences that have no tokens, each with the token that it reads first; then call `clear`."""
        rows, count = len(self.status.lengths), self._register(sequences, [0] * len(sequences), search)
        max_lengths, nothing = self._max_lengths(sequences), [0] * (rows - count)
        status = [RUNNING] * count + [FINISHED] * (rows - count)
        self.staged.copy_(torch.tensor([[*max_lengths, *nothing], status, [*prompts, *nothing]], dtype=torch.int32))
        self.given.copy_(self.staged, non_blocking=True)

    def clear(self) -> None:
        """Remove all tokens, and take over what `begin` was given."""
        max_lengths, status, prompts = self.given
        self.status.lengths.zero_()
        self.status.max_lengths.copy_(max_lengths)
        self.status.status.copy_(status)
        self.tokens.view(-1, self.width).copy_(prompts.unsqueeze(-1))

    def hold_all(self) -> None:
        """Start without sequences; `put` adds some, each under the number of its slot."""
        self.sequences, self.steps, self.max_steps = list(range(len(self.status.status))), 0, 0
        self.status.status.fill_(FINISHED)

    def put(self, slots: Tensor, max_lengths: Sequence[int], tokens: Sequence[int]) -> None:
        """Replace the sequences in these slots by others without tokens, which read these tokens first.

        They are held, so that the search does not read logits that they do not have yet: after a step of the decoder,
        `resume` lets them run.
        """
        given = torch.tensor([[*max_lengths], [*tokens]]).to(slots.device, non_blocking=True)
        self.status.lengths[slots] = 0
        self.status.max_lengths[slots] = given[0].int()
        self.status.status[slots] = FINISHED
        self.tokens.view(-1, self.width)[slots] = given[1].unsqueeze(-1)
        rows = slots.unsqueeze(-1) * self.width + torch.arange(self.width, device=slots.device)
        self.parents.view(-1, self.width)[slots] = rows.int()

    def resume(self, slots: Tensor) -> None:
        """Let the sequences in these slots run."""
        self.status.status[slots] = RUNNING

    def stop(self, slots: Tensor) -> None:
        """End the sequences in these slots; they have no results."""
        self.status.status[slots] = FINISHED

    @abstractmethod
    def load(self, batch: Any, search: Any) -> None:
        """Start with a batch of running sequences."""

    def take(self, other: Any, slots: Sequence[int]) -> None:
        """Start with the running sequences in these slots of another state."""
        count = len(slots)
        self.sequences, self.request = [other.sequences[slot] for slot in slots], other.request
        self.steps, self.max_steps = 0, other.max_steps - other.steps
        index = torch.tensor(slots, dtype=torch.long).to(self.ends.device, non_blocking=True)
        for mine, theirs in zip(self._row_tensors(), other._row_tensors(), strict=True):
            mine[:count] = theirs[index]
        self.status.status[count:] = FINISHED

    @abstractmethod
    def step(self, logits: Tensor) -> tuple[Tensor | None, Tensor]:
        """One step from logits (R, V): the row that each hypothesis continues, and the token that it reads."""

    @abstractmethod
    def batch(self, slots: Sequence[int]) -> Any:
        """The sequences in these slots as an ordinary batch."""

    @abstractmethod
    def results(self, slots: Sequence[int], search: Any) -> list[tuple[int, Any]]:
        """The results of the finished sequences in these slots, with their numbers."""

    def poll(self) -> list[bool] | None:
        """After a step: which slots were running before it; None if that was the first step.

        After the last step that the maximum lengths allow, which are running now.
        """
        self.steps += 1
        self.readback.send()
        if self.steps == 1 and self.steps < self.max_steps:
            return None
        return self._read_status(0 if self.steps >= self.max_steps else 1)

    def poll_now(self) -> list[bool]:
        """Which slots are running after the last step."""
        return self._read_status(0)

    def read_status(self, back: int) -> list[int]:
        """The status of each slot after the last copy to the host but `back`; `results` are then as of that copy."""
        self.copies_back, self.steps = back, max(1, self.steps)
        return self.readback.read(back)[:len(self.sequences)]

    def _read_status(self, back: int) -> list[bool]:
        status = self.read_status(back)
        if INVALID in status:
            slot = status.index(INVALID)
            raise self.request.invalid_logits(self.sequences[slot], int(self.status.lengths[slot]))
        return [one == RUNNING for one in status]

    def _register(self, sequences: Sequence[int], lengths: Sequence[int], search: Any) -> int:
        """Set the sequences, their request and the largest number of steps; returns how many sequences there are."""
        self.sequences, self.request, self.steps = [*sequences], search.request, 0
        left = (most - length for most, length in zip(self._max_lengths(sequences), lengths, strict=True))
        self.max_steps = max(left) + 1
        return len(sequences)

    def _max_lengths(self, sequences: Sequence[int]) -> list[int]:
        return [self.request.max_length_of(sequence) for sequence in sequences]

    def _load_status(self, batch: Any, search: Any) -> int:
        """Copy the lengths of a batch to the device; returns how many sequences there are."""
        count, rows = self._register(batch.sequences, batch.lengths, search), len(self.status.lengths)
        padded = [[*some, *[0] * (rows - count)] for some in (batch.lengths, self._max_lengths(batch.sequences))]
        padded.append([RUNNING] * count + [FINISHED] * (rows - count))
        given = torch.tensor(padded, dtype=torch.int32).to(self.ends.device)
        for mine, theirs in zip(self.status, given, strict=True):
            mine.copy_(theirs)
        return count

    def _row_tensors(self) -> list[Tensor]:
        """All tensors with a row for each sequence, (B, ...)."""
        return [*self.status, *self.pointers, self.tokens.view(-1, self.width)]

    def _read_mirror(self, slots: Sequence[int]) -> list[Tensor]:
        """The mirrored rows of these slots, as they were when the status was last read."""
        shown = self.mirror.read(len(self.sequences), self.readback.event(self.copies_back) if self.steps else None)
        return [torch.from_numpy(part.numpy()[[*slots]]) for part in shown]  # torch would wake all its threads

    def _find_top_tokens(self, logits: Tensor) -> None:
        if self.ngrams:
            self._forbid_ngrams()
        self.kernels.find_top_tokens(logits, self.min_lengths, self.status.lengths, self.width, self.best)

    def _forbid_ngrams(self) -> None:
        """Write the minimum length before each token of each hypothesis: repeated n-grams are never allowed."""
        assert self.min_lengths is not None
        if self.common_min_lengths is None:
            self.min_lengths.zero_()
        else:
            self.min_lengths.copy_(self.common_min_lengths.expand_as(self.min_lengths))
        lengths_R = self.status.lengths.long().unsqueeze(-1).expand(-1, self.width).reshape(-1)
        none_R = torch.zeros_like(lengths_R)
        prefixes = Prefixes(self._prefix_ids(), none_R, lengths_R, none_R)
        for ngram in self.ngrams:
            tokens_RW, repeated_RW = ngram.completions(prefixes)
            self.min_lengths.scatter_reduce_(-1, tokens_RW, repeated_RW.int() * NEVER_ALLOWED, "amax")

    @abstractmethod
    def _prefix_ids(self) -> Tensor:
        """(R, T): the tokens of each hypothesis."""


class GreedyState(SearchState):
    """The state of a greedy search."""

    def __init__(self, search: TokenSearch, rows: int, capacity: int, logits: Tensor) -> None:
        self.dtype = torch.promote_types(logits.dtype, torch.float32)
        super().__init__(search, rows, capacity, 1, logits)
        self.mirror = HostMirror([self.status.lengths, self.status.status, *self.pointers[:2]])

    def load(self, batch: TokenBatch, search: TokenSearch) -> None:
        count, width = self._load_status(batch, search), batch.ids.shape[1]
        self.tokens[:count] = batch.tokens
        if width:
            self.pointers.tokens[:count, 0, :width] = batch.ids.int()
            self.pointers.logs[:count, 0, :width] = batch.logs

    def step(self, logits: Tensor) -> tuple[Tensor | None, Tensor]:
        self._find_top_tokens(logits)
        self.kernels.greedy_step(self.best, self.ends, self.status, self.tokens, self.pointers)
        return None, self.tokens

    def batch(self, slots: Sequence[int]) -> TokenBatch:
        index = torch.tensor(slots, dtype=torch.long, device=self.ends.device)
        lengths, statuses = torch.stack([self.status.lengths[index], self.status.status[index]]).tolist()
        width = max(lengths, default=0)
        ids, logs = self.pointers.tokens[index, 0, :width].long(), self.pointers.logs[index, 0, :width]
        return TokenBatch(ids, logs, [self.sequences[slot] for slot in slots], lengths, statuses, self.tokens[index])

    def results(self, slots: Sequence[int], search: TokenSearch) -> list[tuple[int, Hypothesis]]:
        lengths, statuses, ids, logs = self._read_mirror(slots)
        width = int(lengths.max())
        sequences = [self.sequences[slot] for slot in slots]
        return search.results(TokenBatch(ids[:, 0, :width], logs[:, 0, :width], sequences, lengths.tolist(),
                                         statuses.tolist(), ids[:, 0, 0]))

    def _prefix_ids(self) -> Tensor:
        return self.pointers.tokens[:, 0].long()


class BeamState(SearchState):
    """The state of a beam search."""

    dtype = torch.float64

    def __init__(self, search: BeamSearch, rows: int, capacity: int, logits: Tensor) -> None:
        super().__init__(search, rows, capacity, search.beams + len(search.request.ends), logits)
        penalty, device = search.length_penalty, logits.device
        assert isinstance(penalty, NoLengthPenalty | MeanLengthPenalty | PowerLengthPenalty)
        with torch.inference_mode(False):
            self.totals = torch.zeros(rows, search.beams, dtype=self.dtype, device=device)
            self.divisors = penalty.divisor(torch.arange(capacity + 2, dtype=self.dtype, device=device))
            scores = torch.zeros(rows, search.nbest, dtype=self.dtype, device=device)
            number = scores.int()
            self.pool = PoolBuffers(scores, number, number.clone(), number.clone(), number.clone(), scores.clone())
            self.loaded_ids = torch.zeros(rows, search.nbest, capacity, dtype=torch.long, device=device)
            self.loaded_logs = torch.zeros_like(self.loaded_ids, dtype=self.dtype)
            self.rows = torch.arange(rows, device=device)
            self.beams = torch.arange(search.beams, dtype=torch.int32, device=device).unsqueeze(0)
            self.loaded_beams = (-1 - torch.arange(search.nbest, dtype=torch.int32, device=device)).unsqueeze(0)
            self.mirror = HostMirror([*self.pointers, *self.pool])

    def clear(self) -> None:
        super().clear()
        self.totals.fill_(-torch.inf)
        self.totals[:, 0].zero_()
        self.pool.scores.fill_(-torch.inf)
        self.pool.truncated.fill_(1)
        self.pool.lengths.zero_()

    def put(self, slots: Tensor, max_lengths: Sequence[int], tokens: Sequence[int]) -> None:
        super().put(slots, max_lengths, tokens)
        self.totals[slots] = -torch.inf
        self.totals[slots, 0] = 0.0
        self.pool.scores[slots] = -torch.inf
        self.pool.truncated[slots] = 1
        self.pool.lengths[slots] = 0

    def load(self, batch: BeamBatch, search: BeamSearch) -> None:
        count = self._load_status(batch, search)
        self.totals[:count], self.tokens[:count * self.width] = batch.live.totals, batch.tokens
        width, longest = batch.live.ids.shape[-1], batch.pool.ids.shape[-1]
        if width:
            self.pointers.tokens[:count, :, :width] = batch.live.ids.int()
            self.pointers.logs[:count, :, :width] = batch.live.logs
            self.pointers.parents[:count, :, :width] = self.beams.unsqueeze(-1)
        self.pool.scores[:count], self.pool.truncated[:count] = batch.pool.scores, batch.pool.truncated.int()
        self.pool.lengths[:count], self.pool.beams[:count] = batch.pool.lengths.int(), self.loaded_beams
        if longest:
            self.loaded_ids[:count, :, :longest] = batch.pool.ids
            self.loaded_logs[:count, :, :longest] = batch.pool.logs

    def step(self, logits: Tensor) -> tuple[Tensor | None, Tensor]:
        self._find_top_tokens(logits)
        self.kernels.beam_step(self.best, self.ends, self.totals, self.status, self.parents, self.tokens, self.divisors,
                               self.pointers, self.pool)
        return self.parents, self.tokens

    def batch(self, slots: Sequence[int]) -> BeamBatch:
        index = torch.tensor(slots, dtype=torch.long, device=self.ends.device)
        lengths_B, pool = self.status.lengths[index], PoolBuffers(*(part[index] for part in self.pool))
        lengths, longest = lengths_B.tolist(), max(1, int(pool.lengths.max()))
        return BeamBatch([self.sequences[slot] for slot in slots], lengths, self._live(index, lengths_B, max(lengths)),
                         self._pool(index, pool, longest))

    def results(self, slots: Sequence[int], search: BeamSearch) -> list[tuple[int, list[Hypothesis]]]:
        def loaded(row: int, place: int, length: int) -> tuple[list[int], list[float]]:
            return (self.loaded_ids[slots[row], place, :length].tolist(),
                    self.loaded_logs[slots[row], place, :length].tolist())

        parts = self._read_mirror(slots)
        found = read_pool(BackPointers(*parts[:3]), PoolBuffers(*parts[3:]), loaded)
        return [(self.sequences[slot], several) for slot, several in zip(slots, found, strict=True)]

    def _row_tensors(self) -> list[Tensor]:
        return [*super()._row_tensors(), self.totals, *self.pool, self.loaded_ids, self.loaded_logs]

    def _prefix_ids(self) -> Tensor:
        beams_BK = self.beams.expand(len(self.rows), -1)
        lengths_BK = self.status.lengths.unsqueeze(-1).expand_as(beams_BK)
        ids, _ = self.kernels.follow_back_pointers(self.pointers, self.rows, beams_BK, lengths_BK,
                                                   self.pointers.tokens.shape[-1])
        return ids.flatten(0, 1)

    def _live(self, index: Tensor, lengths: Tensor, longest: int) -> LiveHypotheses:
        B, K = len(index), self.width
        ids, logs = self.kernels.follow_back_pointers(self.pointers, index, self.beams.expand(B, K),
                                                      lengths.unsqueeze(-1).expand(B, K), longest)
        totals = self.totals[index]
        return LiveHypotheses(totals, ids, logs, self.tokens.view(-1, K)[index],
                              torch.zeros_like(totals, dtype=torch.long), totals.new_zeros(B, K, 0))

    def _pool(self, index: Tensor, pool: PoolBuffers, longest: int) -> HypothesisPool:
        """Loaded entries as they were loaded, all others by their back pointers, followed by the end token."""
        here = pool.beams >= 0
        ended = here & (pool.truncated == 0)
        lengths = pool.lengths - ended.int()  # without the end token
        ids, logs = self.kernels.follow_back_pointers(self.pointers, index, pool.beams, lengths.clamp(min=0), longest)
        places = torch.arange(longest, device=index.device)
        at_end = ended.unsqueeze(-1) & (places == lengths.unsqueeze(-1))
        ids = torch.where(at_end, pool.tokens.unsqueeze(-1).long(), ids)
        logs = torch.where(at_end, pool.logs.unsqueeze(-1), logs)
        loaded = (-1 - pool.beams).clamp(min=0).long().unsqueeze(-1).expand(-1, -1, longest)
        is_here = here.unsqueeze(-1)
        ids = torch.where(is_here, ids, self.loaded_ids[index, :, :longest].gather(1, loaded))
        logs = torch.where(is_here, logs, self.loaded_logs[index, :, :longest].gather(1, loaded))
        return HypothesisPool(pool.scores, pool.truncated.bool(), pool.lengths.long(), ids, logs)


class TorchKernels:
    """The functions of `regard.kernels.decoding` by operations of torch, on the same tensors."""

    @staticmethod
    def find_top_tokens(logits: Tensor, min_lengths: Tensor | None, lengths: Tensor, width: int,
                        best: TopTokens) -> None:
        logs = logits.log_softmax(-1, dtype=best.values.dtype)
        if min_lengths is not None:
            lengths_R1 = lengths.unsqueeze(-1).expand(-1, width).reshape(-1, 1)
            logs = logs.masked_fill(lengths_R1 < min_lengths, -torch.inf)
        values, tokens, _ = exact_topk(logs, best.values.shape[1])
        best.values.copy_(values)
        best.tokens.copy_(tokens.clamp(max=logits.shape[1] - 1))  # NaN has no place

    @staticmethod
    def greedy_step(best: TopTokens, ends: Tensor, status: RowStatus, last: Tensor, pointers: BackPointers) -> None:
        log_B, token_B = best.values[:, 0], best.tokens[:, 0]
        new_B = token_status(log_B, (token_B.unsqueeze(-1) == ends).any(-1))
        new_B = torch.where((new_B == RUNNING) & (status.lengths >= status.max_lengths), TRUNCATED, new_B)
        running_B = status.status == RUNNING
        writes_B = running_B & (new_B != TRUNCATED) & (new_B != INVALID)
        _write_position(pointers[:2], (token_B.unsqueeze(-1), log_B.unsqueeze(-1)), status.lengths, writes_B)
        last.copy_(torch.where(writes_B, token_B, last))
        status.lengths.add_(writes_B)
        status.status.copy_(torch.where(running_B, new_B, status.status))

    @staticmethod
    def beam_step(best: TopTokens, ends: Tensor, totals: Tensor, status: RowStatus, parents: Tensor, last: Tensor,
                  divisors: Tensor, pointers: BackPointers, pool: PoolBuffers) -> None:
        """One step of a beam search from the best tokens (R, M); see `regard.decoding.beam.BeamSearch`."""
        (B, K), lengths, max_lengths = totals.shape, status.lengths.long(), status.max_lengths.long()
        values_BKM = best.values.view(B, K, -1).to(totals.dtype)
        totals_BC = (totals.unsqueeze(-1) + values_BKM).flatten(1)
        totals_BC, order_BC = totals_BC.sort(dim=-1, descending=True, stable=True)
        candidates = Candidates(totals_BC, order_BC // values_BKM.shape[-1],
                                best.tokens.view(B, -1).long().gather(-1, order_BC),
                                values_BKM.flatten(1).gather(-1, order_BC))
        is_end_BC = (candidates.tokens.unsqueeze(-1) == ends).any(-1)
        ended, continued, _, invalid_B, _ = select_candidates(candidates, is_end_BC, K, is_end_BC)
        # A pool whose "tokens" are the hypothesis and the end token.
        after = HypothesisPool(pool.scores, pool.truncated.bool(), pool.lengths.long(),
                               torch.stack([pool.beams, pool.tokens], -1).long(), _twice(pool.logs))
        after = after.add_finished(torch.stack([ended.parents, ended.tokens], -1), _twice(ended.logs),
                                   lengths + 1, ended.totals / divisors[lengths + 1].unsqueeze(-1))
        best_B = continued.totals.amax(-1)
        status_B = torch.where(after.threshold >= best_B / divisors[max_lengths + 1], FINISHED, RUNNING)
        truncated_B = (max_lengths == lengths) | (best_B == -torch.inf)
        status_B = torch.where(invalid_B, INVALID, torch.where(truncated_B, TRUNCATED, status_B))
        beams_BK = torch.arange(K, device=totals.device).expand(B, K)
        ended_BK = ((ended.parents.unsqueeze(-1) == beams_BK[0]) & (ended.totals > -torch.inf).unsqueeze(-1)).any(1)
        scores_BK = totals / divisors[lengths].unsqueeze(-1)
        after = after.add_truncated(torch.stack([beams_BK, torch.zeros_like(beams_BK)], -1),
                                    _twice(torch.zeros_like(totals)), lengths,
                                    scores_BK.masked_fill(ended_BK | ~truncated_B.unsqueeze(-1), -torch.inf))

        running_B = status.status == RUNNING
        writes_B1 = (running_B & ~invalid_B).unsqueeze(-1)
        parts = (after.scores, after.truncated, after.lengths, after.ids[..., 0], after.ids[..., 1], after.logs[..., 0])
        rows_B1 = torch.arange(B, device=totals.device).unsqueeze(-1)
        for mine, new in (*zip(pool, parts, strict=True), (totals, continued.totals),
                          (parents.view(B, K), continued.parents + K * rows_B1), (last.view(B, K), continued.tokens)):
            mine.copy_(torch.where(writes_B1, new, mine))
        _write_position(pointers, (continued.tokens, continued.logs, continued.parents), lengths, writes_B1.squeeze(-1))
        status.lengths.add_(running_B & (status_B == RUNNING))
        status.status.copy_(torch.where(running_B, status_B, status.status))

    @staticmethod
    def follow_back_pointers(pointers: BackPointers, rows: Tensor, beams: Tensor, lengths: Tensor,
                             longest: int) -> tuple[Tensor, Tensor]:
        tokens, logs, parents = (part[rows, :, :longest] for part in pointers)
        found = logs.new_zeros(*beams.shape, longest)
        ids, beam = found.long(), beams.long().clamp(min=0)
        for place in range(longest - 1, -1, -1):
            there = (place < lengths) & (beams >= 0)
            for mine, part in ((ids, tokens), (found, logs)):
                mine[..., place] = torch.where(there, part[..., place].gather(1, beam), mine[..., place])
            beam = torch.where(there, parents[..., place].gather(1, beam).long(), beam)
        return ids, found


def _twice(part: Tensor) -> Tensor:
    """(B, P) -> (B, P, 2)."""
    return part.unsqueeze(-1).expand(-1, -1, 2)


def _write_position(storage: Sequence[Tensor], values: Sequence[Tensor], lengths: Tensor, writes: Tensor) -> None:
    """Write values (B, K) at the positions `lengths` (B,) of storage (B, K, T), in rows where `writes` (B,) is True."""
    at = lengths.long().clamp(max=storage[0].shape[-1] - 1).view(-1, 1, 1).expand(-1, storage[0].shape[1], 1)
    for mine, new in zip(storage, values, strict=True):
        mine.scatter_(-1, at, torch.where(writes.view(-1, 1, 1), new.unsqueeze(-1).to(mine.dtype), mine.gather(-1, at)))


def _min_lengths(constraints: Sequence[Constraint], vocabulary: int, device: torch.device) -> Tensor | None:
    """(V,), int32: the number of tokens that must come before each token; None if no constraint says so."""
    least = torch.zeros(vocabulary, dtype=torch.int32)
    for constraint in constraints:
        if isinstance(constraint, NoRepeatNgram):
            continue
        forbidden, count = constraint, NEVER_ALLOWED
        if isinstance(constraint, MinLength):
            forbidden, count = constraint.forbidden, constraint.min_length
        assert isinstance(forbidden, ForbiddenTokens)
        check_vocabulary("ids", forbidden.ids, vocabulary)
        least[forbidden.ids] = least[forbidden.ids].clamp(min=count)
    return least.to(device) if least.any() else None


class PoolEntry(NamedTuple):
    """One place of a pool, in the order of `PoolBuffers`."""

    score: float
    truncated: int
    length: int
    beam: int
    token: int
    log: float

    @property
    def steps_back(self) -> int:
        """The number of tokens that back pointers lead to: without the end token, and none of a loaded entry."""
        return 0 if self.beam < 0 else self.length - (self.truncated == 0)


LoadedEntry = Callable[[int, int, int], tuple[list[int], list[float]]]
"""Row, place and length -> the tokens and log-probabilities of an entry that was loaded with a batch."""


def read_pool(pointers: BackPointers, pool: PoolBuffers, loaded: LoadedEntry) -> list[list[Hypothesis]]:
    """The hypotheses in the pool (B, P) of each row, from back pointers (B, K, T) on the host."""
    rows = [[PoolEntry(*one) for one in zip(*row, strict=True)]
            for row in zip(*(part.tolist() for part in pool), strict=True)]
    taken = [(row, one) for row, several in enumerate(rows) for one in several if one.score > -torch.inf]
    texts, found = _follow_on_host(pointers, taken), [list[Hypothesis]() for _ in rows]
    for (row, one), (ids, logs) in zip(taken, texts, strict=True):
        if one.beam < 0:
            ids, logs = loaded(row, -1 - one.beam, one.length)
        elif not one.truncated:
            ids, logs = [*ids, one.token], [*logs, one.log]
        found[row].append(make_hypothesis(one.score, bool(one.truncated), one.length, ids, logs))
    return found


def _follow_on_host(pointers: BackPointers,
                    taken: list[tuple[int, PoolEntry]]) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probabilities of entries in rows, without end tokens. NumPy wakes no threads."""
    rows, beams, lengths = (np.array(some, np.int64) for some in (
        [row for row, _ in taken], [one.beam for _, one in taken], [one.steps_back for _, one in taken]))
    longest = int(lengths.max(initial=0))
    tokens, logs, parents = (part[:, :, :longest].numpy() for part in pointers)
    ids = np.zeros((len(taken), longest), tokens.dtype)
    values = np.zeros_like(ids, logs.dtype)
    for place in range(longest - 1, -1, -1):
        there = np.flatnonzero(lengths > place)
        at = rows[there], beams[there], place
        ids[there, place], values[there, place], beams[there] = tokens[at], logs[at], parents[at]
    return [(line[:length], log[:length])
            for line, log, length in zip(ids.tolist(), values.tolist(), lengths.tolist(), strict=True)]
