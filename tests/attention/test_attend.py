"""`attend` is the oracle, for every score, normaliser, mask, bias, shape and backend; and what follows from that.

Numbers in hostile places, gradients, errors, compilation and autocast have files of their own: test_attend_*.py.
"""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from problems import (
    DOTS,
    NORMALIZERS,
    ORACLE_NORMALIZERS,
    SCORES,
    Case,
    assert_close,
    cases,
    held,
    normal,
    normalizer,
    scorer,
)

import regard
from regard.reference import attention as oracle

BACKENDS = ("exact", "tiled", "sdpa")
HELD = st.sampled_from((1, 7, 50, 1 << 21))
many = settings(max_examples=max(150, settings().max_examples), suppress_health_check=list(HealthCheck))


def moved(case: Case, device: str) -> Case:
    """The same question on another device. Masks stay where they are: attend moves them."""
    if device == "cpu":
        return case
    options = dict(case.options)
    score, bias = options["score"], options["bias"]
    if isinstance(score, torch.nn.Module):
        options["score"] = score.to(device)
    elif isinstance(score, regard.Score) and hasattr(score, "weight"):
        parts = [t.detach().to(device).requires_grad_() for t in (score.weight, getattr(score, "bias", None))
                 if t is not None]
        options["score"] = type(score)(*parts)
    if bias is not None:
        options["bias"] = bias.to(device) if not isinstance(bias, torch.Tensor) else bias.detach().to(device)
    tensors = (t.detach().to(device).requires_grad_() for t in case.tensors)
    return Case(*tensors, options, case.known, case.dotted)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@many
@given(cases(), HELD)
def test_attend_is_the_oracle_on_every_backend(device, case, numbers):
    case = moved(case, device)
    output, weights = case.output(), case.weights()
    assert_close(regard.attention_weights(case.query, case.key, **case.options), weights)
    with held(numbers):
        for backend in case.backends():
            assert_close(regard.attend(*case.tensors, **case.options, backend=backend), output)
        assert_close(regard.attend(*case.tensors, **case.options), output)


@pytest.mark.thorough
@many
@given(cases(most=5), HELD)
def test_gradients_of_every_backend_are_those_of_exact(case, numbers):
    want = case.gradients("exact")
    with held(numbers):
        for backend in case.backends()[1:]:
            for got, expected in zip(case.gradients(backend), want, strict=True):
                assert_close(got, expected, floor=0.1)  # where they cancel to 0, rounding of 1e-17 remains


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("score", SCORES)
def test_every_score_under_every_normaliser(score, normalize, device):
    """Each pair at least once, in the shape of a batch with heads: nothing here is left to chance."""
    given_score, known_score = scorer(score, 4, 3)
    known = {"score": known_score, "normalize": ORACLE_NORMALIZERS[normalize], "mask": oracle.causal(5, 6)}
    options = {"score": given_score, "normalize": normalizer(normalize), "mask": regard.Causal(), "bias": None}
    case = Case(normal(2, 4, 5, 3, seed=1), normal(2, 2, 6, 3, seed=2), normal(2, 2, 6, 7, seed=3), options, known,
                score in DOTS and normalize == "softmax")
    case = moved(case, device)
    with held(100):
        for backend in case.backends():
            assert_close(regard.attend(*case.tensors, **case.options, backend=backend), case.output())
    assert_close(regard.attention_weights(case.query, case.key, **case.options), case.weights())


PLAIN = {"score": "scaled_dot", "normalize": "softmax", "mask": None, "bias": None}


