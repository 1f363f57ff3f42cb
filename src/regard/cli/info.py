"""`regard info`: what is in a model folder, and how to use it.

The command reads the folder with `regard.tasks.info`, which does not import torch, and prints what it found.
"""

import shlex
import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import DATA_PANEL, JsonReportOption, ModelArgument, with_examples
from regard.cli.output import fail, say, write_json, write_text
from regard.terminal import escape_unprintable, path_argument

if TYPE_CHECKING:
    from regard.tasks.info import ModelInfo, TrainingFolderStatus


@with_examples("""
    regard info my-model
    regard info my-model --json | jq .scores
    regard info my-model --set-languages en-fr     # if they are unknown or wrong
""")
def info(
    model: ModelArgument,
    languages: Annotated[str | None, typer.Option(
        "--set-languages", metavar="PAIR", show_default=False, rich_help_panel=DATA_PANEL,
        help="Store source and target language with the model, such as en-fr or pt-BR-en.")] = None,
    as_json: JsonReportOption = False,
) -> None:
    """Show what is in a model folder: task, languages, size, scores, training data, and how to use it.

    MODEL may also be a Hugging Face folder, or the folder of a training that has not ended. Files are compared by
    length only; loading the model verifies every byte.
    """
    from regard.data.languages import parse_pair
    from regard.tasks import info as infos

    try:
        if languages is not None:
            pair = parse_pair(languages, "--set-languages")
            card_written = infos.set_languages(model, pair)
            say(f"Stored the languages {pair} in {model}." if card_written else
                f"Stored the languages {pair} in {model}. Its README.md has your changes, and stays as it is.")
        found = infos.read_info(model)
        if languages is not None and found.training is not None and not found.training.finished:
            say(f"This training has not ended: when you resume it, add --languages {pair}.")
    except ValueError as error:
        fail(str(error))
    if as_json:
        write_json(_as_table(model, found))
    else:
        _draw(model, found)


def _as_table(model: str, found: "ModelInfo") -> dict[str, Any]:
    status, command = found.training, _commands(model, found)
    return {
        "folder": model, "format": found.format, "task": found.task, "kind": found.kind, "family": found.family,
        "source_lang": found.source_lang, "target_lang": found.target_lang,
        "directions": [*map(str, found.directions)], "recipe": found.recipe,
        "parameters": found.parameters, "vocab_sizes": list(found.vocabularies), "labels": list(found.labels),
        "scores": dict(found.record.get("scores", {})), "start": dict(found.record.get("start", {})) or None,
        "teacher": found.record.get("data", {}).get("teacher"), "files": list(found.files), **found.counts,
        **{key: found.record["data"][key] for key in ("training_examples", "validation_examples")
           if key in found.record.get("data", {})},
        "training": None if status is None else {
            "step": status.step, "max_steps": status.steps, "seconds": status.seconds, "finished": status.finished,
            "running": status.running, "resume": None if status.finished else _resume_command(model, status)},
        "model_bytes": found.model_bytes, "all_bytes": found.all_bytes, "regard": found.version,
        "command": command[0], "python": command[1]}


def _draw(model: str, found: "ModelInfo") -> None:
    rows = [(name, value) for name, value in _rows(found) if value]
    indent, columns = 4 + max(len(name) for name, _ in rows), max(40, min(100, shutil.get_terminal_size().columns))
    write_text(escape_unprintable(model))
    for name, value in rows:
        lines = textwrap.wrap(escape_unprintable(value), columns - indent, break_long_words=False) or [""]
        write_text(f"  {name}".ljust(indent) + f"\n{' ' * indent}".join(lines))
    command, python = _commands(model, found)
    if found.parameters is not None and (command or python):
        write_text("\nUse it:")
        for line in filter(None, (command, python)):
            write_text(f"  {escape_unprintable(line)}")
    if found.training is not None and not found.training.finished and not found.training.running:
        write_text("\nResume the training, with the same files and options:")
        write_text(f"  {escape_unprintable(_resume_command(model, found.training))}")


def _rows(found: "ModelInfo") -> list[tuple[str, str]]:
    from regard.checks import plural
    from regard.tasks.card import describe_directions, describe_languages, describe_pairs, describe_vocabularies

    languages = describe_directions(found.directions) or describe_languages(found.source_lang, found.target_lang)
    if not languages and found.task == "translation":
        languages = "unknown (set them with --set-languages en-fr)"
    family = f"{found.family} (Hugging Face)" if found.family else found.kind or ""
    size = _format_bytes(found.model_bytes)
    if found.all_bytes > found.model_bytes * 1.01:
        size += f"; {_format_bytes(found.all_bytes)} with checkpoints and other files"
    files = ", ".join(found.files)
    counts = describe_pairs(found.record) or ", ".join(plural(count, name[:-1]) for name, count in found.counts.items())
    return [
        ("Task", found.task or "unknown"),
        ("Languages", languages),
        ("Architecture", family + (f", recipe {found.recipe}" if found.recipe else "")),
        ("Parameters", "" if found.parameters is None else f"{found.parameters:,}"),
        ("Vocabulary", describe_vocabularies(found.vocabularies) if found.vocabularies else ""),
        ("Labels", ", ".join(found.labels[:20]) + (", ..." if len(found.labels) > 20 else "")),
        ("Fine-tuned from", _format_start(found)),
        ("Teacher", str(found.record.get("data", {}).get("teacher", ""))),
        ("Scores", _format_scores(found)),
        ("Data", f"{counts} ({files})" if counts and files else files),
        ("Training", "" if found.training is None else _format_training(found.training, found.parameters is not None)),
        ("Size on disk", size),
        ("Saved by", f"regard {found.version}" if found.version else ""),
    ]


