"""``ph.train``, ``ph.compare`` and ``ph.init_recipe``: command-line verbs as functions.

Importing it does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyhead.config import yaml_io
from polyhead.config.recipe import Recipe, read_recipe_tree
from polyhead.core.errors import UserError, format_value
from polyhead.core.strict_kwargs import strict_kwargs
from polyhead.run.recipe import load_recipe, validate_recipe

if TYPE_CHECKING:
    from polyhead.compare.run import Comparison
    from polyhead.run.run import Run


@strict_kwargs
def train(recipe: str | Path | Recipe, *changes: str, resume: bool = False, quiet: bool = False) -> Run:
    """Train a recipe (a file or a Recipe), with changes such as "train.steps=100"; return the finished run.

    Progress goes to standard error, unless ``quiet``. Ctrl-C saves a checkpoint and raises KeyboardInterrupt;
    ``resume`` continues from the newest one, or starts if there is none. The run is also saved in the
    directory that the recipe names with ``out``.
    """
    config = _read_recipe(recipe, changes, "train", resume)
    from polyhead.train.loggers import Reporters
    from polyhead.train.run_training import run_training

    run, outcome = run_training(config, resume=resume, report=Reporters() if quiet else None)
    if outcome.status == "interrupted":
        raise KeyboardInterrupt(f"training stopped at step {outcome.step}; resume=True continues from it")
    return run


@strict_kwargs
def compare(
    recipe: str | Path | Recipe,
    *changes: str,
    vary: Mapping[str, Sequence[Any]] | None = None,
    designs: Mapping[str, Sequence[str]] | None = None,
    grid: bool = False,
    budget: str | None = None,
    seeds: int = 1,
    match: str | None = None,
    out: str | Path | None = None,
) -> Comparison:
    """Train several designs on the same text and compare them: ``vary={"norm": ["layernorm", "rmsnorm"]}``.

    ``vary`` changes one key of the recipe at a time (``grid``: all combinations), ``designs={"wide":
    ["d_model=256", "d_ff=512"]}`` several at once; ``changes`` apply to all designs. ``budget`` is per
    design, such as "10m" or "2000steps". A second call with the same arguments resumes. The result prints as
    a table; ``rows`` has its numbers.
    """
    if not isinstance(recipe, str | os.PathLike):
        raise UserError(
            f"compare expects a recipe file, got {format_value(recipe)}; ph.init_recipe(..., "
            "output=...) writes one"
        )
    from polyhead.compare.run import run_comparison

    read_recipe_tree(Path(recipe), [str(change) for change in changes])  # of a text file, what to do
    return run_comparison(
        Path(recipe),
        _check_changes(changes, "compare"),
        vary=vary or {},
        designs=designs or {},
        grid=grid,
        budget=budget,
        seeds=seeds,
        match=match,
        out=None if out is None else Path(out),
    )


@strict_kwargs
def init_recipe(*inputs: str | Path, target: str | None = None, output: str | Path | None = None) -> Recipe:
    """Propose a recipe for text files, with keys that are already known.

    ``init_recipe("train.en", "train.zh", "train.steps=100")``. The model will be exportable to ``target``:
    "hf", "ctranslate2", "onnx" or "gguf". ``output`` is the file to write it to, with comments;
    ``dump_yaml()`` of the result has all of its keys.
    """
    for item in inputs:
        if not isinstance(item, str | Path):
            raise UserError(
                "init_recipe expects names of text files, or overrides such as 'train.steps=100', "
                f"got {format_value(item)}{'; write init_recipe(*files)' * isinstance(item, list | tuple)}"
            )
    from polyhead.autoconfig.draft_recipe import draft_recipe
    from polyhead.core.output_paths import check_output_file, write_atomic

    files = [str(item) for item in inputs if isinstance(item, Path) or "=" not in item or Path(item).exists()]
    path = None if output is None else check_output_file(Path(output), "output", files)
    if path is not None and path.exists():
        raise UserError(f"output {path} already exists; choose another file, or remove it first")
    changes = [str(item) for item in inputs if str(item) not in files]
    draft = draft_recipe(files, changes, target, str(output or "mine.yaml"))
    if path is None:
        return draft.recipe
    write_atomic(path, draft.text.encode())
    return load_recipe(path)


def _read_recipe(source: object, changes: Sequence[object], verb: str, from_run: bool = False) -> Recipe:
    """Load a recipe file, or take a Recipe, and apply changes; anything else is a UserError."""
    if isinstance(source, str | os.PathLike):
        read_recipe_tree(Path(source), [str(change) for change in changes])  # of a text file, what to do
    words = _check_changes(changes, verb)
    if isinstance(source, str | os.PathLike):
        return load_recipe(Path(source), words, from_run=from_run)
    if not isinstance(source, Recipe):
        hint = "; for a mapping write Recipe(**mapping)" if isinstance(source, Mapping) else ""
        raise UserError(f"{verb} expects a Recipe or a recipe file, got {format_value(source)}{hint}")
    tree = source.model_dump(mode="json")
    for keys, value in yaml_io.parse_overrides(words, Recipe):
        yaml_io.assign(tree, keys, value, Recipe)
    return validate_recipe(tree, from_run=from_run)


def _check_changes(changes: Sequence[object], verb: str) -> list[str]:
    for change in changes:
        if not isinstance(change, str) or "=" not in change:
            raise UserError(
                f"{verb}: expected an override KEY=VALUE in one string, such as 'train.steps=100', "
                f"got {format_value(change)}"
            )
    return [str(change) for change in changes]
