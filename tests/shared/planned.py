"""What would be chosen for data of any size, without the data: a plan of translation that only counts."""

from pathlib import Path
from types import SimpleNamespace

from regard.config import make_all
from regard.toml import document as toml
from regard.training import asking, run
from regard.training.choices.choice import Choice, Device
from regard.training.plans.plan import Request
from regard.training.plans.translation import TranslationPlan

CPU = Device("cpu", 16 * 2**30, lowered=False)
GPU = Device("cuda", 80 * 2**30, lowered=True)
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


class Counted(TranslationPlan):
    """The plan for so many pairs."""

    def __init__(self, count, given=False):
        self.count, self.given = count, given

    def survey(self, request, config):
        return SimpleNamespace(found=SimpleNamespace(kept=self.count), validation=() if self.given else None,
                               files={"pairs.tsv": "0" * 64}, warnings=[])

    def prepare(self, survey, document, place):
        tables = document.tables
        size = tables["tokenizer"].get("vocabulary", 261)
        side = SimpleNamespace(size=size)
        learned = self.count - round(tables["data"]["held"] * self.count)
        return SimpleNamespace(store=Store(learned), notes=(), tokenizer=SimpleNamespace(
            source=side, target=side, joint=tables["data"]["joint"]))

    def steps(self, prepared, document):
        return -(-2 * (WORDS + 1) * len(prepared.store) // document.tables["training"]["batches"]["tokens"])

    def work(self, prepared, made_from, settings, record):
        return SimpleNamespace(notes=())


def ready(count, device=CPU, recipe=None, given=False, **changes):
    """All that a training of so many pairs would be made of; a change is written model__width=16."""
    plan = Counted(count, given)
    request = Request("seq2seq", ("pairs.tsv",), Path("model"), recipe=recipe,
                      changes={key.replace("__", "."): value for key, value in changes.items()})
    return run.prepare(request, plan, asking.asked(request, plan), device, lambda event: None)


def plain(tables):
    """A document of nothing but tables."""
    return toml.given(tables, "config")


def config(recipe, choices, asked=None):
    """The whole config of a training from choices, and what somebody has set."""
    given = plain(asked or {})
    document = asking.filled(given, asking.of_recipe(recipe), given)
    document = asking.filled(document, choices, given)
    return make_all(asking.TABLES, asking.filled(document, [Choice(asking.STEPS, asking.ANY, "")], document))
