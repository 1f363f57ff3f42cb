"""CUDA graphs of a model: captured work, readbacks, fingerprints of models, and encoders as graphs."""

import copy
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from problems import assert_close
from tape import Tape, like_a_gpu
from tiny import TRANSLATING, built
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

from regard.attention.mask import Window
from regard.decoding import cuda_graph
from regard.decoding.cuda_graph import (
    AsyncReadback,
    CapturedWork,
    GraphCache,
    HostMirror,
    ModelFingerprint,
    StreamOrder,
    all_modules,
    encode,
    graph_capture,
    graph_encode,
    has_hooks,
    why_no_encoder_graph,
    why_no_source_graph,
)
from regard.tokens import Tokens


def test_the_first_call_runs_as_it_is():
    calls = []
    CapturedWork(lambda: calls.append(1))()
    assert calls == [1]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_readbacks_are_those_after_each_work(device):
    source = torch.zeros(2, dtype=torch.int32, device=device)
    readback = AsyncReadback(source)
    for step in range(5):
        source.add_(1)
        readback.send()
        assert readback.read(0) == [step + 1] * 2
        if step:
            assert readback.read(1) == [step] * 2, "of the work before"
    with pytest.raises(AssertionError, match="overwritten"):
        readback.read(2)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_mirror_copies_the_first_rows_of_several_tensors(device):
    first, second = torch.arange(6, device=device).view(3, 2), torch.zeros(3, dtype=torch.float64, device=device)
    mirror = HostMirror([first, second])
    for number in range(2):
        second[:2] = number + 0.5
        ids, logs = mirror.read(2, None)
        assert (ids.tolist(), logs.tolist()) == ([[0, 1], [2, 3]], [number + 0.5] * 2)
        assert ids.device.type == "cpu"


@pytest.mark.gpu
def test_a_mirror_does_not_wait_for_what_comes_after_its_event():
    source, other = torch.zeros(1, device="cuda"), torch.ones(4096, 4096, device="cuda")
    mirror, event, late = HostMirror([source]), torch.cuda.Event(), torch.cuda.Event()
    source.fill_(3.0)
    event.record()
    for _ in range(400):
        other = other @ other * 0
    late.record()
    assert mirror.read(1, event)[0].tolist() == [3.0]
    assert not late.query(), "the work after the event continues"


def test_a_cpu_has_no_streams_to_order():
    order = StreamOrder()
    with order(torch.device("cpu")):
        pass
    assert order.ended is None


@pytest.mark.gpu
def test_work_on_another_stream_begins_when_the_work_before_has_ended():
    order, number = StreamOrder(), torch.zeros(1, device="cuda")
    slow, device = torch.ones(4096, 4096, device="cuda"), number.device
    torch.cuda.synchronize()
    for step in range(4):
        with torch.cuda.stream(torch.cuda.Stream()), order(device):
            for _ in range(50):
                slow = slow @ slow * 0
            number.mul_(2).add_(step)
    torch.cuda.synchronize()
    assert number.item() == 11.0  # ((0·2 + 0)·2 + 1)·2 + 2)·2 + 3


@pytest.mark.gpu
def test_later_calls_run_no_python():
    x, total, calls = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda"), []

    def work():
        calls.append(1)
        total.add_(x * 2)

    capture = graph_capture()
    first, second = capture(work), capture(lambda: total.mul_(2))
    for _ in range(4):
        first()
        second()
    assert total.tolist() == [60.0] * 3
    assert len(calls) == 2, "once as it is, and once to be captured"
    x.fill_(0.0)
    first()
    assert total.tolist() == [60.0] * 3


def model():
    return built(TRANSLATING["attention"]).eval()


def layer(of):
    """An attention layer."""
    return of.decoder.stack.blocks[0].mixer.layer


def swapped(of):
    of.decoder.stack.blocks[0].feed_forward = copy.deepcopy(of.decoder.stack.blocks[0].feed_forward)


def shared(of):
    """Another module with the very same parameters."""
    old = layer(of).query
    new = nn.Linear(old.in_features, old.out_features).eval()
    new.weight, new.bias = old.weight, old.bias
    layer(of).query = new


def of_another_shape(of):
    weight = layer(of).query.weight
    weight.data = weight.data.t()  # in the same place


def of_fewer_rows(of):
    weight = of.decoder.embedding.tokens.weight
    weight.data = weight.data[:5]


def assigned(of):
    of.load_state_dict({name: part.clone() for name, part in of.state_dict().items()}, assign=True)


def attribute(name, value, of=layer):
    return lambda found: setattr(of(found), name, value)


