"""What plans share."""

from pathlib import Path

from regard.training.tasks.interface import TrainingRequest, validation_fraction_default


def test_what_is_held_out_and_why():
    assert validation_fraction_default(True, 0.0, "some", "too few") == ("data.validation_fraction", 0.0, "validation data is given")
    assert validation_fraction_default(False, 0.1, "some", "too few") == ("data.validation_fraction", 0.1, "some")
    assert validation_fraction_default(False, 0.0, "some", "too few") == ("data.validation_fraction", 0.0, "too few")


def test_a_request_needs_little():
    request = TrainingRequest("seq2seq", ("pairs.tsv",), Path("model"))
    assert (request.validation, request.recipe, request.changes, request.resume) == ((), None, {}, False)
    assert (request.source, request.target, request.format, request.device) == (None, None, None, "auto")
    assert list(request.progress([1, 2])) == [1, 2]
