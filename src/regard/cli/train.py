"""`regard train`: train a model from data in one command.

It reads the arguments, calls `regard.training.train`, and shows its events. torch is imported inside the function, so
that the help answers at once.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    AUTO_DEVICE,
    DATA_PANEL,
    MODEL_PANEL,
    OUTPUT_PANEL,
    SYNTHETIC_PANEL,
    TRAINING_PANEL,
    ColumnsOption,
    DeviceOption,
    FormatOption,
    FrameStepOption,
    SourceOption,
    TargetOption,
    expand_options,
    with_examples,
)
from regard.cli.output import fail, show_count
from regard.terminal import Terminal

if TYPE_CHECKING:
    from regard.training.logging import TrainingEvent
    from regard.training.tasks.interface import SynthesisRequest

TASK_NAMES = ("seq2seq", "language", "masked", "classify", "label", "tracks")
LONG_SECONDS = 24 * 3600
"""On a terminal a user is asked before a longer training."""
BY_DATA, BY_RECIPE = "depends on the data", "from the recipe"
Several = list[str] | None


@dataclass(frozen=True)
class DataOptions:
    """What to train, and on which data."""

    task: Annotated[str, typer.Option(metavar="NAME", rich_help_panel=DATA_PANEL,
                    help=f"What to train: {', '.join(TASK_NAMES)}.")] = "seq2seq"
    validation: Annotated[Several, typer.Option(metavar="FILE", rich_help_panel=DATA_PANEL,
                          show_default="a part of DATA is held out",
                          help="Validation data; repeat for each file.")] = None
    languages: Annotated[str | None, typer.Option(metavar="PAIR", rich_help_panel=DATA_PANEL,
                         show_default="from file names, a header line, TMX or PO",
                         help="Source and target language, such as en-fr or pt-BR-en.")] = None
    source: SourceOption = None
    target: TargetOption = None
    format: FormatOption = None


@dataclass(frozen=True)
class DirectionOptions:
    """The directions of a model for several languages."""

    direction: Annotated[Several, typer.Option(
        "--direction", metavar="PAIR:FILE,...", rich_help_panel=DATA_PANEL, show_default=False,
        help="Data of one direction of a model for several languages, instead of DATA: en-fr:train.en,train.fr or "
        "en-fr:pairs.tsv. Repeat for each direction; --validation then has the same form.")] = None
    both_ways: Annotated[bool, typer.Option(
        "--both-ways", rich_help_panel=DATA_PANEL,
        help="Train every direction also the other way round, with the same data.")] = False
    zero_shot: Annotated[bool, typer.Option(
        "--zero-shot", rich_help_panel=DATA_PANEL,
        help="Also train on denoising, restoring noisy sentences of each language, for directions without pairs.")
    ] = False

    def request_fields(self, data: Sequence[str], examples: DataOptions) -> dict[str, Any]:
        """The arguments of a `TrainingRequest` for the data: files, or directions."""
        from regard.data.directions import DirectionData
        from regard.data.languages import parse_pair
        from regard.training.tasks.directions import parse_directions

        validation = tuple(examples.validation or ())
        if self.direction:
            return {"data": tuple(data), "directions": parse_directions(self.direction, validation),
                    "both_ways": self.both_ways}
        if self.both_ways and data and examples.languages is not None:
            pair = parse_pair(examples.languages)
            return {"data": (), "directions": (DirectionData(pair, tuple(data), validation),), "both_ways": True}
        return {"data": tuple(data), "validation": validation, "both_ways": self.both_ways}


@dataclass(frozen=True)
class ModelOptions:
    """Short options for the model; None if not given."""

    vocab_size: Annotated[int | None, typer.Option(
        "--vocab-size", metavar="N", rich_help_panel=MODEL_PANEL, show_default=BY_DATA,
        help="Size of the vocabulary.")] = None
    layers: Annotated[int | None, typer.Option(
        "--layers", metavar="N", rich_help_panel=MODEL_PANEL, show_default=BY_RECIPE,
        help="Number of layers, in the encoder and in the decoder.")] = None
    width: Annotated[int | None, typer.Option(
        "--width", metavar="N", rich_help_panel=MODEL_PANEL, show_default=BY_RECIPE,
        help="Width of the model (d_model). Heads keep their width and feed-forward layers their ratio to it.")] = None
    dropout: Annotated[float | None, typer.Option(
        "--dropout", metavar="P", rich_help_panel=MODEL_PANEL, show_default=BY_DATA,
        help="Dropout of embeddings and sublayers, and the highest dropout inside attention and feed-forward "
        "layers.")] = None


@dataclass(frozen=True)
class TrackOptions:
    """Short options for tracks; None if not given."""

    observed: Annotated[int | None, typer.Option(
        "--observed", metavar="N", rich_help_panel=MODEL_PANEL, show_default="8",
        help="Time steps of tracks that the model observes.")] = None
    predicted: Annotated[int | None, typer.Option(
        "--predicted", metavar="N", rich_help_panel=MODEL_PANEL, show_default="12",
        help="Time steps of tracks that it predicts.")] = None
    futures: Annotated[int | None, typer.Option(
        "--futures", metavar="N", rich_help_panel=MODEL_PANEL, show_default="20",
        help="Futures that it predicts for each agent.")] = None
    columns: ColumnsOption = None
    frame_step: FrameStepOption = None


@dataclass(frozen=True)
class ScheduleOptions:
    """Short options for the training; None if not given."""

    epochs: Annotated[float | None, typer.Option(
        "--epochs", metavar="N", rich_help_panel=TRAINING_PANEL, show_default=BY_DATA,
        help="Passes over the training data.")] = None
    steps: Annotated[int | None, typer.Option(
        "--steps", metavar="N", rich_help_panel=TRAINING_PANEL, show_default=False,
        help="Optimizer steps, instead of --epochs.")] = None
    batch_tokens: Annotated[int | None, typer.Option(
        "--batch-tokens", metavar="N", rich_help_panel=TRAINING_PANEL, show_default=BY_DATA,
        help="Tokens per batch: source and target together, padding included.")] = None
    lr: Annotated[float | None, typer.Option(
        "--lr", metavar="X", rich_help_panel=TRAINING_PANEL, show_default="depends on the model",
        help="Learning rate after the warm-up.")] = None
    time: Annotated[str | None, typer.Option(
        "--time", metavar="DURATION", rich_help_panel=TRAINING_PANEL, show_default="no limit",
        help="Time limit for training and validation: 90s, 30m, 2h or 1h30m. Steps and schedule are shortened to "
        "fit.")] = None
    seed: Annotated[int | None, typer.Option(
        "--seed", metavar="N", rich_help_panel=TRAINING_PANEL, show_default="1",
        help="Random seed.")] = None


@dataclass(frozen=True)
class StartOptions:
    """A model that exists already and is fine-tuned."""

    from_: Annotated[str | None, typer.Option(
        "--from", metavar="MODEL", rich_help_panel=MODEL_PANEL, show_default="new weights",
        help="Fine-tune this model, a folder of regard or Hugging Face. Its architecture and tokenizer are "
        "kept.")] = None
    mix: Annotated[Several, typer.Option(
        "--mix", metavar="FILE", rich_help_panel=DATA_PANEL, show_default=False,
        help="With --from: general sentence pairs to keep in the batches, so that the model does not forget; repeat "
        "for each file.")] = None
    mix_share: Annotated[float | None, typer.Option(
        "--mix-share", metavar="X", rich_help_panel=DATA_PANEL, show_default="0.75",
        help="Share of the general data among the pairs of an epoch.")] = None
    general_validation: Annotated[Several, typer.Option(
        "--general-validation", metavar="FILE", rich_help_panel=DATA_PANEL, show_default="a part of --mix is held out",
        help="With --from: general validation data, whose scores are reported beside those of the new data; repeat for "
        "each file.")] = None
    blend: Annotated[bool, typer.Option(
        "--blend", rich_help_panel=TRAINING_PANEL, help="With --from: at the end, interpolate the weights with those "
        "of the start model, by the share that is best on the validation data.")] = False
    blend_share: Annotated[float | None, typer.Option(
        "--blend-share", metavar="X", rich_help_panel=TRAINING_PANEL, show_default="chosen",
        help="Share of the new weights for --blend, from 0 (the start model) to 1.")] = None

    def options(self) -> dict[str, Any]:
        """The short options among them; None if not given."""
        return {"mix_share": self.mix_share, "blend": True if self.blend or self.blend_share is not None else None,
                "blend_share": self.blend_share}


@dataclass(frozen=True)
class SynthesisOptions:
    """Synthetic pairs that another model writes before the training; None if not given."""

    monolingual: Annotated[Several, typer.Option(
        "--monolingual", metavar="FILE", rich_help_panel=SYNTHETIC_PANEL, show_default=False,
        help="Back-translation: text in the target language, one sentence a line; repeat for each file. A reverse "
        "model writes the sources.")] = None
    reverse: Annotated[str | None, typer.Option(
        "--reverse", metavar="MODEL", rich_help_panel=SYNTHETIC_PANEL, show_default="trained on DATA first",
        help="Reverse model for --monolingual, from target to source.")] = None
    teacher: Annotated[str | None, typer.Option(
        "--teacher", metavar="MODEL", rich_help_panel=SYNTHETIC_PANEL, show_default=False,
        help="Distillation: this model translates the sources of DATA, which may be a plain file, and the new model "
        "learns from it.")] = None
    sampled_sources: Annotated[int | None, typer.Option(
        "--sampled-sources", metavar="N", rich_help_panel=SYNTHETIC_PANEL,
        show_default="on a GPU enough for 900,000 sources in all, on a CPU 0",
        help="With --teacher: new sentences that resemble the sources, which the teacher translates too. They are "
        "sampled from an n-gram model, and on a GPU half of them from a language model.")] = None
    share: Annotated[float | None, typer.Option(
        "--synthetic-share", metavar="X", rich_help_panel=SYNTHETIC_PANEL,
        show_default="its share of all pairs, at most 0.75",
        help="Fraction of an epoch that is back-translated.")] = None
    temperature: Annotated[float | None, typer.Option(
        "--temperature", metavar="X", rich_help_panel=SYNTHETIC_PANEL, show_default=BY_DATA,
        help="Temperature at which synthetic sources are sampled.")] = None
    top_k: Annotated[int | None, typer.Option(
        "--top-k", metavar="N", rich_help_panel=SYNTHETIC_PANEL, show_default="10",
        help="Tokens that synthetic sources are sampled from at each step.")] = None
    keep: Annotated[str | None, typer.Option(
        "--keep-synthetic", metavar="FILE", rich_help_panel=SYNTHETIC_PANEL, show_default=False,
        help="Write the synthetic pairs to this new file too, as TSV.")] = None

    def request(self) -> "SynthesisRequest | None":
        """The options as a training takes them; None if none is given."""
        from regard.training.tasks.interface import SynthesisRequest

        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if all(value is None for value in given.values()):
            return None
        return SynthesisRequest(**{**given, "monolingual": tuple(self.monolingual or ())})


@dataclass(frozen=True)
class OutputOptions:
    """What is shown and written besides the model."""

    explain: Annotated[bool, typer.Option("--explain", rich_help_panel=OUTPUT_PANEL, help="Before the first step, "
                       "print every setting with its reason, not only the most important ones.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=OUTPUT_PANEL,
                     help="Print warnings and errors only.")] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", rich_help_panel=OUTPUT_PANEL, help="Do not ask whether to start a "
                   "training of more than 24 hours.")] = False
    tensorboard: Annotated[bool, typer.Option("--tensorboard", rich_help_panel=OUTPUT_PANEL, help="Also write curves "
                           "for TensorBoard, in FOLDER/track.")] = False

    def loggers(self, folder: Path) -> list[Any]:
        """The loggers of a training in this folder."""
        from regard.training.folder_claim import TENSORBOARD_FOLDER
        from regard.training.logging import TensorBoardLogger
        from regard.training.progress import ExplainingLogger, progress_logger

        shown = progress_logger(sys.stderr, quiet=self.quiet)
        found: list[Any] = [ExplainingLogger(shown) if self.explain else shown]
        if not self.yes and sys.stdin.isatty() and sys.stderr.isatty():
            found.append(LongTrainingQuestion())
        if self.tensorboard:
            found.append(TensorBoardLogger(folder / TENSORBOARD_FOLDER))
        return found


@with_examples("""
    regard train pairs.tsv -o model                      # all settings by default
    regard train book.txt -o model --task language       # from plain text
    regard train tracks.csv -o model --task tracks       # where agents will be
    regard train mine.tsv --from model -o new            # fine-tune a model
    regard train pairs.tsv -o model --resume             # continue after Ctrl-C
