"""Position schemes tell attention the order of the tokens, which alone it treats as a set.

A scheme acts in one place: on the embeddings, on the heads of queries and keys, which it turns, or on the scores, to
which it adds a bias. Positions come in as data: ``pos`` (B, T) int64, -1 for padding. Cross-attention has no positions
of its own.
"""
