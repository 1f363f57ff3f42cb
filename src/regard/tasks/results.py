"""What a model wrote: a text with its score, its tokens, its words, and where the model looked.

    translation.text, .score, .words, .alignment, .alternatives

Words and alignment are found when they are asked for: words from the tokens, an alignment by the model, which reads
what it wrote once more. Nothing here knows how a text was found.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeVar

from regard import checks
from regard.data.tokenizer.contract import Tokenizer
from regard.tasks.alignment.words import Alignment
from regard.tasks.word_scores import ScoredWord, scored_words

Found = TypeVar("Found", bound="Result")


@dataclass(frozen=True)
class Result:
    """A text that a model wrote."""

    text: str
    score: float
    """By which the search ranked it; what that is, the search says. Of a sample the sum of its log-probabilities."""
    ids: tuple[int, ...]
    cut: bool
    """The model had not come to an end when the limit was reached."""
    alternatives: tuple[Self, ...] = ()
    """What the search found besides, the best first; of samples the others, in the order in which they were drawn."""
    log_probabilities: tuple[float, ...] = ()
    """Of each id given all before it, and of the end last, where it came."""
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)
    """What the ids are of."""

    @property
    def before(self) -> tuple[int, ...]:
        """The ids of a prompt that the text goes on from."""
        return ()

    @cached_property
    def words(self) -> tuple[ScoredWord, ...]:
        """The words, where each stands in the text, and its log-probability."""
        if not self.ids:
            return ()
        if self.tokenizer is None or len(self.log_probabilities) < len(self.ids):
            raise checks.wrong("log_probabilities", "those of all ids, for words with scores", "missing",
                               "Not everything that translates tells them: `Translator` does.")
        return scored_words(self.tokenizer, self.ids, self.log_probabilities, self.before)


@dataclass(frozen=True)
class Translation(Result):
    """The translation of a text; of a blank one it is empty, and no model was asked."""

    look: "Callable[[Translation], Alignment] | None" = field(default=None, repr=False, compare=False)
    """How the model finds out where it looked; it is left behind where a translation is copied or stored."""

    @cached_property
    def alignment(self) -> Alignment:
        """Which words of the source the model looks at for each word: it reads the very tokens that it wrote again.

        The same as `Translator.align` gives: where the model was changed since, it is that of the model as it is now.
        """
        if self.look is None:
            raise checks.wrong("alignment", "asked of a translation as `Translator` gave it", "of another",
                               "Ask `translator.align(texts, translations)`.")
        return self.look(self)

    def __getstate__(self) -> dict[str, Any]:
        """All but the model."""
        return {**self.__dict__, "look": None}


@dataclass(frozen=True)
class Completion(Result):
    """What follows a prompt: `prompt + text` is the whole."""

    prompt: str = ""
    """As the tokenizer sees it."""
    prompt_ids: tuple[int, ...] = field(default=(), repr=False)

    @property
    def before(self) -> tuple[int, ...]:
        """The ids of the prompt."""
        return self.prompt_ids


def best(found: list[Found]) -> Found:
    """The first, with the others beside it."""
    first, *others = found
    return replace(first, alternatives=tuple(others))
