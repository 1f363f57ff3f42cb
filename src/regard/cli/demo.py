"""`regard demo`: a Transformer that learns to translate in about a minute, on two cores and without a network.

It does what a user would: writes pairs to a file, trains on it, loads the model from its folder, translates sentences
that were held out, scores them, and draws where the model looked. The pairs are from the phrasebook; the test has
combinations of words that the training does not have, and the links between words that the phrasebook knows are not
used. Results go to stdout, the bar to stderr. How to train, to translate and to draw is the library's business.
"""

import contextlib
import itertools
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TextIO

import typer

from regard.cli import terminal as models
from regard.cli.terminal import Terminal, escape_unprintable

if TYPE_CHECKING:
    from regard.cli.progress import ProgressBar, ProgressLines
    from regard.data.phrasebook import AlignedPair
    from regard.tasks.alignment import Alignment
    from regard.tasks.translator import Translator
    from regard.training.logging import TrainingEvent


THREADS = 4
"""More only wait for each other in a model this small."""
SHOWN_TRANSLATIONS = 4
"""Translations that are shown."""
ALIGNMENT_CANDIDATES = 30
"""Translations among which one is looked for whose words change places."""
SIDES = ("encoder", "decoder")
DEMO_CHANGES: Mapping[str, Any] = {
    "tokenizer.kind": "unigram",
    "tokenizer.vocab_size": 4000,  # more than there are words: each is one token, and sentences are short
    "tokenizer.input_sentence_size": 20_000,
    "data.joint_tokenizer": False,  # fewer tokens to choose from
    "model.width": 64,  # of 64, 96 and 128 the one that learns most in the time
    **{f"model.{side}.feed_forward.ffn_width": 192 for side in SIDES},
    **{f"model.{side}.norm_position": "pre" for side in SIDES},  # bears a high rate, almost from the first step on
    **{f"model.{side}.mixer.position.kind": "rotary" for side in SIDES},
    # Nearly all pairs are new: there is nothing to learn by heart, and nothing to keep the model from it.
    **{f"model.{side}.{part}.dropout": 0.0 for side in SIDES for part in ("mixer", "feed_forward")},
    **{f"model.{part}.dropout": 0.0 for part in (*SIDES, "embedding", "decoder.cross")},
    "training.label_smoothing": 0.0,
    "training.rdrop": 0.0,
    "training.ema_decay": 0.0,
    "training.batches.max_tokens": 1000,
    "training.schedule.shape": "linear",
    "training.schedule.learning_rate": 6e-3,
    "training.schedule.warmup_steps": 100,
    "training.schedule.constant_fraction": 0.4,
    "training.schedule.max_steps": 1400,
    "training.validation.every": 700,
    "training.validation.metric": "bleu",
    "training.validation.samples_shown": 1,
    "training.checkpoints.every": 10_000,  # at validations alone
    "training.checkpoints.keep": 1,
}
"""A short training: a high rate that falls to nothing, small batches, and no time for being careful."""


@dataclass(frozen=True)
class DemoSetting:
    """What is learned from, how, and what must come of it."""

    pairs: int = 50_000
    longest: int = 8
    """Words of a source, with its punctuation, in training and test alike."""
    judged: int = 200
    """Pairs to judge by while training."""
    tested: int = 500
    wanted: float = 90.0
    """The BLEU of the test must be above this."""
    recipe: str = "transformer-tiny"
    changes: Mapping[str, Any] = field(default_factory=lambda: DEMO_CHANGES)


class DemoResult(NamedTuple):
    """What the model made of the test."""

    pairs: "Sequence[AlignedPair]"
    made: Sequence[str]
    bleu: float
    signature: str

    @property
    def exact(self) -> int:
        """How many are the reference, letter by letter."""
        return sum(self.right(number) for number in range(len(self.pairs)))

    def right(self, number: int) -> bool:
        """Whether this one is its reference."""
        return self.made[number] == self.pairs[number].target


