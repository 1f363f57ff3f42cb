"""Ledgers: their turns, which are kernels, are the turns of the searches; batches go in and come out the same."""

import pytest
import torch

pytest.importorskip("triton")

from interpreting import only_interpreted  # noqa: F401
from tiny import LANGUAGE, built

from regard.decoding.beam_search import BeamSearch
from regard.decoding.constraints import ForbiddenTokens, MinLength, NoRepeatNgram
from regard.decoding.request import SearchRequest
from regard.decoding.scoring import LengthPenalty, as_length_penalty
from regard.decoding.search_state import BeamState, GreedyState, search_state_for, why_no_kernel_search
from regard.decoding.token_search import TokenSearch, most_probable

VOCABULARY = 9


def request(limits, end=(2, 3), rules=(), device="cpu"):
    """Of a model on this device: there a search keeps what it has written."""
    return SearchRequest.of(built(LANGUAGE["none"]).to(device), None, [[1]] * len(limits), end, limits, 0, rules)


def drawn(rows, seed, equal):
    """Logits; where equal, of two values, so that many hypotheses are equally probable.

    Each row has as many of both, one of which is nothing beside the other: in whatever order a device adds them up, the
    sum of all is the same number, and so equal hypotheses are equal to the last digit.
    """
    draw = torch.Generator().manual_seed(seed)
    if equal:
        return torch.stack([-40.0 * (torch.randperm(VOCABULARY, generator=draw) % 2) for _ in range(rows)]).double()
    return 2 * torch.randn(rows, VOCABULARY, dtype=torch.float64, generator=draw)


def both(search, logits, limits, device="cpu"):
    """What a search finds, turn by turn, and what its ledger does; the first K rows of logits are those of row 0.

    The search must be of a request for this device.
    """
    batch, width = search.first(range(len(limits)), None), search.width
    ledger = search_state_for(search, len(limits) + 1, max(limits) + 2, torch.cat([logits[0], logits[0][:width]]).to(device))
    ledger.load(batch, search)
    found, is_open = {}, list(range(len(limits)))
    for turn, some in enumerate(logits):
        ledger.turn(torch.cat([some, some[:width]]).to(device))
        rows = torch.tensor(is_open).repeat_interleave(width) * width + torch.arange(width).repeat(len(is_open))
        batch, _, finished = search.turn(batch, some[rows].to(device), None)
        found |= search.results(batch.pick(finished))
        stay = [place for place in range(len(is_open)) if place not in finished]
        batch, is_open = batch.pick(stay), [is_open[place] for place in stay]
        if not is_open:
            break
        if len(logits) == 3 and turn == 2:  # a batch comes out in the midst, and goes in again
            kept = ledger.batch(is_open)
            mine = search_state_for(search, len(limits), max(limits) + 2, some.to(device))
            mine.load(kept, search)
            gone = [number for number in range(len(limits)) if number not in is_open]
            return found, dict(search.results(ledger.batch(gone))) if gone else {}, batch, mine.batch(range(len(stay)))
    return found, dict(search.results(ledger.batch(range(len(limits))))), None, None


def assert_same(mine, plain):
    """The same tokens, and log-probabilities but for the last digits."""
    assert mine.keys() == plain.keys()
    for number, other in plain.items():
        one = mine[number]
        for first, second in zip(*((one, other) if isinstance(one, list) else ([one], [other])), strict=True):
            assert (first.ids, first.end) == (second.ids, second.end)
            assert first.log_probabilities == pytest.approx(second.log_probabilities, abs=1e-12)
            assert first.score == pytest.approx(second.score, abs=1e-12)


def check(search, limits, seed, equal, turns, device="cpu"):
    logits = [drawn(len(limits) * search.width, 100 * seed + turn, equal) for turn in range(turns)]
    plain, mine, batch, kept = both(search, logits, limits, device)
    assert_same(mine, plain)
    if batch is not None:
        assert (batch.numbers, batch.counts) == (kept.numbers, kept.counts)
        for one, other in zip((*batch.live.parts()[:4], *batch.pool.parts()[:3]),
                              (*kept.live.parts()[:4], *kept.pool.parts()[:3]), strict=True):
            torch.testing.assert_close(one.cpu(), other[..., :one.shape[-1]].cpu())
        assert_same(dict(enumerate(kept.pool.hypotheses())), dict(enumerate(batch.pool.hypotheses())))


@pytest.mark.parametrize(("beams", "nbest", "penalty", "rules", "equal"), [
    (2, 1, "none", (), True), (2, 1, "mean", (), False), (3, 3, 0.7, (), True),
    (3, 2, "mean", (ForbiddenTokens([4, 5]), MinLength(2, [2, 3])), False),
    (3, 3, "none", (ForbiddenTokens([0, 1, 4, 5, 6, 7, 8]),), False)])  # the last: nothing but ends may be written
def test_turns_of_beams_are_those_of_the_search(beams, nbest, penalty, rules, equal):
    limits = [1, 4]
    search = BeamSearch(request(limits, rules=rules), beams, as_length_penalty(penalty), nbest)
    for seed, turns in ((0, 6), (2, 3), (3, 3)):
        check(search, limits, seed, equal, turns)


