"""A batch in, its loss out: what DistributedDataParallel, fully_shard and compile can take as their root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.rank_runs import recipe_of
from tests.train.distributed.test_process_group import KINDS
from tests.train.evaluation_helpers import opened
from tests.train.several import together
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from polyhead.config.config_sections import DistillConfig
from polyhead.config.model import ModelConfig
from polyhead.data.batching.token_windows import TokenWindows, make_dummy_windows
from polyhead.models import build
from polyhead.nn.loss import Loss
from polyhead.train.distill import DistillationTask, Teacher
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.loss_module import LossModule
from polyhead.train.tasks.causal_lm_common import causal_lm_loss, count_causal_lm_labels

TOKENS = torch.randint(0, 23, (5, 8), generator=torch.Generator().manual_seed(3))


class NextTokens:
    """Every token but the last predicts the next one."""

    def collate(self, rows: list[int]) -> TokenWindows:
        tokens = TOKENS[rows]
        return TokenWindows(tokens[:, :-1], None, tokens[:, 1:]) if rows else make_dummy_windows()

    def count_labels(self, batch: TokenWindows) -> int:
        return count_causal_lm_labels(batch)

    def loss(self, model: nn.Module, batch: TokenWindows) -> Loss:
        return causal_lm_loss(model, batch, 0.1)


def made() -> LossModule:
    """With a head that shares the weights of the embedding, which the loss reads by itself, and with experts
    that not every rank has tokens for. In fp64, but for the loss, so that no order of sums matters.
    """
    config = ModelConfig(kind="decoder", vocab_size=23, d_model=16, n_heads=2, n_layers=2, d_ff=16, max_len=8,
        dropout=0.0, feed_forward={"name": "moe", "n_experts": 8, "balance": False})  # fmt: skip
    return LossModule(build(config, 1).double(), NextTokens())


def learned(module: nn.Module, rows: list[int], scale: float = 1.0) -> list[Any]:
    """Losses of two steps on the same rows, and the label count."""
    optimizer, found = torch.optim.SGD(module.parameters(), 1e-2), []
    for _ in range(2):
        loss = module(NextTokens().collate(rows))
        (loss.total * scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        found += [float(loss.total.detach()), loss.count]
    return found


def test_forward_is_the_loss_of_the_task() -> None:
    module = made()
    batch = NextTokens().collate([0, 1, 2])
    loss, wanted = module(batch), causal_lm_loss(module.model, batch, 0.1)
    assert loss.count == 21 and torch.equal(loss.total, wanted.total) and torch.equal(loss.nll, wanted.nll)
    assert [name.removeprefix("model.") for name, _ in module.named_parameters()] == [
        name for name, _ in module.model.named_parameters()
    ]


@pytest.mark.parametrize("kind", [*KINDS, "distillation"])
def test_a_dummy_batch_of_a_task_adds_nothing_to_any_weight(kind: str, place: Path) -> None:
    """All weights of a real batch have a gradient, which is zero."""
    run, task = opened(recipe_of(place, "masked-lm" if kind == "distillation" else kind, f"dummy-{kind}"))
    if kind == "distillation":
        teacher, _ = opened(recipe_of(place, "masked-lm", "dummy-teacher"))
        config = DistillConfig(teacher=["dummy-teacher"], hidden_weight=1.0)
        task = DistillationTask(task, [Teacher(teacher, task)], config)
    module, grads = LossModule(run.model, task), []
    for batch in (task.collate(task.largest_batch()), task.dummy_batch()):
        loss = module(batch)
        assert loss.count == task.count_labels(batch)
        grads.append(torch.autograd.grad(loss.total, list(run.model.parameters()), allow_unused=True))
    assert loss.count == float(loss.total.detach()) == float(loss.nll) == 0
    for (name, _), learned, dummy in zip(run.model.named_parameters(), *grads, strict=True):
        assert (learned is None) == (dummy is None), name
        assert dummy is None or not dummy.count_nonzero(), name


def weights(module: nn.Module) -> list[list[float]]:
    """All weights, whole."""

    def whole(p: Tensor) -> Tensor:
        return p.full_tensor() if isinstance(p, DTensor) else p

    return [whole(p.detach()).flatten().tolist() for p in module.parameters()]


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("wrapper", ["replicated", "sharded"])
def test_wrappers_of_torch_learn_as_one_process(wrapper: str) -> None:
    """Three processes, the last without rows: their sums are those of one that has all rows."""

    def work(ranks: ProcessGroup) -> list[Any]:
        module = made()
        if wrapper == "sharded":
            for layer in module.model.stack.layers:
                fully_shard(layer)
            fully_shard(module)
            for part in module.modules():
                if hasattr(part, "set_gradient_divide_factor"):
                    part.set_gradient_divide_factor(1.0)
                    part.set_force_sum_reduction_for_comms(True)
            root: nn.Module = module
        else:
            root = nn.parallel.DistributedDataParallel(module)
        rows = [[0, 2], [1, 3, 4], []][ranks.rank]
        found = learned(root, rows, scale=1.0 if wrapper == "sharded" else 3.0)  # DDP takes the mean
        size = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in module.parameters())
        return [found, weights(module), size]

    alone = made()
    wanted = learned(alone, [0, 1, 2, 3, 4])
    ends = together(3, work, timeout=60)
    assert [end.code for end in ends] == [0] * 3, ends
    for step in (0, 2):
        assert sum(end.said[0][step] for end in ends) == pytest.approx(wanted[step], rel=1e-6)
    for end in ends:
        for ours, theirs in zip(end.said[1], weights(alone), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-6)
    n = sum(p.numel() for p in alone.parameters())
    sizes = [end.said[2] for end in ends]
    assert sizes == [n] * 3 if wrapper == "replicated" else sum(sizes) == n and max(sizes) < 0.5 * n
