"""What the docstring of a part says. It is the one place where a part is described: `polyhead parts` and the pages
under docs/parts are made from it.

First a sentence, then as much text as it needs, then fields, each of which may be left out::

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

from polyhead.registry import Registry

FIELD = re.compile(r"^(Equation|Paper|When|Recipe|Options):", re.M)
OPTION = re.compile(r"^(\w+): +", re.M)


class Told(NamedTuple):
    """A docstring, taken apart."""

    text: str  # all before the fields, paragraphs apart
    fields: dict[str, str]  # the equation line by line, all others on one line
    options: dict[str, str]  # what each option means

    @property
    def first(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", joined(self.text.split("\n\n")[0]))[0]


def read(doc: str | None) -> Told:
    """A docstring as it stands in the source."""
    text, *found = FIELD.split(inspect.cleandoc(doc or ""))
    said = {name: inspect.cleandoc(value) for name, value in zip(found[::2], found[1::2], strict=True)}
    _, *options = OPTION.split(said.pop("Options", ""))
    return Told(
        text.strip(),
        {name: value if name == "Equation" else joined(value) for name, value in said.items()},
        {name: joined(value) for name, value in zip(options[::2], options[1::2], strict=True)},
    )


def told(registry: Registry[Any], name: str) -> Told:
    """What is said about a part, with the meaning of every option wherever it is explained."""
    part = registry.get(name)
    own = read(part.__doc__)
    shared = [read(import_module(place).__doc__).options for place in (registry.package, part.__module__)]
    options = {option: text for source in (*shared, own.options) for option, text in source.items()}
    return own._replace(options={option: options.get(option, "") for option in registry.options(name)})


def joined(text: str) -> str:
    """On one line."""
    return " ".join(text.split())
