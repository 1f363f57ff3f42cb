"""The ways to process a sequence, made equal in all but the way: the same block, about as many parameters.

    rnn, lstm, gru, mut1, mut2, mut3    recurrence: two layers
    convolution                         causal, dilated: the distance between taps doubles from layer to layer; as many
                                        layers as let the last token see half as far again as the first, to which only
                                        a single path would lead otherwise
    attention                           causal self-attention: two layers of four heads, with rotary positions

    x ── read ── block ── block ── … ── norm ── output        block: pre-norm, a mixer and a feed-forward part

Only the mixer differs, and what comes with it: depth for convolution, positions for attention, which has no order of
its own. Heads are 16 features wide however wide the model is, and positions are rotary: with heads of 8, or with
sinusoids added, associative recall was still far from learned when it was learned with these. It does not know tasks
but for their sizes, nor how it is trained.

Legend: B rows, N tokens, D width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from regard import checks
from regard.attention.mixing import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import MixerConfig, Stack, StackConfig
from regard.comparison.memory.tasks import Task
from regard.convolution import Convolution, ConvolutionConfig, receptive_field
from regard.models.embedding import output
from regard.position.rotary import RotaryConfig
from regard.recurrence.cell import CELLS
from regard.recurrence.scan import RecurrenceConfig

KERNEL, LAYERS, HEADS, HEAD_WIDTH = 8, 2, 4, 16
NUMBERS = 2
"""Features of an input that is no symbol."""


@dataclass(frozen=True)
class Way:
    """One way: its mixer, how many layers a sequence of so many tokens needs, and how fast it learns."""

    mixer: MixerConfig
    layers: Callable[[int], int]
    rate: float


def _enough(tokens: int) -> int:
    """Layers of convolutions whose dilation doubles, such that the last token sees half as many again."""
    layers = 1
    while 1 + (KERNEL - 1) * (2**layers - 1) < 1.5 * tokens:
        layers += 1
    return layers


def _two(tokens: int) -> int:
    return LAYERS


WAYS: Mapping[str, Way] = {
    **{cell: Way(RecurrenceConfig(cell=cell), _two, 5e-3) for cell in CELLS},
    "convolution": Way(ConvolutionConfig(kernel=KERNEL, growth=2), _enough, 2e-3),
    "attention": Way(SelfAttentionConfig(heads=HEADS, head_width=HEAD_WIDTH, position=RotaryConfig()), _two, 5e-3),
}


class Reader(nn.Module):
    """Inputs to outputs through a stack: ids (B, N) or numbers (B, N, features) -> (B, N, outputs)."""

    def __init__(self, task: Task, way: Way, width: int) -> None:
        super().__init__()
        self.read = (nn.Linear(NUMBERS, width) if task.symbols is None
                     else nn.Embedding(task.symbols, width))
        self.stack: Stack = config(way, task.tokens, width).build(width, causal=True)
        self.output = output(width, task.outputs, bias=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs of all tokens."""
        return self.output(self.stack(self.read(inputs)))

    @property
    def seen(self) -> int | None:
        """How many tokens an output can depend on; None where there is no limit."""
        mixers = [block.mixer for block in self.stack.blocks]
        convolutions = [mixer for mixer in mixers if isinstance(mixer, Convolution)]
        return receptive_field(convolutions) if convolutions else None


def config(way: Way, tokens: int, width: int) -> StackConfig:
    """The stack of a way, for sequences of so many tokens."""
    return StackConfig(layers=way.layers(tokens), order="pre", mixer=way.mixer,
                       feed_forward=FeedForwardConfig(inner=2 * width))


def reader(task: Task, name: str, parameters: int) -> Reader:
    """The model of a way: the widest that has at most so many learned numbers, in steps of 8 features."""
    way = checks.pick("ways", name, WAYS)
    width = 8
    if _count(task, way, width) > parameters:
        raise checks.wrong("parameters", f"at least {_count(task, way, width):,} for {name} and {task.tokens} tokens",
                           f"{parameters:,}")
    while _count(task, way, width + 8) <= parameters:
        width += 8
    return Reader(task, way, width)


def _count(task: Task, way: Way, width: int) -> int:
    read = (NUMBERS + 1) * width if task.symbols is None else task.symbols * width
    return read + config(way, task.tokens, width).parameters(width) + (width + 1) * task.outputs
