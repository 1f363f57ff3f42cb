"""Folders that are saved and read: what is written, what is refused, what stays."""

import errno
import os
import re
import resource
import shutil
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from regard._version import __version__
from regard.storage import filesystem, folder
from regard.storage import folder as replacing
from regard.storage.filesystem import FolderError

FILES = {"config.toml": b"width = 8\n", "weights": bytes(range(256)) * 40}


def everything(saved):
    return {name: saved.read_bytes(name) for name in saved.manifest.files}


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def a_place_of_nobody():
    """A folder whose owner has no power over others: root is not refused anything."""
    with tempfile.TemporaryDirectory() as place:
        powerful = os.geteuid() == 0
        if powerful:
            os.chown(place, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(place)
        finally:
            if powerful:
                os.seteuid(0)


@pytest.mark.parametrize("name", ["model", "my model", "[1] *?", "-o", "--help", "Größe 模型 é", "a\nb", ".hidden",
                                  "new/deep/model"])
def test_saved_and_read(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    manifest = folder.save(name, FILES)
    assert set(manifest.files) == set(FILES)
    assert manifest.version == __version__
    assert folder.verify(name) == folder.verify(tmp_path / name) == manifest
    assert folder.load(name, everything) == FILES
    assert [path.name for path in (tmp_path / name).parent.iterdir()] == [Path(name).name]
    folder.save(name, {"other": lambda path: path.write_text("x")})
    assert folder.load(name, everything) == {"other": b"x"}
    assert {path.name for path in (tmp_path / name).iterdir()} == {"other", "manifest.json"}


def test_moved(tmp_path):
    folder.save(tmp_path / "here", FILES)
    shutil.move(tmp_path / "here", tmp_path / "there")
    shutil.copytree(tmp_path / "there", tmp_path / "copied")
    shutil.rmtree(tmp_path / "there")
    assert folder.load(tmp_path / "copied", everything) == FILES


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "model").symlink_to("disk/model")
    for files in (FILES, {"weights": b"new"}):  # at first it leads nowhere
        folder.save(tmp_path / "model", files)
        assert (tmp_path / "model").is_symlink()
        assert folder.load(tmp_path / "model", everything) == files
        assert folder.load(tmp_path / "disk" / "model", everything) == files
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "model"]


def test_files_are_synced_before_they_are_in_place(tmp_path, monkeypatch):
    """A file, the manifest, the new folder, the exchange, the folder above: in this order."""
    events = []
    fsync, exchange, rename = os.fsync, filesystem.exchange, os.rename
    folder.save(tmp_path / "model", {})
    (tmp_path / "model" / "checkpoints").mkdir()

    def record_sync(handle):
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "rename", lambda *paths: (events.append("rename"), rename(*paths)))
    monkeypatch.setattr(filesystem, "exchange", lambda *paths: (events.append("exchange"), exchange(*paths))[1])
    folder.save(tmp_path / "model", FILES)
    assert events == ["config.toml", "weights", ".manifest.json.part", "rename", "checkpoints", ".model.saving",
                      "exchange", tmp_path.name, "model"]


@pytest.mark.parametrize(("mask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700),
                                                                (0o002, 0o664, 0o775)])
def test_modes_follow_the_umask(tmp_path, mask, file_mode, folder_mode):
    with umask(mask):
        folder.save(tmp_path / "new" / "model", {**FILES, "called": lambda path: path.write_bytes(b"")})
    for path in (tmp_path / "new" / "model").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == file_mode
    assert stat.S_IMODE((tmp_path / "new" / "model").stat().st_mode) == folder_mode
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == folder_mode


def test_mode_and_owner_of_a_folder_stay(tmp_path):
    target, seen = tmp_path / "model", []
    folder.save(target, FILES)
    target.chmod(0o2750)
    if os.geteuid() == 0:
        os.chown(target, 65534, 12345)
        target.chmod(0o2750)
    before = target.stat()
    with umask(0o022):
        folder.save(target, {"a": lambda path: seen.append(stat.S_IMODE(path.parent.stat().st_mode)) or path.touch()})
    after = target.stat()
    assert seen == [0o2700]  # nobody else looks in while it is written
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino


