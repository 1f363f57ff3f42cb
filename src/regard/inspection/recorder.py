"""Record attention: find the attention modules of a model, and keep the queries and keys of each of their runs.

    decoder.stack.blocks.2.cross          is called decoder.2.cross
    encoder.stack.blocks.0.mixer.layer    encoder.0.self
    stack.blocks.0.mixer.layer            encoder.0.self    in a model that is only an encoder
    encoder.stack.blocks.0.mixer.onward   encoder.0.forward, and encoder.0.backward for the other direction
    decoder.attention                     decoder.cross     in a recurrent decoder
    layer, mixer.layer, ""                self              in a mixer or a layer alone

A module anywhere else keeps its own name. A run is one look, or several decoding steps that are the rows of one:
cross-attention sees the same keys at every step, self-attention with a cache and the tape of an LSTMN see one more.
A layer hands out looks that share memory with the model (caches, parameters); what the recorder keeps no longer
changes. Mixers without queries and keys (RWKV) hand out what their map is computed from. It does not know what is made
of the records.

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

from regard.attention.layer import Attention, BasicAttention, SelfAttention
from regard.attention.look import Listener, Look, Tap
from regard.attention.mask import BoolMask, Causal, Mask, Padding, as_mask
from regard.attention.mask_cache import CachedMask
from regard.attention.score import Additive, Bilinear, ScoreLike, SoftcappedScore, as_score
from regard.inspection.records import AttentionRecord, MixerMap, WeightMatrix, is_distance_mask
from regard.models.encoder_decoder import Decoder
from regard.models.seq2seq import RecurrentDecoder
from regard.recurrence.lstmn import LSTMN
from regard.rwkv.maps import MixerLook, RWKV4Look
from regard.rwkv.time_mix import TimeMix

SELF, CROSS = "self", "cross"
BOTH_DIRECTIONS = {"mixer.onward": "forward", "mixer.backward": "backward"}
"""The names of the two mixers of an encoder that reads in both directions."""
AnyMask = Mask | Tensor | None
_BLOCK = re.compile(r"(?P<part>.*\.)?blocks\.(?P<layer>\d+)\.(?P<place>mixer|mixer\.layer|"
                    r"mixer\.onward|mixer\.backward|cross)")
_FOREIGN_CROSS = re.compile(r"cross|encoder_attn|encdec|multihead_attn", re.IGNORECASE)
_T5_SUBLAYER = re.compile(r"block\.(\d+)\.layer\.\d+\.")
"""T5 calls the attention and the feed-forward part of a block layers; the number of the block counts."""
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


@dataclass(frozen=True)
class AttentionModule:
    """An attention module of a model, with the name under which it is recorded."""

    name: str
    module: nn.Module
    kind: str | None
    """"self" or "cross"; None if it is not known before the module runs."""
    layer: int | None
    """From 0."""

    @property
    def part(self) -> str:
        """The part of the model that the module is in: "decoder" for "decoder.2.cross"."""
        return self.name.split(".")[0] if "." in self.name else ""

    @property
    def strict(self) -> bool:
        """Whether a token attends only to earlier tokens, not to itself."""
        return isinstance(self.module, LSTMN)


def find_attention_modules(model: nn.Module, modules: Mapping[str, nn.Module] | None = None) -> list[AttentionModule]:
    """Every attention module with a tap, in the order of the model, each under a unique name.

    `modules` are all modules of the model by name, if the caller has them already: to list them takes a while.
    """
    modules = dict(model.named_modules()) if modules is None else modules
    only_part = "decoder" if isinstance(model, Decoder) else "encoder"
    found: dict[str, AttentionModule] = {}
    for path, module in modules.items():
        if not isinstance(module.__dict__.get("tap"), Tap):
            continue
        parent = modules.get(path.rpartition(".")[0]) if path else None
        described = _describe_module(path, module, parent, only_part)
        if described.name in found:
            described = replace(described, name=path)
        found[described.name] = described
    return list(found.values())


def foreign_module(path: str, module: nn.Module) -> AttentionModule:
    """An attention module that is not regard's: it keeps its name, from which kind and layer are guessed."""
    numbers = _NUMBER.findall(_T5_SUBLAYER.sub(r"block.\1.", path))
    kind = CROSS if _FOREIGN_CROSS.search(path.rpartition("layers")[2] or path) else SELF
    return AttentionModule(path or "attention", module, kind if path else None, int(numbers[-1]) if numbers else None)


