"""Checkpoints: the last training states and the best one, each complete, in a folder of their own.

    step-00001000/     state.safetensors, or one file for each process that holds a shard of it
                       values.json: the rest of the state, the step, and the best step so far
                       manifest.json: length and sha256 of the other files
    newest.json        the step that was saved last, and the best one; written last
    lock               held by the training that writes here

A save becomes visible only when it is complete, so a killed save or a full disk leaves what was there. With every
checkpoint that is kept, the best one of its time is kept too. Removal renames a checkpoint first and deletes it
afterwards, so that half of one is never taken for a checkpoint; files that regard did not write are kept. The lock is
on the file itself, not on its name, so that it survives the replacement of the folder around it.

This module knows folders and steps, not what the state contains nor when it is saved.
"""

import errno
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from regard import checks
from regard._version import __version__
from regard.storage import filesystem
from regard.storage import folder as folders
from regard.storage.filesystem import FolderError
from regard.storage.folder import SavedFolder
from regard.training import snapshot as snapshots
from regard.training.snapshot import Snapshot, StoredState, TensorShard, local_shard

FORMAT = 1
VALUES, POINTER = "values.json", "newest.json"
LOCK_FILE = "lock"
WRITING_FOLDER = ".writing"
"""Where the files of a new checkpoint are until it is complete."""
# The second alternative exists briefly while a folder is replaced on a system that cannot exchange two names.
STEP_NAME = re.compile(r"step-(\d{8,})|\.step-(\d{8,})\.old")
INTERRUPTED_SAVE = re.compile(r"\.(step-\d{8,})\.(saving|lock|old)")
"""What a killed save of a folder leaves beside it."""
LEFTOVERS = re.compile(r"\.removed-.*|\.writing|\.newest\.json(\.[0-9a-f]{8})?\.part|(newest\.json|lock)\.kept\d*")
"""What killed removals and writes leave, and a killed save of the folder around this one."""
CHECKPOINT_FILES = re.compile(r"((manifest|values)\.json|state(-\d+-of-\d+)?\.safetensors)(\.kept\d*)?")


class FolderInUseError(FolderError):
    """Another training has locked the folder."""


class NewerFormatError(FolderError):
    """A checkpoint was written by a newer version of regard."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A complete checkpoint."""

    step: int
    best: int | None
    """The best step at that time."""
    snapshot: StoredState
    """To be read before the next checkpoint is saved, which may remove this one."""
    notes: tuple[str, ...] = ()
    """Why newer checkpoints were skipped."""


