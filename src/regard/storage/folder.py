"""Crash-safe folders: saved completely or not at all, and read only when they are complete.

    save(folder, files)      write a new folder beside the old one, fsync, write the manifest last, rename into place
    verify(folder)           check that every file is present with its recorded length and sha256
    load(folder, reader)     verify, then read; start again if another process replaced the folder meanwhile
    newest(folders)          the first complete folder, and why those before it were refused

`manifest.json` lists the files of a folder with length and sha256:

    {"format": 1, "regard": "0.1.0", "files": {"config.toml": {"bytes": 12, "sha256": "..."}}, "editable": {},
     "seal": "..."}

`files` must be as they were saved. `editable` files belong to the user after saving, such as a README. The seal is the
sha256 of the rest of the manifest, so that a changed manifest is detected too. A change of this layout is a new format.

Names used while a folder `model` is saved:

    .model.lock      held by the process that saves `model`
    .model.saving    the new folder while it is written; after the exchange, the previous folder until it is removed
    .model.old       the previous folder, only where the system cannot exchange two names atomically

A killed save or a full disk leaves the previous folder. A folder is replaced only if regard saved it. Files in it that
regard did not save (notes, metrics, checkpoints) belong to the user: they are hard-linked into the new folder before
the exchange. Saving holds the lock, so leftovers under these names come from a killed process, and `recover` finishes
what it began. `save(folder, {})` claims a folder before there is anything to save.

This module knows bytes and names. It does not know models, configurations or tensors, and does not import torch.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from stat import S_IMODE
from typing import NamedTuple, TypeVar

from regard import checks
from regard._version import __version__
from regard.checks import plural
from regard.storage import filesystem
from regard.storage.filesystem import FolderError, folder_error, unreadable_error

MANIFEST_FORMAT = 1
MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 16 * 2**20
"""A larger manifest was not written by `Manifest.encoded`, and is not read into memory."""


class FileRecord(NamedTuple):
    """Length and sha256 of one file."""

    length: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> "FileRecord":
        """Length and sha256 of these bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Manifest:
    """The files of a folder by name, and the version of regard that saved them."""

    files: Mapping[str, FileRecord]
    editable: Mapping[str, FileRecord] = field(default_factory=dict)
    version: str = __version__

    def encoded(self) -> bytes:
        """The bytes of the manifest file; equal manifests have equal bytes."""
        listed = {kind: {name: {"bytes": table[name].length, "sha256": table[name].sha256} for name in sorted(table)}
                  for kind, table in (("files", self.files), ("editable", self.editable))}
        content = {"format": MANIFEST_FORMAT, "regard": self.version, **listed}
        seal = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return json.dumps({**content, "seal": seal}, indent=2).encode() + b"\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of this folder; a FolderError if there is none, or if it is damaged."""
    path = folder / MANIFEST_FILE
    try:
        data = filesystem.read_limited(_plain_file(path), MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        raise FolderError(f"{folder}: not a folder that regard saved: it has no {MANIFEST_FILE}. Give the folder that "
                          "was saved, not one above or inside it.") from None
    except OSError as error:
        raise unreadable_error(path, error) from error
    return decode_manifest(data, path)


def decode_manifest(data: bytes, path: Path) -> Manifest:
    """The manifest in these bytes; `path` is for messages only."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "nested too deeply"
        raise FolderError(f"{path}: not a manifest of regard: invalid JSON ({reason}). It is damaged, or belongs to "
                          "another program.") from None
    if not isinstance(content, dict) or [type(content.get(key)) for key in ("format", "regard")] != [int, str]:
        raise FolderError(f'{path}: not a manifest of regard: "format" or "regard" is missing. It belongs to another '
                          "program.")
    if content["format"] > MANIFEST_FORMAT:
        raise FolderError(f"{path}: written by regard {content['regard']:.40} in format {content['format']}; regard "
                          f"{__version__} reads up to format {MANIFEST_FORMAT}. Install a newer version of regard.")
    try:
        files, editable = ({name: FileRecord(entry["bytes"], entry["sha256"]) for name, entry in content[kind].items()}
                           for kind in ("files", "editable"))
    except (KeyError, TypeError, AttributeError):
        raise _damaged_manifest_error(path) from None
    for name in (*files, *editable):
        check_file_name(name, f"{path}: name")
    if not all(map(_is_valid_record, (*files.values(), *editable.values()))):
        raise _damaged_manifest_error(path)
    manifest = Manifest(files, editable, content["regard"])
    if manifest.encoded() != data:
        raise _damaged_manifest_error(path)
    return manifest


def check_file_name(name: object, argument: str = "name") -> None:
    """Refuse a name that is not a plain file name on every system, so that no file is outside the folder."""
    plain = isinstance(name, str) and name != "" and name.isprintable() and PureWindowsPath(name).name == name
    if not plain or str(name).startswith(".") or name == MANIFEST_FILE:
        expected = f"a plain file name that is neither hidden nor {MANIFEST_FILE}"
        raise _argument_error(argument, expected, repr(name)[:80])


def hash_file(path: Path) -> FileRecord:
    """Length and sha256 of a file."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(os.fstat(file.fileno()).st_size, sha256)


def check_files(folder: Path, manifest: Manifest) -> None:
    """Refuse a folder in which a file of the manifest is missing, truncated or changed."""
    for name, recorded in manifest.files.items():  # all lengths first: hashing takes longer
        _check_length(folder / name, recorded)
    for name, recorded in manifest.files.items():
        path = folder / name
        try:
            found = hash_file(path)
        except OSError as error:
            raise unreadable_error(path, error) from error
        if found != recorded:
            raise changed_file_error(path, recorded, found)


def changed_file_error(path: Path, recorded: FileRecord, found: FileRecord) -> FolderError:
    """The error for a file that is not as it was saved; the caller raises it."""
    if found.length != recorded.length:
        how = "truncated" if found.length < recorded.length else "longer than saved"
        return FolderError(f"{path}: the file is {how}: {plural(found.length, 'byte')} instead of "
                           f"{recorded.length:,}. Restore it from a copy.")
    return FolderError(f"{path}: the file was changed after it was saved: sha256 {found.sha256} instead of "
                       f"{recorded.sha256}. Restore it from a copy.")


def _check_length(path: Path, recorded: FileRecord) -> None:
    try:
        size = _plain_file(path).stat().st_size
    except FileNotFoundError:
        raise FolderError(f"{path}: the file is missing ({plural(recorded.length, 'byte')}). Restore it from a "
                          "copy.") from None
    except OSError as error:
        raise unreadable_error(path, error) from error
    if size != recorded.length:
        raise changed_file_error(path, recorded, FileRecord(size, ""))


def _plain_file(path: Path) -> Path:
    """The path, if it is a regular file: a link could lead out of the folder, and reading a pipe may never end."""
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        got = ("a symbolic link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode)
               else "a pipe, a socket or a device")
        raise folder_error(path, "a regular file", got, "Replace it with the file itself.")
    return path


def _is_valid_record(recorded: FileRecord) -> bool:
    """Whether an entry of the JSON has the right types."""
    length, sha256 = recorded
    hexadecimal = isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256) is not None
    return type(length) is int and length >= 0 and hexadecimal


