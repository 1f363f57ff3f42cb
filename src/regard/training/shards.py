"""Tensors that lie in parts on several processes: written by each for itself, read by any number of them.

    part_of(tensor)                     what this process holds of a tensor, and where that lies in the whole
    write(path, tensors)                a file of safetensors with whole tensors and parts
    Stored.of(paths, values)            all such files of one state, known and found complete before a number is read
    stored.tensor(name)                 the whole tensor, put together
    stored.part(name, offsets, shape)   a piece of it, of which only the bytes that are needed are read
    stored.under("model", like=...)     all tensors of one part of a training, shared as those of `like` are

A file tells of its parts in its own header, in JSON: nothing else must be kept in step with it, and nothing is pickled.
A tensor is cut along one dimension at most, as FSDP cuts it. It does not know steps, folders or optimisers.
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

from regard import checks
from regard._version import __version__
from regard.storage import weights
from regard.storage.weights import Entry

PARTS = "regard.parts"
"""The key of the metadata that tells of the tensors that are parts, as JSON {name: {"shape": ..., "offsets": ...}}."""
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Part:
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


class Piece(NamedTuple):
    """Where in which file a part of a tensor is."""

    path: Path
    key: str
    offsets: Sizes
    shape: Sizes


def part_of(tensor: Tensor) -> Tensor | Part:
    """What this process holds of a tensor: all of it, unless it is shared among processes in one row."""
    if not _is_shared(tensor):
        return tensor
    from torch.distributed.tensor import Replicate, Shard

    mesh, (placement, *more) = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    local: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    if not more and type(placement) is Replicate:
        return local
    if more or type(placement) is not Shard:
        raise checks.wrong("tensor", "one that is whole, or cut along one dimension", f"one with {(placement, *more)}")
    shape = tuple(tensor.shape)
    offsets, extent = chunk(shape, placement.dim, mesh.get_local_rank(), mesh.size())
    if tuple(local.shape) != extent:
        raise checks.wrong("tensor", f"cut into chunks, here of shape {extent}", f"of shape {checks.shape(local)} here")
    return Part(local, shape, offsets)


def chunk(shape: Sizes, dimension: int, rank: int, processes: int) -> tuple[Sizes, Sizes]:
    """Offsets and shape of what a process has of a tensor: chunks of one size, the last ones smaller or empty."""
    size = shape[dimension]
    each = math.ceil(size / processes)
    start, end = min(rank * each, size), min((rank + 1) * each, size)
    offsets = tuple(start if number == dimension else 0 for number in range(len(shape)))
    return offsets, (*shape[:dimension], end - start, *shape[dimension + 1:])


def write(path: Path, tensors: Mapping[str, Tensor | Part]) -> None:
    """Write what one process holds."""
    parts = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Part)}
    about = {name: {"shape": part.shape, "offsets": part.offsets} for name, part in parts.items()}
    plain = {name: tensor.tensor if isinstance(tensor, Part) else tensor for name, tensor in tensors.items()}
    weights.write(path, plain, {"regard": __version__, PARTS: json.dumps(about)})


@dataclass(frozen=True)
class Stored:
    """A state in files. Its tensors are read when they are asked for, into memory of their own on the CPU."""

    values: Mapping[str, Any]
    tensors: Mapping[str, Entry]
    """The dtype and the whole shape of each."""
    pieces: Mapping[str, Sequence[Piece]]

    @classmethod
    def of(cls, paths: Sequence[Path], values: Mapping[str, Any]) -> "Stored":
        """What these files hold together; a ValueError where one is damaged, or a part of a tensor is in none."""
        entries: dict[str, Entry] = {}
        pieces: dict[str, list[Piece]] = {}
        for path in paths:
            for name, whole, piece in _described(path):
                if entries.setdefault(name, whole) != whole:
                    raise checks.wrong(f"{path}: {name}", f"a part of {entries[name]}", f"one of {whole}")
                pieces.setdefault(name, []).append(piece)
        for name, whole in entries.items():
            _check_complete(name, whole.shape, pieces[name])
        return cls(values, entries, pieces)

    def tensor(self, name: str) -> Tensor:
        """The whole tensor of this name."""
        return self._whole(name, _Files())

    def part(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """The piece of this shape that begins at these offsets."""
        return self._part(name, offsets, shape, _Files())

    def like(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor of this name, on the device of another and shared among processes in the same way."""
        return self._like(name, tensor, _Files())

    def under(self, prefix: str, like: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """All tensors of a part of the training, by their names in it: "model.bias" is "bias" under "model".

        Those that are also in `like` come as `Stored.like` gives them, the others whole and on the CPU.
        """
        files, models = _Files(), like or {}
        found = {name.removeprefix(f"{prefix}."): name for name in self.tensors if name.startswith(f"{prefix}.")}
        return {short: self._like(name, models[short], files) if short in models else self._whole(name, files)
                for short, name in found.items()}

    def _whole(self, name: str, files: "_Files") -> Tensor:
        shape = self._entry(name).shape
        return self._part(name, (0,) * len(shape), shape, files)

    def _part(self, name: str, offsets: Sequence[int], shape: Sequence[int], files: "_Files") -> Tensor:
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

    def _like(self, name: str, tensor: Tensor, files: "_Files") -> Tensor:
        whole = self._entry(name).shape
        if whole != tuple(tensor.shape):
            raise checks.wrong(name, f"of shape {checks.shape(tensor)}", f"of shape {whole}")
        own = part_of(tensor)
        if isinstance(own, Part):
            local = self._part(name, own.offsets, own.tensor.shape, files)
        else:
            local = self._whole(name, files)
        local = local.to(tensor.device)
        if not _is_shared(tensor):
            return local
        from torch.distributed.tensor import DTensor

        mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride())

    def _entry(self, name: str) -> Entry:
        if name not in self.tensors:
            raise checks.wrong("name", f"that of one of the {len(self.tensors)} tensors that are stored", repr(name),
                               checks.nearest(name, self.tensors))
        return self.tensors[name]


