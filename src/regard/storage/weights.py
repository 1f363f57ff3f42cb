"""Weights: safetensors files, and the tensors of a file loaded into a module.

Additions to the safetensors library: a tensor with two names is stored once and read back as one tensor; the file is
fsynced, has the permissions of the umask, and is written completely or not at all; tensors that are read are copies,
not views of the file; errors name the file. Pickles are never opened, because reading one runs the code in it.

Loading is strict: all tensors, with the right shapes, or none. All mismatches are reported at once, with the nearest
name where one is close. The check needs only dtypes and shapes, so a file can be compared with a module on the device
"meta" before anything is allocated.

This module does not know which model it fills, nor folders.
"""

import errno
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from regard import checks
from regard.checks import plural
from regard.storage import filesystem

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64, "BOOL": torch.bool,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
}
ALIASES_KEY = "regard.aliases"
"""The metadata key of the aliases of tensors, as JSON {alias: stored name}."""
PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
# How pickles begin: those of torch.save (a zip archive, or protocol 2), of later protocols, and the old text forms.
PICKLE_START = re.compile(rb"PK\x03\x04|\x80[\x02-\x05]|\([dl]p\d|\(?[ci][\w.]+\n[\w.]+\n|[\]}]q\x00")


class TensorSpec(NamedTuple):
    """The dtype and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WeightsHeader:
    """The content of a file, known before any tensor is read."""

    tensors: Mapping[str, TensorSpec]
    """All tensors, including aliases."""
    aliases: Mapping[str, str]
    """Further names of tensors that are stored once: {alias: stored name}."""
    metadata: Mapping[str, str]

    @property
    def elements(self) -> int:
        """The number of stored elements."""
        return sum(math.prod(entry.shape) for name, entry in self.tensors.items() if name not in self.aliases)


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor],
                  metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a file, completely or not at all.

    Tensors that are the same view of one storage are stored once. Tensors that only overlap are each stored in full.
    """
    path, metadata = Path(path), dict(metadata or {})
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise _pickle_error(path)
    _check_metadata(metadata)
    first: dict[object, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
        kept = first.setdefault(storage_key(tensor), name)
        if kept != name:
            aliases[name] = kept
    stored = _separate_storages({name: tensors[name] for name in first.values()})
    if aliases:
        metadata[ALIASES_KEY] = json.dumps(aliases)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        _write_part(part, stored, metadata)
        os.replace(part, path)
        filesystem.fsync(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            part.unlink()


def read_header(path: str | os.PathLike[str]) -> WeightsHeader:
    """The header of a file; a ValueError if the file is truncated, damaged or not safetensors."""
    path = _checked_path(Path(path))
    try:
        with safe_open(path, framework="np") as file:  # not "pt", which reserves memory for the whole file
            slices = {name: file.get_slice(name) for name in list(file.keys())}
            codes = {name: (slice.get_dtype(), tuple(slice.get_shape())) for name, slice in slices.items()}
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise _unreadable_error(path, error) from None
    for name, (code, _) in codes.items():
        if code not in DTYPES:
            raise ValueError(f"{path}: the tensor {name!r:.80} has the dtype {code}, which regard cannot read. "
                             f"Supported: {', '.join(DTYPES)}.")
    tensors = {name: TensorSpec(DTYPES[code], shape) for name, (code, shape) in codes.items()}
    aliases = _read_aliases(path, metadata.pop(ALIASES_KEY, "{}"), tensors)
    tensors |= {alias: tensors[kept] for alias, kept in aliases.items()}
    return WeightsHeader(tensors, aliases, metadata)


def read_tensors(path: str | os.PathLike[str], *, device: str | torch.device = "cpu",
                 names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Read the tensors of the file onto this device. An alias is the same tensor object as its original.

    Args:
        names: the tensors to read; all by default. Names that the file does not have are left out.
    """
    path, about = Path(path), read_header(path)
    chosen = [name for name in about.tensors if names is None or name in names]
    originals = {about.aliases.get(name, name) for name in chosen}
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in about.tensors:
                if name in originals:
                    # On a CPU the library returns a view of the mapped file, which changes when the file does.
                    tensors[name] = file.get_tensor(name).to(device, copy=True)
    except (SafetensorError, OSError) as error:
        raise _unreadable_error(path, error) from None
    return {name: tensors[about.aliases.get(name, name)] for name in chosen}


def storage_key(tensor: Tensor) -> object:
    """A key that is equal for two tensors exactly if they are the same view of the same storage."""
    if tensor.is_meta or tensor.numel() == 0:
        return id(tensor)
    storage = (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset())
    return *storage, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _separate_storages(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, each contiguous and in its own storage: the library refuses tensors that share one."""
    apart: dict[str, Tensor] = {}
    taken: set[object] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().resolve_conj().resolve_neg()
        storage = (plain.device, plain.untyped_storage().data_ptr())
        alone = storage not in taken and plain.is_contiguous()
        apart[name] = plain if alone else plain.clone(memory_format=torch.contiguous_format)
        taken.add(storage)
    return apart


def _write_part(part: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    # The library creates files that only their owner may read. A file created normally shows the mode of the umask.
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    mode = os.fstat(handle).st_mode & 0o777
    os.close(handle)
    try:
        save_file(tensors, part, metadata=metadata or None)  # with empty metadata and no tensors its file is invalid
    except SafetensorError as error:
        code = re.search(r"(?:os error|code:) (\d+)", str(error))
        number = int(code[1]) if code else errno.EIO
        raise OSError(number, os.strerror(number) if code else str(error)) from error
    _sort_metadata(part)
    part.chmod(mode)
    filesystem.fsync(part)


def _sort_metadata(part: Path) -> None:
    """Sort the metadata keys, whose order the library leaves open, so that equal content has equal bytes."""
    with part.open("rb+") as file:
        length = int.from_bytes(file.read(8), "little")
        written = file.read(length)
        found = json.loads(written)
        if len(found.get("__metadata__", {})) > 1:
            found["__metadata__"] = dict(sorted(found["__metadata__"].items()))
            ordered = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode().ljust(length)
            if len(ordered) == length:  # only the order has changed
                file.seek(8)
                file.write(ordered)


def _check_tensor(name: object, tensor: object) -> None:
    if not isinstance(name, str) or name == "__metadata__":
        raise checks.wrong("tensors", 'named by strings other than "__metadata__"', f"with the name {name!r}")
    if not isinstance(tensor, Tensor):
        raise checks.wrong(f"tensors[{name!r}]", "a tensor", *checks.kind(tensor))
    if tensor.is_meta:
        raise checks.wrong(f"tensors[{name!r}]", "a tensor with values", 'on the device "meta"')
    if tensor.layout != torch.strided or tensor.dtype not in DTYPES.values():
        got = f"{tensor.dtype} and {tensor.layout}"
        raise checks.wrong(f"tensors[{name!r}]", f"dense, of dtypes among {', '.join(DTYPES)}", got)


def _check_metadata(metadata: Mapping[Any, Any]) -> None:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str) or key == ALIASES_KEY:
            expected = f'strings by strings other than "{ALIASES_KEY}"'
            raise checks.wrong("metadata", expected, f"{key!r:.80}: {value!r:.80}")


def _checked_path(path: Path) -> Path:
    """The path, if it is a regular file whose name is not that of a pickle."""
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise _pickle_error(path)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}.") from None
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path}: this is {'a folder' if stat.S_ISDIR(mode) else 'a pipe, a socket or a device'}, not "
                         "a safetensors file.")
    return path


