"""Low precision: no backend errs more than twice as much as the plain computation in the same precision.

The rule is flash-attention's. Truth is the oracle's answer, in float64, to the same (rounded) numbers. The plain
computation is written here: scores, masked softmax and product, one after another in the low precision.
"""

import numpy as np
import pytest
import torch
from problems import DOTS, NORMALIZERS, ORACLE_NORMALIZERS, held, normal, normalizer, scorer

import regard
from regard.reference import attention as oracle

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PAIRS = [("scaled_dot", "softmax"), ("bilinear", "softmax"), ("dot", "softmax"), ("module", "softmax"),
         *(("additive", normalize) for normalize in NORMALIZERS), ("scaled_dot", "relu"), ("scaled_dot", "sigmoid")]
WAYS = [(*pair, backend) for pair in PAIRS for backend in ("exact", "tiled", "sdpa")
        if backend != "sdpa" or (pair[0] in DOTS and pair[1] == "softmax")]
QUERIES, KEYS, WIDTH = 15, 20, 16
MASKS = {"none": (None, np.ones((QUERIES, KEYS), dtype=bool)),
         "causal": (regard.Causal(), oracle.causal(QUERIES, KEYS)),
         "padding": (regard.Padding([13]), oracle.padding([13], QUERIES, KEYS, "right")[0])}


def plain_scores(name, query, key, score):
    if name in ("dot", "scaled_dot"):
        return query @ key.mT * (1.0 if name == "dot" else WIDTH**-0.5)
    if name == "bilinear":
        return query @ score.weight @ key.mT
    if name == "module":
        return score(query, key)
    return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ score.weight


def plain_weights(name, scores, allowed):
    masked = scores.masked_fill(~allowed, -torch.inf)
    if name == "relu":
        return masked.relu() / allowed.sum(-1, keepdim=True)
    if name == "relu_sum":
        return (masked.relu() / masked.relu().sum(-1, keepdim=True)).nan_to_num()  # 0/0: no score is positive
    return normalizer(name)(masked) if name in ("softmax_one", "sparsemax") else getattr(torch, name)(
        masked, *([-1] if name == "softmax" else []))


def in_precision(score, dtype, device):
    if isinstance(score, str):
        return score
    if isinstance(score, torch.nn.Module):
        return score.to(device, dtype)
    return type(score)(score.weight.detach().to(device, dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_the_error_is_at_most_twice_that_of_the_plain_computation(way, mask, dtype, device):
    name, normalize, backend = way
    query, key, value = (normal(1, 2, n, WIDTH, seed=i).to(device, dtype) for i, n in enumerate((QUERIES, KEYS, KEYS)))
    score = in_precision(scorer(name, None, WIDTH)[0], dtype, device)
    given_mask, matrix = MASKS[mask]
    weight = None if isinstance(score, str) else score.weight.detach().double().cpu().numpy()
    known = {"dot": oracle.dot, "scaled_dot": oracle.scaled_dot,
             "bilinear": lambda q, k: oracle.bilinear(q, k, weight),
             "additive": lambda q, k: oracle.additive(q, k, weight),
             "module": lambda q, k: float((weight * np.cos(q - k)).sum())}[name]
    inputs = (t.double().cpu().numpy() for t in (query, key, value))
    truth = oracle.attend_many(*inputs, score=known, normalize=ORACLE_NORMALIZERS[normalize], mask=matrix)

    def error(output):
        assert output.dtype == dtype
        return np.abs(output.detach().double().cpu().numpy() - truth).max()

    scores = plain_scores(name, query, key, score)
    plain = plain_weights(normalize, scores, torch.tensor(matrix, device=device)) @ value
    with held(400):
        output = regard.attend(query, key, value, score=score, normalize=normalizer(normalize), mask=given_mask,
                               backend=backend)
    assert error(output) <= 2 * error(plain) + 4 * torch.finfo(dtype).eps * np.abs(truth).max()
