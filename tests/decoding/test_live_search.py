"""LiveSearch: prompts that join and leave at any time get what they get alone."""

import math
import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from queued import Moving
from tiny import LANGUAGE, TRANSLATING, built
from writers import drawn, keyed

from regard.decoding.beam import beam, beam_search
from regard.decoding.live_search import LiveSearch
from regard.decoding.sampling import greedy, greedy_search, sample, sampling_search
from regard.decoding.scheduler import arrangement
from regard.kernels.packed_linear import packed_linear_layers
from regard.models.contract import Memory
from regard.tokens import Tokens


@dataclass(eq=False)
class Asked:
    """A prompt, with what may differ between the prompts of a batch."""

    prompt: list[int]
    max_length: int
    source: list[int]
    seed: int


def asked(rng, count, longest=1, vocabulary=6):
    def ids(most):
        return [rng.randrange(1, vocabulary) for _ in range(rng.randint(1, most))]

    return [Asked(ids(longest), rng.randint(1, 7), ids(4), rng.randrange(99)) for _ in range(count)]


SEARCHES = {
    "greedy": (greedy_search, greedy, {}),
    "beam": (beam_search, beam, {"beams": 3, "nbest": 2, "length_penalty": "mean"}),
    "groups": (beam_search, beam, {"beams": 4, "nbest": 4, "num_beam_groups": 2}),
    "coverage": (beam_search, beam, {"beams": 3, "coverage_penalty": 0.3}),
    "sampling": (sampling_search, sample, {"num_samples": 1, "temperature": 1.3}),
    "samples": (sampling_search, sample, {"num_samples": 3, "top_k": 4}),
}


def as_list(found):
    return found if isinstance(found, list) else [found]


def options_of(kind, prompts):
    seeds = {"seed": [one.seed for one in prompts]} if kind in ("sampling", "samples") else {}
    return {"prompts": [one.prompt for one in prompts], "max_length": [one.max_length for one in prompts], "end": 0,
            **SEARCHES[kind][2], **seeds}


def run_live(model, encode, kind, prompts, rng, capacity=20):
    """Every prompt joins at a random step."""
    live = LiveSearch(model, lambda some: SEARCHES[kind][0](model, encode(some), **options_of(kind, some)), capacity)
    waiting, found = [*prompts], {}
    while waiting or live.prompts:
        count = rng.choice((0, 0, 1, 2, 3))
        joining, waiting = waiting[:count], waiting[count:]
        answered, failed = live.step(joining, encode(joining) if joining else None)
        assert not failed
        for prompt, results in answered:
            assert prompt not in found
            found[prompt] = results
    return found


@pytest.mark.parametrize("kind", SEARCHES)
def test_each_prompt_gets_what_it_gets_alone(kind):
    function = drawn(6)
    for seed in range(6):
        rng = random.Random(seed)
        prompts = asked(rng, 9, longest=3)
        model = Moving(function)
        keys = {id(one): number for number, one in enumerate(prompts)}

        def encode(some, keys=keys):
            """Sources of different lengths, as the coverage penalty sees them."""
            memory = keyed([keys[id(one)] for one in some])
            lengths = torch.tensor([len(one.source) for one in some])
            return Memory(memory.states.expand(-1, int(lengths.max()), -1), lengths)

        found = run_live(model, encode, kind, prompts, rng)
        for one in prompts:
            (want,) = SEARCHES[kind][1](Moving(function), encode([one]), **options_of(kind, [one]))
            assert [(each.ids, each.end) for each in found[one]] == [(each.ids, each.end) for each in as_list(want)]
            for mine, theirs in zip(found[one], as_list(want), strict=True):
                assert mine.score == pytest.approx(theirs.score, abs=1e-9)
                assert mine.log_probabilities == pytest.approx(theirs.log_probabilities, abs=1e-9)


