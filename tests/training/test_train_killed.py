"""A training that is killed or interrupted at any moment, and resumed."""

import json
import os
import shutil
import signal

import pytest
import trained

from regard.training.checkpoints import CheckpointManager

pytestmark = pytest.mark.thorough

KILLED = -signal.SIGKILL
CHAIN = [  # one after another in one folder, each but the first with --resume
    {"event": "TrainingStarted", "step": None},                   # nothing is stored yet, not even a tokenizer's use
    {"event": "TrainingProgress", "step": 1},                     # before there is a checkpoint
    {"event": "TrainingProgress", "step": 2, "touch": 6},         # inside the first save
    {"event": "TrainingProgress", "step": 3, "touch": 9},         # while the best model is saved
    {"event": "Validated", "step": 3},                       # it is saved, and nothing tells of it
    {"event": "TrainingProgress", "step": 4, "touch": 25},        # while an old checkpoint makes room
    {"event": "TrainingProgress", "step": 5},
    {"event": "TrainingProgress", "step": 6, "touch": 14},
    {"event": "CheckpointSaved", "step": 6},                       # all is done, and nobody was told
]
ONCE = {"event": "TrainingProgress", "step": 3, "name": "SIGINT"}
TWICE = {"event": "TrainingProgress", "step": 5, "name": "SIGINT", "times": 2}
IN_A_SAVE = {"event": "TrainingProgress", "step": 4, "name": "SIGINT", "times": 2, "touch": 12}
WAITING = {"training.validation.every": 1, "training.validation.patience": 2, "training.checkpoints.every": 1,
           "training.schedule.learning_rate": 1e-30, "training.schedule.max_steps": 9, "training.ema_decay": 0.0}
"""Nothing is learned: the first score is the best, and the seventh, the second that counts, ends the training."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where all of it happens, with a file of pairs."""
    place = tmp_path_factory.mktemp("killed")
    trained.pairs(place / "pairs.tsv")
    return place


@pytest.fixture(scope="module")
def codes(folder):
    """The exit codes of all calls, by the name of the training."""
    def call(name, *more, **changes):
        return trained.arguments(folder / "pairs.tsv", folder / name, *more, **changes)

    calls = [("plain", call("plain"), None)]
    calls += [("chain", call("chain", *(["--resume"] if turn else [])), moment)
              for turn, moment in enumerate([*CHAIN, None])]
    for name, moment in (("once", ONCE), ("twice", TWICE), ("in a save", IN_A_SAVE)):
        calls += [(name, call(name), moment), (name, call(name, "--resume"), None)]
    patient = {key.replace(".", "__"): value for key, value in WAITING.items()}
    calls += [("patient", call("patient", **patient), None),
              ("impatient", call("impatient", **patient), {"event": "Validated", "step": 7}),
              ("impatient", call("impatient", "--resume", **patient), None),
              ("impatient", call("impatient", "--resume", **patient), None)]
    found = {}
    ends = trained.called(folder, [(arguments, moment) for _, arguments, moment in calls])
    for number, ((name, _, _), code) in enumerate(zip(calls, ends, strict=True)):
        said = (folder / f"{number}.err").read_text()
        assert "Traceback" not in said, said
        found.setdefault(name, []).append((code, said))
    return found


def assert_same(folder, name, other="plain"):
    """Every file of two trainings: model, tokenizer, config, checkpoints, metrics; and there are no others."""
    whole, parts = trained.contents(folder / other), trained.contents(folder / name)
    assert parts.keys() == whole.keys()
    for file in whole:
        if file != "manifest.json":  # the metadata in the model's file is in no order, and so is its sha256
            assert parts[file] == whole[file], file


def test_one_that_is_not_killed(folder, codes):
    assert [code for code, _ in codes["plain"]] == [0]
    assert [(line["event"], line["step"]) for line in trained.metrics(folder / "plain")] == [
        *(("progress", step) for step in (1, 2, 3)), ("validation", 3), *(("progress", step) for step in (4, 5, 6)),
        ("validation", 6), ("ended", 6)]
    assert sorted(path.name for path in (folder / "plain").iterdir()) == [
        "README.md", "checkpoints", "config.toml", "manifest.json", "metrics.jsonl", "model.safetensors",
        "tokenizer.model", "tokenizer.toml"]


