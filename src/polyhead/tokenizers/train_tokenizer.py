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

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import regex

import tokenizers
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.option_types import NonNegativeInt, PositiveInt
from polyhead.core.registry import TOKENIZER
from polyhead.tokenizers.input_validation import has_lone_surrogate
from polyhead.tokenizers.scripts import UNSPACED_CLASSES
from polyhead.tokenizers.special_tokens import (
    SPECIAL_PREFIX,
    SPECIAL_TOKENS,
    SPECIAL_TOKENS_MAP,
    UNK_TOKEN,
    sentinel_token,
)
from polyhead.tokenizers.tokenizer import Tokenizer
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

# per text; the rest is not needed for a vocabulary and may be garbage
MAX_TRAINING_CHARACTERS = 20_000
_SEED_FACTOR = 4  # size of the seed vocabulary relative to the final one
_KEEP_FRACTION = 0.7  # share of the pieces that a pruning round keeps
_EM_ROUNDS = 2  # estimation rounds between two prunings, as in the paper's implementation


def train_tokenizer(
    texts: Iterable[str], choice: Choice, vocab_size: int, sentinels: int = 0, tags: Sequence[str] = ()
) -> Tokenizer:
    """Train a tokenizer of the chosen kind on raw text; the same texts give a byte-identical tokenizer.

    Its last ``sentinels`` tokens are sentinels for masked spans, and ``tags`` are special tokens after those;
    both count towards ``vocab_size``.
    """
    choice = TOKENIZER.check(choice)
    num_read = [0]

    def count_texts() -> Iterator[str]:
        for text in texts:
            if has_lone_surrogate(text):
                raise UserError(
                    f"text {num_read[0] + 1} has half of a surrogate pair, which is not valid Unicode"
                )
            num_read[0] += bool(text)
            yield text[:MAX_TRAINING_CHARACTERS]

    inner = TOKENIZER.build(choice, count_texts(), vocab_size - sentinels - len(tags))
    added = [*map(sentinel_token, range(sentinels)), *tags]
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    if not num_read[0]:
        raise UserError("no text to train a tokenizer on: the training corpus is empty")
    eos = SPECIAL_TOKENS_MAP["eos_token"]
    inner.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, inner.token_to_id(eos))]
    )
    return Tokenizer(inner)


PieceScores = dict[str, float]


def learn_pieces(
    words: Mapping[str, int], alphabet: Sequence[str], size: int, max_length: int
) -> list[tuple[str, float]]:
    """Learn at most ``size`` pieces with log-probabilities, including the alphabet (Kudo, 2018, section 3.2).

    The seed vocabulary consists of frequent substrings, from merging pairs. Then the probabilities are
    estimated on the most probable segmentations, and the pieces whose loss costs the least likelihood are
    dropped, until ``size`` are left.
    """
    ranked = sorted(words, key=lambda word: (-words[word], word))
    counts = np.array([words[word] for word in ranked], dtype=np.int64)
    required_pieces = set(alphabet)
    scores = _seed_pieces(words, ranked, alphabet, size, max_length)
    while True:
        for _ in range(_EM_ROUNDS):
            frequency = _count_pieces(scores, ranked, counts)
            scores = _estimate_scores(frequency, scores, required_pieces)
        if len(scores) <= size:
            break
        scores = _prune_pieces(
            scores, frequency, required_pieces, max(size, int(_KEEP_FRACTION * len(scores)))
        )
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def _seed_pieces(
    words: Mapping[str, int], ranked_words: Sequence[str], alphabet: Sequence[str], size: int, max_length: int
) -> PieceScores:
    """Seed vocabulary: substrings in the order in which pair merging creates them, and the alphabet."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.train_from_iterator(
        (word for word in ranked_words for _ in range(min(words[word], 50))),
        trainers.BpeTrainer(
            vocab_size=_SEED_FACTOR * size,
            min_frequency=2,
            max_token_length=max_length,
            initial_alphabet=list(alphabet),
            show_progress=False,
        ),
    )
    bpe_vocab = bpe.get_vocab()
    characters = set(alphabet)
    pieces = sorted((p for p in bpe_vocab if characters.issuperset(p)), key=lambda piece: bpe_vocab[piece])
    # By Zipf's law the score falls with the logarithm of the rank.
    return {
        piece: -math.log(rank + 1.0)
        for rank, piece in enumerate([*pieces, *sorted(characters - set(pieces))])
    }


def _count_pieces(scores: PieceScores, ranked_words: Sequence[str], counts: np.ndarray) -> Counter[str]:
    """Frequency of each piece in the most probable segmentations of all words."""
    pieces = list(scores)
    model = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), *scores.items()], unk_id=0))
    encoded = [e.ids for e in model.encode_batch_fast(list(ranked_words), add_special_tokens=False)]
    lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
    flat = np.array([i for ids in encoded for i in ids], dtype=np.int64)
    totals = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.add.at(totals, flat, np.repeat(counts, lengths))
    return Counter(dict(zip(pieces, totals[1:].tolist(), strict=True)))


def _estimate_scores(frequency: Counter[str], scores: PieceScores, required_pieces: set[str]) -> PieceScores:
    """Log-probabilities from counts; unused pieces are dropped, required ones get at least half a count."""
    used_counts = {
        piece: max(frequency[piece], 0.5)
        for piece in scores
        if frequency[piece] > 0 or piece in required_pieces
    }
    total = math.log(sum(used_counts.values()))
    return {piece: math.log(count) - total for piece, count in used_counts.items()}


def _prune_pieces(
    scores: PieceScores, frequency: Counter[str], required_pieces: set[str], size: int
) -> PieceScores:
    """Keep the required pieces and those whose removal would cost the most likelihood, ``size`` in total."""
    cost = {
        piece: frequency[piece] * (score - _score_without(piece, scores))
        for piece, score in scores.items()
        if piece not in required_pieces
    }
    ranked = sorted(cost, key=lambda piece: (-cost[piece], piece))
    kept_pieces = required_pieces | set(ranked[: max(0, size - len(required_pieces))])
    return {piece: score for piece, score in scores.items() if piece in kept_pieces}


def _score_without(piece: str, scores: PieceScores) -> float:
    """Log-probability of the best segmentation of a piece into other pieces."""
    best = [0.0] + [-math.inf] * len(piece)
    for end in range(1, len(piece) + 1):
        for start in range(end):
            if end - start < len(piece) and (part := scores.get(piece[start:end])) is not None:
                best[end] = max(best[end], best[start] + part)
    return best[-1]


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
