"""The state of a training as named tensors and JSON values: taken from the engine, stored in shards, restored.

    take_snapshot(engine, values)             a Snapshot of all that the next step depends on:
        model.*          parameters and buffers
        average.*        the EMA of the parameters
        optimiser.*      "first.<parameter>", "second.<parameter>", "step.<parameter>"
        carried.*        the state that the objective keeps from step to step; each process has some rows of it
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
from regard.storage.weights import TensorSpec
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine

SHARDS_KEY = "regard.parts"
"""The metadata key of a file that describes its shards, as JSON {name: {"shape": ..., "offsets": ...}}."""
MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}
"""The moments of Adam: names in a checkpoint, and torch's."""
STEP_KEY = "step"
CARRIED = "carried"
"""The part whose tensors are not known before the first step, and so cannot be compared."""
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class TensorShard:
    """The shard of a tensor that one process holds."""

    tensor: Tensor
    shape: Sizes
    """The shape of the whole tensor."""
    offsets: Sizes
    """The position of the shard in the whole tensor."""

    def __post_init__(self) -> None:
        if not _within(self.offsets, tuple(self.tensor.shape), self.shape):
            got = f"of shape {checks.shape(self.tensor)} at {self.offsets}"
            raise checks.wrong("tensor", f"a shard of a tensor of shape {self.shape}", got)


@dataclass(frozen=True)
class Snapshot:
    """The present state of a training. The tensors are not copied: store them before the next step."""

    tensors: Mapping[str, Tensor | TensorShard]
    """By names that start with the part of the training that each belongs to."""
    values: Mapping[str, Any]
    """JSON that is equal when it is read again: dicts with strings as keys, lists, numbers, strings."""

    @classmethod
    def of(cls, parts: Mapping[str, Mapping[str, Tensor | TensorShard]], values: Mapping[str, Any]) -> "Snapshot":
        """The tensors of several parts, each with its name as a prefix. `StoredState.under` separates them again."""
        for part in parts:
            if "." in part:
                raise checks.wrong("parts", "of names without a dot", f"with {part!r}")
        return cls({f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()},
                   values)


def take_snapshot(engine: TrainingEngine, values: Mapping[str, Any]) -> Snapshot:
    """The present state of an engine, with these values."""
    carried = {name: _carried_shard(tensor, engine.processes) for name, tensor in engine.objective.carried().items()}
    return Snapshot.of({**_engine_tensors(engine), CARRIED: carried}, values)


@torch.no_grad()
def restore_snapshot(engine: TrainingEngine, stored: "StoredState") -> None:
    """Restore a stored state; that of another model is refused and changes nothing."""
    own = {f"{part}.{name}": spec for part, tensors in _engine_tensors(engine).items()
           for name, spec in weights.tensor_specs(tensors).items()}
    found = {name: spec for name, spec in stored.tensors.items() if not name.startswith(f"{CARRIED}.")}
    weights.check_specs(own, found, origin="the checkpoint", owner="the training")
    parameters = _model_tensors(engine)
    values = stored.under("model", like=parameters)
    if engine.ema is not None:
        engine.ema.resume(stored.under("average", like=engine.ema.state()))
    moments = stored.under("optimiser", like=optimizer_templates(engine.optimizer, engine.named_parameters))
    restore_optimizer(engine.optimizer, engine.named_parameters,
                      {name: tensor.to(engine.device) for name, tensor in moments.items()})
    for name, tensor in parameters.items():
        tensor.copy_(values[name])
    engine.objective.resume({name: _own_rows(tensor, engine.processes).to(engine.device)
                             for name, tensor in stored.under(CARRIED).items()})
    engine.sums.copy_(stored.tensor("engine.sums"))


def _engine_tensors(engine: TrainingEngine) -> dict[str, Mapping[str, Tensor]]:
    """All tensors except the carried ones, by the part of the training that they belong to."""
    ema = {} if engine.ema is None else {"average": engine.ema.state()}
    return {"model": _model_tensors(engine), "optimiser": optimizer_state(engine.optimizer, engine.named_parameters),
            "engine": {"sums": engine.sums}, **ema}


