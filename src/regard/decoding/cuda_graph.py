"""CUDA graphs of a model: work is captured once and replayed with one call, as long as the model does not change.

On a GPU a step of a search is hundreds of small kernels, which run faster than Python can launch them. A CUDA graph
launches them all at once. It reads and writes the memory that the work used when it was captured. So the work takes
its arguments from tensors that stay in place, writes its results into such tensors, and never reads a number from the
device.

    CapturedWork, graph_capture      work that is replayed from its third call on
    AsyncReadback, HostMirror        numbers come to the host while the device works on
    ModelFingerprint                 whether a model is still what the graphs were captured from
    GraphCache, graph_cache          the graphs of one model, kept as long as the model
    encode                           an encoder as a CUDA graph

On a CPU, where tests run, readbacks and mirrors are plain copies. This module knows no searches.
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

from regard.attention.layer import AttentionLayer, SelfAttention
from regard.blocks.block import Block
from regard.kernels.launch import has_global_hooks
from regard.models.contract import Memory
from regard.models.encoder_decoder import Encoder
from regard.tokens import Tokens

GraphWork = Callable[[], None]
GraphCapture = Callable[[GraphWork], GraphWork]
"""Turns work into work that does the same, captured."""
SOURCE_STEP = 32
"""Lengths of sources are rounded up to multiples of this, so that few graphs serve many calls."""
MEMORY_SHARE = 8
"""The graphs of a model may hold one part in this many of the memory of the device."""
MAX_SOURCE_TOKENS = 1 << 14
"""The largest batch of sources, including padding, that a graph encodes: with more, Python is not the bottleneck."""
MAX_ENCODERS = 64
"""The number of sizes of sources for which graphs are kept."""


class CapturedWork:
    """Work that is captured at its second call and replayed from then on.

    The first call runs as it is: it is of use, and it lets libraries do what they do once.
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
            # Only this thread: another one may allocate memory meanwhile.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                self.work()
            self.graph = graph
        self.graph.replay()


def graph_capture() -> GraphCapture:
    """A capture whose graphs share their temporary memory: none needs it after its work is done."""
    pool = torch.cuda.graph_pool_handle()
    return lambda work: CapturedWork(work, pool)


class StreamOrder:
    """Orders work on shared memory across streams: each begins when the one before has ended."""

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
    """The numbers of a tensor on the device, as each of the last works has left them.

    They are copied to one of SLOTS places on the host, so that work which is already under way overwrites nothing that
    is still to be read.
    """

    SLOTS = 2

    def __init__(self, source: Tensor) -> None:
        self.source, self.sent = source, 0
        self.slots = torch.zeros(self.SLOTS, *source.shape, dtype=source.dtype, pin_memory=source.is_cuda).unbind()
        self.events = [torch.cuda.Event() for _ in self.slots] if source.is_cuda else None

    def send(self) -> None:
        """Copy the numbers after the work that was launched last."""
        slot = self.sent % self.SLOTS
        self.slots[slot].copy_(self.source, non_blocking=True)
        if self.events is not None:
            self.events[slot].record()
        self.sent += 1

    def read(self, back: int) -> list[Any]:
        """The numbers after the last work but `back`; it waits until that work is done."""
        assert 0 <= back < min(self.SLOTS, self.sent), "these numbers are overwritten, or were never sent"
        event = self.event(back)
        if event is not None:
            event.synchronize()
        return self.slots[(self.sent - 1 - back) % self.SLOTS].tolist()

    def event(self, back: int) -> torch.cuda.Event | None:
        """The event after that work; None on a CPU, where all work is done at once."""
        return None if self.events is None else self.events[(self.sent - 1 - back) % self.SLOTS]


class HostMirror:
    """Copies the first rows of several tensors to the host as soon as an event has come."""

    def __init__(self, sources: Sequence[Tensor]) -> None:
        self.sources, (first, *_) = list(sources), sources
        self.stream = torch.cuda.Stream(first.device) if first.is_cuda else None
        self.copies = [torch.zeros_like(source, device="cpu", pin_memory=True) if source.is_cuda else source
                       for source in self.sources]

    def read(self, rows: int, after: torch.cuda.Event | None) -> list[Tensor]:
        """The copies, valid until the next call; on a CPU the tensors themselves. Without an event, after all work."""
        copies = [copy[:rows] for copy in self.copies]
        if self.stream is not None:
            after = torch.cuda.current_stream(self.stream.device).record_event() if after is None else after
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(after)
                for copy, source in zip(copies, self.sources, strict=True):
                    copy.copy_(source[:rows], non_blocking=True)
            self.stream.synchronize()
        return copies


_DTYPE_OF = attrgetter("dtype")


