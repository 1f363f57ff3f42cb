"""A search that follows one hypothesis per row, token by token; the caller says how a token is chosen.

Legend: B slots of the batch, t tokens of the longest, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.decoding.constraints import Prefixes
from regard.decoding.request import Hypothesis, SearchRequest, SourceInput, invalid_logits
from regard.decoding.scheduler import SearchStep, run_search
from regard.models.contract import GenerativeModel

TokenChoice = Callable[[Tensor, Prefixes], Tensor]
"""Log-probabilities (B, V) and what is written so far -> the next token of each row, (B,)."""

RUNNING, FINISHED, TRUNCATED, INVALID = range(4)


@dataclass(frozen=True)
class TokenBatch:
    """What the rows of the batch have written, those that have finished with them."""

    ids: Tensor
    """(B, t), the end token with them; what stands behind the count of a row means nothing."""
    logs: Tensor
    """(B, t)"""
    numbers: list[int]
    counts: list[int]
    """How many tokens each row has, the end token with them."""
    verdicts: list[int]
    tokens: Tensor
    """(B,): what each row reads next; of one that has finished, anything."""

    def extended(self, tokens: Tensor, logs: Tensor, lengths: Tensor, verdicts: list[int]) -> "TokenBatch":
        """One more token in every row that had not finished, but where it was cut; `lengths` are the counts (B,)."""
        width, places_B1 = max(self.counts) + 1, lengths.unsqueeze(-1)
        ids, probabilities = (pad(old.to(new.dtype), (0, width - old.shape[1])).scatter(1, places_B1, new.unsqueeze(-1))
                              for old, new in ((self.ids, tokens), (self.logs, logs)))
        now = [old if old != RUNNING else new for old, new in zip(self.verdicts, verdicts, strict=True)]
        counts = [count + (old == RUNNING and new != TRUNCATED)
                  for count, old, new in zip(self.counts, self.verdicts, now, strict=True)]
        return TokenBatch(ids, probabilities, self.numbers, counts, now, tokens)

    def pick(self, places: Sequence[int]) -> "TokenBatch":
        """These rows of the batch."""
        index = torch.tensor(places, dtype=torch.long, device=self.ids.device)
        numbers, counts, verdicts = ([part[place] for place in places]
                                     for part in (self.numbers, self.counts, self.verdicts))
        width = max(counts, default=0)
        ids, logs = self.ids[index, :width], self.logs[index, :width]
        return TokenBatch(ids, logs, numbers, counts, verdicts, self.tokens[index])

    def joined(self, other: "TokenBatch") -> "TokenBatch":
        """These rows, and others behind them."""
        width = max(self.ids.shape[1], other.ids.shape[1])
        ids, logs = (torch.cat([pad(part, (0, width - part.shape[1])) for part in parts])
                     for parts in ((self.ids, other.ids), (self.logs, other.logs)))
        return TokenBatch(ids, logs, self.numbers + other.numbers, self.counts + other.counts,
                     self.verdicts + other.verdicts, torch.cat([self.tokens, other.tokens]))


@dataclass(frozen=True)
class TokenSearch:
    """A search that follows one hypothesis a row."""

    request: SearchRequest
    choose: TokenChoice
    width: int = 1
    watches: bool = False

    def first(self, numbers: Sequence[int], present: Tensor | None) -> TokenBatch:
        """Rows in which nothing is written."""
        rows, device = len(numbers), self.request.device
        ids = torch.zeros(rows, 0, dtype=torch.long, device=device)
        return TokenBatch(ids, torch.zeros(rows, 0, device=device), [*numbers], [0] * rows, [RUNNING] * rows,
                     ids.new_zeros(rows))

    def turn(self, batch: TokenBatch, logits: Tensor, cross: Tensor | None) -> SearchStep[TokenBatch]:
        """One more token for every row."""
        written = self.request.written(batch.ids, batch.numbers, batch.counts)
        logs_BV = self.request.log_probabilities(logits, written)
        token_B = self.choose(logs_BV, written)
        log_B = logs_BV.gather(-1, token_B.unsqueeze(-1)).squeeze(-1)
        asked = token_status(log_B, self.request.is_end(token_B, logits.shape[-1])).tolist()
        verdicts = [TRUNCATED if verdict == RUNNING and count >= self.request.limit(number) else verdict
                    for verdict, number, count in zip(asked, batch.numbers, batch.counts, strict=True)]
        finished = [place for place, verdict in enumerate(verdicts)
                    if verdict != RUNNING and batch.verdicts[place] == RUNNING]
        for place in finished:
            if verdicts[place] == INVALID:
                raise invalid_logits(self.request.prompt(batch.numbers[place]), batch.counts[place])
        return SearchStep(batch.extended(token_B, log_B, written.lengths, verdicts), None, finished)

    def results(self, batch: TokenBatch) -> list[tuple[int, Hypothesis]]:
        """What the rows have written; the score is the sum of the log-probabilities."""
        found = []
        parts = (batch.numbers, batch.ids.tolist(), batch.logs.tolist(), batch.counts, batch.verdicts)
        for number, ids, logs, count, verdict in zip(*parts, strict=True):
            ended, logs = verdict == FINISHED, logs[:count]
            end = ids[count - 1] if ended else None
            found.append((number, Hypothesis(ids[:count - ended], logs, sum(logs, 0.0), end)))
        return found


def most_probable(log_probabilities: Tensor, written: Prefixes) -> Tensor:
    """The most probable token of each row; of several the one with the lowest id."""
    return log_probabilities.argmax(dim=-1)


def run_token_search(model: GenerativeModel, given: SourceInput, request: SearchRequest, choose: TokenChoice) -> list[Hypothesis]:
    """One hypothesis for each number of the request."""
    return run_search(model, given, request, TokenSearch(request, choose))


def token_status(log_B: Tensor, ended_B: Tensor) -> Tensor:
    """What becomes of each row, whatever its limit: the later lines go before the earlier ones."""
    verdict_B = torch.where(ended_B, FINISHED, RUNNING)
    verdict_B = torch.where(log_B == -torch.inf, TRUNCATED, verdict_B)  # nothing may be written
    return torch.where(log_B.isnan(), INVALID, verdict_B)
