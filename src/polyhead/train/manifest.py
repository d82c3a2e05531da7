"""What a checkpoint must hold, byte for byte: its files, their sizes and SHA-256, the format's version."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from polyhead.errors import UserError
from polyhead.files import read_regular

NAME = "manifest.json"
FORMAT = 1
MAX_BYTES = 1_000_000


class FileEntry(BaseModel):
    """One file of the directory."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    size: NonNegativeInt = Field(description="bytes")
    sha256: str


class Manifest(BaseModel):
    """The list of a checkpoint's files; ``extra`` is the caller's (the tokenizer's SHA-256, say)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    step: NonNegativeInt
    files: dict[str, FileEntry]
    torch: str = torch.__version__
    python: str = platform.python_version()
    extra: dict[str, Any] = {}

    def text(self) -> bytes:
        """The manifest as JSON with its own SHA-256 in it; each has but one text, so any change shows."""
        body = self.model_dump()
        sha256 = hashlib.sha256(_dump(body)).hexdigest()
        return _dump(body | {"sha256": sha256})


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint directory, which holds exactly the files that it lists."""
    try:
        if path.is_symlink() or not path.is_dir():
            what = "a link" if path.is_symlink() else "no directory"
            raise UserError(f"{path} is {what}; a checkpoint directory was wanted")
        there = set(os.listdir(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    raw = read_regular(path / NAME, most=MAX_BYTES)
    body = parse_object(raw, path / NAME)
    version = body.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise UserError(
            f"{path} has format version {version}; up to {FORMAT} can be read: use a newer polyhead"
        )
    body.pop("sha256", None)
    try:
        manifest = Manifest.model_validate(body)
    except (ValidationError, RecursionError) as error:
        raise UserError(f"{path / NAME} is damaged: {_first_line(error)}") from None
    if raw != manifest.text():
        raise UserError(f"{path / NAME} is damaged: it differs from its own SHA-256")
    wanted = {*manifest.files, NAME}
    if wanted != there:
        missing, foreign = sorted(wanted - there), sorted(there - wanted)
        raise UserError(f"{path} differs from its manifest: missing {missing}, not listed {foreign}")
    return manifest


def read_file(path: Path, entry: FileEntry) -> bytes:
    """The bytes of one file, verified."""
    data = read_regular(path, size=entry.size)
    came = hashlib.sha256(data).hexdigest()
    if came != entry.sha256:
        raise UserError(
            f"{path} is damaged: its SHA-256 is {came[:16]}..., {entry.sha256[:16]}... was wanted"
        )
    return data


def parse_object(raw: bytes, where: Path) -> dict[str, Any]:
    """A JSON object; ``where`` names the file in errors."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where} holds a {type(value).__name__}; an object was wanted")
    return value


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"


def _first_line(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
