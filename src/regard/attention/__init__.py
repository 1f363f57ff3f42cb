"""Attention: `attend`, its scores, normalisers and masks, the layers with parameters, and the backends."""
