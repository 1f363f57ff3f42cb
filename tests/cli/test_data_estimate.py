"""`regard data check` tells how long a training would take, and how much memory."""

import json
import re
import subprocess
import sys

import pytest
import trained
from calling import call
from planned import CPU

from regard.cli.data import format_duration
from regard.training import resolution
from regard.training.tasks.interface import TrainingRequest
from regard.training.tasks.translation import TranslationSetup


@pytest.fixture
def check(tmp_path):
    """What the command prints of a file with this content."""

    def run(content, *arguments):
        path = tmp_path / "a.tsv"
        path.write_text(content, encoding="utf-8")
        return subprocess.run([sys.executable, "-m", "regard", "data", "check", path, *arguments],
                              capture_output=True, text=True, timeout=60).stdout

    return run


@pytest.mark.thorough
def test_what_a_training_would_take(check):
    pairs = "".join(f"the source number {number}\tla cible {number}\n" for number in range(3000))
    found = json.loads(check(pairs, "--json"))["estimate"]
    assert set(found) == {"cpu", "gpu"}
    for each in found.values():
        assert each["tokens"] > 3 * 3000  # an end on each side and a start, and what is between
        assert min(each["seconds"], each["steps"], each["parameters"], each["memory"]) > 0
    assert found["gpu"]["parameters"] > found["cpu"]["parameters"]
    heading, names, *lines = check(pairs).split("\n\n")[-1].splitlines()
    assert "Estimated training" in heading
    assert re.split("  +", names.strip()) == ["time", "memory", "parameters", "steps"]
    assert [re.split("  +", line.strip())[-1] for line in lines] == [f"{each['steps']:,}" for each in found.values()]


@pytest.mark.thorough
@pytest.mark.parametrize("given", [False, True])
def test_it_is_what_a_training_of_the_same_file_chooses(tmp_path, given):
    """For 5,000 pairs: the choices are others below that, and some are held out where nothing is given to judge by."""
    data, output = trained.pairs(tmp_path / "pairs.tsv", 5100), tmp_path / "model"
    lines = (tmp_path / "pairs.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "pairs.tsv").write_text("".join(dict.fromkeys(lines)))
    other = [trained.pairs(tmp_path / "other.tsv", 30, split="validation")] if given else []
    code, out, said = call("data", "check", data, "--json", *(["--validation", *other] if given else []))
    assert code == 0, said
    found = json.loads(out)
    request = TrainingRequest("seq2seq", (data,), output, validation=tuple(other), changes={})
    ready = resolution.prepare(request, TranslationSetup(), resolution.requested_config(request, TranslationSetup()),
                               CPU, lambda event: None)
    chosen = {choice.key: choice.value for choice in ready.defaults}
    assert found["estimate"]["cpu"]["epochs"] == chosen["training.epochs"] == (30 if given else 60)
    assert found["estimate"]["cpu"]["steps"] == pytest.approx(ready.settings.steps, rel=0.15)


@pytest.mark.thorough
def test_nothing_is_estimated_where_nothing_is_kept(check):
    assert json.loads(check("same\tsame\n", "--json"))["estimate"] is None
    assert "Estimate" not in check("same\tsame\n")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.1, "less than a minute"), (61, "1 to 2 minutes"), (118, "2.0 minutes"), (150, "2.5 minutes"),
     (3000, "50 minutes"), (7199, "2.0 hours"), (36_000, "10 hours"), (86_400, "24 hours"), (2e8, "2,315 days")],
)  # fmt: skip
def test_times_in_the_unit_that_a_person_would_take(seconds, said):
    assert format_duration(seconds) == said
