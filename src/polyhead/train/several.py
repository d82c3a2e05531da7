"""Several processes that train together on torch.distributed; each wait has an end."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from polyhead.errors import UserError
from polyhead.train.board import ANSWER, BEAT, Board, Pulse
from polyhead.train.gradients import Gradients
from polyhead.train.launch import LAUNCHED, LISTENING, processes
from polyhead.train.ranks import ALONE, Deals, Ranks, threads
from polyhead.train.statistics import Statistics

T = TypeVar("T")
JOIN = 300.0  # seconds that ranks wait for the last one to start
PAUSE = 0.02  # seconds between two looks at the board


class Lost(RuntimeError):
    """Another rank is gone, or does not answer; without a message where somebody else says why."""


class Several:
    """One of several processes. Every wait ends: with an answer, or with ``Lost`` after ``timeout`` seconds.

    Where one works longer than others, what counts is not how long but whether it lives.
    """

    def __init__(self, store: Store, rank: int, world: int, timeout: float) -> None:
        self.rank, self.world, self.timeout = rank, world, timeout
        self.board, self.pulse = Board(store), Pulse(store, rank)
        self.again: tuple[str, ...] = ("--processes", str(world)) if LAUNCHED in os.environ else ()
        self.said = self.turns = self.rounds = 0
        self.threads = torch.get_num_threads()
        self.gradients: Gradients | None = None
        self.statistics: Statistics | None = None
        self.aside: dist.ProcessGroup | None = None
        self.leader = os.environ.get("LOCAL_RANK", "0") == "0"
        self.board.write(f"here/{rank}", json.dumps([self.leader, carriers()]))
        every = [f"here/{r}" for r in range(world)]
        self._await(every, (), until=time.monotonic() + JOIN)
        here = [json.loads(self.board.read(key)) for key in every]
        self.leaders = {r for r, (leader, _) in enumerate(here) if leader}
        # what all have: the shortest is what every other one has as well
        shared = min((carrying for _, carrying in here), key=len)
        with self._heard(timeout):
            limit = timedelta(seconds=timeout)
            dist.init_process_group(shared, store=store, rank=rank, world_size=world, timeout=limit)

    def use_threads(self, wanted: int | None) -> None:
        self.threads = wanted or torch.get_num_threads()
        if wanted or "OMP_NUM_THREADS" not in os.environ:  # which is meant for a process
            torch.set_num_threads(max(1, self.threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))

    def share(self, task: Deals, rows: Any) -> list[Any]:
        return task.deal(rows, self.world)[self.rank : self.rank + 1]

    def sum(self, *numbers: float) -> list[float]:
        summed = torch.tensor(numbers, dtype=torch.float64)
        self._start(summed)()
        found: list[float] = summed.tolist()
        return found

    @contextmanager
    def partaking(self, model: nn.Module) -> Iterator[None]:
        if self.statistics is None or self.statistics.model is not model:
            self.statistics = Statistics(model, self._start_aside, self.world)
        yield
        self.statistics.settle()

    def summing(self, model: nn.Module) -> AbstractContextManager[None]:
        if self.gradients is None or self.gradients.model is not model:
            self.gradients = Gradients(model, self._start)
        return self.gradients.summing()

    def tell(self, work: Callable[[], T]) -> T:
        self.said += 1
        key = f"told/{self.said}"
        if self.rank:
            self._await([key], [0])
        else:
            with threads(self.threads):  # those of the others as well, which wait
                text = json.dumps(work())
            with self._heard(ANSWER):
                self.board.write(key, text)
        with self._heard(ANSWER):
            found: T = json.loads(self.board.read(key))
        return found

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        own = json.dumps([work(item) for item in items[self.rank :: self.world]])
        self.rounds += 1
        keys = [f"found/{self.rounds}/{rank}" for rank in range(self.world)]
        with self._heard(ANSWER):
            self.board.write(keys[self.rank], own)
        self._await(keys, range(self.world))
        with self._heard(ANSWER):
            found = [json.loads(self.board.read(key)) for key in keys]
            # who has come to this round has read all of the one before
            self.board.erase(f"found/{self.rounds - 1}/{self.rank}")
        return [found[i % self.world][i // self.world] for i in range(len(items))]

    def interrupt(self) -> None:
        with suppress(RuntimeError):
            self.pulse.interrupt()

    def in_turn(self, work: Callable[[], T]) -> T:
        self.turns += 1
        before = set() if not self.rank else {0} if self.leader else {0} | self.leaders
        self._await(self._turns(before), before)
        found = work()
        with self._heard(ANSWER):
            self.board.write(f"turn/{self.turns}/{self.rank}", "done")
        every = set(range(self.world))
        self._await(self._turns(every), every)
        return found

    def copy(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            with self._heard(self.timeout):
                dist.broadcast(tensor.detach(), 0)

    def leave(self, error: BaseException | None) -> None:
        """The end: in good order when all have come here, else with a note for the others."""
        if error is not None:
            if not isinstance(error, Lost):
                with suppress(RuntimeError):
                    self.board.write("failed", str(error))
            self.pulse.stop()
            return
        if self.rank:
            # the first rank keeps the board, and may go as soon as it has read this
            with suppress(RuntimeError):
                self.board.write(f"left/{self.rank}", "done")
        else:
            others = range(1, self.world)
            self._await([f"left/{r}" for r in others], others)
        self.pulse.stop()
        dist.destroy_process_group()

    def repeats(self, error: UserError) -> bool:
        """Whether the first rank has failed in the same way, and said so; it gets a moment to do it."""
        until = time.monotonic() + 2 * BEAT if self.rank else 0.0
        try:
            while time.monotonic() < until:
                if self.board.has("failed"):
                    return self.board.read("failed") == str(error)
                time.sleep(PAUSE)
        except RuntimeError:  # the board is gone with it
            return True
        return False

    def _turns(self, ranks: Iterable[int]) -> list[str]:
        return [f"turn/{self.turns}/{rank}" for rank in ranks]

    def _start(self, tensor: Tensor, group: dist.ProcessGroup | None = None) -> Callable[[], None]:
        """Begin to sum a tensor, in place; what is returned waits for the end of it."""
        with self._heard(self.timeout):
            work = dist.all_reduce(tensor, async_op=True, group=group)

        def wait() -> None:
            with self._heard(self.timeout):
                work.wait()

        return wait

    def _start_aside(self, tensor: Tensor) -> Callable[[], None]:
        """The same while gradients are on their way, which not all have to send in the same moment."""
        if self.aside is None:
            self.aside = dist.new_group(timeout=timedelta(seconds=self.timeout))
        return self._start(tensor, self.aside)

    def _await(self, keys: list[str], whom: Iterable[int], until: float = math.inf) -> None:
        """Wait until others have written, as long as their pulses beat."""
        silence = self.pulse.listen(whom)
        while True:
            with self._heard(ANSWER):
                if self.board.has(*keys):
                    return
                failed, silent = self.board.has("failed"), silence()
            if failed:
                raise Lost
            if dead := [rank for rank, seconds in silent.items() if seconds > self.timeout]:
                raise Lost(_no_answer(dead, self.timeout))
            if time.monotonic() > until:
                raise Lost(f"not all of the {self.world} processes have come within {JOIN:.0f} s")
            time.sleep(PAUSE)

    @contextmanager
    def _heard(self, limit: float) -> Iterator[None]:
        """What goes wrong between ranks, where they answer within ``limit`` seconds, said as it concerns a person.

        Nothing is said where a rank that failed has spoken, or whoever started the processes will.
        """
        started = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            late = time.monotonic() - started > 0.9 * limit
            try:
                failed = self.board.has("failed")
                silent = self.pulse.silent(range(self.world)) if late and not failed else []
            except RuntimeError:  # the board is gone with the first rank
                failed, silent = False, []
            if failed or (LAUNCHED in os.environ and not late):
                raise Lost from None
            broken = f"the connection to another rank broke off ({_brief(error)})"
            raise Lost(_no_answer(silent, limit) if late else broken) from None


def carriers() -> str:
    """What may carry sums from here: gloo, and NCCL between GPUs where each process of the machine has one of its own."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count() if dist.is_nccl_available() else 0
    return "cpu:gloo,cuda:nccl" if gpus >= here else "gloo"


