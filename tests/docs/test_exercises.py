"""What the exercises of the road tell people to expect is what comes out."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.blocks.feed_forward import PlainFeedForward
from regard.position.encoding import LearnedEncoding, SinusoidalEncoding
from regard.reference import blocks as reference_blocks
from regard.reference.convolution import receptive_field
from regard.reference.formal_algorithms import apply_temperature
from regard.reference.recurrence import linear_gradient_flow
from regard.reference.rwkv import wkv7_states
from regard.reference.seq2seq import shift_right


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def translator(recipe, **settings):
    return regard.build(recipe, source_vocab_size=100, target_vocab_size=100, **settings).eval()


def test_agents():
    layer, x = regard.AgentAwareAttention(32, heads=4), torch.randn(1, 12, 32)
    layer(x).sum().backward()
    unused = {name for name, one in layer.named_parameters() if one.grad is None or not one.grad.any()}
    assert {"query_other.weight", "key_other.weight"} <= unused
    assert "query.weight" not in unused
    rng = np.random.default_rng(0)
    apart = 2 * 12 * 0.5 * np.abs(np.sin(rng.uniform(-np.pi, np.pi, (20_000, 20)) / 2))
    assert apart.min(1).mean() == pytest.approx(0.9, abs=0.03)
    assert apart[:, 0].mean() == pytest.approx(7.6, abs=0.1)


def test_recurrence():
    Q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))
    assert linear_gradient_flow(1.1 * Q, 50)[-1] == pytest.approx(1.1**50) == pytest.approx(117, abs=0.5)
    assert linear_gradient_flow(0.9 * Q, 50)[-1] == pytest.approx(0.9**50) == pytest.approx(0.0052, abs=5e-5)
    norms = linear_gradient_flow(np.array([[0.9, 5], [0, 0.9]]), 200)
    assert norms.argmax() == 9
    assert norms.max() == pytest.approx(19.4, abs=0.05)
    assert norms[-1] < 1e-6
    gru, x = nn.GRU(16, 16, batch_first=True), torch.randn(2, 9, 16)
    same = regard.Recurrence(16, cell="gru", reset="after")
    same.load_torch(gru)
    torch.testing.assert_close(same(x), gru(x)[0], atol=1e-6, rtol=1e-5)
    with pytest.raises(ValueError, match="reset"):
        regard.Recurrence(16, cell="gru").load_torch(gru)


def test_fourth_way():
    four, seven = regard.RWKV4(128), regard.RWKV7(128, head_width=64)
    assert [sum(tensor.numel() for tensor in mixer.start(1).tensors) for mixer in (four, seven)] == [512, 8320]
    keys, values, ones = np.array([[1.0, 0], [0, 1], [1, 0]]), [[1, 2], [3, 4], [5, 6]], np.ones((3, 2))
    stored = wkv7_states(ones, keys, values, keys, ones)[-1]
    assert (stored @ [1, 0]).tolist() == [5, 6]
    assert (stored @ [0, 1]).tolist() == [3, 4]
    for recipe in ("rwkv4-tiny", "rwkv7-tiny"):
        model = regard.build(recipe, vocab_size=100).eval()
        with regard.watch(model) as records:
            model(regard.Tokens.of([[5, 6, 7, 8, 9, 10]]))
        weights = [records[name].weights() for name in records.names()]
        assert all(bool(((one.sum(-1) - 1).abs() < 1e-5).all()) for one in weights) is (recipe == "rwkv4-tiny")
        assert any(bool((one < 0).any()) for one in weights) is (recipe == "rwkv7-tiny")


def test_encoder_decoder():
    model = translator("seq2seq-tiny")
    for length in (4, 40):
        assert model.encode(regard.Tokens.of([list(range(1, length + 1))])).summary.shape == (1, 128)
    assert shift_right([7, 8, 9], start=1) == [1, 7, 8]
    batches = [[5, 6]], [[5, 6], list(range(1, 21))]
    alone, beside = (model.encode(regard.Tokens.of(batch)).summary[0] for batch in batches)
    torch.testing.assert_close(alone, beside, atol=1e-6, rtol=1e-5)


def test_attention():
    model, dot = translator("seq2seq-attention-tiny"), translator("seq2seq-attention-tiny", attention={"score": "dot"})
    assert parameters(model) - parameters(dot) == 256
    with regard.watch(model) as records:
        model(regard.Tokens.of([[5, 6, 7, 8]]), regard.Tokens.of([[0, 9, 10]]))
    entropy = records["decoder.cross"].entropy()
    assert (entropy < math.log(4)).all()
    assert (entropy > 1.3).all()


def test_layer():
    for width in (4, 64, 1024):
        scores = (torch.randn(2000, width) * torch.randn(2000, width)).sum(-1)
        assert scores.std().item() == pytest.approx(math.sqrt(width), rel=0.1)
    query, key = torch.randn(1000, 256), torch.randn(10, 256)
    largest = [regard.attention_weights(query, key, score=score).amax(-1).mean().item()
               for score in ("dot", "scaled_dot", "scaled_dot_d")]
    assert largest == pytest.approx([0.93, 0.31, 0.11], abs=0.03)
    query, key = torch.randn(20, 2), torch.randn(7, 2)
    weights = regard.attention_weights(
        query, key, score=lambda query, key: -(query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1))
    assert torch.equal(weights.argmax(-1), torch.cdist(query, key).argmin(-1))


def test_cross():
    layer, order = regard.Attention(32, heads=1, context_width=48), torch.randperm(11)
    target, source = torch.randn(1, 5, 32), torch.randn(1, 11, 48)
    torch.testing.assert_close(layer(target, source[:, order]), layer(target, source), atol=1e-6, rtol=1e-5)
    query, key, value = torch.randn(1, 5, 16), torch.randn(1, 7, 16), torch.randn(1, 7, 8)
    assert not regard.attend(query, key, value, mask=regard.Padding([0])).any()
    assert parameters(layer) == 5248


def test_self_attention():
    layer, x, order = regard.Attention(32, heads=4), torch.randn(1, 7, 32), torch.tensor([4, 0, 6, 2, 5, 1, 3])
    shuffled = layer(x[:, order], mask=regard.Causal())
    assert (shuffled - layer(x, mask=regard.Causal())[:, order]).abs().max() > 0.1
    x[:, 3] = x[:, 0]
    free, causal = layer(x), layer(x, mask=regard.Causal())
    torch.testing.assert_close(free[:, 3], free[:, 0], atol=1e-6, rtol=1e-5)
    assert (causal[:, 3] - causal[:, 0]).abs().max() > 0.1
    small = regard.attention_weights(torch.zeros(8, 16, 4), torch.zeros(8, 16, 4))
    assert small.nbytes * (4096 // 16) ** 2 == 512 * 2**20


def test_position():
    table = SinusoidalEncoding(64)(torch.arange(200))
    assert [(table[p] @ table[p + 5]).item() for p in (0, 50, 150)] == pytest.approx([23.504] * 3, abs=1e-3)
    assert regard.ALiBi.for_heads(8).slopes.tolist() == [2.0**-n for n in range(1, 9)]
    with pytest.raises(ValueError, match="100"):
        LearnedEncoding(100, 8)(torch.tensor([100]))
    assert SinusoidalEncoding(8)(torch.tensor([100_000])).isfinite().all()


def test_heads():
    assert regard.Causal().matrix(1000, 1000).sum() == 500_500
    assert (regard.Causal() & regard.Window(99, 0)).matrix(1000, 1000).sum() == 95_050
    layers = [regard.Attention(64, heads=1), regard.Attention(64, heads=8), regard.Attention(64, heads=8, key_heads=2)]
    assert [parameters(layer) for layer in layers] == [16_640, 16_640, 10_400]
    output = regard.attend(*torch.randn(3, 4, 8), mask=~regard.Causal())
    assert not output[3].any()
    assert output[:3].any(-1).all()


def test_three_mixers():
    assert receptive_field([3] * 500, [1] * 500) == 1001
    fields = [receptive_field([3] * layers, [2**n for n in range(layers)]) for layers in (8, 9)]
    assert fields[0] < 1001 <= fields[1]
    lstm = regard.Recurrence(32, cell="lstm").start(1, 12)
    convolution = regard.Convolution(32, kernel_size=3).start(1, 12)
    assert [sum(one.numel() for one in state.tensors) for state in (lstm, convolution)] == [64, 64]
    cache = regard.SelfAttention(regard.Attention(32, heads=4)).start(1, 12)
    assert cache.key.numel() + cache.value.numel() == 2 * 32 * 12


def test_block():
    x, gain, zeros = np.random.default_rng(1).normal(size=8), np.ones(8), np.zeros(8)
    layer_norm, rms_norm = reference_blocks.layer_norm, reference_blocks.rms_norm
    assert layer_norm(3 * x + 5, gain, zeros) == pytest.approx(layer_norm(x, gain, zeros), abs=1e-4)
    assert rms_norm(3 * x, gain) == pytest.approx(rms_norm(x, gain), abs=1e-4)
    assert np.abs(rms_norm(x + 5, gain) - rms_norm(x, gain)).max() > 0.5
    block = regard.Block(regard.SelfAttention(regard.Attention(512, heads=8)), PlainFeedForward(512, 2048), 512)
    assert parameters(block) == 3_152_384
    assert bottom_gradient("none") < bottom_gradient("pre") / 1000


def bottom_gradient(norm_position):
    """The norm of the gradient below 24 new blocks."""
    torch.manual_seed(0)
    x = bottom = torch.randn(4, 20, 64, requires_grad=True)
    for _ in range(24):
        mixer = regard.SelfAttention(regard.Attention(64, heads=4))
        x = regard.Block(mixer, PlainFeedForward(64, 256), 64, norm_position=norm_position)(x)
    x = nn.functional.layer_norm(x, (64,))
    return torch.autograd.grad((x * torch.randn_like(x)).sum(), bottom)[0].norm()


def test_transformer():
    with torch.device("meta"):
        base = regard.build("transformer", source_vocab_size=37000, target_vocab_size=37000)
    assert parameters(base) == 63_082_496
    assert 37000 * 512 == 18_944_000
    model, source = translator("transformer-tiny"), regard.Tokens.of([[5, 6, 7, 8]])
    one, other = (model(source, regard.Tokens.of([[0, 9, last]])) for last in (10, 55))
    assert torch.equal(one[:, :2], other[:, :2])
    assert apply_temperature([0.5, 0.3, 0.2], 0.5) == pytest.approx([0.658, 0.237, 0.105], abs=5e-4)


def test_images():
    for patch_size, tokens in ((4, 50), (7, 17)):
        model = regard.build("vit-tiny", num_labels=10, patch_size=patch_size).eval()
        with regard.watch(model) as records:
            model(torch.rand(3, 1, 28, 28))
        look = records[records.names()[-1]]
        assert look.weights().shape[-2:] == (tokens, tokens)
        assert math.log(tokens) - 0.15 < look.entropy()[..., 0].mean() < math.log(tokens)


def test_inspection():
    query, key = torch.randn(1, 6, 16), torch.randn(1, 9, 16)
    assert regard.Look(0 * query, key).entropy().tolist()[0] == pytest.approx([math.log(9)] * 6, abs=1e-5)
    assert regard.Look(query, key).column_sums().sum().item() == pytest.approx(6, abs=1e-5)
