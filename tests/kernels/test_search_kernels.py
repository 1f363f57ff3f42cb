"""Candidates in Triton: the same tokens in the same order as an exact search through all of them, equal ones too."""

import pytest
import torch

pytest.importorskip("triton")

from interpreting import only_interpreted  # noqa: F401

from regard.decoding.beam_state import exact_topk
from regard.kernels import decoding_buffers
from regard.kernels.decoding import find_top_tokens
from regard.kernels.decoding_buffers import TopTokens

pytestmark = pytest.mark.thorough


def found(logits, count, never=None, counts=None, each=1):
    best = TopTokens.allocate(logits, count)
    counts = torch.zeros(len(logits) // each, dtype=torch.int32, device=logits.device) if counts is None else counts
    find_top_tokens(logits, never, counts, each, best)
    return best.values, best.tokens.long()


def check(logits, count, device="cpu"):
    logits = logits.to(device)
    values, tokens = found(logits, count)
    logs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    expected = exact_topk(logs, count)
    torch.testing.assert_close(values, expected.values, rtol=1e-5, atol=1e-5)
    assert torch.equal(values, values.sort(-1, descending=True).values)
    # Where rounding puts two tokens in another order, their log-probabilities are as good as equal.
    torch.testing.assert_close(logs.gather(-1, tokens), expected.values, rtol=1e-5, atol=1e-5)
    return tokens, expected.indices


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("vocabulary", "count"), [(13, 1), (13, 13), (300, 6)])
def test_they_are_those_of_an_exact_search(monkeypatch, dtype, vocabulary, count):
    monkeypatch.setattr(decoding_buffers, "VOCABULARY_PIECE", 64)
    tokens, expected = check(torch.randn(3, vocabulary).to(dtype), count)
    assert torch.equal(tokens, expected)


def test_of_equal_tokens_the_lowest_go_first(monkeypatch):
    monkeypatch.setattr(decoding_buffers, "VOCABULARY_PIECE", 32)
    logits = torch.randint(0, 3, (4, 150)).float()  # in five pieces, with many that are equal in each
    tokens, expected = check(logits, 7)
    assert torch.equal(tokens, expected)
    assert torch.equal(found(torch.zeros(1, 150), 3)[1], torch.tensor([[0, 1, 2]]))


def test_many_pieces_are_made_larger(monkeypatch):
    monkeypatch.setattr(decoding_buffers, "VOCABULARY_PIECE", 4)
    monkeypatch.setattr(decoding_buffers, "MAX_MERGED", 32)
    assert decoding_buffers.piece_size(200, 3) == 32
    tokens, expected = check(torch.randn(2, 200), 3)
    assert torch.equal(tokens, expected)


def test_forbidden_tokens_are_no_candidates():
    logits = torch.tensor([[9.0, 8.0, 7.0, 6.0, 5.0]]).repeat(4, 1)
    never = torch.tensor([2**31 - 1, 0, 2, 0, 0], dtype=torch.int32)
    values, tokens = found(logits, 4, never, torch.tensor([1, 2], dtype=torch.int32), each=2)
    assert tokens[:2, :3].tolist() == [[1, 3, 4]] * 2
    assert tokens[2:].tolist() == [[1, 2, 3, 4]] * 2
    assert values[:2, 3].tolist() == [-torch.inf] * 2
    logs = logits[0].log_softmax(-1)  # what is left is not normalised again
    torch.testing.assert_close(values[2], logs[1:])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's
@pytest.mark.parametrize("spoiled", [torch.nan, torch.inf])
def test_invalid_logits_give_nan(spoiled):
    logits = torch.randn(2, 40)
    logits[1, 35] = spoiled
    values, tokens = found(logits, 2)
    assert values[1].isnan().all()
    assert values[0].isfinite().all()
    assert (tokens < 40).all()
    assert found(torch.full((1, 9), -torch.inf), 2)[0].isnan().all()


def test_tokens_of_probability_0(monkeypatch):
    monkeypatch.setattr(decoding_buffers, "VOCABULARY_PIECE", 8)
    logits = torch.full((1, 30), -torch.inf)
    logits[0, [3, 20]] = torch.tensor([1.0, 2.0])  # whole pieces have none
    values, tokens = found(logits, 3)
    assert tokens[0, :2].tolist() == [20, 3]
    torch.testing.assert_close(values[0, :2], torch.tensor([2.0, 1.0]).log_softmax(-1))
    assert values[0, 2] == -torch.inf


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_on_a_gpu_they_are_those_of_an_exact_search(dtype):
    for vocabulary, count in ((13, 3), (32_000, 6), (32_001, 1), (250_000, 9)):
        check(torch.randn(7, vocabulary).to(dtype), count, "cuda")
        tokens, expected = check(torch.randint(0, 3, (7, vocabulary)).to(dtype), count, "cuda")
        assert torch.equal(tokens, expected)
