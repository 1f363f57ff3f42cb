"""Sequences with a label for every token on their way from files to ids on disk, for token classification.

    survey_sequences(request, config)                  statistics of TSV, CoNLL or JSONL files
    prepare_sequences(survey, tokenizer, place)        a tokenizer, trained once, all sequences as ids, and their labels

Sequences without tokens, too long ones and duplicates are skipped and counted. Labels are numbered in sorted order,
from 0. On disk each id has 1 + its label, or 0 if it has none: the second and further subwords of a word, and tokens of
the validation data whose label is not in the training data. Sequences that are longer than the positions of a model are
split into windows.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from regard import config as configs
from regard.checks import plural
from regard.data import store as stores
from regard.data.filters import FilterConfig, HashSet, hash_texts
from regard.data.sources.text import DataError, InputFile, Location, ReadLog, printable
from regard.data.sources.token_labels import LabelledFile, LabelledSequence
from regard.data.spans import count_irregular, is_span_scheme
from regard.data.store import TextStore
from regard.data.tokenizer.interface import Tokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.data.tokenizer.units import EncodedTokens, TokenEncoder, window_starts
from regard.training.config import DataConfig
from regard.training.starting_point import StartModel
from regard.training.tasks.classification_data import check_classes
from regard.training.tasks.common import (
    Hashes,
    PreparedTexts,
    SplitMask,
    file_digests,
    open_inputs,
    overlap_warnings,
    prepare_texts,
    read_summary,
    select_validation,
)
from regard.training.tasks.interface import ProgressHook, TrainingRequest

ENDING_MARKS = frozenset(".,;:!?")
"""Marks that are either words of their own or the last character of a word."""
DROP_NAMES = {"empty": ("without tokens", "without tokens"), "too_long": ("longer than", "longer than"),
              "duplicate": ("duplicate", "duplicates")}


@dataclass
class SequenceCounts:
    """What is counted while sequences are read."""

    dropped: Counter[str] = field(default_factory=Counter)
    empty: list[Location] = field(default_factory=list)
    relabelled: int = 0
    """Duplicates that have other labels than the sequence that is kept."""
    log: ReadLog = field(default_factory=ReadLog)


@dataclass(frozen=True)
class FilteredSequences:
    """The labelled sequences of files that the filters keep."""

    inputs: tuple[InputFile, ...]
    filters: FilterConfig
    unit: str
    reading: Mapping[str, Any]
    """The arguments of `LabelledFile`: format, source and target."""

    def __iter__(self) -> Iterator[LabelledSequence]:
        return self.read(SequenceCounts(), iter)

    def read(self, counts: SequenceCounts, progress: ProgressHook) -> Iterator[LabelledSequence]:
        """The sequences; those that are dropped are counted by their reason."""
        seen, both = HashSet(), HashSet()
        for sequence in progress(self._all(counts)):
            reason = self._drop_reason(sequence, seen)
            new = both.add(hash_texts("\t".join((*sequence.tokens, *sequence.labels))))
            if reason is None:
                yield sequence
            else:
                counts.dropped[reason] += 1
                counts.relabelled += reason == "duplicate" and new
        counts.dropped["empty"] += len(counts.empty)

    def _all(self, counts: SequenceCounts) -> Iterator[LabelledSequence]:
        for file in self.inputs:
            yield from LabelledFile(file, unit=self.unit, log=counts.log, **self.reading).read(counts.empty)

    def _drop_reason(self, sequence: LabelledSequence, seen: HashSet) -> str | None:
        text, drop = sequence.text(self.unit), self.filters.drop
        words = len(sequence.tokens) if self.unit == "word" else 0
        if "too_long" in drop and (len(text) > self.filters.max_characters or words > self.filters.max_words):
            return "too_long"
        new = seen.add(hash_texts(text))
        return "duplicate" if "duplicate" in drop and not new else None


@dataclass(frozen=True)
class TokenLabelStatistics:
    """Labels and hashes of the sequences that the filters keep, and what is worth knowing about them."""

    labels: tuple[str, ...]
    """The distinct labels, sorted."""
    counts: Mapping[str, int]
    """The number of tokens of each label."""
    hashes: Hashes
    dropped: Mapping[str, int]
    first_empty: str
    """File and line of the first sequence without tokens."""
    relabelled: int
    irregular: int
    """Spans of an IOB scheme that do not begin with B-."""
    split_punctuation: bool
    """Whether punctuation marks are words of their own."""

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return sum(self.counts.values())


def read_statistics(sequences: FilteredSequences, progress: ProgressHook, log: ReadLog) -> TokenLabelStatistics:
    """Read all sequences once."""
    found, counts, hashes = SequenceCounts(log=log), Counter[str](), array("Q")
    irregular = alone = attached = 0
    for sequence in sequences.read(found, progress):
        counts.update(sequence.labels)
        hashes.append(hash_texts(sequence.text(sequences.unit)))
        irregular += count_irregular(sequence.labels)
        alone += sum(token in ENDING_MARKS for token in sequence.tokens)
        attached += sum(len(token) > 1 and token[-1] in ENDING_MARKS for token in sequence.tokens)
    return TokenLabelStatistics(
        tuple(sorted(counts)), dict(counts), np.frombuffer(hashes, np.uint64) if hashes else np.zeros(0, np.uint64),
        {name: count for name, count in found.dropped.items() if count}, str(found.empty[0]) if found.empty else "",
        found.relabelled, irregular if is_span_scheme(counts) else 0,
        sequences.unit == "word" and alone >= attached)


@dataclass(frozen=True)
class TokenLabelSurvey:
    """Statistics of the files, and the sequences in them."""

    files: dict[str, str]
    """The sha256 of every file by its name."""
    config: DataConfig
    sequences: FilteredSequences
    statistics: TokenLabelStatistics
    validation: FilteredSequences | None
    validation_statistics: TokenLabelStatistics | None
    layout: str
    """How the first file was read."""
    log: ReadLog = field(default_factory=ReadLog)
    notes: tuple[str, ...] = ()
    """What the user should know about how the sequences fit the model that is fine-tuned."""

    @property
    def unit(self) -> str:
        """What has a label: "character" or "word"."""
        return self.sequences.unit

    @property
    def count(self) -> int:
        """The number of sequences in the training files, with those that are held out."""
        return len(self.statistics.hashes)

    @property
    def counts(self) -> dict[str, int]:
        """The number of sequences and of tokens, with those that are held out."""
        return {"sequences": self.count, "tokens": self.statistics.tokens}

    @cached_property
    def held_out(self) -> SplitMask:
        """For each sequence whether it is held out."""
        return select_validation(self.statistics.hashes,
                                 0.0 if self.validation is not None else self.config.validation_fraction)

    def training_sequences(self) -> Iterator[LabelledSequence]:
        """The training sequences, in their order."""
        return compress(self.sequences, ~self.held_out)

    def validation_sequences(self) -> Iterable[LabelledSequence]:
        """The validation files, the sequences that are held out, or else the training sequences."""
        if self.validation is not None:
            return self.validation
        return compress(self.sequences, self.held_out) if self.held_out.any() else self.sequences

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was read, and what the user should know about it."""
        training, validation = self.statistics, self.validation_statistics
        notes = [_summary(self.sequences, training, "sequence", f" with {plural(len(training.labels), 'label')}",
                          self.layout)]
        if training.relabelled:
            notes.append(f"{training.relabelled:,} of {plural(training.dropped['duplicate'], 'duplicate')} had other "
                         "labels than the sequence that is kept, the first of its kind.")
        if training.irregular:
            notes.append(irregular_note(training.irregular))
        if self.validation is not None and validation is not None:
            notes.append(_summary(self.validation, validation, "validation sequence"))
            notes += overlap_warnings(validation.hashes, training.hashes, "sequences")
            notes += unknown_label_note(validation.counts, training.labels, "the training data",
                                        "They are left out of the validation score")
        return (*notes, *self.log.notes, *self.notes)


