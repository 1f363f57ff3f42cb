"""`watch` records the attention of a model while it runs as usual.

    with regard.watch(model) as records:
        model(tokens)
    records.names()                       "encoder.0.self", ...
    records["decoder.2.cross"]            the record of its last run: weights(), entropy(), block_map(64), rows(3), ...
    records.calls[0]["decoder.2.cross"]   the record of its first run
    records.row(1)["decoder.2.cross"]     the second sequence of a batch alone, without padding
    records.trace(), records.save(path)   everything for one sequence, as a trace or as a file

Every attention layer of regard has a tap that hands out projected queries and keys, whichever backend computes. The
recorder keeps them up to a limit, and weights are computed only when they are asked for. For a task (a translator, ...)
only its inputs and outputs are kept; they run through the model once more when a record is asked for, so that a search
runs at full speed. A model without layers of regard is watched through `foreign`. Compiled code, replayed CUDA graphs
and code inside torch.func cannot be watched.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import torch
from torch import nn

from regard import checks
from regard.inspection import records as seen_rows
from regard.inspection.foreign import record_foreign
from regard.inspection.recorder import CROSS, SELF, AttentionModule, Recorder, find_attention_modules, record_modules
from regard.inspection.records import AttentionRecord, record_shape
from regard.inspection.trace import Trace
from regard.inspection.trace_format import AlignmentPointer, GeneratedTokens, TracedAttention, TracedSearch, TraceSide
from regard.models.vision import PatchEmbedding

DEFAULT_LIMIT = "2GiB"
BYTE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


# ---- sides: What the rows and columns of looks are: tokens, of sides with names. And from both, a trace.
#
#     encoder.self      source, source        in a model that has both
#     decoder.self      target, target
#     decoder.cross     target, source
#     any other         text, text            or image, of a model that reads patches
#
# A task knows more: its texts, what was written, and which attention shows best which word is which (`About`). Where
# nobody knows the tokens, they are called by their numbers. It does not know how looks were made.


@dataclass(frozen=True)
class AlignmentAttention:
    """The attention that shows best which word is which, by name; its head (None for their mean) and its offset."""

    attention: str
    head: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class SequenceInfo:
    """What is known of a sequence, or a pair of them, that a model has read."""

    sides: Mapping[str, TraceSide] = field(default_factory=dict)
    between: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The sides of queries and keys, by part and kind of attention: {"decoder.cross": ("target", "source")}."""
    title: str = ""
    written: GeneratedTokens | None = None
    best: AlignmentAttention | None = None
    search: TracedSearch | None = None


# ---- seen: What was seen: the looks of a model that was watched, by the names of its attentions.
#
#     seen.names()                       "encoder.0.self", ...
#     seen["decoder.2.cross"]            the look of its last run: weights(), entropy(), block_map(64), rows(3), ...
#     seen.calls[0]["decoder.2.cross"]   that of its first, where it ran more than once
#     seen.row(1)["decoder.2.cross"]     the second sequence of a batch alone, without padding
#     seen.trace(), seen.save(path)      all of it for one sequence, in one file
#
# A look is computed when it is asked something. What was seen stays readable when the watch is over. Where the looks come
# from is the business of a `Source`: the runs of layers, or texts that are read again.


class RecordSource(Protocol):
    """Where looks come from. Calls have numbers, from 0."""

    @property
    def places(self) -> Mapping[str, AttentionModule]:
        """All attentions that may be seen, in the order in which the model computes them."""

    def calls(self) -> int:
        """How many calls there were."""

    def ran(self, name: str) -> int:
        """In how many of the first calls this attention ran."""

    def look(self, name: str, call: int) -> AttentionRecord:
        """What it looked at in this call; a `NotSeenError` where that was not kept."""

    def about(self, call: int) -> SequenceInfo:
        """What is known of the sequences of this call."""

    def why_nothing(self) -> str:
        """Why nothing was seen, where that is so."""


AnySide = TraceSide | Sequence[str]


