"""The tokenizers that regard trains: subwords (sentencepiece), characters and bytes; their normalisation and sampling.

Every id stands for fixed bytes, so that encoding is lossless:

    the bytes of the ids of a text, concatenated   =   the prefix and the normalised text, as UTF-8

Decoding and spans follow from this equation, whichever rule splits the text. A character without a piece of its own is
encoded as its bytes, so nothing is unknown. The ids are, in this order: padding, unknown, start, end, mask; the 256
bytes; the pieces. U+2581 (▁), which displays a space, is never part of a piece: a typed ▁ becomes its three bytes.

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
from typing import Any, ClassVar, NamedTuple

import sentencepiece

from regard import checks, config, toml
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

_WHITE = re.compile("[\t-\r\x1c-\x20\x85\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000]+")


@dataclass(frozen=True)
class TracedText:
    """A normalised text, and for each of its characters those of the given text that it was made of."""

    text: str
    spans: list[Span]
    """Where several characters were changed together, each of them has the span of all."""


def keep_text(text: str) -> str:
    """The text itself."""
    return check_text(text)


def compose_text(text: str) -> str:
    """The text in canonical composition."""
    return text if check_text(text).isascii() else unicodedata.normalize("NFC", text)


def normalise_line(text: str) -> str:
    """The text in canonical composition, with one space for every run of white space, and none at the ends."""
    if check_text(text).isascii():
        return " ".join(text.split())
    return _WHITE.sub(" ", unicodedata.normalize("NFC", text)).strip(" ")


NORMALISATIONS: dict[str, Callable[[str], str]] = {"exact": keep_text, "nfc": compose_text, "line": normalise_line}


def trace_normalisation(name: str, text: str) -> TracedText:
    """The normalised text, with where each of its characters came from."""
    check_text(text)
    if name == "exact":
        return trace_unchanged(text)
    composed = _trace_composition(text)
    return _trace_spaces(composed) if name == "line" else composed


def trace_unchanged(text: str) -> TracedText:
    """A text that is as it was given."""
    return TracedText(text, [Span(at, at + 1) for at in range(len(text))])


def _trace_composition(text: str) -> TracedText:
    """NFC, one group of characters after another, as no two groups change each other."""
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
    """The text in groups: a new one begins where a character neither reorders nor composes with what is before it."""
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
    """One space for every run of white space, with the span of the run, and none at the ends."""
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


# ---- record: What is stored beside a tokenizer's data: of which kind it is, and the sha256 of the data, so that a swap is seen.
#
#     tokenizer.toml     the record
#     tokenizer.model    the data of a sentencepiece model; other kinds have other endings
#
# A record is a config, read as strictly as any other. This file packs and unpacks; it does not make tokenizers.

TOKENIZER_FORMAT = 1
SUBWORD_MODELS = ("unigram", "bpe")


@dataclass(frozen=True, kw_only=True)
class SentencePieceRecord(Config):
    """A sentencepiece model that regard trained."""

    kind: ClassVar[str] = "sentencepiece"
    endings: ClassVar[Mapping[str, str]] = {"model": "sha256"}
    model: str = choice(SUBWORD_MODELS)
    normalisation: str = choice(NORMALISATIONS)
    sha256: str


@dataclass(frozen=True, kw_only=True)
class CharactersRecord(Config):
    """A list of characters."""

    kind: ClassVar[str] = "characters"
    endings: ClassVar[Mapping[str, str]] = {"json": "sha256"}
    normalisation: str = choice(NORMALISATIONS)
    sha256: str


@dataclass(frozen=True, kw_only=True)
class BytesRecord(Config):
    """Bytes, which need no data."""

    kind: ClassVar[str] = "bytes"
    endings: ClassVar[Mapping[str, str]] = {}
    normalisation: str = choice(NORMALISATIONS)


@dataclass(frozen=True, kw_only=True)
class JsonRecord(Config):
    """A tokenizer.json of an imported model."""

    kind: ClassVar[str] = "json"
    endings: ClassVar[Mapping[str, str]] = {"json": "sha256"}
    special: SpecialTokens
    sha256: str


@dataclass(frozen=True, kw_only=True)
class MarianRecord(Config):
    """A sentencepiece model and a list of ids, of an imported Marian model."""

    kind: ClassVar[str] = "marian"
    endings: ClassVar[Mapping[str, str]] = {"model": "sha256", "vocab.json": "vocabulary_sha256"}
    special: SpecialTokens
    sha256: str
    vocabulary_sha256: str


AnyRecord = SentencePieceRecord | CharactersRecord | BytesRecord | JsonRecord | MarianRecord


def hash_data(data: bytes) -> str:
    """The sha256 of some data, as it is written."""
    return hashlib.sha256(data).hexdigest()


def pack_files(name: str, record: AnyRecord, data: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a tokenizer: its record, and its data by their endings."""
    text = config.to_toml({"format": TOKENIZER_FORMAT, "tokenizer": record})
    return {f"{name}.toml": text.encode(), **{f"{name}.{ending}": content for ending, content in data.items()}}


