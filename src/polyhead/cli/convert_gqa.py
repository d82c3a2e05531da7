"""``polyhead convert-gqa``: convert a trained model to fewer key and value heads."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.core.errors import UserError
from polyhead.core.output_paths import check_new_directory

if TYPE_CHECKING:
    from polyhead.config.recipe import Recipe
    from polyhead.models import Model
    from polyhead.run.run import Run
    from polyhead.train.tasks.base import Task


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="path of a trained run")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="output directory of the new run")],
    kv_heads: Annotated[
        int,
        typer.Option(
            min=1, help="number of key/value heads, a divisor of the present number; 1 is multi-query"
        ),
    ],
    uptrain: Annotated[
        float,
        typer.Option(
            min=0.001,
            help="training steps of the new run's recipe, as a fraction of the steps of the original run",
        ),
    ] = 0.05,
) -> None:
    """Convert multi-head attention to grouped-query or multi-query, averaging key and value heads.

    The KV cache of a decoding step shrinks with the number of heads. Quality drops, and mostly recovers with
    some further training, for which the new run can be resumed (Ainslie et al., 2023, train for 5 % of the
    original steps). The loss of quality is measured on the validation text of the run's recipe, if it can be
    read.

    \b
    polyhead convert-gqa runs/multi30k runs/multi30k-gqa --kv-heads 2
    polyhead train runs/multi30k-gqa/recipe.yaml --resume
    """
    check_new_directory(out, "the new run")
    from polyhead.models.pool_kv_heads import pool_kv_heads
    from polyhead.run.load import load
    from polyhead.run.run import Run

    old = load(directory, device="cpu")
    model = pool_kv_heads(old.model, kv_heads)
    recipe = derive_recipe(old.recipe, kv_heads, uptrain, out)
    new = Run(model, old.tokenizer, old.generation, recipe)
    new.family = old.family
    task, reason = open_task(new)
    figures = [measure_model(part, task) for part in (old.model, model)]
    rows = "\n".join(f"| {name} | {figures[0][name]} | {figures[1][name]} |" for name in figures[0])
    new.save(
        out,
        f"# {directory.name} with fewer key/value heads\n\nCreated with `polyhead convert-gqa`: each head is "
        f"the mean of a group.\n\n| measure | before | after |\n| --- | --- | --- |\n{rows}\n",
    )
    for name in figures[0]:
        print(f"{name:<22} {figures[0][name]:>12}  ->  {figures[1][name]:>12}")
    if reason:
        print(f"quality not measured: {reason}")
    if recipe is None or task is None:
        print("without the training text the new run can be used, but not trained further")
    else:
        save_initial_checkpoint(new, recipe, task)
        print(f"continue with: {shlex.join(['polyhead', 'train', str(out / 'recipe.yaml'), '--resume'])}")


def derive_recipe(recipe: Recipe | None, kv_heads: int, fraction: float, out: Path) -> Recipe | None:
    """Return the run's recipe for the new model, with ``fraction`` of its steps."""
    if recipe is None:
        return None
    tree = recipe.model_dump(mode="json")
    tree["model"]["n_kv_heads"], train = kv_heads, tree["train"]
    train["lora"] = None  # pooled heads are trained in full, without adapters
    if train["steps"]:
        train["steps"] = max(1, round(fraction * train["steps"]))
    if train["epochs"]:
        train["epochs"] *= fraction
    if train["schedule"].get("warmup"):
        train["schedule"]["warmup"] = max(1, round(fraction * train["schedule"]["warmup"]))
    return type(recipe).model_validate(tree | {"out": out})


def open_task(run: Run) -> tuple[Task | None, str]:
    """Open the training task of a run with its text; return it, or None and the reason."""
    from polyhead.cli.eval_metrics.printing import print_recipe_files
    from polyhead.core.registry import TASK
    from polyhead.train.loggers import TextLogger

    if run.recipe is None:
        return None, "the run has no recipe with the paths of its text"
    try:
        for split in ("train", "valid"):
            print_recipe_files(run.recipe, split)
        part = TASK.get(run.recipe.task.name)
        part.check(run.recipe)
        task: Task = part.open(run.recipe, run.tokenizer, TextLogger())
    except (UserError, OSError) as error:
        return None, str(error)
    return task, ""


def measure_model(model: Model, task: Task | None) -> dict[str, str]:
    """Return size and quality of a model as formatted figures."""
    import torch

    from polyhead.models import CausalLM, Seq2Seq

    figures = {"parameters": f"{sum(p.numel() for p in model.parameters()):,}"}
    if isinstance(model, Seq2Seq | CausalLM) and (kv_layers := model.cache_shape.kv_layers):
        shape = model.config.attention_shape(causal=True)
        width = shape.n_kv_heads * (shape.head_dim + shape.v_head_dim)
        figures["cache, bytes per token"] = f"{4 * len(kv_layers) * width:,}"
    if task is not None:
        with torch.inference_mode():
            quality = task.evaluate(model.eval())
        figures |= {f"valid {name}": f"{value:.4f}" for name, value in quality.items()}
    return figures


def save_initial_checkpoint(new_run: Run, recipe: Recipe, task: Task) -> None:
    """Write the checkpoint of step 0, from which training is resumed."""
    from polyhead.train.loop import total_steps
    from polyhead.train.train_state import TrainState

    training = TrainState(
        new_run.model, recipe.train, new_run.config.d_model, total_steps(task, recipe.train)
    )
    training.save(recipe.out / "checkpoints", {"tokenizer_sha256": new_run.tokenizer.sha256, **task.identity})
