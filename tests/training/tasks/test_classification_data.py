"""Labelled texts and images, from files to ids and bytes."""

import numpy as np
import pytest

from regard.data.images import ImageShape
from regard.data.sources.text import DataError
from regard.data.tokenizer.training import CharactersConfig
from regard.training.config import DataConfig
from regard.training.tasks.classification_data import (
    IdxImageSource,
    ImageFolderSource,
    check_classes,
    number_labels,
    prepare_images,
    prepare_labelled_texts,
    survey_images,
    survey_texts,
)


def test_names_are_sorted_or_known():
    labels, numbers = number_labels(["b", "a", "b", "c"])
    assert labels == ("a", "b", "c")
    assert numbers.tolist() == [1, 0, 1, 2]
    assert number_labels(["10", "2"], ("2", "10"))[1].tolist() == [1, 0]
    assert number_labels([])[0] == ()


def test_nothing_to_tell_apart():
    check_classes("a.tsv", ("a", "b"))
    with pytest.raises(DataError, match=r'a.tsv: All examples have the same label, "a\\x1b"'):
        check_classes("a.tsv", ("a\x1b",))
    with pytest.raises(DataError, match=r"a.tsv: There are no labelled examples"):
        check_classes("a.tsv", ())


LINES = [(f"{word} number {number}", label) for number in range(30)
         for word, label in (("good", "plus"), ("bad", "minus"), ("so", "zero"))]
TSV = "".join(f"{text}\t{label}\n" for text, label in LINES)


def test_what_is_in_the_files(file):
    survey = survey_texts([file("a.tsv", TSV + " \tplus\n")], [], DataConfig(validation_fraction=0.2))
    assert survey.statistics.labels == ("minus", "plus", "zero")
    assert survey.count == 90
    assert [survey.statistics.labels[number] for number in survey.statistics.numbers] == [label for _, label in LINES]
    assert survey.held_out.sum() == 18
    (summary,) = survey.warnings
    assert "Read 91 texts with 3 labels from a.tsv." in summary
    assert "Skipped 1 " in summary
    assert f"{survey.inputs[0].name}:91" in summary
    assert survey.counts == {"texts": 90}


def test_a_header_is_told_and_is_no_text(file):
    survey = survey_texts([file("a.tsv", "text\tlabel\n" + TSV)], [], DataConfig())
    assert survey.count == 90
    assert "header (text, label)" in survey.warnings[1]


def test_equal_texts_are_on_one_side_whatever_their_labels(file):
    other = "".join(f"{text}\tother\n" for text, _ in LINES)
    survey = survey_texts([file("a.tsv", TSV + other)], [], DataConfig(validation_fraction=0.3))
    assert np.array_equal(survey.held_out[:90], survey.held_out[90:])
    assert set(survey.statistics.numbers[~survey.held_out].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(("data", "validation", "message"), [
    ("a\tx\nb\tx\n", None, r'a.tsv: All examples have the same label, "x"'),
    ("", None, r"a.tsv: There are no labelled examples"),
    (" \tx\n", None, r"a.tsv: There are no labelled examples"),
    (TSV, "fine\tplus\nwell\tother\n", r'b.tsv:2: The label "other" is not in the training data'),
    (TSV, " \tplus\n", r"b.tsv: No validation texts"),
    (TSV, "no label\n", r"b.tsv:1: 1 column instead of 2"),
])
def test_what_cannot_be_learned(file, data, validation, message):
    given = [] if validation is None else [file("b.tsv", validation)]
    with pytest.raises(DataError, match=message):
        survey_texts([file("a.tsv", data)], given, DataConfig())


def stored(prepared, store, labels):
    return [(prepared.tokenizer.decode(store[number].tolist()), prepared.labels[label])
            for number, label in enumerate(labels)]


def test_ids_keep_their_labels(file, tmp_path):
    survey = survey_texts([file("a.tsv", TSV + "\tplus\n" + "last\tzero\n")], [], DataConfig(validation_fraction=0.2))
    prepared = prepare_labelled_texts(survey, CharactersConfig(), tmp_path / "data")
    learned = stored(prepared, prepared.training, prepared.training_labels)
    judged = stored(prepared, prepared.validation, prepared.validation_labels)
    assert sorted(learned + judged) == sorted([*LINES, ("last", "zero")])
    assert len(judged) == int(survey.held_out.sum()) == 18
    assert prepared.vocabulary == prepared.tokenizer.size
    assert prepared.tokens == sum(len(text) for text, _ in learned)


def test_validation_that_is_given(file, tmp_path):
    survey = survey_texts([file("a.tsv", TSV)], [file("b.tsv", "new\tzero\ngood number 3\tminus\n")], DataConfig())
    assert survey.warnings == ("Read 90 texts with 3 labels from a.tsv.", "Read 2 validation texts from b.tsv.",
                               "1 of 2 validation texts are in the training data too.")
    prepared = prepare_labelled_texts(survey, CharactersConfig(), tmp_path / "data")
    assert stored(prepared, prepared.validation, prepared.validation_labels) == [("new", "zero"),
                                                                                 ("good number 3", "minus")]
    assert len(prepared.training) == 90


def test_with_nothing_held_out_it_is_judged_by_what_it_learned(file, tmp_path):
    survey = survey_texts([file("a.tsv", TSV)], [], DataConfig())
    prepared = prepare_labelled_texts(survey, CharactersConfig(), tmp_path / "data")
    assert np.array_equal(prepared.training_labels, prepared.validation_labels)
    assert np.array_equal(prepared.training.stream, prepared.validation.stream)


IMAGES = np.random.default_rng(0).integers(0, 256, (4, 5, 6), dtype=np.uint8)
LABELS = ["10", "2", "10", "2"]


def idx_files(folder, images=IMAGES, labels=LABELS):
    folder.mkdir(exist_ok=True)
    values = np.array([int(label) for label in labels], np.uint8)
    paths = []
    for name, array in (("images", images), ("labels", values)):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / name).write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())
        paths.append(str(folder / name))
    return paths


