"""Traces: files are read as they were written, parts fit together, and one map is selected."""

from dataclasses import replace

import pytest
import torch
import trace_examples

from regard.attention.look import Look
from regard.attention.mask import Causal, Padding, Placed, Window
from regard.attention.score import Additive, Bilinear, adjust_score
from regard.data.tokenizer.interface import Word
from regard.inspection.records import WeightMatrix
from regard.inspection.trace import Trace, select_map
from regard.inspection.trace_format import (
    AlignmentPointer,
    GeneratedTokens,
    MeasuredAttention,
    MeasuredHead,
    MeasuredHeads,
    SearchNode,
    TracedAttention,
    TracedImage,
    TracedInfluence,
    TracedSearch,
    TraceSide,
)
from regard.position.bias import ALiBi, BucketedBias, RelativeBias

H, n, N, D = 4, 5, 6, 3
SOURCE = TraceSide(tuple("abcdef"), "ab c def", (Word(0, 2, 0, 1), Word(3, 4, 2, 2), Word(5, 8, 3, 5)))
TARGET = TraceSide(("▁x", "<script>", "\u202e\u200d", "é😀", "</s>"))


MEASURED = MeasuredHeads("test.tsv", 200, 1.25, (
    MeasuredAttention("own", {"itself": 0.25, "first": 0.5}, (
        MeasuredHead(0.125, 0.0625, {"itself": 0.75, "first": 0.5}, "itself"),)),
    MeasuredAttention("another", {}, (MeasuredHead(-0.5, 0.0, {}),) * 2)))
HALF = " that can be written as UTF-8, but it has an unpaired surrogate"


def numbers(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype)


def drawn(bias):
    """A bias whose learned numbers are no zeros."""
    torch.nn.init.normal_(bias.table)
    return bias.double()


LOOKS = {
    "dot": lambda q, k: Look(q, k, score="dot"),
    "scaled_dot_d relu": lambda q, k: Look(q, k, score="scaled_dot_d", normalize="relu"),
    "relu_sum": lambda q, k: Look(q, k, normalize="relu_sum"),
    "sigmoid": lambda q, k: Look(q, k, normalize="sigmoid"),
    "causal": lambda q, k: Look(q, k, mask=Causal()),
    "window": lambda q, k: Look(q, k, mask=Window(2, None)),
    "causal window": lambda q, k: Look(q, k, mask=Causal() & Window(2, 1)),
    "padding": lambda q, k: Look(q, k, mask=Padding(4)),
    "placed": lambda q, k: Look(q, k, mask=Causal() & Placed(0)),
    "tensor": lambda q, k: Look(q, k, mask=torch.rand(H, n, N) > 0.4),
    "one row for all": lambda q, k: Look(q, k, mask=torch.tensor([True, False, True, True, False, True])),
    "grouped": lambda q, k: Look(q, k[:2]),
    "one head of keys": lambda q, k: Look(q, k[:1]),
    "one head of queries": lambda q, k: Look(q[:1], k),
    "bias": lambda q, k: Look(q, k, bias=numbers(n, N)),
    "bias a head": lambda q, k: Look(q, k, bias=numbers(H, 1, N)),
    "alibi": lambda q, k: Look(q, k, bias=ALiBi.for_heads(H).double(), mask=Causal()),
    "relative": lambda q, k: Look(q, k, bias=drawn(RelativeBias(H, max_distance=2))),
    "bucketed": lambda q, k: Look(q, k, bias=drawn(BucketedBias(H, num_buckets=4, max_distance=5))),
    "placed alibi": lambda q, k: Look(q, k, bias=ALiBi.for_heads(H).double(), mask=Causal() & Placed(0)),
    "additive": lambda q, k: Look(q, k, score=Additive(numbers(D), numbers(D))),
    "additive a head": lambda q, k: Look(q, k, score=Additive(numbers(H, D))),
    "bilinear": lambda q, k: Look(q, k, score=Bilinear(numbers(D, D))),
    "bilinear a head": lambda q, k: Look(q, k, score=Bilinear(numbers(H, D, D)), normalize="relu"),
    "scale": lambda q, k: Look(q, k, score=adjust_score("scaled_dot", 0.3)),
    "softcap": lambda q, k: Look(q, k, score=adjust_score("scaled_dot", None, 1.5)),
    "softcap a head": lambda q, k: Look(q, k, score=adjust_score(Additive(numbers(H, D)), None, 1.5)),
    "own score": lambda q, k: Look(q, k, score=lambda a, b: -(a.unsqueeze(-2) - b.unsqueeze(-3)).pow(2).sum(-1)),
    "own normaliser": lambda q, k: Look(q, k, normalize=lambda scores: scores.pow(2)),
    "weights": lambda q, k: WeightMatrix(numbers(H, n, N)),
}


