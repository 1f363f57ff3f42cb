"""Distillation: a small, fast student learns from the translations of a teacher (Kim and Rush 2016).

    1. new sources are sampled from models of the given ones, if those are few
    2. the teacher translates every source by beam search
    3. the student is trained on these translations, which are easier to learn than those of people

A teacher translates the sources of its own training nearly as people did; only new sources show what else it has
learned. An n-gram model writes them (`regard.data.ngrams`); on a GPU, where that takes a
minute, a language model is trained too and writes half of them.

The given sources are lines of a plain file, or those of sentence pairs. Of sentence pairs some are held out, and
validation compares with their own targets, not with the teacher; it does the same on validation data of the user. The
scores of the teacher on the same data are reported beside those of the student, both by greedy search, and stored in
the model card. With plain sources and no validation data, validation compares with translations of the teacher.

The student has a tokenizer of its own, trained on its data: a small vocabulary makes the output layer of a small model
fast, and a teacher of any kind will do. With `training.teacher_share` (word-level distillation) it also learns the
probabilities that the teacher gives to every token of these translations: then it has the tokenizer of the teacher,
which reads every batch of the training (`regard.training.tasks.translation.Teacher`).

With a time limit, the language model is trained for MODEL_FRACTION of it and writes for as long, and translating ends
when WRITING_FRACTION of it has passed.
"""

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from regard.checks import plural
from regard.data.languages import (
    LanguagePair,
    known_pair,
    language_in_name,
    language_name,
    same_languages,
    target_controls,
)
from regard.data.ngrams import sample_new_texts
from regard.data.sources import formats
from regard.data.sources.text import DataError, printable
from regard.data.tokenizer.interface import PairTokenizer
from regard.storage import filesystem
from regard.tasks.completer import Completer
from regard.tasks.documents import files_digest, model_fingerprint
from regard.tasks.evaluation import corpus_scores
from regard.tasks.load import load
from regard.tasks.search import Beam
from regard.tasks.translator import Translator
from regard.toml import TomlDocument
from regard.training import synthesis
from regard.training.checkpoints import list_steps
from regard.training.defaults import TEACHER_SHARE, language_model_sources, lookup, sampled_sources
from regard.training.logging import Note
from regard.training.resolution import CHECKPOINTS_FOLDER, total_time
from regard.training.short_options import OptionSpelling
from regard.training.status import format_score
from regard.training.synthesis import StageContext, Staged, TextSelection, TrainStage
from regard.training.tasks.common import hash_bytes
from regard.training.tasks.interface import SyntheticPairs, TrainingRequest
from regard.training.tasks.sentence_pairs import TranslationSurvey
from regard.training.tasks.translation import TranslationTask

DISTILLED_FILE, HELD_OUT_FILE, SAMPLED_FILE = "distilled.jsonl", "held-out.jsonl", "sampled.json"
GIVEN_FILE, LANGUAGE_MODEL_FOLDER = "given.txt", "language-model"
"""In the data folder: the given sources as lines, and the language model of them."""
SHARE_KEY = "training.teacher_share"
VOCABULARY_KEYS = ("data.joint_tokenizer", "model.source_vocab_size", "model.target_vocab_size")
"""Keys that determine the vocabulary, besides those of [tokenizer]."""
TEACHER_BEAMS = 5
SMALL_STUDENT = 0.5
"""A student with more than this fraction of its teacher's parameters is hardly faster."""
MODEL_FRACTION, WRITING_FRACTION = 0.1, 0.4
"""Fractions of the time limit: what training the language model may take, and again sampling from it; and what has
passed when the teacher stops."""
LANGUAGE_MODEL: Mapping[str, Any] = {"tokenizer.vocab_size": 4000}
"""The settings of the language model that are not the defaults: subwords, also for a short text."""
SAMPLED_ROWS, SAMPLED_TOKENS, MAX_FAILED_ROUNDS = 2048, 250, 3
"""Texts that the language model writes side by side, and their tokens, of which each line is a sentence. After this
many rounds without a new sentence, there is little left to sample."""


class DistinctSources:
    """The sources of the training pairs of a survey, each once, in their order."""

    def __init__(self, survey: TranslationSurvey) -> None:
        self.survey = survey

    def __iter__(self) -> Iterator[str]:
        seen = set[int]()
        for pair in self.survey.training_pairs():
            text = pair.source.strip()
            key = hash_bytes(text.encode())
            if key not in seen:
                seen.add(key)
                yield text


