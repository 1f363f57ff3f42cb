"""Record attention: find the attention modules of a model, and keep the queries and keys of each of their runs.

    decoder.stack.blocks.2.cross          is called decoder.2.cross
    encoder.stack.blocks.0.mixer.layer    encoder.0.self
    stack.blocks.0.mixer.layer            encoder.0.self    in a model that is only an encoder
    decoder.attention                     decoder.cross     in a recurrent decoder
    layer, mixer.layer, ""                self              in a mixer or a layer alone

A module anywhere else keeps its own name. A run is one look, or several decoding steps that are the rows of one:
cross-attention sees the same keys at every step, self-attention with a cache and the tape of an LSTMN see one more.
A layer hands out looks that share memory with the model (caches, parameters); what the recorder keeps no longer
changes. It does not know what is made of the records.

Legend: B rows of a batch, n queries, N keys.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from regard.attention.attend import ScoreLike
from regard.attention.layer import Attention, BasicAttention, SelfAttention
from regard.attention.look import Listener, Look, Tap
from regard.attention.mask import AndMask, BoolMask, Causal, Mask, Padding, Window, as_mask
from regard.attention.mask_cache import CachedMask
from regard.attention.score import Additive, Bilinear
from regard.inspection.records import AttentionRecord, WeightMatrix
from regard.models.encoder_decoder import Decoder
from regard.models.seq2seq import RecurrentDecoder
from regard.recurrence.lstmn import LSTMN

SELF, CROSS = "self", "cross"
_BLOCK = re.compile(r"(?P<part>.*\.)?blocks\.(?P<layer>\d+)\.(?P<place>mixer|mixer\.layer|cross)")
_FOREIGN_CROSS = re.compile(r"cross|encoder_attn|encdec|multihead_attn", re.IGNORECASE)
_PART_OF_BLOCK = re.compile(r"block\.(\d+)\.layer\.\d+\.")
"""In T5, what is called a layer is a part of one: attention, or what is behind it."""
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


@dataclass(frozen=True)
class AttentionModule:
    """One attention of a model."""

    name: str
    module: nn.Module
    kind: str | None
    """"self" or "cross"; None where that is not known before it runs."""
    layer: int | None
    """From 0."""

    @property
    def part(self) -> str:
        """The part of the model that it is in: "decoder" of "decoder.2.cross"."""
        return self.name.split(".")[0] if "." in self.name else ""

    @property
    def strict(self) -> bool:
        """Whether a token does not see itself, but only what is before it."""
        return isinstance(self.module, LSTMN)


def find_attention_modules(model: nn.Module, modules: Mapping[str, nn.Module] | None = None) -> list[AttentionModule]:
    """Every attention of a model that has a tap, in the order of its modules, each under a name of its own.

    `modules` are its modules by name, where somebody has them already: to find them takes a while.
    """
    modules = dict(model.named_modules()) if modules is None else modules
    found: list[AttentionModule] = []
    taken: set[str] = set()
    for path, module in modules.items():
        if not isinstance(module.__dict__.get("tap"), Tap):
            continue
        above = modules.get(path.rpartition(".")[0]) if path else None
        place = _describe_module(path, module, above, "decoder" if isinstance(model, Decoder) else "encoder")
        if place.name in taken:
            place = AttentionModule(path, module, place.kind, place.layer)
        taken.add(place.name)
        found.append(place)
    return found


def foreign_module(path: str, module: nn.Module) -> AttentionModule:
    """An attention that is not regard's: it keeps its name, from which its kind and its layer are guessed."""
    numbers = _NUMBER.findall(_PART_OF_BLOCK.sub(r"block.\1.", path))
    kind = CROSS if _FOREIGN_CROSS.search(path.rpartition("layers")[2] or path) else SELF
    return AttentionModule(path or "attention", module, kind if path else None, int(numbers[-1]) if numbers else None)


def _describe_module(path: str, module: nn.Module, above: nn.Module | None, whole: str) -> AttentionModule:
    """The place of a module with a tap; `whole` is what a model is called that has one stack, and no name for it."""
    own = isinstance(above, SelfAttention) or isinstance(module, LSTMN)
    block = _BLOCK.fullmatch(path)
    if block is not None:
        kind = CROSS if block["place"] == "cross" else SELF
        part = whole if block["part"] == "stack." else (block["part"] or "").removesuffix(".").removesuffix(".stack")
        return AttentionModule(".".join(filter(None, (part, block["layer"], kind))), module, kind, int(block["layer"]))
    if isinstance(above, RecurrentDecoder):
        return AttentionModule(f"{path.rpartition('.')[0]}.cross".removeprefix("."), module, CROSS, 0)
    if path in ("", "layer", "mixer", "mixer.layer"):
        return AttentionModule(SELF if own else "attention", module, SELF if own else None, 0)
    if path == "cross":
        return AttentionModule(CROSS, module, CROSS, 0)
    return AttentionModule(path, module, SELF if own else None, None)


