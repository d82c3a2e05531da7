"""Shared by the tests of split_checkpoint: small trainings that are split over ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.train.distributed.rank_runs import place as place
from tests.train.test_loss_module import NextTokens
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from polyhead.checkpoint.checkpoint import (
    open_lazy_checkpoint,
    read_checkpoint,
)
from polyhead.config.model import ModelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.models import build
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.rank_sync import share_checkpoint
from polyhead.train.distributed.split_checkpoint import save_split
from polyhead.train.loss_module import LossModule
from polyhead.train.train_state import TrainState

TASK = NextTokens()


EXTRA = {"tokenizer_sha256": "of the tokenizer"}


# eps is large beside rounding, or Adam would make steps of gradients that are 0 but for it
CONFIG: dict[str, Any] = {"steps": 9, "optimizer": {"name": "adamw", "eps": 1e-3}, "ema": 0.9,
    "schedule": {"name": "constant"}}  # fmt: skip


def made(world: int, optimizer: Any = None, form: str = "shard") -> TrainState:
    """A state of sizes that no number of ranks divides, with tied weights, split over so many ranks.

    Forms: fully sharded; in two groups of ranks; over tensor parallel ranks as well.
    """
    config = ModelConfig(kind="decoder", vocab_size=23, d_model=14, n_heads=2, n_layers=2,
        d_ff=16 if form == "tensor" else 15, max_len=8,
        dropout=0.0)  # fmt: skip
    model = build(config, 1)
    module = LossModule(model, TASK)
    if world > 1:
        mesh = init_device_mesh("cpu", (world,))
        if form != "shard":
            mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("outer", "inner"))
        if form == "tensor":
            for layer in model.stack.layers:
                plan = {"ffn.up_proj": ColwiseParallel(), "ffn.down_proj": RowwiseParallel()}
                parallelize_module(layer, mesh["inner"], plan)
            mesh = mesh["outer"]
        for layer in model.stack.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        for part in module.modules():
            if hasattr(part, "set_gradient_divide_factor"):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
    options = CONFIG | ({"optimizer": optimizer} if optimizer else {})
    training = TrainState(model, TrainConfig.model_validate(options), config.d_model, 9)
    training.is_split, training.loss_module = world > 1, module
    return training


def learn(training: TrainState, rank: int, world: int, steps: int = 2) -> list[float]:
    """Losses of this rank's rows of a few steps."""
    module, losses = training.bind_task(TASK), []
    for _ in range(steps):
        training.progress.step += 1
        loss = module(TASK.collate(list(range(5))[rank::world]))
        loss.total.backward()
        losses.append(float(loss.total.detach()))
        for optimizer in training.optimizers:
            optimizer.step()
        training.model.zero_grad(set_to_none=True)
        assert training.ema
        training.ema.update(training.model, training.progress.step)
    return losses


def save(training: TrainState, root: Path, ranks: ProcessGroup, sharded: bool = False) -> None:
    if training.is_split:
        save_split(root, training.export_state(), EXTRA, ranks, sharded)
    else:
        training.save(root, EXTRA)


def restored(path: Path, ranks: ProcessGroup, *options: Any) -> TrainState:
    training = made(ranks.world_size, *options)
    found = share_checkpoint(None if ranks.rank else open_lazy_checkpoint(path), ranks)
    assert found
    training.restore(found)
    return training


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def assert_equal(path: Path, other: Path) -> None:
    """Whether two checkpoints are of the same kind, and equal to the bit.

    The order of the metadata in files of torch is accidental.
    """
    assert content(path).keys() == content(other).keys()
    found, wanted = read_checkpoint(path), read_checkpoint(other)
    assert found.state == wanted.state and found.extra == wanted.extra
    for group, tensors in wanted.tensors.items():
        assert found.tensors[group].keys() == tensors.keys()
        assert all(torch.equal(found.tensors[group][name], tensor) for name, tensor in tensors.items())
