"""Searches on a GPU equal the plain search: Triton's interpreter, and replayed work in place of CUDA graphs.

`FusedBuffers` have the fused decoder step, `PlainBuffers` the step of the model itself.
"""

import copy
import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from interpreting import only_interpreted  # noqa: F401
from tape import Tape, like_a_gpu
from tiny import LANGUAGE, TRANSLATING, built

from regard.decoding import cuda_graph, gpu_search
from regard.decoding.beam import BeamSearch
from regard.decoding.constraints import ForbiddenTokens, NoRepeatNgram
from regard.decoding.cuda_graph import GRAPH_CACHES, GraphCache, graph_cache, model_unchanged
from regard.decoding.gpu_search import FusedBuffers, PlainBuffers, run_in_cache, run_on_gpu, why_no_buffers, why_not
from regard.decoding.request import SearchRequest
from regard.decoding.sampling import TokenSearch, most_probable
from regard.decoding.scheduler import run_plain_search
from regard.decoding.scoring import as_length_penalty
from regard.kernels import launch
from regard.tokens import Tokens

SOURCES, MAX_LENGTHS = [[5, 6, 7], [8], [9, 10]], [4, 2, 3]
FORBIDDEN = ForbiddenTokens([4, 7])


@pytest.fixture
def cache(monkeypatch):
    """Graphs that are replayed on a CPU, with little storage: the interpreter is slow."""
    like_a_gpu(monkeypatch)
    monkeypatch.setattr(gpu_search, "TOKEN_STEP", 4)
    monkeypatch.setattr(gpu_search, "SOURCE_STEP", 2)
    return GraphCache(Tape, 1 << 30)


@pytest.fixture
def plain_steps(monkeypatch):
    """The step of the model itself is captured, even where there is a fused one."""
    monkeypatch.setattr(gpu_search, "why_no_fused_step", lambda model: "the test wants the step of the model")


def asked(model, memory, prompts, max_length, constraints=(), end=(2, 3), min_length=0, token_budget=None):
    return SearchRequest.of(model, memory, prompts, end, max_length, min_length, constraints, token_budget)


def translating(name, layers=1):
    """A model, its memory and prompts, with one layer: the interpreter is slow."""
    config = TRANSLATING[name]
    if layers is not None:
        config = replace(config, decoder=replace(config.decoder, layers=layers))
    model = built(config).eval().double()
    return model, model.encode(Tokens.of(SOURCES)), [[1]] * len(SOURCES)


def search_of(request, beams, penalty="none", nbest=1):
    if beams == 1:
        return TokenSearch(request, most_probable)
    return BeamSearch(request, beams, as_length_penalty(penalty), nbest)


def assert_same(mine, plain, within=1e-9):
    for found, other in zip(mine, plain, strict=True):
        several = (found, other) if isinstance(found, list) else ([found], [other])
        for one, another in zip(*several, strict=True):
            assert (one.ids, one.end) == (another.ids, another.end)
            assert one.log_probabilities == pytest.approx(another.log_probabilities, abs=within)
            assert one.score == pytest.approx(another.score, abs=within)


def assert_like_the_plain_search(cache, model, memory, request, search, buffers=FusedBuffers):
    mine, plain = (run_in_cache(cache, model, memory, request, search),
                   run_plain_search(model, memory, request, search))
    assert cache.workspaces
    assert {type(one.buffers) for one in cache.workspaces.values()} == {buffers}
    assert_same(mine, plain)
    return mine


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "constraints", "budget"), [
    ("rotary", (FORBIDDEN,), 14), ("post-norm", (), None), ("attention", (NoRepeatNgram(1),), None),
    ("gated", (), None)])
@torch.no_grad()
def test_greedy_search(cache, name, constraints, budget):
    model, memory, prompts = translating(name)
    least = 2 if FORBIDDEN in constraints else 0
    request = asked(model, memory, prompts, MAX_LENGTHS, constraints, min_length=least, token_budget=budget)
    assert_like_the_plain_search(cache, model, memory, request, search_of(request, 1))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "constraints", "budget", "penalty", "nbest"), [
    ("attention", (), None, "mean", 2), ("rotary", (FORBIDDEN, NoRepeatNgram(2)), 24, 0.6, 1),
    ("untied", (), None, "none", 2)])
