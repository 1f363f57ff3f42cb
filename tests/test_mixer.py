"""Mixers are interchangeable: every one of them keeps the same promises, and a block takes any.

The truth is always the mixer itself, asked once for the whole of a row by itself; what that is worth is held against
the oracle in the tests of each. A mixer that is not in the table `MIXERS` has promised nothing.
"""

import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard.attention.layer import SelfAttention
from regard.convolution import Convolution
from regard.mixer import Mixer, RowState, row_indices
from regard.recurrence.cells import CELLS
from regard.recurrence.lstmn import LSTMN
from regard.recurrence.scan import Recurrence
from regard.rwkv.channel_mix import ChannelMix
from regard.rwkv.time_mix import RWKV4, RWKV7, Ranks

WIDTH, CAPACITY = 4, 10


def attending(layer=regard.Attention, mask=None, **options):
    return SelfAttention(layer(WIDTH, **options), regard.Causal() if mask is None else regard.Causal() & mask)


MIXERS = {
    "convolution": lambda: Convolution(WIDTH, kernel_size=3),
    "convolution, depthwise": lambda: Convolution(WIDTH, kernel_size=4, groups="depthwise"),
    "convolution, gated": lambda: Convolution(WIDTH, kernel_size=2, gate="glu"),
    "convolution, dilated": lambda: Convolution(WIDTH, kernel_size=3, dilation=2, groups="depthwise", gate="glu"),
    **{f"recurrence, {name}": lambda name=name: Recurrence(WIDTH, cell=name) for name in CELLS},
    "recurrence, layers": lambda: Recurrence(WIDTH, cell="lstm", layers=2),
    "rwkv4": lambda: RWKV4(WIDTH),
    "rwkv7": lambda: RWKV7(WIDTH, head_width=2, ranks=Ranks(2, 3, 2, 3)),
    "channel mix, gated": lambda: ChannelMix(WIDTH, 6, gated=True),
    "lstmn": lambda: LSTMN(WIDTH, attention_width=3),
    "lstmn, dot": lambda: LSTMN(WIDTH, score="scaled_dot", normalize="sigmoid"),
    "attention": lambda: attending(heads=2),
    "attention, window": lambda: attending(mask=regard.Window(2, None), heads=1),
    "attention, rotary": lambda: attending(heads=2, rotary=regard.Rotary(2)),
    "attention, additive": lambda: attending(heads=2, score="additive"),
    "attention, basic": lambda: attending(regard.BasicAttention),
    "attention, plain": lambda: attending(regard.PlainAttention),
}
EACH = pytest.mark.parametrize("name", MIXERS)
UNCHANGED = [name for name in MIXERS if name.startswith(("convolution", "recurrence", "rwkv", "channel"))]
"""Mixers whose steps leave the state that they are given as it was."""

def make(name, seed=0):
    """The mixer of this name in float64, no parameter of it zero."""
    mixer, generator = MIXERS[name]().double(), torch.Generator().manual_seed(seed)
    for parameter in mixer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return mixer


def tokens(*shape, seed=0):
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alone(mixer, row):
    """The answer to one row (n, D) by itself."""
    return mixer(row[None])[0]


def assert_close(ours, theirs):
    assert ours.shape == theirs.shape
    assert torch.isfinite(ours).all()
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


class Block(nn.Module):
    """x + mixer(x), all at once and step by step: as little as a block can be."""

    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer

    def forward(self, x, present=None):
        return x + self.mixer(x, present)

    def start(self, rows, capacity):
        return self.mixer.start(rows, capacity)

    def step(self, x, state, *, lengths=None):
        y, state = self.mixer.step(x, state, lengths=lengths)
        return x + y, state


# ---- one interface ---------------------------------------------------------------------------------------------------