def irregular_note(count: int) -> str:
    """A note about spans that begin with I-."""
    return (f"{plural(count, 'span')} {'begins' if count == 1 else 'begin'} with I- instead of B-, as in the scheme "
            "IOB1 or by mistake; conlleval's rule counts them as spans.")


def unknown_label_note(counts: Mapping[str, int], known: Sequence[str], where: str, consequence: str) -> list[str]:
    """A note if some of these labels are unknown.

    Args:
        counts: the number of tokens of each label.
        where: what does not have them, such as "the training data".
        consequence: what is done with their tokens.
    """
    unknown = {label: count for label, count in counts.items() if label not in {*known}}
    if not unknown:
        return []
    shown = ", ".join(f"{printable(label)} ({count:,})" for label, count in [*unknown.items()][:5])
    return [f"{plural(sum(unknown.values()), 'token')} {'has' if sum(unknown.values()) == 1 else 'have'} labels that "
            f"are not in {where}: {shown}{', ...' if len(unknown) > 5 else ''}. {consequence}."]


def _summary(sequences: FilteredSequences, found: TokenLabelStatistics, noun: str, labels: str = "",
             layout: str = "") -> str:
    total = sum(found.dropped.values())
    details = {"empty": f" (first: {found.first_empty})", "too_long": f" {_describe_limit(sequences)}"}
    reasons = ", ".join(plural(count, *DROP_NAMES[reason]) + details.get(reason, "")
                        for reason, count in found.dropped.items())
    return read_summary(plural(len(found.hashes) + total, noun) + labels, (file.path for file in sequences.inputs),
                        layout, total, reasons)


