"""A task: a model with its config, special ids and tokenizer, and the folder that holds all of it.

    task = regard.load("folder")      the task that fits the model
    task.model                        the bare module
    task.save("other")                config.toml, model.safetensors, tokenizer.*, README.md, manifest.json

`Task` is the base class of `Translator`, `Completer`, `Filler`, `Classifier` and `Embedder`. This module also writes
the two text files of a model folder, config.toml (`ModelDescription`) and the model card in README.md, and splits many
texts into batches of similar length (`map_batches`).

A task without a tokenizer takes ids only. A task does not know how its model was trained: the tables of config.toml
about the training are kept as they are.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

import torch
from torch import Tensor, nn

from regard import checks
from regard import config as schema
from regard._version import __version__
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.decoding.constraints import check_ids
from regard.models.build import ModelConfig
from regard.models.embedding import Embedding
from regard.special_tokens import SpecialTokens
from regard.storage import folder as folders
from regard.storage import weights
from regard.tasks.alignment import AlignmentConfig
from regard.tokens import Tokens
from regard.toml import ConfigProblem, KeyPath, TomlDocument, escape

if TYPE_CHECKING:
    from regard.inspection.watch import Replay

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.toml", "model.safetensors", "README.md"
MAX_BATCH_TOKENS = 4096
"""Tokens of a batch, padding included."""
Ids = Sequence[Sequence[int]]
AnyTokenizer = Tokenizer | PairTokenizer
RowT = TypeVar("RowT")
ResultT = TypeVar("ResultT")
OptionsP = ParamSpec("OptionsP")


class Observers(list[Callable[["Replay"], None]]):
    """Functions that a task calls with what its model has read and written. A copy of the task has none."""

    def __reduce__(self) -> "tuple[type[Observers], tuple[()]]":
        return Observers, ()


class Task:
    """A model in evaluation mode, with everything that is needed to use it.

    Args:
        model: the bare module.
        config: the config that the model was built from.
        special: the special ids; by default those of the tokenizer.
        tokenizer: a PairTokenizer for a `Translator`, a Tokenizer for the other tasks.
        labels: the names of the labels of a `Classifier`, in the order of its outputs.
        aligned_by: the attention head from which a `Translator` reads word alignments. By default it chooses a layer
            for every sentence.
        record: further tables of config.toml: "data", "training", "scores", and "tokenizer", how it was trained.
    """

    tokenizer_type: ClassVar[type[Tokenizer] | type[PairTokenizer]] = Tokenizer
    aligns: ClassVar[bool] = False
    """Whether the task computes word alignments."""

    @checks.renamed_arguments(made_from="config")
    def __init__(self, model: nn.Module, config: ModelConfig, special: SpecialTokens | None = None, *,
                 tokenizer: AnyTokenizer | None = None, labels: Sequence[str] | None = None,
                 aligned_by: AlignmentConfig | None = None, record: Mapping[str, Any] | None = None) -> None:
        if special is not None and not isinstance(special, SpecialTokens):
            raise checks.wrong("special", "a SpecialTokens", *checks.kind(special))
        self.model, self.config = model.eval(), config
        self.special = _special_tokens(tokenizer) if special is None else special
        self.tokenizer = tokenizer
        self.labels = None if labels is None else tuple(labels)
        self.aligned_by = aligned_by
        self.record = checked_record(record)
        self.observers = Observers()
        self._check_special_tokens()
        self._check_tokenizer()
        self._check_labels()
        self._check_alignment()

    def save(self, folder: str | Path) -> None:
        """Write the model folder. It replaces a folder that regard saved; anything else is refused."""
        record, tokenizer = checked_record(self.record), self.tokenizer
        described = ModelDescription(self.config, self.special, self.labels,
                                     None if tokenizer is None else tokenizer.sha256, record, self.aligned_by)
        files: dict[str, folders.FileContent] = {
            CONFIG_FILE: described.text().encode(),
            WEIGHTS_FILE: partial(_write_weights, self.model),
            **({} if tokenizer is None else tokenizer.files()),
        }
        card = model_card(type(self).__name__, self.config, reads_text=tokenizer is not None, labels=self.labels,
                          record=record)
        folders.save(folder, files, editable={CARD_FILE: card.encode()})

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def vocabularies(self) -> tuple[int, ...]:
        """The vocabulary sizes of the model: one, or source and target; none for a model of images."""
        names = ("vocab_size", "source_vocab_size", "target_vocab_size")
        return tuple(getattr(self.config, name) for name in names if hasattr(self.config, name))

    def tokens(self, rows: Ids) -> Tokens:
        """Rows of ids as a padded batch on the model's device."""
        self.check_eval_mode()
        if not _is_sequence(rows):
            raise checks.wrong("rows", "sequences of ids, such as [[5, 6], [7]]", *checks.kind(rows))
        if not rows:
            raise checks.wrong("rows", "at least one sequence of ids", "none")
        for number, row in enumerate(rows):
            if not _is_sequence(row):
                raise checks.wrong("rows", "sequences of ids, such as [[5, 6], [7]]", f"{row!r:.80} in row {number}")
            check_ids("rows", row)
        padding = self.special.padding or 0
        if any(padding >= size for size in self.vocabularies):  # an id of the other side; padding is masked anyway
            padding = 0
        return Tokens.of(rows, padding=padding).to(self.device)

    def notify(self, make: "Callable[[], Iterable[Replay]]") -> None:
        """Tell the observers what the model read and wrote. `make` is called only if there are any."""
        for replay in make() if self.observers else ():
            for observer in (*self.observers,):
                observer(replay)

    def check_eval_mode(self) -> None:
        """Refuse a model in training mode, in which dropout makes results random."""
        if self.model.training:
            raise checks.wrong("model", "in evaluation mode", "in training mode", "Call task.model.eval() first.")

    def end_ids(self) -> tuple[int, ...]:
        """The ids that end a generated text."""
        if not self.special.end:
            raise checks.wrong("special.end", "an id, for a model that generates text", "none")
        return self.special.end

    def require_tokenizer(self) -> AnyTokenizer:
        """The tokenizer; a ValueError if there is none."""
        if self.tokenizer is None:
            raise ValueError("This model has no tokenizer: pass ids to a method whose name ends with _ids. To read the "
                             "tokenizer.json of an imported model, install `tokenizers`: pip install 'regard[import]'.")
        return self.tokenizer

    def _check_special_tokens(self) -> None:
        """Refuse special ids beyond the vocabulary; start and end are of the output vocabulary."""
        sizes = self.vocabularies
        if not sizes:
            return
        special = [("start", self.special.start), *(("end", id_) for id_ in self.special.end)]
        special += [(name, getattr(self.special, name))
                    for name in ("padding", "unknown", "mask", "cls", "separator")]
        for name, id_ in special:
            size = sizes[-1] if name in ("start", "end") else max(sizes)
            if id_ is not None and id_ >= size:
                raise checks.wrong(f"special.{name}", f"an id of the model, below {size}", id_)

    def _check_tokenizer(self) -> None:
        """Refuse the tokenizer of another model: too many ids, or special ids that text can produce."""
        if self.tokenizer is None:
            if TOKENIZER_KEY in self.record:
                raise checks.wrong(f"record.{TOKENIZER_KEY}", "left out without a tokenizer", "given")
            return
        if not self.vocabularies:
            raise checks.wrong("tokenizer", "None, for a model of images", "given")
        if not isinstance(self.tokenizer, self.tokenizer_type):
            expected = f"a {self.tokenizer_type.__name__}, for a {type(self).__name__}"
            raise checks.wrong("tokenizer", expected, *checks.kind(self.tokenizer))
        sides = _tokenizer_sides(self.tokenizer)
        for side, size in zip(sides, self.vocabularies, strict=True):
            if side.size > size:
                raise checks.wrong("tokenizer", f"of at most {size:,} ids, those of the model", f"of {side.size:,}",
                                   "It is the tokenizer of another model.")
        allowed = frozenset[int]().union(*(side.special.ids() for side in sides))
        if not self.special.ids() <= allowed:
            raise checks.wrong("special", f"some of the special ids of the tokenizer, {sorted(allowed)}",
                               sorted(self.special.ids()))

    def _check_labels(self) -> None:
        count = getattr(self.config, "num_labels", None)
        if self.labels is None:
            return
        if count is None:
            raise checks.wrong("labels", f"None, for a {type(self).__name__}", "given")
        if len(self.labels) != count or not all(isinstance(name, str) for name in self.labels):
            raise checks.wrong("labels", f"{count} names, one for each label",
                               f"{len(self.labels)}: {self.labels!r:.80}")

    def _check_alignment(self) -> None:
        if self.aligned_by is None:
            return
        if not self.aligns:
            raise checks.wrong("aligned_by", f"None, for a {type(self).__name__}", "given")
        if not isinstance(self.aligned_by, AlignmentConfig):
            raise checks.wrong("aligned_by", "an AlignmentConfig", *checks.kind(self.aligned_by))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config.kind}, {self.config.parameters():,} parameters)"


