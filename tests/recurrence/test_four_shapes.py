"""The four shapes: each is what its drawing says, step by step."""

import pytest
import torch
from recurrent import KINDS, assert_close, normal, options, randomize

import regard
from regard.recurrence.scan import Recurrence, many_to_many, many_to_one, one_to_many, one_to_one


def network(kind="lstm", **more):
    return randomize(Recurrence(4, **options(kind), **more))


def step(made, x, state=None):
    """One step of a network of one layer, by its cell."""
    return made.cells[0](x, made.cells[0].initial(len(x)) if state is None else state)


@pytest.mark.parametrize("kind", KINDS)
def test_one_to_one(kind):
    made, x = network(kind), normal(3, 4)
    assert_close(one_to_one(made, x), step(made, x)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_one_to_many_reads_the_input_once(kind):
    made, x = network(kind), normal(3, 4)
    y, state = one_to_many(made, x, 4), step(made, x)
    assert_close(y[:, 0], state[0])
    for t in range(1, 4):
        state = step(made, torch.zeros_like(x), state)
        assert_close(y[:, t], state[0])


@pytest.mark.parametrize("kind", KINDS)
def test_one_to_many_feeds_the_output_back(kind):
    made, x = network(kind, input_width=2), normal(3, 2)
    weight = normal(2, 4, seed=5)
    y = one_to_many(made, x, 4, feed=lambda output: output @ weight.T)
    state = None
    for t in range(4):
        state = step(made, x, state)
        assert_close(y[:, t], state[0])
        x = state[0] @ weight.T


def test_one_to_many_goes_on_from_a_state():
    """Encoder-decoder: many to one, then one to many."""
    made, x = network("gru"), normal(3, 5, 4)
    _, state = made.run(x)
    start = normal(3, 4, seed=2)
    assert_close(one_to_many(made, start, 3, state=state)[:, 0], step(made, start, state.tensors)[0])
    assert_close(one_to_many(made, start, 1, feed=torch.tanh, state=state)[:, 0], step(made, start, state.tensors)[0])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_many_to_one_is_the_last_valid_vector(kind, layers):
    made, x = network(kind, layers=layers), normal(3, 5, 4)
    assert_close(many_to_one(made, x), made(x)[:, -1])
    lengths = [2, 5, 0]
    y = many_to_one(made, x, regard.Padding(lengths))
    assert_close(y[0], made(x[:1, :2])[0, -1])
    assert_close(y[1], made(x[1:2])[0, -1])
    assert not y[2].any()
    assert_close(many_to_one(made, x.flip(1), regard.Padding(lengths, "left"))[0], made(x.flip(1)[:1, 3:])[0, -1])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_many_to_one_of_two_directions_has_the_end_of_each(kind):
    made, x = network(kind, layers=2, direction="both"), normal(2, 5, 4)
    y = made(x)
    assert_close(many_to_one(made, x), torch.cat([y[:, -1, :2], y[:, 0, 2:]], -1))
    backward = network(kind, direction="backward")
    assert_close(many_to_one(backward, x), backward(x)[:, 0])


def test_many_to_many():
    made, x = network(), normal(2, 5, 4)
    y, state = many_to_many(made, x), None
    for t in range(5):
        state = step(made, x[:, t], state)
        assert_close(y[:, t], state[0])
    assert not many_to_many(made, x, regard.Padding([2, 5]))[0, 2:].any()


def test_errors():
    with pytest.raises(ValueError, match="`steps` must be at least 1, but is 0"):
        one_to_many(network(), normal(2, 4), 0)
    with pytest.raises(ValueError, match='"forward" to compute step by step'):
        one_to_many(network(direction="both"), normal(2, 4), 3)