@torch.no_grad()
def test_beam_search(cache, name, constraints, budget, penalty, nbest):
    model, memory, prompts = translating(name)
    request = asked(model, memory, prompts, MAX_LENGTHS, constraints, min_length=2 if constraints else 0,
                    token_budget=budget)
    assert_like_the_plain_search(cache, model, memory, request, search_of(request, 2, penalty, nbest))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "constraints", "budget", "beams"), [
    ("additive", (FORBIDDEN,), 14, 1), ("additive", (), 24, 2), ("bilinear", (NoRepeatNgram(1),), None, 2)])
@torch.no_grad()
def test_other_scores_and_normalisers(cache, name, constraints, budget, beams):
    model, memory, prompts = translating(name)
    request = asked(model, memory, prompts, MAX_LENGTHS, constraints, token_budget=budget)
    assert_like_the_plain_search(cache, model, memory, request, search_of(request, beams, "mean", beams), PlainBuffers)


@pytest.mark.parametrize(("name", "beams", "constraints"), [
    ("rotary", 1, (NoRepeatNgram(1),)), ("attention", 3, (FORBIDDEN, NoRepeatNgram(2)))])
@torch.no_grad()
def test_a_gpu_without_triton(cache, monkeypatch, name, beams, constraints):
    monkeypatch.setattr(launch, "why_not", lambda device: "Triton is not installed")
    model, memory, prompts = translating(name, layers=None)
    request = asked(model, memory, prompts, MAX_LENGTHS, constraints, token_budget=24)
    assert_like_the_plain_search(cache, model, memory, request, search_of(request, beams, "mean", beams), PlainBuffers)


@torch.no_grad()
def test_more_beams_than_the_kernels_take(cache, plain_steps):
    model, memory, prompts = translating("rotary")
    request = asked(model, memory, prompts, MAX_LENGTHS)
    assert_like_the_plain_search(cache, model, memory, request, search_of(request, 18, 0.6, 3), PlainBuffers)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "beams", "buffers"), [
    ("learned", 2, FusedBuffers), ("llama", 1, FusedBuffers), ("additive", 2, PlainBuffers)])
@torch.no_grad()
def test_language_models_with_prompts_of_many_lengths(cache, name, beams, buffers):
    config = LANGUAGE[name]
    model = built(replace(config, stack=replace(config.stack, layers=1))).eval()
    for prompts in ([[5], [6, 7, 8]], [[5], [6]]):  # the second need no prefill
        request = asked(model, None, prompts, [4, 3])
        assert_like_the_plain_search(cache, model, None, request, search_of(request, beams, "mean", beams), buffers)


@pytest.mark.thorough
@pytest.mark.parametrize("buffers", [FusedBuffers, PlainBuffers])
@torch.no_grad()
def test_graphs_see_other_sources_and_weights(cache, buffers):
    model, _, prompts = translating("untied" if buffers is FusedBuffers else "additive")
    for sources, most in ((SOURCES[:2], 2), ([[6], [9, 4, 4]], 3), ([[8, 8, 5], []], 3)):  # an empty one, too
        memory = model.encode(Tokens.of(sources))
        for layer in (model.decoder.stack.blocks[0].mixer.layer.key, model.decoder.stack.blocks[0].cross.value):
            layer.weight.mul_(1.5)  # in place: nothing is told
        request = asked(model, memory, prompts[:2], most)
        assert_like_the_plain_search(cache, model, memory, request, search_of(request, 1), buffers)
    assert len(cache.workspaces) == 1, "one for all of them"


@pytest.mark.parametrize("buffers", [FusedBuffers, PlainBuffers])
@torch.no_grad()
def test_sources_without_any_token(cache, buffers):
    model, _, _ = translating("untied" if buffers is FusedBuffers else "additive")
    memory = model.encode(Tokens.of([[], []]))
    request = asked(model, memory, [[1]] * 2, 2)
    assert_like_the_plain_search(cache, model, memory, request, search_of(request, 1), buffers)


@pytest.mark.thorough
@torch.no_grad()
def test_equal_tokens_are_put_in_order(cache):
    model, memory, prompts = translating("untied")
    model.output.weight[4:] = 0.0
    model.output.bias[4:] = 5.0  # nine tokens are always the best, and equal: more than a search looks at
    request = asked(model, memory, prompts, 1)
    mine = assert_like_the_plain_search(cache, model, memory, request, search_of(request, 2, nbest=2))
    assert {one.ids[0] for found in mine for one in found} == {4, 5}, "the lowest of equals"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's
