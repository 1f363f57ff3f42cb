"""The trace: what a model looked at while it read and wrote one sequence, or one pair of them.

    trace = Trace(sides={"text": Side(("a", "b"))}, attentions=(Attention("encoder.0.self", "text", "text", look),))
    trace.save("ab.safetensors")
    Trace.load("ab.safetensors")

The file is described in docs/trace.md; every program may write one. A trace that was made, or read, is checked: its
parts fit together. It does not know models, and draws nothing.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import checks
from regard.inspection.trace import header as trace_header
from regard.inspection.trace import tensors as trace_tensors
from regard.inspection.trace.parts import Attention, Node, Pointer, Search, Side, Written, shape
from regard.storage import weights
from regard.toml.document import Document, Problem
from regard.toml.lines import KeyPath
from regard.toml.writing import escaped, quoted

__all__ = ["Attention", "Node", "Pointer", "Search", "Side", "Trace", "Written"]

FORMAT = "regard trace 1"
KINDS = ("self", "cross")
ENDING = ".safetensors"
_HALF = re.compile("[\\ud800-\\udfff]")


@dataclass(frozen=True, eq=False)
class Trace:
    """Sides, the attentions between them in the order in which the model computes them, and what came of it."""

    sides: Mapping[str, Side]
    attentions: tuple[Attention, ...] = ()
    title: str = ""
    model: str = ""
    written: Written | None = None
    alignment: Pointer | None = None
    search: Search | None = None

    def __post_init__(self) -> None:
        found = [Problem(path, "", f": {sentence}") for path, sentence in _problems(self)]
        if found:
            raise ValueError(str(Document({}, "trace").error(found)))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from regard.inspection.trace.html import of_trace

        return of_trace(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, which is there whole in the end or as it was before."""
        if Path(path).suffix != ENDING:
            raise checks.wrong("path", f"the name of a file that ends in {ENDING}", repr(os.fspath(path)))
        tensors: dict[str, Tensor] = {}
        facts = []
        for number, one in enumerate(self.attentions):
            fact, own = trace_tensors.taken(one.look, one.name)
            facts.append(fact)
            tensors |= {f"attention.{number}.{name}": tensor for name, tensor in own.items()}
        header = trace_header.dumps(self.sides, self.attentions, facts, title=self.title, model=self.model,
                                    written=self.written, alignment=self.alignment, search=self.search)
        weights.write(path, tensors, {"format": FORMAT, "trace": header})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """The trace in a file; a ValueError names the file, and what in it is not as it must be."""
        name = escaped(os.fspath(path))
        about = weights.header(path)
        told = about.metadata.get("format")
        if told != FORMAT:
            got = "one without that word" if told is None else f"of the format {told!r:.80}"
            raise checks.wrong(name, f'a trace, whose metadata says format = "{FORMAT}"', got)
        header = trace_header.loads(about.metadata.get("trace", ""), name)
        problems = trace_tensors.problems(header.attentions, about.tensors)
        if problems:
            raise ValueError("\n".join(f"{name}: {problem}" for problem in problems))
        tensors = weights.read(path)
        try:
            attentions = tuple(Attention(one.name, one.queries, one.keys, trace_tensors.made(one, number, tensors),
                                         one.layer, one.kind) for number, one in enumerate(header.attentions))
            return cls(header.sides, attentions, header.title, header.model, header.written, header.alignment,
                       header.search)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def _problems(trace: Trace) -> Iterator[tuple[KeyPath, str]]:
    """What does not fit: the key, and why."""
    yield from _of_texts(trace)
    if not trace.sides:
        yield ("sides",), "expected at least one side, but there is none"
    for name, side in trace.sides.items():
        yield from _of_side(("sides", name), side)
    names = set[str]()
    for number, one in enumerate(trace.attentions):
        if one.name in names:
            yield ("attentions", number, "name"), f"there are two of the name {quoted(one.name)}"
        names.add(one.name)
        yield from _of_attention(("attentions", number), one, trace.sides)
    if trace.written is not None:
        yield from _of_written(trace.written, trace.sides)
    if trace.alignment is not None:
        yield from _of_pointer(trace.alignment, trace.attentions)
    if trace.search is not None:
        yield from _of_search(trace.search)


def _of_texts(trace: Trace) -> Iterator[tuple[KeyPath, str]]:
    texts: list[tuple[KeyPath, Any]] = [(("title",), trace.title), (("model",), trace.model)]
    for name, side in trace.sides.items():
        texts += [(("sides", name), name), (("sides", name, "text"), side.text or "")]
        texts += [(("sides", name, "tokens", number), token) for number, token in enumerate(side.tokens)]
    texts += [(("attentions", number, "name"), one.name) for number, one in enumerate(trace.attentions)]
    nodes = () if trace.search is None else trace.search.nodes
    texts += [(("search", "nodes", number, "token"), node.token) for number, node in enumerate(nodes)]
    for path, text in texts:
        if not isinstance(text, str):
            yield path, f"expected text, but got {text!r:.60}"
        elif not text.isascii() and _HALF.search(text):
            yield path, "expected text that can be written as UTF-8, but there is half of a surrogate pair in it"


