"""Word alignment from cross-attention: which words of a source belong to which words of its translation.

    cross-attention (layers, heads, n, N) -> one layer; one head, or the mean -> tokens to words -> weights a (m, M)

    share of word t in word s     A_ts = a_ts / (sum over t' of a_t's + SHARE_SMOOTHING)
    one more round                the same for A_ts (sum over s' of a_ts') / (sum over s' of A_ts')
    links                         for every t the s of which it has the largest share, and for every s the t that has
                                  the largest share of it, if that share is at least MIN_LINK_SHARE

A word of the translation has the mean weights of its tokens; a word of the source the sum over its tokens. The end of
the source is not a word, so a row may sum to less than 1. Shares decide, not the weights themselves, because some
source words get attention from many words: a noun from its article, the last word from the full stop.

`choose_alignment` picks the layer and head from sentence pairs without gold links; `alignment_error_rate` compares links
with gold links. This module knows words and weights; it does not know models.

Legend: n, N tokens of translation and source; m, M their words.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import checks
from regard.config import Config, integer
from regard.data.tokenizer.interface import Span, Word
from regard.inspection.trace import word_weights

SHARE_SMOOTHING = 0.05
"""Below about this sum of looks a word of the source counts as one that nobody looks at: a share of it is small."""
MIN_LINK_SHARE = 0.2
"""The share that a link needs. A word that has less of every other looks at none in particular."""
EPSILON = 1e-9
"""What nothing is divided by less than."""
MAX_OFFSET, MAX_ROUNDS = 2, 10
"""Tokens by which rows may be shifted, and rounds of shares."""


@dataclass(frozen=True, kw_only=True)
class AlignmentConfig(Config):
    """Where in a model the links between words are read: chosen once, stored with it, the same for all sentences."""

    layer: int = integer()
    """Of those that look at the source, from 0; negative ones count from the last."""
    head: int | None = integer(None, minimum=0)
    """From 0; without one the mean over all of the layer."""
    offset: int = integer(0, minimum=-MAX_OFFSET, maximum=MAX_OFFSET)
    """How many steps after the one that predicts a token its look is taken: with 1 from the step that reads it."""
    rounds: int = integer(1, minimum=1, maximum=MAX_ROUNDS)
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
                     for source, target in sorted(find_links(self.weights, self.rounds)))

    def pharaoh(self) -> str:
        """The links as programs for alignments write them: "0-0 1-2", the word of the source first."""
        return " ".join(f"{link.source}-{link.target}" for link in self.links)

    def table(self) -> dict[str, object]:
        """Words with the characters that they stand at, and links, as JSON can hold them."""
        sides = {"source": (self.source, self.source_spans), "target": (self.target, self.target_spans)}
        words = {name: [{"text": text, "start": span.start, "end": span.end} for text, span in zip(*side, strict=True)]
                 for name, side in sides.items()}
        return {**words, "links": [link._asdict() for link in self.links]}


def find_links(weights: Tensor, rounds: int = 1) -> set[tuple[int, int]]:
    """The links (source, target) of weights (m, M): the best for each word, either way."""
    if not weights.numel():
        return set()
    share = attention_shares(weights, rounds)
    best = [*((source, target) for target, source in enumerate(share.argmax(dim=1).tolist())),
            *((source, target) for source, target in enumerate(share.argmax(dim=0).tolist()))]
    return {(source, target) for source, target in best if share[target, source] >= MIN_LINK_SHARE}


def attention_shares(weights: Tensor, rounds: int = 1) -> Tensor:
    """Of all looks at a word of the source, those of each word of the target: (..., m, M) from the same."""
    looks, share = weights.sum(dim=-1, keepdim=True), _column_shares(weights)
    for _ in range(rounds - 1):
        share = _column_shares(share * looks / share.sum(dim=-1, keepdim=True).clamp(min=EPSILON))
    return share


def _column_shares(weights: Tensor) -> Tensor:
    return weights / (weights.sum(dim=-2, keepdim=True) + SHARE_SMOOTHING)


def word_alignment_weights(cross: Tensor, source: Sequence[Word], target: Sequence[Word],
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


# ---- choosing: Where in a model to read which words belong together, chosen from pairs of sentences that nobody has aligned.
#
#     cross of every pair ─► for each layer, head, offset and number of rounds: a word s of the source for every word t
#                         ─► how well the words s foretell the words t ─► the best
#
# A look that is at the word which is translated finds the same two words together again and again; one at anything else
# finds words that have nothing to do with each other. So what is linked in all other sentences is asked how probable each
# link of a sentence is: c counts links, c_k those of sentence k, n is their number, V that of different words t,
#
#     q_k(t)     = (c(t) - c_k(t) + 1) / (n - n_k + V)
#     p_k(t | s) = (c(s, t) - c_k(s, t) + q_k(t)) / (c(s) - c_k(s) + 1)
#     score      = 1/n Σ_k Σ_((s, t) in k) log p_k(t | s)
#
# No pair foretells itself: without that, whatever links rare words would win. Every choice links all words t, once, so
# the scores are about the same words. Equal scores go to the first: one round before more, no offset before any, means
# over heads before single heads. It knows words and weights; it does not know models, nor what right links are.

CANDIDATE_OFFSETS, CANDIDATE_ROUNDS = (0, 1, -1), (1, 3)
"""What is tried: steps, from the one that predicts a token, and rounds of shares."""
MAX_CHOICE_PAIRS = 500
"""Pairs after which more would choose the same."""
IntArray = NDArray[np.int64]


class PairAttention(NamedTuple):
    """What a model looked at while it read a pair."""

    cross: Tensor
    """(layers, heads, n + 1, N): the last row is of the step that predicts the end."""
    text: str
    source: Sequence[Word]
    translation: str
    target: Sequence[Word]


def choose_alignment(pairs: Iterable[PairAttention]) -> AlignmentConfig:
    """The layer, the head or all of them, the offset and the rounds whose links are most alike from pair to pair."""
    places: list[AlignmentConfig] = []
    sources, targets = list[Tensor](), list[IntArray]()
    known: tuple[dict[str, int], dict[str, int]] = {}, {}
    for pair in pairs:
        if not places:
            places = alignment_candidates(*pair.cross.shape[:2])
        if not pair.source or not pair.target:
            continue
        source, target = (_word_ids(*side, table) for side, table in
                          zip(((pair.text, pair.source), (pair.translation, pair.target)), known, strict=True))
        sources.append(source[strongest_source_words(pair)])
        targets.append(target.numpy())
    if not places:
        raise checks.wrong("pairs", "at least one", "none")
    if not sources:
        return places[0]
    every = torch.cat(sources, dim=-1).numpy()
    sentences = np.repeat(np.arange(len(targets)), [*map(len, targets)])
    scores = [link_log_probability(one, np.concatenate(targets), sentences) for one in every]
    return places[int(np.argmax(scores))]


def alignment_candidates(layers: int, heads: int) -> list[AlignmentConfig]:
    """All places that are tried."""
    one = [None] if heads == 1 else [None, *range(heads)]
    return [AlignmentConfig(layer=layer, head=head, offset=offset, rounds=rounds)
            for rounds in CANDIDATE_ROUNDS for offset in CANDIDATE_OFFSETS for head in one for layer in range(layers)]


def strongest_source_words(pair: PairAttention) -> Tensor:
    """(candidates, m): the word of the source that each word of the target is linked to, in their order."""
    cross = pair.cross
    means = cross.mean(dim=1, keepdim=True)
    every = means if cross.shape[1] == 1 else torch.cat([means, cross], dim=1)
    heads_first = every.transpose(0, 1).flatten(0, 1)
    weights = torch.cat([word_weights(heads_first, pair.source, pair.target, offset) for offset in CANDIDATE_OFFSETS])
    return torch.cat([attention_shares(weights, rounds).argmax(dim=-1) for rounds in CANDIDATE_ROUNDS])


def link_log_probability(source: IntArray, target: IntArray, sentences: IntArray) -> float:
    """The mean log-probability of the words `target` given those of `source` that they are linked to, by all links of
    other sentences: three numbers for each link."""
    different = int(target.max()) + 1
    both = source * different + target
    s, t, st = (_counts_elsewhere(words, sentences) for words in (source, target, both))
    others = len(target) - np.bincount(sentences)[sentences]
    alone = (t + 1) / (others + len(np.unique(target)))
    return float(np.log((st + alone) / (s + 1)).mean())


def _counts_elsewhere(words: IntArray, sentences: IntArray) -> IntArray:
    """How often the word of each link is in the links of other sentences."""
    return _word_counts(words) - _word_counts(words * (int(sentences.max()) + 1) + sentences)


def _word_counts(words: IntArray) -> IntArray:
    """How often each word is there, for each place."""
    _, places, counts = np.unique(words, return_inverse=True, return_counts=True)
    return np.asarray(counts[places.reshape(-1)], np.int64)


def _word_ids(text: str, words: Sequence[Word], known: dict[str, int]) -> Tensor:
    """A number for each word; the same for the same one, however it is capitalised."""
    return torch.tensor([known.setdefault(text[word.start:word.end].casefold(), len(known)) for word in words])


# ---- scores: How right links between words are, against links that people, or a grammar, have made.
#
#     AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)        (Och and Ney 2003)
#
# A are the links that were found, S the sure ones, P those that are possible, all sure ones among them; each a sum over
# all sentences. Where all links are sure, it is 1 less the F-score. It is for measuring: nothing is chosen by it.

WordLinks = Collection[tuple[int, int]]
"""(word of the source, word of the target), from 0."""


def alignment_error_rate(found: Sequence[WordLinks], sure: Sequence[WordLinks], possible: Sequence[WordLinks] | None = None) -> float:
    """The alignment error rate of links, sentence by sentence; 0 where there are none, and none should be.

    Args:
        possible: links that are neither wrong nor missed; the sure ones are always among them.
    """
    allowed = sure if possible is None else possible
    for name, given in (("sure", sure), ("possible", allowed)):
        if len(given) != len(found):
            raise checks.wrong(name, f"links for each of {len(found):,} sentences", f"for {len(given):,}")
    right = both = 0
    for links, certain, other in zip(map(set, found), map(set, sure), map(set, allowed), strict=True):
        right += len(links & certain) + len(links & (certain | other))
        both += len(links) + len(certain)
    return 1 - right / both if both else 0.0


def links_between(alignment: Alignment, source: Sequence[tuple[int, int]], target: Sequence[tuple[int, int]]) -> WordLinks:
    """The links of an alignment between other words of the same texts, given as (start, end) of their characters: those
    that share a character with linked words."""
    sides = zip((alignment.source_spans, alignment.target_spans), (source, target), strict=True)
    sources, targets = ([_overlapping_words(span, words) for span in spans] for spans, words in sides)
    return {(one, other) for link in alignment.links for one in sources[link.source] for other in targets[link.target]}


def _overlapping_words(span: Span, words: Sequence[tuple[int, int]]) -> list[int]:
    return [number for number, (start, end) in enumerate(words) if start < span.end and span.start < end]
