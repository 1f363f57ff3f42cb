"""Training a language model: from plain text files to windows, a loss, and perplexity.

    survey_text(data, validation, config)        statistics of the files
    prepare_text(survey, tokenizer, place)       a tokenizer, trained once, and the text as ids on disk
    LanguageTask(prepared, config, settings)     batches, loss and validation

The files are one continuous text, with line ends as they stand (CRLF becomes LF) and the end id between two files.
Without validation text, the last part is held out. Models with positions read windows in a shuffled order that starts
at another offset in every epoch. Recurrent models can read continuous windows by truncated back-propagation through
time (Williams and Peng 1990): the state is carried from window to window, and gradients stop at the edge.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import checks, config
from regard.convolution import ConvolutionConfig
from regard.data import store as stores
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
from regard.data.sources.text import DataError, InputFile, decode_chunks
from regard.data.store import TextStore
from regard.data.tokenizer.interface import Tokenizer
from regard.data.tokenizer.subwords import LosslessTokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.models.build import ModelConfig
from regard.models.language import LanguageModel, LanguageModelConfig
from regard.recurrence.scan import RecurrenceConfig
from regard.tasks.completer import Completer
from regard.tasks.load import make_task
from regard.tasks.task import Task
from regard.tokens import IGNORED_LABEL, Tokens
from regard.toml import TomlDocument
from regard.training import defaults as choices
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties
from regard.training.logging import ValidationExample
from regard.training.loss import Loss, token_loss
from regard.training.tasks.common import (
    FeatureObjective,
    MetricSums,
    evaluation_mode,
    file_digests,
    in_blocks,
    load_or_train_tokenizer,
    max_positions,
    open_inputs,
    refuse_sampling,
)
from regard.training.tasks.interface import (
    BatchLoader,
    Objective,
    TrainingRequest,
    ValidationResult,
    validation_fraction_default,
)

Pieces = Iterator[str | None]
FILE_END: Final = None
"""What stands between two files."""
LINE_BREAK = "\n"
PIECES_PER_BLOCK = 4096
"""Pieces that are encoded in one go."""


def read_pieces(inputs: Sequence[InputFile]) -> Iterator[str | None]:
    """The text of all files."""
    for number, input in enumerate(inputs):
        if number:
            yield FILE_END
        before, line = "", ""
        for text in decode_chunks(input):
            *whole, line = text.replace("\r\n", LINE_BREAK).split(LINE_BREAK)
            for one in whole:
                yield before + one
                before = LINE_BREAK
        if before or line:
            yield before + line


def slice_pieces(given: Iterable[str | None], first: int, last: int) -> Iterator[str | None]:
    """The characters from `first` up to `last`, which is not among them."""
    at = 0
    for piece in given:
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


def encode_pieces(tokenizer: Tokenizer, given: Iterable[str | None]) -> Iterator[list[int]]:
    """The ids of the text, some at a time."""
    for block in in_blocks(given, PIECES_PER_BLOCK):
        ids = iter(tokenizer.encode_batch([piece for piece in block if piece is not FILE_END]))
        for piece in block:
            yield list(tokenizer.special.end[:1]) if piece is FILE_END else _continued_ids(tokenizer, piece, next(ids))


def check_normalisation(config: TokenizerConfig) -> None:
    """Refuse a tokenizer that would take the line ends away."""
    if config.normalization == "line":
        raise checks.wrong("tokenizer.normalization", '"nfc" or "exact" for a continuous text', '"line"',
                           "It would make all of the text one line.")


def _continued_ids(tokenizer: Tokenizer, piece: str, ids: list[int]) -> list[int]:
    """The ids of a piece, without the space in front of it where it goes on after a line end."""
    if not isinstance(tokenizer, LosslessTokenizer) or not tokenizer.prefix or not piece.startswith(LINE_BREAK):
        return ids
    assert tokenizer.surfaces[ids[0]] == tokenizer.prefix.encode(), "no token reaches over a line end"
    return ids[1:]


# ---- carrying: Truncated back-propagation through time: the state of a recurrent model goes on from window to window.
#
#     Window(batch, first)          a batch of `Streams`, and whether the text begins anew with it
#     ContinuousFeed(streams)       the windows of every step
#     CarriedObjective(model)       the loss of a window, after what the windows before it left in mind
#
# Gradients flow inside a window and stop at its edge (Williams and Peng 1990). The state lies in places that stay the
# same from step to step, and `first` is a tensor, so that a step can be recorded once and replayed. It does not know
# texts or files.

STATE_NAME = "memory"


@dataclass(frozen=True)
class StreamWindow:
    """A batch, and whether its rows begin anew: a bool tensor of no dimensions."""

    batch: Batch
    first: Tensor

    @property
    def tokens(self) -> int:
        """How many labels there are in it."""
        return self.batch.tokens

    @property
    def numbers(self) -> ExampleNumbers:
        """Which rows of the text these are."""
        return self.batch.numbers

    def to(self, device: "torch.device | str") -> "StreamWindow":
        """The same on a device."""
        return StreamWindow(self.batch.to(device), self.first.to(device))


class ContinuousFeed:
    """The windows of streams by the number of the step, all of them equally long."""

    def __init__(self, streams: StreamFeed) -> None:
        self.streams = streams

    @property
    def steps(self) -> int:
        """How many steps every epoch has."""
        return self.streams.steps

    def at(self, step: int) -> StreamWindow:
        """The window of this process in this step. With the first of an epoch the text begins anew."""
        place = self.streams.position(step)
        batch = pad_windows(self.streams.make(place), self.streams.length, self.streams.padding)
        return StreamWindow(batch, torch.tensor(place.step == 0))

    def largest(self) -> list[StreamWindow]:
        """The windows that need most memory: any, as all need equally much."""
        return [self.at(0)]


class TruncatedBPTTObjective(Objective):
    """The loss of a language model that goes on from where the last window ended."""

    def __init__(self, model: nn.Module, smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.smoothing = smoothing
        self._kept: tuple[Tensor, ...] = ()
        self._aside: tuple[Tensor, ...] = ()  # the same while judging, which must not disturb what is learned

    def forward(self, window: StreamWindow) -> Loss:
        """The sums over the labels of a window."""
        model, ids = self.model, window.batch.inputs.ids
        assert isinstance(model, LanguageModel)
        start = model.start(rows=ids.shape[0], capacity=ids.shape[1])
        fresh = start.memories()
        kept = self._places(fresh)
        memories = [torch.where(window.first, new, old) for new, old in zip(fresh, kept, strict=True)]
        features, after = model.step_features(start.with_memories(memories), ids)
        with torch.no_grad():
            for place, memory in zip(kept, after.memories(), strict=True):
                place.copy_(memory)
        return token_loss(features, model.output, window.batch.labels, self.smoothing)

    def carried(self) -> dict[str, Tensor]:
        """The memories after the last window."""
        return {f"{STATE_NAME}.{number}": memory.clone() for number, memory in enumerate(self._kept)}

    def resume(self, carried: Mapping[str, Tensor]) -> None:
        """Go on with these memories."""
        given = [carried[f"{STATE_NAME}.{number}"] for number in range(len(carried))]
        if [one.shape for one in given] == [place.shape for place in self._kept]:
            for place, one in zip(self._kept, given, strict=True):
                place.copy_(one)  # a recorded step reads from these very places
        else:
            device = next(self.model.parameters()).device
            self._kept = tuple(one.to(device, copy=True) for one in given)

    def _places(self, fresh: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Where the memories lie; made where there are none for so many rows."""
        shapes = [memory.shape for memory in fresh]
        if not self.training:
            if [memory.shape for memory in self._aside] != shapes:
                self._aside = tuple(memory.detach().clone() for memory in fresh)
            return self._aside
        if not self._kept:
            self._kept = tuple(memory.detach().clone() for memory in fresh)
        if [memory.shape for memory in self._kept] != shapes:
            raise checks.wrong("window", f"of {len(self._kept[0])} rows, as those before it", f"of {len(fresh[0])}")
        return self._kept


