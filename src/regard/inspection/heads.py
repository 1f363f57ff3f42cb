"""What an attention head does: how much of its weight is on places with a meaning, and a model without the head.

    role_places(tokens, "self")["previous"]     the places of a role in one sequence, (n, N)
    scores = RoleScores()
    scores.add(look.weights(), places, visible_keys(look))
    scores.means()["previous"]                  the mean weight that each head has there
    with zeroed_head(layer, 3):                 the model computes without this head
        model(tokens)

The score of a role is the mean weight that a head puts on the places of the role: of a query, the weights of all its
places are added, and the mean is over the queries that have such a place among the keys that they may attend to. A
query that may attend to one key only has no choice, and does not count. `even` is the score of a head that attends to
all visible keys alike; where it is high, a high score says little.

Self-attention has the roles itself, previous, next, first, separators, same and after_same; cross-attention has first,
separators, in_order, same and gold. This file knows tokens and weights; `regard.tasks.heads` knows models and data.

Legend: B sequences, H heads, n queries (rows), N keys (columns).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.attention.layer import AttentionLayer
from regard.attention.look import Look
from regard.attention.mask import as_mask
from regard.inspection.recorder import CROSS, SELF

NEAR = 1
"""How many tokens a place of the role "in_order" may be from the diagonal."""
MIN_SHARE, MIN_LIFT = 0.5, 2.0
"""A head has a role if at least half of its weight is there, and at least twice what even weights would put there."""


class AttentionTokens(NamedTuple):
    """The tokens of the rows and columns of one attention map."""

    queries: Sequence[str]
    keys: Sequence[str]
    separators: Sequence[bool] = ()
    """For each key whether it is a special token, or a token without a letter or a digit; by default none is."""
    links: frozenset[tuple[int, int]] = frozenset()
    """The gold links (row, column) between tokens."""


def _itself(given: AttentionTokens) -> Tensor:
    """itself: the key of the query's own token."""
    return _shifted(given, 0)


def _previous(given: AttentionTokens) -> Tensor:
    """previous: the key before the query's own token."""
    return _shifted(given, -1)


def _next(given: AttentionTokens) -> Tensor:
    """next: the key after the query's own token."""
    return _shifted(given, 1)


def _first(given: AttentionTokens) -> Tensor:
    """first: the first key of the sequence, such as a start token or [CLS]."""
    places = _no_places(given)
    places[:, :1] = True
    return places


def _separators(given: AttentionTokens) -> Tensor:
    """separators: all special tokens (end, separator, start, language) and tokens without a letter or a digit."""
    flags = given.separators or [False] * len(given.keys)
    return torch.tensor(flags, dtype=torch.bool).expand(len(given.queries), -1).clone()


def _in_order(given: AttentionTokens) -> Tensor:
    """in_order: the key at the same share of the sequence as the query, and one more on each side of it.

    Query i of n belongs to key round(i (N - 1) / (n - 1)) of N.
    """
    rows, columns = len(given.queries), len(given.keys)
    slope = (columns - 1) / (rows - 1) if rows > 1 else 0.0
    centre = torch.floor(torch.arange(rows, dtype=torch.float64) * slope + 0.5)
    return (torch.arange(columns) - centre.unsqueeze(-1)).abs() <= NEAR


def _same(given: AttentionTokens) -> Tensor:
    """same: the keys with the same token as the query, at other positions in self-attention.

    In cross-attention the token of a query is the one that is predicted from it: a name or a number that is copied.
    """
    numbers: dict[str, int] = {}
    queries, keys = (torch.tensor([numbers.setdefault(token, len(numbers)) for token in side], dtype=torch.long)
                     for side in (given.queries, given.keys))
    return queries.unsqueeze(-1) == keys


def _same_elsewhere(given: AttentionTokens) -> Tensor:
    return _same(given) & ~_itself(given)


def _after_same(given: AttentionTokens) -> Tensor:
    """after_same: the keys right after an occurrence of the query's token at another position (induction).

    The query's own key is none of them.
    """
    after = _no_places(given)
    after[:, 1:] = _same_elsewhere(given)[:, :-1]
    return after & ~_itself(given)


def _gold(given: AttentionTokens) -> Tensor:
    """gold: the keys that are linked to the query by the data; only queries with a link count."""
    places = _no_places(given)
    for row, column in given.links:
        places[row, column] = True
    return places


def _shifted(given: AttentionTokens, distance: int) -> Tensor:
    rows, columns = torch.arange(len(given.queries)), torch.arange(len(given.keys))
    return columns == rows.unsqueeze(-1) + distance


def _no_places(given: AttentionTokens) -> Tensor:
    return torch.zeros(len(given.queries), len(given.keys), dtype=torch.bool)


ROLES: dict[str, dict[str, Callable[[AttentionTokens], Tensor]]] = {
    SELF: {"itself": _itself, "previous": _previous, "next": _next, "first": _first, "separators": _separators,
           "same": _same_elsewhere, "after_same": _after_same},
    CROSS: {"first": _first, "separators": _separators, "in_order": _in_order, "same": _same, "gold": _gold},
}
"""From the kind of an attention to its roles, and from tokens to the places of each role, (n, N)."""
ROLE_NAMES = {"itself": "itself", "previous": "previous token", "next": "next token", "first": "first token",
              "separators": "separators", "same": "same token", "after_same": "after the same token",
              "in_order": "in order", "gold": "gold links"}
