"""The choices of a training that matter most, as eight rows; and all settings with their reasons.

    summarize_choices(tables, reasons, parameters)     Choice("Model", "transformer-tiny: ...", "model size for ...")
    explain_settings(tables, reasons)                  Default("training.seed", "1", "default"), one for every key
    config_comments(reasons)                           {"training.schedule.learning_rate": "largest stable rate ..."}

Both read the complete config of a training as plain tables, and the reasons that config resolution gives for keys that
the user has set or whose defaults depend on the data and the device. They return values for whoever prints them. This
module does not import torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from regard import checks
from regard.models import catalog
from regard.tasks.card import score_name
from regard.toml import flatten_tables, format_value
from regard.training.defaults import SUBWORD_TOKENIZERS, Default, lookup

SET_BY_USER = "set by you"
"""How the reason of a key begins that the user has set."""
FIXED_DEFAULT = "default"
"""The reason of a key that has the same default for all data."""
OPTIMIZER_NAMES = {"adamw": "AdamW", "adam": "Adam"}
DROPOUT_KEYS = ("model.encoder.dropout", "model.stack.dropout", "model.dropout")
"""The dropout that stands for that of the model: the first of these that it has."""
SCHEDULE_REASON = "warm-up keeps the first steps stable, and the decay lowers the final loss"
MILLION = 10**6
TIME_UNITS = ((3600, "hours"), (60, "minutes"))


class Choice(NamedTuple):
    """One of the choices that matter most: its name, its value, and the reason in plain words."""

    name: str
    value: str
    reason: str


def summarize_choices(tables: Mapping[str, Any], reasons: Mapping[str, str], parameters: int) -> tuple[Choice, ...]:
    """The eight choices that matter most, for any task.

    Args:
        tables: the complete config.
        reasons: why keys have their values; see `regard.training.resolution.PreparedTraining`.
        parameters: of the model.
    """
    reader = _ConfigReader(tables, reasons)
    return (_model(reader, parameters), _vocabulary(reader), _batch(reader), _learning_rate(reader), _schedule(reader),
            _regularization(reader), _epochs(reader), _validation(reader))


def explain_settings(tables: Mapping[str, Any], reasons: Mapping[str, str]) -> tuple[Default, ...]:
    """Every key of the config with its value as text and the reason for it."""
    reader = _ConfigReader(tables, reasons)
    return tuple(Default(key, _format_setting(value), reader.reason(key)) for key, value in flatten_tables(tables))


def config_comments(reasons: Mapping[str, str]) -> dict[str, str]:
    """The comments of config.toml: the reasons of all keys that the user has not set."""
    return {key: reason for key, reason in reasons.items() if not reason.startswith(SET_BY_USER)}


class _ConfigReader:
    """The values of a config, and their reasons."""

    def __init__(self, tables: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
        self.tables, self.reasons = tables, reasons
        self.recipe = tables.get("recipe")

    def value(self, key: str, default: Any = None) -> Any:
        return lookup(self.tables, key, default)

    def reason(self, key: str) -> str:
        """Why a key has its value."""
        if key in self.reasons:
            return self.reasons[key]
        if key.startswith("model.") and self.finetuned:
            return "start model"
        if key.startswith("model.") and self.recipe is not None and self.value(key) == self._recipe_value(key):
            return f"recipe {self.recipe}"
        return FIXED_DEFAULT

    def row_reason(self, key: str, others: Mapping[str, str], default: str = "") -> str:
        """The reason of a row: that of its first key, and which of its other keys the user has set.

        Args:
            others: the names of the other keys.
            default: the reason if the user has set none of them; by default that of the first key.
        """
        own = self.is_set(key)
        others_set = list(dict.fromkeys(name for other, name in others.items() if self.is_set(other)))
        parts = [self.reason(key) if own or not default else default]
        if others_set:
            parts.append(f"{' and '.join(others_set)} {SET_BY_USER}")
        return "; ".join(parts)

    @property
    def finetuned(self) -> bool:
        """Whether the model is that of a start model."""
        return "model.kind" in self.reasons and not self.is_set("model.kind")

    def is_set(self, key: str) -> bool:
        """Whether the user has set a key."""
        return self.reasons.get(key, "").startswith(SET_BY_USER)

    def _recipe_value(self, key: str) -> Any:
        try:
            return lookup(catalog.find_recipe(str(self.recipe)).tables, key)
        except ValueError:  # a recipe that a later version does not have
            return None


def _model(reader: _ConfigReader, parameters: int) -> Choice:
    kind = reader.value("model.kind")
    if kind == "encoder-decoder":
        encoder, decoder = reader.value("model.encoder.layers"), reader.value("model.decoder.layers")
        layers = f"{encoder} + {decoder} layers"
    else:
        layers = checks.plural(reader.value("model.stack.layers", reader.value("model.layers")), "layer")
    size = f"{parameters / MILLION:.1f} million" if parameters >= MILLION else f"{parameters:,}"
    value = f"{reader.recipe or kind}: {layers}, width {reader.value('model.width')}, {size} parameters"
    changed = {key: name for key, name in (("model.width", "width"), ("model.encoder.layers", "layers"),
                                           ("model.stack.layers", "layers"), ("model.layers", "layers"))}
    if reader.recipe is None or reader.finetuned:
        return Choice("Model", value, reader.reasons.get("model.kind", SET_BY_USER))
    return Choice("Model", value, reader.row_reason("recipe", changed))


def _vocabulary(reader: _ConfigReader) -> Choice:
    kind = reader.value("tokenizer.kind")
    if kind is None and reader.value("model.image_height") is not None:
        height, width = reader.value("model.image_height"), reader.value("model.image_width")
        patch = reader.value("model.patch_size")
        return Choice("Vocabulary", "none", f"images of {height} × {width} pixels are read as patches of {patch} × "
                                            f"{patch}")
    if reader.value("model.kind") == "tracks":
        observed, predicted = reader.value("model.observed_steps"), reader.value("model.predicted_steps")
        others = {"model.predicted_steps": "predicted steps", "model.num_futures": "futures"}
        return Choice("Steps", f"{observed} observed, {predicted} predicted, "
                      f"{checks.plural(reader.value('model.num_futures'), 'future')}",
                      reader.row_reason("model.observed_steps", others))
    noun = "subwords" if kind in SUBWORD_TOKENIZERS else kind or "tokens"
    sizes = [reader.value(f"model.{name}") for name in ("source_vocab_size", "target_vocab_size", "vocab_size")]
    first, *rest = [size for size in sizes if size is not None]
    value = f"{first:,} {noun}"
    if rest:
        value += (", shared by source and target" if reader.value("data.joint_tokenizer")
                  else f" for the source, {rest[0]:,} for the target")
    if reader.finetuned:
        return Choice("Vocabulary", value, "the tokenizer of the start model is kept")
    limit = reader.value("tokenizer.vocab_size")
    if kind in SUBWORD_TOKENIZERS and limit is not None and max(first, *rest, 0) < limit:
        return Choice("Vocabulary", value, f"all subwords of the text; up to {limit:,} are allowed")
    key = "tokenizer.vocab_size" if "tokenizer.vocab_size" in reader.reasons else "tokenizer.kind"
    others = {"tokenizer.kind": "kind"} if key != "tokenizer.kind" else {}
    return Choice("Vocabulary", value, reader.row_reason(key, others))


def _batch(reader: _ConfigReader) -> Choice:
    length = reader.value("training.windows.length")
    if length is not None:
        rows, key = reader.value("training.windows.batch_size"), "training.windows.batch_size"
        value, others = f"{checks.plural(rows, 'window')} of {length:,} tokens", {"training.windows.length": "length"}
    elif reader.value("model.kind") == "tracks":
        key, others = "training.batches.batch_size", {}
        value = checks.plural(reader.value(key), "window")
    else:
        key, rows = "training.batches.max_tokens", reader.value("training.batches.batch_size")
        value, others = f"{reader.value(key):,} tokens", {"training.batches.batch_size": "batch size"}
        value += "" if rows is None else f", at most {checks.plural(rows, 'example')}"
    parts = reader.value("training.gradient_accumulation", 1)
    if parts > 1:
        value += f", {parts} batches per step"
    return Choice("Batch", value, reader.row_reason(
        key, {**others, "training.gradient_accumulation": "gradient accumulation"}))


def _learning_rate(reader: _ConfigReader) -> Choice:
    key, name = "training.schedule.learning_rate", "training.optimizer.name"
    optimizer = OPTIMIZER_NAMES.get(reader.value(name), reader.value(name))
    return Choice("Learning rate", f"{reader.value(key):g} ({optimizer})",
                  reader.row_reason(key, {name: "optimizer"}))


def _schedule(reader: _ConfigReader) -> Choice:
    schedule = reader.value("training.schedule")
    shape, steps, warmup = schedule["shape"], schedule["max_steps"], schedule["warmup_steps"]
    end = f"{schedule['final_fraction']:.0%} of the rate" if schedule["final_fraction"] else "0"
    parts = [f"linear warm-up over {checks.plural(warmup, 'step')}"] if warmup else []
    if shape == "linear":
        constant = round(schedule["constant_fraction"] * steps)
        parts += [f"constant to step {constant:,}"] if constant > warmup else []
        parts.append(f"linear decay to {end}")
    else:
        parts.append({"cosine": f"cosine decay to {end}", "inverse_sqrt": "inverse square root decay",
                      "constant": "constant rate"}[shape])
    others = {f"training.schedule.{name}": label for name, label in (
        ("warmup_steps", "warm-up"), ("constant_fraction", "constant phase"), ("final_fraction", "final rate"))}
    return Choice("Schedule", ", ".join(parts), reader.row_reason("training.schedule.shape", others, SCHEDULE_REASON))


def _regularization(reader: _ConfigReader) -> Choice:
    dropout = next(key for key in DROPOUT_KEYS if reader.value(key) is not None)
    terms = {dropout: "dropout", "training.label_smoothing": "label smoothing", "training.rdrop": "R-Drop",
             "training.teacher_share": "teacher's share",
             "training.subword_sampling": "subword sampling", "training.random_shift": "random shift",
             "training.optimizer.weight_decay": "weight decay", "training.ema_decay": "EMA"}
    used = [f"{name} {reader.value(key):g}" for key, name in terms.items() if reader.value(key)]
    others = {key: name for key, name in terms.items() if key != dropout}
    return Choice("Regularization", ", ".join(used) or "none", reader.row_reason(dropout, others))


def _epochs(reader: _ConfigReader) -> Choice:
    epochs, steps = reader.value("training.epochs"), reader.value("training.schedule.max_steps")
    seconds = reader.value("training.max_time")
    limit = "" if seconds is None else f", at most {_format_limit(seconds)}"
    others = {"training.max_time": "time limit"}
    if reader.is_set("training.schedule.max_steps") or epochs is None:
        return Choice("Epochs", checks.plural(steps, "step") + limit,
                      reader.row_reason("training.schedule.max_steps", others))
    return Choice("Epochs", f"{epochs:g} ({checks.plural(steps, 'step')}){limit}",
                  reader.row_reason("training.epochs", others))


def _validation(reader: _ConfigReader) -> Choice:
    validation = reader.value("training.validation")
    metric, patience = validation["metric"], validation.get("patience")
    every = "every step" if validation["every"] == 1 else f"every {validation['every']:,} steps"
    value = f"{score_name(metric)} {every}"
    if patience is not None:
        value += f"; early stopping after {patience} without improvement"
    others = {f"training.validation.{name}": label for name, label in (
        ("metric", "metric"), ("every", "interval"), ("patience", "patience"))}
    return Choice("Validation", value, reader.row_reason("data.validation_fraction", others))


def _format_limit(seconds: float) -> str:
    """A time limit in the unit that gives a short number."""
    unit, name = next((one for one in TIME_UNITS if seconds >= 2 * one[0]), (1, "seconds"))
    return f"{seconds / unit:.4g} {name}"


def _format_setting(value: Any) -> str:
    """A value of the config as a user writes it."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value)) or "none"
    return value if isinstance(value, str) else format_value(value)
