"""Blocks: one layer of a stack, each with its own way to mix tokens.

The encoder and the decoder may have different blocks: ``model.decoder_block`` defaults to ``model.block``. So
may the layers of a stack: ``model.layer_pattern``.
"""
