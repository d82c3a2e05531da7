import builtins
import io
from collections import Counter
from pathlib import Path

from tests.hf.conftest import make
from tests.hf.lora_helpers import random_lora, write_adapter
from tests.hf.test_lora import SIDE

import polyhead as ph
from polyhead.hf import checkpoint_files
from polyhead.models import CausalLM, Seq2Seq

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


def test_every_file_is_read_once(gpt2, monkeypatch, tmp_path):
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    files = {f"gpt2/{name}" for name in (*names, "tokenizer_config.json")}
    assert check_single_reads(gpt2, CausalLM, files, monkeypatch).keys() == files
    sizes = {"d_model": 16, "max_position_embeddings": 32, "decoder_start_token_id": 2}
    sizes |= {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIDE.items()}
    model = make(tmp_path / "base", "BartConfig", auto="AutoModelForSeq2SeqLM", **sizes)
    tensors = random_lora(model, {"encoder.layers.0.fc1": 4})
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    files = {"adapter/adapter_config.json", "adapter/adapter_model.safetensors", "base/config.json"}
    check_single_reads(adapter, Seq2Seq, files, monkeypatch)