class AllSources:
    """The given sources, then the sampled ones."""

    def __init__(self, given: Iterable[str], sampled: Sequence[str]) -> None:
        self.given, self.sampled = given, sampled

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self.given, self.sampled)


class DistillationData(NamedTuple):
    """The sources for the teacher, and the validation data of the student."""

    sources: Iterable[str]
    validation: tuple[str, ...]
    survey: TranslationSurvey | None
    """The sentence pairs; None for plain sources."""


def check_teacher_share(request: TrainingRequest, document: TomlDocument) -> None:
    """Refuse a share of the teacher in the loss without a teacher, or with a vocabulary other than the teacher's."""
    if not lookup(document.tables, SHARE_KEY, 0.0):
        return
    teacher = OptionSpelling(request.option_prefix).name("teacher")
    if request.synthesis is None or request.synthesis.teacher is None:
        raise ValueError(f"{SHARE_KEY} has no effect without a teacher. Name one with {teacher}, or leave it out.")
    given = _vocabulary_settings(document)
    if given:
        settings = "this setting" if len(given) == 1 else "these settings"
        raise ValueError(f"{', '.join(given)}: With {SHARE_KEY}, the student has the tokenizer of its teacher. Leave "
                         f"out {settings}, or {SHARE_KEY}.")


def _vocabulary_settings(document: TomlDocument) -> list[str]:
    """The settings of the user that determine the vocabulary, as the user wrote them."""
    keys = [f"tokenizer.{key}" for key in document.tables.get("tokenizer", {})]
    keys += [key for key in VOCABULARY_KEYS if lookup(document.tables, key) is not None]
    given = [(key, document.source(tuple(key.split(".")))) for key in keys]
    return [option if option is not None and " " in option else key for key, option in given]


def teacher_share(document: TomlDocument) -> float:
    """The share of the teacher's probabilities in the loss. By default 0 if the user has set a vocabulary."""
    given = lookup(document.tables, SHARE_KEY)
    if given is None:
        return 0.0 if _vocabulary_settings(document) else TEACHER_SHARE
    return float(given)


def distill(context: StageContext, train_stage: TrainStage) -> Any:
    """Let the teacher translate.

    Returns:
        the `Staged` training of the student; or the result of the language model's training, if that was interrupted.
    """
    request, folder = context.request, teacher_folder(context)
    path, data = context.place / DISTILLED_FILE, _read_data(context)
    languages = synthesis.known_languages(context.document, data.survey)
    taught = teacher_share(context.document) > 0
    if not context.processes.broadcast(synthesis.is_written(path)):
        writer = _load_teacher(context, data, languages)
        if taught:
            _check_vocabulary(context, writer)
        interrupted = _sample_sources(context, data.sources, train_stage)
        if interrupted is not None:
            return interrupted._replace(folder=request.output)
        if context.processes.main:
            stages = _stages(context)
            context.begin(stages - 1, stages, f"the teacher translates by beam search, {TEACHER_BEAMS} beams")
            _write(context, path, writer, folder, data, _stored_samples(context))
        del writer  # on a GPU the buffers of its search would take memory while the student is trained
        context.processes.barrier()
    teacher = None
    if taught:
        teacher = synthesis.load_writer(folder, _teacher_option(context), context.device, _target(languages))
        _check_vocabulary(context, teacher)
    synthesis.keep_once(context, path)
    stages = _stages(context)
    context.begin(stages, stages, "training the student")
    told = languages or _stored_languages(context)
    distilled = SyntheticPairs(str(path), (*request.data, *request.validation), languages=told,
                               teacher=teacher, record=_record(context, data))
    student = replace(request, data=(str(path),), validation=data.validation, source=None, target=None, format=None,
                      distilled=distilled)
    left = synthesis.time_left(context, 1 - WRITING_FRACTION)
    return Staged(student, synthesis.with_max_time(context.document, left))


def _stages(context: StageContext) -> int:
    """The number of stages: one more if a language model is trained."""
    return 3 if "language_model_seconds" in context.record.values else 2


