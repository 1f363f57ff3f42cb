"""The steps of each cell, backward: from `last` to `first`, the derivatives that `rules` writes out.

The kernels mirror those of `forward`, with the same two ways to be launched. The weights come transposed, (width,
gates·width). `d_gates` has one step of zeros behind the last, which the last step reads as what came after it. What is
carried from step to step (the part of d_h that no product makes; d_c) has two places that take turns.

Rows that have ended (PADDED) hand d_h and d_c on as they are; their gates have a gradient of 0. Gradients of weights
are not made here: they are products over all steps. Needs triton.

Legend: H width, G gates of a token; d_x = dL/dx.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def"
# (arguments in capitals are known when a kernel is compiled; the types of the others are Triton's)

import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]

from regard.recurrence.kernels.steps.parts import arrive, get, product, put, tanh, wait


@triton.jit(do_not_specialize=["first", "last"])
def simple(weights, hidden, cells, gates, inner, d_hidden, d_gates, d_inner, carried, d_cells, lengths, counters,
           first, last, rows, H: tl.constexpr, CELL: tl.constexpr, PADDED: tl.constexpr, WAITS: tl.constexpr,
           PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, BLOCK_DEPTH: tl.constexpr):
    """CELL: "tanh" and "linear" (the RNN), "lstm" or "gru"."""
    G: tl.constexpr = 4 if CELL == "lstm" else 3 if CELL == "gru" else 1
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    feature = tl.program_id(0) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    there, inside = row < rows, feature < H
    mask = there[:, None] & inside[None, :]
    own = row[:, None] * H + feature[None, :]
    wide = row[:, None] * (G * H) + feature[None, :]
    counter = counters + tl.program_id(1) * 32
    if PADDED:
        length = tl.load(lengths + row, mask=there, other=0)[:, None]
    for back in range(0, last - first):
        t = last - 1 - back
        token = tl.cast(t, tl.int64) * rows
        found, left = (t + 1) % 2 * rows * H + own, t % 2 * rows * H + own
        kept = gates + token * (G * H) + wide
        before = hidden + token * H + own
        d_h = get(d_hidden + token * H + own, mask) + get(carried + found, mask)
        if CELL == "lstm":
            i = get(kept, mask)
            f = get(kept + H, mask)
            o = get(kept + 2 * H, mask)
            g = get(kept + 3 * H, mask)
            c = get(cells + token * H + own, mask)
            tanh_c = tanh(get(cells + (token + rows) * H + own, mask))
            d_c = get(d_cells + found, mask)
        elif CELL == "gru":
            r = get(kept, mask)
            z = get(kept + H, mask)
            candidate = get(kept + 2 * H, mask)
            q = get(inner + token * H + own, mask)
            h = get(before, mask)
        else:
            y = get(before + rows * H, mask)
        if WAITS:
            wait(counter, back * tl.num_programs(0))
        total = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
        # The gates of a GRU: r and z are next to each other, and what the candidate has read of h is apart.
        total = product(total, d_gates + (token + rows) * (G * H), row * (G * H), there, weights, feature * (G * H),
                        inside, 2 * H if CELL == "gru" else G * H, BLOCK_DEPTH, PRECISION)
        if CELL == "gru":
            total = product(total, d_inner + (token + rows) * H, row * H, there, weights + 2 * H, feature * (G * H),
                            inside, H, BLOCK_DEPTH, PRECISION)
        d_h += total
        d_a = d_gates + token * (G * H) + wide
        alive = mask  # rows that have not ended; others leave gradients of 0
        if PADDED:
            alive = mask & (t < length)
        handed = tl.where(alive, 0.0, d_h)
        if CELL == "lstm":
            d_o = d_h * tanh_c
            now = d_c + d_h * o * (1.0 - tanh_c * tanh_c)
            put(d_a, tl.where(alive, now * g * i * (1.0 - i), 0.0), mask)
            put(d_a + H, tl.where(alive, now * c * f * (1.0 - f), 0.0), mask)
            put(d_a + 2 * H, tl.where(alive, d_o * o * (1.0 - o), 0.0), mask)
            put(d_a + 3 * H, tl.where(alive, now * i * (1.0 - g * g), 0.0), mask)
            tl.store(d_cells + left, tl.where(alive, now * f, d_c), mask=mask)
        elif CELL == "gru":
            handed = tl.where(alive, d_h * z, d_h)
            d_candidate = tl.where(alive, d_h * (1.0 - z) * (1.0 - candidate * candidate), 0.0)
            put(d_a, d_candidate * q * r * (1.0 - r), mask)
            put(d_a + H, tl.where(alive, d_h * (h - candidate) * z * (1.0 - z), 0.0), mask)
            put(d_a + 2 * H, d_candidate, mask)
            put(d_inner + token * H + own, d_candidate * r, mask)
        elif CELL == "tanh":
            put(d_a, tl.where(alive, d_h * (1.0 - y * y), 0.0), mask)
        else:
            put(d_a, tl.where(alive, d_h, 0.0), mask)
        tl.store(carried + left, handed, mask=mask)
        if WAITS:
            arrive(counter)


@triton.jit(do_not_specialize=["first", "last"])
def gated(weights, hidden, squashed, gates, d_hidden, d_gates, carried, partial, lengths, counters, first, last, rows,
          H: tl.constexpr, KEEPS: tl.constexpr, UPDATE: tl.constexpr, PHASE: tl.constexpr, PADDED: tl.constexpr,
          WAITS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
          BLOCK_DEPTH: tl.constexpr):
    """KEEPS, UPDATE: as in `rules.GatedRule`. PHASE: 1, d_z and the candidate's; 2, what goes through r⊙h; 0, both.

    `carried` goes from the second phase to the first of the step before, `partial` from the first to the second.
    """
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    feature = tl.program_id(0) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    there, inside = row < rows, feature < H
    mask = there[:, None] & inside[None, :]
    own = row[:, None] * H + feature[None, :]
    wide = row[:, None] * (3 * H) + feature[None, :]
    counter = counters + tl.program_id(1) * 32
    W: tl.constexpr = (2 if UPDATE == "nothing" else 3) * H  # how many numbers a row of the weights has
    if PADDED:
        length = tl.load(lengths + row, mask=there, other=0)[:, None]
    for back in range(0, last - first):
        t = last - 1 - back
        token = tl.cast(t, tl.int64) * rows
        kept = gates + token * (3 * H) + wide
        d_a = d_gates + token * (3 * H) + wide
        after = d_gates + (token + rows) * (3 * H)
        h = get(hidden + token * H + own, mask)
        if PHASE != 2:
            d_h = get(d_hidden + token * H + own, mask)
            z = get(kept + H, mask)
            candidate = get(kept + 2 * H, mask)
            if WAITS:
                wait(counter, back * 2 * tl.num_programs(0))
            total = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
            total = product(total, after, row * (3 * H), there, weights, feature * W, inside,
                            2 * H if UPDATE == "hidden" else H, BLOCK_DEPTH, PRECISION)
            d_h += get(carried + own, mask) + total
            if UPDATE == "squashed":
                d_tanh = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
                d_tanh = product(d_tanh, after + H, row * (3 * H), there, weights + H, feature * W, inside, H,
                                 BLOCK_DEPTH, PRECISION)
                tanh_h = get(squashed + (token + rows) * H + own, mask)
                d_h += d_tanh * (1.0 - tanh_h * tanh_h)
            alive = mask
            if PADDED:
                alive = mask & (t < length)
            if KEEPS:
                d_z = d_h * (h - candidate)
                passed = d_h * z
            else:
                d_z = d_h * (candidate - h)
                passed = d_h * (1.0 - z)
            d_candidate = (d_h - passed) * (1.0 - candidate * candidate)
            if UPDATE != "nothing":
                d_z = d_z * z * (1.0 - z)
            put(d_a + H, tl.where(alive, d_z, 0.0), mask)
            put(d_a + 2 * H, tl.where(alive, d_candidate, 0.0), mask)
            tl.store(partial + own, tl.where(alive, passed, d_h), mask=mask)
            if WAITS:
                arrive(counter)
        if PHASE != 1:
            r = get(kept, mask)
            if WAITS:
                wait(counter, (back * 2 + 1) * tl.num_programs(0))
            d_s = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
            d_s = product(d_s, d_gates + token * (3 * H) + 2 * H, row * (3 * H), there, weights + (W - H),
                          feature * W, inside, H, BLOCK_DEPTH, PRECISION)
            put(d_a, d_s * h * r * (1.0 - r), mask)
            tl.store(carried + own, get(partial + own, mask) + d_s * r, mask=mask)
            if WAITS:
                arrive(counter)
