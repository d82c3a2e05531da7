"""SentencePiece models (Kudo and Richardson, 2018), whose pieces are numbered by a vocabulary beside them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from polyhead.errors import UserError, at
from polyhead.hf.files import inside, read_json
from polyhead.text.specials import UNK

MAX_FILE = 64 << 20  # bytes
UNIGRAM, BPE = 1, 2  # of its kinds of models, the two that tokenizers has
KINDS = {3: "word", 4: "char"}
NORMAL, USER_DEFINED = 1, 4  # of its kinds of pieces, those that a text is made of
UNKNOWN_BELOW = 10.0  # a character that is no piece, below the least likely piece: theirs
ALL = 1 << 16  # blanks before a text
NEVER = -5_000.0  # of pieces that are none of this model: below any reading with its own
# rules of these names make é of e and its mark
COMPOSING = (b"nfkc", b"nfkc_cf", b"nmt_nfkc", b"nmt_nfkc_cf")


class Pieces(NamedTuple):
    """What the file of a model says."""

    scores: dict[str, float]  # of each piece that a text is made of
    merged: bool  # whether pairs of pieces are merged, as in BPE; else the likeliest row of pieces is sought
    normal: Sequence[normalizers.Normalizer]  # how characters are written; none: as they are
    apart: bool  # whether no piece goes over a blank
    begins: bool  # whether a text begins with a blank
    trims: bool  # whether blanks around a text, and all but one between words, are nothing


def read_pieces(directory: Path, name: str) -> Pieces:
    """The model in a file; what tokenizers cannot do alike is a UserError."""
    path = inside(directory, name)
    if path is None:
        raise UserError(f"{directory} has no {name}")
    if (size := path.stat().st_size) > MAX_FILE:
        raise UserError(f"{directory / name} has {size:,} bytes; at most {MAX_FILE:,} are read")
    with at(str(directory / name)):
        try:
            return _pieces(path.read_bytes())
        except UserError:
            raise
        except Exception:  # tokenizers knows no kinds of them
            raise UserError("it is damaged, or no SentencePiece model") from None


def read_numbers(directory: Path) -> dict[str, int]:
    """The id of each token, as vocab.json says."""
    ids = read_json(directory, "vocab.json", MAX_FILE)
    if ids is None:
        raise UserError(f"{directory} has neither tokenizer.json nor vocab.json")
    numbers = {i for i in ids.values() if type(i) is int}
    if UNK not in ids or numbers != {*range(len(ids))}:
        raise UserError(f"{directory / 'vocab.json'} must number tokens from 0 on, {UNK} among them")
    return ids


def cutting(pieces: Pieces, ids: Mapping[str, int], specials: Sequence[str]) -> tokenizers.Tokenizer:
    """A tokenizer that cuts as these pieces do and numbers as ``ids``, whose ``specials`` no text is made of.

    A character that is no piece is the token of its name, if there is one, or unknown, as the reference's tokenizers
    look up what a model gives them. Tokens that are no pieces and longer, such as those of the other language, are never used.
    """
    vocabulary = sorted(ids, key=ids.__getitem__)
    least = min(pieces.scores.values()) - UNKNOWN_BELOW
    if pieces.merged:
        merges = _merges(pieces.scores, ids)
        made = tokenizers.Tokenizer(models.BPE(dict(ids), merges, unk_token=UNK, fuse_unk=True))
    else:
        scores = {token: least if len(token) == 1 else NEVER for token in vocabulary} | pieces.scores
        scored = [(token, scores[token]) for token in vocabulary]
        made = tokenizers.Tokenizer(models.Unigram(scored, unk_id=ids[UNK]))
    normal = [*pieces.normal]
    if pieces.trims:
        normal += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if pieces.begins:
        normal.append(normalizers.Prepend(" "))
    made.normalizer = normalizers.Sequence(normal)
    spelled = "|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in specials)
    # a text that spells a special token is only text
    alone = pre_tokenizers.Split(Regex(spelled), "isolated")
    blanks = pre_tokenizers.Metaspace(prepend_scheme="never", split=pieces.apart)
    made.pre_tokenizer = pre_tokenizers.Sequence([blanks, alone])
    said = [decoders.Replace("▁", " "), decoders.Fuse()]
    if pieces.begins:
        said.append(decoders.Strip(" ", ALL if pieces.trims else 1, 0))
    made.decoder = decoders.Sequence(said)
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return made


def _merges(scores: Mapping[str, float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece of two, the likeliest pieces first."""
    ranked = sorted(scores, key=lambda piece: -scores[piece])
    return [
        (piece[:i], piece[i:])
        for piece in ranked
        for i in range(1, len(piece))
        if ids.keys() >= {piece, piece[:i], piece[i:]}
    ]


def _pieces(data: bytes) -> Pieces:
    """ModelProto: pieces are its field 1, what trained them 2, and how texts are written 3."""
    scores: dict[str, float] = {}
    defined = []
    trained: dict[int, Any] = {}
    written: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            said = dict(_fields(value))
            piece, kind = said[1].decode(), said.get(3, NORMAL)
            if kind in (NORMAL, USER_DEFINED):
                (scores[piece],) = struct.unpack("<f", said.get(2, bytes(4)))
            if kind == USER_DEFINED:
                defined.append(piece)
        elif number == 2:
            trained = dict(_fields(value))
        elif number == 3:
            written = dict(_fields(value))
    kind = trained.get(3, UNIGRAM)
    if kind not in (UNIGRAM, BPE):
        raise UserError(f"a model of kind {KINDS.get(kind, kind)}; wanted unigram or bpe")
    for number, what in ((35, "byte_fallback"), (24, "treat_whitespace_as_suffix")):
        if trained.get(number):
            raise UserError(f"a model with {what}; wanted one without")
    if not scores:
        raise LookupError("no pieces")
    most = max(scores.values())
    for piece in defined:
        if kind == BPE:
            raise UserError(
                f"a bpe model with pieces defined by its user, such as {piece!r}; wanted one without"
            )
        scores[piece] = len(piece.encode()) * most - 0.1  # theirs: above any other reading
    normal: list[normalizers.Normalizer] = [normalizers.Precompiled(written[2])] if written.get(2) else []
    if written.get(1) in COMPOSING:
        # tokenizers applies a rule to a few bytes at most, and drops marks behind them: not to 각 of its letters
        normal = [normalizers.NFC(), *normal, normalizers.NFC()]
    for piece in (piece.replace("▁", " ") for piece in defined):
        # there it is found before anything is written otherwise
        if (other := normalizers.Sequence(normal).normalize_str(piece)) != piece:
            raise UserError(
                f"a piece defined by its user, {piece!r}, that its rules write as {other!r}; wanted none of that kind"
            )
    flags = (bool(of.get(number, 1)) for of, number in ((trained, 22), (written, 3), (written, 4)))
    return Pieces(scores, kind == BPE, normal, *flags)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message by number, as Protocol Buffers write them: whole numbers, or bytes that hold the rest."""
    here = 0

    def varint() -> int:
        nonlocal here
        value = shift = 0
        while True:
            byte = data[here]
            here += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    while here < len(data):
        key = varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}.get(wire) or (varint() if wire == 2 else -1)
        if not 0 <= size <= len(data) - here:
            raise ValueError("a field beyond the end")
        yield number, data[here : here + size]
        here += size
