"""AlphaFold's layers for proteins: an MSA and a table of pairs that inform each other (the Evoformer block).

    msa    (..., S, N, msa_width)     a row for each of S related sequences, a column for each of N residues
    pair   (..., N, N, pair_width)    what is known about every pair of residues

    MSARowAttention          m += W_O(g ⊙ Σ_j softmax_j(q_si·k_sj/√c + b_ij) v_sj), b from the pairs   Algorithm 7
    MSAColumnAttention       the same from sequence to sequence at one residue, without a bias         Algorithm 8
    Transition               W_2 relu(W_1 LN(x)) of every token                                        Algorithms 9, 15
    OuterProductMean         z_ij += W flatten(mean_s a_si ⊗ b_sj)                                     Algorithm 10
    TriangleMultiplication   z_ij += g_ij ⊙ W LN(Σ_k a_ik ⊙ b_jk), or a_ki ⊙ b_kj                      Algorithms 11, 12
    TriangleAttention        z_ij += attention along a row (starting node) or a column (ending node)   Algorithms 13, 14
    EvoformerBlock           all of them, in the order of Algorithm 6, with residual connections

The three kinds of attention are one layer, `regard.AxialAttention`, with the norms that AlphaFold puts before it. Every
module returns the update, without the residual connection; only `EvoformerBlock` adds it.

Masks are bool, True where a token of the MSA or a pair exists. Absent tokens are not read, whatever they contain,
and their updates are zeros. (AlphaFold computes numbers there, and masks them later.) Layers start with AlphaFold's
initial values: gates at weight 0 and bias 1, last projections at 0, so that a new block changes nothing.

Equations and numbers: Jumper et al. 2021, supplement 1.6. Where its code differs from its paper, these layers follow
the paper: see `OuterProductMean`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import checks
from regard.attention.axial import COLUMN_AXIS, ROW_AXIS, AxialAttention
from regard.attention.mask_cache import zero_absent
from regard.blocks.feed_forward import PlainFeedForward
from regard.kernels.linear import Linear

NODES = {"starting": ROW_AXIS, "ending": COLUMN_AXIS}
"""The axis of triangle attention around each node."""
DIRECTIONS = {"outgoing": "...ikc,...jkc->...ijc", "incoming": "...kic,...kjc->...ijc"}
"""The sum over the third node k of a triangle, for each direction of its edges."""


def _check_sizes(**sizes: int | None) -> None:
    """Refuse a width, a number of heads or a factor below 1; None is a default."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise checks.wrong(name, "at least 1", size)


def _check_grid(name: str, x: Tensor, width: int, mask: Tensor | None, mask_name: str = "mask", *,
                square: bool = False) -> None:
    """Refuse a tensor that is not (..., rows, columns, width), and a mask that is not bool of its rows and columns."""
    if x.dim() < 3 or x.shape[-1] != width or (square and x.shape[-3] != x.shape[-2]):
        sides = "N, N" if square else "S, N"
        raise checks.wrong(name, f"of shape (..., {sides}, {width})", f"of shape {checks.shape(x)}")
    _check_mask(x, mask, mask_name)


def _check_mask(x: Tensor, mask: Tensor | None, name: str = "mask") -> None:
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:-1]):
        raise checks.wrong(name, f"a bool tensor of shape {tuple(x.shape[:-1])}",
                           f"{mask.dtype} of shape {checks.shape(mask)}")


def _check_pair(msa: Tensor, pair: Tensor, width: int) -> None:
    """Refuse pairs that are not those of the residues of the MSA."""
    size = msa.shape[-2]
    if pair.dim() < 3 or pair.shape[-3:] != (size, size, width):
        raise checks.wrong("pair", f"of shape (..., {size}, {size}, {width})", f"of shape {checks.shape(pair)}")


