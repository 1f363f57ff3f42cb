"""Fine-tuning with general data and blending that is killed at any moment and resumed: the same, bit for bit."""

import itertools
import signal

import pytest
import trained

pytestmark = pytest.mark.thorough

KILLED = -signal.SIGKILL
CHAIN = [  # one after another in one folder, each but the first with --resume
    {"event": "TrainingStarted", "step": None},
    {"event": "TrainingStarted", "step": None, "touch": 30},      # while the start model is saved as the best one
    {"event": "Validated", "step": 0},                            # it is saved, and there is no checkpoint
    {"event": "TrainingProgress", "step": 1},
    {"event": "Validated", "step": 3},
    {"event": "TrainingProgress", "step": 5},
    {"event": "TrainingEnded", "step": 6, "touch": 8},            # all steps are done, and the blended model is saved
]


def call(folder, name, *more):
    given = trained.arguments(folder / "new.tsv", folder / name, "--from", folder / "base", "--mix", folder / "old.tsv",
                              "--blend", *more, training__schedule__learning_rate=3e-3)
    kept = [("--set", value) for option, value in itertools.pairwise(given) if option == "--set"
            and not value.startswith(("model.", "tokenizer."))]
    others, words = [], iter(given)
    for word in words:
        if word == "--set":
            next(words)
        else:
            others.append(word)
    return [*others, *(part for pair in kept for part in pair)]


def test_killed_again_and_again_is_never_killed(tmp_path):
    trained.pairs(tmp_path / "old.tsv")
    trained.pairs(tmp_path / "new.tsv", seed=7)
    calls = [(trained.arguments(tmp_path / "old.tsv", tmp_path / "base"), None), (call(tmp_path, "plain"), None)]
    calls += [(call(tmp_path, "chain", *(["--resume"] if turn else [])), moment)
              for turn, moment in enumerate([*CHAIN, None])]
    ends = trained.called(tmp_path, calls)
    said = [(tmp_path / f"{number}.err").read_text() for number in range(len(calls))]
    assert not any("Traceback" in one for one in said), said
    assert ends[:2] == [0, 0], said[:2]
    assert ends[2:-1] == [KILLED] * len(CHAIN), said
    assert ends[-1] == 0, said[-1]
    whole, parts = trained.contents(tmp_path / "plain"), trained.contents(tmp_path / "chain")
    assert parts.keys() == whole.keys()
    for file in whole:
        if file != "manifest.json":  # the metadata in the model's file is in no order, and so is its sha256
            assert parts[file] == whole[file], file
    lines = [line for line in trained.metrics(tmp_path / "chain") if line["event"] != "progress"]
    assert [(line["event"], line["step"]) for line in lines] == [
        ("validation", 0), ("validation", 3), ("validation", 6), ("ended", 6)]
    assert "blend = " in (tmp_path / "chain" / "config.toml").read_text()
