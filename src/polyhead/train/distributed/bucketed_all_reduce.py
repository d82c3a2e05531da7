"""All-reduce of gradients in buckets, overlapped with the backward pass (Li et al., 2020, sec. 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

from polyhead.train.distributed.local_tensor import get_local, replace_local

BUCKET_BYTES = 25 * 2**20  # maximum bytes of a bucket

AsyncAllReduce = Callable[[Tensor], Callable[[], None]]
"""Starts an in-place sum of a tensor over ranks; returns a function that waits for it."""


class Bucket:
    """Parameters whose gradients are all-reduced as one flat tensor.

    After the gradients the tensor has one number for each parameter: on how many ranks it has a gradient.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.pending_params: set[nn.Parameter] = set()
        self.flat_buffer = torch.empty(0)
        self.wait: Callable[[], None] = lambda: None

    def start_reduce(self, all_reduce: AsyncAllReduce) -> None:
        """Start the all-reduce, with zeros for parameters without a gradient."""
        grads = [p.grad for p in self.parameters]
        parts = [
            torch.zeros_like(get_local(p)).flatten() if grad is None else get_local(grad).flatten()
            for p, grad in zip(self.parameters, grads, strict=True)
        ]
        has_grad = parts[0].new_tensor([grad is not None for grad in grads])
        self.flat_buffer = torch.cat([*parts, has_grad])
        self.wait = all_reduce(self.flat_buffer)

    def finish_reduce(self) -> None:
        """Wait for the sum and set each ``p.grad``; None if no rank has a gradient, as in one process."""
        self.wait()
        sizes = [get_local(p).numel() for p in self.parameters]
        *sums, grad_counts = self.flat_buffer.split([*sizes, len(sizes)])
        for p, total, grad_count in zip(self.parameters, sums, grad_counts.tolist(), strict=True):
            p.grad = replace_local(p, total.view_as(get_local(p))) if grad_count else None
        self.flat_buffer = torch.empty(0)


class BucketedAllReduce:
    """The gradients of a model, in buckets. Those of the last layers, computed first, are reduced first.

    All ranks reduce the same buckets in the same order, whichever gradients they have: a bucket waits for
    those before it, and incomplete buckets are reduced at the end.
    """

    def __init__(
        self, model: nn.Module, all_reduce: AsyncAllReduce, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self.model, self.all_reduce, self.n_sent, self.nbytes = model, all_reduce, 0, 0
        trainable = [p for p in model.parameters() if p.requires_grad][::-1]
        self.buckets = [Bucket(group) for group in _group_parameters(trainable, bucket_bytes)]
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}

    @contextmanager
    def reduce_gradients(self) -> Iterator[None]:
        """Context for the last backward pass before a step; at its end gradients are sums over ranks."""
        self.n_sent = 0
        for bucket in self.buckets:
            bucket.pending_params = set(bucket.parameters)
        hooks = [p.register_post_accumulate_grad_hook(self._mark_ready) for p in self.bucket_of]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self._send_buckets(len(self.buckets))
        for bucket in self.buckets:
            bucket.finish_reduce()

    def _mark_ready(self, p: Tensor) -> None:
        """Hook for a complete gradient: start all complete buckets that have no unsent bucket before them."""
        assert isinstance(p, nn.Parameter)
        self.bucket_of[p].pending_params.discard(p)
        ready = self.n_sent
        while ready < len(self.buckets) and not self.buckets[ready].pending_params:
            ready += 1
        self._send_buckets(ready)

    def _send_buckets(self, end: int) -> None:
        for bucket in self.buckets[self.n_sent : end]:
            bucket.start_reduce(self.all_reduce)
            self.nbytes += bucket.flat_buffer.nbytes
        self.n_sent = max(self.n_sent, end)


def _group_parameters(parameters: list[nn.Parameter], bucket_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Groups of consecutive parameters of one dtype and device, of at most ``bucket_bytes`` bytes.

    A larger parameter is a group of its own.
    """
    cuts, n_bytes = [0], 0
    for i, (previous, p) in enumerate(pairwise(parameters), 1):
        n_bytes += previous.nbytes
        if n_bytes + p.nbytes > bucket_bytes or (p.dtype, p.device) != (previous.dtype, previous.device):
            cuts.append(i)
            n_bytes = 0
    for start, end in pairwise([*cuts, len(parameters)]):
        yield parameters[start:end]
