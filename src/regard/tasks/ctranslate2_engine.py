"""Translate with CTranslate2 instead of torch: the same texts in, the same `Translation`s out.

    engine = open_ctranslate2("model")   the export is made at the first use, in model/ctranslate2
    engine.translate(["Two dogs."])      as `Translator.translate`

CTranslate2 runs the model and the search; tokenizing, batching and detokenizing are ours. The differences:

- Its beam search stops when as many translations have ended as there are beams; ours continues while a better one can
  come.
- A score is that of its search, in which forbidden tokens have no probability at all.
- The default maximum length is computed from the source length rounded up to LENGTH_STEP, so that sentences of similar
  length share batches. Its own limit counts the end token, so it is given one token more; a translation that becomes
  too long is searched again without that token, and is truncated.

It does beam search with `nbest`, `max_length`, `min_length`, `no_repeat_ngram_size` and a `prefix`, and refuses the
other options; it returns neither log-probabilities nor alignments. The result for one text does not depend on the
others.
"""

import copy
import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from regard import checks
from regard.checks import whole_number
from regard.data.filters import is_blank
from regard.data.languages import target_controls
from regard.storage import ctranslate2
from regard.storage import folder as folders
from regard.tasks import export as exporting
from regard.tasks.load import load
from regard.tasks.search import Beam, DecodingStrategy, with_alternatives
from regard.tasks.task import as_texts, check_lengths, element_name
from regard.tasks.translator import (
    EXTRA_LENGTH,
    LENGTH_FACTOR,
    GlossaryLike,
    Translation,
    Translator,
    TranslatorMixin,
    check_prefix_length,
    controls_for_language,
    prefix_for_each,
)

EXPORT_FOLDER = "ctranslate2"
"""The folder of the export, inside the model folder."""
LENGTH_PENALTIES = {"none": 0.0, "mean": 1.0}
LENGTH_STEP = 16
"""Source lengths are rounded up to a multiple of this for the default maximum length."""
BATCH_TOKENS = {"float32": (6144, 2048), "int8_float32": (512, 384), "default": (4096, 4096)}
"""Source tokens of a batch, by compute type, with one beam and with several.

Each step reads all weights once and the cache of each beam: with small weights, small batches stay in the processor's
cache. "default", on a GPU, was not measured."""


class EngineRow(NamedTuple):
    """The ids of a source and of the prefix of its translation."""

    source: Sequence[int]
    prefix: Sequence[int]
    limit: int
    """The maximum number of tokens of its search, the prefix and an end token included."""