def carries_state(made_from: LanguageModelConfig) -> bool:
    """Whether a model remembers equally much at all times, and knows no positions: then a text can go on for ever."""
    mixer, positions = made_from.stack.mixer, made_from.embedding.positions
    return isinstance(mixer, RecurrenceConfig | ConvolutionConfig) and positions is None


def pad_windows(batch: Batch, length: int, padding: int) -> Batch:
    """A batch of windows, all filled up to one length.

    What fills up comes last, where a causal model does not see it, so nobody needs to be told the lengths.
    """
    more = length - batch.labels.shape[1]
    ids, labels = F.pad(batch.inputs.ids, (0, more), value=padding), F.pad(batch.labels, (0, more), value=IGNORED_LABEL)
    return Batch(None, Tokens(ids), labels, batch.numbers, batch.tokens)


# ---- language: Learning to go on with a text: from plain files to windows, a loss, and a score.
#
#     survey(data, validation, config)       what is in the files
#     prepare(survey, tokenizer, place)      a tokenizer, trained once, and the text as ids on disk
#     Completion(prepared, config, settings) the work
#
# The files are one continuous text, as `continuous` tells. Where no validation text is given, its last part is held out.
# Models with positions read windows in a shuffled order, which begin elsewhere in every epoch; recurrent ones, where the
# windows are continuous, go on from each to the next with what they remember (`carrying`), and are judged in the same
# way. It does not know the loop.

