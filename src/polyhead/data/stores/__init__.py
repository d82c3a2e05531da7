"""Encoded corpora as memory-mapped arrays."""
