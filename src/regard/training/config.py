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

from regard.config import Config, choice, integer, number, probability
from regard.data.batches.batch import MaskingConfig
from regard.data.batches.feed import BatchConfig, WindowConfig
from regard.data.filters import FilterConfig
from regard.training.optimizer import OptimizerConfig, ScheduleConfig

PRECISIONS = ("float32", "bfloat16")
SHARINGS = ("replicated", "sharded")


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

    every: int = integer(1000, least=1)
    """Steps."""
    score: str = choice(HIGHER_IS_BETTER, "loss")
    """What tells the better model."""
    patience: int | None = integer(None, least=1)
    """So many times without a better score end the training."""
    most: int = integer(2000, least=1)
    """Examples of the validation data that are looked at, the first ones."""
    shown: int = integer(3, least=0)
    """Examples that are shown with what the model makes of them."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Config):
    """How often the state of the training is stored. It always is at a validation and at the end."""

    every: int = integer(1000, least=1)
    """Steps."""
    keep: int = integer(2, least=1)
    """The last ones that are kept. The best one is always kept too."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """What is learned from."""

    filters: FilterConfig = FilterConfig()
    """Which pairs are left out."""
    held: float = probability(0.0)
    """The share that is held out for validation, where no validation data is given."""
    joint: bool = True
    """Whether source and target are cut by one tokenizer."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Config):
    """How a model is trained."""

    seed: int = integer(1, least=0)
    epochs: float | None = number(None, above=0)
    """How often all of the data is learned from; the steps of the schedule follow from it where they are not given."""
    precision: str = choice(PRECISIONS, "float32")
    """Of products of matrices and what lies between; weights and sums are always float32."""
    accumulate: int = integer(1, least=1)
    """Batches of a step. The loss is the sum over all their tokens, divided by the number of these."""
    smoothing: float = probability(0.0)
    """How much of the probability of a label is spread over the whole vocabulary."""
    consistency: float = number(0.0, least=0.0)
    """R-Drop: how much two passes with other dropout must agree."""
    clip: float = number(1.0, least=0.0)
    """The longest that the gradient may be; 0 for any."""
    average: float = probability(0.0)
    """How much of the mean of the weights stays from step to step; the mean is what is judged and saved. 0 for none."""
    sampling: float = number(0.0, least=0.0)
    """Above 0 texts are cut into subwords anew in every epoch, so far from the best way."""
    shift: int = integer(0, least=0)
    """Of images: by how many pixels they may be moved each way while they are learned from."""
    sharing: str = choice(SHARINGS, "replicated")
    """Of the parameters among several processes: all on each, or a part on each."""
    report: int = integer(20, least=1)
    """Steps between two lines of metrics."""
    batches: BatchConfig = BatchConfig()
    windows: WindowConfig | None = None
    """How a continuous text is cut; for language models that read one."""
    masking: MaskingConfig | None = None
    """For masked models."""
    optimiser: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig
    validation: ValidationConfig = ValidationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()

    @property
    def steps(self) -> int:
        """How many steps there are in all, at most."""
        assert self.schedule.steps is not None, "a config without steps was refused"
        return self.schedule.steps

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        if self.schedule.steps is None:
            yield "schedule.steps", "a training must know when it ends"
        if self.sharing == "sharded" and self.validation.score != "loss":
            yield "validation.score", 'only "loss" is known where the parameters are sharded: no process has the model'
