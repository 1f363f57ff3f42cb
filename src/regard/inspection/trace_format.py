"""The trace file format: the parts of a trace, its header as JSON, and its tensors (docs/trace.md).

The header is read strictly: a key that is missing or unknown, or a value of the wrong type, is a problem with the path
of the key, and all problems are reported at once. Keys that begin with `x-` belong to other programs and are ignored.
The tensors are those that an attention record is computed from, which are small at any length: queries, keys, the
parameters of the score, a mask by its name, a bias by distance. A custom score or normaliser has no name in a file, so
its weights are written out. Sizes are checked before any tensor is read. This file does not know models.

Legend: H heads, h key heads, n rows, N columns, D width.
"""

import base64
import binascii
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard import checks, config
from regard.attention.look import Look
from regard.attention.mask import AndMask, BoolMask, Causal, Mask, Window
from regard.attention.mask_cache import MAX_MATRIX_ENTRIES
from regard.attention.normalize import NORMALIZERS
from regard.attention.problem import AttentionProblem
from regard.attention.score import SCORES, Additive, Bilinear, Dot, Score
from regard.config import FieldRule, KeySpec, ScalarReader, ValueReader
from regard.data.tokenizer.interface import Word
from regard.inspection.records import AttentionRecord, WeightMatrix, is_distance_mask, recognize_mask, record_shape
from regard.position.bias import Bias
from regard.storage.weights import TensorSpec
from regard.toml import ConfigProblem, KeyPath, TomlDocument

if TYPE_CHECKING:
    from regard.inspection.trace import Trace


FOREIGN_PREFIX = "x-"
"""The prefix of keys and tensors of other programs, which are ignored."""
PARAMETRIC_SCORES = ("additive", "bilinear")
CAUSAL_MASK, TENSOR_MASK = "causal", "tensor"
MaskEntry = str | tuple[int | None, int | None] | None
"""The mask of an attention: "causal", "tensor", the numbers of keys to the left and to the right, or None."""
FLOAT_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FLAG_TYPES = (torch.bool, torch.uint8)
LOOK_TENSORS = ("query", "key", "mask", "bias", "distance_bias", "weight", "score_bias")


@dataclass(frozen=True)
class TracedImage:
    """The pixels of an image as a model reads it: height × width × channels bytes, row by row."""

    height: int
    width: int
    channels: int
    """1 for grey, 3 for RGB."""
    pixels: bytes


@dataclass(frozen=True)
class TraceSide:
    """The tokens of rows or columns, and where they are known, the text and its words."""

    tokens: tuple[str, ...]
    text: str | None = None
    words: tuple[Word, ...] = ()
    """Each word has the characters text[start:end] and the tokens from first_token to last_token."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the patches of an image."""
    lead: int = 0
    """The number of tokens before the patches, such as a class token."""
    image: TracedImage | None = None
    """The image whose patches the tokens are."""


@dataclass(frozen=True, eq=False)
class TracedAttention:
    """One attention of a model, over one sequence or one pair of sequences."""

    name: str
    queries: str
    """The side of the rows."""
    keys: str
    """The side of the columns."""
    look: AttentionRecord
    """The record, of shape (heads, rows, columns)."""
    layer: int | None = None
    """The number of the layer, from 0."""
    kind: str | None = None
    """"self" or "cross"."""

    @property
    def heads(self) -> int:
        """The number of heads."""
        return record_shape(self.look)[0]

    @property
    def rows(self) -> int:
        """The number of queries."""
        return record_shape(self.look)[1]

    @property
    def columns(self) -> int:
        """The number of keys."""
        return record_shape(self.look)[2]

    @property
    def weight_count(self) -> int:
        """The number of weights of all heads."""
        return self.heads * self.rows * self.columns

    def _repr_html_(self) -> str:
        """The maps of all heads, for a notebook."""
        from regard.inspection.pictures.maps import attention_html

        return attention_html(self)


