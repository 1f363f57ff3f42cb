"""Zero configuration of classifiers: from the number of examples, the size of images and the device."""

import pytest
import torch
from planned import CPU, GPU, config

from regard.models import catalog
from regard.models.build import build
from regard.training import defaults as choices

DEVICES = {"cpu": CPU, "gpu": GPU}
SHAPES = [(8, 8, 1), (28, 28, 1), (32, 32, 3), (64, 48, 3), (224, 224, 3), (7, 13, 1), (1, 1, 3)]


def images(count, shape, device=CPU, training=None, recipe=None):
    named, asked = choices.image_classifier_recipe(count, min(shape[:2]), device, recipe), training or {}
    model = list(choices.image_classifier_model(count, *shape, device, recipe))
    found = [*model, *choices.classification_training(count, 50 * count, device, min(shape[:2]), asked)]
    return config(named.value, found, {"model": {"num_labels": 3}, "training": asked}), [*found, named]


def texts(count, device=CPU, training=None):
    named, asked = choices.text_classifier_recipe(count, device, None), training or {}
    found = [*choices.classification_tokenizer(count, {}), *choices.classification_training(count, 20 * count, device, None, asked)]
    return config(named.value, found, {"model": {"num_labels": 3, "vocab_size": 100}, "training": asked}), [*found, named]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("shape", SHAPES)
def test_images_of_any_shape_are_cut_into_patches(shape, name):
    for count in (10, 5_000, 60_000, 2_000_000):
        tables, found = images(count, shape, DEVICES[name])
        model = tables["model"]
        assert (model.image_height, model.image_width, model.channels) == shape
        assert model.image_height % model.patch_size == model.image_width % model.patch_size == 0
        with torch.device("meta"):
            assert build(model)
        assert all(choice.reason for choice in found)
        assert tables["training"].validation.metric == "accuracy"


@pytest.mark.parametrize("name", DEVICES)
def test_texts(name):
    vocabularies = []
    for count in (10, 5_000, 60_000):
        tables, found = texts(count, DEVICES[name])
        with torch.device("meta"):
            assert build(tables["model"])
        assert all(choice.reason for choice in found)
        vocabularies.append(tables["tokenizer"].vocab_size)
    assert vocabularies == sorted(vocabularies)


@pytest.mark.parametrize("make", [lambda *given: images(500, (28, 28, 1), *given), lambda *given: texts(500, *given)])
@pytest.mark.parametrize("device", DEVICES.values())
def test_what_is_set_is_followed(make, device):
    tables, found = make(device, {"schedule": {"max_steps": 20}})
    assert "training.epochs" not in {choice.key for choice in found}
    assert tables["training"].schedule.warmup_steps <= 5
    assert tables["training"].validation.every <= 2
    assert make(device, {"parallelism": "fsdp"})[0]["training"].validation.metric == "loss"
    assert make(device, {"batches": {"layout": "packed"}})[0]["training"].batches.layout == "packed"


@pytest.mark.parametrize("size", ["tiny", "small", "big"])
def test_a_size_that_is_asked_for_is_as_large_as_it_is(size):
    model = images(60_000, (28, 28, 1), GPU, recipe=f"vit-{size}")[0]["model"]
    table = catalog.find_recipe(f"vit-{size}").tables["model"]
    assert (model.width, model.stack.layers) == (table["width"], table["stack"]["layers"])
    open_one, left = (images(60_000, (28, 28, 1), GPU, recipe=recipe)[0]["model"] for recipe in (None, "vit"))
    assert open_one == left
    assert open_one.width == 128


@pytest.mark.parametrize("make", [lambda: images(500, (28, 28, 1)), lambda: texts(500)])
def test_a_training_that_ends_before_its_time_is_told_where_there_is_patience_alone(make):
    tables, found = make()
    (epochs,) = [choice for choice in found if choice.key == "training.epochs"]
    assert ("unless" in epochs.reason) == (tables["training"].validation.patience is not None)


@pytest.mark.parametrize(("natural", "read"), [
    ((28, 28), (28, 28)), ((224, 224), (224, 224)), ((31, 29), (31, 29)), ((1, 1), (1, 1)), ((512, 512), (512, 512)),
    ((97, 97), (96, 96)), ((375, 500), (368, 496)), ((251, 17), (240, 16)), ((3000, 4000), (432, 576)),
    ((3, 100_000), (16, 16_384)), ((1, 1025), (16, 1024))])
def test_no_image_is_cut_into_too_many_patches(natural, read):
    assert choices.image_sides(*natural) == read
    (patch,) = [choice.value for choice in choices.image_classifier_model(9, *read, 1, CPU, None) if choice.key == "model.patch_size"]
    assert read[0] % patch == read[1] % patch == 0
    assert (read[0] // patch) * (read[1] // patch) <= choices.MAX_PATCHES
