"""Placeholders, tags and addresses that survive a translation."""
