"""Synthetic sentence pairs: a model writes one side of them, line by line, before a training uses them.

    check_synthesis(request)                       refuses wrong or contradictory options before anything is read
    StagesRecord(output)                           stages.json: what is done, so that nothing is repeated
    write_pairs(path, texts, work, ...)            a JSONL file of pairs, resumed after the last block if it was killed
    keep_pairs(path, output)                       a copy of them as TSV, for the user
    check_languages(...), check_direction(...)     refuse a model that cannot write this side
    resembles_sources(texts, pairs)                is a text in the language of the sources?

Two procedures are built from these parts: `regard.training.back_translation` and `regard.training.distillation`. Both
write into the data folder of the training. Finished sentences are kept in the journal of `regard.tasks.documents`:
lines are only appended, block by block, and every block is written with the same neighbours, so that a resumed training
gets the same pairs to the last byte. A sentence that the model cannot read (it is too long) is left out.
"""

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from regard import checks, config, toml
from regard.data.directions import names_languages
from regard.data.filters import FilterConfig, is_blank
from regard.data.languages import LanguagePair, find_language, known_pair, same_languages
from regard.data.sources import formats
from regard.data.sources.text import DataError, SentencePair, printable
from regard.storage import filesystem
from regard.tasks.degenerate import find_degenerate
from regard.tasks.documents import PROGRESS_SUFFIX, HasText, Journal, already_exists, split_blocks
from regard.tasks.evaluation import translation_loss
from regard.tasks.load import load
from regard.tasks.task import WEIGHTS_FILE, isolate_errors
from regard.tasks.translator import Translator
from regard.toml import TomlDocument
from regard.training import resolution
from regard.training.config import DataConfig
from regard.training.distributed import DistributedContext
from regard.training.folder_claim import FolderClaim
from regard.training.logging import EventHandler, Note, SynthesisProgress
from regard.training.resolution import DATA_FOLDER, STAGES_FILE
from regard.training.short_options import OptionSpelling
from regard.training.tasks.common import hash_bytes, open_inputs
from regard.training.tasks.interface import SynthesisRequest, TrainingRequest
from regard.training.tasks.sentence_pairs import TranslationSurvey, split_pairs, survey_pairs
from regard.training.tasks.translation import TranslationSetup

BLOCK_SIZE = 1024
"""Sentences that are written together; at most these are lost when the process is killed."""
DIRECTION_PAIRS, DIRECTION_CHARACTERS, DIRECTION_MARGIN = 100, 200, 0.5
"""A direction is checked on this many pairs of at most so many characters; it is wrong if the loss of the other one is
lower by more than the margin, in nats per token."""
PROFILE_PAIRS, PROFILE_TEXTS, PROFILE_MAJORITY = 20_000, 2000, 2 / 3
"""Pairs and texts that are compared by their character trigrams, and the fraction of texts that decides."""
DEPENDENT_OPTIONS = ("layers", "width", "dropout", "batch_tokens")
"""Short options that are not yet keys of the config when the stages begin."""
Write = Callable[[list[str]], Sequence[HasText]]
"""Writes the other side of each text."""


@dataclass(frozen=True)
class StageContext:
    """A training whose synthetic pairs are about to be written."""

    request: TrainingRequest
    document: TomlDocument
    """The config as far as the user has set it."""
    processes: DistributedContext
    device: torch.device
    report: EventHandler
    claim: FolderClaim
    record: "StagesRecord"

    @property
    def place(self) -> Path:
        """The data folder of the training."""
        return self.request.output / DATA_FOLDER

    @property
    def options(self) -> SynthesisRequest:
        """What the user wants to be written."""
        assert self.request.synthesis is not None, "only then there are stages"
        return self.request.synthesis

    def begin(self, number: int, stages: int, what: str) -> None:
        """Tell the user which stage begins."""
        self.report(Note(f"Stage {number} of {stages}: {what}."))


class TrainStage(Protocol):
    """Trains a model in a stage; the result is a `regard.training.train.TrainingResult`."""

    def __call__(self, request: TrainingRequest, document: TomlDocument | None = None) -> Any:
        """Train with the settings of a document, or with those of the request alone."""


class Staged(NamedTuple):
    """A training with its synthetic pairs, ready to begin."""

    request: TrainingRequest
    document: TomlDocument


# Options

