"""Hypotheses that share the keys of common tokens: their logits are those of the model with a row for each of them."""

import math
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import LANGUAGE, TRANSLATING, built

from regard.decoding import beam_cache
from regard.decoding.beam_cache import KEY_MULTIPLE, attention_runs, round_up
from regard.decoding.decoder_step import packed_decoder
from regard.kernels.packed_linear import packed_linear_layers
from regard.mixer import RowGroups
from regard.tokens import Tokens

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
SOURCES = [[5, 6, 7], [8], [9, 10], [], [7, 7, 6, 5, 8]]
MODELS = {"translating": TRANSLATING["attention"], "rotary": TRANSLATING["rotary"], "language": LANGUAGE["llama"]}
WIDTH = 3


class Pair:
    """The same hypotheses in a packed decoder with shared tokens, and in the model itself with a row for each."""

    def __init__(self, model, capacity=40):
        self.model, self.capacity, self.writer = model, capacity, packed_decoder(model)

    def begin(self, sources, prompts):
        """States of WIDTH hypotheses for each source, which have read a prompt (may be empty)."""
        memory = self.model.encode(Tokens.of(sources)) if hasattr(self.model, "encode") else None
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        index = torch.arange(len(sources)).repeat_interleave(WIDTH)
        rows = RowGroups(index, WIDTH, 1, index[::WIDTH])
        states = []
        for starting in (self.writer, self.model):
            state = starting.start(memory, rows=len(sources), capacity=self.capacity)
            if lengths.any():
                state = self.model.step(state, Tokens.of(prompts).ids, lengths).state
            states.append(state)
        return [self.writer.share(states[0], rows), states[1].pick(rows)]

    def step(self, states):
        """One random token for every hypothesis, by both."""
        ids = torch.randint(5, 10, (len(states[1].positions), 1))
        one, other = self.writer.step(states[0], ids), self.model.step(states[1], ids)
        torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-5)
        assert torch.equal(one.state.positions, other.state.positions)
        return [one.state, other.state]


@contextmanager
def pair_of(name, capacity=40):
    model = built(MODELS[name]).eval().float()
    with torch.no_grad(), packed_linear_layers(model):
        yield Pair(model, capacity)


def chosen(sequences):
    """Random hypotheses that continue, in every sequence some of its own."""
    return (torch.randint(0, WIDTH, (len(sequences), WIDTH)) + WIDTH * torch.tensor(sequences).unsqueeze(-1)).flatten()


