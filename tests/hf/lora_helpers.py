"""Shared by the tests of lora."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import polyhead as ph

LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip

# what PEFT 0.21 writes beside what a test says
SAID = {
    "alpha_pattern": {}, "arrow_config": None, "base_model_name_or_path": "", "bias": "none",
        "ensure_weight_tying": False,
    "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "layer_replication": None,
    "loftq_config": {},
    "lora_alpha": 8, "lora_bias": False, "lora_dropout": 0.05, "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 4, "rank_pattern": {},
        "revision": None,
    "target_modules": ["q_proj"], "target_parameters": None, "task_type": "CAUSAL_LM", "use_dora": False,
        "use_rslora": False,
}  # fmt: skip

IDS = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(1))


def write(directory: Path, base: Path, tensors: dict[str, Tensor], **said: Any) -> Path:
    directory.mkdir(exist_ok=True)
    save_file({f"base_model.model.{name}": x for name, x in tensors.items()},
        directory / "adapter_model.safetensors")  # fmt: skip
    config = SAID | {"base_model_name_or_path": str(base)} | said
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def drawn(model: nn.Module, ranks: dict[str, int], turned: bool = False) -> dict[str, Tensor]:
    """A and B for the modules whose names end so, and A alone turned where the weight is."""
    bits, made = torch.Generator().manual_seed(2), {}
    for name, module in model.named_modules():
        for end, rank in ranks.items():
            if name.endswith(end):
                out, into = module.weight.shape[::-1] if turned else module.weight.shape
                made[f"{name}.lora_A.weight"] = torch.randn(rank, into, generator=bits) * 0.2
                made[f"{name}.lora_B.weight"] = torch.randn(out, rank, generator=bits) * 0.2
    assert made
    return made


@torch.no_grad()
def add(model: nn.Module, tensors: dict[str, Tensor], scales: dict[str, float], turned: bool = False) -> None:
    """The same done to the reference: W + scale B A."""
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            module = name.removesuffix(".lora_A.weight")
            [scale] = {value for end, value in scales.items() if module.endswith(end)}
            change = scale * tensors[f"{module}.lora_B.weight"] @ a
            model.get_submodule(module).weight += change.T if turned else change


def same(directory: Path, model: nn.Module) -> None:
    ours = ph.load(directory).model
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), model(IDS).logits, atol=1e-5, rtol=1e-5)
