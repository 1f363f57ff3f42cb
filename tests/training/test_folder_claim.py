"""The output folder of a training: removed if a call fails before the first step, and never shared by two."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
import trained
from calling import idx
from trained import Recorder

from regard.storage import filesystem
from regard.storage import folder as folders
from regard.training import folder_claim, resolution, train
from regard.training.checkpoints import CheckpointManager
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine
from regard.training.loop import TrainingError, TrainingLoop
from regard.training.tasks.interface import TrainingRequest

ALONE = DistributedContext.alone()
TASKS = ("seq2seq", "language", "masked", "classify")


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def write_data(folder, task):
    """A small data file of a task."""
    path = folder / "data.tsv"
    if task == "seq2seq":
        return trained.pairs(path, 30)
    if task == "classify":
        path.write_text("".join(f"text number {number}\t{'odd' if number % 2 else 'even'}\n" for number in range(30)))
    else:
        path.write_text("".join(f"This is the text of line {number}, as it is.\n" for number in range(40)))
    return str(path)


def request(task, data, output, **more):
    given = {"device": "cpu", "options": {"width": 16, "layers": 1, "steps": 2}} | more
    return TrainingRequest(task, tuple(map(str, data)), output, **given)


def bad_call(case, task, folder):
    """Data and arguments of a call that fails."""
    data = write_data(folder, task)
    if case == "missing file":
        return [folder / "nowhere.tsv"], {}
    if case == "bad byte":
        Path(data).write_bytes(Path(data).read_bytes() + b"\xff\xfe one\ttwo\n")
    elif case == "empty data":
        Path(data).write_text("")
    elif case == "wrong key":
        return [data], {"changes": {"model.widht": 3}}
    elif case == "wrong option":
        return [data], {"options": {"layers": 0}}
    elif case == "wrong device":
        return [data], {"device": "quantum"}
    elif case == "missing validation":
        return [data], {"validation": (str(folder / "nowhere.tsv"),)}
    elif case == "wrong recipe":
        return [data], {"recipe": "vit" if task != "classify" else "gpt"}
    elif case == "too large":
        return [data], {"options": {"width": 2**20, "steps": 2}}
    elif case == "no folder to resume":
        return [data], {"resume": True}
    elif case == "folder as data":
        return [folder], {}
    return [data], {}


CASES = ("missing file", "bad byte", "empty data", "wrong key", "wrong option", "wrong device", "missing validation",
         "wrong recipe", "too large", "no folder to resume", "folder as data")


@pytest.mark.parametrize("before", ["nothing", "an empty folder", "no parents"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("case", CASES)
def test_a_failed_call_leaves_nothing_behind(case, task, before, tmp_path):
    (tmp_path / "data").mkdir()
    data, more = bad_call(case, task, tmp_path / "data")
    here = tmp_path / "out"
    here.mkdir()
    output = here / "some" / "where" / "model" if before == "no parents" else here / "model"
    if before == "an empty folder":
        output.mkdir(mode=0o750)
        mode = output.stat().st_mode
    with pytest.raises((ValueError, OSError, TrainingError)):
        train.train(request(task, data, output, **more))
    if before == "an empty folder":
        assert [*here.iterdir()] == [output]
        assert (output.stat().st_mode, [*output.iterdir()]) == (mode, [])
    else:
        assert [*here.iterdir()] == []


def fail_with(error):
    def fail(*given, **named):
        raise error
    return fail


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("place", "error"), [
    ("reading", KeyboardInterrupt()), ("tokenizer", MemoryError()), ("model", torch.OutOfMemoryError("memory")),
    ("largest batch", torch.OutOfMemoryError("memory")), ("events", KeyboardInterrupt()),
    ("disk", OSError(28, "No space left on device"))])
def test_a_failure_inside_leaves_nothing_behind(task, place, error, tmp_path, monkeypatch):
    """Wherever it happens before the first step; files were written by then."""
    data, output, loggers = write_data(tmp_path, task), tmp_path / "out" / "model", []
    more = {}
    if place == "reading":
        def interrupted(items):
            for number, item in enumerate(items):
                if number == 5:
                    raise error
                yield item
        more = {"progress": interrupted}
    elif place == "tokenizer":
        monkeypatch.setattr(resolution, "flatten_tables", fail_with(error))
    elif place == "model":
        monkeypatch.setattr(train, "build", fail_with(error))
    elif place == "largest batch":
        monkeypatch.setattr(TrainingEngine, "try_batch", fail_with(error))
    elif place == "disk":
        monkeypatch.setattr(TrainingLoop, "try_largest", fail_with(error))
    else:
        class Stop(Recorder):
            def __call__(self, event):
                if type(event).__name__ == "TrainingStarted":
                    raise error
        loggers = [Stop()]
    with pytest.raises((type(error), TrainingError)):
        train.train(request(task, [data], output, **more), loggers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.tsv"]


def test_one_label_and_images_of_no_use(tmp_path):
    one = tmp_path / "one.tsv"
    one.write_text("a text\tsame\nanother text\tsame\n")
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(idx(np.zeros((4, 8, 8), np.uint8)))
    labels.write_bytes(idx(np.zeros(3, np.uint8)))
    for data in ([one], [images, labels]):
        with pytest.raises(ValueError, match="label"):
            train.train(request("classify", data, tmp_path / "model"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "labels", "one.tsv"]


def test_after_a_failure_the_same_folder_can_be_used(tmp_path):
    data = write_data(tmp_path, "seq2seq")
    with pytest.raises(ValueError, match="nowhere"):
        train.train(request("seq2seq", ["nowhere.tsv"], tmp_path / "model"))
    assert train.train(request("seq2seq", [data], tmp_path / "model")).finished


def claim_and_fail(output, work=lambda claim: None, processes=ALONE):
    """Claim a folder, do something, and be interrupted."""
    def run():
        with folder_claim.claim_folder(output, processes, resume=False) as claim:
            work(claim)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()


def test_files_of_the_user_stay(tmp_path):
    """What somebody put into the folder meanwhile is not removed."""
    claim_and_fail(tmp_path / "model", lambda claim: (tmp_path / "model" / "notes.txt").write_text("mine"))
    assert (tmp_path / "model" / "notes.txt").read_text() == "mine"


def test_a_folder_that_was_claimed_before_stays(tmp_path):
    """A killed training has left it: it is not ours to remove."""
    folders.save(tmp_path / "model", {})
    (tmp_path / "model" / "data").mkdir()
    claim_and_fail(tmp_path / "model")
    assert {"data", "manifest.json"} <= {path.name for path in (tmp_path / "model").iterdir()}


def test_a_started_training_keeps_its_folder(tmp_path):
    claim_and_fail(tmp_path / "model", lambda claim: claim.keep())
    assert (tmp_path / "model" / "manifest.json").exists()


def test_a_refused_training_does_not_remove_the_folder_of_another(tmp_path, monkeypatch):
    """The other one has claimed it after this one saw that there is none."""
    output, real, other = tmp_path / "model", folders.save, ExitStack()

    def save(given, files):
        real(given, files)
        other.enter_context(CheckpointManager(output / "checkpoints", keep=1).lock())

    monkeypatch.setattr(folders, "save", save)
    refused = pytest.raises(filesystem.FolderError, match="another training uses this folder")
    with other:
        with refused, folder_claim.claim_folder(output, ALONE, resume=False):
            pytest.fail("both have it")
        assert (output / "manifest.json").exists()
        assert (output / "checkpoints" / "lock").exists()


def _claim_and_fail(output, started, many):
    """Claim a folder, check that nobody else has it, fail; again and again."""
    started.wait()
    held = failed = 0
    for _ in range(many):
        try:
            with folder_claim.claim_folder(output, ALONE, resume=False):
                held += 1
                handle = os.open(output / "data", os.O_CREAT | os.O_EXCL | os.O_RDWR)  # a second one would find it
                os.close(handle)
                raise KeyError
        except KeyError:
            failed += 1
        except filesystem.FolderError as error:
            if "another training uses this folder" not in str(error):
                raise
    assert held == failed
    sys.exit(0 if held else 3)


def test_processes_that_race_for_a_folder(tmp_path):
    """Each has it alone, or is refused; in the end nothing is left."""
    context = multiprocessing.get_context("fork")
    started = context.Event()
    racers = [context.Process(target=_claim_and_fail, args=(tmp_path / "model", started, 40)) for _ in range(3)]
    for racer in racers:
        racer.start()
    started.set()
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode in (0, 3) for racer in racers] == [True] * 3, [racer.exitcode for racer in racers]
    assert 0 in [racer.exitcode for racer in racers]
    assert [*tmp_path.iterdir()] == []


def test_a_terminated_training_removes_its_folder(tmp_path):
    """SIGTERM while the data is read; the handler of before is back afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    claim_and_fail(tmp_path / "model", lambda claim: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(5)))
    assert [*tmp_path.iterdir()] == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_claim_in_a_thread_leaves_signals_alone(tmp_path):
    found = []

    def claim():
        with folder_claim.claim_folder(tmp_path / "model", ALONE, resume=False) as claimed:
            found.append(claimed)

    thread = threading.Thread(target=claim)
    thread.start()
    thread.join()
    assert len(found) == 1


