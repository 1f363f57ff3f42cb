"""From the numbers of examples to tensors: inputs and labels, padded or packed, masked, labelled, in fixed shapes.

    read = StoredReader(store)                          the ids as they are in the store
    read = SamplingReader(texts, encoders, seed)        the texts encoded anew in every epoch: subword sampling
    ShiftedCollator(read, BoundaryIds.of(special), pad_sequences)      pairs for an encoder-decoder, texts for an LM
    MaskedCollator(read, special, ...)                  texts with masked tokens
    LabelledTextCollator(read, labels, ...)             texts with one label each
    TokenLabelCollator(read, read_labels, ...)          texts with a label for each token
    ImageCollator(store, labels, shape, shift, seed)    images, each shifted by a few pixels at random
    FittedCollator(make, plan.shapes, padding)          another collator's batches, padded to one of few shapes

For a target y the inputs are [START] y and the labels y [END], so that the label at a position is the next id. Labels
of padding are IGNORED. Sequences are padded on the right (rows) or packed (one after another in a single row).

Masking (Devlin et al. 2019) chooses each token with probability `mlm_probability`; most chosen tokens become the mask
id, some a random ordinary id, the rest stay. Departure: every token is chosen by (seed, epoch, number of its sequence,
position), so that a sequence is masked in the same way in any batch, and differently in the next epoch. Special ids are
never chosen and never inserted.

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
from regard.data.batches.plan import BatchShape, ExampleNumbers, derive_key, random_below, random_bits, random_uniform
from regard.data.images import ImageShape
from regard.data.store import IntArray, Ragged, TextStore, TokenStore
from regard.special_tokens import SpecialTokens
from regard.tokens import IGNORED_LABEL, AnyTokens, PackedTokens, Tokens

SequenceReader = Callable[[ExampleNumbers, int], tuple[Ragged, ...]]
"""(numbers, epoch) -> the sequences of these examples, a Ragged for each side"""
TextEncoder = Callable[[str, int], Sequence[int]]
"""(text, seed) -> ids"""
BatchLayout = Callable[[Ragged, int], AnyTokens]
"""(sequences, padding id) -> tokens"""
MAX_SHAPES = 24
"""The number of shapes when few are wanted: fewer need more padding, more need more CUDA graphs."""
STEP, STEP_PACKED = 8, 256


@dataclass(frozen=True)
class Batch:
    """The inputs and labels of one step."""

    source: AnyTokens | None
    """The encoder input; None for models of one side."""
    inputs: AnyTokens
    """The input of the decoder, or of a model of one side."""
    labels: Tensor
    """In the shape of inputs.ids: the correct id, or IGNORED_LABEL."""
    numbers: ExampleNumbers
    """The numbers of these examples in the store."""
    tokens: int
    """The number of labels that are not IGNORED_LABEL."""

    @property
    def rows(self) -> int:
        """The number of sequences, empty ones included."""
        return self.inputs.rows

    def to(self, device: "torch.device | str") -> "Batch":
        """A copy on a device."""
        source = None if self.source is None else self.source.to(device)
        return Batch(source, self.inputs.to(device), self.labels.to(device), self.numbers, self.tokens)


class BoundaryIds(NamedTuple):
    """The start, end and padding ids of a model."""

    start: int
    end: int
    padding: int

    @staticmethod
    def of(special: SpecialTokens) -> "BoundaryIds":
        """The ids of a model. If several ids end a text, the first of them is learned."""
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
    """Reads texts, stored as UTF-8 bytes, and encodes them anew in every epoch: subword sampling.

    The lengths differ from those that the batches were planned for, so the budget holds only on average.
    """

    texts: TokenStore
    encoders: tuple[TextEncoder, ...]
    """One per side; each gets the text, and a seed derived from (seed, epoch, number, side)."""
    seed: int

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> tuple[Ragged, ...]:
        found = []
        for side, (texts, encode) in enumerate(zip(self.texts.gather(numbers), self.encoders, strict=True)):
            seeds = [derive_key(self.seed, epoch, int(number), side) for number in numbers]
            found.append(_encode_texts(texts, encode, seeds))
        return tuple(found)


@dataclass(frozen=True)
class ShiftedCollator:
    """Makes batches whose labels are the targets shifted by one. Of two sides the first is the source."""

    read: SequenceReader
    boundary: BoundaryIds
    layout: BatchLayout

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        *sources, target = self.read(numbers, epoch)
        source = self.layout(sources[0], self.boundary.padding) if sources else None
        inputs = self.layout(prepend_id(target, self.boundary.start), self.boundary.padding)
        labels = self.layout(append_id(target, self.boundary.end), IGNORED_LABEL).ids
        return Batch(source, inputs, labels, numbers, len(target.ids) + len(target.lengths))


def pad_sequences(sequences: Ragged, padding: int) -> Tokens:
    """Rows that are padded on the right."""
    lengths = sequences.lengths
    ids_BN = np.full((len(lengths), int(lengths.max(initial=0))), padding, np.int64)
    ids_BN[np.arange(ids_BN.shape[1]) < lengths[:, None]] = sequences.ids
    return Tokens(torch.from_numpy(ids_BN), torch.from_numpy(lengths.astype(np.int64)))


def pack_sequences(sequences: Ragged, padding: int) -> PackedTokens:
    """All sequences in a single row, without padding."""
    return PackedTokens(torch.from_numpy(sequences.ids).unsqueeze(0), torch.from_numpy(sequences.lengths))


LAYOUTS: dict[str, BatchLayout] = {"padded": pad_sequences, "packed": pack_sequences}


def prepend_id(sequences: Ragged, first: int) -> Ragged:
    """The sequences, each with this id prepended."""
    return Ragged(np.insert(sequences.ids, np.cumsum(sequences.lengths) - sequences.lengths, first),
                  sequences.lengths + 1)


def append_id(sequences: Ragged, last: int) -> Ragged:
    """The sequences, each with this id appended."""
    return Ragged(np.insert(sequences.ids, np.cumsum(sequences.lengths), last), sequences.lengths + 1)


def _encode_texts(texts: Ragged, encode: TextEncoder, seeds: list[int]) -> Ragged:
    pieces = np.split(texts.ids.astype(np.uint8), np.cumsum(texts.lengths))[:len(seeds)]
    sequences = [encode(piece.tobytes().decode(), seed) for piece, seed in zip(pieces, seeds, strict=True)]
    ids = [np.asarray(sequence, np.int64) for sequence in sequences]
    return Ragged(np.concatenate([*ids, np.zeros(0, np.int64)]), np.array([len(one) for one in ids], np.int64))


@dataclass(frozen=True, kw_only=True)
class MaskingConfig(Config):
    """How many tokens are masked, and how."""

    mlm_probability: float = number(0.15, minimum=0, maximum=1, old="share")
    """Fraction of the tokens that the model must predict."""
    mask_replace_prob: float = number(0.8, minimum=0, maximum=1, old="hidden")
    """Fraction of the tokens to predict that is replaced by the mask token."""
    random_replace_prob: float = number(0.1, minimum=0, maximum=1, old="replaced")
    """Fraction of the tokens to predict that is replaced by a random token; the rest stays as it is."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Settings that contradict each other: key and reason."""
        total = self.mask_replace_prob + self.random_replace_prob
        if total > 1:
            yield "random_replace_prob", f"with mask_replace_prob it must be at most 1, and they add up to {total}"


