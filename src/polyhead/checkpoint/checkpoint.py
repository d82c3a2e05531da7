"""Save and load a training run's state as a directory that is either complete or absent.

``step-N/`` has a safetensors file for each group of tensors, ``state.json`` and, written last,
``manifest.json`` with the size and SHA-256 of each. It is written under a temporary name, synced and renamed
before ``latest`` names it.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from polyhead.checkpoint import safetensors_io as safetensors
from polyhead.checkpoint.checkpoint_rotation import steps_to_delete
from polyhead.checkpoint.manifest import MANIFEST_FILE as MANIFEST
from polyhead.checkpoint.manifest import FileEntry, Manifest, parse_object, read_file, read_manifest
from polyhead.core.atomic_io import (
    HashingWriter,
    fsync_path,
    read_regular_file,
    remove,
    remove_quietly,
    replace_file,
)
from polyhead.core.errors import UserError
from polyhead.core.process_liveness import is_process_alive, process_start_time

# errors of a disk or network file system that may be transient; a full disk is not
TRANSIENT_ERRNOS = {errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT}
STATE, LATEST = "state.json", "latest"
MAX_STATE_BYTES = 64_000_000
SPARE_BYTES = 1 << 16  # for directories, manifest and rounding, in addition to the data

_SUFFIX = ".safetensors"
_GROUP_NAME = re.compile(r"[a-z][a-z0-9_]*")
_STEP_NAME = re.compile(r"step-(0|[1-9][0-9]*)")
# step-N.tmp-<pid>-<start of the process> is being written or deleted; .old- is the step-N being replaced;
# -<number> follows if that name is taken by a leftover that cannot be deleted
_UNFINISHED_NAME = re.compile(r"(step-(?:0|[1-9][0-9]*))\.(tmp|old)-([0-9]+)(?:-([0-9]+)(?:-[0-9]+)?)?")

log = logging.getLogger(__name__)


class SaveError(UserError):
    """A save that failed and was rolled back; earlier checkpoints are unchanged."""


class Checkpoint(NamedTuple):
    """A verified checkpoint: ``tensors[group][name]`` on the CPU, ``state``, the manifest's ``extra``."""

    step: int
    path: Path
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    extra: dict[str, Any]


