"""What a design costs before it is spent: floating-point operations, bytes, messages between processes.

Letters of the formulas, as in ``polyhead sizes``: B rows of a batch, S tokens of a row, R tokens of its source, H d_model,
E d_embedding, F d_ff, V vocabulary, A n_heads x head_dim, G n_kv_heads x head_dim, N parameters.
"""
