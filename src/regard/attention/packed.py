"""Packed sequences: several of them one after another in one row, without padding, each seeing itself alone.

The mask of segments. It says where the queries stand, so `Causal() & Packed(...)` is causal inside every segment. It
does not know how a batch is packed, what the tokens are, nor who computes a segment.
"""

import torch
from torch import Tensor

from regard import checks
from regard.attention.mask import Device, Lengths, Mask, brief, integers
from regard.attention.place import Place


class Packed(Mask):
    """The queries of a segment see the keys of that segment. What lies behind the last one neither sees nor is seen.

    `query_lengths` and `key_lengths` (the queries' where not given) have one length a segment. Each segment is aligned
    to its own bottom right: its last query stands at its last key.
    """

    moves = True

    def __init__(self, query_lengths: Lengths, key_lengths: Lengths | None = None) -> None:
        self.query_lengths = integers("query_lengths", query_lengths)
        self.key_lengths = self.query_lengths if key_lengths is None else integers("key_lengths", key_lengths)
        for argument, lengths in (("query_lengths", self.query_lengths), ("key_lengths", self.key_lengths)):
            if lengths.dim() != 1:
                raise checks.wrong(argument, "one length a segment, (segments,)", f"of shape {checks.shape(lengths)}")
        if self.query_lengths.shape != self.key_lengths.shape:
            expected = f"as many lengths as query_lengths has, {len(self.query_lengths)}"
            raise checks.wrong("key_lengths", expected, f"{len(self.key_lengths)} lengths")

    def ready(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        if not torch.compiler.is_compiling():
            self._check_room(n_queries, n_keys)
        queries, keys = self.query_lengths.to(device), self.key_lengths.to(device)
        query_ends, key_ends = queries.cumsum(0), keys.cumsum(0)
        of_query = torch.searchsorted(query_ends, torch.arange(n_queries, device=device), right=True)
        of_key = torch.searchsorted(key_ends, torch.arange(n_keys, device=device), right=True)
        # What lies behind the last segment has the number len(queries): it gets a shift of its own, and sees nothing.
        shift = torch.cat([key_ends - query_ends, queries.new_zeros(1)])
        position = torch.arange(n_queries, device=device) + shift[of_query]
        return Segments(self, of_query.where(of_query < len(queries), -1), of_key, position)

    def allowed(self, place: Place) -> Tensor:
        return self.ready(place.n_queries, place.n_keys, place.row.device).allowed(place)

    def positions(self, n_queries: int, device: Device = None) -> Tensor:
        """How far into its segment every query is, (n_queries,): each segment starts at 0, and what lies behind too."""
        ends = self.query_lengths.to(device).cumsum(0)
        index = torch.arange(n_queries, device=device)
        starts = torch.cat([ends.new_zeros(1), ends])
        return index - starts[torch.searchsorted(ends, index, right=True)]

    def on_host(self, n_queries: int, n_keys: int) -> tuple[list[int], list[int]]:
        """The lengths of the queries and of the keys as plain numbers, checked. Lengths on a GPU are waited for."""
        host = Packed(self.query_lengths.cpu(), self.key_lengths.cpu())
        host._check_room(n_queries, n_keys)
        return host.query_lengths.tolist(), host.key_lengths.tolist()

    def _check_room(self, n_queries: int, n_keys: int) -> None:
        """A ValueError where there are more tokens in segments than there are. On a GPU nobody looks."""
        for argument, lengths, room in (("query_lengths", self.query_lengths, n_queries),
                                        ("key_lengths", self.key_lengths, n_keys)):
            if lengths.device.type == "cpu" and int(lengths.sum()) > room:
                expected = f"lengths that add up to at most {room}, the tokens there are"
                raise checks.wrong(argument, expected, f"lengths that add up to {int(lengths.sum())}")

    def __repr__(self) -> str:
        keys = "" if self.key_lengths is self.query_lengths else ", " + brief(self.key_lengths)
        return f"Packed({brief(self.query_lengths)}{keys})"


class Segments(Mask):
    """A `Packed` looked up once: the segment of every query and of every key, and the position of every query."""

    moves = True

    def __init__(self, packed: Packed, of_query: Tensor, of_key: Tensor, position: Tensor) -> None:
        self.packed, self.of_query, self.of_key, self.position = packed, of_query, of_key, position

    def aligned(self, place: Place) -> Place:
        return place.at(self.position[place.row])

    def allowed(self, place: Place) -> Tensor:
        return self.of_query[place.row] == self.of_key[place.column]

    def __repr__(self) -> str:
        return repr(self.packed)
