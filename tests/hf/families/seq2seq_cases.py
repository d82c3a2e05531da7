"""Configs of the reference implementation: encoder-decoders, by family."""

from tests.hf.families.case_table import Case, read_table

PAD, BOS, EOS, LANGUAGE = 0, 1, 2, 4  # <mask> plays a language

_, TABLE = read_table("seq2seq_cases.yaml")
CASES = {family: [Case(*row) for row in rows] for family, rows in TABLE.items()}
