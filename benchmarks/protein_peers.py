"""AlphaFold's layers beside those of `boltz` and `openfold3`: the same weights, the largest difference.

    PYTHONPATH=src:FOLDER python benchmarks/protein_peers.py

FOLDER has the peers' packages, installed without their dependencies; their layers need `einops` and `ml_collections`. A
peer that cannot be imported is named, with the module that it lacks. All weights are drawn at random, in float32, on a
CPU; inputs have absent residues and sequences. Differences are compared where tokens exist, because peers compute
numbers elsewhere, too.

Known differences, which the comparison takes into account: boltz has no constants in its projections and gates, so
ours are 0. openfold3 divides the outer product mean after its last projection, by the number of sequences and 0.001:
with a constant of 0, ours times count / (count + 0.001) is the same.
"""

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from timing import hardware, table
from torch import Tensor, nn

from regard.models.protein import (
    MSAColumnAttention,
    MSARowAttention,
    OuterProductMean,
    Transition,
    TriangleAttention,
    TriangleMultiplication,
)

B, S, N, MSA_WIDTH, PAIR_WIDTH, HEADS, HEAD_WIDTH, HIDDEN = 2, 7, 13, 32, 24, 4, 8, 6
HEADS_OF = {"query": "linear_q", "key": "linear_k", "value": "linear_v", "gate": "linear_g", "output": "linear_o"}
Case = tuple[str, Tensor, Tensor, Tensor | None]
"""The name of a layer, our output, the peer's, and which tokens exist."""


def drawn(module: nn.Module) -> nn.Module:
    """The module with every parameter drawn at random: none is at an initial 0."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.eval()


def copy(ours: nn.Module, theirs: nn.Module) -> None:
    """Copy the weight and the constant of a layer; a constant that the peer does not have is 0."""
    with torch.no_grad():
        ours.weight.copy_(theirs.weight)  # type: ignore[operator, union-attr]
        if ours.bias is not None:
            bias = theirs.bias
            ours.bias.copy_(torch.zeros_like(ours.bias) if bias is None else bias)  # type: ignore[operator, union-attr]


def copy_heads(ours: Any, theirs: Any, norm: nn.Module, bias: nn.Module | None) -> None:
    """Copy an axial attention with its norm."""
    copy(ours.norm, norm)
    for mine, other in HEADS_OF.items():
        copy(getattr(ours.attention.attention, mine), getattr(theirs, other))
    if bias is not None:
        copy(ours.attention.pair_bias, bias)


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An MSA and pairs, and which of their tokens exist: not some gaps, nor the last residues of one."""
    there = torch.arange(N) < torch.tensor([[N], [N - 4]])
    gaps = torch.rand(B, S, N) > 0.1
    return (torch.randn(B, S, N, MSA_WIDTH), torch.randn(B, N, N, PAIR_WIDTH), there[:, None] & gaps,
            there[:, :, None] & there[:, None])


def boltz() -> Iterator[Case]:
    """The layers of boltz: Algorithms 10 to 14."""
    attention = importlib.import_module("boltz.model.layers.triangular_attention.attention")
    multiplication = importlib.import_module("boltz.model.layers.triangular_mult")
    outer = importlib.import_module("boltz.model.layers.outer_product_mean")
    msa, pair, msa_mask, pair_mask = inputs()
    for node, kind in (("starting", attention.TriangleAttentionStartingNode),
                       ("ending", attention.TriangleAttentionEndingNode)):
        peer, mine = drawn(kind(PAIR_WIDTH, HEAD_WIDTH, HEADS)), _triangle(node)
        copy_heads(mine, peer.mha, peer.layer_norm, peer.linear)
        yield f"triangle attention, {node}", mine(pair, mask=pair_mask), peer(pair, mask=pair_mask.float()), pair_mask
    for direction, kind in (("outgoing", multiplication.TriangleMultiplicationOutgoing),
                            ("incoming", multiplication.TriangleMultiplicationIncoming)):
        peer, mine = drawn(kind(PAIR_WIDTH)), TriangleMultiplication(PAIR_WIDTH, direction=direction)
        parts = {"norm": "norm_in", "sum_norm": "norm_out", "output": "p_out", "output_gate": "g_out"}
        for ours, theirs in parts.items():
            copy(getattr(mine, ours), getattr(peer, theirs))
        with torch.no_grad():
            for suffix, joint in (("", peer.p_in), ("_gate", peer.g_in)):
                for side, weight in zip(("left", "right"), joint.weight.chunk(2), strict=True):
                    getattr(mine, side + suffix).weight.copy_(weight)
                    getattr(mine, side + suffix).bias.zero_()
        yield (f"triangle multiplication, {direction}", mine(pair, mask=pair_mask), peer(pair, pair_mask.float()),
               pair_mask)
    peer, ours = drawn(outer.OuterProductMean(MSA_WIDTH, HIDDEN, PAIR_WIDTH)), _outer()
    for name, theirs in (("norm", "norm"), ("left", "proj_a"), ("right", "proj_b"), ("output", "proj_o")):
        copy(getattr(ours, name), getattr(peer, theirs))
    yield "outer product mean", ours(msa, mask=msa_mask), peer(msa, msa_mask.float()), None


