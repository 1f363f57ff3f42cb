"""Defaults that depend on the amount of data and the device, for every task."""

import planned
import pytest
import torch
from planned import CPU, GPU, SIZES, config, ready

from regard.models import catalog
from regard.models.build import build, model_config
from regard.position.rotary import RotaryConfig
from regard.training import defaults as choices
from regard.training.defaults import Default, DeviceProperties, by_threshold, lookup, recipe_with_size, training_length


@pytest.mark.parametrize(("recipe", "size", "name"), [
    ("transformer", "tiny", "transformer-tiny"), ("transformer", "base", "transformer"),
    ("transformer-small", "tiny", "transformer-small"), ("transformer", "huge", "transformer"),
    ("seq2seq", "small", "seq2seq-small"), ("seq2seq-attention", "small", "seq2seq-attention-small"),
    ("unknown", "tiny", "unknown"),
])
def test_a_recipe_in_a_size(recipe, size, name):
    assert recipe_with_size(recipe, size) == name


def test_grades():
    steps = ((10, "few"), (100, "some"))
    assert [by_threshold(number, steps, "many") for number in (0, 9, 10, 99, 100, 10**9)] == [
        "few", "few", "some", "some", "many", "many"]
    assert by_threshold(5, (), "all") == "all"


def test_values_at_dotted_keys():
    tables = {"a": {"b": {"c": 1}, "d": 0}}
    assert (lookup(tables, "a.b.c"), lookup(tables, "a.d"), lookup(tables, "a.b")) == (1, 0, {"c": 1})
    assert (lookup(tables, "a.x"), lookup(tables, "a.d.x"), lookup(tables, "x", 7)) == (None, None, 7)


def test_a_choice_is_three_things():
    assert Default("a.b", 1, "why") == ("a.b", 1, "why")
    assert DeviceProperties("cuda", 1, True).is_gpu
    assert not DeviceProperties("cpu", 1, True).is_gpu


@pytest.mark.parametrize(("batches", "many", "steps"), [
    (0.01, 1, 60), (1.0, 1, 60), (2.5, 1, 150), (0.01, 7, 9), (0.01, 1000, 1)])
def test_an_epoch_has_a_batch_at_least(batches, many, steps):
    made, found = training_length({"gradient_accumulation": many}, 60, batches, DeviceProperties("cpu", 1, False),
                                  "why")
    assert (found, [choice.value for choice in made]) == (steps, [60])
    assert training_length({"schedule": {"max_steps": 3}}, 60, batches, DeviceProperties("cpu", 1, False),
                           "why") == ([], 3)


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


def training_values(pairs, device, **options):
    found = choices.translation_training(pairs, 30 * pairs, ["attention", "attention"], device, {}, **options)
    return {choice.key: choice.value for choice in found}


def test_a_student_of_many_translations_needs_no_rdrop_and_more_epochs():
    few, many = (training_values(count, GPU, distilled=True) for count in (29_000, 290_000))
    assert few == training_values(29_000, GPU)
    assert "training.rdrop" in few
    assert "training.rdrop" not in many
    assert many["training.epochs"] > training_values(290_000, GPU)["training.epochs"]


def test_a_narrow_student_of_many_translations_learns_at_a_higher_rate():
    def rate(pairs, width, *, distilled=True):
        return training_values(pairs, GPU, distilled=distilled, width=width)["training.schedule.learning_rate"]

    assert rate(290_000, 128) == rate(290_000, 144) == choices.STUDENT_RATE > rate(290_000, 160) == rate(290_000, None)
    assert rate(29_000, 128) == rate(290_000, 128, distilled=False) == rate(290_000, 192)


def test_a_transformer_of_several_directions_is_wider():
    def recipe(pairs, device, requested=None):
        return choices.translation_recipe(pairs, device, requested, directions=True).value

    assert recipe(174_000, GPU) == recipe(174_000, GPU, "transformer") == "transformer-medium"
    assert recipe(174_000, GPU, "conv") == choices.translation_recipe(174_000, GPU, "conv").value
    assert recipe(174_000, GPU, "transformer-tiny") == "transformer-tiny"
    assert recipe(2_000_000, GPU) == choices.translation_recipe(2_000_000, GPU, None).value
    assert recipe(174_000, CPU) == choices.translation_recipe(174_000, CPU, None).value


