"""`regard translate`: translate texts, lines or a file; one result for each input.

    texts, a pipe, a plain file     a line for each on stdout: the translation, with details if asked for
    a file of another format        the same file on stdout with new targets
    any file with -o                the same as a file; an interrupted one is resumed by the same call

Placeholders are kept, except where --nbest, --scores or --align show what the model itself wrote. Files are translated by
`regard.tasks.documents`.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from regard.cli import options, terminal
from regard.cli.options import expand_options
from regard.cli.terminal import ProgressMeter, escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Callable

    from regard.data.sources.text import Location
    from regard.tasks.alignment import Alignment
    from regard.tasks.documents import TextDocument, TranslateBlock
    from regard.tasks.glossary import Glossary
    from regard.tasks.placeholder_translation import PlaceholderTranslation
    from regard.tasks.search import DecodingStrategy
    from regard.tasks.translator import Translation, TranslatorMixin


ALL_ENTRIES = "all"
"""The entries of a file, where nothing is said."""
FORMAT_ALIASES = {"txt": "plain"}
"""Other names of a format."""
FILE_ENDINGS = (".txt", ".tsv", ".jsonl", ".po", ".pot", ".tmx", ".gz")
"""A single word that ends so is the name of a file, and if it is missing no text to be translated."""


# ---- translating: What `regard translate` asks of what translates: the options of the translation, checked together, as one value.
#
# Whatever cannot be done is said before a model is loaded, or at the latest before a text is read. Options that change
# results are in `table`, by which the journal of a file knows whether a call is the same. It knows no files of text.

TORCH, CTRANSLATE2 = "torch", "ctranslate2"


@dataclass(frozen=True)
class TranslationOptions:
    """What a translation must be like, and how it is chosen."""

    nbest: Annotated[int, typer.Option("-n", "--nbest", metavar="N", min=1, help="How many translations of each "
                     "text, at most as many as --beam, 5 where nothing is said; with --sample how many are drawn. Each "
                     "has the number of its text in front.")] = 1
    mbr: Annotated[int | None, typer.Option("--mbr", metavar="N", min=1, show_default=False, help="Of N samples, or "
                   "where --beam is given of the N best, take the one that is most like the others (minimum Bayes "
                   "risk); its score is its expected chrF.")] = None
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", rich_help_panel=options.CONSTRAINTS_PANEL,
                      show_default=False, help="A text that every translation begins with.")] = ""
    glossary: Annotated[str | None, typer.Option("--glossary", metavar="FILE", rich_help_panel=options.CONSTRAINTS_PANEL,
                        show_default=False, help="Terms that must be kept to: on each line a word of the source, a "
                        "tab, and what it becomes. A word on several lines may become any of them.")] = None


@dataclass(frozen=True)
class SourceBeamOptions(options.BeamOptions):
    """How beam search goes, for a model that reads a source."""

    coverage: Annotated[float | None, typer.Option("--coverage", metavar="NUMBER", min=0, show_default=False,
                        rich_help_panel=options.BEAM_PANEL, help="How much a translation loses that leaves part of the "
                        "text unseen, the beta of Wu et al. 2016.")] = None


ENGINE_PANEL = "What computes"


@dataclass(frozen=True)
class EngineOptions:
    """What computes."""

    engine: Annotated[str, typer.Option("--engine", metavar="NAME", rich_help_panel=ENGINE_PANEL, help="torch, or "
                      "ctranslate2, which is fast on a CPU: the model is exported for it once, into its "
                      "folder.")] = TORCH
    quantization: Annotated[str | None, typer.Option("--quantization", metavar="NAME", rich_help_panel=ENGINE_PANEL,
                            show_default=False, help="For ctranslate2, as what numbers it stores matrices: float32, as "
                            "where nothing is said, float16, bfloat16 or int8.")] = None
    device: Annotated[str, typer.Option("--device", metavar="NAME", rich_help_panel=ENGINE_PANEL, help="cpu, cuda, or auto: "
                      "a GPU where there is one.")] = options.AUTO_DEVICE

    def check(self) -> None:
        """Refuse an engine, or a quantization, that there is not, and a quantization for torch."""
        from regard import checks

        checks.pick("--engine", self.engine, dict.fromkeys(ENGINES))
        if self.quantization is not None and self.engine != CTRANSLATE2:
            terminal.fail(f"--quantization is for --engine {CTRANSLATE2}.")
        if self.quantization is not None:
            from regard.storage.ctranslate2 import QUANTIZATIONS

            checks.pick("--quantization", self.quantization, QUANTIZATIONS)

    def opened(self, model: str) -> "TranslatorMixin":
        """What translates with the model in a folder."""
        from regard.tasks.translator import Translator

        if self.engine == TORCH:
            task = options.open_task(model, self.device, "Translator")
            assert isinstance(task, Translator)
            return task
        from regard.tasks import ctranslate2_engine, export

        try:
            return ctranslate2_engine.open_ctranslate2(model, quantization=self.quantization or "float32", tell=terminal.say,
                                  device=options.choose_device(self.device))
        except export.ExportError as error:
            terminal.fail(str(error), 1)


@dataclass(frozen=True)
class TranslationRequest:
    """A search, and what else a translation follows from."""

    search: "DecodingStrategy"
    most_alike: bool
    """Of all that is found, the one that is most like the others."""
    prefix: str
    terms: "Glossary | None"
    engine: EngineOptions

    def opened(self, model: str) -> "TranslatorMixin":
        """What translates with the model in a folder. What it cannot do is refused before any text is read."""
        if self.engine.engine == CTRANSLATE2:  # before an export is made
            from regard.tasks import ctranslate2_engine

            if self.most_alike:
                ctranslate2_engine.refuse_mbr()
            ctranslate2_engine.check_search(self.search, glossary=self.terms)
        translator = self.engine.opened(model)
        translator.check(self.search, prefix=self.prefix, glossary=self.terms)
        return translator

    def translations(self, translator: "TranslatorMixin", texts: list[str]) -> "list[Translation]":
        """Of each text what is best, with the others beside it."""
        if self.most_alike:
            return translator.mbr(texts, self.search, prefix=self.prefix, glossary=self.terms)
        return translator.searched(texts, self.search, prefix=self.prefix, glossary=self.terms)

    def check_placeholders(self) -> None:
        """Refuse placeholders that texts do not have: where those of texts are kept, all others are taken out."""
        from regard.tasks.placeholders import find_placeholders

        entries = {} if self.terms is None else self.terms.entries
        required = [("--prefix", "", self.prefix)]
        required += [("--glossary", source, target) for source, targets in entries.items() for target in targets]
        for option, source, target in required:
            if find_placeholders(target) != find_placeholders(source):
                terminal.fail(f"{option} must be without placeholders of its own, but has {target!r:.80}. A translation "
                            "has those of its text, and no others.")

    def table(self) -> dict[str, Any]:
        """All that results depend on, but for the model: words and numbers by name."""
        engine = self.engine.engine
        known = None if self.terms is None else {source: [*targets] for source, targets in self.terms.entries.items()}
        return self.search.table() | {
            "mbr": self.most_alike, "prefix": self.prefix, "glossary": known, "engine": engine,
            "quantization": None if engine == TORCH else self.engine.quantization or "float32"}


def make_request(wishes: TranslationOptions, following: SourceBeamOptions, drawing: options.SamplingOptions, bounds: options.LengthOptions,
          engine: EngineOptions) -> TranslationRequest:
    """All options as one value; a message and the exit code 2 where they do not go together."""
    from regard.tasks.glossary import Glossary

    engine.check()
    if wishes.mbr is not None and wishes.nbest > wishes.mbr:
        terminal.fail(f"--nbest must be at most --mbr, {wishes.mbr}, but is {wishes.nbest} instead.")
    draws = drawing.sample or (wishes.mbr is not None and following.beam is None)
    count = wishes.nbest if wishes.mbr is None else wishes.mbr
    terms = None if wishes.glossary is None else Glossary.read(wishes.glossary)
    if draws:
        remedy = options.SAMPLING_HINT if drawing.sample else "--mbr draws, but where --beam is given."
        options.refuse_options(following, remedy, glossary=wishes.glossary)
        search: DecodingStrategy = options.make_sampling(drawing, bounds, count)
    else:
        options.refuse_options(drawing, "Give --sample, which draws.")
        if wishes.mbr is not None and wishes.mbr > (following.beam or DEFAULT_BEAM_SIZE):
            terminal.fail(f"--mbr must be at most --beam, {following.beam}, but is {wishes.mbr} instead.")
        search = options.make_beam(following, bounds, count, DEFAULT_BEAM_SIZE, coverage=following.coverage)
    return TranslationRequest(search, wishes.mbr is not None, wishes.prefix, terms, engine)


@expand_options
def translate(
    model: options.ModelArgument,
    *,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts, or the name of one file; without "
                     "any, or with -, the lines of standard input.", show_default=False)] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Write a new file, of the format "
                      "of the one that is read. The same call goes on with one that was interrupted.",
                      show_default=False)] = None,
    format: Annotated[str | None, typer.Option("--format", metavar="NAME", help="txt, tsv, jsonl, po or tmx, whatever "
                      "the name of the file ends with.", show_default=False)] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="The source's column (TSV, from 1), key (JSONL) or "
                      "language (TMX).", show_default=False)] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="The target's column, key or language.",
                      show_default=False)] = None,
    entries: Annotated[str, typer.Option("--entries", metavar="NAME", help="Of a file: all, or those whose target is "
                       "missing.")] = ALL_ENTRIES,
    scores: Annotated[bool, typer.Option("--scores", help="Behind each translation its score, and the log-probability "
                      "of each of its words.")] = False,
    align: Annotated[bool, typer.Option("--align", help="Behind each translation which word of the text, from 0, each "
                     "of its words belongs to: 0-0 1-2. With --json also where they stand.")] = False,
    as_json: options.JsonOption = False,
    wishes: TranslationOptions,
    following: SourceBeamOptions,
    drawing: options.SamplingOptions,
    bounds: options.LengthOptions,
    engine: EngineOptions,
) -> None:
    """Translate texts, the lines of standard input, or a file.

    Every line gives one line; of an empty one it is empty. What cannot be translated is named on stderr and stays
    empty, the others are translated, and the exit code is 1. A file keeps all but its targets. Placeholders such as %s,
    {name}, <b> and addresses come out as they went in, as many and in the same order; with --nbest, --scores or --align
    you see what the model itself wrote, whatever became of them.
    """
    details = OutputDetails(wishes.nbest, scores, align, as_json)
    name = FORMAT_ALIASES.get(format or "", format)
    try:
        asked = make_request(wishes, following, drawing, bounds, engine)
        if engine.engine != TORCH and (scores or align):
            terminal.fail(f"--scores and --align are for --engine {TORCH}: {engine.engine} tells neither the "
                        "probabilities of words nor where the model looked.")
        if not details.inside:
            asked.check_placeholders()
        document = _find_document(texts, output, name, source, target, entries)
        if document is not None and (output is not None or document.kind != "plain"):
            if details != OutputDetails():
                terminal.fail("--nbest, --scores, --align and --json are for lines on stdout, and not for a file. Leave "
                            "them out, or give plain text without -o.")
            _translate_file(document, output, model, asked)
        else:
            _translate_lines(options.text_blocks(texts) if document is None else _document_blocks(document), model, asked, details)
    except ValueError as error:
        terminal.fail(str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not error.filename:
            raise  # of stdout: `regard.cli.main` knows what to do
        terminal.fail(f"{escape_unprintable(str(error.filename))}: {error.strerror}", 1)


def _find_document(texts: Sequence[str] | None, output: str | None, format: str | None, source: str | None,
              target: str | None, entries: str) -> "TextDocument | None":
    """The file that is to be translated; None where it is texts or standard input."""
    from regard import checks
    from regard.data.sources.formats import ENTRIES, FORMATS, check_side_names
    from regard.tasks.documents import TextDocument

    if format is not None:
        checks.pick("format", format, FORMATS)
    checks.pick("entries", entries, ENTRIES)
    check_side_names(source, target)
    given = list(texts or [])
    wanted = output is not None or format not in (None, "plain")
    if len(given) != 1 or given == ["-"]:
        if wanted:
            terminal.fail("With -o or --format one file is translated, which must be named. Texts and pipes give lines "
                        "on stdout.")
        _refuse_file_options(source, target, entries)
        return None
    (one,) = given
    if wanted or _is_file(one):
        return TextDocument(one, format, source, target, entries)
    _refuse_file_options(source, target, entries)
    return None


def _refuse_file_options(source: str | None, target: str | None, entries: str) -> None:
    """Refuse what says where in a file texts are, for texts that stand in none."""
    given = {"--source": source is not None, "--target": target is not None, "--entries": entries != ALL_ENTRIES}
    names = [name for name, said in given.items() if said]
    if names:
        terminal.fail(f"{options.join_names(names)} {'is' if len(names) == 1 else 'are'} for a file: which of its columns, "
                    "keys, languages or entries. Texts and pipes are translated whole.")


def _is_file(text: str) -> bool:
    """Whether this is the name of something that can be read, or looks like one that should be there, and no text."""
    try:
        there = os.path.exists(text) and not os.path.isdir(text)
    except ValueError:  # a NUL, or half a surrogate pair
        return False
    return there or (text.lower().endswith(FILE_ENDINGS) and len(text.split()) == 1)


def _document_blocks(document: "TextDocument") -> Iterator[list[str]]:
    """The lines of a plain file."""
    from regard.tasks.documents import split_blocks

    for some in split_blocks(document.lines(), options.BLOCK_SIZE):
        yield [line.text for line in some]


def _placeholder_worker(translator: "TranslatorMixin", asked: TranslationRequest, ways: "Counter[str]") -> "TranslateBlock":
    """Translates texts, each by itself where they cannot be together, keeps their placeholders, and counts how."""
    from regard.tasks.documents import isolate_errors
    from regard.tasks.placeholder_translation import translate_with_placeholders
    from regard.tasks.translator import Translator

    align = translator.align if isinstance(translator, Translator) and translator.attends else None

    within = partial(replace(asked, prefix="").translations, translator) if asked.prefix else None

    def work(texts: list[str]) -> "list[PlaceholderTranslation]":
        found = translate_with_placeholders(texts, partial(asked.translations, translator), align, within)
        ways.update(one.how for one in found)
        return found

    return partial(isolate_errors, work=work)


# ---- translated: What `regard translate` writes of a translation: a line of text, or of JSON, with what was asked for beside it.
#
# In text the columns are divided by tabs: the number of the text where there are several translations of each, the
# translation, its score and those of its words, its alignment. It does not know how translations come about.


class OutputDetails(NamedTuple):
    """What is asked for beside the translations."""

    nbest: int = 1
    scores: bool = False
    align: bool = False
    as_json: bool = False

    @property
    def inside(self) -> bool:
        """Whether it is something that only the model itself can tell."""
        return self.nbest > 1 or self.scores or self.align


class DetailedTranslation(NamedTuple):
    """The translations of a text, the best first, and their alignments, where they were asked for."""

    translations: "tuple[Translation, ...]"
    alignments: "tuple[Alignment, ...]"


def translate_in_detail(found: "Callable[[list[str]], list[Translation]]",
                align: "Callable[[list[str], list[Translation]], list[Alignment]] | None", nbest: int,
                texts: list[str]) -> list[DetailedTranslation]:
    """The translations of texts as the model wrote them, so many at most, and aligned where that is asked for."""
    each = [(one, *one.alternatives)[:nbest] for one in found(texts)]
    if align is None:
        return [DetailedTranslation(some, ()) for some in each]
    alignments = iter(align([text for text, some in zip(texts, each, strict=True) for _ in some],
                            [one for some in each for one in some]))
    return [DetailedTranslation(some, tuple(next(alignments) for _ in some)) for some in each]


def write_translation(number: int, text: str, found: "DetailedTranslation | PlaceholderTranslation | None", details: OutputDetails) -> None:
    """What came of a text; None where it could not be translated."""
    if details.as_json:
        terminal.write_json({"source": text, **_translation_table(found, details)})
    elif not isinstance(found, DetailedTranslation):
        terminal.write_line("" if found is None else found.text)
    else:
        for place, one in enumerate(found.translations):
            columns = [str(number)] * (details.nbest > 1) + [one.text.replace("\t", " ")]
            if details.scores:
                columns += [f"{one.score:.4f}", " ".join(f"{word.score:.4f}" for word in one.words)]
            if details.align:
                columns.append(found.alignments[place].pharaoh())
            terminal.write_line("\t".join(columns))


def report_untranslated(count: int) -> None:
    """Say how many texts came out as they went in, where there were any."""
    if count:
        terminal.say(f"{count:,} {'text stays' if count == 1 else 'texts stay'} as before: no translation of "
                   f"{'its' if count == 1 else 'theirs'} kept all placeholders.")


def _translate_lines(blocks: Iterator[list[str]], model: str, asked: TranslationRequest, details: OutputDetails) -> None:
    """A line on stdout, or several, for each text."""
    from regard.tasks.documents import isolate_errors
    from regard.tasks.translator import Translator

    translator, meter, ways = asked.opened(model), ProgressMeter(sys.stderr, sys.stdout), Counter[str]()

    def named(number: int, text: str) -> str:
        meter.clear()
        return options.text_label(number, text)

    if details.inside:
        align = None
        if details.align:
            assert isinstance(translator, Translator)
            if not translator.attends:
                terminal.fail(f"{model}: --align is for a model that looks at its source, which this one does not.")
            align = translator.align
        work = partial(isolate_errors, work=partial(translate_in_detail, partial(asked.translations, translator), align,
                                           details.nbest))
    else:
        work = _placeholder_worker(translator, asked, ways)  # type: ignore[assignment]
    try:
        for number, (text, found) in enumerate(options.process_each(blocks, work, named), 1):
            assert not isinstance(found, ValueError)
            write_translation(number, text, found, details)
            meter.show(number)
    finally:  # where a text could not be translated too
        meter.clear()
        report_untranslated(ways["source"])


def _translate_file(document: "TextDocument", output: str | None, model: str, asked: TranslationRequest) -> None:
    """A file of the same format, on stdout or by a name."""
    from regard.tasks.documents import model_fingerprint

    meter = ProgressMeter(sys.stderr, sys.stdout if output is None else None)
    watcher, ways = DocumentProgress(meter), Counter[str]()
    work = _placeholder_worker(asked.opened(model), asked, ways)
    if output is None:
        document.write(document.flow(work, watcher), "-")
        failed = watcher.count
    else:
        same = {"model": model_fingerprint(Path(model)), **asked.table()}
        try:
            outcome = document.translate(work, output, asked=same, watcher=watcher)
        except KeyboardInterrupt:
            meter.clear()
            terminal.say(f"Interrupted. The same call goes on where it ended; {output}.progress has what is done.")
            raise
        failed = outcome.failed
    meter.clear()
    report_untranslated(ways["source"])
    if failed:
        terminal.say(f"{failed:,} of the entries could not be translated, and {'is' if failed == 1 else 'are'} empty.")
        raise typer.Exit(1)


ENGINES = (TORCH, CTRANSLATE2)

DEFAULT_BEAM_SIZE = 5


def _translation_table(found: "DetailedTranslation | PlaceholderTranslation | None", details: OutputDetails) -> dict[str, Any]:
    if found is None:
        return {"text": None}
    if not isinstance(found, DetailedTranslation):
        return {"text": found.text, "score": found.score, "cut": found.cut}
    every = []
    for place, one in enumerate(found.translations):
        every.append({"text": one.text, "score": one.score, "cut": one.cut})
        if details.scores:
            every[-1]["words"] = [word._asdict() for word in one.words]
        if details.align:
            every[-1]["alignment"] = found.alignments[place].table()
    return {**every[0], **({"alternatives": every[1:]} if details.nbest > 1 else {})}


class DocumentProgress:
    """Shows on stderr how the translation of a file goes: a `regard.tasks.documents.ProgressWatcher`."""

    def __init__(self, meter: ProgressMeter) -> None:
        self.meter, self.count = meter, 0
        """Of entries that failed."""

    def begun(self, done: int, total: int) -> None:
        """Say where it goes on."""
        if done:
            terminal.say(f"Going on behind the first {done:,} of {total:,} entries, which are done.")
        self.meter.begin(done, total)

    def went(self, done: int) -> None:
        """Show how many are done."""
        self.meter.show(done)

    def failed(self, where: "Location", error: ValueError) -> None:
        """Name what cannot be translated."""
        self.count += 1
        self.meter.clear()
        terminal.say(f"Error: {where}: {error}")
