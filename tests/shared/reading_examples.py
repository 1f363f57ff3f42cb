"""Traces for the view "Read": a word without effect, results that part, an image; as documents of pages."""

import base64
from dataclasses import replace

import torch
import trace_examples

from regard.attention.mask import Causal
from regard.inspection.page import document
from regard.inspection.records import WeightMatrix
from regard.inspection.trace import Trace
from regard.inspection.trace_format import (
    AlignmentPointer,
    GeneratedTokens,
    SearchNode,
    TracedAttention,
    TracedImage,
    TracedInfluence,
    TracedPredictions,
    TracedSearch,
    TraceSide,
)

SOURCE, TARGET = ["The", "two", "cats", "slept", "."], ["Les", "chats", "ont", "dormi", "."]
LOOKED = torch.tensor([[0.9, 0.04, 0.03, 0.02, 0.0, 0.01], [0.02, 0.05, 0.9, 0.01, 0.01, 0.01],
                       [0.01, 0.74, 0.02, 0.2, 0.02, 0.01], [0.01, 0.02, 0.03, 0.9, 0.03, 0.01],
                       [0.01, 0.01, 0.01, 0.01, 0.88, 0.08], [0.1, 0.1, 0.1, 0.1, 0.1, 0.5]])
"""Attention of five words and the end to five words and the end."""
MATTERED = [[9.0, 0.1, 1.0, 0.0, 0.0], [0.5, 0.05, 12.0, 0.2, 0.0], [-0.4, 0.1, 0.4, 7.0, 0.1],
            [0.0, -0.1, 0.3, 8.0, 0.2], [0.0, 0.0, 0.1, 0.1, 2.0], [0.1, 0.0, 0.1, None, 0.1]]
"""Influence in nats: "two" changes nothing."""
LOGS = (-0.01, -0.02, -0.7, -0.05, -0.01, -0.01)


def side(words, *more):
    """One token for each word, and then others."""
    text = " ".join(words)
    return TraceSide((*(f"▁{word}" for word in words), *more), text,
                     trace_examples.words(text, *((word, at, at) for at, word in enumerate(words))))


def search():
    """Three results; by their sums, the third would be before the second."""
    nodes = [SearchNode(-1, "▁Les", -0.01, -0.01, False, True), SearchNode(0, "▁chats", -0.02, -0.03, False, True)]
    for first, logs in (("▁ont", (-0.7, -0.05, -0.01, -0.01)), ("▁sont", (-0.9, -0.4, -0.3, -0.2))):
        parent = 1
        for token, log in zip((first, "▁dormi", "▁.", "</s>"), logs, strict=True):
            nodes.append(SearchNode(parent, token, log, nodes[parent].total + log, token == "</s>", token != "</s>"))
            parent = len(nodes) - 1
    nodes.append(SearchNode(0, "</s>", -1.0, -1.01, True, False))
    return TracedSearch(3, tuple(nodes), (5, 9, 10))


def reading(seed=0):
    """A translation with the attention of a small Transformer; without influence."""
    sides = {"source": side(SOURCE, "</s>"), "target": side(TARGET, "</s>"),
             "read": TraceSide(("<s>", *(f"▁{word}" for word in TARGET)))}
    own, read = trace_examples.looks(2, 6, 6, seed=seed, mask=Causal()), trace_examples.looks(2, 6, 6, seed=1)
    attentions = (TracedAttention("encoder.0.self", "source", "source", read, 0, "self"),
                  TracedAttention("decoder.0.self", "target", "read", own, 0, "self"),
                  TracedAttention("decoder.0.cross", "target", "source",
                                  WeightMatrix(torch.stack([LOOKED, LOOKED.flip(1)])), 0, "cross"))
    return Trace(sides, attentions, " ".join(SOURCE), "my-model", GeneratedTokens("target", LOGS, -0.13),
                 AlignmentPointer(2, 0, 0), search())


def with_influence(trace=None):
    """The document of a page, with the influence of every word."""
    table = document.embedded_document([trace or reading()])
    table["traces"][0]["influence"] = {"rows": "target", "columns": "source", "tokens": [[at] for at in range(5)],
                                       "values": MATTERED}
    return table


def leave_out(numbers):
    """The influence of some words of `reading`, each alone; of all, in two groups whose values are sums."""
    groups = ((0, 1), (2, 3, 4)) if numbers is None else tuple((number,) for number in numbers)
    values = tuple(tuple(sum(row[number] or 0.0 for number in group) for group in groups) for row in MATTERED)
    return TracedInfluence("target", "source", groups, values)


def in_groups(**options):
    """`reading` with the influence of two groups of words, and without a model."""
    return replace(reading(), influence=leave_out(None), **options)


