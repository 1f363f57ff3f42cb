"""The state of a training as named tensors and JSON values: taken from the engine, stored in shards, restored.

    take_snapshot(engine, values)             a Snapshot of all that the next step depends on:
        model.*          parameters and buffers
        average.*        the EMA of the parameters
        optimiser.*      "first.<parameter>", "second.<parameter>", "step.<parameter>"
        carried.*        what the objective keeps from step to step; each process has some rows of it
        engine.sums      sums that were not logged yet
    write_shards(path, tensors)               one safetensors file with the whole tensors and shards of a process
    StoredState.of(paths, values)             all files of one state, checked for completeness before a tensor is read
    restore_snapshot(engine, stored)          everything is compared before anything is changed

The state can be restored on another number of processes: only the bytes that a process needs are read. A file describes
its shards in its own header; nothing is pickled. A tensor is split along one dimension at most, as FSDP splits it.
Checkpoint folders are not known here.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from regard import checks
from regard._version import __version__
from regard.storage import weights
from regard.storage import weights as modules
from regard.storage.weights import TensorSpec
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine

SHARDS_KEY = "regard.parts"
"""The key of the metadata that tells of the tensors that are parts, as JSON {name: {"shape": ..., "offsets": ...}}."""
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class TensorShard:
    """What one process holds of a tensor: the rest is on others."""

    tensor: Tensor
    shape: Sizes
    """Of the whole."""
    offsets: Sizes
    """Where in the whole it begins."""

    def __post_init__(self) -> None:
        if not _within(self.offsets, tuple(self.tensor.shape), self.shape):
            got = f"of shape {checks.shape(self.tensor)} at {self.offsets}"
            raise checks.wrong("tensor", f"a part of a whole of shape {self.shape}", got)


class ShardLocation(NamedTuple):
    """Where in which file a part of a tensor is."""

    path: Path
    key: str
    offsets: Sizes
    shape: Sizes


def local_shard(tensor: Tensor) -> Tensor | TensorShard:
    """What this process holds of a tensor: all of it, unless it is shared among processes in one row."""
    if not _is_dtensor(tensor):
        return tensor
    from torch.distributed.tensor import Replicate, Shard

    mesh, (placement, *more) = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    local: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    if not more and type(placement) is Replicate:
        return local
    if more or type(placement) is not Shard:
        raise checks.wrong("tensor", "one that is whole, or cut along one dimension", f"one with {(placement, *more)}")
    shape = tuple(tensor.shape)
    offsets, extent = chunk_bounds(shape, placement.dim, mesh.get_local_rank(), mesh.size())
    if tuple(local.shape) != extent:
        raise checks.wrong("tensor", f"cut into chunks, here of shape {extent}", f"of shape {checks.shape(local)} here")
    return TensorShard(local, shape, offsets)


def chunk_bounds(shape: Sizes, dimension: int, rank: int, processes: int) -> tuple[Sizes, Sizes]:
    """Offsets and shape of what a process has of a tensor: chunks of one size, the last ones smaller or empty."""
    size = shape[dimension]
    each = math.ceil(size / processes)
    start, end = min(rank * each, size), min((rank + 1) * each, size)
    offsets = tuple(start if number == dimension else 0 for number in range(len(shape)))
    return offsets, (*shape[:dimension], end - start, *shape[dimension + 1:])


def write_shards(path: Path, tensors: Mapping[str, Tensor | TensorShard]) -> None:
    """Write what one process holds."""
    parts = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, TensorShard)}
    about = {name: {"shape": part.shape, "offsets": part.offsets} for name, part in parts.items()}
    plain = {name: tensor.tensor if isinstance(tensor, TensorShard) else tensor for name, tensor in tensors.items()}
    weights.write_tensors(path, plain, {"regard": __version__, SHARDS_KEY: json.dumps(about)})


@dataclass(frozen=True)
class StoredState:
    """A state in files. Its tensors are read when they are asked for, into memory of their own on the CPU."""

    values: Mapping[str, Any]
    tensors: Mapping[str, TensorSpec]
    """The dtype and the whole shape of each."""
    pieces: Mapping[str, Sequence[ShardLocation]]

    @classmethod
    def of(cls, paths: Sequence[Path], values: Mapping[str, Any]) -> "StoredState":
        """What these files hold together; a ValueError where one is damaged, or a part of a tensor is in none."""
        entries: dict[str, TensorSpec] = {}
        pieces: dict[str, list[ShardLocation]] = {}
        for path in paths:
            for name, whole, piece in _describe_file(path):
                if entries.setdefault(name, whole) != whole:
                    raise checks.wrong(f"{path}: {name}", f"a part of {entries[name]}", f"one of {whole}")
                pieces.setdefault(name, []).append(piece)
        for name, whole in entries.items():
            _check_complete(name, whole.shape, pieces[name])
        return cls(values, entries, pieces)

    def tensor(self, name: str) -> Tensor:
        """The whole tensor of this name."""
        return self._whole(name, _ShardFiles())

    def part(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """The piece of this shape that begins at these offsets."""
        return self._part(name, offsets, shape, _ShardFiles())

    def like(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor of this name, on the device of another and shared among processes in the same way."""
        return self._like(name, tensor, _ShardFiles())

    def under(self, prefix: str, like: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """All tensors of a part of the training, by their names in it: "model.bias" is "bias" under "model".

        Those that are also in `like` come as `Stored.like` gives them, the others whole and on the CPU.
        """
        files, models = _ShardFiles(), like or {}
        found = {name.removeprefix(f"{prefix}."): name for name in self.tensors if name.startswith(f"{prefix}.")}
        return {short: self._like(name, models[short], files) if short in models else self._whole(name, files)
                for short, name in found.items()}

    def _whole(self, name: str, files: "_ShardFiles") -> Tensor:
        shape = self._entry(name).shape
        return self._part(name, (0,) * len(shape), shape, files)

    def _part(self, name: str, offsets: Sequence[int], shape: Sequence[int], files: "_ShardFiles") -> Tensor:
        dtype, whole = self._entry(name)
        if not _within(offsets, shape, whole):
            raise checks.wrong("shape", f"within {name!r}, which is of shape {whole}",
                               f"{tuple(shape)} at {tuple(offsets)}")
        result = torch.empty(tuple(shape), dtype=dtype)
        for piece in self.pieces[name]:
            spans = [(max(first, other), min(first + size, other + others)) for first, size, other, others
                     in zip(offsets, shape, piece.offsets, piece.shape, strict=True)]
            if all(start < end for start, end in spans):
                files.read(piece, _slices(spans, piece.offsets), result[_slices(spans, offsets)])
        return result

    def _like(self, name: str, tensor: Tensor, files: "_ShardFiles") -> Tensor:
        whole = self._entry(name).shape
        if whole != tuple(tensor.shape):
            raise checks.wrong(name, f"of shape {checks.shape(tensor)}", f"of shape {whole}")
        own = local_shard(tensor)
        if isinstance(own, TensorShard):
            local = self._part(name, own.offsets, own.tensor.shape, files)
        else:
            local = self._whole(name, files)
        local = local.to(tensor.device)
        if not _is_dtensor(tensor):
            return local
        from torch.distributed.tensor import DTensor

        mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride())

    def _entry(self, name: str) -> TensorSpec:
        if name not in self.tensors:
            raise checks.wrong("name", f"that of one of the {len(self.tensors)} tensors that are stored", repr(name),
                               checks.nearest(name, self.tensors))
        return self.tensors[name]


