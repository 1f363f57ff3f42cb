"""Operating-system services for crash-safe saving: fsync, a lock between processes, and an atomic exchange of two names.

This module knows paths and error numbers. It does not know what the folders contain.
"""

import ctypes
import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard import checks

LOCK_TIMEOUT = 300.0
"""Seconds to wait for another process that saves into the same folder."""
LOCK_POLL = 0.02

# What a person can mend by choosing another place or other permissions. The rest, such as a full disk, is an OSError.
USER_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG,
               errno.EBUSY, errno.EXDEV, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTEMPTY}
# Of an exchange: not known to this kernel or this file system, or not allowed in this container.
NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


@contextmanager
def folder_in_errors(folder: Path) -> Iterator[None]:
    """Errors of the system inside say which folder could not be saved, at which file, and why."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        where = os.fsdecode(where) if isinstance(where, str | bytes | os.PathLike) else str(folder)
        reason = error.strerror or str(error)
        if error.errno in USER_ERRORS:
            raise folder_error(folder, "a place where regard can save", f"not: {reason} ({where})",
                               "Choose another folder, or mend this.") from error
        raise OSError(error.errno or errno.EIO, f"{folder} could not be saved: {reason}", where) from error


@contextmanager
def file_in_errors(path: Path) -> Iterator[None]:
    """Errors of the system inside name this file where they name none, as those of writing do not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems write names at once and know no syncing of folders.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(handle)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of this name against other processes and threads. It ends with its holder, even a killed one.

    The file is removed at the end. One that was left by a killed process holds nobody up.
    """
    handle = _acquire_lock(path)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()  # before the release: who gets the lock of a removed file sees so, and tries again
        os.close(handle)


def _acquire_lock(path: Path) -> int:
    if os.name != "posix":
        raise FolderError(f"Saving needs a POSIX system (Linux, macOS), but this one is {os.name}.")
    import fcntl

    end = time.monotonic() + LOCK_TIMEOUT
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_open_file(handle, path):
                return handle
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(handle)
                raise folder_error(path, f"free within {LOCK_TIMEOUT:.0f} seconds", "held by another process",
                                   "Two runs must not save into one folder.") from None
            time.sleep(LOCK_POLL)
        except OSError as error:
            os.close(handle)
            raise OSError(error.errno, f"no locks on this file system: {error.strerror}", str(path)) from error
        os.close(handle)


def _is_open_file(handle: int, path: Path) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def exchange(first: Path, second: Path) -> bool:
    """Swap what two names stand for, in one step that nobody sees half done. False where the system cannot."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    rename.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(second))


@contextmanager
def pinned_folder(folder: Path) -> Iterator[os.stat_result]:
    """The identity of a folder, which no other gets as long as it is held, even if this one is removed meanwhile."""
    if os.name != "posix":
        yield folder.stat()
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield os.fstat(handle)
    finally:
        os.close(handle)


class FolderError(ValueError):
    """A folder, or a file in it, is not what it must be. The message names it, and what to do."""


def folder_error(path: Path | str, expected: str, got: object, remedy: str = "") -> FolderError:
    """The error for a path that is not what it must be; the caller raises it."""
    return FolderError(str(checks.wrong(str(path), expected, got, remedy)))
