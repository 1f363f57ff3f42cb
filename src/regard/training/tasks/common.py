"""What several training tasks share: data files, the validation split, truncation, tokenizers, losses and scores.

    open_inputs, file_digests            files that can be read again, and the sha256 of each
    select_validation                    the examples of the validation split, chosen by a hash
    max_positions, truncate_reader       the longest text of a model; longer ones are truncated
    load_or_train_tokenizer              a tokenizer that is trained once and then read
    FeatureObjective                     the loss of a model with `features` and `output`
    MetricSums                           loss and accuracy over many batches

Equal examples have equal hashes, so all copies of an example are on the same side of the split, whatever their order.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard import checks
from regard import config as configs
from regard.data import store as stores
from regard.data.batches.batch import SequenceReader
from regard.data.batches.plan import BatchShape, ExampleNumbers
from regard.data.images import scale_pixels
from regard.data.sources.text import DataError, InputFile
from regard.data.store import Ragged, TextStore, store_key
from regard.data.tokenizer import loading, training
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.position.encoding import LearnedConfig
from regard.storage import folder as folders
from regard.tokens import IGNORED_LABEL
from regard.training.config import TrainingConfig
from regard.training.loss import Loss, logits_loss, rdrop_loss, token_loss
from regard.training.tasks.interface import Objective

Item = TypeVar("Item")


def open_inputs(paths: Sequence[str]) -> tuple[InputFile, ...]:
    """Files that can be read again and again."""
    found = tuple(InputFile(path) for path in paths)
    for one in found:
        if one.single_pass:
            raise DataError(f"{one.name}: Training reads its data more than once, and this can be read only once. Save "
                            "it to a file first.")
    return found


def file_digests(paths: Iterable[str]) -> dict[str, str]:
    """The sha256 of each file by its name."""
    return name_digests((path, stores.file_digest(path)) for path in paths)


def name_digests(files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Digests of paths, by the last part of each path; where several have one name, the later ones are numbered."""
    found = dict[str, str]()
    for path, digest in files:
        plain = name = os.path.basename(os.path.normpath(path))
        number = 1
        while found.get(name, digest) != digest:
            number += 1
            name = f"{plain} ({number})"
        found[name] = digest
    return found


def in_blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The same items, so many at a time."""
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


# ---- splitting: Which examples are held out to judge by, where no validation data is given: a share of them, chosen by a hash.
#
# Equal examples have equal hashes, and so are all on one side; the choice does not depend on their order, nor on anything
# else. It sees hashes and labels. It does not know what the examples are.

Hashes = NDArray[np.uint64]
SplitMask = NDArray[np.bool_]
MIN_EXAMPLES = 20
"""Examples, below which none is held out."""
VALIDATION_FRACTION, MAX_VALIDATION_EXAMPLES = 0.1, 2000
"""How much is held out, and how many examples at most."""


def hash_bytes(data: bytes) -> int:
    """64 bits that stand for some bytes."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def hash_examples(examples: Iterable[bytes]) -> Hashes:
    """Those of several examples."""
    return np.fromiter(map(hash_bytes, examples), np.uint64)


def select_validation(found: Hashes, share: float, labels: NDArray[np.int64] | None = None) -> SplitMask:
    """For each example whether it is held out: this share of the different ones, at least one where there is a share.

    The example with the highest hash is always learned from, and so is that of every label.
    """
    if not share or not len(found):
        return np.zeros(len(found), np.bool_)
    stay = _highest_hashes(found, np.zeros(len(found), np.int64) if labels is None else labels)
    different = np.unique(found)
    free = np.setdiff1d(different, stay)
    if not len(free):
        return np.zeros(len(found), np.bool_)
    count = min(len(free), max(1, round(share * len(different))))
    return (found <= free[count - 1]) & ~np.isin(found, stay)


def default_validation_fraction(count: int) -> float:
    """How much of so many examples is held out."""
    return 0.0 if count < MIN_EXAMPLES else min(VALIDATION_FRACTION, MAX_VALIDATION_EXAMPLES / count)


