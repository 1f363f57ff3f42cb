"""What a training step asks of a model can be recorded as a CUDA graph and replayed with other ids and lengths.

Seen here without a GPU: on a device of which nothing can be asked. And what models then compute is what they always do.
"""

import pytest
import tiny
import torch
from unasked import DEVICE, AskedError, unasked

from regard.recurrence import scan
from regard.recurrence.packing import PaddedOrder, scan_order
from regard.tokens import IGNORED_LABEL, Tokens
from regard.training.loss import rdrop_loss, token_loss

pytestmark = pytest.mark.thorough

AGAIN = {f"language {mixer}" for mixer in tiny.MIXERS if mixer != "recurrence"}  # the mixers are in "translating" too
MODELS = {name: config for name, config in tiny.ALL.items() if name not in {"reading encoder", *AGAIN}}
"""All that have an output."""
RECURRENT = [name for name, config in MODELS.items() if any(word in name for word in ("seq2seq", "recurrence", "old"))]


def tokens(rows, places, device=DEVICE):
    """Padded rows whose ids and lengths are not known."""
    return Tokens(torch.empty(rows, places, dtype=torch.long, device=device),
                  torch.empty(rows, dtype=torch.long, device=device))


def features(name, config, model, rows=3):
    """What the output layer reads."""
    if name.startswith("vision"):
        return model.features(torch.empty(rows, config.channels, config.image_height, config.image_width,
                                          device=DEVICE))
    given = [tokens(rows, 6), tokens(rows, 5)] if name.startswith("translating") else [tokens(rows, 6)]
    return model.features(*given)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_asked_of_the_device(name, monkeypatch):
    config = MODELS[name]
    model = config.build().to(DEVICE).train()
    with unasked(monkeypatch):
        states = features(name, config, model)
        loss = token_loss(states, model.output, torch.empty(states.shape[:-1], dtype=torch.long, device=DEVICE), 0.1)
        loss.total.backward()
    assert sum(parameter.grad is not None for parameter in model.parameters()) > 2


@pytest.mark.parametrize("name", ["translating attention", "translating seq2seq-attention"])
def test_two_passes_that_must_agree_ask_nothing(name, monkeypatch):
    config = MODELS[name]
    model = config.build().to(DEVICE).train()
    with unasked(monkeypatch):
        states = features(name, config, model, rows=6).unflatten(0, (2, 3))
        labels = torch.empty(states.shape[1:-1], dtype=torch.long, device=DEVICE)
        rdrop_loss(states, model.output, labels, 0.1, 1.0).total.backward()
    assert sum(parameter.grad is not None for parameter in model.parameters()) > 2


@pytest.mark.parametrize("ask", [
    lambda x: x.sum().item(), lambda x: bool(x.any()), lambda x: x.to("cpu"), lambda x: x.tolist(), lambda x: x[x > 0],
    lambda x: x.nonzero(), lambda x: x.copy_(torch.zeros(3)), lambda x: x[torch.arange(2)], lambda x: x[[0, 1]],
    lambda x: torch.tensor([1, 2], device=DEVICE), lambda x: x.new_tensor([1.0]), lambda x: torch.ones(2).to(DEVICE),
    lambda x: torch.as_tensor([1, 2], device=DEVICE), lambda x: x.masked_select(x > 0), lambda x: torch.equal(x, x),
])
def test_what_asks_is_seen(ask, monkeypatch):
    with unasked(monkeypatch), pytest.raises((AskedError, NotImplementedError)):
        ask(torch.empty(3, device=DEVICE))


def test_what_asks_in_the_backward_pass_is_seen(monkeypatch):
    x = torch.empty(3, device=DEVICE, requires_grad=True)
    x.register_hook(lambda gradient: gradient.sum().item())
    with unasked(monkeypatch), pytest.raises(AskedError):
        x.sum().backward()


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_that_do_not_ask_compute_the_same(name, monkeypatch):
    config, draw = MODELS[name], torch.Generator().manual_seed(4)
    model = tiny.built(config)
    source, target = (Tokens(torch.randint(0, tiny.SOURCE, (4, places), generator=draw), torch.tensor(lengths))
                      for places, lengths in ((7, [7, 1, 0, 4]), (5, [2, 5, 1, 0])))
    given = [source, target] if name.startswith("translating") else [source]
    last = given[-1]
    here = torch.arange(last.ids.shape[1]) < last.lengths.unsqueeze(-1)
    parameters, results, taken = list(model.parameters()), [], []

    def padded(x, present):
        taken.append(present)
        return scan_order(x, None) if present is None else PaddedOrder.of(x, present)

    for way in (scan_order, padded):
        monkeypatch.setattr(scan, "scan_order", way)
        states = model.features(*given)
        labels = last.ids[:, 0] % 3 if states.dim() == 2 else torch.where(here, last.ids % 3, IGNORED_LABEL)
        loss = token_loss(states, model.output, labels)
        results.append((loss.total, *torch.autograd.grad(loss.total, parameters, allow_unused=True)))
    assert any(present is not None for present in taken)
    for ours, theirs in zip(*results, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
