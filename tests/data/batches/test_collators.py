"""Collators: shifted, masked and labelled batches, padded, packed, and fitted to shapes."""

from itertools import pairwise

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.config import Config
from regard.data.batches.batch import (
    LAYOUTS,
    Batch,
    BoundaryIds,
    FittedCollator,
    FittedLabelledCollator,
    ImageCollator,
    LabelledTextCollator,
    MaskedCollator,
    MaskingConfig,
    SamplingReader,
    ShiftedCollator,
    StoredReader,
    batch_by_length,
    fit_batch,
    pack_sequences,
    pad_sequences,
    shift_images,
)
from regard.data.batches.feed import WindowPlan, labelled_feed
from regard.data.batches.plan import BatchLimits, BatchShape, plan_batches
from regard.data.images import ImageShape
from regard.data.store import Ragged, open_or_make_pairs
from regard.special_tokens import SpecialTokens
from regard.tokens import IGNORED_LABEL, PackedTokens, Tokens
from regard.training.loss import token_loss

ENDS = BoundaryIds(start=1, end=2, padding=0)


def rows(tokens):
    """The sequences of padded or packed tokens."""
    if isinstance(tokens, PackedTokens):
        return [part.tolist() for part in tokens.ids[0].split(tokens.lengths.tolist())]
    return [row[:length].tolist() for row, length in zip(tokens.ids, tokens.lengths.tolist(), strict=True)]


def labels(batch):
    """The labels of every row, without those that fill up."""
    if isinstance(batch.inputs, PackedTokens):
        return [part.tolist() for part in batch.labels[0].split(batch.inputs.lengths.tolist())]
    return [[label for label in row if label != IGNORED_LABEL] for row in batch.labels.tolist()]


def test_a_target_is_shifted_and_filled_up_on_the_right(stored):
    store = stored([(2, 1), (3, 2), (1, 0)])  # ids from 10: [10 11] [12], [13 14 15] [16 17], [18] []
    batch = ShiftedCollator(StoredReader(store), ENDS, pad_sequences)(np.array([1, 2, 0]), 0)
    assert isinstance(batch.source, Tokens)
    assert batch.source.ids.tolist() == [[13, 14, 15], [18, 0, 0], [10, 11, 0]]
    assert batch.source.lengths.tolist() == [3, 1, 2]
    assert batch.source.side == "right"
    assert batch.inputs.ids.tolist() == [[1, 16, 17], [1, 0, 0], [1, 12, 0]]
    assert batch.inputs.lengths.tolist() == [3, 1, 2]
    assert batch.labels.tolist() == [[16, 17, 2], [2, IGNORED_LABEL, IGNORED_LABEL], [12, 2, IGNORED_LABEL]]
    assert (batch.tokens, batch.rows, batch.numbers.tolist()) == (6, 3, [1, 2, 0])


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12), st.data())
def test_packed_has_the_tokens_of_padded(stored, lengths, data):
    store = stored(lengths)
    numbers = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=9)), np.int64)
    filled, dense = (ShiftedCollator(StoredReader(store), ENDS, layout)(numbers, 0) for layout in (pad_sequences,
                                                                                                   pack_sequences))
    assert rows(filled.source) == rows(dense.source) == [store[n][0].tolist() for n in numbers]
    assert rows(filled.inputs) == rows(dense.inputs) == [[1, *store[n][1].tolist()] for n in numbers]
    assert labels(filled) == labels(dense) == [[*store[n][1].tolist(), 2] for n in numbers]
    assert filled.tokens == dense.tokens == int((filled.labels != IGNORED_LABEL).sum()) == dense.labels.numel()
    assert filled.rows == dense.rows == len(numbers)
    for batch in (filled, dense):
        assert batch.labels.shape == batch.inputs.ids.shape
        assert {batch.labels.dtype, batch.inputs.ids.dtype, batch.source.ids.dtype} == {torch.long}
    assert (filled.inputs.ids[filled.labels == IGNORED_LABEL] == 0).all()


