"""Save and load a training run's state as a directory that is either complete or absent.

``step-N/`` has a safetensors file for each group of tensors, ``state.json`` and, written last,
``manifest.json`` with the size and SHA-256 of each. It is written under a temporary name, synced and renamed
before ``latest`` names it. In place of the file a group may have a directory, which several processes wrote
with torch.distributed.checkpoint: a safetensors file for each of them, with its parts of the tensors.
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from polyhead.checkpoint import safetensors_io as safetensors
from polyhead.checkpoint.manifest import MANIFEST_FILE as MANIFEST
from polyhead.checkpoint.manifest import (
    FileEntry,
    Manifest,
    parse_object,
    read_file,
    read_manifest,
    verify_file,
)
from polyhead.checkpoint.safetensors_io import LazyTensors
from polyhead.core.atomic_io import (
    HashingWriter,
    fsync_path,
    is_process_alive,
    process_start_time,
    read_regular_file,
    remove,
    remove_quietly,
    replace_file,
)
from polyhead.core.errors import UserError


def steps_to_delete(
    steps: Collection[int], n_keep: int, protected_steps: Collection[int | None]
) -> list[int]:
    """The steps to delete, oldest first: all but the ``n_keep`` highest and the protected ones."""
    if n_keep < 1:
        raise UserError(f"keep ({n_keep}) must be at least 1: the newest checkpoint is always kept")
    retained = set(sorted(steps)[-n_keep:]) | set(protected_steps)
    return sorted(set(steps) - retained)


# errors of a disk or network file system that may be transient; a full disk is not
TRANSIENT_ERRNOS = {errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT}
STATE, LATEST = "state.json", "latest"
MAX_STATE_BYTES = 64_000_000
SPARE_BYTES = 1 << 16  # for directories, manifest and rounding, in addition to the data

_SUFFIX = ".safetensors"
_GROUP_NAME = re.compile(r"[a-z][a-z0-9_]*")
_GROUP_FILE = re.compile(rf"({_GROUP_NAME.pattern})(?:|/shard-\d+-model-\d+-of-\d+){re.escape(_SUFFIX)}")
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
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: dict[str, Any]
    extra: dict[str, Any]


class SavedState(NamedTuple):
    """The content of a checkpoint."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]  # by group (model, ema, optimizer_0, ...) and name
    state: dict[str, Any]  # counters and descriptions, as JSON


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
    text = encode_state(step, tensors, state, extra or {})
    needed = len(text) + sum(map(safetensors.count_file_bytes, tensors.values())) + SPARE_BYTES
    for attempt in (1, 2):
        draft = CheckpointDraft(Path(root), step, needed)
        try:
            with draft.undo_on_error():
                draft.create()
                for group, group_tensors in tensors.items():
                    with draft.open_group(group) as out:
                        safetensors.write_safetensors(out, group_tensors)
                return draft.commit(text, extra or {})
        except OSError as error:
            draft.check_retry(error, attempt)
    raise AssertionError("unreachable")


def encode_state(
    step: int, groups: Iterable[str], state: Mapping[str, Any], extra: Mapping[str, Any]
) -> bytes:
    """The content of ``state.json``; a SaveError if it is too long to be read again."""
    assert step >= 0, f"step {step} is negative"
    assert all(map(_GROUP_NAME.fullmatch, groups)), f"not all are valid group names: {list(groups)}"
    _check_json(state, "state")
    _check_json(extra, "extra")
    text = json.dumps(state).encode()
    if len(text) > MAX_STATE_BYTES:
        raise SaveError(
            f"cannot save step {step}: its state takes {len(text)} bytes; at most {MAX_STATE_BYTES} can be "
            "loaded"
        )
    return text


