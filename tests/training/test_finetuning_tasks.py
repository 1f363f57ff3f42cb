"""Fine-tuning of every task, from folders of regard and of Hugging Face, and classifiers from encoders."""

import os

import numpy as np
import pytest
import torch

import regard
from regard.data import phrasebook
from regard.data.sources.text import DataError
from regard.training.starting_point import weights_sha256

TEXTS = [f"the {noun} {verb} number {number}." for number, (noun, verb) in
         enumerate((noun, verb) for noun in ("cat", "dog", "bird") for verb in ("sleeps", "eats", "runs"))]
SMALL = {"tokenizer.vocab_size": 300, "model.width": 16, "model.stack.layers": 1, "model.stack.mixer.heads": 2,
         "model.stack.feed_forward.ffn_width": 24, "training.schedule.max_steps": 4, "training.validation.every": 2}
SHORT = {"training.schedule.max_steps": 4, "training.validation.every": 2, "training.log_every": 1}
LABELLED = [(text, "animal" if "cat" in text or "dog" in text else "bird") for text in TEXTS * 3]


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def train(data, output, **options):
    return regard.train(data, output, **{"settings": SHORT, "device": "cpu", **options})


@pytest.fixture(scope="module")
def filler(tmp_path_factory):
    return regard.train(TEXTS * 3, tmp_path_factory.mktemp("masked") / "model", task="masked", settings=SMALL,
                        device="cpu")


@pytest.mark.parametrize("task", ["language", "masked"])
def test_models_of_text(task, filler, tmp_path):
    start = filler if task == "masked" else regard.train(["\n".join(TEXTS * 30)], tmp_path / "base", task=task,
                                                         settings={**SMALL, "tokenizer.kind": "unigram"}, device="cpu")
    data = [text.replace("number", "no.") for text in TEXTS * 30]
    found = train(data if task == "masked" else ["\n".join(data)], tmp_path / "new", task=task, from_=start)
    assert type(found) is type(start)
    assert found.tokenizer.sha256 == start.tokenizer.sha256
    assert next(entry["step"] for entry in found.history if "scores" in entry) == 0


def test_a_classifier_from_a_masked_model(filler, tmp_path):
    """The encoder is kept, and there is a new output layer, so that the start model has no score."""
    found = train(LABELLED, tmp_path / "new", task="classify", from_=filler, lr=1e-30, ema_decay=0.0)
    assert found.label_names() == ("animal", "bird")
    before, after = filler.model.encoder.state_dict(), found.model.encoder.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert min(entry["step"] for entry in found.history if "scores" in entry) > 0
    assert "scores" not in found.record["start"]
    with pytest.raises(ValueError, match="blend"):
        train(LABELLED, tmp_path / "other", task="classify", from_=filler, blend=True)


def test_a_classifier_keeps_its_labels(filler, tmp_path):
    """In their order, also where the data lacks one; other labels get a new output layer."""
    base = train([*LABELLED, ("a whale swims.", "fish"), ("the shark swims.", "fish")], tmp_path / "base",
                 task="classify", from_=filler)
    assert base.label_names() == ("animal", "bird", "fish")
    same = train(LABELLED, tmp_path / "same", task="classify", from_=base, lr=1e-30, ema_decay=0.0)
    assert same.label_names() == base.label_names()
    assert torch.equal(same.model.output.weight, base.model.output.weight)
    assert same.history[0]["step"] == 0
    other = train([(text, f"{label} 2") for text, label in LABELLED], tmp_path / "other", task="classify", from_=base,
                  lr=1e-30, ema_decay=0.0)
    assert other.label_names() == ("animal 2", "bird 2")
    assert torch.equal(next(other.model.encoder.parameters()), next(base.model.encoder.parameters()))


def write_images(folder, count=12, side=8):
    image = pytest.importorskip("PIL.Image")
    numbers = np.random.default_rng(0)
    for label, shade in (("dark", 40), ("light", 200)):
        (folder / label).mkdir(parents=True)
        for number in range(count):
            pixels = np.clip(numbers.normal(shade, 10, (side, side, 3)), 0, 255).astype(np.uint8)
            image.fromarray(pixels).save(folder / label / f"{number}.png")
    return folder


def test_images(tmp_path):
    """Images of another size are resized to that of the start model; texts are refused."""
    settings = {"model.width": 16, "model.stack.layers": 1, "model.stack.mixer.heads": 2,
                "model.stack.feed_forward.ffn_width": 24, **SHORT}
    base = regard.train(write_images(tmp_path / "one"), tmp_path / "base", task="classify", settings=settings,
                        device="cpu")
    found = train(write_images(tmp_path / "two", side=12), tmp_path / "new", task="classify", from_=base)
    assert found.config.image_height == base.config.image_height == 8
    assert found.label_names() == ("dark", "light")
    with pytest.raises(DataError, match="images"):
        train(LABELLED, tmp_path / "text", task="classify", from_=base)


# Folders of Hugging Face

def pairs(count=40):
    return [(pair.source, pair.target) for pair in phrasebook.pairs(count, seed=0, max_words=6)]


