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

import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard import checks
from regard._version import __version__
from regard.storage import filesystem
from regard.storage import folder as folders
from regard.storage import folder as manifests
from regard.storage.filesystem import FolderError, folder_error
from regard.storage.folder import SavedFolder
from regard.training import snapshot as shards
from regard.training.snapshot import Snapshot, StoredState, TensorShard, local_shard

FORMAT = 1
VALUES, POINTER = "values.json", "newest.json"


class NewerFormatError(FolderError):
    """A checkpoint was written by a newer regard than this one."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint that was found whole."""

    step: int
    best: int | None
    """The step that was the best by then."""
    snapshot: StoredState
    """Read what is needed before the next checkpoint is saved, which may remove this one."""
    notes: tuple[str, ...] = ()
    """Why newer ones were passed over."""


class CheckpointManager:
    """The checkpoints in a folder, of which the last `keep` stay, and the best."""

    def __init__(self, folder: str | os.PathLike[str], keep: int) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise checks.wrong("keep", "a whole number, at least 1", repr(keep))
        self.folder, self.keep = Path(folder), keep

    def steps(self) -> list[int]:
        """The steps of which there are checkpoints, whole or not, in order."""
        return sorted(list_steps(self.folder))

    def hold(self) -> AbstractContextManager[None]:
        """Keep other trainings out of this folder, which is made where it is not there; see `holding.held`."""
        return training_lock(self.folder)

    def save(self, step: int, snapshot: Snapshot, best: int | None = None, *, rank: int = 0, processes: int = 1,
             barrier: Callable[[], None] = lambda: None) -> list[str]:
        """Store the state after this step, and remove what need not stay. Returns what went wrong with the removal.

        Of several processes all must call it. Each writes the parts that it holds; what is not a part is the same on
        all, and the first (rank 0) writes it. `barrier` waits until all have come to it. If it fails anywhere, all get
        through the barriers, and there is no new checkpoint.

        Args:
            best: the step that is the best by now; its checkpoint is not removed.
        """
        _check_steps(step, best)
        values = _encode_values(step, best, snapshot.values)
        tensors = {name: local_shard(tensor) if not isinstance(tensor, TensorShard) else tensor
                   for name, tensor in snapshot.tensors.items()}
        parted = any(isinstance(tensor, TensorShard) for tensor in tensors.values())
        files = _state_files(processes if parted else 1)
        own = {name: tensor for name, tensor in tensors.items() if rank == 0 or isinstance(tensor, TensorShard)}
        target, place = self.folder / step_folder(step), self.folder / WRITING_FOLDER
        notes: list[str] = []
        with _reaching(barrier), ExitStack() as undo:               # nobody goes on before it is done
            with _reaching(barrier):                                # nor makes a folder of files that are not all there
                with _reaching(barrier), filesystem.folder_in_errors(target):       # nor writes where there is no place yet
                    if rank == 0:
                        self.folder.mkdir(exist_ok=True)
                        notes += remove_leftovers(self.folder)
                        undo.callback(shutil.rmtree, place, ignore_errors=True)
                        place.mkdir()
                if rank < len(files):
                    with filesystem.folder_in_errors(target):
                        shards.write_shards(place / files[rank], own)
            if rank == 0:
                notes += self._put(step, [place / file for file in files], values)
                with filesystem.folder_in_errors(target):
                    self._point(step, best)
                    notes += self._thinned(step)
        return notes

    def load(self) -> LoadedCheckpoint | None:
        """The newest whole checkpoint; None where there never was one, a FolderError where none is whole.

        Every byte of it is read and compared. Of several processes one does this, and tells the others the step.
        """
        steps, refused = self.steps()[::-1], list[str]()
        named = self._named()
        if isinstance(named, str):
            refused.append(named)
        elif named is not None and named not in steps:
            refused.append(f"{self.folder / POINTER} names {step_folder(named)}, which is not there.")
        for step in steps:
            try:
                self._refuse_newer(step)
                loaded = folders.load(self.folder / step_folder(step), partial(_load_checkpoint, step))
            except NewerFormatError:
                raise
            except ValueError as error:
                refused.append(str(error))
            else:
                used = f"The checkpoint {step_folder(step)} is used instead."
                return LoadedCheckpoint(loaded.step, loaded.best, loaded.snapshot, tuple(f"{why} {used}" for why in refused))
        if refused:
            raise folder_error(self.folder, "a folder with a whole checkpoint", "one without",
                        "\n  ".join((f"What is there ({len(steps)} checkpoints):", *refused)))
        return None

    def at(self, step: int) -> LoadedCheckpoint:
        """The checkpoint of this step, which `load` has found whole: of the tensors only names and lengths are read."""
        self._refuse_newer(step)
        place = self.folder / step_folder(step)
        return _load_checkpoint(step, SavedFolder(place, manifests.read_manifest(place)))

    def tidy(self, step: int, best: int | None) -> list[str]:
        """End what a killed save of this step, the newest, may have begun. Returns what could not be removed."""
        with filesystem.folder_in_errors(self.folder):
            notes = remove_leftovers(self.folder)
            self._point(step, best)
            return notes + self._thinned(step)

    def _put(self, step: int, files: Sequence[Path], values: bytes) -> list[str]:
        """Make a checkpoint of files that were written aside, all of whose parts must be there."""
        target, notes = self.folder / step_folder(step), list[str]()
        missing = [path.name for path in files if not path.exists()]
        if missing:
            raise folder_error(target, f"written by {len(files)} processes", f"without {missing[0]}",
                        "The process that holds it tells why.")
        StoredState.of(files, {})
        if target.exists():
            try:
                manifests.read_manifest(target)
            except FolderError:  # one of this very step that is damaged, and so could not be replaced
                notes += remove_steps(self.folder, [step])
        folders.save(target, {**{path.name: partial(os.rename, path) for path in files}, VALUES: values})
        return notes

    def _point(self, step: int, best: int | None) -> None:
        """Tell which checkpoint is the newest."""
        part = self.folder / f".{POINTER}.part"
        part.write_text(json.dumps({"format": FORMAT, "step": step, "best": best}) + "\n")
        filesystem.fsync(part)
        os.replace(part, self.folder / POINTER)
        filesystem.fsync(self.folder)

    def _named(self) -> int | str | None:
        """The step that the pointer tells, or None where there is none, or why it cannot be read."""
        path = self.folder / POINTER
        if not os.path.lexists(path):
            return None
        step = _read_object(path).get("step")
        return step if isinstance(step, int) else f"{path} cannot be read."

    def _thinned(self, step: int) -> list[str]:
        """Remove what need not stay after this step: all but the last ones, and the best that each of these knows.

        What is of later steps was passed over when this training was resumed, and is not of its past.
        """
        steps = self.steps()
        last = [number for number in steps if number <= step][-self.keep:]
        best = [_read_object(self.folder / step_folder(number) / VALUES).get("best") for number in last]
        return remove_steps(self.folder, [number for number in steps if number not in (*last, *best)])

    def _refuse_newer(self, step: int) -> None:
        """Refuse a folder whose manifest is of a format that this version does not know, rather than pass it over."""
        path = self.folder / step_folder(step) / manifests.MANIFEST_FILE
        _check_format(path, _read_object(path), manifests.MANIFEST_FORMAT)


