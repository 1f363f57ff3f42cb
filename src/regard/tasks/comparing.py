"""What an exported model says beside what our own says, to the same ids.

Rows of ids are drawn at random, of several lengths, so that no language and no tokenizer is needed; or they are those
of texts that are given. Our model writes after each by greedy search. Then both read what was written, and their
numbers are compared; and the exported model writes by itself, and what it writes is compared.

Two greedy searches may part where two tokens are as good as equally probable: that is no difference. Numbers that were
quantised on purpose may differ more, and what is written from them is counted and not asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import checks
from regard.data.tokenizer.pair import PairTokenizer
from regard.models.contract import Tokens
from regard.models.vision import VisionConfig
from regard.tasks.completing import Completer
from regard.tasks.reading import Reader
from regard.tasks.runners import Asked, Ends, Runner
from regard.tasks.task import Task, check_lengths, room
from regard.tasks.translating import Translator

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)
"""Of the rows that are drawn, as far as the model has positions."""
LIMIT, MOST = 20, 100
"""How many tokens are written after a row; how many texts are taken of those that are given."""
SEED = 1
TOLERANCE = {"float32": 1e-4, "float16": 0.005, "bfloat16": 0.02, "int8": 0.2}
"""How far numbers may be apart, as a share of the largest of our own where that is above 1."""


@dataclass(frozen=True)
class Comparison:
    """What came of it."""

    rows: int
    numbers: int
    """How many were compared."""
    what: str
    """What they are."""
    difference: float
    """The largest."""
    mean: float
    """The mean of all differences."""
    tolerance: float
    """What the largest may be."""
    same: int | None = None
    """After how many rows both wrote the same; None for a model that does not write."""
    parted: int = 0
    """After how many rows they did not, where our model finds the two far from equal."""

    @property
    def passed(self) -> bool:
        """Whether the exported model is the same as ours, as far as its numbers allow."""
        return self.difference <= self.tolerance and not self.parted


def ends(task: Task) -> Ends:
    """Where what the model writes ends, and what it never writes."""
    if not isinstance(task, Translator | Completer):
        return Ends(task.special)
    size, padding = task.vocabularies[-1], task.special.padding
    tokenizer = task.tokenizer.target if isinstance(task.tokenizer, PairTokenizer) else task.tokenizer
    never = [] if tokenizer is None else [*range(tokenizer.size, size)]  # ids of the model that are no token
    if isinstance(task, Translator) and padding is not None and padding not in task.special.end and padding < size:
        never.append(padding)
    return Ends(task.special, tuple(never))


def asked(task: Task, texts: Sequence[str] = ()) -> Asked:
    """What both models are asked."""
    if isinstance(task.config, VisionConfig):
        source = torch.Generator().manual_seed(SEED)
        shape = (len(LENGTHS), task.config.channels, task.config.height, task.config.breadth)
        return Asked([], images=torch.rand(shape, generator=source) * 2 - 1)
    rows = _of_texts(task, texts[:MOST]) if texts else _drawn(task)
    if not isinstance(task, Translator):
        return Asked(rows)
    found = task.translate_ids(rows, limit=_limit(task))
    return Asked(rows, [[task.start(), *hypotheses[0].ids] for hypotheses in found])


def compare(task: Task, runner: Runner, asked: Asked, quantization: str = "float32") -> Comparison:
    """What the two say to the same ids; `quantization` is what the exported numbers are."""
    ours, theirs = _numbers(task, asked), runner.numbers(asked)
    what = "log-probabilities" if runner.gathered else "outputs"
    if runner.gathered:
        assert asked.targets is not None
        ours = [_gathered(logits, [*target[1:], task.end()[0]])
                for logits, target in zip(ours, asked.targets, strict=True)]
    if [one.shape for one in ours] != [one.shape for one in theirs]:
        raise checks.wrong("export", f"of outputs of {[*ours[0].shape]}", f"of {[*theirs[0].shape]}")
    apart = torch.cat([(mine - other.float()).abs().flatten() for mine, other in zip(ours, theirs, strict=True)])
    scale = max(1.0, *(float(mine.abs().max()) for mine in ours))
    tolerance, same, parted = TOLERANCE[quantization] * scale, None, 0
    if isinstance(task, Translator | Completer):
        same, parted = _written(task, runner, asked, tolerance)
        parted = parted if quantization == "float32" else 0
    largest = float(apart.nan_to_num(nan=torch.inf).max())
    return Comparison(len(ours), len(apart), what, largest, float(apart.mean()), tolerance, same, parted)


def _written(task: "Translator | Completer", runner: Runner, asked: Asked, tolerance: float) -> tuple[int, int]:
    """After how many rows both write the same; and after how many something that is no matter of rounding."""
    limit, same, parted = _limit(task, asked), 0, 0
    if isinstance(task, Translator):
        assert asked.targets is not None
        ours = [target[1:] for target in asked.targets]
    else:
        ours = [hypotheses[0].ids for hypotheses in task.complete_ids(asked.rows, limit=limit)]
    for number, (mine, other) in enumerate(zip(ours, runner.written(asked, limit), strict=True)):
        if mine == other:
            same += 1
        elif _gap(task, asked, number, mine, other) > tolerance:
            parted += 1
    return same, parted


def _gap(task: "Translator | Completer", asked: Asked, number: int, mine: list[int], other: list[int]) -> float:
    """How far apart our model finds the two tokens at which they part, as a difference of logits."""
    at = next((at for at, pair in enumerate(zip(mine, other, strict=False)) if pair[0] != pair[1]),
              min(len(mine), len(other)))
    before, end = mine[:at], next(iter(task.special.end), 0)
    own, theirs = (row[at] if at < len(row) else end for row in (mine, other))
    if asked.targets is None:
        one = Asked([[*asked.rows[number], *before]])
    else:
        one = Asked([asked.rows[number]], [[task.start(), *before]])  # type: ignore[union-attr]
    logits_V = _numbers(task, one)[0][-1]
    return abs(float(logits_V[own] - logits_V[theirs]))


class Reread:
    """An export for `transformers` as our own reader reads it, where that is not installed."""

    program, gathered = "regard", False

    def __init__(self, task: Task) -> None:
        self.task = task

    def numbers(self, asked: Asked) -> list[Tensor]:
        return _numbers(self.task, asked)

    def written(self, asked: Asked, limit: int) -> list[list[int]]:
        if isinstance(self.task, Translator):
            return [found[0].ids for found in self.task.translate_ids(asked.rows, limit=limit)]
        assert isinstance(self.task, Completer)
        return [found[0].ids for found in self.task.complete_ids(asked.rows, limit=limit)]


@torch.inference_mode()
def _numbers(task: Task, asked: Asked) -> list[Tensor]:
    """What our model says to each row, in float32, each row by itself."""
    model = task.model
    if asked.images is not None:
        weight = next(model.parameters())
        return [*model(asked.images.to(weight)).float().cpu()]
    if isinstance(task, Translator):
        assert asked.targets is not None
        found = [model.decode(_tokens(task, target), model.encode(_tokens(task, row)))  # type: ignore[operator]
                 for row, target in zip(asked.rows, asked.targets, strict=True)]
    elif isinstance(task, Completer):
        found = [model.decode(_tokens(task, row)) for row in asked.rows]  # type: ignore[operator]
    else:
        found = [model(_tokens(task, row)) for row in asked.rows]
    return [one[0].float().cpu() for one in found]


def _tokens(task: Task, row: Sequence[int]) -> Tokens:
    return Tokens.of([row]).to(task.device)


def _gathered(logits_NV: Tensor, ids: Sequence[int]) -> Tensor:
    """The log-probabilities of these ids."""
    return logits_NV.log_softmax(-1).gather(-1, torch.tensor(ids).unsqueeze(-1)).squeeze(-1)


def _side(task: Task) -> object:
    """The part of the model that reads rows."""
    return getattr(task.model, "encoder", getattr(task.model, "decoder", task.model))


def _limit(task: Task, asked: Asked | None = None) -> int:
    """How many tokens are written: as many as there is room for behind the longest row."""
    positions = room(getattr(task.model, "decoder", None))
    before = 1 if asked is None or asked.targets is not None else max(map(len, asked.rows))
    return LIMIT if positions is None else max(1, min(LIMIT, positions - before))


def _drawn(task: Task) -> list[list[int]]:
    """Rows of ids that no special one is among, but for the end of a source."""
    most, size = room(_side(task)), task.vocabularies[0]
    behind = [] if not isinstance(task, Translator) else [_source_end(task)]
    spare = len(behind) if isinstance(task, Translator) else 1  # a token at least is written
    plain = [id_ for id_ in range(size) if id_ not in task.special.ids()] or [*range(size)]
    source, rows = torch.Generator().manual_seed(SEED), []
    for length in LENGTHS:
        length = length if most is None else max(1, min(length, most - spare))
        drawn = torch.randint(len(plain), (length,), generator=source).tolist()
        rows.append([*(plain[at] for at in drawn), *behind])
    return rows


def _source_end(task: Translator) -> int:
    if isinstance(task.tokenizer, PairTokenizer):
        return task.tokenizer.source_end
    return min(task.end()[0], task.vocabularies[0] - 1)


def _of_texts(task: Task, texts: Sequence[str]) -> list[list[int]]:
    """The rows of texts, without those that are empty."""
    if isinstance(task, Translator):
        rows = task.pair_tokenizer().source_ids(texts)
    elif isinstance(task, Reader):
        rows = task.text_ids(texts)
    else:
        assert isinstance(task, Completer)
        rows = [[*([] if task.special.first is None else [task.special.first]), *ids]
                for ids in task.text_tokenizer().encode_many(texts)]
    rows = [row for row in rows if row]
    check_lengths("texts", rows, room(_side(task)))
    if not rows:
        raise checks.wrong("texts", "texts that are not all empty", "none")
    return rows
