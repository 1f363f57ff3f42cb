"""What a training would take: against the models that are built, the choices that are made, and speeds that were
measured."""

import subprocess
import sys
from itertools import accumulate

import planned
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import regard
from regard.attention import backends
from regard.config import to_tables
from regard.kernels import launch
from regard.models import catalog
from regard.models.build import model_config
from regard.recurrence.cells import CELLS
from regard.rwkv import wkv
from regard.training import defaults as choices
from regard.training import estimate as estimates
from regard.training import loss as losses
from regard.training.defaults import DeviceProperties, by_threshold
from regard.training.estimate import H200, activation_bytes, estimate_training
from regard.training.loss import rdrop_loss, token_loss
from regard.training.tasks.translation import repeat_tokens

CPU = DeviceProperties("cpu", 8 << 30, has_bfloat16=False)
CAPTIONS = (1_772_238, 2_046_956)
"""Characters of 29,000 captions, English and German."""


@pytest.mark.parametrize("size", catalog.recipe_sizes("transformer"))
def test_parameters_are_those_of_the_model(size):
    name = "transformer" if size == catalog.BASE_SIZE else f"transformer-{size}"
    table = catalog.find_recipe(name).tables["model"]
    built = model_config(name, source_vocab_size=1000, target_vocab_size=1000)
    counted = 1000 * table["width"] + estimates.stack_parameters(table,
                                                                 "encoder") + estimates.stack_parameters(table,
                                                                                                         "decoder")
    assert counted == built.parameters()


@pytest.mark.parametrize("device", [CPU, H200])
@pytest.mark.parametrize("pairs", [100, 5000, 29_000, 167_400, 2_000_000, 50_000_000])
def test_it_estimates_what_would_be_chosen(pairs, device):
    found = estimate_training(pairs, (60 * pairs, 70 * pairs), device)
    made = {choice.key: choice.value for choice in choices.translation_training(pairs, found.tokens, {"attention"},
                                                                                device, {})}
    assert found.recipe == choices.translation_recipe(pairs, device, None).value
    assert found.epochs == made["training.epochs"]
    assert found.steps == pytest.approx(found.epochs * max(1, found.tokens / made["training.batches.max_tokens"]),
                                        abs=1)
    assert found.vocabulary in [choice.value for choice in choices.translation_tokenizer(pairs, {})]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("device", [CPU, H200])
@pytest.mark.parametrize("pairs", [300, 2000, 5000, 5200, 10_000, 29_000, 50_000, 100_000, 167_400, 302_000, 2_000_000])
def test_it_estimates_what_a_training_chooses(pairs, device, given):
    """Also where some pairs are held out, and fewer pairs lead to other choices."""
    ready = planned.ready(pairs, device, given=given)
    made = {choice.key: choice.value for choice in ready.defaults}
    each = by_threshold(made["tokenizer.vocab_size"], estimates.CHARACTERS_PER_TOKEN,
                        estimates.MAX_CHARACTERS_PER_TOKEN)
    characters = tuple(round((planned.WORDS - end) * pairs * each) for end in (1, 0))
    found = estimate_training(pairs, characters, device, held=made["data.validation_fraction"])
    assert (found.recipe, found.vocabulary) == (made["recipe"], made["tokenizer.vocab_size"])
    assert found.epochs == made["training.epochs"]
    assert found.steps == pytest.approx(ready.settings.steps, rel=0.01, abs=found.epochs)
    assert (made["data.validation_fraction"] > 0) is not given


def test_tokens_are_about_those_of_a_trained_tokenizer():
    """27,834 of the captions had 421,380 and 403,521 tokens with 8,000 subwords, and two more for each pair."""
    kept = 27_834 / 29_000
    found = estimate_training(27_834, (round(kept * CAPTIONS[0]), round(kept * CAPTIONS[1])), H200)
    assert found.vocabulary == 8000
    assert found.tokens == pytest.approx(421_380 + 403_521 + 2 * 27_834, rel=0.15)


def test_a_gpu_is_as_fast_as_it_was_measured():
    """320,000 target tokens a second with R-Drop, of about 0.49 of all tokens."""
    found = estimate_training(29_000, CAPTIONS, H200)
    assert found.recipe == "transformer-small"
    assert 0.49 * found.epochs * found.tokens / found.seconds == pytest.approx(320_000, rel=0.15)


