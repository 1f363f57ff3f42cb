"""The page that says which tensors map where has every rule of the code, and no other."""

import re
from pathlib import Path

import pytest
import tiny

import regard.models
from regard.models.encoder_decoder import EncoderConfig, EncoderDecoderConfig
from regard.models.language import LanguageModelConfig, MaskedModelConfig
from regard.models.vision import VisionConfig
from regard.storage.huggingface.conversion import FAMILIES

PAGE = (Path(regard.models.__file__).parent / "README.md").read_text(encoding="utf-8")
TITLES = {"bert": "BERT", "gpt2": "GPT-2", "marian": "Marian", "pegasus": "Pegasus", "vit": "ViT", "llama": "Llama"}
STACK = tiny.stack()
LANGUAGE = LanguageModelConfig(vocab_size=5, width=8, stack=STACK)
CONFIGS = {
    "bert": [MaskedModelConfig(vocab_size=5, width=8, stack=STACK)],
    "gpt2": [LANGUAGE],
    "marian": [EncoderDecoderConfig(source_vocab_size=5, target_vocab_size=5, width=8, share_embeddings=shared, encoder=STACK,
                                    decoder=tiny.stack(cross=True)) for shared in (True, False)],
    "pegasus": [EncoderDecoderConfig(source_vocab_size=5, target_vocab_size=5, width=8, share_embeddings=True, encoder=STACK,
                                     decoder=tiny.stack(cross=True))],
    "vit": [VisionConfig(image_height=4, image_width=4, patch_size=2, num_labels=2, width=8, stack=STACK)],
    "llama": [LANGUAGE],
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
