"""The model card: README.md in a model folder, which tells a stranger what the model is and how to use it.

    model_card("encoder-decoder", 12_000_000, reads_text=True, record=record)      the text of the file

It begins with the metadata that cards on Hugging Face have (language, pipeline_tag), then has in plain English: the
task and the languages, how to use the model, its scores and what they were measured on, the data by file name and
sha256, the settings of the training, and limits. It shows no sentence of the data and no path of a machine. This module
does not import torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any, NamedTuple

from regard._version import __version__
from regard.checks import plural
from regard.data.languages import LanguagePair, language_name, parse_pair
from regard.toml import escape

CARD_FILE = "README.md"
PART_SEPARATOR = "/"
"""Between a score and the part of the validation data that it belongs to: "bleu/en-fr"."""
CARD_FOLDER = "path/to/this/folder"
"""Stands for the folder in commands."""
COUNTED = ("pairs", "texts", "images", "characters", "sequences", "tokens", "tracks")
"""What `[data]` of a record may count."""
COUNTED_APART = {"synthetic_pairs": ("synthetic pair", " (by a reverse model)"),
                 "mixed_pairs": ("pair", " of general data")}
"""What `[data]` counts apart from the pairs, and how that is called."""
SCORE_NAMES = {"bleu": "BLEU", "chrf": "chrF", "f1": "F1", "forecast_error": "forecast error", "ade": "minADE",
               "fde": "minFDE", "jade": "JADE", "jfde": "JFDE"}
"""Names of scores as papers write them; other scores are called as in the config."""
TWO_DECIMALS = ("bleu", "chrf")
"""Scores from 0 to 100, shown with two decimals."""
PERCENTAGES = {"accuracy": "%", "f1": ""}
"""Scores from 0 to 1 that are shown from 0 to 100, as conlleval does, and the sign after the number."""
SCORE_DESCRIPTIONS = {"loss": "loss (nats per token)", "forecast_error": "mean of the four distances"}
"""Scores whose row in the card says more than their name."""
INTERVAL_SUFFIX = "_interval"
"""A record has the confidence interval of a score under the name of the score and this."""
INTERVALS_NOTE = "In brackets: 95 % confidence intervals, by bootstrap resampling of the sentences."
GENERAL = "general_"
"""How the names of scores on general data begin, which a fine-tuned model should not forget."""
SETTING_NAMES = {
    "training.seed": "seed", "training.epochs": "epochs", "training.schedule.max_steps": "steps",
    "training.batches.max_tokens": "tokens per batch", "training.windows.batch_size": "windows per batch",
    "training.windows.length": "tokens per window", "training.gradient_accumulation": "gradient accumulation",
    "training.optimizer.name": "optimizer", "training.schedule.learning_rate": "learning rate",
    "training.schedule.warmup_steps": "warm-up steps", "training.schedule.shape": "learning-rate schedule",
    "training.label_smoothing": "label smoothing", "training.rdrop": "R-Drop", "training.ema_decay": "EMA decay",
    "training.teacher_share": "share of the teacher's probabilities in the loss",
    "training.masking.mlm_probability": "masked tokens", "training.precision": "precision",
}


class TaskUsage(NamedTuple):
    """A task, and how it is used: in a shell, and in Python with text (or images) and with ids."""

    name: str
    what: str
    variable: str
    command: str
    call: str
    with_ids: str
    pipeline_tag: str
    """The name of the task on Hugging Face."""


TRANSLATION = TaskUsage("translation", "translates text", "translator", f'regard translate {CARD_FOLDER} "..."',
                        '.translate("...").text', ".translate_ids([[5, 6, 7]])", "translation")
CLASSIFICATION = TaskUsage("classification", "classifies texts", "classifier",
                           f'regard classify {CARD_FOLDER} "..."', '.classify("...")', ".label_ids([[5, 6, 7]])",
                           "text-classification")
TASK_USAGE = {
    "encoder-decoder": TRANSLATION,
    "seq2seq": TRANSLATION,
    "language": TaskUsage("language model", "continues a text", "completer", f'regard complete {CARD_FOLDER} "..."',
                          '.complete("...").text', ".complete_ids([[5, 6, 7]], max_length=20)", "text-generation"),
    "masked": TaskUsage("masked language model", "fills in blanks", "filler",
                        f'regard fill {CARD_FOLDER} "... ___ ..."', '.fill("... ___ ...").text',
                        ".fill_ids([[5, 6, 7]])", "fill-mask"),
    "classifier": CLASSIFICATION,
    "tagger": TaskUsage("token classification", "gives every token a label", "labeller",
                        f'regard label {CARD_FOLDER} "..."', '.label("...").labels', ".label_ids([[5, 6, 7]])",
                        "token-classification"),
    "vision": TaskUsage("image classification", "classifies images", "classifier",
                        f"regard classify {CARD_FOLDER} image.png", ".classify(images)", "", "image-classification"),
    "tracks": TaskUsage("forecasting of tracks", "predicts where agents will be", "forecaster",
                        f"regard predict {CARD_FOLDER} tracks.csv", '.predict("tracks.csv")', "", "other"),
    "encoder": TaskUsage("embedding", "computes a vector for a text", "embedder", "", '.embed("...")',
                         ".embed_ids([[5, 6, 7]])", "feature-extraction"),
}
"""The task of a model by its `model.kind`."""
LIMITS = {
    "translation": ("It translates best what is like its training data; other kinds of text get worse translations.",
                    "A translation can be fluent and still be wrong. Have a person check what matters."),
    "language model": ("It continues a text as its training data would: what it writes may be false or offensive.",),
    "classification": ("It always chooses one of its labels, also for texts that fit none of them.",),
    "token classification": ("It gives every token one of its labels, also where none of them fits.",),
    "forecasting of tracks": ("It knows agents only by their positions: no map, no obstacles, no signals.",
                              "Its probabilities were learned from its training data; other places and other kinds of "
                              "agents move differently."),
    "image classification": ("It always chooses one of its classes, also for images that fit none of them.",),
}


def model_card(kind: str, parameters: int, *, reads_text: bool, labels: Sequence[str] | None = None,
               vocabularies: Sequence[int] = (), record: Mapping[str, Any] | None = None) -> str:
    """The text of the card.

    Args:
        kind: `model.kind` of the config.
        reads_text: whether the model has a tokenizer.
        vocabularies: the sizes of the vocabularies: one, or source and target.
        record: how the model was trained, see `regard.tasks.record`.
    """
    usage, record = TASK_USAGE[kind], record or {}
    return "\n".join([*_metadata(usage, record), *_summary(kind, usage, parameters, labels, vocabularies, record),
                      *_usage(usage_of(kind, record), reads_text or kind in ("vision", "tracks")), *_scores(record),
                      *_directions(record), *_data(record),
                      *_settings(record), *_limits(usage)]) + "\n"


def usage_of(kind: str, record: Mapping[str, Any]) -> TaskUsage:
    """How a model is used; one for several languages needs the target language."""
    usage, pairs = TASK_USAGE[kind], directions(record)
    if not pairs:
        return usage
    command = usage.command.replace(CARD_FOLDER, f"{CARD_FOLDER} --to {pairs[0].target}")
    return usage._replace(command=command, call=usage.call.replace('("...")', f'("...", to="{pairs[0].target}")'))


def language_pair(record: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The codes of source and target language in a record; None for an unknown one."""
    data = record.get("data", {})
    if directions(record):
        return None, None
    source, target = (data.get(key) for key in ("source_lang", "target_lang"))
    return source if isinstance(source, str) else None, target if isinstance(target, str) else None


