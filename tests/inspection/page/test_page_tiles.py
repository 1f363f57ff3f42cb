"""Windows of weights at any scale, and weights from rounded queries and keys."""

import pytest
import torch
import trace_examples
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named

from regard.attention.look import Look
from regard.attention.mask import Causal, Padding, Window
from regard.attention.score import Additive, Bilinear
from regard.inspection.page import tiles
from regard.inspection.page.tiles import Projection, TileCache
from regard.inspection.records import WeightMatrix, single_head
from regard.inspection.trace_format import TracedAttention
from regard.position.bias import ALiBi

HEADS, ROWS, COLUMNS = 4, 23, 31


def every_look():
    """Looks of all kinds, by name."""
    plain = trace_examples.looks(HEADS, ROWS, COLUMNS)
    chance = torch.Generator().manual_seed(9)

    def draw(*shape):
        return torch.randn(*shape, generator=chance)

    return {
        "plain": plain,
        "grouped": Look(plain.query, plain.key[:2]),
        "causal": Look(plain.query, plain.key, mask=Causal()),
        "window": Look(plain.query, plain.key, mask=Window(3, 1)),
        "tensor": Look(plain.query, plain.key, mask=draw(HEADS, ROWS, COLUMNS) > 0),
        "tensor for all": Look(plain.query, plain.key, mask=draw(ROWS, COLUMNS) > 0),
        "padding": Look(plain.query, plain.key, mask=Padding(torch.tensor(20))),
        "bias": Look(plain.query, plain.key, bias=draw(HEADS, ROWS, COLUMNS)),
        "bias for all": Look(plain.query, plain.key, bias=draw(1, ROWS, COLUMNS)),
        "alibi": Look(plain.query, plain.key, bias=ALiBi([0.5, 0.25, 0.1, 0.0])),
        "additive": Look(plain.query, plain.key, score=Additive(draw(HEADS, 8), draw(HEADS, 8))),
        "additive for all": Look(plain.query, plain.key, score=Additive(draw(8))),
        "bilinear": Look(plain.query, plain.key, score=Bilinear(draw(HEADS, 8, 8))),
        "own score": Look(plain.query, plain.key, score=lambda q, k: -torch.cdist(q, k)),
        "relu": Look(plain.query, plain.key, normalize="relu"),
        "half": Look(plain.query.bfloat16(), plain.key.bfloat16()),
        "matrix": WeightMatrix(draw(HEADS, ROWS, COLUMNS)),
    }


KINDS = sorted(every_look())


def attention(look):
    return TracedAttention("one", "a", "b", look)