@torch.no_grad()
def test_invalid_logits_are_reported_with_their_row(cache):
    model, memory, prompts = translating("untied")
    model.decoder.embedding.positions.encoding.table[2] = torch.nan
    request = asked(model, memory, prompts, 4, end=())
    with pytest.raises(ValueError, match=r"NaN.* row 0 after 2 tokens"):
        run_in_cache(cache, model, memory, request, search_of(request, 1))


@torch.no_grad()
def test_more_tokens_than_positions_are_refused(cache):
    model, memory, prompts = translating("untied")
    request = asked(model, memory, prompts, 40)
    with pytest.raises(ValueError, match="capacity"):
        run_in_cache(cache, model, memory, request, search_of(request, 1))


@pytest.mark.parametrize(("name", "reason"), [
    ("alibi", "position bias"), ("window", "causal self-attention"), ("seq2seq", "stack of blocks"),
    ("recurrence", "causal self-attention")])
def test_models_that_cannot_be_captured_say_why(cache, name, reason):
    model, _, _ = translating(name, layers=None)
    assert reason in why_no_buffers(cache, model)


def test_searches_elsewhere_say_why():
    model, memory, prompts = translating("attention")
    request = asked(model, memory, prompts, 5)
    assert "not on a GPU" in why_not(model, request, search_of(request, 1))
    there = replace(request, device=torch.device("cuda"))
    assert "not a module" in why_not(object(), there, search_of(there, 1))
    assert run_on_gpu(model, memory, request, search_of(request, 1)) is None


@pytest.mark.parametrize("name", ["attention", "additive"])
def test_listeners_and_hooks_are_in_the_way(cache, name):
    model, _, _ = translating(name)
    assert why_no_buffers(cache, model) is None
    with model.decoder.stack.blocks[0].cross.tap.listen(print):
        assert "listener" in why_no_buffers(cache, model)
    handle = model.output.register_forward_hook(lambda *given: None)
    assert "hooks" in why_no_buffers(cache, model)
    handle.remove()
    assert why_no_buffers(cache, model) is None


@pytest.mark.thorough
@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("buffers", [FusedBuffers, PlainBuffers])
@torch.no_grad()
def test_the_last_sequences_move_to_a_smaller_workspace(cache, beams, buffers):
    model, _, _ = translating("untied" if buffers is FusedBuffers else "additive")
    memory = model.encode(Tokens.of([[5, 6], [8], [9, 10], [7, 5]]))
    request = asked(model, memory, [[1]] * 4, [1, 1, 4, 1], end=())
    for _ in range(2):
        assert_like_the_plain_search(cache, model, memory, request, search_of(request, beams), buffers)
        model.decoder.stack.blocks[0].mixer.layer.value.weight.mul_(-1.5)  # in place: the smaller one sees it too
    assert [one.buffers.groups for one in cache.workspaces.values()] == [4, 1]


