"""Synthetic tasks that need only memory, as endless streams of random sequences.

    copy      ten symbols of eight, blanks, a marker: repeat the symbols. The first symbol is due `length` + 10
              tokens after it was read (Hochreiter & Schmidhuber 1997; in this form Arjovsky et al. 2016)
    recall    pairs of key and value, then some of the keys again between blanks: give the value of each (multi-query
              associative recall, Arora et al. 2023, which has other tokens where we have blanks)
    adding    numbers from 0 to 1, two of them marked, one in each half: their sum (Hochreiter & Schmidhuber 1997)

`chance` is the loss of a model that knows the rules and remembers nothing. For copy it is 10 ln 8 / (length + 20),
because the published loss is the mean over all tokens and the blanks are predicted without error. For adding it is the
variance of the sum of two uniform numbers, 1/6; the literature gives 0.1767.

Legend: B rows, N tokens, P pairs, V outputs.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from regard import checks

SYMBOLS, COPIED = 8, 10
"""The number of symbols of the copy task, and how many are to be copied."""
BLANK, MARKER = 0, 9


class MemoryBatch(NamedTuple):
    """Sequences with their targets."""

    inputs: Tensor
    """Ids (B, N), or numbers (B, N, features)."""
    targets: Tensor
    """(B, N): ids or numbers; ignored where `loss_mask` is False."""
    loss_mask: Tensor
    """(B, N): the tokens that count for the loss."""
    remembered: Tensor
    """(B, N): the tokens whose answer needs memory; they count for the accuracy."""


class MemoryScore(NamedTuple):
    """Loss and accuracy of outputs."""

    loss: Tensor
    accuracy: Tensor | None
    """The fraction of correct answers, if answers are symbols."""


@dataclass(frozen=True)
class MemoryTask(ABC):
    """One task at one length."""

    name: ClassVar[str]
    measure: ClassVar[str]
    """The measure of the reports: "loss" or "accuracy"."""
    unit: ClassVar[str]
    """What the length counts."""
    shortest: ClassVar[int]

    length: int

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < self.shortest:
            raise checks.wrong("length", f"a whole number, at least {self.shortest} for {self.name}", repr(self.length))

    @property
    @abstractmethod
    def tokens(self) -> int:
        """The length of the sequences."""

    @property
    @abstractmethod
    def symbols(self) -> int | None:
        """The number of input ids; None if inputs are numbers."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs for each token."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """The loss without memory."""

    @property
    def chance_accuracy(self) -> float | None:
        """The accuracy without memory."""
        return None

    def after(self, share: float) -> "MemoryTask":
        """The training task after this fraction of the steps: the task itself, or an easier one that leads to it."""
        return self

    @abstractmethod
    def batch(self, rows: int, generator: Generator) -> MemoryBatch:
        """New sequences, on the generator's device."""

    def score(self, outputs: Tensor, batch: MemoryBatch) -> MemoryScore:
        """The loss of outputs (B, N, V), and their accuracy."""
        logits, labels = outputs[batch.loss_mask].float(), batch.targets[batch.loss_mask]
        right = outputs[batch.remembered].argmax(-1) == batch.targets[batch.remembered]
        return MemoryScore(F.cross_entropy(logits, labels), right.float().mean())


class CopyTask(MemoryTask):
    """Ten symbols, blanks, a marker: repeat the symbols."""

    name, measure, unit, shortest = "copy", "loss", "tokens between the symbols and their repetition", 1

    @property
    def tokens(self) -> int:
        return self.length + 2 * COPIED

    @property
    def symbols(self) -> int:
        return SYMBOLS + 2

    @property
    def outputs(self) -> int:
        return SYMBOLS + 2

    @property
    def chance(self) -> float:
        return COPIED * math.log(SYMBOLS) / self.tokens

    @property
    def chance_accuracy(self) -> float:
        return 1 / SYMBOLS

    def batch(self, rows: int, generator: Generator) -> MemoryBatch:
        """10 symbols, `length` - 1 blanks, the marker, 10 blanks; blanks are the answer until after the marker."""
        device = generator.device
        chosen = torch.randint(1, SYMBOLS + 1, (rows, COPIED), generator=generator, device=device)
        inputs = torch.full((rows, self.tokens), BLANK, device=device)
        inputs[:, :COPIED] = chosen
        inputs[:, -COPIED - 1] = MARKER
        targets = torch.full_like(inputs, BLANK)
        targets[:, -COPIED:] = chosen
        remembered = torch.zeros_like(inputs, dtype=torch.bool)
        remembered[:, -COPIED:] = True
        return MemoryBatch(inputs, targets, torch.ones_like(remembered), remembered)