def directions(record: Mapping[str, Any]) -> tuple[LanguagePair, ...]:
    """The directions of a model for several languages; empty for any other, and without what is no direction."""
    given, found = record.get("data", {}).get("directions", ()), list[LanguagePair]()
    for name in given if isinstance(given, list | tuple) else ():
        with suppress(ValueError):
            found.append(parse_pair(str(name)))
    return tuple(found)


def describe_directions(pairs: Sequence[LanguagePair]) -> str:
    """Directions in words: "English (en), French (fr), German (de): en-fr, fr-en, en-de"."""
    codes = dict.fromkeys(code for pair in pairs for code in pair)
    return f"{', '.join(map(_named_code, codes))}: {', '.join(map(str, pairs))}" if pairs else ""


def describe_languages(source: str | None, target: str | None) -> str:
    """Two codes in words, "English (en) to French (fr)"; empty if both are unknown."""
    if source is None and target is None:
        return ""
    names = ["an unknown language" if code is None else _named_code(code) for code in (source, target)]
    return " to ".join(names)


def _named_code(code: str) -> str:
    name = language_name(code)
    return code if name == code else f"{name} ({code})" if "(" not in name else f"{name.partition(' (')[0]} ({code})"


def _metadata(usage: TaskUsage, record: Mapping[str, Any]) -> Iterator[str]:
    """The YAML front matter of a Hugging Face card."""
    codes = dict.fromkeys(code for pair in (language_pair(record), *directions(record)) for code in pair
                          if code is not None)
    yield "---"
    if codes:
        yield "language:"
        yield from (f'- "{code}"' for code in codes)  # quoted, since a plain `no` is false in YAML
    yield from (f"pipeline_tag: {usage.pipeline_tag}", "library_name: regard", "tags:", "- regard", "---", "")


