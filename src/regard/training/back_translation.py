"""Back-translation: more training data from text in the target language alone (Sennrich et al. 2016).

    1. a reverse model, from target to source, is trained on the sentence pairs of the user, or given
    2. for every monolingual target sentence it samples a source (Edunov et al. 2018)
    3. the model is trained on real and on synthetic pairs

A synthetic source begins with the control token <bt> (tagged back-translation, Caswell et al. 2019), so that the model
learns to tell it from a real one; sources of users never have it. Validation uses real pairs alone: those that are held
out are unseen by the reverse model too, and a monolingual sentence that equals one of their targets is left out.

A label-smoothed model gives every token of the vocabulary some probability, and few pairs make a weak reverse model. So
sampling is restricted to the most probable tokens, with a lower temperature if there are few pairs.

With a time limit, the reverse model gets REVERSE_FRACTION of it; writing ends when WRITING_FRACTION of it has passed,
and sentences that are left then are not used; the rest is for the model.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.checks import plural
from regard.data.sources.text import DataError, SentencePair, printable
from regard.tasks.documents import files_digest, model_fingerprint
from regard.tasks.search import Sampling
from regard.tasks.translator import Translator
from regard.toml import TomlDocument
from regard.training import synthesis
from regard.training.checkpoints import list_steps
from regard.training.defaults import by_threshold, lookup
from regard.training.logging import Note
from regard.training.resolution import CHECKPOINTS_FOLDER, REVERSE_FOLDER, total_time
from regard.training.short_options import OptionSpelling
from regard.training.synthesis import StageContext, Staged, TextSelection, TrainStage, WrittenPairs
from regard.training.tasks.interface import SyntheticPairs, TrainingRequest
from regard.training.tasks.sentence_pairs import TranslationSurvey

SYNTHETIC_FILE = "synthetic.jsonl"
TOP_K = 10
"""The tokens that synthetic sources are sampled from by default."""
TEMPERATURES = ((100_000, 0.5),)
"""The default temperature for reverse models of fewer real pairs than this; 1 for more."""
REVERSE_FRACTION, WRITING_FRACTION = 0.3, 0.5
"""The share of the time limit that the reverse model may take, and the share that has passed when writing ends."""


def back_translate(context: StageContext, train_stage: TrainStage) -> Any:
    """Run the stages before the training.

    Returns:
        a `Staged` training; or the result of the reverse training, if that was interrupted.
    """
    request, given = context.request, context.options
    path = context.place / SYNTHETIC_FILE
    stages = 2 if given.reverse is not None else 3
    if not _is_complete(context, path):
        survey = synthesis.split_survey(context)
        selection = _select(context, survey)
        if given.reverse is not None:
            folder = Path(given.reverse)
            translator = _load_reverse(context, survey)
        else:
            folder = request.output / REVERSE_FOLDER
            if "reverse_seconds" not in context.record.values:
                context.begin(1, stages, "training the reverse model, from target to source")
                result = train_stage(*_reverse_training(context))
                if not result.finished:
                    return result._replace(folder=request.output)
                context.record.update(reverse_seconds=result.state.seconds)
                if (result.state.best_details or {}).get("degenerate"):
                    option = OptionSpelling(request.option_prefix).name("reverse")
                    context.report(Note("The reverse model is degenerate, so its synthetic sources will help little. "
                                        f"Train it on more pairs or for longer, or give a better one ({option}).",
                                        warning=True))
        context.begin(stages - 1, stages, "sampling a source for every monolingual sentence")
        if context.processes.main:
            if given.reverse is None:
                translator = synthesis.load_writer(str(folder), "", context.device)
            _write(context, path, translator, folder, survey, selection)
        context.processes.barrier()
    synthesis.keep_once(context, path)
    context.begin(stages, stages, "training on real and synthetic pairs")
    pairs = SyntheticPairs(str(path), (*request.data, *request.validation, *given.monolingual), given.share)
    return Staged(replace(request, back_translated=pairs),
                  synthesis.with_max_time(context.document, synthesis.time_left(context, 1 - WRITING_FRACTION)))


def _is_complete(context: StageContext, path: Path) -> bool:
    """Whether all synthetic pairs are written, as the main process sees it."""
    return bool(context.processes.broadcast(synthesis.is_written(path)))


def _select(context: StageContext, survey: TranslationSurvey) -> TextSelection:
    """The monolingual sentences that are used; the user is told which are not."""
    request, given = context.request, context.options
    selection = TextSelection(given.monolingual, survey.config.filters, synthesis.validation_keys(survey))
    count, names = sum(1 for _ in selection), ", ".join(printable(Path(name).name) for name in given.monolingual)
    left_out = selection.describe()
    if not count:
        option = OptionSpelling(request.option_prefix).name("monolingual")
        raise DataError(f"{names}: There is no sentence to use{f': {left_out}' if left_out else ''}. {option} needs "
                        "text in the target language, one sentence a line.")
    context.report(Note(f"Read {plural(count, 'monolingual sentence')} from {names}."
                        + (f" Left out: {left_out}." if left_out else "")))
    if synthesis.resembles_sources(selection, survey.training_pairs()):
        context.report(Note(f"{names} looks like the language of the sources, but monolingual text must be in the "
                            "language of the targets. Check that it is the right file.", warning=True))
    return selection


def _load_reverse(context: StageContext, survey: TranslationSurvey) -> Translator:
    """The reverse model that the user has given, if it translates from target to source."""
    folder, option = context.options.reverse, OptionSpelling(context.request.option_prefix).name("reverse")
    assert folder is not None, "else it is trained"
    languages = synthesis.known_languages(context.document, survey)
    translator = synthesis.load_writer(folder, option, context.device, None if languages is None else languages.source)
    wanted = None if languages is None else languages.reverse
    synthesis.check_languages(folder, option, translator, wanted, chosen=synthesis.languages_are_set(context.document))
    synthesis.check_direction(folder, option, translator, map(_swap, survey.training_pairs()))
    return translator


def _swap(pair: SentencePair) -> SentencePair:
    return pair._replace(source=pair.target, target=pair.source)


def _reverse_training(context: StageContext) -> tuple[TrainingRequest, TomlDocument]:
    """The training of the reverse model: with the settings of the user, in the other direction."""
    output, document = context.request.output / REVERSE_FOLDER, context.document
    data = dict(document.tables.get("data", {}))
    if {"source_lang", "target_lang"} & data.keys():
        swapped = {"source_lang": data.pop("target_lang", None), "target_lang": data.pop("source_lang", None)}
        data |= {key: code for key, code in swapped.items() if code is not None}
        document = replace(document, tables={**document.tables, "data": data})
    limit = total_time(context.request)
    document = synthesis.with_max_time(document, None if limit is None else REVERSE_FRACTION * limit)
    started = bool(context.processes.broadcast(len(list_steps(output / CHECKPOINTS_FOLDER))))
    request = replace(context.request, output=output, synthesis=None, reversed=True, write_data=None, resume=started,
                      adapt_threads=False)
    return request, document


def _write(context: StageContext, path: Path, translator: Translator, folder: Path, survey: TranslationSurvey,
           selection: TextSelection) -> None:
    given, limit = context.options, total_time(context.request)
    strategy = Sampling(temperature=given.temperature or by_threshold(survey.kept, TEMPERATURES, 1.0),
                        top_k=TOP_K if given.top_k is None else given.top_k,
                        seed=lookup(context.document.tables, "training.seed", 1))
    settings: Mapping[str, Any] = {
        "model": model_fingerprint(folder), "texts": files_digest([Path(name) for name in given.monolingual]),
        "pairs": survey.files, "temperature": strategy.temperature, "top_k": strategy.top_k, "seed": strategy.seed,
        "excluded": len(selection.excluded)}
    before, start = synthesis.stage_seconds(context, "reverse"), time.monotonic()
    seconds = None if limit is None else max(0.0, WRITING_FRACTION * limit - before)
    written: WrittenPairs = synthesis.write_pairs(
        context, path, selection, lambda texts: translator.search(texts, strategy), settings, text_is="target",
        seconds=seconds)
    synthesis.report_written(context, written)
    context.record.update(writing_seconds=time.monotonic() - start)


