"""``polyhead convert-heads``: a trained model with fewer heads of keys and values."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyhead.errors import UserError
from polyhead.places import new_directory

if TYPE_CHECKING:
    from polyhead.models import Model
    from polyhead.recipe import Recipe
    from polyhead.run import Run
    from polyhead.train.tasks.base import RunTask


def run(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="directory of a trained run")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="directory of the new run")],
    kv_heads: Annotated[
        int,
        typer.Option(min=1, help="heads of keys and values, a divisor of those there are; 1 is multi-query"),
    ],
    uptrain: Annotated[
        float, typer.Option(min=0.001, help="steps of the new run's recipe, as a share of the run's own")
    ] = 0.05,
) -> None:
    """Turn multi-head attention into grouped or multi-query attention, by the means of key and value heads.

    The cache of a step shrinks with the number of heads. Quality falls and mostly comes back with some training: the
    new run is one that can go on (Ainslie et al., 2023, train for 5 % of the steps before). What is lost is measured on
    the validation text of the run's recipe, if it can be read.

    \b
    polyhead convert-heads runs/multi30k runs/multi30k-gqa --kv-heads 2
    polyhead train runs/multi30k-gqa/recipe.yaml --resume
    """
    new_directory(out, "the new run")
    from polyhead.loading import load
    from polyhead.models.convert import pool_heads
    from polyhead.run import Run

    old = load(directory, device="cpu")
    model = pool_heads(old.model, kv_heads)
    recipe = new_recipe(old.recipe, kv_heads, uptrain, out)
    new = Run(model, old.tokenizer, old.generation, recipe)
    new.family = old.family
    task, why = opened(new)
    figures = [measured(part, task) for part in (old.model, model)]
    new.save(out, readme(directory, figures))
    for name in figures[0]:
        print(f"{name:<22} {figures[0][name]:>12}  ->  {figures[1][name]:>12}")
    if why:
        print(f"quality not measured: {why}")
    if recipe is None or task is None:
        print("without its text the new run can be used, but not trained on")
    else:
        begin(new, recipe, task)
        print(f"go on with: {shlex.join(['polyhead', 'train', str(out / 'recipe.yaml'), '--resume'])}")


def new_recipe(recipe: Recipe | None, kv_heads: int, share: float, out: Path) -> Recipe | None:
    """The run's recipe for the new model, with so many steps as a share of its own."""
    if recipe is None:
        return None
    tree = recipe.model_dump(mode="json")
    tree["model"]["n_kv_heads"], train = kv_heads, tree["train"]
    train["adapt"] = None  # pooled heads learn whole
    if train["steps"]:
        train["steps"] = max(1, round(share * train["steps"]))
    if train["epochs"]:
        train["epochs"] *= share
    if train["schedule"].get("warmup"):
        train["schedule"]["warmup"] = max(1, round(share * train["schedule"]["warmup"]))
    return type(recipe).model_validate(tree | {"out": out})


def opened(run: Run) -> tuple[RunTask | None, str]:
    """What the run learns, with its text; or None, and why."""
    from polyhead.registry import TASK
    from polyhead.train.reporting import Lines

    if run.recipe is None:
        return None, "the run has no recipe that says where its text is"
    try:
        part = TASK.get(run.recipe.task.name)
        part.check(run.recipe)
        task: RunTask = part.open(run.recipe, run.tokenizer, Lines())
    except (UserError, OSError) as error:
        return None, str(error)
    return task, ""


def measured(model: Model, task: RunTask | None) -> dict[str, str]:
    """Size and quality of a model, for people to read."""
    import torch

    from polyhead.models import CausalLM, Seq2Seq

    found = {"parameters": f"{sum(p.numel() for p in model.parameters()):,}"}
    if isinstance(model, Seq2Seq | CausalLM) and (keyed := model.cache_shape.keyed):
        shape = model.config.shape(causal=True)
        width = shape.n_kv_heads * (shape.head_dim + shape.v_head_dim)
        found["cache, bytes a token"] = f"{4 * len(keyed) * width:,}"
    if task is not None:
        with torch.inference_mode():
            quality = task.evaluate(model.eval())
        found |= {f"valid {name}": f"{value:.4f}" for name, value in quality.items()}
    return found


def begin(new: Run, recipe: Recipe, task: RunTask) -> None:
    """Write the checkpoint of step 0, from which training goes on."""
    from polyhead.train.loop import total_steps
    from polyhead.train.training import Training

    training = Training(new.model, recipe.train, new.config.d_model, total_steps(task, recipe.train))
    training.save(recipe.out / "checkpoints", {"tokenizer_sha256": new.tokenizer.sha256, **task.identity})


def readme(origin: Path, figures: list[dict[str, str]]) -> str:
    """The README.md of the new run."""
    rows = "\n".join(f"| {name} | {figures[0][name]} | {figures[1][name]} |" for name in figures[0])
    return (
        f"# {origin.name} with fewer heads of keys and values\n\nMade with `polyhead convert-heads`: each head is the "
        f"mean of a group.\n\n| measure | before | after |\n| --- | --- | --- |\n{rows}\n"
    )
