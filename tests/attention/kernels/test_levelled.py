"""`levelled`: short packed sequences in one batch, equal to the definition, and only where it pays."""

import pytest
import torch
from problems import assert_close, normal

import regard
from regard import ALiBi, Causal, Packed, Window
from regard.attention import backends
from regard.attention.problem import build_problem

EQUAL, UNEQUAL, FEWER_KEYS, LONG = [3] * 5, [4, 3, 4, 2, 4], [3, 2, 4, 2, 3], [21, 19, 20, 21, 17]


def tensors(queries, keys, heads=2, width=3, value_width=3, dtype=torch.double):
    shapes = ((queries, width), (keys, width), (keys, value_width))
    return [normal(1, length, heads * each, seed=i).to(dtype).requires_grad_() for i, (length, each) in
            enumerate(shapes)]


def split(tensors, heads=2):
    return [tensor.unflatten(-1, (heads, -1)).transpose(-3, -2) for tensor in tensors]


def computed(given, backend, mask, **options):
    """Output and gradients."""
    output = regard.attend(*split(given), mask=mask, backend=backend, **options)
    return [output, *torch.autograd.grad((output * normal(*output.shape, seed=9).to(output)).sum(), given)]


def used(given, mask, **options):
    """Whether it is levelled."""
    options = {"score": "scaled_dot", "normalize": "softmax", "bias": None, "dropout": 0.0} | options
    return "all segments at once" in backends.SEGMENTS.detail(build_problem(*split(given), mask=mask, **options))


@pytest.mark.parametrize("inner", [None, Causal()])
@pytest.mark.parametrize(("queries", "keys"), [(EQUAL, EQUAL), (UNEQUAL, UNEQUAL), (UNEQUAL, FEWER_KEYS),
                                               (FEWER_KEYS, UNEQUAL), (LONG, LONG), (EQUAL, LONG)])
def test_output_and_gradients_are_those_of_the_definition(queries, keys, inner):
    """Fewer keys than queries, under a causal mask: the first queries see nothing, and get zeros."""
    given = tensors(sum(queries), sum(keys), value_width=5)
    mask = Packed(queries, keys) if inner is None else inner & Packed(queries, keys)
    assert used(given, mask)
    for got, want in zip(computed(given, "segments", mask), computed(given, "exact", mask), strict=True):
        assert_close(got, want, floor=1.0)


@pytest.mark.parametrize("score", ["dot", "scaled_dot_d", regard.Bilinear(normal(2, 3, 3, seed=5))])
def test_every_dot_product(score):
    given = tensors(17, 17)
    assert used(given, Packed(UNEQUAL), score=score)
    pairs = zip(computed(given, "segments", Packed(UNEQUAL), score=score),
                computed(given, "exact", Packed(UNEQUAL), score=score), strict=True)
    for got, want in pairs:
        assert_close(got, want, floor=1.0)


def test_what_is_not_a_number_stays_in_its_segment():
    given = tensors(17, 17)
    want = computed(given, "segments", Packed(UNEQUAL))
    with torch.no_grad():
        given[1][0, 8], given[2][0, 9] = torch.nan, torch.inf  # of the third segment, tokens 7 to 10
    others = [*range(7), *range(11, 17)]
    got = computed(given, "segments", Packed(UNEQUAL))
    assert got[0][..., 7:11, :].isnan().any()
    torch.testing.assert_close(got[0][..., others, :], want[0][..., others, :])
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        torch.testing.assert_close(mine[:, others], theirs[:, others])


def test_dropout_keeps_the_mean_and_has_its_gradient():
    """With values of 1 an output is the sum of the weights that were kept, scaled up."""
    given = tensors(3 * 400, 3 * 400, dtype=torch.float32)
    mask = Packed([3] * 400)
    assert used(given, mask, dropout=0.25)
    torch.manual_seed(3)
    output = regard.attend(*split([*given[:2], torch.ones_like(given[2])]), mask=mask, dropout=0.25)
    assert len(output.unique()) > 2
    assert abs(output.mean() - 1.0) < 0.02
    value = given[2]

    def of_values(value):
        torch.manual_seed(3)
        return regard.attend(*split([*given[:2], value]), mask=mask, dropout=0.25)

    # It is linear in the values: the output is its own derivative in their direction, with the same weights kept.
    upstream = normal(1, 2, 1200, 3, seed=4).float()
    (gradient,) = torch.autograd.grad(of_values(value), value, upstream)
    torch.testing.assert_close((gradient * value).sum(), (of_values(value) * upstream).sum(), rtol=1e-4, atol=1e-3)


def test_dropout_of_the_weights_has_the_gradient_of_differences():
    given = [tensor.detach() for tensor in tensors(17, 17)]

    def output(*changed):
        torch.manual_seed(1)
        return regard.attend(*split(changed), mask=Causal() & Packed(UNEQUAL), dropout=0.3)

    torch.autograd.gradcheck(output, [tensor.requires_grad_() for tensor in given])


def test_a_gradient_of_the_gradient_is_refused():
    given = tensors(17, 17)
    output = regard.attend(*split(given), mask=Packed(UNEQUAL))
    with pytest.raises(ValueError, match="`create_graph` must be False here"):
        torch.autograd.grad(output.sum(), given, create_graph=True)


@pytest.mark.parametrize(("lengths", "options"), [
    ([3] * 3, {}),                                     # few
    ([65] * 5, {}),                                    # long
    ([12, 3, 3, 3, 3], {}),                            # mostly room
    ([3, 3, 0, 3, 3], {}),                             # one without tokens
    ([3] * 5, {"normalize": "sigmoid"}),
    ([3] * 5, {"score": "additive"}),
    ([3] * 5, {"bias": ALiBi.for_heads(2)}),
])
def test_all_else_is_cut(lengths, options):
    if options.get("score") == "additive":
        options = {"score": regard.Additive(normal(3))}
    given = tensors(sum(lengths), sum(lengths))
    assert not used(given, Packed(lengths), **options)


def test_windows_are_cut():
    given = tensors(15, 15)
    assert used(given, Causal() & Packed(EQUAL))
    assert not used(given, Window(1, 1) & Packed(EQUAL))


def test_room_behind_the_last_segment_is_cut():
    given = tensors(18, 17)
    assert not used(given, Packed(UNEQUAL))
    assert not used(tensors(17, 18), Packed(UNEQUAL))


def test_heads_that_share_keys_are_cut():
    query, key, value = split(tensors(17, 17))
    problem = build_problem(query, key[:, :1], value[:, :1], score="scaled_dot", normalize="softmax", mask=Packed(UNEQUAL),
                    bias=None, dropout=0.0)
    assert not backends._batches_segments(problem, UNEQUAL, UNEQUAL)
