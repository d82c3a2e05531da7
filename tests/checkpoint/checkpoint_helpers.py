"""Tensors of tests of checkpoints, and comparisons of them bit for bit."""

import os

import torch
from torch import Tensor


def make_training_tensors(value):
    return {
        "model": {"w": torch.full((8, 8), value), "b": torch.zeros(8)},
        "optimizer": {"state/0/exp_avg": torch.full((8, 8), value), "state/0/step": torch.tensor(value)},
        "rng": {"cpu": torch.arange(64, dtype=torch.uint8)},
    }


def make_filled_tensors(value):
    """Tensors of one absolute value, so that a mix of two saves shows."""
    return {"model": {"w": torch.full((4, 4), value)}, "optimizer": {"m": torch.full((4, 4), -value)}}


def read_filled_value(checkpoint):
    """The one value that fills a checkpoint of ``make_filled_tensors``; a mix of two saves has none."""
    tensors = [tensor for group in checkpoint.tensors.values() for tensor in group.values()]
    (value,) = {x for tensor in tensors for x in tensor.abs().flatten().tolist()}
    assert checkpoint.state == {"value": value}
    return float(value)


def list_leftovers(root):
    return sorted(name for name in os.listdir(root) if ".tmp-" in name or ".old-" in name)


def run_in_fork(function):
    """The exit code of a forked process, 0 if the function returns; minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def has_same_bits(a, b):
    raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)


def is_identical(a, b):
    """Equal values of equal types; tensors bit for bit, and NaN equals NaN."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and has_same_bits(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_identical(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(is_identical, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))
