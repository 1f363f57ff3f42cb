"""Absolute encodings against the oracle, at every shape and precision, far out, and for wrong arguments."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_named

from regard.position import encoding
from regard.position.encoding import (
    AddPositions,
    ConcatenatePositions,
    FormalSinusoidalEncoding,
    LearnedEncoding,
    LinearEncoding,
    PositionalEncoding,
    SinusoidalEncoding,
)
from regard.position.positions import float64_device
from regard.reference import position as oracle

FLOAT32_ULP = 2.0**-24  # half a unit in the last place of numbers up to 1

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
quick = settings(max_examples=40, deadline=None)


def places(shape: tuple[int, ...], largest: int = 1000) -> torch.Tensor:
    return torch.randint(0, largest, shape, generator=torch.Generator().manual_seed(sum(shape)))


def oracle_rows(function, positions: torch.Tensor, width: int, *arguments: float) -> np.ndarray:
    rows = [function(position, width, *arguments) for position in positions.flatten().tolist()]
    return np.reshape(np.array(rows, dtype=np.float64), (*positions.shape, width))


def check_close(got: torch.Tensor, expected: np.ndarray, tolerance: float = 1e-12) -> None:
    assert got.shape == expected.shape
    if expected.size:
        assert np.abs(got.detach().double().numpy() - expected).max() <= tolerance * max(1.0, np.abs(expected).max())


@quick
@given(shapes, st.floats(-10, 10), st.floats(-10, 10), st.integers(1, 3))
def test_linear_is_the_oracle(shape, slope, offset, width):
    positions = places(shape)
    got = LinearEncoding(slope, offset, width)(positions, dtype=torch.float64)
    rows = [[oracle.linear(position, slope, offset)] * width for position in positions.flatten().tolist()]
    check_close(got, np.reshape(np.array(rows, dtype=np.float64), (*shape, width)))


@quick
@given(shapes, st.integers(1, 9), st.sampled_from([10000.0, 500.0, 1e6]))
def test_sinusoidal_is_the_oracle(shape, width, base):
    positions = places(shape)
    got = SinusoidalEncoding(width, base)(positions, dtype=torch.float64)
    check_close(got, oracle_rows(oracle.sinusoidal, positions, width, base))


@quick
@given(shapes, st.integers(1, 4), st.integers(1, 2000))
def test_formal_sinusoidal_is_the_oracle_where_tokens_count_from_one(shape, half, longest):
    positions = places(shape)
    got = FormalSinusoidalEncoding(2 * half, longest)(positions, dtype=torch.float64)
    check_close(got, oracle_rows(oracle.sinusoidal_formal, positions + 1, 2 * half, longest))


@pytest.mark.parametrize("position", [65_537, 100_000, 1_000_003, 16_777_217, 1_000_000_007])
def test_sinusoidal_in_float32_is_right_to_the_last_digit_far_out(position):
    expected = oracle_rows(oracle.sinusoidal, torch.tensor([position]), 64, 10000.0)
    got = SinusoidalEncoding(64)(torch.tensor([position]), dtype=torch.float32)
    assert np.abs(got.double().numpy() - expected).max() <= FLOAT32_ULP + 1e-15 * position


@pytest.mark.parametrize(("dtype", "ulp"), [(torch.bfloat16, 2.0**-9), (torch.float16, 2.0**-12)])
def test_sinusoidal_in_low_precision_is_rounded_once(dtype, ulp):
    positions = torch.arange(0, 5000, 7)
    got = SinusoidalEncoding(16)(positions, dtype=dtype)
    assert got.dtype == dtype
    check_close(got, oracle_rows(oracle.sinusoidal, positions, 16, 10000.0), 1.001 * ulp)


@pytest.mark.parametrize("encoding",
                         [LinearEncoding(0.5, 1.0), SinusoidalEncoding(6), FormalSinusoidalEncoding(6, 100)])
def test_positions_may_be_of_any_number_dtype(encoding):
    expected = encoding(torch.tensor([0, 3, 255]), dtype=torch.float64)
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.float32, torch.float64):
        positions = torch.tensor([0, 3, 255], dtype=dtype)
        assert torch.equal(encoding(positions, dtype=torch.float64), expected)
    assert encoding(torch.tensor([0.5])).dtype == torch.get_default_dtype()


def test_learned_reads_its_table():
    learned, positions = LearnedEncoding(7, 3), torch.tensor([[6, 0, 0], [1, 5, 6]])
    assert torch.equal(learned(positions), learned.table[positions])
    assert torch.equal(learned(positions.to(torch.uint8)), learned.table[positions])
    assert learned(positions, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert learned(torch.empty(2, 0, dtype=torch.long)).shape == (2, 0, 3)


def test_learned_has_right_gradients():
    learned, positions = LearnedEncoding(4, 2).double(), torch.tensor([[3, 0, 3], [1, 1, 0]])

    def forward(table):
        return torch.func.functional_call(learned, {"table": table}, (positions,))

    assert torch.autograd.gradcheck(forward, learned.table)


def test_float_positions_have_right_gradients():
    positions = torch.tensor([0.0, 1.5, 40.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p: SinusoidalEncoding(5)(p, dtype=torch.float64), positions)


@quick
@given(st.lists(st.integers(1, 3), max_size=2).map(tuple), st.integers(0, 5), st.integers(1, 6), st.data())
def test_added_and_concatenated_take_any_rows(leading, count, width, data):
    x = torch.randn(*leading, count, width, dtype=torch.float64)
    rows = leading[: data.draw(st.integers(0, len(leading)))]
    positions = places((*rows, count))
    vectors = torch.from_numpy(oracle_rows(oracle.sinusoidal, positions, width, 10000.0))
    vectors = vectors.reshape(*rows, *(1,) * (len(leading) - len(rows)), count, width).expand_as(x)
    added = AddPositions(SinusoidalEncoding(width))(x, positions)
    beside = ConcatenatePositions(SinusoidalEncoding(width))(x, positions)
    check_close(added, (x + vectors).numpy())
    check_close(beside, torch.cat((x, vectors), -1).numpy())


def test_positions_count_from_zero_when_not_given():
    x = torch.randn(2, 5, 4)
    for layer in (AddPositions(SinusoidalEncoding(4)), ConcatenatePositions(LearnedEncoding(5, 3))):
        assert torch.equal(layer(x), layer(x, torch.arange(5)))
        assert torch.equal(layer(x), layer(x, torch.arange(5).expand(2, 5)))


@pytest.mark.parametrize("made", [LinearEncoding(0.5, 1.0), SinusoidalEncoding(5), FormalSinusoidalEncoding(6, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_that_come_again_are_encoded_once(made, dtype):
    asked = []
    made.register_forward_pre_hook(lambda module, given: asked.append(given[0].numel()))
    positions = torch.arange(7, dtype=torch.int32).repeat(20).unsqueeze(0)
    x = torch.zeros(1, 140, 2, dtype=dtype)
    assert torch.equal(ConcatenatePositions(made)(x, positions)[..., 2:], made(positions, dtype=dtype))
    assert asked == [7, 140]
    for others in (positions - 1, positions.double(), positions + 100, torch.arange(140)):
        assert torch.equal(ConcatenatePositions(made)(x, others)[..., 2:], made(others, dtype=dtype).view(1, 140, -1))
        assert asked[-2:] == [140, 140]


def test_a_part_of_the_sequence_is_encoded_as_in_the_whole():
    x, layer = torch.randn(2, 9, 4), AddPositions(SinusoidalEncoding(4))
    assert torch.equal(layer(x)[:, 6:], layer(x[:, 6:], torch.arange(6, 9)))


def test_linear_of_width_one_is_added_to_every_feature_and_set_beside_them_once():
    x = torch.zeros(2, 3, 4)
    assert torch.equal(AddPositions(LinearEncoding(2.0, 1.0))(x)[0],
                       torch.tensor([1.0, 3.0, 5.0])[:, None].expand(3, 4))
    assert ConcatenatePositions(LinearEncoding())(x).shape == (2, 3, 5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("encoding", [LinearEncoding(0.01), SinusoidalEncoding(6), FormalSinusoidalEncoding(6, 50),
                                      LearnedEncoding(8, 6)], ids=repr)
def test_a_cast_model_keeps_its_precision(encoding, dtype):
    x = torch.randn(2, 8, 6, dtype=dtype)
    before = encoding(torch.arange(8), dtype=torch.float64)
    layer = AddPositions(encoding).to(dtype)
    assert layer(x).dtype == ConcatenatePositions(encoding)(x).dtype == dtype
    error = (layer(x).double() - (x.double() + before)).abs().max()
    assert error <= 2 * torch.finfo(dtype).eps * (x.abs().max() + before.abs().max())


def test_only_what_is_learned_is_stored():
    assert list(AddPositions(LearnedEncoding(3, 2)).state_dict()) == ["encoding.table"]
    assert not AddPositions(SinusoidalEncoding(4)).state_dict()
    assert not ConcatenatePositions(FormalSinusoidalEncoding(4, 9)).state_dict()
    assert not AddPositions(LinearEncoding()).state_dict()


@pytest.mark.thorough
@pytest.mark.parametrize("make", [AddPositions, ConcatenatePositions])
@pytest.mark.parametrize("encoding", [LinearEncoding(), SinusoidalEncoding(4), FormalSinusoidalEncoding(4, 9),
                                      LearnedEncoding(6, 4)], ids=repr)
def test_compiles_without_a_break(make, encoding):
    torch.compiler.reset()
    layer, x = make(encoding), torch.randn(2, 5, 4)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), layer(x))
    positions = torch.tensor([[0, 0, 1, 2, 3], [1, 2, 3, 4, 5]])
    assert torch.equal(compiled(x, positions), layer(x, positions))


def test_apple_devices_compute_angles_on_the_cpu():
    assert float64_device(torch.device("mps")) == torch.device("cpu")
    assert float64_device(torch.device("cuda:1")) == torch.device("cuda:1")


X = torch.zeros(2, 5, 4)
WRONG = {
    "width 0": (lambda: SinusoidalEncoding(0), ["`width`", "at least 1", "0"]),
    "width is a bool": (lambda: SinusoidalEncoding(True), ["`width`", "integer", "True"]),
    "width is a float": (lambda: FormalSinusoidalEncoding(4.0, 10), ["`width`", "4.0"]),
    "base 0": (lambda: SinusoidalEncoding(4, base=0), ["`base`", "above 0"]),
    "base is nan": (lambda: SinusoidalEncoding(4, base=float("nan")), ["`base`", "finite"]),
    "slope is a word": (lambda: LinearEncoding("steep"), ["`slope`", "finite number", "steep"]),
    "linear width": (lambda: LinearEncoding(width=0), ["`width`"]),
    "odd formal width": (lambda: FormalSinusoidalEncoding(5, 10), ["`width`", "even", "5", "Sinusoidal"]),
    "longest 0": (lambda: FormalSinusoidalEncoding(4, 0), ["`max_length`", "at least 1"]),
    "no rows": (lambda: LearnedEncoding(0, 4), ["`max_positions`", "at least 1"]),
    "beyond the table": (lambda: LearnedEncoding(5, 4)(torch.tensor([1, 9])), ["`positions`", "0 to 4", "5 rows", "9"]),
    "before the table": (lambda: LearnedEncoding(5, 4)(torch.tensor([-1])), ["`positions`", "0 to 4", "-1"]),
    "half a row": (lambda: LearnedEncoding(5, 4)(torch.tensor([0.5])),
                   ["`positions`", "integers", "float32", ".long()"]),
    "too long": (lambda: AddPositions(LearnedEncoding(3, 4))(X), ["`x`", "at most 3", "5 tokens", "Sinusoidal"]),
    "too long elsewhere": (lambda: AddPositions(LearnedEncoding(3, 4).to("meta"))(X.to("meta")), ["`x`", "at most 3"]),
    "a list": (lambda: SinusoidalEncoding(4)([1, 2]), ["`positions`", "list", "torch.tensor"]),
    "a mask": (lambda: LinearEncoding()(torch.tensor([True])), ["`positions`", "bool", "cumsum"]),
    "an integer dtype": (lambda: SinusoidalEncoding(4)(torch.arange(3), dtype=torch.int64),
                         ["`dtype`", "floating", "int64"]),
    "not an encoding": (lambda: AddPositions("sinusoidal"), ["`encoding`", "SinusoidalEncoding(width)"]),
    "nor here": (lambda: ConcatenatePositions(torch.nn.Identity()), ["`encoding`", "Identity"]),
    "wrong width": (lambda: AddPositions(SinusoidalEncoding(6))(X), ["`x`", "6", "(2, 5, 4)", "ConcatenatePositions"]),
    "ids": (lambda: AddPositions(SinusoidalEncoding(4))(X.long()), ["`x`", "floating", "int64", "Embed"]),
    "no tensor": (lambda: AddPositions(SinusoidalEncoding(4))([[1.0]]), ["`x`", "list"]),
    "one vector": (lambda: AddPositions(SinusoidalEncoding(4))(X[0, 0]), ["`x`", "(..., N, D)", "(4,)"]),
    "too few positions": (lambda: AddPositions(SinusoidalEncoding(4))(X, torch.arange(4)),
                          ["`positions`", "(5,)", "(4,)"]),
    "other rows": (lambda: AddPositions(SinusoidalEncoding(4))(X, torch.zeros(3, 5)),
                   ["`positions`", "(2, 5, 4)", "(3, 5)"]),
    "too many rows": (lambda: AddPositions(SinusoidalEncoding(4))(X, torch.zeros(2, 1, 5)),
                      ["`positions`", "(2, 1, 5)"]),
    "one position": (lambda: AddPositions(SinusoidalEncoding(4))(X, torch.tensor(5)), ["`positions`", "()"]),
    "elsewhere": (lambda: AddPositions(SinusoidalEncoding(4))(X, torch.arange(5, device="meta")),
                  ["`positions`", "meta", ".to("]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case):
    assert_named(*WRONG[case])


def test_an_encoding_without_a_rule_cannot_be_made():
    with pytest.raises(TypeError, match="forward"):
        PositionalEncoding()


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, None], ids=str)
@pytest.mark.parametrize("width", [1, 7, 8])
def test_waves_that_are_written_where_they_stay_are_the_same(width, dtype, layout, monkeypatch):
    """As on a GPU."""
    positions, made = torch.tensor([[0, 1, 5], [77, 1000, 123_456]]), encoding.SinusoidalEncoding(width, layout=layout)
    plain = made(positions, dtype)
    monkeypatch.setattr(encoding, "_written_at_once", lambda angle: True)
    found = made(positions, dtype)
    assert found.dtype == plain.dtype
    assert torch.equal(found, plain)
    with pytest.raises(ValueError, match="a floating dtype"):
        made(positions, torch.int64)


@pytest.mark.gpu
def test_on_a_gpu_waves_are_those_of_the_plain_way(monkeypatch):
    positions, made = torch.arange(3000, device="cuda"), encoding.SinusoidalEncoding(64)
    for dtype in (torch.float32, torch.bfloat16):
        monkeypatch.undo()
        found = made(positions, dtype)
        monkeypatch.setattr(encoding, "_written_at_once", lambda angle: False)
        assert torch.equal(found, made(positions, dtype))
