import builtins
import io
import json
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.hf.conftest import make
from tests.hf.lora_helpers import random_lora, write_adapter
from tests.hf.test_apply_adapter import SIDE

import polyhead as ph
from polyhead.hf import checkpoint_files
from polyhead.models import CausalLM, SentenceEncoder, Seq2Seq

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def check_single_reads(directory, model_class, files, monkeypatch):
    """Loading opens these files and any others once each, and builds the model once."""
    reads, builds = Counter[str](), Counter[type]()
    open_file, open_weights, init = io.open, checkpoint_files.safe_open, model_class.__init__

    def count(file):
        if isinstance(file, str | Path) and Path(file).is_relative_to(directory.parent):
            reads[Path(file).relative_to(directory.parent).as_posix()] += 1

    def counting_open(file, *args, **options):
        count(file)
        return open_file(file, *args, **options)

    def counting_safe_open(file, *args):
        count(file)
        return open_weights(file, *args)

    def counting_init(self, *args, **options):
        builds[type(self)] += 1
        init(self, *args, **options)

    with monkeypatch.context() as patches:
        for module in (io, builtins):
            patches.setattr(module, "open", counting_open)
        patches.setattr(checkpoint_files, "safe_open", counting_safe_open)
        patches.setattr(model_class, "__init__", counting_init)
        run = ph.load(directory)
    assert type(run.model) is model_class and files <= reads.keys()
    assert ({*reads.values()}, builds.total()) == ({1}, 1)
    return reads


def test_language_model(gpt2, monkeypatch):
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    files = {f"gpt2/{name}" for name in (*names, "tokenizer_config.json")}
    assert check_single_reads(gpt2, CausalLM, files, monkeypatch).keys() == files


def test_older_tokenizer_files(gpt2, monkeypatch):
    rules = json.loads((gpt2 / "tokenizer.json").read_text())["model"]
    (gpt2 / "tokenizer.json").unlink()
    (gpt2 / "vocab.json").write_text(json.dumps(rules["vocab"]))
    (gpt2 / "merges.txt").write_text("\n".join(" ".join(pair) for pair in rules["merges"]))
    (gpt2 / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    files = {"gpt2/vocab.json", "gpt2/merges.txt", "gpt2/tokenizer_config.json"}
    check_single_reads(gpt2, CausalLM, files, monkeypatch)


def test_sentence_transformers(tmp_path, monkeypatch):
    directory = tmp_path / "bert"
    make(directory, "BertConfig", auto="AutoModel", max_position_embeddings=64, pad_token_id=0, **SIZES)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (directory / "modules.json").write_text(json.dumps(modules))
    dense = {"in_features": 16, "out_features": 4, "bias": False}
    for path, config in {"1_Pooling": {"pooling_mode_cls_token": True}, "2_Dense": dense}.items():
        (directory / path).mkdir()
        (directory / path / "config.json").write_text(json.dumps(config))
    save_file({"linear.weight": torch.randn(4, 16)}, directory / "2_Dense/model.safetensors")
    files = {f"bert/{name}" for name in ("modules.json", "1_Pooling/config.json", "2_Dense/config.json")}
    check_single_reads(directory, SentenceEncoder, files, monkeypatch)


def test_adapter_with_base(tmp_path, monkeypatch):
    sizes = {"d_model": 16, "max_position_embeddings": 32, "decoder_start_token_id": 2}
    sizes |= {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIDE.items()}
    model = make(tmp_path / "base", "BartConfig", auto="AutoModelForSeq2SeqLM", **sizes)
    tensors = random_lora(model, {"encoder.layers.0.fc1": 4})
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    files = {"adapter/adapter_config.json", "adapter/adapter_model.safetensors", "base/config.json"}
    check_single_reads(adapter, Seq2Seq, files, monkeypatch)
