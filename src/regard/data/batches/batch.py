"""From the numbers of examples to tensors: inputs and labels, padded or packed, masked, labelled, in fixed shapes.

    read = StoredReader(store)                          the ids as they are in the store
    read = SamplingReader(texts, encoders, seed)        the texts encoded anew in every epoch: subword sampling
    ShiftedCollator(read, BoundaryIds.of(special), pad_sequences)      pairs for an encoder-decoder, texts for an LM
    MaskedCollator(read, special, ...)                  texts with masked tokens
    LabelledTextCollator(read, labels, ...)             texts with one label each
    ImageCollator(store, labels, shape, shift, seed)    images, each shifted by a few pixels at random
    FittedCollator(make, plan.shapes, padding)          another collator's batches, padded to one of few shapes

For a target y the inputs are [START] y and the labels y [END], so that the label at a position is the next id. Labels
of padding are IGNORED. Sequences are padded on the right (rows) or packed (one after another in a single row).

Masking (Devlin et al. 2019) chooses each token with probability `share`; most chosen tokens become the mask id, some a
random ordinary id, the rest stay. Departure: every token is chosen by (seed, epoch, number of its sequence, position),
so that a sequence is masked in the same way whichever batch it is in, and differently in the next epoch. Special ids
are never chosen and never inserted.

Padding to a shape adds positions, and rows of length 0 whose labels are IGNORED. After packed sequences come sequences
of padding, none longer than the longest, then empty ones. It adds nothing to a loss and changes no gradient. A batch
that fits into none of the shapes, because its texts were sampled into other subwords than the plan counted, gets rows
and lengths that are multiples of STEP (packed: STEP_PACKED).

This module does not know which numbers come when, nor how a text is encoded.

Legend: B rows, N positions, C channels, H height, W width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import checks
from regard.config import Config, number
from regard.data import images
from regard.data.batches.plan import BatchShape, ExampleNumbers, derive_key, random_below, random_bits, random_uniform
from regard.data.store import Ragged, TextStore, TokenStore
from regard.special_tokens import SpecialTokens
from regard.tokens import IGNORED_LABEL, AnyTokens, PackedTokens, Tokens

SequenceReader = Callable[[ExampleNumbers, int], tuple[Ragged, ...]]
"""(numbers, epoch) -> their sequences, a Ragged for each side."""
TextEncoder = Callable[[str, int], Sequence[int]]
"""(text, seed) -> ids"""
BatchLayout = Callable[[Ragged, int], AnyTokens]
"""(sequences, what fills up) -> a batch of them"""


@dataclass(frozen=True)
class Batch:
    """What a model reads, and what it must answer."""

    source: AnyTokens | None
    """What an encoder reads; None where there is one side only."""
    inputs: AnyTokens
    """What the decoder, or a model of one side, reads."""
    labels: Tensor
    """Of the shape of inputs.ids: the id that belongs there, or IGNORED."""
    numbers: ExampleNumbers
    """Which pairs or texts these are, by their numbers in the store."""
    tokens: int
    """How many labels are not IGNORED."""

    @property
    def rows(self) -> int:
        """How many sequences there are, those without tokens counted."""
        return self.inputs.rows

    def to(self, device: "torch.device | str") -> "Batch":
        """The same on a device."""
        source = None if self.source is None else self.source.to(device)
        return Batch(source, self.inputs.to(device), self.labels.to(device), self.numbers, self.tokens)


class BoundaryIds(NamedTuple):
    """The ids around a target, and the one that fills up."""

    start: int
    end: int
    padding: int

    @staticmethod
    def of(special: SpecialTokens) -> "BoundaryIds":
        """Those of a model. Where several ids end a text, the first of them is learned."""
        if special.start is None or not special.end:
            missing = "start" if special.start is None else "end"
            raise checks.wrong("special", "with a start and an end", f"without {missing}")
        return BoundaryIds(special.start, special.end[0], special.padding or 0)


@dataclass(frozen=True)
class StoredReader:
    """Reads sequences as they are in a store."""

    store: TokenStore

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> tuple[Ragged, ...]:
        return self.store.gather(numbers)


@dataclass(frozen=True)
class SamplingReader:
    """Reads texts, kept in a store as their bytes in UTF-8, and encodes each anew for every epoch.

    The lengths are then others than those that batches were planned for: a budget is kept on average alone.
    """

    texts: TokenStore
    encoders: tuple[TextEncoder, ...]
    """One a side; each is given the text, and a seed that follows from (seed, epoch, number, side)."""
    seed: int

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> tuple[Ragged, ...]:
        sides = enumerate(zip(self.texts.gather(numbers), self.encoders, strict=True))
        return tuple(_encode_texts(bytes_, encode, [derive_key(self.seed, epoch, int(number), side) for number in numbers])
                     for side, (bytes_, encode) in sides)


@dataclass(frozen=True)
class ShiftedCollator:
    """Makes batches in which a target is shifted by one. Of two sides the first is the source, which stays as it is."""

    read: SequenceReader
    ends: BoundaryIds
    layout: BatchLayout

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        """The batch of these numbers; with none of them, a batch without rows."""
        *sources, target = self.read(numbers, epoch)
        source = self.layout(sources[0], self.ends.padding) if sources else None
        inputs = self.layout(prepend_id(target, self.ends.start), self.ends.padding)
        labels = self.layout(append_id(target, self.ends.end), IGNORED_LABEL).ids
        return Batch(source, inputs, labels, numbers, len(target.ids) + len(target.lengths))


def pad_sequences(sequences: Ragged, padding: int) -> Tokens:
    """Rows that are filled up on the right."""
    lengths = sequences.lengths
    ids_BN = np.full((len(lengths), int(lengths.max(initial=0))), padding, np.int64)
    ids_BN[np.arange(ids_BN.shape[1]) < lengths[:, None]] = sequences.ids
    return Tokens(torch.from_numpy(ids_BN), torch.from_numpy(lengths.astype(np.int64)))


def pack_sequences(sequences: Ragged, padding: int) -> PackedTokens:
    """One after another in a single row; nothing is filled up."""
    return PackedTokens(torch.from_numpy(sequences.ids).unsqueeze(0), torch.from_numpy(sequences.lengths))


LAYOUTS: dict[str, BatchLayout] = {"padded": pad_sequences, "packed": pack_sequences}


def prepend_id(sequences: Ragged, first: int) -> Ragged:
    """The same sequences with this id in front of each."""
    return Ragged(np.insert(sequences.ids, np.cumsum(sequences.lengths) - sequences.lengths, first),
                  sequences.lengths + 1)


def append_id(sequences: Ragged, last: int) -> Ragged:
    """The same sequences with this id behind each."""
    return Ragged(np.insert(sequences.ids, np.cumsum(sequences.lengths), last), sequences.lengths + 1)


def _encode_texts(texts: Ragged, encode: TextEncoder, seeds: list[int]) -> Ragged:
    pieces = np.split(texts.ids.astype(np.uint8), np.cumsum(texts.lengths))[:len(seeds)]
    sequences = [encode(piece.tobytes().decode(), seed) for piece, seed in zip(pieces, seeds, strict=True)]
    ids = [np.asarray(sequence, np.int64) for sequence in sequences]
    return Ragged(np.concatenate([*ids, np.zeros(0, np.int64)]), np.array([len(one) for one in ids], np.int64))


# ---- masking: Hiding tokens, for models that say what is hidden.
#
# Each token is chosen with a probability of `share`; of the chosen ones, most are hidden behind the mask id, some are
# replaced by any ordinary id, and the rest stay as they are. The model must say what stood in their places (Devlin et al.
# 2019). Departure: every token is chosen on its own, by (seed, epoch, number of its sequence, place in it), so that a
# sequence is masked in one way whatever batch it comes in, and in another way in the next epoch.
#
# Special ids are never chosen, and never put in. It knows ids; it does not know what is learned from them.


@dataclass(frozen=True, kw_only=True)
class MaskingConfig(Config):
    """How much is hidden, and how."""

    mlm_probability: float = number(0.15, minimum=0, maximum=1, old="share")
    """Of all tokens, those that the model must say."""
    mask_replace_prob: float = number(0.8, minimum=0, maximum=1, old="hidden")
    """Of these, those that are hidden behind the mask id."""
    random_replace_prob: float = number(0.1, minimum=0, maximum=1, old="replaced")
    """Of these, those in whose place stands another id; the rest stay as they are."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        if self.mask_replace_prob + self.random_replace_prob > 1:
            yield "random_replace_prob", f"with mask_replace_prob it must be at most 1, and they add up to {self.mask_replace_prob + self.random_replace_prob}"


