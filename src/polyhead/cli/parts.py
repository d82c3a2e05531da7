"""``polyhead parts``: the catalogue, read from the registries."""

from __future__ import annotations

import inspect
import re
from typing import Annotated, Any

import typer

from polyhead.cli.words import type_name, yaml_word
from polyhead.config import PARTS
from polyhead.errors import unknown
from polyhead.registry import ALL, CACHE, OPTIMIZER, SCHEDULE, TOKENIZER, Registry

# where in a recipe a part of that kind is chosen
PLACES = {registry.kind: f"model.{field}" for field, registry in reversed(PARTS.items())} | {
    CACHE.kind: "generation.cache",
    OPTIMIZER.kind: "train.optimizer",
    SCHEDULE.kind: "train.schedule",
    TOKENIZER.kind: "tokenizer.kind",
}


def run(
    name: Annotated[
        str | None, typer.Argument(help="a part, or a kind of parts; all of them if not given")
    ] = None,
) -> None:
    """List the parts a model can be made of, with their options.

    \b
    polyhead parts            all parts, a line each
    polyhead parts position   everything about the position schemes
    polyhead parts rope       everything about one part
    """
    if name is None:
        print("\n\n".join(summary(registry) for registry in ALL))
        return
    kinds = {registry.kind: registry for registry in ALL}
    found = [
        (registry, part) for registry in ALL for part in registry.names() if name in (part, registry.kind)
    ]
    if not found:
        raise unknown("part", name, {*kinds, *(part for registry in ALL for part in registry.names())})
    print("\n\n".join(describe(registry, part) for registry, part in found))


def summary(registry: Registry[Any]) -> str:
    """All parts of a kind, a line each, with their options below."""
    lines = [f"{registry.kind} (recipe: {PLACES[registry.kind]})"]
    width = max((len(name) for name in registry.names()), default=0)
    for name in registry.names():
        lines.append(f"  {name:<{width}}  {first_sentence(registry.get(name))}".rstrip())
        options = ", ".join(option_line(*option) for option in registry.options(name).items())
        if options:
            lines.append(f"  {'':<{width}}  {options}")
    return "\n".join(lines)


def describe(registry: Registry[Any], name: str) -> str:
    """Everything about one part: its whole docstring, options, and how to choose it."""
    part, options = registry.get(name), registry.options(name)
    example = next(iter(options), None)
    lines = [f"{registry.kind} {name}", ""]
    if part.__doc__:
        lines += [inspect.cleandoc(part.__doc__), ""]
    lines += [f"  {option_line(*option)}" for option in options.items()] + ([""] if options else [])
    chosen = f"{PLACES[registry.kind]}={name}"
    if example is not None:
        chosen += f" {PLACES[registry.kind]}.{example}={yaml_word(options[example][1])}"
    return "\n".join(
        [*lines, f"In a recipe or on the command line: {chosen}", f"Defined in {part.__module__}"]
    )


def first_sentence(part: Any) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join(inspect.cleandoc(part.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", paragraph)[0]


def option_line(name: str, option: tuple[Any, Any]) -> str:
    """``theta: float = 10000.0``."""
    kind, default = option
    given = "" if default is inspect.Parameter.empty else f" = {yaml_word(default)}"
    return f"{name}: {type_name(kind)}{given}"
