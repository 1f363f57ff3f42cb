"""The tokenizers that regard trains: subwords (sentencepiece), characters and bytes; their normalisation and sampling.

Every id stands for fixed bytes, so that encoding is lossless:

    the bytes of the ids of a text, concatenated   =   the prefix and the normalised text, as UTF-8

Decoding and spans follow from this equation, whichever rule splits the text. A character without a piece of its own is
encoded as its bytes, so nothing is unknown. The ids are, in this order: padding, unknown, start, end, mask; the 256
bytes; the pieces; the control tokens, which stand for no bytes. U+2581 (▁), which displays a space, is never part of a
piece: a typed ▁ becomes its three bytes.

Normalisation comes first:

    exact    nothing
    nfc      canonical composition (NFC): e and U+0301 become é; compatibility characters stay (NFKC would make x² x2)
    line     NFC, then every run of white space becomes one space, and none is left at the ends

White space is what `str.isspace` says except the three no-break spaces U+00A0, U+2007 and U+202F, which are part of how
French and others are written. Nothing else changes. All three are idempotent.

Subword sampling draws one of several segmentations of each word:

    unigram   P(pieces) ∝ exp(alpha · sum of their scores), over all segmentations (Kudo 2018). alpha = 0: all equally
              probable; 1: as the model has it; large: the best one alone, as in `encode`
    bpe       every merge is skipped with probability alpha (BPE-dropout, Provilkov et al. 2020). alpha = 0: `encode`

Sentencepiece is configured to change nothing; normalisation, the leading space and decoding happen here, so that they
are exact. Its random generator belongs to the whole process and cannot be reseeded per thread; sampling here draws from
the caller's generator, so that a seed gives the same pieces anywhere.
"""

import hashlib
import heapq
import json
import math
import os
import random
import re
import unicodedata
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, NamedTuple, Self

import sentencepiece

from regard import checks, config
from regard.config import Config, choice
from regard.data.tokenizer.interface import (
    TOKENIZER_NAME,
    Span,
    Tokenizer,
    check_alpha,
    check_ids,
    check_text,
    seeded_random,
)
from regard.special_tokens import SpecialTokens

TOKENIZER_FORMAT = 1
SUBWORD_MODELS = ("unigram", "bpe")
SPECIAL_IDS = SpecialTokens(padding=0, unknown=1, start=2, end=(3,), mask=4)
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
"""The names of the special ids, in the order of the ids."""
FIRST_BYTE, FIRST_PIECE = len(SPECIAL_PIECES), len(SPECIAL_PIECES) + 256
SPACE_SYMBOL = "\u2581"
CONTROL_NAME = re.compile(r"<[^\s<>]+>")
"""The form of the name of a control token."""
_SURROGATES = {code: "\ufffd" for code in range(0xDC80, 0xDD00)}
_AS_BYTES = -1
_SPACED_WORDS = re.compile(" ?[^ ]+| ")
UNKNOWN_PENALTY = 10.0
"""How far below the worst piece sentencepiece scores a character without a piece."""
CACHED_WORDS, CACHED_WORD_LENGTH = 20_000, 24
"""How many words are cached with all their segmentations, and their largest length: about 90 MB."""
ONE_BY_ONE, MULTITHREADED = 32, 2000
"""Up to how many texts are encoded one by one, which is cheaper than a batch; and how many are worth threads."""
_BYTE_PIECES = [f"<0x{value:02X}>" for value in range(256)]
_WHITE = re.compile("[\t-\r\x1c-\x20\x85\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000]+")


@dataclass(frozen=True)
class TracedText:
    """A normalised text, and for each of its characters the span of the original text that it came from."""

    text: str
    spans: list[Span]
    """Characters that were changed together all have the span of the whole group."""


def keep_text(text: str) -> str:
    """The text itself."""
    return check_text(text)


def compose_text(text: str) -> str:
    """The text in canonical composition."""
    return text if check_text(text).isascii() else unicodedata.normalize("NFC", text)