@EACH
def test_the_interface_is_that_of_the_protocol(name):
    for method in ("start", "step"):
        theirs = inspect.signature(getattr(Mixer, method)).parameters
        ours = inspect.signature(getattr(type(make(name)), method)).parameters
        assert list(ours)[:len(theirs)] == list(theirs)
        assert [ours[parameter].kind for parameter in theirs] == [parameter.kind for parameter in theirs.values()]
        assert all(ours[more].default is None for more in list(ours)[len(theirs):])
    first = list(inspect.signature(type(make(name)).forward).parameters.values())[:3]
    assert [parameter.name for parameter in first] == ["self", "x", "present"]
    assert first[2].default is None


@EACH
@pytest.mark.parametrize(("rows", "count"), [(2, 7), (1, 1), (3, 1), (2, 0), (0, 3)])
def test_tokens_in_and_as_many_out(name, rows, count):
    mixer, x = make(name), tokens(rows, count)
    assert mixer(x).shape == x.shape
    output, _ = mixer.step(x, mixer.start(rows, CAPACITY))
    assert_close(output, mixer(x))
    assert_close(mixer(x, regard.Padding([count] * rows)), mixer(x))


@EACH
def test_a_block_takes_it(name):
    """All at once, step by step, in a stack with another; and its parameters learn."""
    model = nn.Sequential(Block(make(name)), Block(make("convolution")))
    x = tokens(2, 5)
    states, outputs = [block.start(2, 5) for block in model], []
    for chunk in x.split([2, 1, 2], 1):
        for i, block in enumerate(model):
            chunk, states[i] = block.step(chunk, states[i])
        outputs.append(chunk)
    assert_close(torch.cat(outputs, 1), model(x))
    assert_close(model[0](x) - x, model[0].mixer(x))
    model(x).square().sum().backward()
    assert all(parameter.grad is not None and (parameter.grad != 0).any() for parameter in model.parameters())


@EACH
def test_parameters_are_saved_and_loaded(name):
    mixer, other, x = make(name), make(name, seed=1), tokens(2, 5)
    if list(mixer.parameters()):
        assert not torch.allclose(mixer(x), other(x))
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(mixer(x), other(x))


@EACH
def test_a_wrong_width_is_an_error_that_says_so(name):
    mixer = make(name)
    for act in (lambda x: mixer(x), lambda x: mixer.step(x, mixer.start(2, 5))):
        with pytest.raises(ValueError, match=r"`x` must be .*\b4\b.* but is .*\(2, 5, 3\)"):
            act(tokens(2, 5)[..., :3])


@pytest.mark.thorough
@EACH
def test_it_compiles_whole(name):
    mixer, x = make(name), tokens(2, 3)
    torch.compiler.reset()
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_close(compiled(x), mixer(x))


# ---- step by step ----------------------------------------------------------------------------------------------------


@EACH
@given(st.lists(st.integers(0, 4), max_size=4), st.integers(0, 3))
def test_chunks_of_any_size_are_all_at_once(name, sizes, spare):
    mixer, x = make(name), tokens(2, sum(sizes))
    with torch.no_grad():
        state, outputs = mixer.start(2, sum(sizes) + spare), [x[:, :0]]
        for chunk in x.split([*sizes, 0], 1):
            output, state = mixer.step(chunk, state)
            outputs.append(output)
        assert_close(torch.cat(outputs, 1), mixer(x))