# ---- runs: One run of an attention: a look, or the steps that go on from each other and are the rows of one.
#
#     the same keys                    cross-attention, step by step
#     the same keys and one more       self-attention with a cache, and the tape of an LSTMN
#
# A step has one query for every row of the batch. It knows looks and nothing of where they are kept.
#
# Legend: B rows of a batch, n queries, N keys.

AnyMask = Mask | Tensor | None


class _PreviousStep(NamedTuple):
    """What a layer gave last: sizes, places in memory, and of what is not kept the last key."""

    query: torch.Size
    key: torch.Size
    query_place: int
    key_place: int
    mask: AnyMask
    tail: Tensor | None
    held: object


class RecordedRun:
    """The looks of one run. `strict`: a token does not see itself, but only what is before it."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.pieces: list[Look] = []
        """What is kept of each look; only the last has the keys."""
        self.bytes = 0
        self.lost = False
        """It was not kept, because there was no room for all of it."""
        self._before: _PreviousStep | None = None
        self._grows: bool | None = None
        self._whole: Look | None = None

    def goes_on(self, look: Look) -> bool:
        """Whether this look, as the layer gave it, is the next step of the run."""
        before, query, key = self._before, look.query.shape, look.key.shape
        if before is None or query[-2] != 1 or len(query) != 4:
            return False
        if query[:-2] != before.query[:-2] or key[:-2] != before.key[:-2]:
            return False
        N = before.key[-2]
        if key[-2] == N and not self.strict:
            same = look.mask is before.mask and look.key.data_ptr() == before.key_place
            return same and look.query.data_ptr() != before.query_place and not self._grows and before.query[-2] == 1
        if key[-2] != N + 1 or self._grows is False or not self._masks_go_on(look.mask, before):
            return False
        # The same sequence, and not another one in its place: the keys before are what they were.
        known = self.pieces[-1].key if before.tail is None else before.tail
        return N == 0 or torch.equal(look.key[..., N - known.shape[-2]:N, :], known)

    def note(self, look: Look) -> None:
        """Remember what the layer gave, to know what goes on from it."""
        if self._before is not None:
            self._grows = look.key.shape[-2] > self._before.key[-2]
        one = look.query.shape[-2] == 1 and not self._grows and not self.strict
        # What is held has a place in memory that nothing else can have as long as it is.
        held = (look.query, look.key) if one else None
        N = look.key.shape[-2]
        self._before = _PreviousStep(look.query.shape, look.key.shape, look.query.data_ptr(), look.key.data_ptr(), look.mask,
                             look.key[..., N - 1:, :].clone() if self.lost and N else None, held)

    def add(self, piece: Look) -> None:
        """Keep a look. The keys of the one before it are in its own."""
        if self.pieces:
            self.pieces[-1] = replace(self.pieces[-1], key=piece.key[..., :0, :])
        self.pieces.append(piece)
        self._whole = None

    def lose(self) -> None:
        """Keep nothing of it."""
        self.pieces, self.bytes, self.lost, self._whole = [], 0, True, None

    def look(self) -> Look | None:
        """All rows together; None where it was not kept."""
        if self._whole is None and self.pieces:
            self._whole = self._together()
        return self._whole

    def _masks_go_on(self, mask: AnyMask, before: "_PreviousStep") -> bool:
        if self.strict:
            return all(one is None or type(one) is BoolMask for one in (mask, before.mask))
        if not _depends_on_distance(mask):
            return False
        first = mask if before.query[-2] == 1 else Causal() if mask is None else Causal() & as_mask(mask)
        return repr(before.mask) == repr(first)

    def _together(self) -> Look:
        last = self.pieces[-1]
        if len(self.pieces) == 1 and not self.strict:
            return last
        query, key, mask = torch.cat([piece.query for piece in self.pieces], dim=-2), last.key, last.mask
        if self.strict:
            # The key of the last token is seen by nobody, and is not there; a column for it makes the map square.
            key = torch.nn.functional.pad(key, (0, 0, 0, 1))
            count = key.shape[-2]
            mask = _stack_masks([piece.mask for piece in self.pieces], count - len(self.pieces), count, key.device)
        elif self._grows:
            mask = Causal() if mask is None else Causal() & as_mask(mask)
        return replace(last, query=query, key=key, mask=mask)


def _stack_masks(masks: Sequence[AnyMask], first: int, count: int, device: torch.device) -> Mask:
    """The masks (B, 1, 1, N) of rows of which each sees one key more than the one before, the first of them `first`."""
    rows = []
    for number, mask in enumerate(masks):
        seen = first + number
        own = mask.tensor if isinstance(mask, BoolMask) else torch.ones(1, 1, 1, seen, dtype=torch.bool, device=device)
        rows.append(torch.nn.functional.pad(own.expand(*own.shape[:-1], seen), (0, count - seen)))
    widest = max(len(row) for row in rows)
    return BoolMask(torch.cat([row.expand(widest, -1, -1, -1) for row in rows], dim=-2))


def _depends_on_distance(mask: AnyMask) -> bool:
    """Whether a mask says the same of every place, so that its name is all of it."""
    parts = mask.members if isinstance(mask, AndMask) else (mask,)
    return all(part is None or type(part) in (Causal, Window) for part in parts)


# ---- keeping: What is kept of every run of an attention: queries and keys in storage of their own, up to a limit.
#
# A layer hands out looks that share memory with the model: caches that are written on, parameters that are trained on.
# What is kept here changes no more. It does not know models, nor what is made of the looks.


class _ParameterCopy(NamedTuple):
    """What was copied, what it was like then, and the copy."""

    part: nn.Module | None
    """A module is held, so that no other has its id."""
    storage: StorageWeakRef | None
    """Of a tensor: when it is gone, another may be in its place."""
    now: list[tuple[Any, ...]]
    own: Any


class DeferredLook:
    """What a look is made from, when it is asked for."""

    def __init__(self, given: dict[str, Any], make: Callable[[dict[str, Any]], Look]) -> None:
        self._given, self._make = given, make
        self._made: Look | None = None

    def look(self) -> Look:
        """The look, made once."""
        if self._made is None:
            self._made = self._make(self._given)
        return self._made


class Recorder:
    """The runs of all attentions, by name, as long as they fit into so many bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self.runs: dict[str, list[RecordedRun | DeferredLook | WeightMatrix | None]] = {}
        """In their order; None for one that was not kept."""
        self._stored: dict[int, Tensor] = {}
        self._copies: dict[Any, _ParameterCopy] = {}

    def take(self, name: str, look: Look, *, strict: bool = False, settled: frozenset[str] = frozenset()) -> None:
        """Keep a look of this attention. Into what is `settled`, "query" or "key", nobody writes any more."""
        runs = self.runs.setdefault(name, [])
        run = runs[-1] if runs else None
        if not (isinstance(run, RecordedRun) and run.goes_on(look)):
            run = RecordedRun(strict)
            runs.append(run)
        if not run.lost:
            self._add(run, look, settled)
        run.note(look)

    def give(self, name: str, matrix: WeightMatrix) -> None:
        """Keep weights that were computed whole."""
        fits = self.held + _nbytes(matrix.given) <= self.limit
        self.held += _nbytes(matrix.given) if fits else 0
        self.runs.setdefault(name, []).append(WeightMatrix(matrix.given.clone()) if fits else None)

    def later(self, name: str, given: Mapping[str, Any], make: Callable[[dict[str, Any]], Look]) -> None:
        """Keep the tensors that were given, from which the look is made when it is asked for."""
        own = {id(one): one for one in given.values() if isinstance(one, Tensor)}
        size = sum(map(_nbytes, own.values()))
        runs = self.runs.setdefault(name, [])
        if self.held + size > self.limit:
            runs.append(None)
            return
        self.held += size
        copies = {key: one.detach().clone() for key, one in own.items()}
        runs.append(DeferredLook({key: copies.get(id(one), one) for key, one in given.items()}, make))

    def copied(self, part: Any) -> Any:
        """A parameter, a table or a module as it is now: a copy, which is made once as long as it stays so."""
        whole = isinstance(part, nn.Module)
        if not whole and part.is_inference():
            return part.clone()  # nobody counts what is written into it
        # Layers are given slices of one table, each a tensor of its own: it is told by its place.
        where = id(part) if whole else (part.data_ptr(), part.shape, part.stride())
        tensors = [*part.parameters(), *part.buffers()] if whole else [part]
        now = [(tensor.data_ptr(), tensor.dtype, 0 if tensor.is_inference() else tensor._version) for tensor in tensors]
        known = self._copies.get(where)
        if known is None or known.now != now or (known.storage is not None and known.storage.expired()):
            own = copy.deepcopy(part).requires_grad_(False) if whole else part.detach().clone()
            known = _ParameterCopy(part if whole else None, None if whole else StorageWeakRef(part.untyped_storage()), now, own)
            self._copies[where] = known
        return known.own

    def look(self, name: str, number: int) -> AttentionRecord | None:
        """That of this run; None where it was not kept."""
        run = self.runs[name][number]
        return run if run is None or isinstance(run, WeightMatrix) else run.look()

    def lost(self) -> dict[str, int]:
        """How many runs of each attention were not kept."""
        counts = {name: sum(run is None or (isinstance(run, RecordedRun) and run.lost) for run in runs)
                  for name, runs in self.runs.items()}
        return {name: count for name, count in counts.items() if count}

    def _add(self, run: RecordedRun, look: Look, settled: frozenset[str]) -> None:
        mask = None if look.mask is None else as_mask(look.mask).each(self._own_mask)
        bias = None if look.bias is None else self.copied(look.bias)
        before = run.pieces[-1].key if run.pieces else None
        same = before is not None and before.shape == look.key.shape
        tables = [*_mask_tensors(mask), *([bias] if isinstance(bias, Tensor) else [])]
        added = {place: one for one in tables if (place := one.untyped_storage().data_ptr()) not in self._stored}
        shared = sum(map(_nbytes, added.values()))  # by other runs, and kept when this one is lost
        size = _nbytes(look.query) + (0 if same else _nbytes(look.key) - (0 if before is None else _nbytes(before)))
        if self.held + size + shared > self.limit:
            self.held -= run.bytes
            run.lose()
            return
        self.held += size + shared
        run.bytes += size
        self._stored |= added
        query, key = (tensor.detach() if name in settled and _owns_storage(tensor) else tensor.detach().clone()
                      for name, tensor in (("query", look.query), ("key", look.key[..., :0, :] if same else look.key)))
        run.add(Look(query, key if before is None or not same else before, None, self._own_score(look.score),
                     look.normalize, mask, bias))

    def _own_mask(self, part: Mask) -> Mask:
        """A mask whose tensors nobody else changes. What was looked up for one pass is not changed by anybody."""
        if isinstance(part, BoolMask) and not isinstance(part, CachedMask):
            return BoolMask(self.copied(part.tensor))
        return Padding(part.lengths.clone(), part.side) if type(part) is Padding else part

    def _own_score(self, score: ScoreLike) -> ScoreLike:
        """The score with parameters that are trained no more."""
        if isinstance(score, Additive):
            return Additive(self.copied(score.weight), None if score.bias is None else self.copied(score.bias))
        return Bilinear(self.copied(score.weight)) if isinstance(score, Bilinear) else score


