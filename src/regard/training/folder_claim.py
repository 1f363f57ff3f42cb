"""The claim of a training on its output folder: locked while it runs, and removed if it fails before the first step.

    with claim_folder(output, processes, resume=False) as claim:
        ...                 read the data, build the model
        claim.keep()        the training starts: from here on the folder stays
        ...

A claimed folder has a manifest without files, so that no other program takes it for its own, and a lock in
`checkpoints/` against other trainings. If the training fails or is interrupted before `keep`, the folder, and the
folders above it that were created for it, are removed; one that was there and empty is empty again. The folder is
renamed before its files are deleted, so that another process sees a claimed folder or none. What was in the folder
before, or is not from regard, is never removed. Claiming and removing exclude each other, by a lock beside the folder.

Of several processes of a training the first one claims the folder for all.
"""

import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from regard.storage import filesystem
from regard.storage import folder as folders
from regard.storage.filesystem import FolderError
from regard.storage.metrics import METRICS_FILE
from regard.tasks.task import WEIGHTS_FILE
from regard.training.checkpoints import LOCK_FILE, CheckpointManager, FolderInUseError
from regard.training.distributed import DistributedContext
from regard.training.resolution import CHECKPOINTS_FOLDER, DATA_FOLDER, REVERSE_FOLDER, STAGES_FILE

TENSORBOARD_FOLDER = "track"
"""In the output folder: the event files of TensorBoard."""
OWN_NAMES = {folders.MANIFEST_FILE, CHECKPOINTS_FOLDER, DATA_FOLDER, METRICS_FILE, TENSORBOARD_FOLDER, REVERSE_FOLDER}
"""What a training writes into its folder before the first model is saved."""
ATTEMPTS = 10
"""How often a folder is claimed again because a training that failed has just removed the folders above it."""


class FolderClaim:
    """A claimed folder, which is removed at the end unless it is kept.

    Args:
        outer: the claim of the folder that this one is in, which is kept with it.
    """

    def __init__(self, outer: "FolderClaim | None" = None) -> None:
        self.kept, self.outer = False, outer

    def keep(self) -> None:
        """The training starts, so the folder stays, whatever happens."""
        self.kept = True
        if self.outer is not None:
            self.outer.keep()


class _FolderOrigin(NamedTuple):
    """Whether a folder was created by this claim, and the mode of the empty folder that was there before."""

    created: bool
    mode: int | None = None


@contextmanager
def claim_folder(output: Path, processes: DistributedContext, *, resume: bool,
                 outer: FolderClaim | None = None) -> Iterator[FolderClaim]:
    """Claim the output folder of a training, or lock the folder of the training that is resumed."""
    claim = FolderClaim(outer)
    if not processes.main:
        processes.barrier()
        yield claim
        return
    target = Path(os.path.realpath(output))
    parents = [parent for parent in target.parents if not os.path.exists(parent)]
    origin, completed = _FolderOrigin(created=False), False
    with ExitStack() as stack, _raise_on_termination(alone=processes.count == 1):
        try:
            origin = _lock(output, target, resume, stack)
            processes.barrier()
            yield claim
            completed = True
        finally:
            if not completed and not claim.kept:
                if origin.created:
                    with suppress(OSError, FolderError), _claiming(target):  # the error that ended it counts more
                        _remove(target, origin.mode)
                for parent in parents:
                    with suppress(OSError):  # something else is in it by now
                        parent.rmdir()


def _lock(output: Path, target: Path, resume: bool, stack: ExitStack) -> "_FolderOrigin":
    """Create the folder if there is none or an empty one, and lock it; the stack releases the lock."""
    if resume and not os.path.lexists(target):
        raise FolderError(f"{output}: There is no such folder, so there is no training to resume. Leave out --resume "
                          "to start one.")
    attempt = 1
    while True:
        try:
            with _claiming(target):
                _check_folder(output, resume)
                created, mode = folders.is_vacant(target), target.stat().st_mode if target.is_dir() else None
                if created:
                    folders.save(target, {})
                try:
                    stack.enter_context(CheckpointManager(output / CHECKPOINTS_FOLDER, keep=1).lock())
                except (OSError, FolderError, KeyboardInterrupt) as error:  # such as a file system without locks
                    if created and not isinstance(error, FolderInUseError):
                        _remove(target, mode)
                    raise
                return _FolderOrigin(created, mode)
        except FileNotFoundError:  # a failed training has removed the folders above that it had created
            if attempt == ATTEMPTS:
                raise
            attempt += 1


@contextmanager
def _claiming(target: Path) -> Iterator[None]:
    """Keep other trainings from claiming or removing this folder meanwhile."""
    if not target.name:
        folders.prepare(target)  # which refuses the root
    with ExitStack() as stack:
        with filesystem.folder_in_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(filesystem.file_lock(target.with_name(f".{target.name}.claim")))
        yield


def _check_folder(output: Path, resume: bool) -> None:
    """Refuse a folder that cannot be used for this training."""
    folders.prepare(output)
    started = (bool(CheckpointManager(output / CHECKPOINTS_FOLDER, keep=1).steps())
               or (output / STAGES_FILE).exists())
    unfinished = resume and (output / DATA_FOLDER).exists()  # killed after its first model, before a checkpoint
    if not started and not unfinished and (output / WEIGHTS_FILE).exists():
        raise FolderError(f"{output}: There is a model in this folder, and no training to resume. Choose another "
                          "folder.")
    if started and not resume:
        raise FolderError(f"{output}: There is a training in this folder already. Resume it with --resume, or choose "
                          "another folder.")
    if resume and folders.is_vacant(output):
        raise FolderError(f"{output}: The folder is empty, so there is no training to resume. Leave out --resume to "
                          "start one.")


def _remove(target: Path, mode: int | None) -> None:
    """Remove a claimed folder and all in it; with a mode, an empty folder of that mode stays.

    A folder with a file that regard did not write, or with a checkpoint, stays as it is.
    """
    if not target.is_dir() or not {path.name for path in target.iterdir()} <= OWN_NAMES:
        return
    checkpoints = target / CHECKPOINTS_FOLDER
    if checkpoints.is_dir() and {path.name for path in checkpoints.iterdir()} - {LOCK_FILE}:
        return
    removed = target.with_name(f".{target.name}.removed-{secrets.token_hex(4)}")
    os.rename(target, removed)
    if mode is not None:
        target.mkdir()
        target.chmod(mode & 0o7777)
    shutil.rmtree(removed, ignore_errors=True)


@contextmanager
def _raise_on_termination(*, alone: bool) -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, so that a terminated training removes its folder.

    With several processes the signal keeps its effect: a process that waits for others could not act on it.
    """
    if not alone or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
