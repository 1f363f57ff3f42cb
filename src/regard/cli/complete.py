"""`regard complete`: continue prompts, or all of standard input as one prompt, with a language model.

    regard complete model "The cat" -n 10                 ten random texts
    regard complete model "The cat" --stream              one, printed as it is generated
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    AUTO_DEVICE,
    CONSTRAINTS_PANEL,
    SAMPLING_HINT,
    BeamOptions,
    DeviceOption,
    JsonOption,
    LengthOptions,
    ModelArgument,
    SamplingOptions,
    expand_options,
    make_beam,
    make_sampling,
    open_task,
    process_each,
    refuse_options,
    text_blocks,
    text_label,
)
from regard.cli.terminal import fail, write_json, write_part, write_text

if TYPE_CHECKING:
    from regard.tasks.completer import Completer, Completion
    from regard.tasks.search import DecodingStrategy

DEFAULT_BEAM_SIZE, DEFAULT_MAX_LENGTH = 1, 200


@dataclass(frozen=True)
class CompletionLengthOptions(LengthOptions):
    """Length options with a default maximum: there is no source that would determine it."""

    max_length: Annotated[int, typer.Option("--max-length", metavar="N", min=0, rich_help_panel=CONSTRAINTS_PANEL,
                                            help="Maximum number of tokens.")] = DEFAULT_MAX_LENGTH


@dataclass(frozen=True)
class CompletionOutput:
    """What is printed."""

    nbest: Annotated[int, typer.Option("-n", "--nbest", metavar="N", min=1, help="Number of texts for each prompt: "
                     "samples, as with --sample; with --beam, the N best.")] = 1
    stream: Annotated[bool, typer.Option("--stream", help="Print the text while it is generated.")] = False
    scores: Annotated[bool, typer.Option("--scores", help="Print the score and a tab before each text; with --json "
                      "also the log-probability of each of its words.")] = False
    as_json: JsonOption = False


@expand_options
def complete(
    model: ModelArgument,
    *,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="Texts to continue; without any, or "
                       "with -, all of standard input as one.", show_default=False)] = None,
    output: CompletionOutput,
    device: DeviceOption = AUTO_DEVICE,
    beam_options: BeamOptions,
    sampling: SamplingOptions,
    lengths: CompletionLengthOptions,
) -> None:
    """Continue a text.

    Prints each prompt with its continuation; if -n asks for several, an empty line separates all texts. The default is
    greedy search; --beam, --sample and -n change that.
    """
    from regard.tasks.completer import Completer

    try:
        strategy = _make_strategy(beam_options, sampling, lengths, output.nbest)
        if output.stream and (output.as_json or output.scores or output.nbest > 1
                              or beam_options.beam not in (None, 1)):
            fail("--stream prints one text while it is generated. It cannot be combined with --json, --scores or "
                 "--nbest, nor with --beam, which revises the text until the end.")
        if output.stream and beam_options.length_penalty is not None:
            fail("--length-penalty compares finished texts, and has no effect with --stream.")
    except ValueError as error:
        fail(str(error))
    task = open_task(model, device, "Completer")
    assert isinstance(task, Completer)
    if output.stream:
        _stream_completions(task, _read_prompts(prompts), strategy)
    else:
        _write_completions(task, _read_prompts(prompts), strategy, output)


def _make_strategy(beam_options: BeamOptions, sampling: SamplingOptions, lengths: LengthOptions,
                   nbest: int) -> "DecodingStrategy":
    if sampling.sample or (nbest > 1 and beam_options.beam is None):
        refuse_options(beam_options, SAMPLING_HINT if sampling.sample else "-n samples, unless --beam is given.")
        return make_sampling(sampling, lengths, nbest)
    refuse_options(sampling, "Add --sample.")
    return make_beam(beam_options, lengths, nbest, DEFAULT_BEAM_SIZE)


def _write_completions(completer: "Completer", prompts: list[str], strategy: "DecodingStrategy",
                       output: CompletionOutput) -> None:
    """Print each prompt with its finished continuations."""
    several = output.nbest > 1 and not output.as_json

    def work(some: list[str]) -> "list[Completion]":
        return completer.search(some, strategy)

    for number, (prompt, found) in enumerate(process_each([prompts], work, text_label)):
        if output.as_json:
            write_json({"prompt": prompt, "text": None} if found is None else _completion_table(found, output))
            continue
        for place, one in enumerate([None] if found is None else [found, *found.alternatives]):
            if several and number + place:
                write_text("")
            score = f"{one.score:.4f}\t" if one is not None and output.scores else ""
            write_text("" if one is None else f"{score}{one.prompt}{one.text}")


def _completion_table(found: "Completion", output: CompletionOutput) -> dict[str, Any]:
    tables = []
    for one in (found, *found.alternatives):
        tables.append({"text": one.text, "score": one.score, "cut": one.cut})
        if output.scores:
            tables[-1]["words"] = [word._asdict() for word in one.words]
    return {"prompt": found.prompt, **tables[0], **({"alternatives": tables[1:]} if output.nbest > 1 else {})}


def _stream_completions(completer: "Completer", prompts: list[str], strategy: "DecodingStrategy") -> None:
    """Print each prompt, and its continuation while it is generated."""
    def start(some: list[str]) -> list[tuple[str, Iterator[str]]]:
        tokenizer = completer.text_tokenizer()
        return [(tokenizer.decode(tokenizer.encode(one)), completer.stream(one, strategy)) for one in some]

    for _, found in process_each([prompts], start, text_label):
        before, pieces = found or ("", iter(()))
        for piece in chain([before], pieces):
            write_part(piece)
            sys.stdout.flush()
        write_text("")


def _read_prompts(prompts: Sequence[str] | None) -> list[str]:
    """The prompts; all of standard input is one, without its last line break."""
    if prompts and list(prompts) != ["-"]:
        return list(prompts)
    return ["\n".join(line for block in text_blocks(None) for line in block)]