def means(weights, size):
    """Means of blocks, one by one."""
    return torch.tensor([[weights[top:top + size, left:left + size].double().mean()
                          for left in range(0, weights.shape[1], size)] for top in range(0, weights.shape[0], size)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", [0, 3])
def test_a_window_is_a_part_of_the_matrix(kind, head):
    one = attention(every_look()[kind])
    got = TileCache().window(one, head, tiles.TileWindow(5, 7, 9, 11))
    want = one.look.weights()[head].float()[5:14, 7:18]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, atol=1e-6 if kind != "half" else 1e-2, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole", [0, 1 << 30])
def test_blocks_are_means(kind, whole, monkeypatch):
    monkeypatch.setattr(tiles, "MAX_OVERVIEW", whole)  # by stripes, and whole
    monkeypatch.setattr(tiles, "STRIPE_BLOCKS", 2)
    monkeypatch.setattr(tiles, "WEIGHTS_AT_ONCE", 100)
    one = attention(every_look()[kind])
    got = TileCache().window(one, 1, tiles.TileWindow(4, 8, 18, 23), size=4)
    want = means(one.look.weights()[1].float(), 4)[1:6, 2:8].float()
    torch.testing.assert_close(got, want, atol=1e-6 if kind != "half" else 1e-2, rtol=1e-4)


@given(top=st.integers(0, 5), left=st.integers(0, 7), rows=st.integers(1, 40), columns=st.integers(1, 40),
       size=st.sampled_from([1, 2, 3, 4, 64]))
def test_any_window_of_any_size(top, left, rows, columns, size):
    one = attention(trace_examples.looks(1, ROWS, COLUMNS, mask=Causal()))
    top, left = top * size % ROWS // size * size, left * size % COLUMNS // size * size
    got = TileCache().window(one, 0, tiles.TileWindow(top, left, rows, columns), size=size)
    want = means(one.look.weights()[0], size)[top // size:, left // size:].float()
    want = want[:-(-min(rows, ROWS - top) // size), :-(-min(columns, COLUMNS - left) // size)]
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"padding", "alibi", "own score"}))
def test_single_heads_are_split_where_possible(kind):
    look = every_look()[kind]
    alone = single_head(look, 2)
    assert alone is not None
    torch.testing.assert_close(alone.weights()[0], look.weights()[2])


@pytest.mark.parametrize("kind", ["padding", "alibi", "own score"])
def test_heads_without_parts_of_their_own_are_not_split(kind):
    assert single_head(every_look()[kind], 2) is None


def asked_of(monkeypatch):
    """The sizes of the overviews that are computed from now on."""
    asked, plain = [], tiles.head_overview
    monkeypatch.setattr(tiles, "head_overview", lambda *given: asked.append(given[2]) or plain(*given))
    return asked


def test_tiles_are_cached_and_evicted(monkeypatch):
    one, asked = attention(trace_examples.looks(1, 64, 64)), asked_of(monkeypatch)
    kept = TileCache(limit=2 * 4 * 22 * 22)
    for size in (3, 3, 5, 3, 7, 3):
        kept.window(one, 0, tiles.TileWindow(0, 0, 64, 64), size=size)
    assert asked == [3, 5, 7]
    small = TileCache(limit=0)
    for size in (3, 5, 3):
        small.window(one, 0, tiles.TileWindow(0, 0, 64, 64), size=size)
    assert asked == [3, 5, 7, 3, 5, 3]


def test_one_computation_serves_all_coarser_maps(monkeypatch):
    monkeypatch.setattr(tiles, "MAX_OVERVIEW", 16 * 16)
    one, asked, kept = attention(trace_examples.looks(1, 61, 57)), asked_of(monkeypatch), TileCache()
    weights = one.look.weights()[0]
    for size in (16, 4, 8, 32, 64):
        got = kept.window(one, 0, tiles.TileWindow(0, 0, 61, 57), size=size)
        torch.testing.assert_close(got, means(weights, size).float(), atol=1e-6, rtol=1e-4)
    assert asked == [4]


def test_two_attentions_are_not_mixed_up():
    kept, one, two = TileCache(), attention(trace_examples.looks(1, 8, 8)), attention(trace_examples.looks(1, 8, 8,
                                                                                                           seed=1))
    whole = tiles.TileWindow(0, 0, 8, 8)
    assert not torch.equal(kept.window(one, 0, whole, 2), kept.window(two, 0, whole, 2))


def test_nothing_holds_the_matrix():
    count = 20_000
    one = attention(trace_examples.looks(1, count, count, width=4))
    held = []
    plain = Look.rows

    def watched(self, indices):
        held.append(len(indices) * count)
        return plain(self, indices)

    Look.rows = watched
    try:
        TileCache().window(one, 0, tiles.TileWindow(0, 0, 512, 512), size=1)
    finally:
        Look.rows = plain
    assert max(held) <= tiles.WEIGHTS_AT_ONCE


@pytest.mark.parametrize(("size", "most", "want"), [(1, 256, 1), (256, 256, 1), (257, 256, 2), (16384, 256, 64),
                                                    (100_000, 256, 512)])
def test_the_size_of_an_overview(size, most, want):
    assert tiles.overview_block_size(attention(trace_examples.looks(1, size, 1, width=1)), most) == want


@pytest.mark.parametrize(("change", "parts"), [
    ({"head": 4}, ["`head`", "from 0 to 3"]), ({"head": -1}, ["`head`"]), ({"size": 0}, ["`size`"]),
    ({"top": 23}, ["`top`", "below 23"]), ({"left": -1}, ["`left`"]), ({"top": 3, "size": 2}, ["`top`", "size, 2"]),
    ({"rows": 0}, ["`rows`"]), ({"columns": -5}, ["`columns`"]),
])
def test_wrong_windows_are_refused(change, parts):
    given = {"head": 0, "top": 0, "left": 0, "rows": 4, "columns": 4, "size": 1} | change
    head, size = given.pop("head"), given.pop("size")
    one = attention(every_look()["plain"])
    assert_named(lambda: TileCache().window(one, head, tiles.TileWindow(**given), size), parts)


def test_an_answer_has_a_limit(monkeypatch):
    monkeypatch.setattr(tiles, "MAX_ANSWER", 100)
    one = attention(every_look()["plain"])
    assert_named(lambda: TileCache().window(one, 0, tiles.TileWindow(0, 0, 23, 31)), ["`window`", "at most 100 blocks"])
    assert TileCache().window(one, 0, tiles.TileWindow(0, 0, 23, 31), 4).shape == (6, 8)




@pytest.mark.parametrize("mask", [None, Causal(), Window(4, 0), Window(2, 3), Window(None, 1)])
@pytest.mark.parametrize("shape", [(17, 17), (9, 30), (30, 9)])
@pytest.mark.parametrize("size", [1, 4, 64])
def test_normalizers_and_means_of_blocks(mask, shape, size, monkeypatch):
    monkeypatch.setattr(tiles, "WEIGHTS_AT_ONCE", 60)
    look = trace_examples.looks(4, *shape, mask=mask)
    rounded = Look(look.query, look.key[:2], mask=mask)
    found = Projection.of(attention(rounded)).rounded(24)
    normalizers, means = found.normalizers_and_means(size)
    scores = rounded.query @ rounded.key.repeat_interleave(2, 0).mT / 8 ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask.matrix(*shape), -torch.inf)
    torch.testing.assert_close(normalizers, scores.logsumexp(-1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(means, rounded.block_map(size), atol=1e-6, rtol=1e-4)
    assert found.error(attention(rounded)) < 1e-6


@pytest.mark.parametrize("bits", [10, 14])
def test_the_error_is_that_of_rounding(bits):
    look = trace_examples.looks(2, 20, 20)
    sharp = Look(look.query * 5, look.key)
    rounded = []
    for numbers in (sharp.query, sharp.key):
        steps = [float(head.abs().max()) / (2 ** (bits - 1) - 1) for head in numbers]
        rounded.append(torch.stack([(head / step).round() * step for head, step in zip(numbers, steps, strict=True)]))
    want = float((Look(*rounded).weights() - sharp.weights()).abs().max())
    assert Projection.of(attention(sharp)).rounded(bits).error(attention(sharp)) == pytest.approx(want, rel=0.01)
    assert want > 1e-4


@pytest.mark.parametrize("mask", [None, Causal()])
def test_projections_of_24_bits_are_exact(mask):
    look = trace_examples.looks(2, 30, 30)
    sharp = attention(Look(look.query * 9, look.key, mask=mask))
    errors = [Projection.of(sharp).rounded(bits).error(sharp) for bits in (12, 16, 24)]
    assert errors[0] > 5e-4
    assert errors[2] < 2e-5
    assert errors == sorted(errors, reverse=True)
    assert Projection.of(sharp).rounded(24).query.abs().max() < 2 ** 23


@pytest.mark.parametrize("look", [
    WeightMatrix(torch.rand(1, 3, 3)), trace_examples.looks(1, 3, 3, normalize="relu"),
    trace_examples.looks(1, 3, 3, bias=torch.rand(3, 3)),
    trace_examples.looks(1, 3, 3, mask=Padding(torch.tensor(2))), trace_examples.additive(1, 3),
    trace_examples.looks(1, 3, 3, mask=Causal() & Window(1, 0)),
    trace_examples.looks(1, 3, 3, score=lambda q, k: q @ k.mT)])
def test_other_scores_and_normalisers_are_not_projected(look):
    assert Projection.of(attention(look)) is None


def test_bytes_are_counted():
    """Each head begins with a new byte: 15 numbers of 12 bits are 22.5 bytes."""
    found = Projection.of(attention(trace_examples.looks(2, 5, 7, width=3)))
    assert found.nbytes(12) == 2 * (23 + 32) + 4 * 2 * 5
    assert found.nbytes(24) == 3 * (2 * 5 * 3 + 2 * 7 * 3) + 4 * 2 * 5


@pytest.mark.parametrize("kind", ["plain", "grouped", "causal", "window", "tensor", "padding", "bias", "bias for all",
                                  "alibi", "bilinear", "relu", "half"])
def test_the_score_of_a_weight_is_the_sum_of_its_products(kind):
    look = every_look()[kind]
    one, shared = attention(look), HEADS // look.key.shape[0]
    for head, row, column in ((0, 0, 0), (3, 22, 30), (2, 11, 7), (1, 5, 13)):
        query, key = look.query[head, row].double(), look.key[head // shared, column].double()
        if kind == "bilinear":
            query = (look.query[head, row] @ look.score.weight[head]).double()
        parts = TileCache().score(one, head, row, column)
        want = [float(query[d]) * float(key[d]) for d in range(8)]
        assert parts.products == pytest.approx(want, rel=1e-6 if kind == "bilinear" else 1e-15)
        assert parts.product == pytest.approx(sum(want), abs=1e-6)
        assert parts.scale == pytest.approx(1.0 if kind == "bilinear" else 8 ** -0.5)
        assert parts.weight == pytest.approx(float(look.weights()[head, row, column]), abs=1e-6)
        if parts.masked:
            assert parts.weight == 0.0


@pytest.mark.parametrize("kind", ["causal", "bias", "alibi", "grouped"])
def test_weights_are_the_softmax_of_the_scores(kind):
    look = every_look()[kind]
    for head, row in ((0, 22), (3, 4)):
        parts = [TileCache().score(attention(look), head, row, column) for column in range(COLUMNS)]
        scores = torch.tensor([-torch.inf if one.masked else one.score for one in parts])
        torch.testing.assert_close(scores.softmax(-1), look.weights()[head, row], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["additive", "own score", "matrix"])
def test_other_scores_have_no_products(kind):
    assert TileCache().score(attention(every_look()[kind]), 0, 0, 0) is None


@pytest.mark.parametrize(("place", "name"), [((4, 0, 0), "head"), ((0, 23, 0), "row"), ((0, 0, -1), "column")])
def test_a_score_of_no_weight_is_refused(place, name):
    one = attention(every_look()["plain"])
    assert_named(lambda: TileCache().score(one, *place), [f"`{name}`", str(max(place, key=abs))])
