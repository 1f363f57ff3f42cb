"""What a task tells those who watch it: which tokens its model read and wrote, and how to read them once more.

    translation(task, text, source, found)     source, target, and what the decoder reads: the start, then the target
    completion(task, prompt, found)            the prompt and what follows it, as one text
    sequence(task, ids, text)                  a text, or ids alone, that were read
    image(task, pixels)                        an image in patches

What was written is read teacher-forced, all tokens at once, which gives the weights that were used: row i of a map of a
translation is the look from which token i was written. It knows models by their contract and makes no trace itself.

A reading is made where somebody watches, and only there (`Task.tell`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.pair import PairTokenizer
from regard.inspection.seen.again import Reading
from regard.inspection.seen.sides import About, Best, patches
from regard.inspection.trace.parts import Side, Written
from regard.inspection.watching.names import CROSS, places
from regard.models.contract import Tokens

if TYPE_CHECKING:  # tasks use this file
    from regard.tasks.task import Task

SOURCE, TARGET, READ, TEXT, WRITTEN, IMAGE = "source", "target", "read", "text", "written", "image"
BETWEEN = {"encoder.self": (SOURCE, SOURCE), "decoder.self": (TARGET, READ), "decoder.cross": (TARGET, SOURCE)}


class Found(Protocol):
    """What a search found."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def log_probabilities(self) -> Sequence[float]: ...
    @property
    def score(self) -> float: ...
    @property
    def cut(self) -> bool: ...


def translation(task: "Task", text: str | None, source: Sequence[int], found: Found, start: int) -> Reading:
    """A source and what was written for it, behind the token `start`."""
    both = task.tokenizer if isinstance(task.tokenizer, PairTokenizer) else None
    written = [*found.ids, *([] if found.cut else task.end()[:1])]
    given = [start, *written[:-1]]
    before, after = (None, None) if both is None else (both.source, both.target)
    sides = {SOURCE: _read(before, text, source), READ: Side(_pieces(after, given))}
    if written:  # else the limit left no room for anything
        sides[TARGET] = _written(after, found.ids, written)
    logs = tuple(found.log_probabilities[:len(written)])
    told = Written(TARGET, logs, found.score) if written and len(logs) == len(written) else None

    def again() -> None:
        memory = task.model.encode(_alone(task, source))  # type: ignore[operator]
        task.model.decode(_alone(task, given), memory)  # type: ignore[operator]

    return Reading(again, About(sides, BETWEEN, text or "", told, _best(task)))


def completion(task: "Task", prompt: Sequence[int], found: Found) -> Reading:
    """A prompt and what was written after it."""
    tokenizer = task.tokenizer if isinstance(task.tokenizer, Tokenizer) else None
    ids, written = [*prompt, *found.ids], [*found.ids, *([] if found.cut else task.end()[:1])]
    sides = {TEXT: _written(tokenizer, ids, ids)}
    logs = tuple(found.log_probabilities[:len(written)])
    told = Written(WRITTEN, logs, found.score) if written and len(logs) == len(written) else None
    if told is not None:
        sides[WRITTEN] = Side(_pieces(tokenizer, written))
    return Reading(lambda: task.model.decode(_alone(task, ids)),  # type: ignore[operator]
                   About(sides, {}, sides[TEXT].text or "", told))


def sequence(task: "Task", ids: Sequence[int], text: str | None = None) -> Reading:
    """Ids that were read; `text` is what they are of."""
    tokenizer = task.tokenizer if isinstance(task.tokenizer, Tokenizer) else None
    before = 0 if task.special.first is None else 1
    about = About({TEXT: _read(tokenizer, text, ids, before)}, {}, text or "")
    return Reading(lambda: task.model(_alone(task, ids)), about)


def image(task: "Task", pixels: Tensor) -> Reading:
    """An image (C, H, W) that was read, scaled as in training."""
    side, weight = patches(task.model), next(task.model.parameters())
    sides = {} if side is None else {IMAGE: side}
    return Reading(lambda: task.model(pixels.to(weight).unsqueeze(0)), About(sides))


def _alone(task: "Task", ids: Sequence[int]) -> Tokens:
    """One sequence, of which nothing is padding: no mask is written out, however long it is."""
    return Tokens(task.tokens([ids]).ids)


def _read(tokenizer: Tokenizer | None, text: str | None, ids: Sequence[int], before: int = 0) -> Side:
    """A text as it was read, with so many tokens in front of it; of ids alone what they are called."""
    pieces = _pieces(tokenizer, ids)
    if tokenizer is None or text is None:
        return Side(pieces)
    plain = tokenizer.encode_many([text])[0]
    if list(ids[before:before + len(plain)]) != plain[:len(ids) - before]:  # with blanks in it, words have no places
        return Side(pieces, text)
    last = len(ids) - 1
    words = [word._replace(first_token=word.first_token + before, last_token=min(word.last_token + before, last))
             for word in tokenizer.words(text) if word.first_token + before <= last]
    return Side(pieces, text, tuple(words))


def _written(tokenizer: Tokenizer | None, ids: Sequence[int], written: Sequence[int]) -> Side:
    """What was written: the text is that of the ids, behind which the end may stand."""
    if tokenizer is None:
        return Side(_pieces(None, written))
    return Side(_pieces(tokenizer, written), tokenizer.decode(ids), tuple(tokenizer.decoded_words(ids)))


def _pieces(tokenizer: Tokenizer | None, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(map(str, ids)) if tokenizer is None else tuple(tokenizer.pieces(list(ids)))


def _best(task: "Task") -> Best | None:
    """The attention that the model's own choice says words are found in."""
    where, cross = task.aligned_by, [place.name for place in places(task.model) if place.kind == CROSS]
    if where is None or not -len(cross) <= where.layer < len(cross):
        return None
    return Best(cross[where.layer], where.head, where.offset)
