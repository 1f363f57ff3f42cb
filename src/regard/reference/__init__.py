"""The oracle: every equation from the recurrent network to the Transformer, in NumPy float64 and plain loops.

The fast parts are tested against it. It is written to be read and checked against the papers, one function for each
equation. It is slow on purpose, imports neither torch nor the rest of the package, and has no gradients.

    arrays.py               conversion to float64, a map over tokens, a linear map
    attention.py            masks, scores, normalisers, weights, attend, the forms of attention layers
    statistics.py           statistics of attention weights, roles of heads, word alignments
    convolution.py          1-D convolution
    recurrence.py           one step of each cell, the scan over time, the Jacobians, gradient flow
    rwkv.py                 RWKV 4 and 7: the recurrences, their maps, time mix and channel mix
    seq2seq.py              encoder-decoder, without and with attention
    position.py             position encodings, rotations and biases
    blocks.py               activations, norms, MLP, post-norm and pre-norm block
    loss.py                 cross entropy, label smoothing, R-Drop
    protein.py              AlphaFold: gated attention along an axis, triangles, the Evoformer block
    formal_algorithms.py    Formal Algorithms for Transformers, 1 to 15
"""
