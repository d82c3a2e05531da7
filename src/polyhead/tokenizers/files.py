"""Read and write tokenizer.json and tokenizer_config.json in Hugging Face's format."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
from polyhead.core.atomic_io import file_exists
from polyhead.core.errors import UserError, prefix_errors
from polyhead.core.json_io import decode_json
from polyhead.tokenizers.file_limits import check_tokenizer_rules
from polyhead.tokenizers.special_tokens import DECODER_ROLES, ROLE_ALIASES, SPECIAL_TOKENS_MAP
from tokenizers import models

FILE, TARGET, CONFIG = TOKENIZER_FILES = "tokenizer.json", "target_tokenizer.json", "tokenizer_config.json"
_MAX_FILE_SIZE = 64 * 1024 * 1024  # bytes; larger files are refused, not parsed
_ROUNDTRIPS = 2  # writing and reading this often made all of a million numbers stable


def read_tokenizer_files(directory: Path) -> dict[str, bytes]:
    """The contents of the files of a tokenizer that exist, by name; UserError if one is too large."""
    paths = [directory / name for name in TOKENIZER_FILES if file_exists(directory / name)]
    for path in paths:
        if (size := path.stat().st_size) > _MAX_FILE_SIZE:
            raise UserError(f"{path} has {size:,} bytes; the maximum for {path.name} is {_MAX_FILE_SIZE:,}")
    try:
        return {path.name: path.read_bytes() for path in paths}
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from None


def decode_text(contents: Mapping[str, bytes], path: Path) -> str:
    """The text of one of the files of a tokenizer; UserError if it is missing or not UTF-8."""
    if path.name not in contents:
        names = (
            ", ".join(sorted(p.name for p in path.parent.iterdir())[:8])
            if path.parent.is_dir()
            else "no such directory"
        )
        raise UserError(f"no {path.name} in {path.parent} (there: {names or 'nothing'})")
    try:
        return io.TextIOWrapper(io.BytesIO(contents[path.name]), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None


def parse_tokenizer(contents: Mapping[str, bytes], path: Path) -> tuple[tokenizers.Tokenizer, str]:
    """The tokenizer of a file, and the file's text; UserError if it is missing, damaged or hostile."""
    content = decode_text(contents, path)
    rules = decode_json(content, path, is_strict=True)
    if not isinstance(rules, dict):
        raise UserError(f"{path} cannot be read as a tokenizer: it is not a JSON object")
    with prefix_errors(str(path)):
        check_tokenizer_rules(rules)
    with wrap_library_errors(f"{path} cannot be read as a tokenizer"):
        return tokenizers.Tokenizer.from_str(content), content


@contextmanager
def wrap_library_errors(action: str) -> Iterator[None]:
    """Turn errors of the tokenizers library to UserError; it has no class of its own, and panics."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{action}: {' '.join(str(error).split())[:200]}") from None


def read_roles(contents: Mapping[str, bytes], path: Path) -> dict[str, str]:
    """Special tokens by role, from a tokenizer_config.json."""
    config = decode_json(decode_text(contents, path), path)
    if not isinstance(config, dict):
        raise UserError(f"{path} must be a JSON object, got {type(config).__name__}")
    return parse_roles(config)


def parse_roles(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by role; Hugging Face writes a token as its text or as {"content": text}."""
    entries = {
        role: config.get(role) for role in (*SPECIAL_TOKENS_MAP, *ROLE_ALIASES.values(), *DECODER_ROLES)
    }
    texts = {
        role: value.get("content") if isinstance(value, dict) else value for role, value in entries.items()
    }
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def roundtrip(inner: tokenizers.Tokenizer, content: str) -> tokenizers.Tokenizer:
    """The tokenizer after writing and reading it, so that saving and loading does not change it.

    The library parses floats, such as the scores of a unigram model, with an error in the last bit.
    ``content`` is the file from which it was read; if writing gives the same content, nothing needs to be
    done.
    """
    if isinstance(inner.model, models.Unigram):
        for _ in range(_ROUNDTRIPS):
            old_content, content = content, serialize_tokenizer(inner)
            if content == old_content:
                break
            inner = tokenizers.Tokenizer.from_str(content)
    return inner


def serialize_tokenizer(inner: tokenizers.Tokenizer) -> str:
    """The tokenizer.json of a tokenizer."""
    return str(inner.to_str(pretty=True))
