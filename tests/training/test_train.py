"""A whole training through `train`: what is written and reported, resuming, and what is refused."""

import hashlib
import json
import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
import trained
from trained import Recorder, request

import regard
from regard import config, toml
from regard.data.sources.text import DataError
from regard.data.tokenizer import training as tokenizer_training
from regard.data.tokenizer.training import UnigramConfig
from regard.storage import filesystem
from regard.storage import folder as folders
from regard.training import resolution, train
from regard.training.checkpoints import CheckpointManager
from regard.training.config import TrainingConfig
from regard.training.loop import TrainingError
from regard.training.tasks import common, interface


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return trained.pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A training that has come to its end: its folder, its outcome, and what it told."""
    told, output = Recorder(), tmp_path_factory.mktemp("finished") / "model"
    return output, train.train(request(data, output), [told]), told


@pytest.fixture(scope="module")
def stopped_once(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("stopped") / "model"
    with pytest.raises(KeyboardInterrupt):
        train.train(request(data, output), [Recorder(stop=("TrainingProgress", 5))])
    return output


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy of a training that was interrupted in step 5, with checkpoints of steps 3 and 4."""
    return Path(shutil.copytree(stopped_once, tmp_path / "model"))


def contents(folder):
    """Every file with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*"))
            if path.is_file() and path.name != "lock"}


@pytest.mark.thorough
def test_a_folder_that_can_be_used(finished, data):
    output, outcome, _ = finished
    assert (outcome.finished, outcome.main, outcome.state.step, outcome.folder) == (True, True, 6, output)
    assert sorted(path.name for path in output.iterdir()) == [
        "README.md", "checkpoints", "config.toml", "manifest.json", "metrics.jsonl", "model.safetensors",
        "tokenizer.model", "tokenizer.toml"]  # and no data
    translator = regard.load(output)
    assert isinstance(translator.translate(["They are here."])[0].text, str)
    judged = [line for line in trained.metrics(output) if line["event"] == "validation"]
    assert outcome.state.best == min(line["scores"]["loss"] for line in judged)


@pytest.mark.thorough
def test_numbers_near_zero_are_as_before(finished, stopped):
    """They are flushed while training, and no longer."""
    half = float(torch.tensor(2.0**-1022, dtype=torch.float64)) / 2
    assert half > 0
    assert (torch.tensor([half], dtype=torch.float64) * 1.0 > 0).all()


def test_no_sentence_of_the_data_is_left(finished, data):
    output, _, _ = finished
    sentences = [side.encode() for line in Path(data).read_text().splitlines() for side in line.split("\t")]
    for name, content in contents(output).items():
        assert not [sentence for sentence in sentences if sentence in content], name


def test_the_config_tells_how_it_came_to_be(finished, data):
    output, outcome, _ = finished
    config = tomllib.loads((output / "config.toml").read_text())
    assert config["recipe"] == "transformer-tiny"
    digest = hashlib.sha256(Path(data).read_bytes()).hexdigest()
    assert config["data"]["files"] == [f"pairs.tsv {digest}"]
    assert (config["model"]["width"], config["tokenizer"]["vocab_size"]) == (16, 330)
    assert (config["training"]["schedule"]["max_steps"], config["training"]["validation"]["metric"]) == (6, "loss")
    state = outcome.state
    assert config["scores"] == {"step": state.best_step, **state.best_scores, **state.best_details}
    assert {"bleu_interval", "chrf_interval"} <= {*state.best_details}
    assert set(config) == {"recipe", "model", "special", "alignment", "data", "training", "tokenizer", "scores"}


def test_moving_the_folder_breaks_nothing(finished, data, tmp_path):
    output, outcome, _ = finished
    moved = tmp_path / "elsewhere" / "with a space"
    shutil.copytree(output, moved)
    assert regard.load(moved).translate(["Yes."])[0].text == regard.load(output).translate(["Yes."])[0].text
    again = Recorder()
    assert train.train(request(data, moved, resume=True), [again]).state.best == outcome.state.best
    assert "nothing left to do" in again.notes()[0]


def test_what_is_told(finished):
    _, _, told = finished
    started = told.of("TrainingStarted")[0]
    assert (started.task, started.steps, started.first_step, started.device) == ("translation", 6, 1, "cpu")
    chosen = {choice.key: choice for choice in started.defaults}
    assert chosen["recipe"].value == "transformer-tiny"
    assert "model.width" not in chosen  # which was set
    assert float(chosen["model.encoder.dropout"].value) == 0.3  # and not what the recipe has
    assert all(choice.reason for choice in started.defaults)
    assert started.parameters == sum(one.numel() for one in regard.load(finished[0]).model.parameters())
    assert [event.step for event in told.of("CheckpointSaved")] == [2, 3, 4, 6]
    assert told.closed == 1


def test_nothing_left_to_do(finished, data, tmp_path):
    output = Path(shutil.copytree(finished[0], tmp_path / "model"))
    before = contents(output)
    told = Recorder()
    outcome = train.train(request(data, output, resume=True), [told])
    assert outcome.finished
    (note,) = told.notes()
    assert "the training ended after step 6" in note
    assert told.of("TrainingStarted") == []
    after = contents(output)
    assert trained.metrics(output)[-1]["event"] == "ended"
    assert {name: data for name, data in after.items() if name != "metrics.jsonl"} == {
        name: data for name, data in before.items() if name != "metrics.jsonl"}
    assert trained.metrics(output) == trained.metrics(finished[0])
    assert not (output / "data").exists()


@pytest.mark.thorough
def test_it_goes_on(stopped, finished, data):
    told = Recorder()
    outcome = train.train(request(data, stopped, resume=True, recipe="transformer"), [told])  # the size was chosen then
    assert "Resuming after step 4." in told.notes()
    assert told.of("TrainingStarted")[0].first_step == 5
    assert told.of("TrainingStarted")[0].defaults == ()  # nothing is chosen anew
    assert outcome.finished
    assert trained.metrics(stopped) == trained.metrics(finished[0])
    assert (stopped / "config.toml").read_bytes() == (finished[0] / "config.toml").read_bytes()


def test_it_goes_on_with_what_was_stored_alone(stopped, finished, data):
    """Nothing need be asked for again, and files may lie elsewhere."""
    elsewhere = Path(data).parent / "there"
    elsewhere.mkdir(exist_ok=True)
    shutil.copy(data, elsewhere)
    asked = interface.TrainingRequest("seq2seq", (str(elsewhere / "pairs.tsv"),), stopped, resume=True, device="cpu")
    assert train.train(asked).state.best == finished[1].state.best


def test_languages_may_be_told_later(stopped, finished, data):
    told = {"data.source_lang": "en", "data.target_lang": "fr"}
    assert train.train(request(data, stopped, told, resume=True)).state.best == finished[1].state.best
    values = json.loads(max((stopped / "checkpoints").glob("step-*/values.json")).read_text())["values"]
    assert values["identity"]["config"]["data"]["target_lang"] == "fr"


@pytest.mark.parametrize(("options", "changes", "line"), [
    ({}, {"training.seed": 2}, "  training.seed: 1 is stored, 2 is requested"),
    ({}, {"model.width": 32, "training.schedule.max_steps": 7}, "  model.width: 16 is stored, 32 is requested"),
    ({"recipe": "transformer-small"}, {}, "  recipe: transformer-tiny is stored, transformer-small is requested"),
    ({"source": "2", "target": "1"}, {}, "  --source: nothing is stored, 2 is requested"),
])
def test_another_config_is_told(stopped, data, options, changes, line):
    before = contents(stopped)
    with pytest.raises(DataError) as error:
        train.train(request(data, stopped, changes, resume=True, **options))
    assert line in str(error.value).split("\n")
    assert contents(stopped) == before


def test_other_data_is_told(stopped, data, tmp_path):
    """And nothing of what was prepared with the data of then is touched."""
    before = contents(stopped)
    changed, other = tmp_path / "pairs.tsv", trained.pairs(tmp_path / "more.tsv", 30)
    changed.write_text(Path(data).read_text() + "One more.\tUne de plus.\n")
    with pytest.raises(DataError,
                       match=r"(?s)cannot be resumed with other data.*pairs\.tsv.* sha256 is \w{64}, and was"):
        train.train(request(changed, stopped, resume=True))
    with pytest.raises(DataError, match=r"DATA: pairs\.tsv is stored, more\.tsv is requested"):
        train.train(request(other, stopped, resume=True))
    with pytest.raises(DataError, match=r"--validation: nothing is stored, more\.tsv is requested"):
        train.train(request(data, stopped, resume=True, validation=(other,)))
    assert contents(stopped) == before


def test_the_tokenizer_is_trained_once(stopped, data, monkeypatch):
    monkeypatch.setattr(tokenizer_training, "train_joint_tokenizer", lambda *given: pytest.fail("trained again"))
    assert train.train(request(data, stopped, resume=True)).finished


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.toml", "about.json"])
def test_a_tokenizer_that_was_changed_is_refused_by_name(stopped, data, name):
    path = stopped / "data" / "tokenizer" / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(filesystem.FolderError, match=rf"tokenizer/{name}"):
        train.train(request(data, stopped, resume=True))


def test_another_tokenizer_is_refused(stopped, data):
    """Whole, with a manifest and a sha256 that fit it, and trained on other texts."""
    place = stopped / "data" / common.TOKENIZER_FOLDER
    about = json.loads((place / common.ABOUT_FILE).read_text())
    other = tokenizer_training.train_joint_tokenizer(["some other texts"] * 3, ["and more of them"] * 3,
                                           UnigramConfig(vocab_size=290)).tokenizer
    folders.save(place, {**other.files(), common.ABOUT_FILE: json.dumps({**about, "sha256": other.sha256}).encode()})
    with pytest.raises(DataError, match="tokenizer is not the one that this training started with"):
        train.train(request(data, stopped, resume=True))


def test_without_its_prepared_data_it_is_prepared_again(stopped, finished, data):
    """The same tokenizer comes of the same texts; if it did not, it would be refused."""
    shutil.rmtree(stopped / "data")
    assert train.train(request(data, stopped, resume=True)).state.best == finished[1].state.best


def test_a_damaged_checkpoint_is_passed_over_and_told(stopped, finished, data):
    path = stopped / "checkpoints" / "step-00000004" / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    told = Recorder()
    assert train.train(request(data, stopped, resume=True), [told]).state.best == finished[1].state.best
    assert any("step-00000004" in note and "step-00000003 is used instead" in note for note in told.notes())
    assert "Resuming after step 3." in told.notes()


def test_there_is_a_training_already(stopped, finished, data):
    for output in (stopped, finished[0]):
        before = contents(output)
        with pytest.raises(filesystem.FolderError, match=r"There is a training in this folder already"):
            train.train(request(data, output))
        assert contents(output) == before


def test_there_is_no_training(finished, data, tmp_path):
    with pytest.raises(filesystem.FolderError, match=r"no training to resume\. Leave out --resume"):
        train.train(request(data, tmp_path / "none", resume=True))
    model = Path(shutil.copytree(finished[0], tmp_path / "model"))
    shutil.rmtree(model / "checkpoints")
    for resume in (True, False):
        before = contents(model)
        with pytest.raises(filesystem.FolderError, match=r"There is a model in this folder, and no training to resume"):
            train.train(request(data, model, resume=resume))
        assert contents(model) == before


def test_a_folder_of_somebody_else(data, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("all of it")
    for resume in (True, False):
        with pytest.raises(filesystem.FolderError, match=r"theirs.*thesis\.txt"):
            train.train(request(data, tmp_path / "theirs", resume=resume))
    assert contents(tmp_path / "theirs") == {"thesis.txt": b"all of it"}


@pytest.mark.parametrize("resume", [True, False])
def test_two_trainings_in_one_folder(stopped, data, tmp_path, resume):
    output = stopped if resume else tmp_path / "new"
    if not resume:
        folders.save(output, {})  # another one has just begun
    with CheckpointManager(output / "checkpoints", keep=1).lock():
        before = contents(output)
        with pytest.raises(filesystem.FolderError,
                           match=rf"another training uses this folder \(process {os.getpid()} on"):
            train.train(request(data, output, resume=resume))
        assert contents(output) == before


@pytest.mark.thorough
def test_what_failed_before_the_first_step_can_be_begun_again(data, tmp_path):
    with pytest.raises(DataError, match="There is no such file"):
        train.train(request("nowhere.tsv", tmp_path / "model"))
    with pytest.raises(KeyboardInterrupt):
        train.train(request(data, tmp_path / "model"), [Recorder(stop=("TrainingProgress", 1))])
    told = Recorder()
    assert train.train(request(data, tmp_path / "model"), [told]).finished
    assert told.of("TrainingStarted")[0].first_step == 1
    told = [line["step"] for line in trained.metrics(tmp_path / "model") if line["event"] == "progress"]
    assert told == [*range(1, 7)]


@pytest.mark.thorough
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("closed"), ValueError("no")])
def test_a_dead_logger_does_not_end_it(data, finished, tmp_path, caplog, error):
    class Dead(Recorder):
        name = "dead"

        def __call__(self, event):
            super().__call__(event)
            if type(event).__name__ == "TrainingProgress":
                raise error

    dead, alive = Dead(), Recorder()
    outcome = train.train(request(data, tmp_path / "model"), [dead, alive])
    assert outcome.state.best == finished[1].state.best
    assert len(dead.of("TrainingProgress")) == 1
    assert len(alive.of("TrainingProgress")) == 6
    assert "dead: could not write" in caplog.text


def test_metrics_that_cannot_be_written_do_not_end_it(stopped, finished, data, caplog):
    (stopped / "metrics.jsonl").unlink()
    (stopped / "metrics.jsonl").mkdir()
    assert train.train(request(data, stopped, resume=True)).state.best == finished[1].state.best
    assert "metrics.jsonl: could not write: Is a directory" in caplog.text


def test_a_loss_that_is_not_finite(data, tmp_path):
    """A rate far too high: the step is named, the last checkpoint is whole, and what is no number is not the best."""
    told, output = Recorder(), tmp_path / "model"
    with pytest.raises(TrainingError, match=r"step \d: the loss is not a finite number\. Its batch has the examples"):
        train.train(request(data, output, {"training.schedule.learning_rate": 1e30, "training.validation.every": 1,
                                         "training.schedule.warmup_steps": 0}), [told])
    loaded = CheckpointManager(output / "checkpoints", keep=1).load()
    assert all(tensor.isfinite().all() for tensor in loaded.snapshot.under("model").values())
    best = loaded.snapshot.values["standing"]["best"]
    assert best is None or abs(best) < float("inf")
    assert (output / "model.safetensors").exists() == (best is not None)
    judged = told.of("Validated")[0]
    assert (judged.better, judged.examples) == (False, ())  # it had learned to give no numbers at all
    assert trained.metrics(output)[-1]["event"] != "ended"


def test_one_pair(tmp_path):
    """Nothing to hold out: the model is judged by what it has learned, and that is told."""
    path = tmp_path / "one.tsv"
    path.write_text("A small house.\tUne petite maison.\n")
    told = Recorder()
    changes = {"training.schedule.max_steps": 2, "training.validation.every": 2}
    assert train.train(request(path, tmp_path / "model", changes), [told]).finished
    held = next(choice for choice in told.of("TrainingStarted")[0].defaults if choice.key == "data.validation_fraction")
    assert held.value == "0.0"
    assert held.reason.startswith("only 1 pair, so nothing is held out")
    assert told.of("Validated")[0].examples[0][:2] == ("A small house.", "Une petite maison.")


def test_validation_that_is_the_training_data_is_told(data, tmp_path):
    told = Recorder()
    changes = {"training.schedule.max_steps": 1}
    train.train(request(data, tmp_path / "model", changes, validation=(data,)), [told])
    assert any(note.startswith("The validation data is the training data") for note in told.notes())


@pytest.mark.parametrize(("task", "message"), [
    ("seq2sec", '`task` must be one of .*"seq2seq".*, but is "seq2sec" instead. Did you mean "seq2seq"'),
    ("translate", "`task` must be one of"),
])
def test_an_unknown_task(data, tmp_path, task, message):
    with pytest.raises(ValueError, match=message):
        train.train(request(data, tmp_path / "model", task=task))
    assert not (tmp_path / "model").exists()


def test_mistakes_are_told_before_data_is_read_and_a_folder_made(tmp_path):
    with pytest.raises(ValueError, match='unknown key "widht" in'):
        train.train(request("nowhere.tsv", tmp_path / "model", {"model.widht": 3}))
    assert not (tmp_path / "model").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(("recipe", "changes"), [
    ("seq2seq", {"model.width": 16}), ("seq2seq-attention", {"model.width": 16}),
    ("conv", {"model.width": 16, "model.encoder.layers": 1, "model.decoder.layers": 1})])
def test_other_recipes_of_the_road(data, tmp_path, recipe, changes):
    mine = {key: value for key, value in trained.TINY.items() if not key.startswith("model.")} | changes
    asked = interface.TrainingRequest("seq2seq", (data,), tmp_path / "model", recipe=recipe, device="cpu",
                        changes={**mine, "training.schedule.max_steps": 2, "training.validation.every": 2})
    assert train.train(asked).finished
    assert regard.load(tmp_path / "model").translate(["Yes."])[0] is not None


def test_sides_with_tokenizers_of_their_own_and_sampled_texts(data, tmp_path):
    changes = {"data.joint_tokenizer": False, "training.subword_sampling": 0.3, "training.schedule.max_steps": 2}
    assert train.train(request(data, tmp_path / "model", changes)).finished
    assert not regard.load(tmp_path / "model").tokenizer.joint


def test_an_unknown_device(data, tmp_path):
    with pytest.raises(ValueError, match="`device` must be"):
        train.train(request(data, tmp_path / "model", device="quantum"))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="one that this machine has"):
            train.train(request(data, tmp_path / "model", device="cuda"))


def test_texts_that_are_cut_are_told(tmp_path):
    (tmp_path / "texts.txt").write_text("One.\nA text that is much longer than all others of them are.\n")
    told = Recorder()
    changes = {"training.schedule.max_steps": 1, "model.width": 8, "model.stack.layers": 1,
               "model.stack.mixer.heads": 1,
               "model.embedding.positions.max_positions": 12}
    train.train(interface.TrainingRequest("masked", (str(tmp_path / "texts.txt"),), tmp_path / "model", device="cpu",
                                          changes=changes),
              [told])
    assert "Truncated 1 of 2 texts to the 12 positions of the model." in told.notes()


def test_a_batch_that_is_too_large_is_refused_before_the_model_is_built(data, tmp_path, monkeypatch):
    """With the settings that the message names, the same training fits."""
    monkeypatch.setattr("regard.allocation.available_memory", lambda: resolution.LIBRARY_BYTES + 2_000_000)
    output, large = tmp_path / "model", {"training.batches.max_tokens": 4000}
    with pytest.raises(ValueError, match=r"batches of [0-9,]+ tokens needs about .*iB.*machine has 151.9 MiB") as told:
        train.train(request(data, output, large))
    assert not output.exists()
    named = dict(re.findall(r"--set (training\.\S+)=(\d+)", str(told.value)))
    assert list(named) == ["training.batches.max_tokens", "training.gradient_accumulation"]
    smaller = {key: int(value) for key, value in named.items()}
    assert train.train(request(data, output, smaller)).finished


def test_the_setting_that_limits_a_batch_is_the_one_to_reduce():
    def remedy(**tables):
        schedule = {"learning_rate": 1e-3, "max_steps": 1}
        found = toml.document_of({"training": {"schedule": schedule, "gradient_accumulation": 3, **tables}})
        return config.read_config(TrainingConfig, found, ("training",)).in_smaller_batches(4, 40, 800)

    accumulation = " --set training.gradient_accumulation=12"
    assert remedy(batches={"max_tokens": 600}) == "--set training.batches.max_tokens=150" + accumulation
    assert remedy(batches={"max_tokens": 1000}) == "--set training.batches.max_tokens=200" + accumulation
    assert remedy(batches={"batch_size": 2}) == "--set training.batches.batch_size=1" + accumulation
    assert remedy(windows={"batch_size": 64}) == "--set training.windows.batch_size=10" + accumulation
