"""Parse the docstrings of parts, the source of ``polyhead components`` and of the pages under docs/parts.

A docstring has a first sentence, then as much text as needed, then fields, each of which is optional::

    Equation: y = x / sqrt(mean(x^2) + eps) * gamma
    Paper: Zhang & Sennrich, 2019, eq. 4
    When: a good first choice
    Recipe: model: {norm: {name: rmsnorm, eps: 1e-5}}
    Options:
      eps: added to the mean square

An option that several parts share may be explained in the docstring of their module, or of their package.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any, NamedTuple

from polyhead.core.registry import Registry

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
