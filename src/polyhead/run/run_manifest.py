"""The manifest of a run directory: sizes and SHA-256 of its files, written when training ends.

Weights that differ from it are refused. The other files are text that may be edited: changes are reported.
Runs without a manifest, such as those of older versions, are loaded as they are.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from polyhead.checkpoint.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    check_sha256,
    hash_file,
    parse_manifest,
)
from polyhead.checkpoint.weight_selection import WeightSelection
from polyhead.core.atomic_io import file_exists, read_regular_file, remove, replace_file
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr
from polyhead.hf.checkpoint_files import WEIGHTS_FILE
from polyhead.tokenizers.files import TOKENIZER_FILES

CONFIG_FILE, GENERATION_FILE, RECIPE_FILE = "config.json", "generation_config.json", "recipe.yaml"
TEXT_FILES = (CONFIG_FILE, GENERATION_FILE, RECIPE_FILE, *TOKENIZER_FILES)
_SELECTION_KEY = "weights"  # the checkpoints that the weights are from, in the manifest's ``extra``

log = logging.getLogger(__name__)


def write_run_manifest(
    directory: Path, weights: FileEntry | None = None, selection: WeightSelection | None = None
) -> None:
    """Write the manifest of the files in a run directory.

    ``weights`` is the entry of model.safetensors, ``selection`` the checkpoints that the weights are from.
    Without ``weights``, the entry of an existing manifest remains.
    """
    files = hash_text_files(directory)
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
    path = directory / MANIFEST_FILE
    if not file_exists(path):
        return None
    try:
        manifest = parse_manifest(read_regular_file(path, max_bytes=MAX_MANIFEST_BYTES), directory)
    except UserError as error:
        raise UserError(f"{error}; remove it to use the run without its digests") from None
    if unknown := sorted(manifest.files.keys() - {WEIGHTS_FILE, *TEXT_FILES}):
        raise UserError(f"{path} lists {unknown[0]!r}, which is no file of a run")
    return manifest


def recorded_selection(manifest: Manifest | None) -> WeightSelection | None:
    """The checkpoints that the final weights are from, as written when training ended."""
    match manifest and manifest.extra.get(_SELECTION_KEY):
        case {"steps": [*steps], "group": str(group)} if steps and all(type(step) is int for step in steps):
            return WeightSelection(steps, group)
    return None


def check_weights_file(path: Path, manifest: Manifest) -> None:
    """Raise a UserError if model.safetensors is not the file that was written; reads all of it."""
    if entry := manifest.files.get(WEIGHTS_FILE):
        if (size := path.stat().st_size) != entry.size:
            raise UserError(f"{path} is damaged or truncated: it has {size} bytes; expected {entry.size}")
        check_sha256(path, hash_file(path).sha256, entry)


def hash_text_files(directory: Path, names: Iterable[str] = TEXT_FILES) -> dict[str, FileEntry]:
    """The entries of the text files that exist; what cannot be read is a UserError."""
    return {name: hash_file(directory / name) for name in names if file_exists(directory / name)}


def warn_changed_files(directory: Path, manifest: Manifest, files: Mapping[str, FileEntry]) -> None:
    """Report the text files of a run that differ from its manifest, in one warning."""
    expected = {name: manifest.files.get(name) for name in TEXT_FILES}
    missing = ", ".join(name for name, entry in expected.items() if entry and name not in files)
    changed = ", ".join(name for name, entry in files.items() if entry != expected[name])
    notes = [tr("changed: {names}", names=changed)] if changed else []
    notes += [tr("missing: {names}", names=missing)] if missing else []
    if notes:
        changes = "; ".join(notes)
        log.warning(tr("{run} differs from what training wrote: {changes}", run=directory, changes=changes))
