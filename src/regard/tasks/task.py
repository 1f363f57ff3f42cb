"""A task: a model with its config, special ids and tokenizer, and the folder that holds all of it.

    task = regard.load("folder")      the task that fits the model
    task.model                        the bare module
    task.save("other")                config.toml, model.safetensors, tokenizer.*, README.md, manifest.json

`Task` is the base class of `Translator`, `Completer`, `Filler`, `Classifier` and `Embedder`. This module also writes the
two text files of a model folder: config.toml (`ModelDescription`) and the model card in README.md. And it splits many
texts into batches of similar length (`map_batches`).

A task without a tokenizer takes ids only. A task does not know how its model was trained: the tables of config.toml
about the training are kept as they are.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Any, ClassVar, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, overload

import torch
from torch import Tensor, nn

from regard import checks, config
from regard import config as schema
from regard._version import __version__
from regard.config import Config
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.decoding.constraints import check_ids
from regard.inspection.watch import Observers, Replay
from regard.models.build import ModelConfig
from regard.models.embedding import Embedding
from regard.special_tokens import SpecialTokens
from regard.storage import folder as folders
from regard.storage import weights
from regard.tasks.alignment import AlignmentConfig
from regard.tokens import Tokens
from regard.toml import ConfigProblem, KeyPath, TomlDocument, escape

MAX_BATCH_TOKENS = 4096
"""Of a batch."""
RowT = TypeVar("RowT")
ResultT = TypeVar("ResultT")
OptionsP = ParamSpec("OptionsP")


class OneOrManyCall(Protocol[OptionsP, ResultT]):
    """A method that gives a result for one text, and for several a list of them."""

    @overload
    def __call__(self, texts: str, /, *args: OptionsP.args,  # type: ignore[overload-overlap]
                 **options: OptionsP.kwargs) -> ResultT: ...
    @overload
    def __call__(self, texts: Sequence[str], /, *args: OptionsP.args, **options: OptionsP.kwargs) -> list[ResultT]: ...


class OneOrManyMethod(Protocol[OptionsP, ResultT]):
    """Such a method in its class."""

    def __get__(self, instance: object, owner: type | None = None) -> OneOrManyCall[OptionsP, ResultT]:
        """That of an instance."""


def one_or_many(method: Callable[Concatenate[Any, Sequence[str], OptionsP], list[ResultT]]) -> OneOrManyMethod[OptionsP, ResultT]:
    """A method of several texts that takes one as well. What is no text it refuses by the name of the argument."""
    argument = method.__code__.co_varnames[1]

    @functools.wraps(method)
    def given(self: Any, texts: Any, /, *args: OptionsP.args, **options: OptionsP.kwargs) -> Any:
        results = method(self, as_texts(argument, texts), *args, **options)
        return results[0] if isinstance(texts, str) else results

    return given  # type: ignore[return-value]


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
    """The end of a message about one of several texts, which says which; nothing where there is only one."""
    return f" in text {number}" if len(texts) > 1 else ""


def length_batches(lengths: Sequence[int], tokens: int = MAX_BATCH_TOKENS) -> Iterator[list[int]]:
    """The numbers of rows of these lengths, batch by batch, the longest first; a row that is too long is alone."""
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
    """What `work` makes of each row, given some of them at a time; in the order of the rows."""
    results: dict[int, ResultT] = {}
    for numbers in length_batches(lengths, tokens):
        results |= zip(numbers, work([rows[number] for number in numbers]), strict=True)
    return [results[number] for number in range(len(rows))]


# ---- description: config.toml of a model's folder: what a task reads of it, and what it keeps for others.
#
#     [model], [special]             what the model is, and its special ids
#     [labels] names                 of a classifier
#     [alignment]                    where the links between words are read, of a translator
#     [tokenizer] sha256             which tokenizer the model works with; its other keys say how that was made
#     recipe                         its name
#     [data], [training], [scores]   how the model came to be, and how good it is
#
# Of the last three lines only the sha256 is read here. The rest is kept as it is, so that a model that is loaded and
# saved again does not forget where it comes from. Any other key is refused. It does not know folders, nor what the tables
# that it keeps mean.

RECIPE_KEY, TOKENIZER_KEY, SHA256_KEY = "recipe", "tokenizer", "sha256"
RECORD_TABLES = (TOKENIZER_KEY, "data", "training", "scores")
RECORD_KEYS = (RECIPE_KEY, *RECORD_TABLES)
"""What a record may have."""
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
"""The keys of a record that have another name now; those of a table stand before the table itself."""
OLD_PARALLELISM = {"replicated": "ddp", "sharded": "fsdp"}


@dataclass(frozen=True, kw_only=True)
class LabelNamesConfig(Config):
    """The names of the labels, in the order of the model's outputs."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class ModelDescription:
    """What config.toml says."""

    model: ModelConfig
    special: SpecialTokens | None
    labels: tuple[str, ...] | None = None
    tokenizer: str | None = None
    """The sha256 of the model's tokenizer; None where it has none."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What is kept, by the names of KEPT."""
    alignment: AlignmentConfig | None = None

    def text(self) -> str:
        """The file."""
        tables = {"model": self.model, "special": self.special,
                  "labels": None if self.labels is None else LabelNamesConfig(names=self.labels),
                  "alignment": self.alignment, **self.record}
        if self.tokenizer is not None:
            tables[TOKENIZER_KEY] = {**self.record.get(TOKENIZER_KEY, {}), SHA256_KEY: self.tokenizer}
        return config.to_toml(tables)