def _pickle_error(path: Path) -> ValueError:
    return ValueError(f"{path}: a {path.suffix} file is a pickle. Loading a pickle runs the code in it, so regard "
                      "never opens one. Convert the weights to safetensors.")


def _unreadable_error(path: Path, error: SafetensorError | OSError) -> ValueError:
    """The error for a file that the library cannot read; its first bytes only serve to say what it is."""
    size, start = 0, b""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(256)
    except OSError as reason:
        return ValueError(f"{path}: cannot be read: {reason.strerror}.")
    if PICKLE_START.match(start):
        return ValueError(f"{path}: this is a pickle or a zip archive, such as torch.save writes, not a safetensors "
                          "file. Loading a pickle runs the code in it, so regard never opens one. Convert the weights "
                          "to safetensors.")
    return ValueError(f"{path}: not a complete safetensors file ({plural(size, 'byte')}): {error}. It is truncated, "
                      "damaged, or of another format.")


def _read_aliases(path: Path, text: str, tensors: Mapping[str, TensorSpec]) -> dict[str, str]:
    """The aliases in the metadata; a ValueError if they do not match the tensors."""
    try:
        aliases = json.loads(text)
    except (ValueError, RecursionError):
        aliases = None
    if not isinstance(aliases, dict) or any(alias in tensors or not isinstance(kept, str) or kept not in tensors
                                            for alias, kept in aliases.items()):
        raise ValueError(f'{path}: the metadata "{ALIASES_KEY}" does not match the tensors: {text!r:.80}.')
    return aliases


MAX_LISTED = 10
"""How many names of each kind of mismatch a message lists."""


def fill_module(module: nn.Module, tensors: Mapping[str, Tensor], *, origin: str, owner: str = "") -> None:
    """Copy tensors into the parameters and persistent buffers of a module; if one does not fit, nothing is written.

    The module keeps its dtypes and devices. Floating-point numbers are rounded to its dtype, which changes nothing
    where that is wider; one that is finite and too large for it is refused. Other dtypes must be equal. A tensor that
    the module has under several names may come under one of them, or under more if they are equal.

    Args:
        origin: where the tensors come from, for messages.
        owner: what they must match, for messages, such as config.toml; by default the class of the module.
    """
    own, owner = _module_tensors(module), owner or f"the {type(module).__name__}"
    check_module(module, tensor_specs(tensors), origin=origin, owner=owner)
    absent = [name for name, tensor in own.items() if tensor.is_meta]
    if absent:
        remedy = 'Allocate its tensors first: module.to_empty(device="cpu").'
        raise checks.wrong("module", "a module whose tensors are allocated", f'on the device "meta" ({absent[0]!r})',
                           remedy)
    chosen: dict[str, Tensor] = {}
    complaints: list[str] = []
    for names in _names_by_tensor(own):
        given = [name for name in names if name in tensors]
        chosen[given[0]] = tensors[given[0]]
        complaints += [f"{given[0]!r} and {other!r} are one tensor in the module, but have different values"
                       for other in given[1:] if not _bitwise_equal(tensors[given[0]], tensors[other])]
        if _overflows(tensors[given[0]], own[given[0]].dtype):
            complaints.append(f"{given[0]!r} has numbers too large for {own[given[0]].dtype}")
    if complaints:
        raise ValueError("\n  ".join((f"{origin} does not match {owner}:", *complaints)))
    with torch.no_grad():
        for name, tensor in chosen.items():
            own[name].copy_(tensor)


