"""Which of their tensors is which of ours, and how one becomes the other: one table a family, used both ways.

    Rule("h.{i}.attn.c_proj.weight", ("blocks.{i}.mixer.layer.output.weight",), TRANSPOSED)

{i} stands for the number of a layer, * at the end for weight or bias. A rule holds where our model has the tensor, so
that a table names the biases, heads and output layers that only some models of a family have.

It knows names, shapes and tensors. It does not know any family, any file, or what a tensor is for.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from regard.storage.weights import Entry, place


class Way(NamedTuple):
    """How one of their tensors becomes some of ours, and how ours become theirs again, to the bit."""

    words: str
    read: Callable[[Tensor], tuple[Tensor, ...]]
    write: Callable[[tuple[Tensor, ...]], Tensor]


def leading(count: int) -> Way:
    """Theirs has so many dimensions of size 1 in front."""
    ones = (1,) * count
    return Way(f"{count} leading dimension{'s' if count > 1 else ''} of 1 removed",
               lambda theirs: (theirs.flatten(0, count),), lambda ours: ours[0].reshape(*ones, *ours[0].shape))


def grid(channels: int, patch: int) -> Way:
    """Theirs is a convolution over patches, ours a matrix: channel by channel, row by row."""
    return Way("each filter as one row", lambda theirs: (theirs.flatten(1),),
               lambda ours: ours[0].reshape(-1, channels, patch, patch))


SAME = Way("as it is", lambda theirs: (theirs,), lambda ours: ours[0])
TRANSPOSED = Way("transposed", lambda theirs: (theirs.t(),), lambda ours: ours[0].t())
THIRDS = Way("in three parts", lambda theirs: theirs.chunk(3), torch.cat)
TRANSPOSED_THIRDS = Way("transposed, in three parts", lambda theirs: theirs.t().chunk(3),
                        lambda ours: torch.cat(ours).t())


class Rule(NamedTuple):
    """One of their tensors, and the one or more of ours that it is."""

    theirs: str
    ours: tuple[str, ...]
    way: Way = SAME


class Unused(NamedTuple):
    """A tensor of theirs that our model does without, and why."""

    theirs: str
    why: str


class Match(NamedTuple):
    """A rule as it holds for one model: names in full, the one that is written first among theirs."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    way: Way

    def shape(self, state: Mapping[str, Tensor]) -> tuple[int, ...]:
        """The shape that theirs has, told by ours, which may be on the device "meta"."""
        return tuple(self.way.write(tuple(state[name] for name in self.ours)).shape)


class Matches(NamedTuple):
    """All that holds for one model."""

    found: list[Match]
    second: dict[str, str]
    """Our names of tensors that have another one already, and that first name."""
    without: list[str]
    """Our tensors that no rule is about."""


def matched(rules: Iterable[Rule], state: Mapping[str, Tensor]) -> Matches:
    """The rules for a model with this state. What is one tensor in it is one of theirs, under any of their names."""
    first: dict[object, str] = {}
    kept = {name: first.setdefault(place(tensor), name) for name, tensor in state.items()}
    theirs_of: dict[tuple[str, ...], list[str]] = {}
    ways: dict[tuple[str, ...], Way] = {}
    for rule in rules:
        for name in state:
            parts = _pattern(rule.ours[0]).fullmatch(name)
            if parts is None:
                continue
            ours = tuple(kept[_filled(pattern, parts)] for pattern in rule.ours)
            theirs_of.setdefault(ours, []).append(_filled(rule.theirs, parts))
            ways.setdefault(ours, rule.way)
    told = {name for ours in theirs_of for name in ours}
    return Matches([Match(tuple(theirs), ours, ways[ours]) for ours, theirs in theirs_of.items()],
                   {name: one for name, one in kept.items() if name != one},
                   [name for name, one in kept.items() if one not in told])


def is_unused(name: str, unused: Iterable[Unused]) -> bool:
    """Whether this tensor of theirs is known to be one that our models do without."""
    return any(_pattern(one.theirs).fullmatch(name) for one in unused)


def wanted(matches: Matches, state: Mapping[str, Tensor], present: Iterable[str]) -> dict[str, Entry]:
    """What must be in a file that has the tensors `present`: of several names for one tensor, one is enough."""
    there, entries = set(present), dict[str, Entry]()
    for match in matches.found:
        names = [name for name in match.theirs if name in there] or [match.theirs[0]]
        entries |= {name: Entry(state[match.ours[0]].dtype, match.shape(state)) for name in names}
    return entries


def to_theirs(matches: Matches, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors as theirs, each under one name."""
    return {match.theirs[0]: match.way.write(tuple(tensors[name] for name in match.ours)).contiguous()
            for match in matches.found}


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\*", "(?P<part>weight|bias)"))


def _filled(pattern: str, parts: re.Match[str]) -> str:
    for mark, value in (("{i}", parts.groupdict().get("i")), ("*", parts.groupdict().get("part"))):
        pattern = pattern if value is None else pattern.replace(mark, value)
    return pattern
