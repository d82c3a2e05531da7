"""Process group of a training on torch.distributed, in which every wait has a timeout."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from polyhead.config.config_sections import ParallelConfig
from polyhead.core.errors import UserError
from polyhead.train.distributed.context_parallel import ContextGather
from polyhead.train.distributed.kv_store import ANSWER_TIMEOUT, HEARTBEAT_INTERVAL, Heartbeat, KeyValueStore
from polyhead.train.distributed.launch import LAUNCHED_ENV, LISTENING_ENV, count_processes
from polyhead.train.distributed.local_tensor import get_local, is_dtensor
from polyhead.train.distributed.mesh import MeshShape, RankPlace, resolve_mesh_shape
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup, limit_threads
from polyhead.train.distributed.replicate_model import replicate_weights
from polyhead.train.distributed.sync_statistics import SyncStatistics
from polyhead.train.loss_module import LossModule, TrainingTask

T = TypeVar("T")
# seconds that ranks wait for all ranks to start: imports and machines differ more than steps (train.timeout)
JOIN_TIMEOUT = 300.0
POLL_INTERVAL = 0.02  # seconds between two requests to the store
_TRANSPORT_ERROR = re.compile("gloo|nccl|connection|socket|broken pipe|timed out|timeout", re.IGNORECASE)


class PeerLostError(RuntimeError):
    """Another rank has died or does not answer. Without a message if another process reports the reason."""


class TorchProcessGroup(ProcessGroup):
    """One of several processes. Each wait ends with an answer, or ``PeerLostError`` after ``timeout``
    seconds.

    Ranks wait without a limit for a rank that works longer, as long as its heartbeat continues.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout: float) -> None:
        self.rank, self.world_size, self.timeout = rank, world_size, timeout
        self.kv_store, self.heartbeat = KeyValueStore(store), Heartbeat(store, rank)
        self.relaunch_options: tuple[str, ...] = (
            ("--processes", str(world_size)) if LAUNCHED_ENV in os.environ else ()
        )
        self.n_broadcasts = self.n_turns = self.n_rounds = 0
        self.n_threads = torch.get_num_threads()
        self.statistics: SyncStatistics | None = None
        self.is_alone = False  # inside work of rank 0 alone
        # ranks that hold the same weights and sum their gradients: None means all
        self.reduce_group: dist.ProcessGroup | None = None
        self.side_group: dist.ProcessGroup | None = None
        self.place = RankPlace(MeshShape(replicate=world_size), rank)
        self.mesh: DeviceMesh | None = None
        self.is_leader = os.environ.get("LOCAL_RANK", "0") == "0"
        self.kv_store.write(f"here/{rank}", json.dumps([self.is_leader, find_backends()]))
        keys = [f"here/{r}" for r in range(world_size)]
        self._wait_for_keys(keys, (), deadline=time.monotonic() + JOIN_TIMEOUT)
        announcements = [json.loads(self.kv_store.read(key)) for key in keys]
        self.leader_ranks = {r for r, (is_leader, _) in enumerate(announcements) if is_leader}
        # the backends that all ranks have: the shortest list is part of every other
        backend = min((backends for _, backends in announcements), key=len)
        with self._translate_errors(timeout):
            max_wait = timedelta(seconds=timeout)
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=max_wait)

    def use_threads(self, n_threads: int | None) -> None:
        self.n_threads = n_threads or torch.get_num_threads()
        if n_threads or "OMP_NUM_THREADS" not in os.environ:  # OMP_NUM_THREADS is already per process
            torch.set_num_threads(max(1, self.n_threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))

    def form_mesh(self, parallel: ParallelConfig, device_type: str) -> None:
        shape = resolve_mesh_shape(parallel, self.world_size)
        self.place = RankPlace(shape, self.rank)
        if not (shape.partitions_model or shape.partitions_rows):
            return
        with self._translate_errors(self.timeout):
            self.mesh = init_device_mesh(device_type, shape, mesh_dim_names=shape._fields)
            self.reduce_group = self._new_reduce_group()
            for group in list(dist.distributed_c10d._world.pg_map):
                dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.timeout), group)

    def shard(self, task: TrainingTask, rows: Any) -> list[Any]:
        return task.shard(rows, self.place.data_size)[self.place.data_rank :][:1]

    def all_reduce(self, *numbers: float) -> list[float]:
        sums = torch.tensor(numbers, dtype=torch.float64)
        self._start_all_reduce(sums)()
        result: list[float] = sums.tolist()
        return result

    def sum_counted(self, *numbers: float) -> list[float]:
        return self.all_reduce(*(number if self.place.counts else 0.0 for number in numbers))

    @contextmanager
    def share_batch(self, model: nn.Module) -> Iterator[None]:
        if self.statistics is None or self.statistics.model is not model:
            self.statistics = SyncStatistics(model, self._start_side_all_reduce)
        with ExitStack() as stack:
            stack.enter_context(self.statistics.apply())
            if self.mesh is not None and self.place.shape.context > 1:
                stack.enter_context(ContextGather(model, self.mesh.get_group("context")).apply())
            yield

    def replicate(self, root: LossModule) -> nn.Module:
        return replicate_weights(root, self.reduce_group)

    def sum_gradients(self, model: nn.Module) -> None:
        if self.place.reduce_size == 1:
            return
        trainable = [p for p in model.parameters() if p.requires_grad]
        n_ranks_with_grad = torch.tensor([p.grad is not None for p in trainable], dtype=torch.int32)
        self._start_all_reduce(n_ranks_with_grad, self.reduce_group)()
        waits = []
        for p, n_ranks in zip(trainable, n_ranks_with_grad.tolist(), strict=True):
            if n_ranks:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                waits.append(self._start_all_reduce(get_local(p.grad), self.reduce_group))
        for wait in waits:
            wait()

    def on_rank0(self, work: Callable[[], T]) -> T:
        self.n_broadcasts += 1
        key = f"broadcast/{self.n_broadcasts}"
        if self.rank:
            self._wait_for_keys([key], [0])
        else:
            self.is_alone = True
            try:
                with limit_threads(self.n_threads):  # also the threads of the other ranks, which wait
                    text = json.dumps(work())
            finally:
                self.is_alone = False
            with self._translate_errors(ANSWER_TIMEOUT):
                self.kv_store.write(key, text)
        with self._translate_errors(ANSWER_TIMEOUT):
            result: T = json.loads(self.kv_store.read(key))
        return result

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        results = [work(item) for item in items[self.rank :: self.world_size]]
        return self._gather_results(results, len(items), list(range(self.world_size)))

    def map_in_lockstep(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        n_shards, own_shard = self.place.reduce_size, self.place.reduce_rank
        n_rounds = math.ceil(len(items) / n_shards)
        own_numbers = range(own_shard, n_rounds * n_shards, n_shards)
        results = [work(items[min(number, len(items) - 1)]) for number in own_numbers]
        n_own = len(range(own_shard, len(items), n_shards))
        places = [RankPlace(self.place.shape, rank) for rank in range(self.world_size)]
        owners = {place.reduce_rank: place.rank for place in places if place.counts}
        return self._gather_results(results[:n_own], len(items), [owners[i] for i in range(n_shards)])

    def _gather_results(self, results: list[Any], n_items: int, owners: Sequence[int]) -> list[Any]:
        """The results of the ranks ``owners``, to which the items were dealt in turn, in their order."""
        own_results = json.dumps(results)
        self.n_rounds += 1
        keys = [f"found/{self.n_rounds}/{rank}" for rank in range(self.world_size)]
        with self._translate_errors(ANSWER_TIMEOUT):
            self.kv_store.write(keys[self.rank], own_results)
        self._wait_for_keys(keys, range(self.world_size))
        with self._translate_errors(ANSWER_TIMEOUT):
            all_results = [json.loads(self.kv_store.read(keys[rank])) for rank in owners]
            # a rank that has reached this round has read all results of the previous one
            self.kv_store.erase(f"found/{self.n_rounds - 1}/{self.rank}")
        return [all_results[i % len(owners)][i // len(owners)] for i in range(n_items)]

    def interrupt(self) -> None:
        with suppress(RuntimeError):
            self.heartbeat.interrupt()

    def rank0_first(self, work: Callable[[], T]) -> T:
        self.n_turns += 1
        earlier_ranks = set() if not self.rank else {0} if self.is_leader else {0} | self.leader_ranks
        self._wait_for_keys(self._turn_keys(earlier_ranks), earlier_ranks)
        result = work()
        with self._translate_errors(ANSWER_TIMEOUT):
            self.kv_store.write(f"turn/{self.n_turns}/{self.rank}", "done")
        all_ranks = set(range(self.world_size))
        self._wait_for_keys(self._turn_keys(all_ranks), all_ranks)
        return result

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            with self._translate_errors(self.timeout):
                dist.broadcast(tensor.detach(), 0)

    def broadcast_replicas(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            local, groups = get_local(tensor.detach()), [self.reduce_group]
            if is_dtensor(tensor):
                mesh, placements = tensor.device_mesh, enumerate(tensor.placements)
                if mesh.mesh_dim_names != ("tensor",):  # then it has the dimensions of the data, too
                    groups = []
                groups += [mesh.get_group(dim) for dim, placement in placements if placement.is_replicate()]
            for group in groups:
                with self._translate_errors(self.timeout):
                    dist.broadcast(local, group=group, group_src=0)

    def close(self, error: BaseException | None) -> None:
        """Leave the group: when all ranks have finished, or at once on an error, stored for the others."""
        if error is not None:
            if not isinstance(error, PeerLostError):
                with suppress(RuntimeError):
                    self.kv_store.write("failed", str(error))
            self.heartbeat.stop()
            return
        if self.rank:
            # rank 0 hosts the store, and may end as soon as it has read this
            with suppress(RuntimeError):
                self.kv_store.write(f"left/{self.rank}", "done")
        else:
            other_ranks = range(1, self.world_size)
            self._wait_for_keys([f"left/{r}" for r in other_ranks], other_ranks)
        self.heartbeat.stop()
        dist.destroy_process_group()

    def is_rank0_failure(self, error: UserError) -> bool:
        """Whether rank 0 has failed with the same error; waits two heartbeat intervals for its report."""
        deadline = time.monotonic() + 2 * HEARTBEAT_INTERVAL if self.rank else 0.0
        try:
            while time.monotonic() < deadline:
                if self.kv_store.has("failed"):
                    return self.kv_store.read("failed") == str(error)
                time.sleep(POLL_INTERVAL)
        except RuntimeError:  # the store has ended with it
            return True
        return False

    def _turn_keys(self, ranks: Iterable[int]) -> list[str]:
        return [f"turn/{self.n_turns}/{rank}" for rank in ranks]

    def _start_all_reduce(self, tensor: Tensor, group: dist.ProcessGroup | None = None) -> Callable[[], None]:
        """Start an in-place sum of a tensor over ranks; returns a function that waits for it."""
        with self._translate_errors(self.timeout):
            work = dist.all_reduce(tensor, async_op=True, group=group)

        def wait_for_sum() -> None:
            with self._translate_errors(self.timeout):
                work.wait()

        return wait_for_sum

    def _start_side_all_reduce(self, tensor: Tensor) -> Callable[[], None]:
        """As ``_start_all_reduce``, in a group of its own.

        It runs between the all-reduces of gradients, whose order relative to it differs between ranks.
        """
        if self.side_group is None:
            self.side_group = self._new_reduce_group()
        return self._start_all_reduce(tensor, self.side_group)

    def _new_reduce_group(self) -> dist.ProcessGroup:
        """A group of the ranks with the same coordinates in pipeline and tensor; all ranks call this."""
        shape = self.place.shape
        ranks = np.arange(self.world_size).reshape(shape.pipeline, -1, shape.tensor)
        groups = ranks.transpose(0, 2, 1).reshape(-1, ranks.shape[1]).tolist()
        group, _ = dist.new_subgroups_by_enumeration(groups, timeout=timedelta(seconds=self.timeout))
        assert group is not None
        return group

    def _wait_for_keys(self, keys: list[str], ranks: Iterable[int], deadline: float = math.inf) -> None:
        """Wait until ``keys`` are written, while the heartbeats of ``ranks`` continue; else
        ``PeerLostError``.
        """
        seconds_silent = self.heartbeat.track_silence(ranks)
        while True:
            with self._translate_errors(ANSWER_TIMEOUT):
                if self.kv_store.has(*keys):
                    return
                has_failed, silent_seconds = self.kv_store.has("failed"), seconds_silent()
            if has_failed:
                raise PeerLostError
            if dead_ranks := [rank for rank, seconds in silent_seconds.items() if seconds > self.timeout]:
                raise PeerLostError(_format_no_answer(dead_ranks, self.timeout))
            if time.monotonic() > deadline:
                raise PeerLostError(
                    f"not all of the {self.world_size} processes joined within {JOIN_TIMEOUT:.0f} s"
                )
            time.sleep(POLL_INTERVAL)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except PeerLostError:
            raise
        except RuntimeError as error:
            # torch raises the errors of transports as RuntimeErrors
            if not (isinstance(error, dist.DistError) or _TRANSPORT_ERROR.search(str(error))):
                raise
            is_late = re.search("timed out|timeout", str(error), re.IGNORECASE) is not None
            raise self._explain_lost_peer(error, is_late) from None

    @contextmanager
    def _translate_errors(self, timeout: float) -> Iterator[None]:
        """Translate errors of torch.distributed, whose calls end within ``timeout`` seconds, to
        ``PeerLostError``.

        It has no message if the failed rank has reported an error, or the launcher will.
        """
        assert not self.is_alone, "the other ranks take no part in work of rank 0 alone"
        start_time = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            is_late = time.monotonic() - start_time > 0.9 * timeout
            raise self._explain_lost_peer(error, is_late, timeout) from None

    def _explain_lost_peer(
        self, error: RuntimeError, is_late: bool, timeout: float | None = None
    ) -> PeerLostError:
        """The error of a failed call: without a message if another process reports the reason."""
        try:
            has_failed = self.kv_store.has("failed")
            dead_ranks = (
                self.heartbeat.find_dead_ranks(range(self.world_size)) if is_late and not has_failed else []
            )
        except RuntimeError:  # the store has ended with rank 0
            has_failed, dead_ranks = False, []
        if has_failed or (LAUNCHED_ENV in os.environ and not is_late):
            return PeerLostError()
        message = f"the connection to another rank was lost ({_shorten_error(error)})"
        return PeerLostError(_format_no_answer(dead_ranks, timeout or self.timeout) if is_late else message)


def find_backends() -> str:
    """Backends of this process: gloo, and NCCL if each process of the machine has a GPU of its own."""
    n_local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    n_gpus = torch.cuda.device_count() if dist.is_nccl_available() else 0
    return "cpu:gloo,cuda:nccl" if n_gpus >= n_local else "gloo"


@contextmanager
def init_process_group(timeout: float) -> Iterator[ProcessGroup]:
    """The process group from the environment (RANK, WORLD_SIZE, ... of torchrun); else a single process."""
    if count_processes() == 1:
        yield SINGLE_PROCESS
        return
    rank, world = int(os.environ["RANK"]), count_processes()
    ranks = TorchProcessGroup(_open_store(rank, world), rank, world, timeout)
    try:
        yield ranks
    except UserError as error:
        if ranks.is_rank0_failure(error):
            raise PeerLostError from None
        ranks.close(error)
        raise UserError(f"rank {rank}: {error}" if rank else str(error)) from error
    except BaseException as error:
        ranks.close(error)
        raise
    ranks.close(None)


def _open_store(rank: int, world_size: int) -> Store:
    """Open the rendezvous store: on the listening socket of ``polyhead train``, or that of torchrun."""
    if LISTENING_ENV in os.environ:
        listener = int(os.environ[LISTENING_ENV]) if rank == 0 else None
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world_size, rank == 0
        timeout = timedelta(seconds=JOIN_TIMEOUT)
        return TCPStore(*address, timeout=timeout, wait_for_workers=False, master_listen_fd=listener)
    store: Store = next(iter(rendezvous("env://", timeout=timedelta(seconds=JOIN_TIMEOUT))))[0]
    # torchrun keeps its store when it restarts the processes, with all keys of the previous ones
    return PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _format_no_answer(ranks: list[int], seconds: float) -> str:
    subject = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"
    return f"{subject if ranks else 'the other ranks have'} not answered for {seconds:g} s"


def _shorten_error(error: Exception) -> str:
    """The message of the transport, without source files and lines."""
    message = str(error).split("running the callback: RuntimeError: ")[-1].split("\n\nAt:")[0]
    words = message.split("] ", 1)[-1].split(". ")[0]
    return " ".join(words.split())[:120]
