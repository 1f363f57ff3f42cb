"""Zero configuration of translation: for any number of pairs, on any device, a training that fits and can be built."""

import planned
import pytest
import torch
from planned import CPU, GPU, SIZES, ready

from regard.models.build import build
from regard.training import defaults as choices
from regard.training.defaults import DeviceProperties

ROAD = ("seq2seq", "seq2seq-attention", "attention", "conv", "transformer")
DEVICES = {"cpu": CPU, "gpu": GPU}
COUNTED = ("training.schedule.", "training.validation.", "training.checkpoints.", "data.")
"""What differs wherever the number of steps does."""


def chosen(made):
    return {choice.key: choice.value for choice in made.defaults}


@pytest.mark.parametrize("name", DEVICES)
def test_more_data_gives_more_of_everything_but_of_care(name):
    made = [ready(count, DEVICES[name]) for count in SIZES]
    grown = {
        "parameters": [one.model.parameters() for one in made],
        "vocab_size": [one.model.source_vocab_size for one in made],
        "batches": [one.settings.batches.max_tokens for one in made],
    }
    shrunk = {
        "dropout": [one.model.encoder.dropout for one in made],
        "inside": [one.model.decoder.cross.dropout for one in made],
        "epochs": [one.settings.epochs for one in made],
        "rdrop": [one.settings.rdrop for one in made],
    }
    for key, values in grown.items():
        assert values == sorted(values), key
        assert values[0] < values[-1], key
    for key, values in shrunk.items():
        assert values == sorted(values, reverse=True), key
        assert values[0] > values[-1], key
    assert made[0].settings.steps < made[-1].settings.steps


@pytest.mark.parametrize("name", DEVICES)
def test_few_pairs_are_learned_with_norms_first(name):
    """Post-norm learned 5,000 pairs by heart before it looked at the source; who asks for it gets it."""
    few, many = ready(5_000, DEVICES[name]), ready(2_000_000, DEVICES[name])
    assert (few.model.encoder.norm_position, few.model.decoder.norm_position) == ("pre", "pre")
    assert (many.model.encoder.norm_position, many.model.decoder.norm_position) == ("post", "post")
    asked = ready(5_000, DEVICES[name], model__encoder__norm_position="post")
    assert (asked.model.encoder.norm_position, asked.model.decoder.norm_position) == ("post", "pre")


@pytest.mark.parametrize("name", DEVICES)
def test_every_size_is_learned_in_its_own_way(name):
    """No two sizes of the list have the same choices, apart from what counts their steps."""
    found = []
    for count in SIZES:
        made = chosen(ready(count, DEVICES[name]))
        table = {key: value for key, value in made.items() if not key.startswith(COUNTED)}
        assert table not in found
        found.append(table)


@pytest.mark.parametrize("count", SIZES)
def test_a_cpu_is_asked_for_less(count):
    cpu, gpu = ready(count, CPU), ready(count, GPU)
    assert cpu.model.parameters() < gpu.model.parameters()
    assert cpu.settings.batches.max_tokens < gpu.settings.batches.max_tokens
    assert cpu.settings.epochs < gpu.settings.epochs
    assert (cpu.settings.precision, gpu.settings.precision) == ("float32", "bfloat16")
    assert (cpu.settings.batches.layout, gpu.settings.batches.shapes) == ("packed", "few")


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("recipe", ROAD)
def test_every_recipe_of_the_road_can_be_built_with_its_choices(recipe, name):
    sizes, dropouts = set(), []
    for count in SIZES:
        made = ready(count, DEVICES[name], recipe)
        sizes.add(made.tables["recipe"])
        with torch.device("meta"):
            network = build(made.model)
        assert sum(one.numel() for one in network.parameters()) == made.model.parameters()
        dropouts.append(made.model.dropout if made.model.kind == "seq2seq" else made.model.encoder.dropout)
        assert made.tables["recipe"].startswith(recipe)
    assert len(sizes) == 3  # three of its four, larger ones on a GPU
    assert dropouts == sorted(dropouts, reverse=True)  # whatever the recipe itself says
    assert dropouts[0] > dropouts[-1]
    assert (made.settings.batches.layout == "packed") == (recipe in ("transformer", "attention"))


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("count", SIZES)
def test_every_choice_has_a_reason_and_is_what_is_used(count, name):
    """What is told is what is stored."""
    made = ready(count, DEVICES[name])
    assert len({choice.key for choice in made.defaults}) == len(made.defaults) > 20
    for choice in made.defaults:
        assert choice.reason.strip(), choice.key
        assert choices.lookup(made.tables, choice.key) == choice.value, choice.key


def test_what_is_set_wins_and_is_not_told_as_chosen():
    changes = {"model__width": 64, "model__encoder__dropout": 0.05, "tokenizer__vocab_size": 500, "data__validation_fraction": 0.2,
               "training__ema_decay": 0.5, "training__schedule__warmup_steps": 7, "training__validation__metric": "bleu",
               "training__rdrop": 2.0, "data__joint_tokenizer": False}
    made = ready(29_000, GPU, **changes)
    for key, value in changes.items():
        key = key.replace("__", ".")
        assert choices.lookup(made.tables, key) == value
        assert key not in chosen(made)
    assert made.model.decoder.dropout == 0.3  # which nobody has set
    assert made.model.share_embeddings is False  # as each side has its own tokenizer


