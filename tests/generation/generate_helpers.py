"""Shared by the tests of generate."""

import torch

from polyhead.config.model import ModelConfig
from polyhead.generation.decoding.sampling import Sampling
from polyhead.generation.generate import generate
from polyhead.models import build

PAD, EOS, V = 0, 2, 23

COLD, WARM = Sampling(temperature=0.0), Sampling(temperature=1.3, top_k=9, repetition_penalty=1.2)

DESIGNS = {
    "gpt-2": {"position": "learned", "norm_first": True, "feed_forward": "gelu", "scale_embedding": False},
    "llama": {"position": "rope", "norm": "rmsnorm", "norm_first": True, "n_kv_heads": 2},
    "linear": {"attention": "linear"},
    "lstm": {"block": "lstm", "position": "none"},
}


def make(design, **sizes):
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 40, "max_len": 64} | sizes
    model = build(
        ModelConfig(kind="decoder", vocab_size=V, tie_embeddings="none", **sizes, **DESIGNS[design]), seed=3
    )
    torch.manual_seed(4)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
        model.head.weight.mul_(3)  # outputs of many lengths, far from ties
    return model.eval()


def collect(model, prompts, **options):
    """The new tokens of every sequence, and all that was yielded."""
    given = {"sampling": COLD, "eos_id": EOS, "max_new_tokens": 12} | options
    said = list(generate(model, prompts, **given))
    found = [[] for _ in range(given.get("n", 1) * len(prompts))]
    for token in said:
        found[token.row - given.get("row_offset", 0)].append(token.id)
    return found, said
