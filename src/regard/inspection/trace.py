"""A trace: the attention of a model over one sequence, or one pair of sequences, with tokens and search results.

    trace = Trace(sides={"text": TraceSide(("a", "b"))},
                  attentions=(TracedAttention("encoder.0.self", "text", "text", look),))
    trace.save("ab.safetensors")
    Trace.load("ab.safetensors")
    select_map(trace)               the one map that shows most, where there is room for only one

The file format is described in docs/trace.md; any program may write one. A trace is checked when it is made or loaded:
its parts fit together. The selected map is the alignment that the trace names; without one, the cross-attention with
the sharpest rows; else the last attention. Rows and columns are words where both sides have words and differ, and
tokens otherwise: the weights of a word's tokens are averaged over its rows and summed over its columns. This file does
not know models, and leaves drawing to `pictures`.

Legend: m, M words of the rows and columns; n, N tokens.
"""

import html
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import checks
from regard.data.tokenizer.interface import Word
from regard.inspection import labels
from regard.inspection import trace_format as trace_header
from regard.inspection import trace_format as trace_tensors
from regard.inspection.pictures import maps, svg
from regard.inspection.records import record_shape
from regard.inspection.trace_format import AlignmentPointer, GeneratedTokens, TracedAttention, TracedSearch, TraceSide
from regard.storage import weights
from regard.toml import ConfigProblem, KeyPath, TomlDocument, escape, quote

FORMAT = "regard trace 1"
KINDS = ("self", "cross")
SUFFIX = ".safetensors"
_SURROGATE = re.compile("[\\ud800-\\udfff]")


