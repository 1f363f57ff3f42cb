"""How good a model is on data that it was not trained on: BLEU, chrF, loss, perplexity and accuracy.

    evaluate_translator(translator, pairs)          the loss; BLEU and chrF, also by source length
    evaluate_classifier(classifier, inputs, labels) accuracy and loss
    evaluate_labeller(labeller, sequences)          accuracy, F1 of labels and spans, confusion matrix and loss
    corpus_scores(hypotheses, references)           BLEU and chrF by sacrebleu, each with its signature, and with
                                                    confidence intervals where `draws` asks for them
    translation_loss(translator, pairs)             mean -log p of target tokens, the end included
    stream_loss(completer, ids)                     mean -log p of every token but the first
    masked_loss(filler, texts)                      mean -log p of masked tokens, always the same ones

Losses are computed with few logits in memory at a time, and without label smoothing.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor
from torch.nn import functional as F

from regard import checks
from regard.checks import whole_number
from regard.data.batches.batch import Batch, MaskedCollator, MaskingConfig, pad_sequences
from regard.data.batches.plan import ExampleNumbers
from regard.data.spans import count_irregular
from regard.data.store import Ragged
from regard.mixer import RowState
from regard.models.language import LanguageModel
from regard.tasks.bootstrap import BOOTSTRAP_DRAWS, ConfidenceInterval, SentenceStatistics
from regard.tasks.classifier import Classifier, Label
from regard.tasks.completer import Completer
from regard.tasks.degenerate import DegenerateOutput, find_degenerate
from regard.tasks.filler import Filler
from regard.tasks.label_scores import LabelGroups, LabelScores, merge_probabilities
from regard.tasks.labeller import Labeller
from regard.tasks.task import Ids, Task, check_lengths, length_batches, max_positions
from regard.tasks.translator import Translator
from regard.tokens import IGNORED_LABEL, Tokens

BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "none")
"""The tokenizers of sacrebleu that need no further package and no network."""
LENGTH_EDGES = (10, 20, 30, 40, 50)
"""The upper ends of length buckets, in words of the source; the last bucket has no end."""
MIN_PROBABILITY = 1e-30
"""Smaller probabilities count as this one: a float32 softmax may be 0, and its logarithm infinite."""
MAX_LOGITS = 1 << 23
"""Logits that are in memory at a time."""
DEFAULT_WINDOW = 512
"""Tokens of a window, if the model has that many positions."""


@dataclass(frozen=True)
class TranslationEvaluation:
    """The evaluation of a translator."""

    hypotheses: tuple[str, ...]
    """The translation of each source."""
    cut: int
    """How many translations reached the maximum length."""
    scores: "TranslationScores"
    """BLEU and chrF with their confidence intervals."""
    loss: "TokenLoss"
    by_length: tuple["LengthBucket", ...]
    degenerate: tuple[DegenerateOutput, ...] = ()
    """In which ways the translations are degenerate: empty, copies of their sources, all alike, or repetitions."""


@dataclass(frozen=True)
class ClassificationEvaluation:
    """The evaluation of a classifier."""

    examples: int
    correct: int
    loss: float
    """The mean of -log p of the correct labels."""

    @property
    def accuracy(self) -> float:
        """The fraction of examples whose most probable label is correct."""
        return self.correct / self.examples


def evaluate_translator(task: Translator, pairs: Sequence[tuple[str, str]], *, beams: int = 5, lowercase: bool = False,
                        tokenize: str = "13a", batch_tokens: int | None = None) -> TranslationEvaluation:
    """Translate the sources of pairs (source, target), and score the translations against the targets.

    Args:
        beams: the beam size; several beams have the length penalty "mean".
        lowercase, tokenize: as for `bleu`.
        batch_tokens: the number of tokens of a batch, padding included; less needs less memory.
    """
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    check_counts(pairs=sources)
    translations = task.translate(sources, beams=beams, length_penalty="mean" if beams > 1 else "none",
                                  batch_tokens=batch_tokens)
    hypotheses = [one.text for one in translations]
    scores = corpus_scores(hypotheses, targets, lowercase=lowercase, tokenize=tokenize, draws=BOOTSTRAP_DRAWS)
    buckets = scores_by_length(sources, hypotheses, targets, lowercase=lowercase, tokenize=tokenize)
    loss = translation_loss(task, zip(sources, targets, strict=True), batch_tokens=batch_tokens)
    return TranslationEvaluation(tuple(hypotheses), sum(one.cut for one in translations), scores, loss, tuple(buckets),
                                 find_degenerate(sources, hypotheses, targets))


def evaluate_classifier(task: Classifier, inputs: Sequence[str] | Tensor,
                        labels: Sequence[str], *, batch_tokens: int | None = None) -> ClassificationEvaluation:
    """Classify texts, or images (B, C, H, W), and compare with the names of their correct labels."""
    known = {*task.label_names()}
    unknown = sorted({*labels} - known)
    if unknown:
        raise checks.wrong("labels", f"labels of the model, {', '.join(sorted(known))[:200]}", repr(unknown[0]))
    if len(inputs) != len(labels) or not len(labels):
        raise checks.wrong("labels", f"one for each of the {len(inputs)} inputs, at least one", len(labels))
    found: list[list[Label]] = task.classify(inputs, batch_tokens=batch_tokens)
    correct = sum(one[0].name == label for one, label in zip(found, labels, strict=True))
    nll = math.fsum(-math.log(max(MIN_PROBABILITY, dict(one)[label])) for one, label in zip(found, labels, strict=True))
    return ClassificationEvaluation(len(labels), correct, nll / len(labels))


@dataclass(frozen=True)
class LabellingEvaluation:
    """The evaluation of a labeller."""

    sequences: int
    scores: LabelScores
    loss: float
    """The mean of -log p of the correct labels, of those that the model has."""
    irregular: int
    """Spans of the data that begin with I- instead of B-."""
    merged: LabelScores | None = None
    """The scores of groups of labels, if there are any: of each token the most probable group."""


def evaluate_labeller(task: Labeller, sequences: Iterable[tuple[Sequence[str], Sequence[str]]], *,
                      groups: LabelGroups | None = None, batch_tokens: int | None = None) -> LabellingEvaluation:
    """Label sequences (tokens, labels), and compare with their correct labels.

    Args:
        groups: groups of labels that are scored too. The probability of a group is the sum of those of its labels.
    """
    given = [(tokens, labels) for tokens, labels in sequences]
    check_counts(sequences=[""] * len(given))
    names = task.label_names()
    scores, nll = LabelScores(names, sorted({label for _, labels in given for label in labels} - {*names})), 0.0
    number = {name: at for at, name in enumerate(scores.rows)}
    group = {} if groups is None else groups.groups_of(scores.rows)
    merged = None if groups is None else scores.for_groups(group)
    found = task.label_probabilities([tokens for tokens, _ in given], batch_tokens=batch_tokens)
    for at, ((tokens, labels), probabilities) in enumerate(zip(given, found, strict=True)):
        if len(tokens) != len(labels):
            raise checks.wrong(f"sequences[{at}]", f"{len(tokens)} tokens and as many labels", f"{len(labels)} labels")
        expected = np.array([number[label] for label in labels], np.int64)
        known = expected < len(names)
        scores.add(expected, probabilities.argmax(-1).numpy())
        if merged is not None:
            _, sums = merge_probabilities(probabilities, names, group)
            merged.add([merged.rows.index(group[label]) for label in labels], sums.argmax(-1).numpy())
        chosen = probabilities[known.nonzero()[0], expected[known]].clamp(min=MIN_PROBABILITY)
        nll -= float(chosen.double().log().sum())
    irregular = sum(count_irregular(labels) for _, labels in given) if scores.has_spans else 0
    known_tokens = scores.tokens - sum(scores.unknown.values())
    return LabellingEvaluation(len(given), scores, nll / max(1, known_tokens), irregular, merged)


class MetricScore(NamedTuple):
    """A score from 0 to 100, and the sacrebleu signature that says how it was computed."""

    value: float
    signature: str


class TranslationScores(NamedTuple):
    """BLEU and chrF, from 0 to 100, their sacrebleu signatures, and their confidence intervals."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    bleu_interval: ConfidenceInterval | None = None
    """The 95 % confidence interval of BLEU; None if it was not computed, or of a single sentence."""
    chrf_interval: ConfidenceInterval | None = None
    """The 95 % confidence interval of chrF; None likewise."""


