"""Write the page of every kind of part from the docstrings, and the table of statements: `./dev docs`.

A page is the docstring of the package (or module) of the kind and then, part by part, what cli/components.py
reads. Facts and the commands that measure them stand in measured.yaml, statements of the literature in
statements.yaml.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from polyhead.cli.components import RECIPE_KEYS, PartDoc, parse_docstring, read_part_doc
from polyhead.cli.formatting import format_type, format_yaml
from polyhead.core.registry import ALL_REGISTRIES, Registry

HERE = Path(__file__).parent
STATEMENTS_INTRODUCTION = """# What the literature says

Every statement of the literature on Transformers in our own words, where it is in Polyhead, and the test or
experiment that shows it. *Yes*: it is there, and a test compares it with an independent reference. *Held*,
*did not hold*, *undecided*: a claim, which an [experiment](lab.md) measures. *Words*: there is nothing to
measure. Tests are in `tests/`.
"""
Facts = dict[str, list[dict[str, str]]]


def page(registry: Registry[Any], facts: Facts) -> str:
    """The page of one kind."""
    places = ", ".join(f"`{place}`" for place in RECIPE_KEYS[registry.kind])
    about = parse_docstring(import_module(registry.package).__doc__)
    blocks = [f"# {registry.kind.replace('_', '-').capitalize()}", f"In a recipe: {places}", *fields(about)]
    for name in sorted(registry.names(), key=lambda name: place_in_source(registry.get(name))):
        blocks += [f"## {name}", *fields(read_part_doc(registry, name)), table(registry, name)]
        blocks += [f"*Measured:* {fact['fact']} (`{fact['command']}`)" for fact in facts.get(name, [])]
    return "\n\n".join(blocks) + "\n"


def fields(about: PartDoc) -> Iterator[str]:
    """Text, equation, paper, when to use it, and a recipe, as far as they are there."""
    if about.text:
        yield about.text.replace("``", "`")
    if equation := about.fields.get("Equation"):
        yield f"```text\n{equation}\n```"
    if paper := about.fields.get("Paper"):
        yield f"*Paper:* {paper}"
    if when := about.fields.get("When"):
        yield f"*When:* {when.replace('``', '`')}"
    if recipe := about.fields.get("Recipe"):
        yield f"```yaml\n{recipe}\n```"


def table(registry: Registry[Any], name: str) -> str:
    """The options of a part with their meanings."""
    options, meanings = registry.options(name), read_part_doc(registry, name).options
    if not options:
        return "No options."
    lines = ["| option | type | default | meaning |", "| --- | --- | --- | --- |"]
    for option, (kind, default) in options.items():
        value = "(required)" if default is inspect.Parameter.empty else f"`{format_yaml(default)}`"
        cells = (f"`{option}`", f"`{format_type(kind)}`", value, meanings[option].replace("``", "`"))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def place_in_source(part: Any) -> tuple[str, int]:
    """The order in which the parts stand in the source, which is the author's."""
    return part.__module__, inspect.getsourcelines(part)[1]


def statements_page(sections: dict[str, list[tuple[str, str, list[str], str]]]) -> str:
    """The table of what the literature says, with the number of each verdict."""
    verdicts = Counter(verdict for rows in sections.values() for *_, verdict in rows)
    lines = [STATEMENTS_INTRODUCTION, "| verdict | statements |", "| --- | --- |"]
    lines += [f"| {verdict} | {n} |" for verdict, n in verdicts.most_common()]
    number = count(1)
    for title, rows in sections.items():
        lines += ["", f"## {title}", "", "| | statement | in Polyhead | shown by | verdict |"]
        lines.append("| --- | --- | --- | --- | --- |")
        for statement, place, evidence, verdict in rows:
            shown = ", ".join(map(describe_evidence, evidence)) or "-"
            lines.append(f"| {next(number)} | {statement} | {place} | {shown} | {verdict} |")
    return "\n".join(lines) + "\n"


def describe_evidence(name: str) -> str:
    """A link to an experiment, or the file and the words of the name of a test."""
    if name.startswith("experiment:"):
        experiment = name.removeprefix("experiment:")
        return f"[{experiment}](lab.md#{experiment})"
    file, _, test = name.partition("::test_")
    return f"`{file}`: {test.replace('_', ' ')}"


def pages() -> dict[Path, str]:
    """Every page of a kind, and the table of statements, by its path."""
    facts = yaml.safe_load((HERE / "measured.yaml").read_text()) or {}
    statements = yaml.safe_load((HERE.parent / "statements.yaml").read_text())
    return {
        HERE.parent / "statements.md": statements_page(statements),
    } | {
        HERE / f"{registry.kind}.md": page(registry, facts.get(registry.kind, {}))
        for registry in ALL_REGISTRIES
    }


def main() -> int:
    """Write those that differ, and name them."""
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
