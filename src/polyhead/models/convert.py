"""Trained models made over into others."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyhead.config import ModelConfig
from polyhead.errors import UserError
from polyhead.models.build import Model, model_class
from polyhead.nn.weights import weights
from polyhead.undrawn import Undrawn

POOLED = tuple(f"{side}_proj.{part}" for side in "kv" for part in ("weight", "bias"))
NORM = ".k_norm.heads."  # of keys by factors of each head's own, which a parameter for each head holds


@torch.no_grad()
def pool_heads(model: Model, n_kv_heads: int) -> Model:
    """A copy with fewer heads of keys and values, each the mean of a group of those before (Ainslie et al., 2023, sec. 2.1).

    Group g are the heads that the query heads of the new head g have read so far, so head h reads the mean that its
    own is a part of; so it is with norms of keys by factors of each head's own. Everything else is copied, as is the type of
    the numbers and the device. The result wants some training: a mean of heads is none of them.
    """
    config, like = pooled_config(model.config, n_kv_heads), next(model.parameters())
    with Undrawn():
        made: Model = model_class(config)(config).to(like.device, like.dtype)
    given, wanted, n = weights(model), weights(made), model.config.kv_heads
    for name in given:
        if name not in wanted and NORM not in name:
            raise _no_mean(name)
    for name, tensor in wanted.items():
        if NORM in name:
            tensor.copy_(_mean_norm(name, given, n // n_kv_heads))
        elif tensor.shape == given[name].shape:
            tensor.copy_(given[name])
        elif name.endswith(POOLED):
            tensor.copy_(means(given[name], n, n_kv_heads))
        else:
            raise _no_mean(name)
    if all(tensor.shape == given[name].shape for name, tensor in wanted.items()):
        raise UserError("this model has no heads of keys and values to convert")
    return made.train(model.training)


def means(weight: Tensor, n: int, n_wanted: int) -> Tensor:
    """The rows of n heads -> those of n_wanted, each the mean of n / n_wanted neighbours: (n * D, ...) -> (n_wanted * D, ...)."""
    return weight.unflatten(0, (n_wanted, n // n_wanted, -1)).mean(1).flatten(0, 1)


def _no_mean(name: str) -> UserError:
    return UserError(
        f"{name} depends on n_kv_heads and is no projection of keys or values: its heads have no mean"
    )


def _mean_norm(name: str, given: Mapping[str, Tensor], size: int) -> Tensor:
    """The factors (D,) of a head of keys: the mean of those of the ``size`` heads that it is the mean of."""
    stem, _, head = name.rpartition(".")
    group = range(int(head) * size, (int(head) + 1) * size)
    return torch.stack([given[f"{stem}.{h}"] for h in group]).mean(0)


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
