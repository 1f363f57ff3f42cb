"""Questions that were asked before: the same answers, and the same refusals, as the first time."""

import pytest
import torch
from torch import Tensor

import regard
from regard.attention import attend, fused
from regard.attention.mask import Causal


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch):
    monkeypatch.setattr(attend, "DISPATCH_CACHE", {})


def three(*shape, dtype=torch.float32):
    return [torch.randn(shape, dtype=dtype) for _ in range(3)]


def gradients(output: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(output.square().sum(), tensors))


@pytest.mark.parametrize("mask", [None, regard.Causal()])
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "scaled_dot_d"])
def test_the_second_time_gives_what_the_first_gave(score, mask):
    tensors = [tensor.requires_grad_() for tensor in three(2, 3, 5, 4)]
    first = regard.attend(*tensors, score=score, mask=mask)
    assert len(attend.DISPATCH_CACHE) == 1
    second = regard.attend(*tensors, score=score, mask=mask)
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    for mine, theirs in zip(gradients(second, tensors), gradients(first, tensors), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    exact = regard.attend(*tensors, score=score, mask=mask, backend="exact")
    torch.testing.assert_close(second, exact)


def test_the_second_time_nobody_is_asked(monkeypatch):
    tensors = three(2, 3, 5, 4)
    first = regard.attend(*tensors)
    monkeypatch.setattr("regard.attention.attend.build_problem", lambda *given,
                        **named: pytest.fail("it was asked again"))
    assert torch.equal(regard.attend(*tensors), first)
    with pytest.raises(pytest.fail.Exception):
        regard.attend(*tensors, mask=regard.Causal())


def test_heads_that_share_keys_are_kept_too():
    query, (key, value, _) = torch.randn(2, 6, 5, 4), three(2, 3, 7, 4)
    first = regard.attend(query, key, value)
    assert [plan.grouped for plan in attend.DISPATCH_CACHE.values()] == [True]
    assert torch.equal(regard.attend(query, key, value), first)


def test_causal_is_kept_only_where_torch_aligns_as_we_do():
    query, (key, value, _) = torch.randn(1, 2, 3, 4), three(1, 2, 5, 4)
    regard.attend(query, key, value, mask=regard.Causal())
    assert not attend.DISPATCH_CACHE, "more keys than queries: a matrix is needed"
    regard.attend(query[:, :, :1], key, value, mask=regard.Causal())
    assert [plan.causal for plan in attend.DISPATCH_CACHE.values()] == [False], "one query sees all"


def test_a_matrix_is_made_once_and_not_for_learning_too(monkeypatch):
    made, plain = [], fused.sdpa_inputs
    for module in (fused, attend):
        monkeypatch.setattr(module, "sdpa_inputs", lambda problem: made.append(problem) or plain(problem))
    regard.attend(torch.randn(1, 2, 3, 4), *three(1, 2, 5, 4)[:2], mask=regard.Causal())
    assert len(made) == 1


@pytest.mark.parametrize("options", [
    {"dropout": 0.5}, {"bias": torch.zeros(5, 5)}, {"backend": "sdpa"}, {"mask": torch.ones(5, 5, dtype=torch.bool)},
    {"mask": regard.Causal() & regard.Window(1, 1)}, {"normalize": "relu"}, {"score": regard.Additive(torch.ones(4))},
    {"score": lambda query, key: query @ key.mT}, {"dropout": 0}], ids=range(9))
def test_what_depends_on_more_is_not_kept(options):
    regard.attend(*three(2, 3, 5, 4), **options)
    assert not attend.DISPATCH_CACHE


def test_a_mask_that_only_derives_from_causal_is_asked_about():
    class Other(Causal):
        def allowed(self, place):
            return place.column < place.position

    tensors = three(2, 3, 5, 4)
    regard.attend(*tensors, mask=regard.Causal())
    assert attend.dispatch_key(*tensors, score="dot", normalize="softmax", mask=Other(), bias=None, dropout=0.0,
                               backend=None) is None


@pytest.mark.parametrize("shapes", [[(5, 4)] * 3, [(3, 5, 4)] * 3, [(1, 2, 3, 5, 4)] * 3,
                                    [(2, 3, 5, 4), (1, 3, 5, 4), (2, 3, 5, 4)],
                                    [(2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 6)]],
                         ids=str)
def test_what_must_be_brought_into_a_form_is_not_kept(shapes):
    tensors = [torch.randn(shape) for shape in shapes]
    first = regard.attend(*tensors)
    assert not attend.DISPATCH_CACHE
    assert torch.equal(regard.attend(*tensors), first)


def test_what_was_wrong_is_still_wrong_when_its_like_is_known():
    query, key, value = three(2, 3, 5, 4)
    regard.attend(query, key, value)
    with pytest.raises(ValueError, match="`key` must be of the query's dtype"):
        regard.attend(query, key.double(), value)
    with pytest.raises(ValueError, match="`value` must be of as many rows as the key, 5"):
        regard.attend(query, key, value[:, :, 1:])
    with pytest.raises(ValueError, match="`score`"):
        regard.attend(query, key, value, score="product")
    with pytest.raises(ValueError, match="`key` must be a tensor"):
        regard.attend(query, key.tolist(), value)


def test_not_more_are_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(attend, "MAX_DISPATCHES", 3)
    for n in range(1, 9):
        regard.attend(*three(1, 1, n, 2))
        assert 1 <= len(attend.DISPATCH_CACHE) <= 3


@pytest.mark.thorough
def test_a_compiled_graph_is_made_of_the_long_way():
    tensors = three(2, 3, 5, 4)
    expected = regard.attend(*tensors)
    compiled = torch.compile(lambda *given: regard.attend(*given), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*tensors), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_order_of_kernels_is_kept_and_put_back():
    tensors = [tensor.cuda() for tensor in three(2, 4, 256, 64, dtype=torch.bfloat16)]
    first, before = regard.attend(*tensors), torch._C._get_sdp_priority_order()
    assert [bool(plan.order) for plan in attend.DISPATCH_CACHE.values()] == [torch.cuda.get_device_capability()[0] == 9]
    assert torch.equal(regard.attend(*tensors), first)
    assert torch._C._get_sdp_priority_order() == before