@pytest.mark.parametrize("name", ["attention", "rotary", "convolution", "recurrence", "seq2seq-attention", "seq2seq"])
@pytest.mark.parametrize("kind", ["greedy", "beam", "samples"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "packed float32"])
@torch.no_grad()
def test_every_model(name, kind, dtype):
    model, rng = built(TRANSLATING[name]).to(dtype), random.Random(name)
    prompts = asked(rng, 7, longest=2)

    def encode(some):
        return model.encode(Tokens.of([one.source for one in some]))

    with packed_linear_layers(model):
        found = run_live(model, encode, kind, prompts, rng)
    assert_alone(model, encode, kind, prompts, found, 1e-9 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("name", ["learned", "llama", "mistral", "convolution", "old"])
@pytest.mark.parametrize("kind", ["greedy", "beam", "samples"])
@torch.no_grad()
def test_every_language_model(name, kind):
    model, rng = built(LANGUAGE[name]).float(), random.Random(name)
    prompts = asked(rng, 7, longest=4)
    with packed_linear_layers(model):
        found = run_live(model, lambda some: None, kind, prompts, rng, capacity=12)
    assert_alone(model, lambda some: None, kind, prompts, found, 1e-5)


def assert_alone(model, encode, kind, prompts, found, within):
    for one in prompts:
        (want,) = SEARCHES[kind][1](model, encode([one]), **options_of(kind, [one]))
        for mine, theirs in zip(found[one], as_list(want), strict=True):
            assert (mine.ids, mine.end) == (theirs.ids, theirs.end)
            assert mine.log_probabilities == pytest.approx(theirs.log_probabilities, abs=within)


@torch.no_grad()
def test_long_prompts_are_read_in_chunks_beside_short_ones(monkeypatch):
    from regard.decoding import live_search

    monkeypatch.setattr(live_search, "PREFILL_CHUNK", 2)
    model = built(LANGUAGE["sinusoidal"])
    prompts = [Asked(ids, 3, [1], 0) for ids in ([1], [1, 2, 3, 4, 5, 6], [2, 3])]
    live = LiveSearch(model, lambda some: greedy_search(model, **options_of("greedy", some)), 9)
    found = dict(live.step(prompts).answered)
    while live.prompts:
        found |= dict(live.step().answered)
    assert_alone(model, lambda some: None, "greedy", prompts, found, 1e-9)


def forever(key, text):
    return [-math.inf, 0.0, -1.0, -2.0]


def test_prompts_leave_before_they_finish_and_make_room():
    model = Moving(forever)
    prompts = [Asked([1], 9, [1], 0) for _ in range(4)]
    live = LiveSearch(model, lambda some: beam_search(model, **options_of("beam", some)), 12)
    live.step(prompts)
    live.step(leaving={prompts[1], prompts[2]})
    assert live.prompts == [prompts[0], prompts[3]]
    assert model.batches[-1] == (6, 1)
    live.step(leaving={*prompts})
    assert (live.prompts, live.rows) == ([], 0)


def test_a_prompt_of_one_token_costs_no_step_of_its_own():
    model = Moving(forever)
    live = LiveSearch(model, lambda some: greedy_search(model, **options_of("greedy", some)), 12)
    live.step([Asked([1], 5, [1], 0)])
    live.step([Asked([2], 5, [1], 0), Asked([1], 5, [1], 0)])
    assert model.batches == [(1, 1), (3, 1)]
    assert [token for _, _, token in live.last_tokens()] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["greedy", "beam", "samples"])
def test_a_prompt_without_logits_fails_alone(kind):
    def function(key, text):
        return [math.nan] * 4 if text[0] == 3 and len(text) == 3 else forever(key, text)

    model = Moving(function)
    good, bad = Asked([1], 4, [1], 0), Asked([3], 4, [1], 0)
    live = LiveSearch(model, lambda some: SEARCHES[kind][0](model, **options_of(kind, some)), 12)
    answered, failed = [], []
    steps = [live.step([good, bad])]
    while live.prompts:
        steps.append(live.step())
    for one in steps:
        answered += one.answered
        failed += one.failed
    assert [prompt for prompt, _ in answered] == [good]
    assert [prompt for prompt, _ in failed] == [bad]
    (want,) = SEARCHES[kind][1](Moving(forever), **options_of(kind, [good]))
    assert [one.ids for one in answered[0][1]] == [one.ids for one in as_list(want)]


@given(st.integers(0, 8), st.data())
def test_few_sequences_move(count, data):
    gone = data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=count)) if count else set()
    new = data.draw(st.integers(0, 5))
    order, places = arrangement(count, gone, new)
    stay = [slot for slot in range(count) if slot not in gone]
    assert sorted(order) == [*stay, *range(count, count + new)]
    assert [order[place] for place in places] == list(range(count, count + new))
    moved = [one for place, one in enumerate(order) if one < count and one != place]
    assert len(moved) <= max(0, len(gone) - new)
    assert set(moved) <= set(stay[len(stay) - len(moved):])  # the last ones
