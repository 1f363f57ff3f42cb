"""`Translator`: an encoder-decoder with its tokenizers, ready to translate; and `Translation`, its result.

    translate    beam search: the most probable translations
    sample       random translations
    mbr          minimum Bayes risk: of several translations the one most similar to the others
    align        which words of the source each word of a translation attends to
    influence    which words of the source each word of a translation depends on

`TranslatorMixin` has the methods that every engine offers: torch here, CTranslate2 in
`regard.tasks.ctranslate2_engine`. Texts are translated in batches of similar length; the result for one text does not
depend on the others.
"""

import copy
import html
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import torch

from regard import checks
from regard.data.filters import is_blank
from regard.data.languages import LanguagePair, check_code, find_language, target_controls
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.decoding.constraints import Constraint, ForbiddenAfter, ForbiddenTokens, MinLength, WithPrefix
from regard.decoding.cuda_graph import encode, model_unchanged
from regard.decoding.forced import forced, with_cross
from regard.decoding.mbr import mbr
from regard.decoding.packed_encoder import packed_encoder
from regard.decoding.request import Hypothesis, SourceInput
from regard.decoding.scoring import CoveragePenalty, LengthPenalty
from regard.kernels.packed_linear import packed_linear_layers
from regard.models.contract import Memory
from regard.tasks.alignment import (
    MAX_CHOICE_PAIRS,
    Alignment,
    AlignmentConfig,
    PairAttention,
    alignment_html,
    choose_alignment,
    word_alignment_weights,
)
from regard.tasks.card import directions
from regard.tasks.glossary import (
    Glossary,
    GlossarySearch,
    SearchSteps,
    TermSpelling,
    TranslationInput,
    TranslationRow,
    as_glossary,
    finish_search,
)
from regard.tasks.search import (
    RENAMED,
    Beam,
    DecodingStrategy,
    GeneratedText,
    Sampling,
    SearchInputs,
    StrategyT,
    with_alternatives,
)
from regard.tasks.task import (
    Ids,
    SearchLimits,
    Task,
    as_texts,
    check_lengths,
    element_name,
    ids_without_token,
    length_batches,
    map_batches,
    max_positions,
    one_or_many,
    search_limits,
    search_workers,
    similar_lengths,
)

if TYPE_CHECKING:
    from regard.inspection.trace import Trace
    from regard.inspection.watch import Replay
    from regard.tasks.influence import Influence

LENGTH_FACTOR, EXTRA_LENGTH = 2, 20
"""The default maximum length: LENGTH_FACTOR times the tokens of the source, and EXTRA_LENGTH more."""
MBR_SAMPLES = 32
"""The default number of samples of `mbr`."""
MAX_LANGUAGES = 40
"""Languages that a message lists."""
GlossaryLike = Glossary | Mapping[str, str | Sequence[str]]
"""A glossary, or a table of terms."""


