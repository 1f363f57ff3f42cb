"""Watching a model while it runs as always."""
