"""Tests of export/sidecar_files.py."""

from __future__ import annotations

import json
from pathlib import Path

from tests.export.conftest import TEXTS
from tests.export.onnx_helpers import language as language
from tests.export.onnx_helpers import translator as translator

import tokenizers
from polyhead.run.run import Run

Exported = tuple[Run, Path]


def test_config_and_tokenizer_stand_beside_the_graphs(language: Exported, translator: Exported) -> None:
    run, out = language
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"
    assert json.loads((out / "generation_config.json").read_text())["do_sample"] is False
    there = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    assert [there.encode(text, add_special_tokens=False).ids for text in TEXTS] == run.tokenizer.encode(TEXTS)
    # no published family has values of another width, so these are the run's own
    own = json.loads((translator[1] / "config.json").read_text())
    assert (own["model_type"], own["v_head_dim"]) == ("polyhead", 5)
