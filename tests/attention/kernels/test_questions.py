"""Questions: who answers is chosen by the package's rules, and told; who is asked by name answers or refuses."""

import pytest
import torch
from problems import normal

import regard
from regard.attention.kernels import fused_statistics, identities, questions, statistics
from regard.attention.kernels.questions import StatisticRequest

NUMBERS = {"top_k": 3, "block_map": 2}


def ask(asked, **options):
    look = regard.Look(normal(2, 5, 3).float(), normal(2, 6, 3, seed=1).float(), **options)
    return StatisticRequest(asked, look.problem, NUMBERS.get(asked))


def same(one, other):
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    for left, right in pairs:
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("asked", questions.STATISTICS)
def test_every_way_gives_the_answer_of_the_plain_one_or_refuses(asked):
    want = questions.answer(ask(asked), "statistics")
    for name, way in questions.BACKENDS.items():
        if way.refusal(ask(asked)) is None:
            same(questions.answer(ask(asked), name), want)
        else:
            with pytest.raises(ValueError, match=f'`backend` must be one that can do this work .*, but is "{name}"'):
                questions.answer(ask(asked), name)


def test_on_a_cpu_the_choice_is_told():
    assert questions.explain(ask("entropy")).backend == "identities"
    assert questions.explain(ask("block_map")).backend == "identities"
    told = questions.explain(ask("column_sums"))
    assert told.backend == "statistics"
    assert "gradient" in told.reasons["identities"]
    for asked in ("row_max", "top_k"):
        assert "no identity" in questions.explain(ask(asked)).reasons["identities"]
    fine = StatisticRequest("block_map", regard.Look(torch.ones(9, 2), torch.ones(200, 2)).problem, 3)
    assert "coarse maps" in questions.explain(fine).reasons["identities"]


def test_a_look_tells_it_too():
    look = regard.Look(normal(5, 3), normal(6, 3), mask=regard.Window(1, 0))
    assert look.explain("entropy").backend == "statistics"
    assert "matrix" in look.explain("entropy").reasons["identities"]
    reason = look.explain("top_k", 2).reasons["fused"]
    assert "float64" in reason or "triton" in reason or "CUDA" in reason
    with pytest.raises(ValueError, match=r'`asked` must be one of .*"entropi"'):
        look.explain("entropi")


@pytest.mark.gpu
@pytest.mark.parametrize("asked", questions.STATISTICS)
def test_on_a_gpu_fused_passes_answer(asked):
    query, key = normal(2, 5, 3).cuda().half(), normal(2, 6, 3, seed=1).cuda().half()
    assert regard.Look(query, key, mask=regard.Causal()).explain(asked, NUMBERS.get(asked)).backend == "fused"
    assert regard.Look(query, key, mask=torch.ones(5, 6, device="cuda") > 0).explain(
        asked, NUMBERS.get(asked)).backend == "statistics"


def test_the_functions_of_every_way_have_the_names_of_the_questions():
    for asked in questions.STATISTICS:
        assert callable(getattr(fused_statistics, asked))
        assert callable(getattr(statistics, asked))
        told = questions.explain(ask(asked)).reasons.get("identities", "")
        assert callable(getattr(identities, asked, None)) or "no identity" in told
