"""GPT-2: logits with padding on either side, greedy generation, and there and back."""

import pytest
import torch

from regard.storage.huggingface.conversion import read_model
from regard.storage.huggingface.decoders import GPT2Settings, LlamaSettings
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
               "intermediate_size": 40,
               "max_position_embeddings": 60}
LENGTHS_LLAMA = torch.tensor([9, 4, 1])
VARIANTS = {
    "grouped": {"num_key_value_heads": 2},
    "one key head, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "head width, biases": {"head_dim": 12, "attention_bias": True, "mlp_bias": True},
    "base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rms_norm_eps": 1e-3},
}


@pytest.fixture(params=VARIANTS)
def theirs_llama(request, peer):
    return peer.LlamaForCausalLM(peer.LlamaConfig(**SMALL_LLAMA, **VARIANTS[request.param]))


@torch.no_grad()
@pytest.mark.parametrize("side", ["right", "left"])
def test_numbers_are_theirs_llama(theirs_llama, saved, side):
    foreign = read_model(saved(theirs_llama))
    assert (foreign.special.start, foreign.special.end, foreign.longest) == (1, (2,), 60)
    tokens = Tokens.of([torch.randint(3, 50, (length,)) for length in LENGTHS_LLAMA], side=side)
    there = tokens.present.matrix(1, 9).squeeze(-2)
    positions = (there.cumsum(-1) - 1).clamp(min=0)
    expected = theirs_llama(tokens.ids, attention_mask=there.long(), position_ids=positions).logits
    got = foreign.build()(tokens)
    torch.testing.assert_close(got[there], expected[there], rtol=0, atol=1e-5)


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


def test_the_base_of_the_angles_may_stand_in_three_places():
    for table in ({"rope_theta": 500.0}, {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
                  {"rope_scaling": {"rope_theta": 500.0, "type": "default"}},
                  {"rope_theta": 500.0, "rope_scaling": None}):
        assert settings(LlamaSettings, table, "config.json").base == 500.0
    assert settings(LlamaSettings, {}, "config.json").base == 10000.0


@pytest.mark.parametrize(("table", "said"), [
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ['"type" in [rope_scaling]', '"default"', "factor"]),
    ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, ["rope_type", "stretched", "llama3"]),
    ({"rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0}}, ["rope_theta", "differs"]),
    ({"sliding_window": 8}, ['unknown key "sliding_window"', "ignore"]),
])
def test_positions_that_are_not_read(table, said):
    with pytest.raises(ConfigError) as error:
        settings(LlamaSettings, table, "config.json")
    assert all(part in str(error.value) for part in ("config.json", *said))


def test_defaults_are_theirs_llama(peer):
    ours, theirs_llama = LlamaSettings(), peer.LlamaConfig()
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                "hidden_act", "max_position_embeddings", "rms_norm_eps", "attention_bias", "attention_dropout",
                "mlp_bias", "tie_word_embeddings"):
        assert getattr(ours, key) == getattr(theirs_llama, key), key
    assert theirs_llama.rope_parameters["rope_theta"] == ours.base
    assert LlamaSettings.default_ids == {key: getattr(theirs_llama, key) for key in ("bos_token_id", "eos_token_id")}