@pytest.mark.parametrize("exchange", [True, False])
def test_what_the_user_put_there_stays(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(filesystem, "exchange", lambda first, second: False)
    target = tmp_path / "model"
    folder.save(target, FILES)
    (target / "metrics.jsonl").write_text("1\n")
    (target / "checkpoints" / "step-5").mkdir(parents=True)
    (target / "checkpoints" / "empty").mkdir(mode=0o700)
    folder.save(target / "checkpoints" / "step-5", FILES)
    with (target / "metrics.jsonl").open("a") as metrics:  # as a run that goes on writing while it saves
        folder.save(target, {"config.toml": b"new"})
        metrics.write("2\n")
    assert folder.load(target, everything) == {"config.toml": b"new"}
    assert (target / "metrics.jsonl").read_text() == "1\n2\n"
    assert folder.load(target / "checkpoints" / "step-5", everything) == FILES
    assert stat.S_IMODE((target / "checkpoints" / "empty").stat().st_mode) == 0o700
    assert {path.name for path in target.iterdir()} == {"config.toml", "manifest.json", "metrics.jsonl", "checkpoints"}


def test_a_folder_can_be_claimed_before_there_is_anything_to_save(tmp_path):
    target = tmp_path / "model"
    assert folder.save(target, {}).files == {}
    (target / "metrics.jsonl").write_text("1\n")
    folder.save(target, FILES)
    assert (target / "metrics.jsonl").read_text() == "1\n"


def test_editable_files(tmp_path):
    target, readme = tmp_path / "model", tmp_path / "model" / "README.md"
    folder.save(target, FILES, editable={"README.md": b"card 1"})
    assert set(folder.verify(target).files) == set(FILES)
    folder.save(target, FILES, editable={"README.md": lambda path: path.write_bytes(b"card 2")})
    assert readme.read_bytes() == b"card 2"  # nobody had changed it
    readme.write_text("my own words")
    folder.verify(target)
    folder.save(target, FILES, editable={"README.md": b"card 3"})
    assert readme.read_text() == "my own words"
    folder.save(target, FILES, editable={"README.md": b"card 4"})
    assert readme.read_text() == "my own words"
    folder.save(target, FILES)
    assert readme.read_text() == "my own words"
    readme.write_bytes(b"")
    readme.unlink()
    folder.save(target, FILES, editable={"README.md": b"card 5"})
    folder.save(target, FILES)
    assert not readme.exists()  # unchanged, and no longer saved
    with pytest.raises(FolderError, match=r"`editable` .*`files`"):
        folder.save(target, FILES, editable={"weights": b""})


def test_a_file_that_its_owner_removes_while_it_is_saved(tmp_path, monkeypatch):
    target, link = tmp_path / "model", os.link
    folder.save(target, FILES)
    (target / "old checkpoint").touch()
    monkeypatch.setattr(os, "link", lambda source, *rest, **options: (source.unlink(), link(source, *rest, **options)))
    folder.save(target, {"weights": b"new"})
    assert {path.name for path in target.iterdir()} == {"weights", "manifest.json"}


def test_a_file_of_the_users_is_not_written_over(tmp_path):
    target = tmp_path / "model"
    folder.save(target, {"weights": b"old"})
    (target / "config.toml").write_text("mine")
    with pytest.raises(FolderError, match=r"model/config\.toml: .*overwrite"):
        folder.save(target, FILES)
    assert (target / "config.toml").read_text() == "mine"
    assert folder.load(target, everything) == {"weights": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def foreign_folder(path):
    path.mkdir()
    (path / "thesis.tex").write_text("mine")


def foreign_manifest(path):
    path.mkdir()
    (path / "manifest.json").write_text('{"name": "a web page", "icons": []}')


def newer_folder(path):
    folder.save(path, FILES)
    text = (path / "manifest.json").read_text().replace('"format": 1', '"format": 2').replace(__version__, "7.3.1")
    (path / "manifest.json").write_text(text)


def file(path):
    path.write_text("mine")


def pipe(path):
    os.mkfifo(path)


def loop(path):
    path.symlink_to(path.name)


@pytest.mark.parametrize(("make", "message"), [
    (foreign_folder, r"model: .*not empty \(thesis\.tex\)"),
    (foreign_manifest, r"manifest\.json: not a manifest"),
    (newer_folder, r"manifest\.json: .*regard 7\.3\.1 in format 2"),
    (file, "model: this is a file"),
    (pipe, "model: this is a file"),
    (loop, "model: this is a file"),
])
def test_nothing_is_written_over_that_regard_did_not_make(tmp_path, make, message):
    target = tmp_path / "model"
    make(target)

    def state():
        paths = sorted(tmp_path.rglob("*"))
        return [(path, path.lstat().st_ino, path.lstat().st_mtime_ns) for path in paths if path != tmp_path]

    before = state()
    for attempt in (folder.prepare, lambda target: folder.save(target, FILES)):
        with pytest.raises(FolderError, match=message) as error:
            attempt(target)
        assert "model" in str(error.value)
    assert state() == before


@pytest.mark.parametrize(("target", "message"), [
    ("/", "/: .*root"), ("/proc", "a mount point"),
    ("{}/file/model", "file: this is a file"), ("{}/" + "x" * 250, "File name too long"),
])
def test_places_where_nothing_can_be_saved(tmp_path, target, message):
    (tmp_path / "file").write_text("")
    for attempt in (folder.prepare, lambda target: folder.save(target, FILES)):
        with pytest.raises(FolderError, match=message):
            attempt(target.format(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_permission():
    with a_place_of_nobody() as place:
        folder.save(place / "model", FILES)
        (place / "model" / "weights").chmod(0)
        with pytest.raises(FolderError, match=r"model/weights: cannot be read: Permission denied"):
            folder.verify(place / "model")
        (place / "model").chmod(0o500)
        with pytest.raises(FolderError, match="model: the folder is write-protected"):
            folder.save(place / "model", FILES)
        (place / "model").chmod(0)
        for attempt in (folder.verify, lambda target: folder.save(target, FILES)):
            with pytest.raises(FolderError, match=r"model.*Permission denied"):
                attempt(place / "model")
        (place / "model").chmod(0o700)
        place.chmod(0o500)
        with pytest.raises(FolderError, match=r"model: .*Permission denied"):
            folder.save(place / "model", FILES)
        place.chmod(0)
        with pytest.raises(FolderError, match=r"model.*Permission denied"):
            folder.verify(place / "model")
        place.chmod(0o700)
        (place / "model" / "weights").chmod(0o600)
        assert folder.load(place / "model", everything) == FILES


@pytest.mark.parametrize(("content", "message"), [
    ("text", r"`files\['weights'\]` must be bytes, or a function that writes to a path, but is a str"),
    (lambda path: None, r"`files\['weights'\]` must be a function that writes a file to its path"),
    (lambda path: path.mkdir(), r"`files\['weights'\]` must be a function that writes a file to its path"),
    (lambda path: path.symlink_to("/etc/passwd"), r"`files\['weights'\]` must be a function that writes"),
    (lambda path: (path.touch(), path.with_name("more").touch()), "one that also writes 'more'"),
])
def test_functions_that_do_not_write_their_file(tmp_path, content, message):
    with pytest.raises(FolderError, match=message):
        folder.save(tmp_path / "model", {"weights": content})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ZeroDivisionError, ValueError])
def test_a_function_that_fails_leaves_the_folder_as_it_was(tmp_path, failure):
    folder.save(tmp_path / "model", FILES)

    def fail(path):
        path.write_text("half")
        raise failure

    with pytest.raises(failure):
        folder.save(tmp_path / "model", {"weights": fail})
    assert folder.load(tmp_path / "model", everything) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("kind", ["bytes", "function"])
def test_a_full_disk(tmp_path, kind):
    """A real one is played by the limit on the size of files."""
    folder.save(tmp_path / "model", FILES)
    (tmp_path / "model" / "notes").write_text("mine")
    large = bytes(100_000)
    content = large if kind == "bytes" else lambda path: path.write_bytes(large)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"model could not be saved: File too large.*\.saving/weights") as error:
            folder.save(tmp_path / "model", {"config.toml": b"new", "weights": content})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.errno == errno.EFBIG
    assert folder.load(tmp_path / "model", everything) == FILES
    assert (tmp_path / "model" / "notes").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_disk_that_fails_at_any_sync(tmp_path, monkeypatch):
    """Before the exchange the old folder stays, after it the new one is there; the next save ends well."""
    fsync, found = os.fsync, []
    for failing in range(100):
        target, calls = tmp_path / str(failing) / "model", []
        folder.save(target, {"weights": b"old"})
        (target / "notes").mkdir()
        (target / "notes" / "1").write_text("mine")

        def failing_sync(handle, calls=calls, failing=failing):
            calls.append(handle)
            if len(calls) == failing + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(handle)

        monkeypatch.setattr(os, "fsync", failing_sync)
        said = "model ... No space left on device"
        try:
            folder.save(target, {"weights": b"new", "config.toml": b"new"})
        except (OSError, FolderError) as error:
            said = str(error)
        assert re.search(r"model.*No space left on device", said)
        monkeypatch.setattr(os, "fsync", fsync)
        found.append(folder.load(target, everything)["weights"])
        assert (target / "notes" / "1").read_text() == "mine"
        done = len(calls) <= failing
        folder.save(target, FILES)
        assert folder.load(target, everything) == FILES
        assert (target / "notes" / "1").read_text() == "mine"
        assert [path.name for path in target.parent.iterdir()] == ["model"]
        if done:
            break
    assert found == sorted(found, reverse=True)
    assert set(found) == {b"old", b"new"}
    assert done


def test_left_overs_do_not_hide_a_folder_that_was_removed(tmp_path):
    """Only the moment between two renames is read around; a part of a first save is no folder."""
    target = tmp_path / "model"
    folder.save(target, FILES)
    os.rename(target, replacing.staging_path(target))
    with pytest.raises(FolderError, match="there is no such folder"):
        folder.verify(target)
    folder.prepare(target)
    assert list(tmp_path.iterdir()) == []
