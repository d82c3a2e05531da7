"""Every verb that uses a model refuses outputs that are NaN or infinite, with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.serve.conftest import TEXTS, make

from polyhead.cli import main
from polyhead.core.errors import NOT_FINITE

VERBS = {
    "decoder": [
        "score RUN lines.txt",
        "eval RUN lines.txt",
        "embed RUN lines.txt",
        "generate RUN dogs",
        "attention RUN dogs --out a.html",
        "visualize RUN --out v.html",
    ],
    "encoder-decoder": [
        "translate RUN lines.txt",
        "score RUN lines.txt lines.txt",
        "eval RUN lines.txt lines.txt",
    ],
    "encoder": ["embed RUN lines.txt", "embed RUN lines.txt --like dogs", "fill-mask RUN masks.txt"],
    "classifier": ["classify RUN lines.txt", "eval RUN labels.tsv --text 0 --label 1", "embed RUN lines.txt"],
}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", VERBS)
def test_a_verb_ends_with_exit_code_2(
    kind: str,
    value: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make(kind)
    with torch.no_grad():
        next(run.model.parameters()).fill_(value)
    run.save("run")
    Path("lines.txt").write_text("\n".join(TEXTS) + "\n")
    Path("masks.txt").write_text("a <mask> barks .\n")
    Path("labels.tsv").write_text("a dog barks .\tgood\ndogs\tbad\n")
    for verb in VERBS[kind]:
        assert main(verb.replace("RUN", "run").split()) == 2, verb
        captured = capsys.readouterr()
        assert captured.err.endswith(f"polyhead: {NOT_FINITE}\n"), verb
        assert "nan" not in captured.out
