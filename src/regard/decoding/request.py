"""The arguments and the results of a search: `SearchRequest`, `Sources` and `Hypothesis`.

`SearchRequest.of` checks the arguments that all searches share: prompts, end tokens, lengths, constraints and the
token budget. How the next token is chosen is not decided here.

Legend: B prompts, N tokens of the longest prompt, R hypotheses, t tokens generated so far, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from regard import checks
from regard.checks import whole_number
from regard.decoding.constraints import Constraint, MinLength, Prefixes, check_ids, check_vocabulary
from regard.models.contract import GenerativeModel, Memory
from regard.tokens import Tokens

Prompts = Tensor | Tokens | Sequence[Sequence[int]]
LengthLimit = int | Sequence[int] | Tensor

RUNNING, FINISHED, TRUNCATED, INVALID = range(4)
"""The status of a row of a search: it continues, it is done, it cannot continue, or the model gave NaN for it."""


MAX_SHOWN_IDS = 16
"""The number of ids that the `repr` of a hypothesis shows."""


@dataclass(frozen=True)
class Hypothesis:
    """A candidate output of a search: its tokens, their log-probabilities and its score."""

    ids: list[int]
    """The tokens after the prompt, without the end token."""
    log_probabilities: list[float]
    """The log-probability of each token given all tokens before it, after constraints; that of the end token last."""
    score: float
    """The score by which a search ranks hypotheses: without a length penalty the sum of the log-probabilities."""
    end: int | None
    """The end token; None for a truncated hypothesis."""
    cross: Tensor | None = field(default=None, compare=False)
    """(layers, heads, n, N): for each entry of `log_probabilities`, the attention weights over the N source states."""

    def __repr__(self) -> str:
        ids = ", ".join(map(str, self.ids[:MAX_SHOWN_IDS])) + (", …" if len(self.ids) > MAX_SHOWN_IDS else "")
        cross = "" if self.cross is None else f", cross {checks.shape(self.cross)}"
        return (f"Hypothesis([{ids}], {checks.plural(len(self.ids), 'token')}, score {self.score:.4g}, "
                f"{'truncated' if self.truncated else f'end {self.end}'}{cross})")

    @property
    def truncated(self) -> bool:
        """Whether no end token came: the maximum length was reached, or the constraints left no token."""
        return self.end is None

    @property
    def cut(self) -> bool:
        """The older name of `truncated`."""
        return self.truncated


class InvalidLogitsError(ValueError):
    """The logits of a model are NaN, or all −∞, in one row of a search."""

    def __init__(self, message: str, sequence: int) -> None:
        super().__init__(message)
        self.sequence = sequence


@dataclass(frozen=True)
class Sources:
    """Sources that a search encodes when a slot becomes free, in place of a memory of all of them."""

    rows: int
    """The number of sources, one for each prompt."""
    encode: Callable[[list[int]], Memory]
    """Returns the memory of the sources with these indices, counted from 0."""


SourceInput = Memory | Sources | None
"""The sources of a search; None for a language model."""


def select_memory(sources: SourceInput, rows: Sequence[int]) -> Memory | None:
    """The memory of the sources with these indices."""
    if isinstance(sources, Sources):
        return sources.encode(list(rows))
    if sources is None or list(rows) == list(range(sources.rows)):
        return sources
    return sources.pick(list(rows))


@dataclass(frozen=True)
class SearchRequest:
    """The checked arguments that all searches share."""

    prompts: list[list[int]]
    """The tokens that the model reads first; no prompt is empty."""
    ends: list[int]
    max_lengths: list[int]
    """The maximum number of generated tokens for each prompt, not counting the end token."""
    constraints: tuple[Constraint, ...]
    device: torch.device
    token_budget: int | None = None
    """The maximum number of tokens that all hypotheses of a batch may have together; None for no maximum."""
    num_samples: int = 1
    """How often each prompt is continued. Sample j of prompt b is sequence b · num_samples + j."""

    @staticmethod
    def of(model: GenerativeModel, sources: SourceInput, prompts: Prompts, end: int | Iterable[int],
           max_length: LengthLimit, min_length: int, constraints: Sequence[Constraint], token_budget: int | None = None,
           num_samples: int = 1) -> "SearchRequest":
        """Check the arguments of a search; a ValueError names the wrong one."""
        if model.training:
            remedy = "Call model.eval() first: dropout would make the result random."
            raise checks.wrong("model", "in evaluation mode", "in training mode", remedy)
        rows = _prompt_rows(prompts)
        if sources is not None and sources.rows != len(rows):
            remedy = "Repeat rows of the memory with memory.pick(...)."
            raise checks.wrong("prompts", f"as many as the memory has rows, {sources.rows}", len(rows), remedy)
        ends = sorted(check_ids("end", [end] if isinstance(end, int) else end))
        max_lengths = _max_lengths(max_length, len(rows))
        if whole_number("min_length", min_length) > min(max_lengths, default=min_length):
            raise checks.wrong("min_length", f"at most the maximum length, {min(max_lengths)}", min_length)
        first = (MinLength(min_length, ends),) if min_length else ()
        if token_budget is not None:
            whole_number("token_budget", token_budget, 1)
        return SearchRequest(rows, ends, max_lengths, (*first, *constraints), _device_of(model, sources), token_budget,
                             whole_number("num_samples", num_samples, 1))

    @property
    def capacity(self) -> int:
        """The maximum number of tokens of a row: the longest prompt and the largest maximum length."""
        return max(map(len, self.prompts)) + max(self.max_lengths)

    @property
    def sequences(self) -> range:
        """The numbers of all sequences to generate."""
        return range(len(self.prompts) * self.num_samples)

    def prompt_of(self, sequence: int) -> int:
        """The index of the prompt that a sequence continues."""
        return sequence // self.num_samples

    @cached_property
    def max_lengths_on_device(self) -> Tensor:
        """(prompts,): the maximum lengths as a tensor."""
        return torch.tensor(self.max_lengths, dtype=torch.long).to(self.device, non_blocking=True)

    def max_length_of(self, sequence: int) -> int:
        """The maximum number of tokens of a sequence, not counting the end token."""
        return self.max_lengths[self.prompt_of(sequence)]

    def prefixes(self, ids: Tensor, sequences: Sequence[int], lengths: Sequence[int], width: int = 1) -> Prefixes:
        """The tokens generated so far, ids (R, t), as constraints read them.

        Each sequence has `width` hypotheses, all with the same length.
        """
        # A blocking copy would keep the device idle at every step.
        known = torch.tensor([*sequences, *lengths], dtype=torch.long).to(ids.device, non_blocking=True)
        sequences_R, lengths_R = known.view(2, -1).repeat_interleave(width, dim=1)
        rows_R = sequences_R.div(self.num_samples, rounding_mode="floor")
        return Prefixes(ids, rows_R, lengths_R, sequences_R.remainder(self.num_samples))

    def is_end(self, tokens: Tensor, vocabulary: int) -> Tensor:
        """A bool for each token: whether it is an end token of the model with this vocabulary size."""
        check_vocabulary("end", self.ends, vocabulary)
        found = torch.zeros_like(tokens, dtype=torch.bool)
        for end in self.ends:  # Python numbers need no copy to the device
            found = found | (tokens == end)
        return found

    def log_probabilities(self, logits: Tensor, prefixes: Prefixes) -> Tensor:
        """The log-probabilities of logits (R, V) in float32 or float64, with the constraints applied."""
        logs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        for constraint in self.constraints:
            logs = constraint(logs, prefixes)
        return logs

    def invalid_logits(self, sequence: int, length: int) -> InvalidLogitsError:
        """The error for a model whose logits are NaN, or all −∞; the caller raises it."""
        return InvalidLogitsError(
            f"The logits of the model are NaN, or −∞ for every token, in row {self.prompt_of(sequence)} "
            f"after {checks.plural(length, 'token')}. Check its parameters, or use a wider dtype.", sequence)


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


def _max_lengths(max_length: LengthLimit, rows: int) -> list[int]:
    if isinstance(max_length, Tensor):
        max_length = max_length.tolist()
    if not isinstance(max_length, Sequence):
        return [whole_number("max_length", max_length)] * rows
    if len(max_length) != rows:
        expected = f"one number, or one for each row, {rows} in all"
        raise checks.wrong("max_length", expected, checks.plural(len(max_length), "number"))
    return [whole_number("max_length", value) for value in max_length]


def _device_of(model: GenerativeModel, sources: SourceInput) -> torch.device:
    """The device of the memory, or of the model's parameters."""
    if isinstance(sources, Memory):
        return sources.states.device
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    return next((parameter.device for parameter in parameters), torch.device("cpu"))
