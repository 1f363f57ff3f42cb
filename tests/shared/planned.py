"""What would be chosen for data of any size, without the data: a plan of translation that only counts."""

from pathlib import Path
from types import SimpleNamespace

from regard import toml
from regard.config import read_configs
from regard.training import resolution
from regard.training.defaults import Default, DeviceProperties
from regard.training.tasks.interface import TrainingRequest
from regard.training.tasks.translation import TranslationSetup

CPU = DeviceProperties("cpu", 16 * 2**30, has_bfloat16=False)
GPU = DeviceProperties("cuda", 80 * 2**30, has_bfloat16=True)
SIZES = (300, 5_000, 29_000, 167_400, 2_000_000, 30_000_000)
WORDS = 15
"""Tokens of a sentence."""


class Store:
    """As long as is asked for."""

    def __init__(self, count):
        self.count = count
        self.sides = [SimpleNamespace(ids=range(WORDS * count))] * 2

    def __len__(self):
        return self.count


class Counted(TranslationSetup):
    """The plan for so many pairs."""

    def __init__(self, count, given=False):
        super().__init__()
        self.count, self.given = count, given

    def survey(self, request, config):
        return SimpleNamespace(report=SimpleNamespace(kept=self.count), kept=self.count, splittable=self.count,
                               validation_given=self.given, distilled=False, teacher=None, directions=(), parts=(None,),
                               files={"pairs.tsv": "0" * 64}, warnings=[], languages=None,
                               counts={"pairs": self.count})

    def prepare(self, survey, document, place):
        tables = document.tables
        size = tables["tokenizer"].get("vocab_size", 261)
        side = SimpleNamespace(size=size)
        learned = self.count - round(tables["data"]["validation_fraction"] * self.count)
        return SimpleNamespace(survey=survey, store=Store(learned), notes=(), tokenizer=SimpleNamespace(
            source=side, target=side, joint=tables["data"]["joint_tokenizer"]))

    def steps_per_epoch(self, prepared, document):
        return -(-2 * (WORDS + 1) * len(prepared.store) // document.tables["training"]["batches"]["max_tokens"])

    def build(self, prepared, model_config, settings, record):
        return SimpleNamespace(notes=(), training_count=0, validation_count=0)


def ready(count, device=CPU, recipe=None, given=False, **changes):
    """All that a training of so many pairs would be made of; a change is written model__width=16."""
    plan = Counted(count, given)
    request = TrainingRequest("seq2seq", ("pairs.tsv",), Path("model"), recipe=recipe,
                      changes={key.replace("__", "."): value for key, value in changes.items()})
    return resolution.prepare(request, plan, resolution.requested_config(request, plan), device, lambda event: None)


def plain(tables):
    """A document of nothing but tables."""
    return toml.document_of(tables, "config")


def config(recipe, choices, asked=None):
    """The whole config of a training from choices, and what somebody has set."""
    given = plain(asked or {})
    document = resolution.fill_defaults(given, resolution.recipe_defaults(recipe), given)
    document = resolution.fill_defaults(document, choices, given)
    steps = Default(resolution.STEPS_KEY, resolution.UNKNOWN_STEPS, "")
    return read_configs(resolution.TABLES, resolution.fill_defaults(document, [steps], document))
