"""CUDA graphs of a model: work is captured once and replayed with one call, as long as the model does not change.

A graph reads and writes the memory that the work used when it was captured. So the work takes its arguments from
tensors that stay in place, writes its results into such tensors, and never asks the device for a number.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules_of_torch

from regard.attention.layer import AttentionLayer, SelfAttention
from regard.blocks.block import Block
from regard.models.contract import Memory
from regard.models.encoder_decoder import Encoder
from regard.tokens import Tokens

GraphWork = Callable[[], None]
GraphCapture = Callable[[GraphWork], GraphWork]
"""Makes of some work what does the same, faster."""


class CapturedWork:
    """The same work, replayed from the second call on.

    The first call runs as it is: it is of use, and it sets up what libraries set up once.
    """

    def __init__(self, work: GraphWork, pool: Any = None) -> None:
        self.work, self.pool, self.ran = work, pool, False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if not self.ran:
            self.work()
            self.ran = True
            return
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            # Of this thread alone: another one may ask for memory meanwhile.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                self.work()
            self.graph = graph
        self.graph.replay()


def graph_capture() -> GraphCapture:
    """Recordings that share the memory for what they need on the way: none needs it after its work is done."""
    pool = torch.cuda.graph_pool_handle()
    return lambda work: CapturedWork(work, pool)


class StreamOrder:
    """Work in one memory, whichever streams ask for it: each begins when the one before has ended."""

    def __init__(self) -> None:
        self.ended: torch.cuda.Event | None = None

    @contextmanager
    def __call__(self, device: torch.device) -> Iterator[None]:
        if device.type != "cuda":
            yield
            return
        stream = torch.cuda.current_stream(device)
        if self.ended is not None:
            stream.wait_event(self.ended)
        try:
            yield
        finally:
            self.ended = torch.cuda.Event() if self.ended is None else self.ended
            self.ended.record(stream)


class AsyncReadback:
    """The numbers of a tensor on its device, as each of several works has left them.

    They are copied where they are read without a wait, one place for each of the last SLOTS works: a work that is
    already under way writes over nothing that is still to be read.
    """

    SLOTS = 2

    def __init__(self, source: Tensor) -> None:
        self.source, self.sent = source, 0
        self.slots = torch.zeros(self.SLOTS, *source.shape, dtype=source.dtype, pin_memory=source.is_cuda).unbind()
        self.events = [torch.cuda.Event() for _ in self.slots] if source.is_cuda else None

    def send(self) -> None:
        """Behind a work."""
        slot = self.sent % self.SLOTS
        self.slots[slot].copy_(self.source, non_blocking=True)
        if self.events is not None:
            self.events[slot].record()
        self.sent += 1

    def read(self, back: int) -> list[Any]:
        """What the last work but `back` has left, when it is done."""
        assert 0 <= back < min(self.SLOTS, self.sent), "it is written over, or was never sent"
        event = self.event(back)
        if event is not None:
            event.synchronize()
        return self.slots[(self.sent - 1 - back) % self.SLOTS].tolist()

    def event(self, back: int) -> torch.cuda.Event | None:
        """Behind that work; None on a CPU, where all is done at once."""
        return None if self.events is None else self.events[(self.sent - 1 - back) % self.SLOTS]


class HostMirror:
    """The first rows of several tensors on a device, read when an event has come and not when all work is done."""

    def __init__(self, sources: Sequence[Tensor]) -> None:
        self.sources, (first, *_) = list(sources), sources
        self.stream = torch.cuda.Stream(first.device) if first.is_cuda else None
        self.copies = [torch.zeros_like(source, device="cpu", pin_memory=True) if source.is_cuda else source
                       for source in self.sources]

    def read(self, rows: int, after: torch.cuda.Event | None) -> list[Tensor]:
        """Copies, until the next are read; on a CPU the tensors themselves. Without an event, after all work."""
        copies = [copy[:rows] for copy in self.copies]
        if self.stream is not None:
            after = torch.cuda.current_stream(self.stream.device).record_event() if after is None else after
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(after)
                for copy, source in zip(copies, self.sources, strict=True):
                    copy.copy_(source[:rows], non_blocking=True)
            self.stream.synchronize()
        return copies


# ---- figure: What recordings of a model rely on, and whether it is still so.
#
#     figure = Figure(model)       where something is about to be recorded
#     figure.fits()                before each call that may replay it
#     figure.is_touched()          whether somebody has hooks in it, or listens to it
#
# A recording holds addresses of numbers, and what Python once decided. Both are wrong when a parameter lies elsewhere or
# is laid out otherwise (`to`, `load_state_dict(assign=True)`, another `.data`), when a module was put in the place of
# another, or when an attribute of one is another object: a mask, a score, the mode, a forward pass. All of that is looked
# at, by identity, in lists that are laid out once: a look takes a fraction of a millisecond, a walk through a model takes
# several times as long. Numbers that are written where they lie are no change: recordings read them there. What is
# changed inside of an object that is no module, and code of classes, is not seen.
#
# It knows neither models nor what is recorded.

_DTYPE_OF = attrgetter("dtype")


class ModelFingerprint:
    """Of a module and all inside it, as it is now. It does not keep the module itself."""

    def __init__(self, module: nn.Module) -> None:
        inside = all_modules(module)
        held = [part for one in inside for part in (one._modules, one._parameters, one._buffers)]
        self._dicts = [*map(vars, inside), *held]
        self._sizes, self._values = list(map(len, self._dicts)), list(_all_values(self._dicts))
        self._tensors = [part for part in _all_values(held) if isinstance(part, Tensor)]
        self._layouts = self._layouts_now()
        self._hooks = [hooks for one in inside for hooks in (one._forward_hooks, one._forward_pre_hooks)]
        self._taps: list[Any] = [vars(one)["tap"] for one in inside if "tap" in vars(one)]

    def fits(self) -> bool:
        """Whether all is where and what it was."""
        return (list(map(len, self._dicts)) == self._sizes and all(map(is_, _all_values(self._dicts), self._values))
                and self._layouts_now() == self._layouts)

    def is_touched(self) -> bool:
        """Whether a hook is somewhere, or a listener at a tap."""
        return any(self._hooks) or any(tap.listeners for tap in self._taps) or has_global_hooks()

    def _layouts_now(self) -> list[list[Any]]:
        """Where the numbers lie, and how: without a loop in Python, which would take most of the time."""
        return [list(map(part, self._tensors)) for part in (Tensor.data_ptr, Tensor.size, Tensor.stride, _DTYPE_OF)]


def all_modules(module: nn.Module) -> list[nn.Module]:
    """A module and all inside it. It is asked for at calls of a search: torch's own way takes far longer."""
    found = [module]
    for one in found:  # which grows meanwhile
        found += [child for child in one._modules.values() if child is not None]
    return found