def check_synthesis(request: TrainingRequest) -> None:
    """Refuse options for synthetic pairs that are wrong or contradict each other."""
    given = request.synthesis
    if given is None:
        return
    name = OptionSpelling(request.option_prefix).name
    if request.task != "seq2seq":
        raise ValueError(f"{name('monolingual')} and {name('teacher')} are for sentence pairs, not for the task "
                         f'"{request.task}". Leave them out.')
    used = name("teacher" if given.teacher is not None and not given.monolingual else "monolingual")
    if request.start is not None:
        raise ValueError(f"{used} cannot be combined with {name('from')}. Train a model with {used} first, then "
                         f"fine-tune it with {name('from')}.")
    if request.directions or request.both_ways:
        raise ValueError(f"{used} cannot be combined with {name('both_ways' if request.both_ways else 'direction')}: "
                         "synthetic pairs are for one direction. Leave one of them out.")
    if given.monolingual and given.teacher is not None:
        raise ValueError(f"{name('monolingual')} and {name('teacher')} cannot be combined in one training. Train the "
                         f"teacher with {name('monolingual')} first, then the student with {name('teacher')}.")
    for option, value in (("reverse", given.reverse), ("synthetic_share", given.share),
                          ("temperature", given.temperature), ("top_k", given.top_k)):
        if value is not None and not given.monolingual:
            raise ValueError(f"{name(option)} has an effect on back-translation only. Give {name('monolingual')} too, "
                             "or leave it out.")
    if given.sampled_sources is not None:
        if given.teacher is None:
            raise ValueError(f"{name('sampled_sources')} has an effect on distillation only. Give {name('teacher')} "
                             "too, or leave it out.")
        checks.whole_number(name("sampled_sources"), given.sampled_sources)
    if given.keep is not None and not given.monolingual and given.teacher is None:
        raise ValueError(f"{name('keep_synthetic')} needs synthetic pairs. Give {name('monolingual')} or "
                         f"{name('teacher')} too, or leave it out.")
    if given.share is not None and not 0 < given.share < 1:
        raise checks.wrong(name("synthetic_share"), "a fraction between 0 and 1", given.share)
    if given.temperature is not None and not 0 < given.temperature < math.inf:
        raise checks.wrong(name("temperature"), "a number above 0", given.temperature)
    if given.top_k is not None:
        checks.whole_number(name("top_k"), given.top_k, 1)
    if given.keep is not None and not request.resume:
        if os.path.lexists(given.keep):
            raise already_exists(Path(given.keep))
        if not os.path.isdir(os.path.dirname(given.keep) or "."):
            raise DataError(f"{printable(given.keep)}: There is no folder for this file. Create it, or choose another "
                            "name.")


# The record of the stages

class StagesRecord:
    """How far a training with synthetic pairs has come: stages.json in its data folder.

    It has the settings of the user, so that a training that is resumed before its first checkpoint is the same.
    """

    def __init__(self, output: Path, processes: DistributedContext) -> None:
        self.path, self.main = output / STAGES_FILE, processes.main
        text = self.path.read_text(encoding="utf-8") if self.main and self.path.exists() else None
        text = processes.broadcast(text)
        self.values: dict[str, Any] = {} if text is None else self._parse(text)

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict) or not isinstance(values.get("identity"), dict):
            raise DataError(f"{printable(str(self.path))} is damaged. Remove the folder "
                            f"{printable(str(self.path.parent))} to write the synthetic pairs again.")
        return values

    def update(self, **values: Any) -> None:
        """Store values; on disk before this returns."""
        self.values |= values
        if self.main:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            filesystem.write_file(self.path, json.dumps(self.values, indent=1).encode())

    def settings(self, request: TrainingRequest, requested: TomlDocument) -> TomlDocument:
        """The config that the user has set: now, or in the call that is resumed, from which it may not differ."""
        options = {name: request.options.get(name) for name in DEPENDENT_OPTIONS}
        stored = self.values.get("identity")
        if stored is None:
            identity = resolution.training_identity(request, config.to_tables(requested.tables), {}, None)
            self.update(identity={**identity, "options": options})
            return requested
        different = [f"{name} was {stored['options'].get(name)} and is {value}" for name, value in options.items()
                     if stored["options"].get(name) != value]
        if different:
            raise DataError(f"{request.output}: This training cannot be resumed with other settings: "
                            f"{'; '.join(different)}. Use the stored settings, or choose another folder.")
        return resolution.stored_config(stored, request, requested)


def check_no_stages(request: TrainingRequest, requested: TomlDocument, processes: DistributedContext) -> None:
    """Refuse to resume a training with synthetic pairs without its options."""
    record = StagesRecord(request.output, processes)
    if record.values:
        record.settings(request, requested)


