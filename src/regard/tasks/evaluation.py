"""How good a model is on data that it was not trained on: BLEU, chrF, loss, perplexity and accuracy.

    evaluate_translator(translator, pairs)          BLEU, chrF and the loss, also by the length of the source
    evaluate_classifier(classifier, inputs, labels) accuracy and loss
    corpus_scores(hypotheses, references)           BLEU and chrF by sacrebleu, each with its signature
    translation_loss(translator, pairs)             mean -log p of target tokens, the end included
    stream_loss(completer, ids)                     mean -log p of every token but the first
    masked_loss(filler, texts)                      mean -log p of masked tokens, always the same ones

Losses are computed with few logits in memory at a time, and without label smoothing.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor
from torch.nn import functional as F

from regard import checks
from regard.checks import whole_number
from regard.data.batches.batch import MaskedCollator, MaskingConfig, pad_sequences
from regard.data.batches.plan import ExampleNumbers
from regard.data.store import Ragged
from regard.mixer import RowState
from regard.models.language import LanguageModel
from regard.tasks.classifier import Classifier, Label
from regard.tasks.completer import Completer
from regard.tasks.filler import Filler
from regard.tasks.task import Ids, Task, check_lengths, length_batches, max_positions
from regard.tasks.translator import Translator
from regard.tokens import IGNORED_LABEL, Tokens

MIN_PROBABILITY = 1e-30
"""A probability below it counts as this one: float32 has none near 0, and its logarithm would be infinite."""


# ---- scores: BLEU and chrF of translations, by sacrebleu, each with the signature that says how it was computed.
#
#     corpus_scores(hypotheses, references)           Scores(bleu=41.67, chrf=65.20, and the signature of each)
#     by_length(sources, hypotheses, references)      the same for short sources, longer ones, and so on
#
# There must be as many hypotheses as references: sacrebleu leaves out what is too many without a word, and gives 100 for
# two hypotheses against one reference that the first of them equals. It knows texts alone, and no models.


class TranslationScores(NamedTuple):
    """Both scores, from 0 to 100, and how they were computed."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


class LengthBucket(NamedTuple):
    """The scores of translations whose sources have from `least` to `most` words."""

    least: int
    most: int | None
    """None where there is no end."""
    pairs: int
    bleu: float
    chrf: float


# ---- losses: How probable a model finds texts: the mean of -log p of their tokens, on data that it did not learn from.
#
#     of_pairs(translator, pairs)       every token of the targets and their ends, given the source and what is before it
#     of_text(completer, text)          every token of a text but the first, given those before it in its window, or all
#                                       those before it where a model has a state that does not grow with them
#     of_lines(filler, texts)           tokens that are hidden at random, always the same ones
#
# No logits are held for more than some tokens at a time. It does not know how a model was trained; the loss of a training
# with label smoothing is another number.


@dataclass(frozen=True)
class TokenLoss:
    """A sum over tokens."""

    nll: float
    """Of -log p, in natural logarithms."""
    tokens: int

    @property
    def mean(self) -> float:
        """For each token; 0 where there is none."""
        return self.nll / max(1, self.tokens)

    @property
    def perplexity(self) -> float:
        """Among how many equally probable tokens the model would have had to choose."""
        return math.exp(min(self.mean, 700.0))


@dataclass(frozen=True)
class TranslationEvaluation:
    """What is told of a translator."""

    hypotheses: tuple[str, ...]
    """The translation of each source."""
    cut: int
    """How many of them did not come to an end."""
    scores: TranslationScores
    loss: TokenLoss
    by_length: tuple[LengthBucket, ...]


@dataclass(frozen=True)
class ClassificationEvaluation:
    """What is told of a classifier."""

    examples: int
    correct: int
    loss: float
    """The mean of -log p of the right labels."""

    @property
    def accuracy(self) -> float:
        """The share of labels that are right."""
        return self.correct / self.examples


def evaluate_translator(task: Translator, pairs: Sequence[tuple[str, str]], *, beams: int = 5, lowercase: bool = False,
               tokenize: str = "13a") -> TranslationEvaluation:
    """Translate the sources of pairs (source, target), and compare with the targets.

    Args:
        beams: of the search, with a length penalty where there are several.
        lowercase, tokenize: as for `regard.tasks.evaluation.bleu`.
    """
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    check_counts(pairs=sources)
    found = task.translate(sources, beams=beams, length_penalty="mean" if beams > 1 else "none")
    made = [one.text for one in found]
    scores = corpus_scores(made, targets, lowercase=lowercase, tokenize=tokenize)
    table = scores_by_length(sources, made, targets, lowercase=lowercase, tokenize=tokenize)
    loss = translation_loss(task, zip(sources, targets, strict=True))
    return TranslationEvaluation(tuple(made), sum(one.cut for one in found), scores, loss, tuple(table))