def test_a_model_has_one_loss_for_both_layouts_and_none_without_rows(tmp_path):
    chance = np.random.default_rng(0)
    pairs = [[chance.integers(3, tiny.SOURCE, chance.integers(1, 8)) for _ in range(2)] for _ in range(20)]
    store = open_or_make_pairs(tmp_path, "key", lambda: pairs, vocabularies=(tiny.SOURCE, tiny.SOURCE)).store
    model = tiny.built(tiny.translating())

    def loss(layout, numbers):
        batch = ShiftedCollator(StoredReader(store), ENDS, layout)(numbers, 0)
        logits = model.decode(batch.inputs, model.encode(batch.source)).detach()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(),
                                                 ignore_index=IGNORED_LABEL,
                                                 reduction="sum").item()

    assert loss(pad_sequences, np.arange(20)) == pytest.approx(loss(pack_sequences, np.arange(20)), rel=1e-12)
    assert loss(pad_sequences, np.zeros(0, np.int64)) == loss(pack_sequences, np.zeros(0, np.int64)) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_texts_have_no_source(written, layout):
    batch = ShiftedCollator(StoredReader(written([[5, 6], [7]])), ENDS, LAYOUTS[layout])(np.array([1, 0]), 0)
    assert batch.source is None
    assert rows(batch.inputs) == [[1, 7], [1, 5, 6]]
    assert labels(batch) == [[7, 2], [5, 6, 2]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_without_rows(stored, layout):
    batch = ShiftedCollator(StoredReader(stored([(1, 1)])), ENDS, LAYOUTS[layout])(np.zeros(0, np.int64), 0)
    assert (batch.rows, batch.tokens, batch.labels.numel(), batch.source.rows) == (0, 0, 0, 0)
    assert batch.labels.shape == batch.inputs.ids.shape


def test_the_ends_are_those_of_the_model():
    assert BoundaryIds.of(SpecialTokens(start=4, end=(6, 7), padding=3)) == (4, 6, 3)
    assert BoundaryIds.of(SpecialTokens(start=4, end=(6,))) == (4, 6, 0)
    with pytest.raises(ValueError, match="`special` must be with a start and an end, but is without start"):
        BoundaryIds.of(SpecialTokens(end=(6,)))
    with pytest.raises(ValueError, match="without end"):
        BoundaryIds.of(SpecialTokens(start=1))


def test_a_batch_goes_to_a_device(stored):
    for layout in LAYOUTS.values():
        batch = ShiftedCollator(StoredReader(stored([(1, 2), (3, 1)])), ENDS, layout)(np.array([0, 1]), 0).to("meta")
        assert {batch.source.ids.device.type, batch.inputs.ids.device.type, batch.labels.device.type} == {"meta"}
    texts = ShiftedCollator(StoredReader(stored([(1, 2)])), ENDS, pad_sequences)(np.array([0]), 0)
    assert texts.to("cpu").labels.tolist() == texts.labels.tolist()


def test_texts_are_encoded_anew_in_every_epoch(tmp_path):
    words = [("Größe 😀", "taille"), ("", "x"), ("ja", "")]
    texts = open_or_make_pairs(tmp_path, "key", lambda: ((s.encode(), t.encode()) for s, t in words),
                               vocabularies=(256, 256)).store
    seen = []

    def encode(text, seed):
        seen.append((text, seed))
        return [10 + seed % 2, *(100 + len(word) for word in text.split())]

    read = SamplingReader(texts, (encode, encode), seed=3)
    first, *_ = [read(np.array(numbers), epoch) for numbers, epoch in (([2, 0, 1], 0), ([1, 2], 0), ([2, 0, 1], 1))]
    assert [text for text, _ in seen[:6]] == ["ja", "Größe 😀", "", "", "taille", "x"]
    assert first[0].lengths.tolist() == [2, 3, 1]
    assert first[0].ids[[1, 3, 4]].tolist() == [102, 105, 101]
    seeds = {text: [seed for other, seed in seen if other == text] for text in ("ja", "Größe 😀")}
    assert seeds["ja"][0] == seeds["ja"][1]  # of the same epoch, in another batch
    assert seeds["ja"][0] != seeds["ja"][2]
    assert len({seed for _, seed in seen}) == 12  # one for each side, pair and epoch: sides are cut apart
    assert [side.lengths.tolist() for side in read(np.zeros(0, np.int64), 0)] == [[], []]


SPECIAL = SpecialTokens(start=1, end=(2, 3), padding=0, unknown=4, mask=5, cls=6, separator=7)
VOCABULARY = 50


@pytest.fixture
def masked(written):
    """A function to a maker of batches, on texts of all ids."""
    chance = np.random.default_rng(0)
    texts = [chance.integers(0, VOCABULARY, chance.integers(0, 60)) for _ in range(600)]
    store = written(texts, VOCABULARY)

    def make(layout=pad_sequences, seed=0, **config):
        return MaskedCollator(StoredReader(store), SPECIAL, VOCABULARY, MaskingConfig(**config), layout, seed), texts

    return make


def flat(batch):
    """Inputs and labels of all tokens, padding left out."""
    there = np.arange(batch.inputs.ids.shape[1]) < batch.inputs.lengths.numpy()[:, None]
    assert (batch.labels.numpy()[~there] == IGNORED_LABEL).all()
    return batch.inputs.ids.numpy()[there], batch.labels.numpy()[there]


@pytest.mark.parametrize("config", [{}, {"mlm_probability": 0.5, "mask_replace_prob": 0.3, "random_replace_prob": 0.6}])
def test_shares_are_as_asked(masked, config):
    make, texts = masked(**config)
    batch = make(np.arange(len(texts)), 0)
    seen, labels = flat(batch)
    truth, ordinary = np.concatenate(texts), np.concatenate(texts) > 7
    chosen = labels != IGNORED_LABEL
    assert (labels[chosen] == truth[chosen]).all()
    assert (seen[~chosen] == truth[~chosen]).all()
    assert not chosen[~ordinary].any()
    assert batch.tokens == chosen.sum()
    count, wanted = chosen.sum(), MaskingConfig(**config)
    assert chosen.sum() / ordinary.sum() == pytest.approx(wanted.mlm_probability, abs=0.02)
    assert (seen[chosen] == 5).sum() / count == pytest.approx(wanted.mask_replace_prob, abs=0.03)
    other = chosen & (seen != 5) & (seen != truth)
    assert other.sum() / count == pytest.approx(wanted.random_replace_prob, abs=0.03)
    assert (seen[other] > 7).all()  # what is put in is an ordinary id
    assert len(set(seen[other].tolist())) > 30


def test_a_text_is_masked_in_one_way_in_any_batch_and_in_another_in_the_next_epoch(masked):
    make, _ = masked()
    together, alone = make(np.arange(100, 200), 3), make(np.array([150]), 3)
    length = int(alone.inputs.lengths)
    assert length > 20
    assert together.inputs.ids[50, :length].tolist() == alone.inputs.ids[0].tolist()
    assert together.labels[50, :length].tolist() == alone.labels[0].tolist()
    assert make(np.arange(100, 200), 3).labels.tolist() == together.labels.tolist()
    assert make(np.arange(100, 200), 4).labels.tolist() != together.labels.tolist()
    assert masked(seed=1)[0](np.arange(100, 200), 3).labels.tolist() != together.labels.tolist()


def test_all_and_nothing(masked):
    make, texts = masked(mlm_probability=1.0, mask_replace_prob=1.0, random_replace_prob=0.0)
    seen, labels = flat(make(np.arange(len(texts)), 0))
    truth = np.concatenate(texts)
    assert (seen == np.where(truth > 7, 5, truth)).all()
    assert (labels == np.where(truth > 7, truth, IGNORED_LABEL)).all()
    assert masked(mlm_probability=0.0)[0](np.arange(9), 0).tokens == 0


def test_packed_has_the_tokens_of_padded_masking(masked):
    filled, dense = (masked(layout)[0](np.arange(50), 0) for layout in LAYOUTS.values())
    seen, labels = flat(filled)
    assert dense.inputs.ids[0].tolist() == seen.tolist()
    assert dense.labels[0].tolist() == labels.tolist()
    assert dense.source is None


def test_a_batch_without_rows_masking(masked):
    assert masked()[0](np.zeros(0, np.int64), 0).rows == 0


def test_what_cannot_be_masked(written):
    read = StoredReader(written([[1]]))
    with pytest.raises(ValueError, match="`special` must be with a mask"):
        MaskedCollator(read, SpecialTokens(), 10, MaskingConfig(), pad_sequences, 0)
    with pytest.raises(ValueError, match="`vocabulary` must be larger than the special ids"):
        MaskedCollator(read, SpecialTokens(mask=0), 1, MaskingConfig(), pad_sequences, 0)


def test_shares_that_are_no_shares():
    assert issubclass(MaskingConfig, Config)
    with pytest.raises(ValueError, match=r"random_replace_prob.*add up to 1\.1"):
        MaskingConfig(mask_replace_prob=0.8, random_replace_prob=0.3)
    with pytest.raises(ValueError, match="mlm_probability"):
        MaskingConfig(mlm_probability=1.5)


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
    near = [any(torch.equal(one,
                            torch.from_numpy(shift_images(own[None].numpy(), np.array([down]), np.array([right]))[0]))
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
    feed = labelled_feed(plan, LabelledTextCollator(StoredReader(texts), labels, LAYOUTS[layout]),
                         largest=plan.largest())
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


def test_a_batch_goes_to_a_device_labelled(texts):
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


SIZES = [(3, 2), (1, 1), (5, 4)]


def drawn(sizes=SIZES, vocabulary=tiny.SOURCE, layout=pad_sequences):
    """A batch of pairs of these lengths; their ids and labels are drawn."""
    chance = np.random.default_rng(0)
    parts = []
    for lengths in np.array(sizes, np.int64).reshape(-1, 2)[:, [0, 1, 1]].T:
        parts.append(Ragged(chance.integers(3, vocabulary, lengths.sum()), lengths))
    source, inputs, labels = (layout(part, fill) for part, fill in zip(parts, (0, 0, IGNORED_LABEL), strict=True))
    return Batch(source, inputs, labels.ids, np.arange(len(sizes)), int(parts[2].lengths.sum()))


def of_one_side(batch):
    return Batch(None, batch.inputs, batch.labels, batch.numbers, batch.tokens)


def shape(batch):
    sides = [batch.inputs] if batch.source is None else [batch.source, batch.inputs]
    assert {side.rows for side in sides} == {batch.rows}
    return BatchShape(batch.rows, tuple(side.ids.shape[1] for side in sides))


def rows_of_shapes(tokens):
    return [row[:length].tolist() for row, length in zip(tokens.ids, tokens.lengths.tolist(), strict=True)]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), max_size=6),
       st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8)), max_size=5))
