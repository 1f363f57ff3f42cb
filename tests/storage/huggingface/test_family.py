"""Whether a config fits: what differs is named, what means the same or is only how a model runs is not."""

from dataclasses import replace

import pytest
import tiny
import torch

from regard.models.language import MaskedModelConfig
from regard.models.vision import VisionConfig
from regard.position.encoding import LearnedConfig
from regard.special_tokens import SpecialTokens
from regard.storage.huggingface.decoders import GPT2Settings
from regard.storage.huggingface.encoder_decoders import MarianSettings
from regard.storage.huggingface.encoders import BertSettings
from regard.storage.huggingface.family import (
    ACTIVATIONS,
    IDENTITY,
    THIRDS,
    TRANSPOSED,
    TRANSPOSED_THIRDS,
    TensorRule,
    UnusedTensor,
    activation_name,
    check_fits,
    expected_specs,
    is_unused,
    leading_ones,
    match_rules,
    patch_filters,
    read_labels,
    read_settings,
    settings_to_json,
    special_keys,
    to_foreign,
)
from regard.toml import ConfigError

MASKED = MaskedModelConfig(vocab_size=9, width=8, stack=tiny.stack())
VISION = VisionConfig(image_height=4, image_width=4, patch_size=2, num_labels=2, width=8, stack=tiny.stack())


@pytest.mark.parametrize(("config", "same"), [
    (MASKED, replace(MASKED, mlm_width=8)),
    (MASKED, replace(MASKED, stack=replace(MASKED.stack, dropout=0.3, activation_checkpointing=True))),
    (MASKED, replace(MASKED, stack=replace(MASKED.stack, mixer=replace(tiny.ATTENTION, key_heads=2, head_width=4)))),
    (MASKED, replace(MASKED, embedding=replace(MASKED.embedding, epsilon=0.5))),  # there is no norm that has it
    (VISION, replace(VISION, positions=LearnedConfig(max_positions=5))),
])
def test_what_means_the_same_fits(config, same):
    check_fits(config, same, "X")
    check_fits(same, config, "X")


@pytest.mark.parametrize(("other", "said"), [
    (replace(MASKED, mlm_width=4, tie_word_embeddings=False), "mlm_width is absent, but must be 4"),
    (replace(MASKED, stack=replace(MASKED.stack, epsilon=0.5)), "stack.epsilon is 1e-05, but must be 0.5"),
    (replace(MASKED, stack=tiny.stack("alibi")), 'stack.mixer.position.kind is absent, but must be "alibi"'),
])
def test_what_differs_is_named(other, said):
    with pytest.raises(ValueError, match="X") as error:
        check_fits(MASKED, other, "X")
    assert said in str(error.value)