@dataclass(frozen=True)
class RecallTask(MemoryTask):
    """Keys with their values, one pair for every 16 tokens; then each key once more, somewhere.

    Training begins with few pairs: with 64 at once, which is 1,024 tokens, attention had learned almost nothing after
    5,000 steps. Published trainings mix lengths.
    """

    name, measure, unit, shortest = "recall", "accuracy", "tokens of the sequence", 8
    TOKENS_FOR_A_PAIR: ClassVar[int] = 16
    LEAST_KEYS: ClassVar[int] = 32
    FIRST: ClassVar[int] = 64
    """Length of the first training sequences; it doubles after every tenth of the steps."""

    leads_to: int | None = None
    """The length of the task whose ids it uses; by default its own."""

    def after(self, share: float) -> "RecallTask":
        now = min(self.length, self.FIRST * 2**int(10 * share))
        return self if now == self.length else replace(self, length=now, leads_to=self.length)

    @property
    def pairs(self) -> int:
        """The number of pairs to remember."""
        return max(2, self.length // self.TOKENS_FOR_A_PAIR)

    @property
    def keys(self) -> int:
        """The number of different keys, and of different values."""
        return max(self.LEAST_KEYS, 2 * ((self.leads_to or self.length) // self.TOKENS_FOR_A_PAIR))

    @property
    def tokens(self) -> int:
        return self.length

    @property
    def symbols(self) -> int:
        return 1 + 2 * self.keys

    @property
    def outputs(self) -> int:
        return self.keys

    @property
    def chance(self) -> float:
        return math.log(self.keys)

    @property
    def chance_accuracy(self) -> float:
        return 1 / self.keys

    def batch(self, rows: int, generator: Generator) -> MemoryBatch:
        """Ids: the blank, then the keys, then the values. Answers are indices of values, from 0."""
        device, pairs = generator.device, self.pairs
        keys_BP = _distinct_integers(rows, self.keys, pairs, generator)
        values_BP = torch.randint(0, self.keys, (rows, pairs), generator=generator, device=device)
        inputs = torch.full((rows, self.tokens), BLANK, device=device)
        inputs[:, 0:2 * pairs:2] = 1 + keys_BP
        inputs[:, 1:2 * pairs:2] = 1 + self.keys + values_BP
        places_BP = 2 * pairs + _distinct_integers(rows, self.tokens - 2 * pairs, pairs, generator)
        inputs.scatter_(1, places_BP, 1 + keys_BP)
        targets = torch.zeros_like(inputs).scatter_(1, places_BP, values_BP)
        loss_mask = torch.zeros_like(inputs, dtype=torch.bool).scatter_(1, places_BP, True)
        return MemoryBatch(inputs, targets, loss_mask, loss_mask)


class AddingTask(MemoryTask):
    """Numbers, two of them marked: their sum, at the last token."""

    name, measure, unit, shortest = "adding", "loss", "tokens of the sequence", 2

    @property
    def tokens(self) -> int:
        return self.length

    @property
    def symbols(self) -> None:
        return None

    @property
    def outputs(self) -> int:
        return 1

    @property
    def chance(self) -> float:
        return 1 / 6

    def batch(self, rows: int, generator: Generator) -> MemoryBatch:
        """Inputs (B, N, 2): the number and whether it is marked."""
        device, half = generator.device, self.length // 2
        numbers = torch.rand(rows, self.length, generator=generator, device=device)
        marks = torch.zeros_like(numbers)
        for first, last in ((0, half), (half, self.length)):
            place = torch.randint(first, last, (rows, 1), generator=generator, device=device)
            marks.scatter_(1, place, 1.0)
        targets = (numbers * marks).sum(1, keepdim=True).expand(-1, self.length)
        loss_mask = torch.zeros_like(marks, dtype=torch.bool)
        loss_mask[:, -1] = True
        return MemoryBatch(torch.stack([numbers, marks], -1), targets, loss_mask, loss_mask)

    def score(self, outputs: Tensor, batch: MemoryBatch) -> MemoryScore:
        """The mean squared error."""
        numbers = outputs.squeeze(-1)[batch.loss_mask].float()
        return MemoryScore(F.mse_loss(numbers, batch.targets[batch.loss_mask]), None)


MEMORY_TASKS: dict[str, type[CopyTask] | type[RecallTask] | type[AddingTask]] = {
    "copy": CopyTask, "recall": RecallTask, "adding": AddingTask}


def make_task(name: str, length: int) -> MemoryTask:
    """The task of this name at this length."""
    return checks.pick("task", name, MEMORY_TASKS)(length)


def _distinct_integers(rows: int, of: int, count: int, generator: Generator) -> Tensor:
    """(rows, count): distinct integers from 0 to `of` - 1 in each row, in random order."""
    return torch.rand(rows, of, generator=generator, device=generator.device).argsort(-1)[:, :count]
