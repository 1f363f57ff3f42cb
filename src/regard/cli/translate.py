"""`regard translate`: texts, lines or a file, translated; as many come out as go in.

    texts, a pipe, a plain file     a line for each on stdout: the translation, or what else is asked for
    a file of another format        the same file on stdout with other targets
    any file with -o                the same as a file, which goes on where it ended when it is interrupted

Placeholders are kept, except where --nbest, --scores or --align show what the model itself wrote. It hands texts to
what translates, block by block, and files to `regard.tasks.documents`; how is searched, `regard.cli.translating` says.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import models, searching, translated, translating
from regard.cli.data import escaped
from regard.cli.meter import Meter
from regard.cli.panels import expanded

if TYPE_CHECKING:
    from regard.tasks.documents import Document, Work
    from regard.tasks.placeholders.keeping import Kept
    from regard.tasks.translates import Translates

ALL = "all"
"""The entries of a file, where nothing is said."""
TEXT_FORMATS = {"txt": "plain"}
"""Other names of a format."""
ENDINGS = (".txt", ".tsv", ".jsonl", ".po", ".pot", ".tmx", ".gz")
"""A single word that ends so is the name of a file, and if it is missing no text to be translated."""


@expanded
def translate(
    model: models.Model,
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
                       "missing.")] = ALL,
    scores: Annotated[bool, typer.Option("--scores", help="Behind each translation its score, and the log-probability "
                      "of each of its words.")] = False,
    align: Annotated[bool, typer.Option("--align", help="Behind each translation which word of the text, from 0, each "
                     "of its words belongs to: 0-0 1-2. With --json also where they stand.")] = False,
    as_json: models.Json = False,
    wishes: translating.Wishes,
    following: translating.Following,
    drawing: searching.Drawing,
    bounds: searching.Bounds,
    engine: translating.Engine,
) -> None:
    """Translate texts, the lines of standard input, or a file.

    Every line gives one line; of an empty one it is empty. What cannot be translated is named on stderr and stays
    empty, the others are translated, and the exit code is 1. A file keeps all but its targets. Placeholders such as %s,
    {name}, <b> and addresses come out as they went in, as many and in the same order; with --nbest, --scores or --align
    you see what the model itself wrote, whatever became of them.
    """
    details = translated.Details(wishes.nbest, scores, align, as_json)
    name = TEXT_FORMATS.get(format or "", format)
    try:
        asked = translating.asked(wishes, following, drawing, bounds, engine)
        if engine.engine != translating.TORCH and (scores or align):
            models.fail(f"--scores and --align are for --engine {translating.TORCH}: {engine.engine} tells neither the "
                        "probabilities of words nor where the model looked.")
        if not details.inside:
            asked.check_placeholders()
        document = _document(texts, output, name, source, target, entries)
        if document is not None and (output is not None or document.kind != "plain"):
            if details != translated.Details():
                models.fail("--nbest, --scores, --align and --json are for lines on stdout, and not for a file. Leave "
                            "them out, or give plain text without -o.")
            _file(document, output, model, asked)
        else:
            _lines(models.blocks(texts) if document is None else _blocks(document), model, asked, details)
    except ValueError as error:
        models.fail(str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not error.filename:
            raise  # of stdout: `regard.cli.main` knows what to do
        models.fail(f"{escaped(str(error.filename))}: {error.strerror}", 1)


def _document(texts: Sequence[str] | None, output: str | None, format: str | None, source: str | None,
              target: str | None, entries: str) -> "Document | None":
    """The file that is to be translated; None where it is texts or standard input."""
    from regard import checks
    from regard.data.sources.opening import FORMATS, check_names
    from regard.data.sources.writing import ENTRIES
    from regard.tasks.documents import Document

    if format is not None:
        checks.pick("format", format, FORMATS)
    checks.pick("entries", entries, ENTRIES)
    check_names(source, target)
    given = list(texts or [])
    wanted = output is not None or format not in (None, "plain")
    if len(given) != 1 or given == ["-"]:
        if wanted:
            models.fail("With -o or --format one file is translated, which must be named. Texts and pipes give lines "
                        "on stdout.")
        _refuse_names(source, target, entries)
        return None
    (one,) = given
    if wanted or _is_file(one):
        return Document(one, format, source, target, entries)
    _refuse_names(source, target, entries)
    return None


def _refuse_names(source: str | None, target: str | None, entries: str) -> None:
    """Refuse what says where in a file texts are, for texts that stand in none."""
    given = {"--source": source is not None, "--target": target is not None, "--entries": entries != ALL}
    names = [name for name, said in given.items() if said]
    if names:
        models.fail(f"{searching.listed(names)} {'is' if len(names) == 1 else 'are'} for a file: which of its columns, "
                    "keys, languages or entries. Texts and pipes are translated whole.")


def _is_file(text: str) -> bool:
    """Whether this is the name of something that can be read, or looks like one that should be there, and no text."""
    try:
        there = os.path.exists(text) and not os.path.isdir(text)
    except ValueError:  # a NUL, or half a surrogate pair
        return False
    return there or (text.lower().endswith(ENDINGS) and len(text.split()) == 1)


def _blocks(document: "Document") -> Iterator[list[str]]:
    """The lines of a plain file."""
    from regard.tasks.documents import blocks

    for some in blocks(document.lines(), models.BLOCK):
        yield [line.text for line in some]


def _keeping(translator: "Translates", asked: translating.Asked, ways: "Counter[str]") -> "Work":
    """Translates texts, each by itself where they cannot be together, keeps their placeholders, and counts how."""
    from regard.tasks.documents import apart
    from regard.tasks.placeholders.keeping import kept
    from regard.tasks.translating import Translator

    align = translator.align if isinstance(translator, Translator) and translator.attends else None

    within = partial(replace(asked, prefix="").translations, translator) if asked.prefix else None

    def work(texts: list[str]) -> "list[Kept]":
        found = kept(texts, partial(asked.translations, translator), align, within)
        ways.update(one.how for one in found)
        return found

    return partial(apart, work=work)


def _lines(blocks: Iterator[list[str]], model: str, asked: translating.Asked, details: translated.Details) -> None:
    """A line on stdout, or several, for each text."""
    from regard.tasks.documents import apart
    from regard.tasks.translating import Translator

    translator, meter, ways = asked.opened(model), Meter(sys.stderr, sys.stdout), Counter[str]()

    def named(number: int, text: str) -> str:
        meter.clear()
        return models.numbered(number, text)

    if details.inside:
        align = None
        if details.align:
            assert isinstance(translator, Translator)
            if not translator.attends:
                models.fail(f"{model}: --align is for a model that looks at its source, which this one does not.")
            align = translator.align
        work = partial(apart, work=partial(translated.looked_into, partial(asked.translations, translator), align,
                                           details.nbest))
    else:
        work = _keeping(translator, asked, ways)  # type: ignore[assignment]
    try:
        for number, (text, found) in enumerate(models.each(blocks, work, named), 1):
            assert not isinstance(found, ValueError)
            translated.write(number, text, found, details)
            meter.show(number)
    finally:  # where a text could not be translated too
        meter.clear()
        translated.say_untouched(ways["source"])


def _file(document: "Document", output: str | None, model: str, asked: translating.Asked) -> None:
    """A file of the same format, on stdout or by a name."""
    from regard.tasks.documents import fingerprint

    meter = Meter(sys.stderr, sys.stdout if output is None else None)
    watcher, ways = translated.Shown(meter), Counter[str]()
    work = _keeping(asked.opened(model), asked, ways)
    if output is None:
        document.write(document.flow(work, watcher), "-")
        failed = watcher.count
    else:
        same = {"model": fingerprint(Path(model)), **asked.table()}
        try:
            outcome = document.translate(work, output, asked=same, watcher=watcher)
        except KeyboardInterrupt:
            meter.clear()
            models.say(f"Interrupted. The same call goes on where it ended; {output}.progress has what is done.")
            raise
        failed = outcome.failed
    meter.clear()
    translated.say_untouched(ways["source"])
    if failed:
        models.say(f"{failed:,} of the entries could not be translated, and {'is' if failed == 1 else 'are'} empty.")
        raise typer.Exit(1)