def unpack_files(files: Mapping[str, bytes], name: str) -> tuple[Any, dict[str, bytes]]:
    """The record of the tokenizer called `name` among these files, and its data by their endings, checked."""
    text = require_file(files, f"{name}.toml")
    try:
        read = toml.parse_document(text.decode(), f"{name}.toml")
    except UnicodeDecodeError:
        raise checks.wrong(f"{name}.toml", "a record of a tokenizer", "no UTF-8", "Restore it from a copy.") from None
    version = read.tables.get("format")
    if isinstance(version, int) and version > TOKENIZER_FORMAT:
        raise checks.wrong(f"{name}.toml", f"of format {TOKENIZER_FORMAT}", f"of format {version}", "Install a newer regard.")
    record: Any = config.read_configs({"format": int, "tokenizer": AnyRecord}, read)["tokenizer"]
    data = {}
    for ending, key in record.endings.items():
        data[ending] = require_file(files, f"{name}.{ending}")
        check_sha256(f"{name}.{ending}", getattr(record, key), hash_data(data[ending]))
    return record, data


def require_file(files: Mapping[str, bytes], name: str) -> bytes:
    """The file of this name; a ValueError where there is none."""
    if name not in files:
        there = ", ".join(sorted(files)[:8]) or "none"
        raise checks.wrong("files", f"with {name}", f"without it: {there}", "Restore it from a copy.")
    return files[name]


def check_sha256(name: str, recorded: str, found: str) -> None:
    """Refuse what is not as it was recorded."""
    if found != recorded:
        raise checks.wrong(name, f"as it was recorded, with sha256 {recorded}", f"another, with sha256 {found}",
                           "A model works with its own tokenizer alone: restore the one that it was trained with.")


# ---- surface: Tokenizers whose every id stands for certain bytes: what they share.
#
#     the ids of a text   →   their bytes, one after another   =   the prefix and the normalised text, as UTF-8
#
# From this equation follow decoding and spans, whatever rule cuts the text, and so they are written here, once. A
# character that has no piece of its own is cut into its bytes, so there is an id for everything, and no unknown.
#
# The ids are, in this order: padding, unknown, start, end, mask; the 256 bytes; the pieces. U+2581 (▁), by which a space
# is shown, is never part of a piece: who types it gets its three bytes, and it comes back as it was typed.
#
# This file does not know how a text is cut.

SPECIAL_IDS = SpecialTokens(padding=0, unknown=1, start=2, end=(3,), mask=4)
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
"""What the special ids are called, in the order of their ids."""
FIRST_BYTE, FIRST_PIECE = len(SPECIAL_PIECES), len(SPECIAL_PIECES) + 256
SPACE_SYMBOL = "\u2581"
_SURROGATES = {code: "\ufffd" for code in range(0xDC80, 0xDD00)}