def _model_tensors(engine: TrainingEngine) -> dict[str, Tensor]:
    """Parameters and buffers of the model; tied ones under their first name alone."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in engine.objective.model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


def _carried_shard(tensor: Tensor, processes: DistributedContext) -> Tensor | TensorShard:
    """The rows of this process as a shard of those of all processes, in the order of their ranks."""
    if processes.count == 1:
        return tensor
    rows = processes.sum(len(tensor))
    first = processes.rank * rows // processes.count
    return TensorShard(tensor, (rows, *tensor.shape[1:]), (first, *[0] * (tensor.dim() - 1)))


def _own_rows(tensor: Tensor, processes: DistributedContext) -> Tensor:
    """The rows of this process."""
    rows = len(tensor)
    return tensor[processes.rank * rows // processes.count:(processes.rank + 1) * rows // processes.count]


def optimizer_state(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The state of Adam or AdamW by the names of its parameters, which torch only numbers.

    A parameter that never had a gradient has the state that its first step would start with.
    """
    state: dict[str, Tensor] = {}
    for name, parameter, group in _optimizer_parameters(optimizer, parameters):
        own = optimizer.state.get(parameter) or _initial_state(parameter, group)
        state |= {f"{ours}.{name}": own[theirs].detach() for ours, theirs in MOMENTS.items()}
        state[f"{STEP_KEY}.{name}"] = own[STEP_KEY].detach()
    return state


def optimizer_templates(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """For each moment a tensor of the same shape and sharding: the parameter."""
    return {f"{ours}.{name}": parameter.detach() for name, parameter, _ in _optimizer_parameters(optimizer, parameters)
            for ours in MOMENTS}


@torch.no_grad()
def restore_optimizer(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter],
                      tensors: Mapping[str, Tensor]) -> None:
    """Restore a stored state. Existing tensors are overwritten in place, so that CUDA graphs stay valid.

    Names, shapes, dtypes and sharding must be those of this optimizer; otherwise nothing is changed, unlike torch's
    `load_state_dict`, which accepts any shape.
    """
    named = list(_optimizer_parameters(optimizer, parameters))
    states = {name: optimizer.state.get(parameter) or _initial_state(parameter, group)
              for name, parameter, group in named}
    expected = {f"{ours}.{name}": state[theirs] for name, state in states.items()
                for ours, theirs in (*MOMENTS.items(), (STEP_KEY, STEP_KEY))}
    weights.check_specs(weights.tensor_specs(expected), weights.tensor_specs(tensors), origin="`tensors`",
                        owner=f"the {type(optimizer).__name__}")
    for name, tensor in tensors.items():
        if tensor.dtype != expected[name].dtype:
            raise checks.wrong(f"tensors[{name!r}]", str(expected[name].dtype), str(tensor.dtype))
        if _placements(tensor) != _placements(expected[name]):
            raise checks.wrong(f"tensors[{name!r}]", f"sharded as {_placements(expected[name])}",
                               str(_placements(tensor)),
                               "Pass `optimizer_templates` to `under`, which reads the shard that is needed here.")
    for name, tensor in tensors.items():
        expected[name].copy_(tensor)
    for name, parameter, _ in named:
        optimizer.state[parameter] = states[name]


def _optimizer_parameters(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
                          ) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
    """The parameters of the optimizer with their names and groups."""
    if not isinstance(optimizer, Adam | AdamW):
        raise checks.wrong("optimizer", "an Adam or AdamW of torch", *checks.kind(optimizer))
    names = {parameter: name for name, parameter in parameters.items()}
    for group in optimizer.param_groups:
        if group["amsgrad"]:
            raise checks.wrong("optimizer", "one without amsgrad", "one with it")
        for parameter in group["params"]:
            if parameter not in names:
                raise checks.wrong("parameters", "all those of the optimizer",
                                   f"without one of shape {checks.shape(parameter)}")
            yield names[parameter], parameter, group


