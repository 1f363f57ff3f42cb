"""From files to a training task, with defaults in between, for every task."""

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import trained
from calling import idx
from planned import CPU, plain
from trained import Recorder

import regard
from regard import toml
from regard.data import phrasebook
from regard.data.tracks.synthetic import simulate
from regard.training import logging, loop, train
from regard.training.config import DataConfig
from regard.training.resolution import TASKS as PLANS
from regard.training.tasks import interface
from regard.training.tasks.classification import ClassificationSetup
from regard.training.tasks.interface import TrainingRequest, validation_fraction_default
from regard.training.tasks.translation import TranslationSetup

STACK = {"model.width": 16, "model.stack.layers": 1, "model.stack.mixer.heads": 2,
         "model.stack.feed_forward.ffn_width": 32}
TRAINING = {"training.schedule.max_steps": 6, "training.validation.every": 3, "training.checkpoints.every": 2,
            "training.log_every": 1, "training.validation.max_examples": 20}
TASKS = {  # task, recipe, what is set, the class of what comes of it
    "translation": ("seq2seq", None, {key: value for key, value in trained.TINY.items() if key not in TRAINING},
                    "Translator"),
    "windows": ("language", None, {**STACK, "training.windows.length": 16, "training.windows.batch_size": 4},
                "Completer"),
    "reading on": ("language", "lstm", {"model.width": 16, "model.stack.layers": 1, "training.windows.length": 12,
                                        "training.windows.batch_size": 3}, "Completer"),
    "hidden words": ("masked", None, {**STACK, "training.batches.max_tokens": 200}, "Filler"),
    "texts": ("classify", None, {"model.width": 16, "training.batches.max_tokens": 200}, "Classifier"),
    "images": ("classify", None, {**STACK, "training.batches.max_tokens": 200}, "Classifier"),
    "words": ("label", None, {"model.width": 16, "training.batches.max_tokens": 200}, "Labeller"),
    "characters": ("label", "tagger", {"model.width": 16, "training.batches.max_tokens": 200}, "Labeller"),
    "agents": ("tracks", None, {"model.width": 16, "training.batches.batch_size": 8}, "Forecaster"),
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
    (folder / "words.tsv").write_text("".join(
        f"{text}\t{' '.join('long' if len(word) > 4 else 'short' for word in text.split())}\n" for text in sentences))
    (folder / "characters.tsv").write_text("".join(
        f"{text}\t{''.join('v' if letter in 'aeiou' else 'c' for letter in text)}\n" for text in sentences))
    labels = np.arange(60, dtype=np.uint8) % 3
    images = np.zeros((60, 8, 8), np.uint8)
    images[np.arange(60), labels * 2] = 200
    images += np.random.default_rng(1).integers(0, 40, images.shape, np.uint8)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    (folder / "tracks.csv").write_text("frame,agent,x,y\n" + "".join(
        f"{row.frame},{row.agent},{row.x},{row.y}\n" for row in simulate(steps=50, agents=4)))
    text, pictures = (str(folder / "text.txt"),), ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    return {"translation": (trained.pairs(folder / "pairs.tsv"),), "windows": text, "reading on": text,
            "hidden words": text, "words": (str(folder / "words.tsv"),),
            "characters": (str(folder / "characters.tsv"),), "texts": (str(folder / "labels.tsv"),),
            "images": tuple(str(folder / name) for name in pictures), "agents": (str(folder / "tracks.csv"),)}


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


def request(files, name, output, more=(), **options):
    task, recipe, changes, _ = TASKS[name]
    changes = {**changes, **TRAINING, **dict(more)}
    return interface.TrainingRequest(task, files[name], output, recipe=recipe, changes=changes, device="cpu", **options)


def test_every_task_is_here():
    assert {task for task, *_ in TASKS.values()} == set(PLANS)


@pytest.mark.thorough
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
        "Labeller": lambda: task.label("The cat is here.").tokens,
        "Forecaster": lambda: task.predict(np.zeros((1, 8, 2))),
    }
    assert asked[type(task).__name__]()


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "more"), [*((name, {}) for name in TASKS), ("translation", {"training.rdrop": 5.0})])
def test_measured_or_not_is_the_same(files, finished, tmp_path, monkeypatch, name, more):
    """The steps that are timed before the first one leave no trace: every file, but for times, bit for bit."""
    measured = finished(name)[0] if not more else tmp_path / "measured"
    if more:
        train.train(request(files, name, measured, more))
    monkeypatch.setattr(loop.TrainingLoop, "measure", lambda self, state: state)
    train.train(request(files, name, tmp_path / "plain", more))
    whole, plain = trained.contents(measured), trained.contents(tmp_path / "plain")
    assert plain.keys() == whole.keys()
    for file in whole:
        if file != "manifest.json":
            assert plain[file] == whole[file], file


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "more"), [*((name, {}) for name in TASKS), ("translation", {"training.rdrop": 5.0})])
def test_a_time_limit_for_every_task(files, tmp_path, name, more):
    """A million steps in two seconds: fewer steps, a schedule that ends, a model that is validated and saved."""
    more = {**more, "training.max_time": 2.0, "training.schedule.max_steps": 10**6, "training.validation.every": 10**5,
            "training.checkpoints.every": 10**5}
    told = Recorder()
    outcome = train.train(request(files, name, tmp_path / "model", more), [told])
    plan = outcome.state.plan
    assert outcome.finished
    assert outcome.state.seconds < 2 + 5
    assert 1 <= outcome.state.step == plan.total < 10**6
    (ended,), (estimate,) = told.of("TrainingEnded"), told.of("TimeEstimated")
    assert ended.reason == logging.TIME_IS_UP
    assert (estimate.max_time, estimate.max_steps) == (2.0, 10**6)
    assert told.of("Validated")[-1].step == outcome.state.step
    task = regard.load(tmp_path / "model")
    assert type(task).__name__ == TASKS[name][3]
    sample, data = outcome.sample, Path(files[name][0])
    if name in ("images", "agents"):
        assert sample is None
    else:
        assert sample.replace("___", "").split()[0] in data.read_text()
    assert ("___" in (sample or "")) == (name == "hidden words")
    again = Recorder()
    assert train.train(request(files, name, tmp_path / "model", more, resume=True), [again]).state.plan == plan


