"""Models of several designs and their inputs, for the tests of levers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyhead import ModelConfig, build
from polyhead.explain.levers.lever_input import LeverInput

V = 40
SIZES = {"vocab_size": V, "d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 24, "max_len": 32, "dropout": 0}


def make_model(kind: str = "decoder", **changes: Any) -> Any:
    """A small model with weights large enough that every change shows."""
    model = build(ModelConfig(kind=kind, **{**SIZES, **changes}), seed=1).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5).add_(0.1 * torch.randn_like(p))
    return model


def make_input(model: Any, length: int = 9) -> LeverInput:
    """Random tokens as the model reads them, each with a true next token, class or token of its own."""
    torch.manual_seed(3)
    tokens = torch.randint(5, V, (length,)).tolist()
    words = [[1, 2], [3], [4, 5], [6, 7]]
    rows: list[int | None] = [*range(length)]
    labels: list[int | None] = [*tokens[1:], None]
    config = model.config
    if config.kind == "encoder-decoder":
        source = torch.randint(5, V, (length + 1,)).tolist()
        return LeverInput(model, tokens, rows, labels, words, 2, source)
    if config.kind == "decoder":
        return LeverInput(model, tokens, rows, labels, words, 2)
    if config.labels:
        return LeverInput(model, tokens, [None], [None], words, 2)
    return LeverInput(model, tokens, rows, [*tokens], words, 2)


def run_model(model: Any, lever_input: LeverInput) -> Tensor:
    """Logits of the model itself on the input, (R, V)."""
    sides = [lever_input.tokens] if lever_input.source is None else [lever_input.source, lever_input.tokens]
    with torch.no_grad():
        logits = model(*(torch.tensor([side]) for side in sides))
    return logits if lever_input.rows == [None] else logits[0]
