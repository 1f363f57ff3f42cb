"""Translating with another engine than torch: the same texts in, the same `Translation`s out.

    engine = opened("model")           the export is made at the first use, in model/ctranslate2
    engine.translate(["Two dogs."])    as `Translator.translate`

CTranslate2 computes the model and searches; cutting texts into tokens, batches and joining are ours. What is different:
its beam search ends when as many translations have ended as there are beams, where ours goes on while a better one can
come; a score is that of its search, in which what is never written has no probability at all; and a limit that is not
given follows from the length of a source rounded up, so that sentences of like lengths go together. Its own limit
counts the end too, so it is asked for one token more than may be written; what becomes longer than it may is searched
for once more without that token, and is cut. What comes of a text does not depend on the others. It does beam search,
with `nbest`, `limit`, `least`, `no_repeat` and a `prefix`, and refuses what else may be asked for; it tells neither
log-probabilities nor alignments. It does not know files of text.
"""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard import checks
from regard.checks import whole_number
from regard.data.filters import is_blank
from regard.storage import ctranslate2
from regard.storage import ctranslate2 as fit
from regard.storage import ctranslate2 as spec
from regard.storage import folder as folders
from regard.tasks import export as comparing
from regard.tasks import export as exporting
from regard.tasks.load import load
from regard.tasks.search import Beam, DecodingStrategy, with_alternatives
from regard.tasks.task import as_texts, check_lengths, text_suffix
from regard.tasks.translator import (
    EXTRA_LENGTH,
    LENGTH_FACTOR,
    GlossaryLike,
    Translation,
    Translator,
    TranslatorMixin,
    check_prefix_length,
    prefix_for_each,
)

EXPORT_FOLDER = "ctranslate2"
"""Where the export of a model is kept, in its folder."""
LENGTH_PENALTIES = {"none": 0.0, "mean": 1.0}
LENGTH_STEP = 16
"""Sources are as long as the next multiple of it, where the limit is reckoned."""
BATCH_TOKENS = {"float32": (6144, 2048), "int8_float32": (512, 384), "default": (4096, 4096)}
"""Of the sources of a batch, by what it computes with, with one beam and with several. At every step the weights are
read once for a batch, and what is remembered of each beam: where weights are small, small batches stay near the
processor. "default", on a GPU, was not measured."""


class EngineRow(NamedTuple):
    """What is to be translated, in ids."""

    source: Sequence[int]
    beginning: Sequence[int]
    """Of the translation."""
    limit: int
    """How many tokens its search may write, the beginning and an end counted."""


