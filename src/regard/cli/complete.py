"""`regard complete`: prompts, or all of standard input as one, each with what a language model writes after it."""

from collections.abc import Sequence
from typing import Annotated

import typer

from regard.cli import models


def complete(
    model: models.Model,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="Where each text begins; without any, "
                       "or with -, all of standard input.", show_default=False)] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="How many tokens are written at "
                     "most.")] = 200,
    beam: Annotated[int, typer.Option("--beam", metavar="N", min=1, help="How many continuations are followed side by "
                    "side.")] = 1,
    as_json: models.Json = False,
    device: models.Device = models.AUTO,
) -> None:
    """Go on with a text.

    The prompt comes out, and what the model writes after it.
    """
    from regard.tasks.writing import Completer, Completion

    task = models.opened(model, device, "Completer")
    assert isinstance(task, Completer)
    completer, penalty = task, "mean" if beam > 1 else "none"

    def work(some: list[str]) -> list[Completion]:
        return completer.complete(some, limit=limit, beams=beam, length_penalty=penalty)

    for prompt, found in models.each([_given(prompts)], work, models.numbered):
        if not as_json:
            models.write_whole("" if found is None else found.prompt + found.text)
        elif found is None:
            models.write_json({"prompt": prompt, "text": None})
        else:
            models.write_json({"prompt": found.prompt, "text": found.text, "score": found.score, "cut": found.cut})


def _given(prompts: Sequence[str] | None) -> list[str]:
    """The prompts; all of standard input is one, without the end of its last line."""
    if prompts and list(prompts) != ["-"]:
        return list(prompts)
    return ["\n".join(line for block in models.blocks(None) for line in block)]