class MSARowAttention(nn.Module):
    """Attention from residue to residue inside of each sequence, with a bias from the pairs (Algorithm 7).

    Args:
        msa_width, pair_width: the widths of the MSA and of the pairs.
        heads, head_width: the heads, and the width of one.
        backend: as for `regard.attend`.
    """

    def __init__(self, msa_width: int, pair_width: int, *, heads: int = 8, head_width: int = 32,
                 backend: str | None = None) -> None:
        super().__init__()
        _check_sizes(msa_width=msa_width, pair_width=pair_width)
        self.msa_width, self.pair_width = msa_width, pair_width
        self.norm, self.pair_norm = nn.LayerNorm(msa_width), nn.LayerNorm(pair_width)
        self.attention = AxialAttention(msa_width, heads=heads, axis=ROW_AXIS, head_width=head_width,
                                        pair_width=pair_width, backend=backend)

    def forward(self, msa: Tensor, pair: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The update of the MSA (..., S, N, msa width) from it and pair, (..., N, N, pair width).

        Args:
            mask: bool, (..., S, N): which residues of which sequences exist; all by default.
        """
        _check_grid("msa", msa, self.msa_width, mask)
        _check_pair(msa, pair, self.pair_width)
        return self.attention(self.norm(zero_absent(msa, mask)), self.pair_norm(pair), present=mask)


class MSAColumnAttention(nn.Module):
    """Attention from sequence to sequence at each residue (Algorithm 8).

    Args:
        msa_width: the width of the MSA.
        heads, head_width: the heads, and the width of one.
        backend: as for `regard.attend`.
    """

    def __init__(self, msa_width: int, *, heads: int = 8, head_width: int = 32, backend: str | None = None) -> None:
        super().__init__()
        _check_sizes(msa_width=msa_width)
        self.msa_width = msa_width
        self.norm = nn.LayerNorm(msa_width)
        self.attention = AxialAttention(msa_width, heads=heads, axis=COLUMN_AXIS, head_width=head_width,
                                        backend=backend)

    def forward(self, msa: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The update of the MSA (..., S, N, msa width). mask: bool, (..., S, N)."""
        _check_grid("msa", msa, self.msa_width, mask)
        return self.attention(self.norm(zero_absent(msa, mask)), present=mask)


class TriangleAttention(nn.Module):
    """Attention between the edges of triangles: around the starting node or the ending node (Algorithms 13 and 14).

        starting   (i, j) attends to (i, k) with the bias of (j, k)
        ending     (i, j) attends to (k, j) with the bias of (k, i)

    Args:
        pair_width: the width of the pairs.
        node: "starting" or "ending".
        heads, head_width: the heads, and the width of one.
        backend: as for `regard.attend`.
    """

    def __init__(self, pair_width: int, *, node: str, heads: int = 4, head_width: int = 32,
                 backend: str | None = None) -> None:
        super().__init__()
        axis = checks.pick("node", node, NODES)
        _check_sizes(pair_width=pair_width)
        self.pair_width = pair_width
        self.norm = nn.LayerNorm(pair_width)
        self.attention = AxialAttention(pair_width, heads=heads, axis=axis, head_width=head_width,
                                        pair_width=pair_width, backend=backend)

    def forward(self, pair: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The update of the pairs (..., N, N, pair width). mask: bool, (..., N, N)."""
        _check_grid("pair", pair, self.pair_width, mask, square=True)
        normed = self.norm(zero_absent(pair, mask))
        biasing = normed if self.attention.axis == ROW_AXIS else normed.transpose(-3, -2)
        return self.attention(normed, biasing, present=mask)


class Transition(nn.Module):
    """A norm and a feed-forward layer with ReLU, for every token by itself (Algorithms 9 and 15).

    Args:
        width: the width of a token.
        factor: the hidden features, as a multiple of the width.
    """

    def __init__(self, width: int, *, factor: int = 4) -> None:
        super().__init__()
        _check_sizes(width=width, factor=factor)
        self.width = width
        self.norm = nn.LayerNorm(width)
        self.feed_forward = PlainFeedForward(width, factor * width)
        nn.init.zeros_(self.feed_forward.down.weight)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The update of (..., width). mask: bool, (...)."""
        if x.shape[-1:] != (self.width,):
            raise checks.wrong("x", f"of shape (..., {self.width})", f"of shape {checks.shape(x)}")
        _check_mask(x, mask)
        return zero_absent(self.feed_forward(self.norm(zero_absent(x, mask))), mask)


class OuterProductMean(nn.Module):
    """The update of the pairs from the MSA: the mean outer product of two columns (Algorithm 10).

    The mean is over the sequences that have both residues, and 0 where none has. AlphaFold's code divides after the
    last projection, by 0.001 more than their number, so that the constant of the projection is divided too. It holds
    N² · hidden_width² numbers.

    Args:
        msa_width, pair_width: the widths of the MSA and of the pairs.
        hidden_width: the width of the two factors.
    """

    def __init__(self, msa_width: int, pair_width: int, *, hidden_width: int = 32) -> None:
        super().__init__()
        _check_sizes(msa_width=msa_width, pair_width=pair_width, hidden_width=hidden_width)
        self.msa_width = msa_width
        self.norm = nn.LayerNorm(msa_width)
        self.left, self.right = Linear(msa_width, hidden_width), Linear(msa_width, hidden_width)
        self.output = Linear(hidden_width * hidden_width, pair_width)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, msa: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The update of the pairs, (..., N, N, pair width), from (..., S, N, msa width). mask: bool, (..., S, N)."""
        _check_grid("msa", msa, self.msa_width, mask)
        normed = self.norm(zero_absent(msa, mask))
        left, right = (zero_absent(project(normed), mask) for project in (self.left, self.right))
        if mask is None:
            shares: Tensor | float = 1.0 / max(1, msa.shape[-3])
        else:
            there = mask.to(torch.promote_types(msa.dtype, torch.float32))  # bfloat16 counts to 256 only
            shares = (there.mT @ there).clamp(min=1.0).reciprocal()[..., None, None].to(left.dtype)
        products = torch.einsum("...sic,...sjd->...ijcd", left, right) * shares
        return self.output(products.flatten(-2))


class TriangleMultiplication(nn.Module):
    """The update of an edge from the two other edges of all its triangles, without attention (Algorithms 11 and 12).

        outgoing   z_ij += g_ij ⊙ W LN(Σ_k a_ik ⊙ b_jk)
        incoming   z_ij += g_ij ⊙ W LN(Σ_k a_ki ⊙ b_kj)

    Args:
        pair_width: the width of the pairs.
        direction: "outgoing" or "incoming".
        hidden_width: the width of a and b; `pair_width` by default.
    """

    def __init__(self, pair_width: int, *, direction: str, hidden_width: int | None = None) -> None:
        super().__init__()
        self.equation = checks.pick("direction", direction, DIRECTIONS)
        _check_sizes(pair_width=pair_width, hidden_width=hidden_width)
        self.pair_width, hidden = pair_width, hidden_width or pair_width
        self.norm, self.sum_norm = nn.LayerNorm(pair_width), nn.LayerNorm(hidden)
        self.left, self.right = Linear(pair_width, hidden), Linear(pair_width, hidden)
        self.left_gate, self.right_gate = Linear(pair_width, hidden), Linear(pair_width, hidden)
        self.output, self.output_gate = Linear(hidden, pair_width), Linear(pair_width, pair_width)
        for gate in (self.left_gate, self.right_gate, self.output_gate):
            nn.init.zeros_(gate.weight)
            nn.init.ones_(gate.bias)
        for last in (self.output.weight, self.output.bias, self.left.bias, self.right.bias):
            nn.init.zeros_(last)

    def forward(self, pair: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The update of the pairs (..., N, N, pair width). mask: bool, (..., N, N)."""
        _check_grid("pair", pair, self.pair_width, mask, square=True)
        normed = self.norm(zero_absent(pair, mask))
        left, right = (zero_absent(gate(normed).sigmoid() * project(normed), mask)
                       for gate, project in ((self.left_gate, self.left), (self.right_gate, self.right)))
        summed = torch.einsum(self.equation, left, right)
        return zero_absent(self.output_gate(normed).sigmoid() * self.output(self.sum_norm(summed)), mask)


class SharedDropout(nn.Module):
    """Dropout of whole rows or columns of features: one draw for all tokens along a dimension, while training.

    Args:
        probability: the probability of dropping a feature.
        dim: the dimension that shares the draw: -3 for AlphaFold's row-wise dropout, -2 for its column-wise one.
    """

    def __init__(self, probability: float, dim: int) -> None:
        super().__init__()
        checks.probability("dropout", probability)
        self.probability, self.dim = probability, dim

    def extra_repr(self) -> str:
        return f"{self.probability}, dim={self.dim}"

    def forward(self, x: Tensor) -> Tensor:
        """x, with features dropped while training."""
        if not self.training or not self.probability:
            return x
        shape = list(x.shape)
        shape[self.dim] = 1
        return x * F.dropout(x.new_ones(shape), self.probability)


class EvoformerBlock(nn.Module):
    """One block of AlphaFold's Evoformer: the MSA informs the pairs, and the pairs the MSA (Algorithm 6).

    Args:
        msa_width, pair_width: the widths of the MSA and of the pairs.
        msa_heads, pair_heads: the heads of the attention in each.
        head_width: the width of a head.
        outer_width: the width of the factors of the outer product mean.
        triangle_width: the width of a and b in the triangle multiplications.
        transition_factor: the hidden features of the transitions, as a multiple of the width.
        msa_dropout, pair_dropout: the probabilities of the dropout that rows or columns share.
        backend: as for `regard.attend`.

    Example:
        import torch
        import regard

        block = regard.EvoformerBlock(32, 16, msa_heads=2, pair_heads=2, head_width=8, outer_width=4)
        msa, pair = torch.randn(5, 20, 32), torch.randn(20, 20, 16)             # 5 sequences of 20 residues
        msa, pair = block(msa, pair)
        assert msa.shape == (5, 20, 32) and pair.shape == (20, 20, 16)
    """

    def __init__(self, msa_width: int = 256, pair_width: int = 128, *, msa_heads: int = 8, pair_heads: int = 4,
                 head_width: int = 32, outer_width: int = 32, triangle_width: int | None = None,
                 transition_factor: int = 4, msa_dropout: float = 0.15, pair_dropout: float = 0.25,
                 backend: str | None = None) -> None:
        super().__init__()
        _check_sizes(msa_width=msa_width, pair_width=pair_width, msa_heads=msa_heads, pair_heads=pair_heads,
                     head_width=head_width, outer_width=outer_width, triangle_width=triangle_width,
                     transition_factor=transition_factor)
        self.msa_width, self.pair_width = msa_width, pair_width
        self.msa_row = MSARowAttention(msa_width, pair_width, heads=msa_heads, head_width=head_width, backend=backend)
        self.msa_column = MSAColumnAttention(msa_width, heads=msa_heads, head_width=head_width, backend=backend)
        self.msa_transition = Transition(msa_width, factor=transition_factor)
        self.outer = OuterProductMean(msa_width, pair_width, hidden_width=outer_width)
        self.outgoing, self.incoming = (
            TriangleMultiplication(pair_width, direction=direction, hidden_width=triangle_width)
            for direction in DIRECTIONS)
        self.starting, self.ending = (
            TriangleAttention(pair_width, node=node, heads=pair_heads, head_width=head_width, backend=backend)
            for node in NODES)
        self.pair_transition = Transition(pair_width, factor=transition_factor)
        self.msa_dropout = SharedDropout(msa_dropout, dim=-3)
        self.row_dropout, self.column_dropout = (SharedDropout(pair_dropout, dim=dim) for dim in (-3, -2))

    def forward(self, msa: Tensor, pair: Tensor, *, msa_mask: Tensor | None = None,
                pair_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The MSA and the pairs after the block.

        Args:
            msa: (..., S, N, msa width).
            pair: (..., N, N, pair width).
            msa_mask: bool, (..., S, N): which residues of which sequences exist; all by default.
            pair_mask: bool, (..., N, N): which pairs exist; all by default. Absent tokens and pairs become zeros.
        """
        _check_grid("msa", msa, self.msa_width, msa_mask, "msa_mask")
        _check_pair(msa, pair, self.pair_width)
        _check_mask(pair, pair_mask, "pair_mask")
        msa, pair = zero_absent(msa, msa_mask), zero_absent(pair, pair_mask)
        msa = msa + self.msa_dropout(self.msa_row(msa, pair, mask=msa_mask))
        msa = msa + self.msa_column(msa, mask=msa_mask)
        msa = msa + self.msa_transition(msa, mask=msa_mask)
        pair = pair + zero_absent(self.outer(msa, mask=msa_mask), pair_mask)
        pair = pair + self.row_dropout(self.outgoing(pair, mask=pair_mask))
        pair = pair + self.row_dropout(self.incoming(pair, mask=pair_mask))
        pair = pair + self.row_dropout(self.starting(pair, mask=pair_mask))
        pair = pair + self.column_dropout(self.ending(pair, mask=pair_mask))
        return msa, pair + self.pair_transition(pair, mask=pair_mask)
