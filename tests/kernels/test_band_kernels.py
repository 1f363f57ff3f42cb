"""Attention over bands in Triton: equal to the definition, forward and backward; every query and key is in one tile."""

import pytest
import torch
from long_form import sample
from problems import normal

import regard
from regard import Causal, Packed, Padding, Window
from regard.attention.fused import BAND
from regard.attention.mask_cache import Band, band_of
from regard.kernels import launch
from regard.kernels.linear import adjacent_tensor

pytest.importorskip("triton")
from regard.kernels import band as band_kernels

pytestmark = pytest.mark.thorough

INTERPRETED = pytest.mark.skipif(not band_kernels.INTERPRETED, reason="the kernels are compiled here")
MASKS = {
    "none": None, "causal": Causal(), "padding": Padding([21, 0]), "left": Causal() & Padding([5, 33], side="left"),
    "window": Causal() & Window(3, None), "packed": Packed([5, 0, 24, 2]), "causal packed": Causal() & Packed([20, 3]),
}


def asked(name, n_queries, n_keys, heads=2, group=1, width=8, value_width=None, dtype=torch.float32, device="cpu"):
    """Query, key, value that ask for gradients, and what comes from above."""
    shapes = [(2, heads, n_queries, width), (2, heads // group, n_keys, width),
              (2, heads // group, n_keys, value_width or width), (2, heads, n_queries, value_width or width)]
    tensors = [normal(*shape, seed=seed).to(device, dtype) for seed, shape in enumerate(shapes)]
    return [tensor.requires_grad_() for tensor in tensors[:3]], tensors[3]


def results(tensors, above, mask, backend, dtype=None):
    tensors = [tensor.detach().to(dtype or tensor.dtype).requires_grad_() for tensor in tensors]
    output = regard.attend(*tensors, mask=mask, backend=backend)
    return [output.detach(), *torch.autograd.grad(output, tensors, above.to(output.dtype))]


def assert_near(tensors, above, mask):
    exact = results(tensors, above, mask, "exact", torch.float64)
    plain, mine = results(tensors, above, mask, "exact"), results(tensors, above, mask, "band")
    scale = max(truth.abs().max() for truth in exact)  # with one key the gradient of a query is a difference of equals
    for name, truth, one, other in zip(("output", "query", "key", "value"), exact, plain, mine, strict=True):
        error, theirs = ((found.double() - truth).abs().max() for found in (other, one))
        assert error <= 2 * theirs + 8 * torch.finfo(other.dtype).eps * scale, name


@INTERPRETED
@pytest.mark.parametrize("name", MASKS)
def test_output_and_gradients(name):
    n = 33 if "pa" not in name or "ding" in name else 31
    assert_near(*asked(name, n, n), MASKS[name])


@INTERPRETED
@pytest.mark.parametrize(("n_queries", "n_keys", "options"), [
    (1, 1, {}), (1, 40, {}), (18, 5, {"heads": 4, "group": 2, "width": 5, "value_width": 3}), (17, 33, {"width": 20}),
])
def test_odd_sizes_and_grouped_heads(n_queries, n_keys, options):
    assert_near(*asked("none", n_queries, n_keys, **options), Causal())


@INTERPRETED
def test_sources_and_targets_of_different_lengths():
    assert_near(*asked("packed", 31, 22), Packed([5, 20, 6], [9, 0, 13]))


@INTERPRETED
@pytest.mark.parametrize("mask", [None, Causal()])
@pytest.mark.parametrize(("queries", "keys"), sample([
    ([3, 40, 1, 0, 9, 7, 2, 17, 5], None), ([1] * 35, None), ([52], None), ([9] * 14, None),
    ([3, 5, 40, 4, 0, 6], [7, 0, 9, 30, 5, 8]),
], 0, 1, 4))
def test_any_mixture_of_lengths(mask, queries, keys):
    """A tile holds 16 tokens: some sequences share one, some fill several; and some leave so much room in theirs that
    a program has more than one tile."""
    both = Packed(queries, keys)
    tensors, above = asked("packed", sum(queries) + 2, sum(keys or queries) + 3, heads=2, width=5, value_width=7)
    assert_near(tensors, above, both if mask is None else mask & both)


@INTERPRETED
def test_many_tiles_of_half_precision():
    lengths = [14, 9, 21, 12, 5, 3, 30, 11] * 3
    tensors, above = asked("packed", sum(lengths), sum(lengths), heads=1, width=16, dtype=torch.float16)
    assert_near([tensor[:1] for tensor in tensors], above[:1], Causal() & Packed(lengths))


@INTERPRETED
@pytest.mark.parametrize("group", [1, 2])
def test_heads_may_see_runs_of_their_own(group):
    """Those that share keys share tiles: what is whole for one of them alone is not whole."""
    packed = [Packed([9, 11, 3]), Packed([12, 11])]
    bands = [band_of(one.prepare(23, 23, None), 23, 23, leading=0, device=torch.device("cpu")) for one in packed]
    mask = Band(torch.stack([one.first for one in bands]), torch.stack([one.last for one in bands]))
    assert_near(*asked("packed", 23, 23, group=group), mask)


@INTERPRETED
def test_slices_of_one_projection_are_read_where_they_lie(monkeypatch):
    joint = normal(2, 21, 3, 2, 8).float()
    read = []
    run = launch._run
    monkeypatch.setattr(launch, "_run", lambda kernel, grid, given, sizes: (
        read.append({tensor.data_ptr() for tensor in given if isinstance(tensor, torch.Tensor)}),
        run(kernel, grid, given, sizes)))
    slices = [part.transpose(1, 2) for part in joint.unbind(2)]
    assert_near(slices, normal(2, 2, 21, 8).float(), Packed([4, 17]))
    slices = [part.requires_grad_() for part in slices]
    read.clear()
    regard.attend(*slices, mask=Packed([4, 17]), backend="band").sum().backward()
    assert all({part.data_ptr() for part in slices} <= places for places in read[1:])  # the first one finds tiles
    assert len(read) == 5


@INTERPRETED
def test_tiles_are_found_once_for_all_that_ask(monkeypatch):
    names = []
    run = launch._run
    monkeypatch.setattr(launch, "_run", lambda kernel, *given: (names.append(kernel.__name__), run(kernel, *given)))
    mask = Packed([3, 17]).prepare(20, 20, None)
    band = band_of(mask, 20, 20, leading=2, device=torch.device("cpu"))
    for _ in range(2):
        results(*asked("packed", 20, 20), band, "band")
    assert sorted(names) == sorted(["_find_tiles_kernel",
                                    *["_whole_forward", "_part_forward", "_whole_backward", "_part_backward"] * 2])


@INTERPRETED
def test_who_sees_nothing_gets_zeros_and_what_nobody_sees_changes_nothing():
    tensors, above = asked("packed", 20, 20)
    mask = Packed([3, 0, 9])  # behind it are eight tokens of nobody
    clean = results(tensors, above, mask, "band")
    for tensor in tensors:
        tensor.data[..., 12:, :] = torch.nan
    above[..., 12:, :] = torch.nan
    dirty = results(tensors, above, mask, "band")
    assert (clean[0][..., 12:, :] == 0).all()
    for one, other in zip(clean, dirty, strict=True):
        assert torch.equal(one[..., :12, :], other[..., :12, :])
        assert (other[..., 12:, :] == 0).all()


@INTERPRETED
@pytest.mark.parametrize("lengths", [[12, 8], [18, 2]])  # a tile holds 16: whole, and cut
def test_dropped_weights_are_the_same_in_the_backward_pass(lengths):
    (query, key, value), above = asked("causal", 20, 20)
    mask = Causal() & Packed(lengths)

    def run(query, key, value):
        torch.manual_seed(5)
        return regard.attend(query, key, value, mask=mask, dropout=0.3, backend="band")

    ones = torch.ones_like(value)
    kept = run(query, key, ones).detach().mean()
    assert 0.7 < float(kept) < 1.3
    assert not torch.equal(run(query, key, ones), ones)
    weights = run(query, key, torch.eye(20).expand(2, 2, -1, -1))
    torch.testing.assert_close(run(query, key, value), weights @ value)
    gradients = torch.autograd.grad(run(query, key, value), (query, key, value), above)
    exact = regard.attention_weights(query, key, mask=mask)
    scaled = torch.where(weights != 0, exact / 0.7, 0.0)
    expected = torch.autograd.grad(scaled @ value, (query, key, value), above)
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    torch.manual_seed(6)
    assert not torch.equal(regard.attend(query, key, value, mask=mask, dropout=0.3, backend="band"),
                           run(query, key, value))


@pytest.mark.parametrize(("options", "words"), [
    ({"normalize": "relu"}, "softmax, not relu"), ({"score": regard.Additive(torch.ones(8))}, "dot products"),
    ({"bias": torch.zeros(5)}, "a bias"), ({"mask": ~Causal()}, "more than one range of keys"),
])
def test_what_it_refuses(options, words):
    with pytest.raises(ValueError, match=words):
        regard.attend(*asked("none", 5, 5)[0], **options, backend="band")


def test_what_it_refuses_of_tensors():
    (query, key, value), _ = asked("none", 5, 5)
    for tensors, words in (([query.double(), key.double(), value.double()], "float64"),
                           ([query[..., :0, :], key, value], "no queries or no keys"),
                           ([torch.zeros(1, 1, 5, 300)] * 3, "up to 256")):
        with pytest.raises(ValueError, match=words):
            regard.attend(*tensors, backend="band")


def test_on_a_cpu_it_is_only_for_tests():
    reasons = regard.explain(*asked("none", 5, 5)[0], mask=Packed([5])).reasons
    assert "band" not in reasons  # segments are cut there
    made = regard.explain(*asked("none", 5, 5)[0], mask=Packed([5]), backend="tiled").reasons
    assert "interpreter" in made["band"] or "installed" in made["band"] or "GPUs" in made["band"]
    assert BAND.detail(None)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_gpu(name, dtype):
    tensors, above = asked(name, 333, 333, heads=4, group=2, width=64, dtype=dtype, device="cuda")
    mask = MASKS[name]
    if name == "packed":
        mask = Packed([5, 0, 200, 2, 100])
    if name == "causal packed":
        mask = Causal() & Packed([20, 300])
    assert_near(tensors, above, mask)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 20, 160])
def test_many_short_sequences_on_a_gpu(dtype, width):
    """Tiles of all sizes, sources and targets; and what is computed twice is the same, whatever came first."""
    targets = torch.randint(0, 40, (150,), generator=torch.Generator().manual_seed(3))
    sources = (targets + torch.arange(150) % 5 - 2).clamp(min=0)
    sources[70] = 300
    mask = Packed(targets.cuda(), sources.cuda())
    tensors, above = asked("packed", int(targets.sum()), int(sources.sum()), width=width, dtype=dtype, device="cuda")
    assert_near(tensors, above, mask)
    for one, other in zip(*(results(tensors, above, mask, "band") for _ in range(2)), strict=True):
        assert torch.equal(one, other)


@INTERPRETED
def test_rows_may_be_farther_apart_than_32_bits_count():
    """2 · 2^30 numbers from the first row to the third, of which nobody touches more than the rows themselves."""
    tensors, above = asked("none", 5, 5, heads=1, dtype=torch.float16)
    far = torch.empty(2**31 + 40, dtype=torch.float16).as_strided((3, 1, 5, 8), (2**30, 40, 8, 1))
    far[0], far[1], far[2] = tensors[0][0].detach(), 0.0, tensors[0][1].detach()
    small = far.clone().requires_grad_()
    above = torch.stack([above[0], above[0], above[1]])
    found = [results([tensor] * 3, above, Causal(), "band") for tensor in (far.requires_grad_(), small)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@INTERPRETED
def test_there_may_be_more_heads_than_a_grid_is_high(monkeypatch):
    """The second side of a grid has 65,535 places at most, and a launch of more is an error of the device."""
    grids = []
    run = launch._run
    monkeypatch.setattr(launch, "_run", lambda kernel, grid, *given: (grids.append(grid), run(kernel, grid, *given)))
    tensors, above = asked("none", 17, 17)
    results(tensors, above, Causal(), "band")
    assert len(grids) == 5  # tiles, and each pass for whole ones and for parts
    assert all(len(grid) == 1 for grid in grids)


@INTERPRETED
def test_keys_and_values_may_have_one_head_for_all_of_the_others():
    for heads in ((4, 1, 2), (4, 2, 1), (2, 1, 2), (1, 2, 2), (1, 2, 1)):
        tensors = [normal(2, count, 9, 4, seed=count).float() for count in heads]
        assert_near(tensors, normal(2, max(heads), 9, 4), Causal())


@INTERPRETED
def test_a_second_derivative_is_an_error_and_not_a_zero():
    (query, key, value), _ = asked("none", 3, 3)
    output = regard.attend(query, key, value, backend="band")
    with pytest.raises(ValueError, match="`create_graph` must be False"):
        torch.autograd.grad(output.sum(), query, create_graph=True)


@INTERPRETED
@pytest.mark.parametrize(("n_keys", "group", "lying"), [(9, 1, 3), (9, 2, 3), (5, 1, 2), (7, 2, 2)])
def test_what_one_product_made_gets_gradients_side_by_side(n_keys, group, lying):
    """Slices of one tensor are read where they lie, and their gradients are slices of one tensor again."""
    widths = [4 * 4, 4 // group * 4, 4 // group * 4]
    made = [normal(2, 9 if n == 0 else n_keys, width, seed=n).float() for n, width in enumerate(widths)]
    joint = torch.cat(made[3 - lying:], -1)
    parts = [*made[:3 - lying], *joint.split(widths[3 - lying:], -1)]
    parts = [part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in parts]
    assert not parts[2].transpose(1, 2).is_contiguous()
    above = normal(2, 4, 9, 4, seed=9).float()
    leaves = [part.detach().requires_grad_() for part in parts]
    output = regard.attend(*leaves, mask=Causal(), backend="band")
    found = torch.autograd.grad(output, leaves, above)
    flat = [gradient.transpose(1, 2).flatten(-2) for gradient in found]
    together = adjacent_tensor(flat[3 - lying:], -1)
    assert together is not None
    assert together.is_contiguous()
    assert adjacent_tensor(flat, -1) is None or lying == 3
    assert_near(parts, above, Causal())


def band_for(mask, n_queries, n_keys):
    return band_of(mask.prepare(n_queries, n_keys, None), n_queries, n_keys, leading=0, device=torch.device("cpu"))


def tiles_found(first, last, n_keys, size):
    """Whole tiles and parts, in order."""
    tiles, counts = band_kernels.find_tiles(first, last, n_keys, size)
    assert (counts <= tiles.shape[1]).all()
    return [sorted(map(tuple, kind[:count].tolist())) for kind, count in zip(tiles, counts, strict=True)]


def lengths_drawn(count, longest, seed):
    lengths = torch.randint(0, longest + 1, (count,), generator=torch.Generator().manual_seed(seed))
    return lengths.where(torch.arange(count) % 7 != 5, lengths % 3)


def assert_cut(ends, n_keys, size):
    whole, parts = tiles_found(ends.first, ends.last, n_keys, size)
    queries, keys = torch.zeros(ends.first.shape[-1]), torch.zeros(n_keys)
    for start, stop, low, high in whole + parts:
        assert stop - start <= size
        assert high - low <= size
        queries[start:stop] += 1
        keys[low:high] += 1
    assert (queries == 1).all()
    assert (keys == 1).all()
    column = torch.arange(n_keys)
    matrix = (column >= ends.first[:, None]) & (column < ends.last[:, None])
    for start, stop, low, high in whole:
        inside = matrix[start:stop, low:high].sum()
        assert inside == matrix[start:stop].sum() == matrix[:, low:high].sum()
    return whole, parts


@INTERPRETED
def test_as_many_sequences_as_there_is_room_for():
    lengths = Packed([5, 9, 3, 20, 4, 16])
    whole, parts = assert_cut(band_for(lengths, 57, 57), 57, 16)
    assert whole == [(0, 14, 0, 14), (14, 17, 14, 17), (37, 41, 37, 41), (41, 57, 41, 57)]
    assert parts == [(17, 33, 17, 33), (33, 37, 33, 37)]


@INTERPRETED
def test_either_side_may_be_full_first():
    whole, parts = assert_cut(band_for(Packed([2, 2, 9, 1], [7, 8, 2, 20]), 14, 37), 37, 16)
    assert whole == [(0, 4, 0, 15), (4, 13, 15, 17)]
    assert parts == [(13, 14, 17, 33), (14, 14, 33, 37)]


@pytest.mark.parametrize("mask", [None, Causal(), Causal() & Window(4, None)])
@pytest.mark.parametrize(("count", "longest", "seed"), sample(
    [(1, 200, 0), (40, 30, 1), (12, 200, 2), (3, 1, 3)], 0, 1, 3))
@INTERPRETED
def test_any_lengths(mask, count, longest, seed):
    queries, keys = lengths_drawn(count, longest, seed), lengths_drawn(count, longest, seed + 9)
    n_queries, n_keys = int(queries.sum()) + 1 + seed % 2 * 40, int(keys.sum()) + 1 + seed % 3 * 20
    for both, size in ((Packed(queries), n_queries), (Packed(queries, keys), n_keys)):
        assert_cut(band_for(both if mask is None else mask & both, n_queries, size), size, 16 if seed else 8)


@INTERPRETED
def test_tokens_that_see_themselves_alone_fill_all_tiles_but_the_last_one_of_a_stretch():
    count = 16 * band_kernels.STRETCH + 24
    whole, parts = assert_cut(band_for(Packed([1] * count), count, count), count, 16)
    assert not parts
    assert len(whole) == band_kernels.STRETCH + 2


@INTERPRETED
def test_one_sequence_for_all_is_cut():
    whole, parts = assert_cut(band_for(Causal(), 1000, 1000), 1000, 16)
    assert not whole
    assert len(parts) == 63


@INTERPRETED
def test_rows_have_tiles_of_their_own():
    one, other = band_for(Packed([30, 3]), 33, 33), band_for(Packed([3, 2, 28]), 33, 33)
    tiles, counts = band_kernels.find_tiles(*(torch.stack(ends).unsqueeze(0) for ends in (
        (one.first, other.first), (one.last, other.last))), 33, 16)
    assert tiles.shape[:3] == (1, 2, 2)
    for row, ends in enumerate((one, other)):
        mine = [sorted(map(tuple, tiles[0, row, kind, :counts[0, row, kind]].tolist())) for kind in (0, 1)]
        assert mine == tiles_found(ends.first, ends.last, 33, 16)


@INTERPRETED
def test_ends_beyond_all_keys_are_those_of_nobody():
    """Who sees nothing may say so by ends that are anywhere, if they only never fall."""
    assert_cut(Band(torch.tensor([0, 0, 3, 9]), torch.tensor([2, 3, 3, 9])), 5, 16)