@dataclass(frozen=True)
class SearchNode:
    """One token that a beam search considered, as a continuation of its parent."""

    parent: int
    """The number of an earlier node; -1 for the first token."""
    token: str
    log_probability: float
    total: float
    """The sum of the log-probabilities up to this token."""
    ended: bool
    kept: bool
    """Whether the search continued from it."""
    score: float | None = None
    """The number by which the search ranks it, if it ends a hypothesis."""


@dataclass(frozen=True)
class TracedSearch:
    """The tree of a beam search."""

    beams: int
    nodes: tuple[SearchNode, ...]
    best: tuple[int, ...]
    """The last nodes of the results, the best one first."""
    left_out: int | None = None
    """The number of nodes that the search considered and the trace leaves out; None for 0 or unknown."""
    ranked_by: str | None = None
    """What the scores are: "total", "mean" (total by number of tokens), or another name; None if it is unknown."""


@dataclass(frozen=True)
class GeneratedTokens:
    """The output of a search: its side, and the log-probability of each token."""

    side: str
    log_probabilities: tuple[float, ...]
    score: float | None = None


@dataclass(frozen=True)
class AlignmentPointer:
    """The attention that aligns words best: its number, its head (None for the mean), and its row offset.

    The row of token i is i + offset.
    """

    attention: int
    head: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class TracedInfluence:
    """How much leaving out parts of the input lowers the log-probability of each output token, in nats."""

    rows: str
    """The side of the output."""
    columns: str
    """The side of the input."""
    tokens: tuple[tuple[int, ...], ...]
    """For each column the tokens of the input that were left out together: a word, a group of words, or patches."""
    values: tuple[tuple[float | None, ...], ...]
    """A row for each token of the output; None where leaving out is not defined, such as for a later word."""


@dataclass(frozen=True)
class MeasuredHead:
    """One attention head of the model, over many sentences."""

    cost: float
    """The rise of the loss without this head, in nats."""
    cost_error: float
    """The standard error of the cost."""
    roles: Mapping[str, float]
    """By role the mean attention weight on its places (`regard.inspection.heads`)."""
    role: str | None = None
    """The role that the head has, if it has one."""


@dataclass(frozen=True)
class MeasuredAttention:
    """The heads of one attention of the model, over many sentences."""

    name: str
    """The name of an attention of the trace."""
    even: Mapping[str, float]
    """By role the score of a head that attends to all visible tokens alike."""
    heads: tuple[MeasuredHead, ...]


@dataclass(frozen=True)
class MeasuredHeads:
    """What each head of the model does, measured on sentences other than that of the trace."""

    data: str
    """The name of the sentences, for people."""
    sentences: int
    loss: float
    """The loss of the whole model, in nats."""
    attentions: tuple[MeasuredAttention, ...]


@dataclass(frozen=True)
class TracedPredictions:
    """What a model predicts at each place of a text: how probable each token is, and which ones are most probable."""

    side: str
    log_probabilities: tuple[float | None, ...]
    """One for each token of the side; None where the model predicts nothing, such as the first token of a text."""
    candidates: tuple[tuple[str, ...], ...] = ()
    """The most probable tokens at each place, the best first. One row more than tokens: the last is what comes next."""
    candidate_log_probabilities: tuple[tuple[float, ...], ...] = ()
    """One for each candidate."""


@dataclass(frozen=True)
class AttentionEntry:
    """An attention in the header."""

    name: str
    queries: str
    keys: str
    heads: int
    layer: int | None = None
    kind: str | None = None
    score: str | None = None
    normalize: str | None = None
    mask: MaskEntry = None


