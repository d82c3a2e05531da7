"""Configs of the reference implementation: encoder-decoders, by family."""

from typing import Any, NamedTuple

from tests.hf.families.case_table import read_table

PAD, BOS, EOS, LANGUAGE = 0, 1, 2, 4  # <mask> plays a language


class Case(NamedTuple):
    """A config of the reference implementation, and what is not at its default."""

    config: str
    sizes: dict[str, Any]


_, TABLE = read_table("seq2seq_cases.yaml")
CASES = {family: [Case(*row) for row in rows] for family, rows in TABLE.items()}
