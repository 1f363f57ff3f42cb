"""Truncated back-propagation through time: windows are as one long pass, gradients stop at their edges, and what is
carried can be stored."""

import pytest
import torch
from tiny import LANGUAGE, TARGET, old
from torch.nn import functional as F

from regard.data.batches.feed import StreamFeed
from regard.data.store import open_or_make_texts
from regard.tokens import IGNORED_LABEL, Tokens
from regard.training.tasks.language import ContinuousFeed, TruncatedBPTTObjective, carries_state, pad_windows

CELLS = ("rnn", "lstm", "gru", "mut1", "mut2", "mut3")


@pytest.fixture
def stream(tmp_path):
    """A text of 3 rows that are read in windows of 7: 5 steps, the last one short and uneven."""
    ids = torch.randint(TARGET, (95,)).tolist()
    text = open_or_make_texts(tmp_path, "key", lambda: [ids], vocabulary=TARGET).store
    return StreamFeed(text, length=7, rows=3, padding=0)


def rows_of(stream):
    """The ids of each row, inputs and labels."""
    ids = torch.from_numpy(stream.text.stream.astype("int64"))
    return [(ids[first:last], ids[first + 1:last + 1]) for first, last in zip(stream.first, stream.last, strict=True)]


@pytest.mark.parametrize("cell", CELLS)
def test_windows_are_one_long_pass(stream, cell):
    model = old(cell=cell).build().double()
    objective, feed = TruncatedBPTTObjective(model), ContinuousFeed(stream)
    for epoch in range(2):  # the second begins anew
        losses = [objective(feed.at(epoch * feed.steps + step)) for step in range(feed.steps)]
        whole = sum(F.cross_entropy(model(Tokens(ids[None]))[0], labels, reduction="sum")
                    for ids, labels in rows_of(stream))
        assert abs(float((sum(loss.total for loss in losses) - whole).detach())) < 1e-5
        assert sum(int(loss.tokens) for loss in losses) == 94


def test_windows_that_forget_are_not(stream):
    model = old(cell="lstm").build().double()
    feed = ContinuousFeed(stream)
    whole, apart = ([loss(feed.at(step)).nll for step in range(feed.steps)] for loss in (
        TruncatedBPTTObjective(model), lambda window: TruncatedBPTTObjective(model)(window)))
    assert float(abs(whole[0] - apart[0])) == 0.0
    assert all(float(abs(one - other)) > 1e-4 for one, other in zip(whole[1:], apart[1:], strict=True))


def test_gradients_flow_inside_a_window_and_stop_at_its_edge(stream):
    model, feed = old(cell="gru").build().double(), ContinuousFeed(stream)
    objective = TruncatedBPTTObjective(model)
    objective(feed.at(0))
    window = feed.at(1)
    got = torch.autograd.grad(objective(window).total, list(model.parameters()))
    with torch.no_grad():
        _, state = model.step_features(model.start(rows=3, capacity=7), feed.at(0).batch.inputs.ids)
    logits = model.step(state, window.batch.inputs.ids).logits
    wanted = torch.autograd.grad(F.cross_entropy(logits.flatten(0, 1), window.batch.labels.flatten(), reduction="sum"),
                                 list(model.parameters()))
    torch.testing.assert_close(got, wanted)


def test_what_is_carried_goes_on_after_it_was_stored(stream):
    model, feed = old(cell="lstm").build().double(), ContinuousFeed(stream)
    one, other, again = (TruncatedBPTTObjective(model) for _ in range(3))
    assert one.carried() == {}
    one(feed.at(0))
    stored = one.carried()
    assert sorted(stored) == [f"memory.{number}" for number in range(4)]
    one(feed.at(1))  # what was stored stays as it was
    other.resume(stored)
    again(feed.at(3))
    again.resume(stored)
    wanted = TruncatedBPTTObjective(model)
    wanted(feed.at(0))
    loss = wanted(feed.at(1)).nll
    assert torch.equal(other(feed.at(1)).nll, loss)
    assert torch.equal(again(feed.at(1)).nll, loss)


def test_the_places_of_what_is_carried_stay(stream):
    """A step that was recorded reads and writes them where they were."""
    model, feed = old(cell="lstm").build(), ContinuousFeed(stream)
    objective = TruncatedBPTTObjective(model)
    objective(feed.at(0))
    before = [memory.data_ptr() for memory in objective._state]
    for step in (1, 2, 5):
        objective(feed.at(step))
    objective.resume(objective.carried())
    assert [memory.data_ptr() for memory in objective._state] == before


def test_judging_does_not_disturb_what_is_carried(stream):
    model, feed = old(cell="gru").build(), ContinuousFeed(stream)
    other = ContinuousFeed(StreamFeed(stream.text, length=7, rows=2))
    objective, alone = TruncatedBPTTObjective(model), TruncatedBPTTObjective(model).eval()
    objective(feed.at(0))
    kept = objective.carried()
    objective.eval()
    for step in range(4):
        assert torch.equal(objective(other.at(step)).nll, alone(other.at(step)).nll)
    objective.train()
    assert all(torch.equal(kept[name], memory) for name, memory in objective.carried().items())


def test_other_rows_are_refused(stream):
    objective = TruncatedBPTTObjective(old(cell="rnn").build())
    objective(ContinuousFeed(stream).at(0))
    other = ContinuousFeed(StreamFeed(stream.text, length=7, rows=2))
    with pytest.raises(ValueError, match="`window` must be of 3 rows, as those before it, but is of 2"):
        objective(other.at(0))


def test_windows_are_equally_long_and_say_where_the_text_begins(stream):
    feed = ContinuousFeed(stream)
    windows = [feed.at(step) for step in range(2 * feed.steps)]
    assert [bool(window.first) for window in windows] == [True, *[False] * 4] * 2
    assert {tuple(window.batch.inputs.ids.shape) for window in windows} == {(3, 7)}
    assert all(window.batch.inputs.lengths is None for window in windows)
    assert all(int((window.batch.labels != IGNORED_LABEL).sum()) == window.tokens for window in windows)
    assert windows[4].tokens == 94 - 4 * 21
    assert feed.largest()[0].tokens == 21
    there = windows[0].to("meta")
    assert there.first.device.type == there.batch.labels.device.type == "meta"
    assert windows[0].numbers.tolist() == [0, 1, 2]


def test_what_fills_up_changes_nothing(stream):
    short = stream.at(4)
    model = LANGUAGE["attention"].build().double()
    long = pad_windows(short, 7, 0)
    for batch in (short, long):
        features = model(batch.inputs)
        batch_loss = F.cross_entropy(features.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED_LABEL,
                                     reduction="sum")
        if batch is short:
            wanted = batch_loss
    torch.testing.assert_close(batch_loss, wanted)


@pytest.mark.parametrize(("name", "can"), [
    ("old", True), ("attention", False), ("recurrence", False), ("lstmn", False), ("none", False),
])
def test_who_can_carry(name, can):
    assert carries_state(LANGUAGE[name]) == can  # those with positions cannot
