"""Operating-system services for crash-safe saving: fsync, a lock between processes, atomic exchange of two names.

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

LOCK_TIMEOUT = 300.0
"""Seconds to wait for another process that saves into the same folder."""
LOCK_POLL = 0.02
MAX_FILE_BYTES = 1 << 28
"""Bytes of a file that is read as a whole, such as a tokenizer, at most: 256 MiB. Weights are not read this way."""

# The user can fix these with another folder or other permissions. The rest, such as a full disk, stays an OSError.
USER_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG,
               errno.EBUSY, errno.EXDEV, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTEMPTY}
# The exchange is not supported by this kernel or file system, or not allowed in this container.
NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
OS_REMEDIES = {errno.ENOSPC: " Free some space, or choose another disk.",
               errno.EDQUOT: " Your quota is used up: free some space, or choose another disk.",
               errno.EFBIG: " Files of this size are not allowed here: see `ulimit -f`, or choose another disk."}
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


@contextmanager
def folder_in_errors(folder: Path) -> Iterator[None]:
    """Add to system errors raised inside which folder could not be saved, at which file, and why."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        where = os.fsdecode(where) if isinstance(where, str | bytes | os.PathLike) else str(folder)
        reason = error.strerror or str(error)
        if error.errno in USER_ERRORS:
            raise FolderError(f"{folder}: cannot save here: {reason} ({where}). Fix that, or choose another "
                              "folder.") from error
        raise OSError(error.errno or errno.EIO, f"{folder} could not be saved: {reason}", where) from error


def describe_os_error(error: OSError, place: str = "the output") -> str:
    """One sentence about a file that could not be read or written, and what to do if that is known.

    Args:
        place: names what failed if the error does not.
    """
    name = error.filename if error.filename is not None else place
    name = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else str(name)
    return f"{name}: {error.strerror or error}.{OS_REMEDIES.get(error.errno or 0, '')}"


def write_file(path: Path, data: bytes, *, overwrite: bool = True) -> None:
    """Write a file completely or not at all; an OSError names it. Without `overwrite`, the file must be new.

    A device or a pipe is written directly. A symbolic link stays, and the file that it names is written.
    """
    if overwrite and path.is_symlink():
        path = path.resolve()
    if overwrite and path.exists() and not path.is_file():
        with file_in_errors(path):
            path.write_bytes(data)
        return
    part = path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}.part")
    try:
        with file_in_errors(path, always=True):
            with open(part, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if overwrite:
                os.replace(part, path)
            else:
                _rename_new(part, path)
    finally:
        part.unlink(missing_ok=True)


def _rename_new(part: Path, path: Path) -> None:
    """Rename a file to a name that no file has; a FileExistsError if one has it."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.rename(part, path)


@contextmanager
def file_in_errors(path: Path, *, always: bool = False) -> Iterator[None]:
    """Add the file name to system errors raised inside that have none, such as those of writing.

    Args:
        always: replaces other names too, such as that of a temporary file.
    """
    try:
        yield
    except OSError as error:
        error.filename = str(path) if always else error.filename or str(path)
        raise


def fsync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems write names at once and do not support fsync of folders.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(handle)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold this lock against other processes and threads; the system releases it when the holder ends or is killed.

    The file is removed at the end. A file that a killed process left does not block another process.
    """
    handle = _acquire_lock(path)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()  # before the release: a process that gets the lock of a removed file tries again
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
            if is_open_file(handle, path):
                return handle
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(handle)
                raise FolderError(f"{path}: another process has held this lock for {LOCK_TIMEOUT:.0f} seconds. Two "
                                  "runs cannot save to one folder: stop one, or choose another folder.") from None
            time.sleep(LOCK_POLL)
        except OSError as error:
            os.close(handle)
            raise OSError(error.errno, f"this file system has no file locks: {error.strerror}", str(path)) from error
        os.close(handle)


def is_open_file(handle: int, path: Path) -> bool:
    """Whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def exchange(first: Path, second: Path) -> bool:
    """Exchange two paths atomically; False if the system cannot."""
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
    """The identity of a folder; while it is open, no other folder can get the same one, even if this one is removed."""
    if os.name != "posix":
        yield folder.stat()
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield os.fstat(handle)
    finally:
        os.close(handle)


def read_limited(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """The content of a file; a FolderError if it has more bytes than the limit."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size  # 0 for a device, which may never end
        data = b"" if size > limit else file.read((size or limit) + 1)
    if max(size, len(data)) > limit:
        raise FolderError(f"{path}: too large: {max(size, len(data)):,} bytes, and at most {limit:,} are read. It is "
                          "damaged, or belongs to another program.")
    return data


class FolderError(ValueError):
    """A folder or a file in it is not usable; the message names it and says what to do."""


def folder_error(path: Path | str, expected: str, got: object, remedy: str = "") -> FolderError:
    """The error for a path that is not what was expected; the caller raises it."""
    return FolderError(f"{path}: expected {expected}, but found {got}.{f' {remedy}' if remedy else ''}")


def unreadable_error(path: Path, error: OSError) -> FolderError:
    """The error for a path that the system does not let us read; the caller raises it."""
    return FolderError(f"{path}: cannot be read: {error.strerror}.")
