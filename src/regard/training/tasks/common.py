"""What several training tasks share: data files, the validation split, truncation, tokenizers, losses and scores.

    open_inputs, file_digests            files that can be read again, and the sha256 of each
    read_summary                         the line about the data before the training
    select_validation                    the examples of the validation split, chosen by a hash
    max_positions, truncate_reader       the longest text of a model; longer ones are truncated
    load_or_train_tokenizer              a tokenizer that is trained once and then read
    prepare_texts                        training and validation texts as ids on disk
    store_feed                           the batches of a store of texts
    FeatureObjective, FeatureTask        the loss of a model with `features` and `output`, and its training task
    LabelledTask                         the same, with named labels
    MetricSums                           loss and accuracy over many batches

Equal examples have equal hashes, so all copies of an example are on the same side of the split, in any order.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
from regard.data.batches.batch import FittedCollator, SequenceReader
from regard.data.batches.feed import BatchConfig, BatchMaker, PlanFeed, plan_from_config
from regard.data.batches.plan import BatchShape, ExampleNumbers
from regard.data.images import scale_pixels
from regard.data.sources.text import DataError, InputFile, printable
from regard.data.store import Ragged, TextStore, store_key
from regard.data.tokenizer import loading, training
from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.position.encoding import LearnedConfig
from regard.storage import folder as folders
from regard.tokens import IGNORED_LABEL
from regard.training.config import TrainingConfig
from regard.training.loss import Loss, logits_loss, rdrop_loss, token_loss
from regard.training.tasks.interface import Objective, TrainingTask

BLOCK_SIZE = 1024
"""Texts that are tokenized at once."""
MIN_EXAMPLES = 20
"""With fewer examples there is no validation split."""
VALIDATION_FRACTION, MAX_VALIDATION_EXAMPLES = 0.1, 2000
MAX_NAMES = 4
"""File names that a summary shows."""
TOKENIZER_FOLDER, ABOUT_FILE = "tokenizer", "about.json"
Hashes = NDArray[np.uint64]
SplitMask = NDArray[np.bool_]
TextsFactory = Callable[[], Iterable[str]]
Item = TypeVar("Item")
TokenizerKind = TypeVar("TokenizerKind", Tokenizer, PairTokenizer)


def open_inputs(paths: Sequence[str]) -> tuple[InputFile, ...]:
    """Open data files; a stream that can be read only once is refused, since training reads its data several times."""
    inputs = tuple(InputFile(path) for path in paths)
    for file in inputs:
        if file.single_pass:
            raise DataError(f"{file.name}: Training reads its data more than once, and this can be read only once. "
                            "Save it to a file first.")
    return inputs


def file_digests(paths: Iterable[str]) -> dict[str, str]:
    """The sha256 of each file by its name."""
    return name_digests((path, stores.file_digest(path)) for path in paths)


def name_digests(files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Digests by file name without its folder; the second of two equal names becomes "name (2)"."""
    named = dict[str, str]()
    for path, digest in files:
        plain = name = os.path.basename(os.path.normpath(path))
        number = 1
        while named.get(name, digest) != digest:
            number += 1
            name = f"{plain} ({number})"
        named[name] = digest
    return named


def list_digests(files: Mapping[str, str]) -> list[str]:
    """Files as a model stores them: "name sha256"."""
    return [f"{name} {digest}" for name, digest in files.items()]


def read_summary(count: str, names: Iterable[str], languages: str = "", skipped: int = 0, reasons: str = "") -> str:
    """What was read: "Read 5,000 pairs from pairs.tsv (en-fr). Skipped 5: 2 with a length ratio over 6, 3 duplicates."

    Args:
        count: what was read, the skipped examples included, such as "5,000 pairs".
        names: the paths of the files; their folders are not shown.
        skipped, reasons: how many examples were skipped, and how many for each reason.
    """
    shown = [printable(os.path.basename(os.path.normpath(name))) for name in names]
    files = ", ".join(shown[:MAX_NAMES]) + (f" and {len(shown) - MAX_NAMES} more" if len(shown) > MAX_NAMES else "")
    text = f"Read {count} from {files}{f' ({languages})' if languages else ''}."
    if not skipped:
        return text
    return f"{text} Skipped {reasons if reasons.startswith(f'{skipped:,} ') else f'{skipped:,}: {reasons}'}."


