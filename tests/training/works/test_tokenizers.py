"""Tokenizers of trainings: trained once, then read, and never another in the place of the one that was."""

import json

import pytest

from regard.data.tokenizer.training import BytesConfig, CharactersConfig, UnigramConfig
from regard.storage import filesystem
from regard.storage import folder as folders
from regard.training.tasks import common
from regard.training.tasks.common import (
    ABOUT_FILE,
    TOKENIZER_FOLDER,
    load_or_train_pair_tokenizer,
    load_or_train_tokenizer,
)

SOURCES = [f"a small text of number {n}" for n in range(30)]
TARGETS = [f"un petit texte de nombre {n}" for n in range(30)]
SUBWORDS = UnigramConfig(vocab_size=290)


@pytest.fixture
def pair(tmp_path):
    """A function to the tokenizers of two sides."""

    def make(config=SUBWORDS, joint=True, data=("sha",), settings=None):
        return load_or_train_pair_tokenizer(tmp_path, (lambda: SOURCES, lambda: TARGETS), config, joint=joint, data=data,
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
