"""Small traces to be shown: every kind of attention, plausible numbers, hostile tokens."""

import torch

from regard.attention.look import Look
from regard.attention.mask import Causal
from regard.attention.score import Additive
from regard.data.tokenizer.interface import Word
from regard.inspection.records import WeightMatrix
from regard.inspection.trace import Trace
from regard.inspection.trace_format import (
    AlignmentPointer,
    GeneratedTokens,
    SearchNode,
    TracedAttention,
    TracedSearch,
    TraceSide,
)

SOURCE = ("▁The", "▁black", "▁cat", "▁sle", "eps", ".", "</s>")
TARGET = ("▁Le", "▁chat", "▁noir", "▁dort", ".", "</s>")
HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</script><!--", "a&b", "‮abc‬", "שלום",
           "👩‍👩‍👧", "\u200b", "\x00\x07", "", " ", "{{script}}")


def words(text, *groups):
    """Words of a text, each with its first and last token, in the order in which they stand in it."""
    found, at = [], 0
    for word, first, last in groups:
        start = text.index(word, at)
        at = start + len(word)
        found.append(Word(start, at, first, last))
    return tuple(found)


def looks(heads, rows, columns, *, width=8, seed=0, **options):
    """Queries and keys by chance."""
    chance = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(heads, count, width, generator=chance) for count in (rows, columns))
    return Look(query, key, **options)


def translation(*, title="The black cat sleeps.", layers=2, heads=4, seed=0):
    """A translation with encoder, decoder and cross-attentions, a tree, and a pointer."""
    text, written = "The black cat sleeps.", "Le chat noir dort."
    sides = {
        "source": TraceSide(SOURCE, text, words(text, ("The", 0, 0), ("black", 1, 1), ("cat", 2, 2), ("sleeps", 3, 4),
                                                (".", 5, 5))),
        "target": TraceSide(TARGET, written, words(written, ("Le", 0, 0), ("chat", 1, 1), ("noir", 2, 2),
                                                   ("dort", 3, 3), (".", 4, 4))),
    }
    n, m = len(SOURCE), len(TARGET)
    attentions = [TracedAttention(f"encoder.{layer}.self", "source", "source", looks(heads, n, n, seed=seed + layer),
                                  layer, "self") for layer in range(layers)]
    for layer in range(layers):
        causal = looks(heads, m, m, seed=seed + 10 + layer, mask=Causal())
        attentions.append(TracedAttention(f"decoder.{layer}.self", "target", "target", causal, layer, "self"))
        cross = looks(heads, m, n, seed=seed + 20 + layer)
        attentions.append(TracedAttention(f"decoder.{layer}.cross", "target", "source", cross, layer, "cross"))
    logs = (-0.1, -0.3, -0.05, -0.7, -0.01, -0.02)
    return Trace(sides, tuple(attentions), title, "tiny", GeneratedTokens("target", logs, -0.2),
                 AlignmentPointer(len(attentions) - 1, 1, 0), tree())


def tree():
    """A search of two beams."""
    nodes = (SearchNode(-1, "▁Le", -0.1, -0.1, False, True), SearchNode(-1, "▁La", -2.5, -2.5, False, True),
             SearchNode(-1, "▁Un", -3.9, -3.9, False, False), SearchNode(0, "▁chat", -0.3, -0.4, False, True),
             SearchNode(0, "▁noir", -1.7, -1.8, False, True), SearchNode(1, "▁chatte", -0.6, -3.1, False, False),
             SearchNode(3, "▁noir", -0.05, -0.45, False, True), SearchNode(4, "▁chat", -0.9, -2.7, False, True),
             SearchNode(6, "▁dort", -0.7, -1.15, False, True), SearchNode(7, "▁dort", -0.8, -3.5, False, True),
             SearchNode(8, ".", -0.01, -1.16, False, True), SearchNode(9, ".", -0.2, -3.7, False, True),
             SearchNode(10, "</s>", -0.02, -1.18, True, False), SearchNode(11, "</s>", -0.1, -3.8, True, False))
    return TracedSearch(2, nodes, (12, 13))


def hostile():
    """Tokens that would be markup, if anybody let them; and weights that are no probabilities."""
    count = len(HOSTILE)
    text = "".join(HOSTILE[:7])
    weights = torch.linspace(-1.0, 1.0, count * count).view(1, count, count)
    weights[0, 0, 0], weights[0, 1, 1] = torch.nan, 0.0
    nodes = tuple(SearchNode(-1 if number == 0 else 0, token, -1.0, -1.0 - (number > 0), False, number == 0)
                  for number, token in enumerate(HOSTILE))
    side = TraceSide(HOSTILE, text)
    attentions = (TracedAttention("<b>layer</b>", "<i>side</i>", "<i>side</i>", WeightMatrix(weights), 0, "self"),
                  TracedAttention("additive", "<i>side</i>", "<i>side</i>", additive(2, count)))
    return Trace({"<i>side</i>": side}, attentions, '<script>alert("title")</script>', "<img src=x>",
                 GeneratedTokens("<i>side</i>", (-1.0,) * count), None, TracedSearch(1, nodes, (1,)))


def additive(heads, count, width=5):
    """A look with a score that has parameters."""
    look = looks(heads, count, count, width=width, seed=3)
    return Look(look.query, look.key, None, Additive(torch.linspace(-1, 1, heads * width).view(heads, width)))


def one_token():
    """The smallest there is."""
    return Trace({"text": TraceSide(("x",))}, (TracedAttention("self", "text", "text", looks(1, 1, 1)),), "x")


def long(count, *, heads=2, width=16, seed=0):
    """A language model's attention over a long text: causal, with some structure to see."""
    look = looks(heads, count, count, width=width, seed=seed, mask=Causal())
    places = torch.arange(count).unsqueeze(-1) / 40
    turn = torch.arange(1, width // 2 + 1) / 2.0
    waves = torch.cat([torch.sin(places * turn), torch.cos(places * turn)], -1)
    query, key = 2 * look.query * 0.3 + 2 * waves, look.key * 0.3 + waves
    return Trace({"text": TraceSide(tuple(f"w{number}" for number in range(count)))},
                 (TracedAttention("decoder.0.self", "text", "text", Look(query, key, None, mask=Causal()), 0, "self"),),
                 f"{count} tokens")
