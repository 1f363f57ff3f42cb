"""The serving engine with CUDA graphs: on a GPU under load, and on a CPU with replayed work in place of graphs."""

import threading
from contextlib import nullcontext
from dataclasses import replace

import ending
import pytest
import texting
import torch

pytest.importorskip("triton")

from interpreting import only_interpreted  # noqa: F401
from tape import Tape, like_a_gpu

from regard.decoding import gpu_live_search, gpu_search
from regard.decoding.cuda_graph import GraphCache
from regard.decoding.gpu_live_search import GpuLiveSearch
from regard.decoding.live_search import LiveSearch
from regard.serving.engine import EngineCore, ServingEngine
from regard.tasks.search import GREEDY, Beam, Sampling

TEXTS = [source for source, _ in texting.pairs()]


@pytest.mark.thorough
def test_texts_join_and_leave_the_slots_of_graphs(monkeypatch):
    like_a_gpu(monkeypatch)
    for module in (gpu_search, gpu_live_search):
        monkeypatch.setattr(module, "TOKEN_STEP", 4)
    monkeypatch.setattr(gpu_live_search, "FEW_TOKENS", 2)
    monkeypatch.setattr("regard.serving.text_jobs.MIN_CAPACITY", 8)
    cache = GraphCache(Tape, 1 << 30)
    monkeypatch.setattr(gpu_live_search, "graph_cache", lambda model: cache)
    monkeypatch.setattr("regard.serving.engine.packed_linear_layers", nullcontext)  # it leaves models on a GPU alone
    monkeypatch.setattr(gpu_search, "why_not", lambda model, request, search: gpu_search.why_no_gpu_state(search))
    task = ending.translator(9.0)
    core = EngineCore(task, 99, None, lambda: 0.0)
    core.served.on_gpu = True
    short = Beam(beams=2, max_length=4)
    asked = [(TEXTS[:1], short, {}), (TEXTS[1:2], short, {"prefix": "Le"}), (TEXTS[2:4], short, {}),
             (TEXTS[4:5], Sampling(max_length=4), {})]
    tickets, kinds, made = [], [], core.served.live_search
    core.served.live_search = lambda row: kinds.append(made(row)) or kinds[-1]
    with torch.inference_mode():
        while not tickets or core.batches or core.queue or len(tickets) < len(asked):
            if len(tickets) < len(asked):
                texts, strategy, options = asked[len(tickets)]
                tickets.append(core.submit(core.served.jobs(texts, strategy, **options), None, None))
            core.turn()
    assert {type(one) for one in kinds} == {GpuLiveSearch, LiveSearch}
    for ticket, (texts, strategy, options) in zip(tickets, asked, strict=True):
        for one, want in zip(ticket.result(0), task.search(texts, strategy, **options), strict=True):
            assert one.ids == want.ids
            assert one.log_probabilities == pytest.approx(want.log_probabilities, abs=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["translator", "completer"])
def test_results_under_load_are_those_of_the_plain_call(name):
    task = ending.translator(9.0) if name == "translator" else texting.completer(of=texting.tokenizer)
    task.model.to(device="cuda", dtype=torch.float32)
    strategies = [replace(GREEDY, max_length=20), Beam(beams=4, nbest=2, max_length=30),
                  Sampling(max_length=20, seed=3), Beam(beams=3, max_length=200, no_repeat_ngram_size=3)]
    asked, found = [(TEXTS[number % 50], strategies[number % len(strategies)]) for number in range(160)], {}

    def client(first):
        for number in range(first, len(asked), 16):
            text, strategy = asked[number]
            found[number] = engine.submit([text], strategy).result()

    with ServingEngine(task) as engine:
        clients = [threading.Thread(target=client, args=(first,)) for first in range(16)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
    for number, (text, strategy) in enumerate(asked):
        (mine,), (want,) = found[number], task.search([text], strategy)
        assert mine.text == want.text
        assert mine.log_probabilities == pytest.approx(want.log_probabilities, abs=1e-4)
