"""Position schemes give attention the order of the tokens, which it otherwise treats as a set.

A scheme acts in one place: on the embeddings, on the heads of queries and keys, which it rotates, or on the
scores, to which it adds a bias. Positions are passed as data: ``pos`` (B, T) int64, -1 for padding.
Cross-attention has no positions.
"""
