"""The lock of a training folder."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
import torch

from regard.storage import filesystem
from regard.storage import folder as folders
from regard.storage.filesystem import FolderError
from regard.training.checkpoints import CheckpointManager, training_lock
from regard.training.snapshot import Snapshot

OTHER = """
import sys
from pathlib import Path
from regard.training.checkpoints import training_lock
try:
    with training_lock(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.readline()
except ValueError as error:
    print(error, flush=True)
"""
# A save that is killed after the exchange, before the old folder is removed.
KILLED = """
import os, signal, sys
from regard.storage import folder
folder._remove_replaced = lambda left, target: os.kill(os.getpid(), signal.SIGKILL)
folder.save(sys.argv[1], {"model.safetensors": b"1"})
"""


@pytest.fixture(autouse=True)
def _without_syncing(monkeypatch):
    """What is written is kept by the system without it, so that the tests need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def other(folder):
    """Another process that tries to hold this folder, and what it says."""
    process = subprocess.Popen([sys.executable, "-c", OTHER, str(folder)], text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    return process, process.stdout.readline()


def ended(process):
    process.kill()
    process.communicate()


def snapshot(step):
    return Snapshot({"a": torch.full((2,), float(step))}, {"step": step})


@pytest.mark.thorough
def test_the_second_is_refused_and_told_of_the_first(tmp_path):
    process, said = other(tmp_path)
    assert said == "held\n"
    words = f"{tmp_path}: another training uses this folder (process {process.pid} on "
    with pytest.raises(FolderError, match=re.escape(words)), training_lock(tmp_path):
        pass
    ended(process)
    with training_lock(tmp_path):  # a killed one holds nobody up
        assert (tmp_path / "lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"
        second, said = other(tmp_path)
        ended(second)
        assert f"another training uses this folder (process {os.getpid()} on " in said
        with pytest.raises(FolderError, match="another training"), training_lock(tmp_path):
            pass
        assert (tmp_path / "lock").read_text()
    with training_lock(tmp_path):
        pass
    assert (tmp_path / "lock").read_text() == ""


def test_it_ends_with_an_error_too(tmp_path):
    with pytest.raises(RuntimeError), training_lock(tmp_path):
        raise RuntimeError
    with training_lock(tmp_path):
        pass


def test_the_folder_is_made(tmp_path):
    with training_lock(tmp_path / "checkpoints"):
        assert (tmp_path / "checkpoints" / "lock").exists()
    with pytest.raises(OSError, match="No such file"), training_lock(tmp_path / "no" / "checkpoints"):
        pass
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FolderError, match="cannot save here"), training_lock(tmp_path / "file"):
        pass


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "lock").symlink_to("mine")
    with pytest.raises(FolderError, match="lock"), training_lock(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.thorough
@pytest.mark.parametrize("system_has", ["all", "no exchange", "no links", "neither"])
def test_a_training_goes_on_when_its_output_folder_is_replaced(tmp_path, monkeypatch, system_has):
    """The best model is saved as the folder in which the checkpoints are."""
    def no_link(*arguments, **options):
        raise PermissionError(1, "Operation not permitted")

    if system_has in ("no links", "neither"):
        monkeypatch.setattr(os, "link", no_link)
    if system_has in ("no exchange", "neither"):
        monkeypatch.setattr(filesystem, "exchange", lambda first, second: False)
    output = tmp_path / "output"
    folders.save(output, {})
    checkpoints = CheckpointManager(output / "checkpoints", keep=2)
    with checkpoints.lock():
        checkpoints.save(1, snapshot(1), best=1)
        for step in range(2, 6):
            before, loaded = output.stat().st_ino, checkpoints.load()
            folders.save(output, {"model.safetensors": str(step).encode()})
            assert output.stat().st_ino != before
            assert loaded.snapshot.tensor("a").tolist() == [step - 1] * 2  # found before, read now
            assert loaded.notes == ()
            if step in (2, 5):  # a process takes a second or two to start
                process, said = other(output / "checkpoints")
                ended(process)
                assert f"another training uses this folder (process {os.getpid()} on " in said
            assert checkpoints.save(step, snapshot(step), best=1) == []
            assert checkpoints.load().step == step
    with checkpoints.lock():
        pass
    assert sorted(path.name for path in (output / "checkpoints").iterdir()) == [
        "lock", "newest.json", "step-00000001", "step-00000004", "step-00000005"]
    assert sorted(path.name for path in output.iterdir()) == ["checkpoints", "manifest.json", "model.safetensors"]
    assert os.listdir(tmp_path) == ["output"]


def test_what_is_left_when_saving_the_output_was_killed(tmp_path):
    """The old folder still stands beside the new one, and comes back into it at the next save of the output."""
    output = tmp_path / "output"
    folders.save(output, {})
    checkpoints = CheckpointManager(output / "checkpoints", keep=1)
    checkpoints.save(1, snapshot(1))
    assert subprocess.run([sys.executable, "-c", KILLED, str(output)]).returncode == -signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == [".output.lock", ".output.saving", "output"]
    with checkpoints.lock():
        checkpoints.save(2, snapshot(2))
        folders.save(output, {"model.safetensors": b"2"})
        assert checkpoints.load().step == 2
        assert checkpoints.save(3, snapshot(3)) == []
        assert checkpoints.load().notes == ()
    assert sorted(os.listdir(output / "checkpoints")) == ["lock", "newest.json", "step-00000003"]
    assert os.listdir(tmp_path) == ["output"]
