"""The sentence pairs of a training: from files to parts, a validation split, a tokenizer, ids on disk, and batches.

    survey_pairs(data, validation, config)       statistics of the files, with the data filters applied
    survey_directions(directions, config)        the same for the directions of a model for several languages
    split_pairs(survey, config)                  the same with the validation split
    prepare_pairs(survey, tokenizer, place)      a tokenizer, trained once, and all pairs as ids on disk
    translation_feed(prepared, config, seed)     batches of them

A corpus has one part or several: the directions of a model for several languages, data that is mixed in, synthetic
pairs. The parts differ in the control tokens before their sources and in how often their pairs are drawn.

Without validation data, pairs whose source has a small hash are held out, so that all pairs with the same source are on
the same side of the split, in any order. A part that is read in reverse is split by what is its target then, so that
both directions of a pair are on the same side.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from regard import config as configs
from regard.checks import plural
from regard.data import doctor
from regard.data import store as stores
from regard.data.batches.batch import SamplingReader, SequenceReader
from regard.data.batches.feed import BatchConfig, PlanFeed, batch_feed
from regard.data.batches.plan import ExampleNumbers, PartRates
from regard.data.directions import DirectionData, check_directions, read_direction
from regard.data.doctor import DoctorReport
from regard.data.filters import filter_pairs
from regard.data.languages import LanguagePair
from regard.data.sources import formats
from regard.data.sources.text import DataError, SentencePair
from regard.data.store import PairStore, Ragged
from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.tasks.translator import Translator
from regard.training.config import DataConfig
from regard.training.defaults import GENERAL_FRACTION, MAX_GENERAL_EXAMPLES
from regard.training.tasks.common import (
    file_digests,
    hash_bytes,
    in_blocks,
    list_digests,
    load_or_train_pair_tokenizer,
    name_digests,
    open_inputs,
    read_summary,
)
from regard.training.tasks.interface import ProgressHook, SyntheticPairs

BACK_TRANSLATED = "<bt>"
"""The control token before synthetic sources (Caswell et al. 2019); sources of users never have it."""
SYNTHETIC, SYNTHETIC_PAIRS = "synthetic", "synthetic_pairs"
"""The name of the part with synthetic pairs, and of their number."""
MAX_SYNTHETIC_SHARE = 0.75
"""The default fraction of synthetic pairs in an epoch is that of the data, but at most this."""
MIN_HASHED_SPLIT = 500
"""Validation pairs from which on a hash threshold alone makes a split of about the right size."""
NOISE_LEFT_OUT, NOISE_DISTANCE = 0.1, 3.0
"""The fraction of words that a noisy copy leaves out, and the distance below which words may change places."""
DEFAULT_TEMPERATURE = 5.0
"""The sampling temperature of directions (Arivazhagan et al. 2019)."""
RESTORED, RESTORED_PAIRS, RESTORED_WEIGHT = "restored", "restored_pairs", 0.5
"""The end of the names of parts with sentences to restore, the name of their number, and how often they are drawn, as a
fraction of a direction of equal size."""
MIXED = "general data"
"""The name of the part that is mixed into the data that a model is fine-tuned on."""
RatesFunction = Callable[[Sequence[int]], Sequence[float]]
"""(training pairs of each part) -> how often an epoch draws each pair of a part"""


@dataclass(frozen=True)
class CorpusPart:
    """Pairs that are treated alike."""

    pairs: formats.PairCorpus
    report: DoctorReport
    name: str = ""
    """What messages call it; "" for the only part."""
    controls: tuple[str, ...] = ()
    """The control tokens before every source."""
    reverse: bool = False
    """Whether the pairs are trained from target to source."""
    restored: bool = False
    """Whether the sources are noisy copies of the targets, in their language."""
    validated: bool = True
    """Whether the model is validated on pairs of this part."""
    validation: formats.PairCorpus | None = None
    """Validation data; without it pairs are held out."""
    threshold: int = 0
    """Sources of general data with a hash below this are held out, to tell how much of it the model forgets."""

    def oriented(self, pair: SentencePair) -> SentencePair:
        """A pair as it is trained."""
        pair = pair._replace(source=pair.target, target=pair.source) if self.reverse else pair
        return pair._replace(source=add_noise(pair.target)) if self.restored else pair


class ValidationPair(NamedTuple):
    """A validation pair, and the number of its part."""

    source: str
    target: str
    part: int


@dataclass(frozen=True)
class TranslationSurvey:
    """Statistics of the files, and the pairs in them."""

    parts: tuple[CorpusPart, ...]
    config: DataConfig
    files: dict[str, str]
    """The sha256 of every file by its name, without its folder."""
    read_options: dict[str, str | None]
    """Source, target and format that the files are read with."""
    threshold: int = 0
    """Sources with a hash below this are held out. With 0 none is: without validation data the model is then validated
    on the training data."""
    rates: RatesFunction | None = None
    """How often the pairs of each part are drawn; None for once an epoch."""
    directions: tuple[LanguagePair, ...] = ()
    """The languages of each part of a model for several languages."""
    general: formats.PairCorpus | None = None
    """General validation data, apart from that of the parts; without it, that which the parts hold out."""
    reserved: frozenset[int] = frozenset()
    """Hashes of validation sources, which are left out of general data."""
    notes: tuple[str, ...] = ()
    """What the user should know about how the data fits the model that is fine-tuned."""
    distilled: bool = False
    """Whether the targets are translations of a teacher."""
    teacher: Translator | None = None
    """The teacher, if the student also learns from its probabilities."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What is stored with the model in [data], in place of what the files tell; None for nothing."""

    @property
    def report(self) -> DoctorReport:
        """The statistics of the first part."""
        return self.parts[0].report

    @property
    def validation_given(self) -> bool:
        """Whether every part that is validated has validation data of its own."""
        return all(part.validation is not None for part in self.parts if part.validated)

    @property
    def languages(self) -> LanguagePair | None:
        """The languages that the files tell, as the model is trained; None if they tell none, or different ones."""
        found = {*self._told_languages().values()}
        return found.pop() if len(found) == 1 else None

    def _told_languages(self) -> dict[str, LanguagePair]:
        """The languages of the files of the first part by file name, as the model is trained."""
        part = self.parts[0]
        return {name: pair.reverse if part.reverse else pair
                for name, pair in part.pairs.log.languages.items()}

    @property
    def kept(self) -> int:
        """The number of pairs that the filters keep, with those that are held out."""
        return sum(part.report.kept for part in self.parts)

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs, with those that are held out; general and synthetic pairs are counted apart."""
        apart = {key: sum(part.report.kept for part in self.parts if part.name.endswith(name))
                 for key, name in (("mixed_pairs", MIXED), (SYNTHETIC_PAIRS, SYNTHETIC), (RESTORED_PAIRS, RESTORED))}
        return {"pairs": self.kept - sum(apart.values()), **{key: count for key, count in apart.items() if count}}

    @property
    def splittable(self) -> int:
        """The number of pairs in the parts that the model is validated on."""
        return sum(part.report.kept for part in self.parts if part.validated)

    @property
    def warnings(self) -> list[str]:
        """What was read, and what the user should know about it."""
        notes = (note for part in self.parts if not (part.reverse or part.restored) for note in self._part_notes(part))
        return [*notes, *self.notes]

    def _part_notes(self, part: CorpusPart) -> Iterator[str]:
        report, dropped, found = part.report, part.report.dropped, self.languages
        source = self.config.source_lang or (found and found.source)
        target = self.config.target_lang or (found and found.target)
        direction = f"{source}-{target}" if source and target else ""
        both = ", both ways" if any(other.reverse and not other.restored and other.pairs is part.pairs
                                    for other in self.parts) else ""
        yield read_summary(plural(report.read, "pair"), part.pairs.files, f"{part.name or direction}{both}",
                           dropped.total, dropped.describe(report.filters))
        if report.skipped.counts:
            yield f"Not read: {report.skipped.describe()}."
        if part.validation is not None and report.overlap is not None:
            yield read_summary(plural(report.overlap.pairs, "validation pair"), part.validation.files)
        yield from part.pairs.log.notes
        yield from () if part.validation is None else part.validation.log.notes
        if part is self.parts[0] and all(other.name == MIXED for other in self.parts[1:]):
            yield from self._language_notes()
        elif self.directions:
            yield from (f"{name} looks like {pair}; using {part.name}, as you have set it."
                        for name, pair in part.pairs.log.languages.items() if str(pair) != part.name)
        yield from report.warnings()

    def _language_notes(self) -> Iterator[str]:
        """Contradictions between the languages of files, or with those that the user has set."""
        told, chosen = self._told_languages(), (self.config.source_lang, self.config.target_lang)
        for name, pair in told.items():
            if any(code is not None and code != own for code, own in zip(chosen, pair, strict=True)):
                using = LanguagePair(chosen[0] or pair.source, chosen[1] or pair.target)
                yield f"{name} looks like {pair}; using {using}, as you have set it."
        if len({*told.values()}) > 1 and None in chosen:
            files = ", ".join(f"{name} ({pair})" for name, pair in told.items())
            yield f"The files tell different languages: {files}. Set them with --languages, for example en-fr."

    def training_pairs(self) -> Iterator[SentencePair]:
        """The training pairs of all parts, one part after another."""
        return chain.from_iterable(map(self.part_pairs, self.parts))

    def part_pairs(self, part: CorpusPart) -> Iterator[SentencePair]:
        """The training pairs of a part, in their order, as they are trained."""
        return map(part.oriented, self.chosen_pairs(part))

    def chosen_pairs(self, part: CorpusPart) -> Iterator[SentencePair]:
        """The training pairs of a part, in their order, as they are in the files."""
        split = part.validation is None and (part.validated or part.restored)
        threshold = self.threshold if split else 0
        threshold, reserved = threshold or part.threshold, self.reserved if part.name == MIXED else frozenset[int]()
        return (pair for pair in self.kept_pairs(part) if (threshold == 0 and not reserved)
                or ((hashed := _hash_source(pair)) >= threshold and hashed not in reserved))

    def validation_pairs(self, limit: int) -> list[ValidationPair]:
        """The first validation pairs of every part that is validated, at most `limit` in all."""
        validated = [number for number, part in enumerate(self.parts) if part.validated]
        each, found = max(1, limit // len(validated)), list[ValidationPair]()
        for number in validated:
            part, threshold = self.parts[number], self.threshold
            pairs = self.kept_pairs(part) if part.validation is None else filter_pairs(part.validation,
                                                                                       self.config.filters)
            chosen = (pair for pair in pairs
                      if part.validation is not None or threshold == 0 or _hash_source(pair) < threshold)
            found += [ValidationPair(*part.oriented(pair)[:2], number) for pair in islice(chosen, each)]
        return found

    def general_pairs(self, limit: int) -> list[ValidationPair]:
        """The first pairs of the general validation data, with the number of the part whose control tokens they have.

        Without general data there are none.
        """
        if self.general is not None:
            return [ValidationPair(*pair[:2], 0) for pair in islice(filter_pairs(self.general, self.config.filters),
                                                                    limit)]
        chosen = (ValidationPair(*part.oriented(pair)[:2], number) for number, part in enumerate(self.parts)
                  if part.threshold for pair in self.kept_pairs(part) if _hash_source(pair) < part.threshold)
        return [*islice(chosen, limit)]

    def kept_pairs(self, part: CorpusPart) -> Iterator[SentencePair]:
        """The pairs of the files of a part that the filters keep, as they are in the files."""
        return filter_pairs(part.pairs, self.config.filters)


def _hash_source(pair: SentencePair) -> int:
    return hash_bytes(pair.source.encode())


def survey_pairs(data: Sequence[str], validation: Sequence[str], config: DataConfig, *, source: str | None = None,
                 target: str | None = None, format: str | None = None, progress: ProgressHook = iter,
                 reverse: bool = False) -> TranslationSurvey:
    """Read all pairs once.

    Args:
        reverse: whether the pairs are trained from target to source.
    """
    open_inputs((*data, *validation))
    part = survey_part(data, validation, config, source=source, target=target, format=format, progress=progress)
    options = {"source": source, "target": target, "format": format}
    return TranslationSurvey((replace(part, reverse=reverse),), config, file_digests((*data, *validation)), options)


def with_back_translations(survey: TranslationSurvey, synthetic: SyntheticPairs) -> TranslationSurvey:
    """The survey with synthetic pairs as a further part, which is tagged and not validated."""
    part = survey_part([synthetic.path], (), survey.config, format="jsonl")
    part = replace(part, name=SYNTHETIC, controls=(BACK_TRANSLATED,), validated=False)
    return replace(with_written_file(survey, synthetic), parts=(*survey.parts, part),
                   rates=partial(synthetic_rates, share=synthetic.share))


def with_written_file(survey: TranslationSurvey, synthetic: SyntheticPairs) -> TranslationSurvey:
    """The survey with the files of the user and that of the synthetic pairs, which the model does not name."""
    given = file_digests(synthetic.files)
    files = name_digests([*given.items(), (synthetic.path, stores.file_digest(synthetic.path))])
    return replace(survey, files=files, record={**synthetic.record, "files": list_digests(given)})


def survey_directions(directions: Sequence[DirectionData], config: DataConfig, *, source: str | None = None,
                      target: str | None = None, format: str | None = None, progress: ProgressHook = iter
                      ) -> TranslationSurvey:
    """Read all pairs of some directions once. A single direction needs no control token."""
    check_directions(directions)
    files = [*dict.fromkeys(path for one in directions for path in (*one.data, *one.validation))]
    open_inputs(files)
    options: dict[str, Any] = {"source": source, "target": target, "format": format}
    parts = list[CorpusPart]()
    controlled, used = len(directions) > 1, {one.file_languages for one in directions}
    for one in directions:
        if one.reverse:  # it follows the direction whose files it has
            part = replace(parts[-1], reverse=True)
        else:
            skipped = doctor.SkippedEntries()
            validation = read_direction(one, one.validation, **options) if one.validation else None
            part = _surveyed_part(read_direction(one, one.data, skipped=skipped, used=used, **options), validation,
                                  config, progress, skipped)
        if controlled:
            part = replace(part, name=one.name, controls=one.controls)
        else:
            part.pairs.log.languages[one.data[0]] = one.languages
        parts.append(part)
    temperature = config.sampling_temperature or DEFAULT_TEMPERATURE
    restored = _restored_parts(parts, directions) if config.zero_shot else []
    rates = partial(temperature_rates, temperature=temperature, restored=len(restored))
    return TranslationSurvey((*parts, *restored), config, file_digests(files), options,
                             rates=rates if controlled else None,
                             directions=tuple(one.languages for one in directions) if controlled else ())


def _restored_parts(parts: Sequence[CorpusPart], directions: Sequence[DirectionData]) -> list[CorpusPart]:
    """For each target language, a part that restores its sentences: those of the direction with most pairs."""
    largest = dict[str, CorpusPart]()
    for part, one in zip(parts, directions, strict=True):
        code = one.languages.target
        if code not in largest or part.report.kept > largest[code].report.kept:
            largest[code] = part
    return [replace(part, name=f"{code} {RESTORED}", restored=True, validated=False) for code, part in largest.items()]


def add_noise(text: str) -> str:
    """A noisy copy of a sentence: words are left out, and moved to nearby places; always the same for a text.

    Where words are not separated by spaces, single characters are treated like this.
    """
    separator = " " if " " in text.strip() else ""
    words, chance = text.split() if separator else list(text), Random(hash_bytes(text.encode()))
    kept = [word for word in words if chance.random() >= NOISE_LEFT_OUT] or words[:1]
    places = sorted(range(len(kept)), key=lambda place: place + chance.uniform(0, NOISE_DISTANCE))
    return separator.join(kept[place] for place in places)


def survey_part(data: Sequence[str], validation: Sequence[str], config: DataConfig, *, source: str | None = None,
                target: str | None = None, format: str | None = None, progress: ProgressHook = iter) -> CorpusPart:
    """Read the pairs of one part once. A part without pairs is refused."""
    skipped = doctor.SkippedEntries()
    pairs = formats.read_pairs(data, source=source, target=target, format=format, skipped=skipped)
    other = formats.read_pairs(validation, source=source, target=target, format=format) if validation else None
    return _surveyed_part(pairs, other, config, progress, skipped)


def _surveyed_part(pairs: formats.PairCorpus, validation: formats.PairCorpus | None, config: DataConfig,
                   progress: ProgressHook, skipped: doctor.SkippedEntries) -> CorpusPart:
    report = doctor.check_corpus(progress(pairs), config.filters, validation=validation, skipped=skipped)
    report = replace(report, skipped=deepcopy(skipped))  # the pairs are read again later, and counted again
    if not report.kept:
        raise DataError(f"{', '.join(pairs.files)}: " + " ".join(report.warnings()) + " There is nothing to train on.")
    if validation is not None and report.overlap is not None and not report.overlap.pairs:
        raise DataError(f"{', '.join(validation.files)}: The filters keep none of these pairs, so there is no "
                        "validation data.")
    return CorpusPart(pairs, report, validation=validation)


def mix_pairs(survey: TranslationSurvey, mix: Sequence[str], general: Sequence[str], *,
              progress: ProgressHook = iter) -> TranslationSurvey:
    """The survey with general data that is mixed in, and general validation data. Either may be empty.

    Without general validation data, some of the mixed pairs are held out for it.
    """
    open_inputs((*mix, *general))
    options: dict[str, Any] = dict(survey.read_options)
    parts = survey.parts
    tested = formats.read_pairs(general, **options) if general else None
    if tested is not None and next(iter(filter_pairs(tested, survey.config.filters)), None) is None:
        raise DataError(f"{', '.join(general)}: The filters keep none of these pairs, so there is no general "
                        "validation data.")
    if mix:
        part = replace(survey_part(mix, (), survey.config, progress=progress, **options), name=MIXED, validated=False,
                       controls=parts[0].controls)
        if tested is None:
            held = min(GENERAL_FRACTION, MAX_GENERAL_EXAMPLES / part.report.kept)
            part = replace(part, threshold=_hash_threshold(held, part.report.kept, lambda: survey.kept_pairs(part)))
        parts = (*parts, part)
    digests = [*survey.files.items(), *((path, stores.file_digest(path)) for path in (*mix, *general))]
    return replace(survey, parts=parts, general=tested, files=name_digests(digests))


def _hash_threshold(fraction: float, count: int, pairs: Callable[[], Iterator[SentencePair]]) -> int:
    """The hash below which sources are held out: about this fraction of them; 0 if none can be."""
    if fraction * count >= MIN_HASHED_SPLIT:
        return round(fraction * 2**64)
    # A threshold for few pairs could hold out none of them, or all: the distinct sources are counted.
    distinct = sorted({_hash_source(pair) for pair in pairs()})
    held = min(len(distinct) - 1, max(1, round(fraction * len(distinct))))
    return distinct[held] if held else 0


def split_pairs(survey: TranslationSurvey, config: DataConfig) -> TranslationSurvey:
    """The survey with the validation split of the config. Its filters stay those it was made with."""
    survey = replace(survey, config=replace(config, filters=survey.config.filters))
    split = [part for part in survey.parts if part.validated and part.validation is None]
    if split and config.validation_fraction:
        threshold = _hash_threshold(config.validation_fraction, sum(part.report.kept for part in split),
                                    lambda: chain.from_iterable(map(survey.kept_pairs, split)))
        survey = replace(survey, threshold=threshold)
    if any(part.name == MIXED for part in survey.parts):
        tested = [*survey.validation_pairs(sys.maxsize), *survey.general_pairs(sys.maxsize)]
        survey = replace(survey, reserved=frozenset(hash_bytes(pair.source.encode()) for pair in tested))
    return survey


@dataclass(frozen=True)
class PreparedTranslation:
    """Sentence pairs as ids."""

    survey: TranslationSurvey
    tokenizer: PairTokenizer
    store: PairStore
    texts: PairStore | None
    """The texts as bytes, for subword sampling."""
    notes: tuple[str, ...]
    rates: PartRates | None = None
    """How often the pairs of each part are drawn in an epoch; None if there is one part."""

    def part_tokenizer(self, part: int) -> PairTokenizer:
        """The tokenizers with the control tokens of a part."""
        return self.tokenizer.with_controls(*self.survey.parts[part].controls)


def prepare_pairs(survey: TranslationSurvey, config: TokenizerConfig | None, place: Path, *, sampled: bool = False,
                  tokenizer: PairTokenizer | None = None) -> PreparedTranslation:
    """Train the tokenizer, or load the one trained before, and write all pairs as ids.

    Args:
        place: the folder for tokenizer and ids.
        sampled: whether to store the texts too, for subword sampling.
        tokenizer: one that exists already, instead of one that is trained on the pairs.
    """
    data = list(survey.files.values())
    held = None if survey.validation_given else survey.config.validation_fraction
    settings = {"filters": configs.to_tables(survey.config.filters), "held": held, "end": True,
                "files": len(survey.parts[0].pairs.files), **survey.read_options}  # those after these are validation
    if len(survey.parts) > 1:
        settings["parts"] = [[part.name, *part.controls, part.reverse, part.validated, len(part.pairs.files)]
                             for part in survey.parts]
    if any(part.threshold for part in survey.parts):
        settings["held_out"] = [part.threshold for part in survey.parts]
    notes = list[str]()
    if tokenizer is None:
        assert config is not None, "without a tokenizer one is trained"
        sides = (lambda: (pair.source for part in survey.parts if part.name != SYNTHETIC  # these have no new words
                          for pair in survey.part_pairs(part)),
                 lambda: (pair.target for pair in survey.training_pairs()))
        controls = [*dict.fromkeys(name for part in survey.parts for name in part.controls)]
        trained = load_or_train_pair_tokenizer(place, sides, config, joint=survey.config.joint_tokenizer, data=data,
                                               settings=settings, controls=controls)
        tokenizer, notes = trained.tokenizer, [*trained.notes]
    key = stores.store_key(data, tokenizer.sha256, settings)
    opened = stores.open_or_make_pairs(place / "ids", key, lambda: _encode_pairs(survey, tokenizer),
                                       vocabularies=(tokenizer.source.size, tokenizer.target.size))
    texts = None
    if sampled:
        texts = stores.open_or_make_pairs(place / "texts", key, lambda: _encode_bytes(survey),
                                          vocabularies=(256, 256)).store
    rates = _part_rates(survey)
    notes += [*_direction_notes(survey, rates), *_synthetic_notes(survey, rates)]
    return PreparedTranslation(survey, tokenizer, opened.store, texts, (*notes, *opened.notes), rates)


def _part_rates(survey: TranslationSurvey) -> PartRates | None:
    if len(survey.parts) == 1:
        return None
    counts = tuple(sum(1 for _ in survey.chosen_pairs(part)) for part in survey.parts)
    return PartRates(counts, tuple([1.0] * len(counts) if survey.rates is None else survey.rates(counts)))


def _direction_notes(survey: TranslationSurvey, rates: PartRates | None) -> list[str]:
    """How often each direction is drawn, if some are drawn more often than others."""
    if not survey.directions or rates is None or len({*rates.counts}) == 1:
        return []
    drawn = [count * rate for count, rate in zip(rates.counts, rates.rates, strict=True)]
    shares = ", ".join(f"{part.name} {one / sum(drawn):.0%} instead of {count / sum(rates.counts):.0%}"
                       for part, one, count in zip(survey.parts, drawn, rates.counts, strict=True))
    return [f"Shares of the directions in the batches (data.sampling_temperature = "
            f"{survey.config.sampling_temperature:g}): {shares}."]


def _synthetic_notes(survey: TranslationSurvey, rates: PartRates | None) -> Iterator[str]:
    """How often real and synthetic pairs are drawn."""
    if rates is None or [part.name for part in survey.parts][1:] != [SYNTHETIC]:
        return
    drawn = [count * rate for count, rate in zip(rates.counts, rates.rates, strict=True)]
    yield (f"Synthetic pairs are {drawn[1] / sum(drawn):.0%} of an epoch: each of the {rates.counts[0]:,} real pairs "
           f"is drawn {rates.rates[0]:.2g} times, each of the {rates.counts[1]:,} synthetic pairs {rates.rates[1]:.2g} "
           "times.")


def _encode_pairs(survey: TranslationSurvey, tokenizer: PairTokenizer) -> Iterator[tuple[list[int], list[int]]]:
    for part in survey.parts:
        both = tokenizer.with_controls(*part.controls)
        for block in in_blocks(survey.part_pairs(part)):
            yield from zip(both.encode_sources([pair.source for pair in block]),
                           both.encode_targets([pair.target for pair in block]), strict=True)


def _encode_bytes(survey: TranslationSurvey) -> Iterator[tuple[list[int], list[int]]]:
    return ((list(pair.source.encode()), list(pair.target.encode())) for pair in survey.training_pairs())


def translation_feed(prepared: PreparedTranslation, config: BatchConfig, seed: int, sampling: float = 0.0,
                     rank: int = 0, processes: int = 1) -> PlanFeed:
    """The batches of all training pairs."""
    read: SequenceReader | None = None
    if sampling:
        assert prepared.texts is not None, "prepared with sampled=True"
        read = SamplingReader(prepared.texts, _samplers(prepared.tokenizer, sampling), seed)
        if prepared.rates is not None:
            read = ControlledReader(read, prepared.rates.counts, tuple(
                tuple(map(prepared.tokenizer.source.control_id, part.controls)) for part in prepared.survey.parts))
    return batch_feed(prepared.store, prepared.tokenizer.target.special, config, seed=seed, rank=rank,
                      processes=processes, read=read, rates=prepared.rates)


def _samplers(tokenizer: PairTokenizer, alpha: float) -> tuple[Callable[[str, int], Sequence[int]], ...]:
    end = list(tokenizer.source.special.end[:1])
    return (lambda text, seed: tokenizer.source.sample(text, alpha=alpha, seed=seed) + end,
            lambda text, seed: tokenizer.target.sample(text, alpha=alpha, seed=seed))


@dataclass(frozen=True)
class ControlledReader:
    """Reads pairs as another reader does, with the control tokens of its part before every source."""

    read: SequenceReader
    counts: tuple[int, ...]
    """The pairs of each part."""
    controls: tuple[tuple[int, ...], ...]
    """The control ids of each part."""

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> tuple[Ragged, ...]:
        source, *others = self.read(numbers, epoch)
        part = np.searchsorted(np.cumsum(self.counts), numbers, side="right")
        before = [self.controls[one] for one in part.tolist()]
        added = np.array([len(ids) for ids in before], np.int64)
        starts = np.repeat(np.cumsum(source.lengths) - source.lengths, added)
        ids = np.insert(source.ids, starts, np.array([one for ids in before for one in ids], np.int64))
        return Ragged(ids, source.lengths + added), *others


def synthetic_share(counts: Sequence[int]) -> float:
    """The default fraction of synthetic pairs in an epoch, given the numbers of real and of synthetic pairs."""
    real, synthetic = counts
    return min(MAX_SYNTHETIC_SHARE, synthetic / max(1, real + synthetic))


def synthetic_rates(counts: Sequence[int], share: float | None = None) -> list[float]:
    """Rates of real and synthetic pairs: as many in all as there are, a fraction `share` of them synthetic."""
    share = synthetic_share(counts) if share is None else share
    return [sum(counts) * part / max(1, count) for part, count in zip((1 - share, share), counts, strict=True)]


def mixed_rates(counts: Sequence[int], share: float) -> list[float]:
    """Rates of two parts: all pairs of the first once an epoch, and so many of the second that it has this share."""
    first, second = counts
    if not second and share:
        raise DataError("No general data is left to mix in: all of it is validation data too. Use other files.")
    return [1.0, share / (1 - share) * first / max(1, second)]


def temperature_rates(counts: Sequence[int], temperature: float, restored: int = 0) -> list[float]:
    """Rates that draw from each part in proportion to count ** (1 / temperature), as many pairs in all as there are.

    With temperature 1 every pair is drawn once; the higher it is, the more often are pairs of small parts drawn
    (Arivazhagan et al. 2019).

    Args:
        restored: how many of the last parts have sentences to restore.
    """
    weights = [count ** (1 / temperature) for count in counts]
    first = len(counts) - restored
    weights[first:] = [RESTORED_WEIGHT * weight for weight in weights[first:]]
    total = sum(counts) / sum(weights)
    return [total * weight / max(1, count) for weight, count in zip(weights, counts, strict=True)]