@torch.no_grad()
def test_groups_taken_from_other_buffers_are_those_that_come_out_of_them():
    model, memory, _ = translating("untied")
    first, second, plain = (FusedBuffers(model.decoder, groups, 2, 6, 3) for groups in (4, 2, 2))
    first.begin(memory)
    first.project()
    for layer in first.layers:
        layer.keys.normal_()
        layer.values.normal_()
    first.logits.normal_()
    first.positions.fill_(4)
    first.table.copy_(torch.arange(8).unsqueeze(-1) // 2 * 2 + torch.randint(0, 2, (8, 6)))  # within groups
    groups = torch.tensor([2, 0])
    second.take(first, groups, 4)
    assert plain.load(first.state(groups, 4, 6)) == 4
    plain.load_logits(first.logits[first.rows(groups)])
    for one, other in zip(second.layers, plain.layers, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert torch.equal(mine, theirs)
    for name in ("positions", "lengths", "table", "logits"):
        assert torch.equal(getattr(second, name), getattr(plain, name))


@torch.no_grad()
def test_workspaces_are_kept_within_a_limit(cache, plain_steps):
    model, memory, prompts = translating("attention")
    cache.limit = 1
    request = asked(model, memory, prompts, MAX_LENGTHS)
    assert_like_the_plain_search(cache, model, memory, request, search_of(request, 1), PlainBuffers)
    assert len(cache.workspaces) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("beams", [1, 2])
def test_graphs_captured_in_one_mode_serve_another(cache, plain_steps, beams):
    model, memory, prompts = translating("attention")
    request = asked(model, memory, prompts, MAX_LENGTHS)
    with torch.inference_mode():
        first = run_in_cache(cache, model, memory, request, search_of(request, beams, "mean"))
    with torch.no_grad():
        assert run_in_cache(cache, model, memory, request, search_of(request, beams, "mean")) == first


@torch.no_grad()
def test_low_precision_is_kept(cache, plain_steps):
    model, _, prompts = translating("attention")
    model.half()  # the interpreter has no bfloat16
    memory = model.encode(Tokens.of([[5, 6, 7], [8]]))
    request = asked(model, memory, prompts[:2], 4, end=())
    found = run_in_cache(cache, model, memory, request, search_of(request, 1))
    (workspace,) = cache.workspaces.values()
    assert {workspace.buffers.logits.dtype, workspace.buffers.caches[0][0].dtype} == {torch.float16}
    one = found[0]
    logs = model.decode(Tokens.of([[1, *one.ids[:-1]]]), memory.pick([0]))[0].float().log_softmax(-1)
    assert one.log_probabilities == pytest.approx(logs[range(4), one.ids].tolist(), abs=0.02)


@torch.no_grad()
def test_threads_that_share_a_model_take_turns(plain_steps):
    def pausing(work):
        """Work after which another thread may run."""
        return lambda: (work(), time.sleep(0.002))

    model, cache = built(TRANSLATING["attention"]).eval(), GraphCache(pausing, 1 << 30)

    @torch.no_grad()
    def generate(first):
        memory = model.encode(Tokens.of([[first, 6, 7], [8, first]]))
        request = asked(model, memory, [[1]] * 2, 3, end=())
        search = search_of(request, 1)
        mine, plain = (run_in_cache(cache, model, memory, request, search),
                       run_plain_search(model, memory, request, search))
        return [one.ids for one in mine] == [one.ids for one in plain]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(generate, [4, 5, 9, 10]))


@torch.no_grad()
def test_graphs_are_captured_on_the_device_of_the_model(monkeypatch, plain_steps):
    """A graph of another device would hold nothing, and replay nothing."""
    inside, seen = [], []

    @contextmanager
    def device_of(tensor):
        inside.append(tensor)
        yield
        inside.pop()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    model, memory, prompts = translating("attention")
    request = asked(model, memory, prompts, 2)
    cache = GraphCache(lambda work: lambda: (seen.append(next(one for one in inside)), work()), 1 << 30)
    run_in_cache(cache, model, memory, request, search_of(request, 1))
    assert seen
    assert all(tensor is next(model.parameters()) for tensor in seen)


def test_a_model_that_does_not_change_is_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr(cuda_graph, "_checked_graph_cache",
                        lambda model: checked.append(model) or GraphCache(Tape, 1 << 30))
    one, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    with model_unchanged(one):
        cache = graph_cache(one)
        with model_unchanged(one), ThreadPoolExecutor(1) as pool:
            assert graph_cache(one) is cache
            assert pool.submit(graph_cache, one).result() is not cache  # that thread may have changed it
        with model_unchanged(other):
            assert graph_cache(other) is graph_cache(other)
        assert graph_cache(one) is cache
    assert graph_cache(one) is not cache
    assert checked == [one, one, other, one]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["attention", "additive"])
@torch.no_grad()
def test_graphs_do_not_keep_the_model_alive(cache, name):
    model, memory, prompts = translating(name)
    request, GRAPH_CACHES[model] = asked(model, memory, prompts, 2), cache
    run_in_cache(cache, model, memory, request, search_of(request, 1))
    assert cache.workspaces
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.fixture
def kept(monkeypatch, cache):
    """Caches that are kept with models, as on a GPU."""
    monkeypatch.setattr(cuda_graph, "graph_capture", lambda: Tape)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1 << 33))
    return graph_cache


def weight_written(model):
    model.decoder.stack.blocks[0].cross.key.weight.mul_(-1.5)


def loaded(model):
    model.load_state_dict({name: part * 1.2 for name, part in model.state_dict().items()})


def loaded_by_assigning(model):
    model.load_state_dict({name: part * 1.2 for name, part in model.state_dict().items()}, assign=True)


def in_float32(model):
    model.float()


