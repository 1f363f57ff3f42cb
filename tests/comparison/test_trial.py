"""How many steps a model may learn for."""

import pytest
import texting

from regard.comparison.runs import plan_steps
from regard.comparison.settings import ComparisonBudget, ComparisonSettings, road_steps
from regard.comparison.splits import split_data

TINY = {"model.width": 16, "tokenizer.vocab_size": 400, "training.batches.max_tokens": 300}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    place = tmp_path_factory.mktemp("trial")
    (place / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in texting.pairs()))
    return split_data([str(place / "a.tsv")], place / "data")


def test_more_tokens_are_more_steps_the_same_for_all_models(files, tmp_path):
    def found(tokens):
        setting = ComparisonSettings.quick(road_steps(["seq2seq", "transformer"]), budget=ComparisonBudget(tokens=tokens), changes=TINY)
        return plan_steps(setting, files, tmp_path / "trial")

    few, many = found(1000), found(4000)
    assert few["seq2seq"] == few["transformer"]
    assert 3.5 * few["seq2seq"].steps <= many["seq2seq"].steps <= 4.5 * few["seq2seq"].steps
    assert not (tmp_path / "trial").exists()


def test_parameters_are_matched(files, tmp_path):
    setting = ComparisonSettings.quick(road_steps(["seq2seq-attention"]), budget=ComparisonBudget(tokens=1000, parameters=400_000),
                            changes=TINY)
    allowed = plan_steps(setting, files, tmp_path / "trial")["seq2seq-attention"]
    assert allowed.changes["model.width"] > 64


def test_minutes_become_steps(files, tmp_path):
    setting = ComparisonSettings.quick(road_steps(["attention"]), budget=ComparisonBudget(minutes=0.5), changes=TINY)
    assert plan_steps(setting, files, tmp_path / "trial")["attention"].steps > 1
