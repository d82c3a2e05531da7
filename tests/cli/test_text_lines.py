"""Tests of cli/text_lines.py: what verbs that read texts line by line have in common."""

import json

import pytest
from tests.run.run_helpers import make_run

from polyhead.cli.text_lines import open_texts, to_json_lines
from polyhead.core.errors import UserError


def test_rows_are_json_lines():
    rows = [{"text": "Zähne\n", "spans": []}, {"text": ""}]
    lines = [*to_json_lines(rows)]
    assert lines == ['{"text": "Zähne\\n", "spans": []}', '{"text": ""}']
    assert [json.loads(line) for line in lines] == rows


def test_run_and_lines_of_a_verb_are_checked(tmp_path):
    make_run(kind="encoder").save(tmp_path / "run")
    (tmp_path / "in.txt").write_text("a dog\ntwo dogs\n")
    options = None, "fp32", "cpu"
    run, texts, counter = open_texts(tmp_path / "run", f"{tmp_path / 'in.txt'}", None, *options, "encoder")
    assert (run.kind, [*texts], counter.lines) == ("encoder", ["a dog", "two dogs"], 0)
    with pytest.raises(UserError, match="classifier"):
        open_texts(tmp_path / "run", "a dog", None, *options, "classifier")
    with pytest.raises(UserError, match="--output"):
        open_texts(tmp_path / "run", f"{tmp_path / 'in.txt'}", tmp_path / "in.txt", *options, "encoder")
