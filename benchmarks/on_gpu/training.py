"""Training a Transformer on sentences of mixed lengths: our loop against a plain one around `transformers`.

The loops are those of `benchmarks/training.py`, which says what they do; here two shapes are chosen, the small one with
two passes that must agree (R-Drop) in both libraries. A step computes six operations for each weight and token that
meet in a matrix product, and twice as many where a batch is passed twice; attention itself is left out of this limit.
The rates are of target tokens that are there.
"""

import importlib.util
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import training as loops
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from on_gpu.rows import GIB, Cost, Row, Setting, Table, row, say
from regard.data import phrasebook
from regard.models.build import build
from regard.tokens import IGNORED_LABEL

AGREEMENT = 5.0
THEIRS_AGREEING = "transformers, R-Drop"
RIVALS = {loops.AGREEING: loops.AGREEING, THEIRS_AGREEING: loops.AGREEING, loops.OURS: loops.OURS,
          loops.THEIRS: loops.OURS}
"""Every loop, and which of ours does the same work."""
TINY = loops.Shape(1, 32, 64, 2, 400, dropout=0.1, inside=0.1, tokens=600)


@dataclass(frozen=True)
class Length:
    """Of a measurement, in steps."""

    warm: int
    many: int
    windows: int

    @property
    def steps(self) -> range:
        """All of them."""
        return range(self.warm + self.many * self.windows)


def tables(setting: Setting) -> Iterator[Table]:
    """Transformer-base with two sizes of batches, then the small one with R-Drop."""
    base, small = loops.SHAPES["base"], replace(loops.SHAPES["small"], tokens=6000)
    if setting.tiny:
        base = small = TINY
    for tokens in (base.tokens,) if setting.tiny else (2 * base.tokens, base.tokens):
        yield _table("Transformer-base", replace(base, tokens=tokens), setting, [loops.OURS, loops.THEIRS],
                     {loops.OURS: "≥ 1.0M tokens/s"})
    yield _table("the small Transformer", small, setting, [*RIVALS], {loops.AGREEING: "≥ 80 steps/s"})


def agreeing(logits: loops.Logits, batch: Sequence[Tensor], smoothing: float) -> Tensor:
    """The loss of two passes that must agree, as ours is defined: each row is there twice, under its own dropout.

    ½ (CE(p) + CE(q)) + weight · ¼ (KL(p‖q) + KL(q‖p)), the mean over the tokens that are there.
    """
    *given, labels = batch
    both = logits(*(torch.cat([tensor, tensor]) for tensor in given)).float()
    entropy = cross_entropy(both.flatten(0, 1), torch.cat([labels, labels]).flatten(), ignore_index=IGNORED_LABEL,
                            label_smoothing=smoothing)
    p, q = both.log_softmax(-1).chunk(2)
    apart = ((p.exp() - q.exp()) * (p - q)).sum(-1)  # KL(p‖q) + KL(q‖p)
    there = labels != IGNORED_LABEL
    return entropy + AGREEMENT / 4 * (apart * there).sum() / there.sum()


def _table(name: str, shape: loops.Shape, setting: Setting, wanted: list[str], goals: dict[str, str]) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        say(f"{name}: preparing the data")
        given = loops.prepared(shape, setting.device, _files(setting, place), place)
        epoch = given.feed.steps
        length = Length(1, 1, 1) if setting.tiny else Length(min(2 * epoch, 120), min(epoch, 40), setting.windows)
        makes = _contestants(given, length.steps)
        works = {who: makes[who] for who in wanted if who in makes}
        found = loops.measured(given, works, length.warm, length.many, length.windows)
        rows = _rows(f"{shape.tokens:,} tokens a batch", found, given, length, setting, goals)
    title = (f"Training {name}: {shape.layers} + {shape.layers} layers, width {shape.width}, vocabulary "
             f"{shape.vocabulary:,}, {given.settings.precision}; ms a step")
    return Table(title, "regard's of the same kind", rows)


def _contestants(given: loops.Prepared, steps: range) -> dict[str, Iterator[None]]:
    """Nothing of them is made before their first step."""
    found = {loops.OURS: loops.ours(given, steps), loops.AGREEING: loops.ours(given, steps, rdrop=AGREEMENT)}
    if importlib.util.find_spec("transformers") is None:
        say("transformers is not installed, and is left out")
        return found
    return found | {loops.THEIRS: loops.plain(given, steps, loops.marian),
                    THEIRS_AGREEING: loops.plain(given, steps, loops.marian, agreeing)}


def _rows(work: str, found: list[dict[str, Any]], given: loops.Prepared, length: Length, setting: Setting,
          goals: dict[str, str]) -> list[Row]:
    per_token = _operations(given, length.steps)
    rates = {each["name"]: statistics.median(each["rates"]) for each in found}
    rows = list[Row]()
    for each in found:
        who, rate = each["name"], rates[each["name"]]
        seconds = statistics.median(each["seconds"]) / length.many
        passes = 2 if "R-Drop" in who else 1
        made = row(work, who, seconds * 1e3, setting, cost=Cost(products=passes * per_token * rate * seconds),
                   rate=f"{rate:,.0f} tokens/s, {1 / seconds:.1f} steps/s", goal=goals.get(who, ""),
                   gib=each["memory"] / GIB if setting.on_gpu else None,
                   note=f"{each['before_s']:.1f} s for the first {length.warm} steps")
        rows.append(replace(made, against=rates[RIVALS[who]] / rate))
    return rows


def _operations(given: loops.Prepared, steps: range) -> float:
    """Of a target token that is learned from, in matrix products with weights, the source's share counted."""
    model: Any = build(given.model)
    batches: list[Any] = list(loops.rows(given, steps[:20]))
    sources = sum(int(batch.source.lengths.sum()) for batch in batches)
    targets = sum(batch.tokens for batch in batches)
    return 6 * (weights(model.encoder) * sources / targets + weights(model.decoder) + model.output.weight.numel())


def weights(module: nn.Module) -> int:
    """Numbers in the matrices that tokens are multiplied with."""
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


def _files(setting: Setting, place: Path) -> list[str]:
    if not setting.tiny:
        return loops.files(setting.data, setting.languages, place)
    path = place / "few.tsv"
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in phrasebook.pairs(300)))
    return [str(path)]
