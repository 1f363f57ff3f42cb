"""`regard evaluate`: score a model on data that it was not trained on.

The task of the model decides what the data must be and what is computed. The data is read here;
`regard.tasks.evaluation` computes the scores.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.checks import plural
from regard.cli.options import (
    AUTO_DEVICE,
    ENGINE_PANEL,
    OUTPUT_PANEL,
    TASK_COMMANDS,
    TASK_NOUNS,
    BatchTokensOption,
    DeviceOption,
    FormatOption,
    JsonReportOption,
    ModelArgument,
    SourceOption,
    TargetOption,
    beam_option,
    complete_names,
    open_task,
    with_examples,
)
from regard.cli.output import fail, say_notes, write_json
from regard.terminal import Terminal

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.sources.formats import PairCorpus
    from regard.tasks.classifier import Classifier
    from regard.tasks.completer import Completer
    from regard.tasks.evaluation import TokenLoss
    from regard.tasks.filler import Filler
    from regard.tasks.translator import Translator

Table = dict[str, Any]


@with_examples("""
    regard evaluate model test.tsv                       # BLEU, chrF and loss
    regard evaluate model test.en test.fr -o output.fr   # keep the translations
    regard evaluate model test.tsv --beam 1 --json
    regard evaluate language-model test.txt              # perplexity
