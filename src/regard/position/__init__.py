"""Positions: encodings added to tokens, rotary positions, and biases of attention scores.

`encoding` gives every position a vector, which is added to a token or concatenated with it; `rotary` rotates queries
and keys by an angle that grows with the position; `bias` gives every distance between a key and a query a number that
is added to their score. `positions` has the exact angles and the checks that they share.

Positions are always arguments, never counted inside: the same code serves a whole sequence, one decoding step, left
padding and packed rows. Nothing here knows attention layers or models.
"""
