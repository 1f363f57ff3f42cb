"""A stack of blocks, with a norm at the end where the blocks are pre-norm.

With activation checkpointing, the activations inside a block are not kept for the backward pass but computed again
(less memory, about a third more time). A stack does not know embeddings, vocabularies or what its tokens are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard import checks
from regard.attention.layer import Attention, AttentionConfig, SelfAttentionConfig
from regard.attention.mask import Mask, Packed, Padding
from regard.attention.mask_cache import CachedMask, CachedPacked, CachedPadding, present_tokens, zero_absent
from regard.blocks.block import Block, BlockState
from regard.blocks.feed_forward import FeedForward, FeedForwardConfig
from regard.blocks.sublayer import NORM_POSITIONS, NORMS, make_norm
from regard.config import Config, choice, integer, number, probability, renamed
from regard.convolution import ConvolutionConfig
from regard.mixer import CompositeState, FirstValues
from regard.recurrence.lstmn import LSTMNConfig
from regard.recurrence.scan import RecurrenceConfig
from regard.rwkv.channel_mix import ChannelMixConfig
from regard.rwkv.time_mix import RWKV4Config, RWKV7Config


@dataclass(frozen=True)
class StackState(CompositeState):
    """The states of all blocks, the lowest first."""

    blocks: tuple[BlockState, ...]


class Stack(nn.Module):
    """Blocks in sequence: (B, N, D) -> (B, N, D).

    Args:
        blocks: the blocks, from the first to the last.
        last_norm: a norm after the last block; None after post-norm blocks, which end with their own.
        activation_checkpointing: compute the activations again in the backward pass instead of keeping them, which
            takes less memory and more time.
    """

    @checks.renamed_arguments(checkpoint="activation_checkpointing")
    def __init__(self, blocks: Sequence[Block], last_norm: nn.Module | None = None, *,
                 activation_checkpointing: bool = False) -> None:
        super().__init__()
        self.blocks, self.last_norm = nn.ModuleList(blocks), last_norm
        self.activation_checkpointing = activation_checkpointing

    def forward(self, x: Tensor, present: Mask | None = None, context: Tensor | None = None,
                context_present: Mask | None = None) -> Tensor:
        """Run over all tokens at once: (B, N, D) -> (B, N, D). The arguments are those of `Block.forward`."""
        if isinstance(present, Padding):
            present = CachedPadding(present)
        if isinstance(context_present, Padding) and context is not None:
            there_BN = present_tokens(context, context_present, "context_present")
            assert there_BN is not None
            context, context_present = zero_absent(context, there_BN), CachedMask(there_BN[:, None, None])
        if x.device.type != "cpu":  # there segments are cut, where the lengths are known
            if isinstance(present, Packed):
                present = CachedPacked(present)
            if isinstance(context_present, Packed) and context is not None:
                context_present = CachedPacked(context_present).under(None, x.shape[-2], context.shape[-2], x.dim() - 1,
                                                                      x.device)
        first = FirstValues()
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                x = checkpoint(block, x, present, context, context_present, first, use_reentrant=False)
            else:
                x = block(x, present, context, context_present, first)
        return x if self.last_norm is None else self.last_norm(x)

    def start(self, rows: int, capacity: int, context: Tensor | None = None,
              lengths: Tensor | None = None) -> StackState:
        """Return the state before the first token. The arguments are those of `Block.start`."""
        return StackState(tuple(block.start(rows, capacity, context, lengths)  # type: ignore[operator]
                                for block in self.blocks))

    def step(self, x: Tensor, state: StackState, *, lengths: Tensor | None = None) -> tuple[Tensor, StackState]:
        """Continue with one token or a chunk; the state is consumed."""
        after, first = [], FirstValues()
        for block, own in zip(self.blocks, state.blocks, strict=True):
            x, following = block.step(x, own, lengths=lengths, first=first)  # type: ignore[operator]
            after.append(following)
        return (x if self.last_norm is None else self.last_norm(x)), StackState(tuple(after))


MixerConfig = SelfAttentionConfig | RecurrenceConfig | ConvolutionConfig | LSTMNConfig | RWKV4Config | RWKV7Config


@dataclass(frozen=True, kw_only=True)
class StackConfig(Config):
    """Config of a stack of equal layers."""

    layers: int = integer(minimum=1)
    """Number of layers."""
    norm_position: str = choice(NORM_POSITIONS, "pre", old="order", old_values={"plain": "none"})
    """Position of the normalization: before each sublayer (pre), after it (post), or none."""
    norm: str = choice(NORMS, "layer")
    """Kind of normalization: LayerNorm or RMSNorm."""
    epsilon: float = number(1e-5, minimum=0.0)
    """Epsilon of the normalization."""
    dropout: float = probability(0.0)
    """Dropout of the output of every sublayer, before the residual connection."""
    activation_checkpointing: bool = renamed(False, old="checkpoint")
    """Whether activations are computed again in the backward pass, which saves memory and costs time."""
    mixer: MixerConfig
    """How a layer combines the tokens of a sequence."""
    cross: AttentionConfig | None = None
    """Cross-attention to the source, for decoders."""
    feed_forward: FeedForwardConfig | None = None
    """The feed-forward layer; none without this table."""
    channel_mix: ChannelMixConfig | None = None
    """RWKV's channel mix, in the place of a feed-forward layer."""

    def build(self, width: int, *, causal: bool) -> Stack:
        """Build the blocks for tokens of this width; in a causal stack no token sees those after it."""
        blocks = [Block(self.mixer.mixer(width, causal, layer, self.layers), self._feed_forward(width, causal, layer),
                        width,
                        cross=None if self.cross is None else self.cross.build(width), norm_position=self.norm_position,
                        norm_name=self.norm, epsilon=self.epsilon, dropout=self.dropout)
                  for layer in range(self.layers)]
        stack = Stack(blocks, make_norm(self.norm, width, self.epsilon) if self.norm_position == "pre" else None,
                      activation_checkpointing=self.activation_checkpointing)
        if self.norm_position == "pre":
            _scale_residual_outputs(stack, self.layers)
        return stack

    def _feed_forward(self, width: int, causal: bool, layer: int) -> nn.Module | None:
        if self.channel_mix is not None:
            return self.channel_mix.build(width, causal, layer, self.layers)
        return None if self.feed_forward is None else self.feed_forward.build(width)

    def parameters(self, width: int, *, causal: bool) -> int:
        """The number of parameters of the stack."""
        first, later = (self.mixer.parameters(width, causal, layer) for layer in (0, 1))
        counts = [first + (self.layers - 1) * later,  # only the first may differ
                  *(self.layers * part.parameters(width) for part in (self.cross, self.feed_forward) if part),
                  *([self.layers * self.channel_mix.parameters(width, causal)] if self.channel_mix else [])]
        norms = 0 if self.norm_position == "none" else len(counts) * self.layers + (self.norm_position == "pre")
        return sum(counts) + norms * width * (2 if self.norm == "layer" else 1)

    def clashes(self, width: int, causal: bool) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value does not fit a model of this width."""
        for name, part in (("mixer", self.mixer), ("cross", self.cross)):
            for key, why in () if part is None else part.clashes(width, causal):
                yield f"{name}.{key}", why
        if self.channel_mix is not None and self.feed_forward is not None:
            yield "channel_mix", "a stack has either a channel mix or a feed-forward layer"


def _scale_residual_outputs(stack: Stack, layers: int) -> None:
    """Scale down the initial output weights of every sublayer, as in GPT-2.

    The deeper the stack, the smaller they start, so the sum on the residual does not grow with the depth. Post-norm
    blocks do not need it: they end with a norm.
    """
    for module in stack.modules():
        if isinstance(module, Attention | FeedForward):
            last = module.output if isinstance(module, Attention) else module.down
            last.weight.data.mul_((2 * layers) ** -0.5)
