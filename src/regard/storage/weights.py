"""Named tensors in a file of safetensors: written, looked at without reading them, and read.

Added to what the library does: tensors that are one under two names are stored once and read back as one; the file is
synced, has the mode that the umask gives, and is there whole or not at all; what is read is no view of the file; errors
name it. A pickle is never opened, whatever its name, because reading one runs the code in it.

It knows files and tensors, no modules (`regard.storage.modules`) and no folders.
"""

import errno
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard import checks
from regard.storage import system

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64, "BOOL": torch.bool,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
}
ALIASES = "regard.aliases"
"""The key of the metadata under which the second names of tensors are kept, as JSON {second name: first name}."""
PICKLED = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
# How pickles begin: those of torch.save (a zip archive, or protocol 2), of later protocols, and the old text forms.
PICKLE = re.compile(rb"PK\x03\x04|\x80[\x02-\x05]|\([dl]p\d|\(?[ci][\w.]+\n[\w.]+\n|[\]}]q\x00")


class Entry(NamedTuple):
    """What is known of a tensor without having it."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Header:
    """What a file holds, known before any tensor is made."""

    tensors: Mapping[str, Entry]
    """All names, those of aliases included."""
    aliases: Mapping[str, str]
    """The second names of tensors that are stored once: {second name: first name}."""
    metadata: Mapping[str, str]

    @property
    def elements(self) -> int:
        """How many numbers the file holds."""
        return sum(math.prod(entry.shape) for name, entry in self.tensors.items() if name not in self.aliases)


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor],
          metadata: Mapping[str, str] | None = None) -> None:
    """Write these tensors to a file, which is there whole in the end or as it was before.

    Tensors that are the same part of one storage are stored once. Those that merely overlap are stored in full each.
    """
    path, metadata = Path(path), dict(metadata or {})
    if path.suffix.lower() in PICKLED:
        raise _pickled(path)
    _check_metadata(metadata)
    first: dict[object, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
        kept = first.setdefault(place(tensor), name)
        if kept != name:
            aliases[name] = kept
    stored = _apart({name: tensors[name] for name in first.values()})
    if aliases:
        metadata[ALIASES] = json.dumps(aliases)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        _write_part(part, stored, metadata)
        os.replace(part, path)
        system.sync(path.parent)
    except OSError as error:
        raise OSError(error.errno, f"could not be written: {error.strerror}", str(path)) from error
    finally:
        with suppress(OSError):
            part.unlink()


def header(path: str | os.PathLike[str]) -> Header:
    """What the file holds, without reading it; a ValueError where it is cut short, damaged or no safetensors at all."""
    path = _readable(Path(path))
    try:
        with safe_open(path, framework="np") as file:  # not "pt", which reserves memory for the whole file
            slices = {name: file.get_slice(name) for name in list(file.keys())}
            codes = {name: (slice.get_dtype(), tuple(slice.get_shape())) for name, slice in slices.items()}
            metadata = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None
    for name, (code, _) in codes.items():
        if code not in DTYPES:
            raise checks.wrong(str(path), f"of dtypes among {', '.join(DTYPES)}", f"with {name!r:.80} in {code}")
    tensors = {name: Entry(DTYPES[code], shape) for name, (code, shape) in codes.items()}
    aliases = _aliases(path, metadata.pop(ALIASES, "{}"), tensors)
    tensors |= {alias: tensors[kept] for alias, kept in aliases.items()}
    return Header(tensors, aliases, metadata)


def read(path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """All tensors of the file on this device. An alias is the very tensor that it was when it was written."""
    path, about = Path(path), header(path)
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in about.tensors:
                if name not in about.aliases:
                    # What the library gives on a CPU is the file itself in memory, and changes when the file does.
                    tensors[name] = file.get_tensor(name).to(device, copy=True)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None
    return {name: tensors[about.aliases.get(name, name)] for name in about.tensors}


def place(tensor: Tensor) -> object:
    """Equal for two tensors that are the same part of one storage, read in the same way, and only for those."""
    if tensor.is_meta or tensor.numel() == 0:
        return id(tensor)
    storage = (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset())
    return *storage, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same numbers, each tensor contiguous and in storage of its own: the library refuses what seems shared."""
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
    # The library makes files that only their owner may read. This one, made as any other, tells what the umask gives.
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    mode = os.fstat(handle).st_mode & 0o777
    os.close(handle)
    try:
        save_file(tensors, part, metadata=metadata or None)  # of an empty one with no tensors it makes no valid file
    except SafetensorError as error:
        code = re.search(r"(?:os error|code:) (\d+)", str(error))
        raise OSError(int(code[1]) if code else errno.EIO, str(error)) from error
    _sort_metadata(part)
    part.chmod(mode)
    system.sync(part)


def _sort_metadata(part: Path) -> None:
    """Put the keys of the metadata in order, which the library leaves to chance: equal content is then equal bytes."""
    with part.open("rb+") as file:
        length = int.from_bytes(file.read(8), "little")
        written = file.read(length)
        found = json.loads(written)
        if len(found.get("__metadata__", {})) > 1:
            found["__metadata__"] = dict(sorted(found["__metadata__"].items()))
            ordered = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode().ljust(length)
            if len(ordered) == length:  # the same text in another order; anything else stays as it is
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
        if not isinstance(key, str) or not isinstance(value, str) or key == ALIASES:
            expected = f'strings by strings other than "{ALIASES}"'
            raise checks.wrong("metadata", expected, f"{key!r:.80}: {value!r:.80}")


def _readable(path: Path) -> Path:
    """The path, where it is a file that may hold tensors; nothing is opened whose name says that it is a pickle."""
    if path.suffix.lower() in PICKLED:
        raise _pickled(path)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise checks.wrong(str(path), "a file of safetensors", f"not readable ({error.strerror})") from None
    if not stat.S_ISREG(mode):
        raise checks.wrong(str(path), "a file of safetensors", "a folder" if stat.S_ISDIR(mode) else "no plain file")
    return path


def _pickled(path: Path) -> ValueError:
    return checks.wrong(str(path), "a file of safetensors", "of a name that pickles have",
                        "Reading a pickle runs the code in it, so regard never opens one.")


def _unreadable(path: Path, error: SafetensorError | OSError) -> ValueError:
    """Why this file cannot be read. Its beginning is looked at only to say what it is."""
    size, start = 0, b""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(256)
    except OSError as reason:
        return checks.wrong(str(path), "a file of safetensors", f"not readable ({reason.strerror})")
    if PICKLE.match(start):
        return checks.wrong(str(path), "a file of safetensors", "a pickle or a zip archive, as torch.save writes",
                            "Reading a pickle runs the code in it, so regard never does.")
    return checks.wrong(str(path), "a whole file of safetensors", f"{size} bytes that are not ({error})",
                        "It is cut short or damaged, or something else.")


def _aliases(path: Path, text: str, tensors: Mapping[str, Entry]) -> dict[str, str]:
    """The second names that the metadata tells, where they make sense."""
    try:
        aliases = json.loads(text)
    except (ValueError, RecursionError):
        aliases = None
    if not isinstance(aliases, dict) or any(alias in tensors or not isinstance(kept, str) or kept not in tensors
                                            for alias, kept in aliases.items()):
        raise checks.wrong(str(path), f'a file whose metadata "{ALIASES}" names its tensors', f"one with {text!r:.80}")
    return aliases