""")
@expand_options
def train(
    data: Annotated[Several, typer.Argument(
        metavar="DATA", show_default=False,
        help="Sentence pairs (TSV, JSONL, PO, TMX; or two plain files: sources, then targets). For language and masked "
        "models plain text. To classify, a folder with a folder of images for each class, two IDX files, or texts with "
        "labels (TSV, JSONL). To label tokens, sequences with a label for every token (TSV, CoNLL, JSONL). For tracks, "
        "CSV or TSV with frame, agent, x and y; each file is a scene. With --teacher also a plain file of sources.")
    ] = None,
    *,
    examples: DataOptions,
    several: DirectionOptions,
    start: StartOptions,
    recipe: Annotated[str | None, typer.Option(metavar="NAME", rich_help_panel=MODEL_PANEL,
                      show_default=BY_DATA, help="Recipe, such as transformer-small or seq2seq-attention, or a TOML "
                      "file with settings.")] = None,
    model: ModelOptions,
    tracks: TrackOptions,
    schedule: ScheduleOptions,
    synthetic: SynthesisOptions,
    changes: Annotated[Several, typer.Option("--set", metavar="KEY=VALUE", rich_help_panel=TRAINING_PANEL,
                       help="Set a key of the config, such as training.label_smoothing=0.2; repeat for each key. "
                       "`regard config` lists all keys.")] = None,
    resume: Annotated[bool, typer.Option("--resume", rich_help_panel=TRAINING_PANEL,
                      help="Resume the training in FOLDER.")] = False,
    device: DeviceOption = AUTO_DEVICE,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FOLDER", rich_help_panel=OUTPUT_PANEL,
                      help="Folder of the model.")],
    shown: OutputOptions,
) -> None:
    """Train a model on your data.

    Settings that are not given depend on the data and the device. The most important ones are printed with their
    reasons before the first step, and all of them are stored in FOLDER/config.toml. FOLDER has the model with the best
    validation score. Ctrl-C saves a checkpoint and ends; --resume continues exactly from there. A call that fails
    before the first step leaves nothing behind.

    Exit codes: 0 done, 1 the training failed, 2 the call or the data was wrong, 130 interrupted.
    """
    from regard.training import train as training
    from regard.training.loop import TrainingError
    from regard.training.progress import draw_result, draw_stopped
    from regard.training.tasks.interface import TrainingRequest

    options = {field.name: getattr(group, field.name) for group in (model, tracks, schedule) for field in fields(group)}
    options |= {**start.options(), "zero_shot": several.zero_shot or None}
    try:
        fields_of_data = several.request_fields(data or (), examples)
        languages = None if several.both_ways and fields_of_data.get("directions") and not several.direction else \
            examples.languages
        request = TrainingRequest(
            task=examples.task, output=Path(output), **fields_of_data,
            recipe=recipe, changes=parse_changes(changes or (), languages), options=options, resume=resume,
            source=examples.source, target=examples.target, format=examples.format, device=device,
            start=start.from_, mix=tuple(start.mix or ()), general_validation=tuple(start.general_validation or ()),
            progress=partial(show_count, noun="read", out=sys.stderr), synthesis=synthetic.request())
        outcome = training.train(request, shown.loggers(Path(output)))
    except TrainingError as error:
        fail(str(error), 1)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        if error.filename is not None or isinstance(error, BrokenPipeError):
            raise  # reported by `regard.cli.failures`, or a closed pipe
        fail(f"{output}: {error.strerror}", 1)
    except KeyboardInterrupt:  # Ctrl-C twice, or before the first step
        draw_stopped(Path(output), Terminal.of(sys.stderr), resume_command(sys.argv[1:]))
        raise typer.Exit(130) from None
    if outcome.main and not shown.quiet:
        draw_result(outcome, Terminal.of(sys.stderr), resume_command(sys.argv[1:]))
    if outcome.main:
        typer.echo(outcome.folder)
    if not outcome.finished:
        raise typer.Exit(130)


def parse_changes(changes: Sequence[str], languages: str | None) -> dict[str, Any]:
    """The config keys of --set and --languages, with their values."""
    from regard import toml
    from regard.data.languages import parse_pair

    keys = dict(toml.parse_override(text) for text in changes)
    for side, code in () if languages is None else parse_pair(languages)._asdict().items():
        key = f"data.{side}_lang"
        if key in keys:
            raise ValueError(f"--languages {languages} and --set {key}={keys[key]} set the same key. Leave out one of "
                             "them.")
        keys[key] = code
    return keys


def resume_command(arguments: Sequence[str]) -> list[str]:
    """The command that resumes a training which was started with these arguments."""
    return ["regard", *arguments, *([] if "--resume" in arguments else ["--resume"])]


class LongTrainingQuestion:
    """A logger that asks whether to start a training that would take long; with no it is interrupted."""

    name = "question"

    def __call__(self, event: "TrainingEvent", /) -> None:
        from regard.training.logging import TimeEstimated

        if isinstance(event, TimeEstimated) and event.seconds > LONG_SECONDS and not typer.confirm(
                f"The training would take about {event.seconds / 3600:,.0f} hours. Start it?", err=True):
            raise KeyboardInterrupt

    def close(self) -> None:
        """Nothing to close."""
