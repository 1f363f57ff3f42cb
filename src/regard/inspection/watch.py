"""`watch` records the attention of a model while it runs as usual.

    with regard.watch(model) as records:
        model(tokens)
    records.names()                       "encoder.0.self", ...
    records["decoder.2.cross"]            the record of its last run: weights(), entropy(), block_map(64), rows(3), ...
    records.calls[0]["decoder.2.cross"]   the record of its first run
    records.row(1)["decoder.2.cross"]     the second sequence of a batch alone, without padding
    records.trace(), records.save(path)   everything for one sequence, as a trace or as a file

RWKV has no attention, but its results are sums over the values of earlier tokens all the same: its record is the map of
these weights (`MixerMap`), signed in version 7.

Every attention layer of regard has a tap that hands out projected queries and keys, whichever backend computes. The
recorder keeps them up to a limit, and weights are computed only when they are requested. For a task (a translator, ...)
only its inputs and outputs are kept; they run through the model once more when a record is requested, so that a search
runs at full speed. A model without layers of regard is watched through `foreign`. Compiled code, replayed CUDA graphs
and code inside torch.func cannot be watched.

A trace names the tokens of rows and columns by sides. Without information from a task these are

    encoder.self      source, source        in a model with cross-attention
    decoder.self      target, target
    decoder.cross     target, source
    any other         text, text            or image, in a model that embeds patches
"""

import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import torch
from torch import nn

from regard import checks
from regard.inspection.foreign import record_foreign
from regard.inspection.recorder import CROSS, SELF, AttentionModule, Recorder, find_attention_modules, record_modules
from regard.inspection.records import (
    AttentionRecord,
    MixerMap,
    WeightMatrix,
    present_queries,
    record_shape,
    sequence_record,
    truncate_record,
)
from regard.inspection.trace import Trace
from regard.inspection.trace_format import AlignmentPointer, GeneratedTokens, TracedAttention, TracedSearch, TraceSide
from regard.models.vision import PatchEmbedding

DEFAULT_LIMIT = "2GiB"
BYTE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
AnySide = TraceSide | Sequence[str]


class NotRecordedError(KeyError):
    """There is no such record; the message says why."""

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def watch(model: "nn.Module | ObservedTask", limit: str | int = DEFAULT_LIMIT) -> "Iterator[AttentionRecords]":
    """Record the attention of a model or a task inside the `with` block.

    The results stay the same to the last bit, on the same backend. Records stay readable after the block.

    Args:
        model: a model or a layer of regard, a task such as a `Translator`, or a module that contains
            `torch.nn.MultiheadAttention` or calls `scaled_dot_product_attention`, such as a Hugging Face model.
        limit: the number of bytes of queries and keys to keep: "2GiB", "500MB", or a number. What exceeds it is not
            kept, and a warning says so.

    Yields:
        The `AttentionRecords`: `names()` lists the attention layers, and `records[name]` is the `Look` of one.

    Example:
        import torch
        import regard

        model = regard.build("transformer-tiny", source_vocab_size=100, target_vocab_size=100).eval()
        with regard.watch(model) as records:
            model(regard.Tokens.of([[5, 6, 7, 8]]), regard.Tokens.of([[0, 9, 10]]))
        assert records["decoder.0.cross"].weights().shape == (1, 4, 3, 4)       # sequences, heads, queries, keys
    """
    byte_limit = parse_bytes(limit)
    if isinstance(model, nn.Module):
        recorded = ModelRecords(model, Recorder(byte_limit))
        with recorded.recording():
            yield recorded
        recorded.warn_lost()
    elif isinstance(getattr(model, "observers", None), list) and isinstance(getattr(model, "model", None), nn.Module):
        replayed = TaskRecords(model.model, byte_limit)
        observer = replayed.replays.append
        model.observers.append(observer)
        try:
            yield replayed
        finally:
            model.observers[:] = [one for one in model.observers if one is not observer]
    else:
        raise checks.wrong("model", "a model, a layer or a task", *checks.kind(model))


