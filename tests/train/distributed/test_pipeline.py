"""Pipelines learn what one process learns, in fp64, where a difference is no rounding."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from tests.train.several import ROOT, together
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
    cut_micro_batches,
    find_pipeline_obstacle,
)
from polyhead.train.distributed.pipeline_stages import CutModel, split_layers
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.loss_module import LossModule
from polyhead.train.tasks.causal_lm_common import causal_lm_loss
from polyhead.train.tasks.masked import MaskedBatch, masked_lm_features
from polyhead.train.tasks.seq2seq_common import seq2seq_loss

STEPS, MICRO_BATCHES = 2, 4
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
    model: dict[str, Any] | None = None
    prepare: Callable[[nn.Module], None] | None = None

    def build(self) -> nn.Module:
        settings = {"d_model": 16, "n_heads": 2, "n_layers": 4, "d_ff": 16, "max_len": 16, "dropout": 0.0,
                    "norm_first": True, "vocab_size": VOCABULARY, "kind": self.kind}  # fmt: skip
        model: nn.Module = build(ModelConfig(**settings | (self.model or {})), 1).double()
        if self.prepare:
            self.prepare(model)
        return model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-2)


def learned(case: Case) -> dict[str, Any]:
    """Losses, gradients of the first step, weights and evaluation in one process."""
    model, toy, losses, grads = case.build(), Toy(case.kind), [], {}
    optimizer, module = optimizer_of(model), LossModule(model, toy)
    for step in range(STEPS):
        for batch in toy.batches(step):
            loss = module(batch)
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
    pipeline = PipelineModel(model, toy, mesh, case.schedule, MICRO_BATCHES)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        found = pipeline.forward_backward(toy.batches(step), 0.1)
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
        said = {name: learned_in_stages(case, mesh) for name, case in cases.items()}
        return said | {"held": held_micro_batches(mesh, 8)}

    ends = together(world, work, timeout=60)
    assert [end.code for end in ends] == [0] * world, ends
    assert_held(ends, 8)
    alone: dict[str, dict[str, Any]] = {}
    for name, case in cases.items():
        wanted = alone.setdefault(str((case.kind, case.model, case.prepare)), learned(case))
        ranks = [end.said[name] for end in ends]
        assert sorted(x for rank in ranks for x in rank["owned"]) == sorted(wanted["weights"]), name
        for rank in ranks:
            assert rank["losses"] == pytest.approx(wanted["losses"], rel=1e-6), name
            assert rank["evaluated"] == pytest.approx(wanted["evaluated"], rel=1e-6), name
            for part in ("weights", "grads"):
                for weight, found in rank[part].items():
                    gap = (torch.tensor(found, dtype=torch.float64) - wanted[part][weight]).abs().max()
                    assert gap < 1e-9, (name, part, weight, gap)


def test_every_schedule_learns_as_one_process() -> None:
    """A language model, a masked one and an encoder-decoder, with batches of several lengths."""
    kinds = ("decoder", "encoder", "encoder-decoder")
    assert_learned_alike(2, {f"{kind}, {name}": Case(name, kind) for kind in kinds for name in SCHEDULES})


def freeze_start(model: nn.Module) -> None:
    """The embedding, the first layer and the head are not trained."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(f".layers.{i}." in name for i in (1, 2, 3)))


