"""Taps: closed they cost nothing, open they hand out what the layer looks at, and nothing changes but that."""

import copy
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
import torch
from problems import assert_close, normal
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import regard
from regard.attention import layer as layer_module
from regard.attention.look import Tap, find_taps

WIDTH = 4
LAYERS = {
    "attention": lambda **options: regard.Attention(WIDTH, heads=2, **options),
    "grouped": lambda **options: regard.Attention(WIDTH, heads=4, key_heads=2, value_width=3, **options),
    "rotary": lambda **options: regard.Attention(WIDTH, heads=2, rotary=regard.Rotary(2), **options),
    "biased": lambda **options: regard.Attention(WIDTH, heads=2, position_bias=regard.ALiBi.for_heads(2), **options),
    "additive": lambda **options: regard.Attention(WIDTH, heads=2, score="additive", normalize="relu", **options),
    "basic": lambda **options: regard.BasicAttention(WIDTH, score="bilinear", **options),
    "plain": lambda **options: regard.PlainAttention(WIDTH, **options),
}
WAYS = [(kind, backend) for kind in LAYERS for backend in ("exact", "tiled", "sdpa", None)
        if (kind, backend) != ("additive", "sdpa")]


def make(kind, **options):
    """A layer with random weights, in float64."""
    torch.set_default_dtype(torch.float64)
    layer = LAYERS[kind](**options)
    for i, parameter in enumerate(layer.parameters()):
        parameter.data = normal(*parameter.shape, seed=i)
    return layer


# ---- closed ----------------------------------------------------------------------------------------------------------


def test_a_closed_tap_makes_no_look(monkeypatch):
    def made(*_):
        raise AssertionError("a look was made")

    layer, x = make("attention"), normal(2, 3, WIDTH)
    with layer.tap.listen(lambda look: None):
        pass
    monkeypatch.setattr(layer_module, "Look", made)
    layer(x)
    layer(x, x, mask=regard.Causal())
    layer.step(x, layer.start(2, 3))
    layer.step(x, layer.remember(x))
    with layer.tap.listen(lambda look: None), pytest.raises(AssertionError, match="a look was made"):
        layer(x)


# ---- open ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "backend"), WAYS)
def test_a_look_holds_what_the_layer_used(kind, backend):
    layer, x, looks = make(kind, backend=backend), normal(2, 5, WIDTH).requires_grad_(), []
    mask = regard.Causal() & regard.Padding(torch.tensor([5, 3]))
    with layer.tap.listen(looks.append):
        output = layer(x, mask=mask)
    (look,) = looks
    assert not any(t.requires_grad for t in (look.query, look.key, look.value))
    query, (key, value) = layer.queries(x), layer.keys_and_values(x)
    if kind == "rotary":
        query, key = (layer.rotary(t, torch.arange(5)) for t in (query, key))
    for got, expected in ((look.query, query), (look.key, key), (look.value, value)):
        assert torch.equal(got, expected)
    assert look.normalize == layer.normalize
    assert look.bias is layer.position_bias
    assert torch.equal(look.mask.matrix(5, 5, leading=2), mask.matrix(5, 5, leading=2))
    # The weights that the look gives are those that made the output.
    spread = value.repeat_interleave(look.query.shape[1] // value.shape[1], dim=1)
    assert_close(layer.merge(look.weights() @ spread), output)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_step_hands_out_the_row_that_it_adds(kind):
    layer, x, whole, single = make(kind), normal(2, 4, WIDTH), [], []
    with layer.tap.listen(whole.append):
        layer(x, mask=regard.Causal())
    cache = layer.start(2, 6)
    with layer.tap.listen(single.append):
        for token in x.split(1, dim=1):
            _, cache = layer.step(token, cache)
    weights = whole[0].weights()
    assert len(single) == 4
    for n, look in enumerate(single):
        assert_close(look.weights()[..., 0, :], weights[..., n, :n + 1])


@pytest.mark.parametrize("kind", ["attention", "additive", "basic", "plain"])
def test_a_remembered_context_hands_out_the_same_looks(kind):
    layer, x, context, looks = make(kind), normal(2, 4, WIDTH), normal(2, 5, WIDTH, seed=1), []
    lengths = torch.tensor([2, 5])
    with layer.tap.listen(looks.append):
        layer(x, context, mask=regard.Padding(lengths))
        layer.step(x, layer.remember(context, lengths))
    assert_close(looks[1].weights(), looks[0].weights())
    assert (looks[1].weights()[0, ..., 2:] == 0).all()


@pytest.mark.parametrize(("kind", "backend"), WAYS)
def test_looking_changes_nothing_bit_for_bit(kind, backend):
    layer, x = make(kind, backend=backend, dropout=0.5).train(), normal(2, 5, WIDTH).requires_grad_()
    results = []
    for listeners in (0, 2):
        torch.manual_seed(1)
        with ExitStack() as stack:
            for _ in range(listeners):
                stack.enter_context(layer.tap.listen(lambda look: look.entropy()))
            output = layer(x, mask=regard.Causal())
        results.append((output, *torch.autograd.grad(output.square().sum(), (x, *layer.parameters()))))
    for closed, watched in zip(*results, strict=True):
        assert torch.equal(closed, watched)


# ---- listeners -------------------------------------------------------------------------------------------------------


def test_listeners_may_be_nested_and_listen_more_than_once():
    layer, x, outer, inner = make("plain"), normal(1, 3, WIDTH), [], []
    hear = outer.append
    with layer.tap.listen(hear):
        with layer.tap.listen(inner.append), layer.tap.listen(hear):
            layer(x)
        assert (len(outer), len(inner)) == (2, 1)
        layer(x)
    layer(x)
    assert (len(outer), len(inner)) == (3, 1)
    assert layer.tap.listeners == []


@dataclass
class Keeper:
    """A listener that equals every other one that has heard the same."""

    heard: list = field(default_factory=list)

    def __call__(self, look):
        self.heard.append(look.query.shape)


def test_listeners_that_are_equal_are_not_the_same():
    layer, x, outer, inner = make("plain"), normal(1, 3, WIDTH), Keeper(), Keeper()
    with layer.tap.listen(outer):
        with layer.tap.listen(inner):
            layer(x)
        layer(x)
    assert (len(outer.heard), len(inner.heard)) == (2, 1)


def test_an_error_in_the_block_or_in_a_listener_closes_the_tap():
    layer, x, heard = make("plain"), normal(1, 3, WIDTH), []

    def broken(look):
        raise KeyError("listener")

    with pytest.raises(ZeroDivisionError), layer.tap.listen(heard.append):
        raise ZeroDivisionError
    with pytest.raises(KeyError, match="listener"), layer.tap.listen(heard.append), layer.tap.listen(broken):
        layer(x)
    layer(x)
    assert len(heard) == 1
    assert layer.tap.listeners == []


def test_a_block_whose_listener_is_gone_already_ends_in_peace():
    layer, x, heard = make("plain"), normal(1, 3, WIDTH), []
    with layer.tap.listen(heard.append):
        layer.tap.listeners.clear()
        layer(x)

    def fail():
        layer.tap.listeners.clear()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), layer.tap.listen(heard.append):  # nor does it hide the error of the block
        fail()
    assert heard == []