def has_hooks(inside: Iterable[nn.Module]) -> bool:
    """Whether hooks would run where these modules do."""
    return any(one._forward_hooks or one._forward_pre_hooks for one in inside) or has_global_hooks()


def has_global_hooks() -> bool:
    """Whether there are hooks of all modules at once."""
    return bool(modules_of_torch._global_forward_hooks or modules_of_torch._global_forward_pre_hooks)


def why_not_plain(inside: Iterable[nn.Module]) -> str | None:
    """Why what these modules compute does not follow from their kinds and parameters; None where it does."""
    for one in inside:
        if one.training:
            return "a module is in training mode"
        if "forward" in vars(one) or "parametrizations" in one._modules:
            return "a forward pass was replaced, or a parameter is computed from others"
    return None


def _all_values(dicts: Iterable[dict[str, Any]]) -> Iterable[Any]:
    return chain.from_iterable(map(dict.values, dicts))


# ---- sourcing: Sources read in a recording: on a GPU Python is slower than an encoder that reads a few sentences.
#
#     encode(model, tokens)        as model.encode(tokens), recorded where that can be
#
# Rows and lengths are rounded up, so that few recordings serve many calls; a size that is met for the first time is read
# as it is. They are kept with those of the searches of the model. `why_not` says what is read as everywhere. It knows no
# searches.

MAX_SOURCE_TOKENS = 1 << 14
"""Tokens of all rows, padding with them, that are read in a recording: of more, Python is not what takes time."""
MAX_ENCODERS = 64
"""Sizes of which recordings are kept."""


def why_not_encoded(model: object, tokens: Tokens) -> str | None:
    """Why sources are read as everywhere; None where they are read in a recording."""
    return why_no_encoder_call(model, tokens) or why_no_encoder(model)


def why_no_encoder_call(model: object, tokens: Tokens) -> str | None:
    """The same, of where and how they are asked for."""
    if tokens.ids.device.type != "cuda":
        return "Python is fast enough for a CPU"
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return "gradients are asked for, or autocast"
    return why_no_source_tokens(model, tokens)