def _load_checkpoint(step: int, saved: SavedFolder) -> LoadedCheckpoint:
    """What a folder holds."""
    path, content = saved.folder / VALUES, _parse_object(saved.read_bytes(VALUES))
    _check_format(path, content, FORMAT)
    if not {"step", "best", "values"} <= content.keys():
        raise folder_error(path, "the values of a checkpoint", "something else")
    if content["step"] != step:
        raise folder_error(path, f"of step {step}, as its folder says", f"of step {content['step']!r:.20}")
    files = [saved.path(name) for name in saved.manifest.files if name != VALUES]
    return LoadedCheckpoint(step, content["best"], StoredState.of(files, content["values"]))


def _read_object(path: Path) -> dict[str, Any]:
    """The object in a file of JSON; an empty one where there is no such file, or something else in it."""
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
    # Another format of this very version is one flipped bit, and so a damaged file.
    if isinstance(form, int) and form > known and version != __version__:
        expected, got = f"of format {known}, which regard {__version__} reads", f"{form}, of regard {version!s:.40}"
        raise NewerFormatError(str(checks.wrong(str(path), expected, got, "Install that version to resume this training.")))


def _encode_values(step: int, best: int | None, values: Mapping[str, Any]) -> bytes:
    """The values as they are written."""
    content = {"format": FORMAT, "regard": __version__, "step": step, "best": best, "values": values}
    try:
        text = json.dumps(content, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise checks.wrong("values", "plain JSON", f"not ({error})") from None
    if json.loads(text) != content:
        raise checks.wrong("values", "plain JSON, equal when it is read again", "not",
                           "Use lists in place of tuples, and strings as keys.")
    return text.encode() + b"\n"


def _state_files(count: int) -> list[str]:
    """The names of the files of the state, one for each process that has a part of it."""
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
    """Come to the barrier in any case: if one process fails, the others must not wait for it for ever."""
    try:
        yield
    finally:
        barrier()


# ---- removal: How checkpoints go: renamed at once, then removed, so that no half of one is ever taken for a checkpoint.
#
#     found(folder)                the steps of which there are checkpoints
#     removed(folder, steps)       these are gone; returns what could not be removed, and why
#     tidied(folder)               what killed saves and removals have left is gone
#
# Only what regard wrote is removed: a checkpoint into which a person has put something stays. What cannot be removed is
# told and tried again at the next time; a training does not end for it. It knows names. It does not know which
# checkpoints must stay, nor how they are written.

WRITING_FOLDER = ".writing"
"""Where the files of a new checkpoint are before they are one."""
# The second is where a folder is for a moment when it is replaced on a system that cannot exchange two names.
STEP_NAME = re.compile(r"step-(\d{8,})|\.step-(\d{8,})\.old")
INTERRUPTED_SAVE = re.compile(r"\.(step-\d{8,})\.(saving|lock|old)")
"""What a killed save of a folder leaves beside it."""
LEFTOVERS = re.compile(r"\.removed-.*|\.writing|(newest\.json|lock)\.kept\d*")
"""What is left of removals, and of the folder around this one when a save of it was killed."""
CHECKPOINT_FILES = re.compile(r"((manifest|values)\.json|state(-\d+-of-\d+)?\.safetensors)(\.kept\d*)?")
"""The files of a checkpoint."""


def step_folder(step: int) -> str:
    """The name of the folder of a step."""
    return f"step-{step:08}"


def list_steps(folder: Path) -> set[int]:
    """The steps of which there are checkpoints in this folder, whole or not."""
    if not folder.is_dir():
        return set()
    matches = [match for path in folder.iterdir() if (match := STEP_NAME.fullmatch(path.name))]
    digits = {match[1] or match[2] for match in matches}
    return {int(number) for number in digits if step_folder(int(number)) == f"step-{number}"}


def remove_steps(folder: Path, steps: Iterable[int]) -> list[str]:
    """Remove the checkpoints of these steps: first their names, then what is in them. Returns what could not be."""
    notes: list[str] = []
    renamed: list[Path] = []
    for step in steps:
        path = folder / step_folder(step)
        strange = _foreign_file(path)
        if strange is not None:
            notes.append(f"{path} is kept: there is {strange!r} in it, which regard did not make.")
            continue
        goal = folder / f".removed-{path.name}-{secrets.token_hex(4)}"
        try:
            os.rename(path, goal)
        except OSError as error:
            notes.append(f"{path} could not be removed: {error.strerror}.")
        else:
            renamed.append(goal)
    if renamed:
        filesystem.fsync(folder)  # the names are gone for good before the first file is
    return notes + [note for path in renamed for note in _delete(path)]


def remove_leftovers(folder: Path) -> list[str]:
    """Remove what killed saves and removals have left, and end what they began. Returns what could not be."""
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
    """Something in the place of a checkpoint that regard did not make; None where there is no such thing."""
    if path.is_symlink() or not path.is_dir():
        return path.name
    return next((inner.name for inner in sorted(path.iterdir()) if not CHECKPOINT_FILES.fullmatch(inner.name) or inner.is_dir()),
                None)


def _delete(path: Path) -> list[str]:
    """Remove a file or a folder. Returns why it is still there, if it is."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        return [f"{path} could not be removed: {error.strerror}."]
    return []


# ---- holding: One training at a time in a folder: a lock that ends with its holder, even a killed one.
#
#     with held(folder):      the file `lock` in it, locked; it says who holds it
#
# The lock is on the file itself, not on its name: it goes on when the folder around it is replaced by one into which the
# file is linked or moved, as happens to a model's folder each time that it is saved. It knows nothing of checkpoints.

LOCK_FILE = "lock"


@contextmanager
def training_lock(folder: Path) -> Iterator[None]:
    """Keep others out of this folder. Who comes second is refused at once, and told who is there.

    The folder is made where it is not there, in one that is. Of several processes of a training the first holds it.
    """
    with filesystem.folder_in_errors(folder):
        folder.mkdir(exist_ok=True)
        handle = _acquire_lock(folder / LOCK_FILE)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        # The file stays: if it were removed, two could hold two files of one name.
        os.ftruncate(handle, 0)
        os.close(handle)


def _acquire_lock(path: Path) -> int:
    """The open file of a lock that is held from now on."""
    if os.name != "posix":
        raise FolderError(f"Training needs a POSIX system (Linux, macOS), but this one is {os.name}.")
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
        os.close(handle)
        raise folder_error(path.parent, "free for this training", f"in use by another ({holder or 'of an unknown process'})",
                    "Wait until that one ends, or choose another folder.") from None
    except OSError as error:
        os.close(handle)
        raise OSError(error.errno, f"no locks on this file system: {error.strerror}", str(path)) from error
    return handle
