"""The tokenizer of a checkpoint, and which of its tokens play which role."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers

from polyhead.errors import UserError, show
from polyhead.hf.family import FAMILY, Family, Made
from polyhead.hf.files import inside
from polyhead.hf.vocabularies import roles_in
from polyhead.text.files import FILE, TARGET
from polyhead.text.specials import DECODERS
from polyhead.text.tokenizer import Tokenizer


def open_tokenizer(
    directory: Path, config: dict[str, Any], generation: dict[str, Any] | None, rows: int
) -> Tokenizer:
    """tokenizer.json as it is, or what the family has in its place, with the roles that other files give, for a model
    that knows ``rows`` tokens.

    These are tokenizer_config.json, special_tokens_map.json, and the configs by ids. A role that no file gives stays
    without a token. Where padding is the end token it is no role of its own: positions say what is padding.
    Where decoding ends with several tokens, one of them is the end here; ``other_ends`` are the others.
    """
    family: Family = FAMILY.get(config["model_type"])
    made = _made(directory, family)
    roles, vocabulary = roles_in(directory), made({})
    known = vocabulary.tokens(vocabulary.special_ids)
    roles = {role: token for role, token in family.specials.items() if token in known} | roles
    for role in ("bos_token", "eos_token", "pad_token"):
        if role not in roles and (ids := _ids(config, f"{role}_id")):
            roles[role] = _token(vocabulary, ids[0], f"{directory / 'config.json'}: {role}_id")
    for role in DECODERS:
        if ids := _ids(generation or {}, f"{role}_id") or _ids(config, f"{role}_id"):
            roles[role] = _token(vocabulary, ids[0], f"{directory}: {role}_id")
    where = directory / ("config.json" if generation is None else "generation_config.json")
    names = [_token(vocabulary, i, f"{where}: eos_token_id") for i in _ends(config, generation)]
    if names and roles.get("eos_token") not in names:
        roles["eos_token"] = names[0]
    if roles.get("pad_token") == roles.get("eos_token"):
        roles.pop("pad_token", None)
    found = made(roles)
    return found if found.vocab_size <= rows or found.target is not found else _known(found, roles, rows)


def other_ends(
    tokenizer: Tokenizer, config: dict[str, Any], generation: dict[str, Any] | None
) -> tuple[str, ...]:
    """The tokens with which decoding ends beside the tokenizer's own end."""
    others = [i for i in _ends(config, generation) if i != tokenizer.eos_id]
    return tuple(filter(None, tokenizer.target.tokens(others)))  # what has no name is never said


def _ends(config: dict[str, Any], generation: dict[str, Any] | None) -> list[int]:
    """What generation_config.json says that decoding ends with; where there is none config.json may list several."""
    if generation is None and not isinstance(config.get("eos_token_id"), list):
        return []  # a single one is often the default of a class, whatever the vocabulary
    return list(dict.fromkeys(_ids(config if generation is None else generation, "eos_token_id")))


def _known(tokenizer: Tokenizer, roles: dict[str, str], rows: int) -> Tokenizer:
    """The same without special tokens that the model does not know, as Gemma 3 of text alone has one for pictures.

    A text that spells one is only text, so those that play no role and stand around no text are never met.
    """
    rules, met = json.loads(tokenizer.rules), {*tokenizer.ids.values(), *tokenizer.begin, *tokenizer.end}
    rules["added_tokens"] = [
        token for token in rules["added_tokens"] if token["id"] < rows or token["id"] in met or not token["special"]
    ]  # fmt: skip
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(rules)), roles)


def _made(directory: Path, family: Family) -> Made:
    if inside(directory, FILE) is not None:
        inside(directory, TARGET)
        return partial(Tokenizer.load, directory)
    if family.vocabulary is not None:
        return family.vocabulary(directory)
    there = ", ".join(sorted(path.name for path in directory.iterdir())[:8])
    raise UserError(
        f"{directory} has no tokenizer.json (there: {there}); AutoTokenizer of transformers writes one with save_pretrained"
    )


def _ids(config: dict[str, Any], key: str) -> list[int]:
    """The ids of a role: one, several or none."""
    value = config.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int):
            raise UserError(f"{key} is {show(value)}, wanted the id of a token")
    return ids


def _token(tokenizer: Tokenizer, i: int, where: str) -> str:
    if not 0 <= i < tokenizer.vocab_size:
        raise UserError(f"{where} is {i}, and the tokenizer has {tokenizer.vocab_size} tokens")
    return tokenizer.tokens([i])[0]