class LengthBucket(NamedTuple):
    """The scores of translations whose sources have from `least` to `most` words."""

    least: int
    most: int | None
    """None for the last bucket, which has no end."""
    pairs: int
    bleu: float
    chrf: float


def corpus_scores(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False,
                  tokenize: str = "13a", draws: int = 0) -> TranslationScores:
    """BLEU and chrF of hypotheses, each with one reference; the arguments are those of `bleu`.

    Args:
        draws: how often the test set is drawn for the confidence intervals; 0 computes none.
    """
    return translation_statistics(hypotheses, references, lowercase=lowercase, tokenize=tokenize).scores(draws)


class TranslationStatistics(NamedTuple):
    """What BLEU and chrF count in the sentences of a corpus."""

    bleu: SentenceStatistics
    chrf: SentenceStatistics

    def scores(self, draws: int = 0) -> TranslationScores:
        """The scores, with confidence intervals of this many draws; 0 computes none."""
        bleu_interval, chrf_interval = (each.interval(draws) if draws else None for each in self)
        return TranslationScores(self.bleu.score, self.chrf.score, self.bleu.signature, self.chrf.signature,
                                 bleu_interval, chrf_interval)


def translation_statistics(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False,
                           tokenize: str = "13a") -> TranslationStatistics:
    """The statistics of hypotheses, each with one reference; the arguments are those of `bleu`."""
    return TranslationStatistics(_bleu_statistics(hypotheses, references, lowercase, tokenize),
                                 _chrf_statistics(hypotheses, references, lowercase))


