"""What a search is asked for and what it returns: `SearchRequest`, `Sources` and `Hypothesis`.

`SearchRequest.of` checks the arguments that all searches share: prompts, end tokens, length limits, constraints and
the token budget. How the next token is chosen is not decided here.

Legend: B rows (prompts), N tokens of the longest prompt, R hypotheses, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from regard import checks
from regard.checks import whole_number
from regard.decoding.constraints import Constraint, MinLength, Prefixes, check_ids, check_vocabulary
from regard.models.contract import GenerativeModel, Memory
from regard.tokens import Tokens


@dataclass(frozen=True)
class Hypothesis:
    """One thing that a model may have wanted to write. The first n places of `log_probabilities` are those of `ids`."""

    ids: list[int]
    """What was written after the prompt, without the end token."""
    log_probabilities: list[float]
    """Of each token given all before it, as the rules of the search left it; that of the end last, where it came."""
    score: float
    """By which a search ranks it. The sum of the log-probabilities, where no length penalty was asked for."""
    end: int | None
    """The end token that it stopped at; None where it was cut."""
    cross: Tensor | None = field(default=None, compare=False)
    """(layers, heads, n, N): for each entry of `log_probabilities`, the weights over the N states of the source."""

    @property
    def cut(self) -> bool:
        """No end token came: the limit was reached, or the rules left nothing to write."""
        return self.end is None


# ---- sources: Sources that are read when their turn comes.
#
# A search takes a memory, in which all sources are read already; or this, and then reads a source only when there is
# room for it. It knows neither models nor searches: how sources are read is for the caller to say.


@dataclass(frozen=True)
class Sources:
    """As many sources as there are prompts, not read yet."""

    rows: int
    encode: Callable[[list[int]], Memory]
    """The memory of some of them, by their numbers from 0."""


SourceInput = Memory | Sources | None
"""What a search is given of the sources; None for a language model."""


def select_memory(given: SourceInput, numbers: Sequence[int]) -> Memory | None:
    """What is remembered of the sources with these numbers."""
    if isinstance(given, Sources):
        return given.encode(list(numbers))
    if given is None or list(numbers) == list(range(given.rows)):
        return given
    return given.pick(list(numbers))


# ---- request: What is asked of a search, checked once: prompts, ends, limits, rules, room. Every search begins here.
#
# The search itself, and how a next token is chosen, are not known here.
#
# Legend: B rows (prompts), N tokens of the longest prompt, R hypotheses, V vocabulary.

Prompts = Tensor | Tokens | Sequence[Sequence[int]]
LengthLimit = int | Sequence[int] | Tensor


@dataclass(frozen=True)
class SearchRequest:
    """Where each row begins, where it ends, how long it may become, and what may be written."""

    prompts: list[list[int]]
    """What the model reads first; no row is empty."""
    ends: list[int]
    limits: list[int]
    """How many tokens each row may write, the end not counted."""
    rules: tuple[Constraint, ...]
    device: torch.device
    room: int | None = None
    """How many tokens the hypotheses that are followed at once may have together; None for any number."""
    tries: int = 1
    """How often each prompt is continued. Try j of prompt b has the number b · tries + j."""

    @staticmethod
    def of(model: GenerativeModel, memory: SourceInput, prompts: Prompts, end: int | Iterable[int], limit: LengthLimit, least: int,
           rules: Sequence[Constraint], room: int | None = None, tries: int = 1) -> "SearchRequest":
        """The request made of the arguments of a search; a ValueError says which of them is wrong."""
        if model.training:
            remedy = "Call model.eval() first: dropout would make the result a matter of chance."
            raise checks.wrong("model", "in evaluation mode", "in training mode", remedy)
        rows = _prompt_rows(prompts)
        if memory is not None and memory.rows != len(rows):
            remedy = "memory.pick(...) repeats rows."
            raise checks.wrong("prompts", f"{memory.rows} rows, as many as the memory has", len(rows), remedy)
        ends = sorted(check_ids("end", [end] if isinstance(end, int) else end))
        limits = _limit_rows(limit, len(rows))
        if whole_number("least", least) > min(limits, default=least):
            raise checks.wrong("least", f"at most the limit, {min(limits)}", least)
        first = (MinLength(least, ends),) if least else ()
        if room is not None:
            whole_number("room", room, 1)
        return SearchRequest(rows, ends, limits, (*first, *rules), _device_of(model, memory), room, whole_number("tries", tries, 1))

    @property
    def capacity(self) -> int:
        """How many tokens a row may have at most: the longest prompt, and all that may be written after it."""
        return max(map(len, self.prompts)) + max(self.limits)

    @property
    def numbers(self) -> range:
        """The numbers of all that is to be written."""
        return range(len(self.prompts) * self.tries)

    def prompt(self, number: int) -> int:
        """Which prompt is continued."""
        return number // self.tries

    def limit(self, number: int) -> int:
        """How many tokens may be written, the end not counted."""
        return self.limits[self.prompt(number)]

    def written(self, ids: Tensor, numbers: Sequence[int], counts: Sequence[int], each: int = 1) -> Prefixes:
        """What is written so far, ids (R, t), for rules to read: `each` hypotheses of every number, one count long."""
        rows = [[self.prompt(number) for number in numbers], counts, [number % self.tries for number in numbers]]
        # To wait for the device here would keep it idle at every step.
        known = torch.tensor(rows, dtype=torch.long).to(ids.device, non_blocking=True)
        return Prefixes(ids, *known.repeat_interleave(each, dim=1).unbind())

    def is_end(self, tokens: Tensor, vocabulary: int) -> Tensor:
        """Which of these tokens are ends, in their shape; the vocabulary is that of the model."""
        check_vocabulary("end", self.ends, vocabulary)
        found = torch.zeros_like(tokens, dtype=torch.bool)
        for end in self.ends:  # numbers need not be copied to the device
            found = found | (tokens == end)
        return found

    def log_probabilities(self, logits: Tensor, written: Prefixes) -> Tensor:
        """Logits (R, V) to log-probabilities in float32 or more, as the rules leave them."""
        logs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        for rule in self.rules:
            logs = rule(logs, written)
        return logs


def invalid_logits(row: int, written: int) -> ValueError:
    """The error for a model whose logits are NaN, or all −∞."""
    got = f"one that gave NaN for row {row} after {written} tokens"
    return checks.wrong("model", "one whose logits are numbers, not all of them −∞", got)


def _prompt_rows(prompts: Prompts) -> list[list[int]]:
    if isinstance(prompts, Tensor):
        prompts = Tokens(prompts)
    if isinstance(prompts, Tokens):
        tokens = prompts.right()
        count = tokens.ids.shape[1]
        lengths = [count] * tokens.rows if tokens.lengths is None else tokens.lengths.tolist()
        prompts = [row[:length] for row, length in zip(tokens.ids.tolist(), lengths, strict=True)]
    if not _is_sequence(prompts):
        raise checks.wrong("prompts", "rows of ids", *checks.kind(prompts))
    for row, ids in enumerate(prompts):
        if not _is_sequence(ids):
            raise checks.wrong("prompts", "rows of ids, such as [[1], [1]]", f"{ids!r} in row {row}")
        if not len(ids):
            remedy = "A model reads at least one token before it writes, such as [START]."
            raise checks.wrong("prompts", "rows of at least one id", f"empty in row {row}", remedy)
        check_ids("prompts", ids)
    return [list(ids) for ids in prompts]


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _limit_rows(limit: LengthLimit, rows: int) -> list[int]:
    if isinstance(limit, Tensor):
        limit = limit.tolist()
    if not isinstance(limit, Sequence):
        return [whole_number("limit", limit)] * rows
    if len(limit) != rows:
        raise checks.wrong("limit", f"one number, or one for each of the {rows} rows", f"{len(limit)} of them")
    return [whole_number("limit", value) for value in limit]


def _device_of(model: GenerativeModel, memory: SourceInput) -> torch.device:
    """Where the model computes: where its memory lies, or its parameters."""
    if isinstance(memory, Memory):
        return memory.states.device
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    return next((parameter.device for parameter in parameters), torch.device("cpu"))
