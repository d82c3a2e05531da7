import itertools

import tokenizers
from polyhead.data.batching.encoder_inputs import fill_template
from polyhead.tokenizers.special_tokens import SpecialTokensTemplate


def test_pairs_are_truncated_as_by_library():
    words = {f"w{i}": i for i in range(30)}
    reference = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    reference.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    template = SpecialTokensTemplate([], [], [], False)
    for first, second, max_len in itertools.product(range(1, 12), range(1, 12), range(2, 15)):
        sides = [list(range(n)) for n in (first, second)]
        reference.enable_truncation(max_len, strategy="longest_first")
        expected = reference.encode(*(" ".join(f"w{i}" for i in side) for side in sides)).ids
        assert fill_template(template, sides, max_len).ids == expected, (first, second, max_len)
