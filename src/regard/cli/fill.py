"""`regard fill`: texts with blanks, "The ___ sleeps.", and what may stand in them."""

from typing import Annotated

import typer

from regard.cli import options, terminal


def fill(
    model: options.ModelArgument,
    texts: options.TextsArgument = None,
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, help="How many suggestions a blank "
                                       "gets.")] = 5,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = options.AUTO_DEVICE,
) -> None:
    """Fill in blanks. A blank is three underscores: "The ___ sleeps."

    Each text comes out with its blanks filled in; below it is a line for each blank, with what may stand there and how
    probable that is. A blank stands for one token: a word, or a part of one.
    """
    from regard.tasks.filler import FilledText, Filler

    task = options.open_task(model, device, "Filler")
    assert isinstance(task, Filler)
    filler = task

    def work(some: list[str]) -> list[FilledText]:
        return filler.fill(some, count=count)

    for text, found in options.process_each(options.text_blocks(texts), work, options.text_label):
        blanks = () if found is None else found.blanks
        if as_json:
            filled = [[each._asdict() for each in blank] for blank in blanks]
            terminal.write_json({"source": text, "text": None if found is None else found.text, "blanks": filled})
            continue
        terminal.write_line("" if found is None else found.text)
        for blank in blanks:
            terminal.write_line("  " + ", ".join(f"{each.text} {100 * each.probability:.1f}%" for each in blank))
