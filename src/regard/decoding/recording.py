"""Work on a GPU that is recorded once and from then on replayed by one call.

A step of a search is hundreds of small kernels, and a GPU does them faster than Python can ask for them. A CUDA graph
holds them all. It reads and writes the memory that the work read and wrote when it was recorded; so the work takes its
arguments from tensors that stay where they are, gives its results by writing into such tensors, and never asks the
device for a number. It does not know what the work is.

Around it is what keeps Python and the device from waiting for each other: `Post` brings numbers that a work has
written, after the next is already asked for; `Mirror` brings many at the end; `Order` keeps streams apart. On a CPU all
of them are plain copies.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Work = Callable[[], None]
Recorder = Callable[[Work], Work]
"""Makes of some work what does the same, faster."""


class Recording:
    """The same work, replayed from the second call on.

    The first call runs as it is: it is of use, and it sets up what libraries set up once.
    """

    def __init__(self, work: Work, pool: Any = None) -> None:
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


def recorder() -> Recorder:
    """Recordings that share the memory for what they need on the way: none needs it after its work is done."""
    pool = torch.cuda.graph_pool_handle()
    return lambda work: Recording(work, pool)


class Order:
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


class Post:
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


class Mirror:
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
