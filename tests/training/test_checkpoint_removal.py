"""Removal of old checkpoints and of what killed saves leave."""

import os
import shutil

import pytest
import torch

from regard.storage import folder as folders
from regard.storage import folder as replacing
from regard.training import checkpoints as removal
from regard.training.checkpoints import CheckpointManager
from regard.training.snapshot import Snapshot


@pytest.fixture(autouse=True)
def _without_syncing(monkeypatch):
    """What is written is kept by the system without it, so that the tests need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def saved(folder, *steps, keep=9):
    checkpoints = CheckpointManager(folder, keep)
    for step in steps:
        checkpoints.save(step, Snapshot({"a": torch.full((2,), float(step))}, {}))
    return checkpoints


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_found_and_removed(tmp_path):
    saved(tmp_path, 1, 2, 123_456_789)
    assert removal.list_steps(tmp_path) == {1, 2, 123_456_789}
    assert removal.list_steps(tmp_path / "nowhere") == set()
    assert removal.remove_steps(tmp_path, [1, 123_456_789]) == []
    assert names(tmp_path) == ["newest.json", "step-00000002"]


def test_the_name_goes_before_the_first_file(tmp_path, monkeypatch):
    saved(tmp_path, 1, 2)
    events, rename, remove, fsync = [], os.rename, shutil.rmtree, os.fsync
    monkeypatch.setattr(os, "rename", lambda *paths: (events.append("rename"), rename(*paths)))
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("sync"), fsync(handle)))
    monkeypatch.setattr(shutil, "rmtree", lambda path: (events.append("remove"), remove(path)))
    removal.remove_steps(tmp_path, [1, 2])
    assert events == ["rename", "rename", "sync", "remove", "remove"]


def test_what_somebody_has_put_there_stays(tmp_path):
    checkpoints = saved(tmp_path, 1, 2, 3, 4)
    (tmp_path / "step-00000001" / "notes.txt").write_text("mine")
    (tmp_path / "step-00000002" / "values.json.kept").mkdir()
    os.rename(tmp_path / "step-00000003", tmp_path / "moved")
    (tmp_path / "step-00000003").symlink_to("moved")
    checkpoints.keep = 1
    notes = checkpoints.save(5, Snapshot({}, {}))
    assert notes == [f"{tmp_path}/step-0000000{step} is kept: it contains '{what}', which regard did not write."
                     for step, what in ((1, "notes.txt"), (2, "values.json.kept"), (3, "step-00000003"))]
    assert checkpoints.steps() == [1, 2, 3, 5]
    assert (tmp_path / "step-00000001" / "notes.txt").read_text() == "mine"
    assert names(tmp_path / "moved") == ["manifest.json", "state.safetensors", "values.json"]


def test_what_the_folder_around_has_brought_back_goes_too(tmp_path):
    """A save of the output folder that was killed may bring back files of a checkpoint under names beside."""
    checkpoints = saved(tmp_path, 1, keep=1)
    for name in ("state.safetensors.kept", "values.json.kept2", "manifest.json.kept"):
        (tmp_path / "step-00000001" / name).write_text("older")
    assert checkpoints.load().step == 1
    assert checkpoints.save(2, Snapshot({}, {})) == []
    assert checkpoints.steps() == [2]


def test_what_cannot_be_removed_is_told_and_tried_again(tmp_path, monkeypatch):
    checkpoints, remove = saved(tmp_path, 1, keep=1), shutil.rmtree

    def failing(path, **options):
        if ".removed" in path.name:
            raise OSError(16, "Device or resource busy", str(path))
        remove(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", failing)
        (note,) = checkpoints.save(2, Snapshot({}, {}))
    assert note.startswith(f"{tmp_path}/.removed-step-00000001-")
    assert note.endswith(" could not be removed: Device or resource busy.")
    assert checkpoints.steps() == [2]
    assert checkpoints.load().notes == ()
    assert checkpoints.save(3, Snapshot({}, {})) == []
    assert names(tmp_path) == ["newest.json", "step-00000003"]


def test_what_cannot_be_renamed_is_told(tmp_path, monkeypatch):
    checkpoints, rename = saved(tmp_path, 1, keep=1), os.rename

    def failing(source, goal):
        if ".removed" in str(goal):
            raise OSError(1, "Operation not permitted", str(source))
        rename(source, goal)

    monkeypatch.setattr(os, "rename", failing)
    notes = checkpoints.save(2, Snapshot({}, {}))
    assert notes == [f"{tmp_path}/step-00000001 could not be removed: Operation not permitted."]
    assert checkpoints.load().step == 2


def test_what_is_left_over_is_cleared(tmp_path):
    checkpoints = saved(tmp_path, 1)
    for name in (".removed-step-00000007-abcd", ".writing", ".step-00000008.saving", ".step-00000009.lock.d"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.safetensors").write_text("half")
    for name in (".step-00000006.lock", "newest.json.kept", "lock.kept2", ".newest.json.part"):
        (tmp_path / name).write_text("left")
    whole = replacing.staging_path(tmp_path / "step-00000005")  # killed just before it was put in place
    folders.save(whole, {"values.json": b"{}"})
    assert checkpoints.load().step == 1
    assert checkpoints.save(2, Snapshot({}, {})) == []
    assert names(tmp_path) == [".step-00000009.lock.d", "newest.json", "step-00000001", "step-00000002"]


def test_one_that_was_being_replaced_is_found_and_put_back(tmp_path):
    """Where the system cannot exchange two names, a killed save of the same step leaves the old one beside."""
    checkpoints = saved(tmp_path, 1, 2)
    os.rename(tmp_path / "step-00000002", replacing.backup_path(tmp_path / "step-00000002"))
    assert checkpoints.steps() == [1, 2]
    assert checkpoints.load().step == 2
    assert checkpoints.load().notes == ()
    checkpoints.save(3, Snapshot({}, {}))
    assert names(tmp_path) == ["newest.json", "step-00000001", "step-00000002", "step-00000003"]


def test_left_overs_that_are_not_understood_are_told_and_let_be(tmp_path):
    checkpoints = saved(tmp_path, 1)
    strange = replacing.staging_path(tmp_path / "step-00000008")
    strange.mkdir()
    (strange / "manifest.json").write_text("{}")
    (note,) = checkpoints.save(2, Snapshot({}, {}))
    assert ".step-00000008.saving/manifest.json" in note
    assert checkpoints.load().step == 2
