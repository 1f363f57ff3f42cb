"""`regard complete`: prompts, or all of standard input as one, each with what a language model writes after it.

    regard complete model "The cat" -n 10                 ten texts, drawn by chance
    regard complete model "The cat" --stream              one, as it is written

How is searched, `regard.cli.options` says.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import options, terminal
from regard.cli.options import expand_options

if TYPE_CHECKING:
    from regard.tasks.completer import Completer, Completion
    from regard.tasks.search import DecodingStrategy


DEFAULT_BEAM_SIZE, DEFAULT_MAX_LENGTH = 1, 200


@dataclass(frozen=True)
class CompletionLengthOptions(options.LengthOptions):
    """What may be written, where nothing is read that would say how long it becomes."""

    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, rich_help_panel=options.CONSTRAINTS_PANEL,
                     help="At most so many tokens.")] = DEFAULT_MAX_LENGTH


@dataclass(frozen=True)
class CompletionOutput:
    """What comes out."""

    nbest: Annotated[int, typer.Option("-n", "--nbest", metavar="N", min=1, help="How many texts for each prompt: so "
                     "many are drawn, as with --sample; where --beam is given, the best.")] = 1
    stream: Annotated[bool, typer.Option("--stream", help="Show the text while it is written.")] = False
    scores: Annotated[bool, typer.Option("--scores", help="In front of each text its score, and a tab; with --json "
                      "also the log-probability of each of its words.")] = False
    as_json: options.JsonOption = False


@expand_options
def complete(
    model: options.ModelArgument,
    *,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="Where each text begins; without any, "
                       "or with -, all of standard input.", show_default=False)] = None,
    shown: CompletionOutput,
    device: options.DeviceOption = options.AUTO_DEVICE,
    following: options.BeamOptions,
    drawing: options.SamplingOptions,
    bounds: CompletionLengthOptions,
) -> None:
    """Go on with a text.

    The prompt comes out, and what the model writes after it; where -n asks for several texts of a prompt, an empty line
    stands between all of them. Each word is the most probable one, but where --beam, --sample or -n say otherwise.
    """
    from regard.tasks.completer import Completer

    try:
        search = _make_search(following, drawing, bounds, shown.nbest)
        if shown.stream and (shown.as_json or shown.scores or shown.nbest > 1 or following.beam not in (None, 1)):
            terminal.fail("--stream shows one text while it is written, and goes neither with --json, --scores and "
                        "--nbest, nor with --beam, which changes its mind until the end.")
        if shown.stream and following.length_penalty is not None:
            terminal.fail("--length-penalty compares texts that have ended, and has no meaning with --stream.")
    except ValueError as error:
        terminal.fail(str(error))
    task = options.open_task(model, device, "Completer")
    assert isinstance(task, Completer)
    if shown.stream:
        _stream_completions(task, _read_prompts(prompts), search)
    else:
        _write_completions(task, _read_prompts(prompts), search, shown)


def _make_search(following: options.BeamOptions, drawing: options.SamplingOptions, bounds: CompletionLengthOptions, nbest: int) -> "DecodingStrategy":
    if drawing.sample or (nbest > 1 and following.beam is None):
        options.refuse_options(following, options.SAMPLING_HINT if drawing.sample else "-n draws, but where --beam is given.")
        return options.make_sampling(drawing, bounds, nbest)
    options.refuse_options(drawing, "Give --sample, which draws.")
    return options.make_beam(following, bounds, nbest, DEFAULT_BEAM_SIZE)


def _write_completions(completer: "Completer", prompts: list[str], search: "DecodingStrategy", shown: CompletionOutput) -> None:
    """Each prompt with what follows it, when all is written."""
    several = shown.nbest > 1 and not shown.as_json

    def work(some: list[str]) -> "list[Completion]":
        return completer.searched(some, search)

    for number, (prompt, found) in enumerate(options.process_each([prompts], work, options.text_label)):
        if shown.as_json:
            terminal.write_json({"prompt": prompt, "text": None} if found is None else _completion_table(found, shown))
            continue
        for place, one in enumerate([None] if found is None else [found, *found.alternatives]):
            if several and number + place:
                terminal.write_text("")
            score = f"{one.score:.4f}\t" if one is not None and shown.scores else ""
            terminal.write_text("" if one is None else f"{score}{one.prompt}{one.text}")


def _completion_table(found: "Completion", shown: CompletionOutput) -> dict[str, Any]:
    every = []
    for one in (found, *found.alternatives):
        every.append({"text": one.text, "score": one.score, "cut": one.cut})
        if shown.scores:
            every[-1]["words"] = [word._asdict() for word in one.words]
    return {"prompt": found.prompt, **every[0], **({"alternatives": every[1:]} if shown.nbest > 1 else {})}


def _stream_completions(completer: "Completer", prompts: list[str], search: "DecodingStrategy") -> None:
    """Each prompt, and what follows it as it is written."""
    def started(some: list[str]) -> list[tuple[str, Iterator[str]]]:
        tokenizer = completer.text_tokenizer()
        return [(tokenizer.decode(tokenizer.encode(one)), completer.stream(one, search)) for one in some]

    for _, found in options.process_each([prompts], started, options.text_label):
        before, pieces = found or ("", iter(()))
        for piece in chain([before], pieces):
            terminal.write_part(piece)
            sys.stdout.flush()
        terminal.write_text("")


def _read_prompts(prompts: Sequence[str] | None) -> list[str]:
    """The prompts; all of standard input is one, without the end of its last line."""
    if prompts and list(prompts) != ["-"]:
        return list(prompts)
    return ["\n".join(line for block in options.text_blocks(None) for line in block)]
