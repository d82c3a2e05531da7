"""Plan of a comparison: each requested design is resolved into a complete recipe or rejected with a reason.

Parameter counts can be matched by another d_ff. Imports no torch, so that errors are reported immediately.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from polyhead.compare.sweep import Axis, Budget, DesignSpec, expand_grid, vary_one_axis
from polyhead.config import yaml_io
from polyhead.config.recipe import Recipe, read_recipe_tree
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.core.messages import from_validation_error
from polyhead.core.registry import CACHE
from polyhead.run.recipe import check_recipe
from polyhead.train.schedule import warn_factor, warn_long_warmup

if TYPE_CHECKING:
    from polyhead.compare.tasks.base import ComparedTask


MAX_SEEDS = 100
_MAX_NAME_LEN = 80  # characters of a directory name
_INHERITED_PARTS = {
    "decoder_block": "block",
    "decoder_attention": "attention",
    "cross_attention": "attention",
}
Tree = dict[str, Any]


@dataclass(frozen=True)
class Design:
    """One design: its name, its changes to the base, and its recipe, or the reason why it has none."""

    name: str
    changes: tuple[str, ...]
    recipe: Recipe | None
    error: str = ""
    note: str = ""

    @property
    def is_base(self) -> bool:
        return not self.changes

    @property
    def slug(self) -> str:
        """Directory name of the design; a name with other characters gets a hash, so that none collide."""
        safe = re.sub(r"[^\w=.,-]+", "-", self.name).strip("-.")[:_MAX_NAME_LEN]
        return safe if safe == self.name else f"{safe}-{hash_value(self.name)[:6]}"


@dataclass(frozen=True)
class ComparisonPlan:
    """Complete plan of a comparison: the designs, the base first, each trained with every seed."""

    designs: tuple[Design, ...]
    seeds: tuple[int, ...]
    budget: Budget
    match: bool
    out: Path

    @property
    def task(self) -> ComparedTask:
        """The task that designs are compared on, with its metrics."""
        from polyhead.compare.tasks.base import get_compared_task

        return get_compared_task(self.base.task.name)

    @property
    def base(self) -> Recipe:
        recipe = self.designs[0].recipe
        assert recipe is not None, "the base is read before anything else"
        return recipe

    def trial_dir(self, design: Design, seed: int) -> Path:
        """Directory of a trial."""
        return self.out / "cells" / f"{design.slug}.s{seed}"

    def with_designs(self, designs: Iterable[Design]) -> ComparisonPlan:
        return replace(self, designs=tuple(designs))


def make_plan(
    recipe: Path,
    changes: Sequence[str],
    axes: Sequence[Axis],
    designs: Sequence[DesignSpec],
    *,
    full_grid: bool,
    budget: Budget,
    seeds: int,
    match: bool,
    out: Path | None,
) -> ComparisonPlan:
    """Resolve all designs; a design with the same recipe as an earlier one is dropped.

    A value that no recipe accepts (an unknown name, a number out of range) is a UserError. A combination that
    does not work becomes a design with an error.
    """
    tree = _assign_changes(read_recipe_tree(recipe, changes), changes)
    tree = {key: value for key, value in tree.items() if value is not None}
    base = resolve_recipe(tree, ())
    if isinstance(base, str):
        raise UserError(base)

    def equals_base(change: str) -> bool:
        resolved = resolve_recipe(tree, [change])
        return isinstance(resolved, Recipe) and normalise_recipe(resolved) == normalise_recipe(base)

    if base.data.language_tags:
        raise UserError("compare: the corpora have several target languages, and designs are compared on one")
    out_values = [value for keys, value in yaml_io.parse_overrides(changes, Recipe) if keys == ["out"]]
    # a run's own recipe is runs/NAME/recipe.yaml
    name = recipe.parent.name if recipe.stem == "recipe" else recipe.stem
    out = out or Path(out_values[-1] if out_values else Path("runs") / f"compare-{name}")
    varied_designs = expand_grid(axes, equals_base) if full_grid else vary_one_axis(axes)
    rows = [Design("base", (), base, note=schedule_warnings(base, budget))]
    for design in [*varied_designs, *designs]:
        resolved = resolve_recipe(tree, design.changes)
        if (
            isinstance(resolved, Recipe)
            and base.data.valid_fraction
            and resolved.data.train != base.data.train
        ):
            resolved = (
                "data.valid_fraction would hold out a different text than the base recipe; set data.valid"
            )
        if isinstance(resolved, str):
            rows.append(Design(design.name, design.changes, None, error=resolved))
        elif all(
            row.recipe is None or normalise_recipe(resolved) != normalise_recipe(row.recipe) for row in rows
        ):
            rows.append(
                Design(design.name, design.changes, resolved, note=schedule_warnings(resolved, budget))
            )
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two designs are named {name!r}; rename one of them")
    from polyhead.compare.tasks.base import get_compared_task

    get_compared_task(base.task.name)  # reject a task that cannot be compared before any file is written
    first_seed = base.train.seed
    return ComparisonPlan(tuple(rows), tuple(range(first_seed, first_seed + seeds)), budget, match, out)


def resolve_recipe(tree: Tree, changes: Iterable[str]) -> Recipe | str:
    """Recipe with some changes applied, or the reason why the changes do not fit together.

    A value that no recipe accepts is a UserError.
    """
    tree = _assign_changes(copy.deepcopy(tree), changes)
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        user_error = from_validation_error(error, Recipe)
        if any(
            len(detail["loc"]) > 1 or detail["loc"] == ("task",) for detail in error.errors(include_url=False)
        ):
            raise user_error from None
        return str(user_error)
    try:
        return check_recipe(recipe)
    except UserError as error:
        return str(error)


def _assign_changes(tree: Tree, changes: Iterable[str]) -> Tree:
    for keys, value in yaml_io.parse_overrides(changes, Recipe):
        yaml_io.assign(tree, keys, value, Recipe)
    return tree


def normalise_recipe(recipe: Recipe) -> Recipe:
    """Remove explicit parts of a recipe that equal the default they replace."""
    model, generation = recipe.model, recipe.generation
    varied_parts = {name for parts in model.layer_pattern for name, choice in parts if choice}
    redundant_parts = [
        part
        for part, default_part in _INHERITED_PARTS.items()
        if getattr(model, part) == getattr(model, default_part) and default_part not in varied_parts
    ]
    if generation.cache == CACHE.check(Choice("static")):
        from polyhead.cost.decoding import cache_shape

        if cache_shape(model.with_vocabulary(1)).kv_layers:
            generation = generation.model_copy(update={"cache": None})
    model = model.model_copy(update=dict.fromkeys(redundant_parts))
    return recipe.model_copy(update={"model": model, "generation": generation})


def schedule_warnings(recipe: Recipe, budget: Budget) -> str:
    """Warnings about the learning rate schedule of a design; '' if there are none."""
    steps = {"steps": int(budget.amount), "recipe": recipe.train.steps}.get(budget.kind)
    notes = [
        warn_long_warmup(recipe.train.schedule, steps) if steps else "",
        warn_factor(recipe.train.schedule, recipe.train.lr),
    ]
    return "; ".join(note for note in notes if note)


def hash_value(value: Any) -> str:
    """Short hash of a JSON-serialisable value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# minimum d_ff relative to the base's; a narrower feed-forward layer would make the comparison unfair
