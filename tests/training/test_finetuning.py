"""Fine-tuning: a training that starts from a model, keeps its tokenizer, and is never worse than it."""

import json
import os
import re
from itertools import pairwise

import pytest
import torch
import trained
from long_form import LONG

import regard
from regard.data import phrasebook
from regard.data.sources.text import DataError
from regard.storage import weights
from regard.tasks.evaluation import corpus_scores
from regard.tasks.info import read_info
from regard.training import defaults
from regard.training import train as training
from regard.training.blending import BLEND_SHARES, choose_share, interpolate
from regard.training.config import TrainingConfig
from regard.training.defaults import DeviceProperties, FinetuningData
from regard.training.optimizer import ScheduleConfig
from regard.training.starting_point import load_start, weights_sha256
from regard.training.tasks import start_checks
from regard.training.timing import Pace, fit_plan

SHORT = {key: value for key, value in trained.TINY.items() if key.startswith("training.")}
"""Settings of a short training, without a model."""
CPU = DeviceProperties("cpu", 10**10, has_bfloat16=False)


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with pairs of two kinds, and a model of the first."""
    place = tmp_path_factory.mktemp("finetuning")
    trained.pairs(place / "old.tsv")
    trained.pairs(place / "new.tsv", seed=7)
    training.train(trained.request(place / "old.tsv", place / "base", {"data.source_lang": "en",
                                                                       "data.target_lang": "fr"}))
    return place


def tune(place, output, changes=(), data="new.tsv", **options):
    """A short fine-tuning in this process: its events and result."""
    recorder = trained.Recorder()
    request = trained.request(place / data, output, **{"start": str(place / "base"), **options})
    request = request.__class__(**{**request.__dict__, "changes": {**SHORT, **dict(changes)}})
    return recorder, training.train(request, [recorder])


def state(folder):
    return weights.read_tensors(folder / "model.safetensors")


def test_the_start_is_the_best_model_until_a_step_is_better(place, tmp_path):
    """With a rate of almost 0 no step is better by chance alone; the result is the start model, bit for bit."""
    recorder, result = tune(place, tmp_path / "new", {"training.schedule.learning_rate": 1e-30,
                                                      "training.ema_decay": 0.0})
    first = recorder.of("Validated")[0]
    assert (first.step, first.better) == (0, True)
    assert result.state.best_step == 0
    before, after = state(place / "base"), state(tmp_path / "new")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert recorder.of("TrainingEnded")[0].best_step == 0
    old, new = (regard.load(folder) for folder in (place / "base", tmp_path / "new"))
    assert old.tokenizer.sha256 == new.tokenizer.sha256


def test_the_result_learns_and_says_where_it_comes_from(place, tmp_path):
    recorder, result = tune(place, tmp_path / "new", {"training.schedule.learning_rate": 3e-3,
                                                      "training.schedule.max_steps": 12})
    start, best = recorder.of("Validated")[0].scores, result.state.best_scores
    assert best["loss"] < start["loss"]
    info = read_info(tmp_path / "new")
    digest = weights_sha256(regard.load(place / "base").model)
    assert info.record["start"]["name"] == "base"
    assert info.record["start"]["sha256"] == digest
    assert info.record["start"]["scores"]["loss"] == pytest.approx(start["loss"])
    card = (tmp_path / "new" / "README.md").read_text()
    assert digest in card
    assert str(place) not in card + (tmp_path / "new" / "config.toml").read_text()
    assert f"{start['loss']:.4g}" in card
    assert f"{best['loss']:.4g}" in card
    # A model made this way can be the start of another.
    _, again = tune(place, tmp_path / "newer", start=str(tmp_path / "new"))
    assert again.finished
    assert read_info(tmp_path / "newer").record["start"]["name"] == "new"


def test_defaults_follow_from_the_new_pairs(place, tmp_path):
    recorder, _ = tune(place, tmp_path / "new")
    started = recorder.of("TrainingStarted")[0]
    settings = {one.key: one.value for one in started.settings}
    assert settings["training.validation.metric"] == "loss"
    assert settings["model.encoder.dropout"] == "0.3"
    assert float(settings["training.schedule.learning_rate"]) == 0.0003
    assert float(settings["data.validation_fraction"]) == 0.15
    assert next(choice.name for choice in started.choices) == "Model"
    assert "base" in started.choices[0].reason


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_rdrop_is_for_models_that_were_trained_with_it(place, tmp_path, weight):
    base = regard.load(place / "base")
    base.record["training"]["rdrop"] = weight
    base.save(tmp_path / "base")
    recorder, _ = tune(place, tmp_path / "new", start=str(tmp_path / "base"))
    found = {one.key: one.value for one in recorder.of("TrainingStarted")[0].settings}
    assert float(found["training.rdrop"]) == (5.0 if weight else 0.0)


@pytest.mark.parametrize("pairs", [100, 600, 5_000, 16_000])
def test_defaults_for_any_number_of_pairs(pairs):
    scratch = [*defaults.translation_training(pairs, 25 * pairs, {"attention"}, CPU, {})]
    rates = {default.key: default.value for default in scratch}
    validated = round(pairs * defaults.finetuning_validation_fraction(pairs))
    data = FinetuningData(pairs, 25 * pairs, 128, validated, "pair",
                          **defaults.translation_finetuning(pairs, pairs, 128, CPU))
    found = {default.key: default.value for default in defaults.finetuning_training(scratch, data, CPU, {})}
    assert 0 < found["training.schedule.learning_rate"] <= rates["training.schedule.learning_rate"]
    assert found["training.epochs"] <= rates["training.epochs"]
    assert found["training.validation.patience"] is not None
    assert 10 <= data.validated <= 2000
    assert (found["training.validation.metric"] == "loss") == (data.validated < defaults.MIN_SCORED_EXAMPLES)
    steps = found["training.epochs"] * 25 * pairs / found["training.batches.max_tokens"]
    assert 50 <= steps <= 10_000
    assert found["training.schedule.warmup_steps"] < steps / 5


def test_wide_translators_and_few_pairs_get_a_low_rate():
    rates = [[defaults.translation_finetuning(pairs, pairs, width, CPU)["rate"] for width in (128, 256, 512, 1024)]
             for pairs in (100, 600, 16_000)]
    assert rates[-1] == [0.001, 0.001, 0.00025, 6.3e-05]
    for low, high in pairwise(rates):
        assert all(one < other for one, other in zip(low, high, strict=True))


def test_small_taggers_are_fine_tuned_as_long_as_new_ones():
    scratch = [*defaults.labelling_training(5_000, 1_000_000, False, CPU, {})]
    new = {default.key: default.value for default in scratch}
    rates = []
    for width in (128, 384, 512, 768):
        data = FinetuningData(5_000, 1_000_000, width, 250, "sequence",
                              **defaults.labelling_finetuning(5_000, 1_000_000, width, CPU))
        found = {default.key: default.value for default in defaults.finetuning_training(scratch, data, CPU, {})}
        assert (found["training.epochs"] == new["training.epochs"]) == (width <= 512)
        rates.append(found["training.schedule.learning_rate"])
    assert rates[0] == rates[1] < new["training.schedule.learning_rate"]
    assert rates[2] == pytest.approx(rates[1] * (384 / 512) ** 2, rel=0.1)
    assert rates[3] < rates[2]
    assert defaults.labelling_finetuning(300, 10_000, 128, CPU) == {}


def test_general_data_lengthens_a_training_at_most_twice():
    alone = defaults.translation_finetuning(1000, 1000, 128, CPU)["epochs"]
    for share in (0.3, 0.5, 0.75, 0.9):
        drawn = 1000 / (1 - share)
        epochs = defaults.translation_finetuning(1000, drawn, 128, CPU)["epochs"]
        assert epochs * drawn <= 2.02 * alone * 1000
        assert epochs == alone or epochs * drawn > 1.9 * alone * 1000


@pytest.mark.parametrize(("options", "changes", "names"), [
    ({}, {"model.width": 8}, ["model.width=8"]),
    ({}, {"tokenizer.vocab_size": 300}, ["tokenizer.vocab_size=300"]),
    ({"options": {"layers": 2, "width": 32, "vocab_size": 400}}, {}, ["--layers 2", "--width 32", "--vocab-size 400"]),
    ({"recipe": "transformer-tiny"}, {}, ["transformer-tiny"]),
    ({}, {"data.joint_tokenizer": False}, ["data.joint_tokenizer"]),
])
def test_architecture_and_tokenizer_cannot_be_set(place, tmp_path, options, changes, names):
    with pytest.raises(ValueError, match="start model") as raised:
        tune(place, tmp_path / "new", changes, **options)
    assert all(name in str(raised.value) for name in names)
    assert not (tmp_path / "new").exists()


def test_dropout_may_be_set(place, tmp_path):
    tune(place, tmp_path / "new", options={"dropout": 0.25})
    assert regard.load(tmp_path / "new").config.encoder.dropout == 0.25


@pytest.mark.parametrize(("options", "changes", "words"), [
    ({"task": "masked"}, {}, ["base", "--task seq2seq"]),
    ({"task": "classify"}, {}, ["base", "--task seq2seq"]),
    ({"start": "nowhere"}, {}, ["nowhere"]),
    ({"start": None, "mix": ("old.tsv",)}, {}, ["--mix", "--from"]),
    ({"start": None}, {"training.blend": True}, ["--blend", "--from"]),
    ({}, {"data.mix_share": 0.5}, ["--mix-share", "--mix"]),
    ({}, {"training.blend_share": 0.5}, ["blend_share"]),
])
def test_wrong_requests(place, tmp_path, options, changes, words):
    with pytest.raises(ValueError, match=re.escape(words[0])) as raised:
        tune(place, tmp_path / "new", changes, **options)
    assert all(word in str(raised.value) for word in words), raised.value
    assert not (tmp_path / "new").exists()


def test_mix_only_for_pairs(place, tmp_path):
    (tmp_path / "text.txt").write_text("the cat sleeps.\nthe dog eats.\n" * 20)
    training.train(trained.request(tmp_path / "text.txt", tmp_path / "lm", task="masked").__class__(
        task="masked", data=(str(tmp_path / "text.txt"),), output=tmp_path / "lm", device="cpu",
        changes={"model.width": 8, "model.stack.layers": 1, "model.stack.mixer.heads": 2, "tokenizer.vocab_size": 280,
                 "training.schedule.max_steps": 2}))
    with pytest.raises(ValueError, match="--mix"):
        tune(place, tmp_path / "new", task="masked", start=str(tmp_path / "lm"), mix=(str(place / "old.tsv"),))


def test_general_data_is_mixed_in_at_its_share(place, tmp_path):
    """The rates of the parts, and scores of the general data beside those of the new."""
    recorder, _ = tune(place, tmp_path / "new", {"data.mix_share": 0.25}, mix=(str(place / "old.tsv"),))
    scores = recorder.of("Validated")[0].scores
    assert {"loss", "bleu", "chrf", "general_loss", "general_bleu", "general_chrf"} == scores.keys()
    config = (tmp_path / "new" / "config.toml").read_text()
    assert "mix_share = 0.25" in config
    record = read_info(tmp_path / "new").record
    assert record["data"]["mixed_pairs"] == 60
    assert record["data"]["pairs"] == 60
    card = (tmp_path / "new" / "README.md").read_text()
    assert "chrF, general data" in card


@pytest.mark.parametrize("option", ["validation", "mix", "general_validation"])
def test_other_files_are_checked_as_the_training_data_is(place, tmp_path, monkeypatch, option):
    """By their names, and by the loss of the start model; a file that it knows in neither direction gets a note."""
    lines = [line.split("\t") for line in (place / "old.tsv").read_text(encoding="utf-8").splitlines()]
    for name, rows in (("other.fr-en.tsv", lines), ("other.en-de.tsv", lines), ("other.tsv", lines),
                       ("swapped.tsv", [line[::-1] for line in lines])):
        (tmp_path / name).write_text("".join(f"{one}\t{two}\n" for one, two in rows), encoding="utf-8")
    sources, factor = {line[0] for line in lines}, [1.0]
    new = {line.split("\t")[0] for line in (place / "new.tsv").read_text(encoding="utf-8").splitlines()}

    def losses(task, pairs):
        right, wrong = (1.0, 2.0) if pairs[0][0] in new else (factor[0], 2.0 * factor[0])
        return start_checks.DirectionLosses(*((right, wrong) if pairs[0][0] in sources | new else (wrong, right)))

    monkeypatch.setattr(start_checks, "direction_losses", losses)
    for name, words in (("other.fr-en.tsv", "French to English"), ("other.en-de.tsv", "English to German"),
                        ("swapped.tsv", r"1\.00.*2\.00")):
        with pytest.raises(DataError, match=rf"{re.escape(name)}.*{words}"):
            tune(place, tmp_path / "new", **{option: (str(tmp_path / name),)})
        assert not (tmp_path / "new").exists()
    factor[0] = 5.0
    recorder, _ = tune(place, tmp_path / "new", **{option: (str(tmp_path / "other.tsv"),)})
    [note] = [event.text for event in recorder.of("Note") if event.warning and "5.00" in event.text]
    assert "other.tsv" in note


def test_no_mixed_pair_is_validation_data(place):
    """The new data is among the general data: what is held out of the one is left out of the other."""
    from regard.training.config import DataConfig
    from regard.training.tasks.sentence_pairs import mix_pairs, mixed_rates, split_pairs, survey_pairs

    survey = survey_pairs([str(place / "new.tsv")], [], DataConfig())
    survey = mix_pairs(survey, [str(place / "new.tsv")], [])
    survey = split_pairs(survey, DataConfig(validation_fraction=0.2))
    held = {pair.source for pair in survey.validation_pairs(10**6)}
    general = {pair.source for pair in survey.general_pairs(10**6)}
    mixed = {pair.source for pair in survey.part_pairs(survey.parts[1])}
    new = {pair.source for pair in survey.part_pairs(survey.parts[0])}
    assert held
    assert general
    assert not held & (mixed | new)
    assert not general & mixed
    assert mixed_rates((50, 200), 0.5) == [1.0, 0.25]
    assert mixed_rates((50, 200), 0.2) == pytest.approx([1.0, 0.0625])


def test_blending_against_a_literal_loop(place, tmp_path):
    """The weights are start + share (new - start), number by number."""
    rate = {"training.schedule.learning_rate": 3e-3}
    tune(place, tmp_path / "new", rate)
    tune(place, tmp_path / "blended", {**rate, "training.blend": True, "training.blend_share": 0.3})
    start, new, blended = (state(folder) for folder in (place / "base", tmp_path / "new", tmp_path / "blended"))
    for name, tensor in blended.items():
        for first, second, found in zip(start[name].flatten().tolist(), new[name].flatten().tolist(),
                                        tensor.flatten().tolist(), strict=True):
            assert found == pytest.approx(first + 0.3 * (second - first), rel=1e-5, abs=1e-7)
    assert read_info(tmp_path / "blended").record["start"]["blend"] == 0.3


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_blended_model_has_confidence_intervals(place, tmp_path, share):
    """Those of its own translations; the scores of the ends are known before, and their intervals are not."""
    many = {"training.validation.max_examples": 12, "training.schedule.learning_rate": 3e-3}
    tune(place, tmp_path / "new", {**many, "training.blend": True, "training.blend_share": share},
         validation=(trained.pairs(tmp_path / "dev.tsv", 12, seed=4),))
    found = regard.load(tmp_path / "new")
    pairs = [line.split("\t") for line in (tmp_path / "dev.tsv").read_text(encoding="utf-8").splitlines()]
    outputs = [one.text for one in found.translate([source for source, _ in pairs], beams=1, length_penalty="none")]
    want = corpus_scores(outputs, [target for _, target in pairs], draws=1000)
    assert found.record["scores"]["chrf"] == pytest.approx(want.chrf)
    assert found.record["scores"]["chrf_interval"] == pytest.approx([*want.chrf_interval])
    low, high = want.chrf_interval
    assert f"[{low:.2f}, {high:.2f}]" in (tmp_path / "new" / "README.md").read_text()


def test_the_best_share_is_chosen(place, tmp_path):
    recorder, result = tune(place, tmp_path / "new", {"training.schedule.learning_rate": 3e-3, "training.blend": True},
                            general_validation=(str(place / "old.tsv"),))
    record = read_info(tmp_path / "new").record
    assert record["start"]["blend"] in BLEND_SHARES
    scores, before, best = record["scores"], result.state.start_scores, result.state.best_scores
    def mean(found):
        return (found["loss"] + found["general_loss"]) / 2
    assert mean(scores) <= min(mean(before), mean(best)) + 1e-9
    assert any("share" in note for note in recorder.notes())


def test_shares():
    """The score of the new data, or the mean of both; of equal ones the larger share."""
    asked = []

    def validate(share):
        asked.append(share)
        return {"chrf": 50 - 10 * (share - 0.6) ** 2, "general_chrf": 60 - 40 * share, "loss": share}

    known = {0.0: {"chrf": 40.0, "general_chrf": 60.0, "loss": 0.0}, 1.0: {"chrf": 48.0, "general_chrf": 20.0,
                                                                          "loss": 1.0}}
    choice = choose_share(validate, "chrf", None, known)
    assert asked == [share for share in BLEND_SHARES if share not in known]
    assert choice.share == max(BLEND_SHARES, key=lambda share: sum((known.get(share) or validate(share))[name]
                                                                   for name in ("chrf", "general_chrf")))
    assert choose_share(lambda share: {"chrf": 1.0}, "chrf", None, {}).share == 1.0
    assert choose_share(lambda share: {"loss": abs(share - 0.4)}, "loss", None, {}).share == 0.4
    assert choose_share(lambda share: {"loss": float("nan") if share else 3.0}, "loss", None, {}).share == 0.0
    assert choose_share(validate, "chrf", 0.7, known).tried.keys() == {0.7}


def test_interpolation_has_exact_ends():
    torch.manual_seed(0)
    model, first, second = (torch.nn.Linear(3, 2) for _ in range(3))
    for share, expected in ((0.0, first), (1.0, second)):
        interpolate(model, first.state_dict(), second.state_dict(), share)
        assert all(torch.equal(model.state_dict()[name], expected.state_dict()[name]) for name in ("weight", "bias"))


def test_blending_has_its_time():
    """A time limit leaves time for the validations after the last step."""
    settings = TrainingConfig(schedule=ScheduleConfig(max_steps=10_000, learning_rate=1e-3), max_time=100.0)
    pace = Pace()
    pace.add_steps(10, 1.0)
    pace.validation_seconds = 2.0
    plain = fit_plan(settings, pace).steps
    pace.final_validations = 9
    assert plain - fit_plan(settings, pace).steps == pytest.approx(9 * 2.0 / 0.1, abs=25)


def test_the_sha256_is_of_the_weights(place):
    """A folder and the task in memory are one start; a changed weight is another."""
    task = regard.load(place / "base")
    first = load_start(str(place / "base"), "seq2seq")
    assert load_start(task, "seq2seq").sha256 == first.sha256
    with torch.no_grad():
        next(task.model.parameters()).view(-1)[0] += 1
    assert load_start(task, "seq2seq").sha256 != first.sha256


def test_from_python(place, tmp_path):
    """With a task object and pairs in memory; callbacks see step 0; the start stays as it is."""
    task = regard.load(place / "base")
    before, events = weights_sha256(task.model), []
    pairs = [(pair.source, pair.target) for pair in phrasebook.pairs(60, seed=9, max_words=6)]
    old = [(pair.source, pair.target) for pair in phrasebook.pairs(40, seed=0, max_words=6)]
    found = regard.train(pairs, tmp_path / "new", from_=task, mix=old, mix_share=0.4, blend=True, settings=SHORT,
                         lr=1e-3, device="cpu", callbacks=[events.append])
    assert weights_sha256(task.model) == before
    assert found.tokenizer.sha256 == task.tokenizer.sha256
    assert found.record["start"]["sha256"] == before
    assert events[0].step == 0
    assert "general_chrf" in events[0].scores
    assert found.history[0]["step"] == 0
    with pytest.raises(ValueError, match="from_"):
        regard.train(pairs, tmp_path / "other", mix=old, settings=SHORT, device="cpu")
    with pytest.raises(ValueError, match="from_"):
        regard.train(pairs, tmp_path / "other", from_=3, settings=SHORT, device="cpu")


def test_resumed_with_another_start(place, tmp_path):
    """Refused, with both sums; and so is none, and one for a training with new weights."""
    data = place / "new.tsv"
    request = trained.request(data, tmp_path / "new", start=str(place / "base"))
    request = request.__class__(**{**request.__dict__, "changes": SHORT})
    with pytest.raises(KeyboardInterrupt):
        training.train(request, [trained.Recorder(("TrainingProgress", 3))])
    other = regard.load(place / "base")
    with torch.no_grad():
        next(other.model.parameters()).view(-1)[0] += 1
    digest = weights_sha256(other.model)
    again = request.__class__(**{**request.__dict__, "resume": True, "start": other})
    with pytest.raises(ValueError, match=digest):
        training.train(again)
    with pytest.raises(ValueError, match="--from"):
        training.train(request.__class__(**{**request.__dict__, "resume": True, "start": None}))
    result = training.train(request.__class__(**{**request.__dict__, "resume": True}))
    assert result.finished


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not LONG, reason="three trainings of minutes: REGARD_LONG=1")
def test_a_new_domain_is_learned_and_the_old_one_kept(tmp_path):
    """Short sentences, then long ones: fine-tuning helps on these, and with general data little is forgotten."""
    def chosen(seed, least, most, count):
        found = (pair for pair in phrasebook.pairs(20 * count, seed=seed) if least <= len(pair.source.split()) <= most)
        return [(pair.source, pair.target) for _, pair in zip(range(count), found, strict=False)]

    old, new = chosen(1, 1, 6, 1500), chosen(2, 9, 30, 600)
    tests = {"old": chosen(3, 1, 6, 100), "new": chosen(4, 9, 30, 100)}
    base = regard.train(old, tmp_path / "base", device="cpu", epochs=25, batch_tokens=1500, lr=2e-3, rdrop=0.0)
    options = {"from_": base, "device": "cpu", "epochs": 12, "rdrop": 0.0}
    models = {"base": base, "tuned": regard.train(new, tmp_path / "tuned", **options),
              "mixed": regard.train(new, tmp_path / "mixed", mix=old, **options)}
    from regard.tasks.evaluation import translation_loss

    losses = {(name, kind): translation_loss(model, pairs).mean for name, model in models.items()
              for kind, pairs in tests.items()}
    assert losses["tuned", "new"] < 0.9 * losses["base", "new"], losses
    assert losses["mixed", "new"] < 0.9 * losses["base", "new"], losses
    assert losses["mixed", "old"] < losses["tuned", "old"], losses
    assert losses["mixed", "old"] < 1.1 * losses["base", "old"], losses


def test_info_as_json(place, tmp_path, capsys):
    tune(place, tmp_path / "new")
    from typer.testing import CliRunner

    from regard.cli.main import app

    found = CliRunner().invoke(app, ["info", str(tmp_path / "new"), "--json"])
    assert json.loads(found.stdout)["start"]["name"] == "base"
    plain = CliRunner().invoke(app, ["info", str(tmp_path / "new")])
    assert re.search(r"Fine-tuned from\s+base", plain.stdout)
