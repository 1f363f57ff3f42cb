"""`regard.train`: train a model from Python in one call, and get it back ready to use.

    translator = regard.train("pairs.tsv", "model")
    translator = regard.train([("Good day.", "Guten Tag."), ...], "model", epochs=5, lr=1e-3)
    classifier = regard.train(frame, "model", task="classify", source="review", target="stars")
    labeller = regard.train([(["The", "cat"], ["DET", "NOUN"]), ...], "model", task="label")
    translator = regard.train(None, "model", directions={"en-fr": "a.tsv", "en-de": pairs}, both_ways=True)
    translator = regard.train("mine.tsv", "new", from_="model")                   fine-tune a model
    translator("Good night.").text
    translator.history                      losses and scores over the steps

It does what `regard train` does, with data in files or in memory (`regard.data.sources.in_memory` says in which forms),
settings as keyword arguments, and callbacks. Nothing is printed: on a terminal and in a notebook a progress bar is
shown on stderr, and everything is logged by the standard logger "regard" at level INFO.

A setting is a short name (epochs, steps, lr, batch_tokens, vocab_size, layers, width, dropout, seed, time; mix_share,
blend, blend_share), a key of the config by its last part where that is unique (label_smoothing=0.1), or a dotted key in
`settings`.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

from regard import checks
from regard.config import KeySpec, TableReader, config_kind, key_specs, type_spec
from regard.data.directions import DirectionData, with_validation
from regard.data.languages import parse_pair
from regard.data.sources import in_memory
from regard.data.sources.text import DataError
from regard.models import catalog
from regard.tasks.classifier import Classifier
from regard.tasks.completer import Completer
from regard.tasks.filler import Filler
from regard.tasks.labeller import Labeller
from regard.tasks.load import load
from regard.tasks.task import Task
from regard.tasks.translator import Translator
from regard.training import train as training
from regard.training.callbacks import Callback
from regard.training.logging import Logger, StandardLogger
from regard.training.resolution import DATA_FOLDER, TABLES, TASKS
from regard.training.short_options import ShortOptions
from regard.training.tasks.interface import SynthesisRequest, TrainingRequest

TrainingData = str | os.PathLike[str] | Iterable[object]
"""A path, several paths, or rows in memory."""
StartLike = str | os.PathLike[str] | Task | None
"""The folder of a model, or the task object, that is fine-tuned."""
TrainedTask = Translator | Completer | Filler | Classifier | Labeller
GIVEN_FOLDER = "given"
"""The folder of data that was given in memory, beside that of the ids."""
TEXT_TASKS = ("language", "masked")
"""The tasks whose data is texts without a second column."""
LINES_TASK = "masked"
"""The task whose texts are lines, as monolingual texts and sources for a teacher are."""
PATH_SUFFIXES = (".txt", ".tsv", ".jsonl", ".po", ".pot", ".tmx", ".gz")
SHORT_NAMES = tuple(field.name for field in fields(ShortOptions))
"""Short names of settings, which the command line has too."""


@overload
def train(data: TrainingData | None, output: str | os.PathLike[str], *, task: Literal["seq2seq"] = "seq2seq",
          validation: TrainingData | Mapping[str, TrainingData] | None = None, from_: StartLike = None,
          mix: TrainingData | None = None, general_validation: TrainingData | None = None,
          directions: Mapping[str, TrainingData] | None = None, both_ways: bool = False,
          callbacks: Sequence[Callback] = (), recipe: str | None = None, resume: bool = False, device: str = "auto",
          source: str | None = None, target: str | None = None, format: str | None = None,
          progress: bool | None = None, settings: Mapping[str, Any] | None = None, **options: Any) -> Translator: ...
@overload
def train(data: TrainingData, output: str | os.PathLike[str], *, task: Literal["language"],
          validation: TrainingData | None = None, from_: StartLike = None, mix: TrainingData | None = None,
          general_validation: TrainingData | None = None, callbacks: Sequence[Callback] = (),
          recipe: str | None = None, resume: bool = False, device: str = "auto", source: str | None = None,
          target: str | None = None, format: str | None = None, progress: bool | None = None,
          settings: Mapping[str, Any] | None = None, **options: Any) -> Completer: ...
@overload
def train(data: TrainingData, output: str | os.PathLike[str], *, task: Literal["masked"],
          validation: TrainingData | None = None, from_: StartLike = None, mix: TrainingData | None = None,
          general_validation: TrainingData | None = None, callbacks: Sequence[Callback] = (),
          recipe: str | None = None, resume: bool = False, device: str = "auto", source: str | None = None,
          target: str | None = None, format: str | None = None, progress: bool | None = None,
          settings: Mapping[str, Any] | None = None, **options: Any) -> Filler: ...
@overload
def train(data: TrainingData, output: str | os.PathLike[str], *, task: Literal["classify"],
          validation: TrainingData | None = None, from_: StartLike = None, mix: TrainingData | None = None,
          general_validation: TrainingData | None = None, callbacks: Sequence[Callback] = (),
          recipe: str | None = None, resume: bool = False, device: str = "auto", source: str | None = None,
          target: str | None = None, format: str | None = None, progress: bool | None = None,
          settings: Mapping[str, Any] | None = None, **options: Any) -> Classifier: ...
@overload
def train(data: TrainingData, output: str | os.PathLike[str], *, task: Literal["label"],
          validation: TrainingData | None = None, from_: StartLike = None, mix: TrainingData | None = None,
          general_validation: TrainingData | None = None, callbacks: Sequence[Callback] = (),
          recipe: str | None = None, resume: bool = False, device: str = "auto", source: str | None = None,
          target: str | None = None, format: str | None = None, progress: bool | None = None,
          settings: Mapping[str, Any] | None = None, **options: Any) -> Labeller: ...
@overload
def train(data: TrainingData, output: str | os.PathLike[str], *, task: str,
          validation: TrainingData | None = None, from_: StartLike = None, mix: TrainingData | None = None,
          general_validation: TrainingData | None = None, callbacks: Sequence[Callback] = (),
          recipe: str | None = None, resume: bool = False, device: str = "auto", source: str | None = None,
          target: str | None = None, format: str | None = None, progress: bool | None = None,
          settings: Mapping[str, Any] | None = None, **options: Any) -> TrainedTask: ...
def train(data: TrainingData | None, output: str | os.PathLike[str], *, task: str = "seq2seq",
          validation: TrainingData | Mapping[str, TrainingData] | None = None, from_: StartLike = None,
          mix: TrainingData | None = None, general_validation: TrainingData | None = None,
          directions: Mapping[str, TrainingData] | None = None, both_ways: bool = False,
          callbacks: Sequence[Callback] = (), recipe: str | None = None, resume: bool = False, device: str = "auto",
          source: str | None = None, target: str | None = None, format: str | None = None,
          progress: bool | None = None, settings: Mapping[str, Any] | None = None,
          monolingual: TrainingData | None = None, reverse: str | os.PathLike[str] | None = None,
          teacher: str | os.PathLike[str] | None = None, sampled_sources: int | None = None,
          synthetic_share: float | None = None, temperature: float | None = None, top_k: int | None = None,
          keep_synthetic: str | os.PathLike[str] | None = None, **options: Any) -> Task:
    """Train a model on your data, save it in the folder `output`, and return the best one, loaded.

    Everything that is not set follows from the data and the device, as for `regard train`. A ValueError says what is
    wrong with the call or the data, a `TrainingError` what failed. Ctrl-C finishes the step, saves a checkpoint and
    raises KeyboardInterrupt; a second Ctrl-C stops at once. `resume=True` with the same data continues from the
    checkpoint, and `regard.load(output)` has the best model so far.

    Args:
        data: the path of a file, or several (for "classify" also a folder of images); or rows in memory: pairs
            (source, target), texts for "language" and "masked", pairs (text, label) for "classify", pairs (tokens,
            labels) for "label", lists or texts. Rows may be a list, any iterable (it is read once), a pandas DataFrame,
            a dict of columns, or a Hugging Face dataset. They are written into `output` while training, and removed at
            the end. None with `directions`.
        output: the folder of the model. It must be new, or hold the training to resume.
        task: "seq2seq" returns a `Translator`, "language" a `Completer`, "masked" a `Filler`, "classify" a
            `Classifier`, and "label" a `Labeller`.
        validation: data of the same kinds; by default a part of `data` is held out. With `directions` a dict by
            direction, too.
        from_: a model to fine-tune: the folder of one of regard or Hugging Face, or a task object, which stays as it
            is. Architecture and tokenizer are kept.
        mix: general sentence pairs that stay in the batches while a translator is fine-tuned; `mix_share` is their
            share.
        general_validation: general validation data, whose scores are reported beside those of the new data; by
            default a part of `mix` is held out.
        directions: the data of each direction of a model for several languages: {"en-fr": data, "en-de": data}, in the
            forms of `data`.
        both_ways: also train every direction the other way round, with the same data.
        callbacks: functions that are called with a `CallbackEvent` after every log interval and every validation. One
            that raises `StopTraining` ends the training cleanly; with any other exception a checkpoint is saved first.
        recipe: the name of a recipe, such as "transformer-small", or the path of a TOML file with settings.
        resume: continue the training in `output`.
        device: "auto", "cpu", "cuda" or "cuda:1".
        source, target: columns (of the texts and labels for "classify" and "label", `source` alone of the texts for
            "language" and "masked"), keys of JSONL, or languages of TMX.
        format: the format of the files, if their suffixes do not tell it: "plain", "tsv", "jsonl", "po" or "tmx"; for
            "label" "tsv", "conll" or "jsonl".
        progress: whether to show the progress on stderr; by default only on a terminal and in a notebook.
        settings: dotted keys of the config with their values: {"training.schedule.warmup_steps": 500}.
        monolingual: text in the target language, for back-translation: the path of a plain file, or several, or texts.
        reverse: the folder of the reverse model for `monolingual`; by default one is trained first.
        teacher: the folder of a translator, for distillation: it translates the sources of `data`, which may then be a
            plain file or texts instead of pairs, and the new model learns from it.
        sampled_sources: how many new sentences, sampled from an n-gram model and on a GPU also from a language model of
            the sources, the teacher translates too; by default as many as make 900,000 sources on a GPU, and none on a
            CPU.
        synthetic_share, temperature, top_k: the fraction of an epoch that is back-translated, and how synthetic sources
            are sampled.
        keep_synthetic: a new file for the synthetic pairs, TSV.
        options: short names (epochs, steps, lr, batch_tokens, vocab_size, layers, width, dropout, seed, time; for
            fine-tuning mix_share, blend, blend_share; zero_shot=True with `directions`), and keys of the config by
            their last part, such as label_smoothing=0.1.

    Returns:
        the task object of the best model, on the device that it was trained on. Its `history` has losses and scores.
    """
    checks.pick("task", task, TASKS)
    folder = Path(output)
    rows = GivenFiles.of({"data": data, "validation": validation, "mix": mix, "general_validation": general_validation,
                          "monolingual": monolingual}, directions,
                         {"data": _data_task(task, data, teacher), "monolingual": LINES_TASK}, task, folder, source,
                         target)
    synthesis = _synthesis(None if monolingual is None else rows.paths("monolingual"), reverse, teacher, keep_synthetic,
                           sampled_sources=sampled_sources, share=synthetic_share, temperature=temperature, top_k=top_k)
    if format is not None and rows.writers:
        raise checks.wrong("format", "left out for data in memory", repr(format))
    short, changes = split_settings(task, recipe, settings or {}, options)
    request = TrainingRequest(
        task=task, output=folder, **rows.request_fields(), both_ways=both_ways, recipe=recipe, changes=changes,
        start=os.fspath(from_) if isinstance(from_, os.PathLike) else from_, options=short, changes_name="settings",
        option_prefix="", source=source, target=target, format=format, resume=resume, device=device,
        synthesis=synthesis)
    return _train_and_load(request, [*rows.given.values()], _loggers(progress), callbacks)


def _train_and_load(request: TrainingRequest, given: "Sequence[GivenData]", loggers: Sequence[Logger],
                    callbacks: Sequence[Callback]) -> Task:
    """The best model of a training; errors name the arguments of `regard.train`."""
    try:
        result = training.train(request, loggers, callbacks)
    except DataError as error:
        raise DataError(_with_arguments(str(error), given)) from None
    if not result.finished and not result.stopped:
        raise KeyboardInterrupt(f"The training in {request.output} was interrupted after step {result.state.step:,}. "
                                "Call regard.train with the same arguments and resume=True to continue it.")
    return load(request.output, device=result.device)


def _with_arguments(message: str, given: "Sequence[GivenData]") -> str:
    """A message about files with data from memory, which are removed, with their arguments and rows (from 0) instead.

        model/data/given/data.jsonl:3: The label ...      `data`, row 2: The label ...
    """
    for one in given:
        for path in one.paths if one.write is not None else ():
            lines = r"(?::(\d+))?" if path.endswith(".jsonl") else ""  # of which each is a row
            message = re.sub(re.escape(path) + lines, partial(_argument_and_row, one.argument), message)
    return message


def _argument_and_row(argument: str, found: re.Match[str]) -> str:
    return f"`{argument}`" + "".join(f", row {int(line) - 1}" for line in found.groups() if line)


def _data_task(task: str, data: TrainingData | None, teacher: str | os.PathLike[str] | None) -> str:
    """The task that says what rows in memory are: for a teacher, a list of texts is sources without targets."""
    if teacher is None or not isinstance(data, list | tuple) or not all(isinstance(row, str) for row in data):
        return task
    return LINES_TASK


def _synthesis(monolingual: tuple[str, ...] | None, reverse: str | os.PathLike[str] | None,
               teacher: str | os.PathLike[str] | None, keep: str | os.PathLike[str] | None,
               **numbers: Any) -> SynthesisRequest | None:
    """The request for synthetic pairs; None if nothing is asked for."""
    paths = [_model_folder("reverse", reverse), _model_folder("teacher", teacher),
             None if keep is None else os.fspath(keep)]
    if monolingual is None and all(value is None for value in (*paths, *numbers.values())):
        return None
    return SynthesisRequest(monolingual=monolingual or (), reverse=paths[0], teacher=paths[1], keep=paths[2], **numbers)


def _model_folder(argument: str, given: object) -> str | None:
    """The folder of a model, which a resumed training loads again; a model in memory might have changed until then."""
    if given is None or isinstance(given, str | os.PathLike):
        return None if given is None else os.fspath(given)
    got, remedy = checks.kind(given)
    if isinstance(given, Task):
        remedy = f"Save it, and name its folder: {argument}.save(\"folder\"), then {argument}=\"folder\"."
    raise checks.wrong(argument, "the folder of a model", got, remedy)


def _call_all(functions: Iterable[Callable[[], object]]) -> None:
    for function in functions:
        function()


def _loggers(progress: bool | None) -> list[Logger]:
    """The standard logger, and the progress bar if it is wanted."""
    loggers: list[Logger] = [StandardLogger()]
    if progress is None:
        progress = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    if progress:
        from regard.training.progress import progress_logger

        loggers.append(progress_logger(sys.stderr))
    return loggers


# Data

@dataclass(frozen=True)
class GivenData:
    """The files of one argument, and what writes them if the data is in memory."""

    argument: str
    paths: tuple[str, ...]
    write: Callable[[], int] | None = None

    @classmethod
    def of(cls, argument: str, data: Any, task: str, output: Path, source: str | None,
           target: str | None) -> "GivenData":
        """Find out whether these are paths or rows. Rows are not read yet."""
        paths = _as_paths(data, task)
        if paths is not None:
            return cls(argument, paths)
        if isinstance(data, Sequence) and not len(data):
            raise checks.wrong(argument, "a path, or rows of data", "empty")
        suffix = ".txt" if task in TEXT_TASKS else ".jsonl"
        path = output / DATA_FOLDER / GIVEN_FOLDER / f"{argument}{suffix}"
        write: Callable[[], int]
        if task == "seq2seq":
            write = partial(in_memory.write_pairs, data, path, source=source, target=target, argument=argument)
        elif task == "classify":
            write = partial(in_memory.write_labelled_texts, data, path, text=source, label=target, argument=argument)
        elif task == "label":
            write = partial(in_memory.write_labelled_sequences, data, path, tokens=source, labels=target,
                            argument=argument)
        else:
            write = partial(in_memory.write_texts, data, path, text=source, one_line_each=task == "masked",
                            argument=argument)
        return cls(argument, (str(path),), write)


@dataclass(frozen=True)
class GivenFiles:
    """The files of all data of a call, and what writes those that are in memory."""

    given: Mapping[str, GivenData]
    """By the name of the argument, or of the direction of one: "directions.en-fr"."""
    directions: tuple[DirectionData, ...] = ()

    @property
    def writers(self) -> list[Callable[[], int]]:
        """What writes the data that is in memory."""
        return [one.write for one in self.given.values() if one.write is not None]

    def paths(self, argument: str) -> tuple[str, ...]:
        """The files of an argument; none if it was not given."""
        return self.given[argument].paths if argument in self.given else ()

    def request_fields(self) -> dict[str, Any]:
        """The arguments of a `TrainingRequest` for the data."""
        files = {name: self.paths(name) for name in ("data", "validation", "mix", "general_validation")}
        return {**files, "directions": self.directions,
                "write_data": partial(_call_all, self.writers) if self.writers else None}

    @classmethod
    def of(cls, arguments: Mapping[str, Any], directions: Mapping[str, Any] | None, tasks: Mapping[str, str], task: str,
           output: Path, source: str | None, target: str | None) -> "GivenFiles":
        """Find out which data is in files, and which in memory.

        Args:
            arguments: data by the names of the arguments; None for one that was not given.
            tasks: the tasks that say what the rows of some arguments are; by default `task`.
        """
        validation = arguments["validation"]
        if directions is not None:
            if arguments["data"] is not None:
                raise checks.wrong("data", "None with `directions`, which has the data of every direction", "given")
            for name, several in (("directions", directions), ("validation", validation)):
                if several is not None and (not isinstance(several, Mapping) or not several):
                    raise checks.wrong(name, 'a dict of data by direction, such as {"en-fr": pairs}',
                                       *checks.kind(several))
            by_direction = {"directions": directions, "validation": validation or {}}
            arguments = {name: value for name, value in arguments.items() if name != "validation"} | {
                f"{argument}.{parse_pair(name, argument)}": value
                for argument, several in by_direction.items() for name, value in several.items()}
        given = {name: GivenData.of(name, value, tasks.get(name, task), output, source, target)
                 for name, value in arguments.items() if value is not None}
        if directions is None:
            return cls(given)
        each = [[DirectionData(pair := parse_pair(name, argument), given[f"{argument}.{pair}"].paths)
                 for name in several] for argument, several in by_direction.items()]
        return cls(given, tuple(with_validation(*each)))


def _as_paths(data: Any, task: str) -> tuple[str, ...] | None:
    """The paths, if these are paths; None if they are rows.

    A list of strings is paths, except for tasks that learn from texts: there it is texts unless all look like paths.
    """
    parts = [data] if isinstance(data, str | os.PathLike) else list(data) if isinstance(data, list | tuple) else []
    if not parts or not all(isinstance(part, str | os.PathLike) for part in parts):
        return None
    if task in TEXT_TASKS and not all(_looks_like_path(part) for part in parts):
        return None
    return tuple(os.fspath(part) for part in parts)


def _looks_like_path(given: str | os.PathLike[str]) -> bool:
    """Whether this is rather a path than a text: it has no white space, or a suffix of a data file, or it exists."""
    if not isinstance(given, str):
        return True
    if "\n" in given or not given:
        return False
    if not any(map(str.isspace, given)) or given.lower().endswith(PATH_SUFFIXES):
        return True
    try:
        return os.path.exists(given)
    except ValueError:  # a NUL
        return False


# Settings

def split_settings(task: str, recipe: str | None, settings: Mapping[str, Any],
                   options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Short options by name, and dotted keys of the config with their values.

    None leaves an option at its default. A key that is set twice is a ValueError.

    Args:
        settings: dotted keys.
        options: short names, or keys by their last part where that is unique.
    """
    short, changes, leaves = dict[str, Any](), dict(settings), config_leaves(task, recipe)
    for name, value in options.items():
        if value is None:
            continue
        value = value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value
        if name in SHORT_NAMES:
            short[name] = value
            continue
        key = name if "." in name else _setting_key(name, leaves)
        if key in changes:
            raise ValueError(f"`{name}` and `{key}` in `settings` both set {key}: give one of them.")
        changes[key] = value
    return short, changes