class CheckpointDraft:
    """A ``root/step-N`` that is being written, under a temporary name until ``commit``."""

    def __init__(self, root: Path, step: int, needed_bytes: int) -> None:
        self.root, self.step, self.needed_bytes = root, step, needed_bytes
        self.final = root / f"step-{step}"
        self.files: dict[str, FileEntry] = {}
        self._is_open = self._is_placed = False

    def create(self) -> Path:
        """Make the temporary directory and return it; a SaveError if the space on the disk is too small."""
        if not self.root.is_dir():
            self.root.mkdir(parents=True)
            fsync_path(self.root.parent)
        remove_unfinished(self.root)
        self.temporary = _unused_path(self.root, self.step, "tmp")
        self.old = _unused_path(self.root, self.step, "old")
        free = shutil.disk_usage(self.root).free
        if free < self.needed_bytes:
            raise SaveError(f"cannot save {self.final}: {self.needed_bytes} bytes are needed and {free} are "
                "free; earlier checkpoints are unchanged")  # fmt: skip
        self._is_open = True
        os.mkdir(self.temporary)
        return self.temporary

    @contextmanager
    def open_group(self, group: str) -> Iterator[HashingWriter]:
        """Context manager that opens the file of a group of tensors, and syncs it when it is written."""
        with self._open_file(f"{group}{_SUFFIX}") as out:
            yield out

    @contextmanager
    def _open_file(self, name: str) -> Iterator[HashingWriter]:
        with HashingWriter(self.temporary / name) as out:
            yield out
        self.files[name] = FileEntry(size=out.size, sha256=out.sha256)

    def commit(self, state: bytes, extra: Mapping[str, Any]) -> Path:
        """Write the state and the manifest, sync and rename the directory, and name it in ``latest``."""
        with self._open_file(STATE) as out:
            out.write(state)
        with HashingWriter(self.temporary / MANIFEST) as out:
            out.write(Manifest(step=self.step, files=self.files, extra=dict(extra)).to_bytes())
        fsync_path(self.temporary)
        if os.path.lexists(self.final):
            os.rename(self.final, self.old)
        os.rename(self.temporary, self.final)
        self._is_placed = True
        fsync_path(self.root)
        replace_file(self.root / LATEST, f"{self.final.name}\n".encode())
        self._is_open = False
        remove_quietly(self.old)  # a failure here is harmless; the next save retries
        return self.final

    @contextmanager
    def undo_on_error(self) -> Iterator[None]:
        """Context manager that removes the draft if its body fails."""
        try:
            yield
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Remove what was written, and restore a checkpoint that it has replaced."""
        if not self._is_open:
            return
        remove_quietly(self.final if self._is_placed else self.temporary)
        try:
            if self.old.exists() and not self.final.exists():
                os.rename(self.old, self.final)
        except OSError as error:
            log.warning(
                "could not restore %s (%s); the next save or load does it", self.final, error.strerror
            )

    def check_retry(self, error: OSError, attempt: int) -> None:
        """Warn of an error that may pass, if this is the first attempt; raise a SaveError for any other."""
        if attempt == 1 and error.errno in TRANSIENT_ERRNOS:
            log.warning("saving step %d failed (%s); retrying once", self.step, error.strerror)
            return
        raise SaveError(
            f"cannot save {self.final}: {error.strerror or error}; {self.needed_bytes} bytes are "
            f"needed{_format_free_space(self.root)}; earlier checkpoints are unchanged"
        ) from error


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Read a checkpoint and verify every byte; a UserError reports any damage. No code is executed."""
    path = Path(path)
    manifest = _check_manifest(path)
    groups: dict[str, dict[str, Tensor]] = {}
    state, part_files = {}, {}
    for name, entry in manifest.files.items():
        if "/" in name:
            part_files[name] = entry
            continue
        data = read_file(path / name, entry)
        if name == STATE:
            state = parse_object(data, path / name)
        else:
            groups[name.removesuffix(_SUFFIX)] = safetensors.read_safetensors(data, path / name)
    parts = {group: dict(tensors) for group, tensors in _open_groups(path, part_files).items()}
    return Checkpoint(manifest.step, path, groups | parts, state, manifest.extra)


def open_lazy_checkpoint(path: Path) -> Checkpoint:
    """As ``read_checkpoint``, but each tensor is read when it is looked up; all are verified before."""
    manifest = _check_manifest(path)
    state = parse_object(read_file(path / STATE, manifest.files[STATE]), path / STATE)
    tensor_files = {name: entry for name, entry in manifest.files.items() if name != STATE}
    return Checkpoint(manifest.step, path, _open_groups(path, tensor_files), state, manifest.extra)


def _open_groups(path: Path, files: Mapping[str, FileEntry]) -> dict[str, LazyTensors]:
    """The tensors of each group of these files, which are verified."""
    groups: dict[str, list[Path]] = {}
    for name, entry in files.items():
        verify_file(path / name, entry)
        match = _GROUP_FILE.fullmatch(name)
        assert match
        groups.setdefault(match[1], []).append(path / name)
    return {group: LazyTensors(paths) for group, paths in groups.items()}


def read_state(path: Path) -> dict[str, Any]:
    """Read the state of a checkpoint without its tensors; verifies the manifest and the state."""
    return parse_object(read_file(path / STATE, _check_manifest(path).files[STATE]), path / STATE)


def read_newest_checkpoint(
    root: Path | str, before_step: float = math.inf, read: Callable[[Path], Checkpoint] = read_checkpoint
) -> Checkpoint | None:
    """The valid checkpoint of the highest step; damaged ones are skipped with a warning.

    Steps from ``before_step`` on do not count. Also removes leftovers of a crash, so only the
    process that owns the run may call it.
    """
    root = Path(root)
    remove_unfinished(root)
    for step in sorted((step for step in list_steps(root) if step < before_step), reverse=True):
        try:
            return read(root / f"step-{step}")
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


def _check_manifest(path: Path) -> Manifest:
    manifest = read_manifest(path)
    unknown = [name for name in manifest.files if name != STATE and not _GROUP_FILE.fullmatch(name)]
    if unknown or STATE not in manifest.files:
        raise UserError(f"{path} lists {sorted(manifest.files)}; expected {STATE} and groups of tensors")
    match = _STEP_NAME.fullmatch(path.name)
    if match and int(match[1]) != manifest.step:
        raise UserError(f"{path} holds step {manifest.step}, not {match[1]}: it was renamed")
    return manifest


def _is_valid(path: Path) -> bool:
    try:
        for name, entry in _check_manifest(path).files.items():
            verify_file(path / name, entry)
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
