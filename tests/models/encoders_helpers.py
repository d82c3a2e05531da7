"""Shared by the tests of encoders."""

from __future__ import annotations

import torch

from polyhead.config.model import ModelConfig
from polyhead.models import build

SIZES = {
    "kind": "encoder",
    "vocab_size": 13,
    "d_model": 8,
    "n_heads": 2,
    "n_layers": 2,
    "max_len": 12,
    "dropout": 0.0,
}


def made(**changes):
    model = build(ModelConfig(**{**SIZES, **changes}), seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.eval()