def _describe_module(path: str, module: nn.Module, parent: nn.Module | None, only_part: str) -> AttentionModule:
    """Name a module with a tap; a stack that is the whole model is called `only_part`."""
    self_attention = isinstance(parent, SelfAttention) or isinstance(module, LSTMN | TimeMix)
    block = _BLOCK.fullmatch(path)
    if block is not None:
        kind = CROSS if block["place"] == "cross" else SELF
        part = (block["part"] or "").removesuffix(".").removesuffix(".stack")
        part = only_part if block["part"] == "stack." else part
        word = BOTH_DIRECTIONS.get(block["place"], kind)
        return AttentionModule(".".join(filter(None, (part, block["layer"], word))), module, kind, int(block["layer"]))
    if isinstance(parent, RecurrentDecoder):
        return AttentionModule(f"{path.rpartition('.')[0]}.cross".removeprefix("."), module, CROSS, 0)
    if path in ("", "layer", "mixer", "mixer.layer"):
        return AttentionModule(SELF if self_attention else "attention", module, SELF if self_attention else None, 0)
    if path == "cross":
        return AttentionModule(CROSS, module, CROSS, 0)
    return AttentionModule(path, module, SELF if self_attention else None, None)


@contextmanager
def record_modules(modules: Iterable[AttentionModule], recorder: "Recorder") -> Iterator[None]:
    """Record these modules inside the `with` block, through their taps."""
    with ExitStack() as taps:
        for module in modules:
            taps.enter_context(module.module.tap.listen(_listener(module, recorder)))  # type: ignore[union-attr, operator]
        yield


def can_record(tensor: Tensor) -> bool:
    """Whether Python runs this computation for the first time, so that its tensors can be kept.

    They cannot inside compiled code, while a CUDA graph is captured, inside torch.func, and in a backward pass, where
    activation checkpointing computes a second time what was recorded already.
    """
    if torch.compiler.is_compiling():
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return torch._C._current_graph_task_id() == -1


def _listener(module: AttentionModule, recorder: "Recorder") -> Listener:
    unshared, strict = _unshared_tensors(module), module.strict

    def listen(look: Look | MixerLook) -> None:
        if isinstance(look, MixerLook):
            if can_record(look.tensors[0]):
                recorder.add_mixer_look(module.name, look)
        elif can_record(look.query):
            recorder.add_look(module.name, look, strict=strict, unshared=unshared)

    return listen


def _unshared_tensors(module: AttentionModule) -> frozenset[str]:
    """The tensors of a look that nothing else writes into: projections, except keys that go into a cache."""
    if type(module.module) in (Attention, BasicAttention):
        return frozenset(("query", "key") if module.kind == CROSS else ("query",))
    return frozenset(("query",)) if isinstance(module.module, LSTMN) else frozenset()


