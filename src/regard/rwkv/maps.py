"""Where RWKV looks: the map M of a layer, with which its results are sums over the values of earlier tokens.

    version 4    wkv_t = Σ_i M_ti v_i      for every channel: positive, and each row sums to 1
    version 7    S_t r_t = Σ_i M_ti v_i    for every head: signed, not probabilities

In version 7 the bonus Σ r∘k∘r_k of a token's own value is apart, because it is added after the norm. A mixer passes a
`MixerLook` to the listeners of its tap: the tensors that M is made from, which are small at any length. M itself,
(B, heads, N, N), is computed on demand and without gradients. In version 4 a head is the mean over all channels;
`channels` gives the map of each.

Legend: B rows, N tokens, D channels, H heads.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.rwkv.wkv import WKV7Inputs, wkv4_map, wkv7_map


@dataclass(frozen=True)
class MixerLook(ABC):
    """The tensors of one run of a mixer from which its map M is computed."""

    tensors: tuple[Tensor, ...]
    """In the order in which the mixer read the tokens."""
    present: Tensor | None
    """(B, N): the tokens that are not padding; None for all."""
    reverse: bool
    """Whether the mixer read the tokens from the last to the first."""

    @abstractmethod
    def weights(self) -> Tensor:
        """M, (B, H, N, N): the row of a token has the weights of all tokens' values."""

    def bonus(self) -> Tensor | None:
        """The weight of each token's own value that is added after the norm, (B, H, N); None where there is none."""
        return None

    def _in_order(self, M: Tensor) -> Tensor:
        return M.flip(-1, -2) if self.reverse else M


@dataclass(frozen=True)
class RWKV4Look(MixerLook):
    """A run of version 4; the tensors are k, w and u."""

    @torch.no_grad()
    def channels(self) -> Tensor:
        """The map of every channel, (B, D, N, N); the rows of present tokens sum to 1."""
        k, w, u = self.tensors
        return self._in_order(wkv4_map(k, w, u, self.present))

    def weights(self) -> Tensor:
        """The mean of the maps over all channels, (B, 1, N, N)."""
        return self.channels().mean(1, keepdim=True)


@dataclass(frozen=True)
class RWKV7Look(MixerLook):
    """A run of version 7; the tensors are r, log w, k, c, a, and the bonus."""

    @torch.no_grad()
    def weights(self) -> Tensor:
        """The signed map of every head, (B, H, N, N)."""
        r, log_w, k, c, a, _ = self.tensors
        M = wkv7_map(WKV7Inputs(r, log_w, k, k, c, a))
        return self._in_order(M if self.present is None else M * self.present[:, None, :, None])

    def bonus(self) -> Tensor:
        """Σ r∘k∘r_k of every token, (B, H, N)."""
        return self.tensors[-1].flip(-1) if self.reverse else self.tensors[-1]
