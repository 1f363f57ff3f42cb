"""Training a language model: from plain text files to windows, a loss, and perplexity.

    survey_text(data, validation, config)        statistics of the files
    prepare_text(survey, tokenizer, place)       a tokenizer, trained once, and the text as ids on disk
    LanguageTask(prepared, config, settings)     batches, loss and validation

The files are one continuous text, with line ends as they stand (CRLF becomes LF) and the end id between two files.
Without validation text, the last part is held out. Models with positions read windows in a shuffled order that starts
at another offset in every epoch. Recurrent models can read continuous windows by truncated back-propagation through
time (Williams and Peng 1990): the state is carried from window to window, and gradients stop at the edge.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import checks
from regard import config as configs
from regard.checks import plural
from regard.convolution import ConvolutionConfig
from regard.data.batches.batch import Batch
from regard.data.batches.feed import (
    BatchConfig,
    MovingWindowCollator,
    PlanFeed,
    StreamFeed,
    WindowCollator,
    WindowConfig,
    WindowPlan,
)
from regard.data.batches.plan import ExampleNumbers
from regard.data.sources.text import MAX_RUNNING_TEXT_BYTES, DataError, InputFile, decode_chunks
from regard.data.tokenizer.interface import Tokenizer
from regard.data.tokenizer.subwords import LosslessTokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.models.build import ModelConfig
from regard.models.language import LanguageModel, LanguageModelConfig
from regard.recurrence.scan import RecurrenceConfig
from regard.rwkv.time_mix import RWKV4Config, RWKV7Config
from regard.tasks.completer import Completer
from regard.tasks.load import make_task
from regard.tasks.task import Task
from regard.tokens import IGNORED_LABEL, Tokens
from regard.toml import TomlDocument
from regard.training import defaults
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties
from regard.training.logging import ValidationExample
from regard.training.loss import Loss, token_loss
from regard.training.tasks.common import (
    FeatureObjective,
    MetricSums,
    PreparedTexts,
    evaluation_mode,
    file_digests,
    in_blocks,
    max_positions,
    open_inputs,
    prepare_texts,
    read_summary,
    refuse_sampling,
)
from regard.training.tasks.interface import (
    LABEL_KEYS,
    PAIR_KEYS,
    TRACK_KEYS,
    BatchLoader,
    Objective,
    ProgressHook,
    TaskSetup,
    TrainingRequest,
    TrainingTask,
    ValidationResult,
    short_sample,
    validation_fraction_default,
)
from regard.training.tasks.start_checks import text_notes

Pieces = Iterator[str | None]
"""A text in pieces, with FILE_END between two files. Each piece but the first of a file begins with its line end."""
FILE_END: Final = None
LINE_BREAK = "\n"
PIECES_PER_BLOCK = 4096
"""Pieces that are tokenized at once."""
TEXT_VALIDATION_FRACTION, MIN_SPLIT_CHARACTERS = 0.1, 200
"""The fraction of a text that is held out, and the characters that it must have for that."""
MIN_WINDOWS_PER_ROW = 16
"""Windows in each row of a validation stream, at least: the state is empty at the start of a row, which costs loss."""
SHOWN_TOKENS, SAMPLE_TOKENS = 60, 2000
"""Tokens of an example prompt, and of its continuation."""
STATE_NAME = "memory"
TOKENS_PER_EXAMPLE = 25
"""Tokens of a text that count as one example for the defaults of fine-tuning."""


def read_pieces(inputs: Sequence[InputFile]) -> Pieces:
    """The text of all files, line by line.

    No token crosses a line end, so pieces can be tokenized one by one.
    """
    for number, file in enumerate(inputs):
        if number:
            yield FILE_END
        before, line = "", ""
        for text in decode_chunks(file, MAX_RUNNING_TEXT_BYTES):
            *complete, line = text.replace("\r\n", LINE_BREAK).split(LINE_BREAK)
            for each in complete:
                yield before + each
                before = LINE_BREAK
        if before or line:
            yield before + line


def slice_pieces(pieces: Iterable[str | None], first: int, last: int) -> Pieces:
    """The characters from `first` up to `last`, exclusive."""
    at = 0
    for piece in pieces:
        if piece is FILE_END:
            if first < at < last:
                yield FILE_END
            continue
        inside = piece[max(0, first - at):max(0, last - at)]
        at += len(piece)
        if inside:
            yield inside
        if at >= last:
            return


def encode_pieces(tokenizer: Tokenizer, pieces: Iterable[str | None]) -> Iterator[list[int]]:
    """The ids of each piece; together they are the ids of the whole text."""
    for block in in_blocks(pieces, PIECES_PER_BLOCK):
        ids = iter(tokenizer.encode_batch([piece for piece in block if piece is not FILE_END]))
        for piece in block:
            yield list(tokenizer.special.end[:1]) if piece is FILE_END else _without_prefix(tokenizer, piece, next(ids))


def _without_prefix(tokenizer: Tokenizer, piece: str, ids: list[int]) -> list[int]:
    """The ids without the space that subword tokenizers put before a text, unless the piece begins a file."""
    if not isinstance(tokenizer, LosslessTokenizer) or not tokenizer.prefix or not piece.startswith(LINE_BREAK):
        return ids
    assert tokenizer.surfaces[ids[0]] == tokenizer.prefix.encode(), "no token crosses a line end"
    return ids[1:]


@dataclass(frozen=True)
class LanguageSurvey:
    """Statistics of the files, and the text in them."""

    files: dict[str, str]
    """The sha256 of every file by its name."""
    config: DataConfig
    inputs: tuple[InputFile, ...]
    validation: tuple[InputFile, ...]
    """Empty if no validation files are given."""
    characters: int
    """Characters of the training files, with the part that is held out."""
    notes: tuple[str, ...] = ()
    """What the user should know about how the text fits the model that is fine-tuned."""

    @property
    def training_characters(self) -> int:
        """Characters before the part that is held out."""
        return self.characters if self.validation else int(self.characters * (1 - self.config.validation_fraction))

    def training_text(self) -> Pieces:
        """The text before the part that is held out."""
        return slice_pieces(read_pieces(self.inputs), 0, self.training_characters)

    def validation_text(self) -> Pieces:
        """The validation files, the part that is held out, or else the training text."""
        if self.validation:
            return read_pieces(self.validation)
        first = self.training_characters if self.training_characters < self.characters else 0
        return slice_pieces(read_pieces(self.inputs), first, self.characters)

    @property
    def counts(self) -> dict[str, int]:
        """The number of characters, with those that are held out."""
        return {"characters": self.characters}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was read, and what the user should know about it."""
        training = {file.path for file in self.inputs}
        return (read_summary(plural(self.characters, "character"), (file.path for file in self.inputs)),
                *(f"{file.name} is both training and validation data: the scores say nothing about other texts."
                  for file in self.validation if file.path in training), *self.notes)


