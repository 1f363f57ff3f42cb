"""Left padding, right padding, packed, one by one: the same numbers for any content of the padding."""

import pytest
import torch
from tiny import LANGUAGE, MIXERS, PACKABLE, READING, SOURCE, TRANSLATING, built

from regard.models.classification import SequenceClassifier
from regard.tokens import PackedTokens, Tokens

LENGTHS = (4, 1, 6, 3)


def sequences(lengths=LENGTHS):
    return [torch.randint(SOURCE, (count,)) for count in lengths]


def assert_close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)


def padded(rows, side, extra=0):
    """A batch with noise in its padding, and `extra` places more than the longest row needs."""
    tokens = Tokens.of(rows, side)
    noise = torch.randint(SOURCE, (len(rows), extra))
    ids = torch.cat([tokens.ids, noise] if side == "right" else [noise, tokens.ids], dim=1)
    there = Tokens(ids, tokens.lengths, side).present.matrix(1, ids.shape[1]).squeeze(-2)
    return Tokens(torch.where(there, ids, torch.randint(SOURCE, ids.shape)), tokens.lengths, side)


def of_row(logits, tokens, b):
    """The logits of the tokens that row b has."""
    if isinstance(tokens, PackedTokens):
        return logits[0].split(tokens.lengths.tolist())[b]
    count = int(tokens.lengths[b])
    return logits[b, :count] if tokens.side == "right" else logits[b, logits.shape[1] - count:]


def layouts(rows, packable):
    """The same rows in every layout."""
    given = [padded(rows, side, extra) for side in ("right", "left") for extra in (0, 3)]
    return given + ([PackedTokens.of(rows)] if packable else [])


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models(name):
    model, rows = built(LANGUAGE[name]), sequences()
    want = [model(Tokens(row.unsqueeze(0)))[0] for row in rows]
    packable = name not in MIXERS or name in PACKABLE
    for tokens in layouts(rows, packable and not name.startswith("old")):
        logits = model(tokens)
        for b in range(len(rows)):
            assert_close(of_row(logits, tokens, b), want[b])


@pytest.mark.parametrize("name", TRANSLATING)
def test_encoder_decoders(name):
    model, sources, targets = built(TRANSLATING[name]), sequences(), sequences((2, 5, 3, 4))
    want = [model(Tokens(s.unsqueeze(0)), Tokens(t.unsqueeze(0)))[0] for s, t in zip(sources, targets, strict=True)]
    recurrent = name.startswith("seq2seq") or (name in MIXERS and name not in PACKABLE)
    for source, target in zip(layouts(sources, not recurrent), layouts(targets, not recurrent), strict=True):
        logits = model(source, target)
        for b in range(len(targets)):
            assert_close(of_row(logits, target, b), want[b])
    # The two sides need not be padded on the same side.
    target = padded(targets, "left", 1)
    logits = model(padded(sources, "right", 2), target)
    for b in range(len(targets)):
        assert_close(of_row(logits, target, b), want[b])


@pytest.mark.parametrize("name", READING)
def test_models_that_read(name):
    model, rows = built(READING[name]), sequences()
    want = [model(Tokens(row.unsqueeze(0)))[0] for row in rows]
    attends = name in ("encoder", "masked", "first", "mean")
    for tokens in layouts(rows, attends):
        logits = model(tokens)
        for b in range(len(rows)):
            assert_close(logits[b] if isinstance(model, SequenceClassifier) else of_row(logits, tokens, b), want[b])


def finite(model, result):
    """The result and its gradients have no NaN and no infinity."""
    model.zero_grad()
    result.sum().backward()
    return result.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("config", [*TRANSLATING.values(), *LANGUAGE.values(), *READING.values()],
                         ids=[*TRANSLATING, *LANGUAGE, *READING])
def test_sequences_of_no_tokens(config):
    model, nothing = built(config), Tokens(torch.zeros(2, 0, dtype=torch.long))
    read = Tokens(torch.randint(SOURCE, (2, 3)))
    some = [Tokens(torch.randint(SOURCE, (2, 3)), torch.tensor(lengths), side)
            for lengths in ([0, 3], [0, 0]) for side in ("right", "left")]
    if config in TRANSLATING.values():
        assert model(nothing, nothing).shape[:2] == (2, 0)
        assert all(finite(model, model(source, read)) for source in [nothing, *some])
        assert all(finite(model, model(read, target)) for target in some)
    else:
        assert len(model(nothing)) == 2
        assert model(nothing).isfinite().all()
        assert all(finite(model, model(tokens)) for tokens in some)


@pytest.mark.parametrize("name", ["attention", "rotary"])
def test_writing_goes_on_from_a_packed_memory(name):
    model, rows = built(TRANSLATING[name]), sequences()
    target = torch.randint(SOURCE, (4, 3))
    want = model.decode(Tokens(target), model.encode(Tokens.of(rows)))
    memory = model.encode(PackedTokens.of(rows)).padded()
    assert_close(model.step(model.start(memory, capacity=3), target).logits, want)


def test_packed_and_padded_do_not_mix():
    model, rows = built(TRANSLATING["attention"]), sequences()
    with pytest.raises(ValueError, match=r"`tokens` must be Tokens, .* but is PackedTokens"):
        model(Tokens.of(rows), PackedTokens.of(rows))
    with pytest.raises(ValueError, match=r"`tokens` must be PackedTokens .* 4, but is 3"):
        model(PackedTokens.of(rows), PackedTokens.of(rows[:3]))
    with pytest.raises(ValueError, match=r"`tokens` must be PackedTokens .* 4, but is Tokens"):
        model(PackedTokens.of(rows), Tokens.of(rows))


@pytest.mark.parametrize("name", ["recurrence", "convolution", "lstmn", "rwkv4", "rwkv7"])
def test_mixers_that_read_in_order_refuse_packed_rows(name):
    with pytest.raises(ValueError, match=r"`present` must be a .*Padding.* Packed"):
        built(LANGUAGE[name])(PackedTokens.of(sequences()))
