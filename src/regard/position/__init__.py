"""Everything that tells a model where a token stands.

`encoding` gives every position a vector, which is added to a token or set beside it; `rotary` turns queries and keys by
an angle that grows with the position; `bias` gives every distance between a key and a query a number to add to their
score. `angle` has the exact angles the first two share, `place` says what positions may be and how they meet tokens.

Positions are always given, never counted inside: the same code serves a whole sequence, one decoding step, left padding
and packed rows. Nothing here knows of attention layers or models.
"""
