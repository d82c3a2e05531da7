"""Attention maps of a model, and projections of its embeddings, as arrays."""
