"""Tokenizer metadata of llama.cpp: tokens, merges, special tokens and the pre-tokenizer rule."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from polyhead.core.errors import UserError, format_value
from polyhead.tokenizers.special_tokens import SPECIAL_PREFIX
from polyhead.tokenizers.token_bytes import BYTE_DECODER
from polyhead.tokenizers.tokenizer import Tokenizer

_BYTE_SPELLING = {byte: character for character, byte in BYTE_DECODER.items()}
# pre-tokenizers of tokenizer.json -> name of the rule in llama.cpp
_BYTE_LEVEL = "ByteLevel"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PRE_TOKENIZERS = {
    (_BYTE_LEVEL,): "gpt-2",
    ("Digits", _BYTE_LEVEL): "starcoder",
    (rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{REST}",): "qwen2",
    (rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{REST}",): "dbrx",
}
# the same rule for vocabularies with ignore_merges, in which a word that is a token is not split
_IGNORE_MERGES = {"dbrx": "llama-bpe"}
_WORD_SPLITS = (("Isolated", False), ("Removed", True))  # forms of Split whose matches are words
# llama.cpp requires a merge; the result of this one is not a token and is split again
_DUMMY_MERGE = f"{_BYTE_SPELLING[0]} {_BYTE_SPELLING[0]}"


def tokenizer_metadata(tokenizer: Tokenizer, n_rows: int) -> dict[str, Any]:
    """Return the tokenizer metadata. A UserError if llama.cpp would tokenize differently.

    ``n_rows`` is the number of rows of the embedding; rows beyond the tokenizer are padding tokens.
    """
    file = json.loads(tokenizer.tokenizer_json)
    metadata, spelling = _model_metadata(file)
    names, types = _token_names(tokenizer, n_rows, file, spelling)
    if file["model"].get("byte_fallback"):
        metadata["scores"] = _token_scores(file, names)
    roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    metadata |= {f"{roles[role]}_token_id": i for role, i in tokenizer.role_ids.items() if role in roles}
    return {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": types,
        **{f"tokenizer.ggml.{key}": value for key, value in metadata.items()},
    }


def check_pre_tokenizer(tokenizer: Tokenizer) -> None:
    """Raise a UserError if llama.cpp would tokenize differently. Does not require the package gguf."""
    _model_metadata(json.loads(tokenizer.tokenizer_json))


def _model_metadata(tokenizer_json: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return the metadata of the segmentation, and the tokens with another spelling in llama.cpp."""
    if tokenizer_json["model"]["type"] != "BPE":
        raise _tokenizer_error(f"a vocabulary of the kind {tokenizer_json['model']['type']}")
    return (
        (_piece_metadata(tokenizer_json), {})
        if tokenizer_json["model"].get("byte_fallback")
        else _byte_metadata(tokenizer_json)
    )


def _tokenizer_error(reason: str) -> UserError:
    return UserError(
        f"llama.cpp does not support this tokenizer: {reason}; it supports the kinds bpe, byte and char, "
        "without lowercase, and most published models"
    )


def _token_names(
    tokenizer: Tokenizer, n_rows: int, tokenizer_json: Mapping[str, Any], spelling: Mapping[str, str]
) -> tuple[list[str], list[int]]:
    """Return llama.cpp's token and token type of each row of the embedding."""
    from gguf import TokenType  # imported here, so that limits can be checked without gguf

    is_special = {token["id"]: token["special"] for token in tokenizer_json["added_tokens"]}
    special = set(tokenizer.special_ids)
    names, types = [], []
    for i, name in enumerate(tokenizer.ids_to_tokens(range(tokenizer.vocab_size))):
        kind = TokenType.NORMAL
        if i in special:
            kind = TokenType.CONTROL
        elif i in is_special:
            kind = TokenType.USER_DEFINED
        elif tokenizer_json["model"].get("byte_fallback") and name.startswith("<0x") and len(name) == 6:
            kind = TokenType.BYTE
        names.append(spelling.get(name, name) if kind == TokenType.NORMAL else name)
        types.append(int(kind))
    beyond = range(len(names), n_rows)
    return [*names, *(f"[PAD{i}]" for i in beyond)], [*types, *(int(TokenType.UNUSED) for _ in beyond)]


