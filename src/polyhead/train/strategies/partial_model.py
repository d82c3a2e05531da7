"""What all ranks with a part of a model have in common: how it is saved, and how it becomes whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from polyhead.train.strategies.base import Strategy
from polyhead.train.strategies.replicated import Replicated


class PartialModel(Strategy):
    """A rank with a part of the model, and the optimizer state of that part."""

    has_full_model = False
    no_gradients = torch.no_grad  # gathered weights are no inference tensors

    def save(self, root: Path, extra: dict[str, str], prepare: Callable[[], None]) -> None:
        from polyhead.train.distributed.sharded_checkpoint import save_sharded  # slow to import

        saved_state = self.training.export_state()
        self.ranks.on_rank0(prepare)
        is_sharded = self.config.parallel.checkpoint == "sharded"
        save_sharded(root, saved_state, extra, self.ranks, is_sharded)
        self.training.saved_best_step = self.training.progress.best_step

    def gather(self, model: nn.Module) -> Strategy:
        self.training.replace_model(model, self.config)
        return Replicated(self.training, self.task, self.config, self.ranks)
