"""`regard fill`: fill in the blanks of texts, "The ___ sleeps."."""

from typing import Annotated

import typer

from regard.cli.options import (
    AUTO_DEVICE,
    OUTPUT_PANEL,
    DeviceOption,
    JsonOption,
    ModelArgument,
    TextsArgument,
    open_task,
    process_each,
    text_blocks,
    text_label,
    with_examples,
)
from regard.cli.output import write_json, write_line


@with_examples("""
    regard fill model "The ___ sleeps."         # the 5 best words for the blank
    regard fill model -n 10 "A ___ is ___."     # 10 words for each blank
    regard fill model --json < texts.txt        # the lines of a file, as JSON
""")
def fill(
    model: ModelArgument,
    texts: TextsArgument = None,
    top_k: Annotated[int, typer.Option(
        "-n", "--top-k", metavar="N", min=1, rich_help_panel=OUTPUT_PANEL, help="Suggestions per blank.")] = 5,
    as_json: JsonOption = False,
    device: DeviceOption = AUTO_DEVICE,
) -> None:
    """Fill in the blanks of a text with a masked language model.

    A blank is three underscores: "The ___ sleeps." Prints each text with its blanks filled in, and below it a line for
    each blank with the most probable tokens. A blank stands for one token: a word, or a part of a word.
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