def of(look, **options):
    return Trace({"source": SOURCE, "target": TARGET}, (TracedAttention("cross", "target", "source", look),), **options)


@pytest.mark.parametrize("name", sorted(LOOKS))
def test_looks_round_trip(tmp_path, name):
    look = LOOKS[name](numbers(H, n, D), numbers(H, N, D))
    of(look).save(tmp_path / "a.safetensors")
    read = Trace.load(tmp_path / "a.safetensors").attentions[0]
    assert (read.heads, read.rows, read.columns) == (H, n, N)
    torch.testing.assert_close(read.look.weights(), look.weights(), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(read.look.block_map(2), look.block_map(2), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(read.look.rows([3, 0]), look.rows([3, 0]), rtol=1e-12, atol=1e-15)


def test_everything_else_round_trips(tmp_path):
    image = TraceSide(tuple(map(str, range(7))), grid=(2, 3), lead=1,
                      image=TracedImage(2, 3, 3, bytes(range(0, 252, 14))))
    nodes = (SearchNode(-1, "a", -0.5, -0.5, False, True), SearchNode(-1, "</s>", -2.0, -2.0, True, False, -2.0),
             SearchNode(0, "b", -0.25, -0.75, False, False))
    trace = Trace({"source": SOURCE, "target": TARGET, "x-image": image},
                  (TracedAttention("decoder.0.cross", "target", "source", WeightMatrix(numbers(H, n, N)), 0, "cross"),
                   TracedAttention("own", "target", "target", WeightMatrix(numbers(1, n, n)))),
                  "a title", "a model", GeneratedTokens("target", (-1.0, -0.5, -2.0, 0.0, -0.25), -0.75),
                  AlignmentPointer(0, 3, 1),
                  TracedSearch(2, nodes, (2, 1), 7, "mean"),
                  TracedInfluence("target", "source", ((0, 1), (2,), (3, 4, 5)), ((0.25, None, -1.5),) * 5), MEASURED)
    trace.save(tmp_path / "a.safetensors")
    read = Trace.load(str(tmp_path / "a.safetensors"))
    for part in ("sides", "title", "model", "written", "alignment", "search", "influence", "heads"):
        assert getattr(read, part) == getattr(trace, part)
    for one, other in zip(read.attentions, trace.attentions, strict=True):
        assert replace(one, look=other.look).__dict__ == other.__dict__


def test_equal_traces_are_equal_files(tmp_path):
    trace = of(Look(numbers(H, n, D), numbers(H, N, D), mask=Causal()), title="t")
    for name in ("a", "b"):
        trace.save(tmp_path / f"{name}.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precisions_are_kept_small_and_read_wide(tmp_path, dtype):
    query, key = numbers(H, n, D, dtype=dtype), numbers(H, N, D, dtype=dtype)
    of(Look(query, key)).save(tmp_path / "a.safetensors")
    look = Trace.load(tmp_path / "a.safetensors").attentions[0].look
    assert look.query.dtype == torch.float32
    torch.testing.assert_close(look.weights(), Look(query.float(), key.float()).weights())


def test_a_long_causal_trace_with_alibi_is_small(tmp_path):
    long = 3000
    side = TraceSide(("a",) * long)
    look = Look(torch.randn(2, long, 4), torch.randn(1, long, 4), mask=Causal(), bias=ALiBi.for_heads(2))
    Trace({"text": side}, (TracedAttention("a", "text", "text", look),)).save(tmp_path / "a.safetensors")
    assert (tmp_path / "a.safetensors").stat().st_size < 300_000
    read = Trace.load(tmp_path / "a.safetensors").attentions[0].look
    torch.testing.assert_close(read.rows([0, 1234, 2999]), look.rows([0, 1234, 2999]))


def test_huge_matrix_is_refused_without_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.inspection.trace_format.MAX_MATRIX_ENTRIES", 100)
    trace = of(Look(numbers(H, n, D), numbers(H, N, D), normalize=lambda scores: scores))
    with pytest.raises(ValueError, match='"cross" cannot be stored: its weights would be a matrix of 120 numbers'):
        trace.save(tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_only_safetensors_files_are_written(tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.safetensors, but is '.*a\.json'"):
        of(WeightMatrix(numbers(H, n, N))).save(tmp_path / "a.json")


GOOD = {"sides": {"source": SOURCE, "target": TARGET}}
WEIGHTS = WeightMatrix(torch.zeros(2, 5, 6))
CROSS = TracedAttention("c", "target", "source", WEIGHTS)


def measured(name, *heads):
    return MeasuredHeads("data", 1, 1.0, (MeasuredAttention(name, {}, heads),))


BAD = {
    "no side": ({"sides": {}}, '"sides": expected at least one side'),
    "no token": ({"sides": {"a": TraceSide(())}}, '"tokens" in [sides.a]: expected at least one token'),
    "words without text": ({"sides": {"a": TraceSide(("b",), words=(Word(0, 1, 0, 0),))}}, '"words" in [sides.a]'),
    "words past the text": ({"sides": {"a": TraceSide(("b",), "b", (Word(0, 2, 0, 0),))}}, "is not in the text of 1"),
    "words past the tokens": ({"sides": {"a": TraceSide(("b",), "b", (Word(0, 1, 0, 1),))}}, "not among the 1 tokens"),
    "another grid": ({"sides": {"a": TraceSide(("b",) * 5, grid=(2, 2))}}, '"grid" in [sides.a]: 2 × 2 patches and 0'),
    "a lead without a grid": ({"sides": {"a": TraceSide(("b",), lead=1)}}, '"lead" in [sides.a]'),
    "unknown side": (GOOD | {"attentions": (replace(CROSS, keys="sources"),)}, 'Did you mean "source"?'),
    "sides exchanged": (GOOD | {"attentions": (TracedAttention("c", "source", "target", WEIGHTS),)},
                        '"queries" in [attentions[0]]: side "source" has 6 tokens, but there are 5 rows'),
    "one name twice": (GOOD | {"attentions": (CROSS, CROSS)}, '"name" in [attentions[1]]: two attentions'),
    "no name": (GOOD | {"attentions": (replace(CROSS, name=""),)}, "expected a name"),
    "a kind": (GOOD | {"attentions": (replace(CROSS, kind="selfish"),)}, '"kind" in [attentions[0]]: expected one of'),
    "a layer": (GOOD | {"attentions": (replace(CROSS, layer=-1),)}, '"layer" in [attentions[0]]'),
    "a batch": (GOOD | {"attentions": (replace(CROSS, look=WeightMatrix(torch.zeros(1, 2, 5, 6))),)}, "heads × rows"),
    "other log-probabilities": (GOOD | {"written": GeneratedTokens("target", (0.0,))},
                                "expected one for each of the 5 tokens"),
    "written elsewhere": (GOOD | {"written": GeneratedTokens("a", (0.0,))},
                          '"side" in [written]: there is no side "a"'),
    "points nowhere": (GOOD | {"alignment": AlignmentPointer(0)}, '"attention" in [alignment]: there are 0'),
    "points at no head": (GOOD | {"attentions": (CROSS,), "alignment": AlignmentPointer(0, 2)},
                          '"head" in [alignment]'),
    "points past the rows": (GOOD | {"attentions": (CROSS,), "alignment": AlignmentPointer(0, 0, 5)},
                             '"offset" in [alignment]'),
    "other heads": (GOOD | {"attentions": (CROSS,), "heads": measured("c", MeasuredHead(0.0, 0.0, {}))},
                    '"heads" in [heads.attentions[0]]: "c" has 2 heads in this trace, but there are 1'),
    "an infinite cost": (GOOD | {"heads": measured("d", MeasuredHead(torch.inf, 0.0, {}))},
                         '"heads"[0] in [heads.attentions[0]]: expected finite'),
    "a role without a score": (GOOD | {"heads": measured("d", MeasuredHead(0.0, 0.0, {}, "gold"))},
                               '"heads"[0] in [heads.attentions[0]]: expected a role'),
    "left out": (GOOD | {"search": TracedSearch(1, (), (), -1)}, '"left_out" in [search]'),
    "no beam": (GOOD | {"search": TracedSearch(0, (), ())}, '"beams" in [search]'),
    "its own parent": (GOOD | {"search": TracedSearch(1, (SearchNode(0, "a", 0.0, 0.0, False, True),), ())},
                       '"parent" in [search.nodes[0]]: expected an earlier node or -1, but got 0'),
    "influence of an unknown side": (GOOD | {"influence": TracedInfluence("target", "sources", (), ((),) * 5)},
                                     '"columns" in [influence]: there is no side "sources"'),
    "influence on fewer tokens": (GOOD | {"influence": TracedInfluence("target", "source", (), ((),) * 4)},
                                  '"values" in [influence]: expected a row for each of the 5 tokens'),
    "influence of a token that is not there": (
        GOOD | {"influence": TracedInfluence("target", "source", ((6,),), ((0.0,),) * 5)},
        '"tokens"[0] in [influence]'),
    "influence of no token": (
        GOOD | {"influence": TracedInfluence("target", "source", ((),), ((0.0,),) * 5)}, '"tokens"[0] in [influence]'),
    "influence without a number": (
        GOOD | {"influence": TracedInfluence("target", "source", ((0,), (1,)), ((0.0,),) * 5)},
        '"values"[4] in [influence]: expected a number for each of the 2 columns'),
    "an infinite influence": (
        GOOD | {"influence": TracedInfluence("target", "source", ((0,),), ((torch.inf,),) * 5)},
        '"values"[0] in [influence]: expected finite'),
    "an image without a grid": ({"sides": {"a": TraceSide(("b",), image=TracedImage(1, 1, 1, b"x"))}},
                                '"image" in [sides.a]: expected a grid'),
    "an image of two channels": (
        {"sides": {"a": TraceSide(("b",), grid=(1, 1), image=TracedImage(1, 1, 2, b"xy"))}}, "1 × 1 × 2"),
    "an image of other bytes": (
        {"sides": {"a": TraceSide(("b",), grid=(1, 1), image=TracedImage(2, 2, 1, b"xyz"))}},
        '"pixels" in [sides.a.image]: expected 2 × 2 × 1 bytes, but there are 3'),
    "a score of nothing": (
        GOOD | {"search": TracedSearch(1, (SearchNode(-1, "a", 0.0, 0.0, True, False, torch.nan),), ())},
        '"score" in [search.nodes[0]]'),
    "best of nothing": (GOOD | {"search": TracedSearch(1, (), (0,))}, "there are 0 nodes"),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_inconsistent_traces_are_refused(name):
    options, message = BAD[name]
    with pytest.raises(ValueError, match="trace: ") as error:
        Trace(**options)
    assert message in str(error.value)


def test_text_that_a_file_cannot_hold_is_named():
    node = SearchNode(-1, "\ud800", 0.0, 0.0, False, True)
    with pytest.raises(ValueError, match="surrogate") as error:
        Trace({"a": TraceSide(("x", "\ud800"), "\udfff"), "b": TraceSide((1,))}, title="a\udcff",
              search=TracedSearch(1, (node,), (0,)))
    assert [line.split(": ")[1:] for line in str(error.value).splitlines()] == [
        [where, f"expected text{what}"] for where, what in (
            ('"title"', HALF), ('"text" in [sides.a]', HALF), ('"tokens"[1] in [sides.a]', HALF),
            ('"tokens"[0] in [sides.b]', ", but got 1"), ('"token" in [search.nodes[0]]', HALF))]


@pytest.mark.parametrize("number", [-torch.inf, torch.nan])
def test_numbers_that_a_file_cannot_hold_are_named(number):
    node = SearchNode(-1, "a", number, number, False, True)
    with pytest.raises(ValueError, match="finite") as error:
        Trace({"a": TraceSide(("x", "y"))}, written=GeneratedTokens("a", (0.0, number), number),
              search=TracedSearch(1, (node,), (0,)))
    lines = str(error.value).splitlines()
    assert [line.split(":")[1].strip() for line in lines] == [
        '"log_probabilities"[1] in [written]', '"score" in [written]', '"log_probability" in [search.nodes[0]]',
        '"total" in [search.nodes[0]]']


def test_an_attention_has_a_head():
    with pytest.raises(ValueError, match="expected at least one head"):
        Trace({"a": TraceSide(("x",))}, (TracedAttention("one", "a", "a", WeightMatrix(torch.zeros(0, 1, 1))),))


def pair(*matrices, **options):
    """A trace of some looks from three tokens at four, of two and three words."""
    rows = TraceSide(("Le", "ch", "at"), "Le chat", (Word(0, 2, 0, 0), Word(3, 7, 1, 2)))
    columns = TraceSide(("the", "c", "at", "</s>"), "the cat", (Word(0, 3, 0, 0), Word(4, 7, 1, 2)))
    attentions = tuple(TracedAttention(f"{number}", "b", "a", WeightMatrix(weights), number, "cross")
                       for number, weights in enumerate(matrices))
    return Trace({"a": columns, "b": rows}, attentions, **options)


def test_word_weights_are_row_means_and_column_sums():
    weights = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2], [0.3, 0.3, 0.0, 0.4]]])
    found = select_map(pair(weights))
    assert (found.rows, found.columns, found.name) == (("Le", "chat"), ("the", "cat"), "0")
    torch.testing.assert_close(found.weights(), torch.tensor([[0.1, 0.5], [0.4, 0.3]]))
    torch.testing.assert_close(found.weights(1), torch.tensor([[0.1]]))


def test_alignment_of_the_trace_is_selected():
    one, two = torch.rand(2, 3, 4), torch.rand(2, 3, 4)
    found = select_map(pair(one, two, alignment=AlignmentPointer(1, 1, 1)))
    assert found.name == "1, head 1"
    rows = two[1][[1, 2, 2]]  # the last has no row behind it, and takes its own
    want = torch.stack([rows[0], rows[1:].mean(0)])
    torch.testing.assert_close(found.weights(), torch.stack([want[:, 0], want[:, 1] + want[:, 2]], -1))


def test_sharpest_cross_attention_is_selected():
    flat, sharp = torch.full((2, 3, 4), 0.25), torch.zeros(2, 3, 4)
    sharp[:, :, 0] = 1.0
    assert select_map(pair(flat, sharp, flat)).name == "1, mean of the heads"


def test_tokens_without_words_of_two_sides():
    trace = trace_examples.long(30)
    found = select_map(trace)
    assert (found.rows, found.words) == (trace.sides["text"].tokens, None)
    torch.testing.assert_close(found.weights(), trace.attentions[0].look.weights().mean(0))
    assert found.weights(5).shape == (5, 5)
    plain = replace(pair(torch.rand(1, 3, 4)), sides={"a": TraceSide(tuple("abcd")), "b": TraceSide(tuple("xyz"))})
    assert select_map(plain).columns == tuple("abcd")


def test_last_cross_attention_of_large_ones_is_selected(monkeypatch):
    monkeypatch.setattr("regard.inspection.trace.SELECTION_LIMIT", 5)
    sharp = torch.zeros(1, 3, 4)
    sharp[:, :, 0] = 1.0
    assert select_map(pair(sharp, torch.full((1, 3, 4), 0.25))).name == "1"


def test_a_model_without_attention_has_nothing_to_see():
    with pytest.raises(ValueError, match="no attention"):
        select_map(Trace({"text": TraceSide(("a",))}))
