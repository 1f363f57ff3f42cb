"""Writing one hypothesis a row, token by token. How the next token is chosen is for the caller to say.

Rows that have finished stay in the batch, unread, until they are half of it: to take rows out copies what the state
remembers of the others. It knows the contract of the models, and nothing of how tokens are ranked or drawn.

Legend: B rows in the batch, t tokens written so far, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.reading import read
from regard.decoding.request import Request, no_number
from regard.decoding.rules import Written
from regard.models.contract import Memory, Writer

Choice = Callable[[Tensor, Written], Tensor]
"""Log-probabilities (B, V) and what is written so far -> the next token of each row, (B,)."""

GOES_ON, ENDED, CUT, BROKEN = range(4)


@dataclass(frozen=True)
class Lines:
    """What the rows of the batch have written, those that have finished with them."""

    ids: Tensor
    """(B, t), the end token with them; what stands behind it means nothing."""
    logs: Tensor
    """(B, t)"""
    rows: Tensor
    """(B,): which prompt each row of the batch continues."""

    def extend(self, token_B: Tensor, log_B: Tensor) -> "Lines":
        """One more token in every row."""
        ids, logs = (torch.cat([old, new.unsqueeze(-1)], dim=-1)
                     for old, new in ((self.ids, token_B), (self.logs, log_B)))
        return Lines(ids, logs, self.rows)

    def pick(self, index: Tensor) -> "Lines":
        """These rows of the batch."""
        return Lines(self.ids[index], self.logs[index], self.rows[index])


def write(model: Writer, memory: Memory | None, request: Request, choose: Choice) -> list[Hypothesis]:
    """One hypothesis for each prompt; its score is the sum of its log-probabilities."""
    if not request.prompts:
        return []
    logits_BV, state = read(model, memory, request)
    is_end_V = request.is_end(logits_BV.shape[-1])
    limit_B = torch.tensor(request.limits, device=request.device)
    count = len(request.prompts)
    rows_B = torch.arange(count, device=request.device)
    lines = Lines(rows_B.new_zeros(count, 0), torch.zeros(count, 0, device=request.device), rows_B)
    open_rows = dict(enumerate(range(count)))  # place in the batch: number of the prompt
    finished = dict[int, tuple[int, int]]()    # place in the batch: verdict, and the step of it
    results = dict[int, Hypothesis]()          # by the number of the prompt

    for t in range(max(request.limits) + 1):
        written = Written(lines.ids, lines.rows)
        logs_BV = request.log_probabilities(logits_BV, written)
        token_B = choose(logs_BV, written)
        log_B = logs_BV.gather(-1, token_B.unsqueeze(-1)).squeeze(-1)
        lines = lines.extend(token_B, log_B)
        verdicts = _verdict(log_B, is_end_V[token_B], limit_B[lines.rows] == t).tolist()
        for place in [place for place in open_rows if verdicts[place] != GOES_ON]:
            if verdicts[place] == BROKEN:
                raise no_number(open_rows[place], t)
            finished[place] = (verdicts[place], t)
            del open_rows[place]
        if not open_rows:
            break
        if 2 * len(open_rows) <= len(verdicts):
            results |= _hypotheses(lines, finished)
            stay = torch.tensor(list(open_rows), dtype=torch.long, device=request.device)
            lines, state, token_B = lines.pick(stay), state.pick(stay), token_B[stay]
            open_rows, finished = dict(enumerate(open_rows.values())), {}
        logits_BnV, state, _ = model.step(state, token_B.unsqueeze(-1))
        logits_BV = logits_BnV[:, -1]
    results |= _hypotheses(lines, finished)
    return [results[row] for row in range(count)]


def _verdict(log_B: Tensor, ended_B: Tensor, full_B: Tensor) -> Tensor:
    """What becomes of each row: the later lines go before the earlier ones."""
    verdict_B = torch.where(full_B, CUT, GOES_ON)
    verdict_B = torch.where(ended_B, ENDED, verdict_B)
    verdict_B = torch.where(log_B == -torch.inf, CUT, verdict_B)  # nothing may be written
    return torch.where(log_B.isnan(), BROKEN, verdict_B)


def _hypotheses(lines: Lines, finished: dict[int, tuple[int, int]]) -> dict[int, Hypothesis]:
    """What the finished rows have written, by the number of the prompt; `finished` has the step at which each was."""
    index = torch.tensor(list(finished), dtype=torch.long, device=lines.ids.device)
    picked, results = lines.pick(index), dict[int, Hypothesis]()
    parts = (picked.rows.tolist(), picked.ids.tolist(), picked.logs.tolist(), finished.values())
    for row, ids, logs, (verdict, t) in zip(*parts, strict=True):
        end = ids[t] if verdict == ENDED else None
        logs = logs[:t] if end is None else logs[:t + 1]
        results[row] = Hypothesis(ids[:t], logs, sum(logs, 0.0), end)
    return results