def normalize_line(text: str) -> str:
    """The text in canonical composition, with runs of white space as one space, and none at the ends."""
    if check_text(text).isascii():
        return " ".join(text.split())
    return _WHITE.sub(" ", unicodedata.normalize("NFC", text)).strip(" ")


NORMALIZATIONS: dict[str, Callable[[str], str]] = {"exact": keep_text, "nfc": compose_text, "line": normalize_line}


def trace_normalization(name: str, text: str) -> TracedText:
    """The normalised text with the origin of each of its characters."""
    check_text(text)
    if name == "exact":
        return trace_unchanged(text)
    composed = _trace_composition(text)
    return _trace_spaces(composed) if name == "line" else composed


def trace_unchanged(text: str) -> TracedText:
    """A text that was not changed."""
    return TracedText(text, [Span(at, at + 1) for at in range(len(text))])


def _trace_composition(text: str) -> TracedText:
    """NFC, group by group: no two groups affect each other."""
    if unicodedata.is_normalized("NFC", text):
        return trace_unchanged(text)
    characters: list[str] = []
    spans: list[Span] = []
    for start, end in _composition_groups(text):
        group = text[start:end]
        composed = unicodedata.normalize("NFC", group)
        characters.append(composed)
        kept = [Span(at, at + 1) for at in range(start, end)]
        spans += kept if composed == group else [Span(start, end)] * len(composed)
    return TracedText("".join(characters), spans)


def _composition_groups(text: str) -> list[Span]:
    """The groups of a text: one ends where a character neither reorders nor composes with what precedes it."""
    groups, start = [], 0
    for at in range(1, len(text)):
        before, character = text[start:at], text[at]
        if unicodedata.combining(unicodedata.normalize("NFD", character)[0]):
            continue
        together = unicodedata.normalize("NFC", before + character)
        if together == unicodedata.normalize("NFC", before) + unicodedata.normalize("NFC", character):
            groups.append(Span(start, at))
            start = at
    return [*groups, Span(start, len(text))]


def _trace_spaces(traced: TracedText) -> TracedText:
    """One space, with the span of the run, for every run of white space, and none at the ends."""
    parts: list[str] = []
    spans: list[Span] = []
    end, white = 0, Span(0, 0)
    for run in [*_WHITE.finditer(traced.text), None]:
        start = len(traced.text) if run is None else run.start()
        if start > end:
            if parts:
                parts.append(" ")
                spans.append(white)
            parts.append(traced.text[end:start])
            spans += traced.spans[end:start]
        if run is not None:
            end = run.end()
            white = Span(traced.spans[run.start()].start, traced.spans[end - 1].end)
    return TracedText("".join(parts), spans)