def test_several_directions_are_learned_longer():
    alone, several = (training_values(174_000, GPU, directions=directions) for directions in (False, True))
    assert several["training.epochs"] > alone["training.epochs"]
    assert training_values(2_000_000, GPU, directions=True) == training_values(2_000_000, GPU)
    assert training_values(174_000, CPU, directions=True) == training_values(174_000, CPU)
    assert training_values(29_000, GPU, directions=True) == training_values(29_000, GPU)  # more epochs already


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


@pytest.mark.thorough
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
    changes = {"model__width": 64, "model__encoder__dropout": 0.05, "tokenizer__vocab_size": 500,
               "data__validation_fraction": 0.2,
               "training__ema_decay": 0.5, "training__schedule__warmup_steps": 7,
               "training__validation__metric": "bleu",
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


TOKENS = (10, 500, 1_000_000, 30_000_000, 3_000_000_000)
RECIPES = ("llama", "gpt", "rnn", "lstm", "gru", "mut1", "mut2", "mut3", "rwkv4", "rwkv7")


def made(tokens, device=CPU, recipe=None, training=None):
    """The config, and all choices."""
    named = choices.language_recipe(tokens, device, recipe)
    table, asked = catalog.find_recipe(named.value).tables["model"], training or {}
    found = [*choices.language_tokenizer(tokens, {}), *choices.language_model(tokens, table),
             *choices.language_training(tokens, table, device, asked)]
    given = {"model": {"vocab_size": 100}, "training": asked}
    return config(named.value, found, given), {choice.key: choice for choice in found}, named


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_can_be_built_for_every_length(recipe, name):
    sizes = []
    for tokens in TOKENS:
        tables, found, named = made(tokens, DEVICES[name], recipe)
        with torch.device("meta"):
            network = build(tables["model"])
        sizes.append(sum(one.numel() for one in network.parameters()))
        assert all(choice.reason for choice in (*found.values(), named))
        windows = tables["training"].windows
        assert windows.order == ("shuffled" if recipe in ("llama", "gpt", "rwkv4", "rwkv7") else "continuous")
        assert windows.batch_size >= 1
        assert windows.length >= 1
        assert windows.batch_size * windows.length <= max(8, tokens) or tokens < 64
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_the_default_language_model_has_no_largest_position():
    for tokens in TOKENS:
        for device in DEVICES.values():
            model = made(tokens, device)[0]["model"]
            assert model.embedding.positions is None
            assert isinstance(model.stack.mixer.position, RotaryConfig)


@pytest.mark.parametrize("size", ["-tiny", "-small", "", "-big"])
def test_llama_has_about_the_parameters_of_gpt(size):
    llama, gpt = (model_config(f"{name}{size}", vocab_size=300).parameters() for name in ("llama", "gpt"))
    assert 0.96 * gpt < llama <= gpt


@pytest.mark.parametrize("size", ["tiny", "small"])
@pytest.mark.parametrize("recipe", ["rwkv4", "rwkv7"])
def test_rwkv_has_about_the_parameters_of_gpt(recipe, size):
    rwkv, gpt = (model_config(f"{name}-{size}", vocab_size=65).parameters() for name in (recipe, "gpt"))
    assert 0.9 * gpt < rwkv < 1.1 * gpt


def test_a_short_text_is_read_by_characters():
    few, many = ({choice.key: choice.value for choice in choices.language_tokenizer(count,
                                                                                    {})} for count in (10**6, 10**8))
    assert few == {"tokenizer.kind": "characters"}
    assert (many["tokenizer.kind"], many["tokenizer.vocab_size"] > 1000) == ("unigram", True)
    asked = {choice.key: choice.value for choice in choices.language_tokenizer(10**6, {"kind": "bpe"})}
    assert asked["tokenizer.kind"] == "bpe"
    assert "tokenizer.vocab_size" in asked
    assert [choice.key for choice in choices.language_tokenizer(10**8, {"kind": "bytes"})] == ["tokenizer.kind"]


def test_the_less_there_is_the_more_care():
    dropouts = [made(tokens, GPU)[0]["model"].stack.dropout for tokens in TOKENS]
    assert dropouts == sorted(dropouts, reverse=True)
    epochs = [made(tokens, GPU)[0]["training"].epochs for tokens in TOKENS]
    assert epochs == sorted(epochs, reverse=True)


def test_what_is_set_is_followed():
    steps = made(10**6, GPU)[0]["training"]
    half = made(10**6, GPU, training={"gradient_accumulation": 2})[0]["training"]
    assert half.validation.every == pytest.approx(steps.validation.every / 2, rel=0.1)
    four = made(10**6, DeviceProperties("cuda", 2**36, True, count=4))[0]["training"]
    assert four.validation.every == pytest.approx(steps.validation.every / 4, rel=0.1)
    tables, found, _ = made(10**6, GPU, training={"schedule": {"max_steps": 40}, "windows": {"length": 10}})
    assert "training.epochs" not in found
    assert lookup({"training": found}, "training.epochs") is None
    assert (tables["training"].steps, tables["training"].windows.length) == (40, 10)
    assert tables["training"].schedule.warmup_steps <= 10
    assert tables["training"].validation.every <= 4


@pytest.mark.parametrize(("mixer", "positions", "order"), [
    ({"kind": "recurrence", "cell": "lstm"}, None, "continuous"), ({"kind": "lstmn"}, None, "shuffled"),
    ({"kind": "recurrence", "cell": "lstm"}, {"kind": "sinusoidal"}, "shuffled"),
    ({"kind": "attention"}, None, "shuffled"), ({"kind": "convolution"}, None, "shuffled")])
def test_windows_go_on_where_the_model_does(mixer, positions, order):
    """A memory that is told of is one that is carried."""
    table = {"stack": {"mixer": mixer}, "embedding": {} if positions is None else {"positions": positions}}
    found = {choice.key: choice for choice in choices.language_training(10**5, table, CPU,
                                                                        {})}["training.windows.order"]
    assert found.value == order
    assert ("carried" in found.reason) == (order == "continuous")


TEXTS = (1, 5_000, 80_000, 900_000, 10_000_000, 200_000_000)


def masked_defaults(texts, device=CPU, training=None):
    named, asked = choices.masked_recipe(texts, device, None), training or {}
    found = [*choices.masked_tokenizer(texts, {}), *choices.masked_training(texts, 20 * texts, device, asked)]
    tables = config(named.value, found, {"model": {"vocab_size": 100}, "training": asked})
    return tables, {choice.key: choice for choice in (*found, named)}


@pytest.mark.parametrize("name", DEVICES)
def test_a_model_for_any_number_of_texts(name):
    sizes, epochs, vocabularies = [], [], []
    for texts in TEXTS:
        tables, found = masked_defaults(texts, DEVICES[name])
        with torch.device("meta"):
            sizes.append(sum(one.numel() for one in build(tables["model"]).parameters()))
        assert all(choice.reason for choice in found.values())
        assert tables["training"].masking.mlm_probability == 0.15
        epochs.append(tables["training"].epochs)
        vocabularies.append(tables["tokenizer"].vocab_size)
    assert sizes == sorted(sizes)
    assert vocabularies == sorted(vocabularies)
    assert epochs == sorted(epochs, reverse=True)
    assert (sizes[0] < sizes[-1], epochs[0] > epochs[-1]) == (True, True)


@pytest.mark.parametrize("training", [{"batches": {"layout": "packed"}}, {"schedule": {"max_steps": 3}},
                                      {"epochs": 0.01},
                                      {"parallelism": "fsdp"}, {"masking": {"mlm_probability": 0.3}}])
@pytest.mark.parametrize("name", DEVICES)
def test_no_masked_default_contradicts_what_is_set(training, name):
    tables, found = masked_defaults(5_000, DEVICES[name], training)
    assert ("training.epochs" in found) == ("schedule" not in training)
    assert tables["training"].validation.metric == "loss"


def test_a_tokenizer_of_their_own():
    assert [choice.key for choice in choices.masked_tokenizer(10, {"kind": "bytes"})] == ["tokenizer.kind"]


SHAPES = [(8, 8, 1), (28, 28, 1), (32, 32, 3), (64, 48, 3), (224, 224, 3), (7, 13, 1), (1, 1, 3)]


def images(count, shape, device=CPU, training=None, recipe=None):
    named, asked = choices.image_classifier_recipe(count, min(shape[:2]), device, recipe), training or {}
    model = list(choices.image_classifier_model(count, *shape, device, recipe))
    found = [*model, *choices.classification_training(count, 50 * count, device, min(shape[:2]), asked)]
    return config(named.value, found, {"model": {"num_labels": 3}, "training": asked}), [*found, named]


def texts(count, device=CPU, training=None):
    named, asked = choices.text_classifier_recipe(count, device, None), training or {}
    found = [*choices.classification_tokenizer(count, {}), *choices.classification_training(count, 20 * count, device,
                                                                                            None, asked)]
    return config(named.value, found, {"model": {"num_labels": 3, "vocab_size": 100},
                                       "training": asked}), [*found, named]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("shape", SHAPES)
def test_images_of_any_shape_are_cut_into_patches(shape, name):
    for count in (10, 5_000, 60_000, 2_000_000):
        tables, found = images(count, shape, DEVICES[name])
        model = tables["model"]
        assert (model.image_height, model.image_width, model.channels) == shape
        assert model.image_height % model.patch_size == model.image_width % model.patch_size == 0
        with torch.device("meta"):
            assert build(model)
        assert all(choice.reason for choice in found)
        assert tables["training"].validation.metric == "accuracy"


@pytest.mark.parametrize("name", DEVICES)
def test_texts(name):
    vocabularies = []
    for count in (10, 5_000, 60_000):
        tables, found = texts(count, DEVICES[name])
        with torch.device("meta"):
            assert build(tables["model"])
        assert all(choice.reason for choice in found)
        vocabularies.append(tables["tokenizer"].vocab_size)
    assert vocabularies == sorted(vocabularies)


@pytest.mark.parametrize("make", [lambda *given: images(500, (28, 28, 1), *given), lambda *given: texts(500, *given)])
@pytest.mark.parametrize("device", DEVICES.values())
def test_what_is_set_is_followed_for_classification(make, device):
    tables, found = make(device, {"schedule": {"max_steps": 20}})
    assert "training.epochs" not in {choice.key for choice in found}
    assert tables["training"].schedule.warmup_steps <= 5
    assert tables["training"].validation.every <= 2
    assert make(device, {"parallelism": "fsdp"})[0]["training"].validation.metric == "loss"
    assert make(device, {"batches": {"layout": "packed"}})[0]["training"].batches.layout == "packed"


@pytest.mark.parametrize("size", ["tiny", "small", "big"])
def test_a_size_that_is_asked_for_is_as_large_as_it_is(size):
    model = images(60_000, (28, 28, 1), GPU, recipe=f"vit-{size}")[0]["model"]
    table = catalog.find_recipe(f"vit-{size}").tables["model"]
    assert (model.width, model.stack.layers) == (table["width"], table["stack"]["layers"])
    open_one, left = (images(60_000, (28, 28, 1), GPU, recipe=recipe)[0]["model"] for recipe in (None, "vit"))
    assert open_one == left
    assert open_one.width == 128


@pytest.mark.parametrize("make", [lambda: images(500, (28, 28, 1)), lambda: texts(500)])
def test_a_training_that_ends_before_its_time_is_told_where_there_is_patience_alone(make):
    tables, found = make()
    (epochs,) = [choice for choice in found if choice.key == "training.epochs"]
    assert ("early stopping" in epochs.reason) == (tables["training"].validation.patience is not None)


@pytest.mark.parametrize(("natural", "read"), [
    ((28, 28), (28, 28)), ((224, 224), (224, 224)), ((31, 29), (31, 29)), ((1, 1), (1, 1)), ((512, 512), (512, 512)),
    ((97, 97), (96, 96)), ((375, 500), (368, 496)), ((251, 17), (240, 16)), ((3000, 4000), (432, 576)),
    ((3, 100_000), (16, 16_384)), ((1, 1025), (16, 1024))])
def test_no_image_is_cut_into_too_many_patches(natural, read):
    assert choices.image_sides(*natural) == read
    (patch,) = [choice.value for choice in choices.image_classifier_model(9, *read, 1, CPU,
                                                                          None) if choice.key == "model.patch_size"]
    assert read[0] % patch == read[1] % patch == 0
    assert (read[0] // patch) * (read[1] // patch) <= choices.MAX_PATCHES
