"""What tasks share: files, the validation split, truncation, tokenizers, objectives and scores."""

import hashlib
import json
import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import LANGUAGE, READING, SOURCE, VISION
from torch import nn
from torch.nn import functional as F

from regard.data.batches.plan import BatchShape
from regard.data.sources.text import DataError
from regard.data.store import Ragged, open_or_make_texts
from regard.data.tokenizer.training import BytesConfig, CharactersConfig, UnigramConfig
from regard.storage import filesystem
from regard.storage import folder as folders
from regard.tokens import IGNORED_LABEL, Tokens
from regard.training.tasks import common
from regard.training.tasks.common import (
    ABOUT_FILE,
    TOKENIZER_FOLDER,
    FeatureObjective,
    MetricSums,
    TruncatedReader,
    default_validation_fraction,
    evaluation_mode,
    file_digests,
    hash_bytes,
    in_blocks,
    load_or_train_pair_tokenizer,
    load_or_train_tokenizer,
    max_positions,
    model_inputs,
    name_digests,
    open_inputs,
    refuse_sampling,
    select_validation,
    text_lengths,
    truncate_reader,
    truncate_shapes,
    truncation_note,
)


def sha(data):
    return hashlib.sha256(data).hexdigest()


def test_digests_are_by_name(tmp_path):
    for folder, data in (("a", b"1"), ("b", b"2"), ("c", b"1")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_bytes(data)
    paths = [str(tmp_path / folder / "x.txt") for folder in "abc"]
    assert file_digests(paths) == {"x.txt": sha(b"1"), "x.txt (2)": sha(b"2")}
    assert name_digests([("set/", "1"), ("other/set", "2"), ("set",
                                                             "3")]) == {"set": "1", "set (2)": "2", "set (3)": "3"}


def test_what_is_read_once_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("-", str(tmp_path / "pipe")):
        with pytest.raises(DataError, match=r"Training reads its data more than once.*Save it to a file"):
            open_inputs([path])


def test_blocks_hold_all_in_order():
    assert list(in_blocks(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(in_blocks([], 2)) == []


examples = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=80)


@given(examples, st.floats(0.01, 0.9))
def test_equal_examples_are_on_one_side(found, share):
    hashes = np.array([hash_bytes(bytes([value])) for value, _ in found], np.uint64)
    labels = np.array([label for _, label in found], np.int64)
    held = select_validation(hashes, share, labels)
    sides = {value: set() for value, _ in found}
    for (value, _), one in zip(found, held, strict=True):
        sides[value].add(bool(one))
    assert all(len(side) == 1 for side in sides.values())
    assert set(labels[~held].tolist()) == set(labels.tolist())  # something of every label is learned from
    many = len({value for (value, _), one in zip(found, held, strict=True) if one})
    assert many <= max(1, round(share * len(sides)))


@given(examples, st.floats(0.01, 0.9), st.randoms())
def test_the_order_does_not_matter(found, share, chance):
    def chosen(given):
        hashes = np.array([hash_bytes(bytes([value])) for value, _ in given], np.uint64)
        return {value for (value, _), one in zip(given, select_validation(hashes, share), strict=True) if one}

    mixed = list(found)
    chance.shuffle(mixed)
    assert chosen(mixed) == chosen(found)


def test_shares_are_exact_and_at_least_one():
    hashes = np.array([hash_bytes(str(number).encode()) for number in range(1000)], np.uint64)
    assert select_validation(hashes, 0.1).sum() == 100
    assert select_validation(hashes[:3], 0.01).sum() == 1
    assert select_validation(hashes, 0.0).sum() == 0
    assert select_validation(np.repeat(hashes[:1], 9), 0.5).sum() == 0  # all are the same: nothing can be held out
    assert select_validation(hashes[:0], 0.5).tolist() == []


@pytest.mark.parametrize(("count", "share"), [(0, 0.0), (19, 0.0), (20, 0.1), (20_000, 0.1), (200_000, 0.01)])
def test_how_much(count, share):
    assert default_validation_fraction(count) == share


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=8), st.integers(1, 9))
def test_of_each_text_the_first_ids(texts, longest):
    ids = Ragged(np.array([one for text in texts for one in text], np.int64),
                 np.array([len(text) for text in texts], np.int64))
    (found,) = TruncatedReader(lambda numbers, epoch: (ids,), longest)(np.arange(len(texts)), 0)
    assert np.split(found.ids, np.cumsum(found.lengths))[:-1] if texts else True
    cut = [text[:longest] for text in texts]
    assert found.lengths.tolist() == [len(text) for text in cut]
    assert found.ids.tolist() == [one for text in cut for one in text]