def demo(
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FOLDER", help="Keep the model there. Without "
                      "it the model is removed in the end.")] = None,
    tour: Annotated[bool, typer.Option("--tour", help="Show masks, weights and backends instead, and check them "
                    "against the float64 oracle. Nothing is trained.")] = False,
) -> None:
    """Watch a Transformer learn to translate, in about a minute.

    It learns from English and French sentences of a grammar that is part of regard, on two cores and without a network;
    then it translates sentences with combinations of words that it has not seen, and shows where it looks. Exit code 1
    means that their BLEU is not above 90, or that in the tour a result differed from the oracle.
    """
    if tour:
        from regard.cli import tour as touring

        raise typer.Exit(touring.tour(sys.stdout))
    raise typer.Exit(run_demo(sys.stdout, sys.stderr, output, DemoSetting()))


def run_demo(out: TextIO, said: TextIO, output: str | None, setting: DemoSetting) -> int:
    """Train, test and show; the exit code.

    Args:
        out: for what came of it.
        said: for how it goes.
        output: a folder that is kept; where there is none, the model is removed in the end.
    """
    from regard.storage.filesystem import FolderError
    from regard.training.loop import TrainingError

    try:
        if output is not None and os.path.lexists(output):
            raise FolderError(f"{output}: there is something already. Choose another folder, or remove it.")
        with tempfile.TemporaryDirectory(prefix="regard-demo-") as place, _few_threads():
            folder = Path(place) / "model" if output is None else Path(output)
            return _train_and_show(Terminal.of(out), said, Path(place), folder, output is not None, setting)
    except TrainingError as error:
        models.say(f"Error: {error}")
        return 1
    except FolderError as error:
        models.say(f"Error: {error}")
        return 2
    except OSError as error:
        if not error.filename:  # of stdout, which is the business of the whole command
            raise
        models.say(f"Error: {error.filename}: {error.strerror}")
        return 1


def _train_and_show(terminal: Terminal, said: TextIO, place: Path, folder: Path, kept: bool, setting: DemoSetting) -> int:
    import regard
    from regard.cli.progress import progress_logger
    from regard.data import phrasebook
    from regard.tasks.translator import Translator
    from regard.training import train as training
    from regard.training.tasks.interface import TrainingRequest

    began = time.monotonic()
    _introduce(terminal, setting)
    files = {split: place / f"{split}.tsv" for split in ("train", "validation")}
    for split, count in (("train", setting.pairs), ("validation", setting.judged)):
        _write_pairs(files[split], phrasebook.pairs(count, split=split, longest=setting.longest))
    request = TrainingRequest(task="seq2seq", data=(str(files["train"]),), validation=(str(files["validation"]),),
                      output=folder, recipe=setting.recipe, changes=setting.changes, device="cpu")
    outcome = training.train(request, [_QuietStartLogger(progress_logger(said))])
    if not outcome.finished:
        return 130
    translator = regard.load(folder)
    assert isinstance(translator, Translator)
    tested = score_translator(translator, [*phrasebook.pairs(setting.tested, split="test", longest=setting.longest)])
    show_translations(terminal, tested)
    show_alignment(terminal, find_alignment(translator, tested))
    show_score(terminal, tested, setting.wanted, time.monotonic() - began)
    show_next(terminal, folder if kept else None, tested.pairs[0].source)
    return 0 if tested.bleu > setting.wanted else 1


def score_translator(translator: "Translator", pairs: "Sequence[AlignedPair]") -> DemoResult:
    """Translate and score pairs, by greedy search."""
    from regard.tasks import evaluation

    found = translator.translate([pair.source for pair in pairs], beams=1, length_penalty="none")
    made = [one.text for one in found]
    score = evaluation.bleu(made, [pair.target for pair in pairs])
    return DemoResult(pairs, made, score.value, score.signature)


def show_translations(terminal: Terminal, tested: DemoResult) -> None:
    """The first translations, each below its source; the reference too where it is another."""
    terminal.heading("Sentences that it has not seen")
    for number in range(min(SHOWN_TRANSLATIONS, len(tested.pairs))):
        pair = tested.pairs[number]
        terminal.text(pair.source, "  ")
        terminal.text(escape_unprintable(tested.made[number]) or "(nothing)", "    ")
        if not tested.right(number):
            terminal.text(f"(expected: {pair.target})", "    ")
    _flush(terminal)


