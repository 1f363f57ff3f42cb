"""One training at a time in a folder: a lock that ends with its holder, even a killed one.

    with held(folder):      the file `lock` in it, locked; it says who holds it

The lock is on the file itself, not on its name: it goes on when the folder around it is replaced by one into which the
file is linked or moved, as happens to a model's folder each time that it is saved. It knows nothing of checkpoints.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.storage import system
from regard.storage.manifest import FolderError, wrong

NAME = "lock"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep others out of this folder. Who comes second is refused at once, and told who is there.

    The folder is made where it is not there, in one that is. Of several processes of a training the first holds it.
    """
    with system.told(folder):
        folder.mkdir(exist_ok=True)
        handle = _locked(folder / NAME)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        # The file stays: if it were removed, two could hold two files of one name.
        os.ftruncate(handle, 0)
        os.close(handle)


def _locked(path: Path) -> int:
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
        raise wrong(path.parent, "free for this training", f"in use by another ({holder or 'of an unknown process'})",
                    "Wait until that one ends, or choose another folder.") from None
    except OSError as error:
        os.close(handle)
        raise OSError(error.errno, f"no locks on this file system: {error.strerror}", str(path)) from error
    return handle
