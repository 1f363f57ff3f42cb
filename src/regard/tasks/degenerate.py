"""Whether the output of a translator is degenerate: empty, copied, nearly always the same, or one n-gram repeated.

    for found in find_degenerate(sources, hypotheses, references):
        print(found.sentence)         92% of the translations are copies of their source; of the references, 1% are.

A BLEU score does not tell such a model from a weak one. Four shares are computed, of the translations and, in the same
way, of the references:

    empty      texts without a visible character
    copies     texts that equal their source, ignoring case, white space and Unicode normal form
    constant   1 - distinct texts / distinct sources: how many sources share the text of another one; without those
               whose translation is empty
    repeated   texts of which at least half is one n-gram of 1 to 4 words, at least 4 times in a row; a text without
               spaces counts in characters

Data may rightly be like that: names and numbers are copied, labels repeat. So a share is compared with that of the
references. It is degenerate if it is beyond theirs by at least the fraction `MIN_EXCESS` of what is left up to 100 %,
and by at least `MIN_TEXTS` texts. Without references, theirs is taken to be 0. This module does not import torch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from regard.data.filters import fold_text, is_blank

MIN_EXCESS: Mapping[str, float] = {"empty": 0.2, "copies": 0.2, "constant": 0.8, "repeated": 0.2}
"""From which excess over the references a share is degenerate, as a fraction of 1 - the share of the references."""
MIN_TEXTS = 5
"""How many texts more than among the references there must be: a few prove nothing."""
MAX_REPEATED_WORDS, MIN_REPETITIONS = 4, 4


class DegenerateOutput(NamedTuple):
    """One way in which translations are degenerate."""

    kind: str
    """"empty", "copies", "constant" or "repeated"."""
    share: float
    """The fraction of the translations, from 0 to 1."""
    reference_share: float
    """The fraction of the references; 0 without references."""
    sentence: str
    """The shares in words."""


def find_degenerate(sources: Sequence[str], hypotheses: Sequence[str],
                    references: Sequence[str] | None = None) -> tuple[DegenerateOutput, ...]:
    """In which ways the hypotheses are degenerate; empty if they are not."""
    tests: dict[str, tuple[Callable[[str, str], bool], str, str]] = {
        "empty": (lambda source, text: is_blank(text), "are empty", "are"),
        "copies": (_is_copy, "are copies of their source", "are"),
        "repeated": (lambda source, text: is_repeated(text), "mostly repeat one n-gram", "do"),
    }
    found = []
    for kind, (test, what, verb) in tests.items():
        made = sum(map(test, sources, hypotheses))
        wanted = 0 if references is None else sum(map(test, sources, references))
        if _is_degenerate(kind, made, wanted, len(sources)):
            share, expected = made / len(sources), wanted / len(sources)
            comparison = "" if references is None else f"; of the references, {expected:.0%} {verb}"
            found.append(DegenerateOutput(kind, share, expected,
                                          f"{share:.0%} of the translations {what}{comparison}."))
    return (*found, *_find_constant(sources, hypotheses, references))


def _find_constant(sources: Sequence[str], hypotheses: Sequence[str],
                   references: Sequence[str] | None) -> tuple[DegenerateOutput, ...]:
    chosen = {source: number for number, source in enumerate(sources) if not is_blank(hypotheses[number])}
    made = len({hypotheses[number] for number in chosen.values()})
    wanted = len(chosen if references is None else {references[number] for number in chosen.values()})
    if not _is_degenerate("constant", len(chosen) - made, len(chosen) - wanted, len(chosen)):
        return ()
    only = f"have only {made:,} different translations" if made > 1 else "all have the same translation"
    comparison = "" if references is None else f"; the references are {wanted:,} different texts"
    return (DegenerateOutput("constant", 1 - made / len(chosen), 1 - wanted / len(chosen),
                             f"The {len(chosen):,} different sources {only}{comparison}."),)


def _is_degenerate(kind: str, made: int, wanted: int, total: int) -> bool:
    """Whether `made` of `total` translations show a sign too often, if `wanted` of the references show it."""
    return made - wanted >= max(MIN_TEXTS, MIN_EXCESS[kind] * (total - wanted))


def _is_copy(source: str, text: str) -> bool:
    return fold_text(source) == fold_text(text) and not is_blank(text)


def is_repeated(text: str) -> bool:
    """Whether at least half of a text is one short n-gram that is repeated."""
    words: Sequence[str] = text.split()
    if len(words) == 1:  # as in languages that write no spaces
        words = words[0]
    for length in range(1, MAX_REPEATED_WORDS + 1):
        run = 0  # of words that equal the word one n-gram before them
        for word, before in zip(words[length:], words, strict=False):
            run = run + 1 if word == before else 0
            if run >= (MIN_REPETITIONS - 1) * length and 2 * (run + length) >= len(words):
                return True
    return False
