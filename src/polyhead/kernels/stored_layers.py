"""Integer layers that were packed before: their tensors, to be stored and used again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.kernels.int_linear import Int8Linear
from polyhead.kernels.linear import LinearFactory

_SAMPLE_SIZE = 64  # weights by which a layer is recognized
_SIZES = 16  # numbers for its sizes: all tensors fill cache lines, to which kernels need the panels aligned
_FIELDS = "panels", "scales", "offsets"


@dataclass
class StoredRows:
    """A quantized matrix in the layout of the kernel, as ``QuantizedRows``."""

    dtype: str
    shape: torch.Size  # (N, K)
    steps: int
    panels: Tensor
    scales: Tensor  # (N,)
    sums: Tensor  # (N,)

    def pack_panels(self) -> Tensor:
        """The weights in the layout of the kernel."""
        return self.panels


class StoredLayers:
    """The integer layers of a model in the order in which they are packed.

    A layer is taken from ``tensors`` if a sample of its weights is there, and else packed anew.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._stored = tensors
        self._layers: list[tuple[Tensor, nn.Module]] = []  # a sample of the weights, and what was packed
        self.n_packed = 0  # layers that were not stored
        self._is_open = True

    def wrap(self, factory: LinearFactory) -> LinearFactory:
        """A factory of the same layers, which uses the stored ones."""

        def make(weight: Tensor, bias: Tensor | None) -> nn.Module:
            if not self._is_open:
                return factory(weight, bias)
            name, sample = str(len(self._layers)), _draw_sample(weight)
            layer: nn.Module | None = self._restore(name, sample, weight, bias)
            if layer is None:
                layer, self.n_packed = factory(weight, bias), self.n_packed + 1
            self._layers.append((sample, layer))
            return layer

        return make

    def _restore(self, name: str, sample: Tensor, weight: Tensor, bias: Tensor | None) -> Int8Linear | None:
        stored = self._stored.get(f"{name}.sample")
        if stored is None or not torch.equal(stored, sample):
            return None
        panels, scales, offsets = (self._stored[f"{name}.{field}"] for field in _FIELDS)
        rows, inputs, steps, bits, *_ = self._stored[f"{name}.sizes"].tolist()
        if (rows, inputs) != tuple(weight.shape):
            return None
        sums = offsets[:rows] // 128
        return Int8Linear(StoredRows(f"int{bits}", weight.shape, steps, panels, scales[:rows], sums), bias)

    def take_tensors(self) -> dict[str, Tensor]:
        """The tensors of all layers by name, {} if one is not in integers. Later layers are not kept."""
        tensors: dict[str, Tensor] = {}
        layers, self._layers, self._stored, self._is_open = self._layers, [], {}, False
        for i, (sample, layer) in enumerate(layers):
            if not isinstance(layer, Int8Linear):
                return {}
            sizes = layer.out_features, layer.in_features, layer.steps, int(layer.dtype.removeprefix("int"))
            tensors[f"{i}.sample"] = sample
            tensors[f"{i}.sizes"] = torch.tensor([*sizes, *[0] * (_SIZES - len(sizes))], dtype=torch.int32)
            fields = zip(_FIELDS, (layer.panels, layer.scales, layer.offsets), strict=True)
            tensors.update({f"{i}.{field}": tensor for field, tensor in fields})
        return tensors


def _draw_sample(weight: Tensor) -> Tensor:
    """Numbers from all over a matrix, with 0 for those that it lacks."""
    flat = weight.detach().reshape(-1)
    sample = flat[:: max(1, len(flat) // _SAMPLE_SIZE)][:_SAMPLE_SIZE].float()
    return F.pad(sample, (0, _SAMPLE_SIZE - len(sample)))
