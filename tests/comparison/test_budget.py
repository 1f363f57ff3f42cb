"""Budgets: how they are read and said, and models that are made equally large."""

import pytest

from regard.comparison.settings import ComparisonBudget, match_parameters, steps_for_amount
from regard.models.build import model_config

SIZES = {"source_vocab_size": 500, "target_vocab_size": 500}


@pytest.mark.parametrize(("text", "want"), [
    ("tokens:2M", ComparisonBudget(tokens=2_000_000)), ("tokens:1500", ComparisonBudget(tokens=1500)), ("minutes:0.5", ComparisonBudget(minutes=0.5)),
    ("parameters:1.5k", ComparisonBudget(parameters=1500)), ("tokens=3k, parameters:1m", ComparisonBudget(tokens=3000, parameters=10**6)),
])
def test_a_budget_is_read(text, want):
    assert ComparisonBudget.read(text) == want


@pytest.mark.parametrize("text", ["", "tokens", "2M", "token:2M", "tokens:0", "tokens:-1", "tokens:1,minutes:2",
                                  "tokens:1,tokens:2", "tokens:nan", "tokens:1e9", "minutes:"])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(ValueError, match="`budget` must be"):
        ComparisonBudget.read(text)


def test_a_budget_is_said_in_words():
    assert ComparisonBudget.read("tokens:2M,parameters:1M").said() == "2,000,000 target tokens and about 1,000,000 parameters"
    assert "3 minutes" in ComparisonBudget(minutes=3.0).said()
    assert "by itself" in ComparisonBudget().said()


def test_steps_come_to_the_amount():
    assert (steps_for_amount(100, 10), steps_for_amount(101, 10), steps_for_amount(0.5, 10)) == (10, 11, 1)


@pytest.mark.parametrize("recipe", ["seq2seq", "seq2seq-attention", "attention", "conv", "transformer"])
def test_models_are_made_equally_large(recipe):
    given = model_config(recipe, **SIZES)
    changes = {key.removeprefix("model."): value for key, value in match_parameters(given, 3_000_000).items()}
    made = model_config(given, **changes)
    assert abs(made.parameters() / 3_000_000 - 1) < 0.12
    part = getattr(getattr(given, "encoder", None), "feed_forward", None)
    if part is not None:
        assert made.encoder.feed_forward.ffn_width / made.width == pytest.approx(part.ffn_width / given.width, rel=0.01)
