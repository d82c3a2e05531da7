"""Draft sources for speculative decoding: a language model verifies several draft tokens in one step.

The output has the distribution of plain sampling, and at temperature 0 the same tokens; only the time
differs. Rejected tokens are removed from the cache, so the cache must be able to rewind: ``static``,
``growing``, ``paged`` or ``low_rank``.
"""
