"""What CTranslate2 can hold: every recipe has an answer, and every refusal names its keys."""

from dataclasses import replace

import pytest
from tiny import ALL, LANGUAGE, TRANSLATING, language, translating

from regard.attention.layer import AttentionConfig
from regard.models import catalog
from regard.models.build import model_config
from regard.storage import ctranslate2

FITTING = {"transformer", "gpt"}


def keys(config):
    return [key for key, _ in ctranslate2.find_unsupported(config)]


@pytest.mark.parametrize("name", catalog.recipe_names())
def test_recipes(name):
    tables = catalog.find_recipe(f"{name}-tiny").tables
    sizes = {"encoder-decoder": ("source_vocab_size", "target_vocab_size"), "seq2seq": ("source_vocab_size",
             "target_vocab_size"), "vision": ("num_labels",), "classifier": ("vocab_size", "num_labels")}
    given = dict.fromkeys(sizes.get(tables["model"]["kind"], ("vocab_size",)), 9)
    assert (keys(model_config(f"{name}-tiny", **given)) == []) == (name in FITTING)


@pytest.mark.parametrize(("config", "expected"), [
    (TRANSLATING["additive"], ["score", "normalize", "head_width"]), (TRANSLATING["bilinear"], ["score", "normalize"]),
    (TRANSLATING["rotary"], ["key_heads", "position"]), (TRANSLATING["alibi"], ["position"]),
    (TRANSLATING["window"], ["window"]), (TRANSLATING["convolution"], ["kind"]), (TRANSLATING["lstmn"], ["kind"]),
])
def test_what_is_in_the_way_of_a_translator(config, expected):
    assert keys(config) == [f"{side}.mixer.{key}" for side in ("encoder", "decoder") for key in expected]


@pytest.mark.parametrize(("config", "expected"), [
    (TRANSLATING["beside"], ["embedding.combine"]), (TRANSLATING["seq2seq"], ["kind"]),
    (LANGUAGE["segments"], ["embedding.segments", "embedding.norm"]), (ALL["reading masked"], ["kind"]),
    (ALL["vision class"], ["kind"]), (LANGUAGE["old"], ["stack.norm_position", "stack.mixer.kind", "stack.feed_forward"]),
    (language(norm="rms"), ["embedding.norm"]),
])
def test_what_is_in_the_way_of_others(config, expected):
    assert keys(config) == expected


def test_what_must_be_one_for_both_sides():
    config = translating()
    decoder = replace(config.decoder, epsilon=1e-6, norm="rms", cross=AttentionConfig(heads=4, score="additive"))
    assert keys(replace(config, decoder=decoder)) == ["decoder.cross.score", "decoder.cross.heads", "decoder.norm",
                                                      "decoder.epsilon"]


def test_a_refusal_has_every_key():
    with pytest.raises(ValueError, match=r"CTranslate2.*\n  model\.encoder\.mixer\.score: .*additive.*\n  model"):
        ctranslate2.check_supported(TRANSLATING["additive"])
    ctranslate2.check_supported(TRANSLATING["post-norm"])