def predicted():
    """A text that a language model reads: how probable each of four words is, and what else was likely."""
    words = ["the", "big", "dog", "sleeps"]
    look = trace_examples.looks(2, 4, 4, seed=4, mask=Causal())
    influence = TracedInfluence("text", "text", ((0,), (1, 2)), ((None, None), (0.5, None), (0.1, None), (0.2, 3.0)))
    likely = ((), ("▁big", "▁cat"), ("▁cat", "▁house", "▁dog"), ("▁sleeps", "▁eats"), (".", "▁in"))
    predictions = TracedPredictions("text", (None, -0.5, -4.0, -0.1), likely,
                                    ((), (-0.5, -2.0), (-0.2, -3.0, -4.0), (-0.1, -3.0), (-0.3, -1.5)))
    return Trace({"text": side(words)}, (TracedAttention("decoder.0.self", "text", "text", look, 0, "self"),),
                 " ".join(words), "lm", influence=influence, predictions=predictions)


def classified(**options):
    """A text of three words with a label; the last two words were left out together."""
    words = ["good", "old", "film"]
    look = trace_examples.looks(2, 3, 3, seed=5)
    label = TraceSide(("warm",), "warm", trace_examples.words("warm", ("warm", 0, 0)))
    return Trace({"text": side(words), "label": label},
                 (TracedAttention("encoder.0.self", "text", "text", look, 0, "self"),), " ".join(words), "judge",
                 GeneratedTokens("label", (-0.2,)), influence=TracedInfluence("label", "text", ((0,), (1, 2)),
                                                                              ((1.25, -0.5),)),
                 predictions=TracedPredictions("label", (-0.2,), (("warm", "cold"),), ((-0.2, -1.7),)), **options)


def patched(**options):
    """An image of 2 × 2 patches that were made grey in two blocks, one above the other; the upper one matters."""
    tokens = ("1,1", "1,2", "2,1", "2,2")
    pixels = bytes(range(0, 160, 10))
    image = TraceSide(tokens, grid=(2, 2), image=TracedImage(4, 4, 1, pixels))
    return Trace({"image": image, "label": TraceSide(("cat",), "cat", trace_examples.words("cat", ("cat", 0, 0)))},
                 (TracedAttention("encoder.0.self", "image", "image", trace_examples.looks(2, 4, 4), 0, "self"),),
                 "a.png: cat, 90.0%", "seer", GeneratedTokens("label", (-0.1,)),
                 influence=TracedInfluence("label", "image", ((0, 1), (2, 3)), ((2.0, 0.0),)),
                 predictions=TracedPredictions("label", (-0.1,), (("cat", "dog"),), ((-0.1, -2.4),)), **options)


def labelled():
    """Three words with labels, as a labeller's trace has them."""
    words, labels = ["Ada", "saw", "Paris"], ["B-PER", "O", "B-LOC"]
    text = " ".join(words)
    marked = " ".join(f"{word}/{label}" for word, label in zip(words, labels, strict=True))
    plain = side(words)
    places = trace_examples.words(marked, *((part, at, at) for at, part in enumerate(marked.split())))
    sides = {"text": TraceSide(plain.tokens, text, plain.words), "labels": TraceSide(plain.tokens, marked, places)}
    look = trace_examples.looks(2, 3, 3, seed=3)
    return Trace(sides, (TracedAttention("encoder.0.self", "labels", "text", look, 0, "self"),), text)


def continued():
    """A prompt of two words and a continuation of two, with the probabilities of the latter."""
    words = ["the", "big", "dog", "sleeps"]
    written = TraceSide(("▁dog", "▁sleeps", "</s>"))
    look = trace_examples.looks(2, 4, 4, seed=4, mask=Causal())
    return Trace({"text": side(words), "written": written},
                 (TracedAttention("decoder.0.self", "text", "text", look, 0, "self"),), " ".join(words), "lm",
                 GeneratedTokens("written", (-0.5, -2.0, -0.1)))


def image():
    """The document of a page of an image of 4 × 6 pixels in 2 × 3 patches, with a class token."""
    tokens = ("[class]", *(f"{row + 1}, {column + 1}" for row in range(2) for column in range(3)))
    trace = Trace({"image": TraceSide(tokens, grid=(2, 3), lead=1)},
                  (TracedAttention("encoder.0.self", "image", "image", trace_examples.looks(2, 7, 7), 0, "self"),),
                  "a.png: cat, 93.0%")
    table = document.embedded_document([trace])
    pixels = bytes(10 * place for place in range(24))
    table["traces"][0]["sides"]["image"]["image"] = {"height": 4, "width": 6, "channels": 1,
                                                     "pixels": base64.b64encode(pixels).decode()}
    return table, pixels


def html(table):
    """The page of a document."""
    bundle = document.document_bundle(table)
    return bundle.page(table["title"], document.dump_document(table), bundle.policy())
