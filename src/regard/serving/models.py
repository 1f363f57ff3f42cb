"""Which models are served: their folders, their directions, their engines, and how they are reloaded.

    catalog = ModelCatalog.load([parse_model("en-fr=models/one"), parse_model("models/two")], device="cpu")
    catalog.route("en", "fr")            the model of a direction; a ValueError lists those that are served
    catalog.identify("Bonjour")          [("fr", 0.98), ("en", 0.02)], among the languages that are served

Every model has an engine (`regard.serving.engine`), which runs its searches in a thread, and a second set of modules
with the same weights for alignments and traces (`ServedModel.inspector`). Those record attention, and so must not share
modules with a running search. A model for several languages serves all directions that it was trained on.

Only engines compute with several threads. OpenMP keeps a pool of threads for each thread that ever used several, and
with more threads than cores in all pools together, every one of them sleeps between two operations instead of waiting
for the next: a search took twice as long.
"""

import copy
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from regard import checks
from regard.data.languages import LanguagePair, language_name, normalize_code, parse_pair
from regard.inspection.trace_format import MeasuredHeads
from regard.serving.engine import ServingEngine
from regard.tasks.completer import Completer
from regard.tasks.heads import stored_heads
from regard.tasks.load import load
from regard.tasks.search import Beam
from regard.tasks.translator import Translator
from regard.training.threads import torch_threads

IDENTIFIED_CHARACTERS = 2000
"""Characters of a text from which its language is identified."""
AUTO = "auto"
MakeEngine = Callable[[Translator | Completer], ServingEngine]


class ModelArgument(NamedTuple):
    """What a user named: a folder, and the direction if it was given."""

    folder: str
    pair: LanguagePair | None


def parse_model(text: str) -> ModelArgument:
    """The model in "en-fr=FOLDER" or "FOLDER". A folder of that very name is a folder."""
    pair, equals, folder = text.partition("=")
    if not equals or os.path.isdir(text):
        return ModelArgument(text, None)
    if not folder:
        raise checks.wrong("MODEL", "a folder, or en-fr=FOLDER", repr(text))
    return ModelArgument(folder, parse_pair(pair, "MODEL"))


