"""The search state on a GPU, in Triton's interpreter: its steps are those of the plain searches."""

import math

import pytest
import torch

pytest.importorskip("triton")

from interpreting import only_interpreted  # noqa: F401
from tiny import LANGUAGE, built

from regard.decoding import gpu_state
from regard.decoding.beam import BeamSearch
from regard.decoding.constraints import ForbiddenTokens, MinLength, NoRepeatNgram
from regard.decoding.gpu_state import TorchKernels, kernels_for, read_pool, search_kind, search_state, why_no_gpu_state
from regard.decoding.request import Hypothesis, SearchRequest
from regard.decoding.sampling import TokenSearch, most_probable
from regard.decoding.scoring import LengthPenalty, as_length_penalty
from regard.kernels import decoding
from regard.kernels.decoding_buffers import BackPointers, PoolBuffers

VOCABULARY = 9
FORBIDDEN = (ForbiddenTokens([4, 5]), MinLength(2, [2, 3]))


@pytest.fixture(params=["Triton", "torch"])
def either(request, monkeypatch):
    """Both implementations of a step."""
    if request.param == "torch":
        monkeypatch.setattr(gpu_state, "kernels_for", lambda search: TorchKernels)


def request(max_lengths, end=(2, 3), constraints=(), device="cpu"):
    """A request for a model on this device."""
    model = built(LANGUAGE["none"]).to(device)
    return SearchRequest.of(model, None, [[1]] * len(max_lengths), end, max_lengths, 0, constraints)


def search_of(asked, beams, penalty="none", nbest=1):
    if beams == 1:
        return TokenSearch(asked, most_probable)
    return BeamSearch(asked, beams, as_length_penalty(penalty), nbest)


def random_logits(rows, seed, equal):
    """Logits; if `equal`, of two values, so that many hypotheses are equally probable.

    Each row has as many of both, one of which is nothing beside the other: in whatever order a device adds them up, the
    sum of all is the same number, and so equal hypotheses are equal to the last digit.
    """
    generator = torch.Generator().manual_seed(seed)
    if equal:
        return torch.stack([-40.0 * (torch.randperm(VOCABULARY,
                                                    generator=generator) % 2) for _ in range(rows)]).double()
    return 2 * torch.randn(rows, VOCABULARY, dtype=torch.float64, generator=generator)


def run_both(search, logits, max_lengths, device="cpu"):
    """What a search finds step by step, and what its state does; the first K rows of logits are those of row 0."""
    batch, width, count = search.start(range(len(max_lengths)), None), search.width, len(max_lengths)
    capacity = max(max_lengths) + 2
    state = search_state(search, count + 1, capacity, torch.cat([logits[0], logits[0][:width]]).to(device))
    state.load(batch, search)
    found, running = {}, list(range(count))
    for number, some in enumerate(logits):
        state.step(torch.cat([some, some[:width]]).to(device))
        rows = torch.tensor(running).repeat_interleave(width) * width + torch.arange(width).repeat(len(running))
        batch, _, finished = search.advance(batch, some[rows].to(device), None)
        found |= search.results(batch.select(finished))
        stay = [slot for slot in range(len(running)) if slot not in finished]
        batch, running = batch.select(stay), [running[slot] for slot in stay]
        if not running:
            break
        if len(logits) == 3 and number == 2:  # a batch comes out in the middle, and goes in again
            kept = state.batch(running)
            mine = search_state(search, count, capacity, some.to(device))
            mine.load(kept, search)
            gone = [slot for slot in range(count) if slot not in running]
            return found, dict(search.results(state.batch(gone))) if gone else {}, batch, mine.batch(range(len(stay)))
    return found, dict(search.results(state.batch(range(count)))), None, None


def assert_same(mine, plain):
    """The same tokens, and log-probabilities to the last digits."""
    assert mine.keys() == plain.keys()
    for number, other in plain.items():
        one = mine[number]
        for first, second in zip(*((one, other) if isinstance(one, list) else ([one], [other])), strict=True):
            assert (first.ids, first.end) == (second.ids, second.end)
            assert first.log_probabilities == pytest.approx(second.log_probabilities, abs=1e-12)
            assert first.score == pytest.approx(second.score, abs=1e-12)


def check(search, max_lengths, seed, equal, steps, device="cpu"):
    logits = [random_logits(len(max_lengths) * search.width, 100 * seed + step, equal) for step in range(steps)]
    plain, mine, batch, kept = run_both(search, logits, max_lengths, device)
    assert_same(mine, plain)
    if batch is not None:
        assert (batch.sequences, batch.lengths) == (kept.sequences, kept.lengths)
        for one, other in zip((*batch.live.tensors()[:4], *batch.pool.tensors()[:3]),
                              (*kept.live.tensors()[:4], *kept.pool.tensors()[:3]), strict=True):
            torch.testing.assert_close(one.cpu(), other[..., :one.shape[-1]].cpu())
        assert_same(dict(enumerate(kept.pool.hypotheses())), dict(enumerate(batch.pool.hypotheses())))


