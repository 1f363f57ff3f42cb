"""Packed steps of one token: the oracle's results in few operations, with the parameters as they are now."""

import copy

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.blocks.stack import StackConfig
from regard.kernels.packed_linear import packed_linear_layers
from regard.mixer import FirstValues, RowState
from regard.reference import rwkv as oracle
from regard.rwkv import wkv
from regard.rwkv.channel_mix import ChannelMixConfig
from regard.rwkv.packed_step import stack_padded, stack_transposed
from regard.rwkv.time_mix import RWKV4, RWKV7, Ranks, RWKV4Config, RWKV7Config

ROWS, COUNT, WIDTH = 3, 6, 8
RANKS = Ranks(2, 3, 2, 5)
MAKERS = {"rwkv4": lambda: RWKV4(WIDTH),
          "rwkv7": lambda: RWKV7(WIDTH, head_width=4, ranks=RANKS),
          "rwkv7, later layer": lambda: RWKV7(WIDTH, head_width=4, ranks=RANKS, layer=1, layers=2, output_bias=True)}
EACH = pytest.mark.parametrize("name", MAKERS)
CONFIGS = {"rwkv4": RWKV4Config(),
           "rwkv7": RWKV7Config(head_width=4, decay_rank=2, learning_rate_rank=3, value_rank=4, gate_rank=5)}


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(module, seed=0):
    """The module in float64, no parameter of it zero."""
    for number, parameter in enumerate(module.double().parameters()):
        parameter.data = 0.7 * numbers(*parameter.shape, seed=100 * seed + number)
    return module


def given_values(x):
    """The values of a first layer, of every token."""
    return numbers(*x.shape, seed=9)


def stepped(mixer, x, state=None):
    """The results of single tokens without gradients, and the state after them."""
    state, results = mixer.start(len(x)) if state is None else state, []
    for t in range(x.shape[1]):
        first = FirstValues({"forward": given_values(x)[:, t:t + 1].to(x.dtype)})
        with torch.no_grad():
            y, state = mixer.step(x[:, t:t + 1], state, **({"first": first} if mixer.shares_values else {}))
        results.append(y)
    return torch.cat(results, 1), state


def whole(mixer, x):
    """The results of all tokens at once."""
    first = FirstValues({"forward": given_values(x).to(x.dtype)})
    with torch.no_grad():
        return mixer(x, None, first) if mixer.shares_values else mixer(x)


def oracles(mixer, x):
    """The oracle's results of one row, (N, D)."""
    names = {"receptance.weight": "W_r", "key.weight": "W_k", "value.weight": "W_v", "output.weight": "W_o",
             "output.bias": "b_o", "ln_x.weight": "ln_weight", "ln_x.bias": "ln_bias"}
    if isinstance(mixer, RWKV4):
        names |= {"x_r": "m_r", "x_k": "m_k", "x_v": "m_v", "bonus": "u"}
    found = {names.get(name, name): parameter.detach().numpy() for name, parameter in mixer.named_parameters()}
    if isinstance(mixer, RWKV4):
        return oracle.time_mix4(x, found)
    return oracle.time_mix7(x, found, mixer.heads, given_values(torch.empty(ROWS, *x.shape))[0].numpy()
                            if mixer.place.layer else None)[0]


def assert_close(ours, theirs, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=tolerance, atol=tolerance)


