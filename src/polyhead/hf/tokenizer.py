"""Load the tokenizer of a checkpoint and the roles of its special tokens."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError, format_value
from polyhead.hf.checkpoint_files import CheckpointFiles
from polyhead.hf.family import FAMILY, ModelFamily, TokenizerFactory
from polyhead.hf.published_checkpoint import PublishedCheckpoint
from polyhead.hf.tokenizers.legacy_tokenizers import read_special_tokens
from polyhead.tokenizers.files import (
    CONFIG,
    FILE,
    TARGET,
    TARGET_ROLES,
    parse_roles,
    parse_tokenizer,
    read_tokenizer_files,
)
from polyhead.tokenizers.special_tokens import DECODER_ROLES
from polyhead.tokenizers.tokenizer import Tokenizer

OPTIONAL_ROLES = ("bos_token", "eos_token", "pad_token")


def load_tokenizer(checkpoint: PublishedCheckpoint, config: ModelConfig) -> Tokenizer:
    """Load tokenizer.json, or the family's older files, and target_tokenizer.json if there is one.

    The latter is another segmentation of the same vocabulary; if encoder and decoder have a config each, it
    is the decoder's own tokenizer.
    """
    files, source = checkpoint.tokenizer_files, checkpoint
    n_rows, source_rows = config.vocab_size, config.encoder_spec.vocab_size
    has_target, decoder = files.find(TARGET) is not None, checkpoint.config.get("decoder")
    if not has_target and source_rows != n_rows:
        raise UserError(
            f"{files.directory} has no {TARGET}: the encoder has {source_rows:,} tokens, the decoder "
            f"{n_rows:,}; copy the {FILE} of the decoder's tokenizer to it"
        )
    if has_target and decoder:
        source = _select_side(checkpoint, checkpoint.config["encoder"])._replace(generation_config={})
    factory = _find_factory(files, checkpoint.family)
    tokenizer = _load_side(source, factory, read_special_tokens(files), source_rows)
    if not has_target:
        return tokenizer
    factory = _parse_factory(files, TARGET)
    if not decoder:
        return tokenizer.with_target_tokenizer(factory(tokenizer.roles))
    # ids of the pair, which are the decoder's, come before those of the decoder alone
    common = {key: value for key, value in checkpoint.config.items() if value is not None}
    target = _select_side(checkpoint, decoder | common | {"model_type": decoder["model_type"]})
    roles = parse_roles((files.read_json(CONFIG) or {}).get(TARGET_ROLES) or {})
    return tokenizer.with_target_tokenizer(_load_side(target, factory, roles, n_rows))


def _select_side(checkpoint: PublishedCheckpoint, config: dict[str, Any]) -> PublishedCheckpoint:
    """Return the checkpoint with the config and the family of one of its sides."""
    return checkpoint._replace(config=config, family=FAMILY.get(config["model_type"]))


def _load_side(
    checkpoint: PublishedCheckpoint, factory: TokenizerFactory, roles: dict[str, str], n_rows: int
) -> Tokenizer:
    """Build the tokenizer of a model with ``n_rows`` embedding rows, with the ``roles`` of its files.

    Other roles come from the ids in the configs; a role that is in none of them has no token. If padding is
    the end token, it is not a separate role: positions mark padding. Beginning, end and padding without a row
    in the model are no roles either: no text contains them, and the model never generates them.
    If decoding ends with several tokens, one of them is the end here and ``extra_eos`` returns the
    others.
    """
    family, config, files = checkpoint.family, checkpoint.config, checkpoint.tokenizer_files
    vocabulary = factory({})
    special_tokens = vocabulary.ids_to_tokens(vocabulary.special_ids)
    roles = {role: token for role, token in family.special_tokens.items() if token in special_tokens} | roles
    for role in OPTIONAL_ROLES:
        if role not in roles:
            tokens = _tokens_with_row(vocabulary, _role_ids(config, f"{role}_id")[:1], n_rows)
            roles |= {role: tokens[0]} if tokens else {}
    for role in DECODER_ROLES:
        if ids := _role_ids(checkpoint.generation, f"{role}_id") or _role_ids(config, f"{role}_id"):
            roles[role] = _lookup_token(vocabulary, ids[0], f"{files.directory}: {role}_id")
    eos_ids = _eos_ids(checkpoint)
    names = _tokens_with_row(vocabulary, eos_ids, n_rows)
    if eos_ids and not names:
        _lookup_token(vocabulary, eos_ids[0], f"{checkpoint.generation_path}: eos_token_id")
    if names and roles.get("eos_token") not in names:
        roles["eos_token"] = names[0]
    if roles.get("pad_token") == roles.get("eos_token"):
        roles.pop("pad_token", None)
    roles = {
        role: token for role, token in roles.items()
        if role not in OPTIONAL_ROLES or not _lacks_row(vocabulary, role, token, n_rows)
    }  # fmt: skip
    tokenizer = factory(roles)
    return (
        tokenizer
        if tokenizer.max_id < n_rows or tokenizer.target_tokenizer is not tokenizer
        else _drop_unknown_tokens(tokenizer, roles, n_rows)
    )


def extra_eos(checkpoint: PublishedCheckpoint, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the tokens that end decoding in addition to the tokenizer's own end token."""
    ids = range(tokenizer.target_tokenizer.max_id + 1)  # others are never generated
    extra_ids = [i for i in _eos_ids(checkpoint) if i in ids and i != tokenizer.target_tokenizer.eos_id]
    return tuple(filter(None, tokenizer.target_tokenizer.ids_to_tokens(extra_ids)))


