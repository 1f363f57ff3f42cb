"""All plans, from files to a model: what each task gives, and that each goes on where it was interrupted."""

import os
import shutil

import numpy as np
import pytest
import trained
from calling import idx
from trained import Recorder

import regard
from regard.data import phrasebook
from regard.training import train
from regard.training.resolution import TASKS as PLANS
from regard.training.tasks import interface

STACK = {"model.width": 16, "model.stack.layers": 1, "model.stack.mixer.heads": 2, "model.stack.feed_forward.ffn_width": 32}
TRAINING = {"training.schedule.max_steps": 6, "training.validation.every": 3, "training.checkpoints.every": 2,
            "training.log_every": 1, "training.validation.max_examples": 20}
TASKS = {  # task, recipe, what is set, the class of what comes of it
    "translation": ("seq2seq", None, {key: value for key, value in trained.TINY.items() if key not in TRAINING},
                    "Translator"),
    "windows": ("language", None, {**STACK, "training.windows.length": 16, "training.windows.batch_size": 4}, "Completer"),
    "reading on": ("language", "lstm", {"model.width": 16, "model.stack.layers": 1, "training.windows.length": 12,
                                        "training.windows.batch_size": 3}, "Completer"),
    "hidden words": ("masked", None, {**STACK, "training.batches.max_tokens": 200}, "Filler"),
    "texts": ("classify", None, {"model.width": 16, "training.batches.max_tokens": 200}, "Classifier"),
    "images": ("classify", None, {**STACK, "training.batches.max_tokens": 200}, "Classifier"),
}


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The data of each task, and something that its model can be asked."""
    folder = tmp_path_factory.mktemp("data")
    sentences = [pair.source for pair in phrasebook.pairs(80, max_words=6)]
    (folder / "text.txt").write_text("\n".join(sentences) + "\n")
    (folder / "labels.tsv").write_text("".join(f"{text}\t{'long' if len(text) > 22 else 'short'}\n"
                                               for text in sentences))
    labels = np.arange(60, dtype=np.uint8) % 3
    images = np.zeros((60, 8, 8), np.uint8)
    images[np.arange(60), labels * 2] = 200
    images += np.random.default_rng(1).integers(0, 40, images.shape, np.uint8)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    text, pictures = (str(folder / "text.txt"),), ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    return {"translation": (trained.pairs(folder / "pairs.tsv"),), "windows": text, "reading on": text,
            "hidden words": text, "texts": (str(folder / "labels.tsv"),),
            "images": tuple(str(folder / name) for name in pictures)}


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A function to the folder of a training, which is made once."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("finished") / "model", Recorder()
            train.train(request(files, name, made[name][0]), [made[name][1]])
        return made[name]

    return make


def request(files, name, output, **options):
    task, recipe, changes, _ = TASKS[name]
    changes = {**changes, **TRAINING}
    return interface.TrainingRequest(task, files[name], output, recipe=recipe, changes=changes, device="cpu", **options)


def test_every_task_is_here():
    assert {task for task, *_ in TASKS.values()} == set(PLANS)


@pytest.mark.parametrize("name", TASKS)
def test_what_comes_of_it(finished, name):
    folder, told = finished(name)
    task = regard.load(folder)
    assert type(task).__name__ == TASKS[name][3]
    assert not (folder / "data").exists()
    assert task.config.parameters() == told.of("TrainingStarted")[0].parameters
    judged = told.of("Validated")
    assert [event.step for event in judged] == [3, 6]
    assert all(np.isfinite(list(event.scores.values())).all() for event in judged)
    assert all(choice.reason for choice in told.of("TrainingStarted")[0].defaults)
    asked = {
        "Translator": lambda: task.translate(["Yes."]), "Completer": lambda: task.complete("The ", max_length=3),
        "Filler": lambda: task.fill("The ___ is here."), "Classifier": lambda: task.labels,
    }
    assert asked[type(task).__name__]()


@pytest.mark.parametrize(("name", "stop"), [
    *((name, ("TrainingProgress", 5)) for name in TASKS),
    *((name, stop) for name in ("reading on", "images") for stop in (("TrainingProgress", 1), ("Validated", 3)))])
def test_interrupted_and_resumed_is_never_interrupted(files, finished, tmp_path, name, stop):
    """Every file, but for times: with the state that recurrent models keep from window to window."""
    output = tmp_path / "model"
    with pytest.raises(KeyboardInterrupt):
        train.train(request(files, name, output), [Recorder(stop=stop)])
    told = Recorder()
    assert train.train(request(files, name, output, resume=True), [told]).finished
    whole, parts = trained.contents(finished(name)[0]), trained.contents(output)
    assert parts.keys() == whole.keys()
    for file in whole:
        if file != "manifest.json":
            assert parts[file] == whole[file], file


def test_it_moves_whole(finished, tmp_path):
    folder, _ = finished("images")
    moved = shutil.copytree(folder, tmp_path / "there")
    assert regard.load(moved).labels == regard.load(folder).labels == ("0", "1", "2")