def _record(context: StageContext, data: DistillationData) -> dict[str, Any]:
    """What is stored with the student: the name of its teacher, and where its validation pairs come from."""
    request, teacher = context.request, {"teacher": Path(os.path.abspath(teacher_folder(context))).name}
    if request.validation:
        return {**teacher, "validation_files": [os.path.basename(path) for path in request.validation]}
    if data.survey is not None and data.validation:
        return {**teacher, "validation_files": None, "validation_fraction": data.survey.config.validation_fraction}
    return teacher


def teacher_folder(context: StageContext) -> str:
    """The folder of the teacher."""
    assert context.options.teacher is not None, "else there is nothing to distill"
    return context.options.teacher


def _teacher_option(context: StageContext) -> str:
    """How the user has written the option for the teacher."""
    return OptionSpelling(context.request.option_prefix).name("teacher")


def _load_teacher(context: StageContext, data: DistillationData, languages: LanguagePair | None) -> Translator:
    """The teacher, if it translates from source to target; its languages are stored."""
    folder, option = teacher_folder(context), _teacher_option(context)
    teacher = synthesis.load_writer(folder, option, context.device, _target(languages))
    chosen = synthesis.languages_are_set(context.document)
    synthesis.check_languages(folder, option, teacher, languages, chosen=chosen)
    if data.survey is not None:
        synthesis.check_direction(folder, option, teacher, data.survey.training_pairs())
    elif not chosen:
        _check_source_name(context, teacher)
    if languages is not None and len(teacher.target_languages) > 1:
        context.record.update(languages=[*languages])
    elif teacher.source_lang and teacher.target_lang:
        context.record.update(languages=[teacher.source_lang, teacher.target_lang])
    context.record.update(teacher_parameters=teacher.config.parameters())
    return teacher


def _check_source_name(context: StageContext, teacher: Translator) -> None:
    """Refuse a file of sources whose name tells another language than the one that the teacher reads."""
    file, own = context.request.data[0], known_pair(teacher.source_lang, teacher.target_lang)
    named = language_in_name(file)
    if own is not None and named is not None and not same_languages(own, own._replace(source=named)):
        raise DataError(f"{printable(os.path.basename(file))}: By its name this file is {language_name(named)}, but "
                        f"{_teacher_option(context)} {teacher_folder(context)} translates {own}. If the name "
                        f"misleads, set the languages (--languages {own}; source_lang and target_lang in Python).")


def _check_vocabulary(context: StageContext, teacher: Translator) -> None:
    """Refuse a teacher of several target languages, and one that has changed since the training began."""
    folder, option = teacher_folder(context), _teacher_option(context)
    assert isinstance(teacher.tokenizer, PairTokenizer), "checked when it was loaded"
    languages = target_controls(teacher.tokenizer.source.controls)
    if languages:
        raise ValueError(f"{option} {folder}: This model translates into {', '.join(languages)}, and a student of "
                         f"several languages cannot learn its probabilities. Leave out {SHARE_KEY}.")
    now, before = model_fingerprint(Path(folder)), context.record.values.get("teacher")
    if before is None:
        context.record.update(teacher=now)
    elif now != before:
        raise DataError(f"{context.request.output}: This training cannot be resumed with another teacher: {option} "
                        f"{folder} has changed since it began. Restore it, or choose another folder.")


def _target(languages: LanguagePair | None) -> str | None:
    """The target language, if it is known."""
    return None if languages is None else languages.target


def _stored_languages(context: StageContext) -> LanguagePair | None:
    found = context.record.values.get("languages")
    return None if found is None else LanguagePair(*found)


def _read_data(context: StageContext) -> DistillationData:
    """The data of the user; validation pairs are written into the data folder, in one format."""
    request = context.request
    if len(request.data) > 1 or formats.format_of(request.data[0], request.format) != "plain":
        survey = synthesis.split_survey(context)
        for note in survey.warnings:
            context.report(Note(note, warning=not note.startswith("Read ")))
        has_references = survey.validation_given or survey.threshold
        validation = (_write_validation(context, survey),) if has_references else ()
        return DistillationData(DistinctSources(survey), validation, survey)
    selection = TextSelection(request.data, synthesis.data_config(context.document).filters)
    count, left_out = sum(1 for _ in selection), selection.describe()
    name = printable(os.path.basename(request.data[0]))
    if not count:
        raise DataError(f"{name}: There is no sentence to translate{f': {left_out}' if left_out else ''}. Give a file "
                        "with one source sentence a line.")
    context.report(Note(f"Read {plural(count, 'source sentence')} from {name}."
                        + (f" Left out: {left_out}." if left_out else "")))
    return DistillationData(selection, (_copy_validation(context),) if request.validation else (), None)


