"""Who guesses how a text goes on, so that a language model reads several tokens in one step and says as many as were right.

What is said is drawn as without guesses, and at temperature 0 it is the same, token by token; only the time differs. Guesses
must be taken back, so the cache must be one that can be: ``static``, ``growing``, ``paged`` or ``low_rank``.
"""
