"""The tensors of a trace: those that a look is made from, checked by their sizes, and the look made of them again.

What is small at any length is kept: queries, keys, parameters of the score, a mask by its name, a bias by distances. A
score or a normaliser of somebody's own has no name in a file: its weights are written out. It knows looks; it does not
know which model they are from, nor the file.

Legend: H heads, h heads of keys, n rows, N columns, D width.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard import checks
from regard.attention import normalize, score
from regard.attention.look import Look
from regard.attention.looked import MATRIX_HELD
from regard.attention.mask import All, Allowed, Causal, Mask, Window
from regard.attention.problem import Problem
from regard.inspection.matrix import Matrix
from regard.inspection.matrix_masks import recognised
from regard.inspection.trace.header import CAUSAL, TENSOR, Entry
from regard.inspection.trace.parts import AnyLook
from regard.position.bias import Bias
from regard.storage.weights import Entry as Stored

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FLAGS = (torch.bool, torch.uint8)
MADE_FROM = ("query", "key", "mask", "bias", "distance_bias", "weight", "score_bias")


class ByDistance(Bias):
    """A bias that is given as a number for each head and each distance, from `lowest` on."""

    table: Tensor

    def __init__(self, table: Tensor, lowest: int) -> None:
        super().__init__()
        self.heads, self.lowest = table.shape[0], lowest
        self.register_buffer("table", table, persistent=False)

    def forward(self, distance: Tensor) -> Tensor:
        places = (distance - self.lowest).to(self.table.device)
        if places.dim() == 2:
            return self.table[:, places]
        return self.table[:, places.squeeze(-3)].movedim(0, -3)


def taken(look: AnyLook, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the header says of the score, the normaliser and the mask, and the tensors."""
    if isinstance(look, Matrix):
        return {}, {"weights": look.given}
    problem = look.problem
    scoring, parameters = _score(problem)
    normalizing = next((word for word, one in normalize.NAMES.items() if type(one) is type(problem.normalize)), None)
    if scoring is None or normalizing is None:
        _check_size(name, "weights", problem)
        return {}, {"weights": look.weights()}
    masked, mask = _mask(problem, name)
    query, key = (part if part.dim() > 2 else part.unsqueeze(0) for part in (problem.query, problem.key))
    tensors = {"query": query.expand(problem.leading[-1], -1, -1), "key": key, **parameters, **mask,
               **_bias(problem, name)}
    return {"score": scoring, "normalize": normalizing, "mask": masked}, tensors


def made(entry: Entry, number: int, tensors: Mapping[str, Tensor]) -> AnyLook:
    """The look of an attention, from the tensors of the file, in numbers of at least single precision."""
    own: dict[str, Tensor] = {}
    for part in ("weights", *MADE_FROM):
        tensor = tensors.get(f"attention.{number}.{part}")
        if tensor is not None:
            wide = tensor.bool() if part == "mask" else tensor.to(torch.promote_types(tensor.dtype, torch.float32))
            own[part] = wide
    if "weights" in own:
        return Matrix(own["weights"])
    query, key = own["query"], own["key"].to(own["query"].dtype)
    bias: Tensor | Bias | None = own.get("bias")
    if "distance_bias" in own:
        bias = ByDistance(own["distance_bias"], 1 - key.shape[-2])
    scores: dict[str, Any] = {"additive": lambda: score.Additive(own["weight"], own.get("score_bias")),
                              "bilinear": lambda: score.Bilinear(own["weight"])}
    named = entry.score or "scaled_dot"
    scoring = scores[named]() if named in scores else named
    masks: dict[Any, Any] = {None: lambda: None, CAUSAL: Causal, TENSOR: lambda: Allowed(own["mask"])}
    mask = Window(*entry.mask) if isinstance(entry.mask, tuple) else masks[entry.mask]()
    return Look(query, key, None, scoring, entry.normalize or "softmax", mask, bias)


def problems(entries: Sequence[Entry], tensors: Mapping[str, Stored]) -> list[str]:
    """What is wrong with the tensors of a file: names, numbers and sizes."""
    expected = {f"attention.{number}.{part}" for number in range(len(entries)) for part in ("weights", *MADE_FROM)}
    found = []
    for name in tensors:
        if name not in expected and not name.startswith("x-"):
            near = checks.nearest(name, expected)
            found.append(f'unknown tensor "{name:.80}"{"; " + near if near else ""}')
    for number, entry in enumerate(entries):
        own = {part: tensors[f"attention.{number}.{part}"] for part in ("weights", *MADE_FROM)
               if f"attention.{number}.{part}" in tensors}
        found += [f'tensor "attention.{number}.{part}": {what}' for part, what in _of_one(entry, own)]
    return found


