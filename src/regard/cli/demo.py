"""`regard demo`: train a small Transformer that translates, in about a minute, on two cores and without a network.

It does what a user would: writes sentence pairs to a file, trains on it, loads the model from its folder, translates
test sentences, scores the translations, and draws the attention. The pairs are from the phrasebook. Test sentences have
word combinations that are not in the training data, and the gold alignment of the phrasebook is not used. Results go to
stdout, the progress bar to stderr.
"""

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TextIO

import typer

from regard import checks
from regard.cli.options import OUTPUT_PANEL, with_examples
from regard.cli.output import say
from regard.terminal import Terminal, escape_unprintable

if TYPE_CHECKING:
    from regard.data.phrasebook import AlignedPair
    from regard.tasks.alignment import Alignment
    from regard.tasks.translator import Translator
    from regard.training.logging import Logger, TrainingEvent


THREADS = 4
"""More threads are not faster for a model this small."""
SHOWN_TRANSLATIONS = 4
"""Translations that are printed."""
ALIGNMENT_CANDIDATES = 30
"""Translations that are searched for one whose word order changes."""
SIDES = ("encoder", "decoder")
DEMO_CHANGES: Mapping[str, Any] = {
    "data.source_lang": "en",
    "data.target_lang": "fr",
    "tokenizer.kind": "unigram",
    "tokenizer.vocab_size": 4000,  # more than there are words: each word is one token, and sentences are short
    "tokenizer.input_sentence_size": 20_000,
    "data.joint_tokenizer": False,  # smaller vocabularies
    "model.width": 64,  # the best of 64, 96 and 128 in this time
    **{f"model.{side}.feed_forward.ffn_width": 192 for side in SIDES},
    **{f"model.{side}.norm_position": "pre" for side in SIDES},  # stable at a high learning rate with little warm-up
    **{f"model.{side}.mixer.position.kind": "rotary" for side in SIDES},
    # Nearly every pair is seen once: the model cannot overfit, and needs no regularization.
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
    "training.checkpoints.every": 10_000,  # only at validations
    "training.checkpoints.keep": 1,
}
"""A short training: small batches, and a high learning rate that decays to 0."""


@dataclass(frozen=True)
class DemoSetting:
    """The data, the model and the expected score of the demo."""

    pairs: int = 50_000
    max_words: int = 8
    """Maximum words of a source with its punctuation, in training and test."""
    validation_pairs: int = 200
    test_pairs: int = 500
    min_bleu: float = 90.0
    """The BLEU of the test must be above this."""
    recipe: str = "transformer-tiny"
    changes: Mapping[str, Any] = field(default_factory=lambda: DEMO_CHANGES)


class DemoResult(NamedTuple):
    """The translations of the test pairs and their score."""

    pairs: "Sequence[AlignedPair]"
    translations: Sequence[str]
    bleu: float
    signature: str

    @property
    def exact(self) -> int:
        """How many equal their reference exactly."""
        return sum(self.is_exact(number) for number in range(len(self.pairs)))

    def is_exact(self, number: int) -> bool:
        """Whether this translation equals its reference."""
        return self.translations[number] == self.pairs[number].target


@with_examples("""
    regard demo                   # about a minute; the model is not kept
    regard demo -o my-model       # keep the model
    regard demo --tour            # masks, attention weights and backends
""")
def demo(
    output: Annotated[str | None, typer.Option(
        "-o", "--output", metavar="FOLDER", rich_help_panel=OUTPUT_PANEL, show_default="the model is not kept",
        help="Keep the model in this new folder.")] = None,
    tour: Annotated[bool, typer.Option(
        "--tour", rich_help_panel=OUTPUT_PANEL,
        help="Train nothing; show masks, attention weights and backends instead, and compare them with the float64 "
        "reference.")] = False,
) -> None:
    """Train a small translator in a minute and see what it attends to.

    A Transformer learns from English-French sentences of a small grammar that is part of regard, on two CPU cores and
    without a network. It then translates sentences with word combinations that it has not seen, and shows its
    attention. Exit code 1: the BLEU of these translations is not above 90, or a result of the tour differs from the
    reference.
    """
    if tour:
        from regard.cli import tour as touring

        raise typer.Exit(touring.tour(sys.stdout))
    raise typer.Exit(run_demo(sys.stdout, sys.stderr, output, DemoSetting()))


