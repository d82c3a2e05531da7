"""Tests of data/batching/encoder_inputs.py."""

import pytest

from polyhead.core.errors import UserError
from polyhead.data.batching.encoder_inputs import build_encoder_input, collate_encoder_inputs
from polyhead.tokenizers.tokenizer import Tokenizer


@pytest.mark.parametrize(
    "lengths", [(5,), (9,), (20,), (1, 1), (4, 4), (4, 5), (3, 20), (20, 3), (20, 20), (5, 4)]
)
def test_the_longer_text_is_cut_first(tokenizer: Tokenizer, lengths: tuple[int, ...]) -> None:
    """The same as taking the last token of the longer one away until both fit."""
    sides = [list(range(10, 10 + n)) for n in lengths]
    found = build_encoder_input(sides, tokenizer, 11)
    left = [list(side) for side in sides]
    while sum(map(len, left)) + len(left) + 1 > 11:
        longest = max(map(len, left))
        [side for side in left if len(side) == longest][-1].pop()
    expected = [tokenizer.bos_id]
    for side in left:
        expected += [*side, tokenizer.eos_id]
    assert (found.ids, found.truncated) == (expected, left != sides)
    assert found.ids[found.second_start - 1] == tokenizer.eos_id


def test_a_frame_without_room_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(
        UserError, match="4 tokens are too few for two texts: with special tokens at least 5 are required"
    ):
        build_encoder_input([[7], [8]], tokenizer, 4)


def test_rows_of_one_width_need_no_positions() -> None:
    batch = collate_encoder_inputs([[1, 5, 2], [1, 6, 2]], [3, 3], 0)
    assert batch.pos is None and batch.segments is None and batch.tokens.tolist() == [[1, 5, 2], [1, 6, 2]]