def _setting_key(name: str, leaves: Mapping[str, Sequence[str]]) -> str:
    """The dotted key of a setting without a dot; a ValueError if it is unknown or ambiguous."""
    keys = leaves.get(name, ())
    if not keys:
        near = checks.nearest(name, [*leaves, *SHORT_NAMES])
        raise ValueError(f"`{name}` is neither an argument of regard.train nor a key of the config. {near}".rstrip())
    if len(keys) > 1:
        raise ValueError(f"`{name}` is the name of {len(keys)} keys of the config: {', '.join(keys)}. Set one of them "
                         f'with settings={{"{keys[0]}": ...}}.')
    return keys[0]


def config_leaves(task: str, recipe: str | None = None) -> dict[str, list[str]]:
    """The dotted keys of the config by their last part, for the models of a task, or for that of a recipe.

    Keys that have no effect on the task are left out.
    """
    kinds: Sequence[str] = TASKS[task].model_kinds
    if recipe is not None and not recipe.endswith(".toml") and "/" not in recipe:
        kinds = [catalog.find_recipe(recipe).tables["model"]["kind"]]
    leaves, unused = dict[str, list[str]](), tuple(f"{key}." for key in TASKS[task].unused)
    for table, annotation in TABLES.items():
        for key in dict.fromkeys(_leaf_keys(type_spec(annotation, table), table, kinds)):
            if not f"{key}.".startswith(unused):
                leaves.setdefault(key.rpartition(".")[2], []).append(key)
    return leaves


def _leaf_keys(spec: KeySpec, key: str, kinds: Sequence[str]) -> Iterator[str]:
    """The dotted keys of all values in a table; of the models only those of these kinds."""
    if not isinstance(spec.reader, TableReader):
        yield key
        return
    for cls in spec.reader.classes:
        if key != "model" or config_kind(cls) in kinds:
            for name, inner in key_specs(cls).items():
                yield from _leaf_keys(inner, f"{key}.{name}", kinds)