TEXT_VALIDATION_FRACTION, MIN_SPLIT_CHARACTERS = 0.1, 200
"""How much of a text is held out, and how many characters it must have for that."""
MIN_WINDOWS_PER_ROW = 16
"""Windows that each row of a judged text has at least, so that its beginning, where nothing is remembered, costs
little."""
SHOWN_TOKENS = 60
"""Tokens of a prompt that is shown, and of what follows it."""


@dataclass(frozen=True)
class LanguageSurvey:
    """What is in the files."""

    files: dict[str, str]
    """The sha256 of every file by its name."""
    config: DataConfig
    inputs: tuple[InputFile, ...]
    validation: tuple[InputFile, ...]
    """Empty where none is given."""
    characters: int
    """Of all files to learn from, what is held out of them among it."""
    distinct: frozenset[str]
    """The different characters of these."""
    lines: int
    """How many line ends there are."""
    longest: int
    """Characters of the longest line."""

    @property
    def learned(self) -> int:
        """How many characters are learned from: those before the part that is held out."""
        return self.characters if self.validation else int(self.characters * (1 - self.config.validation_fraction))

    def training(self) -> Pieces:
        """The text to learn from."""
        return slice_pieces(read_pieces(self.inputs), 0, self.learned)

    def judged(self) -> Pieces:
        """The text to judge by: what is given, what is held out, or else what is learned from."""
        if self.validation:
            return read_pieces(self.validation)
        first = self.learned if self.learned < self.characters else 0
        return slice_pieces(read_pieces(self.inputs), first, self.characters)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know of the data."""
        learned = {input.path for input in self.inputs}
        return tuple(f"{input.name} is learned from, and judged by: the scores will tell nothing of other texts."
                     for input in self.validation if input.path in learned)


def survey_text(data: Sequence[str], validation: Sequence[str], config: DataConfig, *,
           counted: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> LanguageSurvey:
    """Read all of the text once.

    Args:
        counted: passes the lines on, and may count them to show that something happens.
    """
    files, given = open_inputs(data), open_inputs(validation)
    characters, lines, longest, distinct = 0, 0, 0, set[str]()
    for piece in counted(read_pieces(files)):
        if piece is not FILE_END:
            line = piece.removeprefix(LINE_BREAK)
            characters, lines, longest = characters + len(piece), lines + (line != piece), max(longest, len(line))
            distinct.update(piece)
    if len(distinct) < 2:
        names = ", ".join(input.name for input in files)
        raise DataError(f"{names}: There is no text to learn from in it. Give a file with some.")
    for _ in read_pieces(given):
        pass  # what is wrong with it is told now, and not after the tokenizer was trained
    return LanguageSurvey(file_digests([*data, *validation]), config, files, given, characters, frozenset(distinct), lines, longest)


def configure_text(survey: LanguageSurvey, config: DataConfig) -> LanguageSurvey:
    """The survey with another config."""
    return replace(survey, config=config)


def text_validation_fraction(survey: LanguageSurvey) -> float:
    """How much of the text is best held out."""
    return 0.0 if survey.validation or survey.characters < MIN_SPLIT_CHARACTERS else TEXT_VALIDATION_FRACTION


@dataclass(frozen=True)
class PreparedLanguage:
    """The text as ids."""

    survey: LanguageSurvey
    tokenizer: Tokenizer
    training: TextStore
    validation: TextStore
    notes: tuple[str, ...]

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return self.tokenizer.size

    @property
    def tokens(self) -> int:
        """How many are learned from."""
        return len(self.training.stream)


def prepare_text(survey: LanguageSurvey, config: TokenizerConfig, place: Path, *, tokenizer: Tokenizer | None = None) -> PreparedLanguage:
    """Train the tokenizer, or read the one that was trained before, and encode the text.

    Args:
        place: a folder for tokenizer and ids, to be found again.
        tokenizer: one that is there already, in the place of a new one.
    """
    data, settings = list(survey.files.values()), {"held": survey.config.validation_fraction, "given": len(survey.validation)}
    notes: list[str] = []
    if tokenizer is None:
        check_normalisation(config)
        trained = load_or_train_tokenizer(place, lambda: (piece for piece in survey.training() if piece is not FILE_END), config,
                             data=data, settings=settings)
        tokenizer, notes = trained.tokenizer, [*trained.notes]
    key = stores.store_key(data, tokenizer.sha256, settings)
    stored = []
    for name, role, text in (("ids", "learn from", survey.training), ("held", "judge by", survey.judged)):
        make = partial(_encode_text, tokenizer, text)
        opened = stores.open_or_make_texts(place / name, key, make, vocabulary=tokenizer.size)
        if len(opened.store.stream) < 2:
            raise DataError(f"{', '.join(survey.files)}: There are not two tokens of text to {role}. Give more text.")
        stored.append(opened.store)
        notes += opened.notes
    training, validation = stored
    return PreparedLanguage(survey, tokenizer, training, validation, tuple(notes))


def _encode_text(tokenizer: Tokenizer, text: Callable[[], Pieces]) -> Iterator[list[int]]:
    return encode_pieces(tokenizer, text())


@dataclass(frozen=True)
class PaddedWindows:
    """Makes batches of windows that are all equally long."""

    windows: WindowCollator | MovingWindowCollator

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> Batch:
        """The batch of these numbers."""
        return pad_windows(self.windows(numbers, epoch), self.windows.length, self.windows.padding)


def window_feed(prepared: PreparedLanguage, config: WindowConfig, seed: int, rank: int = 0, processes: int = 1) -> BatchLoader:
    """The windows of the text: each with the one before, or shuffled."""
    padding = prepared.tokenizer.special.padding or 0
    if config.order == "continuous":
        return ContinuousFeed(StreamFeed(prepared.training, length=config.length, rows=config.batch_size, padding=padding,
                                      rank=rank, processes=processes))
    windows = MovingWindowCollator(prepared.training, config.length, seed, padding)
    return PlanFeed(WindowPlan(windows.count, config.batch_size, seed), PaddedWindows(windows), rank=rank, processes=processes)


class LanguageTask:
    """The work of a language model."""

    notes: tuple[str, ...] = ()

    def __init__(self, prepared: PreparedLanguage, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(made_from, LanguageModelConfig):
            raise checks.wrong("model.kind", f'"{LanguageModelConfig.kind}", to go on with a text', f'"{made_from.kind}"')
        if settings.windows is None:
            raise checks.wrong("training.windows", "given, to cut a continuous text", None)
        room = max_positions(made_from)
        if room is not None and settings.windows.length > room:
            raise checks.wrong("training.windows.length", f"at most {room}, the positions that the model knows",
                               settings.windows.length)
        refuse_sampling(settings)
        self.prepared, self.made_from, self.settings, self.record = prepared, made_from, settings, record
        self.windows, self.room = settings.windows, room
        self.carried = self.windows.order == "continuous" and carries_state(made_from)
        if self.carried and settings.rdrop:
            raise checks.wrong("training.rdrop", "0 where a state is carried on: two passes would leave two",
                               settings.rdrop)

    def feed(self, rank: int, processes: int) -> BatchLoader:
        """The windows of one of so many processes."""
        return window_feed(self.prepared, self.windows, self.settings.seed, rank, processes)

    def objective(self, model: nn.Module) -> Objective:
        """The loss of a model."""
        if self.carried:
            return TruncatedBPTTObjective(model, self.settings.label_smoothing)
        return WindowObjective(model, self.settings.label_smoothing, self.settings.rdrop)

    def task(self, model: nn.Module) -> Task:
        """A completer."""
        tokenizer = self.prepared.tokenizer
        return make_task(model, self.made_from, tokenizer.special, tokenizer=tokenizer, record=self.record)

    def judged(self) -> Sequence[Batch | StreamWindow]:
        """The text to judge by, every id of it once, in windows that each go on after the one before where the model
        does."""
        text, length, most = self.prepared.validation, self.windows.length, self.settings.validation.max_examples
        if self.carried:
            rows = max(1, min(self.windows.batch_size, len(text.stream) // (MIN_WINDOWS_PER_ROW * length)))
            feed = ContinuousFeed(StreamFeed(text, length=length, rows=rows))
            return [feed.at(step) for step in range(min(feed.steps, -(-most // rows)))]
        windows = PaddedWindows(WindowCollator(text, length))
        last = min(windows.windows.count, most)
        return [windows(np.arange(first, min(first + self.windows.batch_size, last)), 0)
                for first in range(0, last, self.windows.batch_size)]

    def complete(self, task: Task) -> None:
        """There is nothing to choose."""

    def validate(self, task: Task) -> ValidationResult:
        """The loss of the text to judge by, and how the model goes on with some of it."""
        assert isinstance(task, Completer)
        sums, objective = MetricSums(task.device), self.objective(task.model)
        with evaluation_mode(objective):
            for batch in self.judged():
                sums.add(objective(batch.to(task.device)))
            return ValidationResult({"loss": sums.loss}, tuple(self._examples(task)))

    def _examples(self, task: Completer) -> Iterator[ValidationExample]:
        """Prompts at equal distances, what follows them, and what the model makes of them."""
        ids, decode = self.prepared.validation.stream, self.prepared.tokenizer.decode
        count = min(SHOWN_TOKENS, (len(ids) if self.room is None else min(self.room, len(ids))) // 2)
        many = self.settings.validation.samples_shown if count else 0
        places = [number * (len(ids) - 2 * count) // many for number in range(many)]
        prompts = [ids[place:place + count].tolist() for place in places]
        for place, prompt, made in zip(places, prompts, task.complete_ids(prompts, max_length=count) if many else [],
                                       strict=True):
            yield ValidationExample(decode(prompt), decode(ids[place + count:place + 2 * count].tolist()), decode(made[0].ids))


class WindowObjective(FeatureObjective):
    """The loss of a window that is read by itself, wherever it comes from."""

    def forward(self, batch: Batch | StreamWindow) -> Any:
        """The sums over the labels."""
        return super().forward(batch.batch if isinstance(batch, StreamWindow) else batch)


# ---- language: The plan of language models: a continuous text, a tokenizer of one side, a model that goes on.
#
# It only puts together what `works.language` does and what `choices.language` says.


class LanguageSetup:
    """From a text to a model that goes on with it."""

    recipes: tuple[str, ...] = (choices.LANGUAGE_RECIPE,)
    kinds: tuple[str, ...] = ("language",)
    open: Mapping[str, Any] = {"tokenizer.kind": "characters", "model.vocab_size": 1000}
    scores: tuple[str, ...] = ("loss",)
    unused: Mapping[str, Any] = {"training.masking": None, "training.random_shift": 0, "data.joint_tokenizer": True,
                                 **{f"training.batches.{key}": getattr(BatchConfig(), key)
                                    for key in ("max_tokens", "batch_size", "layout", "shapes")}}  # windows make batches

    def survey(self, request: TrainingRequest, config: DataConfig) -> LanguageSurvey:
        """What is in the files."""
        return survey_text(request.data, request.validation, config, counted=request.counted)

    def before(self, survey: LanguageSurvey, asked: Mapping[str, Any]) -> list[Default]:
        """The choices about data and tokenizer."""
        given, share = bool(survey.validation), text_validation_fraction(survey)
        return [validation_fraction_default(given, share, "the end of the text, to judge by", "the text is too short to hold something out"),
                *choices.language_tokenizer(survey.characters, asked.get("tokenizer", {}))]

    def prepare(self, survey: LanguageSurvey, document: TomlDocument, place: Path) -> PreparedLanguage:
        """The text as ids."""
        survey = configure_text(survey, config.read_config(DataConfig, document, ("data",)))
        return prepare_text(survey, config.read_config(TokenizerConfig, document, ("tokenizer",)), place)

    def named(self, prepared: PreparedLanguage, device: DeviceProperties, asked: str | None) -> Default:
        """The recipe of the model."""
        return choices.language_recipe(prepared.tokens, device, asked)

    def after(self, prepared: PreparedLanguage, tables: Mapping[str, Any], device: DeviceProperties) -> list[Default]:
        """The choices about model and training."""
        model, tokens = tables["model"], prepared.tokens
        return [Default("model.vocab_size", prepared.vocabulary, "the size of the tokenizer"),
                *choices.language_model(tokens, model),
                *choices.language_training(tokens, model, device, tables.get("training", {}))]

    def steps(self, prepared: PreparedLanguage, document: TomlDocument) -> int:
        """How many batches an epoch has."""
        return window_feed(prepared, config.read_config(WindowConfig, document, ("training", "windows")), seed=1).steps

    def work(self, prepared: PreparedLanguage, made_from: ModelConfig, settings: TrainingConfig,
             record: dict[str, Any]) -> LanguageTask:
        """What the loop is given."""
        return LanguageTask(prepared, made_from, settings, record)
