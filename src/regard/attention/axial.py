"""`AxialAttention`: gated attention along one axis of a grid of tokens, with a bias from pairs.

A grid of tokens (..., I, J, width) is a set of sequences side by side. A multiple sequence alignment (MSA) has a row
for each protein and a column for each residue; a table of pairs has a row and a column for each residue; an image has
rows and columns of patches. Attention along an axis computes every sequence of that axis by itself:

    axis=-2   inside of every row:      (i, j) attends to (i, k) for all k
    axis=-3   inside of every column:   (i, j) attends to (k, j) for all k

    a = softmax(q·k/√D + b),   b_qk = W_b · pair_qk for each head;   y = W_O (σ(W_G x + b_G) ⊙ Σ a v) + b_O

The bias b is the same for all rows (or all columns), and is never repeated for them. With it, these four layers of
AlphaFold (Jumper et al. 2021) are one; their norms are in `regard.models.protein`:

    Algorithm 7    rows of the MSA, axis=-2, with the pairs of residues
    Algorithm 8    columns of the MSA, axis=-3, without pairs
    Algorithm 13   triangle attention around the starting node: the pairs along axis=-2, with themselves as pairs
    Algorithm 14   around the ending node: the pairs along axis=-3, with their transpose as pairs

Attention along both axes one after the other reaches the whole grid at a cost of I·J·(I + J) in place of (I·J)² pairs
(Ho et al. 2019).

Legend: I rows, J columns, H heads, N tokens of the axis, D width of a head.
"""

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.layer import Attention
from regard.attention.mask import BoolMask
from regard.attention.mask_cache import zero_absent
from regard.kernels.linear import Linear

ROW_AXIS, COLUMN_AXIS = -2, -3


class AxialAttention(nn.Module):
    """Self-attention along one axis of a grid of tokens, with an output gate and a bias from pairs.

    Queries, keys and values are projected without a bias, the gate and the output with one. As in AlphaFold, the gate
    starts at weight 0 and bias 1 (σ(1) = 0.73 everywhere), and the output projection at 0: a new layer adds nothing.

    Args:
        width: the width of a token.
        heads: the number of heads.
        axis: -2 to attend inside of every row, -3 inside of every column.
        head_width: the width of a head; width / heads by default.
        pair_width: the width of the pairs that give the bias; None for a layer without a bias.
        gate: whether a sigmoid gate multiplies the output of the heads.
        backend: as for `attend`.

    Example:
        import torch
        import regard

        layer = regard.AxialAttention(32, heads=4, axis=-2, pair_width=16)
        msa, pairs = torch.randn(5, 20, 32), torch.randn(20, 20, 16)            # 5 sequences of 20 residues
        assert layer(msa, pairs).shape == (5, 20, 32)
    """

    def __init__(self, width: int, *, heads: int, axis: int, head_width: int | None = None,
                 pair_width: int | None = None, gate: bool = True, backend: str | None = None) -> None:
        super().__init__()
        if axis not in (ROW_AXIS, COLUMN_AXIS):
            raise checks.wrong("axis", "-2 (inside of rows) or -3 (inside of columns)", axis)
        if pair_width is not None and pair_width < 1:
            raise checks.wrong("pair_width", "at least 1, or None", pair_width)
        self.axis, self.pair_width = axis, pair_width
        self.attention = Attention(width, heads=heads, head_width=head_width, qkv_bias=False, gate=gate,
                                   backend=backend)
        self.pair_bias = None if pair_width is None else Linear(pair_width, heads, bias=False)
        self.reset_parameters()

    def extra_repr(self) -> str:
        """The axis."""
        return f"axis={self.axis}"

    def reset_parameters(self) -> None:
        """Set AlphaFold's initial values of the gate, the output and the bias of pairs."""
        nn.init.zeros_(self.attention.output.weight)
        if self.attention.gate is not None:
            nn.init.zeros_(self.attention.gate.weight)
            nn.init.ones_(self.attention.gate.bias)
        if self.pair_bias is not None:
            nn.init.normal_(self.pair_bias.weight, std=self.pair_bias.in_features ** -0.5)

    def forward(self, x: Tensor, pairs: Tensor | None = None, *, present: Tensor | None = None) -> Tensor:
        """Compute attention along the axis: (..., I, J, width) -> (..., I, J, width).

        Args:
            pairs: (..., N, N, pair width), N the size of the axis: the features of a pair of a query and a key, the
                same for all rows (or columns). Required if the layer has a `pair_width`.
            present: bool, (..., I, J): which tokens exist. The others are not read, and give zeros.
        """
        self._check(x, pairs, present)
        along_columns = self.axis == COLUMN_AXIS
        x = zero_absent(x, present)
        heads = self.attention.projected(x, None)  # (..., I, H, J, D); for columns I and J change places, as a view
        query, key, value = (part.transpose(-4, -2) if along_columns else part for part in heads)
        mask, bias = None, None
        if present is not None:
            mask = BoolMask((present.mT if along_columns else present)[..., None, None, :])
        if self.pair_bias is not None:
            assert pairs is not None, "checked above"
            bias = self.pair_bias(pairs).movedim(-1, -3).unsqueeze(-4)
        output = self.attention.attend_heads(query, key, value, mask, bias)
        output = output.transpose(-4, -2) if along_columns else output
        return zero_absent(self.attention.finish(output, x), present)

    def _check(self, x: Tensor, pairs: Tensor | None, present: Tensor | None) -> None:
        width = self.attention.width
        if x.dim() < 3 or x.shape[-1] != width:
            raise checks.wrong("x", f"of shape (..., rows, columns, {width})", f"of shape {checks.shape(x)}")
        if (pairs is None) != (self.pair_bias is None):
            given = "None" if pairs is None else f"of shape {checks.shape(pairs)}"
            expected = "None in a layer without a pair_width" if self.pair_bias is None else (
                f"a tensor of shape (..., N, N, {self.pair_width}), because the layer has a pair_width")
            raise checks.wrong("pairs", expected, given)
        size = x.shape[self.axis]
        if pairs is not None and (pairs.dim() < 3 or pairs.shape[-3:] != (size, size, self.pair_width)):
            raise checks.wrong("pairs", f"of shape (..., {size}, {size}, {self.pair_width})",
                               f"of shape {checks.shape(pairs)}")
        if present is not None and (present.dtype != torch.bool or present.shape != x.shape[:-1]):
            raise checks.wrong("present", f"a bool tensor of shape {checks.shape(x[..., 0])}",
                               f"{present.dtype} of shape {checks.shape(present)}")