def test_it_moves_whole(finished, tmp_path):
    folder, _ = finished("images")
    moved = shutil.copytree(folder, tmp_path / "there")
    assert regard.load(moved).labels == regard.load(folder).labels == ("0", "1", "2")


def test_what_is_held_out_and_why():
    assert validation_fraction_default(True, 0.0, "some", "too few") == ("data.validation_fraction", 0.0,
                                                                         "validation data is given")
    assert validation_fraction_default(False, 0.1, "some", "too few") == ("data.validation_fraction", 0.1, "some")
    assert validation_fraction_default(False, 0.0, "some", "too few") == ("data.validation_fraction", 0.0, "too few")


def test_a_request_needs_little():
    request = TrainingRequest("seq2seq", ("pairs.tsv",), Path("model"))
    assert (request.validation, request.recipe, request.changes, request.resume) == ((), None, {}, False)
    assert (request.source, request.target, request.format, request.device) == (None, None, None, "auto")
    assert list(request.progress([1, 2])) == [1, 2]


PLAN = TranslationSetup()


@pytest.fixture
def data(tmp_path):
    return trained.pairs(tmp_path / "pairs.tsv", 40)


def survey(data, **options):
    return PLAN.survey(TrainingRequest("seq2seq", (str(data),), Path("model"), **options), DataConfig())


def prepared(path, place, **tables):
    config = {"data": {"validation_fraction": 0.1, "joint_tokenizer": True},
              "tokenizer": {"kind": "characters"}} | tables
    return PLAN.prepare(survey(path), toml.document_of(config), place)


def test_what_is_left_out_is_told(data, tmp_path):
    path = tmp_path / "more.tsv"
    first = Path(data).read_text().splitlines()[0]
    path.write_text(f"{Path(data).read_text()}{first}\n\tx\ny\t\n")
    assert survey(path).warnings == ["Read 43 pairs from more.tsv. Skipped 3: 2 with an empty side, 1 duplicate."]
    assert survey(data).warnings == [f"Read 40 pairs from {Path(data).name}."]


def surveyed_languages(folder, contents, **chosen):
    """The survey of files with these contents."""
    for name, content in contents.items():
        (folder / name).write_text(content)
    paths = tuple(str(folder / name) for name in contents)
    return PLAN.survey(TrainingRequest("seq2seq", paths, Path("model")), DataConfig(**chosen))


def language_defaults(found):
    return {default.key: default.value for default in PLAN.data_defaults(found, {}) if "_lang" in default.key}


def test_languages_of_the_files(tmp_path):
    found = surveyed_languages(tmp_path, {"train.en": "one\ntwo\n", "train.pt-BR": "um\ndois\n"})
    assert language_defaults(found) == {"data.source_lang": "en", "data.target_lang": "pt-BR"}
    assert found.warnings == ["Read 2 pairs from train.en, train.pt-BR (en-pt-BR)."]
    found = surveyed_languages(tmp_path, {"pairs.tsv": "one\tum\n"})
    assert language_defaults(found) == {}


def test_what_the_user_says_of_languages_counts(tmp_path):
    found = surveyed_languages(tmp_path, {"train.en": "one\n", "train.fr": "un\n"}, source_lang="en", target_lang="de")
    summary, note = found.warnings
    assert "(en-de)" in summary
    assert all(part in note for part in ("train.en", "en-fr", "en-de"))
    found = surveyed_languages(tmp_path, {"train.en": "one\n", "train.fr": "un\n"}, source_lang="EN", target_lang="fr")
    assert len(found.warnings) == 1


def test_files_of_different_languages(tmp_path):
    files = {"a.en-fr.tsv": "one\tun\n", "b.de-en.tsv": "eins\tone\n"}
    found = surveyed_languages(tmp_path, files)
    assert language_defaults(found) == {}
    assert all(part in found.warnings[1] for part in ("a.en-fr.tsv (en-fr)", "b.de-en.tsv (de-en)", "--languages"))