@dataclass(frozen=True)
class MaskedCollator:
    """Makes batches in which some tokens are masked."""

    read: SequenceReader
    special: SpecialTokens
    vocabulary: int
    config: MaskingConfig
    layout: BatchLayout
    seed: int
    ordinary: IntArray = field(init=False, repr=False, compare=False)
    """The ids that may be masked and inserted."""

    def __post_init__(self) -> None:
        if self.special.mask is None:
            raise checks.wrong("special", "with a mask", "without one")
        object.__setattr__(self, "ordinary", np.setdiff1d(np.arange(self.vocabulary), sorted(self.special.ids())))
        if not len(self.ordinary):
            raise checks.wrong("vocabulary", "larger than the special ids", self.vocabulary)

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        (text,) = self.read(numbers, epoch)
        keys = [derive_key(self.seed, epoch, part) for part in range(4)]
        token = _token_bits(keys[0], numbers, text.lengths)
        chosen = (random_uniform(keys[1], token) < self.config.mlm_probability) & np.isin(text.ids, self.ordinary)
        how = random_uniform(keys[2], token)
        hidden = chosen & (how < self.config.mask_replace_prob)
        replaced = chosen & ~hidden & (how < self.config.mask_replace_prob + self.config.random_replace_prob)
        other = self.ordinary[random_below(len(self.ordinary), keys[3], token)]
        masked = np.where(hidden, np.int64(self.special.mask or 0), np.where(replaced, other, text.ids))
        inputs = self.layout(Ragged(masked, text.lengths), self.special.padding or 0)
        labels = self.layout(Ragged(np.where(chosen, text.ids, IGNORED_LABEL), text.lengths), IGNORED_LABEL).ids
        return Batch(None, inputs, labels, numbers, int(chosen.sum()))


def _token_bits(key: int, numbers: ExampleNumbers, lengths: IntArray) -> NDArray[np.uint64]:
    """Random bits for every token, by the number of its sequence and its position."""
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return random_bits(key, np.repeat(numbers, lengths)) ^ positions.astype(np.uint64)