"""The roles as they are shown to people."""


def role_places(given: AttentionTokens, kind: str) -> dict[str, Tensor]:
    """The places of every role in one sequence, (n, N) each; `kind` is "self" or "cross"."""
    if kind == SELF and len(given.queries) != len(given.keys):
        raise checks.wrong("given", "as many queries as keys, for self-attention",
                           f"{len(given.queries)} queries and {len(given.keys)} keys")
    return {name: find(given) for name, find in checks.pick("kind", kind, ROLES).items()}


def batch_places(sequences: Sequence[AttentionTokens], kind: str) -> dict[str, Tensor]:
    """The places of every role in a batch that is padded on the right, (B, n, N) each."""
    found = [role_places(one, kind) for one in sequences]
    rows, columns = (max((len(side) for side in sides), default=0)
                     for sides in ([one.queries for one in sequences], [one.keys for one in sequences]))
    places = {}
    for name in ROLES[kind]:
        places[name] = torch.zeros(len(sequences), rows, columns, dtype=torch.bool)
        for number, one in enumerate(found):
            places[name][number, :one[name].shape[0], :one[name].shape[1]] = one[name]
    return places


def visible_keys(look: Look) -> Tensor:
    """The keys that each query of a batch may attend to, (B, n, N), in any of its heads."""
    B, (n, N) = look.query.shape[0], (look.query.shape[-2], look.key.shape[-2])
    if look.mask is None:
        return torch.ones(B, n, N, dtype=torch.bool, device=look.query.device)
    allowed = as_mask(look.mask).matrix(n, N, leading=2, device=look.query.device)
    heads = allowed[(None,) * (4 - allowed.dim())]
    return heads.expand(B, *heads.shape[1:]).any(dim=1)


@dataclass
class RoleScores:
    """The scores of all heads of one attention, added up batch by batch."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    """(H,) for each role: the weights on its places, over all queries that count."""
    even_sums: dict[str, float] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """The number of queries that count."""

    def add(self, weights: Tensor, places: Mapping[str, Tensor], visible: Tensor) -> None:
        """Add the weights of a batch.

        Args:
            weights: (B, H, n, N).
            places: (B, n, N) for each role; none in padding.
            visible: (B, n, N), the keys that each query may attend to.
        """
        seen, wide = visible.sum(dim=-1), weights.double()
        for role, given in places.items():
            there = given.to(visible.device) & visible
            counts = there.any(dim=-1) & (seen >= 2)
            chosen = there & counts.unsqueeze(-1)
            added = torch.einsum("bhnm,bnm->h", wide, chosen.double()).cpu()
            even = (there.sum(dim=-1).double() / seen.clamp(min=1))[counts].sum()
            self.sums[role] = self.sums[role] + added if role in self.sums else added
            self.even_sums[role] = self.even_sums.get(role, 0.0) + float(even)
            self.rows[role] = self.rows.get(role, 0) + int(counts.sum())

    def means(self) -> dict[str, Tensor]:
        """The score of every head, (H,), for each role that the data has places for."""
        return {role: added / self.rows[role] for role, added in self.sums.items() if self.rows[role]}

    def even(self) -> dict[str, float]:
        """The score of even weights, for the same roles."""
        return {role: added / self.rows[role] for role, added in self.even_sums.items() if self.rows[role]}


def main_role(scores: Mapping[str, float], even: Mapping[str, float]) -> str | None:
    """The strongest role of those that the head has (MIN_SHARE, MIN_LIFT); None if it has none."""
    held = {role: score for role, score in scores.items() if score >= MIN_SHARE and score >= MIN_LIFT * even[role]}
    return strongest_role(held, even)


def strongest_role(scores: Mapping[str, float], even: Mapping[str, float]) -> str | None:
    """The role whose score s exceeds that of even weights e by most, (s - e) / (1 - e); None without scores.

    A role with many places has a high score by chance, so that scores alone cannot be compared.
    """
    return max(scores, key=lambda role: (scores[role] - even[role]) / max(1e-9, 1 - even[role]), default=None)


@contextmanager
def zeroed_head(layer: AttentionLayer, head: int) -> Iterator[None]:
    """Set the output of one head to zero before the output projection, inside the `with` block.

    It changes the layer itself: no other thread may use the model meanwhile.
    """
    if not 0 <= head < head_count(layer):
        raise checks.wrong("head", f"from 0 to {head_count(layer) - 1}, one of the heads of the layer", head)
    merge = layer.merge

    def merge_others(output: Tensor) -> Tensor:
        kept = output.clone()
        kept[..., head, :, :] = 0.0
        return merge(kept)

    layer.merge = merge_others  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.merge


def head_count(layer: AttentionLayer) -> int:
    """The number of heads of a layer."""
    return int(getattr(layer, "heads", 1))
