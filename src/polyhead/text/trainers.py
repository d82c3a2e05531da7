"""Tokenizers, trained on both sides of the training text without any preparation; the same text gives the same bytes.

``tokenizer.vocab_size`` goes with the choice. Five special tokens come first: ``<pad>``, ``<s>``, ``</s>``, ``<unk>``,
``<mask>``. A text that spells one of them is plain text, never control. A part takes (texts, vocab_size) and gives a
tokenizers.Tokenizer.

Options:
  lowercase: lowercase the text first (output is then lowercase too)
  alphabet: most different characters kept, half the vocabulary at the outside
  min_frequency: how often a pair of pieces must occur to be merged
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from polyhead.errors import UserError
from polyhead.ranges import Count, Some
from polyhead.registry import TOKENIZER
from polyhead.text.specials import OPENING, SPECIALS, UNK
from polyhead.text.unigram import learn_pieces

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
ASCII = [chr(c) for c in range(0x20, 0x7F)]
# Scripts written without spaces, and what is a word by itself; U+2581 is the mark of a space.
ALONE = r"(?!▁)[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{P}\p{S}]"


@TOKENIZER.register("bpe")
def bpe(
    texts: Iterable[str], vocab_size: int, *, lowercase: bool = False, min_frequency: Count = 2
) -> tokenizers.Tokenizer:
    """Byte-level byte-pair encoding: merge the most frequent pair of pieces until the vocabulary is full.

    It starts from the 256 bytes, so every text comes back exactly and nothing is ever unknown, in any script.
    ``vocab_size`` must be at least 261. The default.

    Paper: Sennrich et al., 2016; Radford et al., 2019
    When: the safe choice
    """
    _room("bpe", vocab_size, len(BYTES))
    tokenizer = _byte_level(models.BPE(), lowercase, split_words=True)
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=list(SPECIALS),
            initial_alphabet=BYTES,
            show_progress=False,
        ),
    )
    return tokenizer


@TOKENIZER.register("byte")
def byte(texts: Iterable[str], vocab_size: int, *, lowercase: bool = False) -> tokenizers.Tokenizer:
    """A token a byte: 256 and the special tokens, whatever vocab_size asks; nothing is ever unknown.

    Nothing to learn, and the longest sequences: a Chinese character takes three tokens.

    Paper: Xue et al., 2022
    When: a vocabulary would be too much for the text, or spelling is what matters
    """
    for _ in texts:
        pass  # nothing to learn, but a corpus that cannot be read is found out here as with any other part
    vocab = {token: i for i, token in enumerate([*SPECIALS, *BYTES])}
    return _with_specials(_byte_level(models.BPE(vocab=vocab, merges=[]), lowercase, split_words=False))


@TOKENIZER.register("char")
def char(
    texts: Iterable[str], vocab_size: int, *, lowercase: bool = False, min_frequency: Count = 1
) -> tokenizers.Tokenizer:
    """A token a character, the most frequent ones; the others are unknown.

    When: small vocabularies, and long sequences do no harm
    Options:
      min_frequency: how often a character must occur to be kept
    """
    _room("char", vocab_size, 1)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.lower() if lowercase else text)
    ranked = sorted((c for c in counts if counts[c] >= min_frequency), key=lambda c: (-counts[c], c))
    vocab = {token: i for i, token in enumerate([*SPECIALS, *ranked[: vocab_size - len(SPECIALS)]])}
    # without merges: characters
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=UNK))
    tokenizer.decoder = decoders.Fuse()
    return _with_specials(_normalized(tokenizer, lowercase))


@TOKENIZER.register("wordpiece")
def wordpiece(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    min_frequency: Count = 2,
    alphabet: Count = 4000,
) -> tokenizers.Tokenizer:
    """WordPiece: the longest piece first, ``##`` inside a word; a Han character is a word.

    Spaces are kept as marks, so that text comes back with its own spacing,
    less one blank where a text begins with blanks.

    Paper: Schuster & Nakajima, 2012
    When: to compare with BERT-like models
    """
    tokenizer = _metaspace(models.WordPiece(unk_token=UNK), lowercase, split=Regex(ALONE))
    tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex("^##"), ""), tokenizer.decoder])
    lines = list(texts)
    kept = _alphabet(tokenizer, lines, min(alphabet, vocab_size // 2))
    inside = ["##" + c for c in kept if len(tokenizer.pre_tokenizer.pre_tokenize_str("▁" + c)) == 1]
    _room("wordpiece", vocab_size, len(kept) + len(inside))
    # The library numbers characters inside words in the order of a randomly seeded hash map, unless they are
    # numbered beforehand; listed among the special tokens they are.
    tokenizer.train_from_iterator(
        lines,
        trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=[*SPECIALS, *inside],
            initial_alphabet=kept,
            limit_alphabet=len(kept),
            show_progress=False,
        ),
    )
    learnt = tokenizer.get_vocab(with_added_tokens=True)
    vocab = {token: i for i, token in enumerate(sorted(learnt, key=lambda token: learnt[token]))}
    fresh = _metaspace(
        models.WordPiece(vocab=vocab, unk_token=UNK, max_input_chars_per_word=200),
        lowercase,
        split=Regex(ALONE),
    )
    fresh.decoder = tokenizer.decoder
    return _with_specials(fresh)


@TOKENIZER.register("unigram")
def unigram(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    byte_fallback: bool = False,
    alphabet: Count = 4000,
    max_piece_length: Some = 16,
) -> tokenizers.Tokenizer:
    """Unigram language model: of all ways to cut a text into pieces, the most probable one.

    Characters that were not kept are unknown, or bytes with ``byte_fallback``. Spacing comes back,
    less one blank where a text begins with blanks.

    Equation: p(text) = max over cuts of Π p(piece)
    Paper: Kudo, 2018
    When: to compare with SentencePiece models
    Options:
      byte_fallback: write unknown characters as bytes
      max_piece_length: longest piece in characters
    """
    tokenizer = _metaspace(models.Unigram(), lowercase, split=OPENING)
    lines = list(texts)
    kept = _alphabet(tokenizer, lines, min(alphabet, vocab_size // 2))
    fallback = [f"<0x{b:02X}>" for b in range(256)] if byte_fallback else []
    _room("unigram", vocab_size, len(kept) + len(fallback))
    fixed = [(token, 0.0) for token in (*SPECIALS, *fallback)]
    pieces = learn_pieces(_words(tokenizer, lines), kept, vocab_size - len(fixed), max_piece_length)
    vocab = [*fixed, *pieces]
    fresh = _metaspace(
        models.Unigram(vocab, unk_id=SPECIALS.index(UNK), byte_fallback=byte_fallback),
        lowercase,
        split=OPENING,
    )
    if byte_fallback:
        fresh.decoder = decoders.Sequence([decoders.ByteFallback(), fresh.decoder])
    return _with_specials(fresh)


def _byte_level(model: models.Model, lowercase: bool, split_words: bool) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(OPENING, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split_words),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _normalized(tokenizer, lowercase)


def _metaspace(model: models.Model, lowercase: bool, split: str | Regex) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Split(split, "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return _normalized(tokenizer, lowercase)


def _normalized(tokenizer: tokenizers.Tokenizer, lowercase: bool) -> tokenizers.Tokenizer:
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def _with_specials(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def _words(tokenizer: tokenizers.Tokenizer, lines: list[str]) -> Counter[str]:
    """How often each word occurs, as the tokenizer cuts words."""
    counts: Counter[str] = Counter()
    for line in lines:
        text = tokenizer.normalizer.normalize_str(line) if tokenizer.normalizer else line
        counts.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    return counts


def _alphabet(tokenizer: tokenizers.Tokenizer, lines: list[str], size: int) -> list[str]:
    """Printable ASCII, and the most frequent characters of the text up to size, in the order of their code."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(tokenizer.normalizer.normalize_str(line) if tokenizer.normalizer else line)
    ranked = sorted(counts, key=lambda c: (-counts[c], c))[:size]
    return sorted({*(ASCII), *ranked, "▁"} - {" "})


def _room(part: str, vocab_size: int, needed: int) -> None:
    if vocab_size < needed + len(SPECIALS):
        raise UserError(
            f"tokenizer {part!r}: vocab_size is {vocab_size}, but {needed} single symbols and "
            f"{len(SPECIALS)} special tokens need {needed + len(SPECIALS)} or more"
        )