@dataclass(frozen=True, repr=False)
class Translation(GeneratedText):
    """The translation of a text; that of a blank text is empty, and the model is not run."""

    look: "Callable[[Translation], Alignment] | None" = field(default=None, repr=False, compare=False)
    """Computes the alignment with the model; lost when a translation is copied or pickled."""
    tracer: "Callable[[Translation], Trace] | None" = field(default=None, repr=False, compare=False)
    """Computes the trace with the model; lost likewise."""

    @cached_property
    def alignment(self) -> Alignment:
        """The words of the source that each word belongs to, from the attention of the model.

        The model reads the source and the generated tokens again; the result equals `Translator.align`.
        """
        if self.look is None:
            raise ValueError("The alignment of this translation cannot be computed: it has lost its model, because it "
                             "was copied or made by another engine. Call translator.align([text], [translation]).")
        return self.look(self)

    @cached_property
    def trace(self) -> "Trace":
        """The attention of the model for this translation, as `regard look` shows it.

        The model reads the source and the generated tokens again.
        """
        if self.tracer is None:
            raise ValueError("The attention of this translation cannot be computed: it has lost its model, because it "
                             "was copied or made by another engine. Use regard.watch(translator).")
        return self.tracer(self)

    def _repr_html_(self) -> str:
        """The text, its score and the page of its attention, for a notebook.

        A word of the text under the pointer shows the source words that it attends to, also where a viewer of
        notebooks leaves out the page.
        """
        try:
            shown, page = alignment_html(self.alignment), self.trace._repr_html_()
        except ValueError:  # a model without attention, an empty text, or a translation that was copied
            shown, page = f'<div dir="auto">{html.escape(self.text)}</div>', ""
        others = "".join(f'<li dir="auto">{html.escape(one.text)} <small>{one.score:.4g}</small></li>'
                         for one in self.alternatives)
        return (f"{shown}<div><small>score {self.score:.4g}{', truncated' * self.cut}</small></div>"
                + (f"<ol start='2'>{others}</ol>" if others else "") + page)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the model."""
        return {**{name: value for name, value in self.__dict__.items() if name != "trace"}, "look": None,
                "tracer": None}


class TranslatorMixin(ABC):
    """The methods of a translator; an engine implements `_search` and `check_search`."""

    source_lang: str | None
    target_lang: str | None

    @property
    @abstractmethod
    def target_languages(self) -> tuple[str, ...]:
        """The codes of the languages that a model for several languages translates into; empty for any other."""

    @abstractmethod
    def _search(self, texts: Sequence[str], strategy: DecodingStrategy, *, prefix: str | Sequence[str] = "",
                glossary: GlossaryLike | None = None, batch_tokens: int | None = None) -> list[Translation]:
        """Translate without notifying observers."""

    @abstractmethod
    def check_search(self, strategy: DecodingStrategy, *, glossary: GlossaryLike | None = None) -> None:
        """Refuse what this engine or this model cannot do, before any text is read."""

    def check_mbr(self) -> None:
        """Refuse `mbr` if the engine cannot do it."""

    @abstractmethod
    def into(self, to: str | None) -> Self:
        """This translator for one target language; both share the model.

        Args:
            to: the code of a target language, such as "fr"; None for a model that has only one.
        """

    def _notify_translations(self, texts: Sequence[str], results: Sequence[Translation]) -> None:
        """Tell observers the translations; most engines cannot be observed."""

    def search(self, texts: Sequence[str], strategy: DecodingStrategy, *, prefix: str | Sequence[str] = "",
               glossary: GlossaryLike | None = None, batch_tokens: int | None = None,
               to: str | None = None) -> list[Translation]:
        """Translate each text by a `Beam` or a `Sampling`, in their order.

        Args:
            to: the target language, if the model has several.
            prefix: the beginning of the translations: one for all, or one for each text. It counts as generated text.
            glossary: terms that must appear; for beam search.
            batch_tokens: the number of source tokens of a batch, padding included; less needs less memory.
        """
        texts, translator = as_texts("texts", texts), self.into(to)
        results = translator._search(texts, strategy, prefix=prefix, glossary=glossary, batch_tokens=batch_tokens)
        translator._notify_translations(texts, results)
        return results

    @one_or_many
    @checks.renamed_arguments(**RENAMED)
    def translate(self, texts: Sequence[str], *, beams: int = 5, nbest: int = 1,
                  length_penalty: str | float | LengthPenalty = "mean",
                  coverage_penalty: float | CoveragePenalty | None = None, num_beam_groups: int = 1,
                  diversity_penalty: float = 0.5, max_length: int | None = None, min_length: int = 0,
                  no_repeat_ngram_size: int | None = None, prefix: str | Sequence[str] = "",
                  glossary: GlossaryLike | None = None, batch_tokens: int | None = None,
                  to: str | None = None) -> list[Translation]:
        """Translate a text, or each of several in their order, by beam search.

        `translator(texts)` is the same. One text gives one `Translation`, whose `str` is the text; a list gives a list.

        Args:
            beams: the beam size. One beam without a length penalty is greedy search, the fastest.
            nbest: the number of translations of a text, at most `beams`; the best has the others as alternatives.
            length_penalty: "none", "mean", or the α of Wu et al. 2016; see `regard.decoding.scoring`.
            coverage_penalty: the β of Wu et al. 2016, which penalises translations that leave part of the source
                unattended; see `regard.decoding.scoring`.
            num_beam_groups: the number of groups of diverse beam search.
            diversity_penalty: subtracted from the log-probability of a token for each use in an earlier group.
            max_length: the maximum number of tokens; the default depends on the length of the source.
            min_length: the minimum number of tokens.
            no_repeat_ngram_size: no n-gram of this size is generated twice.
            prefix: a text that the translation begins with: one for all, or one for each text.
            glossary: source terms and the target terms that they must become; see `regard.tasks.glossary`.
            batch_tokens: the number of source tokens of a batch, padding included; less needs less memory.
            to: the target language, such as "fr", if the model has several. The source's language need not be said.
        """
        strategy = Beam(beams=beams, nbest=nbest, length_penalty=length_penalty, coverage_penalty=coverage_penalty,
                        num_beam_groups=num_beam_groups, diversity_penalty=diversity_penalty, max_length=max_length,
                        min_length=min_length, no_repeat_ngram_size=no_repeat_ngram_size)
        return self.search(texts, strategy, prefix=prefix, glossary=glossary, batch_tokens=batch_tokens, to=to)

    __call__ = translate

    @one_or_many
    @checks.renamed_arguments(**RENAMED)
    def sample(self, texts: Sequence[str], *, num_samples: int = 1, temperature: float = 1.0,
               top_k: int | None = None, top_p: float | None = None, min_p: float | None = None, seed: int = 0,
               max_length: int | None = None, min_length: int = 0, no_repeat_ngram_size: int | None = None,
               prefix: str | Sequence[str] = "", batch_tokens: int | None = None,
               to: str | None = None) -> list[Translation]:
        """Random translations of each text; the first sample has the others as alternatives.

        The samples of a text depend on the seed and the text, not on other texts of the call.

        Args:
            num_samples: the number of samples of each text. The first ones do not depend on the number.
            temperature, top_k, top_p, min_p: see `regard.decoding.sampling`.
            max_length, min_length, no_repeat_ngram_size, prefix, batch_tokens, to: as for `translate`.
        """
        strategy = Sampling(num_samples=num_samples, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                            seed=seed, max_length=max_length, min_length=min_length,
                            no_repeat_ngram_size=no_repeat_ngram_size)
        return self.search(texts, strategy, prefix=prefix, batch_tokens=batch_tokens, to=to)

    @one_or_many
    def mbr(self, texts: Sequence[str], among: DecodingStrategy | None = None, *, prefix: str | Sequence[str] = "",
            glossary: GlossaryLike | None = None, batch_tokens: int | None = None,
            to: str | None = None) -> list[Translation]:
        """Minimum Bayes risk: of several translations the one most similar to all of them.

        The score is the expected chrF, from 0 to 100: the mean chrF against all candidates. Samples count equally, the
        hypotheses of an n-best list by their probabilities. The alternatives are the other candidates, the best first,
        each text once.

        Args:
            among: the candidates: `Sampling(num_samples=...)`, by default 32 samples, or `Beam(beams=..., nbest=...)`.
            prefix, glossary, batch_tokens, to: as for `translate`.
        """
        strategy = Sampling(num_samples=MBR_SAMPLES) if among is None else among
        if not isinstance(strategy, DecodingStrategy):
            raise checks.wrong("among", "a Sampling, or a Beam", *checks.kind(strategy))
        self.check_mbr()
        translator = self.into(to)
        candidates = translator._search(texts, strategy, prefix=prefix, glossary=glossary, batch_tokens=batch_tokens)
        chosen = [_choose_by_mbr((one, *one.alternatives), strategy) for one in candidates]
        translator._notify_translations(texts, chosen)
        return chosen


class Translator(Task, TranslatorMixin):
    """An encoder-decoder that translates."""

    tokenizer_type = PairTokenizer
    aligns = True

    @property
    def source_lang(self) -> str | None:
        """The code of the language that it translates from, such as "en" or "pt-BR"; None if it is unknown.

        It is stored in config.toml (`data.source_lang`), and can be set.
        """
        return None if self.directions else self.record.get("data", {}).get("source_lang")

    @source_lang.setter
    def source_lang(self, code: str | None) -> None:
        self._set_language("source_lang", code)

    @property
    def target_lang(self) -> str | None:
        """The code of the language that it translates into; None if it is unknown, or one of several. It can be set."""
        chosen = [*target_controls(self.tokenizer.controls)] if isinstance(self.tokenizer, PairTokenizer) else []
        if chosen or self.directions:
            return chosen[0] if chosen else None
        return self.record.get("data", {}).get("target_lang")

    @target_lang.setter
    def target_lang(self, code: str | None) -> None:
        self._set_language("target_lang", code)

    @property
    def target_languages(self) -> tuple[str, ...]:
        both = self.tokenizer
        return tuple(target_controls(both.source.controls)) if isinstance(both, PairTokenizer) else ()

    @property
    def directions(self) -> tuple[LanguagePair, ...]:
        """The directions that a model for several languages was trained on; empty for any other model."""
        return directions(self.record)

    def into(self, to: str | None) -> Self:
        """This translator for one target language; both share the model.

        It may be a language that the model was never trained to translate into from that of the texts: a model for
        en-de, de-en, en-fr and fr-en translates German into French too (zero-shot translation).

        Args:
            to: the code of a target language, such as "fr"; None for a model that has only one. A model of one
                direction takes its own.
        """
        tokenizer = self.tokenizer if isinstance(self.tokenizer, PairTokenizer) else None
        controls = controls_for_language(tokenizer, to, self.target_lang, self.directions, self.source_lang)
        return self if tokenizer is None or controls == tokenizer.controls else self.with_controls(*controls)

    def _set_language(self, key: str, code: str | None) -> None:
        data = {name: value for name, value in self.record.get("data", {}).items() if name != key}
        self.record = {**self.record, "data": data if code is None else {key: check_code(key, code), **data}}

    def _search(self, texts: Sequence[str], strategy: DecodingStrategy, *, prefix: str | Sequence[str] = "",
                glossary: GlossaryLike | None = None, batch_tokens: int | None = None) -> list[Translation]:
        texts = as_texts("texts", texts)
        inputs = self.translation_inputs(texts, strategy, prefix=prefix, glossary=glossary)
        filled = [one for one in inputs if one is not None]
        limits = (search_limits(self.model, self.vocabularies[-1], strategy.hypotheses_per_text)
                  if batch_tokens is None else SearchLimits(batch_tokens))
        with packed_linear_layers(self.model):  # once for all workers
            hypotheses = iter(map_batches(
                filled, [len(one.source) * strategy.rows_per_text for one in filled],
                lambda some: finish_search(self.search_steps(some, strategy), self._hypotheses), limits.tokens,
                max_rows=limits.rows, workers=search_workers(self.model, len(filled))))
        return [self.make_translation(text, [] if one is None else next(hypotheses))
                for text, one in zip(texts, inputs, strict=True)]

    def translation_inputs(self, texts: Sequence[str], strategy: DecodingStrategy, *, prefix: str | Sequence[str] = "",
                           glossary: GlossaryLike | None = None) -> list[TranslationInput | None]:
        """Each text with its ids, its prefix and its terms, after they were checked; None for a blank text."""
        both = self.pair_tokenizer()
        self.check_search(strategy, glossary=glossary)
        sources, prefixes = both.encode_sources(texts), both.encode_targets(prefix_for_each(prefix, texts))
        check_lengths("texts", sources, max_positions(self.model.encoder))
        longest = self._longest(strategy)
        for number, ids in enumerate(prefixes):
            check_prefix_length(ids, longest, element_name("prefix", number, [] if isinstance(prefix, str) else prefix))
        terms = None if glossary is None else as_glossary(glossary)
        return [None if is_blank(text) else TranslationInput(text, source, begun,
                                                             () if terms is None else terms.found(text))
                for text, source, begun in zip(texts, sources, prefixes, strict=True)]

    def make_translation(self, text: str, hypotheses: Sequence[Hypothesis]) -> Translation:
        """The translation of a text from the hypotheses for it; of a blank text, which has none, it is empty."""
        look, tracer = self._look(text), self._tracer(text)
        if not hypotheses:
            return Translation("", 0.0, (), False, look=look, tracer=tracer)
        target = self.pair_tokenizer().target
        return with_alternatives([replace(_make_translation(target, one), look=look, tracer=tracer)
                                  for one in hypotheses])

    def check_search(self, strategy: DecodingStrategy, *, glossary: GlossaryLike | None = None) -> None:
        """Refuse what this model cannot do, before any text is read."""
        if not isinstance(strategy, DecodingStrategy):
            raise checks.wrong("strategy", "a Beam, or a Sampling", *checks.kind(strategy))
        if glossary is not None and isinstance(strategy, Sampling):
            raise checks.wrong("glossary", "left out, for sampling", "given", "Beam search can enforce terms.")
        positions = max_positions(self.model.decoder)
        for name, count in (("max_length", strategy.max_length or 0), ("min_length", strategy.min_length)):
            if positions is not None and count > positions - 1:  # the start has a position too
                raise checks.wrong(name, f"at most {positions - 1}, the number of positions of the model", count)
        if isinstance(strategy, Beam) and strategy.coverage_penalty is not None and not self.attends:
            raise checks.wrong("coverage_penalty", "None for a model without cross-attention",
                               repr(strategy.coverage_penalty))
        if glossary is not None:
            as_glossary(glossary)

    @checks.renamed_arguments(**RENAMED)
    def translate_ids(self, sources: Ids, *, beams: int = 1, nbest: int = 1, max_length: int | None = None,
                      length_penalty: "str | float" = "none") -> list[list[Hypothesis]]:
        """For each source its `nbest` translations, the best first, of at most `max_length` tokens.

        The default maximum length depends on the length of the source and on the positions of the model. A source has
        the form of the training data: for text, the result of `PairTokenizer.encode_sources`.
        """
        strategy = Beam(beams=beams, nbest=nbest, max_length=max_length, length_penalty=length_penalty)
        hypotheses = self._hypotheses([TranslationRow(source) for source in sources], strategy)
        self._notify([(None, source, some[0]) for source, some in zip(sources, hypotheses, strict=True)])
        return hypotheses

    def _notify_translations(self, texts: Sequence[str], results: Sequence[Translation]) -> None:
        if self.observers:
            sources = self.pair_tokenizer().encode_sources(texts)
            self._notify([(text, source, result) for text, source, result in zip(texts, sources, results, strict=True)
                          if not is_blank(text)])

    def _notify(self, translations: "Sequence[tuple[str | None, Sequence[int], Translation | Hypothesis]]") -> None:
        def replays() -> "Iterator[Replay]":
            from regard.tasks.traces import replay_translation

            for text, source, result in translations:
                yield replay_translation(self, text, source, result, self.start_id())

        self.notify(replays)

    def search_steps(self, inputs: Sequence[TranslationInput], strategy: DecodingStrategy) -> SearchSteps:
        """The searches for texts, which return the hypotheses for each with all its required terms."""
        if not any(one.required_terms for one in inputs):
            return (yield [TranslationRow(one.source, one.prefix) for one in inputs], strategy)
        assert isinstance(strategy, Beam)
        align = partial(self._align_batch, layer=None) if self.attends else None
        search = GlossarySearch(align, self.spelling, partial(self.room, strategy=strategy))
        return (yield from search.steps(inputs, strategy))

    @torch.inference_mode()
    def _hypotheses(self, rows: Sequence[TranslationRow], strategy: DecodingStrategy) -> list[list[Hypothesis]]:
        """The hypotheses for each row, the best first; their ids include the prefix."""
        with model_unchanged(self.model):
            with packed_linear_layers(self.model):
                memory = self.encode_rows(rows)
            inputs, strategy = self.search_inputs(rows, memory, strategy, [self.room(row, strategy) for row in rows])
            found = strategy.run(inputs)
            logs = self.prefix_log_probabilities(rows, memory)
            return [with_prefix(row.prefix, before, some) for row, before, some in zip(rows, logs, found, strict=True)]

    def encode_rows(self, rows: Sequence[TranslationRow]) -> Memory:
        """The encoded sources of rows, faster inside of `packed_linear_layers`.

        On a CPU, of the rows of one search, half may be padding. So they are encoded without padding, by models that
        cannot do that in groups of similar lengths.
        """
        sources, on_cpu = [row.source for row in rows], self.device.type == "cpu"
        packed = packed_encoder(self.model) if on_cpu else None
        if packed is not None:
            return packed.encode(self.tokens(sources))
        groups = similar_lengths([*map(len, sources)]) if on_cpu else [[*range(len(rows))]]
        if len(groups) <= 1:
            return encode(self.model, self.tokens(sources))
        parts = [encode(self.model, self.tokens([sources[number] for number in group])) for group in groups]
        return Memory.joined(parts).pick(torch.tensor([number for group in groups for number in group]).argsort())

    def search_inputs(self, rows: Sequence[TranslationRow], memory: SourceInput, strategy: StrategyT,
                      max_lengths: Sequence[int]) -> tuple[SearchInputs, StrategyT]:
        """What a search for these rows needs, and the strategy without what became constraints.

        Args:
            max_lengths: how many tokens may follow the prefix of each row.
        """
        prefixes, constraints = [row.prefix for row in rows], self._constraints()
        if any(row.whole_words for row in rows):
            following = ForbiddenAfter([row.whole_words for row in rows], self.spelling.joining)
            constraints.append(WithPrefix(following, prefixes))
        if any(prefixes):  # the search itself counts only the tokens after the prefix
            constraints += [WithPrefix(one, prefixes) for one in
                            (MinLength(strategy.min_length, self.end_ids()), *strategy.constraints())]
            strategy = replace(strategy, min_length=0, no_repeat_ngram_size=None)
        terms = [row.terms for row in rows] if any(row.terms for row in rows) else None
        prompts = [[self.start_id(), *row.prefix] for row in rows]
        return SearchInputs(self.model, memory, [row.source for row in rows], prompts, self.end_ids(), max_lengths,
                            constraints, terms), strategy

    def prefix_log_probabilities(self, rows: Sequence[TranslationRow], memory: Memory) -> list[list[float]]:
        """The log-probability of each token of the prefix of each row."""
        prefixes = [row.prefix for row in rows]
        if not any(prefixes):
            return [[] for _ in rows]
        return forced(self.model, memory, [[self.start_id()]] * len(rows), prefixes)  # type: ignore[arg-type]

    def aligned(self, text: str, translation: str | None = None, *, layer: int | None = None,
                to: str | None = None) -> Alignment:
        """Which words of a text the model attends to for each word of its translation.

        Args:
            to: the target language, if the model has several.
            translation: by default the one that the model generates.
            layer: a decoder layer, from 0, averaged over its heads. The default is `aligned_by`, or without it the
                layer with the sharpest attention in each sentence.
        """
        if not isinstance(text, str):
            raise checks.wrong("text", "a text", *checks.kind(text))
        translator = self.into(to)
        if translation is None:
            return translator._align_pairs([(text, translator.translate(text).ids)], layer)[0]
        return translator._align_pairs([(text, self.pair_tokenizer().encode_targets([translation])[0])], layer)[0]

    def align(self, texts: Sequence[str], translations: Sequence[Translation], *, layer: int | None = None,
              to: str | None = None) -> list[Alignment]:
        """The word alignments of texts and their results of `translate`, for exactly the tokens that were generated."""
        texts = as_texts("texts", texts)
        if isinstance(translations, Translation) or len(translations) != len(texts):
            raise checks.wrong("translations", f"one for each text, {len(texts):,}",
                               "one" if isinstance(translations, Translation) else f"{len(translations):,}")
        for number, one in enumerate(translations):
            if not isinstance(one, Translation):
                raise checks.wrong(f"translations[{number}]", "a result of `translate`", checks.kind(one)[0],
                                   "`aligned` takes a translation as text.")
        pairs = [(text, one.ids) for text, one in zip(texts, translations, strict=True)]
        return self.into(to)._align_pairs(pairs, layer)

    def influence(self, text: str, translation: "Translation | str | None" = None, *,
                  words: Iterable[int | Sequence[int]] | None = None, to: str | None = None) -> "Influence":
        """How much each word of a text matters for each word of its translation.

        The model reads the translation with the whole text and without each word; the difference of the
        log-probabilities is the influence of the word, in nats. It needs no attention.

        Args:
            translation: a text, or a result of `translate`, of which exactly the generated tokens are read; by default
                what `translate` returns.
            words: the numbers of the words that are left out, from 0, each alone; numbers in a tuple are left out
                together. By default all are left out; in a text of more than 64 words, groups of neighbours.
            to: the target language, if the model has several.
        """
        from regard.tasks.influence import translation_influence

        return translation_influence(self.into(to), text, translation, words)

    @property
    def attends(self) -> bool:
        """Whether the model has cross-attention; a recurrent one may have a single context vector."""
        return getattr(self.config, "attention", True) is not None

    def choose_alignment(self, pairs: Sequence[tuple[str, str]]) -> AlignmentConfig:
        """Choose the attention head for word alignments, from pairs (text, translation) without gold alignments.

            translator.aligned_by = translator.choose_alignment(pairs)     # `save` keeps it

        Training does this. A few hundred pairs are enough; at most MAX_CHOICE_PAIRS are read.
        """
        some, both = list(pairs)[:MAX_CHOICE_PAIRS], self.pair_tokenizer()
        for number, pair in enumerate(some):
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(one, str) for one in pair):
                raise checks.wrong(f"pairs[{number}]", "a pair of texts, (text, translation)", f"{pair!r:.80}")
        targets = both.encode_targets([translation for _, translation in some])
        rows = [(text, ids) for (text, _), ids in zip(some, targets, strict=True)]
        lengths = self._pair_lengths(rows, "pairs", "pairs")
        return choose_alignment(attention for numbers in length_batches(lengths)
                                for attention in self._pair_attention([rows[one] for one in numbers]))

    def _align_pairs(self, pairs: Sequence[tuple[str, Sequence[int]]], layer: int | None) -> list[Alignment]:
        """The alignments of any number of texts and the ids of their translations."""
        return map_batches(pairs, self._pair_lengths(pairs, "texts", "translations"),
                           lambda some: self._align_batch(some, layer))

    def _pair_lengths(self, pairs: Sequence[tuple[str, Sequence[int]]], *arguments: str) -> list[int]:
        """The length of the longer side of each pair; a side that is too long is refused by its argument's name."""
        sources = self.pair_tokenizer().encode_sources([text for text, _ in pairs])
        targets = [[self.start_id(), *ids] for _, ids in pairs]
        for argument, rows, part in zip(arguments, (sources, targets), (self.model.encoder, self.model.decoder),
                                        strict=True):
            check_lengths(argument, rows, max_positions(part))
        return [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]

    def _align_batch(self, pairs: Sequence[tuple[str, Sequence[int]]], layer: int | None) -> list[Alignment]:
        head = self.aligned_by if layer is None else AlignmentConfig(layer=layer)
        rounds = 1 if head is None else head.rounds
        return [Alignment.of(*one[1:], word_alignment_weights(one.cross, one.source, one.target, head), rounds)
                for one in self._pair_attention(pairs)]

    @torch.inference_mode()
    def _pair_attention(self, pairs: Sequence[tuple[str, Sequence[int]]]) -> list[PairAttention]:
        """The cross-attention while the translations of texts are read, including the step after the last token."""
        both = self.pair_tokenizer()
        memory = self.model.encode(self.tokens(both.encode_sources([text for text, _ in pairs])))  # type: ignore[operator]
        written = [Hypothesis(list(ids), [0.0] * (len(ids) + 1), 0.0, None) for _, ids in pairs]
        prompts = [[self.start_id()]] * len(pairs)
        found = []
        for (text, _), one in zip(pairs, with_cross(self.model, memory, written, prompts=prompts),  # type: ignore[arg-type]
                                  strict=True):
            assert one.cross is not None
            found.append(PairAttention(one.cross.float().cpu(), text, both.source_words(text),
                                       both.target.decode(one.ids), both.target.decoded_words(one.ids)))
        return found

    def pair_tokenizer(self) -> PairTokenizer:
        """The tokenizers of source and target; a ValueError if there are none."""
        tokenizer = self.require_tokenizer()
        assert isinstance(tokenizer, PairTokenizer)
        return tokenizer

    def with_controls(self, *names: str) -> Self:
        """This translator with these control tokens before every source; both share the model."""
        tokenizer = self.pair_tokenizer()
        if names == tokenizer.controls:
            return self
        other = copy.copy(self)
        other.tokenizer = tokenizer.with_controls(*names)
        return other

    def start_id(self) -> int:
        """The id that a translation begins with."""
        if self.special.start is None:
            raise ValueError("This model has no start token, so it cannot begin a translation. Give its id as "
                             "`special.start`: SpecialTokens(start=1, end=(2,)).")
        return self.special.start

    @cached_property
    def spelling(self) -> TermSpelling:
        """The token sequences that spell target terms."""
        return TermSpelling(self.pair_tokenizer().target)

    def _longest(self, strategy: DecodingStrategy) -> int | None:
        """The maximum number of tokens of any translation."""
        positions = max_positions(self.model.decoder)
        limits = [one for one in (strategy.max_length, None if positions is None else positions - 1) if one is not None]
        return min(limits, default=None)

    def room(self, row: TranslationRow, strategy: DecodingStrategy) -> int:
        """How many tokens may follow the prefix of a row."""
        if strategy.max_length is not None:
            return strategy.max_length - len(row.prefix)
        default = max(LENGTH_FACTOR * len(row.source) + EXTRA_LENGTH, strategy.min_length)
        positions = max_positions(self.model.decoder)  # the start has one too
        return default if positions is None else min(default, positions - 1 - len(row.prefix))

    def _constraints(self) -> list[Constraint]:
        """Forbid ids without a token, and padding: no target has it, so its probability was never trained."""
        padding, vocabulary = self.special.padding, self.vocabularies[-1]
        never = [] if self.tokenizer is None else ids_without_token(self.pair_tokenizer().target, vocabulary)
        if padding is not None and padding not in self.special.end and padding < vocabulary:  # else of the source only
            never.append(padding)
        return [ForbiddenTokens(never)] if never else []

    def _look(self, text: str) -> Callable[[Translation], Alignment]:
        return lambda translation: self.align([text], [translation])[0]

    def _tracer(self, text: str) -> "Callable[[Translation], Trace]":
        def trace(translation: Translation) -> "Trace":
            from regard.tasks.traces import INFLUENCE_LIMIT, trace_generated

            return trace_generated(self, text, translation, influence_limit=INFLUENCE_LIMIT)

        return trace


