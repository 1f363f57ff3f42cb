"""What a user did wrong is a ValueError that names the argument, what was expected, what came, and the way out."""

import re

import pytest
import torch

import regard
from regard import Additive, ALiBi, Bilinear, Causal, Packed, Padding, Placed, RelativeBias, Window

Q, K, V = torch.zeros(2, 4, 3, 8), torch.zeros(2, 4, 5, 8), torch.zeros(2, 4, 5, 6)
ONES = torch.ones(3, 5, dtype=torch.bool)


def attend(query=Q, key=K, value=V, **options):
    return lambda: regard.attend(query, key, value, **options)


# a call that is wrong, and what its message must say, in this order
WRONG = {
    "a vector": (attend(query=torch.zeros(8)), "`query`", "(..., tokens, width)", "(8,)", "unsqueeze(-2)"),
    "a vector of keys": (attend(key=torch.zeros(8)), "`key`", "(..., tokens, width)", "(8,)"),
    "a vector of values": (attend(value=torch.zeros(6)), "`value`", "(..., tokens, width)", "(6,)"),
    "a list": (attend(query=[[1.0]]), "`query`", "a tensor", "list"),
    "integers": (attend(query=Q.long()), "`query`", "floating-point", "torch.int64"),
    "whole keys": (attend(key=K.int()), "`key`", "floating-point", "torch.int32"),
    "two dtypes": (attend(key=K.double()), "`key`", "the query's dtype torch.float32", "torch.float64"),
    "two dtypes of values": (attend(value=V.half()), "`value`", "torch.float32", "torch.float16"),
    "two devices": (attend(key=K.to("meta")), "`key`", "the query's device cpu", "meta"),
    "a value too many": (attend(value=torch.zeros(2, 4, 6, 6)), "`value`", "5", "(2, 4, 6, 6)"),
    "two widths": (attend(key=K[..., :7]), "`key`", "width 8", "7"),
    "no width": (attend(query=Q[..., :0], key=K[..., :0]), "`query`", "0"),
    "heads that do not divide": (attend(key=K[:, :3], value=V[:, :3]), "`key`", "heads", "4", "3"),
    "more key heads": (attend(query=Q[:, :2]), "`key`", "2", "4 heads"),
    "value heads": (attend(key=K[:, :2]), "`value`", "as many heads as the key, 2", "4"),
    "batches": (attend(key=torch.zeros(3, 4, 5, 8), value=torch.zeros(3, 4, 5, 6)), "`query`, `key` and `value`",
                "broadcast", "(2, 4, 3, 8)", "(3, 4, 5, 8)", "(3, 4, 5, 6)"),
    "a float mask": (attend(mask=ONES.float()), "`mask`", "bool", "torch.float32", "`bias`"),
    "a whole mask": (attend(mask=ONES.int()), "`mask`", "bool", "torch.int32", "mask=(tensor == 1)"),
    "a list as mask": (attend(mask=[True]), "`mask`", "bool tensor", "list"),
    "a mask class": (attend(mask=Causal), "`mask`", "bool tensor", "regard.Causal()", "Causal"),
    "a mask's queries": (attend(mask=ONES[:2]), "`mask`", "3 queries, 5 keys", "(2, 5)"),
    "a mask's keys": (attend(mask=ONES[:, :4]), "`mask`", "3 queries, 5 keys", "(3, 4)"),
    "a mask's heads": (attend(mask=ONES.expand(3, 3, 5)), "`mask`", "(2, 4, 3, 5)", "(3, 3, 5)"),
    "a mask's batch": (attend(mask=ONES.expand(5, 1, 3, 5)), "`mask`", "(2, 4, 3, 5)", "(5, 1, 3, 5)"),
    "a mask's dimensions": (attend(mask=ONES.expand(1, 2, 4, 3, 5)), "`mask`", "(2, 4, 3, 5)", "(1, 2, 4, 3, 5)"),
    "a mask inside another": (attend(mask=Causal() & ONES[:2]), "`mask`", "3 queries, 5 keys", "(2, 5)"),
    "lengths too long": (attend(mask=Padding([5, 6])), "`lengths`", "5", "6"),
    "lengths too many": (attend(mask=Padding([1, 2, 3])), "`mask`", "(2, 4, 3, 5)", "Padding([1, 2, 3]"),
    "lengths without a batch": (attend(Q[0, 0], K[0, 0], V[0, 0], mask=Padding([3])), "`mask`", "(3, 5)",
                                "Padding([3]"),
    "negative lengths": (lambda: Padding([2, -1]), "`lengths`", "0 or more", "-1"),
    "float lengths": (lambda: Padding([2.0]), "`lengths`", "integers", "torch.float32"),
    "bool lengths": (lambda: Padding(torch.tensor([True])), "`lengths`", "integers", "torch.bool"),
    "lengths as text": (lambda: Padding("5"), "`lengths`", "integers"),
    "an unknown side": (lambda: Padding([1], side="rihgt"), "`side`", '"right", "left"', '"rihgt"', 'mean "right"'),
    "a negative window": (lambda: Window(-1, 0), "`left`", "0 or more", "-1"),
    "a float window": (lambda: Window(0, 1.5), "`right`", "0 or more", "1.5"),
    "segments too long": (attend(mask=Packed([2, 2])), "`query_lengths`", "3", "4"),
    "key segments too long": (attend(mask=Packed([2, 1], [2, 4])), "`key_lengths`", "5", "6"),
    "segments in two dimensions": (lambda: Packed([[1, 2]]), "`query_lengths`", "(segments,)", "(1, 2)"),
    "unlike segments": (lambda: Packed([1, 2], [3]), "`key_lengths`", "2", "1"),
    "a float start": (lambda: Placed(1.0), "`start`", "integers", "1.0"),
    "a negative start": (lambda: Placed(-1), "`start`", "0 or more", "-1"),
    "starts too many": (attend(mask=Placed([1, 2, 3])), "`mask`", "(2, 4, 3, 5)", "Placed([1, 2, 3])"),
    "an unknown score": (attend(score="scaled_dott"), "`score`", '"dot", "scaled_dot", "scaled_dot_d"', '"scaled_dott"',
                         'mean "scaled_dot"'),
    "additive by name": (attend(score="additive"), "`score`", "without parameters", '"additive"',
                         "regard.Additive(weight)"),
    "mlp by name": (attend(score="mlp"), "`score`", '"mlp"', "regard.Additive(weight)"),
    "bilinear by name": (attend(score="bilinear"), "`score`", '"bilinear"', "regard.Bilinear(weight)"),
    "a score of no kind": (attend(score=3), "`score`", "a name, a Score or a function", "int"),
    "a score's shape": (attend(score=lambda q, k: q), "`score`", "(2, 4, 3, 5)", "(2, 4, 3, 8)"),
    "a score class's shape": (attend(score=type("Odd", (regard.Score,), {"__call__": lambda self, q, k: q})()),
                              "`score`", "(2, 4, 3, 5)", "(2, 4, 3, 8)"),
    "additive's width": (attend(score=Additive(torch.zeros(7))), "`query`", "7", "8", "projected"),
    "additive's heads": (attend(score=Additive(torch.zeros(3, 8))), "`score`", "4", "3"),
    "additive's heads without any": (attend(Q[0, 0], K[0, 0], V[0, 0], score=Additive(torch.zeros(3, 8))), "`score`",
                                     "3"),
    "additive's bias": (lambda: Additive(torch.zeros(8), torch.zeros(7)), "`bias`", "(8,)", "(7,)"),
    "additive's dimensions": (lambda: Additive(torch.zeros(1, 2, 8)), "`weight`", "(heads, width)", "(1, 2, 8)"),
    "bilinear's width": (attend(score=Bilinear(torch.zeros(8, 7))), "`key`", "7", "8"),
    "bilinear's query width": (attend(score=Bilinear(torch.zeros(7, 8))), "`query`", "7", "8"),
    "bilinear's heads": (attend(score=Bilinear(torch.zeros(3, 8, 8))), "`score`", "4", "3"),
    "bilinear's dimensions": (lambda: Bilinear(torch.zeros(8)), "`weight`", "(query width, key width)", "(8,)"),
    "an unknown normaliser": (attend(normalize="softmx"), "`normalize`", '"softmax"', '"softmx"', 'mean "softmax"'),
    "a normaliser of no kind": (attend(normalize=None), "`normalize`", "a function", "NoneType"),
    "a normaliser's shape": (attend(normalize=lambda e: e[..., :2]), "`normalize`", "(2, 4, 3, 5)", "(2, 4, 3, 2)"),
    "an unknown backend": (attend(backend="tield"), "`backend`",
                           '"sdpa", "shared_bias", "flex", "pointwise", "agents", "exact"', '"tield"', 'mean "tiled"'),
    "a backend for softmax alone": (attend(backend="sdpa", normalize="relu"), "`backend`", '"exact", "tiled"', '"sdpa"',
                                    "softmax, not relu"),
    "a backend for dots alone": (attend(backend="sdpa", score=Additive(torch.zeros(8))), "`backend`",
                                 '"exact", "tiled"', '"sdpa"', "dot products", "Additive"),
    "a backend for CUDA alone": (attend(backend="flex"), "`backend`", '"sdpa", "exact", "tiled"', '"flex"', "CUDA",
                                 "cpu"),
    "a bool bias": (attend(bias=ONES), "`bias`", "floating-point", "torch.bool", "`mask`"),
    "a whole bias": (attend(bias=ONES.int()), "`bias`", "floating-point", "torch.int32"),
    "a bias' shape": (attend(bias=torch.zeros(3, 4)), "`bias`", "(2, 4, 3, 5)", "(3, 4)"),
    "a bias' dimensions": (attend(bias=torch.zeros(1, 2, 4, 3, 5)), "`bias`", "(2, 4, 3, 5)", "(1, 2, 4, 3, 5)"),
    "a bias' heads": (attend(bias=ALiBi.for_heads(8)), "`bias`", "4", "8"),
    "a table's heads": (attend(bias=RelativeBias(2, max_distance=3)), "`bias`", "4", "2"),
    "a bias with heads for none": (attend(Q[0, 0], K[0, 0], V[0, 0], bias=ALiBi.for_heads(4)), "`bias`", "no dimension",
                                   "ALiBi for 4 heads", "(batch, heads, tokens, width)"),
    "a bias of no kind": (attend(bias=0.5), "`bias`", "a tensor, or a Bias", "float"),
    "a bias class": (attend(bias=ALiBi), "`bias`", "a tensor, or a Bias", "ALiBi"),
    "dropout of all": (attend(dropout=1.0), "`dropout`", "below 1", "1.0"),
    "negative dropout": (attend(dropout=-0.1), "`dropout`", "at least 0", "-0.1"),
    "dropout that is no number": (attend(dropout=float("nan")), "`dropout`", "probability", "nan"),
    "dropout as text": (attend(dropout="0.1"), "`dropout`", "probability", "0.1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_message_says_what_is_wrong(case):
    call, *words = WRONG[case]
    with pytest.raises(ValueError, match=".*".join(map(re.escape, words))):
        call()


@pytest.mark.parametrize("case", WRONG)
def test_the_message_is_one_clear_sentence_or_two(case):
    with pytest.raises(ValueError, match=r".") as error:
        WRONG[case][0]()
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 300
    assert " must " in message
    assert message.endswith((".", "?"))
    assert "tensor([" not in message
    assert "<" not in message
    assert "ABCMeta" not in message


@pytest.mark.parametrize("ask", [regard.attend, regard.explain])
def test_explain_refuses_what_attend_refuses(ask):
    with pytest.raises(ValueError, match="`backend` must be"):
        ask(Q, K, V, normalize="relu", backend="sdpa")
    with pytest.raises(ValueError, match="`mask` must be"):
        ask(Q, K, V, mask=ONES[:2])


def test_attention_weights_refuse_what_attend_refuses():
    with pytest.raises(ValueError, match="`key` must be of the query's width 8"):
        regard.attention_weights(Q, K[..., :7])
    with pytest.raises(ValueError, match="`score` must be"):
        regard.attention_weights(Q[0, 0], K[0, 0], score=Additive(torch.zeros(3, 8)))