def _summary(kind: str, usage: TaskUsage, parameters: int, labels: Sequence[str] | None, vocabularies: Sequence[int],
             record: Mapping[str, Any]) -> Iterator[str]:
    languages = describe_languages(*language_pair(record)) or describe_directions(directions(record))
    title = f"{usage.name[0].upper()}{usage.name[1:]}{' model' if 'model' not in usage.name else ''}"
    named, start = languages.partition(": ")[0], record.get("start", {})
    yield from (f"# {title}{f': {named}' if named else ''}", "")
    if start:
        yield from (f"This model {usage.what}. It was fine-tuned with regard {__version__} from "
                    f"{_inline_code(str(start.get('name', 'another model')))}.", "")
    else:
        yield from (f"This model {usage.what}. It was trained with regard {__version__}." if record.get("training") else
                    f"This model {usage.what}. It was saved by regard {__version__}.", "")
    yield f"- Task: {usage.name}"
    if languages:
        yield f"- Languages: {languages}"
    elif usage is TRANSLATION:
        yield "- Languages: unknown (set them with `regard info FOLDER --set-languages en-fr`)"
    recipe = record.get("recipe")
    yield f"- Architecture: {_inline_code(kind)}" + (f", recipe {_inline_code(recipe)}" if isinstance(recipe, str)
                                                     else "")
    yield f"- Size: {plural(parameters, 'parameter')}"
    if vocabularies:
        yield f"- Vocabulary: {describe_vocabularies(vocabularies)}"
    if start:
        yield from (f"- Fine-tuned from: {_inline_code(str(start.get('name', 'another model')))}, sha256 of its "
                    f"weights {_inline_code(str(start.get('sha256', 'unknown')))}",
                    *([f"- Blended: {start['blend']:.0%} of the change of the weights is kept"] if isinstance(
                        start.get("blend"), float | int) else []))
    if teacher := record.get("data", {}).get("teacher"):
        yield f"- Teacher, whose translations it learned: {_inline_code(str(teacher))}"
    if labels is not None:
        yield f"- Labels: {', '.join(map(_inline_code, labels))}"


def describe_vocabularies(sizes: Sequence[int]) -> str:
    """Vocabulary sizes in words: one, or source and target."""
    if len(set(sizes)) == 1:
        return plural(sizes[0], "token")
    return f"{plural(sizes[0], 'source token')}, {plural(sizes[1], 'target token')}"


def _usage(usage: TaskUsage, reads_text: bool) -> Iterator[str]:
    yield from ("", "## How to use it", "")
    if usage.command and reads_text:
        yield from ("In a shell:", "", "```", usage.command, "```", "", "In Python:", "")
    yield from ("```python", "import regard", "", f'{usage.variable} = regard.load("{CARD_FOLDER}")')
    yield from (f"{usage.variable}{usage.call if reads_text else usage.with_ids}", "```")


