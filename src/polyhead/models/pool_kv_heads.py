"""Convert a trained model to grouped-query attention by pooling its key/value heads."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.models.build import Model, model_class
from polyhead.nn.init import SkipInit
from polyhead.nn.state import named_state

_KV_PROJ_SUFFIXES = tuple(f"{side}_proj.{part}" for side in "kv" for part in ("weight", "bias"))
_K_NORM_HEADS = ".k_norm.heads."  # per-head norms of keys, one parameter per head


@torch.no_grad()
def pool_kv_heads(model: Model, n_kv_heads: int) -> Model:
    """Copy a model with fewer key/value heads, each the mean of a group of the old ones.

    Group g is the heads that the query heads of new head g attended to, so query head h attends to the mean
    that includes its old head (Ainslie et al., 2023, sec. 2.1); per-head norms of keys are pooled alike. All
    else is copied, including dtype and device. The result needs some further training, since a mean of heads
    equals none of them.
    """
    config, reference = pooled_config(model.config, n_kv_heads), next(model.parameters())
    with SkipInit():
        pooled: Model = model_class(config)(config).to(reference.device, reference.dtype)
    source, target, n = named_state(model), named_state(pooled), model.config.kv_heads
    for name in source:
        if name not in target and _K_NORM_HEADS not in name:
            raise _unpoolable_error(name)
    for name, tensor in target.items():
        if _K_NORM_HEADS in name:
            tensor.copy_(_average_norms(name, source, n // n_kv_heads))
        elif tensor.shape == source[name].shape:
            tensor.copy_(source[name])
        elif name.endswith(_KV_PROJ_SUFFIXES):
            tensor.copy_(average_head_groups(source[name], n, n_kv_heads))
        else:
            raise _unpoolable_error(name)
    if all(tensor.shape == source[name].shape for name, tensor in target.items()):
        raise UserError("this model has no key/value heads to convert")
    return pooled.train(model.training)


def average_head_groups(weight: Tensor, n_heads: int, n_groups: int) -> Tensor:
    """Average neighbouring heads to ``n_groups``: (n_heads * D, ...) -> (n_groups * D, ...)."""
    return weight.unflatten(0, (n_groups, n_heads // n_groups, -1)).mean(1).flatten(0, 1)


def _unpoolable_error(name: str) -> UserError:
    return UserError(
        f"{name} depends on n_kv_heads but is not a key or value projection: its heads cannot be averaged"
    )


def _average_norms(name: str, state: Mapping[str, Tensor], group_size: int) -> Tensor:
    """Average the norm weights (D,) of the ``group_size`` key heads that were pooled into one."""
    stem, _, head = name.rpartition(".")
    group = range(int(head) * group_size, (int(head) + 1) * group_size)
    return torch.stack([state[f"{stem}.{h}"] for h in group]).mean(0)


def pooled_config(config: ModelConfig, n_kv_heads: int) -> ModelConfig:
    """The config with fewer key/value heads, or a UserError with the reason why they cannot be pooled."""
    n = config.kv_heads
    if not 1 <= n_kv_heads < n or n % n_kv_heads:
        fewer = ", ".join(str(k) for k in range(1, n) if n % k == 0)
        raise UserError(
            f"n_kv_heads ({n_kv_heads}) must be less than {n} and divide it: "
            + (f"one of {fewer}" if fewer else "there is only one")
        )
    if config.encoder is not None:
        raise UserError("the encoder has sizes of its own: its key heads cannot be pooled")
    for field in ("attention", "decoder_attention", "cross_attention"):
        choice = getattr(config, field)
        if choice is not None and choice.options.get("projections") == "none":
            raise UserError(f"{field} has projections=none, so its key heads have no weights to pool")
        if choice is not None and choice.options.get("tie") in ("qk", "qkv"):
            raise UserError(
                f"{field} has tie={choice.options['tie']}: queries and keys share one projection, so fewer "
                "key heads would remove query heads"
            )
    return ModelConfig.model_validate(config.model_dump() | {"n_kv_heads": n_kv_heads})
