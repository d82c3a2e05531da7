import pytest
import torch
import transformers
from tests.hf.conftest import make
from tests.hf.lora_helpers import IDS, LLAMA, assert_logits_equal, merge_lora, random_lora, write_adapter
from torch import nn

import polyhead as ph
from polyhead.cli import main

SIDE = {"layers": 1, "attention_heads": 4, "ffn_dim": 48}  # of BART


def random_matrix(*shape, seed=3, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def assert_close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("target", ["low-rank", "embedding", "head", "both", "both equal"])
def test_adapter_unties_embedding_and_head(target, tmp_path):
    """PEFT changes one of them, and the other stays as it was; unless both get the same values."""
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=True, **LLAMA)
    a, b = random_matrix(4, 300, scale=0.2), random_matrix(32, 4, seed=4, scale=0.2)
    rows, head_rows = random_matrix(300, 32, seed=5), random_matrix(300, 32, seed=6)
    old, name = model.lm_head.weight.detach().clone(), "model.embed_tokens"
    low_rank = {f"{name}.lora_embedding_A": a, f"{name}.lora_embedding_B": b}
    low_rank |= {f"{name}.base_layer.weight": old}
    head_lora = {"lm_head.lora_A.weight": b.T.contiguous(), "lm_head.lora_B.weight": a.T.contiguous()}
    tensors, embedding, head = {
        "low-rank": (low_rank, old + 2 * (b @ a).T, old),
        "embedding": ({f"{name}.weight": rows}, rows, old),
        "head": (head_lora, old, old + 2 * a.T @ b.T),
        "both": ({f"{name}.weight": rows, "lm_head.weight": head_rows}, rows, head_rows),
        "both equal": ({f"{name}.weight": rows, "lm_head.weight": rows.clone()}, rows, rows),
    }[target]
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    model.model.embed_tokens.weight, model.lm_head.weight = nn.Parameter(embedding), nn.Parameter(head)
    assert_logits_equal(adapter, model)
    assert ph.load(adapter).config.tie_embeddings == ("all" if target == "both equal" else "none")
    assert main(["export", str(adapter), str(tmp_path / "exported"), "--to", "hf"]) == 0
    assert_logits_equal(tmp_path / "exported", model)


def test_fp32_embedding_over_tied_bf16_checkpoint(tmp_path):
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=True, **LLAMA)
    model.bfloat16().save_pretrained(tmp_path / "base")
    model = type(model).from_pretrained(tmp_path / "base", dtype=torch.float32)
    old, rows = model.lm_head.weight.detach().clone(), random_matrix(300, 32)
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", {"model.embed_tokens.weight": rows})
    model.model.embed_tokens.weight, model.lm_head.weight = nn.Parameter(rows), nn.Parameter(old)
    assert_logits_equal(adapter, model)


def test_untied_head_of_t5_keeps_scale(tmp_path):
    base, sizes = tmp_path / "base", {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    model = make(base, "T5Config", auto="AutoModelForSeq2SeqLM", decoder_start_token_id=0, **sizes)
    head = random_matrix(300, 32)
    adapter = write_adapter(tmp_path / "adapter", base, {"lm_head.weight": head})
    model.lm_head.weight = nn.Parameter(head)
    with torch.no_grad():
        expected = model(input_ids=IDS, decoder_input_ids=IDS).logits
        assert_close(ph.load(adapter).model(IDS, IDS), expected, tolerance=1e-4)
    write_adapter(adapter, base, {"shared.weight": head})
    message = r"changes only one of \S+ and shared.weight, which are tied in the checkpoint"
    with pytest.raises(ValueError, match=message):
        ph.load(adapter)


def test_untied_head_of_bart(tmp_path):
    """Both sides keep the embedding that they share; an adapter of one side alone is refused."""
    base = tmp_path / "base"
    sizes = {f"{side}_{size}": n for side in ("encoder", "decoder") for size, n in SIDE.items()}
    model = make(base, "BartConfig", auto="AutoModelForSeq2SeqLM", d_model=32, **sizes)
    head = random_matrix(300, 32)
    adapter = write_adapter(tmp_path / "adapter", base, {"lm_head.weight": head})
    model.lm_head.weight = nn.Parameter(head)
    assert main(["export", str(adapter), str(tmp_path / "exported"), "--to", "hf"]) == 0
    exported_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "exported").eval()
    with torch.no_grad():
        expected = model(input_ids=IDS, decoder_input_ids=IDS).logits
        assert_close(ph.load(adapter).model(IDS, IDS), expected)
        assert_close(exported_model(input_ids=IDS, decoder_input_ids=IDS).logits, expected)
    for name in ("model.shared.weight", "model.encoder.embed_tokens.weight"):
        write_adapter(adapter, base, {name: head, "lm_head.weight": head + 1})
        with pytest.raises(ValueError, match=r"changes only one of \S+ and model.shared.weight"):
            ph.load(adapter)


def test_untied_head_of_bert(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    model = make(tmp_path / "base", "BertConfig", auto="AutoModelForMaskedLM", **sizes)
    head = random_matrix(300, 32)
    tensors = {"cls.predictions.decoder.weight": head}
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    model.cls.predictions.decoder.weight = nn.Parameter(head)
    assert_logits_equal(adapter, model)


@pytest.mark.parametrize("tie", [True, False])
def test_adapter_with_new_tokens(tie, tmp_path):
    """PEFT saves embedding and head then, and those of modules_to_save under three names."""
    model = make(tmp_path / "base", "LlamaConfig", tie_word_embeddings=tie, **LLAMA)
    tensors = random_lora(model, {"q_proj": 4})
    model.resize_token_embeddings(304)
    for module in ("model.embed_tokens", "lm_head"):
        rows = model.get_submodule(module).weight.detach()
        for name in ("weight", "modules_to_save.weight", "original_module.weight"):
            tensors[f"{module}.{name}"] = rows * (name != "original_module.weight")
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    merge_lora(model, tensors, {"q_proj": 2.0})
    assert_logits_equal(adapter, model)
    ids = torch.tensor([[300, 303, 5]])
    with torch.no_grad():
        assert_close(ph.load(adapter).model(ids), model(ids).logits)
