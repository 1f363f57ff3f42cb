"""Pegasus: encoder and decoder against `transformers`, generation, there and back; and our models with norms first."""

from dataclasses import replace

import pytest
import tiny
import torch

from regard.models.embedding import EmbeddingConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.position.encoding import SinusoidalConfig
from regard.special_tokens import SpecialTokens
from regard.storage.huggingface.conversion import read_model, write_model
from regard.storage.huggingface.encoder_decoders import PegasusSettings
from regard.storage.huggingface.family import read_settings as settings
from regard.tokens import Tokens
from regard.toml import ConfigError

SMALL = {"vocab_size": 50, "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "max_position_embeddings": 30,
         "activation_function": "relu", "forced_eos_token_id": None}
OURS = EncoderDecoderConfig(source_vocab_size=9, target_vocab_size=9, width=8, share_embeddings=True, tie_word_embeddings=True,
                            embedding=EmbeddingConfig(positions=SinusoidalConfig(layout="halves")),
                            encoder=tiny.stack(norm_position="pre"), decoder=tiny.stack(norm_position="pre", cross=True))


@pytest.fixture(params=[False, True], ids=["not scaled", "scaled"])
def theirs(request, peer):
    return peer.PegasusForConditionalGeneration(peer.PegasusConfig(**SMALL, scale_embedding=request.param))


def test_numbers_and_greedy_generation_are_theirs(theirs, saved, check_translator):
    foreign = read_model(saved(theirs))
    assert (foreign.special.start, foreign.special.end, foreign.special.padding) == (0, (1,), 0)
    assert foreign.longest == 30
    assert bool(foreign.tensors["decoder.output.bias"].all())
    check_translator(foreign, theirs, foreign.special.padding)


def test_there_and_back(theirs, saved, assert_there_and_back):
    assert_there_and_back(saved(theirs), theirs)


@torch.no_grad()
def test_a_model_of_ours_is_theirs(peer, tmp_path):
    """Also one without a bias of its logits; and nothing is forced on what they write."""
    model = OURS.build().eval()
    write_model(tmp_path / "ours", OURS, SpecialTokens(start=2, end=(3,), padding=0), model.state_dict())
    theirs, info = peer.PegasusForConditionalGeneration.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert theirs.config.forced_eos_token_id is None
    ids = torch.randint(4, 9, (2, 5))
    torch.testing.assert_close(model(Tokens(ids), Tokens(ids)), theirs(input_ids=ids, decoder_input_ids=ids).logits,
                               rtol=0, atol=1e-5)


@pytest.mark.parametrize(("config", "said"), [
    (replace(OURS, share_embeddings=False), "share_embeddings is false, where PegasusForConditionalGeneration has true"),
    (replace(OURS, tie_word_embeddings=False), "tie_word_embeddings is false"),
    (replace(OURS, encoder=tiny.stack(norm_position="post")), 'encoder.norm_position is "post"'),
    (replace(OURS, share_embeddings=False, target_vocab_size=7), "target_vocab_size is 7"),
])
def test_what_has_no_place(tmp_path, config, said):
    with pytest.raises(ValueError, match=said):
        write_model(tmp_path / "ours", config, SpecialTokens(), config.build().state_dict())


def test_the_config_of_a_real_model():
    """The keys of one that summarises."""
    raw = {"activation_dropout": 0.1, "activation_function": "relu", "add_bias_logits": False,
           "add_final_layer_norm": True, "architectures": ["PegasusForConditionalGeneration"], "attention_dropout": 0.1,
           "bos_token_id": 0, "classif_dropout": 0.0, "classifier_dropout": 0.0, "d_model": 1024,
           "decoder_attention_heads": 16, "decoder_ffn_dim": 4096, "decoder_layerdrop": 0.0, "decoder_layers": 16,
           "decoder_start_token_id": 0, "dropout": 0.1, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096,
           "encoder_layerdrop": 0.0, "encoder_layers": 16, "eos_token_id": 1, "extra_pos_embeddings": 1,
           "forced_eos_token_id": 1, "gradient_checkpointing": False, "init_std": 0.02, "is_encoder_decoder": True,
           "length_penalty": 0.6, "max_length": 64, "max_position_embeddings": 512, "model_type": "pegasus",
           "normalize_before": True, "normalize_embedding": False, "num_beams": 8, "num_hidden_layers": 16,
           "pad_token_id": 0, "scale_embedding": True, "static_position_embeddings": True, "vocab_size": 96103}
    found = settings(PegasusSettings, raw, "config.json")
    assert (found.d_model, found.special().end) == (1024, (1,))


@pytest.mark.parametrize(("table", "key"), [
    ({"normalize_before": False}, "normalize_before"),
    ({"add_final_layer_norm": False}, "add_final_layer_norm"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings"),
    ({"num_hidden_layers": 7}, "num_hidden_layers"),
])
def test_what_is_not_read(table, key):
    with pytest.raises(ConfigError, match=key):
        settings(PegasusSettings, table, "config.json")


def test_defaults_are_theirs(peer):
    ours, theirs = PegasusSettings(), peer.PegasusConfig()
    for key in ("vocab_size", "max_position_embeddings", "encoder_layers", "encoder_ffn_dim", "encoder_attention_heads",
                "decoder_layers", "decoder_ffn_dim", "decoder_attention_heads", "activation_function", "d_model",
                "dropout", "attention_dropout", "activation_dropout", "scale_embedding", "tie_word_embeddings"):
        assert getattr(ours, key) == getattr(theirs, key), key
    assert PegasusSettings.default_ids == {key: getattr(theirs, key) for key in PegasusSettings.default_ids}
