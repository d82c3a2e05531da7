"""A training run's state as a directory that is there whole or not at all.

``step-N/`` holds a safetensors file for each group of tensors, ``state.json`` and, written last, ``manifest.json`` with
the size and SHA-256 of each. It is written under another name, synced, renamed, and only then named in ``latest``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyhead.errors import UserError
from polyhead.train import tensors as safetensors
from polyhead.train.files import (
    TRANSIENT,
    SaveError,
    Writer,
    read_regular,
    remove,
    remove_quietly,
    replace_file,
    sync_directory,
)
from polyhead.train.lock import alive, start_time
from polyhead.train.retention import surplus

FORMAT = 1
MANIFEST, STATE, LATEST = "manifest.json", "state.json", "latest"
MAX_MANIFEST, MAX_STATE = 1_000_000, 64_000_000  # bytes
SPARE = 1 << 16  # bytes of directories, manifest and rounding that a save needs besides its data

GROUP = re.compile(r"[a-z][a-z0-9_]*")
STEP = re.compile(r"step-(0|[1-9][0-9]*)")
# step-N.tmp-<pid>-<start of the process> is being written or deleted; .old- is the step-N that is being replaced
UNFINISHED = re.compile(r"(step-(?:0|[1-9][0-9]*))\.(tmp|old)-([0-9]+)(?:-([0-9]+))?")

log = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """What was saved, verified: ``tensors[group][name]`` on the CPU, JSON ``state``, and the ``extra`` of the manifest."""

    step: int
    path: Path
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    extra: dict[str, Any]


def save(
    root: Path | str,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``root/step-N`` durably and name it in ``root/latest``; a directory of that step is replaced.

    When this returns, the values are on the disk as they were at the call. An error that may pass is tried once more;
    else SaveError is raised, the attempt is removed, and earlier checkpoints are as they were.
    """
    root = Path(root)
    assert step >= 0, f"step {step} is negative"
    assert all(GROUP.fullmatch(group) for group in tensors), f"not all names of groups: {list(tensors)}"
    _check_json(state, "state")
    _check_json(extra or {}, "extra")
    text = json.dumps(state).encode()
    if len(text) > MAX_STATE:
        raise SaveError(
            f"cannot save step {step}: its state takes {len(text)} bytes; at most {MAX_STATE} can be loaded"
        )
    needed = len(text) + sum(map(safetensors.nbytes, tensors.values())) + SPARE
    for attempt in (1, 2):
        try:
            return _save(root, step, tensors, text, extra or {}, needed)
        except OSError as error:
            if attempt == 1 and error.errno in TRANSIENT:
                log.warning("saving step %d failed (%s); trying once more", step, error.strerror)
                continue
            raise SaveError(f"cannot save {root / f'step-{step}'}: {error.strerror or error}; {needed} bytes are needed"
                            f"{_free_text(root)}; earlier checkpoints are as they were") from error  # fmt: skip
    raise AssertionError("unreachable")


def load(path: Path | str) -> Checkpoint:
    """Read a checkpoint and verify each byte of it; UserError says what is wrong. Nothing in it is executed."""
    path = Path(path)
    manifest, data = _verified(path)
    state = _parse_json(data.pop(STATE), path / STATE)
    groups = {
        name.removesuffix(".safetensors"): safetensors.read(raw, path / name) for name, raw in data.items()
    }
    return Checkpoint(manifest["step"], path, groups, state, manifest["extra"])


def newest(root: Path | str) -> Checkpoint | None:
    """The checkpoint of the highest step that verifies; each damaged one that is passed over is named in a warning.

    Also removes what a crash has left unfinished, so it is for the process that owns the run.
    """
    root = Path(root)
    clean(root)
    for step in sorted(steps(root), reverse=True):
        try:
            return load(root / f"step-{step}")
        except UserError as error:
            log.warning("skipping the damaged checkpoint %s: %s", root / f"step-{step}", error)
    return None


def steps(root: Path | str) -> list[int]:
    """The steps of which there are directories, whether or not they verify, in numeric order."""
    return sorted(int(match[1]) for entry in _entries(Path(root)) if (match := STEP.fullmatch(entry.name)))


def prune(root: Path | str, keep: int, best: int | None = None) -> None:
    """Delete all but the ``keep`` newest, the best, the one ``latest`` names and the newest that verifies."""
    root = Path(root)
    there = steps(root)
    if not surplus(there, keep, {best}):
        return
    valid = next((step for step in reversed(there) if _verifies(root / f"step-{step}")), None)
    for step in surplus(there, keep, {best, valid, _latest(root)}):
        doomed = root / _unfinished(step, "tmp")
        remove(doomed)
        os.rename(
            root / f"step-{step}", doomed
        )  # so that a crash cannot leave half a checkpoint under its name
        remove(doomed)


def clean(root: Path) -> None:
    """Remove what dead processes left unfinished, and put back a checkpoint whose replacement never came."""
    for entry in list(_entries(root)):
        match = UNFINISHED.fullmatch(entry.name)
        if match is None or alive(int(match[3]), int(match[4] or 0)):
            continue
        final = root / match[1]
        if match[2] == "old" and not final.exists():
            os.rename(entry, final)
            sync_directory(root)
        else:
            remove(entry)


