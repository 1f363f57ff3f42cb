"""Searches that generate tokens with any model that satisfies `regard.models.contract`."""
