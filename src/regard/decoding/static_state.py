"""Decoder buffers and search state in tensors that stay in place, so that plain steps can be captured as CUDA graphs.

Legend: F prompts, W rows of each, R = F·W rows, B rows of a search, K hypotheses of each, C or T token positions, N source
states, P places of a pool, H heads, D width, V vocabulary.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.cache import Cache, ContextCache, StaticCache, StaticMask
from regard.attention.layer import AttentionLayer, SelfAttention
from regard.attention.mask import Causal
from regard.blocks.block import BlockState
from regard.blocks.stack import StackState
from regard.decoding import beam_search as beams
from regard.decoding import token_search
from regard.decoding.beam_search import BeamSearch, BeamUpdate, RowLengths
from regard.decoding.beam_state import BeamBatch, HypothesisPool, LiveHypotheses, TopKFunction, exact_topk, quick_topk
from regard.decoding.constraints import Constraint, ForbiddenTokens, MinLength, NoRepeatNgram, Prefixes
from regard.decoding.cuda_graph import all_modules, has_hooks
from regard.decoding.request import SearchRequest, invalid_logits
from regard.decoding.scoring import MeanLengthPenalty, NoLengthPenalty, PowerLengthPenalty
from regard.decoding.token_search import TokenBatch, TokenSearch, most_probable
from regard.models.contract import GenerativeModel
from regard.models.encoder_decoder import Decoder, DecoderState

POLL_STEPS = 4
"""Turns of greedy search after which the device is asked once: what is written behind an end costs less."""


class StaticState(ABC):
    """What all boards have; `rows` of the model's state belong to each place."""

    request: SearchRequest
    numbers: list[int]
    width: int

    @abstractmethod
    def load(self, batch: Any, search: Any) -> None:
        """Take in a batch in which nobody has finished."""

    @abstractmethod
    def choose(self, logits: Tensor) -> None:
        """The turn of all rows, from logits (B · K, V). It asks nothing of the device."""

    @abstractmethod
    def settle(self, logits: Tensor) -> list[bool] | None:
        """Which places are still open; None where nobody has asked."""

    @abstractmethod
    def commit(self) -> tuple[Tensor | None, Tensor]:
        """Go on: which row of the state each continues (None for its own), and the token that it reads."""

    @abstractmethod
    def batch(self, places: Sequence[int]) -> Any:
        """What is in these places, as an ordinary batch of its own."""


class StaticGreedyState(StaticState):
    """Of `Writing` with the most probable token."""

    width = 1

    def __init__(self, request: SearchRequest, rows: int, places: int, dtype: torch.dtype) -> None:
        self.request, self.numbers, self.turns = _without_prompts(request), list[int](), 0
        device = request.device
        with torch.inference_mode(False):
            self.ids = torch.zeros(rows, places, dtype=torch.long, device=device)
            self.logs = torch.zeros(rows, places, dtype=torch.promote_types(dtype, torch.float32), device=device)
            self.counts, self.limits, self.verdicts, self.tokens = (torch.zeros_like(self.ids[:, 0]) for _ in range(4))
            self.none = torch.zeros_like(self.tokens)

    def load(self, batch: TokenBatch, search: TokenSearch) -> None:
        self.numbers, self.asking, self.turns = [*batch.numbers], search.request, 0
        given = torch.tensor([batch.counts, [search.request.limit(number) for number in batch.numbers]])
        count, width = len(batch.numbers), batch.ids.shape[1]
        self.verdicts.fill_(token_search.FINISHED)
        self.verdicts[:count] = token_search.RUNNING
        self.counts[:count], self.limits[:count] = given.to(self.ids.device)
        self.counts[count:] = 0
        self.ids[:count, :width], self.logs[:count, :width] = batch.ids, batch.logs
        self.most = max(search.request.limit(number) - before for number, before in
                        zip(batch.numbers, batch.counts, strict=True)) + 1

    def choose(self, logits: Tensor) -> None:
        written = Prefixes(self.ids, self.none, self.counts, self.none)
        logs_BV = self.request.log_probabilities(logits, written)
        token_B = most_probable(logs_BV, written)
        log_B = logs_BV.gather(-1, token_B.unsqueeze(-1)).squeeze(-1)
        new_B = token_search.token_status(log_B, self.request.is_end(token_B, logits.shape[-1]))
        new_B = torch.where((new_B == token_search.RUNNING) & (self.counts >= self.limits), token_search.TRUNCATED, new_B)
        was_open = self.verdicts == token_search.RUNNING
        at_B1 = self.counts.clamp(max=self.ids.shape[1] - 1).unsqueeze(-1)  # one that has ended may be full
        for storage, new in ((self.ids, token_B), (self.logs, log_B)):
            old_B = storage.gather(1, at_B1).squeeze(-1)
            storage.scatter_(1, at_B1, torch.where(was_open, new, old_B).unsqueeze(-1))
        self.tokens.copy_(token_B)
        self.counts.add_(was_open & (new_B != token_search.TRUNCATED) & (new_B != token_search.INVALID))
        self.verdicts.copy_(torch.where(was_open, new_B, self.verdicts))

    def settle(self, logits: Tensor) -> list[bool] | None:
        self.turns += 1
        if self.turns % POLL_STEPS and self.turns < self.most:
            return None
        verdicts = self.verdicts[:len(self.numbers)].tolist()
        if token_search.INVALID in verdicts:
            place = verdicts.index(token_search.INVALID)
            raise invalid_logits(self.asking.prompt(self.numbers[place]), int(self.counts[place]))
        return [one == token_search.RUNNING for one in verdicts]

    def commit(self) -> tuple[Tensor | None, Tensor]:
        return None, self.tokens

    def batch(self, places: Sequence[int]) -> TokenBatch:
        index = torch.tensor(places, dtype=torch.long, device=self.ids.device)
        counts, verdicts = torch.stack([self.counts[index], self.verdicts[index]]).tolist()
        width = max(counts, default=0)
        return TokenBatch(self.ids[index, :width], self.logs[index, :width], [self.numbers[place] for place in places],
                     counts, verdicts, self.tokens[index])


