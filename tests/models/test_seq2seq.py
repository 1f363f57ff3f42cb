"""The recurrent encoder-decoder: the oracle's equations, the contract of models, and what attention repairs."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from regard.attention.layer import BasicAttention
from regard.models.seq2seq import AttendingDecoder, OneContextDecoder, RecurrentEncoder, Seq2Seq
from regard.reference import attention as oracle_attention
from regard.reference import recurrence as oracle_cells
from regard.reference import seq2seq as oracle
from regard.tokens import Tokens

SOURCE, TARGET, WIDTH = 7, 6, 4
CELLS = ("rnn", "lstm", "gru", "mut1", "mut2", "mut3")


def build(attention=True, *, cell="gru", direction="forward", layers=1, **options):
    torch.manual_seed(3)
    kind = AttendingDecoder if attention else OneContextDecoder
    encoder = RecurrentEncoder(SOURCE, WIDTH, cell=cell, direction=direction, layers=layers)
    decoder = kind(TARGET, WIDTH, context_width=WIDTH, cell=cell, layers=layers, **options)
    return Seq2Seq(encoder, decoder).double()


MODELS = {
    "one context": partial(build, False), "attention": build, "both ways": partial(build, direction="both"),
    "two layers": partial(build, layers=2), "input feeding": partial(build, input_feeding=True),
    "from the mean": partial(build, initial="mean"), "projected values": partial(build, values="projected"),
    "dot": partial(build, score="scaled_dot"), "relu": partial(build, normalize="relu"),
    "all": partial(build, cell="lstm", layers=2, direction="both", input_feeding=True, initial="mean"),
    **{cell: partial(build, cell=cell) for cell in CELLS},
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]().eval()


def ids(vocabulary, rows, count, seed=0):
    return torch.randint(vocabulary, (rows, count), generator=torch.Generator().manual_seed(seed))


def stepped(model, state, target, chunks):
    """The logits of the target's tokens, fed in chunks."""
    logits = []
    for chunk in target.split(chunks, dim=1):
        step = model.step(state, chunk)
        state = step.state
        logits.append(step.logits)
    return torch.cat(logits, dim=1), state


def assert_close(got, want, tolerance=1e-12):
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


# ---- the equations ---------------------------------------------------------------------------------------------------


def known_cell(cell, name):
    """The oracle's step with the parameters of ours."""
    parameters = {key: value.detach().numpy() for key, value in cell.named().items()}
    return partial(getattr(oracle_cells, f"{name}_step"), **parameters)


def known_score(attention, name):
    """f_att(s, h) with the projections of ours inside."""
    query, key = ([t.detach().numpy() for t in (linear.weight, linear.bias)]
                  for linear in (attention.query, attention.key))
    inner = getattr(oracle_attention, name)
    if name in ("additive", "bilinear"):
        inner = partial(inner, weight=attention.scorer.weight.detach().numpy()[0])
    if name == "additive":
        inner = partial(inner, bias=attention.scorer.bias.detach().numpy()[0])
    return lambda s, h: inner(query[0] @ s + query[1], key[0] @ h + key[1])


@pytest.mark.parametrize("cell", ["rnn", "gru", "mut1", "mut2", "mut3"])
@pytest.mark.parametrize("score", [None, "additive", "dot", "scaled_dot", "bilinear"])
@pytest.mark.parametrize("initial", ["last", "mean"])
def test_logits_are_the_oracles(cell, score, initial):
    model = build(score is not None, cell=cell, initial=initial, **({} if score is None else {"score": score}))
    encoder, decoder = model.encoder, model.decoder
    source, lengths, target = ids(SOURCE, 3, 5), torch.tensor([5, 1, 3]), ids(TARGET, 3, 4, seed=1)
    got = model.decode(Tokens(target), model.encode(Tokens(source, lengths))).detach()
    array = {name: value.detach().numpy() for name, value in model.named_parameters()}
    first, second = known_cell(encoder.recurrence.cells[0], cell), known_cell(decoder.cells[0], cell)

    def readout(s, c):
        joined = np.tanh(array["decoder.join.weight"] @ np.concatenate([s, c]) + array["decoder.join.bias"])
        return array["decoder.vocabulary.weight"] @ joined + array["decoder.vocabulary.bias"]

    for row in range(3):
        xs = array["encoder.embedding.weight"][source[row]]
        states = np.stack(oracle.encode(first, xs, np.zeros(WIDTH), int(lengths[row])))
        begin = partial(oracle.initial_from_last, states[-1]) if initial == "last" else partial(
            oracle.initial_from_mean, states)
        s_0 = begin(array["decoder.initial.0.weight"], array["decoder.initial.0.bias"])
        ys = array["decoder.embedding.weight"][target[row]]
        step = oracle.concatenating_cell(second)
        if score is None:
            want = oracle.decode(step, ys, s_0, states[-1], readout)[0]
        else:
            want = oracle.decode_attending(step, ys, s_0, states, known_score(decoder.attention, score), readout)[0]
        assert_close(got[row], torch.from_numpy(want))


