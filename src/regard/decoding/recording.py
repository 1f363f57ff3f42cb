"""Work on a GPU that is recorded once and from then on replayed by one call.

A step of a search is hundreds of small kernels, and a GPU does them faster than Python can ask for them. A CUDA graph
holds them all. It reads and writes the memory that the work read and wrote when it was recorded; so the work takes its
arguments from tensors that stay where they are, gives its results by writing into such tensors, and never asks the
device for a number. It does not know what the work is.
"""

from collections.abc import Callable
from typing import Any

import torch

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