@pytest.mark.thorough
@EACH
@given(st.data())
def test_rows_live_their_own_lives(name, data):
    """Chunks of which each row has its own share; rows picked in any order, more than once, or replaced by others."""
    mixer = make(name)
    rows = [tokens(0)] * data.draw(st.integers(1, 3))  # what each row has seen
    state = mixer.start(len(rows), CAPACITY)
    for seed in range(data.draw(st.integers(1, 4))):
        act, longest = data.draw(st.sampled_from(("step", "step", "pick", "put", "copy"))), max(map(len, rows))
        if act == "step" and longest < CAPACITY - 1:
            size = data.draw(st.integers(1, min(3, CAPACITY - 1 - longest)))
            lengths = data.draw(st.lists(st.integers(0, size), min_size=len(rows), max_size=len(rows)))
            state = check_step(mixer, state, rows, tokens(len(rows), size, seed=seed), lengths)
        elif act == "pick":
            chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=3))
            state, rows = state.pick(chosen), [rows[b] for b in chosen]
        elif act == "put":
            chosen = data.draw(st.permutations(range(len(rows))))[:data.draw(st.integers(1, len(rows)))]
            others = tokens(len(chosen), data.draw(st.integers(0, 4)), seed=seed + 50)
            with torch.no_grad():
                _, other = mixer.step(others, mixer.start(len(chosen), CAPACITY))
            state = state.put(torch.tensor(chosen), other)
            rows = [others[chosen.index(b)] if b in chosen else row for b, row in enumerate(rows)]
        else:
            state = state.copy()
    check_step(mixer, state, rows, tokens(len(rows), 1, seed=99), [1] * len(rows))


@torch.no_grad()
def check_step(mixer, state, rows, x, lengths):
    """Every row gets the answer that it would get by itself; NaN fills its padding. `rows` grow."""
    there = regard.Padding(lengths).matrix(1, x.shape[1])[:, 0]
    filled = x.masked_fill(~there.unsqueeze(-1), math.nan)
    output, state = mixer.step(filled, state, lengths=torch.tensor(lengths))
    for b, length in enumerate(lengths):
        rows[b] = torch.cat([rows[b], x[b, :length]])
        assert_close(output[b, :length], alone(mixer, rows[b])[len(rows[b]) - length:])
    return state


