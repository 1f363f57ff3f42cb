"""Statistics of attention over a very long sequence, one head, against one attention forward of the same sequence.

No other library has them without the matrix of weights, which has 17 billion entries here: the peer is the attention
itself. A pass is a product and an exponential for each pair; a map of blocks and the column sums take two, as weights
are known only when their rows have been summed.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from timing import Work
from torch.nn.functional import scaled_dot_product_attention

import regard
from on_gpu.rows import Cost, Setting, Table, measured
from regard.attention.statistics import StatisticRequest, compute_statistic, explain_statistic

FORWARD, DEFAULT = "attention forward", "attention forward, torch's choice"
BLOCKS = 512
"""Of a map, in a row of it."""
PASSES = {"block map": 2, "entropy": 1, "row max": 1, "column sums": 2, "top 8": 1}


def tables(setting: Setting) -> Iterator[Table]:
    """Without a mask, and causal."""
    for mask in (None, regard.Causal()):
        yield _table(setting, mask)


def _table(setting: Setting, mask: "regard.Causal | None") -> Table:
    N, D, blocks = (8, 16, 2) if setting.tiny else (131_072, 64, BLOCKS)
    query, key, value = (setting.random(1, 1, N, D).detach() for _ in range(3))
    problem = regard.Look(query, key, mask=mask).problem
    pairs = N * N / (1 if mask is None else 2)
    asked = {"block map": StatisticRequest("block_map", problem, N // blocks),
             "entropy": StatisticRequest("entropy", problem),
             "row max": StatisticRequest("row_max", problem), "column sums": StatisticRequest("column_sums", problem),
             "top 8": StatisticRequest("top_k", problem, 8)}
    forward = Cost(products=4 * pairs * D, special=pairs)
    works: dict[str, Work] = {
        FORWARD: partial(regard.attend, query, key, value, mask=mask),
        DEFAULT: partial(scaled_dot_product_attention, query, key, value, is_causal=mask is not None)}
    costs, goals = {FORWARD: forward, DEFAULT: forward}, dict[str, str]()
    for name, question in asked.items():
        who, passes = f"regard, {name} ({_way(question, setting)})", PASSES[name]
        works[who], costs[who] = _asking(question, setting), Cost(2 * passes * pairs * D, special=passes * pairs)
        goals[who] = "≤ 2 forwards" if name == "block map" else ""
    about = "no mask" if mask is None else "causal"
    with torch.no_grad():
        rows = measured(about, works, setting, base=FORWARD, cost=costs, repeats=5)
    rows = [replace(row, goal=goals.get(row.who, "")) for row in rows]
    return Table(f"Statistics of N {N:,}, d {D}, one head, {about}; a map of {blocks} × {blocks} blocks", FORWARD, rows)


def _way(question: StatisticRequest, setting: Setting) -> str:
    """Who answers: on a GPU the one that is chosen, elsewhere the one that would be."""
    return explain_statistic(question).backend if setting.on_gpu else "fused"


def _asking(question: StatisticRequest, setting: Setting) -> Work:
    return partial(compute_statistic, question, None if setting.on_gpu else "fused")