def test_a_batch_gets_the_smallest_shape_that_contains_it(sizes, shapes):
    batch, shapes = drawn(sizes), [BatchShape(count, (source, target)) for count, source, target in shapes]
    own, found = shape(batch), fit_batch(batch, shapes, padding=9)
    containing = [one for one in shapes if one.rows >= own.rows and one.lengths[0] >= own.lengths[0]
                  and one.lengths[1] >= own.lengths[1]]
    if containing:
        assert shape(found) in containing
        assert shape(found).tokens == min(one.rows * sum(one.lengths) for one in containing)
    else:
        whole = [shape(found).rows, *shape(found).lengths]
        assert all(number % 8 == 0 for number in whole)
        assert all(number - 8 < least <= number
                   for number, least in zip(whole, [own.rows, *own.lengths], strict=True))
    more = [[]] * (found.rows - batch.rows)
    assert rows_of_shapes(found.source) == rows_of_shapes(batch.source) + more
    assert rows_of_shapes(found.inputs) == rows_of_shapes(batch.inputs) + more
    there = torch.arange(found.inputs.ids.shape[1]) < found.inputs.lengths.unsqueeze(-1)
    assert torch.equal(found.labels != IGNORED_LABEL, there)
    assert found.labels[there].tolist() == batch.labels[batch.labels != IGNORED_LABEL].tolist()
    assert (found.tokens, found.numbers.tolist()) == (batch.tokens, batch.numbers.tolist())


