"""The tree of a beam search: every beginning that it looked at, what it went on with, and what it dropped.

    recorder = Recorder(search)                    in place of a `BeamSearch`
    run(model, memory, request, recorder)          the same results
    recorder.tree(0)                               what the search of prompt 0 considered

A recorder hands every turn to the search itself and looks on: what it keeps is computed beside the search, from the
logits that it was given, and changes nothing of what comes out. It costs a second log-softmax a turn, so it is for
looking at a search and not for many sentences. A beginning is known by its tokens: where two groups of beams have the
same one, it is one branch. The number of branches is limited; the tree says how many it left out.

It knows ids, and not the texts they stand for.

Legend: B rows (each a group of a number), K live hypotheses of a row, C continuations of a row, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.checks import whole_number
from regard.decoding.beam_search import BeamSearch
from regard.decoding.beam_state import BeamBatch
from regard.decoding.constraints import Constraint
from regard.decoding.request import Hypothesis, LengthLimit, Prompts, SearchRequest
from regard.decoding.scheduler import SearchStep, run_search
from regard.decoding.scoring import LengthPenalty, as_length_penalty
from regard.models.contract import GenerativeModel, Memory

MAX_BRANCHES = 20_000
"""Branches of a tree."""
MIN_CANDIDATES = 4
"""Continuations of a row that are recorded in a turn, at least; twice as many as there are beams otherwise."""
TokenPath = tuple[int, ...]


class TreeBranch(NamedTuple):
    """A beginning, by its last token."""

    parent: int
    """The branch before it, which stands earlier in the tree; −1 for the first token."""
    token: int
    log_probability: float
    """Of the token."""
    total: float
    """Of all tokens up to it."""
    ended: bool
    """The token is an end, and the search offered what it ends as a result."""
    kept: bool
    """The search went on from it."""


@dataclass(frozen=True)
class SearchTree:
    """What one search considered."""

    branches: tuple[TreeBranch, ...]
    best: tuple[int, ...]
    """The branches at which the results end, the best first."""
    left_out: int = 0
    """How many branches there was no room for."""


@dataclass
class _TreeBuilder:
    """A tree that grows. `places` has the number of each branch by its tokens."""

    most: int
    branches: list[TreeBranch] = field(default_factory=list)
    places: dict[TokenPath, int] = field(default_factory=dict)
    best: tuple[int, ...] = ()
    lost: set[int] = field(default_factory=set)
    """Hashes of the tokens of branches that there is no room for: one may come more than once."""

    def add(self, path: TokenPath, log: float, total: float, ended: bool, kept: bool) -> None:
        """A beginning that was considered; one that is known may have been kept by another group."""
        place = self.places.get(path)
        if place is not None:
            old = self.branches[place]
            self.branches[place] = old._replace(ended=old.ended or ended, kept=old.kept or kept)
        elif len(self.branches) < self.most and (len(path) == 1 or path[:-1] in self.places):
            self._put(path, log, total, ended, kept)
        else:
            self.lost.add(hash(path))

    def finish(self, found: Sequence[Hypothesis]) -> None:
        """The results, which are in the tree whatever was left out."""
        best = []
        for one in found:
            whole_path = (*one.ids, *([] if one.end is None else [one.end]))
            total = 0.0
            for count, log in enumerate(one.log_probabilities, 1):
                total += log
                path = whole_path[:count]
                if path not in self.places:
                    self.lost.discard(hash(path))
                    self._put(path, log, total, count == len(whole_path) and not one.cut, count < len(whole_path))
            if whole_path:
                place = self.places[whole_path]
                self.branches[place] = self.branches[place]._replace(ended=not one.cut)
                best.append(place)
        self.best = tuple(best)

    def _put(self, path: TokenPath, log: float, total: float, ended: bool, kept: bool) -> None:
        self.places[path] = len(self.branches)
        self.branches.append(TreeBranch(self.places.get(path[:-1], -1), path[-1], log, total, ended, kept))


class TreeRecorder:
    """A beam search that remembers what it considered: a `regard.decoding.scheduler.SearchStrategy`."""

    def __init__(self, search: BeamSearch, *, most: int = MAX_BRANCHES) -> None:
        self.search, self.most = search, whole_number("most", most, 1)
        self.growing: dict[int, _TreeBuilder] = {}

    @property
    def width(self) -> int:
        """How many hypotheses of each prompt are followed."""
        return self.search.width

    @property
    def watches(self) -> bool:
        """Whether the search asks for the cross-attention weights."""
        return self.search.watches

    def first(self, numbers: Sequence[int], present: Tensor | None) -> BeamBatch:
        """The batch of the search."""
        for number in numbers:
            self.growing[number] = _TreeBuilder(self.most)
        return self.search.first(numbers, present)

    def turn(self, batch: BeamBatch, logits: Tensor, cross: Tensor | None) -> SearchStep[BeamBatch]:
        """The turn of the search."""
        considered = self._considered(batch, logits)
        after = self.search.turn(batch, logits, cross)
        self._keep(batch, considered, after)
        return after

    def results(self, batch: BeamBatch) -> list[tuple[int, list[Hypothesis]]]:
        """The results of the search."""
        found = self.search.results(batch)
        for number, hypotheses in found:
            self.growing[number].finish(hypotheses)
        return found

    def tree(self, number: int) -> SearchTree:
        """What the search of this number considered: all of it, when the search is over."""
        grown = self.growing[number]
        return SearchTree(tuple(grown.branches), grown.best, len(grown.lost))

    def _considered(self, batch: BeamBatch, logits: Tensor) -> "_TreeCandidates":
        """The best continuations of each row by their log-probability, the best first."""
        B, K, t = batch.live.ids.shape
        request = self.search.request
        written = request.written(batch.live.ids.view(B * K, t), batch.numbers, batch.counts, self.width)
        logs_BKV = request.log_probabilities(logits, written).view(B, K, -1)
        totals_BC = (batch.live.totals.unsqueeze(-1) + logs_BKV).flatten(1)
        count = min(totals_BC.shape[-1], max(MIN_CANDIDATES, 2 * K))
        best, places = totals_BC.topk(count, dim=-1)
        logs = logs_BKV.flatten(1).gather(-1, places)
        V = logs_BKV.shape[-1]
        return _TreeCandidates(best.tolist(), (places // V).tolist(), (places % V).tolist(), logs.tolist())

    def _keep(self, before: BeamBatch, considered: "_TreeCandidates", after: SearchStep[BeamBatch]) -> None:
        """What was considered goes into the trees, and what was kept is marked."""
        K, groups = before.live.totals.shape[1], before.groups
        paths = [[tuple(ids[:before.counts[row // groups]]) for ids in row_ids]
                 for row, row_ids in enumerate(before.live.ids.tolist())]
        live, ends = after.batch.live, set(self.search.request.ends)
        continued = torch.arange(live.totals.numel()) if after.parents is None else after.parents.flatten()
        origins, tokens, totals = continued.tolist(), live.tokens.flatten().tolist(), live.totals.flatten().tolist()
        logs = self._last_logs(after.batch)
        for place, number in enumerate(before.numbers):
            tree, finished = self.growing[number], place in after.finished
            for row in range(place * groups, (place + 1) * groups):
                for rank, (total, parent, token, log) in enumerate(considered.row(row)):
                    if total > -torch.inf:
                        tree.add((*paths[row][parent], token), log, total, token in ends and rank < K, False)
                for at in range(row * K, (row + 1) * K):
                    if totals[at] > -torch.inf:
                        path = (*paths[origins[at] // K][origins[at] % K], tokens[at])
                        tree.add(path, logs[at], totals[at], False, not finished)

    def _last_logs(self, batch: BeamBatch) -> list[float]:
        """The log-probability of the last token of every live hypothesis."""
        counts = torch.tensor(batch.counts, device=batch.live.logs.device).repeat_interleave(batch.groups)
        K = batch.live.totals.shape[1]
        last = (counts - 1).view(-1, 1, 1).expand(-1, K, 1)
        return batch.live.logs.gather(-1, last).flatten().tolist()


class _TreeCandidates(NamedTuple):
    """Continuations of each row, (B, C) each, as lists."""

    totals: list[list[float]]
    parents: list[list[int]]
    tokens: list[list[int]]
    logs: list[list[float]]

    def row(self, number: int) -> Iterable[tuple[float, int, int, float]]:
        """Those of one row."""
        return zip(*(part[number] for part in self), strict=True)


@torch.no_grad()
def beam_tree(model: GenerativeModel, memory: Memory | None = None, *, prompts: Prompts, end: int | Iterable[int], limit: LengthLimit,
              beams: int, rules: Sequence[Constraint] = (), length_penalty: "str | float | LengthPenalty" = "none", nbest: int = 1,
              most: int = MAX_BRANCHES) -> list[tuple[list[Hypothesis], SearchTree]]:
    """For each prompt what `regard.decoding.beam.beam` gives for these arguments, and the tree of its search."""
    request = SearchRequest.of(model, memory, prompts, end, limit, 0, rules)
    if whole_number("nbest", nbest, 1) > whole_number("beams", beams, 1):
        raise checks.wrong("nbest", f"at most the {beams} beams", nbest)
    recorder = TreeRecorder(BeamSearch(request, beams, as_length_penalty(length_penalty), nbest), most=most)
    found = run_search(model, memory, request, recorder)
    return [(hypotheses, recorder.tree(number)) for number, hypotheses in enumerate(found)]