class StaticBeamState(StaticState):
    """Of `BeamSearch` without groups, terms and coverage."""

    def __init__(self, search: BeamSearch, rows: int, places: int) -> None:
        self.request, self.numbers, self.width = _without_prompts(search.request), list[int](), search.beams
        self.search, self.places = replace(search, request=self.request), places
        with torch.inference_mode(False):
            batch = self.search.first([0] * rows, None)
            one = [torch.zeros(*part.shape[:-1], places, dtype=part.dtype, device=part.device)
                   for part in (batch.live.ids, batch.live.logs, batch.pool.ids, batch.pool.logs)]
            self.live = LiveHypotheses(*(part.clone() for part in replace(batch.live, ids=one[0], logs=one[1]).parts()))
            self.pool = HypothesisPool(*(part.clone() for part in replace(batch.pool, ids=one[2], logs=one[3]).parts()))
            self.counts = torch.zeros(rows, dtype=torch.long, device=search.request.device)
            self.limits, self.done = torch.zeros_like(self.counts), torch.zeros_like(self.counts, dtype=torch.bool)
            self.none = torch.zeros(rows * search.beams, dtype=torch.long, device=search.request.device)
            self.first = torch.arange(rows, device=search.request.device).unsqueeze(-1) * search.beams
            parents = torch.zeros_like(self.live.tokens)
            self.after = BeamUpdate(LiveHypotheses(*(part.clone() for part in self.live.parts())),
                               HypothesisPool(*(part.clone() for part in self.pool.parts())), parents,
                               torch.zeros_like(parents, dtype=torch.bool), torch.zeros_like(self.counts),
                               torch.zeros((), dtype=torch.bool, device=parents.device))

    def load(self, batch: BeamBatch, search: BeamSearch) -> None:
        self.numbers, self.asking, count = [*batch.numbers], search.request, len(batch.numbers)
        self.open = [True] * count
        given = torch.tensor([batch.counts, [search.request.limit(number) for number in batch.numbers]])
        self.counts.zero_()
        self.counts[:count], self.limits[:count] = given.to(self.counts.device)
        self.done.fill_(True)
        self.done[:count] = False
        for mine, theirs in zip((*self.live.parts(), *self.pool.parts()), (*batch.live.parts(), *batch.pool.parts()),
                                strict=True):
            mine[:count][..., :theirs.shape[-1]] = theirs
            mine[count:] = mine[:1]

    def choose(self, logits: Tensor) -> None:
        self._put(self._turn(logits, quick_topk))

    def settle(self, logits: Tensor) -> list[bool] | None:
        *verdicts, unsure = torch.cat([self.after.verdict, self.after.unsure.long().unsqueeze(0)]).tolist()
        verdicts = verdicts[:len(self.numbers)]
        if unsure:
            self._put(self._turn(logits, exact_topk))
            verdicts = self.after.verdict.tolist()[:len(self.numbers)]
        now = [one for one, is_open in zip(verdicts, self.open, strict=True) if is_open]
        if beams.INVALID in now:
            place = next(place for place, one in enumerate(verdicts) if one == beams.INVALID and self.open[place])
            raise invalid_logits(self.asking.prompt(self.numbers[place]), int(self.counts[place]))
        if beams.TRUNCATED in now:
            filled = self.search.filled(self.live, self._rows(), self.after)
            for mine, new in zip(self.after.pool.parts(), filled.parts(), strict=True):
                mine.copy_(new)
        self.open = [is_open and one == beams.RUNNING for one, is_open in zip(verdicts, self.open, strict=True)]
        return self.open

    def commit(self) -> tuple[Tensor | None, Tensor]:
        for mine, new in zip(self.live.parts(), self.after.live.parts(), strict=True):
            mine.copy_(new)
        for mine, new in zip(self.pool.parts(), self.after.pool.parts(), strict=True):
            stays = self.done.view(-1, *[1] * (new.dim() - 1))
            mine.copy_(torch.where(stays, mine, new))
        self.done.logical_or_(self.after.verdict != beams.RUNNING)
        self.counts.add_(~self.done)
        return (self.after.parents + self.first).flatten(), self.live.tokens.flatten()

    def batch(self, places: Sequence[int]) -> BeamBatch:
        index = torch.tensor(places, dtype=torch.long, device=self.counts.device)
        counts = self.counts[index].tolist()
        width = max(counts, default=0)
        pool = self.pool.pick(index)
        longest = max(1, int(pool.lengths.max()) if pool.lengths.numel() else 1)
        return BeamBatch([self.numbers[place] for place in places], counts, self.live.pick(index, width),
                     replace(pool, ids=pool.ids[..., :longest], logs=pool.logs[..., :longest]))

    def _rows(self) -> RowLengths:
        return RowLengths(self.counts, self.limits, self.places)

    def _turn(self, logits: Tensor, find: TopKFunction) -> BeamUpdate:
        B, K, _ = self.live.ids.shape
        counts_R = self.counts.unsqueeze(-1).expand(B, K).reshape(-1)
        written = Prefixes(self.live.ids.view(B * K, -1), self.none, counts_R, self.none)
        logs_BKV = self.request.log_probabilities(logits, written).view(B, K, -1)
        return self.search.turned(self.live, self.pool, self._rows(), logs_BKV, find)

    def _put(self, after: BeamUpdate) -> None:
        mine = (*self.after.live.parts(), *self.after.pool.parts(), *self.after[2:])
        for place, new in zip(mine, (*after.live.parts(), *after.pool.parts(), *after[2:]), strict=True):
            place.copy_(new)


