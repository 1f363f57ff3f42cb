"""`tiled`: its blocks cover every pair once, and it never holds the matrix, forward or backward."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import assert_close, held, masks, nearness, normal
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.attention import backends
from regard.attention.backends import TILED
from regard.attention.mask import as_mask
from regard.attention.problem import build_problem


def stated(query, key, value, **options):
    return build_problem(query, key, value, **{"score": "dot", "normalize": "softmax", "mask": None, "bias": None,
                                       "dropout": 0.0, **options})


@given(st.data(), st.integers(0, 9), st.integers(0, 9), st.integers(1, 10))
@settings(suppress_health_check=list(HealthCheck))
def test_blocks_cover_every_row_once_and_every_pair_that_counts(data, n_queries, n_keys, size):
    known = data.draw(masks((2,), n_queries, n_keys))
    problem = stated(*(torch.zeros(2, n, 1) for n in (n_queries, n_keys, n_keys)), mask=known.mask)
    blocks = list(problem.row_blocks(size))
    assert [row for rows, _ in blocks for row in range(rows.start, rows.stop)] == list(range(n_queries))
    assert all(rows.stop - rows.start <= size for rows, _ in blocks)
    matrix = as_mask(known.mask).matrix(n_queries, n_keys, leading=1)
    for rows, columns in blocks:
        seen = matrix[..., rows, :].sum()
        assert matrix[..., rows, columns].sum() == seen


@pytest.mark.parametrize(("numbers", "score", "size"), [
    (1, "dot", 1), (60, "dot", 3), (79, "dot", 3), (80, "dot", 4), (1 << 21, "dot", 7),
    (100, nearness, 1), (240, nearness, 3), (60, regard.Additive(torch.zeros(4)), 3),
])
def test_how_many_rows_a_block_has(numbers, score, size):
    """7 queries against 5 keys in 4 heads: a row holds 20 numbers, or 80 where every pair holds a vector of 4.

    Additive scores hold no such vector here.
    """
    problem = stated(torch.zeros(2, 2, 7, 4), torch.zeros(2, 2, 5, 4), torch.zeros(2, 2, 5, 4), score=score)
    with held(numbers):
        assert f"{size} rows at a time" in TILED.detail(problem)


def test_it_takes_everything():
    problem = stated(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3), score=lambda q, k: q @ k.mT, dropout=0.5)
    assert TILED.refusal(problem) is None
    assert TILED.drawback(problem) is None


@pytest.mark.parametrize("numbers", [1, 9, 10, 40, 1 << 20])
@pytest.mark.parametrize("grad", [False, True])
def test_any_number_of_blocks_gives_the_same(numbers, grad):
    tensors = [normal(2, n, 3, seed=n).requires_grad_(grad) for n in (7, 8, 8)]
    options = {"score": regard.Additive(normal(3, seed=4)), "mask": regard.Causal() & regard.Window(3, None)}
    want = regard.attend(*tensors, **options, backend="exact")
    with held(numbers):
        assert_close(regard.attend(*tensors, **options, backend="tiled"), want)


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any tensor had, whatever operator made it."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def measured(backend, length, width):
    """The largest tensor of a forward and a backward pass, and all that was kept between the two."""
    tensors = [normal(length, width, seed=i).float().requires_grad_() for i in range(3)]
    weight = normal(width, seed=4).float().requires_grad_()
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    with Largest() as largest, saved_tensors_hooks(keep, lambda tensor: tensor):
        output = regard.attend(*tensors, score=regard.Additive(weight), mask=regard.Causal(), backend=backend)
        output.sum().backward()
    assert weight.grad.abs().sum() > 0
    return largest.numbers, sum(kept)


def test_memory_grows_with_the_length_and_not_with_its_square():
    length, width = 1024, 32
    largest, kept = measured("tiled", length, width)
    assert largest <= backends.TILE_NUMBERS_CPU + 8 * length * width  # a block, and tensors like the query
    assert kept <= 40 * length * width
    # That the measurement can see it: on exact, both are quadratic.
    largest, kept = measured("exact", 256, width)
    assert largest >= 256 * 256 * width
    assert kept >= 256 * 256 * width


def test_without_gradients_nothing_is_kept():
    with torch.no_grad():
        output = regard.attend(*(normal(5, 3).requires_grad_() for _ in range(3)), backend="tiled")
    assert not output.requires_grad


def test_a_second_backward_pass_through_the_same_graph():
    tensors = [normal(6, 3, seed=i).requires_grad_() for i in range(3)]
    with held(9):
        output = regard.attend(*tensors, backend="tiled", mask=regard.Causal())
    first = torch.autograd.grad(output.sum(), tensors, retain_graph=True)
    second = torch.autograd.grad(output.sum(), tensors)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
