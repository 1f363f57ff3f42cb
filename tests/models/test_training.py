"""Every model trains: all parameters learn, their number follows from the config, and torch.compile takes it whole."""

import copy
from dataclasses import replace

import pytest
import torch
from functorch.compile import make_boxed_func
from tiny import ALL, LANGUAGE, READING, SOURCE, TRANSLATING, VISION, built
from torch._dynamo.backends.common import aot_autograd
from torch.nn.functional import cross_entropy

from regard.tokens import Tokens

every = pytest.mark.parametrize("config", ALL.values(), ids=ALL)


def inputs(model, config, seed=0):
    """Something for the model to read."""
    torch.manual_seed(seed)
    source = Tokens(torch.randint(SOURCE, (3, 6)), torch.tensor([6, 2, 5]))
    if config in VISION.values():
        images = torch.randn(3, config.channels, config.image_height, config.image_width)
        return [images.to(next(model.parameters()).dtype)]
    if config in TRANSLATING.values():
        return [source, Tokens(torch.randint(SOURCE, (3, 4)), torch.tensor([1, 4, 3]))]
    return [source]


def output(model, config):
    """The logits of the model."""
    return model(*inputs(model, config))


@every
def test_logits_are_made_of_features(config):
    if config is READING["encoder"]:
        return  # it has no output layer
    model = built(config)
    given = inputs(model, config)
    assert torch.equal(model(*given), model.output(model.features(*given)))


@every
def test_every_parameter_gets_a_gradient(config):
    model = built(config).train()
    (output(model, config) * torch.randn(1).double()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # A key's bias adds the same to all scores of a query, and softmax does not see it: zeros, but for rounding.
        if not (name.endswith("key.bias") or name.endswith("bare_weight")):
            assert parameter.grad.abs().max() > 0, name


@every
def test_the_number_of_parameters_follows_from_the_config(config):
    assert config.parameters() == sum(parameter.numel() for parameter in config.build().parameters())


@pytest.mark.parametrize("config", [LANGUAGE["attention"], LANGUAGE["llama"], TRANSLATING["attention"],
                                    TRANSLATING["post-norm"], READING["masked"], VISION["class"]])
def test_low_precision(config):
    model = built(config).float()
    want = output(copy.deepcopy(model).double(), config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = output(model, config)
        loss = logits.float().square().mean()
    loss.backward()
    assert logits.dtype == torch.bfloat16
    assert (logits.double() - want).abs().max() < 0.05 * want.abs().max()
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype == torch.float32, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("name", ["attention", "recurrence"])
def test_recomputed_activations_give_the_same_gradients(name):
    config = LANGUAGE[name]
    again = replace(config, stack=replace(config.stack, activation_checkpointing=True, dropout=0.1))
    plain, saving = built(replace(config, stack=replace(config.stack, dropout=0.1))).train(), built(again).train()
    results = []
    for model in (plain, saving):
        torch.manual_seed(5)
        logits = output(model, config)
        logits.square().sum().backward()
        results.append([logits, *(parameter.grad for parameter in model.parameters())])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


MODELS = {"encoder-decoder": TRANSLATING["attention"], "language": LANGUAGE["llama"], "masked": READING["masked"]}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_one_compilation_serves_all_lengths(name):
    torch._dynamo.reset()
    model = built(MODELS[name]).train()
    graphs = []

    def counted(graph, _):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    def loss(source, lengths, target, target_lengths):
        read = Tokens(target, target_lengths)
        logits = model(Tokens(source, lengths), read) if name == "encoder-decoder" else model(read)
        return cross_entropy(logits.flatten(0, 1), target.flatten())

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend=aot_autograd(fw_compiler=counted))
    for rows, n, m in ((3, 6, 5), (2, 9, 4), (5, 3, 11), (4, 7, 7)):
        batch = [torch.randint(SOURCE, (rows, n)), torch.randint(1, n + 1, (rows,)),
                 torch.randint(SOURCE, (rows, m)), torch.randint(1, m + 1, (rows,))]
        results = []
        for function in (compiled, loss):
            model.zero_grad()
            value = function(*batch)
            value.backward()
            results.append([value, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)])
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
    assert len(graphs) == 2  # forward and backward