def _scores(record: Mapping[str, Any]) -> Iterator[str]:
    scores = dict(record.get("scores", {}))
    step = scores.pop("step", None)
    if not scores:
        return
    yield from ("", "## Scores", "")
    after = f" after step {step:,}" if isinstance(step, int) else ""
    yield f"Measured on {validation_data(record)}{after}."
    warnings = scores.pop("degenerate", ())
    whole = {name: value for name, value in scores.items() if PART_SEPARATOR not in name}
    intervals = {name: format_interval(whole.pop(f"{name}{INTERVAL_SUFFIX}", None)) for name in tuple(whole)
                 if not name.endswith(INTERVAL_SUFFIX)}
    before, shown = record.get("start", {}).get("scores", {}), [
        (name, value + intervals.get(name, "")) for name, value in _flat(whole)]
    if before:
        yield from _changed_scores(before, shown)
    else:
        names = {"loss": "loss (in usual steps)"} if "forecast_error" in whole else {}
        rows = ((names.get(name, _describe_score(name)), value) for name, value in shown)
        yield from _table(("score", "value"), rows)
    if any(intervals.values()):
        yield from ("", INTERVALS_NOTE)
    for warning in warnings if isinstance(warnings, Sequence) else ():
        yield from ("", f"**Warning:** {_inline_code(str(warning))[1:-1]}")


def _changed_scores(before: Mapping[str, Any], after: Sequence[tuple[str, str]]) -> Iterator[str]:
    """A table of scores before and after fine-tuning: of the new data, and of general data if there is any."""
    if any(name.startswith(GENERAL) for name, _ in after):
        yield from ("", "General data is what the start model was made for; the lower its scores, the more of it was "
                        "forgotten.")
    old = dict(_flat(before))
    yield from ("", "| score | start model | this model |", "|---|---|---|")
    yield from (f"| {_describe_score(name)} | {old.get(name, '')} | {value} |" for name, value in after)


def score_name(name: str) -> str:
    """The name of a score as papers write it: BLEU, general BLEU, minADE, loss."""
    if name.startswith(GENERAL):
        return f"general {score_name(name.removeprefix(GENERAL))}"
    return SCORE_NAMES.get(name, name)


def score_value(name: str, value: float) -> str:
    """The value of a score as papers write it: BLEU 41.20, accuracy 93.15%, F1 88.07, loss 0.9912."""
    metric = name.rpartition(" ")[2].removeprefix(GENERAL).partition(PART_SEPARATOR)[0]
    if metric in PERCENTAGES:
        return f"{100 * value:.2f}{PERCENTAGES[metric]}"
    return f"{value:.2f}" if metric in TWO_DECIMALS else format_number(value)


def format_number(value: float) -> str:
    """A number with four significant digits: 41.20, 0.9912, 12,345, nan."""
    return f"{value:,.0f}" if abs(value) >= 999.95 else f"{value:#.4g}"


def _describe_score(name: str) -> str:
    """The name of a score in the card; a score of another model follows the name of that."""
    if name.startswith(GENERAL):
        return f"{_describe_score(name.removeprefix(GENERAL))}, general data"
    other, _, own = name.rpartition(" ")
    return f"{other} {SCORE_DESCRIPTIONS.get(own, score_name(own))}".lstrip()


def format_interval(interval: Any) -> str:
    """A confidence interval of a record in brackets, after a space; empty if there is none."""
    match interval:
        case [int() | float() as low, int() | float() as high]:
            return f" [{low:.2f}, {high:.2f}]"
    return ""


def _directions(record: Mapping[str, Any]) -> Iterator[str]:
    """The scores of each direction, and what the model does with others."""
    pairs, scores = directions(record), record.get("scores", {})
    if not pairs:
        return
    unseen = [f"{source}-{target}" for source in dict.fromkeys(code for pair in pairs for code in pair)
              for target in dict.fromkeys(pair.target for pair in pairs)
              if source != target and (source, target) not in pairs]
    yield from ("", "## Directions", "")
    yield ("The model was trained on these directions; BLEU and chrF above are their means." + (
        f" It also translates {', '.join(unseen)}, of which it saw no pairs (zero-shot translation), often worse."
        if unseen else ""))
    metrics, intervals = ("bleu", "chrf"), {name for name in scores if name.endswith(INTERVAL_SUFFIX)}
    rows = [(str(pair), " / ".join(_part_score(scores, f"{metric}{PART_SEPARATOR}{pair}") for metric in metrics))
            for pair in pairs]
    yield from _table(("direction", " / ".join(SCORE_NAMES[metric] for metric in metrics)), rows)
    if any(PART_SEPARATOR in name for name in intervals):
        yield from ("", INTERVALS_NOTE)


