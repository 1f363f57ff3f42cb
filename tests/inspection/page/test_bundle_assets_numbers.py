"""The numbers that the page computes itself are Python's: half precision, windows, means, words, measures."""

import base64

import noded
import numpy as np
import pytest
import torch

from regard.attention.look import Look
from regard.attention.mask import Causal, Window
from regard.inspection.records import WeightMatrix

pytestmark = noded.needed


def packed(numbers, kind="<f4"):
    return base64.b64encode(np.asarray(numbers).astype(kind).tobytes()).decode()


def traced(rows, columns, heads, data, **more):
    """A trace of one attention; the sides are one where rows and columns are."""
    sides = {"a": {"tokens": [f"t{i}" for i in range(rows)]}, "b": {"tokens": [f"u{i}" for i in range(columns)]}}
    return {"sides": sides, "attentions": [{"name": "one", "queries": "a", "keys": "b", "heads": heads, "data": data,
                                            **more}]}


def test_every_half_is_decoded(tmp_path):
    bits = np.arange(1 << 16, dtype="<u2")
    lines = "return [...bytes.singlesOfHalves(bytes.halves(given.text))].map(String);"
    told = noded.run(tmp_path, ["bytes"], lines, text=packed(bits, "<u2"))
    found = np.array([float(one.replace("Infinity", "inf")) for one in told])
    np.testing.assert_array_equal(found, bits.view("<f2").astype(float))


@pytest.mark.parametrize("kind", ["singles", "halves"])
def test_half_a_number_is_refused(tmp_path, kind):
    lines = "try { bytes[given.kind]('AAAAAAA='); } catch (error) { return error.message; }"
    assert "cut off" in noded.run(tmp_path, ["bytes"], lines, kind=kind)


def projected(look, allowed, kind):
    """Queries and keys as a page has them; the normaliser in double precision."""
    heads, _, width = look.query.shape
    key = look.key.double().repeat_interleave(heads // look.key.shape[0], 0)
    scores = look.query.double() @ key.mT * width ** -0.5
    normalizer = scores.masked_fill(~allowed, -torch.inf).logsumexp(-1)
    return {"kind": "projected", "query": packed(look.query, "<f2"), "key": packed(look.key, "<f2"),
            "scale": width ** -0.5, "normalizer": packed(normalizer), "width": width,
            "key_heads": look.key.shape[0], "mask": kind}


@pytest.mark.parametrize(("rows", "columns", "key_heads", "kind"), [
    (37, 37, 4, "causal"), (9, 31, 2, None), (31, 9, 1, "causal"), (40, 40, 4, {"left": 5, "right": 2}),
    (17, 30, 2, {"left": None, "right": 3}), (1, 1, 1, None),
])
@pytest.mark.parametrize("size", [1, 4])
def test_windows_of_queries_and_keys_are_the_weights(tmp_path, rows, columns, key_heads, kind, size):
    masks = {"causal": Causal()}
    mask = None if kind is None else masks[kind] if isinstance(kind, str) else Window(kind["left"], kind["right"])
    look = Look(torch.randn(4, rows, 6).half().float(), torch.randn(key_heads, columns, 6).half().float(), mask=mask)
    data = projected(look, look.weights()[0] > 0, kind)
    top, left = (8, 4) if min(rows, columns) > 8 else (0, 0)
    pane = {"top": top, "left": left, "rows": min(13, rows - top), "columns": min(15, columns - left)}
    lines = "const block = await new source.Embedded([given.trace]).map(0, 0, 3, given.pane, given.size);" \
            "return { ...block, values: [...block.values] };"
    told = noded.run(tmp_path, ["source"], lines, trace=traced(rows, columns, 4, data), pane=pane, size=size)
    whole = look.weights()[3:, top:top + pane["rows"], left:left + pane["columns"]]
    expected = WeightMatrix(whole).block_map(size)[0]
    assert (told["rows"], told["columns"]) == tuple(expected.shape)
    found = torch.tensor(told["values"], dtype=torch.float32).reshape(expected.shape)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["overview", "overview inside", "weights"])
