import pytest

from polyhead.core.errors import UserError
from polyhead.data.batching.encoder_inputs import (
    build_encoder_input,
    collate_encoder_inputs,
    make_dummy_input,
)


@pytest.mark.parametrize(
    "lengths", [(5,), (9,), (20,), (1, 1), (4, 4), (4, 5), (3, 20), (20, 3), (20, 20), (5, 4)]
)
def test_longer_text_is_truncated_first(tokenizer, lengths):
    """The same as removing the last token of the longer one until both fit."""
    texts = [list(range(10, 10 + n)) for n in lengths]
    result = build_encoder_input(texts, tokenizer, 11)
    truncated = [list(text) for text in texts]
    while sum(map(len, truncated)) + len(truncated) + 1 > 11:
        longest = max(map(len, truncated))
        [text for text in truncated if len(text) == longest][-1].pop()
    expected = [tokenizer.bos_id, *(id for text in truncated for id in (*text, tokenizer.eos_id))]
    assert (result.ids, result.truncated) == (expected, truncated != texts)
    assert result.ids[result.second_start - 1] == tokenizer.eos_id
    message = {1: r"at least 3", 2: r"4 tokens are too few for two texts: .* at least 5 are required"}
    with pytest.raises(UserError, match=message[len(texts)]):
        build_encoder_input([text[:1] for text in texts], tokenizer, 2 * len(texts))


def test_rows_of_one_width_and_dummies():
    batch, dummy = collate_encoder_inputs([[1, 5, 2], [1, 6, 2]], [3, 3], 0), make_dummy_input()
    assert batch.pos is None and batch.segments is None and batch.tokens.tolist() == [[1, 5, 2], [1, 6, 2]]
    assert (dummy.tokens.tolist(), dummy.pos.tolist(), dummy.segments) == ([[0]], [[-1]], None)
