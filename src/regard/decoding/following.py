"""What does not follow directly on some sequences of tokens.

    Unfollowed([[[5, 6], [7]]], [8])    in this row no 8 comes directly behind 5 6, nor behind 7

It is a rule as `regard.decoding.rules` says: it forbids, raises nothing and remembers nothing. It knows neither models
nor what the tokens mean.

Legend: B rows, R hypotheses, t tokens written so far, n of a sequence, A sequences of a row, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard import checks
from regard.decoding.rules import Forbidden, Written, as_ids

ANY, NOTHING, NONE = -1, -2, -3
"""In the place of a token: whatever it is, that there is none, and what never is."""


class Unfollowed:
    """In each row some tokens, the same for all, do not follow directly on some sequences of its own."""

    def __init__(self, rows: Sequence[Sequence[Sequence[int]]], ids: Sequence[int]) -> None:
        for sequences in rows:
            for sequence in sequences:
                if not as_ids("rows", sequence):
                    raise checks.wrong("rows", "sequences of at least one id", "an empty one")
        most = max((len(sequences) for sequences in rows), default=0)
        longest = max((len(sequence) for sequences in rows for sequence in sequences), default=0)
        filled = [[[*[ANY] * (longest - len(sequence)), *sequence] for sequence in sequences] for sequences in rows]
        none = [NONE] * longest  # which equals nothing, not even what is not there
        self.ids_BAn = torch.tensor([[*row, *[none] * (most - len(row))] for row in filled],
                                    dtype=torch.long).view(len(rows), most, longest)
        self.forbidden = Forbidden(ids)

    def __call__(self, log_probabilities: Tensor, written: Written) -> Tensor:
        """−∞ for these tokens in every row that ends with one of its sequences."""
        device, count = written.ids.device, self.ids_BAn.shape[-1]
        if not self.ids_BAn.numel():
            return log_probabilities
        wanted_RAn = self.ids_BAn.to(device, non_blocking=True)[written.rows]
        whole_Rt = torch.cat([written.ids.new_full((len(written.ids), count), NOTHING), written.ids], dim=-1)
        last_Rn = whole_Rt.gather(-1, written.lengths.unsqueeze(-1) + torch.arange(count, device=device))
        same_RAn = (wanted_RAn == last_Rn.unsqueeze(1)) | (wanted_RAn == ANY)
        ends_R = same_RAn.all(-1).any(-1)
        return torch.where(ends_R.unsqueeze(-1), self.forbidden(log_probabilities.clone(), written), log_probabilities)
