"""Statistics of attention weights without the matrix of weights, and which backend computes them.

    fused          our kernels on a GPU, where each query has one range of keys (`regard.kernels.statistics`)
    closed_form    torch's fused kernels, where the mask is not a matrix
    rows           blocks of whole rows, for every score, normaliser, mask and bias

`Look` defines each statistic; its methods call `compute_statistic`. The rules of choosing a backend are those of
`regard.kernels.dispatch`. Memory grows with N, not with N². No gradients flow from here.

Legend: ... leading dimensions, S all leading dimensions in one, Q queries, K keys, R rows of a block, C keys of a
block, M blocks of a map.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad, scaled_dot_product_attention

from regard.attention.backends import rows_per_block, weigh, with_tiled_score
from regard.attention.fused import MAX_WIDTH, SDPA, SdpaInputs, matrix_entries, sdpa_inputs
from regard.attention.mask_cache import is_band, key_ranges
from regard.attention.problem import AttentionProblem
from regard.kernels import dispatch, launch

STATISTICS = ("entropy", "row_max", "column_sums", "top_k", "block_map")
MAX_TOP_K = 16
"""The most weights of a row that the fused kernels find."""
MIN_MAP_BLOCK = 32
"""The smallest map block of the fused kernels that is not a power of two: smaller ones leave tiles nearly empty."""
FUSED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
ONE_HOT_WIDTH = 64
"""The least width of the values that say to which block a key belongs: every fused kernel of torch takes it."""


@dataclass(frozen=True)
class StatisticRequest:
    """One of `STATISTICS` of the weights of a problem; `number` is the count of "top_k" or the size of "block_map"."""

    statistic: str
    problem: AttentionProblem
    number: int | None = None


class StatisticsBackend:
    """A backend with a method for each statistic that it can compute, named after it."""

    words: str
    """How it computes, in a few words."""

    def refusal(self, request: StatisticRequest, /) -> str | None:
        """Why it cannot compute the statistic; None when it can."""
        return None

    def drawback(self, request: StatisticRequest, /) -> str | None:
        """Why it, able to compute it, should not be chosen; None when it should."""
        return None

    def detail(self, request: StatisticRequest, /) -> str:
        return self.words

    def run(self, request: StatisticRequest, /) -> Any:
        """The statistic."""
        numbers = () if request.number is None else (request.number,)
        return getattr(self, request.statistic)(request.problem, *numbers)


def compute_statistic(request: StatisticRequest, backend: str | None = None) -> Any:
    """The statistic, by the backend that is chosen or named; a ValueError where the named one cannot."""
    return dispatch.choose_backend(STATISTICS_BACKENDS, request, backend).run(request)


def explain_statistic(request: StatisticRequest, backend: str | None = None) -> dispatch.Explanation:
    """Which backend computes the statistic, and why the preferred ones do not."""
    return dispatch.explain_choice(STATISTICS_BACKENDS, request, backend)


class RowStatistics(StatisticsBackend):
    """One pass over blocks of whole rows, for everything."""

    words = "blocks of whole rows"

    @torch.no_grad()
    def entropy(self, problem: AttentionProblem) -> Tensor:
        """-Σ w log w of every row: (..., Q)."""
        return torch.cat([torch.special.entr(w_RC).sum(-1) for w_RC, _, _ in _weight_blocks(problem)], dim=-1)

    @torch.no_grad()
    def row_max(self, problem: AttentionProblem) -> tuple[Tensor, Tensor]:
        """The largest weight of every row and the first key that has it: (..., Q) each."""
        values, positions = [], []
        for w_RK, _, _ in _weight_blocks(problem, whole=True):
            if w_RK.shape[-1] == 0:  # without keys: weight 0, position 0
                w_RK = pad(w_RK, (0, 1))
            value_R, position_R = w_RK.max(dim=-1)
            values.append(value_R)
            positions.append(position_R)
        return torch.cat(values, dim=-1), torch.cat(positions, dim=-1)

    @torch.no_grad()
    def column_sums(self, problem: AttentionProblem) -> Tensor:
        """The sum of every column: (..., K)."""
        total = _zeros(problem, problem.n_keys)
        for w_RC, _, columns in _weight_blocks(problem):
            total[..., columns] += w_RC.sum(dim=-2)
        return total.to(problem.query.dtype)

    @torch.no_grad()
    def top_k(self, problem: AttentionProblem, count: int) -> tuple[Tensor, Tensor]:
        """The `count` largest weights of every row, largest first, and their keys: (..., Q, count) each."""
        values, positions = [], []
        for w_RK, _, _ in _weight_blocks(problem, whole=True):
            value, position = torch.sort(w_RK, dim=-1, descending=True, stable=True)  # of equal weights, the first key
            values.append(value[..., :count])
            positions.append(position[..., :count])
        return torch.cat(values, dim=-2), torch.cat(positions, dim=-2)

    @torch.no_grad()
    def block_map(self, problem: AttentionProblem, size: int) -> Tensor:
        """The mean weight of every size × size block, (..., M, M); blocks at the ends may be smaller."""
        down, across = (-(-n // size) for n in (problem.n_queries, problem.n_keys))
        total = _zeros(problem, down, across)
        for w_RC, rows, columns in _weight_blocks(problem):
            lowest = columns.start // size
            # Columns are padded on both sides, so that the grid of the block is the grid of the map.
            left, right = columns.start - lowest * size, -columns.stop % size
            if left or right:  # padding by nothing would copy too
                w_RC = pad(w_RC, (left, right))
            w_RMS = w_RC.unflatten(-1, (-1, size))
            row_of_map = torch.arange(rows.start, rows.stop, device=total.device) // size
            sums_RM = w_RMS.sum(-1, dtype=total.dtype)
            total[..., lowest:lowest + sums_RM.shape[-1]].index_add_(-2, row_of_map, sums_RM)
        return (total / _block_counts(problem, size)).to(problem.query.dtype)


@torch.no_grad()
def some_rows(problem: AttentionProblem, indices: Tensor) -> Tensor:
    """The weights of these queries only: (..., indices, K)."""
    weights = weigh(with_tiled_score(problem.repeat_key_heads()), indices, slice(0, problem.n_keys))[0]
    return weights.expand(*problem.leading, *weights.shape[-2:])


def _weight_blocks(problem: AttentionProblem, *, whole: bool = False) -> Iterator[tuple[Tensor, slice, slice]]:
    """The weights of each block of rows, with its rows and the keys that they hold (all of them if `whole`)."""
    problem = with_tiled_score(problem.repeat_key_heads())
    all_keys = slice(0, problem.n_keys)
    for rows, columns in problem.row_blocks(rows_per_block(problem)):
        columns = all_keys if whole else columns
        weights, _ = weigh(problem, rows, columns)
        yield weights.expand(*problem.leading, *weights.shape[-2:]), rows, columns


def _zeros(problem: AttentionProblem, *shape: int) -> Tensor:
    """Zeros for sums over many rows, which need more digits than the half-width types have."""
    dtype = torch.float64 if problem.query.dtype == torch.float64 else torch.float32
    return problem.query.new_zeros(*problem.leading, *shape, dtype=dtype)


def _block_counts(problem: AttentionProblem, size: int) -> Tensor:
    """The number of pairs in each block of the map: (M queries, M keys)."""
    per_axis = []
    for n in (problem.n_queries, problem.n_keys):
        starts = torch.arange(0, n, size, device=problem.query.device)
        per_axis.append((n - starts).clamp(max=size))
    return per_axis[0].unsqueeze(-1) * per_axis[1]


class ClosedForms(StatisticsBackend):
    """torch's fused kernels, for dot products under softmax; p are the weights, s = scale · q·k the scores:

        entropy       -Σ p log p = lse - Σ p s = lse - scale · q · (p K)      K, the keys, in place of the values
        column sums   Σ_i p_ij   = the gradient of the values, where that of every output is 1
        block map     Σ over the keys of a block = p · V, where V says to which block a key belongs
    """

    words = "torch's fused kernels"

    def refusal(self, request: StatisticRequest, /) -> str | None:
        if request.statistic in ("row_max", "top_k"):
            return "there is no closed form for the positions of the largest weights"
        problem = request.problem
        if problem.n_queries == 0 or problem.n_keys == 0:
            return "there are no queries or no keys"
        if problem.query.device.type == "cuda" and problem.query.dtype == torch.float64:
            return "the fused kernels on a GPU do not support float64"
        if problem.bias is not None:
            return "there is no closed form for scores with a bias"
        if matrix_entries(problem):
            return "the mask would be a matrix as large as the weights"
        return SDPA.refusal(problem)

    def drawback(self, request: StatisticRequest, /) -> str | None:
        problem = request.problem
        if request.statistic == "column_sums" and problem.query.device.type != "cuda":
            return "on a CPU it is slower than whole rows: it computes a gradient, three times a forward pass"
        if request.statistic == "block_map" and problem.n_keys > (request.number or 1) * ONE_HOT_WIDTH:
            return f"it computes one attention for every {ONE_HOT_WIDTH} blocks of keys, so it is for coarse maps"
        return None

    @torch.no_grad()
    def entropy(self, problem: AttentionProblem) -> Tensor:
        """-Σ p log p of every row: (..., Q)."""
        assert problem.bias is None, "the entropy of biased scores needs the sum of p · bias"
        inputs = _ungrouped_inputs(problem)
        mean_key, lse = _with_lse(inputs)
        # In float32 at least: the two terms are large and nearly equal where the weights are sharp.
        wide = torch.promote_types(problem.query.dtype, torch.float32)
        mean_score = inputs.scale * (inputs.query.to(wide) * mean_key.to(wide)).sum(-1)
        result = (lse.to(wide) - mean_score).clamp(min=0.0)
        if inputs.empty is not None:
            result = result.masked_fill(inputs.empty.squeeze(-1), 0.0)
        return result.to(problem.query.dtype).reshape(*problem.leading, problem.n_queries)

    @torch.no_grad()
    def column_sums(self, problem: AttentionProblem) -> Tensor:
        """The sum of every column: (..., K)."""
        inputs = _ungrouped_inputs(problem)
        with torch.enable_grad():
            value = torch.zeros_like(inputs.key).requires_grad_()
            output = _sdpa(inputs._replace(query=inputs.query.detach(), key=inputs.key.detach()), value)
        upstream = torch.ones_like(output)
        if inputs.empty is not None:
            upstream = upstream.masked_fill(inputs.empty, 0.0)
        (gradient,) = torch.autograd.grad(output, value, upstream)
        return gradient[..., 0].reshape(*problem.leading, problem.n_keys)

    @torch.no_grad()
    def block_map(self, problem: AttentionProblem, size: int) -> Tensor:
        """The mean weight of every size × size block; one attention for every 64 blocks of keys or more."""
        inputs = _ungrouped_inputs(problem)
        width = max(ONE_HOT_WIDTH, inputs.query.shape[-1])  # with several widths torch leaves its fused kernels
        inputs = inputs._replace(query=_pad_width(inputs.query, width), key=_pad_width(inputs.key, width))
        across = -(-problem.n_keys // size)
        block_of_key = torch.arange(problem.n_keys, device=problem.query.device) // size
        pieces = []
        for first in range(0, across, width):
            value = one_hot((block_of_key - first).clamp(-1, width) + 1, width + 2)[:, 1:-1].to(inputs.query.dtype)
            sums = _sdpa(inputs, value.expand(*inputs.query.shape[:2], -1, -1))
            if inputs.empty is not None:
                sums = sums.masked_fill(inputs.empty, 0.0)
            pieces.append(sums[..., :across - first])
        sums_QM = torch.cat(pieces, dim=-1).to(torch.promote_types(problem.query.dtype, torch.float32))
        down = -(-problem.n_queries // size)
        total = pad(sums_QM, (0, 0, 0, down * size - problem.n_queries)).unflatten(-2, (down, size)).sum(-2)
        result = (total / _block_counts(problem, size)).to(problem.query.dtype)
        return result.reshape(*problem.leading, down, across)


def _ungrouped_inputs(problem: AttentionProblem) -> SdpaInputs:
    """The inputs of torch's kernels, with as many heads of keys as of queries."""
    inputs = sdpa_inputs(problem.repeat_key_heads())
    return inputs._replace(key=inputs.key.expand(*inputs.query.shape[:2], -1, -1))