def _initial_state(parameter: nn.Parameter, group: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state before the first step, as torch makes it: the step is on the device if fused kernels read it there."""
    wide = not group["fused"] and torch.get_default_dtype() == torch.float64
    step = torch.zeros((), dtype=torch.float64 if wide else torch.float32,
                       device=parameter.device if group["fused"] or group["capturable"] else "cpu")
    return {STEP_KEY: step} | {theirs: torch.zeros_like(parameter.detach()) for theirs in MOMENTS.values()}


def _placements(tensor: Tensor) -> object:
    """The placements of a DTensor; None for a plain tensor."""
    return getattr(tensor, "placements", None)


def local_shard(tensor: Tensor) -> Tensor | TensorShard:
    """The shard of a DTensor on this process; a plain or replicated tensor itself."""
    if not _is_dtensor(tensor):
        return tensor
    from torch.distributed.tensor import Replicate, Shard

    mesh, (placement, *more) = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    local: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    if not more and type(placement) is Replicate:
        return local
    if more or type(placement) is not Shard:
        raise checks.wrong("tensor", "whole, or sharded along one dimension", f"one with {(placement, *more)}")
    shape = tuple(tensor.shape)
    offsets, extent = chunk_bounds(shape, placement.dim, mesh.get_local_rank(), mesh.size())
    if tuple(local.shape) != extent:
        raise checks.wrong("tensor", f"in equal chunks, here of shape {extent}", f"of shape {checks.shape(local)} here")
    return TensorShard(local, shape, offsets)


def _is_dtensor(tensor: Tensor) -> bool:
    if type(tensor) in (Tensor, nn.Parameter):  # most are plain, and the import takes time
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def chunk_bounds(shape: Sizes, dimension: int, rank: int, processes: int) -> tuple[Sizes, Sizes]:
    """Offsets and shape of a process's chunk: chunks have one size, the last ones may be smaller or empty."""
    size = shape[dimension]
    each = math.ceil(size / processes)
    start, end = min(rank * each, size), min((rank + 1) * each, size)
    offsets = tuple(start if number == dimension else 0 for number in range(len(shape)))
    return offsets, (*shape[:dimension], end - start, *shape[dimension + 1:])


def write_shards(path: Path, tensors: Mapping[str, Tensor | TensorShard]) -> None:
    """Write the tensors and shards of one process."""
    shards = {name: {"shape": shard.shape, "offsets": shard.offsets} for name, shard in tensors.items()
              if isinstance(shard, TensorShard)}
    plain = {name: tensor.tensor if isinstance(tensor, TensorShard) else tensor for name, tensor in tensors.items()}
    weights.write_tensors(path, plain, {"regard": __version__, SHARDS_KEY: json.dumps(shards)})


class ShardLocation(NamedTuple):
    """A shard in a file."""

    path: Path
    key: str
    offsets: Sizes
    shape: Sizes


@dataclass(frozen=True)
class StoredState:
    """A state in files. Its tensors are read on demand, to the CPU."""

    values: Mapping[str, Any]
    tensors: Mapping[str, TensorSpec]
    """Dtype and whole shape of each tensor."""
    shards: Mapping[str, Sequence[ShardLocation]]

    @classmethod
    def of(cls, paths: Sequence[Path], values: Mapping[str, Any]) -> "StoredState":
        """The state in these files. A ValueError says which is damaged, or which shard is missing."""
        specs: dict[str, TensorSpec] = {}
        shards: dict[str, list[ShardLocation]] = {}
        for path in paths:
            for name, whole, shard in _describe_file(path):
                if specs.setdefault(name, whole) != whole:
                    raise checks.wrong(f"{path}: {name}", f"a shard of {specs[name]}", f"one of {whole}")
                shards.setdefault(name, []).append(shard)
        for name, whole in specs.items():
            _check_complete(name, whole.shape, shards[name])
        return cls(values, specs, shards)

    def tensor(self, name: str, files: "_ShardFiles | None" = None) -> Tensor:
        """The whole tensor of this name."""
        shape = self._spec(name).shape
        return self.part(name, (0,) * len(shape), shape, files)

    def part(self, name: str, offsets: Sequence[int], shape: Sequence[int],
             files: "_ShardFiles | None" = None) -> Tensor:
        """The part of a tensor of this shape at these offsets."""
        dtype, whole = self._spec(name)
        files = files or _ShardFiles()
        if not _within(offsets, shape, whole):
            raise checks.wrong("shape", f"within {name!r}, which is of shape {whole}",
                               f"{tuple(shape)} at {tuple(offsets)}")
        result = torch.empty(tuple(shape), dtype=dtype)
        for shard in self.shards[name]:
            spans = [(max(first, other), min(first + size, other + others)) for first, size, other, others
                     in zip(offsets, shape, shard.offsets, shard.shape, strict=True)]
            if all(start < end for start, end in spans):
                files.read(shard, _slices(spans, shard.offsets), result[_slices(spans, offsets)])
        return result

    def like(self, name: str, tensor: Tensor, files: "_ShardFiles | None" = None) -> Tensor:
        """The tensor of this name, on the device of another and sharded in the same way."""
        whole = self._spec(name).shape
        if whole != tuple(tensor.shape):
            raise checks.wrong(name, f"of shape {checks.shape(tensor)}", f"of shape {whole}")
        own = local_shard(tensor)
        if isinstance(own, TensorShard):
            local = self.part(name, own.offsets, own.tensor.shape, files)
        else:
            local = self.tensor(name, files)
        local = local.to(tensor.device)
        if not _is_dtensor(tensor):
            return local
        from torch.distributed.tensor import DTensor

        mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride())

    def under(self, prefix: str, like: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """All tensors of a part of the training, by their names in it: "model.bias" is "bias" under "model".

        Those that are also in `like` come as `StoredState.like` returns them, the others whole and on the CPU.
        """
        files, templates = _ShardFiles(), like or {}
        found = {name.removeprefix(f"{prefix}."): name for name in self.tensors if name.startswith(f"{prefix}.")}
        return {short: self.like(name, templates[short], files) if short in templates else self.tensor(name, files)
                for short, name in found.items()}

    def _spec(self, name: str) -> TensorSpec:
        if name not in self.tensors:
            raise checks.wrong("name", f"that of one of the {len(self.tensors)} stored tensors", repr(name),
                               checks.nearest(name, self.tensors))
        return self.tensors[name]


class _ShardFiles:
    """Files that are opened once for several reads."""

    def __init__(self) -> None:
        self._opened: dict[Path, Any] = {}

    def read(self, shard: ShardLocation, where: tuple[slice, ...], target: Tensor) -> None:
        """Copy a part of a shard into `target`."""
        try:
            if shard.path not in self._opened:
                self._opened[shard.path] = safe_open(shard.path, framework="pt", device="cpu")
            target.copy_(self._opened[shard.path].get_slice(shard.key)[where])
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{shard.path}: This file of a checkpoint cannot be read any more ({error}). A checkpoint "
                             "must be read before it is removed.") from None


