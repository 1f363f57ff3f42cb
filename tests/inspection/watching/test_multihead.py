"""torch.nn.MultiheadAttention is watched in every form that it has; results and fast paths stay what they are."""

import warnings

import pytest
import torch
from torch import nn

import regard

B, H, n, N, E = 2, 2, 4, 6, 8
PADDING = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
LAYERS = {"plain": {}, "without bias": {"bias": False}, "bias of keys": {"add_bias_kv": True},
          "zero": {"add_zero_attn": True}, "other keys": {"kdim": 5, "vdim": 3}}
HIDDEN = torch.zeros(n, N, dtype=torch.bool)
HIDDEN[0, 1:] = HIDDEN[2, ::2] = True
MASKS = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "hidden": {"attn_mask": HIDDEN},
    "added": {"attn_mask": torch.linspace(-2, 2, n * N).view(n, N)},
    "a head": {"attn_mask": torch.linspace(-2, 2, B * H * n * N).view(B * H, n, N).cos()},
    "both": {"attn_mask": HIDDEN, "key_padding_mask": PADDING},
    "both added": {"attn_mask": torch.ones(n, N).tril(), "key_padding_mask": torch.where(PADDING, -torch.inf, 0.0)},
}


def scaled(module):
    """With large weights, so that no look is like another."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return module.eval()


@pytest.mark.parametrize("layer", sorted(LAYERS))
@pytest.mark.parametrize("mask", sorted(MASKS))
@pytest.mark.parametrize("batch_first", [True, False])
@torch.no_grad()
def test_weights_are_those_that_it_tells_itself(layer, mask, batch_first):
    module = scaled(nn.MultiheadAttention(E, H, batch_first=batch_first, **LAYERS[layer]))
    query, key, value = torch.randn(B, n, E), torch.randn(B, N, module.kdim), torch.randn(B, N, module.vdim)
    given = [one if batch_first else one.transpose(0, 1) for one in (query, key, value)]
    for need in (False, True):
        plain, told = module(*given, **MASKS[mask], need_weights=need, average_attn_weights=False)
        with regard.watch(module) as seen:
            watched, _ = module(*given, **MASKS[mask], need_weights=need, average_attn_weights=False)
        assert torch.equal(watched, plain)
    torch.testing.assert_close(seen["attention"].weights(), told, rtol=1e-5, atol=1e-6)
    assert told.std() > 0.05


@torch.no_grad()
def test_one_sequence_without_a_batch_and_arguments_by_place():
    module, x = scaled(nn.MultiheadAttention(E, H)), torch.randn(n, E)
    _, told = module(x, x, x, None, True, None, False)
    with regard.watch(module) as seen:
        module(x, x, x, None, True, None, False)
    torch.testing.assert_close(seen["attention"].weights(), told, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen.row(0)["attention"].weights(), told, rtol=1e-5, atol=1e-6)
    assert seen.trace().attentions[0].kind == "self"


def told(encoder, x, **masks):
    """The weights of all layers, from the attention modules themselves, which tell them off the fast path."""
    found, forward = [], nn.MultiheadAttention.forward

    def telling(module, *args, **kwargs):
        result = forward(module, *args, **(kwargs | {"need_weights": True, "average_attn_weights": False}))
        found.append(result[1])
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.MultiheadAttention, "forward", telling)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            encoder(x, **masks)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    return found


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@torch.no_grad()
def test_the_encoder_of_torch_stays_on_its_fast_path(norm_first, nested, batch_first, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells of the paths that it does not take, and of nested tensors
        layer = nn.TransformerEncoderLayer(E, H, 16, batch_first=batch_first, norm_first=norm_first)
        encoder = scaled(nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested))
        x = torch.randn(B, N, E) if batch_first else torch.randn(N, B, E)
        fused, used = [], torch._transformer_encoder_layer_fwd
        monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *given: fused.append(1) or used(*given))
        causal = nn.Transformer.generate_square_subsequent_mask(N)
        for masks in ({}, {"src_key_padding_mask": PADDING}, {"mask": causal, "is_causal": True}):
            plain, before = encoder(x, **masks), len(fused)
            with regard.watch(encoder) as seen:
                watched = encoder(x, **masks)
            assert torch.equal(watched, plain)
            assert len(fused) == 2 * before == (4 if batch_first else 0)
            fused.clear()
            assert seen.names() == ["layers.0.self_attn", "layers.1.self_attn"]
            for name, weights in zip(seen.names(), told(encoder, x, **masks), strict=True):
                for row, there in enumerate((6, 4 if "src_key_padding_mask" in masks else 6)):
                    look = seen.row(row)[name].weights()
                    torch.testing.assert_close(look, weights[row, :, :there, :there], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_transformer_of_torch_becomes_a_trace(tmp_path):
    model = scaled(nn.Transformer(E, H, 1, 1, 16, batch_first=True))
    source, target = torch.randn(1, N, E), torch.randn(1, n, E)
    with regard.watch(model) as seen:
        model(source, target)
    seen.save(tmp_path / "a.safetensors", target=list("abcd"))
    trace = regard.Trace.load(tmp_path / "a.safetensors")
    assert [(one.name, one.queries, one.keys, one.kind) for one in trace.attentions] == [
        ("encoder.layers.0.self_attn", "source", "source", "self"),
        ("decoder.layers.0.self_attn", "target", "target", "self"),
        ("decoder.layers.0.multihead_attn", "target", "source", "cross")]


def test_training_goes_on_while_it_is_watched_and_what_was_seen_stays():
    module, x = nn.MultiheadAttention(E, H, dropout=0.5), torch.randn(N, B, E)
    with regard.watch(module) as seen:
        output, _ = module(x, x, x)
    before = seen["attention"].weights()
    output.sum().backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(parameter.grad)
    x.zero_()
    with regard.watch(module) as after:
        module(x, x, x)
    assert torch.equal(seen["attention"].weights(), before)
    assert not torch.allclose(after["attention"].weights(), before)


def test_only_the_watched_module_is_seen_and_the_limit_holds():
    one, other, x = nn.MultiheadAttention(E, H), nn.MultiheadAttention(E, H), torch.randn(N, B, E)
    watch = regard.watch(one, limit=N * B * E * 4)
    seen = watch.__enter__()
    other(x, x, x)
    one(x, x, x)
    one(x, x, x)
    with pytest.warns(RuntimeWarning, match=r'"attention" \(1 of 2\)'):
        watch.__exit__(None, None, None)
    assert len(seen.calls) == 2
    assert not nn.modules.module._has_any_global_hook()