class _ShardFiles:
    """Files that are opened once for many readings."""

    def __init__(self) -> None:
        self._opened: dict[Path, Any] = {}

    def read(self, piece: ShardLocation, where: tuple[slice, ...], goal: Tensor) -> None:
        """Copy what is there in the piece to its goal."""
        try:
            if piece.path not in self._opened:
                self._opened[piece.path] = safe_open(piece.path, framework="pt", device="cpu")
            goal.copy_(self._opened[piece.path].get_slice(piece.key)[where])
        except (SafetensorError, OSError) as error:
            raise checks.wrong(str(piece.path), "the file that it was", f"not ({error})",
                               "A checkpoint must be read before it is removed.") from None


def _describe_file(path: Path) -> Iterator[tuple[str, TensorSpec, ShardLocation]]:
    """Of every tensor in a file its name, what the whole is, and the piece that is here."""
    header = weights.read_header(path)
    try:
        parts = {name: (tuple(map(int, part["shape"])), tuple(map(int, part["offsets"])))
                 for name, part in json.loads(header.metadata.get(SHARDS_KEY, "{}")).items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise checks.wrong(str(path), f'a file whose metadata "{SHARDS_KEY}" tells of parts', "one with other") from None
    for name, entry in header.tensors.items():
        whole, offsets = parts.get(name, (entry.shape, (0,) * len(entry.shape)))
        if not _within(offsets, entry.shape, whole):
            raise checks.wrong(f"{path}: {name}", f"a part of {whole}", f"{entry.shape} at {offsets}")
        yield name, TensorSpec(entry.dtype, whole), ShardLocation(path, header.aliases.get(name, name), offsets, entry.shape)


def _check_complete(name: str, whole: Sizes, pieces: Sequence[ShardLocation]) -> None:
    """Refuse pieces that do not make the whole when they are laid side by side, or that are there twice."""
    cut = {number for piece in pieces for number, size in enumerate(piece.shape) if size != whole[number]}
    if not cut and (len(pieces) == 1 or 0 in whole):
        return
    if len(cut) == 1:
        number = cut.pop()
        spans = sorted((piece.offsets[number], piece.offsets[number] + piece.shape[number]) for piece in pieces)
        if [start for start, _ in spans] + [whole[number]] == [0] + [end for _, end in spans]:
            return
    held = "; ".join(f"{piece.shape} at {piece.offsets} in {piece.path}" for piece in pieces[:8])
    raise checks.wrong(name, f"stored once and whole, of shape {whole}, in parts along one dimension at most", held)


def _slices(spans: Sequence[tuple[int, int]], offsets: Sequence[int]) -> tuple[slice, ...]:
    """Spans of the whole as slices of what begins at these offsets."""
    return tuple(slice(start - first, end - first) for (start, end), first in zip(spans, offsets, strict=True))


def _within(offsets: Sequence[int], shape: Sequence[int], whole: Sequence[int]) -> bool:
    return len(offsets) == len(shape) == len(whole) and all(
        first >= 0 and size >= 0 and first + size <= most
        for first, size, most in zip(offsets, shape, whole, strict=True))


def _is_dtensor(tensor: Tensor) -> bool:
    """Whether it is a tensor of several processes. Only one that is not plain is worth the time of that import."""
    if type(tensor) in (Tensor, nn.Parameter):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


# ---- snapshot: The whole state of a training: tensors by name, and values in JSON; and how an optimiser gives and takes its share.
#
#     Snapshot.of({"model": ..., "average": ..., "optimiser": ...}, values)       "model.encoder.0.weight", ...
#     optimiser_state(optimiser, parameters)              "first.<parameter>", "second.<parameter>", "step.<parameter>"
#     resume_optimiser(optimiser, parameters, tensors)    all of them, as they must be, or none
#
# An optimiser of torch takes a state of any shape without a word, and counts parameters in place of naming them; here
# they have names, and what does not fit is refused before anything is changed. It does not know files.

MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}
"""The moving means of the gradient and of its square: our names, and torch's."""
STEP_KEY = "step"


