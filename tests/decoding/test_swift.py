"""Searches by kernels of our own, in Triton's interpreter: what they give is what plain searches give."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from interpreting import only_interpreted  # noqa: F401
from tape import Tape, like_a_gpu
from tiny import LANGUAGE, TRANSLATING, built

from regard.decoding import cuda_graph, fused_search, graph_search, scheduler
from regard.decoding.beam_search import BeamSearch
from regard.decoding.constraints import ForbiddenTokens, NoRepeatNgram
from regard.decoding.cuda_graph import GraphCache, graph_cache
from regard.decoding.graph_search import run_in_cache
from regard.decoding.request import SearchRequest
from regard.decoding.scoring import as_length_penalty
from regard.decoding.token_search import TokenSearch, most_probable
from regard.tokens import Tokens

SOURCES, LIMITS = [[5, 6, 7], [8], [9, 10]], [5, 2, 4]
NEVER = ForbiddenTokens([4, 7])


@pytest.fixture
def places(monkeypatch):
    """Recordings that are replayed on a CPU, with little storage: to interpret takes its time."""
    like_a_gpu(monkeypatch)
    for module in (graph_search, fused_search):
        monkeypatch.setattr(module, "TOKEN_STEP", 4)
        monkeypatch.setattr(module, "SOURCE_STEP", 2)
    return GraphCache(Tape, 1 << 30)


def asked(model, memory, prompts, limits, rules=(), end=(2, 3), least=0, room=None):
    return SearchRequest.of(model, memory, prompts, end, limits, least, rules, room)


def translating(name, layers=1):
    """A model, its memory and prompts; with few layers, because to interpret takes its time."""
    config = TRANSLATING[name]
    if layers is not None:
        config = replace(config, decoder=replace(config.decoder, layers=layers))
    model = built(config).eval().double()
    return model, model.encode(Tokens.of(SOURCES)), [[1]] * len(SOURCES)


def assert_same(mine, plain):
    assert [one.ids for one in mine] == [one.ids for one in plain]
    assert [one.end for one in mine] == [one.end for one in plain]
    for one, other in zip(mine, plain, strict=True):
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-9)
        assert one.score == pytest.approx(other.score, abs=1e-9)


def assert_the_same_is_found(places, model, memory, request, search):
    mine, plain = run_in_cache(places, model, memory, request, search), scheduler.run_search(model, memory, request, search)
    assert all(type(place.desk) is fused_search.DecoderBuffers for place in places.kept.values())
    assert places.kept
    for found, other in zip(mine, plain, strict=True):
        assert_same(*((found, other) if isinstance(found, list) else ([found], [other])))


@pytest.mark.parametrize(("name", "rules", "room"), [
    ("rotary", (NEVER,), 14), ("post-norm", (), None)])
@torch.no_grad()
def test_greedy_search_gives_the_same(places, name, rules, room):
    model, memory, prompts = translating(name)
    request = asked(model, memory, prompts, LIMITS, rules, least=2 if rules else 0, room=room)
    assert_the_same_is_found(places, model, memory, request, TokenSearch(request, most_probable))


@pytest.mark.parametrize(("name", "rules", "room", "penalty", "nbest"), [
    ("attention", (), None, "mean", 2), ("rotary", (NEVER,), 24, 0.6, 1), ("untied", (), None, "none", 2)])
@torch.no_grad()
def test_beam_search_gives_the_same(places, name, rules, room, penalty, nbest):
    model, memory, prompts = translating(name)
    request = asked(model, memory, prompts, LIMITS, rules, least=2 if rules else 0, room=room)
    assert_the_same_is_found(places, model, memory, request, BeamSearch(request, 2, as_length_penalty(penalty), nbest))


@pytest.mark.parametrize(("name", "beams"), [("learned", 2), ("llama", 1)])
@torch.no_grad()
def test_language_models_with_prompts_of_many_lengths(places, name, beams):
    config = LANGUAGE[name]
    model = built(replace(config, stack=replace(config.stack, layers=1))).eval()
    prompts, limits = [[5], [6, 7, 8]], [4, 3]
    for some in (prompts, [[5], [6]]):  # the second are begun at the desk
        request = asked(model, None, some, limits)
        search = TokenSearch(request, most_probable) if beams == 1 else BeamSearch(request, beams, as_length_penalty("mean"), beams)
        assert_the_same_is_found(places, model, None, request, search)


@torch.no_grad()
def test_recordings_see_other_sources_and_weights(places):
    model, _, prompts = translating("untied")
    for sources, limit in ((SOURCES[:2], 2), ([[6], [9, 4, 4]], 3), ([[8, 8, 5], []], 3)):
        memory = model.encode(Tokens.of(sources))
        for layer in (model.decoder.stack.blocks[0].mixer.layer.key, model.decoder.stack.blocks[0].cross.value):
            layer.weight.mul_(1.5)  # where it lies: nobody is told
        request = asked(model, memory, prompts[:2], limit)
        assert_the_same_is_found(places, model, memory, request, TokenSearch(request, most_probable))
    assert len(places.kept) == 1, "one for all of them"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's
@torch.no_grad()
def test_a_model_that_gives_no_number_is_named(places):
    model, memory, prompts = translating("untied")
    model.decoder.embedding.positions.encoding.table[2] = torch.nan
    request = asked(model, memory, prompts, 4, end=())
    with pytest.raises(ValueError, match="NaN for row 0 after 2 tokens"):
        run_in_cache(places, model, memory, request, TokenSearch(request, most_probable))


@torch.no_grad()
def test_more_tokens_than_there_are_positions_are_refused(places):
    model, memory, prompts = translating("untied")
    request = asked(model, memory, prompts, 40)
    with pytest.raises(ValueError, match="capacity"):
        run_in_cache(places, model, memory, request, TokenSearch(request, most_probable))


@pytest.mark.parametrize(("name", "rules", "reason"), [
    ("additive", (), "the score additive"), ("alibi", (), "bias of position"), ("window", (), "all tokens before"),
    ("bilinear", (), "the score bilinear"), ("seq2seq", (), "stack of blocks"), ("recurrence", (), "all tokens before"),
    ("attention", (NoRepeatNgram(2),), "reads what is written")])
def test_what_is_done_otherwise_says_why(name, rules, reason):
    model, memory, prompts = translating(name, layers=None)
    assert reason in fused_search.why_not_fused(model, TokenSearch(asked(model, memory, prompts, 5, rules), most_probable))


def test_listeners_and_hooks_are_in_the_way():
    model, memory, prompts = translating("attention")
    search = TokenSearch(asked(model, memory, prompts, 5), most_probable)
    assert fused_search.why_not_fused(model, search) is None
    with model.decoder.stack.blocks[0].cross.tap.listen(print):
        assert "listens" in fused_search.why_not_fused(model, search)
    handle = model.output.register_forward_hook(lambda *given: None)
    assert "hooks" in fused_search.why_not_fused(model, search)
    handle.remove()
    assert fused_search.why_not_fused(model, search) is None


@pytest.mark.parametrize("beams", [1, 2])
@torch.no_grad()
def test_rows_that_are_left_move_to_a_smaller_desk(places, beams):
    model, _, _ = translating("untied")
    memory = model.encode(Tokens.of([[5, 6], [8], [9, 10], [7, 5]]))
    request = asked(model, memory, [[1]] * 4, [1, 1, 6, 1], end=())
    search = TokenSearch(request, most_probable) if beams == 1 else BeamSearch(request, beams, as_length_penalty("none"), 1)
    for _ in range(2):
        assert_the_same_is_found(places, model, memory, request, search)
        model.decoder.stack.blocks[0].mixer.layer.value.weight.mul_(-1.5)  # where it lies: the smaller desk sees it too
    assert [place.desk.families for place in places.kept.values()] == [4, 1]


@torch.no_grad()
def test_what_a_desk_takes_from_another_is_what_comes_out_of_it():
    model, memory, _ = translating("untied")
    first, second, plain = (fused_search.DecoderBuffers(model, families=families, width=2, capacity=6, sources=3)
                            for families in (4, 2, 2))
    first.begin(memory)
    first.project()
    for layer in first.layers:
        layer.keys.normal_()
        layer.values.normal_()
    first.logits.normal_()
    first.positions.fill_(4)
    first.table.copy_(torch.arange(8).unsqueeze(-1) // 2 * 2 + torch.randint(0, 2, (8, 6)))  # within families
    families = torch.tensor([2, 0])
    second.take(first, families, 4)
    assert plain.load(first.state(families, 4, 6)) == 4
    plain.put_logits(first.logits[first.rows(families)])
    for one, other in zip(second.layers, plain.layers, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert torch.equal(mine, theirs)
    for name in ("positions", "lengths", "table", "logits"):
        assert torch.equal(getattr(second, name), getattr(plain, name))


@pytest.fixture
def kept(monkeypatch, places):
    """Places that are kept with models, as on a GPU."""
    monkeypatch.setattr(cuda_graph, "graph_capture", lambda: Tape)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1 << 33))
    return graph_cache


def weight_written(model):
    model.decoder.stack.blocks[0].cross.key.weight.mul_(-1.5)


def loaded(model):
    model.load_state_dict({name: part * 1.2 for name, part in model.state_dict().items()})


def loaded_by_assigning(model):
    model.load_state_dict({name: part * 1.2 for name, part in model.state_dict().items()}, assign=True)


def lowered(model):
    model.float()


def swapped(model):
    model.decoder.stack.blocks[0].feed_forward = copy.deepcopy(model.decoder.stack.blocks[0].feed_forward)
    model.decoder.stack.blocks[0].feed_forward.up.weight.mul_(-2.0)


def gained(model):
    """An attribute that is no parameter: the number that keeps a norm from dividing by nothing."""
    model.decoder.stack.blocks[0].around_mixer.norm.eps = 10.0


@pytest.mark.parametrize(("change", "same"), [
    (weight_written, True), (loaded, True), (loaded_by_assigning, False), (lowered, False), (swapped, False),
    (gained, False)])
@torch.no_grad()
def test_a_model_that_has_changed_is_written_with_as_it_is(kept, change, same):
    model, _, _ = translating("untied")
    memory, before, firsts = model.encode(Tokens.of(SOURCES[:1])), kept(model), []
    for changed in (False, False, False, True):  # as it is, recorded, replayed; and after the change
        if changed:
            change(model)
            memory = model.encode(Tokens.of(SOURCES[:1]))
        places = kept(model)
        assert (places is before) == (same or not changed)
        request = asked(model, memory, [[1]], 2, end=())
        search = TokenSearch(request, most_probable)
        mine, plain = run_in_cache(places, model, memory, request, search), scheduler.run_search(model, memory, request, search)
        exact = 1e-9 if model.output.weight.dtype == torch.float64 else 1e-4
        for one, other in zip(mine, plain, strict=True):
            assert one.ids == other.ids
            assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=exact)
        firsts.append(mine[0].log_probabilities)
    assert firsts[0] == firsts[2]
    if change is not lowered:
        assert firsts[2] != pytest.approx(firsts[3], abs=1e-6), "the change is one that matters"


@torch.no_grad()
def test_hooks_stop_the_recordings_and_do_not_spoil_them(kept):
    model, _, _ = translating("untied")
    memory = model.encode(Tokens.of(SOURCES[:1]))
    request = asked(model, memory, [[1]], 2, end=())
    search, places, seen = TokenSearch(request, most_probable), kept(model), []
    for _ in range(2):
        run_in_cache(places, model, memory, request, search)
    recorded = dict(places.kept)
    handle = model.output.register_forward_hook(lambda module, given, made: seen.append(1))
    assert kept(model) is places
    run_in_cache(places, model, memory, request, search)
    assert len(seen) == 3, "a hook is called at each step"
    handle.remove()
    run_in_cache(kept(model), model, memory, request, search)
    assert (len(seen), dict(places.kept)) == (3, recorded)


@torch.no_grad()
def test_other_beams_lengths_and_sources_have_places_of_their_own(kept):
    model, _, _ = translating("untied")
    for beams, limit, source in ((2, 1, [5, 6]), (3, 1, [5, 6]), (2, 4, [5, 6]), (2, 1, [5] * 5)):
        memory = model.encode(Tokens.of([source]))
        request = asked(model, memory, [[1]], limit, end=())
        assert_the_same_is_found(kept(model), model, memory, request, BeamSearch(request, beams, as_length_penalty("none"), 1))
    assert len(kept(model).kept) == 4


@pytest.mark.gpu
@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_on_a_gpu_all_comes_out_the_same(beams):
    for name in ("attention", "rotary", "post-norm", "untied"):
        model = built(TRANSLATING[name]).eval().double().cuda()
        for seed in range(4):  # as it is, recorded, and replayed
            draw = torch.Generator().manual_seed(seed)
            tokens = Tokens(torch.randint(0, 11, (7, 8), generator=draw), torch.randint(0, 9, (7,), generator=draw))
            memory = model.encode(tokens.to("cuda"))
            request = asked(model, memory, [[1]] * 7, torch.randint(1, 11, (7,), generator=draw), (NEVER,),
                            room=(None, 60)[seed % 2])
            search = TokenSearch(request, most_probable) if beams == 1 else BeamSearch(request, beams, as_length_penalty(0.6), 2)
            assert_the_same_is_found(graph_cache(model), model, memory, request, search)