def _format_start(found: "ModelInfo") -> str:
    """The start model of a fine-tuned one, and its scores."""
    start = found.record.get("start", {})
    if not start:
        return ""
    scores = ", ".join(format_stored_score(name, value) for name, value in start.get("scores", {}).items()
                       if isinstance(value, int | float))
    blend = start.get("blend")
    return (f"{start.get('name', 'another model')} (sha256 {str(start.get('sha256', ''))[:12]}){': ' * bool(scores)}"
            f"{scores}" + (f"; blended, {blend:.0%} of the change kept" if isinstance(blend, int | float) else ""))


def format_stored_score(name: str, value: float) -> str:
    """A score of a record with its name: BLEU 41.25, general BLEU 39.90, accuracy 93.15%."""
    from regard.tasks.card import score_name, score_value

    return f"{score_name(name)} {score_value(name, value)}"


def _format_scores(found: "ModelInfo") -> str:
    from regard.tasks.card import INTERVAL_SUFFIX, PART_SEPARATOR, format_interval, validation_data

    stored = found.record.get("scores", {})
    scores = {name: value for name, value in stored.items() if isinstance(value, int | float)}
    step = scores.pop("step", None)
    if not scores:
        return ""
    shown = ", ".join(
        f"{format_stored_score(name, value)}{format_interval(stored.get(name + INTERVAL_SUFFIX))}"
        f"{_format_parts(name, stored)}" for name, value in scores.items() if PART_SEPARATOR not in name)
    on = validation_data(found.record).replace("`", "")
    return f"{shown} (step {step:,}, on {on})" if step is not None else f"{shown} (on {on})"


def _format_parts(metric: str, scores: "Mapping[str, Any]") -> str:
    """The scores of the directions with their confidence intervals, in parentheses."""
    from regard.tasks.card import INTERVAL_SUFFIX, PART_SEPARATOR, format_interval, score_value

    parts = [f"{name.partition(PART_SEPARATOR)[2]} {score_value(metric, value)}"
             f"{format_interval(scores.get(name + INTERVAL_SUFFIX))}" for name, value in scores.items()
             if name.startswith(f"{metric}{PART_SEPARATOR}") and isinstance(value, int | float)]
    return f" ({', '.join(parts)})" if parts else ""


def _format_training(status: "TrainingFolderStatus", has_model: bool) -> str:
    from regard.checks import plural
    from regard.training.status import format_clock

    time = "" if status.seconds is None else f" in {format_clock(status.seconds)}"
    if status.finished:
        return f"finished: {plural(status.step, 'step')}{time}"
    of = "" if status.steps is None else f" of {status.steps:,}"
    state = "running" if status.running else "not finished"
    return f"{state}: step {status.step:,}{of}{time}" + ("" if has_model else "; no model is saved yet")


def _commands(model: str, found: "ModelInfo") -> tuple[str, str]:
    """How to use a model in a shell and in Python; empty if there is no way."""
    from regard.tasks.card import CARD_FOLDER, usage_of

    if found.kind is None:
        return "", ""
    usage, texts = usage_of(found.kind, found.record), found.reads_text or found.kind in ("vision", "tracks")
    command = usage.command.replace(CARD_FOLDER, shlex.quote(path_argument(model))) if texts else ""
    return command, f"regard.load({str(Path(model))!r}){usage.call if texts else usage.with_ids}"


def _resume_command(model: str, status: "TrainingFolderStatus") -> str:
    words = ["regard", "train", *map(path_argument, status.arguments.get("DATA", ()))]
    for option, value in status.arguments.items():
        if not option.startswith("--") or value in (None, False, [], ()):
            continue
        if option == "--time":
            value = f"{value:g}s"
        values = value if isinstance(value, list | tuple) else [value]
        words += [option] if value is True else [part for one in values for part in (option, str(one))]
    words += [] if status.task == "seq2seq" else ["--task", status.task]
    words += [] if status.start is None else ["--from", path_argument(status.start)]
    words += ["-o", model, "--resume"]
    return shlex.join(words)


def _format_bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"
