"""Training of classifiers of texts and images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import EMBEDDINGS, READING, stack
from torch.nn import functional as F

from regard.attention.layer import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.data.batches.feed import BatchConfig
from regard.data.images import ImageShape, scale_pixels
from regard.data.sources.text import DataError
from regard.data.tokenizer.training import CharactersConfig
from regard.models.classification import ClassifierConfig
from regard.models.vision import VisionConfig
from regard.tokens import Tokens
from regard.training.config import DataConfig, TrainingConfig
from regard.training.optimizer import ScheduleConfig
from regard.training.tasks.classification import ClassificationSetup, ImageClassificationTask, survey_labelled
from regard.training.tasks.classification_data import ImageSurvey, TextSurvey, prepare_images, prepare_labelled_texts
from regard.training.tasks.interface import TrainingTask

TSV = "".join(f"{number} {word}\t{label}\n" for number in range(40)
              for word, label in (("good", "plus"), ("bad", "minus")))


def idx(folder, count, first=0):
    """Images that are bright at the top or at the bottom, and the labels that say where."""
    folder.mkdir()
    chance = np.random.default_rng(first)
    labels = np.arange(count, dtype=np.uint8) % 2
    images = chance.integers(0, 60, (count, 6, 4), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[3 * label:3 * label + 3] += 120
    paths = []
    for name, array in (("images", images), ("labels", labels)):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / name).write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())
        paths.append(str(folder / name))
    return paths


def texts(file, tmp_path, **options):
    survey = survey_labelled([file("a.tsv", TSV)], [], DataConfig(validation_fraction=0.2, **options))
    prepared = prepare_labelled_texts(survey, CharactersConfig(), tmp_path / "data")
    return prepared, ClassifierConfig(vocab_size=prepared.vocabulary, width=8, num_labels=2,
                                      embedding=EMBEDDINGS["learned"], stack=stack())


def images(file, tmp_path, **options):
    survey = survey_labelled(idx(tmp_path / "idx", 60), [], DataConfig(validation_fraction=0.2, **options))
    prepared = prepare_images(survey, tmp_path / "data")
    return prepared, VisionConfig(image_height=6, image_width=4, channels=1, patch_size=2, num_labels=2, width=8,
                                  stack=stack())


def fraction(survey):
    """The default of the validation split."""
    return ClassificationSetup().data_defaults(survey, {})[0].value


def classification_task(prepared, model_config, settings):
    return ClassificationSetup().build(prepared, model_config, settings, {})


MADE = {"texts": texts, "images": images}


@pytest.fixture(params=MADE)
def made(request, file, tmp_path):
    return MADE[request.param](file, tmp_path)


def test_data_is_known_by_what_it_is(file, tmp_path):
    survey = survey_labelled([file("labels.idx", TSV)], [], DataConfig())
    assert isinstance(survey, TextSurvey)  # in spite of its name
    paths = idx(tmp_path / "one", 30)
    survey = survey_labelled(paths, idx(tmp_path / "two", 4, first=1), DataConfig())
    assert isinstance(survey, ImageSurvey)
    assert survey.source.label_names == ("0", "1")
    assert fraction(survey) == 0.0
    assert fraction(survey_labelled(paths, [], DataConfig())) == 0.1
    for data, validation, message in (([file("a.tsv", TSV)], paths, "These are images, but the training data is text"),
                                      (paths, [file("a.tsv", TSV)], "This is text, but the training data is images"),
                                      (paths[:1], [], "Images come in two IDX files"),
                                      ([str(tmp_path / "one")], [], "No class folders found")):
        with pytest.raises(DataError, match=message):
            survey_labelled(data, validation, DataConfig())


def test_a_folder_of_classes(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number in range(24):
        folder = tmp_path / "set" / "abc"[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full((4, 4), 10 * number, np.uint8)).save(folder / f"{number}.png")
    survey = survey_labelled([str(tmp_path / "set")], [], DataConfig(validation_fraction=0.1))
    prepared = prepare_images(survey, tmp_path / "data", shape=ImageShape(2, 2, 3))
    assert prepared.labels == ("a", "b", "c")
    assert prepared.shape == ImageShape(2, 2, 3)
    assert len(prepared.training) + len(prepared.validation) == 24
    assert prepared.titles[0][:2] in ("a/", "b/", "c/")


@pytest.mark.thorough
def test_it_learns_and_is_judged(made, settings):
    prepared, made_from = made
    work = classification_task(prepared, made_from, settings(tokens=120))
    assert isinstance(work, TrainingTask)
    model = made_from.build()
    task, feed, objective = work.wrap(model), work.feed(0, 1), work.objective(model)
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(80):
        batch = feed.at(step)
        (objective(batch).total / batch.tokens).backward()
        optimiser.step()
        optimiser.zero_grad()
    state = torch.get_rng_state()
    verdict = work.validate(task)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert verdict.scores["accuracy"] > 0.9
    assert verdict.scores["loss"] < 0.4
    assert len(verdict.examples) == 2
    assert {example.target for example in verdict.examples} <= set(prepared.labels)
    assert task.labels == prepared.labels


def test_the_scores_are_those_of_all_examples(made, settings):
    prepared, made_from = made
    work = classification_task(prepared, made_from, settings(tokens=30, most=7))
    model = made_from.build().eval()
    store, labels = prepared.validation, torch.from_numpy(prepared.validation_labels[:7])
    rows = [store[number] for number in range(7)]
    given = (Tokens.of([row[:12].tolist() for row in rows]) if isinstance(made_from, ClassifierConfig)
             else scale_pixels(torch.from_numpy(np.stack(rows)).reshape(7, 1, 6, 4)))
    with torch.no_grad():
        logits = model(given)
    scores = work.validate(work.wrap(model)).scores
    assert abs(scores["loss"] - float(F.cross_entropy(logits, labels))) < 1e-5
    assert abs(scores["accuracy"] - float((logits.argmax(-1) == labels).float().mean())) < 1e-6


def test_what_a_person_uses_gives_what_training_saw(file, tmp_path, settings):
    prepared, made_from = images(file, tmp_path)
    work = classification_task(prepared, made_from, settings())
    model = made_from.build().eval()
    task = work.wrap(model)
    batch = work.validation_batches()[0]
    loss = work.objective(model)(batch).nll
    probabilities = task.label_images(scale_pixels(batch.inputs))
    torch.testing.assert_close(-probabilities.log().gather(1, batch.labels[:, None]).sum(), loss.detach())


def test_every_example_once_an_epoch(made, settings):
    prepared, made_from = made
    for options in ({}, {"batch_size": 5}, {"shapes": "few"}, {"shapes": "few", "layout": "packed"}):
        chosen = replace(settings(), batches=BatchConfig(max_tokens=100, **options))
        work = classification_task(prepared, made_from, chosen)
        feeds = [work.feed(rank, 2) for rank in range(2)]
        batches = [feed.at(step) for feed in feeds for step in range(feed.steps)]
        assert sorted(int(number) for batch in batches for number in batch.numbers) == list(
            range(len(prepared.training)))
        assert sum(batch.tokens for batch in batches) == len(prepared.training)
        assert all(batch.tokens <= options.get("batch_size", 100) for batch in batches)
        assert feeds[0].largest()


def test_images_are_moved_in_training_alone(file, tmp_path, settings):
    prepared, made_from = images(file, tmp_path)
    still, moving = (classification_task(prepared, made_from,
                                         replace(settings(), random_shift=shift)) for shift in (0, 2))
    one, other = still.feed(0, 1).at(0), moving.feed(0, 1).at(0)
    assert np.array_equal(one.numbers, other.numbers)
    assert not torch.equal(one.inputs, other.inputs)
    assert torch.equal(moving.validation_batches()[0].inputs, still.validation_batches()[0].inputs)


def test_what_does_not_go_together(file, tmp_path, settings):
    prepared, made_from = images(file, tmp_path)
    text, text_model = texts(file, tmp_path / "text")
    with pytest.raises(ValueError, match=r'`model.kind` must be "classifier", for texts, but is "vision"'):
        classification_task(text, made_from, settings())
    with pytest.raises(ValueError, match=r'`model.kind` must be "vision", for images, but is "classifier"'):
        classification_task(prepared, text_model, settings())
    with pytest.raises(ValueError, match=r"`model.num_labels` must be 2, the number of labels in the data, but is 3"):
        classification_task(text, READING["mean"], settings())
    other = VisionConfig(image_height=6, image_width=6, channels=1, patch_size=2, num_labels=2, width=8, stack=stack())
    with pytest.raises(ValueError, match=r"must be those of the images, 6 × 4 pixels, grey, but is 6 × 6 pixels, grey"):
        classification_task(prepared, other, settings())


def test_long_texts_are_cut(file, tmp_path, settings):
    long = TSV + "a very long text that goes on\tplus\n"
    survey = survey_labelled([file("a.tsv", long)], [], DataConfig())
    prepared = prepare_labelled_texts(survey, CharactersConfig(), tmp_path / "data")
    made_from = ClassifierConfig(vocab_size=prepared.vocabulary, width=8, num_labels=2, embedding=EMBEDDINGS["learned"],
                                 stack=stack())
    work = classification_task(prepared, made_from, settings())
    assert work.notes == ("Truncated 1 of 81 texts to the 12 positions of the model.",)
    feed = work.feed(0, 1)
    assert max(feed.at(step).inputs.ids.shape[1] for step in range(feed.steps)) == 12
    work.validate(work.wrap(made_from.build()))


EPOCHS, PEAK, WARM = 12, 5e-3, 50


def idx_files(folder, images, labels):
    paths = []
    for name, array in (("images", images), ("labels", labels)):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / name).write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes())
        paths.append(str(folder / name))
    return paths


@pytest.mark.thorough
def test_digits(tmp_path):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    paths = idx_files(tmp_path, digits.images * 15.9375, digits.target)
    survey = survey_labelled(paths, [], DataConfig(validation_fraction=0.2))
    prepared = prepare_images(survey, tmp_path / "data")
    assert (len(prepared.training), len(prepared.validation)) == (1438, 359)
    made_from = VisionConfig(image_height=8, image_width=8, channels=1, patch_size=4, num_labels=10, width=64,
                             stack=StackConfig(
        layers=1, dropout=0.1, mixer=SelfAttentionConfig(heads=4),
        feed_forward=FeedForwardConfig(ffn_width=128, activation="gelu")))
    settings = TrainingConfig(schedule=ScheduleConfig(learning_rate=PEAK, max_steps=1),
                              batches=BatchConfig(batch_size=32), label_smoothing=0.1)
    work, model = ImageClassificationTask(prepared, made_from, settings), made_from.build()
    task, feed, objective = work.wrap(model), work.feed(0, 1), work.objective(model)
    model.train()
    optimiser, steps = torch.optim.AdamW(model.parameters()), EPOCHS * feed.steps
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = PEAK * min(1.0, (step + 1) / WARM) * (1 - step / steps)
        batch = feed.at(step)
        (objective(batch).total / batch.tokens).backward()
        optimiser.step()
        optimiser.zero_grad()
    verdict = work.validate(task)
    assert verdict.scores["accuracy"] >= 0.95
    model.eval()
    images = torch.from_numpy(prepared.validation.stream.reshape(-1, 1, 8, 8).copy())
    found = task.label_images(scale_pixels(images)).argmax(-1).numpy()
    assert (found == prepared.validation_labels).mean() == pytest.approx(verdict.scores["accuracy"])
