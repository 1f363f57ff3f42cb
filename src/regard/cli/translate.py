"""`regard translate`: translate texts, lines or a file; one result for each input.

    texts, a pipe, a plain file     a line for each on stdout: the translation, with details if asked for
    a file of another format        the same file on stdout with new targets
    any file with -o                the same as a file; an interrupted one is resumed by the same call

Placeholders are kept, except where --nbest, --scores, --align or --influence show what the model itself generated.
Files are translated by `regard.tasks.documents`.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from regard.checks import join_names
from regard.cli.options import (
    AUTO_DEVICE,
    BLOCK_SIZE,
    CONSTRAINTS_PANEL,
    DATA_PANEL,
    ENGINE_PANEL,
    MAX_BEAMS,
    OUTPUT_PANEL,
    SAMPLING_HINT,
    SEARCH_PANEL,
    BatchTokensOption,
    BeamOptions,
    DeviceOption,
    JsonOption,
    LengthOptions,
    ModelArgument,
    QuietOption,
    SamplingOptions,
    SourceOption,
    TargetOption,
    ToOption,
    beam_option,
    check_to_option,
    choose_device,
    complete_names,
    expand_options,
    is_file_name,
    make_beam,
    make_sampling,
    open_task,
    process_each,
    refuse_options,
    text_blocks,
    text_label,
    with_examples,
)
from regard.cli.output import ProgressMeter, fail, say, say_notes, write_json, write_line

if TYPE_CHECKING:
    from regard.data.sources.text import Location
    from regard.tasks.alignment import Alignment
    from regard.tasks.documents import TextDocument
    from regard.tasks.glossary import Glossary
    from regard.tasks.influence import Influence
    from regard.tasks.placeholder_translation import PlaceholderTranslation
    from regard.tasks.search import DecodingStrategy
    from regard.tasks.translator import Translation, TranslatorMixin

TORCH, CTRANSLATE2 = "torch", "ctranslate2"
DEFAULT_BEAM_SIZE = 5
ALL_ENTRIES = "all"
FORMAT_ALIASES = {"txt": "plain"}


@dataclass(frozen=True)
class TranslationOptions:
    """Options of a translation besides the search."""

    to: ToOption = None
    nbest: Annotated[int, typer.Option(
        "-n", "--nbest", "--n-best", metavar="N", min=1, max=MAX_BEAMS, rich_help_panel=SEARCH_PANEL,
        help="Number of translations per text: the N best of the beam, or N samples. Each line then starts with the "
        "number of its text and a tab.")] = 1
    mbr: Annotated[int | None, typer.Option(
        "--mbr", metavar="N", min=1, max=MAX_BEAMS, show_default="off", rich_help_panel=SEARCH_PANEL,
        help="Minimum Bayes risk decoding: of N samples (with --beam: of the N best) choose the one most similar to "
        "the others. Its score is its expected chrF.")] = None
    prefix: Annotated[str, typer.Option(
        "--prefix", metavar="TEXT", rich_help_panel=CONSTRAINTS_PANEL, show_default=False,
        help="Text that every translation starts with.")] = ""
    glossary: Annotated[str | None, typer.Option(
        "--glossary", metavar="FILE", rich_help_panel=CONSTRAINTS_PANEL, show_default=False,
        help="Terms that must be translated as given: a TSV file with a source term and a target term per line. A "
        "source term on several lines may become any of its target terms.")] = None


@dataclass(frozen=True)
class SourceBeamOptions(BeamOptions):
    """Options of beam search for a model with a source."""

    beam: Annotated[int | None, beam_option(str(DEFAULT_BEAM_SIZE))] = None
    coverage_penalty: Annotated[float | None, typer.Option(
        "--coverage-penalty", metavar="X", min=0, show_default="off", rich_help_panel=SEARCH_PANEL,
        help="Penalty for source words that get little attention: the beta of Wu et al. 2016.")] = None


@dataclass(frozen=True)
class EngineOptions:
    """The program that runs the model."""

    engine: Annotated[str, typer.Option(
        "--engine", metavar="NAME", rich_help_panel=ENGINE_PANEL,
        autocompletion=complete_names(TORCH, CTRANSLATE2),
        help="torch, or ctranslate2, which is fast on a CPU: the first call exports the model into its "
        "folder.")] = TORCH
    quantization: Annotated[str | None, typer.Option(
        "--quantization", metavar="NAME", rich_help_panel=ENGINE_PANEL, show_default="float32",
        autocompletion=complete_names("float32", "float16", "bfloat16", "int8"),
        help="Weights of the CTranslate2 model: float32, float16, bfloat16 or int8.")] = None
    device: DeviceOption = AUTO_DEVICE
    batch_tokens: BatchTokensOption = None

    def check(self) -> None:
        """Refuse an unknown engine or quantization, and a quantization for torch."""
        from regard import checks

        checks.pick("--engine", self.engine, dict.fromkeys((TORCH, CTRANSLATE2)))
        if self.quantization is not None and self.engine != CTRANSLATE2:
            fail(f"--quantization is for --engine {CTRANSLATE2}. Add it, or leave out --quantization.")
        if self.quantization is not None:
            from regard.storage.ctranslate2 import QUANTIZATIONS

            checks.pick("--quantization", self.quantization, QUANTIZATIONS)


@dataclass(frozen=True)
class TranslationRequest:
    """A search and everything else that a translation depends on."""

    strategy: "DecodingStrategy"
    mbr: bool
    """Whether the candidate most similar to the others is chosen."""
    prefix: str
    glossary: "Glossary | None"
    engine: EngineOptions
    to: str | None = None
    """The target language."""

    def open_translator(self, model: str) -> "TranslatorMixin":
        """The translator in a model folder. What it cannot do is refused before any text is read."""
        translator: TranslatorMixin
        if self.engine.engine == TORCH:
            from regard.tasks.translator import Translator

            task = open_task(model, self.engine.device, "Translator")
            assert isinstance(task, Translator)
            translator = task
        else:
            from regard.tasks import ctranslate2_engine
            from regard.tasks.export import ExportError

            if self.mbr:  # checked before an export is made
                ctranslate2_engine.refuse_mbr()
            ctranslate2_engine.check_search(self.strategy, glossary=self.glossary)
            try:
                translator = ctranslate2_engine.open_ctranslate2(
                    model, quantization=self.engine.quantization or "float32", report=say,
                    device=choose_device(self.engine.device))
            except ExportError as error:
                fail(str(error), 1)
        check_to_option(model, self.to, translator)
        translator.check_search(self.strategy, glossary=self.glossary)
        return translator.into(self.to)

    def translate(self, translator: "TranslatorMixin", texts: list[str]) -> "list[Translation]":
        """The best translation of each text, with the others as its alternatives."""
        if self.mbr:
            return translator.mbr(texts, self.strategy, prefix=self.prefix, glossary=self.glossary,
                                  batch_tokens=self.engine.batch_tokens)
        return translator.search(texts, self.strategy, prefix=self.prefix, glossary=self.glossary,
                                 batch_tokens=self.engine.batch_tokens)

    def check_placeholders(self) -> None:
        """Refuse a prefix or terms with placeholders of their own: only those of the source are kept."""
        from regard.tasks.placeholders import find_placeholders

        entries = {} if self.glossary is None else self.glossary.entries
        required = [("--prefix", "", self.prefix)]
        required += [("--glossary", source, target) for source, targets in entries.items() for target in targets]
        for option, source, target in required:
            if find_placeholders(target) != find_placeholders(source):
                fail(f"{option} must not add placeholders, but has {target!r:.80}. A translation has exactly the "
                     "placeholders of its source.")

    def settings(self) -> dict[str, Any]:
        """Everything but the model that the result depends on: text and numbers by name."""
        engine = self.engine.engine
        terms = None if self.glossary is None else {source: [*targets]
                                                    for source, targets in self.glossary.entries.items()}
        return self.strategy.table() | {
            "mbr": self.mbr, "prefix": self.prefix, "glossary": terms, "engine": engine,
            "quantization": None if engine == TORCH else self.engine.quantization or "float32",
            **({} if self.to is None else {"to": self.to})}


def make_request(options: TranslationOptions, beam_options: SourceBeamOptions, sampling: SamplingOptions,
                 lengths: LengthOptions, engine: EngineOptions) -> TranslationRequest:
    """All options as one value; exits with 2 if they cannot be combined."""
    engine.check()
    if options.mbr is not None and options.nbest > options.mbr:
        fail(f"--nbest {options.nbest} needs --mbr {options.nbest} or more; it is {options.mbr}.")
    samples = sampling.sample or (options.mbr is not None and beam_options.beam is None)
    count = options.nbest if options.mbr is None else options.mbr
    glossary = None
    if options.glossary is not None:
        from regard.tasks.glossary import Glossary

        glossary = Glossary.read(options.glossary)
    if samples:
        remedy = SAMPLING_HINT if sampling.sample else "--mbr samples. Add --beam to choose among the best of a beam."
        refuse_options(beam_options, remedy, glossary=options.glossary)
        strategy: DecodingStrategy = make_sampling(sampling, lengths, count)
    else:
        refuse_options(sampling, "Add --sample.")
        if options.mbr is not None and options.mbr > (beam_options.beam or DEFAULT_BEAM_SIZE):
            fail(f"--mbr {options.mbr} needs --beam {options.mbr} or more; the beam size is {beam_options.beam}.")
        strategy = make_beam(beam_options, lengths, count, DEFAULT_BEAM_SIZE,
                             coverage_penalty=beam_options.coverage_penalty)
    return TranslationRequest(strategy, options.mbr is not None, options.prefix, glossary, engine, options.to)


@with_examples("""
    regard translate model "The black cat sleeps."
    regard translate model < input.txt > output.txt       # one text per line
    regard translate model app.po -o app.fr.po --entries missing
    regard translate model --to fr "A text." --nbest 3    # of several languages
    regard translate model --engine ctranslate2 --quantization int8 < input.txt