@pytest.mark.parametrize("size", [2, 4, 16])
def test_means_of_weights_and_of_an_overview_are_block_maps(tmp_path, kind, size):
    weights = WeightMatrix(torch.randn(3, 37, 21))
    coarse = weights.block_map(2)
    overview = {"size": 2, "rows": coarse.shape[1], "columns": coarse.shape[2], "values": packed(coarse)}
    data = {"overview": {"kind": "overview", **overview}, "overview inside": {"kind": "overview", "overview": overview},
            "weights": {"kind": "weights", "values": packed(weights.weights())}}[kind]
    lines = "const pane = { top: 0, left: 0, rows: 37, columns: 21 };" \
            "const block = await new source.Embedded([given.trace]).map(0, 0, 2, pane, given.size);" \
            "return { values: [...block.values], levels: source.levelsOf(given.trace.attentions[0].data, 37) };"
    told = noded.run(tmp_path, ["source"], lines, trace=traced(37, 21, 3, data), size=size)
    expected = weights.block_map(size)[2]
    found = torch.tensor(told["values"], dtype=torch.float32).reshape(expected.shape)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert told["levels"] == ([1, 2, 4, 8, 16, 32] if kind == "weights" else [2, 4, 8, 16, 32])


def test_a_page_with_too_few_numbers_says_so(tmp_path):
    lines = "const pane = { top: 0, left: 0, rows: 2, columns: 2 };" \
            "return new source.Embedded([given.trace]).map(0, 0, 0, pane, 1).catch((error) => error.message);"
    data = {"kind": "weights", "values": packed(torch.ones(3))}
    told = noded.run(tmp_path, ["source"], lines, trace=traced(2, 2, 1, data))
    assert told == "one: expected 4 numbers, but the page has 3: write it again"


def test_words_are_means_of_rows_and_sums_of_columns(tmp_path):
    values = torch.rand(5, 4)
    down = [{"first": 0, "last": 1}, {"first": 2, "last": 2}, {"first": 3, "last": 4}]
    across = [{"first": 0, "last": 0}, {"first": 1, "last": 3}]
    lines = "return [...planes.grouped(new Float32Array(given.values), 4, given.down, given.across)];"
    told = noded.run(tmp_path, ["planes"], lines, values=values.flatten().tolist(), down=down, across=across)
    rows = torch.stack([values[one["first"]:one["last"] + 1].mean(0) for one in down])
    expected = torch.stack([rows[:, one["first"]:one["last"] + 1].sum(1) for one in across], 1)
    torch.testing.assert_close(torch.tensor(told).reshape(3, 2), expected)


def test_rows_that_lie_later_are_those_of_the_tokens(tmp_path):
    lines = "const units = [0, 1, 2].map((i) => ({ first: i, last: i }));" \
            "return [1, 0, -1].map((offset) => planes.moved(units, 3, offset).moved.map((one) => one.first));"
    assert noded.run(tmp_path, ["planes"], lines) == [[1, 2], [0, 1, 2], [0, 1]]


MEASURE = """
const desk = { traces: [given.trace], source: new source.Embedded([given.trace]) };
return measure.measured(desk, 0, 0, 0);
"""
PATTERNS = {
    "itself": torch.eye(8), "previous token": torch.diag(torch.ones(7), -1), "next token": torch.diag(torch.ones(7), 1),
    "first token": torch.eye(8)[:1].expand(8, 8), "everywhere alike": torch.full((8, 8), 0.125),
    "": torch.eye(8).flip(0),
}


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_what_a_head_looks_at_is_measured(tmp_path, name):
    weights = 0.8 * PATTERNS[name] + 0.2 / 8
    trace = traced(8, 8, 1, {"kind": "weights", "values": packed(weights)}, keys="a")
    told = noded.run(tmp_path, ["source", "measure"], MEASURE, trace=trace)
    assert told["name"] == name
    assert told["entropy"] == pytest.approx(float(WeightMatrix(weights.unsqueeze(0)).entropy().mean()), rel=1e-5)
    shares = {share["name"]: share["share"] for share in told["shares"]}
    assert shares["itself"] == pytest.approx(float(weights.diagonal().sum() / weights.sum()), rel=1e-5)
    before = float(weights.diagonal(-1).sum() / weights[1:].sum())
    assert shares["previous token"] == pytest.approx(before, rel=1e-5)