def read_description(document: TomlDocument) -> ModelDescription:
    """The description in a document; a ConfigError has all that is wrong with it."""
    slots = {"model": schema.type_spec(ModelConfig, "model"), "special": schema.type_spec(SpecialTokens | None, "special"),
             "labels": schema.type_spec(LabelNamesConfig | None, "labels"),
             "alignment": schema.type_spec(AlignmentConfig | None, "alignment"),
             RECIPE_KEY: schema.type_spec(str | None, RECIPE_KEY),
             **{key: schema.KeySpec(_AnyTable(), optional=True) for key in RECORD_TABLES}}
    document = config.with_current_keys(document, {"model": ModelConfig, "special": SpecialTokens})
    found: list[ConfigProblem] = []
    made = schema.read_keys(slots, document.tables, (), found)
    record = _with_current_names({key: made[key] for key in RECORD_KEYS if made.get(key) is not None})
    sha256 = record.get(TOKENIZER_KEY, {}).pop(SHA256_KEY, None)
    if TOKENIZER_KEY in record and not isinstance(sha256, str):
        found.append(schema.value_problem((TOKENIZER_KEY, SHA256_KEY), "the sha256 of the tokenizer", sha256))
    if found:
        raise document.error(found)
    if not record.get(TOKENIZER_KEY, True):
        del record[TOKENIZER_KEY]
    names: LabelNamesConfig | None = made["labels"]
    return ModelDescription(made["model"], made["special"], None if names is None else names.names, sha256, record,
                       made["alignment"])


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
    """A record as plain values; a ValueError where a file could not hold it, or a key is none of those kept."""
    tables = config.to_tables(record or {})
    for key, value in tables.items():
        checks.pick("record", key, dict.fromkeys(RECORD_KEYS))
        if not isinstance(value, str if key == RECIPE_KEY else Mapping):
            raise checks.wrong(f"record.{key}", "text" if key == RECIPE_KEY else "a table", checks.kind(value)[0])
    if SHA256_KEY in tables.get(TOKENIZER_KEY, {}):
        raise checks.wrong(f"record.{TOKENIZER_KEY}", f"without {SHA256_KEY}, which follows from the tokenizer", "with it")
    config.to_toml(tables)
    return {key: value for key, value in tables.items() if value}


class _AnyTable(schema.ValueReader):
    """A table of which nothing is asked."""

    expected = "a table"

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        if isinstance(value, Mapping):
            return config.to_tables(value)
        found.append(schema.value_problem(path, self.expected, value))
        return None


# ---- card: The README of a model's folder: what the model is, how good, what it was made from, and how to use it.
#
# It names files of data and their sha256. It shows no sentence of them, and no path of a machine. What a task can do is
# told by the table below; it does not know models.

CARD_FOLDER = "path/to/this/folder"


class TaskUsage(NamedTuple):
    """How a task is used: in a shell, and in Python with text (or images) and with ids alone."""

    what: str
    command: str
    call: str
    with_ids: str


