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
from regard.training.optimizer import OptimizerConfig, ScheduleConfig

PRECISIONS = ("float32", "bfloat16")
PARALLELISMS = ("ddp", "fsdp")
HIGHER_IS_BETTER = {"loss": False, "bleu": True, "chrf": True, "accuracy": True}
"""The scores of validation, and whether higher is better."""


@dataclass(frozen=True, kw_only=True)
class ValidationConfig(Config):
    """How often the model is validated, by which score, and when that ends the training."""

    every: int = integer(1000, minimum=1)
    """Steps."""
    metric: str = choice(HIGHER_IS_BETTER, "loss", old="score")
    """The score that the best model is chosen by."""
    patience: int | None = integer(None, minimum=1)
    """Early stopping: this many validations without a better score end the training."""
    max_examples: int = integer(2000, minimum=1, old="most")
    """Validation examples that are used, the first ones."""
    samples_shown: int = integer(3, minimum=0, old="shown")
    """Examples that are shown with the output of the model."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Config):
    """How often a checkpoint is saved. One is always saved at a validation and at the end."""

    every: int = integer(1000, minimum=1)
    """Steps."""
    keep: int = integer(2, minimum=1)
    """The number of last checkpoints that are kept. The best one is always kept too."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """The training data and the validation split."""

    filters: FilterConfig = FilterConfig()
    """Which pairs are skipped."""
    validation_fraction: float = probability(0.0, old="held")
    """The fraction that is held out for validation if no validation data is given."""
    joint_tokenizer: bool = renamed(True, old="joint")
    """Whether source and target share one tokenizer."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Config):
    """How a model is trained."""

    seed: int = integer(1, minimum=0)
    epochs: float | None = number(None, above=0)
    """Passes over the data; they determine the steps of the schedule if those are not set."""
    precision: str = choice(PRECISIONS, "float32")
    """The precision of matrix products and activations; weights and sums are always float32."""
    gradient_accumulation: int = integer(1, minimum=1, old="accumulate")
    """Batches per step. The loss is the sum over all their tokens, divided by the number of these."""
    label_smoothing: float = probability(0.0, old="smoothing")
    """Label smoothing: the probability that is spread over the whole vocabulary."""
    rdrop: float = number(0.0, minimum=0.0, old="consistency")
    """R-Drop: the weight of the divergence between two passes with different dropout; 0 for one pass."""
    max_grad_norm: float = number(1.0, minimum=0.0, old="clip")
    """The largest norm of the gradient; longer ones are clipped. 0 for no limit."""
    ema_decay: float = probability(0.0, old="average")
    """The decay of the EMA of the weights, which is validated and saved; 0 for no EMA."""
    subword_sampling: float = number(0.0, minimum=0.0, old="sampling")
    """Subword regularization: texts are tokenized anew in every epoch, sampled with this alpha; 0 for none."""
    random_shift: int = integer(0, minimum=0, old="shift")
    """Training images are shifted randomly by up to this many pixels in each direction."""
    parallelism: str = choice(PARALLELISMS, "ddp", old="sharing", old_values={"replicated": "ddp", "sharded": "fsdp"})
    """With several processes: all parameters on each (DDP), or a shard on each (FSDP)."""
    log_every: int = integer(20, minimum=1, old="report")
    """Steps between two log lines."""
    batches: BatchConfig = BatchConfig()
    windows: WindowConfig | None = None
    """The windows of a continuous text, for language models."""
    masking: MaskingConfig | None = None
    """For masked language models."""
    optimizer: OptimizerConfig = renamed(OptimizerConfig(), old="optimiser")
    schedule: ScheduleConfig
    validation: ValidationConfig = ValidationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()

    @property
    def steps(self) -> int:
        """The number of steps."""
        assert self.schedule.max_steps is not None, "a config without steps was refused"
        return self.schedule.max_steps

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Keys that contradict each other, and why."""
        if self.schedule.max_steps is None:
            yield "schedule.max_steps", "the number of steps must be set"
        if self.parallelism == "fsdp" and self.validation.metric != "loss":
            yield "validation.metric", ('only "loss" can be computed if the parameters are sharded: no process has the '
                                        'whole model')