def test_a_recipe_in_a_size_is_that_size():
    made = ready(300, CPU, "transformer-small")
    assert (made.tables["recipe"], made.model.width) == ("transformer-small", 256)
    assert "recipe" not in chosen(made)
    assert ready(300, GPU, "transformer").tables["recipe"] == "transformer-small"
    assert ready(2_000_000, GPU, "transformer").tables["recipe"] == "transformer"
    assert ready(30_000_000, GPU, "transformer").tables["recipe"] == "transformer-big"


@pytest.mark.parametrize("steps", [1, 8, 40, 1000, 100_000])
def test_what_depends_on_the_steps_follows_them(steps):
    """The warm-up is a small part of them, and there are enough judgements for patience to end it early."""
    made = ready(29_000, GPU, training__schedule__max_steps=steps)
    assert (made.settings.steps, made.settings.epochs) == (steps, None)
    assert 1 <= made.settings.schedule.warmup_steps <= max(1, steps // 4)
    assert 1 <= made.settings.validation.every <= max(1, steps // 10)
    assert steps / made.settings.validation.every < 40
    assert made.settings.checkpoints.every == made.settings.validation.every
    assert "training.epochs" not in chosen(made)


def test_what_depends_on_other_settings_follows_them():
    plain, learned = ready(29_000, GPU), 0.96 * 29_000  # the others are held out
    epochs, batch = plain.settings.epochs, plain.settings.batches.max_tokens
    assert plain.settings.steps == pytest.approx(epochs * 32 * learned / batch, rel=0.02)
    for part, changes in ((2, {"training__epochs": epochs / 2}), (4, {"training__gradient_accumulation": 4}),
                          (2, {"training__batches__max_tokens": 2 * batch})):
        assert ready(29_000, GPU, **changes).settings.steps == pytest.approx(plain.settings.steps / part, rel=0.02)
    assert ready(29_000, GPU, training__validation__every=77).settings.checkpoints.every == 77
    several = ready(29_000, DeviceProperties("cuda", GPU.memory, True, count=4)).settings  # each has batches of its own
    assert several.steps == pytest.approx(plain.settings.steps / 4, rel=0.02)
    assert several.validation.every == pytest.approx(plain.settings.validation.every / 4, rel=0.05)


@pytest.mark.parametrize("changes", [
    {"training__rdrop": 0.0}, {"training__batches__layout": "packed"}, {"training__batches__shapes": "few"},
    {"training__batches__layout": "padded"}, {"training__batches__shapes": "as_drawn"}, {"tokenizer__kind": "bytes"},
    {"tokenizer__kind": "characters"}, {"tokenizer__kind": "bpe"}, {"training__parallelism": "fsdp"},
    {"training__schedule__shape": "constant"}, {"training__ema_decay": 0.0}, {"training__max_grad_norm": 0.0},
    {"training__epochs": 0.001}, {"training__validation__patience": 1},
])
@pytest.mark.parametrize("device", [CPU, GPU, DeviceProperties("cuda", 2**33, has_bfloat16=False)])
def test_no_choice_contradicts_what_is_set(device, changes):
    """Each of these alone is good, and so must be all that is chosen beside it."""
    for count in (300, 29_000, 2_000_000):
        made = ready(count, device, **changes)
        for key, value in changes.items():
            assert choices.lookup(made.tables, key.replace("__", ".")) == value


def test_a_score_that_a_part_of_the_model_can_tell():
    assert ready(300, CPU).settings.validation.metric == "chrf"
    assert ready(300, CPU, training__parallelism="fsdp").settings.validation.metric == "loss"


def test_a_device_without_bfloat16():
    assert ready(300, DeviceProperties("cuda", 2**33, has_bfloat16=False)).settings.precision == "float32"


@pytest.mark.parametrize(("count", "held"), [(1, 0.0), (19, 0.0), (20, 0.04), (300, 0.04), (50_000, 0.04),
                                             (100_000, 0.02), (2_000_000, 0.001)])
def test_how_much_is_held_out(count, held):
    made = ready(count)
    assert made.tables["data"]["validation_fraction"] == held
    assert ready(count, given=True).tables["data"]["validation_fraction"] == 0.0


def test_a_whole_model_of_their_own_is_not_mixed_with_a_recipe(tmp_path):
    """Dropout is chosen for what there is, and nothing is made up."""
    file = tmp_path / "own.toml"
    file.write_text("""
[model]
kind = "encoder-decoder"
width = 24
[model.encoder]
layers = 1
mixer = { kind = "recurrence", cell = "gru" }
[model.decoder]
layers = 1
mixer = { kind = "attention", heads = 3 }
cross = { heads = 3 }
""")
    made = ready(300, CPU, str(file))
    assert "recipe" not in made.tables
    assert "recipe" not in chosen(made)
    assert made.model.encoder.feed_forward is None
    assert made.model.decoder.mixer.dropout == made.model.decoder.cross.dropout == 0.1
    assert made.model.encoder.dropout == 0.3
    assert made.settings.batches.layout == "padded"  # recurrence does not take packed rows
    assert planned.plain(made.tables).tables["model"]["width"] == 24
