"""The words of what a model wrote, and how sure it was of each.

The log-probability of a word is the sum of those of its tokens: that of the word, given all before it. The end is no
word. Of a word that a prompt began, what the model wrote of it counts. It knows tokens and words; it does not know
models, nor which search found them.
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


def scored_words(tokenizer: Tokenizer, ids: Sequence[int], log_probabilities: Sequence[float],
                 prompt: Sequence[int] = ()) -> tuple[ScoredWord, ...]:
    """The words of what ids add to the text of a prompt. There may be a log-probability more than ids, the end's."""
    before, whole = tokenizer.decode(prompt), [*prompt, *ids]
    text = tokenizer.decode(whole)
    if not text.startswith(before):  # some join what stands side by side: then the ids are a text of their own
        return scored_words(tokenizer, ids, log_probabilities)
    found = []
    for word in tokenizer.decoded_words(whole):
        first, start = max(word.first_token - len(prompt), 0), max(word.start, len(before))
        last = word.last_token - len(prompt)
        if last >= 0 and start < word.end:
            found.append(ScoredWord(text[start:word.end], start - len(before), word.end - len(before),
                                    float(sum(log_probabilities[first:last + 1]))))
    return tuple(found)
