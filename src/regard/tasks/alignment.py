"""Word alignment from cross-attention: which words of a source belong to which words of its translation.

    cross-attention (layers, heads, n, N) -> one layer; one head, or the mean -> tokens to words -> weights a (m, M)

    share of word t in word s     A_ts = a_ts / (Σ_t' a_t's + SHARE_SMOOTHING)
    one more round                the same for A_ts (Σ_s' a_ts') / (Σ_s' A_ts'): each row keeps its sum
    links                         for every t the s of which it has the largest share, and for every s the t that has
                                  the largest share of it, if that share is at least MIN_LINK_SHARE

A word of the translation has the mean weights of its tokens; a word of the source the sum over its tokens. The end of
the source is not a word, so a row may sum to less than 1. Shares decide, not the weights themselves, because some
source words get attention from many words: a noun from its article, the last word from the full stop.

`choose_alignment` picks the layer and head from sentence pairs without gold links; `alignment_error_rate` compares
links with gold links. This module knows words and weights; it does not know models.

Legend: n, N tokens of translation and source; m, M their words.
"""

import hashlib
import html
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

SHARE_SMOOTHING = 0.05
"""Makes all shares of a source word small if its total attention is below about this."""
MIN_LINK_SHARE = 0.2
"""The share that a link needs."""
HIGHLIGHT_STYLE = "background:#ffd54a;color:#000;border-radius:3px"
EPSILON = 1e-9
"""The smallest divisor."""
MAX_OFFSET, MAX_ROUNDS = 2, 10
CANDIDATE_OFFSETS, CANDIDATE_ROUNDS = (0, 1, -1), (1, 3)
"""The values that `choose_alignment` tries."""
MAX_CHOICE_PAIRS = 500
"""The number of pairs from which a head is chosen; more pairs choose the same one."""
IntArray = NDArray[np.int64]
WordLinks = Collection[tuple[int, int]]
"""(word of the source, word of the target), from 0."""


@dataclass(frozen=True, kw_only=True)
class AlignmentConfig(Config):
    """The attention from which word alignments are read: chosen once, stored with the model."""

    layer: int = integer()
    """Number of the cross-attention layer, from 0; negative numbers count from the last."""
    head: int | None = integer(None, minimum=0)
    """Number of the head, from 0; by default the mean over all heads."""
    offset: int = integer(0, minimum=-MAX_OFFSET, maximum=MAX_OFFSET)
    """Which step has the attention of a token: 0 is the step that predicts it, 1 the step that reads it."""
    rounds: int = integer(1, minimum=1, maximum=MAX_ROUNDS)
    """Rounds of shares: more help if words attend to neighbours as much as to their own word."""


class Link(NamedTuple):
    """A linked source word and target word, both from 0, and the attention weight between them."""

    source: int
    target: int
    weight: float