class CheckpointManager:
    """The checkpoints in a folder, of which the last `keep` are kept, and the best."""

    def __init__(self, folder: str | os.PathLike[str], keep: int) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise checks.wrong("keep", "a whole number, at least 1", repr(keep))
        self.folder, self.keep = Path(folder), keep

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, complete or not, in order."""
        return sorted(list_steps(self.folder))

    def lock(self) -> AbstractContextManager[None]:
        """Lock the folder against other trainings, and create it if necessary; see `training_lock`."""
        return training_lock(self.folder)

    def save(self, step: int, snapshot: Snapshot, best: int | None = None, *, rank: int = 0, processes: int = 1,
             barrier: Callable[[], None] = lambda: None) -> list[str]:
        """Save the state after this step, and remove old checkpoints. Returns notes on what could not be removed.

        All processes must call it. Each writes its shards; whole tensors are the same on all, and rank 0 writes them.
        If a process fails, all still reach the barriers, and there is no new checkpoint.

        Args:
            best: the best step so far; its checkpoint is not removed.
            barrier: waits until all processes have called it.
        """
        _check_steps(step, best)
        values = _encode_values(step, best, snapshot.values)
        tensors = {name: local_shard(tensor) if not isinstance(tensor, TensorShard) else tensor
                   for name, tensor in snapshot.tensors.items()}
        sharded = any(isinstance(tensor, TensorShard) for tensor in tensors.values())
        files = _state_files(processes if sharded else 1)
        own = {name: tensor for name, tensor in tensors.items() if rank == 0 or isinstance(tensor, TensorShard)}
        target, place = self.folder / step_folder(step), self.folder / WRITING_FOLDER
        notes: list[str] = []
        with _reaching(barrier), ExitStack() as undo:                       # wait until the checkpoint is in place
            with _reaching(barrier):                                        # wait until all files are written
                with _reaching(barrier), filesystem.folder_in_errors(target):  # wait until there is a folder for them
                    if rank == 0:
                        self.folder.mkdir(exist_ok=True)
                        notes += remove_leftovers(self.folder)
                        undo.callback(shutil.rmtree, place, ignore_errors=True)
                        place.mkdir()
                if rank < len(files):
                    with filesystem.folder_in_errors(target):
                        snapshots.write_shards(place / files[rank], own)
            if rank == 0:
                notes += self._put(step, [place / file for file in files], values)
                with filesystem.folder_in_errors(target):
                    self._write_pointer(step, best)
                    notes += self._remove_old(step)
        return notes

    def load(self) -> LoadedCheckpoint | None:
        """The newest complete checkpoint; None if there never was one, a FolderError if none is complete.

        Every byte of it is read and verified. One process does this, and sends the step to the others.
        """
        steps, problems = self.steps()[::-1], list[str]()
        newest = self._read_pointer()
        if isinstance(newest, str):
            problems.append(newest)
        elif newest is not None and newest not in steps:
            problems.append(f"{self.folder / POINTER} names {step_folder(newest)}, which does not exist.")
        for step in steps:
            try:
                self._refuse_newer(step)
                loaded = folders.load(self.folder / step_folder(step), partial(_load_checkpoint, step))
            except NewerFormatError:
                raise
            except ValueError as error:
                problems.append(str(error))
            else:
                used = f"The checkpoint {step_folder(step)} is used instead."
                return replace(loaded, notes=tuple(f"{problem} {used}" for problem in problems))
        if problems:
            raise FolderError("\n  ".join((f"{self.folder}: There is no complete checkpoint to resume from, among "
                                          f"{checks.plural(len(steps), 'checkpoint')}:", *problems)))
        return None

    def at(self, step: int) -> LoadedCheckpoint:
        """The checkpoint of this step, which `load` has verified: only the headers of its files are read."""
        self._refuse_newer(step)
        place = self.folder / step_folder(step)
        return _load_checkpoint(step, SavedFolder(place, folders.read_manifest(place)))

    def clean_up(self, step: int, best: int | None) -> list[str]:
        """Finish what a killed save of this step, the newest, may have started. Returns what could not be removed."""
        with filesystem.folder_in_errors(self.folder):
            notes = remove_leftovers(self.folder)
            self._write_pointer(step, best)
            return notes + self._remove_old(step)

    def _put(self, step: int, files: Sequence[Path], values: bytes) -> list[str]:
        """Make a checkpoint of the files of all processes."""
        target, notes = self.folder / step_folder(step), list[str]()
        missing = [path.name for path in files if not path.exists()]
        if missing:
            raise FolderError(f"{target}: The checkpoint is not saved: a process has not written {missing[0]}. The "
                              "error of that process says why.")
        StoredState.of(files, {})
        if target.exists():
            try:
                folders.read_manifest(target)
            except FolderError:  # a damaged checkpoint of this very step, which cannot be replaced
                notes += remove_steps(self.folder, [step])
        folders.save(target, {**{path.name: partial(os.rename, path) for path in files}, VALUES: values})
        return notes

    def _write_pointer(self, step: int, best: int | None) -> None:
        """Record which checkpoint is the newest."""
        content = json.dumps({"format": FORMAT, "step": step, "best": best}) + "\n"
        filesystem.write_file(self.folder / POINTER, content.encode())
        filesystem.fsync(self.folder)

    def _read_pointer(self) -> int | str | None:
        """The newest step; None if there is no pointer, or a message if it cannot be read."""
        path = self.folder / POINTER
        if not os.path.lexists(path):
            return None
        step = _read_object(path).get("step")
        return step if isinstance(step, int) else f"{path} is damaged."

    def _remove_old(self, step: int) -> list[str]:
        """Remove all checkpoints but the last ones, and the best step of each of these.

        Later steps than this one were skipped when the training was resumed, and are removed too.
        """
        steps = self.steps()
        last = [number for number in steps if number <= step][-self.keep:]
        best = [_read_object(self.folder / step_folder(number) / VALUES).get("best") for number in last]
        return remove_steps(self.folder, [number for number in steps if number not in (*last, *best)])

    def _refuse_newer(self, step: int) -> None:
        """Refuse a manifest of a newer format, rather than skip the checkpoint."""
        path = self.folder / step_folder(step) / folders.MANIFEST_FILE
        _check_format(path, _read_object(path), folders.MANIFEST_FORMAT)


def _load_checkpoint(step: int, saved: SavedFolder) -> LoadedCheckpoint:
    """The checkpoint in a folder."""
    path, content = saved.folder / VALUES, _parse_object(saved.read_bytes(VALUES))
    _check_format(path, content, FORMAT)
    if not {"step", "best", "values"} <= content.keys():
        raise FolderError(f"{path}: The file is damaged: it does not have step, best and values.")
    if content["step"] != step:
        raise FolderError(f"{path}: The file is of step {content['step']!r:.20}, but its folder is of step {step}.")
    files = [saved.path(name) for name in saved.manifest.files if name != VALUES]
    return LoadedCheckpoint(step, content["best"], StoredState.of(files, content["values"]))


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one if the file is missing or has something else in it."""
    with suppress(OSError):
        return _parse_object(path.read_bytes())
    return {}


