"""The maps of RWKV: M times the values is what the recurrence computed, for every layer, direction and padding."""

import base64

import numpy as np
import pytest
import torch
from tiny import LANGUAGE, READING, SOURCE, TARGET, TRANSLATING, built, stack

import regard
from regard.inspection.page import document
from regard.inspection.records import MixerMap
from regard.models.encoder_decoder import EncoderConfig
from regard.rwkv import time_mix, wkv

LENGTHS = (6, 3)


def assert_close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def padded(side, top=SOURCE):
    return regard.Tokens.of([torch.randint(top, (count,)) for count in LENGTHS], side)


@pytest.fixture
def runs(monkeypatch):
    """What each recurrence read and computed, in order: (arguments, result)."""
    found = []

    def recorded(compute):
        def record(*arguments, **options):
            y, state = compute(*arguments, **options)
            found.append((arguments, y))
            return y, state

        return record

    for name in ("wkv4", "wkv7_chunked"):
        monkeypatch.setattr(time_mix, name, recorded(getattr(wkv, name)))
    return found


@pytest.mark.parametrize("side", ["right", "left"])
def test_version_7_is_the_map_times_the_values(runs, side):
    model = built(LANGUAGE["rwkv7"])
    tokens = padded(side)
    with regard.watch(model) as records:
        model(tokens)
    assert records.names() == ["decoder.0.self", "decoder.1.self"]
    for name, ((inputs, _), y) in zip(records.names(), runs, strict=True):
        M = records[name]
        assert isinstance(M, MixerMap)
        there = tokens.present.matrix(1, 6)[:, 0]
        for b in range(2):
            assert_close((M.weights()[b] @ inputs.v[b])[:, there[b]], y[b][:, there[b]])
            own = wkv.WKV7Inputs(*(part[b:b + 1, :, there[b]] for part in inputs))
            alone = records.row(b)[name]
            assert_close(alone.weights() @ own.v[0], wkv.wkv7_recurrent(own)[0][0])
            assert_close(alone.bonus, M.bonus[b][:, there[b]])
        assert (M.weights() < 0).any()
    with pytest.raises(ValueError, match="every head"):
        records["decoder.0.self"].channels()


def test_version_4_is_the_map_times_the_values(runs):
    model, tokens = built(LANGUAGE["rwkv4"]), padded("left")
    with regard.watch(model) as records:
        model(tokens)
    for name, ((_, v, *_), y) in zip(records.names(), runs, strict=True):
        M = records[name].channels()
        there = tokens.present.matrix(1, 6)[:, 0]
        assert_close(torch.einsum("bcti,bic->btc", M, v)[there], y[there])
        assert_close(M.sum(-1)[:, 0], there.double())
        assert_close(records[name].weights(), M.mean(1, keepdim=True))
        alone = records.row(1)[name]
        assert_close(alone.channels(), M[1][:, there[1]][..., there[1]])
        assert_close(alone.weights()[0], alone.channels().mean(0))


@pytest.mark.parametrize("name", ["rwkv4", "rwkv7"])
def test_an_encoder_has_a_map_for_each_direction(runs, name):
    model = built(EncoderConfig(vocab_size=SOURCE, width=8, embedding=READING["encoder"].embedding, stack=stack(name)))
    with regard.watch(model) as records:
        model(padded("right"))
    assert records.names() == [f"encoder.{layer}.{way}" for layer in range(2) for way in ("forward", "backward")]
    for layer, (arguments, y) in zip(records.names(), runs, strict=True):
        found = records.row(1)[layer]
        M = found.channels() if name == "rwkv4" else found.weights()
        backward = layer.endswith("backward")
        assert (M.tril(-1) if backward else M.triu(1)).eq(0).all()
        v, y = (arguments[1][1].T.unsqueeze(1), y[1].T.unsqueeze(1)) if name == "rwkv4" else (arguments[0].v[1], y[1])
        v, y = (part.flip(-1 if name == "rwkv4" else -2) if backward else part for part in (v, y))
        if name == "rwkv4":
            assert_close((M @ v[..., :3].mT).mT, y[..., :3])
        else:
            assert_close(M @ v[:, :3], y[:, :3])


def test_translators_have_maps_and_cross_attention():
    model = built(TRANSLATING["rwkv7"])
    with regard.watch(model) as records:
        model(padded("right"), padded("right", TARGET))
    assert records.names() == ["encoder.0.forward", "encoder.0.backward", "encoder.1.forward", "encoder.1.backward",
                               "decoder.0.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross"]
    trace = records.trace(1)
    assert {(one.name, one.queries, one.keys) for one in trace.attentions} >= {
        ("encoder.0.forward", "source", "source"), ("decoder.1.self, bonus", "target", "target"),
        ("decoder.1.cross", "target", "source")}


def test_watching_changes_nothing_and_steps_are_not_recorded():
    model, tokens = built(LANGUAGE["rwkv7"]), padded("right")
    with torch.no_grad():
        want = model(tokens)
        with regard.watch(model) as records:
            assert torch.equal(model(tokens), want)
            model.step(model.start(rows=2, capacity=6), tokens.ids)
    assert len(records.calls) == 1


def test_a_trace_names_what_is_shown_and_is_saved(tmp_path):
    for name, expected in (("rwkv4", ["decoder.0.self, mean over channels", "decoder.1.self, mean over channels"]),
                           ("rwkv7", ["decoder.0.self, bonus", "decoder.0.self", "decoder.1.self, bonus",
                                      "decoder.1.self"])):
        model = built(LANGUAGE[name])
        with regard.watch(model) as records:
            model(padded("right"))
        trace = records.trace(1, text=["a", "b", "c"])
        assert [one.name for one in trace.attentions] == expected
        trace.save(tmp_path / f"{name}.safetensors")
        again = regard.Trace.load(tmp_path / f"{name}.safetensors")
        for mine, other in zip(again.attentions, trace.attentions, strict=True):
            torch.testing.assert_close(mine.look.weights(), other.look.weights())
    bonus = trace.attentions[0].look.weights()
    assert torch.equal(bonus, torch.diag_embed(bonus.diagonal(dim1=-2, dim2=-1)))
    (table,) = document.embedded_document([trace])["traces"]
    upper = np.frombuffer(base64.b64decode(table["attentions"][1]["data"]["values"]), "u1").reshape(-1, 3)
    shown = np.pad(upper, ((0, 0), (1, 0))).view("<f4")  # float32 without the lowest byte
    assert shown.min() < 0 < shown.max()  # which the page shows on a diverging scale