def evaluate_classifier(task: Classifier, inputs: Sequence[str] | Tensor, labels: Sequence[str]) -> ClassificationEvaluation:
    """Classify texts, or images (B, C, H, W), and compare with these labels, given by their names."""
    known = {*task.label_names()}
    unknown = sorted({*labels} - known)
    if unknown:
        raise checks.wrong("labels", f"labels of the model, {', '.join(sorted(known))[:200]}", repr(unknown[0]))
    if len(inputs) != len(labels) or not len(labels):
        raise checks.wrong("labels", f"one for each of the {len(inputs)} inputs, at least one", len(labels))
    found: list[list[Label]] = task.classify(inputs)
    right = sum(one[0].name == label for one, label in zip(found, labels, strict=True))
    nll = math.fsum(-math.log(max(MIN_PROBABILITY, dict(one)[label])) for one, label in zip(found, labels, strict=True))
    return ClassificationEvaluation(len(labels), right, nll / len(labels))


BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "none")
"""How sacrebleu may cut texts into words for BLEU; its others need further packages, or a network."""
LENGTH_EDGES = (10, 20, 30, 40, 50)
"""Words of a source: up to the first, above that up to the second, and so on, and above the last."""


class MetricScore(NamedTuple):
    """A score from 0 to 100, and how it was computed."""

    value: float
    signature: str


