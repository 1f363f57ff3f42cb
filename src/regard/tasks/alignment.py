"""Which words of a source a model looked at while it wrote each word of a translation.

    cross (layers, heads, n, N)  ── mean over the heads ── tokens to words ── one layer ──►  weights (m, M)

A word of the translation looks as its tokens do on average; a word of the source is looked at as much as all its tokens
together. The end of the source is no word, and what a model looks at there is in no column, so a row may have a sum
below 1. A link goes from each word of the translation to the word of the source that it looks at most. It knows words
and weights; it does not know models, nor how a translation was found.

Legend: n, N tokens of translation and source; m, M their words.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.data.tokenizer.words import Span, Word


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

    @classmethod
    def of(cls, text: str, source: Sequence[Word], translation: str, target: Sequence[Word],
           weights: Tensor) -> "Alignment":
        """Two texts with their words, and the weights (m, M) between them."""
        spans = tuple(tuple(Span(word.start, word.end) for word in side) for side in (source, target))
        return cls(tuple(text[start:end] for start, end in spans[0]),
                   tuple(translation[start:end] for start, end in spans[1]), weights, *spans)

    @property
    def links(self) -> tuple[Link, ...]:
        """One for each word of the translation, in the order of the source. What looks at no word has none."""
        if not self.weights.numel():
            return ()
        weights, places = self.weights.max(dim=-1)
        found = enumerate(zip(places.tolist(), weights.tolist(), strict=True))
        return tuple(sorted(Link(source, target, weight) for target, (source, weight) in found if weight > 0))

    def pharaoh(self) -> str:
        """The links as programs for alignments write them: "0-0 1-2", the word of the source first."""
        return " ".join(f"{link.source}-{link.target}" for link in self.links)

    def table(self) -> dict[str, object]:
        """Words with the characters that they stand at, and links, as JSON can hold them."""
        sides = {"source": (self.source, self.source_spans), "target": (self.target, self.target_spans)}
        words = {name: [{"text": text, "start": span.start, "end": span.end} for text, span in zip(*side, strict=True)]
                 for name, side in sides.items()}
        return {**words, "links": [link._asdict() for link in self.links]}


def aligned_words(cross: Tensor, source: Sequence[Word], target: Sequence[Word], layer: int | None = None) -> Tensor:
    """(m, M) of one layer, from 0; negative ones count from the last.

    Without one it is the layer that points at words most clearly: whose words of the target have, on average, the
    highest weight on a single word of the source. Which layer of a Transformer that is differs from model to model, and
    the others gather what is around.
    """
    count = cross.shape[0]
    if layer is None:
        every = [word_weights(each.mean(dim=0), source, target) for each in cross]
        return max(every, key=lambda weights: float(weights.amax(dim=-1).mean()) if weights.numel() else 0.0)
    if isinstance(layer, bool) or not isinstance(layer, int) or not -count <= layer < count:
        raise checks.wrong("layer", f"one of the {count} layers that look at the source, from 0", repr(layer))
    return word_weights(cross[layer].mean(dim=0), source, target)


def word_weights(weights: Tensor, source: Sequence[Word], target: Sequence[Word]) -> Tensor:
    """(m, M) from (n, N)."""
    rows = [weights[word.first_token:word.last_token + 1].mean(dim=0) for word in target]
    looks = torch.stack(rows) if rows else weights[:0]
    columns = [looks[:, word.first_token:word.last_token + 1].sum(dim=-1) for word in source]
    return torch.stack(columns, dim=-1) if columns else looks[:, :0]