class CTranslate2Engine(TranslatorMixin):
    """A translator that CTranslate2 runs.

    Args:
        translator: whose export it is; its tokenizer and special ids are used, and not its model.
        folder: of the export.
        threads: how many threads compute; all processors where not given.
        device: "cpu" or "cuda".
    """

    def __init__(self, translator: Translator, folder: str | os.PathLike[str], *, threads: int | None = None,
                 device: str = "cpu") -> None:
        record = _read_record(Path(folder))
        self.tokenizer, self.special = translator.pair_tokenizer(), translator.special
        self.names, self.positions = exporting.vocabulary_names(translator), ctranslate2.max_positions(translator.config)
        self.ids = {name: id_ for id_, name in enumerate(self.names.target)}
        self.never = [[self.names.target[id_]] for id_ in comparing.find_stop_tokens(translator).never]
        self.threads = whole_number("threads", threads, 1) if threads is not None else _core_count()
        compute = ctranslate2.QUANTIZATIONS[record["quantization"]] if device == "cpu" else "default"
        self.tokens = BATCH_TOKENS[compute]
        # One thread each for several batches is faster than several threads for one.
        self.inner = spec.import_ctranslate2().Translator(str(folder), device=device, compute_type=compute,
                                               inter_threads=self.threads, intra_threads=1)

    def searched(self, texts: Sequence[str], search: DecodingStrategy, *, prefix: str | Sequence[str] = "",
                 glossary: GlossaryLike | None = None) -> list[Translation]:
        """What beam search finds for each text, in their order."""
        self.check(search, prefix=prefix, glossary=glossary)
        assert isinstance(search, Beam)
        given = as_texts("texts", texts)
        sources, beginnings = self.tokenizer.encode_sources(given), self.tokenizer.encode_targets(prefix_for_each(prefix, given))
        check_lengths("texts", sources, self.positions)
        limits = {number: self._limit(len(sources[number]), search) for number, text in enumerate(given)
                  if not is_blank(text)}
        for number, most in limits.items():
            check_prefix_length(beginnings[number], most, text_suffix(number, given))
        rows = {number: EngineRow(sources[number], beginnings[number], most + 1) for number, most in limits.items()}
        found = self._found(rows, search)
        long = {number: row._replace(limit=row.limit - 1) for number, row in rows.items()
                if any(len(one.ids) > limits[number] for one in found[number])}
        for number, shorter in self._found(long, search).items():
            found[number] = _mark_ended(shorter, found[number])
        blank = Translation("", 0.0, (), False)
        return [with_alternatives(found[number]) if number in found else blank for number in range(len(given))]

    def _found(self, rows: Mapping[int, EngineRow], search: Beam) -> dict[int, list[Translation]]:
        """What its search finds for rows, by their numbers, the best first."""
        groups = defaultdict[int, list[int]](list)
        for number, row in rows.items():
            groups[row.limit].append(number)
        options = {"beam_size": search.beams, "num_hypotheses": search.nbest, "min_decoding_length": search.least,
                   "length_penalty": LENGTH_PENALTIES[str(search.length_penalty)],
                   "no_repeat_ngram_size": search.no_repeat or 0}
        # All groups are asked for before any is waited for: the longest first, so that no thread has one at the end.
        asked = [(numbers, self._asked([rows[number] for number in numbers], most, options))
                 for most, numbers in sorted(groups.items(), reverse=True)]
        return {number: self._translations(one.result(), len(rows[number].beginning), search)
                for numbers, waiting in asked for number, one in zip(numbers, waiting, strict=True)}

    def check(self, search: DecodingStrategy, *, prefix: str | Sequence[str] = "", glossary: GlossaryLike | None = None) -> None:
        """Refuse what CTranslate2 cannot do, or does otherwise."""
        check_search(search, glossary=glossary)

    def check_mbr(self, among: DecodingStrategy) -> None:
        """Refuse everything."""
        refuse_mbr()

    def _limit(self, length: int, search: DecodingStrategy) -> int:
        """How many tokens the translation of a source may have."""
        if search.limit is not None:
            return min(whole_number("limit", search.limit, 1), self.positions - 1)  # the start has a position too
        rounded = -(-length // LENGTH_STEP) * LENGTH_STEP
        return min(max(LENGTH_FACTOR * rounded + EXTRA_LENGTH, search.least), self.positions - 1)

    def _asked(self, rows: Sequence[EngineRow], limit: int, options: dict[str, Any]) -> list[Any]:
        """What is to come of each row, at most so many tokens long, the end counted."""
        names = self.names.source
        begun = [[self.names.target[id_] for id_ in row.beginning] for row in rows]
        size = _batch_size(rows, self.tokens[options["beam_size"] > 1], self.threads)
        return self.inner.translate_batch(
            [[names[id_] for id_ in row.source] for row in rows], begun if any(begun) else None,
            max_batch_size=size, batch_type="examples", asynchronous=True, max_input_length=0,
            max_decoding_length=limit, end_token=[*self.special.end], return_end_token=True, return_scores=True,
            suppress_sequences=self.never or None, **options)

    def _translations(self, found: Any, begun: int, search: Beam) -> list[Translation]:
        """All that was found, the best first. So many tokens of each are the prefix."""
        made = []
        for pieces, score in zip(found.hypotheses, found.scores, strict=True):
            ids = [self.ids[piece] for piece in pieces]
            cut = not ids or ids[-1] not in self.special.end
            if search.length_penalty == "mean":  # its mean is over the prefix too, of which it adds nothing up
                score *= len(ids) / max(1, len(ids) - begun)
            ids = ids if cut else ids[:-1]
            made.append(Translation(self.tokenizer.target.decode(ids), score, tuple(ids), cut))
        return made


def open_ctranslate2(model: str | os.PathLike[str], export: str | os.PathLike[str] | None = None, *,
           quantization: str = "float32", threads: int | None = None, device: str = "cpu",
           tell: Callable[[str], None] = lambda message: None) -> CTranslate2Engine:
    """The engine of a translator in a folder.

    Args:
        export: the folder of its export. Without it that is `ctranslate2` in the model's folder, and is made there
            where it is missing, or of another model or quantization.
        quantization: of an export that is made here.
        tell: is told when an export is made, which takes a while.
    """
    translator = load(model)
    if not isinstance(translator, Translator):
        raise checks.wrong(str(model), "a translator", f"a {type(translator).__name__}")
    origin = exporting.model_identity(model)
    if export is not None:
        if _read_record(Path(export)).get("model") != origin:
            raise checks.wrong(str(export), f"an export of {model}", "of another model, or of one that was changed",
                               f"Make it anew: regard export {model} --to ctranslate2 -o FOLDER.")
        return CTranslate2Engine(translator, export, threads=threads, device=device)
    place = Path(model) / EXPORT_FOLDER
    known = _read_record(place) if place.exists() else {}
    if (known.get("model"), known.get("quantization")) != (origin, quantization):
        fit.check_supported(translator.config)  # before anybody is told that it begins
        tell(f"Making an export for CTranslate2 ({quantization}) in {place}, once.")
        exporting.export(translator, "ctranslate2", place, quantization=quantization, origin=origin)
    return CTranslate2Engine(translator, place, threads=threads, device=device)


def check_search(search: DecodingStrategy, *, glossary: GlossaryLike | None = None) -> None:
    """Refuse what CTranslate2 cannot do, or does otherwise, whatever the model."""
    if not isinstance(search, Beam):
        raise _unsupported("sampling", "what it draws for a text depends on what is beside it")
    if glossary is not None:
        raise _unsupported("glossary", "its search cannot be made to write terms")
    if search.coverage is not None:
        raise _unsupported("coverage", "it reckons it otherwise")
    if search.groups > 1:
        raise _unsupported("groups", "its beams are not parted")
    if search.length_penalty not in LENGTH_PENALTIES:
        raise checks.wrong("length_penalty", '"none" or "mean", for CTranslate2', repr(search.length_penalty))


def refuse_mbr() -> None:
    """Refuse minimum Bayes risk: how much each of an n-best list counts is how probable it is."""
    raise _unsupported("mbr", "it tells no probabilities of an n-best list, and does not draw")


def _batch_size(rows: Sequence[EngineRow], tokens: int, threads: int) -> int:
    """How many rows a batch has: such that it has at most so many tokens where that can be, and all have about as many.

    Where there are enough rows each thread has as many batches as the others: none waits at the end for one that is
    large.
    """
    most = max(1, tokens // max(1, *(len(row.source) for row in rows)))
    batches = -(-len(rows) // (most * threads)) * threads
    return -(-len(rows) // batches)


def _mark_ended(found: Sequence[Translation], longer: Sequence[Translation]) -> list[Translation]:
    """Translations as long as they may be, of which those are not cut that have an end in a longer search."""
    ends = {one.ids: one for one in longer if not one.cut}
    return sorted((ends.get(one.ids, one) for one in found), key=lambda one: -one.score)


def _core_count() -> int:
    """How many cores this process may use; not every system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _unsupported(what: str, why: str) -> ValueError:
    return checks.wrong(what, "left out, for CTranslate2", "asked for",
                        f"{why[0].upper()}{why[1:]}. The model itself, the engine torch, can do it.")


def _read_record(folder: Path) -> dict[str, Any]:
    """What an export for CTranslate2 says of itself; a FolderError where it is not whole, or something else."""
    record: dict[str, Any] = json.loads(folders.load(folder, lambda saved: saved.read_text(exporting.RECORD_FILE)))
    if record["target"] != "ctranslate2":
        raise checks.wrong(str(folder), "an export for CTranslate2", f"one for {record['target']}")
    return record