def controls_for_language(tokenizer: PairTokenizer | None, to: str | None, own: str | None,
                          directions: Sequence[LanguagePair] = (), source: str | None = None) -> tuple[str, ...]:
    """The control tokens before every source, for the target language that a user asks for.

    A language that the model does not know, or a missing one, is a ValueError that lists what exists.

    Args:
        own: the target language of a model of one direction, if it is known.
        directions: those that a model for several languages was trained on.
        source: the source language of a model of one direction, if it is known.
    """
    known = {} if tokenizer is None else target_controls(tokenizer.source.controls)
    if tokenizer is None or not known:
        if to is None or (own is not None and find_language(to, [own]) is not None):
            return () if tokenizer is None else tokenizer.controls
        direction = f"This one translates {source}-{own}. " if source and own else ""
        raise checks.wrong("to", "left out for a model of one direction" if own is None else
                           f'"{own}", the only language that this model translates into, or left out', f'"{to}"',
                           f"{direction}A model for several languages is trained with --direction.")
    if to is None and (tokenizer.controls or len(known) == 1):
        return tokenizer.controls or tuple(known.values())
    found = None if to is None else find_language(to, known)
    if found is not None:
        return (known[found],)
    trained = f"It was trained on {', '.join(map(str, directions))}." if directions else ""
    shown = ", ".join([*known][:MAX_LANGUAGES])
    shown += f" and {len(known) - MAX_LANGUAGES} more" if len(known) > MAX_LANGUAGES else ""
    if to is None:
        raise ValueError("This model translates into several languages: choose one with --to (to=... in Python). They "
                         f"are {shown}. {trained}".rstrip())
    raise checks.wrong("to", f"one of the languages that this model translates into, {shown}", f'"{to}"', trained)


