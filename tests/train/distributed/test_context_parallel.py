"""Tokens of rows over ranks: losses of tasks, recomputed and compiled layers, and what a rank keeps."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.train.conftest import Notes
from tests.train.distributed.rank_runs import assert_same, recipe_of, trained
from tests.train.distributed.rank_runs import place as place
from tests.train.distributed.test_process_group import KINDS, sent
from tests.train.evaluation_helpers import opened
from tests.train.several import together
from torch import Tensor

from polyhead.config.config_sections import DistillConfig
from polyhead.config.model import ModelConfig
from polyhead.config.recipe import Recipe
from polyhead.core.choice import Choice
from polyhead.core.registry import TASK
from polyhead.cost.communication import ParallelLayout, estimate_traffic
from polyhead.cost.workload import BatchShape
from polyhead.data.batching.token_windows import TokenWindows, split_windows
from polyhead.models import build
from polyhead.nn.kv import KV
from polyhead.nn.stack import recompute_blocks
from polyhead.train.distill import DistillationTask
from polyhead.train.distributed.context_parallel import ContextGather, SplitsSequence
from polyhead.train.distributed.launch import RANK_LOST
from polyhead.train.distributed.mesh import MeshShape
from polyhead.train.distributed.parallel_check import find_obstacle
from polyhead.train.distributed.process_group import ProcessGroup
from polyhead.train.loss_module import LossModule
from polyhead.train.run_training import run_training

pytestmark = pytest.mark.usefixtures("unsynced")
TOKEN_KINDS = [kind for kind in KINDS if kind != "classification"]
ON_LINUX = Path("/proc/self/fd").exists()
ROWS, LENGTH, LAYERS = 2, 32, 3
SIZES: dict[str, Any] = {
    "vocab_size": 23,
    "kind": "decoder",
    "d_model": 16,
    "n_heads": 4,
    "n_kv_heads": 2,
    "dropout": 0.0,
}


def test_tasks_of_tokens_are_split_and_others_are_not() -> None:
    assert {name for name in TASK.names() if not isinstance(TASK.get(name), SplitsSequence)} == {
        "classification"
    }
    assert not isinstance(DistillationTask, SplitsSequence)


def sum_losses(module: LossModule, batch: Any) -> Tensor:
    """Loss, its part without smoothing, label count and all gradients in a vector."""
    module.zero_grad()
    loss = module(batch)
    loss.total.backward()
    assert loss.count == module.task.count_labels(batch)
    grads = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    return torch.cat([loss.total.detach()[None], loss.nll[None], torch.tensor([loss.count]), *grads])


def compare_tasks(recipes: dict[str, Recipe]) -> dict[str, float]:
    """For each task the largest difference from the whole batch, in units of its loss."""
    differences = {}
    for kind, recipe in recipes.items():
        run, task = opened(recipe)
        assert isinstance(task, SplitsSequence)
        module, batch = LossModule(run.model.double().train(), task), task.collate(task.largest_batch())
        context = ContextGather(run.model, dist.group.WORLD)
        with context.apply():
            sums = sum_losses(module, task.split_sequence(batch, context.shard))
        dist.all_reduce(sums)
        alone = sum_losses(module, batch)
        differences[kind] = float((sums - alone).abs().max() / alone[0])
    return differences


def make_model(**changes: Any) -> Any:
    return build(ModelConfig.model_validate(SIZES | {"n_layers": LAYERS} | changes), seed=1).double().train()


def make_batch() -> TokenWindows:
    """Rows of two documents, so that one process has a mask too."""
    tokens = torch.randint(0, 23, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))
    pos = torch.arange(LENGTH).remainder(20).repeat(ROWS, 1)
    return TokenWindows(tokens, pos, tokens, has_documents=True)


def compute_gradients(model: Any, context: ContextGather) -> list[Tensor]:
    with context.apply():
        batch = split_windows(make_batch(), context.shard)
        model.features(batch.tokens, batch.pos).sin().sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def measure_saved_bytes(model: Any, batch: TokenWindows) -> int:
    """Bytes that autograd saves up to the features, each storage once, without weights."""
    excluded = {p.untyped_storage()._cdata for p in model.parameters()}
    saved: dict[int, Tensor] = {}

    def save(x: Tensor) -> Tensor:
        saved[x.untyped_storage()._cdata] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
        model.features(batch.tokens, batch.pos)
    return sum(x.untyped_storage().nbytes() for key, x in saved.items() if key not in excluded)


def compare_gradients(*models: Any) -> list[float]:
    """The largest difference of the gradients of each model to those of the first."""
    plain, *others = (compute_gradients(model, ContextGather(model, dist.group.WORLD)) for model in models)
    return [max(float((a - b).abs().max()) for a, b in zip(plain, x, strict=True)) for x in others]


def measure_kept() -> list[Any]:
    """Bytes that this rank and one process keep of three models, and what recomputation changes."""
    alibi, recomputed = (make_model(position="alibi") for _ in range(2))
    rope = make_model(position="rope", n_kv_heads=4)
    recompute_blocks(recomputed)
    documents, plain = make_batch(), make_batch()._replace(pos=None, has_documents=False)
    kept: list[Any] = []
    for model, batch in ((alibi, documents), (recomputed, documents), (rope, plain)):
        context = ContextGather(model, dist.group.WORLD)
        with context.apply():
            part = measure_saved_bytes(model, split_windows(batch, context.shard))
        kept.append([part, measure_saved_bytes(model, batch)])
    return [*kept, *compare_gradients(alibi, recomputed)]


WIDE = {"n_kv_heads": 4, "d_model": 512}


def count_sent() -> float:
    """Bytes that this rank sends in a pass, without those that a busy machine repeats."""
    model, counts = make_model(**WIDE).float(), [sent()]
    for _ in range(4):
        compute_gradients(model, ContextGather(model, dist.group.WORLD))
        dist.barrier()
        counts.append(sent())
    return float(np.diff(counts).min())


def check_sent(n_bytes: float, world: int) -> None:
    """Gloo sends as much for a reduce-scatter, which is half of the plan, as for an all-reduce."""
    config = ModelConfig.model_validate(SIZES | {"n_layers": LAYERS} | WIDE)
    planned = estimate_traffic(config, BatchShape(ROWS, LENGTH), 1, ParallelLayout(context_parallel=world))
    assert n_bytes == pytest.approx(1.5 * planned.context, rel=0.01)


@pytest.fixture(scope="module")
def measured(place: Path) -> list[Any]:
    """What each of two ranks measured."""
    recipes = {kind: recipe_of(place, kind, f"parts-{kind}") for kind in TOKEN_KINDS}
    for recipe in recipes.values():
        opened(recipe)  # writes the token stores that all ranks read

    def work(ranks: ProcessGroup) -> list[Any]:
        return [compare_tasks(recipes), measure_kept(), count_sent() if ON_LINUX else 0.0]

    ends = together(2, work, timeout=60)
    assert [end.code for end in ends] == [0, 0], ends
    return [end.said for end in ends]


def test_the_parts_of_a_batch_have_the_loss_and_gradients_of_the_whole(measured: list[Any]) -> None:
    for differences, _, _ in measured:
        assert differences.keys() == set(TOKEN_KINDS)
        assert max(differences.values()) < 1e-6, differences


def test_a_rank_keeps_its_part_of_the_activations(measured: list[Any]) -> None:
    """Without recomputation also the keys and values of all tokens in every layer, and one mask in all."""
    keys_and_values = LAYERS * ROWS * LENGTH * 2 * SIZES["d_model"] * 8
    mask = ROWS * LENGTH // 2 * LENGTH * 8
    for _, (alibi, recomputed, rope, difference), _ in measured:
        assert alibi[0] == alibi[1] / 2 + keys_and_values / 2 / 2  # two heads of four
        assert recomputed[0] == recomputed[1] / 2
        assert rope[0] == rope[1] / 2 + keys_and_values / 2 + mask
        assert difference == 0


@pytest.mark.skipif(not ON_LINUX, reason="needs Linux")
def test_a_pass_sends_the_bytes_that_a_plan_says(measured: list[Any]) -> None:
    for _, _, n_bytes in measured:
        check_sent(n_bytes, 2)


@pytest.mark.slow
@pytest.mark.skipif(not ON_LINUX, reason="needs Linux")
def test_four_ranks_do() -> None:
    for end in together(4, lambda ranks: count_sent(), timeout=60):
        assert end.code == 0, end
        check_sent(end.said, 4)


@pytest.mark.slow
def test_compiled_layers_gather_too() -> None:
    def work(ranks: ProcessGroup) -> list[float]:
        models = [make_model(position="alibi") for _ in range(2)]
        models[1].stack.compile_layers(backend="eager", fullgraph=True)
        return compare_gradients(*models)

    for end in together(2, work, timeout=60):
        assert end.code == 0 and end.said[0] < 1e-12, end


def test_a_run_goes_on_with_another_number(place: Path) -> None:
    """Evaluations and files are those of one process, too."""
    whole = trained(recipe_of(place, "language-model", "context-whole"), 1)
    trained(recipe_of(place, "language-model", "context-on", steps=4, parallel={"context": 2}), 2)
    assert_same(whole, trained(recipe_of(place, "language-model", "context-on"), 1, resume=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOKEN_KINDS)
def test_every_task_learns_the_same(kind: str, place: Path) -> None:
    alone = trained(recipe_of(place, kind, f"context-{kind}-1"), 1)
    assert_same(alone, trained(recipe_of(place, kind, f"context-{kind}-2", parallel={"context": 2}), 2))


@pytest.mark.slow
def test_tokens_are_split_at_random_alike_on_all_ranks(place: Path) -> None:
    """They have parts of the same rows, and the rows of one process."""
    recipes = []
    for n in (1, 2):
        recipe = recipe_of(place, "translation", f"random-{n}", parallel={"context": n})
        task = Choice("translation", token_split=0.4)
        recipes.append(Recipe.model_validate(recipe.model_dump(mode="json") | {"task": task}))
    assert_same(trained(recipes[0], 1), trained(recipes[1], 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel",
    [{"context": 4}, {"context": 2}, {"context": 2, "shard": 2}, {"context": 2, "tensor": 2}],
    ids=str,
)
def test_four_ranks_train_as_one(parallel: dict[str, int], place: Path) -> None:
    """All split tokens, or two groups do, which share rows or weights too; with recomputation and experts."""
    name, model = (
        "-".join(f"{key}{size}" for key, size in parallel.items()),
        {"feed_forward": {"name": "moe", "n_experts": 3}},
    )
    recipes = [
        recipe_of(place, "language-model", f"{name}-{i}", model=dict(model), **changes)
        for i, changes in enumerate(({}, {"parallel": parallel, "recompute": "blocks"}))
    ]
    assert_same(trained(recipes[0], 1), trained(recipes[1], 4))


def test_what_cannot_be_split_is_refused_with_the_reason(place: Path) -> None:
    def obstacle(kind: str, distill: bool = False, **model: Any) -> str | None:
        recipe = recipe_of(place, kind, "context-refused", model=model)
        if distill:
            recipe = recipe.model_copy(update={"distill": DistillConfig(teacher=["teacher"])})
        config = recipe.model.with_vocabulary(30, ("few", "many") if kind == "classification" else ())
        return find_obstacle(recipe, config, MeshShape(context=2))

    for kind in TOKEN_KINDS:
        assert obstacle(kind) is None
    reasons = {
        "attention 'linear' passes a state along the row": obstacle(
            "language-model", attention={"name": "linear"}, position={"name": "none"}
        ),
        "the loss of the task is not a sum over the tokens of a row": obstacle("classification"),
        "a teacher of distill reads whole rows": obstacle("masked-lm", distill=True),
    }
    for reason, found in reasons.items():
        assert found == f"the tokens of a row cannot be split, since {reason}; set context=1"


@pytest.mark.slow
def test_all_end_when_one_is_killed(place: Path) -> None:
    """Between two layers, where the others wait for its keys and values."""
    recipe = recipe_of(place, "language-model", "context-killed", parallel={"context": 2})

    def work(ranks: ProcessGroup) -> None:
        calls, gather = itertools.count(), ContextGather.gather_kv

        def gather_or_die(self: ContextGather, kv: KV) -> KV:
            if ranks.rank and next(calls) == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            return gather(self, kv)

        ContextGather.gather_kv = gather_or_die  # type: ignore[method-assign]
        run_training(recipe, report=Notes(), ranks=ranks)

    ends = together(2, work, timeout=10)
    assert [end.code for end in ends] == [RANK_LOST, -signal.SIGKILL], ends
