"""A save that is killed at any point: what was there before or what was to come is there, whole, and nothing is lost.

The process kills itself (SIGKILL) before its n-th touch of the file system, for every n until it comes to its end. What
it wrote is kept by the system without syncing, so that these tests need not wait for the disk.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from regard.storage import filesystem, folder

# A process that forks one that saves, and kills itself at the count-th call. Python reports most of these calls to an
# audit hook; fsync and the exchange are wrapped.
DRIVER = '''
import itertools, json, os, shutil, signal, sys
from pathlib import Path
from regard.storage import filesystem, folder

EVENTS = {"open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.chown", "os.listdir",
          "os.scandir", "fcntl.flock", "shutil.copystat"}

def save(target, tag):
    folder.save(target, {"config.toml": tag.encode() * 3, "weights": lambda path: path.write_bytes(tag.encode() * 999),
                         "only-" + tag: b""}, editable={"README.md": b"made for " + tag.encode()})

def killed(target, tag, count):
    """The exit code of a process that saves and is killed before the count-th call."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    calls = itertools.count()
    def touch():
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
    exchange = filesystem.exchange
    os.fsync = lambda handle: touch()
    filesystem.exchange = lambda first, second: (touch(), exchange(first, second))[1]
    sys.addaudithook(lambda event, _: touch() if event in EVENTS else None)
    try:
        save(target, tag)
    except BaseException as error:
        sys.stderr.write(repr(error))
        os._exit(1)
    os._exit(0)

orders = json.loads(sys.argv[1])
if not orders["exchange"]:
    filesystem.exchange = lambda first, second: False
if not orders["links"]:
    def link(*_, **__): raise PermissionError(1, "no links here")
    os.link = link
for target, kills in orders["kills"]:
    if orders["template"]:
        shutil.copytree(orders["template"], target, symlinks=True)
    codes = [killed(target, tag, count) for tag, count in kills]
    print(json.dumps(codes), flush=True)
    if orders["all"] and codes[-1] == 0:
        break
