"""Texts with labels: what is in the files, which are held out, and ids that keep their labels."""

import numpy as np
import pytest

from regard.data.sources.text import DataError
from regard.data.tokenizer.training import CharactersConfig
from regard.training.config import DataConfig
from regard.training.tasks.labelled_data import prepare_labelled_texts, survey_texts

LINES = [(f"{word} number {number}", label) for number in range(30)
         for word, label in (("good", "plus"), ("bad", "minus"), ("so", "zero"))]
TSV = "".join(f"{text}\t{label}\n" for text, label in LINES)


def test_what_is_in_the_files(file):
    survey = survey_texts([file("a.tsv", TSV + " \tplus\n")], [], DataConfig(validation_fraction=0.2))
    assert survey.statistics.labels == ("minus", "plus", "zero")
    assert survey.count == 90
    assert [survey.statistics.labels[number] for number in survey.statistics.numbers] == [label for _, label in LINES]
    assert survey.held_out.sum() == 18
    assert survey.warnings == (f"Skipped 1 lines without text, the first at {survey.inputs[0].name}:91.",)


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
    (TSV, " \tplus\n", r"b.tsv: There is not a single validation text"),
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
    assert survey.warnings == ("1 of 2 validation texts are in the training data too.",)
    prepared = prepare_labelled_texts(survey, CharactersConfig(), tmp_path / "data")
    assert stored(prepared, prepared.validation, prepared.validation_labels) == [("new", "zero"),
                                                                                 ("good number 3", "minus")]
    assert len(prepared.training) == 90


def test_with_nothing_held_out_it_is_judged_by_what_it_learned(file, tmp_path):
    survey = survey_texts([file("a.tsv", TSV)], [], DataConfig())
    prepared = prepare_labelled_texts(survey, CharactersConfig(), tmp_path / "data")
    assert np.array_equal(prepared.training_labels, prepared.validation_labels)
    assert np.array_equal(prepared.training.stream, prepared.validation.stream)
