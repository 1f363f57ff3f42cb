"""The plan of classifiers: labelled texts, or labelled images; which, the data tells.

It only puts together what `works.classification` does and what `choices.classification` says.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import config
from regard.data.batches.config import BatchConfig
from regard.data.images.reading import Shape
from regard.data.tokenizer.settings import TokenizerConfig
from regard.models.build import ModelConfig
from regard.models.vision import VisionConfig
from regard.toml.document import Document
from regard.training.choices import classification as choices
from regard.training.choices.choice import Choice, Device, value
from regard.training.plans.plan import Request, held
from regard.training.settings import DataConfig, TrainingConfig
from regard.training.works import classification as works
from regard.training.works.classification import Classification, Prepared, Survey
from regard.training.works.labelled_images import ImageSurvey
from regard.training.works.labelled_texts import PreparedTexts, TextSurvey


class ClassificationPlan:
    """From labelled examples to a classifier."""

    recipes: tuple[str, ...] = (choices.IMAGES, choices.TEXTS)
    kinds: tuple[str, ...] = ("classifier", "vision")
    open: Mapping[str, Any] = {"model.labels": 2, "model.vocabulary": 1000}
    scores: tuple[str, ...] = ("loss", "accuracy")
    unused: Mapping[str, Any] = {"training.windows": None, "training.masking": None, "data.joint": True}

    def survey(self, request: Request, config: DataConfig) -> Survey:
        """What is in the files."""
        return works.survey(request.data, request.validation, config, counted=request.counted)

    def before(self, survey: Survey, asked: Mapping[str, Any]) -> list[Choice]:
        """The choices about data and tokenizer."""
        given = survey.given if isinstance(survey, TextSurvey) else survey.validation
        share, count = works.held_share(survey), survey.count
        chosen = held(given is not None, share, f"about {share * count:,.0f} examples to judge by",
                      f"{count} examples are too few: the model is judged by what it has learned")
        if isinstance(survey, ImageSurvey):
            return [chosen]
        return [chosen, *choices.tokenizer(count, asked.get("tokenizer", {}))]

    def prepare(self, survey: Survey, document: Document, place: Path) -> Prepared:
        """Texts as ids, or images as bytes."""
        survey = works.configured(survey, config.make(DataConfig, document, ("data",)))
        if isinstance(survey, TextSurvey):
            return works.prepare(survey, config.make(TokenizerConfig, document, ("tokenizer",)), place)
        asked, shape = document.tables.get("model", {}), survey.shape
        if not {"height", "breadth", "patch"} & set(asked):
            shape = Shape(*choices.image_sides(shape.height, shape.breadth), shape.channels)
        shape = Shape(*(value(asked, key, size) for key, size in shape._asdict().items()))
        return works.prepare(survey, None, place, shape=shape)

    def named(self, prepared: Prepared, device: Device, asked: str | None) -> Choice:
        """The recipe of the model."""
        count = len(prepared.training)
        if isinstance(prepared, PreparedTexts):
            return choices.text_recipe(count, device, asked)
        return choices.image_recipe(count, min(prepared.shape.height, prepared.shape.breadth), device, asked)

    def after(self, prepared: Prepared, tables: Mapping[str, Any], device: Device) -> list[Choice]:
        """The choices about model and training."""
        asked, count = tables.get("training", {}), len(prepared.training)
        labels = Choice("model.labels", len(prepared.labels), "as many as the data has")
        if isinstance(prepared, PreparedTexts):
            return [labels, Choice("model.vocabulary", prepared.vocabulary, "the size of the tokenizer"),
                    *choices.training(count, prepared.tokens, device, None, asked)]
        like = prepared.shape[:2] == prepared.survey.shape[:2]
        reason = "as the images are" if like else "as the images are they would be cut into too many patches, or badly"
        model = [labels, *choices.image_model(count, *prepared.shape, device, tables.get("recipe"), reason)]
        patch = value(tables, "model.patch", next(choice.value for choice in model if choice.key == "model.patch"))
        height, breadth, _ = prepared.shape
        tokens = count * ((height // patch) * (breadth // patch) + 1)
        return [*model, *choices.training(count, tokens, device, min(height, breadth), asked)]

    def steps(self, prepared: Prepared, document: Document) -> int:
        """How many batches an epoch has."""
        batches = config.make(BatchConfig, document, ("training", "batches"))
        if isinstance(prepared, PreparedTexts):
            return works.text_feed(prepared, batches, seed=1).steps
        return works.image_feed(prepared, batches, 1, config.make(VisionConfig, document, ("model",)).tokens).steps

    def work(self, prepared: Prepared, made_from: ModelConfig, settings: TrainingConfig,
             record: dict[str, Any]) -> Classification:
        """What the loop is given."""
        return works.work(prepared, made_from, settings, record, shift=settings.shift)


