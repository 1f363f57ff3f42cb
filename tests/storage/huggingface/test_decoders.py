"""GPT-2, Llama, Mistral and Qwen2: logits with padding on either side, greedy generation, and there and back."""

import json

import pytest
import torch

from regard.storage.huggingface.conversion import read_model, write_model
from regard.storage.huggingface.decoders import GPT2Settings, LlamaSettings, MistralSettings, Qwen2Settings
from regard.storage.huggingface.family import read_settings as settings
from regard.tokens import Tokens
from regard.toml import ConfigError

SMALL = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 30, "bos_token_id": 48,
         "eos_token_id": 49}
LENGTHS = torch.tensor([7, 3, 1])


@pytest.fixture
def theirs(peer):
    return peer.GPT2LMHeadModel(peer.GPT2Config(**SMALL))


@torch.no_grad()
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False, "n_inner": 40, "activation_function": "relu"}])
def test_numbers_are_theirs(peer, saved, side, changes):
    theirs = peer.GPT2LMHeadModel(peer.GPT2Config(**SMALL, **changes))
    foreign = read_model(saved(theirs))
    assert (foreign.special.start, foreign.special.end) == (48, (49,))
    tokens = Tokens.of([torch.randint(0, 48, (length,)) for length in LENGTHS], side=side)
    there = tokens.present.matrix(1, 7).squeeze(-2)
    positions = (there.cumsum(-1) - 1).clamp(min=0)
    expected = theirs(tokens.ids, attention_mask=there.long(), position_ids=positions).logits
    got = foreign.build()(tokens)
    torch.testing.assert_close(got[there], expected[there], rtol=0, atol=1e-5)


@torch.no_grad()
def test_greedy_generation_is_theirs(theirs, saved, check_greedy):
    model = read_model(saved(theirs)).build()
    prompts = [torch.randint(0, 48, (length,)) for length in LENGTHS]
    left, right = Tokens.of(prompts, side="left"), Tokens.of(prompts)
    there = left.present.matrix(1, 7).squeeze(-2).long()
    generated = theirs.generate(left.ids, attention_mask=there, do_sample=False, max_new_tokens=12, min_new_tokens=12,
                                pad_token_id=0, eos_token_id=None)
    check_greedy(generated[:, 7:], model, None, right.ids, LENGTHS)


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False, "activation_function": "gelu"}])
def test_there_and_back(peer, saved, assert_there_and_back, changes):
    model = peer.GPT2LMHeadModel(peer.GPT2Config(**SMALL, **changes))
    assert assert_there_and_back(saved(model), model).left_out == ()


def test_a_bare_model_writes_with_its_table(peer, saved, tmp_path):
    bare = peer.GPT2Model(peer.GPT2Config(**SMALL))
    foreign = read_model(saved(bare))
    assert foreign.tensors["decoder.output.weight"] is foreign.tensors["decoder.embedding.tokens.weight"]
    assert torch.equal(foreign.tensors["decoder.output.weight"], bare.wte.weight)


def test_defaults_are_theirs(peer):
    ours, theirs = GPT2Settings(), peer.GPT2Config()
    for key in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "activation_function",
                "resid_pdrop", "embd_pdrop", "attn_pdrop", "layer_norm_epsilon", "tie_word_embeddings"):
        assert getattr(ours, key) == getattr(theirs, key), key
    assert GPT2Settings.default_ids == {key: getattr(theirs, key) for key in ("bos_token_id", "eos_token_id")}


SMALL_LLAMA = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
               "intermediate_size": 40, "max_position_embeddings": 60, "bos_token_id": 1, "eos_token_id": 2}
LENGTHS_LLAMA = torch.tensor([9, 4, 1])
VARIANTS = {
    "grouped": ("Llama", {"num_key_value_heads": 2}),
    "one key head, tied": ("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "head width, biases": ("Llama", {"head_dim": 12, "attention_bias": True, "mlp_bias": True}),
    "base": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rms_norm_eps": 1e-3}),
    "Mistral, window": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 3}),
    "Mistral, window of two tokens": ("Mistral", {"num_key_value_heads": 4, "sliding_window": 2}),
    "Mistral, head width": ("Mistral", {"num_key_value_heads": 1, "sliding_window": 5, "head_dim": 12}),
    "Qwen2": ("Qwen2", {"num_key_value_heads": 2}),
    "Qwen2, tied, head width": ("Qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True, "head_dim": 12}),
    "Qwen2, window": ("Qwen2", {"num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 3,
                                "max_window_layers": 0}),
    "Qwen2, window of no layer": ("Qwen2", {"num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 3,
                                            "max_window_layers": 2}),
}