def test_turns_of_lines_are_those_of_the_search():
    for rules in ((), (ForbiddenTokens([4, 5]), MinLength(2, [2, 3]))):
        limits = [1, 4, 6, 0]
        search = TokenSearch(request(limits, rules=rules), most_probable)
        logits = [drawn(4, turn, False) for turn in range(8)]
        ledger = search_state_for(search, 4, 8, logits[0])
        batch, found = search.first(range(4), None), {}
        ledger.load(batch, search)
        for some in logits:
            ledger.turn(some)
            if batch is not None:
                batch, _, finished = search.turn(batch, some, None)
                found |= search.results(batch.pick(finished))
                batch = None if len(found) == 4 else batch
        assert_same(dict(search.results(ledger.batch(range(4)))), found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's
@pytest.mark.parametrize("beams", [1, 2])
def test_a_model_that_gives_no_number_is_named_when_the_device_is_asked(beams):
    asked = request([9, 9])
    search = TokenSearch(asked, most_probable) if beams == 1 else BeamSearch(asked, beams, as_length_penalty("none"), 1)
    logits = torch.zeros(2 * beams, VOCABULARY, dtype=torch.float64)
    logits[:, 5] = 9.0
    ledger = search_state_for(search, 2, 11, logits)
    ledger.load(search.first([0, 1], None), search)
    for turn in range(3):
        if turn == 2:
            logits[beams, 1] = torch.nan
        ledger.turn(logits)
        assert ledger.settle() == ([True, True] if turn else None), "of the turn before"
    ledger.turn(logits)
    with pytest.raises(ValueError, match="NaN for row 1 after 2 tokens"):
        ledger.settle()


@pytest.mark.parametrize("beams", [1, 2])
def test_who_has_finished_is_known_a_turn_later_and_at_the_limit_at_once(beams):
    asked = request([1, 3], end=())
    search = TokenSearch(asked, most_probable) if beams == 1 else BeamSearch(asked, beams, as_length_penalty("none"), 1)
    ledger = search_state_for(search, 2, 6, drawn(2 * beams, 0, False))
    ledger.begin([0, 1], [1, 1], search)
    ledger.clear()
    known = []
    for turn in range(4):
        ledger.turn(drawn(2 * beams, turn, False))
        known.append(ledger.settle())
        assert ledger.settled() == [turn < 1, turn < 3]
    assert known == [None, [True, True], [False, True], [False, False]]


@pytest.mark.parametrize("beams", [1, 3])
def test_rows_that_begin_are_those_of_the_search_and_move_to_another_ledger(beams):
    limits = [2, 6, 6, 5]
    asked = request(limits, rules=(MinLength(2, [2, 3]),))
    search = TokenSearch(asked, most_probable) if beams == 1 else BeamSearch(asked, beams, as_length_penalty("mean"), 2)
    logits = [drawn(4 * beams, turn, False) for turn in range(7)]
    first, second = (search_state_for(search, rows, 8, logits[0][:rows * beams]) for rows in (4, 2))
    plain, moved = search_state_for(search, 4, 8, logits[0]), [3, 1]
    for ledger in (first, second):  # what was there before is gone
        ledger.begin([1, 2], [5, 5], search)
        ledger.clear()
        for some in logits:
            ledger.turn(3 * some[:len(ledger.tokens)])
    first.begin([0, 1, 2, 3], [1, 4, 6, 7], search)
    first.clear()
    assert first.tokens.view(4, beams).tolist() == [[token] * beams for token in (1, 4, 6, 7)]
    plain.load(search.first(range(4), None), search)
    if beams > 1:
        assert (first.pool.scores == -torch.inf).all()
        assert first.totals.tolist() == [[0.0] + [-torch.inf] * (beams - 1)] * 4
    for turn, some in enumerate(logits):
        plain.turn(some)
        if turn < 2:
            first.turn(some)
            first.settle()
        if turn == 2:
            second.take(first, moved)
            assert (second.numbers, second.most) == (moved, first.most - 2)
        if turn >= 2:
            second.turn(torch.cat([some[place * beams:(place + 1) * beams] for place in moved]))
            second.settle()
    expected = dict(search.results(plain.batch(range(4))))
    assert_same(dict(second.results([0, 1], search)), {number: expected[number] for number in moved})
    assert_same(dict(plain.results([2, 0, 3], search)), {number: expected[number] for number in (2, 0, 3)})


def test_searches_that_are_kept_otherwise_say_why():
    class Strange(LengthPenalty):
        score = attainable = None

    asked = request([5])
    assert why_no_kernel_search(TokenSearch(asked, most_probable)) is None
    assert why_no_kernel_search(BeamSearch(asked, 5, as_length_penalty("mean"), 1)) is None
    assert "more than" in why_no_kernel_search(BeamSearch(asked, 20, as_length_penalty("mean"), 1))
    assert "reads what is written" in why_no_kernel_search(TokenSearch(request([5], rules=(NoRepeatNgram(2),)), most_probable))
    Strange.__abstractmethods__ = frozenset()
    assert "does not divide" in why_no_kernel_search(BeamSearch(asked, 5, Strange(), 1))
    assert {GreedyState, BeamState} == {type(search_state_for(one, 1, 7, torch.zeros(one.width, VOCABULARY))) for one in (
        TokenSearch(asked, most_probable), BeamSearch(asked, 2, as_length_penalty("mean"), 1))}


@pytest.mark.gpu
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("beams", [2, 5, 10])
def test_on_a_gpu_turns_are_those_of_the_search(beams, equal):
    limits = [1, 4, 6]
    search = BeamSearch(request(limits, device="cuda"), beams, as_length_penalty("none"), 2)
    for seed, turns in ((0, 8), (1, 3)):
        check(search, limits, seed, equal, turns, "cuda")
