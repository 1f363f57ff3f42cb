"""What config.toml says about a model besides the model itself: recipe, data, training, tokenizer and scores.

    recipe                         the name of the recipe
    [data]                         files, languages (source_lang, target_lang), how many examples, filters
    [training], [tokenizer]        how the model and its tokenizer were trained
    [scores]                       of the validation, with confidence intervals (bleu_interval = [low, high]), the step
                                   that they belong to, and sentences about degenerate translations (degenerate)
    [start]                        the model that this one was fine-tuned from: name, sha256 of its weights, scores

A record is kept as it is, so that a model that is loaded and saved again keeps its history. Records of older versions
are read under the names that their keys have now. This module does not import torch.
"""

from collections.abc import Mapping
from typing import Any

from regard import checks
from regard import config as schema

RECIPE_KEY, TOKENIZER_KEY, SHA256_KEY = "recipe", "tokenizer", "sha256"
RECORD_TABLES = (TOKENIZER_KEY, "data", "training", "scores", "start")
RECORD_KEYS = (RECIPE_KEY, *RECORD_TABLES)
"""The keys of a record."""
OLD_RECORD_KEYS: Mapping[str, str] = {
    "training.accumulate": "gradient_accumulation", "training.smoothing": "label_smoothing",
    "training.consistency": "rdrop", "training.clip": "max_grad_norm", "training.average": "ema_decay",
    "training.sampling": "subword_sampling", "training.shift": "random_shift", "training.sharing": "parallelism",
    "training.report": "log_every", "training.batches.tokens": "max_tokens", "training.batches.rows": "batch_size",
    "training.batches.ahead": "prefetch", "training.windows.rows": "batch_size",
    "training.masking.share": "mlm_probability", "training.masking.hidden": "mask_replace_prob",
    "training.masking.replaced": "random_replace_prob", "training.optimiser.first": "beta1",
    "training.optimiser.second": "beta2", "training.optimiser.decay": "weight_decay",
    "training.optimiser": "optimizer", "training.schedule.peak": "learning_rate",
    "training.schedule.warmup": "warmup_steps", "training.schedule.steps": "max_steps",
    "training.schedule.hold": "constant_fraction", "training.schedule.last": "final_fraction",
    "training.validation.score": "metric", "training.validation.most": "max_examples",
    "training.validation.shown": "samples_shown", "data.held": "validation_fraction", "data.joint": "joint_tokenizer",
    "data.filters.longest_words": "max_words", "data.filters.longest_characters": "max_characters",
    "data.filters.ratio": "max_length_ratio", "data.filters.ratio_from": "min_ratio_characters",
    "tokenizer.vocabulary": "vocab_size", "tokenizer.coverage": "character_coverage",
    "tokenizer.normalisation": "normalization", "tokenizer.sentences": "input_sentence_size",
}
"""Old paths of record keys and their new names; the keys of a table come before the table itself."""
OLD_PARALLELISM = {"replicated": "ddp", "sharded": "fsdp"}


def with_current_names(record: dict[str, Any]) -> dict[str, Any]:
    """The record of an older model under the names that its keys have now, in the same order."""
    for key, name in OLD_RECORD_KEYS.items():
        *above, old = key.split(".")
        table: Any = record
        for part in above:
            table = table.get(part) if isinstance(table, dict) else None
        if isinstance(table, dict) and old in table and name not in table:
            items = [(name if one == old else one, value) for one, value in table.items()]
            table.clear()
            table.update(items)
    training = record.get("training", {})
    if training.get("parallelism") in OLD_PARALLELISM:
        training["parallelism"] = OLD_PARALLELISM[training["parallelism"]]
    return record


def checked_record(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """A record as plain values; a ValueError for an unknown key, or a value that TOML cannot hold."""
    tables = schema.to_tables(record or {})
    for key, value in tables.items():
        checks.pick("record", key, dict.fromkeys(RECORD_KEYS))
        if not isinstance(value, str if key == RECIPE_KEY else Mapping):
            raise checks.wrong(f"record.{key}", "text" if key == RECIPE_KEY else "a table", checks.kind(value)[0])
    if SHA256_KEY in tables.get(TOKENIZER_KEY, {}):
        raise checks.wrong(f"record.{TOKENIZER_KEY}", f"without {SHA256_KEY}, which is computed from the tokenizer",
                           "with it")
    schema.to_toml(tables)
    return {key: value for key, value in tables.items() if value}
