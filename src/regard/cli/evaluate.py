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

from regard.cli.options import (
    AUTO_DEVICE,
    TASK_COMMANDS,
    DeviceOption,
    FormatOption,
    JsonReportOption,
    ModelArgument,
    SourceOption,
    TargetOption,
    open_task,
)
from regard.cli.terminal import Terminal, fail, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.sources.formats import PairCorpus
    from regard.tasks.classifier import Classifier
    from regard.tasks.completer import Completer
    from regard.tasks.evaluation import TokenLoss
    from regard.tasks.filler import Filler
    from regard.tasks.translator import Translator

Table = dict[str, Any]


def evaluate(
    model: ModelArgument,
    data: Annotated[list[str], typer.Argument(metavar="DATA", help="For a translator sentence pairs (TSV, JSONL, PO, "
                    "TMX, or two plain files: sources, then targets). For a language model or a masked model plain "
                    "text. For a classifier a TSV of text and label, a folder with a folder of images for each class, "
                    "or two IDX files.", show_default=False)],
    beam: Annotated[int, typer.Option("--beam", metavar="N", min=1, help="Beam size of a translator.")] = 5,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    tokenize: Annotated[str, typer.Option("--tokenize", metavar="NAME", help="Tokenizer of BLEU: 13a, intl, zh, char, "
                        "or none for tokenized texts.")] = "13a",
    window: Annotated[int | None, typer.Option("--window", metavar="N", min=1, help="Tokens that a language model "
                      "reads at a time.", show_default="as in training")] = None,
    source: SourceOption = None,
    target: TargetOption = None,
    format: FormatOption = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the translations to a new "
                      "file, one on each line.", show_default=False)] = None,
    as_json: JsonReportOption = False,
    device: DeviceOption = AUTO_DEVICE,
) -> None:
    """Score a model on data that it was not trained on.

    For a translator BLEU and chrF with their signatures and the loss, also by the length of the source; for a language
    model loss, perplexity and bits per character; for a masked model the loss of masked tokens; for a classifier the
    accuracy and the loss.
    """
    from regard.tasks.classifier import Classifier
    from regard.tasks.completer import Completer
    from regard.tasks.filler import Filler
    from regard.tasks.translator import Translator

    if output is not None and os.path.lexists(output):
        fail(f"{output}: It exists already, and is not overwritten. Choose another name.")
    if output is not None and not os.path.isdir(os.path.dirname(output) or "."):
        fail(f"{output}: There is no such folder. Make it first.")
    task = open_task(model, device, *TASK_COMMANDS)
    if output is not None and not isinstance(task, Translator):
        fail(f"{output}: Only a translator writes translations. Leave out -o.")
    try:
        if isinstance(task, Translator):
            from regard.data.sources import formats

            pairs = formats.read_pairs(data, source=source, target=target, format=format)
            found = _evaluate_translator(task, pairs, output,
                                         {"beams": beam, "lowercase": lowercase, "tokenize": tokenize})
        elif isinstance(task, Completer):
            found = _evaluate_completer(task, data, window)
        elif isinstance(task, Filler):
            found = _evaluate_filler(task, data)
        else:
            assert isinstance(task, Classifier)
            found = _evaluate_classifier(task, data)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or output}: {error.strerror}", 1)
    if as_json:
        write_json(found)
    else:
        _draw_table(found, Terminal.of(sys.stdout))


def _evaluate_translator(task: "Translator", pairs: "PairCorpus", output: str | None, options: Table) -> Table:
    from regard.tasks.evaluation import evaluate_translator

    given = [(pair.source, pair.target) for pair in pairs]
    found = evaluate_translator(task, given, **options)
    if output is not None:
        lines = [text.replace("\r", " ").replace("\n", " ") + "\n" for text in found.hypotheses]
        with open(output, "x", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
    scores = found.scores
    return {"task": "translator", "pairs": len(given), "beam": options["beams"],
            "bleu": scores.bleu, "bleu_signature": scores.bleu_signature,
            "chrf": scores.chrf, "chrf_signature": scores.chrf_signature,
            **_loss_table(found.loss), "cut": found.cut, "by_length": [bucket._asdict() for bucket in found.by_length]}


def _evaluate_completer(task: "Completer", data: Sequence[str], window: int | None) -> Table:
    from regard.data.sources.text import DataError, InputFile
    from regard.tasks.evaluation import stream_loss
    from regard.training.tasks import language

    pieces = [*language.read_pieces([InputFile(path) for path in data])]
    ids = [id_ for some in language.encode_pieces(task.text_tokenizer(), pieces) for id_ in some]
    if len(ids) < 2:
        raise DataError(f"{', '.join(data)}: There is not enough text in it: at least two tokens are needed.")
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
        raise DataError(f"{', '.join(data)}: All lines are empty, so no token can be masked. Give some with text.")
    return {"task": "filler", "texts": len(texts), **_loss_table(loss)}


def _evaluate_classifier(task: "Classifier", data: Sequence[str]) -> Table:
    from regard.data.sources.text import DataError, InputFile
    from regard.data.sources.tsv import read_labelled_texts
    from regard.models.vision import VisionConfig
    from regard.tasks.evaluation import evaluate_classifier

    if isinstance(task.config, VisionConfig):
        images, labels = _read_images(task, data)
        found = evaluate_classifier(task, images, labels)
    else:
        examples = [example for path in data for example in read_labelled_texts(InputFile(path))]
        if not examples:
            raise DataError(f"{', '.join(data)}: There are no lines in it. Give a file with some.")
        found = evaluate_classifier(task, [example.text for example in examples],
                                    [example.label for example in examples])
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
    rows = {key: value for key, value in found.items() if key not in ("task", "by_length")}
    width = max(map(len, rows))
    for key, value in rows.items():
        shown = f"{value:,.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
        terminal.text(f"{key.replace('_', ' ').ljust(width)}  {shown}")
    buckets = found.get("by_length", ())
    if buckets:
        terminal.heading("By the words of the source")
        cells = [["words", "pairs", "BLEU", "chrF"]]
        for row in buckets:
            words = f"{row['least']}-{row['most']}" if row["most"] is not None else f"{row['least']} or more"
            cells.append([words, f"{row['pairs']:,}", f"{row['bleu']:.2f}", f"{row['chrf']:.2f}"])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        terminal.beside([["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
                          for row in cells]])
