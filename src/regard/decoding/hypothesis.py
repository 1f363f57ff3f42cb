"""What a search gives: the tokens that were written, how probable each was, and whether the model came to an end.

It knows neither models nor searches, nor what the ids mean.
"""

from dataclasses import dataclass, field

from torch import Tensor


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