def _describe_file(path: Path) -> Iterator[tuple[str, TensorSpec, ShardLocation]]:
    """For every tensor in a file its name, the whole tensor's dtype and shape, and the shard in this file."""
    header = weights.read_header(path)
    try:
        shards = {name: (tuple(map(int, shard["shape"])), tuple(map(int, shard["offsets"])))
                  for name, shard in json.loads(header.metadata.get(SHARDS_KEY, "{}")).items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f'{path}: The file is damaged: "{SHARDS_KEY}" in its metadata does not describe '
                         'shards.') from None
    for name, spec in header.tensors.items():
        whole, offsets = shards.get(name, (spec.shape, (0,) * len(spec.shape)))
        if not _within(offsets, spec.shape, whole):
            raise ValueError(f"{path}: The file is damaged: a shard of {name} has the shape {spec.shape} at {offsets}, "
                             f"which is not inside of {whole}.")
        shard = ShardLocation(path, header.aliases.get(name, name), offsets, spec.shape)
        yield name, TensorSpec(spec.dtype, whole), shard


def _check_complete(name: str, whole: Sizes, shards: Sequence[ShardLocation]) -> None:
    """Refuse shards that do not make up the whole tensor, or that overlap."""
    split = {number for shard in shards for number, size in enumerate(shard.shape) if size != whole[number]}
    if not split and (len(shards) == 1 or 0 in whole):
        return
    if len(split) == 1:
        number = split.pop()
        spans = sorted((shard.offsets[number], shard.offsets[number] + shard.shape[number]) for shard in shards)
        if [start for start, _ in spans] + [whole[number]] == [0] + [end for _, end in spans]:
            return
    found = "; ".join(f"{shard.shape} at {shard.offsets} in {shard.path}" for shard in shards[:8])
    raise ValueError(f"The shards of {name} do not make up a tensor of shape {whole}, split along one dimension: "
                     f"{found}.")


def _slices(spans: Sequence[tuple[int, int]], offsets: Sequence[int]) -> tuple[slice, ...]:
    """Spans of the whole tensor as slices of a part at these offsets."""
    return tuple(slice(start - first, end - first) for (start, end), first in zip(spans, offsets, strict=True))


def _within(offsets: Sequence[int], shape: Sequence[int], whole: Sequence[int]) -> bool:
    return len(offsets) == len(shape) == len(whole) and all(
        first >= 0 and size >= 0 and first + size <= limit
        for first, size, limit in zip(offsets, shape, whole, strict=True))
