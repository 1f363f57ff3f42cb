"""Directions: the data of a model for several languages, and which pairs of a file belong to which direction.

    parse_direction("en-fr:train.en,train.fr")     DirectionData(en-fr, ("train.en", "train.fr"))
    named_directions(["pairs.jsonl"])              the directions that the lines of files name
    with_reverses(directions)                      each direction, and the opposite one with the same files
    read_direction(one, one.data)                  the pairs of one direction

A file belongs to one direction, or to several if it tells which text is in which language:

    TMX      the units in these two languages
    TSV      the columns that a header line names by these codes; or the lines whose columns source_lang and target_lang
             have them
    JSONL    the values of the keys that are these codes; or the lines whose keys source_lang and target_lang have them

The sides of any other file are those of the direction: first the source, then the target. But a file that names
other languages only is refused. A direction that is `reverse` reads the same pairs the other way round.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

from regard import checks
from regard.data.languages import (
    LanguagePair,
    find_language,
    known_code,
    language_control,
    languages_in_names,
    normalize_code,
    parse_pair,
    same_languages,
)
from regard.data.sources import formats, jsonl, tsv
from regard.data.sources.text import (
    DataError,
    InputFile,
    Location,
    ReadLog,
    SentencePair,
    SkipCallback,
    printable,
    read_lines,
)

NamedLanguages = Callable[[InputFile], Iterator[tuple[str, str, SentencePair]]]
OPTION, VALIDATION_OPTION = "--direction", "--validation"


@dataclass(frozen=True)
class DirectionData:
    """The files of one direction."""

    languages: LanguagePair
    data: tuple[str, ...]
    validation: tuple[str, ...] = ()
    reverse: bool = False
    """Whether the files are those of the opposite direction."""

    @property
    def name(self) -> str:
        """As a user types it: "en-fr"."""
        return str(self.languages)

    @property
    def controls(self) -> tuple[str, ...]:
        """The control tokens before every source."""
        return (language_control(self.languages.target),)

    @property
    def file_languages(self) -> LanguagePair:
        """The languages of the sides of its files."""
        return self.languages.reverse if self.reverse else self.languages


def parse_direction(text: str, argument: str = OPTION) -> DirectionData:
    """The direction in "en-fr:pairs.tsv" or "en-fr:train.en,train.fr"."""
    pair, colon, rest = text.partition(":")
    files = (rest,) if os.path.exists(rest) else tuple(part.strip() for part in rest.split(","))
    if not colon or not all(files):
        raise checks.wrong(argument, "two languages and their files, such as en-fr:train.en,train.fr",
                           f'"{printable(text)}"')
    return DirectionData(parse_pair(pair, argument), files)


def check_directions(directions: Sequence[DirectionData]) -> None:
    """Refuse a direction from a language into itself, one that is given twice, and files that are given twice."""
    given, names = ", ".join(one.name for one in directions), [one.name for one in directions]
    for one in directions:
        if one.languages.source == one.languages.target:
            raise DataError(f"{one.name}: A direction needs two different languages. Given are: {given}.")
        if not one.data:
            raise DataError(f"{one.name}: This direction has no files. Given are: {given}.")
        if names.count(one.name) > 1:
            both = " (--both-ways adds the opposite of every direction)" if any(
                other.reverse for other in directions if other.name == one.name) else ""
            raise DataError(f"{one.name}: This direction is given twice{both}. Name all its files at once: {one.name}:"
                            f"{','.join(map(printable, one.data))},... Given are: {given}.")
        for files in (one.data, one.validation):
            twice = [path for path, count in Counter(map(os.path.normpath, files)).items() if count > 1]
            if twice:
                raise DataError(f"{one.name}: {printable(twice[0])} is given twice. Name it once.")
    _check_shared_files([one for one in directions if not one.reverse])
    for one in directions:
        _check_file_names(one)


def _check_file_names(one: DirectionData) -> None:
    """Refuse two plain files whose names tell the opposite direction."""
    plain = [path for path in one.data if formats.format_of(path, None) == "plain"]
    for first, second in zip(plain[::2], plain[1::2], strict=False):
        named = languages_in_names(first, second)
        if named is not None and same_languages(named, one.file_languages.reverse):
            raise DataError(f"{one.name}: By their names, {printable(first)} and {printable(second)} are {named}. "
                            f"Exchange them: {named.reverse}:{printable(second)},{printable(first)}.")


def _check_shared_files(directions: Sequence[DirectionData]) -> None:
    """Refuse a file that would be in other languages in another direction."""
    used = dict[str, tuple[str, str]]()
    for one in directions:
        plain = [path for path in one.data if formats.format_of(path, None) == "plain"]
        for path in one.data:
            place, meaning = os.path.realpath(path), one.languages[plain.index(path) % 2] if path in plain else one.name
            before, name = used.setdefault(place, (meaning, one.name))
            if before != meaning and (path in plain or choose_sides(path, one.languages) == FileSides()):
                raise DataError(f"{printable(path)} is {before} for the direction {name}, and {meaning} for "
                                f"{one.name}, but does not tell its languages itself. A TSV may name its columns in "
                                "a header line: en, de, fr. To train a file both ways, use --both-ways.")


def with_validation(directions: Sequence[DirectionData], validation: Sequence[DirectionData]) -> list[DirectionData]:
    """The directions with their validation files."""
    given, names = {one.name: one.data for one in validation}, [one.name for one in directions]
    for one in validation:
        if one.name not in names:
            raise DataError(f"{VALIDATION_OPTION} {one.name}: There is no such direction. Given are: "
                            f"{', '.join(names)}.")
    if len(given) < len(validation):
        raise DataError(f"{VALIDATION_OPTION}: Each direction may have validation data once. Given are: "
                        f"{', '.join(one.name for one in validation)}.")
    return [replace(one, validation=given.get(one.name, one.validation)) for one in directions]


def with_reverses(directions: Iterable[DirectionData]) -> list[DirectionData]:
    """Each direction, and after it the opposite one with the same files."""
    return [other for one in directions for other in
            (one, replace(one, languages=one.languages.reverse, reverse=not one.reverse))]


# The sides of a file

class FileSides(NamedTuple):
    """How the pairs of two languages are found in a file."""

    source: str | None = None
    """The column, key or language of the source; None for the first side of the file."""
    target: str | None = None
    rows: bool = False
    """Whether every line names its languages."""


def choose_sides(path: str, languages: LanguagePair, format: str | None = None) -> FileSides:
    """How the pairs of these languages are found in a file, by its first line."""
    kind = formats.format_of(path, format)
    if kind == "tmx":
        return FileSides(*languages)
    if names_languages(path, format):
        return FileSides(rows=True)
    names = _side_names(path, kind)
    present = {code: name for name in names if (code := known_code(name) or normalize_code(name)) is not None}
    codes = [find_language(code, present) or find_language(code.partition("-")[0], present) for code in languages]
    source, target = (None if code is None else present[code] for code in codes)
    if source is not None and target is not None and source != target:
        return FileSides(source, target)
    others = _other_languages(path, kind, names)
    if len(others) > 1:
        raise DataError(f"{printable(path)}: The languages of this file are {', '.join(map(printable, others))}, so it "
                        f"has no pairs for {languages}. Give another file; or, if the names are wrong, correct them, "
                        "or choose the columns or keys with --source and --target.")
    return FileSides()


def _other_languages(path: str, kind: str, names: Sequence[str]) -> list[str]:
    """The languages that a header line or the keys of JSONL name as those of the texts; none if nothing names any."""
    if kind == "tsv":
        input = InputFile(path)
        return [] if input.single_pass else tsv.header_languages(input)
    return [] if {"source", "target"} <= {*names} else sorted(
        name for name in names if known_code(name) is not None and name not in tsv.OTHER_WORDS)


def names_languages(path: str, format: str | None = None) -> bool:
    """Whether every line of a file names its languages, in columns or keys source_lang and target_lang."""
    kind = formats.format_of(path, format)
    if kind == "tsv":
        return tsv.find_language_columns(_first_line(path)) is not None
    if kind != "jsonl":
        return False
    keys = jsonl.read_keys(_first_line(path))
    return not keys.isdisjoint(jsonl.SOURCE_LANG_KEYS) and not keys.isdisjoint(jsonl.TARGET_LANG_KEYS)


def _side_names(path: str, kind: str) -> Sequence[str]:
    """The names in the first line of a file: the cells of a TSV, the keys of JSONL."""
    if kind not in ("tsv", "jsonl"):
        return ()
    first = _first_line(path)
    return [cell.strip() for cell in first.split("\t")] if kind == "tsv" else [*jsonl.read_keys(first)]


def _first_line(path: str) -> str:
    """The first line of a file; empty for a pipe, which cannot be read twice."""
    input = InputFile(path)
    return "" if input.single_pass else next(read_lines(input), "")


def read_direction(one: DirectionData, files: Sequence[str], *, source: str | None = None, target: str | None = None,
                   format: str | None = None, skipped: SkipCallback | None = None,
                   used: Collection[LanguagePair] = ()) -> formats.PairCorpus:
    """The pairs of a direction in some files, as they are in the files: a reverse direction is not turned round here.

    Args:
        files: its data or its validation data.
        source, target: the columns or keys of all files, where the user has chosen them.
        used: the languages of lines that other directions take, which are not reported as skipped.
    """
    log, languages, parts = ReadLog(), one.file_languages, list[tuple[str, formats.PairReader]]()
    for chosen, group in groupby(files, key=lambda path: FileSides(source, target) if source is not None
                                 else choose_sides(path, languages, format)):
        if chosen.rows:
            parts += [(f"{path} ({one.name})", partial(_read_rows, path, format, languages, skipped, used))
                      for path in group]
        else:
            parts += formats.read_pairs([*group], source=chosen.source, target=chosen.target, format=format,
                                        skipped=skipped, log=log).parts
    return formats.PairCorpus(tuple(files), "pair", tuple(parts), log)


def _read_rows(path: str, format: str | None, languages: LanguagePair, skipped: SkipCallback | None,
               used: Collection[LanguagePair]) -> Iterator[SentencePair]:
    """The pairs of the lines that name these languages; a file whose lines all name others is refused."""
    named = dict[LanguagePair, None]()
    for found, pair in read_named_pairs(path, format):
        named[found] = None
        if found == languages:
            yield pair
        elif skipped is not None and found not in used:
            skipped(pair.location, f"for {found}")
    if named and languages not in named:
        raise DataError(f"{printable(path)}: The lines of this file are for {', '.join(map(str, named))}, so it has no "
                        f"pairs for {languages}. Give another file.")


def read_named_pairs(path: str, format: str | None = None) -> Iterator[tuple[LanguagePair, SentencePair]]:
    """The pairs of a file whose lines name their languages, each with them."""
    readers: dict[str, NamedLanguages] = {"tsv": tsv.read_named_languages, "jsonl": jsonl.read_named_languages}
    known = dict[tuple[str, str], LanguagePair]()
    for source, target, pair in readers[formats.format_of(path, format)](InputFile(path)):
        if (source, target) not in known:
            known[source, target] = _check_languages(source, target, pair.location)
        yield known[source, target], pair


def _check_languages(source: str, target: str, location: Location) -> LanguagePair:
    codes = normalize_code(source), normalize_code(target)
    if codes[0] is None or codes[1] is None:
        wrong = source if codes[0] is None else target
        raise DataError(f'{location}: "{printable(wrong)}" is not a language code such as en or pt-BR. Fix the line.')
    if codes[0] == codes[1]:
        raise DataError(f"{location}: Source and target are both in {codes[0]}. A direction needs two different "
                        "languages. Fix the line.")
    return LanguagePair(codes[0], codes[1])


def named_directions(files: Sequence[str], format: str | None = None) -> list[DirectionData]:
    """The directions that the lines of files name, in the order in which they appear; none if no file names any."""
    named = [path for path in files if names_languages(path, format)]
    if not named:
        return []
    other = next((path for path in files if path not in named), None)
    if other is not None:
        raise DataError(f"{printable(other)}: The lines of {printable(named[0])} name their languages (source_lang, "
                        f"target_lang), and those of this file do not. Add them, or give each direction with {OPTION}.")
    found = dict[LanguagePair, list[str]]()
    for path in named:
        for languages in dict.fromkeys(pair for pair, _ in read_named_pairs(path, format)):
            found.setdefault(languages, []).append(path)
    return [DirectionData(languages, tuple(paths)) for languages, paths in found.items()]