# Time

def with_max_time(document: TomlDocument, seconds: float | None) -> TomlDocument:
    """The document with this time limit for the training; unchanged without one."""
    return document if seconds is None else toml.override(document, {"training.max_time": seconds}, "--time")


def stage_seconds(context: StageContext, *stages: str) -> float:
    """The seconds that some stages have taken, of those that are done."""
    return sum(context.record.values.get(f"{stage}_seconds", 0.0) for stage in stages)


def time_left(context: StageContext, least: float) -> float | None:
    """The time limit of the last stage, from that of all stages and what the others took; None without one.

    Args:
        least: the fraction of the whole that the last stage gets in any case.
    """
    limit, values = resolution.total_time(context.request), context.record.values
    if limit is None:
        return None
    if "max_time" not in values:
        used = stage_seconds(context, "reverse", "language_model", "sampling", "writing")
        context.record.update(max_time=context.processes.broadcast(max(limit - used, least * limit)))
    return float(values["max_time"])


def without_total_time(request: TrainingRequest, document: TomlDocument) -> TomlDocument:
    """The document without the time limit of all stages, which is not that of the last one."""
    training = document.tables.get("training", {})
    if request.synthesis is None or "max_time" not in training:
        return document
    kept = {key: value for key, value in training.items() if key != "max_time"}
    return replace(document, tables={**document.tables, "training": kept})


# The data of the user

def data_config(document: TomlDocument) -> DataConfig:
    """The [data] of a config as far as the user has set it."""
    return config.read_config(DataConfig | None, document, ("data",)) or DataConfig()


def split_survey(context: StageContext) -> TranslationSurvey:
    """The sentence pairs of the user with their validation split, as the training will make it."""
    request, setup = context.request, TranslationSetup()
    named = [path for path in request.data if request.source is None and names_languages(path, request.format)]
    if named:
        raise DataError(f"{printable(named[0])}: The lines of this file name their languages, but synthetic pairs are "
                        "for one direction. Put the pairs of one direction into a file without these languages.")
    survey = survey_pairs(request.data, request.validation, data_config(context.document), source=request.source,
                          target=request.target, format=request.format, progress=request.progress)
    filled = resolution.fill_defaults(context.document, setup.data_defaults(survey, context.document.tables),
                                      context.document)
    return split_pairs(survey, config.read_config(DataConfig, filled, ("data",)))


def languages_are_set(document: TomlDocument) -> bool:
    """Whether the user has set both languages."""
    return {"source_lang", "target_lang"} <= document.tables.get("data", {}).keys()


def known_languages(document: TomlDocument, survey: TranslationSurvey | None) -> LanguagePair | None:
    """The languages that the user has set, or that the files tell; None unless both are known."""
    table, told = document.tables.get("data", {}), None if survey is None else survey.languages
    source = table.get("source_lang") or (told and told.source)
    target = table.get("target_lang") or (told and told.target)
    return LanguagePair(source, target) if source and target else None