def _damaged_manifest_error(path: Path) -> FolderError:
    return FolderError(f"{path}: the manifest was changed or damaged. Restore the folder from a copy.")


# Reasons why a file cannot be hard-linked: no support by the file system, another file system, too many links, another
# owner, or the file was removed meanwhile.
NO_LINK = {errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV,
           errno.ENOENT}


def lock_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


def staging_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.saving")


def backup_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def is_vacant(target: Path) -> bool:
    """Whether nothing is at this path, or an empty folder."""
    return not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir()))


def refuse_foreign(target: Path) -> None:
    """Refuse a target that exists and that regard did not save, or that cannot be moved."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise FolderError(f"{target}: this is a file, not a folder. Choose another folder.")
    if os.path.ismount(target):
        raise FolderError(f"{target}: this is a mount point, which cannot be replaced. Choose a folder inside it.")
    if is_vacant(target):
        return
    if not os.path.lexists(target / MANIFEST_FILE):
        every = sorted(path.name for path in target.iterdir())
        names = ", ".join(every[:3]) + (f" and {len(every) - 3:,} more" if len(every) > 3 else "")
        raise FolderError(f"{target}: the folder is not empty ({names}) and was not saved by regard, which does not "
                          "overwrite it. Choose another folder.")
    read_manifest(target)
    if not os.access(target, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise FolderError(f"{target}: the folder is write-protected. Choose another folder, or allow writing.")


def recover(target: Path) -> None:
    """Finish what a killed save began: restore the folder if it is missing, and remove leftovers."""
    for left in (backup_path(target), staging_path(target)):
        if not os.path.lexists(left):
            continue
        if not os.path.lexists(left / MANIFEST_FILE):
            shutil.rmtree(left)  # the manifest is written last, so this new folder is incomplete
        elif not is_vacant(target):
            _remove_replaced(left, target)
        elif left == backup_path(target) or _user_files(left):
            os.rename(left, target)
        else:
            shutil.rmtree(left)
        filesystem.fsync(target.parent)


def link_user_files(target: Path, place: Path, new: Manifest) -> None:
    """Link the user's files in the folder at `target` into the new folder at `place`."""
    if is_vacant(target):
        return
    for path in _user_files(target):
        if path.name in new.files:
            raise FolderError(f"{path}: regard saves a file of this name here, but did not write this one and does not "
                              "overwrite it. Move it to another folder.")
        if path.name in new.editable:  # the user changed it, so it stays
            (place / path.name).unlink()
        _hard_link(path, place / path.name)


