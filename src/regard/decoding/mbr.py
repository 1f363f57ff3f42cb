"""Minimum Bayes risk decoding: choose the text that is most like all others, not the most probable one.

    expected utility of c = Σ_j w_j · utility(c, r_j) / Σ_j w_j        Eikema and Aziz 2020

The references r stand for the model's distribution: samples or an n-best list, by default the candidates themselves.
The utility is chrF or a function of the caller. This module works on texts: it knows neither models nor tokenizers.

Legend: C candidates, R references, G n-grams of one length.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.checks import whole_number

MbrUtility = Callable[[Sequence[str], Sequence[str]], Tensor]
"""Candidates and references -> the utility of each candidate if a reference is right, (C, R)."""


class MbrResult(NamedTuple):
    """A candidate and its expected utility."""

    number: int
    """The index of the candidate."""
    utility: float


def mbr(candidates: Sequence[str], utility: MbrUtility | None = None, *, references: Sequence[str] | None = None,
        weights: Sequence[float] | None = None) -> list[MbrResult]:
    """Rank candidates by minimum Bayes risk: the one most similar to all references comes first.

    Of candidates with the same expected utility the earlier comes first.

    Args:
        candidates: the texts to rank.
        utility: `chrf` by default. `pairwise` turns a function of two texts into a utility.
        references: the texts that candidates are compared with; by default the candidates themselves.
        weights: the weight of each reference; by default all are equal, as is right for samples.
    """
    if isinstance(candidates, str) or isinstance(references, str):
        raise checks.wrong("candidates", "a list of texts", "a text")
    against = candidates if references is None else references
    if not candidates or not against:
        raise checks.wrong("candidates" if not candidates else "references", "at least one text", "empty")
    shares = torch.ones(len(against), dtype=torch.float64)
    if weights is not None:
        if len(weights) != len(against):
            wanted = f"one for each reference, {len(against)} in all"
            raise checks.wrong("weights", wanted, checks.plural(len(weights), "number"))
        shares = torch.tensor(weights, dtype=torch.float64)
        if not bool((shares >= 0).all()) or not 0 < float(shares.sum()) < torch.inf:
            raise checks.wrong("weights", "numbers of at least 0, of which at least one is above 0", [*weights])
    # Duplicates, which are common among samples, are compared once.
    texts, unique = list(dict.fromkeys(candidates)), list(dict.fromkeys(against))
    places = {text: place for place, text in enumerate(unique)}
    share_R = torch.zeros(len(unique), dtype=torch.float64)
    share_R.index_add_(0, torch.tensor([places[text] for text in against]), shares)
    utilities = (utility or chrf)(texts, unique).double()
    if tuple(utilities.shape) != (len(texts), len(unique)):
        raise checks.wrong("utility", f"a function that returns numbers of shape {(len(texts), len(unique))}",
                           f"one that returns {checks.shape(utilities)}")
    expected = dict(zip(texts, (utilities @ share_R / share_R.sum()).tolist(), strict=True))
    results = [MbrResult(number, expected[text]) for number, text in enumerate(candidates)]
    return sorted(results, key=lambda one: -one.utility)


def pairwise(function: Callable[[str, str], float]) -> MbrUtility:
    """A utility from a function of a candidate and a reference."""
    def utility(candidates: Sequence[str], references: Sequence[str]) -> Tensor:
        return torch.tensor([[function(one, other) for other in references] for one in candidates])

    return utility


def chrf(candidates: Sequence[str], references: Sequence[str], order: int = 6, beta: float = 2.0) -> Tensor:
    """chrF of each candidate against each reference, (C, R), from 0 to 100 (Popović 2015).

    Precision and recall of character n-grams, without white space, are averaged over the lengths 1 to `order` that both
    texts have, and combined into an F-score in which recall counts `beta` times as much.
    """
    whole_number("order", order, 1)
    mine, theirs = (["".join(text.split()) for text in texts] for texts in (candidates, references))
    precision = torch.zeros(len(mine), len(theirs), dtype=torch.float64)
    recall, lengths = precision.clone(), precision.clone()
    for size in range(1, order + 1):
        counts_CG, counts_RG = _ngram_counts(mine, theirs, size)
        found_C1, there_R = counts_CG.sum(-1, keepdim=True), counts_RG.sum(-1)
        matches_CR = torch.stack([torch.minimum(counts_CG, row_G).sum(-1) for row_G in counts_RG], dim=1)
        precision += matches_CR / found_C1.clamp(min=1)
        recall += matches_CR / there_R.clamp(min=1)
        lengths += (found_C1 > 0) & (there_R > 0)
    precision, recall = precision / lengths.clamp(min=1), recall / lengths.clamp(min=1)
    factor, joint = beta ** 2, beta ** 2 * precision + recall
    return torch.where(joint > 0, 100 * (1 + factor) * precision * recall / joint.clamp(min=1e-300), 0.0)


def _ngram_counts(mine: Sequence[str], theirs: Sequence[str], size: int) -> tuple[Tensor, Tensor]:
    """The count of each n-gram of this size in each text: (C, G) and (R, G)."""
    counted = [Counter(text[first:first + size] for first in range(len(text) - size + 1)) for text in (*mine, *theirs)]
    places = {ngram: place for place, ngram in enumerate(dict.fromkeys(ngram for one in counted for ngram in one))}
    table = torch.zeros(len(counted), len(places), dtype=torch.float64)
    for row, one in enumerate(counted):
        if one:
            table[row, [places[ngram] for ngram in one]] = torch.tensor([*one.values()], dtype=torch.float64)
    return table[:len(mine)], table[len(mine):]
