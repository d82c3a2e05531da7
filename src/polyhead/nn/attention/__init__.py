"""Attention maps (B, T, C) to (B, T, C): over its own input and the cache, or over an encoder memory.

The decoder may have its own (``model.decoder_attention``), and so may cross-attention
(``model.cross_attention``). Shapes: B batch rows, T queries, S key slots, H query heads, K key/value heads, D
head_dim, C d_model; q = x W_q (B, H, T, D), k = y W_k and v = y W_v (B, K, S, D), and W_o combines the heads.
"""
