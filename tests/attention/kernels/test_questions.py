"""Questions: who answers is chosen by the package's rules, and told; who is asked by name answers or refuses."""

import pytest
import torch
from problems import normal

import regard
from regard.attention.statistics import (
    STATISTICS,
    STATISTICS_BACKENDS,
    StatisticRequest,
    compute_statistic,
    explain_statistic,
)

NUMBERS = {"top_k": 3, "block_map": 2}


def ask(asked, **options):
    look = regard.Look(normal(2, 5, 3).float(), normal(2, 6, 3, seed=1).float(), **options)
    return StatisticRequest(asked, look.problem, NUMBERS.get(asked))


def same(one, other):
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    for left, right in pairs:
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("asked", STATISTICS)
def test_every_way_gives_the_answer_of_the_plain_one_or_refuses(asked):
    want = compute_statistic(ask(asked), "rows")
    for name, way in STATISTICS_BACKENDS.items():
        if way.refusal(ask(asked)) is None:
            same(compute_statistic(ask(asked), name), want)
        else:
            with pytest.raises(ValueError, match=f'`backend` must be one that can do this work .*, but is "{name}"'):
                compute_statistic(ask(asked), name)


def test_on_a_cpu_the_choice_is_told():
    assert explain_statistic(ask("entropy")).backend == "closed_form"
    assert explain_statistic(ask("block_map")).backend == "closed_form"
    told = explain_statistic(ask("column_sums"))
    assert told.backend == "rows"
    assert "gradient" in told.reasons["closed_form"]
    for asked in ("row_max", "top_k"):
        assert "no closed form" in explain_statistic(ask(asked)).reasons["closed_form"]
    fine = StatisticRequest("block_map", regard.Look(torch.ones(9, 2), torch.ones(200, 2)).problem, 3)
    assert "coarse maps" in explain_statistic(fine).reasons["closed_form"]


def test_a_look_tells_it_too():
    look = regard.Look(normal(5, 3), normal(6, 3), mask=regard.Window(1, 0))
    assert look.explain("entropy").backend == "rows"
    assert "matrix" in look.explain("entropy").reasons["closed_form"]
    reason = look.explain("top_k", 2).reasons["fused"]
    assert "float64" in reason or "triton" in reason or "CUDA" in reason
    with pytest.raises(ValueError, match=r'`statistic` must be one of .*"entropi"'):
        look.explain("entropi")


@pytest.mark.gpu
@pytest.mark.parametrize("asked", STATISTICS)
def test_on_a_gpu_fused_passes_answer(asked):
    query, key = normal(2, 5, 3).cuda().half(), normal(2, 6, 3, seed=1).cuda().half()
    assert regard.Look(query, key, mask=regard.Causal()).explain(asked, NUMBERS.get(asked)).backend == "fused"
    assert regard.Look(query, key, mask=torch.ones(5, 6, device="cuda") > 0).explain(
        asked, NUMBERS.get(asked)).backend == "rows"

