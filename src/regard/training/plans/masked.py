"""The plan of masked models: texts, one a line, of which some words are hidden.

It only puts together what `works.masked` does and what `choices.masked` says.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import config
from regard.data.batches.config import BatchConfig
from regard.data.batches.masking import MaskingConfig
from regard.data.tokenizer.settings import TokenizerConfig
from regard.models.build import ModelConfig
from regard.toml.document import Document
from regard.training.choices import masked as choices
from regard.training.choices.choice import Choice, Device
from regard.training.plans.plan import Request, held
from regard.training.settings import DataConfig, TrainingConfig
from regard.training.works import masked as works
from regard.training.works.masked import Filling, Prepared, Survey


class MaskedPlan:
    """From texts to a model that fills in what is hidden."""

    recipes: tuple[str, ...] = (choices.RECIPE,)
    kinds: tuple[str, ...] = ("masked",)
    open: Mapping[str, Any] = {"tokenizer.kind": "unigram", "model.vocabulary": 1000}
    scores: tuple[str, ...] = ("loss", "accuracy")
    unused: Mapping[str, Any] = {"training.windows": None, "training.shift": 0, "data.joint": True}

    def survey(self, request: Request, config: DataConfig) -> Survey:
        """What is in the files."""
        return works.survey(request.data, request.validation, config, counted=request.counted)

    def before(self, survey: Survey, asked: Mapping[str, Any]) -> list[Choice]:
        """The choices about data and tokenizer."""
        share, count = works.held_share(survey), survey.found.count
        return [held(survey.given is not None, share, f"about {share * count:,.0f} texts to judge by",
                     f"{count} texts are too few: the model is judged by what it has learned"),
                *choices.tokenizer(count, asked.get("tokenizer", {}))]

    def prepare(self, survey: Survey, document: Document, place: Path) -> Prepared:
        """The texts as ids."""
        survey = works.configured(survey, config.make(DataConfig, document, ("data",)))
        return works.prepare(survey, config.make(TokenizerConfig, document, ("tokenizer",)), place)

    def named(self, prepared: Prepared, device: Device, asked: str | None) -> Choice:
        """The recipe of the model."""
        return choices.recipe(len(prepared.training), device, asked)

    def after(self, prepared: Prepared, tables: Mapping[str, Any], device: Device) -> list[Choice]:
        """The choices about model and training."""
        return [Choice("model.vocabulary", prepared.vocabulary, "the size of the tokenizer"),
                *choices.training(len(prepared.training), prepared.tokens, device, tables.get("training", {}))]

    def steps(self, prepared: Prepared, document: Document) -> int:
        """How many batches an epoch has."""
        batches = config.make(BatchConfig, document, ("training", "batches"))
        return works.feed(prepared, batches, MaskingConfig(), seed=1).steps

    def work(self, prepared: Prepared, made_from: ModelConfig, settings: TrainingConfig,
             record: dict[str, Any]) -> Filling:
        """What the loop is given."""
        return Filling(prepared, made_from, settings, record)