WAYS = [(IDENTITY, (3, 4), [(3, 4)]), (TRANSPOSED, (3, 4), [(4, 3)]), (THIRDS, (6,), [(2,)] * 3),
        (TRANSPOSED_THIRDS, (2, 6), [(2, 2)] * 3), (leading_ones(1), (1, 5), [(5,)]),
        (leading_ones(2), (1, 1, 5), [(5,)]),
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


RULES = (TensorRule("h.{i}.a.*", ("b.{i}.x.*",)), TensorRule("in.weight", ("in.weight",)),
         TensorRule("out.weight", ("out.weight",)),
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


def test_all_that_is_wrong_is_told_at_once():
    raw = {"hidden_size": "768", "is_decoder": True, "position_embedding_type": "relative_key", "hidden_act": "mish",
           "quantization_config": {"bits": 4}, "hiden_dropout_prob": 0.1, "rotary": 1, "auto_map": {"AutoModel": "x"},
           "layer_norm_eps": float("nan")}
    with pytest.raises(ConfigError) as error:
        read_settings(BertSettings, raw, "some/config.json")
    problems = error.value.problems
    assert len(problems) == len(raw)
    assert all(line.startswith("some/config.json: ") for line in problems)
    for key in raw:
        assert any(f'"{key}"' in line for line in problems), key
    assert any('did you mean "hidden_dropout_prob"' in line for line in problems)


def test_null_is_as_if_it_were_not_there_and_harmless_keys_are_passed_over():
    raw = {"hidden_size": None, "use_cache": True, "num_beams": 4, "pooler_type": "x", "pruned_heads": {},
           "quantization_config": None, "unheard_of": None}
    assert read_settings(BertSettings, raw, "config.json") == read_settings(BertSettings, {}, "config.json")


def test_a_key_that_is_not_known_can_be_ignored():
    with pytest.raises(ConfigError, match='unknown key "adapted"'):
        read_settings(BertSettings, {"adapted": True}, "config.json")
    ignored = read_settings(BertSettings, {"adapted": True}, "config.json", ["adapted"])
    assert ignored == read_settings(BertSettings, {}, "config.json")


def test_special_ids():
    def ids(**raw):
        return read_settings(GPT2Settings, raw, "config.json").special()

    assert ids() == SpecialTokens(start=50256, end=(50256,))
    assert ids(vocab_size=9) == SpecialTokens()
    assert ids(bos_token_id=None, eos_token_id=None) == SpecialTokens()
    assert ids(eos_token_id=[3, 4], pad_token_id=0, unk_token_id=5).end == (3, 4)
    with pytest.raises(ConfigError, match=r'"eos_token_id": 9.*vocabulary size 9'):
        ids(vocab_size=9, eos_token_id=9)
    with pytest.raises(ConfigError, match="pad_token_id"):
        ids(pad_token_id=-1)
    assert read_settings(MarianSettings, {"bos_token_id": 7}, "config.json").special().start == 58100


@pytest.mark.parametrize("cls", [GPT2Settings, MarianSettings, BertSettings])
@pytest.mark.parametrize("special", [
    SpecialTokens(), SpecialTokens(start=1, end=(2,), padding=0, unknown=3, mask=4, cls=5, separator=6),
    SpecialTokens(start=1, end=(2, 3))])
def test_what_is_written_is_read_again(cls, special):
    settings = cls(**special_keys(cls, special))
    table = settings_to_json(settings)
    assert read_settings(cls, table, "config.json") == settings
    assert settings.special() == special
    assert table["eos_token_id"] == {0: None, 1: 2, 2: [2, 3]}[len(special.end)]


@pytest.mark.parametrize(("raw", "expected"), [
    ({}, (2, ())), ({"num_labels": 5}, (5, ())), ({"id2label": {"0": "a", "1": "b", "2": "c"}}, (3, ("a", "b", "c"))),
    ({"id2label": {"1": "b", "0": "a"}, "num_labels": 9}, (2, ("a", "b"))),
    ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, (2, ())),
])
def test_labels(raw, expected):
    assert read_labels(raw, "config.json") == expected


@pytest.mark.parametrize("raw", [{"num_labels": 0}, {"num_labels": "two"}, {"id2label": {"0": "a", "2": "b"}},
                                 {"id2label": ["a"]}, {"id2label": {}}, {"id2label": {"0": 1}}])
def test_what_are_no_labels(raw):
    with pytest.raises(ValueError, match=f"config.json: {next(iter(raw))}"):
        read_labels(raw, "config.json")


def test_every_activation_of_ours_has_one_of_theirs():
    assert {activation_name(ours) for ours in ACTIVATIONS.values()} == {"relu", "gelu", "silu", "gelu_new"}
    assert all(ACTIVATIONS[activation_name(ours)] == ours for ours in ACTIVATIONS.values())


def test_activations_are_the_functions_of_their_names(peer):
    import torch
    from transformers.activations import ACT2FN

    from regard.blocks.feed_forward import ACTIVATIONS as OURS

    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    for theirs, ours in ACTIVATIONS.items():
        torch.testing.assert_close(OURS[ours](x), ACT2FN[theirs](x), rtol=0, atol=1e-9)
