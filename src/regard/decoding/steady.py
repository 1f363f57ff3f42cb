"""Searches whose turns and steps are recorded: on a GPU, where Python is slower than the work that it asks for.

    run(model, given, request, search)        as `regard.decoding.queue.run`, and by it where nothing can be recorded

Prompts enter and leave as in `regard.decoding.queue`; between that, rows are written at a desk and on a board, whose
memory stays where it is, by two recordings: the turn of the search, and the step of the model. Python only asks whether
somebody has finished. Sizes are rounded up, so that few recordings serve many calls; those of a model are kept with it,
the last ones, as long as they hold a small part of the memory of the device, and as long as the model is what and where
it was (`regard.decoding.figure`).

Where kernels of our own can do it, `regard.decoding.swift` writes in their place: one recording a token, of fewer
kernels. What is here does the rest: other scores and mixers of attention, rules that read what is written.

`why_not` says in words why a search of a model does not run here: then it runs as everywhere. Numbers may differ from
those in the last digits, as they do between batches of different sizes.

Legend: F prompts that are written at once, W hypotheses of each, R = F·W rows of the state.
"""

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard import kernels
from regard.decoding import desk as desks
from regard.decoding import queue
from regard.decoding.boards import Kind, board_for, kind_of
from regard.decoding.desk import Desk
from regard.decoding.figure import Figure
from regard.decoding.queue import REFILLED, Course, Held, Result, Search, Share, shares
from regard.decoding.recording import Order, Recorder, Work, recorder
from regard.decoding.request import Request
from regard.decoding.sources import Given, memory_of
from regard.mixer import Siblings
from regard.models.contract import Writer
from regard.models.decoder import DecoderState

TOKENS, SOURCES = 64, 32
"""Capacities and lengths of sources are rounded up to multiples of these; a step reads keys in as large pieces."""
PART = 8
"""One part in so many of the memory of the device may be kept."""
SHRINKS = 4
"""Rows are written together until one prompt in so many is left: fewer rows are hardly faster on a GPU."""


def why_not(model: Writer, request: Request, search: object) -> str | None:
    """Why a search does not run here; None where it does. It says nothing of models that it has not started yet."""
    if request.device.type != "cuda":
        return "Python is fast enough for a CPU"
    if not isinstance(model, nn.Module):
        return "the model is none of ours"
    if torch.is_autocast_enabled("cuda"):
        return "under autocast weights are lowered anew at each step: model.bfloat16() lowers them once"
    if kind_of(search) is None:
        return "the search has groups, terms, coverage, chance, or rules and rankings of the user's"
    return None


@dataclass
class Place:
    """A desk, a board, and what was recorded with them."""

    desk: Any
    """A `Desk`, or one of `regard.decoding.swift`."""
    board: Any
    """A `Board`, or a `Ledger`."""
    tokens: Tensor
    """(R,): what is read first."""
    record: Recorder
    works: dict[Any, Work] = field(default_factory=dict)

    def work(self, name: Any, work: Work) -> Work:
        """The recording of this name, made where it is not there yet."""
        if name not in self.works:
            self.works[name] = self.record(work)
        return self.works[name]


@dataclass
class Places:
    """Those of one model, the last used last."""

    record: Recorder
    limit: int
    """Bytes that may be kept."""
    figure: Figure | None = None
    """Of the model; None where nobody looks whether it has changed."""
    kept: "OrderedDict[Any, Place]" = field(default_factory=OrderedDict)
    readers: "OrderedDict[Any, Any]" = field(default_factory=OrderedDict)
    """Of sources: see `regard.decoding.sourcing`."""
    lock: Any = field(default_factory=threading.RLock)
    """Of the thread that writes in them: they are the same memory for all."""
    order: Order = field(default_factory=Order)
    """Of streams, for the same reason."""
    answers: dict[str, str | None] = field(default_factory=dict)

    def answer(self, question: str, ask: Callable[[], str | None]) -> str | None:
        """Why something cannot be done with the model: asked once, where nobody has hooks in it or listens to it."""
        if self.figure is None or self.figure.is_touched():
            return ask()
        if question not in self.answers:
            self.answers[question] = ask()
        return self.answers[question]

    @contextmanager
    def entered(self, tensor: Tensor) -> Iterator[None]:
        """Work in them, on the device of a tensor: one thread and one stream after another."""
        with self.lock, torch.cuda.device_of(tensor), self.order(tensor.device):  # graphs are of the current device
            yield

    def find(self, key: Any, make: Callable[[], Place]) -> Place:
        """The one of this key, made where it is not there; older ones go where there is too much."""
        if key not in self.kept:
            self.kept[key] = make()
            while len(self.kept) > 1 and sum(place.desk.bytes for place in self.kept.values()) > self.limit:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        return self.kept[key]