@dataclass
class ServedModel:
    """A model with its engine; a reload replaces the task, the inspector and the heads."""

    name: str
    argument: ModelArgument
    task: Translator | Completer
    pairs: tuple[LanguagePair, ...]
    """The directions of a translator; none for a language model."""
    engine: ServingEngine
    inspector: Translator | Completer
    """The same task with modules of its own and the same weights; used by one thread at a time, under `lock`."""
    heads: MeasuredHeads | None = None
    """What the folder says of its heads, for the pages of attention."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(one.numel() for one in self.task.model.parameters())

    @property
    def attends(self) -> bool:
        """Whether its translations can be aligned."""
        return isinstance(self.task, Translator) and self.task.attends


class ServedDirection(NamedTuple):
    """One of the directions that a model translates."""

    model: ServedModel
    pair: LanguagePair

    @property
    def to(self) -> str | None:
        """The target language as `Translator.into` takes it: None for a model that has only one."""
        task = self.model.task
        return self.pair.target if isinstance(task, Translator) and task.target_languages else None

    def inspector(self) -> Translator:
        """The translator for alignments and traces; used under the lock of the model."""
        found = self.model.inspector
        assert isinstance(found, Translator)
        return found.into(self.to)


class ModelCatalog:
    """The models of a server, by direction and by name."""

    def __init__(self, models: Sequence[ServedModel], device: str = "cpu") -> None:
        self.models, self.device = tuple(models), device
        self._identifier: Any = None
        self._index()

    @classmethod
    def load(cls, arguments: Sequence[ModelArgument], make_engine: MakeEngine = ServingEngine, *,
             device: str = "cpu") -> "ModelCatalog":
        """Load the models and start their engines; a ValueError says what is wrong with a folder."""
        models = list[ServedModel]()
        for argument in arguments:
            task, pairs = _load_task(argument, device)
            name = _unused_name(os.path.basename(os.path.realpath(argument.folder)) or "model",
                                [one.name for one in models])
            inspector = _inspector(task)  # before the engine changes modules
            heads = _read_heads(argument)
            models.append(ServedModel(name, argument, task, pairs, make_engine(task), inspector, heads))
        return cls(models, device)

    def _index(self) -> None:
        """Tables for routing; the first model of a direction serves it."""
        directions = dict[LanguagePair, ServedDirection]()
        for model in self.models:
            for pair in model.pairs:
                directions.setdefault(pair, ServedDirection(model, pair))
        self.directions = directions
        self.completers = {model.name: model for model in self.models if isinstance(model.task, Completer)}
        self.codes = list(dict.fromkeys(code for pair in self.directions for code in pair))
        self._identifier = _make_identifier(self.codes)

    @property
    def languages(self) -> list[dict[str, Any]]:
        """Every language with its name and the languages that it can be translated into, which may be none."""
        return [{"code": code, "name": language_name(code),
                 "targets": [pair.target for pair in self.directions if pair.source == code]} for code in self.codes]

    @property
    def sources(self) -> list[str]:
        """The codes of the languages that are translated."""
        return list(dict.fromkeys(pair.source for pair in self.directions))

    def route(self, source: str, target: str) -> ServedDirection:
        """The model of a direction; a ValueError lists those that are served."""
        return find_direction(source, target, self.directions)

    def directions_of(self, name: str) -> dict[LanguagePair, ServedDirection]:
        """The directions of the model of this name; a ValueError lists the names that there are."""
        translators = {model.name: model for model in self.models if model.pairs}
        if name not in translators:
            raise checks.wrong("model", f"one of {', '.join(translators)}", f"{name!r:.80}")
        return {pair: ServedDirection(translators[name], pair) for pair in translators[name].pairs}

    def default_pair(self) -> LanguagePair | None:
        """The direction of the first translator."""
        return next(iter(self.directions), None)

    def identify(self, text: str) -> list[tuple[str, float]]:
        """The served languages with their probabilities, the most probable first."""
        if len(self.codes) < 2 or self._identifier is None:
            return [(code, 1.0 if len(self.codes) == 1 else 0.0) for code in self.codes]
        by_language = dict(self._identifier.rank(text[:IDENTIFIED_CHARACTERS]))
        shares = {code: by_language.get(code.partition("-")[0], 0.0) for code in self.codes}
        for code in self.codes:  # codes of one language, pt and pt-BR, share its probability
            shares[code] /= sum(other.partition("-")[0] == code.partition("-")[0] for other in self.codes)
        return sorted(shares.items(), key=lambda item: -item[1])

    def identify_source(self, text: str, target: str,
                        among: Mapping[LanguagePair, ServedDirection] | None = None) -> tuple[str, float]:
        """The most probable language that can be translated into the target, by default by any model."""
        directions = self.directions if among is None else among
        goal = _match(target, (pair.target for pair in directions))
        ranked = self.identify(text)
        for code, share in ranked:
            if LanguagePair(code, goal) in directions:
                return code, share
        return (ranked[0] if ranked else ("en", 0.0))

    def reload(self) -> list[str]:
        """Load all folders again. New requests use the new models; a folder that cannot be loaded keeps the old one.

        Returns a message for each folder that failed.
        """
        problems = []
        for model in self.models:
            try:
                task, pairs = _load_task(model.argument, self.device)
                if type(task) is not type(model.task):
                    raise ValueError(f"{model.argument.folder}: The model is now of another kind. Restart the server.")
            except (ValueError, OSError) as error:
                problems.append(str(error))
                continue
            inspector, heads = _inspector(task), _read_heads(model.argument)
            model.engine.replace(task)
            with model.lock:
                model.task, model.pairs, model.inspector, model.heads = task, pairs, inspector, heads
        self._index()
        return problems

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Stop the engines."""
        for model in self.models:
            model.engine.close(drain=drain, timeout=timeout)


