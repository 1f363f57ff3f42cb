"""Marian and Pegasus: encoder and decoder against `transformers`, shared tables, positions, there and back."""

from dataclasses import replace

import pytest
import tiny
import torch

from regard.models.embedding import EmbeddingConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.position.encoding import LearnedConfig, SinusoidalConfig, SinusoidalEncoding
from regard.special_tokens import SpecialTokens
from regard.storage import weights
from regard.storage.huggingface.conversion import read_model, write_model
from regard.storage.huggingface.encoder_decoders import MarianSettings, PegasusSettings
from regard.storage.huggingface.family import read_settings as settings
from regard.tokens import Tokens
from regard.toml import ConfigError

SMALL = {"vocab_size": 50, "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "max_position_embeddings": 30,
         "pad_token_id": 49, "decoder_start_token_id": 49, "scale_embedding": True, "activation_function": "swish",
         "forced_eos_token_id": None}
VARIANTS = {
    "one table": {},
    "two tables": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 60},
    "three tables": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "scale_embedding": False},
}


@pytest.fixture(params=VARIANTS)
def theirs(request, peer):
    return peer.MarianMTModel(peer.MarianConfig(**{**SMALL, **VARIANTS[request.param]}))


@pytest.mark.thorough
def test_numbers_and_greedy_generation_are_theirs(theirs, saved, check_translator):
    foreign = read_model(saved(theirs))
    assert (foreign.special.start, foreign.special.end, foreign.special.padding) == (49, (0,), 49)
    assert foreign.longest == 30
    assert bool(foreign.tensors["decoder.output.bias"].all())
    check_translator(foreign, theirs, foreign.special.padding)


def test_there_and_back(theirs, saved, assert_there_and_back):
    assert_there_and_back(saved(theirs), theirs)


@torch.no_grad()
def test_a_model_without_a_bias_of_its_logits(peer, saved, tmp_path):
    foreign = read_model(saved(peer.MarianMTModel(peer.MarianConfig(**SMALL))))
    config = replace(foreign.config, output_bias=False)
    tensors = {name: tensor for name, tensor in foreign.tensors.items() if name != "decoder.output.bias"}
    write_model(tmp_path / "ours", config, foreign.special, tensors)
    again = read_model(tmp_path / "ours")
    assert again.config == config
    theirs, info = peer.MarianMTModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    ids = torch.randint(1, 49, (2, 5))
    got = again.build()(Tokens(ids), Tokens(ids))
    torch.testing.assert_close(got, theirs(input_ids=ids, decoder_input_ids=ids).logits, rtol=0, atol=1e-5)


FAMILIES = {"marian": ("MarianMTModel", "MarianConfig"), "pegasus": ("PegasusForConditionalGeneration",
                                                                         "PegasusConfig")}
TABLES = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]


@pytest.fixture(params=FAMILIES)
def with_positions(request, peer, saved):
    """Saves a model of either family with tables of positions: the sinusoids, changed by a function of their names."""
    def save(change=lambda name, table: table, rows=30):
        model, config = (getattr(peer, name) for name in FAMILIES[request.param])
        keys = {key: value for key, value in SMALL.items() if request.param == "marian" or "pad_token" not in key}
        folder = saved(model(config(**keys)))
        tensors = weights.read_tensors(folder / "model.safetensors")
        waves = SinusoidalEncoding(32, layout="halves")(torch.arange(rows))
        tensors |= {name: change(name, waves.clone()) for name in TABLES}
        weights.write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
        return folder, model

    return save


def with_another_row(name, table):
    if "encoder" in name:
        table[5] += torch.linspace(-1, 1, 32)
    return table


@torch.no_grad()
def test_a_table_of_positions_with_another_row_is_used(with_positions, check_translator, assert_there_and_back):
    folder, model = with_positions(with_another_row)
    theirs, info = model.from_pretrained(folder, output_loading_info=True)
    assert not info["unexpected_keys"]
    foreign = read_model(folder)
    assert foreign.config.embedding.positions == LearnedConfig(max_positions=30)
    assert foreign.left_out == ()
    check_translator(foreign, theirs, foreign.special.padding)
    assert_there_and_back(folder, theirs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [20, 30, 40])