TASK_USAGE = {
    "Translator": TaskUsage("translates", f'regard translate {CARD_FOLDER} "..."', '.translate("...").text',
                      ".translate_ids([[5, 6, 7]])"),
    "Completer": TaskUsage("goes on with a text", f'regard complete {CARD_FOLDER} "..."', '.complete("...").text',
                     ".complete_ids([[5, 6, 7]], limit=20)"),
    "Filler": TaskUsage("fills in what is left out", f'regard fill {CARD_FOLDER} "... ___ ..."', '.fill("... ___ ...").text',
                  ".fill_ids([[5, 6, 7]])"),
    "Classifier": TaskUsage("gives labels", f"regard classify {CARD_FOLDER} ...", '.classify("...")', ".label_ids([[5, 6, 7]])"),
    "Embedder": TaskUsage("gives a vector for a text", "", '.embed("...")', ".embed_ids([[5, 6, 7]])"),
}
TAGGER_USAGE = TaskUsage("gives labels to tokens", "", ".label_ids([[5, 6, 7]])", ".label_ids([[5, 6, 7]])")
IMAGE_USAGE = TaskUsage("gives labels to images", f"regard classify {CARD_FOLDER} image.png", ".classify(images)", "")


def model_card(task: str, config: ModelConfig, *, reads_text: bool, labels: tuple[str, ...] | None,
         record: Mapping[str, Any]) -> str:
    """The text of the file.

    Args:
        task: the name of the class.
        reads_text: whether there is a tokenizer.
        record: "recipe", "scores" and "data.files" of it are shown.
    """
    return "\n".join(_card_lines(task, config, reads_text, labels, record)) + "\n"


def _card_lines(task: str, config: ModelConfig, reads_text: bool, labels: tuple[str, ...] | None,
           record: Mapping[str, Any]) -> Iterator[str]:
    images = config.kind == "vision"
    use = IMAGE_USAGE if images else TAGGER_USAGE if config.kind == "tagger" else TASK_USAGE[task]
    recipe = record.get("recipe")
    yield f"# A model that {use.what}"
    yield ""
    yield f"- kind: `{config.kind}`" + (f", recipe {_inline_code(recipe)}" if isinstance(recipe, str) else "")
    yield f"- {config.parameters():,} parameters"
    if labels is not None:
        yield f"- labels: {', '.join(map(_inline_code, labels))}"
    yield f"- saved by regard {__version__}"
    yield from _card_table("Scores", ("score", "value"), _flat_items(record.get("scores", {})))
    yield from _card_table("Data", ("file", "sha256"), _file_hashes(record.get("data", {}).get("files", ())))
    yield from ("", "## Use", "")
    if use.command and (reads_text or images):
        yield from ("```", use.command, "```", "")
    yield from ("```python", "import regard", "", f'task = regard.load("{CARD_FOLDER}")')
    yield from (f"task{use.call if reads_text or images else use.with_ids}", "```")


def _card_table(title: str, head: tuple[str, str], cells: Iterator[tuple[str, str]]) -> Iterator[str]:
    rows = list(cells)
    if rows:
        yield from ("", f"## {title}", "", f"| {head[0]} | {head[1]} |", "|---|---|")
        yield from (f"| {name} | {value} |" for name, value in rows)