MIN_D_FF_RATIO = 0.25


def match_parameters(plan: ComparisonPlan, count_parameters: Callable[[Recipe], int]) -> ComparisonPlan:
    """Rescale d_ff until each design's parameters are within 1 % of the base's, or note why they cannot."""
    return plan.with_designs(
        row
        if row.recipe is None or row.is_base
        else _match_design(row, row.recipe, plan.base, count_parameters)
        for row in plan.designs
    )


def _match_design(
    design: Design, recipe: Recipe, base: Recipe, count_parameters: Callable[[Recipe], int]
) -> Design:
    def with_d_ff(d_ff: int) -> Recipe:
        return recipe.model_copy(update={"model": recipe.model.model_copy(update={"d_ff": d_ff})})

    d_ff_before, base_d_ff = recipe.model.d_ff, base.model.d_ff
    assert d_ff_before is not None and base_d_ff is not None, "a resolved model has all its sizes"
    count, target_count = count_parameters(recipe), count_parameters(base)
    difference = f"{count:,} parameters against the base's {target_count:,} ({count / target_count - 1:+.1%})"
    slope = count_parameters(with_d_ff(d_ff_before + 1)) - count  # parameters are linear in d_ff
    if slope <= 0:
        outcome = "nothing was matched" if counts_match(count, target_count) else "not matched"
        return _add_note(design, f"{outcome}, since no block of it has a d_ff: {difference}")
    if counts_match(count, target_count):
        return design
    exact_d_ff = d_ff_before + (target_count - count) / slope
    if exact_d_ff < MIN_D_FF_RATIO * base_d_ff:
        requirement = f"a d_ff of {round(exact_d_ff)}" if exact_d_ff >= 0.5 else "a d_ff below 1"
        return _add_note(
            design, f"not matched, since that requires {requirement} (the base has {base_d_ff}): {difference}"
        )
    for d_ff in (8 * round(exact_d_ff / 8), round(exact_d_ff)):  # multiples of 8 suit the kernels
        if d_ff >= 1 and counts_match(count_parameters(with_d_ff(d_ff)), target_count):
            warning = f", less than half of the base's {base_d_ff}" if d_ff < base_d_ff / 2 else ""
            return _add_note(
                replace(design, recipe=with_d_ff(d_ff)), f"d_ff {d_ff} for equal parameters{warning}"
            )
    return _add_note(design, f"not matched, since no d_ff makes them equal: {difference}")


def _add_note(design: Design, note: str) -> Design:
    return replace(design, note="; ".join(filter(None, (design.note, note))))


def counts_match(a: int, b: int) -> bool:
    """Whether two counts agree within 1 % of the second."""
    return abs(a - b) <= 0.01 * b
