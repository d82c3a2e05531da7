"""Weights and optimizer state of a model whose stages are in several processes, as one process saves them.

Each process has the tensors of its stages. Names, shapes and the numbering of the optimizer's parameters are
those of the whole model, so a checkpoint can be resumed on any number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from polyhead.checkpoint.optimizer_state_io import flatten_optimizer, unflatten_optimizer
from polyhead.checkpoint.safetensors_io import describe_tensors
from polyhead.nn.state import named_state
from polyhead.train.distributed.local_tensor import StageTensors, shard_like
from polyhead.train.distributed.pipeline import PipelineModel
from polyhead.train.optim import list_parameters


class OptimizerLayout(NamedTuple):
    """The parameters of an optimizer by number, and its groups, as in its state dict."""

    names: list[str]
    groups: list[dict[str, Any]]


class ModelLayout:
    """Names and optimizers of a whole model, taken before it is partitioned into stages."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self.weights = {name: torch.empty_like(w, device="meta") for name, w in named_state(model).items()}
        self.optimizers = [
            OptimizerLayout(list_names(model, optimizer), optimizer.state_dict()["param_groups"])
            for optimizer in optimizers
        ]


class StageState:
    """The tensors of the stages of a process as parts of the whole, to save and to load them."""

    def __init__(self, layout: ModelLayout, pipeline: PipelineModel) -> None:
        self.layout, self.pipeline = layout, pipeline
        self.owners = {name: ranks[0] for name, ranks in pipeline.partition.ranks_of_weights.items()}

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return self.layout.weights

    def collect(self, weights: Mapping[str, Tensor]) -> StageTensors:
        """Tensors by the names of weights: the weights of the model, or their moving averages."""
        return StageTensors(describe_tensors(self.weights), self.owners, weights, self.pipeline)

    def flatten_optimizers(self, optimizers: Sequence[Optimizer]) -> list[tuple[StageTensors, Any]]:
        """The tensors of each optimizer of the whole model by path, and its description in JSON."""
        own = self._list_own_entries(optimizers)
        rates = {g["peak_lr"]: g["lr"] for optimizer in optimizers for g in optimizer.param_groups}
        described = {
            name: {
                key: (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else value
                for key, value in entry.items()
            }
            for name, entry in own.items()
            if self.pipeline.owns(name)
        }
        found: list[Any] = [None] * self.pipeline.size
        dist.all_gather_object(found, (described, rates), group=self.pipeline.group)
        entries = {name: entry for described, _ in found for name, entry in described.items()}
        all_rates = {peak: rate for _, rates in found for peak, rate in rates.items()}
        return [self._describe(layout, entries, all_rates, own) for layout in self.layout.optimizers]

    def _describe(
        self,
        layout: OptimizerLayout,
        entries: Mapping[str, Mapping[str, Any]],
        rates: Mapping[float, float],
        own_entries: Mapping[str, Mapping[str, Any]],
    ) -> tuple[StageTensors, Any]:
        state = {
            i: {
                key: torch.empty(value[1], dtype=value[0], device="meta")
                if isinstance(value, tuple) and value and isinstance(value[0], torch.dtype)
                else value
                for key, value in entries[name].items()
            }
            for i, name in enumerate(layout.names)
            if name in entries
        }
        groups = [group | {"lr": rates[group["peak_lr"]]} for group in layout.groups]
        tensors, description = flatten_optimizer({"state": state, "param_groups": groups})
        names = {path: layout.names[int(path.split("/")[1])] for path in tensors}
        return StageTensors(
            describe_tensors(tensors),
            {path: self.owners[name] for path, name in names.items()},
            {
                path: own_entries[name][path.split("/")[2]]
                for path, name in names.items()
                if name in own_entries
            },
            self.pipeline,
        ), description

    def _list_own_entries(self, optimizers: Sequence[Optimizer]) -> dict[str, dict[str, Any]]:
        """The state of each parameter of this process, by its name."""
        return {
            name: optimizer.state.get(p, {})
            for optimizer in optimizers
            for name, p in zip(
                list_names(self.pipeline.model, optimizer), list_parameters(optimizer), strict=True
            )
            if p in optimizer.state
        }

    def load_optimizers(
        self, optimizers: Sequence[Optimizer], states: Sequence[tuple[Mapping[str, Tensor], Any]]
    ) -> None:
        """Load the state of this process's parameters from tensors and descriptions of a whole model."""
        entries: dict[str, dict[str, Any]] = {}
        groups: dict[str, dict[str, Any]] = {}
        own_names = {name for optimizer in optimizers for name in list_names(self.pipeline.model, optimizer)}
        for layout, (tensors, description) in zip(self.layout.optimizers, states, strict=True):
            # looked up in order on all ranks, and kept where they are needed
            kept = {
                path: tensor
                for path, tensor in tensors.items()
                if layout.names[int(path.split("/")[1])] in own_names
            }
            state = unflatten_optimizer(dict.fromkeys(tensors, torch.empty(0)) | kept, description)
            entries |= {layout.names[i]: entry for i, entry in state["state"].items()}
            groups |= {layout.names[i]: group for group in state["param_groups"] for i in group["params"]}
        for optimizer in optimizers:
            parameters, names = list_parameters(optimizer), list_names(self.pipeline.model, optimizer)
            own = optimizer.state_dict()
            own["state"] = {
                i: {
                    key: shard_like(value, p)
                    if isinstance(value, Tensor) and value.shape == p.shape
                    else value
                    for key, value in entries[name].items()
                }
                for i, (name, p) in enumerate(zip(names, parameters, strict=True))
                if name in entries
            }
            own["param_groups"] = [
                groups[names[group["params"][0]]] | {"params": group["params"]}
                for group in own["param_groups"]
            ]
            optimizer.load_state_dict(own)


def list_names(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """The names of an optimizer's parameters, by their numbers in its state dict."""
    name_of = {p: name for name, p in model.named_parameters()}
    return [name_of[p] for p in list_parameters(optimizer)]
