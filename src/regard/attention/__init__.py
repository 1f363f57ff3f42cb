"""Attention: `attend`, its scores, normalisers and masks, the layers that own weights, and the backends that compute."""
