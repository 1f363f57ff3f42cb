"""How probable a model finds texts: the mean of -log p of their tokens, on data that it did not learn from.

    of_pairs(translator, pairs)       every token of the targets and their ends, given the source and what is before it
    of_text(completer, text)          every token of a text but the first, given those before it in its window, or all
                                      those before it where a model has a state that does not grow with them
    of_lines(filler, texts)           tokens that are hidden at random, always the same ones

No logits are held for more than some tokens at a time. It does not know how a model was trained; the loss of a training
with label smoothing is another number.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard import checks
from regard.data.batches.batch import padded
from regard.data.batches.buckets import Numbers
from regard.data.batches.masking import Masked, MaskingConfig
from regard.data.store import Ragged
from regard.decoding.rules import whole
from regard.mixer import RowState
from regard.models.contract import IGNORED, Tokens
from regard.models.language import LanguageModel
from regard.tasks.completing import Completer
from regard.tasks.reading import Filler
from regard.tasks.task import Ids, Task, check_lengths, room
from regard.tasks.texts import batches
from regard.tasks.translating import Translator

HELD = 1 << 23
"""Logits that are held at a time."""
WINDOW = 512
"""Tokens of a window, where nothing else is said and the model has no fewer positions."""


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


def mean_loss(task: Translator, pairs: Iterable[tuple[str, str]]) -> float:
    """The mean of -log p of the tokens of targets, their ends among them, for pairs (source, target)."""
    return of_pairs(task, pairs).mean


@torch.inference_mode()
def of_pairs(task: Translator, pairs: Iterable[tuple[str, str]]) -> TokenLoss:
    """The loss of a translator on pairs (source, target)."""
    task.check_mode()
    tokenizer, given = task.pair_tokenizer(), list(pairs)
    sources = tokenizer.source_ids([source for source, _ in given])
    targets = tokenizer.target_ids([target for _, target in given])
    inputs = [[task.start(), *ids] for ids in targets]
    labels = [[*ids, task.end()[0]] for ids in targets]
    check_lengths("sources", sources, room(task.model.encoder))
    check_lengths("targets", inputs, room(task.model.decoder))
    parts = []
    for numbers in batches([max(map(len, both)) for both in zip(sources, inputs, strict=True)]):
        source, target = (task.tokens([rows[number] for number in numbers]) for rows in (sources, inputs))
        features = task.model.features(source, target)  # type: ignore[operator]
        parts.append(_sum(task, features, _labels(task, [labels[number] for number in numbers])))
    return _total(parts)


def of_text(task: Completer, text: str, *, window: int | None = None) -> TokenLoss:
    """The loss of a language model on one text; see `of_stream`."""
    return of_stream(task, task.text_tokenizer().encode(text), window=window)


@torch.inference_mode()
def of_stream(task: Completer, ids: Sequence[int], *, window: int | None = None) -> TokenLoss:
    """The loss of a language model on the ids of one text, read in windows of so many tokens, one after another.

    A recurrent model keeps its state from window to window, as in training, and so do convolutions.
    """
    task.check_mode()
    positions = room(task.model.decoder)
    length = min(WINDOW, positions or WINDOW) if window is None else whole("window", window, 1)
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
            features, state = model.read(state, task.tokens([some]).ids)
            parts.append(_sum(task, features, _labels(task, [wanted])))
        return _total(parts)
    for numbers in batches([*map(len, inputs)]):
        features = model.features(task.tokens([inputs[number] for number in numbers]))
        parts.append(_sum(task, features, _labels(task, [labels[number] for number in numbers])))
    return _total(parts)


@torch.inference_mode()
def of_lines(task: Filler, texts: Sequence[str], *, masking: MaskingConfig | None = None, seed: int = 0) -> TokenLoss:
    """The loss of a masked model on texts, some of whose tokens are hidden; the same ones for the same seed."""
    task.check_mode()
    rows = task.text_ids(texts)
    masked = Masked(_Rows(rows), task.special, task.vocabularies[0], masking or MaskingConfig(), padded, seed)
    parts = []
    for numbers in batches([*map(len, rows)]):
        batch = masked(np.array(numbers, np.int64), 0).to(task.device)
        features = task.model.features(batch.inputs)  # type: ignore[operator]
        parts.append(_sum(task, features, batch.labels))
    return _total(parts)


@dataclass(frozen=True)
class _Rows:
    """Rows of ids, read by their numbers."""

    rows: Ids

    def __call__(self, numbers: Numbers, epoch: int) -> tuple[Ragged, ...]:
        some = [np.array(self.rows[number], np.int64) for number in numbers.tolist()]
        return (Ragged(np.concatenate([*some, np.zeros(0, np.int64)]), np.array([*map(len, some)], np.int64)),)


def _labels(task: Task, rows: Ids) -> Tensor:
    return Tokens.of(rows, padding=IGNORED).ids.to(task.device)


def _sum(task: Task, features: Tensor, labels: Tensor) -> TokenLoss:
    """The sum over the labels that count, some of them at a time."""
    counted = labels != IGNORED
    nll = sum((part.item() for part in _chunks(task, features[counted], labels[counted])), 0.0)
    return TokenLoss(nll, int(counted.sum()))


def _chunks(task: Task, features: Tensor, labels: Tensor) -> Iterator[Tensor]:
    output = task.model.output
    assert isinstance(output, torch.nn.Linear)
    count = max(1, HELD // output.out_features)
    for some, wanted in zip(features.split(count), labels.split(count), strict=True):
        yield F.cross_entropy(output(some).float(), wanted, reduction="sum")


def _total(parts: Iterable[TokenLoss]) -> TokenLoss:
    every = list(parts)
    return TokenLoss(math.fsum(part.nll for part in every), sum(part.tokens for part in every))