CHANGES = {
    "another dtype": lambda of: of.bfloat16(),
    "there and back": lambda of: of.bfloat16().double(),
    "loaded by assigning": assigned,
    "another parameter": lambda of: setattr(of.output, "weight", nn.Parameter(of.output.weight.detach().clone())),
    "other data": lambda of: setattr(of.output.weight, "data", of.output.weight.data.clone()),
    "turned": of_another_shape,
    "fewer rows": of_fewer_rows,
    "a module swapped": swapped,
    "a module of the same parameters": shared,
    "a module more": lambda of: of.decoder.add_module("more", nn.Identity()),
    "a module less": lambda of: setattr(layer(of), "output", None),
    "another buffer": lambda of: setattr(layer(of), "like", torch.empty(0)),
    "another mask": attribute("mask", Window(2, 0), lambda of: of.decoder.stack.blocks[0].mixer),
    "another dropout": attribute("dropout", 0.25),
    "training": lambda of: layer(of).train(),
    "a forward pass": attribute("forward", lambda x: x),
    "computed": lambda of: parametrize.register_parametrization(layer(of).query, "weight", nn.Identity()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_fingerprint_sees_what_makes_graphs_wrong(change):
    one = model()
    fingerprint = ModelFingerprint(one)
    assert fingerprint.matches()
    change(one)
    assert not fingerprint.matches()
    assert ModelFingerprint(one).matches()


@torch.no_grad()
def test_a_fingerprint_ignores_what_graphs_see_themselves():
    one = model()
    fingerprint, memory = ModelFingerprint(one), one.encode(Tokens.of([[5, 6]]))
    one.output.weight.mul_(2.0)
    one.load_state_dict({name: part.clone() for name, part in one.state_dict().items()})
    one.train().eval()
    one.requires_grad_(False)
    one.decode(Tokens.of([[1, 5]]), memory)  # no module keeps something of a call
    assert fingerprint.matches()


def test_hooks_and_listeners_are_seen_and_change_no_fingerprint():
    one = model()
    fingerprint = ModelFingerprint(one)
    assert not fingerprint.has_listeners()
    assert not has_hooks(all_modules(one))
    for register in (layer(one).register_forward_hook, one.encoder.register_forward_pre_hook,
                     register_module_forward_hook):
        handle = register(lambda *given: None)
        assert fingerprint.has_listeners()
        assert has_hooks(all_modules(one))
        handle.remove()
    with layer(one).tap.listen(print):
        assert fingerprint.has_listeners()
    assert not fingerprint.has_listeners()
    assert fingerprint.matches()


def test_all_modules_are_found():
    one = model()
    assert {*map(id, all_modules(one))} == {id(module) for module in one.modules()}


@pytest.mark.parametrize("name", ["attention", "rotary", "alibi", "untied"])
@torch.no_grad()
def test_a_graph_encodes_what_the_model_encodes(monkeypatch, name):
    like_a_gpu(monkeypatch)
    model, cache = built(TRANSLATING[name]), GraphCache(Tape, 1 << 30)
    for sources in ([[5, 6, 7], [8], [9, 3]], [[4], [1, 2, 3], [5, 5]], [[1, 2], [9, 8, 7], [6]], [[3, 4, 5, 6]] * 4):
        tokens = Tokens.of(sources)
        mine, plain = graph_encode(cache, model.encoder, tokens), model.encode(tokens)
        assert mine.lengths.tolist() == plain.lengths.tolist()
        for one, other, length in zip(mine.states, plain.states, mine.lengths.tolist(), strict=True):
            assert_close(one[:length], other[:length])
    assert len(cache.encoders) == 1, "one size serves them all"


@torch.no_grad()
def test_a_memory_is_not_overwritten_by_the_next(monkeypatch):
    like_a_gpu(monkeypatch)
    model, cache = built(TRANSLATING["attention"]), GraphCache(Tape, 1 << 30)
    first = Tokens.of([[5, 6, 7]])
    kept = graph_encode(cache, model.encoder, first)
    before = kept.states.clone()
    graph_encode(cache, model.encoder, Tokens.of([[9, 9, 9]]))
    assert torch.equal(kept.states, before)


@torch.no_grad()
def test_threads_that_share_an_encoder_take_turns(monkeypatch):
    like_a_gpu(monkeypatch)
    model = built(TRANSLATING["attention"])
    cache = GraphCache(lambda work: lambda: (work(), time.sleep(0.002)), 1 << 30)

    @torch.no_grad()
    def same(first):
        tokens = Tokens.of([[first, 6, 7]])
        return torch.allclose(graph_encode(cache, model.encoder, tokens).states, model.encode(tokens).states, atol=1e-5)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(same, [4, 5, 9, 10] * 4))


@torch.no_grad()
def test_few_sizes_of_sources_are_kept(monkeypatch):
    like_a_gpu(monkeypatch)
    monkeypatch.setattr(cuda_graph, "MAX_ENCODERS", 2)
    model, cache = built(TRANSLATING["attention"]), GraphCache(Tape, 1 << 30)
    for count in (0, 1, 0, 2):
        graph_encode(cache, model.encoder, Tokens.of([[5] * (32 * count + 1)]))
    assert [length for _, length, _ in cache.encoders] == [32, 96]


def test_sources_that_no_graph_encodes_say_why():
    model, tokens = built(TRANSLATING["attention"]).eval(), Tokens.of([[5, 6]])
    assert_close(encode(model, tokens).states, model.encode(tokens).states)
    assert why_no_source_graph(model, tokens) is None
    assert "encoder" in why_no_source_graph(object(), tokens)
    assert "encoder" in why_no_source_graph(built(TRANSLATING["seq2seq"]).eval(), tokens)
    assert "encoder" in why_no_source_graph(built(TRANSLATING["attention"]).train(), tokens)
    assert "left" in why_no_source_graph(model, Tokens.of([[5, 6], [5]], side="left"))
    assert why_no_encoder_graph(model) is None
    assert "mixer" in why_no_encoder_graph(built(TRANSLATING["recurrence"]).eval())
    with model.encoder.stack.blocks[0].mixer.layer.tap.listen(print):
        assert "listeners" in why_no_encoder_graph(model)
    model.encoder.register_forward_hook(lambda *given: None)
    assert "hooks" in why_no_encoder_graph(model)


@pytest.mark.gpu
@torch.no_grad()
def test_on_a_gpu_the_same_is_encoded():
    model = built(TRANSLATING["attention"]).eval().cuda()
    for seed in range(4):
        tokens = Tokens(torch.randint(0, 11, (5, 7), generator=torch.Generator().manual_seed(seed)),
                        torch.tensor([7, 1, 3, 5, 2])).to("cuda")
        mine, plain = encode(model, tokens), model.encode(tokens)
        for one, other, length in zip(mine.states, plain.states, [7, 1, 3, 5, 2], strict=True):
            assert_close(one[:length], other[:length])