""")
@expand_options
def translate(
    model: ModelArgument,
    *,
    texts: Annotated[list[str] | None, typer.Argument(
        metavar="TEXT", show_default=False,
        help="Texts, or one file. Without any, or with -, the lines of standard input.")] = None,
    format: Annotated[str | None, typer.Option(
        "--format", metavar="NAME", rich_help_panel=DATA_PANEL, show_default="from the file name",
        autocompletion=complete_names("plain", "tsv", "jsonl", "po", "tmx"),
        help="File format: plain (one text per line), tsv, jsonl, po or tmx.")] = None,
    source: SourceOption = None,
    target: TargetOption = None,
    entries: Annotated[str, typer.Option(
        "--entries", metavar="NAME", rich_help_panel=DATA_PANEL, autocompletion=complete_names(ALL_ENTRIES, "missing"),
        help="Entries of the file to translate: all, or missing (only those without a target).")] = ALL_ENTRIES,
    beam_options: SourceBeamOptions,
    options: TranslationOptions,
    sampling: SamplingOptions,
    lengths: LengthOptions,
    engine: EngineOptions,
    output: Annotated[str | None, typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=OUTPUT_PANEL, show_default="standard output",
        help="Write a new file in the format of the input. If it is interrupted, the same call resumes it.")] = None,
    scores: Annotated[bool, typer.Option(
        "--scores", rich_help_panel=OUTPUT_PANEL,
        help="Print two more columns: the score, and the log-probability of each word.")] = False,
    align: Annotated[bool, typer.Option(
        "--align", rich_help_panel=OUTPUT_PANEL,
        help="Print one more column: the word alignment (0-0 1-2: source word - target word, counted from 0). With "
        "--json also the character offsets of the words.")] = False,
    influence: Annotated[bool, typer.Option(
        "--influence", rich_help_panel=OUTPUT_PANEL,
        help="With --json: how much each source word matters for each target word, in nats, found by leaving it "
        "out.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Translate texts, the lines of standard input, or a file.

    One line in, one line out; an empty line stays empty. A text that cannot be translated gives an empty line and an
    error on stderr; the others are still translated, and the exit code is 1. In a TSV, JSONL, PO or TMX file only the
    targets change. Placeholders and markup such as %s, {name}, <b> and URLs are kept, in the same order; with --nbest,
    --scores, --align and --influence you see the output of the model as it is, without that.
    """
    details = OutputDetails(options.nbest, scores, align, as_json, influence)
    try:
        request = make_request(options, beam_options, sampling, lengths, engine)
        if engine.engine != TORCH and (scores or align or influence):
            fail(f"--scores, --align and --influence need --engine {TORCH}: {engine.engine} returns neither word "
                 "scores nor attention.")
        if influence and not as_json:
            fail("--influence is a table for each translation. Add --json.")
        if not details.shows_model_output:
            request.check_placeholders()
        document = _find_document(texts, output, FORMAT_ALIASES.get(format or "", format), source, target, entries)
        if document is not None and (output is not None or document.kind != "plain"):
            if details != OutputDetails():
                fail("--nbest, --scores, --align, --influence and --json work for plain text without -o. Leave them "
                     "out to translate a file.")
            _translate_file(document, output, model, request, quiet)
        else:
            _translate_lines(text_blocks(texts) if document is None else _document_blocks(document), model, request,
                             details, quiet)
    except ValueError as error:
        fail(str(error))