def parse_bytes(limit: str | int) -> int:
    """The number of bytes of a size such as "2GiB" or 500."""
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:
        return limit
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", limit) if isinstance(limit, str) else None
    if found is None or found[2].upper() not in BYTE_UNITS:
        raise checks.wrong("limit", 'a number of bytes, or a size such as "2GiB" or "500MB"', repr(limit))
    return int(float(found[1]) * BYTE_UNITS[found[2].upper()])


@dataclass(frozen=True)
class AlignmentAttention:
    """The attention that aligns words best: its name, its head (None for the mean of all), and its row offset."""

    attention: str
    head: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class SequenceInfo:
    """What a task knows of a sequence, or a pair of sequences: tokens, texts, results."""

    sides: Mapping[str, TraceSide] = field(default_factory=dict)
    attention_sides: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The sides of queries and keys, by part and kind of attention: {"decoder.cross": ("target", "source")}."""
    title: str = ""
    generated: GeneratedTokens | None = None
    alignment: AlignmentAttention | None = None
    search: TracedSearch | None = None


class CallRecords(Mapping[str, AttentionRecord]):
    """The records of one run of each attention, or of one text, by name."""

    def __init__(self, source: "AttentionRecords", run_numbers: Mapping[str, int], call: int) -> None:
        self._source, self._run_numbers, self._call = source, run_numbers, call

    def __repr__(self) -> str:
        names = [*self._run_numbers]
        return f"CallRecords({', '.join(names[:4])}{f', … ({len(names)})' if len(names) > 4 else ''})"

    def __getitem__(self, name: str) -> AttentionRecord:
        if name not in self._run_numbers:
            raise NotRecordedError(self._why_missing(name))
        return self._source.record(name, self._run_numbers[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._run_numbers)

    def __len__(self) -> int:
        return len(self._run_numbers)

    def row(self, index: int) -> dict[str, AttentionRecord]:
        """The records of one sequence of the batch, (heads, queries, keys) each, without padding."""
        records, modules = dict(self), self._source.modules
        square = {name: modules[name].kind == SELF or (modules[name].kind is None and rows == columns)
                  for name, record in records.items() for rows, columns in [record_shape(record)[-2:]]}
        # A cross-attention mask does not say which queries are padding; the self-attention of the same part does.
        present = {(modules[name].part, record_shape(record)[-2]): present_queries(record, index)
                   for name, record in records.items() if square[name]}
        return {name: sequence_record(record, index, self_attention=square[name],
                                      queries=None if square[name] else
                                      present.get((modules[name].part, record_shape(record)[-2])))
                for name, record in records.items()}

    def trace(self, row: int = 0, *, title: str | None = None, model: str = "", **tokens: AnySide) -> Trace:
        """All records of one sequence, as one trace.

        Args:
            row: the index of the sequence in the batch.
            title: shown above pictures; by default the text, where it is known.
            model: the name of the model, shown to people.
            tokens: the tokens of a side ("source", "target", "text"), where they are not known, as for token ids: a
                list of strings, or a `TraceSide`. Without them tokens are called by their positions.
        """
        if not self._run_numbers:
            raise NotRecordedError(self._source.why_empty())
        return make_trace(self.row(row), self._source.modules, self._source.info(self._call), title, model, tokens)

    def save(self, path: str | os.PathLike[str], row: int = 0, **options: Any) -> None:
        """Write the trace to a .safetensors file; see `trace` for the options."""
        self.trace(row, **options).save(path)

    def _why_missing(self, name: str) -> str:
        if not self._run_numbers:
            return self._source.why_empty()
        if name in self._source.modules:
            return f'"{name}" did not run in this call.'
        near = checks.nearest(name, self._run_numbers)
        return f'There is no attention "{name}". {near or "There are: " + ", ".join(self._run_numbers) + "."}'


class CallList(Sequence[CallRecords]):
    """The calls in order, the first one first."""

    def __init__(self, source: "AttentionRecords") -> None:
        self._source = source

    def __len__(self) -> int:
        return self._source.call_count()

    def __repr__(self) -> str:
        return f"CallList({checks.plural(len(self), 'call')})"

    @overload
    def __getitem__(self, index: int) -> CallRecords: ...
    @overload
    def __getitem__(self, index: slice) -> list[CallRecords]: ...
    def __getitem__(self, index: int | slice) -> CallRecords | list[CallRecords]:
        """One call, or several."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"There is no call {index}: {checks.plural(len(self), 'call')} recorded. "
                             f"{'' if len(self) else self._source.why_empty()}".rstrip())
        number = index % len(self)
        ran = [name for name in self._source.modules if self._source.run_count(name) > number]
        return CallRecords(self._source, dict.fromkeys(ran, number), number)