def move_into_place(place: Path, target: Path) -> None:
    """Replace the folder at `target` by the complete one at `place`, and remove the old one."""
    if is_vacant(target):
        os.rename(place, target)
        filesystem.fsync(target.parent)
        return
    left = place
    if not filesystem.exchange(place, target):
        left = backup_path(target)
        os.rename(target, left)  # a reader that finds nothing at `target` looks here
        try:
            os.rename(place, target)
        except OSError:
            os.rename(left, target)
            raise
    filesystem.fsync(target.parent)
    try:
        _remove_replaced(left, target)
    except OSError as error:
        raise FolderError(f"{left}: cannot be removed: {error.strerror} ({error.filename}). It is the previous version "
                          f"of {target}; the new version is saved. Move your own files out of it.") from error


def _remove_replaced(left: Path, target: Path) -> None:
    """Remove a folder that was replaced, and move the user's files that are not in `target` yet to it."""
    present, foreign = set(left.iterdir()), _user_files(left)
    for path in foreign:
        _move_user_file(path, target / path.name)
    filesystem.fsync(target)
    for path in sorted(present - set(foreign)):
        path.unlink()
    left.rmdir()


def _user_files(folder: Path) -> list[Path]:
    """The user's files in a folder: those that the manifest does not list, and editable ones that were changed."""
    manifest = read_manifest(folder)
    return [path for path in sorted(folder.iterdir()) if _is_folder(path) or not (
        path.name in {MANIFEST_FILE, *manifest.files}
        or (path.name in manifest.editable and path.is_file()
            and hash_file(path) == manifest.editable[path.name]))]


