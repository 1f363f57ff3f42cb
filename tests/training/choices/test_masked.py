"""Zero configuration of masked models: from the number of texts and the device."""

import pytest
import torch
from planned import CPU, GPU, config

from regard.models.build import build
from regard.training import defaults as choices

TEXTS = (1, 5_000, 80_000, 900_000, 10_000_000, 200_000_000)
DEVICES = {"cpu": CPU, "gpu": GPU}


def made(texts, device=CPU, training=None):
    named, asked = choices.masked_recipe(texts, device, None), training or {}
    found = [*choices.masked_tokenizer(texts, {}), *choices.masked_training(texts, 20 * texts, device, asked)]
    tables = config(named.value, found, {"model": {"vocab_size": 100}, "training": asked})
    return tables, {choice.key: choice for choice in (*found, named)}


@pytest.mark.parametrize("name", DEVICES)
def test_a_model_for_any_number_of_texts(name):
    sizes, epochs, vocabularies = [], [], []
    for texts in TEXTS:
        tables, found = made(texts, DEVICES[name])
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


@pytest.mark.parametrize("training", [{"batches": {"layout": "packed"}}, {"schedule": {"max_steps": 3}}, {"epochs": 0.01},
                                      {"parallelism": "fsdp"}, {"masking": {"mlm_probability": 0.3}}])
@pytest.mark.parametrize("name", DEVICES)
def test_no_choice_contradicts_what_is_set(training, name):
    tables, found = made(5_000, DEVICES[name], training)
    assert ("training.epochs" in found) == ("schedule" not in training)
    assert tables["training"].validation.metric == "loss"


def test_a_tokenizer_of_their_own():
    assert [choice.key for choice in choices.masked_tokenizer(10, {"kind": "bytes"})] == ["tokenizer.kind"]
