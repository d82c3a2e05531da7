"""A vocabulary as llama.cpp reads it: which token is which, how they are merged, and by which rule words are cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from polyhead.errors import UserError, show
from polyhead.text.specials import OPENING
from polyhead.text.spoken import BYTES
from polyhead.text.tokenizer import Tokenizer

SPELLED = {byte: character for character, byte in BYTES.items()}
# how words are cut before their pieces are merged, as tokenizer.json says it -> the name of the rule there
GPT2 = "ByteLevel"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
RULES = {
    (GPT2,): "gpt-2",
    ("Digits", GPT2): "starcoder",
    (rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{REST}",): "qwen2",
    (rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{REST}",): "dbrx",
}
# the same rule, of vocabularies that take a word that is a token as it is
TAKING_WHOLE = {"dbrx": "llama-bpe"}
WHOLE = (("Isolated", False), ("Removed", True))  # ways of a Split in which what matches is a word
NEVER = f"{SPELLED[0]} {SPELLED[0]}"  # llama.cpp wants a merge; what this one makes is no token, and falls apart again


def vocabulary(tokenizer: Tokenizer, rows: int) -> dict[str, Any]:
    """Settings of a file, by their names; a UserError where llama.cpp would cut texts otherwise.

    ``rows`` is the number of rows of the embedding, of which the last may be no token.
    """
    file = json.loads(tokenizer.rules)
    found, spelled = _cutting(file)
    names, types = _names(tokenizer, rows, file, spelled)
    if file["model"].get("byte_fallback"):
        found["scores"] = _scores(file, names)
    return {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": types,
        **{f"tokenizer.ggml.{key}": value for key, value in (found | _roles(tokenizer)).items()},
    }


def check_cutting(tokenizer: Tokenizer) -> None:
    """A UserError where llama.cpp would cut texts otherwise; the package gguf is not needed to know it."""
    _cutting(json.loads(tokenizer.rules))


def _cutting(file: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """How texts are cut there, and names of tokens that are spelled otherwise."""
    if file["model"]["type"] != "BPE":
        raise _refused(f"a vocabulary of the kind {file['model']['type']}")
    return (_pieces(file), {}) if file["model"].get("byte_fallback") else _bytes(file)


def _refused(what: str) -> UserError:
    return UserError(
        f"llama.cpp cannot cut texts as this tokenizer does: {what}; "
        "it can those of the kinds bpe, byte and char, without lowercase, and of most published models"
    )


def _names(
    tokenizer: Tokenizer, rows: int, file: Mapping[str, Any], spelled: Mapping[str, str]
) -> tuple[list[str], list[int]]:
    """Each row of the embedding by its name there, and what kind of token it is."""
    from gguf import TokenType  # what the file's limits are can be asked without it

    added = {token["id"]: token["special"] for token in file["added_tokens"]}
    special = set(tokenizer.special_ids)
    names, types = [], []
    for i, name in enumerate(tokenizer.tokens(range(tokenizer.vocab_size))):
        kind = TokenType.NORMAL
        if i in special:
            kind = TokenType.CONTROL
        elif i in added:
            kind = TokenType.USER_DEFINED
        elif file["model"].get("byte_fallback") and name.startswith("<0x") and len(name) == 6:
            kind = TokenType.BYTE
        names.append(spelled.get(name, name) if kind == TokenType.NORMAL else name)
        types.append(int(kind))
    beyond = range(len(names), rows)
    return [*names, *(f"[PAD{i}]" for i in beyond)], [*types, *(int(TokenType.UNUSED) for _ in beyond)]


def _roles(tokenizer: Tokenizer) -> dict[str, int]:
    """Which token begins a text, ends it, fills a row, and stands for what is unknown."""
    said = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    return {f"{said[role]}_token_id": i for role, i in tokenizer.ids.items() if role in said}


def _bytes(file: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Of a vocabulary of bytes and what they merge to, or of characters; and names that are spelled otherwise there."""
    model = file["model"]
    if file["normalizer"] and file["normalizer"]["type"] != "NFC":  # most texts are in that form already
        raise _refused(f"it changes texts first ({file['normalizer']['type']})")
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    if (file["decoder"] or {}).get("type") != "ByteLevel":
        if merges or file["pre_tokenizer"]:
            raise _refused("its tokens are no bytes")
        spelled = {token: _spelled(token) for token in model["vocab"] if len(token) == 1}
        return _gpt2("gpt-2", list(dict.fromkeys(_merged(spelled.values()))), spelled)
    steps = _steps(file["pre_tokenizer"])
    if not merges:
        return _gpt2("gpt-2", [], {})
    if steps not in RULES:
        raise _refused(f"it cuts words by {' and '.join(map(show, steps)) or 'no rule'}")
    rule = RULES[steps]
    if model.get("ignore_merges"):
        if rule not in TAKING_WHOLE:
            raise _refused(f"ignore_merges beside the rule {rule!r}")
        rule = TAKING_WHOLE[rule]
    return _gpt2(rule, merges, {})


def _gpt2(
    rule: str, merges: list[str], spelled: Mapping[str, str]
) -> tuple[dict[str, Any], Mapping[str, str]]:
    return {"model": "gpt2", "pre": rule, "merges": merges or [NEVER]}, spelled


def _spelled(character: str) -> str:
    return "".join(SPELLED[byte] for byte in character.encode())


def _merged(characters: Iterable[str]) -> Iterable[str]:
    """What makes characters of their bytes, from the first byte on."""
    for character in characters:
        yield from (f"{before} {after[-1]}" for before, after in pairwise(accumulate(character)))


def _steps(pre: Mapping[str, Any] | None) -> tuple[str, ...]:
    """How words are cut, step by step; where a special token would begin ours are cut too, and no piece goes across."""
    found = []
    for part in _parts(pre):
        kind, pattern = part["type"], part.get("pattern", {})
        if kind == "Split" and pattern.get("String") == OPENING:
            continue
        if kind == "ByteLevel":
            found += ["add_prefix_space"] if part["add_prefix_space"] else []
            found += [GPT2] if part["use_regex"] else []
        elif (part.get("behavior"), part.get("invert")) in WHOLE:
            found.append(pattern.get("Regex", kind))
        else:
            found.append(kind if part.get("individual_digits", True) else "Digits together")
    return tuple(found)


def _pieces(file: Mapping[str, Any]) -> dict[str, Any]:
    """Of a vocabulary of pieces, blanks being a mark, and bytes for what is none (Llama 2, Mistral, Gemma)."""
    parts = [part for rule in ("normalizer", "pre_tokenizer") for part in _parts(file[rule])]
    for part in parts:
        kind, pattern = part["type"], part.get("pattern", {"String": " "})
        if kind not in ("Prepend", "Replace", "Metaspace", "Split") or pattern != {"String": " "}:
            raise _refused(f"{kind} beside bytes for what is unknown")
    prefix = any(
        part["type"] == "Prepend" or part.get("prepend_scheme", "never") != "never" for part in parts
    )
    return {"model": "llama", "pre": "default", "add_space_prefix": prefix}


def _scores(file: Mapping[str, Any], names: Sequence[str]) -> list[float]:
    """Of each row; what is merged first has the highest."""
    merges = [pair if isinstance(pair, list) else pair.split(" ") for pair in file["model"]["merges"]]
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault("".join(pair), rank)
    return [float(-ranks.get(name, len(merges))) for name in names]


def _parts(rule: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    if rule is None:
        return []
    found: Sequence[Mapping[str, Any]] = rule.get("normalizers") or rule.get("pretokenizers") or [rule]
    return found
