"""Patches: every weight at its place in the image, the image as it is, and what is on other tokens told."""

import numpy as np
import pytest
import torch
from refusals import assert_named

from regard.inspection.pictures import patch_picture

WEIGHTS = np.arange(1, 8) / 28
"""One token before 2 × 3 patches."""


def images(figure):
    return [image.get_array() for axes in figure.axes for image in axes.images]


def head(figure):
    return " ".join(text.get_text() for text in figure.texts)


def test_weights_stand_where_the_patches_do():
    figure = patch_picture(torch.tensor(WEIGHTS), (2, 3), lead=1, title="A cat")
    np.testing.assert_allclose(images(figure)[0], [[2 / 28, 3 / 28, 4 / 28], [5 / 28, 6 / 28, 7 / 28]])
    assert head(figure) == "A cat 0.0357 of the weights is on the token before the patches"


def test_each_head_has_a_map_and_all_one_scale():
    weights = np.stack([np.roll(WEIGHTS, number) for number in range(9)])
    figure = patch_picture(weights, (2, 3), lead=1)
    assert len(images(figure)) == 9
    for number, drawn in enumerate(images(figure)):
        np.testing.assert_array_equal(drawn.ravel(), weights[number, 1:])
    assert len({image.get_clim() for axes in figure.axes for image in axes.images}) == 1
    assert [axes.get_title() for axes in figure.axes[:9]] == [f"head {number}" for number in range(9)]
    assert "0.0357 … 0.25 of the weights" in head(figure)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3), (3, 4, 6), (1, 4, 6), (4, 6, 1)])
@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_an_image_is_shown_as_it_is(shape, kind):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    given = pixels if kind is np.uint8 else (pixels / 255).astype(np.float32)
    figure = patch_picture(np.full(6, 1 / 6), (2, 3), image=given)
    shown = images(figure)[0]
    expected = np.moveaxis(pixels, 0, -1) if shape[0] in (1, 3) else pixels
    np.testing.assert_allclose(shown, (expected[..., 0] if expected.shape[-1] == 1 else expected) / 255, atol=1e-6)
    np.testing.assert_allclose(images(figure)[1], np.full((2, 3), 1 / 6))
    assert head(figure) == ""


def test_negative_and_unnormalised_weights_are_told_of():
    figure = patch_picture(np.array([-1.0, 2.0, 3.0, 0.0, 0.0, 0.0]), (2, 3))
    assert figure.axes[0].images[0].get_clim() == (-3.0, 3.0)
    assert head(figure) == "rows sum to more than 1, up to 4; 1 of 6 cells are negative: these are not probabilities"


def test_one_patch():
    assert images(patch_picture([1.0], (1, 1)))[0].shape == (1, 1)


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: patch_picture(WEIGHTS, (2, 3)), ["`weights`", "0 + 2 × 3"]),
    (lambda: patch_picture(WEIGHTS, (0, 3), lead=7), ["`weights`"]),
    (lambda: patch_picture(np.ones((1, 1, 7)), (2, 3), lead=1), ["`weights`", "(heads, tokens)"]),
    (lambda: patch_picture(np.ones((0, 7)), (2, 3), lead=1), ["`weights`", "(0, 7)"]),
    (lambda: patch_picture(WEIGHTS, (2, 3), lead=1, image=np.full((2, 2), 1.5)), ["`image`", "normalisation"]),
    (lambda: patch_picture(WEIGHTS, (2, 3), lead=1, image=np.full((2, 2), np.nan)), ["`image`"]),
    (lambda: patch_picture(WEIGHTS, (2, 3), lead=1, image=np.ones((2, 2, 5))), ["`image`", "(2, 2, 5)"]),
    (lambda: patch_picture(WEIGHTS, (2, 3), lead=1, image=np.ones(4)), ["`image`", "(4,)"]),
])
def test_wrong_arguments_are_refused(call, parts):
    assert_named(call, parts)
