"""Readers and writers of text data: plain text, TSV, JSONL, PO and TMX."""