def test_what_is_added_is_padding():
    found = fit_batch(drawn(), [BatchShape(4, (6, 5))], padding=9)
    assert found.source.ids[:3, 5:].tolist() == [[9]] * 3
    assert found.inputs.ids[:3, 4:].tolist() == [[9]] * 3
    assert found.source.ids[3].tolist() == [9] * 6
    assert found.source.lengths.tolist() == [3, 1, 5, 0]
    assert found.labels[3].tolist() == [IGNORED_LABEL] * 5


def test_rows_that_are_all_full_get_lengths():
    ids = torch.tensor([[1, 2], [3, 4]])
    batch = Batch(None, Tokens(ids, segments=ids), ids, np.arange(2), 4)
    found = fit_batch(batch, [BatchShape(3, (3,))])
    assert found.inputs.lengths.tolist() == [2, 2, 0]
    assert found.inputs.segments.tolist() == [[1, 2, 0], [3, 4, 0], [0, 0, 0]]


def losses(model, batch, weight):
    """The loss of a batch, and the gradients of all parameters."""
    model.zero_grad()
    if batch.source is None:
        states = model.features(batch.inputs)
    else:
        states = model.features(batch.source, batch.inputs)
    loss = token_loss(states, model.output, batch.labels, 0.1)
    (loss.total * weight).backward()
    return [loss.total.detach(), loss.nll, loss.tokens, *(parameter.grad for parameter in model.parameters())]


