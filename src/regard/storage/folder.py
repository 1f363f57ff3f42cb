"""A folder that is saved whole or not at all, and read only when it is whole.

    save(folder, files)      written aside, synced, the manifest last, then put in place by one rename
    verify(folder)           every file there, of its length and its sha256
    load(folder, reader)     verified, then read; again from the start where others replaced it meanwhile
    newest(folders)          the first whole one, and why those before it are not

A killed save, or a full disk, leaves what was there before. A folder is replaced only if regard saved it, and what the
user has put into it stays. It is replaced as a whole: a shell that stands in it then stands in one that is gone.
`save(folder, {})` claims a folder before there is anything to save.

It knows bytes and names. It does not know models, configurations or tensors, and does not import torch.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE
from typing import NamedTuple, TypeVar

from regard import checks
from regard.storage import manifest as manifests
from regard.storage import replacing, system
from regard.storage.manifest import NAME, FolderError, Manifest, Recorded, wrong

__all__ = ["Content", "FolderError", "Manifest", "Newest", "Saved", "load", "newest", "prepare", "save", "verify"]

Content = bytes | Callable[[Path], None]
"""What a file holds, or a function that writes it to the path it is given."""
Location = str | os.PathLike[str]
Result = TypeVar("Result")
ATTEMPTS = 20
"""How often a folder is read anew because others replaced it meanwhile."""


@dataclass(frozen=True)
class Saved:
    """A folder whose files were found to be as they were saved."""

    folder: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        """Where the file of this name is; a FolderError where none of this name was saved."""
        if not self.manifest.files:
            raise FolderError(f"{self.folder}: There is nothing in it yet. What was to be saved here has not come so "
                              "far, or has failed.")
        if name not in self.manifest.files:
            raise wrong(self.folder / NAME, f'a manifest with "{name}"', f"one with {', '.join(self.manifest.files)}")
        return self.folder / name

    def read_bytes(self, name: str) -> bytes:
        """What the file of this name holds. These very bytes are checked."""
        path = self.path(name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise wrong(path, "readable", f"not ({error.strerror})") from error
        found, recorded = Recorded.of(data), self.manifest.files[name]
        if found != recorded:
            raise manifests.changed(path, recorded, found)
        return data

    def read_text(self, name: str) -> str:
        """The text that the file of this name holds, in UTF-8."""
        try:
            return self.read_bytes(name).decode()
        except UnicodeDecodeError as error:
            got = f"byte {error.start}: 0x{error.object[error.start]:02X}"
            raise wrong(self.folder / name, "text in UTF-8", f"not, at {got}") from None


class Newest(NamedTuple):
    """The first whole folder, or None, and those before it with the reason why each was refused."""

    folder: Path | None
    refused: list[tuple[Path, str]]


def prepare(folder: Location) -> None:
    """Refuse a folder that `save` would refuse, before long work; and end what a killed save began."""
    with _claimed(folder):
        pass


def save(folder: Location, files: Mapping[str, Content], *, editable: Mapping[str, Content] | None = None) -> Manifest:
    """Save these files as this folder, by plain names. It is there with all of them, or as it was before.

    Args:
        folder: not there yet, empty, or saved by regard before, and then replaced. A link to one is followed.
        files: must later be as they are now, or the folder is refused.
        editable: saved with them for the user to change, such as a README. One that was changed stays as it is.
    """
    contents = {**files, **(editable or {})}
    for name, content in contents.items():
        manifests.check_name(name)
        _check_content(name, content)
    if len(contents) < len(files) + len(editable or {}):
        raise wrong("editable", "of other names than `files`", sorted({*files} & {*(editable or {})}))
    with _claimed(folder) as target, system.told(target):
        place = replacing.aside(target)
        with ExitStack() as undo:
            place.mkdir()
            undo.callback(shutil.rmtree, place, ignore_errors=True)
            mode = _owned_as(target, place)
            manifest = _write(place, contents, set(editable or ()))
            replacing.carry(target, place, manifest)
            system.sync(place)
            place.chmod(mode)
            undo.pop_all()
        replacing.put(place, target)
    return manifest


def verify(folder: Location) -> Manifest:
    """The manifest of a folder, all of whose files are as they were saved; a FolderError names the one that is not."""
    return load(folder, lambda saved: saved.manifest)


def load(folder: Location, reader: Callable[[Saved], Result]) -> Result:
    """What `reader` makes of a folder that was verified, all from one and the same save. It may be called again."""
    for _ in range(ATTEMPTS):
        with ExitStack() as stack:
            try:
                place = _whereabouts(folder)
                before = stack.enter_context(system.held(place))
            except FileNotFoundError:
                continue  # it was there a moment ago
            except OSError as error:
                raise wrong(Path(folder), "readable", f"not ({error.strerror})") from error
            try:
                manifest = manifests.read(place)
                manifests.check_files(place, manifest)
                result = reader(Saved(place, manifest))
            except (ValueError, OSError):
                if _is_still(place, before):
                    raise
            else:
                if _is_still(place, before):
                    return result
    raise wrong(Path(folder), "left alone while it is read", f"replaced {ATTEMPTS} times by others")


def newest(folders: Iterable[Location]) -> Newest:
    """The first of these folders that is whole; give the newest first."""
    refused: list[tuple[Path, str]] = []
    for folder in folders:
        try:
            verify(folder)
        except FolderError as error:
            refused.append((Path(folder), str(error)))
        else:
            return Newest(Path(folder), refused)
    return Newest(None, refused)


@contextmanager
def _claimed(folder: Location) -> Iterator[Path]:
    """The path of a folder to save, links resolved, under its lock, with nothing left over from killed saves."""
    target = Path(os.path.realpath(folder))
    if not target.name:
        raise wrong(target, "a folder below the root", "the root")
    with ExitStack() as stack:
        with system.told(target):
            replacing.refuse_foreign(target)
            _make_parents(target.parent)
            stack.enter_context(system.locked(replacing.lock(target)))
            replacing.repair(target)
            replacing.refuse_foreign(target)
        yield target


def _check_content(name: str, content: object) -> None:
    if not isinstance(content, bytes) and not callable(content):
        raise wrong(f"files[{name!r}]", "bytes, or a function that writes to a path", *checks.kind(content))


def _make_parents(parent: Path) -> None:
    if not parent.exists():
        _make_parents(parent.parent)
        parent.mkdir(exist_ok=True)
        system.sync(parent.parent)
    elif not parent.is_dir():
        raise wrong(parent, "a folder", "a file", "Choose another folder.")


def _owned_as(target: Path, place: Path) -> int:
    """Close the new folder to others until it is whole. Returns the mode that it gets then: that of the folder that it
    replaces, whose group and owner it takes where that is allowed."""
    mode = S_IMODE(place.stat().st_mode)
    if target.exists():
        status = target.stat()
        mode = S_IMODE(status.st_mode)
        with suppress(PermissionError):
            os.chown(place, status.st_uid, status.st_gid)
    place.chmod(mode & ~0o077)
    return mode


def _write(place: Path, contents: Mapping[str, Content], editable: set[str]) -> Manifest:
    """Write all files and then the manifest into a new folder, and sync each."""
    files: dict[str, Recorded] = {}
    for name, content in contents.items():
        path = place / name
        with system.named(path):
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                content(path)
            if not path.is_file() or path.is_symlink():
                raise wrong(f"files[{name!r}]", "a function that writes a file to its path", "one that does not")
            files[name] = manifests.digest(path)
            system.sync(path)
    strays = {path.name for path in place.iterdir()} - {*files}
    if strays:
        raise wrong("files", "functions that write to their path alone", f"such that also write {sorted(strays)[0]!r}")
    manifest = Manifest({name: files[name] for name in files if name not in editable},
                        {name: files[name] for name in files if name in editable})
    part = place / f".{NAME}.part"  # a manifest is whole or not there, also after a loss of power
    with system.named(part):
        part.write_bytes(manifest.encoded())
        system.sync(part)
    os.rename(part, place / NAME)
    return manifest


def _whereabouts(folder: Location) -> Path:
    """Where the folder is: at its path, or for a moment beside it, where the system cannot exchange two names."""
    target = Path(os.path.realpath(folder))
    # Twice: the folder may come back between the two looks.
    for place in (target, replacing.old(target), target) if target.name else (target,):
        if place.is_dir():
            return place
    if os.path.lexists(target):
        raise wrong(target, "a folder", "a file", "Give the folder that holds it.")
    raise wrong(target, "a folder", "not there", "Check the name, and where you are.")


def _is_still(place: Path, before: os.stat_result) -> bool:
    """Whether the folder at this path is the one it was."""
    try:
        return os.path.samestat(place.stat(), before)
    except FileNotFoundError:
        return False