@pytest.mark.parametrize("code", ["english", "e", "en fr", ""])
def test_a_language_that_is_no_code(code):
    with pytest.raises(toml.ConfigError, match=r"source_lang.*\"en\""):
        DataConfig(source_lang=code)


@pytest.mark.parametrize("task", ["language", "masked", "classify"])
def test_only_translation_has_languages(task, tmp_path):
    request = TrainingRequest(task, ("a.txt",), tmp_path / "model", changes={"data.source_lang": "en"})
    with pytest.raises(ValueError, match=r"data\.source_lang"):
        train.train(request)
    assert not (tmp_path / "model").exists()


def test_pairs_are_counted_as_they_are_read(data):
    seen = []

    def counted(pairs):
        for pair in pairs:
            seen.append(pair)
            yield pair

    survey(data, progress=counted)
    assert len(seen) == 40


def test_why_so_much_is_held_out(data, tmp_path):
    held = PLAN.data_defaults(survey(data), {})[0]
    assert held == ("data.validation_fraction", 0.04,
                    "about 2 pairs, held out for validation")
    given = PLAN.data_defaults(survey(data, validation=(data,)), {})[0]
    assert given == ("data.validation_fraction", 0.0, "validation data is given")
    few = tmp_path / "few.tsv"
    few.write_text("a b\tc d\n")
    assert PLAN.data_defaults(survey(few), {})[0].reason.startswith("only 1 pair, so nothing is held out")


@pytest.mark.parametrize(("kind", "chosen"), [(None, True), ("unigram", True), ("bpe", True), ("bytes", False),
                                              ("characters", False)])
def test_only_subwords_have_a_vocabulary_to_choose(data, kind, chosen):
    asked = {} if kind is None else {"tokenizer": {"kind": kind}}
    assert ("tokenizer.vocab_size" in {choice.key for choice in PLAN.data_defaults(survey(data), asked)}) == chosen


@pytest.mark.parametrize("joint", [True, False])
def test_vocabularies_are_those_of_the_tokenizers(data, tmp_path, joint):
    made = prepared(data, tmp_path / "data", data={"validation_fraction": 0.1, "joint_tokenizer": joint})
    tables = {"model": {"kind": "encoder-decoder", "share_embeddings": True}}
    found = {choice.key: choice.value for choice in PLAN.training_defaults(made, tables, CPU)}
    assert found["model.source_vocab_size"] == made.tokenizer.source.size
    assert found["model.target_vocab_size"] == made.tokenizer.target.size
    assert found.get("model.share_embeddings") == (None if made.tokenizer.joint else False)


def test_an_epoch_has_as_many_steps_as_its_feed(data, tmp_path):
    made = prepared(data, tmp_path / "data")
    configs = [toml.document_of({"training": {"batches": {"max_tokens": tokens}}}) for tokens in (200, 400, 10**6)]
    few, fewer, one = (PLAN.steps_per_epoch(made, config) for config in configs)
    assert few > fewer > one == 1


def test_texts_are_stored_where_they_are_sampled(data, tmp_path):
    assert prepared(data, tmp_path / "a").texts is None
    assert prepared(data, tmp_path / "b", training={"subword_sampling": 0.1}).texts is not None


@pytest.fixture
def request_of(tmp_path):
    """A request to learn from grey images of a shape."""

    def make(height, breadth, count=4):
        images = np.arange(count * height * breadth, dtype=np.int64).astype(np.uint8)
        (tmp_path / "images").write_bytes(struct.pack(">IIII", 0x803, count, height, breadth) + images.tobytes())
        (tmp_path / "labels").write_bytes(struct.pack(">II", 0x801, count) + bytes(n % 2 for n in range(count)))
        return TrainingRequest("classify", (str(tmp_path / "images"), str(tmp_path / "labels")), Path("model"))

    return make


@pytest.mark.parametrize(("natural", "model", "read", "told"), [
    ((28, 28), {}, (28, 28), "size of the images"),
    ((97, 97), {}, (96, 96), "too many patches"),
    ((97, 97), {"patch_size": 97}, (97, 97), "size of the images"),
    ((97, 97), {"image_height": 12, "image_width": 8}, (12, 8), ""),
])
def test_images_are_read_as_they_are_unless_they_are_cut_badly(request_of, tmp_path, natural, model, read, told):
    plan = ClassificationSetup()
    survey = plan.survey(request_of(*natural), DataConfig())
    prepared = plan.prepare(survey, plain({"data": {}, "model": model}), tmp_path / "data")
    assert prepared.shape == (*read, 1)
    assert {len(prepared.training[number]) for number in range(4)} == {read[0] * read[1]}
    found = {choice.key: choice for choice in plan.training_defaults(prepared, {"model": model}, CPU)}
    assert (found["model.image_height"].value, found["model.image_width"].value) == read
    assert told in found["model.image_height"].reason
