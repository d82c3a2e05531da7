"""Train a tokenizer on raw text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenizers.processors import TemplateProcessing

from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.input_validation import has_lone_surrogate
from polyhead.tokenizers.special_tokens import SPECIAL_TOKENS_MAP, sentinel_token
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import AddedToken

# per text; the rest is not needed for a vocabulary and may be garbage
MAX_TRAINING_CHARACTERS = 20_000


def train_tokenizer(texts: Iterable[str], choice: Choice, vocab_size: int, sentinels: int = 0) -> Tokenizer:
    """Train a tokenizer of the chosen kind on raw text; the same texts give a byte-identical tokenizer.

    Its last ``sentinels`` tokens are sentinels for masked spans; they count towards ``vocab_size``.
    """
    choice = TOKENIZER.check(choice)
    num_read = [0]

    def count_texts() -> Iterator[str]:
        for text in texts:
            if has_lone_surrogate(text):
                raise UserError(
                    f"text {num_read[0]} has half of a surrogate pair, which is not valid Unicode"
                )
            num_read[0] += bool(text)
            yield text[:MAX_TRAINING_CHARACTERS]

    inner = TOKENIZER.build(choice, count_texts(), vocab_size - sentinels)
    inner.add_special_tokens(
        [AddedToken(sentinel_token(n), special=True, normalized=False) for n in range(sentinels)]
    )
    if not num_read[0]:
        raise UserError("no text to train a tokenizer on: the training corpus is empty")
    eos = SPECIAL_TOKENS_MAP["eos_token"]
    inner.post_processor = TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, inner.token_to_id(eos))]
    )
    return Tokenizer(inner)
