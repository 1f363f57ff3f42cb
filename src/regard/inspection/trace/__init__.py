"""Traces: what a model looked at, in one file."""