def why_no_source_tokens(model: object, tokens: Tokens) -> str | None:
    """The same, of the tokens, and of the kind of the model."""
    encoder = getattr(model, "encoder", None)
    if not isinstance(model, nn.Module) or not isinstance(encoder, Encoder) or model.training:
        return "the model has no encoder that is a stack of blocks, or is in training mode"
    if not tokens.ids.numel() or tokens.ids.numel() > MAX_SOURCE_TOKENS or tokens.segments is not None or tokens.side != "right":
        return f"there is nothing to read, or more than {MAX_SOURCE_TOKENS:,} tokens, or segments, or padding on the left"
    return None


def why_no_encoder(model: Any) -> str | None:
    """The same, of what is inside of the encoder."""
    inside = all_modules(model.encoder)
    for module in inside:
        if isinstance(module, Block) and not isinstance(module.mixer, SelfAttention):
            return "a block does something else than to attend"
        if isinstance(module, AttentionLayer) and module.tap.listeners:
            return "somebody listens"
    return "a module has hooks" if has_hooks(inside) else None


class GraphEncoder:
    """One size of sources: `rows` of `length` tokens."""

    def __init__(self, encoder: Encoder, rows: int, length: int, record: GraphCapture) -> None:
        self.encoder, like = encoder, encoder.embedding.tokens.weight
        with torch.inference_mode(False), torch.no_grad():
            self.ids = torch.zeros(rows, length, dtype=torch.long, device=like.device)
            self.lengths = torch.ones(rows, dtype=torch.long, device=like.device)
            self.states = like.new_zeros(rows, length, encoder.width)
        self.work = record(self._read)

    def _read(self) -> None:
        self.states.copy_(self.encoder.states(Tokens(self.ids, self.lengths)))

    def __call__(self, tokens: Tokens) -> Memory:
        """The memory of so many rows or fewer. Rows beyond them are read too, and mean nothing."""
        rows, count = tokens.ids.shape
        self.ids[:rows, :count] = tokens.ids
        self.lengths[:rows] = count if tokens.lengths is None else tokens.lengths
        self.work()
        return Memory(self.states[:rows, :count].clone(), tokens.lengths)


def encode(model: Any, tokens: Tokens) -> Memory:
    """The memory of sources, in a recording where that can be."""
    if why_no_encoder_call(model, tokens) is not None:
        return model.encode(tokens)
    places = graph_cache(model)
    if places.answer("encoder", lambda: why_no_encoder(model)) is not None:
        return model.encode(tokens)
    return graph_encode(places, model.encoder, tokens)


# ---- steady: Searches whose turns and steps are recorded: on a GPU, where Python is slower than the work that it asks for.
#
#     run(model, given, request, search)        as `regard.decoding.scheduler.run_search`, and by it where nothing can be recorded
#
# Prompts enter and leave as in `regard.decoding.scheduler`; between that, rows are written at a desk and on a board, whose
# memory stays where it is, by two recordings: the turn of the search, and the step of the model. Python only asks whether
# somebody has finished. Sizes are rounded up, so that few recordings serve many calls; those of a model are kept with it,
# the last ones, as long as they hold a small part of the memory of the device, and as long as the model is what and where
# it was (`regard.decoding.cuda_graph`).
#
# Where kernels of our own can do it, `regard.decoding.fused_search` writes in their place: one recording a token, of fewer
# kernels. What is here does the rest: other scores and mixers of attention, rules that read what is written.
#
# `why_not` says in words why a search of a model does not run here: then it runs as everywhere. Numbers may differ from
# those in the last digits, as they do between batches of different sizes.
#
# Legend: F prompts that are written at once, W hypotheses of each, R = F·W rows of the state.


@dataclass
class GraphWorkspace:
    """A desk, a board, and what was recorded with them."""

    desk: Any
    """A `Desk`, or one of `regard.decoding.fused_search`."""
    board: Any
    """A `Board`, or a `Ledger`."""
    tokens: Tensor
    """(R,): what is read first."""
    record: GraphCapture
    works: dict[Any, GraphWork] = field(default_factory=dict)

    def work(self, name: Any, work: GraphWork) -> GraphWork:
        """The recording of this name, made where it is not there yet."""
        if name not in self.works:
            self.works[name] = self.record(work)
        return self.works[name]