class TextTask(Task):
    """A task with one tokenizer: every task but a `Translator`."""

    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer; a ValueError if there is none."""
        tokenizer = self.require_tokenizer()
        assert isinstance(tokenizer, Tokenizer)
        return tokenizer


class EncoderTask(TextTask):
    """A task of a model that reads whole texts: a `Filler`, a `Classifier` or an `Embedder`."""

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts with special ids, as in training: a text beyond the model's positions is truncated."""
        rows, limit = self.text_tokenizer().encode_batch(texts), self.max_positions()
        length = None if limit is None else limit - len(self.add_special_ids([[]])[0])
        return self.add_special_ids([row[:length] for row in rows])

    def add_special_ids(self, rows: Ids) -> list[list[int]]:
        """Rows with the ids `cls` before and `separator` after each, for models that have them."""
        before, after = ([] if id_ is None else [id_] for id_ in (self.special.cls, self.special.separator))
        return [[*before, *row, *after] for row in rows]

    def max_positions(self) -> int | None:
        """The number of positions of the encoder; None if it is unlimited."""
        return max_positions(getattr(self.model, "encoder", self.model))

    def _notify_sequences(self, rows: Ids, texts: Sequence[str] | None = None) -> None:
        """Tell observers that the model read these rows, the ids of `texts` if there are any."""
        def replays() -> "Iterator[Replay]":
            from regard.tasks.traces import replay_sequence

            for row, text in zip(rows, [None] * len(rows) if texts is None else texts, strict=True):
                yield replay_sequence(self, row, text)

        self.notify(replays)