def _find_document(texts: Sequence[str] | None, output: str | None, format: str | None, source: str | None,
                   target: str | None, entries: str) -> "TextDocument | None":
    """The file to translate; None for texts and standard input."""
    given = list(texts or [])
    wants_file = output is not None or format not in (None, "plain")
    names_file = len(given) == 1 and given != ["-"] and (wants_file or is_file_name(given[0]))
    file_options = {"--source": source is not None, "--target": target is not None, "--entries": entries != ALL_ENTRIES}
    if names_file or wants_file or format is not None or any(file_options.values()):
        from regard import checks
        from regard.data.sources.formats import ENTRIES, FORMATS, check_side_names

        if format is not None:
            checks.pick("format", format, FORMATS)
        checks.pick("entries", entries, ENTRIES)
        check_side_names(source, target)
    if names_file and not is_file_name(given[0]) and not os.path.isdir(given[0]):
        fail(f"{given[0]:.80}: There is no such file. -o and --format translate a file; leave them out to translate a "
             "text.")
    if names_file:
        from regard.tasks.documents import TextDocument

        return TextDocument(given[0], format, source, target, entries)
    if wants_file:
        fail("-o and --format translate one file: give its name. For texts and standard input, leave them out and "
             "redirect the output: > FILE")
    names = [name for name, was_given in file_options.items() if was_given]
    if names:
        fail(f"{join_names(names)} {'chooses' if len(names) == 1 else 'choose'} a part of a file: give its name. Texts "
             "and standard input are translated as they are.")
    return None