def test_more_of_everything_takes_longer():
    few, many = (estimate_training(pairs, (60 * pairs, 70 * pairs), CPU) for pairs in (60_000, 90_000))
    assert few.seconds * 1.49 < many.seconds < few.seconds * 1.51  # the same choices, and half as many more pairs
    longer = estimate_training(60_000, (120 * 60_000, 140 * 60_000), CPU)
    assert longer.seconds > 1.8 * few.seconds
    assert estimate_training(60_000, (60 * 60_000, 70 * 60_000), CPU, cores=2).seconds == pytest.approx(few.seconds / 2)
    assert estimate_training(60_000, (60 * 60_000, 70 * 60_000), H200).seconds < few.seconds


def test_a_core_is_about_as_fast_as_it_was_measured():
    """4,069 target tokens a second with the size "tiny" in one pass; of several cores each does less than that."""
    found = estimate_training(29_000, CAPTIONS, CPU)
    assert found.recipe == "transformer-tiny"
    assert 0.6 * 4069 < 0.49 * found.epochs * found.tokens / found.seconds < 4069


def test_memory_is_about_what_was_measured():
    """544 MiB on a CPU with the size "tiny", without the mean of the weights."""
    assert estimate_training(29_000, CAPTIONS, CPU).memory == pytest.approx(544 << 20, rel=0.2)


def test_more_cores_help_up_to_a_number():
    few, more = (estimate_training(29_000, CAPTIONS, CPU, cores=cores).seconds for cores in (estimates.MAX_CORES, 64))
    assert few == more


def test_memory_has_room_for_all_that_is_kept_for_a_parameter():
    """Weights, gradients, two moments and a mean: five numbers of four bytes. A batch is not larger than the data."""
    for device in (CPU, H200):
        one = estimate_training(1, (3, 3), device)
        assert one.steps >= 1
        assert one.memory - estimates.PROCESS_BYTES[device.kind] == pytest.approx(5 * 4 * one.parameters, rel=0.1)


def test_a_larger_model_needs_more_memory():
    small, large = (estimate_training(pairs, (60 * pairs, 60 * pairs), H200) for pairs in (300_000, 30_000_000))
    assert large.memory > 4 * small.memory


@pytest.mark.parametrize("wrong", [(0, (1, 1), 1), (1, (0, 1), 1), (1, (1, 1), 0)])
def test_nothing_cannot_be_estimated(wrong):
    pairs, characters, cores = wrong
    with pytest.raises(ValueError, match="at least 1"):
        estimate_training(pairs, characters, CPU, cores)


def test_it_needs_no_torch():
    code = "import sys; import regard.training.estimate; sys.exit(not {'torch', 'numpy'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_epoch_has_a_step_at_least():
    found = estimate_training(3, (90, 90), CPU)
    assert found.steps == found.epochs


PAIRED = {"source_vocab_size": 200, "target_vocab_size": 200}
ALONE = {"vocab_size": 200}
LONG = {**ALONE, "embedding.positions.max_positions": 512}
BATCHES = {  # recipe, changes, rows, lengths, R-Drop
    "transformer": ("transformer-tiny", PAIRED, 32, (32, 36), 0.0),
    "R-Drop": ("transformer-tiny", PAIRED, 32, (32, 36), 1.0),
    "convolution": ("conv-tiny", PAIRED, 32, (32, 36), 0.0),
    "one context": ("seq2seq-tiny", PAIRED, 32, (32, 36), 0.0),
    "additive, step by step": ("seq2seq-attention-tiny", PAIRED, 16, (64, 60), 0.0),
    "attention dropout": ("gpt-tiny", LONG, 4, (512,), 0.0),
    "fused": ("gpt-tiny", {**ALONE, "stack.mixer.dropout": 0.0}, 32, (64,), 0.0),
    "relu": ("gpt-tiny", {**LONG, "stack.mixer.dropout": 0.0, "stack.mixer.normalize": "relu"}, 4, (512,), 0.0),
    "additive": ("gpt-tiny", {**ALONE, "stack.mixer.score": "additive"}, 16, (64,), 0.0),
    "checkpointed": ("gpt-tiny", {**ALONE, "stack.layers": 8, "stack.activation_checkpointing": True}, 32, (64,), 0.0),
    "gated": ("llama-tiny", ALONE, 32, (64,), 0.0),
    "large vocabulary": ("gpt-tiny", {"vocab_size": 20_000, "stack.layers": 1}, 4, (64,), 0.0),
    "rnn": ("rnn-tiny", ALONE, 32, (64,), 0.0),
    "lstm": ("lstm-tiny", ALONE, 32, (64,), 0.0),
    "padded lstm": ("transformer-tiny", {**PAIRED, "encoder.mixer": {"kind": "recurrence"}, "encoder.layers": 4}, 32,
                    (64, 4), 0.0),
    "gru": ("gru-tiny", {**ALONE, "stack.mixer.layers": 2}, 32, (64,), 0.0),
    "lstmn": ("lstm-tiny", {**ALONE, "stack.mixer": {"kind": "lstmn"}}, 16, (64,), 0.0),
    "masked": ("bert-tiny", ALONE, 32, (64,), 0.0),
    "classifier": ("classifier-tiny", {**ALONE, "num_labels": 4}, 32, (64,), 0.0),
    "vision": ("vit-tiny", {"num_labels": 4}, 64, (50,), 0.0),
}


