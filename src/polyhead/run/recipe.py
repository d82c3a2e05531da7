"""Read recipes, and check that their model can be built. Importing it does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyhead.config.recipe import Recipe, parse_recipe, read_recipe, with_default_out
from polyhead.config.yaml_io import decode_yaml
from polyhead.core.errors import UserError, prefix_errors
from polyhead.core.strict_kwargs import strict_kwargs


@strict_kwargs
def load_recipe(path: str | Path, overrides: list[str] | None = None, *, from_run: bool = False) -> Recipe:
    """Read a recipe, with overrides such as ``model.d_model=256``; every mistake is a UserError.

    With ``from_run``, for the recipe of an existing run, generation settings without effect are accepted.
    """
    return check_recipe(read_recipe(path, overrides, from_run=from_run))


def parse_saved_recipe(content: bytes, path: Path) -> Recipe:
    """Parse the recipe.yaml of an existing run; an error is one line that names the file."""
    try:
        return validate_recipe(with_default_out(decode_yaml(content, path), path), from_run=True)
    except UserError as error:
        message = "; ".join(str(error).splitlines())
        raise UserError(message if str(path) in message else f"{path}: {message}") from None


def validate_recipe(tree: dict[str, Any], *, from_run: bool = False) -> Recipe:
    """Build a recipe from a tree of keys; every mistake is a UserError, as in ``load_recipe``."""
    return check_recipe(parse_recipe(tree, from_run=from_run))


def check_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe; a UserError if its model cannot be built."""
    from polyhead.nn.validate_model import check_model

    with prefix_errors("model"):
        check_model(recipe.model)
    return recipe