class LosslessTokenizer(Tokenizer):
    """A tokenizer with bytes for every id.

    Args:
        surfaces: the text of each piece, of those ids that are neither special nor bytes.
        normalisation: what is done to a text first, by its name.
        prefix: what is set in front of every text that is not empty, so that its first word is cut like any other.
    """

    exact = True

    def __init__(self, surfaces: Sequence[str], normalisation: str, prefix: str = "") -> None:
        self.special, self.normalisation, self.prefix = SPECIAL_IDS, normalisation, prefix
        self.surfaces = (*[b""] * FIRST_BYTE, *(bytes((value,)) for value in range(256)), *map(str.encode, surfaces))
        """The bytes of each id; a special id has none."""
        self._normalise = NORMALISATIONS[normalisation]

    @abstractmethod
    def cut(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts that are normalised, not empty, and have the prefix."""

    @property
    def size(self) -> int:
        """How many ids there are, the special ones among them."""
        return len(self.surfaces)

    def normalise(self, text: str) -> str:
        """The text as the tokenizer sees it: see `regard.data.tokenizer.subwords`."""
        return self._normalise(text)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return self._cut(list(map(self._normalise, texts)))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without those that are special, and without the prefix.

        Bytes that are no UTF-8, as a model may write them, become U+FFFD, one for each byte.
        """
        return self._read(ids)[0]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id is called, to be shown: <pad>, <0xE2> for a byte, and ▁ in the place of a space."""
        check_ids(ids, self.size)
        return [SPECIAL_PIECES[id_] if id_ < FIRST_BYTE else f"<0x{id_ - FIRST_BYTE:02X}>" if id_ < FIRST_PIECE
                else self.surfaces[id_].decode().replace(" ", SPACE_SYMBOL) for id_ in ids]

    def spans(self, text: str) -> list[Span]:
        """For each id of encode(text), the characters of the text that it stands for.

        A space in front of a piece is among its characters; the prefix is not, and white space that `normalise` takes
        away is in no span. The bytes of a character each have the span of the whole character, and where several
        characters were normalised together, all that is made of them has the span of them all.
        """
        traced = trace_normalisation(self.normalisation, text)
        return self._place(self._cut([traced.text])[0], traced, len(self.prefix))

    def decoded_spans(self, ids: Sequence[int]) -> list[Span]:
        """For each of these ids, its characters in decode(ids); a special id has none of them."""
        text, prefix = self._read(ids)
        return self._place(ids, trace_unchanged(text), prefix)

    def _cut(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of normalised texts."""
        given = iter(self.cut([self.prefix + text for text in texts if text]))
        return [next(given) if text else [] for text in texts]

    def _read(self, ids: Sequence[int]) -> tuple[str, int]:
        """The text of ids, and how many bytes of a prefix were in front of it."""
        check_ids(ids, self.size)
        data = b"".join([self.surfaces[id_] for id_ in ids])
        prefix = self.prefix.encode()
        skipped = len(prefix) if data.startswith(prefix) else 0
        text = data[skipped:].decode("utf-8", "surrogateescape")
        return text.translate(_SURROGATES), skipped

    def _place(self, ids: Sequence[int], traced: TracedText, skipped: int) -> list[Span]:
        """The span of each id, where the bytes of the ids are those of the traced text after `skipped` others."""
        data = b"".join([self.surfaces[id_] for id_ in ids])[skipped:]
        raw = data.decode("utf-8", "surrogateescape")
        owner = [at for at, character in enumerate(raw) for _ in character.encode("utf-8", "surrogateescape")]
        ends = [max(0, end - skipped) for end in accumulate(len(self.surfaces[id_]) for id_ in ids)]
        spans = []
        for start, end in zip((0, *ends), ends, strict=False):
            if start == end:  # a special id, or the prefix alone: where the next character begins
                place = traced.spans[owner[start]].start if start < len(owner) else _trace_end(traced)
                spans.append(Span(place, place))
            else:
                spans.append(Span(traced.spans[owner[start]].start, traced.spans[owner[end - 1]].end))
        return spans


def piece_ids(tokenizer: LosslessTokenizer) -> dict[str, int]:
    """The id of each piece, by its text."""
    return {surface.decode(): FIRST_PIECE + at for at, surface in enumerate(tokenizer.surfaces[FIRST_PIECE:])}


def byte_ids(character: str) -> list[int]:
    """The ids of the bytes of a character."""
    return [FIRST_BYTE + value for value in character.encode()]


def _trace_end(traced: TracedText) -> int:
    return traced.spans[-1].end if traced.spans else 0


# ---- characters: Tokenizers without subwords: one id for each character, or one for each byte.
#
# `CharacterTokenizer` has the characters that it was made with; any other is cut into its bytes. `ByteTokenizer` has
# nothing but the bytes, and needs no training. There is one way to cut a text, so `sample` is `encode`.


class CharacterTokenizer(LosslessTokenizer):
    """One id for each of these characters, in this order, and the bytes of any other."""

    def __init__(self, characters: Sequence[str], normalisation: str = "nfc") -> None:
        if {*map(len, characters)} - {1} or len({*characters}) < len(characters) or SPACE_SYMBOL in characters:
            got = "others, or some of them twice"
            raise checks.wrong("characters", f"single characters other than {SPACE_SYMBOL}, each of them once", got)
        super().__init__(characters, normalisation)
        self.characters = tuple(characters)
        self._ids = piece_ids(self)

    def cut(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of normalised texts."""
        return [self._one(text) for text in texts]

    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The record, and the characters as a JSON array."""
        data = json.dumps(self.characters).encode()
        return pack_files(name, CharactersRecord(normalisation=self.normalisation, sha256=hash_data(data)), {"json": data})

    def _one(self, text: str) -> list[int]:
        ids = [self._ids.get(character, -1) for character in text]
        if -1 not in ids:
            return ids
        return [part for id_, character in zip(ids, text, strict=True)
                for part in ([id_] if id_ >= 0 else byte_ids(character))]


class ByteTokenizer(LosslessTokenizer):
    """One id for each byte of the text as UTF-8."""

    def __init__(self, normalisation: str = "exact") -> None:
        super().__init__((), normalisation)

    def cut(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of normalised texts."""
        return [[FIRST_BYTE + value for value in text.encode()] for text in texts]

    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The record alone."""
        return pack_files(name, BytesRecord(normalisation=self.normalisation), {})


# ---- sentencepieces: Subwords of sentencepiece: a unigram model or byte pair encoding, over text that regard has normalised.
#
# Sentencepiece is told to change nothing: normalising, the space in front of the first word and decoding are ours, so
# that they are exact. It shows a space as ▁ (U+2581) and so takes a typed ▁ for a space; such a text is cut at every ▁,
# which then becomes its three bytes. Its control symbols are matched by no text, and its byte fallback leaves nothing
# unknown.

ONE_BY_ONE, MULTITHREADED = 32, 2000
"""Up to how many texts are cut one by one, as a call for several costs more; and how many are worth several threads."""
_BYTE_PIECES = [f"<0x{value:02X}>" for value in range(256)]


class SentencePieceTokenizer(LosslessTokenizer):
    """A sentencepiece model that `regard.data.tokenizer.training` made.

    Args:
        data: the model as sentencepiece stores it.
        model: "unigram" or "bpe", what it was trained as.
        normalisation: what was done to its training text, by its name.
    """

    def __init__(self, data: bytes, model: str, normalisation: str) -> None:
        checks.pick("model", model, dict.fromkeys(SUBWORD_MODELS))
        self._processor = load_sentencepiece(data, "data")
        count = self._processor.get_piece_size()
        names = [self._processor.id_to_piece(id_) for id_ in range(count)]
        super().__init__([name.replace(SPACE_SYMBOL, " ") for name in names[FIRST_PIECE:]], normalisation, " ")
        if names[:FIRST_PIECE] != [*SPECIAL_PIECES, *_BYTE_PIECES] or self._changes_text():
            raise checks.wrong("data", "a model that regard trained", "one of another layout",
                               "Models of others are read by `regard.data.tokenizer.loading`.")
        self.data, self.model = data, model
        scores = map(self._processor.get_score, range(FIRST_PIECE, count))
        pieces = {surface.decode(): ScoredPiece(FIRST_PIECE + at, score) for at, (surface, score) in
                  enumerate(zip(self.surfaces[FIRST_PIECE:], scores, strict=True))}
        self._sampler: SubwordSampler = UnigramSampler(pieces) if model == "unigram" else BpeSampler(pieces)

    def cut(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of normalised texts, each with a space in front."""
        if len(texts) <= ONE_BY_ONE:
            ids = [self._processor.encode(text) for text in texts]
        else:
            ids = self._processor.encode([*texts], num_threads=1 if len(texts) < MULTITHREADED else os.cpu_count() or 1)
        for at, text in enumerate(texts):
            if SPACE_SYMBOL in text:
                ids[at] = self._apart(text)
        return ids

    def sample(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """The ids of one of the ways to cut the text; `regard.data.tokenizer.subwords` says what alpha means.

        For a unigram model alpha is at least 0, and a smaller one samples more; for BPE it is a probability below 1,
        and a larger one samples more.
        """
        check_alpha(alpha, *(() if self.model == "unigram" else (1.0,)))
        normalised, source = self.normalise(text), seeded_random(seed)
        return self._sampler.text(self.prefix + normalised, alpha, source) if normalised else []

    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The record, and the model."""
        record = SentencePieceRecord(model=self.model, normalisation=self.normalisation, sha256=hash_data(self.data))
        return pack_files(name, record, {"model": self.data})

    def _apart(self, text: str) -> list[int]:
        """The ids of a text with ▁ in it."""
        first, *others = self._processor.encode(text.split(SPACE_SYMBOL))
        return [*first, *(id_ for part in others for id_ in (*byte_ids(SPACE_SYMBOL), *part))]

    def _changes_text(self) -> bool:
        """Whether the model normalises by rules of its own: compatibility forms, runs of spaces, a space in front."""
        text = "A\ufb01  B "
        return b"".join([self.surfaces[id_] for id_ in self._processor.encode(text)]) != text.encode()


def load_sentencepiece(data: bytes, argument: str) -> sentencepiece.SentencePieceProcessor:
    """The processor of a model as sentencepiece stores it; a ValueError where it is none."""
    if not data:  # which sentencepiece takes without a word
        raise checks.wrong(argument, "a model of sentencepiece", "empty")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=data)
    except RuntimeError as error:
        raise checks.wrong(argument, "a model of sentencepiece", f"none ({error})"[:200]) from error


# ---- sampling: Subword sampling: a word is cut now one way, now another, so that a model meets pieces in more than one company.
#
#     unigram   P(pieces) ∝ exp(alpha · sum of their scores), over all ways to cut the word (Kudo 2018). alpha = 0: every
#               way is as probable as any other; 1: as the model has it; large: the best way alone, as in `encode`
#     bpe       every merge is left out with probability alpha (Provilkov et al. 2020). alpha = 0: as in `encode`
#
# A word is a space and what follows up to the next space; no piece reaches across, so words are drawn one after another.
# The generator of sentencepiece belongs to the whole process and cannot be set again within a thread; here the numbers
# come from the caller's own source, so that the same seed gives the same pieces anywhere.
#
# This file knows pieces by their text, with spaces as spaces. It does not know files, nor sentencepiece.

_AS_BYTES = -1
_SPACED_WORDS = re.compile(" ?[^ ]+| ")
UNKNOWN_PENALTY = 10.0
"""How far below the worst piece a character without a piece is scored, as in sentencepiece."""
CACHED_WORDS, CACHED_WORD_LENGTH = 20_000, 24
"""How many words are remembered with all their ways, and how many characters such a word has at most: some 90 MB."""


class ScoredPiece(NamedTuple):
    """A piece of the vocabulary."""

    id: int
    score: float


class SubwordSampler(ABC):
    """Draws one of the ways to cut a text."""

    @abstractmethod
    def word(self, word: str, alpha: float, chance: random.Random) -> list[int]:
        """The ids of one word."""

    def text(self, text: str, alpha: float, chance: random.Random) -> list[int]:
        """The ids of a text."""
        return [id_ for word in _SPACED_WORDS.findall(text) for id_ in self.word(word, alpha, chance)]


class _NextPieces(NamedTuple):
    """From one place in a word: the probabilities of the pieces that may follow, summed up, and what they lead to."""

    sums: list[float]
    ids: list[int]
    """Of each piece its id; BYTES for a character that has none."""
    ends: list[int]
    """The place behind each piece."""


class UnigramSampler(SubwordSampler):
    """Draws from all ways to cut a word, each with its probability."""

    def __init__(self, pieces: Mapping[str, ScoredPiece]) -> None:
        self._pieces = pieces
        self._longest = max(map(len, pieces), default=1)
        self._unknown = min((piece.score for piece in pieces.values()), default=0.0) - UNKNOWN_PENALTY
        self._known: dict[float, dict[str, list[_NextPieces]]] = {}

    def word(self, word: str, alpha: float, chance: random.Random) -> list[int]:
        """The ids of one word."""
        known = self._known.get(alpha)
        if known is None:  # one alpha is remembered: who trains has but one
            known = {}
            self._known = {alpha: known}
        ways = known.get(word)
        if ways is None:
            ways = self._ways(word, alpha)
            if len(word) <= CACHED_WORD_LENGTH and len(known) < CACHED_WORDS:  # the frequent words come first
                known[word] = ways
        ids: list[int] = []
        at = 0
        while at < len(word):
            sums, pieces, ends = ways[at]
            chosen = min(bisect_right(sums, chance.random() * sums[-1]), len(sums) - 1) if len(sums) > 1 else 0
            if pieces[chosen] == _AS_BYTES:
                ids += byte_ids(word[at])
            else:
                ids.append(pieces[chosen])
            at = ends[chosen]
        return ids

    def _ways(self, word: str, alpha: float) -> list[_NextPieces]:
        """What may follow at each place. total[i] is the logarithm of the sum over all ways to cut word[i:]."""
        check_alpha(alpha)
        total = [0.0] * (len(word) + 1)
        ways: list[_NextPieces] = [_NextPieces([], [], [])] * len(word)
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
            ways[at] = _NextPieces([*accumulate(shares)], ids, ends)
        return ways


class BpeSampler(SubwordSampler):
    """Merges the characters of a word, the best merge first, and leaves each one out with a probability."""

    def __init__(self, pieces: Mapping[str, ScoredPiece]) -> None:
        self._pieces = pieces

    def word(self, word: str, alpha: float, chance: random.Random) -> list[int]:
        """The ids of one word."""
        parts: list[str] = [*word]  # a part that was merged into the one on its left is empty
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
            if stale or (alpha and chance.random() < alpha):
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
