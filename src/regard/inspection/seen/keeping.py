"""What is kept of every run of an attention: queries and keys in storage of their own, up to a limit.

A layer hands out looks that share memory with the model: caches that are written on, parameters that are trained on.
What is kept here changes no more. It does not know models, nor what is made of the looks.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from regard.attention.attend import AnyScore
from regard.attention.look import Look
from regard.attention.looked import Looked
from regard.attention.mask import Allowed, Mask, Padding, as_mask
from regard.attention.score import Additive, Bilinear
from regard.inspection.matrix import Matrix
from regard.inspection.seen.runs import Run
from regard.inspection.trace.parts import AnyLook


class _Copy(NamedTuple):
    """What was copied, what it was like then, and the copy."""

    part: nn.Module | None
    """A module is held, so that no other has its id."""
    storage: StorageWeakRef | None
    """Of a tensor: when it is gone, another may be in its place."""
    now: list[tuple[Any, ...]]
    own: Any


class Later:
    """What a look is made from, when it is asked for."""

    def __init__(self, given: dict[str, Any], make: Callable[[dict[str, Any]], Look]) -> None:
        self._given, self._make = given, make
        self._made: Look | None = None

    def look(self) -> Look:
        """The look, made once."""
        if self._made is None:
            self._made = self._make(self._given)
        return self._made


class Keeping:
    """The runs of all attentions, by name, as long as they fit into so many bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self.runs: dict[str, list[Run | Later | Matrix | None]] = {}
        """In their order; None for one that was not kept."""
        self._stored: dict[int, Tensor] = {}
        self._copies: dict[Any, _Copy] = {}

    def take(self, name: str, look: Look, *, strict: bool = False, settled: frozenset[str] = frozenset()) -> None:
        """Keep a look of this attention. Into what is `settled`, "query" or "key", nobody writes any more."""
        runs = self.runs.setdefault(name, [])
        run = runs[-1] if runs else None
        if not (isinstance(run, Run) and run.goes_on(look)):
            run = Run(strict)
            runs.append(run)
        if not run.lost:
            self._add(run, look, settled)
        run.note(look)

    def give(self, name: str, matrix: Matrix) -> None:
        """Keep weights that were computed whole."""
        fits = self.held + _bytes(matrix.given) <= self.limit
        self.held += _bytes(matrix.given) if fits else 0
        self.runs.setdefault(name, []).append(Matrix(matrix.given.clone()) if fits else None)

    def later(self, name: str, given: Mapping[str, Any], make: Callable[[dict[str, Any]], Look]) -> None:
        """Keep the tensors that were given, from which the look is made when it is asked for."""
        own = {id(one): one for one in given.values() if isinstance(one, Tensor)}
        size = sum(map(_bytes, own.values()))
        runs = self.runs.setdefault(name, [])
        if self.held + size > self.limit:
            runs.append(None)
            return
        self.held += size
        copies = {key: one.detach().clone() for key, one in own.items()}
        runs.append(Later({key: copies.get(id(one), one) for key, one in given.items()}, make))

    def copied(self, part: Any) -> Any:
        """A parameter, a table or a module as it is now: a copy, which is made once as long as it stays so."""
        whole = isinstance(part, nn.Module)
        if not whole and part.is_inference():
            return part.clone()  # nobody counts what is written into it
        # Layers are given slices of one table, each a tensor of its own: it is told by its place.
        where = id(part) if whole else (part.data_ptr(), part.shape, part.stride())
        tensors = [*part.parameters(), *part.buffers()] if whole else [part]
        now = [(tensor.data_ptr(), tensor.dtype, 0 if tensor.is_inference() else tensor._version) for tensor in tensors]
        known = self._copies.get(where)
        if known is None or known.now != now or (known.storage is not None and known.storage.expired()):
            own = copy.deepcopy(part).requires_grad_(False) if whole else part.detach().clone()
            known = _Copy(part if whole else None, None if whole else StorageWeakRef(part.untyped_storage()), now, own)
            self._copies[where] = known
        return known.own

    def look(self, name: str, number: int) -> AnyLook | None:
        """That of this run; None where it was not kept."""
        run = self.runs[name][number]
        return run if run is None or isinstance(run, Matrix) else run.look()

    def lost(self) -> dict[str, int]:
        """How many runs of each attention were not kept."""
        counts = {name: sum(run is None or (isinstance(run, Run) and run.lost) for run in runs)
                  for name, runs in self.runs.items()}
        return {name: count for name, count in counts.items() if count}

    def _add(self, run: Run, look: Look, settled: frozenset[str]) -> None:
        mask = None if look.mask is None else as_mask(look.mask).each(self._own_mask)
        bias = None if look.bias is None else self.copied(look.bias)
        before = run.pieces[-1].key if run.pieces else None
        same = before is not None and before.shape == look.key.shape
        tables = [*_tensors(mask), *([bias] if isinstance(bias, Tensor) else [])]
        added = {place: one for one in tables if (place := one.untyped_storage().data_ptr()) not in self._stored}
        shared = sum(map(_bytes, added.values()))  # by other runs, and kept when this one is lost
        size = _bytes(look.query) + (0 if same else _bytes(look.key) - (0 if before is None else _bytes(before)))
        if self.held + size + shared > self.limit:
            self.held -= run.bytes
            run.lose()
            return
        self.held += size + shared
        run.bytes += size
        self._stored |= added
        query, key = (tensor.detach() if name in settled and _whole(tensor) else tensor.detach().clone()
                      for name, tensor in (("query", look.query), ("key", look.key[..., :0, :] if same else look.key)))
        run.add(Look(query, key if before is None or not same else before, None, self._own_score(look.score),
                     look.normalize, mask, bias))

    def _own_mask(self, part: Mask) -> Mask:
        """A mask whose tensors nobody else changes. What was looked up for one pass is not changed by anybody."""
        if isinstance(part, Allowed) and not isinstance(part, Looked):
            return Allowed(self.copied(part.tensor))
        return Padding(part.lengths.clone(), part.side) if type(part) is Padding else part

    def _own_score(self, score: AnyScore) -> AnyScore:
        """The score with parameters that are trained no more."""
        if isinstance(score, Additive):
            return Additive(self.copied(score.weight), None if score.bias is None else self.copied(score.bias))
        return Bilinear(self.copied(score.weight)) if isinstance(score, Bilinear) else score


def _tensors(mask: Mask | None) -> list[Tensor]:
    """The matrices of a mask."""
    found: list[Tensor] = []

    def look_at(part: Mask) -> Mask:
        found.extend([part.tensor] if isinstance(part, Allowed) else [])
        return part

    if mask is not None:
        mask.each(look_at)
    return found


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _whole(tensor: Tensor) -> bool:
    """Whether a tensor is all of its storage, so that keeping it keeps no more."""
    return tensor.untyped_storage().nbytes() == _bytes(tensor)
