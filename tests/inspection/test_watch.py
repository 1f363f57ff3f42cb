"""Watching changes no result and records every attention; records are found by name, by call and by row."""

import copy
import pickle
import warnings
from types import SimpleNamespace

import pytest
import tiny
import torch
from torch import nn

import regard
from regard.attention import backends
from regard.attention.look import find_taps
from regard.inspection.recorder import can_record
from regard.inspection.watch import NotRecordedError, parse_bytes
from regard.tokens import PackedTokens, Tokens

SOURCE, TARGET = [[1, 2, 3, 4, 5], [6, 7, 3], [1, 2, 3, 4]], [[1, 2, 3], [4, 5, 6], [7, 2]]
WATCHED = sorted(name for name in tiny.ALL if find_taps(tiny.built(tiny.ALL[name])))


def arguments(name, model):
    """A batch that a model of this group takes."""
    group = name.split()[0]
    if group == "translating":
        return Tokens.of(SOURCE), Tokens.of(TARGET)
    if group == "vision":
        patches = model.patches
        return (torch.randn(2, patches.channels, *patches.size, dtype=torch.float64),)
    return (Tokens.of(SOURCE),)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(tiny.ALL))
def test_results_are_the_same_to_the_last_bit_on_the_same_backends(name, monkeypatch):
    model = tiny.built(tiny.ALL[name])
    given, chosen, choose = arguments(name, model), [], backends.choose_backend
    monkeypatch.setattr(backends, "choose_backend", lambda *asked: chosen.append(found := choose(*asked)) or found)
    plain = model(*given)
    before, chosen[:] = chosen[:], []
    with regard.watch(model) as records:
        watched = model(*given)
    assert torch.equal(watched, plain)
    assert chosen == before
    assert len(records.names()) == len(find_taps(model))
    assert not any(tap.listeners for tap in find_taps(model).values())