@dataclass(frozen=True)
class Snapshot:
    """A training as it is now. The tensors are its own, not copies: store them before the next step."""

    tensors: Mapping[str, Tensor | TensorShard]
    """By names that begin with the part of the training that each belongs to."""
    values: Mapping[str, Any]
    """What can be written as JSON and is equal when it is read: dicts with strings as keys, lists, numbers, strings."""

    @classmethod
    def of(cls, parts: Mapping[str, Mapping[str, Tensor | TensorShard]], values: Mapping[str, Any]) -> "Snapshot":
        """The tensors of several parts, each under its name. `Stored.under` takes them apart again."""
        for part in parts:
            if "." in part:
                raise checks.wrong("parts", "of names without a dot", f"with {part!r}")
        return cls({f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()},
                   values)


def optimizer_state(optimiser: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The state of Adam or AdamW by the names of its parameters.

    A parameter that never had a gradient has the state that its first step would begin with.
    """
    state: dict[str, Tensor] = {}
    for name, parameter, group in _optimizer_parameters(optimiser, parameters):
        own = optimiser.state.get(parameter) or _initial_state(parameter, group)
        state |= {f"{ours}.{name}": own[theirs].detach() for ours, theirs in MOMENTS.items()}
        state[f"{STEP_KEY}.{name}"] = own[STEP_KEY].detach()
    return state


def optimizer_templates(optimiser: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """For each tensor of the state one of the same shape, shared among processes in the same way: the parameter."""
    return {f"{ours}.{name}": parameter.detach() for name, parameter, _ in _optimizer_parameters(optimiser, parameters)
            for ours in MOMENTS}


@torch.no_grad()
def restore_optimizer(optimiser: Optimizer, parameters: Mapping[str, nn.Parameter],
                     tensors: Mapping[str, Tensor]) -> None:
    """Go on with a stored state. A state that is there already is written over in its place, so that graphs stay valid.

    Names, shapes, dtypes and the way of sharing must be those of this optimiser; otherwise nothing is changed.
    """
    named = list(_optimizer_parameters(optimiser, parameters))
    fresh = {name: optimiser.state.get(parameter) or _initial_state(parameter, group) for name, parameter, group in named}
    wanted = {f"{ours}.{name}": own[theirs] for name, own in fresh.items()
              for ours, theirs in (*MOMENTS.items(), (STEP_KEY, STEP_KEY))}
    kind = type(optimiser).__name__
    weights.check_specs(weights.tensor_specs(wanted), weights.tensor_specs(tensors), origin="tensors", owner=kind)
    for name, tensor in tensors.items():
        if tensor.dtype != wanted[name].dtype:
            raise checks.wrong(f"tensors[{name!r}]", str(wanted[name].dtype), str(tensor.dtype))
        if _placements(tensor) != _placements(wanted[name]):
            raise checks.wrong(f"tensors[{name!r}]", f"shared as {_placements(wanted[name])}", str(_placements(tensor)),
                               "Give `optimiser_like` to `under`, which reads the part that is needed here.")
    for name, tensor in tensors.items():
        wanted[name].copy_(tensor)
    for name, parameter, _ in named:
        optimiser.state[parameter] = fresh[name]


def _optimizer_parameters(optimiser: Optimizer,
           parameters: Mapping[str, nn.Parameter]) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
    """The parameters of the optimiser with their names and groups."""
    if not isinstance(optimiser, Adam | AdamW):
        raise checks.wrong("optimiser", "an Adam or AdamW of torch", *checks.kind(optimiser))
    names = {parameter: name for name, parameter in parameters.items()}
    for group in optimiser.param_groups:
        if group["amsgrad"]:
            raise checks.wrong("optimiser", "one without amsgrad", "one with it")
        for parameter in group["params"]:
            if parameter not in names:
                raise checks.wrong("parameters", "all those of the optimiser",
                                   f"without one of shape {checks.shape(parameter)}")
            yield names[parameter], parameter, group


def _initial_state(parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state before the first step, as torch makes it: its count is on the device where kernels read it there."""
    wide = not group["fused"] and torch.get_default_dtype() == torch.float64
    step = torch.zeros((), dtype=torch.float64 if wide else torch.float32,
                       device=parameter.device if group["fused"] or group["capturable"] else "cpu")
    return {STEP_KEY: step} | {theirs: torch.zeros_like(parameter.detach()) for theirs in MOMENTS.values()}


def _placements(tensor: Tensor) -> object:
    """How a tensor is shared among processes; None for a plain one."""
    return getattr(tensor, "placements", None)


# ---- state: The state of an engine as a snapshot, and back: all that the next step depends on, and nothing else.
#
#     model.*          parameters and buffers
#     average.*        the mean of the parameters
#     optimiser.*      the moments of every parameter
#     carried.*        what the objective keeps from step to step; of several processes each has some rows of it
#     engine.sums      what was counted and not told yet
#
# Everything is compared before anything is taken in: the state of another model changes nothing. It knows names and
# tensors. Files are not its business.

CARRIED = "carried"
"""The part that is not known before the first step, and so cannot be compared."""


def take_snapshot(engine: TrainingEngine, values: Mapping[str, Any]) -> Snapshot:
    """The state of an engine now, with values beside it."""
    carried = {name: _carried_shard(tensor, engine.processes) for name, tensor in engine.objective.carried().items()}
    return Snapshot.of({**_engine_tensors(engine), CARRIED: carried}, values)


@torch.no_grad()
def restore_snapshot(engine: TrainingEngine, stored: StoredState) -> None:
    """Take in a stored state."""
    own = {f"{part}.{name}": entry for part, tensors in _engine_tensors(engine).items()
           for name, entry in modules.tensor_specs(tensors).items()}
    there = {name: entry for name, entry in stored.tensors.items() if not name.startswith(f"{CARRIED}.")}
    modules.check_specs(own, there, origin="the checkpoint", owner="the training")
    weights = _model_tensors(engine)
    found = stored.under("model", like=weights)
    if engine.average is not None:
        engine.average.resume(stored.under("average", like=engine.average.state()))
    like = optimizer_templates(engine.optimiser, engine.names)
    moments = stored.under("optimiser", like=like)
    restore_optimizer(engine.optimiser, engine.names, {name: tensor.to(engine.device)
                                                      for name, tensor in moments.items()})
    for name, tensor in weights.items():
        tensor.copy_(found[name])
    engine.objective.resume({name: _own_rows(tensor, engine.processes).to(engine.device)
                             for name, tensor in stored.under(CARRIED).items()})
    engine.sums.copy_(stored.tensor("engine.sums"))


def _engine_tensors(engine: TrainingEngine) -> dict[str, Mapping[str, Tensor]]:
    """All tensors but those that are carried, by the part of the training that they belong to."""
    average = {} if engine.average is None else {"average": engine.average.state()}
    return {"model": _model_tensors(engine), "optimiser": optimizer_state(engine.optimiser, engine.names),
            "engine": {"sums": engine.sums}, **average}


def _model_tensors(engine: TrainingEngine) -> dict[str, Tensor]:
    """Parameters and buffers of the model, those with two names under the first alone."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in engine.objective.model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


def _carried_shard(tensor: Tensor, processes: DistributedContext) -> Tensor | TensorShard:
    """What this process carries, as a part of what all carry: the rows of the text are shared out in their order."""
    if processes.count == 1:
        return tensor
    rows = processes.sum(len(tensor))
    first = processes.rank * rows // processes.count
    return TensorShard(tensor, (rows, *tensor.shape[1:]), (first, *[0] * (tensor.dim() - 1)))


def _own_rows(tensor: Tensor, processes: DistributedContext) -> Tensor:
    """The rows of this process."""
    rows = len(tensor)
    return tensor[processes.rank * rows // processes.count:(processes.rank + 1) * rows // processes.count]
