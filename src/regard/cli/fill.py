"""`regard fill`: texts with blanks, "The ___ sleeps.", and what may stand in them."""

from typing import Annotated

import typer

from regard.cli import models


def fill(
    model: models.Model,
    texts: models.Texts = None,
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, help="How many suggestions a blank "
                                       "gets.")] = 5,
    as_json: models.Json = False,
    device: models.Device = models.AUTO,
) -> None:
    """Fill in blanks. A blank is three underscores: "The ___ sleeps."

    Each text comes out with its blanks filled in; below it is a line for each blank, with what may stand there and how
    probable that is. A blank stands for one token: a word, or a part of one.
    """
    from regard.tasks.reading import Filler, Filling

    task = models.opened(model, device, "Filler")
    assert isinstance(task, Filler)
    filler = task

    def work(some: list[str]) -> list[Filling]:
        return filler.fill(some, count=count)

    for text, found in models.each(models.blocks(texts), work, models.numbered):
        blanks = () if found is None else found.blanks
        if as_json:
            filled = [[each._asdict() for each in blank] for blank in blanks]
            models.write_json({"source": text, "text": None if found is None else found.text, "blanks": filled})
            continue
        models.write("" if found is None else found.text)
        for blank in blanks:
            models.write("  " + ", ".join(f"{each.text} {100 * each.probability:.1f}%" for each in blank))
