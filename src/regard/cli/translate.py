"""`regard translate`: texts, or the lines of standard input, translated; as many lines come out as go in.

It hands them to `Translator.translate`, block by block, and writes what comes back.
"""

from typing import Annotated

import typer

from regard.cli import models


def translate(
    model: models.Model,
    texts: models.Texts = None,
    beam: Annotated[int, typer.Option("--beam", metavar="N", min=1, help="How many beginnings are followed side by "
                    "side; 1 is the fastest.")] = 5,
    as_json: models.Json = False,
    device: models.Device = models.AUTO,
) -> None:
    """Translate texts, or the lines of standard input.

    Every line gives one line; of an empty one it is empty. A line that cannot be translated is named on stderr and
    gives an empty line, the others are translated, and the exit code is 1.
    """
    from regard.tasks.writing import Translation, Translator

    task = models.opened(model, device, "Translator")
    assert isinstance(task, Translator)
    translator, penalty = task, "mean" if beam > 1 else "none"

    def work(lines: list[str]) -> list[Translation]:
        return translator.translate(lines, beams=beam, length_penalty=penalty)

    for text, found in models.each(models.blocks(texts), work, models.numbered):
        if not as_json:
            models.write("" if found is None else found.text)
        elif found is None:
            models.write_json({"source": text, "text": None})
        else:
            models.write_json({"source": text, "text": found.text, "score": found.score, "cut": found.cut})
