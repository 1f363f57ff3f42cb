"""Work on a GPU that is recorded once for each shape of its arguments, and from then on replayed by one call.

A small model's step is thousands of small kernels, and a GPU does them faster than Python can ask for them. A CUDA
graph holds them all. It reads its arguments from fixed places, into which new ones are copied, and writes where the
recorded work wrote; so the work must give its results by writing into tensors that live elsewhere, and must never ask
the device for a number.

The first call of a shape runs as it is: it is of use, and it sets up what libraries set up once. The second is recorded
and then replayed. It does not know what the work is.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

MOST = 128
"""Shapes that are recorded; later ones run as they are."""


class Captured:
    """work(*arguments) -> None, replayed from the second call of a shape on.

    What is `beside` it lends its memory: then the two may not be replayed at the same time.
    """

    def __init__(self, work: Callable[..., None], beside: "Captured | None" = None) -> None:
        self.work, self.beside = work, beside
        self.seen: set[Any] = set()
        self.recorded: dict[Any, tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]] = {}
        self.pool: Any = None

    def __call__(self, *arguments: Any) -> None:
        shape = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors(arguments))
        if shape not in self.recorded:
            if shape not in self.seen or len(self.recorded) >= MOST:
                self.seen.add(shape)
                self.work(*arguments)
                return
            self.recorded[shape] = self._record(arguments)
        graph, places = self.recorded[shape]
        for place, tensor in zip(tensors(places), tensors(arguments), strict=True):
            place.copy_(tensor, non_blocking=True)
        graph.replay()

    def _record(self, arguments: tuple[Any, ...]) -> tuple[torch.cuda.CUDAGraph, tuple[Any, ...]]:
        places = tuple(argument.to("cuda") for argument in arguments)
        graph = torch.cuda.CUDAGraph()
        if self.pool is None and self.beside is not None:
            self.pool = self.beside.pool
        torch.cuda.synchronize()
        # Of this thread alone: meanwhile another one makes batches, and asks for memory that the device can read.
        with torch.cuda.graph(graph, pool=self.pool, stream=torch.cuda.current_stream(),
                              capture_error_mode="thread_local"):
            self.work(*places)
        self.pool = graph.pool() if self.pool is None else self.pool
        return graph, places


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in dataclasses and sequences, in the order of their fields."""
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)


def pinned(batch: Any) -> Any:
    """The batch in memory that a GPU reads by itself, while Python goes on."""
    if isinstance(batch, Tensor):
        return batch.pin_memory()
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return dataclasses.replace(batch, **{field.name: pinned(getattr(batch, field.name))
                                             for field in dataclasses.fields(batch) if field.init})
    return batch