def dump_header(trace: "Trace", facts: Sequence[Mapping[str, Any]]) -> str:
    """The header as JSON. `facts` has the score, normaliser and mask of each attention, where they have names."""
    table: dict[str, Any] = {"title": trace.title, "model": trace.model}
    table["sides"] = {name: _side_table(side) for name, side in trace.sides.items()}
    table["attentions"] = [
        {"name": one.name, "layer": one.layer, "kind": one.kind, "queries": one.queries, "keys": one.keys,
         "heads": one.heads, **fact} for one, fact in zip(trace.attentions, facts, strict=True)]
    for key, part in (("written", trace.written), ("alignment", trace.alignment), ("search", trace.search),
                      ("influence", trace.influence), ("heads", trace.heads), ("predictions", trace.predictions)):
        table[key] = None if part is None else dataclasses.asdict(part)
    return json.dumps(_without_none(table), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def load_header(text: str, name: str) -> dict[str, Any]:
    """The parts of a trace in the JSON header of the file `name`; a ValueError lists all problems.

    Attentions are entries, which `record_from_tensors` completes.
    """
    try:
        table = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f'{name}: the metadata "trace" must be a JSON object, but {reason}') from None
    if not isinstance(table, dict):
        raise ValueError(f'{name}: the metadata "trace" must be a JSON object, but is {table!r:.60}')
    found: list[ConfigProblem] = []
    values = config.read_keys(_HEADER_KEYS, _without_foreign(table), (), found)
    if found:
        raise ValueError(str(TomlDocument({}, name).error(found)))
    return values


