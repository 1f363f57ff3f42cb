"""Tensors into modules: all that does not fit is told at once, and then nothing is written."""

import pytest
import torch
from torch import nn

from regard.storage import weights
from regard.storage import weights as modules
from regard.storage.weights import TensorSpec


class Tied(nn.Module):
    """Two layers with one weight, and buffers of which one is kept."""

    def __init__(self, dtype=torch.float32, device=None):
        super().__init__()
        self.embedding = nn.Embedding(5, 4, dtype=dtype, device=device)
        self.output = nn.Linear(4, 5, dtype=dtype, device=device)
        self.output.weight = self.embedding.weight
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64, device=device))
        self.register_buffer("scratch", torch.zeros(3, device=device), persistent=False)


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def filling(dtype=torch.float32):
    """Tensors that fit a Tied, under one of the two names."""
    return {"embedding.weight": torch.randn(5, 4, dtype=dtype), "output.bias": torch.randn(5, dtype=dtype),
            "count": torch.tensor([3, 4])}


def assert_refused(module, tensors, *parts):
    before = state(module)
    with pytest.raises(ValueError, match=rf"there does not match the {type(module).__name__}") as error:
        modules.fill_module(module, tensors, origin="there")
    for part in parts:
        assert part in str(error.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(module).items())
    return str(error.value)


def test_filled_to_the_bit():
    module, tensors = Tied(), filling()
    parameter = module.output.weight
    modules.fill_module(module, tensors, origin="there")
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in tensors.items())
    assert module.output.weight is parameter is module.embedding.weight
    assert parameter.requires_grad
    tensors["embedding.weight"].zero_()
    assert parameter.abs().sum() > 0  # it has storage of its own


@pytest.mark.parametrize("names", [["embedding.weight"], ["output.weight"], ["output.weight", "embedding.weight"]])
def test_one_parameter_of_two_names(tmp_path, names):
    module, tensors = Tied(), filling()
    weight = tensors.pop("embedding.weight")
    weight[0, 0] = torch.nan
    modules.fill_module(module, {**tensors, **{name: weight.clone() for name in names}}, origin="there")
    assert torch.equal(module.output.weight[1:], weight[1:])
    weights.write_tensors(tmp_path / "a.safetensors", module.state_dict())
    other = Tied()
    modules.fill_module(other, weights.read_tensors(tmp_path / "a.safetensors"), origin="there")
    assert torch.equal(other.output.weight[1:], weight[1:])


def test_one_parameter_of_two_names_and_two_values():
    tensors = filling()
    tensors["output.weight"] = tensors["embedding.weight"].clone()
    tensors["output.weight"][4, 3] += 1
    assert_refused(Tied(), tensors, "'embedding.weight' and 'output.weight' are one tensor")
    tensors["output.weight"] = tensors["embedding.weight"].double()
    assert_refused(Tied(), tensors, "'embedding.weight' and 'output.weight'")


def test_all_that_does_not_fit_is_told_at_once():
    tensors = {"embeding.weight": torch.zeros(5, 4), "output.bias": torch.zeros(6), "count": torch.zeros(2),
               "scratch": torch.zeros(3)}
    message = assert_refused(
        Tied(), tensors, "missing: 'embedding.weight'", "unexpected: 'scratch'",
        "unexpected: 'embeding.weight' Did you mean \"embedding.weight\"?",
        "different: 'output.bias' must be torch.float32 of shape (5,), but is torch.float32 of shape (6,)",
        "different: 'count' must be torch.int64 of shape (2,), but is torch.float32 of shape (2,)")
    assert message.count("missing: ") == 1  # one tensor, though it has two names
    assert "1 tensor missing, 2 unexpected, 2 of another shape or dtype" in message.splitlines()[0]


def test_the_message_names_the_file_and_what_it_must_match():
    tensors = filling() | {"extra": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"a/model\.safetensors does not match config\.toml: 1 tensor unexpected\."):
        modules.build_module(Tied, tensors, origin="a/model.safetensors", owner="config.toml")


def test_long_lists_are_cut():
    module = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(25)))
    message = assert_refused(module, {f"layer{index}": torch.zeros(1) for index in range(12)})
    assert message.count("missing: ") == message.count("unexpected: ") == 10
    assert "25 tensors missing, 12 unexpected" in message
    assert "and 15 more missing" in message
    assert "and 2 more unexpected" in message
    differing = {name: torch.zeros(2) for name in module.state_dict()}
    message = assert_refused(module, differing)
    assert message.count("different: ") == 10
    assert "and 15 more different" in message


def test_names_cannot_forge_the_terminal():
    message = assert_refused(nn.Linear(1, 1, bias=False), {"\x1b[31m" + "x" * 10**5: torch.zeros(1)})
    assert "\x1b" not in message
    assert len(message) < 1000