def module_replaced(model):
    model.decoder.stack.blocks[0].feed_forward = copy.deepcopy(model.decoder.stack.blocks[0].feed_forward)
    model.decoder.stack.blocks[0].feed_forward.up.weight.mul_(-2.0)


def attribute_changed(model):
    """An attribute that is not a parameter: the epsilon of a norm."""
    model.decoder.stack.blocks[0].around_mixer.norm.eps = 10.0


@pytest.mark.thorough
@pytest.mark.parametrize(("change", "same"), [
    (weight_written, True), (loaded, True), (loaded_by_assigning, False), (in_float32, False),
    (module_replaced, False), (attribute_changed, False)])
@torch.no_grad()
def test_changes_of_a_model_are_seen(kept, change, same):
    model, _, _ = translating("untied")
    memory, before, firsts = model.encode(Tokens.of(SOURCES[:1])), kept(model), []
    for changed in (False, False, False, True):  # as it is, captured, replayed; and after the change
        if changed:
            change(model)
            memory = model.encode(Tokens.of(SOURCES[:1]))
        cache = kept(model)
        assert (cache is before) == (same or not changed)
        request = asked(model, memory, [[1]], 2, end=())
        search = search_of(request, 1)
        mine = run_in_cache(cache, model, memory, request, search)
        assert_same(mine, run_plain_search(model, memory, request, search),
                    1e-9 if model.output.weight.dtype == torch.float64 else 1e-4)
        firsts.append(mine[0].log_probabilities)
    assert firsts[0] == firsts[2]
    if change is not in_float32:
        assert firsts[2] != pytest.approx(firsts[3], abs=1e-6), "the change is one that matters"


@torch.no_grad()
def test_hooks_stop_the_graphs_and_do_not_spoil_them(kept):
    model, _, _ = translating("untied")
    memory = model.encode(Tokens.of(SOURCES[:1]))
    request = asked(model, memory, [[1]], 2, end=())
    search, cache, seen = search_of(request, 1), kept(model), []
    for _ in range(2):
        run_in_cache(cache, model, memory, request, search)
    captured = dict(cache.workspaces)
    handle = model.output.register_forward_hook(lambda module, given, made: seen.append(1))
    assert kept(model) is cache
    assert "hooks" in why_no_buffers(cache, model)
    handle.remove()
    assert why_no_buffers(cache, model) is None
    run_in_cache(kept(model), model, memory, request, search)
    assert (seen, dict(cache.workspaces)) == ([], captured)


@pytest.mark.thorough
@torch.no_grad()
def test_other_beams_lengths_and_sources_have_workspaces_of_their_own(kept):
    model, _, _ = translating("untied")
    for beams, most, source in ((2, 1, [5, 6]), (3, 1, [5, 6]), (2, 4, [5, 6]), (2, 1, [5] * 5)):
        memory = model.encode(Tokens.of([source]))
        request = asked(model, memory, [[1]], most, end=())
        assert_like_the_plain_search(kept(model), model, memory, request, search_of(request, beams))
    assert len(kept(model).workspaces) == 4


@pytest.mark.gpu
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["attention", "rotary", "post-norm", "untied", "additive", "bilinear", "gated"])
@torch.inference_mode()
def test_on_a_gpu_every_search_equals_the_plain_one(name, beams):
    model = built(TRANSLATING[name]).eval().double().cuda()
    for seed in range(8):  # as it is, captured, and replayed
        generator = torch.Generator().manual_seed(seed)
        ids, lengths = (torch.randint(0, 11, (20, 8), generator=generator),
                        torch.randint(0, 9, (20,), generator=generator))
        memory = model.encode(Tokens(ids, lengths).to("cuda"))
        constraints = (FORBIDDEN, NoRepeatNgram(2)) if seed >= 4 else (FORBIDDEN,)
        request = asked(model, memory, [[1]] * 20, torch.randint(1, 11, (20,), generator=generator), constraints,
                        token_budget=(None, 80)[seed % 2])
        search = search_of(request, beams, 0.6, 2)
        assert why_not(model, request, search) is None
        assert_same(run_on_gpu(model, memory, request, search), run_plain_search(model, memory, request, search))
    graphs = [work for one in GRAPH_CACHES[model].workspaces.values() for work in one.graphs.values()]
    assert any(work.graph is not None for work in graphs), "something was captured"
