"""Training a tokenizer on texts, deterministically, and what can be configured about it.

    trained = train_tokenizer(texts, UnigramConfig(vocabulary=8000))
    trained.tokenizer, trained.notes

The texts are read once, one by one, and at most `sentences` of them are kept. The order of the sums in a unigram model,
and with it the pieces, depends on the number of threads, so that number is fixed and independent of the machine.

Sentencepiece sees normalised text in lines of limited length, without the few characters that it skips or
misinterprets: these are encoded as bytes anyway. Of equal lines it sees two: the training time of a unigram model grows
with the square of what is repeated, so a file that holds everything twice, or a thousand lines of dashes, would never
finish. This module does not know where texts come from.
"""

import io
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import sentencepiece

from regard import checks
from regard.config import Config, choice, integer, number
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.data.tokenizer.subwords import (
    FIRST_PIECE,
    NORMALIZATIONS,
    SPACE_SYMBOL,
    SPECIAL_IDS,
    SPECIAL_PIECES,
    ByteTokenizer,
    CharacterTokenizer,
    LosslessTokenizer,
    SentencePieceTokenizer,
)


@dataclass(frozen=True, kw_only=True)
class SubwordConfig(Config):
    """The settings that unigram models and byte pair encoding share."""

    vocab_size: int = integer(8000, minimum=FIRST_PIECE + 1, old="vocabulary")
    """Size of the vocabulary: 5 special ids, 256 bytes and the subwords. Little text may allow fewer."""
    character_coverage: float = number(0.9998, minimum=0.98, maximum=1, old="coverage")
    """Fraction of the characters of the text that are in the vocabulary; the rarest are split into bytes."""
    normalization: str = choice(NORMALIZATIONS, "line", old="normalisation")
    """Unicode normalization: none (exact), NFC, or NFC with every text on one line (line)."""
    split_digits: bool = False
    """Whether every digit is a token of its own, so that numbers are copied rather than learned."""
    input_sentence_size: int = integer(200_000, minimum=1, old="sentences")
    """Texts that the tokenizer is trained on; of more, a random sample. Each needs about 1 KB of memory."""
    seed: int = integer(0, minimum=0)
    """Random seed of the sample of texts that the tokenizer is trained on."""


@dataclass(frozen=True, kw_only=True)
class UnigramConfig(SubwordConfig):
    """The pieces that make the text most probable (Kudo 2018)."""

    kind: ClassVar[str] = "unigram"


@dataclass(frozen=True, kw_only=True)
class BpeConfig(SubwordConfig):
    """Byte pair encoding: the most frequent pair becomes one piece, again and again (Sennrich et al. 2016)."""

    kind: ClassVar[str] = "bpe"


@dataclass(frozen=True, kw_only=True)
class CharactersConfig(Config):
    """One id for each character."""

    kind: ClassVar[str] = "characters"
    vocab_size: int | None = integer(None, minimum=FIRST_PIECE + 1, old="vocabulary")
    """Largest size of the vocabulary: 5 special ids, 256 bytes and the most frequent characters."""
    normalization: str = choice(NORMALIZATIONS, "nfc", old="normalisation")
    """Unicode normalization: none (exact), NFC, or NFC with every text on one line (line)."""


@dataclass(frozen=True, kw_only=True)
class BytesConfig(Config):
    """One id for each byte."""

    kind: ClassVar[str] = "bytes"
    normalization: str = choice(NORMALIZATIONS, "exact", old="normalisation")
    """Unicode normalization: none (exact), NFC, or NFC with every text on one line (line)."""


TokenizerConfig = UnigramConfig | BpeConfig | CharactersConfig | BytesConfig


AnySubwordConfig = UnigramConfig | BpeConfig
THREADS = 16
LINE_CHARACTERS = 400
"""The largest length of a line for sentencepiece; longer ones are split, at spaces if there are any."""
LINE_REPEATS = 2
"""How often a line is repeated at most: a piece must occur twice to be considered."""
_PART = re.compile(f".{{1,{LINE_CHARACTERS}}}(?= |$)|.{{1,{LINE_CHARACTERS}}}", re.DOTALL)
_UNSUPPORTED = re.compile(f"[\x00\t\n\r{SPACE_SYMBOL}\u2585]+")
_TOO_LARGE = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_SMALL = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")


@dataclass(frozen=True)
class TrainedTokenizer:
    """A tokenizer, and notes about its training."""

    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainedPairTokenizer:
    """The tokenizers of source and target, and notes about their training."""

    tokenizer: PairTokenizer
    notes: tuple[str, ...] = ()


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> TrainedTokenizer:
    """Train a tokenizer on these texts."""
    if isinstance(texts, str):
        raise checks.wrong("texts", "several texts", "one text", "Put it into a list.")
    if isinstance(config, BytesConfig):
        return TrainedTokenizer(ByteTokenizer(config.normalization))
    if isinstance(config, CharactersConfig):
        return _train_characters(texts, config)
    return _train_subwords(texts, config)


def train_joint_tokenizer(sources: Iterable[str], targets: Iterable[str],
                          config: TokenizerConfig) -> TrainedPairTokenizer:
    """Train one tokenizer for both sides."""
    trained = train_tokenizer(chain(sources, targets), config)
    return TrainedPairTokenizer(PairTokenizer(trained.tokenizer, trained.tokenizer), trained.notes)


