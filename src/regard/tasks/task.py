"""A task: a model with its config, special ids and tokenizer, and the folder that holds all of it.

    task = regard.load("folder")      the task that fits the model
    task.model                        the bare module
    task.save("other")                config.toml, model.safetensors, tokenizer.*, README.md, manifest.json

`Task` is the base class of `Translator`, `Completer`, `Filler`, `Classifier`, `Labeller`, `Embedder` and `Forecaster`.
This module also writes config.toml (`ModelDescription`) and splits many texts into batches of similar length
(`map_batches`); a translator on a CPU computes several of them at the same time (`search_workers`). The model card is
written by `regard.tasks.card`.

A task without a tokenizer takes ids only. A task does not know how its model was trained: the tables of config.toml
about the training are kept as they are.
"""

import functools
import inspect
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

import torch
from torch import Tensor, nn

from regard import allocation, checks
from regard import config as schema
from regard._version import __version__
from regard.attention.look import find_taps
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer, check_text
from regard.decoding.constraints import check_ids
from regard.decoding.cuda_graph import has_hooks
from regard.models.build import ModelConfig
from regard.models.embedding import Embedding
from regard.special_tokens import SpecialTokens
from regard.storage import folder as folders
from regard.storage import weights
from regard.tasks.alignment import AlignmentConfig
from regard.tasks.card import CARD_FILE, model_card
from regard.tasks.record import (
    RECIPE_KEY,
    RECORD_KEYS,
    RECORD_TABLES,
    SHA256_KEY,
    TOKENIZER_KEY,
    checked_record,
    with_current_names,
)
from regard.tokens import Tokens
from regard.toml import ConfigProblem, KeyPath, TomlDocument, escape

if TYPE_CHECKING:
    from regard.inspection.watch import Replay
    from regard.tasks.heads import HeadReport