def _describe_limit(sequences: FilteredSequences) -> str:
    """The longest sequence that is kept, and the key that sets it."""
    filters = sequences.filters
    if sequences.unit == "character":
        return f"{filters.max_characters:,} characters (data.filters.max_characters)"
    return (f"{filters.max_words:,} words or {filters.max_characters:,} characters (data.filters.max_words, "
            "max_characters)")


def survey_sequences(request: TrainingRequest, config: DataConfig) -> TokenLabelSurvey:
    """Read all files once."""
    inputs, others, log = open_inputs(request.data), open_inputs(request.validation), ReadLog()
    reading: dict[str, Any] = {"format": request.format, "source": request.source, "target": request.target}
    layout = LabelledFile(inputs[0], unit=config.label_unit, **reading).layout
    sequences = FilteredSequences(inputs, config.filters, layout.unit, reading)
    statistics = read_statistics(sequences, request.progress, log)
    check_classes(", ".join(file.name for file in inputs), statistics.labels)
    validation = replace(sequences, inputs=others) if others else None
    found = None if validation is None else read_statistics(validation, iter, log)
    if found is not None and not len(found.hashes):
        raise DataError(f"{', '.join(request.validation)}: No validation sequences found: all are empty or skipped.")
    return TokenLabelSurvey(file_digests([*request.data, *request.validation]), config, sequences, statistics,
                            validation, found, layout.describe(), log)


@dataclass(frozen=True)
class PreparedTokenLabels(PreparedTexts):
    """Training and validation sequences as ids, and 1 + the label of each id, or 0."""

    labels: tuple[str, ...]
    unit: str
    training_labels: TextStore
    validation_labels: TextStore


def prepare_sequences(survey: TokenLabelSurvey, config: TokenizerConfig | None, place: Path,
                      start: StartModel | None = None) -> PreparedTokenLabels:
    """Train the tokenizer, or take that of the start model, and write all sequences into this folder."""
    unit, labels, limit, windows = survey.unit, survey.statistics.labels, None, Counter[str]()
    around: tuple[list[int], list[int]] = ([], [])
    if start is not None:
        limit, around = start.max_text_ids(), start.special_ids()

    def encode(part: int, tokenizer: Tokenizer, sequences: Iterable[LabelledSequence]) -> Iterator[list[int]]:
        encoder = TokenEncoder(tokenizer, unit)
        for sequence in sequences:
            rows = [*_windows(encoder.encode(sequence.tokens), sequence.labels, number, limit, around)]
            windows["long" if len(rows) > 1 else "whole"] += part == 0
            yield from (row[part] for row in rows)

    number = {label: index for index, label in enumerate(labels, 1)}
    settings = {"filters": configs.to_tables(survey.config.filters), "held": survey.config.validation_fraction,
                "given": survey.validation is not None, "unit": unit, "labels": list(labels)}
    sources: tuple[Callable[[], Iterable[Any]], ...] = (survey.training_sequences, survey.validation_sequences)
    prepared = prepare_texts(
        place, config, *sources, data=list(survey.files.values()), settings=settings, encode=partial(encode, 0),
        tokenizer_texts=lambda: (sequence.text(unit) for sequence in survey.training_sequences()),
        tokenizer=None if start is None else start.tokenizer)
    key = stores.store_key(list(survey.files.values()), prepared.tokenizer.sha256, settings)
    marks = [stores.open_or_make_texts(place / name, key, partial(encode, 1, prepared.tokenizer, source()),
                                       vocabulary=len(labels) + 1).store
             for name, source in (("labels", sources[0]), ("held_labels", sources[1]))]
    long = windows["long"]
    notes = [f"{long:,} of {plural(long + windows['whole'], 'sequence')} are longer than the {limit} tokens that the "
             "start model can read at once, and are split into windows."] if long else []
    return PreparedTokenLabels(prepared.tokenizer, prepared.training, prepared.validation, (*prepared.notes, *notes),
                               labels, unit, *marks)


def _windows(encoded: EncodedTokens, labels: Sequence[str], number: Mapping[str, int], limit: int | None,
             around: tuple[list[int], list[int]]) -> Iterator[tuple[list[int], list[int]]]:
    """The ids of each window of a sequence, and 1 + the label of each id, or 0."""
    ids, first = encoded
    marks = [0] * len(ids)
    for at, label in zip(first, labels, strict=True):
        marks[at] = number.get(label, 0)
    before, after = around
    whole = [(0, len(first))] if limit is None or len(ids) <= limit else window_starts(first, len(ids), limit)
    for start, end in whole:
        inside = slice(first[start], first[end] if end < len(first) else len(ids))
        yield [*before, *ids[inside], *after], [*[0] * len(before), *marks[inside], *[0] * len(after)]