def _save(
    root: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: bytes,
    extra: Mapping[str, Any],
    needed: int,
) -> Path:
    final, temporary, old = (
        root / f"step-{step}",
        root / _unfinished(step, "tmp"),
        root / _unfinished(step, "old"),
    )
    if not root.is_dir():
        root.mkdir(parents=True)
        sync_directory(root.parent)
    clean(root)
    remove(temporary)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise SaveError(f"cannot save {final}: {needed} bytes are needed and {free} are free; "
                        "earlier checkpoints are as they were")  # fmt: skip
    try:
        os.mkdir(temporary)
        _write(temporary, step, tensors, state, extra)
        if final.exists():
            remove(old)
            os.rename(final, old)
        os.rename(temporary, final)
    except BaseException:
        _undo(final, temporary, old)
        raise
    sync_directory(root)
    replace_file(root / LATEST, f"{final.name}\n".encode())
    remove(old)
    return final


def _write(
    directory: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: bytes,
    extra: Mapping[str, Any],
) -> None:
    """All files, each synced, the manifest last, then the directory itself."""
    files: dict[str, dict[str, Any]] = {}
    for group, named in tensors.items():
        with Writer(directory / f"{group}.safetensors") as out:
            safetensors.write(out, named)
        files[out.path.name] = {"size": out.size, "sha256": out.sha256}
    with Writer(directory / STATE) as out:
        out.write(state)
    files[STATE] = {"size": out.size, "sha256": out.sha256}
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    with Writer(directory / MANIFEST) as out:
        out.write(_render({"format": FORMAT, "step": step, "files": files, **versions, "extra": dict(extra)}))
    sync_directory(directory)


def _undo(final: Path, temporary: Path, old: Path) -> None:
    remove_quietly(temporary)
    try:
        if old.exists() and not final.exists():
            os.rename(old, final)
    except OSError as error:
        log.warning("could not put %s back (%s); the next start does", final, error.strerror)


def _render(manifest: dict[str, Any]) -> bytes:
    """The manifest as text, with its own SHA-256 in it: there is one text for each manifest, so any change shows."""
    text = json.dumps(manifest, indent=1, sort_keys=True)
    return json.dumps(
        manifest | {"sha256": hashlib.sha256(text.encode()).hexdigest()}, indent=1, sort_keys=True
    ).encode()


def _read_manifest(path: Path) -> dict[str, Any]:
    raw = read_regular(path / MANIFEST, most=MAX_MANIFEST)
    manifest = _parse_json(raw, path / MANIFEST)
    version = manifest.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise UserError(
            f"{path} has format version {version}; this program reads up to {FORMAT}: use a newer one"
        )
    manifest.pop("sha256", None)
    if raw != _render(manifest):
        raise UserError(f"{path / MANIFEST} is damaged: it differs from its own SHA-256")
    name = STEP.fullmatch(path.name)
    if name and int(name[1]) != manifest["step"]:
        raise UserError(f"{path} holds step {manifest['step']}; step {name[1]} was wanted: it was renamed")
    return manifest


def _verified(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the bytes of each file, which are exactly the files that the manifest lists."""
    if path.is_symlink() or not path.is_dir():
        raise UserError(
            f"{path} is {'a link' if path.is_symlink() else 'no directory'}; a checkpoint directory was wanted"
        )
    manifest = _read_manifest(path)
    wanted, there = {*manifest["files"], MANIFEST}, set(os.listdir(path))
    if wanted != there:
        raise UserError(f"{path} has not the files of its manifest: missing {sorted(wanted - there) or 'none'}, "
                        f"unknown {sorted(there - wanted) or 'none'}")  # fmt: skip
    data = {}
    for name, entry in manifest["files"].items():
        data[name] = read_regular(path / name, size=entry["size"])
        if (came := hashlib.sha256(data[name]).hexdigest()) != entry["sha256"]:
            raise UserError(
                f"{path / name} is damaged: its SHA-256 is {came[:12]}..., {entry['sha256'][:12]}... was wanted"
            )
    return manifest, data


def _verifies(path: Path) -> bool:
    try:
        _verified(path)
    except UserError as error:
        log.warning("the checkpoint %s is damaged: %s", path, error)
        return False
    return True


def _parse_json(raw: bytes, where: Path) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where} holds a {type(value).__name__}; an object was wanted")
    return value


def _check_json(value: Any, where: str) -> None:
    """Only what comes back as it went: no integer keys, no tuples, no tensors. NaN and infinity do."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            assert isinstance(key, str), f"{where} has the key {key!r}, which JSON would make a string"
            _check_json(item, f"{where}/{key}")
    elif isinstance(value, list):
        for item in value:
            _check_json(item, where)
    else:
        assert value is None or type(value) in (bool, int, float, str), (
            f"{where} is a {type(value).__name__}, not JSON"
        )


def _entries(root: Path) -> Iterator[Path]:
    return root.iterdir() if root.is_dir() else iter(())


def _unfinished(step: int, kind: str) -> str:
    return f"step-{step}.{kind}-{os.getpid()}-{start_time(os.getpid()) or 0}"


def _latest(root: Path) -> int | None:
    try:
        match = STEP.fullmatch(read_regular(root / LATEST, most=64).decode(errors="replace").strip())
    except UserError:
        return None
    return int(match[1]) if match else None


def _free_text(root: Path) -> str:
    try:
        return f" and {shutil.disk_usage(root).free} are free"
    except OSError:
        return ""
