"""Tests of export/onnx_limits.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.export.conftest import made

from polyhead.cli import main


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "decoder", "attention": "linear"}, "attention 'linear' cannot be written to ONNX: it has "
            "a recurrent state"),
        ({"kind": "decoder", "block": "gated_conv", "position": "none"}, "block 'gated_conv' cannot be "
            "written to ONNX: it has a"),
        ({"kind": "encoder", "block": "gru", "position": "none"}, "block 'gru' cannot be written to ONNX: "
            "it processes tokens"),
        ({"kind": "encoder", "block": "rnn", "position": "none"}, "block 'rnn' cannot be written to ONNX: "
            "it processes tokens"),
        ({"decoder_block": "lstm"}, "decoder_block 'lstm' cannot be written to ONNX: it processes tokens "
                                    "sequentially"),
        ({"decoder_attention": "linear"}, "attention 'linear' cannot be written to ONNX: it has a recurrent "
                                          "state"),
        ({"cross_attention": "linear"}, "cross_attention 'linear' cannot be written to ONNX: it has sums"),
        ({"kind": "decoder", "n_layers": 2, "layer_pattern": [{}, {"attention": "linear"}]},
            "attention 'linear' cannot be written to ONNX: it"),
        ({"kind": "decoder", "n_layers": 2, "layer_pattern": [{}, {"block": "gated_conv"}]},
            "block 'gated_conv' cannot be written to ONNX: it has a"),
        ({"kind": "encoder", "n_layers": 2, "layer_pattern": [{}, {"block": "lstm"}]},
            "block 'lstm' cannot be written to ONNX: it processes tokens"),
        (
            {"n_layers": 2, "decoder_attention": "softmax", "layer_pattern": [{}, {"attention": "linear"}]},
            "cross_attention 'linear' cannot be written to ONNX: it has sums",
        ),
        ({"feed_forward": "moe"}, "feed_forward 'moe' cannot be written to ONNX: it routes tokens"),
    ],
)  # fmt: skip
def test_a_part_that_is_no_graph_is_named(
    config: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(**config).save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "new" / "out"), "--to", "onnx"]) == 2
    assert capsys.readouterr().err.startswith(f"polyhead: {message}")
    assert [x.name for x in tmp_path.iterdir()] == ["run"]
