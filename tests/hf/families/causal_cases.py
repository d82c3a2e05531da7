"""Configs of the reference implementation: causal models, by family."""

from typing import Any, NamedTuple

from tests.hf.families.case_table import read_table


class Case(NamedTuple):
    """A config of the reference implementation, and what is not at its default."""

    config: str
    sizes: dict[str, Any]


BASES, TABLE = read_table("causal_cases.yaml")
LLAMA = BASES["LLAMA"]
CASES = {family: [Case(*row) for row in rows] for family, rows in TABLE.items()}
