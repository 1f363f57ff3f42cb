"""Two processes that hold a part of every tensor each: what they store is resumed by two or by one, or is not there."""

import subprocess
import sys

import parted
import pytest
import torch
from parted import joined, made, parts, steps

from regard.storage import weights
from regard.training.checkpoints import CheckpointManager
from regard.training.snapshot import Snapshot, TensorShard, optimizer_templates, restore_optimizer

# One worker makes what all of these tests look at.
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder in which two processes have worked, and what they have said."""
    folder = tmp_path_factory.mktemp("sharded")
    model, optimiser = made(1)
    steps(model, optimiser, range(3))
    CheckpointManager(folder / "one", keep=2).save(3, Snapshot.of(parts(model, optimiser), {"step": 3}))
    processes = [subprocess.Popen([sys.executable, parted.__file__, str(rank), str(folder)], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    try:
        said = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said
    return folder, [out.splitlines() for out, _ in said]


def resumed(snapshot):
    model, optimiser = made(7)
    named = dict(model.named_parameters())
    model.load_state_dict(snapshot.under("model"))
    restore_optimizer(optimiser, named, snapshot.under("optimiser", like=optimizer_templates(optimiser, named)))
    return model, optimiser


def assert_as_if_alone(found):
    """What was stored after six steps is what one process comes to."""
    model, optimiser = made(1)
    steps(model, optimiser, range(6))
    want = joined(parts(model, optimiser))
    assert found.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(found[name], tensor, msg=name)


def test_each_process_writes_its_part(run):
    folder, _ = run
    files = sorted(path.name for path in (folder / "two" / "step-00000003").iterdir())
    assert files == ["manifest.json", "state-00001-of-00002.safetensors", "state-00002-of-00002.safetensors",
                     "values.json"]
    first, second = (weights.read_header(folder / "two" / "step-00000003" / name).tensors for name in files[1:3])
    assert (first["model.0.weight"].shape, second["model.0.weight"].shape) == ((3, 3), (2, 3))
    assert (first["model.2.bias"].shape, second["model.2.bias"].shape) == ((1,), (0,))
    assert "optimiser.step.0.weight" in first
    assert "optimiser.step.0.weight" not in second


def test_two_that_resume_are_as_if_never_interrupted(run):
    folder, said = run
    assert all(lines[-1] == "done" for lines in said)
    assert_as_if_alone(weights.read_tensors(folder / "two.safetensors"))


def test_one_resumes_what_two_have_stored(run):
    folder, _ = run
    snapshot = CheckpointManager(folder / "two", keep=1).at(3).snapshot
    model, optimiser = resumed(snapshot)
    steps(model, optimiser, range(3, 6))
    assert_as_if_alone(joined(parts(model, optimiser)))


def test_two_resume_what_one_has_stored(run):
    folder, _ = run
    assert_as_if_alone(weights.read_tensors(folder / "one.safetensors"))


def test_what_is_whole_on_all_is_written_once(run):
    folder, _ = run
    assert sorted(path.name for path in (folder / "replicated" / "step-00000001").iterdir()) == [
        "manifest.json", "state.safetensors", "values.json"]
    snapshot = CheckpointManager(folder / "replicated", keep=1).load().snapshot
    assert torch.equal(snapshot.tensor("model.a"), made(3)[0][0].weight)
    assert torch.equal(snapshot.tensor("model.b"), torch.ones(3))


def test_a_process_that_fails_is_told_by_all_and_nobody_waits(run):
    folder, (first, second) = run
    full = "step-00000004 could not be saved: No space left on device"
    without = "state-00002-of-00002.safetensors"
    assert [line.partition(":")[0] for line in first] == ["write_shards fails on 0", "write_shards fails on 1",
                                                          "_put fails on 0",
                                                          "other", "done"]
    assert [line.partition(":")[0] for line in second] == ["write_shards fails on 1", "other", "done"]
    for line, part in ((first[0], full), (first[1], without), (second[0], full), (first[2], "No space left"),
                       (first[3], "sharded along one dimension"), (second[1], "sharded along one dimension")):
        assert part in line
    names = sorted(path.name for path in (folder / "two").iterdir())
    assert names == ["newest.json", "step-00000003", "step-00000004"]


@pytest.mark.parametrize("processes", [3, 5])
def test_any_number_of_processes_one_after_the_other(tmp_path, processes):
    """Parts made by hand; the first puts all in place when the others have written."""
    tensor = torch.randn(7, 2)
    cut = [TensorShard(piece, (7, 2), (start, 0)) for start, piece in zip(range(0, 7, 2), tensor.split(2), strict=True)]
    cut += [TensorShard(tensor[7:], (7, 2), (7, 0))]
    cut = [*cut[:2], TensorShard(tensor[4:], (7, 2), (4, 0))] if processes == 3 else cut
    checkpoints = CheckpointManager(tmp_path / "checkpoints", keep=1)
    others = iter([lambda: None, lambda: [
        checkpoints.save(1, Snapshot({"a": cut[rank]}, {}), rank=rank, processes=processes)
        for rank in range(1, processes)], lambda: None])
    checkpoints.save(1, Snapshot({"a": cut[0], "b": torch.ones(2)}, {}), processes=processes,
                     barrier=lambda: next(others)())
    snapshot = checkpoints.load().snapshot
    assert torch.equal(snapshot.tensor("a"), tensor)
    assert torch.equal(snapshot.part("a", (3, 1), (3, 1)), tensor[3:6, 1:])
    assert len(list((tmp_path / "checkpoints" / "step-00000001").glob("state-*"))) == processes


def test_parts_that_do_not_make_the_whole_are_not_stored(tmp_path):
    checkpoints = CheckpointManager(tmp_path / "checkpoints", keep=1)
    checkpoints.save(1, Snapshot({"a": torch.ones(2)}, {}))
    with pytest.raises(ValueError, match="shards of a do not make up"):
        checkpoints.save(2, Snapshot({"a": TensorShard(torch.ones(2), (4,), (0,))}, {}))
    assert checkpoints.load().step == 1
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["newest.json", "step-00000001"]
