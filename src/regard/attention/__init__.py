"""Attention: what is asked (score, normalize, mask, bias), who computes it (kernels), and who owns weights (layer)."""
