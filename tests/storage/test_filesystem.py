"""What is asked of the operating system: locks that end with their holder, and names that are swapped in one step."""

import ctypes
import errno
import os
import threading
import time
from pathlib import Path

import pytest

from regard.storage import filesystem
from regard.storage.filesystem import FolderError


def test_exchange_swaps_two_folders(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not filesystem.exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("no exchange of names on this system")
    assert (tmp_path / "a" / "b").exists()
    assert (tmp_path / "b" / "a").exists()


def test_exchange_with_what_is_not_there_is_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError, match="b"):
        filesystem.exchange(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_exchange_says_where_the_system_cannot(tmp_path, monkeypatch, code):
    class Rename:
        def __call__(self, *arguments):
            ctypes.set_errno(code)
            return -1

    class Library:
        def __init__(self, *arguments, **options):
            self.renameat2 = Rename()

    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert filesystem.exchange(tmp_path / "a", tmp_path / "b") is False
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **options: object())
    assert filesystem.exchange(tmp_path / "a", tmp_path / "b") is False


def test_a_lock_is_held_by_one_at_a_time_and_leaves_nothing(tmp_path):
    inside, most, times = 0, 0, 0

    def work():
        nonlocal inside, most, times
        for _ in range(20):
            with filesystem.file_lock(tmp_path / "lock"):
                inside += 1
                most = max(most, inside)
                times += 1
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, times) == (1, 80)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_a_file_that_is_gone_is_no_lock(tmp_path, monkeypatch):
    """Its last holder removed it between our opening it and our getting its lock; others lock a new one."""
    import fcntl

    path, flock, times = tmp_path / "lock", fcntl.flock, []

    def late(handle, operation):
        flock(handle, operation)
        times.append(handle)
        if len(times) == 1:
            path.unlink()
        elif len(times) == 2:
            path.unlink()
            path.touch()

    monkeypatch.setattr(fcntl, "flock", late)
    with filesystem.file_lock(path):
        assert len(times) == 3
        with path.open() as other, pytest.raises(BlockingIOError):
            flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_ends_with_a_forked_holder_of_its_handle(tmp_path, monkeypatch):
    """A worker that was forked while the lock was held does not keep it."""
    monkeypatch.setattr(filesystem, "LOCK_TIMEOUT", 0.2)
    with filesystem.file_lock(tmp_path / "lock"):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        (tmp_path / "lock").touch()
        with filesystem.file_lock(tmp_path / "lock"):
            assert (tmp_path / "lock").exists()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    import fcntl

    def no_locks(handle, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (pytest.raises(FolderError, match="No locks available"),
          filesystem.folder_in_errors(tmp_path), filesystem.file_lock(tmp_path / "lock")):
        pass


def test_folders_that_know_no_syncing(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    filesystem.fsync(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Invalid argument"):
        filesystem.fsync(tmp_path / "file")


def test_a_held_folder_keeps_its_identity(tmp_path):
    """As long as it is held, no folder that is made later is taken for it."""
    (tmp_path / "a").mkdir()
    with filesystem.pinned_folder(tmp_path / "a") as status:
        (tmp_path / "a").rmdir()
        for name in "abcdefgh":
            (tmp_path / name).mkdir()
            assert not os.path.samestat((tmp_path / name).stat(), status)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"12345")
    assert filesystem.read_limited(path, 5) == b"12345"
    with pytest.raises(FolderError, match=r"config\.json: .* 5 bytes, and at most 4 "):
        filesystem.read_limited(path, 4)
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # a sparse file
    with pytest.raises(FolderError, match=r"config\.json: .*1,099,511,627,776 bytes"):
        filesystem.read_limited(path)
    with pytest.raises(FolderError, match=r"/dev/zero: "):
        filesystem.read_limited(Path("/dev/zero"), 100)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch, problem, overwrite):
    class Full:
        def __init__(self, path, mode):
            self.file = open(path, mode)  # noqa: SIM115 (closed below)

        def __enter__(self):
            return self

        def __exit__(self, *details):
            self.file.close()

        def write(self, data):
            self.file.write(data[:3])
            raise problem

    (tmp_path / "old").write_bytes(b"old")
    monkeypatch.setattr(filesystem, "open", Full, raising=False)
    name = "old" if overwrite else "new"
    with pytest.raises(type(problem)) as error:
        filesystem.write_file(tmp_path / name, b"a page", overwrite=overwrite)
    if isinstance(error.value, OSError):
        assert error.value.filename == str(tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old": b"old"}


def test_writing_over_a_file_a_link_or_a_device(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    filesystem.write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    with pytest.raises(FileExistsError):
        filesystem.write_file(tmp_path / "file", b"newer", overwrite=False)
    filesystem.write_file(Path("/dev/null"), b"gone")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