class Recorder:
    """The runs of all attention modules, by name, up to a limit in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes = limit, 0
        self.runs: dict[str, list[RecordedRun | DeferredLook | WeightMatrix | None]] = {}
        """In order; None for a run that was not kept."""
        self._shared: dict[int, Tensor] = {}
        """Tensors of masks and biases that several runs share, by their address."""
        self._copies: dict[Any, _ParameterCopy] = {}

    def add_look(self, name: str, look: Look, *, strict: bool = False, unshared: frozenset[str] = frozenset()) -> None:
        """Keep a look of this module. Tensors named in `unshared` ("query", "key") are kept without a copy."""
        runs = self.runs.setdefault(name, [])
        run = runs[-1] if runs else None
        if not (isinstance(run, RecordedRun) and run.continues_with(look)):
            run = RecordedRun(strict)
            runs.append(run)
        if not run.lost:
            self._add_to_run(run, look, unshared)
        run.remember_step(look)

    def add_weights(self, name: str, matrix: WeightMatrix) -> None:
        """Keep weights that the model computed itself."""
        size = _nbytes(matrix.given)
        fits = self.nbytes + size <= self.limit
        self.nbytes += size if fits else 0
        self.runs.setdefault(name, []).append(WeightMatrix(matrix.given.clone()) if fits else None)

    def add_deferred(self, name: str, inputs: Mapping[str, Any],
                     make: Callable[[dict[str, Any]], AttentionRecord]) -> None:
        """Keep the inputs of a module, from which `make` computes a look when it is requested."""
        tensors = {id(one): one for one in inputs.values() if isinstance(one, Tensor)}
        size = sum(map(_nbytes, tensors.values()))
        runs = self.runs.setdefault(name, [])
        if self.nbytes + size > self.limit:
            runs.append(None)
            return
        self.nbytes += size
        copies = {key: one.detach().clone() for key, one in tensors.items()}
        runs.append(DeferredLook({key: copies.get(id(one), one) for key, one in inputs.items()}, make))

    def add_mixer_look(self, name: str, look: MixerLook) -> None:
        """Keep the tensors of a mixer, from which its map is computed when it is requested."""
        numbered = {str(number): tensor for number, tensor in enumerate(look.tensors)}

        def make(kept: dict[str, Any]) -> MixerMap:
            own = replace(look, tensors=tuple(kept[number] for number in numbered), present=kept["present"])
            present = own.present.flip(-1) if own.present is not None and own.reverse else own.present
            return MixerMap(own.weights(), own.bonus(), present, own.channels if isinstance(own, RWKV4Look) else None)

        self.add_deferred(name, {**numbered, "present": look.present}, make)

    def copy_parameter(self, part: Any) -> Any:
        """A copy of a parameter, a table or a module as it is now, made once for as long as `part` is unchanged."""
        is_module = isinstance(part, nn.Module)
        if not is_module and part.is_inference():
            return part.clone()  # inference tensors have no version counter
        # Layers may hand out new slices of one table in each run; address, shape and strides identify them.
        key = id(part) if is_module else (part.data_ptr(), part.shape, part.stride())
        tensors = [*part.parameters(), *part.buffers()] if is_module else [part]
        state = [(tensor.data_ptr(), tensor.dtype, 0 if tensor.is_inference() else tensor._version)
                 for tensor in tensors]
        known = self._copies.get(key)
        if known is None or known.state != state or (known.storage is not None and known.storage.expired()):
            own = copy.deepcopy(part).requires_grad_(False) if is_module else part.detach().clone()
            storage = None if is_module else StorageWeakRef(part.untyped_storage())
            known = _ParameterCopy(part if is_module else None, storage, state, own)
            self._copies[key] = known
        return known.own

    def record(self, name: str, number: int) -> AttentionRecord | None:
        """The record of this run; None if it was not kept."""
        run = self.runs[name][number]
        return run if run is None or isinstance(run, WeightMatrix) else run.look()

    def lost_runs(self) -> dict[str, int]:
        """The number of runs of each module that were not kept, where there are any."""
        counts = {name: sum(run is None or (isinstance(run, RecordedRun) and run.lost) for run in runs)
                  for name, runs in self.runs.items()}
        return {name: count for name, count in counts.items() if count}

    def _add_to_run(self, run: "RecordedRun", look: Look, unshared: frozenset[str]) -> None:
        mask = None if look.mask is None else as_mask(look.mask).map_parts(self._copy_mask)
        bias = None if look.bias is None else self.copy_parameter(look.bias)
        previous = run.pieces[-1].key if run.pieces else None
        same_keys = previous is not None and previous.shape == look.key.shape
        tables = [*_mask_tensors(mask), *([bias] if isinstance(bias, Tensor) else [])]
        added = {address: one for one in tables
                 if (address := one.untyped_storage().data_ptr()) not in self._shared}
        shared_size = sum(map(_nbytes, added.values()))  # other runs may use them: kept even if this run is lost
        size = _nbytes(look.query)
        if not same_keys:
            size += _nbytes(look.key) - (0 if previous is None else _nbytes(previous))
        if self.nbytes + size + shared_size > self.limit:
            self.nbytes -= run.nbytes
            run.drop()
            return
        self.nbytes += size + shared_size
        run.nbytes += size
        self._shared |= added
        new_key = look.key[..., :0, :] if same_keys else look.key
        query, key = (tensor.detach() if name in unshared and _owns_storage(tensor) else tensor.detach().clone()
                      for name, tensor in (("query", look.query), ("key", new_key)))
        run.add(Look(query, key if previous is None or not same_keys else previous, None, self._copy_score(look.score),
                     look.normalize, mask, bias))

    def _copy_mask(self, part: Mask) -> Mask:
        """A mask whose tensors do not change any more. Cached masks never change."""
        if isinstance(part, BoolMask) and not isinstance(part, CachedMask):
            return BoolMask(self.copy_parameter(part.tensor))
        return Padding(part.lengths.clone(), part.side) if type(part) is Padding else part

    def _copy_score(self, score: ScoreLike) -> ScoreLike:
        """The score with copies of its parameters."""
        if isinstance(score, SoftcappedScore):
            return SoftcappedScore(as_score(self._copy_score(score.score)), score.cap)
        if isinstance(score, Additive):
            bias = None if score.bias is None else self.copy_parameter(score.bias)
            return Additive(self.copy_parameter(score.weight), bias)
        return Bilinear(self.copy_parameter(score.weight)) if isinstance(score, Bilinear) else score


class DeferredLook:
    """The inputs of a module, from which its look is computed when it is requested."""

    def __init__(self, inputs: dict[str, Any], make: Callable[[dict[str, Any]], AttentionRecord]) -> None:
        self._inputs, self._make = inputs, make
        self._look: AttentionRecord | None = None

    def look(self) -> AttentionRecord:
        """The look, computed once."""
        if self._look is None:
            self._look = self._make(self._inputs)
        return self._look


class RecordedRun:
    """The looks of one run: one, or one for each decoding step. `strict`: a token does not attend to itself."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.pieces: list[Look] = []
        """The kept part of each look; only the last one has the keys."""
        self.nbytes = 0
        self.lost = False
        """Whether the run exceeded the limit, so that nothing of it is kept."""
        self._previous: _PreviousStep | None = None
        self._keys_grow: bool | None = None
        self._look: Look | None = None

    def continues_with(self, look: Look) -> bool:
        """Whether this look, as the layer handed it out, is the next step of the run."""
        previous, query, key = self._previous, look.query.shape, look.key.shape
        if previous is None or query[-2] != 1 or len(query) != 4:
            return False
        if query[:-2] != previous.query[:-2] or key[:-2] != previous.key[:-2]:
            return False
        N = previous.key[-2]
        if key[-2] == N and not self.strict:
            same_keys = look.mask is previous.mask and look.key.data_ptr() == previous.key_address
            new_query = look.query.data_ptr() != previous.query_address
            return same_keys and new_query and not self._keys_grow and previous.query[-2] == 1
        if key[-2] != N + 1 or self._keys_grow is False or not self._mask_continues(look.mask, previous):
            return False
        # The earlier keys are unchanged: this is the same sequence, not another one of the same size.
        known = self.pieces[-1].key if previous.last_key is None else previous.last_key
        return N == 0 or torch.equal(look.key[..., N - known.shape[-2]:N, :], known)

    def remember_step(self, look: Look) -> None:
        """Remember what the layer handed out, to recognise the next step."""
        if self._previous is not None:
            self._keys_grow = look.key.shape[-2] > self._previous.key[-2]
        compares_addresses = look.query.shape[-2] == 1 and not self._keys_grow and not self.strict
        N = look.key.shape[-2]
        last_key = look.key[..., N - 1:, :].clone() if self.lost and N else None
        self._previous = _PreviousStep(look.query.shape, look.key.shape, look.query.data_ptr(), look.key.data_ptr(),
                                       look.mask, last_key, (look.query, look.key) if compares_addresses else None)

    def add(self, piece: Look) -> None:
        """Keep a look. Its keys include those of the look before."""
        if self.pieces:
            self.pieces[-1] = replace(self.pieces[-1], key=piece.key[..., :0, :])
        self.pieces.append(piece)
        self._look = None

    def drop(self) -> None:
        """Keep nothing of this run."""
        self.pieces, self.nbytes, self.lost, self._look = [], 0, True, None

    def look(self) -> Look | None:
        """The rows of all steps as one look; None if the run was not kept."""
        if self._look is None and self.pieces:
            self._look = self._join_steps()
        return self._look

    def _mask_continues(self, mask: AnyMask, previous: "_PreviousStep") -> bool:
        if self.strict:
            return all(one is None or type(one) is BoolMask for one in (mask, previous.mask))
        if not is_distance_mask(mask):
            return False
        first = mask if previous.query[-2] == 1 else Causal() if mask is None else Causal() & as_mask(mask)
        return repr(previous.mask) == repr(first)

    def _join_steps(self) -> Look:
        last = self.pieces[-1]
        if len(self.pieces) == 1 and not self.strict:
            return last
        query, key, mask = torch.cat([piece.query for piece in self.pieces], dim=-2), last.key, last.mask
        if self.strict:
            # No query attends to the last token, so its key is missing; an empty column makes the map square.
            key = torch.nn.functional.pad(key, (0, 0, 0, 1))
            count = key.shape[-2]
            mask = _stack_masks([piece.mask for piece in self.pieces], count - len(self.pieces), count, key.device)
        elif self._keys_grow:
            mask = Causal() if mask is None else Causal() & as_mask(mask)
        return replace(last, query=query, key=key, mask=mask)


