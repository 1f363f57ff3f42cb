"""Recorded searches: what they give is what plain ones give, whoever comes and goes, with Python out of the loop."""

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from tape import Tape, like_a_gpu
from tiny import LANGUAGE, TRANSLATING, built

from regard.decoding import cuda_graph, graph_search, scheduler
from regard.decoding.beam_search import BeamSearch
from regard.decoding.constraints import ForbiddenTokens, NoRepeatNgram
from regard.decoding.cuda_graph import GRAPH_CACHES, GraphCache, graph_cache, model_unchanged
from regard.decoding.graph_search import run_graph_search, run_in_cache, why_no_graph_search
from regard.decoding.request import SearchRequest
from regard.decoding.scoring import as_length_penalty
from regard.decoding.static_state import search_kind
from regard.decoding.token_search import TokenSearch, most_probable
from regard.tokens import Tokens

SOURCES = [[5, 6, 7], [8, 9], [10, 11, 5, 6, 7, 8, 9, 6], [7], [6, 6, 5, 9], [9, 8, 7, 6, 5]]
LIMITS = [9, 5, 20, 3, 12, 7]


@pytest.fixture
def places(monkeypatch):
    """Recordings that are replayed on a CPU, with small pieces of keys, so that short texts have several."""
    like_a_gpu(monkeypatch)
    monkeypatch.setattr(graph_search, "TOKEN_STEP", 8)
    monkeypatch.setattr(graph_search, "_fused_search", lambda *given: None)  # kernels of our own have tests of their own
    return GraphCache(Tape, 1 << 30)


NEVER = ForbiddenTokens([4, 7])


def asked(model, memory, prompts, limits, rules=(), end=(2, 3), least=0, room=None):
    return SearchRequest.of(model, memory, prompts, end, limits, least, rules, room)


def translating(name, **options):
    model = built(TRANSLATING[name]).eval().double()
    sources = [[id_ % 11 for id_ in row] for row in SOURCES]
    return model, model.encode(Tokens.of(sources)), [[1]] * len(sources)


def assert_same(mine, plain):
    assert [one.ids for one in mine] == [one.ids for one in plain]
    assert [one.end for one in mine] == [one.end for one in plain]
    for one, other in zip(mine, plain, strict=True):
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-9)
        assert one.score == pytest.approx(other.score, abs=1e-9)


def both(places, model, memory, request, search):
    return run_in_cache(places, model, memory, request, search), scheduler.run_search(model, memory, request, search)


def replayed(places):
    """How often recordings were replayed, and not run."""
    return sum(max(0, tape.calls - 2) for place in places.kept.values() for tape in place.works.values())


@pytest.mark.parametrize(("name", "rules", "room"), [
    ("attention", (), None), ("rotary", (NEVER, NoRepeatNgram(2)), 60), ("additive", (NEVER,), 60),
    ("post-norm", (NoRepeatNgram(1),), None)])
@torch.no_grad()
def test_greedy_search_gives_the_same(places, name, rules, room):
    model, memory, prompts = translating(name)
    for least in (0, 2):
        request = asked(model, memory, prompts, LIMITS, rules, least=least, room=room)
        assert_same(*both(places, model, memory, request, TokenSearch(request, most_probable)))
    assert replayed(places) > 10


@pytest.mark.parametrize(("name", "rules", "room", "options"), [
    ("attention", (), None, {"length_penalty": "mean", "nbest": 3}),
    ("rotary", (NEVER, NoRepeatNgram(2)), 200, {"length_penalty": 0.6}),
    ("additive", (NEVER,), 150, {"length_penalty": "none", "nbest": 2})])
@torch.no_grad()
def test_beam_search_gives_the_same(places, name, rules, room, options):
    model, memory, prompts = translating(name)
    for least in (0, 2):
        request = asked(model, memory, prompts, LIMITS, rules, least=least, room=room)
        search = BeamSearch(request, 3, as_length_penalty(options["length_penalty"]), options.get("nbest", 1))
        mine, plain = both(places, model, memory, request, search)
        assert [len(one) for one in mine] == [len(one) for one in plain]
        for found, other in zip(mine, plain, strict=True):
            assert_same(found, other)
    assert replayed(places) > 10


@pytest.mark.parametrize(("name", "beams"), [("learned", 1), ("learned", 2), ("llama", 1), ("llama", 2)])
@torch.no_grad()
def test_language_models_with_prompts_of_many_lengths(places, name, beams):
    model = built(LANGUAGE[name])
    prompts = [[5], [6, 7, 8], [9, 4], [5, 5, 5, 5], [10]]  # of the 12 positions that learned ones have, all are used
    request = asked(model, None, prompts, [8, 7, 4, 8, 1], (NEVER,))
    search = TokenSearch(request, most_probable) if beams == 1 else BeamSearch(request, beams, as_length_penalty("mean"), beams)
    mine, plain = both(places, model, None, request, search)
    for found, other in zip(mine, plain, strict=True):
        assert_same(*([one] if beams == 1 else one for one in (found, other)))
    assert replayed(places) > 3


