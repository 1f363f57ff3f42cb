"""A student that learns the probabilities of its teacher: what it reads, what is refused, what is stored, resuming."""

import copy
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tiny
import torch
import trained
from torch.nn import functional as F

import regard
from regard.data import phrasebook
from regard.data.batches.batch import Batch
from regard.tokens import IGNORED_LABEL, PackedTokens, Tokens
from regard.training import distillation
from regard.training.config import TrainingConfig
from regard.training.distributed import DistributedContext
from regard.training.engine import LowPrecisionCopy, TrainingEngine
from regard.training.optimizer import ScheduleConfig
from regard.training.tasks.interface import SynthesisRequest, TrainingRequest
from regard.training.tasks.translation import Teacher, TranslationObjective
from regard.training.train import train

TINY = {**{key: value for key, value in trained.TINY.items() if not key.startswith("tokenizer.")},
        "data.filters.drop": [], "training.schedule.max_steps": 3}  # nothing is learned in three steps
SHARED = {"training.teacher_share": 0.6}


def batch(packed):
    """Two pairs; the last row of a padded batch has labels that do not count."""
    if packed:
        source = PackedTokens(torch.tensor([[5, 6, 7, 8, 2]]), torch.tensor([3, 2]))
        inputs = PackedTokens(torch.tensor([[1, 4, 5, 1, 9, 3, 6]]), torch.tensor([3, 4]))
        labels = torch.tensor([[4, 5, 2, 9, 3, 6, 2]])
    else:
        source = Tokens(torch.tensor([[5, 6, 7], [8, 2, 0]]), torch.tensor([3, 2]))
        inputs = Tokens(torch.tensor([[1, 4, 5, 7], [1, 9, 0, 0]]), torch.tensor([4, 2]))
        labels = torch.tensor([[4, 5, 7, 2], [9, 2, IGNORED_LABEL, IGNORED_LABEL]])
    return Batch(source, inputs, labels, np.arange(2), int((labels != IGNORED_LABEL).sum()))


def models(dtype=torch.double):
    """A student without dropout, and a teacher with much of it, which must not use it."""
    torch.manual_seed(3)
    config = tiny.TRANSLATING["attention"]
    student, teacher = config.build().to(dtype), config.build().to(dtype)
    for module in teacher.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    return student.train(), teacher.train()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rdrop", [0.0, 5.0])
