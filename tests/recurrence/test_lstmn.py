"""LSTMN: the oracle's step, one token after another, for its numbers; the heart's own answers for its looks.

What it shares with every mixer (steps, padding, causality, states) is in `test_mixer`.
"""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard.attention.look import find_taps
from regard.recurrence.lstmn import LSTMN
from regard.reference import recurrence as oracle

SCORES = ("additive", "bilinear", "dot", "scaled_dot", "scaled_dot_d", "function")


def make(width=4, input_width=3, attention_width=5, **options):
    """An LSTMN in float64 with large random parameters, so that its weights are far from even."""
    if options.get("score") == "function":
        options["score"] = lambda query, key: torch.sin(query @ key.mT) * 3.0
    made = LSTMN(width, input_width=input_width, attention_width=attention_width, **options).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def tokens(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def truth(made, row):
    """The oracle over one row (N, input width): hidden states (N, D), and the weights of every step."""
    parameters = {name: tensor.detach().numpy() for name, tensor in made.named().items()}
    hidden, memory, summary, weights = [], [], np.zeros(made.width), []
    for x in row.numpy():
        h, c, summary, s = oracle.lstmn_step(x, hidden, memory, summary, **parameters)
        hidden.append(h), memory.append(c), weights.append(torch.from_numpy(s))
    return torch.from_numpy(np.array(hidden).reshape(-1, made.width)), weights


def slowly(made, row):
    """The same for any score and normaliser: the equations with the whole tape projected anew for every token."""
    hidden, memory = row.new_zeros(0, made.width), row.new_zeros(0, made.width)
    summary = row.new_zeros(made.width)
    for x in row:
        query = made.query_input(x) + made.query_summary(summary)
        weights = regard.attention_weights(query[None, None], made.key(hidden)[None], score=made.score,
                                           normalize=made.normalize)[0, 0]
        summary = weights @ hidden
        h, c = made.cell(x[None], (summary[None], (weights @ memory)[None]))
        hidden, memory = torch.cat([hidden, h]), torch.cat([memory, c])
    return hidden


def assert_close(ours, theirs, tolerance=1e-12):
    assert ours.shape == theirs.shape
    assert torch.isfinite(ours).all()
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# ---- the numbers -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 6))
def test_it_is_the_oracles(width, input_width, attention_width, count):
    made, x = make(width, input_width, attention_width), tokens(2, count, input_width)
    output = made(x)
    for ours, row in zip(output, x, strict=True):
        assert_close(ours, truth(made, row)[0])


@pytest.mark.parametrize("normalize", ["softmax", "relu", "relu_sum", "sigmoid"])
@pytest.mark.parametrize("score", SCORES)
def test_any_score_and_normalizer_serves(score, normalize):
    made, x = make(score=score, normalize=normalize), tokens(2, 6, 3)
    for ours, row in zip(made(x), x, strict=True):
        assert_close(ours, slowly(made, row))


@pytest.mark.parametrize("backend", ["exact", "tiled"])
def test_every_backend_gives_the_same(backend):
    x = tokens(2, 6, 3)
    made = make(backend=backend)
    assert_close(made(x)[0], truth(made, x[0])[0])


@pytest.mark.thorough
@pytest.mark.parametrize("score", ["additive", "bilinear", "scaled_dot"])
def test_gradients(score):
    made, x = make(2, 2, 2, score=score), tokens(2, 4, 2).requires_grad_()
    names, parameters = zip(*made.named_parameters(), strict=True)
    present = regard.Padding([4, 2], side="left")

    def function(x, *given):
        return torch.func.functional_call(made, dict(zip(names, given, strict=True)), (x, present))

    assert torch.autograd.gradcheck(function, (x, *parameters))


def test_gradients_of_gradients():
    made, x = make(2, 2, 2), tokens(1, 3, 2).requires_grad_()
    assert torch.autograd.gradgradcheck(made, (x,))


def test_gradients_are_those_of_the_equations():
    made, x = make(), tokens(1, 7, 3)
    parameters = list(made.parameters())
    ours = torch.autograd.grad(made(x).square().sum(), parameters)
    theirs = torch.autograd.grad(slowly(made, x[0]).square().sum(), parameters)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_is_as_precise_as_the_equations(dtype):
    low = make().to(dtype)
    exact, x = copy.deepcopy(low).double(), tokens(1, 8, 3).to(dtype)
    right = exact(x.double())[0]
    error, allowed = ((result.double() - right).abs().max() for result in (low(x)[0], slowly(low, x[0])))
    assert error <= 2 * allowed + 4 * torch.finfo(dtype).eps


def test_an_lstmn_that_sees_only_one_state_is_an_lstm_for_two_tokens():
    made, x = make(), tokens(2, 2, 3)
    state = made.cell.initial(2)
    for t in range(2):
        state = made.cell(x[:, t], state)
        assert_close(made(x)[:, t], state[0])


# ---- cost ------------------------------------------------------------------------------------------------------------


def test_keys_are_projected_once():
    made, rows = make(), []
    handle = made.key.register_forward_hook(lambda _, given, __: rows.append(given[0].shape[:-1].numel()))
    made(tokens(2, 9, 3))
    assert sum(rows) == 2 * 9
    rows.clear()
    _, tape = made.step(tokens(2, 4, 3), made.start(2, 9))
    made.step(tokens(2, 5, 3), tape)
    handle.remove()
    assert sum(rows) == 2 * 9


def test_training_keeps_one_tape_and_not_one_a_token():
    """What the backward pass holds grows with the tokens, not with their square; `exact` dot products copy nothing."""
    made, held = make(8, 8, 8, score="dot", backend="exact"), {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    sizes = []
    for count in (20, 40):
        held.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = made(tokens(4, count, 8))
        sizes.append(sum(held.values()))
        del output
    assert sizes[1] < 2.5 * sizes[0]  # it would be 4 times as much


# ---- looks -----------------------------------------------------------------------------------------------------------


def looks(made, run):
    seen = []
    with made.tap.listen(seen.append):
        result = run()
    return seen, result


def test_the_tap_hands_out_the_weights_of_every_step():
    made, x = make(), tokens(2, 5, 3)
    seen, output = looks(made, lambda: made(x))
    assert len(seen) == 5
    assert torch.equal(output, made(x))  # it watches, and changes nothing
    for b in range(2):
        for look, weights in zip(seen, truth(made, x[b])[1], strict=True):
            assert_close(look.weights()[b, 0, 0], weights)
            assert not look.query.requires_grad
    assert find_taps(nn.ModuleDict({"a": made})) == {"a": made.tap}


@pytest.mark.parametrize("case", ["right", "left", "step"])
def test_looks_do_not_see_padding(case):
    made, x, lengths = make(), tokens(2, 5, 3), torch.tensor([5, 3])
    if case == "step":
        seen, _ = looks(made, lambda: made.step(x, made.start(2, 5), lengths=lengths))
    else:
        seen, _ = looks(made, lambda: made(x, regard.Padding(lengths, case)))
    first = 2 if case == "left" else 0
    for t, weights in enumerate(truth(made, x[1, first:first + 3])[1]):
        assert_close(seen[first + t].weights()[1, 0, 0, first:], weights)
    for look in seen:
        weights = look.weights()[1, 0, 0]
        assert (weights[:first] == 0).all()
        assert (weights[first + 3:] == 0).all()


def test_looks_of_steps_are_those_of_all_at_once():
    made, x = make(), tokens(2, 5, 3)

    def run():
        tape = made.start(2, 8)
        for first, last in ((0, 1), (1, 4), (4, 5)):
            _, tape = made.step(x[:, first:last], tape)

    with torch.no_grad():
        seen, _ = looks(made, run)
        expected, _ = looks(made, lambda: made(x))
    for ours, theirs in zip(seen, expected, strict=True):
        assert_close(ours.weights(), theirs.weights())


def test_dropout_is_for_training_only():
    made, x = make(dropout=0.5), tokens(2, 6, 3)
    assert_close(made.eval()(x)[0], truth(made, x[0])[0])
    made.train()
    assert not torch.equal(made(x), made(x))


# ---- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@given(st.lists(st.integers(0, 4), max_size=4))
def test_gradients_flow_through_steps(sizes):
    """Also through tapes that were written over by the steps after."""
    made, x = make(), tokens(2, sum(sizes) + 1, 3)
    tape, outputs = made.start(2, sum(sizes) + 1), []
    for chunk in x.split([*sizes, 1], 1):
        output, tape = made.step(chunk, tape)
        outputs.append(output)
    parameters = list(made.parameters())
    ours = torch.autograd.grad(torch.cat(outputs, 1).square().sum(), parameters, allow_unused=True)
    theirs = torch.autograd.grad(made(x).square().sum(), parameters, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(torch.zeros(1) if a is None else a, torch.zeros(1) if b is None else b)


def test_gradients_stop_where_a_tape_is_detached():
    made, x = make(), tokens(1, 4, 3)
    first, last = x[:, :2].clone().requires_grad_(), x[:, 2:].clone().requires_grad_()
    _, tape = made.step(first, made.start(1, 4))
    output, _ = made.step(last, tape.detach())
    output.sum().backward()
    assert first.grad is None
    assert (last.grad != 0).any()
    assert_close(output[0].detach(), truth(made, x[0])[0][2:])


def test_a_step_consumes_its_tape_and_a_copy_is_kept():
    made, x = make(), tokens(2, 5, 3)
    with torch.no_grad():
        _, tape = made.step(x[:, :3], made.start(2, 5))
        kept, before = tape.copy(), tape.cache.value.clone()
        first, after = made.step(x[:, 3:], tape)
        assert after.cache.value.data_ptr() == tape.cache.value.data_ptr()  # no storage is made in a step
        assert not torch.equal(tape.cache.value, before)
        assert torch.equal(kept.cache.value, before)
        assert torch.equal(made.step(x[:, 3:], kept)[0], first)


def test_a_row_goes_into_a_tape_of_another_capacity():
    made, x = make(), tokens(3, 4, 3)
    _, long = made.step(x, made.start(3, 20))
    _, short = made.step(x[:1, :2], made.start(1, 5))
    output, tape = made.step(x[:, :1], long.put([1], short))
    assert tape.positions.tolist() == [5, 3, 5]
    assert_close(output[1, 0], truth(made, torch.cat([x[0, :2], x[1, :1]]))[0][-1])
    assert_close(output[2, 0], truth(made, torch.cat([x[2], x[2, :1]]))[0][-1])


@pytest.mark.parametrize("filler", [math.nan, math.inf, 1e30])
def test_padding_of_a_ragged_chunk_changes_nothing(filler):
    made, x = make(), tokens(2, 4, 3)
    ragged = x.clone()
    ragged[1, 2:] = filler
    first, tape = made.step(ragged, made.start(2, 8), lengths=torch.tensor([4, 2]))
    assert_close(first[1, :2], truth(made, x[1, :2])[0])
    assert (first[1, 2:] == 0).all()
    second, _ = made.step(x[:, :1], tape)
    assert_close(second[1, 0], truth(made, torch.cat([x[1, :2], x[1, :1]]))[0][-1])


def test_tokens_that_do_not_fit_are_an_error_and_nothing_is_written():
    made, x = make(), tokens(2, 3, 3)
    _, tape = made.step(x, made.start(2, 4))
    before = tape.cache.value.clone()

    def refused():
        with pytest.raises(ValueError, match=r"`capacity` must be at least 6\b.*, but is 4 instead"):
            made.step(x, tape)

    seen, _ = looks(made, refused)
    assert torch.equal(tape.cache.value, before)
    assert not seen  # and nothing computed


# ---- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("score", ["additive", "scaled_dot"])
def test_it_compiles_whole(score):
    made, x, present = make(score=score), tokens(2, 4, 3), regard.Padding([4, 2])
    torch.compiler.reset()
    assert_close(torch.compile(made, fullgraph=True, backend="aot_eager")(x, present), made(x, present))
    step = torch.compile(made.step, fullgraph=True, backend="aot_eager")
    output, tape = step(x, made.start(2, 6), lengths=torch.tensor([4, 1]))
    assert_close(output, made(x, regard.Padding([4, 1])))
    assert_close(tape.summary, made.step(x, made.start(2, 6), lengths=torch.tensor([4, 1]))[1].summary)


def test_mixed_precision():
    made, x = LSTMN(8), torch.randn(2, 5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        output = made(x)
        one, tape = made.step(x[:, :1], made.start(2, 5))
        rest, _ = made.step(x[:, 1:], tape)
    output.float().square().sum().backward()
    for result in (output, torch.cat([one, rest], 1)):
        torch.testing.assert_close(result.float(), made(x), atol=0.03, rtol=0.03)


def test_what_it_cannot_be_or_take():
    for options, message in (({"attention_width": 0}, "`attention_width` must be a whole number"),
                             ({"input_width": 0}, "`input_width` must be a whole number"),
                             ({"dropout": 1.0}, "`dropout` must be a probability"),
                             ({"backend": "exakt"}, 'Did you mean "exact"'),
                             ({"normalize": "softmix"}, 'Did you mean "softmax"'),
                             ({"score": "aditive"}, 'Did you mean "additive"')):
        with pytest.raises(ValueError, match=message):
            LSTMN(4, **options)
    made, x = make(), tokens(2, 5, 3)
    with pytest.raises(ValueError, match=r"`x` must be of shape \(rows, tokens, 3\), but is of shape \(2, 5, 2\)"):
        made(x[..., :2])
    with pytest.raises(ValueError, match=r"`present` must be a Padding.*, but is a Tensor"):
        made(x, torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="`present` must be for the 2 rows of x"):
        made(x, regard.Padding([1, 2, 3]))
    with pytest.raises(ValueError, match="`state` must be for the 2 rows of x, but is for 3"):
        made.step(x, made.start(3, 5))
    with pytest.raises(ValueError, match=r"`lengths` must be at most .* 5, but is 6"):
        made.step(x, made.start(2, 8), lengths=torch.tensor([6, 1]))