def run_demo(out: TextIO, messages: TextIO, output: str | None, setting: DemoSetting) -> int:
    """Train, test and print; returns the exit code.

    Args:
        out: the stream of the results.
        messages: the stream of the progress.
        output: a folder that is kept; without one, the model is removed at the end.
    """
    import torch

    from regard.storage.filesystem import FolderError
    from regard.training.loop import TrainingError
    from regard.training.threads import torch_threads

    threads = min(torch.get_num_threads(), THREADS)
    try:
        if output is not None and os.path.lexists(output):
            raise FolderError(f"{output}: It exists already. Choose another folder, or remove it.")
        with tempfile.TemporaryDirectory(prefix="regard-demo-") as place, torch_threads(threads):
            folder = Path(place) / "model" if output is None else Path(output)
            return _train_and_show(Terminal.of(out), messages, Path(place), folder, output is not None, setting)
    except TrainingError as error:
        say(f"Error: {error}")
        return 1
    except FolderError as error:
        say(f"Error: {error}")
        return 2


def _train_and_show(terminal: Terminal, messages: TextIO, place: Path, folder: Path, kept: bool,
                    setting: DemoSetting) -> int:
    import regard
    from regard.data import phrasebook
    from regard.tasks.translator import Translator
    from regard.training import train as training
    from regard.training.progress import progress_logger
    from regard.training.tasks.interface import TrainingRequest

    began = time.monotonic()
    _introduce(terminal, setting)
    files = {split: place / f"{split}.tsv" for split in ("train", "validation")}
    for split, count in (("train", setting.pairs), ("validation", setting.validation_pairs)):
        _write_pairs(files[split], phrasebook.pairs(count, split=split, max_words=setting.max_words))
    request = TrainingRequest(task="seq2seq", data=(str(files["train"]),), validation=(str(files["validation"]),),
                              output=folder, recipe=setting.recipe, changes=setting.changes, device="cpu")
    outcome = training.train(request, [_QuietStartLogger(progress_logger(messages))])
    if not outcome.finished:
        say("Run `regard demo` again to start anew." if not kept else
            f"Run `regard demo` again to start anew, after removing {folder}.")
        return 130
    translator = regard.load(folder)
    assert isinstance(translator, Translator)
    test = [*phrasebook.pairs(setting.test_pairs, split="test", max_words=setting.max_words)]
    tested = score_translator(translator, test)
    show_translations(terminal, tested)
    show_alignment(terminal, find_alignment(translator, tested))
    show_score(terminal, tested, setting.min_bleu, time.monotonic() - began)
    show_next(terminal, folder if kept else None, tested.pairs[0].source)
    return 0 if tested.bleu > setting.min_bleu else 1


def score_translator(translator: "Translator", pairs: "Sequence[AlignedPair]") -> DemoResult:
    """Translate and score pairs with greedy search."""
    from regard.tasks.evaluation import bleu

    found = translator.translate([pair.source for pair in pairs], beams=1, length_penalty="none")
    translations = [one.text for one in found]
    score = bleu(translations, [pair.target for pair in pairs])
    return DemoResult(pairs, translations, score.value, score.signature)


def show_translations(terminal: Terminal, tested: DemoResult) -> None:
    """Print the first translations below their sources, and references that differ."""
    terminal.heading("Translations of test sentences")
    for number in range(min(SHOWN_TRANSLATIONS, len(tested.pairs))):
        pair = tested.pairs[number]
        terminal.text(pair.source, "  ")
        terminal.text(escape_unprintable(tested.translations[number]) or "(empty)", "    ")
        if not tested.is_exact(number):
            terminal.text(f"(reference: {pair.target})", "    ")
    _flush(terminal)


