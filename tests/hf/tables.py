"""Tables in text files: lines of cells between bars, of which one is JSON."""

import json

import pytest
from tests.hf.conftest import make
from tests.hf.families import causal_cases, encoders_cases, seq2seq_cases
from tests.hf.families.encoders import make_encoder
from tests.hf.families.seq2seq import make_seq2seq


def read_table(path, json_column):
    """The rows of a file as cases of a test, named by the number of their line."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        cells = line.split(" | ")
        if not line.startswith("#"):
            cells[json_column] = json.loads(cells[json_column])
            rows.append(pytest.param(*cells, id=f"{number}-{cells[0]}"))
    return rows


def make_case(directory, name):
    family, _, number = name.rpartition("-")
    if family in causal_cases.CASES:
        case = causal_cases.CASES[family][int(number)]
        make(directory, case.config, **case.sizes, files_only=True)
    elif family in encoders_cases.CASES:
        make_encoder(directory, encoders_cases.CASES[family][int(number)], files_only=True)
    else:
        make_seq2seq(directory, seq2seq_cases.CASES[family][int(number)], files_only=True)
