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

from regard.data.tokenizer.interface import PairTokenizer, Tokenizer
from regard.inspection.recorder import CROSS, find_attention_modules
from regard.inspection.trace_format import GeneratedTokens, TraceSide
from regard.inspection.watch import AlignmentAttention, Replay, SequenceInfo, patch_side
from regard.tokens import Tokens

if TYPE_CHECKING:
    from regard.tasks.task import Task


SOURCE, TARGET, READ, TEXT, WRITTEN, IMAGE = "source", "target", "read", "text", "written", "image"
ATTENTION_SIDES = {"encoder.self": (SOURCE, SOURCE), "decoder.self": (TARGET, READ), "decoder.cross": (TARGET, SOURCE)}


class WrittenHypothesis(Protocol):
    """What a search found."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def log_probabilities(self) -> Sequence[float]: ...
    @property
    def score(self) -> float: ...
    @property
    def cut(self) -> bool: ...


def replay_translation(task: "Task", text: str | None, source: Sequence[int], found: WrittenHypothesis, start: int) -> Replay:
    """A source and what was written for it, behind the token `start`."""
    both = task.tokenizer if isinstance(task.tokenizer, PairTokenizer) else None
    written = [*found.ids, *([] if found.cut else task.end()[:1])]
    given = [start, *written[:-1]]
    before, after = (None, None) if both is None else (both.source, both.target)
    sides = {SOURCE: _input_side(before, text, source), READ: TraceSide(_piece_names(after, given))}
    if written:  # else the limit left no room for anything
        sides[TARGET] = _output_side(after, found.ids, written)
    logs = tuple(found.log_probabilities[:len(written)])
    told = GeneratedTokens(TARGET, logs, found.score) if written and len(logs) == len(written) else None

    def again() -> None:
        memory = task.model.encode(_unpadded(task, source))  # type: ignore[operator]
        task.model.decode(_unpadded(task, given), memory)  # type: ignore[operator]

    return Replay(again, SequenceInfo(sides, ATTENTION_SIDES, text or "", told, _best_attention(task)))


def replay_completion(task: "Task", prompt: Sequence[int], found: WrittenHypothesis) -> Replay:
    """A prompt and what was written after it."""
    tokenizer = task.tokenizer if isinstance(task.tokenizer, Tokenizer) else None
    ids, written = [*prompt, *found.ids], [*found.ids, *([] if found.cut else task.end()[:1])]
    sides = {TEXT: _output_side(tokenizer, ids, ids)}
    logs = tuple(found.log_probabilities[:len(written)])
    told = GeneratedTokens(WRITTEN, logs, found.score) if written and len(logs) == len(written) else None
    if told is not None:
        sides[WRITTEN] = TraceSide(_piece_names(tokenizer, written))
    return Replay(lambda: task.model.decode(_unpadded(task, ids)),  # type: ignore[operator]
                   SequenceInfo(sides, {}, sides[TEXT].text or "", told))


def replay_sequence(task: "Task", ids: Sequence[int], text: str | None = None) -> Replay:
    """Ids that were read; `text` is what they are of."""
    tokenizer = task.tokenizer if isinstance(task.tokenizer, Tokenizer) else None
    before = 0 if task.special.cls is None else 1
    about = SequenceInfo({TEXT: _input_side(tokenizer, text, ids, before)}, {}, text or "")
    return Replay(lambda: task.model(_unpadded(task, ids)), about)


def replay_image(task: "Task", pixels: Tensor) -> Replay:
    """An image (C, H, W) that was read, scaled as in training."""
    side, weight = patch_side(task.model), next(task.model.parameters())
    sides = {} if side is None else {IMAGE: side}
    return Replay(lambda: task.model(pixels.to(weight).unsqueeze(0)), SequenceInfo(sides))


def _unpadded(task: "Task", ids: Sequence[int]) -> Tokens:
    """One sequence, of which nothing is padding: no mask is written out, however long it is."""
    return Tokens(task.tokens([ids]).ids)


def _input_side(tokenizer: Tokenizer | None, text: str | None, ids: Sequence[int], before: int = 0) -> TraceSide:
    """A text as it was read, with so many tokens in front of it; of ids alone what they are called."""
    pieces = _piece_names(tokenizer, ids)
    if tokenizer is None or text is None:
        return TraceSide(pieces)
    plain = tokenizer.encode_batch([text])[0]
    if list(ids[before:before + len(plain)]) != plain[:len(ids) - before]:  # with blanks in it, words have no places
        return TraceSide(pieces, text)
    last = len(ids) - 1
    words = [word._replace(first_token=word.first_token + before, last_token=min(word.last_token + before, last))
             for word in tokenizer.words(text) if word.first_token + before <= last]
    return TraceSide(pieces, text, tuple(words))


def _output_side(tokenizer: Tokenizer | None, ids: Sequence[int], written: Sequence[int]) -> TraceSide:
    """What was written: the text is that of the ids, behind which the end may stand."""
    if tokenizer is None:
        return TraceSide(_piece_names(None, written))
    return TraceSide(_piece_names(tokenizer, written), tokenizer.decode(ids), tuple(tokenizer.decoded_words(ids)))


def _piece_names(tokenizer: Tokenizer | None, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(map(str, ids)) if tokenizer is None else tuple(tokenizer.pieces(list(ids)))


def _best_attention(task: "Task") -> AlignmentAttention | None:
    """The attention that the model's own choice says words are found in."""
    where, cross = task.aligned_by, [place.name for place in find_attention_modules(task.model) if place.kind == CROSS]
    if where is None or not -len(cross) <= where.layer < len(cross):
        return None
    return AlignmentAttention(cross[where.layer], where.head, where.offset)
