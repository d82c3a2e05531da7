import re
import unicodedata

import numpy as np
import pytest
from tests.tokenizers.conftest import SCRIPTS

import tokenizers
from polyhead.core.choice import Choice
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.tokenizers.word_boundaries import find_word_boundaries
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

SENTENCES = ["A man in a red shirt walks (the dog). It's 3 o'clock,  almost!"]
SENTENCES += ["Two “naïve” dogs\nrun\n\nfar", "So 他说：“你好，世界！”Two dogs 狗"]


def is_word(char):
    """Punctuation and Han characters are words of their own."""
    return unicodedata.category(char)[0] in "PS" or "\u4e00" <= char <= "\u9fff"


def word_starts(text):
    return [
        i == 0 or char.isspace() or is_word(char) or is_word(text[i - 1]) or text[i - 1] == "\n"
        for i, char in enumerate(text)
    ]


@pytest.mark.parametrize("kind", ["bpe", "char", "wordpiece"])
@pytest.mark.parametrize("text", SENTENCES)
def test_word_starts_follow_characters(kind, text, get_tokenizer):
    text = text.replace("\n", " ") if kind == "wordpiece" else text  # which has no line ends
    encoding = get_tokenizer(kind)._inner.encode(text, add_special_tokens=False)
    starts = find_word_boundaries(get_tokenizer(kind)).find_word_starts(np.array(encoding.ids))
    assert len(encoding.ids) > 10
    previous_end = 0
    for token, (start, end), is_start in zip(encoding.tokens, encoding.offsets, starts, strict=True):
        has_space = token.startswith(("▁", "Ġ")) or start == end
        expected = has_space or word_starts(text)[min(start, len(text) - 1)]
        # no word begins inside a character; an unknown token is a word by itself
        assert is_start == (expected and start >= previous_end) or token == "<unk>", token
        previous_end = end


WORDS = SCRIPTS["tokens of words"]


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "wordpiece"])
def test_no_word_begins_with_combining_mark(kind):
    t = train_tokenizer([*WORDS] * 3, Choice(kind), 400)
    for text, words in WORDS.items():
        ids = t.encode([text])[0]
        starts = np.flatnonzero(find_word_boundaries(t).find_word_starts(np.array(ids))).tolist()
        lengths = {len("".join(t.decode([ids[:start]])).rstrip()) for start in starts}
        expected = {len("".join(words[:i]).rstrip()) for i in range(len(words))}
        # a token of the other kinds may have several words
        assert lengths == expected if kind in ("byte", "char") else lengths <= expected, text


def test_word_starts_of_pieces_and_bytes(get_tokenizer):
    """A piece may hold a word and its comma."""
    tokenizer = get_tokenizer("unigram")
    ids = np.array(tokenizer.encode(["A man walks the dog, tired xyz."])[0])
    starts = find_word_boundaries(tokenizer).find_word_starts(ids)
    for token, start in zip(tokenizer.ids_to_tokens(ids), starts, strict=True):
        assert start == token.startswith(("▁", ",", ".")), token
    (ids,) = get_tokenizer("byte").encode(["né 你好x"])
    #           n     é             space 你                   好                   x
    expected = [True, False, False, True, True, False, False, True, False, False, True]
    starts = find_word_boundaries(get_tokenizer("byte")).find_word_starts(np.array(ids))
    assert starts.tolist() == expected
    tokenizer = get_tokenizer("bpe")
    ids = np.array(tokenizer.encode(["It's 3.\nShe said: “no!” 公园。Two"])[0])
    ends = ids[find_word_boundaries(tokenizer).ends_sentence[ids]]
    tokens = [tokenizer._inner.decoder.decode([token]) for token in tokenizer.ids_to_tokens(ends)]
    assert "".join(tokens).replace("”", "") == ".\n!。"
    kinds = {"bpe": True, "wordpiece": True, "unigram": True, "byte": False, "char": False}
    assert {kind: find_word_boundaries(get_tokenizer(kind)).has_blank_before for kind in kinds} == kinds
    t = published_tokenizer("llama")
    ids = np.array(t.encode(["the 你"])[0])
    assert t.ids_to_tokens(ids)[-3:] == ["<0xE4>", "<0xBD>", "<0xA0>"]
    assert find_word_boundaries(t).find_word_starts(ids).tolist()[-3:] == [True, False, False]


@pytest.mark.parametrize("kind", TOKENIZER.names())
def test_special_tokens_separate_words(kind, get_tokenizer):
    t = get_tokenizer(kind)
    boundaries = find_word_boundaries(t)
    assert boundaries.starts_word[t.special_ids].all() and boundaries.ends_word[t.special_ids].all()
    assert not boundaries.ends_sentence[t.special_ids].any()
    inner = t.token_to_id("##a" if kind == "wordpiece" else "a")
    assert not boundaries.starts_word[inner]
    starts = boundaries.find_word_starts(np.array([t.bos_id, inner, inner, t.eos_id]))
    assert starts.tolist()[:2] == [True, True]


def published_tokenizer(kind):
    texts = ["the dog runs, tired", "a man sits; the dogs run", "gusty"] * 20
    options = {"special_tokens": ["[UNK]", "[MASK]"], "show_progress": False}
    if kind == "bert":
        inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        inner.normalizer = normalizers.BertNormalizer()
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=60, **options)
    elif kind == "gpt":
        inner = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"))
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.BpeTrainer(vocab_size=60, end_of_word_suffix="</w>", **options)
    else:
        inner = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]", byte_fallback=True))
        splits = [pre_tokenizers.Metaspace(), pre_tokenizers.Split(",", "isolated")]
        inner.pre_tokenizer = pre_tokenizers.Sequence(splits)
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        inner.decoder = decoders.Sequence(steps)
        options["special_tokens"] += [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=340, max_token_length=5, **options)
    inner.train_from_iterator(texts, trainer)
    if kind == "llama":  # whose bytes are tokens like others
        rules = re.sub(r'("content":"<0x..>".*?"special":)true', r"\1false", inner.to_str())
        inner = tokenizers.Tokenizer.from_str(rules)
    return Tokenizer(inner, {"unk_token": "[UNK]", "mask_token": "[MASK]"})


@pytest.mark.parametrize("kind", ["bert", "gpt", "llama"])
def test_words_of_published_tokenizers(kind):
    t = published_tokenizer(kind)
    ids = np.array(t.encode(["the man tired, dogs sitting rusty"])[0])
    starts = np.flatnonzero(find_word_boundaries(t).find_word_starts(ids))
    assert len(starts) == 7 < len(ids)
    words = ["".join(t.ids_to_tokens(part)) for part in np.split(ids, starts[1:])]
    plain = [re.sub("▁|##|</w>", "", word) for word in words]
    assert plain == ["the", "man", "tired", ",", "dogs", "sitting", "rusty"]
