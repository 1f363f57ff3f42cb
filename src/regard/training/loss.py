"""The loss of the output layer: from states to a number, without ever holding all logits.

    logits = W x + b;   loss = Σ over tokens of  (1 - ε) (-log p_label) + ε · mean over the vocabulary of (-log p)

ε is label smoothing (Szegedy et al. 2016). The sum is divided by the number of tokens by whoever knows all of them;
over micro-batches and processes that is another number than over one batch. Tokens whose label is `IGNORED` count
nothing.

For a vocabulary of V the logits of N tokens are N·V numbers, often more than all else in a small model. Here they are
made for some tokens at a time, and turned into their own gradient at once: the backward pass has nothing left to do but
to scale it. On a GPU a kernel does so in the precision that the logits have; elsewhere torch, in float32 at least. It
does not know models: they give states, and the layer that makes logits.

Legend: N tokens, D width, V vocabulary, C tokens of a chunk.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import checks
from regard.kernels import once_differentiable, usable
from regard.models.contract import IGNORED
from regard.training.kernels import blocked

HELD = {"cpu": 1 << 21}
"""How many logits are held at a time, by device: on a CPU 8 MiB, which its last cache holds."""
HELD_ELSEWHERE = 1 << 27
FEWEST = 256
"""Tokens of a chunk, at least: the gradient of the weights is read and written once a chunk."""
OFTEN = 3
"""Chunks of one size: for fewer it is not worth to lay the weights out."""


class Loss(NamedTuple):
    """Sums over the tokens of a batch."""

    total: Tensor
    """What is minimised: with label smoothing, and with a gradient."""
    nll: Tensor
    """-log p of the labels, which perplexities are made of; without a gradient."""
    tokens: Tensor
    """How many tokens count."""


def token_loss(states: Tensor, output: nn.Linear, labels: Tensor, smoothing: float = 0.0) -> Loss:
    """The loss of states (..., D) whose labels are given, (...); as of `output(states)`."""
    checks.probability("smoothing", smoothing)
    if states.shape[:-1] != labels.shape:
        raise checks.wrong("labels", f"of shape {tuple(states.shape[:-1])}, one for each state",
                           f"of shape {checks.shape(labels)}")
    states, labels = states.reshape(-1, states.shape[-1]), labels.reshape(-1)
    if labels.device.type == "cpu":  # elsewhere to select would wait for the device
        counted = labels != IGNORED
        states, labels = states[counted], labels[counted]
        check_labels(labels, output.out_features)
    tokens = (labels != IGNORED).sum()
    walk = partial(_walk, smoothing=smoothing)
    total, nll = OutputLoss.apply(states, output.weight, output.bias, labels, walk, torch.is_grad_enabled())
    return Loss(total, nll, tokens)


def plain_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Loss:
    """The same from logits (..., V) that are there already."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    logits, labels = logits.reshape(-1, logits.shape[-1]).to(wide), labels.reshape(-1)
    options: dict[str, Any] = {"ignore_index": IGNORED, "reduction": "sum"}
    nll = F.cross_entropy(logits, labels, **options)
    total = F.cross_entropy(logits, labels, label_smoothing=smoothing, **options) if smoothing else nll
    return Loss(total, nll.detach(), (labels != IGNORED).sum())


def check_labels(labels: Tensor, vocabulary: int) -> None:
    """Refuse what names no token of the vocabulary; torch says only "index out of bounds", and nothing below 0."""
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise checks.wrong("labels", "integers", f"of dtype {labels.dtype}")
    outside = labels[(labels < 0) | (labels >= vocabulary)]
    if outside.numel():
        raise checks.wrong("labels", f"from 0 to {vocabulary - 1}, or {IGNORED} for what counts nothing",
                           int(outside[0]))