@torch_threads(1)
def _load_task(argument: ModelArgument, device: str) -> tuple[Translator | Completer, tuple[LanguagePair, ...]]:
    """The task of a folder and its directions; one `search` warms it up, so that the first request is not slow."""
    task = load(argument.folder, device=device)
    if not isinstance(task, Translator | Completer):
        raise ValueError(f"{argument.folder}: Only translators and language models are served, and this model is a "
                         f"{type(task).__name__}.")
    if task.tokenizer is None:
        raise ValueError(f"{argument.folder}: The model has no tokenizer, so it cannot read text.")
    if isinstance(task, Completer):
        if argument.pair is not None:
            raise ValueError(f"{argument.folder}: A language model has no direction: leave out {argument.pair}=.")
        return task, ()
    pairs = _pairs(task, argument)
    try:
        chosen = task.into(pairs[0].target if task.target_languages else None)
    except ValueError as error:  # a direction that the user named, and the model does not have
        raise ValueError(f"{argument.folder}: {error}") from None
    chosen.search(["."], Beam(beams=2, max_length=4))
    return task, pairs


def _pairs(task: Translator, argument: ModelArgument) -> tuple[LanguagePair, ...]:
    """The directions of a translator: the one that the user named, or those that its folder tells."""
    if argument.pair is not None:
        return (argument.pair,)
    if task.directions:
        return task.directions
    if task.source_lang is None or task.target_lang is None:
        raise ValueError(f"{argument.folder}: The folder does not say its languages. Name them: "
                         f"regard serve en-fr={argument.folder}")
    return (LanguagePair(task.source_lang, task.target_lang),)


def _inspector(task: Translator | Completer) -> Translator | Completer:
    """A copy of a task with modules of its own, and with the same tensors."""
    tensors = [*task.model.parameters(), *task.model.buffers()]
    found = copy.copy(task)
    found.model = copy.deepcopy(task.model, {id(one): one for one in tensors})
    found.model.eval()
    return found


def _read_heads(argument: ModelArgument) -> MeasuredHeads | None:
    """The report on heads in the folder of a model. One that cannot be read is logged; the model is served without it.
    """
    logger = logging.getLogger("regard.serving")
    return stored_heads(argument.folder, lambda note: logger.warning("heads not read", extra={"problem": note}))


def _unused_name(name: str, taken: Iterable[str]) -> str:
    names = {*taken}
    return next(one for one in [name, *(f"{name}-{number}" for number in range(2, len(names) + 3))]
                if one not in names)


def find_direction(source: str, target: str,
                    directions: Mapping[LanguagePair, ServedDirection]) -> ServedDirection:
    """The direction that a client means; a ValueError lists those that there are."""
    wanted = LanguagePair(_match(source, (pair.source for pair in directions)),
                          _match(target, (pair.target for pair in directions)))
    if wanted not in directions:
        known = ", ".join(map(str, directions)) or "none"
        raise ValueError(f"No model translates from {source!r:.40} to {target!r:.40}. Available directions: {known}.")
    return directions[wanted]


def _match(given: str, known: Iterable[str]) -> str:
    """The served code that a client means: the same, or one of the same language (en-GB for en)."""
    codes = list(dict.fromkeys(known))
    code = normalize_code(given) or given
    if code in codes:
        return code
    language = code.partition("-")[0]
    return next((one for one in codes if one == language), None) or next(
        (one for one in codes if one.partition("-")[0] == language), code)


@functools.cache
def _load_identifier() -> Any:
    """The identifier of all languages, which takes most of a second to load."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _make_identifier(codes: Sequence[str]) -> Any:
    """An identifier of these languages; None if fewer than two of them are known to it."""
    identifier = copy.copy(_load_identifier())
    known = {code.partition("-")[0] for code in codes} & set(identifier.labels)
    if len(known) < 2:
        return None
    identifier.set_languages(known)
    return identifier