def openfold3() -> Iterator[Case]:
    """The layers of openfold3: Algorithms 7 to 15."""
    layers = "openfold3.core.model.layers"
    msa_layers, outer = (importlib.import_module(f"{layers}.{name}") for name in ("msa", "outer_product_mean"))
    attention = importlib.import_module(f"{layers}.triangular_attention")
    multiplication = importlib.import_module(f"{layers}.triangular_multiplicative_update")
    transition = importlib.import_module(f"{layers}.transition")
    msa, pair, msa_mask, pair_mask = inputs()
    row = drawn(msa_layers.MSARowAttentionWithPairBias(MSA_WIDTH, PAIR_WIDTH, HEAD_WIDTH, HEADS))
    mine: Any = MSARowAttention(MSA_WIDTH, PAIR_WIDTH, heads=HEADS, head_width=HEAD_WIDTH)
    copy_heads(mine, row.mha, row.layer_norm_m, row.linear_z)
    copy(mine.pair_norm, row.layer_norm_z)
    yield "row attention with pair bias", mine(msa, pair, mask=msa_mask), row(msa, pair, msa_mask.float()), msa_mask
    column = drawn(msa_layers.MSAColumnAttention(MSA_WIDTH, HEAD_WIDTH, HEADS))
    mine = MSAColumnAttention(MSA_WIDTH, heads=HEADS, head_width=HEAD_WIDTH)
    copy_heads(mine, column._msa_att.mha, column._msa_att.layer_norm_m, None)
    yield "column attention", mine(msa, mask=msa_mask), column(msa, msa_mask.float()), msa_mask
    peer, mine = drawn(transition.ReLUTransition(PAIR_WIDTH, 4)), Transition(PAIR_WIDTH)
    for ours, theirs in ((mine.norm, peer.layer_norm), (mine.feed_forward.up, peer.transition_mlp.layers[0][0]),
                         (mine.feed_forward.down, peer.transition_mlp.linear_out)):
        copy(ours, theirs)
    yield "transition", mine(pair, mask=pair_mask), peer(pair, pair_mask.float()), pair_mask
    peer, mine = drawn(outer.OuterProductMean(MSA_WIDTH, PAIR_WIDTH, HIDDEN)), _outer()
    nn.init.zeros_(peer.linear_out.bias)
    for name, theirs in (("norm", "layer_norm"), ("left", "linear_1"), ("right", "linear_2"), ("output", "linear_out")):
        copy(getattr(mine, name), getattr(peer, theirs))
    count = torch.einsum("bsi,bsj->bij", msa_mask.float(), msa_mask.float()).unsqueeze(-1)
    yield ("outer product mean", mine(msa, mask=msa_mask) * count / (count + peer.eps), peer(msa, msa_mask.float()),
           None)
    for direction, kind in (("outgoing", multiplication.TriangleMultiplicationOutgoing),
                            ("incoming", multiplication.TriangleMultiplicationIncoming)):
        peer = drawn(kind(PAIR_WIDTH, HIDDEN))
        mine = TriangleMultiplication(PAIR_WIDTH, direction=direction, hidden_width=HIDDEN)
        parts = {"norm": "layer_norm_in", "left": "linear_a_p", "left_gate": "linear_a_g", "right": "linear_b_p",
                 "right_gate": "linear_b_g", "sum_norm": "layer_norm_out", "output": "linear_z",
                 "output_gate": "linear_g"}
        for name, theirs in parts.items():
            copy(getattr(mine, name), getattr(peer, theirs))
        yield (f"triangle multiplication, {direction}", mine(pair, mask=pair_mask), peer(pair, pair_mask.float()),
               pair_mask)
    for node, kind in (("starting", attention.TriangleAttention), ("ending", attention.TriangleAttentionEndingNode)):
        peer, mine = drawn(kind(PAIR_WIDTH, HEAD_WIDTH, HEADS)), _triangle(node)
        copy_heads(mine, peer.mha, peer.layer_norm, peer.linear_z)
        yield f"triangle attention, {node}", mine(pair, mask=pair_mask), peer(pair, pair_mask.float()), pair_mask


def _triangle(node: str) -> TriangleAttention:
    return TriangleAttention(PAIR_WIDTH, node=node, heads=HEADS, head_width=HEAD_WIDTH)


def _outer() -> OuterProductMean:
    return OuterProductMean(MSA_WIDTH, PAIR_WIDTH, hidden_width=HIDDEN)


@torch.no_grad()
def main() -> None:
    """Print the differences from every peer that can be imported."""
    torch.manual_seed(0)
    print(hardware("cpu"))
    rows = []
    for peer in (boltz, openfold3):
        try:
            for name, ours, theirs, present in peer():
                chosen = slice(None) if present is None else present
                difference = float((ours[chosen] - theirs[chosen]).abs().max())
                largest = float(theirs[chosen].abs().max())
                rows.append([peer.__name__, name, f"{difference:.1e}", f"{difference / largest:.1e}"])
        except ImportError as error:
            print(f"{peer.__name__} is not compared: {error}")
    print(table(["peer", "layer", "largest difference", "relative"], rows) if rows else "no peer can be imported")


if __name__ == "__main__":
    main()
