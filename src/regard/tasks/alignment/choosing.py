"""Where in a model to read which words belong together, chosen from pairs of sentences that nobody has aligned.

    cross of every pair ─► for each layer, head, offset and number of rounds: a word s of the source for every word t
                        ─► how well the words s foretell the words t ─► the best

A look that is at the word which is translated finds the same two words together again and again; one at anything else
finds words that have nothing to do with each other. So what is linked in all other sentences is asked how probable each
link of a sentence is: c counts links, c_k those of sentence k, n is their number, V that of different words t,

    q_k(t)     = (c(t) - c_k(t) + 1) / (n - n_k + V)
    p_k(t | s) = (c(s, t) - c_k(s, t) + q_k(t)) / (c(s) - c_k(s) + 1)
    score      = 1/n Σ_k Σ_((s, t) in k) log p_k(t | s)

No pair foretells itself: without that, whatever links rare words would win. Every choice links all words t, once, so
the scores are about the same words. Equal scores go to the first: one round before more, no offset before any, means
over heads before single heads. It knows words and weights; it does not know models, nor what right links are.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import checks
from regard.data.tokenizer.words import Word
from regard.inspection.chosen import word_weights
from regard.tasks.alignment.words import AlignmentConfig, shares

OFFSETS, ROUNDS = (0, 1, -1), (1, 3)
"""What is tried: steps, from the one that predicts a token, and rounds of shares."""
ENOUGH = 500
"""Pairs after which more would choose the same."""
Numbers = NDArray[np.int64]


class Looked(NamedTuple):
    """What a model looked at while it read a pair."""

    cross: Tensor
    """(layers, heads, n + 1, N): the last row is of the step that predicts the end."""
    text: str
    source: Sequence[Word]
    translation: str
    target: Sequence[Word]


def choose(pairs: Iterable[Looked]) -> AlignmentConfig:
    """The layer, the head or all of them, the offset and the rounds whose links are most alike from pair to pair."""
    places: list[AlignmentConfig] = []
    sources, targets = list[Tensor](), list[Numbers]()
    known: tuple[dict[str, int], dict[str, int]] = {}, {}
    for pair in pairs:
        if not places:
            places = candidates(*pair.cross.shape[:2])
        if not pair.source or not pair.target:
            continue
        source, target = (_numbers(*side, table) for side, table in
                          zip(((pair.text, pair.source), (pair.translation, pair.target)), known, strict=True))
        sources.append(source[pointed(pair)])
        targets.append(target.numpy())
    if not places:
        raise checks.wrong("pairs", "at least one", "none")
    if not sources:
        return places[0]
    every = torch.cat(sources, dim=-1).numpy()
    sentences = np.repeat(np.arange(len(targets)), [*map(len, targets)])
    scores = [foretold(one, np.concatenate(targets), sentences) for one in every]
    return places[int(np.argmax(scores))]


def candidates(layers: int, heads: int) -> list[AlignmentConfig]:
    """All places that are tried."""
    one = [None] if heads == 1 else [None, *range(heads)]
    return [AlignmentConfig(layer=layer, head=head, offset=offset, rounds=rounds)
            for rounds in ROUNDS for offset in OFFSETS for head in one for layer in range(layers)]


def pointed(pair: Looked) -> Tensor:
    """(candidates, m): the word of the source that each word of the target is linked to, in their order."""
    cross = pair.cross
    means = cross.mean(dim=1, keepdim=True)
    every = means if cross.shape[1] == 1 else torch.cat([means, cross], dim=1)
    heads_first = every.transpose(0, 1).flatten(0, 1)
    weights = torch.cat([word_weights(heads_first, pair.source, pair.target, offset) for offset in OFFSETS])
    return torch.cat([shares(weights, rounds).argmax(dim=-1) for rounds in ROUNDS])


def foretold(source: Numbers, target: Numbers, sentences: Numbers) -> float:
    """The mean log-probability of the words `target` given those of `source` that they are linked to, by all links of
    other sentences: three numbers for each link."""
    different = int(target.max()) + 1
    both = source * different + target
    s, t, st = (_others(words, sentences) for words in (source, target, both))
    others = len(target) - np.bincount(sentences)[sentences]
    alone = (t + 1) / (others + len(np.unique(target)))
    return float(np.log((st + alone) / (s + 1)).mean())


def _others(words: Numbers, sentences: Numbers) -> Numbers:
    """How often the word of each link is in the links of other sentences."""
    return _counts(words) - _counts(words * (int(sentences.max()) + 1) + sentences)


def _counts(words: Numbers) -> Numbers:
    """How often each word is there, for each place."""
    _, places, counts = np.unique(words, return_inverse=True, return_counts=True)
    return np.asarray(counts[places.reshape(-1)], np.int64)


def _numbers(text: str, words: Sequence[Word], known: dict[str, int]) -> Tensor:
    """A number for each word; the same for the same one, however it is capitalised."""
    return torch.tensor([known.setdefault(text[word.start:word.end].casefold(), len(known)) for word in words])