def test_from_one_side_to_another_there_is_a_diagonal(tmp_path):
    weights = 0.8 * torch.nn.functional.interpolate(torch.eye(5)[None, None], (5, 9))[0, 0] / 2 + 0.02
    trace = traced(5, 9, 1, {"kind": "weights", "values": packed(weights)})
    assert noded.run(tmp_path, ["source", "measure"], MEASURE, trace=trace)["name"] == "diagonal ±1"


def test_a_place_that_few_rows_may_see_gives_no_name(tmp_path):
    weights = torch.softmax(torch.randn(8, 8), -1).tril()
    weights[-1] = torch.eye(8)[-1]
    trace = traced(8, 8, 1, {"kind": "weights", "values": packed(weights)}, keys="a", mask="causal")
    trace["sides"]["a"]["tokens"][-1] = "</s>"
    told = noded.run(tmp_path, ["source", "measure"], MEASURE, trace=trace)
    assert not {"separators", "last token"} & {one["name"] for one in told["shares"]}


@pytest.mark.parametrize(("shape", "value", "part"), [
    ("linear", 0.25, 0.25), ("root", 0.25, 0.5), ("log", 1e-3, 0.5), ("log", 1e-9, 0), ("linear", 3, 1),
])
def test_a_scale_runs_from_zero_to_its_largest(tmp_path, shape, value, part):
    lines = "const one = new scale.Scale(given.shape, 0, 1); return [one.along(given.value), one.ticks()];"
    along, ticks = noded.run(tmp_path, ["scale"], lines, shape=shape, value=value)
    assert along == pytest.approx(part, abs=1e-6)
    assert ticks[-1] == {"value": 1, "at": 1}
    assert [tick["at"] for tick in ticks] == sorted(tick["at"] for tick in ticks)


def test_numbers_on_both_sides_of_zero_have_a_scale_that_is_the_same_to_both(tmp_path):
    lines = "globalThis.document = { documentElement: { dataset: {} } };" \
            "const one = new scale.Scale('linear', -2, 1);" \
            "return [one.low, one.high, one.colour(-2) === one.ramp[0], one.colour(2) === one.ramp[255]];"
    assert noded.run(tmp_path, ["scale"], lines) == [-2, 2, True, True]


def test_a_single_place_names_a_head_before_the_diagonal_does(tmp_path):
    near = sum(torch.diag(torch.ones(20 - abs(step)), step) for step in (-2, -1, 0, 1, 2))
    for weights, name in ((near / near.sum(1, keepdim=True), "diagonal ±2"), (0.1 * near + torch.eye(20), "itself")):
        trace = traced(20, 20, 1, {"kind": "weights", "values": packed(weights)}, keys="a")
        assert noded.run(tmp_path, ["source", "measure"], MEASURE, trace=trace)["name"] == name


def test_confidence_is_the_geometric_mean_of_the_tokens(tmp_path):
    logs = [-0.1, -2.0, -0.5]
    units = [{"first": 0, "last": 1}, {"first": 2, "last": 2}]
    lines = "return alignment.confidence({ log_probabilities: given.logs }, given.units);"
    told = noded.run(tmp_path, ["alignment"], lines, logs=logs, units=units)
    assert told == pytest.approx([float(np.sqrt(np.exp(-0.1) * np.exp(-2.0))), float(np.exp(-0.5))])
