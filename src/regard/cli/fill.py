"""`regard fill`: fill in the blanks of texts, "The ___ sleeps."."""

from typing import Annotated

import typer

from regard.cli.options import (
    AUTO_DEVICE,
    DeviceOption,
    JsonOption,
    ModelArgument,
    TextsArgument,
    open_task,
    process_each,
    text_blocks,
    text_label,
)
from regard.cli.terminal import write_json, write_line


def fill(
    model: ModelArgument,
    texts: TextsArgument = None,
    top_k: Annotated[int, typer.Option("-n", "--top-k", metavar="N", min=1, help="Suggestions for each blank.")] = 5,
    as_json: JsonOption = False,
    device: DeviceOption = AUTO_DEVICE,
) -> None:
    """Fill in blanks. A blank is three underscores: "The ___ sleeps."

    Prints each text with its blanks filled in, and below it a line for each blank with the suggestions and their
    probabilities. A blank stands for one token: a word, or a part of one.
    """
    from regard.tasks.filler import FilledText, Filler

    task = open_task(model, device, "Filler")
    assert isinstance(task, Filler)
    filler = task

    def work(some: list[str]) -> list[FilledText]:
        return filler.fill(some, top_k=top_k)

    for text, found in process_each(text_blocks(texts), work, text_label):
        blanks = () if found is None else found.blanks
        if as_json:
            filled = [[each._asdict() for each in blank] for blank in blanks]
            write_json({"source": text, "text": None if found is None else found.text, "blanks": filled})
            continue
        write_line("" if found is None else found.text)
        for blank in blanks:
            write_line("  " + ", ".join(f"{each.text} {100 * each.probability:.1f}%" for each in blank))