def find_alignment(translator: "Translator", tested: DemoResult) -> "Alignment":
    """The alignment of one of the first translations: if possible an exact one whose word order changes."""
    first: Alignment | None = None
    for number in filter(tested.is_exact, range(min(ALIGNMENT_CANDIDATES, len(tested.pairs)))):
        alignment = translator.aligned(tested.pairs[number].source, tested.translations[number])
        targets = [link.target for link in alignment.links]  # in the order of the source
        if any(later < earlier for earlier, later in itertools.pairwise(targets)):
            return alignment
        first = first or alignment
    return first or translator.aligned(tested.pairs[0].source, tested.pairs[0].target)


def show_alignment(terminal: Terminal, alignment: "Alignment") -> None:
    """Print an alignment as a heat map."""
    from regard.inspection.heat_map import heat_map

    terminal.heading("Attention (rows: output words, columns: input words)")
    weights, target, source = alignment.weights, alignment.target, alignment.source
    terminal.beside([heat_map(weights, target, source, width=terminal.width, shades=terminal.shades)])
    terminal.text("The model learned this alignment from sentence pairs alone: the training data has no word "
                  "alignments.")
    _flush(terminal)


def show_score(terminal: Terminal, tested: DemoResult, min_bleu: float, seconds: float) -> None:
    """Print the score, and whether it is high enough."""
    terminal.heading(f"BLEU {tested.bleu:.1f} on {checks.plural(len(tested.pairs), 'test sentence')}")
    terminal.text(f"{checks.plural(tested.exact, 'translation')} of {len(tested.pairs):,} "
                  f"{'equals' if tested.exact == 1 else 'equal'} the reference exactly. The demo took {seconds:.0f} s.")
    terminal.text(f"({tested.signature})")
    if not tested.bleu > min_bleu:
        terminal.text(f"BLEU is too low: it should be above {min_bleu:g}.")
    _flush(terminal)


def show_next(terminal: Terminal, folder: Path | None, text: str) -> None:
    """Print what to try next, with and without the model."""
    from regard.training.progress import draw_commands, next_commands

    terminal.heading("What to try next")
    if folder is None:
        terminal.text("The model was removed. To keep it:")
        draw_commands(["regard demo -o my-model"], terminal)
    else:
        terminal.text("Use the model, and look at its attention:")
        draw_commands(next_commands("translation", str(folder), text), terminal)
    terminal.text("Train on other sentences of the phrasebook, or on your own pairs:")
    draw_commands(["regard data phrasebook -n 1000 > pairs.tsv", "regard train pairs.tsv -o another-model"], terminal)
    terminal.text("See masks, attention weights and backends:")
    draw_commands(["regard demo --tour"], terminal)
    _flush(terminal)


def _introduce(terminal: Terminal, setting: DemoSetting) -> None:
    terminal.heading("Training a small Transformer from English to French")
    terminal.text(f"Training data: {setting.pairs:,} sentence pairs of up to {setting.max_words} words, from a grammar "
                  f"that is part of regard. Test data: {checks.plural(setting.test_pairs, 'other pair')}. Each has an "
                  f"adjective with a noun, or a verb with an object, that never occur together in the training data.")
    _flush(terminal)


class _QuietStartLogger:
    """A logger without the preparations and the settings of a training, nearly all of which are fixed here."""

    def __init__(self, logger: "Logger") -> None:
        self.logger, self.name, self.started = logger, logger.name, False

    def __call__(self, event: "TrainingEvent", /) -> None:
        from regard.training.logging import TrainingStarted

        if isinstance(event, TrainingStarted):
            self.started, event = True, replace(event, defaults=(), choices=(), settings=())
        if self.started:
            self.logger(event)

    def close(self) -> None:
        """Close the inner logger."""
        self.logger.close()


def _write_pairs(path: Path, pairs: "Iterator[AlignedPair]") -> None:
    from regard.storage.filesystem import write_file

    write_file(path, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs).encode())


def _flush(terminal: Terminal) -> None:
    """Show the output now, before the next slow part."""
    terminal.out.flush()