@pytest.mark.thorough
@pytest.mark.parametrize(("beams", "nbest", "penalty", "constraints", "equal"), [
    (2, 1, "none", (), True), (2, 1, "mean", (), False), (3, 3, 0.7, (), True), (3, 2, "mean", FORBIDDEN, False),
    (3, 3, "none", (ForbiddenTokens([0, 1, 4, 5, 6, 7, 8]),), False),  # only end tokens are allowed
    (3, 2, "mean", (*FORBIDDEN, NoRepeatNgram(1), NoRepeatNgram(2)), False), (2, 2, "none", (NoRepeatNgram(2),), True)])
def test_beam_steps_are_those_of_the_plain_search(either, beams, nbest, penalty, constraints, equal):
    max_lengths = [1, 4]
    search = search_of(request(max_lengths, constraints=constraints), beams, penalty, nbest)
    for seed, steps in ((0, 6), (2, 3), (3, 3)):
        check(search, max_lengths, seed, equal, steps)


@pytest.mark.thorough
@pytest.mark.parametrize("constraints", [(), FORBIDDEN, (NoRepeatNgram(1),), (NoRepeatNgram(99),)])
def test_greedy_steps_are_those_of_the_plain_search(either, constraints):
    search = TokenSearch(request([1, 4, 6, 0], constraints=constraints), most_probable)
    logits = [random_logits(4, step, False) for step in range(8)]
    if constraints and isinstance(constraints[0], NoRepeatNgram):
        logits = [2 * logits[0] + one for one in logits]  # would repeat itself
    state = search_state(search, 4, 8, logits[0])
    batch, found = search.start(range(4), None), {}
    state.load(batch, search)
    for some in logits:
        state.step(some)
        if batch is not None:
            batch, _, finished = search.advance(batch, some, None)
            found |= search.results(batch.select(finished))
            batch = None if len(found) == 4 else batch
    assert_same(dict(search.results(state.batch(range(4)))), found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's
@pytest.mark.parametrize("beams", [1, 2])
def test_invalid_logits_are_reported_when_the_status_is_read(either, beams):
    search = search_of(request([9, 9]), beams)
    logits = torch.zeros(2 * beams, VOCABULARY, dtype=torch.float64)
    logits[:, 5] = 9.0
    state = search_state(search, 2, 11, logits)
    state.load(search.start([0, 1], None), search)
    for step in range(3):
        if step == 2:
            logits[beams, 1] = torch.nan
        state.step(logits)
        assert state.poll() == ([True, True] if step else None), "of the step before"
    state.step(logits)
    with pytest.raises(ValueError, match=r"NaN.* row 1 after 2 tokens"):
        state.poll()


@pytest.mark.parametrize("beams", [1, 2])
def test_the_status_is_known_one_step_later_and_at_the_maximum_length_at_once(either, beams):
    search = search_of(request([1, 3], end=()), beams)
    state = search_state(search, 2, 6, random_logits(2 * beams, 0, False))
    state.begin([0, 1], [1, 1], search)
    state.clear()
    known = []
    for step in range(4):
        state.step(random_logits(2 * beams, step, False))
        known.append(state.poll())
        assert state.poll_now() == [step < 1, step < 3]
    assert known == [None, [True, True], [False, True], [False, False]]


@pytest.mark.thorough
@pytest.mark.parametrize("beams", [1, 3])
def test_new_rows_are_those_of_the_search_and_can_move_to_another_state(either, beams):
    asked = request([2, 6, 6, 5], constraints=(MinLength(2, [2, 3]), NoRepeatNgram(2)))
    search = search_of(asked, beams, "mean", 2)
    logits = [random_logits(4 * beams, step, False) for step in range(7)]
    first, second = (search_state(search, rows, 8, logits[0][:rows * beams]) for rows in (4, 2))
    plain, moved = search_state(search, 4, 8, logits[0]), [3, 1]
    for state in (first, second):  # what was there before is gone
        state.begin([1, 2], [5, 5], search)
        state.clear()
        for some in logits:
            state.step(3 * some[:len(state.tokens)])
    first.begin([0, 1, 2, 3], [1, 4, 6, 7], search)
    first.clear()
    assert first.tokens.view(4, beams).tolist() == [[token] * beams for token in (1, 4, 6, 7)]
    plain.load(search.start(range(4), None), search)
    if beams > 1:
        assert (first.pool.scores == -torch.inf).all()
        assert first.totals.tolist() == [[0.0] + [-torch.inf] * (beams - 1)] * 4
    for step, some in enumerate(logits):
        plain.step(some)
        if step < 2:
            first.step(some)
            first.poll()
        if step == 2:
            second.take(first, moved)
            assert (second.sequences, second.max_steps) == (moved, first.max_steps - 2)
        if step >= 2:
            second.step(torch.cat([some[slot * beams:(slot + 1) * beams] for slot in moved]))
            second.poll()
    expected = dict(search.results(plain.batch(range(4))))
    assert_same(dict(second.results([0, 1], search)), {number: expected[number] for number in moved})
    assert_same(dict(plain.results([2, 0, 3], search)), {number: expected[number] for number in (2, 0, 3)})


def test_searches_without_a_state_say_why():
    class Strange(LengthPenalty):
        score = attainable = None

    Strange.__abstractmethods__ = frozenset()
    asked, strange = request([5]), request([5], constraints=(lambda logs, prefixes: logs,))
    for search in (search_of(asked, 1), search_of(asked, 5, "mean"), search_of(request([5], constraints=FORBIDDEN), 1)):
        assert why_no_gpu_state(search) is None
    assert "constraints" in why_no_gpu_state(search_of(strange, 1))
    assert "custom length penalty" in why_no_gpu_state(BeamSearch(asked, 5, Strange(), 1))
    assert "groups" in why_no_gpu_state(BeamSearch(asked, 4, as_length_penalty("none"), 1, groups=2))
    assert "samples" in why_no_gpu_state(TokenSearch(asked, lambda logs, prefixes: logs.argmax(-1)))


def test_torch_stands_in_for_triton(monkeypatch):
    asked = request([5])
    assert kernels_for(search_of(asked, 1)) is kernels_for(search_of(asked, 10)) is decoding
    assert kernels_for(search_of(asked, 11)) is TorchKernels, "too many candidates"
    monkeypatch.setattr(gpu_state.launch, "why_not", lambda device: "no Triton")
    assert kernels_for(search_of(asked, 1)) is TorchKernels


def test_searches_of_one_kind_can_share_graphs():
    first, second = (request([length], constraints=(ForbiddenTokens([4]),)) for length in (5, 6))
    other = request([5], constraints=(ForbiddenTokens([5]),))
    assert search_kind(search_of(first, 1)) == search_kind(search_of(second, 1)) != search_kind(search_of(other, 1))
    assert search_kind(search_of(first, 2, 0.5)) == search_kind(search_of(second, 2, 0.5))
    assert len({search_kind(search_of(first, 2, penalty, nbest)) for penalty in (0.5, 0.6) for nbest in (1, 2)}) == 4


def test_hypotheses_are_read_by_following_back_pointers():
    """Row 1 has two hypotheses; at its third token both continue the second one."""
    tokens = torch.tensor([[[1, 2, 3], [4, 5, 6]], [[10, 11, 12], [13, 14, 15]]], dtype=torch.int32)
    parents = torch.tensor([[[0, 0, 0], [0, 0, 1]], [[0, 1, 1], [0, 0, 1]]], dtype=torch.int32)
    logs, number = -tokens.double() / 10, torch.int32
    pool = PoolBuffers(torch.tensor([[-1.0, -2.0], [-3.0, -math.inf]]).double(),
                       torch.tensor([[0, 1], [0, 1]], dtype=number), torch.tensor([[3, 3], [4, 0]], dtype=number),
                       torch.tensor([[-2, 1], [0, -1]], dtype=number), torch.tensor([[0, 0], [2, 0]], dtype=number),
                       torch.tensor([[0.0, 0.0], [-0.5, 0.0]]).double())

    def loaded(row, place, length):
        assert (row, place, length) == (0, 1, 3)
        return [7, 8, 2], [-0.1, -0.2, -0.3]

    found = read_pool(BackPointers(tokens, logs, parents), pool, loaded)
    assert found == [
        [Hypothesis([7, 8], [-0.1, -0.2, -0.3], -1.0, 2), Hypothesis([1, 5, 6], [-0.1, -0.5, -0.6], -2.0, None)],
        [Hypothesis([10, 14, 12], [-1.0, -1.4, -1.2, -0.5], -3.0, 2)]]


def test_an_empty_pool_has_no_hypotheses():
    pointers = BackPointers(*(torch.zeros(1, 1, 2, dtype=kind) for kind in (torch.int32, torch.float64, torch.int32)))
    nothing = torch.zeros(1, 1, dtype=torch.int32)
    pool = PoolBuffers(torch.tensor([[-math.inf]]), nothing + 1, nothing, nothing - 1, nothing, nothing.double())
    assert read_pool(pointers, pool, lambda *given: pytest.fail("nothing was loaded")) == [[]]


@pytest.mark.gpu
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("beams", [2, 5, 10])
def test_on_a_gpu_steps_are_those_of_the_plain_search(beams, equal):
    max_lengths = [1, 4, 6]
    for constraints in ((), (NoRepeatNgram(2),)):
        search = search_of(request(max_lengths, constraints=constraints, device="cuda"), beams, nbest=2)
        for seed, steps in ((0, 8), (1, 3)):
            check(search, max_lengths, seed, equal, steps, "cuda")
