"""Encoders without padding: their states are those of the model, whatever lengths the sources have."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import READING, TRANSLATING, built

from regard.decoding import packed_encoder as packing
from regard.decoding.packed_encoder import PackedEncoder, chunks, packed_encoder, why_no_packed_encoder
from regard.kernels.packed_linear import packed_linear_layers
from regard.tokens import Tokens

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
SOURCES = [[5, 6, 7], [8], [9, 10], [], [7, 7, 6, 5, 8], [4, 5], [*[5, 6, 7, 8] * 4], [9] * 17, [4, 9] * 20]


def float_model(name):
    return built(TRANSLATING[name]).eval().float()


def encodes(name):
    with torch.no_grad(), packed_linear_layers(model := float_model(name)):
        return packed_encoder(model) is not None


ENCODED = [name for name in TRANSLATING if encodes(name)]


def assert_same_states(memory, want):
    assert memory.lengths.tolist() == want.lengths.tolist()
    for mine, states, length in zip(memory.states, want.states, want.lengths.tolist(), strict=True):
        torch.testing.assert_close(mine[:length], states[:length], rtol=1e-5, atol=1e-5)
        assert not mine[length:].any()


def test_the_usual_transformers_are_encoded():
    assert {"attention", "rotary", "gated", "post-norm", "untied", "beside"} <= set(ENCODED)


@pytest.mark.parametrize("chunk_tokens", [1, 20, 10**6])
@pytest.mark.parametrize("name", ENCODED)
@torch.no_grad()
def test_states_are_those_of_the_model(name, chunk_tokens, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK_TOKENS", chunk_tokens)
    model = float_model(name)
    with packed_linear_layers(model):
        encoder = packed_encoder(model)
        for sources in (SOURCES, SOURCES[:1], SOURCES[1:2], [[], [5]]):
            tokens = Tokens.of([row[:model.encoder.embedding.limit] for row in sources])
            assert_same_states(encoder.encode(tokens), model.encode(tokens))


@torch.no_grad()
def test_rows_without_lengths_and_padding_on_the_left():
    model = float_model("attention")
    with packed_linear_layers(model):
        encoder = packed_encoder(model)
        left = Tokens.of(SOURCES[:3], side="left")
        assert_same_states(encoder.encode(left), model.encode(left))
        full = Tokens(torch.randint(4, 11, (3, 5)))
        torch.testing.assert_close(encoder.encode(full).states, model.encode(full).states, rtol=1e-5, atol=1e-5)
        assert encoder.encode(full).lengths is None
        assert encoder.encode(Tokens.of([[], []])).states.shape == (2, 0, model.encoder.width)


@torch.no_grad()
def test_the_model_itself_is_not_called(monkeypatch):
    model = float_model("attention")
    with packed_linear_layers(model):
        encoder = packed_encoder(model)
        monkeypatch.setattr(type(model.encoder), "encode", None)
        assert encoder.encode(Tokens.of(SOURCES)).states.isfinite().all()


@torch.no_grad()
def test_nan_of_a_source_stays_in_its_row():
    model = float_model("untied")
    model.encoder.embedding.tokens.weight[4] = math.nan
    sources = [[5, 6, 7], [8, 4, 9], [9, 10, 5]]
    with packed_linear_layers(model):
        states = packed_encoder(model).encode(Tokens.of(sources)).states
        want = model.encode(Tokens.of(sources)).states
    assert [bool(row.isnan().any()) for row in states] == [False, True, False]
    torch.testing.assert_close(states[[0, 2]], want[[0, 2]])


@torch.no_grad()
def test_ids_out_of_range_are_named():
    model = float_model("attention")
    with packed_linear_layers(model), pytest.raises(ValueError, match=r"`ids`.*99"):
        packed_encoder(model).encode(Tokens.of([[5, 99]]))


def test_it_says_why_not_of_other_models_and_other_calls():
    model = float_model("attention")
    with torch.no_grad():
        assert "packed" in why_no_packed_encoder(model)  # outside of `packed_linear_layers`
        with packed_linear_layers(model):
            assert isinstance(packed_encoder(model), PackedEncoder)
            model.encoder.stack.blocks[0].register_forward_hook(lambda *args: None)
            assert "hooks" in why_no_packed_encoder(model)
        for name, word in (("convolution", "mixer"), ("window", "mask"), ("alibi", "bias"), ("additive", "score"),
                           ("seq2seq", "EncoderDecoder")):
            with packed_linear_layers(other := float_model(name)):
                assert word in why_no_packed_encoder(other), name
        front = READING["front"]
        with packed_linear_layers(other := built(replace(front)).eval().float()):
            assert why_no_packed_encoder(other) is not None
    for replaced in (lambda model: model, lambda model: model.encoder):
        with torch.no_grad(), packed_linear_layers(model := float_model("attention")):
            replaced(model).encode = lambda tokens: None
            assert "replaced" in why_no_packed_encoder(model)
    with packed_linear_layers(model := float_model("attention")):
        assert "gradients" in why_no_packed_encoder(model)


@given(lengths=st.lists(st.integers(0, 40), max_size=20), chunk_tokens=st.integers(1, 60))
def test_chunks_have_every_token_once(lengths, chunk_tokens):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "CHUNK_TOKENS", chunk_tokens)
        found = [*chunks(torch.tensor(lengths, dtype=torch.long))]
    tokens = [(row, at) for chunk in found for row, at in zip(chunk.rows.tolist()[:chunk.tokens],
                                                             chunk.positions.tolist()[:chunk.tokens], strict=True)]
    assert sorted(tokens) == [(row, at) for row, length in enumerate(lengths) for at in range(length)]
    for chunk in found:
        assert chunk.tokens <= chunk_tokens or len({*chunk.rows.tolist()}) == 1
        for group in chunk.groups:  # the last view ends inside of the rows
            keys = group.length if group.mask is None else group.mask.shape[-1]
            assert keys % packing.round_up(1) == 0
            assert group.start + (group.sources - 1) * group.length + keys <= len(chunk.rows)
            if group.mask is not None:
                assert (group.mask == 0).sum() == group.length
