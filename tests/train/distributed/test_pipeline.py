"""Pipelines compute what one process computes, in fp64, where a difference is not rounding."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from tests.train.conftest import user_error
from tests.train.ranks import outputs_of
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from polyhead import ModelConfig, build
from polyhead.data.batching.collate import PairBatch
from polyhead.data.batching.token_windows import TokenWindows
from polyhead.nn.loss import Loss, cross_entropy, select_labels
from polyhead.nn.stack import StackLayers, recompute_blocks
from polyhead.train.distributed.pipeline import (
    SCHEDULES,
    PipelineModel,
    assign_stages,
    count_micro_batches,
    cut_micro_batches,
    find_pipeline_obstacle,
)
from polyhead.train.distributed.pipeline_stages import PartitionedModel, partition_layers
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.loss_module import LossModule
from polyhead.train.tasks.common import causal_lm_loss, seq2seq_loss
from polyhead.train.tasks.masked import MaskedBatch, masked_lm_features

STEPS, MICRO_BATCHES = 2, 4
VOCAB_SIZE = 23
KINDS = ("decoder", "encoder", "encoder-decoder")


class RandomTask:
    """Micro-batches of a kind of model, of other sizes and lengths in every step, and their loss."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def batches(self, step: int, n: int = MICRO_BATCHES) -> list[Any]:
        rng = torch.Generator().manual_seed(step)
        sizes = [(1 + (i + step) % 3, 4 + (3 * i + 2 * step) % 7) for i in range(n)]
        batches = [self.make_batch(*size, rng) for size in sizes]
        if step == 1:
            batches[-1] = batches[-1]._replace(labels=torch.full_like(batches[-1].labels, -100))
        return batches

    def make_batch(self, rows: int, length: int, rng: torch.Generator) -> Any:
        if self.kind == "decoder":
            tokens = torch.randint(3, VOCAB_SIZE, (rows, length + 1), generator=rng)
            return TokenWindows(tokens[:, :-1], None, tokens[:, 1:])
        source, source_pos = self.make_rows(rows, length, rng)
        if self.kind == "encoder":
            is_masked = (torch.arange(length) % 3 == 1) & (source_pos >= 0)
            labels = source.masked_fill(~is_masked, -100)
            return MaskedBatch(source.masked_fill(is_masked, 1), source_pos, labels)
        target, target_pos = self.make_rows(rows, length // 2 + 1, rng)
        labels = target.roll(-1, 1).masked_fill(target_pos < 0, -100)
        return PairBatch(source, source_pos, target, labels, int((labels >= 0).sum()))

    def make_rows(self, rows: int, length: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Tokens and positions of rows of which all but the first are padded."""
        tokens = torch.randint(3, VOCAB_SIZE, (rows, length), generator=rng)
        pos = torch.arange(length).expand(rows, -1).clone()
        pos[1:, length - 1 :] = -1
        return tokens.masked_fill(pos < 0, 0), pos

    def count_labels(self, batch: Any) -> int:
        return int((batch.labels >= 0).sum())

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        if self.kind == "encoder":
            return cross_entropy(
                masked_lm_features(model, batch), model.head, select_labels(batch.labels, batch.labels)[0]
            )
        return (causal_lm_loss if self.kind == "decoder" else seq2seq_loss)(model, batch, 0.1)


class Case(NamedTuple):
    schedule: Any
    kind: str
    model: dict[str, Any] | None = None
    prepare: Callable[[nn.Module], None] | None = None

    def build(self) -> nn.Module:
        sizes = {"d_model": 16, "n_heads": 2, "n_layers": 4, "d_ff": 16, "max_len": 16}
        options = {"dropout": 0.0, "norm_first": True, "vocab_size": VOCAB_SIZE, "kind": self.kind}
        model: nn.Module = build(ModelConfig(**sizes | options | (self.model or {})), 1).double()
        if self.prepare:
            self.prepare(model)
        return model


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-2)


def train_single(case: Case) -> dict[str, Any]:
    model, task, losses, grads = case.build(), RandomTask(case.kind), [], {}
    optimizer, module = make_optimizer(model), LossModule(model, task)
    for step in range(STEPS):
        for batch in task.batches(step):
            loss = module(batch)
            (loss.total * 0.1).backward()
            losses += [float(loss.total.detach()), float(loss.nll.detach())]
        grads = grads or {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    with torch.inference_mode():
        valid = [float(task.loss(model, batch).nll) for batch in task.batches(7, 3)]
    return {"losses": losses, "grads": grads, "weights": weights, "valid": valid}


def train_stages(case: Case, mesh: DeviceMesh) -> dict[str, Any]:
    model, task, losses, grads = case.build(), RandomTask(case.kind), [], {}
    pipeline = PipelineModel(model, task, mesh, case.schedule, MICRO_BATCHES)
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        losses += [float(number) for number in pipeline.forward_backward(task.batches(step), 0.1)]
        grads = grads or {name: p.grad.tolist() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: p.detach().tolist() for name, p in model.named_parameters()}
    with torch.inference_mode():
        valid = pipeline.map(lambda batch: float(task.loss(model, batch).nll), task.batches(7, 3))
    names = [name for name in weights if pipeline.owns(name)]
    return {"losses": losses, "grads": grads, "weights": weights, "valid": valid, "names": names}


def assert_trains_like_one_process(world_size: int, cases: dict[str, Case]) -> None:
    def work(ranks: ProcessGroup) -> list[Any]:
        mesh = init_device_mesh("cpu", (ranks.world_size,), mesh_dim_names=("pipeline",))
        return [[train_stages(case, mesh) for case in cases.values()], count_micro_batches_in_flight(mesh, 8)]

    outputs = outputs_of(world_size, work)
    for rank, (_, in_flight) in enumerate(outputs):
        # GPipe holds all micro-batches, 1F1B no more than there are stages from here on
        assert in_flight == {"gpipe": 8, "1f1b": min(world_size - rank, 8)}
    singles: dict[str, dict[str, Any]] = {}
    for (name, case), *ranks in zip(cases.items(), *(results for results, _ in outputs), strict=True):
        key = str((case.kind, case.model, case.prepare))
        single = singles[key] = singles.get(key) or train_single(case)
        assert sorted(x for rank in ranks for x in rank["names"]) == sorted(single["weights"]), name
        for rank in ranks:
            assert rank["losses"] == pytest.approx(single["losses"], rel=1e-6), name
            assert rank["valid"] == pytest.approx(single["valid"], rel=1e-6), name
            for part in ("weights", "grads"):
                for weight, values in rank[part].items():
                    gap = (torch.tensor(values, dtype=torch.float64) - single[part][weight]).abs().max()
                    assert gap < 1e-9, (name, part, weight, gap)


class CountingLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.n_current = self.n_most = 0

    def forward(self, x: Tensor, *inputs: Any) -> Tensor:
        self.n_current += 1
        self.n_most = max(self.n_most, self.n_current)
        out = x * self.scale
        out.register_hook(self.count_backward)
        return out

    def count_backward(self, grad: Tensor) -> None:
        self.n_current -= 1


def count_micro_batches_in_flight(mesh: DeviceMesh, n: int) -> dict[str, int]:
    counts = {}
    for name in ("gpipe", "1f1b"):
        model, task = Case(name, "decoder").build(), RandomTask("decoder")
        model.stack.layers = StackLayers(CountingLayer().double() for _ in range(mesh.size()))
        PipelineModel(model, task, mesh, name, n).forward_backward(task.batches(0, n), 1.0)
        layer = model.stack.layers[mesh.get_local_rank()]
        assert layer.n_current == 0
        counts[name] = layer.n_most
    return counts


def freeze_ends(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(f".layers.{i}." in name for i in (1, 2, 3)))


PARTS: dict[str, dict[str, Any]] = {
    "untied": {"tie_embeddings": "none", "norm_first": False},
    "common table": {"position": "t5", "sandwich_norm": True},
    "own tables": {"position": "learned", "attention": {"name": "softmax", "qk_norm": True}},
    "shared layers": {"share_layers": True},
    "parallel": {"block": {"name": "parallel", "one_norm": True}, "n_kv_heads": 1, "position": "rope"},
    "recurrent": {"layer_pattern": [{"block": "gru"}, {"block": "transformer"}]},
    "experts": {"feed_forward": {"name": "moe", "n_experts": 4, "balance": False}},
}


MORE_LAYERS = {"n_layers": 8, "n_decoder_layers": 5}


@pytest.mark.parametrize(
    ("world_size", "model"), [(2, {}), pytest.param(4, MORE_LAYERS, marks=pytest.mark.slow)]
)
def test_every_schedule_matches_one_process(world_size, model):
    cases = {f"{kind}, {name}": Case(name, kind, model) for kind in KINDS for name in SCHEDULES}
    assert_trains_like_one_process(world_size, cases)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_part_matches_one_process(kind):
    names = ["1f1b", "interleaved", "zero_bubble", "zbv"]
    cases = {f"{part}, {name}": Case(name, kind, PARTS[part]) for part in PARTS for name in names}
    cases |= {f"recompute, {name}": Case(name, kind, prepare=recompute_blocks) for name in names}
    cases |= {f"frozen, {name}": Case(name, kind, prepare=freeze_ends) for name in names}
    assert_trains_like_one_process(2, cases)


def test_layers_and_batches_are_cut_into_stages():
    assert partition_layers(7, 3) == [range(3), range(3, 5), range(5, 7)]
    expected = {"1f1b": [0, 1, 2], "interleaved": [0, 1, 2, 0, 1, 2], "zbv": [0, 1, 2, 2, 1, 0]}
    assert {schedule: assign_stages(schedule, 3) for schedule in expected} == expected
    shard, collate = (lambda rows, n: [rows[:2], rows[2:]]), (lambda rows: rows)
    task = SimpleNamespace(shard=shard, collate=collate, dummy_batch=lambda: "dummy")
    assert cut_micro_batches(task, [1, 2, 3], 4) == [[1, 2], [3], "dummy", "dummy"]


@pytest.mark.parametrize(
    ("n", "accumulate", "stages", "schedule", "expected"),
    [
        (None, 1, 4, "1f1b", 16),
        (6, 4, 2, "1f1b", 8),  # each of the four batches is cut in two
        (1, 1, 4, "gpipe", 4),  # none is idle throughout
        (6, 1, 4, "interleaved", 8),  # in groups of four
        (6, 3, 4, "interleaved", 12),
        (2, 1, 3, "zbv", 6),
    ],
)
def test_number_of_micro_batches_suits_schedule(n, accumulate, stages, schedule, expected):
    assert count_micro_batches(n, accumulate, stages, schedule) == expected


@pytest.mark.parametrize(
    ("kind", "model", "size", "schedule", "reason"),
    [
        ("decoder", {}, 2, "1f1b", None),
        ("decoder", {}, 4, "interleaved", "'interleaved' has 8 stages, but the model has 4"),
        ("encoder-decoder", {}, 4, "interleaved", None),
        ("decoder", {"norm": "batchnorm"}, 2, "1f1b", "'batchnorm' needs the statistics of the whole batch"),
        ("decoder", {"feed_forward": "moe"}, 2, "1f1b", "set balance: false"),
        ("decoder", {"feed_forward": {"name": "moe", "balance": False}}, 2, "1f1b", None),
        ("encoder", {"generator_layers": 1, "lm_head": False}, 2, "1f1b", "trains two models"),
    ],
)
def test_obstacles_name_the_reason(kind, model, size, schedule, reason):
    config = ModelConfig(kind=kind, vocab_size=VOCAB_SIZE, d_model=16, n_heads=2, n_layers=4, **model)
    obstacle = find_pipeline_obstacle(config, "a-task", size, schedule)
    assert obstacle is None if reason is None else reason in str(obstacle)


def test_cut_model_keeps_names_of_its_weights():
    """The head of the last stage is the embedding, whose name it keeps."""
    uncut, model = (Case("1f1b", "decoder", {"position": "learned"}).build() for _ in range(2))
    PartitionedModel(model, [0, 1], 1)
    parts = ("embedding.token", "stack.layers.2", "stack.layers.3", "stack.final_norm")
    expected = [name for name, _ in uncut.named_parameters() if name.startswith(parts)]
    assert [name for name, _ in model.named_parameters()] == expected
    assert model.embedding.token.weight is model.head.weight
    for name, parameter in uncut.named_parameters():
        parameter.requires_grad_(".layers.3." in name)
    with user_error("all weights of process 1 of 2 are frozen"):
        PartitionedModel(uncut, [0, 1], 1)


def test_gradients_have_strides_of_their_weights():
    """Fused optimizers rely on it, and a backward pass of weights alone may transpose gradients."""

    def work(ranks):
        mesh = init_device_mesh("cpu", (ranks.world_size,), mesh_dim_names=("pipeline",))
        case = Case("zero_bubble", "decoder")
        model, task, grads = case.build(), RandomTask(case.kind), []
        pipeline = PipelineModel(model, task, mesh, case.schedule, MICRO_BATCHES)
        make_schedule = pipeline._make_schedule

        def make_transposing_schedule(batches):
            make_schedule(batches)
            step = pipeline._schedule.step

            def step_and_transpose(**options):
                step(**options)
                for p in model.parameters():
                    if p.grad is not None and p.ndim == 2:
                        p.grad = p.grad.t().contiguous().t()

            pipeline._schedule = SimpleNamespace(step=step_and_transpose)

        for make in (make_schedule, make_transposing_schedule):
            pipeline._make_schedule = make
            pipeline.forward_backward(task.batches(0), 0.1)
            grads.append([p.grad.tolist() for p in model.parameters() if p.grad is not None])
            assert all(p.grad is None or p.grad.stride() == p.stride() for p in model.parameters())
            model.zero_grad()
        return grads

    for plain, after_transpose in outputs_of(2, work):
        assert plain == after_transpose
