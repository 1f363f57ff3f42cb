"""What the kernels of a scan are made of: a product, tanh, and waiting for each other.

A scan has programs in groups. A group has some rows of the batch, which no other group reads; each of its programs has
a block of features. What a program makes of its features at a step, all programs of its group read at the next: they
wait for each other at a counter in memory, which each of them raises by one when it has written.

These parts do not know any cell. Needs triton.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def"
# (arguments in capitals are known when a kernel is compiled; the types of the others are Triton's)

import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]


@triton.jit
def product(total, left, left_offsets, left_inside, right, right_offsets, right_inside, DEPTH: tl.constexpr,
            BLOCK_DEPTH: tl.constexpr, PRECISION: tl.constexpr):
    """total (rows, features) + left (rows, DEPTH) @ right (features, DEPTH)^T; a row of each begins at its offset."""
    inner = tl.arange(0, BLOCK_DEPTH)
    for start in range(0, DEPTH, BLOCK_DEPTH):
        deep = start + inner
        if DEPTH % BLOCK_DEPTH == 0:
            left_mask, right_mask = left_inside[:, None], right_inside[None, :]
        else:
            left_mask = left_inside[:, None] & (deep < DEPTH)[None, :]
            right_mask = right_inside[None, :] & (deep < DEPTH)[:, None]
        a = tl.load(left + left_offsets[:, None] + deep[None, :], mask=left_mask, other=0.0)
        b = tl.load(right + right_offsets[None, :] + deep[:, None], mask=right_mask, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def products(left, left_offsets, left_inside, right, right_offsets, right_inside, GAP: tl.constexpr,
             COUNT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, DEPTH: tl.constexpr,
             BLOCK_DEPTH: tl.constexpr, PRECISION: tl.constexpr):
    """Up to four products of one left side, whose right sides are GAP numbers apart; zeros beyond COUNT."""
    first = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
    second = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
    third = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
    fourth = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
    inner = tl.arange(0, BLOCK_DEPTH)
    for start in range(0, DEPTH, BLOCK_DEPTH):
        deep = start + inner
        if DEPTH % BLOCK_DEPTH == 0:
            left_mask, right_mask = left_inside[:, None], right_inside[None, :]
        else:
            left_mask = left_inside[:, None] & (deep < DEPTH)[None, :]
            right_mask = right_inside[None, :] & (deep < DEPTH)[:, None]
        a = tl.load(left + left_offsets[:, None] + deep[None, :], mask=left_mask, other=0.0)
        place = right + right_offsets[None, :] + deep[:, None]
        first = tl.dot(a, tl.load(place, mask=right_mask, other=0.0), first, input_precision=PRECISION)
        if COUNT > 1:
            second = tl.dot(a, tl.load(place + GAP, mask=right_mask, other=0.0), second, input_precision=PRECISION)
        if COUNT > 2:
            third = tl.dot(a, tl.load(place + 2 * GAP, mask=right_mask, other=0.0), third, input_precision=PRECISION)
        if COUNT > 3:
            fourth = tl.dot(a, tl.load(place + 3 * GAP, mask=right_mask, other=0.0), fourth,
                            input_precision=PRECISION)
    return first, second, third, fourth


@triton.jit
def tanh(x):
    """(1 - e)/(1 + e), e = exp(-2|x|), with the sign of x; its series near 0, where 1 - e has lost its digits."""
    e = tl.exp(-2.0 * tl.abs(x))
    large = (1.0 - e) / (1.0 + e)
    near = tl.where(tl.abs(x) < 0.125, x, 0.0)
    square = near * near
    small = near * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.125, small, tl.where(x < 0.0, -large, large))


@triton.jit
def put(place, value, mask):
    """Store in the precision that the place has."""
    tl.store(place, value.to(place.dtype.element_ty), mask=mask)


@triton.jit
def get(place, mask):
    """Load as float32; zeros outside."""
    return tl.load(place, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def arrive(counter):
    """Say that this program has written. All its threads have, and whoever reads the counter reads what they wrote."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def wait(counter, arrivals):
    """Go on when the programs of the group have arrived this many times, all together."""
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < arrivals:
        pass
    tl.debug_barrier()
