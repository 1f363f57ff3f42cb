"""ViT: logits of images against `transformers`, images that are not square, and there and back."""

import pytest
import torch

from regard.storage.huggingface.conversion import read_model
from regard.storage.huggingface.encoders import ViTSettings
from regard.storage.huggingface.family import read_settings as settings
from regard.toml import ConfigError

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
         "id2label": {0: "cat", 1: "dog", 2: "newt"}}
VARIANTS = {
    "square": {"image_size": 12, "patch_size": 4},
    "oblong, one channel": {"image_size": [8, 12], "patch_size": 2, "num_channels": 1, "hidden_act": "gelu_new"},
}


@pytest.fixture(params=VARIANTS)
def theirs(request, peer):
    return peer.ViTForImageClassification(peer.ViTConfig(**SMALL, **VARIANTS[request.param]))


@torch.no_grad()
def test_numbers_are_theirs(theirs, saved):
    foreign = read_model(saved(theirs))
    assert foreign.labels == ("cat", "dog", "newt")
    images = torch.randn(3, foreign.config.channels, foreign.config.image_height, foreign.config.image_width)
    torch.testing.assert_close(foreign.build()(images), theirs(images).logits, rtol=0, atol=1e-5)


def test_there_and_back(theirs, saved, assert_there_and_back):
    assert_there_and_back(saved(theirs), theirs)


@pytest.mark.parametrize(("table", "key"), [
    ({"qkv_bias": False}, "qkv_bias"),
    ({"patch_size": [16, 8]}, "patch_size"),
    ({"image_size": [16, 8, 4]}, "image_size"),
])
def test_what_is_not_read(table, key):
    with pytest.raises(ConfigError, match=key):
        settings(ViTSettings, table, "config.json")


def test_defaults_are_theirs(peer):
    ours, theirs = ViTSettings(), peer.ViTConfig()
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
                "hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "num_channels", "qkv_bias"):
        assert getattr(ours, key) == getattr(theirs, key), key
    assert (theirs.image_size, theirs.patch_size) == (ours.image_size[0], ours.patch_size[0])