@dataclass(frozen=True)
class TokenLabelCollator:
    """Makes batches of texts with a label for each token.

    Args:
        read: the ids of each text.
        read_labels: for each id 1 + its label, or 0 for an id that has none, such as the second subword of a word.
        dropped: this fraction of the ids is replaced by the unknown id, others in every epoch.
    """

    read: SequenceReader
    read_labels: SequenceReader
    special: SpecialTokens
    layout: BatchLayout
    dropped: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dropped and self.special.unknown is None:
            raise checks.wrong("special", "with an unknown id, to replace ids by", "without one")

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        (text,), (marks,) = self.read(numbers, epoch), self.read_labels(numbers, epoch)
        ids = text.ids
        if self.dropped and len(ids):
            keys = [derive_key(self.seed, epoch, part) for part in range(2)]
            chosen = random_uniform(keys[1], _token_bits(keys[0], numbers, text.lengths)) < self.dropped
            chosen &= ~np.isin(ids, sorted(self.special.ids()))
            ids = np.where(chosen, np.int64(self.special.unknown or 0), ids)
        labels = np.where(marks.ids > 0, marks.ids - 1, IGNORED_LABEL).astype(np.int64)
        return Batch(None, self.layout(Ragged(ids, text.lengths), self.special.padding or 0),
                     self.layout(Ragged(labels, marks.lengths), IGNORED_LABEL).ids, numbers, int((marks.ids > 0).sum()))