def assert_the_same(model, batch, shape):
    plain, filled = (losses(model, one, 0.3) for one in (batch, fit_batch(batch, [shape])))
    for name, one, other in zip(["total", "nll", "tokens", *dict(model.named_parameters())], plain, filled,
                                strict=True):
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", tiny.TRANSLATING)
def test_it_changes_no_loss_and_no_gradient_of_pairs(name):
    assert_the_same(tiny.built(tiny.TRANSLATING[name]).train(), drawn(), BatchShape(7, (8, 6)))


@pytest.mark.parametrize("name", tiny.LANGUAGE)
def test_it_changes_no_loss_and_no_gradient_of_texts(name):
    assert_the_same(tiny.built(tiny.LANGUAGE[name]).train(), of_one_side(drawn()), BatchShape(7, (6,)))


@pytest.mark.parametrize("name", ["masked", "masked wide"])
def test_it_changes_no_loss_and_no_gradient_of_masked_texts(name):
    assert_the_same(tiny.built(tiny.READING[name]).train(), of_one_side(drawn()), BatchShape(7, (6,)))


@pytest.mark.parametrize("name", ["attention", "seq2seq-attention"])
def test_single_precision(name):
    model = tiny.built(tiny.TRANSLATING[name]).float().train()
    batch = drawn()
    plain, filled = (losses(model, one, 1.0) for one in (batch, fit_batch(batch, [BatchShape(7, (8, 6))])))
    for one, other in zip(plain, filled, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["attention", "rotary", "lstmn", "convolution", "seq2seq", "seq2seq-attention"])
def test_nothing_but_rows_without_tokens_is_zero_with_zero_gradients(name):
    model = tiny.built(tiny.TRANSLATING[name]).train()
    batch = fit_batch(drawn([]), [BatchShape(2, (3, 4)), BatchShape(1, (9, 9))])
    assert shape(batch) == BatchShape(2, (3, 4))
    loss, nll, tokens, *gradients = losses(model, batch, 1.0)
    assert (loss.item(), nll.item(), tokens.item(), batch.tokens) == (0.0, 0.0, 0, 0)
    assert all((gradient == 0).all() for gradient in gradients if gradient is not None)


