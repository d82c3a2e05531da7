"""Tokenizers, trained on both sides of the raw training text; the same text gives a byte-identical tokenizer.

``tokenizer.vocab_size`` sets the vocabulary size. Five special tokens come first: ``<pad>``, ``<s>``,
``</s>``, ``<unk>``, ``<mask>``. Text that spells one of them is plain text, never a special token. A part
takes (texts, vocab_size) and returns a tokenizers.Tokenizer.

Options:
  lowercase: lowercase the text first (output is then lowercase too)
  normalize: Unicode normalization of the text: none keeps every byte, nfc composes characters (é from e and
    its accent), nfkc also replaces variants of characters such as full-width letters
  alphabet: maximum number of different characters, at most half of the vocabulary
  min_frequency: minimum number of occurrences of a pair of pieces to be merged
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import regex

import tokenizers
from polyhead.core.errors import UserError
from polyhead.core.option_types import NonNegativeInt, PositiveInt
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.graphemes import UNSPACED_CLASSES
from polyhead.tokenizers.special_tokens import SPECIAL_PREFIX, SPECIAL_TOKENS, UNK_TOKEN
from polyhead.tokenizers.unigram import learn_pieces
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

Normalization = Literal["none", "nfc", "nfkc"]
_FORMS: dict[str, Literal["NFC", "NFKC"]] = {"nfc": "NFC", "nfkc": "NFKC"}
_BYTE_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
_ASCII = [chr(c) for c in range(0x20, 0x7F)]
# Characters of scripts without spaces with their marks, punctuation and symbols: each is a word. U+2581 marks
# a space. The am of Thai and Lao (U+0E33, U+0EB3) is a mark that Unicode calls a letter, and a letter after a
# virama of the scripts in _STACKING is written below the one before it.
_STACKING = r"\p{Khmer}\p{Myanmar}\p{Tai_Tham}\p{Javanese}\p{Balinese}"
_MARKS = rf"(?:[\p{{M}}\u0e33\u0eb3]|(?<=[\u17d2\u1039\u1a60\u1b44\ua9c0])[{_STACKING}])*"
_SINGLE_CHARS = rf"(?!▁)[{UNSPACED_CLASSES}\p{{P}}\p{{S}}]{_MARKS}"
_STACKING_LETTER = regex.compile(f"[{_STACKING}]")
_MAX_WORD_LEN = 100  # characters; longer words are split, as the library makes them one unknown token


@TOKENIZER.register("bpe")
def bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    normalize: Normalization = "none",
    min_frequency: NonNegativeInt = 2,
) -> tokenizers.Tokenizer:
    """Byte-level byte-pair encoding: merge the most frequent pair of pieces until the vocabulary is full.

    The initial pieces are the 256 bytes, so every text is restored exactly and nothing is unknown, in any
    script. ``vocab_size`` must be at least 261. The default.

    Paper: Sennrich et al., 2016; Radford et al., 2019
    When: the safe choice
    """
    _check_vocab_size("bpe", vocab_size, len(_BYTE_ALPHABET))
    tokenizer = _build_byte_level(models.BPE(), lowercase, normalize, split_words=True)
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=_BYTE_ALPHABET,
            show_progress=False,
        ),
    )
    return tokenizer


@TOKENIZER.register("byte")
def byte(
    texts: Iterable[str], vocab_size: int, *, lowercase: bool = False, normalize: Normalization = "none"
) -> tokenizers.Tokenizer:
    """One token per byte: 256 and the special tokens, whatever ``vocab_size`` is; nothing is unknown.

    There is nothing to learn, and sequences are long: a Chinese character takes three tokens.

    Paper: Xue et al., 2022
    When: the text is too small for a vocabulary, or spelling matters
    """
    for _ in texts:
        pass  # nothing to learn, but an unreadable corpus raises its error here as with any other part
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *_BYTE_ALPHABET])}
    return _add_special_tokens(
        _build_byte_level(models.BPE(vocab=vocab, merges=[]), lowercase, normalize, split_words=False)
    )


@TOKENIZER.register("char")
def char(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    normalize: Normalization = "none",
    min_frequency: NonNegativeInt = 1,
) -> tokenizers.Tokenizer:
    """One token per character, for the most frequent characters; the others are unknown.

    When: small vocabularies, if long sequences are acceptable
    Options:
      min_frequency: minimum number of occurrences of a character in the vocabulary
    """
    _check_vocab_size("char", vocab_size, 1)
    counts: Counter[str] = Counter()
    for text in texts:
        form = text if normalize == "none" else unicodedata.normalize(_FORMS[normalize], text)
        counts.update(form.lower() if lowercase else form)
    ranked = sorted((c for c in counts if counts[c] >= min_frequency), key=lambda c: (-counts[c], c))
    vocab = {
        token: i for i, token in enumerate([*SPECIAL_TOKENS, *ranked[: vocab_size - len(SPECIAL_TOKENS)]])
    }
    # without merges: characters
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=UNK_TOKEN))
    tokenizer.decoder = decoders.Fuse()
    return _add_special_tokens(_set_normalizer(tokenizer, lowercase, normalize))


@TOKENIZER.register("wordpiece")
def wordpiece(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    normalize: Normalization = "none",
    min_frequency: NonNegativeInt = 2,
    alphabet: NonNegativeInt = 4000,
) -> tokenizers.Tokenizer:
    """WordPiece: longest match first, ``##`` inside a word.

    In scripts without spaces a character is a word, with its combining marks. Words of more than 100
    characters are split. Spaces are encoded as marks, so text is restored with its spacing, except that a
    text with leading spaces loses one.

    Paper: Schuster & Nakajima, 2012
    When: for comparison with BERT-like models
    """
    splits = Regex(_SINGLE_CHARS), Regex(f"(?m).{{{_MAX_WORD_LEN}}}")  # (?m): a dot matches newlines
    tokenizer = _build_metaspace(models.WordPiece(unk_token=UNK_TOKEN), lowercase, normalize, *splits)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex("^##"), ""), tokenizer.decoder])
    lines = list(texts)
    characters = _select_alphabet(tokenizer, lines, min(alphabet, vocab_size // 2))
    inner_characters = [
        "##" + c
        for c in characters
        if len(tokenizer.pre_tokenizer.pre_tokenize_str("▁" + c)) == 1 or _STACKING_LETTER.match(c)
    ]
    _check_vocab_size("wordpiece", vocab_size, len(characters) + len(inner_characters))
    # The library assigns ids to characters inside words in the order of a randomly seeded hash map; listing
    # them
    # among the special tokens fixes their ids.
    tokenizer.train_from_iterator(
        lines,
        trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=[*SPECIAL_TOKENS, *inner_characters],
            initial_alphabet=characters,
            limit_alphabet=len(characters),
            show_progress=False,
        ),
    )
    trained_vocab = tokenizer.get_vocab(with_added_tokens=True)
    vocab = {
        token: i for i, token in enumerate(sorted(trained_vocab, key=lambda token: trained_vocab[token]))
    }
    final = _build_metaspace(
        models.WordPiece(vocab=vocab, unk_token=UNK_TOKEN, max_input_chars_per_word=200),
        lowercase,
        normalize,
        *splits,
    )
    final.decoder = tokenizer.decoder
    return _add_special_tokens(final)


@TOKENIZER.register("unigram")
def unigram(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    normalize: Normalization = "none",
    byte_fallback: bool = False,
    alphabet: NonNegativeInt = 4000,
    max_piece_length: PositiveInt = 16,
) -> tokenizers.Tokenizer:
    """Unigram language model: segment a text into the most probable sequence of pieces.

    Characters outside the alphabet are unknown, or bytes with ``byte_fallback``. Spacing is restored,
    except that a text with leading spaces loses one.

    Equation: p(text) = max over segmentations of Π p(piece)
    Paper: Kudo, 2018
    When: for comparison with SentencePiece models
    Options:
      byte_fallback: encode unknown characters as bytes
      max_piece_length: maximum length of a piece in characters
    """
    tokenizer = _build_metaspace(models.Unigram(), lowercase, normalize, SPECIAL_PREFIX)
    lines = list(texts)
    characters = _select_alphabet(tokenizer, lines, min(alphabet, vocab_size // 2))
    fallback = [f"<0x{b:02X}>" for b in range(256)] if byte_fallback else []
    _check_vocab_size("unigram", vocab_size, len(characters) + len(fallback))
    fixed_pieces = [(token, 0.0) for token in (*SPECIAL_TOKENS, *fallback)]
    pieces = learn_pieces(
        _count_words(tokenizer, lines), characters, vocab_size - len(fixed_pieces), max_piece_length
    )
    vocab = [*fixed_pieces, *pieces]
    final = _build_metaspace(
        models.Unigram(vocab, unk_id=SPECIAL_TOKENS.index(UNK_TOKEN), byte_fallback=byte_fallback),
        lowercase,
        normalize,
        SPECIAL_PREFIX,
    )
    if byte_fallback:
        final.decoder = decoders.Sequence([decoders.ByteFallback(), final.decoder])
    return _add_special_tokens(final)


def _build_byte_level(
    model: models.Model, lowercase: bool, normalize: Normalization, split_words: bool
) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(SPECIAL_PREFIX, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split_words),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _set_normalizer(tokenizer, lowercase, normalize)


def _build_metaspace(
    model: models.Model, lowercase: bool, normalize: Normalization, *splits: str | Regex
) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="first"),
            *(pre_tokenizers.Split(split, "isolated") for split in splits),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return _set_normalizer(tokenizer, lowercase, normalize)


def _set_normalizer(
    tokenizer: tokenizers.Tokenizer, lowercase: bool, normalize: Normalization
) -> tokenizers.Tokenizer:
    steps = [{"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}[normalize]()] if normalize != "none" else []
    steps += [normalizers.Lowercase()] if lowercase else []
    if steps:
        tokenizer.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    return tokenizer


def _add_special_tokens(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def _count_words(tokenizer: tokenizers.Tokenizer, lines: list[str]) -> Counter[str]:
    """Frequencies of the words of the tokenizer's pre-tokenizer."""
    counts: Counter[str] = Counter()
    for line in lines:
        text = tokenizer.normalizer.normalize_str(line) if tokenizer.normalizer else line
        counts.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    return counts


def _select_alphabet(tokenizer: tokenizers.Tokenizer, lines: list[str], size: int) -> list[str]:
    """Printable ASCII and the ``size`` most frequent characters of the text, in order of their code."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(tokenizer.normalizer.normalize_str(line) if tokenizer.normalizer else line)
    ranked = sorted(counts, key=lambda c: (-counts[c], c))[:size]
    return sorted({*(_ASCII), *ranked, "▁"} - {" "})


def _check_vocab_size(part: str, vocab_size: int, min_symbols: int) -> None:
    if vocab_size < min_symbols + len(SPECIAL_TOKENS):
        raise UserError(
            f"tokenizer {part!r}: vocab_size is {vocab_size}, but {min_symbols} single symbols and "
            f"{len(SPECIAL_TOKENS)} special tokens need {min_symbols + len(SPECIAL_TOKENS)} or more"
        )
