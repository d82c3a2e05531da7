"""Adapters as PEFT writes them."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

import polyhead as ph

LLAMA = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
# the config that PEFT 0.21 writes
PEFT_CONFIG = json.loads((Path(__file__).parent / "adapter_config.json").read_text(encoding="utf-8"))
IDS = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(1))


def write_adapter(directory, base, tensors, **keys):
    directory.mkdir(exist_ok=True)
    tensors = {f"base_model.model.{name}": x for name, x in tensors.items()}
    save_file(tensors, directory / "adapter_model.safetensors")
    config = PEFT_CONFIG | {"base_model_name_or_path": str(base)} | keys
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def random_lora(model, ranks, is_transposed=False):
    generator, tensors = torch.Generator().manual_seed(2), {}
    for name, module in model.named_modules():
        for ending, rank in ranks.items():
            if name.endswith(ending):
                n_out, n_in = module.weight.shape[::-1] if is_transposed else module.weight.shape
                tensors[f"{name}.lora_A.weight"] = torch.randn(rank, n_in, generator=generator) * 0.2
                tensors[f"{name}.lora_B.weight"] = torch.randn(n_out, rank, generator=generator) * 0.2
    assert tensors
    return tensors


@torch.no_grad()
def merge_lora(model, tensors, scales, is_transposed=False):
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            module = name.removesuffix(".lora_A.weight")
            [scale] = {value for ending, value in scales.items() if module.endswith(ending)}
            change = scale * tensors[f"{module}.lora_B.weight"] @ a
            model.get_submodule(module).weight += change.T if is_transposed else change


def assert_logits_equal(directory, reference):
    model = ph.load(directory).model
    with torch.no_grad():
        torch.testing.assert_close(model(IDS), reference(IDS).logits, atol=1e-5, rtol=1e-5)
