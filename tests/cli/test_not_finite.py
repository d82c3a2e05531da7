"""Every verb that uses a model refuses outputs that are NaN or infinite."""

from pathlib import Path

import pytest
import torch
from tests.serve.conftest import TEXTS, make

from polyhead.core.errors import NOT_FINITE

COMMANDS = {
    "decoder": [
        "score run lines.txt",
        "eval run lines.txt",
        "embed run lines.txt",
        "generate run dogs",
        "attention run dogs --out a.html",
        "visualize run --out v.html",
    ],
    "encoder-decoder": [
        "translate run lines.txt",
        "score run lines.txt lines.txt",
        "eval run lines.txt lines.txt",
    ],
    "encoder": ["embed run lines.txt", "embed run lines.txt --like dogs", "fill-mask run masks.txt"],
    "classifier": ["classify run lines.txt", "eval run labels.tsv --text 0 --label 1", "embed run lines.txt"],
}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", COMMANDS)
def test_not_finite_output_is_a_user_error(kind, value, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = make(kind)
    with torch.no_grad():
        next(run.model.parameters()).fill_(value)
    run.save("run")
    Path("lines.txt").write_text("\n".join(TEXTS) + "\n")
    Path("masks.txt").write_text("a <mask> barks .\n")
    Path("labels.tsv").write_text("a dog barks .\tgood\ndogs\tbad\n")
    for command in COMMANDS[kind]:
        out, err = cli(*command.split(), code=2)
        assert err.endswith(f"polyhead: {NOT_FINITE}\n") and "nan" not in out, command