def score_details(statistics: Mapping[str, TranslationStatistics], sources: Sequence[str], hypotheses: Sequence[str],
                  references: Sequence[str]) -> dict[str, Any]:
    """What the record of a model has beside its scores: confidence intervals, and how its output is degenerate.

    Args:
        statistics: of all hypotheses, or of those of each direction, by what follows the name of a score: "" or
            "/en-fr". A mean of several directions has no interval.
    """
    found, intervals = find_degenerate(sources, hypotheses, references), dict[str, ConfidenceInterval | None]()
    for part, one in statistics.items():
        scores = one.scores(BOOTSTRAP_DRAWS)
        intervals |= {f"bleu{part}_interval": scores.bleu_interval, f"chrf{part}_interval": scores.chrf_interval}
    return {**{name: [*interval] for name, interval in intervals.items() if interval is not None},
            **({"degenerate": [each.sentence for each in found]} if found else {})}


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False,
         tokenize: str = "13a") -> MetricScore:
    """BLEU of hypotheses, each with one reference (Papineni et al. 2002; Post 2018).

    Args:
        lowercase: ignore case.
        tokenize: the tokenizer, one of BLEU_TOKENIZERS; "none" for texts that are already tokenized.
    """
    counted = _bleu_statistics(hypotheses, references, lowercase, tokenize)
    return MetricScore(counted.score, counted.signature)


