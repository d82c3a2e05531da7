"""The two files of a tokenizer, tokenizer.json and tokenizer_config.json, as Hugging Face's libraries write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from polyhead.errors import UserError
from polyhead.text.specials import DECODERS, INSTEAD, ROLES

FILE, TARGET = "tokenizer.json", "target_tokenizer.json"
MAX_FILE = 64 * 1024 * 1024  # bytes; larger ones are refused, not parsed
ROUNDS = 2  # of writing and reading, after which no number of a million was found to change


def read(path: Path) -> str:
    """A file's text; one that is missing, too large or no text is a UserError of one line."""
    if not path.is_file():
        there = (
            ", ".join(sorted(p.name for p in path.parent.iterdir())[:8])
            if path.parent.is_dir()
            else "no such folder"
        )
        raise UserError(f"no {path.name} in {path.parent} (there: {there or 'nothing'})")
    size = path.stat().st_size
    if size > MAX_FILE:
        raise UserError(f"{path} has {size:,} bytes; a {path.name} of more than {MAX_FILE:,} is refused")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def parsed(path: Path) -> tuple[tokenizers.Tokenizer, str]:
    """The tokenizer of a file, and its text; a missing or damaged file is a UserError of one line."""
    content = read(path)
    try:
        return tokenizers.Tokenizer.from_str(content), content
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust parser is no Exception
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path} cannot be read as a tokenizer: {reason}") from None


def read_roles(path: Path) -> dict[str, str]:
    """Which token plays which role, as a file says."""
    try:
        config: Any = json.loads(read(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} must hold a JSON object, got {type(config).__name__}")
    return roles_of(config)


def roles_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Which token plays which role; Hugging Face writes a token as its text or as {"content": text}."""
    found = {role: config.get(role) for role in (*ROLES, *INSTEAD.values(), *DECODERS)}
    texts = {
        role: value.get("content") if isinstance(value, dict) else value for role, value in found.items()
    }
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def settled(inner: tokenizers.Tokenizer, content: str) -> tokenizers.Tokenizer:
    """The tokenizer that its own file gives back, so that one that is saved and loaded is the same one.

    Numbers are read by the library to the last bit but one, and the scores of a unigram model are numbers. ``content`` is
    the file that it was read from: where it writes the same again, nothing is to be done.
    """
    if isinstance(inner.model, models.Unigram):
        for _ in range(ROUNDS):
            before, content = content, written(inner)
            if content == before:
                break
            inner = tokenizers.Tokenizer.from_str(content)
    return inner


def written(inner: tokenizers.Tokenizer) -> str:
    """The tokenizer.json of a tokenizer."""
    return str(inner.to_str(pretty=True))
