"""Agent-aware attention: against the reference, against plain attention, and every promise of `attend`."""

import numpy as np
import pytest
import torch

import regard
from regard.attention.score import with_agents
from regard.kernels.agent_attention import agent_layout
from regard.reference import attention as oracle

BACKENDS = ("exact", "tiled", "agents")
AGENTS = torch.tensor([[0, 3, 1, 0, 3, 1, 0, 3, 1, 0], [7, 7, 7, 300, 7, 301, 301, 7, 300, 9]])
HEADS, WIDTH = 3, 4


def draw(rows: int = 2, heads: int = HEADS, tokens: int = 10, width: int = WIDTH) -> list[torch.Tensor]:
    """Queries and keys for the same agent and for others, and values, in float64."""
    return [torch.randn(rows, heads, tokens, width, dtype=torch.float64) for _ in range(5)]


def masks() -> dict[str, tuple[object, torch.Tensor]]:
    """Each mask with its matrix (2, 10, 10), written out by hand."""
    index = torch.arange(10)
    causal = (index[:, None] >= index).expand(2, 10, 10)
    lengths = torch.tensor([6, 1])
    padded = (index < lengths[:, None])[:, None].expand(2, 10, 10)
    other = torch.rand(2, 10, 10) < 0.6
    other[0, 2], other[1, :, 4] = False, False
    return {"none": (None, torch.ones(2, 10, 10, dtype=torch.bool)), "causal": (regard.Causal(), causal),
            "padding": (regard.Padding(lengths), padded), "causal and padding":
            (regard.Causal() & regard.Padding(lengths), causal & padded), "matrix": (other[:, None], other)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", [*masks()])
def test_the_score_equals_the_reference_on_every_backend(backend: str, mask: str) -> None:
    qs, ks, qo, ko, value = draw()
    query, key = with_agents(qs, qo, AGENTS[:, None]), with_agents(ks, ko, AGENTS[:, None])
    given, matrix = masks()[mask]
    output = regard.attend(query, key, value, score=regard.AgentAware(), mask=given, backend=backend)
    weights = regard.attention_weights(query, key, score=regard.AgentAware(), mask=given)
    for b in range(2):
        for h in range(HEADS):
            expected = oracle.agent_aware_weights((qs[b, h], ks[b, h]), (qo[b, h], ko[b, h]), AGENTS[b].tolist(),
                                                  AGENTS[b].tolist(), mask=matrix[b].numpy())
            np.testing.assert_allclose(weights[b, h].numpy(), expected, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(output[b, h].numpy(), expected @ value[b, h].numpy(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("normalize", ["relu", "relu_sum", "sigmoid"])
def test_other_normalisers_equal_the_reference(normalize: str) -> None:
    qs, ks, qo, ko, _ = draw(1, 1)
    weights = regard.attention_weights(with_agents(qs, qo, AGENTS[0]), with_agents(ks, ko, AGENTS[0]),
                                       score=regard.AgentAware(), normalize=normalize, mask=regard.Causal())
    expected = oracle.agent_aware_weights(
        (qs[0, 0], ks[0, 0]), (qo[0, 0], ko[0, 0]), AGENTS[0].tolist(), AGENTS[0].tolist(),
        normalize={"relu": oracle.relu_keys, "relu_sum": oracle.relu_sum, "sigmoid": oracle.sigmoid}[normalize],
        mask=oracle.causal(10, 10))
    np.testing.assert_allclose(weights[0, 0].numpy(), expected, rtol=1e-12, atol=1e-14)


def test_the_layer_equals_the_reference_with_mask_and_bias() -> None:
    torch.set_default_dtype(torch.float64)
    layer = regard.AgentAwareAttention(6, heads=2, context_width=5)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x, context, bias = torch.randn(1, 7, 6), torch.randn(1, 9, 5), torch.randn(1, 2, 7, 9)
    agents, others = torch.tensor([0, 1, 2, 0, 1, 2, 0]), torch.tensor([2, 1, 0, 5, 0, 1, 2, 5, 5])
    mask = torch.rand(7, 9) < 0.7
    mask[3] = False
    with torch.no_grad():
        got = layer(x, context, agents=agents, context_agents=others, mask=mask, bias=bias)[0]

    def part(linear: torch.nn.Linear, h: int) -> tuple[np.ndarray, np.ndarray]:
        return linear.weight.detach()[3 * h:3 * h + 3].numpy(), linear.bias.detach()[3 * h:3 * h + 3].numpy()

    heads = []
    for h in range(2):
        (wqs, bqs), (wks, bks), (wqo, bqo), (wko, bko), (wv, bv) = (part(one, h) for one in (
            layer.query, layer.key, layer.query_other, layer.key_other, layer.value))
        heads.append(oracle.AgentAwareHead(wqs, wks, wqo, wko, wv, bqs, bks, bqo, bko, bv))
    expected = oracle.agent_aware_layer(x[0], context[0], agents.tolist(), others.tolist(), heads,
                                        layer.output.weight.detach().numpy(), layer.output.bias.detach().numpy(),
                                        mask=mask.numpy(), bias=bias[0].numpy())
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, atol=1e-13)


def plain_twin(layer: regard.AgentAwareAttention) -> regard.Attention:
    """Make both pairs of projections of a layer equal, and return plain attention with the same weights."""
    layer.query_other.load_state_dict(layer.query.state_dict())
    layer.key_other.load_state_dict(layer.key.state_dict())
    plain = regard.Attention(layer.width, heads=layer.heads, key_heads=layer.key_heads)
    plain.load_state_dict({name: value for name, value in layer.state_dict().items() if "other" not in name})
    return plain


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_it_is_plain_attention_where_both_pairs_of_projections_are_equal(backend: str | None) -> None:
    torch.set_default_dtype(torch.float64)
    layer = regard.AgentAwareAttention(16, heads=4, key_heads=2, backend=backend)
    plain, x = plain_twin(layer), torch.randn(2, 10, 16)
    mask = regard.Causal() & regard.Padding([10, 4])
    torch.testing.assert_close(layer(x, agents=AGENTS, mask=mask), plain(x, mask=mask), rtol=1e-12, atol=1e-13)


def test_all_tokens_of_one_agent_use_only_the_first_pair_of_projections() -> None:
    torch.set_default_dtype(torch.float64)
    layer, x = regard.AgentAwareAttention(8, heads=2), torch.randn(2, 5, 8)
    before = layer(x)
    torch.nn.init.normal_(layer.query_other.weight)
    torch.testing.assert_close(layer(x, agents=torch.full((5,), 3)), before, rtol=1e-12, atol=1e-13)


def test_step_by_step_equals_all_at_once() -> None:
    torch.set_default_dtype(torch.float64)
    layer, x = regard.AgentAwareAttention(8, heads=2), torch.randn(2, 10, 8)
    whole = layer(x, agents=AGENTS, mask=regard.Causal())
    state, pieces = layer.start(2, 10), []
    for first, last in ((0, 3), (3, 4), (4, 9), (9, 10)):
        piece, state = layer.step(x[:, first:last], state, agents=AGENTS[:, first:last])
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-12, atol=1e-13)


def test_a_remembered_context_equals_the_context() -> None:
    torch.set_default_dtype(torch.float64)
    layer, x, context = regard.AgentAwareAttention(8, heads=2), torch.randn(2, 3, 8), torch.randn(2, 10, 8)
    lengths = torch.tensor([10, 6])
    whole = layer(x, context, agents=AGENTS[:, :3], context_agents=AGENTS, mask=regard.Padding(lengths))
    state = layer.remember(context, lengths, agents=AGENTS)
    torch.testing.assert_close(layer.step(x, state, agents=AGENTS[:, :3])[0], whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hidden_keys_change_nothing_and_empty_rows_are_zero(backend: str) -> None:
    parts = draw()
    mask = regard.Padding([6, 0])

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        qs, ks, qo, ko, value = leaves
        output = regard.attend(with_agents(qs, qo, AGENTS[:, None]), with_agents(ks, ko, AGENTS[:, None]), value,
                               score=regard.AgentAware(), mask=mask, backend=backend)
        output.square().sum().backward()
        return [output, *(leaf.grad for leaf in leaves)]

    clean = run(*parts)
    broken = [part.clone() for part in parts]
    for number, poison in ((1, float("nan")), (3, float("inf")), (4, float("nan"))):
        broken[number][0, :, 6:] = poison
        broken[number][1] = poison
    dirty = run(*broken)
    assert (clean[0][1] == 0).all()
    for one, other in zip(clean, dirty, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
        assert other.isfinite().all()
        assert (other[1] == 0).all()


@pytest.mark.parametrize("mask", [*masks()])
def test_gradients_of_the_fused_backend(mask: str) -> None:
    parts = [part[:, :1, :, :3].clone().requires_grad_() for part in draw()]

    def attend(qs: torch.Tensor, ks: torch.Tensor, qo: torch.Tensor, ko: torch.Tensor,
               value: torch.Tensor) -> torch.Tensor:
        return regard.attend(with_agents(qs, qo, AGENTS[:, None]), with_agents(ks, ko, AGENTS[:, None]), value,
                             score=regard.AgentAware(), mask=given, backend="agents")

    given = masks()[mask][0]
    assert torch.autograd.gradcheck(attend, parts, fast_mode=True)


def test_the_fused_backend_takes_other_shapes() -> None:
    qs, qo = torch.randn(2, 3, 4, 5, 6, dtype=torch.float64)[:, 0], torch.randn(3, 4, 5, 6, dtype=torch.float64)
    agents = torch.randint(0, 4, (3, 4, 5))  # every head has agents of its own
    other = torch.randint(0, 4, (1, 7))
    ks, ko, value = (torch.randn(3, 2, 7, width, dtype=torch.float64) for width in (6, 6, 9))
    query, key = with_agents(qs[0].expand(3, 4, 5, 6), qo, agents), with_agents(ks, ko, other)
    results = [regard.attend(query, key, value, score=regard.AgentAware(), mask=regard.Causal(), backend=backend)
               for backend in BACKENDS]
    assert results[0].shape == (3, 4, 5, 9)
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-12, atol=1e-13)


def test_many_pairs_take_the_fused_backend_in_float32() -> None:
    agents = torch.arange(640) % 32
    layer = regard.AgentAwareAttention(32, heads=4)
    x = torch.randn(1, 640, 32)
    query, (key, value) = layer.agent_queries(x, agents), layer.agent_keys(x, agents)
    assert regard.explain(query, key, value, score=layer.score).backend == "agents"
    exact = regard.attend(*(part.double() for part in (query, key, value)), score=layer.score, backend="exact")
    plain = regard.attend(query, key, value, score=layer.score, backend="exact")
    fused = regard.attend(query, key, value, score=layer.score)
    assert (fused - exact).abs().max() <= 2 * (plain - exact).abs().max() + 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_keeps_agents_apart(dtype: torch.dtype) -> None:
    agents = torch.tensor([255, 256, 257, 511, 512, 65535])
    parts = [torch.randn(1, 6, 4).to(dtype) for _ in range(4)]
    weights = regard.attention_weights(with_agents(parts[0], parts[2], agents), with_agents(parts[1], parts[3], agents),
                                       score=regard.AgentAware())
    wide = [part.double() for part in parts]
    exact = regard.attention_weights(with_agents(wide[0], wide[2], agents), with_agents(wide[1], wide[3], agents),
                                     score=regard.AgentAware())
    assert (weights - exact).abs().max() < 8 * torch.finfo(dtype).eps


def test_the_layout_has_every_token_once() -> None:
    layout = agent_layout(AGENTS, AGENTS, None, torch.float32)
    for row in range(2):
        real = layout.bias[row, 0].amax(-1) > -torch.inf
        assert sorted(layout.query[row][real].tolist()) == list(range(10))
        assert (layout.query[row].flatten()[layout.query_back[row]] == torch.arange(10)).all()


@pytest.mark.parametrize(("agents", "words"), [
    (torch.zeros(3, dtype=torch.long), "of shape (4,) or (2, 4)"), (torch.zeros(4), "integers"),
    (torch.tensor([0, 1, -1, 2]), "-1"), (torch.tensor([0, 1, 65536, 2]), "65536")])
def test_wrong_agents_are_refused(agents: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match="agents") as error:
        regard.AgentAwareAttention(8, heads=2)(torch.randn(2, 4, 8), agents=agents)
    assert words in str(error.value)


def test_a_width_without_room_for_the_agent_is_refused() -> None:
    with pytest.raises(ValueError, match="query"):
        regard.attend(*torch.randn(3, 2, 4, 7), score=regard.AgentAware())
    with pytest.raises(ValueError, match="additive"):
        regard.AgentAwareAttention(8, heads=2, score="additive")
