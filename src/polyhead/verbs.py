"""``ph.train``, ``ph.compare`` and ``ph.recipe``: the verbs of the command line as functions. No torch until one is called."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyhead import document
from polyhead.calls import told
from polyhead.errors import UserError, show
from polyhead.recipe import Recipe, load_recipe, validate

if TYPE_CHECKING:
    from polyhead.compare.comparison import Comparison
    from polyhead.run import Run

Place = str | Path


@told
def train(recipe: Place | Recipe, *changes: str, resume: bool = False, quiet: bool = False) -> Run:
    """Train what a recipe (a file or a Recipe) says, with changes such as "train.steps=100"; the finished run.

    Progress goes to standard error, unless ``quiet``. Ctrl-C saves a checkpoint and raises KeyboardInterrupt;
    ``resume`` goes on from the newest one. The run is also in the directory that the recipe names with ``out``.
    """
    read = _read_recipe(recipe, changes, "train", resume)
    from polyhead.train.pipeline import run_training
    from polyhead.train.reporting import Reporters

    run, outcome = run_training(read, resume=resume, report=Reporters() if quiet else None)
    if outcome.how == "interrupted":
        raise KeyboardInterrupt(f"training stopped at step {outcome.step}; resume=True goes on from there")
    return run


@told
def compare(
    recipe: Place | Recipe,
    *changes: str,
    vary: Mapping[str, Sequence[Any]] | None = None,
    designs: Mapping[str, Sequence[str]] | None = None,
    grid: bool = False,
    budget: str | None = None,
    seeds: int = 1,
    match: str | None = None,
    out: Place | None = None,
) -> Comparison:
    """Train designs side by side on one text: ``vary={"norm": ["layernorm", "rmsnorm"]}`` around the recipe.

    ``changes`` hold for all designs, ``designs={"wide": ["d_model=256", "d_ff=512"]}`` change several keys at once;
    ``budget`` is that of each design, such as "10m" or "2000steps". Called again with the same arguments it goes on where
    it stopped. The result prints as the table; ``rows`` are its numbers.
    """
    place = _recipe_file(recipe)
    from polyhead.compare.comparison import run_comparison

    return run_comparison(
        place,
        _check_changes(changes, "compare"),
        vary=vary or {},
        designs=designs or {},
        grid=grid,
        budget=budget,
        seeds=seeds,
        match=match,
        out=None if out is None else Path(out),
    )


@told
def recipe(*given: Place, target: str | None = None, output: Place | None = None) -> Recipe:
    """Propose a recipe for text files, with keys that are known already: ``recipe("train.en", "train.de", "train.steps=100")``.

    The model can be exported to ``target``: "hf", "ctranslate2", "onnx" or "gguf". ``output`` is the file to write it
    to, with comments; ``dump_yaml()`` of the result is all of its keys.
    """
    for one in given:
        if not isinstance(one, str | Path):
            raise UserError(
                f"recipe wants the names of text files, or changes such as 'train.steps=100', got {show(one)}"
            )
    from polyhead.places import file_place, put
    from polyhead.starter.draft import draft_recipe

    files = [str(one) for one in given if isinstance(one, Path) or "=" not in one or Path(one).exists()]
    place = None if output is None else file_place(Path(output), "output", files)
    if place is not None and place.exists():
        raise UserError(f"output {place} is there already; name another file, or remove it first")
    draft = draft_recipe(
        files, [str(one) for one in given if str(one) not in files], target, str(output or "mine.yaml")
    )
    if place is None:
        return draft.recipe
    put(place, draft.text.encode())
    return load_recipe(place)


def _read_recipe(source: object, changes: Sequence[object], verb: str, made: bool = False) -> Recipe:
    """The recipe of a file, or the one that is passed, with changes; what else comes is a UserError."""
    words = _check_changes(changes, verb)
    if isinstance(source, str | os.PathLike):
        return load_recipe(Path(source), words, made=made)
    if not isinstance(source, Recipe):
        raise UserError(f"{verb} wants a Recipe or the file of one, got {show(source)}")
    tree = source.model_dump(mode="json")
    for keys, value in document.parse_overrides(words, Recipe):
        document.assign(tree, keys, value, Recipe)
    return validate(tree, made=made)


def _check_changes(changes: Sequence[object], verb: str) -> list[str]:
    for one in changes:
        if not isinstance(one, str) or "=" not in one:
            raise UserError(
                f"{verb}: a change is KEY=VALUE in one string, such as 'train.steps=100', got {show(one)}"
            )
    return [str(one) for one in changes]


def _recipe_file(source: object) -> Path:
    """The file of a recipe."""
    if isinstance(source, str | os.PathLike):
        return Path(source)
    raise UserError(
        f"compare wants the file of a recipe, got {show(source)}; ph.recipe(..., output=...) writes one"
    )
