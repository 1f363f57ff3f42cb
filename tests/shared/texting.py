"""Small tasks with tokenizers, untrained, of every kind: what tests of text run on. Each is made once."""

from functools import cache

from tiny import VISION, built, language, reading, translating

from regard.data import phrasebook
from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.subwords import CharacterTokenizer
from regard.data.tokenizer.training import CharactersConfig, UnigramConfig, add_controls, train_tokenizer
from regard.models.classification import ClassifierConfig, TaggerConfig
from regard.models.language import MaskedModelConfig
from regard.tasks.load import make_task

RECORD = {
    "recipe": "transformer-tiny",
    "tokenizer": {"kind": "unigram", "vocab_size": 400},
    "data": {"files": ["train.tsv " + "0" * 64], "joint_tokenizer": True},
    "training": {"seed": 1, "schedule": {"learning_rate": 1e-3}},
    "scores": {"step": 12, "bleu": 41.25},
}
LABELS = ("cold", "warm", "hot")


@cache
def pairs(count=200):
    """English and French sentences."""
    return [(pair.source, pair.target) for pair in phrasebook.pairs(count, seed=1)]


@cache
def tokenizer(side=0):
    """Subwords of one language."""
    return train_tokenizer([pair[side] for pair in pairs()], UnigramConfig(vocab_size=400)).tokenizer


@cache
def joint():
    """Subwords of both languages."""
    one = train_tokenizer([text for pair in pairs() for text in pair], UnigramConfig(vocab_size=400)).tokenizer
    return PairTokenizer(one, one)


@cache
def separate():
    """Subwords of each language."""
    return PairTokenizer(tokenizer(0), tokenizer(1))


@cache
def characters():
    """Characters of English."""
    return train_tokenizer([source for source, _ in pairs()], CharactersConfig()).tokenizer


@cache
def translator(embedding="sinusoidal", pair=joint, **options):
    """An encoder-decoder."""
    both = pair()
    config = translating(embedding=embedding, source_vocab_size=both.source.size, target_vocab_size=both.target.size,
                         **options)
    return make_task(built(config), config, tokenizer=both)


@cache
def several():
    """Subwords of both languages, with control tokens for the languages to translate into."""
    return add_controls(joint(), ("<2fr>", "<2de>"))


@cache
def completer(mixer="attention", embedding="sinusoidal", of=characters):
    """A language model."""
    config = resized(language(mixer, embedding), of())
    return make_task(built(config), config, tokenizer=of())


@cache
def filler(of=tokenizer, **options):
    """A masked model."""
    config = resized(reading(MaskedModelConfig, embedding="sinusoidal", **options), of())
    return make_task(built(config), config, tokenizer=of())


@cache
def classifier(kind=ClassifierConfig):
    """A model that gives labels."""
    config = resized(reading(kind, embedding="sinusoidal", num_labels=len(LABELS)), tokenizer())
    return make_task(built(config), config, tokenizer=tokenizer(), labels=LABELS)


def tagger():
    """A model that gives labels to tokens."""
    return classifier(TaggerConfig)


@cache
def character_tagger(labels=tuple("BCEGHIST"), embedding="sinusoidal"):
    """A model that gives labels to the residues of a protein."""
    letters = CharacterTokenizer("ACDEFGHIKLMNPQRSTVWYX")
    config = resized(reading(TaggerConfig, embedding=embedding, num_labels=len(labels)), letters)
    return make_task(built(config).float(), config, tokenizer=letters, labels=labels,
                     record={"data": {"label_unit": "character"}})


@cache
def seer():
    """A model that gives labels to images."""
    config = VISION["no token"]
    return make_task(built(config), config, labels=tuple("abcde"))


def resized(config, of, more=0):
    """The config with the vocabulary of a tokenizer, and some ids more."""
    from dataclasses import replace

    return replace(config, vocab_size=of.size + more)
