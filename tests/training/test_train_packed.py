"""A training on packed batches."""

import os
import signal
import subprocess
import sys

import pytest
import torch
import trained

import regard
from regard.training.checkpoints import CheckpointManager

PACKED = {"training.batches.layout": "packed", "training.batches.shapes": "few", "training.batches.max_tokens": 1200}
MASKED = {
    "model.width": 16, "model.stack.layers": 1, "model.stack.mixer.heads": 2, "model.stack.feed_forward.ffn_width": 32,
    "tokenizer.vocab_size": 330, "training.schedule.max_steps": 6, "training.validation.every": 3,
    "training.validation.max_examples": 2, "training.checkpoints.every": 2, "training.checkpoints.keep": 1,
    "training.log_every": 1, "training.batches.max_tokens": 500,
}
PARTS = ("embedding", "encoder", "decoder", "encoder.mixer", "decoder.mixer", "decoder.cross", "encoder.feed_forward",
         "decoder.feed_forward")
"""All that have dropout: each process draws it for itself."""
MOMENT = {"event": "TrainingProgress", "step": 5}
"""Between a checkpoint and the next."""
KINDS = {
    "plain": (trained.TINY | PACKED, []),
    "sampled": (trained.TINY | PACKED | {"training.subword_sampling": 0.1}, []),
    "masked": (PACKED | MASKED, ["--task", "masked"]),
}


def arguments(folder, name, kind, *more, others=()):
    """Those of a call of a tiny training of a kind, with other changes too."""
    changes, options = KINDS[kind]
    changes = changes | dict(others)
    data = folder / ("texts.txt" if kind == "masked" else "pairs.tsv")
    return ["train", str(data), "-o", str(folder / name), "--device", "cpu", *options, *more,
            *(part for key, value in changes.items() for part in ("--set", f"{key}={value}"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of each kind a training that was never killed, and one that was, and was resumed."""
    place = tmp_path_factory.mktemp("packed")
    trained.pairs(place / "pairs.tsv")
    lines = (place / "pairs.tsv").read_text().splitlines()
    (place / "texts.txt").write_text("".join(line.split("\t")[0] + "\n" for line in lines))
    calls, ends = [], []
    for kind in KINDS:
        calls += [(arguments(place, kind, kind), None), (arguments(place, f"{kind} killed", kind), MOMENT),
                  (arguments(place, f"{kind} killed", kind, "--resume"), None)]
        ends += [0, -signal.SIGKILL, 0]
    found = trained.called(place, calls)
    assert found == ends, [(place / f"{number}.err").read_text()[-1500:] for number in range(len(calls))]
    return place


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed_is_never_killed(folder, kind):
    whole, parts = trained.contents(folder / kind), trained.contents(folder / f"{kind} killed")
    assert parts.keys() == whole.keys()
    for file in whole:
        if file != "manifest.json":  # the metadata in the model's file is in no order, and so is its sha256
            assert parts[file] == whole[file], file
    lines = [line for line in trained.metrics(folder / kind) if line["event"] == "progress"]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[-1]["epoch"] >= 1  # an epoch ended, and another began
    assert lines[-1]["loss"] < lines[0]["loss"]


@pytest.mark.thorough
def test_the_models_can_be_used(folder):
    assert regard.load(folder / "plain").translate(["Yes."])
    assert regard.load(folder / "sampled").translate(["Yes."])
    assert regard.load(folder / "masked").fill("the ____ sleeps.")
    plain, sampled = (trained.metrics(folder / name)[0]["loss"] for name in ("plain", "sampled"))
    assert plain != sampled


def together(*command):
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           *command], env={**kept, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_of_which_one_has_nothing_at_the_end_of_an_epoch(folder):
    """They learn what one learns from the same batches; with an odd number of them, the last step has one batch."""
    others = {"training.ema_decay": 0.5, "training.rdrop": 0.0, "training.schedule.learning_rate": 0.01,
              "training.batches.max_tokens": 900, "training.checkpoints.every": 1, "training.checkpoints.keep": 9,
              **{f"model.{part}.dropout": 0.0 for part in PARTS}}
    done = together("-m", "regard", *arguments(folder, "together", "plain", others=others))
    assert done.returncode == 0, done.stderr[-3000:]
    alone = arguments(folder, "alone", "plain", others=others | {"training.gradient_accumulation": 2})
    assert trained.called(folder, [(alone, None)]) == [0]
    one, two = ([line for line in trained.metrics(folder / name) if line["event"] == "progress"]
                for name in ("alone", "together"))
    assert [line["epoch"] for line in one[:5]] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])  # five batches an epoch
    assert [line["epoch"] for line in two] == pytest.approx([step / 3 for step in range(1, 7)])
    for mine, wanted in zip(two[:2], one[:2], strict=True):
        for key in ("tokens", "loss", "nll", "gradient_norm"):
            assert mine[key] == pytest.approx(wanted[key], rel=1e-5), key
    assert two[5]["tokens"] == 2 * two[2]["tokens"] == one[4]["tokens"]  # all pairs once an epoch, whoever has them
    assert two[2]["tokens"] - two[1]["tokens"] < 0.7 * two[0]["tokens"]  # one batch, and one without rows
    before, after = (CheckpointManager(folder / "together" / "checkpoints",
                                       keep=9).at(step).snapshot for step in (2, 3))
    wanted = CheckpointManager(folder / "alone" / "checkpoints", keep=9).at(2).snapshot
    for name in wanted.tensors:
        if not name.startswith("engine."):
            torch.testing.assert_close(before.tensor(name), wanted.tensor(name), rtol=1e-5, atol=1e-6)
        assert after.tensor(name).isfinite().all()
    weights = [name for name in wanted.tensors if name.startswith("model.") and name.endswith("query.weight")]
    assert weights
    assert not any(torch.equal(before.tensor(name), after.tensor(name)) for name in weights)  # it went on