def max_positions(part: object) -> int | None:
    """The number of positions of an encoder or a decoder; None if it is unlimited."""
    embedding = getattr(part, "embedding", None)
    return embedding.limit if isinstance(embedding, Embedding) else None


def check_lengths(argument: str, rows: Ids, limit: int | None) -> None:
    """Refuse rows that are longer than the model has positions."""
    for number, row in enumerate(rows):
        if limit is not None and len(row) > limit:
            raise checks.wrong(argument, f"at most {limit} tokens long, the positions of the model",
                               f"{len(row)} tokens long{text_suffix(number, rows)}",
                               "Shorten it, or use a model with more positions.")


def ids_without_token(tokenizer: Tokenizer, vocabulary: int) -> list[int]:
    """The ids of the model that are no token: some models pad their vocabulary for speed."""
    return list(range(tokenizer.size, vocabulary))


def _tokenizer_sides(tokenizer: AnyTokenizer) -> tuple[Tokenizer, ...]:
    return (tokenizer.source, tokenizer.target) if isinstance(tokenizer, PairTokenizer) else (tokenizer,)


def _special_tokens(tokenizer: AnyTokenizer | None) -> SpecialTokens:
    """The special ids of the output side."""
    return _tokenizer_sides(tokenizer)[-1].special if isinstance(tokenizer, AnyTokenizer) else SpecialTokens()


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _write_weights(model: nn.Module, path: Path) -> None:
    state: dict[str, Tensor] = model.state_dict()
    weights.write_tensors(path, state, {"regard": __version__})


# Many texts at once

class OneOrManyCall(Protocol[OptionsP, ResultT]):
    """A method that returns one result for one text, and a list for several."""

    @overload
    def __call__(self, texts: str, /, *args: OptionsP.args,  # type: ignore[overload-overlap]
                 **options: OptionsP.kwargs) -> ResultT: ...
    @overload
    def __call__(self, texts: Sequence[str], /, *args: OptionsP.args, **options: OptionsP.kwargs) -> list[ResultT]: ...


class OneOrManyMethod(Protocol[OptionsP, ResultT]):
    """A function in a class body that becomes a `OneOrManyCall` when it is bound."""

    def __get__(self, instance: object, owner: type | None = None) -> OneOrManyCall[OptionsP, ResultT]:
        """The bound method."""


def one_or_many(method: Callable[Concatenate[Any, Sequence[str], OptionsP], list[ResultT]],
                ) -> OneOrManyMethod[OptionsP, ResultT]:
    """Let a method of several texts also take one text, and then return one result."""
    argument = inspect.unwrap(method).__code__.co_varnames[1]

    @functools.wraps(method)
    def call(self: Any, texts: Any, /, *args: OptionsP.args, **options: OptionsP.kwargs) -> Any:
        results = method(self, as_texts(argument, texts), *args, **options)
        return results[0] if isinstance(texts, str) else results

    return call  # type: ignore[return-value]


