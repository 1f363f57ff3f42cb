"""GPT-2: logits with padding on either side, greedy generation, and there and back."""

import pytest
import torch

from regard.storage.huggingface.conversion import read_model
from regard.storage.huggingface.decoders import GPT2Settings
from regard.tokens import Tokens

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
