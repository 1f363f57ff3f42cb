"""The vision transformer: an image as a sequence of patches.

    image (B, C, H, W) ── patches (B, N, C·P·P) ── W_e ── prepend [class] ── + positions ── blocks ── norm
                                                                 state of [class], or the mean ── W ──► logits

Source: Dosovitskiy et al. 2021. N = (H/P)·(W/P), patches row by row. Without a class token the mean of the patches
represents the image. The model knows nothing of files, colours or cropping.

Legend: B images, C channels, H height, W width, P patch, N patches, D width of the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard import checks
from regard.blocks.stack import Stack, StackConfig
from regard.blocks.sublayer import Dropout
from regard.config import Config, integer, probability, renamed
from regard.position.encoding import (
    AddPositions,
    EncodingConfig,
    FormalSinusoidalConfig,
    LearnedConfig,
    PositionalEncoding,
)

CLASS_TOKENS = {"class": 1, "none": 0}
"""The number of tokens before the patches."""


class PatchEmbedding(nn.Module):
    """Images to a vector for every patch, after a class token where there is one.

    Args:
        size: height and width of an image, in pixels.
        patch: the height and width of a patch, in pixels.
        channels: the number of channels of an image.
        width: the width of the vectors.
        positions: an encoding of all positions; None for none.
        token: "class" for a learned vector before the patches, or "none".
    """

    def __init__(self, size: tuple[int, int], patch: int, channels: int, width: int, *,
                 positions: PositionalEncoding | None = None, token: str = "class", dropout: float = 0.0) -> None:
        super().__init__()
        if size[0] % patch or size[1] % patch:
            raise checks.wrong("patch", f"a number that divides the height and the width of the images, {size}", patch)
        checks.pick("token", token, CLASS_TOKENS)
        self.size, self.patch, self.channels = size, patch, channels
        self.project = nn.Linear(channels * patch * patch, width)
        self.token = nn.Parameter(torch.empty(width).normal_(std=0.02)) if token == "class" else None
        self.positions = None if positions is None else AddPositions(positions)
        self.dropout = Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N or N + 1, D)."""
        if images.dim() != 4 or tuple(images.shape[1:]) != (self.channels, *self.size):
            expected = f"of shape (images, {self.channels}, {self.size[0]}, {self.size[1]})"
            raise checks.wrong("images", expected, f"of shape {checks.shape(images)}")
        B, C, H, W = images.shape
        P = self.patch
        pieces = images.view(B, C, H // P, P, W // P, P).permute(0, 2, 4, 1, 3, 5).reshape(B, H * W // P**2, C * P * P)
        x = self.project(pieces)
        if self.token is not None:
            x = torch.cat([self.token.to(x.dtype).expand(B, 1, -1), x], dim=1)
        return self.dropout(x if self.positions is None else self.positions(x))


class ImageClassifier(nn.Module):
    """Image classification: the vision Transformer, which reads an image as a sequence of patches.

    Args:
        patches: images to a vector for every patch, after a class token where there is one.
        stack: the blocks.
        output: the state of the class token, or the mean of all states, to logits.
    """

    def __init__(self, patches: PatchEmbedding, stack: Stack, output: nn.Linear) -> None:
        super().__init__()
        self.patches, self.stack, self.output = patches, stack, output

    def states(self, images: Tensor) -> Tensor:
        """Compute the states of images: (B, C, H, W) -> (B, N or N + 1, D), the class token first."""
        return self.stack(self.patches(images))

    def features(self, images: Tensor) -> Tensor:
        """Compute the input of the output layer, (B, D)."""
        states = self.states(images)
        return states[:, 0] if self.patches.token is not None else states.mean(dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits: (B, C, H, W) -> (B, labels)."""
        return self.output(self.features(images))


@dataclass(frozen=True, kw_only=True)
class VisionConfig(Config):
    """Config of an image classifier."""

    kind: ClassVar[str] = "vision"
    image_height: int = integer(minimum=1, old="height")
    """Height in pixels to which images are resized."""
    image_width: int = integer(minimum=1, old="breadth")
    """Width in pixels to which images are resized."""
    channels: int = integer(3, minimum=1)
    """Colour channels: 1 for grey, 3 for RGB."""
    patch_size: int = integer(minimum=1, old="patch")
    """Side of the square patches, in pixels; it divides height and width."""
    num_labels: int = integer(minimum=1, old="labels")
    """Number of labels; the data determines it."""
    width: int = integer(minimum=1)
    """Width of the model (d_model): features of each token."""
    class_token: bool = renamed(True, old="token", old_values={"class": True, "none": False})
    """Whether a class token is read for the label; otherwise the mean of all patches."""
    dropout: float = probability(0.0)
    """Dropout of the patch embedding."""
    positions: EncodingConfig | None = None
    """Positional encoding of the patches; by default learned."""
    stack: StackConfig
    """The layers."""

    @property
    def tokens(self) -> int:
        """The number of tokens of an image."""
        return (self.image_height // self.patch_size) * (self.image_width // self.patch_size) + self.class_token

    @property
    def position_config(self) -> EncodingConfig:
        """The position encoding, chosen or learned."""
        return LearnedConfig(max_positions=self.tokens) if self.positions is None else self.positions

    def build(self) -> ImageClassifier:
        """Build the model with new parameters."""
        patches = PatchEmbedding((self.image_height, self.image_width), self.patch_size, self.channels, self.width,
                                 token="class" if self.class_token else "none",
                                 positions=self.position_config.build(self.width), dropout=self.dropout)
        last = nn.Linear(self.width, self.num_labels)
        nn.init.zeros_(last.bias)
        return ImageClassifier(patches, self.stack.build(self.width, causal=False), last)

    def parameters(self) -> int:
        """The number of parameters of the model."""
        front = (self.channels * self.patch_size**2 + 1 + self.class_token) * self.width
        return (front + self.position_config.parameters(self.width) + self.stack.parameters(self.width, causal=False)
                + (self.width + 1) * self.num_labels)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value conflicts with another."""
        for name, pixels in (("image_height", self.image_height), ("image_width", self.image_width)):
            if pixels % self.patch_size:
                yield "patch_size", f"{self.patch_size} does not divide {name}, {pixels}"
        yield from ((f"stack.{key}", why) for key, why in self.stack.clashes(self.width, causal=False))
        if self.stack.cross is not None:
            yield "stack.cross", "an image classifier has no source to attend to"
        if isinstance(self.positions, FormalSinusoidalConfig) and self.width % 2:
            yield "positions", f"formal sinusoids need an even width, but it is {self.width}"
        if isinstance(self.positions, LearnedConfig) and self.positions.max_positions < self.tokens:
            yield "positions.max_positions", f"it must be at least {self.tokens:,}, the number of tokens of an image"