def as_texts(argument: str, given: object) -> list[str]:
    """One text, or several, as a list; a ValueError for anything else."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise checks.wrong(argument, "a text, or a list of texts", *checks.kind(given))
    for number, text in enumerate(given):
        if not isinstance(text, str):
            got = f"a list with {checks.kind(text)[0]} at {number}"
            raise checks.wrong(argument, "a text, or a list of texts", got)
    return list(given)


def text_suffix(number: int, texts: Sequence[object]) -> str:
    """The end of a message, " in text 3"; empty if there is only one text."""
    return f" in text {number}" if len(texts) > 1 else ""


def length_batches(lengths: Sequence[int], tokens: int = MAX_BATCH_TOKENS) -> Iterator[list[int]]:
    """Batches of row numbers, the longest rows first, so that a batch too large for the memory fails at once.

    A batch has at most `tokens` tokens with padding; a longer row is a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    batch: list[int] = []
    for number in order:
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def map_batches(rows: Sequence[RowT], lengths: Sequence[int], work: Callable[[list[RowT]], Sequence[ResultT]],
                tokens: int = MAX_BATCH_TOKENS) -> list[ResultT]:
    """The results of `work`, called batch by batch, in the order of the rows."""
    results: dict[int, ResultT] = {}
    for numbers in length_batches(lengths, tokens):
        results |= zip(numbers, work([rows[number] for number in numbers]), strict=True)
    return [results[number] for number in range(len(rows))]


def isolate_errors(rows: list[RowT], work: Callable[[list[RowT]], Sequence[ResultT]]) -> "list[ResultT | ValueError]":
    """The results of `work`; for a row that fails, its error.

    All rows are tried together. If that fails, each half is tried, until the failing rows are alone.
    """
    try:
        return list(work(rows))
    except ValueError as error:
        reason = error
    except (MemoryError, torch.OutOfMemoryError):
        reason = ValueError("It is too long for the memory of this device.")
    if len(rows) == 1:
        return [reason]
    half = len(rows) // 2
    return [*isolate_errors(rows[:half], work), *isolate_errors(rows[half:], work)]


# config.toml

RECIPE_KEY, TOKENIZER_KEY, SHA256_KEY = "recipe", "tokenizer", "sha256"
RECORD_TABLES = (TOKENIZER_KEY, "data", "training", "scores")
RECORD_KEYS = (RECIPE_KEY, *RECORD_TABLES)
"""The keys of a record."""
OLD_RECORD_KEYS: Mapping[str, str] = {
    "training.accumulate": "gradient_accumulation", "training.smoothing": "label_smoothing",
    "training.consistency": "rdrop", "training.clip": "max_grad_norm", "training.average": "ema_decay",
    "training.sampling": "subword_sampling", "training.shift": "random_shift", "training.sharing": "parallelism",
    "training.report": "log_every", "training.batches.tokens": "max_tokens", "training.batches.rows": "batch_size",
    "training.batches.ahead": "prefetch", "training.windows.rows": "batch_size",
    "training.masking.share": "mlm_probability", "training.masking.hidden": "mask_replace_prob",
    "training.masking.replaced": "random_replace_prob", "training.optimiser.first": "beta1",
    "training.optimiser.second": "beta2", "training.optimiser.decay": "weight_decay",
    "training.optimiser": "optimizer", "training.schedule.peak": "learning_rate",
    "training.schedule.warmup": "warmup_steps", "training.schedule.steps": "max_steps",
    "training.schedule.hold": "constant_fraction", "training.schedule.last": "final_fraction",
    "training.validation.score": "metric", "training.validation.most": "max_examples",
    "training.validation.shown": "samples_shown", "data.held": "validation_fraction", "data.joint": "joint_tokenizer",
    "data.filters.longest_words": "max_words", "data.filters.longest_characters": "max_characters",
    "data.filters.ratio": "max_length_ratio", "data.filters.ratio_from": "min_ratio_characters",
    "tokenizer.vocabulary": "vocab_size", "tokenizer.coverage": "character_coverage",
    "tokenizer.normalisation": "normalization", "tokenizer.sentences": "input_sentence_size",
}
"""Old paths of record keys and their new names; the keys of a table come before the table itself."""
OLD_PARALLELISM = {"replicated": "ddp", "sharded": "fsdp"}