def test_a_marian_model(tmp_path):
    start = imported_marian(tmp_path / "marian")
    found = train(pairs(), tmp_path / "new", from_=tmp_path / "marian")
    assert found.tokenizer.sha256 == start.tokenizer.sha256
    assert found.record["start"] == {**found.record["start"], "name": "marian",
                                     "sha256": weights_sha256(start.model)}
    assert isinstance(regard.load(tmp_path / "new").translate("They are here.", max_length=3).text, str)


def imported_marian(folder):
    """A small Marian folder, with sentencepiece models of the phrasebook."""
    transformers = pytest.importorskip("transformers")
    import json

    import sentencepiece

    for side, texts in zip(("source", "target"), zip(*pairs(200), strict=True), strict=True):
        folder.mkdir(exist_ok=True)
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_prefix=str(folder / side),
                                                 vocab_size=150, hard_vocab_limit=False, minloglevel=2)
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        (folder / f"{side}.vocab").unlink()
    names = dict.fromkeys(["</s>", "<unk>"])
    for side in ("source", "target"):
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        names |= dict.fromkeys(model.id_to_piece(number) for number in range(model.vocab_size()))
    names.pop("<s>", None)
    vocabulary = {name: number for number, name in enumerate([*names, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    last = len(vocabulary) - 1
    config = transformers.MarianConfig(
        vocab_size=len(vocabulary), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=64,
        pad_token_id=last, decoder_start_token_id=last, eos_token_id=0, bos_token_id=0, forced_eos_token_id=0)
    transformers.MarianMTModel(config).save_pretrained(folder)
    return regard.load(folder)


def word_tokenizer(folder, texts):
    """A WordPiece tokenizer as BERT has it."""
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.BertWordPieceTokenizer()
    inner.train_from_iterator(texts, vocab_size=200, show_progress=False)
    inner.save(str(folder / "tokenizer.json"))
    import json

    (folder / "special_tokens_map.json").write_text(json.dumps({
        "unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]",
        "mask_token": "[MASK]"}))
    return inner.get_vocab_size()


@pytest.mark.parametrize(("architecture", "task"), [("BertForMaskedLM", "masked"), ("BertForMaskedLM", "classify"),
                                                    ("BertModel", "classify")])
def test_bert(tmp_path, architecture, task):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "bert"
    folder.mkdir()
    size = word_tokenizer(folder, TEXTS)
    config = transformers.BertConfig(vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                     intermediate_size=24, max_position_embeddings=12)
    getattr(transformers, architecture)(config).save_pretrained(folder)
    data = LABELLED if task == "classify" else TEXTS * 3
    found = train(data, tmp_path / "new", task=task, from_=folder)
    start = regard.load(folder)
    assert found.special.cls is not None
    if task == "classify":
        # Texts are read as at use: [CLS], the text, [SEP], within the positions.
        from regard.training.starting_point import load_start

        rows = load_start(str(folder), task).encode_texts(["the cat " * 20])
        assert len(rows[0]) == 12
        assert (rows[0][0], rows[0][-1]) == (start.special.cls, start.special.separator)
        assert found.classify("the cat sleeps.")[0].name in ("animal", "bird")


def test_characters_that_the_tokenizer_cannot_write(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "bert"
    folder.mkdir()
    size = word_tokenizer(folder, TEXTS)
    config = transformers.BertConfig(vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                     intermediate_size=24)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    data = [*(text + f" {number}" for number, text in enumerate(TEXTS)), "the кот sleeps.", "the ж runs."]
    with pytest.raises(DataError, match="U\\+0436") as raised:
        train(data, tmp_path / "new", task="masked", from_=folder)
    assert "2 of 11 texts" in str(raised.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_causal_models(tmp_path, family):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path / family
    folder.mkdir()
    inner = tokenizers.ByteLevelBPETokenizer()
    inner.train_from_iterator(TEXTS, vocab_size=290, show_progress=False)
    inner.save(str(folder / "tokenizer.json"))
    size = inner.get_vocab_size()
    config, model = {
        "gpt2": (transformers.GPT2Config(vocab_size=size, n_embd=16, n_layer=1, n_head=2, n_positions=32,
                                         bos_token_id=0, eos_token_id=0), transformers.GPT2LMHeadModel),
        "llama": (transformers.LlamaConfig(vocab_size=size, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                                           num_attention_heads=2, num_key_value_heads=1, bos_token_id=0,
                                           eos_token_id=0), transformers.LlamaForCausalLM)}[family]
    model(config).save_pretrained(folder)
    found = train(["\n".join(TEXTS * 20)], tmp_path / "new", task="language", from_=folder)
    assert found.tokenizer.sha256 == regard.load(folder).tokenizer.sha256
    assert found.history[0]["step"] == 0


def test_vit(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
                                    image_size=8, patch_size=4, num_labels=2,
                                    id2label={0: "light", 1: "dark"}, label2id={"light": 0, "dark": 1})
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    found = train(write_images(tmp_path / "data"), tmp_path / "new", task="classify", from_=tmp_path / "vit")
    assert found.label_names() == ("light", "dark")
    assert found.history[0]["step"] == 0
