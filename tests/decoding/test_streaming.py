"""A text as it is written: token by token what greedy search, or sampling, gives in the end."""

import pytest
import torch
from tiny import LANGUAGE, built
from writers import Table, drawn

from regard.decoding.constraints import NoRepeatNgram
from regard.decoding.sampling import SamplingFilters, TokenSampler, greedy, most_probable, sample, seed_tensor, stream


@pytest.mark.parametrize("name", ["attention", "recurrence", "old", "rotary"])
def test_as_greedy_search_and_sampling(name):
    model, prompt = built(LANGUAGE[name]), [4, 5, 6]
    options = {"end": 2, "max_length": 8, "min_length": 3, "constraints": [NoRepeatNgram(2)]}
    (want,) = greedy(model, prompts=[prompt], **options)
    assert [*stream(model, prompt, most_probable, **options)] == want.ids
    for seed in range(4):
        ((drawn_,),) = sample(model, prompts=[prompt], seed=[seed], top_k=5, **options)
        draw = TokenSampler(SamplingFilters(top_k=5), seed_tensor([seed], torch.device("cpu")))
        assert [*stream(model, prompt, draw, **options)] == drawn_.ids


def test_nothing_is_read_before_it_is_asked_for():
    model = Table(drawn(6, seed=1))
    found = stream(model, [1], most_probable, end=(), max_length=5)
    assert model.batches == []
    next(found)
    assert len(model.batches) == 1
    assert len([*found]) == 4


@pytest.mark.parametrize("max_length", [0, 1, 4])
def test_a_limit(max_length):
    assert len([*stream(Table(drawn(6, seed=2)), [1], most_probable, end=(), max_length=max_length)]) == max_length


def test_an_end_is_not_given():
    ends = Table(lambda key, text: [0.0, 0.0, 9.0 if len(text) > 2 else -9.0, 1.0])
    assert [*stream(ends, [1], most_probable, end=2, max_length=9)] == [3, 3]