# ---- the contract ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [1, 2, [3, 1, 1], 5], ids=str)
def test_step_by_step_is_all_at_once(model, chunks):
    source, target = Tokens(ids(SOURCE, 3, 5), torch.tensor([5, 2, 4])), ids(TARGET, 3, 5, seed=1)
    memory = model.encode(source)
    logits, state = stepped(model, model.start(memory, rows=3, capacity=5), target, chunks)
    assert_close(logits, model.decode(Tokens(target), memory))
    assert state.positions.tolist() == [5, 5, 5]


def test_padding_and_neighbours_change_nothing(model):
    source, target = ids(SOURCE, 1, 4), ids(TARGET, 1, 3, seed=1)
    alone = model.decode(Tokens(target), model.encode(Tokens(source)))
    noise = ids(SOURCE, 2, 9, seed=2)
    for side in ("right", "left"):
        rows = noise.clone()
        rows[0, slice(0, 4) if side == "right" else slice(5, 9)] = source[0]
        targets = ids(TARGET, 2, 6, seed=3)
        targets[0, slice(0, 3) if side == "right" else slice(3, 6)] = target[0]
        memory = model.encode(Tokens(rows, torch.tensor([4, 9]), side))
        logits = model.decode(Tokens(targets, torch.tensor([3, 6]), side), memory)
        assert_close(logits[0, :3] if side == "right" else logits[0, 3:], alone[0], 1e-11)


def test_an_empty_source_is_no_source(model):
    memory = model.encode(Tokens(ids(SOURCE, 2, 3), torch.tensor([0, 3])))
    assert torch.equal(memory.summary[0], torch.zeros(WIDTH).double())
    assert torch.isfinite(model.decode(Tokens(ids(TARGET, 2, 4)), memory)).all()


def test_rows_can_be_picked_replaced_and_copied(model):
    target = ids(TARGET, 4, 6, seed=1)
    sources = Tokens(ids(SOURCE, 4, 6, seed=2), torch.tensor([6, 2, 3, 5]))
    whole = model.decode(Tokens(target), model.encode(sources))
    short = Tokens(sources.ids[1:3, :3], sources.lengths[1:3])  # another length of the source
    _, state = stepped(model, model.start(model.encode(sources)), target[:, :3], 3)
    _, other = stepped(model, model.start(model.encode(short)), target[1:3, :2], 2)
    kept = state.copy()
    again = model.step(state.pick([3, 0, 3]), target[[3, 0, 3], 3:])
    assert_close(again.logits, whole[[3, 0, 3], 3:])
    mixed = kept.put([0, 3], other)  # rows 0 and 3 now go on where sentences 1 and 2 stopped
    assert mixed.positions.tolist() == [2, 3, 3, 2]
    rows, at = torch.tensor([1, 1, 2, 2]), torch.tensor([2, 3, 3, 2])
    assert_close(model.step(mixed, target[rows, at].unsqueeze(1)).logits[:, 0], whole[rows, at])


def test_weights_are_given_where_asked_for(model):
    memory = model.encode(Tokens(ids(SOURCE, 2, 5), torch.tensor([5, 3])))
    step = model.step(model.start(memory, cross=True), ids(TARGET, 2, 4))
    assert model.step(model.start(memory), ids(TARGET, 2, 4)).cross is None
    if isinstance(model.decoder, OneContextDecoder):
        assert step.cross is None
        return
    assert step.cross.shape == (2, 1, 1, 4, 5)
    assert (step.cross[1, ..., 3:] == 0).all()
    if repr(model.decoder.attention.normalize) == "softmax":
        assert_close(step.cross.sum(-1), torch.ones(2, 1, 1, 4).double())
    # They are the weights that were used: the contexts that the steps read are these weights times the states.
    if isinstance(model.decoder.attention, BasicAttention):
        contexts, context = [], model.decoder.context
        model.decoder.context = lambda *given: contexts.append(context(*given)) or contexts[-1]
        model.decode(Tokens(ids(TARGET, 2, 4)), memory)
        assert_close(step.cross[:, 0, 0] @ memory.states, torch.stack(contexts, dim=1))