def save_checkpoint(
    root: Path | str,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``root/step-N`` durably, replacing an existing one, and name it in ``root/latest``.

    When this returns, the data are on disk. A transient error is retried once; any other raises SaveError,
    the attempt is removed and earlier checkpoints are unchanged.
    """
    root = Path(root)
    assert step >= 0, f"step {step} is negative"
    assert all(_GROUP_NAME.fullmatch(group) for group in tensors), (
        f"not all are valid group names: {list(tensors)}"
    )
    _check_json(state, "state")
    _check_json(extra or {}, "extra")
    text = json.dumps(state).encode()
    if len(text) > MAX_STATE_BYTES:
        raise SaveError(
            f"cannot save step {step}: its state takes {len(text)} bytes; at most {MAX_STATE_BYTES} can be "
            "loaded"
        )
    needed = len(text) + sum(map(safetensors.count_file_bytes, tensors.values())) + SPARE_BYTES
    for attempt in (1, 2):
        try:
            return _save_once(root, step, tensors, text, extra or {}, needed)
        except OSError as error:
            if attempt == 1 and error.errno in TRANSIENT_ERRNOS:
                log.warning("saving step %d failed (%s); retrying once", step, error.strerror)
                continue
            raise SaveError(
                f"cannot save {root / f'step-{step}'}: {error.strerror or error}; {needed} bytes are "
                f"needed{_format_free_space(root)}; earlier checkpoints are unchanged"
            ) from error
    raise AssertionError("unreachable")


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Read a checkpoint and verify every byte; a UserError reports any damage. No code is executed."""
    path = Path(path)
    manifest = _check_manifest(path)
    groups, state = {}, {}
    for name, entry in manifest.files.items():
        data = read_file(path / name, entry)
        if name == STATE:
            state = parse_object(data, path / name)
        else:
            groups[name.removesuffix(_SUFFIX)] = safetensors.read_safetensors(data, path / name)
    return Checkpoint(manifest.step, path, groups, state, manifest.extra)


def read_state(path: Path) -> dict[str, Any]:
    """Read the state of a checkpoint without its tensors; verifies the manifest and the state."""
    return parse_object(read_file(path / STATE, _check_manifest(path).files[STATE]), path / STATE)


def read_newest_checkpoint(root: Path | str, before_step: float = math.inf) -> Checkpoint | None:
    """The valid checkpoint of the highest step; damaged ones are skipped with a warning.

    Steps from ``before_step`` on do not count. Also removes leftovers of a crash, so only the
    process that owns the run may call it.
    """
    root = Path(root)
    remove_unfinished(root)
    for step in sorted((step for step in list_steps(root) if step < before_step), reverse=True):
        try:
            return read_checkpoint(root / f"step-{step}")
        except UserError as error:
            log.warning("skipping the damaged checkpoint %s: %s", root / f"step-{step}", error)
    return None


def list_steps(root: Path | str) -> list[int]:
    """The steps with a checkpoint directory, valid or not, in ascending order."""
    return sorted(
        int(match[1]) for entry in _list_entries(Path(root)) if (match := _STEP_NAME.fullmatch(entry.name))
    )


def prune_steps(root: Path | str, n_keep: int, best_steps: Collection[int] = ()) -> None:
    """Delete all but the ``n_keep`` newest, the best, the one named in ``latest`` and the newest valid one.

    A directory that cannot be deleted is reported in a warning; the run continues.
    """
    root = Path(root)
    steps = [step for step in list_steps(root) if not (root / f"step-{step}").is_symlink()]
    if not steps_to_delete(steps, n_keep, best_steps):
        return
    newest_valid = next((step for step in reversed(steps) if _is_valid(root / f"step-{step}")), None)
    delete_steps(root, steps_to_delete(steps, n_keep, {*best_steps, newest_valid, _read_latest(root)}))


def delete_steps(root: Path | str, steps: Iterable[int]) -> None:
    """Delete checkpoints; one that cannot be deleted is reported in a warning."""
    for step in steps:
        try:
            delete_step(root, step)
        except OSError as error:
            _warn_undeleted(Path(root) / f"step-{step}", error)


def delete_step(root: Path | str, step: int) -> None:
    """Delete ``root/step-N``; an OSError if it cannot be renamed, and hence stays a checkpoint.

    Files that cannot be deleted are left under a temporary name and reported in a warning; each save retries.
    """
    # rename first, so that a crash cannot leave half a checkpoint under its final name
    doomed = _unused_path(Path(root), step, "tmp")
    os.rename(Path(root) / f"step-{step}", doomed)
    _remove_or_warn(doomed)


def remove_unfinished(root: Path) -> None:
    """Remove leftovers of dead processes and restore a checkpoint whose replacement was not completed.

    A leftover that cannot be deleted is reported in a warning.
    """
    for entry in list(_list_entries(root)):
        match = _UNFINISHED_NAME.fullmatch(entry.name)
        if match is None:
            continue
        final, pid = root / match[1], int(match[3])
        lost = match[2] == "old" and not os.path.lexists(final)
        # another live process may still be writing; this one is not
        if pid != os.getpid() and is_process_alive(pid, int(match[4] or 0)):
            continue
        if lost:
            os.rename(entry, final)
            fsync_path(root)
        else:
            _remove_or_warn(entry)


def _save_once(
    root: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: bytes,
    extra: Mapping[str, Any],
    needed_bytes: int,
) -> Path:
    final = root / f"step-{step}"
    if not root.is_dir():
        root.mkdir(parents=True)
        fsync_path(root.parent)
    remove_unfinished(root)
    temporary, old = _unused_path(root, step, "tmp"), _unused_path(root, step, "old")
    free = shutil.disk_usage(root).free
    if free < needed_bytes:
        raise SaveError(f"cannot save {final}: {needed_bytes} bytes are needed and {free} are free; earlier "
                "checkpoints are unchanged")  # fmt: skip
    placed = False
    try:
        os.mkdir(temporary)
        _write_files(temporary, step, tensors, state, extra)
        if os.path.lexists(final):
            os.rename(final, old)
        os.rename(temporary, final)
        placed = True
        fsync_path(root)
        replace_file(root / LATEST, f"{final.name}\n".encode())
    except BaseException:
        _undo_save(final, final if placed else temporary, old)
        raise
    remove_quietly(old)  # a failure here is harmless; the next save retries
    return final


def _write_files(
    directory: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: bytes,
    extra: Mapping[str, Any],
) -> None:
    """Write all files, each synced, the manifest last, then sync the directory."""
    files: dict[str, FileEntry] = {}
    for group, group_tensors in tensors.items():
        with HashingWriter(directory / f"{group}{_SUFFIX}") as out:
            safetensors.write_safetensors(out, group_tensors)
        files[out.path.name] = FileEntry(size=out.size, sha256=out.sha256)
    with HashingWriter(directory / STATE) as out:
        out.write(state)
    files[STATE] = FileEntry(size=out.size, sha256=out.sha256)
    with HashingWriter(directory / MANIFEST) as out:
        out.write(Manifest(step=step, files=files, extra=dict(extra)).to_bytes())
    fsync_path(directory)


def _check_manifest(path: Path) -> Manifest:
    manifest = read_manifest(path)
    unknown = [
        name
        for name in manifest.files
        if name != STATE and not _GROUP_NAME.fullmatch(name.removesuffix(_SUFFIX))
    ]
    if unknown or STATE not in manifest.files:
        raise UserError(f"{path} lists {sorted(manifest.files)}; expected {STATE} and groups of tensors")
    match = _STEP_NAME.fullmatch(path.name)
    if match and int(match[1]) != manifest.step:
        raise UserError(f"{path} holds step {manifest.step}, not {match[1]}: it was renamed")
    return manifest


def _undo_save(final_dir: Path, attempt_dir: Path, old_dir: Path) -> None:
    remove_quietly(attempt_dir)
    try:
        if old_dir.exists() and not final_dir.exists():
            os.rename(old_dir, final_dir)
    except OSError as error:
        log.warning("could not restore %s (%s); the next save or load does it", final_dir, error.strerror)


def _is_valid(path: Path) -> bool:
    try:
        for name, entry in _check_manifest(path).files.items():
            read_file(path / name, entry)
    except UserError as error:
        log.warning("the checkpoint %s is damaged: %s", path, error)
        return False
    return True


def _check_json(value: Any, json_path: str) -> None:
    """Assert that JSON preserves a value: no integer keys, tuples or tensors. NaN and infinity are valid."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            assert isinstance(key, str), (
                f"{json_path} has the key {key!r}, which JSON would convert to a string"
            )
            _check_json(item, f"{json_path}/{key}")
    elif isinstance(value, list):
        for item in value:
            _check_json(item, json_path)
    else:
        assert value is None or type(value) in (bool, int, float, str), (
            f"{json_path} is a {type(value).__name__}, not JSON"
        )


def _list_entries(root: Path) -> Iterator[Path]:
    """The entries of a directory, none if it does not exist; anything else in its place is a UserError."""
    if root.is_dir():
        return root.iterdir()
    if os.path.lexists(root):
        raise UserError(f"{root} is not a directory")
    return iter(())


def _unused_path(root: Path, step: int, kind: str) -> Path:
    """A name that does not exist yet for a checkpoint that is being written, deleted or replaced."""
    name = f"step-{step}.{kind}-{os.getpid()}-{process_start_time(os.getpid()) or 0}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(1)))
    return next(root / name for name in names if not os.path.lexists(root / name))


def _remove_or_warn(path: Path) -> None:
    try:
        remove(path)
    except OSError as error:
        _warn_undeleted(path, error)


def _warn_undeleted(path: Path, error: OSError) -> None:
    log.warning("could not delete the old checkpoint %s: %s", path, error.strerror)


def _read_latest(root: Path) -> int | None:
    try:
        match = _STEP_NAME.fullmatch(
            read_regular_file(root / LATEST, max_bytes=64).decode(errors="replace").strip()
        )
    except UserError:
        return None
    return int(match[1]) if match else None


def _format_free_space(root: Path) -> str:
    try:
        return f" and {shutil.disk_usage(root).free} are free"
    except OSError:
        return ""