class CTranslate2Engine(TranslatorMixin):
    """A translator that CTranslate2 runs.

    Args:
        translator: the exported translator; only its tokenizer, languages and special ids are used.
        folder: the folder of the export.
        threads: the number of threads; by default all cores.
        device: "cpu" or "cuda".
    """

    def __init__(self, translator: Translator, folder: str | os.PathLike[str], *, threads: int | None = None,
                 device: str = "cpu") -> None:
        record = _read_record(Path(folder))
        self.tokenizer, self.special = translator.pair_tokenizer(), translator.special
        self.source_lang, self.target_lang = translator.source_lang, translator.target_lang
        self.directions = translator.directions
        self.names = exporting.vocabulary_names(translator)
        self.positions = ctranslate2.max_positions(translator.config) or ctranslate2.DEFAULT_POSITIONS
        self.ids = {name: id_ for id_, name in enumerate(self.names.target)}
        self.forbidden = [[self.names.target[id_]] for id_ in exporting.find_stop_tokens(translator).forbidden]
        self.threads = whole_number("threads", threads, 1) if threads is not None else _core_count()
        compute = ctranslate2.QUANTIZATIONS[record["quantization"]] if device == "cpu" else "default"
        self.batch_tokens = BATCH_TOKENS[compute]
        # One thread each for several batches is faster than several threads for one.
        self.inner = ctranslate2.import_ctranslate2().Translator(
            str(folder), device=device, compute_type=compute, inter_threads=self.threads, intra_threads=1)

    def _search(self, texts: Sequence[str], strategy: DecodingStrategy, *, prefix: str | Sequence[str] = "",
                glossary: GlossaryLike | None = None, batch_tokens: int | None = None) -> list[Translation]:
        self.check_search(strategy, glossary=glossary)
        assert isinstance(strategy, Beam)
        texts = as_texts("texts", texts)
        sources = self.tokenizer.encode_sources(texts)
        prefixes = self.tokenizer.encode_targets(prefix_for_each(prefix, texts))
        check_lengths("texts", sources, self.positions)
        limits = {number: self._max_length(len(sources[number]), strategy) for number, text in enumerate(texts)
                  if not is_blank(text)}
        for number, limit in limits.items():
            check_prefix_length(prefixes[number], limit,
                                element_name("prefix", number, [] if isinstance(prefix, str) else prefix))
        rows = {number: EngineRow(sources[number], prefixes[number], limit + 1) for number, limit in limits.items()}
        found = self._translate_rows(rows, strategy, batch_tokens)
        long = {number: row._replace(limit=row.limit - 1) for number, row in rows.items()
                if any(len(one.ids) > limits[number] for one in found[number])}
        for number, shorter in self._translate_rows(long, strategy, batch_tokens).items():
            found[number] = _mark_ended(shorter, found[number])
        blank = Translation("", 0.0, (), False)
        return [with_alternatives(found[number]) if number in found else blank for number in range(len(texts))]

    @property
    def target_languages(self) -> tuple[str, ...]:
        return tuple(target_controls(self.tokenizer.source.controls))

    def check_search(self, strategy: DecodingStrategy, *, glossary: GlossaryLike | None = None) -> None:
        """Refuse what CTranslate2 cannot do, or does differently."""
        check_search(strategy, glossary=glossary)

    def check_mbr(self) -> None:
        """Refuse `mbr`."""
        refuse_mbr()

    def into(self, to: str | None) -> Self:
        """This engine for one target language; both share the model."""
        controls = controls_for_language(self.tokenizer, to, self.target_lang, self.directions, self.source_lang)
        if controls == self.tokenizer.controls:
            return self
        other = copy.copy(self)
        other.tokenizer = self.tokenizer.with_controls(*controls)
        return other

    def _translate_rows(self, rows: Mapping[int, EngineRow], strategy: Beam,
                        batch_tokens: int | None) -> dict[int, list[Translation]]:
        """The translations of rows, by their numbers, the best first."""
        groups = defaultdict[int, list[int]](list)
        for number, row in rows.items():
            groups[row.limit].append(number)
        options = {"beam_size": strategy.beams, "num_hypotheses": strategy.nbest,
                   "min_decoding_length": strategy.min_length,
                   "length_penalty": LENGTH_PENALTIES[str(strategy.length_penalty)],
                   "no_repeat_ngram_size": strategy.no_repeat_ngram_size or 0}
        # All groups are submitted before the first result is awaited: the longest first, so that no thread ends late.
        tokens = self.batch_tokens[strategy.beams > 1] if batch_tokens is None else whole_number(
            "batch_tokens", batch_tokens, 1)
        submitted = [(numbers, self._submit([rows[number] for number in numbers], limit, tokens, options))
                     for limit, numbers in sorted(groups.items(), reverse=True)]
        return {number: self._translations(one.result(), len(rows[number].prefix), strategy)
                for numbers, results in submitted for number, one in zip(numbers, results, strict=True)}

    def _max_length(self, source_length: int, strategy: DecodingStrategy) -> int:
        """The maximum number of tokens of a translation."""
        if strategy.max_length is not None:
            return min(whole_number("max_length", strategy.max_length, 1), self.positions - 1)  # the start has one too
        rounded = -(-source_length // LENGTH_STEP) * LENGTH_STEP
        return min(max(LENGTH_FACTOR * rounded + EXTRA_LENGTH, strategy.min_length), self.positions - 1)

    def _submit(self, rows: Sequence[EngineRow], limit: int, tokens: int, options: dict[str, Any]) -> list[Any]:
        """Futures of the translations of rows, of at most `limit` tokens, the end token included."""
        names = self.names.source
        prefixes = [[self.names.target[id_] for id_ in row.prefix] for row in rows]
        size = _batch_size(rows, tokens, self.threads)
        return self.inner.translate_batch(
            [[names[id_] for id_ in row.source] for row in rows], prefixes if any(prefixes) else None,
            max_batch_size=size, batch_type="examples", asynchronous=True, max_input_length=0,
            max_decoding_length=limit, end_token=[*self.special.end], return_end_token=True, return_scores=True,
            suppress_sequences=self.forbidden or None, **options)

    def _translations(self, result: Any, prefix_length: int, strategy: Beam) -> list[Translation]:
        """All hypotheses of a result, the best first."""
        translations = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            ids = [self.ids[piece] for piece in pieces]
            cut = not ids or ids[-1] not in self.special.end
            if strategy.length_penalty == "mean":  # its mean counts the tokens of the prefix, but not their scores
                score *= len(ids) / max(1, len(ids) - prefix_length)
            ids = ids if cut else ids[:-1]
            translations.append(Translation(self.tokenizer.target.decode(ids), score, tuple(ids), cut))
        return translations


def open_ctranslate2(model: str | os.PathLike[str], export: str | os.PathLike[str] | None = None, *,
                     quantization: str = "float32", threads: int | None = None, device: str = "cpu",
                     report: Callable[[str], None] = lambda message: None) -> CTranslate2Engine:
    """The engine of the translator in a model folder.

    Args:
        export: the folder of its export. By default it is `ctranslate2` in the model folder, and is made there if it
            is missing, or of another model or quantization.
        quantization: the quantization of an export that is made here.
        report: called with a message before an export is made, which takes a while.
    """
    translator = load(model)
    if not isinstance(translator, Translator):
        raise ValueError(f"{model}: the engine for CTranslate2 needs a translator, but this is a "
                         f"{type(translator).__name__}.")
    identity = exporting.model_identity(model)
    if export is not None:
        if _read_record(Path(export)).get("model") != identity:
            raise ValueError(f"{export} is not an export of {model}, or the model has changed since. Export it again: "
                             f"regard export {model} --to ctranslate2 -o FOLDER")
        return CTranslate2Engine(translator, export, threads=threads, device=device)
    folder = Path(model) / EXPORT_FOLDER
    known = _read_record(folder) if folder.exists() else {}
    if (known.get("model"), known.get("quantization")) != (identity, quantization):
        ctranslate2.check_supported(translator.config)  # before the message that an export begins
        report(f"Exporting the model to CTranslate2 ({quantization}) in {folder}, once.")
        exporting.export(translator, "ctranslate2", folder, quantization=quantization, origin=identity)
    return CTranslate2Engine(translator, folder, threads=threads, device=device)


def check_search(strategy: DecodingStrategy, *, glossary: GlossaryLike | None = None) -> None:
    """Refuse what CTranslate2 cannot do, or does differently, for any model."""
    if not isinstance(strategy, Beam):
        raise _unsupported("sampling", "in CTranslate2, a sample depends on the other texts of the batch")
    if glossary is not None:
        raise _unsupported("glossary", "the search of CTranslate2 cannot enforce terms")
    if strategy.coverage_penalty is not None:
        raise _unsupported("coverage_penalty", "CTranslate2 computes it differently")
    if strategy.num_beam_groups > 1:
        raise _unsupported("num_beam_groups", "CTranslate2 has no diverse beam search")
    if strategy.length_penalty not in LENGTH_PENALTIES:
        raise checks.wrong("length_penalty", '"none" or "mean" with CTranslate2', repr(strategy.length_penalty))


def refuse_mbr() -> None:
    """Refuse minimum Bayes risk, which needs the probabilities of an n-best list."""
    raise _unsupported("mbr", "CTranslate2 returns no probabilities of an n-best list")


def _batch_size(rows: Sequence[EngineRow], tokens: int, threads: int) -> int:
    """The number of rows of a batch: about equal batches of at most `tokens` tokens, the same number for each thread.

    So no thread waits at the end for one with a large batch.
    """
    largest = max(1, tokens // max(1, *(len(row.source) for row in rows)))
    batches = -(-len(rows) // (largest * threads)) * threads
    return -(-len(rows) // batches)


def _mark_ended(found: Sequence[Translation], longer: Sequence[Translation]) -> list[Translation]:
    """Translations of the maximum length; those that ended in a longer search are not marked as truncated."""
    ended = {one.ids: one for one in longer if not one.cut}
    return sorted((ended.get(one.ids, one) for one in found), key=lambda one: -one.score)


def _core_count() -> int:
    """The number of cores that this process may use, or that the machine has where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _unsupported(option: str, why: str) -> ValueError:
    """The error for an option that CTranslate2 does not support; the caller raises it."""
    return checks.wrong(option, "left out with CTranslate2", "given",
                        f"{why[0].upper()}{why[1:]}. The engine \"torch\" supports it.")


def _read_record(folder: Path) -> dict[str, Any]:
    """The export.json of an export for CTranslate2; a FolderError if the folder is damaged."""
    record: dict[str, Any] = json.loads(folders.load(folder, lambda saved: saved.read_text(exporting.RECORD_FILE)))
    if record["target"] != "ctranslate2":
        raise ValueError(f"{folder}: this is an export for {record['target']}, not for CTranslate2.")
    return record