def test_keys_are_projected_once_a_sentence():
    model, calls = build(), []
    model.decoder.attention.key.register_forward_hook(lambda *_: calls.append(1))
    model.decode(Tokens(ids(TARGET, 2, 6)), model.encode(Tokens(ids(SOURCE, 2, 5))))
    assert len(calls) == 1


def test_every_parameter_gets_a_gradient(model):
    logits = model.decode(Tokens(ids(TARGET, 3, 4)), model.encode(Tokens(ids(SOURCE, 3, 5), torch.tensor([5, 4, 2]))))
    cross_entropy(logits.flatten(0, 1), ids(TARGET, 3, 4, seed=5).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.thorough
@pytest.mark.parametrize("attention", [True, False])
def test_gradients_are_right(attention):
    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = build(attention)

        def forward(self):
            memory = self.model.encode(Tokens(ids(SOURCE, 2, 3), torch.tensor([3, 1])))
            return self.model.decode(Tokens(ids(TARGET, 2, 2)), memory)

    whole = Whole()
    names = [name for name, _ in whole.named_parameters()]
    tensors = tuple(tensor.detach().clone().requires_grad_() for tensor in whole.parameters())
    assert torch.autograd.gradcheck(
        lambda *given: torch.func.functional_call(whole, dict(zip(names, given, strict=True)), ()), tensors)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: build(initial="first"), '`initial` must be one of "last", "mean", but is "first"'),
    (lambda: build(values="both"), '`values` must be one of "states", "projected", but is "both"'),
    (lambda: build(cell="gruu"), '.*"gru".*"gruu".*Did you mean "gru"'),
    (lambda: build(score="additiv"), '`score` must be .*"additiv".*Did you mean "additive"'),
    (lambda: Seq2Seq(RecurrentEncoder(5, 8), OneContextDecoder(5, 8, context_width=6)), "`decoder` .*8.*6"),
    (lambda: build().start(build().encode(Tokens(ids(SOURCE, 2, 3))), rows=3), "`rows` .* memory, 2, but is 3"),
])
def test_errors_say_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---- what attention repairs ------------------------------------------------------------------------------------------

START, SYMBOLS = 0, 12


def reversing(count, longest, shortest=None):
    """Sources of random symbols and their reversals: ids, lengths, targets, and which target positions count."""
    lengths = torch.randint(shortest or longest, longest + 1, (count,))
    source = torch.randint(1, SYMBOLS, (count, longest))
    mirrored = lengths.unsqueeze(-1) - 1 - torch.arange(longest)
    return Tokens(source, lengths), source.gather(1, mirrored.clamp(min=0)), mirrored >= 0


def train(decoder, steps):
    torch.manual_seed(1)
    model = Seq2Seq(RecurrentEncoder(SYMBOLS, 64, direction="both"), decoder(SYMBOLS, 64, context_width=64))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.008)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    for _ in range(steps):
        source, target, valid = reversing(64, 20, shortest=1)
        inputs = torch.cat([torch.full((64, 1), START), target[:, :-1]], dim=1)
        loss = cross_entropy(model.decode(Tokens(inputs), model.encode(source))[valid], target[valid])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def written(model, length):
    """How many symbols are right when the model reads what it wrote itself, and its weights (rows, steps, source)."""
    torch.manual_seed(2)
    source, target, _ = reversing(200, length)
    state, read, right, weights = model.start(model.encode(source), cross=True), torch.full((200, 1), START), [], []
    for t in range(length):
        step = model.step(state, read)
        state, read = step.state, step.logits.argmax(-1)
        right.append(read[:, 0] == target[:, t])
        weights.append(step.cross)
    share = torch.stack(right).double().mean().item()
    return share, None if weights[0] is None else torch.cat(weights, dim=-2)[:, 0, 0]


@pytest.mark.slow
def test_attention_repairs_what_one_context_vector_loses():
    torch.set_flush_denormal(True)
    try:
        attending, bottleneck = train(AttendingDecoder, 400), train(OneContextDecoder, 400)
    finally:
        torch.set_flush_denormal(False)
    share, weights = written(attending, 20)
    assert share >= 0.9
    # The look goes backwards over the source. c_t comes from s_{t-1}, so it may run one step beside the diagonal.
    offset = weights.argmax(-1) - (19 - torch.arange(20))
    assert max(((offset - constant).abs() <= 1).double().mean().item() for constant in (-2, -1, 0, 1, 2)) >= 0.9
    short, long = written(bottleneck, 5)[0], written(bottleneck, 20)[0]
    assert long < share - 0.3
    assert long < short - 0.3
