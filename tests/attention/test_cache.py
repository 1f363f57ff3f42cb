"""Caches: going on from the tokens before is the same as looking at all of them at once.

The truth is always the layer itself, asked once for the whole of a row by itself, under a causal mask; `test_layer`
holds that against the oracle.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import Waves, assert_close, normal, scorer

import regard
from regard.attention.cache import ContextCache
from regard.mixer import RowGroups

KINDS = ("attention", "basic", "plain")
SCORES = ("dot", "scaled_dot", "scaled_dot_d", "additive", "bilinear", "module")
NORMALIZERS = ("softmax", "relu", "relu_sum", "sigmoid")
WIDTH = 4
PLACED = {"none": {}, "rotary": {"rotary": regard.Rotary(2, base=10.0)},
          "alibi": {"position_bias": regard.ALiBi([1.0, 0.3])},
          "relative": {"position_bias": regard.RelativeBias(2, max_distance=2)},
          "bucketed": {"position_bias": regard.BucketedBias(2, num_buckets=4, max_distance=4)},
          "grouped": {"key_heads": 1, "head_width": 3, "value_width": 5}}
FURTHER = [None, regard.Window(2, None), regard.Window(0, 0), ~regard.Window(1, 1) | regard.Window(0, None)]


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)  # given back by the fixture that all tests have


def make(kind, score="scaled_dot", placed="none", **options):
    """A layer of width 4 with random weights, in float64."""
    if score == "module":
        score = Waves(normal(3 if placed == "grouped" else {"attention": 2}.get(kind, 4), seed=3))
    elif kind == "plain" and score in ("additive", "bilinear"):
        score = scorer(score, None, WIDTH)[0]
    if kind == "attention":
        options |= {"heads": 2, **PLACED[placed]}
    layer = {"attention": regard.Attention, "basic": regard.BasicAttention, "plain": regard.PlainAttention}[kind]
    made = layer(WIDTH, score=score, **options).double()
    for i, parameter in enumerate(made.parameters()):
        parameter.data = normal(*parameter.shape, seed=100 + i)
    return made


@st.composite
def layers(draw):
    kind = draw(st.sampled_from(KINDS))
    placed = draw(st.sampled_from(list(PLACED))) if kind == "attention" else "none"
    backend = draw(st.sampled_from((None, "exact", "tiled")))
    score, normalize = draw(st.sampled_from(SCORES)), draw(st.sampled_from(NORMALIZERS))
    return make(kind, score, placed, normalize=normalize, backend=backend)


def at_once(layer, tokens, further=None):
    """What the layer makes of one sequence (N, width) by itself."""
    mask = regard.Causal() if further is None else regard.Causal() & further
    return layer(tokens[None], mask=mask)[0]


def steps(layer, x, sizes, cache, **options):
    """The outputs of chunks of these sizes, one after another, and the cache after them."""
    outputs = []
    for chunk in x.split(sizes, dim=1):
        output, cache = layer.step(chunk, cache, **options)
        outputs.append(output)
    return torch.cat(outputs, dim=1), cache


# ---- step by step ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_token_after_another_is_all_at_once(kind, score, normalize):
    layer, x = make(kind, score, normalize=normalize), normal(2, 5, WIDTH)
    output, cache = steps(layer, x, 1, layer.start(2, 5))
    assert_close(output, layer(x, mask=regard.Causal()))
    assert cache.positions.tolist() == [5, 5]


@pytest.mark.parametrize("further", FURTHER, ids=str)
@pytest.mark.parametrize("backend", [None, "exact", "tiled", "sdpa"])
@pytest.mark.parametrize("placed", PLACED)
def test_positions_and_further_masks_go_on_where_they_were(placed, backend, further):
    layer, x = make("attention", placed=placed, backend=backend), normal(2, 7, WIDTH)
    mask = regard.Causal() if further is None else regard.Causal() & further
    output, _ = steps(layer, x, [2, 1, 3, 1], layer.start(2, 9), mask=further)
    assert_close(output, layer(x, mask=mask))


@pytest.mark.thorough
@given(layers(), st.lists(st.integers(0, 4), max_size=5), st.integers(0, 3), st.sampled_from(FURTHER))
def test_chunks_may_have_any_size(layer, sizes, spare, further):
    x = normal(2, sum(sizes), WIDTH)
    output, cache = steps(layer, x, [*sizes, 0], layer.start(2, sum(sizes) + spare), mask=further)
    mask = regard.Causal() if further is None else regard.Causal() & further
    assert_close(output, layer(x, mask=mask))
    assert cache.capacity == sum(sizes) + spare


CAPACITY = 12


@pytest.mark.thorough
@given(st.data())
def test_rows_live_their_own_lives(data):
    """Chunks of which each row has its own share; rows picked in any order, more than once, or replaced by others."""
    layer, further = data.draw(layers()), data.draw(st.sampled_from(FURTHER))
    rows = [torch.zeros(0, WIDTH)] * data.draw(st.integers(1, 3))  # what each row has seen
    cache = layer.start(len(rows), CAPACITY)
    for seed in range(data.draw(st.integers(1, 6))):
        act, longest = data.draw(st.sampled_from(("step", "step", "pick", "put", "copy"))), max(map(len, rows))
        if act == "step" and longest < CAPACITY:
            size = data.draw(st.integers(1, min(3, CAPACITY - longest)))
            lengths = data.draw(st.lists(st.integers(0, size), min_size=len(rows), max_size=len(rows)))
            x = normal(len(rows), size, WIDTH, seed=seed)
            output, cache = layer.step(x, cache, mask=further, lengths=torch.tensor(lengths))
            for b, length in enumerate(lengths):
                rows[b] = torch.cat([rows[b], x[b, :length]])
                assert_close(output[b, :length], at_once(layer, rows[b], further)[len(rows[b]) - length:], floor=1e-3)
        elif act == "pick":
            chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=4))
            cache, rows = cache.pick(chosen), [rows[b] for b in chosen]
        elif act == "put":
            chosen = data.draw(st.permutations(range(len(rows))))[:data.draw(st.integers(1, len(rows)))]
            count = data.draw(st.integers(0, 5))
            others = normal(len(chosen), count, WIDTH, seed=seed + 50)
            _, other = layer.step(others, layer.start(len(chosen), data.draw(st.integers(max(1, count), 20))))
            cache = cache.put(torch.tensor(chosen), other)
            rows = [others[chosen.index(b)] if b in chosen else row for b, row in enumerate(rows)]
        else:
            cache = cache.copy()
        assert cache.positions.tolist() == [len(row) for row in rows]
    x = normal(len(rows), 1, WIDTH, seed=99)
    if max(map(len, rows)) < CAPACITY:
        output, _ = layer.step(x, cache)
        for b, row in enumerate(rows):
            assert_close(output[b, -1], at_once(layer, torch.cat([row, x[b]]))[-1], floor=1e-3)


@pytest.mark.parametrize("filler", [1e30, math.nan, math.inf])
@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
def test_what_stands_behind_the_tokens_of_a_ragged_chunk_changes_nothing(backend, filler):
    layer, x = make("attention", backend=backend), normal(2, 4, WIDTH)
    ragged = x.clone()
    ragged[1, 2:] = filler
    first, cache = layer.step(ragged, layer.start(2, 8), lengths=torch.tensor([4, 2]))
    assert_close(first[1, :2], at_once(layer, x[1])[:2])
    assert_close(first[0], at_once(layer, x[0]))
    more = normal(2, 1, WIDTH, seed=1)
    second, _ = layer.step(more, cache)
    assert_close(second[1, 0], at_once(layer, torch.cat([x[1, :2], more[1]]))[-1])


# ---- storage ---------------------------------------------------------------------------------------------------------


def test_a_step_consumes_its_cache_and_a_copy_is_kept():
    layer, x = make("attention"), normal(2, 4, WIDTH)
    _, cache = layer.step(x[:, :2], layer.start(2, 4))
    kept, before = cache.copy(), cache.key.clone()
    first, after = layer.step(x[:, 2:], cache)
    assert after.key.data_ptr() == cache.key.data_ptr()  # no storage is made in a step
    assert not torch.equal(cache.key, before)
    assert torch.equal(kept.key, before)
    assert torch.equal(layer.step(x[:, 2:], kept)[0], first)


def test_picked_rows_have_storage_of_their_own():
    layer, x = make("attention"), normal(3, 4, WIDTH)
    _, cache = layer.step(x, layer.start(3, 6))
    picked, before = cache.pick([2, 0, 0]), (cache.key.clone(), cache.value.clone())
    layer.step(normal(3, 2, WIDTH, seed=1), picked)
    assert torch.equal(cache.key, before[0])
    assert torch.equal(cache.value, before[1])
    assert cache.pick(torch.tensor([1])).positions.tolist() == [4]


def test_no_rows_at_all_can_be_picked():
    layer = make("attention")
    _, cache = layer.step(normal(3, 4, WIDTH), layer.start(3, 6))
    assert cache.pick([]).key.shape[0] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_cache_has_the_precision_of_its_layer(kind, dtype):
    torch.set_default_dtype(torch.float32)
    layer, x = make(kind).to(dtype), normal(1, 3, WIDTH).to(dtype)
    output, _ = steps(layer, x, 1, layer.start(1, 3))
    assert_close(output, layer(x, mask=regard.Causal()), tolerance=8 * torch.finfo(dtype).eps)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_is_on_the_device_of_its_layer(kind):
    layer, x = make(kind).cuda(), normal(1, 3, WIDTH).cuda()
    output, _ = steps(layer, x, 1, layer.start(1, 3))
    assert_close(output, layer(x, mask=regard.Causal()))


def test_tokens_that_do_not_fit_are_an_error_and_nothing_is_written():
    layer = make("attention")
    _, cache = layer.step(normal(2, 3, WIDTH), layer.start(2, 4), lengths=torch.tensor([3, 1]))
    before = cache.key.clone()
    with pytest.raises(ValueError, match=r"`capacity` must be at least 5\b.*, but is 4 instead"):
        layer.step(normal(2, 2, WIDTH), cache)
    assert torch.equal(cache.key, before)
    _, other = layer.step(normal(1, 6, WIDTH), layer.start(1, 6))
    with pytest.raises(ValueError, match=r"`other` must be of at most 4 tokens.*, but is of 6 instead"):
        cache.put([0], other)
    assert torch.equal(cache.key, before)


def long_and_short(layer, capacity=8):
    """A cache of two rows with 6 tokens and 1."""
    x = normal(2, 6, WIDTH)
    return layer.step(x, layer.start(2, capacity), lengths=torch.tensor([6, 1]))[1], x


def test_there_is_room_again_when_the_longest_row_has_left():
    layer, more = make("attention"), normal(2, 5, WIDTH, seed=1)
    cache, x = long_and_short(layer)
    with pytest.raises(ValueError, match=r"at least 11\b"):
        cache.filled_after(5)
    picked = cache.pick([1, 1])
    assert picked.filled_after(5) == 6
    output, after = layer.step(more, picked)
    assert after.filled_after(2) == 8
    replaced = cache.put([0], cache.pick([1]))
    assert replaced.positions.tolist() == [1, 1]
    for b, result in enumerate((output[0], layer.step(more, replaced)[0][1])):
        assert_close(result, at_once(layer, torch.cat([x[1, :1], more[b]]))[1:])


def test_a_row_that_fits_can_be_put_into_a_smaller_cache():
    layer = make("attention")
    cache, x = long_and_short(layer)
    small = layer.start(2, 4).put([1], cache.pick([1]))  # one token, from storage that once held six
    more = normal(2, 1, WIDTH, seed=1)
    output, _ = layer.step(more, small)
    assert_close(output[1, 0], at_once(layer, torch.cat([x[1, :1], more[1]]))[-1])


# ---- a fixed context -------------------------------------------------------------------------------------------------


def remembered(kind, score="scaled_dot", normalize="softmax"):
    layer = make(kind, score, normalize=normalize)
    context, lengths = normal(3, 5, WIDTH, seed=1), torch.tensor([5, 0, 3])
    return layer, context, lengths


@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_remembered_context_is_the_context(kind, score, normalize):
    layer, context, lengths = remembered(kind, score, normalize)
    x, tensor = normal(3, 4, WIDTH), normal(3, 4, 5, seed=8) > 0
    for memory, mask in ((layer.remember(context, lengths), regard.Padding(lengths)), (layer.remember(context), None)):
        output, same = steps(layer, x, [1, 2, 1], memory)
        assert_close(output, layer(x, context, mask=mask))
        assert same is memory
        for further in (tensor, regard.Causal(), ~regard.Window(1, 1)):
            both = further if mask is None else mask & further
            assert_close(layer.step(x, memory, mask=further)[0], layer(x, context, mask=both))


@pytest.mark.parametrize("kind", ["attention", "basic"])
def test_a_context_is_projected_once(kind):
    layer, context, lengths = remembered(kind)
    calls = []
    handle = layer.key.register_forward_hook(lambda *_: calls.append(1))
    steps(layer, normal(3, 4, WIDTH), 1, layer.remember(context, lengths))
    handle.remove()
    assert len(calls) == 1


@pytest.mark.parametrize("filler", [0.0, math.nan])
@pytest.mark.parametrize("kind", KINDS)
def test_contexts_are_picked_and_replaced_by_row(kind, filler):
    layer, context, lengths = remembered(kind)
    context[2, 3:] = filler
    x, memory = normal(3, 2, WIDTH), layer.remember(context, lengths)

    def check(memory, *contexts):
        """Each row sees exactly this context; an empty one gives the answer to nothing."""
        output = layer.step(x, memory)[0]
        for b, own in enumerate(contexts):
            alone = layer(x[b:b + 1], own[None])[0]
            assert_close(output[b], alone, floor=1e-3)

    whole = [context[0], context[1, :0], context[2, :3]]
    check(memory, *whole)
    check(memory.pick([2, 0, 2]), whole[2], whole[0], whole[2])
    check(memory.pick(torch.tensor([1, 1, 0])), whole[1], whole[1], whole[0])
    for length in (2, 5, 7):
        other = normal(1, length, WIDTH, seed=length)
        check(memory.put([1], layer.remember(other)), whole[0], other[0], whole[2])
        short = layer.remember(other, torch.tensor([1]))
        check(memory.put([0], short), other[0, :1], *whole[1:])
        twice, unpadded = layer.remember(other).pick([0, 0]), layer.remember(context[:, :3])
        check(unpadded.put(torch.tensor([2, 0]), twice), other[0], context[1, :3], other[0])
    check(memory, *whole)  # none of this changed it


def test_a_copied_context_is_apart():
    layer, context, lengths = remembered("attention")
    memory = layer.remember(context, lengths.clone())
    kept = memory.copy()
    memory.key.data.zero_(), memory.lengths.zero_()
    assert_close(layer.step(context, kept)[0], layer(context, context, mask=regard.Padding(lengths)))
    assert layer.remember(context).copy().lengths is None


def test_lengths_may_be_any_kind_of_integers():
    layer, context, lengths = remembered("attention")
    memory = layer.remember(context, lengths.int()).put([1], layer.remember(context[:1]))
    assert memory.lengths.tolist() == [5, 5, 3]


def test_rows_of_a_context_in_another_precision_can_be_put():
    layer = regard.Attention(6, heads=2).float()
    mine, context = (torch.randn(rows, 3, 6, dtype=torch.float32) for rows in (2, 1))
    mine = layer.remember(mine)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other = layer.remember(context)
    assert (mine.key.dtype, other.key.dtype) == (torch.float32, torch.bfloat16)
    put = mine.put([1], other)
    assert put.key.dtype == torch.float32
    assert torch.equal(put.key[1], other.key[0].float())


def test_keys_that_no_row_has_any_more_are_not_looked_at():
    layer = make("attention")
    long, short = (layer.step(normal(2, count, WIDTH), layer.start(2, 9))[1] for count in (7, 2))
    assert long.copy().put([0], short.pick([0])).filled == 7
    both = long.put([0, 1], short)
    assert (both.filled, both.positions.tolist()) == (2, [2, 2])


@given(index=st.lists(st.integers(0, 3), min_size=1, max_size=4), seed=st.integers(0, 9))
def test_rows_picked_from_a_spent_state_stand_in_its_storage(index, seed):
    layer, x = make("attention"), normal(4, 3, WIDTH, seed=seed)
    _, cache = layer.step(x, layer.start(4, 6), lengths=torch.tensor([3, 1, 2, 3]))
    apart, rows = cache.pick(index), torch.tensor(index)
    moved = cache.pick(RowGroups(rows, 1, 1, reuse_storage=True))
    assert moved.key.data_ptr() == cache.key.data_ptr()
    assert moved.positions.tolist() == apart.positions.tolist()
    more = normal(len(index), 2, WIDTH, seed=seed + 20)
    assert torch.equal(layer.step(more, moved)[0], layer.step(more, apart)[0])


def test_more_rows_than_a_spent_state_has_get_storage_of_their_own():
    """With room for more, so that rows that come later find storage."""
    layer = make("attention")
    _, cache = layer.step(normal(2, 3, WIDTH), layer.start(2, 6))
    more = cache.pick(RowGroups(torch.tensor([0, 1, 1, 0]), 1, 1, reuse_storage=True))
    assert more.key.data_ptr() != cache.key.data_ptr()
    assert torch.equal(more.key[2, :, :3], cache.key[1, :, :3])
    storage = more.key.data_ptr()
    fewer = more.pick(RowGroups(torch.tensor([3]), 1, 1, reuse_storage=True))
    apart = fewer.pick([0] * 6)
    again = fewer.pick(RowGroups(torch.tensor([0] * 6), 1, 1, reuse_storage=True))
    assert (fewer.key.data_ptr(), again.key.data_ptr()) == (storage, storage)
    assert torch.equal(again.key[:, :, :3], apart.key[:, :, :3])
    tokens = normal(6, 1, WIDTH, seed=5)
    assert torch.equal(layer.step(tokens, again)[0], layer.step(tokens, apart)[0])


def test_rows_that_come_later_read_nothing_of_what_was_in_their_storage():
    layer = make("attention")
    _, cache = layer.step(normal(3, 4, WIDTH), layer.start(3, 6), lengths=torch.tensor([4, 4, 2]))
    one = cache.pick(RowGroups(torch.tensor([0]), 1, 1, reuse_storage=True))
    cache.key[1:], cache.value[1:] = math.nan, math.nan
    apart = one.pick([0, 0, 0])
    grown = one.pick(RowGroups(torch.tensor([0, 0, 0]), 1, 1, reuse_storage=True))
    tokens = normal(3, 1, WIDTH, seed=6)
    assert torch.equal(layer.step(tokens, grown)[0], layer.step(tokens, apart)[0])


def test_contexts_of_which_all_tokens_are_there_need_no_mask():
    key = torch.randn(2, 1, 3, 4)
    full = ContextCache.of(key, key, torch.tensor([3, 3]))
    assert full.mask is None
    assert full.pick([1]).mask is None
    assert full.lengths.tolist() == [3, 3]
    assert ContextCache.of(key, key, torch.tensor([3, 2])).mask is not None
    shorter = ContextCache.of(key[:1, :, :2], key[:1, :, :2], torch.tensor([2]))
    assert full.put([0], shorter).mask.tensor.squeeze().tolist() == [[True, True, False], [True, True, True]]
    nothing = ContextCache.of(key[:, :, :0], key[:, :, :0], torch.tensor([0, 0]))
    assert nothing.mask is not None, "who sees nothing is told so"


@given(st.integers(1, 6), st.integers(1, 3), st.data())
def test_contexts_that_move_within_their_storage_are_those_that_are_copied(count, width, data):
    key, value, lengths = normal(count, 2, 5, 3), normal(count, 2, 5, 3, seed=1), torch.arange(count) % 5 + 1
    cache = ContextCache.of(key, value, lengths, width)
    groups = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), max_size=count)), dtype=torch.long)
    rows = (groups.unsqueeze(-1) * width + torch.arange(width)).flatten()
    want = cache.pick(RowGroups(rows, width, width, groups))
    key, value = key.clone(), value.clone()
    found = ContextCache.of(key, value, lengths).move(groups, width)
    for one, other in ((found.key, want.key), (found.value, want.value), (found.lengths, want.lengths)):
        assert torch.equal(one, other)
    assert (found.mask is None) == (want.mask is None)
    assert found.mask is None or torch.equal(found.mask.tensor, want.mask.tensor)
    assert found.rows_per_context == width
    assert found.key.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
    assert found.value.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