class TextSelection:
    """The lines of plain files that are worth writing: not blank, not too long, each once, and not excluded.

    Args:
        excluded: keys (`text_key`) of texts to leave out.
    """

    def __init__(self, files: Sequence[str], filters: FilterConfig, excluded: frozenset[int] = frozenset()) -> None:
        open_inputs(files)
        self.texts = formats.read_texts(files, format="plain")
        self.filters, self.excluded = filters, excluded
        self.skipped: Counter[str] = Counter()
        """How many lines the last iteration has left out, by reason."""

    def __iter__(self) -> Iterator[str]:
        seen, self.skipped = set[int](), Counter()
        for line in self.texts:
            text, reason = line.text.strip(), ""
            if is_blank(text):
                reason = "blank"
            elif len(text) > self.filters.max_characters or len(text.split()) > self.filters.max_words:
                reason = "too long"
            elif self.excluded and text_key(text) in self.excluded:
                reason = "in the validation data"
            elif (key := hash_bytes(text.encode())) in seen:
                reason = "duplicate"
            else:
                seen.add(key)
            if reason:
                self.skipped[reason] += 1
            else:
                yield text

    def describe(self) -> str:
        """The counts in words, after an iteration: "2 blank, 3 duplicate"; empty if nothing was left out."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.skipped.items())


def text_key(text: str) -> int:
    """A hash of a text without its case, spaces and punctuation, by which near copies are recognised."""
    letters = "".join(filter(str.isalnum, text.casefold()))
    return hash_bytes((letters or text).encode())


def validation_keys(survey: TranslationSurvey) -> frozenset[int]:
    """The keys of all targets that the model is validated on; none if it is validated on its training data."""
    if not survey.validation_given and not survey.threshold:
        return frozenset()
    return frozenset(text_key(pair.target) for pair in survey.validation_pairs(2**62))


def resembles_sources(texts: Iterable[str], pairs: Iterable[SentencePair]) -> bool:
    """Whether most of these texts look more like the sources of pairs than like their targets.

    The sides are compared by the probabilities of character trigrams, with 1/2 added to every count.
    """
    profiles = Counter[str](), Counter[str]()
    for pair in islice(pairs, PROFILE_PAIRS):
        for profile, text in zip(profiles, pair[:2], strict=True):
            profile.update(_trigrams(text))
    distinct, votes, count = len(profiles[0] | profiles[1]), 0, 0
    totals = [math.log(profile.total() + distinct / 2 + 1) for profile in profiles]
    for text in islice(texts, PROFILE_TEXTS):
        source, target = (sum(math.log(profile[part] + 0.5) - total for part in _trigrams(text))
                          for profile, total in zip(profiles, totals, strict=True))
        votes, count = votes + (source > target), count + 1
    return votes > PROFILE_MAJORITY * count


def _trigrams(text: str) -> Iterator[str]:
    padded = f"  {text.lower()} "
    return (padded[start:start + 3] for start in range(len(padded) - 2))


# The model that writes

def load_writer(folder: str, option: str, device: torch.device, target: str | None = None) -> Translator:
    """The model that writes synthetic pairs; a ValueError if it cannot translate text.

    Args:
        option: how the user has named it, for messages.
        target: the language that it should translate into, if it is known; a model for several languages needs it.
    """
    if (Path(folder) / "model.bin").is_file() and not (Path(folder) / WEIGHTS_FILE).exists():
        raise ValueError(f"{option} {folder}: This is an export for CTranslate2. Name the model that was exported.")
    found = load(folder, device=device)
    if not isinstance(found, Translator):
        raise ValueError(f"{option} {folder}: This model is not a translator. Give the folder of one.")
    if found.tokenizer is None:
        raise ValueError(f"{option} {folder}: This model has no tokenizer, so it cannot translate text.")
    known = found.target_languages
    if len(known) < 2:
        return found
    if target is None or find_language(target, known) is None:
        missing = "Your data does not tell its languages" if target is None else f"It does not translate into {target}"
        raise ValueError(f"{option} {folder}: This model translates into several languages: {', '.join(known)}. "
                         f"{missing}. Set the languages of your data, for example en-fr (--languages; "
                         "source_lang and target_lang in Python), or name another model.")
    return found.into(target)


def check_languages(folder: str, option: str, translator: Translator, languages: LanguagePair | None, *,
                    chosen: bool) -> None:
    """Refuse a model for other languages, if both are known.

    Args:
        languages: those that it should translate from and to.
        chosen: the user has set them, rather than file names or a header: then only the opposite is refused, since a
            model for a close language may do.
    """
    own = known_pair(translator.source_lang, translator.target_lang)
    if own is None or languages is None or same_languages(own, languages):
        return
    opposite = same_languages(own, languages.reverse)
    if opposite or not chosen:
        remedy = "" if opposite else (" To use it all the same, set the languages of your data (--languages; "
                                      "source_lang and target_lang in Python).")
        raise ValueError(f"{option} {folder}: This model translates {own}, but one for {languages} is needed.{remedy}")


def check_direction(folder: str, option: str, translator: Translator, pairs: Iterable[SentencePair]) -> None:
    """Refuse a model whose loss on some pairs tells that it translates in the other direction.

    Args:
        pairs: as the model should translate them.
    """
    some = list(islice(((pair.source, pair.target) for pair in pairs
                        if max(len(pair.source), len(pair.target)) <= DIRECTION_CHARACTERS), DIRECTION_PAIRS))
    if not some:
        return
    right, wrong = (translation_loss(translator, each).mean for each in (some, [pair[::-1] for pair in some]))
    if wrong < right - DIRECTION_MARGIN:
        raise ValueError(f"{option} {folder}: This model translates in the other direction: on {len(some)} of your "
                         f"pairs its loss is {right:.2f} per token as it would be used here, and {wrong:.2f} the "
                         "other way round. Give a model of the other direction, or swap the sides of your data.")


# Writing

def is_written(path: Path) -> bool:
    """Whether a file of synthetic pairs is complete, with nothing left to clean up."""
    return path.exists() and not path.with_name(path.name + PROGRESS_SUFFIX).exists()


class WrittenPairs(NamedTuple):
    """How many sentences were written."""

    written: int
    failed: int
    """Sentences among these that the model could not read."""
    total: int
    """More than were written if the time was up."""


def write_pairs(context: StageContext, path: Path, texts: Iterable[str], work: Write, settings: Mapping[str, Any], *,
                text_is: str, seconds: float | None = None) -> WrittenPairs:
    """Write synthetic pairs as JSONL, or resume writing them.

    Args:
        texts: the given side; iterated more than once, always the same.
        settings: everything that the written side depends on besides the texts.
        text_is: the side of the texts, "source" or "target".
        seconds: the time after which no further block is begun.
    """
    start, total = time.monotonic(), sum(1 for _ in texts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Journal(path, {**settings, "block": BLOCK_SIZE}, BLOCK_SIZE) as journal:
        context.claim.keep()
        if not journal.finished:
            first = journal.count
            context.report(SynthesisProgress(first, total, 0.0))
            for block in split_blocks(islice(texts, first, None), BLOCK_SIZE):
                if seconds is not None and journal.count and time.monotonic() - start > seconds:
                    break
                written = isolate_errors(block, work)
                outputs = [None if isinstance(one, ValueError) else one.text for one in written]
                if not journal.count:
                    _warn_of_degenerate(context, block, outputs)
                journal.add(outputs)
                context.report(_progress(journal.count, first, total, time.monotonic() - start))
            with filesystem.file_in_errors(journal.partial_output), journal.partial_output.open("wb") as file:
                for text, other in zip(texts, journal.entries(), strict=False):  # fewer if the time was up
                    if other is not None:
                        other = _one_line(other)
                        sides = (text, other) if text_is == "source" else (other, text)
                        file.write(json.dumps(dict(zip(("source", "target"), sides, strict=True))).encode() + b"\n")
        journal.finish()
        return WrittenPairs(journal.count, journal.failed, total)


def _warn_of_degenerate(context: StageContext, texts: Sequence[str], outputs: Sequence[str | None]) -> None:
    """Warn after the first block if the outputs are degenerate, before hours are spent on the others."""
    done = [(text, output) for text, output in zip(texts, outputs, strict=True) if output is not None]
    found = find_degenerate([text for text, _ in done], [output for _, output in done])
    if found:
        said = " ".join(one.sentence for one in found)
        context.report(Note(f"Of the first {checks.plural(len(done), 'sentence')}: {said} Check that this text is in "
                            "the language that the model reads.", warning=True))


def _progress(done: int, first: int, total: int, seconds: float) -> SynthesisProgress:
    speed = (done - first) / max(seconds, 1e-9)
    return SynthesisProgress(done, total, speed, (total - done) / speed if speed else None)


def report_written(context: StageContext, written: WrittenPairs) -> None:
    """Tell the user about sentences that have no translation; a ValueError if none has one."""
    if written.written == written.failed:
        raise ValueError(f"{context.request.output}: The model could not translate any of the "
                         f"{checks.plural(written.total, 'sentence')}: they are too long for it, or its logits are "
                         "NaN.")
    if written.failed:
        context.report(Note(f"{checks.plural(written.failed, 'sentence')} of {written.total:,} could not be "
                            "translated: they are too long for the model, or its logits were NaN.", warning=True))
    if written.written < written.total:
        context.report(Note(f"The time limit allowed for {written.written:,} of {written.total:,} sentences; the "
                            "others are not used.", warning=True))


def keep_once(context: StageContext, path: Path) -> None:
    """Write the copy of the synthetic pairs that the user wants, unless that is done."""
    keep = context.options.keep
    if keep is not None and context.processes.main and context.record.values.get("kept") != keep:
        keep_pairs(path, keep)
        context.record.update(kept=keep)


def keep_pairs(path: Path, output: str) -> None:
    """Copy synthetic pairs into a new TSV file; one with the same content may exist already, from a killed process."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    data = "".join(f"{_one_line(each['source'])}\t{_one_line(each['target'])}\n" for each in lines).encode()
    target = Path(output)
    try:
        filesystem.write_file(target, data, overwrite=False)
    except FileExistsError as error:
        if not target.is_file() or target.read_bytes() != data:
            raise already_exists(target) from error


def _one_line(text: str) -> str:
    """A text without NULs, and with spaces for tabs and line breaks: an untrained model may write any byte."""
    return text.translate({0: None, **dict.fromkeys(map(ord, "\t\r\n"), " ")})
