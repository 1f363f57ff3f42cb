"""A trace: the attention of a model over one sequence, or one pair of sequences, with tokens and search results.

    trace = Trace(sides={"text": TraceSide(("a", "b"))},
                  attentions=(TracedAttention("encoder.0.self", "text", "text", look),))
    trace.save("ab.safetensors")
    Trace.load("ab.safetensors")
    select_map(trace)               the most informative map, where there is room for only one

The file format is described in docs/trace.md; any program may write one. A trace is checked when it is made or loaded:
its parts fit together. The selected map is the alignment that the trace names; without one, the cross-attention with
the sharpest rows; else the last attention. Rows and columns are words where both sides have words and differ, and
tokens otherwise: the weights of a word's tokens are averaged over its rows and summed over its columns. This file does
not know models, and leaves drawing to `pictures`.

Legend: m, M words of the rows and columns; n, N tokens.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import checks
from regard.data.tokenizer.interface import Word
from regard.inspection import trace_format
from regard.inspection.records import record_shape
from regard.inspection.trace_format import (
    AlignmentPointer,
    GeneratedTokens,
    MeasuredHeads,
    TracedAttention,
    TracedInfluence,
    TracedPredictions,
    TracedSearch,
    TraceSide,
)
from regard.storage.weights import read_header, read_tensors, write_tensors
from regard.toml import ConfigProblem, KeyPath, TomlDocument, escape, quote

FORMAT = "regard trace 1"
KINDS = ("self", "cross")
SUFFIX = ".safetensors"
SELECTION_LIMIT = 1 << 22
"""The number of weights up to which maps are computed only to compare them."""
_SURROGATE = re.compile("[\\ud800-\\udfff]")
LeaveOut = Callable[[Sequence[int] | None], TracedInfluence]
"""From the numbers of some words of the input, or None for all: their influence, each alone or in groups of a few."""


@dataclass(frozen=True, eq=False)
class Trace:
    """The attention of a model on one input, with its tokens and its search: what the page shows and a file stores.

    `sides` are the sequences of tokens, `attentions` the attention layers between them in the order in which the model
    computes them.
    """

    sides: Mapping[str, TraceSide]
    attentions: tuple[TracedAttention, ...] = ()
    title: str = ""
    model: str = ""
    written: GeneratedTokens | None = None
    alignment: AlignmentPointer | None = None
    search: TracedSearch | None = None
    influence: TracedInfluence | None = None
    heads: MeasuredHeads | None = None
    predictions: TracedPredictions | None = None
    leave_out: LeaveOut | None = None
    """Computes the influence of some words, as long as the model is loaded; a file does not keep it."""

    def __post_init__(self) -> None:
        found = [ConfigProblem(path, "", f": {sentence}") for path, sentence in _trace_problems(self)]
        if found:
            raise ValueError(str(TomlDocument({}, "trace").error(found)))

    def __repr__(self) -> str:
        sides = ", ".join(f"{name} of {checks.plural(len(side.tokens), 'token')}" for name, side in self.sides.items())
        title = f"{self.title[:57]}…" if len(self.title) > 60 else self.title
        return (f"Trace({f'{title!r}, ' if title else ''}{checks.plural(len(self.attentions), 'attention')}; "
                f"{sides})")

    def _repr_html_(self) -> str:
        """The page of this trace, for a notebook."""
        from regard.inspection.pictures.maps import trace_html

        return trace_html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .safetensors file atomically."""
        if Path(path).suffix != SUFFIX:
            raise checks.wrong("path", f"the name of a file that ends in {SUFFIX}", repr(os.fspath(path)))
        tensors: dict[str, Tensor] = {}
        facts = []
        for number, attention in enumerate(self.attentions):
            fact, own = trace_format.record_tensors(attention.look, attention.name)
            facts.append(fact)
            tensors |= {f"attention.{number}.{name}": tensor for name, tensor in own.items()}
        write_tensors(path, tensors, {"format": FORMAT, "trace": trace_format.dump_header(self, facts)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Read a trace file; a ValueError names the file, and what is wrong in it."""
        name = escape(os.fspath(path))
        stored = read_header(path)
        found_format = stored.metadata.get("format")
        if found_format != FORMAT:
            got = "has none" if found_format is None else f"has {found_format!r:.80}"
            raise ValueError(f'{name}: not a trace: its metadata must have the format "{FORMAT}", but {got}.')
        parts = trace_format.load_header(stored.metadata.get("trace", ""), name)
        entries = parts.pop("attentions")
        problems = trace_format.tensor_problems(entries, stored.tensors)
        if problems:
            raise ValueError("\n".join(f"{name}: {problem}" for problem in problems))
        tensors = read_tensors(path)
        try:
            looks = [trace_format.record_from_tensors(entry, number, tensors) for number, entry in enumerate(entries)]
            attentions = [TracedAttention(entry.name, entry.queries, entry.keys, look, entry.layer, entry.kind)
                          for entry, look in zip(entries, looks, strict=True)]
            return cls(attentions=tuple(attentions), **parts)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def _trace_problems(trace: Trace) -> Iterator[tuple[KeyPath, str]]:
    """What does not fit together: the key, and why."""
    yield from _text_problems(trace)
    if not trace.sides:
        yield ("sides",), "expected at least one side, but there are none"
    for name, side in trace.sides.items():
        yield from _side_problems(("sides", name), side)
    names = set[str]()
    for number, one in enumerate(trace.attentions):
        if one.name in names:
            yield ("attentions", number, "name"), f"two attentions have the name {quote(one.name)}"
        names.add(one.name)
        yield from _attention_problems(("attentions", number), one, trace.sides)
    if trace.written is not None:
        yield from _generated_problems(trace.written, trace.sides)
    if trace.alignment is not None:
        yield from _alignment_problems(trace.alignment, trace.attentions)
    if trace.search is not None:
        yield from _search_problems(trace.search)
    if trace.influence is not None:
        yield from _influence_problems(trace.influence, trace.sides)
    if trace.heads is not None:
        yield from _heads_problems(trace.heads, trace.attentions)
    if trace.predictions is not None:
        yield from _prediction_problems(trace.predictions, trace.sides)


def _text_problems(trace: Trace) -> Iterator[tuple[KeyPath, str]]:
    texts: list[tuple[KeyPath, Any]] = [(("title",), trace.title), (("model",), trace.model)]
    for name, side in trace.sides.items():
        texts += [(("sides", name), name), (("sides", name, "text"), side.text or "")]
        texts += [(("sides", name, "tokens", number), token) for number, token in enumerate(side.tokens)]
    texts += [(("attentions", number, "name"), one.name) for number, one in enumerate(trace.attentions)]
    nodes = () if trace.search is None else trace.search.nodes
    texts += [(("search", "nodes", number, "token"), node.token) for number, node in enumerate(nodes)]
    texts += [] if trace.search is None else [(("search", "ranked_by"), trace.search.ranked_by or "")]
    candidates = () if trace.predictions is None else trace.predictions.candidates
    texts += [(("predictions", "candidates", number), token) for number, row in enumerate(candidates) for token in row]
    for path, text in texts:
        if not isinstance(text, str):
            yield path, f"expected text, but got {text!r:.60}"
        elif not text.isascii() and _SURROGATE.search(text):
            yield path, "expected text that can be written as UTF-8, but it has an unpaired surrogate"


def _side_problems(path: KeyPath, side: TraceSide) -> Iterator[tuple[KeyPath, str]]:
    count = len(side.tokens)
    if not count:
        yield (*path, "tokens"), "expected at least one token, but there are none"
    if side.words and side.text is None:
        yield (*path, "words"), "expected a text that contains the words, but there is none"
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
    if side.image is not None:
        yield from _image_problems((*path, "image"), side)


def _image_problems(path: KeyPath, side: TraceSide) -> Iterator[tuple[KeyPath, str]]:
    image = side.image
    assert image is not None
    if side.grid is None:
        yield path, "expected a grid of patches beside it, but there is none"
    if min(image.height, image.width) < 1 or image.channels not in (1, 3):
        yield path, (f"expected a height and a width of at least 1 and 1 or 3 channels, but got {image.height} × "
                     f"{image.width} × {image.channels}")
    elif len(image.pixels) != image.height * image.width * image.channels:
        yield (*path, "pixels"), (f"expected {image.height} × {image.width} × {image.channels} bytes, but there are "
                                  f"{len(image.pixels)}")


def _attention_problems(path: KeyPath, one: TracedAttention,
                        sides: Mapping[str, TraceSide]) -> Iterator[tuple[KeyPath, str]]:
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
        yield path, "expected at least one head, but there are none"
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


def _alignment_problems(pointer: AlignmentPointer,
                        attentions: tuple[TracedAttention, ...]) -> Iterator[tuple[KeyPath, str]]:
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
        for key, one in (("log_probability", node.log_probability), ("total", node.total), ("score", node.score)):
            if one is not None and not math.isfinite(one):
                yield ("search", "nodes", number, key), f"expected a finite number, but got {one}"
    for number, best in enumerate(search.best):
        if not 0 <= best < len(search.nodes):
            yield ("search", "best", number), f"there are {len(search.nodes)} nodes, but it is number {best}, from 0"


def _influence_problems(influence: TracedInfluence,
                        sides: Mapping[str, TraceSide]) -> Iterator[tuple[KeyPath, str]]:
    for key, name in (("rows", influence.rows), ("columns", influence.columns)):
        if name not in sides:
            yield ("influence", key), f"there is no side {quote(name)}"
    if influence.rows in sides and len(influence.values) != len(sides[influence.rows].tokens):
        yield ("influence", "values"), (f"expected a row for each of the {len(sides[influence.rows].tokens)} tokens of "
                                        f"side {quote(influence.rows)}, but there are {len(influence.values)}")
    count = len(sides[influence.columns].tokens) if influence.columns in sides else None
    for number, tokens in enumerate(influence.tokens):
        if not tokens or (count is not None and not all(0 <= token < count for token in tokens)):
            yield ("influence", "tokens", number), f"expected some of the {count} tokens, but got {[*tokens]}"
    for number, row in enumerate(influence.values):
        if len(row) != len(influence.tokens):
            yield ("influence", "values", number), (f"expected a number for each of the {len(influence.tokens)} "
                                                    f"columns, but there are {len(row)}")
        if not all(one is None or math.isfinite(one) for one in row):
            yield ("influence", "values", number), "expected finite numbers"


def _heads_problems(measured: MeasuredHeads,
                    attentions: tuple[TracedAttention, ...]) -> Iterator[tuple[KeyPath, str]]:
    """The heads of a trace may be those of a part of its attentions, and of others that it does not have."""
    counts = {one.name: one.heads for one in attentions}
    if not math.isfinite(measured.loss):
        yield ("heads", "loss"), f"expected a finite number, but got {measured.loss}"
    for number, one in enumerate(measured.attentions):
        path = ("heads", "attentions", number)
        if len(one.heads) != counts.get(one.name, len(one.heads)):
            yield (*path, "heads"), (f"{quote(one.name)} has {counts[one.name]} heads in this trace, but there are "
                                     f"{len(one.heads)}")
        for place, head in enumerate(one.heads):
            if not all(map(math.isfinite, (head.cost, head.cost_error, *head.roles.values(), *one.even.values()))):
                yield (*path, "heads", place), "expected finite numbers"
            if not {*head.roles, *([head.role] if head.role is not None else [])} <= {*one.even}:
                yield (*path, "heads", place), "expected a role and roles that `even` has too"


def _prediction_problems(predictions: TracedPredictions,
                         sides: Mapping[str, TraceSide]) -> Iterator[tuple[KeyPath, str]]:
    if predictions.side not in sides:
        yield ("predictions", "side"), f"there is no side {quote(predictions.side)}"
        return
    logs, count = predictions.log_probabilities, len(sides[predictions.side].tokens)
    if len(logs) != count:
        yield ("predictions", "log_probabilities"), (f"expected one for each of the {count} tokens, but there are "
                                                     f"{len(logs)}")
    if not all(one is None or math.isfinite(one) for one in logs):
        yield ("predictions", "log_probabilities"), "expected finite numbers"
    rows, numbers = predictions.candidates, predictions.candidate_log_probabilities
    if len(rows) not in (0, count, count + 1):
        yield ("predictions", "candidates"), (f"expected a row for each of the {count} tokens, and one for the next, "
                                              f"but there are {len(rows)}")
    if [*map(len, rows)] != [*map(len, numbers)]:
        yield ("predictions", "candidate_log_probabilities"), "expected a number for each of the candidates"
    if not all(math.isfinite(one) for row in numbers for one in row):
        yield ("predictions", "candidate_log_probabilities"), "expected finite numbers"


@dataclass(frozen=True)
class MapSelection:
    """One map of a trace, with labels for its rows and columns."""

    attention: TracedAttention
    head: int | None
    """None for the mean of all heads."""
    offset: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    words: tuple[Sequence[Word], Sequence[Word]] | None
    """The words of the rows and of the columns; None where both are tokens."""

    @property
    def name(self) -> str:
        """The attention and the head, for people."""
        which = "mean of the heads" if self.head is None else f"head {self.head}"
        return self.attention.name if self.attention.heads == 1 else f"{self.attention.name}, {which}"

    @torch.no_grad()
    def weights(self, limit: int | None = None) -> Tensor:
        """The weights (m, M) or (n, N) between rows and columns, or between the first `limit` of them."""
        row_numbers = [min(max(row, 0), self.attention.rows - 1) for row in self._token_rows(limit)]
        heads = self.attention.look.rows(row_numbers).float().cpu()
        weights = heads.mean(dim=0) if self.head is None else heads[self.head]
        if self.words is None:
            return weights[:, :limit]
        rows, columns = self.words
        return word_weights(weights, columns[:limit], rows[:limit])

    def _token_rows(self, limit: int | None) -> list[int]:
        """The rows of the matrix that are needed, in order."""
        if self.words is None:
            return list(range(self.attention.rows)[:limit])
        last = max((word.last_token for word in self.words[0][:limit]), default=-1)
        return [token + self.offset for token in range(last + 1)]


def select_map(trace: Trace) -> MapSelection:
    """The most informative map of a trace."""
    if not trace.attentions:
        raise ValueError("This model has no attention, so there is no map.")
    if trace.alignment is not None:
        pointer = trace.alignment
        return _selection(trace, trace.attentions[pointer.attention], pointer.head, pointer.offset)
    cross = [one for one in trace.attentions if one.queries != one.keys and one.kind == "cross"]
    if not cross:
        return _selection(trace, trace.attentions[-1], None, 0)
    selections = [_selection(trace, one, None, 0) for one in cross]
    if sum(one.weight_count for one in cross) > SELECTION_LIMIT:
        return selections[-1]
    return max(selections, key=_sharpness)


def _selection(trace: Trace, attention: TracedAttention, head: int | None, offset: int) -> MapSelection:
    rows, columns = trace.sides[attention.queries], trace.sides[attention.keys]
    if attention.queries != attention.keys and rows.words and columns.words:
        return MapSelection(attention, head, offset, _word_texts(rows), _word_texts(columns),
                            (rows.words, columns.words))
    return MapSelection(attention, head, 0, rows.tokens, columns.tokens, None)


def _word_texts(side: TraceSide) -> tuple[str, ...]:
    return tuple((side.text or "")[word.start:word.end] for word in side.words)


def _sharpness(selection: MapSelection) -> float:
    """The mean over the rows of their largest weight."""
    weights = selection.weights()
    return float(weights.amax(dim=-1).mean()) if weights.numel() else 0.0


def word_weights(weights: Tensor, columns: Sequence[Word], rows: Sequence[Word], offset: int = 0) -> Tensor:
    """The weights (..., m, M) between words, from the weights (..., n, N) between their tokens.

    They are averaged over the tokens of a row's word, and summed over those of a column's word.

    Args:
        weights: between tokens.
        columns: the words of the columns.
        rows: the words of the rows.
        offset: the row of token i is i + offset, or the nearest one that exists.
    """
    tokens, words, counts = _word_tokens(rows, weights.device)
    token_rows = weights[..., (tokens + offset).clamp(0, max(weights.shape[-2] - 1, 0)), :]
    row_means = weights.new_zeros(*weights.shape[:-2], len(rows), weights.shape[-1]).index_add_(-2, words, token_rows)
    row_means /= counts.unsqueeze(-1)
    tokens, words, _ = _word_tokens(columns, weights.device)
    return weights.new_zeros(*row_means.shape[:-1], len(columns)).index_add_(-1, words, row_means[..., tokens])


def _word_tokens(words: Sequence[Word], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of all words, the number of each token's word, and the number of tokens of each word."""
    ranges = [range(word.first_token, word.last_token + 1) for word in words]
    tokens = [token for one in ranges for token in one]
    word_numbers = [number for number, one in enumerate(ranges) for _ in one]
    first, second, third = (torch.tensor(numbers, dtype=torch.long, device=device)
                            for numbers in (tokens, word_numbers, [*map(len, ranges)]))
    return first, second, third
