import pytest

from polyhead.core.choice import Choice
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead_lab import tokens

# words of the training text by their number there
COUNTS = {"the": 200, "cat": 20, "sat": 5, "mat": 1}
TRAIN = [" ".join([word] * n) for word, n in COUNTS.items()]
HELD_OUT = ["the the cat", "sat mat zebra"]


def test_words_are_characters_or_one_token():
    fit = tokens.fit_vocabulary(TRAIN, HELD_OUT, tokens.N_BASE_TOKENS)
    assert fit.tokens_per_word == pytest.approx((11 + 13) / 6)  # characters over words
    frequencies = ("once", "2 to 9 times", "10 to 99 times", "100 times or more")
    assert fit.word_lengths == {"never": 6, **dict.fromkeys(frequencies, 4)}  # with the space
    assert set(fit.single_token.values()) == {0}
    assert (fit.new_words, fit.lost_words, fit.unknown_words) == (1, 0, pytest.approx(1 / 6))
    assert fit.rare_tokens == 0
    # pairs are merged if they occur twice: "the" at the start and after a space, "cat" and " cat", ...
    fit = tokens.fit_vocabulary(TRAIN, HELD_OUT, 300)
    assert fit.single_token["100 times or more"] == fit.single_token["10 to 99 times"] == 1
    assert fit.single_token["never"] == 0
    assert fit.word_lengths["100 times or more"] == 1
    assert fit.lost_words == 0


def test_unknown_words_and_rare_tokens():
    names = [f"w{a}{b}" for a in "abcdefghijklmnopqrst" for b in "abcdefghijklmnopqrst"]
    train = [" ".join(names), *TRAIN, *TRAIN]  # the four of TRAIN are more frequent and come first
    last = 270 - len(COUNTS)
    fit = tokens.fit_vocabulary(train, [*HELD_OUT, f"{names[last - 1]} {names[last]}"], 270)
    assert fit.unknown_words == pytest.approx(2 / 8)  # zebra, and the first one beyond the list
    # rare tokens occur less than 100 times
    tokenizer = train_tokenizer(TRAIN, Choice("bpe"), 300)
    text = " the" * 99 + " cat" * 100
    assert len({tokenizer.token_to_id(name) for name in ("Ġthe", "Ġcat")}) == 2
    n_merged = tokenizer.vocab_size - tokens.N_BASE_TOKENS
    assert tokens.measure_rare_tokens(tokenizer, [text]) == pytest.approx((n_merged - 1) / n_merged)


def test_docstrings_are_extracted_and_split():
    function = '    def f(self):\n        """Function."""\n'
    source = f'"""Module."""\nx = "no"\nclass A:\n    """Class."""\n{function}'
    assert list(tokens.find_docstrings(source)) == ["Module.", "Class.", "Function."]
    texts = tokens.read_docstrings()
    assert all(texts)
    assert any(text.startswith(tokens.__doc__) for text in texts)
    # a tenth of the documents is validation
    documents = [str(n) for n in range(40)]
    train, held_out = tokens.hold_out_documents(documents, 3)
    assert (len(train), len(held_out)) == (36, 4)
    assert sorted(train + held_out) == sorted(documents)
    assert tokens.hold_out_documents(documents, 3) == (train, held_out)
    assert tokens.hold_out_documents(documents, 4) != (train, held_out)
