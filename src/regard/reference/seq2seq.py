"""Encoder-decoder: a recurrent encoder, a recurrent decoder, one context vector for all steps or a new one for each.

The cells are functions: encoder `f_W(x, state) -> state`, decoder `g_U(y, state, context) -> state`, readout
`(s, context) -> logits`, so that every cell of recurrence.py fits. A state is h or (h, c). One sequence at a time; it
does not know how words become vectors, nor how a model is searched.

Sources: Sutskever, Vinyals, Le 2014 and Cho et al. 2014 (one context); Bahdanau, Cho, Bengio 2015 (attention).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Floats, floats, linear
from .attention import Score, decoder_context
from .recurrence import hidden_state, last_valid, scan

Encoder = Callable[[Floats, Any], Any]
Decoder = Callable[[Floats, Any, Floats], Any]
Readout = Callable[[Floats, Floats], Floats]


def shift_right(targets: Sequence[int], start: int) -> list[int]:
    """Teacher forcing: step t reads the word before the one that it predicts: [START], y_1, ..., y_{T-1}."""
    return [start, *targets[:-1]] if len(targets) else []


def concatenating_cell(cell: Encoder) -> Decoder:
    """g_U made of a cell with one input: it reads [y; c] as that input."""
    return lambda y, state, context: cell(np.concatenate([floats(y), floats(context)]), state)


def encode(cell: Encoder, xs: ArrayLike, h_0: Any, length: int | None = None) -> list[Any]:
    """h_t = f_W(x_t, h_{t-1}) for the valid tokens, t = 1 .. length. -> their states"""
    xs = floats(xs)
    return scan(cell, xs if length is None else xs[:length], h_0)


def initial_from_last(h_T: ArrayLike, W: ArrayLike, b: ArrayLike | None = None,
                      activation: Callable[[Floats], Floats] = np.tanh) -> Floats:
    """s_0 = tanh(W h_T + b), h_T the last valid state. The tanh is Bahdanau et al.'s; it can be replaced."""
    return floats(activation(linear(h_T, W, b)))


def initial_from_mean(H: ArrayLike, W: ArrayLike, b: ArrayLike | None = None,
                      activation: Callable[[Floats], Floats] = np.tanh) -> Floats:
    """s_0 = tanh(W m + b), m the mean of the valid states H (T, D)."""
    H = floats(H)
    return floats(activation(linear(sum(H, np.zeros(H.shape[1])) / len(H), W, b)))


def decode(cell: Decoder, ys: ArrayLike, s_0: Any, context: ArrayLike, readout: Readout) -> tuple[Floats, list[Any]]:
    """s_t = g_U(y_{t-1}, s_{t-1}, c), logits_t = readout(s_t, c), with one c for all steps. -> logits (T, V), states

    ys (T, D) are the vectors of the shifted targets, [START] first.
    """
    context, state = floats(context), s_0
    logits, states = [], []
    for y in floats(ys):
        state = cell(y, state, context)
        states.append(state)
        logits.append(floats(readout(hidden_state(state), context)))
    return floats(logits), states


def decode_attending(cell: Decoder, ys: ArrayLike, s_0: Any, H: ArrayLike, score: Score,
                     readout: Readout) -> tuple[Floats, list[Any], Floats]:
    """e_{t,i} = f_att(s_{t-1}, h_i); a_t = softmax(e_t); c_t = sum_i a_{t,i} h_i; s_t = g_U(y_{t-1}, s_{t-1}, c_t);
    logits_t = readout(s_t, c_t). H (T', D) are the valid states. -> logits (T, V), states, weights a (T, T')"""
    state = s_0
    logits, states, rows = [], [], []
    for y in floats(ys):
        context, row = decoder_context(hidden_state(state), H, score)
        state = cell(y, state, context)
        states.append(state)
        rows.append(row)
        logits.append(floats(readout(hidden_state(state), context)))
    return floats(logits), states, floats(rows)


def encoder_decoder(xs: ArrayLike, length: int, targets: Sequence[int], start: int, *,
                    embed: Callable[[int], ArrayLike], encoder: Encoder, h_0: Any, initial: Callable[[Floats], Any],
                    decoder: Decoder, readout: Readout) -> Floats:
    """Without attention: c = h_T, the last valid state; s_0 = initial(h_T). -> logits (len(targets), V)"""
    states = encode(encoder, xs, h_0, length)
    h_T = hidden_state(last_valid(states, length))
    ys = floats([floats(embed(word)) for word in shift_right(targets, start)])
    return decode(decoder, ys, initial(h_T), h_T, readout)[0]


def encoder_decoder_attending(xs: ArrayLike, length: int, targets: Sequence[int], start: int, *,
                              embed: Callable[[int], ArrayLike], encoder: Encoder, h_0: Any,
                              initial: Callable[[Floats], Any], decoder: Decoder, readout: Readout,
                              score: Score) -> tuple[Floats, Floats]:
    """With attention: a new c_t for every step; s_0 = initial(h_T), made as without. -> logits, weights"""
    states = encode(encoder, xs, h_0, length)
    H = floats([hidden_state(state) for state in states])
    ys = floats([floats(embed(word)) for word in shift_right(targets, start)])
    logits, _, rows = decode_attending(decoder, ys, initial(H[-1]), H, score, readout)
    return logits, rows
