from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.train.distributed.rank_runs import TASKS, assert_same_run, open_task, recipe_of, train
from tests.train.ranks import outputs_of
from torch import Tensor

from polyhead import Choice, ModelConfig, build
from polyhead.config.config_sections import DistillConfig
from polyhead.config.recipe import Recipe
from polyhead.core.registry import TASK
from polyhead.data.batching.token_windows import TokenWindows, shard_windows
from polyhead.nn.stack import recompute_blocks
from polyhead.train.distributed.context_parallel import ContextGather, ShardsSequence
from polyhead.train.distributed.mesh import MeshShape
from polyhead.train.loss_module import LossModule
from polyhead.train.strategies.parallelize import find_obstacle

pytestmark = pytest.mark.usefixtures("no_report")
TOKEN_TASKS = [task for task in TASKS if task != "classification"]
ROWS, LENGTH, LAYERS = 2, 32, 3
SIZES: dict[str, Any] = {"vocab_size": 23, "d_model": 16, "n_heads": 4, "n_kv_heads": 2}
SIZES |= {"kind": "decoder", "dropout": 0.0}


def sum_losses(module: LossModule, batch: Any) -> Tensor:
    """Loss, its part without smoothing, label count and all gradients in a vector."""
    module.zero_grad()
    loss = module(batch)
    loss.total.backward()
    assert loss.count == module.task.count_labels(batch)
    grads = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
    return torch.cat([loss.total.detach()[None], loss.nll[None], torch.tensor([loss.count]), *grads])


def compare_tasks(recipes: dict[str, Recipe]) -> dict[str, float]:
    differences = {}
    for name, recipe in recipes.items():
        run, task = open_task(recipe)
        assert isinstance(task, ShardsSequence)
        module, batch = LossModule(run.model.double().train(), task), task.collate(task.largest_batch())
        context = ContextGather(run.model, dist.group.WORLD)
        with context.apply():
            sums = sum_losses(module, task.shard_sequence(batch, context.shard))
        dist.all_reduce(sums)
        single = sum_losses(module, batch)
        differences[name] = float((sums - single).abs().max() / single[0])
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
        batch = shard_windows(make_batch(), context.shard)
        model.features(batch.tokens, batch.pos).sin().sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def measure_saved_bytes(model: Any, batch: TokenWindows) -> int:
    """Bytes that autograd saves up to the features, each storage once, without weights."""
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    tensors: dict[int, Tensor] = {}

    def save(x: Tensor) -> Tensor:
        tensors[x.untyped_storage()._cdata] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
        model.features(batch.tokens, batch.pos)
    return sum(x.untyped_storage().nbytes() for key, x in tensors.items() if key not in weights)


def compare_gradients(*models: Any) -> list[float]:
    grads, *other_models = (
        compute_gradients(model, ContextGather(model, dist.group.WORLD)) for model in models
    )
    return [max(float((a - b).abs().max()) for a, b in zip(grads, x, strict=True)) for x in other_models]


def measure_memory() -> list[Any]:
    alibi, recomputing = (make_model(position="alibi") for _ in range(2))
    rope = make_model(position="rope", n_kv_heads=4)
    recompute_blocks(recomputing)
    documents, plain = make_batch(), make_batch()._replace(pos=None, has_documents=False)
    sizes: list[Any] = []
    for model, batch in ((alibi, documents), (recomputing, documents), (rope, plain)):
        context = ContextGather(model, dist.group.WORLD)
        with context.apply():
            size = measure_saved_bytes(model, shard_windows(batch, context.shard))
        sizes.append([size, measure_saved_bytes(model, batch)])
    return [*sizes, *compare_gradients(alibi, recomputing)]


@pytest.fixture(scope="module")
def results(corpus_dir):
    recipes = {task: recipe_of(corpus_dir, task, f"parts-{task}") for task in TOKEN_TASKS}
    for recipe in recipes.values():
        open_task(recipe)  # writes the token stores that all ranks read

    return outputs_of(2, lambda ranks: [compare_tasks(recipes), measure_memory()])


def test_sums_over_parts_match_loss_and_gradients(results):
    for differences, _ in results:
        assert differences.keys() == set(TOKEN_TASKS)
        assert max(differences.values()) < 1e-6, differences


def test_rank_keeps_its_part_of_the_activations(results):
    """Without recomputation also the keys and values of all tokens in every layer, and one mask."""
    keys_and_values = LAYERS * ROWS * LENGTH * 2 * SIZES["d_model"] * 8
    mask = ROWS * LENGTH // 2 * LENGTH * 8
    for _, (alibi, recomputing, rope, difference) in results:
        assert alibi[0] == alibi[1] / 2 + keys_and_values / 2 / 2  # two heads of four
        assert recomputing[0] == recomputing[1] / 2
        assert rope[0] == rope[1] / 2 + keys_and_values / 2 + mask
        assert difference == 0


@pytest.mark.slow
def test_compiled_layers_gather_keys_and_values():
    def work(ranks):
        models = [make_model(position="alibi") for _ in range(2)]
        models[1].stack.compile_layers(backend="eager", fullgraph=True)
        return compare_gradients(*models)

    assert max(output[0] for output in outputs_of(2, work)) < 1e-12


@pytest.mark.slow
def test_ranks_draw_the_same_token_splits(corpus_dir):
    """They have parts of the same rows, and the rows of one process."""
    recipes = []
    for n in (1, 2):
        recipe = recipe_of(corpus_dir, "translation", f"random-{n}", parallel={"context": n})
        task = Choice("translation", token_split=0.4)
        recipes.append(Recipe.model_validate(recipe.model_dump(mode="json") | {"task": task}))
    assert_same_run(train(recipes[0], 1), train(recipes[1], 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel",
    [{"context": 4}, {"context": 2}, {"context": 2, "shard": 2}, {"context": 2, "tensor": 2}],
    ids=str,
)
def test_four_ranks_match_one_process(parallel, corpus_dir):
    """All shard tokens, or two groups do, which share rows or weights too; with recomputation and experts."""
    name = "-".join(f"{key}{size}" for key, size in parallel.items())
    options = {"model": {"feed_forward": {"name": "moe", "n_experts": 3}}}
    single = recipe_of(corpus_dir, "language-model", f"{name}-1", **options)
    options |= {"parallel": parallel, "recompute": "blocks"}
    recipe = recipe_of(corpus_dir, "language-model", f"{name}-4", **options)
    assert_same_run(train(single, 1), train(recipe, 4))


def test_obstacles_name_the_reason(corpus_dir):
    def find(task, distill=False, **model):
        recipe = recipe_of(corpus_dir, task, "context-refused", model=model)
        if distill:
            recipe = recipe.model_copy(update={"distill": DistillConfig(teacher=["teacher"])})
        labels = ("few", "many") if task == "classification" else ()
        return find_obstacle(recipe, recipe.model.with_vocabulary(30, labels), MeshShape(context=2))

    assert [task for task in TASKS if isinstance(TASK.get(task), ShardsSequence)] == TOKEN_TASKS
    assert all(find(task) is None for task in TOKEN_TASKS)
    linear = {"attention": {"name": "linear"}, "position": {"name": "none"}}
    reasons = {
        "attention 'linear' passes a state along the row": find("language-model", **linear),
        "the loss of the task is not a sum over the tokens of a row": find("classification"),
        "a teacher of distill reads whole rows": find("masked-lm", distill=True),
    }
    for reason, obstacle in reasons.items():
        assert obstacle == f"the tokens of a row cannot be split, since {reason}; set context=1"
