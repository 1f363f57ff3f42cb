"""How good a model is on data that it did not learn from, all that is told of it at once.

    translated(translator, pairs)           BLEU, chrF and the loss, also by the length of the sources
    labelled(classifier, inputs, labels)    how many labels are right, and the loss

What is told of language models and masked models is their loss alone: `regard.tasks.losses`. It knows neither files nor
how a result is shown.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from regard import checks
from regard.tasks import losses
from regard.tasks.losses import TokenLoss
from regard.tasks.reading import Classifier, Label
from regard.tasks.scores import Bucket, Scores, by_length, check_counts, corpus_scores
from regard.tasks.translating import Translator

LEAST = 1e-30
"""A probability below it counts as this one: float32 has none near 0, and its logarithm would be infinite."""


@dataclass(frozen=True)
class Translated:
    """What is told of a translator."""

    hypotheses: tuple[str, ...]
    """The translation of each source."""
    cut: int
    """How many of them did not come to an end."""
    scores: Scores
    loss: TokenLoss
    by_length: tuple[Bucket, ...]


@dataclass(frozen=True)
class Labelled:
    """What is told of a classifier."""

    examples: int
    correct: int
    loss: float
    """The mean of -log p of the right labels."""

    @property
    def accuracy(self) -> float:
        """The share of labels that are right."""
        return self.correct / self.examples


def translated(task: Translator, pairs: Sequence[tuple[str, str]], *, beams: int = 5, lowercase: bool = False,
               tokenize: str = "13a") -> Translated:
    """Translate the sources of pairs (source, target), and compare with the targets.

    Args:
        beams: of the search, with a length penalty where there are several.
        lowercase, tokenize: as for `regard.tasks.scores.bleu`.
    """
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    check_counts(pairs=sources)
    found = task.translate(sources, beams=beams, length_penalty="mean" if beams > 1 else "none")
    made = [one.text for one in found]
    scores = corpus_scores(made, targets, lowercase=lowercase, tokenize=tokenize)
    table = by_length(sources, made, targets, lowercase=lowercase, tokenize=tokenize)
    loss = losses.of_pairs(task, zip(sources, targets, strict=True))
    return Translated(tuple(made), sum(one.cut for one in found), scores, loss, tuple(table))


def labelled(task: Classifier, inputs: Sequence[str] | Tensor, labels: Sequence[str]) -> Labelled:
    """Classify texts, or images (B, C, H, W), and compare with these labels, given by their names."""
    known = {*task.label_names()}
    unknown = sorted({*labels} - known)
    if unknown:
        raise checks.wrong("labels", f"labels of the model, {', '.join(sorted(known))[:200]}", repr(unknown[0]))
    if len(inputs) != len(labels) or not len(labels):
        raise checks.wrong("labels", f"one for each of the {len(inputs)} inputs, at least one", len(labels))
    found: list[list[Label]] = task.classify(inputs)
    right = sum(one[0].name == label for one, label in zip(found, labels, strict=True))
    nll = math.fsum(-math.log(max(LEAST, dict(one)[label])) for one, label in zip(found, labels, strict=True))
    return Labelled(len(labels), right, nll / len(labels))
