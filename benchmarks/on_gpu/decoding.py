"""Beam search with a Transformer: our searches against `generate` of `transformers`, with the same weights.

The searches are those of `benchmarks/decoding.py`, and the model writes as many tokens as it reads (`sized.py`). Each
step reads all weights of the decoder once, and multiplies them with the tokens of all beams: that is the limit.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import decoding as searches
import sized

from on_gpu.rows import Cost, Row, Setting, Table, compared, row, say
from on_gpu.training import weights
from regard import Translator

BEAMS = 5
LENGTH = 28
"""Of all sentences, the end with it, in the rows that are not of mixed lengths."""
GOALS = {("base", 64): "≥ 80,000 tokens/s", ("base", 1): "≥ 2,500 tokens/s"}


def tables(setting: Setting) -> Iterator[Table]:
    """Both shapes, batches of 64 and of one."""
    for shape in ("small",) if setting.tiny else searches.RECIPES:
        yield _table(shape, setting)


def _table(shape: str, setting: Setting) -> Table:
    recipe, vocabulary = searches.RECIPES[shape]
    vocabulary = 100 if setting.tiny else vocabulary
    asked = argparse.Namespace(device=setting.device.type, dtype="bfloat16" if setting.on_gpu else "float32",
                               peers=[searches.THEIRS], beams=[2 if setting.tiny else BEAMS],
                               batch=[2] if setting.tiny else [64, 1], repeats=1 if setting.tiny else 5)
    rows, task = list[Row](), sized.translator(recipe, vocabulary)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        say(f"{recipe}: exporting")
        others = searches.contestants(task, asked, Path(folder))
        task.model.to(setting.device, setting.dtype)
        engines = {searches.OURS: searches.ours(task), **others}
        for length in (5,) if setting.tiny else (LENGTH, None):
            asked.length = length
            for one in searches.speeds(asked, engines, vocabulary):
                rows += _rows(shape, task, one, length, setting)
    return Table(f"Beam search, {recipe}, vocabulary {vocabulary:,}, beams {asked.beams[0]}, {asked.dtype}",
                 searches.OURS, rows)


def _rows(shape: str, task: Translator, one: searches.Timed, length: int | None, setting: Setting) -> list[Row]:
    work = f"batch {one.batch}, " + ("mixed lengths" if length is None else f"{length} tokens each")
    cost, goal = _cost(task, one), GOALS.get((shape, one.batch), "")
    return compared([row(work, name, taken, setting, cost=cost, rate=f"{one.tokens / taken * 1e3:,.0f} tokens/s",
                         goal=goal if name == searches.OURS else "") for name, taken in one.times.items()],
                    searches.OURS)


def _cost(task: Translator, one: searches.Timed) -> Cost:
    model: Any = task.model
    read, written = weights(model.encoder), weights(model.decoder) + model.output.weight.numel()
    lengths = [len(row) for row in one.rows]
    steps = max(lengths) if one.batch > 1 else sum(lengths)
    calls = 1 if one.batch > 1 else len(lengths)
    return Cost(products=2 * one.tokens * (read + one.beams * written),
                bytes=model.output.weight.element_size() * (calls * read + steps * written))