def chrf(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> MetricScore:
    """chrF of hypotheses, each with one reference (Popović 2015)."""
    counted = _chrf_statistics(hypotheses, references, lowercase)
    return MetricScore(counted.score, counted.signature)


def _bleu_statistics(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool,
                     tokenize: str) -> SentenceStatistics:
    checks.pick("tokenize", tokenize, dict.fromkeys(BLEU_TOKENIZERS))
    check_counts(hypotheses=hypotheses, references=references)
    # Without `force` sacrebleu logs a warning about a hundred lines that end with " .".
    return SentenceStatistics.of(BLEU(lowercase=lowercase, tokenize=tokenize, force=True), hypotheses, references)


def _chrf_statistics(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool) -> SentenceStatistics:
    check_counts(hypotheses=hypotheses, references=references)
    return SentenceStatistics.of(CHRF(lowercase=lowercase), hypotheses, references)


def scores_by_length(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], *,
                     lowercase: bool = False, tokenize: str = "13a",
                     edges: Sequence[int] = LENGTH_EDGES) -> list[LengthBucket]:
    """The scores by the length of the source in words between spaces, without empty buckets."""
    check_counts(sources=sources, hypotheses=hypotheses, references=references)
    lengths, buckets = [len(source.split()) for source in sources], []
    for least, most in zip((0, *(edge + 1 for edge in edges)), (*edges, None), strict=True):
        inside = [number for number, length in enumerate(lengths)
                  if least <= length and (most is None or length <= most)]
        if inside:
            some, expected = ([texts[number] for number in inside] for texts in (hypotheses, references))
            scores = corpus_scores(some, expected, lowercase=lowercase, tokenize=tokenize)
            buckets.append(LengthBucket(least, most, len(inside), scores.bleu, scores.chrf))
    return buckets


def check_counts(**texts: Sequence[str]) -> None:
    """Refuse lists of different lengths, and empty ones.

    sacrebleu silently ignores surplus texts: two hypotheses against one reference may score 100.
    """
    (first, given), *others = texts.items()
    for name, other in texts.items():
        if isinstance(other, str):
            raise checks.wrong(name, "a list of texts", "one text", "Put it into a list.")
    for name, other in others:
        if len(given) != len(other):
            raise checks.wrong(first, f"as many as the {len(other)} {name}", f"{len(given)} of them")
    if not given:
        raise checks.wrong(first, "at least one text", "none")


@dataclass(frozen=True)
class TokenLoss:
    """A loss summed over tokens."""

    nll: float
    """The sum of -log p, in natural logarithms."""
    tokens: int

    @property
    def mean(self) -> float:
        """The loss per token; 0 without tokens."""
        return self.nll / max(1, self.tokens)

    @property
    def perplexity(self) -> float:
        """The exponential of the mean."""
        return math.exp(min(self.mean, 700.0))


@torch.inference_mode()
def translation_loss(task: Translator, pairs: Iterable[tuple[str, str]], *,
                     batch_tokens: int | None = None) -> TokenLoss:
    """The loss of a translator on pairs (source, target), the end of each target included."""
    task.check_eval_mode()
    tokenizer, given = task.pair_tokenizer(), list(pairs)
    sources = tokenizer.encode_sources([source for source, _ in given])
    targets = tokenizer.encode_targets([target for _, target in given])
    inputs = [[task.start_id(), *ids] for ids in targets]
    labels = [[*ids, task.end_ids()[0]] for ids in targets]
    check_lengths("sources", sources, max_positions(task.model.encoder))
    check_lengths("targets", inputs, max_positions(task.model.decoder))
    parts = []
    for numbers in length_batches([max(map(len, both)) for both in zip(sources, inputs, strict=True)], batch_tokens):
        source, target = (task.tokens([rows[number] for number in numbers]) for rows in (sources, inputs))
        features = task.model.features(source, target)  # type: ignore[operator]
        parts.append(token_loss(task, features, label_tensor(task, [labels[number] for number in numbers])))
    return total_loss(parts)


def text_loss(task: Completer, text: str, *, window: int | None = None) -> TokenLoss:
    """The loss of a language model on one text; see `stream_loss`."""
    return stream_loss(task, task.text_tokenizer().encode(text), window=window)


