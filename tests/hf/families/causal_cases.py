"""Configs of the reference implementation: causal models, by family."""

from tests.hf.families.case_table import Case, read_table

BASES, TABLE = read_table("causal_cases.yaml")
LLAMA = BASES["LLAMA"]
CASES = {family: [Case(*row) for row in rows] for family, rows in TABLE.items()}
