"""The tree of a beam search: every prefix that it considered, which ones it kept, and which ones it dropped.

    recorder = TreeRecorder(search)                    in place of a `BeamSearch`
    run_search(model, memory, request, recorder)       the same results
    recorder.tree(0)                                   what the search for sequence 0 considered

A recorder passes every step on to the search. It computes what it keeps beside the search, from the same logits, and
changes no result. It costs a second log-softmax per step, so it is for inspecting a search, not for many sentences. A
prefix is identified by its tokens: if two groups of beams have the same prefix, it is one branch. The number of
branches is limited; the tree says how many it left out. This module knows ids, not texts.

Legend: B rows (each a group of a sequence), K live hypotheses of a row, C candidates of a row, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.checks import whole_number
from regard.decoding.beam import BeamSearch
from regard.decoding.beam_state import BeamBatch
from regard.decoding.constraints import Constraint
from regard.decoding.request import Hypothesis, LengthLimit, Prompts, SearchRequest
from regard.decoding.scheduler import SearchStep, run_search
from regard.decoding.scoring import LengthPenalty, as_length_penalty
from regard.models.contract import GenerativeModel, Memory

MAX_BRANCHES = 20_000
"""The maximum number of branches of a tree."""
MIN_CANDIDATES = 4
"""The minimum number of candidates of a row that are recorded per step; otherwise twice the number of beams."""
TokenPath = tuple[int, ...]


class TreeBranch(NamedTuple):
    """A prefix, represented by its last token."""

    parent: int
    """The index of the branch of the token before it; −1 for the first token."""
    token: int
    log_probability: float
    """The log-probability of the token."""
    total: float
    """The log-probability of all tokens up to it."""
    ended: bool
    """Whether the token is an end token and the search added the hypothesis to its pool."""
    kept: bool
    """Whether the search continued from it."""
    score: float | None = None
    """The score by which the search ranks it, if it ends a hypothesis."""


@dataclass(frozen=True)
class SearchTree:
    """The prefixes that one search considered."""

    branches: tuple[TreeBranch, ...]
    best: tuple[int, ...]
    """The last branches of the results, the best first."""
    left_out: int = 0
    """The number of branches beyond the maximum."""


@dataclass
class _TreeBuilder:
    """A tree under construction. `places` has the index of each branch by its tokens."""

    max_branches: int
    branches: list[TreeBranch] = field(default_factory=list)
    places: dict[TokenPath, int] = field(default_factory=dict)
    best: tuple[int, ...] = ()
    lost: set[int] = field(default_factory=set)
    """Hashes of the tokens of branches beyond the maximum: a branch may come more than once."""

    def add(self, path: TokenPath, log: float, total: float, ended: bool, kept: bool) -> None:
        """Add a prefix, or update one that another group has added."""
        place = self.places.get(path)
        if place is not None:
            old = self.branches[place]
            self.branches[place] = old._replace(ended=old.ended or ended, kept=old.kept or kept)
        elif len(self.branches) < self.max_branches and (len(path) == 1 or path[:-1] in self.places):
            self._append(path, log, total, ended, kept)
        else:
            self.lost.add(hash(path))

    def finish(self, hypotheses: Sequence[Hypothesis]) -> None:
        """Add the results, which are in the tree even beyond the maximum."""
        best = []
        for one in hypotheses:
            whole_path = (*one.ids, *([] if one.end is None else [one.end]))
            total = 0.0
            for count, log in enumerate(one.log_probabilities, 1):
                total += log
                path = whole_path[:count]
                if path not in self.places:
                    self.lost.discard(hash(path))
                    last = count == len(whole_path)
                    self._append(path, log, total, last and not one.truncated, not last)
            if whole_path:
                place = self.places[whole_path]
                self.branches[place] = self.branches[place]._replace(ended=not one.truncated, score=one.score)
                best.append(place)
        self.best = tuple(best)

    def _append(self, path: TokenPath, log: float, total: float, ended: bool, kept: bool) -> None:
        self.places[path] = len(self.branches)
        self.branches.append(TreeBranch(self.places.get(path[:-1], -1), path[-1], log, total, ended, kept))


class _TreeCandidates(NamedTuple):
    """Candidates of each row, (B, C) each, as lists."""

    totals: list[list[float]]
    parents: list[list[int]]
    tokens: list[list[int]]
    logs: list[list[float]]

    def row(self, index: int) -> Iterable[tuple[float, int, int, float]]:
        """The candidates of one row."""
        return zip(*(part[index] for part in self), strict=True)


class TreeRecorder:
    """A beam search that records what it considers: a `regard.decoding.scheduler.SearchStrategy`."""

    def __init__(self, search: BeamSearch, *, max_branches: int = MAX_BRANCHES) -> None:
        self.search, self.max_branches = search, whole_number("max_branches", max_branches, 1)
        self.builders: dict[int, _TreeBuilder] = {}

    @property
    def width(self) -> int:
        """The number of hypotheses of each sequence."""
        return self.search.width

    @property
    def needs_cross(self) -> bool:
        """Whether the search reads the cross-attention weights."""
        return self.search.needs_cross

    def start(self, sequences: Sequence[int], present: Tensor | None) -> BeamBatch:
        """The batch of the search."""
        for sequence in sequences:
            self.builders[sequence] = _TreeBuilder(self.max_branches)
        return self.search.start(sequences, present)

    def advance(self, batch: BeamBatch, logits: Tensor, cross: Tensor | None) -> SearchStep[BeamBatch]:
        """The step of the search."""
        candidates = self._candidates(batch, logits)
        step = self.search.advance(batch, logits, cross)
        self._record(batch, candidates, step)
        return step

    def results(self, batch: BeamBatch) -> list[tuple[int, list[Hypothesis]]]:
        """The results of the search."""
        found = self.search.results(batch)
        for sequence, hypotheses in found:
            self.builders[sequence].finish(hypotheses)
        return found

    def tree(self, sequence: int) -> SearchTree:
        """The tree of a sequence, complete when the search is over."""
        built = self.builders[sequence]
        return SearchTree(tuple(self._with_scores(built.branches)), built.best, len(built.lost))

    def _with_scores(self, branches: Sequence[TreeBranch]) -> list[TreeBranch]:
        """The branches, with the score of each that ends a hypothesis; a coverage penalty is known of results only."""
        lengths = list[int]()
        for branch in branches:
            lengths.append(1 if branch.parent < 0 else lengths[branch.parent] + 1)
        if self.search.coverage is not None:
            return list(branches)
        totals = torch.tensor([branch.total for branch in branches], dtype=torch.float64)
        scores = self.search.length_penalty.score(totals, torch.tensor(lengths, dtype=torch.float64)).tolist()
        return [branch._replace(score=score) if branch.ended and branch.score is None else branch
                for branch, score in zip(branches, scores, strict=True)]

    def _candidates(self, batch: BeamBatch, logits: Tensor) -> _TreeCandidates:
        """The best candidates of each row by their log-probability, the best first."""
        B, K, t = batch.live.ids.shape
        request = self.search.request
        prefixes = request.prefixes(batch.live.ids.view(B * K, t), batch.sequences, batch.lengths, self.width)
        logs_BKV = request.log_probabilities(logits, prefixes).view(B, K, -1)
        totals_BC = (batch.live.totals.unsqueeze(-1) + logs_BKV).flatten(1)
        count = min(totals_BC.shape[-1], max(MIN_CANDIDATES, 2 * K))
        best, places = totals_BC.topk(count, dim=-1)
        logs = logs_BKV.flatten(1).gather(-1, places)
        V = logs_BKV.shape[-1]
        return _TreeCandidates(best.tolist(), (places // V).tolist(), (places % V).tolist(), logs.tolist())

    def _record(self, before: BeamBatch, candidates: _TreeCandidates, step: SearchStep[BeamBatch]) -> None:
        """Add the candidates to the trees, and mark those that were kept."""
        K, groups = before.live.totals.shape[1], before.groups
        paths = [[tuple(ids[:before.lengths[row // groups]]) for ids in row_ids]
                 for row, row_ids in enumerate(before.live.ids.tolist())]
        live, ends = step.batch.live, set(self.search.request.ends)
        continued = torch.arange(live.totals.numel()) if step.parents is None else step.parents.flatten()
        origins, tokens, totals = continued.tolist(), live.tokens.flatten().tolist(), live.totals.flatten().tolist()
        logs = self._last_logs(step.batch)
        for slot, sequence in enumerate(before.sequences):
            tree, finished = self.builders[sequence], slot in step.finished
            for row in range(slot * groups, (slot + 1) * groups):
                for rank, (total, parent, token, log) in enumerate(candidates.row(row)):
                    if total > -torch.inf:
                        tree.add((*paths[row][parent], token), log, total, token in ends and rank < K, False)
                for at in range(row * K, (row + 1) * K):
                    if totals[at] > -torch.inf:
                        path = (*paths[origins[at] // K][origins[at] % K], tokens[at])
                        tree.add(path, logs[at], totals[at], False, not finished)

    def _last_logs(self, batch: BeamBatch) -> list[float]:
        """The log-probability of the last token of every live hypothesis."""
        lengths = torch.tensor(batch.lengths, device=batch.live.logs.device).repeat_interleave(batch.groups)
        K = batch.live.totals.shape[1]
        last = (lengths - 1).view(-1, 1, 1).expand(-1, K, 1)
        return batch.live.logs.gather(-1, last).flatten().tolist()


@torch.no_grad()
def beam_tree(model: GenerativeModel, memory: Memory | None = None, *, prompts: Prompts, end: int | Iterable[int],
              max_length: LengthLimit, beams: int, constraints: Sequence[Constraint] = (),
              length_penalty: "str | float | LengthPenalty" = "none", nbest: int = 1,
              max_branches: int = MAX_BRANCHES) -> list[tuple[list[Hypothesis], SearchTree]]:
    """For each prompt the result of `regard.decoding.beam.beam` with these arguments, and the tree of its search."""
    request = SearchRequest.of(model, memory, prompts, end, max_length, 0, constraints)
    if whole_number("nbest", nbest, 1) > whole_number("beams", beams, 1):
        raise checks.wrong("nbest", f"at most the number of beams, {beams}", nbest)
    search = BeamSearch(request, beams, as_length_penalty(length_penalty), nbest)
    recorder = TreeRecorder(search, max_branches=max_branches)
    found = run_search(model, memory, request, recorder)
    return [(hypotheses, recorder.tree(sequence)) for sequence, hypotheses in enumerate(found)]
