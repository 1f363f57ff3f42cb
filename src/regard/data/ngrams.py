"""New sentences that resemble given ones: samples of an n-gram model of their words.

    model = NgramModel(texts)
    model.sample(random.Random(1))                  "A man in a blue shirt is climbing a ladder."
    sample_new_texts(texts, 300_000, seed=1)        distinct ones, none of which is among the texts

A word is drawn after the n - 1 words before it, in proportion to how often it follows them in the texts. With Witten
and Bell's probability T / (c + T), where c is the number of occurrences of these words and T that of the different
words that follow them, it is drawn after one word less instead; so new sequences of words arise, most of all where the
texts vary. Texts with few spaces, as in Chinese, are modelled by characters.

Such sentences are plausible for a few words at a time and need not mean anything. That suffices as input of a teacher,
whose translations a student learns.
"""

import random
from collections.abc import Iterable, Iterator

ORDER, CHARACTER_ORDER = 4, 6
"""The n of n-grams of words, and of characters."""
MIN_WORDS = 3
"""Texts with fewer words on average are modelled by characters."""
MAX_TEXTS = 50_000
"""Texts that a model is made of, at most: their n-grams are held in memory."""
MAX_FAILURES = 1000
"""After this many samples in a row that are not new, there is little left to sample."""
END = ""
"""Follows the last word."""
Context = tuple[str, ...]


class NgramModel:
    """The words that follow each sequence of up to `order` - 1 words in some texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        given = list(texts)
        spaced = sum(len(text.split()) for text in given) >= MIN_WORDS * len(given)
        self.separator, self.order = (" ", ORDER) if spaced else ("", CHARACTER_ORDER)
        self.longest = 0
        """Words of the longest text."""
        self.following: list[dict[Context, list[str]]] = [{} for _ in range(self.order)]
        """By the length of the context: every word that follows it, as often as it does."""
        for text in given:
            words = self._start() + (text.split() if spaced else list(text)) + [END]
            self.longest = max(self.longest, len(words) - self.order)
            for place in range(self.order - 1, len(words)):
                for length, table in enumerate(self.following):
                    table.setdefault(tuple(words[place - length:place]), []).append(words[place])
        self.distinct = [{context: len(set(words)) for context, words in table.items()} for table in self.following]

    def _start(self) -> list[str]:
        """The context of the first word."""
        return [END] * (self.order - 1)

    def sample(self, rng: random.Random) -> str | None:
        """One sentence; None if it became longer than the longest text."""
        words = self._start()
        while len(words) - self.order < self.longest:
            word = self._next(words, rng)
            if word == END:
                return self.separator.join(words[self.order - 1:])
            words.append(word)
        return None

    def _next(self, words: list[str], rng: random.Random) -> str:
        for length in range(self.order - 1, 0, -1):
            context = tuple(words[-length:])
            found = self.following[length].get(context)
            if found is not None and rng.random() * (len(found) + self.distinct[length][context]) < len(found):
                return rng.choice(found)
        return rng.choice(self.following[0][()])


def sample_new_texts(texts: Iterable[str], count: int, seed: int) -> Iterator[str]:
    """Up to `count` distinct samples that are not among the texts; fewer if they hardly vary.

    The model is made of MAX_TEXTS of the texts at most, which are drawn at random.
    """
    rng, known = random.Random(seed), set[int]()
    kept = list[str]()
    for number, text in enumerate(texts):
        known.add(hash(text))
        if number < MAX_TEXTS:
            kept.append(text)
        elif (place := rng.randrange(number + 1)) < MAX_TEXTS:
            kept[place] = text
    if not kept:
        return
    model, failures = NgramModel(kept), 0
    while count and failures < MAX_FAILURES:
        new = model.sample(rng)
        if not new or hash(new) in known:
            failures += 1
            continue
        known.add(hash(new))
        count, failures = count - 1, 0
        yield new
