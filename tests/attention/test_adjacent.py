"""Tensors beside each other: taken as one where they are, copied where they are not, never confused."""

import pytest
import torch

from regard.kernels.linear import adjacent_tensor, concatenate, empty_like_parts


@pytest.mark.parametrize(("shape", "sizes", "dim"), [
    ((6, 4), (1, 2, 3), 0), ((3, 6), (2, 4), 1), ((2, 3, 6), (1, 5), -1), ((2, 6, 3), (4, 2), 1), ((7,), (3, 4), 0)],
    ids=str)
def test_slices_in_their_order_are_the_tensor_they_were_cut_from(shape, sizes, dim):
    tensor = torch.randn(shape)
    parts = tensor.split(sizes, dim)
    found = adjacent_tensor(parts, dim)
    assert torch.equal(found, tensor)
    assert found.data_ptr() == tensor.data_ptr()
    with torch.no_grad():
        assert concatenate(parts, dim).data_ptr() == tensor.data_ptr()
    inner = adjacent_tensor(parts[1:], dim)  # a run that does not begin at the beginning
    assert torch.equal(inner, torch.cat(parts[1:], dim))
    assert inner.data_ptr() == parts[1].data_ptr()


def test_what_is_not_beside_each_other_is_copied():
    tensor = torch.randn(3, 8)
    a, b, c, d = tensor.split(2, 1)
    others = [(b, a), (a, c), (a, a), (a, b.clone()), (a, b.clone().t().contiguous().t()), (a, b[:2]), (a, b[:, :1], d),
              (a, b.double()), (tensor[:2], tensor[2:].clone()), (a, tensor.clone()[:, 2:4])]
    for parts in others:
        dim = 0 if parts[0].shape[1] == 8 else 1
        assert adjacent_tensor(parts, dim) is None
    for parts in others[:5]:
        with torch.no_grad():
            assert torch.equal(concatenate(parts, 1), torch.cat(parts, 1))


def test_where_gradients_are_asked_for_it_is_a_copy_that_has_them():
    leaf = torch.randn(3, 4, requires_grad=True)
    parts = leaf.split(2, 1)
    made = concatenate(parts, 1)
    assert made.data_ptr() != leaf.data_ptr()
    made.square().sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * leaf.detach())
    assert not adjacent_tensor(parts, 1).requires_grad


def test_room_is_laid_out_as_what_it_is_for():
    made = torch.randn(2, 5, 12)
    query, key, value = (part.unflatten(-1, (-1, 2)).transpose(1, 2) for part in made.split((4, 4, 4), -1))
    new = empty_like_parts((query, key, value), 1)
    assert [part.shape for part in new] == [query.shape, key.shape, value.shape]
    flat = [part.transpose(1, 2).flatten(-2) for part in new]  # the way back, without a copy
    assert adjacent_tensor(flat, -1).shape == made.shape
    assert adjacent_tensor(flat, -1).is_contiguous()
    apart = empty_like_parts((query, key.clone(), value), 1)
    assert adjacent_tensor(apart, 1) is None
    assert apart[0].transpose(1, 2).is_contiguous()
    spread = empty_like_parts((torch.randn(1, 3, 4).expand(2, 3, 4),), 1)[0]
    assert spread.is_contiguous()
