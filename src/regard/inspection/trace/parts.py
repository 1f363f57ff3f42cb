"""The parts of a trace: sides, attentions, what was written, and the tree of a search.

They are values without behaviour, in the words of docs/trace.md. What must fit between them is checked where they are
put together (`trace`); how they are written down is not known here.
"""

from dataclasses import dataclass

from regard.attention.look import Look
from regard.data.tokenizer.words import Word
from regard.inspection.matrix import Matrix

AnyLook = Look | Matrix


@dataclass(frozen=True)
class Side:
    """What is looked from, or at: tokens, and where they are known, the text and the words that they make up."""

    tokens: tuple[str, ...]
    text: str | None = None
    words: tuple[Word, ...] = ()
    """The characters text[start:end] of each, and its tokens from the first to the last."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the patches, where the tokens are those of an image."""
    lead: int = 0
    """How many tokens stand before the patches."""


@dataclass(frozen=True, eq=False)
class Attention:
    """One attention of a model, over one sequence or one pair of them."""

    name: str
    queries: str
    """The side of the rows."""
    keys: str
    """The side of the columns."""
    look: AnyLook
    """Its one leading dimension is heads."""
    layer: int | None = None
    """From 0, among those of its kind."""
    kind: str | None = None
    """"self" or "cross"."""

    @property
    def heads(self) -> int:
        """How many look in parallel."""
        return shape(self.look)[0]

    @property
    def rows(self) -> int:
        """How many queries there are."""
        return shape(self.look)[1]

    @property
    def columns(self) -> int:
        """How many keys there are."""
        return shape(self.look)[2]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from regard.inspection.trace.html import of_attention

        return of_attention(self)


@dataclass(frozen=True)
class Node:
    """One token that a search considered, after those of its parents."""

    parent: int
    """The number of an earlier node; -1 where the text begins."""
    token: str
    log_probability: float
    total: float
    """The sum of the log-probabilities up to it."""
    ended: bool
    kept: bool
    """Whether the search went on from it."""


@dataclass(frozen=True)
class Search:
    """The tree of a beam search."""

    beams: int
    nodes: tuple[Node, ...]
    best: tuple[int, ...]
    """The nodes at which the results end, the best first."""
    left_out: int | None = None
    """How many more the search considered that are not here, where that is known and not 0."""


@dataclass(frozen=True)
class Written:
    """What a search wrote: the tokens of a side, and how probable each was."""

    side: str
    log_probabilities: tuple[float, ...]
    score: float | None = None


@dataclass(frozen=True)
class Pointer:
    """The attention that shows best which word is which, and which of its rows belongs to a token: `offset` later."""

    attention: int
    head: int | None = None
    offset: int = 0


def shape(look: AnyLook) -> tuple[int, ...]:
    """(..., heads, queries, keys) of the weights, which are not computed for it."""
    if isinstance(look, Matrix):
        return tuple(look.given.shape)
    return (*look.problem.leading, look.problem.n_queries, look.problem.n_keys)
