"""From text files to a checked recipe: what ``polyhead recipe`` writes and ``ph.recipe`` returns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import ValidationError

from polyhead import document
from polyhead.errors import UserError, explain, unknown
from polyhead.export.targets import NAMES, describe_targets, recipe_obstacles
from polyhead.recipe import Recipe
from polyhead.registry import TASK
from polyhead.starter.look import look
from polyhead.starter.propose import propose, written
from polyhead.text.learn import train_tokenizer
from polyhead.train.tasks.base import TaskPart


class Draft(NamedTuple):
    """A proposed recipe, as it is written with its comments, and the comments that a person should see."""

    recipe: Recipe
    text: str
    notes: list[str]


def draft_recipe(
    files: Sequence[str], changes: Sequence[str], target: str | None = None, name: str = "mine.yaml"
) -> Draft:
    """Look at the files and propose a recipe with the ``changes``, whose model can be exported to the format ``target``.

    ``name`` is the file that the recipe is meant for.
    """
    if not files:
        raise UserError("name the files to learn from: polyhead recipe train.en train.de")
    if target is not None and target not in NAMES:
        raise unknown("format", target, NAMES)
    given = document.parse_overrides(list(changes), Recipe)
    known = {keys[1]: value for keys, value in given if keys[0] == "data" and len(keys) == 2}
    if "train" in known:
        raise UserError(f"data.train is what is looked at, {', '.join(files)}: leave the key out")
    task = next((value for keys, value in given if keys == ["task"]), None)
    found = look(files, known, task)
    tree = propose(found, {".".join(keys): value for keys, value in given}, target or "")
    for keys, value in given:
        document.assign(tree, keys, value, Recipe)
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        raise explain(error, Recipe) from None
    by_character = recipe.start is None and recipe.tokenizer.kind.name == "char"
    if by_character and ["tokenizer", "vocab_size"] not in [keys for keys, _ in given]:
        section = recipe.tokenizer.model_copy(update={"vocab_size": count_characters(recipe)})
        tree["tokenizer"]["vocab_size"] = section.vocab_size
        recipe = recipe.model_copy(update={"tokenizer": section})
    if recipe.start is None:
        obstacles = recipe_obstacles(recipe)
        if target and obstacles[target]:
            able = ", ".join(NAMES[name] for name, obstacle in obstacles.items() if not obstacle)
            raise UserError(
                f"{NAMES[target]} cannot hold this model: {obstacles[target]}; this one goes to {able or 'no other format'}"
            )
        found.notes.append(describe_targets(obstacles))
    elif target:
        raise UserError(
            f"parts for {NAMES[target]} are chosen for a new model, and this recipe begins with {recipe.start.run}; "
            "polyhead export tells where that goes"
        )
    return Draft(recipe, written(tree, found, name), found.notes)


def count_characters(recipe: Recipe) -> int:
    """How many tokens a tokenizer of characters has that knows each one of the training text."""
    part: TaskPart = TASK.get(recipe.task.name)
    section = recipe.tokenizer
    return train_tokenizer(part.texts(recipe), section.kind, sys.maxunicode, section.sentinels).vocab_size