def _mask_tensors(mask: Mask | None) -> list[Tensor]:
    """The matrices of a mask."""
    found: list[Tensor] = []

    def look_at(part: Mask) -> Mask:
        found.extend([part.tensor] if isinstance(part, BoolMask) else [])
        return part

    if mask is not None:
        mask.each(look_at)
    return found


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _owns_storage(tensor: Tensor) -> bool:
    """Whether a tensor is all of its storage, so that keeping it keeps no more."""
    return tensor.untyped_storage().nbytes() == _nbytes(tensor)


# ---- taps: The taps of a model, opened: every look of its attentions goes to whoever keeps it.
#
# It knows which queries and keys a layer leaves to whoever listens, and when nobody can listen: inside compiled code,
# while a CUDA graph is recorded, inside torch.func, where tensors stand for others, and in the backward pass, where a
# checkpoint computes what it has computed before.


@contextmanager
def record_modules(places: Iterable[AttentionModule], keeping: Recorder) -> Iterator[None]:
    """Keep what these attentions look at inside the `with` block."""
    with ExitStack() as open_taps:
        for place in places:
            open_taps.enter_context(place.module.tap.listen(_listener(place, keeping)))  # type: ignore[union-attr, operator]
        yield


def can_record(tensor: Tensor) -> bool:
    """Whether what runs now is run for the first time, by Python, so that it can be kept."""
    if torch.compiler.is_compiling():
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return torch._C._current_graph_task_id() == -1  # not inside of a backward pass


def _listener(place: AttentionModule, keeping: Recorder) -> Listener:
    settled, strict = _unshared(place), place.strict

    def listen(look: Look) -> None:
        if can_record(look.query):
            keeping.take(place.name, look, strict=strict, settled=settled)

    return listen


def _unshared(place: AttentionModule) -> frozenset[str]:
    """What nobody else has, or writes into: projections, and of these the keys only where they go to no cache."""
    if type(place.module) in (Attention, BasicAttention):
        return frozenset(("query", "key") if place.kind == CROSS else ("query",))
    return frozenset(("query",)) if isinstance(place.module, LSTMN) else frozenset()