@dataclass(frozen=True)
class SearchKind:
    """What a recording of a search has in it: two that are equal can use the same."""

    name: str
    ends: tuple[int, ...]
    rules: tuple[Any, ...]
    options: tuple[Any, ...] = ()


def search_kind(search: object) -> SearchKind | None:
    """The kind of a search; None for one that cannot be recorded."""
    if isinstance(search, TokenSearch) and search.choose is most_probable:
        name, options = "greedy", tuple[Any, ...]()
    elif type(search) is BeamSearch and (search.groups, search.coverage, search.terms) == (1, None, None):
        ranking = search.ranking
        if type(ranking) not in (NoLengthPenalty, MeanLengthPenalty, PowerLengthPenalty):
            return None
        name, options = "beam", (search.beams, search.nbest, type(ranking), getattr(ranking, "alpha", None))
    else:
        return None
    rules = [_constraint_key(rule) for rule in search.request.rules]
    if None in rules:
        return None
    return SearchKind(name, tuple(search.request.ends), tuple(rules), options)


def static_state_for(search: Any, rows: int, places: int, dtype: torch.dtype) -> StaticState:
    """Storage for a search that has a kind, of a model whose logits have this dtype."""
    if isinstance(search, BeamSearch):
        return StaticBeamState(search, rows, places)
    return StaticGreedyState(search.request, rows, places, dtype)


