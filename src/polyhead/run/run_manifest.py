"""The manifest of a run directory: sizes and SHA-256 of its files, written when training ends.

Weights that differ from it are refused. The other files are text that may be edited: changes are reported.
Runs without a manifest, such as those of older versions, are loaded as they are.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Literal

from polyhead.checkpoint.manifest import MANIFEST_FILE, FileEntry, Manifest, hash_file, parse_manifest
from polyhead.checkpoint.weight_selection import WeightSelection
from polyhead.core.atomic_io import file_exists, remove, replace_file
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.hf.checkpoint_files import WEIGHTS_FILE
from polyhead.tokenizers.files import FILE as TOKENIZER_FILE
from polyhead.tokenizers.files import TARGET as TARGET_TOKENIZER_FILE

RECIPE_FILE = "recipe.yaml"
TEXT_FILES = (
    "config.json",
    "generation_config.json",
    RECIPE_FILE,
    TOKENIZER_FILE,
    TARGET_TOKENIZER_FILE,
    "tokenizer_config.json",
)
_SELECTION_KEY = "weights"  # the checkpoints that the weights are from, in the manifest's ``extra``

FileStatus = Literal["ok", "changed", "missing"]

log = logging.getLogger(__name__)


def write_run_manifest(
    directory: Path, weights: FileEntry | None = None, selection: WeightSelection | None = None
) -> None:
    """Write the manifest of the files in a run directory.

    ``weights`` is the entry of model.safetensors, ``selection`` the checkpoints that the weights are from.
    Without ``weights``, the entry of an existing manifest remains.
    """
    files = {name: hash_file(directory / name) for name in TEXT_FILES if file_exists(directory / name)}
    step, extra = (selection.steps[-1], {_SELECTION_KEY: selection._asdict()}) if selection else (0, {})
    if weights is not None:
        files[WEIGHTS_FILE] = weights
    else:
        with contextlib.suppress(UserError):  # what is damaged is replaced
            old = read_run_manifest(directory)
            if old and WEIGHTS_FILE in old.files:
                files[WEIGHTS_FILE], step, extra = old.files[WEIGHTS_FILE], old.step, old.extra
    manifest = Manifest(step=step, files=files, extra=extra)
    replace_file(directory / MANIFEST_FILE, manifest.to_bytes())


def remove_run_manifest(directory: Path) -> None:
    """Remove the manifest before the weights are replaced: a crash in between must not look like damage."""
    remove(directory / MANIFEST_FILE)


def read_run_manifest(directory: Path) -> Manifest | None:
    """The manifest of a run, None if it has none; a UserError if it is damaged."""
    if not file_exists(directory / MANIFEST_FILE):
        return None
    try:
        manifest = parse_manifest(directory)
    except UserError as error:
        raise UserError(f"{error}; remove it to use the run without its digests") from None
    if unknown := sorted(manifest.files.keys() - {WEIGHTS_FILE, *TEXT_FILES}):
        raise UserError(f"{directory / MANIFEST_FILE} lists {unknown[0]!r}, which is no file of a run")
    return manifest


def recorded_selection(manifest: Manifest | None) -> WeightSelection | None:
    """The checkpoints that the final weights are from, as written when training ended."""
    match manifest and manifest.extra.get(_SELECTION_KEY):
        case {"steps": [*steps], "group": str(group)} if steps and all(type(step) is int for step in steps):
            return WeightSelection(steps, group)
    return None


def check_weights_file(directory: Path, manifest: Manifest | None) -> None:
    """Raise a UserError if model.safetensors is not the file that was written; reads all of it."""
    path, entry = directory / WEIGHTS_FILE, manifest.files.get(WEIGHTS_FILE) if manifest else None
    if entry and file_exists(path):
        if (size := path.stat().st_size) != entry.size:
            raise UserError(f"{path} is damaged or truncated: it has {size} bytes; expected {entry.size}")
        if (sha256 := hash_file(path).sha256) != entry.sha256:
            raise UserError(
                f"{path} is damaged: its SHA-256 is {sha256[:16]}..., {entry.sha256[:16]}... was expected"
            )


def check_text_file(directory: Path, manifest: Manifest, name: str) -> FileStatus:
    """Compare a text file of a run with its manifest; what cannot be read is a UserError."""
    entry = manifest.files.get(name)
    if not file_exists(path := directory / name):
        return "missing" if entry else "ok"
    return "ok" if hash_file(path) == entry else "changed"


def warn_changed_files(directory: Path) -> Manifest | None:
    """Report text files that differ from the manifest in one warning; returns the manifest, if any."""
    if (manifest := read_run_manifest(directory)) is None:
        return None
    statuses = {name: check_text_file(directory, manifest, name) for name in TEXT_FILES}
    changed, missing = (
        ", ".join(name for name, status in statuses.items() if status == kind)
        for kind in ("changed", "missing")
    )
    notes = [tr("changed: {names}", names=changed)] if changed else []
    notes += [tr("missing: {names}", names=missing)] if missing else []
    if notes:
        changes = "; ".join(notes)
        log.warning(tr("{run} differs from what training wrote: {changes}", run=directory, changes=changes))
    return manifest