def test_who_stops_listening_in_the_middle_takes_nothing_from_the_others():
    tap, first, second = Tap(), [], []

    def once(look):
        first.append(look)
        listening.close()

    with ExitStack() as listening, tap.listen(second.append):
        listening.enter_context(tap.listen(once))
        listening.enter_context(tap.listen(second.append))
        tap.send("one")
        tap.send("two")
    assert first == ["one"]
    assert second == ["one", "one", "two"]


# ---- models ----------------------------------------------------------------------------------------------------------


class Decoder(nn.Module):
    """Two attentions by name, one layer that is used twice, and something else that is called a tap."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"own": make("attention"), "cross": make("basic")}) for _ in range(2))
        self.first = make("plain")
        self.again = self.first
        self.sink = nn.Linear(1, 1)
        self.sink.tap = "water"


def test_taps_have_the_names_of_their_layers():
    model = Decoder()
    found = find_taps(model)
    assert list(found) == ["layers.0.own", "layers.0.cross", "layers.1.own", "layers.1.cross", "first"]
    assert found["layers.1.cross"] is model.layers[1]["cross"].tap
    assert found["first"] is model.first.tap
    assert find_taps(model.first) == {"": model.first.tap}
    assert find_taps(nn.Linear(1, 1)) == {}


def test_a_copy_of_a_layer_has_no_listeners_and_is_not_heard():
    layer, x, heard = make("additive"), normal(1, 3, WIDTH), []
    with layer.tap.listen(heard.append):
        other = copy.deepcopy(nn.Sequential(layer))[0]
        assert other.tap.listeners == []
        assert other.tap is not layer.tap
        assert torch.equal(other(x), layer(x))
    assert len(heard) == 1


# ---- compiled --------------------------------------------------------------------------------------------------------

COMPILED = {
    "rotary": (lambda: make("rotary"), regard.Padding),
    "alibi": (lambda: make("biased", backend="tiled"), lambda lengths: regard.Causal() & regard.Padding(lengths)),
    "additive": (lambda: make("additive"), lambda lengths: regard.Padding(lengths) & ~regard.Window(0, 0)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_layer_is_one_graph_whatever_the_lengths_and_can_still_be_watched(name):
    torch._dynamo.reset()
    layer, mask = COMPILED[name][0](), COMPILED[name][1]
    counter = CompileCounterWithBackend("aot_eager")
    compiled, x = torch.compile(layer, fullgraph=True, backend=counter), normal(2, 5, WIDTH).requires_grad_()

    def check(*lengths):
        results = []
        for form in (compiled, layer):
            output = form(x, mask=mask(torch.tensor(lengths)))
            results.append((output, *torch.autograd.grad(output.square().sum(), (x, *layer.parameters()))))
        for got, expected in zip(*results, strict=True):
            assert_close(got, expected)

    for lengths in ((5, 3), (1, 4), (0, 2)):
        check(*lengths)
    assert counter.frame_count == 1
    if name == "rotary":
        looks = []
        with layer.tap.listen(looks.append):
            check(2, 5)
        assert len(looks) == 2
        assert_close(looks[0].weights(), looks[1].weights())
        frames = counter.frame_count
        check(3, 3)
        assert (len(looks), counter.frame_count) == (2, frames)  # closed again: the first graph is still there
    torch._dynamo.reset()
