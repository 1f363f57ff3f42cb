"""What everything that translates offers, whatever computes: `translate`, `sample` and `mbr`, of one text or several.

    translate    beam search: the most probable translations
    sample       translations drawn by chance
    mbr          of several translations the one that is most like the others

All three are a search with some arguments; who computes gives `searched`, and says there what it cannot do. It knows
neither models nor tokenizers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from regard import checks
from regard.decoding.coverage import Coverage
from regard.decoding.ranking import Ranking
from regard.decoding.risk import mbr
from regard.tasks.glossary.terms import Glossary
from regard.tasks.results import Translation, best
from regard.tasks.searches import Beam, Sampling, Search
from regard.tasks.texts import as_texts, one_or_several

TRIES = 32
"""From so many samples the one is chosen that is most like the others, where nothing else is asked for."""
Terms = Glossary | Mapping[str, str | Sequence[str]]
"""A glossary, or the table of one."""


class Translates(ABC):
    """What translates."""

    @abstractmethod
    def searched(self, texts: Sequence[str], search: Search, *, prefix: str | Sequence[str] = "",
                 glossary: Terms | None = None) -> list[Translation]:
        """What a search finds for each text, in their order; `Beam` and `Sampling` are searches.

        Args:
            prefix: how the translations begin: one for all, or one for each text. It counts as what was written.
            glossary: terms that must appear; for beam search.
        """

    @abstractmethod
    def check(self, search: Search, *, prefix: str | Sequence[str] = "", glossary: Terms | None = None) -> None:
        """Refuse what can never be done here, before any text is read."""

    def candidates(self, texts: Sequence[str], search: Search, *, prefix: str | Sequence[str] = "",
                   glossary: Terms | None = None) -> list[Translation]:
        """As `searched`, where something is still to be chosen from what was found."""
        return self.searched(texts, search, prefix=prefix, glossary=glossary)

    def tell_of(self, texts: Sequence[str], results: Sequence[Translation]) -> None:
        """Tell whoever watches what the translations are; most that translates cannot be watched."""

    def check_mbr(self, among: Search) -> None:
        """Refuse what `mbr` cannot choose from here."""

    @one_or_several
    def translate(self, texts: Sequence[str], *, beams: int = 5, nbest: int = 1,
                  length_penalty: str | float | Ranking = "mean", coverage: float | Coverage | None = None,
                  groups: int = 1, diversity: float = 0.5, limit: int | None = None, least: int = 0,
                  no_repeat: int | None = None, prefix: str | Sequence[str] = "",
                  glossary: Terms | None = None) -> list[Translation]:
        """The translation of a text, or of each of several in their order.

        Args:
            beams: how many beginnings of a translation are followed side by side. One, without a length penalty, is
                greedy search, the fastest.
            nbest: how many translations of a text are given, at most `beams`; the best has the others as alternatives.
            length_penalty: "none", "mean", or the α of Wu et al. 2016; see `regard.decoding.ranking`.
            coverage: how much a translation loses that leaves part of its source unseen, the β of Wu et al. 2016; see
                `regard.decoding.coverage`.
            groups: into how many groups the beams are parted that are to differ.
            diversity: what a token costs that a group before has taken, in log-probability.
            limit: how many tokens a translation may have; without it that follows from its source.
            least: how many tokens it has at least.
            no_repeat: no sequence of so many tokens is written twice.
            prefix: a text that the translation begins with: one for all, or one for each text.
            glossary: terms of the source, and what they become in the translation; see `regard.tasks.glossary.terms`.
        """
        search = Beam(beams=beams, nbest=nbest, length_penalty=length_penalty, coverage=coverage, groups=groups,
                      diversity=diversity, limit=limit, least=least, no_repeat=no_repeat)
        return self.searched(texts, search, prefix=prefix, glossary=glossary)

    @one_or_several
    def sample(self, texts: Sequence[str], *, tries: int = 1, temperature: float = 1.0, top_k: int | None = None,
               top_p: float | None = None, min_p: float | None = None, seed: int = 0, limit: int | None = None,
               least: int = 0, no_repeat: int | None = None, prefix: str | Sequence[str] = "") -> list[Translation]:
        """A translation of each text that is drawn by chance; the first of several has the others as alternatives.

        What is drawn for a text follows from the seed and the text, and not from what is given beside it.

        Args:
            tries: how many are drawn of each text. The first ones do not depend on how many there are.
            temperature, top_k, top_p, min_p: see `regard.decoding.filters`.
            limit, least, no_repeat, prefix: as for `translate`.
        """
        search = Sampling(tries=tries, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
                          limit=limit, least=least, no_repeat=no_repeat)
        return self.searched(texts, search, prefix=prefix)

    @one_or_several
    def mbr(self, texts: Sequence[str], among: Search | None = None, *, prefix: str | Sequence[str] = "",
            glossary: Terms | None = None) -> list[Translation]:
        """Of several translations of a text the one that is most like all of them: minimum Bayes risk.

        The score is its expected chrF, from 0 to 100: the mean of its chrF against all that were found, each of which
        counts as often as it was drawn; of an n-best list, as much as the model finds it probable. The alternatives
        are the others, the best first, and no text twice.

        Args:
            among: what is chosen from: `Sampling(tries=...)`, 32 samples where nothing is said, or
                `Beam(beams=..., nbest=...)`.
            prefix, glossary: as for `translate`.
        """
        search = Sampling(tries=TRIES) if among is None else among
        if not isinstance(search, Search):
            raise checks.wrong("among", "a Sampling, or a Beam", *checks.kind(search))
        self.check_mbr(search)
        found = self.candidates(texts, search, prefix=prefix, glossary=glossary)
        chosen = [_chosen((one, *one.alternatives), search) for one in found]
        self.tell_of(texts, chosen)
        return chosen


def for_each(prefix: str | Sequence[str], texts: Sequence[str]) -> list[str]:
    """The prefixes of texts: one for all, or one for each."""
    if isinstance(prefix, str):
        return [prefix] * len(texts)
    given = as_texts("prefix", prefix)
    if len(given) != len(texts):
        raise checks.wrong("prefix", f"one text, or one for each of the {len(texts):,}", f"{len(given):,} of them")
    return given


def _chosen(found: tuple[Translation, ...], search: Search) -> Translation:
    """All that was found, that of the highest expected chrF first, with this as their scores."""
    judged = mbr([one.text for one in found], weights=None if isinstance(search, Sampling) else _shares(found))
    ranked = dict[str, Translation]()
    for number, utility in judged:
        ranked.setdefault(found[number].text, replace(found[number], score=utility, alternatives=()))
    return best([*ranked.values()])


def _shares(found: tuple[Translation, ...]) -> list[float]:
    """How probable each is, where the most probable one is 1."""
    totals = [sum(one.log_probabilities) for one in found]
    return [math.exp(total - max(totals)) for total in totals]
