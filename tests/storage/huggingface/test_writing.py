"""Writing: what fits is told in full, and nothing is written over."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from tiny import SOURCE, TRANSLATING, built, language, stack, translating

import regard.models
from regard.attention.layer import SelfAttentionConfig
from regard.models.classification import ClassifierConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.encoder_decoder import EncoderConfig, EncoderDecoderConfig
from regard.models.language import LanguageModelConfig, MaskedModelConfig
from regard.models.seq2seq import Seq2SeqConfig
from regard.models.vision import VisionConfig
from regard.position.encoding import LearnedConfig, SinusoidalConfig
from regard.special_tokens import SpecialTokens
from regard.storage import weights
from regard.storage.huggingface.conversion import FAMILIES, read_model, with_half_sinusoids, write_model
from regard.tokens import Tokens

POSITIONS = EmbeddingConfig(positions=LearnedConfig(max_positions=6))
GPT = LanguageModelConfig(vocab_size=11, width=8, embedding=POSITIONS, stack=tiny.stack())
BERT = ClassifierConfig(vocab_size=11, width=8, num_labels=2, pooling="first", pooler_activation="tanh",
                        embedding=replace(POSITIONS, norm="layer", segments=2), stack=tiny.stack(norm_position="post"))


def save(folder, config, special=SpecialTokens(), **options):  # noqa: B008 (a value, never changed)
    write_model(folder, config, special, config.build().state_dict(), **options)


def assert_without_place(folder, config, *said):
    with pytest.raises(ValueError, match="cannot express this model") as error:
        save(folder, config)
    for part in said:
        assert part in str(error.value)
    assert not folder.exists()


def test_all_that_has_no_place_is_told(tmp_path):
    mixer = SelfAttentionConfig(heads=2, score="additive", normalize="relu", window=2)
    assert_without_place(tmp_path / "x", replace(GPT, output_bias=True, stack=replace(GPT.stack, mixer=mixer)),
                         'stack.mixer.score is "additive", but must be "scaled_dot"',
                         "stack.mixer.normalize",
                         "stack.mixer.window is 2", "GPT2LMHeadModel", "output_bias is true")


@pytest.mark.parametrize(("config", "said"), [
    (replace(GPT, stack=tiny.stack(norm_position="post")), 'stack.norm_position is "post"'),
    (replace(GPT, stack=tiny.stack("recurrence")), "self-attention"),
    (replace(GPT, stack=replace(GPT.stack, feed_forward=None)), "a feed-forward layer"),
    (replace(GPT, embedding=EmbeddingConfig()), "learned positions"),
    (replace(GPT, stack=replace(GPT.stack, mixer=replace(GPT.stack.mixer, scale=0.5))), "stack.mixer.scale is 0.5"),
    (replace(GPT, stack=replace(GPT.stack, mixer=replace(GPT.stack.mixer, softcap=5.0))), "stack.mixer.softcap is 5"),
    (replace(GPT, stack=replace(GPT.stack, mixer=replace(GPT.stack.mixer, gate=True))), "stack.mixer.gate is true"),
    (replace(GPT, stack=tiny.stack("rotary")), 'stack.norm is "layer", but must be "rms"'),
    (replace(BERT, pooling="mean"), 'pooling is "mean"'),
    (replace(BERT, embedding=POSITIONS), "segment embeddings"),
    (replace(BERT, embedding=replace(BERT.embedding, epsilon=0.1)), "embedding.epsilon is 0.1"),
    (EncoderDecoderConfig(source_vocab_size=9, target_vocab_size=9, width=8, share_embeddings=True,
                          tie_word_embeddings=False,
                          encoder=tiny.stack(norm_position="post"),
                          decoder=tiny.stack(norm_position="post", cross=True)), "share_embeddings"),
    (EncoderDecoderConfig(source_vocab_size=9, target_vocab_size=9, width=8,
                          embedding=EmbeddingConfig(positions=SinusoidalConfig()),
                          encoder=tiny.stack(norm_position="post"),
                          decoder=tiny.stack(norm_position="post", cross=True)),
     'layout is "interleaved", but must be "halves"'),
])
def test_what_does_not_fit(tmp_path, config, said):
    assert_without_place(tmp_path / "x", config, said)


def test_a_kind_that_no_family_has(tmp_path):
    config = Seq2SeqConfig(source_vocab_size=5, target_vocab_size=5, width=4)
    with pytest.raises(ValueError, match=r'"seq2seq".* bert, gpt2'):
        save(tmp_path / "x", config)


def test_what_is_as_it_would_be_anyway_and_how_a_model_runs_fit(tmp_path):
    mixer = SelfAttentionConfig(heads=2, key_heads=2, head_width=4, backend="exact", dropout=0.1)
    stack = replace(GPT.stack, mixer=mixer, activation_checkpointing=True,
                    feed_forward=replace(GPT.stack.feed_forward, dropout=0.3))
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
    with pytest.raises(ValueError, match=r'"pad_token_id": 99.*11'):
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
    with pytest.raises(ValueError, match=r"'decoder.embedding.tokens.weight' and 'decoder.output.weight'"):
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


NORMED = EmbeddingConfig(positions=SinusoidalConfig(), norm="layer", scale=True)


@pytest.mark.parametrize("config", [
    TRANSLATING["attention"], TRANSLATING["post-norm"], translating(tie_word_embeddings=False, output_bias=True),
    replace(translating(), width=9, encoder=replace(translating().encoder, mixer=replace(
        translating().encoder.mixer, heads=3)), decoder=replace(translating().decoder, mixer=replace(
            translating().decoder.mixer, heads=3), cross=replace(translating().decoder.cross, heads=3))),
    replace(translating(), embedding=NORMED, encoder=stack(gated=True)),
])
@torch.no_grad()
def test_the_logits_are_the_same(config):
    model = built(config)
    changed, tensors = with_half_sinusoids(config, model.state_dict())
    assert changed.embedding.positions.layout == "halves"
    assert replace(changed, embedding=config.embedding) == config
    other = changed.build().double().eval()
    other.load_state_dict(dict(tensors))
    source, target = Tokens.of([[5, 6, 7, 3], [4, 3]]), Tokens.of([[2, 4, 5], [2, 6]])
    want = model(source, target)
    torch.testing.assert_close(other(source, target), want, rtol=0, atol=1e-12)
    assert not torch.equal(tensors["encoder.embedding.tokens.weight"], model.state_dict()[
        "encoder.embedding.tokens.weight"])


@pytest.mark.parametrize("config", [
    translating(embedding="halves"), translating(embedding="learned"), language(embedding="sinusoidal"),
    TRANSLATING["convolution"], TRANSLATING["beside"], translating(share_embeddings=True, target_vocab_size=SOURCE,
                                                                   embedding="none"),
])
def test_others_stay_as_they_are(config):
    tensors = built(config).state_dict()
    assert with_half_sinusoids(config, tensors) == (config, tensors)


PAGE = (Path(regard.models.__file__).parent / "README.md").read_text(encoding="utf-8")
TITLES = {"bert": "BERT", "gpt2": "GPT-2", "marian": "Marian", "pegasus": "Pegasus", "vit": "ViT", "llama": "Llama",
          "mistral": "Mistral", "qwen2": "Qwen2"}
STACK = tiny.stack()
LANGUAGE = LanguageModelConfig(vocab_size=5, width=8, stack=STACK)
CONFIGS = {
    "bert": [MaskedModelConfig(vocab_size=5, width=8, stack=STACK)],
    "gpt2": [LANGUAGE],
    "marian": [EncoderDecoderConfig(source_vocab_size=5, target_vocab_size=5, width=8, share_embeddings=shared,
                                    encoder=STACK,
                                    decoder=tiny.stack(cross=True)) for shared in (True, False)],
    "pegasus": [EncoderDecoderConfig(source_vocab_size=5, target_vocab_size=5, width=8, share_embeddings=True,
                                     encoder=STACK,
                                     decoder=tiny.stack(cross=True))],
    "vit": [VisionConfig(image_height=4, image_width=4, patch_size=2, num_labels=2, width=8, stack=STACK)],
    "llama": [LANGUAGE],
    "mistral": [LANGUAGE],
    "qwen2": [LANGUAGE],
}


def rows(text, columns):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in found if len(row) == columns and row[0].startswith("`")]


def section(name):
    return re.search(rf"^## {re.escape(TITLES[name])}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tables_are_the_rules(name):
    rules = {(f"`{rule.theirs}`", ", ".join(f"`{ours}`" for ours in rule.ours), rule.way.words)
             for config in CONFIGS[name] for rule in FAMILIES[name].rules(config)}
    assert {tuple(row) for row in rows(section(name), 3)} == rules
    assert rows(section(name), 2) == [[f"`{one.theirs}`", one.why] for one in FAMILIES[name].unused]


def test_the_rules_of_an_encoder_alone_are_those_of_the_page_without_its_prefix():
    rules = FAMILIES["bert"].rules(EncoderConfig(vocab_size=5, width=8, stack=STACK))
    page = [row for row in rows(section("bert"), 3) if row[1].startswith("`encoder.")]
    assert [[f"`{rule.theirs}`", f"`encoder.{rule.ours[0]}`"] for rule in rules] == [row[:2] for row in page]


def test_the_page_lists_every_architecture():
    listed = rows(PAGE.split("\n## ")[0], 3)
    assert listed == [[f"`{name}`", f"`{theirs}`", f"`{kind}`"] for name, family in FAMILIES.items()
                      for theirs, kind in family.architectures.items()]
