"""Self-attention as a mixer: its mask, what is there, and steps that need no future."""

import pytest
import torch

import regard
from regard.attention.layer import SelfAttention


def layer(**options):
    torch.manual_seed(1)
    return regard.Attention(8, heads=2, **options).double()


def test_it_is_the_layer_under_both_masks():
    x, attention = torch.randn(2, 5, 8).double(), layer()
    present = regard.Padding([5, 3])
    for mask in (None, regard.Causal(), regard.Causal() & regard.Window(2, 0)):
        assert torch.equal(SelfAttention(attention, mask)(x), attention(x, mask=mask))
        both = present if mask is None else mask & present
        padded = SelfAttention(attention, mask)(x, present)
        assert torch.equal(padded[0], attention(x, mask=both)[0])
        assert torch.equal(padded[1, :3], attention(x, mask=both)[1, :3])
        assert (padded[1, 3:] == 0).all()
    assert torch.equal(SelfAttention(attention)(x), attention(x, mask=regard.Causal()))


@pytest.mark.parametrize("mask", [regard.Causal(), regard.Causal() & regard.Window(2, 0)], ids=repr)
@pytest.mark.parametrize("chunks", [[1] * 6, [4, 2], [6]], ids=str)
def test_steps_are_all_at_once(mask, chunks):
    mixer, x = SelfAttention(layer(), mask), torch.randn(2, 6, 8).double()
    state, outputs = mixer.start(2, 6), []
    for chunk in x.split(chunks, dim=1):
        y, state = mixer.step(chunk, state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), mixer(x), rtol=1e-12, atol=1e-12)


def test_positions_reach_rotary():
    mixer, x = SelfAttention(layer(rotary=regard.Rotary(4))), torch.randn(2, 6, 8).double()
    far = torch.arange(6) + 1000
    torch.testing.assert_close(mixer(x, positions=far), mixer(x), rtol=1e-9, atol=1e-9)  # only distances count
    assert not torch.allclose(mixer(x, positions=2 * far), mixer(x))


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_left_padding_is_no_distance(score):
    """An additive score of turned vectors depends on positions, not on distances alone."""
    mixer, x = SelfAttention(layer(rotary=regard.Rotary(4), score=score)), torch.randn(1, 4, 8).double()
    padded = torch.cat([torch.full((1, 3, 8), torch.nan).double(), x], dim=1)
    got = mixer(padded, regard.Padding([4], side="left"))
    torch.testing.assert_close(got[:, 3:], mixer(x), rtol=1e-11, atol=1e-12)


def test_positions_in_packed_segments():
    assert regard.Packed([2, 0, 3]).positions(7).tolist() == [0, 1, 0, 1, 2, 0, 1]  # what lies behind starts anew
    assert regard.Packed([]).positions(2).tolist() == [0, 1]
    assert regard.Packed([1, 2], [5, 4]).positions(3).tolist() == [0, 0, 1]


@pytest.mark.parametrize("lengths", [[4, 1, 3], [3, 3], [0, 5, 0]], ids=str)
@pytest.mark.parametrize("mask", [None, regard.Causal()], ids=repr)
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_packed_sequences_are_as_if_each_were_alone(score, mask, lengths):
    """Rotary positions start at 0 in each, which an additive score of turned vectors shows."""
    mixer, x = SelfAttention(layer(rotary=regard.Rotary(4), score=score), mask), torch.randn(2, 9, 8).double()
    packed = mixer(x, regard.Packed(lengths))
    start = 0
    for length in lengths:
        own = slice(start, start + length)
        torch.testing.assert_close(packed[:, own], mixer(x[:, own]), rtol=1e-11, atol=1e-12)
        start += length


def test_positions_that_are_given_stay_in_packed_sequences():
    mixer, x = SelfAttention(layer(rotary=regard.Rotary(4), score="additive")), torch.randn(1, 6, 8).double()
    packed, own = regard.Packed([2, 4]), torch.tensor([0, 1, 0, 1, 2, 3])
    assert torch.equal(mixer(x, packed, own), mixer(x, packed))
    assert not torch.allclose(mixer(x, packed, own + 1), mixer(x, packed))


def test_packed_keys_of_other_lengths_have_no_positions():
    mixer, x = SelfAttention(layer(rotary=regard.Rotary(4))), torch.randn(1, 6, 8).double()
    with pytest.raises(ValueError, match=r"`present` .*Packed\(\[2, 4\], \[4, 2\]\).*key_lengths"):
        mixer(x, regard.Packed([2, 4], [4, 2]))
    assert SelfAttention(layer())(x, regard.Packed([2, 4], [4, 2])).shape == x.shape


@pytest.mark.parametrize("mask", [None, regard.Window(2, 0)], ids=repr)
def test_what_is_not_causal_has_no_steps(mask):
    with pytest.raises(ValueError, match=r"`mask` must be Causal\(\)"):
        SelfAttention(layer(), mask).start(2, 4)


def test_a_layer_with_another_context_is_refused():
    with pytest.raises(ValueError, match=r"`layer` .*width 8 .* 6"):
        SelfAttention(regard.Attention(8, heads=2, context_width=6))
