"""What is said of where a model can go, against the exports themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.export.conftest import TEXTS, made

from polyhead import Choice
from polyhead.cli.export import FORMATS
from polyhead.config.model import PART_REGISTRIES
from polyhead.config.presets import PRESETS
from polyhead.core.errors import UserError
from polyhead.export.targets import describe_targets, find_obstacles
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

KINDS: dict[str, dict[str, Any]] = {
    "translator": {"kind": "encoder-decoder"},
    "language": {"kind": "decoder"},
    "masked": {"kind": "encoder"},
    "classifier": {"kind": "encoder", "labels": ("bad", "good"), "pooling": "first"},
}
LLAMA = {
    "kind": "decoder", "position": "rope", "norm": "rmsnorm", "norm_first": True,
    "attention": {"name": "softmax", "bias": False},
    "feed_forward": {"name": "swiglu", "bias": False}, "scale_embedding": False, "init": "normal",
}  # fmt: skip
BERT = {
    "kind": "encoder", "position": "learned", "feed_forward": "gelu", "embedding_norm": True, "n_segments": 2,
    "lm_head_bias": True, "scale_embedding": False, "init": "normal",
}  # fmt: skip
MARIAN = {
    "position": {"name": "sinusoidal", "layout": "halves"}, "feed_forward": "gelu", "lm_head_bias": True,
        "init": "normal",
}  # fmt: skip
# parts and options that some exporter has and another has not, on models that some family has
CHANGES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "bert": BERT,
    "bert without a head": BERT | {"lm_head": False, "pooling": "first"},
    "bert of classes": BERT | {"labels": ("a", "b"), "pooling": "first"},
    "marian": MARIAN,
    "pegasus": MARIAN | {"norm_first": True},
    "a detector": BERT | {"generator_layers": 1, "n_layers": 2},
    "a window": LLAMA | {"attention": {"name": "softmax", "bias": False, "window": 4}},
    "normed queries": LLAMA | {"attention": {"name": "softmax", "bias": False, "qk_norm": True}},
    "fewer key/value heads": LLAMA | {"n_kv_heads": 2},
    "heads of one": LLAMA | {"n_kv_heads": 1},
    "narrow values": LLAMA | {"v_head_dim": 5},
    "wide heads": LLAMA | {"head_dim": 8},
    "no ties": LLAMA | {"tie_embeddings": "none"},
    "a cap": LLAMA | {"logit_softcap": 30.0},
    "biases": LLAMA | {"attention": {"name": "softmax", "bias": True}},
    "two norms": LLAMA | {"sandwich_norm": True},
    "scaled embeddings": LLAMA | {"scale_embedding": True},
    "small embeddings": LLAMA | {"d_embedding": 16},
    "one layer for all": BERT | {"share_layers": True, "n_layers": 2},
    "a pattern of attentions": LLAMA | {"n_layers": 2, "layer_pattern": [{"attention": "linear"}, {}]},
    "a pattern of blocks": LLAMA | {"n_layers": 2, "layer_pattern": [{}, {"block": "lstm"}]},
    "linear in the decoder": {"decoder_attention": "linear"},
    "linear to the source": {"cross_attention": "linear"},
    "a recurrent decoder": {"decoder_block": "gru"},
}  # fmt: skip
SMALL = {"d_model": 24, "n_heads": 4, "n_layers": 1, "d_ff": 40, "max_len": 32, "head_dim": None}


def every_config() -> dict[str, dict[str, Any]]:
    """Presets in small, each part of each registry in each kind of model, and options that exporters differ
    in.
    """
    found = {name: fields | SMALL for name, fields in PRESETS.items()}
    found = {
        name: fields
        for name, fields in found.items()
        if list(found.values()).index(fields) == list(found).index(name)
    }
    found |= {
        f"{kind}, {field} {name}": fields | {field: name}
        for kind, fields in KINDS.items()
        for field in ("block", "attention", "position", "norm", "feed_forward")
        for name in PART_REGISTRIES[field].names()
    }
    return found | CHANGES


def export_error(run: Run, target: str, place: Path) -> str:
    """What the export itself says against a run; nothing where it succeeds."""
    place.mkdir()
    options: dict[str, Any] = {"family": None, "shard_size": None} if target == "hf" else {}
    if run.config.generator_layers:
        run.model = run.model.encoder_only()
    try:
        FORMATS[target](run, "fp32", **options)(place)
    except UserError as error:
        return str(error)
    return ""


def small_run(name: str) -> Run:
    """The run of a config; the test is skipped where no such model can be built."""
    try:
        return made(**CONFIGS[name])
    except UserError as error:
        pytest.skip(f"no such model: {error}")


@pytest.mark.parametrize("name", CONFIGS := every_config())
def test_a_model_goes_where_it_is_said_to_go(name: str, tmp_path: Path) -> None:
    run = small_run(name)
    for target, obstacle in find_obstacles(run.config, run.tokenizer).items():
        if target != "onnx" or obstacle:  # its graphs take long to write, and are refused at once
            refused = export_error(run, target, tmp_path / target)
            assert bool(obstacle) == bool(refused), (target, obstacle, refused)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_graphs_are_written_where_they_are_said_to_be(name: str, tmp_path: Path) -> None:
    run = small_run(name)
    if not find_obstacles(run.config)["onnx"]:
        assert not export_error(run, "onnx", tmp_path / "onnx")


def test_a_tokenizer_stands_in_the_way_where_texts_are_cut_otherwise(tmp_path: Path) -> None:
    for number, kind in enumerate(
        ["bpe", "byte", "char", "unigram", "wordpiece", {"name": "bpe", "lowercase": True}]
    ):
        run = made(**LLAMA)
        run = Run(run.model, train_tokenizer(TEXTS * 5, Choice.from_config(kind), 280), run.generation)
        obstacle = find_obstacles(run.config, run.tokenizer)["gguf"]
        assert bool(obstacle) == bool(export_error(run, "gguf", tmp_path / str(number))), kind


def test_one_line_says_where_a_model_goes_and_why_not_elsewhere() -> None:
    run = made(position="rope")
    assert describe_targets(find_obstacles(run.config)) == (
        "exports: CTranslate2, ONNX; not Hugging Face: position is 'rope'; not GGUF: language models only"
    )
    assert (
        describe_targets(find_obstacles(made(**LLAMA).config))
        == "exports: Hugging Face, CTranslate2, ONNX, GGUF"
    )