def survey_text(data: Sequence[str], validation: Sequence[str], config: DataConfig, *,
                progress: ProgressHook = iter) -> LanguageSurvey:
    """Read all files once."""
    inputs, other = open_inputs(data), open_inputs(validation)
    characters, distinct = 0, set[str]()
    for piece in progress(read_pieces(inputs)):
        if piece is not FILE_END:
            characters += len(piece)
            distinct.update(piece)
    if len(distinct) < 2:
        names = ", ".join(file.name for file in inputs)
        raise DataError(f"{names}: No text to train on: it needs at least two different characters.")
    for _ in read_pieces(other):
        pass  # a damaged file is reported now, and not after the tokenizer was trained
    return LanguageSurvey(file_digests([*data, *validation]), config, inputs, other, characters)


def prepare_text(survey: LanguageSurvey, config: TokenizerConfig | None, place: Path,
                 tokenizer: Tokenizer | None = None) -> PreparedTexts:
    """Train the tokenizer, or take one that exists, and write the text as ids into this folder."""
    if config is not None and config.normalization == "line":
        raise checks.wrong("tokenizer.normalization", '"nfc" or "exact" for a continuous text', '"line"',
                           "It would make all of the text one line.")
    prepared = prepare_texts(place, config, survey.training_text, survey.validation_text, encode=encode_pieces,
                             tokenizer=tokenizer, data=list(survey.files.values()),
                             settings={"held": survey.config.validation_fraction, "given": len(survey.validation)},
                             tokenizer_texts=lambda: (piece for piece in survey.training_text()
                                                      if piece is not FILE_END))
    for role, store in (("training", prepared.training), ("validation", prepared.validation)):
        if len(store.stream) < 2:
            raise DataError(f"{', '.join(survey.files)}: The {role} text has fewer than two tokens. Use more text.")
    return prepared


