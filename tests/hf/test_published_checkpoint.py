"""A published checkpoint is opened once: every file is read once, and the model is built once."""

from __future__ import annotations

import builtins
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.hf.conftest import make
from tests.hf.lora_helpers import drawn, write
from tests.hf.test_apply_adapter import SIDE

import polyhead as ph
from polyhead.hf import checkpoint_files
from polyhead.models import CausalLM, SentenceEncoder, Seq2Seq

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def count_loading(
    directory: Path, model_class: type, monkeypatch: pytest.MonkeyPatch
) -> tuple[Counter[str], int]:
    """How often each file beside a checkpoint and in it is opened while it is loaded, and its model built."""
    opened, built = Counter[str](), []
    open_file, open_weights, init = io.open, checkpoint_files.safe_open, model_class.__init__

    def note(file: object) -> None:
        if isinstance(file, str | Path) and Path(file).is_relative_to(directory.parent):
            opened[Path(file).relative_to(directory.parent).as_posix()] += 1

    def counted_open(file: Any, *args: Any, **options: Any) -> Any:
        note(file)
        return open_file(file, *args, **options)

    def counted_safe_open(file: Any, *args: Any) -> Any:
        note(file)
        return open_weights(file, *args)

    def counted_init(self: Any, *args: Any, **options: Any) -> None:
        built.append(type(self))
        init(self, *args, **options)

    with monkeypatch.context() as patches:
        for module in (io, builtins):
            patches.setattr(module, "open", counted_open)
        patches.setattr(checkpoint_files, "safe_open", counted_safe_open)
        patches.setattr(model_class, "__init__", counted_init)
        loaded = ph.load(directory)
    assert type(loaded.model) is model_class
    return opened, len(built)


def test_a_language_model_is_read_and_built_once(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, builds = count_loading(gpt2, CausalLM, monkeypatch)
    names = (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    )
    assert opened == {f"gpt2/{name}": 1 for name in names}
    assert builds == 1


def test_so_is_one_with_the_older_files_of_a_tokenizer(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = json.loads((gpt2 / "tokenizer.json").read_text())["model"]
    (gpt2 / "tokenizer.json").unlink()
    (gpt2 / "vocab.json").write_text(json.dumps(rules["vocab"]))
    (gpt2 / "merges.txt").write_text("\n".join(" ".join(pair) for pair in rules["merges"]))
    (gpt2 / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    opened, builds = count_loading(gpt2, CausalLM, monkeypatch)
    assert {"gpt2/vocab.json", "gpt2/merges.txt", "gpt2/tokenizer_config.json"} < opened.keys()
    assert ({*opened.values()}, builds) == ({1}, 1)


def test_so_is_one_of_sentence_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "bert"
    make(directory, "BertConfig", auto="AutoModel", max_position_embeddings=64, pad_token_id=0, **SIZES)
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    listed = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules.items()
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    dense = {"in_features": 16, "out_features": 4, "bias": False}
    for path, values in {"1_Pooling": {"pooling_mode_cls_token": True}, "2_Dense": dense}.items():
        (directory / path).mkdir()
        (directory / path / "config.json").write_text(json.dumps(values))
    save_file({"linear.weight": torch.randn(4, 16)}, directory / "2_Dense/model.safetensors")
    opened, builds = count_loading(directory, SentenceEncoder, monkeypatch)
    assert {
        f"bert/{name}" for name in ("modules.json", "1_Pooling/config.json", "2_Dense/config.json")
    } < opened.keys()
    assert ({*opened.values()}, builds) == ({1}, 1)


def test_so_is_an_adapter_with_the_checkpoint_that_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"d_model": 16, "max_position_embeddings": 32, "decoder_start_token_id": 2}
    sizes |= {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIDE.items()}
    model = make(tmp_path / "base", "BartConfig", auto="AutoModelForSeq2SeqLM", **sizes)
    adapter = write(tmp_path / "adapter", tmp_path / "base", drawn(model, {"encoder.layers.0.fc1": 4}))
    opened, builds = count_loading(adapter, Seq2Seq, monkeypatch)
    assert {
        "adapter/adapter_config.json",
        "adapter/adapter_model.safetensors",
        "base/config.json",
    } < opened.keys()
    assert ({*opened.values()}, builds) == ({1}, 1)