CONFIG_FILE, WEIGHTS_FILE = "config.toml", "model.safetensors"
MAX_BATCH_TOKENS = 4096
"""Tokens of a batch, padding included."""
SIMILAR, MIN_GROUP_TOKENS = 0.85, 256
"""Rows that are encoded together on a CPU have at least this fraction of the longest one's tokens, unless they have
fewer tokens in all."""
SMALL_DECODER, SMALL_VOCABULARY, MAX_BATCH_FACTOR = 4_000_000, 16_000, 6
"""On a CPU a decoder with fewer parameters and a smaller vocabulary than these gets batches of up to MAX_BATCH_FACTOR
times as many tokens: calling operations takes much of the time of its steps, for few rows as for many. The limit of
the vocabulary bounds the memory for the logits of very short texts."""
MAX_HYPOTHESES = 2560
"""Hypotheses of a batch of a search on a CPU: the log-probabilities of more of them are slower to read and write."""
MAX_WORKERS, MIN_WORKER_TOKENS = 4, 1024
"""A search with at most as many threads of torch computes as many batches at the same time, if each gets this many
tokens: steps of few rows take about as long as those of more. More Python threads would wait for each other."""
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
        self.history: list[dict[str, Any]] = []
        """How the training went, if this model was loaded from its folder: a dict for each logged step ("step", "loss",
        "learning_rate", ...) and for each validation ("step", "scores", "best")."""
        self.comments: dict[str, str] = {}  # after the values of config.toml, by dotted key
        self.observers: list[Callable[[Replay], None]] = Observers()
        self._check_special_tokens()
        self._check_tokenizer()
        self._check_labels()
        self._check_alignment()

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> Self:
        """Load the model in a folder, as `regard.load` does, but only as a task of this class."""
        from regard.tasks.load import load

        found = load(folder, device=device)
        if not isinstance(found, cls):
            raise ValueError(f"{escape(os.fspath(folder))}: This is a {type(found).__name__}, not a {cls.__name__}. "
                             f"Load it with regard.load, or with regard.{type(found).__name__}.load.")
        return found

    def save(self, folder: str | Path) -> None:
        """Write the model folder. It replaces a folder that regard saved; anything else is refused."""
        record, tokenizer = checked_record(self.record), self.tokenizer
        described = ModelDescription(self.config, self.special, self.labels,
                                     None if tokenizer is None else tokenizer.sha256, record, self.aligned_by,
                                     self.comments)
        files: dict[str, folders.FileContent] = {
            CONFIG_FILE: described.text().encode(),
            WEIGHTS_FILE: partial(_write_weights, self.model),
            **({} if tokenizer is None else tokenizer.files()),
        }
        card = model_card(self.config.kind, self.config.parameters(), reads_text=tokenizer is not None,
                          labels=self.labels, vocabularies=self.vocabularies, record=record)
        folders.save(folder, files, editable={CARD_FILE: card.encode()})

    def heads(self, data: Any, *, sentences: int = 200) -> "HeadReport":
        """Measure what each attention head does: its roles, and how much the loss rises without it.

        See `regard.tasks.heads` for the cost, and `regard.inspection.heads` for the roles.

        Args:
            data: for a `Translator` pairs (source, target), or pairs of the phrasebook, which have gold links; for a
                `Completer` or a `Filler` texts; for a `Classifier` (text, label), or (images, labels); for a
                `Labeller` (tokens, labels).
            sentences: the number of sentences that are read, the first ones; for a `Completer` windows of the text.
        """
        from regard.tasks.heads import measure_heads

        return measure_heads(self, data, sentences=sentences)

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
            raise ValueError("The model is in training mode, in which dropout makes results random. Call "
                             "task.model.eval() first.")

    def end_ids(self) -> tuple[int, ...]:
        """The ids that end a generated text."""
        if not self.special.end:
            raise ValueError("This model has no end token, so it cannot tell where a text ends. Give its id as "
                             "`special.end`: SpecialTokens(start=1, end=(2,)).")
        return self.special.end

    def require_tokenizer(self) -> AnyTokenizer:
        """The tokenizer; a ValueError if there is none."""
        if self.tokenizer is None:
            raise ValueError("This model has no tokenizer, so it takes ids only, by the methods whose names end with "
                             "_ids. To read the tokenizer.json of an imported model: pip install 'regard[import]'.")
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
                raise ValueError(f"`tokenizer` has {side.size:,} ids, but the model has only {size:,}: it is the "
                                 "tokenizer of another model.")
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
        sizes = " + ".join(f"{size:,}" for size in dict.fromkeys(self.vocabularies))
        parts = [str(self.record.get(RECIPE_KEY, self.config.kind)), f"{self.config.parameters():,} parameters",
                 *([f"vocabulary {sizes}"] if sizes else []),
                 *([checks.plural(self.config.num_labels, "label")] if hasattr(self.config, "num_labels") else []),
                 str(self.device), *([] if self.tokenizer is not None or not sizes else ["no tokenizer"])]
        return f"{type(self).__name__}({', '.join(parts)})"


class TextTask(Task):
    """A task with one tokenizer: every task but `Translator` and `Forecaster`."""

    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer; a ValueError if there is none."""
        tokenizer = self.require_tokenizer()
        assert isinstance(tokenizer, Tokenizer)
        return tokenizer


class EncoderTask(TextTask):
    """A task of a model that reads whole texts: a `Filler`, a `Classifier`, a `Labeller` or an `Embedder`."""

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts with special ids, as in training: a text beyond the model's positions is truncated."""
        rows, limit = self.text_tokenizer().encode_batch(texts), self.max_positions()
        length = None if limit is None else limit - len(self.add_special_ids([[]])[0])
        return self.add_special_ids([row[:length] for row in rows])

    def add_special_ids(self, rows: Ids) -> list[list[int]]:
        """Rows with the ids `cls` before and `separator` after each, for models that have them."""
        before, after = self.special_ids()
        return [[*before, *row, *after] for row in rows]

    def special_ids(self) -> tuple[list[int], list[int]]:
        """The ids `cls` before and `separator` after a text, for models that have them."""
        before, after = ([] if id_ is None else [id_] for id_ in (self.special.cls, self.special.separator))
        return before, after

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
            raise checks.wrong(element_name(argument, number, rows),
                               f"at most {limit} tokens long, the positions of the model", f"{len(row)} tokens long",
                               "Shorten it, or use a model with more positions.")


