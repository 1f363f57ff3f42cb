"""How batches are asked for in a config file, and the feed that comes of it.

    feed = batch_feed(store, special, BatchConfig(tokens=8192), seed=1)
    feed = masked_feed(texts, special, BatchConfig(), MaskingConfig(), vocabulary=8000, seed=1)

It puts the parts together: a plan of the store, a maker of batches, a feed. It knows no model.
"""

from dataclasses import dataclass

from regard.config import Config, choice, whole
from regard.data.batches.batch import LAYOUTS, Ends, Reader, Shifted, Stored
from regard.data.batches.buckets import Limits
from regard.data.batches.feed import Feed, Maker
from regard.data.batches.masking import Masked, MaskingConfig
from regard.data.batches.packing import PackedPlan, plan_packed
from regard.data.batches.plan import BucketPlan, plan_batches
from regard.data.batches.shapes import MOST, Fitted
from regard.data.store import PairStore, Store, TextStore
from regard.models.special import SpecialConfig

SHAPES = ("as_drawn", "few")


@dataclass(frozen=True, kw_only=True)
class BatchConfig(Config):
    """How large batches are, and how sequences lie in them."""

    tokens: int = whole(4096, least=1)
    """Of a batch: source and target together, with the start of each target, and padding counted."""
    rows: int | None = whole(None, least=1)
    """Sequences of a batch at most; as many as the tokens allow where not given."""
    layout: str = choice(LAYOUTS, "padded")
    shapes: str = choice(SHAPES, "as_drawn")
    """Each batch as large as what is in it, or all filled up to one of few shapes, for devices that record a step once
    for each. Packed batches then have one shape, and hold pairs of any lengths."""
    ahead: int = whole(2, least=1)
    """Batches that are made before they are asked for."""

    def limits(self) -> Limits:
        """The limits that a plan keeps."""
        return Limits(self.tokens, self.tokens if self.rows is None else self.rows)

    def most(self) -> int | None:
        """How many shapes batches may have; any number where None."""
        return MOST if self.shapes == "few" else None


def batch_feed(store: Store, special: SpecialConfig, config: BatchConfig, *, seed: int, rank: int = 0,
               processes: int = 1, read: Reader | None = None) -> Feed:
    """A feed of pairs for an encoder-decoder, or of texts for a language model.

    Args:
        read: where the ids come from, such as `Sampled`; from the store itself where not given.
    """
    ends = Ends.of(special)
    maker = Shifted(read or Stored(store), ends, LAYOUTS[config.layout])
    extra = (0, 1) if isinstance(store, PairStore) else (1,)  # a target gets its start, or its end
    return _feed(plan_of(store, config, seed=seed, extra=extra), maker, config, ends.padding, rank, processes)


def masked_feed(store: TextStore, special: SpecialConfig, config: BatchConfig, masking: MaskingConfig, *,
                vocabulary: int, seed: int, rank: int = 0, processes: int = 1) -> Feed:
    """A feed of texts, some of whose tokens are hidden, for a masked model."""
    maker = Masked(Stored(store), special, vocabulary, masking, LAYOUTS[config.layout], seed)
    return _feed(plan_of(store, config, seed=seed, extra=(0,)), maker, config, special.padding or 0, rank, processes)


def plan_of(store: Store, config: BatchConfig, *, seed: int, extra: tuple[int, ...],
            longest: int | None = None) -> BucketPlan | PackedPlan:
    """Pairs of like lengths together; of packed batches of one shape, any pairs.

    Args:
        extra: how many ids each side gets more in a batch than it has in the store.
        longest: of each sequence so many ids are read at most. Buckets are of whole lengths whatever is read.
    """
    if config.layout == "packed" and config.shapes == "few":
        return plan_packed(store, config.limits(), seed=seed, extra=extra, longest=longest)
    return plan_batches(store, config.limits(), seed=seed, extra=extra, most=config.most())


def _feed(plan: BucketPlan | PackedPlan, maker: Maker, config: BatchConfig, padding: int, rank: int,
          processes: int) -> Feed:
    """The feed of a plan, in the shapes that are asked for."""
    if config.shapes == "few":
        maker = Fitted(maker, plan.shapes, padding)
    return Feed(plan, maker, rank=rank, processes=processes, largest=plan.largest() if plan.count else ())
