"""The plan of language models: a continuous text, a tokenizer of one side, a model that goes on.

It only puts together what `works.language` does and what `choices.language` says.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import config
from regard.data.batches.config import BatchConfig
from regard.data.batches.windows import WindowConfig
from regard.data.tokenizer.settings import TokenizerConfig
from regard.models.build import ModelConfig
from regard.toml.document import Document
from regard.training.choices import language as choices
from regard.training.choices.choice import Choice, Device
from regard.training.plans.plan import Request, held
from regard.training.settings import DataConfig, TrainingConfig
from regard.training.works import language as works
from regard.training.works.language import Completion, Prepared, Survey


class LanguagePlan:
    """From a text to a model that goes on with it."""

    recipes: tuple[str, ...] = (choices.RECIPE,)
    kinds: tuple[str, ...] = ("language",)
    open: Mapping[str, Any] = {"tokenizer.kind": "characters", "model.vocabulary": 1000}
    scores: tuple[str, ...] = ("loss",)
    unused: Mapping[str, Any] = {"training.masking": None, "training.shift": 0, "data.joint": True,
                                 **{f"training.batches.{key}": getattr(BatchConfig(), key)
                                    for key in ("tokens", "rows", "layout", "shapes")}}  # windows make batches

    def survey(self, request: Request, config: DataConfig) -> Survey:
        """What is in the files."""
        return works.survey(request.data, request.validation, config, counted=request.counted)

    def before(self, survey: Survey, asked: Mapping[str, Any]) -> list[Choice]:
        """The choices about data and tokenizer."""
        given, share = bool(survey.validation), works.held_share(survey)
        return [held(given, share, "the end of the text, to judge by", "the text is too short to hold something out"),
                *choices.tokenizer(survey.characters, asked.get("tokenizer", {}))]

    def prepare(self, survey: Survey, document: Document, place: Path) -> Prepared:
        """The text as ids."""
        survey = works.configured(survey, config.make(DataConfig, document, ("data",)))
        return works.prepare(survey, config.make(TokenizerConfig, document, ("tokenizer",)), place)

    def named(self, prepared: Prepared, device: Device, asked: str | None) -> Choice:
        """The recipe of the model."""
        return choices.recipe(prepared.tokens, device, asked)

    def after(self, prepared: Prepared, tables: Mapping[str, Any], device: Device) -> list[Choice]:
        """The choices about model and training."""
        model, tokens = tables["model"], prepared.tokens
        return [Choice("model.vocabulary", prepared.vocabulary, "the size of the tokenizer"),
                *choices.model(tokens, model),
                *choices.training(tokens, model, device, tables.get("training", {}))]

    def steps(self, prepared: Prepared, document: Document) -> int:
        """How many batches an epoch has."""
        return works.feed(prepared, config.make(WindowConfig, document, ("training", "windows")), seed=1).steps

    def work(self, prepared: Prepared, made_from: ModelConfig, settings: TrainingConfig,
             record: dict[str, Any]) -> Completion:
        """What the loop is given."""
        return Completion(prepared, made_from, settings, record)