def test_other_ranks_wait_and_claim_nothing(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr(DistributedContext, "barrier", lambda self: waited.append(self.rank))
    claim_and_fail(tmp_path / "model", processes=DistributedContext(1, 2, 1))
    assert (waited, [*tmp_path.iterdir()]) == ([1], [])
    before = signal.getsignal(signal.SIGTERM)
    found = []
    claim_and_fail(tmp_path / "model", lambda claim: found.append(signal.getsignal(signal.SIGTERM)),
                   DistributedContext(0, 2, 0))
    assert found == [before]
    assert (waited, [*tmp_path.iterdir()]) == ([1, 0], [])


def test_a_lock_whose_file_was_removed_is_no_lock(tmp_path, monkeypatch):
    """A failed training has removed the folder between opening the file and locking it."""
    import fcntl

    real = fcntl.flock

    def remove_first(handle, operation):
        monkeypatch.setattr(fcntl, "flock", real)
        (tmp_path / "checkpoints" / "lock").unlink()
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with pytest.raises(FileNotFoundError), CheckpointManager(tmp_path / "checkpoints", keep=1).lock():
        pytest.fail("locked")


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    import fcntl

    def refuse(handle, operation):
        if os.readlink(f"/proc/self/fd/{handle}").endswith("checkpoints/lock"):
            raise OSError(95, "Operation not supported")
        real(handle, operation)

    real = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", refuse)
    refused = pytest.raises(filesystem.FolderError, match="no locks")
    with refused, folder_claim.claim_folder(tmp_path / "model", ALONE, resume=False):
        pytest.fail("locked")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.thorough
def test_ctrl_c_while_reading(tmp_path):
    """The whole command: exit code 130, and nothing is left."""
    data = trained.pairs(tmp_path / "data.tsv", 2000)
    code = ("import os, signal, sys\nfrom regard.cli import main, train as cli\n"
            "def interrupted(items, noun, out):\n"
            "    for number, item in enumerate(items):\n"
            "        if number == 100: os.kill(os.getpid(), signal.SIGINT)\n"
            "        yield item\n"
            "cli.show_count = interrupted\nmain.run()\n")
    done = subprocess.run([sys.executable, "-c", code, "train", data, "-o", tmp_path / "a" / "model"],
                          capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (130, "")
    assert [path.name for path in tmp_path.iterdir()] == ["data.tsv"]