def _flat_items(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of everything that is no table, the names of the tables in front."""
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
    """A text in a cell of a table, in which nothing is markup."""
    shown = escape(text).replace("`", "'").replace("|", "\\|")
    return f"`{shown or ' '}`"


# ---- task: What all tasks share: a model with its config, special ids and tokenizer, and the folder that holds all of it.
#
#     task = regard.load("folder")      the task that fits the model
#     task.model                        the bare module
#     task.save("other")                config.toml, model.safetensors, tokenizer.*, README.md, manifest.json
#
# A task without a tokenizer takes ids alone, and says so where it is given text. A task does not know how its model was
# trained: what is told of that, its record, is kept and not read.

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.toml", "model.safetensors", "README.md"
Ids = Sequence[Sequence[int]]
AnyTokenizer = Tokenizer | PairTokenizer


class Task:
    """A model ready for use: in evaluation mode, with all that is needed to use it.

    Args:
        model: the bare module.
        made_from: its config.
        special: its special ids; those of the tokenizer where not given.
        tokenizer: from text to ids: a PairTokenizer for a `Translator`, a Tokenizer for the others.
        labels: the names of the labels of a `Classifier`, in the order of its outputs.
        aligned_by: where a `Translator` reads which words belong together; it chooses in every sentence without it.
        record: tables that config.toml holds too: "data", "training", "scores", and "tokenizer", how that was made.
    """

    reads: ClassVar[type[Tokenizer] | type[PairTokenizer]] = Tokenizer
    """The kind of tokenizer that it takes."""
    aligns: ClassVar[bool] = False
    """Whether it tells which words belong together."""

    def __init__(self, model: nn.Module, made_from: ModelConfig, special: SpecialTokens | None = None, *,
                 tokenizer: AnyTokenizer | None = None, labels: Sequence[str] | None = None,
                 aligned_by: AlignmentConfig | None = None, record: Mapping[str, Any] | None = None) -> None:
        if special is not None and not isinstance(special, SpecialTokens):
            raise checks.wrong("special", "a SpecialConfig", *checks.kind(special))
        self.model, self.config = model.eval(), made_from
        self.special = _special_ids(tokenizer) if special is None else special
        self.tokenizer = tokenizer
        self.labels = None if labels is None else tuple(labels)
        self.aligned_by = aligned_by
        self.record = checked_record(record)
        self.observers = Observers()
        """They are told what the model has read and written."""
        self._check_vocabulary()
        self._check_tokenizer()
        self._check_labels()
        self._check_alignment()

    def save(self, folder: str | Path) -> None:
        """Write the folder of this model. What regard saved there before is replaced; anything else is refused."""
        record, tokenizer = checked_record(self.record), self.tokenizer
        described = ModelDescription(self.config, self.special, self.labels,
                                            None if tokenizer is None else tokenizer.sha256, record, self.aligned_by)
        files: dict[str, folders.FileContent] = {
            CONFIG_FILE: described.text().encode(),
            WEIGHTS_FILE: partial(_write_weights, self.model),
            **({} if tokenizer is None else tokenizer.files()),
        }
        text = model_card(type(self).__name__, self.config, reads_text=tokenizer is not None, labels=self.labels,
                    record=record)
        folders.save(folder, files, editable={CARD_FILE: text.encode()})

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def vocabularies(self) -> tuple[int, ...]:
        """How many ids the model reads, and where it is another number, how many it writes; none for images."""
        names = ("vocab_size", "source_vocab_size", "target_vocab_size")
        return tuple(getattr(self.config, name) for name in names if hasattr(self.config, name))

    def tokens(self, rows: Ids) -> Tokens:
        """Rows of ids as the model reads them."""
        self.check_mode()
        if not _is_sequence(rows):
            raise checks.wrong("rows", "sequences of ids, such as [[5, 6], [7]]", *checks.kind(rows))
        if not rows:
            raise checks.wrong("rows", "at least one sequence of ids", "none")
        for number, row in enumerate(rows):
            if not _is_sequence(row):
                raise checks.wrong("rows", "sequences of ids, such as [[5, 6], [7]]", f"{row!r:.80} in row {number}")
            check_ids("rows", row)
        padding = self.special.padding or 0
        if any(padding >= size for size in self.vocabularies):  # of the other side alone; none of them is looked at
            padding = 0
        return Tokens.of(rows, padding=padding).to(self.device)

    def tell(self, make: Callable[[], Iterable[Replay]]) -> None:
        """Tell the observers what was read and written. Without observers, `make` is not called."""
        for replay in make() if self.observers else ():
            for observer in (*self.observers,):
                observer(replay)

    def check_mode(self) -> None:
        """Refuse a model that was put into training mode, where dropout would make results a matter of chance."""
        if self.model.training:
            raise checks.wrong("model", "in evaluation mode", "in training mode", "Call task.model.eval() first.")

    def end(self) -> tuple[int, ...]:
        """The ids that end what a model writes."""
        if not self.special.end:
            raise checks.wrong("special.end", "an id, for a model that writes", "none")
        return self.special.end

    def needed(self) -> AnyTokenizer:
        """The tokenizer; a ValueError where there is none."""
        if self.tokenizer is None:
            remedy = ("This model has none: give ids, to a method whose name ends with _ids. The tokenizer.json of an "
                      "imported model is read where `tokenizers` is installed: pip install 'regard[import]'.")
            raise checks.wrong("tokenizer", "there, to read text", "missing", remedy)
        return self.tokenizer

    def _check_vocabulary(self) -> None:
        """Refuse special ids that the model does not have. What is written is of the last vocabulary."""
        sizes = self.vocabularies
        if not sizes:
            return
        written = (("start", self.special.start), *(("end", one) for one in self.special.end))
        for name, id_ in (*written, *((name, getattr(self.special, name)) for name in ("padding", "unknown", "mask",
                                                                                      "cls", "separator"))):
            size = sizes[-1] if name in ("start", "end") else max(sizes)
            if id_ is not None and id_ >= size:
                raise checks.wrong(f"special.{name}", f"an id of the model, below {size}", id_)

    def _check_tokenizer(self) -> None:
        """Refuse a tokenizer of another model: ids that the model does not have, or text that gives special ids."""
        if self.tokenizer is None:
            if TOKENIZER_KEY in self.record:
                raise checks.wrong(f"record.{TOKENIZER_KEY}", "left out without a tokenizer", "given")
            return
        if not self.vocabularies:
            raise checks.wrong("tokenizer", "None, for a model of images", "given")
        if not isinstance(self.tokenizer, self.reads):
            expected = f"a {self.reads.__name__}, for a {type(self).__name__}"
            raise checks.wrong("tokenizer", expected, *checks.kind(self.tokenizer))
        sides = _tokenizer_sides(self.tokenizer)
        for one, size in zip(sides, self.vocabularies, strict=True):
            if one.size > size:
                raise checks.wrong("tokenizer", f"of at most {size:,} ids, those of the model", f"of {one.size:,}",
                                   "It is the tokenizer of another model.")
        apart = frozenset[int]().union(*(one.special.ids() for one in sides))
        if not self.special.ids() <= apart:
            raise checks.wrong("special", f"of the ids that no text gives, {sorted(apart)}", sorted(self.special.ids()))

    def _check_labels(self) -> None:
        count = getattr(self.config, "num_labels", None)
        if self.labels is None:
            return
        if count is None:
            raise checks.wrong("labels", f"None, for a {type(self).__name__}", "given")
        if len(self.labels) != count or not all(isinstance(name, str) for name in self.labels):
            got = f"{len(self.labels)}: {self.labels!r:.80}"
            raise checks.wrong("labels", f"{count} names, one for each label", got)

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
    """A task of a model that reads or writes one kind of text."""

    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer; a ValueError where there is none."""
        tokenizer = self.needed()
        assert isinstance(tokenizer, Tokenizer)
        return tokenizer


def max_positions(part: object) -> int | None:
    """How many tokens an encoder or a decoder has positions for; None where there is no end."""
    embedding = getattr(part, "embedding", None)
    return embedding.limit if isinstance(embedding, Embedding) else None


def check_lengths(argument: str, rows: Ids, limit: int | None) -> None:
    """Refuse texts that are longer than the model has positions, by their number."""
    for number, row in enumerate(rows):
        if limit is not None and len(row) > limit:
            raise checks.wrong(argument, f"at most {limit} tokens long, the positions that the model knows",
                               f"{len(row)} tokens long{text_suffix(number, rows)}", "Cut it, or use a model with more.")


def _tokenizer_sides(tokenizer: AnyTokenizer) -> tuple[Tokenizer, ...]:
    return (tokenizer.source, tokenizer.target) if isinstance(tokenizer, PairTokenizer) else (tokenizer,)


def _special_ids(tokenizer: AnyTokenizer | None) -> SpecialTokens:
    """The special ids of what is written."""
    return _tokenizer_sides(tokenizer)[-1].special if isinstance(tokenizer, AnyTokenizer) else SpecialTokens()


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _write_weights(model: nn.Module, path: Path) -> None:
    state: dict[str, Tensor] = model.state_dict()
    weights.write_tensors(path, state, {"regard": __version__})


# ---- translating: `Translator`: a model, its tokenizers and its special ids, ready to translate; and where it looked.
#
# Texts are translated in batches of like lengths; what comes of one does not depend on the others. How is searched is a
# value, `Beam` or `Sampling`; the calls that make one are in `regard.tasks.translator`.


def ids_without_token(tokenizer: Tokenizer, vocabulary: int) -> list[int]:
    """The ids of the model that are no token: some models have more than their tokenizer, for speed."""
    return list(range(tokenizer.size, vocabulary))


# ---- reading: Tasks of models that read: `Filler` names hidden tokens, `Classifier` labels, `Embedder` gives a vector for a text.
#
# They take text, ids or images, and give plain values. In front of a text stands the special id `first`, behind it
# `separator`, for models that have them. Texts are read in batches of like lengths; what comes of one does not depend on
# the others.


class EncoderTask(TextTask):
    """What tasks that read text share."""

    def text_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """What the model reads of each text, as in training: a text that it has no positions for is cut."""
        rows, limit = self.text_tokenizer().encode_batch(texts), max_positions(self._encoder())
        most = None if limit is None else limit - len(self.framed([[]])[0])
        return self.framed([row[:most] for row in rows])

    def framed(self, rows: Ids) -> list[list[int]]:
        """The ids of texts, with what stands in front of a text and behind it."""
        before, behind = ([] if id_ is None else [id_] for id_ in (self.special.cls, self.special.separator))
        return [[*before, *row, *behind] for row in rows]

    def _encoder(self) -> object:
        return getattr(self.model, "encoder", self.model)
