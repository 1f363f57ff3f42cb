"""Comparisons: the road from recurrence to the Transformer on one data set, two models on one test set, and memory tasks."""