def test_killed_again_and_again_is_never_killed(folder, codes):
    assert [code for code, _ in codes["chain"]] == [KILLED] * len(CHAIN) + [0]
    assert_same(folder, "chain")
    going = [said.split("Resuming after step ")[1][0] for _, said in codes["chain"] if "Resuming after" in said]
    assert going == sorted(going)
    assert {"2", "4"} <= set(going)
    assert "nothing left to do" in codes["chain"][-1][1]


def test_patience_counts_on(folder, codes):
    assert [code for code, _ in codes["patient"]] == [0]
    assert "Stopped early at step 7 of 9" in codes["patient"][0][1]
    assert trained.metrics(folder / "patient")[-1]["step"] == 7
    assert [code for code, _ in codes["impatient"]] == [KILLED, 0, 0]
    assert_same(folder, "impatient", "patient")
    last = codes["impatient"][-1][1]
    assert "There is nothing left to do: the training ended after step 7." in " ".join(last.split())


def test_interrupted_once_it_saves_and_ends(folder, codes):
    (first, said), (second, _) = codes["once"]
    assert (first, second) == (130, 0)
    assert "Interrupted at step" in said
    assert said.splitlines()[-1].startswith("  regard train ")
    assert said.splitlines()[-1].endswith(" --resume")
    assert_same(folder, "once")


@pytest.mark.parametrize("name", ["twice", "in a save"])
def test_interrupted_twice_it_ends_at_once(folder, codes, name):
    (first, said), (second, resumed) = codes[name]
    assert (first, second) == (130, 0)
    assert "Interrupted at" not in said
    assert f"The last checkpoint is of step {4 if name == 'twice' else 3}." in said
    assert said.splitlines()[-1].endswith(" --resume")
    assert f"Resuming after step {4 if name == 'twice' else 3}" in resumed
    assert_same(folder, name)


MANY = 20
"""Calls that are killed, each a touch later, before it is looked whether one was not."""
EVENTS = [(None, None), ("TrainingStarted", None), ("TrainingProgress", 1), ("TrainingProgress", 2),
          ("CheckpointSaved", 2), ("TrainingProgress", 3),
          ("Validated", 3), ("CheckpointSaved", 3), ("TrainingProgress", 4), ("CheckpointSaved", 4),
          ("TrainingProgress", 5), ("TrainingProgress", 6),
          ("Validated", 6), ("CheckpointSaved", 6), ("TrainingEnded", 6), (None, None)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.environ.get("REGARD_KILL") != "all", reason="REGARD_KILL=all asks for it")
@pytest.mark.parametrize("which", range(len(EVENTS) - 1))
def test_killed_at_any_moment(folder, codes, which):
    """Before every touch of the file system between an event, or the beginning, and the next."""
    (event, step), later = EVENTS[which:which + 2]
    first, ends = 0, {KILLED}
    while ends == {KILLED}:
        calls = []
        for touch in range(first, first + MANY):
            name, moment = f"{which} {touch}", {"event": event, "step": step, "touch": touch, "until": later}
            for more, each in (((), moment), (("--resume",), None)):
                calls.append((trained.arguments(folder / "pairs.tsv", folder / name, *more), each))
        found = trained.called(folder, calls)
        ends = set(found[::2])
        assert ends <= {KILLED, 0}
        for touch in range(first, first + MANY):
            place = folder / f"{which} {touch}"
            assert found[2 * (touch - first) + 1] == 0 or not place.exists()  # killed before it was there
            if place.exists():
                assert_same(folder, place.name)
                shutil.rmtree(place)
        first += MANY


def test_checkpoints_hold_all_that_is_learned(folder, codes):
    """Beside the weights: means, moments, and how far it had come."""
    loaded = CheckpointManager(folder / "plain" / "checkpoints", keep=1).load()
    assert loaded.step == 6
    assert {name.split(".")[0] for name in loaded.snapshot.tensors} == {"average", "engine", "model", "optimiser"}
    standing = loaded.snapshot.values["standing"]
    judged = [line for line in trained.metrics(folder / "plain") if line["event"] == "validation"]
    best = min(judged, key=lambda line: line["scores"]["loss"])
    assert (standing["best"], standing["best_step"]) == (best["scores"]["loss"], best["step"])
    assert standing["best_scores"] == json.loads(json.dumps(best["scores"]))
