"""Subwords of sentencepiece: a unigram model or byte pair encoding, over text that regard has normalised.

Sentencepiece is told to change nothing: normalising, the space in front of the first word and decoding are ours, so
that they are exact. It shows a space as ▁ (U+2581) and so takes a typed ▁ for a space; such a text is cut at every ▁,
which then becomes its three bytes. Its control symbols are matched by no text, and its byte fallback leaves nothing
unknown.
"""

import os
from collections.abc import Sequence

import sentencepiece

from regard import checks
from regard.data.tokenizer.contract import NAME, chance, check_alpha
from regard.data.tokenizer.record import MODELS, SentencePieceRecord, packed, sha256
from regard.data.tokenizer.sampling import BpeSampler, Piece, Sampler, UnigramSampler
from regard.data.tokenizer.surface import FIRST_PIECE, SHOWN, SPACE_SHOWN, SurfaceTokenizer, byte_ids

FEW, MANY = 32, 2000
"""Up to how many texts are cut one by one, as a call for several costs more; and how many are worth several threads."""
_BYTES = [f"<0x{value:02X}>" for value in range(256)]


class SentencePieceTokenizer(SurfaceTokenizer):
    """A sentencepiece model that `regard.data.tokenizer.training` made.

    Args:
        data: the model as sentencepiece stores it.
        model: "unigram" or "bpe", what it was trained as.
        normalisation: what was done to its training text, by its name.
    """

    def __init__(self, data: bytes, model: str, normalisation: str) -> None:
        checks.pick("model", model, dict.fromkeys(MODELS))
        self._processor = loaded(data, "data")
        count = self._processor.get_piece_size()
        names = [self._processor.id_to_piece(id_) for id_ in range(count)]
        super().__init__([name.replace(SPACE_SHOWN, " ") for name in names[FIRST_PIECE:]], normalisation, " ")
        if names[:FIRST_PIECE] != [*SHOWN, *_BYTES] or self._changes_text():
            raise checks.wrong("data", "a model that regard trained", "one of another layout",
                               "Models of others are read by `regard.data.tokenizer.marian`.")
        self.data, self.model = data, model
        scores = map(self._processor.get_score, range(FIRST_PIECE, count))
        pieces = {surface.decode(): Piece(FIRST_PIECE + at, score) for at, (surface, score) in
                  enumerate(zip(self.surfaces[FIRST_PIECE:], scores, strict=True))}
        self._sampler: Sampler = UnigramSampler(pieces) if model == "unigram" else BpeSampler(pieces)

    def cut(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of normalised texts, each with a space in front."""
        if len(texts) <= FEW:
            ids = [self._processor.encode(text) for text in texts]
        else:
            ids = self._processor.encode([*texts], num_threads=1 if len(texts) < MANY else os.cpu_count() or 1)
        for at, text in enumerate(texts):
            if SPACE_SHOWN in text:
                ids[at] = self._apart(text)
        return ids

    def sample(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """The ids of one of the ways to cut the text; `regard.data.tokenizer.sampling` says what alpha means.

        For a unigram model alpha is at least 0, and a smaller one samples more; for BPE it is a probability below 1,
        and a larger one samples more.
        """
        check_alpha(alpha, *(() if self.model == "unigram" else (1.0,)))
        normalised, source = self.normalise(text), chance(seed)
        return self._sampler.text(self.prefix + normalised, alpha, source) if normalised else []

    def files(self, name: str = NAME) -> dict[str, bytes]:
        """The record, and the model."""
        record = SentencePieceRecord(model=self.model, normalisation=self.normalisation, sha256=sha256(self.data))
        return packed(name, record, {"model": self.data})

    def _apart(self, text: str) -> list[int]:
        """The ids of a text with ▁ in it."""
        first, *others = self._processor.encode(text.split(SPACE_SHOWN))
        return [*first, *(id_ for part in others for id_ in (*byte_ids(SPACE_SHOWN), *part))]

    def _changes_text(self) -> bool:
        """Whether the model normalises by rules of its own: compatibility forms, runs of spaces, a space in front."""
        text = "A\ufb01  B "
        return b"".join([self.surfaces[id_] for id_ in self._processor.encode(text)]) != text.encode()


def loaded(data: bytes, argument: str) -> sentencepiece.SentencePieceProcessor:
    """The processor of a model as sentencepiece stores it; a ValueError where it is none."""
    if not data:  # which sentencepiece takes without a word
        raise checks.wrong(argument, "a model of sentencepiece", "empty")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=data)
    except RuntimeError as error:
        raise checks.wrong(argument, "a model of sentencepiece", f"none ({error})"[:200]) from error