@pytest.mark.parametrize("name", ["alibi", "window", "recurrence", "seq2seq-attention"])
@torch.no_grad()
def test_what_a_desk_cannot_do_is_done_as_everywhere(places, name):
    model, memory, prompts = translating(name)
    request = asked(model, memory, prompts, LIMITS)
    assert_same(*both(places, model, memory, request, TokenSearch(request, most_probable)))
    assert not places.kept


@torch.no_grad()
def test_an_empty_source_is_read_as_everywhere(places):
    model = built(TRANSLATING["attention"])
    memory = model.encode(Tokens.of([[5, 6], []]))
    request = asked(model, memory, [[1], [1]], 6)
    assert_same(*both(places, model, memory, request, TokenSearch(request, most_probable)))
    assert not places.kept


@torch.no_grad()
def test_equal_tokens_are_put_in_order(places):
    model, memory, prompts = translating("untied")
    model.output.weight[4:] = 0.0
    model.output.bias[4:] = 5.0  # nine tokens are always the best, and equal: more than a search looks at
    request = asked(model, memory, prompts, 9)
    search = BeamSearch(request, 2, as_length_penalty("none"), 2)
    mine, plain = both(places, model, memory, request, search)
    for found, other in zip(mine, plain, strict=True):
        assert_same(found, other)
    assert {one.ids[0] for found in mine for one in found} == {4, 5}, "the lowest of equals"


@pytest.mark.parametrize("beams", [1, 2])
@torch.no_grad()
def test_a_model_that_gives_no_number_is_named(places, beams):
    model, memory, prompts = translating("untied")
    model.decoder.embedding.positions.encoding.table[4] = torch.nan
    request = asked(model, memory, prompts, 9, end=())
    search = TokenSearch(request, most_probable) if beams == 1 else BeamSearch(request, beams, as_length_penalty("none"), 1)
    with pytest.raises(ValueError, match="NaN for row 0 after 4 tokens"):
        run_in_cache(places, model, memory, request, search)


@torch.no_grad()
def test_recordings_see_other_sources_limits_and_weights(places):
    model, _, prompts = translating("attention")
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, 9 - 3 * seed, (6,), generator=draw)
        memory = model.encode(Tokens(torch.randint(0, 11, (6, int(lengths.max())), generator=draw), lengths))
        model.decoder.output.weight.add_(0.1 * seed)
        request = asked(model, memory, prompts, torch.randint(9, 15, (6,), generator=draw))
        assert_same(*both(places, model, memory, request, TokenSearch(request, most_probable)))
    assert len(places.kept) == 1, "one for all of them"


@torch.no_grad()
def test_what_was_recorded_is_kept_within_a_limit(places):
    model, memory, prompts = translating("attention")
    places.limit = 1
    request = asked(model, memory, prompts, LIMITS)
    assert_same(*both(places, model, memory, request, TokenSearch(request, most_probable)))
    assert len(places.kept) == 1


def test_a_cpu_and_searches_that_cannot_be_recorded_say_why():
    model, memory, prompts = translating("attention")
    request = asked(model, memory, prompts, LIMITS)
    plain = TokenSearch(request, most_probable)
    assert why_no_graph_search(model, request, plain) == "Python is fast enough for a CPU"
    there = replace(request, device=torch.device("cuda"))
    assert why_no_graph_search(model, there, plain) is None
    assert "none of ours" in why_no_graph_search(object(), there, plain)
    drawing = TokenSearch(request, lambda logs, written: logs.argmax(-1))
    strange = TokenSearch(replace(request, rules=(lambda logs, written: logs,)), most_probable)
    parted = BeamSearch(request, 4, as_length_penalty("none"), 1, groups=2)
    for search in (drawing, strange, parted):
        assert search_kind(search) is None
        assert "groups, terms" in why_no_graph_search(model, there, search)


def test_kinds_are_equal_where_recordings_serve_both():
    model, memory, prompts = translating("attention")
    first, second = (asked(model, memory, prompts, limit, (ForbiddenTokens([4]),)) for limit in (5, 6))
    assert search_kind(TokenSearch(first, most_probable)) == search_kind(TokenSearch(second, most_probable))
    assert search_kind(BeamSearch(first, 2, as_length_penalty(0.5), 1)) == search_kind(BeamSearch(second, 2, as_length_penalty(0.5), 1))
    assert search_kind(BeamSearch(first, 2, as_length_penalty(0.5), 1)) != search_kind(BeamSearch(second, 2, as_length_penalty(0.6), 1))
    other = asked(model, memory, prompts, 5, (ForbiddenTokens([5]),))
    assert search_kind(TokenSearch(first, most_probable)) != search_kind(TokenSearch(other, most_probable))