def _highest_hashes(found: Hashes, labels: NDArray[np.int64]) -> Hashes:
    """The highest hash of each label."""
    highest = np.zeros(int(labels.max(initial=0)) + 1, np.uint64)
    np.maximum.at(highest, labels, found)
    return np.unique(highest)


# ---- room: How long a text may be for a model; longer ones are cut. It does not know what else a model is.


@dataclass(frozen=True)
class TruncatedReader:
    """Reads sequences as another reader does, and of each the first `longest` ids alone."""

    read: SequenceReader
    longest: int

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> tuple[Ragged, ...]:
        return tuple(_truncate_sequences(side, self.longest) for side in self.read(numbers, epoch))


def max_positions(made_from: Any) -> int | None:
    """How many tokens a model that reads tokens knows positions for; None where there is no end."""
    known = made_from.embedding.positions
    return known.max_positions if isinstance(known, LearnedConfig) else None


def truncate_reader(read: SequenceReader, room: int | None) -> SequenceReader:
    """A reader of what a model has room for."""
    return read if room is None else TruncatedReader(read, room)


def truncate_shapes(known: tuple[BatchShape, ...], room: int | None) -> tuple[BatchShape, ...]:
    """Shapes of batches, of what a model has room for."""
    if room is None:
        return known
    return tuple(BatchShape(shape.rows, tuple(min(length, room) for length in shape.lengths)) for shape in known)


def truncation_note(store: TextStore, room: int | None) -> tuple[str, ...]:
    """What a person should know of texts that are too long."""
    many = 0 if room is None else int((text_lengths(store) > room).sum())
    note = f"{many:,} of {len(store):,} texts are longer than the {room} positions of the model, and are cut."
    return (note,) if many else ()


def text_lengths(store: TextStore) -> ExampleNumbers:
    """How many ids each text has."""
    return store.sides[0].lengths(0, len(store))


def refuse_sampling(settings: TrainingConfig) -> None:
    """Refuse what only pairs of texts are learned with."""
    if settings.subword_sampling:
        raise checks.wrong("training.subword_sampling", "0: only translation cuts its texts anew in every epoch",
                           settings.subword_sampling)


def _truncate_sequences(sequences: Ragged, longest: int) -> Ragged:
    places = np.arange(len(sequences.ids)) - np.repeat(np.cumsum(sequences.lengths) - sequences.lengths,
                                                       sequences.lengths)
    return Ragged(sequences.ids[places < longest], np.minimum(sequences.lengths, longest))


# ---- tokenizers: Tokenizers that are trained once for a training and then read: another run must never get other ids.
#
#     stored_pair(place, (sources, targets), config, ...)     the one at this place; trained where there is none
#     stored_one(place, texts, config, ...)                   the same for one side
#
# Beside its files lies what they were made from, and their sha256; what does not fit is made anew only where nothing has
# been learned with it yet, which is for the caller to know. It does not know what is learned.

TOKENIZER_FOLDER, ABOUT_FILE = "tokenizer", "about.json"
TextsFactory = Callable[[], Iterable[str]]
TokenizerKind = TypeVar("TokenizerKind", Tokenizer, PairTokenizer)


@dataclass(frozen=True)
class StoredTokenizer(Generic[TokenizerKind]):
    """A tokenizer, and what its user should know of how it came to be."""

    tokenizer: TokenizerKind
    notes: tuple[str, ...] = ()


def load_or_train_pair_tokenizer(place: Path, sides: tuple[TextsFactory, TextsFactory], config: TokenizerConfig, *, joint: bool,
                data: Sequence[str], settings: Mapping[str, Any]) -> StoredTokenizer[PairTokenizer]:
    """The tokenizers of two sides."""
    key = store_key(data, json.dumps([configs.to_tables(config), joint], sort_keys=True), settings)

    def make() -> StoredTokenizer[PairTokenizer]:
        sources, targets = sides
        made = (training.train_joint_tokenizer(sources(), targets(), config) if joint
                else training.train_separate_tokenizers(sources(), targets(), config, config))
        return StoredTokenizer(made.tokenizer, made.notes)

    return _load_or_train(place / TOKENIZER_FOLDER, key, make, loading.load_pair_tokenizer)


