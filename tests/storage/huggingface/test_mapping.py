"""Rules: each way there and back to the bit, and which rules hold for which model."""

import pytest
import torch

from regard.storage.huggingface.family import (
    IDENTITY,
    THIRDS,
    TRANSPOSED,
    TRANSPOSED_THIRDS,
    TensorRule,
    UnusedTensor,
    expected_specs,
    is_unused,
    leading_ones,
    match_rules,
    patch_filters,
    to_foreign,
)

WAYS = [(IDENTITY, (3, 4), [(3, 4)]), (TRANSPOSED, (3, 4), [(4, 3)]), (THIRDS, (6,), [(2,)] * 3),
        (TRANSPOSED_THIRDS, (2, 6), [(2, 2)] * 3), (leading_ones(1), (1, 5), [(5,)]), (leading_ones(2), (1, 1, 5), [(5,)]),
        (leading_ones(1), (1, 5, 2), [(5, 2)]), (patch_filters(3, 2), (4, 3, 2, 2), [(4, 12)])]


@pytest.mark.parametrize(("way", "theirs", "ours"), WAYS, ids=lambda value: getattr(value, "words", None))
def test_every_way_goes_there_and_back(way, theirs, ours):
    tensor = torch.randn(theirs)
    parts = way.read(tensor)
    assert [tuple(part.shape) for part in parts] == ours
    assert torch.equal(way.write(parts), tensor)


def test_queries_keys_and_values_are_the_columns_in_this_order():
    theirs = torch.arange(12.0).view(2, 6)
    query, key, value = TRANSPOSED_THIRDS.read(theirs)
    assert torch.equal(torch.stack([query.t(), key.t(), value.t()]), torch.stack(theirs.split(2, dim=1)))


def test_patches_are_read_as_a_convolution_reads_them():
    filters, image = torch.randn(5, 3, 2, 2), torch.randn(1, 3, 2, 2)
    expected = torch.nn.functional.conv2d(image, filters, stride=2).flatten()
    torch.testing.assert_close(patch_filters(3, 2).read(filters)[0] @ image.flatten(), expected)


RULES = (TensorRule("h.{i}.a.*", ("b.{i}.x.*",)), TensorRule("in.weight", ("in.weight",)), TensorRule("out.weight", ("out.weight",)),
         TensorRule("head.*", ("head.*",)))


def test_rules_hold_where_the_model_has_the_tensor():
    state = {"b.0.x.weight": torch.zeros(2), "b.0.x.bias": torch.zeros(2), "b.10.x.weight": torch.zeros(2),
             "in.weight": torch.zeros(3), "out.weight": torch.zeros(3)}
    matches = match_rules(RULES, state)
    assert [(match.theirs, match.ours) for match in matches.found] == [
        (("h.0.a.weight",), ("b.0.x.weight",)), (("h.0.a.bias",), ("b.0.x.bias",)),
        (("h.10.a.weight",), ("b.10.x.weight",)), (("in.weight",), ("in.weight",)), (("out.weight",), ("out.weight",))]
    assert (matches.second, matches.without) == ({}, [])
    assert match_rules(RULES, {"b.0.y.weight": torch.zeros(2)}).without == ["b.0.y.weight"]


def test_what_is_one_tensor_has_several_names_and_is_written_once():
    table = torch.ones(3)
    state = {"in.weight": table, "out.weight": table}
    matches = match_rules(RULES, state)
    assert [match.theirs for match in matches.found] == [("in.weight", "out.weight")]
    assert matches.second == {"out.weight": "in.weight"}
    assert expected_specs(matches, state, []).keys() == {"in.weight"}
    assert expected_specs(matches, state, ["out.weight"]).keys() == {"out.weight"}
    assert expected_specs(matches, state, ["out.weight", "in.weight"]).keys() == {"in.weight", "out.weight"}
    assert to_foreign(matches, state).keys() == {"in.weight"}


def test_a_pattern_is_the_whole_name():
    unused = [UnusedTensor("h.{i}.bias", ""), UnusedTensor("pooler.*", "")]
    assert is_unused("h.12.bias", unused)
    assert is_unused("pooler.weight", unused)
    for name in ("h.x.bias", "h.1.biases", "my.h.1.bias", "hx1.bias", "pooler.scale", "h.1.2.bias"):
        assert not is_unused(name, unused)