@dataclass(frozen=True, eq=False)
class Trace:
    """Sides, the attentions between them in the order in which the model computes them, and what came of it."""

    sides: Mapping[str, TraceSide]
    attentions: tuple[TracedAttention, ...] = ()
    title: str = ""
    model: str = ""
    written: GeneratedTokens | None = None
    alignment: AlignmentPointer | None = None
    search: TracedSearch | None = None

    def __post_init__(self) -> None:
        found = [ConfigProblem(path, "", f": {sentence}") for path, sentence in _trace_problems(self)]
        if found:
            raise ValueError(str(TomlDocument({}, "trace").error(found)))

    def _repr_html_(self) -> str:
        """What a notebook shows."""

        return trace_html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, which is there whole in the end or as it was before."""
        if Path(path).suffix != SUFFIX:
            raise checks.wrong("path", f"the name of a file that ends in {SUFFIX}", repr(os.fspath(path)))
        tensors: dict[str, Tensor] = {}
        facts = []
        for number, one in enumerate(self.attentions):
            fact, own = trace_tensors.record_tensors(one.look, one.name)
            facts.append(fact)
            tensors |= {f"attention.{number}.{name}": tensor for name, tensor in own.items()}
        header = trace_header.dump_header(self.sides, self.attentions, facts, title=self.title, model=self.model,
                                    written=self.written, alignment=self.alignment, search=self.search)
        weights.write_tensors(path, tensors, {"format": FORMAT, "trace": header})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """The trace in a file; a ValueError names the file, and what in it is not as it must be."""
        name = escape(os.fspath(path))
        about = weights.read_header(path)
        told = about.metadata.get("format")
        if told != FORMAT:
            got = "one without that word" if told is None else f"of the format {told!r:.80}"
            raise checks.wrong(name, f'a trace, whose metadata says format = "{FORMAT}"', got)
        header = trace_header.load_header(about.metadata.get("trace", ""), name)
        problems = trace_tensors.tensor_problems(header.attentions, about.tensors)
        if problems:
            raise ValueError("\n".join(f"{name}: {problem}" for problem in problems))
        tensors = weights.read_tensors(path)
        try:
            attentions = tuple(TracedAttention(one.name, one.queries, one.keys, trace_tensors.record_from_tensors(one, number, tensors),
                                         one.layer, one.kind) for number, one in enumerate(header.attentions))
            return cls(header.sides, attentions, header.title, header.model, header.written, header.alignment,
                       header.search)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def _trace_problems(trace: Trace) -> Iterator[tuple[KeyPath, str]]:
    """What does not fit: the key, and why."""
    yield from _text_problems(trace)
    if not trace.sides:
        yield ("sides",), "expected at least one side, but there is none"
    for name, side in trace.sides.items():
        yield from _side_problems(("sides", name), side)
    names = set[str]()
    for number, one in enumerate(trace.attentions):
        if one.name in names:
            yield ("attentions", number, "name"), f"there are two of the name {quote(one.name)}"
        names.add(one.name)
        yield from _attention_problems(("attentions", number), one, trace.sides)
    if trace.written is not None:
        yield from _generated_problems(trace.written, trace.sides)
    if trace.alignment is not None:
        yield from _alignment_problems(trace.alignment, trace.attentions)
    if trace.search is not None:
        yield from _search_problems(trace.search)


def _text_problems(trace: Trace) -> Iterator[tuple[KeyPath, str]]:
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
        elif not text.isascii() and _SURROGATE.search(text):
            yield path, "expected text that can be written as UTF-8, but there is half of a surrogate pair in it"


def _side_problems(path: KeyPath, side: TraceSide) -> Iterator[tuple[KeyPath, str]]:
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


def _attention_problems(path: KeyPath, one: TracedAttention, sides: Mapping[str, TraceSide]) -> Iterator[tuple[KeyPath, str]]:
    if not one.name:
        yield (*path, "name"), "expected a name, but it is empty"
    if one.kind is not None and one.kind not in KINDS:
        yield (*path, "kind"), f'expected one of "self", "cross", but got {quote(str(one.kind))}'
    if one.layer is not None and one.layer < 0:
        yield (*path, "layer"), f"expected a number from 0 on, but got {one.layer}"
    sizes = record_shape(one.look)
    if len(sizes) != 3:
        yield path, f"expected weights of heads × rows × columns, but they are {sizes}"
        return
    if not sizes[0]:
        yield path, "expected at least one head, but there is none"
    for key, name, count, what in (("queries", one.queries, sizes[1], "rows"), ("keys", one.keys, sizes[2], "columns")):
        if name not in sides:
            near = checks.nearest(name, sides)
            yield (*path, key), f"there is no side {quote(name)}{'; ' + near if near else ''}"
        elif len(sides[name].tokens) != count:
            yield (*path, key), (f"side {quote(name)} has {len(sides[name].tokens)} tokens, but there are {count} "
                                 f"{what}")


def _generated_problems(written: GeneratedTokens, sides: Mapping[str, TraceSide]) -> Iterator[tuple[KeyPath, str]]:
    if written.side not in sides:
        yield ("written", "side"), f"there is no side {quote(written.side)}"
    elif len(written.log_probabilities) != len(sides[written.side].tokens):
        yield ("written", "log_probabilities"), (f"expected one for each of the {len(sides[written.side].tokens)} "
                                                 f"tokens, but there are {len(written.log_probabilities)}")
    for number, one in enumerate(written.log_probabilities):
        if not math.isfinite(one):
            yield ("written", "log_probabilities", number), f"expected a finite number, but got {one}"
    if written.score is not None and not math.isfinite(written.score):
        yield ("written", "score"), f"expected a finite number, but got {written.score}"


def _alignment_problems(pointer: AlignmentPointer, attentions: tuple[TracedAttention, ...]) -> Iterator[tuple[KeyPath, str]]:
    if not 0 <= pointer.attention < len(attentions):
        yield ("alignment", "attention"), f"there are {len(attentions)}, but it is number {pointer.attention}, from 0"
        return
    one = attentions[pointer.attention]
    if pointer.head is not None and not 0 <= pointer.head < one.heads:
        yield ("alignment", "head"), f"there are {one.heads}, but it is number {pointer.head}, from 0"
    if abs(pointer.offset) >= max(1, one.rows):
        yield ("alignment", "offset"), f"expected less than the {one.rows} rows, but got {pointer.offset}"


def _search_problems(search: TracedSearch) -> Iterator[tuple[KeyPath, str]]:
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


# ---- chosen: The one map of a trace that shows most, for where there is room for one: a terminal, a picture.
#
# It is where the trace says that words are found; else, of the attentions from one side to another, the one that points
# at words most clearly; else the last. Rows and columns are words where both sides have them and differ, and tokens
# otherwise. A word looks as its tokens do on average, and is looked at as much as all its tokens together.
#
# It knows traces. It does not draw.
#
# Legend: m, M words of the rows and columns; n, N tokens.

SELECTION_LIMIT = 1 << 22
"""Weights beyond which nothing is computed only to choose."""


@dataclass(frozen=True)
class MapSelection:
    """A map with names for its rows and columns."""

    attention: TracedAttention
    head: int | None
    """None for the mean of all."""
    offset: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    words: tuple[Sequence[Word], Sequence[Word]] | None
    """Those of the rows and those of the columns; None for tokens."""

    @property
    def name(self) -> str:
        """Which it is, for people."""
        which = "mean of the heads" if self.head is None else f"head {self.head}"
        return self.attention.name if self.attention.heads == 1 else f"{self.attention.name}, {which}"

    @torch.no_grad()
    def weights(self, most: int | None = None) -> Tensor:
        """The weights between rows and columns, or between the first `most` of them: (m, M) or (n, N)."""
        count = self.attention.rows
        wanted = [min(max(row, 0), count - 1) for row in self._rows(most)]
        found = self.attention.look.rows(wanted).float().cpu()
        chosen = found.mean(dim=0) if self.head is None else found[self.head]
        if self.words is None:
            return chosen[:, :most]
        rows, columns = self.words
        return word_weights(chosen, columns[:most], rows[:most])

    def _rows(self, most: int | None) -> list[int]:
        """The rows of the matrix that are needed, in order."""
        if self.words is None:
            return list(range(self.attention.rows)[:most])
        last = max((word.last_token for word in self.words[0][:most]), default=-1)
        return [token + self.offset for token in range(last + 1)]


def select_map(trace: Trace) -> MapSelection:
    """The map of a trace that shows most."""
    if not trace.attentions:
        raise ValueError("There is nothing to see: this model has no attention.")
    if trace.alignment is not None:
        where = trace.alignment
        return _selection(trace, trace.attentions[where.attention], where.head, where.offset)
    across = [one for one in trace.attentions if one.queries != one.keys and one.kind == "cross"]
    if not across:
        return _selection(trace, trace.attentions[-1], None, 0)
    maps = [_selection(trace, one, None, 0) for one in across]
    if sum(one.heads * one.rows * one.columns for one in across) > SELECTION_LIMIT:
        return maps[-1]
    return max(maps, key=_sharpness)


def _selection(trace: Trace, attention: TracedAttention, head: int | None, offset: int) -> MapSelection:
    rows, columns = trace.sides[attention.queries], trace.sides[attention.keys]
    if attention.queries != attention.keys and rows.words and columns.words:
        return MapSelection(attention, head, offset, _word_texts(rows), _word_texts(columns), (rows.words, columns.words))
    return MapSelection(attention, head, 0, rows.tokens, columns.tokens, None)


def _word_texts(side: TraceSide) -> tuple[str, ...]:
    return tuple((side.text or "")[word.start:word.end] for word in side.words)


def _sharpness(one: MapSelection) -> float:
    """The highest weight of a row, on average."""
    weights = one.weights()
    return float(weights.amax(dim=-1).mean()) if weights.numel() else 0.0


def word_weights(weights: Tensor, columns: Sequence[Word], rows: Sequence[Word], offset: int = 0) -> Tensor:
    """(..., m, M) from (..., n, N): between words, from those between tokens.

    Args:
        offset: a token looks as the row so many behind its own does; where there is none, as the one nearest to it.
    """
    tokens, words, counts = _word_tokens(rows, weights.device)
    picked = weights[..., (tokens + offset).clamp(0, max(weights.shape[-2] - 1, 0)), :]
    looks = weights.new_zeros(*weights.shape[:-2], len(rows), weights.shape[-1]).index_add_(-2, words, picked)
    looks /= counts.unsqueeze(-1)
    tokens, words, _ = _word_tokens(columns, weights.device)
    return weights.new_zeros(*looks.shape[:-1], len(columns)).index_add_(-1, words, looks[..., tokens])


def _word_tokens(words: Sequence[Word], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of all words, the number of the word of each, and how many tokens each word has."""
    ranges = [range(word.first_token, word.last_token + 1) for word in words]
    tokens = [token for some in ranges for token in some]
    numbers = [number for number, some in enumerate(ranges) for _ in some]
    first, second, third = (torch.tensor(some, dtype=torch.long, device=device)
                            for some in (tokens, numbers, [*map(len, ranges)]))
    return first, second, third


