"""Position: encodings of a position, rotations of queries and keys, biases of a distance. It knows no attention.

A distance is always key position minus query position. Encodings are added to the input by the Transformer; one source
concatenates them instead: both are one line for the caller.

Sources: Vaswani et al. 2017 (sin/cos); Phuong & Hutter 2022 (its variant); Su et al. 2021 (rotary); Chen et al. 2023,
Peng et al. 2023 (YaRN) and the programs of Llama 3.1 and `transformers` (rotary frequencies scaled for longer texts);
Press, Smith, Lewis 2022 (ALiBi); Raffel et al. 2020 (T5's buckets); Shaw, Uszkoreit, Vaswani 2018 (clipped distances).
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, floats


def linear(position: float, slope: ArrayLike, offset: ArrayLike) -> Floats:
    """PE(pos) = a pos + b. Grows with length."""
    return floats(floats(slope) * position + floats(offset))


def sinusoidal(position: float, width: int, base: float = 10000.0) -> Floats:
    """PE(pos, 2i) = sin(pos / base^(2i/d)), PE(pos, 2i+1) = cos(the same), i from 0. Odd d: the last sin is alone."""
    encoding = np.zeros(width)
    for feature in range(width):
        i = feature // 2
        angle = position / base ** (2 * i / width)
        encoding[feature] = math.sin(angle) if feature % 2 == 0 else math.cos(angle)
    return encoding


def sinusoidal_formal(t: int, width: int, l_max: int) -> Floats:
    """W_p[2i-1, t] = sin(t / l_max^(2i/d)), W_p[2i, t] = cos(the same), 0 < i <= d/2, features counted from 1."""
    # Departure from Vaswani et al.: i runs from 1, so that the fastest wave is slower, and l_max stands for 10000.
    if width % 2:
        raise ValueError(f"`width` must be even, but is {width} instead.")
    encoding = np.zeros(width)
    for i in range(1, width // 2 + 1):
        angle = t / l_max ** (2 * i / width)
        encoding[2 * i - 2] = math.sin(angle)
        encoding[2 * i - 1] = math.cos(angle)
    return encoding


def _rotate(x: ArrayLike, position: float, base: float, pairs: list[tuple[int, int]]) -> Floats:
    """Turns the i-th pair (a, b) of features by the angle position / base^(2i/d):
    a' = a cos - b sin, b' = a sin + b cos."""
    x = floats(x)
    y = np.zeros(len(x))
    for i, (a, b) in enumerate(pairs):
        angle = position / base ** (2 * i / len(x))
        y[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        y[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return y


def _half(width: int) -> int:
    if width % 2:
        raise ValueError(f"`x` must have an even width to be rotated, but has {width} instead.")
    return width // 2


def rotary_interleaved(x: ArrayLike, position: float, base: float = 10000.0) -> Floats:
    """Rotary positions with the pairs (0, 1), (2, 3), ...: as Su et al. 2021 write it."""
    half = _half(len(floats(x)))
    return _rotate(x, position, base, [(2 * i, 2 * i + 1) for i in range(half)])


def rotary_halves(x: ArrayLike, position: float, base: float = 10000.0) -> Floats:
    """Rotary positions with the pairs (0, d/2), (1, d/2 + 1), ...."""
    # Departure: the paper pairs neighbours; many published models pair the two halves, and their weights need this one.
    half = _half(len(floats(x)))
    return _rotate(x, position, base, [(i, i + half) for i in range(half)])


def rotary_frequencies(width: int, base: float = 10000.0) -> Floats:
    """θ_i = base^(-2i/d), i = 0 .. d/2 - 1: the angle of pair i at position 1."""
    return floats([base ** (-2 * i / width) for i in range(_half(width))])


def rotary_linear(width: int, base: float, factor: float) -> Floats:
    """θ_i / s: position interpolation (Chen et al. 2023), positions s times as close together."""
    return floats([frequency / factor for frequency in rotary_frequencies(width, base)])


def rotary_dynamic(position: float, width: int, base: float, factor: float, original: int) -> Floats:
    """Dynamic NTK: the frequencies of base · (s l/L - (s - 1))^(d/(d-2)), where l = max(position + 1, L).

    L is the number of positions of the training (`original`), s the factor.
    """
    # Departure: `transformers` sets l to the length of the longest text of the batch, for all of its tokens, so that a
    # token changes when later ones come. Here l is the token's own position + 1: what `transformers` has when it
    # generates a token after another.
    length = max(position + 1, original)
    stretch = factor * length / original - (factor - 1)
    return rotary_frequencies(width, base * stretch ** (width / (width - 2)))


def rotary_llama3(width: int, base: float, factor: float, low: float, high: float, original: int) -> Floats:
    """Llama 3.1: slow waves are s times slower, fast ones stay, and between them the two are mixed.

    The wave of pair i is 2π/θ_i positions long and so fits r = L θ_i / 2π times into L positions (`original`):
    r > high: θ_i; r < low: θ_i / s; otherwise (1 - m) θ_i / s + m θ_i with m = (r - low) / (high - low).
    """
    scaled = []
    for frequency in rotary_frequencies(width, base):
        times = original * frequency / (2 * math.pi)
        mix = min(max((times - low) / (high - low), 0.0), 1.0)
        scaled.append((1 - mix) * frequency / factor + mix * frequency)
    return floats(scaled)


def rotary_yarn(width: int, base: float, factor: float, original: int, beta_fast: float = 32.0, beta_slow: float = 1.0,
                truncate: bool = True) -> Floats:
    """YaRN (Peng et al. 2023, "NTK-by-parts"): (1 - m_i) θ_i + m_i θ_i / s, where m_i rises from 0 to 1 over the pairs.

    A wave fits β times into L positions (`original`) at pair c(β) = d ln(L / 2πβ) / (2 ln base). The ramp m_i is linear
    in i, 0 at c(beta_fast) and 1 at c(beta_slow), which are rounded outwards with `truncate`.
    """
    # Departure from the paper, which has the ramp in the number of waves; as in the authors' program, it is in i.
    def pair(waves: float) -> float:
        return width * math.log(original / (waves * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(beta_fast), pair(beta_slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    if first == last:
        last += 0.001  # the authors' program avoids a division by 0 this way
    scaled = []
    for i, frequency in enumerate(rotary_frequencies(width, base)):
        ramp = min(max((i - first) / (last - first), 0.0), 1.0)
        scaled.append((1 - ramp) * frequency + ramp * frequency / factor)
    return floats(scaled)


def yarn_attention_factor(factor: float) -> float:
    """0.1 ln(s) + 1, at least 1: what YaRN multiplies queries and keys by."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def rotary_scaled(x: ArrayLike, position: float, frequencies: ArrayLike, attention_factor: float = 1.0) -> Floats:
    """Rotary positions over two halves with these frequencies; the result is multiplied by the attention factor."""
    x, frequencies = floats(x), floats(frequencies)
    half = _half(len(x))
    y = np.zeros(len(x))
    for i in range(half):
        cosine, sine = math.cos(position * frequencies[i]), math.sin(position * frequencies[i])
        y[i] = attention_factor * (x[i] * cosine - x[i + half] * sine)
        y[i + half] = attention_factor * (x[i] * sine + x[i + half] * cosine)
    return y