@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize("built", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_module_keeps_its_dtype(stored, built):
    """Nothing is lost where it is the wider one."""
    module, tensors = Tied(built), {name: tensor.to(stored) if tensor.is_floating_point() else tensor
                                    for name, tensor in filling(torch.float64).items()}
    modules.fill_module(module, tensors, origin="there")
    assert module.output.weight.dtype == built
    expected = tensors["embedding.weight"].double()
    assert torch.equal(module.output.weight, expected.to(built))
    if torch.finfo(built).bits > torch.finfo(stored).bits:
        assert torch.equal(module.output.weight.double(), expected)


@pytest.mark.parametrize(("stored", "built", "number"), [
    (torch.float32, torch.float16, 1e5), (torch.bfloat16, torch.float16, -65536.0),
    (torch.float64, torch.float32, -1e300), (torch.float32, torch.bfloat16, 3.4028235e38),
    (torch.float16, torch.float8_e4m3fn, 1000.0)])
def test_numbers_that_a_dtype_cannot_hold(stored, built, number):
    module, tensors = nn.Module(), {"weight": torch.tensor([[0, number], [0, 0]], dtype=stored)}
    module.weight = nn.Parameter(torch.zeros(2, 2, dtype=built))
    with pytest.raises(ValueError, match=f"'weight' has numbers too large for {built}"):
        modules.fill_module(module, tensors, origin="there")
    tensors["weight"] = torch.tensor([[0, torch.inf], [-torch.inf, torch.nan]], dtype=stored)
    modules.fill_module(module, tensors, origin="there")  # what is not finite was so before


@pytest.mark.parametrize(("own", "given"), [
    (torch.int64, torch.int32), (torch.int64, torch.float32), (torch.bool, torch.uint8), (torch.float32, torch.int64),
    (torch.float32, torch.complex64), (torch.complex64, torch.float32)])
def test_other_dtypes_must_be_equal(own, given):
    module = nn.Module()
    module.register_buffer("a", torch.zeros(2, dtype=own))
    assert_refused(module, {"a": torch.ones(2, dtype=given)}, f"'a' must be {own} of shape (2,), but is {given}")


def test_a_module_too_large_is_refused_before_it_is_made(tmp_path):
    """10^12 parameters, of which the file knows nothing; neither is allocated."""
    weights.write_tensors(tmp_path / "a.safetensors", {"weight": torch.zeros(2, 2)})
    module = nn.Linear(10**6, 10**6, bias=False, device="meta")
    with pytest.raises(ValueError, match=r"must be torch\.float32 of shape \(1000000, 1000000\)"):
        modules.check_module(module, weights.read_header(tmp_path / "a.safetensors").tensors, origin="a.safetensors")
    modules.check_module(Tied(device="meta"), modules.tensor_specs(filling()), origin="there")


def test_a_module_without_storage_is_not_filled():
    with pytest.raises(ValueError, match=r'`module` .* on the device "meta"'):
        modules.fill_module(Tied(device="meta"), filling(), origin="there")
    module = Tied(device="meta").to_empty(device="cpu")
    module.output.weight = module.embedding.weight
    modules.fill_module(module, filling(), origin="there")


def test_a_state_that_is_not_of_tensors():
    class Extra(nn.Module):
        def get_extra_state(self):
            return {"any": "object"}

    with pytest.raises(ValueError, match=r"`module` .*'_extra_state', a dict"):
        modules.fill_module(Extra(), {}, origin="there")


def test_views_of_one_storage_are_told_apart():
    """As recurrent modules keep their weights: parts of one storage that are not one tensor."""
    module, other = nn.LSTM(3, 4, 2), nn.LSTM(3, 4, 2)
    modules.fill_module(other, module.state_dict(), origin="there")
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in other.state_dict().items())


def test_state_of_an_optimiser_of_another_shape():
    """torch takes it without a word; by names, shapes and dtypes it is refused."""

    def state_of(width):
        layer = nn.Linear(width, 2)
        optimiser = torch.optim.Adam(layer.parameters())
        layer(torch.ones(1, width)).sum().backward()
        optimiser.step()
        return {f"{index}.{key}": TensorSpec(tensor.dtype, tuple(tensor.shape))
                for index, slots in optimiser.state_dict()["state"].items() for key, tensor in slots.items()}

    modules.check_specs(state_of(3), state_of(3), origin="optimiser.safetensors", owner="Adam")
    with pytest.raises(ValueError, match=r"optimiser\.safetensors does not match Adam: 2 tensors") as error:
        modules.check_specs(state_of(3), state_of(4), origin="optimiser.safetensors", owner="Adam")
    assert "'0.exp_avg' must be torch.float32 of shape (2, 3), but is torch.float32 of shape (2, 4)" in str(error.value)


def test_a_new_module_has_the_tensors_and_draws_nothing():
    tensors = {"weight": torch.randn(3, 2), "bias": torch.randn(3)}
    before = torch.get_rng_state()
    linear = modules.build_module(lambda: torch.nn.Linear(2, 3), tensors, origin="here")
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in linear.state_dict().items())