def _of_one(entry: Entry, own: Mapping[str, Stored]) -> Iterator[tuple[str, str]]:
    """What is wrong with the tensors of one attention: which, and why."""
    if "weights" in own and len(own) > 1:
        other = next(part for part in own if part != "weights")
        yield other, "expected the weights alone, or what they are made from"
    needed = ("weights",) if "weights" in own else ("query", "key", *_needed(entry))
    missing = [part for part in needed if part not in own]
    for part in missing:
        what = 'missing; expected it, or "weights"' if part in ("query", "key") else "missing"
        yield part, what
    for part, stored in own.items():
        if stored.dtype not in (FLAGS if part == "mask" else FLOATS):
            yield part, f"expected {'bool or uint8' if part == 'mask' else 'float16, bfloat16, float32 or float64'}, " \
                        f"but it is {str(stored.dtype).removeprefix('torch.')}"
    if not missing:
        yield from _of_sizes(entry, {part: stored.shape for part, stored in own.items()})


def _of_sizes(entry: Entry, own: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, str]]:
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
        yield "bias", "expected a bias of its own or one by distance, but both are there"
    for part in {"mask", "weight", "score_bias"} & set(own):
        if part not in _allowed(entry):
            yield part, f"not expected: the header says score {entry.score or 'scaled_dot'}, mask {entry.mask}"


def _needed(entry: Entry) -> Iterator[str]:
    if entry.mask == TENSOR:
        yield "mask"
    if entry.score in ("additive", "bilinear"):
        yield "weight"


def _allowed(entry: Entry) -> set[str]:
    return {*_needed(entry), *(["score_bias"] if entry.score == "additive" else [])}


def _score(problem: Problem) -> tuple[str | None, dict[str, Tensor]]:
    """The name of the score and its parameters, one set a head; None where it has no name."""
    heads = problem.leading[-1]
    if isinstance(problem.score, score.Dot):
        return (problem.score.name if score.NAMES.get(problem.score.name) is problem.score else None), {}
    if isinstance(problem.score, score.Additive):
        own = {"weight": problem.score.weight, "score_bias": problem.score.bias}
        return "additive", {part: one.detach().expand(heads, -1) for part, one in own.items() if one is not None}
    if isinstance(problem.score, score.Bilinear):
        return "bilinear", {"weight": problem.score.weight.detach().expand(heads, -1, -1)}
    return None, {}


def _mask(problem: Problem, name: str) -> tuple[Any, dict[str, Tensor]]:
    """What the header says of the mask, and its tensor where it has no other form."""
    mask = None if problem.mask is None else _of_distance(problem.mask)
    if mask is None:
        return None, {}
    if isinstance(mask, Window):
        return CAUSAL if (mask.left, mask.right) == (None, 0) else {"left": mask.left, "right": mask.right}, {}
    _check_size(name, "mask", problem)
    matrix = mask.matrix(problem.n_queries, problem.n_keys, leading=1, device=problem.query.device)
    matrix = matrix if matrix.dim() == 3 else matrix.unsqueeze(0)
    found = recognised(matrix)
    if isinstance(found, Allowed):
        return TENSOR, {"mask": matrix}
    return (None if found is None else CAUSAL), {}


def _of_distance(mask: Mask) -> Mask:
    """Causal masks and windows, alone or together, as one window; any other mask as it is."""
    parts = mask.members if isinstance(mask, All) else (mask,)
    if not all(type(part) in (Causal, Window) for part in parts):
        return mask
    windows = [part if isinstance(part, Window) else Window(None, 0) for part in parts]
    sides = ([limit for limit in limits if limit is not None] for limits in
             ([window.left for window in windows], [window.right for window in windows]))
    return Window(*(min(limits, default=None) for limits in sides))


def _bias(problem: Problem, name: str) -> dict[str, Tensor]:
    """What is added to the scores: by distance where that says all of it."""
    if problem.bias is None:
        return {}
    if isinstance(problem.bias, Bias) and not (problem.mask is not None and problem.mask.moves):
        distances = torch.arange(1 - problem.n_keys, problem.n_queries, device=problem.query.device)
        return {"distance_bias": problem.bias(distances.unsqueeze(0)).detach().squeeze(-2)}
    _check_size(name, "bias", problem)
    added = problem.added(problem.block())
    assert added is not None
    added = added.detach().reshape((1,) * (3 - added.dim()) + tuple(added.shape))
    return {"bias": added.expand(-1, problem.n_queries, problem.n_keys)}


def _check_size(name: str, what: str, problem: Problem) -> None:
    if problem.pairs > MATRIX_HELD:
        raise ValueError(f'"{name}" cannot be written: its {what} would be a matrix of {problem.pairs:,} numbers, more '
                         f"than {MATRIX_HELD:,}. A mask, a score and a normaliser of regard have forms that are small.")
