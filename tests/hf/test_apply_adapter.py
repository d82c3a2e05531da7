"""Tests of hf/apply_adapter.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tests.hf.conftest import make
from tests.hf.lora_helpers import LLAMA, add, drawn, same, write
from torch import nn

import polyhead as ph
from polyhead.cli import main

SIDE = {"layers": 1, "attention_heads": 4, "ffn_dim": 48}  # of BART

IDS = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("way", ["added", "whole", "head", "both", "alike"])
def test_a_head_that_is_tied_to_what_is_changed(way: str, tmp_path: Path) -> None:
    """PEFT changes one of them, and the other stays as it was; unless both are changed alike."""
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=True, **LLAMA)
    bits = torch.Generator().manual_seed(3)
    a, b = torch.randn(4, 300, generator=bits) * 0.2, torch.randn(32, 4, generator=bits) * 0.2
    rows, more = (torch.randn(300, 32, generator=bits) for _ in "ab")
    old = model.lm_head.weight.detach().clone()
    name = "model.embed_tokens"
    added = {f"{name}.lora_embedding_A": a, f"{name}.lora_embedding_B": b, f"{name}.base_layer.weight": old}
    tensors, embedding, head = {
        "added": (added, old + 2 * (b @ a).T, old),
        "whole": ({f"{name}.weight": rows}, rows, old),
        "head": ({"lm_head.lora_A.weight": b.T.contiguous(), "lm_head.lora_B.weight": a.T.contiguous()}, old,
            old + 2 * a.T @ b.T),
        "both": ({f"{name}.weight": rows, "lm_head.weight": more}, rows, more),
        "alike": ({f"{name}.weight": rows, "lm_head.weight": rows.clone()}, rows, rows),
    }[way]  # fmt: skip
    adapter = write(tmp_path / "a", tmp_path / "base", tensors)
    model.model.embed_tokens.weight, model.lm_head.weight = nn.Parameter(embedding), nn.Parameter(head)
    same(adapter, model)
    assert ph.load(adapter).config.tie_embeddings == ("all" if way == "alike" else "none")
    assert main(["export", str(adapter), str(tmp_path / "hf"), "--to", "hf"]) == 0
    same(tmp_path / "hf", model)


def test_an_embedding_in_fp32_over_a_tied_checkpoint_in_bf16(tmp_path: Path) -> None:
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=True, **LLAMA)
    model.bfloat16().save_pretrained(tmp_path / "base")
    model = type(model).from_pretrained(tmp_path / "base", dtype=torch.float32)
    old = model.lm_head.weight.detach().clone()
    rows = torch.randn(300, 32, generator=torch.Generator().manual_seed(3))
    adapter = write(tmp_path / "a", tmp_path / "base", {"model.embed_tokens.weight": rows})
    model.model.embed_tokens.weight, model.lm_head.weight = nn.Parameter(rows), nn.Parameter(old)
    same(adapter, model)


def test_a_tied_head_of_t5_becomes_its_own(tmp_path: Path) -> None:
    """What it reads is scaled as before."""
    sizes = {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    }
    model = make(tmp_path / "base", "T5Config", auto="AutoModelForSeq2SeqLM", **sizes)
    head = torch.randn(300, 32, generator=torch.Generator().manual_seed(3))
    adapter = write(tmp_path / "a", tmp_path / "base", {"lm_head.weight": head})
    model.lm_head.weight = nn.Parameter(head)
    with torch.no_grad():
        wanted = model(input_ids=IDS, decoder_input_ids=IDS).logits
        torch.testing.assert_close(ph.load(adapter).model(IDS, IDS), wanted, atol=1e-4, rtol=1e-4)
    write(adapter, tmp_path / "base", {"shared.weight": head})
    with pytest.raises(ValueError, match=r"changes only one of \S+ and shared.weight, which are tied in the "
                                         r"checkpoint"):  # fmt: skip
        ph.load(adapter)


def test_a_tied_head_of_bart_becomes_its_own(tmp_path: Path) -> None:
    """Both sides keep the embedding that they share; one that is changed by itself is refused."""
    sizes = {f"{side}_{size}": n for side in ("encoder", "decoder") for size, n in SIDE.items()}
    model = make(tmp_path / "base", "BartConfig", auto="AutoModelForSeq2SeqLM", d_model=32, **sizes)
    head = torch.randn(300, 32, generator=torch.Generator().manual_seed(3))
    adapter = write(tmp_path / "a", tmp_path / "base", {"lm_head.weight": head})
    model.lm_head.weight = nn.Parameter(head)
    assert main(["export", str(adapter), str(tmp_path / "hf"), "--to", "hf"]) == 0
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        wanted = model(input_ids=IDS, decoder_input_ids=IDS).logits
        torch.testing.assert_close(ph.load(adapter).model(IDS, IDS), wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(again(input_ids=IDS, decoder_input_ids=IDS).logits, wanted, atol=1e-5,
            rtol=1e-5)  # fmt: skip
    for name in ("model.shared.weight", "model.encoder.embed_tokens.weight"):
        write(adapter, tmp_path / "base", {name: head, "lm_head.weight": head + 1})
        with pytest.raises(ValueError, match=r"changes only one of \S+ and model.shared.weight"):
            ph.load(adapter)


def test_a_tied_head_of_bert_becomes_its_own(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    model = make(tmp_path / "base", "BertConfig", auto="AutoModelForMaskedLM", **sizes)
    head = torch.randn(300, 32, generator=torch.Generator().manual_seed(3))
    adapter = write(tmp_path / "a", tmp_path / "base", {"cls.predictions.decoder.weight": head})
    model.cls.predictions.decoder.weight = nn.Parameter(head)
    with torch.no_grad():
        torch.testing.assert_close(ph.load(adapter).model(IDS), model(IDS).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_tokens_were_added(tied: bool, tmp_path: Path) -> None:
    """PEFT saves the embedding and the head then, and those of modules_to_save under three names."""
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=tied, **LLAMA)
    tensors = drawn(model, {"q_proj": 4})
    model.resize_token_embeddings(304)
    for module in ("model.embed_tokens", "lm_head"):
        rows = model.get_submodule(module).weight.detach()
        for name in ("weight", "modules_to_save.weight", "original_module.weight"):
            tensors[f"{module}.{name}"] = rows * (name != "original_module.weight")
    adapter = write(tmp_path / "a", tmp_path / "base", tensors)
    add(model, tensors, {"q_proj": 2.0})
    same(adapter, model)
    ours = ph.load(adapter)
    with torch.no_grad():
        new = torch.tensor([[300, 303, 5]])
        torch.testing.assert_close(ours.model(new), model(new).logits, atol=1e-5, rtol=1e-5)
