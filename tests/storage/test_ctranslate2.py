"""What CTranslate2 can hold: every recipe has an answer, and every refusal names its keys."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import ALL, ATTENTION, LANGUAGE, SOURCE, TARGET, TRANSLATING, WIDTH, built, language, stack, translating

from regard.attention.layer import AttentionConfig, SelfAttentionConfig
from regard.models import catalog
from regard.models.build import model_config
from regard.position.rotary import RotaryConfig
from regard.special_tokens import SpecialTokens
from regard.storage import ctranslate2 as spec
from regard.storage.ctranslate2 import (
    DEFAULT_POSITIONS,
    QUANTIZATIONS,
    VocabularyNames,
    max_positions,
    unique_names,
    write_ctranslate2,
)
from regard.tokens import Tokens

ctranslate2 = pytest.importorskip("ctranslate2")

FITTING = {"transformer", "gpt", "llama"}


def keys(config):
    return [key for key, _ in spec.find_unsupported(config)]


def with_softcap(config):
    return replace(config, **{side: replace(own, mixer=replace(own.mixer, softcap=5.0))
                              for side, own in (("encoder", config.encoder), ("decoder", config.decoder))})


@pytest.mark.parametrize("name", catalog.recipe_names())
def test_recipes(name):
    tables = catalog.find_recipe(f"{name}-tiny").tables
    sizes = {"encoder-decoder": ("source_vocab_size", "target_vocab_size"), "seq2seq": ("source_vocab_size",
                                                                                        "target_vocab_size"),
             "vision": ("num_labels",), "classifier": ("vocab_size", "num_labels"),
             "tagger": ("vocab_size", "num_labels"), "tracks": ()}
    given = dict.fromkeys(sizes.get(tables["model"]["kind"], ("vocab_size",)), 9)
    assert (keys(model_config(f"{name}-tiny", **given)) == []) == (name in FITTING)


@pytest.mark.parametrize(("config", "expected"), [
    (TRANSLATING["additive"], ["score", "normalize", "head_width"]), (TRANSLATING["bilinear"], ["score", "normalize"]),
    (TRANSLATING["rotary"], ["key_heads", "position"]), (TRANSLATING["alibi"], ["position"]),
    (with_softcap(TRANSLATING["attention"]), ["softcap"]),
    (TRANSLATING["window"], ["window"]), (TRANSLATING["convolution"], ["kind"]), (TRANSLATING["lstmn"], ["kind"]),
])
def test_what_is_in_the_way_of_a_translator(config, expected):
    assert keys(config) == [f"{side}.mixer.{key}" for side in ("encoder", "decoder") for key in expected]


@pytest.mark.parametrize(("config", "expected"), [
    (TRANSLATING["beside"], ["embedding.combine"]), (TRANSLATING["seq2seq"], ["kind"]),
    (LANGUAGE["segments"], ["embedding.segments", "embedding.norm"]), (ALL["reading masked"], ["kind"]),
    (ALL["vision class"], ["kind"]),
    (LANGUAGE["old"], ["stack.norm_position", "stack.mixer.kind", "stack.feed_forward"]),
    (language(norm="rms"), ["embedding.norm"]),
    (language("rotary"), ["stack.mixer.key_heads", "embedding.positions"]),
])
def test_what_is_in_the_way_of_others(config, expected):
    assert keys(config) == expected


def test_gated_attention_is_in_the_way():
    assert [key for key in keys(TRANSLATING["gated"]) if key.endswith("gate")] == [
        "encoder.mixer.gate", "decoder.mixer.gate", "decoder.cross.gate"]


def test_what_must_be_one_for_both_sides():
    config = translating()
    decoder = replace(config.decoder, epsilon=1e-6, norm="rms", cross=AttentionConfig(heads=4, score="additive"))
    assert keys(replace(config, decoder=decoder)) == ["decoder.cross.score", "decoder.cross.heads", "decoder.norm",
                                                      "decoder.epsilon"]


def test_a_refusal_has_every_key():
    with pytest.raises(ValueError, match=r"CTranslate2.*\n  model\.encoder\.mixer\.score: .*additive.*\n  model"):
        spec.check_supported(TRANSLATING["additive"])
    spec.check_supported(TRANSLATING["post-norm"])


SPECIAL = SpecialTokens(start=2, end=(3,), padding=0)
SOURCES, TARGETS = [[5, 6, 7, 3], [4, 3], [8, 9, 10, 4, 5, 6, 3]], [[5, 6], [7, 8, 9, 10], []]


def with_parts(feed_forward=None, mixer=None, cross=None, **options):
    """A translator whose blocks have other parts."""
    config = translating(**options)
    sides = {}
    for side in ("encoder", "decoder"):
        own = getattr(config, side)
        own = replace(own, feed_forward=replace(own.feed_forward, **(feed_forward or {})), mixer=mixer or own.mixer)
        sides[side] = replace(own, cross=cross) if cross and side == "decoder" else own
    return replace(config, **sides)


CONFIGS = {
    "pre-norm": TRANSLATING["attention"], "post-norm": TRANSLATING["post-norm"], "untied": TRANSLATING["untied"],
    "halves": translating(embedding="halves"), "linear": translating(embedding="linear"),
    "formal": translating(embedding="formal"), "no positions": translating(embedding="none"),
    "gelu": with_parts({"activation": "gelu"}), "gelu_tanh": with_parts({"activation": "gelu_tanh"}),
    "gated": with_parts({"gated": True, "activation": "silu"}),
    "no biases": with_parts({"bias": False}, replace(ATTENTION, bias=False), AttentionConfig(heads=2, bias=False)),
    "dot": with_parts(mixer=replace(ATTENTION, score="dot"), cross=AttentionConfig(heads=2, score="scaled_dot_d")),
    "scale": with_parts(mixer=replace(ATTENTION, scale=0.7), cross=AttentionConfig(heads=2, scale=0.2)),
    "mixed": replace(translating(), encoder=replace(stack(norm_position="post"), mixer=SelfAttentionConfig(heads=4))),
    "rms": replace(translating(), encoder=stack(norm="rms"), decoder=stack(norm="rms", cross=True)),
    "epsilon": replace(translating(), encoder=stack(epsilon=0.3), decoder=stack(epsilon=0.3, cross=True)),
}


def names(config):
    return VocabularyNames(unique_names((), config.source_vocab_size), unique_names((), config.target_vocab_size))


def of(rows, called):
    return [[called[id_] for id_ in row] for row in rows]


def ours(model, source, target):
    """The log-probabilities of a target, and of its end."""
    logits = model.decode(Tokens.of([[2, *target]]), model.encode(Tokens.of([source])))[0]
    return [float(logits.log_softmax(-1)[at, id_]) for at, id_ in enumerate([*target, 3])]


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_translator(name, tmp_path):
    config = CONFIGS[name]
    model, called = built(config), names(config)
    files = write_ctranslate2(tmp_path, config, SPECIAL, model.state_dict(), called)
    assert sorted(files) == sorted(path.name for path in tmp_path.iterdir())
    inner = ctranslate2.Translator(str(tmp_path), compute_type="float32")
    found = inner.score_batch(of(SOURCES, called.source), of(TARGETS, called.target))
    for source, target, one in zip(SOURCES, TARGETS, found, strict=True):
        np.testing.assert_allclose(one.log_probs, ours(model, source, target), rtol=0, atol=1e-5)


def rotating(**options):
    """A language model as Llama, without grouped heads."""
    config = LANGUAGE["llama"]
    mixer = replace(config.stack.mixer, key_heads=None, position=RotaryConfig(**options))
    return replace(config, stack=replace(config.stack, mixer=mixer))


LANGUAGE_MODELS = {**{name: LANGUAGE[name] for name in ("attention", "sinusoidal", "none", "learned")},
                   "rotary": rotating(), "rotary pairs": rotating(pairing="interleaved"),
                   "rotary base": rotating(base=50.0)}


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
@torch.no_grad()
def test_a_language_model(name, tmp_path):
    config = LANGUAGE_MODELS[name]
    model = built(config)
    files = write_ctranslate2(tmp_path, config, SPECIAL, model.state_dict(),
                              VocabularyNames(unique_names((), TARGET), unique_names((), TARGET)))
    assert "vocabulary.json" in files
    rows = [[5, 6, 7, 8], [9, 4]]
    found = np.array(ctranslate2.Generator(str(tmp_path), compute_type="float32").forward_batch(rows))
    for one, row in zip(found, rows, strict=True):
        np.testing.assert_allclose(one[:len(row)], model.decode(Tokens.of([row]))[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_quantised_matrices_are_smaller(quantization, tmp_path):
    config = translating(source_vocab_size=200, target_vocab_size=200)
    sizes = {}
    for name in ("float32", quantization):
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        write_ctranslate2(place, config, SPECIAL, built(config).state_dict(), names(config), name)
        sizes[name] = (place / "model.bin").stat().st_size - DEFAULT_POSITIONS * WIDTH * 4
    assert (sizes[quantization] < sizes["float32"]) == (quantization != "float32")


def test_what_the_special_tokens_are_called(tmp_path):
    config = translating(share_embeddings=True, target_vocab_size=SOURCE)
    pieces = ["<pad>", "<unk>", "<s>", "</s>", "a", "b"]
    called = unique_names(pieces, SOURCE)
    files = write_ctranslate2(tmp_path, config, replace(SPECIAL, unknown=1), built(config).state_dict(),
                              VocabularyNames(called, called))
    told = json.loads((tmp_path / "config.json").read_text())
    assert (told["eos_token"], told["unk_token"], told["decoder_start_token"]) == ("</s>", "<unk>", "<s>")
    assert not told["add_source_eos"]
    assert files[2:] == ("shared_vocabulary.json",)
    assert json.loads((tmp_path / "shared_vocabulary.json").read_text()) == [*pieces, *(f"<{n}>" for n in range(6, 11))]


def test_every_id_has_a_name_of_its_own():
    called = unique_names(["a", "a", "", "<4>", "b", "<2>"], 8)
    assert called == ("a", "<1>", "<2>", "<3>", "b", "<5>", "<6>", "<7>")


def test_positions():
    assert max_positions(rotating()) is None
    assert max_positions(language()) == 12
    assert max_positions(translating()) == DEFAULT_POSITIONS


@pytest.mark.parametrize(("change", "message"), [
    ({"special": SpecialTokens(start=2)}, r"`special.end` must be at least one id"),
    ({"special": SpecialTokens(end=(3,))}, r"`special.start`"),
    ({"quantization": "int4"}, r'`quantization` must be one of "float32", '),
    ({"config": TRANSLATING["rotary"]}, r"model.encoder.mixer.position"),
])
def test_refusals_leave_nothing(change, message, tmp_path):
    config = change.get("config", translating())
    with pytest.raises(ValueError, match=message):
        write_ctranslate2(tmp_path, config, change.get("special", SPECIAL), built(config).state_dict(), names(config),
                          change.get("quantization", "float32"))
    assert not [*tmp_path.iterdir()]


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2", None)
    with pytest.raises(ValueError, match=r"pip install 'regard\[export\]'"):
        spec.import_ctranslate2()
