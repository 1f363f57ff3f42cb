"""Batches with labels: every example once an epoch with its own label, images moved reproducibly, few shapes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches.batch import (
    LAYOUTS,
    FittedLabelledCollator,
    ImageCollator,
    LabelledTextCollator,
    StoredReader,
    batch_by_length,
    pad_sequences,
    shift_images,
)
from regard.data.batches.feed import WindowPlan, labelled_feed
from regard.data.batches.plan import BatchLimits, plan_batches
from regard.data.images import ImageShape
from regard.tokens import IGNORED_LABEL, PackedTokens

SHAPE = ImageShape(3, 4, 2)


@pytest.fixture(scope="module")
def images(written):
    """Ten images, the first byte of each its number."""
    chance = np.random.default_rng(0)
    return written([[number, *chance.integers(0, 256, SHAPE.size - 1).tolist()] for number in range(10)], 256)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 3))
def test_every_image_once_an_epoch_with_its_label(images, rows, processes, epoch):
    labels, found = np.arange(10) * 3, []
    for rank in range(processes):
        feed = labelled_feed(WindowPlan(10, rows, seed=1), ImageCollator(images, labels, SHAPE), rank=rank,
                             processes=processes)
        for step in range(epoch * feed.steps, (epoch + 1) * feed.steps):
            batch = feed.at(step)
            assert batch.inputs.dtype == torch.uint8
            assert batch.inputs.shape == (batch.rows, 2, 3, 4)
            assert batch.tokens == batch.rows == len(batch.numbers) <= rows
            assert (batch.inputs[:, 0, 0, 0] * 3).tolist() == batch.labels.tolist() == (batch.numbers * 3).tolist()
            found += batch.numbers.tolist()
    assert sorted(found) == list(range(10))


def test_images_are_moved_by_seed_epoch_and_number_alone(images):
    labels = np.zeros(10, np.int64)
    rows = ImageCollator(images, labels, SHAPE, shift=1, seed=5)
    together, epoch = rows(np.arange(10), 2).inputs, 2
    for number in range(10):
        assert torch.equal(rows(np.array([number]), epoch).inputs[0], together[number])
    assert not torch.equal(rows(np.arange(10), 3).inputs, together)
    assert not torch.equal(ImageCollator(images, labels, SHAPE, shift=1, seed=6)(np.arange(10), 2).inputs, together)
    still = ImageCollator(images, labels, SHAPE)(np.arange(10), 2).inputs
    near = [any(torch.equal(one, torch.from_numpy(shift_images(own[None].numpy(), np.array([down]), np.array([right]))[0]))
                for down in (-1, 0, 1) for right in (-1, 0, 1)) for one, own in zip(together, still, strict=True)]
    assert all(near)
    assert not torch.equal(still, together)


def test_an_image_is_moved_down_and_to_the_right_and_its_edge_repeated():
    image = np.array([[[[1, 2], [3, 4]]]], np.uint8)
    assert shift_images(image, np.array([1]), np.array([0])).tolist() == [[[[1, 2], [1, 2]]]]
    assert shift_images(image, np.array([0]), np.array([1])).tolist() == [[[[1, 1], [3, 3]]]]
    assert shift_images(image, np.array([-1]), np.array([-1])).tolist() == [[[[4, 4], [4, 4]]]]


def test_images_of_another_shape_are_refused(images):
    with pytest.raises(ValueError, match="`store` must be of 10 images of 3 × 4 pixels, grey"):
        ImageCollator(images, np.zeros(10, np.int64), ImageShape(3, 4, 1))


@pytest.fixture(scope="module")
def texts(written):
    """Texts of 1 to 30 ids, all of them its number."""
    return written([[number] * (1 + number * 7 % 30) for number in range(40)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_texts_keep_their_labels(texts, layout):
    labels = np.arange(40) + 100
    plan = plan_batches(texts, BatchLimits(64, 8), seed=3, extra=(0,))
    feed = labelled_feed(plan, LabelledTextCollator(StoredReader(texts), labels, LAYOUTS[layout]), largest=plan.largest())
    found = []
    for step in range(feed.steps):
        batch = feed.at(step)
        assert isinstance(batch.inputs, PackedTokens) == (layout == "packed")
        ids, lengths = batch.inputs.ids, batch.inputs.lengths
        own = ids[0][lengths.cumsum(0) - 1] if layout == "packed" else ids[:, 0]
        assert (own + 100).tolist() == batch.labels.tolist()
        found += batch.numbers.tolist()
    assert sorted(found) == list(range(40))
    assert [batch.tokens for batch in feed.largest()] == [len(numbers) for numbers in plan.largest()]


def test_few_shapes_change_nothing_but_padding(texts):
    labels = np.arange(40)
    plan = plan_batches(texts, BatchLimits(64, 8), seed=3, extra=(0,), max_shapes=2)
    rows = LabelledTextCollator(StoredReader(texts), labels, pad_sequences, padding=999)
    plain, fitted = labelled_feed(plan, rows), labelled_feed(plan, FittedLabelledCollator(rows, plan.shapes))
    seen = set()
    for step in range(plain.steps):
        own, filled = plain.at(step), fitted.at(step)
        seen.add(tuple(filled.inputs.ids.shape))
        count = own.rows
        assert filled.tokens == count
        assert torch.equal(filled.labels[:count], own.labels)
        assert (filled.labels[count:] == IGNORED_LABEL).all()
        assert torch.equal(filled.inputs.lengths[:count], own.inputs.lengths)
        assert (filled.inputs.lengths[count:] == 0).all()
        assert torch.equal(filled.inputs.ids[:count, :own.inputs.ids.shape[1]], own.inputs.ids)
    assert len(seen) <= 2
    nothing = fitted.maker(np.zeros(0, np.int64), 0)  # for a process that has no more
    assert nothing.tokens == 0
    assert nothing.rows > 0
    assert (nothing.labels == IGNORED_LABEL).all()
    assert (nothing.inputs.lengths == 0).all()


def test_a_batch_goes_to_a_device(texts):
    batch = LabelledTextCollator(StoredReader(texts), np.arange(40), pad_sequences)(np.array([3, 1]), 0)
    there = batch.to("meta")
    assert there.labels.device.type == there.inputs.ids.device.type == "meta"
    assert there.tokens == 2


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 200))
def test_in_order_of_lengths_within_a_budget(lengths, budget):
    lengths = np.array(lengths, np.int64)
    parts = list(batch_by_length(lengths, budget))
    assert sorted(np.concatenate([*parts, np.zeros(0, np.int64)]).tolist()) == list(range(len(lengths)))
    for part in parts:
        assert len(part) == 1 or len(part) * lengths[part].max() <= budget
    assert (np.diff(lengths[np.concatenate([*parts, np.zeros(0, np.int64)]).astype(int)]) >= 0).all()
    for one, following in pairwise(parts):  # none could have been larger
        assert (len(one) + 1) * lengths[following[0]] > budget
