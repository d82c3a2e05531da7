"""Integer layers that were packed before: their tensors, to be stored and used again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyhead.kernels.int_linear import GROUP_SIZE, Int8Linear
from polyhead.kernels.linear import PANEL, LinearFactory

_SAMPLE_SIZE = 64  # weights by which a layer is recognized; all tensors fill cache lines, as kernels need it
_LINE_BYTES = 64  # of the cache
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
        (rows, inputs), n_outputs = weight.shape, -(-len(weight) // PANEL) * PANEL
        groups = -(-inputs // GROUP_SIZE)
        names = [f"{name}.{field}" for field in ("sample", "bits", *_FIELDS)]
        found = [self._stored[field] for field in names if field in self._stored]
        all_steps = {8: -(-inputs // 4), 4: groups * GROUP_SIZE // 4}  # by the bits of a weight
        bits = int(found[1][0]) if len(found) == len(names) and found[1].numel() else 0
        if bits not in all_steps or not torch.equal(found[0], sample):
            return None
        panels, scales, offsets = found[2:]
        steps = all_steps[bits]
        n_numbers = n_outputs * groups * (GROUP_SIZE // 2 + 1) // 4 if bits == 4 else n_outputs * steps
        lengths, dtypes = (n_numbers, n_outputs, n_outputs), (torch.float32, torch.float32, torch.int32)
        if panels.data_ptr() % _LINE_BYTES or any(
            x.shape != (length,) or x.dtype != dtype
            for x, length, dtype in zip(found[2:], lengths, dtypes, strict=True)
        ):
            return None  # kernels would read beyond the end, or need them aligned
        sums = offsets[:rows] // 128
        return Int8Linear(StoredRows(f"int{bits}", weight.shape, steps, panels, scales[:rows], sums), bias)

    def take_tensors(self) -> dict[str, Tensor]:
        """The tensors of all layers by name, {} if one is not in integers. Later layers are not kept."""
        tensors: dict[str, Tensor] = {}
        layers, self._layers, self._stored, self._is_open = self._layers, [], {}, False
        for i, (sample, layer) in enumerate(layers):
            if not isinstance(layer, Int8Linear):
                return {}
            bits = int(layer.dtype.removeprefix("int"))
            tensors[f"{i}.sample"] = sample
            tensors[f"{i}.bits"] = torch.full((PANEL,), bits, dtype=torch.int32)
            fields = zip(_FIELDS, (layer.panels, layer.scales, layer.offsets), strict=True)
            tensors.update({f"{i}.{field}": tensor for field, tensor in fields})
        return tensors


def _draw_sample(weight: Tensor) -> Tensor:
    """Numbers from all over a matrix, with 0 for those that it lacks."""
    flat = weight.detach().reshape(-1)
    sample = flat[:: max(1, len(flat) // _SAMPLE_SIZE)][:_SAMPLE_SIZE].float()
    return F.pad(sample, (0, _SAMPLE_SIZE - len(sample)))
