"""The tokenizer interface: text to ids and back, the characters of each id, and the words that ids make up.

    tokenizer.encode("Two dogs.")      [412, 981, 263]
    tokenizer.spans("Two dogs.")       [Span(0, 3), Span(3, 8), Span(8, 9)]
    tokenizer.words("Two dogs.")       [Word(0, 3, 0, 0), Word(4, 8, 1, 1), Word(8, 9, 2, 2)]

No method adds start, end or any other special id: whoever makes a batch does. No text encodes to a special id either,
nor to a control token, such as <2fr> or Marian's >>fra<<: an id with a name that tells the model something about a
sentence, for example the language to translate into.
Spans count characters of the text as it was given, before normalisation. A `PairTokenizer` holds the tokenizers of
source and target, which may be one:

    source   control tokens if there are any, the ids of the text, then the end id      in training and in inference
    target   the ids of the text                       a batch adds start and end

The end id tells an encoder that nothing follows, and gives even an empty source one state to attend to.

Words are found in two steps. First the text is split into units:

- consecutive letters, digits, marks and underscores are one unit, also across one hyphen between letters (well-known)
  and one point or comma between digits (3.5);
- an apostrophe between letters belongs to what follows it in an English ending (dog 's, we 're), to what precedes it
  where that is as short as a French article (l' homme, qu' il), and to both otherwise (aujourd'hui);
- a punctuation mark or a symbol is a unit, and so is a run of one mark (...);
- in scripts without spaces (Han, kana, Thai, Lao, Khmer, Burmese, Tibetan) each character is a unit;
- marks, joiners, variation selectors and skin tones stay with the preceding character, and so does what follows a
  joiner (U+200D); two regional indicators make one flag;
- white space, no-break spaces and U+200B belong to no unit.

Then units that share a token are joined, because an attention weight cannot be divided. Every token belongs to one
word: a token of white space alone to the following word, or else to the last one.

This module knows neither files nor how a tokenizer is trained.
"""

import functools
import hashlib
import math
import random
import unicodedata
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from regard import checks
from regard.data.languages import target_controls
from regard.special_tokens import SpecialTokens

TOKENIZER_NAME = "tokenizer"
"""The default beginning of the names of a tokenizer's files."""
SOURCE, TARGET = "source", "target"
SPACE, WORD, ALONE, EXTENDS, SIGN, FLAG = "space", "word", "alone", "extends", "sign", "flag"
JOINER, ZERO_SPACE = "\u200d", "\u200b"
APOSTROPHES, HYPHENS, POINTS = "'\u2019", "-\u2010\u2011", ".,"
ENDINGS = ("s", "t", "re", "ve", "ll", "d", "m")
SHORT_PREFIX = 2
"""An apostrophe after at most this many letters ends a word: l', qu'."""
# The first and last code points of scripts without spaces.
UNSPACED = (
    (0x0E00, 0x0FFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19FF), (0x1A20, 0x1AAF), (0x3005, 0x3007),
    (0x3031, 0x3035), (0x303B, 0x303C), (0x3041, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF), (0xA9E0, 0xA9FF), (0xAA60, 0xAADF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFD),
)
_UNSPACED_STARTS = [first for first, _ in UNSPACED]


class Span(NamedTuple):
    """The characters text[start:end]."""

    start: int
    end: int


class Word(NamedTuple):
    """The characters text[start:end], and the tokens from the first to the last, both included."""

    start: int
    end: int
    first_token: int
    last_token: int