class Operations(TorchDispatchMode):
    """The names of the operations of torch that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.names.append(str(function))
        return function(*arguments, **(options or {}))


@EACH
def test_packed_steps_are_the_oracles_recurrence(name):
    mixer, x = drawn(MAKERS[name]()), numbers(ROWS, COUNT, WIDTH)
    y, state = stepped(mixer, x)
    assert state.packed is not None
    assert_close(y[0], oracles(mixer, x[0].numpy()))
    assert_close(y, whole(mixer, x))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_stack_of_packed_steps_is_the_stack_over_all_tokens(name):
    config = StackConfig(layers=3, mixer=CONFIGS[name], channel_mix=ChannelMixConfig(ffn_width=10))
    stack, x = drawn(config.build(WIDTH, causal=True)), numbers(ROWS, 2 * COUNT, WIDTH)
    with torch.no_grad():
        want, state, results = stack(x), stack.start(ROWS, 2 * COUNT), []
        for some in x.split([4, 1, 1, 3, 1, 1, 1], 1):
            y, state = stack.step(some, state)
            results.append(y)
    assert all(block.mixer.packed is not None for block in state.blocks)
    assert_close(torch.cat(results, 1), want)


@pytest.mark.parametrize(("name", "most"), [("rwkv4", 32), ("rwkv7", 62), ("rwkv7, later layer", 66)])
def test_a_packed_step_has_few_operations(name, most):
    """Views and what torch calls inside of an operation count too. Without packing there were 61 and 74."""
    mixer, x = drawn(MAKERS[name]()), numbers(ROWS, 1, WIDTH)
    _, state = stepped(mixer, x)
    first = {"first": FirstValues({"forward": given_values(x)})} if mixer.shares_values else {}
    with torch.no_grad(), Operations() as operations:
        mixer.step(x, state, **first)
    assert len(operations.names) <= most, operations.names


def by_optimizer(mixer):
    for parameter in mixer.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(mixer.parameters(), 0.1).step()


def by_data(mixer):
    for parameter in mixer.parameters():
        parameter.data = parameter.data + 0.1


def by_new_parameters(mixer):
    for module in mixer.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(parameter.detach() + 0.1))


def by_load(mixer):
    mixer.load_state_dict({name: tensor + 0.1 for name, tensor in mixer.state_dict().items()})


@pytest.mark.parametrize("change", [by_optimizer, by_data, by_new_parameters, by_load])
@EACH
def test_changed_parameters_are_packed_again(name, change):
    mixer, x = drawn(MAKERS[name]()), numbers(ROWS, COUNT, WIDTH)
    before, state = stepped(mixer, x)
    change(mixer)
    ours, after = stepped(mixer, x, state)
    theirs, _ = stepped(mixer, x, RowState(state.tensors))
    assert torch.equal(ours, theirs)
    assert after.packed is not state.packed
    assert not torch.allclose(stepped(mixer, x)[0], before)


@EACH
def test_what_happens_to_rows_leaves_packed_parameters_alone(name):
    mixer, x = drawn(MAKERS[name]()), numbers(ROWS, COUNT, WIDTH)
    _, state = stepped(mixer, x[:, :3])
    kept = copy.deepcopy(state.tensors)
    for same in (state.pick([0, 1, 2]), state.copy(), state.detach(), state.put([1], state.pick([1]))):
        assert same.packed is state.packed
        assert_close(stepped(mixer, x[:, 3:], same)[0], stepped(mixer, x[:, 3:], state)[0], 0.0)
    assert all(map(torch.equal, kept, state.tensors))
    picked = stepped(mixer, x[[2, 0], 3:], state.pick([2, 0]))[0]
    if not name.endswith("later layer"):  # whose first values are those of the rows
        assert_close(picked, stepped(mixer, x[:, 3:], state)[0][[2, 0]])


@EACH
def test_gradients_autocast_and_transforms_take_the_ordinary_path(name):
    mixer, x = drawn(MAKERS[name]()), numbers(ROWS, 1, WIDTH)
    first = {"first": FirstValues({"forward": given_values(x)})} if mixer.shares_values else {}
    want, packed = stepped(mixer, x)
    assert packed.packed is not None
    y, state = mixer.step(x, packed.detach(), **first)
    assert y.requires_grad
    assert_close(y.detach(), stepped(mixer, x, packed)[0])
    y, state = mixer.step(x, mixer.start(ROWS), **first)
    assert state.packed is None
    with torch.no_grad():
        _, state = mixer.step(x, mixer.start(ROWS), lengths=torch.tensor([1, 0, 1]), **first)
        assert state.packed is None
        mapped = torch.func.vmap(lambda one: mixer.step(one, mixer.start(ROWS), **first)[0])(torch.stack([x, 2 * x]))
        assert_close(mapped[0], want)


@EACH
def test_parameters_of_the_inference_mode_are_not_packed(name):
    """torch does not count their changes."""
    with torch.inference_mode():
        mixer, x = drawn(MAKERS[name]()), numbers(ROWS, COUNT, WIDTH)
        want = whole(mixer, x)
    with torch.inference_mode():
        y, state = stepped(mixer, x)
    assert state.packed is None
    assert_close(y, want)


@EACH
def test_hooks_of_the_linear_layers_are_called(name):
    mixer, x, seen = drawn(MAKERS[name]()), numbers(ROWS, COUNT, WIDTH), []
    mixer.key.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    stepped(mixer, x)
    assert len(seen) == COUNT


@EACH
def test_packed_linear_layers_do_not_prevent_packed_steps(name):
    mixer, x = drawn(MAKERS[name]()).float(), numbers(ROWS, COUNT, WIDTH).float()
    with packed_linear_layers(mixer):
        y, state = stepped(mixer, x)
    assert state.packed is not None
    assert_close(y, stepped(mixer, x)[0], 1e-5)


def test_a_forward_pass_of_ones_own_is_called():
    mixer, x = drawn(MAKERS["rwkv7"]()), numbers(ROWS, COUNT, WIDTH)
    _, state = stepped(mixer, x)
    mixer.value.forward = torch.zeros_like
    assert stepped(mixer, x, state)[1].packed is None
    assert_close(stepped(mixer, x)[0], whole(mixer, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@EACH
def test_shorter_numbers_are_as_exact_as_all_tokens_at_once(name, dtype):
    mixer, x = drawn(MAKERS[name]()).to(dtype), numbers(ROWS, COUNT, WIDTH).to(dtype)
    truth = whole(copy.deepcopy(mixer).double(), x.double())
    ours, theirs = stepped(mixer, x)[0], whole(mixer, x)
    assert ours.dtype == dtype
    error, plainly = ((found.double() - truth).abs().max() for found in (ours, theirs))
    assert error <= 2 * plainly + 4 * torch.finfo(dtype).eps * truth.abs().max()


def test_matrices_are_transposed():
    first, second = numbers(2, 3), numbers(2, 3, seed=1)
    stacked = stack_transposed([first, second])
    assert stacked.is_contiguous()
    assert torch.equal(stacked, torch.stack([first.T, second.T]))


def test_matrices_are_padded_with_zeros():
    first, second = numbers(2, 3), numbers(4, 1, seed=1)
    stacked = stack_padded([first, second])
    assert stacked.shape == (2, 4, 3)
    assert torch.equal(stacked[0, :2], first)
    assert torch.equal(stacked[1, :, :1], second)
    assert stacked.abs().sum() == first.abs().sum() + second.abs().sum()


def test_a_token_of_version_4_is_the_sum_of_two_states():
    k, v, a, b, p = (numbers(ROWS, WIDTH, seed=seed) for seed in range(5))
    w, u, state = -numbers(WIDTH, seed=5).exp(), numbers(WIDTH, seed=6), wkv.WKV4State(a, b.exp(), p)
    y, after = wkv.wkv4_step(k, v, w, u, state)
    one = torch.ones_like(v)
    assert_close(y, state.add(wkv.WKV4State(v, one, k + u)).quotient())
    for ours, theirs in zip(after, state.decayed(w).add(wkv.WKV4State(v, one, k)), strict=True):
        assert_close(ours, theirs)
