"""A folder for each class: the labels are its names, and what is in them is told apart without opening it."""

import os

import pytest

from regard.data import images
from regard.data.sources.text import DataError


def made(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"")
    return root


def test_labels_are_the_names_of_the_folders(tmp_path):
    made(tmp_path, "dog/b.png", "dog/a.png", "cat/2.jpg", ".git/x", "dog/.DS_Store", "README.md")
    found = images.read_image_folder(tmp_path)
    assert [f"{file.parent.name}/{file.name}" for file in found.files] == ["cat/2.jpg", "dog/a.png", "dog/b.png"]
    assert found.labels == ("cat", "dog", "dog")
    assert found.notes == (f"{tmp_path}: skipped 1 file beside the class folders",)
    assert images.read_image_folder(made(tmp_path / "other", "a/1.png")).notes == ()


def test_what_is_no_folder_of_classes(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: There are no folders in it"):
        images.read_image_folder(tmp_path / "empty")
    with pytest.raises(DataError, match="none: The folder cannot be read: No such file"):
        images.read_image_folder(tmp_path / "none")
    (tmp_path / "set" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="set/cat: There is no image in this class"):
        images.read_image_folder(tmp_path / "set")
    made(tmp_path, "deep/cat/inner/1.png")
    with pytest.raises(DataError, match="deep/cat/inner: This is not a file"):
        images.read_image_folder(tmp_path / "deep")


def test_a_name_that_is_no_text(tmp_path):
    try:
        os.mkdir(os.fsencode(tmp_path) + b"/cat\xff")
    except OSError:
        pytest.skip("this file system takes only text")
    with pytest.raises(DataError, match=r"cat\\xff: The name of a class must be text"):
        images.read_image_folder(tmp_path)