def find_alignment(translator: "Translator", tested: DemoResult) -> "Alignment":
    """Where the model looked for one of the first translations: a right one in which the order of words changes, if
    there is one, as far as the links tell that are read off the weights."""
    first: Alignment | None = None
    for number in [number for number in range(min(ALIGNMENT_CANDIDATES, len(tested.pairs))) if tested.right(number)]:
        alignment = translator.aligned(tested.pairs[number].source, tested.made[number])
        in_order = [link.target for link in alignment.links]  # of the source
        if any(later < earlier for earlier, later in itertools.pairwise(in_order)):
            return alignment
        first = first or alignment
    return first or translator.aligned(tested.pairs[0].source, tested.pairs[0].target)


def show_alignment(terminal: Terminal, alignment: "Alignment") -> None:
    """One alignment as a heat map."""
    from regard.inspection.heat_map import heat_map

    terminal.heading("Where it looks: a row for each word that it writes, a column for each word that it reads")
    weights, target, source = alignment.weights, alignment.target, alignment.source
    terminal.beside([heat_map(weights, target, source, width=terminal.width, shades=terminal.shades)])
    terminal.text("Nobody told it which words belong together.")
    _flush(terminal)


def show_score(terminal: Terminal, tested: DemoResult, wanted: float, seconds: float) -> None:
    """The score, and whether it is what it should be."""
    terminal.heading(f"BLEU {tested.bleu:.1f} on {len(tested.pairs):,} sentences that it has not seen")
    terminal.text(f"{tested.exact:,} of them are the reference, letter by letter. All of this took {seconds:.0f} s.")
    terminal.text(f"({tested.signature})")
    if not tested.bleu > wanted:
        terminal.text(f"That is too low: it should be above {wanted:g}.")
    _flush(terminal)


def show_next(terminal: Terminal, folder: Path | None, text: str) -> None:
    """What to try now: with the model, where it is kept, and without."""
    terminal.heading("What to try next")
    name = "my-model" if folder is None else shlex.quote(str(folder))
    steps = [] if folder is not None else [("The model is removed now; this keeps one", "regard demo -o my-model")]
    steps += [("Translate what you like, in words of the phrasebook", f"regard translate {name} {shlex.quote(text)}"),
              ("See more of its sentences", "regard data phrasebook -n 1000"),
              ("Train on pairs of your own", "regard train pairs.tsv -o another-model"),
              ("See masks, weights and backends", "regard demo --tour")]
    for what, command in steps:
        terminal.text(f"{what}:", "  ")
        terminal.text(command, "    ")
    _flush(terminal)


def _introduce(terminal: Terminal, setting: DemoSetting) -> None:
    terminal.heading("A Transformer learns to translate English to French, here and now")
    terminal.text(f"It learns from {setting.pairs:,} sentences of up to {setting.longest} words from a grammar that is "
                  f"part of regard. It is tested on {setting.tested:,} others of that length: each has an adjective "
                  f"with a noun, or a verb with an object, that never stand together in what it learns from.")
    _flush(terminal)


class _QuietStartLogger:
    """A logger that is told nothing of the preparations, and of the start not what was chosen: nearly all is set."""

    def __init__(self, logger: "ProgressBar | ProgressLines") -> None:
        self.logger, self.name, self.started = logger, logger.name, False

    def __call__(self, event: "TrainingEvent", /) -> None:
        from regard.training.logging import TrainingStarted

        if isinstance(event, TrainingStarted):
            self.started, event = True, replace(event, choices=())
        if self.started:
            self.logger(event)

    def close(self) -> None:
        """Close what is shown."""
        self.logger.close()


@contextlib.contextmanager
def _few_threads() -> Iterator[None]:
    """Inside, torch takes no more threads than help; outside as many as before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(before, THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write_pairs(path: Path, pairs: "Iterator[AlignedPair]") -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{pair.source}\t{pair.target}\n" for pair in pairs)


def _flush(terminal: Terminal) -> None:
    """What was printed is seen now, before the next part takes its time."""
    terminal.out.flush()
