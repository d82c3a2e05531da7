"""World 2 equals world 1: the same losses, weights and files on any number of processes, and a resume on
another.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.conftest import Notes
from tests.train.distributed.rank_runs import assert_same, recipe_of, trained
from tests.train.distributed.rank_runs import place as place
from tests.train.several import together
from torch import Tensor

from polyhead.config.model import ModelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.core.choice import Choice
from polyhead.cost.communication import ParallelLayout, estimate_traffic, ring_all_reduce_bytes
from polyhead.cost.workload import BatchShape
from polyhead.data.batching.length_bucketing import shard_rows
from polyhead.data.batching.packing import PackedRows, Segments
from polyhead.estimate.benchmark import RandomTokenTask
from polyhead.models import build
from polyhead.train import loop
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.loop import derive_seed, train_step
from polyhead.train.run_training import run_training
from polyhead.train.train_state import TrainState

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5", "A6")]
NUMBERS = itertools.count()
KINDS = [
    "translation",
    "language-model",
    "masked-lm",
    "replaced-token-detection",
    "denoising",
    "classification",
    "chat",
]


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_processes_learns_the_same(kind: str, place: Path) -> None:
    alone = trained(recipe_of(place, kind, f"{kind}-1"), 1)
    for world in (2, 3):
        assert_same(alone, trained(recipe_of(place, kind, f"{kind}-{world}"), world))


@pytest.mark.acceptance("G2")
def test_a_rank_without_rows_takes_part_with_nothing(place: Path) -> None:
    """Batches of two rows at most on three ranks, one batch an update: the third never has any."""
    changes = {"max_tokens": 26, "accumulate": 1}
    alone = trained(recipe_of(place, "translation", "few-1", **changes), 1)
    assert_same(alone, trained(recipe_of(place, "translation", "few-3", **changes), 3))


@pytest.mark.parametrize(
    ("optimizer", "near"),
    [
        ({"name": "adamw", "eps": 1e-3}, 1e-5),
        ({"name": "adafactor"}, 1e-4),
        ({"name": "muon"}, 1e-2),  # which computes in bf16
    ],
    ids=["adamw", "adafactor", "muon"],
)
def test_optimizers_step_alike_on_all_ranks(optimizer: dict[str, Any], near: float, place: Path) -> None:
    """Also with parts that are frozen, rates of parts, and gradients that are cut short."""
    changes = {
        "optimizer": optimizer, "freeze": ["encoder_embedding"], "lr_factors": {"decoder": 2.0},
            "clip_norm": 0.1,
        "lr": 1e-3, "ema": None,
    }  # fmt: skip
    name = optimizer["name"]
    a, b = (trained(recipe_of(place, "translation", f"{name}-{n}", **changes), n) for n in (1, 2))
    for measure in ("loss", "grad_norm"):
        ours, theirs = ([row[measure] for row in run["metrics"] if measure in row] for run in (a, b))
        assert ours == pytest.approx(theirs, rel=near), measure
        assert min(ours) > 0.1  # gradients were cut
    frozen = [w for w in a["final"] if w.startswith("encoder_embedding.")]
    assert frozen
    assert all(torch.equal(a["final"][w], b["final"][w]) for w in frozen)


@pytest.mark.acceptance("G6")
@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 3), (3, 2)])
def test_a_run_goes_on_with_another_number_of_processes(first: int, then: int, place: Path) -> None:
    name = f"on-{first}-{then}"
    whole = trained(recipe_of(place, "translation", f"{name}-whole"), 1)
    trained(recipe_of(place, "translation", name, steps=4), first)
    assert_same(whole, trained(recipe_of(place, "translation", name), then, resume=True))


@pytest.mark.acceptance("R1", "R12")
def test_two_processes_repeat_themselves_to_the_bit_also_over_a_resume(place: Path) -> None:
    """With dropout, which is drawn anew on every rank."""
    model = {"dropout": 0.2}
    whole = trained(recipe_of(place, "translation", "bits-whole", model=model), 2)
    again = trained(recipe_of(place, "translation", "bits-again", model=model), 2)
    trained(recipe_of(place, "translation", "bits-cut", model=model, steps=4), 2)
    on = trained(recipe_of(place, "translation", "bits-cut", model=model), 2, resume=True)
    for other in (again, on):
        assert all(torch.equal(w, other["final"][name]) for name, w in whole["final"].items())
        for group, tensors in whole["last"].tensors.items():
            assert all(torch.equal(t, other["last"].tensors[group][name]) for name, t in tensors.items()), (
                group
            )
    alone = trained(recipe_of(place, "translation", "bits-alone", model=model), 1)
    assert not all(torch.equal(w, alone["final"][name]) for name, w in whole["final"].items())


def test_ranks_draw_their_own_dropout() -> None:
    assert len({derive_seed(7, step, rank) for step in range(50) for rank in range(8)}) == 400
    assert derive_seed(7, 3, 0) == derive_seed(7, 3)


def test_every_rank_draws_for_itself_while_it_trains(place: Path) -> None:
    recipe = recipe_of(place, "translation", "draws", steps=3)

    def work(ranks: ProcessGroup) -> list[int]:
        seeds, real = [], loop.train_step

        def noting(*arguments: Any) -> bool:
            seeds.append(torch.initial_seed())
            return real(*arguments)

        loop.train_step = noting  # type: ignore[assignment]
        run_training(recipe, report=Notes(), ranks=ranks)
        return seeds

    first, second = together(2, work)
    assert len({*first.said, *second.said}) == 6
    assert first.said == [derive_seed(recipe.train.seed, step) for step in (1, 2, 3)]  # as one process would


def noise(place: Path, kind: str, world: int, seed: int = 7) -> list[list[list[Any]]]:
    """For each rank, what its noise was drawn from in every step: epoch and row where it follows from them,
    and bits.
    """
    train = {"steps": 8, "max_tokens": 600, "accumulate": 1, "seed": seed, "eval_every": 99, "save_every": 99}
    recipe = recipe_of(place, kind, f"noise-{next(NUMBERS)}", **train)
    options = {"classification": {"token_dropout": 0.2}, "translation": {"token_split": 0.2}}
    if kind in options:
        recipe = recipe.model_copy(update={"task": Choice(kind, **options[kind])})

    def work(ranks: ProcessGroup) -> list[list[Any]]:
        module = importlib.import_module(f"polyhead.train.tasks.{kind.removesuffix('-lm')}")
        new: list[Any] = []
        steps: list[list[Any]] = []
        rehearse, update, rand = loop.check_memory, loop.train_step, torch.rand
        row_rng = getattr(module, "row_rng", None)  # of the tasks whose noise belongs to a row

        def noting(key: list[int]) -> np.random.Generator:
            if len(key) == 4:  # what is drawn, seed, epoch, row: a plan has no row
                new.append([*key[2:], row_rng(key).bytes(8).hex()])
            return row_rng(key)

        def drawing(*shape: Any, **kind: Any) -> Tensor:
            found = rand(*shape, **kind)
            new.append([0, 0, str(found.flatten()[:4].tolist())])
            return found

        def rehearsed(*given: Any) -> None:
            rehearse(*given)
            new.clear()

        def updated(*given: Any) -> bool:
            steps.extend(new)
            new.clear()
            return update(*given)

        loop.check_memory, loop.train_step = rehearsed, updated  # type: ignore[assignment]
        if row_rng is not None:
            module.row_rng = noting
        else:
            torch.rand = drawing  # type: ignore[assignment]
        try:
            run_training(recipe, report=Notes(), ranks=ranks)
        finally:
            loop.check_memory, loop.train_step, torch.rand = rehearse, update, rand
            if row_rng is not None:
                module.row_rng = row_rng
        return steps

    ends = together(world, work)
    assert [end.code for end in ends] == [0] * world, ends
    return [end.said for end in ends]


@pytest.mark.acceptance("A11")
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow) for kind in ("masked-lm", "denoising", "translation")]
    + ["classification"],
)
def test_noise_differs_between_ranks_and_epochs_and_repeats_from_the_seed(kind: str, place: Path) -> None:
    """What is drawn for a text is nowhere drawn again: not by another process, not in the next epoch."""
    first, second = ranks = noise(place, kind, 2)
    both = [tuple(one) for one in first + second]
    assert first and second and len({bits for _, _, bits in both}) == len(both)
    if kind in ("classification", "translation"):  # drawn from the step and the rank
        assert noise(place, kind, 2) == ranks
        other = noise(place, kind, 2, seed=8)
        assert not {bits for _, _, bits in both} & {bits for one in other for _, _, bits in one}
        return
    # the noise of a text follows from its epoch and its row: it is the same on any number of processes
    rows = [{row for epoch, row, _ in both if epoch == e} for e in (0, 1)]
    assert rows[0] & rows[1]
    assert sorted(both) == sorted(tuple(one) for one in noise(place, kind, 1)[0])


# what is dealt out


def test_parts_hold_every_row_once_in_even_lengths() -> None:
    rows = np.arange(11)
    parts = shard_rows(rows, 4)
    assert [part.tolist() for part in parts] == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7]]
    assert [part.tolist() for part in shard_rows(rows[:2], 4)] == [[0], [1]]


def test_packed_rows_keep_their_numbers_and_pieces() -> None:
    pieces = Segments(np.arange(7) * 10, np.arange(7) + 1)
    packed = PackedRows(3, np.array([5, 6, 7]), pieces, np.array([0, 0, 1, 2, 2, 2, 2]))
    first, second = packed.shard(2)
    assert (first.epoch, first.rows.tolist(), first.row_of_segment.tolist()) == (
        3,
        [5, 7],
        [0, 0, 1, 1, 1, 1],
    )
    assert first.segments.starts.tolist() == [0, 10, 30, 40, 50, 60]
    assert (second.rows.tolist(), second.row_of_segment.tolist(), second.segments.lengths.tolist()) == (
        [6],
        [0],
        [3],
    )
    assert len(packed.shard(5)) == 3


# gradients


def sent() -> int:
    """Bytes that this process has sent over TCP so far, each once: its sockets know (struct tcp_info of
    linux/tcp.h).
    """
    total = 0
    for path in Path("/proc/self/fd").iterdir():
        if not path.is_socket():
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as one:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            n_sent, n_again = np.frombuffer(info[200:216], np.uint64)  # tcpi_bytes_sent, tcpi_bytes_retrans
            total += int(n_sent - n_again)
    return total


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_step_sends_the_bytes_that_a_plan_says(world: int) -> None:
    """Counted at the sockets: what leaves them for a step is within 1 % of the formula, and of what the plan
    says.
    """
    config = ModelConfig(
        kind="decoder", vocab_size=3000, d_model=64, n_heads=2, n_layers=3, d_ff=256, max_len=64, dropout=0.0
    )

    def work(ranks: ProcessGroup) -> list[int]:
        model = build(config, 1)
        task = RandomTokenTask(config, BatchShape(2, 16))
        training = TrainState(model, TrainConfig(steps=10, precision="fp32"), config.d_model, 10)
        counts = []
        for _ in range(4):
            training.progress.step += 1
            train_step(training, task, [task.collate(None)], TrainConfig(steps=10, precision="fp32"), ranks)
            ranks.all_reduce(0)
            counts.append(sent())
        return counts

    ends = together(world, work)
    assert [end.code for end in ends] == [0] * world, ends
    learned = sum(p.numel() for p in build(config, 1).parameters())
    planned = estimate_traffic(config, BatchShape(2, 16), learned, ParallelLayout(data_parallel=world))
    assert planned.data == ring_all_reduce_bytes(4 * learned, world) == 2 * (world - 1) / world * 4 * learned
    for end in ends:
        steps = np.diff(end.said)
        assert steps.mean() == pytest.approx(planned.data, rel=0.01)
        assert (steps > planned.data).all()  # counts, flags and pulses come on top


# what is refused


def test_what_is_told_is_json_and_reaches_all() -> None:
    def work(ranks: ProcessGroup) -> Any:
        number = ranks.on_rank0(lambda: {"loss": 0.1 + 0.2, "bad": float("nan"), "rank": ranks.rank})
        tensor = torch.full((3,), float(ranks.rank + 5))
        ranks.broadcast([tensor])
        order = ranks.rank0_first(lambda: ranks.rank)
        return [json.dumps(number), tensor.tolist(), order, ranks.all_reduce(1, 0.1 * ranks.rank)]

    ends = together(3, work)
    for rank, end in enumerate(ends):
        told, tensor, order, sums = end.said
        assert (told, tensor, order) == (
            '{"loss": 0.30000000000000004, "bad": NaN, "rank": 0}',
            [5.0] * 3,
            rank,
        )
        assert sums == pytest.approx([3, 0.3])
        assert sums == ends[0].said[3]


def test_turns_come_one_after_another(tmp_path: Path) -> None:
    """The first of all, then the first of every other machine, then the rest; nobody goes on before all are
    done.
    """
    book = tmp_path / "book"

    def work(ranks: ProcessGroup) -> str:
        def write() -> None:
            time.sleep(0.1 * (3 - ranks.rank))  # so that those without patience would come before
            with book.open("a") as file:
                file.write(str(ranks.rank))

        ranks.rank0_first(write)
        return book.read_text()

    ends = together(4, work, machines=2)
    assert [end.said for end in ends] == ["0231"] * 4
