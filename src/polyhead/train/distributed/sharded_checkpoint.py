"""Save a training whose tensors are sharded over ranks: full tensors by rank 0, or shards by every rank.

Whole: each full tensor is gathered, one at a time, and rank 0 writes it into the file that one process would
write. Sharded: every rank writes its parts with torch.distributed.checkpoint, into a directory that all ranks
see. The checkpoint is complete or absent in both, and rank 0 alone creates, commits or removes it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import SavePlan

from polyhead.checkpoint.checkpoint import SPARE_BYTES, CheckpointDraft, SavedState, encode_state
from polyhead.checkpoint.manifest import FileEntry, hash_file
from polyhead.checkpoint.safetensors_io import (
    TensorSpec,
    describe_tensors,
    format_header,
    sort_names,
    write_stream,
)
from polyhead.core.atomic_io import fsync_path
from polyhead.core.errors import UserError
from polyhead.train.distributed.local_tensor import StageTensors, full_tensor
from polyhead.train.distributed.process_group import ProcessGroup

# written by rank 0 before the others ask whether it is alive: less than any disk writes within train.timeout
SYNC_BYTES = 64 * 2**20
MAX_PART_BYTES = 2**30  # of parts in a file, which torch has in memory twice while it is written
VISIBLE_SECONDS = 10.0  # in which a file of another machine appears in a shared directory

T = TypeVar("T")
Groups = Mapping[str, Mapping[str, Tensor]]


def save_sharded(
    root: Path, saved_state: SavedState, extra: Mapping[str, Any], ranks: ProcessGroup, is_sharded: bool
) -> None:
    """Write ``root/step-N`` as ``save_checkpoint`` does; all ranks call it.

    A transient error on any rank is tried once more, by all of them; any other is a SaveError on rank 0.
    """
    state = encode_state(saved_state.step, saved_state.tensors, saved_state.state, extra)
    specs = [describe_tensors(tensors) for tensors in saved_state.tensors.values()]
    data_bytes = sum(
        len(format_header(group)) + sum(spec.nbytes for spec in group.values()) for group in specs
    )
    needed_bytes = len(state) + data_bytes + SPARE_BYTES
    for attempt in (1, 2):
        draft = CheckpointDraft(root, saved_state.step, needed_bytes)
        with draft.undo_on_error():
            save = _ShardedSave(draft, saved_state.tensors, ranks)
            save.write(is_sharded)
            if ranks.on_rank0(partial(save.finish, state, extra, attempt)):
                return


class _ShardedSave:
    """One attempt to write a checkpoint; rank 0 collects the errors, so that all ranks do the same calls."""

    def __init__(self, draft: CheckpointDraft, groups: Groups, ranks: ProcessGroup) -> None:
        self.draft, self.groups, self.ranks = draft, groups, ranks
        self.errors: list[OSError] = []

    def write(self, is_sharded: bool) -> None:
        """Write the tensors under a temporary name."""
        name = self.ranks.on_rank0(lambda: self._catch(lambda: self.draft.create().name))
        if name is None:
            return
        if is_sharded:
            self._write_parts(self.draft.root / name)
            return
        for group in self.groups:
            self._write_full_tensors(group)

    def finish(self, state: bytes, extra: Mapping[str, Any], attempt: int) -> bool:
        """Commit the draft; after an error that may pass remove it and return False, after others raise."""
        if not self.errors and self._catch(lambda: self.draft.commit(state, extra)) is not None:
            return True
        self.draft.undo()
        self.draft.check_retry(self.errors[0], attempt)
        return False

    def _catch(self, work: Callable[[], T]) -> T | None:
        """The result of ``work``; None after an OSError, which is added to the errors."""
        try:
            return work()
        except OSError as error:
            self.errors.append(error)
            return None

    def _write_full_tensors(self, group: str) -> None:
        """Write a group from full tensors, of which there is one at a time."""
        tensors = self.groups[group]
        stream = _iter_full_tensors(tensors, self.ranks)
        if not self.ranks.rank and not self.errors:
            self._catch(partial(self._write_file, group, describe_tensors(tensors), stream))
        # the others drop the tensors; so does rank 0 after an error, as all must join the collectives
        deque(stream, maxlen=0)
        self.ranks.on_rank0(lambda: None)  # the others wait for the disk of rank 0 as long as it is alive

    def _write_parts(self, directory: Path) -> None:
        """Write a directory for each group, in which each rank has a file with its parts.

        These are the calls of ``torch.distributed.checkpoint.save``, whose own last collective would limit
        the time of writing to ``train.timeout``.
        """
        writers = [
            _PartsWriter(directory / group, tensors, self.ranks) for group, tensors in self.groups.items()
        ]
        all_plans: list[Any] = [None] * self.ranks.world_size
        with self.ranks.translate_errors():
            dist.all_gather_object(all_plans, [writer.local_plan for writer in writers])

        def write_files(rank: int) -> dict[str, Any]:
            if not _appears(directory):
                return {"entries": {}, "errors": [], "unseen": str(directory)}
            paths: list[Path] = []
            for i, writer in enumerate(writers):
                plans = [plans[i] for plans in all_plans]
                paths += self._catch(partial(writer.write, plans, rank)) or []
            entries = {path.relative_to(directory).as_posix(): hash_file(path).model_dump() for path in paths}
            errors = [[error.errno, error.strerror or str(error)] for error in self.errors]
            return {"entries": entries, "errors": errors, "unseen": None}

        results = self.ranks.map(write_files, range(self.ranks.world_size))
        if not self.ranks.rank:
            self._check_files(directory, list(results))

    def _check_files(self, directory: Path, results: list[dict[str, Any]]) -> None:
        """Note the files and errors of all ranks, and check that rank 0 sees the files."""
        self.errors = [
            OSError(code, reason if rank == 0 else f"{reason} on rank {rank}")
            for rank, result in enumerate(results)
            for code, reason in result["errors"]
        ]
        if self.errors:
            return
        for rank, result in enumerate(results):
            if result["unseen"]:
                raise _not_shared(rank, result["unseen"], 0)
            for name, entry in result["entries"].items():
                if not _appears(directory / name, entry["size"]):
                    raise _not_shared(0, directory / name, rank)
                self.draft.files[name] = FileEntry(**entry)
        for group in self.groups:
            if (directory / group).is_dir():
                self._catch(partial(fsync_path, directory / group))
            else:  # no rank has any part, as of an optimizer before its first step
                self._catch(partial(self._write_file, group, {}, ()))

    def _write_file(self, group: str, specs: Mapping[str, TensorSpec], tensors: Iterable[Tensor]) -> None:
        """Write the file of a group of full tensors."""
        with self.draft.open_group(group) as out:
            write_stream(out, specs, tensors)


def _iter_full_tensors(tensors: Mapping[str, Tensor], ranks: ProcessGroup) -> Iterator[Tensor]:
    """Each full tensor, in the order of a file; all ranks take part."""
    specs, n_bytes = describe_tensors(tensors), 0
    for name in sort_names(specs):
        if n_bytes > SYNC_BYTES:
            ranks.on_rank0(lambda: None)
            n_bytes = 0
        n_bytes += specs[name].nbytes
        with ranks.translate_errors():
            full = full_tensor(tensors[name].detach())
        yield full
        del full  # before the next one is made


class _PartsWriter:
    """Writes the parts of a group of tensors on one rank."""

    def __init__(self, directory: Path, tensors: Mapping[str, Tensor], ranks: ProcessGroup) -> None:
        self.directory, self.planner = directory, DefaultSavePlanner()
        numbers = _number_files(describe_tensors(tensors), MAX_PART_BYTES * ranks.world_size)
        self.writer = HuggingFaceStorageWriter(str(directory), numbers, save_distributed=True)
        own_tensors = tensors.own_tensors if isinstance(tensors, StageTensors) else tensors
        self.planner.set_up_planner(dict(own_tensors), is_coordinator=not ranks.rank)
        self.writer.set_up_storage_writer(is_coordinator=not ranks.rank)
        self.local_plan: SavePlan = self.planner.create_local_plan()

    def write(self, plans: list[SavePlan], rank: int) -> list[Path]:
        """Write the parts of one rank by the plans of all; returns the files."""
        global_plan, _ = self.planner.create_global_plan(plans)
        plan = self.planner.finish_plan(self.writer.prepare_global_plan(global_plan)[rank])
        if not plan.items:
            return []
        self.directory.mkdir(exist_ok=True)
        results = self.writer.write_data(plan, self.planner).wait()
        return sorted({self.directory / result.storage_data.relative_path for result in results})


def _number_files(specs: Mapping[str, TensorSpec], max_bytes: int) -> dict[str, int] | None:
    """The file of each tensor, numbered from 1, so that no file has more, except of one tensor."""
    numbers: dict[str, int] = {}
    number, n_bytes = 1, 0
    for name, spec in specs.items():
        if n_bytes and n_bytes + spec.nbytes > max_bytes:
            number, n_bytes = number + 1, 0
        n_bytes += spec.nbytes
        numbers[name] = number
    return numbers or None


def check_shared_directory(directory: Path, ranks: ProcessGroup) -> None:
    """Raise a UserError if not all ranks see the same directory, as each of them is to write there."""
    probe = directory / ranks.on_rank0(lambda: f".shared-{os.getpid()}")
    ranks.on_rank0(probe.touch)
    is_seen = ranks.map(lambda _: _appears(directory / probe.name), range(ranks.world_size))

    def check_ranks() -> None:
        probe.unlink(missing_ok=True)
        for rank, rank_sees in enumerate(is_seen):
            if not rank_sees:
                raise _not_shared(rank, probe, 0)

    ranks.on_rank0(check_ranks)


def _appears(path: Path, size: int | None = None) -> bool:
    """Whether a path that another rank has made is seen here, a file with its size; waits for it."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not (path.exists() and size in (None, path.stat().st_size)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _not_shared(rank: int, path: Path | str, writer: int) -> UserError:
    return UserError(
        f"train.parallel.checkpoint=sharded: rank {rank} does not see {path}, which rank {writer} has "
        "written; out must be in a directory that all machines share, or use checkpoint=whole"
    )