def test_the_teacher_reads_what_the_student_reads(packed, rdrop):
    student, teacher = models()
    given = batch(packed)
    loss = TranslationObjective(student, 0.1, rdrop, Teacher(teacher, 0.6)).train()(given)
    counted = given.labels != IGNORED_LABEL
    logits = student.output(student.features(given.source, given.inputs))[counted]
    target = teacher.output(teacher.features(given.source, given.inputs))[counted].log_softmax(-1).detach()
    want = (0.4 * F.cross_entropy(logits, given.labels[counted], label_smoothing=0.1, reduction="sum")
            + 0.6 * F.kl_div(logits.log_softmax(-1), target, log_target=True, reduction="sum"))
    torch.testing.assert_close(loss.total, want, rtol=1e-10, atol=0)  # without dropout R-Drop adds nothing
    for mine, theirs in zip(torch.autograd.grad(loss.total, student.parameters(), allow_unused=True),
                            torch.autograd.grad(want, student.parameters(), allow_unused=True), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_validation_does_not_ask_the_teacher():
    student, teacher = models()
    taught, plain = (TranslationObjective(student, 0.1, 0.0, each).eval() for each in (Teacher(teacher, 0.6), None))
    assert torch.equal(taught(batch(False)).total, plain(batch(False)).total)


def test_nothing_of_the_teacher_belongs_to_the_student():
    student, teacher = models(torch.float32)
    objective = TranslationObjective(student, 0.1, 0.0, Teacher(teacher, 0.6))
    own = {id(parameter) for parameter in student.parameters()}
    assert {id(parameter) for parameter in objective.parameters()} == own
    assert copy.deepcopy(objective).teacher is objective.teacher
    assert not any(name.startswith("teacher") for name in objective.state_dict())


def test_a_low_precision_copy_has_a_low_precision_teacher():
    """Buffers keep their precision, as those of the copy do."""
    student, teacher = models(torch.float32)
    objective = TranslationObjective(student, 0.1, 0.0, Teacher(teacher, 0.6)).train()
    exact = objective(batch(False)).total
    teacher.register_buffer("kept", torch.ones(1))
    low = LowPrecisionCopy(objective, torch.bfloat16)
    low.refresh()
    loss = low.module.train()(batch(False))
    loss.total.backward()
    assert {parameter.dtype for parameter in teacher.parameters()} == {torch.bfloat16}
    assert teacher.kept.dtype == torch.float32
    assert float(loss.total.detach()) == pytest.approx(float(exact.detach()), rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_on_a_gpu_steps_are_replayed_and_equal_those_on_the_cpu(precision):
    made = []
    for device in ("cpu", "cuda"):
        student, teacher = (model.to(device) for model in models(torch.float32))
        settings = TrainingConfig(schedule=ScheduleConfig(learning_rate=0.01, max_steps=9), rdrop=1.0,
                                  precision="float32" if device == "cpu" else precision)
        made.append(TrainingEngine(TranslationObjective(student, 0.1, 1.0, Teacher(teacher, 0.6)).train(), settings,
                                   DistributedContext.alone()))
    for step in range(1, 7):
        for engine in made:
            engine.step(step, [batch(precision == "bfloat16"), batch(False)], 0.01)
    totals = [engine.read() for engine in made]
    assert totals[1].total == pytest.approx(totals[0].total, rel=1e-4 if precision == "float32" else 0.05)
    assert made[1]._first_backward.graphs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sources, pairs, and a teacher that has learned little."""
    place = tmp_path_factory.mktemp("taught")
    found = list(phrasebook.pairs(60, seed=5, max_words=6))
    (place / "sources.txt").write_text("".join(f"{pair.source}\n" for pair in found[:20]), encoding="utf-8")
    trained.pairs(place / "pairs.tsv")
    train(trained.request(place / "pairs.tsv", place / "teacher", {"tokenizer.vocab_size": 420}))
    return place


def request(folder, name, changes=(), **options):
    given = trained.request(folder / "sources.txt", folder / name, {**TINY, **SHARED, **dict(changes)},
                            synthesis=SynthesisRequest(teacher=str(folder / "teacher")), **options)
    kept = {key: value for key, value in given.changes.items() if key != "tokenizer.vocab_size"}
    return type(given)(**{**vars(given), "changes": {**kept, **dict(changes)}})


def weights(folder):
    return regard.load(folder).model.state_dict()


def test_a_student_has_the_tokenizer_of_its_teacher(folder):
    """With R-Drop, EMA, subword sampling and label smoothing."""
    before = weights(folder / "teacher")
    result = train(request(folder, "student", {"training.rdrop": 1.0, "training.ema_decay": 0.5, "model.width": 8,
                                               "training.subword_sampling": 0.2, "training.label_smoothing": 0.1}))
    assert result.finished
    student, teacher = regard.load(folder / "student"), regard.load(folder / "teacher")
    assert student.tokenizer.sha256 == teacher.tokenizer.sha256
    assert student.config.target_vocab_size == teacher.config.target_vocab_size == 420
    assert student.config.width == 8
    assert student.record["training"]["teacher_share"] == 0.6
    assert {**student.record["tokenizer"], "sha256": 0} == {**teacher.record["tokenizer"], "sha256": 0}
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(folder / "teacher").items())


def test_the_share_changes_what_is_learned(folder):
    found = [train(request(folder, f"share-{share}", {"training.teacher_share": share}))
             for share in (0.5, 1.0)]
    assert all(result.finished for result in found)
    first, second = (weights(folder / f"share-{share}") for share in (0.5, 1.0))
    assert any(not torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize(("changes", "option"), [
    ({"tokenizer.vocab_size": 400}, "tokenizer.vocab_size"), ({"data.joint_tokenizer": False}, "data.joint_tokenizer"),
    ({"model.source_vocab_size": 400, "model.target_vocab_size": 400}, "model.source_vocab_size")])
def test_another_vocabulary_is_refused(folder, changes, option):
    with pytest.raises(ValueError, match=rf"^{option}.*: .*training\.teacher_share"):
        train(request(folder, "no", changes))
    assert not (folder / "no").exists()


def test_a_short_option_is_named_as_it_was_given(folder):
    with pytest.raises(ValueError, match=r"^--vocab-size 400: "):
        train(request(folder, "no", options={"vocab_size": 400}))


def test_without_a_teacher_a_share_is_refused(folder):
    with pytest.raises(ValueError, match=r"training\.teacher_share.*--teacher"):
        train(trained.request(folder / "pairs.tsv", folder / "no", SHARED))
    with pytest.raises(ValueError, match=r"training\.teacher_share=0\.6"):
        train(TrainingRequest("language", (str(folder / "sources.txt"),), folder / "no", changes=SHARED))


def test_a_teacher_of_several_languages_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(distillation, "target_controls", lambda names: {"fr": "<2fr>", "de": "<2de>"})
    with pytest.raises(ValueError, match=r"--teacher .*fr, de.*training\.teacher_share"):
        train(request(folder, "no"))
    assert not (folder / "no").exists()


def test_resuming_needs_the_same_teacher_and_gives_the_same_weights(folder):
    """After an interruption in step 3; a checkpoint is saved after every second step."""
    longer = {"training.schedule.max_steps": 5, "model.encoder.dropout": 0.1, "training.rdrop": 1.0}
    train(request(folder, "whole", longer))
    with pytest.raises(KeyboardInterrupt):
        train(request(folder, "parts", longer), [trained.Recorder(stop=("TrainingProgress", 3))])
    shutil.move(folder / "teacher", folder / "kept")
    other = regard.load(folder / "kept")
    with torch.no_grad():
        other.model.output.weight.mul_(2.0)
    other.save(folder / "teacher")
    with pytest.raises(ValueError, match="another teacher"):
        train(request(folder, "parts", longer, resume=True))
    shutil.rmtree(folder / "teacher")
    shutil.move(folder / "kept", folder / "teacher")
    assert train(request(folder, "parts", longer, resume=True)).finished
    whole, parts = weights(folder / "whole"), weights(folder / "parts")
    assert whole.keys() == parts.keys()
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(folder):
    still = {f"model.{part}.dropout": 0.0 for part in ("embedding", "encoder", "decoder", "encoder.mixer",
             "decoder.mixer", "decoder.cross", "encoder.feed_forward", "decoder.feed_forward")}
    settings = {**still, "training.rdrop": 0.0, "training.batches.max_tokens": 60, "training.schedule.max_steps": 2}

    def arguments(name, **more):
        changes = request(folder, name, {**settings, **more}).changes
        given = ["train", str(folder / "sources.txt"), "-o", str(folder / name), "--device", "cpu", "--teacher",
                 str(folder / "teacher")]
        return [*given, *(part for key, value in changes.items() for part in ("--set", f"{key}={json.dumps(value)}"))]

    assert trained.called(folder, [(arguments("alone", **{"training.gradient_accumulation": 2}), None)]) == [0]
    call = {"arguments": arguments("both"), "moment": None}
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           trained.__file__, "call", json.dumps(call)], env={**kept, "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    one, two = weights(folder / "alone"), weights(folder / "both")
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-5 if "key.bias" not in name else 0.04)
