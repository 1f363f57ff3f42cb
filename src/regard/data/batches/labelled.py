"""Batches of texts or images that have one label each.

    TextRows(read, labels, layout, padding)       makes batches of texts by their numbers
    ImageRows(store, labels, shape, shift, seed)   makes batches of images, each moved by a few pixels at random
    labelled_feed(plan, rows)                      the batch of every step, on any number of processes

Images lie in a store as their bytes, one after another, and come as bytes: who reads them scales them. How far an image
is moved follows from (seed, epoch, its number) alone. It does not know what the labels are called.

Legend: B rows, C channels, H height, W breadth.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import checks
from regard.data.batches.batch import Batch, Layout, Reader
from regard.data.batches.buckets import Numbers
from regard.data.batches.feed import Feed
from regard.data.batches.order import below, key
from regard.data.batches.plan import Plan, Shape
from regard.data.batches.shapes import fitted
from regard.data.images import reading
from regard.data.store import TextStore
from regard.models.contract import IGNORED, AnyTokens


@dataclass(frozen=True)
class LabelledBatch:
    """What a model reads, and the label of each row."""

    inputs: AnyTokens | Tensor
    """Texts, or the bytes of images (B, C, H, W)."""
    labels: Tensor
    """(B,): the number of each row's label; IGNORED for rows that only fill up."""
    numbers: Numbers
    """Which texts or images these are, by their numbers in the store."""
    tokens: int
    """How many labels are not IGNORED."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.labels)

    def to(self, device: "torch.device | str") -> "LabelledBatch":
        """The same on a device."""
        return LabelledBatch(self.inputs.to(device), self.labels.to(device), self.numbers, self.tokens)


Maker = Callable[[Numbers, int], LabelledBatch]
"""(numbers, epoch) -> their batch"""


@dataclass(frozen=True)
class TextRows:
    """Makes batches of texts."""

    read: Reader
    labels: Numbers
    """Of every text, by its number."""
    layout: Layout
    padding: int = 0

    def __call__(self, numbers: Numbers, epoch: int) -> LabelledBatch:
        """The batch of these numbers; with none of them, a batch without rows."""
        (texts,) = self.read(numbers, epoch)
        return LabelledBatch(self.layout(texts, self.padding), torch.from_numpy(self.labels[numbers]), numbers,
                             len(numbers))


@dataclass(frozen=True)
class FittedRows:
    """Makes batches of texts in few shapes, as `regard.data.batches.shapes` tells."""

    maker: TextRows
    shapes: tuple[Shape, ...]

    def __call__(self, numbers: Numbers, epoch: int) -> LabelledBatch:
        """The batch of these numbers, filled up with rows without tokens."""
        batch = self.maker(numbers, epoch)
        assert not isinstance(batch.inputs, Tensor)
        rows = fitted(Batch(None, batch.inputs, batch.inputs.ids, numbers, batch.tokens), self.shapes,
                      self.maker.padding).inputs
        labels = torch.cat([batch.labels, torch.full((rows.rows - batch.rows,), IGNORED)])
        return LabelledBatch(rows, labels, numbers, batch.tokens)


@dataclass(frozen=True)
class ImageRows:
    """Makes batches of images.

    Args:
        store: the bytes of each image, (C, H, W).
        shift: by how many pixels an image may be moved each way; what comes in is the edge, repeated.
    """

    store: TextStore
    labels: Numbers
    shape: reading.Shape
    shift: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.store.stream) != len(self.store) * self.shape.numbers:
            raise checks.wrong("store", f"of {len(self.store)} images of {self.shape}", "of others")

    def __call__(self, numbers: Numbers, epoch: int) -> LabelledBatch:
        """The batch of these numbers; with none of them, a batch without rows."""
        height, breadth, channels = self.shape
        pixels_BCHW = self.store.stream.reshape(-1, channels, height, breadth)[numbers]
        self.store.release()
        if self.shift:
            down_B, right_B = (below(2 * self.shift + 1, key(self.seed, epoch, way), numbers) - self.shift
                               for way in (0, 1))
            pixels_BCHW = moved(pixels_BCHW, down_B, right_B)
        return LabelledBatch(torch.from_numpy(pixels_BCHW), torch.from_numpy(self.labels[numbers]), numbers,
                             len(numbers))


def moved(pixels_BCHW: NDArray[np.uint8], down_B: Numbers, right_B: Numbers) -> NDArray[np.uint8]:
    """Each image moved by so many pixels. What comes in is the edge, repeated."""
    B, C, H, W = pixels_BCHW.shape
    row_BH = np.clip(np.arange(H) - down_B[:, None], 0, H - 1)
    column_BW = np.clip(np.arange(W) - right_B[:, None], 0, W - 1)
    return pixels_BCHW[np.arange(B)[:, None, None, None], np.arange(C)[:, None, None], row_BH[:, None, :, None],
                       column_BW[:, None, None, :]]


def labelled_feed(plan: Plan, maker: Maker, *, rank: int = 0, processes: int = 1,
                  largest: Sequence[Numbers] = ()) -> Feed:
    """A feed whose batches have labels."""
    return Feed(plan, maker, rank=rank, processes=processes, largest=largest)  # type: ignore[arg-type]  # any batches


def in_order(lengths: Numbers, budget: int) -> Iterator[Numbers]:
    """All numbers once, the shortest sequences first, in batches that with padding hold at most so many tokens."""
    order = np.argsort(lengths, kind="stable")
    first = 0
    for last in range(1, len(order) + 1):
        if last == len(order) or (last + 1 - first) * lengths[order[last]] > budget:
            yield order[first:last]
            first = last
