"""Searches: they write with any model that answers to `regard.models.contract`, and know nothing else of it."""
