"""Live searches on a GPU equal the search of each prompt alone: Triton's interpreter, and replayed work for graphs."""

import random
from dataclasses import dataclass, replace

import pytest
import torch

pytest.importorskip("triton")

from interpreting import only_interpreted  # noqa: F401
from tape import Tape, like_a_gpu
from tiny import LANGUAGE, TRANSLATING, built

from regard.decoding import gpu_live_search, gpu_search
from regard.decoding.beam import beam_search
from regard.decoding.constraints import ForbiddenTokens
from regard.decoding.cuda_graph import GraphCache
from regard.decoding.gpu_live_search import GpuLiveSearch
from regard.decoding.sampling import greedy_search
from regard.decoding.scheduler import run_plain_search
from regard.tokens import Tokens


@dataclass(eq=False)
class Joined:
    """A prompt."""

    prompt: list[int]
    max_length: int
    source: list[int]


@pytest.fixture
def cache(monkeypatch):
    """Graphs that are replayed on a CPU, with little storage: the interpreter is slow."""
    like_a_gpu(monkeypatch)
    for module in (gpu_search, gpu_live_search):
        monkeypatch.setattr(module, "TOKEN_STEP", 4)
        monkeypatch.setattr(module, "SOURCE_STEP", 2)
    monkeypatch.setattr(gpu_live_search, "FEW_TOKENS", 2)
    return GraphCache(Tape, 1 << 30)


def one_layer(config):
    name = "decoder" if hasattr(config, "decoder") else "stack"
    return replace(config, **{name: replace(getattr(config, name), layers=1)})


def check(cache, model, encode, beams, prompts, schedule, constraints=()):
    """Prompts join as the schedule says; each gets what it gets alone, or leaves."""
    def prepare(some):
        options = {"prompts": [one.prompt for one in some], "end": 2, "constraints": constraints,
                   "max_length": [one.max_length for one in some]}
        if beams == 1:
            return greedy_search(model, encode(some), **options)
        return beam_search(model, encode(some), **options, beams=beams, nbest=2, length_penalty="mean")

    live, found, waiting = GpuLiveSearch(model, prepare, 12, cache), {}, [*prompts]
    for count, *leaving in schedule:
        joining, waiting = waiting[:count], waiting[count:]
        step = live.step(joining, encode(joining) if joining else None, {prompts[one] for one in leaving})
        found |= dict(step.answered)
    while live.prompts:
        found |= dict(live.step().answered)
    assert not waiting
    gone = {one for _, *leaving in schedule for one in leaving}
    for number, one in enumerate(prompts):
        assert (one in found) != (number in gone)
        if number in gone:
            continue
        search = prepare([one])
        (want,) = run_plain_search(model, encode([one]), search.request, search)
        for mine, theirs in zip(found[one], want if isinstance(want, list) else [want], strict=True):
            assert (mine.ids, mine.end) == (theirs.ids, theirs.end)
            assert mine.log_probabilities == pytest.approx(theirs.log_probabilities, abs=1e-9)
            assert mine.score == pytest.approx(theirs.score, abs=1e-9)
    return live


@pytest.mark.thorough
@torch.inference_mode()
def test_translations(cache):
    rng, beams = random.Random(2), 2
    model = built(one_layer(TRANSLATING["attention"]))
    prompts = [Joined([1], length, [rng.randrange(5, 10) for _ in range(source)])
               for length, source in ((7, 2), (1, 3), (4, 1), (5, 5), (2, 2), (3, 4))]

    def encode(some):
        return model.encode(Tokens.of([one.source for one in some]))

    live = check(cache, model, encode, beams, prompts, [(1,), (1,), (2, 0), (1,), (1,)],
                 (ForbiddenTokens([4]),))
    kept = {key[2]: workspace for key, workspace in cache.workspaces.items() if key[0] == "live"}
    assert set(kept) == {1, 4}  # slots
    assert live._workspace is None
    check(cache, model, encode, beams, prompts[:3], [(3,)], (ForbiddenTokens([4]),))
    assert {id(one) for one in cache.workspaces.values()} == {id(one) for one in kept.values()}


@pytest.mark.thorough
@torch.inference_mode()
def test_prompts_of_several_tokens(cache):
    model = built(one_layer(LANGUAGE["llama"]))
    prompts = [Joined(prompt, length, []) for prompt, length in (([5, 6, 7], 6), ([5], 4), ([8, 9], 3), ([6] * 5, 7))]
    check(cache, model, lambda some: None, 1, prompts, [(2,), (1,), (0,), (1,)])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of NumPy, in which the interpreter computes
@torch.inference_mode()
def test_a_prompt_without_logits_fails_alone(cache):
    model = built(one_layer(LANGUAGE["llama"]))
    model.decoder.embedding.tokens.weight[9] = torch.nan
    prompts = [Joined([5, 6], 3, []), Joined([5, 9], 3, [])]

    def prepare(some):
        return greedy_search(model, None, prompts=[one.prompt for one in some], end=2, max_length=3,
                             constraints=[ForbiddenTokens([9])])

    live, answered, failed = GpuLiveSearch(model, prepare, 12, cache), [], []
    steps = [live.step(prompts)]
    while live.prompts:
        steps.append(live.step())
    for step in steps:
        answered += [prompt for prompt, _ in step.answered]
        failed += [prompt for prompt, _ in step.failed]
    assert (answered, failed) == (prompts[:1], prompts[1:])