def picked(states, sequences=None):
    """Random hypotheses of these sequences, or of all where they are."""
    every = range(len(states[1].positions) // WIDTH)
    groups = None if sequences is None else torch.tensor(sequences)
    rows = RowGroups(chosen([*every] if sequences is None else sequences), WIDTH, WIDTH, groups, reuse_storage=True)
    return [state.pick(rows) for state in states]


def replaced(states, sequences, others):
    groups = torch.tensor(sequences)
    rows = RowGroups((groups.unsqueeze(-1) * WIDTH + torch.arange(WIDTH)).flatten(), WIDTH, WIDTH, groups)
    return [state.put(rows, other) for state, other in zip(states, others, strict=True)]


@pytest.mark.parametrize("min_slots", [1, 64], ids=["storage that grows", "enough storage"])
@pytest.mark.parametrize("run_bytes", [0, 1 << 40], ids=["a run for each", "one run"])
@pytest.mark.parametrize("name", MODELS)
def test_hypotheses_that_branch_join_and_leave_have_the_logits_of_the_model(name, run_bytes, min_slots, monkeypatch):
    monkeypatch.setattr(beam_cache, "RUN_BYTES", run_bytes)
    monkeypatch.setattr(beam_cache, "MIN_SLOTS", min_slots)
    with pair_of(name) as pair:
        states = pair.step(pair.begin(SOURCES[:3], [[6, 7, 8], [9], []]))
        for _ in range(6):
            states = pair.step(picked(states))
        states = pair.step(replaced(picked(states), [1], pair.begin(SOURCES[4:], [[5, 9]])))
        states = pair.step(picked(states, [0, 2]))
        states = picked(states, [1, 0, 0, 0, 0])  # three more, which then are others
        states = pair.step(replaced(states, [3, 4, 2], pair.begin(SOURCES[2:5], [[], [6], [7]])))
        for _ in range(12):
            states = pair.step(picked(states))
        read = [0 + 22, 3 + 22, 1 + 13, 0 + 13, 1 + 13]  # tokens of the prompt, and steps
        assert states[0].positions.view(-1, WIDTH).tolist() == [WIDTH * [one] for one in read]


@pytest.mark.parametrize("run_bytes", [0, 5000, 1 << 40], ids=["a run for each", "some runs", "one run"])
@pytest.mark.parametrize("lengths", [(40, 17, 33, 1, 0, 16), (16, 16), (5, 3), (0, 0)])
def test_sources_of_very_different_lengths(lengths, run_bytes, monkeypatch):
    monkeypatch.setattr(beam_cache, "RUN_BYTES", run_bytes)
    sources = [torch.randint(4, 11, (length,)).tolist() for length in lengths]
    with pair_of("translating") as pair:
        states = pair.step(pair.begin(sources, [[] for _ in sources]))
        states = pair.step(picked(states))
        states = pair.step(picked(states, [len(sources) - 1, 0]))
        states = pair.step(picked(states, [1, 0]))  # every step compares the logits with those of the model
        assert states[0].positions.tolist() == 2 * WIDTH * [4]


def test_attention_reads_multiples_of_keys():
    sources = [torch.randint(4, 11, (length,)).tolist() for length in (40, 17, 9)]
    with pair_of("translating") as pair:
        cache, _ = pair.begin(sources, [[], [], []])
        for _ in range(30):
            cache, slots = cache.next_slots()
            assert all(run.keys % KEY_MULTIPLE == 0 for run in [*slots.runs, *slots.context_runs])
            cache = cache.pick(RowGroups(chosen([0, 1, 2]), WIDTH, WIDTH, reuse_storage=True))
        key = cache.blocks[0].context.key
        assert key.shape[-2] == 48
        assert not key[0, :, 40:].any()


@pytest.mark.thorough
@given(seed=st.integers(0, 1 << 30), length=st.integers(1, 30))
def test_slots_are_used_again_and_never_those_of_a_living_token(seed, length):
    """Hypotheses as lists of tokens, each with a number of its own, against what stands in their slots."""
    torch.manual_seed(seed)
    with pair_of("translating") as pair:
        cache, _ = pair.begin(SOURCES[:2], [[], []])
        most, stored, texts = [0, 0], [{}, {}], [[[] for _ in range(WIDTH)] for _ in range(2)]
        for number in range(length):
            cache, slots = cache.next_slots()
            size = cache.blocks[0].mixer.tokens.shape[1]
            for row, place in enumerate(slots.places.tolist()):
                sequence, hypothesis = divmod(row, WIDTH)
                assert place // size == sequence
                stored[sequence][place % size] = (number, hypothesis)
                texts[sequence][hypothesis].append((number, hypothesis))
            for sequence in range(2):
                for hypothesis in range(WIDTH):
                    read = cache.attended[sequence, hypothesis].nonzero().flatten().tolist()
                    assert sorted(stored[sequence][slot] for slot in read) == texts[sequence][hypothesis]
                most[sequence] = max(most[sequence], len({token for text in texts[sequence] for token in text}))
                assert max(stored[sequence]) < most[sequence], "the first free slots are taken"
            rows = chosen([0, 1])
            cache = cache.pick(RowGroups(rows, WIDTH, WIDTH, reuse_storage=True))
            parents = (rows.view(2, WIDTH) - torch.tensor([[0], [WIDTH]])).tolist()
            texts = [[[*texts[one][parent]] for parent in parents[one]] for one in range(2)]


def test_sequences_that_have_left_lose_their_storage_when_the_others_need_more(monkeypatch):
    monkeypatch.setattr(beam_cache, "MIN_SLOTS", 2 * WIDTH)
    with pair_of("translating") as pair:
        states = picked(pair.step(pair.begin(SOURCES[:3], [[], [], []])), [2, 0])
        assert states[0].blocks[0].mixer.tokens.shape[0] == 3
        for _ in range(16):
            states = pair.step(picked(states))
        sequences, slots, _ = states[0].blocks[0].mixer.tokens.shape
        assert (sequences, slots >= states[0].attended.shape[-1]) == (2, True)


def test_greedy_branches_need_few_slots():
    """Where all continue the first hypothesis, a step takes the slots that the others had."""
    with pair_of("translating") as pair:
        cache, _ = pair.begin(SOURCES[:1], [[]])
        for _ in range(20):
            cache, _ = cache.next_slots()
            cache = cache.pick(RowGroups(torch.zeros(WIDTH, dtype=torch.long), WIDTH, WIDTH, reuse_storage=True))
        assert cache.attended.shape[-1] <= round_up(20 + WIDTH)


def test_nan_of_a_sequence_reaches_neither_its_neighbours_nor_the_one_that_takes_its_place():
    with pair_of("translating") as pair:
        states = pair.step(picked(pair.step(pair.begin(SOURCES[:2], [[5, 6], [7]]))))
        for block in states[0].blocks:
            block.mixer.tokens[1] = math.nan
        states = replaced(picked(states), [1], pair.begin(SOURCES[2:3], [[]]))
        for _ in range(2):
            states = pair.step(states)
        assert all(block.mixer.tokens.isfinite().all() for block in states[0].blocks)


def test_capacity_is_the_tokens_of_a_hypothesis():
    with pair_of("language", capacity=4) as pair:
        states = pair.begin(SOURCES[:1], [[5, 6]])
        states = pair.step(pair.step(states))
        with pytest.raises(ValueError, match=r"`capacity`.*5.*4"):
            pair.writer.step(states[0], torch.full((WIDTH, 1), 5))


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20), waste=st.integers(0, 100))
def test_runs_cover_all_sequences_and_waste_no_more_than_they_may(sizes, waste):
    runs = attention_runs(sizes, waste)
    assert [number for first, last, _ in runs for number in range(first, last)] == [*range(len(sizes))]
    for first, last, most in runs:
        assert most == max(sizes[first:last])
        assert sum(most - size for size in sizes[first:last]) <= waste
    for (first, _, _), (_, last, _) in pairwise(runs):  # two neighbours would waste more
        taken = sizes[first:last]
        assert sum(max(taken) - size for size in taken) > waste
