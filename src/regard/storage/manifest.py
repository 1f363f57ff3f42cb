"""The manifest of a folder: which files were saved in it, how long each is, and its sha256.

    {"format": 1, "regard": "0.1.0", "files": {"config.toml": {"bytes": 12, "sha256": "..."}}, "editable": {},
     "seal": "..."}

`files` must be as they were saved. `editable` were saved with them and are the user's to change, such as a README. The
seal is the sha256 of the rest, so that a changed manifest is seen as well. Any change of this layout is a new format.

This file reads, words and checks manifests. It does not know how a folder comes to be, nor what the files hold.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

from regard import checks
from regard._version import __version__

FORMAT = 1
NAME = "manifest.json"
LARGEST = 16 * 2**20
"""Bytes of a manifest. One that is larger was not written by `Manifest.encoded`, and is not read into memory."""


class FolderError(ValueError):
    """A folder, or a file in it, is not what it must be. The message names it, and what to do."""


def wrong(path: Path | str, expected: str, got: object, remedy: str = "") -> FolderError:
    """The error for a path that is not what it must be; the caller raises it."""
    return FolderError(str(checks.wrong(str(path), expected, got, remedy)))


class Recorded(NamedTuple):
    """What the manifest knows of one file."""

    length: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> "Recorded":
        """Length and sha256 of these bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Manifest:
    """The files of a folder by name, and the version of regard that saved them."""

    files: Mapping[str, Recorded]
    editable: Mapping[str, Recorded] = field(default_factory=dict)
    version: str = __version__

    def encoded(self) -> bytes:
        """The one way to write this manifest."""
        listed = {kind: {name: {"bytes": table[name].length, "sha256": table[name].sha256} for name in sorted(table)}
                  for kind, table in (("files", self.files), ("editable", self.editable))}
        content = {"format": FORMAT, "regard": self.version, **listed}
        seal = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return json.dumps({**content, "seal": seal}, indent=2).encode() + b"\n"


def read(folder: Path) -> Manifest:
    """The manifest of this folder; a FolderError where there is none, or one that cannot be trusted."""
    path = folder / NAME
    try:
        if stat.S_ISREG(path.lstat().st_mode) and path.stat().st_size > LARGEST:
            raise wrong(path, f"a manifest of at most {LARGEST} bytes", f"of {path.stat().st_size} bytes")
        data = _regular(path).read_bytes()
    except FileNotFoundError:
        raise wrong(folder, f"a folder that regard saved, with a {NAME}", "a folder without one",
                    "Give the folder that was saved, not one above or inside it.") from None
    except OSError as error:
        raise wrong(path, "readable", f"not ({error.strerror})") from error
    return decode(data, path)


def decode(data: bytes, path: Path) -> Manifest:
    """The manifest in these bytes. `path` is only for messages."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "nested too deeply"
        remedy = "It is damaged, or of another program."
        raise wrong(path, "a manifest of regard", f"no JSON ({reason})", remedy) from None
    if not isinstance(content, dict) or [type(content.get(key)) for key in ("format", "regard")] != [int, str]:
        raise wrong(path, "a manifest of regard", "some other JSON", "It belongs to another program.")
    if content["format"] > FORMAT:
        raise wrong(path, f"of format {FORMAT}, which regard {__version__} reads",
                    f"of format {content['format']}, written by regard {content['regard']:.40}",
                    "Install a newer regard to read it.")
    try:
        files, editable = ({name: Recorded(entry["bytes"], entry["sha256"]) for name, entry in content[kind].items()}
                           for kind in ("files", "editable"))
    except (KeyError, TypeError, AttributeError):
        raise _damaged(path) from None
    for name in (*files, *editable):
        check_name(name, f"{path}: name")
    if not all(map(_sound, (*files.values(), *editable.values()))):
        raise _damaged(path)
    manifest = Manifest(files, editable, content["regard"])
    if manifest.encoded() != data:
        raise _damaged(path)
    return manifest


def check_name(name: object, argument: str = "name") -> None:
    """Refuse what is not the plain name of a file in the folder itself, on any system."""
    plain = isinstance(name, str) and name != "" and name.isprintable() and PureWindowsPath(name).name == name
    if not plain or str(name).startswith(".") or name == NAME:
        expected = f"a plain file name that is neither hidden nor {NAME}"
        raise wrong(argument, expected, repr(name)[:80], "It must not lead out of the folder.")


def digest(path: Path) -> Recorded:
    """Length and sha256 of a file."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return Recorded(os.fstat(file.fileno()).st_size, sha256)


def check_files(folder: Path, manifest: Manifest) -> None:
    """Refuse a folder in which a file of the manifest is missing, cut short or changed."""
    for name, recorded in manifest.files.items():  # all lengths before any sha256, which takes its time
        _check_length(folder / name, recorded)
    for name, recorded in manifest.files.items():
        path = folder / name
        try:
            found = digest(path)
        except OSError as error:
            raise wrong(path, "readable", f"not ({error.strerror})") from error
        if found != recorded:
            raise changed(path, recorded, found)


def changed(path: Path, recorded: Recorded, found: Recorded) -> FolderError:
    """The error for a file that is not what was saved; the caller raises it."""
    if found.length != recorded.length:
        how = "cut short" if found.length < recorded.length else "longer"
        return wrong(path, f"of {recorded.length} bytes", f"{how}, of {found.length} bytes", "Restore it from a copy.")
    return wrong(path, f"as it was saved, with sha256 {recorded.sha256}", f"changed, with sha256 {found.sha256}",
                 "Restore it from a copy.")


def _check_length(path: Path, recorded: Recorded) -> None:
    try:
        size = _regular(path).stat().st_size
    except FileNotFoundError:
        raise wrong(path, f"a file of {recorded.length} bytes", "missing", "Restore it from a copy.") from None
    except OSError as error:
        raise wrong(path, "readable", f"not ({error.strerror})") from error
    if size != recorded.length:
        raise changed(path, recorded, Recorded(size, ""))


def _regular(path: Path) -> Path:
    """The path itself where it is a plain file. A link could lead out of the folder, a pipe would never end."""
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        got = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "something else"
        raise wrong(path, "a file in the folder itself", got, "Put the file itself in its place.")
    return path


def _sound(recorded: Recorded) -> bool:
    """Whether an entry has the types it must have, which nothing before has checked."""
    length, sha256 = recorded
    hexadecimal = isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256) is not None
    return type(length) is int and length >= 0 and hexadecimal


def _damaged(path: Path) -> FolderError:
    return wrong(path, "as it was saved", "changed or damaged", "Restore the folder from a copy.")
