"""Tests of train/distributed/torch_process_group.py."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.train.conftest import Notes
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.rank_runs import recipe_of
from tests.train.evaluation_helpers import opened
from tests.train.several import together
from torch import nn

from polyhead.checkpoint import checkpoint
from polyhead.train.distributed import torch_process_group
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.distributed.torch_process_group import find_backends
from polyhead.train.loop import train_model
from polyhead.train.train_state import TrainState


@pytest.mark.usefixtures("unsynced")
@pytest.mark.acceptance("G1")
def test_a_process_that_never_comes_is_not_waited_for() -> None:
    def never_come() -> None:
        torch_process_group.JOIN_TIMEOUT = 1.0
        if os.environ["RANK"] == "1":
            os._exit(0)

    first, other = together(2, lambda ranks: None, before=never_come)
    assert (first.code, other.code) == (RANK_LOST, 0)
    assert first.said == "not all of the 2 processes joined within 1 s"


@pytest.mark.usefixtures("unsynced")
def test_the_first_rank_may_have_gone_when_the_last_word_of_another_is_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All the work is done by then, so that this is no failure; the first one itself must hear the others."""

    def gone(key: str, text: str) -> None:
        raise RuntimeError("Connection reset by peer")

    ended: list[str] = []
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: ended.append("group"))
    other: Any = torch_process_group.TorchProcessGroup.__new__(torch_process_group.TorchProcessGroup)
    other.rank, other.world_size = 1, 2
    other.kv_store, other.heartbeat = (
        SimpleNamespace(write=gone),
        SimpleNamespace(stop=lambda: ended.append("pulse")),
    )
    other.close(None)
    assert ended == ["pulse", "group"]


@pytest.mark.usefixtures("unsynced")
@pytest.mark.acceptance("G5", "A6")
@pytest.mark.parametrize(
    ("gpus", "here", "wanted"),
    [(0, 2, "gloo"), (1, 2, "gloo"), (2, 2, "cpu:gloo,cuda:nccl"), (8, 2, "cpu:gloo,cuda:nccl")],
)
def test_gpus_talk_by_themselves_where_each_process_has_one(
    gpus: int, here: int, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert find_backends() == wanted
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert find_backends() == "gloo"


@pytest.mark.usefixtures("unsynced")
@pytest.mark.acceptance("G5", "A6")
def test_what_not_all_can_use_none_does() -> None:
    def work(ranks: ProcessGroup) -> Any:
        return [torch.distributed.get_backend(), ranks.all_reduce(1)]

    def pretend() -> None:
        able = "cpu:gloo,cuda:nccl" if os.environ["RANK"] == "1" else "gloo"
        torch_process_group.find_backends = lambda: able

    assert [end.said for end in together(2, work, before=pretend)] == [["gloo", [2.0]]] * 2


@pytest.mark.usefixtures("unsynced")
def test_in_lockstep_every_rank_works_equally_often_and_all_have_every_result() -> None:
    def work(ranks: ProcessGroup) -> list[Any]:
        found = []
        for n in range(8):
            done: list[int] = []

            def double(item: int, done: list[int] = done) -> int:
                done.append(item)
                assert ranks.all_reduce(1) == [3]  # which needs all of them
                return 2 * item

            found.append([list(ranks.map_in_lockstep(double, list(range(n)))), done])
        return found

    ends = together(3, work)
    for rank, end in enumerate(ends):
        assert [results for results, _ in end.said] == [[2 * i for i in range(n)] for n in range(8)]
        assert [len(done) for _, done in end.said] == [0, 1, 1, 1, 2, 2, 2, 3]
        assert end.said[7][1] == [rank, rank + 3, 6]
    assert list(SINGLE_PROCESS.map_in_lockstep(lambda i: 2 * i, [3, 4])) == [6, 8]


@pytest.mark.usefixtures("unsynced")
def test_a_collective_inside_work_of_rank_0_alone_is_an_error_at_once() -> None:
    def work(ranks: ProcessGroup) -> list[str]:
        def try_each() -> list[str]:
            errors = []
            for collective in (
                lambda: ranks.all_reduce(1),
                lambda: ranks.broadcast([torch.zeros(1)]),
                lambda: ranks.map(str, [1, 2]),
            ):
                with pytest.raises(AssertionError) as caught:
                    collective()
                errors.append(str(caught.value))
            return errors

        errors = ranks.on_rank0(try_each)
        assert ranks.all_reduce(1) == [2]  # and everything goes on
        return errors

    for end in together(2, work):
        assert end.said == ["the other ranks take no part in work of rank 0 alone"] * 3


def join_at_every_pass(model: nn.Module, ranks: ProcessGroup) -> list[int]:
    """Let each layer's forward and backward be collectives, as those of a sharded model are.

    A rank that makes more passes than another, or passes through other layers, waits for it in vain.
    """
    passes = [0]

    def join(number: int) -> None:
        passes[0] += 1
        if ranks.world_size > 1:
            total = torch.tensor([number, passes[0]])
            ranks._start_side_all_reduce(total)()  # type: ignore[attr-defined]
            assert total.tolist() == [ranks.world_size * number, ranks.world_size * passes[0]]

    layers = [*model.encoder.layers, *model.decoder.layers]  # type: ignore[union-attr]
    for i, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, i=i: join(i))
        layer.register_full_backward_hook(lambda *_, i=i: join(100 + i))
    return passes