def _document_blocks(document: "TextDocument") -> Iterator[list[str]]:
    """The lines of a plain file."""
    from regard.tasks.documents import split_blocks

    for some in split_blocks(document.lines(), BLOCK_SIZE):
        yield [line.text for line in some]


def _placeholder_worker(translator: "TranslatorMixin", request: TranslationRequest,
                        strategies: "Counter[str]") -> "Callable[[list[str]], list[PlaceholderTranslation]]":
    """A function that translates texts with their placeholders, and counts the strategies that it used."""
    from regard.tasks.placeholder_translation import translate_with_placeholders
    from regard.tasks.translator import Translator

    align = translator.align if isinstance(translator, Translator) and translator.attends else None
    inner = partial(replace(request, prefix="").translate, translator) if request.prefix else None

    def work(texts: list[str]) -> "list[PlaceholderTranslation]":
        found = translate_with_placeholders(texts, partial(request.translate, translator), align, inner)
        strategies.update(one.strategy for one in found)
        return found

    return work


def _translate_lines(blocks: Iterator[list[str]], model: str, request: TranslationRequest,
                     details: "OutputDetails", quiet: bool) -> None:
    """Print one or several lines for each text."""
    translator = request.open_translator(model)
    meter, strategies = ProgressMeter(sys.stderr, sys.stdout, quiet=quiet), Counter[str]()

    def label(number: int, text: str) -> str:
        meter.clear()
        return text_label(number, text)

    work: Callable[[list[str]], Sequence[Any]]
    if details.shows_model_output:
        work = partial(_translate_in_detail, translator, request, details, _aligner(translator, model, details))
    else:
        work = _placeholder_worker(translator, request, strategies)
    try:
        results: Iterator[tuple[str, Any]] = process_each(blocks, work, label)
        for number, (text, found) in enumerate(results, 1):
            _write_translation(number, text, found, details)
            meter.show(number)
    finally:  # even if a text could not be translated
        meter.clear()
        _report_untranslated(strategies["source"])


def _translate_file(document: "TextDocument", output: str | None, model: str, request: TranslationRequest,
                    quiet: bool) -> None:
    """Write a file of the same format, to stdout or to `output`."""
    from regard.tasks.documents import model_fingerprint
    from regard.tasks.task import isolate_errors

    meter = ProgressMeter(sys.stderr, sys.stdout if output is None else None, quiet=quiet)
    watcher, strategies = DocumentProgress(meter), Counter[str]()
    worker = _placeholder_worker(request.open_translator(model), request, strategies)

    def work(texts: list[str]) -> "list[PlaceholderTranslation | ValueError]":
        return isolate_errors(texts, worker)

    if output is None:
        document.write(document.stream(work, watcher), "-")
        failed = watcher.failures
    else:
        settings = {"model": model_fingerprint(Path(model)), **request.settings()}
        try:
            failed = document.translate(work, output, settings=settings, watcher=watcher).failed
        except KeyboardInterrupt:
            meter.clear()
            say(f"Interrupted. Run the same command again to resume; {output}.progress has what is done.")
            raise
    meter.clear()
    say_notes(document.log.notes)
    _report_untranslated(strategies["source"])
    if failed:
        say(f"{failed:,} {'entry' if failed == 1 else 'entries'} could not be translated. "
            f"{'Its target is' if failed == 1 else 'Their targets are'} empty.")
        raise typer.Exit(1)