class _Files:
    """Files that are opened once for many readings."""

    def __init__(self) -> None:
        self._opened: dict[Path, Any] = {}

    def read(self, piece: Piece, where: tuple[slice, ...], goal: Tensor) -> None:
        """Copy what is there in the piece to its goal."""
        try:
            if piece.path not in self._opened:
                self._opened[piece.path] = safe_open(piece.path, framework="pt", device="cpu")
            goal.copy_(self._opened[piece.path].get_slice(piece.key)[where])
        except (SafetensorError, OSError) as error:
            raise checks.wrong(str(piece.path), "the file that it was", f"not ({error})",
                               "A checkpoint must be read before it is removed.") from None


def _described(path: Path) -> Iterator[tuple[str, Entry, Piece]]:
    """Of every tensor in a file its name, what the whole is, and the piece that is here."""
    header = weights.header(path)
    try:
        parts = {name: (tuple(map(int, part["shape"])), tuple(map(int, part["offsets"])))
                 for name, part in json.loads(header.metadata.get(PARTS, "{}")).items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise checks.wrong(str(path), f'a file whose metadata "{PARTS}" tells of parts', "one with other") from None
    for name, entry in header.tensors.items():
        whole, offsets = parts.get(name, (entry.shape, (0,) * len(entry.shape)))
        if not _within(offsets, entry.shape, whole):
            raise checks.wrong(f"{path}: {name}", f"a part of {whole}", f"{entry.shape} at {offsets}")
        yield name, Entry(entry.dtype, whole), Piece(path, header.aliases.get(name, name), offsets, entry.shape)


def _check_complete(name: str, whole: Sizes, pieces: Sequence[Piece]) -> None:
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


def _is_shared(tensor: Tensor) -> bool:
    """Whether it is a tensor of several processes. Only one that is not plain is worth the time of that import."""
    if type(tensor) in (Tensor, nn.Parameter):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)