def _constraint_key(rule: Constraint) -> tuple[Any, ...] | None:
    if type(rule) is ForbiddenTokens:
        return (ForbiddenTokens, *rule.ids)
    if type(rule) is MinLength:
        return (MinLength, rule.count, *rule.forbidden.ids)
    return (NoRepeatNgram, rule.size) if type(rule) is NoRepeatNgram else None


def _without_prompts(request: SearchRequest) -> SearchRequest:
    """What is asked of every search of this kind, without its prompts."""
    return replace(request, prompts=[], limits=[])


# ---- desk: The state of a decoder in memory that stays where it is, so that its step can be recorded.
#
#     desk = Desk(model, state, families=4, width=5, …)  storage for states of this kind
#     desk.load(state)                                   an ordinary state comes in; desk.put_logits(...) its logits
#     desk.step(parents, tokens, places)                 in a recording: the rows move, read a token each, and give logits
#     desk.state(families, filled, capacity)             an ordinary state comes out
#
# Rows come in families that look at one source, as in `regard.mixer.RowGroups`. Places beyond those that are needed are
# there too, filled with anything: who uses the desk knows which rows mean something. It serves decoders whose blocks look
# at all tokens before and at the source, without biases of position and with nobody listening: `why_not` says what is in
# the way.
#
# Legend: F families, W rows of each, R = F·W rows, C places of tokens, N places of a source, H heads, D width,
# V vocabulary.


@dataclass(frozen=True)
class StaticLayer:
    """What one block remembers."""

    key: Tensor
    """(R, H, C, D)"""
    value: Tensor
    context: tuple[Tensor, Tensor] | None
    """Keys and values of the source, (F, H, N, D)."""


def why_no_static_step(model: GenerativeModel, state: object) -> str | None:
    """Why the steps of a model from this state cannot be made at a desk; None where they can."""
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, Decoder) or not isinstance(state, DecoderState):
        return "its state is not that of a stack of blocks"
    if state.with_cross:
        return "its weights are looked at"
    if any(type(block.mixer) is not Cache for block in state.stack.blocks):
        return "its blocks do more than to look at the tokens before"
    inside = all_modules(decoder)
    if has_hooks(inside):
        return "a module has hooks"
    for module in inside:
        if isinstance(module, AttentionLayer) and (module.position_bias is not None or module.tap.listeners):
            return "an attention layer has a bias of position, or somebody listens to it"
        if isinstance(module, SelfAttention) and type(module.mask) is not Causal:
            return "an attention layer does not look at all tokens before"
    return None