class _SidesReader(ValueReader):
    """Reads sides by their names."""

    expected = "an object with a side for each name"

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> dict[str, TraceSide]:
        if not isinstance(value, Mapping):
            found.append(config.value_problem(path, self.expected, value))
            return {}
        return {name: self._side(one, (*path, name), found) for name, one in value.items()}

    def _side(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> TraceSide:
        if not isinstance(value, Mapping):
            found.append(config.value_problem(path, "an object with tokens", value))
            return TraceSide(())
        read = config.read_keys(_SIDE_KEYS, value, path, found)
        words = tuple(Word(one.start, one.end, one.first, one.last) for one in read.pop("words", None) or () if one)
        grid = read.pop("grid", None)
        if grid is not None and len(grid) != 2:
            found.append(config.value_problem((*path, "grid"), "two whole numbers, rows and columns", list(grid)))
            grid = None
        image = self._image(read.pop("image", None), (*path, "image"), found)
        return TraceSide(read.pop("tokens", None) or (), words=words, grid=grid, lead=read.pop("lead", 0) or 0,
                         image=image, **read)

    @staticmethod
    def _image(entry: "_ImageEntry | None", path: KeyPath, found: list[ConfigProblem]) -> TracedImage | None:
        if entry is None:
            return None
        try:
            pixels = base64.b64decode(entry.pixels, validate=True)
        except (binascii.Error, ValueError):
            found.append(config.value_problem((*path, "pixels"), "bytes as base64", entry.pixels[:60]))
            return None
        return TracedImage(entry.height, entry.width, entry.channels, pixels)


class _SparseNumbersReader(ValueReader):
    """Reads an array of numbers, in which null is a number that is not defined."""

    expected = "an array of numbers or null"

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> tuple[float | None, ...]:
        if not isinstance(value, list):
            found.append(config.value_problem(path, self.expected, value))
            return ()
        number = ScalarReader(float, None)
        return tuple(None if one is None else number.read(one, (*path, at), found) for at, one in enumerate(value))


class _NumbersReader(ValueReader):
    """Reads numbers by names."""

    expected = "an object with a number for each name"

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> dict[str, float]:
        if not isinstance(value, Mapping):
            found.append(config.value_problem(path, self.expected, value))
            return {}
        number = ScalarReader(float, None)
        return {name: number.read(one, (*path, name), found) for name, one in value.items()}


class _MaskReader(ValueReader):
    """Reads a mask: a name or a window."""

    expected = '"causal", "tensor" or {"left": a number or null, "right": a number or null}'

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> MaskEntry:
        if value in (CAUSAL_MASK, TENSOR_MASK):
            return str(value)
        if isinstance(value, Mapping) and set(value) == {"left", "right"} and all(
                part is None or (type(part) is int and part >= 0) for part in value.values()):
            return value["left"], value["right"]
        found.append(config.value_problem(path, self.expected, value))
        return None


class _ObjectReader(ValueReader):
    """Reads an object with these keys."""

    expected = "an object"

    def __init__(self, keys: Mapping[str, KeySpec], made: Any) -> None:
        self.keys, self.made = keys, made

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        if not isinstance(value, Mapping):
            found.append(config.value_problem(path, self.expected, value))
            return None
        already = len(found)
        read = config.read_keys(self.keys, value, path, found)
        return None if len(found) > already else self.made(**read)


class _ObjectsReader(ValueReader):
    """Reads an array of objects with these keys."""

    expected = "an array of objects"

    def __init__(self, keys: Mapping[str, KeySpec], made: Any) -> None:
        self.element = _ObjectReader(keys, made)

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> tuple[Any, ...]:
        if not isinstance(value, list):
            found.append(config.value_problem(path, self.expected, value))
            return ()
        return tuple(self.element.read(part, (*path, number), found) for number, part in enumerate(value))


@dataclass(frozen=True)
class _WordEntry:
    start: int
    end: int
    first: int
    last: int


@dataclass(frozen=True)
class _ImageEntry:
    height: int
    width: int
    channels: int
    pixels: str


def _name_key(names: Iterable[str]) -> KeySpec:
    valid = tuple(names)
    return KeySpec(ScalarReader(str, FieldRule(str, config.one_of(valid), valid.__contains__, valid)), optional=True)


def _optional_key(annotation: Any) -> KeySpec:
    return dataclasses.replace(config.type_spec(annotation, "trace"), required=False)


_SIDE_KEYS = {
    "tokens": config.type_spec(tuple[str, ...], "tokens"), "text": _optional_key(str | None),
    "words": KeySpec(_ObjectsReader(config.key_specs(_WordEntry), _WordEntry), optional=False, required=False),
    "grid": _optional_key(tuple[int, ...]), "lead": _optional_key(int), "image": _optional_key(_ImageEntry | None)}
_INFLUENCE_KEYS = {
    "rows": config.type_spec(str, "rows"), "columns": config.type_spec(str, "columns"),
    "tokens": config.type_spec(tuple[tuple[int, ...], ...], "tokens"),
    "values": KeySpec(config.ArrayReader(_SparseNumbersReader()), optional=False)}
_MEASURED_HEAD_KEYS = {
    "cost": config.type_spec(float, "cost"), "cost_error": config.type_spec(float, "cost_error"),
    "roles": KeySpec(_NumbersReader(), optional=False), "role": _optional_key(str | None)}
_MEASURED_ATTENTION_KEYS = {
    "name": config.type_spec(str, "name"), "even": KeySpec(_NumbersReader(), optional=False),
    "heads": KeySpec(_ObjectsReader(_MEASURED_HEAD_KEYS, MeasuredHead), optional=False)}
_MEASURED_KEYS = {
    "data": config.type_spec(str, "data"), "sentences": config.type_spec(int, "sentences"),
    "loss": config.type_spec(float, "loss"),
    "attentions": KeySpec(_ObjectsReader(_MEASURED_ATTENTION_KEYS, MeasuredAttention), optional=False)}
_PREDICTION_KEYS = {
    "side": config.type_spec(str, "side"), "log_probabilities": KeySpec(_SparseNumbersReader(), optional=False),
    "candidates": _optional_key(tuple[tuple[str, ...], ...]),
    "candidate_log_probabilities": _optional_key(tuple[tuple[float, ...], ...])}
_ATTENTION_KEYS = {
    **{key: config.type_spec(str, key) for key in ("name", "queries", "keys")},
    "heads": config.type_spec(int, "heads"), "layer": config.type_spec(int | None, "layer"),
    "kind": config.type_spec(str | None, "kind"),
    "score": _name_key((*SCORES, *PARAMETRIC_SCORES)), "normalize": _name_key(NORMALIZERS),
    "mask": KeySpec(_MaskReader(), optional=True)}
_HEADER_KEYS = {
    "title": _optional_key(str), "model": _optional_key(str), "sides": KeySpec(_SidesReader(), optional=False),
    "attentions": KeySpec(_ObjectsReader(_ATTENTION_KEYS, AttentionEntry), optional=False),
    "written": _optional_key(GeneratedTokens | None), "alignment": _optional_key(AlignmentPointer | None),
    "search": _optional_key(TracedSearch | None),
    "influence": KeySpec(_ObjectReader(_INFLUENCE_KEYS, TracedInfluence), optional=True, required=False),
    "heads": KeySpec(_ObjectReader(_MEASURED_KEYS, MeasuredHeads), optional=True, required=False),
    "predictions": KeySpec(_ObjectReader(_PREDICTION_KEYS, TracedPredictions), optional=True, required=False)}


def _side_table(side: TraceSide) -> dict[str, Any]:
    words = [{"start": word.start, "end": word.end, "first": word.first_token, "last": word.last_token}
             for word in side.words]
    image = side.image
    pixels = None if image is None else {
        "height": image.height, "width": image.width, "channels": image.channels,
        "pixels": base64.b64encode(image.pixels).decode("ascii")}
    return {"tokens": list(side.tokens), "text": side.text, "words": words or None,
            "grid": None if side.grid is None else list(side.grid), "lead": side.lead or None, "image": pixels}


def _without_none(value: Any) -> Any:
    """The value without entries that are None, except in windows."""
    if isinstance(value, dict):
        window = set(value) == {"left", "right"}
        return {key: _without_none(part) for key, part in value.items() if part is not None or window}
    return [_without_none(part) for part in value] if isinstance(value, list | tuple) else value


def _without_foreign(value: Any) -> Any:
    """The value without keys of other programs. Names of sides are not keys."""
    if isinstance(value, list):
        return [_without_foreign(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {key: {name: _without_foreign(side) for name, side in part.items()}
            if key == "sides" and isinstance(part, dict) else _without_foreign(part)
            for key, part in value.items() if not key.startswith(FOREIGN_PREFIX)}


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for at, (key, _) in enumerate(pairs) if key in {other for other, _ in pairs[:at]})
        raise ValueError(f"the key {twice!r:.60} occurs twice")
    return table


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


class TabulatedBias(Bias):
    """A bias from a table of a number for each head and each distance, from `lowest` on."""

    table: Tensor

    def __init__(self, table: Tensor, lowest: int) -> None:
        super().__init__()
        self.heads, self.lowest = table.shape[0], lowest
        self.register_buffer("table", table, persistent=False)

    def forward(self, distance: Tensor) -> Tensor:
        indices = (distance - self.lowest).to(self.table.device)
        if indices.dim() == 2:
            return self.table[:, indices]
        return self.table[:, indices.squeeze(-3)].movedim(0, -3)


def record_tensors(record: AttentionRecord, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The facts of the header (score, normaliser, mask), and the tensors."""
    if isinstance(record, WeightMatrix):
        return {}, {"weights": record.given}
    problem = record.problem
    score_name, parameters = _score_tensors(problem)
    normalizer = next((word for word, one in NORMALIZERS.items() if type(one) is type(problem.normalize)), None)
    if score_name is None or normalizer is None:
        _check_size(name, "weights", problem)
        return {}, {"weights": record.weights()}
    mask_entry, mask = _mask_tensor(problem, name)
    query, key = (part if part.dim() > 2 else part.unsqueeze(0) for part in (problem.query, problem.key))
    if isinstance(problem.score, Dot) and SCORES[score_name] is not problem.score:
        query = query * problem.score.scale(query.shape[-1])  # the scale of a user: as the score itself multiplies
    tensors = {"query": query.expand(problem.leading[-1], -1, -1), "key": key, **parameters, **mask,
               **_bias_tensor(problem, name)}
    return {"score": score_name, "normalize": normalizer, "mask": mask_entry}, tensors


def record_from_tensors(entry: AttentionEntry, number: int, tensors: Mapping[str, Tensor]) -> AttentionRecord:
    """The record of an attention from the tensors of a file, in at least single precision."""
    own: dict[str, Tensor] = {}
    for part in ("weights", *LOOK_TENSORS):
        tensor = tensors.get(f"attention.{number}.{part}")
        if tensor is not None:
            own[part] = tensor.bool() if part == "mask" else tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    if "weights" in own:
        return WeightMatrix(own["weights"])
    query, key = own["query"], own["key"].to(own["query"].dtype)
    bias: Tensor | Bias | None = own.get("bias")
    if "distance_bias" in own:
        bias = TabulatedBias(own["distance_bias"], 1 - key.shape[-2])
    score: str | Score = entry.score or "scaled_dot"
    if score == "additive":
        score = Additive(own["weight"], own.get("score_bias"))
    elif score == "bilinear":
        score = Bilinear(own["weight"])
    mask: Mask | None = None
    if isinstance(entry.mask, tuple):
        mask = Window(*entry.mask)
    elif entry.mask is not None:
        mask = Causal() if entry.mask == CAUSAL_MASK else BoolMask(own["mask"])
    return Look(query, key, None, score, entry.normalize or "softmax", mask, bias)


def tensor_problems(entries: Sequence[AttentionEntry], tensors: Mapping[str, TensorSpec]) -> list[str]:
    """The problems of the tensors of a file: names, types and sizes."""
    expected = {f"attention.{number}.{part}" for number in range(len(entries)) for part in ("weights", *LOOK_TENSORS)}
    found = []
    for name in tensors:
        if name not in expected and not name.startswith(FOREIGN_PREFIX):
            near = checks.nearest(name, expected)
            found.append(f'unknown tensor "{name:.80}"{"; " + near if near else ""}')
    for number, entry in enumerate(entries):
        own = {part: tensors[f"attention.{number}.{part}"] for part in ("weights", *LOOK_TENSORS)
               if f"attention.{number}.{part}" in tensors}
        found += [f'tensor "attention.{number}.{part}": {what}' for part, what in _attention_problems(entry, own)]
    return found


def _attention_problems(entry: AttentionEntry, own: Mapping[str, TensorSpec]) -> Iterator[tuple[str, str]]:
    """The problems of the tensors of one attention: the tensor, and what is wrong."""
    if "weights" in own and len(own) > 1:
        other = next(part for part in own if part != "weights")
        yield other, "expected either weights or the tensors that they are computed from"
    needed = ("weights",) if "weights" in own else ("query", "key", *_required_tensors(entry))
    missing = [part for part in needed if part not in own]
    for part in missing:
        what = 'missing; expected it, or "weights"' if part in ("query", "key") else "missing"
        yield part, what
    for part, stored in own.items():
        if stored.dtype not in (FLAG_TYPES if part == "mask" else FLOAT_TYPES):
            yield part, f"expected {'bool or uint8' if part == 'mask' else 'float16, bfloat16, float32 or float64'}, " \
                        f"but it is {str(stored.dtype).removeprefix('torch.')}"
    if not missing:
        yield from _size_problems(entry, {part: stored.shape for part, stored in own.items()})


def _size_problems(entry: AttentionEntry, own: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, str]]:
    heads = entry.heads
    if "weights" in own:
        if len(own["weights"]) != 3 or own["weights"][0] != heads:
            yield "weights", f"expected {heads} heads × rows × columns, but it is {own['weights']}"
        return
    query, key = own["query"], own["key"]
    if len(query) != 3 or query[0] != heads or query[2] == 0:
        yield "query", f"expected {heads} heads × rows × width, but it is {query}"
    elif len(key) != 3 or key[0] == 0 or heads % key[0]:
        yield "key", f"expected heads that divide {heads} × columns × width, but it is {key}"
    else:
        n, N, D = query[1], key[1], query[2]
        wanted: dict[str, list[tuple[int, ...]]] = {
            "mask": [(heads, n, N), (1, n, N)], "bias": [(heads, n, N), (1, n, N)],
            "distance_bias": [(heads, n + N - 1)], "score_bias": [(heads, D)],
            "weight": [(heads, D, key[2]) if entry.score == "bilinear" else (heads, D)]}
        if entry.score != "bilinear" and key[2] != D:
            yield "key", f"expected the width {D} of the query, but it is {key}"
        for part, shapes in wanted.items():
            if part in own and own[part] not in shapes:
                yield part, f"expected {' or '.join(map(str, shapes))}, but it is {own[part]}"
    if "bias" in own and "distance_bias" in own:
        yield "bias", "expected either bias or distance_bias, but both are there"
    for part in {"mask", "weight", "score_bias"} & set(own):
        if part not in _allowed_tensors(entry):
            yield part, f"not expected: the header says score {entry.score or 'scaled_dot'}, mask {entry.mask}"


def _required_tensors(entry: AttentionEntry) -> Iterator[str]:
    if entry.mask == TENSOR_MASK:
        yield "mask"
    if entry.score in ("additive", "bilinear"):
        yield "weight"


def _allowed_tensors(entry: AttentionEntry) -> set[str]:
    return {*_required_tensors(entry), *(["score_bias"] if entry.score == "additive" else [])}


def _score_tensors(problem: AttentionProblem) -> tuple[str | None, dict[str, Tensor]]:
    """The name of the score (None for a custom one), and its parameters for each head."""
    heads = problem.leading[-1]
    if isinstance(problem.score, Dot):
        name = next((name for name, score in SCORES.items() if score is problem.score), None)
        return name or "dot", {}  # with another scale it is the dot product of scaled queries
    if isinstance(problem.score, Additive):
        own = {"weight": problem.score.weight, "score_bias": problem.score.bias}
        return "additive", {part: one.detach().expand(heads, -1) for part, one in own.items() if one is not None}
    if isinstance(problem.score, Bilinear):
        return "bilinear", {"weight": problem.score.weight.detach().expand(heads, -1, -1)}
    return None, {}


def _mask_tensor(problem: AttentionProblem, name: str) -> tuple[Any, dict[str, Tensor]]:
    """The mask in the header, and its tensor if it has no other form."""
    mask = None if problem.mask is None else _as_window(problem.mask)
    if mask is None:
        return None, {}
    if isinstance(mask, Window):
        return CAUSAL_MASK if (mask.left, mask.right) == (None, 0) else {"left": mask.left, "right": mask.right}, {}
    _check_size(name, "mask", problem)
    matrix = mask.matrix(problem.n_queries, problem.n_keys, leading=1, device=problem.query.device)
    matrix = matrix if matrix.dim() == 3 else matrix.unsqueeze(0)
    found = recognize_mask(matrix)
    if isinstance(found, BoolMask):
        return TENSOR_MASK, {"mask": matrix}
    return (None if found is None else CAUSAL_MASK), {}


def _as_window(mask: Mask) -> Mask:
    """Causal masks, windows and their conjunctions as one window; any other mask unchanged."""
    if not is_distance_mask(mask):
        return mask
    parts = mask.members if isinstance(mask, AndMask) else (mask,)
    windows = [part if isinstance(part, Window) else Window(None, 0) for part in parts]
    lefts, rights = ([limit for limit in limits if limit is not None] for limits in
                     ([window.left for window in windows], [window.right for window in windows]))
    return Window(min(lefts, default=None), min(rights, default=None))


def _bias_tensor(problem: AttentionProblem, name: str) -> dict[str, Tensor]:
    """The bias by distance, if it depends on nothing else, or as a matrix."""
    if problem.bias is None:
        return {}
    if isinstance(problem.bias, Bias) and not (problem.mask is not None and problem.mask.sets_positions):
        distances = torch.arange(1 - problem.n_keys, problem.n_queries, device=problem.query.device)
        return {"distance_bias": problem.bias(distances.unsqueeze(0)).detach().squeeze(-2)}
    _check_size(name, "bias", problem)
    added = problem.block_bias(problem.indices())
    assert added is not None
    added = added.detach().reshape((1,) * (3 - added.dim()) + tuple(added.shape))
    return {"bias": added.expand(-1, problem.n_queries, problem.n_keys)}


def _check_size(name: str, what: str, problem: AttentionProblem) -> None:
    if problem.n_pairs > MAX_MATRIX_ENTRIES:
        raise ValueError(f'"{name}" cannot be stored: its {what} would be a matrix of {problem.n_pairs:,} numbers, '
                         f"more than {MAX_MATRIX_ENTRIES:,}. Masks, scores and normalisers of regard need no matrix.")
