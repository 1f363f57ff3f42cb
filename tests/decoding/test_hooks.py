"""What a user attaches to a model acts in searches as in `decode`: hooks, functions, modules, written weights."""

import copy

import pytest
import torch
from torch import nn

import regard
from regard.blocks.block import Block
from regard.decoding.decoder_step import why_no_packed_step
from regard.decoding.forced import forced
from regard.decoding.recompute import RecomputingModel, honour_hooks, why_no_steps
from regard.kernels.packed_linear import packed_linear_layers
from regard.models.contract import Memory

SOURCES = [[5, 17, 3, 8, 2, 9, 4], [40, 41], [7, 8, 9, 10], [11]]


@pytest.fixture(params=["gpt-tiny", "transformer-tiny", "conv-tiny", "lstm-tiny"])
def model(request):
    sizes = ({"source_vocab_size": 50, "target_vocab_size": 50} if request.param in ("transformer-tiny", "conv-tiny")
             else {"vocab_size": 50})
    return regard.build(request.param, **sizes).eval()


def encoded(model):
    with torch.no_grad():
        return model.encode(regard.Tokens.of(SOURCES)) if hasattr(model, "encode") else None


def search(model, how, **more):
    memory = encoded(model)
    sources = () if memory is None else (memory,)
    options = {"prompts": [[0], [0], [0], [0]] if memory is not None else [[0], [4, 5, 6], [0], [9, 9]], "end": 1,
               "max_length": 6, **more}
    if how == "beam":
        return [row[0] for row in regard.beam(model, *sources, beams=3, length_penalty="none", **options)]
    if how == "sample":
        return [row[0] for row in regard.sample(model, *sources, seed=3, **options)]
    return regard.greedy(model, *sources, **options)


def decoded_logs(model, row, prompt, ids):
    """Log-probabilities by `decode`, one sentence by itself."""
    memory = encoded(model)
    with torch.no_grad():
        tokens = regard.Tokens.of([[*prompt, *ids][:-1]])
        logits = model.decode(tokens, *(() if memory is None else (memory.pick([row]),)))
    logs = logits.log_softmax(-1)[0, len(prompt) - 1:]
    return [float(logs[place, token]) for place, token in enumerate(ids)]


def generated(hypothesis):
    """The tokens that have a log-probability: the end token is one of them."""
    return [*hypothesis.ids, 1][:len(hypothesis.log_probabilities)]


def attachable(model):
    """Modules of all kinds inside of a decoder, the outermost first."""
    block = model.decoder.stack.blocks[0]
    parts = [model.decoder, model.decoder.stack, block, block.mixer, getattr(block.mixer, "layer", None),
             block.cross, getattr(block, "feed_forward", None), block.around_mixer,
             getattr(block.around_mixer, "norm", None), model.decoder.output, model.decoder.embedding]
    return [part for part in parts if part is not None]


@pytest.mark.parametrize("how", ["greedy", "beam", "sample"])
def test_forward_hooks_act_in_searches(model, how):
    prompts = [[0]] * 4 if hasattr(model, "encode") else [[0], [4, 5, 6], [0], [9, 9]]
    for module in attachable(model):
        before = [one.score for one in search(model, how)]
        handle = module.register_forward_hook(lambda module, given, output: output + 0.5 * output.flip(-1))
        found = search(model, how, token_budget=30)  # rows enter while others run
        for row, one in enumerate(found):
            logs = decoded_logs(model, row, prompts[row], generated(one))
            assert one.log_probabilities == pytest.approx(logs, abs=1e-4), type(module).__name__
        assert [one.score for one in found] != pytest.approx(before, abs=1e-6), type(module).__name__
        handle.remove()
        assert [one.score for one in search(model, how)] == before


def test_hooks_that_change_nothing_change_no_result(model):
    """All at once is the same as step by step."""
    expected = search(model, "beam")
    module = model.decoder.stack
    module.register_forward_pre_hook(lambda module, given: None)
    assert why_no_steps(model) is not None
    found = search(model, "beam")
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)


def test_hooks_see_what_is_decoded(model):
    seen = []
    model.decoder.stack.blocks[0].mixer.register_forward_hook(lambda module, given, output: seen.append(output.shape))
    search(model, "greedy")
    assert seen


def test_forced_decoding_honours_hooks(model):
    model.decoder.stack.blocks[0].register_forward_hook(lambda module, given, output: 2 * output)
    memory = encoded(model)
    ids = [[3, 4, 5, 1], [6, 1], [7, 7, 7, 1], [1]]
    logs = forced(model, memory, [[0]] * 4, ids)
    for row in range(4):
        assert logs[row] == pytest.approx(decoded_logs(model, row, [0], ids[row]), abs=1e-4)


def test_cross_attention_weights_of_a_model_with_hooks():
    model = regard.build("transformer-tiny", source_vocab_size=50, target_vocab_size=50).eval()
    memory = encoded(model)
    found = regard.greedy(model, memory, prompts=[[0]] * 4, end=1, max_length=5)
    expected = regard.with_cross(model, memory, found, prompts=[[0]] * 4)
    model.decoder.stack.register_forward_hook(lambda module, given, output: output)
    for one, other in zip(expected, regard.with_cross(model, memory, found, prompts=[[0]] * 4), strict=True):
        torch.testing.assert_close(one.cross, other.cross, atol=1e-5, rtol=0)


