"""From what was typed to the rows of a comparison: every design resolved into a complete recipe, or refused with a reason.

No torch here, so that a mistake is answered at once.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from polyhead import document
from polyhead.compare.axes import Axis, Design, grid, one_at_a_time
from polyhead.compare.budget import Budget
from polyhead.errors import UserError, explain
from polyhead.recipe import Recipe, read_recipe
from polyhead.registry import CACHE, Choice
from polyhead.train.schedule import faint, late

if TYPE_CHECKING:
    from polyhead.compare.tasks.base import Compared

LONGEST_NAME = 80  # characters of a directory
AS_ANOTHER = {"decoder_block": "block", "decoder_attention": "attention", "cross_attention": "attention"}
Tree = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One design: its name, what it changes, and its recipe, or why there can be none."""

    name: str
    changes: tuple[str, ...]
    recipe: Recipe | None
    refused: str = ""
    note: str = ""

    @property
    def is_base(self) -> bool:
        return not self.changes

    @property
    def slug(self) -> str:
        """The name as that of a directory; one that had to be changed gets a digest, so that none meet."""
        safe = re.sub(r"[^\w=.,-]+", "-", self.name).strip("-.")[:LONGEST_NAME]
        return safe if safe == self.name else f"{safe}-{digest(self.name)[:6]}"


@dataclass(frozen=True)
class Plan:
    """A whole comparison before it runs: rows, the base first, each to be trained with every seed."""

    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    budget: Budget
    match: bool
    out: Path

    @property
    def task(self) -> Compared:
        """What is measured, and how."""
        from polyhead.compare.tasks.base import compared

        return compared(self.base.task.name)

    @property
    def base(self) -> Recipe:
        recipe = self.rows[0].recipe
        assert recipe is not None, "the base is read before anything else"
        return recipe

    def place(self, row: Row, seed: int) -> Path:
        """The directory of a cell."""
        return self.out / "cells" / f"{row.slug}.s{seed}"

    def with_rows(self, rows: Iterable[Row]) -> Plan:
        return replace(self, rows=tuple(rows))


def make_plan(
    recipe: Path,
    changes: Sequence[str],
    axes: Sequence[Axis],
    designs: Sequence[Design],
    *,
    full_grid: bool,
    budget: Budget,
    seeds: int,
    match: bool,
    out: Path | None,
) -> Plan:
    """Every design as a row; equal ones are merged into the first of them.

    A value that is wrong in any recipe (a name nobody knows, a number out of range) is a UserError; a combination
    that does not work is a row that says so.
    """
    tree = _tree(recipe, changes)
    base = resolve(tree, ())
    if isinstance(base, str):
        raise UserError(base)
    given = [value for keys, value in document.parse_overrides(changes, Recipe) if keys == ["out"]]
    # a run's own recipe is runs/NAME/recipe.yaml
    name = recipe.parent.name if recipe.stem == "recipe" else recipe.stem
    out = out or Path(given[-1] if given else Path("runs") / f"compare-{name}")
    varied = grid(axes, lambda change: _same(tree, change, base)) if full_grid else one_at_a_time(axes)
    rows = [Row("base", (), base, note=warning(base, budget))]
    for design in [*varied, *designs]:
        found = resolve(tree, design.changes)
        if isinstance(found, Recipe) and base.data.valid_share and found.data.train != base.data.train:
            found = "data.valid_share would hold out another text than the base's; name files in data.valid"
        if isinstance(found, str):
            rows.append(Row(design.name, design.changes, None, refused=found))
        elif all(row.recipe is None or built(found) != built(row.recipe) for row in rows):
            rows.append(Row(design.name, design.changes, found, note=warning(found, budget)))
    _check_names(rows)
    from polyhead.compare.tasks.base import compared

    compared(base.task.name)  # a task that cannot be compared is told before anything is made
    first = base.train.seed
    return Plan(tuple(rows), tuple(range(first, first + seeds)), budget, match, out)


def resolve(tree: Tree, changes: Iterable[str]) -> Recipe | str:
    """The recipe with some changes, or why these do not go together."""
    tree = copy.deepcopy(tree)
    for keys, value in document.parse_overrides(changes, Recipe):
        document.assign(tree, keys, value, Recipe)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        said = explain(error, Recipe)
        if any(
            len(found["loc"]) > 1 or found["loc"] == ("task",) for found in error.errors(include_url=False)
        ):
            raise said from None
        return str(said)


def _tree(path: Path, changes: Sequence[str]) -> Tree:
    """The recipe as a mapping, with the changes that hold for all designs."""
    tree = read_recipe(path, changes)
    for keys, value in document.parse_overrides(changes, Recipe):
        document.assign(tree, keys, value, Recipe)
    return {key: value for key, value in tree.items() if value is not None}


def _same(tree: Tree, change: str, base: Recipe) -> bool:
    found = resolve(tree, [change])
    return isinstance(found, Recipe) and built(found) == built(base)


def built(recipe: Recipe) -> Recipe:
    """The recipe without the parts that are spelled out and would be the same if they were not."""
    model, generation = recipe.model, recipe.generation
    varied = {name for parts in model.pattern for name, choice in parts if choice}
    same = [
        part
        for part, usual in AS_ANOTHER.items()
        if getattr(model, part) == getattr(model, usual) and usual not in varied
    ]
    if generation.cache == CACHE.check(Choice("static")):
        from polyhead.analysis.cost.decoding import cache_shape

        if cache_shape(model.with_vocabulary(1)).keyed:
            generation = generation.model_copy(update={"cache": None})
    model = model.model_copy(update=dict.fromkeys(same))
    return recipe.model_copy(update={"model": model, "generation": generation})


def _check_names(rows: Sequence[Row]) -> None:
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two designs are called {name!r}; give one of them another name")


def warning(recipe: Recipe, budget: Budget) -> str:
    """What a person should know about a row before it runs; empty where there is nothing."""
    steps = (
        int(budget.amount)
        if budget.kind == "steps"
        else recipe.train.steps
        if budget.kind == "recipe"
        else None
    )
    notes = [
        late(recipe.train.schedule, steps) if steps else "",
        faint(recipe.train.schedule, recipe.train.lr),
    ]
    return "; ".join(note for note in notes if note)


def digest(value: Any) -> str:
    """A short name for a value that JSON can write."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
