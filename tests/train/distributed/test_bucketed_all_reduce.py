"""Tests of train/distributed/bucketed_all_reduce.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.train.several import together
from torch import Tensor, nn

from polyhead.nn.feed_forward.moe import MixtureOfExperts
from polyhead.train.distributed.bucketed_all_reduce import BucketedAllReduce
from polyhead.train.distributed.process_group import ProcessGroup

pytestmark = [pytest.mark.usefixtures("unsynced"), pytest.mark.acceptance("G5", "A6")]


def two_halves(tensor: Tensor) -> Callable[[], None]:
    """As if another rank had the same."""
    tensor *= 2
    return lambda: None


@pytest.mark.parametrize("size", [1, 200, 10**6])
def test_gradients_travel_in_buckets_and_those_that_are_nowhere_stay_so(size: int) -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 5), "unused": nn.Linear(3, 3), "frozen": nn.Linear(5, 2)})
    model["frozen"].requires_grad_(False)
    gradients = BucketedAllReduce(model, two_halves, size)
    assert sum(len(bucket.parameters) for bucket in gradients.buckets) == 4
    assert len(gradients.buckets) == {1: 4, 200: 1, 10**6: 1}[size]
    x = torch.randn(2, 4)
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        with gradients.reduce_gradients():
            model["frozen"](model["used"](x)).sum().backward()
        wanted = torch.autograd.grad(
            model["frozen"](model["used"](x)).sum(), list(model["used"].parameters())
        )
        for p, grad in zip(model["used"].parameters(), wanted, strict=True):
            torch.testing.assert_close(p.grad, 2 * grad)
        assert all(p.grad is None for name in ("unused", "frozen") for p in model[name].parameters())
    assert gradients.nbytes == 2 * 4 * (
        25 + 12 + 4
    )  # two updates of 37 numbers and a flag for each of four tensors


def test_gradients_leave_while_others_are_computed() -> None:
    """The last layer's are on their way before the first layer's exist."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    first: nn.Linear = model[0]  # type: ignore[assignment]
    seen: list[bool] = []

    def start(tensor: Tensor) -> Callable[[], None]:
        seen.append(first.weight.grad is not None)
        return lambda: None

    gradients = BucketedAllReduce(model, start, 80)
    with gradients.reduce_gradients():
        model(torch.randn(2, 4)).sum().backward()
    assert seen == [False, False, True]


@pytest.mark.acceptance("G2")
def test_ranks_that_have_computed_different_parts_send_the_same_buckets() -> None:
    """Experts that a rank's tokens did not pick have no gradient there, and have one
    elsewhere, or nowhere.
    """

    def layer() -> MixtureOfExperts:
        torch.manual_seed(0)
        return MixtureOfExperts(8, 16, n_experts=6, top_k=1, normalize=False)

    tokens = torch.randn(6, 8, generator=torch.Generator().manual_seed(4))[None]

    def work(ranks: ProcessGroup) -> dict[str, Any]:
        experts = layer()
        with ranks.reduce_gradients(experts):
            for i in range(ranks.rank, 6, 4):  # two ranks have two tokens, two have one
                experts(tokens[:, i : i + 1]).square().sum().backward()
        return {name: None if p.grad is None else p.grad.tolist() for name, p in experts.named_parameters()}

    ends = together(4, work)
    alone = layer()
    for i in range(6):
        alone(tokens[:, i : i + 1]).square().sum().backward()
    missing = 0
    for name, p in alone.named_parameters():
        assert ends[0].said[name] == ends[1].said[name] == ends[3].said[name]
        missing += p.grad is None
        if p.grad is None:
            assert ends[0].said[name] is None, name
        else:
            torch.testing.assert_close(torch.tensor(ends[0].said[name]), p.grad, rtol=1e-5, atol=1e-6)
    assert missing