def _byte_metadata(tokenizer_json: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return the metadata of a byte-level or character vocabulary, and the tokens with another spelling in
    llama.cpp.
    """
    model = tokenizer_json["model"]
    if (
        tokenizer_json["normalizer"] and tokenizer_json["normalizer"]["type"] != "NFC"
    ):  # most texts are already NFC
        raise _tokenizer_error(f"it normalizes texts ({tokenizer_json['normalizer']['type']})")
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    if (tokenizer_json["decoder"] or {}).get("type") != "ByteLevel":
        if merges or tokenizer_json["pre_tokenizer"]:
            raise _tokenizer_error("its tokens are not bytes")
        spelling = {
            token: "".join(_BYTE_SPELLING[byte] for byte in token.encode())
            for token in model["vocab"]
            if len(token) == 1
        }
        return _gpt2_metadata("gpt-2", list(dict.fromkeys(_byte_merges(spelling.values()))), spelling)
    steps = _split_rules(tokenizer_json["pre_tokenizer"])
    if not merges:
        return _gpt2_metadata("gpt-2", [], {})
    if steps not in _PRE_TOKENIZERS:
        raise _tokenizer_error(f"it splits words by {' and '.join(map(format_value, steps)) or 'no rule'}")
    rule = _PRE_TOKENIZERS[steps]
    if model.get("ignore_merges"):
        if rule not in _IGNORE_MERGES:
            raise _tokenizer_error(f"ignore_merges with the rule {rule!r}")
        rule = _IGNORE_MERGES[rule]
    return _gpt2_metadata(rule, merges, {})


def _gpt2_metadata(
    rule: str, merges: list[str], spelling: Mapping[str, str]
) -> tuple[dict[str, Any], Mapping[str, str]]:
    return {"model": "gpt2", "pre": rule, "merges": merges or [_DUMMY_MERGE]}, spelling


def _byte_merges(characters: Iterable[str]) -> Iterable[str]:
    """Yield the merges of each character from its bytes, from left to right."""
    for character in characters:
        yield from (f"{left} {right[-1]}" for left, right in pairwise(accumulate(character)))


def _split_rules(pre_tokenizer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the pre-tokenizer rules in order.

    Splits at special tokens are skipped, because llama.cpp splits there too and no piece crosses them.
    """
    rules = []
    for part in _rule_parts(pre_tokenizer):
        kind, pattern = part["type"], part.get("pattern", {})
        if kind == "Split" and pattern.get("String") == SPECIAL_PREFIX:
            continue
        if kind == "ByteLevel":
            rules += ["add_prefix_space"] if part["add_prefix_space"] else []
            rules += [_BYTE_LEVEL] if part["use_regex"] else []
        elif (part.get("behavior"), part.get("invert")) in _WORD_SPLITS:
            rules.append(pattern.get("Regex", kind))
        else:
            rules.append(kind if part.get("individual_digits", True) else "Digits together")
    return tuple(rules)


def _piece_metadata(tokenizer_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of SentencePiece BPE with byte fallback (Llama 2, Mistral, Gemma)."""
    parts = [part for rule in ("normalizer", "pre_tokenizer") for part in _rule_parts(tokenizer_json[rule])]
    for part in parts:
        kind, pattern = part["type"], part.get("pattern", {"String": " "})
        if kind not in ("Prepend", "Replace", "Metaspace", "Split") or pattern != {"String": " "}:
            raise _tokenizer_error(f"{kind} with byte fallback")
    prefix = any(
        part["type"] == "Prepend" or part.get("prepend_scheme", "never") != "never" for part in parts
    )
    return {"model": "llama", "pre": "default", "add_space_prefix": prefix}


def _token_scores(tokenizer_json: Mapping[str, Any], names: Sequence[str]) -> list[float]:
    """Return the score of each row; earlier merges have higher scores."""
    merges = [
        pair if isinstance(pair, list) else pair.split(" ") for pair in tokenizer_json["model"]["merges"]
    ]
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault("".join(pair), rank)
    return [float(-ranks.get(name, len(merges))) for name in names]


def _rule_parts(rule: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    if rule is None:
        return []
    parts: Sequence[Mapping[str, Any]] = rule.get("normalizers") or rule.get("pretokenizers") or [rule]
    return parts
