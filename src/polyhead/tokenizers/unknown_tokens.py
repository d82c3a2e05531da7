"""Share of unknown tokens in a text: characters or words that the vocabulary lacks, all of them one token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from polyhead.core.i18n import tr
from polyhead.tokenizers.tokenizer import Tokenizer

_WARNING_SHARE = 0.01  # with more, scores per token are misleading
_CHUNK = 1 << 24  # ids compared at once, since they may be a memory map


class UnknownTokens(NamedTuple):
    """Number of unknown tokens, and of all tokens."""

    unknown: int = 0
    total: int = 0

    def __add__(self, other: object) -> Self:
        assert isinstance(other, UnknownTokens)
        return self._replace(unknown=self.unknown + other.unknown, total=self.total + other.total)

    @property
    def share(self) -> float:
        return self.unknown / max(self.total, 1)

    @property
    def is_frequent(self) -> bool:
        """Whether there are so many that the vocabulary does not fit the text."""
        return self.share >= _WARNING_SHARE

    def describe(self) -> str:
        """Describe the counts in the current language: '308 of 1,000 tokens unknown (30.8 %)'."""
        return tr(
            "{unknown:,} of {total:,} tokens unknown ({share:.3g} %)",
            unknown=self.unknown,
            total=self.total,
            share=100 * self.share,
        )

    def describe_warning(self) -> str:
        """Explain in the current language what frequent unknown tokens mean, and what to do."""
        return tr(
            "warning: {share:.3g} % of the tokens are unknown: the vocabulary does not fit this text, and "
            "loss and perplexity look better than they are; for a new model use tokenizer.kind=bpe, "
            "byte_fallback: true of unigram, or a larger tokenizer.vocab_size",
            share=100 * self.share,
        )


def count_unknown_ids(ids: Sequence[int] | NDArray[Any], tokenizer: Tokenizer) -> UnknownTokens:
    """Count the unknown tokens among ids of a tokenizer."""
    unknown_id = tokenizer.unknown_id
    if unknown_id is None:
        return UnknownTokens(0, len(ids))
    array = np.asanyarray(ids)
    chunks = (array[start : start + _CHUNK] for start in range(0, len(array), _CHUNK))
    return UnknownTokens(sum(int(np.count_nonzero(chunk == unknown_id)) for chunk in chunks), len(array))


def count_unknown(texts: Iterable[str], tokenizer: Tokenizer) -> UnknownTokens:
    """Count the unknown tokens of texts."""
    return count_unknown_ids([i for ids in tokenizer.encode(list(texts)) for i in ids], tokenizer)