class StaticBuffers:
    """Storage for `families` of `width` rows each, of at most `capacity` tokens, with sources of at most `sources`."""

    def __init__(self, model: GenerativeModel, state: DecoderState, *, families: int, width: int, capacity: int,
                 sources: int) -> None:
        self.families, self.width, self.capacity = families, width, capacity
        self._model = weakref.ref(model)  # desks are kept as long as the model is: they must not be what keeps it
        rows, first = families * width, state.positions
        limit = model.decoder.embedding.limit  # type: ignore[attr-defined]
        self.highest = (capacity if limit is None else min(limit, capacity)) - 1
        with torch.inference_mode(False):  # what is made in that mode cannot be written into outside of it
            self.positions = torch.zeros(rows, dtype=torch.long, device=first.device)
            self.allowed = torch.zeros(families, 1, 1, sources, dtype=torch.bool, device=first.device)
            self.layers = [_static_layer(block, rows, families, capacity, sources) for block in state.stack.blocks]
            vocabulary = model.decoder.output  # type: ignore[attr-defined]
            self.logits = torch.zeros(rows, vocabulary.out_features, dtype=vocabulary.weight.dtype, device=first.device)

    @property
    def bytes(self) -> int:
        """How much memory it holds."""
        parts = (part for layer in self.layers for part in (layer.key, layer.value, *(layer.context or ())))
        return sum(part.nbytes for part in (*parts, self.logits))

    def load(self, state: DecoderState) -> int:
        """Take a state in, whose rows come in families; how many tokens its longest row has.

        Rows beyond those of the state are copies of its first family, so that their numbers are ordinary.
        """
        rows, filled, own = len(state.positions), 0, None
        self._put(self.positions, state.positions)
        for layer, block in zip(self.layers, state.stack.blocks, strict=True):
            cache, filled = block.mixer, block.mixer.filled
            for mine, theirs in ((layer.key, cache.key), (layer.value, cache.value)):
                if filled:
                    self._put(mine[:, :, :filled], theirs[:, :, :filled])
            if block.context is not None and layer.context is not None:
                own = context_per_source(block.context, rows, self.width)
                count = own.key.shape[-2]
                for mine, theirs in zip(layer.context, (own.key, own.value), strict=True):
                    mine[:, :, count:] = 0.0
                    self._put(mine[:, :, :count], theirs)
        self.allowed.zero_()
        if own is not None:
            self._put(self.allowed[..., :own.key.shape[-2]], _present_context(own))
        return filled

    def put_logits(self, logits: Tensor) -> None:
        """The logits of the last step of a state that was taken in."""
        self._put(self.logits, logits)

    def step(self, parents: Tensor | None, tokens: Tensor, places: int) -> None:
        """One token (R,) for each row, after those of the row that it continues (R,), within the first `places`."""
        here = self.positions.clamp(max=self.highest)  # rows that have finished go on, and may not leave the storage
        if parents is not None:
            here = here[parents]
        seen_RC = torch.arange(places, device=here.device) <= here.unsqueeze(-1)
        seen, blocks = StaticMask(seen_RC[:, None, None]), []
        for layer in self.layers:
            key, value = layer.key[:, :, :places], layer.value[:, :, :places]
            if parents is not None:
                key.copy_(key[parents])
                value.copy_(value[parents])
            context = layer.context and ContextCache(*layer.context, None, StaticMask(self.allowed), self.width)
            blocks.append(BlockState(StaticCache(key, value, here, places, False, seen), context))
        state = DecoderState(StackState(tuple(blocks)), here, False)
        model = self._model()
        assert model is not None, "who asks for a step has the model"
        self.logits.copy_(model.step(state, tokens.unsqueeze(-1)).logits[:, -1])
        self.positions.copy_(here + 1)

    def rows(self, families: Tensor) -> Tensor:
        """The rows of these families."""
        return (families.unsqueeze(-1) * self.width + torch.arange(self.width, device=families.device)).flatten()

    def state(self, families: Tensor, filled: int, capacity: int) -> DecoderState:
        """The state of these families, none of whose rows has more than `filled` tokens, in storage of its own."""
        index = self.rows(families)
        positions, blocks = self.positions[index], list[BlockState]()
        for layer in self.layers:
            kept = [part.new_zeros(len(index), part.shape[1], capacity, part.shape[-1])
                    for part in (layer.key, layer.value)]
            for mine, theirs in zip(kept, (layer.key, layer.value), strict=True):
                mine[:, :, :filled] = theirs[index, :, :filled]
            context = None
            if layer.context is not None:
                lengths = self.allowed[families].sum(dim=-1).flatten()
                key, value = layer.context
                context = ContextCache.of(key[families], value[families], lengths, self.width)
            blocks.append(BlockState(Cache(kept[0], kept[1], positions, filled, uniform=False), context))
        return DecoderState(StackState(tuple(blocks)), positions, with_cross=False)

    def _put(self, mine: Tensor, theirs: Tensor) -> None:
        """Rows, and behind them the first family again and again."""
        count, each = len(theirs), len(mine) // self.families
        mine[:count] = theirs
        if count < len(mine):
            mine[count:].unflatten(0, (-1, each)).copy_(theirs[:each])


def _static_layer(block: BlockState, rows: int, families: int, capacity: int, sources: int) -> StaticLayer:
    def room(like: Tensor, first: int, places: int) -> Tensor:
        return torch.zeros(first, like.shape[1], places, like.shape[-1], dtype=like.dtype, device=like.device)

    cache, context = block.mixer, block.context
    own = (room(cache.key, rows, capacity), room(cache.value, rows, capacity))
    if context is None:
        return StaticLayer(*own, None)
    return StaticLayer(*own, (room(context.key, families, sources), room(context.value, families, sources)))


def context_per_source(context: ContextCache, rows: int, width: int) -> ContextCache:
    """A context for each family."""
    if context.rows_per_context == width:
        return context
    return context.pick(torch.arange(0, rows, width, device=context.key.device))


def _present_context(context: ContextCache) -> Tensor:
    """(F, 1, 1, N): which tokens of the contexts are there."""
    places = torch.arange(context.key.shape[-2], device=context.key.device)
    count = places.shape[0] if context.lengths is None else context.lengths.view(-1, 1, 1, 1)
    return (places < count).expand(len(context.key), 1, 1, -1)