KEPT: "weakref.WeakKeyDictionary[nn.Module, Places]" = weakref.WeakKeyDictionary()


class _Trusted(threading.local):
    """What one thread has looked at, and need not look at again for a while."""

    model: object = None
    places: Places | None = None


_TRUSTED = _Trusted()


@contextmanager
def unchanged(model: object) -> Iterator[None]:
    """Inside, nobody changes the model: whether it is what it was is asked once, and not for each part of a search."""
    before = _TRUSTED.model, _TRUSTED.places
    _TRUSTED.model, _TRUSTED.places = model, before[1] if before[0] is model else None
    try:
        yield
    finally:
        _TRUSTED.model, _TRUSTED.places = before


def places_of(model: nn.Module) -> Places:
    """Those of a model that is what and where it was; new ones otherwise."""
    if _TRUSTED.model is not model:
        return _places_now(model)
    _TRUSTED.places = _places_now(model) if _TRUSTED.places is None else _TRUSTED.places
    return _TRUSTED.places


def _places_now(model: nn.Module) -> Places:
    found = KEPT.get(model)
    if found is None or found.figure is None or not found.figure.fits():
        total = torch.cuda.get_device_properties(next(model.parameters()).device).total_memory
        found = KEPT[model] = Places(recorder(), total // PART, Figure(model))
    return found


def run(model: Writer, given: Given, request: Request, search: Search[Any, Result]) -> list[Result]:
    """The results of all prompts in their order, recorded where that can be."""
    if why_not(model, request, search) is not None:
        return queue.run(model, given, request, search)
    assert isinstance(model, nn.Module)
    return run_in(places_of(model), model, given, request, search)


def run_in(places: Places, model: Any, given: Given, request: Request, search: Search[Any, Result]) -> list[Result]:
    """The same, recorded in these places, on the device of the model; threads take turns."""
    found = dict[int, Result]()
    swiftly = _swift(places, model, request, search)
    if request.prompts:
        with places.entered(next(model.parameters())):
            for share in shares(request, search.width):
                course = Course(model, given, request, search, share)
                kind = SteadyCourse if swiftly is None else swiftly.SwiftCourse
                found |= kind(course, places).run()
    return [found[number] for number in range(len(found))]


def _swift(places: Places, model: Any, request: Request, search: Any) -> Any:
    """The module of searches by kernels of our own, where they can do it; None otherwise."""
    if kernels.why_not(request.device) is not None:
        return None
    from regard.decoding import swift  # which needs Triton

    why = places.answer("swift", lambda: swift.why_no_model(model)) or swift.why_no_search(search)
    return swift if why is None else None


@dataclass(frozen=True)
class SteadyCourse:
    """A search over a share."""

    course: Course[Any, Any]
    places: Places

    @property
    def share(self) -> Share:
        return self.course.share

    def run(self) -> dict[int, Any]:
        """The results by their numbers."""
        waiting, found = deque(self.share.numbers), dict[int, Any]()
        rows: Held[Any] | None = None
        while True:
            free = self.share.places - (0 if rows is None else len(rows.batch.numbers))
            if waiting and (rows is None or REFILLED * free >= self.share.places):
                if rows is None and self._may_begin():
                    numbers = self.course.next(waiting, free)
                    begun = self._begun(numbers, bool(waiting))
                    if begun is None:
                        waiting.extendleft(reversed(numbers))
                        return found | self.course.run_from(*self.course.entered(waiting, free), waiting)
                    rows = begun[0]
                    found |= begun[1]
                    continue
                others, _ = self.course.entered(waiting, free)
                rows = others if rows is None else self.course.joined(rows, others)
            if rows is None:
                return found
            if self._in_the_way(rows.state):
                prompts, prompt = self.course.request.prompts, self.course.request.prompt
                read_by = [len(prompts[prompt(number)]) + count
                           for number, count in zip(rows.batch.numbers, rows.batch.counts, strict=True)]
                return found | self.course.run_from(rows, read_by, waiting)
            rows, results = self._continued(rows, bool(waiting))
            found |= results

    def _may_begin(self) -> bool:
        """Whether prompts need not be read before: each is one token."""
        request = self.course.request
        return request.tries == 1 and all(len(request.prompts[number]) == 1 for number in self.share.numbers)

    def _in_the_way(self, state: Any) -> bool:
        """Whether something is asked of the model that a desk cannot do. It asks the device."""
        if desks.why_not(self.course.model, state) is not None:
            return True
        contexts = [block.context for block in state.stack.blocks if block.context is not None]
        return any(context.key.shape[-2] == 0 or (context.lengths is not None and bool((context.lengths == 0).any()))
                   for context in contexts[:1])

    def _started(self, numbers: list[int]) -> Any:
        """The state of prompts of which nothing is read."""
        memory = memory_of(self.course.given, numbers)
        return self.course.model.start(memory, rows=len(numbers), capacity=self.share.capacity)

    def _begun(self, numbers: list[int], waiting: bool) -> tuple[Held[Any] | None, dict[int, Any]] | None:
        """Prompts of one token that nobody has read: the desk reads them, in a step that is recorded.

        None where something is in the way.
        """
        course, request, state = self.course, self.course.request, self._started(numbers)
        if self._in_the_way(state):
            return None
        prompts = torch.tensor([request.prompts[number][0] for number in numbers], device=request.device)
        width = course.search.width
        each = torch.arange(len(numbers), device=request.device).repeat_interleave(width)
        if width > 1:
            state = state.pick(Siblings(each, width, 1, each[::width]))
        place = self._place(numbers, state)
        filled = place.desk.load(state)
        place.board.load(course.search.first(numbers, None), course.search)
        place.tokens.zero_()
        place.tokens[:len(each)] = prompts[each]
        place.work("begin", lambda: place.desk.step(None, place.tokens, min(TOKENS, place.desk.capacity)))()
        return self._written(place, filled + 1, waiting)

    def _continued(self, rows: Held[Any], waiting: bool) -> tuple[Held[Any] | None, dict[int, Any]]:
        """Rows that have come to here go on at a desk."""
        place = self._place(rows.batch.numbers, rows.state)
        filled = place.desk.load(rows.state)
        place.desk.put_logits(rows.logits)
        place.board.load(rows.batch, self.course.search)
        return self._written(place, filled, waiting)

    def _written(self, place: Place, filled: int, waiting: bool) -> tuple[Held[Any] | None, dict[int, Any]]:
        """Some turns, until enough have finished: what goes on, and the results of the others."""
        desk, board = place.desk, place.board
        while True:
            place.work("turn", lambda: board.choose(desk.logits))()
            is_open = board.settle(desk.logits)
            if is_open is not None and not any(is_open):
                board.commit()
                break
            size = min(rounded(filled + 1, TOKENS), desk.capacity)
            place.work(size, lambda size=size: desk.step(*board.commit(), size))()  # type: ignore[misc]
            filled = min(filled + 1, desk.capacity)
            if is_open is None:
                continue
            if self._may_part(is_open, waiting):
                break
        return self._parted(place, is_open, filled)

    def _may_part(self, is_open: list[bool], waiting: bool) -> bool:
        """Whether so many have finished that the others go on without them."""
        left, most = sum(is_open), self.share.places
        few = SHRINKS * left <= len(is_open) or (waiting and REFILLED * (most - left) >= most)
        return left == 0 or (left < len(is_open) and few)

    def _parted(self, place: Place, is_open: list[bool], filled: int) -> tuple[Held[Any] | None, dict[int, Any]]:
        """What goes on, and the results of the others."""
        desk, board = place.desk, place.board
        gone = [number for number, still in enumerate(is_open) if not still]
        stay = [number for number, still in enumerate(is_open) if still]
        results = self._results(board, gone) if gone else {}
        if not stay:
            return None, results
        families = torch.tensor(stay, device=desk.positions.device)
        filled = min(filled, self.share.capacity)  # rows that had finished may have gone beyond it, these have not
        kept = desk.state(families, filled, self.share.capacity)
        return Held(board.batch(stay), kept, desk.logits[desk.rows(families)], None), results

    def _results(self, board: Any, gone: list[int]) -> dict[int, Any]:
        """Of those in these places of a board, who have finished."""
        return dict(self.course.search.results(board.batch(gone)))

    def _place(self, numbers: Sequence[int], state: DecoderState) -> Place:
        """Where these have room, rounded up."""
        search, kind = self.course.search, kind_of(self.course.search)
        families = 1 << (len(numbers) - 1).bit_length()
        capacity = rounded(self.share.capacity, TOKENS)
        context = state.stack.blocks[0].context
        sources = 0 if context is None else rounded(context.key.shape[-2], SOURCES)

        def make() -> Place:
            desk = Desk(self.course.model, state, families=families, width=search.width, capacity=capacity,
                        sources=sources)
            with torch.inference_mode(False):
                tokens = torch.zeros_like(desk.positions)
            return Place(desk, board_for(search, families, capacity, desk.logits.dtype), tokens, self.places.record)

        return self.places.find(_key(kind, families, capacity, sources, state), make)


def _key(kind: Kind | None, families: int, capacity: int, sources: int, state: DecoderState) -> Any:
    dtypes = tuple((block.mixer.key.dtype, block.mixer.key.shape[1:2]) for block in state.stack.blocks[:1])
    return kind, families, capacity, sources, dtypes


def rounded(count: int, step: int) -> int:
    return -(-count // step) * step
