"""The loss of two passes over one batch that must agree, where dropout has hidden other things in each: R-Drop.

    p, q = softmax(W x + b) of the two passes;   for each token
    loss = ½ (CE(p) + CE(q)) + weight · ¼ (KL(p‖q) + KL(q‖p)),     CE with label smoothing as in `regard.training.loss`

This is half of what Liang, Wu et al. 2021 ("R-Drop") write, CE(p) + CE(q) + α · ½ (KL(p‖q) + KL(q‖p)) with α = weight:
so a token counts as much as in one pass, and rates that suit one pass suit two. With z the logits that p is made of

    ∂KL(p‖q)/∂z = p ⊙ (log p − log q − KL(p‖q)),      ∂KL(q‖p)/∂z = p − q

and as in `regard.training.loss` logits are made for some tokens at a time and turned into their own gradient at once.
It does not know models, nor that it is dropout that makes the passes differ.

Legend: P passes (2), N tokens, D width, V vocabulary, C tokens of a chunk.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import checks
from regard.kernels import usable
from regard.models.contract import IGNORED
from regard.training.loss import FEWEST, HELD, HELD_ELSEWHERE, Loss, OutputLoss, check_labels, sums


def agreement_loss(states: Tensor, output: nn.Linear, labels: Tensor, smoothing: float, weight: float) -> Loss:
    """The loss of the states of two passes, (2, ..., D), whose labels are given, (...).

    `nll` is the mean of both passes, and tokens are counted once.
    """
    checks.probability("smoothing", smoothing)
    if not 0.0 <= weight < float("inf"):
        raise checks.wrong("weight", "at least 0, and finite", weight)
    if states.shape[:-1] != (2, *labels.shape):
        raise checks.wrong("states", f"of shape {(2, *labels.shape, output.in_features)}, two for each label",
                           f"of shape {checks.shape(states)}")
    states_PND, labels = states.reshape(2, labels.numel(), states.shape[-1]), labels.reshape(-1)
    if labels.device.type == "cpu":  # elsewhere to select would wait for the device
        counted = labels != IGNORED
        states_PND, labels = states_PND[:, counted], labels[counted]
        check_labels(labels, output.out_features)
    tokens = (labels != IGNORED).sum()
    walk = partial(_walk, smoothing=smoothing, agreement=weight)
    total, nll = OutputLoss.apply(states_PND, output.weight, output.bias, labels, walk, torch.is_grad_enabled())
    return Loss(total, nll, tokens)


def _walk(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, smoothing: float, agreement: float,
          of_states: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The two sums; the gradients are written where they are wanted."""
    vocabulary = weight.shape[0]
    rows = max(FEWEST, HELD.get(states.device.type, HELD_ELSEWHERE) // (2 * vocabulary))
    wide = torch.promote_types(states.dtype, torch.float32)
    total, nll = states.new_zeros((), dtype=wide), states.new_zeros((), dtype=wide)
    turned = _turned_by_kernel if usable(states, weight) else _turned
    for start in range(0, len(labels), rows):
        x_PCD, label_C = states[:, start:start + rows], labels[start:start + rows]
        logits_PCV = F.linear(x_PCD, weight, bias)  # not used elsewhere: it is written over
        own, each, gradient_PCV = turned(logits_PCV, label_C, smoothing, agreement, of_states is not None)
        nll += own
        total += each
        if of_states is None or of_weight is None:
            continue
        lowered_PCV = gradient_PCV.to(states.dtype)
        of_states[:, start:start + rows] = lowered_PCV @ weight
        if of_weight.dtype == states.dtype:
            of_weight.addmm_(lowered_PCV.flatten(0, 1).t(), x_PCD.flatten(0, 1))
        else:
            of_weight += lowered_PCV.flatten(0, 1).t() @ x_PCD.flatten(0, 1)
        if of_bias is not None:
            of_bias += sums(gradient_PCV)
    return total, nll


def _turned_by_kernel(logits_PCV: Tensor, label_C: Tensor, smoothing: float, agreement: float,
                      gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    """As `_turned`, without a wider copy of the logits."""
    from regard.training.kernels import agreement as kernel  # imports Triton

    logits_PCV = logits_PCV.contiguous()
    compute = kernel.losses_and_gradients if gradients else kernel.losses
    own_C, spread_C, divergence_C = compute(logits_PCV, label_C, IGNORED, smoothing, agreement)
    each_C = (1.0 - smoothing) * own_C + smoothing * spread_C if smoothing else own_C
    return own_C.sum(), (each_C + 0.5 * agreement * divergence_C).sum(), logits_PCV


def _turned(logits_PCV: Tensor, label_C: Tensor, smoothing: float, agreement: float,
            gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of -log p of the labels, and of the loss; and the gradient, where it is wanted."""
    logits_PCV = logits_PCV.to(torch.promote_types(logits_PCV.dtype, torch.float32))
    quarter = 0.25 * agreement
    counts_C = label_C != IGNORED
    index_PC1 = label_C.masked_fill(~counts_C, 0).unsqueeze(-1).expand(2, -1, 1)
    label_logit_PC1 = logits_PCV.gather(-1, index_PC1)
    mean_PC1 = logits_PCV.mean(-1, keepdim=True) if smoothing else label_logit_PC1
    apart_CV = logits_PCV[0] - logits_PCV[1]
    highest_PC1 = logits_PCV.amax(-1, keepdim=True)
    p_PCV = logits_PCV.sub_(highest_PC1).exp_()  # in place, and the exponential only once
    sum_PC1 = p_PCV.sum(-1, keepdim=True)
    p_PCV.mul_(sum_PC1.reciprocal())
    log_sum_PC1 = highest_PC1 + sum_PC1.log()
    apart_CV.sub_(log_sum_PC1[0] - log_sum_PC1[1])  # log p − log q
    toward_PCV = p_PCV * apart_CV
    divergence_PC1 = toward_PCV.sum(-1, keepdim=True)
    divergence_PC1[1].neg_()  # KL(p‖q), KL(q‖p)

    own_PC1 = log_sum_PC1 - label_logit_PC1
    smooth_PC1 = (1.0 - smoothing) * own_PC1 + smoothing * (log_sum_PC1 - mean_PC1) if smoothing else own_PC1
    each_PC1 = 0.5 * smooth_PC1 + quarter * divergence_PC1
    own, each = (part_PC1.masked_fill(~counts_C.unsqueeze(-1), 0.0).sum() for part_PC1 in (0.5 * own_PC1, each_PC1))
    if not gradients:
        return own, each, p_PCV
    toward_PCV[0].mul_(quarter)
    toward_PCV[1].mul_(-quarter)
    gradient_PCV = toward_PCV.addcmul_(p_PCV, 0.5 + quarter - quarter * divergence_PC1)
    gradient_PCV[0].sub_(p_PCV[1], alpha=quarter)
    gradient_PCV[1].sub_(p_PCV[0], alpha=quarter)
    if smoothing:
        gradient_PCV.sub_(0.5 * smoothing / gradient_PCV.shape[-1])
    gradient_PCV.scatter_add_(-1, index_PC1, gradient_PCV.new_full(index_PC1.shape, 0.5 * (smoothing - 1.0)))
    if label_C.device.type != "cpu":  # there all that counts nothing was left out before
        gradient_PCV.masked_fill_(~counts_C.unsqueeze(-1), 0.0)
    return own, each, gradient_PCV