def test_room_follows_from_the_positions():
    assert max_positions(LANGUAGE["learned"]) == 12
    assert max_positions(LANGUAGE["sinusoidal"]) is None
    assert max_positions(LANGUAGE["llama"]) is None


def test_nothing_is_cut_where_there_is_no_end():
    def read(numbers, epoch):
        return ()

    assert truncate_reader(read, None) is read
    known = (BatchShape(2, (9,)), BatchShape(3, (4,)))
    assert truncate_shapes(known, None) is known
    assert truncate_shapes(known, 5) == (BatchShape(2, (5,)), BatchShape(3, (4,)))


def test_what_is_cut_is_told(tmp_path):
    store = open_or_make_texts(tmp_path, "key", lambda: [[1] * 3, [1] * 7, [1] * 8], vocabulary=5).store
    assert text_lengths(store).tolist() == [3, 7, 8]
    assert truncation_note(store, 6) == ("Truncated 2 of 3 texts to the 6 positions of the model.",
                                         )
    assert truncation_note(store, 8) == truncation_note(store, None) == ()


def test_sampling_is_for_pairs(settings):
    refuse_sampling(settings())
    with pytest.raises(ValueError, match=r"`training.subword_sampling` must be 0.* but is 0.2"):
        refuse_sampling(settings(subword_sampling=0.2))


SOURCES = [f"a small text of number {n}" for n in range(30)]
TARGETS = [f"un petit texte de nombre {n}" for n in range(30)]
SUBWORDS = UnigramConfig(vocab_size=290)


@pytest.fixture
def pair(tmp_path):
    """A function to the tokenizers of two sides."""

    def make(config=SUBWORDS, joint=True, data=("sha",), settings=None):
        return load_or_train_pair_tokenizer(tmp_path, (lambda: SOURCES, lambda: TARGETS), config, joint=joint,
                                            data=data,
                           settings=settings or {"held": 0.1})

    return make


@pytest.fixture
def trained(monkeypatch):
    """A list that grows with every training."""
    found = []
    for name in ("train_tokenizer", "train_joint_tokenizer", "train_separate_tokenizers"):
        make = getattr(common.training, name)

        def watched(*given, name=name, make=make):
            found.append(name)
            return make(*given)

        monkeypatch.setattr(common.training, name, watched)
    return found


def test_a_pair_is_trained_once_and_then_read(pair, trained):
    first, second = pair(), pair()
    assert trained == ["train_joint_tokenizer", "train_tokenizer"]  # the one calls the other
    assert first.tokenizer.joint
    assert (second.tokenizer.sha256, second.notes) == (first.tokenizer.sha256, first.notes)
    assert second.tokenizer.encode_sources(SOURCES) == first.tokenizer.encode_sources(SOURCES)


def test_notes_are_kept(pair):
    assert pair(UnigramConfig(vocab_size=9000)).notes == pair(UnigramConfig(vocab_size=9000)).notes != ()


@pytest.mark.parametrize("change", [{"config": UnigramConfig(vocab_size=291)}, {"joint": False}, {"data": ("other",)},
                                    {"settings": {"held": 0.2}}, {"config": BytesConfig()},
                                    {"config": CharactersConfig()}])
def test_from_anything_else_it_is_trained_anew(pair, trained, change):
    pair()
    count = len(trained)
    pair(**change)
    assert len(trained) > count
    count = len(trained)
    pair(**change)
    assert len(trained) == count


def test_two_sides_of_their_own(pair, trained):
    first = pair(joint=False)
    assert not first.tokenizer.joint
    assert pair(joint=False).tokenizer.sha256 == first.tokenizer.sha256
    assert trained.count("train_separate_tokenizers") == 1


def test_one_side(tmp_path, trained):
    first, second = (load_or_train_tokenizer(tmp_path, lambda: SOURCES, CharactersConfig(), data=["sha"], settings={})
                     for _ in range(2))
    assert trained == ["train_tokenizer"]
    assert first.tokenizer.encode("a text") == second.tokenizer.encode("a text")


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.toml", ABOUT_FILE, "manifest.json"])
@pytest.mark.parametrize("damage", [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data[:-2],
                                    lambda data: b""])
def test_a_file_that_was_changed_is_refused_by_name(pair, tmp_path, trained, name, damage):
    pair()
    path = tmp_path / TOKENIZER_FOLDER / name
    path.write_bytes(damage(path.read_bytes()))
    count = len(trained)
    with pytest.raises(filesystem.FolderError, match=name.replace(".", r"\.")):
        pair()
    assert len(trained) == count


@pytest.mark.parametrize("name", ["tokenizer.model", ABOUT_FILE])
def test_a_file_that_is_gone_is_named(pair, tmp_path, name):
    pair()
    (tmp_path / TOKENIZER_FOLDER / name).unlink()
    with pytest.raises(filesystem.FolderError, match=name.replace(".", r"\.")):
        pair()


