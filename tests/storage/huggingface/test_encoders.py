"""BERT: every head against `transformers`, with padding and segments, and there and back."""

import re

import pytest
import torch

from regard.storage import weights
from regard.storage.huggingface.conversion import read_model
from regard.storage.huggingface.encoders import Bert, BertSettings, ViTSettings
from regard.storage.huggingface.family import read_settings as settings
from regard.tokens import Tokens
from regard.toml import ConfigError

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
         "max_position_embeddings": 20}
LENGTHS = torch.tensor([9, 4, 1])
HEADS = {"BertModel": ("encoder", "last_hidden_state"), "BertForMaskedLM": ("masked", "logits"),
         "BertForPreTraining": ("masked", "prediction_logits"), "BertForTokenClassification": ("tagger", "logits"),
         "BertForSequenceClassification": ("classifier", "logits")}
"""Our kind, and what theirs calls its result."""


@pytest.mark.parametrize(("head", "hidden_act"), [*((head, "gelu") for head in HEADS), ("BertForMaskedLM", "gelu_new"),
                                                  ("BertForMaskedLM", "relu")])
@torch.no_grad()
def test_numbers_are_theirs(peer, saved, head, hidden_act):
    kind, name = HEADS[head]
    theirs = getattr(peer, head)(peer.BertConfig(**SMALL, hidden_act=hidden_act, num_labels=3))
    foreign = read_model(saved(theirs))
    assert (foreign.config.kind, foreign.architecture, foreign.special.padding) == (kind, head, 0)
    ids, segments = torch.randint(1, 50, (3, 9)), torch.randint(0, 2, (3, 9))
    there = torch.arange(9) < LENGTHS.unsqueeze(-1)
    expected = theirs(ids, attention_mask=there.long(), token_type_ids=segments)[name]
    got = foreign.build()(Tokens(ids, LENGTHS, segments=segments))
    if kind != "classifier":
        expected, got = expected[there], got[there]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", [head for head in HEADS if head != "BertForPreTraining"])
def test_there_and_back(peer, saved, assert_there_and_back, head):
    labels = {"id2label": {0: "no", 1: "yes", 2: "perhaps"}}
    model = getattr(peer, head)(peer.BertConfig(**SMALL, **labels, hidden_dropout_prob=0.2, classifier_dropout=0.3))
    # An encoder of ours has no pooler, so theirs makes a new one.
    missing = ("pooler.dense.weight", "pooler.dense.bias") if head == "BertModel" else ()
    foreign = assert_there_and_back(saved(model), model, missing)
    labelled = foreign.config.kind in ("classifier", "tagger")
    assert foreign.labels == (("no", "yes", "perhaps") if labelled else ())
    assert foreign.left_out == (("pooler.dense.bias", "pooler.dense.weight") if head == "BertModel" else ())


def test_the_head_for_the_next_sentence_is_left_out_and_said(peer, saved):
    foreign = read_model(saved(peer.BertForPreTraining(peer.BertConfig(**SMALL))))
    assert {*foreign.left_out} == {"bert.pooler.dense.weight", "bert.pooler.dense.bias",
                                   "cls.seq_relationship.weight", "cls.seq_relationship.bias"}


def test_defaults_are_theirs(peer):
    ours, theirs = BertSettings(pad_token_id=0), peer.BertConfig()
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout",
                "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "pad_token_id", "tie_word_embeddings"):
        assert getattr(ours, key) == getattr(theirs, key), key
    assert settings(BertSettings, {}, "config.json") == ours


def test_what_a_file_is_that_does_not_say_it():
    assert Bert().guess({"cls.predictions.bias"}) == "BertForMaskedLM"
    assert Bert().guess({"embeddings.word_embeddings.weight"}) == "BertModel"
    assert Bert().guess({"classifier.weight", "bert.pooler.dense.weight"}) is None


def test_names_of_old_files():
    spell = Bert().spelling({"embeddings.LayerNorm.gamma", "embeddings.LayerNorm.beta"})
    assert spell("bert.embeddings.LayerNorm.weight") == "embeddings.LayerNorm.gamma"
    assert spell("bert.embeddings.LayerNorm.bias") == "embeddings.LayerNorm.beta"
    assert spell("bert.pooler.dense.bias") == "pooler.dense.bias"


def test_an_old_file_is_read_as_a_new_one(peer, saved):
    folder = saved(peer.BertForMaskedLM(peer.BertConfig(**SMALL)))
    new = read_model(folder)
    path = folder / "model.safetensors"
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights.write_tensors(path, {re.sub("LayerNorm.*", lambda found: names[found[0]], name): tensor
                                 for name, tensor in weights.read_tensors(path).items()})
    old = read_model(folder)
    assert old.tensors.keys() == new.tensors.keys()
    assert all(torch.equal(old.tensors[name], tensor) for name, tensor in new.tensors.items())


def test_an_output_layer_that_is_not_tied_is_refused(peer, saved):
    with pytest.raises(ValueError, match="`tie_word_embeddings` must be true"):
        read_model(saved(peer.BertForMaskedLM(peer.BertConfig(**SMALL, tie_word_embeddings=False))))


def test_what_a_family_cannot_be_told_with_names_the_file(peer, saved):
    folder = saved(peer.BertForMaskedLM(peer.BertConfig(**SMALL, tie_word_embeddings=False)))
    with pytest.raises(ValueError, match=str(folder / "config.json")):
        read_model(folder)


SMALL_VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
             "id2label": {0: "cat", 1: "dog", 2: "newt"}}
VARIANTS = {
    "square": {"image_size": 12, "patch_size": 4},
    "oblong, one channel": {"image_size": [8, 12], "patch_size": 2, "num_channels": 1, "hidden_act": "gelu_new"},
}


@pytest.fixture(params=VARIANTS)
def theirs(request, peer):
    return peer.ViTForImageClassification(peer.ViTConfig(**SMALL_VIT, **VARIANTS[request.param]))


@torch.no_grad()
def test_numbers_are_theirs_vit(theirs, saved):
    foreign = read_model(saved(theirs))
    assert foreign.labels == ("cat", "dog", "newt")
    images = torch.randn(3, foreign.config.channels, foreign.config.image_height, foreign.config.image_width)
    torch.testing.assert_close(foreign.build()(images), theirs(images).logits, rtol=0, atol=1e-5)


def test_there_and_back_vit(theirs, saved, assert_there_and_back):
    assert_there_and_back(saved(theirs), theirs)


@pytest.mark.parametrize(("table", "key"), [
    ({"qkv_bias": False}, "qkv_bias"),
    ({"patch_size": [16, 8]}, "patch_size"),
    ({"image_size": [16, 8, 4]}, "image_size"),
])
def test_what_is_not_read(table, key):
    with pytest.raises(ConfigError, match=key):
        settings(ViTSettings, table, "config.json")


def test_defaults_are_theirs_vit(peer):
    ours, theirs = ViTSettings(), peer.ViTConfig()
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
                "hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "num_channels", "qkv_bias"):
        assert getattr(ours, key) == getattr(theirs, key), key
    assert (theirs.image_size, theirs.patch_size) == (ours.image_size[0], ours.patch_size[0])
