"""Tests of tokenizers/special_tokens_template.py."""

import itertools

import tokenizers
from polyhead.data.batching.encoder_inputs import fill_template
from polyhead.tokenizers.special_tokens_template import SpecialTokensTemplate


def test_two_texts_are_cut_as_the_tokenizers_library_cuts_them() -> None:
    words = {f"w{i}": i for i in range(30)}
    theirs = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    for first, second, room in itertools.product(range(1, 12), range(1, 12), range(2, 15)):
        sides = [list(range(n)) for n in (first, second)]
        theirs.enable_truncation(room, strategy="longest_first")
        wanted = theirs.encode(*(" ".join(f"w{i}" for i in side) for side in sides)).ids
        assert fill_template(SpecialTokensTemplate([], [], [], False), sides, room).ids == wanted, (
            first,
            second,
            room,
        )
