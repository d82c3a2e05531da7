"""Read SentencePiece models (Kudo and Richardson, 2018) whose ids come from a separate vocabulary file."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tokenizers
from polyhead.core.errors import UserError, prefix_errors
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.tokenizers.files import max_text_len
from polyhead.tokenizers.special_tokens import UNK_TOKEN
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

MAX_SPM_BYTES = 64 << 20  # bytes
UNIGRAM, BPE = 1, 2  # the model types that tokenizers supports
_MODEL_TYPES = {3: "word", 4: "char"}
NORMAL, USER_DEFINED = 1, 4  # the piece types that occur in segmented text
SPECIAL_TYPES = 2, 3  # unknown and control pieces
_UNK_PENALTY = 10.0  # of SentencePiece: score of an unknown character, below that of the least likely piece
_MAX_LEADING_BLANKS = 1 << 16  # maximum number of spaces before a text
_IMPOSSIBLE_SCORE = -5_000.0  # of tokens outside this model: below any segmentation into its pieces
# normalization rules of these names compose é from e and its accent
_NFKC_RULES = (b"nfkc", b"nfkc_cf", b"nmt_nfkc", b"nmt_nfkc_cf")


class SentencePieceModel(NamedTuple):
    """The content of a SentencePiece model file."""

    pieces: Mapping[str, int]  # all pieces in the order of their ids, and their types
    scores: dict[str, float]  # of each piece that occurs in segmented text
    is_bpe: bool  # True: merges of BPE; False: the most likely segmentation of a unigram model
    normalization: Sequence[normalizers.Normalizer]  # empty: text is not normalized
    split_by_whitespace: bool  # whether no piece crosses a space
    add_dummy_prefix: bool  # whether a space is put before a text
    remove_extra_whitespaces: bool  # whether spaces around a text, and all but one between words, are removed


def read_spm_model(files: CheckpointFiles, name: str) -> SentencePieceModel:
    """Load a model file. A UserError if tokenizers cannot reproduce it."""
    path = files.find(name, MAX_SPM_BYTES)
    if path is None:
        raise UserError(f"{files.directory} has no {name}")
    with prefix_errors(str(files.directory / name)):
        try:
            return _parse_model(path.read_bytes())
        except UserError:
            raise
        except Exception:  # tokenizers has no exception class of its own
            raise UserError("it is damaged or not a SentencePiece model") from None


def read_vocab(files: CheckpointFiles) -> dict[str, int]:
    """Return token -> id from vocab.json."""
    ids = files.read_json("vocab.json", MAX_SPM_BYTES)
    if ids is None:
        raise UserError(f"{files.directory} has neither tokenizer.json nor vocab.json")
    numbers = {i for i in ids.values() if type(i) is int}
    if UNK_TOKEN not in ids or numbers != {*range(len(ids))}:
        raise UserError(f"{files.directory / 'vocab.json'} must have token ids from 0, including {UNK_TOKEN}")
    return ids


def build_tokenizer(
    spm: SentencePieceModel, ids: Mapping[str, int], special_tokens: Sequence[str]
) -> tokenizers.Tokenizer:
    """Build a tokenizer with the segmentation of ``spm`` and the given ids. Text never yields
    ``special_tokens``.

    A character that is not a piece becomes the token of that name, if there is one, or unknown, as
    transformers looks up pieces in the vocabulary. Longer tokens that are not pieces, such as those of the
    other language, are never used.
    """
    vocabulary = sorted(ids, key=ids.__getitem__)
    min_score = min(spm.scores.values()) - _UNK_PENALTY
    if spm.is_bpe:
        merges = _bpe_merges(spm.scores, ids)
        tokenizer = tokenizers.Tokenizer(models.BPE(dict(ids), merges, unk_token=UNK_TOKEN, fuse_unk=True))
    else:
        scores = {
            token: min_score if len(token) == 1 else _IMPOSSIBLE_SCORE for token in vocabulary
        } | spm.scores
        scored_tokens = [(token, scores[token]) for token in vocabulary]
        tokenizer = tokenizers.Tokenizer(models.Unigram(scored_tokens, unk_id=ids[UNK_TOKEN]))
    normalizer_steps = [*spm.normalization]
    if spm.remove_extra_whitespaces:
        normalizer_steps += [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    if spm.add_dummy_prefix:
        normalizer_steps.append(normalizers.Prepend(" "))
    tokenizer.normalizer = normalizers.Sequence(normalizer_steps)
    special_pattern = "|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in special_tokens)
    # text that spells a special token stays plain text
    special_splitter = pre_tokenizers.Split(Regex(special_pattern), "isolated")
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="never", split=spm.split_by_whitespace)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([metaspace, special_splitter])
    decoder_steps = [decoders.Replace("▁", " "), decoders.Fuse()]
    if spm.add_dummy_prefix:
        decoder_steps.append(
            decoders.Strip(" ", _MAX_LEADING_BLANKS if spm.remove_extra_whitespaces else 1, 0)
        )
    tokenizer.decoder = decoders.Sequence(decoder_steps)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special_tokens]
    )
    return tokenizer


def _bpe_merges(scores: Mapping[str, float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return every split of a piece into two pieces, the most likely pieces first."""
    ranked = sorted(scores, key=lambda piece: -scores[piece])
    return [
        (piece[:i], piece[i:])
        for piece in ranked
        for i in range(1, len(piece))
        if ids.keys() >= {piece, piece[:i], piece[i:]}
    ]