def prefix_for_each(prefix: str | Sequence[str], texts: Sequence[str]) -> list[str]:
    """The prefix of each text; one prefix may be given for all."""
    if isinstance(prefix, str):
        return as_texts("prefix", prefix) * len(texts)
    prefixes = as_texts("prefix", prefix)
    if len(prefixes) != len(texts):
        raise checks.wrong("prefix", f"one text, or one for each of the {len(texts):,}", f"{len(prefixes):,} of them")
    return prefixes


def with_prefix(prefix: Sequence[int], log_probabilities: Sequence[float],
                found: list[Hypothesis]) -> list[Hypothesis]:
    """Hypotheses that begin with a prefix, whose tokens have these log-probabilities."""
    return found if not prefix else [
        replace(one, ids=[*prefix, *one.ids], log_probabilities=[*log_probabilities, *one.log_probabilities])
        for one in found]


def check_prefix_length(ids: Sequence[int], longest: int | None, argument: str) -> None:
    """Refuse a prefix that is longer than a translation may be."""
    if longest is not None and len(ids) > longest:
        raise checks.wrong(argument, f"at most {longest} tokens long, the maximum length of a translation",
                           f"{len(ids)} tokens long")


def _make_translation(tokenizer: Tokenizer, found: Hypothesis) -> Translation:
    return Translation(tokenizer.decode(found.ids), found.score, tuple(found.ids), found.cut,
                       log_probabilities=tuple(found.log_probabilities), tokenizer=tokenizer)


def _choose_by_mbr(candidates: tuple[Translation, ...], strategy: DecodingStrategy) -> Translation:
    """The candidate of the highest expected chrF, which becomes its score; the others are its alternatives."""
    weights = None if isinstance(strategy, Sampling) else _relative_probabilities(candidates)
    ranked = dict[str, Translation]()
    for number, utility in mbr([one.text for one in candidates], weights=weights):
        ranked.setdefault(candidates[number].text, replace(candidates[number], score=utility, alternatives=()))
    return with_alternatives([*ranked.values()])


def _relative_probabilities(candidates: tuple[Translation, ...]) -> list[float]:
    """The probability of each candidate divided by the highest."""
    totals = [sum(one.log_probabilities) for one in candidates]
    return [math.exp(total - max(totals)) for total in totals]
