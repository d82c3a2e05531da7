"""Load the tokenizer of a checkpoint and the roles of its special tokens."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
from polyhead.core.errors import UserError, format_value
from polyhead.hf.checkpoint_files import find_file
from polyhead.hf.family import FAMILY, ModelFamily, TokenizerFactory
from polyhead.hf.tokenizers.legacy_tokenizers import read_special_tokens
from polyhead.tokenizers.files import FILE, TARGET
from polyhead.tokenizers.special_tokens import DECODER_ROLES
from polyhead.tokenizers.tokenizer import Tokenizer


def load_tokenizer(
    directory: Path, config: dict[str, Any], generation: dict[str, Any] | None, n_rows: int
) -> Tokenizer:
    """Load tokenizer.json, or the family's older files, for a model with ``n_rows`` embedding rows.

    Roles come from tokenizer_config.json, special_tokens_map.json, and the ids in the configs; a role that is
    in none of them has no token. If padding is the end token it is not a separate role: positions mark
    padding. If decoding ends with several tokens, one of them is the end here and ``extra_eos`` returns the
    others.
    """
    family: ModelFamily = FAMILY.get(config["model_type"])
    factory = _find_factory(directory, family)
    roles, vocabulary = read_special_tokens(directory), factory({})
    special_tokens = vocabulary.ids_to_tokens(vocabulary.special_ids)
    roles = {role: token for role, token in family.special_tokens.items() if token in special_tokens} | roles
    for role in ("bos_token", "eos_token", "pad_token"):
        if role not in roles and (ids := _role_ids(config, f"{role}_id")):
            roles[role] = _lookup_token(vocabulary, ids[0], f"{directory / 'config.json'}: {role}_id")
    for role in DECODER_ROLES:
        if ids := _role_ids(generation or {}, f"{role}_id") or _role_ids(config, f"{role}_id"):
            roles[role] = _lookup_token(vocabulary, ids[0], f"{directory}: {role}_id")
    path = directory / ("config.json" if generation is None else "generation_config.json")
    names = [_lookup_token(vocabulary, i, f"{path}: eos_token_id") for i in _eos_ids(config, generation)]
    if names and roles.get("eos_token") not in names:
        roles["eos_token"] = names[0]
    if roles.get("pad_token") == roles.get("eos_token"):
        roles.pop("pad_token", None)
    tokenizer = factory(roles)
    return (
        tokenizer
        if tokenizer.vocab_size <= n_rows or tokenizer.target_tokenizer is not tokenizer
        else _drop_unknown_tokens(tokenizer, roles, n_rows)
    )


def extra_eos(
    tokenizer: Tokenizer, config: dict[str, Any], generation: dict[str, Any] | None
) -> tuple[str, ...]:
    """Return the tokens that end decoding in addition to the tokenizer's own end token."""
    extra_ids = [i for i in _eos_ids(config, generation) if i != tokenizer.eos_id]
    return tuple(
        filter(None, tokenizer.target_tokenizer.ids_to_tokens(extra_ids))
    )  # ids without a token are never generated


def _eos_ids(config: dict[str, Any], generation: dict[str, Any] | None) -> list[int]:
    """Return eos_token_id of generation_config.json; without that file, of config.json if it is a list."""
    if generation is None and not isinstance(config.get("eos_token_id"), list):
        return []  # a single id is often the default of the config class, whatever the vocabulary
    return list(dict.fromkeys(_role_ids(config if generation is None else generation, "eos_token_id")))


def _drop_unknown_tokens(tokenizer: Tokenizer, roles: dict[str, str], n_rows: int) -> Tokenizer:
    """Drop special tokens beyond the model's vocabulary, such as the image token of text-only Gemma 3.

    Text that spells such a token becomes plain text. Tokens with a role or in the template are kept.
    """
    rules, used_ids = (
        json.loads(tokenizer.tokenizer_json),
        {*tokenizer.role_ids.values(), *tokenizer.prefix_ids, *tokenizer.suffix_ids},
    )
    rules["added_tokens"] = [
        token for token in rules["added_tokens"] if token["id"] < n_rows or token["id"] in used_ids or not token["special"]
    ]  # fmt: skip
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(rules)), roles)


def _find_factory(directory: Path, family: ModelFamily) -> TokenizerFactory:
    if find_file(directory, FILE) is not None:
        find_file(directory, TARGET)
        return partial(Tokenizer.load, directory)
    if family.load_legacy_tokenizer is not None:
        return family.load_legacy_tokenizer(directory)
    file_names = ", ".join(sorted(path.name for path in directory.iterdir())[:8])
    raise UserError(
        f"{directory} has no tokenizer.json (there: {file_names}); AutoTokenizer of transformers writes one with save_pretrained"
    )


def _role_ids(config: dict[str, Any], key: str) -> list[int]:
    """Return the ids of a role as a list, which may be empty."""
    value = config.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int):
            raise UserError(f"{key} is {format_value(value)}, wanted the id of a token")
    return ids


def _lookup_token(tokenizer: Tokenizer, token_id: int, source: str) -> str:
    if not 0 <= token_id < tokenizer.vocab_size:
        raise UserError(f"{source} is {token_id}, and the tokenizer has {tokenizer.vocab_size} tokens")
    return tokenizer.ids_to_tokens([token_id])[0]