def _parse_object(data: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        content = json.loads(data)
        return content if isinstance(content, dict) else {}
    return {}


def _check_format(path: Path, content: Mapping[str, Any], known: int) -> None:
    form, version = content.get("format"), content.get("regard")
    # A newer format of this very version is a flipped bit, and so a damaged file.
    if isinstance(form, int) and form > known and version != __version__:
        raise NewerFormatError(f"{path}: regard {version!s:.40} wrote this file in format {form}; regard {__version__} "
                               f"reads formats up to {known}. Install regard {version!s:.40} to resume this training.")


def _encode_values(step: int, best: int | None, values: Mapping[str, Any]) -> bytes:
    """The content of values.json."""
    content = {"format": FORMAT, "regard": __version__, "step": step, "best": best, "values": values}
    try:
        text = json.dumps(content, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise checks.wrong("values", "plain JSON", f"something else ({error})") from None
    if json.loads(text) != content:
        raise checks.wrong("values", "plain JSON, equal when it is read again", "different then",
                           "Use lists instead of tuples, and strings as keys.")
    return text.encode() + b"\n"


def _state_files(count: int) -> list[str]:
    """The names of the state files, one for each process that has a shard."""
    if count == 1:
        return ["state.safetensors"]
    return [f"state-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def _check_steps(step: object, best: object) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise checks.wrong("step", "a whole number, at least 0", repr(step))
    if best is not None and (isinstance(best, bool) or not isinstance(best, int) or not 0 <= best <= step):
        raise checks.wrong("best", f"a step, at most {step}, or None", repr(best))


@contextmanager
def _reaching(barrier: Callable[[], None]) -> Iterator[None]:
    """Reach the barrier even after an error, so that the other processes do not wait forever."""
    try:
        yield
    finally:
        barrier()


def step_folder(step: int) -> str:
    """The name of the folder of a step."""
    return f"step-{step:08}"


def list_steps(folder: Path) -> set[int]:
    """The steps that have a checkpoint in this folder, complete or not."""
    if not folder.is_dir():
        return set()
    matches = [match for path in folder.iterdir() if (match := STEP_NAME.fullmatch(path.name))]
    digits = {match[1] or match[2] for match in matches}
    return {int(number) for number in digits if step_folder(int(number)) == f"step-{number}"}


def remove_steps(folder: Path, steps: Iterable[int]) -> list[str]:
    """Remove the checkpoints of these steps. Returns notes on what could not be removed, which is tried again later."""
    notes: list[str] = []
    renamed: list[Path] = []
    for step in steps:
        path = folder / step_folder(step)
        foreign = _foreign_file(path)
        if foreign is not None:
            notes.append(f"{path} is kept: it contains {foreign!r}, which regard did not write.")
            continue
        target = folder / f".removed-{path.name}-{secrets.token_hex(4)}"
        try:
            os.rename(path, target)
        except OSError as error:
            notes.append(f"{path} could not be removed: {error.strerror}.")
        else:
            renamed.append(target)
    if renamed:
        filesystem.fsync(folder)  # the names are gone for good before the first file is deleted
    return notes + [note for path in renamed for note in _delete(path)]


def remove_leftovers(folder: Path) -> list[str]:
    """Remove what killed saves and removals have left, and finish what they started. Returns notes on failures."""
    notes: list[str] = []
    for path in sorted(folder.iterdir()):
        if LEFTOVERS.fullmatch(path.name):
            notes += _delete(path)
        elif left := INTERRUPTED_SAVE.fullmatch(path.name):
            try:
                folders.prepare(folder / left[1])
            except FolderError as error:
                notes.append(str(error))
    return notes


def _foreign_file(path: Path) -> str | None:
    """A file in a checkpoint, or in its place, that regard did not write; None if there is none."""
    if path.is_symlink() or not path.is_dir():
        return path.name
    return next((inner.name for inner in sorted(path.iterdir())
                 if not CHECKPOINT_FILES.fullmatch(inner.name) or inner.is_dir()), None)


def _delete(path: Path) -> list[str]:
    """Delete a file or a folder. Returns a note if that failed."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        return [f"{path} could not be removed: {error.strerror}."]
    return []


@contextmanager
def training_lock(folder: Path) -> Iterator[None]:
    """Lock a folder against other trainings; a second one is refused at once, and told which process has the lock.

    The lock ends with its process, even a killed one. Of several processes of a training the first one locks.
    """
    with filesystem.folder_in_errors(folder):
        folder.mkdir(exist_ok=True)
        handle = _acquire_lock(folder / LOCK_FILE)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        # The file stays: if it were removed, two trainings could lock two files of one name.
        os.ftruncate(handle, 0)
        os.close(handle)


def _acquire_lock(path: Path) -> int:
    """The handle of the locked file."""
    if os.name != "posix":
        raise FolderError(f"Training needs a POSIX system (Linux, macOS), but this one is {os.name}.")
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
        os.close(handle)
        raise FolderInUseError(f"{path.parent}: another training uses this folder ({holder or 'an unknown process'}). "
                               "Wait until it ends, or choose another folder.") from None
    except OSError as error:
        os.close(handle)
        raise OSError(error.errno, f"no locks on this file system: {error.strerror}", str(path)) from error
    if not filesystem.is_open_file(handle, path):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "another process has just removed the folder", str(path))
    return handle
