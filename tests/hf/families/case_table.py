"""Tables of reference configs by family: lines of [config, ..., base, changes of the base]."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Case(NamedTuple):
    """A config of the reference implementation, and what is not at its default."""

    config: str
    sizes: dict[str, Any]


def read_table(name):
    """The bases of a table, and its rows by family with the sizes of their base filled in."""
    families = yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))
    bases = families.pop("bases")
    for rows in families.values():
        rows[:] = [[*head, (bases[base] if base else {}) | changes] for *head, base, changes in rows]
    return bases, families
