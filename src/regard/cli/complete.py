"""`regard complete`: continue prompts, or all of standard input as one prompt, with a language model."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    AUTO_DEVICE,
    CONSTRAINTS_PANEL,
    MAX_BEAMS,
    OUTPUT_PANEL,
    SAMPLING_HINT,
    SEARCH_PANEL,
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
    with_examples,
)
from regard.cli.output import fail, say, write_json, write_part, write_text

if TYPE_CHECKING:
    from regard.tasks.completer import Completer, Completion
    from regard.tasks.search import DecodingStrategy

DEFAULT_BEAM_SIZE, DEFAULT_MAX_LENGTH = 1, 200


@dataclass(frozen=True)
class CompletionLengthOptions(LengthOptions):
    """Length options with a default maximum: there is no source that would determine it."""

    max_length: Annotated[int, typer.Option(
        "--max-length", metavar="N", min=0, rich_help_panel=CONSTRAINTS_PANEL,
        help="Maximum number of generated tokens; the prompt does not count.")] = DEFAULT_MAX_LENGTH


@dataclass(frozen=True)
class CompletionOutput:
    """What is printed."""

    nbest: Annotated[int, typer.Option(
        "-n", "--nbest", "--n-best", metavar="N", min=1, max=MAX_BEAMS, rich_help_panel=SEARCH_PANEL,
        help="Number of texts per prompt: N samples, or with --beam the N best. An empty line separates them.")] = 1
    stream: Annotated[bool, typer.Option(
        "--stream", rich_help_panel=OUTPUT_PANEL, help="Print the text while it is generated.")] = False
    scores: Annotated[bool, typer.Option(
        "--scores", rich_help_panel=OUTPUT_PANEL,
        help="Print the score and a tab before each text; with --json also the log-probability of each word.")] = False
    as_json: JsonOption = False


@with_examples("""
    regard complete model "The black cat"
    regard complete model "The black cat" --sample --top-p 0.9 --temperature 0.8
    regard complete model "The black cat" -n 5 --seed 1   # five samples
    regard complete model --stream < prompt.txt           # the file is one prompt
""")
@expand_options
def complete(
    model: ModelArgument,
    *,
    prompts: Annotated[list[str] | None, typer.Argument(
        metavar="PROMPT", show_default=False,
        help="Texts to continue. Without any, or with -, all of standard input is one prompt.")] = None,
    beam_options: BeamOptions,
    output: CompletionOutput,
    sampling: SamplingOptions,
    lengths: CompletionLengthOptions,
    device: DeviceOption = AUTO_DEVICE,
) -> None:
    """Continue a text with a language model.

    Prints each prompt with its continuation. The default is greedy search; --beam chooses beam search, --sample or -n
    sampling. A prompt that cannot be continued gives an empty line and an error on stderr, and the exit code is 1.
    """
    from regard.tasks.completer import Completer

    try:
        strategy = _make_strategy(beam_options, sampling, lengths, output.nbest)
        if output.stream and (output.as_json or output.scores or output.nbest > 1
                              or beam_options.beam not in (None, 1)):
            fail("--stream prints one text while it is generated, by greedy search or sampling. Leave out --json, "
                 "--scores, --nbest and --beam.")
        if output.stream and beam_options.length_penalty is not None:
            fail("--length-penalty has no effect with --stream: it compares finished texts. Leave it out.")
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
        refuse_options(beam_options, SAMPLING_HINT if sampling.sample else "-n samples. Add --beam for the N "
                       "best of a beam.")
        return make_sampling(sampling, lengths, nbest)
    refuse_options(sampling, "Add --sample.")
    return make_beam(beam_options, lengths, nbest, DEFAULT_BEAM_SIZE)


def _write_completions(completer: "Completer", prompts: list[str], strategy: "DecodingStrategy",
                       output: CompletionOutput) -> None:
    """Print each prompt with its finished continuations."""
    several = output.nbest > 1 and not output.as_json

    def work(some: list[str]) -> "list[Completion]":
        return completer.search(some, strategy)

    longest = 0
    for number, (prompt, found) in enumerate(process_each([prompts], work, text_label)):
        for each in () if found is None else (found, *found.alternatives):
            longest = max(longest, len(each.prompt_ids) + len(each.ids) if each.cut else 0)
        if output.as_json:
            write_json({"prompt": prompt, "text": None} if found is None else _completion_table(found, output))
            continue
        for place, one in enumerate([None] if found is None else [found, *found.alternatives]):
            if several and number + place:
                write_text("")
            score = f"{one.score:.4f}\t" if one is not None and output.scores else ""
            write_text("" if one is None else f"{score}{one.prompt}{one.text}")
    _say_limit(completer, longest)


def _say_limit(completer: "Completer", longest: int) -> None:
    """Say that the positions of the model ended a text, if prompt and completion together fill them."""
    limit = completer.max_context()
    if limit is not None and longest >= limit:
        say(f"The text stops after {limit:,} tokens, prompt included: the model has {limit:,} positions. Use a shorter "
            "prompt, or train with --recipe llama, which has no limit.")


def _completion_table(found: "Completion", output: CompletionOutput) -> dict[str, Any]:
    tables = []
    for one in (found, *found.alternatives):
        tables.append({"text": one.text, "score": one.score, "cut": one.cut})
        if output.scores:
            tables[-1]["words"] = [word._asdict() for word in one.words]
    return {"prompt": found.prompt, **tables[0], **({"alternatives": tables[1:]} if output.nbest > 1 else {})}


def _stream_completions(completer: "Completer", prompts: list[str], strategy: "DecodingStrategy") -> None:
    """Print each prompt, and its continuation while it is generated."""
    from regard.tasks.completer import stream_text

    tokenizer, longest = completer.text_tokenizer(), 0

    def start(some: list[str]) -> list[tuple[str, list[int], Iterator[int]]]:
        return [(tokenizer.decode(tokenizer.encode(one)), *completer.stream_ids(one, strategy)) for one in some]

    for _, found in process_each([prompts], start, text_label):
        before, row, ids = found or ("", [], iter(()))
        written = list[int]()
        for piece in chain([before], stream_text(tokenizer, row, _collect(ids, written))):
            write_part(piece)
            sys.stdout.flush()
        write_text("")
        longest = max(longest, len(row) + len(written))
    _say_limit(completer, longest)


def _collect(ids: Iterator[int], into: list[int]) -> Iterator[int]:
    """The same ids, each also appended to a list."""
    for id_ in ids:
        into.append(id_)
        yield id_


def _read_prompts(prompts: Sequence[str] | None) -> list[str]:
    """The prompts; all of standard input is one, without its last line break."""
    if prompts and list(prompts) != ["-"]:
        return list(prompts)
    return ["\n".join(line for block in text_blocks(None) for line in block)]
