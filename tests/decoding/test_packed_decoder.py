"""Steps in few calls: what they give is what the model's own steps give."""

from dataclasses import replace

import pytest
import torch
from tiny import LANGUAGE, TRANSLATING, built

from regard.decoding import decoder_step as brisking
from regard.decoding import scheduler
from regard.decoding.beam import beam
from regard.decoding.decoder_step import PackedDecoder, packed_decoder, why_no_packed_step
from regard.decoding.sampling import greedy
from regard.kernels import packed_linear as packing
from regard.kernels.packed_linear import packed_linear_layers
from regard.mixer import RowGroups
from regard.tokens import Tokens

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
SOURCES = [[5, 6, 7], [8], [9, 10]]
MODELS = {**{f"translating {name}": config for name, config in TRANSLATING.items()},
          **{f"language {name}": config for name, config in LANGUAGE.items()}}


def served(config):
    """Whether steps of such a model are made here."""
    model = built(config).eval().float()
    with torch.no_grad(), packed_linear_layers(model):
        return why_no_packed_step(model) is None


SERVED = [name for name, config in MODELS.items() if served(config)]


def begun(model, writer, rows, capacity=12, sources=SOURCES):
    memory = model.encode(Tokens.of(sources[:rows])) if hasattr(model, "encode") else None
    return writer.start(memory, rows=rows, capacity=capacity)