def _of_side(path: KeyPath, side: Side) -> Iterator[tuple[KeyPath, str]]:
    count = len(side.tokens)
    if not count:
        yield (*path, "tokens"), "expected at least one token, but there is none"
    if side.words and side.text is None:
        yield (*path, "words"), "expected a text that they are in, but there is none"
    length = len(side.text or "")
    for number, word in enumerate(side.words):
        if not 0 <= word.start <= word.end <= length:
            yield (*path, "words", number), f"{word.start} to {word.end} is not in the text of {length} characters"
        if not 0 <= word.first_token <= word.last_token < count:
            yield (*path, "words", number), f"{word.first_token} to {word.last_token} is not among the {count} tokens"
    if side.lead < 0 or (side.lead and side.grid is None):
        yield (*path, "lead"), f"expected a number of tokens before a grid, but got {side.lead}"
    if side.grid is not None:
        down, across = side.grid
        if down < 1 or across < 1 or down * across + side.lead != count:
            yield (*path, "grid"), (f"{down} × {across} patches and {side.lead} before them are not the {count} "
                                    "tokens")


def _of_attention(path: KeyPath, one: Attention, sides: Mapping[str, Side]) -> Iterator[tuple[KeyPath, str]]:
    if not one.name:
        yield (*path, "name"), "expected a name, but it is empty"
    if one.kind is not None and one.kind not in KINDS:
        yield (*path, "kind"), f'expected one of "self", "cross", but got {quoted(str(one.kind))}'
    if one.layer is not None and one.layer < 0:
        yield (*path, "layer"), f"expected a number from 0 on, but got {one.layer}"
    sizes = shape(one.look)
    if len(sizes) != 3:
        yield path, f"expected weights of heads × rows × columns, but they are {sizes}"
        return
    if not sizes[0]:
        yield path, "expected at least one head, but there is none"
    for key, name, count, what in (("queries", one.queries, sizes[1], "rows"), ("keys", one.keys, sizes[2], "columns")):
        if name not in sides:
            near = checks.nearest(name, sides)
            yield (*path, key), f"there is no side {quoted(name)}{'; ' + near if near else ''}"
        elif len(sides[name].tokens) != count:
            yield (*path, key), (f"side {quoted(name)} has {len(sides[name].tokens)} tokens, but there are {count} "
                                 f"{what}")


def _of_written(written: Written, sides: Mapping[str, Side]) -> Iterator[tuple[KeyPath, str]]:
    if written.side not in sides:
        yield ("written", "side"), f"there is no side {quoted(written.side)}"
    elif len(written.log_probabilities) != len(sides[written.side].tokens):
        yield ("written", "log_probabilities"), (f"expected one for each of the {len(sides[written.side].tokens)} "
                                                 f"tokens, but there are {len(written.log_probabilities)}")
    for number, one in enumerate(written.log_probabilities):
        if not math.isfinite(one):
            yield ("written", "log_probabilities", number), f"expected a finite number, but got {one}"
    if written.score is not None and not math.isfinite(written.score):
        yield ("written", "score"), f"expected a finite number, but got {written.score}"


def _of_pointer(pointer: Pointer, attentions: tuple[Attention, ...]) -> Iterator[tuple[KeyPath, str]]:
    if not 0 <= pointer.attention < len(attentions):
        yield ("alignment", "attention"), f"there are {len(attentions)}, but it is number {pointer.attention}, from 0"
        return
    one = attentions[pointer.attention]
    if pointer.head is not None and not 0 <= pointer.head < one.heads:
        yield ("alignment", "head"), f"there are {one.heads}, but it is number {pointer.head}, from 0"
    if abs(pointer.offset) >= max(1, one.rows):
        yield ("alignment", "offset"), f"expected less than the {one.rows} rows, but got {pointer.offset}"


def _of_search(search: Search) -> Iterator[tuple[KeyPath, str]]:
    if search.beams < 1:
        yield ("search", "beams"), f"expected at least 1, but got {search.beams}"
    if search.left_out is not None and search.left_out < 0:
        yield ("search", "left_out"), f"expected at least 0, but got {search.left_out}"
    for number, node in enumerate(search.nodes):
        if not -1 <= node.parent < number:
            yield ("search", "nodes", number, "parent"), f"expected an earlier node or -1, but got {node.parent}"
        for key, one in (("log_probability", node.log_probability), ("total", node.total)):
            if not math.isfinite(one):
                yield ("search", "nodes", number, key), f"expected a finite number, but got {one}"
    for number, best in enumerate(search.best):
        if not 0 <= best < len(search.nodes):
            yield ("search", "best", number), f"there are {len(search.nodes)} nodes, but it is number {best}, from 0"
