"""The block: the two orders as the oracle writes them, with any mixer, at once or step by step."""

from functools import partial

import numpy as np
import pytest
import torch

import regard
from regard.attention.layer import SelfAttention
from regard.blocks.block import Block
from regard.blocks.feed_forward import PlainFeedForward
from regard.blocks.sublayer import NoNorm
from regard.recurrence.scan import Recurrence
from regard.reference import blocks as oracle

WIDTH = 6
MIXERS = {
    "self-attention": lambda: SelfAttention(regard.Attention(WIDTH, heads=2)),
    "windowed": lambda: SelfAttention(regard.Attention(WIDTH, heads=2), regard.Causal() & regard.Window(2, 0)),
    "recurrence": lambda: Recurrence(WIDTH, cell="gru"),
}


def make(mixer="self-attention", *, cross=False, **options):
    torch.manual_seed(4)
    layer = regard.Attention(WIDTH, heads=2, context_width=5) if cross else None
    block = Block(MIXERS[mixer](), PlainFeedForward(WIDTH, 9), WIDTH, cross=layer, **options).double()
    for name, parameter in block.named_parameters():  # norms that do nothing would hide where they stand
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0 if name.endswith("weight") else 0.0, 0.5)
    return block


def assert_close(got, want):
    np.testing.assert_allclose(got.detach().numpy(), want, rtol=1e-11, atol=1e-12)


def known_norm(module, name):
    gain = module.weight.detach().numpy()
    if name == "rms":
        return lambda x: oracle.rms_norm(x, gain, module.eps)
    return lambda x: oracle.layer_norm(x, gain, module.bias.detach().numpy(), module.eps)


@pytest.mark.parametrize("name", ["layer", "rms"])
@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_the_orders_are_the_oracles(mixer, order, name):
    block, x = make(mixer, norm_position=order, norm_name=name), torch.randn(5, WIDTH).double()
    feed, norms = block.feed_forward, (block.around_mixer.norm, block.around_feed_forward.norm)
    weights = [t.detach().numpy() for linear in (feed.up, feed.down) for t in (linear.weight, linear.bias)]

    def mix(tokens):
        return block.mixer(torch.from_numpy(tokens)[None])[0].detach().numpy()

    known = oracle.post_norm_block if order == "post" else oracle.pre_norm_block
    first, second = (known_norm(module, name) for module in norms)
    assert_close(block(x[None])[0], known(x.numpy(), mix, first, lambda token: oracle.mlp(token, *weights), second))


@pytest.mark.parametrize("order", ["post", "pre"])
def test_cross_attention_stands_between_mixer_and_feed_forward(order):
    block = make(cross=True, norm_position=order)
    x, context, there = torch.randn(2, 4, WIDTH).double(), torch.randn(2, 3, 5).double(), regard.Padding([3, 1])
    y = x
    for around, part in ((block.around_mixer, block.mixer),
                         (block.around_cross, partial(block.cross, context=context, mask=there)),
                         (block.around_feed_forward, block.feed_forward)):
        y = around.norm(y + part(y)) if order == "post" else y + part(around.norm(y))
    torch.testing.assert_close(block(x, None, context, there), y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunks", [[1] * 5, [2, 3], [5]], ids=str)
@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("mixer", MIXERS)
def test_step_by_step_is_all_at_once(mixer, cross, order, chunks):
    block, x = make(mixer, cross=cross, norm_position=order), torch.randn(3, 5, WIDTH).double()
    context, lengths = (torch.randn(3, 4, 5).double(), torch.tensor([4, 2, 1])) if cross else (None, None)
    state, outputs = block.start(3, 5, context, lengths), []
    for chunk in x.split(chunks, dim=1):
        y, state = block.step(chunk, state)
        outputs.append(y)
    want = block(x, None, context, None if lengths is None else regard.Padding(lengths))
    torch.testing.assert_close(torch.cat(outputs, 1), want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("mixer", MIXERS)
def test_states_can_be_picked_replaced_and_copied(mixer):
    block, x, context = make(mixer, cross=True), torch.randn(3, 4, WIDTH).double(), torch.randn(3, 4, 5).double()
    want = block(x, None, context)
    _, state = block.step(x[:, :3], block.start(3, 6, context))
    kept = state.copy()
    y, _ = block.step(x[[2, 0], 3:], state.pick([2, 0]))
    torch.testing.assert_close(y, want[[2, 0], 3:], rtol=1e-11, atol=1e-12)
    _, other = block.step(x[1:2, :3], block.start(1, 6, context[1:2]))
    y, _ = block.step(x[[1, 1, 2], 3:], kept.put([0], other))
    torch.testing.assert_close(y, want[[1, 1, 2], 3:], rtol=1e-11, atol=1e-12)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match='`norm_position` must be one of "post", "pre", "none", but is "prae"'):
        make(norm_position="prae")
    with pytest.raises(ValueError, match=r'`norm` must be one of .*, but is "layers".*Did you mean "layer"'):
        make(norm_name="layers")
    with pytest.raises(ValueError, match="`context` must be given to a block with cross-attention"):
        make(cross=True)(torch.randn(1, 2, WIDTH).double())


def test_old_names_of_arguments_keep_working():
    with pytest.warns(FutureWarning, match="`order` is now called `norm_position`"):
        block = make(order="plain")
    assert isinstance(block.around_mixer, NoNorm)