def corpus_scores(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False,
                  tokenize: str = "13a") -> TranslationScores:
    """BLEU and chrF of hypotheses, each with one reference; the arguments are those of `bleu`."""
    words = bleu(hypotheses, references, lowercase=lowercase, tokenize=tokenize)
    characters = chrf(hypotheses, references, lowercase=lowercase)
    return TranslationScores(words.value, characters.value, words.signature, characters.signature)


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False,
         tokenize: str = "13a") -> MetricScore:
    """BLEU of hypotheses, each with one reference (Papineni et al. 2002; Post 2018).

    Args:
        lowercase: upper and lower case count as the same.
        tokenize: how texts are cut into words, one of TOKENIZERS; "none" for texts that are cut already.
    """
    checks.pick("tokenize", tokenize, dict.fromkeys(BLEU_TOKENIZERS))
    check_counts(hypotheses=hypotheses, references=references)
    # Forced: otherwise a hundred lines that end with " ." are remarked upon through a logger.
    return _metric_score(BLEU(lowercase=lowercase, tokenize=tokenize, force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> MetricScore:
    """chrF of hypotheses, each with one reference (Popović 2015)."""
    check_counts(hypotheses=hypotheses, references=references)
    return _metric_score(CHRF(lowercase=lowercase), hypotheses, references)


def scores_by_length(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False,
              tokenize: str = "13a", edges: Sequence[int] = LENGTH_EDGES) -> list[LengthBucket]:
    """The scores by the length of the source, in words between spaces; lengths that no source has are left out."""
    check_counts(sources=sources, hypotheses=hypotheses, references=references)
    lengths, found = [len(source.split()) for source in sources], []
    for least, most in zip((0, *(edge + 1 for edge in edges)), (*edges, None), strict=True):
        here = [number for number, length in enumerate(lengths)
                if least <= length and (most is None or length <= most)]
        if here:
            some, wanted = ([texts[number] for number in here] for texts in (hypotheses, references))
            scores = corpus_scores(some, wanted, lowercase=lowercase, tokenize=tokenize)
            found.append(LengthBucket(least, most, len(here), scores.bleu, scores.chrf))
    return found


def check_counts(**texts: Sequence[str]) -> None:
    """Refuse lists of different lengths, and empty ones; the first is named, and what the others must equal."""
    (first, given), *others = texts.items()
    for name, other in texts.items():
        if isinstance(other, str):
            raise checks.wrong(name, "a list of texts", "one text", "Put it into a list.")
    for name, other in others:
        if len(given) != len(other):
            raise checks.wrong(first, f"as many as the {len(other)} {name}", f"{len(given)} of them")
    if not given:
        raise checks.wrong(first, "at least one text", "none")


def _metric_score(metric: "BLEU | CHRF", hypotheses: Sequence[str], references: Sequence[str]) -> MetricScore:
    value = metric.corpus_score([*hypotheses], [[*references]]).score
    return MetricScore(float(value), str(metric.get_signature()))


MAX_LOGITS = 1 << 23
"""Logits that are held at a time."""
DEFAULT_WINDOW = 512
"""Tokens of a window, where nothing else is said and the model has no fewer positions."""


def mean_translation_loss(task: Translator, pairs: Iterable[tuple[str, str]]) -> float:
    """The mean of -log p of the tokens of targets, their ends among them, for pairs (source, target)."""
    return translation_loss(task, pairs).mean


@torch.inference_mode()
def translation_loss(task: Translator, pairs: Iterable[tuple[str, str]]) -> TokenLoss:
    """The loss of a translator on pairs (source, target)."""
    task.check_mode()
    tokenizer, given = task.pair_tokenizer(), list(pairs)
    sources = tokenizer.encode_sources([source for source, _ in given])
    targets = tokenizer.encode_targets([target for _, target in given])
    inputs = [[task.start(), *ids] for ids in targets]
    labels = [[*ids, task.end()[0]] for ids in targets]
    check_lengths("sources", sources, max_positions(task.model.encoder))
    check_lengths("targets", inputs, max_positions(task.model.decoder))
    parts = []
    for numbers in length_batches([max(map(len, both)) for both in zip(sources, inputs, strict=True)]):
        source, target = (task.tokens([rows[number] for number in numbers]) for rows in (sources, inputs))
        features = task.model.features(source, target)  # type: ignore[operator]
        parts.append(_token_loss(task, features, _label_tensor(task, [labels[number] for number in numbers])))
    return _total_loss(parts)


def text_loss(task: Completer, text: str, *, window: int | None = None) -> TokenLoss:
    """The loss of a language model on one text; see `of_stream`."""
    return stream_loss(task, task.text_tokenizer().encode(text), window=window)


@torch.inference_mode()
def stream_loss(task: Completer, ids: Sequence[int], *, window: int | None = None) -> TokenLoss:
    """The loss of a language model on the ids of one text, read in windows of so many tokens, one after another.

    A recurrent model keeps its state from window to window, as in training, and so do convolutions.
    """
    task.check_mode()
    positions = max_positions(task.model.decoder)
    length = min(DEFAULT_WINDOW, positions or DEFAULT_WINDOW) if window is None else whole_number("window", window, 1)
    if positions is not None and length > positions:
        raise checks.wrong("window", f"at most {positions}, the positions that the model knows", length)
    if len(ids) < 2:
        raise checks.wrong("ids", "at least two, for the second to be foretold", len(ids))
    starts = range(0, len(ids) - 1, length)
    inputs = [ids[start:min(start + length, len(ids) - 1)] for start in starts]
    labels = [ids[start + 1:start + 1 + length] for start in starts]
    model = task.model
    assert isinstance(model, LanguageModel)
    state, parts = model.start(rows=1, capacity=length), []
    if positions is None and all(isinstance(block.mixer, RowState) for block in state.stack.blocks):
        for some, wanted in zip(inputs, labels, strict=True):
            features, state = model.step_features(state, task.tokens([some]).ids)
            parts.append(_token_loss(task, features, _label_tensor(task, [wanted])))
        return _total_loss(parts)
    for numbers in length_batches([*map(len, inputs)]):
        features = model.features(task.tokens([inputs[number] for number in numbers]))
        parts.append(_token_loss(task, features, _label_tensor(task, [labels[number] for number in numbers])))
    return _total_loss(parts)


@torch.inference_mode()
def masked_loss(task: Filler, texts: Sequence[str], *, masking: MaskingConfig | None = None, seed: int = 0) -> TokenLoss:
    """The loss of a masked model on texts, some of whose tokens are hidden; the same ones for the same seed."""
    task.check_mode()
    rows = task.text_ids(texts)
    masked = MaskedCollator(_EncodedRows(rows), task.special, task.vocabularies[0], masking or MaskingConfig(), pad_sequences, seed)
    parts = []
    for numbers in length_batches([*map(len, rows)]):
        batch = masked(np.array(numbers, np.int64), 0).to(task.device)
        features = task.model.features(batch.inputs)  # type: ignore[operator]
        parts.append(_token_loss(task, features, batch.labels))
    return _total_loss(parts)


@dataclass(frozen=True)
class _EncodedRows:
    """Rows of ids, read by their numbers."""

    rows: Ids

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> tuple[Ragged, ...]:
        some = [np.array(self.rows[number], np.int64) for number in numbers.tolist()]
        return (Ragged(np.concatenate([*some, np.zeros(0, np.int64)]), np.array([*map(len, some)], np.int64)),)


def _label_tensor(task: Task, rows: Ids) -> Tensor:
    return Tokens.of(rows, padding=IGNORED_LABEL).ids.to(task.device)


def _token_loss(task: Task, features: Tensor, labels: Tensor) -> TokenLoss:
    """The sum over the labels that count, some of them at a time."""
    counted = labels != IGNORED_LABEL
    nll = sum((part.item() for part in _loss_chunks(task, features[counted], labels[counted])), 0.0)
    return TokenLoss(nll, int(counted.sum()))


def _loss_chunks(task: Task, features: Tensor, labels: Tensor) -> Iterator[Tensor]:
    output = task.model.output
    assert isinstance(output, torch.nn.Linear)
    count = max(1, MAX_LOGITS // output.out_features)
    for some, wanted in zip(features.split(count), labels.split(count), strict=True):
        yield F.cross_entropy(output(some).float(), wanted, reduction="sum")


def _total_loss(parts: Iterable[TokenLoss]) -> TokenLoss:
    every = list(parts)
    return TokenLoss(math.fsum(part.nll for part in every), sum(part.tokens for part in every))