@EACH
def test_a_copy_is_kept_and_what_is_picked_is_apart(name):
    mixer, x = make(name), tokens(3, 6)
    with torch.no_grad():
        _, state = mixer.step(x[:, :3], mixer.start(3, 9))
        kept, picked, expected = state.copy(), state.pick([2, 0, 2]), mixer(x)
        assert_close(mixer.step(x[:, 3:], state)[0], expected[:, 3:])  # it consumes the state
        assert_close(mixer.step(x[:, 3:], kept.copy())[0], expected[:, 3:])
        assert_close(mixer.step(x[[2, 0, 2], 3:], picked)[0], expected[[2, 0, 2], 3:])
        assert_close(mixer.step(x[:, 3:], kept)[0], expected[:, 3:])
        assert len(mixer(x[:0])) == len(mixer.step(x[:0], state.pick([]))[0]) == 0


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_state_that_is_not_consumed_serves_twice(name):
    mixer, x = make(name), tokens(2, 5)
    _, state = mixer.step(x[:, :3], mixer.start(2, 5))
    before = [tensor.clone() for tensor in state.tensors]
    first, second = (mixer.step(x[:, 3:], state)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert all(map(torch.equal, before, state.tensors))


# ---- what a token may learn from -------------------------------------------------------------------------------------


@EACH
def test_no_token_learns_from_those_after_it(name):
    mixer, x = make(name), tokens(2, 6).requires_grad_()
    for t in range(6):
        (gradient,) = torch.autograd.grad(mixer(x)[0, t].sum(), x)
        assert (gradient[0, t + 1:] == 0).all()
        assert (gradient[1] == 0).all()  # nor from another row
        assert (gradient[0, t] != 0).any()
        assert (gradient[0, :t] != 0).any() or t < 2  # of a dilated convolution the second sees only itself


@pytest.mark.thorough
@EACH
@given(st.data())
def test_padding_changes_nothing(name, data):
    """Either side, any amount, any neighbours, and NaN in it."""
    mixer, N = make(name), data.draw(st.integers(1, 6))
    lengths = data.draw(st.lists(st.integers(0, N), min_size=1, max_size=3))
    present = regard.Padding(lengths, data.draw(st.sampled_from(("right", "left"))))
    x, there = tokens(len(lengths), N), present.matrix(1, N)[:, 0]
    filler = data.draw(st.sampled_from((math.nan, math.inf, 1.0)))
    with torch.no_grad():
        output = mixer(x.masked_fill(~there.unsqueeze(-1), filler), present)
        for b, own in enumerate(there):
            assert_close(output[b, own], alone(mixer, x[b, own]))
        assert (output[~there] == 0).all()


@EACH
@pytest.mark.parametrize("case", ["right", "left", "step"])
def test_padding_has_no_part_in_gradients(name, case):
    """Gradients of a loss over the tokens that are there: those of every row by itself, for any padding."""
    mixer, x, lengths = make(name), tokens(3, 5), torch.tensor([5, 2, 0])
    present = regard.Padding(lengths, "right" if case == "step" else case)
    there, parameters = present.matrix(1, 5)[:, 0], list(mixer.parameters())
    filled = x.masked_fill(~there.unsqueeze(-1), math.nan).requires_grad_()
    if case == "step":
        output, _ = mixer.step(filled, mixer.start(3, 5), lengths=lengths)
    else:
        output = mixer(filled, present)
    ours = torch.autograd.grad(output[there].square().sum(), [filled, *parameters])
    assert (ours[0][~there] == 0).all()
    x.requires_grad_()
    total = sum(alone(mixer, row[own]).square().sum() for row, own in zip(x[:2], there[:2], strict=True))
    for a, b in zip(ours, torch.autograd.grad(total, [x, *parameters]), strict=True):
        assert_close(a, b)


@pytest.mark.thorough
@EACH
def test_gradients(name):
    mixer, x = make(name), tokens(2, 3).requires_grad_()
    names, parameters = zip(*mixer.named_parameters(), strict=True) if list(mixer.parameters()) else ((), ())

    def function(x, *given):
        return torch.func.functional_call(mixer, dict(zip(names, given, strict=True)), (x, regard.Padding([3, 2])))[0]

    assert torch.autograd.gradcheck(function, (x, *parameters))


# ---- rows of tensors -------------------------------------------------------------------------------------------------


def state_of(*numbers):
    return RowState((torch.tensor(numbers), torch.tensor(numbers).unsqueeze(-1).repeat(1, 2) * 10.0))


def shown(state):
    first, second = state.tensors
    assert torch.equal(second, first.unsqueeze(-1).repeat(1, 2) * 10.0)
    return first.tolist()


def test_rows_are_picked_put_and_copied():
    state = state_of(1, 2, 3)
    assert shown(state.pick([2, 0, 0])) == [3, 1, 1]
    assert shown(state.pick(torch.tensor([-1]))) == [3]
    assert shown(state.pick([])) == []
    assert shown(state.put([2, 0], state_of(8, 9))) == [9, 2, 8]
    assert shown(state.put(torch.tensor([-2]), state_of(7))) == [1, 7, 3]
    assert shown(state) == [1, 2, 3]  # none of this changed it
    copied = state.copy()
    copied.tensors[0].zero_()
    assert shown(state) == [1, 2, 3]
    with pytest.raises(ValueError, match="zip"):
        state.put([0], RowState((torch.tensor([1]),)))


def test_a_detached_state_has_no_past():
    past = torch.ones(2, 3, requires_grad=True)
    state = RowState((past * 2.0,))
    assert state.tensors[0].requires_grad
    assert state.pick([0]).tensors[0].requires_grad
    assert not state.detach().tensors[0].requires_grad
    assert torch.equal(state.detach().tensors[0], state.tensors[0])


def test_rows_put_take_the_precision_of_those_that_are_there():
    assert RowState((torch.zeros(2),)).put([0], RowState((torch.ones(1).double(),))).tensors[0].tolist() == [1.0, 0.0]
    assert row_indices([-1, 0], torch.zeros(3)).tolist() == [2, 0]
    assert row_indices([], torch.zeros(0)).dtype == torch.long
