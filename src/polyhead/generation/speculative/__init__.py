"""Speculative decoding: verify draft tokens in one forward pass."""