class Tokenizer(ABC):
    """Text to ids and back."""

    special: SpecialTokens
    """The ids that no text encodes to."""
    controls: Mapping[str, int] = MappingProxyType({})
    """The ids of the control tokens by their names."""
    lossless: bool
    """Whether decode(encode(text)) == normalize(text) for every text. Ours are; those of imported models are not."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size:,} ids)"

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of ids, special ones included."""

    @abstractmethod
    def normalize(self, text: str) -> str:
        """The text as the tokenizer sees it."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special ids are skipped."""

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The name of each id, for display."""

    @abstractmethod
    def spans(self, text: str) -> list[Span]:
        """For each id of encode(text), the characters of the text that it covers."""

    @abstractmethod
    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The files of this tokenizer, by their names, which begin with `name`."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return self.encode_batch([text])[0]

    def control_id(self, name: str) -> int:
        """The id of a control token."""
        if name not in self.controls:
            raise checks.wrong("name", f"a control token: {', '.join(self.controls) or 'there are none'}", repr(name))
        return self.controls[name]

    def sample(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """The ids of a randomly drawn segmentation of the text; the same for the same text, alpha and seed.

        A tokenizer with only one segmentation ignores alpha; the others say what it means.
        """
        check_alpha(alpha)
        return self.encode(text)

    def words(self, text: str) -> list[Word]:
        """The words of a text, each with its ids among those of encode(text)."""
        return group_tokens(text, self.spans(text))

    def decoded_spans(self, ids: Sequence[int]) -> list[Span]:
        """For each of these ids, its characters in decode(ids); a special id has none.

        An id ends where the decoded text of the ids up to it ends, as far as that is a prefix of the whole text.
        """
        text, spans = self.decode(ids), [Span(0, 0)]
        for count in range(1, len(ids) + 1):
            end = _common_prefix_length(self.decode(ids[:count]), text) if count < len(ids) else len(text)
            spans.append(Span(spans[-1].end, max(end, spans[-1].end)))
        return spans[1:]

    def decoded_words(self, ids: Sequence[int]) -> list[Word]:
        """The words of decode(ids), each with its ids; a special id belongs to no word."""
        excluded = self.special.ids()
        return group_tokens(self.decode(ids), self.decoded_spans(ids), [id_ in excluded for id_ in ids])

    @property
    def sha256(self) -> str:
        """The sha256 of its files, which identifies this tokenizer."""
        return hash_files(self.files())


def hash_files(files: Mapping[str, bytes]) -> str:
    """One sha256 of several files, including their names and lengths."""
    whole = hashlib.sha256()
    for name, data in sorted(files.items()):
        whole.update(f"{name}\n{len(data)}\n".encode())
        whole.update(data)
    return whole.hexdigest()


def check_text(text: object, argument: str = "text") -> str:
    """Refuse what is not text, and text that no file can hold."""
    if not isinstance(text, str):
        raise checks.wrong(argument, "text", checks.kind(text)[0])
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            got = f"text with the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
            remedy = "It is half of a character: read the text again with the encoding that it was written in."
            raise checks.wrong(argument, "text of whole characters", got, remedy) from None
    return text


def check_ids(ids: Sequence[int], size: int) -> None:
    """Refuse ids that the tokenizer does not have."""
    for id_ in ids:
        if not 0 <= id_ < size:
            raise checks.wrong("ids", f"at least 0 and below {size}, the size of the tokenizer", f"one with {id_}")


def check_alpha(alpha: float, below: float = math.inf) -> None:
    """Refuse an invalid strength of sampling."""
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha < below:
        limit = "" if below == math.inf else f" and below {below:g}"
        raise checks.wrong("alpha", f"a number, at least 0{limit}", repr(alpha))


def seeded_random(seed: int) -> random.Random:
    """A random generator with this seed."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise checks.wrong("seed", "a whole number", repr(seed))
    return random.Random(seed)


