"""Pipelines learn what one process learns, in fp64, where a difference is no rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tests.train.several import together
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from polyhead.config.model import ModelConfig
from polyhead.core.errors import UserError
from polyhead.data.batching.collate import PairBatch
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.models import build
from polyhead.nn.loss import Loss, cross_entropy, select_labels
from polyhead.nn.stack import recompute_blocks
from polyhead.train.distributed.pipeline import (
    SCHEDULES,
    PipelineModel,
    assign_stages,
    count_micro_batches,
    find_pipeline_obstacle,
    split_batch,
)
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.tasks.causal_lm_common import causal_lm_loss
from polyhead.train.tasks.masked import MaskedBatch, masked_lm_features
from polyhead.train.tasks.seq2seq_common import seq2seq_loss

STEPS, MICRO_BATCHES = 3, 4
VOCABULARY = 23


class Toy:
    """Micro-batches of a kind of model, of other sizes and lengths in every step, and their loss."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def batches(self, step: int, n: int = MICRO_BATCHES) -> list[Any]:
        rng = torch.Generator().manual_seed(step)
        sizes = [(1 + (i + step) % 3, 4 + (3 * i + 2 * step) % 7) for i in range(n)]
        made = [getattr(self, self.kind.replace("-", "_"))(*size, rng) for size in sizes]
        if step == 1:
            made[-1] = self.without_labels(made[-1])
        return made

    def decoder(self, rows: int, length: int, rng: torch.Generator) -> TokenWindows:
        tokens = torch.randint(3, VOCABULARY, (rows, length + 1), generator=rng)
        return TokenWindows(tokens[:, :-1], None, tokens[:, 1:])

    def encoder(self, rows: int, length: int, rng: torch.Generator) -> MaskedBatch:
        tokens, pos = padded(rows, length, rng)
        is_masked = (torch.arange(length) % 3 == 1) & (pos >= 0)
        return MaskedBatch(tokens.masked_fill(is_masked, 1), pos, tokens.masked_fill(~is_masked, -100))

    def encoder_decoder(self, rows: int, length: int, rng: torch.Generator) -> PairBatch:
        source, source_pos = padded(rows, length, rng)
        target, target_pos = padded(rows, length // 2 + 1, rng)
        labels = target.roll(-1, 1).masked_fill(target_pos < 0, -100)
        return PairBatch(source, source_pos, target, labels, int((labels >= 0).sum()))

    def without_labels(self, batch: Any) -> Any:
        return batch._replace(labels=torch.full_like(batch.labels, -100))

    def count_labels(self, batch: Any) -> int:
        return int((batch.labels >= 0).sum())

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        if self.kind == "decoder":
            return causal_lm_loss(model, batch, 0.1)
        if self.kind == "encoder":
            return cross_entropy(masked_lm_features(model, batch), model.head, select_labels(batch.labels))
        return seq2seq_loss(model, batch, 0.1)


def padded(rows: int, length: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens and positions of rows of which all but the first are shorter."""
    tokens = torch.randint(3, VOCABULARY, (rows, length), generator=rng)
    pos = torch.arange(length).expand(rows, -1).clone()
    pos[1:, length - 1 :] = -1
    return tokens.masked_fill(pos < 0, 0), pos


class Case(NamedTuple):
    """A model and how it is trained."""

    schedule: Any
    kind: str
    model: dict[str, Any] = {}
    prepare: Callable[[nn.Module], None] = lambda model: None

    def build(self) -> nn.Module:
        settings = {"d_model": 16, "n_heads": 2, "n_layers": 4, "d_ff": 16, "max_len": 16, "dropout": 0.0,
                    "norm_first": True, "vocab_size": VOCABULARY, "kind": self.kind}  # fmt: skip
        model: nn.Module = build(ModelConfig(**settings | self.model), 1).double()
        self.prepare(model)
        return model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-2)


def learned(case: Case) -> dict[str, Any]:
    """Losses, gradients of the first step, weights and evaluation in one process."""
    model, toy, losses, grads = case.build(), Toy(case.kind), [], {}
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        for batch in toy.batches(step):
            loss = toy.loss(model, batch)
            (loss.total * 0.1).backward()
            losses += [float(loss.total.detach()), float(loss.nll.detach())]
        grads = grads or {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    with torch.inference_mode():
        evaluated = [float(toy.loss(model, batch).nll) for batch in toy.batches(7, 3)]
    return {"losses": losses, "grads": grads, "weights": weights, "evaluated": evaluated}


def learned_in_stages(case: Case, mesh: DeviceMesh) -> dict[str, Any]:
    """As ``learned``, of one rank of a pipeline."""
    model, toy, losses, grads = case.build(), Toy(case.kind), [], {}
    pipeline = PipelineModel(model, mesh, case.schedule, MICRO_BATCHES)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        found = pipeline.forward_backward(toy, toy.batches(step), 0.1)
        losses += [float(number) for number in found]
        grads = grads or {name: p.grad.tolist() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: p.detach().tolist() for name, p in model.named_parameters()}
    with torch.inference_mode():
        evaluated = pipeline.map(lambda batch: float(toy.loss(model, batch).nll), toy.batches(7, 3))
    owned = [name for name in weights if pipeline.owns(name)]
    return {"losses": losses, "grads": grads, "weights": weights, "evaluated": evaluated, "owned": owned}


def assert_learned_alike(world: int, cases: dict[str, Case]) -> None:
    def work(ranks: ProcessGroup) -> dict[str, Any]:
        mesh = init_device_mesh("cpu", (ranks.world_size,), mesh_dim_names=("pipeline",))
        return {name: learned_in_stages(case, mesh) for name, case in cases.items()}

    ends = together(world, work, timeout=60)
    assert [end.code for end in ends] == [0] * world, ends
    alone: dict[str, dict[str, Any]] = {}
    for name, case in cases.items():
        wanted = alone.setdefault(str((case.kind, case.model, case.prepare)), learned(case))
        ranks = [end.said[name] for end in ends]
        assert sorted(len(rank["losses"]) for rank in ranks) == [0] * (world - 1) + [len(wanted["losses"])]
        assert sum((rank["losses"] for rank in ranks), []) == pytest.approx(wanted["losses"], rel=1e-6), name
        assert sorted(sum((rank["owned"] for rank in ranks), [])) == sorted(wanted["weights"]), name
        for rank in ranks:
            assert rank["evaluated"] == pytest.approx(wanted["evaluated"], rel=1e-6), name
            for part in ("weights", "grads"):
                for weight, found in rank[part].items():
                    gap = (torch.tensor(found, dtype=torch.float64) - wanted[part][weight]).abs().max()
                    assert gap < 1e-9, (name, part, weight, gap)


def test_every_schedule_learns_as_one_process() -> None:
    """A language model, a masked one and an encoder-decoder, with batches of several lengths."""
    kinds = ("decoder", "encoder", "encoder-decoder")
    assert_learned_alike(2, {f"{kind}, {name}": Case(name, kind) for kind in kinds for name in SCHEDULES})
