"""Batching: from stored examples to padded batches in a reproducible order."""
