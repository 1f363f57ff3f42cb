"""Sources read in a recording: the same memory, whatever the sizes; and what is read as everywhere."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from problems import assert_close
from tape import Tape, like_a_gpu
from tiny import TRANSLATING, built

from regard.decoding.cuda_graph import (
    MAX_ENCODERS,
    GraphCache,
    encode,
    graph_encode,
    graph_encoder,
    why_no_encoder,
    why_no_source_tokens,
    why_not_encoded,
)
from regard.tokens import Tokens


@pytest.mark.parametrize("name", ["attention", "rotary", "alibi", "untied"])
@torch.no_grad()
def test_what_is_read_in_a_recording_is_what_the_model_reads(monkeypatch, name):
    like_a_gpu(monkeypatch)
    model, places = built(TRANSLATING[name]), GraphCache(Tape, 1 << 30)
    for sources in ([[5, 6, 7], [8], [9, 3]], [[4], [1, 2, 3], [5, 5]], [[1, 2], [9, 8, 7], [6]], [[3, 4, 5, 6]] * 4):
        tokens = Tokens.of(sources)
        mine, plain = graph_encoder(places, model.encoder, tokens)(tokens), model.encode(tokens)
        assert mine.lengths.tolist() == plain.lengths.tolist()
        for one, other, length in zip(mine.states, plain.states, mine.lengths.tolist(), strict=True):
            assert_close(one[:length], other[:length])
    assert len(places.readers) == 1, "one size serves them all"


@torch.no_grad()
def test_a_memory_is_not_written_over_by_the_next(monkeypatch):
    like_a_gpu(monkeypatch)
    model, places = built(TRANSLATING["attention"]), GraphCache(Tape, 1 << 30)
    first = Tokens.of([[5, 6, 7]])
    kept = graph_encoder(places, model.encoder, first)(first)
    before = kept.states.clone()
    graph_encoder(places, model.encoder, first)(Tokens.of([[9, 9, 9]]))
    assert torch.equal(kept.states, before)


@torch.no_grad()
def test_threads_that_share_a_model_take_turns(monkeypatch):
    like_a_gpu(monkeypatch)
    model = built(TRANSLATING["attention"])
    places = GraphCache(lambda work: lambda: (work(), time.sleep(0.002)), 1 << 30)

    @torch.no_grad()
    def same(first):
        tokens = Tokens.of([[first, 6, 7]])
        return torch.allclose(graph_encode(places, model.encoder, tokens).states, model.encode(tokens).states, atol=1e-5)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(same, [4, 5, 9, 10] * 4))


@torch.no_grad()
def test_few_sizes_are_kept():
    model, places = built(TRANSLATING["attention"]), GraphCache(Tape, 1 << 30)
    for count in range(MAX_ENCODERS + 2):
        tokens = Tokens.of([[5] * (32 * count + 1)])
        graph_encoder(places, model.encoder, tokens)
    assert len(places.readers) == MAX_ENCODERS


def test_what_is_read_as_everywhere_says_why():
    model, tokens = built(TRANSLATING["attention"]).eval(), Tokens.of([[5, 6]])
    assert "CPU" in why_not_encoded(model, tokens)
    assert_close(encode(model, tokens).states, model.encode(tokens).states)
    assert why_no_source_tokens(model, tokens) is None
    assert "no encoder" in why_no_source_tokens(object(), tokens)
    assert "no encoder" in why_no_source_tokens(built(TRANSLATING["seq2seq"]).eval(), tokens)
    assert "no encoder" in why_no_source_tokens(built(TRANSLATING["attention"]).train(), tokens)
    assert "left" in why_no_source_tokens(model, Tokens.of([[5, 6], [5]], side="left"))
    assert why_no_encoder(model) is None
    assert "else than to attend" in why_no_encoder(built(TRANSLATING["recurrence"]).eval())
    with model.encoder.stack.blocks[0].mixer.layer.tap.listen(print):
        assert "listens" in why_no_encoder(model)
    model.encoder.register_forward_hook(lambda *given: None)
    assert "hooks" in why_no_encoder(model)


@pytest.mark.gpu
@torch.no_grad()
def test_on_a_gpu_the_same_is_read():
    model = built(TRANSLATING["attention"]).eval().cuda()
    for seed in range(4):
        tokens = Tokens(torch.randint(0, 11, (5, 7), generator=torch.Generator().manual_seed(seed)),
                        torch.tensor([7, 1, 3, 5, 2])).to("cuda")
        mine, plain = encode(model, tokens), model.encode(tokens)
        for one, other, length in zip(mine.states, plain.states, [7, 1, 3, 5, 2], strict=True):
            assert_close(one[:length], other[:length])