class LosslessTokenizer(Tokenizer):
    """A tokenizer whose every id stands for fixed bytes; subclasses split a text into ids.

    Args:
        surfaces: the text of each piece, that is of the ids that are neither special nor bytes.
        normalization: the name of the normalisation.
        prefix: prepended to every text that is not empty, so that its first word is encoded like any other.
        controls: the names of the control tokens, whose ids follow those of the pieces.
    """

    lossless = True

    def __init__(self, surfaces: Sequence[str], normalization: str, prefix: str = "",
                 controls: Sequence[str] = ()) -> None:
        self.special, self.normalization, self.prefix = SPECIAL_IDS, normalization, prefix
        self.surfaces = (*[b""] * FIRST_BYTE, *(bytes((value,)) for value in range(256)), *map(str.encode, surfaces),
                         *[b""] * len(controls))
        """The bytes of each id; special ids and control tokens have none."""
        self.controls = {name: len(self.surfaces) - len(controls) + at for at, name in enumerate(controls)}
        if len(self.controls) < len(controls) or not all(map(CONTROL_NAME.fullmatch, controls)):
            raise checks.wrong("controls", "names such as <2fr>, each of them once", ", ".join(controls))
        self._normalize = NORMALIZATIONS[normalization]

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts that are normalised, not empty, and begin with the prefix."""

    @property
    def size(self) -> int:
        return len(self.surfaces)

    @property
    def first_control(self) -> int:
        """The id after the last piece."""
        return len(self.surfaces) - len(self.controls)

    @abstractmethod
    def with_controls(self, names: Sequence[str]) -> Self:
        """The same tokenizer with these control tokens."""

    def normalize(self, text: str) -> str:
        return self._normalize(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._tokenize(list(map(self._normalize, texts)))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special ids and without the prefix.

        Bytes that are not UTF-8, which a model may produce, become U+FFFD, one for each byte.
        """
        return self._read(ids)[0]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The name of each id, for display: <pad>, <0xE2> for a byte, ▁ for a space, <2fr> for a control token."""
        check_ids(ids, self.size)
        names, first = [*self.controls], self.first_control
        return [SPECIAL_PIECES[id_] if id_ < FIRST_BYTE else f"<0x{id_ - FIRST_BYTE:02X}>" if id_ < FIRST_PIECE
                else names[id_ - first] if id_ >= first else self.surfaces[id_].decode().replace(" ", SPACE_SYMBOL)
                for id_ in ids]

    def spans(self, text: str) -> list[Span]:
        """For each id of encode(text), the characters of the text that it covers.

        A space before a piece is among its characters; the prefix is not, and white space that `normalize` removes is
        in no span. Each byte of a character has the span of the whole character, and characters that were normalised
        together all have the span of the group.
        """
        traced = trace_normalization(self.normalization, text)
        return self.locate(self._tokenize([traced.text])[0], traced, len(self.prefix))

    def decoded_spans(self, ids: Sequence[int]) -> list[Span]:
        text, prefix = self._read(ids)
        return self.locate(ids, trace_unchanged(text), prefix)

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of normalised texts."""
        ids = iter(self.tokenize([self.prefix + text for text in texts if text]))
        return [next(ids) if text else [] for text in texts]

    def _read(self, ids: Sequence[int]) -> tuple[str, int]:
        """The text of ids, and how many bytes of the prefix preceded it."""
        check_ids(ids, self.size)
        data = b"".join([self.surfaces[id_] for id_ in ids])
        prefix = self.prefix.encode()
        skipped = len(prefix) if data.startswith(prefix) else 0
        text = data[skipped:].decode("utf-8", "surrogateescape")
        return text.translate(_SURROGATES), skipped

    def locate(self, ids: Sequence[int], traced: TracedText, skipped: int) -> list[Span]:
        """The span of each id, given that the bytes of the ids are `skipped` others and then the traced text."""
        data = b"".join([self.surfaces[id_] for id_ in ids])[skipped:]
        raw = data.decode("utf-8", "surrogateescape")
        owner = [at for at, character in enumerate(raw) for _ in character.encode("utf-8", "surrogateescape")]
        ends = [max(0, end - skipped) for end in accumulate(len(self.surfaces[id_]) for id_ in ids)]
        spans = []
        for start, end in zip((0, *ends), ends, strict=False):
            if start == end:  # a special id, or only the prefix: the start of the next character
                position = traced.spans[owner[start]].start if start < len(owner) else _trace_end(traced)
                spans.append(Span(position, position))
            else:
                spans.append(Span(traced.spans[owner[start]].start, traced.spans[owner[end - 1]].end))
        return spans


def byte_ids(character: str) -> list[int]:
    """The ids of the bytes of a character."""
    return [FIRST_BYTE + value for value in character.encode()]


def _trace_end(traced: TracedText) -> int:
    return traced.spans[-1].end if traced.spans else 0