# ---- html: How traces show themselves in a notebook: as small maps, in HTML that needs no other package.
#
#     of_attention(attention)    a small map for each head
#     of_trace(trace)            the one map that shows most, with its words or tokens
#
# What is too long for a small map is told in words. It knows traces; how maps are drawn is known to `pictures`.

NOTEBOOK_LIMIT = 1 << 22
"""Weights that are computed for a notebook."""


def attention_html(attention: TracedAttention) -> str:
    """The maps of all heads."""
    if attention.heads * attention.rows * attention.columns > NOTEBOOK_LIMIT:
        return _too_long(attention)
    return svg.heads_svg(attention.look.weights(), title=attention.name)


def trace_html(trace: "Trace") -> str:
    """Its title and one map."""
    title = f"<p>{html.escape(labels.text_label(trace.title, 200) or 'trace')}</p>"
    if not trace.attentions:
        return f"{title}<p>no attention</p>"
    one = select_map(trace).attention
    if one.heads * one.rows * one.columns > NOTEBOOK_LIMIT:
        return title + _too_long(one)
    return title + maps.trace_svg(trace)


def _too_long(one: TracedAttention) -> str:
    sizes = f"{one.heads} heads of {one.rows:,} × {one.columns:,} weights"
    return (f"<p>{html.escape(one.name)}: {sizes}, too many for a small map. <code>look.block_map(64)</code> gives "
            "means of blocks, and <code>regard look</code> shows all.</p>")
