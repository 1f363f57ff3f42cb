"""Writing: what fits is told in full, and nothing is written over."""

import json
from dataclasses import replace

import pytest
import tiny
import torch

from regard.attention.layer import SelfAttentionConfig
from regard.models.classification import ClassifierConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.encoder_decoder import EncoderDecoderConfig
from regard.models.language import LanguageModelConfig
from regard.models.seq2seq import Seq2SeqConfig
from regard.position.encoding import LearnedConfig, SinusoidalConfig
from regard.special_tokens import SpecialTokens
from regard.storage import weights
from regard.storage.huggingface.conversion import read_model, write_model

POSITIONS = EmbeddingConfig(positions=LearnedConfig(max_positions=6))
GPT = LanguageModelConfig(vocab_size=11, width=8, embedding=POSITIONS, stack=tiny.stack())
BERT = ClassifierConfig(vocab_size=11, width=8, num_labels=2, pooling="first", pooler_activation="tanh",
                        embedding=replace(POSITIONS, norm="layer", segments=2), stack=tiny.stack(norm_position="post"))


def save(folder, config, special=SpecialTokens(), **options):  # noqa: B008 (a value, never changed)
    write_model(folder, config, special, config.build().state_dict(), **options)


def assert_without_place(folder, config, *said):
    with pytest.raises(ValueError, match="one that fits") as error:
        save(folder, config)
    for part in said:
        assert part in str(error.value)
    assert not folder.exists()


def test_all_that_has_no_place_is_told(tmp_path):
    mixer = SelfAttentionConfig(heads=2, score="additive", normalize="relu", window=2)
    assert_without_place(tmp_path / "x", replace(GPT, output_bias=True, stack=replace(GPT.stack, mixer=mixer)),
                  'stack.mixer.score is "additive", where GPT2LMHeadModel has "scaled_dot"', "stack.mixer.normalize",
                  "stack.mixer.window is 2, where GPT2LMHeadModel has nothing", "output_bias is true")


@pytest.mark.parametrize(("config", "said"), [
    (replace(GPT, stack=tiny.stack(norm_position="post")), 'stack.norm_position is "post"'),
    (replace(GPT, stack=tiny.stack("recurrence")), "self-attention"),
    (replace(GPT, stack=replace(GPT.stack, feed_forward=None)), "a feed-forward layer"),
    (replace(GPT, embedding=EmbeddingConfig()), "learned positions"),
    (replace(GPT, stack=tiny.stack("rotary")), 'stack.norm is "layer", where LlamaForCausalLM has "rms"'),
    (replace(BERT, pooling="mean"), 'pooling is "mean"'),
    (replace(BERT, embedding=POSITIONS), "segments"),
    (replace(BERT, embedding=replace(BERT.embedding, epsilon=0.1)), "embedding.epsilon is 0.1"),
    (EncoderDecoderConfig(source_vocab_size=9, target_vocab_size=9, width=8, share_embeddings=True, tie_word_embeddings=False,
                          encoder=tiny.stack(norm_position="post"), decoder=tiny.stack(norm_position="post", cross=True)), "own table"),
    (EncoderDecoderConfig(source_vocab_size=9, target_vocab_size=9, width=8,
                          embedding=EmbeddingConfig(positions=SinusoidalConfig()),
                          encoder=tiny.stack(norm_position="post"), decoder=tiny.stack(norm_position="post", cross=True)),
     'layout is "interleaved", where MarianMTModel has "halves"'),
])
def test_what_does_not_fit(tmp_path, config, said):
    assert_without_place(tmp_path / "x", config, said)


def test_a_kind_that_no_family_has(tmp_path):
    config = Seq2SeqConfig(source_vocab_size=5, target_vocab_size=5, width=4)
    with pytest.raises(ValueError, match=r'one of the families holds.*"seq2seq"'):
        save(tmp_path / "x", config)


def test_what_is_as_it_would_be_anyway_and_how_a_model_runs_fit(tmp_path):
    mixer = SelfAttentionConfig(heads=2, key_heads=2, head_width=4, backend="exact", dropout=0.1)
    stack = replace(GPT.stack, mixer=mixer, activation_checkpointing=True, feed_forward=replace(GPT.stack.feed_forward, dropout=0.3))
    save(tmp_path / "x", replace(GPT, stack=stack))
    assert read_model(tmp_path / "x").config == replace(GPT, stack=replace(GPT.stack, mixer=SelfAttentionConfig(
        heads=2, dropout=0.1)))


def test_the_ids_and_the_labels_are_kept(tmp_path):
    special = SpecialTokens(end=(3, 4), padding=0, mask=5, cls=6, separator=7)
    save(tmp_path / "x", BERT, special, labels=["no", "yes"])
    foreign = read_model(tmp_path / "x")
    assert (foreign.special, foreign.labels) == (special, ("no", "yes"))
    table = json.loads((tmp_path / "x" / "config.json").read_text())
    assert (table["id2label"], table["label2id"]) == ({"0": "no", "1": "yes"}, {"no": 0, "yes": 1})
    with pytest.raises(ValueError, match="`labels` must be 2 names"):
        save(tmp_path / "y", BERT, labels=["one"])
    with pytest.raises(ValueError, match="99 is no id of the 11"):
        save(tmp_path / "y", BERT, SpecialTokens(padding=99))


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "notes").write_text("mine")
    with pytest.raises(ValueError, match="does not overwrite"):
        save(tmp_path / "x", GPT)
    save(tmp_path / "y", GPT, others={"tokenizer.json": b"{}"})
    save(tmp_path / "y", GPT, others={"tokenizer.json": b"[]"})
    assert (tmp_path / "y" / "tokenizer.json").read_bytes() == b"[]"


def test_tensors_must_be_those_of_the_config(tmp_path):
    state = GPT.build().state_dict()
    with pytest.raises(ValueError, match=r"missing: 'decoder.stack.last_norm.weight'"):
        write_model(tmp_path / "x", GPT, SpecialTokens(), {k: v for k, v in state.items() if "last_norm.w" not in k})
    state["decoder.output.weight"] = torch.ones(11, 8)
    with pytest.raises(ValueError, match=r"equal for 'decoder.embedding.tokens.weight' and 'decoder.output.weight'"):
        write_model(tmp_path / "x", GPT, SpecialTokens(), state)
    del state["decoder.embedding.tokens.weight"]
    write_model(tmp_path / "x", GPT, SpecialTokens(), state)
    assert torch.equal(read_model(tmp_path / "x").tensors["decoder.embedding.tokens.weight"], torch.ones(11, 8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_precision_is_kept_and_said(tmp_path, dtype):
    write_model(tmp_path / "x", GPT, SpecialTokens(), GPT.build().to(dtype).state_dict())
    assert json.loads((tmp_path / "x" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    header = weights.read_header(tmp_path / "x" / "model.safetensors")
    assert {entry.dtype for entry in header.tensors.values()} == {dtype}
    assert (header.metadata, header.aliases) == ({"format": "pt"}, {})