class Counted(nn.Module):
    """A layer that counts the micro-batches between its forward and its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.held = self.most = 0

    def forward(self, x: Tensor, *inputs: Any) -> Tensor:
        self.held += 1
        self.most = max(self.most, self.held)
        out = x * self.scale
        out.register_hook(self.count_backward)
        return out

    def count_backward(self, grad: Tensor) -> None:
        self.held -= 1


def held_micro_batches(mesh: DeviceMesh, n: int) -> dict[str, int]:
    """The most micro-batches that the first layer of this rank holds, by schedule."""
    found = {}
    for name in ("gpipe", "1f1b"):
        model = Case(name, "decoder").build()
        model.stack.layers = nn.ModuleList(Counted().double() for _ in range(mesh.size()))
        toy = Toy("decoder")
        PipelineModel(model, toy, mesh, name, n).forward_backward(toy.batches(0, n), 1.0)
        layer = model.stack.layers[mesh.get_local_rank()]
        assert layer.held == 0
        found[name] = layer.most
    return found


def assert_held(ends: list[Any], n: int) -> None:
    """GPipe holds all micro-batches, 1F1B no more than there are stages from here on."""
    for rank, end in enumerate(ends):
        assert end.said["held"] == {"gpipe": n, "1f1b": min(len(ends) - rank, n)}


def test_layers_are_split_evenly_the_first_stages_have_more() -> None:
    assert split_layers(7, 3) == [range(3), range(3, 5), range(5, 7)]
    assert assign_stages("1f1b", 3) == [0, 1, 2]
    assert assign_stages("interleaved", 3) == [0, 1, 2, 0, 1, 2]
    assert assign_stages("zbv", 3) == [0, 1, 2, 2, 1, 0]


def test_an_update_has_micro_batches_enough_for_its_schedule() -> None:
    assert count_micro_batches(None, 1, 4, "1f1b") == 16
    assert count_micro_batches(6, 4, 2, "1f1b") == 8  # each of the four batches is cut in two
    assert count_micro_batches(1, 1, 4, "gpipe") == 4  # none is idle throughout
    assert count_micro_batches(6, 1, 4, "interleaved") == 8  # in groups of four
    assert count_micro_batches(6, 3, 4, "interleaved") == 12
    assert count_micro_batches(2, 1, 3, "zbv") == 6


def test_a_batch_of_few_rows_is_filled_up_with_dummies() -> None:
    class Rows:
        def shard(self, rows: list[int], n: int) -> list[list[int]]:
            return [rows[:2], rows[2:]]

        def collate(self, rows: list[int]) -> list[int]:
            return rows

        def dummy_batch(self) -> str:
            return "dummy"

    assert cut_micro_batches(Rows(), [1, 2, 3], 4) == [[1, 2], [3], "dummy", "dummy"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "model", "size", "schedule", "said"),
    [
        ("decoder", {}, 2, "1f1b", None),
        ("decoder", {}, 4, "interleaved", "'interleaved' has 8 stages, but the model has 4"),
        ("encoder-decoder", {}, 4, "interleaved", None),
        ("decoder", {"norm": "batchnorm"}, 2, "1f1b", "'batchnorm' needs the statistics of the whole batch"),
        ("decoder", {"feed_forward": "moe"}, 2, "1f1b", "set balance: false"),
        ("decoder", {"feed_forward": {"name": "moe", "balance": False}}, 2, "1f1b", None),
        ("encoder", {"generator_layers": 1, "lm_head": False}, 2, "1f1b", "trains two models"),
    ],
)  # fmt: skip
def test_what_cannot_be_in_a_pipeline_is_refused_with_the_reason(
    kind: Any, model: dict[str, Any], size: int, schedule: Any, said: str | None
) -> None:
    config = ModelConfig(kind=kind, vocab_size=VOCABULARY, d_model=16, n_heads=2, n_layers=4, **model)
    found = find_pipeline_obstacle(config, "a-task", size, schedule)
    assert found is None if said is None else said in str(found)


def test_a_stage_without_weights_to_train_is_refused() -> None:
    model = Case("1f1b", "decoder").build()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".layers.3." in name)
    with pytest.raises(UserError, match="all weights of process 1 of 2 are frozen"):
        CutModel(model, [0, 1], 1)


def test_a_part_of_the_model_is_gone_and_names_stay() -> None:
    """The head of the last stage is the embedding, which has its name and is alone of it there."""
    whole, model = (Case("1f1b", "decoder", {"position": "learned"}).build() for _ in range(2))
    CutModel(model, [0, 1], 1)
    names = [name for name, _ in model.named_parameters()]
    assert names == [
        name
        for name, _ in whole.named_parameters()
        if name.startswith(("embedding.token", "stack.layers.2", "stack.layers.3", "stack.final_norm"))
    ]
    assert model.embedding.token.weight is model.head.weight


PARTS: dict[str, dict[str, Any]] = {
    "untied": {"tie_embeddings": "none", "norm_first": False},
    "common table": {"position": "t5", "sandwich_norm": True},
    "own tables": {"position": "learned", "attention": {"name": "softmax", "qk_norm": True}},
    "shared layers": {"share_layers": True},
    "parallel": {"block": {"name": "parallel", "one_norm": True}, "n_kv_heads": 1, "position": "rope"},
    "recurrent": {"layer_pattern": [{"block": "gru"}, {"block": "transformer"}]},
    "experts": {"feed_forward": {"name": "moe", "n_experts": 4, "balance": False}},
}


@pytest.mark.slow
def test_four_processes_learn_as_one() -> None:
    kinds = ("decoder", "encoder", "encoder-decoder")
    eight = {"n_layers": 8, "n_decoder_layers": 5}
    cases = {f"{kind}, {name}": Case(name, kind, eight) for kind in kinds for name in SCHEDULES}
    assert_learned_alike(4, cases)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
def test_parts_of_every_kind_learn_as_in_one_process(kind: str) -> None:
    names: list[Any] = ["1f1b", "interleaved", "zero_bubble", "zbv"]
    cases = {f"{part}, {name}": Case(name, kind, PARTS[part]) for part in PARTS for name in names}
    cases |= {f"recompute, {name}": Case(name, kind, prepare=recompute_blocks) for name in names}
    cases |= {f"frozen, {name}": Case(name, kind, prepare=freeze_start) for name in names}
    assert_learned_alike(2, cases)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_waiting_is_that_of_the_formula() -> None:
    """Four stages that sleep 100 ms in each pass; zero-bubble schedules wait less."""
    command = [sys.executable, "benchmarks/pipeline.py", "--milliseconds", "100", "--schedules"]
    table = subprocess.run([*command, "gpipe", "1f1b", "interleaved", "zero_bubble"], cwd=ROOT,
        capture_output=True, text=True, check=True).stdout  # fmt: skip
    print(table)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) == 12
    for schedule, n, bubble, formula, _ in rows:
        stages = {"interleaved": 2}.get(schedule, 1)
        assert float(formula) == pytest.approx(3 / (int(n) * stages), abs=1e-3)
        excess = float(bubble) - float(formula)
        assert excess < 0.07 if schedule == "zero_bubble" else abs(excess) < 0.07, (schedule, n)


def test_gradients_are_laid_out_as_their_weights() -> None:
    """Fused optimizers read them as if they were, and a backward pass of weights alone may transpose them."""

    def work(ranks: ProcessGroup) -> list[Any]:
        mesh = init_device_mesh("cpu", (ranks.world_size,), mesh_dim_names=("pipeline",))
        case = Case("zero_bubble", "decoder")
        model, toy, found = case.build(), Toy(case.kind), []
        pipeline = PipelineModel(model, toy, mesh, case.schedule, MICRO_BATCHES)
        make_schedule = pipeline._make_schedule

        def make_transposing_schedule(batches: Any) -> None:
            make_schedule(batches)
            step = pipeline._schedule.step

            def step_and_transpose(**options: Any) -> None:
                step(**options)
                for p in model.parameters():
                    if p.grad is not None and p.ndim == 2:
                        p.grad = p.grad.t().contiguous().t()

            pipeline._schedule = SimpleNamespace(step=step_and_transpose)  # type: ignore[assignment]

        for transposes in (False, True):
            if transposes:
                pipeline._make_schedule = make_transposing_schedule  # type: ignore[method-assign]
            pipeline.forward_backward(toy.batches(0), 0.1)
            found.append([p.grad.tolist() for p in model.parameters() if p.grad is not None])
            assert all(p.grad is None or p.grad.stride() == p.stride() for p in model.parameters())
            model.zero_grad()
        return found

    for end in together(2, work, timeout=60):
        assert end.code == 0, end
        plain, transposed = end.said
        assert plain == transposed
