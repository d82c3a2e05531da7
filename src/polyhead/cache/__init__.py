"""Caches of keys, values and states of earlier tokens, so that a decoding step computes only the new tokens.

A step is ``cache.prepare_step(rows, pos)``, then ``model.decode(tokens, pos, cache, memory)``; the cache is
an argument, not an attribute of a module. The default is ``static`` for keys and values and ``state`` for
recurrent states; in a model with both kinds of layers the chosen cache is for keys and values. Keys and
values of the encoder output are computed once per sentence and shared by its beams; they are not part of the
cache.
"""