class Alignment(NamedTuple):
    """The words of a text and its translation, and the attention weights between them."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Tensor
    """(words of the target, words of the source)"""
    source_spans: tuple[Span, ...] = ()
    """The characters of each word in the source."""
    target_spans: tuple[Span, ...] = ()
    """The characters of each word in the translation."""
    rounds: int = 1
    """The rounds of shares that decide the links."""

    @classmethod
    def of(cls, text: str, source: Sequence[Word], translation: str, target: Sequence[Word],
           weights: Tensor, rounds: int = 1) -> "Alignment":
        """The alignment of two texts with their words and the weights (m, M) between them."""
        sources, targets = (tuple(Span(word.start, word.end) for word in side) for side in (source, target))
        return cls(tuple(text[start:end] for start, end in sources),
                   tuple(translation[start:end] for start, end in targets), weights, sources, targets, rounds)

    def __repr__(self) -> str:
        sides = " → ".join(repr(f"{words[:57]}…" if len(words) > 60 else words) for words in
                           (" ".join(self.source), " ".join(self.target)))
        links = self.pharaoh()
        return f"Alignment({sides}, links {f'{links[:77]}…' if len(links) > 80 else links or 'none'})"

    def _repr_html_(self) -> str:
        """The weights as a heat map, for a notebook."""
        from regard.inspection.pictures.svg import heat_svg

        return heat_svg(self.weights, self.target, self.source, title="attention between words")

    @property
    def links(self) -> tuple[Link, ...]:
        """The linked words in the order of the source. A word without a clear counterpart has no link."""
        return tuple(Link(source, target, float(self.weights[target, source]))
                     for source, target in sorted(find_links(self.weights, self.rounds)))

    def pharaoh(self) -> str:
        """The links in the Pharaoh format, "0-0 1-2": source word, target word."""
        return " ".join(f"{link.source}-{link.target}" for link in self.links)

    def table(self) -> dict[str, object]:
        """Words with their character positions, and links, as JSON values."""
        sides = {"source": (self.source, self.source_spans), "target": (self.target, self.target_spans)}
        words = {name: [{"text": text, "start": span.start, "end": span.end} for text, span in zip(*side, strict=True)]
                 for name, side in sides.items()}
        return {**words, "links": [link._asdict() for link in self.links]}


def alignment_html(alignment: Alignment) -> str:
    """Source and translation, for a notebook: a word under the pointer highlights the words that it is linked to.

    Texts are escaped, and there is no script: the style sheet has a rule for each word.
    """
    sides = {"s": alignment.source, "t": alignment.target}
    spans = {"s": alignment.source_spans, "t": alignment.target_spans}
    partners = {(side, number): list[tuple[int, float]]() for side, words in sides.items()
                for number in range(len(words))}
    for link in alignment.links:
        partners["s", link.source].append((link.target, link.weight))
        partners["t", link.target].append((link.source, link.weight))
    name = "regard-" + hashlib.sha256(repr(alignment[:2]).encode("utf-8", "replace")).hexdigest()[:12]
    rules, lines = list[str](), list[str]()
    for side, words in sides.items():
        other = "t" if side == "s" else "s"
        line = ""
        for number, word in enumerate(words):
            linked = partners[side, number]
            tip = ", ".join(f"{sides[other][place]} {weight:.2f}" for place, weight in linked) or "no link"
            joined = number == 0 or (spans[side] and spans[side][number - 1].end == spans[side][number].start)
            line += f'{"" if joined else " "}<span class="{side}{number}" title="{html.escape(tip)}">'
            line += f"{html.escape(word)}</span>"
            targets = ", ".join(f".{name}:has(.{side}{number}:hover) .{other}{place}" for place, _ in linked)
            if targets:
                rules.append(f"{targets} {{ {HIGHLIGHT_STYLE} }}")
        lines.append(f'<div dir="auto">{line}</div>')
    rules.append(f".{name} span:hover {{ {HIGHLIGHT_STYLE} }}")
    return f'<div class="{name}" style="line-height:1.7"><style>{" ".join(rules)}</style>{"".join(lines)}</div>'


def find_links(weights: Tensor, rounds: int = 1) -> set[tuple[int, int]]:
    """The links (source, target) of weights (m, M): the best for each word, in both directions."""
    if not weights.numel():
        return set()
    share = attention_shares(weights, rounds)
    best = [*((source, target) for target, source in enumerate(share.argmax(dim=1).tolist())),
            *((source, target) for source, target in enumerate(share.argmax(dim=0).tolist()))]
    return {(source, target) for source, target in best if share[target, source] >= MIN_LINK_SHARE}


def attention_shares(weights: Tensor, rounds: int = 1) -> Tensor:
    """The share that each target word has of the attention to a source word: (..., m, M) from (..., m, M)."""
    sums, share = weights.sum(dim=-1, keepdim=True), _column_shares(weights)
    for _ in range(rounds - 1):
        share = _column_shares(share * sums / share.sum(dim=-1, keepdim=True).clamp(min=EPSILON))
    return share


def _column_shares(weights: Tensor) -> Tensor:
    return weights / (weights.sum(dim=-2, keepdim=True) + SHARE_SMOOTHING)


def word_alignment_weights(cross: Tensor, source: Sequence[Word], target: Sequence[Word],
                           config: AlignmentConfig | None = None) -> Tensor:
    """The weights (m, M) between words, from (layers, heads, n, N), or (layers, heads, n + 1, N) with the last step.

    Without a config it is the mean over the heads of the layer with the sharpest attention in this sentence: the layer
    whose target words have, on average, the highest weight on a single source word.
    """
    if config is None:
        layers = _word_weights(cross.mean(dim=1), source, target)
        return max(layers, key=lambda weights: float(weights.amax(dim=-1).mean()) if weights.numel() else 0.0)
    count, heads = cross.shape[:2]
    if not -count <= config.layer < count:
        raise checks.wrong("layer", f"one of the {count} layers with cross-attention, from 0", config.layer)
    if config.head is not None and config.head >= heads:
        raise checks.wrong("head", f"one of the {heads} heads of a layer, from 0", config.head)
    layer = cross[config.layer]
    weights = layer.mean(dim=0) if config.head is None else layer[config.head]
    return _word_weights(weights, source, target, config.offset)


def _word_weights(weights: Tensor, source: Sequence[Word], target: Sequence[Word], offset: int = 0) -> Tensor:
    from regard.inspection.trace import word_weights  # only an alignment needs the inspection package

    return word_weights(weights, source, target, offset)


class PairAttention(NamedTuple):
    """The cross-attention of a model that read a sentence pair."""

    cross: Tensor
    """(layers, heads, n + 1, N): the last row is the step that predicts the end."""
    text: str
    source: Sequence[Word]
    translation: str
    target: Sequence[Word]


def choose_alignment(pairs: Iterable[PairAttention]) -> AlignmentConfig:
    """The layer, head, offset and rounds whose links are most consistent from pair to pair.

    Attention to the word that is being translated links the same two words again and again; other attention links
    unrelated words. So each candidate is scored by how well source words predict the target words linked to them, with
    counts from all other sentences. c counts links, c_k those of sentence k; n is their number, V the number of
    different target words:

        q_k(t)     = (c(t) - c_k(t) + 1) / (n - n_k + V)
        p_k(t | s) = (c(s, t) - c_k(s, t) + q_k(t)) / (c(s) - c_k(s) + 1)
        score      = 1/n Σ_k Σ_((s, t) in k) log p_k(t | s)

    A sentence does not predict itself: otherwise candidates that link rare words would win. Every candidate links each
    target word once, so the scores are comparable. Of equal scores the first wins: fewer rounds, no offset, means over
    heads.
    """
    candidates: list[AlignmentConfig] = []
    sources, targets = list[Tensor](), list[IntArray]()
    vocabularies: tuple[dict[str, int], dict[str, int]] = {}, {}
    for pair in pairs:
        if not candidates:
            candidates = alignment_candidates(*pair.cross.shape[:2])
        if not pair.source or not pair.target:
            continue
        source = _word_ids(pair.text, pair.source, vocabularies[0])
        targets.append(_word_ids(pair.translation, pair.target, vocabularies[1]).numpy())
        sources.append(source[strongest_source_words(pair)])
    if not candidates:
        raise checks.wrong("pairs", "at least one", "none")
    if not sources:
        return candidates[0]
    linked = torch.cat(sources, dim=-1).numpy()
    sentences = np.repeat(np.arange(len(targets)), [*map(len, targets)])
    scores = [link_log_probability(one, np.concatenate(targets), sentences) for one in linked]
    return candidates[int(np.argmax(scores))]


def alignment_candidates(layers: int, heads: int) -> list[AlignmentConfig]:
    """All configs that `choose_alignment` tries."""
    choices = [None] if heads == 1 else [None, *range(heads)]
    return [AlignmentConfig(layer=layer, head=head, offset=offset, rounds=rounds)
            for rounds in CANDIDATE_ROUNDS for offset in CANDIDATE_OFFSETS for head in choices
            for layer in range(layers)]


def strongest_source_words(pair: PairAttention) -> Tensor:
    """(candidates, m): the source word that each target word is linked to, in the order of the candidates."""
    cross = pair.cross
    means = cross.mean(dim=1, keepdim=True)
    choices = means if cross.shape[1] == 1 else torch.cat([means, cross], dim=1)
    heads_first = choices.transpose(0, 1).flatten(0, 1)
    weights = torch.cat([_word_weights(heads_first, pair.source, pair.target, offset) for offset in CANDIDATE_OFFSETS])
    return torch.cat([attention_shares(weights, rounds).argmax(dim=-1) for rounds in CANDIDATE_ROUNDS])


def link_log_probability(source: IntArray, target: IntArray, sentences: IntArray) -> float:
    """The mean log-probability of target words given their source words, by the links of other sentences.

    The arrays have an element for each link: its two words and its sentence.
    """
    different = int(target.max()) + 1
    both = source * different + target
    s, t, st = (_counts_elsewhere(words, sentences) for words in (source, target, both))
    others = len(target) - np.bincount(sentences)[sentences]
    unigram = (t + 1) / (others + len(np.unique(target)))
    return float(np.log((st + unigram) / (s + 1)).mean())


def _counts_elsewhere(words: IntArray, sentences: IntArray) -> IntArray:
    """How often the word of each link appears in the links of other sentences."""
    return _word_counts(words) - _word_counts(words * (int(sentences.max()) + 1) + sentences)


def _word_counts(words: IntArray) -> IntArray:
    """The number of occurrences of each element."""
    _, places, counts = np.unique(words, return_inverse=True, return_counts=True)
    return np.asarray(counts[places.reshape(-1)], np.int64)


def _word_ids(text: str, words: Sequence[Word], vocabulary: dict[str, int]) -> Tensor:
    """A number for each word, regardless of case."""
    return torch.tensor([vocabulary.setdefault(text[word.start:word.end].casefold(), len(vocabulary))
                         for word in words])


def alignment_error_rate(found: Sequence[WordLinks], sure: Sequence[WordLinks],
                         possible: Sequence[WordLinks] | None = None) -> float:
    """The alignment error rate (Och and Ney 2003), summed over all sentences; 0 if there are no links at all.

        AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

    A are the found links, S the sure gold links, P the possible ones, which include the sure ones. If all gold links
    are sure, this is 1 minus the F-score.
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


def links_between(alignment: Alignment, source: Sequence[tuple[int, int]],
                  target: Sequence[tuple[int, int]]) -> WordLinks:
    """The links of an alignment in another segmentation of the same texts, given by the (start, end) of its words."""
    sides = zip((alignment.source_spans, alignment.target_spans), (source, target), strict=True)
    sources, targets = ([_overlapping_words(span, words) for span in spans] for spans, words in sides)
    return {(one, other) for link in alignment.links for one in sources[link.source] for other in targets[link.target]}


def _overlapping_words(span: Span, words: Sequence[tuple[int, int]]) -> list[int]:
    return [number for number, (start, end) in enumerate(words) if start < span.end and span.start < end]
