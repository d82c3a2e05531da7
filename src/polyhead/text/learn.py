"""Vocabularies learnt from raw text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from polyhead.errors import UserError
from polyhead.registry import TOKENIZER, Choice
from polyhead.text.listed import has_lone_surrogate
from polyhead.text.specials import ROLES, sentinel
from polyhead.text.tokenizer import Tokenizer

MAX_TRAINING_CHARACTERS = 20_000
# of one text; what follows teaches the vocabulary nothing and may be garbage


def train_tokenizer(texts: Iterable[str], choice: Choice, vocab_size: int, sentinels: int = 0) -> Tokenizer:
    """Learn a vocabulary from raw text with the chosen part; the same texts give the same bytes.

    Its last ``sentinels`` tokens stand for spans that are left out of a text; they count in vocab_size.
    """
    choice = TOKENIZER.check(choice)
    read = [0]

    def counted() -> Iterator[str]:
        for text in texts:
            if has_lone_surrogate(text):
                raise UserError(f"text {read[0]} holds half of a surrogate pair, which is not Unicode text")
            read[0] += bool(text)
            yield text[:MAX_TRAINING_CHARACTERS]

    inner = TOKENIZER.build(choice, counted(), vocab_size - sentinels)
    inner.add_special_tokens(
        [AddedToken(sentinel(n), special=True, normalized=False) for n in range(sentinels)]
    )
    if not read[0]:
        raise UserError("no text to train a tokenizer on: the training corpus is empty")
    eos = ROLES["eos_token"]
    inner.post_processor = TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, inner.token_to_id(eos))]
    )
    return Tokenizer(inner)
