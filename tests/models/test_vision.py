"""The vision transformer: patches are those of the image, and stand where they stand."""

import pytest
import torch
from tiny import VISION, built, stack

from regard.models.vision import VisionConfig
from regard.toml import ConfigError


def test_patches_are_a_convolution_without_overlap():
    model = built(VISION["class"])
    images = torch.randn(2, 3, 8, 12).double()
    kernel = model.patches.project.weight.view(-1, 3, 4, 4)
    want = torch.nn.functional.conv2d(images, kernel, model.patches.project.bias, stride=4).flatten(2).transpose(1, 2)
    table = model.patches.positions.encoding.table
    vectors = model.patches(images)
    assert vectors.shape == (2, 1 + 2 * 3, 8)
    torch.testing.assert_close(vectors[:, 1:], want + table[1:])
    torch.testing.assert_close(vectors[:, 0], (model.patches.token + table[0]).expand(2, -1))


def test_class_token_or_mean():
    for name, images in (("class", torch.randn(2, 3, 8, 12)), ("no token", torch.randn(2, 1, 8, 8))):
        model = built(VISION[name])
        states = model.states(images.double())
        pooled = states[:, 0] if name == "class" else states.mean(1)
        torch.testing.assert_close(model(images.double()), model.output(pooled))


def test_every_pixel_matters():
    model, images = built(VISION["class"]), torch.randn(1, 3, 8, 12).double().requires_grad_()
    model(images).square().sum().backward()
    assert (images.grad != 0).all()


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"`images` must be of shape \(images, 3, 8, 12\), but is .* \(1, 3, 8, 8\)"):
        built(VISION["class"])(torch.randn(1, 3, 8, 8))
    with pytest.raises(ConfigError) as error:
        VisionConfig(image_height=9, image_width=10, patch_size=4, num_labels=2, width=6, stack=stack())
    assert "4 does not divide image_height, 9" in str(error.value)
    assert "4 does not divide image_width, 10" in str(error.value)


def test_no_images_have_no_labels():
    model = built(VISION["class"])
    assert model(torch.randn(0, 3, 8, 12).double()).shape == (0, model.output.out_features)