def test_another_tokenizer_under_the_name_of_this_one_is_refused(pair, tmp_path):
    """A whole folder, with a manifest of its own, but not with the sha256 that was written down."""
    kept = pair().tokenizer
    folder = tmp_path / TOKENIZER_FOLDER
    about = json.loads((folder / ABOUT_FILE).read_text())
    other = common.training.train_joint_tokenizer(TARGETS, TARGETS, SUBWORDS).tokenizer
    assert other.sha256 != kept.sha256
    folders.save(folder, {**other.files(), ABOUT_FILE: json.dumps(about).encode()})
    with pytest.raises(ValueError, match=f"tokenizer.*{kept.sha256[:12]}"):
        pair()


@dataclass
class Given:
    inputs: object
    labels: torch.Tensor


def batch(kind):
    if kind == "vision class":
        images = torch.randint(256, (4, 3, 8, 12)).to(torch.uint8)
        return VISION["class"].build(), Given(images, torch.tensor([0, 4, IGNORED_LABEL, 1]))
    tokens = Tokens(torch.randint(SOURCE, (3, 5)), torch.tensor([5, 2, 1]))
    if kind == "masked":
        return READING["masked"].build(), Given(tokens, torch.tensor([[1, IGNORED_LABEL, 3, IGNORED_LABEL,
                                                                       0]]).repeat(3, 1))
    return READING["mean"].build(), Given(tokens, torch.tensor([2, 0, 1]))


KINDS = ("masked", "mean", "vision class")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_the_loss_of_the_logits(kind, smoothing):
    model, given = batch(kind)
    loss = FeatureObjective(model, smoothing, 0.0)(given)
    logits = model(model_inputs(given.inputs))
    options = {"ignore_index": IGNORED_LABEL, "reduction": "sum"}
    flat, labels = logits.reshape(-1, logits.shape[-1]), given.labels.reshape(-1)
    torch.testing.assert_close(loss.total, F.cross_entropy(flat, labels, label_smoothing=smoothing, **options))
    torch.testing.assert_close(loss.nll, F.cross_entropy(flat, labels, **options).detach())
    assert int(loss.tokens) == int((labels != IGNORED_LABEL).sum())
    wanted = torch.autograd.grad(F.cross_entropy(flat, labels, label_smoothing=smoothing, **options),
                                 model.output.weight)
    torch.testing.assert_close(torch.autograd.grad(loss.total, model.output.weight), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_passes_that_agree_cost_nothing_more(kind):
    model, given = batch(kind)  # without dropout both passes are the same
    plain, twice = (FeatureObjective(model, 0.1, weight)(given) for weight in (0.0, 5.0))
    torch.testing.assert_close(twice.total, plain.total)
    assert int(twice.tokens) == int(plain.tokens)


def test_passes_that_differ_cost_more_while_training_alone():
    model, given = batch("mean")
    model.dropout = torch.nn.Dropout(0.5)
    objective = FeatureObjective(model, 0.0, 5.0)
    loss = objective(given)
    assert float(loss.total.detach()) > float(loss.nll) + 1e-3
    objective.eval()
    passes, features = [], model.features
    model.features = lambda inputs: passes.append(inputs) or features(inputs)
    loss = objective(given)
    assert float(loss.total.detach()) == float(loss.nll)
    assert len(passes) == 1


def test_only_bytes_are_scaled():
    floats = torch.rand(2, 3)
    assert model_inputs(floats) is floats
    assert float(model_inputs(torch.tensor([255], dtype=torch.uint8))) == 1.0


def test_every_part_is_as_it_was():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
    model.train()
    model[0].eval()
    state = torch.get_rng_state()
    with evaluation_mode(model):
        assert not model[1].training
        assert not model(torch.ones(1, 2)).requires_grad
    assert (model.training, model[0].training, model[1].training) == (True, False, True)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_means_over_all_labels_that_count():
    output = nn.Linear(3, 5)
    features, labels = torch.randn(4, 6, 3), torch.randint(5, (4, 6))
    labels[:, 4:] = IGNORED_LABEL
    sums = MetricSums(torch.device("cpu"))
    with evaluation_mode(output):
        for rows in (slice(0, 1), slice(1, 4)):
            sums.evaluate(features[rows], output, labels[rows])
    logits, wanted = output(features).detach()[:, :4].reshape(-1, 5), labels[:, :4].reshape(-1)
    assert abs(sums.loss - float(nn.functional.cross_entropy(logits, wanted))) < 1e-6
    assert abs(sums.accuracy - float((logits.argmax(-1) == wanted).float().mean())) < 1e-6
