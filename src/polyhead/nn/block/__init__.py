"""Blocks: one layer of a stack each, with its own idea of how tokens learn of each other.

The encoder and the decoder may have different ones: ``model.decoder_block`` is as ``model.block`` if it is not given.
So may the layers of a stack: ``model.pattern``.
"""