@pytest.mark.parametrize("name", WATCHED)
def test_the_weights_are_those_that_were_used(name):
    """Those that the taps give, computed on the spot, step by step where the model steps."""
    model = tiny.built(tiny.ALL[name])
    given = arguments(name, model)
    used = {path: [] for path in find_taps(model)}
    for path, tap in find_taps(model).items():
        tap.listeners.append(lambda look, own=used[path]: own.append(look.weights()))
    with regard.watch(model) as records:
        model(*given)
    for found, steps in zip(records.names(), used.values(), strict=True):
        weights, width = records[found].weights(), max(step.shape[-1] for step in steps)
        padded = [torch.nn.functional.pad(step, (0, width - step.shape[-1])) for step in steps]
        torch.testing.assert_close(weights[..., :width], torch.cat(padded, dim=-2), rtol=1e-12, atol=1e-14)
        assert not weights[..., width:].any()
        assert records[found].entropy().shape == weights.shape[:-1]
        assert records[found].column_sums().shape == (*weights.shape[:-2], weights.shape[-1])
        assert records[found].block_map(2).shape[-1] == -(-weights.shape[-1] // 2)


def test_nothing_is_recorded_before_the_model_runs():
    with regard.watch(tiny.built(tiny.translating())) as records:
        assert records.names() == []
        assert "decoder.1.cross" not in records
        with pytest.raises(NotRecordedError, match="did not run inside the `with` block"):
            records["decoder.1.cross"]


def test_weights_are_computed_only_on_demand(monkeypatch):
    model = tiny.built(tiny.translating())
    with regard.watch(model) as records:
        model(Tokens.of(SOURCE), Tokens.of(TARGET))
    monkeypatch.setattr(regard.Look, "problem", property(lambda look: pytest.fail("it was asked")))
    assert len(records) == 6
    assert isinstance(records["encoder.0.self"], regard.Look)


def test_records_stay_when_training_continues():
    model = tiny.built(tiny.translating("additive"))
    with regard.watch(model) as records:
        loss = model(Tokens.of(SOURCE), Tokens.of(TARGET)).sum()
    before = {name: look.weights().clone() for name, look in records.last.items()}
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    for name, weights in before.items():
        assert torch.equal(records.calls[0][name].weights(), weights)
        assert not records[name].query.requires_grad


@pytest.mark.parametrize("mixer", ["relative", "alibi", "additive", "bilinear"])
def test_parameters_are_copied_when_they_change_and_only_then(mixer):
    model = tiny.built(tiny.language(mixer))
    with regard.watch(model) as records:
        for change in (0.0, 0.0, 1.0):
            with torch.no_grad():
                for parameter in model.parameters():
                    if change:
                        parameter.add_(change)
            model(Tokens.of(SOURCE))
    first, second, third = (records.calls[i]["decoder.0.self"] for i in range(3))
    assert torch.equal(first.weights(), second.weights())
    assert not torch.allclose(first.weights(), third.weights())
    if mixer != "bilinear":
        assert first.bias is second.bias
    if mixer in ("additive", "bilinear"):
        assert first.score.weight is second.score.weight is not third.score.weight


def test_inputs_that_change_later_do_not_change_records():
    layer, x, mask = regard.PlainAttention(4), torch.randn(2, 3, 4), torch.ones(3, 3, dtype=torch.bool)
    with regard.watch(layer) as records:
        layer(x, mask=mask)
    before = records["attention"].weights().clone()
    x.zero_()
    mask[:, 1:] = False
    assert torch.equal(records["attention"].weights(), before)


def watched_twice(model, limit):
    with regard.watch(model, limit=limit) as records:
        model(Tokens.of([SOURCE[0]]), Tokens.of([TARGET[0]]))
        model(Tokens.of([SOURCE[0]]), Tokens.of([TARGET[0]]))
    return records


def test_runs_over_the_limit_are_lost_with_one_warning():
    model = tiny.built(tiny.translating())
    every = 8 * 2 * 4 * 6  # of each of the six: two tensors of 8-byte numbers, 2 heads of 4, one sentence of 3 or 5
    with pytest.warns(RuntimeWarning, match="watch keeps at most") as said:
        records = watched_twice(model, every * 3)
    assert len(said) == 1
    assert '"encoder.0.self" (1 of 2)' in str(said[0].message)
    assert said[0].filename == __file__
    records.calls[0]["encoder.0.self"].weights()
    with pytest.raises(NotRecordedError, match=r'Run 1 of "encoder\.0\.self" was not recorded: it exceeds the limit'):
        records["encoder.0.self"]
    with pytest.raises(KeyError):
        records.calls[1]["encoder.0.self"]


def test_a_run_of_steps_is_kept_whole_or_not_at_all():
    model = tiny.built(tiny.TRANSLATING["seq2seq-attention"])
    one = 8 * (3 * 5 * 8 + 2 * 8) + 3 * 5
    with pytest.warns(RuntimeWarning, match=r'"decoder\.cross" \(1 of 1\)'), regard.watch(model, limit=one) as records:
        model(Tokens.of(SOURCE), Tokens.of(TARGET))
    with pytest.raises(NotRecordedError, match="was not recorded"):
        records["decoder.cross"]


@pytest.mark.parametrize(("limit", "bytes_"), [("2GiB", 2**31), ("500MB", 5 * 10**8), ("1.5 kib", 1536), (7, 7),
                                               ("12", 12), (0, 0)])
def test_limits(limit, bytes_):
    assert parse_bytes(limit) == bytes_


@pytest.mark.parametrize("limit", ["2 gigs", "-1GB", -1, True, None, 1.5, ""])
def test_no_limits(limit):
    with pytest.raises(ValueError, match=r"`limit` must be a number of bytes, or a size such as"), regard.watch(
            regard.PlainAttention(2), limit=limit):
        pass


def test_only_models_and_tasks_are_watched():
    for wrong in ("model", regard.PlainAttention, None):
        with pytest.raises(ValueError, match="`model` must be a model, a layer or a task"), regard.watch(wrong):
            pass


def test_nested_watches_record_their_own_runs():
    model = tiny.built(tiny.language())
    with regard.watch(model) as outer:
        model(Tokens.of(SOURCE))
        with regard.watch(model.decoder.stack) as inner:
            model(Tokens.of(SOURCE))
        model(Tokens.of(SOURCE))
    assert (len(outer.calls), len(inner.calls)) == (3, 1)
    assert torch.equal(inner["0.self"].weights(), outer["decoder.0.self"].weights())


def test_an_exception_ends_the_watch_and_what_ran_before_is_seen():
    model = tiny.built(tiny.translating())
    with pytest.raises(ValueError, match="`memory` must be"), regard.watch(model, limit=400) as records:
        model.start([model.encode(Tokens.of(SOURCE)), None][1], capacity=1)
    assert not any(tap.listeners for tap in find_taps(model).values())
    assert records.names()[0] == "encoder.0.self"


def test_a_copy_of_a_watched_model_is_not_watched():
    model = tiny.built(tiny.language())
    with regard.watch(model) as records:
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert not any(tap.listeners for tap in find_taps(other).values())
            assert torch.equal(other(Tokens.of(SOURCE)), model(Tokens.of(SOURCE)))
        assert set(model.state_dict()) == set(other.state_dict())
    assert len(records.calls) == 2


def test_activation_checkpointing_is_recorded_once():
    stack = tiny.stack(activation_checkpointing=True)
    model = tiny.built(tiny.LanguageModelConfig(vocab_size=13, width=8, stack=stack)).train()
    plain = torch.autograd.grad(model(Tokens.of(SOURCE)).sum(), [*model.parameters()])
    with regard.watch(model) as records:
        watched = torch.autograd.grad(model(Tokens.of(SOURCE)).sum(), [*model.parameters()])
    assert len(records.calls) == 1
    assert all(map(torch.equal, watched, plain))


def test_packed_sequences_are_rows():
    model = tiny.built(tiny.translating("rotary"))
    with regard.watch(model) as packed:
        model(PackedTokens.of(SOURCE), PackedTokens.of(TARGET))
    with regard.watch(model) as padded:
        model(Tokens.of(SOURCE), Tokens.of(TARGET))
    for row in (0, 1, -1):
        for one, other in zip(packed.row(row).values(), padded.row(row).values(), strict=True):
            torch.testing.assert_close(one.weights(), other.weights(), rtol=1e-11, atol=1e-13)


class TestCompiled:
    """What is compiled cannot be watched, and says so; it computes what it always does."""

    def test_a_compiled_model_is_refused(self):
        model = tiny.built(tiny.language())
        in_place = copy.deepcopy(model)
        in_place.compile(backend="eager")
        for one in (torch.compile(model, backend="eager"), in_place):
            with pytest.raises(ValueError, match="`model` must be a model that is not compiled"), \
                    regard.watch(one):
                pass

    def test_a_compiled_function_around_it_runs_and_nothing_is_seen(self):
        model = tiny.built(tiny.language())
        x = Tokens(torch.tensor([[1, 2, 3]]))
        run = torch.compile(lambda ids: model(Tokens(ids)), backend="eager", fullgraph=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = run(x.ids)
            with regard.watch(model) as records:
                torch.testing.assert_close(run(x.ids), expected)
            torch.testing.assert_close(run(x.ids), expected)
        with pytest.raises(NotRecordedError, match="it ran in compiled code, as a CUDA graph"):
            records["decoder.0.self"]


@pytest.mark.parametrize("name", ["attention", "additive", "alibi", "lstmn", "seq2seq-attention"])
def test_lower_precision_is_watched_as_it_runs(name):
    model = tiny.built(tiny.TRANSLATING[name]).float()
    given = Tokens.of(SOURCE), Tokens.of(TARGET)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(*given)
        with regard.watch(model) as records:
            watched = model(*given)
    assert torch.equal(watched, plain)
    for look in records.last.values():
        assert look.query.dtype == torch.bfloat16
        sums = look.weights().float().sum(-1)
        assert ((sums - 1).abs() < 0.02).logical_or(sums == 0).all() or name == "additive"


class Kernel(nn.Module):
    """A module around a softmax."""

    def forward(self, x):
        return (x @ x.mT).unsqueeze(1).softmax(-1) @ x.unsqueeze(1)


@pytest.mark.parametrize(("device", "recording", "expected"), [
    ("cpu", True, True), ("cuda", False, True), ("cuda", True, False)])
def test_nothing_is_recorded_during_cuda_graph_capture(device, recording, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)
    assert can_record(SimpleNamespace(is_cuda=device == "cuda")) is expected


def test_nothing_is_recorded_in_a_backward_pass():
    found = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: found.append(can_record(gradient)))
    y.sum().backward()
    assert found == [False]
    assert can_record(x)


@pytest.mark.parametrize("model", [regard.Attention(4, heads=2), nn.MultiheadAttention(4, 2), Kernel()],
                         ids=lambda model: type(model).__name__)
def test_torch_func_runs_unchanged_and_unrecorded(model):
    x = torch.randn(2, 3, 4)

    def loss(x):
        return (model(x, x, x)[0] if isinstance(model, nn.MultiheadAttention) else model(x)).sum()

    plain = torch.func.grad(loss)(x)
    with regard.watch(model) as records:
        assert torch.equal(torch.func.grad(loss)(x), plain)
    assert records.names() == []


def test_nothing_is_recorded_during_compilation(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not can_record(torch.ones(1))
