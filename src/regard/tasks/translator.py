"""`Translator`: an encoder-decoder with its tokenizers, ready to translate; and `Translation`, its result.

    translate    beam search: the most probable translations
    sample       random translations
    mbr          minimum Bayes risk: of several translations the one most similar to the others
    align        which words of the source each word of a translation attends to

`TranslatorMixin` has the methods that every engine offers (torch here, CTranslate2 in
`regard.tasks.ctranslate2_engine`). Texts are translated in batches of similar length; the result for one text does not
depend on the others.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from regard import checks
from regard.data.filters import is_blank
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.decoding.constraints import Constraint, ForbiddenAfter, ForbiddenTokens, MinLength, WithPrefix
from regard.decoding.cuda_graph import encode, model_unchanged
from regard.decoding.forced import forced, with_cross
from regard.decoding.mbr import mbr
from regard.decoding.request import Hypothesis
from regard.decoding.scoring import CoveragePenalty, LengthPenalty
from regard.kernels.packed_linear import packed_linear_layers
from regard.tasks.alignment import (
    MAX_CHOICE_PAIRS,
    Alignment,
    AlignmentConfig,
    PairAttention,
    choose_alignment,
    word_alignment_weights,
)
from regard.tasks.glossary import Glossary, GlossarySearch, TermSpelling, TranslationInput, TranslationRow, as_glossary
from regard.tasks.replay import replay_translation
from regard.tasks.search import Beam, DecodingStrategy, GeneratedText, Sampling, SearchInputs, with_alternatives
from regard.tasks.task import (
    Ids,
    Task,
    as_texts,
    check_lengths,
    ids_without_token,
    length_batches,
    map_batches,
    max_positions,
    one_or_many,
    text_suffix,
)

# ---- results: What a model wrote: a text with its score, its tokens, its words, and where the model looked.
#
#     translation.text, .score, .words, .alignment, .alternatives
#
# Words and alignment are found when they are asked for: words from the tokens, an alignment by the model, which reads
# what it wrote once more. Nothing here knows how a text was found.


@dataclass(frozen=True)
class Translation(GeneratedText):
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


MBR_SAMPLES = 32
"""From so many samples the one is chosen that is most like the others, where nothing else is asked for."""
GlossaryLike = Glossary | Mapping[str, str | Sequence[str]]
"""A glossary, or the table of one."""


class TranslatorMixin(ABC):
    """What translates."""

    @abstractmethod
    def searched(self, texts: Sequence[str], search: DecodingStrategy, *, prefix: str | Sequence[str] = "",
                 glossary: GlossaryLike | None = None) -> list[Translation]:
        """What a search finds for each text, in their order; `Beam` and `Sampling` are searches.

        Args:
            prefix: how the translations begin: one for all, or one for each text. It counts as what was written.
            glossary: terms that must appear; for beam search.
        """

    @abstractmethod
    def check(self, search: DecodingStrategy, *, prefix: str | Sequence[str] = "", glossary: GlossaryLike | None = None) -> None:
        """Refuse what can never be done here, before any text is read."""

    def candidates(self, texts: Sequence[str], search: DecodingStrategy, *, prefix: str | Sequence[str] = "",
                   glossary: GlossaryLike | None = None) -> list[Translation]:
        """As `searched`, where something is still to be chosen from what was found."""
        return self.searched(texts, search, prefix=prefix, glossary=glossary)

    def tell_of(self, texts: Sequence[str], results: Sequence[Translation]) -> None:
        """Tell whoever watches what the translations are; most that translates cannot be watched."""

    def check_mbr(self, among: DecodingStrategy) -> None:
        """Refuse what `mbr` cannot choose from here."""

    @one_or_many
    def translate(self, texts: Sequence[str], *, beams: int = 5, nbest: int = 1,
                  length_penalty: str | float | LengthPenalty = "mean", coverage: float | CoveragePenalty | None = None,
                  groups: int = 1, diversity: float = 0.5, limit: int | None = None, least: int = 0,
                  no_repeat: int | None = None, prefix: str | Sequence[str] = "",
                  glossary: GlossaryLike | None = None) -> list[Translation]:
        """The translation of a text, or of each of several in their order.

        Args:
            beams: how many beginnings of a translation are followed side by side. One, without a length penalty, is
                greedy search, the fastest.
            nbest: how many translations of a text are given, at most `beams`; the best has the others as alternatives.
            length_penalty: "none", "mean", or the α of Wu et al. 2016; see `regard.decoding.scoring`.
            coverage: how much a translation loses that leaves part of its source unseen, the β of Wu et al. 2016; see
                `regard.decoding.scoring`.
            groups: into how many groups the beams are parted that are to differ.
            diversity: what a token costs that a group before has taken, in log-probability.
            limit: how many tokens a translation may have; without it that follows from its source.
            least: how many tokens it has at least.
            no_repeat: no sequence of so many tokens is written twice.
            prefix: a text that the translation begins with: one for all, or one for each text.
            glossary: terms of the source, and what they become in the translation; see `regard.tasks.glossary`.
        """
        search = Beam(beams=beams, nbest=nbest, length_penalty=length_penalty, coverage=coverage, groups=groups,
                      diversity=diversity, limit=limit, least=least, no_repeat=no_repeat)
        return self.searched(texts, search, prefix=prefix, glossary=glossary)

    @one_or_many
    def sample(self, texts: Sequence[str], *, tries: int = 1, temperature: float = 1.0, top_k: int | None = None,
               top_p: float | None = None, min_p: float | None = None, seed: int = 0, limit: int | None = None,
               least: int = 0, no_repeat: int | None = None, prefix: str | Sequence[str] = "") -> list[Translation]:
        """A translation of each text that is drawn by chance; the first of several has the others as alternatives.

        What is drawn for a text follows from the seed and the text, and not from what is given beside it.

        Args:
            tries: how many are drawn of each text. The first ones do not depend on how many there are.
            temperature, top_k, top_p, min_p: see `regard.decoding.sampling`.
            limit, least, no_repeat, prefix: as for `translate`.
        """
        search = Sampling(tries=tries, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
                          limit=limit, least=least, no_repeat=no_repeat)
        return self.searched(texts, search, prefix=prefix)

    @one_or_many
    def mbr(self, texts: Sequence[str], among: DecodingStrategy | None = None, *, prefix: str | Sequence[str] = "",
            glossary: GlossaryLike | None = None) -> list[Translation]:
        """Of several translations of a text the one that is most like all of them: minimum Bayes risk.

        The score is its expected chrF, from 0 to 100: the mean of its chrF against all that were found, each of which
        counts as often as it was drawn; of an n-best list, as much as the model finds it probable. The alternatives
        are the others, the best first, and no text twice.

        Args:
            among: what is chosen from: `Sampling(tries=...)`, 32 samples where nothing is said, or
                `Beam(beams=..., nbest=...)`.
            prefix, glossary: as for `translate`.
        """
        search = Sampling(tries=MBR_SAMPLES) if among is None else among
        if not isinstance(search, DecodingStrategy):
            raise checks.wrong("among", "a Sampling, or a Beam", *checks.kind(search))
        self.check_mbr(search)
        found = self.candidates(texts, search, prefix=prefix, glossary=glossary)
        chosen = [_choose_by_mbr((one, *one.alternatives), search) for one in found]
        self.tell_of(texts, chosen)
        return chosen


def prefix_for_each(prefix: str | Sequence[str], texts: Sequence[str]) -> list[str]:
    """The prefixes of texts: one for all, or one for each."""
    if isinstance(prefix, str):
        return [prefix] * len(texts)
    given = as_texts("prefix", prefix)
    if len(given) != len(texts):
        raise checks.wrong("prefix", f"one text, or one for each of the {len(texts):,}", f"{len(given):,} of them")
    return given


def _choose_by_mbr(found: tuple[Translation, ...], search: DecodingStrategy) -> Translation:
    """All that was found, that of the highest expected chrF first, with this as their scores."""
    judged = mbr([one.text for one in found], weights=None if isinstance(search, Sampling) else _relative_probabilities(found))
    ranked = dict[str, Translation]()
    for number, utility in judged:
        ranked.setdefault(found[number].text, replace(found[number], score=utility, alternatives=()))
    return with_alternatives([*ranked.values()])


def _relative_probabilities(found: tuple[Translation, ...]) -> list[float]:
    """How probable each is, where the most probable one is 1."""
    totals = [sum(one.log_probabilities) for one in found]
    return [math.exp(total - max(totals)) for total in totals]


# ---- translating: `Translator`: a model, its tokenizers and its special ids, ready to translate; and where it looked.
#
# Texts are translated in batches of like lengths; what comes of one does not depend on the others. How is searched is a
# value, `Beam` or `Sampling`; the calls that make one are in `regard.tasks.translator`.

EXTRA_LENGTH, LENGTH_FACTOR = 50, 2
"""A translation may have so many tokens more than this many times its source, where no limit is given; fewer where the
model has fewer positions."""


class Translator(Task, TranslatorMixin):
    """An encoder-decoder that translates."""

    reads = PairTokenizer
    aligns = True

    def searched(self, texts: Sequence[str], search: DecodingStrategy, *, prefix: str | Sequence[str] = "",
                 glossary: GlossaryLike | None = None) -> list[Translation]:
        """What a search finds for each text, in their order."""
        given = as_texts("texts", texts)
        results = self.candidates(given, search, prefix=prefix, glossary=glossary)
        self.tell_of(given, results)
        return results

    def candidates(self, texts: Sequence[str], search: DecodingStrategy, *, prefix: str | Sequence[str] = "",
                   glossary: GlossaryLike | None = None) -> list[Translation]:
        """As `searched`, and nobody is told."""
        given, both = as_texts("texts", texts), self.pair_tokenizer()
        self.check(search, prefix=prefix, glossary=glossary)
        sources, beginnings = both.encode_sources(given), both.encode_targets(prefix_for_each(prefix, given))
        check_lengths("texts", sources, max_positions(self.model.encoder))
        most = self._most(search)
        for number, ids in enumerate(beginnings):
            check_prefix_length(ids, most, text_suffix(number, given))
        known = Glossary({}) if glossary is None else as_glossary(glossary)
        full = [number for number, text in enumerate(given) if not is_blank(text)]
        asked = [TranslationInput(given[number], sources[number], beginnings[number], known.found(given[number]))
                 for number in full]
        found = map_batches(asked, [len(one.source) * search.rows for one in asked],
                           lambda some: self._found(some, search))
        results = [Translation("", 0.0, (), False, look=self._look(text)) for text in given]
        for number, hypotheses in zip(full, found, strict=True):
            look = results[number].look
            results[number] = with_alternatives([replace(_make_translation(both.target, one), look=look) for one in hypotheses])
        return results

    def tell_of(self, texts: Sequence[str], results: Sequence[Translation]) -> None:
        """Tell whoever watches what was read and written; of blank texts there is nothing to tell."""
        self.tell(lambda: (replay_translation(self, text, self.pair_tokenizer().encode_sources([text])[0], one, self.start())
                           for text, one in zip(texts, results, strict=True) if not is_blank(text)))

    def check(self, search: DecodingStrategy, *, prefix: str | Sequence[str] = "", glossary: GlossaryLike | None = None) -> None:
        """Refuse what no model can do."""
        if not isinstance(search, DecodingStrategy):
            raise checks.wrong("search", "a Beam, or a Sampling", *checks.kind(search))
        if glossary is not None and isinstance(search, Sampling):
            raise checks.wrong("glossary", "left out, where translations are drawn", "given",
                               "Beam search keeps to a glossary.")
        positions = max_positions(self.model.decoder)
        for name, count in (("limit", search.limit or 0), ("least", search.least)):
            if positions is not None and count > positions - 1:  # the start has a position too
                raise checks.wrong(name, f"at most {positions - 1}, the positions that the model has for it", count)
        if isinstance(search, Beam) and search.coverage is not None and not self.attends:
            raise checks.wrong("coverage", "None for a model that does not look at its source", repr(search.coverage))
        if glossary is not None:
            as_glossary(glossary)

    def translate_ids(self, sources: Ids, *, beams: int = 1, nbest: int = 1, limit: int | None = None,
                      length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each source its `nbest` translations, the best first; at most `limit` tokens each.

        Without a limit it follows from the length of the source, and from the positions that the model knows. A source
        is as the model was trained with: of text, what `PairTokenizer.source_ids` gives.
        """
        search = Beam(beams=beams, nbest=nbest, limit=limit, length_penalty=length_penalty)
        found = self._hypotheses([TranslationRow(source) for source in sources], search)
        self.tell(lambda: (replay_translation(self, None, source, some[0], self.start())
                           for source, some in zip(sources, found, strict=True)))
        return found

    def _found(self, asked: Sequence[TranslationInput], search: DecodingStrategy) -> list[list[Hypothesis]]:
        """What a search finds for each text; with all terms where some must appear."""
        if not any(one.required for one in asked):
            return self._hypotheses([TranslationRow(one.source, one.beginning) for one in asked], search)
        assert isinstance(search, Beam)
        look = partial(self._alignments, layer=None) if self.attends else None
        return GlossarySearch(self._hypotheses, look, self.spelling, partial(self._room, search=search)).found(asked, search)

    @torch.inference_mode()
    def _hypotheses(self, rows: Sequence[TranslationRow], search: DecodingStrategy) -> list[list[Hypothesis]]:
        """What a search finds for each row."""
        with model_unchanged(self.model):
            return self._searched(rows, search)

    def _searched(self, rows: Sequence[TranslationRow], search: DecodingStrategy) -> list[list[Hypothesis]]:
        sources = [row.source for row in rows]
        with packed_linear_layers(self.model):
            memory = encode(self.model, self.tokens(sources))
        rules, begun = self._rules(), [row.beginning for row in rows]
        limits = [self._room(row, search) for row in rows]
        if any(row.words for row in rows):
            rules.append(WithPrefix(ForbiddenAfter([row.words for row in rows], self.spelling.joining), begun))
        if any(begun):  # the search itself counts what is behind
            rules += [WithPrefix(one, begun) for one in (MinLength(search.least, self.end()), *search.rules())]
            search = replace(search, least=0, no_repeat=None)
        terms = [row.terms for row in rows] if any(row.terms for row in rows) else None
        prompts = [[self.start(), *row.beginning] for row in rows]
        found = search.run(SearchInputs(self.model, memory, sources, prompts, self.end(), limits, rules, terms))
        if not any(begun):
            return found
        given = forced(self.model, memory, [prompt[:1] for prompt in prompts], begun)  # type: ignore[arg-type]
        return [[replace(one, ids=[*row.beginning, *one.ids], log_probabilities=[*logs, *one.log_probabilities])
                 for one in some] for row, logs, some in zip(rows, given, found, strict=True)]

    def aligned(self, text: str, translation: str | None = None, *, layer: int | None = None) -> Alignment:
        """Which words of a text the model looks at for each word of its translation, read once more.

        Args:
            translation: another one than that which the model finds itself.
            layer: of the decoder, from 0, and the mean over its heads; without it what `aligned_by` says, or where that
                says nothing the layer that points most clearly in each sentence.
        """
        if not isinstance(text, str):
            raise checks.wrong("text", "a text", *checks.kind(text))
        ids = self.translate(text).ids if translation is None else self.pair_tokenizer().encode_targets([translation])[0]
        return self._aligned([(text, ids)], layer)[0]

    def align(self, texts: Sequence[str], translations: Sequence[Translation], *,
              layer: int | None = None) -> list[Alignment]:
        """As `aligned`, for several texts and what `translate` gave for each: the very tokens that were written."""
        given = as_texts("texts", texts)
        if isinstance(translations, Translation) or len(translations) != len(given):
            raise checks.wrong("translations", f"one for each text, {len(given):,}",
                               "one" if isinstance(translations, Translation) else f"{len(translations):,}")
        for number, one in enumerate(translations):
            if not isinstance(one, Translation):
                raise checks.wrong("translations", "what `translate` gave", f"{checks.kind(one)[0]} at {number}",
                                   "`aligned` takes a translation of text.")
        return self._aligned([(text, one.ids) for text, one in zip(given, translations, strict=True)], layer)

    @property
    def attends(self) -> bool:
        """Whether the model looks at its source, word by word; a recurrent one may have one vector of all of it."""
        return getattr(self.config, "attention", True) is not None

    def choose_alignment(self, pairs: Sequence[tuple[str, str]]) -> AlignmentConfig:
        """Where to read which words belong together, from pairs (text, translation) that nobody has aligned.

            translator.aligned_by = translator.choose_alignment(pairs)     # `save` keeps it

        A training has done that. Some hundred pairs will do, and no more than `aligning.ENOUGH` are read.
        """
        some, both = list(pairs)[:MAX_CHOICE_PAIRS], self.pair_tokenizer()
        for number, pair in enumerate(some):
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(one, str) for one in pair):
                raise checks.wrong("pairs", "pairs of texts, (text, translation)", f"{pair!r:.80} at {number}")
        targets = both.encode_targets([translation for _, translation in some])
        rows = [(text, ids) for (text, _), ids in zip(some, targets, strict=True)]
        lengths = self._lengths(rows, "pairs", "pairs")
        return choose_alignment(look for numbers in length_batches(lengths) for look in self._looked([rows[one] for one in numbers]))

    def _aligned(self, pairs: Sequence[tuple[str, Sequence[int]]], layer: int | None) -> list[Alignment]:
        """Of any number of texts and the ids of their translations."""
        return map_batches(pairs, self._lengths(pairs, "texts", "translations"),
                          lambda some: self._alignments(some, layer))

    def _lengths(self, pairs: Sequence[tuple[str, Sequence[int]]], *arguments: str) -> list[int]:
        """How long texts and their translations are; what is too long is refused by the names of the arguments."""
        sources = self.pair_tokenizer().encode_sources([text for text, _ in pairs])
        targets = [[self.start(), *ids] for _, ids in pairs]
        for argument, rows, part in zip(arguments, (sources, targets), (self.model.encoder, self.model.decoder),
                                        strict=True):
            check_lengths(argument, rows, max_positions(part))
        return [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]

    def _alignments(self, pairs: Sequence[tuple[str, Sequence[int]]], layer: int | None) -> list[Alignment]:
        """Of so many as are read together."""
        where = self.aligned_by if layer is None else AlignmentConfig(layer=layer)
        rounds = 1 if where is None else where.rounds
        return [Alignment.of(*look[1:], word_alignment_weights(look.cross, look.source, look.target, where), rounds)
                for look in self._looked(pairs)]

    @torch.inference_mode()
    def _looked(self, pairs: Sequence[tuple[str, Sequence[int]]]) -> list[PairAttention]:
        """What is looked at while the translations of texts are read; of each the step behind its last token too."""
        both = self.pair_tokenizer()
        memory = self.model.encode(self.tokens(both.encode_sources([text for text, _ in pairs])))  # type: ignore[operator]
        written = [Hypothesis(list(ids), [0.0] * (len(ids) + 1), 0.0, None) for _, ids in pairs]
        read = with_cross(self.model, memory, written, prompts=[[self.start()]] * len(pairs))  # type: ignore[arg-type]
        found = []
        for (text, _), one in zip(pairs, read, strict=True):
            assert one.cross is not None
            found.append(PairAttention(one.cross.float().cpu(), text, both.source.words(text), both.target.decode(one.ids),
                                both.target.decoded_words(one.ids)))
        return found

    def pair_tokenizer(self) -> PairTokenizer:
        """The tokenizers of source and target; a ValueError where there are none."""
        tokenizer = self.needed()
        assert isinstance(tokenizer, PairTokenizer)
        return tokenizer

    def start(self) -> int:
        """The id that a translation begins with."""
        if self.special.start is None:
            raise checks.wrong("special.start", "an id, for a model that translates", None)
        return self.special.start

    @cached_property
    def spelling(self) -> TermSpelling:
        """How words are written in the tokens of translations."""
        return TermSpelling(self.pair_tokenizer().target)

    def _most(self, search: DecodingStrategy) -> int | None:
        """How many tokens a translation may have at most."""
        positions = max_positions(self.model.decoder)
        known = [one for one in (search.limit, None if positions is None else positions - 1) if one is not None]
        return min(known, default=None)

    def _room(self, row: TranslationRow, search: DecodingStrategy) -> int:
        """How many tokens may be written behind the beginning of a row."""
        if search.limit is not None:
            return search.limit - len(row.beginning)
        usual, positions = max(LENGTH_FACTOR * len(row.source) + EXTRA_LENGTH, search.least), max_positions(self.model.decoder)
        return usual if positions is None else min(usual, positions - 1 - len(row.beginning))  # the start has one too

    def _rules(self) -> list[Constraint]:
        """Padding is never written: no target has it, so that nothing was learned of when it would be right."""
        padding, vocabulary = self.special.padding, self.vocabularies[-1]
        never = [] if self.tokenizer is None else ids_without_token(self.pair_tokenizer().target, vocabulary)
        if padding is not None and padding not in self.special.end and padding < vocabulary:  # else of the source alone
            never.append(padding)
        return [ForbiddenTokens(never)] if never else []

    def _look(self, text: str) -> Callable[[Translation], Alignment]:
        return lambda translation: self.align([text], [translation])[0]


def _make_translation(tokenizer: Tokenizer, found: Hypothesis) -> Translation:
    return Translation(tokenizer.decode(found.ids), found.score, tuple(found.ids), found.cut,
                       log_probabilities=tuple(found.log_probabilities), tokenizer=tokenizer)


def check_prefix_length(ids: Sequence[int], limit: int | None, where: str) -> None:
    """Refuse a prefix that the model has no room for."""
    if limit is not None and len(ids) > limit:
        raise checks.wrong("prefix", f"at most {limit} tokens long, as translations are", f"{len(ids)} tokens{where}")
