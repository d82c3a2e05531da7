"""Gradients summed over processes while the backward pass still computes others (Li et al., 2020, sec. 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

BUCKET = 25 * 2**20  # bytes that travel together

Start = Callable[[Tensor], Callable[[], None]]
"""Begins to sum a tensor over ranks, in place; what it returns waits for the end of that."""


class Bucket:
    """Some parameters whose gradients travel as one tensor, and behind them, for each, on how many ranks it has one."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.missing: set[nn.Parameter] = set()
        self.flat = torch.empty(0)
        self.wait: Callable[[], None] = lambda: None

    def send(self, start: Start) -> None:
        """Begin the sum; where there is no gradient, zeros travel."""
        grads = [p.grad for p in self.parameters]
        parts = [
            torch.zeros_like(p).flatten() if grad is None else grad.flatten()
            for p, grad in zip(self.parameters, grads, strict=True)
        ]
        there = parts[0].new_tensor([grad is not None for grad in grads])
        self.flat = torch.cat([*parts, there])
        self.wait = start(self.flat)

    def receive(self) -> None:
        """Wait for the sum, and leave each parameter its own: none where no rank had one, as in one process."""
        self.wait()
        sizes = [p.numel() for p in self.parameters]
        *sums, there = self.flat.split([*sizes, len(sizes)])
        for p, total, ranks in zip(self.parameters, sums, there.tolist(), strict=True):
            p.grad = total.view_as(p) if ranks else None
        self.flat = torch.empty(0)


class Gradients:
    """The gradients of a model, in buckets. Those computed first, the last layers', travel first.

    All ranks send the same buckets in the same order, whatever each of them has computed: a bucket waits for those
    before it, and what is not complete at the end goes then.
    """

    def __init__(self, model: nn.Module, start: Start, size: int = BUCKET) -> None:
        self.model, self.start, self.sent, self.nbytes = model, start, 0, 0
        learning = [p for p in model.parameters() if p.requires_grad][::-1]
        self.buckets = [Bucket(group) for group in _groups(learning, size)]
        self.of = {p: bucket for bucket in self.buckets for p in bucket.parameters}

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Gradients that are accumulated within are complete; behind it all are sums over ranks."""
        self.sent = 0
        for bucket in self.buckets:
            bucket.missing = set(bucket.parameters)
        hooks = [p.register_post_accumulate_grad_hook(self._complete) for p in self.of]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self._send(len(self.buckets))
        for bucket in self.buckets:
            bucket.receive()

    def _complete(self, p: Tensor) -> None:
        """A gradient is there; what is whole, and has nothing unsent before it, goes."""
        assert isinstance(p, nn.Parameter)
        self.of[p].missing.discard(p)
        ready = self.sent
        while ready < len(self.buckets) and not self.buckets[ready].missing:
            ready += 1
        self._send(ready)

    def _send(self, until: int) -> None:
        for bucket in self.buckets[self.sent : until]:
            bucket.send(self.start)
            self.nbytes += bucket.flat.nbytes
        self.sent = max(self.sent, until)


def _groups(parameters: list[nn.Parameter], size: int) -> Iterator[list[nn.Parameter]]:
    """Neighbours of one kind, together at most ``size`` bytes unless one alone is more."""
    cuts, filled = [0], 0
    for i, (before, p) in enumerate(pairwise(parameters), 1):
        filled += before.nbytes
        if filled + p.nbytes > size or (p.dtype, p.device) != (before.dtype, before.device):
            cuts.append(i)
            filled = 0
    for first, last in pairwise([*cuts, len(parameters)]):
        yield parameters[first:last]
