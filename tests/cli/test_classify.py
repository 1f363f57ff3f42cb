"""`regard classify`: labels of texts and of images, from files, folders and IDX files."""

import numpy as np
import pytest
import texting
import torch
from calling import call, idx, lines, tables

import regard
from regard.data.images import ImageShape, read_pixels


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    place = tmp_path_factory.mktemp("classify") / "words"
    texting.classifier().save(place)
    return place


@pytest.fixture(scope="module")
def eyes(tmp_path_factory):
    place = tmp_path_factory.mktemp("classify") / "eyes"
    texting.seer().save(place)
    return place


def test_texts(words):
    texts = ["the dog", "", "Emma\tsees"]
    want = [labels[0] for labels in regard.load(words).classify(texts)]
    expected = [f"{label.name}\t{label.probability:.4f}\t{text}" for label, text in zip(want, texts, strict=True)]
    assert lines("classify", words, *texts) == expected
    assert lines("classify", words, stdin="\n".join(texts)) == expected
    (table,) = tables("classify", words, "the dog")
    assert table["input"] == "the dog"
    assert table["labels"][0]["name"] == want[0].name
    assert sum(label["probability"] for label in table["labels"]) == pytest.approx(1)


def test_images(eyes, tmp_path):
    module = pytest.importorskip("PIL.Image")
    (tmp_path / "in").mkdir()
    for name, size in (("b.png", (8, 8)), ("a.png", (20, 12))):
        random = np.random.default_rng(len(name)).integers(0, 256, (*size, 3), dtype=np.uint8)
        module.fromarray(random).save(tmp_path / "in" / name)
    paths = [tmp_path / "in" / "a.png", tmp_path / "in" / "b.png"]
    want = regard.load(eyes).classify(torch.stack([torch.tensor(read_pixels(path, ImageShape(8, 8,
                                                                                             1))) for path in paths]))
    expected = [f"{labels[0].name}\t{labels[0].probability:.4f}\t{path}"
                for labels, path in zip(want, paths, strict=True)]
    assert lines("classify", eyes, tmp_path / "in") == expected
    assert lines("classify", eyes, *paths) == expected
    (tmp_path / "in" / "a.png").write_bytes(b"no image")
    code, out, said = call("classify", eyes, tmp_path / "in")
    assert (code, out) == (1, f"\t\t{paths[0]}\n{expected[1]}\n")
    assert said.startswith(f"Error: image 1: {paths[0]}: This is not an image")


def test_idx_files(eyes, tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    (tmp_path / "images").write_bytes(idx(images))
    want = regard.load(eyes).classify(torch.from_numpy(images).unsqueeze(1))
    assert lines("classify", eyes, tmp_path / "images") == [
        f"{labels[0].name}\t{labels[0].probability:.4f}\t{tmp_path}/images[{number}]"
        for number, labels in enumerate(want)]
    (tmp_path / "labels").write_bytes(idx(np.zeros(5, np.uint8)))
    code, out, said = call("classify", eyes, tmp_path / "labels")
    assert (code, out) == (2, "")
    assert "3 dimensions" in said


def test_images_come_in_files(eyes, tmp_path):
    code, _, said = call("classify", eyes)
    assert code == 2
    assert "images" in said
    code, _, said = call("classify", eyes, tmp_path / "none.png")
    assert code == 2
    assert "There is no such file" in said
    code, out, said = call("classify", eyes, "a text and no name of a file " * 20)
    assert (code, out) == (2, "")
    assert "name too long" in said


def test_a_file_that_cannot_be_read_does_not_stop_the_others(eyes, tmp_path):
    """Inside a folder it is one bad image; in the call it is told before anything is done."""
    image = np.full((1, 8, 8), 7, np.uint8)
    (tmp_path / "in").mkdir()
    for name, content in (("a", idx(image)), ("b.gz", b"\x1f\x8b\x08\0"), ("c", idx(np.zeros(5, np.uint8))),
                          ("e", idx(image))):
        (tmp_path / "in" / name).write_bytes(content)
    (tmp_path / "in" / "d").symlink_to(tmp_path / "nowhere")
    code, out, said = call("classify", eyes, tmp_path / "in")
    found = [line.split("\t") for line in out.splitlines()]
    names = ("a[0]", "b.gz", "c", "d", "e[0]")
    assert (code, [line[2] for line in found]) == (1, [f"{tmp_path}/in/{name}" for name in names])
    assert [bool(line[0]) for line in found] == [True, False, False, False, True]
    assert [part in said for part in ("image 2: ", "truncated", "3 dimensions", "no such file")] == [True] * 4
    code, out, said = call("classify", eyes, tmp_path / "in" / "a", tmp_path / "in" / "d")
    assert (code, out) == (2, "")
    assert "There is no such file" in said
