"""Shared by the tests of onnx."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.export.conftest import Session, kept, padded
from torch import Tensor

from polyhead.run.run import Run

Make = Callable[..., tuple[Run, Path]]

Exported = tuple[Run, Path]

LLAMA = {
    "kind": "decoder", "position": "rope", "norm": "rmsnorm", "norm_first": True, "feed_forward": "swiglu",
    "n_kv_heads": 2, "attention": {"name": "softmax", "bias": False}, "scale_embedding": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def language(make: Make) -> Exported:
    return make("--to", "onnx", **LLAMA)


@pytest.fixture(scope="module")
def translator(make: Make) -> Exported:
    return make("--to", "onnx", n_kv_heads=2, v_head_dim=5)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def goes_on_like_the_model(run: Run, out: Path) -> None:
    """A language model: all at once, and in steps of several lengths, with padding on either side."""
    (tokens, mask, pos), session = padded(), Session(out / "model.onnx")
    wanted = run.model(tokens, pos)
    for cuts, there in (([0, 7], -1), ([0, 1, 2, 5, 7], 1)):  # what stands at padding makes no difference
        past, numbers = session.empty(3), pos.masked_fill(mask == 0, there)
        for begin, end in itertools.pairwise(cuts):
            given = {"input_ids": tokens[:, begin:end], "position_ids": numbers[:, begin:end]}
            found = session(**given, attention_mask=mask[:, :end], **past)
            past, real = kept(found), mask[:, begin:end] == 1
            assert not found["logits"].isnan().any()
            close(found["logits"][real], wanted[:, begin:end][real])
