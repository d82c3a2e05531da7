from pathlib import Path
from typing import Any

from tests.train.conftest import equal_tensors
from tests.train.test_loss_module import NextTokens, disable_gradient_mean
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from polyhead import ModelConfig, build
from polyhead.checkpoint.checkpoint import open_lazy_checkpoint, read_checkpoint
from polyhead.config.recipe import TrainConfig
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.distributed.rank_sync import share_checkpoint
from polyhead.train.distributed.sharded_checkpoint import save_sharded
from polyhead.train.loss_module import LossModule
from polyhead.train.train_state import TrainState

TASK = NextTokens()
EXTRA = {"tokenizer_sha256": "of the tokenizer"}
# eps is large next to rounding, or Adam would make steps of gradients that are only rounding
ADAM = {"name": "adamw", "eps": 1e-3}


def make_training(
    world_size: int, optimizer: Any = ADAM, layout: str = "shard"
) -> tuple[TrainState, LossModule]:
    """A state of sizes that no number of ranks divides, with tied weights, sharded over so many ranks.

    Layouts: shard, fully sharded; groups, in two groups of ranks; tensor, over tensor parallel ranks as well.
    """
    sizes = {"vocab_size": 23, "d_model": 14, "n_heads": 2, "n_layers": 2, "max_len": 8}
    d_ff = 16 if layout == "tensor" else 15
    model = build(ModelConfig(kind="decoder", d_ff=d_ff, dropout=0.0, **sizes), 1)
    module = LossModule(model, TASK)
    if world_size > 1:
        mesh = init_device_mesh("cpu", (world_size,))
        if layout != "shard":
            mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("outer", "inner"))
        if layout == "tensor":
            for layer in model.stack.layers:
                plan = {"ffn.up_proj": ColwiseParallel(), "ffn.down_proj": RowwiseParallel()}
                parallelize_module(layer, mesh["inner"], plan)
            mesh = mesh["outer"]
        for layer in model.stack.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        disable_gradient_mean(module)
    options = {"steps": 9, "optimizer": optimizer, "ema": 0.9, "schedule": {"name": "constant"}}
    training = TrainState(model, TrainConfig.model_validate(options), 14, 9)
    training.loss_module = module
    return training


def train_steps(training: TrainState, rank: int, world_size: int, steps: int = 2) -> list[float]:
    losses = []
    for _ in range(steps):
        training.progress.step += 1
        loss = training.loss_module(TASK.collate(list(range(5))[rank::world_size]))
        loss.total.backward()
        losses.append(float(loss.total.detach()))
        for optimizer in training.optimizers:
            optimizer.step()
        training.model.zero_grad(set_to_none=True)
        assert training.ema
        training.ema.update(training.model, training.progress.step)
    return losses


def save(training: TrainState, root: Path, ranks: ProcessGroup, is_sharded: bool = False) -> None:
    if ranks.world_size > 1:
        save_sharded(root, training.export_state(), EXTRA, ranks, is_sharded)
    else:
        training.save(root, EXTRA)


def restore(path: Path, ranks: ProcessGroup, *options: Any) -> TrainState:
    training = make_training(ranks.world_size, *options)
    checkpoint = share_checkpoint(None if ranks.rank else open_lazy_checkpoint(path), ranks)
    assert checkpoint
    training.restore(checkpoint)
    return training


def read_files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def assert_equal_tensors(path: Path, expected_path: Path) -> None:
    actual, expected = read_checkpoint(path), read_checkpoint(expected_path)
    for group, tensors in expected.tensors.items():
        assert equal_tensors(dict(actual.tensors[group]), dict(tensors)), group


def assert_equal_checkpoints(path: Path, expected_path: Path) -> None:
    """Of the same kind, and equal to the bit but for the metadata of torch, whose order varies."""
    assert read_files(path).keys() == read_files(expected_path).keys()
    actual, expected = read_checkpoint(path), read_checkpoint(expected_path)
    assert actual.state == expected.state and actual.extra == expected.extra
    assert_equal_tensors(path, expected_path)