""")
def evaluate(
    model: ModelArgument,
    data: Annotated[list[str], typer.Argument(
        metavar="DATA", show_default=False,
        help="Test data. Translator: sentence pairs (TSV, JSONL, PO, TMX, or two plain files: sources, then targets). "
        "Language model and masked language model: plain text. Classifier: a TSV of text and label, a folder with one "
        "folder of images per class, or two IDX files. - is standard input.")],
    source: SourceOption = None,
    target: TargetOption = None,
    format: FormatOption = None,
    beam: Annotated[int, beam_option("5", help="Beam size of a translator; 1 is greedy search.")] = 5,
    window: Annotated[int | None, typer.Option(
        "--window", metavar="N", min=1, rich_help_panel=ENGINE_PANEL, show_default="as in training",
        help="Context of a language model, in tokens.")] = None,
    device: DeviceOption = AUTO_DEVICE,
    batch_tokens: BatchTokensOption = None,
    lowercase: Annotated[bool, typer.Option(
        "--lowercase", rich_help_panel=OUTPUT_PANEL, help="Compute BLEU and chrF on lowercased texts.")] = False,
    tokenize: Annotated[str, typer.Option(
        "--tokenize", metavar="NAME", rich_help_panel=OUTPUT_PANEL,
        autocompletion=complete_names("13a", "intl", "zh", "char", "none"),
        help="sacreBLEU's tokenizer for BLEU: 13a, intl, zh, char, or none for texts that are tokenized "
        "already.")] = "13a",
    output: Annotated[str | None, typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=OUTPUT_PANEL, show_default=False,
        help="Also write the translations to a new file, one per line.")] = None,
    as_json: JsonReportOption = False,
) -> None:
    """Score a model on test data.

    Use data that the model was not trained on. A translator gets BLEU and chrF with 95% confidence intervals and
    sacreBLEU signatures and the loss, also by source length, and a warning if its translations are degenerate: empty,
    copied, all alike or repetitive. A language model gets loss, perplexity and bits per character; a masked language
    model the loss of masked tokens; a classifier accuracy and loss.
    """
    from regard.tasks.classifier import Classifier
    from regard.tasks.completer import Completer
    from regard.tasks.filler import Filler
    from regard.tasks.translator import Translator

    if output is not None and os.path.lexists(output):
        fail(f"{output}: The file exists already. Choose another name, or remove it.")
    if output is not None and not os.path.isdir(os.path.dirname(output) or "."):
        fail(f"{output}: The folder {os.path.dirname(output)} does not exist. Create it first.")
    task = open_task(model, device, *TASK_COMMANDS)
    if output is not None and not isinstance(task, Translator):
        fail(f"{output}: -o writes translations, but this model is {TASK_NOUNS[type(task).__name__]}. Leave it out.")
    try:
        if isinstance(task, Translator):
            from regard.data.sources import formats

            pairs = formats.read_pairs(data, source=source, target=target, format=format)
            found = _evaluate_translator(task, pairs, output,
                                         {"beams": beam, "lowercase": lowercase, "tokenize": tokenize,
                                          "batch_tokens": batch_tokens})
        elif isinstance(task, Completer):
            found = _evaluate_completer(task, data, window)
        elif isinstance(task, Filler):
            found = _evaluate_filler(task, data)
        else:
            assert isinstance(task, Classifier)
            found = _evaluate_classifier(task, data, batch_tokens)
    except ValueError as error:
        fail(str(error))
    if as_json:
        write_json(found)
    else:
        _draw_table(found, Terminal.of(sys.stdout))


def _evaluate_translator(task: "Translator", pairs: "PairCorpus", output: str | None, options: Table) -> Table:
    from regard.storage.filesystem import write_file
    from regard.tasks.evaluation import evaluate_translator

    given = [(pair.source, pair.target) for pair in pairs]
    say_notes(pairs.log.notes)
    found = evaluate_translator(task, given, **options)
    if output is not None:
        lines = [text.replace("\r", " ").replace("\n", " ") + "\n" for text in found.hypotheses]
        write_file(Path(output), "".join(lines).encode("utf-8", "backslashreplace"), overwrite=False)
    scores = found.scores
    return {"task": "translator", "pairs": len(given), "beam": options["beams"],
            "bleu": scores.bleu, "bleu_interval": scores.bleu_interval, "bleu_signature": scores.bleu_signature,
            "chrf": scores.chrf, "chrf_interval": scores.chrf_interval, "chrf_signature": scores.chrf_signature,
            **_loss_table(found.loss), "cut": found.cut, "by_length": [bucket._asdict() for bucket in found.by_length],
            "degenerate": [each._asdict() for each in found.degenerate]}


def _evaluate_completer(task: "Completer", data: Sequence[str], window: int | None) -> Table:
    from regard.data.sources.text import DataError, InputFile
    from regard.tasks.evaluation import stream_loss
    from regard.training.tasks import language

    pieces = [*language.read_pieces([InputFile(path) for path in data])]
    ids = [id_ for some in language.encode_pieces(task.text_tokenizer(), pieces) for id_ in some]
    if len(ids) < 2:
        raise DataError(f"{', '.join(data)}: The text has fewer than 2 tokens. Give more text.")
    length = window or task.record.get("training", {}).get("windows", {}).get("length")
    loss = stream_loss(task, ids, window=length)
    characters = sum(len(piece) for piece in pieces if piece is not language.FILE_END)
    return {"task": "completer", "characters": characters, **_loss_table(loss),
            "bits_per_character": loss.nll / log(2) / max(1, characters)}


def _evaluate_filler(task: "Filler", data: Sequence[str]) -> Table:
    from regard.data.sources import formats
    from regard.data.sources.text import DataError
    from regard.tasks.evaluation import masked_loss

    texts = [line.text for line in formats.read_texts(data, format="plain")]
    loss = masked_loss(task, texts)
    if not loss.tokens:
        raise DataError(f"{', '.join(data)}: All lines are empty, so there is no token to mask. Give lines with text.")
    return {"task": "filler", "texts": len(texts), **_loss_table(loss)}


def _evaluate_classifier(task: "Classifier", data: Sequence[str], batch_tokens: int | None) -> Table:
    from regard.data.sources.formats import read_labelled_texts
    from regard.data.sources.text import DataError, InputFile, ReadLog
    from regard.models.vision import VisionConfig
    from regard.tasks.evaluation import evaluate_classifier

    if isinstance(task.config, VisionConfig):
        images, labels = _read_images(task, data)
        found = evaluate_classifier(task, images, labels)
    else:
        log = ReadLog()
        examples = [example for path in data for example in read_labelled_texts(InputFile(path), log)]
        say_notes(log.notes)
        if not examples:
            raise DataError(f"{', '.join(data)}: The file is empty. Give a TSV with a text and a label on each line.")
        found = evaluate_classifier(task, [example.text for example in examples],
                                    [example.label for example in examples], batch_tokens=batch_tokens)
    return {"task": "classifier", **asdict(found), "accuracy": found.accuracy}


def _read_images(task: "Classifier", data: Sequence[str]) -> "tuple[Tensor, list[str]]":
    """The bytes of all images, and their labels."""
    import torch

    from regard.data import images

    config = task.config
    shape = images.ImageShape(config.image_height, config.image_width, config.channels)  # type: ignore[union-attr]
    if len(data) == 2 and all(Path(path).is_file() for path in data):
        both = images.read_idx_images(data)
        arrays, labels = [images.resize_image(image, shape) for image in both.images], [*map(str, both.labels)]
    else:
        folders = [images.read_image_folder(path) for path in data]
        arrays = [images.read_pixels(file, shape) for folder in folders for file in folder.files]
        labels = [label for folder in folders for label in folder.labels]
    return torch.stack([torch.tensor(array) for array in arrays]), labels


def _loss_table(loss: "TokenLoss") -> Table:
    return {"loss": loss.mean, "perplexity": loss.perplexity, "tokens": loss.tokens}


def _draw_table(found: Table, terminal: Terminal) -> None:
    terminal.table(_result_rows(found))
    for each in found.get("degenerate", ()):
        terminal.text(f"Warning: {each['sentence']}")
    buckets = found.get("by_length", ())
    if buckets:
        terminal.heading("By source length")
        cells = [["words", "pairs", "BLEU", "chrF"]]
        for row in buckets:
            words = f"{row['least']}-{row['most']}" if row["most"] is not None else f"{row['least']} or more"
            cells.append([words, f"{row['pairs']:,}", f"{row['bleu']:.2f}", f"{row['chrf']:.2f}"])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        terminal.beside([["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
                          for row in cells]])


def _result_rows(found: Table) -> dict[str, str]:
    """The results by name, in words; losses are in nats."""
    from regard.tasks.bootstrap import BOOTSTRAP_DRAWS

    if found["task"] == "classifier":
        return {"Accuracy": f"{100 * found['accuracy']:.2f}% ({found['correct']:,} of {found['examples']:,})",
                "Loss": f"{found['loss']:.4f}"}
    loss = {"Loss": f"{found['loss']:.4f} per token (perplexity {found['perplexity']:,.2f})"}
    if found["task"] == "completer":
        return {**loss, "Bits per character": f"{found['bits_per_character']:.4f}",
                "Test data": f"{plural(found['characters'], 'character')}, {plural(found['tokens'], 'token')}"}
    if found["task"] == "filler":
        return {**loss, "Test data": f"{plural(found['texts'], 'text')}, {plural(found['tokens'], 'masked token')}"}
    cut = f"; {plural(found['cut'], 'translation')} reached the maximum length" if found["cut"] else ""
    brackets = {} if found["bleu_interval"] is None else {
        "Brackets": f"95% confidence intervals (bootstrap over the test pairs, {BOOTSTRAP_DRAWS:,} draws)"}
    return {"BLEU": _format_score(found["bleu"], found["bleu_interval"]),
            "chrF": _format_score(found["chrf"], found["chrf_interval"]), **brackets, **loss,
            "Test data": f"{plural(found['pairs'], 'pair')}, {plural(found['tokens'], 'target token')}",
            "Search": f"beam size {found['beam']}{cut}",
            "BLEU signature": found["bleu_signature"], "chrF signature": found["chrf_signature"]}


def _format_score(value: float, interval: Sequence[float] | None) -> str:
    return f"{value:.2f}" if interval is None else f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"
