import pytest

from polyhead.core.choice import Choice
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.mask_tokens import encode_masked
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["the dog sat on the mat", "a cat runs; it is tired.", "the dogs run home, tired", "你好 世界"] * 10


@pytest.mark.parametrize("kind", TOKENIZER.names())
def test_mask_replaces_one_token(kind):
    """The other tokens are those of the complete text; the space before the mask is hidden with it."""
    t = train_tokenizer(TEXTS, Choice(kind), 300)
    (expected,) = t.encode(["the dog sat on the mat"])
    if kind in ("byte", "char"):
        (ids,) = encode_masked(t, ["the d<mask>g sat on the mat"])
        index = "the dog".index("o")
    else:
        (ids,) = encode_masked(t, ["the <mask> sat on the mat"])
        index = next(i for i, token in enumerate(t.ids_to_tokens(expected)) if token.endswith("dog"))
    expected[index] = t.mask_id
    assert ids == expected


def test_spellings_of_mask_and_other_special_tokens():
    t = train_tokenizer(TEXTS, Choice("bpe"), 300)
    first, second = encode_masked(t, ["a <mask> b", "a [MASK] b"])
    assert first == second
    (ids,) = encode_masked(t, ["<s> <mask></s> <pad>"])
    assert ids.count(t.mask_id) == 1 and not {t.bos_id, t.eos_id, t.pad_id} & set(ids)
    assert t.encode(["a <mask> b"])[0].count(t.mask_id) == 0  # elsewhere it is text
