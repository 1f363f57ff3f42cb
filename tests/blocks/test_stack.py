"""A stack is its blocks in sequence, whether activations are kept or computed once more."""

import pytest
import torch
from torch import nn

import regard
from regard.attention.layer import SelfAttention
from regard.attention.mask import as_mask
from regard.blocks.block import Block
from regard.blocks.feed_forward import GatedFeedForward
from regard.blocks.stack import Stack
from regard.recurrence.lstmn import LSTMN


def make(order="pre", **options):
    torch.manual_seed(5)
    blocks = [Block(SelfAttention(regard.Attention(6, heads=2)), GatedFeedForward(6, 8), 6,
                    norm_position=order) for _ in range(3)]
    return Stack(blocks, nn.LayerNorm(6) if order == "pre" else None, **options).double()


@pytest.mark.parametrize("order", ["pre", "post"])
def test_blocks_run_one_after_the_other(order):
    stack, x, there = make(order), torch.randn(2, 4, 6).double(), regard.Padding([4, 2])
    y = x
    for block in stack.blocks:
        y = block(y, there)
    assert torch.equal(stack(x, there), y if order == "post" else stack.last_norm(y))


SEEN = torch.rand(4, 4, generator=torch.Generator().manual_seed(3)) > 0.5


@pytest.mark.parametrize("masks", [
    (SEEN | torch.eye(4).bool(), ~SEEN | torch.eye(4).bool()),  # of one shape, and different
    (SEEN.expand(3, 4, 4).clone(),),  # nothing of heads
    (~regard.Window(0, None),),  # the first token sees nothing, and is there
    (regard.Causal() & regard.Window(1, 1), None),
], ids=["two tensors", "rows", "strictly before", "windows"])
@pytest.mark.parametrize("lengths", [[4, 2, 0], [3], 3], ids=str)
def test_masks_that_are_looked_up_once_are_those_of_the_blocks(masks, lengths):
    blocks = [Block(SelfAttention(regard.Attention(6, heads=2), None if mask is None else as_mask(mask)), None, 6)
              for mask in masks]
    stack, x, present = Stack(blocks).double(), torch.randn(3, 4, 6).double(), regard.Padding(lengths)
    y = x
    for block in stack.blocks:
        y = block(y, present)
    there = present.matrix(1, 4).reshape(-1, 4).expand(3, 4)
    torch.testing.assert_close(stack(x, present)[there], y[there], rtol=1e-12, atol=1e-13)


def test_a_single_length_is_for_all_rows_of_a_tape():
    stack, x = Stack([Block(LSTMN(6), None, 6)]).double(), torch.randn(3, 4, 6).double()
    assert torch.equal(stack(x, regard.Padding(3)), stack(x, regard.Padding([3, 3, 3])))


def test_computing_once_more_changes_nothing_and_keeps_less():
    x = torch.randn(2, 16, 6).double().requires_grad_()
    results, kept = {}, {}
    for checkpoint in (False, True):
        stack, sizes = make(activation_checkpointing=checkpoint).train(), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            y = stack(x)
        kept[checkpoint] = sum(sizes)
        results[checkpoint] = (y, *torch.autograd.grad(y.cos().sum(), (x, *stack.parameters())))
    for plain, again in zip(results[False], results[True], strict=True):
        assert torch.equal(plain, again)
    assert kept[True] < kept[False] / 3


def test_steps_and_states():
    stack, x = make(), torch.randn(3, 5, 6).double()
    want, state = stack(x), stack.start(3, 5)
    _, state = stack.step(x[:, :2], state)
    kept = state.copy()
    y, _ = stack.step(x[:, 2:], state)
    torch.testing.assert_close(y, want[:, 2:], rtol=1e-11, atol=1e-12)
    y, _ = stack.step(x[[2, 1], 2:], kept.pick([2, 1]))
    torch.testing.assert_close(y, want[[2, 1], 2:], rtol=1e-11, atol=1e-12)
    _, other = stack.step(x[1:2, :2], stack.start(1, 5))
    y, _ = stack.step(x[[1, 1, 2], 2:], kept.put([0], other))
    torch.testing.assert_close(y, want[[1, 1, 2], 2:], rtol=1e-11, atol=1e-12)