class _PreviousStep(NamedTuple):
    """What a layer handed out last: shapes, addresses, the mask."""

    query: torch.Size
    key: torch.Size
    query_address: int
    key_address: int
    mask: AnyMask
    last_key: Tensor | None
    """The last key, of a run that was lost."""
    tensors: object
    """Query and key, where addresses are compared: while they live, no other tensor can have their addresses."""


class _ParameterCopy(NamedTuple):
    """A copy of a parameter, a table or a module, and the state that it was made from."""

    module: nn.Module | None
    """Referenced so that no other module gets its id."""
    storage: StorageWeakRef | None
    """The storage of a tensor; once it is gone, another tensor may have its address."""
    state: list[tuple[Any, ...]]
    own: Any


def _stack_masks(masks: Sequence[AnyMask], first: int, count: int, device: torch.device) -> Mask:
    """Masks (B, 1, 1, N) as rows of one mask of `count` keys. The first covers `first` keys, each next one key more."""
    rows = []
    for number, mask in enumerate(masks):
        N = first + number
        row = mask.tensor if isinstance(mask, BoolMask) else torch.ones(1, 1, 1, N, dtype=torch.bool, device=device)
        rows.append(torch.nn.functional.pad(row.expand(*row.shape[:-1], N), (0, count - N)))
    B = max(len(row) for row in rows)
    return BoolMask(torch.cat([row.expand(B, -1, -1, -1) for row in rows], dim=-2))


def _mask_tensors(mask: Mask | None) -> list[Tensor]:
    """The tensors of a mask."""
    found: list[Tensor] = []

    def collect(part: Mask) -> Mask:
        found.extend([part.tensor] if isinstance(part, BoolMask) else [])
        return part

    if mask is not None:
        mask.map_parts(collect)
    return found


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _owns_storage(tensor: Tensor) -> bool:
    """Whether a tensor is all of its storage, so that keeping it keeps no more memory."""
    return tensor.untyped_storage().nbytes() == _nbytes(tensor)
