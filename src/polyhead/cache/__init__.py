"""What decoding remembers, so that the tokens before are not read again at every step.

A step is ``cache.begin(rows, pos)``, then ``model.decode(tokens, pos, cache, memory)``; the cache is passed in and
hangs on no module. If none is chosen, a model gets the plain one of its kind: ``static`` for keys and values,
``state`` for states; where some layers keep the one and some the other, what is chosen is for keys and values. Those of
the encoder's output are computed once and are shared by all beams of a sentence; they are no part of the cache.
"""