def measured_bytes(config, rows, lengths, rdrop):
    """The most bytes that forward and backward pass hold at once, counted by every allocation and release."""
    model = config.build().train()
    labels = torch.randint(0, 4, (rows, lengths[-1]))
    if config.kind == "vision":
        inputs = [torch.rand(rows, config.channels, config.image_height, config.image_width)]
    else:
        inputs = [regard.Tokens(torch.randint(4, 200, (rows, n)), None if config.kind == "language" else
                                torch.tensor([n - 1] + [n] * (rows - 1))) for n in lengths]
    if config.kind in ("vision", "classifier"):
        labels = labels[:, 0]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        if rdrop:
            states = model.features(*(repeat_tokens(side) for side in inputs)).reshape(2, *labels.shape, -1)
            found = rdrop_loss(states, model.output, labels, 0.1, rdrop)
        else:
            found = token_loss(model.features(*inputs), model.output, labels)
        found.total.backward()
    changes = [event.nbytes() for event in sorted(seen.profiler.kineto_results.events(), key=lambda one: one.start_ns())
               if event.name() == "[memory]"]
    return max(accumulate(changes))


def test_every_cell_is_known():
    assert set(estimates.CELLS) == set(CELLS)


@pytest.mark.thorough
@pytest.mark.parametrize("name", BATCHES)
def test_activations_are_half_to_all_of_what_is_measured(name):
    """Never more, so that nothing is refused that fits."""
    recipe, changes, rows, lengths, rdrop = BATCHES[name]
    config = model_config(recipe, **changes)
    found = activation_bytes(to_tables(config), rows, lengths, passes=2 if rdrop else 1)
    peak = measured_bytes(config, rows, lengths, rdrop)
    assert 0.5 * peak <= found <= peak, f"{found:,} and {peak:,} bytes"


def test_rwkv4_keeps_what_its_kernel_keeps_on_a_gpu(monkeypatch):
    """Counted in what autograd keeps for two more layers, with the kernel interpreted."""
    pytest.importorskip("triton")
    if not launch.interpreted():
        pytest.skip("the kernels are compiled here")
    monkeypatch.setattr(wkv, "usable", lambda *tensors: True)
    kept, estimated = [], []
    for layers in (1, 3):
        config = model_config("rwkv4-tiny", **ALONE, **{"stack.layers": layers, "width": 32})
        kept.append(_kept_bytes(config, regard.Tokens(torch.randint(4, 200, (2, 64)))))
        estimated.append(activation_bytes(to_tables(config), 2, (64,), on_gpu=True))
    assert 0.8 * (kept[1] - kept[0]) <= estimated[1] - estimated[0] <= kept[1] - kept[0]


def _kept_bytes(config, tokens):
    """The bytes that autograd keeps after a forward pass, parameters apart."""
    model, kept = config.build().train(), {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()  # in the dict, so that its address is not used again
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.features(tokens)
    return sum(storage.nbytes() for storage in kept.values())


def test_a_recipe_and_its_complete_config_need_the_same():
    for name, changes in (("transformer-tiny", PAIRED), ("lstm", ALONE), ("seq2seq", PAIRED), ("llama", ALONE)):
        table = {**catalog.find_recipe(name).tables["model"], **changes}
        lengths = (20, 24) if changes is PAIRED else (24,)
        assert activation_bytes(table, 8, lengths) == activation_bytes(to_tables(model_config(name, **changes)), 8,
                                                                       lengths)


def test_the_limits_are_those_of_attention_and_loss():
    assert estimates.EXACT_MAX_NUMBERS == backends.EXACT_MAX_NUMBERS
    assert estimates.MIN_CHUNK == losses.MIN_CHUNK