def test_a_row_may_be_replaced_by_one_with_a_longer_source():
    model = RecomputingModel(regard.build("transformer-tiny", source_vocab_size=50, target_vocab_size=50).eval())
    short, long = (Memory(torch.randn(2, count, 128), None) for count in (3, 5))
    state = model.start(short, capacity=4).put([1], model.start(long, capacity=4).pick([0]))
    logits = model.step(state, torch.zeros(2, 1, dtype=torch.long)).logits
    for row, memory in ((0, short.pick([0])), (1, long.pick([0]))):
        alone = model.model.decode(regard.Tokens.of([[0]]), memory)
        torch.testing.assert_close(logits[row], alone[0], atol=1e-5, rtol=1e-4)


def test_hooks_on_all_modules():
    model = regard.build("gpt-tiny", vocab_size=50).eval()
    before = search(model, "greedy")
    doubled = lambda module, given, output: 2 * output if isinstance(module, Block) else None  # noqa: E731
    handle = nn.modules.module.register_module_forward_hook(doubled)
    try:
        found = search(model, "greedy")
        logs = decoded_logs(model, 0, [0], generated(found[0]))
        assert found[0].log_probabilities == pytest.approx(logs, abs=1e-4)
    finally:
        handle.remove()
    assert found[0].score != before[0].score


class Louder(Block):
    """A block of a user's own, who knows nothing of `step`."""

    def forward(self, *given, **more):
        return 2 * super().forward(*given, **more)


def subclassed(model):
    model.decoder.stack.blocks[0].__class__ = Louder


def replaced_forward(model):
    block = model.decoder.stack.blocks[0]
    block.forward = lambda *given, original=block.forward, **more: 2 * original(*given, **more)


class Adapter(nn.Module):
    """A linear layer with a low-rank addition, as fine-tuning libraries have it."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.weight, self.bias = inner, inner.weight, inner.bias
        self.in_features, self.out_features = inner.in_features, inner.out_features

    def forward(self, x):
        return self.inner(x) + 5 * self.inner(x.flip(-1))


class LouderLinear(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class LouderEmbedding(nn.Embedding):
    def forward(self, ids):
        return 2 * super().forward(ids)


def adapted_query(model):
    layer = model.decoder.stack.blocks[0].mixer.layer
    layer.query = Adapter(layer.query)


def subclassed_output(model):
    model.decoder.output.__class__ = LouderLinear


def subclassed_embedding(model):
    model.decoder.embedding.tokens.__class__ = LouderEmbedding


def adapted_feed_forward(model):
    part = model.decoder.stack.blocks[0].feed_forward
    part.down = Adapter(part.down)


def other_activation(model):
    model.decoder.stack.blocks[0].feed_forward.activation = torch.tanh


def activation_module(model):
    model.decoder.stack.blocks[0].feed_forward.activation = nn.Tanh()


def other_feed_forward(model):
    block = model.decoder.stack.blocks[0]
    block.feed_forward = nn.Sequential(block.feed_forward, nn.Tanh())


def noisy_dropout(model):
    model.decoder.stack.blocks[0].around_mixer.dropout = nn.Tanh()


@pytest.mark.parametrize("recipe", ["gpt-tiny", "transformer-tiny"])
@pytest.mark.parametrize("change", [
    subclassed, replaced_forward, adapted_query, subclassed_output, subclassed_embedding, adapted_feed_forward,
    other_activation, activation_module, other_feed_forward, noisy_dropout], ids=lambda change: change.__name__)
def test_replaced_functions_and_modules_act_in_searches(recipe, change):
    sizes = {"vocab_size": 50} if recipe == "gpt-tiny" else {"source_vocab_size": 50, "target_vocab_size": 50}
    model = regard.build(recipe, **sizes).eval()
    before = search(copy.deepcopy(model), "greedy")
    search(model, "greedy")  # with everything packed
    change(model)
    found = search(model, "greedy")
    prompts = [[0]] * 4 if recipe == "transformer-tiny" else [[0], [4, 5, 6], [0], [9, 9]]
    for row, one in enumerate(found):
        logs = decoded_logs(model, row, prompts[row], generated(one))
        assert one.log_probabilities == pytest.approx(logs, abs=1e-4)
    assert [one.score for one in found] != pytest.approx([one.score for one in before], abs=1e-6)


def test_plain_models_keep_their_fast_steps():
    """What this file tests must not be won by never being fast."""
    model = regard.build("transformer-tiny", source_vocab_size=50, target_vocab_size=50).eval()
    assert honour_hooks(model) is model
    with torch.no_grad(), packed_linear_layers(model):
        assert why_no_packed_step(model) is None


@pytest.mark.parametrize("write", [
    lambda weight: weight[:, 5].add_(1.0),
    lambda weight: weight[3, 7].add_(1e-3),
    lambda weight: weight.copy_(weight.flip(-1)),
    lambda weight: weight.copy_(weight.roll(2, 0)),
    lambda weight: weight.t().copy_(weight.t().contiguous()[torch.randperm(weight.shape[1])]),
], ids=["a column", "one entry", "flipped", "rolled", "permuted"])
@pytest.mark.parametrize("where", ["down", "up"])
def test_weights_written_through_data_are_used_at_once(write, where):
    model = regard.build("gpt-tiny", vocab_size=50).eval()
    search(model, "greedy")
    write(getattr(model.decoder.stack.blocks[0].feed_forward, where).weight.data)
    fresh = copy.deepcopy(model)  # nothing of it is packed yet
    assert [one.log_probabilities for one in search(model, "greedy")] == [
        one.log_probabilities for one in search(fresh, "greedy")]