class CharacterTokenizer(LosslessTokenizer):
    """One id for each of these characters, in this order; any other is encoded as its bytes."""

    def __init__(self, characters: Sequence[str], normalization: str = "nfc", controls: Sequence[str] = ()) -> None:
        if {*map(len, characters)} - {1} or len({*characters}) < len(characters) or SPACE_SYMBOL in characters:
            raise checks.wrong("characters", f"single characters other than {SPACE_SYMBOL}, each of them once",
                               "others, or some of them twice")
        super().__init__(characters, normalization, controls=controls)
        self.characters = tuple(characters)
        self._ids = {character: FIRST_PIECE + at for at, character in enumerate(characters)}

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._tokenize_one(text) for text in texts]

    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The record, and the characters as a JSON array."""
        data = json.dumps(self.characters).encode()
        record = CharactersRecord(normalisation=self.normalization, sha256=hash_data(data),
                                  controls=tuple(self.controls) or None)
        return pack_files(name, record, {"json": data})

    def with_controls(self, names: Sequence[str]) -> "CharacterTokenizer":
        return CharacterTokenizer(self.characters, self.normalization, names)

    def _tokenize_one(self, text: str) -> list[int]:
        ids = [self._ids.get(character, -1) for character in text]
        if -1 not in ids:
            return ids
        return [part for id_, character in zip(ids, text, strict=True)
                for part in ([id_] if id_ >= 0 else byte_ids(character))]


class ByteTokenizer(LosslessTokenizer):
    """One id for each byte of the text as UTF-8; it needs no training."""

    def __init__(self, normalization: str = "exact", controls: Sequence[str] = ()) -> None:
        super().__init__((), normalization, controls=controls)

    def with_controls(self, names: Sequence[str]) -> "ByteTokenizer":
        return ByteTokenizer(self.normalization, names)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [[FIRST_BYTE + value for value in text.encode()] for text in texts]

    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The record alone."""
        record = BytesRecord(normalisation=self.normalization, controls=tuple(self.controls) or None)
        return pack_files(name, record, {})