def _write_validation(context: StageContext, survey: TranslationSurvey) -> str:
    """A file of the pairs that the student is validated on, with their own targets."""
    name = f"{Path(context.request.validation[0]).stem}.jsonl" if survey.validation_given else HELD_OUT_FILE
    return _write_lines(context, name, ((pair.source, pair.target) for pair in survey.validation_pairs(2**62)))


def _copy_validation(context: StageContext) -> str:
    request = context.request
    pairs = formats.read_pairs(request.validation, source=request.source, target=request.target)
    return _write_lines(context, f"{Path(request.validation[0]).stem}.jsonl",
                        ((pair.source, pair.target) for pair in pairs))


def _write_lines(context: StageContext, name: str, pairs: Iterable[tuple[str, str]]) -> str:
    path = context.place / (f"validation-{name}" if name == DISTILLED_FILE else name)
    if context.processes.main:
        lines = (json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs)
        path.parent.mkdir(parents=True, exist_ok=True)
        filesystem.write_file(path, "".join(lines).encode())
    context.processes.barrier()
    return str(path)


# New sources

def _sample_sources(context: StageContext, given: Iterable[str], train_stage: TrainStage) -> Any:
    """Write the new sources into the data folder, once; the user is told how many.

    Returns:
        None; or the result of the language model's training, if that was interrupted.
    """
    path, main = context.place / SAMPLED_FILE, context.processes.main
    if context.processes.broadcast(path.exists()):
        return None
    sources = context.processes.broadcast(sum(1 for _ in given) if main else 0)
    count = context.options.sampled_sources
    if count is None:
        count = sampled_sources(sources, context.device.type)
    modelled = language_model_sources(sources, count, context.device.type)
    if modelled and "language_model_seconds" not in context.record.values:
        context.begin(1, 3, "training a language model, which writes sources for the teacher")
        result = train_stage(_language_model(context, given))
        if not result.finished:
            return result
        context.record.update(language_model_seconds=result.state.seconds)
    if count and main:
        start = time.monotonic()
        found = [*sample_new_texts(given, count - modelled, seed=_seed(context))]
        found += _sample_lines(context, modelled, {*given, *found}) if modelled else []
        path.parent.mkdir(parents=True, exist_ok=True)
        filesystem.write_file(path, json.dumps(found).encode())
        context.record.update(sampling_seconds=time.monotonic() - start)
        models = "an n-gram model and a language model" if modelled else "an n-gram model"
        context.report(Note(f"Sampled {plural(len(found), 'new source')} from {models} of the given ones"
                            + (f"; {count:,} were asked for, but they hardly vary, or the time limit is short."
                               if len(found) < count else "."),
                            warning=not found))
    return None


def _stored_samples(context: StageContext) -> list[str]:
    path = context.place / SAMPLED_FILE
    return list(json.loads(path.read_bytes())) if path.exists() else []


def _seed(context: StageContext) -> int:
    return int(lookup(context.document.tables, "training.seed", 1))


def _language_model(context: StageContext, given: Iterable[str]) -> TrainingRequest:
    """The training of a language model of the given sources, each a line."""
    folder, file = context.place / LANGUAGE_MODEL_FOLDER, context.place / GIVEN_FILE
    if context.processes.main:
        filesystem.write_file(file, "".join(f"{' '.join(text.split())}\n" for text in given).encode())
    context.processes.barrier()
    limit = total_time(context.request)
    settings = {**LANGUAGE_MODEL, "training.seed": _seed(context),
                **({} if limit is None else {"training.max_time": MODEL_FRACTION * limit})}
    started = bool(context.processes.broadcast(len(list_steps(folder / CHECKPOINTS_FOLDER))))
    return TrainingRequest("language", (str(file),), folder, changes=settings, resume=started,
                           device=context.request.device, adapt_threads=False)