def _hard_link(source: Path, goal: Path) -> None:
    """Hard-link a file or the files of a folder; what cannot be linked is moved later by `_move_user_file`."""
    if _is_folder(source):
        goal.mkdir()
        for path in sorted(source.iterdir()):
            _hard_link(path, goal / path.name)
        shutil.copystat(source, goal)
        filesystem.fsync(goal)
        return
    try:
        os.link(source, goal, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise


def _move_user_file(source: Path, goal: Path) -> None:
    """Move a file or folder to its goal, or remove it if the same file is there already. Nothing is overwritten."""
    if _is_folder(source) and _is_folder(goal):
        for path in sorted(source.iterdir()):
            _move_user_file(path, goal / path.name)
        source.rmdir()
    elif os.path.lexists(goal) and os.path.samestat(source.lstat(), goal.lstat()):
        source.unlink()
    else:
        os.rename(source, _free_path(goal))


def _free_path(goal: Path) -> Path:
    """The path itself, or if it exists, a free one beside it."""
    count, free = 1, goal
    while os.path.lexists(free):
        free = goal.with_name(f"{goal.name}.kept{count if count > 1 else ''}")
        count += 1
    return free


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


FileContent = bytes | Callable[[Path], None]
"""The content of a file, or a function that writes it to a path."""
FolderPath = str | os.PathLike[str]
LoadedT = TypeVar("LoadedT")
READ_ATTEMPTS = 20
"""How often a folder is read again because another process replaced it meanwhile."""


@dataclass(frozen=True)
class SavedFolder:
    """A folder whose files are verified."""

    folder: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        """The path of a saved file; a FolderError if no file of this name was saved."""
        if not self.manifest.files:
            raise FolderError(f"{self.folder}: nothing is saved here yet: the run that made this folder has not saved "
                              "its first result, or failed before.")
        if name not in self.manifest.files:
            raise FolderError(f'{self.folder}: there is no "{name}", only {", ".join(self.manifest.files)}.')
        return self.folder / name

    def read_bytes(self, name: str) -> bytes:
        """The content of a saved file; exactly these bytes are verified."""
        path = self.path(name)
        try:
            data = filesystem.read_limited(path)
        except OSError as error:
            raise unreadable_error(path, error) from error
        found, recorded = FileRecord.of(data), self.manifest.files[name]
        if found != recorded:
            raise changed_file_error(path, recorded, found)
        return data

    def read_text(self, name: str) -> str:
        """The text of a saved file, in UTF-8."""
        try:
            return self.read_bytes(name).decode()
        except UnicodeDecodeError as error:
            raise FolderError(f"{self.folder / name}: byte {error.start:,} (0x{error.object[error.start]:02X}) is not "
                              "UTF-8.") from None


class NewestFolder(NamedTuple):
    """The first complete folder, or None, and the ones before it with the reason why each was refused."""

    folder: Path | None
    refused: list[tuple[Path, str]]


def prepare(folder: FolderPath) -> None:
    """Refuse a folder that `save` would refuse, before long work, and finish what a killed save began."""
    with _claim(folder):
        pass


def save(folder: FolderPath, files: Mapping[str, FileContent], *,
         editable: Mapping[str, FileContent] | None = None) -> Manifest:
    """Save these files as this folder: afterwards it has all of them, or is as it was before.

    Args:
        folder: a new or empty folder, or one that regard saved, which is replaced. A link to a folder is followed.
        files: verified on loading: a folder in which one was changed is refused.
        editable: files for the user to change, such as a README. One that the user changed is kept on the next save.
    """
    contents = {**files, **(editable or {})}
    for name, content in contents.items():
        check_file_name(name)
        _check_content(name, content)
    if len(contents) < len(files) + len(editable or {}):
        raise _argument_error("editable", "files of other names than `files`", sorted({*files} & {*(editable or {})}))
    with _claim(folder) as target, filesystem.folder_in_errors(target):
        place = staging_path(target)
        with ExitStack() as undo:
            place.mkdir()
            undo.callback(shutil.rmtree, place, ignore_errors=True)
            mode = _copy_ownership(target, place)
            manifest = _write_files(place, contents, set(editable or ()))
            link_user_files(target, place, manifest)
            filesystem.fsync(place)
            place.chmod(mode)
            undo.pop_all()
        move_into_place(place, target)
    return manifest


def verify(folder: FolderPath) -> Manifest:
    """Check that all files are as they were saved, and return the manifest; a FolderError names one that is not."""
    return load(folder, lambda saved: saved.manifest)


def load(folder: FolderPath, reader: Callable[[SavedFolder], LoadedT]) -> LoadedT:
    """The result of `reader` on the verified folder, all from one save; `reader` is called again if it was replaced."""
    for _ in range(READ_ATTEMPTS):
        with ExitStack() as stack:
            try:
                place = _locate(folder)
                before = stack.enter_context(filesystem.pinned_folder(place))
            except FileNotFoundError:
                continue  # it was there a moment ago
            except OSError as error:
                raise unreadable_error(Path(folder), error) from error
            try:
                manifest = read_manifest(place)
                check_files(place, manifest)
                result = reader(SavedFolder(place, manifest))
            except (ValueError, OSError):
                if _is_unchanged(place, before):
                    raise
            else:
                if _is_unchanged(place, before):
                    return result
    raise FolderError(f"{folder}: other processes replaced it {READ_ATTEMPTS} times while it was read. Try again.")


def newest(folders: Iterable[FolderPath]) -> NewestFolder:
    """The first of these folders that is complete; pass the newest first."""
    refused: list[tuple[Path, str]] = []
    for folder in folders:
        try:
            verify(folder)
        except FolderError as error:
            refused.append((Path(folder), str(error)))
        else:
            return NewestFolder(Path(folder), refused)
    return NewestFolder(None, refused)


@contextmanager
def _claim(folder: FolderPath) -> Iterator[Path]:
    """Lock a folder to save, and give its path with links resolved and leftovers of killed saves removed."""
    target = Path(os.path.realpath(folder))
    if not target.name:
        raise FolderError(f"{target}: this is the root of the file system. Choose a folder inside it.")
    with ExitStack() as stack:
        with filesystem.folder_in_errors(target):
            _refuse_foreign_unlocked(target)
            _make_parents(target.parent)
            stack.enter_context(filesystem.file_lock(lock_path(target)))
            recover(target)
            refuse_foreign(target)
        yield target


def _refuse_foreign_unlocked(target: Path) -> None:
    """Refuse a foreign folder before the lock is taken, so that no lock file is made beside it.

    If another process replaces the folder during the check, it is not foreign, and the check under the lock decides.
    """
    with ExitStack() as stack:
        before = None
        try:
            before = stack.enter_context(filesystem.pinned_folder(target))
        except FileNotFoundError:
            return
        except OSError:
            pass  # a file, or a folder that may not be opened: no process replaces it
        try:
            refuse_foreign(target)
        except (FolderError, OSError):
            if before is None or _is_unchanged(target, before):
                raise


def _check_content(name: str, content: object) -> None:
    if not isinstance(content, bytes) and not callable(content):
        raise _argument_error(f"files[{name!r}]", "bytes, or a function that writes to a path", *checks.kind(content))


def _argument_error(argument: str, expected: str, got: object, remedy: str = "") -> FolderError:
    return FolderError(str(checks.wrong(argument, expected, got, remedy)))


def _make_parents(parent: Path) -> None:
    if not parent.exists():
        _make_parents(parent.parent)
        parent.mkdir(exist_ok=True)
        filesystem.fsync(parent.parent)
    elif not parent.is_dir():
        raise FolderError(f"{parent}: this is a file, not a folder. Choose another folder.")


def _copy_ownership(target: Path, place: Path) -> int:
    """Give the new folder the owner of the one that it replaces, and close it to others until it is complete.

    Returns the mode that it gets then: that of the folder that it replaces.
    """
    mode = S_IMODE(place.stat().st_mode)
    if target.exists():
        status = target.stat()
        mode = S_IMODE(status.st_mode)
        with suppress(PermissionError):
            os.chown(place, status.st_uid, status.st_gid)
    place.chmod(mode & ~0o077)
    return mode


def _write_files(place: Path, contents: Mapping[str, FileContent], editable: set[str]) -> Manifest:
    """Write all files and then the manifest into a new folder, with fsync for each."""
    files: dict[str, FileRecord] = {}
    for name, content in contents.items():
        path = place / name
        with filesystem.file_in_errors(path):
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                content(path)
            if not path.is_file() or path.is_symlink():
                raise _argument_error(f"files[{name!r}]", "a function that writes a file to its path",
                                      "one that does not")
            files[name] = hash_file(path)
            filesystem.fsync(path)
    strays = {path.name for path in place.iterdir()} - {*files}
    if strays:
        raise _argument_error("files", "functions that write only to their path",
                              f"one that also writes {sorted(strays)[0]!r}")
    manifest = Manifest({name: files[name] for name in files if name not in editable},
                        {name: files[name] for name in files if name in editable})
    part = place / f".{MANIFEST_FILE}.part"  # the manifest is complete or absent, even after a power failure
    with filesystem.file_in_errors(part):
        part.write_bytes(manifest.encoded())
        filesystem.fsync(part)
    os.rename(part, place / MANIFEST_FILE)
    return manifest


def _locate(folder: FolderPath) -> Path:
    """The current path of the folder: without atomic exchange, it is under its backup name for a moment."""
    target = Path(os.path.realpath(folder))
    # The target twice: the folder may come back between the two checks.
    for place in (target, backup_path(target), target) if target.name else (target,):
        if place.is_dir():
            return place
    if os.path.lexists(target):
        raise FolderError(f"{target}: this is a file, not a folder. Give the folder that contains it.")
    raise FolderError(f"{target}: there is no such folder. Check the name and the current directory.")


def _is_unchanged(place: Path, before: os.stat_result) -> bool:
    """Whether the folder at this path is still the same one."""
    try:
        return os.path.samestat(place.stat(), before)
    except FileNotFoundError:
        return False
