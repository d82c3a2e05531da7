"""Verify a run directory: every file that has a digest, and whether the run loads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from polyhead.checkpoint.checkpoint import list_steps, read_checkpoint
from polyhead.checkpoint.manifest import MANIFEST_FILE, Manifest
from polyhead.core.atomic_io import file_exists
from polyhead.core.errors import UserError
from polyhead.hf.checkpoint_files import WEIGHTS_FILE, CheckpointFiles
from polyhead.run.load import is_published, not_a_run_message, open_run
from polyhead.run.run_directory import (
    CONFIG_FILE,
    TEXT_FILES,
    RunFiles,
    check_weights_file,
    hash_text_files,
    missing_config_message,
    read_run_manifest,
)


class VerifiedFile(NamedTuple):
    """A file or a checkpoint of a run: "ok", "changed", "missing" or "damaged", and why."""

    name: str
    status: str
    reason: str = ""

    @property
    def is_valid(self) -> bool:
        """Whether the run is as training left it, but for edits of its text files."""
        return self.status in ("ok", "changed")


def verify_run(directory: Path) -> Iterator[VerifiedFile]:
    """Compare the files of a run with its manifest, verify its checkpoints, and open it if all is well.

    A run without a manifest is only opened, and its checkpoints are verified. A directory that is no run is a
    UserError.
    """
    if not directory.is_dir():
        raise UserError(not_a_run_message(directory))
    if is_published(CheckpointFiles(directory)):
        raise UserError(f"{directory} is a published checkpoint, which has no digests; expected a run")
    if not any((directory / name).exists() for name in (CONFIG_FILE, MANIFEST_FILE, "checkpoints")):
        raise UserError(missing_config_message(directory))
    is_valid = True
    for file in _verify_files(directory):
        is_valid &= file.is_valid
        yield file
    if is_valid:
        try:
            open_run(RunFiles.open(directory, None))
        except UserError as error:
            yield VerifiedFile(str(directory), "damaged", str(error))


def _verify_files(directory: Path) -> Iterator[VerifiedFile]:
    manifest: Manifest | None = None
    try:
        if manifest := read_run_manifest(directory):
            yield VerifiedFile(MANIFEST_FILE, "ok")
    except UserError as error:
        yield VerifiedFile(MANIFEST_FILE, "damaged", str(error))
    if manifest:
        for name in TEXT_FILES:
            if name in manifest.files or os.path.lexists(directory / name):
                yield _verify(name, partial(_compare_text_file, directory, manifest, name))
        if WEIGHTS_FILE in manifest.files:
            yield _verify(WEIGHTS_FILE, partial(_check_weights, directory / WEIGHTS_FILE, manifest))
    checkpoints = directory / "checkpoints"
    try:
        steps = list_steps(checkpoints)
    except UserError as error:
        yield VerifiedFile(checkpoints.name, "damaged", str(error))
        return
    for step in steps:
        path = checkpoints / f"step-{step}"
        yield _verify(f"{checkpoints.name}/{path.name}", partial(_check_checkpoint, path))


def _verify(name: str, check: Callable[[], str]) -> VerifiedFile:
    """The result of a check, which returns the status of the file or raises a UserError."""
    try:
        return VerifiedFile(name, check())
    except UserError as error:
        return VerifiedFile(name, "damaged", str(error))


def _compare_text_file(directory: Path, manifest: Manifest, name: str) -> str:
    entry, expected = hash_text_files(directory, [name]).get(name), manifest.files.get(name)
    return "ok" if entry == expected else "changed" if entry else "missing"


def _check_weights(path: Path, manifest: Manifest) -> str:
    if not file_exists(path):
        return "missing"
    check_weights_file(path, manifest)
    return "ok"


def _check_checkpoint(path: Path) -> str:
    read_checkpoint(path)
    return "ok"