@dataclass(frozen=True, kw_only=True)
class LabelNamesConfig(schema.Config):
    """The names of the labels, in the order of the model's outputs."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class ModelDescription:
    """The contents of config.toml in a model folder.

        [model], [special]             the model and its special ids
        [labels] names                 of a classifier
        [alignment]                    the attention head for word alignments, of a translator
        [tokenizer] sha256             the tokenizer of the model; its other keys say how it was trained
        recipe                         the name of the recipe
        [data], [training], [scores]   how the model was trained, and how good it is

    The record, everything from [tokenizer] on but the sha256, is kept as it is, so that a model that is loaded and
    saved again keeps its history.
    """

    model: ModelConfig
    special: SpecialTokens | None
    labels: tuple[str, ...] | None = None
    tokenizer: str | None = None
    """The sha256 of the tokenizer; None if the model has none."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """Values by the names of RECORD_KEYS."""
    alignment: AlignmentConfig | None = None

    def text(self) -> str:
        """The file as text."""
        tables = {"model": self.model, "special": self.special,
                  "labels": None if self.labels is None else LabelNamesConfig(names=self.labels),
                  "alignment": self.alignment, **self.record}
        if self.tokenizer is not None:
            tables[TOKENIZER_KEY] = {**self.record.get(TOKENIZER_KEY, {}), SHA256_KEY: self.tokenizer}
        return schema.to_toml(tables)


def read_description(document: TomlDocument) -> ModelDescription:
    """The description in a parsed config.toml; a ConfigError lists all its problems."""
    keys = {"model": schema.type_spec(ModelConfig, "model"),
            "special": schema.type_spec(SpecialTokens | None, "special"),
            "labels": schema.type_spec(LabelNamesConfig | None, "labels"),
            "alignment": schema.type_spec(AlignmentConfig | None, "alignment"),
            RECIPE_KEY: schema.type_spec(str | None, RECIPE_KEY),
            **{key: schema.KeySpec(_AnyTable(), optional=True) for key in RECORD_TABLES}}
    document = schema.with_current_keys(document, {"model": ModelConfig, "special": SpecialTokens})
    problems: list[ConfigProblem] = []
    values = schema.read_keys(keys, document.tables, (), problems)
    record = _with_current_names({key: values[key] for key in RECORD_KEYS if values.get(key) is not None})
    sha256 = record.get(TOKENIZER_KEY, {}).pop(SHA256_KEY, None)
    if TOKENIZER_KEY in record and not isinstance(sha256, str):
        problems.append(schema.value_problem((TOKENIZER_KEY, SHA256_KEY), "the sha256 of the tokenizer", sha256))
    if problems:
        raise document.error(problems)
    if not record.get(TOKENIZER_KEY, True):
        del record[TOKENIZER_KEY]
    names: LabelNamesConfig | None = values["labels"]
    return ModelDescription(values["model"], values["special"], None if names is None else names.names, sha256, record,
                            values["alignment"])


def _with_current_names(record: dict[str, Any]) -> dict[str, Any]:
    """The record of an older model under the names that its keys have now, in the same order."""
    for key, name in OLD_RECORD_KEYS.items():
        *above, old = key.split(".")
        table: Any = record
        for part in above:
            table = table.get(part) if isinstance(table, dict) else None
        if isinstance(table, dict) and old in table and name not in table:
            items = [(name if one == old else one, value) for one, value in table.items()]
            table.clear()
            table.update(items)
    training = record.get("training", {})
    if training.get("parallelism") in OLD_PARALLELISM:
        training["parallelism"] = OLD_PARALLELISM[training["parallelism"]]
    return record


def checked_record(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """A record as plain values; a ValueError for an unknown key, or a value that TOML cannot hold."""
    tables = schema.to_tables(record or {})
    for key, value in tables.items():
        checks.pick("record", key, dict.fromkeys(RECORD_KEYS))
        if not isinstance(value, str if key == RECIPE_KEY else Mapping):
            raise checks.wrong(f"record.{key}", "text" if key == RECIPE_KEY else "a table", checks.kind(value)[0])
    if SHA256_KEY in tables.get(TOKENIZER_KEY, {}):
        raise checks.wrong(f"record.{TOKENIZER_KEY}", f"without {SHA256_KEY}, which is computed from the tokenizer",
                           "with it")
    schema.to_toml(tables)
    return {key: value for key, value in tables.items() if value}


class _AnyTable(schema.ValueReader):
    """A table with any contents."""

    expected = "a table"

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        if isinstance(value, Mapping):
            return schema.to_tables(value)
        found.append(schema.value_problem(path, self.expected, value))
        return None


# The model card

CARD_FOLDER = "path/to/this/folder"


class TaskUsage(NamedTuple):
    """How a task is used: in a shell, and in Python with text (or images) and with ids."""

    what: str
    command: str
    call: str
    with_ids: str


TASK_USAGE = {
    "Translator": TaskUsage("translates", f'regard translate {CARD_FOLDER} "..."', '.translate("...").text',
                            ".translate_ids([[5, 6, 7]])"),
    "Completer": TaskUsage("continues a text", f'regard complete {CARD_FOLDER} "..."', '.complete("...").text',
                           ".complete_ids([[5, 6, 7]], max_length=20)"),
    "Filler": TaskUsage("fills in blanks", f'regard fill {CARD_FOLDER} "... ___ ..."', '.fill("... ___ ...").text',
                        ".fill_ids([[5, 6, 7]])"),
    "Classifier": TaskUsage("classifies texts", f"regard classify {CARD_FOLDER} ...", '.classify("...")',
                            ".label_ids([[5, 6, 7]])"),
    "Embedder": TaskUsage("computes a vector for a text", "", '.embed("...")', ".embed_ids([[5, 6, 7]])"),
}
TAGGER_USAGE = TaskUsage("labels tokens", "", ".label_ids([[5, 6, 7]])", ".label_ids([[5, 6, 7]])")
IMAGE_USAGE = TaskUsage("classifies images", f"regard classify {CARD_FOLDER} image.png", ".classify(images)", "")


def model_card(task: str, config: ModelConfig, *, reads_text: bool, labels: tuple[str, ...] | None,
               record: Mapping[str, Any]) -> str:
    """The text of README.md: what the model is, its scores, its training data by file name and sha256, and its use.

    The card shows no sentence of the data and no path of a machine.

    Args:
        task: the name of the task class.
        reads_text: whether the task has a tokenizer.
        record: its "recipe", "scores" and "data.files" are shown.
    """
    return "\n".join(_card_lines(task, config, reads_text, labels, record)) + "\n"


def _card_lines(task: str, config: ModelConfig, reads_text: bool, labels: tuple[str, ...] | None,
                record: Mapping[str, Any]) -> Iterator[str]:
    images = config.kind == "vision"
    usage = IMAGE_USAGE if images else TAGGER_USAGE if config.kind == "tagger" else TASK_USAGE[task]
    recipe = record.get("recipe")
    yield f"# A model that {usage.what}"
    yield ""
    yield f"- kind: `{config.kind}`" + (f", recipe {_inline_code(recipe)}" if isinstance(recipe, str) else "")
    yield f"- {config.parameters():,} parameters"
    if labels is not None:
        yield f"- labels: {', '.join(map(_inline_code, labels))}"
    yield f"- saved by regard {__version__}"
    yield from _card_table("Scores", ("score", "value"), _flat_items(record.get("scores", {})))
    yield from _card_table("Data", ("file", "sha256"), _file_hashes(record.get("data", {}).get("files", ())))
    yield from ("", "## Use", "")
    if usage.command and (reads_text or images):
        yield from ("```", usage.command, "```", "")
    yield from ("```python", "import regard", "", f'task = regard.load("{CARD_FOLDER}")')
    yield from (f"task{usage.call if reads_text or images else usage.with_ids}", "```")


def _card_table(title: str, head: tuple[str, str], cells: Iterator[tuple[str, str]]) -> Iterator[str]:
    rows = list(cells)
    if rows:
        yield from ("", f"## {title}", "", f"| {head[0]} | {head[1]} |", "|---|---|")
        yield from (f"| {name} | {value} |" for name, value in rows)


def _flat_items(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of every leaf of nested tables; a name begins with the names of its tables."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _flat_items(value, f"{above}{key} ")
        else:
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            yield _inline_code(above + key), _inline_code(shown)


def _file_hashes(files: Any) -> Iterator[tuple[str, str]]:
    """Name and sha256 of files, given as a table, or as an array of "name sha256"."""
    pairs = files.items() if isinstance(files, Mapping) else (str(each).rpartition(" ")[::2] for each in files)
    for name, digest in pairs:
        yield _inline_code(PurePath(name).name), _inline_code(str(digest))


def _inline_code(text: str) -> str:
    """A text as inline code for a table cell, without characters that are markup there."""
    shown = escape(text).replace("`", "'").replace("|", "\\|")
    return f"`{shown or ' '}`"
