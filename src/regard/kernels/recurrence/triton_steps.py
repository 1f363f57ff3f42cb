"""The steps of recurrent cells as Triton kernels, forward and backward.

    simple_forward, simple_backward   RNN, LSTM, GRU with reset="after": one product reads h
    gated_forward, gated_backward     GRU, MUT1, MUT2, MUT3: the candidate reads r⊙h of all features, so a step has two
                                      phases

A kernel does the steps from `first` to `last`. Its programs are in groups: a group has some rows of the batch, which no
other group reads, and each of its programs has a block of features. What a program computes for its features at a step,
all programs of its group read at the next. With WAITS they wait for each other between steps at a counter in memory,
which each program raises by one when it has written. Without WAITS one launch does one phase of one step, and the order
of the launches does the waiting. Both ways read and write the same memory and give the same numbers. All memory except
the counters is written once and then only read.

Memory layout, forward: `hidden`, `cells` and `tanh_hidden` begin with the state before the first step, so a step reads
row t·rows + row and writes the row one step further. `gates` (a token, gates·width) hold what the backward pass needs.

Memory layout, backward: the weights come transposed, (width, gates·width). `d_gates` ends with one step of zeros, which
the last step reads as its successor. The part of d_h that no product makes, and d_c, are carried from step to step in
two slots that take turns. Gradients of weights are not computed here: they are products over all steps.

Rows that have ended (PADDED) keep h and c, and pass d_h and d_c on unchanged; their gates have a gradient of 0. Sums
and the LSTM's c are float32; everything else has the precision of the inputs. These kernels know tensors only. Needs
Triton.

Legend: H width, G gates of a token; d_x = dL/dx. Arguments in capitals are compile-time constants.
"""
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def add_product(total, left, left_offsets, left_inside, right, right_offsets, right_inside, DEPTH: tl.constexpr,
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
def gate_products(left, left_offsets, left_inside, right, right_offsets, right_inside, GAP: tl.constexpr,
                  COUNT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, DEPTH: tl.constexpr,
                  BLOCK_DEPTH: tl.constexpr, PRECISION: tl.constexpr):
    """Up to four products with one left side, whose right sides are GAP elements apart; zeros beyond COUNT."""
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
        pointer = right + right_offsets[None, :] + deep[:, None]
        first = tl.dot(a, tl.load(pointer, mask=right_mask, other=0.0), first, input_precision=PRECISION)
        if COUNT > 1:
            second = tl.dot(a, tl.load(pointer + GAP, mask=right_mask, other=0.0), second, input_precision=PRECISION)
        if COUNT > 2:
            third = tl.dot(a, tl.load(pointer + 2 * GAP, mask=right_mask, other=0.0), third, input_precision=PRECISION)
        if COUNT > 3:
            fourth = tl.dot(a, tl.load(pointer + 3 * GAP, mask=right_mask, other=0.0), fourth,
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
def store_cast(pointer, value, mask):
    """Store in the dtype of the pointer."""
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def load_float32(pointer, mask):
    """Load as float32; zeros where the mask is False."""
    return tl.load(pointer, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def signal_group(counter):
    """Signal that all threads of this program have written; who reads the counter afterwards sees what they wrote."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def wait_for_group(counter, arrivals):
    """Wait until the programs of the group have signalled this many times in total."""
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < arrivals:
        pass
    tl.debug_barrier()


@triton.jit(do_not_specialize=["first", "last"])
def simple_forward(projected, weights, bias, hidden, cells, gates, inner, lengths, counters, first, last, rows,
                   H: tl.constexpr, CELL: tl.constexpr, PADDED: tl.constexpr, KEEP: tl.constexpr, WAITS: tl.constexpr,
                   PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
                   BLOCK_DEPTH: tl.constexpr):
    """CELL: "tanh" and "linear" (the RNN), "lstm" or "gru"."""
    G: tl.constexpr = 4 if CELL == "lstm" else 3 if CELL == "gru" else 1
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    feature = tl.program_id(0) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    row_mask, feature_mask = row < rows, feature < H
    mask = row_mask[:, None] & feature_mask[None, :]
    offsets = row[:, None] * H + feature[None, :]
    gate_offsets = row[:, None] * (G * H) + feature[None, :]
    counter = counters + tl.program_id(1) * 32
    if PADDED:
        length = tl.load(lengths + row, mask=row_mask, other=0)[:, None]
    for t in range(first, last):
        token = tl.cast(t, tl.int64) * rows
        p = projected + token * (G * H) + gate_offsets
        p_0 = load_float32(p, mask)
        if G > 1:
            p_1 = load_float32(p + H, mask)
            p_2 = load_float32(p + 2 * H, mask)
        if CELL == "lstm":
            p_3 = load_float32(p + 3 * H, mask)
            c = load_float32(cells + token * H + offsets, mask)
        if WAITS:
            wait_for_group(counter, (t - first) * tl.num_programs(0))
        a_0, a_1, a_2, a_3 = gate_products(hidden + token * H, row * H, row_mask, weights, feature * H, feature_mask,
                                           H * H, G, BLOCK_ROWS, BLOCK_WIDTH, H, BLOCK_DEPTH, PRECISION)
        before = hidden + token * H + offsets
        after = before + rows * H
        gate_pointer = gates + token * (G * H) + gate_offsets
        if CELL == "lstm":
            i = tl.sigmoid(p_0 + a_0)
            f = tl.sigmoid(p_1 + a_1)
            o = tl.sigmoid(p_2 + a_2)
            g = tanh(p_3 + a_3)
            new_c = f * c + i * g
            new = o * tanh(new_c)
            if PADDED:
                new_c = tl.where(t < length, new_c, c)
            tl.store(cells + (token + rows) * H + offsets, new_c, mask=mask)
            if KEEP:
                store_cast(gate_pointer, i, mask)
                store_cast(gate_pointer + H, f, mask)
                store_cast(gate_pointer + 2 * H, o, mask)
                store_cast(gate_pointer + 3 * H, g, mask)
        elif CELL == "gru":
            r = tl.sigmoid(p_0 + a_0)
            z = tl.sigmoid(p_1 + a_1)
            q = a_2 + load_float32(bias + feature, feature_mask)[None, :]
            candidate = tanh(p_2 + r * q)
            new = candidate + z * (load_float32(before, mask) - candidate)
            if KEEP:
                store_cast(gate_pointer, r, mask)
                store_cast(gate_pointer + H, z, mask)
                store_cast(gate_pointer + 2 * H, candidate, mask)
                store_cast(inner + token * H + offsets, q, mask)
        elif CELL == "tanh":
            new = tanh(p_0 + a_0)
        else:
            new = p_0 + a_0
        if PADDED:
            new = tl.where(t < length, new, load_float32(before, mask))
        store_cast(after, new, mask)
        if WAITS:
            signal_group(counter)


@triton.jit(do_not_specialize=["first", "last"])
def gated_forward(projected, weights, hidden, scaled, tanh_hidden, gates, lengths, counters, first, last, rows,
                  H: tl.constexpr, KEEPS: tl.constexpr, UPDATE: tl.constexpr, PHASE: tl.constexpr, PADDED: tl.constexpr,
                  WAITS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
                  BLOCK_DEPTH: tl.constexpr):
    """KEEPS, UPDATE: as in `bptt.GatedRule`. PHASE: 1, r and z; 2, the candidate and the new state; 0, both."""
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    feature = tl.program_id(0) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    row_mask, feature_mask = row < rows, feature < H
    mask = row_mask[:, None] & feature_mask[None, :]
    offsets = row[:, None] * H + feature[None, :]
    gate_offsets = row[:, None] * (3 * H) + feature[None, :]
    counter = counters + tl.program_id(1) * 32
    last_rows: tl.constexpr = (1 if UPDATE == "nothing" else 2) * H * H  # where the weights of the candidate begin
    if PADDED:
        length = tl.load(lengths + row, mask=row_mask, other=0)[:, None]
    for t in range(first, last):
        token = tl.cast(t, tl.int64) * rows
        p = projected + token * (3 * H) + gate_offsets
        gate_pointer = gates + token * (3 * H) + gate_offsets
        before = hidden + token * H + offsets
        p_2 = load_float32(p + 2 * H, mask)
        if PHASE != 2:
            p_0 = load_float32(p, mask)
            p_1 = load_float32(p + H, mask)
            if WAITS:
                wait_for_group(counter, (t - first) * 2 * tl.num_programs(0))
            a_0, a_1, _, _ = gate_products(hidden + token * H, row * H, row_mask, weights, feature * H, feature_mask,
                                           H * H, 2 if UPDATE == "hidden" else 1, BLOCK_ROWS, BLOCK_WIDTH, H,
                                           BLOCK_DEPTH, PRECISION)
            if UPDATE == "tanh":
                a_1 = add_product(a_1, tanh_hidden + token * H, row * H, row_mask, weights + H * H, feature * H,
                                  feature_mask, H, BLOCK_DEPTH, PRECISION)
            r = tl.sigmoid(p_0 + a_0)
            store_cast(scaled + token * H + offsets, r * load_float32(before, mask), mask)
            store_cast(gate_pointer, r, mask)
            store_cast(gate_pointer + H, p_1 if UPDATE == "nothing" else tl.sigmoid(p_1 + a_1), mask)
            if WAITS:
                signal_group(counter)
                wait_for_group(counter, ((t - first) * 2 + 1) * tl.num_programs(0))
        if PHASE != 1:
            a_2 = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
            a_2 = add_product(a_2, scaled + token * H, row * H, row_mask, weights + last_rows, feature * H,
                              feature_mask, H, BLOCK_DEPTH, PRECISION)
            candidate = tanh(p_2 + a_2)
            z = load_float32(gate_pointer + H, mask)
            h = load_float32(before, mask)
            if KEEPS:
                new = candidate + z * (h - candidate)
            else:
                new = h + z * (candidate - h)
            if PADDED:
                new = tl.where(t < length, new, h)
            store_cast(gate_pointer + 2 * H, candidate, mask)
            store_cast(before + rows * H, new, mask)
            if UPDATE == "tanh":
                store_cast(tanh_hidden + (token + rows) * H + offsets, tanh(new), mask)
            if WAITS:
                signal_group(counter)


@triton.jit(do_not_specialize=["first", "last"])
def simple_backward(weights, hidden, cells, gates, inner, d_hidden, d_gates, d_inner, carried, d_cells, lengths,
                    counters, first, last, rows, H: tl.constexpr, CELL: tl.constexpr, PADDED: tl.constexpr,
                    WAITS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
                    BLOCK_DEPTH: tl.constexpr):
    """CELL: "tanh" and "linear" (the RNN), "lstm" or "gru"."""
    G: tl.constexpr = 4 if CELL == "lstm" else 3 if CELL == "gru" else 1
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    feature = tl.program_id(0) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    row_mask, feature_mask = row < rows, feature < H
    mask = row_mask[:, None] & feature_mask[None, :]
    offsets = row[:, None] * H + feature[None, :]
    gate_offsets = row[:, None] * (G * H) + feature[None, :]
    counter = counters + tl.program_id(1) * 32
    if PADDED:
        length = tl.load(lengths + row, mask=row_mask, other=0)[:, None]
    for back in range(0, last - first):
        t = last - 1 - back
        token = tl.cast(t, tl.int64) * rows
        read_slot, write_slot = (t + 1) % 2 * rows * H + offsets, t % 2 * rows * H + offsets
        gate_pointer = gates + token * (G * H) + gate_offsets
        before = hidden + token * H + offsets
        d_h = load_float32(d_hidden + token * H + offsets, mask) + load_float32(carried + read_slot, mask)
        if CELL == "lstm":
            i = load_float32(gate_pointer, mask)
            f = load_float32(gate_pointer + H, mask)
            o = load_float32(gate_pointer + 2 * H, mask)
            g = load_float32(gate_pointer + 3 * H, mask)
            c = load_float32(cells + token * H + offsets, mask)
            tanh_c = tanh(load_float32(cells + (token + rows) * H + offsets, mask))
            d_c = load_float32(d_cells + read_slot, mask)
        elif CELL == "gru":
            r = load_float32(gate_pointer, mask)
            z = load_float32(gate_pointer + H, mask)
            candidate = load_float32(gate_pointer + 2 * H, mask)
            q = load_float32(inner + token * H + offsets, mask)
            h = load_float32(before, mask)
        else:
            y = load_float32(before + rows * H, mask)
        if WAITS:
            wait_for_group(counter, back * tl.num_programs(0))
        total = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
        # The gates of a GRU: r and z are next to each other, and what the candidate has read of h is apart.
        total = add_product(total, d_gates + (token + rows) * (G * H), row * (G * H), row_mask, weights,
                            feature * (G * H), feature_mask, 2 * H if CELL == "gru" else G * H, BLOCK_DEPTH, PRECISION)
        if CELL == "gru":
            total = add_product(total, d_inner + (token + rows) * H, row * H, row_mask, weights + 2 * H,
                                feature * (G * H), feature_mask, H, BLOCK_DEPTH, PRECISION)
        d_h += total
        d_a = d_gates + token * (G * H) + gate_offsets
        alive = mask  # rows that have not ended; others leave gradients of 0
        if PADDED:
            alive = mask & (t < length)
        carried_on = tl.where(alive, 0.0, d_h)
        if CELL == "lstm":
            d_o = d_h * tanh_c
            d_c_now = d_c + d_h * o * (1.0 - tanh_c * tanh_c)
            store_cast(d_a, tl.where(alive, d_c_now * g * i * (1.0 - i), 0.0), mask)
            store_cast(d_a + H, tl.where(alive, d_c_now * c * f * (1.0 - f), 0.0), mask)
            store_cast(d_a + 2 * H, tl.where(alive, d_o * o * (1.0 - o), 0.0), mask)
            store_cast(d_a + 3 * H, tl.where(alive, d_c_now * i * (1.0 - g * g), 0.0), mask)
            tl.store(d_cells + write_slot, tl.where(alive, d_c_now * f, d_c), mask=mask)
        elif CELL == "gru":
            carried_on = tl.where(alive, d_h * z, d_h)
            d_candidate = tl.where(alive, d_h * (1.0 - z) * (1.0 - candidate * candidate), 0.0)
            store_cast(d_a, d_candidate * q * r * (1.0 - r), mask)
            store_cast(d_a + H, tl.where(alive, d_h * (h - candidate) * z * (1.0 - z), 0.0), mask)
            store_cast(d_a + 2 * H, d_candidate, mask)
            store_cast(d_inner + token * H + offsets, d_candidate * r, mask)
        elif CELL == "tanh":
            store_cast(d_a, tl.where(alive, d_h * (1.0 - y * y), 0.0), mask)
        else:
            store_cast(d_a, tl.where(alive, d_h, 0.0), mask)
        tl.store(carried + write_slot, carried_on, mask=mask)
        if WAITS:
            signal_group(counter)


@triton.jit(do_not_specialize=["first", "last"])
def gated_backward(weights, hidden, tanh_hidden, gates, d_hidden, d_gates, carried, partial, lengths, counters, first,
                   last, rows, H: tl.constexpr, KEEPS: tl.constexpr, UPDATE: tl.constexpr, PHASE: tl.constexpr,
                   PADDED: tl.constexpr, WAITS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                   BLOCK_WIDTH: tl.constexpr, BLOCK_DEPTH: tl.constexpr):
    """KEEPS, UPDATE: as in `bptt.GatedRule`. PHASE: 1, d_z and the candidate's; 2, what goes through r⊙h; 0, both.

    `carried` goes from the second phase to the first of the step before, `partial` from the first to the second.
    """
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    feature = tl.program_id(0) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    row_mask, feature_mask = row < rows, feature < H
    mask = row_mask[:, None] & feature_mask[None, :]
    offsets = row[:, None] * H + feature[None, :]
    gate_offsets = row[:, None] * (3 * H) + feature[None, :]
    counter = counters + tl.program_id(1) * 32
    W: tl.constexpr = (2 if UPDATE == "nothing" else 3) * H  # how many numbers a row of the weights has
    if PADDED:
        length = tl.load(lengths + row, mask=row_mask, other=0)[:, None]
    for back in range(0, last - first):
        t = last - 1 - back
        token = tl.cast(t, tl.int64) * rows
        gate_pointer = gates + token * (3 * H) + gate_offsets
        d_a = d_gates + token * (3 * H) + gate_offsets
        after = d_gates + (token + rows) * (3 * H)
        h = load_float32(hidden + token * H + offsets, mask)
        if PHASE != 2:
            d_h = load_float32(d_hidden + token * H + offsets, mask)
            z = load_float32(gate_pointer + H, mask)
            candidate = load_float32(gate_pointer + 2 * H, mask)
            if WAITS:
                wait_for_group(counter, back * 2 * tl.num_programs(0))
            total = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
            total = add_product(total, after, row * (3 * H), row_mask, weights, feature * W, feature_mask,
                                2 * H if UPDATE == "hidden" else H, BLOCK_DEPTH, PRECISION)
            d_h += load_float32(carried + offsets, mask) + total
            if UPDATE == "tanh":
                d_tanh = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
                d_tanh = add_product(d_tanh, after + H, row * (3 * H), row_mask, weights + H, feature * W, feature_mask,
                                     H, BLOCK_DEPTH, PRECISION)
                tanh_h = load_float32(tanh_hidden + (token + rows) * H + offsets, mask)
                d_h += d_tanh * (1.0 - tanh_h * tanh_h)
            alive = mask
            if PADDED:
                alive = mask & (t < length)
            if KEEPS:
                d_z = d_h * (h - candidate)
                carried_on = d_h * z
            else:
                d_z = d_h * (candidate - h)
                carried_on = d_h * (1.0 - z)
            d_candidate = (d_h - carried_on) * (1.0 - candidate * candidate)
            if UPDATE != "nothing":
                d_z = d_z * z * (1.0 - z)
            store_cast(d_a + H, tl.where(alive, d_z, 0.0), mask)
            store_cast(d_a + 2 * H, tl.where(alive, d_candidate, 0.0), mask)
            tl.store(partial + offsets, tl.where(alive, carried_on, d_h), mask=mask)
            if WAITS:
                signal_group(counter)
        if PHASE != 1:
            r = load_float32(gate_pointer, mask)
            if WAITS:
                wait_for_group(counter, (back * 2 + 1) * tl.num_programs(0))
            d_s = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), tl.float32)
            d_s = add_product(d_s, d_gates + token * (3 * H) + 2 * H, row * (3 * H), row_mask, weights + (W - H),
                              feature * W, feature_mask, H, BLOCK_DEPTH, PRECISION)
            store_cast(d_a, d_s * h * r * (1.0 - r), mask)
            tl.store(carried + offsets, load_float32(partial + offsets, mask) + d_s * r, mask=mask)
            if WAITS:
                signal_group(counter)
