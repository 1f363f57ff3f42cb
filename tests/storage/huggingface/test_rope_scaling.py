"""RoPE scaling of other people's models: logits beyond the positions of the training, generation, there and back."""

import json

import pytest
import torch

import regard
from regard.position.rope_scaling import DynamicRopeScaling, YarnRopeScaling
from regard.storage.huggingface.conversion import read_model, write_model
from regard.storage.huggingface.decoders import LlamaSettings, MistralSettings, Qwen2Settings
from regard.storage.huggingface.family import read_settings
from regard.tasks.export import export
from regard.tokens import Tokens
from regard.toml import ConfigError

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 40, "bos_token_id": 1, "eos_token_id": 2}
ORIGINAL, LENGTH = 16, 40
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": ORIGINAL}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
MADE = {
    "llama3": ("Llama", LLAMA3),
    "yarn": ("Llama", YARN),
    "yarn of Qwen2": ("Qwen2", {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False}),
    "yarn with a factor": ("Mistral", {**YARN, "attention_factor": 0.5}),
    "yarn with mscale": ("Llama", {**YARN, "mscale": 2.0, "mscale_all_dim": 0.5}),
    "linear": ("Qwen2", {"rope_type": "linear", "factor": 4.0}),
    "default": ("Llama", {"rope_type": "default"}),
}


def made(peer, family, table, positions=4 * ORIGINAL):
    config = getattr(peer, f"{family}Config")(**SMALL, max_position_embeddings=positions,
                                              rope_parameters={"rope_theta": 100.0, **table})
    return getattr(peer, f"{family}ForCausalLM")(config)


@pytest.fixture(params=MADE)
def theirs(request, peer):
    return made(peer, *MADE[request.param])


@torch.no_grad()
def test_logits_are_theirs_beyond_the_positions_of_the_training(theirs, saved):
    ids = torch.randint(3, 50, (2, LENGTH))
    foreign = read_model(saved(theirs))
    torch.testing.assert_close(foreign.build()(Tokens(ids)), theirs(ids).logits, rtol=0, atol=1e-5)


@torch.no_grad()
def test_greedy_generation_is_theirs(theirs, saved, check_greedy):
    model, prompt = read_model(saved(theirs)).build(), torch.randint(3, 50, (1, 9))
    generated = theirs.generate(prompt, do_sample=False, max_new_tokens=20, min_new_tokens=20, pad_token_id=0,
                                eos_token_id=None)
    check_greedy(generated[:, 9:], model, None, prompt, torch.tensor([9]))


def test_there_and_back(theirs, saved, assert_there_and_back):
    assert_there_and_back(saved(theirs), theirs)


@pytest.mark.parametrize("name", ["llama3", "yarn", "yarn of Qwen2", "linear"])
def test_the_same_keys_are_written(peer, saved, tmp_path, name):
    family, table = MADE[name]
    foreign = read_model(saved(made(peer, family, table)))
    write_model(tmp_path / "ours", foreign.config, foreign.special, foreign.tensors)
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (written["rope_scaling"], written["rope_theta"]) == (table, 100.0)


@torch.no_grad()
def test_a_model_saved_as_ours_and_exported_again(peer, saved, tmp_path):
    theirs, ids = made(peer, "Qwen2", YARN), torch.randint(3, 50, (1, LENGTH))
    saved(theirs)
    expected = theirs(ids).logits
    regard.load(tmp_path / "theirs").save(tmp_path / "ours")
    export(regard.load(tmp_path / "ours"), "huggingface", tmp_path / "exported")
    written = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert (written["model_type"], written["rope_scaling"], written["max_position_embeddings"]) == ("qwen2", YARN, 64)
    again = peer.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert torch.equal(again(ids).logits, expected)


@torch.no_grad()
def test_dynamic_scaling_is_theirs_token_by_token(peer, saved, assert_there_and_back):
    """At once they rotate all tokens by the angles of the whole length, and so differ from their own generation."""
    model = made(peer, "Llama", {"rope_type": "dynamic", "factor": 4.0}, positions=ORIGINAL)
    foreign, ids = assert_there_and_back(saved(model), model), torch.randint(3, 50, (2, LENGTH))
    ours, within = foreign.build(), ids[:, :ORIGINAL]
    # Before longer texts: after them they keep the angles of the longest one for a text of exactly this length.
    torch.testing.assert_close(ours(Tokens(within)), model(within).logits, rtol=0, atol=1e-5)
    expected, cache = [], None
    for at in range(LENGTH):
        output = model(ids[:, at:at + 1], past_key_values=cache, position_ids=torch.tensor([[at]]), use_cache=True)
        expected.append(output.logits)
        cache = output.past_key_values
    stepwise = torch.cat(expected, 1)
    assert foreign.config.stack.mixer.position.rope_scaling == DynamicRopeScaling(
        factor=4.0, original_max_position_embeddings=ORIGINAL)
    torch.testing.assert_close(ours(Tokens(ids)), stepwise, rtol=0, atol=1e-5)
    assert not torch.allclose(model(ids).logits, stepwise, rtol=0, atol=1e-3)


def test_old_and_new_spellings_are_one():
    table = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    spellings = [{"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **table}},
                 {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **table}},
                 {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "type": "llama3", **table}},
                 {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **table}}]
    found = [read_settings(LlamaSettings, one, "config.json").rotary for one in spellings]
    assert all(one == found[0] for one in found)
    assert (found[0].base, found[0].rope_scaling.factor) == (5e5, 8.0)


@pytest.mark.parametrize(("table", "expected"), [
    ({"factor": 4.0}, YarnRopeScaling(factor=4.0, original_max_position_embeddings=64)),
    ({"factor": None, "original_max_position_embeddings": 16},
     YarnRopeScaling(factor=4.0, original_max_position_embeddings=16)),
])
def test_what_yarn_takes_from_the_number_of_positions(table, expected):
    raw = {"max_position_embeddings": 64, "rope_scaling": {"type": "yarn", **table}}
    assert read_settings(Qwen2Settings, raw, "config.json").rotary.rope_scaling == expected


@pytest.mark.parametrize(("table", "said"), [
    ({"rope_scaling": {"type": "longrope", "factor": 2.0}},
     ['"type" in [rope_scaling]', '"linear"', '"dynamic"', '"yarn"', '"llama3"', "longrope"]),
    ({"rope_scaling": {"type": "linear"}}, ['"factor" in [rope_scaling]', "linear"]),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}},
     ['"low_freq_factor" in [rope_parameters]', "llama3"]),
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 32}}, ["beta_fast", "linear"]),
    ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, ["factor", "default"]),
    ({"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}}, ['"type"', "linear"]),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, ["factor", "0.5"]),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "long_factor": [1.0]}}, ['unknown key "long_factor"']),
    ({"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}, ['"mrope_section"']),
    ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "0.5"]),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 3.0}},
     ['"rope_scaling"', "rope_parameters"]),
])
@pytest.mark.parametrize("cls", [LlamaSettings, MistralSettings, Qwen2Settings])
def test_scalings_that_are_not_read(cls, table, said):
    with pytest.raises(ConfigError) as error:
        read_settings(cls, table, "some/config.json")
    assert all(part in str(error.value) for part in ("some/config.json", *said))


def test_a_key_that_a_type_does_not_use_and_transformers_ignores():
    raw = {"max_position_embeddings": 64,
           "rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}}
    scaling = read_settings(LlamaSettings, raw, "config.json").rotary.rope_scaling
    assert scaling == DynamicRopeScaling(factor=2.0, original_max_position_embeddings=64)