def test_a_table_of_sinusoids_is_not_used(with_positions, dtype, rows):
    """Also a rounded one, and one of fewer or more rows than the config has; those beyond are not read."""
    def change(name, table):
        table[30:] = 7.0
        return table.to(dtype)

    foreign = read_model(with_positions(change, rows)[0])
    assert foreign.config.embedding.positions == SinusoidalConfig(layout="halves")
    assert {*foreign.left_out} == {*TABLES}


def test_a_table_computed_in_float32_is_sinusoids(with_positions):
    def change(name, table):
        angle = torch.arange(30.0)[:, None] / 10000.0 ** (torch.arange(16.0) / 16)
        return torch.cat((angle.sin(), angle.cos()), 1)

    assert isinstance(read_model(with_positions(change)[0]).config.embedding.positions, SinusoidalConfig)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_interleaved_sinusoids_are_other_values(with_positions, dtype):
    folder, _ = with_positions(lambda name, table: SinusoidalEncoding(32)(torch.arange(30)).to(dtype))
    foreign = read_model(folder)
    table = foreign.tensors["encoder.embedding.positions.encoding.table"]
    torch.testing.assert_close(table, SinusoidalEncoding(32)(torch.arange(30)), rtol=0, atol=1e-3)


@pytest.mark.parametrize("rows", [20, 40])
def test_other_values_in_fewer_or_more_rows_are_refused(with_positions, rows):
    folder, _ = with_positions(with_another_row, rows=rows)
    with pytest.raises(ValueError, match=r"model\.safetensors") as error:
        read_model(folder)
    assert all(part in str(error.value) for part in (
        TABLES[0], "largest difference is 1,", "row 5", f"{rows} rows", "30 positions", "max_position_embeddings"))


def test_a_table_of_another_width_is_refused(with_positions):
    folder, _ = with_positions(lambda name, table: table[:, :30].contiguous())
    with pytest.raises(ValueError, match=r"embed_positions.*\(30, 32\).*\(30, 30\)"):
        read_model(folder)


def test_the_config_of_a_real_translator():
    """The keys of an OPUS-MT translator from English to German."""
    raw = {"_num_labels": 3, "activation_dropout": 0.0, "activation_function": "swish", "add_bias_logits": False,
           "add_final_layer_norm": False, "architectures": ["MarianMTModel"], "attention_dropout": 0.0,
           "bad_words_ids": [[58100]], "bos_token_id": 0, "classif_dropout": 0.0, "classifier_dropout": 0.0,
           "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0,
           "decoder_layers": 6, "decoder_start_token_id": 58100, "decoder_vocab_size": 58101, "dropout": 0.1,
           "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "encoder_layerdrop": 0.0, "encoder_layers": 6,
           "eos_token_id": 0, "forced_eos_token_id": 0, "gradient_checkpointing": False, "init_std": 0.02,
           "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "is_encoder_decoder": True,
           "max_length": 512, "max_position_embeddings": 512, "model_type": "marian", "normalize_before": False,
           "normalize_embedding": False, "num_beams": 6, "num_hidden_layers": 6, "pad_token_id": 58100,
           "scale_embedding": True, "share_encoder_decoder_embeddings": True, "static_position_embeddings": True,
           "torch_dtype": "float32", "transformers_version": "4.22.0.dev0", "use_cache": True, "vocab_size": 58101}
    read_settings = settings(MarianSettings, raw, "config.json")
    assert (read_settings.d_model, read_settings.special().start) == (512, 58100)


