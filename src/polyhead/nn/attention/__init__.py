"""Attention turns (B, T, C) into (B, T, C): over its own input and what a cache holds, or over a given memory.

The decoder may have another one (``model.decoder_attention``), and so may the way from the decoder to the source
(``model.cross_attention``). Shapes: B batch rows, T queries, S key slots, H query heads, K key/value heads, D head_dim,
C d_model; q = x W_q (B, H, T, D), k = y W_k and v = y W_v (B, K, S, D), and W_o joins the heads.
"""