@contextmanager
def joined(timeout: float) -> Iterator[Ranks]:
    """The ranks that the environment tells of (RANK, WORLD_SIZE, ... as torchrun gives them); alone without."""
    if processes() == 1:
        yield ALONE
        return
    rank, world = int(os.environ["RANK"]), processes()
    ranks = Several(_store(rank, world), rank, world, timeout)
    try:
        yield ranks
    except UserError as error:
        if ranks.repeats(error):
            raise Lost from None
        ranks.leave(error)
        raise UserError(f"rank {rank}: {error}" if rank else str(error)) from error
    except BaseException as error:
        ranks.leave(error)
        raise
    ranks.leave(None)


def _store(rank: int, world: int) -> Store:
    """Where ranks find each other: at a socket that ``polyhead train`` listens on for them, or at torchrun's."""
    if LISTENING in os.environ:
        listener = int(os.environ[LISTENING]) if rank == 0 else None
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0
        limit = timedelta(seconds=JOIN)
        return TCPStore(*where, timeout=limit, wait_for_workers=False, master_listen_fd=listener)
    store: Store = next(iter(rendezvous("env://", timeout=timedelta(seconds=JOIN))))[0]
    # torchrun keeps its store when it starts the processes again, with all that those before have written there
    return PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _no_answer(ranks: list[int], seconds: float) -> str:
    named = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"
    return f"{named if ranks else 'the other ranks have'} not answered for {seconds:g} s"


def _brief(error: Exception) -> str:
    """What the transport said, without its files and lines."""
    words = str(error).split("] ", 1)[-1].split(". ")[0]
    return " ".join(words.split())[:120]