def alibi_slopes(heads: int) -> Floats:
    """m_h = 2^(-8h/H), h = 1 .. H, where H is a power of two.

    Otherwise the paper's interpolation: the slopes of the next lower power of two P, then every second one (the first,
    the third, ...) of those for 2P, until there are H.
    """
    if heads < 1:
        raise ValueError(f"`heads` must be at least 1, but is {heads} instead.")
    power = 1
    while power * 2 <= heads:
        power *= 2
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    for h in range(1, 2 * (heads - power), 2):
        slopes.append(2.0 ** (-8.0 * h / (2 * power)))
    return floats(slopes)


def alibi(heads: int, distances: ArrayLike) -> Floats:
    """bias_hij = -m_h |d_ij|. distances (Nq, Nk) -> (heads, Nq, Nk)."""
    # Departure: the paper has only keys before the query; after it we count the distance the same way.
    distances = floats(distances)
    bias = np.zeros((heads, *distances.shape))
    for h, slope in enumerate(alibi_slopes(heads)):
        for i in range(distances.shape[0]):
            for j in range(distances.shape[1]):
                bias[h, i, j] = -slope * abs(distances[i, j])
    return bias


def relative_bucket(distance: int, buckets: int, max_distance: int, both_ways: bool) -> int:
    """T5's bucket of a distance (key minus query).

    both_ways: half of the buckets are for keys before the query or at it, the other half (from buckets/2 on) for keys
    after it. Otherwise keys after it are in bucket 0 with the query's own position. Of the n buckets of one direction,
    the first m = n // 2 hold one distance each; the others grow as the logarithm, bucket(d) = m + floor((n - m)
    log(d/m) / log(max_distance/m)); from max_distance on everything is in the last.
    """
    first, away = 0, max(0, -distance)
    if both_ways:
        buckets = buckets // 2
        first, away = (buckets if distance > 0 else 0), abs(distance)
    exact = buckets // 2
    if not 1 <= exact < max_distance:
        raise ValueError(
            f"`max_distance` must be above the number of exact buckets, and that at least 1, "
            f"but they are {max_distance} and {exact} instead."
        )
    if away < exact:
        return first + away
    # floor(n' log(d/m) / log(M/m)) >= k exactly where (d/m)^n' >= (M/m)^k: in whole numbers, so that no rounding of a
    # logarithm decides. T5 itself computes the logarithms in float32.
    rest, k = buckets - exact, 0
    while k < rest - 1 and away**rest * exact ** (k + 1) >= max_distance ** (k + 1) * exact**rest:
        k += 1
    return first + exact + k


def relative_clip(distance: int, limit: int) -> int:
    """clip(d, k) = max(-k, min(k, d)) (Shaw et al. 2018). A table of 2k + 1 rows is read at clip(d, k) + k."""
    return max(-limit, min(limit, distance))


def relative_bias(table: ArrayLike, buckets: ArrayLike) -> Floats:
    """bias_hij = table[bucket_ij, h]: one learned number for every bucket and head. table (buckets, heads),
    bucket matrix (Nq, Nk) of whole numbers -> (heads, Nq, Nk)."""
    table, rows = floats(table), np.asarray(buckets, dtype=np.int64)
    bias = np.zeros((table.shape[1], *rows.shape))
    for h in range(table.shape[1]):
        for i in range(rows.shape[0]):
            for j in range(rows.shape[1]):
                bias[h, i, j] = table[rows[i, j], h]
    return bias
