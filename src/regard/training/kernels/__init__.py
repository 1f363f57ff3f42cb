"""The losses on a GPU: from a chunk of logits to numbers and gradients, in the precision that the logits have."""