def assert_equal(mine, plain):
    torch.testing.assert_close(mine.logits, plain.logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(mine.state.positions, plain.state.positions)


def test_those_of_every_kind_are_served():
    assert {"translating attention", "translating post-norm", "translating rotary", "language learned",
            "language llama", "language qwen2"} <= set(SERVED)


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("alone", [False, True], ids=["threads", "one thread"])
@pytest.mark.parametrize("name", SERVED)
@torch.no_grad()
def test_steps_are_the_same(name, alone, rows, monkeypatch):
    for module in (packing, brisking):
        monkeypatch.setattr(module, "single_threaded", lambda: alone)
    model = built(MODELS[name]).eval().float()
    with packed_linear_layers(model):
        writer = packed_decoder(model)
        assert isinstance(writer, PackedDecoder)
        mine, plain = begun(model, writer, rows), begun(model, model, rows)
        for tokens in torch.randint(5, 10, (5, rows, 1)):
            one, other = writer.step(mine, tokens), model.step(plain, tokens)
            assert_equal(one, other)
            mine, plain = one.state, other.state


@pytest.mark.parametrize("name", ["translating attention", "translating rotary", "language llama"])
@pytest.mark.parametrize("bytes_of_run", [0, 1 << 40], ids=["run by run", "under a mask"])
@torch.no_grad()
def test_row_groups_chunks_and_rows_at_different_positions_are_the_same(name, bytes_of_run, monkeypatch):
    monkeypatch.setattr(brisking, "RUN_BYTES", bytes_of_run)
    model = built(MODELS[name]).eval().float()
    with packed_linear_layers(model):
        writer = packed_decoder(model)
        states = [begun(model, each, 3) for each in (writer, model)]

        def both(ids, lengths=None):
            one, other = (each.step(state, ids, lengths) for each, state in zip((writer, model), states, strict=True))
            assert_equal(one, other)
            states[:] = [one.state, other.state]

        both(torch.randint(5, 10, (3, 2)))
        families = RowGroups(torch.arange(3).repeat_interleave(2), 2, 1, torch.arange(3))
        states[:] = [state.pick(families) for state in states]
        both(torch.randint(5, 10, (6, 1)))
        moved = RowGroups(torch.tensor([1, 0, 3, 3, 4, 4]), 2, 2, reuse_storage=True)
        states[:] = [state.pick(moved) for state in states]
        both(torch.randint(5, 10, (6, 1)))
        both(torch.randint(5, 10, (6, 2)), torch.tensor([1, 2, 2, 1, 1, 2]))
        monkeypatch.setattr(writer.model, "step", None, raising=False)  # the writer makes these steps itself
        for _ in range(2):
            one = writer.step(states[0], ids := torch.randint(5, 10, (6, 1)))
            other = type(model).step(model, states[1], ids)
            assert_equal(one, other)
            states[:] = [one.state, other.state]


@torch.no_grad()
def test_steps_have_the_scale_of_the_layers_and_leave_a_softcap_to_them():
    config = LANGUAGE["llama"]
    for change, packed in ({"scale": 0.9}, True), ({"softcap": 0.5}, False):
        mixer = replace(config.stack.mixer, **change)
        model = built(replace(config, stack=replace(config.stack, mixer=mixer))).eval().float()
        with packed_linear_layers(model):
            writer = packed_decoder(model)
            assert isinstance(writer, PackedDecoder) == packed
            mine = begun(model, writer, 2)
            ids = torch.randint(5, 10, (2, 6))
            for at, want in enumerate(model(Tokens(ids)).unbind(1)):
                step = writer.step(mine, ids[:, at:at + 1])
                torch.testing.assert_close(step.logits.reshape(want.shape), want, rtol=1e-4, atol=1e-5)
                mine = step.state
        plain = built(config).eval().float()
        plain.load_state_dict(model.state_dict())
        assert not torch.allclose(model(Tokens(ids)), plain(Tokens(ids)), atol=1e-4)


@torch.no_grad()
def test_it_makes_the_steps_itself_where_it_can(monkeypatch):
    model = built(TRANSLATING["attention"]).eval().float()
    with packed_linear_layers(model):
        writer = packed_decoder(model)
        state = begun(model, writer, 3)
        monkeypatch.setattr(type(model), "step", None)  # nobody may ask for it
        for _ in range(3):
            state = writer.step(state, torch.full((3, 1), 5)).state
    assert state.positions.tolist() == [3, 3, 3]


@torch.no_grad()
def test_empty_sources_contribute_zeros():
    model = built(TRANSLATING["attention"]).eval().float()
    for sources in ([[5, 6], []], [[], []]):
        with packed_linear_layers(model):
            writer = packed_decoder(model)
            mine, plain = (begun(model, each, 2, sources=sources) for each in (writer, model))
            assert_equal(writer.step(mine, torch.tensor([[5], [6]])), model.step(plain, torch.tensor([[5], [6]])))


@torch.no_grad()
def test_a_full_state_is_an_error_here_too():
    model = built(LANGUAGE["learned"]).eval().float()
    with packed_linear_layers(model):
        writer = packed_decoder(model)
        state = writer.step(begun(model, writer, 1, capacity=1), torch.tensor([[5]])).state
        with pytest.raises(ValueError, match="capacity"):
            writer.step(state, torch.tensor([[5]]))


@pytest.mark.parametrize("name", ["translating attention", "translating post-norm", "language learned"])
@pytest.mark.parametrize("search", [greedy, beam], ids=["greedy", "beam"])
def test_searches_find_the_same(name, search, monkeypatch):
    model = built(MODELS[name]).eval().float()
    memory = model.encode(Tokens.of(SOURCES)) if hasattr(model, "encode") else None
    options = {"prompts": [[1]] * 3, "end": 2, "max_length": [6, 3, 5], **({"beams": 4} if search is beam else {})}
    made = []
    monkeypatch.setattr(scheduler, "packed_decoder", lambda model: made.append(packed_decoder(model)) or made[-1])
    mine = search(model, memory, **options)
    assert [type(one) for one in made] == [PackedDecoder]
    monkeypatch.setattr(scheduler, "packed_decoder", lambda model: model)
    for found, other in zip(mine, search(model, memory, **options), strict=True):
        for one, plain in zip(*((found, other) if search is beam else ([found], [other])), strict=True):
            assert one.ids == plain.ids
            assert one.score == pytest.approx(plain.score, abs=1e-5)


def test_weights_that_change_between_searches_are_seen():
    model = built(TRANSLATING["untied"]).eval().float()
    ids = torch.tensor([[5], [6], [7]])
    for change in (lambda weight: None, lambda weight: weight.mul_(2.0), lambda weight: weight.data.mul_(-1.5)):
        with torch.no_grad():
            for layer in (model.decoder.stack.blocks[0].mixer.layer.value, model.decoder.output):
                change(layer.weight)
            plain = model.step(begun(model, model, 3), ids)
            with packed_linear_layers(model):
                writer = packed_decoder(model)
                assert_equal(writer.step(begun(model, writer, 3), ids), plain)


def hooked(model):
    model.decoder.stack.blocks[0].around_mixer.norm.register_forward_hook(lambda *given: None)


def listened(model):
    model.listening = model.decoder.stack.blocks[0].cross.tap.listen(lambda look: None)  # as long as the model is there
    model.listening.__enter__()


def replaced(model):
    model.decoder.stack.forward = lambda *given: None


def windowed():
    config = TRANSLATING["attention"]
    return replace(config, decoder=replace(config.decoder, mixer=replace(config.decoder.mixer, window=2)))


@pytest.mark.parametrize(("change", "words"), [
    (hooked, "hooks"), (listened, "listener"), (replaced, "replaced"), (lambda model: model.train(), "training mode"),
    (lambda model: model.double(), "not packed")], ids=["hooks", "tap", "forward", "training", "float64"])
@torch.no_grad()
def test_it_says_why_not(change, words):
    model = built(TRANSLATING["attention"]).eval().float()
    change(model)
    with packed_linear_layers(model):
        assert words in why_no_packed_step(model)
        assert packed_decoder(model) is model


@torch.no_grad()
def test_it_says_why_not_of_other_models_and_other_calls():
    model = built(TRANSLATING["attention"]).eval().float()
    assert "not packed" in why_no_packed_step(model)
    with packed_linear_layers(model):
        assert why_no_packed_step(model) is None
        with torch.enable_grad():
            assert "gradients" in why_no_packed_step(model)
        with torch.autocast("cpu", torch.bfloat16):
            assert "autocast" in why_no_packed_step(model)
    other = built(windowed()).eval().float()
    with packed_linear_layers(other):
        assert "causal self-attention" in why_no_packed_step(other)
    assert "neither" in why_no_packed_step(object())
