"""All that can be set about a training, as tables of a config file.

    [training]
    seed = 1
    smoothing = 0.1
    [training.schedule]
    peak = 1e-3
    steps = 7000

What is not set follows from the data and the device (`regard.training.choices`). It knows no defaults that depend on
them, and no loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from regard.config import Config, choice, number, share, whole
from regard.data.batches.config import BatchConfig
from regard.data.batches.masking import MaskingConfig
from regard.data.batches.windows import WindowConfig
from regard.data.doctor.rules import FilterConfig
from regard.training.schedule import ScheduleConfig
from regard.training.work import RISING

OPTIMISERS = ("adamw", "adam")
PRECISIONS = ("float32", "bfloat16")
SHARINGS = ("replicated", "sharded")


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig(Config):
    """Adam (Kingma and Ba 2015), or AdamW, which takes the decay out of the moments (Loshchilov and Hutter 2019)."""

    name: str = choice(OPTIMISERS, "adamw")
    first: float = share(0.9)
    """How much of the mean of the gradients stays from step to step."""
    second: float = share(0.98)
    """The same of the mean of their squares."""
    epsilon: float = number(1e-9, above=0)
    decay: float = number(0.0, least=0.0)
    """Of weights; not of biases, of norms, or of anything else that has one dimension."""


@dataclass(frozen=True, kw_only=True)
class ValidationConfig(Config):
    """How often the model is judged, by what, and when that ends the training."""

    every: int = whole(1000, least=1)
    """Steps."""
    score: str = choice(RISING, "loss")
    """What tells the better model."""
    patience: int | None = whole(None, least=1)
    """So many times without a better score end the training."""
    most: int = whole(2000, least=1)
    """Examples of the validation data that are looked at, the first ones."""
    shown: int = whole(3, least=0)
    """Examples that are shown with what the model makes of them."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Config):
    """How often the state of the training is stored. It always is at a validation and at the end."""

    every: int = whole(1000, least=1)
    """Steps."""
    keep: int = whole(2, least=1)
    """The last ones that are kept. The best one is always kept too."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """What is learned from."""

    filters: FilterConfig = FilterConfig()
    """Which pairs are left out."""
    held: float = share(0.0)
    """The share that is held out for validation, where no validation data is given."""
    joint: bool = True
    """Whether source and target are cut by one tokenizer."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Config):
    """How a model is trained."""

    seed: int = whole(1, least=0)
    epochs: float | None = number(None, above=0)
    """How often all of the data is learned from; the steps of the schedule follow from it where they are not given."""
    precision: str = choice(PRECISIONS, "float32")
    """Of products of matrices and what lies between; weights and sums are always float32."""
    accumulate: int = whole(1, least=1)
    """Batches of a step. The loss is the sum over all their tokens, divided by the number of these."""
    smoothing: float = share(0.0)
    """How much of the probability of a label is spread over the whole vocabulary."""
    consistency: float = number(0.0, least=0.0)
    """R-Drop: how much two passes with other dropout must agree."""
    clip: float = number(1.0, least=0.0)
    """The longest that the gradient may be; 0 for any."""
    average: float = share(0.0)
    """How much of the mean of the weights stays from step to step; the mean is what is judged and saved. 0 for none."""
    sampling: float = number(0.0, least=0.0)
    """Above 0 texts are cut into subwords anew in every epoch, so far from the best way."""
    shift: int = whole(0, least=0)
    """Of images: by how many pixels they may be moved each way while they are learned from."""
    sharing: str = choice(SHARINGS, "replicated")
    """Of the parameters among several processes: all on each, or a part on each."""
    report: int = whole(20, least=1)
    """Steps between two lines of metrics."""
    batches: BatchConfig = BatchConfig()
    windows: WindowConfig | None = None
    """How a continuous text is cut; for language models that read one."""
    masking: MaskingConfig | None = None
    """For masked models."""
    optimiser: OptimiserConfig = OptimiserConfig()
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