@dataclass
class GraphCache:
    """Those of one model, the last used last."""

    record: GraphCapture
    limit: int
    """Bytes that may be kept."""
    figure: ModelFingerprint | None = None
    """Of the model; None where nobody looks whether it has changed."""
    kept: "OrderedDict[Any, GraphWorkspace]" = field(default_factory=OrderedDict)
    readers: "OrderedDict[Any, Any]" = field(default_factory=OrderedDict)
    """Of sources: see `regard.decoding.cuda_graph`."""
    lock: Any = field(default_factory=threading.RLock)
    """Of the thread that writes in them: they are the same memory for all."""
    order: StreamOrder = field(default_factory=StreamOrder)
    """Of streams, for the same reason."""
    answers: dict[str, str | None] = field(default_factory=dict)

    def answer(self, question: str, ask: Callable[[], str | None]) -> str | None:
        """Why something cannot be done with the model: asked once, where nobody has hooks in it or listens to it."""
        if self.figure is None or self.figure.is_touched():
            return ask()
        if question not in self.answers:
            self.answers[question] = ask()
        return self.answers[question]

    @contextmanager
    def entered(self, tensor: Tensor) -> Iterator[None]:
        """Work in them, on the device of a tensor: one thread and one stream after another."""
        with self.lock, torch.cuda.device_of(tensor), self.order(tensor.device):  # graphs are of the current device
            yield

    def find(self, key: Any, make: Callable[[], GraphWorkspace]) -> GraphWorkspace:
        """The one of this key, made where it is not there; older ones go where there is too much."""
        if key not in self.kept:
            self.kept[key] = make()
            while len(self.kept) > 1 and sum(place.desk.bytes for place in self.kept.values()) > self.limit:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        return self.kept[key]


def graph_encode(places: GraphCache, encoder: Encoder, tokens: Tokens) -> Memory:
    """The memory of sources, by a recording that is kept in these places; threads take turns."""
    with places.entered(tokens.ids):
        return graph_encoder(places, encoder, tokens)(tokens)


def graph_encoder(places: GraphCache, encoder: Encoder, tokens: Tokens) -> GraphEncoder:
    """The reader of tokens of this size, kept with the searches' places; those used longest ago go."""
    rows, count = tokens.ids.shape
    limit = encoder.embedding.limit
    length = round_up(count, SOURCE_STEP) if limit is None else min(round_up(count, SOURCE_STEP), limit)
    key = (1 << (rows - 1).bit_length(), max(length, count), encoder.embedding.tokens.weight.dtype)
    if key not in places.readers:
        places.readers[key] = GraphEncoder(encoder, *key[:2], places.record)
        if len(places.readers) > MAX_ENCODERS:
            places.readers.popitem(last=False)
    places.readers.move_to_end(key)
    return places.readers[key]


TOKEN_STEP, SOURCE_STEP = 64, 32
"""Capacities and lengths of sources are rounded up to multiples of these; a step reads keys in as large pieces."""
MEMORY_SHARE = 8
"""One part in so many of the memory of the device may be kept."""


GRAPH_CACHES: "weakref.WeakKeyDictionary[nn.Module, GraphCache]" = weakref.WeakKeyDictionary()


class _TrustedModel(threading.local):
    """What one thread has looked at, and need not look at again for a while."""

    model: object = None
    places: GraphCache | None = None


_TRUSTED = _TrustedModel()


@contextmanager
def model_unchanged(model: object) -> Iterator[None]:
    """Inside, nobody changes the model: whether it is what it was is asked once, and not for each part of a search."""
    before = _TRUSTED.model, _TRUSTED.places
    _TRUSTED.model, _TRUSTED.places = model, before[1] if before[0] is model else None
    try:
        yield
    finally:
        _TRUSTED.model, _TRUSTED.places = before


def graph_cache(model: nn.Module) -> GraphCache:
    """Those of a model that is what and where it was; new ones otherwise."""
    if _TRUSTED.model is not model:
        return _checked_graph_cache(model)
    _TRUSTED.places = _checked_graph_cache(model) if _TRUSTED.places is None else _TRUSTED.places
    return _TRUSTED.places


def _checked_graph_cache(model: nn.Module) -> GraphCache:
    found = GRAPH_CACHES.get(model)
    if found is None or found.figure is None or not found.figure.fits():
        total = torch.cuda.get_device_properties(next(model.parameters()).device).total_memory
        found = GRAPH_CACHES[model] = GraphCache(graph_capture(), total // MEMORY_SHARE, ModelFingerprint(model))
    return found


def round_up(count: int, step: int) -> int:
    return -(-count // step) * step
