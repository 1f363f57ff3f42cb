"""The settings of a training, as tables of a config file.

    [training]
    seed = 1
    label_smoothing = 0.1
    [training.schedule]
    learning_rate = 1e-3
    max_steps = 7000

Settings that are left out get defaults that depend on the data and the device (`regard.training.defaults`). The tables
hold only fixed defaults, and know nothing of the loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from regard.config import Config, choice, integer, number, probability, renamed
from regard.data.batches.batch import MaskingConfig
from regard.data.batches.feed import BatchConfig, WindowConfig
from regard.data.filters import FilterConfig
from regard.data.languages import EXAMPLE, normalize_code
from regard.data.sources.token_labels import UNITS
from regard.tasks import card
from regard.training.optimizer import OptimizerConfig, ScheduleConfig

PRECISIONS = ("float32", "bfloat16")
PARALLELISMS = ("ddp", "fsdp")
HIGHER_IS_BETTER = {"loss": False, "bleu": True, "chrf": True, "accuracy": True, "f1": True, "forecast_error": False,
                    "ade": False, "fde": False, "jade": False, "jfde": False}
"""The scores of validation, and whether higher is better."""
GENERAL = card.GENERAL
"""How the names of scores on general validation data begin."""


def part_score(metric: str, part: str) -> str:
    """The name of the score of one part of the validation data, such as a direction: "bleu/en-fr"."""
    return f"{metric}/{part}"


@dataclass(frozen=True, kw_only=True)
class ValidationConfig(Config):
    """How often the model is validated, by which score, and when that ends the training."""

    every: int = integer(1000, minimum=1)
    """Steps between two validations."""
    metric: str = choice(HIGHER_IS_BETTER, "loss", old="score")
    """Score that the best model is chosen by; for labels of an IOB scheme the default is f1, that of spans."""
    patience: int | None = integer(None, minimum=1)
    """Early stopping: end after this many validations without a better score, not counting those during the warm-up
    and the first 5; by default never."""
    max_examples: int = integer(2000, minimum=1, old="most")
    """Validation examples that are used at most, from the first."""
    samples_shown: int = integer(3, minimum=0, old="shown")
    """Validation examples that are shown with the output of the model."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Config):
    """How often a checkpoint is saved. One is always saved at a validation and at the end."""

    every: int = integer(1000, minimum=1)
    """Steps between two checkpoints."""
    keep: int = integer(2, minimum=1)
    """Last checkpoints that are kept, besides the best one."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """The training data and the validation split."""

    filters: FilterConfig = FilterConfig()
    """Which examples are skipped."""
    validation_fraction: float = probability(0.0, old="held")
    """Fraction of the data that is held out for validation if no validation data is given."""
    joint_tokenizer: bool = renamed(True, old="joint")
    """Whether source and target share one tokenizer."""
    source_lang: str | None = None
    """The language of the sources, a BCP 47 code such as "en" or "pt-BR"; it is stored with the model."""
    target_lang: str | None = None
    """The language of the targets."""
    directions: tuple[str, ...] | None = None
    """The directions of a model for several languages, such as "en-fr"; they follow from --direction."""
    sampling_temperature: float | None = number(None, minimum=1.0)
    """Directions are drawn in proportion to (number of pairs) ** (1 / this): 1 draws every pair equally often, more
    favours small directions."""
    zero_shot: bool = False
    """Whether a model for several languages also learns to restore sentences of each language, so that it can translate
    between languages of which it sees no pairs."""
    label_unit: str | None = choice(UNITS, None)
    """What has a label in token classification: a character or a word. By default the data tells."""
    split_punctuation: bool | None = None
    """Whether punctuation marks are words of their own in this data; then `regard label` splits texts so. By default
    the data tells."""
    columns: str | None = None
    """The columns of files of tracks in their order, such as "frame,agent,x,y"; by default found by the header."""
    frame_step: float | None = number(None, above=0)
    """Difference between two frames of tracks; by default the most common one, scene by scene."""
    mix_share: float | None = probability(None)
    """Share of the general data of --mix among the training pairs of an epoch, if a model is fine-tuned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("source_lang", "target_lang"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, normalize_code(getattr(self, key)))

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Languages that are not codes."""
        for key in ("source_lang", "target_lang"):
            code = getattr(self, key)
            if code is not None and normalize_code(code) is None:
                yield key, f'expected a language code such as {EXAMPLE}, got "{code}"'


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Config):
    """How a model is trained."""

    seed: int = integer(1, minimum=0)
    """Random seed of initial weights, order of the data and dropout."""
    epochs: float | None = number(None, above=0)
    """Passes over the training data; they determine schedule.max_steps unless that is set."""
    max_time: float | None = number(None, above=0)
    """Time limit of training and validation in seconds; steps and schedule are shortened to fit."""
    precision: str = choice(PRECISIONS, "float32")
    """Precision of matrix products and activations; weights and sums are always float32."""
    gradient_accumulation: int = integer(1, minimum=1, old="accumulate")
    """Batches per optimizer step."""
    label_smoothing: float = probability(0.0, old="smoothing")
    """Label smoothing: probability that is spread evenly over the whole vocabulary."""
    rdrop: float = number(0.0, minimum=0.0, old="consistency")
    """R-Drop: weight of the divergence between two passes with different dropout; 0 for one pass."""
    teacher_share: float = number(0.0, minimum=0.0, maximum=1.0)
    """Word-level distillation: share of the teacher's probabilities in the loss. Above 0 the student has its teacher's
    tokenizer."""
    max_grad_norm: float = number(1.0, minimum=0.0, old="clip")
    """Gradients with a larger norm are clipped to it; 0 for no clipping."""
    ema_decay: float = probability(0.0, old="average")
    """Decay of the exponential moving average (EMA) of the weights, which is validated and saved; 0 for none."""
    subword_sampling: float = number(0.0, minimum=0.0, old="sampling")
    """Subword regularization: texts are tokenized anew in every epoch, sampled with this alpha; 0 for none."""
    token_dropout: float = probability(0.0)
    """Token dropout: fraction of the input tokens that is replaced by the unknown token, for token classification."""
    random_shift: int = integer(0, minimum=0, old="shift")
    """Augmentation: training images are shifted randomly by up to this many pixels."""
    blend: bool = False
    """Whether the weights of a fine-tuned model are interpolated with those of its start model at the end."""
    blend_share: float | None = number(None, minimum=0.0, maximum=1.0)
    """Share of the new weights in that interpolation, from 0 to 1; by default the best on the validation data."""
    parallelism: str = choice(PARALLELISMS, "ddp", old="sharing", old_values={"replicated": "ddp", "sharded": "fsdp"})
    """With several processes: all parameters on each (ddp), or a shard on each (fsdp)."""
    log_every: int = integer(20, minimum=1, old="report")
    """Steps between two progress events."""
    batches: BatchConfig = BatchConfig()
    """Size and layout of batches."""
    windows: WindowConfig | None = None
    """Windows of a continuous text, for language models."""
    masking: MaskingConfig | None = None
    """Masked tokens, for masked language models."""
    optimizer: OptimizerConfig = renamed(OptimizerConfig(), old="optimiser")
    """The optimizer."""
    schedule: ScheduleConfig
    """The learning rate as a function of the step."""
    validation: ValidationConfig = ValidationConfig()
    """Validation and early stopping."""
    checkpoints: CheckpointConfig = CheckpointConfig()
    """Checkpoints to resume from."""

    @property
    def steps(self) -> int:
        """The number of steps."""
        assert self.schedule.max_steps is not None, "a config without steps was refused"
        return self.schedule.max_steps

    def in_smaller_batches(self, parts: int, rows: int | None = None, tokens: int | None = None) -> str:
        """The options that compute the same step in batches of a fraction of the size.

        Args:
            rows: the sequences of the largest batch, if there may be fewer than the settings allow.
            tokens: its tokens.
        """
        key, size, actual = "batches.max_tokens", self.batches.max_tokens, tokens
        if self.windows is not None:
            key, size, actual = "windows.batch_size", self.windows.batch_size, rows
        elif self.batches.batch_size is not None:
            key, size, actual = "batches.batch_size", self.batches.batch_size, rows
        size = size if actual is None else min(size, actual)
        return (f"--set training.{key}={max(1, size // parts)} "
                f"--set training.gradient_accumulation={parts * self.gradient_accumulation}")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Keys that contradict each other, and why."""
        if self.schedule.max_steps is None:
            yield "schedule.max_steps", "the number of steps must be set"
        if self.parallelism == "fsdp" and self.validation.metric != "loss":
            yield "validation.metric", ('only "loss" can be computed if the parameters are sharded: no process has the '
                                        'whole model')
        if self.blend_share is not None and not self.blend:
            yield "blend_share", "it has no effect without blend = true"