class SentencePieceTokenizer(LosslessTokenizer):
    """A sentencepiece model that regard trained: a unigram model or byte pair encoding.

    Sentencepiece displays a space as ▁ (U+2581) and so takes a typed ▁ for a space; such a text is split at every ▁,
    which then becomes its three bytes. No text matches the control symbols, and byte fallback leaves nothing unknown.

    Args:
        data: the model as sentencepiece stores it.
        model: "unigram" or "bpe".
        normalization: the name of the normalisation of its training text.
        controls: the names of the control tokens, which the model does not have.
    """

    def __init__(self, data: bytes, model: str, normalization: str, controls: Sequence[str] = ()) -> None:
        checks.pick("model", model, dict.fromkeys(SUBWORD_MODELS))
        self._processor = load_sentencepiece(data, "data")
        count = self._processor.get_piece_size()
        names = [self._processor.id_to_piece(id_) for id_ in range(count)]
        surfaces = [name.replace(SPACE_SYMBOL, " ") for name in names[FIRST_PIECE:]]
        super().__init__(surfaces, normalization, " ", controls)
        if names[:FIRST_PIECE] != [*SPECIAL_PIECES, *_BYTE_PIECES] or self._changes_text():
            raise checks.wrong("data", "a model that regard trained", "one of another layout",
                               "`MarianTokenizer` reads models of others.")
        self.data, self.model = data, model
        scores = map(self._processor.get_score, range(FIRST_PIECE, count))
        pieces = {surface.decode(): ScoredPiece(FIRST_PIECE + at, score) for at, (surface, score) in
                  enumerate(zip(self.surfaces[FIRST_PIECE:count], scores, strict=True))}
        self._sampler: SubwordSampler = UnigramSampler(pieces) if model == "unigram" else BpeSampler(pieces)

    def with_controls(self, names: Sequence[str]) -> "SentencePieceTokenizer":
        return SentencePieceTokenizer(self.data, self.model, self.normalization, names)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        if len(texts) <= ONE_BY_ONE:
            ids = [self._processor.encode(text) for text in texts]
        else:
            ids = self._processor.encode([*texts], num_threads=1 if len(texts) < MULTITHREADED else os.cpu_count() or 1)
        for at, text in enumerate(texts):
            if SPACE_SYMBOL in text:
                ids[at] = self._tokenize_symbol(text)
        return ids

    def sample(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """The ids of a randomly drawn segmentation of the text; the module docstring defines alpha.

        For a unigram model alpha is at least 0, and smaller values sample more; for BPE it is a probability below 1,
        and larger values sample more.
        """
        check_alpha(alpha, *(() if self.model == "unigram" else (1.0,)))
        normalised, rng = self.normalize(text), seeded_random(seed)
        return self._sampler.sample_text(self.prefix + normalised, alpha, rng) if normalised else []

    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The record, and the model."""
        record = SentencePieceRecord(model=self.model, normalisation=self.normalization, sha256=hash_data(self.data),
                                     controls=tuple(self.controls) or None)
        return pack_files(name, record, {"model": self.data})

    def _tokenize_symbol(self, text: str) -> list[int]:
        """The ids of a text that contains ▁."""
        first, *others = self._processor.encode(text.split(SPACE_SYMBOL))
        return [*first, *(id_ for part in others for id_ in (*byte_ids(SPACE_SYMBOL), *part))]

    def _changes_text(self) -> bool:
        """Whether the model itself normalises: compatibility forms, runs of spaces, a leading space."""
        text = "A\ufb01  B "
        return b"".join([self.surfaces[id_] for id_ in self._processor.encode(text)]) != text.encode()


def load_sentencepiece(data: bytes, argument: str) -> sentencepiece.SentencePieceProcessor:
    """The processor of a stored model; a ValueError if it is not one."""
    if not data:  # which sentencepiece accepts silently
        raise checks.wrong(argument, "a sentencepiece model", "empty")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=data)
    except RuntimeError as error:
        raise checks.wrong(argument, "a sentencepiece model", f"none ({error})"[:200]) from error


class ScoredPiece(NamedTuple):
    """A piece of the vocabulary."""

    id: int
    score: float


class SubwordSampler(ABC):
    """Draws one of the segmentations of a text; a word is a space and what follows up to the next space."""

    @abstractmethod
    def sample_word(self, word: str, alpha: float, rng: random.Random) -> list[int]:
        """The ids of one word."""

    def sample_text(self, text: str, alpha: float, rng: random.Random) -> list[int]:
        """The ids of a text."""
        return [id_ for word in _SPACED_WORDS.findall(text) for id_ in self.sample_word(word, alpha, rng)]


class _NextPieces(NamedTuple):
    """The pieces that may follow at one position of a word, with their cumulative probabilities."""

    sums: list[float]
    ids: list[int]
    """The id of each piece; `_AS_BYTES` for a character without one."""
    ends: list[int]
    """The position after each piece."""


class UnigramSampler(SubwordSampler):
    """Draws from all segmentations of a word, each with its probability."""

    def __init__(self, pieces: Mapping[str, ScoredPiece]) -> None:
        self._pieces = pieces
        self._longest = max(map(len, pieces), default=1)
        self._unknown = min((piece.score for piece in pieces.values()), default=0.0) - UNKNOWN_PENALTY
        self._cache: dict[float, dict[str, list[_NextPieces]]] = {}

    def sample_word(self, word: str, alpha: float, rng: random.Random) -> list[int]:
        cached = self._cache.get(alpha)
        if cached is None:  # only one alpha is cached: a training uses only one
            cached = {}
            self._cache = {alpha: cached}
        following = cached.get(word)
        if following is None:
            following = self._next_pieces(word, alpha)
            if len(word) <= CACHED_WORD_LENGTH and len(cached) < CACHED_WORDS:  # frequent words come first
                cached[word] = following
        ids: list[int] = []
        at = 0
        while at < len(word):
            sums, pieces, ends = following[at]
            chosen = min(bisect_right(sums, rng.random() * sums[-1]), len(sums) - 1) if len(sums) > 1 else 0
            if pieces[chosen] == _AS_BYTES:
                ids += byte_ids(word[at])
            else:
                ids.append(pieces[chosen])
            at = ends[chosen]
        return ids

    def _next_pieces(self, word: str, alpha: float) -> list[_NextPieces]:
        """The pieces that may follow at each position; total[i] is the log-sum over all segmentations of word[i:]."""
        check_alpha(alpha)
        total = [0.0] * (len(word) + 1)
        following: list[_NextPieces] = [_NextPieces([], [], [])] * len(word)
        for at in reversed(range(len(word))):
            ids, ends, scores = [], [], []
            for end in range(at + 1, min(at + self._longest, len(word)) + 1):
                piece = self._pieces.get(word[at:end])
                if piece is not None:
                    ids.append(piece.id)
                    ends.append(end)
                    scores.append(alpha * piece.score + total[end])
            if word[at] not in self._pieces:
                ids.append(_AS_BYTES)
                ends.append(at + 1)
                scores.append(alpha * self._unknown + total[at + 1])
            best = max(scores)
            shares = [math.exp(score - best) for score in scores]
            total[at] = best + math.log(sum(shares))
            following[at] = _NextPieces([*accumulate(shares)], ids, ends)
        return following


class BpeSampler(SubwordSampler):
    """Merges the characters of a word, the best merge first, and skips each merge with a probability."""

    def __init__(self, pieces: Mapping[str, ScoredPiece]) -> None:
        self._pieces = pieces

    def sample_word(self, word: str, alpha: float, rng: random.Random) -> list[int]:
        parts: list[str] = [*word]  # a part that was merged into its left neighbour is empty
        before, after = [*range(-1, len(word) - 1)], [*range(1, len(word) + 1)]
        waiting: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < len(parts):
                merged = self._pieces.get(parts[left] + parts[right])
                if merged is not None:
                    heapq.heappush(waiting, (-merged.score, left, right, len(parts[left]) + len(parts[right])))

        for left in range(len(word) - 1):
            offer(left, left + 1)
        while waiting:
            _, left, right, length = heapq.heappop(waiting)
            stale = not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != length
            if stale or (alpha and rng.random() < alpha):
                continue
            parts[left] += parts[right]
            parts[right] = ""
            after[left] = after[right]
            if after[right] < len(parts):
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [id_ for part in parts if part for id_ in self._ids(part)]

    def _ids(self, part: str) -> list[int]:
        piece = self._pieces.get(part)
        return byte_ids(part) if piece is None else [piece.id]


@dataclass(frozen=True, kw_only=True)
class SentencePieceRecord(Config):
    """The record of a sentencepiece model. Records keep their keys: a tokenizer's sha256 is that of its files."""

    kind: ClassVar[str] = "sentencepiece"
    suffixes: ClassVar[Mapping[str, str]] = {"model": "sha256"}
    model: str = choice(SUBWORD_MODELS)
    normalisation: str = choice(NORMALIZATIONS)
    sha256: str
    controls: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class CharactersRecord(Config):
    """The record of a list of characters."""

    kind: ClassVar[str] = "characters"
    suffixes: ClassVar[Mapping[str, str]] = {"json": "sha256"}
    normalisation: str = choice(NORMALIZATIONS)
    sha256: str
    controls: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class BytesRecord(Config):
    """The record of a byte tokenizer, which has no data."""

    kind: ClassVar[str] = "bytes"
    suffixes: ClassVar[Mapping[str, str]] = {}
    normalisation: str = choice(NORMALIZATIONS)
    controls: tuple[str, ...] | None = None


def hash_data(data: bytes) -> str:
    """The sha256 of some data, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def pack_files(name: str, record: Config, data: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a tokenizer: its record, and its data by their suffixes. `loading.unpack_files` reads them."""
    text = config.to_toml({"format": TOKENIZER_FORMAT, "tokenizer": record})
    return {f"{name}.toml": text.encode(), **{f"{name}.{suffix}": content for suffix, content in data.items()}}
