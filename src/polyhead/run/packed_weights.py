"""Keep the packed weights of a run in its directory, so that it opens without quantizing them again."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from polyhead.checkpoint.manifest import MANIFEST_FILE, FileEntry, Manifest, read_manifest, verify_file
from polyhead.checkpoint.safetensors_io import write_safetensors
from polyhead.core.atomic_io import HashingWriter, atomic_directory, remove, replace_file
from polyhead.core.errors import UserError
from polyhead.core.i18n import tr, translate_message
from polyhead.kernels.build_extension import load_kernels, sources_digest
from polyhead.kernels.malloc_tuning import alloc_huge_pages
from polyhead.kernels.pack_model import linear_factory, pack_model
from polyhead.kernels.stored_layers import StoredLayers
from polyhead.models import Model

PACKED_DIR = ".packed"
_FILE = "layers.safetensors"
_MIN_BYTES = 2**26  # of the file of the weights; smaller ones are packed in a tenth of a second

log = logging.getLogger(__name__)


def pack_run(
    model: Model, dtype: str, directory: Path, weights: FileEntry | None, in_memory: bool = False
) -> None:
    """Pack a model to ``dtype``, int8 or int4, with the packed weights in the directory if they are valid.

    They are those of the digest in ``weights``, the entry of the verified file, and of these kernels, in a
    directory whose own digest is verified too; any others are replaced, unless nothing can be written there.
    Without an entry, as for a published checkpoint, nothing is read or written. They are memory-mapped or,
    with ``in_memory``, copied to large pages, from which a token takes about 5 % less.
    """
    if weights is None or weights.size < _MIN_BYTES or load_kernels() is None:
        pack_model(model, linear_factory(dtype))
        return
    path, key = directory / PACKED_DIR / dtype, {"weights": weights.sha256, "kernels": sources_digest()}
    stored = _read(path, key)
    if in_memory:
        stored = {
            name: alloc_huge_pages(len(x)).copy_(x) if name.endswith(".panels") else x
            for name, x in stored.items()
        }
    layers = StoredLayers(stored)
    pack_model(model, linear_factory(dtype), layers)
    tensors = layers.take_tensors()
    if layers.n_packed and tensors and directory.stat().st_mode & 0o222 and os.access(directory, os.W_OK):
        try:
            _write(path, key, tensors)
        except OSError as error:
            log.warning(tr("packed weights are not kept: {reason}", reason=f"{path}: {error.strerror}"))


def _read(path: Path, key: Mapping[str, str]) -> Mapping[str, Tensor]:
    """The tensors of packed weights, memory-mapped; {} if there are none that can be used."""
    if not os.path.lexists(path):
        return {}
    try:
        if path.parent.is_symlink():
            raise UserError(f"{path.parent} is a link")
        manifest = read_manifest(path)
        if manifest.extra != key or [*manifest.files] != [_FILE]:
            raise UserError(f"{path} is of other weights or kernels")
        verify_file(path / _FILE, manifest.files[_FILE])
        with safe_open(path / _FILE, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (UserError, SafetensorError) as error:
        log.warning(tr("weights are packed again: {reason}", reason=translate_message(str(error))))
        return {}


def _write(path: Path, key: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    if path.parent.is_symlink():  # to what is not ours
        return
    remove(path)
    path.parent.mkdir(exist_ok=True)
    replace_file(path.parent / ".gitignore", b"*\n")  # nothing to publish
    with atomic_directory(path) as new:
        with HashingWriter(new / _FILE) as out:
            write_safetensors(out, tensors)
        entry = FileEntry(size=out.size, sha256=out.sha256)
        (new / MANIFEST_FILE).write_bytes(Manifest(step=0, files={_FILE: entry}, extra={**key}).to_bytes())
