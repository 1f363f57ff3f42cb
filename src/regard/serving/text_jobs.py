"""What each text of a request needs from a model: rows of searches, and how their hypotheses become its result.

    served = served_task(translator)
    jobs = served.jobs(texts, strategy)     checked and tokenized; a ValueError names what is wrong
    rows = jobs[0].advance(None)            the rows of its first search
    rows = jobs[0].advance(hypotheses)      those of the next search; none when `job.result` is there

Most texts need one row of one search. A text with a glossary needs several searches, each of which depends on the ones
before. Rows with equal `group`s can share a batch: it has everything that is the same for all rows of a search, while
maximum lengths, seeds, prefixes and terms may differ. This module knows neither threads nor queues.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from regard import checks
from regard.decoding import gpu_live_search
from regard.decoding.beam import BeamSearch
from regard.decoding.constraints import TermAutomaton
from regard.decoding.gpu_live_search import GpuLiveSearch
from regard.decoding.live_search import LiveSearch
from regard.decoding.recompute import honour_hooks
from regard.decoding.request import Hypothesis, Sources
from regard.decoding.sampling import TokenSampler, TokenSearch, seed_tensor
from regard.models.contract import GenerativeModel, Memory
from regard.tasks.completer import Completer, Completion, make_completion, settled_text
from regard.tasks.glossary import TranslationRow
from regard.tasks.search import Beam, DecodingStrategy, Sampling, with_alternatives
from regard.tasks.task import as_texts, max_positions
from regard.tasks.translator import GlossaryLike, Translation, Translator, with_prefix

MIN_CAPACITY = 256
"""Storage of a row, in tokens, is a power of two, at least this."""


@dataclass(eq=False)
class SearchRow:
    """A row of a search: a source with a prefix, or a prompt."""

    job: "TextJob"
    content: Any
    """A `TranslationRow`, or the ids of a prompt."""
    prompt: list[int]
    max_length: int
    capacity: int
    """Tokens of storage for each hypothesis."""
    strategy: DecodingStrategy
    """Without what may differ between the rows of a batch."""
    seed: int | None
    automaton: TermAutomaton | None
    """The automaton of its required terms. It numbers its states as it meets them, so a row keeps its own."""
    separate: bool = False
    """Whether it cannot run in a batch of CUDA graphs, so that it has a batch with its equals."""
    prefix_log_probabilities: Sequence[float] = ()
    written: dict[int, list[int]] = field(default_factory=dict)
    """The tokens so far of each sample, of a row that is streamed."""

    @property
    def samples(self) -> int:
        """The number of samples; 1 for beam search."""
        return 1 if isinstance(self.strategy, Beam) else self.strategy.rows_per_text

    @property
    def tokens(self) -> int:
        """The tokens of storage that it takes."""
        return self.strategy.hypotheses_per_text * self.capacity

    @property
    def group(self) -> tuple[DecodingStrategy, bool, bool, int]:
        """Rows with equal groups can share a batch. Terms slow a batch down, so rows with terms have their own."""
        return self.strategy, self.automaton is not None, self.separate, self.capacity


SearchRows = Generator[tuple[list[Any], DecodingStrategy], list[list[Hypothesis]], list[list[Hypothesis]]]


class TextJob:
    """One text on its way to its result."""

    def __init__(self, served: "ServedTask", steps: SearchRows | None,
                 finish: Callable[[list[Hypothesis]], Translation | Completion], before: Sequence[int] = ()) -> None:
        """Without searches, for a blank text, it has its result. `before` has the ids of a prompt."""
        self.served, self.steps, self.finish, self.before = served, steps, finish, before
        self.result: Translation | Completion | None = finish([]) if steps is None else None
        self.started = False
        """Whether a row of it has joined a batch."""
        self.generated = 0
        """The number of tokens of the result and its alternatives."""
        self._rows, self._answers = list[SearchRow](), dict[int, list[Hypothesis]]()

    def advance(self, answers: list[list[Hypothesis]] | None) -> list[SearchRow]:
        """Begin with None, and continue with the hypotheses for the last rows; returns the rows of the next search."""
        if self.steps is None:
            return []
        try:
            rows, strategy = next(self.steps) if answers is None else self.steps.send(answers)
        except StopIteration as stopped:
            (hypotheses,) = stopped.value
            self.result = self.finish(hypotheses)
            self.generated = sum(len(one.log_probabilities) for one in hypotheses)
            return []
        self._rows, self._answers = [self.served.row(self, one, strategy) for one in rows], {}
        return self._rows

    def answer(self, row: SearchRow, hypotheses: list[Hypothesis]) -> list[SearchRow]:
        """Take the hypotheses for a row; after the last one, returns the rows of the next search."""
        self._answers[id(row)] = hypotheses
        if len(self._answers) < len(self._rows):
            return []
        return self.advance([self._answers[id(one)] for one in self._rows])

    def settled_text(self, row: SearchRow, sample: int) -> str:
        """The text of a sample so far that later tokens cannot change, only whole characters."""
        return self.served.settled_text(self, row, row.written[sample])


class ServedTask(ABC):
    """A task as the engine uses it."""

    model: GenerativeModel
    on_gpu: bool

    @abstractmethod
    def jobs(self, texts: Sequence[str], strategy: DecodingStrategy, *, prefix: str | Sequence[str] = "",
             glossary: GlossaryLike | None = None, to: str | None = None) -> list[TextJob]:
        """A job for each text, after all arguments were checked; a blank text has its result."""

    @abstractmethod
    def row(self, job: TextJob, content: Any, strategy: DecodingStrategy) -> SearchRow:
        """A row of a search."""

    @abstractmethod
    def encode(self, rows: Sequence[SearchRow]) -> Memory | None:
        """The encoded sources of rows that join a batch."""

    @abstractmethod
    def prepare(self, rows: list[SearchRow]) -> BeamSearch | TokenSearch:
        """The search for the rows of a batch, of which all have the same group."""

    @abstractmethod
    def answer(self, row: SearchRow, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """The hypotheses of a search as a job expects them."""

    @abstractmethod
    def settled_text(self, job: TextJob, row: SearchRow, written: Sequence[int]) -> str:
        """The text of these tokens that later ones cannot change."""

    def live_search(self, row: SearchRow) -> "LiveSearch[SearchRow] | GpuLiveSearch[SearchRow]":
        """A batch for rows like this one, without any."""
        model = honour_hooks(self.model)
        if self.on_gpu and not row.separate and gpu_live_search.why_not(model, self.prepare([row])) is None:
            return GpuLiveSearch(model, self.prepare, row.capacity)
        return LiveSearch(model, self.prepare, row.capacity)

    def capacity(self, needed: int) -> int:
        """The storage of a row that needs so many tokens."""
        limit = max_positions(getattr(self.model, "decoder", None))
        found = max(MIN_CAPACITY, 1 << (needed - 1).bit_length())
        return found if limit is None else min(found, limit)


class ServedTranslator(ServedTask):
    """A translator as the engine uses it."""

    def __init__(self, translator: Translator) -> None:
        self.task, self.model = translator, translator.model  # type: ignore[assignment]
        self.on_gpu = translator.device.type == "cuda"
        self._by_controls = dict[tuple[str, ...], Translator]()

    def jobs(self, texts: Sequence[str], strategy: DecodingStrategy, *, prefix: str | Sequence[str] = "",
             glossary: GlossaryLike | None = None, to: str | None = None) -> list[TextJob]:
        """A job for each text; that of a blank text has its result."""
        texts, task = as_texts("texts", texts), self._into(to)
        found = []
        inputs = task.translation_inputs(texts, strategy, prefix=prefix, glossary=glossary)
        for text, one in zip(texts, inputs, strict=True):
            steps = None if one is None else task.search_steps([one], strategy)
            found.append(TextJob(self, steps, partial(task.make_translation, text)))
        return found

    def _into(self, to: str | None) -> Translator:
        """The translator for a target language, which only differs in the control tokens of the source; made once."""
        found = self.task.into(to)
        return self._by_controls.setdefault(found.pair_tokenizer().controls, found)

    def row(self, job: TextJob, content: Any, strategy: DecodingStrategy) -> SearchRow:
        """A row of a search for a source."""
        source, max_length = content.source, self.task.room(content, strategy)
        inputs, fitted = self.task.search_inputs([content], self._sources([content]), strategy, [max_length])
        search = fitted.prepare(inputs)  # refuses what does not fit
        prompt = list(inputs.prompts[0])
        return SearchRow(job, content, prompt, max_length, self.capacity(max(len(prompt) + max_length, len(source))),
                         _shared(strategy), _seed(strategy, source), _automaton(search),
                         separate=self.on_gpu and bool(content.prefix or content.whole_words))

    def encode(self, rows: Sequence[SearchRow]) -> Memory | None:
        """The encoded sources; the rows get the log-probabilities of their prefixes."""
        contents = [row.content for row in rows]
        memory = self.task.encode_rows(contents)
        for row, logs in zip(rows, self.task.prefix_log_probabilities(contents, memory), strict=True):
            row.prefix_log_probabilities = logs
        return memory

    def prepare(self, rows: list[SearchRow]) -> BeamSearch | TokenSearch:
        """The search for these rows."""
        contents = [row.content for row in rows]
        inputs, strategy = self.task.search_inputs(contents, self._sources(contents), rows[0].strategy,
                                                   [row.max_length for row in rows])
        return _with_row_state(strategy.prepare(inputs), rows)

    def answer(self, row: SearchRow, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """The hypotheses with their prefix."""
        return with_prefix(row.content.prefix, row.prefix_log_probabilities, hypotheses)

    def settled_text(self, job: TextJob, row: SearchRow, written: Sequence[int]) -> str:
        """The translation so far."""
        return settled_text(self.task.pair_tokenizer().target, [], [*row.content.prefix, *written])

    def _sources(self, contents: Sequence[TranslationRow]) -> Sources:
        return Sources(len(contents), lambda some: self.task.encode_rows([contents[one] for one in some]))


class ServedCompleter(ServedTask):
    """A completer as the engine uses it."""

    def __init__(self, completer: Completer) -> None:
        self.task, self.model = completer, completer.model  # type: ignore[assignment]
        self.on_gpu = completer.device.type == "cuda"

    def jobs(self, texts: Sequence[str], strategy: DecodingStrategy, *, prefix: str | Sequence[str] = "",
             glossary: GlossaryLike | None = None, to: str | None = None) -> list[TextJob]:
        """A job for each prompt."""
        for name, value in (("prefix", prefix), ("glossary", glossary), ("to", to)):
            if value:
                raise checks.wrong(name, "left out, for a language model", "given")
        if not isinstance(strategy, DecodingStrategy):
            raise checks.wrong("strategy", "a Beam, or a Sampling", *checks.kind(strategy))
        self.task.check_eval_mode()
        return [TextJob(self, _one_search(ids, strategy), partial(self._completion, ids), ids)
                for ids in self.task.encode_prompts(as_texts("prompts", texts))]

    def row(self, job: TextJob, content: Any, strategy: DecodingStrategy) -> SearchRow:
        """A row of a search for a prompt."""
        (max_length,) = self.task.max_lengths([content], strategy)
        fitting = replace(strategy, max_length=max_length, min_length=min(strategy.min_length, max_length))
        fitting.prepare(self.task.search_inputs([content], [max_length]))  # refuses what does not fit
        return SearchRow(job, content, content, max_length, self.capacity(len(content) + max_length),
                         _shared(fitting), _seed(strategy, content), None)

    def encode(self, rows: Sequence[SearchRow]) -> Memory | None:
        """None: a language model has no sources."""
        return None

    def prepare(self, rows: list[SearchRow]) -> BeamSearch | TokenSearch:
        """The search for these rows."""
        inputs = self.task.search_inputs([row.content for row in rows], [row.max_length for row in rows])
        return _with_row_state(rows[0].strategy.prepare(inputs), rows)

    def answer(self, row: SearchRow, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """The hypotheses as they are."""
        return hypotheses

    def settled_text(self, job: TextJob, row: SearchRow, written: Sequence[int]) -> str:
        """The completion so far."""
        return settled_text(self.task.text_tokenizer(), job.before, written)

    def _completion(self, ids: Sequence[int], hypotheses: list[Hypothesis]) -> Completion:
        return with_alternatives([make_completion(self.task.text_tokenizer(), ids, one) for one in hypotheses])


def served_task(task: Translator | Completer) -> ServedTask:
    """A task as the engine uses it; a ValueError for a task that generates no text."""
    if isinstance(task, Translator):
        return ServedTranslator(task)
    if isinstance(task, Completer):
        return ServedCompleter(task)
    raise checks.wrong("task", "a Translator or a Completer", *checks.kind(task))


def can_stream(strategy: DecodingStrategy) -> bool:
    """Whether a search never revises a token: greedy search, or sampling."""
    return strategy.is_greedy if isinstance(strategy, Beam) else True


def _one_search(ids: list[int], strategy: DecodingStrategy) -> SearchRows:
    return (yield [ids], strategy)


def _shared(strategy: DecodingStrategy) -> DecodingStrategy:
    """A strategy without what may differ between the rows of a batch."""
    strategy = replace(strategy, max_length=None)
    return replace(strategy, seed=0) if isinstance(strategy, Sampling) else strategy


def _seed(strategy: DecodingStrategy, key: Sequence[int]) -> int | None:
    return strategy.seeds([key])[0] if isinstance(strategy, Sampling) else None


def _automaton(search: BeamSearch | TokenSearch) -> TermAutomaton | None:
    return search.terms[0] if isinstance(search, BeamSearch) and search.terms is not None else None


def _with_row_state(search: BeamSearch | TokenSearch, rows: Sequence[SearchRow]) -> BeamSearch | TokenSearch:
    """A search with the seeds and the term automata of its rows."""
    if isinstance(search, BeamSearch):
        automata = [row.automaton for row in rows if row.automaton is not None]
        return replace(search, terms=automata) if automata else search
    seeds = [row.seed for row in rows if row.seed is not None]
    if not seeds or not isinstance(search.choose, TokenSampler):
        return search
    return replace(search, choose=replace(search.choose, seeds=seed_tensor(seeds, search.request.device)))