def _lacks_row(vocabulary: Tokenizer, role: str, token: str, n_rows: int) -> bool:
    """Return whether the token of a role has no row in the model; padding may even be in no vocabulary."""
    try:
        return vocabulary.token_to_id(token) >= n_rows
    except UserError:
        return role == "pad_token"


def _eos_ids(checkpoint: PublishedCheckpoint) -> list[int]:
    """Return eos_token_id of generation_config.json; without that file, of config.json if it is a list."""
    generation = checkpoint.generation
    if checkpoint.generation_config is None and not isinstance(generation.get("eos_token_id"), list):
        return []  # a single id is often the default of the config class, whatever the vocabulary
    return list(dict.fromkeys(_role_ids(generation, "eos_token_id")))


def _tokens_with_row(vocabulary: Tokenizer, ids: list[int], n_rows: int) -> list[str]:
    """Return the tokens of the ids that have one, and a row in the model."""
    return [token for i in ids if 0 <= i < n_rows for token in vocabulary.ids_to_tokens([i]) if token]


def _drop_unknown_tokens(tokenizer: Tokenizer, roles: dict[str, str], n_rows: int) -> Tokenizer:
    """Drop added tokens beyond the model's vocabulary, such as the image token of text-only Gemma 3.

    Text that spells such a token becomes plain text. Tokens with a role or in the template are kept.
    """
    rules = json.loads(tokenizer.tokenizer_json)
    used_ids = {*tokenizer.role_ids.values(), *tokenizer.prefix_ids, *tokenizer.suffix_ids}
    rules["added_tokens"] = [t for t in rules["added_tokens"] if t["id"] < n_rows or t["id"] in used_ids]
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(rules)), roles)


def _find_factory(files: CheckpointFiles, family: ModelFamily) -> TokenizerFactory:
    if files.find(FILE) is not None:
        return _parse_factory(files, FILE)
    if family.load_legacy_tokenizer is not None:
        return family.load_legacy_tokenizer(files)
    file_names = ", ".join(sorted(path.name for path in files.directory.iterdir())[:8])
    raise UserError(
        f"{files.directory} has no tokenizer.json (there: {file_names}); save_pretrained of a transformers "
        "AutoTokenizer writes one"
    )


def _parse_factory(files: CheckpointFiles, name: str) -> TokenizerFactory:
    """Parse tokenizer.json or target_tokenizer.json."""
    contents = read_tokenizer_files(files.directory, (name,))
    inner, content = parse_tokenizer(contents, files.directory / name)
    return lambda roles: Tokenizer(inner, roles, content)


def _role_ids(config: dict[str, Any], key: str) -> list[int]:
    """Return the ids of a role as a list, which may be empty."""
    value = config.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int):
            raise UserError(f"{key} is {format_value(value)}, expected a token id")
    return ids


def _lookup_token(tokenizer: Tokenizer, token_id: int, source: str) -> str:
    if not 0 <= token_id < tokenizer.vocab_size:
        raise UserError(f"{source} is {token_id}, but the tokenizer has {tokenizer.vocab_size} tokens")
    return tokenizer.ids_to_tokens([token_id])[0]