def train_separate_tokenizers(sources: Iterable[str], targets: Iterable[str], source: TokenizerConfig,
                   target: TokenizerConfig) -> TrainedPairTokenizer:
    """Train a tokenizer for each side, each with its own config."""
    first, second = train_tokenizer(sources, source), train_tokenizer(targets, target)
    notes = (*(f"Source: {note}" for note in first.notes), *(f"Target: {note}" for note in second.notes))
    return TrainedPairTokenizer(PairTokenizer(first.tokenizer, second.tokenizer), notes)


def add_controls(tokenizer: PairTokenizer, names: Sequence[str]) -> PairTokenizer:
    """The tokenizers of source and target with these control tokens, which only sources have."""
    if not names:
        return tokenizer
    assert isinstance(tokenizer.source, LosslessTokenizer), "those that regard trains"
    source = tokenizer.source.with_controls(names)
    return PairTokenizer(source, source if tokenizer.joint else tokenizer.target)


def _train_characters(texts: Iterable[str], config: CharactersConfig) -> TrainedTokenizer:
    normalize, counts = NORMALIZATIONS[config.normalization], Counter[str]()
    for text in texts:
        counts.update(normalize(text))
    del counts[SPACE_SYMBOL]
    if not counts:
        raise _no_text_error()
    found = sorted(counts, key=lambda character: (-counts[character], character))
    kept = found if config.vocab_size is None else found[:config.vocab_size - FIRST_PIECE]
    missing = len(found) - len(kept)
    note = f"{missing:,} of {len(found):,} characters are not in the vocabulary and are encoded as bytes."
    return TrainedTokenizer(CharacterTokenizer(kept, config.normalization), (note,) if missing else ())


def _train_subwords(texts: Iterable[str], config: AnySubwordConfig) -> TrainedTokenizer:
    normalize = NORMALIZATIONS[config.normalization]
    kept, count = _reservoir_sample((text for text in map(normalize, texts) if text), config)
    notes = [f"The tokenizer is trained on a sample of {len(kept):,} of {count:,} texts."] if len(kept) < count else []
    counts = Counter(line for text in kept for line in _training_lines(text))
    lines = [line for line, count in counts.items() for _ in range(min(count, LINE_REPEATS))]
    if not lines:
        raise _no_text_error()
    data, size = _train_largest(lines, config)
    if size < config.vocab_size:
        notes.append(f"The vocabulary has {size:,} tokens instead of {config.vocab_size:,}: the text has no more.")
    return TrainedTokenizer(SentencePieceTokenizer(data, config.kind, config.normalization), tuple(notes))


def _reservoir_sample(texts: Iterator[str], config: AnySubwordConfig) -> tuple[list[str], int]:
    """At most `config.sentences` of the texts, each with the same probability, and the number of all."""
    kept, count, rng = [], 0, random.Random(config.seed)
    for count, text in enumerate(texts, 1):
        if count <= config.input_sentence_size:
            kept.append(text)
        elif (index := rng.randrange(count)) < config.input_sentence_size:
            kept[index] = text
    return kept, count


def _training_lines(text: str) -> Iterator[str]:
    """The lines of a normalised text for sentencepiece."""
    for line in _UNSUPPORTED.split(" " + text):
        yield from (part for part in _PART.findall(line) if not part.isspace())


def _train_largest(lines: list[str], config: AnySubwordConfig) -> tuple[bytes, int]:
    """The model with the configured vocabulary, or with the largest that the text allows, and its size."""
    # A text of n characters has at most n different ones and n merges. sentencepiece cannot read every larger number.
    size = min(config.vocab_size, FIRST_PIECE + 1 + 2 * sum(map(len, lines)))
    while True:
        try:
            return _train_sentencepiece(lines, config, size), size
        except RuntimeError as error:
            if (large := _TOO_LARGE.search(str(error))) and FIRST_PIECE < int(large[1]) < size:
                size = int(large[1])
            elif small := _TOO_SMALL.search(str(error)):
                raise checks.wrong("vocab_size", f"at least {small[1]}, for the characters of the text", size,
                                   "Choose a larger one, or a lower character_coverage.") from None
            else:
                raise ValueError(f"sentencepiece cannot train a tokenizer on these texts: {error}") from error


def _train_sentencepiece(lines: list[str], config: AnySubwordConfig, size: int) -> bytes:
    # The space is always a piece, however rare: otherwise sentencepiece would use the bytes of ▁ for it.
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=written, model_type=config.kind, vocab_size=size,
        character_coverage=config.character_coverage, required_chars=SPACE_SYMBOL, split_digits=config.split_digits,
        byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False,
        pad_id=SPECIAL_IDS.padding, unk_id=SPECIAL_IDS.unknown, bos_id=SPECIAL_IDS.start, eos_id=SPECIAL_IDS.end[0],
        pad_piece=SPECIAL_PIECES[0], unk_piece=SPECIAL_PIECES[1], bos_piece=SPECIAL_PIECES[2],
        eos_piece=SPECIAL_PIECES[3], control_symbols=[SPECIAL_PIECES[4]],
        max_sentence_length=8 * LINE_CHARACTERS, shuffle_input_sentence=False, num_threads=THREADS, minloglevel=2)
    return written.getvalue()


def _no_text_error() -> ValueError:
    return ValueError("There is no text to train a tokenizer on: all texts are empty.")