class ModelFingerprint:
    """The addresses and objects that graphs of a model rely on. It does not keep the model alive.

    A graph holds addresses of tensors and the decisions that Python made when it was captured. Both are outdated when a
    parameter has moved or changed its layout (`to`, `load_state_dict(assign=True)`, another `.data`), when a module was
    replaced, or when an attribute of one is another object: a mask, a score, the mode, a forward function. All of these
    are compared by identity, in lists that are built once: that takes a fraction of a millisecond, a walk through the
    model several times as long. Values written in place are no change, because graphs read them there. Changes inside
    an object that is not a module, and of the code of classes, are not noticed.
    """

    def __init__(self, module: nn.Module) -> None:
        inside = all_modules(module)
        held = [part for one in inside for part in (one._modules, one._parameters, one._buffers)]
        self._dicts = [*map(vars, inside), *held]
        self._sizes, self._values = list(map(len, self._dicts)), list(_all_values(self._dicts))
        self._tensors = [part for part in _all_values(held) if isinstance(part, Tensor)]
        self._layouts = self._current_layouts()
        self._hooks = [hooks for one in inside for hooks in (one._forward_hooks, one._forward_pre_hooks)]
        self._taps: list[Any] = [vars(one)["tap"] for one in inside if "tap" in vars(one)]

    def matches(self) -> bool:
        """Whether the model is unchanged."""
        return (list(map(len, self._dicts)) == self._sizes and all(map(is_, _all_values(self._dicts), self._values))
                and self._current_layouts() == self._layouts)

    def has_listeners(self) -> bool:
        """Whether the model has hooks, or its attention taps have listeners."""
        return any(self._hooks) or any(tap.listeners for tap in self._taps) or has_global_hooks()

    def _current_layouts(self) -> list[list[Any]]:
        """Addresses and layouts of all tensors; a loop in Python would take most of the time."""
        return [list(map(part, self._tensors)) for part in (Tensor.data_ptr, Tensor.size, Tensor.stride, _DTYPE_OF)]


def all_modules(module: nn.Module) -> list[nn.Module]:
    """A module and all modules inside it, several times faster than `module.modules()`."""
    found = [module]
    for one in found:  # the list grows meanwhile
        found += [child for child in one._modules.values() if child is not None]
    return found


def has_hooks(inside: Iterable[nn.Module]) -> bool:
    """Whether a call of these modules would run hooks."""
    return any(one._forward_hooks or one._forward_pre_hooks for one in inside) or has_global_hooks()


def _all_values(dicts: Iterable[dict[str, Any]]) -> Iterable[Any]:
    return chain.from_iterable(map(dict.values, dicts))


@dataclass
class GraphCache:
    """The graphs of one model and their memory, the most recently used last."""

    capture: GraphCapture
    limit: int
    """The maximum number of bytes to keep."""
    fingerprint: ModelFingerprint | None = None
    """The fingerprint of the model; None if the model cannot change."""
    workspaces: "OrderedDict[Any, Any]" = field(default_factory=OrderedDict)
    encoders: "OrderedDict[Any, GraphEncoder]" = field(default_factory=OrderedDict)
    lock: Any = field(default_factory=threading.RLock)
    """Held by the thread that uses the graphs: all threads share their memory."""
    order: StreamOrder = field(default_factory=StreamOrder)
    """Orders streams, for the same reason."""
    answers: dict[str, str | None] = field(default_factory=dict)

    def answer(self, question: str, ask: Callable[[], str | None]) -> str | None:
        """Why something cannot be done with the model: computed once, unless the model has hooks or listeners."""
        if self.fingerprint is None or self.fingerprint.has_listeners():
            return ask()
        if question not in self.answers:
            self.answers[question] = ask()
        return self.answers[question]

    @contextmanager
    def entered(self, tensor: Tensor) -> Iterator[None]:
        """Use the graphs on the device of a tensor: one thread and one stream after another."""
        with self.lock, torch.cuda.device_of(tensor), self.order(tensor.device):  # graphs use the current device
            yield

    def find(self, key: Any, make: Callable[[], Any]) -> Any:
        """The workspace with this key, created if needed; the oldest go when all together have too many `bytes`."""
        if key not in self.workspaces:
            self.keep(key, make())
        self.workspaces.move_to_end(key)
        return self.workspaces[key]

    def borrow(self, key: Any, make: Callable[[], Any]) -> Any:
        """The workspace with this key, created if needed, for the caller alone; `keep` returns it."""
        return self.workspaces.pop(key, None) or make()

    def keep(self, key: Any, workspace: Any) -> None:
        """Keep a workspace for later; the oldest go when all together have too many `bytes`."""
        self.workspaces[key] = workspace
        while len(self.workspaces) > 1 and sum(one.bytes for one in self.workspaces.values()) > self.limit:
            self.workspaces.popitem(last=False)


GRAPH_CACHES: "weakref.WeakKeyDictionary[nn.Module, GraphCache]" = weakref.WeakKeyDictionary()


class _TrustedModel(threading.local):
    """The model that one thread has checked, and need not check again for a while."""

    model: object = None
    cache: GraphCache | None = None


_TRUSTED = _TrustedModel()


