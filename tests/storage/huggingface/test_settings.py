"""Keys of a config.json: defaults, what is passed over, and what is refused, all at once."""

import pytest

from regard.special_tokens import SpecialTokens
from regard.storage.huggingface.decoders import GPT2Settings
from regard.storage.huggingface.encoder_decoders import MarianSettings
from regard.storage.huggingface.encoders import BertSettings
from regard.storage.huggingface.family import (
    ACTIVATIONS,
    activation_name,
    read_labels,
    read_settings,
    settings_to_json,
    special_keys,
)
from regard.toml import ConfigError


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
    assert read_settings(BertSettings, {"adapted": True}, "config.json", ["adapted"]) == read_settings(BertSettings, {}, "config.json")


def test_special_ids():
    def ids(**raw):
        return read_settings(GPT2Settings, raw, "config.json").special()

    assert ids() == SpecialTokens(start=50256, end=(50256,))
    assert ids(vocab_size=9) == SpecialTokens()
    assert ids(bos_token_id=None, eos_token_id=None) == SpecialTokens()
    assert ids(eos_token_id=[3, 4], pad_token_id=0, unk_token_id=5).end == (3, 4)
    with pytest.raises(ConfigError, match='"eos_token_id": 9 is no id of the 9'):
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