@pytest.mark.parametrize(("table", "key"), [
    ({"normalize_before": True}, "normalize_before"),
    ({"encoder_layerdrop": 0.1}, "encoder_layerdrop"),
    ({"is_encoder_decoder": False}, "is_encoder_decoder"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings"),
    ({"decoder_vocab_size": 7}, "decoder_vocab_size"),
    ({"num_hidden_layers": 7}, "num_hidden_layers"),
    ({"activation_function": "mish"}, "activation_function"),
])
def test_what_is_not_read(table, key):
    with pytest.raises(ConfigError, match=key):
        settings(MarianSettings, table, "config.json")


def test_defaults_are_theirs(peer):
    ours, theirs = MarianSettings(), peer.MarianConfig()
    for key in ("vocab_size", "max_position_embeddings", "encoder_layers", "encoder_ffn_dim", "encoder_attention_heads",
                "decoder_layers", "decoder_ffn_dim", "decoder_attention_heads", "activation_function", "d_model",
                "dropout", "attention_dropout", "activation_dropout", "scale_embedding",
                "share_encoder_decoder_embeddings", "tie_word_embeddings"):
        assert getattr(ours, key) == getattr(theirs, key), key
    assert MarianSettings.default_ids == {key: getattr(theirs, key) for key in MarianSettings.default_ids}


SMALL_PEGASUS = {"vocab_size": 50, "d_model": 32, "encoder_layers": 2, "decoder_layers": 1,
                 "encoder_attention_heads": 4,
                 "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40,
                 "max_position_embeddings": 30,
                 "activation_function": "relu", "forced_eos_token_id": None}
OURS = EncoderDecoderConfig(source_vocab_size=9, target_vocab_size=9, width=8, share_embeddings=True,
                            tie_word_embeddings=True,
                            embedding=EmbeddingConfig(positions=SinusoidalConfig(layout="halves")),
                            encoder=tiny.stack(norm_position="pre"),
                            decoder=tiny.stack(norm_position="pre", cross=True))


@pytest.fixture(params=[False, True], ids=["not scaled", "scaled"])
def theirs_pegasus(request, peer):
    return peer.PegasusForConditionalGeneration(peer.PegasusConfig(**SMALL_PEGASUS, scale_embedding=request.param))


def test_numbers_and_greedy_generation_are_theirs_pegasus(theirs_pegasus, saved, check_translator):
    foreign = read_model(saved(theirs_pegasus))
    assert (foreign.special.start, foreign.special.end, foreign.special.padding) == (0, (1,), 0)
    assert foreign.longest == 30
    assert bool(foreign.tensors["decoder.output.bias"].all())
    check_translator(foreign, theirs_pegasus, foreign.special.padding)


def test_there_and_back_pegasus(theirs_pegasus, saved, assert_there_and_back):
    assert_there_and_back(saved(theirs_pegasus), theirs_pegasus)


@torch.no_grad()
def test_a_model_of_ours_is_theirs(peer, tmp_path):
    """Also one without a bias of its logits; and nothing is forced on what they write."""
    model = OURS.build().eval()
    write_model(tmp_path / "ours", OURS, SpecialTokens(start=2, end=(3,), padding=0), model.state_dict())
    theirs_pegasus, info = peer.PegasusForConditionalGeneration.from_pretrained(tmp_path / "ours",
                                                                                output_loading_info=True)
    assert not info["missing_keys"]
    assert theirs_pegasus.config.forced_eos_token_id is None
    ids = torch.randint(4, 9, (2, 5))
    torch.testing.assert_close(model(Tokens(ids), Tokens(ids)),
                               theirs_pegasus(input_ids=ids, decoder_input_ids=ids).logits,
                               rtol=0, atol=1e-5)


@pytest.mark.parametrize(("config", "said"), [
    (replace(OURS, share_embeddings=False),
     "share_embeddings is false, but must be true"),
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
def test_what_is_not_read_pegasus(table, key):
    with pytest.raises(ConfigError, match=key):
        settings(PegasusSettings, table, "config.json")


def test_defaults_are_theirs_pegasus(peer):
    ours, theirs_pegasus = PegasusSettings(), peer.PegasusConfig()
    for key in ("vocab_size", "max_position_embeddings", "encoder_layers", "encoder_ffn_dim", "encoder_attention_heads",
                "decoder_layers", "decoder_ffn_dim", "decoder_attention_heads", "activation_function", "d_model",
                "dropout", "attention_dropout", "activation_dropout", "scale_embedding", "tie_word_embeddings"):
        assert getattr(ours, key) == getattr(theirs_pegasus, key), key
    assert PegasusSettings.default_ids == {key: getattr(theirs_pegasus, key) for key in PegasusSettings.default_ids}
