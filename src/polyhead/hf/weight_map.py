"""Map Hugging Face weight names to ours and back: one table per family, used in both directions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyhead.config.model import ModelConfig


class TensorTransform(NamedTuple):
    """Conversion of our tensors to one Hugging Face tensor and back."""

    join: Callable[[Sequence[Tensor]], Tensor]
    split: Callable[[Tensor, list[int]], Sequence[Tensor]]  # with the number of rows of each of our tensors


IDENTITY = TensorTransform(lambda params: params[0], lambda tensor, rows: [tensor])
# separate memory: tensors that share memory under two names are written once
COPY = TensorTransform(lambda params: params[0].clone(), IDENTITY.split)
STACK = TensorTransform(lambda params: torch.stack(list(params)), lambda tensor, rows: tensor.unbind())
TRANSPOSE = TensorTransform(lambda params: params[0].T, lambda tensor, rows: [tensor.T])
CONCAT = TensorTransform(lambda params: torch.cat(list(params)), lambda tensor, rows: tensor.split(rows))
CONCAT_TRANSPOSE = TensorTransform(
    lambda params: torch.cat(list(params)).T, lambda tensor, rows: tensor.T.split(rows)
)


def per_head_qkv(config: ModelConfig) -> TensorTransform:
    """Interleave q, k and v per key/value head: queries of the first group, its key and value, then the next;
    (n_kv_heads x ..., ...).
    """

    def join(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([x.unflatten(0, (config.kv_heads, -1)) for x in tensors], 1).flatten(0, 1)

    def split(tensor: Tensor, rows: list[int]) -> Sequence[Tensor]:
        parts = tensor.unflatten(0, (config.kv_heads, -1)).split([n // config.kv_heads for n in rows], 1)
        return [x.flatten(0, 1) for x in parts]

    return TensorTransform(join, split)


def per_expert(config: ModelConfig) -> TensorTransform:
    """Stack all experts in one tensor: (n_experts, ..., ...)."""
    count = config.feed_forward.options.get("n_experts", 1)
    return TensorTransform(
        lambda params: torch.cat(list(params)).unflatten(0, (count, -1)),
        lambda tensor, rows: tensor.flatten(0, 1).split(rows),
    )


def halves_swapped(config: ModelConfig) -> TensorTransform:
    """Swap the two halves of each head's features, which reverses the direction of rope."""
    half = config.attention_shape(causal=True).head_dim // 2

    def swap(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, 2, half)).flip(1).flatten(0, 2)

    return TensorTransform(lambda params: swap(params[0]), lambda tensor, rows: [swap(tensor)])


AnyTransform = TensorTransform | Callable[[ModelConfig], TensorTransform]


class WeightRule(NamedTuple):
    """A Hugging Face name and our names of the parameters that it holds.

    ``{n}`` in both is the number of a layer, ``{e}`` that of an expert, ``{q}`` that of a query head and
    ``{k}`` that of a key/value head. With ``{e}`` in our names alone the tensor holds the parameters of the
    first expert, then those of the second, and so on; likewise for heads.
    """

    hf_name: str
    param_names: tuple[str, ...]
    transform: AnyTransform = IDENTITY
    condition: Callable[[ModelConfig], bool] = lambda config: True  # which models have it


class BoundRule(NamedTuple):
    """A row for one layer of one model."""

    hf_name: str
    param_names: tuple[str, ...]
    transform: TensorTransform


def weight(
    hf_name: str,
    *param_names: str,
    transform: AnyTransform = IDENTITY,
    condition: Callable[[ModelConfig], bool] = lambda config: True,
) -> list[WeightRule]:
    """Return the row of one tensor."""
    return [WeightRule(hf_name, param_names, transform, condition)]


def linear(
    hf_name: str, *param_names: str, weight: AnyTransform = IDENTITY, bias: AnyTransform = IDENTITY
) -> list[WeightRule]:
    """Return the rows of a weight and its bias."""
    steps = {"weight": weight, "bias": bias}
    return [
        WeightRule(f"{hf_name}.{kind}", tuple(f"{name}.{kind}" for name in param_names), step)
        for kind, step in steps.items()
    ]


def bind_rules(
    table: Iterable[WeightRule], state: Mapping[str, Tensor], config: ModelConfig
) -> Iterator[BoundRule]:
    """Yield the rows for a model with these weights, layer by layer. Rows of absent parameters, such as
    biases or a head, are skipped.
    """
    for row in filter(lambda row: row.condition(config), table):
        step = row.transform if isinstance(row.transform, TensorTransform) else row.transform(config)
        for hf_name, *names in _expand_names((row.hf_name, *row.param_names), config):
            if all(name in state for name in names):
                yield BoundRule(hf_name, tuple(names), step)


def _expand_names(names: tuple[str, ...], config: ModelConfig) -> Iterator[list[str]]:
    """Yield the names with each layer number for {n}, and each expert or head number for its placeholder."""
    layers = range(max(config.n_layers, config.decoder_layers)) if "{n}" in names[0] else (0,)
    experts = config.feed_forward.options.get("n_experts", 0)
    counts = {"{e}": experts, "{q}": config.n_heads, "{k}": config.kv_heads}
    hf_name, *param_names = names
    placeholder = next((placeholder for placeholder in counts if placeholder in "".join(names)), "{e}")
    numbers = range(counts[placeholder])
    if placeholder not in hf_name and placeholder in "".join(param_names):
        names = (hf_name, *(name.replace(placeholder, str(e)) for e in numbers for name in param_names))
    for n, e in itertools.product(layers, numbers if placeholder in hf_name else (0,)):
        yield [name.replace("{n}", str(n)).replace(placeholder, str(e)) for name in names]


def to_hf(table: Iterable[WeightRule], state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Convert our weights to those of a checkpoint."""
    rules = list(bind_rules(table, state, config))
    assert {name for row in rules for name in row.param_names} == state.keys(), (
        "the weight map of the family is incomplete"
    )
    return {row.hf_name: row.transform.join([state[name] for name in row.param_names]) for row in rules}


def from_hf(rule: BoundRule, tensor: Tensor, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Split a Hugging Face tensor into our parameters, by our names."""
    return zip(
        rule.param_names,
        rule.transform.split(tensor, [len(state[name]) for name in rule.param_names]),
        strict=True,
    )
