"""``polyhead parts``: the catalogue, read from the registries and the docstrings of the parts."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from typing import Annotated, Any

import typer

from polyhead.cli.docstring import told
from polyhead.cli.words import type_name, yaml_word
from polyhead.config import PARTS
from polyhead.elsewhere import NAMES, name_of
from polyhead.errors import UserError, nearest, show, unknown
from polyhead.registry import (
    ALL,
    CACHE,
    CHAT,
    FEATURE_MAP,
    FORM,
    OPTIMIZER,
    SCHEDULE,
    SIMILARITY,
    SPECULATE,
    TASK,
    TOKENIZER,
    Registry,
)

# where in a recipe a part of that kind is chosen: one place, or the first and those that are as it if not given
PLACES = {
    registry.kind: [f"model.{field}" for field, other in PARTS.items() if other is registry]
    for registry in PARTS.values()
} | {
    TASK.kind: ["task"],
    FEATURE_MAP.kind: ["model.attention.feature_map"],
    SIMILARITY.kind: ["model.attention.sim"],
    CACHE.kind: ["generation.cache"],
    SPECULATE.kind: ["generation.speculate"],
    OPTIMIZER.kind: ["train.optimizer"],
    SCHEDULE.kind: ["train.schedule"],
    TOKENIZER.kind: ["tokenizer.kind"],
    CHAT.kind: ["generation.chat"],
    FORM.kind: ["generation.form"],
}


def run(
    name: Annotated[
        str | None, typer.Argument(help="a part, or a kind of parts; all of them if not given")
    ] = None,
) -> None:
    """List the parts a model can be made of, with their options.

    \b
    polyhead parts               all parts, a line each
    polyhead parts position      everything about the position schemes
    polyhead parts rope          everything about one part
    polyhead parts my_pkg.a:Part the same of a part of your own
    """
    if name is None:
        print("\n\n".join(summary(registry) for registry in ALL))
        return
    found = [
        (registry, part) for registry in ALL for part in registry.names() if name in (part, registry.kind)
    ]
    if ":" in name:
        found = [(kind_of(name), name)]
    if not found:
        words = {word for registry in ALL for word in (registry.kind, *registry.names())}
        ours = next(filter(None, (name_of(kind, name) for kind in NAMES)), name.rpartition(".")[2])
        if near := nearest(ours, words):
            raise UserError(f"unknown part {name!r}{near} polyhead parts lists all")
        raise unknown("part", name, words)
    print("\n\n".join(describe(registry, part) for registry, part in found))


def kind_of(name: str) -> Registry[Any]:
    """The kind of a part of another package: it takes what the parts of that kind are given."""
    called, mistakes = [registry for registry in ALL if registry.given], list[str]()
    for registry in called:
        try:
            registry.get(name)
            return registry
        except UserError as error:
            mistakes.append(str(error.__cause__))
    if len(set(mistakes)) == 1:
        raise UserError(f"{show(name)}: {mistakes[0]}")
    kinds = "; ".join(f"{registry.kind} ({', '.join(registry.given)})" for registry in called)
    raise UserError(f"{show(name)} takes what no kind of part is given: {kinds}")


def summary(registry: Registry[Any]) -> str:
    """All parts of a kind, a line each, with their options below."""
    lines = [f"{registry.kind} (recipe: {', '.join(PLACES[registry.kind])})"]
    width = max((len(name) for name in registry.names()), default=0)
    indent = " " * (width + 4)
    for name in registry.names():
        lines += wrapped(told(registry, name).first, f"  {name:<{width}}  ", indent)
        options = [option_line(*option) for option in registry.options(name).items()]
        # an option stays in one piece: its own spaces do not break
        lines += wrapped(", ".join(option.replace(" ", "\0") for option in options), indent, indent)
    return "\n".join(lines).replace("\0", " ")


def describe(registry: Registry[Any], name: str) -> str:
    """Everything about one part, for a terminal."""
    part, options, about = registry.get(name), registry.options(name), told(registry, name)
    lines = [f"{registry.kind} {name}", ""]
    for paragraph in filter(None, about.text.split("\n\n")):
        lines += [*wrapped(paragraph), ""]
    fields = about.fields | {"Recipe": about.fields.get("Recipe") or example(registry, name)}
    for field in ("Equation", "Paper", "When", "Recipe"):
        for i, line in enumerate(fields.get(field, "").splitlines()):
            head = f"{field if i == 0 else '':<10}"
            lines += [head + line] if field in ("Equation", "Recipe") else wrapped(line, head, " " * 10)
    if options:
        lines += ["", "Options"]
    for option, meaning in about.options.items():
        lines.append(f"  {option_line(option, options[option])}")
        lines += wrapped(meaning, " " * 6, " " * 6)
    return "\n".join([*lines, "", f"Defined in {part.__module__}"])


def example(registry: Registry[Any], name: str) -> str:
    """How to choose a part on the command line, with its first option as it is."""
    place, options = PLACES[registry.kind][0], registry.options(name)
    first = [f"{place}.{option}={yaml_word(default)}" for option, (_, default) in options.items()][:1]
    return " ".join([f"{place}={name}", *first])


def option_line(name: str, option: tuple[Any, Any]) -> str:
    """``theta: float = 10000.0``."""
    kind, default = option
    given = "" if default is inspect.Parameter.empty else f" = {yaml_word(default)}"
    return f"{name}: {type_name(kind)}{given}"


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """A paragraph in lines that fit the terminal; a list keeps its points apart."""
    width = min(shutil.get_terminal_size((100, 0)).columns, 110)
    plain = text.replace("``", "").replace("`", "")
    points = [" ".join(point.split()) for point in plain.split("\n- ")]
    wrap = textwrap.TextWrapper(width, break_on_hyphens=False, break_long_words=False)
    lines = []
    for i, point in enumerate(points):
        wrap.initial_indent, wrap.subsequent_indent = (first, rest) if i == 0 else (f"{rest}- ", f"{rest}  ")
        lines += wrap.wrap(point)
    return lines
