"""``polyhead components``: list the parts, from the registries and the docstrings of the parts."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer

from polyhead.cli.formatting import format_type, format_yaml, wrap_paragraph
from polyhead.config.model import PART_REGISTRIES
from polyhead.core.errors import UserError, did_you_mean, format_value, unknown_name_error
from polyhead.core.key_aliases import NAME_ALIASES, aliased_name
from polyhead.core.registry import (
    ALL_REGISTRIES,
    AUGMENT,
    CACHE,
    CHAT,
    FEATURE_MAP,
    GRAMMAR,
    OPTIMIZER,
    SCHEDULE,
    SIMILARITY,
    SPECULATIVE,
    TASK,
    TOKENIZER,
    Registry,
)

FIELD = re.compile(r"^(Equation|Paper|When|Recipe|Options):", re.M)
OPTION = re.compile(r"^(\w+): +", re.M)


class PartDoc(NamedTuple):
    """A parsed docstring."""

    text: str  # everything before the fields, as paragraphs
    fields: dict[str, str]  # the equation with its line breaks, all others on one line
    options: dict[str, str]  # explanation of each option

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", join_lines(self.text.split("\n\n")[0]))[0]


def parse_docstring(doc: str | None) -> PartDoc:
    """Parse a docstring as it is in the source."""
    text, *matches = FIELD.split(inspect.cleandoc(doc or ""))
    values = {name: inspect.cleandoc(value) for name, value in zip(matches[::2], matches[1::2], strict=True)}
    _, *options = OPTION.split(values.pop("Options", ""))
    return PartDoc(
        text.strip(),
        {name: value if name == "Equation" else join_lines(value) for name, value in values.items()},
        {name: join_lines(value) for name, value in zip(options[::2], options[1::2], strict=True)},
    )


def read_part_doc(registry: Registry[Any], name: str) -> PartDoc:
    """Return the parsed docstring of a part, with the explanation of every option, also a shared one."""
    part = registry.get(name)
    doc = parse_docstring(part.__doc__)
    shared = [
        parse_docstring(import_module(place).__doc__).options for place in (registry.package, part.__module__)
    ]
    options = {option: text for source in (*shared, doc.options) for option, text in source.items()}
    return doc._replace(options={option: options.get(option, "") for option in registry.options(name)})


def join_lines(text: str) -> str:
    """Join the lines of a text with spaces."""
    return " ".join(text.split())


# recipe keys that choose a part of each kind; keys after the first one default to the first
RECIPE_KEYS = {
    registry.kind: [f"model.{field}" for field, other in PART_REGISTRIES.items() if other is registry]
    for registry in PART_REGISTRIES.values()
} | {
    TASK.kind: ["task"],
    FEATURE_MAP.kind: ["model.attention.feature_map"],
    SIMILARITY.kind: ["model.attention.sim"],
    CACHE.kind: ["generation.cache"],
    SPECULATIVE.kind: ["generation.speculative"],
    OPTIMIZER.kind: ["train.optimizer"],
    SCHEDULE.kind: ["train.schedule"],
    TOKENIZER.kind: ["tokenizer.kind"],
    AUGMENT.kind: ["data.augment"],
    CHAT.kind: ["generation.chat"],
    GRAMMAR.kind: ["generation.grammar"],
}


def run(
    name: Annotated[
        str | None, typer.Argument(help="name of a component, or a kind of components; default: all")
    ] = None,
) -> None:
    """List the parts that a model can be built from, with their options.

    \b
    polyhead components               all parts, a line each
    polyhead components position      everything about the position schemes
    polyhead components rope          everything about one part
    polyhead components my_pkg.a:Part the same of a part of your own
    """
    if name is None:
        print("\n\n".join(format_summary(registry) for registry in ALL_REGISTRIES))
        return
    matches = [
        (registry, part)
        for registry in ALL_REGISTRIES
        for part in registry.names()
        if name in (part, registry.kind)
    ]
    if ":" in name:
        matches = [(find_registry(name), name)]
    if not matches:
        words = {word for registry in ALL_REGISTRIES for word in (registry.kind, *registry.names())}
        canonical = next(
            filter(None, (aliased_name(kind, name) for kind in NAME_ALIASES)), name.rpartition(".")[2]
        )
        if near := did_you_mean(canonical, words):
            raise UserError(f"unknown component {name!r}{near} polyhead components lists all")
        raise unknown_name_error("component", name, words)
    print("\n\n".join(format_part(registry, part) for registry, part in matches))


def find_registry(name: str) -> Registry[Any]:
    """Return the registry of a part of another package, by the positional arguments that it takes."""
    registries, messages = [registry for registry in ALL_REGISTRIES if registry.positional], list[str]()
    for registry in registries:
        try:
            registry.get(name)
            return registry
        except UserError as error:
            messages.append(str(error.__cause__))
    if len(set(messages)) == 1:
        raise UserError(f"{format_value(name)}: {messages[0]}")
    kinds = "; ".join(f"{registry.kind} ({', '.join(registry.positional)})" for registry in registries)
    raise UserError(f"{format_value(name)} does not match the parameters of any kind of component: {kinds}")


def format_summary(registry: Registry[Any]) -> str:
    """Format all parts of a kind, one line each, with their options below."""
    lines = [f"{registry.kind} (recipe: {', '.join(RECIPE_KEYS[registry.kind])})"]
    width = max((len(name) for name in registry.names()), default=0)
    indent = " " * (width + 4)
    for name in registry.names():
        lines += wrap_paragraph(read_part_doc(registry, name).summary, f"  {name:<{width}}  ", indent)
        options = [format_option(*option) for option in registry.options(name).items()]
        # no line breaks inside an option
        lines += wrap_paragraph(", ".join(option.replace(" ", "\0") for option in options), indent, indent)
    return "\n".join(lines).replace("\0", " ")


def format_part(registry: Registry[Any], name: str) -> str:
    """Format the documentation of one part for a terminal."""
    part, options, doc = registry.get(name), registry.options(name), read_part_doc(registry, name)
    lines = [f"{registry.kind} {name}", ""]
    for paragraph in filter(None, doc.text.split("\n\n")):
        lines += [*wrap_paragraph(paragraph), ""]
    fields = doc.fields | {"Recipe": doc.fields.get("Recipe") or format_example(registry, name)}
    for field in ("Equation", "Paper", "When", "Recipe"):
        for i, line in enumerate(fields.get(field, "").splitlines()):
            head = f"{field if i == 0 else '':<10}"
            lines += (
                [head + line] if field in ("Equation", "Recipe") else wrap_paragraph(line, head, " " * 10)
            )
    if options:
        lines += ["", "Options"]
    for option, meaning in doc.options.items():
        lines.append(f"  {format_option(option, options[option])}")
        lines += wrap_paragraph(meaning, " " * 6, " " * 6)
    return "\n".join([*lines, "", f"Defined in {part.__module__}"])


def format_example(registry: Registry[Any], name: str) -> str:
    """Return command line arguments that choose a part, with its first option at the default."""
    key, options = RECIPE_KEYS[registry.kind][0], registry.options(name)
    first = [f"{key}.{option}={format_yaml(default)}" for option, (_, default) in options.items()][:1]
    return " ".join([f"{key}={name}", *first])


def format_option(name: str, option: tuple[Any, Any]) -> str:
    """Format an option: ``theta: float = 10000.0``."""
    kind, default = option
    suffix = "" if default is inspect.Parameter.empty else f" = {format_yaml(default)}"
    return f"{name}: {format_type(kind)}{suffix}"
