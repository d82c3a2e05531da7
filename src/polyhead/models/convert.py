"""Trained models made over into others."""

from __future__ import annotations

import torch
from torch import Tensor

from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.models.build import Model, build
from polyhead.nn.weights import weights

POOLED = tuple(f"{side}_proj.{part}" for side in "kv" for part in ("weight", "bias"))


@torch.no_grad()
def pool_heads(model: Model, n_kv_heads: int) -> Model:
    """A copy with fewer heads of keys and values, each the mean of a group of those before (Ainslie et al., 2023, sec. 2.1).

    Group g are the heads that the query heads of the new head g have read so far, so head h reads the mean that its
    own is a part of. Everything else is copied. The result wants some training: a mean of heads is none of them.
    """
    config = pooled_config(model.config, n_kv_heads)
    made: Model = build(config)
    given, wanted = weights(model), weights(made)
    for name, tensor in wanted.items():
        if tensor.shape == given[name].shape:
            tensor.copy_(given[name])
        elif name.endswith(POOLED):
            tensor.copy_(means(given[name], model.config.kv_heads, n_kv_heads))
        else:
            raise UserError(
                f"{name} depends on n_kv_heads and is no projection of keys or values: its heads have no mean"
            )
    if all(tensor.shape == given[name].shape for name, tensor in wanted.items()):
        raise UserError("this model has no heads of keys and values to convert")
    return made.train(model.training)


def means(weight: Tensor, n: int, n_wanted: int) -> Tensor:
    """The rows of n heads -> those of n_wanted, each the mean of n / n_wanted neighbours: (n * D, ...) -> (n_wanted * D, ...)."""
    return weight.unflatten(0, (n_wanted, n // n_wanted, -1)).mean(1).flatten(0, 1)


def pooled_config(config: ModelConfig, n_kv_heads: int) -> ModelConfig:
    """The config with fewer heads of keys and values, or a UserError that says why they cannot be pooled."""
    n = config.kv_heads
    if not 1 <= n_kv_heads < n or n % n_kv_heads:
        fewer = ", ".join(str(k) for k in range(1, n) if n % k == 0)
        raise UserError(
            f"n_kv_heads ({n_kv_heads}) must be fewer than the {n} there are, and divide them: "
            + (f"one of {fewer}" if fewer else "there is only one already")
        )
    for field in ("attention", "decoder_attention", "cross_attention"):
        choice = getattr(config, field)
        if choice is not None and choice.options.get("tie") in ("qk", "qkv"):
            raise UserError(
                f"{field} has tie={choice.options['tie']}: queries and keys are one projection, and fewer key heads would "
                "take query heads away"
            )
    return ModelConfig.model_validate(config.model_dump() | {"n_kv_heads": n_kv_heads})