@torch.inference_mode()
def stream_loss(task: Completer, ids: Sequence[int], *, window: int | None = None) -> TokenLoss:
    """The loss of a language model on the ids of one text, read in consecutive windows of `window` tokens.

    A recurrent or convolutional model keeps its state from window to window, as in training.
    """
    task.check_eval_mode()
    positions = max_positions(task.model.decoder)
    length = min(DEFAULT_WINDOW, positions or DEFAULT_WINDOW) if window is None else whole_number("window", window, 1)
    if positions is not None and length > positions:
        raise checks.wrong("window", f"at most {positions}, the positions of the model", length)
    if len(ids) < 2:
        raise checks.wrong("ids", "at least two, so that the second can be predicted", len(ids))
    starts = range(0, len(ids) - 1, length)
    inputs = [ids[start:min(start + length, len(ids) - 1)] for start in starts]
    labels = [ids[start + 1:start + 1 + length] for start in starts]
    model = task.model
    assert isinstance(model, LanguageModel)
    state, parts = model.start(rows=1, capacity=length), []
    if positions is None and all(isinstance(block.mixer, RowState) for block in state.stack.blocks):
        for some, expected in zip(inputs, labels, strict=True):
            features, state = model.step_features(state, task.tokens([some]).ids)
            parts.append(token_loss(task, features, label_tensor(task, [expected])))
        return total_loss(parts)
    for numbers in length_batches([*map(len, inputs)]):
        features = model.features(task.tokens([inputs[number] for number in numbers]))
        parts.append(token_loss(task, features, label_tensor(task, [labels[number] for number in numbers])))
    return total_loss(parts)


@torch.inference_mode()
def masked_loss(task: Filler, texts: Sequence[str], *, masking: MaskingConfig | None = None,
                seed: int = 0) -> TokenLoss:
    """The loss of a masked model on random masked tokens of texts; the same tokens for the same seed."""
    task.check_eval_mode()
    return total_loss(token_loss(task, task.model.features(batch.inputs), batch.labels)  # type: ignore[operator]
                      for batch in masked_batches(task, texts, masking=masking, seed=seed))


def masked_batches(task: Filler, texts: Sequence[str], *, masking: MaskingConfig | None = None,
                   seed: int = 0) -> Iterator[Batch]:
    """Batches of texts with random masked tokens; the same tokens for the same seed."""
    rows = task.encode_texts(texts)
    collate = MaskedCollator(_EncodedRows(rows), task.special, task.vocabularies[0], masking or MaskingConfig(),
                             pad_sequences, seed)
    for numbers in length_batches([*map(len, rows)]):
        yield collate(np.array(numbers, np.int64), 0).to(task.device)


@dataclass(frozen=True)
class _EncodedRows:
    """Rows of ids, read by their numbers."""

    rows: Ids

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> tuple[Ragged, ...]:
        some = [np.array(self.rows[number], np.int64) for number in numbers.tolist()]
        return (Ragged(np.concatenate([*some, np.zeros(0, np.int64)]), np.array([*map(len, some)], np.int64)),)


def label_tensor(task: Task, rows: Ids) -> Tensor:
    """Labels of tokens as a padded batch, (B, N); padding is ignored by `token_loss`."""
    return Tokens.of(rows, padding=IGNORED_LABEL).ids.to(task.device)


def token_loss(task: Task, features: Tensor, labels: Tensor) -> TokenLoss:
    """The loss of the labels that are not ignored."""
    counted = labels != IGNORED_LABEL
    nll = sum((part.item() for part in _loss_chunks(task, features[counted], labels[counted])), 0.0)
    return TokenLoss(nll, int(counted.sum()))


def row_losses(task: Task, features: Tensor, labels: Tensor) -> Tensor:
    """The sum of -log p of the labels of each row of a batch, (B,), in double precision; ignored labels count 0."""
    counted = labels != IGNORED_LABEL
    losses = torch.zeros(labels.shape, dtype=torch.float64, device=labels.device)
    parts = [*_loss_chunks(task, features[counted], labels[counted], "none")]
    losses[counted] = torch.cat(parts).double() if parts else losses[counted]
    return losses.reshape(len(labels), -1).sum(dim=-1)


def _loss_chunks(task: Task, features: Tensor, labels: Tensor, reduction: str = "sum") -> Iterator[Tensor]:
    output = task.model.output
    assert isinstance(output, torch.nn.Linear)
    count = max(1, MAX_LOGITS // output.out_features)
    for some, expected in zip(features.split(count), labels.split(count), strict=True):
        yield F.cross_entropy(output(some).float(), expected, reduction=reduction)


def total_loss(parts: Iterable[TokenLoss]) -> TokenLoss:
    """The loss of several parts together."""
    losses = list(parts)
    return TokenLoss(math.fsum(part.nll for part in losses), sum(part.tokens for part in losses))
