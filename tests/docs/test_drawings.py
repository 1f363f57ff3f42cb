"""The pictures of the road: one for each file, drawn again when asked, the same every time."""

import io

import numpy as np
import pytest
import torch
from paged import DOCS
from PIL import Image
from scripted import script

drawings = script("drawings")


def test_every_drawing_has_its_file_and_every_file_its_drawing():
    assert {path.stem for path in (DOCS / "pictures" / "road").glob("*")} == set(drawings.DRAWINGS)


@pytest.mark.parametrize("name", ["heads", "three-ways"])
def test_a_picture_is_drawn_the_same_every_time_and_no_chance_is_used_up(name):
    before = torch.random.get_rng_state()
    first = drawings.drawn(name)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert drawings.drawn(name) == first
    with Image.open(io.BytesIO(first)) as image:
        assert min(image.size) > 100
        assert len(np.unique(np.asarray(image.convert("L")))) > 3


def test_shares_are_those_of_the_gradient():
    given = torch.randn(1, 4, 3, requires_grad=True)
    weights = torch.tensor([[1.0, 0, 0, 0], [1, 3, 0, 0]])
    shares = drawings.shares((weights @ torch.ones(4, 3) * 0 + weights @ given), given)
    torch.testing.assert_close(shares, torch.tensor([[1.0, 0, 0, 0], [0.25, 0.75, 0, 0]]))
