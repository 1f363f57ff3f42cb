"""The settings of a training, as tables of a config file.

    [training]
    seed = 1
    smoothing = 0.1
    [training.schedule]
    peak = 1e-3
    steps = 7000

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


# ---- work: What a training is about, told to a loop that knows nothing of it: batches, a loss, a score, and what is saved.
#
#     work.feed(rank, processes).at(step)      a batch, with `tokens`: how many things in it are learned from
#     work.objective(model)(batch)             its Loss: sums over them
#     work.validate(task)                      Verdict(scores, examples) on data that was not learned from
#     work.task(model)                         what a person holds in the end
#     work.complete(task)                      what it has besides a model, chosen by that data; then it is saved
#
# There is one work for each way to train: translation, language, masked, classification (`regard.training.works`). Here
# is only what they share. It does not know optimisers, steps or files.

HIGHER_IS_BETTER = {"loss": False, "bleu": True, "chrf": True, "accuracy": True}
"""The scores there are, and whether more is better."""


@dataclass(frozen=True, kw_only=True)
class ValidationConfig(Config):
    """How often the model is judged, by what, and when that ends the training."""

    every: int = integer(1000, minimum=1)
    """Steps."""
    metric: str = choice(HIGHER_IS_BETTER, "loss", old="score")
    """What tells the better model."""
    patience: int | None = integer(None, minimum=1)
    """So many times without a better score end the training."""
    max_examples: int = integer(2000, minimum=1, old="most")
    """Examples of the validation data that are looked at, the first ones."""
    samples_shown: int = integer(3, minimum=0, old="shown")
    """Examples that are shown with what the model makes of them."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Config):
    """How often the state of the training is stored. It always is at a validation and at the end."""

    every: int = integer(1000, minimum=1)
    """Steps."""
    keep: int = integer(2, minimum=1)
    """The last ones that are kept. The best one is always kept too."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """What is learned from."""

    filters: FilterConfig = FilterConfig()
    """Which pairs are left out."""
    validation_fraction: float = probability(0.0, old="held")
    """The share that is held out for validation, where no validation data is given."""
    joint_tokenizer: bool = renamed(True, old="joint")
    """Whether source and target are cut by one tokenizer."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Config):
    """How a model is trained."""

    seed: int = integer(1, minimum=0)
    epochs: float | None = number(None, above=0)
    """How often all of the data is learned from; the steps of the schedule follow from it where they are not given."""
    precision: str = choice(PRECISIONS, "float32")
    """Of products of matrices and what lies between; weights and sums are always float32."""
    gradient_accumulation: int = integer(1, minimum=1, old="accumulate")
    """Batches of a step. The loss is the sum over all their tokens, divided by the number of these."""
    label_smoothing: float = probability(0.0, old="smoothing")
    """How much of the probability of a label is spread over the whole vocabulary."""
    rdrop: float = number(0.0, minimum=0.0, old="consistency")
    """R-Drop: how much two passes with other dropout must agree."""
    max_grad_norm: float = number(1.0, minimum=0.0, old="clip")
    """The longest that the gradient may be; 0 for any."""
    ema_decay: float = probability(0.0, old="average")
    """How much of the mean of the weights stays from step to step; the mean is what is judged and saved. 0 for none."""
    subword_sampling: float = number(0.0, minimum=0.0, old="sampling")
    """Above 0 texts are cut into subwords anew in every epoch, so far from the best way."""
    random_shift: int = integer(0, minimum=0, old="shift")
    """Of images: by how many pixels they may be moved each way while they are learned from."""
    parallelism: str = choice(PARALLELISMS, "ddp", old="sharing", old_values={"replicated": "ddp", "sharded": "fsdp"})
    """Of the parameters among several processes: all on each, or a part on each."""
    log_every: int = integer(20, minimum=1, old="report")
    """Steps between two lines of metrics."""
    batches: BatchConfig = BatchConfig()
    windows: WindowConfig | None = None
    """How a continuous text is cut; for language models that read one."""
    masking: MaskingConfig | None = None
    """For masked models."""
    optimizer: OptimizerConfig = renamed(OptimizerConfig(), old="optimiser")
    schedule: ScheduleConfig
    validation: ValidationConfig = ValidationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()

    @property
    def steps(self) -> int:
        """How many steps there are in all, at most."""
        assert self.schedule.max_steps is not None, "a config without steps was refused"
        return self.schedule.max_steps

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        if self.schedule.max_steps is None:
            yield "schedule.max_steps", "a training must know when it ends"
        if self.parallelism == "fsdp" and self.validation.metric != "loss":
            yield "validation.metric", 'only "loss" is known where the parameters are sharded: no process has the model'