class OutputDetails(NamedTuple):
    """What is printed besides the translations."""

    nbest: int = 1
    scores: bool = False
    align: bool = False
    as_json: bool = False
    influence: bool = False

    @property
    def shows_model_output(self) -> bool:
        """Whether the model's own output is printed, even if it lost placeholders."""
        return self.nbest > 1 or self.scores or self.align or self.influence


class DetailedTranslation(NamedTuple):
    """The translations of a text, the best first, with their alignments and influences if they were asked for."""

    translations: "tuple[Translation, ...]"
    alignments: "tuple[Alignment, ...]"
    influences: "tuple[Influence, ...]" = ()


Aligner = Callable[[list[str], "list[Translation]"], "list[Alignment]"]


def _aligner(translator: "TranslatorMixin", model: str, details: OutputDetails) -> Aligner | None:
    """The function that aligns translations, if that was asked for."""
    from regard.tasks.translator import Translator

    if not details.align:
        return None
    assert isinstance(translator, Translator)
    if not translator.attends:
        fail(f"{model}: --align needs a model with cross-attention, but this model has none.")
    return translator.align


def _translate_in_detail(translator: "TranslatorMixin", request: TranslationRequest, details: OutputDetails,
                         align: Aligner | None, texts: list[str]) -> list[DetailedTranslation]:
    """The translations of texts as the model generated them, with alignments and influences if asked for."""
    from regard.tasks.translator import Translator

    nbest = [(one, *one.alternatives)[:details.nbest] for one in request.translate(translator, texts)]
    found = [DetailedTranslation(some, ()) for some in nbest]
    if details.influence:
        assert isinstance(translator, Translator)
        found = [one._replace(influences=tuple(translator.influence(text, each) for each in one.translations))
                 for text, one in zip(texts, found, strict=True)]
    if align is None:
        return found
    alignments = iter(align([text for text, some in zip(texts, nbest, strict=True) for _ in some],
                            [one for some in nbest for one in some]))
    return [one._replace(alignments=tuple(next(alignments) for _ in one.translations)) for one in found]


def _write_translation(number: int, text: str, found: "DetailedTranslation | PlaceholderTranslation | None",
                       details: OutputDetails) -> None:
    """Print the result of a text; None if it could not be translated. Tabs separate the columns."""
    if details.as_json:
        write_json({"source": text, **_translation_table(found, details)})
    elif not isinstance(found, DetailedTranslation):
        write_line("" if found is None else found.text)
    else:
        for place, one in enumerate(found.translations):
            columns = [str(number)] * (details.nbest > 1) + [one.text.replace("\t", " ")]
            if details.scores:
                columns += [f"{one.score:.4f}", " ".join(f"{word.score:.4f}" for word in one.words)]
            if details.align:
                columns.append(found.alignments[place].pharaoh())
            write_line("\t".join(columns))


def _translation_table(found: "DetailedTranslation | PlaceholderTranslation | None",
                       details: OutputDetails) -> dict[str, Any]:
    if found is None:
        return {"text": None}
    if not isinstance(found, DetailedTranslation):
        return {"text": found.text, "score": found.score, "cut": found.cut}
    tables = []
    for place, one in enumerate(found.translations):
        tables.append({"text": one.text, "score": one.score, "cut": one.cut})
        if details.scores:
            tables[-1]["words"] = [word._asdict() for word in one.words]
        if details.align:
            tables[-1]["alignment"] = found.alignments[place].table()
        if details.influence:
            tables[-1]["influence"] = found.influences[place].table()
    return {**tables[0], **({"alternatives": tables[1:]} if details.nbest > 1 else {})}


def _report_untranslated(count: int) -> None:
    """Report how many texts were not translated because of their placeholders."""
    if count:
        say(f"{count:,} {'text was' if count == 1 else 'texts were'} not translated: no translation kept all "
            "placeholders. The source was copied.")


class DocumentProgress:
    """Shows the progress of a file on stderr: a `regard.tasks.documents.ProgressWatcher`."""

    def __init__(self, meter: ProgressMeter) -> None:
        self.meter, self.failures = meter, 0

    def begin(self, done: int, total: int) -> None:
        """Report where the translation is resumed."""
        if done:
            say(f"Resuming: {done:,} of {total:,} entries are done.")
        self.meter.begin(done, total)

    def advance(self, done: int) -> None:
        """Show the number of finished entries."""
        self.meter.show(done)

    def fail(self, location: "Location", error: ValueError) -> None:
        """Report an entry that cannot be translated."""
        self.failures += 1
        self.meter.clear()
        say(f"Error: {location}: {error}")
