"""The steps of each cell, forward: one kernel for the cells whose step is one product, one for those with two.

    simple    RNN, LSTM, GRU with reset="after": all that reads h reads it at once
    gated     GRU, MUT1, MUT2, MUT3: the candidate reads r⊙h of all features, so that each step has two phases

A kernel does the steps from `first` to `last`; with WAITS its programs wait for each other between them. Without it,
one launch does one phase of one step, and the order of the launches does the waiting. Both read and write the same
places, so that they give the same numbers. All memory but the counters is written once and then only read.

Places: hidden, cells and squashed have the state before the first step in front, so that a step reads row t·rows + row
and writes it one step further. `gates` (a token, gates·width) are what the backward needs of a step.

Rows that have ended (PADDED) leave h and c as they are. Precision: sums and the LSTM's c are float32; the rest has that
of the inputs. Needs triton.

Legend: H width, G gates of a token.
"""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def"
# (arguments in capitals are known when a kernel is compiled; the types of the others are Triton's)

import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]

from regard.recurrence.kernels.steps.parts import arrive, get, product, products, put, tanh, wait


@triton.jit(do_not_specialize=["first", "last"])
def simple(projected, weights, bias, hidden, cells, gates, inner, lengths, counters, first, last, rows,
           H: tl.constexpr, CELL: tl.constexpr, PADDED: tl.constexpr, KEEP: tl.constexpr, WAITS: tl.constexpr,
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
    for t in range(first, last):
        token = tl.cast(t, tl.int64) * rows
        p = projected + token * (G * H) + wide
        p_0 = get(p, mask)
        if G > 1:
            p_1 = get(p + H, mask)
            p_2 = get(p + 2 * H, mask)
        if CELL == "lstm":
            p_3 = get(p + 3 * H, mask)
            c = get(cells + token * H + own, mask)
        if WAITS:
            wait(counter, (t - first) * tl.num_programs(0))
        a_0, a_1, a_2, a_3 = products(hidden + token * H, row * H, there, weights, feature * H, inside, H * H, G,
                                      BLOCK_ROWS, BLOCK_WIDTH, H, BLOCK_DEPTH, PRECISION)
        before = hidden + token * H + own
        after = before + rows * H
        kept = gates + token * (G * H) + wide
        if CELL == "lstm":
            i = tl.sigmoid(p_0 + a_0)
            f = tl.sigmoid(p_1 + a_1)
            o = tl.sigmoid(p_2 + a_2)
            g = tanh(p_3 + a_3)
            new_c = f * c + i * g
            new = o * tanh(new_c)
            if PADDED:
                new_c = tl.where(t < length, new_c, c)
            tl.store(cells + (token + rows) * H + own, new_c, mask=mask)
            if KEEP:
                put(kept, i, mask)
                put(kept + H, f, mask)
                put(kept + 2 * H, o, mask)
                put(kept + 3 * H, g, mask)
        elif CELL == "gru":
            r = tl.sigmoid(p_0 + a_0)
            z = tl.sigmoid(p_1 + a_1)
            q = a_2 + get(bias + feature, inside)[None, :]
            candidate = tanh(p_2 + r * q)
            new = candidate + z * (get(before, mask) - candidate)
            if KEEP:
                put(kept, r, mask)
                put(kept + H, z, mask)
                put(kept + 2 * H, candidate, mask)
                put(inner + token * H + own, q, mask)
        elif CELL == "tanh":
            new = tanh(p_0 + a_0)
        else:
            new = p_0 + a_0
        if PADDED:
            new = tl.where(t < length, new, get(before, mask))
        put(after, new, mask)
        if WAITS:
            arrive(counter)


@triton.jit(do_not_specialize=["first", "last"])
def gated(projected, weights, hidden, scaled, squashed, gates, lengths, counters, first, last, rows,
          H: tl.constexpr, KEEPS: tl.constexpr, UPDATE: tl.constexpr, PHASE: tl.constexpr, PADDED: tl.constexpr,
          WAITS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
          BLOCK_DEPTH: tl.constexpr):
    """KEEPS, UPDATE: as in `rules.GatedRule`. PHASE: 1, r and z; 2, the candidate and the new state; 0, both."""
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    feature = tl.program_id(0) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    there, inside = row < rows, feature < H
    mask = there[:, None] & inside[None, :]
    own = row[:, None] * H + feature[None, :]
    wide = row[:, None] * (3 * H) + feature[None, :]
    counter = counters + tl.program_id(1) * 32
    last_rows: tl.constexpr = (1 if UPDATE == "nothing" else 2) * H * H  # where the weights of the candidate begin
    if PADDED:
        length = tl.load(lengths + row, mask=there, other=0)[:, None]
    for t in range(first, last):
        token = tl.cast(t, tl.int64) * rows
        p = projected + token * (3 * H) + wide
        kept = gates + token * (3 * H) + wide
        before = hidden + token * H + own
        p_2 = get(p + 2 * H, mask)
        if PHASE != 2:
            p_0 = get(p, mask)
            p_1 = get(p + H, mask)
            if WAITS:
                wait(counter, (t - first) * 2 * tl.num_programs(0))
            a_0, a_1, _, _ = products(hidden + token * H, row * H, there, weights, feature * H, inside, H * H,
                                      2 if UPDATE == "hidden" else 1, BLOCK_ROWS, BLOCK_WIDTH, H, BLOCK_DEPTH,
                                      PRECISION)
            if UPDATE == "squashed":
                a_1 = product(a_1, squashed + token * H, row * H, there, weights + H * H, feature * H, inside, H,
                              BLOCK_DEPTH, PRECISION)
            r = tl.sigmoid(p_0 + a_0)
            put(scaled + token * H + own, r * get(before, mask), mask)
            put(kept, r, mask)
            put(kept + H, p_1 if UPDATE == "nothing" else tl.sigmoid(p_1 + a_1), mask)
            if WAITS:
                arrive(counter)
                wait(counter, ((t - first) * 2 + 1) * tl.num_programs(0))
        if PHASE != 1:
            a_2 = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
            a_2 = product(a_2, scaled + token * H, row * H, there, weights + last_rows, feature * H, inside, H,
                          BLOCK_DEPTH, PRECISION)
            candidate = tanh(p_2 + a_2)
            z = get(kept + H, mask)
            h = get(before, mask)
            if KEEPS:
                new = candidate + z * (h - candidate)
            else:
                new = h + z * (candidate - h)
            if PADDED:
                new = tl.where(t < length, new, h)
            put(kept + 2 * H, candidate, mask)
            put(before + rows * H, new, mask)
            if UPDATE == "squashed":
                put(squashed + (token + rows) * H + own, tanh(new), mask)
            if WAITS:
                arrive(counter)
