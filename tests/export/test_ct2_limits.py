"""Tests of export/ct2_limits.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.export.conftest import made

import polyhead.export.ctranslate2 as writing
from polyhead.cli import main

WINDOW = {"name": "softmax", "window": 4}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "decoder", "attention": WINDOW}, "window of attention is 4, expected null"),
        ({"decoder_attention": {"name": "softmax", "softcap": 9.0}}, "softcap of decoder_attention is 9.0, "
            "expected null"),
        ({"cross_attention": "kernel"}, "cross_attention is 'kernel', expected 'softmax'"),
        ({"kind": "decoder", "block": "lstm", "position": "none"}, "block is 'lstm', expected 'transformer' "
            "or 'parallel'"),
        ({"decoder_block": "gated_conv"}, "decoder_block is 'gated_conv', expected 'transformer'"),
        ({"kind": "decoder", "feed_forward": "prelu"}, "feed_forward is 'prelu', expected 'relu' or 'gelu' "
            "or"),
        ({"feed_forward": {"name": "conv1x1", "activation": "prelu"}}, "activation of feed_forward "
            "'conv1x1' is 'prelu'"),
        ({"feed_forward": {"name": "swiglu", "beta": 1.702}}, "beta of feed_forward is 1.702, expected 1"),
        ({"feed_forward": {"name": "swiglu", "beta": "learned"}}, "beta of feed_forward is 'learned', "
            "expected 1"),
        ({"kind": "decoder", "block": "rnn", "position": "none"}, "block is 'rnn', expected 'transformer' "
            "or 'parallel'"),
        ({"norm": "batchnorm"}, "norm is 'batchnorm', expected 'layernorm' or 'rmsnorm'"),
        ({"kind": "encoder", "position": "alibi"}, "position is 'alibi', expected 'sinusoidal' or 'learned' "
            "or"),
        ({"position": {"name": "rope", "scaling": "yarn", "factor": 2.0, "original_len": 8}},
         "scaling of position 'rope' is 'yarn', expected 'none' or 'linear' or 'ntk'"),
        ({"kind": "decoder", "position": "shaw", "n_kv_heads": 2}, "n_kv_heads is 2, expected 4 with "
            "position 'shaw'"),
        ({"kind": "encoder", "d_embedding": 8}, "d_embedding is 8, expected null"),
        ({"v_head_dim": 5}, "v_head_dim is 5, expected 6, as head_dim"),
        ({"attention": {"name": "softmax", "qk_norm": True}, "norm": {"name": "rmsnorm"}},
         "qk_norm is true, expected false in an encoder-decoder"),
        ({"kind": "decoder", "attention": {"name": "softmax", "qk_norm": True}}, "eps of norm is 1e-05, "
            "expected 1e-06, as qk_eps"),
        ({"attention": {"name": "softmax", "qk_norm": "all_heads"}, "norm": {"name": "rmsnorm"}},
         "qk_norm is 'all_heads', expected false in an encoder-decoder"),
        ({"kind": "decoder", "attention": {"name": "softmax", "qk_norm": "all_heads"},
            "norm": {"name": "rmsnorm"}},
         "qk_norm is 'all_heads', expected per head"),
        ({"kind": "decoder", "attention": {"name": "softmax", "qk_norm": "per_head"},
            "norm": {"name": "layernorm", "eps": 1e-6}},
         "qk_norm is 'per_head', expected an RMS norm that all heads share"),
        ({"kind": "decoder", "attention": {"name": "softmax", "qk_norm": "layernorm"},
            "norm": {"name": "layernorm", "eps": 1e-6}},
         "qk_norm is 'layernorm', expected an RMS norm that all heads share"),
        ({"norm_first": True, "sandwich_norm": True}, "sandwich_norm is true, expected false in an "
            "encoder-decoder"),
        ({"norm_first": True, "sandwich_norm": "after"}, "sandwich_norm is 'after', expected false in an "
            "encoder-decoder"),
        ({"kind": "decoder", "norm_first": True, "sandwich_norm": "after"}, "sandwich_norm is 'after', "
            "expected true or false"),
        ({"kind": "decoder", "norm_first": True, "embedding_norm": "first"}, "embedding_norm is 'first', "
            "expected true or"),
        ({"kind": "decoder", "residual_scale": 0.5}, "residual_scale is 0.5, expected 1"),
        ({"kind": "decoder", "block": "parallel", "norm_first": True, "norm": "rmsnorm"},
            "norm is 'rmsnorm', expected"),
        ({"kind": "decoder", "layer_pattern": [{"attention": WINDOW}, {}]}, "layer_pattern: all layers must "
            "be equal"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_is_named(
    config: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(**config).save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "new" / "out"), "--to", "ctranslate2"]) == 2
    assert capsys.readouterr().err.startswith(f"polyhead: CTranslate2 does not support this model: {message}")
    assert [x.name for x in tmp_path.iterdir()] == ["run"]


def test_all_that_stands_in_the_way_is_named_at_once() -> None:
    run = made(norm="batchnorm", feed_forward="prelu", attention=WINDOW)
    with pytest.raises(
        ValueError, match=r"window of attention is 4.*; norm is 'batchnorm'.*; feed_forward is 'prelu'"
    ):
        writing.check_ct2(run.model, "fp32")