class AttentionRecords(ABC):
    """All records of a watch; `records[name]` is the record of an attention's last run."""

    modules: Mapping[str, AttentionModule]
    """All attention modules that may be recorded, in the order in which the model computes them."""

    @abstractmethod
    def call_count(self) -> int:
        """The number of calls."""

    @abstractmethod
    def run_count(self, name: str) -> int:
        """The number of first calls in which this attention ran."""

    @abstractmethod
    def record(self, name: str, call: int) -> AttentionRecord:
        """The record of this attention in this call; a `NotRecordedError` if it was not kept."""

    @abstractmethod
    def info(self, call: int) -> SequenceInfo:
        """What is known of the sequences of this call."""

    @abstractmethod
    def why_empty(self) -> str:
        """Why there are no records."""

    def names(self) -> list[str]:
        """The attentions that were recorded, in the order of the model."""
        return [name for name in self.modules if self.run_count(name)]

    @property
    def calls(self) -> CallList:
        """The calls in order."""
        return CallList(self)

    @property
    def last(self) -> CallRecords:
        """The last run of every attention."""
        return CallRecords(self, {name: self.run_count(name) - 1 for name in self.names()}, self.call_count() - 1)

    def __getitem__(self, name: str) -> AttentionRecord:
        return self.last[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def row(self, index: int) -> dict[str, AttentionRecord]:
        """The last records of one sequence of the batch, (heads, queries, keys) each, without padding."""
        return self.last.row(index)

    def trace(self, row: int = 0, **options: Any) -> Trace:
        """The last records of one sequence, as one trace; see `CallRecords.trace` for the options."""
        return self.last.trace(row, **options)

    def save(self, path: str | os.PathLike[str], row: int = 0, **options: Any) -> None:
        """Write that trace to a .safetensors file."""
        self.trace(row, **options).save(path)

    def _repr_html_(self) -> str | None:
        """The page of the last records, for a notebook; None, so that it shows the `repr`, if there are none."""
        try:
            return self.trace()._repr_html_()
        except NotRecordedError:
            return None

    def __repr__(self) -> str:
        names = self.names()
        shown = ", ".join(names[:4]) + (f", … ({len(names)})" if len(names) > 4 else "")
        calls = f"{checks.plural(self.call_count(), 'call')} of {shown}" if names else ""
        return f"{type(self).__name__}({calls})"


class ModelRecords(AttentionRecords):
    """The records of a model, kept while it ran: call i has run i of each attention."""

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        self.model, self.recorder = model, recorder
        self._model_modules = dict(model.named_modules())
        _check_not_compiled(self._model_modules.values())
        self._found = {module.name: module for module in find_attention_modules(model, self._model_modules)}
        self.modules, self._has_taps = self._found, bool(self._found)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record inside the `with` block."""
        if self._has_taps:
            with record_modules(self._found.values(), self.recorder):
                yield
        else:
            with record_foreign(self._model_modules, self.recorder, self._found):
                yield

    def warn_lost(self) -> None:
        """Warn of runs that exceeded the limit and were not kept."""
        lost = self.recorder.lost_runs()
        if lost:
            names = ", ".join(f'"{name}" ({count} of {self.run_count(name)})'
                              for name, count in list(lost.items())[:6])
            more = f" and {len(lost) - 6} more" if len(lost) > 6 else ""
            message = f"watch keeps at most {self.recorder.limit:,} bytes, so these runs were lost: {names}{more}."
            warnings.warn(f"{message} Pass a larger `limit`, or fewer tokens.", RuntimeWarning, stacklevel=4)

    def call_count(self) -> int:
        """The number of runs of the attention that ran most often."""
        return max(map(len, self.recorder.runs.values()), default=0)

    def run_count(self, name: str) -> int:
        """The number of runs of this attention."""
        return len(self.recorder.runs.get(name, ()))

    def record(self, name: str, call: int) -> AttentionRecord:
        """The record of this run."""
        record = self.recorder.record(name, call)
        if record is None:
            raise NotRecordedError(f'Run {call} of "{name}" was not recorded: it exceeds the limit of '
                                   f"{self.recorder.limit:,} bytes. Pass a larger `limit` to watch.")
        return record

    def info(self, call: int) -> SequenceInfo:
        """Nothing is known of the tokens, except that they are patches of an image."""
        image = patch_side(self.model)
        return SequenceInfo() if image is None else SequenceInfo({"image": image})

    def why_empty(self) -> str:
        """Why there are no records."""
        if not self._has_taps:
            return ("Nothing was recorded: no attention of this model ran inside the `with` block, or it is neither "
                    "torch.nn.MultiheadAttention nor scaled_dot_product_attention or softmax of (batch, heads, "
                    "queries, keys).")
        return ("Nothing was recorded: the model did not run inside the `with` block, or it ran in compiled code, as a "
                "CUDA graph or inside torch.func, which cannot be watched.")


@dataclass(frozen=True)
class Replay:
    """A way to run one text, or one text and its output, through the model once more."""

    run: Callable[[], object]
    """Run the sequence alone, in one pass, without a search; what was generated is teacher-forced."""
    info: SequenceInfo = field(default_factory=SequenceInfo)


Observer = Callable[[Replay], None]


class ObservedTask(Protocol):
    """A task: it has a model, and passes its observers a replay of what it ran."""

    model: nn.Module
    observers: list[Observer]


class TaskRecords(AttentionRecords):
    """The records of a task: each call is a replay, which runs when one of its records is requested.

    It runs with the model as it is then. Replays whose records fit into the limit together stay in memory.
    """

    def __init__(self, model: nn.Module, limit: int) -> None:
        self.limit = limit
        self.replays: list[Replay] = []
        self.modules = {module.name: module for module in find_attention_modules(model)}
        self._recorders: dict[int, Recorder] = {}
        """By call, the most recently used one last."""

    def call_count(self) -> int:
        """The number of replays."""
        return len(self.replays)

    def run_count(self, name: str) -> int:
        """The number of replays: every attention runs in each."""
        return len(self.replays)

    def record(self, name: str, call: int) -> AttentionRecord:
        """The record of this attention in this replay, (heads, queries, keys)."""
        recorder = self._recorders.pop(call, None) or self._run(self.replays[call])
        self._recorders[call] = recorder
        while len(self._recorders) > 1 and sum(one.nbytes for one in self._recorders.values()) > self.limit:
            del self._recorders[next(iter(self._recorders))]
        record = recorder.record(name, -1) if name in recorder.runs else None
        if record is None:
            raise NotRecordedError(f'"{name}" was not recorded: this text alone exceeds the limit of {self.limit:,} '
                                   "bytes. Pass a larger `limit` to watch.")
        return sequence_record(record, 0, self_attention=self.modules[name].kind == SELF)

    def info(self, call: int) -> SequenceInfo:
        """What the task knows of this sequence."""
        return self.replays[call].info

    def why_empty(self) -> str:
        """Why there are no records."""
        if not self.modules:
            return "Nothing was recorded: this model has no attention."
        return "Nothing was recorded: the task ran no text inside the `with` block."

    def _run(self, replay: Replay) -> Recorder:
        recorder = Recorder(self.limit)
        with record_modules(self.modules.values(), recorder), torch.inference_mode():
            replay.run()
        return recorder


def patch_side(model: nn.Module) -> TraceSide | None:
    """The side of an image, for a model that embeds patches; None for other models."""
    found = next((module for module in model.modules() if isinstance(module, PatchEmbedding)), None)
    if found is None:
        return None
    rows, columns = (pixels // found.patch for pixels in found.size)
    tokens = [f"{row + 1},{column + 1}" for row in range(rows) for column in range(columns)]
    lead = 0 if found.token is None else 1
    return TraceSide((*["[class]"] * lead, *tokens), grid=(rows, columns), lead=lead)


def make_trace(records: Mapping[str, AttentionRecord], modules: Mapping[str, AttentionModule], info: SequenceInfo,
               title: str | None, model: str, tokens: Mapping[str, AnySide]) -> Trace:
    """The trace of one sequence, from its records (heads, queries, keys) by name, and the tokens of sides."""
    sides = dict(info.sides) | {name: _as_side(name, side) for name, side in tokens.items()}
    has_cross = any(_attention_kind(modules[name], record) == CROSS for name, record in records.items())
    attentions, used = list[TracedAttention](), set[str]()
    for name, record in records.items():
        module, kind = modules[name], _attention_kind(modules[name], record)
        wanted = info.attention_sides.get(f"{module.part}.{kind}") or _default_sides(module, kind, has_cross, info)
        record = truncate_record(record, *(len(sides[side].tokens) if side in tokens else None for side in wanted))
        queries, keys = (_side_name(side, size, sides, tokens)
                         for side, size in zip(wanted, record_shape(record)[-2:], strict=True))
        used |= {queries, keys}
        if isinstance(record, MixerMap):
            attentions += _traced_maps(name, queries, keys, record, module.layer, kind)
        else:
            attentions.append(TracedAttention(name, queries, keys, record, module.layer, kind))
    for name in tokens:
        if name not in used:
            remedy = checks.nearest(name, used) or f"There are: {', '.join(sorted(used))}."
            raise ValueError(f'`tokens` has the side "{name}", which no attention of this call has. {remedy}')
    return Trace(sides, tuple(attentions), info.title if title is None else title, model, info.generated,
                 _alignment_pointer(info.alignment, attentions), info.search)


def _traced_maps(name: str, queries: str, keys: str, record: MixerMap, layer: int | None,
                 kind: str) -> Iterator[TracedAttention]:
    """The map of a mixer, named as what it is, and its bonus as a map of its own, on the diagonal."""
    if record.bonus is not None:
        diagonal = WeightMatrix(torch.diag_embed(record.bonus))
        yield TracedAttention(f"{name}, bonus", queries, keys, diagonal, layer, kind)
    shown = f"{name}, mean over channels" if record.channel_maps is not None else name
    yield TracedAttention(shown, queries, keys, WeightMatrix(record.given), layer, kind)


def _check_not_compiled(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise checks.wrong("model", "a model that is not compiled", "compiled by torch.compile",
                               "Watch and run the original module: it computes the same.")


def _default_sides(module: AttentionModule, kind: str, has_cross: bool, info: SequenceInfo) -> tuple[str, str]:
    """The sides of queries and keys where the task names none."""
    if kind == CROSS:
        return "target", "source"
    only = "image" if "image" in info.sides else "text"
    side = only if not has_cross else "source" if "encoder" in module.name.lower() else "target"
    return side, side


def _side_name(side: str, count: int, sides: dict[str, TraceSide], given: Mapping[str, AnySide]) -> str:
    """The name of the side with this number of tokens; where there is none, one with positions as tokens is added."""
    if side in sides and (len(sides[side].tokens) == count or side in given):
        return side
    name = side if side not in sides else f"{side} of {count}"
    sides.setdefault(name, TraceSide(tuple(map(str, range(count)))))
    return name


def _attention_kind(module: AttentionModule, record: AttentionRecord) -> str:
    rows, columns = record_shape(record)[-2:]
    return module.kind or (SELF if rows == columns else CROSS)


def _alignment_pointer(alignment: AlignmentAttention | None,
                       attentions: Sequence[TracedAttention]) -> AlignmentPointer | None:
    for number, attention in enumerate(attentions):
        if alignment is not None and attention.name == alignment.attention:
            offset = alignment.offset if abs(alignment.offset) < attention.rows else 0
            return AlignmentPointer(number, alignment.head, offset)
    return None


def _as_side(name: str, side: AnySide) -> TraceSide:
    if isinstance(side, TraceSide):
        return side
    if isinstance(side, str) or not isinstance(side, Sequence) or not all(isinstance(token, str) for token in side):
        raise checks.wrong(name, "tokens, a list of strings, or a TraceSide", f"{side!r:.80}")
    return TraceSide(tuple(side))