@dataclass(frozen=True)
class StreamWindow:
    """A batch of windows, and whether their streams start with it: a bool tensor without dimensions.

    It is a tensor so that a step can be captured in a CUDA graph.
    """

    batch: Batch
    first: Tensor

    @property
    def tokens(self) -> int:
        """The number of labels."""
        return self.batch.tokens

    @property
    def numbers(self) -> ExampleNumbers:
        """The numbers of the rows."""
        return self.batch.numbers

    def to(self, device: "torch.device | str") -> "StreamWindow":
        """The same windows on a device."""
        return StreamWindow(self.batch.to(device), self.first.to(device))


class ContinuousFeed:
    """Windows that continue each other from step to step, all of one length."""

    def __init__(self, streams: StreamFeed) -> None:
        self.streams = streams

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return self.streams.steps

    def at(self, step: int) -> StreamWindow:
        """The windows of this process in this step. An epoch starts with an empty state."""
        position = self.streams.position(step)
        batch = pad_windows(self.streams.make(position), self.streams.length, self.streams.padding)
        return StreamWindow(batch, torch.tensor(position.step == 0))

    def largest(self) -> list[StreamWindow]:
        """Any window: all need equally much memory."""
        return [self.at(0)]


@dataclass(frozen=True)
class PaddedWindows:
    """Collates windows, all padded to one length."""

    windows: WindowCollator | MovingWindowCollator

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        """The batch of these windows."""
        return pad_windows(self.windows(numbers, epoch), self.windows.length, self.windows.padding)


def pad_windows(batch: Batch, length: int, padding: int) -> Batch:
    """The windows of a batch, padded to one length at the end, where a causal model needs no mask for it."""
    more = length - batch.labels.shape[1]
    ids, labels = F.pad(batch.inputs.ids, (0, more), value=padding), F.pad(batch.labels, (0, more), value=IGNORED_LABEL)
    return Batch(None, Tokens(ids), labels, batch.numbers, batch.tokens)


def window_feed(prepared: PreparedTexts, config: WindowConfig, seed: int, rank: int = 0,
                processes: int = 1) -> BatchLoader:
    """The windows of the training text, continuous or shuffled."""
    padding = prepared.tokenizer.special.padding or 0
    if config.order == "continuous":
        return ContinuousFeed(StreamFeed(prepared.training, length=config.length, rows=config.batch_size,
                                         padding=padding, rank=rank, processes=processes))
    windows = MovingWindowCollator(prepared.training, config.length, seed, padding)
    plan = WindowPlan(windows.count, config.batch_size, seed)
    return PlanFeed(plan, PaddedWindows(windows), rank=rank, processes=processes)


class WindowObjective(FeatureObjective):
    """The loss of windows that are read independently of each other."""

    def forward(self, batch: Batch | StreamWindow) -> Loss:
        """The sums over the labels."""
        return super().forward(batch.batch if isinstance(batch, StreamWindow) else batch)


