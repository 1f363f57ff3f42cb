"""BLEU and chrF of translations, by sacrebleu, each with the signature that says how it was computed.

    corpus_scores(hypotheses, references)           Scores(bleu=41.67, chrf=65.20, and the signature of each)
    by_length(sources, hypotheses, references)      the same for short sources, longer ones, and so on

There must be as many hypotheses as references: sacrebleu leaves out what is too many without a word, and gives 100 for
two hypotheses against one reference that the first of them equals. It knows texts alone, and no models.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard import checks

TOKENIZERS = ("13a", "intl", "zh", "char", "none")
"""How sacrebleu may cut texts into words for BLEU; its others need further packages, or a network."""
EDGES = (10, 20, 30, 40, 50)
"""Words of a source: up to the first, above that up to the second, and so on, and above the last."""


class Score(NamedTuple):
    """A score from 0 to 100, and how it was computed."""

    value: float
    signature: str


class Scores(NamedTuple):
    """Both scores, from 0 to 100, and how they were computed."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


class Bucket(NamedTuple):
    """The scores of translations whose sources have from `least` to `most` words."""

    least: int
    most: int | None
    """None where there is no end."""
    pairs: int
    bleu: float
    chrf: float


def corpus_scores(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False,
                  tokenize: str = "13a") -> Scores:
    """BLEU and chrF of hypotheses, each with one reference; the arguments are those of `bleu`."""
    words = bleu(hypotheses, references, lowercase=lowercase, tokenize=tokenize)
    characters = chrf(hypotheses, references, lowercase=lowercase)
    return Scores(words.value, characters.value, words.signature, characters.signature)


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False,
         tokenize: str = "13a") -> Score:
    """BLEU of hypotheses, each with one reference (Papineni et al. 2002; Post 2018).

    Args:
        lowercase: upper and lower case count as the same.
        tokenize: how texts are cut into words, one of TOKENIZERS; "none" for texts that are cut already.
    """
    checks.pick("tokenize", tokenize, dict.fromkeys(TOKENIZERS))
    check_counts(hypotheses=hypotheses, references=references)
    # Forced: otherwise a hundred lines that end with " ." are remarked upon through a logger.
    return _score(BLEU(lowercase=lowercase, tokenize=tokenize, force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """chrF of hypotheses, each with one reference (Popović 2015)."""
    check_counts(hypotheses=hypotheses, references=references)
    return _score(CHRF(lowercase=lowercase), hypotheses, references)


def by_length(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False,
              tokenize: str = "13a", edges: Sequence[int] = EDGES) -> list[Bucket]:
    """The scores by the length of the source, in words between spaces; lengths that no source has are left out."""
    check_counts(sources=sources, hypotheses=hypotheses, references=references)
    lengths, found = [len(source.split()) for source in sources], []
    for least, most in zip((0, *(edge + 1 for edge in edges)), (*edges, None), strict=True):
        here = [number for number, length in enumerate(lengths)
                if least <= length and (most is None or length <= most)]
        if here:
            some, wanted = ([texts[number] for number in here] for texts in (hypotheses, references))
            scores = corpus_scores(some, wanted, lowercase=lowercase, tokenize=tokenize)
            found.append(Bucket(least, most, len(here), scores.bleu, scores.chrf))
    return found


def check_counts(**texts: Sequence[str]) -> None:
    """Refuse lists of different lengths, and empty ones; the first is named, and what the others must equal."""
    (first, given), *others = texts.items()
    for name, other in texts.items():
        if isinstance(other, str):
            raise checks.wrong(name, "a list of texts", "one text", "Put it into a list.")
    for name, other in others:
        if len(given) != len(other):
            raise checks.wrong(first, f"as many as the {len(other)} {name}", f"{len(given)} of them")
    if not given:
        raise checks.wrong(first, "at least one text", "none")


def _score(metric: "BLEU | CHRF", hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    value = metric.corpus_score([*hypotheses], [[*references]]).score
    return Score(float(value), str(metric.get_signature()))