class CallRecords(Mapping[str, AttentionRecord]):
    """The looks of one run of each attention, or of one text, by name."""

    def __init__(self, source: RecordSource, numbers: Mapping[str, int], number: int) -> None:
        self._source, self._numbers, self._number = source, numbers, number

    def __getitem__(self, name: str) -> AttentionRecord:
        if name not in self._numbers:
            raise NotRecordedError(_unknown_name(name, self._numbers, self._source))
        return self._source.look(name, self._numbers[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def row(self, index: int) -> dict[str, AttentionRecord]:
        """The looks of one sequence of the batch, (heads, queries, keys) each, without padding."""
        looks, places = dict(self), self._source.places
        own = {name: places[name].kind == SELF or (places[name].kind is None and len({*record_shape(look)[-2:]}) == 1)
               for name, look in looks.items()}
        # Queries have no mask of their own: where the same part also looks at itself, that tells which are there.
        present = {(places[name].part, record_shape(look)[-2]): seen_rows.present_queries(look, index)
                   for name, look in looks.items() if own[name]}
        return {name: seen_rows.sequence_record(look, index, own=own[name],
                                    rows=None if own[name] else present.get((places[name].part, record_shape(look)[-2])))
                for name, look in looks.items()}

    def trace(self, row: int = 0, *, title: str | None = None, model: str = "", **tokens: AnySide) -> Trace:
        """All of it for one sequence, as one trace.

        Args:
            row: which sequence of the batch.
            title: shown above pictures; the text, where it is known.
            model: a name, for people.
            tokens: those of a side ("source", "target", "text"), where they are not known, as those of ids are not: a
                list of strings, or a `Side`. Without them tokens are called by their numbers.
        """
        if not self._numbers:
            raise NotRecordedError(self._source.why_nothing())
        about = self._source.about(self._number)
        return make_trace(self.row(row), self._source.places, about, title, model, tokens)

    def save(self, path: str | os.PathLike[str], row: int = 0, **options: Any) -> None:
        """Write the trace to a file that ends in .safetensors; see `trace` for the options."""
        self.trace(row, **options).save(path)


class AttentionRecords:
    """All that a watch has seen. `seen[name]` is what an attention looked at when it ran last."""

    def __init__(self, source: RecordSource) -> None:
        self._source = source
        self.calls = CallList(source)

    def names(self) -> list[str]:
        """The attentions that were seen, in the order in which the model has them."""
        return [name for name in self._source.places if self._source.ran(name)]

    @property
    def last(self) -> CallRecords:
        """The last run of every attention."""
        return CallRecords(self._source, {name: self._source.ran(name) - 1 for name in self.names()}, len(self.calls) - 1)

    def __getitem__(self, name: str) -> AttentionRecord:
        return self.last[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def row(self, index: int) -> dict[str, AttentionRecord]:
        """The last looks of one sequence of the batch, (heads, queries, keys) each, without padding."""
        return self.last.row(index)

    def trace(self, row: int = 0, **options: Any) -> Trace:
        """The last looks of one sequence, as one trace; see `Call.trace` for the options."""
        return self.last.trace(row, **options)

    def save(self, path: str | os.PathLike[str], row: int = 0, **options: Any) -> None:
        """Write that trace to a file that ends in .safetensors."""
        self.trace(row, **options).save(path)

    def __repr__(self) -> str:
        names = self.names()
        shown = ", ".join(names[:4]) + (f", … ({len(names)})" if len(names) > 4 else "")
        return f"Seen({len(self.calls)} calls of {shown})" if names else "Seen(nothing)"


# ---- again: Texts that a task has read or written, and that are read once more, alone, when somebody asks where it looked.
#
# A task tells its witnesses what it has done: a `Reading`, which knows how to be read again in one pass, without a search
# (for what was written: teacher-forced, all tokens at once). So watching a task costs nothing while it works, and what is
# seen is one text without padding. It is read with the model as it is then. It does not know tasks: they know this.


@dataclass(frozen=True)
class Replay:
    """One text, or one text and what was written of it."""

    again: Callable[[], object]
    """Let the model read it once more, alone, in one pass."""
    about: SequenceInfo = field(default_factory=SequenceInfo)


Observer = Callable[[Replay], None]


class Observers(list[Observer]):
    """Those whom a task tells what it does. A copy of the task has none yet."""

    def __reduce__(self) -> "tuple[type[Observers], tuple[()]]":
        return Observers, ()


class ObservedTask(Protocol):
    """A task: something that has a model, and tells its witnesses what it does with it."""

    model: nn.Module
    witnesses: Observers


@contextmanager
def watch(model: nn.Module | ObservedTask, limit: str | int = DEFAULT_LIMIT) -> Iterator[AttentionRecords]:
    """See what a model, or a task, looks at inside the `with` block, and after it.

    What it computes is the same to the last bit, on the same backend. What is seen stays readable afterwards.

    Args:
        model: a model or a layer of regard, a task such as a `Translator`, or a module that has
            `torch.nn.MultiheadAttention` or `scaled_dot_product_attention` in it, such as a model of Hugging Face.
        limit: how many bytes of queries and keys may be kept: "2GiB", "500MB", or a number. What is beyond is not kept,
            and a warning says so.
    """
    most = parse_bytes(limit)
    if isinstance(model, nn.Module):
        runs = RecordedModel(model, Recorder(most))
        with runs.watching():
            yield AttentionRecords(runs)
        runs.warn()
    elif isinstance(getattr(model, "witnesses", None), list) and isinstance(getattr(model, "model", None), nn.Module):
        readings = ReplayedTask(model.model, most)
        witness = readings.readings.append
        model.witnesses.append(witness)
        try:
            yield AttentionRecords(readings)
        finally:
            model.witnesses[:] = [one for one in model.witnesses if one is not witness]
    else:
        raise checks.wrong("model", "a model, a layer or a task", *checks.kind(model))


class RecordedModel:
    """The looks of attentions that were kept while they ran: the call i has the run i of each."""

    def __init__(self, model: nn.Module, keeping: Recorder) -> None:
        self.model, self.keeping = model, keeping
        self.modules = dict(model.named_modules())
        _check_not_compiled(self.modules.values())
        self.found: dict[str, AttentionModule] = {place.name: place for place in find_attention_modules(model, self.modules)}
        self.tapped = bool(self.found)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep what runs inside the `with` block."""
        if self.tapped:
            with record_modules(self.found.values(), self.keeping):
                yield
        else:
            with record_foreign(self.modules, self.keeping, self.found):
                yield

    def warn(self) -> None:
        """Say what was not kept, where there was no room for all."""
        lost = self.keeping.lost()
        if lost:
            names = ", ".join(f'"{name}" ({count} of {self.ran(name)})' for name, count in list(lost.items())[:6])
            more = f" and {len(lost) - 6} more" if len(lost) > 6 else ""
            said = (f"watch keeps at most {self.keeping.limit:,} bytes, so these runs were not kept: {names}{more}. "
                    "Give a larger limit, or fewer tokens.")
            warnings.warn(said, RuntimeWarning, stacklevel=4)

    @property
    def places(self) -> Mapping[str, AttentionModule]:
        """The attentions of the model."""
        return self.found

    def calls(self) -> int:
        """How often the attention ran that ran most."""
        return max(map(len, self.keeping.runs.values()), default=0)

    def ran(self, name: str) -> int:
        """How often this one ran."""
        return len(self.keeping.runs.get(name, ()))

    def look(self, name: str, call: int) -> AttentionRecord:
        """What was kept of this run."""
        look = self.keeping.look(name, call)
        if look is None:
            raise NotRecordedError(f'Run {call} of "{name}" was not kept: there was no room for it in the limit of '
                               f"{self.keeping.limit:,} bytes. Give a larger limit to watch.")
        return look

    def about(self, call: int) -> SequenceInfo:
        """What is known of the tokens: nothing, but for images."""
        image = patch_side(self.model)
        return SequenceInfo() if image is None else SequenceInfo({"image": image})

    def why_nothing(self) -> str:
        """Why nothing was seen."""
        if not self.tapped:
            return ("Nothing was seen: no attention of this model ran inside the `with` block, or it is neither "
                    "torch.nn.MultiheadAttention nor scaled_dot_product_attention or softmax of (batch, heads, "
                    "queries, keys).")
        return ("Nothing was seen: the model did not run inside the `with` block, or it ran in compiled code, as a "
                "recorded CUDA graph or inside torch.func, where nobody can watch.")


def parse_bytes(limit: str | int) -> int:
    """How many bytes that is."""
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:
        return limit
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", limit) if isinstance(limit, str) else None
    if found is None or found[2].upper() not in BYTE_UNITS:
        raise checks.wrong("limit", 'a number of bytes, or a size such as "2GiB" or "500MB"', repr(limit))
    return int(float(found[1]) * BYTE_UNITS[found[2].upper()])


def _check_not_compiled(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        if "_orig_mod" in module._modules or module._compiled_call_impl is not None:
            raise checks.wrong("model", "one that is not compiled", "compiled by torch.compile",
                               "Watch and run the model that it was made from: it computes the same.")


class NotRecordedError(KeyError):
    """There is no such look; the message says why."""

    def __str__(self) -> str:
        return str(self.args[0])


class CallList(Sequence[CallRecords]):
    """The calls, the first first."""

    def __init__(self, source: RecordSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return self._source.calls()

    @overload
    def __getitem__(self, index: int) -> CallRecords: ...
    @overload
    def __getitem__(self, index: slice) -> list[CallRecords]: ...
    def __getitem__(self, index: int | slice) -> CallRecords | list[CallRecords]:
        """One call, or several."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"There were {len(self)} calls, and number {index} is none of them. "
                             f"{'' if len(self) else self._source.why_nothing()}".rstrip())
        number = index % len(self)
        ran = [name for name in self._source.places if self._source.ran(name) > number]
        return CallRecords(self._source, dict.fromkeys(ran, number), number)


def _unknown_name(name: str, known: Mapping[str, int], source: RecordSource) -> str:
    if not known:
        return source.why_nothing()
    if name in source.places:
        return f'"{name}" did not run in this call.'
    near = checks.nearest(name, known)
    return f'There is no attention "{name}". {near or "There are: " + ", ".join(known) + "."}'


class ReplayedTask:
    """The looks of readings, one call for each. What was read again is kept as long as all of it fits the limit."""

    def __init__(self, model: nn.Module, limit: int) -> None:
        self.model, self.limit = model, limit
        self.readings: list[Replay] = []
        self._found = {place.name: place for place in find_attention_modules(model)}
        self._kept: dict[int, Recorder] = {}

    @property
    def places(self) -> Mapping[str, AttentionModule]:
        """The attentions of the model."""
        return self._found

    def calls(self) -> int:
        """How many readings there are."""
        return len(self.readings)

    def ran(self, name: str) -> int:
        """Every attention runs for every reading."""
        return len(self.readings)

    def look(self, name: str, call: int) -> AttentionRecord:
        """What it looks at in this reading, (heads, queries, keys), read again if need be."""
        keeping = self._kept.pop(call, None) or self._read(self.readings[call])
        self._kept[call] = keeping  # the last one is the one that was asked for last
        while len(self._kept) > 1 and sum(one.held for one in self._kept.values()) > self.limit:
            del self._kept[next(iter(self._kept))]
        look = keeping.look(name, -1) if name in keeping.runs else None
        if look is None:
            raise NotRecordedError(f'"{name}" was not kept: one reading of this text takes more than the limit of '
                               f"{self.limit:,} bytes. Give a larger limit to watch.")
        return seen_rows.sequence_record(look, 0, own=self._found[name].kind == SELF)

    def about(self, call: int) -> SequenceInfo:
        """What the task said of it."""
        return self.readings[call].about

    def why_nothing(self) -> str:
        """Why nothing was seen."""
        if not self._found:
            return "Nothing was seen: this model has no attention."
        return "Nothing was seen: the task has read no text inside the `with` block."

    def _read(self, reading: Replay) -> Recorder:
        keeping = Recorder(self.limit)
        with record_modules(self._found.values(), keeping), torch.inference_mode():
            reading.again()
        return keeping


def patch_side(model: nn.Module) -> TraceSide | None:
    """The side of an image, for a model that reads images as patches; None for others."""
    found = next((module for module in model.modules() if isinstance(module, PatchEmbedding)), None)
    if found is None:
        return None
    down, across = (pixels // found.patch for pixels in found.size)
    tokens = [f"{row + 1}, {column + 1}" for row in range(down) for column in range(across)]
    lead = 0 if found.token is None else 1
    return TraceSide((*["[class]"] * lead, *tokens), grid=(down, across), lead=lead)


def make_trace(looks: Mapping[str, AttentionRecord], places: Mapping[str, AttentionModule], about: SequenceInfo, title: str | None, model: str,
           tokens: Mapping[str, AnySide]) -> Trace:
    """The trace of one sequence: its looks (heads, queries, keys) by name, and the tokens of the sides."""
    sides = dict(about.sides) | {name: _as_side(name, one) for name, one in tokens.items()}
    crossed = any(_attention_kind(places[name], look) == CROSS for name, look in looks.items())
    attentions, used = [], set[str]()
    for name, look in looks.items():
        place, kind = places[name], _attention_kind(places[name], look)
        queries, keys = about.between.get(f"{place.part}.{kind}") or _default_sides(place, kind, crossed, about)
        look = seen_rows.truncate_record(look, *(len(sides[side].tokens) if side in tokens else None for side in (queries, keys)))
        queries, keys = (_side_name(side, size, sides, tokens)
                         for side, size in zip((queries, keys), record_shape(look)[-2:], strict=True))
        used |= {queries, keys}
        attentions.append(TracedAttention(name, queries, keys, look, place.layer, kind))
    for name in tokens:
        if name not in used:
            remedy = checks.nearest(name, used) or f"There are: {', '.join(sorted(used))}."
            raise checks.wrong(name, "a side that some attention looks from or at", "unknown", remedy)
    return Trace(sides, tuple(attentions), about.title if title is None else title, model, about.written,
                 _alignment_pointer(about.best, attentions), about.search)


def _default_sides(place: AttentionModule, kind: str, crossed: bool, about: SequenceInfo) -> tuple[str, str]:
    """The sides of an attention of which nobody says more than where it is."""
    if kind == CROSS:
        return "target", "source"
    whole = "image" if "image" in about.sides else "text"
    side = whole if not crossed else "source" if "encoder" in place.name.lower() else "target"
    return side, side


def _side_name(side: str, count: int, sides: dict[str, TraceSide], given: Mapping[str, AnySide]) -> str:
    """The name of the side with so many tokens; one of numbers is made where there is none."""
    if side in sides and (len(sides[side].tokens) == count or side in given):
        return side
    name = side if side not in sides else f"{side} of {count}"
    sides.setdefault(name, TraceSide(tuple(map(str, range(count)))))
    return name


def _attention_kind(place: AttentionModule, look: AttentionRecord) -> str:
    rows, columns = record_shape(look)[-2:]
    return place.kind or (SELF if rows == columns else CROSS)


def _alignment_pointer(best: AlignmentAttention | None, attentions: Sequence[TracedAttention]) -> AlignmentPointer | None:
    for number, one in enumerate(attentions):
        if best is not None and one.name == best.attention:
            return AlignmentPointer(number, best.head, best.offset if abs(best.offset) < one.rows else 0)
    return None


def _as_side(name: str, one: AnySide) -> TraceSide:
    if isinstance(one, TraceSide):
        return one
    if isinstance(one, str) or not isinstance(one, Sequence) or not all(isinstance(token, str) for token in one):
        raise checks.wrong(name, "tokens, a list of strings, or a Side", f"{one!r:.80}")
    return TraceSide(tuple(one))