class TruncatedBPTTObjective(Objective):
    """The loss of a recurrent language model that continues from the state after the last window.

    The state stays in the same tensors from step to step, as a CUDA graph needs it.
    """

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.label_smoothing = label_smoothing
        self._state: tuple[Tensor, ...] = ()
        self._evaluation_state: tuple[Tensor, ...] = ()  # apart, so that validation does not disturb training

    def forward(self, window: StreamWindow) -> Loss:
        """The sums over the labels of a window."""
        model, ids = self.model, window.batch.inputs.ids
        assert isinstance(model, LanguageModel)
        start = model.start(rows=ids.shape[0], capacity=ids.shape[1])
        initial = start.memories()
        state = self._state_buffers(initial)
        memories = [torch.where(window.first, new, old) for new, old in zip(initial, state, strict=True)]
        features, after = model.step_features(start.with_memories(memories), ids)
        with torch.no_grad():
            for buffer, memory in zip(state, after.memories(), strict=True):
                buffer.copy_(memory)
        return token_loss(features, model.output, window.batch.labels, self.label_smoothing)

    def carried(self) -> dict[str, Tensor]:
        """The state after the last window."""
        return {f"{STATE_NAME}.{number}": memory.clone() for number, memory in enumerate(self._state)}

    def resume(self, carried: Mapping[str, Tensor]) -> None:
        """Continue with this state."""
        stored = [carried[f"{STATE_NAME}.{number}"] for number in range(len(carried))]
        if [memory.shape for memory in stored] == [buffer.shape for buffer in self._state]:
            for buffer, memory in zip(self._state, stored, strict=True):
                buffer.copy_(memory)  # a CUDA graph reads from these very tensors
        else:
            device = next(self.model.parameters()).device
            self._state = tuple(memory.to(device, copy=True) for memory in stored)

    def _state_buffers(self, initial: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The tensors that hold the state, made at first use."""
        shapes = [memory.shape for memory in initial]
        if not self.training:
            if [memory.shape for memory in self._evaluation_state] != shapes:
                self._evaluation_state = tuple(memory.detach().clone() for memory in initial)
            return self._evaluation_state
        if not self._state:
            self._state = tuple(memory.detach().clone() for memory in initial)
        if [memory.shape for memory in self._state] != shapes:
            raise checks.wrong("window", f"of {len(self._state[0])} rows, as those before it", f"of {len(initial[0])}")
        return self._state


def carries_state(model_config: LanguageModelConfig) -> bool:
    """Whether a model has a state of constant size and no positions, so that a text may be of any length."""
    mixer, positions = model_config.stack.mixer, model_config.embedding.positions
    kinds = RecurrenceConfig | ConvolutionConfig | RWKV4Config | RWKV7Config
    return isinstance(mixer, kinds) and positions is None


class LanguageTask(TrainingTask):
    """Training of a causal language model on windows of a text."""

    name = "language model"
    prepared: PreparedTexts

    def __init__(self, prepared: PreparedTexts, model_config: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(model_config, LanguageModelConfig):
            raise checks.wrong("model.kind", f'"{LanguageModelConfig.kind}", for a language model',
                               f'"{model_config.kind}"')
        if settings.windows is None:
            raise checks.wrong("training.windows", "a table with the length of windows", "missing")
        super().__init__(prepared, model_config, settings, record)
        self.windows, self.longest = settings.windows, max_positions(model_config)
        if self.longest is not None and self.windows.length > self.longest:
            raise checks.wrong("training.windows.length", f"at most {self.longest}, the positions of the model",
                               self.windows.length)
        refuse_sampling(settings)
        self.carried = self.windows.order == "continuous" and carries_state(model_config)
        if self.carried and settings.rdrop:
            raise checks.wrong("training.rdrop", "0 for continuous windows: R-Drop runs each of them twice, and only "
                               "one state can be carried on", settings.rdrop)

    def feed(self, rank: int, processes: int) -> BatchLoader:
        """The windows of this process."""
        return window_feed(self.prepared, self.windows, self.settings.seed, rank, processes)

    def objective(self, model: nn.Module) -> Objective:
        """The model with its loss."""
        if self.carried:
            return TruncatedBPTTObjective(model, self.settings.label_smoothing)
        return WindowObjective(model, self.settings.label_smoothing, self.settings.rdrop)

    def wrap(self, model: nn.Module) -> Task:
        """A Completer."""
        tokenizer = self.prepared.tokenizer
        return make_task(model, self.model_config, tokenizer.special, tokenizer=tokenizer, record=self.record)

    def validation_batches(self) -> Sequence[Batch | StreamWindow]:
        """The validation text, every id once, in continuous windows if the model carries a state."""
        text, length, limit = self.prepared.validation, self.windows.length, self.settings.validation.max_examples
        if self.carried:
            rows = max(1, min(self.windows.batch_size, len(text.stream) // (MIN_WINDOWS_PER_ROW * length)))
            feed = ContinuousFeed(StreamFeed(text, length=length, rows=rows))
            return [feed.at(step) for step in range(min(feed.steps, -(-limit // rows)))]
        windows = PaddedWindows(WindowCollator(text, length))
        last = min(windows.windows.count, limit)
        return [windows(np.arange(first, min(first + self.windows.batch_size, last)), 0)
                for first in range(0, last, self.windows.batch_size)]

    def sample_input(self) -> str | None:
        """The beginning of a line of the validation text."""
        text = self.prepared.tokenizer.decode(self.prepared.validation.stream[:SAMPLE_TOKENS].tolist())
        return short_sample(line.strip() for line in text.splitlines())

    def validate(self, task: Task) -> ValidationResult:
        """The loss of the validation text, and continuations of some prompts from it."""
        assert isinstance(task, Completer)
        sums, objective = MetricSums(task.device), self.objective(task.model)
        with evaluation_mode(objective):
            for batch in self.validation_batches():
                sums.add(objective(batch.to(task.device)))
            return ValidationResult({"loss": sums.loss}, tuple(self._examples(task)))

    def _examples(self, task: Completer) -> Iterator[ValidationExample]:
        """Prompts at equal distances, their continuations in the text, and those of the model."""
        ids, decode = self.prepared.validation.stream, self.prepared.tokenizer.decode
        length = min(SHOWN_TOKENS, (len(ids) if self.longest is None else min(self.longest, len(ids))) // 2)
        count = self.settings.validation.samples_shown if length else 0
        starts = [number * (len(ids) - 2 * length) // count for number in range(count)]
        prompts = [ids[start:start + length].tolist() for start in starts]
        completions = task.complete_ids(prompts, max_length=length) if count else []
        for start, prompt, completion in zip(starts, prompts, completions, strict=True):
            yield ValidationExample(decode(prompt), decode(ids[start + length:start + 2 * length].tolist()),
                                    decode(completion[0].ids))


class LanguageSetup(TaskSetup):
    """From text files to a `LanguageTask`; see `TaskSetup` for the methods."""

    recipes: tuple[str, ...] = (defaults.LANGUAGE_RECIPE,)
    model_kinds: tuple[str, ...] = ("language",)
    data_dependent: Mapping[str, Any] = {"tokenizer.kind": "characters", "model.vocab_size": 1000}
    scores: tuple[str, ...] = ("loss",)
    unused: Mapping[str, Any] = {"training.masking": None, "training.random_shift": 0, **PAIR_KEYS, **LABEL_KEYS,
                                 **TRACK_KEYS,
                                 **{f"training.batches.{key}": getattr(BatchConfig(), key)
                                    for key in ("max_tokens", "batch_size", "layout", "shapes")}}

    def survey(self, request: TrainingRequest, config: DataConfig) -> LanguageSurvey:
        survey = survey_text(request.data, request.validation, config, progress=request.progress)
        if self.start is None:
            return survey
        pieces = (piece for piece in read_pieces(survey.inputs) if piece is not FILE_END)
        return replace(survey, notes=text_notes(self.start, pieces, request.data))

    def data_defaults(self, survey: LanguageSurvey, requested: Mapping[str, Any]) -> list[Default]:
        given = bool(survey.validation)
        fraction = 0.0 if given or survey.characters < MIN_SPLIT_CHARACTERS else TEXT_VALIDATION_FRACTION
        return [validation_fraction_default(given, fraction, "the last 10 % of the text, held out for validation",
                                            "the text is too short to hold out a part of it: validation uses "
                                            "the training text"),
                *(defaults.language_tokenizer(survey.characters, requested.get("tokenizer", {}))
                  if self.start is None else self.start.data_defaults())]

    def prepare(self, survey: LanguageSurvey, document: TomlDocument, place: Path) -> PreparedTexts:
        survey = replace(survey, config=configs.read_config(DataConfig, document, ("data",)))
        if self.start is not None:
            return prepare_text(survey, None, place, self.start.tokenizer)
        return prepare_text(survey, configs.read_config(TokenizerConfig, document, ("tokenizer",)), place)

    def recipe_default(self, prepared: PreparedTexts, device: DeviceProperties, requested: str | None) -> Default:
        return defaults.language_recipe(prepared.tokens, device, requested)

    def training_defaults(self, prepared: PreparedTexts, tables: Mapping[str, Any],
                          device: DeviceProperties) -> list[Default]:
        model, tokens, requested = tables["model"], prepared.tokens, tables.get("training", {})
        if self.start is not None:
            scratch = defaults.language_training(tokens, model, device, requested)
            data = defaults.FinetuningData(max(1, tokens // TOKENS_PER_EXAMPLE), tokens, model["width"], 0)
            return [*defaults.finetuning_training(scratch, data, device, requested)]
        return [Default("model.vocab_size", prepared.vocabulary, "size of the tokenizer"),
                *defaults.language_model(tokens, model),
                *defaults.language_training(tokens, model, device, tables.get("training", {}))]

    def steps_per_epoch(self, prepared: PreparedTexts, document: TomlDocument) -> int:
        return window_feed(prepared, configs.read_config(WindowConfig, document, ("training", "windows")), seed=1).steps

    def build(self, prepared: PreparedTexts, model_config: ModelConfig, settings: TrainingConfig,
              record: dict[str, Any]) -> LanguageTask:
        return LanguageTask(prepared, model_config, settings, record)