def _part_score(scores: Mapping[str, Any], name: str) -> str:
    """The score of a direction, with its confidence interval if that is known."""
    value = scores.get(name)
    return "?" if value is None else f"`{value:.2f}{format_interval(scores.get(f'{name}{INTERVAL_SUFFIX}'))}`"


def validation_data(record: Mapping[str, Any]) -> str:
    """What the scores of a record were measured on."""
    data = record.get("data", {})
    count, noun = data.get("validation_examples"), next((name for name in COUNTED if name in data), "examples")
    noun = "windows" if noun == "tracks" else noun
    size = plural(count, noun[:-1]) if isinstance(count, int) else ""
    if data.get("validation_files"):
        files = ", ".join(_inline_code(str(name)) for name in data["validation_files"])
        return f"the validation data{f' ({size})' if size else ''}: {files}"
    if data.get("validation_fraction"):
        return f"{size or 'a part'} held out from the training data"
    if size:
        return f"{size} of the training data itself, which says nothing about other data"
    return "the validation data"


def describe_pairs(record: Mapping[str, Any]) -> str:
    """How many pairs a model learned from, "54 training pairs, 6 validation pairs"; empty if that is unknown."""
    data = record.get("data", {})
    training, validation = data.get("training_examples"), data.get("validation_examples")
    if not isinstance(training, int) or "pairs" not in data:
        return ""
    parts = [plural(training, "training pair") + (" (translated by the teacher)" if data.get("teacher") else "")]
    parts += [f"{plural(data[key], noun)}{more}" for key, (noun, more) in COUNTED_APART.items()
              if isinstance(data.get(key), int)]
    if isinstance(validation, int) and (data.get("validation_files") or data.get("validation_fraction")):
        parts.append(plural(validation, "validation pair"))
    return ", ".join(parts)


def _data(record: Mapping[str, Any]) -> Iterator[str]:
    data = record.get("data", {})
    rows = list(_file_hashes(data.get("files", ())))
    if not rows:
        return
    yield from ("", "## Training data", "")
    counted = describe_pairs(record) or next(
        (plural(data[name], name[:-1]) for name in COUNTED if isinstance(data.get(name), int)), "")
    yield f"{counted[0].upper()}{counted[1:]}. The files, validation data included:" if counted else \
        "The files, validation data included:"
    yield from _table(("file", "sha256"), rows)


def _settings(record: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for key, name in SETTING_NAMES.items():
        value: Any = record
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None and (value or key.endswith("seed")):  # a 0 turns off what the setting is about
            rows.append((name, _inline_code(f"{value:.4g}" if isinstance(value, float) else str(value))))
    if rows:
        yield from ("", "## Training", "", "The most important settings; `config.toml` has all of them.")
        yield from _table(("setting", "value"), rows)


def _limits(usage: TaskUsage) -> Iterator[str]:
    if usage.name in LIMITS:
        yield from ("", "## Limits", "", *(f"- {limit}" for limit in LIMITS[usage.name]))


def _table(head: tuple[str, str], rows: "Iterator[tuple[str, str]] | Sequence[tuple[str, str]]") -> Iterator[str]:
    yield from ("", f"| {head[0]} | {head[1]} |", "|---|---|")
    yield from (f"| {name} | {value} |" for name, value in rows)


def _flat(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of every leaf of nested tables; a name begins with the names of its tables."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key} ")
        else:
            shown = score_value(key, value) if isinstance(value, float) else str(value)
            yield above + escape(key).replace("|", "\\|"), _inline_code(shown)


def _file_hashes(files: Any) -> Iterator[tuple[str, str]]:
    """Name and sha256 of files, given as a table, or as an array of "name sha256"."""
    pairs = files.items() if isinstance(files, Mapping) else (str(each).rpartition(" ")[::2] for each in files)
    for name, digest in pairs:
        yield _inline_code(PurePath(name).name), _inline_code(str(digest))


def _inline_code(text: str) -> str:
    """A text as inline code for a table cell, without characters that are markup there."""
    shown = escape(text).replace("`", "'").replace("|", "\\|")
    return f"`{shown or ' '}`"