class OutputLoss(torch.autograd.Function):
    """Loss and gradients of all chunks in one pass, made by `walk`; the backward pass only scales them."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
                walk: Callable[..., tuple[Tensor, Tensor]], gradients: bool) -> tuple[Tensor, Tensor]:
        device = states.device.type
        lowered = torch.is_autocast_enabled(device) and states.dtype != torch.float64  # which autocast leaves alone
        dtype = torch.get_autocast_dtype(device) if lowered else states.dtype
        low, low_weight = states.to(dtype), weight.to(dtype)
        wanted = gradients and any(ctx.needs_input_grad[:3])  # parameters need one even where nobody asks for any
        of_states = torch.empty_like(low) if wanted else None
        of_weight = torch.zeros_like(weight) if wanted else None
        of_bias = torch.zeros_like(bias) if wanted and bias is not None else None
        with torch.autocast(device, enabled=False):
            total, nll = walk(low, low_weight, None if bias is None else bias.to(dtype), labels, of_states=of_states,
                              of_weight=of_weight, of_bias=of_bias)
        ctx.dtype = states.dtype
        ctx.save_for_backward(of_states, of_weight, of_bias)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        states, weight, bias = ctx.saved_tensors
        scale = upstream[0]
        return ((states * scale.to(states.dtype)).to(ctx.dtype), weight * scale.to(weight.dtype),
                None if bias is None else bias * scale.to(bias.dtype), None, None, None)


def _walk(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, smoothing: float,
          of_states: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The two sums; the gradients are written where they are wanted."""
    vocabulary = weight.shape[0]
    rows = max(FEWEST, HELD.get(states.device.type, HELD_ELSEWHERE) // vocabulary)
    wide = torch.promote_types(states.dtype, torch.float32)
    turned = _turned_by_kernel if usable(states, weight) else _turned
    if states.device.type == "cpu" and states.dtype == wide and turned is _turned:
        return _walk_in_place(states, weight, bias, labels, rows, smoothing, of_states, of_weight, of_bias)
    total, nll = states.new_zeros((), dtype=wide), states.new_zeros((), dtype=wide)
    for start in range(0, len(labels), rows):
        x_CD, label_C = states[start:start + rows], labels[start:start + rows]
        logits_CV = F.linear(x_CD, weight, bias)  # not used elsewhere: it is written over
        own_C, spread_C, gradient_CV = turned(logits_CV, label_C, smoothing, of_states is not None)
        nll += own_C.sum()
        if smoothing:
            total += (1.0 - smoothing) * own_C.sum() + smoothing * spread_C.sum()
        if of_states is None or of_weight is None:
            continue
        lowered_CV = gradient_CV.to(states.dtype)
        torch.mm(lowered_CV, weight, out=of_states[start:start + rows])
        if of_weight.dtype == states.dtype:
            of_weight.addmm_(lowered_CV.t(), x_CD)
        else:
            of_weight += lowered_CV.t() @ x_CD
        if of_bias is not None:
            of_bias += sums(gradient_CV)
    return (total if smoothing else nll.clone()), nll


def _walk_in_place(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, rows: int, smoothing: float,
                   of_states: Tensor | None, of_weight: Tensor | None,
                   of_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """As `_walk`, on a CPU, where every pass over logits costs: softmax in place is the only one that there is.

    What smoothing needs of all logits is linear in the states, so that means stand for it: the mean logit of a token is
    x · mean W + mean b, and the gradients of its sum follow. Labels that count nothing were left out before.
    """
    often = len(labels) >= OFTEN * rows and blocked.usable(states, weight)
    laid_out = blocked.laid_out(weight) if often else weight
    turned = blocked.laid_out(weight.t()) if often and of_states is not None else weight.t()
    logits = _logits_in_place(states, weight, bias, rows)
    nll, above = states.new_zeros(()), states.new_zeros(())  # above: the logits of the labels
    smallest = torch.finfo(states.dtype).tiny / torch.finfo(states.dtype).eps
    for start in range(0, len(labels), rows):
        x_CD, label_C = states[start:start + rows], labels[start:start + rows]
        by_blocks = often and len(x_CD) == rows  # the last chunk has another shape
        logits_CV = blocked.product(x_CD, laid_out, bias) if by_blocks else logits(x_CD)
        index_C1 = label_C.unsqueeze(-1)
        above += logits_CV.gather(-1, index_C1).sum()
        chance_CV = torch.softmax(logits_CV, -1, out=logits_CV)
        chance_C = chance_CV.gather(-1, index_C1).squeeze(-1)
        own_C, lost_C = -chance_C.log(), chance_C < smallest  # too small for its logarithm to be exact
        if bool(lost_C.any()):
            own_C[lost_C] = F.cross_entropy(F.linear(x_CD[lost_C], weight, bias), label_C[lost_C], reduction="none")
        nll += own_C.sum()
        if of_states is None or of_weight is None:
            continue
        gradient_CV = chance_CV.scatter_add_(-1, index_C1, chance_CV.new_full(index_C1.shape, smoothing - 1.0))
        if by_blocks:
            of_states[start:start + rows] = blocked.product(gradient_CV, turned)
        else:
            torch.mm(gradient_CV, weight, out=of_states[start:start + rows])
        of_weight.addmm_(gradient_CV.t(), x_CD)
        if of_bias is not None:
            of_bias += sums(gradient_CV)
        del logits_CV, chance_CV, gradient_CV  # the next chunk takes its place
    if not smoothing:
        return nll.clone(), nll
    mean_D, sum_D, each = weight.mean(0), states.sum(0), smoothing / weight.shape[0]
    if of_states is not None and of_weight is not None:
        of_states.sub_(smoothing * mean_D)
        of_weight.sub_(each * sum_D)
        if of_bias is not None:
            of_bias.sub_(each * len(labels))
    means = sum_D @ mean_D if bias is None else sum_D @ mean_D + len(labels) * bias.mean()
    return nll + smoothing * (above - means), nll


def _logits_in_place(states: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor]:
    """As `F.linear`, of at most so many rows, each time in the same memory: to be given new pages takes longer than to
    turn logits into gradients."""
    kept_CV = states.new_empty(min(rows, len(states)), weight.shape[0])

    def logits(x_CD: Tensor) -> Tensor:
        out = kept_CV[:len(x_CD)]
        return torch.mm(x_CD, weight.t(), out=out) if bias is None else torch.addmm(bias, x_CD, weight.t(), out=out)

    return logits


def sums(gradient: Tensor) -> Tensor:
    """Of the columns of (..., V), in float32 at least."""
    if usable(gradient):
        from regard.attention.kernels.columns import column_sums  # imports Triton

        return column_sums(gradient, torch.float32)
    return gradient.flatten(0, -2).sum(0, dtype=torch.promote_types(gradient.dtype, torch.float32))


def _turned_by_kernel(logits_CV: Tensor, label_C: Tensor, smoothing: float,
                      gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    """As `_turned`, without a wider copy of the logits."""
    from regard.training.kernels import entropy  # imports Triton

    compute = entropy.losses_and_gradients if gradients else entropy.losses
    return *compute(logits_CV, label_C, IGNORED, smoothing), logits_CV


def _turned(logits_CV: Tensor, label_C: Tensor, smoothing: float, gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    """-log p of the labels, and its mean over the vocabulary, of each token; and the gradient, where it is wanted."""
    logits_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
    counts_C = label_C != IGNORED
    index_C1 = label_C.masked_fill(~counts_C, 0).unsqueeze(-1)
    label_logit_C = logits_CV.gather(-1, index_C1).squeeze(-1)
    mean_C = logits_CV.mean(-1) if smoothing else label_logit_C
    highest_C = logits_CV.amax(-1)
    # The exponential only once, and on a CPU, where one row is read and written after the other, in place.
    gradient_CV = torch.softmax(logits_CV, -1, out=logits_CV if logits_CV.device.type == "cpu" else None)
    log_sum_C = highest_C - gradient_CV.amax(-1).log()
    own_C, spread_C = ((log_sum_C - logit_C).masked_fill(~counts_C, 0.0) for logit_C in (label_logit_C, mean_C))
    if gradients:
        if smoothing:
            gradient_CV.sub_(smoothing / gradient_CV.shape[-1])
        gradient_CV.scatter_add_(-1, index_C1, gradient_CV.new_full(index_C1.shape, smoothing - 1.0))
        if label_C.device.type != "cpu":  # there all that counts nothing was left out before
            gradient_CV.masked_fill_(~counts_C.unsqueeze(-1), 0.0)
    return own_C, spread_C, gradient_CV
