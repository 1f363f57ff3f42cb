"""Tensors by name into a module: all of them, of the right shapes, or none.

Everything that does not fit is told at once, with the nearest name where one is close. A comparison needs no tensors,
only their dtypes and shapes, so that a file can be compared with a module on the device "meta" before anything is
allocated.

It knows modules and names. It does not know which model it fills, nor where the tensors come from: `origin` says that,
for the messages.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from regard import checks
from regard.storage.weights import Entry, place

SHOWN = 10
"""How many names of each kind of difference a message lists."""


def fill(module: nn.Module, tensors: Mapping[str, Tensor], *, origin: str) -> None:
    """Copy these tensors into the parameters and persistent buffers of the module, or refuse and write nothing.

    The module keeps its dtypes and devices. Floating-point numbers are rounded to its dtype, which changes nothing
    where that is wider; one that is finite and too large for it is refused. Other dtypes must be equal. A tensor that
    the module has under several names may come under one of them, or under more if they are equal.
    """
    own = _tensors(module)
    compare(module, entries(tensors), origin=origin)
    absent = [name for name, tensor in own.items() if tensor.is_meta]
    if absent:
        remedy = 'Give it storage first: module.to_empty(device="cpu").'
        raise checks.wrong("module", "one with storage", f'on the device "meta", at {absent[0]!r}', remedy)
    chosen: dict[str, Tensor] = {}
    complaints: list[str] = []
    for names in _groups(own):
        given = [name for name in names if name in tensors]
        chosen[given[0]] = tensors[given[0]]
        complaints += [f"{given[0]!r} and {other!r} are one tensor in the module, but differ"
                       for other in given[1:] if not _equal(tensors[given[0]], tensors[other])]
        if _overflows(tensors[given[0]], own[given[0]].dtype):
            complaints.append(f"{given[0]!r} has numbers too large for {own[given[0]].dtype}")
    if complaints:
        raise _unfit(origin, type(module).__name__, complaints)
    with torch.no_grad():
        for name, tensor in chosen.items():
            own[name].copy_(tensor)


def made(build: Callable[[], nn.Module], tensors: Mapping[str, Tensor], *, origin: str) -> nn.Module:
    """The module that `build` makes, with these tensors in it.

    What the module started with is thrown away, so the random state is as if it had never been drawn.
    """
    with torch.random.fork_rng(devices=[]):
        module = build()
    fill(module, tensors, origin=origin)
    return module


def compare(module: nn.Module, found: Mapping[str, Entry], *, origin: str) -> None:
    """Refuse names, shapes and dtypes that are not those of the module, which may be on the device "meta"."""
    own = entries(_tensors(module))
    wanted: dict[str, Entry] = {}
    for names in _groups(_tensors(module)):
        given = [name for name in names if name in found]
        wanted |= {name: own[name] for name in given or names[:1]}  # of several names for one tensor, one is enough
    match(wanted, found, origin=origin, owner=type(module).__name__)


def match(wanted: Mapping[str, Entry], found: Mapping[str, Entry], *, origin: str, owner: str) -> None:
    """Refuse tensors that are not, by name, shape and dtype, those of their owner. Floats may differ in their width."""
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted]
    complaints = _cut("missing", missing, lambda name: f"missing: {name!r:.200}")
    complaints += _cut("unexpected", unexpected, lambda name: " ".join(
        filter(None, (f"unexpected: {name!r:.200}", checks.nearest(name[:200], missing)))))
    common = {name: (wanted[name], found[name]) for name in wanted if name in found}
    differing = [name for name, (ours, theirs) in common.items() if not _alike(ours, theirs)]
    complaints += _cut("different", differing, lambda name: "different: {!r:.200} must be {}, but is {}".format(
        name, *map(_worded, common[name])))
    if complaints:
        raise _unfit(origin, owner, complaints)


def entries(tensors: Mapping[str, Tensor]) -> dict[str, Entry]:
    """What `match` needs to know of tensors."""
    return {name: Entry(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, under all their names."""
    state = module.state_dict(keep_vars=True)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            got = f"one with {name!r}, {checks.kind(value)[0]}"
            raise checks.wrong("module", "one whose state is of tensors only", got)
    return dict(state)


def _groups(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """The names, those of one and the same tensor together."""
    groups: dict[object, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(place(tensor), []).append(name)
    return list(groups.values())


def _alike(ours: Entry, theirs: Entry) -> bool:
    floating = ours.dtype.is_floating_point and theirs.dtype.is_floating_point
    return ours.shape == theirs.shape and (ours.dtype == theirs.dtype or floating)


def _equal(first: Tensor, second: Tensor) -> bool:
    """Equal to the bit, so that NaN is equal to itself."""
    if place(first) == place(second):
        return True
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    left, right = (tensor.detach().reshape(-1).view(torch.uint8) for tensor in (first, second))
    return torch.equal(left, right)


def _overflows(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether a finite number is larger than all of this dtype."""
    if not tensor.is_floating_point() or torch.finfo(dtype).max >= torch.finfo(tensor.dtype).max:
        return False
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()  # bfloat16 does not have float16's largest
    return bool((wide.isfinite() & (wide.abs() > torch.finfo(dtype).max)).any())


def _cut(kind: str, names: list[str], worded: Callable[[str], str]) -> list[str]:
    """A line for each of the first names, and how many more there are."""
    more = [f"and {len(names) - SHOWN} more {kind}"] if len(names) > SHOWN else []
    return [worded(name) for name in names[:SHOWN]] + more


def _worded(entry: Entry) -> str:
    return f"{entry.dtype} of shape {entry.shape}"


def _unfit(origin: str, owner: str, complaints: Iterable[str]) -> ValueError:
    remedy = "\n  ".join(("These do not fit:", *complaints))
    return checks.wrong(origin, f"the tensors of this {owner}", "not", remedy)