def _sample_lines(context: StageContext, count: int, known: set[str]) -> list[str]:
    """Up to `count` distinct lines that the language model writes, none of them known.

    They are fewer if they hardly vary, or if the time limit does not allow for more.
    """
    limit, start = total_time(context.request), time.monotonic()
    model = load(context.place / LANGUAGE_MODEL_FOLDER, device=context.device)
    assert isinstance(model, Completer), "trained as one"
    longest, characters = max(map(len, known)), {*itertools.chain.from_iterable(known)}
    found, failed, rows = list[str](), 0, min(SAMPLED_ROWS, count)
    for seed in itertools.count(_seed(context)):
        texts = model.sample("\n", num_samples=rows, seed=seed, max_length=SAMPLED_TOKENS,
                             batch_tokens=rows * (SAMPLED_TOKENS + 1))
        lines = (line.strip() for text in (texts, *texts.alternatives) for line in text.text.split("\n")[:-1])
        new = {line: None for line in lines if line and line not in known and len(line) <= longest
               and characters.issuperset(line)}  # bytes that are no text become other characters
        known |= new.keys()
        found += new
        failed = 0 if new else failed + 1
        late = limit is not None and time.monotonic() - start > MODEL_FRACTION * limit
        if len(found) >= count or failed == MAX_FAILED_ROUNDS or late:
            return found[:count]
    raise AssertionError("the seeds do not end")


def _write(context: StageContext, path: Path, teacher: Translator, folder: str, data: DistillationData,
           sampled: Sequence[str]) -> None:
    request, limit, start = context.request, total_time(context.request), time.monotonic()
    before = synthesis.stage_seconds(context, "language_model", "sampling")
    strategy = Beam(beams=TEACHER_BEAMS)
    settings = {"model": model_fingerprint(Path(folder)), "texts": files_digest([Path(name) for name in request.data]),
                "beams": TEACHER_BEAMS, "validation": None if data.survey is None else data.survey.threshold,
                **({"sampled": len(sampled)} if sampled else {})}
    written = synthesis.write_pairs(
        context, path, AllSources(data.sources, sampled), lambda texts: teacher.search(texts, strategy), settings,
        text_is="source", seconds=None if limit is None else max(0.0, WRITING_FRACTION * limit - before))
    synthesis.report_written(context, written)
    context.record.update(writing_seconds=time.monotonic() - start)


# Student and teacher compared

def report_sizes(context: StageContext, parameters: int) -> None:
    """Warn if the student has nearly as many parameters as its teacher, or more."""
    teacher, name = context.record.values.get("teacher_parameters"), OptionSpelling(context.request.option_prefix).name
    if teacher is not None and parameters > SMALL_STUDENT * teacher:
        sizes = f"The student has {plural(parameters, 'parameter')}, its teacher {teacher:,}"
        remedy = f"{name('recipe')}, {name('layers')} and {name('width')} make it smaller."
        context.report(Note(f"{sizes}: it will hardly be faster. {remedy}", warning=True))


def add_teacher_scores(context: StageContext, task: TranslationTask) -> dict[str, float]:
    """Score the teacher on the validation data of the student, by greedy search as in validation.

    The scores are returned, and added to what is stored with the model. They are empty if there is no teacher, or if
    the only references are its own translations.
    """
    if context.options.teacher is None or not task.prepared.survey.validation_given:
        return {}
    if "teacher_scores" not in context.record.values:
        found: dict[str, float] | None = None
        if context.processes.main:
            teacher = synthesis.load_writer(context.options.teacher, "", context.device,
                                            _target(_stored_languages(context)))
            outputs = teacher.translate(task.sources, beams=1, length_penalty="none")
            measured = corpus_scores([one.text for one in outputs], task.targets)
            found = {"bleu": measured.bleu, "chrf": measured.chrf}
        context.record.update(teacher_scores=context.processes.broadcast(found))
    scores: dict[str, float] = context.record.values["teacher_scores"]
    if task.record is not None:
        task.record["scores"] = {"teacher": dict(scores)}
    return scores


def compare_scores(student: Mapping[str, float], teacher: Mapping[str, float]) -> str:
    """The scores of student and teacher side by side, in a sentence."""
    shown = [", ".join(format_score(name, scores[name]) for name in teacher if name in scores)
             for scores in (student, teacher)]
    return f"Student: {shown[0]}. Teacher on the same validation data: {shown[1]}."
