"""Every verb that uses a model refuses outputs that are NaN or infinite."""

from pathlib import Path

import pytest
import torch
from tests.cli.cli_helpers import save_run

from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import NOT_FINITE

TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]
COMMANDS = {
    "decoder": [
        *(f"{verb} run lines.txt" for verb in ("score", "eval", "embed")),
        *("generate run dogs", "attention run dogs --out a.html", "visualize run --out v.html"),
    ],
    "encoder-decoder": [
        "translate run lines.txt",
        *(f"{v} run lines.txt lines.txt" for v in ("score", "eval")),
    ],
    "encoder": ["embed run lines.txt", "embed run lines.txt --like dogs", "fill-mask run masks.txt"],
    "classifier": ["classify run lines.txt", "eval run labels.tsv --text 0 --label 1", "embed run lines.txt"],
}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", COMMANDS)
def test_not_finite_output_is_a_user_error(kind, value, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fields = {"kind": kind} if kind in ("decoder", "encoder-decoder") else {"kind": "encoder"}
    fields |= {"labels": ("bad", "good"), "lm_head": False} if kind == "classifier" else {}
    fields |= {"d_ff": 32, "max_len": 48, "tie_embeddings": "none"}
    run = save_run("run", TEXTS, generation=GenerationConfig(beam_size=3, max_new_tokens=15), **fields)
    with torch.no_grad():
        next(run.model.parameters()).fill_(value)
    run.save("run")
    Path("lines.txt").write_text("\n".join(TEXTS) + "\n")
    Path("masks.txt").write_text("a <mask> barks .\n")
    Path("labels.tsv").write_text("a dog barks .\tgood\ndogs\tbad\n")
    for command in COMMANDS[kind]:
        out, err = cli(*command.split(), code=2)
        assert err.endswith(f"polyhead: {NOT_FINITE}\n") and "nan" not in out, command