def ids_without_token(tokenizer: Tokenizer, vocabulary: int) -> list[int]:
    """The ids of the model that no text has: control tokens, and those of a vocabulary that is padded for speed."""
    return [*sorted(id_ for id_ in tokenizer.controls.values() if id_ < vocabulary),
            *range(tokenizer.size, vocabulary)]


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
        return [check_text(given, argument)]
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise checks.wrong(argument, "a text, or a list of texts", *checks.kind(given))
    for number, text in enumerate(given):
        if not isinstance(text, str):
            raise checks.wrong(f"{argument}[{number}]", "a text", *checks.kind(text))
        check_text(text, element_name(argument, number, given))
    return list(given)


def element_name(argument: str, number: int, elements: Sequence[object]) -> str:
    """The name of one element of an argument for messages, "texts[3]"; only "texts" if it is the only one."""
    return f"{argument}[{number}]" if len(elements) > 1 else argument


class SearchLimits(NamedTuple):
    """The largest batch of a search: its tokens, padding included, and its rows; None for any number."""

    tokens: int
    rows: int | None = None


def length_batches(lengths: Sequence[int], tokens: int | None = None, rows: int | None = None) -> Iterator[list[int]]:
    """Batches of row numbers, the longest rows first, so that a batch too large for the memory fails at once.

    A batch has at most `tokens` tokens with padding, by default MAX_BATCH_TOKENS; a longer row is a batch of its own.

    Args:
        rows: the most rows of a batch; None for any number.
    """
    tokens = MAX_BATCH_TOKENS if tokens is None else checks.whole_number("batch_tokens", tokens, 1)
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    batch: list[int] = []
    for number in order:
        if batch and ((len(batch) + 1) * lengths[batch[0]] > tokens or len(batch) == rows):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def even_batches(lengths: Sequence[int], tokens: int, workers: int, rows: int | None = None) -> list[list[int]]:
    """The batches of `length_batches` for workers whose batches have at most `tokens` tokens together.

    Each worker gets as many batches as the others, and all are about equally large: one that computes alone at the end
    would keep the others waiting.
    """
    if workers == 1:
        return [*length_batches(lengths, tokens, rows)]
    most = max(1, min(tokens, sum(lengths)) // workers)
    count = sum(1 for _ in length_batches(lengths, most, rows))
    count += -count % workers
    smallest = bisect_left(range(1, most), -count,
                           key=lambda size: -sum(1 for _ in length_batches(lengths, size, rows)))
    return [*length_batches(lengths, 1 + smallest, rows)]


def similar_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Groups of row numbers, the longest rows first, so that little padding is needed in each.

    A row that has less than SIMILAR times the tokens of the longest one of its group begins another group, unless that
    has less than MIN_GROUP_TOKENS: a CPU computes few tokens less efficiently.
    """
    groups = list[list[int]]()
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        longest = lengths[groups[-1][0]] if groups else 0
        if groups and (lengths[number] >= SIMILAR * longest or len(groups[-1]) * longest < MIN_GROUP_TOKENS):
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def map_batches(rows: Sequence[RowT], lengths: Sequence[int], work: Callable[[list[RowT]], Sequence[ResultT]],
                tokens: int | None = None, *, max_rows: int | None = None, workers: int = 1) -> list[ResultT]:
    """The results of `work`, called batch by batch, in the order of the rows.

    Args:
        tokens: as for `length_batches`, and so is max_rows.
        workers: the number of Python threads among which many rows are divided. The batches that they compute at the
            same time have at most `tokens` tokens together.
    """
    tokens = MAX_BATCH_TOKENS if tokens is None else checks.whole_number("batch_tokens", tokens, 1)
    workers = max(1, min(workers, sum(lengths) // MIN_WORKER_TOKENS))
    batches = even_batches(lengths, tokens, workers, max_rows)
    results: dict[int, ResultT] = {}
    with worker_threads(min(workers, len(batches))) as map_parts:
        found = map_parts(lambda numbers: work([rows[number] for number in numbers]), batches)
        for numbers, some in zip(batches, found, strict=True):
            results |= zip(numbers, some, strict=True)
    return [results[number] for number in range(len(rows))]


@contextmanager
def worker_threads(number: int) -> "Iterator[type[map[Any]] | Callable[..., Iterator[Any]]]":
    """A function like `map` that calls its function in several Python threads, each with one thread of torch.

    Small operations take about as long with several threads of torch as with one, so several batches at a time are
    faster: Python runs one of its threads at a time, but torch's operations run beside each other.
    """
    if number <= 1:
        yield map
        return
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(number, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # the workers have also set it for threads that begin later


def search_limits(model: nn.Module, vocabulary: int, hypotheses: int) -> SearchLimits:
    """The source tokens and the texts of a batch of a search.

    On a GPU there are MAX_BATCH_TOKENS. On a CPU there are more for a small decoder, with at most MAX_HYPOTHESES.

    Args:
        vocabulary: the number of tokens that the model generates.
        hypotheses: those of each text.
    """
    parameters = [*getattr(model, "decoder", model).parameters()]
    if not parameters or parameters[0].device.type != "cpu":
        return SearchLimits(MAX_BATCH_TOKENS)
    factor = min(SMALL_DECODER / sum(one.numel() for one in parameters), SMALL_VOCABULARY / vocabulary)
    return SearchLimits(int(MAX_BATCH_TOKENS * min(max(factor, 1.0), MAX_BATCH_FACTOR)),
                       max(1, MAX_HYPOTHESES // hypotheses))


def search_workers(model: nn.Module, rows: int) -> int:
    """How many batches a search of this many rows may compute at the same time: on a CPU one for each thread of torch.

    It is 1 with more than MAX_WORKERS threads, and where workers would change more than the speed: autocast is switched
    on for one thread, listeners may hear one thread only, and hooks may not expect several.
    """
    if rows < 2 or next(model.parameters()).device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return 1
    heard, threads = any(tap.listeners for tap in find_taps(model).values()), torch.get_num_threads()
    return 1 if heard or threads > MAX_WORKERS or has_hooks(model.modules()) else threads


def isolate_errors(rows: list[RowT], work: Callable[[list[RowT]], Sequence[ResultT]]) -> "list[ResultT | ValueError]":
    """The results of `work`; for a row that fails, its error.

    All rows are tried together. If that fails, each half is tried, until the failing rows are alone.
    """
    try:
        return list(work(rows))
    except ValueError as error:
        reason = error
    except (MemoryError, RuntimeError) as error:  # PyTorch raises the latter, on a CPU too
        if not allocation.is_out_of_memory(error):
            raise
        reason = ValueError(allocation.describe(error, "Use a shorter text, or fewer beams."))
    if len(rows) == 1:
        return [reason]
    half = len(rows) // 2
    return [*isolate_errors(rows[:half], work), *isolate_errors(rows[half:], work)]


# config.toml

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
    comments: Mapping[str, str] = field(default_factory=dict)
    """What is written after the values, by dotted key: why the training chose them."""

    def text(self) -> str:
        """The file as text."""
        tables = {"model": self.model, "special": self.special,
                  "labels": None if self.labels is None else LabelNamesConfig(names=self.labels),
                  "alignment": self.alignment, **self.record}
        if self.tokenizer is not None:
            tables[TOKENIZER_KEY] = {**self.record.get(TOKENIZER_KEY, {}), SHA256_KEY: self.tokenizer}
        return schema.to_toml(tables, self.comments)


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
    record = with_current_names({key: values[key] for key in RECORD_KEYS if values.get(key) is not None})
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


class _AnyTable(schema.ValueReader):
    """A table with any contents."""

    expected = "a table"

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        if isinstance(value, Mapping):
            return schema.to_tables(value)
        found.append(schema.value_problem(path, self.expected, value))
        return None