'''
MOST = 400
"""More touches of the file system than any save here needs."""


@pytest.fixture(autouse=True)
def _without_syncing(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def run(code, *arguments):
    """What a process with this code writes; it must end well and say nothing else."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def orders(kills, *, exchange=True, links=True, until_done=False, template=""):
    """What the driver is told: chains of saves [(target, [(tag, count), ...]), ...], each on a copy of the template."""
    return json.dumps({"exchange": exchange, "links": links, "all": until_done, "template": str(template),
                       "kills": [[str(target), chain] for target, chain in kills]})


def drive(kills, **options):
    """The exit codes of the chains of saves."""
    return list(map(json.loads, run(DRIVER, orders(kills, **options))))


def contents(saved):
    """All that was saved, and the one tag that all of it must have."""
    weights = saved.read_bytes("weights")
    tag = weights[: len(weights) // 999].decode()
    assert weights == tag.encode() * 999
    assert saved.read_text("config.toml") == tag * 3
    assert set(saved.manifest.files) == {"config.toml", "weights", f"only-{tag}"}
    assert saved.read_bytes(f"only-{tag}") == b""
    return tag, saved.folder


def save(target, tag):
    """What the driver saves."""
    folder.save(target, {"config.toml": tag.encode() * 3, "weights": tag.encode() * 999, f"only-{tag}": b""},
                editable={"README.md": b"made for " + tag.encode()})


def first(root, tag):
    """A folder that was saved, with files of the user's."""
    target = root / "model"
    save(target, tag)
    (target / "notes [1].txt").write_text("mine")
    (target / "checkpoints" / "7").mkdir(parents=True)
    (target / "checkpoints" / "7" / "state").write_text("deep")
    (target / "checkpoints" / "last").symlink_to("7")
    return target


def assert_users_files(place):
    assert (place / "notes [1].txt").read_text() == "mine"
    assert (place / "checkpoints" / "last" / "state").read_text() == "deep"


def assert_mended(target, tags):
    """The next save ends whole, and leaves nothing beside the folder."""
    save(target, "z")
    assert folder.load(target, contents) == ("z", target)
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert not any((target / f"only-{tag}").exists() for tag in tags)


@pytest.mark.parametrize("empty", [False, True])
def test_first_save(tmp_path, empty):
    targets = [tmp_path / str(count) / "model" for count in range(MOST)]
    for target in targets:
        (target if empty else target.parent).mkdir(parents=True)
    codes = drive([(target, [["b", count]]) for count, target in enumerate(targets)], until_done=True)
    assert codes[-1] == [0]
    assert len(codes) > 25
    assert all(code == [-signal.SIGKILL] for code in codes[:-1])
    found = []
    for target in targets[: len(codes)]:
        if folder.is_vacant(target):
            found.append(None)
            with pytest.raises(filesystem.FolderError, match="model"):
                folder.load(target, contents)
        else:
            found.append(folder.load(target, contents)[0])
    assert found == sorted(found, key=bool)  # nothing, and from one point on the whole
    assert set(found) == {None, "b"}
    for target in targets[: len(codes) : 5]:
        assert_mended(target, "b")


@pytest.mark.thorough
@pytest.mark.parametrize(("exchange", "links"), [(True, True), (False, True), (True, False)])
def test_replacement(tmp_path, exchange, links):
    template, targets = first(tmp_path, "a"), [tmp_path / str(count) / "model" for count in range(MOST)]
    codes = drive([(target, [["b", count]]) for count, target in enumerate(targets)],
                  exchange=exchange, links=links, until_done=True, template=template)
    assert codes[-1] == [0]
    assert len(codes) > 60
    assert all(code == [-signal.SIGKILL] for code in codes[:-1])
    tags, beside = [], 0
    for target in targets[: len(codes)]:
        tag, place = folder.load(target, contents)
        tags.append(tag)
        beside += place != target
        if links:
            assert_users_files(place)
        assert (place / "README.md").read_text() == f"made for {tag}"
    assert tags == sorted(tags)  # the old, and from one point on the new
    assert set(tags) == {"a", "b"}
    assert (beside > 0) == (not exchange)
    for target in targets[: len(codes) : 1 if not links else 4]:
        assert_mended(target, "ab")
        assert_users_files(target)
        assert sorted(path.name for path in target.iterdir() if path.name not in ("config.toml", "weights")) == [
            "README.md", "checkpoints", "manifest.json", "notes [1].txt", "only-z"]


@pytest.mark.thorough
@pytest.mark.parametrize(("exchange", "links"), [(True, True), (False, True), (True, False), (False, False)])
def test_kill_after_kill(tmp_path, exchange, links):
    """Saves that mend what killed ones left are killed in their turn."""
    chance = random.Random(0)
    chains = 10
    kills = [(tmp_path / str(chain) / "model", [[tag, chance.randrange(20, 130)] for tag in "bcdef"])
             for chain in range(chains)]
    codes = drive(kills, exchange=exchange, links=links, template=first(tmp_path, "a"))
    assert len(codes) == chains
    assert sum(code == -signal.SIGKILL for chain in codes for code in chain) > 2 * chains
    for target, _ in kills:
        tag, place = folder.load(target, contents)
        assert tag in "abcdef"
        if links:
            assert_users_files(place)
        assert_mended(target, "abcdef")
        assert_users_files(target)


def test_a_live_save_is_left_alone_and_a_dead_one_is_not(tmp_path, monkeypatch):
    target, flag = first(tmp_path, "a"), tmp_path / "writing"
    code = """
import sys, time
from pathlib import Path
from regard.storage import folder
def slow(path):
    path.write_bytes(b"half")
    Path(sys.argv[2]).touch()
    time.sleep(600)
folder.save(sys.argv[1], {"weights": slow})
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(target), str(flag)])
    try:
        end = time.monotonic() + 60
        while not flag.exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        half = folder.staging_path(target) / "weights"
        monkeypatch.setattr(filesystem, "LOCK_TIMEOUT", 0.1)
        with pytest.raises(filesystem.FolderError, match=r"\.model\.lock: another process"):
            folder.save(target, {})
        assert half.read_bytes() == b"half"
        assert folder.load(target, contents)[0] == "a"
    finally:
        process.kill()
        process.wait()
    assert half.exists()
    assert folder.load(target, contents)[0] == "a"
    flag.unlink()
    assert_mended(target, "a")
    assert_users_files(target)


def test_two_at_the_same_time(tmp_path):
    """Four processes save over each other, and a reader never meets anything but a whole folder."""
    target, per_process = first(tmp_path, "a"), 8
    # A count that no save reaches: it is not killed.
    told = [orders([(target, [[f"{number}", 10**6]] * per_process)], exchange=number != 3) for number in range(4)]
    processes = [subprocess.Popen([sys.executable, "-c", DRIVER, each], stdout=subprocess.PIPE, text=True)
                 for each in told]
    held = os.open(target, os.O_RDONLY)  # while it is open its number is given to no other folder
    seen, inode = [], os.stat(target).st_ino
    while any(process.poll() is None for process in processes):
        seen.append(folder.load(target, contents)[0])
    for process in processes:
        assert json.loads(process.communicate()[0]) == [0] * per_process
    assert len(set(seen)) > 1
    assert os.stat(target).st_ino != inode
    os.close(held)
    assert folder.load(target, contents)[0] in "0123"
    assert_users_files(target)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_another_process_replaces_while_it_is_checked(tmp_path, monkeypatch):
    """Without an atomic exchange the folder has another name for a moment; a save that begins then goes on."""
    target, read_manifest, aside = first(tmp_path, "a"), folder.read_manifest, tmp_path / "aside"

    def read_while_replaced(path):
        if aside.exists():
            return read_manifest(path)
        os.rename(target, aside)
        try:
            return read_manifest(path)
        finally:
            shutil.copytree(aside, target, symlinks=True)  # a new folder, as after a save

    monkeypatch.setattr(folder, "read_manifest", read_while_replaced)
    save(target, "b")
    assert folder.load(target, contents)[0] == "b"
    assert_users_files(target)


@pytest.mark.thorough
def test_killed_while_weights_are_written(tmp_path):
    """The same with tensors, killed after random times, as a machine that goes down would."""
    code = """
import os, random, signal, sys, time, torch
from regard.storage import folder, weights
def save(step):
    tensors = {"a": torch.full((300, 1000), float(step)), "b": torch.full((7,), float(step))}
    folder.save(sys.argv[1], {"model.safetensors": lambda path: weights.write_tensors(path, tensors)})
save(0)
chance = random.Random(1)
for turn in range(1, 8):
    child = os.fork()
    if not child:
        for step in range(1000):
            save(1000 * turn + step)
    time.sleep(chance.uniform(0.02, 0.3))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    tensors = folder.load(sys.argv[1], lambda saved: weights.read_tensors(saved.path("model.safetensors")))
    print(*{float(number) for name in ("a", "b") for number in tensors[name].unique()}, flush=True)
"""
    steps = list(map(float, run(code, str(tmp_path / "model"))))  # one number each: all tensors are of one save
    assert len(steps) == 7
    assert steps == sorted(steps)
    assert len(set(steps)) > 2