@dataclass(frozen=True)
class MaskedCollator:
    """Makes batches in which some tokens are hidden, from texts as they are in a store."""

    read: SequenceReader
    special: SpecialTokens
    vocabulary: int
    config: MaskingConfig
    layout: BatchLayout
    seed: int
    ordinary: ExampleNumbers = field(init=False, repr=False, compare=False)
    """The ids that may be chosen and put in."""

    def __post_init__(self) -> None:
        if self.special.mask is None:
            raise checks.wrong("special", "with a mask", "without one")
        object.__setattr__(self, "ordinary", np.setdiff1d(np.arange(self.vocabulary), sorted(self.special.ids())))
        if not len(self.ordinary):
            raise checks.wrong("vocabulary", "larger than the special ids", self.vocabulary)

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        """The batch of these numbers; with none of them, a batch without rows."""
        (text,) = self.read(numbers, epoch)
        places = np.arange(len(text.ids)) - np.repeat(np.cumsum(text.lengths) - text.lengths, text.lengths)
        token = random_bits(derive_key(self.seed, epoch, 0), np.repeat(numbers, text.lengths)) ^ places.astype(np.uint64)
        chosen = (random_uniform(derive_key(self.seed, epoch, 1), token) < self.config.mlm_probability) & np.isin(text.ids, self.ordinary)
        how = random_uniform(derive_key(self.seed, epoch, 2), token)
        hidden = chosen & (how < self.config.mask_replace_prob)
        replaced = chosen & ~hidden & (how < self.config.mask_replace_prob + self.config.random_replace_prob)
        other = self.ordinary[random_below(len(self.ordinary), derive_key(self.seed, epoch, 3), token)]
        seen = np.where(hidden, np.int64(self.special.mask or 0), np.where(replaced, other, text.ids))
        inputs = self.layout(Ragged(seen, text.lengths), self.special.padding or 0)
        labels = self.layout(Ragged(np.where(chosen, text.ids, IGNORED_LABEL), text.lengths), IGNORED_LABEL).ids
        return Batch(None, inputs, labels, numbers, int(chosen.sum()))


