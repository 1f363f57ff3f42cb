"""Spans of IOB labels, against conlleval's rules written out."""

import itertools

import pytest

from regard.data.spans import LabelSpan, count_irregular, find_runs, find_spans, is_span_scheme


def literal_spans(labels):
    """The chunks of conlleval: its two tables of when a chunk ends and when one starts, tag by tag."""
    def split(label):
        prefix, _, kind = label.partition("-")
        return prefix, kind

    def ends(before, before_type, tag, kind):
        table = {("B", "B"), ("B", "O"), ("B", "S"), ("I", "B"), ("I", "O"), ("I", "S"),
                 ("E", "E"), ("E", "I"), ("E", "O"), ("E", "B"), ("E", "S"), ("S", "O"), ("S", "B"), ("S", "S"),
                 ("S", "E"), ("S", "I")}
        return (before, tag) in table or (before != "O" and before_type != kind)

    def starts(before, before_type, tag, kind):
        table = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I"), ("E", "E"), ("E", "I"), ("O", "E"), ("E", "B"),
                 ("S", "B"), ("S", "I"), ("S", "E"), ("B", "S"), ("I", "S"), ("O", "S"), ("E", "S"), ("S", "S")}
        return (before, tag) in table or (tag != "O" and before_type != kind)

    found, start, open_type = [], None, None
    before, before_type = "O", ""
    for at, label in enumerate([*labels, "O"]):
        tag, kind = split(label)
        if start is not None and ends(before, before_type, tag, kind):
            found.append((open_type, start, at))
            start = None
        if starts(before, before_type, tag, kind) and tag != "O":
            start, open_type = at, kind
        before, before_type = tag, kind
    return found


@pytest.mark.parametrize("length", range(5))
def test_spans_are_those_of_conlleval(length):
    tags = ("O", "B-X", "I-X", "E-X", "S-X", "I-Y", "B-Y")
    for labels in itertools.product(tags, repeat=length):
        assert [tuple(span) for span in find_spans(labels)] == literal_spans(labels), labels


def test_spans_that_do_not_begin_with_b_are_counted():
    assert count_irregular(["I-X", "I-X", "O", "B-X", "I-X", "I-Y", "S-X"]) == 2
    assert find_spans(["U-X", "L-Y"]) == [LabelSpan("X", 0, 1), LabelSpan("Y", 1, 2)]


@pytest.mark.parametrize(("labels", "expected"), [
    (["O", "B-PER", "I-PER"], True), (["O", "S-A"], True), (["B", "I", "O"], True), (["O"], False), ([], False),
    (["H", "E", "B", "I", "S", "T", "G", "L"], False), (["B-PER", "NOUN"], False), (["I", "O"], False),
    (["O", "B-"], False)])
def test_schemes_are_recognised(labels, expected):
    assert is_span_scheme(labels) == expected


def test_runs_cover_everything_once():
    for labels in itertools.product("ab", repeat=4):
        runs = find_runs(labels)
        assert "".join(run.label * (run.end - run.start) for run in runs) == "".join(labels)
        assert all(one.label != other.label for one, other in itertools.pairwise(runs))
    assert find_runs([]) == []