def rotary_decoder(peer, family, **changes):
    return getattr(peer, f"{family}ForCausalLM")(getattr(peer, f"{family}Config")(**{**SMALL_LLAMA, **changes}))


@pytest.fixture(params=VARIANTS)
def theirs_llama(request, peer):
    family, changes = VARIANTS[request.param]
    return rotary_decoder(peer, family, **changes)


@torch.no_grad()
def assert_same_logits(theirs, foreign, side):
    tokens = Tokens.of([torch.randint(3, 50, (length,)) for length in LENGTHS_LLAMA], side=side)
    there = tokens.present.matrix(1, 9).squeeze(-2)
    positions = (there.cumsum(-1) - 1).clamp(min=0)
    expected = theirs(tokens.ids, attention_mask=there.long(), position_ids=positions).logits
    got = foreign.build()(tokens)
    torch.testing.assert_close(got[there], expected[there], rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", ["right", "left"])
def test_numbers_are_theirs_llama(theirs_llama, saved, side):
    foreign = read_model(saved(theirs_llama))
    assert (foreign.special.start, foreign.special.end, foreign.longest) == (1, (2,), 60)
    assert foreign.family == theirs_llama.config.model_type
    assert_same_logits(theirs_llama, foreign, side)


@torch.no_grad()
def test_greedy_generation_is_theirs_llama(theirs_llama, saved, check_greedy):
    model = read_model(saved(theirs_llama)).build()
    prompts = [torch.randint(3, 50, (length,)) for length in LENGTHS_LLAMA]
    left, right = Tokens.of(prompts, side="left"), Tokens.of(prompts)
    there = left.present.matrix(1, 9).squeeze(-2).long()
    generated = theirs_llama.generate(left.ids, attention_mask=there, do_sample=False, max_new_tokens=12,
                                      min_new_tokens=12,
                                      pad_token_id=0, eos_token_id=None)
    check_greedy(generated[:, 9:], model, None, right.ids, LENGTHS_LLAMA)


def test_there_and_back_llama(theirs_llama, saved, assert_there_and_back):
    assert_there_and_back(saved(theirs_llama), theirs_llama)


@torch.no_grad()
def test_a_window_of_one_token(peer, saved):
    """Without their generation: their cache of a window of one token drops nothing."""
    theirs = rotary_decoder(peer, "Mistral", sliding_window=1, num_key_value_heads=2)
    foreign = read_model(saved(theirs))
    assert foreign.config.stack.mixer.window == 0
    assert_same_logits(theirs, foreign, "left")
    model, ids = foreign.build(), torch.randint(3, 50, (1, 6))
    state = model.start(rows=1, capacity=6)
    for at in range(6):
        step = model.step(state, ids[:, at:at + 1])
        torch.testing.assert_close(step.logits[:, 0], theirs(ids).logits[:, at], rtol=0, atol=1e-5)
        state = step.state


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["Mistral, window", "Qwen2, tied, head width"])
def test_files_in_half_precision(peer, saved, name, dtype):
    family, changes = VARIANTS[name]
    folder = saved(rotary_decoder(peer, family, **changes).to(dtype))
    theirs = getattr(peer, f"{family}ForCausalLM").from_pretrained(folder, dtype=torch.float32)
    assert json.loads((folder / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert_same_logits(theirs, read_model(folder), "right")


def test_a_mistral_without_a_window_is_a_llama(peer, saved, tmp_path):
    theirs = rotary_decoder(peer, "Mistral", sliding_window=None, num_key_value_heads=2)
    foreign = read_model(saved(theirs))
    assert foreign.config.stack.mixer.window is None
    assert_same_logits(theirs, foreign, "right")
    write_model(tmp_path / "ours", foreign.config, foreign.special, foreign.tensors, longest=foreign.longest)
    again = peer.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert again.config.model_type == "llama"
    assert_same_logits(again, foreign, "right")


def test_the_base_of_the_angles_may_stand_in_three_places():
    for table in ({"rope_theta": 500.0}, {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
                  {"rope_scaling": {"rope_theta": 500.0, "type": "default"}},
                  {"rope_theta": 500.0, "rope_scaling": None}):
        assert settings(LlamaSettings, table, "config.json").base == 500.0
    assert settings(LlamaSettings, {}, "config.json").base == 10000.0


@pytest.mark.parametrize(("cls", "table", "said"), [
    (LlamaSettings, {"sliding_window": 8}, ['unknown key "sliding_window"', "ignore"]),
    (LlamaSettings, {"rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0}}, ["rope_theta", "1.0", "2.0"]),
    (MistralSettings, {"attention_bias": True}, ['unknown key "attention_bias"']),
    (MistralSettings, {"layer_types": ["full_attention"]}, ['unknown key "layer_types"']),
    (MistralSettings, {"sliding_window": 0}, ["sliding_window", "at least 1"]),
    (Qwen2Settings, {"use_sliding_window": True, "num_hidden_layers": 30}, ["max_window_layers", "2 of 30"]),
    (Qwen2Settings, {"use_sliding_window": True, "num_hidden_layers": 3,
                     "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
     ["layer_types", "1 of 3"]),
    (Qwen2Settings, {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]},
     ["layer_types", "use_sliding_window"]),
    (Qwen2Settings, {"num_hidden_layers": 2, "layer_types": ["full_attention"]}, ["layer_types", "1", "2 layers"]),
    (Qwen2Settings, {"num_hidden_layers": 1, "layer_types": ["chunked_attention"]},
     ["layer_types", "full_attention", "chunked_attention"]),
    (Qwen2Settings, {"use_mrope": True}, ["use_mrope"]),
])
def test_what_is_not_read_llama(cls, table, said):
    with pytest.raises(ConfigError) as error:
        settings(cls, table, "config.json")
    assert all(part in str(error.value) for part in ("config.json", *said))


def test_a_window_that_is_absent_is_their_default_and_null_is_none():
    assert settings(MistralSettings, {}, "config.json").window == 4095
    assert settings(MistralSettings, {"sliding_window": None}, "config.json").window is None
    windowed = {"use_sliding_window": True, "num_hidden_layers": 2, "max_window_layers": 0}
    assert settings(Qwen2Settings, windowed, "config.json").window == 4095
    assert settings(Qwen2Settings, {**windowed, "sliding_window": None}, "config.json").window is None
    assert settings(Qwen2Settings, {**windowed, "use_sliding_window": False}, "config.json").window is None


def test_the_config_of_real_models():
    """The keys of Mistral 7B and of Qwen2.5 7B."""
    mistral = {"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
               "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
               "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
               "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
               "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
               "transformers_version": "4.42.0.dev0", "use_cache": True, "vocab_size": 32768}
    assert settings(MistralSettings, mistral, "config.json").rotary.base == 1000000.0
    qwen = {"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
            "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
            "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
            "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True, "use_mrope": False,
            "use_sliding_window": False, "vocab_size": 152064}
    found = settings(Qwen2Settings, qwen, "config.json")
    assert (found.window, found.special().end) == (None, (151643,))


@pytest.mark.parametrize(("cls", "own"), [
    (LlamaSettings, ("attention_bias", "mlp_bias")), (MistralSettings, ("num_key_value_heads", "sliding_window")),
    (Qwen2Settings, ("num_key_value_heads", "use_sliding_window", "max_window_layers"))])
def test_defaults_are_theirs_llama(peer, cls, own):
    ours, theirs = settings(cls, {}, "config.json"), getattr(peer, cls.__name__.replace("Settings", "Config"))()
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                "hidden_act", "max_position_embeddings", "rms_norm_eps", "attention_dropout", "tie_word_embeddings",
                *own):
        assert getattr(ours, key) == getattr(theirs, key), key
    assert theirs.rope_parameters["rope_theta"] == ours.base
    named = {key: getattr(theirs, key) for key in ("bos_token_id", "eos_token_id")}
    assert cls.default_ids == {key: value for key, value in named.items() if value is not None}
