"""Training on ranks that have the whole model: gradients are sums over them, as in one process."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

import pytest
import torch
from tests.train.distributed.test_shard_model import DESIGNS, SIZES, compare
from tests.train.several import together
from tests.train.test_loss_module import TOKENS, NextTokens
from torch import Tensor, nn

from polyhead.config.model import ModelConfig
from polyhead.config.recipe import TrainConfig
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.models import build
from polyhead.nn.loss import Loss
from polyhead.train.distributed import replicate_model
from polyhead.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from polyhead.train.loop import train_step
from polyhead.train.train_state import TrainState

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5", "A6")]


class Parts(nn.Module):
    """Linear parts, of which a batch uses the first and those that it names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name in ("first", "frozen", "some", "before", "unused"):
            self.add_module(name, nn.Linear(4, 4).double())


class Sum:
    """The sum of the outputs: a batch is its rows, and the names of the parts that it uses."""

    def count_labels(self, batch: tuple[Tensor, list[str]]) -> int:
        return len(batch[0])

    def loss(self, model: nn.Module, batch: tuple[Tensor, list[str]]) -> Loss:
        x, names = batch
        for name in ("first", "frozen", *names):
            x = model.get_submodule(name)(x)
        return Loss(x.sum(), x.detach().sum(), len(batch[0]))


def add_up(
    training: TrainState, task: Sum, batches: list[tuple[Tensor, list[str]]], ranks: ProcessGroup
) -> dict[str, Any]:
    """The gradients of some batches."""
    root = training.bind_ranks(task, ranks)
    for i, batch in enumerate(batches, 1):
        with training.reduce_gradients(ranks, i == len(batches)):
            root(batch).total.backward()
    grads = {
        name: None if p.grad is None else p.grad.tolist() for name, p in training.model.named_parameters()
    }
    training.model.zero_grad(set_to_none=True)
    return grads


@pytest.mark.acceptance("G2")
def test_gradients_are_sums_and_parts_that_no_rank_used_have_none() -> None:
    """A part may be used on one rank alone, and before the last batch alone. Buckets leave while others are
    computed.
    """

    def rows(rank: int) -> Tensor:
        return torch.randn(2, 4, generator=torch.Generator().manual_seed(rank)).double()

    def batches(rank: int) -> list[tuple[Tensor, list[str]]]:
        return [(rows(rank), ["before"] if rank == 2 else []), (rows(rank + 3), ["some"] if rank else [])]

    def made() -> TrainState:
        return TrainState(Parts(), TrainConfig(steps=1, precision="fp32", freeze=["frozen"]), 4, 1)

    def work(ranks: ProcessGroup) -> Any:
        training, task, left = made(), Sum(), []
        real = replicate_model.sum_bucket

        @wraps(real)
        def note(group: Any, bucket: Any) -> Any:
            left.append(training.model.get_submodule("first").weight.grad is not None)
            return real(group, bucket)

        one_each = partial(nn.parallel.DistributedDataParallel, bucket_cap_mb=1e-6)  # tensors in a bucket
        replicate_model.DistributedDataParallel = one_each  # type: ignore[misc, assignment]
        replicate_model.sum_bucket = note
        found = [add_up(training, task, batches(ranks.rank), ranks) for _ in range(2)]
        left.clear()
        add_up(training, task, batches(ranks.rank)[1:], ranks)
        return [found, left]

    ends = together(3, work, timeout=60)
    all_batches = [batch for rank in range(3) for batch in batches(rank)]
    alone = add_up(made(), Sum(), all_batches, SINGLE_PROCESS)
    assert [name for name, grad in alone.items() if grad is None] == [
        f"{part}.{name}" for part in ("frozen", "unused") for name in ("weight", "bias")
    ]
    for rank, end in enumerate(ends):
        found, left = end.said
        for grads in found:
            assert grads.keys() == alone.keys()
            for name, grad in alone.items():
                assert (grads[name] is None) == (grad is None), name
                assert grad is None or torch.allclose(torch.tensor(grads[name]), torch.tensor(grad)), name
        assert len(left) == 8 and left[-1]
        assert not rank or not any(left[:6])  # of all parts but the first


def test_designs_learn_as_one_process() -> None:
    """Also with a rank that has no rows."""
    compare([name for name in DESIGNS if name != "muon"], 3, {"shard": 1})


def test_batches_without_labels_change_no_sum() -> None:
    """The last one of a step is where gradients would be reduced; a step may have none at all."""

    def batch(rows: list[int], labelled: bool) -> TokenWindows:
        labels = TOKENS[rows][:, 1:]
        return TokenWindows(TOKENS[rows][:, :-1], None, labels if labelled else torch.full_like(labels, -100))

    def work(ranks: ProcessGroup) -> Any:
        config = TrainConfig(steps=9, precision="fp32", accumulate=2)
        training = TrainState(build(ModelConfig.model_validate(SIZES), 1).double(), config, 16, 9)
        found: list[Any] = []
        for labelled in [(True, False), (False, False), (False, True)]:
            training.progress.step += 1
            rows = [0, 3][ranks.rank :: ranks.world_size]
            batches = [batch(rows, is_labelled) for is_labelled in labelled]
            found.append(train_step(training, NextTokens(), batches, config, ranks))
        return [found, [p.flatten().tolist() for p in training.model.parameters()]]

    alone = work(SINGLE_PROCESS)
    assert alone[0] == ["", "no labels, nothing to learn", ""]
    for end in together(2, work, timeout=60):
        assert end.said[0] == alone[0]
        for ours, theirs in zip(end.said[1], alone[1], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-6)