def _parse_model(data: bytes) -> SentencePieceModel:
    """Parse a ModelProto: field 1 has the pieces, 2 the trainer spec, 3 the normalizer spec."""
    pieces: dict[str, int] = {}
    scores: dict[str, float] = {}
    user_defined = []
    trainer_spec: dict[int, Any] = {}
    normalizer_spec: dict[int, Any] = {}
    for number, value in _parse_fields(data):
        if number == 1:
            fields = dict(_parse_fields(value))
            piece, kind = fields[1].decode(), fields.get(3, NORMAL)
            pieces[piece] = kind
            if kind in (NORMAL, USER_DEFINED):
                (scores[piece],) = struct.unpack("<f", fields.get(2, bytes(4)))
            if kind == USER_DEFINED:
                user_defined.append(piece)
        elif number == 2:
            trainer_spec = dict(_parse_fields(value))
        elif number == 3:
            normalizer_spec = dict(_parse_fields(value))
    kind = trainer_spec.get(3, UNIGRAM)
    if kind not in (UNIGRAM, BPE):
        raise UserError(f"a model of kind {_MODEL_TYPES.get(kind, kind)}; expected unigram or bpe")
    for number, what in ((35, "byte_fallback"), (24, "treat_whitespace_as_suffix")):
        if trainer_spec.get(number):
            raise UserError(f"a model with {what}; expected one without")
    if not scores:
        raise LookupError("no pieces")
    max_score = max(scores.values())
    for piece in user_defined:
        if kind == BPE:
            raise UserError(f"a bpe model with user-defined pieces, such as {piece!r}; expected none")
        scores[piece] = (
            len(piece.encode()) * max_score - 0.1
        )  # as in SentencePiece: above any other segmentation
    if normalizer_spec.get(2):
        max_text_len(normalizer_spec[2])  # raises ValueError for a damaged map
    normalizer_steps: list[normalizers.Normalizer] = (
        [normalizers.Precompiled(normalizer_spec[2])] if normalizer_spec.get(2) else []
    )
    if normalizer_spec.get(1) in _NFKC_RULES:
        # tokenizers applies a rule to a few bytes at most and drops combining marks after them, so it does
        # not compose 각 from its letters
        normalizer_steps = [normalizers.NFC(), *normalizer_steps, normalizers.NFC()]
    for piece in (piece.replace("▁", " ") for piece in user_defined):
        # SentencePiece matches user-defined pieces before normalization
        if (normalized := normalizers.Sequence(normalizer_steps).normalize_str(piece)) != piece:
            raise UserError(
                f"a user-defined piece, {piece!r}, that its rules normalize to {normalized!r}; expected none"
            )
    flags = (
        bool(of.get(number, 1))
        for of, number in ((trainer_spec, 22), (normalizer_spec, 3), (normalizer_spec, 4))
    )
    return SentencePieceModel(pieces, scores, kind == BPE, normalizer_steps, *flags)


def _parse_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield field number and value of a Protocol Buffers message; values are integers or bytes."""
    offset = 0

    def read_varint() -> int:
        nonlocal offset
        value = shift = 0
        while True:
            byte = data[offset]
            offset += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    while offset < len(data):
        key = read_varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            yield number, read_varint()
            continue
        size = {1: 8, 5: 4}.get(wire) or (read_varint() if wire == 2 else -1)
        if not 0 <= size <= len(data) - offset:
            raise ValueError("a field beyond the end")
        yield number, data[offset : offset + size]
        offset += size
