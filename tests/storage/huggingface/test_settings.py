"""Keys of a config.json: defaults, what is passed over, and what is refused, all at once."""

import pytest

from regard.models.special import SpecialConfig
from regard.storage.huggingface.bert import BertSettings
from regard.storage.huggingface.gpt2 import GPT2Settings
from regard.storage.huggingface.marian import MarianSettings
from regard.storage.huggingface.settings import ACTIVATIONS, activation, labels, read, special_keys, written
from regard.toml.document import ConfigError


def test_all_that_is_wrong_is_told_at_once():
    raw = {"hidden_size": "768", "is_decoder": True, "position_embedding_type": "relative_key", "hidden_act": "mish",
           "quantization_config": {"bits": 4}, "hiden_dropout_prob": 0.1, "rotary": 1, "auto_map": {"AutoModel": "x"},
           "layer_norm_eps": float("nan")}
    with pytest.raises(ConfigError) as error:
        read(BertSettings, raw, "some/config.json")
    problems = error.value.problems
    assert len(problems) == len(raw)
    assert all(line.startswith("some/config.json: ") for line in problems)
    for key in raw:
        assert any(f'"{key}"' in line for line in problems), key
    assert any('did you mean "hidden_dropout_prob"' in line for line in problems)


def test_null_is_as_if_it_were_not_there_and_harmless_keys_are_passed_over():
    raw = {"hidden_size": None, "use_cache": True, "num_beams": 4, "pooler_type": "x", "pruned_heads": {},
           "quantization_config": None, "unheard_of": None}
    assert read(BertSettings, raw, "config.json") == read(BertSettings, {}, "config.json")


def test_a_key_that_is_not_known_can_be_ignored():
    with pytest.raises(ConfigError, match='unknown key "adapted"'):
        read(BertSettings, {"adapted": True}, "config.json")
    assert read(BertSettings, {"adapted": True}, "config.json", ["adapted"]) == read(BertSettings, {}, "config.json")


def test_special_ids():
    def ids(**raw):
        return read(GPT2Settings, raw, "config.json").special()

    assert ids() == SpecialConfig(start=50256, end=(50256,))
    assert ids(vocab_size=9) == SpecialConfig()
    assert ids(bos_token_id=None, eos_token_id=None) == SpecialConfig()
    assert ids(eos_token_id=[3, 4], pad_token_id=0, unk_token_id=5).end == (3, 4)
    with pytest.raises(ConfigError, match='"eos_token_id": 9 is no id of the 9'):
        ids(vocab_size=9, eos_token_id=9)
    with pytest.raises(ConfigError, match="pad_token_id"):
        ids(pad_token_id=-1)
    assert read(MarianSettings, {"bos_token_id": 7}, "config.json").special().start == 58100


@pytest.mark.parametrize("cls", [GPT2Settings, MarianSettings, BertSettings])
@pytest.mark.parametrize("special", [
    SpecialConfig(), SpecialConfig(start=1, end=(2,), padding=0, unknown=3, mask=4, first=5, separator=6),
    SpecialConfig(start=1, end=(2, 3))])
def test_what_is_written_is_read_again(cls, special):
    settings = cls(**special_keys(cls, special))
    table = written(settings)
    assert read(cls, table, "config.json") == settings
    assert settings.special() == special
    assert table["eos_token_id"] == {0: None, 1: 2, 2: [2, 3]}[len(special.end)]


@pytest.mark.parametrize(("raw", "expected"), [
    ({}, (2, ())), ({"num_labels": 5}, (5, ())), ({"id2label": {"0": "a", "1": "b", "2": "c"}}, (3, ("a", "b", "c"))),
    ({"id2label": {"1": "b", "0": "a"}, "num_labels": 9}, (2, ("a", "b"))),
    ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, (2, ())),
])
def test_labels(raw, expected):
    assert labels(raw, "config.json") == expected


@pytest.mark.parametrize("raw", [{"num_labels": 0}, {"num_labels": "two"}, {"id2label": {"0": "a", "2": "b"}},
                                 {"id2label": ["a"]}, {"id2label": {}}, {"id2label": {"0": 1}}])
def test_what_are_no_labels(raw):
    with pytest.raises(ValueError, match=f"config.json: {next(iter(raw))}"):
        labels(raw, "config.json")


def test_every_activation_of_ours_has_one_of_theirs():
    assert {activation(ours) for ours in ACTIVATIONS.values()} == {"relu", "gelu", "silu", "gelu_new"}
    assert all(ACTIVATIONS[activation(ours)] == ours for ours in ACTIVATIONS.values())


def test_activations_are_the_functions_of_their_names(peer):
    import torch
    from transformers.activations import ACT2FN

    from regard.blocks.feed_forward import ACTIVATIONS as OURS

    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    for theirs, ours in ACTIVATIONS.items():
        torch.testing.assert_close(OURS[ours](x), ACT2FN[theirs](x), rtol=0, atol=1e-9)
