"""A training run's state as a directory that is there whole or not at all.

``step-N/`` holds a safetensors file for each group of tensors, ``state.json`` and, written last,
``manifest.json`` with the size and SHA-256 of each. It is written under another name, synced, renamed,
and only then named in ``latest``.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from polyhead.alive import alive, start_time
from polyhead.errors import UserError
from polyhead.files import Writer, read_regular, remove, remove_quietly, replace_file, sync
from polyhead.train import tensors as safetensors
from polyhead.train.manifest import NAME as MANIFEST
from polyhead.train.manifest import FileEntry, Manifest, parse_object, read_file, read_manifest
from polyhead.train.retention import surplus

# What may pass by itself: a hiccup of a disk or of a network file system. A full disk does not.
TRANSIENT = {errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT}
STATE, LATEST = "state.json", "latest"
MAX_STATE = 64_000_000  # bytes
SPARE = 1 << 16  # bytes of directories, manifest and rounding that a save needs besides its data

SUFFIX = ".safetensors"
GROUP = re.compile(r"[a-z][a-z0-9_]*")
STEP = re.compile(r"step-(0|[1-9][0-9]*)")
# step-N.tmp-<pid>-<start of the process> is being written or deleted; .old- is the step-N being replaced
UNFINISHED = re.compile(r"(step-(?:0|[1-9][0-9]*))\.(tmp|old)-([0-9]+)(?:-([0-9]+))?")

log = logging.getLogger(__name__)


class SaveError(UserError):
    """A save that failed and was undone; what had been saved before is as it was."""


class Checkpoint(NamedTuple):
    """What was saved, verified: ``tensors[group][name]`` on the CPU, ``state``, the manifest's ``extra``."""

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

    When this returns, the values are on the disk as they were at the call. After an error that may pass it is
    tried once more; else SaveError is raised, the attempt is removed, earlier checkpoints are as they were.
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
            raise SaveError(
                f"cannot save {root / f'step-{step}'}: {error.strerror or error}; {needed} bytes are needed"
                f"{_free_text(root)}; earlier checkpoints are as they were"
            ) from error
    raise AssertionError("unreachable")


def load(path: Path | str) -> Checkpoint:
    """Read a checkpoint and verify each byte of it; UserError says what is wrong. Nothing is executed."""
    path = Path(path)
    manifest = _manifest(path)
    groups, state = {}, {}
    for name, entry in manifest.files.items():
        data = read_file(path / name, entry)
        if name == STATE:
            state = parse_object(data, path / name)
        else:
            groups[name.removesuffix(SUFFIX)] = safetensors.read(data, path / name)
    return Checkpoint(manifest.step, path, groups, state, manifest.extra)


def newest(root: Path | str) -> Checkpoint | None:
    """The checkpoint of the highest step that verifies; a damaged one that is skipped is named in a warning.

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


def prune(root: Path | str, keep: int, best: Collection[int] = ()) -> None:
    """Delete all but the ``keep`` newest, the best ones, the one ``latest`` names and the newest that verifies.

    What cannot be deleted is named in a warning: it is no reason to stop a run.
    """
    root = Path(root)
    there = [step for step in steps(root) if not (root / f"step-{step}").is_symlink()]
    if not surplus(there, keep, best):
        return
    valid = next((step for step in reversed(there) if _verifies(root / f"step-{step}")), None)
    for step in surplus(there, keep, {*best, valid, _latest(root)}):
        doomed = root / _unfinished(step, "tmp")
        try:
            remove(doomed)
            # first another name, so that a crash cannot leave half a checkpoint under the right one
            os.rename(root / f"step-{step}", doomed)
            remove(doomed)
        except OSError as error:
            log.warning("could not delete the old checkpoint %s: %s", doomed, error.strerror)


def clean(root: Path) -> None:
    """Remove what dead processes left unfinished, and put back a checkpoint whose replacement never came."""
    for entry in list(_entries(root)):
        match = UNFINISHED.fullmatch(entry.name)
        if match is None:
            continue
        final, pid = root / match[1], int(match[3])
        lost = match[2] == "old" and not os.path.lexists(final)
        if pid != os.getpid() and alive(pid, int(match[4] or 0)):  # it may be at work; this one is not
            continue
        if lost:
            os.rename(entry, final)
            sync(root)
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
        sync(root.parent)
    clean(root)
    remove(temporary)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise SaveError(f"cannot save {final}: {needed} bytes are needed and {free} are free; "
                        "earlier checkpoints are as they were")  # fmt: skip
    placed = False
    try:
        os.mkdir(temporary)
        _write(temporary, step, tensors, state, extra)
        if os.path.lexists(final):
            remove(old)
            os.rename(final, old)
        os.rename(temporary, final)
        placed = True
        sync(root)
        replace_file(root / LATEST, f"{final.name}\n".encode())
    except BaseException:
        _undo(final, final if placed else temporary, old)
        raise
    remove_quietly(old)  # all is saved; the next save tries again
    return final


def _write(
    directory: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: bytes,
    extra: Mapping[str, Any],
) -> None:
    """All files, each synced, the manifest last, then the directory itself."""
    files: dict[str, FileEntry] = {}
    for group, named in tensors.items():
        with Writer(directory / f"{group}{SUFFIX}") as out:
            safetensors.write(out, named)
        files[out.path.name] = FileEntry(size=out.size, sha256=out.sha256)
    with Writer(directory / STATE) as out:
        out.write(state)
    files[STATE] = FileEntry(size=out.size, sha256=out.sha256)
    with Writer(directory / MANIFEST) as out:
        out.write(Manifest(step=step, files=files, extra=dict(extra)).text())
    sync(directory)


def _manifest(path: Path) -> Manifest:
    manifest = read_manifest(path)
    odd = [
        name for name in manifest.files if name != STATE and not GROUP.fullmatch(name.removesuffix(SUFFIX))
    ]
    if odd or STATE not in manifest.files:
        raise UserError(f"{path} lists {sorted(manifest.files)}; {STATE} and groups of tensors were wanted")
    named = STEP.fullmatch(path.name)
    if named and int(named[1]) != manifest.step:
        raise UserError(f"{path} holds step {manifest.step}, not {named[1]}: it was renamed")
    return manifest


def _undo(final: Path, attempt: Path, old: Path) -> None:
    remove_quietly(attempt)
    try:
        if old.exists() and not final.exists():
            os.rename(old, final)
    except OSError as error:
        log.warning("could not put %s back (%s); the next save or load does", final, error.strerror)


def _verifies(path: Path) -> bool:
    try:
        for name, entry in _manifest(path).files.items():
            read_file(path / name, entry)
    except UserError as error:
        log.warning("the checkpoint %s is damaged: %s", path, error)
        return False
    return True


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
