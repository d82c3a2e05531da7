"""Where words begin, for every kind of tokenizer, beside a rule that looks at the characters of the text
alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import numpy as np
import pytest

import tokenizers
from polyhead.core.choice import Choice
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.tokenizers.word_boundaries import find_word_boundaries
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

Trained = Callable[[str], Tokenizer]
SENTENCES = [
    "A man in a red shirt walks (the dog). It's 3 o'clock,  almost!",
    "Two “naïve” dogs\nrun\n\nfar",
    "So 他说：“你好，世界！”Two dogs 狗",
]


def heads(text: str) -> list[bool]:
    """For each character whether a word begins there."""

    def alone(c: str) -> bool:
        return unicodedata.category(c)[0] in "PS" or "\u4e00" <= c <= "\u9fff"

    return [
        i == 0 or c.isspace() or alone(c) or alone(text[i - 1]) or text[i - 1] == "\n" for i,
            c in enumerate(text)
    ]  # fmt: skip


def checked(tokenizer: Tokenizer, text: str) -> tuple[int, list[tuple[str, bool, bool]]]:
    """How many tokens there are, and those where a word begins or not and should not or should."""
    encoding = tokenizer._inner.encode(text, add_special_tokens=False)
    ids, starts = (
        np.array(encoding.ids),
        find_word_boundaries(tokenizer).find_word_starts(np.array(encoding.ids)),
    )
    wanted, done = [], 0
    for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        blank = token.startswith(("▁", "Ġ")) or start == end
        # not in a character
        wanted.append((blank or heads(text)[min(start, len(text) - 1)]) and start >= done)
        done = end
    rows = zip(encoding.tokens, starts.tolist(), wanted, strict=True)
    return len(ids), [row for row in rows if row[1] != row[2]]


@pytest.mark.parametrize("name", ["bpe", "char", "wordpiece"])
@pytest.mark.parametrize("text", SENTENCES)
def test_words_begin_where_the_text_says(name: str, text: str, trained: Trained) -> None:
    text = text.replace("\n", " ") if name == "wordpiece" else text  # which does not know the end of a line
    n, wrong = checked(trained(name), text)
    # what nobody knows is a word by itself
    assert n > 10 and [row for row in wrong if row[0] != "<unk>"] == []


MARKED = {
    "น้ำใจ dog": ["น้ำ", "ใ", "จ", " dog"],
    "ຂ້ອຍມັກໝາ": ["ຂ້", "ອ", "ຍ", "ມັ", "ກ", "ໝ", "າ"],
    "ខ្ញុំមាន": ["ខ្ញុំ", "មា", "ន"],
    "မြန်မာ": ["မြ", "န်", "မာ"],
    "हिन्दी में e\u0301té ❤\ufe0f!": ["हिन्दी", " में", " e\u0301té", " ", "❤\ufe0f", "!"],
}


@pytest.mark.parametrize("name", ["bpe", "byte", "char", "wordpiece"])
@pytest.mark.parametrize("text", MARKED)
def test_no_word_begins_with_a_combining_mark(name: str, text: str) -> None:
    t = train_tokenizer([*MARKED] * 3, Choice(name), 400)
    ids = t.encode([text])[0]
    starts = np.flatnonzero(find_word_boundaries(t).find_word_starts(np.array(ids))).tolist()
    prefixes = [len("".join(t.decode([ids[:start]])).rstrip()) for start in starts]
    ends = [len("".join(MARKED[text][:i]).rstrip()) for i in range(len(MARKED[text]))]
    if name in ("byte", "char"):
        assert sorted(set(prefixes)) == sorted(set(ends))
    assert set(prefixes) <= set(ends)  # a token may have several words


def test_a_piece_of_several_marks_is_one(trained: Trained) -> None:
    """Unigram pieces may hold a word and its comma: they begin where the piece begins."""
    t = trained("unigram")
    ids = np.array(t.encode(["A man walks the dog, tired xyz."])[0])
    starts = find_word_boundaries(t).find_word_starts(ids)
    for token, start in zip(t.ids_to_tokens(ids), starts, strict=True):
        assert start == token.startswith(("▁", ",", ".")), token


def test_bytes_of_wide_characters_stay_together(trained: Trained) -> None:
    t = trained("byte")
    (ids,) = t.encode(["né 你好x"])
    # n  é........  blank 你.................  好.................  x
    wanted = [True, False, False, True, True, False, False, True, False, False, True]
    assert find_word_boundaries(t).find_word_starts(np.array(ids)).tolist() == wanted


@pytest.mark.parametrize("name", TOKENIZER.names())
def test_special_tokens_part_words(name: str, trained: Trained) -> None:
    t = trained(name)
    words = find_word_boundaries(t)
    assert words.starts_word[t.special_ids].all() and words.ends_word[t.special_ids].all()
    assert not words.ends_sentence[t.special_ids].any()
    inner = t.ids_to_tokens(range(t.vocab_size)).index("##a" if name == "wordpiece" else "a")
    assert not words.starts_word[inner]
    assert words.find_word_starts(np.array([t.bos_id, inner, inner, t.eos_id])).tolist()[:2] == [True, True]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("bpe", True), ("wordpiece", True), ("unigram", True), ("byte", False), ("char", False)],
)
def test_whether_tokens_hold_the_blank_before_a_word(name: str, wanted: bool, trained: Trained) -> None:
    assert find_word_boundaries(trained(name)).has_blank_before is wanted


def test_sentences_end_with_their_marks(trained: Trained) -> None:
    t = trained("bpe")
    ids = np.array(t.encode(["It's 3.\nShe said: “no!” 公园。Two"])[0])
    found = [
        token
        for token, end in zip(t.ids_to_tokens(ids), find_word_boundaries(t).ends_sentence[ids], strict=True)
        if end
    ]
    assert "".join(t._inner.decoder.decode([token]) for token in found).replace("”", "") == ".\n!。"


def foreign(kind: str) -> Tokenizer:
    """Vocabularies as published models have them."""
    texts = ["the dog runs, tired", "a man sits; the dogs run", "gusty"] * 20
    specials = ["[UNK]", "[MASK]"]
    if kind == "bert":
        inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        inner.normalizer, inner.pre_tokenizer = (
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
        )
        trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=specials, show_progress=False)
    elif kind == "gpt":
        inner = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"))
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.BpeTrainer(
            vocab_size=60, special_tokens=specials, end_of_word_suffix="</w>", show_progress=False
        )
    else:
        inner = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]", byte_fallback=True))
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(), pre_tokenizers.Split(",", "isolated")]
        )
        inner.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=340, special_tokens=specials + bytes_, max_token_length=5, show_progress=False
        )
    inner.train_from_iterator(texts, trainer)
    if kind == "llama":  # its bytes are tokens like others
        inner = tokenizers.Tokenizer.from_str(
            re.sub(r'("content":"<0x..>".*?"special":)true', r"\1false", inner.to_str())
        )
    return Tokenizer(inner, {"unk_token": "[UNK]", "mask_token": "[MASK]"})


@pytest.mark.parametrize("kind", ["bert", "gpt", "llama"])
def test_words_of_imported_tokenizers(kind: str) -> None:
    t = foreign(kind)
    ids = np.array(t.encode(["the man tired, dogs sitting rusty"])[0])
    words = find_word_boundaries(t)
    starts = np.flatnonzero(words.find_word_starts(ids))
    assert len(starts) == 7 < len(ids)
    spelled = ["".join(t.ids_to_tokens(part)) for part in np.split(ids, starts[1:])]
    plain = [re.sub("▁|##|</w>", "", word) for word in spelled]
    assert plain == ["the", "man", "tired", ",", "dogs", "sitting", "rusty"]


def test_bytes_of_a_vocabulary_with_fallback() -> None:
    t = foreign("llama")
    ids = np.array(t.encode(["the 你"])[0])
    assert t.ids_to_tokens(ids)[-3:] == ["<0xE4>", "<0xBD>", "<0xA0>"]
    assert find_word_boundaries(t).find_word_starts(ids).tolist()[-3:] == [True, False, False]