@dataclass(frozen=True)
class LabelledBatch:
    """Texts or images, and the label of each."""

    inputs: AnyTokens | Tensor
    """Texts, or the bytes of images (B, C, H, W)."""
    labels: Tensor
    """(B,): the label of each row; IGNORED_LABEL for rows of padding."""
    numbers: ExampleNumbers
    """The numbers of these examples in the store."""
    tokens: int
    """The number of labels that are not IGNORED_LABEL."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.labels)

    def to(self, device: "torch.device | str") -> "LabelledBatch":
        """A copy on a device."""
        return LabelledBatch(self.inputs.to(device), self.labels.to(device), self.numbers, self.tokens)


@dataclass(frozen=True)
class LabelledTextCollator:
    """Makes batches of texts with one label each."""

    read: SequenceReader
    labels: IntArray
    """The label of every text of the store."""
    layout: BatchLayout
    padding: int = 0

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> LabelledBatch:
        (texts,) = self.read(numbers, epoch)
        return LabelledBatch(self.layout(texts, self.padding), torch.from_numpy(self.labels[numbers]), numbers,
                             len(numbers))


@dataclass(frozen=True)
class ImageCollator:
    """Makes batches of images, as bytes: the model scales them.

    Args:
        store: the bytes of each image, (C, H, W).
        shift: the largest random shift of an image in pixels, derived from (seed, epoch, number); the edge is repeated.
    """

    store: TextStore
    labels: IntArray
    shape: ImageShape
    shift: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.store.stream) != len(self.store) * self.shape.size:
            raise checks.wrong("store", f"of {len(self.store)} images of {self.shape}", "of others")

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> LabelledBatch:
        height, width, channels = self.shape
        pixels_BCHW = self.store.stream.reshape(-1, channels, height, width)[numbers]
        self.store.release()
        if self.shift:
            down_B, right_B = (random_below(2 * self.shift + 1, derive_key(self.seed, epoch, way), numbers) - self.shift
                               for way in (0, 1))
            pixels_BCHW = shift_images(pixels_BCHW, down_B, right_B)
        return LabelledBatch(torch.from_numpy(pixels_BCHW), torch.from_numpy(self.labels[numbers]), numbers,
                             len(numbers))


def shift_images(pixels_BCHW: NDArray[np.uint8], down_B: IntArray, right_B: IntArray) -> NDArray[np.uint8]:
    """Each image shifted by its number of pixels; the edge is repeated."""
    B, C, H, W = pixels_BCHW.shape
    row_BH = np.clip(np.arange(H) - down_B[:, None], 0, H - 1)
    column_BW = np.clip(np.arange(W) - right_B[:, None], 0, W - 1)
    return pixels_BCHW[np.arange(B)[:, None, None, None], np.arange(C)[:, None, None], row_BH[:, None, :, None],
                       column_BW[:, None, None, :]]


def batch_by_length(lengths: IntArray, budget: int) -> Iterator[ExampleNumbers]:
    """All examples once, the shortest first, in batches of at most `budget` tokens, padding included."""
    order = np.argsort(lengths, kind="stable")
    first = 0
    for last in range(1, len(order) + 1):
        if last == len(order) or (last + 1 - first) * lengths[order[last]] > budget:
            yield order[first:last]
            first = last


def fit_batch(batch: Batch, shapes: Sequence[BatchShape], padding: int = 0) -> Batch:
    """The batch padded to the smallest of the shapes that contains it."""
    if isinstance(batch.inputs, PackedTokens):
        return _fit_packed(batch, shapes, padding)
    source = None if batch.source is None else _require_right_padding(batch.source)
    inputs = _require_right_padding(batch.inputs)
    sides = [inputs] if source is None else [source, inputs]
    own = BatchShape(inputs.rows, tuple(side.ids.shape[1] for side in sides))
    shape = _smallest_shape(own, shapes)
    filled = [_pad_tokens(side, shape.rows, length, padding)
              for side, length in zip(sides, shape.lengths, strict=True)]
    labels = _pad_ids(batch.labels, shape.rows, shape.lengths[-1], IGNORED_LABEL)
    return Batch(None if source is None else filled[0], filled[-1], labels, batch.numbers, batch.tokens)


def _fit_packed(batch: Batch, shapes: Sequence[BatchShape], padding: int) -> Batch:
    """A packed batch, whose shape is its number of sequences and the tokens of each side."""
    sides = [side for side in (batch.source, batch.inputs) if isinstance(side, PackedTokens)]
    # The last candidate has multiples of STEP_PACKED, and a row for every token of padding.
    spare = BatchShape(_round_up(batch.rows + STEP_PACKED, STEP_PACKED),
                       tuple(_round_up(side.ids.shape[1], STEP_PACKED) for side in sides))
    for shape in [*sorted(shapes, key=lambda shape: sum(shape.lengths)), spare]:
        lengths = [_padded_lengths(side.lengths, length, shape.rows)
                   for side, length in zip(sides, shape.lengths, strict=True)]
        if None not in lengths:
            break
    filled = [PackedTokens(_pad_ids(side.ids, 1, length, padding), all_lengths, None if side.segments is None else
                           _pad_ids(side.segments, 1, length, 0))
              for side, length, all_lengths in zip(sides, shape.lengths, lengths, strict=True)
              if all_lengths is not None]
    labels = _pad_ids(batch.labels, 1, shape.lengths[-1], IGNORED_LABEL)
    return Batch(filled[0] if len(sides) == 2 else None, filled[-1], labels, batch.numbers, batch.tokens)


def _padded_lengths(lengths: Tensor, total: int, rows: int) -> Tensor | None:
    """These lengths, then those of padding up to the total, then zeros: `rows` in all; None if they do not fit."""
    left = total - int(lengths.sum())
    if left < 0 or len(lengths) > rows:
        return None
    # Without any sequence the padding is split evenly, so that its sequences are not longer than usual ones.
    longest = max(1, int(lengths.max()) if len(lengths) else -(-left // max(1, rows)))
    full, rest = divmod(left, longest)
    padding = [longest] * full + [rest] * (rest > 0)
    if len(lengths) + len(padding) > rows:
        return None
    return torch.cat([lengths, lengths.new_tensor(padding + [0] * (rows - len(lengths) - len(padding)))])


@dataclass(frozen=True)
class FittedCollator:
    """Makes batches as `maker` does, padded to one of these shapes."""

    maker: Callable[[ExampleNumbers, int], Batch]
    shapes: tuple[BatchShape, ...]
    padding: int = 0

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        return fit_batch(self.maker(numbers, epoch), self.shapes, self.padding)


@dataclass(frozen=True)
class FittedLabelledCollator:
    """Makes labelled batches as `maker` does, padded to one of these shapes."""

    maker: LabelledTextCollator
    shapes: tuple[BatchShape, ...]

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> LabelledBatch:
        batch = self.maker(numbers, epoch)
        assert not isinstance(batch.inputs, Tensor)
        rows = fit_batch(Batch(None, batch.inputs, batch.inputs.ids, numbers, batch.tokens), self.shapes,
                         self.maker.padding).inputs
        labels = torch.cat([batch.labels, torch.full((rows.rows - batch.rows,), IGNORED_LABEL)])
        return LabelledBatch(rows, labels, numbers, batch.tokens)


def _smallest_shape(own: BatchShape, shapes: Sequence[BatchShape]) -> BatchShape:
    """The smallest given shape that contains this one, or else one of multiples of STEP."""
    containing = [shape for shape in shapes
                  if shape.rows >= own.rows and all(map(int.__ge__, shape.lengths, own.lengths))]
    rounded = BatchShape(_round_up(own.rows, STEP), tuple(_round_up(length, STEP) for length in own.lengths))
    return min(containing, key=lambda shape: shape.tokens, default=rounded)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _require_right_padding(tokens: AnyTokens) -> Tokens:
    if not isinstance(tokens, Tokens) or tokens.side != "right":
        raise checks.wrong("batch", "padded on the right, or packed", "padded on the left")
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
