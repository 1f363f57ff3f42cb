"""The oracle: every equation of the road from the recurrent network to the Transformer, in NumPy float64, plain loops.

It is the authority against which the fast parts are tested. It is written to be read and checked against the papers,
one function an equation; it is slow on purpose, knows neither torch nor the rest of the package, and has no gradients.

    arrays.py          conversion to float64, a map over tokens, a linear map
    attention.py       scores, normalisers, weights, attend, the layer forms (and the masks, by their names)
    masks.py           who may attend to whom, as bool matrices
    statistics.py      what is read off a weight matrix
    convolution.py     1-D convolution
    recurrence.py      one step of each cell, the scan over time, the jacobians, gradient flow
    seq2seq.py         encoder-decoder, without and with attention
    position.py        position encodings, rotations and biases
    norm.py            layer norm in its three written forms, RMS norm
    activation.py      the point-wise functions
    block.py           MLP, post-norm and pre-norm block
    formal.py          Formal Algorithms for Transformers, 1 to 7
    formal_models.py   the same, 8 to 15
"""
