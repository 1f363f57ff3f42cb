"""Comparisons: the road from recurrence to the Transformer, two models on one test set, and memory tasks."""