def _sdpa(inputs: SdpaInputs, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(inputs.query, inputs.key, value, inputs.matrix, 0.0, inputs.causal,
                                        scale=inputs.scale)


def _with_lse(inputs: SdpaInputs) -> tuple[Tensor, Tensor]:
    """The mean key of every row under its weights, and log Σ exp of its scores."""
    matrix, width = inputs.matrix, inputs.query.shape[-1]
    if matrix is not None and matrix.dtype == torch.bool:
        matrix = torch.zeros_like(matrix, dtype=inputs.query.dtype).masked_fill(~matrix, -torch.inf)
    if inputs.query.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, lse = kernel(inputs.query, inputs.key, inputs.key, 0.0, inputs.causal, attn_mask=matrix,
                             scale=inputs.scale)
        return output, lse
    if matrix is not None:  # the kernel wants it expanded, with rows that begin at multiples of 16 bytes
        n_queries, n_keys = inputs.query.shape[-2], inputs.key.shape[-2]
        matrix = pad(matrix.expand(*inputs.query.shape[:2], n_queries, n_keys), (0, -n_keys % 8))[..., :n_keys]
    query, key = (_pad_width(tensor, width + -width % 8) for tensor in (inputs.query, inputs.key))
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    output, lse, _, _ = kernel(query, key, key, matrix, True, 0.0, inputs.causal, scale=inputs.scale)
    return output[..., :width], lse[..., :inputs.query.shape[-2]]


def _pad_width(tensor: Tensor, width: int) -> Tensor:
    """The tensor with zeros after its features, which change no dot product."""
    return pad(tensor, (0, width - tensor.shape[-1]))


class FusedStatistics(StatisticsBackend):
    """At most two passes of Triton kernels, for dot products under softmax where each query has one range of keys.

    On a CPU the kernels run only in Triton's interpreter, for tests.
    """

    words = "passes over tiles of scores"

    def refusal(self, request: StatisticRequest, /) -> str | None:
        number = request.number or 0
        if request.statistic == "top_k" and number > MAX_TOP_K:
            return f"it finds at most {MAX_TOP_K} weights of a row, and {number} are requested"
        if request.statistic == "block_map" and number < MIN_MAP_BLOCK and number & (number - 1):
            return f"its block size must be a power of two or at least {MIN_MAP_BLOCK}, and is {number}"
        return _fused_refusal(request.problem)

    def drawback(self, request: StatisticRequest, /) -> str | None:
        if request.problem.query.device.type != "cuda":
            return "on a CPU its kernels run in Triton's interpreter, which is for tests"
        return None

    @torch.no_grad()
    def entropy(self, problem: AttentionProblem, **options: Any) -> Tensor:
        """-Σ w log w of every row: (..., Q)."""
        from regard.kernels import statistics

        return _shaped(problem, statistics.entropy(_softmax_weights(problem), **options))

    @torch.no_grad()
    def row_max(self, problem: AttentionProblem, **options: Any) -> tuple[Tensor, Tensor]:
        """The largest weight of every row and the first key that has it: (..., Q) each."""
        from regard.kernels import statistics

        value, position = statistics.row_max(_softmax_weights(problem), **options)
        return _shaped(problem, value), position.reshape(*problem.leading, -1)

    @torch.no_grad()
    def column_sums(self, problem: AttentionProblem, **options: Any) -> Tensor:
        """The sum of every column: (..., K)."""
        from regard.kernels import statistics

        return _shaped(problem, statistics.column_sums(_softmax_weights(problem), **options))

    @torch.no_grad()
    def top_k(self, problem: AttentionProblem, count: int, **options: Any) -> tuple[Tensor, Tensor]:
        """The `count` largest weights of every row, largest first, and their keys: (..., Q, count) each."""
        from regard.kernels import statistics

        value, position = statistics.top_k(_softmax_weights(problem), count, **options)
        return _shaped(problem, value, count), position.reshape(*problem.leading, problem.n_queries, count)

    @torch.no_grad()
    def block_map(self, problem: AttentionProblem, size: int, **options: Any) -> Tensor:
        """The mean weight of every size × size block: (..., M queries, M keys)."""
        from regard.kernels import statistics

        sums_SMM = statistics.block_sums(_softmax_weights(problem), size, **options)
        means = sums_SMM.reshape(*problem.leading, *sums_SMM.shape[1:]) / _block_counts(problem, size)
        return means.to(problem.query.dtype)


def _fused_refusal(problem: AttentionProblem) -> str | None:
    """Why the fused passes cannot compute statistics of this problem; None when they can."""
    device, dtype = problem.query.device.type, problem.query.dtype
    if not launch.installed():
        return "triton is not installed"
    if device != "cuda" and not launch.interpreted():
        return f"it needs a CUDA device, and the query is on {device}"
    if device != "cuda" and dtype == torch.bfloat16:
        return "Triton's interpreter does not support bfloat16"
    if dtype not in FUSED_DTYPES:
        return f"it does not support {dtype}"
    if problem.query.numel() == 0 or problem.key.numel() == 0:
        return "there are no queries or no keys"
    if problem.bias is not None:
        return "it does not support a bias"
    other = SDPA.refusal(problem)
    if other is not None:
        return other
    dot = problem.score.as_dot(problem.query[..., :0, :])
    assert dot is not None
    query, scale = dot
    if query.shape[-1] > MAX_WIDTH:
        return f"it supports head widths up to {MAX_WIDTH}, and this one is {query.shape[-1]}"
    if not scale > 0:
        return f"it supports positive scales, and the score {problem.score!r} has {scale}"
    if not is_band(problem.mask):
        return f"it needs a mask with one range of keys for each query, and {problem.mask!r} is not known to be one"
    return None


def _softmax_weights(problem: AttentionProblem) -> Any:
    """The problem as the fused passes read it (`regard.kernels.statistics.SoftmaxWeights`)."""
    from regard.kernels.statistics import SoftmaxWeights

    inputs = sdpa_inputs(replace(problem, mask=None))
    query, key = (t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous() for t in (inputs.query, inputs.key))
    low, high = key_ranges(problem)
    if low.dim() > 1:
        low, high = (end.expand(*problem.leading, problem.n_queries).contiguous() for end in (low, high))
    return SoftmaxWeights(query, key, low, high, inputs.scale * math.log2(math.e))


def _shaped(problem: AttentionProblem, numbers: Tensor, *last: int) -> Tensor:
    """(S, ...) -> (*leading, ...), in the dtype of the query."""
    return numbers.to(problem.query.dtype).reshape(*problem.leading, -1, *last)


STATISTICS_BACKENDS: dict[str, dispatch.Backend[StatisticRequest, Any]] = {
    "fused": FusedStatistics(), "closed_form": ClosedForms(), "rows": RowStatistics(),
}
"""Every backend by name, the preferred ones first."""