def image_folder(folder, images=IMAGES, labels=LABELS):
    image = pytest.importorskip("PIL.Image")
    for number, (array, label) in enumerate(zip(images, labels, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        image.fromarray(array).save(folder / label / f"{number}.png")
    return str(folder)


def pixels(source, shape, numbers):
    return np.stack(list(source.pixels(shape, np.array(numbers))))


def test_idx_files(tmp_path):
    source = IdxImageSource(idx_files(tmp_path))
    assert list(source.labels) == LABELS
    assert source.label_names == ("2", "10")  # in the order of numbers
    assert source.shapes(iter) == [ImageShape(5, 6, 1)]
    assert np.array_equal(pixels(source, ImageShape(5, 6, 1), [3, 0])[:, 0], IMAGES[[3, 0]])
    assert source.title(3) == "image 3"
    assert list(source.files()) == ["images", "labels"]
    assert len(set(source.hashes.tolist())) == 4


def test_a_folder(tmp_path):
    source = ImageFolderSource(image_folder(tmp_path / "set"))
    assert list(source.labels) == ["10", "10", "2", "2"]
    assert source.label_names == ("10", "2")
    assert source.shapes(iter) == [ImageShape(5, 6, 1)] * 4
    assert np.array_equal(pixels(source, ImageShape(5, 6, 1), [0, 1, 2, 3])[:, 0], IMAGES[[0, 2, 1, 3]])
    assert source.title(2) == "2/1.png"
    assert pixels(source, ImageShape(4, 4, 3), [1]).shape == (1, 3, 4, 4)


def test_the_digest_of_a_folder_is_of_names_and_contents(tmp_path):
    first = ImageFolderSource(image_folder(tmp_path / "set")).files()
    assert ImageFolderSource(image_folder(tmp_path / "again" / "set")).files() == first
    moved = ImageFolderSource(image_folder(tmp_path / "moved" / "set", labels=["11", "2", "11", "2"])).files()
    changed = ImageFolderSource(image_folder(tmp_path / "changed" / "set", images=IMAGES[::-1])).files()
    assert list(first) == list(moved) == ["set"]
    assert len({first["set"], moved["set"], changed["set"]}) == 3


def test_equal_images_have_equal_hashes(tmp_path):
    images = IMAGES[[0, 1, 0, 2]]
    of_idx = IdxImageSource(idx_files(tmp_path / "idx", images)).hashes
    assert of_idx[0] == of_idx[2] != of_idx[1]
    of_folder = ImageFolderSource(image_folder(tmp_path / "set", images, ["a", "b", "c", "d"])).hashes
    assert of_folder[0] == of_folder[2] != of_folder[1]


CHANCE = np.random.default_rng(0)


class Drawn:
    """A source in memory: the first byte of an image is its number."""

    notes = ()

    def __init__(self, labels, shapes=((4, 4, 1),), name="drawn", first=0):
        self.labels, self.name, self.first = labels, name, first
        self.label_names = tuple(sorted(set(labels)))
        self._shapes = [ImageShape(*shape) for shape in shapes]

    @property
    def hashes(self):
        numbers = np.arange(self.first, self.first + len(self.labels)).astype(np.uint64)
        return numbers * np.uint64(7919) % np.uint64(1009)

    def files(self):
        return {self.name: str(self.first)}

    def shapes(self, counted):
        return list(counted(self._shapes))

    def pixels(self, shape, numbers):
        for number in numbers:
            yield np.full((shape.channels, shape.height, shape.width), number, np.uint8)

    def title(self, number):
        return f"{self.name} {number}"


def test_what_is_in_the_files_of_labelled_images():
    survey = survey_images(Drawn(["b", "a"] * 20), None, DataConfig(validation_fraction=0.25))
    assert survey.source.label_names == ("a", "b")
    assert survey.numbers.tolist() == [1, 0] * 20
    assert (survey.count, survey.shape, survey.distinct_shapes) == (40, ImageShape(4, 4, 1), 1)
    assert survey.warnings == ("Read 40 images of 2 classes from drawn.",)
    assert survey.held_out.sum() == 10


def test_images_of_several_shapes():
    survey = survey_images(Drawn(["a", "b"], [(4, 9, 1), (6, 5, 3), (5, 7, 1)]), None, DataConfig())
    assert survey.shape == ImageShape(5, 7, 3)
    assert survey.distinct_shapes == 3
    assert "3 different shapes" in survey.warnings[1]


def test_bytes_keep_their_labels(tmp_path):
    labels = [str(number % 4) for number in range(40)]
    prepared = prepare_images(survey_images(Drawn(labels), None, DataConfig(validation_fraction=0.25)), tmp_path,
                              ImageShape(2, 3, 3))
    assert prepared.shape == ImageShape(2, 3, 3)
    found = []
    for store, numbers in ((prepared.training, prepared.training_labels),
                           (prepared.validation, prepared.validation_labels)):
        images = store.stream.reshape(-1, 18)
        assert (images == images[:, :1]).all()
        assert [prepared.labels[number] for number in numbers] == [labels[first] for first in images[:, 0]]
        found += images[:, 0].tolist()
    assert sorted(found) == list(range(40))
    assert prepared.titles == tuple(f"drawn {number}" for number in prepared.validation.stream.reshape(-1, 18)[:, 0])


def test_validation_that_is_given_of_labelled_images(tmp_path):
    given = Drawn(["b", "a", "b"], name="given", first=39)
    survey = survey_images(Drawn(["a", "b"] * 20), given, DataConfig(validation_fraction=0.5))
    assert survey.warnings == ("Read 40 images of 2 classes from drawn.", "Read 3 validation images from given.",
                               "1 of 3 validation images are in the training data too.")
    assert survey.files == {"drawn": "0", "given": "39"}
    prepared = prepare_images(survey, tmp_path)
    assert len(prepared.training) == 40
    assert prepared.validation_labels.tolist() == [1, 0, 1]
    assert prepared.titles[1] == "given 1"


def test_with_nothing_held_out_it_is_judged_by_what_it_learned_of_labelled_images(tmp_path):
    prepared = prepare_images(survey_images(Drawn(["a", "b"]), None, DataConfig()), tmp_path)
    assert prepared.training_labels.tolist() == prepared.validation_labels.tolist() == [0, 1]


def test_what_cannot_be_learned_of_labelled_images():
    with pytest.raises(DataError, match='drawn: All examples have the same label, "a"'):
        survey_images(Drawn(["a", "a"]), None, DataConfig())
    with pytest.raises(DataError, match='given: given 1 has the label "c", which is not in the training data'):
        survey_images(Drawn(["a", "b"]), Drawn(["a", "c"], name="given"), DataConfig())
