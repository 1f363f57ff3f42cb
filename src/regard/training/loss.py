"""Cross entropy of the output layer with label smoothing, R-Drop and soft targets, without ever holding all logits.

    logits = W x + b;   loss = Σ over tokens of  (1 - ε) (-log p_label) + ε · mean over the vocabulary of (-log p)

ε is label smoothing (Szegedy et al. 2016). R-Drop (Liang, Wu et al. 2021) runs two passes with different dropout and
penalises their disagreement; with p, q = softmax(W x + b) of the two passes, for each token

    loss = ½ (CE(p) + CE(q)) + weight · ¼ (KL(p‖q) + KL(q‖p))

This is half of what the paper writes, CE(p) + CE(q) + α · ½ (KL(p‖q) + KL(q‖p)) with α = weight: so a token counts as
much as in one pass, and learning rates that suit one pass suit two. With z the logits that p is made of

    ∂KL(p‖q)/∂z = p ⊙ (log p − log q − KL(p‖q)),      ∂KL(q‖p)/∂z = p − q

Soft targets (Hinton et al. 2015; word-level distillation of Kim and Rush 2016) are the probabilities t of a teacher for
the same tokens. With y the smoothed label and H the entropy, in one pass or in the mean of both

    loss = (1 - share) CE(y, p) + share · KL(t‖p) = CE(y, p) + share · ((y − t) · z − H(t))

so they add share · (y − t) to the gradient, whatever computes the rest of it.

For a vocabulary of V the logits of N tokens are N·V numbers, often more than all else in a small model. Here they are
computed for a chunk of tokens at a time, and turned into their own gradient at once: the backward pass only scales it.
On a GPU a Triton kernel does so in the precision of the logits (`regard.kernels.loss`); elsewhere torch, in float32 at
least. Losses are sums: the caller divides by the number of tokens over all micro-batches and processes. Tokens whose
label is `IGNORED` do not count.

Legend: P passes (2), N tokens, D width, V vocabulary, C tokens of a chunk.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import checks
from regard.kernels.launch import once_differentiable, usable
from regard.tokens import IGNORED_LABEL

LOGITS_PER_CHUNK = {"cpu": 1 << 21}
"""Logits of a chunk, by device: on a CPU 8 MiB, which fits in its last-level cache."""
LOGITS_PER_CHUNK_GPU = 1 << 27
MIN_CHUNK = 256
"""Tokens of a chunk, at least: the gradient of the weights is read and written once per chunk."""
TEACHER_COPIES = 6
"""With soft targets a chunk has fewer tokens, since it holds about this many more numbers per token and entry of the
vocabulary: logits and probabilities of the teacher, and products of both, in float32."""
MIN_PACKED_CHUNKS = 3
"""With fewer chunks of one size, packing the weights for oneDNN costs more than it saves."""


class Loss(NamedTuple):
    """Sums over the tokens of a batch."""

    total: Tensor
    """The loss that is minimised, with label smoothing; it has a gradient."""
    nll: Tensor
    """-log p of the labels, for perplexity; without a gradient."""
    tokens: Tensor
    """The number of tokens whose label is not ignored."""


class SoftTargets(NamedTuple):
    """The probabilities of a teacher for the tokens of a batch: softmax(output(states)), which get no gradient."""

    states: Tensor
    """(..., D'), one for each label."""
    output: nn.Linear
    share: float
    """The share of the divergence from these probabilities in the loss, from 0 to 1; the rest is that of the labels."""


def token_loss(states: Tensor, output: nn.Linear, labels: Tensor, label_smoothing: float = 0.0,
               soft_targets: SoftTargets | None = None) -> Loss:
    """The loss of `output(states)` for states (..., D) with labels (...)."""
    checks.probability("label_smoothing", label_smoothing)
    if states.shape[:-1] != labels.shape:
        raise checks.wrong("labels", f"of shape {tuple(states.shape[:-1])}, one for each state",
                           f"of shape {checks.shape(labels)}")
    return _chunked_loss(partial(_token_chunks, smoothing=label_smoothing), states.reshape(-1, states.shape[-1]),
                         output, labels, soft_targets)


def rdrop_loss(states: Tensor, output: nn.Linear, labels: Tensor, label_smoothing: float, weight: float,
               soft_targets: SoftTargets | None = None) -> Loss:
    """The R-Drop loss of the states of two passes, (2, ..., D), with labels (...).

    `nll` is the mean of both passes, and tokens are counted once.
    """
    checks.probability("label_smoothing", label_smoothing)
    if not 0.0 <= weight < float("inf"):
        raise checks.wrong("weight", "at least 0, and finite", weight)
    if states.shape[:-1] != (2, *labels.shape):
        raise checks.wrong("states", f"of shape {(2, *labels.shape, output.in_features)}, two for each label",
                           f"of shape {checks.shape(states)}")
    return _chunked_loss(partial(_rdrop_chunks, smoothing=label_smoothing, rdrop=weight),
                         states.reshape(2, labels.numel(), states.shape[-1]), output, labels, soft_targets)


def _chunked_loss(chunks: Callable[..., tuple[Tensor, Tensor]], states: Tensor, output: nn.Linear, labels: Tensor,
                  soft_targets: SoftTargets | None) -> Loss:
    """The loss of states (..., N, D) with N labels, of which ignored tokens are left out on a CPU."""
    taught = None if soft_targets is None else _check_soft_targets(soft_targets, output, labels)
    labels = labels.reshape(-1)
    if labels.device.type == "cpu":  # on a GPU, to select would wait for the device
        counted = labels != IGNORED_LABEL
        states, labels = states[..., counted, :], labels[counted]
        taught = None if taught is None else taught._replace(states=taught.states[counted])
        check_labels(labels, output.out_features)
    chunks = partial(chunks, soft_targets=taught)
    tokens = (labels != IGNORED_LABEL).sum()
    total, nll = ChunkedOutputLoss.apply(states, output.weight, output.bias, labels, chunks, torch.is_grad_enabled())
    return Loss(total, nll, tokens)


def _check_soft_targets(given: SoftTargets, output: nn.Linear, labels: Tensor) -> SoftTargets:
    """The same with states (N, D')."""
    if not 0.0 <= given.share <= 1.0:
        raise checks.wrong("share", "from 0 to 1", given.share)
    if given.states.shape[:-1] != labels.shape:
        raise checks.wrong("soft_targets.states", f"of shape {(*labels.shape, given.output.in_features)}, one for each "
                           "label", f"of shape {checks.shape(given.states)}")
    if given.output.out_features != output.out_features:
        raise checks.wrong("soft_targets.output", f"for a vocabulary of {output.out_features:,}, as that of the model",
                           f"for {given.output.out_features:,}")
    return given._replace(states=given.states.detach().reshape(-1, given.states.shape[-1]))


def logits_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Loss:
    """The loss of logits (..., V) that are computed already."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    logits, labels = logits.reshape(-1, logits.shape[-1]).to(wide), labels.reshape(-1)
    options: dict[str, Any] = {"ignore_index": IGNORED_LABEL, "reduction": "sum"}
    nll = F.cross_entropy(logits, labels, **options)
    total = F.cross_entropy(logits, labels, label_smoothing=label_smoothing, **options) if label_smoothing else nll
    return Loss(total, nll.detach(), (labels != IGNORED_LABEL).sum())


def check_labels(labels: Tensor, vocabulary: int) -> None:
    """Refuse labels outside the vocabulary; torch says only "index out of bounds", and nothing about negative ones."""
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise checks.wrong("labels", "integers", f"of dtype {labels.dtype}")
    outside = labels[(labels < 0) | (labels >= vocabulary)]
    if outside.numel():
        raise checks.wrong("labels", f"from 0 to {vocabulary - 1}, or {IGNORED_LABEL} to be ignored", int(outside[0]))


class ChunkedOutputLoss(torch.autograd.Function):
    """Loss and gradients of all chunks in one pass, computed by `chunks`; the backward pass only scales them."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
                chunks: Callable[..., tuple[Tensor, Tensor]], gradients: bool) -> tuple[Tensor, Tensor]:
        device = states.device.type
        autocast = torch.is_autocast_enabled(device) and states.dtype != torch.float64  # which autocast leaves alone
        dtype = torch.get_autocast_dtype(device) if autocast else states.dtype
        low, low_weight = states.to(dtype), weight.to(dtype)
        wanted = gradients and any(ctx.needs_input_grad[:3])  # parameters need one even under no_grad
        of_states = torch.empty_like(low) if wanted else None
        of_weight = torch.zeros_like(weight) if wanted else None
        of_bias = torch.zeros_like(bias) if wanted and bias is not None else None
        with torch.autocast(device, enabled=False):
            total, nll = chunks(low, low_weight, None if bias is None else bias.to(dtype), labels, of_states=of_states,
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


def _add_weight_gradient(of_weight: Tensor, of_bias: Tensor | None, gradient: Tensor, low: Tensor,
                         states: Tensor) -> None:
    """Add the gradients of weight and bias of a chunk: `gradient` (..., C, V) and its copy in the states' dtype."""
    low_NV, x_ND = low.flatten(0, -2), states.flatten(0, -2)
    if of_weight.dtype == states.dtype:
        of_weight.addmm_(low_NV.t(), x_ND)
    else:
        of_weight += low_NV.t() @ x_ND
    if of_bias is not None:
        of_bias += _bias_gradient(gradient)


def _bias_gradient(gradient: Tensor) -> Tensor:
    """The sum over all rows of (..., V), in float32 at least."""
    if usable(gradient):
        from regard.kernels.column_sums import column_sums  # imports Triton

        return column_sums(gradient, torch.float32)
    return gradient.flatten(0, -2).sum(0, dtype=torch.promote_types(gradient.dtype, torch.float32))


def _chunk_rows(states: Tensor, vocabulary: int, copies: int) -> int:
    """The tokens of a chunk that holds this many logits for each token and entry of the vocabulary."""
    return max(MIN_CHUNK, LOGITS_PER_CHUNK.get(states.device.type, LOGITS_PER_CHUNK_GPU) // (copies * vocabulary))


class _SoftTerms(NamedTuple):
    """What soft targets add for a chunk of tokens."""

    loss: Tensor
    """To the sum of the losses."""
    gradient_CV: Tensor
    """To the gradient of the logits of each pass."""


class _SoftTargetChunks:
    """Computes what soft targets add, chunk by chunk: see the formula at the top."""

    def __init__(self, given: SoftTargets, labels: Tensor, rows: int, dtype: torch.dtype, smoothing: float) -> None:
        self.states, self.labels, self.rows = given.states.to(dtype), labels, rows
        self.weight = given.output.weight.detach().to(dtype)
        self.bias = None if given.output.bias is None else given.output.bias.detach().to(dtype)
        self.share, self.smoothing = given.share, smoothing

    def __call__(self, start: int, logits: Tensor) -> _SoftTerms:
        """The terms of the chunk that begins with this token, given the model's logits (C, V) or (P, C, V)."""
        label_C = self.labels[start:start + self.rows]
        ignored_C1 = (label_C == IGNORED_LABEL).unsqueeze(-1)
        index_C1 = label_C.unsqueeze(-1).masked_fill(ignored_C1, 0)
        taught_CV = F.linear(self.states[start:start + self.rows], self.weight, self.bias)
        log_t_CV = taught_CV.log_softmax(-1, torch.promote_types(taught_CV.dtype, torch.float32))
        t_CV = log_t_CV.exp()
        negative_entropy_C1 = log_t_CV.mul_(t_CV).sum(-1, keepdim=True).masked_fill_(ignored_C1, 0.0)
        each = self.share / (1 if logits.dim() == 2 else logits.shape[0])
        gradient_CV = t_CV.mul_(-each)
        if self.smoothing:
            gradient_CV.add_(each * self.smoothing / gradient_CV.shape[-1])
        gradient_CV.scatter_add_(-1, index_C1, gradient_CV.new_full(index_C1.shape, each * (1.0 - self.smoothing)))
        gradient_CV.masked_fill_(ignored_C1, 0.0)
        return _SoftTerms((logits * gradient_CV).sum() + self.share * negative_entropy_C1.sum(), gradient_CV)


def _token_chunks(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, smoothing: float,
                  soft_targets: SoftTargets | None, of_states: Tensor | None, of_weight: Tensor | None,
                  of_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sums of loss and nll; gradients are written into the tensors that are given for them."""
    rows = _chunk_rows(states, weight.shape[0], 1 if soft_targets is None else 1 + TEACHER_COPIES)
    wide = torch.promote_types(states.dtype, torch.float32)
    compute = _fused_losses_and_gradient if usable(states, weight) else _losses_and_gradient
    if (states.device.type == "cpu" and states.dtype == wide and compute is _losses_and_gradient
            and soft_targets is None):
        return _token_chunks_in_place(states, weight, bias, labels, rows, smoothing, of_states, of_weight, of_bias)
    soft = None if soft_targets is None else _SoftTargetChunks(soft_targets, labels, rows, states.dtype, smoothing)
    total, nll, added = (states.new_zeros((), dtype=wide) for _ in range(3))
    for start in range(0, len(labels), rows):
        x_CD, label_C = states[start:start + rows], labels[start:start + rows]
        logits_CV = F.linear(x_CD, weight, bias)  # overwritten below
        terms = None if soft is None else soft(start, logits_CV)
        own_C, spread_C, gradient_CV = compute(logits_CV, label_C, smoothing, of_states is not None)
        nll += own_C.sum()
        if smoothing:
            total += (1.0 - smoothing) * own_C.sum() + smoothing * spread_C.sum()
        if terms is not None:
            added += terms.loss
        if of_states is None or of_weight is None:
            continue
        if terms is not None:
            gradient_CV.add_(terms.gradient_CV)
        low_CV = gradient_CV.to(states.dtype)
        torch.mm(low_CV, weight, out=of_states[start:start + rows])
        _add_weight_gradient(of_weight, of_bias, gradient_CV, low_CV, x_CD)
    return (total if smoothing else nll) + added, nll


def _losses_and_gradient(logits_CV: Tensor, label_C: Tensor, smoothing: float,
                         gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    """-log p of the label of each token, its mean over the vocabulary, and the gradient if it is wanted."""
    logits_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
    counts_C = label_C != IGNORED_LABEL
    index_C1 = label_C.masked_fill(~counts_C, 0).unsqueeze(-1)
    label_logit_C = logits_CV.gather(-1, index_C1).squeeze(-1)
    mean_C = logits_CV.mean(-1) if smoothing else label_logit_C
    highest_C = logits_CV.amax(-1)
    # One exponential, on a CPU in place, since it processes row after row.
    gradient_CV = torch.softmax(logits_CV, -1, out=logits_CV if logits_CV.device.type == "cpu" else None)
    log_sum_C = highest_C - gradient_CV.amax(-1).log()
    own_C, spread_C = ((log_sum_C - logit_C).masked_fill(~counts_C, 0.0) for logit_C in (label_logit_C, mean_C))
    if gradients:
        if smoothing:
            gradient_CV.sub_(smoothing / gradient_CV.shape[-1])
        gradient_CV.scatter_add_(-1, index_C1, gradient_CV.new_full(index_C1.shape, smoothing - 1.0))
        if label_C.device.type != "cpu":  # on a CPU ignored tokens were left out before
            gradient_CV.masked_fill_(~counts_C.unsqueeze(-1), 0.0)
    return own_C, spread_C, gradient_CV


def _fused_losses_and_gradient(logits_CV: Tensor, label_C: Tensor, smoothing: float,
                               gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The same by a Triton kernel, without a wider copy of the logits."""
    from regard.kernels import loss as kernels  # imports Triton

    own_C, spread_C = kernels.cross_entropy(logits_CV, label_C, IGNORED_LABEL, smoothing, gradients=gradients)
    return own_C, spread_C, logits_CV


def _token_chunks_in_place(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, rows: int,
                           smoothing: float, of_states: Tensor | None, of_weight: Tensor | None,
                           of_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """As `_token_chunks`, on a CPU, with one pass over the logits: softmax in place.

    Label smoothing needs the mean logit of each token, which is linear in the states: x · mean W + mean b. So its loss
    and gradients are computed from means, once for all tokens. Ignored tokens were left out before.
    """
    packed = len(labels) >= MIN_PACKED_CHUNKS * rows and onednn_usable(states, weight)
    packed_weight = onednn_weight(weight) if packed else weight
    packed_transpose = onednn_weight(weight.t()) if packed and of_states is not None else weight.t()
    logits = _logits_in_place(states, weight, bias, rows)
    nll, label_logits = states.new_zeros(()), states.new_zeros(())
    smallest = torch.finfo(states.dtype).tiny / torch.finfo(states.dtype).eps
    for start in range(0, len(labels), rows):
        x_CD, label_C = states[start:start + rows], labels[start:start + rows]
        by_onednn = packed and len(x_CD) == rows  # the last chunk has another shape
        logits_CV = onednn_linear(x_CD, packed_weight, bias) if by_onednn else logits(x_CD)
        index_C1 = label_C.unsqueeze(-1)
        label_logits += logits_CV.gather(-1, index_C1).sum()
        p_CV = torch.softmax(logits_CV, -1, out=logits_CV)
        p_C = p_CV.gather(-1, index_C1).squeeze(-1)
        own_C, underflow_C = -p_C.log(), p_C < smallest  # too small for its logarithm to be exact
        if bool(underflow_C.any()):
            own_C[underflow_C] = F.cross_entropy(F.linear(x_CD[underflow_C], weight, bias), label_C[underflow_C],
                                                 reduction="none")
        nll += own_C.sum()
        if of_states is None or of_weight is None:
            continue
        gradient_CV = p_CV.scatter_add_(-1, index_C1, p_CV.new_full(index_C1.shape, smoothing - 1.0))
        if by_onednn:
            of_states[start:start + rows] = onednn_linear(gradient_CV, packed_transpose)
        else:
            torch.mm(gradient_CV, weight, out=of_states[start:start + rows])
        _add_weight_gradient(of_weight, of_bias, gradient_CV, gradient_CV, x_CD)
        del logits_CV, p_CV, gradient_CV  # the next chunk reuses their memory
    if not smoothing:
        return nll.clone(), nll
    mean_D, sum_D, each = weight.mean(0), states.sum(0), smoothing / weight.shape[0]
    if of_states is not None and of_weight is not None:
        of_states.sub_(smoothing * mean_D)
        of_weight.sub_(each * sum_D)
        if of_bias is not None:
            of_bias.sub_(each * len(labels))
    means = sum_D @ mean_D if bias is None else sum_D @ mean_D + len(labels) * bias.mean()
    return nll + smoothing * (label_logits - means), nll


def _logits_in_place(states: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor]:
    """`F.linear` for at most `rows` states, always into the same memory: new pages cost more than the softmax."""
    buffer_CV = states.new_empty(min(rows, len(states)), weight.shape[0])

    def logits(x_CD: Tensor) -> Tensor:
        out = buffer_CV[:len(x_CD)]
        return torch.mm(x_CD, weight.t(), out=out) if bias is None else torch.addmm(bias, x_CD, weight.t(), out=out)

    return logits


def onednn_usable(*tensors: Tensor) -> bool:
    """Whether oneDNN can multiply these tensors with packed weights.

    MKL, which torch uses by default, packs the weights again for every product. For a new number of rows oneDNN first
    compiles a kernel, which takes longer than it saves: it pays only for many products of one shape. Measured on one
    thread of an AMD EPYC, the output layer of a small Transformer with gradients (2,138 tokens of width 128, a
    vocabulary of 8,000, 262 tokens per chunk) took 160 ms instead of 176.
    """
    return (all(type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu"
                and tensor.dtype == torch.float32 and tensor.numel() > 0 for tensor in tensors)
            and not torch.compiler.is_compiling() and torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_linear_pointwise"))


def onednn_weight(weight: Tensor) -> Tensor:
    """The weight (out, in), packed for `onednn_linear`."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return packed


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (N, in) times weight (out, in), plain or packed, plus bias (out,); without gradients."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _rdrop_chunks(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, smoothing: float,
                  rdrop: float, soft_targets: SoftTargets | None, of_states: Tensor | None, of_weight: Tensor | None,
                  of_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sums of loss and nll; gradients are written into the tensors that are given for them."""
    rows = _chunk_rows(states, weight.shape[0], 2 if soft_targets is None else 2 + TEACHER_COPIES)
    soft = None if soft_targets is None else _SoftTargetChunks(soft_targets, labels, rows, states.dtype, smoothing)
    wide = torch.promote_types(states.dtype, torch.float32)
    total, nll = states.new_zeros((), dtype=wide), states.new_zeros((), dtype=wide)
    compute = _fused_rdrop_losses_and_gradient if usable(states, weight) else _rdrop_losses_and_gradient
    for start in range(0, len(labels), rows):
        x_PCD, label_C = states[:, start:start + rows], labels[start:start + rows]
        logits_PCV = F.linear(x_PCD, weight, bias)  # overwritten below
        terms = None if soft is None else soft(start, logits_PCV)
        own, loss, gradient_PCV = compute(logits_PCV, label_C, smoothing, rdrop, of_states is not None)
        nll += own
        total += loss
        if terms is not None:
            total += terms.loss
        if of_states is None or of_weight is None:
            continue
        if terms is not None:
            gradient_PCV.add_(terms.gradient_CV)
        low_PCV = gradient_PCV.to(states.dtype)
        of_states[:, start:start + rows] = low_PCV @ weight
        _add_weight_gradient(of_weight, of_bias, gradient_PCV, low_PCV, x_PCD)
    return total, nll


def _fused_rdrop_losses_and_gradient(logits_PCV: Tensor, label_C: Tensor, smoothing: float, rdrop: float,
                                     gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    """As `_rdrop_losses_and_gradient`, by a Triton kernel, without a wider copy of the logits."""
    from regard.kernels import loss as kernels  # imports Triton

    logits_PCV = logits_PCV.contiguous()
    own_C, spread_C, divergence_C = kernels.rdrop(logits_PCV, label_C, IGNORED_LABEL, smoothing, rdrop,
                                                  gradients=gradients)
    each_C = (1.0 - smoothing) * own_C + smoothing * spread_C if smoothing else own_C
    return own_C.sum(), (each_C + 0.5 * rdrop * divergence_C).sum(), logits_PCV


def _rdrop_losses_and_gradient(logits_PCV: Tensor, label_C: Tensor, smoothing: float, rdrop: float,
                               gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of -log p of the labels and of the loss, and the gradient if it is wanted."""
    logits_PCV = logits_PCV.to(torch.promote_types(logits_PCV.dtype, torch.float32))
    quarter = 0.25 * rdrop
    counts_C = label_C != IGNORED_LABEL
    index_PC1 = label_C.masked_fill(~counts_C, 0).unsqueeze(-1).expand(2, -1, 1)
    label_logit_PC1 = logits_PCV.gather(-1, index_PC1)
    mean_PC1 = logits_PCV.mean(-1, keepdim=True) if smoothing else label_logit_PC1
    apart_CV = logits_PCV[0] - logits_PCV[1]
    highest_PC1 = logits_PCV.amax(-1, keepdim=True)
    p_PCV = logits_PCV.sub_(highest_PC1).exp_()  # in place, one exponential
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
    if label_C.device.type != "cpu":  # on a CPU ignored tokens were left out before
        gradient_PCV.masked_fill_(~counts_C.unsqueeze(-1), 0.0)
    return own, each, gradient_PCV