# ---- labelled: Batches of texts or images that have one label each.
#
#     TextRows(read, labels, layout, padding)       makes batches of texts by their numbers
#     ImageRows(store, labels, shape, shift, seed)   makes batches of images, each moved by a few pixels at random
#     labelled_feed(plan, rows)                      the batch of every step, on any number of processes
#
# Images lie in a store as their bytes, one after another, and come as bytes: who reads them scales them. How far an image
# is moved follows from (seed, epoch, its number) alone. It does not know what the labels are called.
#
# Legend: B rows, C channels, H height, W breadth.


@dataclass(frozen=True)
class LabelledBatch:
    """What a model reads, and the label of each row."""

    inputs: AnyTokens | Tensor
    """Texts, or the bytes of images (B, C, H, W)."""
    labels: Tensor
    """(B,): the number of each row's label; IGNORED for rows that only fill up."""
    numbers: ExampleNumbers
    """Which texts or images these are, by their numbers in the store."""
    tokens: int
    """How many labels are not IGNORED."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.labels)

    def to(self, device: "torch.device | str") -> "LabelledBatch":
        """The same on a device."""
        return LabelledBatch(self.inputs.to(device), self.labels.to(device), self.numbers, self.tokens)


@dataclass(frozen=True)
class LabelledTextCollator:
    """Makes batches of texts."""

    read: SequenceReader
    labels: ExampleNumbers
    """Of every text, by its number."""
    layout: BatchLayout
    padding: int = 0

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> LabelledBatch:
        """The batch of these numbers; with none of them, a batch without rows."""
        (texts,) = self.read(numbers, epoch)
        return LabelledBatch(self.layout(texts, self.padding), torch.from_numpy(self.labels[numbers]), numbers,
                             len(numbers))


@dataclass(frozen=True)
class FittedLabelledCollator:
    """Makes batches of texts in few shapes, as `regard.data.batches.batch` tells."""

    maker: LabelledTextCollator
    shapes: tuple[BatchShape, ...]

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> LabelledBatch:
        """The batch of these numbers, filled up with rows without tokens."""
        batch = self.maker(numbers, epoch)
        assert not isinstance(batch.inputs, Tensor)
        rows = fit_batch(Batch(None, batch.inputs, batch.inputs.ids, numbers, batch.tokens), self.shapes,
                      self.maker.padding).inputs
        labels = torch.cat([batch.labels, torch.full((rows.rows - batch.rows,), IGNORED_LABEL)])
        return LabelledBatch(rows, labels, numbers, batch.tokens)


@dataclass(frozen=True)
class ImageCollator:
    """Makes batches of images.

    Args:
        store: the bytes of each image, (C, H, W).
        shift: by how many pixels an image may be moved each way; what comes in is the edge, repeated.
    """

    store: TextStore
    labels: ExampleNumbers
    shape: images.ImageShape
    shift: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.store.stream) != len(self.store) * self.shape.size:
            raise checks.wrong("store", f"of {len(self.store)} images of {self.shape}", "of others")

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> LabelledBatch:
        """The batch of these numbers; with none of them, a batch without rows."""
        height, breadth, channels = self.shape
        pixels_BCHW = self.store.stream.reshape(-1, channels, height, breadth)[numbers]
        self.store.release()
        if self.shift:
            down_B, right_B = (random_below(2 * self.shift + 1, derive_key(self.seed, epoch, way), numbers) - self.shift
                               for way in (0, 1))
            pixels_BCHW = shift_images(pixels_BCHW, down_B, right_B)
        return LabelledBatch(torch.from_numpy(pixels_BCHW), torch.from_numpy(self.labels[numbers]), numbers,
                             len(numbers))


def shift_images(pixels_BCHW: NDArray[np.uint8], down_B: ExampleNumbers, right_B: ExampleNumbers) -> NDArray[np.uint8]:
    """Each image moved by so many pixels. What comes in is the edge, repeated."""
    B, C, H, W = pixels_BCHW.shape
    row_BH = np.clip(np.arange(H) - down_B[:, None], 0, H - 1)
    column_BW = np.clip(np.arange(W) - right_B[:, None], 0, W - 1)
    return pixels_BCHW[np.arange(B)[:, None, None, None], np.arange(C)[:, None, None], row_BH[:, None, :, None],
                       column_BW[:, None, None, :]]


def batch_by_length(lengths: ExampleNumbers, budget: int) -> Iterator[ExampleNumbers]:
    """All numbers once, the shortest sequences first, in batches that with padding hold at most so many tokens."""
    order = np.argsort(lengths, kind="stable")
    first = 0
    for last in range(1, len(order) + 1):
        if last == len(order) or (last + 1 - first) * lengths[order[last]] > budget:
            yield order[first:last]
            first = last


# ---- shapes: Batches of few shapes, for devices that replay what they have recorded once for each shape.
#
#     plan = plan_batches(store, limits, seed=1, most=MOST)      of padded rows
#     plan = plan_packed(store, limits, seed=1)                  of packed ones
#     fitted(batch, plan.shapes, padding)          the batch, filled up to the smallest of them that contains it
#     Fitted(make, plan.shapes, padding)           makes batches as `make` does, and fits each
#
# What is added is padding: more places in a row, and rows without tokens (of length 0), whose labels are IGNORED. Behind
# packed sequences come others of padding, none longer than the longest, and then some of length 0; a batch without any
# sequence gets padding of even lengths. It adds nothing to a loss and changes no gradient. A batch that fits into none of
# the shapes, because its texts were cut into other subwords than the plan counted, gets rows and lengths that are
# multiples of STEP (of packed tokens: STEP_PACKED): shapes that were not foreseen, but not many either.
#
# It does not know devices, nor what is recorded.

MAX_SHAPES = 24
"""Shapes that are few. Fewer would need more padding, more would need more recordings."""
STEP, STEP_PACKED = 8, 256


def fit_batch(batch: Batch, shapes: Sequence[BatchShape], padding: int = 0) -> Batch:
    """The batch filled up to the smallest of the shapes that contains it."""
    if isinstance(batch.inputs, PackedTokens):
        return _fit_packed(batch, shapes, padding)
    source, inputs = None if batch.source is None else _require_right_padding(batch.source), _require_right_padding(batch.inputs)
    sides = [inputs] if source is None else [source, inputs]
    own = BatchShape(inputs.rows, tuple(side.ids.shape[1] for side in sides))
    shape = _smallest_shape(own, shapes)
    filled = [_pad_tokens(side, shape.rows, length, padding)
              for side, length in zip(sides, shape.lengths, strict=True)]
    labels = _pad_ids(batch.labels, shape.rows, shape.lengths[-1], IGNORED_LABEL)
    return Batch(None if source is None else filled[0], filled[-1], labels, batch.numbers, batch.tokens)


def _fit_packed(batch: Batch, shapes: Sequence[BatchShape], padding: int) -> Batch:
    """Of packed rows, whose shape is how many sequences there are, and the tokens of each side."""
    sides = [side for side in (batch.source, batch.inputs) if isinstance(side, PackedTokens)]
    own = BatchShape(batch.rows, tuple(side.ids.shape[1] for side in sides))
    for shape in sorted(shapes, key=lambda shape: sum(shape.lengths)):
        pieces = [_padded_lengths(side.lengths, length, shape.rows) for side, length in zip(sides, shape.lengths, strict=True)]
        if None not in pieces:
            break
    else:
        lengths = tuple(-(-length // STEP_PACKED) * STEP_PACKED for length in own.lengths)
        shape = BatchShape(-(-(own.rows + STEP_PACKED) // STEP_PACKED) * STEP_PACKED, lengths)  # each may fill up alone
        pieces = [_padded_lengths(side.lengths, length, shape.rows) for side, length in zip(sides, lengths, strict=True)]
    filled = [PackedTokens(_pad_ids(side.ids, 1, length, padding), all_lengths, None if side.segments is None else
                           _pad_ids(side.segments, 1, length, 0))
              for side, length, all_lengths in zip(sides, shape.lengths, pieces, strict=True)
              if all_lengths is not None]
    labels = _pad_ids(batch.labels, 1, shape.lengths[-1], IGNORED_LABEL)
    return Batch(filled[0] if len(sides) == 2 else None, filled[-1], labels, batch.numbers, batch.tokens)


def _padded_lengths(lengths: Tensor, total: int, rows: int) -> Tensor | None:
    """The lengths of `rows` sequences: these, some that fill up to the total, and empty ones; None without room."""
    left = total - int(lengths.sum())
    if left < 0 or len(lengths) > rows:
        return None
    # Without any sequence nothing tells how long one may be: even ones are no longer than those that fill a batch up.
    longest = max(1, int(lengths.max()) if len(lengths) else -(-left // max(1, rows)))
    full, rest = divmod(left, longest)
    behind = [longest] * full + [rest] * (rest > 0)
    if len(lengths) + len(behind) > rows:
        return None
    return torch.cat([lengths, lengths.new_tensor(behind + [0] * (rows - len(lengths) - len(behind)))])


@dataclass(frozen=True)
class FittedCollator:
    """Makes batches as another maker does, in these shapes."""

    maker: Callable[[ExampleNumbers, int], Batch]
    shapes: tuple[BatchShape, ...]
    padding: int = 0

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        """The batch of these numbers; with none of them, rows without tokens."""
        return fit_batch(self.maker(numbers, epoch), self.shapes, self.padding)


def _smallest_shape(own: BatchShape, shapes: Sequence[BatchShape]) -> BatchShape:
    """The smallest shape that contains this one: of those given, or one of multiples of STEP."""
    containing = [shape for shape in shapes
                  if shape.rows >= own.rows and all(map(int.__ge__, shape.lengths, own.lengths))]
    rounded = BatchShape(_round_up(own.rows), tuple(map(_round_up, own.lengths)))
    return min(containing, key=lambda shape: shape.tokens, default=rounded)


def _round_up(number: int) -> int:
    return -(-number // STEP) * STEP


def _require_right_padding(tokens: AnyTokens) -> Tokens:
    if not isinstance(tokens, Tokens) or tokens.side != "right":
        raise checks.wrong("batch", "of rows that are filled up on the right, or packed", "filled up on the left")
    return tokens


def _pad_tokens(tokens: Tokens, rows: int, length: int, padding: int) -> Tokens:
    lengths = tokens.lengths
    if lengths is None:
        lengths = tokens.ids.new_full((tokens.rows,), tokens.ids.shape[1])
    segments = None if tokens.segments is None else _pad_ids(tokens.segments, rows, length, 0)
    more = lengths.new_zeros(rows - len(lengths))
    return Tokens(_pad_ids(tokens.ids, rows, length, padding), torch.cat([lengths, more]), segments=segments)


def _pad_ids(ids: Tensor, rows: int, length: int, padding: int) -> Tensor:
    filled = ids.new_full((rows, length), padding)
    filled[:ids.shape[0], :ids.shape[1]] = ids
    return filled
