"""Translating with another engine than torch: the same texts in, the same `Translation`s out.

    engine = opened("model")           the export is made at the first use, in model/ctranslate2
    engine.translate(["Two dogs."])    as `Translator.translate`

CTranslate2 computes the model and searches; cutting texts into tokens, batches and joining are ours. What is different:
its beam search ends when as many translations have ended as there are beams, where ours goes on while a better one can
come; a score is that of its search, in which what is never written has no probability at all; and a limit that is not
given follows from the length of a source rounded up, so that sentences of like lengths go together. What comes of a
text does not depend on the others. It does not know files of text.
"""

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from regard import checks
from regard.data.doctor.characters import is_blank
from regard.decoding.rules import whole
from regard.storage import folder as folders
from regard.storage.ctranslate2 import spec
from regard.storage.ctranslate2 import writing as ctranslate2
from regard.tasks import comparing, exporting
from regard.tasks.loading import load
from regard.tasks.task import check_lengths
from regard.tasks.texts import as_texts
from regard.tasks.writing import FACTOR, LONGER, Translation, Translator

PLACE = "ctranslate2"
"""Where the export of a model is kept, in its folder."""
PENALTIES = {"none": 0.0, "mean": 1.0}
STEP = 16
"""Sources are as long as the next multiple of it, where the limit is reckoned."""
TOKENS = 2048
"""Of a batch, those that fill it up among them."""


class CTranslate2Engine:
    """A translator that CTranslate2 runs.

    Args:
        translator: whose export it is; its tokenizer and special ids are used, and not its model.
        folder: of the export.
        threads: how many threads compute; all processors where not given.
        device: "cpu" or "cuda".
    """

    def __init__(self, translator: Translator, folder: str | os.PathLike[str], *, threads: int | None = None,
                 device: str = "cpu") -> None:
        record = _record(Path(folder))
        self.tokenizer, self.special = translator.pair_tokenizer(), translator.special
        self.names, self.positions = exporting.names(translator), ctranslate2.room(translator.config)
        self.ids = {name: id_ for id_, name in enumerate(self.names.target)}
        self.never = [[self.names.target[id_]] for id_ in comparing.ends(translator).never]
        count = whole("threads", threads, 1) if threads is not None else len(os.sched_getaffinity(0))
        compute = ctranslate2.QUANTIZATIONS[record["quantization"]] if device == "cpu" else "default"
        # One thread each for several batches is faster than several threads for one.
        self.inner = spec.package().Translator(str(folder), device=device, compute_type=compute, inter_threads=count,
                                               intra_threads=1)

    @overload
    def translate(self, texts: str, *, beams: int = 5, nbest: int = 1,  # type: ignore[overload-overlap]
                  limit: int | None = None, length_penalty: "str | float" = "mean") -> Translation: ...
    @overload
    def translate(self, texts: Sequence[str], *, beams: int = 5, nbest: int = 1, limit: int | None = None,
                  length_penalty: "str | float" = "mean") -> list[Translation]: ...
    def translate(self, texts: str | Sequence[str], *, beams: int = 5, nbest: int = 1, limit: int | None = None,
                  length_penalty: "str | float" = "mean") -> Translation | list[Translation]:
        """The translation of a text, or of each of several in their order; arguments as for `Translator.translate`.

        Of length penalties there are "none" and "mean".
        """
        if length_penalty not in PENALTIES:
            raise checks.wrong("length_penalty", '"none" or "mean", for CTranslate2', repr(length_penalty))
        if whole("nbest", nbest, 1) > whole("beams", beams, 1):
            raise checks.wrong("nbest", f"at most the beams, {beams}", nbest)
        given = as_texts("texts", texts)
        sources = self.tokenizer.source_ids(given)
        check_lengths("texts", sources, self.positions)
        groups = defaultdict[int, list[int]](list)
        for number, text in enumerate(given):
            if not is_blank(text):
                groups[self._limit(len(sources[number]), limit)].append(number)
        options = {"beam_size": beams, "num_hypotheses": nbest, "length_penalty": PENALTIES[str(length_penalty)]}
        # All groups are asked for before any is waited for: the longest first, so that no thread has one at the end.
        asked = [(numbers, self._asked([sources[number] for number in numbers], most, options))
                 for most, numbers in sorted(groups.items(), reverse=True)]
        results = [Translation("", 0.0, (), False)] * len(given)
        for numbers, waiting in asked:
            for number, one in zip(numbers, waiting, strict=True):
                results[number] = self._translation(one.result())
        return results[0] if isinstance(texts, str) else results

    def _limit(self, length: int, limit: int | None) -> int:
        """How many tokens the translation of a source may have."""
        if limit is not None:
            return min(whole("limit", limit, 1), self.positions - 1)  # the start has a position too
        rounded = -(-length // STEP) * STEP
        return min(FACTOR * rounded + LONGER, self.positions - 1)

    def _asked(self, sources: list[list[int]], limit: int, options: dict[str, Any]) -> list[Any]:
        """What is to come of each source."""
        names = self.names.source
        return self.inner.translate_batch(
            [[names[id_] for id_ in source] for source in sources], max_batch_size=TOKENS, batch_type="tokens",
            asynchronous=True, max_input_length=0, max_decoding_length=limit, min_decoding_length=0,
            end_token=[*self.special.end], return_end_token=True, return_scores=True,
            suppress_sequences=self.never or None, **options)

    def _translation(self, found: Any) -> Translation:
        """The best that was found, with the others beside it."""
        made = []
        for pieces, score in zip(found.hypotheses, found.scores, strict=True):
            ids = [self.ids[piece] for piece in pieces]
            cut = not ids or ids[-1] not in self.special.end
            ids = ids if cut else ids[:-1]
            made.append(Translation(self.tokenizer.target.decode(ids), score, tuple(ids), cut))
        best, *others = made
        return replace(best, alternatives=tuple(others))


def opened(model: str | os.PathLike[str], export: str | os.PathLike[str] | None = None, *,
           quantization: str = "float32", threads: int | None = None, device: str = "cpu") -> CTranslate2Engine:
    """The engine of a translator in a folder.

    Args:
        export: the folder of its export. Without it that is `ctranslate2` in the model's folder, and is made there
            where it is missing, or of another model or quantization.
        quantization: of an export that is made here.
    """
    translator = load(model)
    if not isinstance(translator, Translator):
        raise checks.wrong(str(model), "a translator", f"a {type(translator).__name__}")
    origin = exporting.origin(model)
    if export is not None:
        if _record(Path(export)).get("model") != origin:
            raise checks.wrong(str(export), f"an export of {model}", "of another model, or of one that was changed",
                               f"Make it anew: regard export {model} --to ctranslate2 -o FOLDER.")
        return CTranslate2Engine(translator, export, threads=threads, device=device)
    place = Path(model) / PLACE
    known = _record(place) if place.exists() else {}
    if (known.get("model"), known.get("quantization")) != (origin, quantization):
        exporting.export(translator, "ctranslate2", place, quantization=quantization, origin=origin)
    return CTranslate2Engine(translator, place, threads=threads, device=device)


def _record(folder: Path) -> dict[str, Any]:
    """What an export for CTranslate2 says of itself; a FolderError where it is not whole, or something else."""
    record: dict[str, Any] = json.loads(folders.load(folder, lambda saved: saved.read_text(exporting.RECORD)))
    if record["target"] != "ctranslate2":
        raise checks.wrong(str(folder), "an export for CTranslate2", f"one for {record['target']}")
    return record
