"""Training a tokenizer on texts: once, with the same result every time.

    trained = train(texts, UnigramConfig(vocabulary=8000))
    trained.tokenizer, trained.notes

The texts are read once, one by one, and at most `sentences` of them are kept. The order of the sums in a unigram model
depends on the number of threads, and with it the pieces, so that number is fixed; it has nothing to do with how many
there are on the machine.

A text is shown to sentencepiece normalised, in lines of a limited length, without the few characters that it passes
over or takes for something else: they are cut into bytes anyway. Of equal lines it is shown two, one after the other:
the time that a unigram model takes grows with the square of what is repeated, so that a file that holds everything
twice, or a thousand lines of dashes, would never come to an end. This file does not know where texts come from.
"""

import io
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import sentencepiece

from regard import checks
from regard.data.tokenizer.characters import ByteTokenizer, CharacterTokenizer
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.normalisation import NORMALISATIONS
from regard.data.tokenizer.pair import PairTokenizer
from regard.data.tokenizer.sentencepieces import SentencePieceTokenizer
from regard.data.tokenizer.settings import BpeConfig, BytesConfig, CharactersConfig, TokenizerConfig, UnigramConfig
from regard.data.tokenizer.surface import FIRST_PIECE, SHOWN, SPACE_SHOWN, SPECIAL

Subwords = UnigramConfig | BpeConfig
THREADS = 16
LONGEST = 400
"""Characters of a line that sentencepiece is shown. A longer one is shown in parts, cut at spaces where it has any."""
TWICE = 2
"""How often a line is shown at most; a piece must be met twice to be thought of."""
_PART = re.compile(f".{{1,{LONGEST}}}(?= |$)|.{{1,{LONGEST}}}", re.DOTALL)
_NOT_SHOWN = re.compile(f"[\x00\t\n\r{SPACE_SHOWN}\u2585]+")
_TOO_LARGE = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_SMALL = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")


@dataclass(frozen=True)
class Trained:
    """A tokenizer, and what its user should know of how it came to be."""

    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainedPair:
    """The tokenizers of source and target, and what their user should know of how they came to be."""

    tokenizer: PairTokenizer
    notes: tuple[str, ...] = ()


def train(texts: Iterable[str], config: TokenizerConfig) -> Trained:
    """A tokenizer for such texts."""
    if isinstance(texts, str):
        raise checks.wrong("texts", "several texts", "one text", "Put it into a list.")
    if isinstance(config, BytesConfig):
        return Trained(ByteTokenizer(config.normalisation))
    if isinstance(config, CharactersConfig):
        return _train_characters(texts, config)
    return _train_subwords(texts, config)


def train_joint(sources: Iterable[str], targets: Iterable[str], config: TokenizerConfig) -> TrainedPair:
    """One tokenizer for both sides."""
    trained = train(chain(sources, targets), config)
    return TrainedPair(PairTokenizer(trained.tokenizer, trained.tokenizer), trained.notes)


def train_separate(sources: Iterable[str], targets: Iterable[str], source: TokenizerConfig,
                   target: TokenizerConfig) -> TrainedPair:
    """A tokenizer for each side, with a config for each."""
    first, second = train(sources, source), train(targets, target)
    notes = (*(f"source: {note}" for note in first.notes), *(f"target: {note}" for note in second.notes))
    return TrainedPair(PairTokenizer(first.tokenizer, second.tokenizer), notes)


def _train_characters(texts: Iterable[str], config: CharactersConfig) -> Trained:
    normalise, counts = NORMALISATIONS[config.normalisation], Counter[str]()
    for text in texts:
        counts.update(normalise(text))
    del counts[SPACE_SHOWN]
    if not counts:
        raise _nothing()
    found = sorted(counts, key=lambda character: (-counts[character], character))
    kept = found if config.vocabulary is None else found[:config.vocabulary - FIRST_PIECE]
    notes = [f"{len(found) - len(kept)} of {len(found)} characters have no id of their own, and are cut into bytes"]
    return Trained(CharacterTokenizer(kept, config.normalisation), tuple(notes if len(kept) < len(found) else ()))


def _train_subwords(texts: Iterable[str], config: Subwords) -> Trained:
    normalise = NORMALISATIONS[config.normalisation]
    kept, count = _drawn((text for text in map(normalise, texts) if text), config)
    notes = [f"{len(kept):,} of {count:,} texts were looked at"] if len(kept) < count else []
    counts = Counter(line for text in kept for line in _lines(text))
    lines = [line for line, count in counts.items() for _ in range(min(count, TWICE))]
    if not lines:
        raise _nothing()
    data, size = _fitted(lines, config)
    if size < config.vocabulary:
        notes.append(f"the text allows for a vocabulary of {size:,}, not of {config.vocabulary:,}")
    return Trained(SentencePieceTokenizer(data, config.kind, config.normalisation), tuple(notes))


def _drawn(texts: Iterator[str], config: Subwords) -> tuple[list[str], int]:
    """At most so many of the texts, each with the same chance, and how many there were."""
    kept, count, chance = [], 0, random.Random(config.seed)
    for count, text in enumerate(texts, 1):
        if count <= config.sentences:
            kept.append(text)
        elif (place := chance.randrange(count)) < config.sentences:
            kept[place] = text
    return kept, count


def _lines(text: str) -> Iterator[str]:
    """What sentencepiece is shown of a normalised text."""
    for shown in _NOT_SHOWN.split(" " + text):
        yield from (part for part in _PART.findall(shown) if not part.isspace())


def _fitted(lines: list[str], config: Subwords) -> tuple[bytes, int]:
    """The model with the vocabulary asked for, or with the largest that the text allows for, and its size."""
    size = config.vocabulary
    while True:
        try:
            return _sentencepiece(lines, config, size), size
        except RuntimeError as error:
            if (large := _TOO_LARGE.search(str(error))) and FIRST_PIECE < int(large[1]) < size:
                size = int(large[1])
            elif small := _TOO_SMALL.search(str(error)):
                raise checks.wrong("vocabulary", f"at least {small[1]}, for the characters of the text", size,
                                   "Choose a larger one, or a lower coverage.") from None
            else:
                raise checks.wrong("texts", "such that sentencepiece finds pieces in them", "others",
                                   f"It says: {error}") from error


def _sentencepiece(lines: list[str], config: Subwords, size: int) -> bytes:
    # The space is always a piece, however rare: sentencepiece would take the bytes of ▁ in its place, not its own.
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=written, model_type=config.kind, vocab_size=size,
        character_coverage=config.coverage, required_chars=SPACE_SHOWN, split_digits=config.split_digits,
        byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False,
        pad_id=SPECIAL.padding, unk_id=SPECIAL.unknown, bos_id=SPECIAL.start, eos_id=SPECIAL.end[0],
        pad_piece=SHOWN[0], unk_piece=SHOWN[1], bos_piece=SHOWN[2], eos_piece=SHOWN[3], control_symbols=[SHOWN[4]],
        max_sentence_length=8 * LONGEST, shuffle_input_sentence=False, num_threads=THREADS, minloglevel=2)
    return written.getvalue()


def _nothing() -> ValueError:
    return checks.wrong("texts", "at least one text that is not blank", "none")
