"""A training on several processes equals that of one."""

import json
import os
import subprocess
import sys

import pytest
import torch
import trained

import regard
from regard.training.checkpoints import CheckpointManager

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LAYERS = ("embedding", "encoder", "decoder", "encoder__mixer", "decoder__mixer", "decoder__cross",
          "encoder__feed_forward", "decoder__feed_forward")
PLAIN = {
    **{f"model__{part}__dropout": 0.0 for part in LAYERS},
    "training__rdrop": 0.0, "training__ema_decay": 0.5, "training__batches__max_tokens": 90,
    "training__schedule__max_steps": 4, "training__schedule__learning_rate": 0.01, "training__validation__every": 2,
    "training__checkpoints__keep": 9,
}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TOLD = ("step", "tokens", "loss", "nll", "gradient_norm", "epoch")
SHARINGS = ("ddp", "fsdp")


def together(*command):
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.run([*TORCHRUN, *command], env={**kept, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                          timeout=280)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Trainings of two processes that were killed in step 3, each resumed by one; and one of one process alone."""
    place = tmp_path_factory.mktemp("together")
    data = trained.pairs(place / "pairs.tsv")
    for sharing in SHARINGS:
        arguments = trained.arguments(data, place / sharing, training__parallelism=sharing, **PLAIN)
        call = {"arguments": arguments, "moment": {"event": "TrainingProgress", "step": 3}}
        killed = together(trained.__file__, "call", json.dumps(call))
        assert killed.returncode != 0
        assert "SIGKILL" in killed.stderr
    alone = trained.arguments(data, place / "alone", training__gradient_accumulation=2, **PLAIN)
    subprocess.run(["cp", "-r", place / "ddp", place / "again"], check=True)
    resumed = [trained.arguments(data, place / sharing, "--resume", training__parallelism=sharing, **PLAIN)
               for sharing in SHARINGS]
    assert trained.called(place, [(arguments, None) for arguments in (alone, *resumed)]) == [0, 0, 0]
    return place


def stored(folder, step):
    """All numbers of a checkpoint by their names, whole."""
    found = CheckpointManager(folder / "checkpoints", keep=9).at(step).snapshot
    return {name: found.tensor(name) for name in found.tensors if not name.startswith("engine.")}


def assert_close(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        # The gradient of a bias of keys is zero but for rounding, of which Adam makes steps of full length: 0.01 here.
        atol = 0.04 if name.endswith(".key.bias") else 1e-6
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=atol,
                                   msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("sharing", SHARINGS)
def test_two_processes_learn_what_one_learns(folder, sharing):
    """Weights, means and moments after two steps."""
    files = sorted(path.name for path in (folder / sharing / "checkpoints" / "step-00000002").iterdir())
    assert len([name for name in files if name.startswith("state")]) == (2 if sharing == "fsdp" else 1)
    assert_close(stored(folder / sharing, 2), stored(folder / "alone", 2))


def test_they_tell_what_one_tells(folder):
    alone, *both = (trained.metrics(folder / name) for name in ("alone", *SHARINGS))
    for lines in both:
        for line, wanted in zip(lines[:3], alone[:3], strict=True):
            assert line["event"] == wanted["event"]
            for key in TOLD if line["event"] == "progress" else ():
                assert line[key] == pytest.approx(wanted[key], rel=1e-5), key
        judged = next(line for line in lines if line["event"] == "validation")
        assert judged["scores"]["loss"] == pytest.approx(alone[2]["scores"]["loss"], rel=1e-5)


def test_one_process_goes_on_with_what_two_have_stored(folder):
    """Whole on each, or a part on each: the one that goes on learns the same."""
    replicated, sharded = (stored(folder / sharing, 4) for sharing in SHARINGS)
    assert_close(sharded, replicated)
    before = stored(folder / "fsdp", 2)
    assert all(not torch.equal(sharded[name], before[name]) for name in before if name.endswith("query.weight"))
    for sharing in SHARINGS:
        assert [f"{line['event']} {line['step']}" for line in trained.metrics(folder / sharing)] == [
            "progress 1", "progress 2", "validation 2", "progress 3", "progress 4", "validation 4", "ended 4"]
        assert not (folder / sharing / "data").exists()
        assert regard.load(folder / sharing).translate(["Yes."])


def test_two_processes_go_on_to_the_end(folder):
    """Through `torchrun -m regard train`, as a person would: the end is that of one process, and is told once."""
    arguments = trained.arguments(folder / "pairs.tsv", folder / "again", "--resume", **PLAIN)
    done = together("-m", "regard", *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{folder / 'again'}\n"
    assert done.stderr.count("Resuming after step 2.") == 1
    assert_close(stored(folder / "again", 4), stored(folder / "alone", 4))
    assert sorted(path.name for path in (folder / "again").iterdir()) == sorted(
        path.name for path in (folder / "alone").iterdir())