@pytest.mark.parametrize("beams", [1, 2])
def test_recordings_of_one_mode_are_of_use_in_another(places, beams):
    model, memory, prompts = translating("attention")
    request = asked(model, memory, prompts, LIMITS)
    search = TokenSearch(request, most_probable) if beams == 1 else BeamSearch(request, beams, as_length_penalty("mean"), 1)
    with torch.inference_mode():
        first = run_in_cache(places, model, memory, request, search)
    with torch.no_grad():
        assert run_in_cache(places, model, memory, request, search) == first


@torch.no_grad()
def test_low_precision_is_kept(places):
    model, _, prompts = translating("attention")
    model.bfloat16()
    memory = model.encode(Tokens.of([[5, 6, 7], [8]]))
    request = asked(model, memory, prompts[:2], 9, end=())
    found = run_in_cache(places, model, memory, request, TokenSearch(request, most_probable))
    (place,) = places.kept.values()
    assert {place.desk.logits.dtype, place.desk.layers[0].key.dtype} == {torch.bfloat16}
    assert [len(one.ids) for one in found] == [9, 9]
    one = found[0]
    logs = model.decode(Tokens.of([[1, *one.ids[:-1]]]), memory.pick([0]))[0].float().log_softmax(-1)
    assert one.log_probabilities == pytest.approx(logs[range(9), one.ids].tolist(), abs=0.1)


def waiting(work):
    """A recording after which another thread has its turn, where it may."""
    def call():
        work()
        time.sleep(0.002)

    return call


@torch.no_grad()
def test_threads_that_share_a_model_take_turns(monkeypatch):
    monkeypatch.setattr(graph_search, "_fused_search", lambda *given: None)
    model, places = built(TRANSLATING["attention"]).eval(), GraphCache(waiting, 1 << 30)

    @torch.no_grad()
    def write(first):
        memory = model.encode(Tokens.of([[first, 6, 7], [8, first]]))
        request = asked(model, memory, [[1]] * 2, 6, end=())
        mine, plain = both(places, model, memory, request, TokenSearch(request, most_probable))
        return [one.ids for one in mine] == [one.ids for one in plain]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(write, [4, 5, 9, 10] * 2))


@torch.no_grad()
def test_what_is_recorded_is_on_the_device_of_the_model(monkeypatch):
    """A graph of another device would hold nothing, and replay nothing."""
    monkeypatch.setattr(graph_search, "_fused_search", lambda *given: None)
    inside, seen = [], []

    @contextmanager
    def device_of(tensor):
        inside.append(tensor)
        yield
        inside.pop()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    model, memory, prompts = translating("attention")
    request = asked(model, memory, prompts, LIMITS)
    places = GraphCache(lambda work: lambda: (seen.append(inside[-1]), work()), 1 << 30)
    run_in_cache(places, model, memory, request, TokenSearch(request, most_probable))
    assert seen
    assert all(tensor is next(model.parameters()) for tensor in seen)


def test_a_model_that_nobody_changes_is_looked_at_once(monkeypatch):
    looks = []
    monkeypatch.setattr(cuda_graph, "_checked_graph_cache", lambda model: looks.append(model) or GraphCache(Tape, 1 << 30))
    one, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    with model_unchanged(one):
        places = graph_cache(one)
        with model_unchanged(one), ThreadPoolExecutor(1) as pool:
            assert graph_cache(one) is places
            assert pool.submit(graph_cache, one).result() is not places  # that thread may have changed it
        with model_unchanged(other):
            assert graph_cache(other) is graph_cache(other)
        assert graph_cache(one) is places
    assert graph_cache(one) is not places
    assert looks == [one, one, other, one]


@torch.no_grad()
def test_what_is_kept_does_not_keep_the_model(places):
    model, memory, prompts = translating("attention")
    request, GRAPH_CACHES[model] = asked(model, memory, prompts, LIMITS), places
    run_in_cache(places, model, memory, request, TokenSearch(request, most_probable))
    assert places.kept
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.gpu
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", ["attention", "rotary", "additive", "post-norm", "untied"])
@torch.inference_mode()
def test_on_a_gpu_all_comes_out_the_same(name, beams):
    model = built(TRANSLATING[name]).cuda()
    for seed in range(4):  # as it is, recorded, and replayed
        draw = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, 9, (20,), generator=draw)
        tokens = Tokens(torch.randint(0, 11, (20, 8), generator=draw), lengths).to("cuda")
        memory = model.encode(tokens)
        limits = torch.randint(1, 11, (20,), generator=draw)
        request = asked(model, memory, [[1]] * 20, limits, (NEVER,), room=(None, 80)[seed % 2])
        search = TokenSearch(request, most_probable) if beams == 1 else BeamSearch(request, beams, as_length_penalty("mean"), 2)
        assert why_no_graph_search(model, request, search) is None
        mine, plain = run_graph_search(model, memory, request, search), scheduler.run_search(model, memory, request, search)
        for found, other in zip(mine, plain, strict=True):
            assert_same(*([one] if beams == 1 else one for one in (found, other)))
    kept = [work for place in GRAPH_CACHES[model].kept.values() for work in place.works.values()]
    assert any(work.graph is not None for work in kept), "something was recorded"
