"""Several processes: devices, collectives, DDP and FSDP."""

import json
import os
import subprocess
import sys

import pytest
import together
import torch
from safetensors.torch import load_file

from regard.training.distributed import DistributedContext

pytestmark = pytest.mark.thorough

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def environment():
    """That of this process, without what other launchers may have put there."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return kept | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes have found together: (tensors, messages) of each."""
    folder = tmp_path_factory.mktemp("together")
    done = subprocess.run([*TORCHRUN, together.__file__, folder], env=environment(), capture_output=True, text=True,
                          timeout=100)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Warning" not in done.stderr
    return [(load_file(folder / f"{rank}.safetensors"), json.loads((folder / f"{rank}.json").read_text()))
            for rank in (0, 1)]


@pytest.mark.parametrize("sharing", together.SHARINGS)
@pytest.mark.parametrize(("name", "case"), together.CASES)
def test_two_processes_have_the_gradients_of_one(found, sharing, name, case):
    alone = together.objective(name)
    whole = together.batch([pair for part in together.STEPS[case] for pairs in part for pair in pairs])
    (alone(whole).total / whole.tokens).backward()
    for parameter, gradient in together.gradients(alone).items():
        for tensors, _ in found:
            torch.testing.assert_close(tensors[f"{sharing}/{name}/{case}/{parameter}"], gradient, rtol=1e-9, atol=1e-11,
                                       msg=lambda text, parameter=parameter: f"{parameter}: {text}")


def test_gradients_are_shared_with_the_last_batch_and_not_before(found):
    (_, first), (_, second) = found
    assert first["ddp"] != pytest.approx(second["ddp"], rel=1e-3)  # each has its own
    assert first["fsdp"] is second["fsdp"] is None  # what was summed up is not yet cut into parts


def test_what_processes_tell_each_other(found):
    first, second = (told["messages"] for _, told in found)
    same = first["same"]
    assert all(part in same for part in ("config", "'c' on process 1", "'b' on process 0"))
    assert first == {
        "sum": 3, "parts": 0.5, "any": [True, False], "told": {"ü": [1.5, 0]}, "main": True, "rank": [0, 2, 0],
        "device": "cpu", "same": same}
    assert second == {**first, "main": False, "rank": [1, 2, 1]}


def test_alone():
    processes = DistributedContext.alone()
    assert (processes.rank, processes.count, processes.local_rank, processes.main) == (0, 1, 0, True)
    assert (processes.sum(3), processes.sum(0.5), processes.any(True), processes.any(False)) == (3, 0.5, True, False)
    assert processes.broadcast({"a": 1}) == {"a": 1}
    processes.check_same("text")
    processes.barrier()
    objective = together.objective("attention")
    for sharing in together.SHARINGS:
        assert processes.wrap(objective, sharing) is objective
    with processes.gradient_sync(objective, last=False):
        pass
    with pytest.raises(ValueError, match='`parallelism` must be one of "ddp", "fsdp", but is "shared" instead'):
        processes.wrap(objective, "shared")


@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}])
def test_alone_where_nobody_else_was_started(monkeypatch, environment):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with DistributedContext.joined() as processes:
        assert processes == DistributedContext.alone()
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(("values", "message"), [
    ({"RANK": "0"}, "`WORLD_SIZE` must be a number in the environment if RANK is set, but is '' instead. Start"),
    ({"RANK": "x", "WORLD_SIZE": "2"}, "`RANK` must be a number in the environment if RANK is set, but is 'x'"),
    ({"RANK": "1", "WORLD_SIZE": "2"}, "`LOCAL_RANK` must be a number"),
])
def test_an_environment_that_says_only_a_part(monkeypatch, values, message):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message), DistributedContext.joined():
        pytest.fail("joined")


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert DistributedContext.alone().device() == torch.device("cpu")
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    second = DistributedContext(rank=5, count=8, local_rank=1)
    assert second.device() == second.device("cuda") == torch.device("cuda", 1)
    assert second.device("cpu") == torch.device("cpu")
    assert DistributedContext.alone().device("cuda:1") == torch.device("cuda", 1)
    assert DistributedContext.alone().device() == torch.device("cuda", 0)
    assert chosen == [1, 1, 1, 0]


@pytest.mark.parametrize(("processes", "asked", "message"), [
    (DistributedContext(1, 2, 1), "cuda:0", "`device` must be \"cuda\": each of the processes has a GPU of its own"),
    (DistributedContext(2, 4, 2), "cuda",
     "`device` must be one of the 2 GPUs of this machine, but is number 2, from 0 instead. "
                                 "Start at most one process per GPU."),
    (DistributedContext.alone(), "cuda:7",
     "`device` must be one of the 2 GPUs of this machine, but is number 7, from 0"),
    (DistributedContext.alone(), "gpu", "`device` must be such as \"cpu\", \"cuda\" or \"cuda:0\", but is 'gpu'"),
])
def test_devices_that_are_not_there(monkeypatch, processes, asked, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=message):
        processes.device(asked)
