"""A training with synthetic pairs that is killed in any of its stages, and resumed."""

import signal

import pytest
import trained

from regard.data import phrasebook

pytestmark = pytest.mark.thorough

KILLED = -signal.SIGKILL
LANGUAGE_MODEL = {"recipe": "llama-tiny", "tokenizer.vocab_size": 420, **{
    key: value for key, value in trained.TINY.items() if key.startswith("training.") and "batches" not in key}}
PATCHES = {"regard.training.synthesis.BLOCK_SIZE": 8, "regard.training.defaults.MODELLING_DEVICES": ["cpu"],
           "regard.training.defaults.MIN_MODELLED_SOURCES": 50, "regard.training.distillation.LANGUAGE_MODEL":
           LANGUAGE_MODEL, "regard.training.distillation.SAMPLED_TOKENS": 60}
BACK_TRANSLATION = [  # one after another in one folder, each but the first with --resume
    {"event": "TrainingProgress", "step": 1},                   # in the reverse training, before a checkpoint
    {"event": "TrainingProgress", "step": 4},                   # after one
    {"event": "CheckpointSaved", "step": 6},                    # it is done, and nothing tells of it
    {"event": "SynthesisProgress", "step": 16},                 # two blocks are written
    {"event": "SynthesisProgress", "step": 24, "touch": 0},     # before the next one is on disk
    {"event": "SynthesisProgress", "step": 40, "touch": 1},     # all are written, and the file of pairs is not
    {"event": "SynthesisProgress", "step": 40, "touch": 3},
    {"event": "TrainingProgress", "step": 1},                   # in the last stage
    {"event": "TrainingProgress", "step": 5},
]
DISTILLATION = [
    {"event": "SynthesisProgress", "step": 16}, {"event": "SynthesisProgress", "step": 48},
    {"event": "SynthesisProgress", "step": 56, "touch": 1},
    {"event": "TrainingProgress", "step": 2}, {"event": "TrainingProgress", "step": 5},
]
MODELLED = [  # from sources for which there is a language model
    {"event": "TrainingProgress", "step": 1}, {"event": "TrainingProgress", "step": 4},
    {"event": "CheckpointSaved", "step": 6}, {"event": "SynthesisProgress", "step": 16},
    {"event": "TrainingProgress", "step": 3},
]
TAUGHT = [  # by the probabilities of the teacher too, whose tokenizer the student has
    {"event": "SynthesisProgress", "step": 16}, {"event": "TrainingProgress", "step": 2},
    {"event": "TrainingProgress", "step": 5},
]
INTERRUPTED = [{"event": "TrainingProgress", "step": 3, "name": "SIGINT"},
               {"event": "SynthesisProgress", "step": 16, "name": "SIGINT"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where all of it happens."""
    place = tmp_path_factory.mktemp("synthesis")
    trained.pairs(place / "pairs.tsv")
    found = list(phrasebook.pairs(40, seed=5, max_words=6))
    (place / "mono.txt").write_text("".join(f"{pair.target}\n" for pair in found), encoding="utf-8")
    (place / "sources.txt").write_text("".join(f"{pair.source}\n" for pair in found), encoding="utf-8")
    more = phrasebook.pairs(60, seed=6, max_words=6)
    (place / "many.txt").write_text("".join(f"{pair.source}\n" for pair in more), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def codes(folder):
    """The exit codes of all calls and what they print, by the name of the training."""
    def back(name, *more):
        return trained.arguments(folder / "pairs.tsv", folder / name, "--monolingual", folder / "mono.txt",
                                 "--keep-synthetic", folder / f"{name}.tsv", *more, tokenizer__vocab_size=420)

    def distilled(name, *more, sources="sources.txt"):
        return trained.arguments(folder / sources, folder / name, "--teacher", folder / "plain",
                                 "--sampled-sources", "16", *more, tokenizer__vocab_size=420,
                                 data__filters__drop="[]")  # it has learned nothing

    def taught(name, *more):
        given = distilled(name, "--set", "training.teacher_share=0.5", *more)
        tokenizer = next(at for at, value in enumerate(given) if value.startswith("tokenizer."))
        return [*given[:tokenizer - 1], *given[tokenizer + 1:]]

    def modelled(name, *more):
        return distilled(name, *more, sources="many.txt")

    calls = [("plain", back("plain"), None), ("student", distilled("student"), None), ("whole", taught("whole"), None),
             ("student of many", modelled("student of many"), None)]
    for name, make, moments in (("chain", back, BACK_TRANSLATION), ("pupil", distilled, DISTILLATION),
                                ("modelled", modelled, MODELLED), ("taught", taught, TAUGHT),
                                ("interrupted", back, INTERRUPTED)):
        calls += [(name, make(name, *(["--resume"] if turn else [])), moment)
                  for turn, moment in enumerate([*moments, None])]
    found = {}
    ends = trained.called(folder, [(arguments, moment) for _, arguments, moment in calls], PATCHES)
    for number, ((name, _, _), code) in enumerate(zip(calls, ends, strict=True)):
        said = (folder / f"{number}.err").read_text()
        assert "Traceback" not in said, said
        found.setdefault(name, []).append((code, said))
    return found


def assert_same(folder, name, other):
    """Every file of two trainings. The metadata in a model's file is in no order, so its sha256 is not compared."""
    whole, parts = trained.contents(folder / other), trained.contents(folder / name)
    assert parts.keys() == whole.keys()
    for file in whole:
        if not file.endswith("manifest.json"):
            assert parts[file] == whole[file], file


def test_one_that_is_not_killed(folder, codes):
    assert [code for code, _ in codes["plain"]] == [0]
    assert {path.name for path in (folder / "plain").iterdir()} == {
        "README.md", "checkpoints", "config.toml", "manifest.json", "metrics.jsonl", "model.safetensors", "reverse",
        "tokenizer.model", "tokenizer.toml"}
    assert [f"Stage {stage} of 3" in codes["plain"][0][1] for stage in (1, 2, 3)] == [True] * 3
    kept = (folder / "plain.tsv").read_text(encoding="utf-8").splitlines()
    assert {line.split("\t")[1] for line in kept} == {*(folder / "mono.txt").read_text(encoding="utf-8").splitlines()}


def test_killed_in_every_stage_is_never_killed(folder, codes):
    assert [code for code, _ in codes["chain"]] == [KILLED] * len(BACK_TRANSLATION) + [0]
    assert_same(folder, "chain", "plain")
    assert (folder / "chain.tsv").read_bytes() == (folder / "plain.tsv").read_bytes()


def test_a_finished_stage_is_not_repeated(codes):
    said = [text for _, text in codes["chain"]]
    assert ["Stage 1" in text for text in said] == [True] * 4 + [False] * 6
    assert ["Stage 2" in text for text in said] == [False] * 3 + [True] * 5 + [False] * 2
    assert ["Stage 3" in text for text in said] == [False] * 7 + [True] * 3


def test_a_student_is_resumed(folder, codes):
    assert [code for code, _ in codes["student"]] == [0]
    assert [code for code, _ in codes["pupil"]] == [KILLED] * len(DISTILLATION) + [0]
    assert_same(folder, "pupil", "student")


def test_a_student_of_a_language_model_is_resumed(folder, codes):
    assert [code for code, _ in codes["student of many"]] == [0]
    assert [f"Stage {stage} of 3" in codes["student of many"][0][1] for stage in (1, 2, 3)] == [True] * 3
    assert [code for code, _ in codes["modelled"]] == [KILLED] * len(MODELLED) + [0]
    assert_same(folder, "modelled", "student of many")


def test_a_student_that_its_teacher_accompanies_is_resumed(folder, codes):
    assert [code for code, _ in codes["whole"]] == [0]
    assert [code for code, _ in codes["taught"]] == [KILLED] * len(TAUGHT) + [0]
    assert_same(folder, "taught", "whole")
    assert (folder / "whole" / "tokenizer.model").read_bytes() == (folder / "plain" / "tokenizer.model").read_bytes()


def test_interrupted_in_a_stage_tells_how_to_resume(folder, codes):
    assert [code for code, _ in codes["interrupted"]] == [130, 130, 0]
    for _, said in codes["interrupted"][:2]:
        assert said.splitlines()[-1].endswith(" --resume")
    assert_same(folder, "interrupted", "plain")