def _common_prefix_length(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    return next((at for at, (first, second) in enumerate(zip(one, other, strict=False)) if first != second),
                min(len(one), len(other)))


@dataclass(frozen=True)
class PairTokenizer:
    """Two tokenizers; `PairTokenizer(one, one)` is joint."""

    source: Tokenizer
    target: Tokenizer
    controls: tuple[str, ...] = ()
    """The names of the control tokens before every source. They are not stored with the tokenizers."""

    def __repr__(self) -> str:
        return f"PairTokenizer({self.source!r}, {'joint' if self.joint else repr(self.target)})"

    @property
    def joint(self) -> bool:
        """Whether both are the same object."""
        return self.source is self.target

    @property
    def source_end(self) -> int:
        """The id after every source; if several ids end a text, the first of them."""
        ends = self.source.special.end
        if not ends:
            raise checks.wrong("source", "a tokenizer with an end id, which follows every source", "one without")
        return ends[0]

    def with_controls(self, *names: str) -> "PairTokenizer":
        """The same tokenizers, with these control tokens before every source."""
        for name in names:
            self.source.control_id(name)
        return replace(self, controls=names)

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """The encoder input of each text. If the model knows several target languages, one must have been chosen."""
        if self.source.controls and not self.controls and (known := target_controls(self.source.controls)):
            raise ValueError(f"This model translates into {', '.join(known)}: choose one of them, as "
                             'translator.into("...") does, or to="...".')
        before, end = [self.source.control_id(name) for name in self.controls], self.source_end
        return [[*before, *ids, end] for ids in self.source.encode_batch(texts)]

    def source_words(self, text: str) -> list[Word]:
        """The words of a source, each with its ids among those of `encode_sources`, after the control tokens."""
        before = len(self.controls)
        return [word._replace(first_token=word.first_token + before, last_token=word.last_token + before)
                for word in self.source.words(text)]

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each target, without start and end."""
        return self.target.encode_batch(texts)

    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The files of both: tokenizer.* of a joint one, tokenizer.source.* and tokenizer.target.* otherwise."""
        if self.joint:
            return self.source.files(name)
        return {**self.source.files(f"{name}.{SOURCE}"), **self.target.files(f"{name}.{TARGET}")}

    @property
    def sha256(self) -> str:
        """The sha256 of their files, which identifies them."""
        return hash_files(self.files())


def find_units(text: str) -> list[Span]:
    """The units of a text, in order."""
    found: list[Span] = []
    start, before = 0, SPACE
    for at, character in enumerate(text):
        kind = _character_kind(character)
        joins = _joins_unit(text, at, before, kind)
        if kind == SIGN and before == WORD and _is_inner_mark(text, at):
            kind = WORD
            joins = character not in APOSTROPHES or not _opens_ending(text, at)
        elif kind == WORD and before == WORD and text[at - 1] in APOSTROPHES:
            joins = at - 1 == start or at - 1 - start > SHORT_PREFIX
        if not joins:
            if before != SPACE:
                found.append(Span(start, at))
            start = at
            before = SIGN if kind == EXTENDS else kind
        elif kind == FLAG:
            before = SIGN  # the second half completes a flag
    if before != SPACE:
        found.append(Span(start, len(text)))
    return found


def group_tokens(text: str, spans: Sequence[Span], excluded: Sequence[bool] | None = None) -> list[Word]:
    """The words of a text whose tokens have these spans; tokens that are `excluded` belong to no word."""
    found = find_units(text)
    unit_of = _unit_of_characters(found, len(text))
    words: list[Word] = []
    pending: int | None = None  # the first of some tokens of white space, which belong to the next word
    last_unit = -1
    for token, span in enumerate(spans):
        if excluded is not None and excluded[token]:
            continue
        touched = [unit_of[at] for at in range(span.start, span.end) if unit_of[at] >= 0]
        if not touched:
            pending = token if pending is None else pending
        elif touched[0] <= last_unit:
            word = words[-1]
            words[-1] = word._replace(end=max(word.end, found[touched[-1]].end), last_token=token)
            pending = None
        else:
            words.append(Word(found[touched[0]].start, found[touched[-1]].end, token if pending is None else pending,
                              token))
            pending = None
        last_unit = max(last_unit, touched[-1]) if touched else last_unit
    if pending is not None and words:
        last = max(token for token in range(len(spans)) if excluded is None or not excluded[token])
        words[-1] = words[-1]._replace(last_token=last)
    return words


def _unit_of_characters(found: Sequence[Span], length: int) -> list[int]:
    """For each character the index of its unit, or -1."""
    unit_of = [-1] * length
    for index, (start, end) in enumerate(found):
        unit_of[start:end] = [index] * (end - start)
    return unit_of


def _joins_unit(text: str, at: int, before: str, kind: str) -> bool:
    """Whether the character belongs to the preceding unit, whose kind is `before`."""
    if kind == SPACE or before == SPACE:
        return kind == before
    if kind == EXTENDS or text[at - 1] == JOINER:
        return True
    if kind == SIGN:
        return before == SIGN and text[at - 1] == text[at]
    return kind == before and kind != ALONE


def _is_inner_mark(text: str, at: int) -> bool:
    """Whether this is an apostrophe or a hyphen between letters, or a point between digits."""
    if not 0 < at < len(text) - 1:
        return False
    before, after = text[at - 1], text[at + 1]
    if text[at] in APOSTROPHES or text[at] in HYPHENS:
        return _character_kind(after) == WORD and not before.isdigit() and not after.isdigit()
    return text[at] in POINTS and before.isdigit() and after.isdigit()


def _opens_ending(text: str, at: int) -> bool:
    """Whether the letters after this apostrophe are one of the endings and complete the word."""
    end = at + 1
    while end < len(text) and end - at <= SHORT_PREFIX + 1 and _character_kind(text[end]) in (WORD, EXTENDS):
        end += 1
    return text[at + 1:end].lower() in ENDINGS


@functools.lru_cache(maxsize=4096)
def _character_kind(character: str) -> str:
    code, category = ord(character), unicodedata.category(character)
    if character.isspace() or character == ZERO_SPACE:
        return SPACE
    if category[0] == "M" or category == "Cf" or 0x1F3FB <= code <= 0x1F3FF:
        return EXTENDS
    if 0x1F1E6 <= code <= 0x1F1FF:
        return FLAG
    index = bisect_right(_UNSPACED_STARTS, code) - 1
    if category[0] in "LN" and index >= 0 and code <= UNSPACED[index][1]:
        return ALONE
    return WORD if category[0] in "LN" or character == "_" else SIGN
