"""Checkpoints: what is stored comes back, the right ones stay, and what is wrong with one is told."""

import errno
import json
import os
import resource
import stat

import pytest
import torch
from refusals import assert_named

from regard._version import __version__
from regard.storage import folder as folders
from regard.storage.filesystem import FolderError
from regard.training import checkpoints as module
from regard.training.checkpoints import CheckpointManager, NewerFormatError
from regard.training.snapshot import Snapshot


@pytest.fixture(autouse=True)
def _without_syncing(monkeypatch):
    """What is written is kept by the system without it, so that the tests need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def snapshot(step, size=4):
    return Snapshot({"model.a": torch.full((size, 3), float(step)), "average.steps": torch.tensor(step)},
                    {"standing": {"step": step, "best": None, "score": 0.1 + step}, "text": "é\n"})


def saved(folder, steps, keep=2, best=None):
    """Checkpoints of these steps; `best` may tell the best of each."""
    checkpoints = CheckpointManager(folder, keep)
    for step in steps:
        assert checkpoints.save(step, snapshot(step), (best or {}).get(step)) == []
    return checkpoints


def assert_is(loaded, step, notes=0):
    assert loaded.step == step
    assert len(loaded.notes) == notes
    assert torch.equal(loaded.snapshot.tensor("model.a"), snapshot(step).tensors["model.a"])
    assert loaded.snapshot.tensor("average.steps") == step
    assert loaded.snapshot.values == snapshot(step).values


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_stored_and_loaded(tmp_path):
    checkpoints = CheckpointManager(tmp_path / "checkpoints", keep=2)
    assert checkpoints.load() is None
    assert checkpoints.save(1000, snapshot(1000), best=1000) == []
    assert names(tmp_path / "checkpoints") == ["newest.json", "step-00001000"]
    assert names(tmp_path / "checkpoints" / "step-00001000") == ["manifest.json", "state.safetensors", "values.json"]
    assert_is(checkpoints.load(), 1000)
    assert_is(checkpoints.at(1000), 1000)
    assert checkpoints.load().best == 1000
    checkpoints.save(2000, snapshot(2000), best=1000)
    assert_is(checkpoints.load(), 2000)
    assert checkpoints.load().best == 1000
    assert json.loads((tmp_path / "checkpoints" / "newest.json").read_text()) == {"format": 1, "step": 2000,
                                                                                 "best": 1000}
    values = json.loads((tmp_path / "checkpoints" / "step-00002000" / "values.json").read_text())
    assert (values["format"], values["regard"]) == (1, __version__)


def test_the_first_step_and_very_many(tmp_path):
    checkpoints = saved(tmp_path / "checkpoints", [0, 99_999_999, 100_000_000, 1_234_567_890], keep=3)
    assert checkpoints.steps() == [99_999_999, 100_000_000, 1_234_567_890]
    assert_is(checkpoints.load(), 1_234_567_890)


@pytest.mark.parametrize(("keep", "best", "left"), [
    (1, {}, [5]), (2, {}, [4, 5]), (9, {}, [1, 2, 3, 4, 5]),
    (1, {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}, [1, 5]), (2, {1: 1, 2: 2, 3: 2, 4: 2, 5: 2}, [2, 4, 5]),
    (2, {1: 1, 2: 2, 3: 3, 4: 4, 5: 5}, [4, 5]), (1, {1: 1, 2: 1, 3: 3, 4: 3, 5: 3}, [3, 5]),
    # The best has just changed. A checkpoint before that knows of the one before, which must be there if it is resumed.
    (2, {1: 1, 2: 1, 3: 1, 4: 1, 5: 5}, [1, 4, 5]),
])
def test_the_last_ones_and_the_best_stay(tmp_path, keep, best, left):
    assert saved(tmp_path, [1, 2, 3, 4, 5], keep, best).steps() == left


def test_the_best_need_not_be_there(tmp_path):
    checkpoints = saved(tmp_path, [10, 20], keep=1)
    checkpoints.save(30, snapshot(30), best=15)
    assert checkpoints.steps() == [30]


def test_the_same_step_again(tmp_path):
    """As at a validation that falls on a step that is stored."""
    checkpoints = saved(tmp_path, [10, 20])
    other = Snapshot({"model.a": torch.ones(2)}, {"more": [1]})
    assert checkpoints.save(20, other, best=20) == []
    loaded = checkpoints.load()
    assert (loaded.step, loaded.best, dict(loaded.snapshot.values)) == (20, 20, {"more": [1]})
    assert torch.equal(loaded.snapshot.tensor("model.a"), torch.ones(2))
    assert checkpoints.steps() == [10, 20]


def test_values_come_back_as_they_were(tmp_path):
    values = {"numbers": [0.1, 1e-300, -0.0, 2**70, 1 / 3], "nothing": None, "yes": True, "deep": {"a": [{"b": []}]},
              "text": "\u2028 \ud83d\ude00 </s>".encode("utf-16", "surrogatepass").decode("utf-16")}
    checkpoints = CheckpointManager(tmp_path, 1)
    checkpoints.save(1, Snapshot({}, values))
    assert checkpoints.load().snapshot.values == values


@pytest.mark.parametrize("values", [{"a": (1, 2)}, {1: 2}, {"a": float("nan")}, {"a": float("inf")}, {"a": {1}},
                                    {"a": torch.ones(1)}, {"a": {True: 1}}])
def test_values_that_would_come_back_as_others(tmp_path, values):
    assert_named(lambda: CheckpointManager(tmp_path, 1).save(1, Snapshot({}, values)), ["`values`", "plain JSON"])
    assert names(tmp_path) == []


@pytest.mark.parametrize(("call", "parts"), [
    (lambda folder: CheckpointManager(folder, 0), ["`keep`", "at least 1"]),
    (lambda folder: CheckpointManager(folder, True), ["`keep`", "True"]),
    (lambda folder: CheckpointManager(folder, 1).save(-1, snapshot(1)), ["`step`", "-1"]),
    (lambda folder: CheckpointManager(folder, 1).save(1.0, snapshot(1)), ["`step`", "1.0"]),
    (lambda folder: CheckpointManager(folder, 1).save(1, snapshot(1), best=2), ["`best`", "at most 1", "2"]),
    (lambda folder: CheckpointManager(folder, 1).save(1, snapshot(1), best="1"), ["`best`", "'1'"]),
])
def test_wrong_calls(tmp_path, call, parts):
    assert_named(lambda: call(tmp_path), parts)
    assert names(tmp_path) == []


def spoil(path, how):
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    elif how == "flipped":
        data[len(data) // 2] ^= 1
    elif how == "empty":
        data = b""
    path.unlink()
    if how != "missing":
        path.write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "missing"])
@pytest.mark.parametrize("file", ["state.safetensors", "values.json", "manifest.json"])
def test_a_damaged_one_is_passed_over_and_told(tmp_path, file, how):
    checkpoints = saved(tmp_path, [10, 20])
    spoil(tmp_path / "step-00000020" / file, how)
    loaded = checkpoints.load()
    assert_is(loaded, 10, notes=1)
    where = tmp_path / "step-00000020" / file if (file, how) != ("manifest.json", "missing") else "step-00000020"
    assert str(where) in loaded.notes[0]
    assert loaded.notes[0].endswith(" The checkpoint step-00000010 is used instead.")
    # It is replaced when the training comes to it again, or goes when it is passed.
    assert checkpoints.save(15, snapshot(15)) == []
    assert checkpoints.steps() == [10, 15]
    spoil(tmp_path / "step-00000015" / file, how)
    assert checkpoints.save(15, snapshot(15)) == []
    assert_is(checkpoints.load(), 15)
    assert names(tmp_path) == ["newest.json", "step-00000010", "step-00000015"]


def test_the_words_of_a_note(tmp_path):
    checkpoints = saved(tmp_path, [10, 20])
    path = tmp_path / "step-00000020" / "state.safetensors"
    length = path.stat().st_size
    os.truncate(path, 100)
    (note,) = checkpoints.load().notes
    for part in (str(path), str(length), "100 bytes", "step-00000010"):
        assert part in note


def test_every_flipped_bit_of_a_checkpoint_is_seen(tmp_path):
    checkpoints = saved(tmp_path, [10, 20])
    for path in sorted((tmp_path / "step-00000020").iterdir()):
        data = path.read_bytes()
        for place in {*range(0, len(data), 7), *range(2, 30)}:
            changed = bytearray(data)
            changed[place] ^= 1 << place % 8
            path.write_bytes(changed)
            assert checkpoints.load().step == 10, (path, place)
        path.write_bytes(data)
    assert_is(checkpoints.load(), 20)


def test_several_damaged_ones(tmp_path):
    checkpoints = saved(tmp_path, [10, 20, 30, 40], keep=4)
    for step in (20, 30, 40):
        spoil(tmp_path / f"step-000000{step}" / "state.safetensors", "cut")
    loaded = checkpoints.load()
    assert_is(loaded, 10, notes=3)
    assert all(f"step-000000{step}" in note for step, note in zip((40, 30, 20), loaded.notes, strict=True))
    spoil(tmp_path / "step-00000010" / "values.json", "flipped")
    with pytest.raises(FolderError, match="complete checkpoint") as error:
        checkpoints.load()
    assert all(f"step-000000{step}" in str(error.value) for step in (10, 20, 30, 40))


def test_a_pickle_in_the_place_of_the_state(tmp_path):
    """Even where all sums are right, as in a folder that somebody else has made."""
    checkpoints = saved(tmp_path, [10])
    values = (tmp_path / "step-00000010" / "values.json").read_bytes().replace(b'"step": 10', b'"step": 20')
    code = b"cos\nsystem\n(S'touch " + bytes(tmp_path / "trace") + b"'\ntR."
    folders.save(tmp_path / "step-00000020", {"state.safetensors": code, "values.json": values})
    loaded = checkpoints.load()
    assert_is(loaded, 10, notes=1)
    assert "step-00000020/state.safetensors" in loaded.notes[0]
    assert "a pickle" in loaded.notes[0]
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(("content", "parts"), [
    (b"[]", ["values.json", "damaged"]), (b"{", ["values.json", "damaged"]),
    (b"[" * 10_000, ["values.json", "damaged"]),
    (b'{"step": 20}', ["values.json", "damaged"]),
    (b'{"step": 10, "best": null, "values": {}}', ["values.json", "step 20", "step 10"]),
])
def test_values_of_something_else(tmp_path, content, parts):
    checkpoints = saved(tmp_path, [10])
    folders.save(tmp_path / "step-00000020", {"values.json": content})
    loaded = checkpoints.load()
    assert loaded.step == 10
    assert all(part in loaded.notes[0] for part in parts)


def test_a_newer_version_is_told_and_not_passed_over(tmp_path, monkeypatch):
    """To go on from an older checkpoint would be to lose the newer one."""
    checkpoints = saved(tmp_path, [10])
    with monkeypatch.context() as newer:
        newer.setattr(module, "FORMAT", 2)
        newer.setattr(module, "__version__", "7.8.9")
        checkpoints.save(20, snapshot(20))
    for attempt in (checkpoints.load, lambda: checkpoints.at(20)):
        with pytest.raises(NewerFormatError, match=r"step-00000020/values\.json: ") as error:
            attempt()
        assert all(part in str(error.value) for part in ("format 2", "7.8.9", f"regard {__version__}"))
    (tmp_path / "step-00000020" / "manifest.json").write_text('{"format": 3, "regard": "8.0", "things": []}')
    with pytest.raises(NewerFormatError, match=r"step-00000020/manifest\.json: regard 8\.0 .* format 3"):
        checkpoints.load()
    assert checkpoints.steps() == [10, 20]


def test_another_format_of_this_very_version_is_damage(tmp_path):
    """One flipped bit makes 9 of 1: that is passed over like any other damage."""
    checkpoints, path = saved(tmp_path, [10, 20]), tmp_path / "step-00000020" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 9'))
    assert_is(checkpoints.load(), 10, notes=1)


@pytest.mark.parametrize("pointer", [None, b"", b"{", b"[3]", b'{"step": "x"}', b'{"step": 10}'])
def test_a_pointer_that_is_missing_damaged_or_behind(tmp_path, pointer):
    checkpoints = saved(tmp_path, [10, 20])
    (tmp_path / "newest.json").unlink()
    if pointer is not None:
        (tmp_path / "newest.json").write_bytes(pointer)
    loaded = checkpoints.load()
    wrong = pointer not in (None, b'{"step": 10}')
    assert_is(loaded, 20, notes=int(wrong))
    if wrong:
        assert loaded.notes[0].startswith(f"{tmp_path}/newest.json is damaged. The checkpoint step-00000020 is")


def test_a_pointer_to_one_that_is_gone(tmp_path):
    checkpoints = saved(tmp_path, [10, 20])
    os.rename(tmp_path / "step-00000020", tmp_path / "elsewhere")
    assert checkpoints.load().notes == (f"{tmp_path}/newest.json names step-00000020, which does not exist. "
                                        "The checkpoint step-00000010 is used instead.",)
    os.rename(tmp_path / "step-00000010", tmp_path / "elsewhere too")
    with pytest.raises(FolderError, match=r"complete checkpoint(?s:.*)names step-00000020"):
        checkpoints.load()


def test_what_is_not_a_checkpoint_is_let_be(tmp_path):
    checkpoints = saved(tmp_path, [10])
    others = {"step-5", "step-000000020", "step-00000020 copy", "notes", ".step-00000099.saving.txt"}
    for name in others:
        (tmp_path / name).mkdir()
    assert checkpoints.steps() == [10]
    assert checkpoints.save(30, snapshot(30)) == []
    assert_is(checkpoints.load(), 30)
    assert others < set(names(tmp_path))


@pytest.mark.parametrize(("mask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_modes_follow_the_umask(tmp_path, mask, file_mode, folder_mode):
    before = os.umask(mask)
    try:
        checkpoints = CheckpointManager(tmp_path / "checkpoints", 1)
        with checkpoints.lock():
            checkpoints.save(10, snapshot(10))
    finally:
        os.umask(before)
    paths = list((tmp_path / "checkpoints").rglob("*"))
    assert len(paths) == 6
    for path in (tmp_path / "checkpoints", *paths):
        assert stat.S_IMODE(path.stat().st_mode) == (folder_mode if path.is_dir() else file_mode)


def test_a_full_disk_leaves_what_was_there(tmp_path):
    """A real one is played by the limit on the size of files."""
    checkpoints = saved(tmp_path, [10])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"step-00000020 could not be saved: .*File too large") as error:
            checkpoints.save(20, snapshot(20, size=100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.errno == errno.EFBIG
    assert_is(checkpoints.load(), 10)
    assert names(tmp_path) == ["newest.json", "step-00000010"]
    assert checkpoints.save(20, snapshot(20)) == []


def test_a_disk_that_is_full_at_any_moment(tmp_path, monkeypatch):
    """Whenever it fails, the newest whole one loads, and the next save ends well."""
    fsync, found = os.fsync, []
    for failing in range(100):
        checkpoints, calls = saved(tmp_path / str(failing), [10], keep=1), []

        def failing_sync(handle, calls=calls, failing=failing):
            calls.append(handle)
            if len(calls) == failing + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(handle)

        monkeypatch.setattr(os, "fsync", failing_sync)
        said = "step-00000020 No space left on device"
        try:
            checkpoints.save(20, snapshot(20))
        except OSError as error:
            said = str(error)
        monkeypatch.setattr(os, "fsync", fsync)
        assert "step-00000020" in said
        assert "No space left on device" in said
        found.append(checkpoints.load().step)
        assert_is(checkpoints.load(), found[-1])
        assert checkpoints.save(30, snapshot(30)) == []
        assert names(tmp_path / str(failing)) == ["newest.json", "step-00000030"]
        if len(calls) <= failing:
            break
    assert len(found) > 8
    assert found == sorted(found)
    assert set(found) == {10, 20}


def test_a_place_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FolderError, match="cannot save here"):
        CheckpointManager(tmp_path / "file", 1).save(1, snapshot(1))
    with pytest.raises(OSError, match="step-00000001 could not be saved: No such file"):
        CheckpointManager(tmp_path / "no" / "checkpoints", 1).save(1, snapshot(1))
    assert names(tmp_path) == ["file"]


def test_what_a_killed_save_has_begun_is_ended(tmp_path):
    """It is there and whole; so are those that it makes room for. The pointer is the old one, and there is rubbish."""
    saved(tmp_path / "checkpoints", [1, 2, 3], keep=9, best={1: 1, 2: 1, 3: 1})
    folder = tmp_path / "checkpoints"
    (folder / "newest.json").write_text('{"format": 1, "step": 2, "best": 1}')
    (folder / ".writing").mkdir()
    checkpoints = CheckpointManager(folder, keep=1)
    assert checkpoints.clean_up(3, 1) == []
    assert names(folder) == ["newest.json", "step-00000001", "step-00000003"]
    assert json.loads((folder / "newest.json").read_text())["step"] == 3
    assert checkpoints.load().notes == ()