@pytest.mark.thorough
@pytest.mark.parametrize("backend", BACKENDS)
@given(st.lists(st.sampled_from((0, 1, 2)), min_size=3, max_size=3), st.integers(0, 3), st.integers(0, 3))
@example([0, 1, 1], 2, 3)  # an empty batch that meets one of size 1
@example([1, 0, 0], 2, 3)
@settings(suppress_health_check=list(HealthCheck))
def test_batches_of_any_size_broadcast_and_so_do_empty_ones(backend, batches, n_queries, n_keys):
    sizes = (n_queries, n_keys, n_keys)
    tensors = [normal(batch, 2, n, 3, seed=n) for batch, n in zip(batches, sizes, strict=True)]
    if len({*batches} - {1}) > 1:
        return  # they do not broadcast: see the errors
    want = oracle.attend_many(*(t.numpy() for t in tensors))
    for mask in (None, regard.Causal(), regard.Padding(0)):
        got = regard.attend(*tensors, mask=mask, backend=backend)
        assert got.shape == want.shape
        if mask is None:
            assert_close(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_without_heads_under_a_mask_with_heads(backend):
    """Keys (keys, width) serve every head; which of them a head may see differs from head to head."""
    query, key, value = normal(2, 3, 4, 5, seed=1), normal(6, 5, seed=2), normal(6, 2, seed=3)
    mask = normal(2, 3, 4, 6, seed=4) > 0
    want = oracle.attend_many(query.numpy(), key.numpy(), value.numpy(), mask=mask.numpy())
    assert_close(regard.attend(query, key, value, mask=mask, backend=backend), want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_of_heads_that_share_a_key(backend):
    query, key, value = normal(2, 4, 3, 5, seed=1), normal(2, 2, 6, 5, seed=2), normal(2, 1, 6, 2, seed=3)
    mask = normal(4, 1, 6, seed=4) > 0
    want = oracle.attend_many(query.numpy(), key.numpy(), value.numpy(), mask=mask.numpy())
    assert_close(regard.attend(query, key, value, mask=mask, backend=backend), want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_disjunction_inside_packed_is_aligned_per_segment(backend):
    x = normal(6, 3)
    mask = (regard.Causal() | regard.Window(0, 1)) & regard.Packed([2, 3])
    matrix = np.array([[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0],
                       [0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]], dtype=bool)
    assert_close(regard.attend(x, x, x, mask=mask, backend=backend), oracle.attend(x, x, x, mask=matrix))


@pytest.mark.parametrize("score", ["scaled_dot", "additive", "function"])
@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_self_attention_without_positions_is_permutation_equivariant(score, normalize):
    x, p = normal(2, 9, 4), torch.randperm(9)
    options = {"score": scorer(score, None, 4)[0], "normalize": normalizer(normalize)}
    straight, permuted = (regard.attend(y, y, y, **options) for y in (x, x[:, p]))
    assert not torch.allclose(straight, permuted)
    assert_close(permuted, straight[:, p])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", [regard.Causal(), regard.Window(2, 1), regard.Causal() & regard.Window(3, None)],
                         ids=repr)
def test_a_token_that_may_not_be_seen_has_a_gradient_of_exactly_zero(mask, backend):
    x = normal(7, 4).requires_grad_()
    matrix = mask.matrix(7, 7)
    with held(60):
        output = regard.attend(x, x, x, mask=mask, backend=backend)
    for t in range(7):
        (gradient,) = torch.autograd.grad(output[t].sum(), x, retain_graph=True)
        seen = matrix[t].clone()
        seen[t] = True  # the token itself is the query
        assert torch.equal(gradient.abs().sum(-1) > 0, seen)


def test_what_is_asked_by_itself_is_the_default():
    q, k, v = normal(3, 4, seed=1), normal(5, 4, seed=2), normal(5, 2, seed=3)
    assert_close(regard.attend(q, k, v), oracle.attend(q, k, v, score=oracle.scaled_dot, normalize=oracle.softmax))
    assert_close(regard.attention_weights(q, k), oracle.weights(q, k))


def test_weights_have_every_leading_dimension():
    got = regard.attention_weights(normal(4, 5), normal(3, 2, 6, 5), mask=torch.tensor(True))
    assert got.shape == (3, 2, 4, 6)
    assert_close(got, oracle.weights_many(normal(4, 5), normal(3, 2, 6, 5)))


# ---- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mean_over_many_draws_is_the_output_without_dropout(backend):
    q, k, v = normal(2, 4, 3, seed=1), normal(2, 6, 3, seed=2), normal(2, 6, 2, seed=3)
    mask = regard.Padding([6, 4]) & regard.Causal()
    mask = mask & torch.tensor([True, True, False, True])[:, None]
    want = regard.attend(q, k, v, mask=mask)
    draws, p = 4000, 0.3
    leading = torch.tensor([6, 4])
    mask = regard.Padding(leading.expand(draws, 2)) & regard.Causal() & torch.tensor([True, True, False, True])[:, None]
    got = regard.attend(q.expand(draws, 2, 4, 3), k, v, mask=mask, dropout=p, backend=backend)
    assert (got[..., 2, :] == 0).all()
    assert got.std(0)[:, 3].min() > 0.01
    bound = 5 * got.std(0) / draws**0.5
    assert ((got.mean(0) - want).abs() <= bound).all()


def test_dropped_weights_are_zero_and_the_others_are_scaled_up():
    q, k = normal(40, 3, seed=1), normal(50, 3, seed=2)
    got = regard.attend(q, k, torch.eye(50, dtype=torch.float64), dropout=0.25, backend="exact")
    dropped = got == 0
    assert_close(got[~dropped], regard.attention_weights(q, k)[~dropped] / 0.75)
    assert abs(dropped.double().mean().item() - 0.25) < 5 * (0.25 * 0.75 / 2000) ** 0.5


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_dropout_draws_nothing(backend):
    q, k, v = normal(4, 3, seed=1), normal(6, 3, seed=2), normal(6, 2, seed=3)
    before = torch.get_rng_state()
    first, second = (regard.attend(q, k, v, backend=backend, dropout=0.0) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.thorough
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_the_backward_pass_of_tiled_drops_what_its_forward_pass_dropped(score):
    """Against differences of the forward pass under the same seed, in every direction of query, key and value."""
    tensors = [normal(5, 3, seed=1), normal(6, 3, seed=2), normal(6, 2, seed=3)]
    options = {"score": scorer(score, None, 3)[0], "mask": regard.Causal(), "dropout": 0.4, "backend": "tiled"}

    def loss(*moved):
        torch.manual_seed(11)
        output = regard.attend(*moved, **options)
        return (output * normal(*output.shape, seed=4)).sum()

    with held(13):
        leaves = [t.clone().requires_grad_() for t in tensors]
        torch.manual_seed(99)  # the state at the time of the backward pass must not matter
        whole = loss(*leaves)
        torch.manual_seed(5)
        gradients = torch.autograd.grad(whole, leaves)
        for i, gradient in enumerate(gradients):
            for place in np.ndindex(*gradient.shape):
                step = torch.zeros_like(gradient)
                step[place] = 1e-6
                there, back = ([t + s * step if i == j else t for j, t in enumerate(tensors)] for s in (1, -1))
                with torch.no_grad():
                    slope = (loss(*there) - loss(*back)) / 2e-6
                assert abs(slope - gradient[place]) < 1e-8