def build_module(build: Callable[[], nn.Module], tensors: Mapping[str, Tensor], *, origin: str,
                 owner: str = "") -> nn.Module:
    """Build a module and fill it with these tensors, as `fill_module` does; the random state of torch is unchanged."""
    with torch.random.fork_rng(devices=[]):
        module = build()
    fill_module(module, tensors, origin=origin, owner=owner)
    return module


def check_module(module: nn.Module, found: Mapping[str, TensorSpec], *, origin: str, owner: str = "") -> None:
    """Refuse tensors whose names, shapes or dtypes are not those of the module, which may be on the device "meta"."""
    own = tensor_specs(_module_tensors(module))
    wanted: dict[str, TensorSpec] = {}
    for names in _names_by_tensor(_module_tensors(module)):
        given = [name for name in names if name in found]
        wanted |= {name: own[name] for name in given or names[:1]}  # one of several names for a tensor is enough
    check_specs(wanted, found, origin=origin, owner=owner or f"the {type(module).__name__}")


def check_specs(wanted: Mapping[str, TensorSpec], found: Mapping[str, TensorSpec], *, origin: str, owner: str) -> None:
    """Refuse missing and unexpected tensors, wrong shapes and dtypes; the precision of floats may differ.

    The message is "ORIGIN does not match OWNER: 3 tensors missing, 1 unexpected.", and a line for each of them.
    """
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted]
    complaints = _list_some("missing", missing, lambda name: f"missing: {name!r:.200}")
    complaints += _list_some("unexpected", unexpected, lambda name: " ".join(
        filter(None, (f"unexpected: {name!r:.200}", checks.nearest(name[:200], missing)))))
    common = {name: (wanted[name], found[name]) for name in wanted if name in found}
    differing = [name for name, (ours, theirs) in common.items() if not _same_kind(ours, theirs)]
    complaints += _list_some("different", differing, lambda name: "different: {!r:.200} must be {}, but is {}".format(
        name, *map(_describe_spec, common[name])))
    if complaints:
        kinds = {"missing": missing, "unexpected": unexpected, "of another shape or dtype": differing}
        (first, names), *others = [(kind, names) for kind, names in kinds.items() if names]
        counts = [f"{plural(len(names), 'tensor')} {first}", *(f"{len(names):,} {kind}" for kind, names in others)]
        raise ValueError("\n  ".join((f"{origin} does not match {owner}: {', '.join(counts)}.", *complaints)))


def tensor_specs(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """The dtype and shape of each tensor."""
    return {name: TensorSpec(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def _module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, under all of their names."""
    state = module.state_dict(keep_vars=True)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            got = f"one with {name!r}, {checks.kind(value)[0]}"
            raise checks.wrong("module", "a module whose state_dict has only tensors", got)
    return dict(state)


def _names_by_tensor(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """The names, grouped by tensor."""
    groups: dict[object, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(storage_key(tensor), []).append(name)
    return list(groups.values())


def _same_kind(ours: TensorSpec, theirs: TensorSpec) -> bool:
    floating = ours.dtype.is_floating_point and theirs.dtype.is_floating_point
    return ours.shape == theirs.shape and (ours.dtype == theirs.dtype or floating)


def _bitwise_equal(first: Tensor, second: Tensor) -> bool:
    """Bitwise equality: NaN equals itself."""
    if storage_key(first) == storage_key(second):
        return True
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    left, right = (tensor.detach().reshape(-1).view(torch.uint8) for tensor in (first, second))
    return torch.equal(left, right)


def _overflows(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether a finite element exceeds the range of this dtype."""
    if not tensor.is_floating_point() or torch.finfo(dtype).max >= torch.finfo(tensor.dtype).max:
        return False
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()  # bfloat16 lacks the maximum of float16
    return bool((wide.isfinite() & (wide.abs() > torch.finfo(dtype).max)).any())


def _list_some(kind: str, names: list[str], worded: Callable[[str], str]) -> list[str]:
    """A line for each of the first names, and the number of further ones."""
    more = [f"and {len(names) - MAX_LISTED} more {kind}"] if len(names) > MAX_LISTED else []
    return [worded(name) for name in names[:MAX_LISTED]] + more


def _describe_spec(entry: TensorSpec) -> str:
    return f"{entry.dtype} of shape {entry.shape}"