def test_a_maker_of_fitted_batches():
    batch = drawn()
    asked = []
    maker = FittedCollator(lambda *given: asked.append(given) or batch, (BatchShape(4, (6, 5)),), 7)
    found = maker(np.arange(3), 5)
    assert shape(found) == BatchShape(4, (6, 5))
    assert found.inputs.ids[3].tolist() == [7] * 5
    assert [epoch for _, epoch in asked] == [5]


def test_what_has_no_rows_to_fill_up():
    tokens = Tokens(torch.zeros(1, 2).long(), torch.tensor([1]), "left")
    batch = Batch(None, tokens, torch.zeros(1, 2), np.arange(1), 1)
    with pytest.raises(ValueError, match="`batch` must be padded on the right, or packed, but is"):
        fit_batch(batch, [BatchShape(8, (8, 8))])


def sequences(tokens):
    return [piece.tolist() for piece in tokens.ids[0].split(tokens.lengths.tolist())]


@pytest.mark.thorough
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), max_size=6), st.integers(0, 20), st.integers(0, 40),
       st.integers(0, 40))
def test_packed_sequences_are_followed_by_some_that_fill_up(sizes, count, source, target):
    """None of those is longer than the longest, so that they need no position that is not there."""
    batch = drawn(sizes, layout=pack_sequences)
    found = fit_batch(batch, [BatchShape(count, (source, target)), BatchShape(5000, (1000, 1000))], padding=9)
    assert shape(found) in (BatchShape(count, (source, target)), BatchShape(5000, (1000, 1000)))
    for mine, theirs in ((found.source, batch.source), (found.inputs, batch.inputs)):
        assert sequences(mine)[:batch.rows] == sequences(theirs)
        assert {id_ for sequence in sequences(mine)[batch.rows:] for id_ in sequence} <= {9}
        even = -(-mine.ids.shape[1] // max(1, mine.rows))  # where nothing tells how long a sequence may be
        longest = max(theirs.lengths.tolist(), default=even)
        assert all(length <= max(1, longest) for length in mine.lengths[batch.rows:].tolist())
    assert found.labels[0, :batch.labels.shape[1]].tolist() == batch.labels[0].tolist()
    assert set(found.labels[0, batch.labels.shape[1]:].tolist()) <= {IGNORED_LABEL}
    assert found.tokens == batch.tokens


def test_packed_sequences_that_were_not_foreseen():
    found = fit_batch(drawn(layout=pack_sequences), [BatchShape(20, (1, 100))])
    assert shape(found) == BatchShape(512, (256, 256))


@pytest.mark.parametrize("name", ["attention", "rotary", "post-norm"])
def test_what_fills_packed_rows_up_changes_neither_loss_nor_gradient(name):
    batch = drawn(layout=pack_sequences)
    whole = fit_batch(batch, [BatchShape(12, (16, 24))])
    results = []
    for given_batch in (batch, whole):
        model = tiny.built(tiny.TRANSLATING[name])
        loss = token_loss(model.features(given_batch.source, given_batch.inputs), model.output, given_batch.labels, 0.1)
        loss.total.backward()
        results.append((loss.total.detach(), {key: one.grad for key, one in model.named_parameters()}))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-12, atol=1e-12)
    for key, gradient in results[0][1].items():
        torch.testing.assert_close(gradient, results[1][1][key], rtol=1e-9, atol=1e-10, msg=key)


@pytest.mark.parametrize("name", ["attention", "rotary", "post-norm"])
def test_a_packed_batch_without_sequences_has_the_planned_shape_and_teaches_nothing(name):
    """What a process gets where an epoch ends unevenly: the shape of all others, so that nothing is recorded anew."""
    batch = fit_batch(drawn([], layout=pack_sequences), [BatchShape(70, (128, 192))])
    assert shape(batch) == BatchShape(70, (128, 192))
    assert [side.lengths.max().item() for side in (batch.source, batch.inputs)] == [2, 3]
    loss, nll, tokens, *gradients = losses(tiny.built(tiny.TRANSLATING[name]).train(), batch, 1.0)
    assert (loss.item(), nll.item(), tokens.item(), batch.tokens) == (0.0, 0.0, 0, 0)
    assert all((gradient == 0).all() for gradient in gradients if gradient is not None)
