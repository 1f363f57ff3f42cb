"""Which words of a source a model looked at while it wrote each word of a translation, and which belong together.

    cross (layers, heads, n, N)  ── one layer, one head or their mean ── tokens to words ──►  weights a (m, M)

    share of word t in word s     A_ts = a_ts / (Σ_t' a_t's + FAINT)
    one more round                the same of A_ts (Σ_s' a_ts') / (Σ_s' A_ts'): rows look as much as they did
    links                         of every t to the s of which it has the largest share, and of every s to the t that
                                  has the largest share of it, if that is at least CLEAR

A word of the translation looks as its tokens do on average; a word of the source is looked at as much as all its tokens
together. The end of the source is no word, and what a model looks at there is in no column, so a row may have a sum
below 1. Shares decide, and not the weights themselves, because some words are looked at by many: a noun by its article,
the last word by the full stop. What nobody looks at else has its own word to go to.

It knows words and weights; it does not know models, nor how a translation was found, nor how a head is chosen.

Legend: n, N tokens of translation and source; m, M their words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from regard import checks
from regard.config import Config, whole
from regard.data.tokenizer.words import Span, Word
from regard.inspection.chosen import word_weights

FAINT = 0.05
"""Below about this sum of looks a word of the source counts as one that nobody looks at: a share of it is small."""
CLEAR = 0.2
"""The share that a link needs. A word that has less of every other looks at none in particular."""
TINY = 1e-9
"""What nothing is divided by less than."""
FARTHEST, MOST_ROUNDS = 2, 10
"""Tokens by which rows may be shifted, and rounds of shares."""


@dataclass(frozen=True, kw_only=True)
class AlignmentConfig(Config):
    """Where in a model the links between words are read: chosen once, stored with it, the same for all sentences."""

    layer: int = whole()
    """Of those that look at the source, from 0; negative ones count from the last."""
    head: int | None = whole(None, least=0)
    """From 0; without one the mean over all of the layer."""
    offset: int = whole(0, least=-FARTHEST, most=FARTHEST)
    """How many steps after the one that predicts a token its look is taken: with 1 from the step that reads it."""
    rounds: int = whole(1, least=1, most=MOST_ROUNDS)
    """Of shares: more where words look at neighbours as much as at their own."""


class Link(NamedTuple):
    """A word of the source and one of the translation, both from 0, and how much the second looks at the first."""

    source: int
    target: int
    weight: float


class Alignment(NamedTuple):
    """Two sentences in words, and how much each word of the one looks at each of the other."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Tensor
    """(words of the target, words of the source)"""
    source_spans: tuple[Span, ...] = ()
    """The characters of each word in the source, as it was given."""
    target_spans: tuple[Span, ...] = ()
    """The characters of each word in the translation."""
    rounds: int = 1
    """Of shares, by which the links are found."""

    @classmethod
    def of(cls, text: str, source: Sequence[Word], translation: str, target: Sequence[Word],
           weights: Tensor, rounds: int = 1) -> "Alignment":
        """Two texts with their words, and the weights (m, M) between them."""
        sources, targets = (tuple(Span(word.start, word.end) for word in side) for side in (source, target))
        return cls(tuple(text[start:end] for start, end in sources),
                   tuple(translation[start:end] for start, end in targets), weights, sources, targets, rounds)

    @property
    def links(self) -> tuple[Link, ...]:
        """The words that belong together, in the order of the source. What looks at no word in particular has none."""
        return tuple(Link(source, target, float(self.weights[target, source]))
                     for source, target in sorted(linked(self.weights, self.rounds)))

    def pharaoh(self) -> str:
        """The links as programs for alignments write them: "0-0 1-2", the word of the source first."""
        return " ".join(f"{link.source}-{link.target}" for link in self.links)

    def table(self) -> dict[str, object]:
        """Words with the characters that they stand at, and links, as JSON can hold them."""
        sides = {"source": (self.source, self.source_spans), "target": (self.target, self.target_spans)}
        words = {name: [{"text": text, "start": span.start, "end": span.end} for text, span in zip(*side, strict=True)]
                 for name, side in sides.items()}
        return {**words, "links": [link._asdict() for link in self.links]}


def linked(weights: Tensor, rounds: int = 1) -> set[tuple[int, int]]:
    """The links (source, target) of weights (m, M): the best for each word, either way."""
    if not weights.numel():
        return set()
    share = shares(weights, rounds)
    best = [*((source, target) for target, source in enumerate(share.argmax(dim=1).tolist())),
            *((source, target) for source, target in enumerate(share.argmax(dim=0).tolist()))]
    return {(source, target) for source, target in best if share[target, source] >= CLEAR}


def shares(weights: Tensor, rounds: int = 1) -> Tensor:
    """Of all looks at a word of the source, those of each word of the target: (..., m, M) from the same."""
    looks, share = weights.sum(dim=-1, keepdim=True), _of_columns(weights)
    for _ in range(rounds - 1):
        share = _of_columns(share * looks / share.sum(dim=-1, keepdim=True).clamp(min=TINY))
    return share


def _of_columns(weights: Tensor) -> Tensor:
    return weights / (weights.sum(dim=-2, keepdim=True) + FAINT)


def aligned_words(cross: Tensor, source: Sequence[Word], target: Sequence[Word],
                  where: AlignmentConfig | None = None) -> Tensor:
    """(m, M), from (layers, heads, n, N) or, with the look of the step after the last token, (layers, heads, n + 1, N).

    Without a place to read it at, it is the mean over the heads of the layer that points at words most clearly in this
    sentence: whose words of the target have, on average, the highest weight on a single word of the source.
    """
    if where is None:
        every = word_weights(cross.mean(dim=1), source, target)
        return max(every, key=lambda weights: float(weights.amax(dim=-1).mean()) if weights.numel() else 0.0)
    count, heads = cross.shape[:2]
    if not -count <= where.layer < count:
        raise checks.wrong("layer", f"one of the {count} layers that look at the source, from 0", where.layer)
    if where.head is not None and where.head >= heads:
        raise checks.wrong("head", f"one of the {heads} heads of a layer, from 0", where.head)
    layer = cross[where.layer]
    return word_weights(layer.mean(dim=0) if where.head is None else layer[where.head], source, target, where.offset)
