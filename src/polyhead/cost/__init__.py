"""Cost model of a design: floating-point operations, bytes and communication, computed without running it.

Letters of the formulas, as in ``polyhead params``: B rows of a batch, S tokens of a row, R tokens of its
source, H d_model, E d_embedding, F d_ff, V vocabulary, A n_heads x head_dim, G n_kv_heads x head_dim, N
parameters.
"""
