"""The words of what a model wrote, and how sure it was of each.

The log-probability of a word is the sum of those of its tokens: that of the word, given all before it. The end is no
word. It knows tokens and words; it does not know models, nor which search found them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from regard.data.tokenizer.contract import Tokenizer


class ScoredWord(NamedTuple):
    """The characters text[start:end] of what was written, and the log-probability of the word."""

    text: str
    start: int
    end: int
    score: float


def scored_words(tokenizer: Tokenizer, ids: Sequence[int],
                 log_probabilities: Sequence[float]) -> tuple[ScoredWord, ...]:
    """The words of decode(ids). There may be a log-probability more than ids, that of the end."""
    text = tokenizer.decode(ids)
    return tuple(ScoredWord(text[word.start:word.end], word.start, word.end,
                            float(sum(log_probabilities[word.first_token:word.last_token + 1])))
                 for word in tokenizer.decoded_words(ids))
