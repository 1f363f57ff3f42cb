"""How a folder takes the place of another, so that at every moment one of the two is there and whole.

    .model.lock      held by the process that saves `model`
    .model.saving    the new folder while it is written; after the exchange, the one before it until it is removed
    .model.old       the one before, only where the system cannot exchange two names in one step

What lies in the folder and was not saved by regard (notes, metrics, checkpoints) is the user's. It is in the new
folder, by hard links, before that takes its place, and nothing of it is removed that is not there. All of this runs
under the lock, so what is found at these names was left by a killed process, and `repair` ends what that began.

It knows names and manifests. It does not know what the files are, nor how they are written.
"""

import errno
import os
import shutil
from pathlib import Path

from regard.storage import manifest as manifests
from regard.storage import system
from regard.storage.manifest import NAME, Manifest, wrong

# A file system without hard links, one file system inside another, too many links, a file of somebody else, or one
# that its owner has removed by now.
NO_LINK = {errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV,
           errno.ENOENT}


def lock(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


def aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.saving")


def old(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def vacant(target: Path) -> bool:
    """Whether there is nothing at this path, or an empty folder."""
    return not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir()))


def refuse_foreign(target: Path) -> None:
    """Refuse to save where something is that regard did not save, or that cannot be moved."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise wrong(target, "a folder, or not there yet", "a file", "Choose another name.")
    if os.path.ismount(target):
        raise wrong(target, "a folder that can be moved", "a mount point", "Choose a folder inside it.")
    if vacant(target):
        return
    if not os.path.lexists(target / NAME):
        names = ", ".join(sorted(path.name for path in target.iterdir())[:3])
        raise wrong(target, "empty, or a folder that regard saved", f"another folder, with {names} in it",
                    "Choose another folder; regard does not write over what it did not make.")
    manifests.read(target)
    if not os.access(target, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise wrong(target, "writable", "write-protected", "Choose another folder, or allow writing.")


def repair(target: Path) -> None:
    """End what a killed save began: put back the folder where it is missing, and remove what is left over."""
    for left in (old(target), aside(target)):
        if not os.path.lexists(left):
            continue
        if not os.path.lexists(left / NAME):
            shutil.rmtree(left)  # the manifest is written last: this is but a part of a new folder
        elif not vacant(target):
            _bury(left, target)
        elif left == old(target) or _foreign(left):
            os.rename(left, target)
        else:
            shutil.rmtree(left)
        system.sync(target.parent)


def carry(target: Path, place: Path, new: Manifest) -> None:
    """Link into the new folder at `place` what is the user's in the one at `target`."""
    if vacant(target):
        return
    for path in _foreign(target):
        if path.name in new.files:
            raise wrong(path, "a file that regard saved", "another, with the name of one to save",
                        "Move it; regard does not write over what it did not make.")
        if path.name in new.editable:  # it was changed, so it stays as it is
            (place / path.name).unlink()
        _link(path, place / path.name)


def put(place: Path, target: Path) -> None:
    """Let the whole folder at `place` take the place of the one at `target`, and remove that."""
    if vacant(target):
        os.rename(place, target)
        system.sync(target.parent)
        return
    left = place
    if not system.exchange(place, target):
        left = old(target)
        os.rename(target, left)  # a reader who finds nothing now looks for the old one
        try:
            os.rename(place, target)
        except OSError:
            os.rename(left, target)
            raise
    system.sync(target.parent)
    try:
        _bury(left, target)
    except OSError as error:
        raise wrong(left, "removable", f"not: {error.strerror} ({error.filename})",
                    f"It was {target}, which is now the new one, saved and whole. Move what is yours.") from error


def _bury(left: Path, target: Path) -> None:
    """Remove a folder that has been replaced. What is the user's in it and not in `target` goes there."""
    present, foreign = set(left.iterdir()), _foreign(left)
    for path in foreign:
        _hand_over(path, target / path.name)
    system.sync(target)
    for path in sorted(present - set(foreign)):
        path.unlink()
    left.rmdir()


def _foreign(folder: Path) -> list[Path]:
    """What is the user's in a folder: all that the manifest does not list, and what is editable and was changed."""
    manifest = manifests.read(folder)
    return [path for path in sorted(folder.iterdir()) if _is_folder(path) or not (
        path.name in {NAME, *manifest.files}
        or (path.name in manifest.editable and path.is_file()
            and manifests.digest(path) == manifest.editable[path.name]))]


def _link(source: Path, goal: Path) -> None:
    """The same files under another path. What cannot be linked is left for `_hand_over` to move."""
    if _is_folder(source):
        goal.mkdir()
        for path in sorted(source.iterdir()):
            _link(path, goal / path.name)
        shutil.copystat(source, goal)
        system.sync(goal)
        return
    try:
        os.link(source, goal, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise


def _hand_over(source: Path, goal: Path) -> None:
    """Move a file or folder to its goal, or remove it where the very same is there. Nothing there is written over."""
    if _is_folder(source) and _is_folder(goal):
        for path in sorted(source.iterdir()):
            _hand_over(path, goal / path.name)
        source.rmdir()
    elif os.path.lexists(goal) and os.path.samestat(source.lstat(), goal.lstat()):
        source.unlink()
    else:
        os.rename(source, _free(goal))


def _free(goal: Path) -> Path:
    """The path itself, or where it is taken, one beside it that is not."""
    count, free = 1, goal
    while os.path.lexists(free):
        free = goal.with_name(f"{goal.name}.kept{count if count > 1 else ''}")
        count += 1
    return free


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