def in_blocks(items: Iterable[Item], size: int = BLOCK_SIZE) -> Iterator[list[Item]]:
    """The items in lists of this size; the last may be shorter."""
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block


def hash_bytes(data: bytes) -> int:
    """A 64-bit hash, the same on every machine."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def select_validation(hashes: Hashes, fraction: float, labels: NDArray[np.int64] | None = None) -> SplitMask:
    """Mark the examples of the validation split: this fraction of the distinct ones, at least one if it is not 0.

    The example with the highest hash of every label stays in the training data.
    """
    nothing = np.zeros(len(hashes), np.bool_)
    if not fraction or not len(hashes):
        return nothing
    stay = _highest_hashes(hashes, np.zeros(len(hashes), np.int64) if labels is None else labels)
    distinct = np.unique(hashes)
    free = np.setdiff1d(distinct, stay)
    if not len(free):
        return nothing
    count = min(len(free), max(1, round(fraction * len(distinct))))
    return (hashes <= free[count - 1]) & ~np.isin(hashes, stay)


def _highest_hashes(hashes: Hashes, labels: NDArray[np.int64]) -> Hashes:
    """The highest hash of each label."""
    highest = np.zeros(int(labels.max(initial=0)) + 1, np.uint64)
    np.maximum.at(highest, labels, hashes)
    return np.unique(highest)


def default_validation_fraction(count: int) -> float:
    """The fraction of this many examples that is held out."""
    return 0.0 if count < MIN_EXAMPLES else min(VALIDATION_FRACTION, MAX_VALIDATION_EXAMPLES / count)


def overlap_warnings(validation: Hashes, training: Hashes, examples: str) -> list[str]:
    """A warning if validation examples are in the training data too."""
    both = int(np.isin(validation, training).sum())
    return [f"{both:,} of {len(validation):,} validation {examples} are in the training data too."] if both else []


@dataclass(frozen=True)
class TruncatedReader:
    """Reads sequences as another reader does, truncated to `longest` ids."""

    read: SequenceReader
    longest: int

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> tuple[Ragged, ...]:
        return tuple(_truncate_sequences(side, self.longest) for side in self.read(numbers, epoch))


def _truncate_sequences(sequences: Ragged, longest: int) -> Ragged:
    positions = np.arange(len(sequences.ids)) - np.repeat(np.cumsum(sequences.lengths) - sequences.lengths,
                                                          sequences.lengths)
    return Ragged(sequences.ids[positions < longest], np.minimum(sequences.lengths, longest))


def max_positions(model_config: Any) -> int | None:
    """The number of learned positions of a model; None if its inputs can be of any length."""
    positions = model_config.embedding.positions
    return positions.max_positions if isinstance(positions, LearnedConfig) else None


def truncate_reader(read: SequenceReader, longest: int | None) -> SequenceReader:
    """A reader of sequences truncated to `longest` ids; None for the reader itself."""
    return read if longest is None else TruncatedReader(read, longest)


def truncate_shapes(shapes: tuple[BatchShape, ...], longest: int | None) -> tuple[BatchShape, ...]:
    """The batch shapes of truncated sequences."""
    if longest is None:
        return shapes
    return tuple(BatchShape(shape.rows, tuple(min(length, longest) for length in shape.lengths)) for shape in shapes)


def truncation_note(store: TextStore, longest: int | None) -> tuple[str, ...]:
    """A note for the user if texts are truncated."""
    count = 0 if longest is None else int((text_lengths(store) > longest).sum())
    note = f"Truncated {count:,} of {checks.plural(len(store), 'text')} to the {longest} positions of the model."
    return (note,) if count else ()


def store_feed(store: TextStore, config: BatchConfig, maker: BatchMaker, padding: int, seed: int,
               longest: int | None = None, rank: int = 0, processes: int = 1) -> PlanFeed:
    """The batches of all texts of a store; `maker` reads them truncated to `longest` ids."""
    plan = plan_from_config(store, config, seed=seed, extra=(0,), longest=longest)
    if config.shapes == "few":  # shapes of packed batches count truncated tokens already
        shapes = plan.shapes if config.layout == "packed" else truncate_shapes(plan.shapes, longest)
        maker = FittedCollator(maker, shapes, padding)
    return PlanFeed(plan, maker, rank=rank, processes=processes, largest=plan.largest())


def text_lengths(store: TextStore, longest: int | None = None) -> ExampleNumbers:
    """The number of ids of each text, truncated to `longest`."""
    lengths = store.sides[0].lengths(0, len(store))
    return lengths if longest is None else np.minimum(lengths, longest)


def refuse_sampling(settings: TrainingConfig) -> None:
    """Refuse subword sampling, which only translation has."""
    if settings.subword_sampling:
        raise checks.wrong("training.subword_sampling", "0 for this task: only translation has subword sampling",
                           settings.subword_sampling)


@dataclass(frozen=True)
class StoredTokenizer(Generic[TokenizerKind]):
    """A tokenizer, and notes for the user about its training."""

    tokenizer: TokenizerKind
    notes: tuple[str, ...] = ()


def load_or_train_pair_tokenizer(place: Path, sides: tuple[TextsFactory, TextsFactory], config: TokenizerConfig, *,
                                 joint: bool, data: Sequence[str], settings: Mapping[str, Any],
                                 controls: Sequence[str] = ()) -> StoredTokenizer[PairTokenizer]:
    """The tokenizers of source and target. They are trained once, so that a resumed training gets the same ids.

    Args:
        controls: the control tokens that sources may begin with.
    """
    key = store_key(data, json.dumps([configs.to_tables(config), joint, *controls], sort_keys=True), settings)

    def make() -> StoredTokenizer[PairTokenizer]:
        sources, targets = sides
        made = (training.train_joint_tokenizer(sources(), targets(), config) if joint
                else training.train_separate_tokenizers(sources(), targets(), config, config))
        return StoredTokenizer(training.add_controls(made.tokenizer, controls), made.notes)

    return _load_or_train(place / TOKENIZER_FOLDER, key, make, loading.load_pair_tokenizer)


def load_or_train_tokenizer(place: Path, texts: TextsFactory, config: TokenizerConfig, *, data: Sequence[str],
                            settings: Mapping[str, Any]) -> StoredTokenizer[Tokenizer]:
    """The tokenizer of these texts. It is trained once, so that a resumed training gets the same ids.

    Args:
        data, settings: the sha256 of the files and all else that the texts depend on; with others it is trained anew.
    """
    key = store_key(data, json.dumps(configs.to_tables(config), sort_keys=True), settings)

    def make() -> StoredTokenizer[Tokenizer]:
        made = training.train_tokenizer(texts(), config)
        return StoredTokenizer(made.tokenizer, made.notes)

    return _load_or_train(place / TOKENIZER_FOLDER, key, make, loading.load_tokenizer)


def _load_or_train(folder: Path, key: str, make: Callable[[], StoredTokenizer[TokenizerKind]],
                   load: Callable[..., TokenizerKind]) -> StoredTokenizer[TokenizerKind]:
    if folder.exists():
        files = folders.load(folder, lambda saved: {name: saved.read_bytes(name) for name in saved.manifest.files})
        about = json.loads(files[ABOUT_FILE]) if ABOUT_FILE in files else {}
        if about.get("key") == key:
            return StoredTokenizer(load(files, sha256=about["sha256"]), tuple(about["notes"]))
    made = make()
    about = {"key": key, "sha256": made.tokenizer.sha256, "notes": list(made.notes)}
    folders.save(folder, {**made.tokenizer.files(), ABOUT_FILE: json.dumps(about, indent=1).encode()})
    return made


@dataclass(frozen=True)
class PreparedTexts:
    """Training and validation texts as ids."""

    tokenizer: Tokenizer
    training: TextStore
    validation: TextStore
    notes: tuple[str, ...]

    @property
    def vocabulary(self) -> int:
        """The size of the tokenizer."""
        return self.tokenizer.size

    @property
    def tokens(self) -> int:
        """The number of training tokens."""
        return len(self.training.stream)


def encode_texts(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[list[int]]:
    """The ids of each text."""
    for block in in_blocks(texts):
        yield from tokenizer.encode_batch(block)


def prepare_texts(place: Path, config: TokenizerConfig | None, training: Callable[[], Iterable[Any]],
                  validation: Callable[[], Iterable[Any]], *, data: Sequence[str], settings: Mapping[str, Any],
                  tokenizer_texts: TextsFactory | None = None,
                  encode: Callable[[Tokenizer, Iterable[Any]], Iterator[list[int]]] = encode_texts,
                  tokenizer: Tokenizer | None = None) -> PreparedTexts:
    """Train the tokenizer, or load the one trained before, and write all texts as ids.

    Args:
        place: the folder for tokenizer and ids, which are found again there by `data` and `settings`.
        tokenizer_texts: the texts to train the tokenizer on; by default `training`.
        tokenizer: one that exists already, instead of one that is trained on the texts.
    """
    notes = list[str]()
    if tokenizer is None:
        assert config is not None, "without a tokenizer one is trained"
        trained = load_or_train_tokenizer(place, tokenizer_texts or training, config, data=data, settings=settings)
        tokenizer, notes = trained.tokenizer, [*trained.notes]
    key = store_key(data, tokenizer.sha256, settings)
    found = []
    for name, texts in (("ids", training), ("held", validation)):
        opened = stores.open_or_make_texts(place / name, key, partial(_encode_all, encode, tokenizer, texts),
                                           vocabulary=tokenizer.size)
        found.append(opened.store)
        notes += opened.notes
    return PreparedTexts(tokenizer, found[0], found[1], tuple(notes))


def _encode_all(encode: Callable[[Tokenizer, Iterable[Any]], Iterator[list[int]]], tokenizer: Tokenizer,
                texts: Callable[[], Iterable[Any]]) -> Iterator[list[int]]:
    return encode(tokenizer, texts())


class FeatureObjective(Objective):
    """The loss of a model that has `features` and `output`, on batches that have `inputs` and `labels`.

    Args:
        rdrop: the weight of R-Drop, which runs the model twice with different dropout; 0 for one pass.
    """

    def __init__(self, model: nn.Module, label_smoothing: float, rdrop: float) -> None:
        super().__init__(model)
        self.label_smoothing, self.rdrop = label_smoothing, rdrop

    def forward(self, batch: Any) -> Loss:
        """The sums over the labels."""
        features: Callable[[Any], Tensor] = self.model.features  # type: ignore[assignment]
        output: nn.Linear = self.model.output  # type: ignore[assignment]
        inputs = model_inputs(batch.inputs)
        if not self.rdrop or not self.training:
            return token_loss(features(inputs), output, batch.labels, self.label_smoothing)
        states = torch.stack([features(inputs), features(inputs)])
        return rdrop_loss(states, output, batch.labels, self.label_smoothing, self.rdrop)


class FeatureTask(TrainingTask):
    """Training of a model that has `features` and `output`, without subword sampling."""

    def __init__(self, prepared: Any, model_config: Any, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        refuse_sampling(settings)
        super().__init__(prepared, model_config, settings, record)

    def objective(self, model: nn.Module) -> FeatureObjective:
        """The model with its loss."""
        return FeatureObjective(model, self.settings.label_smoothing, self.settings.rdrop)


class LabelledTask(FeatureTask):
    """Training of a model that chooses among the labels of the data.

    Args:
        prepared: data with `labels`, `training` and `validation`.
    """

    def __init__(self, prepared: Any, model_config: Any, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if model_config.num_labels != len(prepared.labels):
            raise checks.wrong("model.num_labels", f"{len(prepared.labels)}, the number of labels in the data",
                               model_config.num_labels)
        super().__init__(prepared, model_config, settings, record)
        self.labels: Sequence[str] = prepared.labels
        self.validation_count = min(len(prepared.validation), settings.validation.max_examples)


def model_inputs(inputs: Any) -> Any:
    """The inputs as a model takes them: image bytes are scaled, all else is unchanged."""
    return scale_pixels(inputs) if isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 else inputs


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every submodule has its mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


class MetricSums:
    """Loss and accuracy, summed over the labels of many batches on the device."""

    def __init__(self, device: torch.device) -> None:
        self._nll, self._correct, self._tokens = (torch.zeros((), dtype=torch.float64, device=device)
                                                  for _ in range(3))

    def add(self, loss: Loss) -> None:
        """Add the loss of a batch."""
        self._nll += loss.nll
        self._tokens += loss.tokens

    def evaluate(self, features: Tensor, output: nn.Linear, labels: Tensor) -> None:
        """Add loss and correct predictions of features (..., D) with labels (...); ignored labels do not count."""
        counted = labels != IGNORED_LABEL
        logits, labels = output(features[counted]), labels[counted]
        self.add(logits_loss(logits, labels))
        self._correct += (logits.argmax(-1) == labels).sum()

    @property
    def loss(self) -> float:
        """The mean of -log p."""
        return float(self._nll / self._tokens)

    @property
    def accuracy(self) -> float:
        """The fraction of correct predictions among the batches given to `evaluate`."""
        return float(self._correct / self._tokens)