def load_or_train_tokenizer(place: Path, texts: TextsFactory, config: TokenizerConfig, *, data: Sequence[str],
               settings: Mapping[str, Any]) -> StoredTokenizer[Tokenizer]:
    """The tokenizer of one side."""
    key = store_key(data, json.dumps(configs.to_tables(config), sort_keys=True), settings)

    def make() -> StoredTokenizer[Tokenizer]:
        made = training.train_tokenizer(texts(), config)
        return StoredTokenizer(made.tokenizer, made.notes)

    return _load_or_train(place / TOKENIZER_FOLDER, key, make, loading.load_tokenizer)


def _load_or_train(folder: Path, key: str, make: Callable[[], StoredTokenizer[TokenizerKind]], load: Callable[..., TokenizerKind]) -> StoredTokenizer[TokenizerKind]:
    if folder.exists():
        files = folders.load(folder, lambda saved: {name: saved.read_bytes(name) for name in saved.manifest.files})
        about = json.loads(files[ABOUT_FILE]) if ABOUT_FILE in files else {}
        if about.get("key") == key:
            return StoredTokenizer(load(files, sha256=about["sha256"]), tuple(about["notes"]))
    made = make()
    about = {"key": key, "sha256": made.tokenizer.sha256, "notes": list(made.notes)}
    folders.save(folder, {**made.tokenizer.files(), ABOUT_FILE: json.dumps(about, indent=1).encode()})
    return made


# ---- objectives: The loss of models whose features follow from what they read: texts, texts with hidden tokens, texts and images with
# a label.
#
#     features(inputs) ── output ── -log p of the labels, with smoothing; with a consistency, of two passes that agree
#
# It does not know where batches come from.


class FeatureObjective(Objective):
    """The loss of a model that has `features` and `output`, on batches that have `inputs` and `labels`."""

    def __init__(self, model: nn.Module, smoothing: float, consistency: float) -> None:
        super().__init__(model)
        self.smoothing, self.consistency = smoothing, consistency

    def forward(self, batch: Any) -> Loss:
        """The sums over the labels."""
        features: Callable[[Any], Tensor] = self.model.features  # type: ignore[assignment]
        output: nn.Linear = self.model.output  # type: ignore[assignment]
        inputs = model_inputs(batch.inputs)
        if not self.consistency or not self.training:
            return token_loss(features(inputs), output, batch.labels, self.smoothing)
        states = torch.stack([features(inputs), features(inputs)])
        return rdrop_loss(states, output, batch.labels, self.smoothing, self.consistency)


def model_inputs(inputs: Any) -> Any:
    """What a model is given: the bytes of images are scaled, all else is as it is."""
    return scale_pixels(inputs) if isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 else inputs


# ---- judging: What all judgements share: the model as it is when it is used, and sums over the labels of many batches.
#
# It does not know what is judged.


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode and makes no gradients; afterwards every part is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


class MetricSums:
    """Losses and right answers, summed over the labels of batches. They stay on the device until they are read."""

    def __init__(self, device: torch.device) -> None:
        self._nll, self._right, self._tokens = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(3))

    def add(self, loss: Loss) -> None:
        """The loss of a batch."""
        self._nll += loss.nll
        self._tokens += loss.tokens

    def judge(self, features: Tensor, output: nn.Linear, labels: Tensor) -> None:
        """The loss of features (..., D), and how many of the labels (...) the model finds. Those IGNORED count not."""
        counted = labels != IGNORED_LABEL
        logits, labels = output(features[counted]), labels[counted]
        self.add(logits_loss(logits, labels))
        self._right += (logits.argmax(-1) == labels).sum()

    @property
    def loss(self) -> float:
        """The mean of -log p."""
        return float(self._nll / self._tokens)

    @property
    def accuracy(self) -> float:
        """The share of labels to which the model gives most; of those that were judged one by one."""
        return float(self._right / self._tokens)


# ---- sentences: Files of texts, one a line, as far as something can be learned from them.
#
# Empty lines are left out, and as the config says texts that are too long, or that were there before. What is left out is
# counted by the reason, in the doctor's words. It does not know what is learned from the texts.

Counting = Callable[[Iterable[Any]], Iterable[Any]]
"""Passes on what it is given, and may count it to show that something happens."""
