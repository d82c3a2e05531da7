"""Manifest of a checkpoint or of a finished run: its files with their sizes and SHA-256."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from polyhead.core.atomic_io import open_regular_file, read_regular_file
from polyhead.core.errors import UserError
from polyhead.core.json_io import decode_json

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1
MAX_MANIFEST_BYTES = 1_000_000


class FileEntry(BaseModel):
    """Size and hash of one file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    size: NonNegativeInt = Field(description="bytes")
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> FileEntry:
        """The entry of a file with this content."""
        return cls(size=len(content), sha256=hashlib.sha256(content).hexdigest())


class Manifest(BaseModel):
    """The list of files, and the step of their weights; ``extra`` is data of the caller, such as the
    tokenizer's SHA-256.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    step: NonNegativeInt
    files: dict[str, FileEntry]
    torch: str = torch.__version__
    python: str = platform.python_version()
    extra: dict[str, Any] = {}

    def to_bytes(self) -> bytes:
        """The manifest as canonical JSON that includes its own SHA-256, so that any change is detected."""
        body = self.model_dump()
        sha256 = hashlib.sha256(_dump(body)).hexdigest()
        return _dump(body | {"sha256": sha256})


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a checkpoint directory, which must contain exactly the listed files."""
    try:
        if path.is_symlink() or not path.is_dir():
            file_kind = "a link" if path.is_symlink() else "no directory"
            raise UserError(f"{path} is {file_kind}; expected a checkpoint directory")
        present = set(_list_files(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    manifest = parse_manifest(read_regular_file(path / MANIFEST_FILE, max_bytes=MAX_MANIFEST_BYTES), path)
    expected = {*manifest.files, MANIFEST_FILE}
    if expected != present:
        missing, foreign = sorted(expected - present), sorted(present - expected)
        raise UserError(f"{path} differs from its manifest: missing {missing}, not listed {foreign}")
    return manifest


def _list_files(path: Path) -> Iterator[str]:
    """The entries of a directory; in place of a directory in it, ``directory/entry`` for each of its own."""
    for entry in os.scandir(path):
        inner_names = os.listdir(entry.path) if entry.is_dir(follow_symlinks=False) else []
        yield from [f"{entry.name}/{name}" for name in inner_names] or [entry.name]


def parse_manifest(raw: bytes, path: Path) -> Manifest:
    """Parse the manifest of a directory and verify it with its own SHA-256."""
    body = parse_object(raw, path / MANIFEST_FILE)
    version = body.get("format")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(
            f"{path} has format version {version}; supported up to {FORMAT_VERSION}: use a newer polyhead"
        )
    body.pop("sha256", None)
    try:
        manifest = Manifest.model_validate(body)
    except (ValidationError, RecursionError) as error:
        raise UserError(f"{path / MANIFEST_FILE} is damaged: {_first_line(error)}") from None
    if raw != manifest.to_bytes():
        raise UserError(f"{path / MANIFEST_FILE} is damaged: it differs from its own SHA-256")
    return manifest


def read_file(path: Path, entry: FileEntry) -> bytes:
    """Read one file and verify its size and SHA-256."""
    data = read_regular_file(path, size=entry.size)
    check_sha256(path, hashlib.sha256(data).hexdigest(), entry)
    return data


def verify_file(path: Path, entry: FileEntry) -> None:
    """Verify the size and SHA-256 of one file, read piece by piece."""
    with open_regular_file(path, size=entry.size) as file:
        check_sha256(path, hashlib.file_digest(file, "sha256").hexdigest(), entry)


def check_sha256(path: Path, sha256: str, entry: FileEntry) -> None:
    """Raise a UserError if the digest of a file is not that of its entry."""
    if sha256 != entry.sha256:
        raise UserError(
            f"{path} is damaged: its SHA-256 is {sha256[:16]}..., {entry.sha256[:16]}... was expected"
        )


def hash_file(path: Path) -> FileEntry:
    """Size and hash of a file, or of the file that a link names, read piece by piece."""
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return FileEntry(size=file.tell(), sha256=sha256)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def parse_object(raw: bytes, path: Path) -> dict[str, Any]:
    """Parse a JSON object; ``path`` names the file in errors."""
    value = decode_json(raw, path)
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}; expected an object")
    return value


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"


def _first_line(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
