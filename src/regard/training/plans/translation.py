"""The plan of translation: pairs, a joint tokenizer, an encoder-decoder.

It only puts together what `works.translation` does and what `choices.translation` says.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import config
from regard.data.batches.config import BatchConfig
from regard.data.tokenizer.settings import TokenizerConfig
from regard.models.build import ModelConfig
from regard.toml.document import Document
from regard.training.choices import translation as choices
from regard.training.choices.choice import Choice, Device, value
from regard.training.plans.plan import Request
from regard.training.settings import DataConfig, TrainingConfig
from regard.training.works import translation as works
from regard.training.works.translation import Prepared, Survey, Translation


class TranslationPlan:
    """From pairs of sentences to a translator."""

    recipes: tuple[str, ...] = (choices.RECIPE,)
    kinds: tuple[str, ...] = ("encoder-decoder", "seq2seq")
    open: Mapping[str, Any] = {"tokenizer.kind": "unigram", "model.source_vocabulary": 1000,
                               "model.target_vocabulary": 1000}
    scores: tuple[str, ...] = ("loss", "bleu", "chrf")
    unused: Mapping[str, Any] = {"training.windows": None, "training.masking": None, "training.shift": 0}

    def survey(self, request: Request, config: DataConfig) -> Survey:
        """What is in the files."""
        return works.survey(request.data, request.validation, config, source=request.source, target=request.target,
                            format=request.format, counted=request.counted)

    def before(self, survey: Survey, asked: Mapping[str, Any]) -> list[Choice]:
        """The choices about data and tokenizer."""
        count, given = survey.found.kept, survey.validation is not None
        held = 0.0 if given else choices.held_share(count)
        if given:
            reason = "validation data is given"
        elif held:
            reason = f"about {held * count:,.0f} pairs to judge by, whose sources are not learned from"
        else:
            reason = f"{count} pairs are too few: the model is judged by what it has learned"
        return [Choice("data.held", held, reason), *choices.tokenizer(count, asked.get("tokenizer", {}))]

    def prepare(self, survey: Survey, document: Document, place: Path) -> Prepared:
        """The pairs as ids."""
        data = config.make(DataConfig, document, ("data",))
        sampled = bool(document.tables.get("training", {}).get("sampling", 0.0))
        kind = config.make(TokenizerConfig, document, ("tokenizer",))
        return works.prepare(works.configured(survey, data), kind, place, sampled=sampled)

    def named(self, prepared: Prepared, device: Device, asked: str | None) -> Choice:
        """The recipe of the model."""
        return choices.recipe(len(prepared.store), device, asked)

    def after(self, prepared: Prepared, tables: Mapping[str, Any], device: Device) -> list[Choice]:
        """The choices about model and training."""
        pairs, kind = len(prepared.store), tables["model"]["kind"]
        mixers = [value(tables, f"model.{side}.mixer.kind") for side in ("encoder", "decoder")]
        tokens = sum(len(side.ids) for side in prepared.store.sides) + 2 * pairs
        reason = "the size of the tokenizer"
        return [Choice("model.source_vocabulary", prepared.tokenizer.source.size, reason),
                Choice("model.target_vocabulary", prepared.tokenizer.target.size, reason),
                *([] if prepared.tokenizer.joint or kind != "encoder-decoder" else
                  [Choice("model.shared", False, "each side has its own tokenizer")]),
                *choices.model(pairs, tables["model"]),
                *choices.training(pairs, tokens, mixers, device, tables.get("training", {}))]

    def steps(self, prepared: Prepared, document: Document) -> int:
        """How many batches an epoch has."""
        batches = config.make(BatchConfig, document, ("training", "batches"))
        return works.feed(prepared, batches, seed=1).steps

    def work(self, prepared: Prepared, made_from: ModelConfig, settings: TrainingConfig,
             record: dict[str, Any]) -> Translation:
        """What the loop is given."""
        return Translation(prepared, made_from, settings, record)