@contextmanager
def model_unchanged(model: object) -> Iterator[None]:
    """Promise that the model does not change inside: its fingerprint is compared once, not in every call."""
    before = _TRUSTED.model, _TRUSTED.cache
    _TRUSTED.model, _TRUSTED.cache = model, before[1] if before[0] is model else None
    try:
        yield
    finally:
        _TRUSTED.model, _TRUSTED.cache = before


def graph_cache(model: nn.Module) -> GraphCache:
    """The graphs of a model; an empty cache if it has none or has changed."""
    if _TRUSTED.model is not model:
        return _checked_graph_cache(model)
    _TRUSTED.cache = _checked_graph_cache(model) if _TRUSTED.cache is None else _TRUSTED.cache
    return _TRUSTED.cache


def _checked_graph_cache(model: nn.Module) -> GraphCache:
    found = GRAPH_CACHES.get(model)
    if found is None or found.fingerprint is None or not found.fingerprint.matches():
        total = torch.cuda.get_device_properties(next(model.parameters()).device).total_memory
        found = GRAPH_CACHES[model] = GraphCache(graph_capture(), total // MEMORY_SHARE, ModelFingerprint(model))
    return found


def encode(model: Any, tokens: Tokens) -> Memory:
    """The same as `model.encode(tokens)`, by a CUDA graph where possible.

    Rows and lengths are rounded up, so that few graphs serve many calls.
    """
    if tokens.ids.device.type != "cuda" or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return model.encode(tokens)
    if why_no_source_graph(model, tokens) is not None:
        return model.encode(tokens)
    cache = graph_cache(model)
    if cache.answer("encoder", lambda: why_no_encoder_graph(model)) is not None:
        return model.encode(tokens)
    return graph_encode(cache, model.encoder, tokens)


def why_no_source_graph(model: object, tokens: Tokens) -> str | None:
    """Why a graph cannot encode these tokens with this kind of model; None if it can."""
    encoder = getattr(model, "encoder", None)
    if not isinstance(model, nn.Module) or not isinstance(encoder, Encoder) or model.training:
        return "the encoder of the model is not a stack of blocks, or is in training mode"
    count = tokens.ids.numel()
    if not count or count > MAX_SOURCE_TOKENS or tokens.segments is not None or tokens.side != "right":
        return f"there are no tokens, or more than {MAX_SOURCE_TOKENS:,}, or segments, or padding on the left"
    return None


def why_no_encoder_graph(model: Any) -> str | None:
    """Why the encoder of a model cannot be captured; None if it can."""
    inside = all_modules(model.encoder)
    for module in inside:
        if isinstance(module, Block) and not isinstance(module.mixer, SelfAttention):
            return "a block has a mixer other than self-attention"
        if isinstance(module, AttentionLayer) and module.tap.listeners:
            return "an attention layer has listeners"
    return "a module has hooks" if has_hooks(inside) else None


class GraphEncoder:
    """An encoder as a CUDA graph, for one size of sources: `rows` of `length` tokens."""

    def __init__(self, encoder: Encoder, rows: int, length: int, capture: GraphCapture) -> None:
        self.encoder, like = encoder, encoder.embedding.tokens.weight
        with torch.inference_mode(False), torch.no_grad():
            self.ids = torch.zeros(rows, length, dtype=torch.long, device=like.device)
            self.lengths = torch.ones(rows, dtype=torch.long, device=like.device)
            self.states = like.new_zeros(rows, length, encoder.width)
        self.work = capture(self._encode)

    def _encode(self) -> None:
        self.states.copy_(self.encoder.states(Tokens(self.ids, self.lengths)))

    def __call__(self, tokens: Tokens) -> Memory:
        """The memory of at most as many rows. Rows beyond them are encoded too, and ignored."""
        rows, count = tokens.ids.shape
        self.ids[:rows, :count] = tokens.ids
        self.lengths[:rows] = count if tokens.lengths is None else tokens.lengths
        self.work()
        return Memory(self.states[:rows, :count].clone(), tokens.lengths)


def graph_encode(cache: GraphCache, encoder: Encoder, tokens: Tokens) -> Memory:
    """Encode tokens by a graph of their size from this cache."""
    rows, count = tokens.ids.shape
    limit, length = encoder.embedding.limit, round_up(count, SOURCE_STEP)
    length = max(count, length if limit is None else min(length, limit))
    key = (1 << (rows - 1).bit_length(), length, encoder.embedding.tokens.weight.dtype)
    with cache.entered(tokens.ids):
        if key not in cache.encoders:
            cache.encoders[key] = GraphEncoder(encoder, *key[:2], cache.capture)
            if len(cache.encoders) > MAX_ENCODERS:
                cache.encoders.popitem(last=False)
        cache.encoders.move_to_end(key)
        return cache.encoders[key](tokens)


def round_up(count: int, step: int) -> int:
    """The smallest multiple of `step` that is at least `count`."""
    return -(-count // step) * step
