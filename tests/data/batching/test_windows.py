import pytest

from polyhead.core.errors import UserError
from polyhead.data.batching.windows import encode_windows, find_units
from polyhead.tokenizers.train_tokenizer import train_tokenizer

WORDS = [f"w{i}" for i in range(60)]


@pytest.fixture(scope="module")
def tokenizer():
    from polyhead import Choice

    return train_tokenizer([" ".join(WORDS)], Choice("char"), 100)


def test_each_word_is_read_where_context_is_largest(tokenizer):
    text = " ".join(WORDS)
    units, windows = encode_windows(text, tokenizer, 32)
    assert [text[start:end] for start, end in units.spans] == WORDS
    found = {}
    for window in windows:
        assert len(window.row.ids) == min(32, window.end - window.start + 2)
        for word, column in window.iter_words(units):
            assert word not in found
            found[word] = window
            first = units.tokens[word]
            spelled = tokenizer.decode([window.row.ids[column : column + 1]])[0]
            assert spelled.strip() in text[units.spans[word][0]] and window.start <= first < window.end
            context = min(first - window.start, window.end - 1 - first)
            others = [other for other in windows if other.start <= first < other.end]
            if window.start > 0 and window.end < len(tokenizer.encode([text])[0]):
                assert all(context >= min(first - other.start, other.end - 1 - first) - 1 for other in others)
    assert sorted(found) == list(range(60)) and len({id(window) for window in found.values()}) > 5


def test_words_that_share_a_token_are_one():
    units = find_units("a-b c", [0, 4])
    assert units.spans == [(0, 3), (4, 5)] and units.tokens == [0, 1]
    assert units.widen(1, 2) == (0, 1) and units.widen(2, 5) == (0, 2) and units.widen(3, 4) == (0, 0)
    assert find_units("a", []).tokens == find_units(" ", [0]).tokens == []


def test_too_few_tokens_are_refused(tokenizer):
    with pytest.raises(UserError, match="2 tokens are too few for a text with its special tokens"):
        encode_windows("w1", tokenizer, 2)
