"""Tracks of many agents: files, windows, checks, and synthetic ones."""