@pytest.mark.usefixtures("unsynced")
@pytest.mark.acceptance("G2", "G5")
def test_ranks_train_evaluate_and_save_a_model_whose_passes_are_collectives(place: Path) -> None:
    """Two rows at most on three ranks, validation batches that three does not divide, averages and
    checkpoints.
    """

    def work(ranks: ProcessGroup) -> Any:
        recipe = recipe_of(
            place, "translation", f"collective-{ranks.world_size}", max_tokens=26, accumulate=2
        )
        run, task = ranks.rank0_first(lambda: opened(recipe))
        assert len(task.valid_batches) % 3  # type: ignore[attr-defined]
        training, notes = TrainState(run.model, recipe.train, recipe.model.d_model, 8), Notes()
        passes = join_at_every_pass(run.model, ranks)
        train_model(training, task, recipe.train, recipe.out / "checkpoints", notes, ranks=ranks)
        return [notes.series("loss"), notes.series("loss", "valid"), passes[0]]

    alone = work(SINGLE_PROCESS)
    ends = together(3, work)
    assert [end.code for end in ends] == [0] * 3, ends
    for end in ends:
        assert end.said[0] == pytest.approx(alone[0], rel=1e-5)
        assert end.said[1] == pytest.approx(alone[1], rel=1e-5)
        assert end.said[2] == ends[0].said[2]


@pytest.mark.usefixtures("unsynced")
def test_weights_that_are_not_finite_on_another_rank_are_never_saved(place: Path) -> None:
    def work(ranks: ProcessGroup) -> None:
        recipe = recipe_of(place, "translation", "broken-weights", ema=None, eval_every=8)
        run, task = ranks.rank0_first(lambda: opened(recipe))
        training = TrainState(run.model, recipe.train, recipe.model.d_model, 8)
        step = training.optimizers[0].step

        def break_weights() -> None:
            step()
            if ranks.rank and training.progress.step == 4:
                next(run.model.parameters()).data[0] = float("nan")

        training.optimizers[0].step = break_weights  # type: ignore[method-assign]
        train_model(training, task, recipe.train, recipe.out / "checkpoints", Notes(), ranks=ranks)

    first, _ = together(2, work)
    out = place / "broken-weights"
    assert first.code == 2 and first.said.startswith("the weights are not finite, at step 4"), first
    assert not checkpoint.list_steps(out / "checkpoints")


@pytest.mark.usefixtures("unsynced")
@pytest.mark.acceptance("G2")
def test_gradients_of_parts_of_a_model_are_summed_where_some_rank_has_one() -> None:
    def work(ranks: ProcessGroup) -> list[Any]:
        model = nn.Linear(2, 1)
        model.register_parameter("other", nn.Parameter(torch.ones(2)))
        model.register_parameter("frozen", nn.Parameter(torch.ones(2), requires_grad=False))
        if ranks.rank == 1:
            model.weight.grad = torch.tensor([[3.0, 4.0]])
        model.bias.grad = torch.tensor([float(ranks.rank)])
        ranks.sum_gradients(model)
        return [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()]

    assert [end.said for end in together(3, work, timeout=60)] == [[[3.0, 4.0], [3.0], None, None]] * 3
