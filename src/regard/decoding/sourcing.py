"""Sources read in a recording: on a GPU Python is slower than an encoder that reads a few sentences.

    encode(model, tokens)        as model.encode(tokens), recorded where that can be

Rows and lengths are rounded up, so that few recordings serve many calls; a size that is met for the first time is read
as it is. They are kept with those of the searches of the model. `why_not` says what is read as everywhere. It knows no
searches.
"""

from typing import Any

import torch
from torch import nn

from regard.attention.layer import AttentionLayer
from regard.attention.mixing import SelfAttention
from regard.blocks.block import Block
from regard.decoding.figure import every, hooked
from regard.decoding.recording import Recorder
from regard.decoding.steady import SOURCES, Places, places_of, rounded
from regard.models.contract import Memory, Tokens
from regard.models.encoder import Encoder

MOST = 1 << 14
"""Tokens of all rows, padding with them, that are read in a recording: of more, Python is not what takes time."""
KEPT = 64
"""Sizes of which recordings are kept."""


def why_not(model: object, tokens: Tokens) -> str | None:
    """Why sources are read as everywhere; None where they are read in a recording."""
    return why_no_call(model, tokens) or why_no_encoder(model)


def why_no_call(model: object, tokens: Tokens) -> str | None:
    """The same, of where and how they are asked for."""
    if tokens.ids.device.type != "cuda":
        return "Python is fast enough for a CPU"
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return "gradients are asked for, or autocast"
    return why_no_tokens(model, tokens)


def why_no_tokens(model: object, tokens: Tokens) -> str | None:
    """The same, of the tokens, and of the kind of the model."""
    encoder = getattr(model, "encoder", None)
    if not isinstance(model, nn.Module) or not isinstance(encoder, Encoder) or model.training:
        return "the model has no encoder that is a stack of blocks, or is in training mode"
    if not tokens.ids.numel() or tokens.ids.numel() > MOST or tokens.segments is not None or tokens.side != "right":
        return f"there is nothing to read, or more than {MOST:,} tokens, or segments, or padding on the left"
    return None


def why_no_encoder(model: Any) -> str | None:
    """The same, of what is inside of the encoder."""
    inside = every(model.encoder)
    for module in inside:
        if isinstance(module, Block) and not isinstance(module.mixer, SelfAttention):
            return "a block does something else than to attend"
        if isinstance(module, AttentionLayer) and module.tap.listeners:
            return "somebody listens"
    return "a module has hooks" if hooked(inside) else None


class Reader:
    """One size of sources: `rows` of `length` tokens."""

    def __init__(self, encoder: Encoder, rows: int, length: int, record: Recorder) -> None:
        self.encoder, like = encoder, encoder.embedding.tokens.weight
        with torch.inference_mode(False), torch.no_grad():
            self.ids = torch.zeros(rows, length, dtype=torch.long, device=like.device)
            self.lengths = torch.ones(rows, dtype=torch.long, device=like.device)
            self.states = like.new_zeros(rows, length, encoder.width)
        self.work = record(self._read)

    def _read(self) -> None:
        self.states.copy_(self.encoder.states(Tokens(self.ids, self.lengths)))

    def __call__(self, tokens: Tokens) -> Memory:
        """The memory of so many rows or fewer. Rows beyond them are read too, and mean nothing."""
        rows, count = tokens.ids.shape
        self.ids[:rows, :count] = tokens.ids
        self.lengths[:rows] = count if tokens.lengths is None else tokens.lengths
        self.work()
        return Memory(self.states[:rows, :count].clone(), tokens.lengths)


def encode(model: Any, tokens: Tokens) -> Memory:
    """The memory of sources, in a recording where that can be."""
    if why_no_call(model, tokens) is not None:
        return model.encode(tokens)
    places = places_of(model)
    if places.answer("encoder", lambda: why_no_encoder(model)) is not None:
        return model.encode(tokens)
    return read(places, model.encoder, tokens)


def read(places: Places, encoder: Encoder, tokens: Tokens) -> Memory:
    """The memory of sources, by a recording that is kept in these places; threads take turns."""
    with places.entered(tokens.ids):
        return reader_of(places, encoder, tokens)(tokens)


def reader_of(places: Places, encoder: Encoder, tokens: Tokens) -> Reader:
    """The reader of tokens of this size, kept with the searches' places; those used longest ago go."""
    rows, count = tokens.ids.shape
    limit = encoder.embedding.limit
    length = rounded(count, SOURCES) if limit is None else min(rounded(count, SOURCES), limit)
    key = (1 << (rows - 1).bit_length(), max(length, count), encoder.embedding.tokens.weight.dtype)
    if key not in places.readers:
        places.readers[key] = Reader(encoder, *key[:2], places.record)
        if len(places.readers) > KEPT:
            places.readers.popitem(last=False)
    places.readers.move_to_end(key)
    return places.readers[key]
