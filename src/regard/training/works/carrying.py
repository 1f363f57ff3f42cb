"""Truncated back-propagation through time: the state of a recurrent model goes on from window to window.

    Window(batch, first)          a batch of `Streams`, and whether the text begins anew with it
    ContinuousFeed(streams)       the windows of every step
    CarriedObjective(model)       the loss of a window, after what the windows before it left in mind

Gradients flow inside a window and stop at its edge (Williams and Peng 1990). The state lies in places that stay the
same from step to step, and `first` is a tensor, so that a step can be recorded once and replayed. It does not know
texts or files.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import checks
from regard.convolution import ConvolutionConfig
from regard.data.batches.batch import Batch
from regard.data.batches.buckets import Numbers
from regard.data.batches.windows import Streams
from regard.models.contract import IGNORED, Tokens
from regard.models.language import LanguageConfig, LanguageModel
from regard.recurrence.scan import RecurrenceConfig
from regard.training.loss import Loss, token_loss
from regard.training.work import Objective

NAME = "memory"


@dataclass(frozen=True)
class Window:
    """A batch, and whether its rows begin anew: a bool tensor of no dimensions."""

    batch: Batch
    first: Tensor

    @property
    def tokens(self) -> int:
        """How many labels there are in it."""
        return self.batch.tokens

    @property
    def numbers(self) -> Numbers:
        """Which rows of the text these are."""
        return self.batch.numbers

    def to(self, device: "torch.device | str") -> "Window":
        """The same on a device."""
        return Window(self.batch.to(device), self.first.to(device))


class ContinuousFeed:
    """The windows of streams by the number of the step, all of them equally long."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams

    @property
    def steps(self) -> int:
        """How many steps every epoch has."""
        return self.streams.steps

    def at(self, step: int) -> Window:
        """The window of this process in this step. With the first of an epoch the text begins anew."""
        place = self.streams.place(step)
        batch = filled(self.streams.make(place), self.streams.length, self.streams.padding)
        return Window(batch, torch.tensor(place.turn == 0))

    def largest(self) -> list[Window]:
        """The windows that need most memory: any, as all need equally much."""
        return [self.at(0)]


class CarriedObjective(Objective):
    """The loss of a language model that goes on from where the last window ended."""

    def __init__(self, model: nn.Module, smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.smoothing = smoothing
        self._kept: tuple[Tensor, ...] = ()
        self._aside: tuple[Tensor, ...] = ()  # the same while judging, which must not disturb what is learned

    def forward(self, window: Window) -> Loss:
        """The sums over the labels of a window."""
        model, ids = self.model, window.batch.inputs.ids
        assert isinstance(model, LanguageModel)
        start = model.start(rows=ids.shape[0], capacity=ids.shape[1])
        fresh = start.memories()
        kept = self._places(fresh)
        memories = [torch.where(window.first, new, old) for new, old in zip(fresh, kept, strict=True)]
        features, after = model.read(start.remembering(memories), ids)
        with torch.no_grad():
            for place, memory in zip(kept, after.memories(), strict=True):
                place.copy_(memory)
        return token_loss(features, model.output, window.batch.labels, self.smoothing)

    def carried(self) -> dict[str, Tensor]:
        """The memories after the last window."""
        return {f"{NAME}.{number}": memory.clone() for number, memory in enumerate(self._kept)}

    def resume(self, carried: Mapping[str, Tensor]) -> None:
        """Go on with these memories."""
        given = [carried[f"{NAME}.{number}"] for number in range(len(carried))]
        if [one.shape for one in given] == [place.shape for place in self._kept]:
            for place, one in zip(self._kept, given, strict=True):
                place.copy_(one)  # a recorded step reads from these very places
        else:
            device = next(self.model.parameters()).device
            self._kept = tuple(one.to(device, copy=True) for one in given)

    def _places(self, fresh: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Where the memories lie; made where there are none for so many rows."""
        shapes = [memory.shape for memory in fresh]
        if not self.training:
            if [memory.shape for memory in self._aside] != shapes:
                self._aside = tuple(memory.detach().clone() for memory in fresh)
            return self._aside
        if not self._kept:
            self._kept = tuple(memory.detach().clone() for memory in fresh)
        if [memory.shape for memory in self._kept] != shapes:
            raise checks.wrong("window", f"of {len(self._kept[0])} rows, as those before it", f"of {len(fresh[0])}")
        return self._kept


def carries(made_from: LanguageConfig) -> bool:
    """Whether a model remembers equally much at all times, and knows no positions: then a text can go on for ever."""
    mixer, positions = made_from.stack.mixer, made_from.embedding.positions
    return isinstance(mixer, RecurrenceConfig | ConvolutionConfig) and positions is None


def filled(batch: Batch, length: int, padding: int) -> Batch:
    """A batch of windows, all filled up to one length.

    What fills up comes last, where a causal model does not see it, so nobody needs to be told the lengths.
    """
    more = length - batch.labels.shape[1]
    ids, labels = F.pad(batch.inputs.ids, (0, more), value=padding), F.pad(batch.labels, (0, more), value=IGNORED)
    return Batch(None, Tokens(ids), labels, batch.numbers, batch.tokens)
